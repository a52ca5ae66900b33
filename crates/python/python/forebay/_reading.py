"""What a reader does besides reading its stream in turn: choosing a version, iterating in an event loop, being opened
again in another process."""

import asyncio
import time
from collections.abc import Mapping
from typing import Literal, Self

from forebay import errors
from forebay._forebay import Reader, ReaderSteps, ReadStep
from forebay._forebay import open as open_space

# Longest wait of a thread for a step, and so of the end of a task that was cancelled.
_SLICE_SECONDS = 0.1


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
    return reader.open_version(_nearest(reader, key, wanted))


def _nearest(reader: Reader, key: str, wanted: float) -> int:
    """The version whose attribute is nearest to ``wanted``. Versions without it, or whose attribute is no number, do
    not count; nor does one that is dropped meanwhile."""
    best: tuple[float, int] | None = None
    for version in reader.versions():
        try:
            with reader.open_version(version) as step:
                value = step.attrs.get(key)
        except errors.VersionGone:
            continue
        if isinstance(value, (int, float)):
            distance = abs(value - wanted)
            if best is None or distance <= best[0]:
                best = (distance, version)
    if best is None:
        hint = f'writers set it with step.attrs["{key}"] = ...'
        raise errors.UnknownKey(f"no version has a number as attribute {key}", {}, hint)
    return best[1]


class AsyncSteps:
    """``async for step in reader``: the steps of the stream, each waited for in a thread, so that other tasks run.

    A step is open until the next one is asked for. Raises TimedOut when one takes longer than the reader's timeout; go
    on by iterating again. A task that is cancelled while it waits loses no step: the next iteration gets it.
    """

    def __init__(self, steps: ReaderSteps, timeout: float) -> None:
        self._steps = steps
        self._timeout = timeout
        self._pending: asyncio.Future[ReadStep | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadStep:
        deadline = time.monotonic() + self._timeout
        while True:
            left = deadline - time.monotonic()
            if self._pending is None:
                wait = min(_SLICE_SECONDS, max(left, 0.0))
                self._pending = asyncio.ensure_future(asyncio.to_thread(self._steps._next_within, wait))
            try:
                step = await asyncio.shield(self._pending)
            except errors.TimedOut:
                self._pending = None
                if left <= _SLICE_SECONDS:
                    raise
                continue
            except asyncio.CancelledError:
                # The thread may have a step in hand: it stays for the next iteration.
                raise
            except BaseException:
                self._pending = None
                raise
            self._pending = None
            if step is None:
                raise StopAsyncIteration
            return step


def open_reader(path: str, channel: Literal["space", "files"]) -> Reader:
    """A reader that only looks, as it was pickled."""
    return open_space(path, channel=channel, observer=True)


def open_step(path: str, channel: Literal["space", "files"], version: int) -> ReadStep:
    """A version as it was pickled; held by this process from now on."""
    with open_reader(path, channel) as reader:
        return reader.open_version(version)
