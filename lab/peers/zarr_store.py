"""Two processes write and read chunks through Zarr stores: `forebay.zarr.Store` and LocalStore on one tmpfs, in turn.

python lab/peers/zarr_store.py [MIB [ROUNDS]]

Each process has an array of its own of MIB MiB (256), in chunks of 64 KiB or of 4 MiB, without compression. It sets and
gets all chunks through the store (`await store.set`, `await store.get`), several at a time as Zarr does it, and then
writes and reads the array (`array[...] = data`, `array[...]`). What is read is compared with what was written.

Prints the time of LocalStore divided by that of Store: median, least and greatest over the rounds and processes. Arrays
are written again in each round, as a simulation does it. The first round, in which both take new pages from the system,
is stated separately, and two more are left out, in which Store comes to the end of its quota.
"""

import asyncio
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import zarr
from forebay.zarr import Store
from zarr.core.buffer import cpu, default_buffer_prototype

_AT_ONCE = 10
_WARM_UP = 3
_WAIT_SECONDS = 300
_CHUNKS = (64 << 10, 4 << 20)
_WHAT = ("set of chunks", "get of chunks", "write of an array", "read of an array")


async def _all(work: Any, n: int) -> list[Any]:
    """Runs so many coroutines, as many at a time as Zarr."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(i: int) -> Any:
        async with gate:
            return await work(i)

    return await asyncio.gather(*(one(i) for i in range(n)))


def _seconds(store: Any, path: str, data: np.ndarray[Any, Any], chunk: int, barrier: Barrier) -> list[float]:
    """How long the four take, each begun by all processes together."""
    n = data.nbytes // chunk
    prototype = default_buffer_prototype()
    parts = [cpu.Buffer.from_array_like(data[i * chunk : (i + 1) * chunk]) for i in range(n)]
    found: list[float] = []

    def timed(work: Any) -> Any:
        barrier.wait(_WAIT_SECONDS)
        begin = time.perf_counter()
        result = work()
        found.append(time.perf_counter() - begin)
        return result

    timed(lambda: asyncio.run(_all(lambda i: store.set(f"{path}/raw/{i}", parts[i]), n)))

    async def get(i: int) -> int:
        value = await store.get(f"{path}/raw/{i}", prototype)
        # The bytes are there, wherever they lie.
        return int(value.as_numpy_array()[:: 4 << 10].sum(dtype="u8"))

    sums = timed(lambda: asyncio.run(_all(get, n)))
    assert sum(sums) == int(data[:: 4 << 10].sum(dtype="u8"))
    array = zarr.open_array(store, path=path, mode="r+")

    def write() -> None:
        array[...] = data

    timed(write)
    back = timed(lambda: array[...])
    assert (back == data).all()
    return found


def _process(number: int, root: str, mib: int, rounds: int, barrier: Barrier, results: Any) -> None:
    data = np.random.default_rng(number).integers(0, 255, mib << 20, "u1")
    for chunk in _CHUNKS:
        path = f"p{number}"
        stores = {
            "local": zarr.storage.LocalStore(f"{root}/local-{chunk}"),
            # What both ways write is there at the same time.
            "ours": Store(f"{root}/ours-{chunk}", quota=3 * data.nbytes),
        }
        for store in stores.values():
            zarr.create_array(store, name=path, shape=data.shape, chunks=(chunk,), dtype="u1", compressors=None)
        for turn in range(_WARM_UP + rounds):
            seconds = {name: _seconds(store, path, data, chunk, barrier) for name, store in stores.items()}
            results.put((chunk, turn, [a / b for a, b in zip(seconds["local"], seconds["ours"], strict=True)]))
        barrier.wait(_WAIT_SECONDS)
        stores["ours"].close()
        if not number:
            for name in stores:
                shutil.rmtree(f"{root}/{name}-{chunk}")


def main() -> None:
    mib, rounds = (int(n) for n in [*sys.argv[1:], *("256", "7")[len(sys.argv) - 1 :]])
    root = tempfile.mkdtemp(prefix="forebay-zarr-", dir="/dev/shm")
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    try:
        workers = [context.Process(target=_process, args=(i, root, mib, rounds, barrier, results)) for i in range(2)]
        for worker in workers:
            worker.start()
        rows = [results.get(timeout=600) for _ in range(2 * (_WARM_UP + rounds) * len(_CHUNKS))]
        for worker in workers:
            worker.join()
        for chunk in _CHUNKS:
            for i, what in enumerate(_WHAT):
                later = sorted(row[i] for size, turn, row in rows if size == chunk and turn >= _WARM_UP)
                first = statistics.median(row[i] for size, turn, row in rows if size == chunk and not turn)
                print(
                    f"{chunk >> 10:5} KiB, {what}: {statistics.median(later):.2f} "
                    f"({later[0]:.2f} to {later[-1]:.2f}) times as fast as LocalStore, at first {first:.2f}, measured"
                )
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
