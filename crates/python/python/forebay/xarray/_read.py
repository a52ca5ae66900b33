"""A group of the versions of a source as a store that xarray decodes."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import AbstractDataStore
from xarray.coding import strings
from xarray.core import indexing

from forebay import errors
from forebay.xarray import _attributes
from forebay.xarray._arrays import SpaceArray
from forebay.xarray._layout import Layout
from forebay.xarray._names import CHARACTERS, GROUP, UNLIMITED, owner
from forebay.xarray._source import Source

_CHUNKS_PER_PIECE_MAX = 4
"""Pieces that are scattered so that a grid of their corners has more cells for each are not followed."""
_strings: Any = strings


class SpaceVariable(xr.Variable):
    """A variable whose Dask array is named after what it shows.

    ``xarray.open_dataset`` names Dask arrays after the text that it was given. Under one name a space shows more
    versions as time goes by, and Dask takes arrays of one name for the same.
    """

    __slots__ = ()

    @classmethod
    def of(cls, variable: xr.Variable) -> xr.Variable:
        """The variable as one of this kind, unless it is in memory."""
        if array_below(variable._data) is None:
            return variable
        data: Any = variable._data
        return cls(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)

    def chunk(self, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("from_array_kwargs") or {}
        name = given.get("name")
        if isinstance(name, str) and name.startswith("open_dataset-"):
            from dask.base import tokenize

            source = array_below(self._data)
            token = tokenize(source if source is not None else self._data)
            kwargs["from_array_kwargs"] = {**given, "name": f"{name}-{token}"}
        return super().chunk(*args, **kwargs)


def array_below(data: Any) -> SpaceArray | None:
    """The array that xarray's wrappers index and decode."""
    while data is not None and not isinstance(data, SpaceArray):
        data = getattr(data, "array", None)
    return data


class ReadStore(AbstractDataStore):
    """A group of the versions of a source, as encoded variables. Closing it releases the version."""

    def __init__(
        self,
        source: Source,
        group: str = "",
        *,
        dim: str = "step",
        drop: Iterable[str] = (),
        known: "Version | None" = None,
    ) -> None:
        self.source = source
        self.group = group
        self.dim = dim
        self.drop = frozenset(drop)
        self._read = known

    def __reduce__(self) -> tuple[type["ReadStore"], tuple[Source, str]]:
        # A dataset that is sent to another process brings its store along, to close it.
        return ReadStore, (self.source, self.group)

    @property
    def _known(self) -> "Version":
        if self._read is None:
            self._read = Version(self.source)
        return self._read

    def get_variables(self) -> dict[str, xr.Variable]:
        """The variables by their names in the group; with a stack also the versions, as its first coordinate."""
        known = self._known
        members = {base: known.variables[name] for base, name in known.members(self.group).items()}
        members = {base: variable for base, variable in members.items() if base not in self.drop}
        dims = {base: self._dims(base, variable) for base, variable in members.items()}
        coordinates = {base for base in members if _without_characters(members[base], dims[base]) == (base,)}
        stacked = self.source.stacked
        found: dict[str, xr.Variable] = {}
        if stacked:
            self._check_dim(dims)
            self.source.expect(known.layouts)
            found[self.dim] = xr.Variable((self.dim,), np.asarray(self.source.versions, dtype=np.int64))
        for base, variable in members.items():
            # The coordinate of a dimension is one for all versions.
            labels = tuple(members[d].name for d in dims[base] if d in coordinates and d != base) if stacked else ()
            found[base] = self._variable(variable, dims[base], labels, stacked and base not in coordinates)
        return found

    def _variable(self, variable: Any, dims: tuple[str, ...], labels: tuple[str, ...], stacked: bool) -> xr.Variable:
        attrs = variable.attrs
        layout = self._known.layouts[variable.name]
        dtype = layout.dtype
        if variable.kind == "str":
            dtype = _strings.create_vlen_dtype(str)
        elif _is_characters(variable):
            dtype = np.dtype("S1")
        source = self.source if stacked or not self.source.stacked else self.source.of_the_newest()
        array = SpaceArray(source, variable.name, layout, dtype, labels)
        encoding: dict[str, Any] = {}
        chunks = _chunks(variable, dims)
        if stacked:
            dims = (self.dim, *dims)
            chunks = {self.dim: 1, **chunks}
        if chunks:
            encoding["preferred_chunks"] = chunks
        decoded = _attributes.decode(attrs, dtype)
        return xr.Variable(dims, indexing.LazilyIndexedArray(array), decoded, encoding, fastpath=True)

    def _dims(self, base: str, variable: Any) -> tuple[str, ...]:
        if variable.kind == "str":
            return ()
        dims = variable.dims
        return tuple(dims) if dims is not None else tuple(f"{base}_dim_{i}" for i in range(len(variable.shape)))

    def _check_dim(self, dims: Mapping[str, tuple[str, ...]]) -> None:
        if self.dim in dims or any(self.dim in of_one for of_one in dims.values()):
            raise errors.Usage(
                f"the versions cannot be dimension {self.dim}: the space has a variable or a dimension of that name",
                {"space": self.source.path},
                f'name the new dimension with dim=, or leave the variable out: drop_variables="{self.dim}"',
            )

    def get_attrs(self) -> dict[str, Any]:
        """Attributes of the space, and of the version over them."""
        known = self._known
        attrs = _attributes.decode(known.attributes(self.group, known.of_space))
        return {**attrs, **_attributes.decode(known.attributes(self.group, known.of_version))}

    def get_dimensions(self) -> dict[str, int]:
        return {str(d): n for v in self.get_variables().values() for d, n in zip(v.dims, v.shape, strict=True)}

    def get_encoding(self) -> dict[str, Any]:
        names = self._known.attributes(self.group, self._known.of_version).get(UNLIMITED, [])
        return {"unlimited_dims": set(names), "source": self.source.path}

    def close(self) -> None:
        self.source.release()


class Version:
    """The variables, groups and attributes of the newest version of a source."""

    def __init__(self, source: Source) -> None:
        with source.step(source.newest) as step:
            self.variables: Mapping[str, Any] = step.variables
            self.of_version: dict[str, Any] = dict(step.attrs)
        self.of_space: dict[str, Any] = dict(source.space.reader.attrs)
        self._source = source
        self._members: dict[str, dict[str, str]] = {"": {}}
        for name in self.variables:
            group, slash, base = name.rpartition("/")
            if slash and not all(word.strip(".") for word in name.split("/")):
                # No path of a tree has such words.
                group, base = "", name
            self._members.setdefault(group, {})[base] = name
        for key in self.of_version:
            if key.endswith("/" + GROUP):
                self._members.setdefault(key.removesuffix("/" + GROUP), {})

    @cached_property
    def layouts(self) -> dict[str, Layout]:
        """What other versions are compared with."""
        return {name: Layout.of(variable) for name, variable in self.variables.items()}

    @cached_property
    def groups(self) -> list[str]:
        """All groups, "" for the root, each behind those that it is in, which may hold nothing themselves."""
        found = set(self._members)
        for group in self._members:
            words = group.split("/")
            found.update("/".join(words[:n]) for n in range(len(words)))
        return sorted(found, key=lambda group: group.split("/") if group else [])

    def members(self, group: str) -> dict[str, str]:
        """The names of the group's variables, by what they are called in it. Raises ``UnknownVariable``."""
        if group not in self.groups:
            raise errors.UnknownVariable(
                f"version {self._source.newest} holds no group {group}",
                {"space": self._source.path},
                f"it holds {', '.join(g for g in self.groups if g) or 'none'}",
            )
        return self._members.get(group, {})

    def attributes(self, group: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the attributes that are the group's: NAME in the root, GROUP/NAME in a group."""
        groups = set(self.groups)
        owned = ((*owner(key, groups), value) for key, value in attrs.items())
        return {key: value for of_group, key, value in owned if of_group == group}


def _is_characters(variable: Any) -> bool:
    """Whether it is an array of texts or bytes; the last dimension is that of their characters."""
    return bool(variable.attrs.get(CHARACTERS)) and variable.dtype == np.uint8


def _without_characters(variable: Any, dims: tuple[str, ...]) -> tuple[str, ...]:
    """The dimensions as xarray shows them, where it joins characters to texts."""
    return dims[:-1] if _is_characters(variable) else dims


def _chunks(variable: Any, dims: tuple[str, ...]) -> dict[str, int | tuple[int, ...]]:
    """Chunks that begin where pieces begin, for the dimensions that are cut; none where pieces are scattered."""
    pieces = variable.pieces
    if len(pieces) < 2 or variable.kind == "str" or 0 in variable.shape:
        return {}
    cuts: list[list[int]] = []
    cells = 1
    for axis, length in enumerate(variable.shape):
        starts = sorted({0, *(piece.start[axis] for piece in pieces if 0 < piece.start[axis] < length)})
        cuts.append([stop - start for start, stop in zip(starts, [*starts[1:], length], strict=True)])
        cells *= len(starts)
    if cells > _CHUNKS_PER_PIECE_MAX * len(pieces) or len(set(dims)) < len(dims):
        return {}
    chunks: dict[str, int | tuple[int, ...]] = {}
    for dim, sizes in zip(dims, cuts, strict=True):
        if len(sizes) > 1:
            even = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
            chunks[dim] = sizes[0] if even else tuple(sizes)
    return chunks
