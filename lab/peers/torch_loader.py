"""Batches of samples of 64 KiB by torch's DataLoader with two workers: over a space, over a folder of .npy files, one
for each sample, and over an HDF5 file, all on the same tmpfs, in turn.

python lab/peers/torch_loader.py [SAMPLES [ROUNDS]]

A sample is 128 x 128 float32. The space holds them in versions of 256 samples; the HDF5 file is one dataset whose
chunks are the samples, without compression. Every loader gives batches of 32, from which the first number of each
sample is read; each round is an epoch, with the start of the workers. Over the space there are: `forebay.torch.loader`
in order, whose batches are views; the same with `shuffle=1024`, whose batches are gathered; and torch's own DataLoader
over the same dataset. Files and HDF5 are read in order, which is their best case. "one tensor" is a dataset that gives
the same tensor again and again, the least that a DataLoader takes.

Prints the time over files and over HDF5 divided by that over the space: median, least and greatest; then the time for a
sample of each. Needs the packages
torch and h5py; without h5py its rows are left out.
"""

import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import forebay as fb
import forebay.torch
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

try:
    import h5py
except ImportError:
    h5py = None

_SHAPE = (128, 128)
_ROWS = 256
_BATCH = 32
_WORKERS = 2


class OneTensor(IterableDataset[Any]):
    """A worker's share of the samples, without reading anything. Zeros, so that their sum tells nothing."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.repeat(torch.zeros(_SHAPE), self._samples // _WORKERS)


class Files(Dataset[Any]):
    """A file for each sample."""

    def __init__(self, folder: str, samples: int) -> None:
        self._folder, self._samples = folder, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(f"{self._folder}/{index}.npy"))


class Hdf5(Dataset[Any]):
    """A dataset of one file, opened once by each worker."""

    def __init__(self, path: str, samples: int) -> None:
        self._path, self._samples = path, samples
        self._data: Any = None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._data is None:
            self._data = h5py.File(self._path, "r")["x"]
        return torch.from_numpy(self._data[index])


def epoch(batches: Iterable[Any], samples: int, expected: int) -> float:
    begin = time.perf_counter()
    total = count = 0
    for batch in batches:
        total += int(batch[:, 0, 0].sum())
        count += len(batch)
    seconds = time.perf_counter() - begin
    assert (count, total) == (samples, expected), (count, total)
    return seconds


def said(ratios: list[float]) -> str:
    ratios = sorted(ratios)
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def write(root: str, samples: int) -> None:
    os.mkdir(f"{root}/files")
    file = h5py.File(f"{root}/x.h5", "w") if h5py else None
    stored = file.create_dataset("x", (samples, *_SHAPE), "f4", chunks=(1, *_SHAPE)) if file else None
    quota = samples * 65536 + (256 << 20)
    with fb.open("samples", "w", quota=quota, retention="forever") as channel:
        for step in channel.steps(samples // _ROWS):
            first = step.version * _ROWS
            data = np.random.default_rng(step.version).random((_ROWS, *_SHAPE), np.float32)
            data[:, 0, 0] = range(first, first + _ROWS)
            step.put("x", data)
            for row in range(_ROWS):
                np.save(f"{root}/files/{first + row}.npy", data[row])
            if stored is not None:
                stored[first : first + _ROWS] = data
    if file:
        file.close()


def main() -> None:
    samples = (int(sys.argv[1]) if len(sys.argv) > 1 else 8192) // _ROWS * _ROWS
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    root = tempfile.mkdtemp(prefix="forebay-torch-", dir="/dev/shm")
    os.environ["FOREBAY_DIR"] = root
    try:
        write(root, samples)
        measure(root, samples, rounds)
    finally:
        shutil.rmtree(root)


def measure(root: str, samples: int, rounds: int) -> None:
    def space(shuffle: int = 0) -> forebay.torch.StepDataset:
        return forebay.torch.StepDataset("samples", "x", along=0, versions="all", shuffle=shuffle)

    workers: dict[str, Any] = {"num_workers": _WORKERS}
    ours: dict[str, Callable[[], Iterable[Any]]] = {
        "forebay.torch.loader": lambda: forebay.torch.loader(space(), _BATCH, **workers),
        "forebay.torch.loader, shuffled": lambda: forebay.torch.loader(space(1024), _BATCH, **workers),
        "DataLoader over the space": lambda: DataLoader(space(), _BATCH, **workers),
    }
    theirs: dict[str, Callable[[], Iterable[Any]]] = {
        "files": lambda: DataLoader(Files(f"{root}/files", samples), _BATCH, **workers)
    }
    least = {"one tensor": lambda: DataLoader(OneTensor(samples), _BATCH, **workers)}
    if h5py:
        theirs["HDF5"] = lambda: DataLoader(Hdf5(f"{root}/x.h5", samples), _BATCH, **workers)
    else:
        print("h5py is not installed: nothing is said of HDF5")
    seconds: dict[str, list[float]] = {name: [] for name in (*ours, *theirs, *least)}
    for turn in range(rounds + 1):
        for name, make in (*ours.items(), *theirs.items(), *least.items()):
            took = epoch(make(), samples, 0 if name in least else samples * (samples - 1) // 2)
            if turn:
                seconds[name].append(took)
    for name in ours:
        for other in theirs:
            ratios = [there / here for there, here in zip(seconds[other], seconds[name], strict=True)]
            print(f"{name}: {said(ratios)} times as fast as DataLoader over {other}, measured")
    for name, took in seconds.items():
        print(f"  {name}: {statistics.median(took) / samples * 1e6:.1f} us a sample")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    main()
