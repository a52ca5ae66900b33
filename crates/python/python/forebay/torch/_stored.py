"""What a step holds for ``torch.distributed.checkpoint``: which array is which item of a plan.

A tensor that no rank has more than one part of is one array of its own name and its whole shape, each rank's part a box
of it. The parts of other tensors are arrays of their own, ``NAME@OFFSETS``. Objects are bytes, one behind the other in
one array for each rank. One rank more than torch has, of the coordinator's process, saves torch's metadata: a step
counts when it has, which is when all other ranks are through.

Guarantees: names depend on the plans of all ranks alone. Not here: reading and writing.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

OWN = "forebay.torch/"
HEAD = OWN + "head"
"""Version of this layout, and bytes of the metadata, as two uint64."""
FORMAT = 1
METADATA = OWN + "metadata"
"""torch's Metadata, pickled."""


class Stored(NamedTuple):
    """Where an item lies: a box of an array."""

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    extent: tuple[int, ...]
    dtype: torch.dtype

    @property
    def is_empty(self) -> bool:
        """Nothing is saved of it."""
        return 0 in self.extent


class Share(NamedTuple):
    """What the coordinator tells each rank."""

    rank: int
    size: int
    split: frozenset[str]
    """Tensors of which some rank has several parts."""


def shares(plans: Sequence[SavePlan]) -> list[Share]:
    """One for each rank."""
    split: set[str] = set()
    for plan in plans:
        parts = Counter(item.index.fqn for item in plan.items if item.type != WriteItemType.BYTE_IO)
        split |= {name for name, count in parts.items() if count > 1}
    return [Share(rank, len(plans), frozenset(split)) for rank in range(len(plans))]


def tensor_at(item: WriteItem, dtype: torch.dtype, share: Share) -> Stored:
    """Where a tensor of a plan, or a part of one, belongs."""
    found = item.tensor_data
    assert found is not None
    start, extent = tuple(found.chunk.offsets), tuple(found.chunk.sizes)
    if item.index.fqn not in share.split:
        return Stored(item.index.fqn, tuple(found.size), start, extent, dtype)
    name = f"{item.index.fqn}@{','.join(map(str, start))}"
    return Stored(name, extent, tuple(0 for _ in extent), extent, dtype)


def objects_name(rank: int) -> str:
    """The array of a rank's objects."""
    return f"{OWN}objects.{rank}"


def joined(objects: Sequence[tuple[MetadataIndex, bytes]], rank: int) -> tuple[Any, dict[MetadataIndex, Stored]]:
    """Objects one behind the other, and where each lies."""
    total = sum(len(data) for _, data in objects)
    array = np.empty(total, np.uint8)
    places: dict[MetadataIndex, Stored] = {}
    at = 0
    for index, data in objects:
        array[at : at + len(data)] = np.frombuffer(data, np.uint8)
        places[index] = Stored(objects_name(rank), (total,), (at,), (len(data),), torch.uint8)
        at += len(data)
    return array, places
