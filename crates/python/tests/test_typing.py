"""The package is fully typed: strict mypy accepts correct use and refuses wrong use."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import forebay as fb
import pytest

GOOD = '''
from typing import Any
import numpy as np
from numpy.typing import NDArray
import forebay as fb

def produce(T: NDArray[np.float64]) -> None:
    with fb.open("heat", "w", rank=0, size=2, quota="1GiB", readers={"analysis": 3}) as ch:
        ch.attrs["dx"] = 0.5
        for step in ch.steps(10):
            step.put("T", T, shape=(8, 8), start=(0, 0))
            step.put("raw", b"bytes")
            step.put("note", "text")
            step.put("x", T[:, 0], concat=True, dims=("row",), attrs={"units": "m", "levels": [1, 2], "names": ["a"]})
            step.describe("U", dims=["y", "x"])
            step.attrs["time"] = 0.5
            out: NDArray[Any] = step.reserve("U", shape=(8, 8), start=(0, 0), count=(4, 8), dtype="f4")
            out[:] = 1
            step.commit(out)
        status: fb.StepStatus = ch.begin_step()
        assert status == fb.StepStatus.OK

def consume() -> float:
    total = 0.0
    with fb.open("heat", latest=True, timeout=5) as ch:
        for step in ch.steps(timeout=1.5):
            total += float(step.get("T").sum()) + float(step["T", 0:3, ...].sum())
            total += float(step.view("T", start=(0, 0), count=(1, 8))[0])
            total += float(step.get("T", copy=None)[0])
            name: str = step.variables["T"].name
            dims: tuple[str, ...] | None = step["T"].dims
            total += float(step["T"][0].sum()) + sum(array.size for _, array in step.items())
        with ch.select(time=0.25) as chosen, ch[-1] as newest:
            assert chosen.version <= newest.version and len(ch) > 0 and 3 in ch
            table: fb.Table = newest.table(["x"])
        for version, array in ch.subscribe("T"):
            total += version + float(array[0])
        dx = ch.attrs["dx"]
        assert isinstance(dx, float)
    with fb.map("/dev/shm/r", 4096, tier="dram", mode="w+") as region:
        region.copy_persist(8, np.ones(3))
        cells: NDArray[Any] = region.array((2, 4), "f8", offset=64)
        region.persist(0, cells.nbytes)
        total += float(cells.sum()) + len(memoryview(region)) + len(region.durability)
    async def follow(reader: fb.Reader) -> int:
        return sum([step.version async for step in reader.steps(timeout=1)])
    class OnGpu:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {}
    with fb.open("heat", "w") as writer, fb.open("heat") as reader:
        writer.put("T", OnGpu())
        filled: OnGpu = reader.get("T", out=OnGpu())
        total += len(filled.__cuda_array_interface__)
    try:
        fb.inspect("heat")
    except fb.errors.PeerMissing as e:
        print(e.kind, e.code, e.context, e.hint)
    return total
'''

BAD = '''
import forebay as fb
fb.open("x", "w").get("T")
fb.open("x").put("T", 1)
fb.open("x", horizon="far", mode="w")
fb.open("x", qouta=1)
fb.map("x", 1, tier=3)
fb.map("x", mode="w").persist("all")
fb.open("x", "w").put("T", 1, dims=2)
fb.open("x")["newest"]
'''


@pytest.fixture
def mypy(tmp_path: Path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")

    def check(code: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "sample.py"
        path.write_text(code)
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(path)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=110)

    return check


def test_types(mypy):
    good = mypy(GOOD)
    assert good.returncode == 0, good.stdout + good.stderr
    bad = mypy(BAD)
    assert bad.returncode == 1, bad.stdout + bad.stderr
    refused = {int(line.split(":")[1]) for line in bad.stdout.splitlines() if ": error:" in line}
    assert refused == {3, 4, 5, 6, 7, 8, 9, 10}, bad.stdout


def test_pyright_accepts_the_same(tmp_path: Path):
    """Strict pyright, as pylance shows it in an editor."""
    command = shutil.which("basedpyright", path=Path(sys.executable).parent) or shutil.which("pyright")
    if command is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    unused = {"reportUnusedFunction": False, "reportUnusedVariable": False}
    config = {"typeCheckingMode": "strict", "pythonVersion": "3.11", **unused}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    called = [command, "--pythonpath", sys.executable, "--outputjson", "-p", str(tmp_path)]
    done = subprocess.run(called, capture_output=True, text=True, timeout=110)
    errors = [found for found in json.loads(done.stdout)["generalDiagnostics"] if found["severity"] == "error"]
    lines = {(Path(found["file"]).name, found["range"]["start"]["line"] + 1) for found in errors}
    assert lines == {("bad.py", line) for line in range(3, 11)}, done.stdout


def test_stub_names_what_there_is():
    """Every public member of the compiled classes stands in the stub."""
    stub = Path(fb.__file__).with_name("_forebay.pyi").read_text()
    for cls in (fb.Writer, fb.WriteStep, fb.Reader, fb.ReadStep, fb.Variable, fb.Piece, fb.Region):
        part = stub.split(f"class {cls.__name__}:")[1].split("\nclass ")[0]
        members = [m for m in vars(cls) if not m.startswith("_")]
        assert members
        for member in members:
            assert f"def {member}(" in part, f"{cls.__name__}.{member}"
    for name in fb.__all__:
        assert hasattr(fb, name)
