"""What a reader does besides reading its stream in turn: choosing a version, iterating in an event loop, being opened
again in another process."""

import asyncio
import contextlib
import math
import operator
import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, Self, cast

from forebay import errors
from forebay._forebay import Reader, ReaderSteps, ReadStep
from forebay._forebay import open as open_space

# How long an event loop goes on between two looks for a step: doubled from the least to the longest.
_PAUSE_MIN_SECONDS = 0.0002
_PAUSE_MAX_SECONDS = 0.01


def select(reader: Reader, version: int | None, nearest: Mapping[str, float] | None) -> ReadStep:
    """Opens ``version``, the version whose attribute is nearest to a number (the newer of two), or the newest one."""
    if version is not None:
        if nearest:
            raise errors.Usage("a version was chosen by its number and by an attribute", {}, "give one of them")
        return reader.open_version(version)
    if not nearest:
        newest = reader.latest()
        if newest is None:
            raise errors.TimedOut("the space has no complete version", {}, "reader.wait(0) blocks until it has")
        return reader.open_version(newest)
    if len(nearest) > 1:
        raise errors.Usage(f"{len(nearest)} attributes were given", {}, "a version is chosen by one attribute")
    ((key, wanted),) = nearest.items()
    number: int | float
    try:
        number = float(wanted)
        # A float would round large integers, such as times in nanoseconds.
        with contextlib.suppress(TypeError):
            number = operator.index(cast(Any, wanted))
    except (TypeError, ValueError, OverflowError) as e:
        raise errors.UsageType(f"{key}={wanted!r} is not a number", {}, "a version is chosen by a number") from e
    if math.isnan(number):
        raise errors.Usage(f"{key}={wanted!r} is not a number", {}, "give a number")
    return _nearest(reader, key, number)


def _nearest(reader: Reader, key: str, wanted: int | float) -> ReadStep:
    """The version whose attribute is nearest to ``wanted``. Versions without it, or whose attribute is no number or
    NaN, do not count; nor does one that is dropped meanwhile."""
    best: ReadStep | None = None
    least: Fraction | float = math.inf
    for version in reader.versions():
        try:
            step = reader.open_version(version)
            value = step.attrs.get(key)
        except errors.VersionGone:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            step.close()
            continue
        distance = _distance(value, wanted)
        if best is not None and distance > least:
            step.close()
            continue
        if best is not None:
            best.close()
        # It stays open: it cannot be dropped before it is returned.
        best, least = step, distance
    if best is None:
        hint = f'writers set it with step.attrs["{key}"] = ...'
        raise errors.UnknownKey(f"no version has a number as attribute {key}", {}, hint)
    return best


def _distance(one: int | float, other: int | float) -> Fraction | float:
    """How far two numbers are apart, without rounding."""
    if one == other:
        return 0.0
    if any(isinstance(number, float) and math.isinf(number) for number in (one, other)):
        return math.inf
    return abs(Fraction(one) - Fraction(other))


class AsyncSteps:
    """``async for step in reader``: the steps of the stream, while other tasks of the event loop run.

    A step is open until the next one is asked for, by whatever iterates over this reader: one task at a time. Raises
    TimedOut when one takes longer than the reader's timeout; go on by iterating again. Nothing waits in the background,
    so a task that is cancelled loses no step. A step that has just become complete is seen some milliseconds later.
    """

    def __init__(self, steps: ReaderSteps, timeout: float) -> None:
        self._steps = steps
        self._timeout = timeout
        self._is_waiting = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadStep:
        if self._is_waiting:
            what = "another task waits for the next step of this iterator"
            raise errors.StepState(what, {}, "iterate in one task, and pass the data to the other tasks")
        self._is_waiting = True
        try:
            step = await self._next()
        finally:
            self._is_waiting = False
        if step is None:
            raise StopAsyncIteration
        return step

    async def _next(self) -> ReadStep | None:
        deadline = time.monotonic() + self._timeout
        pause = _PAUSE_MIN_SECONDS
        while True:
            is_late = time.monotonic() >= deadline
            try:
                return self._steps._next_now()
            except errors.TimedOut:
                if is_late:
                    raise
            await asyncio.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))
            pause = min(2 * pause, _PAUSE_MAX_SECONDS)


def open_reader(path: str, channel: Literal["space", "files"]) -> Reader:
    """A reader that only looks, as it was pickled."""
    return open_space(path, channel=channel, observer=True)


def open_step(path: str, channel: Literal["space", "files"], uuid: str, version: int) -> ReadStep:
    """A version as it was pickled; held by this process from now on. Does not wait for the space.

    Raises VersionGone when another space has its name now, or the version is dropped; PeerMissing when it is removed.
    """
    with open_space(path, channel=channel, observer=True, timeout=0) as reader:
        if reader.uuid != uuid:
            what = f"version {version} was of a space that was replaced by another one of its name"
            raise errors.VersionGone(what, {"space": path}, "open it again")
        return reader.open_version(version)
