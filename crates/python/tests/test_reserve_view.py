"""Memory that is shared without copies: reserve and commit on one side, views and leases on the other."""

import gc
from pathlib import Path

import forebay as fb
import numpy as np
import pytest
from forebay import errors

LARGE = 1 << 16


@pytest.fixture
def pair():
    with fb.open("pair", "w", quota="64MiB", component="sim") as w, fb.open("pair", component="ana") as r:
        yield w, r


def test_reserve_is_filled_in_place_and_frozen_at_the_end_of_the_step(pair):
    w, r = pair
    w.begin_step()
    out = w.step.reserve("T", shape=(4, LARGE), dtype="f4")
    assert out.shape == (4, LARGE) and out.dtype == np.dtype("f4") and out.flags.writeable and not out.flags.owndata
    out[:] = np.arange(4)[:, None]
    w.end_step()
    assert not out.flags.writeable
    with pytest.raises(ValueError):
        out[0, 0] = 1
    with pytest.raises(ValueError):
        out.flags.writeable = True
    assert (r.steps().__next__().get("T") == np.arange(4, dtype="f4")[:, None]).all()


def test_reserve_copies_nothing(pair):
    w, _ = pair
    w.begin_step()
    before = w.stats()["bytes_copied"]
    w.reserve("T", LARGE)[:] = 1
    w.end_step()
    assert w.stats()["bytes_copied"] - before < 4096


def test_commit_by_hand(pair):
    w, r = pair
    w.begin_step()
    step = w.step
    out = step.reserve("T", shape=(8,), start=(0,), count=(4,))
    out[:] = 1
    step.commit(out)
    assert not out.flags.writeable
    with pytest.raises(errors.Usage, match="not reserved"):
        step.commit(out)
    rest = step.reserve("T", shape=8, start=4, count=4)
    rest[:] = 2
    with pytest.raises(errors.Usage, match="not reserved"):
        step.commit(rest[:2])
    w.end_step()
    assert next(r.steps()).get("T").tolist() == [1] * 4 + [2] * 4


def test_a_reserved_array_outlives_its_writer():
    with fb.open("pair", "w", quota="64MiB") as w:
        w.begin_step()
        out = w.reserve("T", LARGE)
        out[:] = np.arange(LARGE)
        w.end_step()
    gc.collect()
    assert out.shape == (LARGE,)
    assert float(out.sum()) >= 0  # whatever it holds by now, it can be read


def test_an_aborted_reservation_is_frozen_and_never_seen(pair):
    w, r = pair
    w.begin_step()
    out = w.reserve("T", 10)
    out[:] = 7
    w.abort_step()
    assert not out.flags.writeable
    w.begin_step()
    w.put("U", np.zeros(1))
    w.end_step()
    assert list(next(r.steps())) == ["U"]


def test_reserve_needs_a_box_when_the_group_has_ranks():
    with fb.open("two", "w", rank=0, size=2, quota="16MiB") as w:
        w.begin_step()
        with pytest.raises(errors.Usage, match="start= or count= is missing"):
            w.reserve("T", (4, 4))
        with pytest.raises(errors.Usage, match="shape= and start= are missing"):
            w.put("T", np.zeros(4))
        w.abort_step()


def write(w, value=1.0, n=LARGE):
    w.begin_step()
    w.put("T", np.full(n, value))
    w.put("small", np.full(10, value))
    w.end_step()


@pytest.mark.parametrize("name", ["T", "small"])
def test_get_is_a_copy_and_view_is_read_only(pair, name):
    w, r = pair
    write(w)
    step = next(r.steps())
    for own in (step.get(name), step[name][...], step[name, :], step.get(name, copy=True)):
        assert own.flags.owndata and own.flags.writeable
        own[0] = 7
    for seen in (step.view(name), step.get(name, copy=False), step.get(name, copy=None)):
        assert not seen.flags.owndata and not seen.flags.writeable and (seen == 1).all()
        with pytest.raises(ValueError):
            seen[0] = 1
        with pytest.raises(ValueError):
            seen.flags.writeable = True
    out = np.empty_like(own)
    assert step.get(name, out=out) is out
    with pytest.raises(errors.Usage):
        step.get(name, out=out, copy=False)


def test_a_view_of_a_part_is_contiguous_or_refused(pair):
    w, r = pair
    a = np.arange(float(LARGE)).reshape(16, -1)
    w.begin_step()
    w.put("T", a[:8], shape=a.shape, start=(0, 0))
    w.put("T", a[8:], shape=a.shape, start=(8, 0))
    w.end_step()
    step = next(r.steps())
    assert (step.view("T", np.s_[2:5]) == a[2:5]).all()
    assert (step.view("T", start=(9, 0), count=(3, a.shape[1])) == a[9:12]).all()
    for across in (np.s_[7:9], np.s_[:, 0:10], np.s_[:]):
        with pytest.raises(errors.NotContiguous):
            step.view("T", across)
        with pytest.raises(errors.NotContiguous):
            step.get("T", across, copy=False)
        got = step.get("T", across)
        assert got.flags.writeable and (got == a[across]).all()
        got = step.get("T", across, copy=None)
        assert not got.flags.writeable and (got == a[across]).all()


def test_views_outlive_step_reader_and_writer():
    w = fb.open("pair", "w", quota="64MiB", component="sim")
    r = fb.open("pair", component="ana")
    write(w, 5.0)
    for step in r.steps(1):
        view = step.view("T")
        part = view[10:20]
    with pytest.raises(errors.StepState):
        step.get("T")
    write(w, 6.0)
    assert (view == 5).all()
    r.close()
    w.close()
    del r, w, step
    gc.collect()
    assert (view == 5).all() and not view.flags.writeable
    del view
    gc.collect()
    assert (part == 5).all()


def test_a_view_holds_the_space_it_uses():
    """With space for two versions, a view of the first stops the third; letting go frees it."""
    size = 1 << 20
    with fb.open("pair", "w", quota="4MiB", segment="1MiB", component="sim", timeout=0.5) as w:
        with fb.open("pair", component="ana") as r:
            held = []
            with pytest.raises((errors.QuotaFull, errors.TimedOut)):
                for i in range(10):
                    w.begin_step()
                    w.put("T", np.full(size // 8, float(i)))
                    w.end_step()
                    for step in r.steps(1):
                        held.append(step.view("T"))
            assert all((a == i).all() for i, a in enumerate(held))
            w.abort_step()
            held.clear()
            gc.collect()
            for i in range(10):
                w.begin_step()
                w.put("T", np.full(size // 8, float(i)))
                w.end_step()
                for step in r.steps(1):
                    assert step.get("T")[-1] == i


def test_the_pool_is_private(pair, root: Path):
    write(pair[0])
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("options", [{"tier": "file"}, {"channel": "files"}], ids=["file-tier", "files-channel"])
def test_reserve_where_the_pool_is_not_memory(tmp_path, options):
    """There the array is ordinary memory that is put at its commit: the same program, one copy."""
    name = str(tmp_path / "space")
    with fb.open(name, "w", quota="16MiB", retention="forever", component="sim", **options) as w:
        w.begin_step()
        out = w.reserve("T", shape=(3, 4), dtype="i4")
        out[:] = 5
        w.end_step()
        assert not out.flags.writeable
        with pytest.raises(errors.BoxOutsideShape):
            w.begin_step()
            w.reserve("T", shape=(3,), start=(2,), count=(2,))
        w.abort_step()
        mechanism = {"channel": options["channel"]} if "channel" in options else {}
        with fb.open(name, component="ana", **mechanism) as r:
            assert (next(r.steps()).get("T") == 5).all()
    assert (out == 5).all()


def test_reserved_arrays_survive_a_writer_that_fails_in_its_first_step():
    with pytest.raises(KeyboardInterrupt):
        with fb.open("fails", "w", quota="64MiB") as w:
            for step in w.steps():
                out = step.reserve("T", LARGE)
                out[:] = 3
                raise KeyboardInterrupt
    gc.collect()
    assert w.closed and not out.flags.writeable and (out == 3).all()
    assert fb.inspect("fails")["state"] in ("producer died", "dead")


def test_a_writer_that_was_forgotten_with_its_arrays_alive():
    def produce():
        w = fb.open("forgotten", "w", quota="64MiB")
        w.begin_step()
        out = w.reserve("T", LARGE)
        out[:] = 4
        w.end_step()
        return out

    out = produce()
    gc.collect()
    assert (out == 4).all()
    assert fb.inspect("forgotten")["state"] == "finished"


def test_a_skipped_version_takes_reservations_and_drops_them():
    with fb.open("twice", "w", quota="16MiB", retention="forever") as w:
        for step in w.steps(2):
            step.put("T", np.full(4, 1.0))
    with fb.open("twice", "a") as w:
        w.begin_step(0)
        assert w.step.skipped
        w.reserve("T", 4)[:] = 9
        w.put("T", np.full(4, 9.0))
        w.end_step()
    with fb.open("twice", observer=True) as r:
        assert r.open_version(0)["T"].tolist() == [1.0] * 4


def test_put_is_one_copy(pair):
    w, r = pair
    a = np.zeros((1000, 100))
    w.begin_step()
    w.put("T", a)
    w.put("U", a[::2])
    w.end_step()
    assert w.stats()["bytes_copied"] == w.stats()["bytes_put"] == a.nbytes + a[::2].nbytes
    r.begin_step()
    r.view("T")
    assert r.stats()["bytes_copied"] == 0 and r.stats()["views"] == 1
    r.get("T", np.s_[1:3, 4:6])
    assert r.stats()["bytes_copied"] == 4 * 8


@pytest.mark.parametrize("how", ["end_step", "commit"])
def test_a_step_does_not_end_without_what_could_not_be_committed(how):
    """Where reserved memory is a buffer of its own, its commit may find the quota full."""
    n = 150_000
    w = fb.open("e", "w", tier="file", quota="4MiB", readers={"viz": 1}, timeout=0.3)
    for k in range(2):
        w.begin_step()
        w.put("T", np.full(n, float(k)))
        w.end_step()
    r = fb.open("e", group="viz", timeout=5)
    w.begin_step()
    first, second = w.reserve("T", (n,)), w.reserve("V", (n,))
    first[:], second[:] = 7, 8
    if how == "commit":
        w.commit(first)
        with pytest.raises(fb.errors.QuotaFull):
            w.commit(second)
    with pytest.raises(fb.errors.QuotaFull):
        w.end_step()
    for _ in range(2):
        r.begin_step()
        r.end_step()
    if how == "commit":
        w.commit(second)
    w.end_step()
    r.begin_step()
    assert sorted(r.step) == ["T", "V"] and r.get("V")[0] == 8 and r.get("T")[-1] == 7
    r.close()
    w.close()


def test_free_bytes_grow_when_readers_have_passed(root):
    with fb.open("e", "w", quota="8MiB", segment="256KiB", readers={"viz": 1}) as w:
        empty = w.free_bytes
        for _ in range(20):
            w.begin_step()
            w.put("T", np.zeros(200_000, "u1"))
            w.end_step()
        full = w.free_bytes
        assert 7 << 20 < empty <= 8 << 20 and full < empty - (4 << 20)
        with fb.open("e", group="viz") as r:
            for _ in range(18):
                r.begin_step()
                r.end_step()
            assert w.free_bytes > full + (4 << 20)
    with fb.open("f", "w", channel="files") as w:
        assert w.free_bytes is None
