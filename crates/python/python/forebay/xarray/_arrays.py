"""A variable of a space as a lazily indexed array of xarray.

Nothing is read before it is indexed. A box that lies in one piece and has 1 MiB or more is a view into the space, other
results are copies; both are read-only unless the source says to copy. Indexing may run in any number of threads.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from forebay.xarray._layout import Layout
from forebay.xarray._source import Source

_Array = np.ndarray[Any, Any]

_WASTE_MAX = 4
"""A list of indices is read as one range unless that is so many times as long; then run by run."""
_RUN_GAP = 16
"""Indices that are closer than this are one run."""


class SpaceArray(BackendArray):
    """One variable of one version, or of several along a first dimension."""

    __slots__ = ("dtype", "labels", "layout", "name", "shape", "source")

    def __init__(
        self, source: Source, name: str, layout: Layout, dtype: np.dtype[Any], labels: tuple[str, ...]
    ) -> None:
        self.source = source
        self.name = name
        self.layout = layout
        self.dtype = dtype
        self.labels = labels
        versions = (len(source.versions),) if source.stacked else ()
        self.shape: tuple[int, ...] = versions + layout.shape

    def __reduce__(self) -> tuple[Any, ...]:
        return SpaceArray, (self.source, self.name, self.layout, self.dtype, self.labels)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "forebay.xarray", *self.source.identity, self.name, self.dtype.str

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._outer)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """The same in a thread: reading copies, and maps files of lower tiers."""
        return await asyncio.to_thread(self.__getitem__, key)

    def _outer(self, key: tuple[Any, ...]) -> _Array:
        source = self.source
        data = self._stack(key[0], key[1:]) if source.stacked else self._one(source.newest, key)
        if not source.copy:
            data.flags.writeable = False
        return data

    def _one(self, version: int, key: tuple[Any, ...]) -> _Array:
        if self.layout.kind == "str":
            return np.array(self._text(version), dtype=object)
        parts = [_Part(k, n) for k, n in zip(key, self.layout.shape, strict=True)]
        return _squeezed(self._parts(version, parts), parts)

    def _parts(self, version: int, parts: list["_Part"]) -> _Array:
        """The elements that the parts select, each on its axis."""
        for axis, part in enumerate(parts):
            runs = part.runs()
            if runs is not None:
                blocks = [self._parts(version, [*parts[:axis], run, *parts[axis + 1 :]]) for run in runs]
                data = np.concatenate(blocks, axis=axis)
                return np.take(data, part.inverse(), axis=axis)
        data = self._read(version, parts)
        if self.dtype.kind == "S":
            data = data.view("S1")
        return _rest(data, parts, 0)

    def _stack(self, chosen: Any, key: tuple[Any, ...]) -> _Array:
        versions: Sequence[int] = self.source.versions
        if isinstance(chosen, int | np.integer):
            return self._one(versions[int(chosen)], key)
        some = list(versions[chosen]) if isinstance(chosen, slice) else [versions[int(i)] for i in chosen]
        if len(some) == 1:
            return self._one(some[0], key)[np.newaxis]
        if self.layout.kind == "str":
            return np.array([self._text(version) for version in some], dtype=object)
        parts = [_Part(k, n) for k, n in zip(key, self.layout.shape, strict=True)]
        if any(part.runs() is not None for part in parts) or not some:
            blocks = [self._parts(version, parts)[np.newaxis] for version in some]
            shape = (0, *(len(part) for part in parts))
            data = np.concatenate(blocks) if blocks else np.empty(shape, self.dtype)
        else:
            data = np.empty((len(some), *(part.box.stop - part.box.start for part in parts)), self.dtype)
            raw = data.view(np.uint8) if self.dtype.kind == "S" else data
            for i, version in enumerate(some):
                self._read(version, parts, out=raw[i, ...])
            data = _rest(data, parts, 1)
        return _squeezed(data, parts, 1)

    def _read(self, version: int, parts: list["_Part"], out: _Array | None = None) -> _Array:
        """The ranges of the parts."""
        box = tuple(part.box for part in parts)
        return self.source.read(self.name, version, box or None, out=out, layout=self._expected, labels=self.labels)

    def _text(self, version: int) -> str:
        return self.source.text(self.name, version, self._expected)

    @property
    def _expected(self) -> Layout | None:
        return self.layout if self.source.stacked else None


class _Part:
    """The key of one axis as a range to read and what to take of it."""

    __slots__ = ("box", "is_int", "rest")

    def __init__(self, key: Any, length: int) -> None:
        self.is_int = isinstance(key, int | np.integer)
        self.rest: slice | _Array | None = None
        if self.is_int:
            at = int(key) % length
            self.box = slice(at, at + 1)
        elif isinstance(key, slice):
            # xarray makes steps positive before it asks.
            places = range(*key.indices(length))
            self.box = slice(places[0], places[-1] + 1) if places else slice(0, 0)
            if places and places.step != 1:
                self.rest = slice(None, None, places.step)
        else:
            indices = np.asarray(key)
            indices = np.where(indices < 0, indices + length, indices)
            first = int(indices.min()) if indices.size else 0
            self.box = slice(first, int(indices.max()) + 1 if indices.size else 0)
            self.rest = indices - first

    def __len__(self) -> int:
        if isinstance(self.rest, np.ndarray):
            return len(self.rest)
        size: int = self.box.stop - self.box.start
        return size if self.rest is None else -(-size // abs(self.rest.step))

    def runs(self) -> "list[_Part] | None":
        """Ranges that hold all indices, where one range would hold far more than them; else None."""
        if not isinstance(self.rest, np.ndarray) or self.rest.size == 0:
            return None
        if self.box.stop - self.box.start <= _WASTE_MAX * (self.rest.size + _RUN_GAP):
            return None
        sorted_once = np.unique(self.rest) + self.box.start
        ends = np.flatnonzero(np.diff(sorted_once) > _RUN_GAP) + 1
        if not ends.size:
            # One run, however much wider than its indices: nothing is left to split.
            return None
        return [_run(part) for part in np.split(sorted_once, ends)]

    def inverse(self) -> _Array:
        """Where each index is in the runs, one behind the other."""
        assert isinstance(self.rest, np.ndarray)
        return np.unique(self.rest, return_inverse=True)[1].reshape(-1)


def _run(indices: _Array) -> _Part:
    part = _Part(indices, int(indices[-1]) + 1)
    if len(indices) == part.box.stop - part.box.start:
        part.rest = None
    return part


def _rest(data: _Array, parts: list[_Part], first: int) -> _Array:
    """What the parts take of the ranges that were read; axes before ``first`` stay as they are."""
    slices = tuple(part.rest if isinstance(part.rest, slice) else slice(None) for part in parts)
    data = data[(slice(None),) * first + slices]
    for axis, part in enumerate(parts):
        if isinstance(part.rest, np.ndarray):
            data = np.take(data, part.rest, axis=first + axis)
    return data


def _squeezed(data: _Array, parts: list[_Part], first: int = 0) -> _Array:
    key = tuple(0 if part.is_int else slice(None) for part in parts)
    # The ellipsis keeps an array of no dimension an array.
    return data[(*(slice(None),) * first, *key, ...)]
