"""Random rows of a large array: numpy.memmap as people write it, or forebay.array; seconds for each batch, measured.

Arguments: FILE, ROW_BYTES, BATCH, BATCHES, memmap or forebay. The file's cached pages are dropped first; forebay's
budget is a quarter of the file.
"""

import os
import sys
import time

import numpy as np

path, row_bytes, batch, batches, how = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
rows = os.path.getsize(path) // row_bytes
shape = (rows, row_bytes // 8)
with open(path, "rb") as file:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
if how == "memmap":
    data = np.memmap(path, "f8", "r", shape=shape)
else:
    import forebay

    data = forebay.array(shape, "f8", path=path, budget=os.path.getsize(path) // 4, tile=4096, mode="r")
random = np.random.default_rng(5)
spent = 0.0
total = 0
for _ in range(batches):
    wanted = random.integers(0, rows, batch)
    begun = time.perf_counter()
    total ^= int(data[wanted].view("u8").sum())
    spent += time.perf_counter() - begun
print(spent / batches, total)
