"""Which samples of a version belong to which shard, and in which order a shard hands them out.

Guarantees: the shards of a version are disjoint and complete; their sizes differ by one sample at most, and which
shard gets the rest goes round with the versions. An order depends on seed, epoch, shard and window alone, and is
continued from a single number. Not here: what a sample is.
"""

from dataclasses import dataclass
from typing import Any

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Shard:
    """One of all workers of all ranks."""

    index: int
    count: int

    def of(self, version: int, samples: int) -> tuple[int, int]:
        """The samples of a version that are this shard's, first and end: neighbours, so that they are one view."""
        part = (self.index - version) % self.count
        return samples * part // self.count, samples * (part + 1) // self.count


class Draws:
    """Numbers that look random, each a function of the key and how many were drawn before."""

    def __init__(self, seed: int, epoch: int, shard: Shard, drawn: int = 0) -> None:
        self.drawn = drawn
        self._key = 0
        for part in (seed, epoch, shard.index, shard.count):
            self._key = _mixed(self._key ^ _mixed(part & _MASK))

    def below(self, bound: int) -> int:
        """The next number, from 0 to bound - 1."""
        self.drawn += 1
        return _mixed(self._key + self.drawn * 0x9E3779B97F4A7C15) * bound >> 64

    def take_from(self, items: list[Any]) -> Any:
        """Takes one out; the last one gets its place."""
        at = self.below(len(items))
        items[at], items[-1] = items[-1], items[at]
        return items.pop()


def _mixed(value: int) -> int:
    """SplitMix64's finaliser."""
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
