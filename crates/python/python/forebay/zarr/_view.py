"""A space as a Zarr v3 hierarchy that is made as it is read.

``zarr.open_group(View("heat", version=-1))`` shows the newest version to whatever reads Zarr through Python: a group of
arrays, each chunk of which is a piece of the space, not copied where it is whole. Without a version the root has a
group for each retained version, named by its number, also for versions that come later.

Guarantees: nothing is written, and no data is read before a chunk is asked for; a version that is open here is held
until the view is closed, or until others were read after it. Not here: what the names of Zarr cannot say (see
``View``).
"""

import base64
import json
import math
import struct
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from zarr.core.buffer import Buffer

from forebay import errors
from forebay._forebay import Reader, ReadStep, Variable
from forebay._forebay import open as open_space
from forebay.zarr._reads import Reads

# Zarr's name of the document of a node.
_DOCUMENT = "zarr.json"
# Versions that are open at once, and held.
_OPEN_MAX = 4
# Where the pieces are no grid, chunks have at most about so many bytes.
_CHUNK_BYTES = 16 << 20
# Element types that Zarr calls as NumPy does.
_TYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def _is_node(name: str) -> bool:
    """Whether Zarr can have a node of that path."""
    parts = name.split("/")
    return all(part.strip(".") and not part.startswith("__") and part != _DOCUMENT for part in parts)


def _plain(value: object) -> object:
    """An attribute as JSON has it: what is not finite becomes a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _attributes(variable: Variable) -> dict[str, object]:
    """The attributes of an array, as programs read them from Zarr."""
    found = {key: _plain(value) for key, value in variable.attrs.items()}
    fill = variable.attrs.get("_FillValue")
    if isinstance(fill, int | float) and variable.dtype.kind == "f":
        # xarray's way to say it in Zarr v3.
        found["_FillValue"] = base64.standard_b64encode(struct.pack("<d", fill)).decode()
    if "_Encoding" in found:
        # Bytes of texts, which xarray takes for characters where it meets that name.
        found["text_encoding"] = found.pop("_Encoding")
    return found


def _grid(variable: Variable) -> tuple[int, ...]:
    """The shape of the chunks: that of the pieces where they are a regular grid, else of rows of about 16 MiB."""
    shape = variable.shape
    pieces = variable.pieces
    first = next((piece.count for piece in pieces if not any(piece.start)), None)
    if first is not None and all(first):
        cells = math.prod(-(-extent // chunk) for extent, chunk in zip(shape, first, strict=True))
        starts = {piece.start for piece in pieces if all(piece.count)}
        fits = all(
            start % chunk == 0 and count == min(chunk, extent - start)
            for piece in pieces
            if all(piece.count)
            for start, count, chunk, extent in zip(piece.start, piece.count, first, shape, strict=True)
        )
        if fits and len(starts) == cells == sum(1 for piece in pieces if all(piece.count)):
            return first
    chunk = [max(extent, 1) for extent in shape]
    for axis in range(len(chunk)):
        behind = math.prod(chunk[axis + 1 :]) * variable.dtype.itemsize
        chunk[axis] = max(1, min(chunk[axis], _CHUNK_BYTES // max(behind, 1)))
        if chunk[axis] > 1:
            break
    return tuple(chunk)


@dataclass
class _Node:
    """An array of a version."""

    variable: Variable
    chunk: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.chunk = () if self.is_text else _grid(self.variable)

    @property
    def is_text(self) -> bool:
        return self.variable.kind == "str"

    @property
    def shape(self) -> tuple[int, ...]:
        # A text is one element.
        return () if self.is_text else self.variable.shape

    def document(self) -> dict[str, object]:
        """What Zarr calls the metadata of the array."""
        codec: dict[str, object] = {"name": "vlen-utf8" if self.is_text else "bytes"}
        if not self.is_text and self.variable.dtype.itemsize > 1:
            codec["configuration"] = {"endian": "little"}
        name = "string" if self.is_text else self.variable.dtype.name
        fill: object = "" if self.is_text else False if name == "bool" else [0.0, 0.0] if "complex" in name else 0
        document: dict[str, object] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": [codec],
            "attributes": _attributes(self.variable),
            "storage_transformers": [],
        }
        if self.variable.dims is not None and not self.is_text:
            document["dimension_names"] = list(self.variable.dims)
        return document

    def chunks(self) -> Iterator[str]:
        """Keys of all chunks."""
        counts = (-(-extent // chunk) for extent, chunk in zip(self.shape, self.chunk, strict=True))
        return ("/".join(("c", *map(str, at))) for at in product(*map(range, counts)))

    def place(self, key: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Start and count of the chunk of that key; None where there is none."""
        head, *numbers = key.split("/")
        if head != "c" or len(numbers) != len(self.chunk) or not all(n.isdecimal() for n in numbers):
            return None
        start = tuple(int(n) * chunk for n, chunk in zip(numbers, self.chunk, strict=True))
        if any(at >= extent for at, extent in zip(start, self.shape, strict=True)):
            return None
        extents = zip(start, self.chunk, self.shape, strict=True)
        return start, tuple(min(chunk, extent - at) for at, chunk, extent in extents)

    def read(self, step: ReadStep, key: str) -> np.ndarray[Any, Any] | None:
        """The bytes of a chunk: a view of the space where it is a whole piece; None where there is no such chunk."""
        place = self.place(key)
        if place is None:
            return None
        if self.is_text:
            text = step.text(self.variable.name).encode()
            return np.frombuffer(struct.pack("<II", 1, len(text)) + text, dtype="u1")
        start, count = place
        data = step.get(self.variable.name, start=start, count=count, copy=None)
        if count != self.chunk:
            # Chunks at the end have the size of all others.
            whole = np.zeros(self.chunk, dtype=data.dtype)
            whole[tuple(map(slice, count))] = data
            data = whole
        return np.ascontiguousarray(data).reshape(-1).view("u1")


@dataclass
class _Version:
    """An open version: its arrays, and the groups that their names make."""

    step: ReadStep
    arrays: dict[str, _Node] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name, variable in self.step.variables.items():
            if _is_node(name) and (variable.kind == "str" or variable.dtype.name in _TYPES):
                self.arrays[name] = _Node(variable)
        for name in self.arrays:
            parts = name.split("/")[:-1]
            self.groups.update("/".join(parts[: i + 1]) for i in range(len(parts)))

    def attributes(self) -> dict[str, object]:
        return {key: _plain(value) for key, value in self.step.attrs.items()}

    def split(self, key: str) -> tuple[_Node, str] | None:
        """The array of which a key is a chunk, and what the key says within it."""
        parts = key.split("/")
        for i in range(len(parts) - 1, 0, -1):
            node, rest = self.arrays.get("/".join(parts[:i])), "/".join(parts[i:])
            # Chunk `c/0` of `a` has the name that chunk `0` of an array `a/c` would have.
            if node is not None and node.place(rest) is not None:
                return node, rest
        return None

    def keys(self) -> Iterator[str]:
        """All keys, but that of the group itself."""
        yield from (f"{group}/{_DOCUMENT}" for group in sorted(self.groups - self.arrays.keys()))
        for name, node in self.arrays.items():
            yield f"{name}/{_DOCUMENT}"
            yield from (f"{name}/{chunk}" for chunk in node.chunks())


def _group(attributes: dict[str, object]) -> dict[str, object]:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


class View(Reads):
    """A space as a read-only Zarr store: ``zarr.open_group(View("heat"))``.

    ``version`` is one version, counted from the newest where it is negative, and then the root is the group of its
    arrays; None shows a group for each retained version, named by its number. ``options`` go to ``forebay.open``, which
    may wait for the space. Attributes of the space are those of the root (with one version those of the version come
    over them).

    A chunk is a piece where the pieces of a variable make a regular grid, else about 16 MiB. A name with ``/`` makes
    groups. Left out are variables of type bfloat16, and those whose names Zarr does not take. A chunk of which no
    writer put some part is an error, not a fill value.

    Pickles, and is equal to views of the same version of the same space. Errors are those of ``forebay.open`` and
    ``Reader.open_version``; what was seen of a version that is dropped then is ``VersionGone``.
    """

    supports_writes: bool = False
    supports_deletes: bool = False
    supports_listing: bool = True
    supports_partial_writes = False

    def __init__(self, space: str, *, version: int | None = None, **options: Any) -> None:
        super().__init__(read_only=True)
        self._options = {**options, "observer": True}
        self._reader: Reader = open_space(space, **self._options)
        self._lock = threading.RLock()
        self._open_versions: OrderedDict[int, _Version] = OrderedDict()
        # Versions that were open here: readers of Zarr may have their documents.
        self._seen: set[int] = set()
        self.version: int | None = None
        if version is not None:
            opened = self._reader[version]
            self.version = opened.version
            self._open_versions[opened.version] = _Version(opened)
        #: Identity of the space: another one of its name has another.
        self.uuid: str = self._reader.uuid
        self._is_open = True

    @property
    def space(self) -> str:
        """Directory of the space."""
        return self._reader.path

    def _version(self, number: int) -> _Version | None:
        """An open version; None when it was never seen here, and is dropped or not complete.

        Raises ``VersionGone`` for one that was: to Zarr a chunk that is missing is full of zeros.
        """
        with self._lock:
            known = self._open_versions.get(number)
            if known is None:
                try:
                    known = _Version(self._reader.open_version(number))
                except errors.TimedOut:
                    return None
                except errors.VersionGone:
                    if number in self._seen:
                        raise
                    return None
                self._seen.add(number)
                self._open_versions[number] = known
            self._open_versions.move_to_end(number)
            while len(self._open_versions) > _OPEN_MAX:
                # A chunk that is being read of it holds it all the same.
                self._open_versions.popitem(last=False)
            return known

    def _within(self, key: str) -> tuple[_Version | None, str]:
        """The version that a key is about, and the key in it; None for the root of all versions."""
        if self.version is not None:
            return self._version(self.version), key
        number, _, rest = key.partition("/")
        # A number of 64 bits, as we write it.
        if not number.isdecimal() or len(number) > 19 or str(int(number)) != number:
            return None, key
        return self._version(int(number)), rest

    def _document(self, key: str) -> dict[str, object] | None:
        """The metadata of the node of that path."""
        path = key.removesuffix(_DOCUMENT).removesuffix("/")
        of_space = {name: _plain(value) for name, value in self._reader.attrs.items()} if not path else {}
        if not path and self.version is None:
            return _group(of_space)
        version, path = self._within(path)
        if version is None:
            return None
        if not path:
            return _group({**of_space, **version.attributes()})
        if path in version.arrays:
            return version.arrays[path].document()
        return _group({}) if path in version.groups else None

    def _value(self, key: str) -> np.ndarray[Any, Any] | None:
        """The bytes under a key, or None."""
        if key == _DOCUMENT or key.endswith("/" + _DOCUMENT):
            document = self._document(key)
            return None if document is None else np.frombuffer(json.dumps(document).encode(), dtype="u1")
        version, rest = self._within(key)
        found = version.split(rest) if version else None
        return found[0].read(version.step, found[1]) if version and found else None

    def _length(self, key: str) -> int:
        version, rest = self._within(key)
        found = version.split(rest) if version else None
        return math.prod(found[0].chunk) * found[0].variable.dtype.itemsize if found else 0

    async def exists(self, key: str) -> bool:
        """Whether there is such a key."""
        if key == _DOCUMENT or key.endswith("/" + _DOCUMENT):
            return self._document(key) is not None
        version, rest = self._within(key)
        found = version.split(rest) if version else None
        return found is not None and found[0].place(found[1]) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Refused: a view is read-only."""
        del value
        raise ValueError(f"{key}: a view of a space is read-only; write to the space itself")

    async def delete(self, key: str) -> None:
        """Refused: a view is read-only."""
        raise ValueError(f"{key}: a view of a space is read-only")

    def _keys(self) -> Iterator[str]:
        yield _DOCUMENT
        if self.version is not None:
            version = self._version(self.version)
            yield from version.keys() if version else ()
            return
        for number in self._reader.versions():
            version = self._version(number)
            if version is not None:
                yield f"{number}/{_DOCUMENT}"
                yield from (f"{number}/{key}" for key in version.keys())

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        for key in self._keys():
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that begin with ``prefix``."""
        for key in self._keys():
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """What lies directly below ``prefix``."""
        path = prefix.rstrip("/")
        seen: set[str] = set()
        if self.version is None and not path:
            # Without a look into each version.
            for name in (_DOCUMENT, *map(str, self._reader.versions())):
                yield name
            return
        begin = path + "/" if path else ""
        for key in self._keys():
            name = key[len(begin) :].split("/")[0] if key.startswith(begin) else ""
            if name and name not in seen:
                seen.add(name)
                yield name

    def close(self) -> None:
        """Releases the versions that are open."""
        with self._lock:
            self._open_versions.clear()
            self._reader.close()
        super().close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str, int | None]:
        return self.space, self.uuid, self.version

    def __getstate__(self) -> dict[str, Any]:
        return {"space": self.space, "uuid": self.uuid, "version": self.version, "options": self._options,
            "seen": sorted(self._seen)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["space"], version=state["version"], **state["options"])  # type: ignore[misc]
        if self.uuid != state["uuid"]:
            raise errors.VersionGone(
                f"space {self.space} is another one than the view was of", {"uuid": self.uuid, "of_view": state["uuid"]}
            )
        self._seen = set(state["seen"])

    def __str__(self) -> str:
        return f"forebay:{self.space}" + ("" if self.version is None else f"@{self.version}")

    def __repr__(self) -> str:
        return f"forebay.zarr.View({self.space!r}, version={self.version})"
