"""forebay.array over versions of a space: indexing, reductions, what is held and for how long, and bounded memory."""

import os
import signal
from pathlib import Path
from typing import Any

import forebay as fb
import numpy as np
import pytest

BUDGET = 1 << 18
TILE = 4096
SHAPE = (48, 32, 64)


def model(version: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7 + version).integers(0, 1 << 40, SHAPE)


@pytest.fixture
def space() -> Any:
    """Two versions of `u`, each in pieces of two ranks."""
    with fb.open("heat", "w", rank=0, size=2) as a, fb.open("heat", "w", rank=1, size=2) as b:
        for version in range(2):
            whole = model(version)
            for ch in (a, b):
                ch.begin_step()
            a.put("u", whole[:, :20], shape=SHAPE, start=(0, 0, 0))
            b.put("u", whole[:, 20:], shape=SHAPE, start=(0, 20, 0))
            a.put("scale", np.float32(2.5), shape=(), start=())
            for ch in (a, b):
                ch.end_step()
        yield "heat"


KEYS: list[Any] = [
    ...,
    3,
    (1, 2, 3),
    slice(None, None, -7),
    (slice(3, 40, 5), slice(None), slice(60, 2, -3)),
    ([1, 2, 3], [4, 5, 6]),
    (slice(2, 5), [1, 0, 3]),
    np.arange(48) % 3 == 0,
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(space: str, key: Any) -> None:
    with fb.array(space=space, variable="u", version=0, budget=BUDGET, tile=TILE) as ours:
        assert (ours.shape, ours.dtype, ours.version, ours.mode) == (SHAPE, np.dtype("i8"), 0, "r")
        np.testing.assert_array_equal(ours[key], model()[key])


def test_everything_streams_in_the_budget(space: str) -> None:
    wanted = model(1)
    pool = fb.Pool(BUDGET, tile_max=TILE)
    with fb.array(space=space, variable="u", pool=pool) as ours:
        assert ours.version == 1, "the newest"
        assert ours.sum() == wanted.sum() and ours.min() == wanted.min()
        np.testing.assert_array_equal(ours.max(axis=1), wanted.max(axis=1))
        np.testing.assert_allclose(ours.mean(axis=0), wanted.mean(axis=0))
        np.testing.assert_array_equal(ours.gather([40, 3, 40]), wanted[[40, 3, 40]])
        for rows, block in ours.tiles():
            np.testing.assert_array_equal(block, wanted[rows])
        np.testing.assert_array_equal(np.asarray(ours), wanted)
    seen = pool.statistics
    assert int(seen["evicted"]) > 0
    assert int(seen["frame_bytes"]) + int(seen["table_bytes"]) <= BUDGET


def test_a_step_gives_arrays_that_outlive_it(space: str) -> None:
    with fb.open(space, timeout=20) as ch:
        ch.begin_step()
        early = ch.array("u", budget=BUDGET, tile=TILE)
        scale = ch.step.array("scale", budget="1MiB")
        ch.end_step()
        ch.begin_step()
        late = ch.step.array("u", budget=BUDGET, tile=TILE, mode="c", policy="clock")
    late[5] = 1
    np.testing.assert_array_equal(early[...], model())
    assert scale[()] == 2.5
    assert (scale.shape, scale.dtype) == ((), np.dtype("f4"))
    assert (late[5] == 1).all()
    np.testing.assert_array_equal(late[6:], model(1)[6:])
    for each in (early, scale, late):
        each.close()


@pytest.mark.parametrize("mode", ["r", "c"])
def test_a_version_shows_as_a_plain_array(space: str, mode: Any) -> None:
    with fb.array(space=space, variable="u", version=0, budget=BUDGET, tile=TILE) as ours:
        try:
            window = ours.window(budget=BUDGET, mode=mode)
        except fb.errors.NotPossibleHere as e:
            pytest.skip(f"windows over versions: {e}")
    # The window holds the version by itself.
    wanted = model()
    np.testing.assert_array_equal(window.array, wanted)
    np.testing.assert_array_equal(window.array[::-3, 5], wanted[::-3, 5])
    window.prefetch(3, 9)
    window.will_stream()
    assert window.array.sum() == wanted.sum()
    if mode == "c":
        window.array[...] *= 2
        np.testing.assert_array_equal(window.array, 2 * wanted)
    else:
        with pytest.raises(ValueError, match="read-only"):
            window.array[0] = 1
    seen = window.statistics
    assert (seen["engine"], seen["failures"]) == ("userfault", 0)
    assert int(seen["evicted_bytes"]) > 0 and int(seen["resident_peak"]) <= BUDGET
    window.close()
    with fb.array(space=space, variable="u", version=0, budget=BUDGET, tile=TILE) as again:
        np.testing.assert_array_equal(again[...], wanted)


def test_windows_that_map_files_show_no_version(space: str) -> None:
    with fb.array(space=space, variable="u", budget=BUDGET, tile=TILE) as ours:
        with pytest.raises(fb.errors.NotPossibleHere, match="maps a file"):
            ours.window(budget=BUDGET, engine="kernel")
        with pytest.raises(fb.errors.NotPossibleHere, match="written back"):
            ours.window(budget=BUDGET, mode="r+")


def test_what_a_version_does_not_take(space: str) -> None:
    with fb.array(space=space, variable="u", shape=SHAPE, dtype="i8", budget=BUDGET, tile=TILE) as ours:
        with pytest.raises(fb.errors.PermissionDenied):
            ours[0] = 1
    with pytest.raises(ValueError, match="holds"):
        fb.array((3, 3), space=space, variable="u")
    with pytest.raises(ValueError, match="holds"):
        fb.array(dtype="f8", space=space, variable="u")
    with pytest.raises(ValueError, match="never changes"):
        fb.array(space=space, variable="u", mode="r+")
    with pytest.raises(ValueError, match="path"):
        fb.array(space=space, variable="u", path="x")
    with pytest.raises(ValueError, match="variable= is missing"):
        fb.array(space=space)
    with pytest.raises(ValueError, match="space="):
        fb.array((3,), variable="u")


def test_what_is_not_there_says_so(space: str) -> None:
    with pytest.raises(fb.errors.UnknownVariable, match="scale"):
        fb.array(space=space, variable="scales")
    with pytest.raises(fb.errors.TimedOut):
        fb.array(space=space, variable="u", version=2)
    with pytest.raises(fb.errors.PeerMissing):
        fb.array(space="nowhere", variable="u")


def test_a_gap_is_an_error_where_it_is_touched() -> None:
    with fb.open("gap", "w", rank=0, size=1) as ch:
        ch.begin_step()
        whole = np.arange(100 * 1024).reshape(100, 1024)
        ch.put("u", whole[:40], shape=whole.shape, start=(0, 0))
        ch.end_step()
        with fb.array(space="gap", variable="u", budget=BUDGET, tile=TILE) as ours:
            np.testing.assert_array_equal(ours[:40, 7], whole[:40, 7])
            with pytest.raises(fb.errors.BoxNotCovered):
                ours[40]


def test_the_version_is_held_until_the_array_is_closed() -> None:
    with fb.open("kept", "w", rank=0, size=1, retention="last:1", segment="1MiB", quota="16MiB") as ch:

        def step(version: int) -> None:
            ch.begin_step()
            ch.put("u", model(version))
            ch.end_step()

        step(0)
        ours = fb.array(space="kept", variable="u", budget=BUDGET, tile=TILE)
        # Each fills most of a segment, and segments go as a whole.
        for version in range(1, 6):
            step(version)
        np.testing.assert_array_equal(ours[...], model())
        ours.close()
        for version in range(6, 9):
            step(version)
        with pytest.raises(fb.errors.VersionGone):
            fb.array(space="kept", variable="u", version=0)


WRITER = """
ch = fb.open("lost", "w", rank=0, size=1)
ch.begin_step()
ch.put("u", np.arange(1 << 18).reshape(512, 512))
ch.end_step()
print("ready", flush=True)
sys.stdin.read() if sys.argv[1] == "end" else time.sleep(60)
ch.close()
"""


@pytest.mark.parametrize("how", ["end", "killed"])
def test_the_writer_may_go(children: Any, how: str) -> None:
    child = children.start(WRITER, how)
    if how == "killed":
        assert child.line() == "ready"
        ours = fb.array(space="lost", variable="u", budget=BUDGET, tile=TILE)
        child.signal(signal.SIGKILL)
        child.wait()
    else:
        # Its stdin is at its end from the beginning: it closes as soon as it has put.
        child.ok()
        ours = fb.array(space="lost", variable="u", budget=BUDGET, tile=TILE)
    assert ours.sum() == (1 << 18) * ((1 << 18) - 1) // 2
    ours.close()


BOUNDED = """
folder, budget = sys.argv[1], 16 << 20
shape = (1 << 14, 1 << 10)                      # 128 MiB of f8: eight times the budget
child = os.fork()
if child == 0:
    with fb.open(os.path.join(folder, "big"), "w", rank=0, size=1, tier=sys.argv[2], quota="256MiB") as ch:
        ch.begin_step()
        for row in range(0, shape[0], 1 << 12):
            part = np.repeat(np.arange(row, row + (1 << 12), dtype="f8"), shape[1]).reshape(-1, shape[1])
            ch.put("u", part, shape=shape, start=(row, 0))
        ch.end_step()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0


def resident(what):
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields[what].split()[0]) << 10


open("/proc/self/clear_refs", "w").write("5")   # the highest counts from here on
before = resident("VmRSS")
a = fb.array(space=os.path.join(folder, "big"), variable="u", budget=budget, tile="256KiB")
assert a.method == {"file": "cached", "direct": "direct"}[sys.argv[2]], a.method
opened = resident("VmHWM")
assert opened - before <= 8 << 20, f"{(opened - before) >> 20} MiB more to open it"
assert a.sum() == (shape[0] - 1) * shape[0] / 2 * shape[1]
rows = np.random.default_rng(1).integers(0, shape[0], 1000)
for part in np.split(rows, 20):
    assert (a.gather(part)[:, 3] == part).all()
grown = resident("VmHWM") - before
# Beside the budget: a block of a reduction and what NumPy makes of it, and the buffers of requests under way.
assert grown <= budget * 1.05 + (24 << 20), f"{grown >> 20} MiB more"
print(a.version)
"""


@pytest.mark.parametrize("tier", ["file", "direct"])
def test_memory_stays_in_the_budget(children: Any, tmp_path: Path, tier: str) -> None:
    if tier == "direct":
        try:
            os.close(os.open(tmp_path, os.O_TMPFILE | os.O_DIRECT | os.O_RDWR, 0o600))
        except OSError:
            pytest.skip("no direct transfers here")
    assert children.start(BOUNDED, tmp_path, tier).ok() == "0\n"
