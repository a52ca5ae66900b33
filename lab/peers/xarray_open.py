"""How long xarray takes to open a space of 1000 variables and 1000 versions as one dataset, in a new process and again.

python lab/peers/xarray_open.py [VARIABLES [VERSIONS [ROUNDS]]]

Prints the median, least and greatest time of a first opening, each in a process of its own that has imported xarray and
forebay.xarray before, and of a second one in the same process. Nothing of the data is read.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import forebay as fb
import numpy as np

_OPEN = """
import time
import forebay.xarray
import xarray as xr
for _ in range(2):
    begin = time.perf_counter()
    dataset = xr.open_dataset("forebay:wide", engine="forebay", step="all")
    print(time.perf_counter() - begin)
    assert len(dataset.sizes) == 2 and len(dataset) == {variables} and dataset.sizes["step"] == {versions}
    dataset.close()
"""


def main() -> None:
    variables, versions, rounds = (int(n) for n in [*sys.argv[1:], *("1000", "1000", "9")[len(sys.argv) - 1 :]])
    root = tempfile.mkdtemp(prefix="forebay-open-", dir="/dev/shm")
    os.environ["FOREBAY_DIR"] = root
    names = [f"v{i:04}" for i in range(variables)]
    data = np.zeros((variables, 4))
    try:
        with fb.open("wide", "w", quota="2GiB", retention="forever") as channel:
            for step in channel.steps(versions):
                step.put_many(names, data)
                for name in names:
                    step.describe(name, dims=("x",), attrs={"units": "K"})
        code = _OPEN.format(variables=variables, versions=versions)
        times = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True) for _ in range(rounds)]
        seconds = [tuple(map(float, done.stdout.split())) for done in times]
        for what, found in zip(("first", "second"), zip(*seconds, strict=True), strict=True):
            print(
                f"{what} opening of {variables} variables of {versions} versions: {statistics.median(found):.2f} s "
                f"({min(found):.2f} to {max(found):.2f}), measured"
            )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
