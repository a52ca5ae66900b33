"""Boxes of one array that go into several places: one box around them, and where it is read to.

Guarantees: where the places lie in memory as the box does (a tensor that several ranks had saved parts of), it is read
there, without a copy. Not here: reading.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from forebay.torch._stored import Stored
from forebay.torch._tensors import array_of, seen_as_bits


class Part(NamedTuple):
    """A box of an array, and the tensor of its shape that it goes to."""

    start: tuple[int, ...]
    target: torch.Tensor

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple(self.target.shape)


class Gather:
    """All parts of one array that a rank reads."""

    def __init__(self, stored: Stored, parts: Sequence[Part]) -> None:
        self.name, self.shape = stored.name, stored.shape
        self._parts = parts
        axes = range(len(self.shape))
        self.start = tuple(min(part.start[axis] for part in parts) for axis in axes)
        end = tuple(max(part.start[axis] + part.extent[axis] for part in parts) for axis in axes)
        extent = tuple(end[axis] - self.start[axis] for axis in axes)
        self._whole = self._in_place(extent, stored.dtype)
        self._copied = self._whole is None
        if self._whole is None:
            self._whole = torch.empty(extent, dtype=stored.dtype)
        self.array: Any = array_of(self._whole)

    def _in_place(self, extent: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """The memory of the targets as one tensor, where they tile it."""
        first = self._parts[0].target
        if first.device.type != "cpu" or first.dtype != dtype or first.layout != torch.strided:
            return None
        if sum(math.prod(part.extent) for part in self._parts) != math.prod(extent):
            return None
        strides = first.stride()
        origin = None
        for start, target in self._parts:
            if target.dtype != dtype or target.device.type != "cpu" or target.stride() != strides:
                return None
            inside = sum((at - low) * stride for at, low, stride in zip(start, self.start, strides, strict=True))
            here = target.data_ptr() - inside * target.element_size()
            if here != (origin or here):
                return None
            origin = here
        lowest = min(self._parts, key=lambda part: part.target.storage_offset())
        inside = sum((at - low) * stride for at, low, stride in zip(lowest.start, self.start, strides, strict=True))
        offset = lowest.target.storage_offset() - inside
        if offset < 0:
            return None
        try:
            whole = torch.as_strided(lowest.target.detach(), extent, strides, offset)
        except RuntimeError:
            # It would reach beyond the memory: the targets lie in several.
            return None
        return whole if whole.is_contiguous() and not whole.is_conj() and not whole.is_neg() else None

    def deliver(self) -> None:
        """Copies what was not read in place."""
        if not self._copied or self._whole is None:
            return
        for start, target in self._parts:
            part = self._whole
            for axis, (at, low, length) in enumerate(zip(start, self.start, target.shape, strict=True)):
                part = part.narrow(axis, at - low, length)
            target.detach().copy_(part)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as it can be saved: itself where it is the host's and C-contiguous, else a copy."""
    return seen_as_bits(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous())
