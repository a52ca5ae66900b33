"""forebay.array: NumPy's indexing on data larger than its budget, modes, .npy files, and memory that stays bounded."""

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay as fb
import numpy as np
import pytest

BUDGET = 1 << 18
TILE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where files lie: a block file system, so that transfers are direct where they can be."""
    return tmp_path


@pytest.fixture
def pair(folder: Path) -> Iterator[tuple[np.ndarray[Any, Any], fb.Array]]:
    """An ndarray, and the same data in a file of four times the budget."""
    model = np.random.default_rng(7).integers(0, 1 << 40, (64, 32, 64))
    path = folder / "data"
    model.tofile(path)
    with fb.array(model.shape, model.dtype, path=path, budget=BUDGET, tile=TILE, mode="c") as ours:
        yield model, ours


# At least one of every kind, and the mixtures whose shapes surprise.
KEYS: list[Any] = [
    (),
    ...,
    3,
    -1,
    (1, 2, 3),
    (1, ..., 3),
    slice(5, 9),
    slice(None, None, -7),
    (slice(3, 60, 5), slice(None), slice(60, 2, -3)),
    (..., slice(10, 20)),
    (None, 4, slice(2, 5), None),
    (slice(4, 4), 0),
    [5, 1, 5],
    np.array([[1, 2], [-1, 0]]),
    ([1, 2, 3], [4, 5, 6]),
    ([1, 2, 3], [4, 5, 6], [7, 8, 9]),
    (slice(2, 5), [1, 0, 3]),
    ([[1], [2]], slice(3, 6), [0, 1, 2]),
    (slice(2, 5), 3, [0, 1, 2]),
    (2, slice(3, 6), [0, 1, 2]),
    (slice(2, 5), [0, 1, 2], [3, 4, 5]),
    (slice(2, 5), None, [0, 1, 2]),
    np.arange(64) % 3 == 0,
    (slice(None), np.arange(32) > 28),
    np.zeros(64, bool),
    np.array([], int),
    [],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(pair: tuple[np.ndarray[Any, Any], fb.Array], key: Any) -> None:
    model, ours = pair
    found, wanted = ours[key], model[key]
    assert type(found) is type(wanted) and np.shape(found) == np.shape(wanted)
    np.testing.assert_array_equal(found, wanted)
    value = np.arange(np.size(wanted)).reshape(np.shape(wanted))
    ours[key] = value
    model[key] = value
    np.testing.assert_array_equal(ours[...], model)
    ours[key] = 5
    model[key] = 5
    np.testing.assert_array_equal(np.asarray(ours), model)


def test_a_mask_of_all_dimensions(pair: tuple[np.ndarray[Any, Any], fb.Array]) -> None:
    model, ours = pair
    mask = model % 100 == 0
    np.testing.assert_array_equal(ours[mask], model[mask])


@pytest.mark.parametrize("key", [64, -65, (0, 32), [64], (0, 0, 0, 0), "x", 1.5, (..., ...), [1.5], np.ones(3, bool)])
def test_bad_indices_are_index_errors(pair: tuple[np.ndarray[Any, Any], fb.Array], key: Any) -> None:
    model, ours = pair
    with pytest.raises(IndexError):
        model[key]
    with pytest.raises(IndexError):
        ours[key]


def test_reductions_stream(pair: tuple[np.ndarray[Any, Any], fb.Array]) -> None:
    model, ours = pair
    for axis in (None, 0, 1, -1):
        np.testing.assert_array_equal(ours.sum(axis), model.sum(axis))
        np.testing.assert_array_equal(ours.min(axis), model.min(axis))
        np.testing.assert_array_equal(ours.max(axis), model.max(axis))
        np.testing.assert_allclose(ours.mean(axis), model.mean(axis))
    assert ours.reduce(lambda part: int((part % 3 == 0).sum()), int.__add__) == int((model % 3 == 0).sum())


def test_who_knows_dlpack_gets_a_copy_of_all(pair: tuple[np.ndarray[Any, Any], fb.Array]) -> None:
    model, ours = pair
    given = np.from_dlpack(ours)
    np.testing.assert_array_equal(given, model)
    assert (given.dtype, ours.__dlpack_device__()) == (model.dtype, (1, 0))
    # What is written to the array later is not in the copy, which outlives it.
    ours[0, 0, 0] = model[0, 0, 0] + 1
    ours.close()
    np.testing.assert_array_equal(given, model)


def test_what_dlpack_cannot_have_is_a_buffer_error(pair: tuple[np.ndarray[Any, Any], fb.Array]) -> None:
    _, ours = pair
    with pytest.raises(BufferError, match="window"):
        ours.__dlpack__(copy=False)
    with pytest.raises(BufferError, match=r"\(2, 0\)"):
        ours.__dlpack__(dl_device=(2, 0))
    assert ours.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=True) is not None


def test_tiles_are_blocks_of_rows_in_any_order(pair: tuple[np.ndarray[Any, Any], fb.Array], folder: Path) -> None:
    model = np.arange(3 << 20, dtype="f4").reshape(-1, 3)
    model.tofile(folder / "rows")
    with fb.array(model.shape, "f4", path=folder / "rows", budget=BUDGET * 8, mode="r") as ours:
        blocks = list(ours.tiles())
        assert len(blocks) > 2
        np.testing.assert_array_equal(np.concatenate([values for _, values in blocks]), model)
        for rows, values in ours.tiles(order=[2, 0]):
            np.testing.assert_array_equal(values, model[rows])


def test_what_is_written_is_in_the_file(folder: Path) -> None:
    path = folder / "new"
    model = np.zeros((1000, 300), "f8")
    with fb.array(model.shape, path=path, budget=BUDGET, tile=TILE) as ours:
        assert ours.sum() == 0 and ours.dtype == "f8"
        rows = np.random.default_rng(3).permutation(1000)[:500]
        values = np.random.default_rng(4).normal(size=(500, 300))
        ours.scatter(rows, values)
        model[rows] = values
        ours[:, 7] = 3
        model[:, 7] = 3
        ours.flush()
        np.testing.assert_array_equal(np.fromfile(path).reshape(model.shape), model)
        np.testing.assert_array_equal(ours.gather(rows), model[rows])
        out = np.empty((500, 300))
        assert ours.gather(rows, out=out) is out
        np.testing.assert_array_equal(out, model[rows])
        wide = np.zeros((500, 600))
        assert ours.gather(rows, out=wide[:, ::2]).base is wide
        np.testing.assert_array_equal(wide[:, ::2], model[rows])
        assert not wide[:, 1::2].any()
        out.flags.writeable = False
        for bad in (np.empty((500, 299)), np.empty((500, 300), "f4"), out):
            with pytest.raises(fb.errors.BufferMismatch, match="out="):
                ours.gather(rows, out=bad)
        ours[5] = 9
        model[5] = 9
    np.testing.assert_array_equal(np.fromfile(path).reshape(model.shape), model)
    with fb.array(model.shape, path=path, budget=BUDGET, mode="r") as again:
        assert again[5, 5] == 9
        with pytest.raises(fb.errors.PermissionDenied):
            again[0] = 1


def test_npy_files_tell_their_shape(folder: Path) -> None:
    model = np.arange(60_000, dtype="i4").reshape(200, 300)
    np.save(folder / "a.npy", model)
    with fb.array(path=folder / "a.npy", budget=BUDGET, tile=TILE, mode="r+") as ours:
        assert (ours.shape, ours.dtype) == (model.shape, model.dtype)
        np.testing.assert_array_equal(ours[...], model)
        ours[100] = 1
        model[100] = 1
    np.testing.assert_array_equal(np.load(folder / "a.npy"), model)
    with fb.array((10, 10), "u2", path=folder / "b.npy", budget=BUDGET) as ours:
        ours[...] = np.arange(100).reshape(10, 10)
    np.testing.assert_array_equal(np.load(folder / "b.npy"), np.arange(100).reshape(10, 10))
    with pytest.raises(ValueError, match="holds"):
        fb.array((7,), path=folder / "b.npy", mode="r")
    np.save(folder / "f.npy", np.asfortranarray(model))
    with pytest.raises(ValueError, match="Fortran"):
        fb.array(path=folder / "f.npy", mode="r")


def test_records_and_odd_lengths(folder: Path) -> None:
    kind = np.dtype([("x", "u1"), ("y", "<f8"), ("z", "S3")])
    model = np.zeros(5000, kind)
    model["y"] = np.arange(5000)
    with fb.array(5000, kind, path=folder / "r", budget=BUDGET, tile=TILE) as ours:
        ours[:] = model
        np.testing.assert_array_equal(ours[::17], model[::17])
        assert ours[4999]["y"] == 4999


def test_modes_say_what_they_want(folder: Path) -> None:
    path = folder / "m"
    with pytest.raises(fb.errors.Error):
        fb.array(10, path=path, mode="r")
    fb.array(10, path=path, mode="x+").close()
    with pytest.raises(fb.errors.NameInUse):
        fb.array(10, path=path, mode="x+")
    with pytest.raises(fb.errors.Damaged):
        fb.array(11, path=path, mode="r+")
    with pytest.raises(ValueError) as wrong:
        fb.array(11, path=path, mode="w")
    assert isinstance(wrong.value, fb.Error) and wrong.value.kind == "Usage"
    with pytest.raises(TypeError) as wrong, fb.array((), budget=BUDGET) as one:
        len(one)
    assert isinstance(wrong.value, fb.Error)
    with pytest.raises(fb.errors.Usage):
        fb.array(10, path=path, tile=5000)
    gone = fb.array(10, path=path)
    gone.close()
    gone.close()
    with pytest.raises(fb.errors.Closed):
        gone[0]
    with fb.array((300, 300), budget=BUDGET) as nameless:
        nameless[...] = 2
        assert nameless.sum() == 180_000
    assert sorted(os.listdir(folder)) == ["m"]


def test_what_cannot_be_opened_leaves_no_file(folder: Path) -> None:
    for mode in ("x+", "a+", None):
        with pytest.raises(fb.errors.Usage):
            fb.array(10, path=folder / "new.npy", mode=mode, tile=5000)
        pool = fb.Pool("256KiB", tile_max=TILE)
        with pytest.raises(fb.errors.TierFull):
            # Its page table alone is larger than the budget.
            fb.array(1 << 28, "u1", path=folder / "large", mode=mode, pool=pool, tile=TILE)
        assert os.listdir(folder) == []
    kept = folder / "kept"
    fb.array(10, path=kept).close()
    with pytest.raises(fb.errors.NameInUse):
        fb.array(10, path=kept, mode="x+")
    for mode in ("r+", "a+", None):
        with pytest.raises(fb.errors.Usage):
            fb.array(10, path=kept, mode=mode, tile=5000)
    assert os.listdir(folder) == ["kept"]


def test_a_forked_child_ends_with_arrays_of_its_parent(folder: Path) -> None:
    script = f"""
import os, forebay as fb
ours = fb.array(5000, path={str(folder / "forked")!r}, budget="256KiB", tile=4096)
ours[:] = 1
child = os.fork()
if child == 0:
    try:
        ours[0]
    except fb.errors.ForkedHandle:
        pass
    # Drops array and pool: threads that they had are none of this process.
    ours.close()
    del ours
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert ours.sum() == 5000
ours.close()
"""
    command = [sys.executable, "-c", script]
    subprocess.run(command, env={**os.environ, "FOREBAY_ENGINE": "threads"}, timeout=60, check=True)


def test_arrays_share_one_budget(folder: Path) -> None:
    pool = fb.Pool("512KiB", tile_max="16KiB")
    models = [np.full((512, 256), n, "f8") for n in range(3)]
    ours = [
        fb.array(model.shape, path=folder / str(n), pool=pool, tile=tile)
        for n, (model, tile) in enumerate(zip(models, [4096, 16384, 4096], strict=True))
    ]
    for a, model in zip(ours, models, strict=True):
        a[...] = model
    for a, model in itertools.chain(zip(ours, models, strict=True), zip(ours, models, strict=True)):
        np.testing.assert_array_equal(a[...], model)
    seen = pool.statistics
    assert int(seen["frame_bytes"]) + int(seen["table_bytes"]) <= 512 << 10 == seen["budget"]
    assert int(seen["evicted"]) > 0
    for a in ours:
        a.close()


BOUNDED = """
import resource
folder, budget = sys.argv[1], 32 << 20
shape = (1 << 15, 1 << 10)                      # 256 MiB of f8: eight times the budget
a = fb.array(shape, "f8", path=os.path.join(folder, "big"), budget=budget)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
for rows, _ in a.tiles():
    a[rows] = np.arange(rows.start, rows.stop, dtype="f8")[:, None]
assert a.sum() == (shape[0] - 1) * shape[0] / 2 * shape[1]
rows = np.random.default_rng(1).integers(0, shape[0], 2000)
for part in np.split(rows, 20):
    assert (a.gather(part)[:, 3] == part).all()
a.close()
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
assert grown <= budget * 1.05 + (64 << 20), f"{grown >> 20} MiB more"
print(a is not None)
"""


def test_memory_stays_in_the_budget(children: Any, folder: Path) -> None:
    assert children.start(BOUNDED, folder).ok() == "True\n"


def group(limit: int) -> Path | None:
    """A memory cgroup with this limit, if one can be made here."""
    for base, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        made = Path(base) / f"forebay-test-{os.getpid()}"
        try:
            made.mkdir()
            (made / name).write_text(str(limit))
        except OSError:
            if made.is_dir():
                made.rmdir()
            continue
        return made
    return None


def test_memory_stays_in_a_group_with_the_page_cache_counted(children: Any, folder: Path) -> None:
    made = group((32 + 128) << 20)
    if made is None:
        pytest.skip("a memory cgroup cannot be made here")
    try:
        joined = f"open({str(made / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        assert children.start(joined + BOUNDED, folder).ok() == "True\n"
    finally:
        gc.collect()
        children.end()
        made.rmdir()


def test_several_files_hold_one_array_in_stripes(folder: Path) -> None:
    model = np.random.default_rng(3).integers(0, 1 << 40, (300, 1000))
    paths = [folder / name for name in "abc"]
    stripe = 16 << 10
    with fb.array(model.shape, model.dtype, path=paths, stripe=stripe, budget=BUDGET, tile=TILE, mode="x+") as ours:
        ours[...] = model
        ours.flush()
        assert ours.method == fb.array((8,), "u1", path=folder / "one").method
        try:
            with ours.window(budget=BUDGET) as window:
                assert (window.array == model).all()
            with pytest.raises(fb.errors.NotPossibleHere, match="written back"):
                ours.window(budget=BUDGET, mode="r+")
        except fb.errors.NotPossibleHere as e:
            assert "userfaultfd" in str(e)
    raw = model.tobytes()
    held = [path.read_bytes() for path in paths]
    for nth, at in enumerate(range(0, len(raw), stripe)):
        part = raw[at : at + stripe]
        start = nth // 3 * stripe
        assert held[nth % 3][start : start + len(part)] == part
    assert sum(map(len, held)) == len(raw)
    with fb.array(model.shape, model.dtype, path=paths, stripe="16KiB", budget=BUDGET, tile="64KiB", mode="r") as ours:
        # Tiles longer than a stripe are put together.
        np.testing.assert_array_equal(ours[::7], model[::7])
        np.testing.assert_array_equal(ours.gather([299, 0, 17]), model[[299, 0, 17]])
        assert ours.sum() == model.sum()


def test_files_that_are_not_stripes_of_one_array_are_refused(folder: Path) -> None:
    def array(names: str, **options: Any) -> fb.Array:
        options.setdefault("stripe", 4096)
        return fb.array((5000,), "f8", path=[folder / name for name in names], budget=BUDGET, tile=TILE, **options)

    array("abc", mode="x+").close()
    for wrong in ({"names": "bac"}, {"names": "abc", "stripe": 8192}):
        with pytest.raises(fb.errors.Damaged, match="the other files of the stripe set"):
            array(**wrong, mode="r")
    with pytest.raises(fb.errors.NameInUse):
        array("xa", mode="x+")
    # What was made before that error is gone, what was there is not.
    assert sorted(os.listdir(folder)) == ["a", "b", "c"]
    for names, stripe in (("", 4096), ("aa", 4096)):
        with pytest.raises(ValueError, match="named once"):
            array(names, stripe=stripe, mode="r")
    for stripe in (0, 1000):
        with pytest.raises(fb.errors.Usage):
            array("xy", stripe=stripe, mode="x+")
    with pytest.raises(ValueError, match="without .npy"):
        fb.array((3,), path=[folder / "x.npy", folder / "y.npy"], mode="x+")
    assert sorted(os.listdir(folder)) == ["a", "b", "c"]
