"""One rank of a simulation: writes rows of T, step by step. Run: FOREBAY_RANK=0 FOREBAY_SIZE=1 python writer.py"""

import numpy as np

import forebay as fb

N = 64
with fb.open("heat", "w", quota="64MiB") as channel:
    rows = N // channel.size
    first = rows * channel.rank
    for step in channel.steps(10):
        T = step.reserve("T", shape=(N, N), start=(first, 0), count=(rows, N))
        T[:] = np.arange(first, first + rows)[:, None] + step.version
    print(f"rank {channel.rank} wrote {channel.next_version} steps")
