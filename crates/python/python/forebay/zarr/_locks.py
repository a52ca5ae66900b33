"""Locks of keys against other processes: one byte of a file each, by a hash of the key.

Guarantees: the kernel releases a lock when its process is killed, also when a child that was forked meanwhile lives on.
The lock is of the open file, so that two open files of one process exclude each other. Not here: waiting.
"""

import fcntl
import os
import struct
import weakref
import zlib

_KEYS = 1 << 20
# Of this process; a forked child has none of them.
_open: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


class LockFile:
    """An open file whose bytes are locked, made when it is missing. Holds one lock at a time."""

    def __init__(self, path: str) -> None:
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _open.add(self)

    def try_lock(self, key: str) -> bool:
        """Takes the lock of a key; returns whether it is held now."""
        at = zlib.crc32(key.encode(errors="surrogatepass")) % _KEYS
        try:
            self._set(fcntl.F_WRLCK, at, 1)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self) -> None:
        """Releases the lock."""
        self._set(fcntl.F_UNLCK, 0, 0)

    def close(self) -> None:
        """Releases the lock and closes the file. Closing alone is not enough: a child may just be forked."""
        if self._file is not None:
            self.unlock()
            self.forget()

    def forget(self) -> None:
        """Closes the file alone: in a forked child, where the lock is its parent's."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def is_open(self) -> bool:
        """Whether this process has opened and not closed it."""
        return self._file is not None

    def _set(self, kind: int, start: int, length: int) -> None:
        assert self._file is not None
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, start, length, 0))


def _forked() -> None:
    for file in list(_open):
        file.forget()


os.register_at_fork(after_in_child=_forked)
