"""Reads what writer.f90 writes and checks every element.

    python3 reader.py NAME

Fortran's T(nx, ny) is T[ny, nx] here: the same bytes, dimensions in C order. Exits with 1 when an element
is wrong.
"""

import sys

import numpy as np

import forebay

NX, NY, STEPS = 6, 8, 3


def main(name: str) -> int:
    steps = 0
    with forebay.open(name) as channel:
        for step in channel.steps(timeout=60):
            t = step.get("T")
            j, i = np.mgrid[0:NY, 0:NX]
            expected = 10000.0 * step.version + 100.0 * j + i
            if t.shape != (NY, NX) or not np.array_equal(t, expected):
                print(f"version {step.version}: T is wrong:\n{t}", file=sys.stderr)
                return 1
            if not np.array_equal(step.get("coarse"), expected[::2].astype("float32")):
                print(f"version {step.version}: coarse is wrong", file=sys.stderr)
                return 1
            steps += 1
    print(f"{steps} steps of {NY} x {NX}, every element as written")
    return 0 if steps == STEPS else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
