"""forebay.window: an ndarray over a whole file in a budget, with every engine that can be had here."""

import os
from pathlib import Path
from typing import Any, Literal, get_args

import forebay as fb
import numpy as np
import pytest

BUDGET = 1 << 18
TILE = 4096
Engine = Literal["userfault", "handler", "kernel"]


@pytest.fixture
def model() -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(0, 1 << 40, (64, 32, 64))


@pytest.fixture(params=get_args(Engine))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(TILE))
    try:
        fb.window(probe, TILE, "u1", budget=BUDGET, tile=TILE, engine=request.param).close()
    except fb.errors.NotPossibleHere as e:
        pytest.skip(f"windows by {request.param}: {e}")
    return request.param


def test_it_is_an_ndarray_of_the_whole_file(model: np.ndarray[Any, Any], tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "data"
    model.tofile(path)
    with fb.window(path, model.shape, model.dtype, budget=BUDGET, tile=TILE, engine=engine) as ours:
        assert type(ours.array) is np.ndarray and not ours.array.flags.writeable
        ours.will_stream()
        assert (ours.array == model).all()
        ours.advise("random")
        assert (ours.array[[5, 1, 63], :, 7] == model[[5, 1, 63], :, 7]).all()
        ours.done_with(0, 32)
        ours.prefetch(10, 20)
        assert ours.array[3:40].sum() == model[3:40].sum()
        seen = ours.statistics
        assert seen["engine"] == engine and seen["why"] == "asked for" and seen["failures"] == 0
        if engine != "kernel":
            assert int(seen["resident_peak"]) <= BUDGET and int(seen["evicted_bytes"]) > 0
    assert ours.closed and (ours.array == model).all(), "the array stays as long as it is referenced"
    with pytest.raises(fb.errors.Closed):
        ours.prefetch()


def test_what_is_stored_is_in_the_file(model: np.ndarray[Any, Any], tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "data.npy"
    np.save(path, model)
    ours = fb.window(path, mode="r+", budget=BUDGET, tile=TILE, engine=engine)
    ours.array[::3] += 1
    model[::3] += 1
    ours.flush()
    assert (np.load(path) == model).all()
    ours.array.sort(axis=0)
    model.sort(axis=0)
    ours.close()
    assert (np.load(path) == model).all()


def test_an_array_shows_itself(model: np.ndarray[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "data"
    model.tofile(path)
    with fb.array(model.shape, model.dtype, path=path, budget=BUDGET, tile=TILE, mode="r+") as array:
        array[5] = 7
        with array.window(budget=BUDGET) as ours:
            assert (ours.array[5] == 7).all()
            ours.array[6] = 8
    assert (np.fromfile(path, model.dtype).reshape(model.shape)[6] == 8).all()
    own = fb.array(model.shape, model.dtype, path=path, budget=BUDGET, tile=TILE, mode="c")
    with own, pytest.raises(ValueError, match="keeps to the array"):
        own.window()


def test_what_is_stored_in_a_copy_stays_there(model: np.ndarray[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "data"
    model.tofile(path)
    try:
        ours = fb.window(path, model.shape, model.dtype, budget=BUDGET, tile=TILE, mode="c")
    except fb.errors.NotPossibleHere as e:
        pytest.skip(f"windows that copy on write: {e}")
    ours.array[...] += 1
    assert (ours.array == model + 1).all()
    ours.close()
    assert (np.fromfile(path, model.dtype).reshape(model.shape) == model).all()


def test_a_page_that_cannot_be_read_raises_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes([7]) * 32 * TILE)
    ours = fb.window(path, 32 * TILE, "u1", budget=16 * TILE, tile=TILE, advice="random")
    if ours.statistics["engine"] == "kernel":
        pytest.skip("bad pages of windows: userfaultfd is refused")
    os.truncate(path, 10 * TILE)
    assert ours.array[:: TILE].tolist() == [7] * 10 + [0] * 22
    with pytest.raises(fb.errors.Damaged, match="is shorter than the data"):
        ours.check()
    ours.check()
    assert ours.statistics["failures"] == 22
    ours.close()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(TILE))
    with pytest.raises(fb.errors.Damaged):
        fb.window(path, 2 * TILE, "u1")
    with pytest.raises(fb.errors.Usage):
        fb.window(path, TILE, "u1", tile=5000)
    with pytest.raises(fb.errors.NotPossibleHere):
        fb.window(path, TILE, "u1", mode="c", engine="kernel")
    with pytest.raises(ValueError, match="mode"):
        fb.window(path, TILE, "u1", mode="w")  # type: ignore[arg-type]
