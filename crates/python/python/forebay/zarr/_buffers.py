"""Between buffers of Zarr and arrays of bytes."""

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer


def part_of(data: NDArray[np.uint8], byte_range: ByteRequest | None) -> NDArray[np.uint8]:
    """The bytes that a request of Zarr asks for, as a view; those beyond the end are left out."""
    match byte_range:
        case None:
            return data
        case RangeByteRequest(start, end):
            return data[start:end]
        case OffsetByteRequest(offset):
            return data[offset:]
        case SuffixByteRequest(suffix):
            return data[max(len(data) - suffix, 0) :]
    raise ValueError(f"Unexpected byte_range, got {byte_range}.")


def bytes_of(value: Buffer) -> NDArray[np.uint8]:
    """The bytes of a buffer of Zarr, copied only where they do not lie in this memory, one behind the other."""
    if not isinstance(value, Buffer):
        raise TypeError(f"a value is a zarr.core.buffer.Buffer, not {type(value).__name__}")
    return np.ascontiguousarray(value.as_numpy_array()).reshape(-1).view("u1")
