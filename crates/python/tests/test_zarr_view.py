"""A space as a Zarr hierarchy: what zarr-python reads is what was put, chunk by piece, without a copy."""

import json
import pickle

import forebay as fb
import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3")

from forebay.zarr import View  # noqa: E402

ROWS = np.arange(24.0).reshape(4, 6)


def write(versions: int = 2, **options: object) -> None:
    """Versions of arrays in one piece, in a grid of four, ragged, and of every kind."""
    with fb.open("heat", "w", retention="forever", **options) as ch:
        ch.attrs["title"] = "a plate"
        for step in ch.steps(versions):
            step.attrs["time"] = step.version / 2
            step.attrs["limit"] = float("inf")
            step.put("T", ROWS + step.version, dims=("y", "x"), attrs={"units": "K", "fill": float("nan")})
            for r in range(2):
                for c in range(2):
                    part = ROWS[2 * r : 2 * r + 2, 4 * c : 4 * c + 4]
                    step.put("grid/of/pieces", part, shape=ROWS.shape, start=(2 * r, 4 * c))
            for n in (3, 1, 2):
                step.put("ragged", np.full((n, 2), n, "i2"), concat=True)
            step.put("n", 7)
            step.put("note", "grün")
            step.put("none", np.zeros((0, 3), "f4"))
            for name in ("bool", "int8", "uint64", "float16", "complex64"):
                step.put(f"types/{name}", np.arange(5).astype(name))


@pytest.mark.parametrize("channel", ["space", "files"])
def test_zarr_reads_what_was_put(channel):
    write(channel=channel)
    with View("heat", version=-1, channel=channel) as view:
        group = zarr.open_group(view, mode="r")
        assert group.attrs["title"] == "a plate" and group.attrs["time"] == 0.5 and group.attrs["limit"] == "Infinity"
        T = group["T"]
        assert (T[...] == ROWS + 1).all() and T.chunks == (4, 6) and T.metadata.dimension_names == ("y", "x")
        assert dict(T.attrs) == {"units": "K", "fill": "NaN"}
        pieces = group["grid/of/pieces"]
        assert pieces.chunks == (2, 4) and (pieces[...] == ROWS).all() and (pieces[1:3, 3:5] == ROWS[1:3, 3:5]).all()
        assert group["ragged"][:, 0].tolist() == [3, 3, 3, 1, 2, 2] and group["ragged"].dtype == np.int16
        assert group["n"][()] == 7 and group["note"][()] == "grün" and group["none"].shape == (0, 3)
        for name in ("bool", "int8", "uint64", "float16", "complex64"):
            assert (group[f"types/{name}"][...] == np.arange(5).astype(name)).all()
        assert sorted(group.array_keys()) == ["T", "n", "none", "note", "ragged"]
        assert sorted(group.group_keys()) == ["grid", "types"] and len(list(group["types"].arrays())) == 5
        assert "U" not in group and "T/x" not in group
        for key in ("T/c/1/0", "T/c/0", "T/c/0/x", "T/c/-1/0", "T/d/0/0", "U/zarr.json", "zarr.json/T"):
            assert view.get_sync(key) is None, key


def test_a_chunk_is_a_piece_and_is_not_copied():
    write()
    with View("heat", version=0) as view:
        step = view._version(0).step
        before = step._stats()["bytes_copied"]
        whole, inner = view.get_sync("T/c/0/0"), view.get_sync("grid/of/pieces/c/1/0")
        assert step._stats()["bytes_copied"] == before
        assert whole.as_numpy_array().base is not None and not whole.as_numpy_array().flags.writeable
        assert inner.to_bytes() == ROWS[2:4, :4].tobytes()
        edge = np.frombuffer(view.get_sync("grid/of/pieces/c/0/1").to_bytes(), dtype="f8").reshape(2, 4)
        assert (edge[:, :2] == ROWS[:2, 4:]).all() and (edge[:, 2:] == 0).all(), "chunks at the end are full, too"
    assert (whole.as_numpy_array().view("f8") == ROWS.ravel()).all(), "it holds the version"


def test_all_versions_are_groups_and_new_ones_appear():
    with fb.open("heat", "w", retention="forever") as ch:
        view = View("heat")
        group = zarr.open_group(view, mode="r")
        assert list(group.group_keys()) == []
        for step in ch.steps(6):
            step.put("T", np.full(3, step.version))
            step.attrs["time"] = step.version
        assert sorted(group.group_keys()) == [str(i) for i in range(6)]
        for version in (5, 0, 3):
            assert group[f"{version}/T"][...].tolist() == [version] * 3 and group[str(version)].attrs["time"] == version
        for name in ("6", "00", "-1", "1/U", "x"):
            assert name not in group
        assert len(view._open_versions) <= 4
    view.close()


def test_a_dropped_version_is_missing_and_a_held_one_is_not_dropped():
    with fb.open("heat", "w", retention="last:2") as ch:
        for step in ch.steps(2):
            step.put("T", np.full(3, step.version))
        with View("heat") as view:
            assert view.get_sync("0/T/zarr.json") is not None
            for step in ch.steps(3):
                step.put("T", np.full(3, step.version))
            assert view.get_sync("0/T/c/0") is not None, "it is open here"
        for step in ch.steps(1):
            step.put("T", np.full(3, step.version))
        with View("heat") as view:
            assert view.get_sync("0/T/c/0") is None and view.get_sync("0/zarr.json") is None
            assert view.get_sync("5/T/c/0") is not None


def test_what_zarr_cannot_say_is_left_out():
    pytest.importorskip("ml_dtypes")
    import ml_dtypes

    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            step.put("b", np.zeros(2, ml_dtypes.bfloat16))
            for name in ("a//b", "..", "__x", "/lead", "zarr.json", "ok"):
                step.put(name, np.arange(2))
    with View("heat", version=0) as view:
        assert list(zarr.open_group(view, mode="r").members(max_depth=None)) != []
        assert [name for name, _ in zarr.open_group(view, mode="r").members(max_depth=None)] == ["ok"]


def test_a_chunk_with_a_gap_is_an_error_and_nothing_is_written():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            step.put("half", np.arange(2), shape=(4,), start=(0,))
    with View("heat", version=0) as view:
        with pytest.raises(fb.errors.BoxNotCovered):
            zarr.open_array(view, path="half", mode="r")[...]
        with pytest.raises(ValueError, match="read-only"):
            zarr.open_group(view, mode="r").create_array("x", shape=(2,), dtype="i4")
        with pytest.raises(ValueError):
            zarr.open_group(view, mode="w")


def test_byte_ranges_listing_and_pickling(children):
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
    from zarr.core.sync import sync

    write()
    with View("heat", version=1) as view:
        whole = view.get_sync("T/c/0/0").to_bytes()
        for request, part in (
            (RangeByteRequest(8, 24), whole[8:24]),
            (OffsetByteRequest(100), whole[100:]),
            (SuffixByteRequest(10), whole[-10:]),
            (SuffixByteRequest(10**6), whole),
        ):
            assert view.get_sync("T/c/0/0", byte_range=request).to_bytes() == part

        async def keys(found) -> list[str]:
            return [key async for key in found]

        listed = sync(keys(view.list()))
        assert len(listed) == len(set(listed)) and "grid/of/pieces/c/1/1" in listed and "none/zarr.json" in listed
        assert all(sync(view.exists(key)) and view.get_sync(key) is not None for key in listed)
        assert sync(keys(view.list_prefix("T/"))) == ["T/zarr.json", "T/c/0/0"]
        assert sorted(sync(keys(view.list_dir("grid")))) == ["of", "zarr.json"]
        assert json.loads(view.get_sync("zarr.json").to_bytes())["node_type"] == "group"
        again = pickle.loads(pickle.dumps(view))
        assert again == view and hash(again) == hash(view) and again != View("heat") and str(view).endswith("heat@1")
        code = f"import pickle, zarr; print(zarr.open_group(pickle.loads({pickle.dumps(view)!r}), mode='r')['T'][1, 1])"
        assert children.start(code).ok() == "8.0\n"


def test_as_many_pieces_as_a_grid_has_are_no_grid():
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(1):
            for start, count in ((0, 2), (2, 3), (5, 1)):
                step.put("x", np.arange(start, start + count), shape=(6,), start=(start,))
    with View("heat", version=0) as view:
        x = zarr.open_array(view, path="x", mode="r")
        assert x.chunks == (6,) and x[...].tolist() == list(range(6))


def test_many_rows_in_no_grid_are_cut_into_chunks():
    from forebay.zarr import _view as module

    with fb.open("heat", "w", retention="forever", quota="256MiB") as ch:
        for step in ch.steps(1):
            step.put("x", np.ones((1, 2)), concat=True)
            step.put("x", np.zeros((3 << 20, 2)), concat=True)
    with View("heat", version=0) as view:
        x = zarr.open_array(view, path="x", mode="r")
        assert x.shape == ((3 << 20) + 1, 2) and x.chunks == (1 << 20, 2) and module._CHUNK_BYTES == 16 << 20
        assert x[0].tolist() == [1, 1] and x[:].sum() == 2


def test_an_array_whose_name_goes_on_like_a_chunk():
    with fb.open("names", "w", retention="forever") as ch:
        for step in ch.steps(1):
            step.put("a", np.arange(4.0))
            step.put("a/c", np.arange(10.0, 13.0))
            step.put("b/c/0", 7.0)
            step.put("b", np.arange(1.0, 5.0))
    with View("names", version=0) as view:
        for name, expected in (("a", np.arange(4.0)), ("a/c", np.arange(10.0, 13.0)), ("b", np.arange(1.0, 5.0))):
            assert (zarr.open_array(view, path=name, mode="r")[...] == expected).all(), name
        assert zarr.open_array(view, path="b/c/0", mode="r")[()] == 7
        keys = list(view._keys())
        assert len(keys) == len(set(keys)) and "a/zarr.json" in keys


def test_chunks_of_a_version_that_was_dropped_are_no_zeros():
    with fb.open("heat", "w", retention="last:2") as ch:
        steps = ch.steps(12)
        next(steps).put("T", np.full(4, 5.0))
        next(steps)
        with View("heat") as view:
            array = zarr.open_group(view, mode="r")["0/T"]
            assert (array[...] == 5).all()
            # Others are read meanwhile, so that the version is held no longer.
            view._open_versions.clear()
            for step in steps:
                step.put("T", np.full(4, 6.0))
            with pytest.raises(fb.errors.VersionGone):
                array[...]
            copy = pickle.loads(pickle.dumps(view))
            with pytest.raises(fb.errors.VersionGone):
                copy.get_sync("0/T/c/0")
            assert view.get_sync("99999999999999999999999/T/c/0") is None and view.get_sync("77/zarr.json") is None


def test_a_pickled_view_does_not_show_another_space():
    write(1)
    view = View("heat", version=0)
    kept = pickle.dumps(view)
    view.close()
    fb.destroy("heat")
    write(1)
    with pytest.raises(fb.errors.VersionGone, match="another one"):
        pickle.loads(kept)
    assert view != View("heat", version=0)


def test_xarray_reads_from_a_view_what_it_has_saved():
    xr = pytest.importorskip("xarray")
    import forebay.xarray  # noqa: F401, PLC0415

    data = xr.Dataset(
        {
            "T": ("x", [1.0, np.nan, 3.0]),
            "packed": ("x", [1.0, np.nan, 2.0], {}, {"dtype": "i2", "_FillValue": -9, "scale_factor": 0.5}),
            "fill": ("x", [1.0, np.nan, 2.0], {}, {"_FillValue": -99.0}),
            "t": ("x", np.array(["2000-01-01", "2001-01-01", "NaT"], "M8[ns]")),
        }
    )
    data.forebay.save("saved")
    with View("saved", version=-1) as view:
        found = xr.open_zarr(view, consolidated=False).load()
        xr.testing.assert_equal(found[["T", "packed", "fill", "t"]], data)
