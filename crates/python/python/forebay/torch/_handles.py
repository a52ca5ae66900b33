"""The checkpoints that this process has open for ``torch.distributed.checkpoint``, by their directory.

Guarantees: a directory is open once in a process: a reader closes what a writer had open there, and the other way
round. Closing waits until every step has arrived in the last level, and raises what went wrong on the way. Not here:
what is saved.
"""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import forebay as fb
from forebay import errors

Levels = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

# Ranks close what they have open one after the other; until the last has, a group of another size is refused.
_OTHERS_CLOSE_SECONDS = 60.0

_open: dict[str, list[fb.Checkpoint]] = {}
_lock = threading.Lock()


def levels_of(levels: Levels) -> list[str | os.PathLike[str]]:
    """Levels as ``Checkpoint`` takes them, of a list or of one text with semicolons."""
    if isinstance(levels, str):
        return [level.strip() for level in levels.split(";") if level.strip()]
    return [levels] if isinstance(levels, os.PathLike) else list(levels)


def opened(path: str, levels: Sequence[Any], options: dict[str, Any], *, rank: int, size: int) -> fb.Checkpoint:
    """One rank of a checkpoint. Waits for other ranks that are about to close the directory."""
    deadline = time.monotonic() + (options.get("timeout") or _OTHERS_CLOSE_SECONDS)
    while True:
        try:
            handle = fb.Checkpoint(path, levels, rank=rank, size=size, **options)
            break
        except errors.NameInUse:
            if path not in _open or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    with _lock:
        _open.setdefault(path, []).append(handle)
    return handle


def close(path: str) -> None:
    """Closes what this process has open there. The directory stays known as one that its ranks have had open."""
    with _lock:
        handles = _open.get(path, [])
        if path in _open:
            _open[path] = []
    failure: BaseException | None = None
    for handle in handles:
        try:
            handle.close()
        except fb.Error as e:
            failure = failure or e
    if failure is not None:
        raise failure


def _after_fork() -> None:
    """The child opens for itself; another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
