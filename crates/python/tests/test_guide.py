"""The programs of the guide's pages on xarray, Zarr and ensembles run, and print what the pages say."""

import contextlib
import io
import re
from pathlib import Path

import forebay as fb
import numpy as np
import pytest

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "src" / "guide"


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of code."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (GUIDE / page).read_text(), re.DOTALL | re.MULTILINE)


def printed(program: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "guide", "exec"), {"__name__": "guide"})
    return out.getvalue()


def test_the_page_on_xarray():
    pytest.importorskip("xarray")
    pytest.importorskip("dask.array")
    (language, program), (_, output) = blocks("xarray.md")[:2]
    assert language == "python" and printed(program) == output
    with fb.open("mean", observer=True) as reader, reader[-1] as step:
        assert step.variable("T").dims == ("y", "x") and step["T"][0, 0] == 21


def test_the_page_on_zarr(root: Path):
    zarr = pytest.importorskip("zarr", minversion="3")
    (_, store), (_, output), (language, program), (_, cache) = blocks("zarr.md")
    assert printed(store) == output
    with fb.open("heat", "w", retention="forever") as channel:
        for step in channel.steps(18):
            step.put("T", np.full((20, 4), step.version), dims=("y", "x"), attrs={"units": "K"})
    show = program.replace('group["T"][:10], ', 'print(group["T"][:10].sum(), ')
    show = show.replace("metadata.dimension_names", "metadata.dimension_names)").replace('every["17/T"][...]', "")
    assert language == "python" and printed(show + 'print(every["17/T"][...].mean())') == "680 K ('y', 'x')\n17.0\n"
    # Without a network the store that it stands before is one of files.
    zarr.create_array(f"{root}/files", shape=(2, 2), dtype="f4")[...] = 3
    cache = cache.replace('FsspecStore.from_url("s3://era5/2m")', f'LocalStore("{root}/files")')
    assert printed("import zarr\n" + cache) == ""


def test_the_page_on_ensembles():
    (_, program), (_, output) = blocks("ensemble.md")[:2]
    assert printed(program) == output


def test_what_the_page_on_python_says_of_dimensions_and_of_looking_around():
    text = (GUIDE / "python.md").read_text()
    with fb.open("heat", "w", retention="forever") as channel:
        for step in channel.steps(18):
            names = {"channel": channel, "step": step, "T": np.ones((20, 4)), "np": np}
            step.put("u", np.ones((2, 2)))
            section = text.split("## Dimensions and attributes")[1].split("```python\n")[1].split("```")[0]
            exec(section.split("\n\n")[0], names)
            step.attrs["time"] = 0.25 * step.version
    section = text.split("## Look around")[1].split("```python\n")[1].split("```")[0]
    exec(section, {"fb": fb, "np": np})
    with fb.open("heat", observer=True) as channel, channel.select(time=0.3) as step:
        assert step.version == 1 and step["u"].dims == ("y", "x") and channel.attrs["title"] == "heat in a plate"
