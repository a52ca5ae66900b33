"""Arrays of a space as tensors, and tensors as arrays, over the same memory.

Guarantees: nothing is copied, and no warning is raised for memory that is read-only. A tensor keeps its array alive,
and with it the version. Not here: memory of devices, sparse and quantized tensors.
"""

import ctypes
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

_Array = np.ndarray[Any, Any]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What a type that NumPy has not is seen as: bits of the same width."""

_KNOWN = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    }
)


def tensor_of(array: _Array) -> torch.Tensor:
    """The tensor over a C-contiguous array's memory, which may be read-only: then storing into it is a fault."""
    if array.dtype.name == "bfloat16":
        return tensor_of(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.utils.dlpack.from_dlpack(array)
    except BufferError:
        # A torch or a NumPy that exchanges no read-only memory.
        return _by_address(array)


def _by_address(array: _Array) -> torch.Tensor:
    dtype = getattr(torch, array.dtype.name)
    if array.nbytes == 0:
        return torch.empty(array.shape, dtype=dtype)
    memory = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    memory.owner = array  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=dtype).view(array.shape)


def seen_as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or its bits as integers where NumPy has not its type (bfloat16, float8)."""
    tensor = tensor.detach()
    return tensor if tensor.dtype in _KNOWN else tensor.view(_BITS[tensor.element_size()])


def array_of(tensor: torch.Tensor) -> _Array:
    """The array over a tensor's memory, which is the host's and C-contiguous; bits where NumPy has not its type."""
    found: _Array = seen_as_bits(tensor).numpy()
    return found
