"""``forebay.zarr.Cache``: what another store of Zarr holds, kept on the tiers of this node when it was read once.

``Cache(store, "era5", budget="100GiB")`` stands before a store that is far or slow (S3, a parallel file system); all
processes of the node that open the same name share what any of them has read.

Guarantees: values never take more than the budget (each process has about a MiB beside); a process that is killed harms
nothing; a value is fetched by one process at a time; what is set or deleted through a cache is not read from it
afterwards. What is written past the cache is not noticed: the store holds data that stay as they are. Not here: missing
keys, which are asked for each time.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store as ZarrStore,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from forebay import errors
from forebay._forebay import ReadStep, _bytes
from forebay.zarr._buffers import bytes_of, part_of
from forebay.zarr._locks import LockFile
from forebay.zarr._objects import Link, Member, Objects, directory_of
from forebay.zarr._reads import THREAD_BYTES

_PAUSE_SECONDS_MAX = 0.02


class _Kept(Objects):
    """Objects of which the oldest go when space is needed, but for those that were read since they came."""

    def holds_more_than(self, size: int, key: str) -> bool:
        """Whether there is an object of more bytes; not for a key that only the store can have."""
        with contextlib.suppress(errors.Error, UnicodeError):
            return (self.size(key) or 0) > size
        return False

    def used(self, key: str) -> None:
        """Notes that an object was read: it stays once more."""
        path = self._path_of(key)
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_mtime_ns:
                os.utime(path, ns=(0, 0), follow_symlinks=False)

    def _keep(self, member: Member, key: str, link: Link, step: ReadStep, end: float) -> None:
        path = self._path_of(key)
        with self._locked(key):
            if Link.read(path) != link:
                return
            if os.lstat(path).st_mtime_ns:
                self._unlink(path)
                return
        super()._keep(member, key, link, step, end)

    def put(self, key: str, data: NDArray[np.uint8], *, only_new: bool = False) -> bool:
        """Puts an object, if it can be kept; what cannot is read from the store again."""
        # The first round through may find that all were read, the second does not.
        for _ in range(2):
            with contextlib.suppress(errors.Error, OSError, UnicodeError):
                return super().put(key, data, only_new=only_new)
        return False


class Cache(ZarrStore):
    """A store that keeps what it has read from ``store`` on the tiers of this node, under ``name``.

    ``name`` is a short name or a path, as of ``Store``; each process that opens it says a store with the same data.
    ``budget`` is the most that the cache takes on this node; each of ``processes`` processes may hold an equal part of
    it, and further ones only read. ``tier`` and ``spill`` are those of ``forebay.open``: the budget is of the first
    tier, lower ones have their own quota.

    When the part of a process is full, the oldest values go that were not read again. A part of a value (as the shards
    of Zarr are read) is kept as that part. Writing goes to the store; a value that cannot be kept is only passed on.
    Errors are those of the store, and those of ``Store``.
    """

    supports_partial_writes = False

    def __init__(
        self,
        store: ZarrStore,
        name: str | os.PathLike[str],
        *,
        budget: int | str,
        processes: int = 1,
        read_only: bool | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        super().__init__(read_only=store.read_only if read_only is None else read_only)
        unknown = set(options) - {"tier", "spill"}
        if unknown:
            raise TypeError(f"Cache() takes tier and spill, not {min(unknown)}")
        if processes < 1:
            raise errors.Usage(f"processes is {processes}, not a number from 1 on")
        self.store = store
        #: Directory of what is kept.
        self.path: str = directory_of(name)
        self._state = {"budget": budget, "processes": processes, "timeout": timeout, **options}
        self._timeout = timeout
        self._objects = _Kept(
            self.path,
            create=True,
            timeout=timeout,
            options={"quota": _bytes(budget) // processes, "processes": processes, **options},
            members_max=processes,
        )
        # A value that does not fit now is only passed on.
        self._objects.patience = 0.0
        self._fetching = os.path.join(self.path, "fetching")
        # Shared with those that `with_read_only` makes.
        self._counts = {"hits": 0, "misses": 0}

    @property
    def supports_writes(self) -> bool:  # type: ignore[override]
        return self.store.supports_writes

    @property
    def supports_deletes(self) -> bool:  # type: ignore[override]
        return self.store.supports_deletes

    @property
    def supports_listing(self) -> bool:  # type: ignore[override]
        return self.store.supports_listing

    async def _open(self) -> None:
        await super()._open()
        await self.store._ensure_open()

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same cache, to be read only, or to be written."""
        store = self.store if read_only else self.store.with_read_only(False)
        other = type(self)(store, self.path, read_only=read_only, **self._state)
        other._counts = self._counts
        return other

    @property
    def hits(self) -> int:
        """Values, and parts of them, that this process has read from the cache."""
        return self._counts["hits"]

    @property
    def misses(self) -> int:
        """Values, and parts of them, that this process has asked the store for."""
        return self._counts["misses"]

    # --- reading

    def _kept(self, entry: str) -> NDArray[np.uint8] | None:
        """What is kept under a name; what a crash of the machine took is forgotten."""
        try:
            data = self._objects.get(entry)
        except errors.Damaged:
            self._objects.delete(entry)
            return None
        except (errors.Usage, errors.Io, UnicodeError):
            # A key that only the store can have.
            return None
        if data is not None:
            self._objects.used(entry)
        return data

    def _find(self, key: str, byte_range: ByteRequest | None) -> NDArray[np.uint8] | None:
        """A value, or part of it, if it is kept."""
        whole = self._kept(_entry(key, None))
        if whole is not None:
            return part_of(whole, byte_range)
        return None if byte_range is None else self._kept(_entry(key, byte_range))

    async def _found(self, key: str, byte_range: ByteRequest | None) -> NDArray[np.uint8] | None:
        if self._objects.holds_more_than(THREAD_BYTES, _entry(key, None)):
            return await asyncio.to_thread(self._find, key, byte_range)
        return self._find(key, byte_range)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The value of a key, or part of it; None where the store has none."""
        prototype = prototype or default_buffer_prototype()
        data = await self._found(key, byte_range)
        if data is None:
            async with self._alone(key, strict=False) as is_alone:
                # Another process may have fetched it meanwhile.
                data = await self._found(key, byte_range) if is_alone else None
                if data is None:
                    self._counts["misses"] += 1
                    value = await self.store.get(key, prototype, byte_range)
                    if value is not None and is_alone:
                        entry, data = _entry(key, byte_range), bytes_of(value)
                        await _through(asyncio.to_thread(self._objects.put, entry, data))
                    return value
        self._counts["hits"] += 1
        return prototype.buffer.from_array_like(cast("Any", data))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Values of several keys, or parts of them."""
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    @contextlib.asynccontextmanager
    async def _alone(self, key: str, *, strict: bool) -> AsyncIterator[bool]:
        """Holds the lock under which a key is fetched or changed; the kernel drops it when this process is killed.

        Yields whether it is held: where another process has had it too long, it is not, or with ``strict`` that is an
        error.
        """
        # An open file of its own also keeps the tasks of this process apart.
        file = LockFile(self._fetching)
        try:
            end, pause = time.monotonic() + self._timeout, 0.0002
            while not (is_held := file.try_lock(key)) and time.monotonic() < end:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            if strict and not is_held:
                raise errors.TimedOut(
                    f"other processes have been fetching {key!r} for {self._timeout:g} s",
                    hint="they may be stopped: fuser shows which processes have the file `fetching` open",
                )
            yield is_held
        finally:
            file.close()

    async def exists(self, key: str) -> bool:
        """Whether the store has such a key."""
        return await self.store.exists(key)

    async def getsize(self, key: str) -> int:
        """Bytes of a value."""
        return await self.store.getsize(key)

    # --- writing

    async def set(self, key: str, value: Buffer) -> None:
        """Sets a value in the store, and forgets what was kept of it."""
        self._check_writable()
        async with self._alone(key, strict=True):
            self._forget(key)
            await _through(self.store.set(key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Sets a value in the store where the key has none."""
        self._check_writable()
        async with self._alone(key, strict=True):
            await _through(self.store.set_if_not_exists(key, value))

    async def delete(self, key: str) -> None:
        """Deletes a key in the store, and forgets what was kept of it."""
        self._check_writable()
        async with self._alone(key, strict=True):
            self._forget(key)
            await _through(self.store.delete(key))

    def _forget(self, key: str) -> None:
        # Keys that only the store can have are not kept.
        with contextlib.suppress(errors.Usage, errors.Io, UnicodeError):
            for name in list(self._objects.names(key)):
                if name.startswith(":"):
                    self._objects.delete(f"{key}/{name}")

    async def delete_dir(self, prefix: str) -> None:
        """Deletes all keys below ``prefix`` in the store."""
        self._check_writable()
        for key in [key async for key in self.store.list_prefix(prefix.strip("/") + "/" if prefix.strip("/") else "")]:
            await self.delete(key)

    async def clear(self) -> None:
        """Deletes all keys in the store."""
        await self.delete_dir("")

    async def evict(self) -> None:
        """Forgets all that is kept, for all processes; the store stays as it is."""
        await asyncio.to_thread(self._objects.delete_below, "")

    # --- listing

    def list(self) -> AsyncIterator[str]:
        """All keys of the store."""
        return self.store.list()

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys of the store that begin with ``prefix``."""
        return self.store.list_prefix(prefix)

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """What lies directly below ``prefix`` in the store."""
        return self.store.list_dir(prefix)

    # --- this object

    def close(self) -> None:
        """Closes the cache here, and the store; what is kept stays for other processes."""
        self._objects.close()
        self.store.close()
        super().close()

    def destroy(self) -> None:
        """Removes the cache, not the store, which is closed. ``NameInUse`` while another process has it open."""
        self._objects.destroy()
        self.store.close()
        super().close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and (self.path, self.store) == (other.path, other.store)

    def __hash__(self) -> int:
        return hash(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "name": self.path, "read_only": self.read_only, **self._state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __str__(self) -> str:
        return f"forebay:{self.path} before {self.store}"

    def __repr__(self) -> str:
        return f"forebay.zarr.Cache({self.store!r}, {self.path!r})"


async def _through(work: Awaitable[Any]) -> None:
    """Waits for what must not go on when a lock is dropped, also when this task is cancelled: then afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


def _entry(key: str, byte_range: ByteRequest | None) -> str:
    """Under which key of ours a value, or a part of it, is kept."""
    match byte_range:
        case RangeByteRequest(start, end):
            what = f":{start}-{end}"
        case OffsetByteRequest(offset):
            what = f":{offset}-"
        case SuffixByteRequest(suffix):
            what = f":-{suffix}"
        case _:
            what = ":all"
    return f"{key}/{what}"
