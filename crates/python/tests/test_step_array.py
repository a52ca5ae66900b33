"""``step["T"]``: lazy until it is indexed, an array to NumPy, Arrow and DLPack; steps as mappings of variables."""

import importlib.util
import pickle
import time

import forebay as fb
import numpy as np
import pytest
from forebay import errors


@pytest.fixture
def step():
    with fb.open("heat", "w", retention="forever") as ch:
        for out in ch.steps(1):
            out.put("T", np.arange(12.0).reshape(3, 4), dims=("y", "x"), attrs={"units": "K"})
            out.put("n", 7)
            out.put("flags", np.array([True, False, True]))
            # In two pieces.
            out.put("two", np.arange(3), shape=(5,), start=(0,))
            out.put("two", np.arange(3, 5), shape=(5,), start=(3,))
    with fb.open("heat", observer=True) as ch, ch.open_version(0) as opened:
        yield opened


def gets(step) -> tuple[int, int]:
    """Gets and views so far."""
    return tuple(step._stats()[key] for key in ("gets", "views"))


def test_nothing_is_read_until_it_is_indexed(step):
    assert dict(step.attrs) == {}, "the descriptions are read once"
    before = gets(step)
    T = step["T"]
    assert (T.name, T.shape, T.dtype, T.ndim, T.size, T.nbytes, len(T)) == ("T", (3, 4), np.float64, 2, 12, 96, 3)
    assert (T.dims, T.attrs, T.version, len(T.pieces)) == (("y", "x"), {"units": "K"}, 0, 1)
    assert repr(T) == "<forebay.StepArray 'T' float64 (3, 4) of ('y', 'x') in version 0>"
    assert "y: 3" in T._repr_html_() and "units" in T._repr_html_()
    assert gets(step) == before
    assert T[1].tolist() == [4, 5, 6, 7] and T[1, 2] == 6 and T[..., -1].tolist() == [3, 7, 11]
    assert gets(step) == (before[0] + 3, before[1])
    with pytest.raises(errors.UnknownVariable):
        step["U"]


def test_it_indexes_as_numpy_does(step):
    T, a = step["T"], np.arange(12.0).reshape(3, 4)
    for key in (
        np.s_[::2], np.s_[:, ::-1], [0, 2], a > 5, np.s_[None, 1], np.s_[1:2, [0, 3]], (), ..., np.s_[5:9], np.int64(1),
        np.array([0, 1]), True, ((0, 2),), ((0, 1), (1, 2)), (1, 2), (-1, -1),
    ):  # fmt: skip
        got = T[key]
        assert np.array_equal(got, a[key]) and np.shape(got) == a[key].shape, key
        assert not isinstance(got, np.ndarray) or got.flags.writeable, "it is the caller's own"
    assert isinstance(T[1, 2], np.float64) and isinstance(step["n"][()], np.int64), "an element is no array"
    assert 5.0 in T and 99.0 not in T and bytes(step["flags"]) == b"\x01\x00\x01"
    for key in (3, -4, np.s_[0, 0, 0], np.s_[0, 9], "x"):
        with pytest.raises(IndexError):
            T[key]


def test_a_version_is_not_changed_in_place(step):
    T, before = step["T"], np.array(step["T"])
    for change in (
        lambda: T.__iadd__(1),
        lambda: np.add(1, 2, out=step["T"]),
        lambda: np.add(before, 1, out=(step["T"],)),
    ):
        with pytest.raises(TypeError):
            change()
    with pytest.raises(TypeError):
        T[0] = 1
    out = np.zeros(3)
    assert np.add(step["flags"], 1.0, out=out, where=step["flags"]).tolist() == [2.0, 0.0, 2.0]
    assert np.add.reduce(T).tolist() == before.sum(axis=0).tolist() and (step["T"] == before).all()


def test_it_is_an_array_to_numpy(step):
    T, a = step["T"], np.arange(12.0).reshape(3, 4)
    seen = np.asarray(T)
    assert not seen.flags.writeable and np.array_equal(seen, a), "one piece is seen where it lies"
    assert np.array(T, copy=True).flags.writeable and np.asarray(T, dtype="f4").dtype == np.float32
    assert np.array(T, copy=False).base is not None
    assert np.array_equal(np.asarray(step["two"]), np.arange(5))
    with pytest.raises(ValueError):
        np.array(step["two"], copy=False)
    with pytest.raises(ValueError):
        np.array(T, dtype="f4", copy=False)
    assert ((T + 1) * 2 - T == a + 2).all() and (T > 5).sum() == 6 and np.sqrt(T)[0, 1] == 1
    assert T.sum() == a.sum() and T.mean(axis=0).tolist() == a.mean(axis=0).tolist() and T.tolist() == a.tolist()
    assert np.concatenate([T, T]).shape == (6, 4) and [row.tolist() for row in T] == a.tolist()
    assert float(step["n"]) == 7 and int(step["n"]) == 7 and bool(step["n"]) and step["n"][()] == 7
    with pytest.raises(TypeError):
        float(T)
    with pytest.raises(TypeError):
        len(step["n"])
    assert np.array_equal(np.from_dlpack(T), a)


def test_a_step_is_a_mapping_of_names(step):
    assert list(step) == step.keys() == ["T", "n", "flags", "two"] and len(step) == 4
    assert [v.name for v in step.values()] == step.keys()
    assert {name: array.size for name, array in step.items()} == {"T": 12, "n": 1, "flags": 3, "two": 5}
    assert "T" in step and "U" not in step and dict(step.items()).keys() == set(step)
    assert step.variable("T").dims == ("y", "x") and repr(step) == "<forebay.ReadStep 0: T, n, flags, two>"
    html = step._repr_html_()
    assert "version 0" in html and "(y: 3, x: 4)" in html
    with pytest.raises(errors.UnknownVariable):
        step.variable("U")
    step.close()
    assert repr(step) == "<forebay.ReadStep 0: closed>"
    with pytest.raises(errors.Closed):
        step["T"]


def test_an_array_of_a_closed_step_is_refused(step):
    T = step["T"]
    step.close()
    with pytest.raises(errors.Closed):
        T[0]
    with pytest.raises(errors.Closed):
        np.asarray(T)


def test_steps_and_arrays_are_opened_again_by_the_path_of_their_space(step, children):
    again = pickle.loads(pickle.dumps(step))
    assert again.version == 0 and again["T"][1, 1] == 5
    again.close()
    T = pickle.loads(pickle.dumps(step["T"]))
    assert T.dims == ("y", "x") and T.sum() == 66
    child = children.start(f"import pickle; print(pickle.loads({pickle.dumps(step['T'])!r})[2].tolist())")
    assert child.ok() == "[8.0, 9.0, 10.0, 11.0]\n"
    assert T.__dask_tokenize__() == step["T"].__dask_tokenize__() != step["two"].__dask_tokenize__()


def test_a_space_in_place_of_another_has_other_tokens(step):
    token = step["T"].__dask_tokenize__()
    pickles = [pickle.dumps(step), pickle.dumps(step["T"])]
    step.close()
    with fb.open("heat", "w", replace=True, retention="forever") as ch:
        for out in ch.steps(1):
            out.put("T", np.zeros((3, 4)))
    with fb.open("heat", observer=True) as ch, ch.open_version(0) as other:
        assert other["T"].__dask_tokenize__() != token and other["T"].__dask_tokenize__()[2:] == token[2:]
    for packed in pickles:
        with pytest.raises(errors.VersionGone, match="replaced"):
            pickle.loads(packed)
    fb.destroy("heat")
    begin = time.monotonic()
    with pytest.raises(errors.PeerMissing):
        pickle.loads(pickles[0])
    assert time.monotonic() - begin < 20, "it does not wait for a space that is gone"


@pytest.mark.skipif(importlib.util.find_spec("nanoarrow") is None, reason="nanoarrow is not installed")
class TestArrow:
    """Through the PyCapsule interface."""

    def test_a_variable_of_one_dimension_without_a_copy(self, step):
        import nanoarrow as na

        with fb.open("long", "w", retention="forever") as ch:
            for out in ch.steps(1):
                out.put("x", np.arange(1000, dtype="i4"))
        with fb.open("long", observer=True) as ch, ch.open_version(0) as long:
            before = long._stats()["bytes_copied"]
            array = na.Array(long["x"])
            assert len(array) == 1000 and array[999].as_py() == 999 and long._stats()["bytes_copied"] == before
        # It holds the version.
        assert array[0].as_py() == 0
        assert na.Array(step["two"]).to_pylist() == [0, 1, 2, 3, 4]
        assert na.Array(step["flags"]).to_pylist() == [True, False, True]
        for name in ("T", "n"):
            with pytest.raises(TypeError):
                na.Array(step[name])

    def test_variables_of_one_length_are_a_table(self, step):
        import nanoarrow as na

        table = step.table(["two"])
        assert table.column_names == ["two"] and len(table) == 5
        assert list(na.ArrayStream(table).read_all().to_pylist()) == [{"two": i} for i in range(5)]
        assert step.table().column_names == ["flags"], "those of the first length"
        with pytest.raises(errors.Usage):
            step.table(["two", "flags"])
        with pytest.raises(TypeError):
            step.table(["T"])
        for names in ([], ["two", "two"]):
            with pytest.raises(errors.Usage):
                step.table(names)


@pytest.mark.parametrize("taker", ["polars", "duckdb", "pandas"])
def test_tables_are_taken_without_a_copy(taker):
    for package in (taker, "nanoarrow", *(["pyarrow"] if taker == "pandas" else [])):
        pytest.importorskip(package)
    with fb.open("heat", "w", retention="forever") as ch:
        for out in ch.steps(1):
            out.put_many({"id": np.arange(1000), "energy": np.arange(1000) / 8, "even": np.arange(1000) % 2 == 0})
    with fb.open("heat", observer=True) as ch, ch[-1] as step:
        before = step._stats()["bytes_copied"]
        table = step.table()
        if taker == "polars":
            import polars

            frame = polars.DataFrame(table)
            assert frame["energy"].sum() == 62437.5 and frame.filter(polars.col("even")).height == 500
        elif taker == "duckdb":
            import duckdb

            columns = table
            found = duckdb.sql("SELECT sum(energy), count(*) FILTER (even), max(id) FROM columns").fetchall()
            assert found == [(62437.5, 500, 999)], columns
        else:
            import pandas

            frame = pandas.DataFrame.from_arrow(step.table(["id", "energy"]))
            assert frame["energy"].sum() == 62437.5 and list(frame.columns) == ["id", "energy"]
        assert step._stats()["bytes_copied"] - before == 0


def test_without_nanoarrow_it_says_what_is_missing(step, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nanoarrow", None)
    with pytest.raises(errors.NotPossibleHere, match="nanoarrow"):
        step["two"].__arrow_c_array__()
