"""``forebay.zarr.Store``: zarr-python's own tests of stores, and what they do not try: processes, kills, memory."""

import os
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import forebay as fb
import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3")
pytest.importorskip("hypothesis")
pytest.importorskip("pytest_asyncio")

from forebay.zarr import Store, _objects  # noqa: E402
from forebay.zarr._objects import Objects  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis.stateful import run_state_machine_as_test  # noqa: E402
from zarr.core.buffer import cpu, default_buffer_prototype  # noqa: E402
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402

QUOTA = "64MiB"


class TestStore(StoreTests[Store, cpu.Buffer]):
    store_cls = Store
    buffer_cls = cpu.Buffer

    async def set(self, store: Store, key: str, value: Any) -> None:
        objects = Objects(store.path, create=True, options={"quota": QUOTA})
        objects.put(key, np.frombuffer(value.to_bytes(), "u1"))
        objects.close()

    async def get(self, store: Store, key: str) -> Any:
        objects = Objects(store.path)
        data = objects.get(key)
        assert data is not None
        return self.buffer_cls.from_bytes(data.tobytes())

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        # A store that is only read must be there.
        Objects(os.path.join(fb.root(), "raw"), create=True, options={"quota": QUOTA}).close()
        return {"name": "raw", "quota": QUOTA}

    def test_store_repr(self, store: Store) -> None:
        assert repr(store) == f"forebay.zarr.Store({store.path!r})" and str(store) == f"forebay:{store.path}"

    def test_store_supports_writes(self, store: Store) -> None:
        assert store.supports_writes and store.supports_deletes

    def test_store_supports_listing(self, store: Store) -> None:
        assert store.supports_listing


@pytest.mark.parametrize("machine", [ZarrStoreStateMachine, ZarrHierarchyStateMachine])
def test_zarrs_state_machines_find_no_difference(machine):
    store = Store("raw", quota="256MiB")
    run_state_machine_as_test(
        lambda: machine(store),
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def buffer(data: bytes | np.ndarray[Any, Any]) -> Any:
    return cpu.Buffer.from_bytes(bytes(data))


def value(store: Store, key: str) -> bytes | None:
    found = store.get_sync(key)
    return None if found is None else found.to_bytes()


def used_bytes(store: Store) -> int:
    """Bytes of all pools."""
    pools = Path(store.path).glob("members/*/pool")
    return sum(os.stat(pool).st_blocks * 512 for pool in pools)


def test_arrays_are_seen_by_other_processes_and_outlive_their_writer(children):
    store = Store("results", quota=QUOTA)
    array = zarr.create_array(store, shape=(100, 100), chunks=(10, 100), dtype="f8", attributes={"units": "K"})
    array[:50] = 1
    child = children.start(
        """
        import zarr
        from forebay.zarr import Store
        array = zarr.open_array(Store("results"), mode="r+")
        assert (array[:50] == 1).all() and (array[50:] == 0).all() and array.attrs["units"] == "K"
        array[50:] = 2
        array.attrs["units"] = "degC"
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert child.wait()[0] == -9
    array = zarr.open_array(store, mode="r")
    assert (array[50:] == 2).all() and array.attrs["units"] == "degC"
    store.close()
    assert sorted(os.listdir(f"{store.path}/members")) == ["0", "1"]
    # Who comes later goes on with the spaces that are there.
    for _ in range(3):
        with Store("results") as again:
            again.set_sync("x", buffer(b"1"))
    assert sorted(os.listdir(f"{store.path}/members")) == ["0", "1"]


def test_memory_of_replaced_and_deleted_values_is_used_again():
    with Store("results", quota=QUOTA) as store:
        data = np.arange(1 << 18, dtype="u4")
        kept = {f"kept/{i}": bytes([i]) * 100_000 for i in range(50)}
        for key, one in kept.items():
            store.set_sync(key, buffer(one))
        for turn in range(40):
            for i in range(10):
                store.set_sync(f"a/c/{i}", buffer(data + turn * 10 + i))
            if turn % 5 == 0:
                store.delete_sync(f"a/c/{turn % 10}")
        assert used_bytes(store) <= 64 << 20
        assert all(value(store, key) == one for key, one in kept.items())
        for i in range(1, 10):
            assert np.frombuffer(value(store, f"a/c/{i}"), "u4")[0] == (390 + i if i != 5 else 395)


def test_a_store_that_is_full_says_so_and_goes_on_when_there_is_space():
    with Store("results", quota="16MiB", timeout=0.2) as store:
        put = 0
        with pytest.raises(fb.errors.QuotaFull, match="delete objects"):
            for put in range(100):
                store.set_sync(f"a/{put}", buffer(bytes([put]) * (1 << 20)))
        assert put >= 8, "most of the quota can be used"
        for i in range(put):
            assert value(store, f"a/{i}") == bytes([i]) * (1 << 20)
        with pytest.raises(fb.errors.QuotaFull):
            store.set_sync("a/0", buffer(b"x" * (1 << 20)))
        assert value(store, "a/0") == bytes(1 << 20)
        store.delete_sync("a/1")
        store.delete_sync("a/2")
        store.set_sync("a/0", buffer(b"x" * (1 << 20)))
        assert value(store, "a/0") == b"x" * (1 << 20)
        with pytest.raises(fb.errors.VersionTooLarge):
            store.set_sync("b", buffer(bytes(40 << 20)))


def test_a_large_value_finds_its_space_among_small_ones():
    with Store("results", quota="16MiB", timeout=0.5) as store:
        for i in range(9):
            store.set_sync(f"a/{i}", buffer(bytes([i]) * (1 << 20)))
        for i in range(0, 9, 2):
            store.delete_sync(f"a/{i}")
        for _ in range(3):
            store.set_sync("large", buffer(b"x" * (2 << 20)))
        assert value(store, "large") == b"x" * (2 << 20)
        assert all(value(store, f"a/{i}") == bytes([i]) * (1 << 20) for i in range(1, 9, 2))


def test_a_put_waits_for_a_reader_that_holds_the_memory_it_needs():
    with Store("results", quota="4MiB", timeout=20) as store:
        store.set_sync("a", buffer(bytes(256 << 10)))
        # As a process that is just copying the value.
        reader = fb.open(f"{store.path}/members/0", observer=True)
        view = reader.open_version(0).view("key")
        held = [view]
        del view
        release = threading.Timer(0.5, held.clear)
        release.start()
        for turn in range(24):
            store.set_sync("a", buffer(bytes([turn]) * (256 << 10)))
        assert not held, "the memory that was held was needed"
        assert value(store, "a") == bytes([23]) * (256 << 10)
        reader.close()


@pytest.mark.parametrize("spill", [None, "64MiB"])
def test_values_of_all_sizes_are_replaced_for_ever(tmp_path: Path, spill: str | None):
    random.seed(14)
    options = {} if spill is None else {"spill": f"{tmp_path},quota={spill}"}
    with Store("results", quota="32MiB", timeout=2, **options) as store:
        expected = {}
        for turn in range(1500):
            key, size = f"k/{random.randrange(14)}", random.randrange(1_200_000)
            expected[key] = bytes([turn % 251]) * size
            store.set_sync(key, buffer(expected[key]))
        assert all(value(store, key) == data for key, data in expected.items())


def test_a_full_store_of_which_half_is_deleted_takes_as_much_again():
    with Store("results", quota="16MiB", timeout=1) as store:
        store.set_sync("large", buffer(bytes(2 << 20)))
        put = 0
        with pytest.raises(fb.errors.QuotaFull):
            for put in range(1000):
                store.set_sync(f"a/{put}", buffer(bytes(100_000)))
        for i in range(put // 2):
            store.delete_sync(f"a/{i}")
        for turn in range(3):
            for i in range(put // 2, put):
                store.set_sync(f"a/{i}", buffer(bytes([turn]) * 100_000))
        assert value(store, "large") == bytes(2 << 20)


def test_a_value_that_is_refused_leaves_the_store_as_it_was():
    with Store("results", quota="16MiB", timeout=1) as store:
        store.set_sync("a", buffer(b"kept"))
        with pytest.raises(fb.errors.VersionTooLarge):
            store.set_sync("b", buffer(bytes(20 << 20)))
        for turn in range(300):
            store.set_sync("c", buffer(bytes([turn % 251]) * 100_000))
        assert value(store, "a") == b"kept" and value(store, "b") is None


def test_a_key_whose_path_is_too_long_is_refused_before_it_is_put():
    with Store("results", quota="4MiB", timeout=1) as store:
        for n in range(3):
            with pytest.raises(fb.errors.Usage, match="too long"):
                store.set_sync("/".join(["x" * 250] * 17), buffer(b"x"))
        assert store._objects._member is None or store._objects._member.writer.next_version == 0
        # As an earlier version has put it: it is passed when it is the oldest.
        member = store._objects._own()
        member.put("/".join(["x" * 250] * 17), np.zeros(100_000, "u1"))
        for turn in range(100):
            store.set_sync("a", buffer(bytes([turn]) * 100_000))
        assert value(store, "a") == bytes([99]) * 100_000


@pytest.mark.parametrize("quota", [4 << 20, 16 << 20, 64 << 20])
def test_a_value_that_is_taken_is_taken_again_and_can_be_replaced(quota):
    refused = []
    for part in range(2, 60):
        size = quota * part // 100
        with Store("results", quota=quota, timeout=0.5) as store:
            try:
                store.set_sync("large", buffer(bytes(size)))
            except fb.errors.VersionTooLarge:
                refused.append(part)
                continue
            store.delete_sync("large")
            for turn in range(3):
                store.set_sync("large", buffer(bytes([turn]) * size))
                for i in range(3):
                    store.set_sync("small", buffer(bytes([i]) * 30_000))
            assert value(store, "large") == bytes([2]) * size
            store.destroy()
    assert refused == list(range(refused[0], 60)) and refused[0] > 9


def test_a_missing_directory_of_a_lower_tier_is_named():
    with pytest.raises(fb.errors.Error, match="(?s)/missing/there.*hint") as raised:
        Store("results", quota="16MiB", spill="/missing/there").set_sync("a", buffer(b"x"))
    assert "None" not in str(raised.value)


def test_options_that_a_killed_process_tried_leave_nothing(tmp_path: Path, children):
    code = """
    from forebay.zarr import Store
    from zarr.core.buffer import cpu
    destroy = fb.destroy
    def killed(name):
        os.kill(os.getpid(), signal.SIGKILL)
    fb.destroy = killed
    Store("results", quota="16MiB", spill=sys.argv[1]).set_sync("a", cpu.Buffer.from_bytes(b"x"))
    """
    spill = f"{tmp_path},quota=64MiB"
    assert children.start(code, spill).wait()[0] == -9
    assert list(tmp_path.iterdir())
    with Store("results", quota="16MiB", spill=spill) as store:
        store.set_sync("a", buffer(b"x"))
        assert not any(name.startswith("trial") for name in os.listdir(f"{store.path}/new"))
        store.destroy()
    assert not list(tmp_path.iterdir())


def test_a_forked_child_that_drops_a_reader_says_nothing(tmp_path: Path, children):
    child = children.start(
        """
        import gc
        options = {"quota": "4MiB", "spill": f"{sys.argv[1]},quota=64MiB"}
        with fb.open("s", "w", readers={"r": 1}, when_full="spill", **options) as writer:
            reader = fb.open("s", group="r")
            for step in writer.steps(20):
                step.put("x", np.zeros(1 << 20, "u1"))
            for step in reader.steps(3):
                step.get("x")
            pid = os.fork()
            if pid == 0:
                del step, reader
                gc.collect()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            reader.close()
        """,
        tmp_path,
    )
    status, _, wrong = child.wait()
    assert status == 0 and "panicked" not in wrong, wrong


def test_who_takes_over_a_member_can_move_its_largest_value(root: Path):
    for process in range(3):
        with Store("results", quota="16MiB", timeout=1) as store:
            if process == 0:
                store.set_sync("large", buffer(bytes(3 << 20)))
            for turn in range(200):
                store.set_sync(f"a/{turn % 40}", buffer(bytes([turn]) * 100_000))
            assert value(store, "large") == bytes(3 << 20)
        # As a member of an earlier version, which did not say what its largest value is.
        for attributes in root.glob("results/members/*/attributes*"):
            attributes.unlink()


@pytest.mark.parametrize("wrong", [{"tier": "nonsense"}, {"spill": "/missing/there"}, {"horizon": "hello"}])
def test_wrong_options_make_no_store(wrong):
    for _ in range(2):
        with pytest.raises(fb.errors.Error):
            Store("results", quota="16MiB", **wrong).set_sync("a", buffer(b"x"))
    assert not os.path.exists(os.path.join(fb.root(), "results"))
    with Store("results", quota="16MiB") as store:
        store.set_sync("a", buffer(b"x"))
        assert os.listdir(f"{store.path}/new") == []


def test_options_are_tried_again_where_another_process_removed_the_trial(monkeypatch):
    opened = []

    def removed_at_first(name, *args, **options):
        if "trial" in name:
            opened.append(name)
            if len(opened) < 3:
                raise fb.errors.PeerMissing(f"space {name} was removed")
        return real(name, *args, **options)

    real = fb.open
    monkeypatch.setattr(fb, "open", removed_at_first)
    with Store("results", quota="16MiB") as store:
        store.set_sync("a", buffer(b"x"))
    assert len(set(opened)) == 3


def test_links_and_all_directories_above_them_are_synced_where_spaces_are(monkeypatch):
    synced = []
    monkeypatch.setattr(_objects, "_sync", lambda directory: synced.append(directory))
    with Store("kept", quota=QUOTA, horizon="epoch") as store:
        store.set_sync("z", buffer(b"1"))
        synced.clear()
        store.set_sync("a/b/c", buffer(b"1"))
        keys = f"{store.path}/keys"
        assert set(synced) == {keys, f"{keys}/+a", f"{keys}/+a/+b"}
        synced.clear()
        store.delete_sync("a/b/c")
        assert synced == [f"{keys}/+a/+b"]
        assert os.listdir(keys) == ["=z"]
    with Store("scratch", quota=QUOTA) as store:
        store.set_sync("z", buffer(b"1"))
        synced.clear()
        store.set_sync("a/b/c", buffer(b"1"))
        assert synced == []


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_small_values_are_replaced_for_ever(size):
    with Store("results", quota="4MiB", timeout=1) as store:
        store.set_sync("kept", buffer(b"kept"))
        for turn in range(20_000):
            store.set_sync("a", buffer((b"%-4d" % (turn % 1000) + bytes(size))[: max(size, 4)]))
        assert value(store, "kept") == b"kept" and value(store, "a")[:4] == b"999 "


def test_a_damaged_value_is_named_where_it_is_in_the_way():
    with Store("results", quota="4MiB", timeout=0.2) as store:
        store.set_sync("broken", buffer(b"abc" * 1000))
        for i in range(3):
            store.set_sync(f"{i}", buffer(b"x" * 1000))
        pool = Path(store.path) / "members/0/pool"
        at = pool.read_bytes().index(b"abc" * 1000)
        with open(pool, "r+b") as file:
            file.seek(at + 5)
            file.write(b"X")
        with pytest.raises(fb.errors.Damaged):
            store.get_sync("broken")
        with pytest.raises(fb.errors.Damaged, match=r"'broken'(.|\n)*delete that key"):
            for turn in range(10_000):
                store.set_sync("a", buffer(bytes(1000)))
        store.delete_sync("broken")
        for turn in range(5000):
            store.set_sync("a", buffer(b"%4d" % turn))
        assert value(store, "a") == b"4999" and value(store, "2") == b"x" * 1000


def test_children_are_forked_while_threads_write(root: Path):
    """Each child writes with threads of its own, at once."""
    store = Store("results", quota="32MiB", timeout=20)
    stop = threading.Event()

    def write(who: str, rounds: int) -> None:
        for turn in range(rounds):
            if stop.is_set() and who == "parent":
                return
            store.set_sync(f"{who}/{turn % 50}", buffer(f"{who} {turn}".encode()))
            found = value(store, f"{who}/{turn % 50}")
            assert found == f"{who} {turn}".encode(), found

    thread = threading.Thread(target=write, args=("parent", 10**6))
    thread.start()
    try:
        for n in range(12):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    threads = [threading.Thread(target=write, args=(f"{n}-{i}", 100)) for i in range(4)]
                    errors_of = []
                    threading.excepthook = lambda args: errors_of.append(args)
                    for one in threads:
                        one.start()
                    for one in threads:
                        one.join()
                    status = 2 if errors_of else 0
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
    for n in range(12):
        for i in range(4):
            assert [value(store, f"{n}-{i}/{k}") for k in range(50)] == [
                f"{n}-{i} {50 + k}".encode() for k in range(50)
            ]
    store.close()


def test_a_value_that_is_moved_does_not_replace_a_newer_one(monkeypatch):
    path = os.path.join(fb.root(), "results")
    mine, other = Objects(path, create=True, options={"quota": QUOTA}), Objects(path)
    mine.put("a", np.frombuffer(b"old", "u1"))
    mine.put("b", np.frombuffer(b"second", "u1"))
    other.put("c", np.frombuffer(b"third", "u1"))
    put = mine._put_waiting

    def overtaken(*arguments: Any) -> int:
        version = put(*arguments)
        if arguments[1] == "a":
            other.put("a", np.frombuffer(b"new", "u1"))
        else:
            other.delete("b")
        return version

    monkeypatch.setattr(mine, "_put_waiting", overtaken)
    member = mine._own()
    for _ in range(2):
        assert mine._pass_oldest(member, member.writer.next_version, time.monotonic() + 10)
    assert bytes(mine.get("a")) == b"new" and mine.get("b") is None and bytes(mine.get("c")) == b"third"
    monkeypatch.undo()
    # One key, one process at a time.
    mine.timeout = 0.2
    with other._locked("a"), pytest.raises(fb.errors.TimedOut, match="'a'"):
        mine.put("a", np.frombuffer(b"x", "u1"))
    with other._locked("c"), pytest.raises(fb.errors.TimedOut, match="'c'"):
        mine.delete("c")
    assert bytes(mine.get("a")) == b"new" and bytes(mine.get("c")) == b"third"


def test_values_beyond_the_memory_go_to_the_lower_tier(tmp_path: Path):
    with Store("results", quota="16MiB", spill=f"{tmp_path},quota=128MiB") as store:
        for i in range(60):
            store.set_sync(f"a/{i}", buffer(bytes([i]) * (1 << 20)))
        assert all(value(store, f"a/{i}") == bytes([i]) * (1 << 20) for i in range(60))
        for turn in range(3):
            for i in range(60):
                store.set_sync(f"a/{i}", buffer(bytes([i + turn]) * (1 << 20)))
        assert all(value(store, f"a/{i}") == bytes([i + 2]) * (1 << 20) for i in range(60))


def test_a_store_is_removed_with_its_lower_tiers_unless_it_is_in_use(tmp_path: Path, children):
    store = Store("results", quota="16MiB", spill=f"{tmp_path},quota=64MiB")
    for i in range(30):
        store.set_sync(f"a/{i}", buffer(bytes([i]) * (1 << 20)))
    assert list(tmp_path.iterdir())
    child = children.start(
        """
        from forebay.zarr import Store
        from zarr.core.buffer import cpu
        store = Store("results")
        store.set_sync("mine", cpu.Buffer.from_bytes(b"1"))
        print(len(store.get_sync("a/1")), flush=True)
        sys.stdin.read() or time.sleep(100)
        """
    )
    assert child.line() == str(1 << 20)
    # Nothing goes, also not the space that is not in use any more.
    with pytest.raises(fb.errors.NameInUse):
        store.destroy()
    assert sorted(os.listdir(f"{store.path}/members")) == ["0", "1"]
    child.process.kill()
    child.wait()
    assert value(store, "a/29") == bytes([29]) * (1 << 20)
    store.destroy()
    assert not os.path.exists(store.path) and not list(tmp_path.iterdir())
    store.set_sync("a", buffer(b"again"))
    assert value(store, "a") == b"again"
    store.destroy()


def test_what_is_on_a_disk_is_there_after_a_reboot(tmp_path: Path, root: Path):
    path = f"{tmp_path}/results"
    with Store(path, tier="file", quota=QUOTA, horizon="epoch") as store:
        for i in range(20):
            store.set_sync(f"a/c/{i}", buffer(bytes([i]) * 1000))
        store.delete_sync("a/c/3")
    # What lies in memory is gone.
    for entry in root.iterdir():
        shutil.rmtree(entry)
    with Store(path) as store:
        assert [i for i in range(20) if value(store, f"a/c/{i}") == bytes([i]) * 1000] == [
            i for i in range(20) if i != 3
        ]
        store.set_sync("a/c/3", buffer(b"new"))
    with Store(path, read_only=True) as store:
        assert value(store, "a/c/3") == b"new"


def test_a_version_that_a_crash_took_is_an_error_not_another_value():
    store = Store("results", quota=QUOTA)
    store.set_sync("a", buffer(b"first"))
    store.set_sync("b", buffer(b"second"))
    # As if the machine had lost the version of `b`, and another object had come into its place.
    link = f"{store.path}/keys/=b"
    os.unlink(link)
    os.symlink(os.readlink(f"{store.path}/keys/=a"), link)
    with pytest.raises(fb.errors.Damaged, match="'b'.* is lost"):
        store.get_sync("b")
    member, _, size, uuid = os.readlink(link).split(".")
    for text in (f"{member}.99.{size}.{uuid}", f"{member}.0.{size}.00000000", f"7.0.{size}.{uuid}"):
        os.unlink(link)
        os.symlink(text, link)
        with pytest.raises(fb.errors.Damaged, match="is lost"):
            store.get_sync("b")
    os.unlink(link)
    os.symlink("elsewhere", link)
    with pytest.raises(fb.errors.Damaged, match="does not name an object"):
        store.get_sync("b")
    assert value(store, "a") == b"first"
    store.delete_sync("b")
    assert value(store, "b") is None


def test_a_value_that_is_held_does_not_change():
    with Store("results", quota="16MiB") as store:
        store.set_sync("a", buffer(b"old" * 100_000))
        held = store.get_sync("a").as_numpy_array()[5:]
        for i in range(60):
            store.set_sync("a", buffer(bytes([i]) * (1 << 20)))
            assert value(store, "a") == bytes([i]) * (1 << 20)
            store.set_sync("b", buffer(b"new" * 100_000))
            assert value(store, "b") == b"new" * 100_000
        assert held.tobytes() == (b"old" * 100_000)[5:]
    assert held.tobytes() == (b"old" * 100_000)[5:]


def test_a_store_of_format_1_is_read_and_goes_on(root: Path):
    """A directory as docs/src/formats/store.md says it, made without a line of the store."""
    store = root / "golden"
    for directory in ("keys/+a/+c", "members", "new"):
        (store / directory).mkdir(parents=True)
    made = {"quota": "4MiB", "segment": "256KiB", "when_full": "error", "readers": {"store": 1}}
    with fb.open(f"{store}/members/0", "w", **made) as ch:
        for step in ch.steps(2):
            step.put("object", np.frombuffer(b"chunk %d" % step.version, "u1"), concat=True)
            step.put("key", np.frombuffer([b"a/zarr.json", b"a/c/0"][step.version], "u1"), concat=True)
        uuid = str(ch.info()["uuid"])[:8]
    os.symlink(f"0.0.7.{uuid}", store / "keys/+a/=zarr.json")
    os.symlink(f"0.1.7.{uuid}", store / "keys/+a/+c/=0")
    (store / "objects.json").write_text(
        '{"format": "forebay-objects", "version": 1, "options": {"quota": "4MiB", "segment": 262144}}'
    )
    with Store("golden", quota="4MiB") as opened:
        assert sorted(opened._objects.keys()) == ["a/c/0", "a/zarr.json"]
        assert value(opened, "a/c/0") == b"chunk 1" and value(opened, "a/zarr.json") == b"chunk 0"
        opened.set_sync("a/c/1", buffer(b"new"))
        assert os.readlink(store / "keys/+a/+c/=1") == f"0.2.3.{uuid}" and os.listdir(store / "members") == ["0"]


def test_two_stores_of_one_process_and_a_forked_child():
    first, second = Store("results", quota=QUOTA), Store("results")
    first.set_sync("a", buffer(b"1"))
    second.set_sync("a", buffer(b"2"))
    assert value(first, "a") == value(second, "a") == b"2"
    assert sorted(os.listdir(f"{first.path}/members")) == ["0", "1"]
    pid = os.fork()
    if not pid:
        status = 1
        try:
            first.set_sync("b", buffer(b"3"))
            status = 0 if value(first, "a") == b"2" and value(second, "b") == b"3" else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    first.set_sync("c", buffer(b"4"))
    assert [value(second, key) for key in "abc"] == [b"2", b"3", b"4"]
    first.close()
    assert value(second, "c") == b"4"


def test_a_store_without_options_is_opened_again():
    for turn in range(3):
        with Store("results") as store:
            store.set_sync(f"{turn}", buffer(b"x"))
    # Free memory has changed since, and the quota has not.
    with Store("results") as store:
        assert [value(store, f"{turn}") for turn in range(3)] == [b"x"] * 3
        assert len(os.listdir(f"{store.path}/members")) == 1


def test_keys_and_directories_that_cannot_be(root: Path):
    store = Store("results", quota=QUOTA)
    for key in ("", "/", "a//b", "/a", "a/", "x" * 300, "a\0b"):
        with pytest.raises(fb.errors.Usage):
            store.set_sync(key, buffer(b""))
    for key in (".", "../x", "a/..", "=", "+a", "ü", " "):
        store.set_sync(key, buffer(key.encode()))
        assert value(store, key) == key.encode()
    with pytest.raises(fb.errors.PeerMissing, match="no store"):
        Store("none", read_only=True).get_sync("a")
    with pytest.raises(fb.errors.OptionMismatch, match="quota"):
        Store("results", quota="1GiB").get_sync("a")
    with pytest.raises(TypeError, match="retention"):
        Store("results", retention="forever")
    fb.open("space", "w").close()
    with pytest.raises(fb.errors.NameInUse):
        Store("space").set_sync("a", buffer(b""))
    with pytest.raises(ValueError, match="read-only"):
        store.with_read_only(True).set_sync("a", buffer(b""))
    (root / "results" / "objects.json").write_text('{"format": "forebay-objects", "version": 2, "options": {}}')
    with pytest.raises(fb.errors.UnknownFormat):
        Store("results").get_sync("a")
    store.close()
    with Store("results2") as closed:
        closed.set_sync("a", buffer(b""))
    assert "results" not in [info["name"] for info in fb.list_spaces()]


def test_the_environment_does_not_say_how_members_are_made(monkeypatch):
    for name, text in (("RETENTION", "last:1"), ("RANK", "3"), ("SIZE", "4"), ("WHEN_FULL", "drop_oldest")):
        monkeypatch.setenv(f"FOREBAY_{name}", text)
    monkeypatch.setenv("FOREBAY_CHANNEL_KIND", "files")
    with Store("results", quota=QUOTA) as store:
        for i in range(10):
            store.set_sync(f"{i}", buffer(bytes([i])))
        assert [value(store, f"{i}") for i in range(10)] == [bytes([i]) for i in range(10)]


WRITER = """
import random
from forebay.zarr import Store
from zarr.core.buffer import cpu
me, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)
store = Store("results", quota="16MiB", timeout=30)
log = open(sys.argv[3], "a")
n = 0
while True:
    n += 1
    if n == 5:
        print("puts", flush=True)
    key = f"k/{chance.randrange(12)}" if chance.random() < 0.5 else f"own/{me}/{chance.randrange(12)}"
    if chance.random() < 0.15:
        print("begin", key, "-", file=log, flush=True)
        store.delete_sync(key)
        print("end", key, "-", file=log, flush=True)
        continue
    text = f"{key} {me}-{seed}-{n} ".encode()
    print("begin", key, f"{me}-{seed}-{n}", file=log, flush=True)
    store.set_sync(key, cpu.Buffer.from_bytes(text * chance.randrange(1, 20_000)))
    print("end", key, f"{me}-{seed}-{n}", file=log, flush=True)
    if chance.random() < 0.3:
        found = store.get_sync(f"k/{chance.randrange(12)}")
        if found is not None:
            data = found.to_bytes()
            unit = data[: data.index(b" ", data.index(b" ") + 1) + 1]
            assert data == unit * (len(data) // len(unit)), data[:100]
"""
KILLS = int(os.environ.get("TEST_KILLS", "12"))


def test_killed_writers_lose_and_tear_nothing(children, root: Path):
    chance = random.Random(KILLS)
    writers: dict[str, Any] = {}
    turn = 0

    def start(name: str) -> None:
        nonlocal turn
        turn += 1
        writers[name] = children.start(WRITER, name, turn, root / f"{name}.log")

    for name in ("p", "q"):
        start(name)
    for _ in range(KILLS):
        name = chance.choice(list(writers))
        # Most are killed when they put, on a busy machine too, some while they open the store.
        if chance.random() < 0.8:
            assert writers[name].line() == "puts"
        time.sleep(chance.uniform(0.0, 0.5))
        writers[name].process.kill()
        status, _, wrong = writers[name].wait()
        assert status == -9, wrong
        start(name)
    for writer in writers.values():
        assert writer.line() == "puts"
        writer.process.kill()
        writer.wait()
    store = Store("results")
    sets = 0
    for name in ("p", "q"):
        lines = [line.split() for line in (root / f"{name}.log").read_text().splitlines() if line.count(" ") == 2]
        sets += len(lines)
        for key in {line[1] for line in lines if line[1].startswith("own/")}:
            # The last one that was acknowledged, or the one that was under way at the kill.
            mine = [line for line in lines if line[1] == key]
            acknowledged = [line[2] for line in mine if line[0] == "end"]
            possible = {acknowledged[-1]} if acknowledged else {"-"}
            behind = mine[max((i for i, line in enumerate(mine) if line[0] == "end"), default=-1) + 1 :]
            possible |= {line[2] for line in behind}
            found = value(store, key)
            assert ("-" if found is None else found.split(b" ")[1].decode()) in possible, key
    for key in store._objects.keys():
        found = value(store, key)
        unit = found[: found.index(b" ", found.index(b" ") + 1) + 1]
        assert unit.startswith(key.encode() + b" ") and found == unit * (len(found) // len(unit))
    assert sets > KILLS and len(os.listdir(f"{store.path}/members")) <= 3
    assert used_bytes(store) <= 3 * (16 << 20)
