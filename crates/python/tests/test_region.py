"""Mapped regions: buffers and arrays over files on a tier, persisted by hand; closing, dying, and mistakes."""

import gc
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import forebay as fb
import numpy as np
import pytest
from forebay import errors

BYTES = (1 << 20) + 4097
ON_DISK = "file"


@pytest.fixture(params=["memory", ON_DISK])
def path(request: pytest.FixtureRequest, root: Path) -> Iterator[Path]:
    """A file that is not there yet: beside the spaces in memory, and where temporary files are."""
    if request.param == "memory":
        yield root / "region"
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "region"


def test_bytes_come_back(path: Path) -> None:
    with fb.map(path, BYTES) as region:
        assert (region.nbytes, len(region), region.path, region.writable) == (BYTES, BYTES, str(path), True)
        assert region.tier in {"dram", "file", "pmem"}
        assert region.durability == ("process crash" if region.tier == "dram" else "power failure")
        assert region.durability in repr(region) and str(BYTES) in repr(region)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert not np.frombuffer(region, "u1").any()
        values = np.arange(1000.0)
        region.copy_persist(64, values)
        cells = region.array((10, 20), "f4", offset=16384)
        cells[:] = 7
        region.persist(16384, cells.nbytes)
        region.persist(16384)
        region.persist()
        memoryview(region)[BYTES - 1] = 9
    assert region.closed and "closed" in repr(region)
    with fb.map(path, mode="r") as region:
        assert (region.array(1000, offset=64) == values).all()
        assert (region.array((10, 20), "f4", offset=16384) == 7).all()
        assert memoryview(region)[BYTES - 1] == 9
    assert path.stat().st_size == BYTES


def test_memory_of_a_node(root: Path) -> None:
    path = root / "region"
    with fb.map(path, BYTES, tier="numa:0") as region:
        assert (region.tier, region.durability) == ("numa:0", "process crash")
        region.copy_persist(BYTES - 4, b"node")
        region.persist()
    with fb.map(path) as region:
        assert (region.tier, bytes(region)[-4:]) == ("dram", b"node")
    with pytest.raises(errors.NotPossibleHere, match="nodes=0"):
        fb.map(root / "other", 4096, tier="numa:1023")
    assert not (root / "other").exists()


def test_modes(path: Path) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(errors.Io, match="No such file"):
            fb.map(path, 4096, mode=mode)
    for mode in ("a+", "x+", "w+"):
        with pytest.raises(errors.Usage, match="size of the new file"):
            fb.map(path, mode=mode)
    with pytest.raises(errors.Usage, match="invalid mode"):
        fb.map(path, 4096, mode="w")
    fb.map(path, 4096, mode="x+").copy_persist(0, b"kept")
    with pytest.raises(errors.Io, match="exists"):
        fb.map(path, 4096, mode="x+")
    for mode in ("a+", "r+", "r"):
        assert bytes(fb.map(path, mode=mode))[:4] == b"kept"
        with pytest.raises(errors.OptionMismatch, match="4096.*5000"):
            fb.map(path, 5000, mode=mode)
    old = fb.map(path, mode="r").array(4, "u1")
    new = fb.map(path, 100, mode="w+").array(4, "u1")
    assert old.tobytes() == b"kept" and not new.any()


def test_mistakes(path: Path) -> None:
    for wrong in (0, -1, 1.5, "many", 1 << 64):
        with pytest.raises(errors.Usage):
            fb.map(path, wrong)
    with pytest.raises(errors.Usage, match="tape"):
        fb.map(path, 4096, tier="tape")
    with pytest.raises(errors.NotPossibleHere, match="cannot be mapped"):
        fb.map(path, 4096, tier="direct")
    with pytest.raises(errors.TierFull, match="limited_by"):
        fb.map(path, 1 << 43)
    assert not path.exists()
    region = fb.map(path, 4096)
    for offset, nbytes in ((0, 4097), (4096, 1), (5000, None), (1 << 63, 1 << 63)):
        with pytest.raises(errors.Usage, match="out of bounds"):
            region.persist(offset, nbytes)
    for offset in (-1, "x", 0.5):
        with pytest.raises(errors.Usage, match="offset"):
            region.persist(offset)
    with pytest.raises(errors.Usage, match="out of bounds"):
        region.copy_persist(4090, b"1234567")
    with pytest.raises(errors.Usage, match="overlap"):
        region.copy_persist(0, region.array(10)[1:9])
    region.copy_persist(2048, region.array(10, offset=8))
    with pytest.raises(errors.BufferMismatch):
        region.copy_persist(0, np.array([object()]))
    with pytest.raises(errors.BufferMismatch, match="masked"):
        region.copy_persist(0, np.ma.masked_array([1, 2], [0, 1]))


def test_what_may_be_copied(path: Path) -> None:
    region = fb.map(path, 4096)
    records = np.zeros(3, [("a", "i4"), ("b", "f8")])
    records["b"] = [1, 2, 3]
    for source, wanted in (
        (b"bytes", b"bytes"),
        (bytearray(b"more"), b"more"),
        (memoryview(b"view"), b"view"),
        (np.float32(1.5), np.float32(1.5).tobytes()),
        (np.arange(12).reshape(3, 4)[:, ::2], np.arange(12).reshape(3, 4)[:, ::2].tobytes()),
        (np.arange(6, dtype=">i4"), np.arange(6, dtype=">i4").tobytes()),
        (np.array(["2026-01-01"], "M8[s]"), np.array(["2026-01-01"], "M8[s]").tobytes()),
        (records, records.tobytes()),
        (np.empty(0), b""),
        ([1.0, 2.0], np.array([1.0, 2.0]).tobytes()),
    ):
        region.copy_persist(5, source)
        assert bytes(region)[5 : 5 + len(wanted)] == wanted


def test_arrays(path: Path) -> None:
    region = fb.map(path, 4096)
    assert region.array().shape == (512,) and region.array().dtype == np.float64
    assert region.array(dtype="i4", offset=4000).shape == (24,)
    assert region.array((), "i8").shape == ()
    assert region.array(0, offset=4096).size == 0
    assert region.array((2, 0, 3)).size == 0
    odd = region.array(3, "f8", offset=1)
    odd[:] = 1
    assert bytes(region)[1:9] == np.float64(1).tobytes()
    records = region.array(4, [("a", "u1"), ("b", "u4")], offset=100)
    records["b"] = 0x01020304
    assert bytes(region)[101:105] == b"\x04\x03\x02\x01"
    for shape, dtype, offset in ((513, "f8", 0), (512, "f8", 1), (1, "u1", 4096), ((1 << 40, 1 << 40), "u1", 0)):
        with pytest.raises(errors.BufferMismatch, match="outside"):
            region.array(shape, dtype, offset=offset)
    with pytest.raises(errors.BufferMismatch, match="outside"):
        region.array(0, offset=4097)
    for dtype in (object, [("a", "O")], "S0", "V0"):
        with pytest.raises(errors.Usage, match="cannot be stored"):
            region.array(1, dtype)


def test_read_only(path: Path) -> None:
    fb.map(path, 4096).close()
    region = fb.map(path, mode="r")
    assert not region.writable
    array = region.array()
    assert not array.flags.writeable and memoryview(region).readonly and not np.frombuffer(region).flags.writeable
    with pytest.raises(ValueError):
        array.flags.writeable = True
    with Path(__file__).open("rb") as file, pytest.raises(TypeError, match="read-write"):
        file.readinto(region)
    for refused in (region.persist, lambda: region.copy_persist(0, b"x")):
        with pytest.raises(errors.PermissionDenied):
            refused()


def test_arrays_outlive_the_region(path: Path) -> None:
    """Whatever NumPy was given the memory by, it stays mapped."""
    with fb.map(path, BYTES) as region:
        own = region.array(100, "u1")
        plain = np.frombuffer(region, "u1")
        direct = np.ndarray((100,), "u1", buffer=region)
        view = memoryview(region)
        own[:] = 5
    for refused in (
        region.persist,
        lambda: region.copy_persist(0, b"x"),
        lambda: region.array(1),
        lambda: memoryview(region),
        region.__enter__,
    ):
        with pytest.raises(errors.Closed):
            refused()
    region.close()
    del region
    gc.collect()
    parts = [own[50:], direct[50:], plain, view]
    del own, direct
    gc.collect()
    parts[0][:] = 6
    assert parts[1][0] == parts[2][50] == parts[3][50] == 6
    assert fb.map(path, mode="r").array(100, "u1").tolist() == [5] * 50 + [6] * 50


def mappings(path: Path) -> int:
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_memory_is_unmapped(path: Path) -> None:
    region = fb.map(path, BYTES)
    assert mappings(path) == 1
    region.close()
    assert mappings(path) == 0
    region = fb.map(path, BYTES)
    array = region.array()
    region.close()
    assert mappings(path) == 1
    del region
    gc.collect()
    assert mappings(path) == 1 and not array.any()
    del array
    gc.collect()
    assert mappings(path) == 0


def test_threads_run_while_others_persist(path: Path) -> None:
    region = fb.map(path, 4 << 20)
    pieces = [np.full(1 << 20, i + 1, "u1") for i in range(4)]
    threads = [threading.Thread(target=region.copy_persist, args=(i << 20, p)) for i, p in enumerate(pieces)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (region.array((4, 1 << 20), "u1") == np.arange(1, 5)[:, None]).all()


def test_another_process_sees_stores_at_once_and_what_a_killed_one_persisted_is_there(path: Path, children) -> None:
    region = fb.map(path, BYTES, mode="x+")
    child = children.start(
        """
        region = fb.map(sys.argv[1], int(sys.argv[2]))
        region.copy_persist(100, np.arange(1000.0))
        region.array(3, "i4", offset=16)[:] = 42
        print("stored", flush=True)
        signal.pause()
        """,
        path,
        BYTES,
    )
    assert child.line() == "stored"
    assert region.array(3, "i4", offset=16).tolist() == [42] * 3
    child.signal(9)
    child.wait()
    region.close()
    region = fb.map(path, mode="r+")
    assert (region.array(1000, offset=100) == np.arange(1000.0)).all()


def test_only_regular_files(path: Path) -> None:
    fb.map(path, 4096).close()
    link = path.with_name("link")
    link.symlink_to(path)
    with pytest.raises(errors.Io) as caught:
        fb.map(link)
    assert "symbolic link" in (caught.value.hint or "")
    with pytest.raises(errors.Error):
        fb.map(path.parent, mode="r")
