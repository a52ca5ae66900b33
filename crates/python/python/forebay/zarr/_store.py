"""``forebay.zarr.Store``: a store that Zarr reads and writes, on the tiers of this node, shared by its processes.

``zarr.create_group(Store("results"))`` holds chunks and documents as objects in memory, or on whatever tier is asked
for; other processes of the node that open the same name see them at once.

Guarantees: a ``set`` that has returned is kept as the tier and the horizon say (in memory: also when the process is
killed); what is read is a whole value that was set under that key. Not here: other nodes.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from zarr.core.buffer import Buffer

from forebay.zarr._buffers import bytes_of
from forebay.zarr._objects import Objects, directory_of
from forebay.zarr._reads import THREAD_BYTES, Reads


class Store(Reads):
    """A Zarr store of all processes of this node: ``zarr.create_array(Store("results"), …)``.

    ``name`` is a short name, or with a ``/`` the path of a directory, which is made when it is missing (not with
    ``read_only``). The first process says how data are kept, and the others take that over: ``tier``, ``quota`` (of
    each process that writes), ``spill``, ``horizon``, ``checksum`` mean what they mean to ``forebay.open``.

    Each writing process has a space of its own in the directory, in which memory of values that were replaced or
    deleted is used again; what a killed process wrote stays, and the next writer goes on with its space. Values of one
    key that processes set at the same time replace one another whole. ``a`` and ``a/b`` can both be keys.

    Pickles by path. Errors are those of ``forebay.open``, ``QuotaFull`` and ``Damaged``.
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(self, name: str | os.PathLike[str], *, read_only: bool = False, timeout: float = 60.0, **options: Any):
        super().__init__(read_only=read_only)
        unknown = set(options) - _OPTIONS
        if unknown:
            raise TypeError(f"Store() takes {', '.join(sorted(_OPTIONS))}, not {min(unknown)}")
        #: Directory of the store.
        self.path: str = directory_of(name)
        self._timeout = timeout
        self._options = options
        self._made: Objects | None = None

    @property
    def _objects(self) -> Objects:
        made = self._made
        if made is None:
            with _making:
                made = self._made
                if made is None:
                    create = not self.read_only
                    made = Objects(self.path, create=create, timeout=self._timeout, options=self._options)
                    self._made = made
            self._is_open = True
        return made

    async def _open(self) -> None:
        await super()._open()
        _ = self._objects

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same store, to be read only, or to be written."""
        return type(self)(self.path, read_only=read_only, timeout=self._timeout, **self._options)

    # --- reading

    def _value(self, key: str) -> NDArray[np.uint8] | None:
        return self._objects.get(key)

    def _length(self, key: str) -> int:
        return self._objects.size(key) or 0

    async def exists(self, key: str) -> bool:
        """Whether there is such a key."""
        return self._objects.size(key) is not None

    async def getsize(self, key: str) -> int:
        """Bytes of a value; ``FileNotFoundError`` where there is none."""
        size = self._objects.size(key)
        if size is None:
            raise FileNotFoundError(key)
        return size

    # --- writing

    def set_sync(self, key: str, value: Buffer) -> None:
        """As ``set``, without an event loop."""
        self._check_writable()
        self._objects.put(key, bytes_of(value))

    async def set(self, key: str, value: Buffer) -> None:
        """Sets a value; kept when this returns. Raises ``QuotaFull``."""
        self._check_writable()
        data = bytes_of(value)
        if data.nbytes > THREAD_BYTES:
            await asyncio.to_thread(self._objects.put, key, data)
        else:
            self._objects.put(key, data)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Sets a value where the key has none."""
        self._check_writable()
        self._objects.put(key, bytes_of(value), only_new=True)

    def delete_sync(self, key: str) -> None:
        """As ``delete``, without an event loop."""
        self._check_writable()
        self._objects.delete(key)

    async def delete(self, key: str) -> None:
        """Deletes a key, where it is there."""
        self.delete_sync(key)

    async def delete_dir(self, prefix: str) -> None:
        """Deletes all keys below ``prefix``."""
        self._check_writable()
        await asyncio.to_thread(self._objects.delete_below, prefix.strip("/"))

    async def clear(self) -> None:
        """Deletes all keys."""
        await self.delete_dir("")

    # --- listing

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        for key in self._objects.keys():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that begin with ``prefix``."""
        for key in self._objects.keys(prefix.rpartition("/")[0]):
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """What lies directly below ``prefix``."""
        for name in self._objects.names(prefix):
            yield name

    # --- this object

    def close(self) -> None:
        """Closes the spaces here; what was set stays."""
        if self._made is not None:
            self._made.close()
            self._made = None
        super().close()

    def destroy(self) -> None:
        """Removes the store, with what lies on lower tiers. ``NameInUse`` while another process has it open."""
        self._check_writable()
        self._objects.destroy()
        self._made = None
        super().close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.path, "read_only": self.read_only, "timeout": self._timeout, **self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __str__(self) -> str:
        return f"forebay:{self.path}"

    def __repr__(self) -> str:
        return f"forebay.zarr.Store({self.path!r})"


# Held while a store is opened by one of several threads.
_making = threading.Lock()
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)
# What the first process may say of how data are kept.
_OPTIONS = frozenset(["tier", "quota", "spill", "horizon", "checksum"])
