"""Many small objects in one call: the same objects as one by one, and errors that say which."""

import forebay as fb
import numpy as np
import pytest
from forebay import errors

COUNT = 3000


@pytest.fixture(params=["space", "files"])
def pair(request):
    """A writer and a reader of one channel in this process, and how many objects it should carry."""
    of = {"channel": request.param}
    with fb.open("many", "w", quota="64MiB", component="sim", **of) as w:
        with fb.open("many", component="ana", **of) as r:
            yield w, r, COUNT if request.param == "space" else 40


def labels(count):
    return [f"block_{i:05}" for i in range(count)]


def test_one_array(pair):
    w, r, count = pair
    blocks = np.arange(count * 12, dtype="f4").reshape(count, 3, 4)
    names = labels(count)
    for step in w.steps(2):
        step.put_many(names, blocks + step.version)
    for step in r.steps(2):
        assert (step.get_many(names) == blocks + step.version).all()
        out = np.zeros((count, 3, 4), dtype="f4")
        assert step.get_many(names, out=out) is out
        assert (out == blocks + step.version).all()
        assert (step.get_many(reversed(names)) == blocks[::-1] + step.version).all()
        one = step.get(names[7])
        assert one.shape == (3, 4) and (one == blocks[7] + step.version).all() and one.flags.writeable


def test_arrays_of_any_kind(pair):
    w, r, _ = pair
    w.begin_step()
    w.put_many(["a", "b", "c"], [np.arange(6)[::2], "text", 2.5])
    w.put_many({"d": np.zeros((2, 2), "u1"), "e": [1, 2]})
    w.put_many([], [])
    w.end_step()
    r.begin_step()
    assert r.get("a").tolist() == [0, 2, 4]
    assert r.step.text("b") == "text"
    assert r.get("c").shape == () and r.get("c") == 2.5
    assert r.get("d").shape == (2, 2) and r.get("e").tolist() == [1, 2]
    assert r.get_many(["a", "e"][:0]).shape == (0,)
    r.end_step()


def test_errors_name_the_object(pair):
    w, r, _ = pair
    w.begin_step()
    with pytest.raises(errors.BufferMismatch, match="3 names and 2 arrays"):
        w.put_many(["a", "b", "c"], np.zeros((2, 5)))
    with pytest.raises(errors.Usage, match="no arrays"):
        w.put_many(["a"])
    with pytest.raises(errors.Usage, match="one name"):
        w.put_many("ab", np.zeros((2, 5)))
    with pytest.raises(TypeError):
        w.put_many([1], np.zeros((1, 5)))
    with pytest.raises(errors.BadName) as failed:
        w.put_many(["a", "", "c"], np.zeros((3, 5)))
    assert failed.value.context["object"] == "1"
    w.put_many(["b", "c"], [np.zeros(5), np.zeros(6)])
    w.end_step()
    r.begin_step()
    assert sorted(r.step.variables) == ["a", "b", "c"]
    with pytest.raises(errors.BufferMismatch) as failed:
        r.get_many(["a", "b", "c"])
    assert failed.value.context["object"] == "2" and failed.value.context["variable"] == "c"
    with pytest.raises(errors.UnknownVariable) as failed:
        r.get_many(["a", "x"])
    assert failed.value.context["object"] == "1"
    for wrong in (np.zeros((3, 5)), np.zeros((2, 5))[:, ::1].T, np.zeros((2, 4)), np.zeros((2, 5), "f4")):
        with pytest.raises(errors.BufferMismatch):
            r.get_many(["a", "b"], out=wrong)
    with pytest.raises(errors.BufferMismatch):
        r.get_many(["a"], out=np.zeros(()))


def test_a_call_without_free_space_goes_on_where_it_stopped(root):
    """More than the quota holds at once: the reader frees space while the call waits."""
    import threading

    names = labels(200)
    blocks = np.arange(200 * 8192, dtype="f8").reshape(200, 8192)
    with fb.open("full", "w", quota="32MiB", component="sim", timeout=60) as w:
        with fb.open("full", component="ana") as r:

            def read():
                for step in r.steps(6):
                    assert (step.get_many(names) == blocks + step.version).all()

            reading = threading.Thread(target=read)
            reading.start()
            for step in w.steps(6):
                step.put_many(names, blocks + step.version)
            reading.join(60)
            assert not reading.is_alive()
            assert w.stats()["puts"] == 1200
