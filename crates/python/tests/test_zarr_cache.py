"""``forebay.zarr.Cache``: what was read once is read from this node, by all its processes."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import forebay as fb
import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("hypothesis")
pytest.importorskip("pytest_asyncio")

from forebay.zarr import Cache  # noqa: E402
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest  # noqa: E402
from zarr.core.buffer import cpu, default_buffer_prototype  # noqa: E402
from zarr.storage import LocalStore, MemoryStore, WrapperStore  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

PROTOTYPE = default_buffer_prototype()


class TestCacheStore(StoreTests[Cache, cpu.Buffer]):
    store_cls = Cache
    buffer_cls = cpu.Buffer

    async def set(self, store: Cache, key: str, value: Any) -> None:
        store.store._store_dict[key] = value

    async def get(self, store: Cache, key: str) -> Any:
        return store.store._store_dict[key]

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        return {"store": MemoryStore(), "name": "cache", "budget": "16MiB"}

    def test_store_repr(self, store: Cache) -> None:
        assert repr(store).startswith("forebay.zarr.Cache(MemoryStore")

    def test_store_supports_writes(self, store: Cache) -> None:
        assert store.supports_writes and store.supports_deletes

    def test_store_supports_listing(self, store: Cache) -> None:
        assert store.supports_listing

    def test_serializable_store(self) -> None:
        pytest.skip("a MemoryStore goes to another process as a copy; see the test with a LocalStore")

    def test_with_read_only_store(self) -> None:
        pytest.skip("a MemoryStore that is opened again is another one; see the test with a LocalStore")

    def test_read_only_store_raises(self) -> None:
        pytest.skip("the store says whether it is read-only; see the test with a LocalStore")

    def test_store_open_read_only(self) -> None:
        pytest.skip("the store says whether it is read-only; see the test with a LocalStore")


class Counted(WrapperStore[Any]):
    """A store that counts what is asked of it, and takes its time."""

    def __init__(self, store: Any, seconds: float = 0.0) -> None:
        super().__init__(store)
        self.asked: list[str] = []
        self.seconds = seconds

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        self.asked.append(key)
        await asyncio.sleep(self.seconds)
        return await super().get(key, prototype or PROTOTYPE, byte_range)


def buffer(data: bytes) -> Any:
    return cpu.Buffer.from_bytes(data)


async def value(store: Any, key: str, byte_range: Any = None) -> bytes | None:
    found = await store.get(key, PROTOTYPE, byte_range)
    return None if found is None else found.to_bytes()


async def test_a_value_is_fetched_once_and_parts_of_it_as_parts():
    store = Counted(MemoryStore({"a/b": buffer(b"0123456789"), "a": buffer(b"other")}))
    cache = Cache(store, "cache", budget="16MiB")
    assert await value(cache, "a/b", RangeByteRequest(2, 5)) == b"234"
    assert await value(cache, "a/b", OffsetByteRequest(7)) == b"789"
    assert await value(cache, "a/b", SuffixByteRequest(2)) == b"89"
    assert store.asked == ["a/b"] * 3
    assert await value(cache, "a/b", RangeByteRequest(2, 5)) == b"234"
    assert await value(cache, "a/b", OffsetByteRequest(7)) == b"789"
    assert await value(cache, "a/b", SuffixByteRequest(2)) == b"89"
    assert store.asked == ["a/b"] * 3 and (cache.hits, cache.misses) == (3, 3)
    assert await value(cache, "a/b") == b"0123456789"
    for byte_range, expected in ((None, b"0123456789"), (RangeByteRequest(1, 9), b"12345678")):
        assert await value(cache, "a/b", byte_range) == expected
    assert store.asked == ["a/b"] * 4
    assert await value(cache, "a") == b"other" and await value(cache, "none") is None
    assert [part.to_bytes() for part in await cache.get_partial_values(PROTOTYPE, [("a", None), ("a/b", None)])] == [
        b"other",
        b"0123456789",
    ]
    await cache.evict()
    assert await value(cache, "a") == b"other" and store.asked.count("a") == 2


async def test_processes_say_the_same_of_the_budget():
    Cache(MemoryStore(), "cache", budget="32MiB", processes=2)
    with pytest.raises(fb.errors.OptionMismatch):
        Cache(MemoryStore(), "cache", budget="16MiB")
    with pytest.raises(fb.errors.OptionMismatch):
        Cache(MemoryStore(), "cache", budget="64MiB", processes=4)


async def test_tasks_that_want_the_same_wait_for_one():
    store = Counted(MemoryStore({"a": buffer(b"x" * 1000)}), seconds=0.2)
    cache = Cache(store, "cache", budget="16MiB")
    assert set(await asyncio.gather(*(value(cache, "a") for _ in range(20)))) == {b"x" * 1000}
    assert store.asked == ["a"] and cache.misses == 1


async def test_what_is_written_through_the_cache_is_read_afterwards():
    store = Counted(MemoryStore())
    cache, other = Cache(store, "cache", budget="16MiB"), Cache(store, "cache", budget="16MiB")
    for turn in range(3):
        text = b"%d" % turn
        await cache.set("a/b", buffer(text * 10))
        assert await value(other, "a/b") == text * 10 and await value(cache, "a/b") == text * 10
        assert await value(other, "a/b", RangeByteRequest(0, 2)) == text * 2
        assert await value(other, "a/b", SuffixByteRequest(1)) == text
    await other.set("a/b/c", buffer(b"below"))
    assert await value(cache, "a/b/c") == b"below"
    await other.delete("a/b")
    assert await value(cache, "a/b") is None and await value(cache, "a/b", RangeByteRequest(0, 2)) is None
    assert await value(cache, "a/b/c") == b"below"
    await cache.set("a/:all", buffer(b"odd"))
    await cache.set("a/::x", buffer(b"odder"))
    assert [await value(other, key) for key in ("a/:all", "a/::x", "a")] == [b"odd", b"odder", None]
    await other.clear()
    assert [await value(cache, key) for key in ("a/:all", "a/b/c")] == [None, None]


async def test_the_oldest_go_when_the_budget_is_full_but_for_those_that_are_read():
    data = {f"k/{i}": buffer(bytes([i]) * (1 << 20)) for i in range(60)}
    store = Counted(MemoryStore(data))
    cache = Cache(store, "cache", budget="16MiB")
    for i in range(60):
        assert await value(cache, f"k/{i}") == bytes([i]) * (1 << 20)
        # One that is read again and again.
        assert await value(cache, "k/0") == bytes(1 << 20)
        pools = Path(cache.path).glob("members/*/pool")
        assert sum(os.stat(pool).st_blocks * 512 for pool in pools) <= 16 << 20
    assert store.asked.count("k/0") == 1 and len(store.asked) == 60
    store.asked.clear()
    for i in range(59, -1, -1):
        assert await value(cache, f"k/{i}") == bytes([i]) * (1 << 20)
    assert 30 < len(store.asked) < 55 and not {f"k/{i}" for i in range(52, 60)} & set(store.asked)
    # All that is kept was read now; what is new comes in nevertheless.
    for _ in range(2):
        for i in range(12):
            await value(cache, f"k/{i}")
    await store.set("new", buffer(b"new" * (1 << 20)))
    await value(cache, "new")
    store.asked.clear()
    assert await value(cache, "new") == b"new" * (1 << 20) and store.asked == []
    # What is larger than the budget is only passed on.
    await store.set("large", buffer(bytes(40 << 20)))
    for _ in range(2):
        assert len(await value(cache, "large") or b"") == 40 << 20
    assert store.asked.count("large") == 2


def test_processes_share_what_each_has_read_and_kills_harm_nothing(children, tmp_path: Path):
    array = zarr.create_array(LocalStore(tmp_path), shape=(64, 1000), chunks=(1, 1000), dtype="i8", compressors=None)
    array[...] = np.arange(64_000).reshape(64, 1000)
    code = """
    import zarr
    from zarr.storage import LocalStore
    from forebay.zarr import Cache
    cache = Cache(LocalStore(sys.argv[1]), "cache", budget="16MiB", processes=4)
    array = zarr.open_array(cache, mode="r")
    print("reads", flush=True)
    while True:
        assert (array[...] == np.arange(64_000).reshape(64, 1000)).all()
        if sys.argv[2] == "once":
            break
    print(cache.hits, cache.misses)
    """
    readers = [children.start(code, tmp_path, "ever") for _ in range(3)]
    for turn in range(6):
        assert readers[turn % 3].line() == "reads"
        time.sleep(0.05 * turn)
        readers[turn % 3].process.kill()
        readers[turn % 3].wait()
        readers[turn % 3] = children.start(code, tmp_path, "ever")
    cached = Cache(LocalStore(tmp_path), "cache", budget="16MiB", processes=4)
    assert (zarr.open_array(cached, mode="r")[...] == array[...]).all()
    assert all(reader.process.poll() is None for reader in readers)
    for reader in readers:
        reader.process.kill()
    hits, misses = map(int, children.start(code, tmp_path, "once").ok().split()[1:])
    # Documents of other formats of Zarr, which are not there, are asked for each time.
    assert misses <= 4 and hits >= 65


class Slow(Counted):
    """A store whose changes go on when the task that asked for them is cancelled, as those of a LocalStore do."""

    async def set(self, key: str, value: Any) -> None:
        await asyncio.to_thread(lambda: (time.sleep(0.2), asyncio.run(self._store.set(key, value))))


async def test_a_task_that_is_cancelled_leaves_nothing_out_of_date(monkeypatch):
    store = Slow(MemoryStore({"a": buffer(b"old")}))
    cache, other = Cache(store, "cache", budget="16MiB"), Cache(store, "cache", budget="16MiB")
    put = cache._objects.put
    monkeypatch.setattr(cache._objects, "put", lambda *arguments: (time.sleep(0.3), put(*arguments))[1])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cache.get("a", PROTOTYPE), 0.1)
    await other.set("a", buffer(b"new"))
    assert await value(other, "a") == await value(cache, "a") == b"new"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(other.set("a", buffer(b"newer")), 0.1)
    assert await value(cache, "a") == await value(other, "a") == await value(store, "a") == b"newer"


async def test_what_is_deleted_below_a_prefix_is_not_read_any_more():
    store = Counted(MemoryStore({f"a/{i}": buffer(b"x") for i in range(5)}))
    cache = Cache(store, "cache", budget="16MiB")
    assert [await value(cache, f"a/{i}") for i in range(5)] == [b"x"] * 5
    await cache.delete_dir("a")
    assert [await value(cache, f"a/{i}") for i in range(5)] == [None] * 5


async def test_a_killed_process_holds_up_no_one_though_its_child_lives(children, tmp_path: Path):
    await LocalStore(tmp_path).set("a", buffer(b"value"))
    code = """
    import asyncio
    from zarr.core.buffer import cpu, default_buffer_prototype
    from zarr.storage import LocalStore, WrapperStore
    from forebay.zarr import Cache
    class Slow(WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            print(pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    asyncio.run(Cache(Slow(LocalStore(sys.argv[1])), "cache", budget="16MiB").get("a", default_buffer_prototype()))
    """
    child = children.start(code, tmp_path)
    orphan = int(child.line())
    try:
        child.process.wait()
        cache = Cache(LocalStore(tmp_path), "cache", budget="16MiB", timeout=30)
        # With its lock held this would be TimedOut.
        await asyncio.wait_for(cache.set("a", buffer(b"newer")), 20)
        assert await value(cache, "a") == b"newer"
    finally:
        os.kill(orphan, signal.SIGKILL)


async def test_values_of_all_sizes_come_and_go():
    random.seed(3)
    data = {f"k/{i}": buffer(bytes([i]) * random.randrange(3_000_000)) for i in range(100)}
    store = Counted(MemoryStore(data))
    cache = Cache(store, "cache", budget="32MiB")
    assert await value(cache, "none") is None
    await store.set("large", buffer(bytes(40 << 20)))
    for _ in range(3):
        for key in data:
            assert await value(cache, key) == data[key].to_bytes()
        await value(cache, "large")
    store.asked.clear()
    for i in range(95, 100):
        await value(cache, f"k/{i}")
    assert store.asked == [], "what came last is kept"


async def test_keys_that_only_the_store_can_have_are_passed_on():
    keys = ["a//b", "", "x" * 300, "a\ud800"]
    store = Counted(MemoryStore({key: buffer(b"x") for key in keys}))
    cache = Cache(store, "cache", budget="16MiB")
    for key in keys:
        assert await value(cache, key) == b"x"
        await cache.set(key, buffer(b"y"))
        assert await value(cache, key) == b"y"
        await cache.delete(key)
        assert await value(cache, key) is None


async def test_a_stopped_process_holds_up_readers_for_the_timeout_only(children, tmp_path: Path):
    await LocalStore(tmp_path).set("a", buffer(b"value"))
    code = """
    import asyncio
    from zarr.core.buffer import cpu, default_buffer_prototype
    from zarr.storage import LocalStore, WrapperStore
    from forebay.zarr import Cache
    class Slow(WrapperStore):
        async def get(self, key, prototype, byte_range=None):
            print("fetches", flush=True)
            await asyncio.sleep(100)
    asyncio.run(Cache(Slow(LocalStore(sys.argv[1])), "cache", budget="16MiB").get("a", default_buffer_prototype()))
    """
    child = children.start(code, tmp_path)
    assert child.line() == "fetches"
    child.signal(signal.SIGSTOP)
    cache = Cache(LocalStore(tmp_path), "cache", budget="16MiB", timeout=0.3)
    assert await value(cache, "a") == b"value" and cache.misses == 1
    # What it did not fetch under the lock may be out of date by now.
    assert cache._objects.get("a/:all") is None
    with pytest.raises(fb.errors.TimedOut, match="fetching"):
        await cache.set("a", buffer(b"new"))
    child.process.kill()
    child.wait()
    await cache.set("a", buffer(b"new"))
    assert await value(cache, "a") == b"new"


async def test_a_cache_before_files_pickles_and_is_read_only_where_they_are(tmp_path: Path):
    import pickle  # noqa: PLC0415

    cache = Cache(LocalStore(tmp_path), "cache", budget="16MiB")
    await cache.set("a", buffer(b"1"))
    again = pickle.loads(pickle.dumps(cache))
    assert again == cache and await value(again, "a") == b"1"
    closed = cache.with_read_only(True)
    assert closed.read_only and await value(closed, "a") == b"1"
    with pytest.raises(ValueError, match="read-only"):
        await closed.set("a", buffer(b"2"))
    writable = closed.with_read_only(False)
    await writable.set("a", buffer(b"2"))
    assert await value(closed, "a") == b"2"
    assert Cache(LocalStore(tmp_path, read_only=True), "cache", budget="16MiB").read_only
    for wrong in ({"budget": "16MiB", "quota": 1}, {"budget": "16MiB", "processes": 0}, {"budget": "x"}, {"budget": 1}):
        with pytest.raises((TypeError, fb.errors.Usage)):
            Cache(LocalStore(tmp_path), "other", **wrong)
    with pytest.raises(fb.errors.OptionMismatch):
        Cache(LocalStore(tmp_path), "cache", budget="32MiB")
