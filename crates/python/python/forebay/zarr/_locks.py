"""Locks of keys against other processes: one byte of a file each, by a hash of the key.

Guarantees: the kernel releases a lock when its process is killed. The lock is of the open file, so that two open files
of one process exclude each other. Not here: waiting.
"""

import fcntl
import struct
import zlib

_KEYS = 1 << 20


def try_lock(file: int, key: str) -> bool:
    """Takes the lock of a key; returns whether it is held now."""
    at = zlib.crc32(key.encode(errors="surrogatepass")) % _KEYS
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, at, 1))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(file: int) -> None:
    """Releases the locks of an open file. Closing it is not enough: a child forked meanwhile has it open, too."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, 0))


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", kind, 0, start, length, 0)
