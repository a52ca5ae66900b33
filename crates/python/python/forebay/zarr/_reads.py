"""What the stores of Zarr have in common: reads of whole values and of parts, with and without an event loop."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from forebay.zarr._buffers import part_of

# Larger values are moved in a thread, so that the event loop goes on; handing them over takes as long as copying a MiB.
THREAD_BYTES = 8 << 20


class Reads(Store):
    """A store whose values come from ``_value``."""

    def _value(self, key: str) -> NDArray[np.uint8] | None:
        """The bytes under a key; None where there is no such key."""
        raise NotImplementedError

    def _length(self, key: str) -> int:
        """About how many bytes ``_value`` reads; 0 where there is no such key."""
        raise NotImplementedError

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As ``get``, without an event loop."""
        data = self._value(key)
        if data is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_array_like(cast("Any", part_of(data, byte_range)))

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The value of a key, or part of it; None where there is none."""
        if self._length(key) > THREAD_BYTES:
            return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)
        return self.get_sync(key, prototype=prototype, byte_range=byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Values of several keys, or parts of them."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]
