"""xarray over spaces: xarray's own tests of backends, and what is particular here."""

import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import os
import pickle
import time
import warnings
import weakref
from pathlib import Path

import forebay as fb
import numpy as np
import pytest
from forebay import errors

pytest.importorskip("xarray", reason="xarray is not installed")
pytest.importorskip("dask.array", reason="dask is not installed")

import dask
import dask.array
import forebay.xarray as fx
import xarray as xr

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # marks that only xarray's own configuration of pytest knows
    from xarray.tests import test_backends
    from xarray.tests.conftest import handle_numpy_1_warnings, time_unit, use_dask  # noqa: F401

NAMES = itertools.count()


def open_space(name, **options):
    return xr.open_dataset(f"forebay:{name}", engine="forebay", **options)


class OverSpaces:
    """The hooks of xarray's test classes: a space of one version is what they call a file."""

    engine = "forebay"
    file_format = "NETCDF4"  # what the tests ask before they write unsigned integers

    @contextlib.contextmanager
    def create_store(self):
        with fb.open("store", "w", quota="64MiB", retention="forever") as writer:
            yield _Store(writer)

    @contextlib.contextmanager
    def roundtrip(self, data, save_kwargs=None, open_kwargs=None, allow_cleanup_failure=False):
        name = f"roundtrip{next(NAMES)}"
        self.save(data, name, **(save_kwargs or {}))
        with self.open(name, **(open_kwargs or {})) as ds:
            yield ds

    def save(self, dataset, path, **kwargs):
        return dataset.forebay.save(path, quota="64MiB", **kwargs)

    @contextlib.contextmanager
    def open(self, path, **kwargs):
        with open_space(path, **kwargs) as ds:
            yield ds

    def test_load_async(self):
        """As a coroutine it would need a plugin of pytest."""
        asyncio.run(super().test_load_async())

    def test_roundtrip_example_1_netcdf(self):
        """Without its mark, which asks for a module that does not exist."""
        pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
        super().test_roundtrip_example_1_netcdf()

    def test_coordinate_variables_after_iris_roundtrip(self):
        pytest.skip("it converts a dataset by Iris, and neither reads nor writes")

    def test_append_write(self):
        pytest.skip("a complete version does not change: mode a adds a version, not variables to one")

    def test_append_overwrite_values(self):
        pytest.skip("a complete version does not change: mode a adds a version, not values to one")

    def test_append_with_invalid_dim_raises(self):
        pytest.skip("a version stands alone: dimensions of the one before do not bind it")


class _Store(fx._write.WriteStore):
    """Writes what it has collected when it is read."""

    def __init__(self, writer):
        super().__init__()
        self.writer = writer

    def load(self):
        self.writer.begin_step()
        self.finish({""})
        self.put(self.writer.step)
        self.writer.end_step()
        space = fx._space.Space.at("store")
        return fx._read.ReadStore(fx._source.one_version(space, None, 0, False)).load()


class TestCFEncoded(OverSpaces, test_backends.CFEncodedBase):
    """xarray's own tests of what a backend keeps."""


class TestCFEncodedByDask(TestCFEncoded):
    """The same with Dask arrays on both sides."""

    def save(self, dataset, path, **kwargs):
        return super().save(dataset.chunk(), path, **kwargs)

    @contextlib.contextmanager
    def roundtrip(self, data, save_kwargs=None, open_kwargs=None, allow_cleanup_failure=False):
        with super().roundtrip(data, save_kwargs, {"chunks": {}, **(open_kwargs or {})}) as ds:
            yield ds

    def test_dataset_caching(self):
        pytest.skip("Dask arrays are not cached")


@pytest.fixture
def reads(monkeypatch):
    """What has been read since: (variable, version, box)."""
    seen = []
    real = fx._source.Source.read

    def read(self, name, version, box, **more):
        seen.append((name, version, box and tuple((b.start, b.stop) for b in box)))
        return real(self, name, version, box, **more)

    monkeypatch.setattr(fx._source.Source, "read", read)
    return seen


def write(name, steps=3, **options):
    """A space with T(y, x), a time without a dimension and a grid; T is 100 * version + its index."""
    grid = np.arange(12.0).reshape(3, 4)
    with fb.open(name, "w", quota="64MiB", retention=options.pop("retention", "forever"), **options) as ch:
        ch.attrs["title"] = "a test"
        ch.attrs["stage"] = "all"
        for step in ch.steps(steps):
            step.put("T", grid + 100 * step.version, dims=("y", "x"), attrs={"units": "K"})
            step.put("clock", np.float64(step.version), dims=())
            step.put("plain", np.arange(5, dtype=np.int32))
            step.attrs["stage"] = f"step {step.version}"
    return grid


def test_the_newest_version_or_one():
    grid = write("heat")
    with open_space("heat") as ds:
        assert dict(ds.sizes) == {"y": 3, "x": 4, "plain_dim_0": 5}
        assert ds["T"].dims == ("y", "x") and ds["T"].attrs == {"units": "K"}
        assert ds.attrs == {"title": "a test", "stage": "step 2"}
        np.testing.assert_array_equal(ds["T"], grid + 200)
        assert ds["plain"].dtype == np.int32 and ds["clock"].item() == 2
    with open_space("heat", version=1) as ds:
        np.testing.assert_array_equal(ds["T"], grid + 100)
        assert ds.attrs["stage"] == "step 1"
    with xr.open_dataset("forebay:heat") as guessed, xr.open_dataset("heat", engine="forebay") as named:
        xr.testing.assert_identical(guessed, named)
    path = Path(fb.root(), "heat")
    for name in (path, f"forebay:{path}", f"forebay://{path}", "forebay://heat"):
        with xr.open_dataset(name, engine="forebay", chunks={}) as ds:
            assert ds.encoding["source"] == str(path) and ds["clock"].item() == 2


def test_what_cannot_be_opened_says_why():
    with pytest.raises(errors.PeerMissing):
        open_space("nowhere")
    write("heat", retention="last:2")
    with pytest.raises(errors.VersionGone):
        open_space("heat", version=0)
    with pytest.raises(errors.TimedOut):
        open_space("heat", version=7)
    with pytest.raises(errors.VersionGone):
        open_space("heat", step=[0, 2])
    with pytest.raises(errors.UnknownVariable, match="no group a"):
        open_space("heat", group="a")
    for wrong in ({"version": 1, "step": "all"}, {"step": "most"}, {"step": slice(5, 9)}, {"step": "all", "dim": "x"}):
        with pytest.raises(errors.Usage):
            open_space("heat", **wrong)
    with pytest.raises(errors.UsageType):
        open_space("heat", step=1.5)
    with fb.open("empty", "w", quota="16MiB"), pytest.raises(errors.TimedOut):
        open_space("empty", timeout=0.01)


def test_a_dataset_holds_its_version_until_it_is_closed_or_gone():
    with fb.open("live", "w", quota="16MiB", retention="last:1") as ch:

        def put():
            for step in ch.steps(1):
                step.put("T", np.full(4, step.version))

        put()
        closed, gone = open_space("live"), open_space("live")
        put()
        with fb.open("live", observer=True) as r:
            assert r.versions() == range(0, 2)
            assert closed["T"].load()[0] == 0
            closed.close()
            put()
            assert r.versions().start == 0
            del gone
            put()
            assert r.versions() == range(3, 4)
        assert closed["T"][0] == 0, "values are cached"
        with open_space("live", cache=False) as ds:
            assert ds["T"][0] == 3
        put()
        with pytest.raises(errors.VersionGone):
            ds["T"].load()


def test_opening_reads_nothing(reads):
    with fb.open("many", "w", quota="64MiB", retention="forever") as ch:
        for step in ch.steps(20):
            step.put_many([f"v{i}" for i in range(20)], np.full((20, 8), step.version, float))
            step.put("x", np.arange(3.0), dims=("x",))
            step.put("u", np.zeros(3), dims=("x",))
    with open_space("many", step="all", drop_variables="x") as ds:
        assert ds["v7"].shape == (20, 8) and ds["v7"].dims == ("step", "v7_dim_0")
        assert ds.chunk()["v7"].shape == (20, 8) and "v7" in repr(ds)
        assert reads == []
        assert ds["v7"].isel(step=-1, v7_dim_0=slice(2, 4)).values.tolist() == [19, 19]
        assert reads == [("v7", 19, ((2, 4),))]
    with open_space("many", step="all") as ds:
        assert {name for name, _, _ in reads[1:]} == {"x"}, "xarray indexes it"
        assert list(ds.indexes) == ["step", "x"] and ds["x"].dims == ("x",)


def test_versions_along_a_first_dimension():
    grid = write("heat", steps=5)
    expected = np.stack([grid + 100 * v for v in range(5)])
    with open_space("heat", step="all") as ds:
        assert ds["T"].dims == ("step", "y", "x") and ds["step"].values.tolist() == [0, 1, 2, 3, 4]
        lazy = ds["T"].variable
        for key in (
            np.s_[:], np.s_[2], np.s_[1:4, 1], np.s_[::-2, :, ::3], np.s_[:, 1, 2], np.s_[-1, ..., 0], np.s_[0:0],
            np.s_[[3, 0, 3], :, [1, 0]], np.s_[:, [], 1],
        ):  # fmt: skip
            # xarray indexes each axis for itself.
            lists = sum(isinstance(k, list) for k in (key if isinstance(key, tuple) else ()))
            want = expected[key] if lists < 2 else expected[np.ix_([3, 0, 3], range(3), [1, 0])]
            np.testing.assert_array_equal(lazy[key], want)
        assert ds["clock"].values.tolist() == [0, 1, 2, 3, 4]
        assert float(ds["T"].sel(step=3).mean()) == expected[3].mean()
    for chosen, versions in ((slice(1, 4), [1, 2, 3]), (slice(None, None, 2), [0, 2, 4]), ([4, 1], [4, 1])):
        with open_space("heat", step=chosen, dim="v") as ds:
            assert ds["v"].values.tolist() == versions
            np.testing.assert_array_equal(ds["T"], expected[versions])


def test_a_version_that_does_not_fit_is_an_error_when_it_is_read():
    with fb.open("odd", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(4):
            x = np.arange(3.0) + (step.version == 2)
            step.put("x", x, dims=("x",))
            step.put("u", x, dims=("x",))
            step.put("free", np.zeros(2), dims=("n",))
            if step.version != 1:
                step.put("sometimes", np.zeros(2), dims=("n",))
            step.put("grows", np.zeros(4 if step.version == 3 else 3))
            step.put("packed", np.arange(2), dims=("n",), attrs={"scale_factor": 0.5 if step.version else 0.25})
            step.put("kind", np.arange(2, dtype="f4" if step.version == 0 else "f8"), dims=("n",))
    with open_space("odd", step="all") as ds:
        assert ds["free"].values.shape == (4, 2)
        for name, version, error, said in (
            ("sometimes", 1, errors.UnknownVariable, "version 1 has no variable sometimes"),
            ("grows", 0, errors.VariableMismatch, r"version 0 the shape \(3,\) instead of \(4,\)"),
            ("packed", 0, errors.VariableMismatch, "scale_factor 0.25 instead of 0.5"),
            ("kind", 0, errors.VariableMismatch, "dtype float32 instead of float64"),
            ("u", 2, errors.VariableMismatch, "coordinate x has other values in version 2"),
        ):
            for _ in range(2):
                with pytest.raises(error, match=said) as e:
                    ds[name].isel(step=version).load()
            assert e.value.hint
            others = [v for v in (3, 2 if name != "u" else 1) if name != "grows" or v == 3]
            assert ds[name].isel(step=others).values.shape[0] == len(others)
    with open_space("odd", step="all") as ds:
        # With the third variable of a version all others are compared, too.
        fitting = {0: ["free", "sometimes", "u"], 1: ["free", "u", "kind"]}
        odd = {0: ["packed", "kind", "grows"], 1: ["sometimes"]}
        for version in (0, 1):
            for name in fitting[version]:
                ds[name].isel(step=version).load()
            for name in odd[version]:
                with pytest.raises((errors.VariableMismatch, errors.UnknownVariable)):
                    ds[name].isel(step=version).load()
    with open_space("odd", step="all", drop_variables="x") as ds:
        assert ds["u"].values[:, 0].tolist() == [0, 0, 1, 0]
    # Sent to another process it knows its own variable only.
    with open_space("odd", step="all", chunks={}) as ds:
        lost = pickle.loads(pickle.dumps(ds["sometimes"]))
        assert lost[2].compute().shape == (2,)
        with pytest.raises(errors.UnknownVariable):
            lost[1].compute()


def test_coordinates_that_are_stored_alike_and_decoded_otherwise_do_not_fit():
    with fb.open("odd", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(2):
            since = {"units": f"days since 200{step.version}-01-01"}
            step.put("time", np.arange(3.0), dims=("time",), attrs=since)
            step.put("x", np.arange(2), dims=("x",), attrs={"scale_factor": 1.0 + step.version})
            step.put("n", np.arange(2, dtype=f"i{4 + 4 * step.version}"), dims=("n",))
            for name, size in (("time", 3), ("x", 2), ("n", 2)):
                step.put(f"of_{name}", np.zeros(size), dims=(name,))
    with open_space("odd", step="all", chunks={}) as ds:
        for sent in (ds, pickle.loads(pickle.dumps(ds))):
            for name, said in (("time", "units 'days"), ("x", "scale_factor 1.0 instead of 2.0"), ("n", "dtype")):
                assert sent[f"of_{name}"][1].values.sum() == 0
                with pytest.raises(errors.VariableMismatch, match=f"coordinate {name} has in version 0 the {said}"):
                    sent[f"of_{name}"][0].load()


def test_coordinates_that_are_texts_are_indexes():
    for version in range(3):
        ds = xr.Dataset({"a": ("x", np.arange(2) + version)}, {"x": ["c", "b"] if version == 1 else ["aa", "b"]})
        ds.forebay.save("words", mode="a", quota="16MiB")
    with open_space("words", step=[0, 2]) as ds:
        assert ds["x"].dims == ("x",) and list(ds.indexes) == ["step", "x"]
        assert ds["a"].sel(x="b").values.tolist() == [1, 3]
    with open_space("words", step="all") as ds, pytest.raises(errors.VariableMismatch, match="coordinate x"):
        ds["a"].load()


def test_texts_of_another_length_say_so():
    for words in (["a", "bc"], ["abc", "d"]):
        xr.Dataset({"some": ("n", words)}).forebay.save("words", mode="a", quota="16MiB")
    with open_space("words", step="all") as ds, pytest.raises(errors.VariableMismatch, match="longest text of 2 bytes"):
        ds["some"].load()


def test_times_that_differ_are_named_when_they_are_opened():
    with fb.open("sim", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(2):
            step.put("T", np.arange(2) + step.version, dims=("n",))
            if step.version:
                step.put("when", np.arange(2), dims=("n",), attrs={"units": "days since 2000-01-01"})
    with pytest.raises(errors.UnknownVariable, match="no variable when") as e:
        open_space("sim", step="all")
    assert "decode_times=False" in e.value.hint
    with open_space("sim", step="all", decode_times=False) as ds:
        assert ds["T"].values.tolist() == [[0, 1], [1, 2]]


def test_a_slice_counts_versions_from_its_own_start():
    with fb.open("live", "w", quota="16MiB", retention="last:3") as ch:
        for step in ch.steps(10):
            step.put("a", np.full(2, step.version))
    for chosen in (
        slice(0, 100, 3), slice(None, None, 3), slice(8, None), slice(None, 8), slice(2**70), slice(9, None, -1),
        slice(None, None, -1), slice(100, 6, -1), slice(10**6, None, -2), slice(8, 7, -1), slice(np.int64(3), 9, 5),
    ):  # fmt: skip
        start, stop, stride = chosen.start, chosen.stop, chosen.step or 1
        wanted = range(
            (9 if stride < 0 else 7) if start is None else start,
            min(10**7, stop if stop is not None else -1 if stride < 0 else 10),
            stride,
        )
        with open_space("live", step=chosen) as ds:
            assert ds["step"].values.tolist() == [v for v in wanted if v in (7, 8, 9)], chosen
            assert ds["a"].values[:, 0].tolist() == ds["step"].values.tolist()
    wrong = (slice(-2, None), slice(None, -1), slice(9, -1, -1), slice(None, None, 0), slice(3, 7), slice(0, 8, 9))
    for chosen in (*wrong, [-1]):
        with pytest.raises(errors.Usage):
            open_space("live", step=chosen)
    for chosen in ([7.9], ["7"], slice(7.5, None), slice("7", None)):
        with pytest.raises(errors.UsageType):
            open_space("live", step=chosen)


def test_large_pieces_are_views_and_everything_else_is_a_copy():
    big = np.arange(1 << 18, dtype=np.float64).reshape(512, 512)
    with fb.open("big", "w", quota="64MiB", retention="forever") as ch:
        for step in ch.steps(2):
            step.put("whole", big)
            for half in (0, 256):
                step.put("halves", big[half : half + 256], big.shape, (half, 0))
    for options in ({}, {"step": "all"}):
        with open_space("big", **options) as ds:
            last = ds.isel(step=-1) if options else ds
            whole, halves = last["whole"].values, last["halves"].values
            assert not whole.flags.owndata and not whole.flags.writeable
            assert last["halves"][:256, :].values.base is not None
            assert np.shares_memory(whole, open_space("big")["whole"].values)
            assert not np.shares_memory(halves, open_space("big")["halves"].values)
            small = open_space("big")["whole"][:8].values
            assert not np.shares_memory(whole, small) and not small.flags.writeable
            np.testing.assert_array_equal(halves, big)
            assert not halves.flags.writeable and not ds["whole"].values.flags.writeable
    with open_space("big", copy=True) as ds:
        own = ds["whole"].values
        own[0, 0] = 7
        assert ds["whole"][0, 0] == 7 and ds["halves"].values.flags.writeable
    with open_space("big") as ds:
        assert ds["whole"].values[0, 0] == 0


def test_scattered_indices_are_not_read_as_one_range(reads):
    data = np.arange(40_000).reshape(10_000, 4)
    with fb.open("long", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(2):
            step.put("a", data + step.version)
    indices = [9_000, 3, 17, 3, 9_001]
    with open_space("long", cache=False) as ds:
        np.testing.assert_array_equal(ds["a"].variable[indices], data[indices] + 1)
        assert reads == [("a", 1, ((3, 18), (0, 4))), ("a", 1, ((9_000, 9_002), (0, 4)))]
        np.testing.assert_array_equal(ds["a"].variable[indices, 2], data[indices, 2] + 1)
        np.testing.assert_array_equal(ds["a"].variable[[3, 5]], data[[3, 5]] + 1)
        np.testing.assert_array_equal(ds["a"].variable[[3, 3, 900]], data[[3, 3, 900]] + 1)
    with open_space("long", step="all", cache=False) as ds:
        np.testing.assert_array_equal(ds["a"].variable[:, indices, 1:3], np.stack([data, data + 1])[:, indices, 1:3])


@pytest.mark.parametrize("options", [{}, {"step": "all"}, {"chunks": {}}], ids=["one", "all", "dask"])
def test_indices_that_are_a_little_apart_are_one_range(options, reads):
    with fb.open("long", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(2):
            step.put("a", np.arange(1000), dims=("x",))
    with open_space("long", cache=False, **options) as ds:
        for gap in (4, 5, 10, 16, 17):
            some = np.arange(0, 1000, gap)
            mask = np.isin(np.arange(1000), some)
            for key in (some, some[::-1], mask, xr.DataArray(some, dims="p")):
                found = np.atleast_2d(ds["a"].isel(x=key).values)[0]
                assert found.tolist() == np.arange(1000)[key].tolist()
            if gap == 10 and not options:
                assert reads[-1] == ("a", 1, ((0, 991),))


@pytest.mark.parametrize(
    ("length", "pieces", "chunks"),
    [
        (8, [(0, 4), (4, 4)], (4, 4)),
        (7, [(0, 3), (3, 3), (6, 1)], (3, 3, 1)),
        (7, [(0, 2), (2, 5)], (2, 5)),
        (8, [(0, 5), (3, 5)], (3, 5)),
        (8, [(0, 8)], (8,)),
    ],
    ids=["even", "rest", "uneven", "halo", "one"],
)
def test_chunks_follow_the_pieces(length, pieces, chunks):
    data = np.arange(length * 2.0).reshape(2, length)
    with fb.open("cut", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(2):
            for start, count in pieces:
                step.put("a", data[:, start : start + count], data.shape, (0, start), dims=("y", "x"))
    with open_space("cut", chunks={}) as ds, open_space("cut", step="all", chunks={}) as both:
        assert ds["a"].chunks == ((2,), chunks)
        assert both["a"].chunks == ((1, 1), (2,), chunks)
        np.testing.assert_array_equal(ds["a"], data)
        np.testing.assert_array_equal(both["a"], [data, data])


def test_scattered_pieces_are_not_followed():
    with fb.open("amr", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(1):
            for i in range(64):
                step.put("a", np.full((1, 1), i), (64, 64), (i, i), dims=("y", "x"))
    with open_space("amr", chunks={}) as ds:
        assert ds["a"].chunks == ((64,), (64,))


def names(*datasets, name="T"):
    return [ds[name].data.name for ds in datasets]


def test_dask_names_say_what_is_shown():
    """The same text shows another version later; Dask must not take one for the other."""
    grid = write("heat", steps=1)
    before, again = open_space("heat", chunks={}), open_space("heat", chunks={})
    assert len({*names(before, again)}) == 1
    again.close()
    with fb.open("heat", "a") as ch:
        for step in ch.steps(1):
            step.put("T", grid + 5, dims=("y", "x"))
    after = open_space("heat", chunks={})
    assert names(before) != names(after)
    np.testing.assert_array_equal(after["T"] - before["T"], np.full((3, 4), 5.0))
    assert names(after) != names(open_space("heat", chunks={}, step="all"))
    with open_space("heat") as ds:
        one, other = ds["T"].chunk(), open_space("heat", version=1)["T"].chunk()
        assert one.data.name == other.data.name
        assert one.data.name != open_space("heat", version=0)["T"].chunk().data.name


def test_names_are_the_same_in_another_process(children):
    write("heat")
    code = """
        import xarray as xr
        print(xr.open_dataset("forebay:heat", engine="forebay", chunks={})["T"].data.name)
        """
    with open_space("heat", chunks={}) as ds:
        assert [children.start(code).ok().strip() for _ in range(2)] == names(ds) * 2


def test_other_processes_compute():
    grid = write("heat", steps=4)
    with open_space("heat", step="all", chunks={}) as ds, dask.config.set(scheduler="processes", num_workers=2):
        assert ds["T"].mean().compute().item() == (grid + 150).mean()


def test_what_is_pickled_opens_the_space_again_unless_it_was_replaced(children):
    grid = write("heat")
    with open_space("heat", version=1) as ds:
        sent = pickle.dumps(ds)
        np.testing.assert_array_equal(pickle.loads(sent)["T"], grid + 100)
    write("heat")
    with pytest.raises(errors.VersionGone, match="replaced"):
        pickle.loads(sent)["T"].load()


def test_a_child_that_is_forked_reads_and_releases_nothing():
    with fb.open("live", "w", quota="16MiB", retention="last:1") as ch:
        for step in ch.steps(1):
            step.put("a", np.arange(3))
        ds = open_space("live", cache=False)
        pid = os.fork()
        if pid == 0:
            right = ds["a"].values.tolist() == [0, 1, 2]
            ds.close()
            del ds
            os._exit(0 if right else 1)
        assert os.waitpid(pid, 0)[1] == 0
        for step in ch.steps(3):
            step.put("a", np.zeros(3))
        assert ds["a"].values.tolist() == [0, 1, 2]


def test_a_replaced_space_is_opened_as_it_is_now():
    write("heat", steps=1)
    old = open_space("heat", cache=False)
    old.close()
    grid = write("heat", steps=2)
    with open_space("heat") as ds:
        np.testing.assert_array_equal(ds["T"], grid + 100)


def test_following_a_live_space(children):
    code = """
        with fb.open("live", "w", quota="8MiB", readers={"ana": 1}) as ch:
            for step in ch.steps(20):
                step.put("T", np.full((512, 256), step.version, float), dims=("y", "x"))
                step.attrs["time"] = step.version / 4
        """
    writer = children.start(code)
    seen = []
    # A version takes 1 MiB of 8: versions that were held on would stop the writer.
    for ds in fx.follow("live", timeout=30, component="ana"):
        seen.append((ds.attrs["time"], ds["T"].values.mean(), ds["T"].mean()))
    assert [(t, m, x.item()) for t, m, x in seen] == [(v / 4, v, v) for v in range(20)]
    writer.ok()


def test_a_follower_goes_on_after_a_timeout_and_takes_options():
    with fb.open("live", "w", quota="16MiB") as ch:
        options = {"chunks": {}, "drop_variables": "b"}
        with fx.follow("live", timeout=0.01, component="ana", open_options=options) as follower:
            for version in range(3):
                with pytest.raises(errors.TimedOut):
                    next(follower)
                for step in ch.steps(1):
                    step.put("a", np.full(3, version))
                    step.put("b", np.zeros(3))
                ds = next(follower)
                assert list(ds) == ["a"] and ds["a"].chunks == ((3,),)
                assert ds["a"].values.tolist() == [version] * 3 and follower.missed == 0
            assert fb.inspect("live")["readers"][0]["version_min"] is not None
        assert fb.inspect("live")["readers"][0]["version_min"] is None, "it has left"
        assert list(follower) == []
    with pytest.raises(errors.PeerMissing):
        fx.follow("nowhere", timeout=0)
    for key, value in (("version", 1), ("step", "all"), ("dim", "t"), ("timeout", 1)):
        with pytest.raises(errors.Usage, match=key):
            fx.follow("live", timeout=0, open_options={key: value})


def test_follow_releases_a_version_when_the_next_one_is_asked_for():
    with fb.open("live", "w", quota="16MiB", retention="last:1") as ch, fx.follow("live", component="ana") as follower:
        kept = []
        for version in range(3):
            for step in ch.steps(1):
                step.put("a", np.full(3, version))
            kept.append(next(follower))
        with pytest.raises(errors.VersionGone):
            kept[0]["a"].load()
        assert kept[2]["a"].values.tolist() == [2, 2, 2]


def dataset(hours=0, scale=1.0):
    return xr.Dataset(
        {"T": (("y", "x"), scale * np.arange(6, dtype="f4").reshape(2, 3), {"units": "K"})},
        {"x": [10, 20, 30], "time": np.datetime64("2000-01-01T00", "ns") + np.timedelta64(hours, "h")},
        {"title": "a test"},
    )


def test_each_save_appends_a_version():
    units = {"time": {"units": "seconds since 2000-01-01", "dtype": "int64"}}
    assert dataset().forebay.save("out", mode="a", encoding=units, quota="16MiB") == 0
    second = dataset(hours=7, scale=2)
    assert second.forebay.save("out", mode="a") == 1
    assert second["time"].encoding == second["x"].encoding == {}
    wide = dataset(hours=8)
    wide["T"] = wide["T"].astype("f8")
    assert wide["T"].to_dataset(name="T").assign_coords(time=wide["time"]).forebay.save("out", mode="a") == 2
    with open_space("out", step="all") as ds:
        assert ds["time"].values.tolist() == [dataset(h)["time"].values.astype("M8[ns]").item() for h in (0, 7, 8)]
        assert ds["T"].dtype == np.float32 and ds["T"].attrs == {"units": "K"}
        np.testing.assert_array_equal(ds["T"].isel(step=1), dataset(scale=2)["T"])
    with open_space("out", version=0) as ds:
        xr.testing.assert_identical(ds, dataset())
    assert dataset().forebay.save("out", quota="16MiB") == 0
    with fb.open("out", observer=True) as r:
        assert r.versions() == range(0, 1)
    with pytest.raises(errors.NameInUse):
        dataset().forebay.save("out", mode="x")
    with pytest.raises(errors.Usage):
        dataset().forebay.save("out", mode="r")


def test_an_appended_version_that_needs_another_encoding_is_refused():
    dataset().forebay.save("out", quota="16MiB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # xarray says that days are not enough
        with pytest.raises(errors.VariableMismatch, match="time") as e:
            dataset(hours=7).forebay.save("out", mode="a")
        assert "encoding" in e.value.hint
        hours = {"time": {"units": "hours since 2000-01-01"}}
        assert dataset(hours=7).forebay.save("out", mode="a", encoding=hours) == 1
    with open_space("out") as ds:
        xr.testing.assert_identical(ds, dataset(hours=7))
    with pytest.raises(errors.VariableMismatch, match=r"units.*instead of"):
        open_space("out", step="all", decode_times=False)["time"].load()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.array([1, 2]), np.array([1.5, 2])),
        (np.array([1, 2]), np.array([1, np.nan])),
        (np.array([1, 2]), np.array([1, 1e30])),
        (np.array([1, 2], "i4"), np.array([2**40, 2])),
        (np.array([1, 2], "u1"), np.array([-1, 2])),
        (np.array([1, 2], "i8"), np.array([2**63 + 5, 2], "u8")),
        (np.array([True, False]), np.array([2, 0])),
        (np.array([1.0, 2]), np.array([1 + 2j, 2])),
        (np.array([1, 2], "f4"), np.array([1e300, 2])),
        (np.array([1.0, 2]), np.array([2**53 + 1, 2])),
        (np.array([1, 2]), np.array([1.5, 2.5], object)),
        (np.array([1, 2]), np.array(["a", "b"])),
        (np.array(["a", "b"]), np.array([1, 2])),
        (np.array(["2000-01-01", "2000-01-02"], "M8[ns]"), np.array([1, 2], "m8[s]")),
        (np.array([1, 2], "m8[s]"), np.array(["2000-01-01", "2000-01-02"], "M8[ns]")),
        (np.array([1, 2]), np.array(["2000-01-01", "2000-01-02"], "M8[ns]")),
        (np.array(["2000-01-01", "2000-01-02"], "M8[ns]"), np.array(["a", "b"])),
        (np.array(["2000-01-01", "2000-01-02"], "M8[ns]"), np.array(["2000-01-01T12", "2000-01-02"], "M8[ns]")),
    ],
    ids=lambda array: f"{array.dtype}-{array[0]}",
)
@pytest.mark.parametrize("lazily", [False, True], ids=["memory", "dask"])
@pytest.mark.filterwarnings("ignore")
def test_values_that_the_encoding_before_cannot_hold_are_refused(first, second, lazily):
    if lazily and second.dtype == object:
        pytest.skip("xarray computes arrays of objects")
    xr.Dataset({"a": ("x", first), "b": ("x", first)}).forebay.save("out", quota="16MiB")
    added = xr.Dataset({"a": ("x", first), "b": ("x", second)})
    added = added.chunk(x=1) if lazily else added
    with pytest.raises(errors.VariableMismatch, match="variable b") as e:
        added.forebay.save("out", mode="a")
    assert "encoding" in e.value.hint
    with open_space("out") as ds:
        assert ds["a"].values.tolist() == first.tolist()
    assert added.forebay.save("out", mode="a", encoding={"b": {}}) == 1
    with open_space("out") as ds:
        np.testing.assert_array_equal(ds["b"], second)


@pytest.mark.parametrize("lazily", [False, True], ids=["memory", "dask"])
def test_values_that_the_encoding_before_can_hold_are_added(lazily):
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 300.0, "_FillValue": -32768}
    first = xr.Dataset({"ints": ("x", [1, 2]), "packed": ("x", [280.0, np.nan]), "short": ("x", np.float32([1, 2]))})
    first["when"] = ("x", np.array(["2000-01-01", "2000-01-02"], "M8[ns]"))
    first.forebay.save("out", quota="16MiB", encoding={"packed": packed})
    second = first.assign(ints=("x", [3.0, -4.0]), packed=("x", [np.nan, 290.126]), short=("x", [0.1, np.inf]))
    second["when"] = ("x", np.array(["2000-02-01", "NaT"], "M8[ns]"))
    assert (second.chunk(x=1) if lazily else second).forebay.save("out", mode="a") == 1
    with open_space("out", step="all") as ds:
        assert ds["ints"].values.tolist() == [[1, 2], [3, -4]]
        np.testing.assert_allclose(ds["packed"][1], [np.nan, 290.13])
        np.testing.assert_array_equal(ds["short"][1], np.float32([0.1, np.inf]))
        np.testing.assert_array_equal(ds["when"][1], second["when"])
    for wrong in (1e5, np.inf):
        third = second.assign(packed=("x", [280.0, wrong]))
        with warnings.catch_warnings(), pytest.raises(errors.VariableMismatch, match="variable packed"):
            warnings.simplefilter("ignore")
            (third.chunk(x=1) if lazily else third).forebay.save("out", mode="a")


@pytest.mark.parametrize("lazily", [False, True], ids=["memory", "dask"])
def test_times_that_were_not_decoded_are_added(lazily):
    xr.Dataset({"when": ("x", np.array(["2000-01-01", "2000-01-02"], "M8[ns]"))}).forebay.save("out", quota="16MiB")
    with open_space("out", decode_times=False) as ds:
        raw = ds.load() + 1
        raw["when"].attrs = ds["when"].attrs
    assert (raw.chunk(x=1) if lazily else raw).forebay.save("out", mode="a") == 1
    with open_space("out") as ds:
        assert ds["when"].dt.day.values.tolist() == [2, 3]


def test_arrays_without_elements_are_saved():
    ds = xr.Dataset({"a": (("y", "x"), np.empty((0, 3)), {"units": "m"}), "b": ("x", np.arange(3.0))})
    ds["words"] = ("y", np.array([], "U"))
    ds.forebay.save("cut", quota="16MiB", encoding={"a": {"chunksizes": (2, 2)}})
    ds.chunk(x=2).forebay.save("lazy", quota="16MiB")
    for name in ("cut", "lazy"):
        with open_space(name) as found:
            assert set(found.variables) == {"a", "b", "words"} and found["words"].shape == (0,)
            xr.testing.assert_identical(found["a"], ds["a"])


def test_what_cannot_be_saved_replaces_nothing():
    dataset().forebay.save("out", quota="16MiB")
    wrong = [
        dataset().set_index(x="x").stack(n=("y", "x")),
        dataset().assign({"a/b": 1}),
        dataset().assign_attrs(a=None),
        dataset().assign_attrs({"": 1}),
        dataset().assign_attrs({"forebay.xarray.a": 1}),
        dataset().assign_attrs({1: 1}),
        dataset().assign_attrs(a=[1, "b"]),
        dataset().assign_attrs(a=np.zeros((2, 2))),
    ]
    for ds in wrong:
        with pytest.raises((errors.Usage, NotImplementedError)):
            ds.forebay.save("out")
    with pytest.raises(errors.Usage, match="chunksizes"):
        dataset().forebay.save("out", encoding={"T": {"chunksizes": (2,)}})
    with open_space("out") as ds:
        xr.testing.assert_identical(ds, dataset())


def test_a_put_that_fails_leaves_no_version():
    big = xr.Dataset({"a": ("x", np.zeros(1 << 20))})
    with pytest.raises(errors.VersionTooLarge):
        big.forebay.save("small", quota="1MiB")
    with pytest.raises(errors.PeerMissing, match="ended before version 0"):
        open_space("small")
    assert dataset().forebay.save("small", mode="a") == 0


def failing(after=2):
    """Data whose second chunk cannot be computed."""

    def compute(block, block_info=None):
        if block_info[0]["chunk-location"] == (1,):
            raise ArithmeticError("no such chunk")
        return block

    return xr.Dataset({"a": ("x", dask.array.arange(4.0, chunks=after).map_blocks(compute, dtype=float))})


def test_a_save_that_fails_is_no_writer_that_died():
    """Who follows sees the end, the versions before stay, and the next save goes on or starts over."""
    fine = failing().isel(x=slice(0, 2))
    assert fine.forebay.save("out", quota="16MiB") == 0
    with pytest.raises(ArithmeticError):
        failing().forebay.save("out", mode="a")
    assert [ds["a"].values.tolist() for ds in fx.follow("out", timeout=20, finished=True, component="ana")] == [[0, 1]]
    assert fine.forebay.save("out", mode="a") == 1
    for mode in ("w", "a"):
        with pytest.raises(ArithmeticError):
            failing().forebay.save("out", quota="16MiB")
        assert list(fx.follow("out", timeout=20, finished=True, component="ana")) == []
        assert fine.forebay.save("out", mode=mode) == 0
    with open_space("out", step="all") as ds:
        assert ds["a"].values.tolist() == [[0, 1]]


def test_threads_save_into_one_space_one_after_the_other():
    def save(number):
        return [dataset(scale=number).forebay.save("out", mode="a", quota="64MiB") for _ in range(5)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        versions = [version for saved in pool.map(save, range(4)) for version in saved]
    assert sorted(versions) == list(range(20))


def test_one_rank_of_a_group_puts():
    ds = dataset().assign(one=((), "text"), some=("n", ["a", "bc"]), none=("n0", np.empty(0)))
    ds["lazy"] = ds["T"].chunk(x=2)

    def write(rank):
        with fb.open("group", "w", rank=rank, size=2, quota="16MiB", retention="forever") as ch:
            for step in ch.steps(2):
                if rank == step.version:
                    ds.forebay.put(step)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    for version in range(2):
        with open_space("group", version=version) as found:
            xr.testing.assert_identical(found, ds)


def test_a_rank_of_a_program_saves_by_itself(children):
    code = """
        import xarray as xr, forebay.xarray
        print(xr.Dataset({"a": ("x", np.arange(3))}).forebay.save(f"out{os.environ['FOREBAY_RANK']}", quota="16MiB"))
        """
    assert [child.ok().strip() for child in children.group(code, 2)] == ["0", "0"]
    with open_space("out1") as ds:
        assert ds["a"].values.tolist() == [0, 1, 2]


def test_pieces_are_the_chunks_that_are_saved():
    data = np.arange(48.0).reshape(6, 8)
    ds = xr.Dataset({"a": (("y", "x"), data), "b": (("y", "x"), data)})
    ds["a"] = ds["a"].chunk(y=4, x=3)
    ds.forebay.save("cut", quota="16MiB", encoding={"b": {"chunksizes": (6, 5)}}, retention="last:2")
    with fb.open("cut", observer=True) as r, r.open_version(0) as step:
        pieces = {name: sorted((p.start, p.count) for p in step.variables[name].pieces) for name in "ab"}
        assert len(pieces["a"]) == 6 and pieces["a"][0] == ((0, 0), (4, 3)) and pieces["a"][-1] == ((4, 6), (2, 2))
        assert pieces["b"] == [((0, 0), (6, 5)), ((0, 5), (6, 3))]
        assert r.info()["retention"] == "last:2"
        assert {step.variables[name].dims for name in "ab"} == {("y", "x")}
    with open_space("cut", chunks={}) as found:
        assert found["a"].chunks == ((4, 2), (3, 3, 2))
        xr.testing.assert_equal(found, ds)


def test_an_array_of_texts_is_cut_as_the_caller_sees_it():
    ds = xr.Dataset({"some": ("n", ["a", "bcd", "ef"]), "empty": ("n", ["", "", ""])})
    ds.forebay.save("cut", quota="16MiB", encoding={name: {"chunksizes": (2,)} for name in ds})
    with fb.open("cut", observer=True) as r, r.open_version(0) as step:
        assert [p.count for p in step.variables["some"].pieces] == [(2, 3), (1, 3)]
    with open_space("cut") as found:
        xr.testing.assert_equal(found, ds)


def test_another_process_cannot_put():
    ds = dataset().chunk()
    with dask.config.set(scheduler="processes", num_workers=1), pytest.raises(errors.Usage, match="another process"):
        ds.forebay.save("out", quota="16MiB")


def test_put_into_a_step_of_a_simulation():
    units = {"time": {"units": "hours since 2000-01-01"}}
    with fb.open("sim", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(3):
            dataset(hours=step.version).forebay.put(step, encoding=units)
            step.put("more", np.zeros(2))
    with open_space("sim", step="all") as ds:
        assert ds["time"].dt.hour.values.tolist() == [0, 1, 2] and ds["more"].shape == (3, 2)


def test_texts_and_flags_are_stored_as_such():
    ds = xr.Dataset({"one": ((), "gr\u00fcn"), "some": ("n", ["a", "\u00fc", ""]), "flag": ("n", [True, False, True])})
    ds["bytes"] = ("n", np.array([b"ab", b"c", b""]))
    for _ in range(2):
        ds.forebay.save("words", mode="a", quota="16MiB")
    with fb.open("words", observer=True) as r, r.open_version(0) as step:
        assert step.text("one") == "gr\u00fcn" and step["flag"].dtype == bool
        assert step.variables["some"].dims == ("n", "string2") and step["some"].dtype == np.uint8
    with open_space("words") as found:
        xr.testing.assert_identical(found, ds)
    with open_space("words", step="all") as found:
        assert found["one"].values.tolist() == ["gr\u00fcn"] * 2 and found["one"][1].item() == "gr\u00fcn"
        assert found["some"].values.tolist() == [["a", "\u00fc", ""]] * 2
        assert found["bytes"].dtype == "S2" and found["bytes"].values[1].tolist() == [b"ab", b"c", b""]


@pytest.mark.parametrize(
    "value",
    [
        "text", "", True, 3, -(2**63), 2**64, 0.5, 1j, b"\x00\xff", [1, 2], [0.5, 1], ["a", "b"], [True, False], [],
        np.float32(0.1), np.uint8(3), np.uint64(2**64 - 1), np.complex64(1 + 2j), np.bool_(True), np.array(3, "i2"),
        np.array([1, 2], "i2"), np.array([2**64 - 1, 0], "u8"), np.array([0.1, np.nan], "f4"), np.array([True, False]),
        np.array([1j, 2], "c8"), np.array(["a", "bc"]), np.array([b"a", b"\xff"]), np.array([], "f4"),
        [np.float32(1), np.float32(2)], (1, 2),
    ],
    ids=repr,
)  # fmt: skip
def test_attributes_keep_value_and_type(value):
    ds = xr.Dataset({"a": ((), 1, {"key": value})}, attrs={"key": value})
    ds.forebay.save("out", quota="16MiB")
    with open_space("out") as found:
        for attrs in (found.attrs, found["a"].attrs):
            assert list(attrs) == ["key"]
            got = attrs["key"]
            np.testing.assert_array_equal(got, value)
            if isinstance(value, np.ndarray | np.generic):
                assert np.asarray(got).dtype.kind == value.dtype.kind
                assert value.dtype.kind in "SU" or np.asarray(got).dtype == value.dtype
            else:
                assert type(got) is type(value) or isinstance(value, tuple) or isinstance(value[0], np.generic)


def test_fill_values_of_other_programs_get_the_dtype_of_the_variable():
    with fb.open("sim", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(1):
            fill = {"_FillValue": 1e20, "valid_range": [0, 9]}
            step.put("a", np.array([1, 1e20], np.float32), dims=("n",), attrs=fill)
            step.put("b", np.array([1, -9], np.int16), dims=("n",), attrs={"_FillValue": -9.0, "scale_factor": 0.5})
            step.put("c", np.array([1, 2], np.int8), dims=("n",), attrs={"_FillValue": 1000})
    with open_space("sim", decode_cf=False) as ds:
        assert ds["a"].attrs["_FillValue"] == np.float32(1e20) and ds["a"].attrs["_FillValue"].dtype == np.float32
        assert ds["a"].attrs["valid_range"].dtype == np.float32 and ds["b"].attrs["_FillValue"].dtype == np.int16
        assert ds["c"].attrs["_FillValue"] == 1000
    with open_space("sim", drop_variables="c") as ds:
        assert np.isnan(ds["a"].values).tolist() == [False, True]
        np.testing.assert_array_equal(ds["b"], [0.5, np.nan])


def test_trees_are_groups():
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"T": ("x", [1.0, 2.0])}, {"x": [1, 2]}, {"title": "root", "km/h": 1}),
            "/ocean": xr.Dataset({"T": ("x", [3.0, 4.0], {"units": "K"})}, attrs={"title": "ocean"}),
            "/ocean/deep": xr.Dataset({"T": ("z", [5])}, attrs={"a/b": np.float32(1)}),
            "/air/nothing": xr.Dataset(),
        }
    )
    tree.forebay.save("earth", quota="16MiB", encoding={"/ocean": {"T": {"dtype": "f4"}}})
    with fb.open("earth", observer=True) as r, r.open_version(0) as step:
        assert {"T", "ocean/T", "ocean/deep/T"} <= set(step) and step["ocean/T"].dtype == np.float32
        assert step.attrs["ocean/title"] == "ocean"
    with xr.open_datatree("forebay:earth", engine="forebay") as found:
        xr.testing.assert_identical(found, tree)
    with open_space("earth", group="/ocean") as ds:
        assert ds["T"].values.tolist() == [3, 4] and ds.attrs == {"title": "ocean"}
    with open_space("earth") as ds:
        assert list(ds.variables) == ["T", "x"]
    groups = xr.open_groups("forebay:earth", engine="forebay", group="ocean")
    assert list(groups) == ["/", "/deep"] and groups["/deep"].attrs == {"a/b": 1}
    for of_deep in ("deep", "/deep", "/ocean/deep"):
        encoding = {"/ocean": {"T": {"dtype": "f4"}}, of_deep: {"T": {"dtype": "i2"}}}
        tree["ocean"].forebay.save("part", quota="16MiB", encoding=encoding)
        with open_space("part") as top, open_space("part", group="deep") as ds:
            assert top["T"].dtype == np.float32 and ds["T"].dtype == np.int16 and ds["T"].item() == 5
    with pytest.raises(errors.Usage, match="air"):
        tree["ocean"].forebay.save("part", encoding={"/air": {}})
    tree.forebay.save("earth", mode="a")
    with xr.open_datatree("forebay:earth", engine="forebay", step="all", chunks={}) as found:
        assert found["ocean/T"].dims == ("step", "x") and found["ocean/T"].mean().compute() == 3.5
    for wrong in ({"title": 1, "ocean/x": 1}, {"ocean/deep/y": 1}):
        tree.attrs = wrong
        with pytest.raises(errors.Usage, match="group"):
            tree.forebay.save("earth")
    with pytest.raises(errors.Usage, match="nowhere"):
        tree.forebay.save("earth", encoding={"/nowhere": {}})


def test_groups_of_other_programs():
    odd = ["/odd", "odd//a", "odd/", "./a", "g/../a"]
    with fb.open("sim", "w", quota="16MiB", retention="forever") as ch:
        for step in ch.steps(1):
            for name in ("a", "g/a", "g/h/a", *odd):
                step.put(name, np.arange(2))
            step.attrs["g/units"] = "m"
            step.attrs["g/h/units"] = "s"
    with open_space("sim") as ds:
        assert set(ds) == {"a", *odd} and ds.attrs == {}
    with pytest.raises(errors.Usage, match="variable '/odd'") as e:
        xr.open_datatree("forebay:sim", engine="forebay")
    assert "drop_variables" in e.value.hint
    with xr.open_datatree("forebay:sim", engine="forebay", drop_variables=odd) as tree:
        assert set(tree.dataset) == {"a"} and tree["g/h/a"].shape == (2,)
    with open_space("sim", group="g") as ds:
        assert ds["a"].dims == ("a_dim_0",) and ds.attrs == {"units": "m"}
    with open_space("sim", group="g/h") as ds:
        assert ds.attrs == {"units": "s"}


def test_a_channel_of_files():
    assert dataset().forebay.save("files", channel="files") == 0
    assert dataset(scale=2).forebay.save("files", mode="a", channel="files") == 1
    with open_space("files", version=0) as ds:
        xr.testing.assert_identical(ds, dataset())
    with open_space("files", step="all", chunks={}) as ds:
        assert ds["T"].sum().compute() == 45
        assert pickle.loads(pickle.dumps(ds))["T"].sum().compute() == 45


def test_what_is_saved_stays_when_it_has_been_read():
    dataset().forebay.save("out", quota="16MiB")
    with fb.open("out", finished=True, component="ana") as r:
        assert len([step.version for step in r.steps()]) == 1
    with open_space("out") as ds:
        xr.testing.assert_identical(ds, dataset())


def test_an_array_by_itself():
    dataset()["T"].forebay.save("array", quota="16MiB")
    xr.DataArray(np.arange(3), dims="n").forebay.save("nameless", quota="16MiB")
    with open_space("array") as ds, open_space("nameless") as other:
        xr.testing.assert_identical(ds["T"], dataset()["T"])
        assert other["data"].values.tolist() == [0, 1, 2]
    for array in (dataset()["x"], xr.DataArray(np.arange(3.0), dims="x", name="x"), dataset()["time"]):
        array.forebay.save("same", quota="16MiB")
        with xr.open_dataarray("forebay:same", engine="forebay") as found:
            xr.testing.assert_identical(found, array)


def test_xarray_is_imported_when_it_is_asked_for(children):
    code = """
        assert "xarray" not in sys.modules
        print(fb.xarray.follow.__name__)
        assert "xarray" in sys.modules
        """
    assert children.start(code).ok().strip() == "follow"


def test_a_space_stays_open_for_a_while_and_no_longer(monkeypatch):
    """Tasks of a Dask worker open it one after the other; what is not used any more is closed."""
    from forebay.xarray import _space

    monkeypatch.setattr(_space, "_KEPT_SECONDS", 60)
    write("heat")
    with open_space("heat") as ds:
        packed = pickle.dumps(ds)
    del ds
    first = weakref.ref(_space.Space.at("heat"))
    for _ in range(3):
        assert pickle.loads(packed)["T"].values.size == 12
        gc.collect()
        assert _space.Space.at("heat") is first(), "it was not opened again"
    monkeypatch.setattr(_space, "_KEPT_SECONDS", 0.2)
    _space.Space._timer.cancel()
    _space.Space._start_timer()
    deadline = time.monotonic() + 20
    while first() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert first() is None and not _space.Space._kept


def test_no_more_than_a_few_spaces_stay_open():
    from forebay.xarray import _space

    for i in range(_space._KEPT_MAX + 2):
        write(f"heat{i}")
        open_space(f"heat{i}").close()
    assert len(_space.Space._kept) == _space._KEPT_MAX
    assert pickle.loads(pickle.dumps(open_space("heat0")))["T"].values.size == 12


@pytest.mark.parametrize("lazily", [False, True])
def test_values_that_are_the_fill_value_of_the_version_before_are_refused(lazily):
    encoding = {"v": {"dtype": "i4", "_FillValue": -999}}
    xr.Dataset({"v": ("x", [1.0, np.nan])}).forebay.save("out", encoding=encoding, quota="16MiB")

    def added(*values, dtype="i8"):
        data = xr.Dataset({"v": ("x", np.array(values, dtype))})
        return data.chunk(x=1) if lazily else data

    for bad in (added(-999, 5), added(-999, 5, dtype="f8"), added(-999, 5, dtype="i4")):
        with pytest.raises(errors.VariableMismatch, match="fill value -999"):
            bad.forebay.save("out", mode="a")
    assert added(np.nan, 5, dtype="f8").forebay.save("out", mode="a") == 1
    assert np.array_equal(xr.open_dataset("out", engine="forebay")["v"], [np.nan, 5], equal_nan=True)


@pytest.mark.parametrize("encoding", [{"missing_value": -999.0}, {"missing_value": -999.0, "_FillValue": None}])
def test_floats_with_a_missing_value_are_appended_to_their_own_copy(encoding):
    data = xr.Dataset({"v": ("x", [1.0, np.nan])})
    data["v"].encoding = dict(encoding)
    data.forebay.save("out", quota="16MiB")
    for version in (1, 2):
        assert data.forebay.save("out", mode="a") == version
        assert xr.Dataset({"v": ("x", [np.nan, 3.0])}).forebay.save("more", mode="a", quota="16MiB") == version - 1
    assert np.array_equal(xr.open_dataset("out", engine="forebay")["v"], [1, np.nan], equal_nan=True)


@pytest.mark.parametrize("lazily", [False, True])
def test_what_was_not_decoded_is_appended_to_its_own_copy(lazily):
    encoding = {"v": {"dtype": "i2", "_FillValue": -1, "scale_factor": 0.1, "missing_value": -1}}
    xr.Dataset({"v": ("x", [0.5, np.nan])}).forebay.save("out", encoding=encoding, quota="16MiB")
    raw = xr.open_dataset("out", engine="forebay", mask_and_scale=False).load()
    assert (raw.chunk(x=1) if lazily else raw).forebay.save("out", mode="a") == 1
    assert np.allclose(xr.open_dataset("out", engine="forebay")["v"], [0.5, np.nan], equal_nan=True)


def test_several_missing_values_cannot_be_kept():
    attrs = {"missing_value": np.array([-1, -2], "i2")}
    xr.Dataset({"v": ("x", np.array([1, -1], "i2"), attrs)}).forebay.save("out", quota="16MiB")
    with pytest.raises(errors.VariableMismatch, match="several missing values"):
        xr.Dataset({"v": ("x", [1.0, np.nan])}).forebay.save("out", mode="a")
