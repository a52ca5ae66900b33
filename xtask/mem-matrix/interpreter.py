"""Python alone: children of every kind, threads, long random bytes and programs with code before them.

usage: interpreter.py fork | pool | spawn | threads | random | subprocess

Prints checksums that do not depend on where memory lies.
"""

import hashlib
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import warnings
import zlib

# More than one thread may be the library's.
warnings.simplefilter("ignore", DeprecationWarning)

PART = 4 << 20
PARTS = 7


def part(number):
    """A long array with content of its own."""
    return bytearray(hashlib.sha256(b"%d" % number).digest()) * (PART // 32)


def crc(parts):
    """One number for all of them."""
    value = 0
    for one in parts:
        value = zlib.crc32(one, value)
    return value


def fork():
    """Children that see and change their copy, and a child of a child."""
    parts = [part(number) for number in range(PARTS)]
    before = crc(parts)
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            same = crc(parts) == before
            parts[number][: PART // 2] = bytes(PART // 2)
            inner = os.fork()
            if inner == 0:
                changed = not any(parts[number][:4096])
                os._exit(5 if changed and crc(parts[4:]) == crc(map(part, range(4, PARTS))) else 6)
            status = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            os._exit(3 if same and status == 5 else 4)
        children.append(child)
    print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], crc(parts) == before, before)


def work(number):
    """What a process of a pool does: long arguments, long results."""
    own = [part(number + more) for more in range(3)]
    return bytes(own[0]), crc(own)


def pool(method):
    """A pool of processes, made by this method."""
    kept = part(77)
    with multiprocessing.get_context(method).Pool(2) as processes:
        for number, (long, value) in enumerate(processes.imap(work, range(6))):
            print(number, zlib.crc32(long), value)
    shared = multiprocessing.get_context(method).Array("d", 400_000)
    process = multiprocessing.get_context(method).Process(target=fill, args=(shared,))
    process.start()
    process.join()
    print(process.exitcode, sum(shared), zlib.crc32(kept))


def fill(shared):
    """Stores into memory that two processes share."""
    with shared.get_lock():
        for at in range(0, len(shared), 100):
            shared[at] = at


def threads():
    """Threads that make, pass on and compress long arrays."""
    results, waiting = {}, queue.Queue()

    def run():
        while (number := waiting.get()) is not None:
            long = part(number)
            results[number] = zlib.crc32(zlib.compress(long, 1)), hashlib.sha1(long).hexdigest()

    for number in range(24):
        waiting.put(number)
    started = [threading.Thread(target=run) for _ in range(4)]
    for thread in started:
        waiting.put(None)
        thread.start()
    for thread in started:
        thread.join()
    print(sorted(results.items()))


def random():
    """Random bytes of many lengths: all of them are there, and none is a row of zeros."""
    kept = []
    for bits in range(10, 25):
        for more in (-1, 0, 1):
            kept.append(os.urandom((1 << bits) + more))
    for number, long in enumerate(kept):
        pages = [long[at : at + 4096] for at in range(0, len(long) // 4096 * 4096, 4096)]
        print(number, len(long), all(any(page) for page in pages), len(set(pages)) == len(pages))
    with open("/dev/urandom", "rb", buffering=0) as file:
        long = bytearray(16 << 20)
        print(file.readinto(long) == len(long), any(long[-4096:]))


def programs():
    """Programs that are started with code before them, and long text through pipes."""
    kept = [part(number) for number in range(PARTS)]
    long = bytes(kept[0])
    for before in (None, lambda: kept[3].count(b"x")):
        said = subprocess.run(["sha1sum"], input=long * 4, preexec_fn=before, capture_output=True, check=True)
        print(said.stdout)
        said = subprocess.run(["cat"], input=long, preexec_fn=before, capture_output=True, check=True, close_fds=True)
        print(said.stdout == long)
        again = [sys.executable, "-c", "b = bytearray(b'y') * (6 << 20); print(sum(b))"]
        print(subprocess.run(again, preexec_fn=before, capture_output=True, check=True).stdout)
    print(subprocess.run(["false"], check=False).returncode, os.system("exit 3"), crc(kept))


def main():
    """Runs one of them."""
    runs = {
        "fork": fork,
        "pool": lambda: pool("fork"),
        "spawn": lambda: pool("spawn"),
        "threads": threads,
        "random": random,
        "subprocess": programs,
    }
    runs[sys.argv[1]]()
    print("ok")


if __name__ == "__main__":
    main()
