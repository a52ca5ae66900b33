"""Steps, streams, random access, attributes and reports, seen from one process."""

import gc
import json

import forebay as fb
import numpy as np
import pytest
from forebay import errors


@pytest.fixture
def pair():
    with fb.open("pair", "w", quota="64MiB", component="sim") as w, fb.open("pair", component="ana") as r:
        yield w, r


def test_the_loop_of_the_readme():
    with fb.open("heat", "w", quota="16MiB") as ch:
        for step in ch.steps(3):
            step.put("T", np.full((4, 4), float(step.version)))
        assert ch.next_version == 3
    seen = []
    with fb.open("heat") as ch:
        for step in ch.steps(timeout=10):
            seen.append((step.version, step.get("T").sum()))
    assert seen == [(0, 0.0), (1, 16.0), (2, 32.0)]


def test_begin_and_end_step_return_a_status(pair):
    w, r = pair
    with pytest.raises(errors.TimedOut):
        r.begin_step(timeout=0)
    assert w.begin_step() is fb.StepStatus.OK
    w.put("T", np.arange(3))
    with pytest.raises(errors.TimedOut):
        r.begin_step(timeout=0.01)
    assert w.end_step() is fb.StepStatus.OK
    assert r.begin_step() is fb.StepStatus.OK
    assert r.version == 0 and r.get("T").tolist() == [0, 1, 2] and r.view("T")[2] == 2
    assert list(r.variables) == ["T"]
    assert r.end_step() is fb.StepStatus.OK
    w.close()
    assert r.begin_step() is fb.StepStatus.EndOfStream
    assert r.version is None


def test_a_status_is_true_exactly_where_there_is_a_step(pair):
    w, r = pair
    for version in range(3):
        assert w.begin_step()
        w.put("T", np.array([version]))
        assert w.end_step()
    w.close()
    seen = []
    while r.begin_step(timeout=10):
        seen.append(int(r.get("T")[0]))
        assert r.end_step()
    assert seen == [0, 1, 2]
    assert not r.begin_step() and list(fb.StepStatus) == [fb.StepStatus.OK, fb.StepStatus.EndOfStream]


def test_step_state(pair):
    w, r = pair
    outside = [w.end_step, lambda: w.put("T", np.zeros(1)), lambda: w.step]
    outside += [r.end_step, lambda: r.get("T"), lambda: r.step]
    for wrong in outside:
        with pytest.raises(errors.StepState):
            wrong()
    w.begin_step()
    with pytest.raises(errors.StepState):
        w.begin_step()
    old = w.step
    old.put("T", np.zeros(1))
    w.end_step()
    with pytest.raises(errors.StepState):
        old.put("T", np.zeros(1))
    r.begin_step()
    with pytest.raises(errors.StepState):
        r.begin_step()
    r.end_step()


def test_a_loop_left_by_break_leaves_its_step_open(pair):
    w, r = pair
    for step in w.steps():
        step.put("T", np.array([1]))
        break
    for wrong in (lambda: next(w.steps()), w.begin_step):
        with pytest.raises(errors.StepState, match="step 0 is open") as e:
            wrong()
        assert "end_step()" in e.value.hint and "abort_step()" in e.value.hint
    w.end_step()
    for step in w.steps(1):
        step.put("T", np.array([2]))
    w.close()
    assert [int(step["T"][0]) for step in r.steps()] == [1, 2]


def fill_half(w):
    """A step that is published, then one that an exception leaves half filled."""
    for step in w.steps(2):
        step.put("T", np.array([step.version]))
        if step.version == 1:
            raise ZeroDivisionError
        step.put("U", np.array([step.version]))


def close_in_finally(w):
    try:
        fill_half(w)
    finally:
        w.close()


def close_after_the_exception(w):
    with pytest.raises(ZeroDivisionError):
        fill_half(w)
    with pytest.raises(errors.StepState, match="step 1 was open") as e:
        w.close()
    assert "end_step()" in e.value.hint
    raise ZeroDivisionError


def go_on_after_the_exception(w):
    with pytest.raises(ZeroDivisionError):
        fill_half(w)
    with pytest.raises(errors.StepState, match="step 1 is open"):
        fill_half(w)
    raise ZeroDivisionError


def leave_with_by_an_exception(w):
    with w:
        fill_half(w)


def leave_with_after_the_exception(w):
    with pytest.raises(errors.StepState, match="step 1 was open"), w:
        with pytest.raises(ZeroDivisionError):
            fill_half(w)
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "way",
    [
        close_in_finally,
        close_after_the_exception,
        go_on_after_the_exception,
        leave_with_by_an_exception,
        leave_with_after_the_exception,
    ],
)
def test_a_half_filled_step_is_never_published(way):
    w = fb.open("half", "w", quota="16MiB", component="sim")
    with fb.open("half", component="ana") as r:
        with pytest.raises(ZeroDivisionError):
            way(w)
        del w
        gc.collect()
        seen = []
        with pytest.raises(errors.ProducerDied):
            for step in r.steps(timeout=20):
                seen.append((step.version, sorted(step.variables)))
        assert seen == [(0, ["T", "U"])]


def test_a_writer_lost_with_an_open_step_aborts_it():
    w = fb.open("lost", "w", quota="16MiB", retention="forever")
    w.begin_step()
    w.put("T", np.zeros(3))
    del w
    gc.collect()
    assert fb.inspect("lost")["state"] != "finished"
    with fb.open("lost", observer=True) as r:
        assert r.versions() == range(0, 0)


def test_n_steps_of_a_reader(pair):
    w, r = pair
    for step in w.steps(5):
        step.put("T", np.array([step.version]))
    assert [s.version for s in r.steps(2)] == [0, 1]
    assert [s.version for s in r.steps(2)] == [2, 3]
    with pytest.raises(TimeoutError) as e:
        for s in r.steps(timeout=0.2):
            pass
    assert s.version == 4 and isinstance(e.value, errors.TimedOut) and e.value.hint


def test_an_aborted_step_is_never_seen(pair):
    w, r = pair
    w.begin_step()
    w.put("wrong", np.zeros(3))
    w.abort_step()
    w.begin_step()
    w.put("right", np.zeros(3))
    w.end_step()
    assert list(next(r.steps())) == ["right"]


def test_an_exception_in_the_body_is_no_end_of_stream():
    r = None
    with pytest.raises(ZeroDivisionError):
        with fb.open("pair", "w", quota="16MiB", component="sim") as w:
            r = fb.open("pair", component="ana")
            for step in w.steps(3):
                step.put("T", np.zeros(3))
                if step.version == 1:
                    1 / 0
    assert w.closed
    with r:
        seen = []
        with pytest.raises(errors.ProducerDied):
            for step in r.steps(timeout=20):
                seen.append(step.version)
        assert seen == [0]


def test_random_access():
    with fb.open("kept", "w", quota="16MiB", retention="forever") as w:
        for step in w.steps(5):
            step.put("T", np.array([step.version * 10]))
        with fb.open("kept", observer=True) as r:
            assert r.versions() == range(0, 5) and r.latest() == 4
            for v in (4, 0, 2):
                step = r.open_version(v)
                assert step.version == v and step["T"][0] == 10 * v
            r.wait(4, timeout=1)
            with pytest.raises(errors.TimedOut):
                r.wait(5, timeout=0.05)



@pytest.mark.parametrize("channel", ["space", "files"])
def test_versions_are_handles_of_their_own(channel):
    with fb.open("kept", "w", quota="16MiB", retention="forever", channel=channel) as w:
        for step in w.steps(6):
            step.put("T", np.array([step.version * 10]))
            step.put(f"only {step.version}", np.zeros(3))
        r = fb.open("kept", component="ana", channel=channel)
        stream = r.steps()
        first = next(stream)
        four, two = r.open_version(4), r.open_version(2)
        held = {step.version: step for step in (four, two, first)}
        for _ in range(2):
            assert {v: int(step["T"][0]) for v, step in held.items()} == {0: 0, 2: 20, 4: 40}
            assert all(f"only {v}" in step and len(step.variables) == 2 for v, step in held.items())
        held[1] = next(stream)
        del held[0]
        with pytest.raises(errors.StepState):
            first.get("T")
        assert r.version == 1
        again = r.open_version(2)
        assert {v: int(step["T"][0]) for v, step in held.items()} == {1: 10, 2: 20, 4: 40}
        two.close()
        two.close()
        with pytest.raises(errors.Closed):
            two.get("T")
        with again as step:
            assert step["T"][0] == 20
        with pytest.raises(errors.Closed):
            again.get("T")
        w.close()
        assert [step.version for step in stream] == [2, 3, 4, 5]
        r.close()
        assert four["T"][0] == 40 and "only 4" in four
        four.close()


def test_waiting_behind_the_end_does_not_wait():
    with fb.open("kept", "w", quota="16MiB", retention="forever") as w:
        for step in w.steps(2):
            step.put("T", np.zeros(1))
    with fb.open("kept", observer=True) as r:
        with pytest.raises(errors.PeerMissing, match="ended") as e:
            r.wait(9, timeout=1000)
        assert "waited_s" not in e.value.context


def test_a_dropped_version_is_an_error_of_its_own():
    with fb.open("few", "w", quota="8MiB", segment="1MiB", retention="last:2") as w:
        for step in w.steps(20):
            step.put("T", np.full(100_000, step.version))
        with fb.open("few", observer=True) as r:
            assert r.versions().stop == 20 and r.versions().start >= 1
            with pytest.raises(errors.VersionGone):
                r.open_version(0)


@pytest.mark.parametrize("channel", ["space", "files"])
def test_last_k_keeps_k(channel):
    with fb.open("three", "w", quota="16MiB", retention="last:3", channel=channel) as w:
        for step in w.steps(10):
            step.put("T", np.array([step.version]))
        with fb.open("three", observer=True, channel=channel) as r:
            assert r.versions() == range(7, 10)


def test_latest_skips():
    with fb.open("pair", "w", quota="16MiB", component="sim") as w, fb.open("pair", latest=True) as r:
        for step in w.steps(4):
            step.put("T", np.array([step.version]))
        assert next(r.steps()).version == 3


def test_subscribe(pair):
    w, r = pair
    for step in w.steps(3):
        if step.version != 1:
            step.put("T", np.arange(10) + step.version)
        step.put("U", np.zeros(1))
    w.close()
    got = [(v, a.tolist()) for v, a in r.subscribe("T", start=(2,), count=(2,))]
    assert got == [(0, [2, 3]), (2, [4, 5])]


def test_attributes(pair):
    w, r = pair
    w.attrs["title"] = "heat ♨"
    w.attrs["dx"] = 0.5
    w.attrs["n"] = 7
    w.attrs["on"] = True
    w.attrs["dims"] = (2, 3)
    w.attrs["origin"] = np.array([0.0, 1.5])
    expected = {"title": "heat ♨", "dx": 0.5, "n": 7, "on": True, "dims": [2, 3], "origin": [0.0, 1.5]}
    assert dict(r.attrs) == expected and len(r.attrs) == 6 and "dx" in r.attrs
    assert r.attrs["on"] is True
    w.attrs["n"] = 8
    assert r.attrs["n"] == 8 and w.attrs["n"] == 8
    with pytest.raises(KeyError):
        r.attrs["none"]
    with pytest.raises(errors.Usage):
        r.attrs["n"] = 9
    with pytest.raises(errors.Usage):
        w.attrs["bad"] = object()
    with pytest.raises(TypeError):
        del w.attrs["n"]


def test_stats_and_info(pair):
    w, r = pair
    for step in w.steps(2):
        step.put("T", np.zeros(100))
    next(r.steps()).get("T")
    assert w.stats()["puts"] == 2 and w.stats()["bytes_put"] == 1600 and w.stats()["steps"] == 2
    assert r.stats()["gets"] == 1 and r.stats()["bytes_got"] == 800
    info = w.info()
    assert info["tier"] == "dram" and info["producer"]["size"] == 1
    assert info == json.loads(json.dumps(info))
    assert (w.rank, w.size, w.name, r.name) == (0, 1, "pair", "pair")
    assert "process" in w.durability and w.incarnation >= 0
    assert w.path == r.path and "pair" in repr(w)


def test_reports_of_the_module(root):
    assert fb.root() == str(root) and fb.list_spaces() == []
    with fb.open("one", "w", quota="16MiB", retention="forever") as w:
        for step in w.steps(2):
            step.put("T", np.zeros(10))
    assert [s["name"] for s in fb.list_spaces()] == ["one"]
    assert fb.inspect("one")["state"] == "finished"
    report = fb.verify("one")
    assert report["versions"] == 2 and report["damaged"] == [] and report["bytes"] >= 160
    dry = fb.clean("one", dry_run=True)
    assert [s["name"] for s in dry["removed"]] == ["one"] and fb.list_spaces()
    fb.destroy("one")
    assert fb.list_spaces() == []
    with pytest.raises(errors.Error):
        fb.inspect("one")


def test_what_was_read_to_its_end_is_gone(root):
    with fb.open("gone", "w", quota="16MiB") as w, fb.open("gone", component="ana") as r:
        for step in w.steps(3):
            step.put("T", np.zeros(10))
        w.close()
        assert len([0 for _ in r.steps()]) == 3
    assert fb.list_spaces() == []
    assert [p.name for p in root.rglob("*") if p.is_file()] == []


def test_closed_handles(pair):
    w, r = pair
    w.close()
    w.close()
    r.close()
    assert w.closed and r.closed and "closed" in repr(w)
    of_writer = [w.begin_step, w.end_step, w.abort_step, lambda: w.attrs["a"], w.stats, lambda: w.step]
    of_writer += [lambda: w.put("T", np.zeros(1)), lambda: w.reserve("T", 3), lambda: next(w.steps())]
    of_reader = [r.begin_step, r.end_step, r.latest, lambda: r.get("T"), lambda: r.step, lambda: next(r.steps())]
    for wrong in of_writer + of_reader:
        with pytest.raises(errors.Closed):
            wrong()


def test_the_program_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("FOREBAY_QUOTA", "16MiB")
    monkeypatch.setenv("FOREBAY_TIMEOUT", "0.2")
    with fb.open("env", "w", retention="last:3") as w:
        assert w.info()["retention"] in ("last:3", {"last": 3})
        assert w.info()["quota_bytes"] == 16 << 20
    with pytest.raises(TimeoutError):
        fb.open("missing")


class Comm:
    """The two methods of an mpi4py communicator that are used."""

    def Get_rank(self) -> int:
        return 1

    def Get_size(self) -> int:
        return 3


def test_communicator():
    with fb.open("comm", "w", comm=Comm(), quota="16MiB") as w:
        assert (w.rank, w.size) == (1, 3)
    with pytest.raises(errors.Usage):
        fb.open("comm", "w", comm=Comm(), rank=0, size=3)
    with pytest.raises(errors.Usage, match="Get_rank"):
        fb.open("comm", "w", comm=object())
