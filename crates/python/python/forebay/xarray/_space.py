"""The observer through which a process looks at a space.

No writer waits for it. All datasets of one space share it, as a space has places for a limited number of observers.
"""

import os
import threading
import weakref
from collections import OrderedDict
from typing import ClassVar

import forebay as fb
from forebay import errors


# A space stays open for so long behind its last use. Tasks of a Dask worker open it one after the other, and mapping a
# pool takes longer than reading a chunk.
_KEPT_SECONDS = 5.0
_KEPT_MAX = 4


class Space:
    """One observer of a space, shared by all sources of this process."""

    _all: ClassVar["weakref.WeakValueDictionary[str, Space]"] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    # Used since the timer ran last, or (False) in the time before that; the timer drops those.
    _kept: ClassVar["OrderedDict[Space, bool]"] = OrderedDict()
    _timer: ClassVar[threading.Timer | None] = None

    def __init__(self, reader: fb.Reader) -> None:
        self.reader = reader
        self.path = reader.path
        self.pid = os.getpid()
        self._file = _file(self.path)

    @classmethod
    def at(cls, name: str | os.PathLike[str], timeout: float = 0.0) -> "Space":
        """The space that has this name or path now. Waits for it as long as the timeout; raises ``PeerMissing``."""
        path = os.path.join(fb.root(), name) if isinstance(name, str) else os.fspath(name)
        with cls._lock:
            known = cls._all.get(os.path.abspath(path))
            if known is not None and known.usable():
                known._keep()
                return known
        try:
            reader = fb.open(name, observer=True, timeout=timeout)
        except errors.OptionMismatch:
            reader = fb.open(name, observer=True, timeout=timeout, channel="files")
        space = cls(reader)
        with cls._lock:
            cls._all[os.path.abspath(space.path)] = space
            space._keep()
        return space

    def _keep(self) -> None:
        """Keeps it open for a while; called with the lock."""
        kept = Space._kept
        kept[self] = True
        kept.move_to_end(self)
        if len(kept) > _KEPT_MAX:
            kept.popitem(last=False)
        if Space._timer is None:
            Space._start_timer()

    @classmethod
    def _start_timer(cls) -> None:
        cls._timer = threading.Timer(_KEPT_SECONDS, cls._drop_unused)
        cls._timer.daemon = True
        cls._timer.start()

    @classmethod
    def _drop_unused(cls) -> None:
        with cls._lock:
            cls._timer = None
            dropped = [space for space, used in cls._kept.items() if not used]
            for space in dropped:
                del cls._kept[space]
            for space in cls._kept:
                cls._kept[space] = False
            if cls._kept:
                cls._start_timer()
        # The last reference may end here, outside the lock: closing takes time.
        del dropped

    def usable(self) -> bool:
        """Whether this process opened it, and its path still leads to it: a writer may have replaced it."""
        return self.pid == os.getpid() and self._file is not None and self._file == _file(self.path)

    @property
    def uuid(self) -> str:
        """What tells this space from one that replaced it under its name."""
        return self.reader.uuid


def _after_fork() -> None:
    """The child opens spaces for itself; another thread of the parent may have held the lock."""
    Space._lock = threading.Lock()
    Space._all = weakref.WeakValueDictionary()
    Space._kept = OrderedDict()
    Space._timer = None


os.register_at_fork(after_in_child=_after_fork)


def _file(path: str) -> tuple[int, int] | None:
    """The file of the space's state. The observer maps it, so that no other file gets its number meanwhile."""
    try:
        found = os.stat(os.path.join(path, "control"))
    except OSError:
        return None
    return found.st_dev, found.st_ino
