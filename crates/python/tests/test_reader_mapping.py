"""A reader as a mapping of versions, choosing one, `async for`, pickling, and what a notebook shows."""

import asyncio
import pickle
import threading
import time
from pathlib import Path

import forebay as fb
import numpy as np
import pytest
from forebay import errors


def write(name: str, versions: int, **options) -> None:
    with fb.open(name, "w", retention="forever", **options) as ch:
        for step in ch.steps(versions):
            step.put("T", np.full(4, step.version))
            step.attrs["time"] = step.version * 0.5
            step.attrs["label"] = f"v{step.version}"


@pytest.mark.parametrize("channel", ["space", "files"])
def test_versions_are_keys(channel):
    write("heat", 4, channel=channel)
    with fb.open("heat", channel=channel, observer=True) as ch:
        assert len(ch) == 4 and list(ch) == [0, 1, 2, 3] and ch.keys() == range(4) and ch
        assert 3 in ch and 4 not in ch and -1 not in ch and "3" not in ch
        for key, version in ((0, 0), (3, 3), (-1, 3), (-4, 0), (np.int64(2), 2)):
            with ch[key] as step:
                assert step.version == version and step["T"][0] == version
        for key in (4, -5, 2**40):
            with pytest.raises((errors.VersionGone, errors.TimedOut)):
                ch[key]
        for key in ("a", 1.5, 2**70, -(2**70)):
            with pytest.raises((TypeError, ValueError)):
                ch[key]


def test_a_version_is_chosen_by_number_by_the_nearest_attribute_or_as_the_newest():
    write("heat", 4)
    with fb.open("heat", observer=True) as ch:
        for keywords, version in (
            ({}, 3),
            ({"version": 1}, 1),
            ({"time": 0.6}, 1),
            ({"time": -9}, 0),
            ({"time": 99}, 3),
            ({"time": 0.75}, 2),
        ):
            with ch.select(**keywords) as step:
                assert step.version == version, keywords
        for keywords, error in (
            ({"level": 1}, errors.UnknownKey),
            ({"label": 1}, errors.UnknownKey),
            ({"time": 1, "level": 1}, errors.Usage),
            ({"version": 1, "time": 1}, errors.Usage),
            ({"version": 9}, errors.TimedOut),
            ({"time": "now"}, TypeError),
            ({"time": 1j}, TypeError),
            ({"time": 10**400}, TypeError),
            ({"time": float("nan")}, errors.Usage),
        ):
            with pytest.raises(error):
                ch.select(**keywords)


def test_a_version_whose_attribute_is_no_number_is_not_near():
    times = [float("nan"), 0.25, 0.75, True, "0.5", [0.5], float("inf"), float("nan")]
    with fb.open("heat", "w", retention="forever") as ch:
        for step, time_ in zip(ch.steps(len(times)), times, strict=True):
            step.attrs["time"] = time_
        with fb.open("heat", observer=True) as r:
            chosen = {wanted: r.select(time=wanted).version for wanted in (0.25, 0.75, 1, -1)}
            assert chosen == {0.25: 1, 0.75: 2, 1: 2, -1: 1}


def test_large_integers_are_compared_exactly():
    start = 1_700_000_000_000_000_000  # nanoseconds, which a float holds to 256
    with fb.open("heat", "w", retention="forever") as ch:
        for step in ch.steps(6):
            step.attrs["ns"] = start + 100 * step.version
        with fb.open("heat", observer=True) as r:
            for version in range(6):
                for offset in (-49, 0, 49):
                    wanted = start + 100 * version + offset
                    assert r.select(ns=wanted).version == r.select(ns=np.int64(wanted)).version == version
            assert r.select(ns=float("inf")).version == 5 and r.select(ns=1.5).version == 0


def test_a_version_that_is_dropped_between_two_looks_does_not_count():
    write("heat", 3)

    class Dropping:
        """A reader whose versions 0 and 2 are dropped when they are to be opened."""

        def __init__(self, reader: fb.Reader) -> None:
            self.reader = reader

        def versions(self) -> range:
            return self.reader.versions()

        def open_version(self, version: int) -> fb.ReadStep:
            if version != 1:
                raise errors.VersionGone("dropped")
            return self.reader.open_version(version)

    from forebay import _reading

    with fb.open("heat", observer=True) as r, _reading.select(Dropping(r), None, {"time": 99}) as step:
        assert step.version == 1


def test_versions_that_are_dropped_while_one_is_chosen_do_not_count():
    stop = threading.Event()

    def produce() -> None:
        with fb.open("heat", "w", retention="last:6") as ch:
            for step in ch.steps():
                step.attrs["time"] = step.version
                if stop.is_set() and step.version > 10:
                    break
            ch.end_step()

    thread = threading.Thread(target=produce)
    thread.start()
    found = 0
    try:
        # Any that is there: the writer does not wait.
        while not (Path(fb.root()) / "heat").exists():
            time.sleep(0.01)
        with fb.open("heat", observer=True, timeout=20) as r:
            deadline = time.monotonic() + 30
            while found <= 20 and time.monotonic() < deadline:
                try:
                    with r.select(time=0) as step:
                        found += step.attrs["time"] == step.version
                except errors.UnknownKey:
                    pass  # all of them were dropped between two looks
    finally:
        stop.set()
        thread.join()
    assert found > 20


def test_an_empty_space_is_an_empty_mapping():
    with fb.open("heat", "w"), fb.open("heat", observer=True) as ch:
        assert ch and len(ch) == 0 and list(ch) == []
        with pytest.raises(errors.TimedOut):
            ch.select()
        with pytest.raises(errors.VersionGone):
            ch[-1]
        assert "no complete version" in ch._repr_html_()


def test_steps_are_awaited_while_other_tasks_run():
    def produce() -> None:
        with fb.open("heat", "w") as ch:
            for step in ch.steps(5):
                step.put("T", np.full(4, step.version))
                time.sleep(0.15)

    async def tick(ticks: list[float]) -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def consume() -> tuple[list[int], int]:
        ticks: list[float] = []
        other = asyncio.ensure_future(tick(ticks))
        with fb.open("heat", component="ana") as ch:
            seen = [int(step["T"][0]) async for step in ch]
        other.cancel()
        return seen, len(ticks)

    thread = threading.Thread(target=produce)
    thread.start()
    seen, ticks = asyncio.run(consume())
    thread.join()
    assert seen == [0, 1, 2, 3, 4]
    assert ticks > 5, "other tasks ran while it waited"


@pytest.mark.parametrize("how", ["one iterator", "the reader", "new steps", "new loops"])
def test_a_cancelled_wait_loses_no_step(how):
    """Cancelled while it waits, by whatever the iteration goes on."""
    w = fb.open("heat", "w", readers={"g": 1})
    r = fb.open("heat", group="g", timeout=20)
    kept = aiter(r.steps())

    async def give() -> int:
        if how == "one iterator":
            return (await anext(kept)).version
        async for step in r if how == "the reader" else r.steps():
            return step.version
        raise AssertionError("the stream ended")

    async def cancelled() -> None:
        task = asyncio.create_task(give())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def put() -> None:
        w.begin_step()
        w.put("T", 1.0)
        w.end_step()

    async def all_in_one() -> list[int]:
        seen = []
        for _ in range(6):
            await cancelled()
            put()
            await asyncio.sleep(0.15)
            put()
            seen += [await give(), await give()]
        return seen

    if how == "new loops":
        seen = []
        for _ in range(6):
            asyncio.run(cancelled())
            put()
            time.sleep(0.12)
            seen.append(asyncio.run(give()))
        assert seen == list(range(6))
    else:
        assert asyncio.run(all_in_one()) == list(range(12))
    r.close()
    w.close()


def test_one_iterator_is_for_one_task():
    async def two(steps) -> tuple:
        first = asyncio.create_task(anext(steps, None))
        await asyncio.sleep(0.01)
        with pytest.raises(errors.StepState, match="another task"):
            await anext(steps)
        first.cancel()
        return await asyncio.gather(first, return_exceptions=True)

    with fb.open("heat", "w"), fb.open("heat", component="ana") as r:
        (outcome,) = asyncio.run(two(aiter(r.steps())))
        assert isinstance(outcome, asyncio.CancelledError)


def test_an_awaited_step_that_does_not_come_times_out():
    async def consume(ch) -> None:
        async for _ in ch.steps(timeout=0.3):
            pass

    with fb.open("heat", "w"), fb.open("heat", component="ana") as ch:
        for _ in range(2):
            with pytest.raises(errors.TimedOut):
                asyncio.run(consume(ch))


@pytest.mark.parametrize("channel", ["space", "files"])
def test_what_belongs_to_its_process_says_so_and_the_rest_is_opened_again(channel):
    with fb.open("heat", "w", channel=channel, retention="forever") as w:
        w.begin_step()
        w.put("T", np.arange(4))
        for what in (w, w.step):
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(what)
        w.end_step()
        with fb.open("heat", channel=channel, component="ana") as r:
            with pytest.raises(TypeError, match="observer=True"):
                pickle.dumps(r)
            assert r.begin_step()
            with pickle.loads(pickle.dumps(r.step)) as again:
                assert again.version == 0 and again["T"].sum() == 6
            with pytest.raises(TypeError, match="pickled"):
                pickle.dumps(r.variables["T"])
        with (
            fb.open("heat", channel=channel, observer=True) as r,
            pickle.loads(pickle.dumps(r)) as again,
            again[-1] as step,
        ):
            assert step["T"].sum() == 6 and again.path == r.path


def test_notebooks_get_tables_with_nothing_unescaped():
    with fb.open("heat", "w", retention="forever") as w:
        w.attrs["title"] = "<b>plate</b>"
        w.begin_step()
        w.put("<T>", np.arange(4), attrs={"note": "<i>"})
        assert "next version 1" in w._repr_html_()
        w.end_step()
        with fb.open("heat", observer=True) as r:
            shown = r._repr_html_()
            assert "versions 0 to 0" in shown and "&lt;b&gt;plate" in shown and "<b>plate" not in shown
            with r[0] as step:
                assert "&lt;T&gt;" in step._repr_html_() and "<T>" not in step._repr_html_()
                assert "&lt;i&gt;" in step["<T>"]._repr_html_()
        assert "closed" in r._repr_html_()
    assert "closed" in w._repr_html_()
