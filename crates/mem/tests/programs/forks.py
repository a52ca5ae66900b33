"""Forks as Python programs do: os.fork, multiprocessing by fork, subprocess with code before the program."""

import multiprocessing
import os
import subprocess
import sys
import warnings

# More than one thread is the library's, and none of them is forked.
warnings.simplefilter("ignore", DeprecationWarning)

WORDS = {number: str(number) for number in range(60_000)}
BLOCK = bytearray(8 << 20)


def look(number):
    """What a child sees of its parent's memory."""
    BLOCK[number] = 1
    return WORDS[number], sum(BLOCK), [str(k) for k in range(20_000)][number]


def main():
    child = os.fork()
    if child == 0:
        kept = all(WORDS[number] == str(number) for number in WORDS)
        os._exit(3 if kept and not any(BLOCK) else 4)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3, status

    with multiprocessing.get_context("fork").Pool(2) as pool:
        for number, (word, stored, own) in enumerate(pool.map(look, range(12), chunksize=3)):
            assert word == own == str(number) and 1 <= stored <= 12, (number, word, stored, own)
    assert not any(BLOCK), "a child stored into its parent"

    said = subprocess.run(
        [sys.executable, "-c", "print('child')"], preexec_fn=lambda: WORDS[5], capture_output=True, check=True
    )
    assert said.stdout == b"child\n"
    print("ok")


if __name__ == "__main__":
    main()
