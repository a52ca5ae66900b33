"""Random rows of a large array: numpy.memmap as people write it or with MADV_RANDOM, or forebay.array; measured.

Arguments: FILE, ROW_BYTES, BATCH, SECONDS, and memmap, memmap-random or forebay. Prints seconds a row. The file's
cached pages are dropped first; forebay's budget is a quarter of the file. Before the clock starts as many rows are read
as that holds, for as long at most as is measured afterwards: either goes on at the rate that it keeps.
"""

import mmap
import os
import sys
import time

import numpy as np

path, row_bytes, batch, seconds, how = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4]), sys.argv[5]
rows = os.path.getsize(path) // row_bytes
shape = (rows, row_bytes // 8)
with open(path, "rb") as file:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
if how == "forebay":
    import forebay

    data = forebay.array(shape, "f8", path=path, budget=os.path.getsize(path) // 4, tile=4096, mode="r")
else:
    data = np.memmap(path, "f8", "r", shape=shape)
    if how == "memmap-random":
        data._mmap.madvise(mmap.MADV_RANDOM)
random = np.random.default_rng(5)


def batches(limit: float) -> "tuple[int, float]":
    """Reads batches until it were `limit` rows, or SECONDS have passed: how many rows, and seconds."""
    read, spent = 0, 0.0
    while read < limit and spent < seconds:
        wanted = random.integers(0, rows, batch)
        begun = time.perf_counter()
        data[wanted].view("u8").sum()
        spent += time.perf_counter() - begun
        read += batch
    return read, spent


batches(rows // 4)
read, spent = batches(float("inf"))
print(spent / read)
