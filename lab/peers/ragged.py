"""Particles of 4 ranks, each with another number of them: put(concat=True) beside an exclusive scan by MPI and a put of
a box, in turn.

mpiexec -n 4 python lab/peers/ragged.py [PARTICLES [ROUNDS]]

Prints one line: the time of the boxed step over that of the concatenated one, median, least and greatest. A step is
timed from a barrier until the last rank has ended it; both ways put the same bytes, three float64 a particle.
"""

import statistics
import sys
import time

import forebay as fb
import numpy as np
from mpi4py import MPI


def boxed(step, local: np.ndarray, comm: MPI.Comm) -> None:
    """Where this rank's particles begin, by what the ranks tell each other."""
    counts = np.array([len(local)], dtype="i8")
    before, total = np.zeros(1, dtype="i8"), np.zeros(1, dtype="i8")
    comm.Exscan(counts, before)
    comm.Allreduce(counts, total)
    step.put("x", local, shape=(int(total[0]), 3), start=(int(before[0]) if comm.rank else 0, 0))


def concatenated(step, local: np.ndarray, comm: MPI.Comm) -> None:
    """Without a word to the others."""
    step.put("x", local, concat=True)


def main() -> None:
    particles = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
    comm = MPI.COMM_WORLD
    rng = np.random.default_rng(comm.rank)
    times: dict[str, list[float]] = {"boxed": [], "concatenated": []}
    options = {"quota": 4 * particles * 24 + (64 << 20), "retention": "last:1", "replace": True}
    with fb.open("ragged", "w", comm=comm, **options) as channel:
        for turn in range(2 * (rounds + 1)):
            way = (boxed, concatenated)[turn % 2]
            # About as many on each rank, and each time others.
            local = np.full((particles // comm.size + int(rng.integers(-1000, 1000)), 3), float(turn))
            comm.Barrier()
            begin = time.perf_counter()
            channel.begin_step()
            way(channel.step, local, comm)
            channel.end_step()
            comm.Barrier()
            # The first of each way pays for pages.
            if turn >= 2:
                times[way.__name__].append(time.perf_counter() - begin)
    if comm.rank == 0:
        ratios = sorted(b / c for b, c in zip(times["boxed"], times["concatenated"], strict=True))
        seconds = statistics.median(times["concatenated"])
        print(
            f"ragged put of {particles} particles, {comm.size} ranks: {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) times as fast as a scan and a boxed put; "
            f"{particles * 24 / seconds / 2**30:.1f} GiB/s, measured"
        )
    comm.Barrier()
    if comm.rank == 0:
        fb.destroy("ragged")


if __name__ == "__main__":
    main()
