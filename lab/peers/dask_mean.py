"""The mean of a variable of 4 GiB by Dask with two worker processes: over a space, opened with xarray, and over a Zarr
LocalStore on the same tmpfs, in turn.

python lab/peers/dask_mean.py [GIB [ROUNDS]]

Both hold the same float64 in chunks of 64 MiB, without compression. The version is complete and its writer still there.
All take the plain mean (`skipna=False`): looking for NaN takes longer than reading.

Prints the time over Zarr divided by that over the space: median, least and greatest; then NumPy's mean over `get`
divided by xarray's without Dask. Needs the packages xarray, dask, distributed and zarr, and twice the memory of the
variable.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import dask.array
import forebay as fb
import numpy as np
import xarray as xr
import zarr
from dask.distributed import Client

_CHUNK = 64 << 20


def timed(work: Callable[[], float], expected: float) -> float:
    begin = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - begin
    assert abs(found - expected) < 1e-9, (found, expected)
    return seconds


def said(ratios: list[float]) -> str:
    ratios = sorted(ratios)
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 4
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    rows, columns = int(gib * 2**30) // _CHUNK, _CHUNK // 8
    root = tempfile.mkdtemp(prefix="forebay-dask-", dir="/dev/shm")
    os.environ["FOREBAY_DIR"] = root
    try:
        with fb.open("mean", "w", quota=rows * _CHUNK + (256 << 20), retention="forever") as channel:
            store = zarr.create_array(
                zarr.storage.LocalStore(f"{root}/zarr"),
                shape=(rows, columns),
                chunks=(1, columns),
                dtype="f8",
                compressors=None,
            )
            channel.begin_step()
            for row in range(rows):
                data = np.random.default_rng(row).random((1, columns))
                channel.put("T", data, shape=(rows, columns), start=(row, 0))
                channel.step.describe("T", dims=("row", "column"))
                store[row : row + 1] = data
            channel.end_step()
            measure(f"{root}/zarr", rounds)
    finally:
        shutil.rmtree(root)


def measure(path: str, rounds: int) -> None:
    dataset = xr.open_dataset("forebay://mean", engine="forebay", chunks={})
    lazy = xr.open_dataset("forebay://mean", engine="forebay")
    plain = dask.array.from_zarr(path)
    assert dataset["T"].chunks == plain.chunks
    reader = fb.open("mean", observer=True)
    step = reader[-1]
    expected = float(plain.mean().compute(scheduler="synchronous"))
    dask_ratios, numpy_ratios = [], []
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        for turn in range(rounds + 1):
            ours = timed(lambda: float(dataset["T"].mean(skipna=False).compute()), expected)
            theirs = timed(lambda: float(plain.mean().compute()), expected)
            by_xarray = timed(lambda: float(lazy["T"].mean(skipna=False)), expected)
            by_numpy = timed(lambda: float(step.get("T").mean()), expected)
            if turn:
                dask_ratios.append(theirs / ours)
                numpy_ratios.append(by_numpy / by_xarray)
                lazy.close()
                lazy = xr.open_dataset("forebay://mean", engine="forebay")
    print(f"Dask, 2 processes, over a space: {said(dask_ratios)} times as fast as over LocalStore, measured")
    print(f"mean of an xarray variable: {said(numpy_ratios)} times as fast as NumPy over get, measured")
    reader.close()


if __name__ == "__main__":
    main()
