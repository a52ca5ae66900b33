"""``forebay.array``: an n-D array larger than memory, with NumPy's indexing, in a hard budget of memory.

It lies in a file, or is a variable of a version of a space. Indexing copies: what it gives is an ordinary ndarray. Data
moves past the page cache where the file system can do that, with many requests under way; nothing here maps the file.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias

from forebay import errors
from forebay._closing import Closing
from forebay._forebay import Pool, _Paged, _VersionBacking

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from forebay._window import Window

    _Any: TypeAlias = NDArray[Any]

_BUDGET = "256MiB"
# Offsets of runs are made for so many at once: their memory is not in the budget.
_RUNS_MAX = 1 << 18
# Reductions and tiles() take blocks of about this many bytes.
_BLOCK_BYTES = 4 << 20
_MODES = ("r", "r+", "a+", "x+", "c")


class Array(Closing):
    """An array in a file or a version, of which a part is in memory. Made by ``forebay.array``.

    Indexed as an ndarray, to read and (unless mode is "r") to write; gives copies. A context manager: it closes at the
    end. Threads may share it.
    """

    __array_priority__ = 10.0

    # The file, and the byte of it where the data begins; None: it has no name.
    _source: tuple[str, int] | None = None

    version: int | None = None
    """The version of the space that it shows, and holds until it is closed; None: it lies in a file."""

    def __init__(self, paged: _Paged, pool: Pool, shape: tuple[int, ...], dtype: "np.dtype[Any]", mode: str) -> None:
        self._paged = paged
        self.pool = pool
        self.shape = shape
        self.dtype = dtype
        self.mode = mode

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def method(self) -> str:
        """"direct": past the page cache; "cached": through it, so that the kernel's memory comes on top."""
        return self._paged.method

    @property
    def tile_bytes(self) -> int:
        """Length of a tile."""
        return self._paged.tile_bytes

    @property
    def closed(self) -> bool:
        return self._paged.closed

    def __len__(self) -> int:
        if not self.shape:
            raise errors.UsageType("len() of an array without dimensions")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        import numpy as np

        picked = _Picked(key, self.shape, self.dtype.itemsize)
        out = np.empty(picked.shape, self.dtype)
        self._read(picked, out)
        return _unwrapped(out, picked)

    def _read(self, picked: "_Picked", out: "_Any") -> None:
        """Reads what was picked into a contiguous array of its shape and this dtype."""
        import numpy as np

        if out.size == 0:
            return
        flat = np.asarray(out).reshape(-1).view(np.uint8)
        at = 0
        for offsets in picked.offsets():
            end = at + len(offsets) * picked.run
            self._paged.read_runs(offsets, picked.run, flat[at:end])
            at = end

    def __setitem__(self, key: Any, value: "ArrayLike") -> None:
        import numpy as np

        picked = _Picked(key, self.shape, self.dtype.itemsize)
        given = np.broadcast_to(np.asarray(value, self.dtype), picked.shape)
        if given.size == 0:
            # Still an error where nothing may be written.
            self._paged.write_runs(np.empty(0, np.uint64), 0, np.empty(0, np.uint8))
            return
        flat = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        at = 0
        for offsets in picked.offsets():
            bytes_ = len(offsets) * picked.run
            self._paged.write_runs(offsets, picked.run, flat[at : at + bytes_])
            at += bytes_

    def gather(self, indices: "ArrayLike", *, out: "_Any | None" = None) -> "_Any":
        """The rows (along the first axis) with these indices, all at once: as ``a[indices]``.

        out: a writable ndarray of that shape and dtype, which gets the rows and is returned.
        """
        import numpy as np

        key = np.asarray(indices, np.intp)
        if out is None:
            found: _Any = self[key]
            return found
        picked = _Picked(key, self.shape, self.dtype.itemsize)
        if out.shape != picked.shape or out.dtype != self.dtype or not out.flags.writeable:
            raise errors.BufferMismatch(
                f"out= is {out.shape} of {out.dtype}, and the rows are {picked.shape} of {self.dtype}",
                hint="it has to be a writable ndarray of the shape and dtype of the rows",
            )
        if out.flags.c_contiguous:
            self._read(picked, out)
        else:
            out[...] = self[key]
        return out

    def scatter(self, indices: "ArrayLike", rows: "ArrayLike") -> None:
        """Writes rows to these indices of the first axis: as ``a[indices] = rows``."""
        import numpy as np

        self[np.asarray(indices, np.intp)] = rows

    def tiles(self, order: Sequence[int] | None = None) -> Iterator[tuple[slice, "_Any"]]:
        """Blocks of whole rows, about 4 MiB each, while the next one is read ahead: (rows, values).

        order: which blocks, and in which order; None: all.
        """
        if not self.shape:
            raise errors.UsageType("an array without dimensions has no rows")
        row = self.nbytes // self.shape[0] if self.shape[0] else 0
        rows = max(1, _BLOCK_BYTES // max(1, row))
        count = -(-self.shape[0] // rows)
        blocks = list(range(count) if order is None else order)
        for at, block in enumerate(blocks):
            if not 0 <= block < count:
                raise IndexError(f"block {block} of {count}")
            ahead = blocks[at + 1 : at + 2]
            start = block * rows
            part = slice(start, min(start + rows, self.shape[0]))
            found = self[part]
            for following in ahead:
                self._paged.prefetch(following * rows * row, (following + 1) * rows * row)
            yield part, found

    def prefetch(self, start: int, stop: int) -> None:
        """Begins to read these rows; only a hint."""
        row = self.nbytes // max(1, self.shape[0] if self.shape else 1)
        self._paged.prefetch(max(0, start) * row, max(0, stop) * row)

    def window(self, **options: Any) -> "Window":
        """The whole array as a plain ndarray (its ``array``) in a budget of its own: see ``forebay.window``.

        What was written here is flushed first; what is written here or there later is seen on the other side only
        after a flush, of what was not in memory there. Not of arrays in mode "c", whose changes are theirs alone.

        Of what is not one file with a name (a version of a space, several files, a file without a name) it is a window
        in mode "r" or "c", and raises NotPossibleHere where userfaultfd is refused. It holds its version, too.
        """
        from forebay._window import over, window

        if self.mode == "c":
            raise errors.Usage("a window does not show what mode 'c' keeps to the array")
        self.flush()
        options.setdefault("tile", self.tile_bytes)
        if self._source is None:
            return over(self._paged, self.shape, self.dtype, **options)
        options.setdefault("mode", "r" if self.mode == "r" else "r+")
        path, offset = self._source
        if not path.endswith(".npy"):
            options.update(shape=self.shape, dtype=self.dtype, offset=offset)
        return window(path, **options)

    # Reductions stream: a block at a time, in the budget.

    def _flat(self) -> "Array":
        return Array(self._paged, self.pool, (self.size,), self.dtype, self.mode)

    def _reduce(self, ufunc: "np.ufunc", axis: int | None, dtype: "DTypeLike | None" = None) -> Any:
        import numpy as np

        if self.size == 0:
            return getattr(ufunc, "reduce")(np.empty(self.shape, self.dtype), axis=axis, dtype=dtype)
        source = self._flat() if axis is None else self
        along = 0 if axis is None else _axis(axis, self.ndim)
        total: Any = None
        parts = []
        for _, block in source.tiles():
            part = ufunc.reduce(block, axis=along, dtype=dtype)
            if along == 0:
                total = part if total is None else ufunc(total, part)
            else:
                parts.append(part)
        return total if along == 0 else np.concatenate(parts)

    def sum(self, axis: int | None = None, dtype: "DTypeLike | None" = None) -> Any:
        """Sum over all elements or one axis; the dtype as with NumPy."""
        import numpy as np

        if dtype is None:
            dtype = np.add.reduce(np.empty(0, self.dtype)).dtype if self.dtype.kind not in "biu" else _wide(self.dtype)
        return self._reduce(np.add, axis, dtype)

    def min(self, axis: int | None = None) -> Any:
        """Least element of all or along one axis."""
        import numpy as np

        return self._reduce(np.minimum, axis)

    def max(self, axis: int | None = None) -> Any:
        """Greatest element of all or along one axis."""
        import numpy as np

        return self._reduce(np.maximum, axis)

    def mean(self, axis: int | None = None) -> Any:
        """Mean of all elements or along one axis, in float64 (complex128 for complex numbers)."""
        count = self.size if axis is None else self.shape[_axis(axis, self.ndim)]
        return self.sum(axis, "c16" if self.dtype.kind == "c" else "f8") / count

    def reduce(self, block: Callable[["_Any"], Any], combine: Callable[[Any, Any], Any]) -> Any:
        """Any other reduction: ``block`` of each block of rows, put together by ``combine``."""
        total: Any = None
        for number, (_, values) in enumerate(self.tiles()):
            part = block(values)
            total = part if number == 0 else combine(total, part)
        return total

    def __array__(self, dtype: "DTypeLike | None" = None, copy: bool | None = None) -> "_Any":
        if copy is False:
            raise errors.Usage("a forebay.Array cannot become an ndarray without a copy")
        found: _Any = self[...] if self.shape else self._flat()[:].reshape(())
        return found if dtype is None else found.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A copy of all of it in memory, as by ``np.asarray``. What ``window()`` gives is exported without one."""
        if copy is False:
            raise BufferError("a forebay.Array is exported by a copy; what window() gives is without")
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"a forebay.Array is exported to the processor's memory, not to device {dl_device}")
        found: _Any = self.__array__()
        try:
            return found.__dlpack__(stream=stream, max_version=max_version)
        except TypeError:
            # NumPy before 2.1 knows no versions; what it gives suits every consumer.
            return found.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The processor's memory."""
        return (1, 0)

    def flush(self) -> None:
        """Writes back what was changed and makes it durable. Nothing happens in modes "r" and "c"."""
        self._paged.flush()

    def close(self) -> None:
        """Ends the use of the array; what was changed is in the file afterwards. Raises what could not be written."""
        self._paged.close()

    def __repr__(self) -> str:
        how = "closed" if self.closed else f"{self.method}, tiles of {self.tile_bytes} bytes"
        return f"<forebay.Array {self.shape} {self.dtype}, mode {self.mode!r}, {how}>"


def array(
    shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
    dtype: "DTypeLike | None" = None,
    *,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    space: str | os.PathLike[str] | None = None,
    variable: str | None = None,
    version: SupportsIndex | None = None,
    budget: int | str | None = None,
    pool: Pool | None = None,
    tile: int | str | None = None,
    stripe: int | str = "1MiB",
    tier: Literal["direct", "file"] | None = None,
    mode: Literal["r", "r+", "a+", "x+", "c"] | None = None,
    policy: Literal["s3fifo", "clock", "none"] = "s3fifo",
    horizon: Literal["none", "epoch", "write"] = "epoch",
    offset: int = 0,
) -> Array:
    """An n-D array larger than memory, in a file or of a version of a space.

    shape, dtype: as with ``numpy.memmap``; both may be left out for a .npy file that is there, and for a version.
    path: the file, raw bytes in C order, or in NumPy's format where the name ends with .npy. None: a file without a
        name in TMPDIR that goes with the array. A list of files: stripe i lies in file i mod N, so that disks work
        side by side; raw bytes only.
    space, variable, version: instead of a path a variable of a complete version of the space with this name or path,
        the newest if no version is said; mode "r" (as without one) or "c". The array is an observer and holds the
        version until it is closed. Payloads are checked as ``get`` does; what no rank put raises BoxNotCovered.
    budget: most memory for its data and what is known of it, 256 MiB if not said; or pool: a ``forebay.Pool`` that
        several arrays share.
    tile: bytes that move together, a power of two from 4 KiB to 2 MiB. Short for scattered items, long for scans;
        None takes 64 KiB, or less where the budget is small.
    stripe: bytes of each of several files in turn, a multiple of 4 KiB; best no shorter than a tile.
    tier: "direct" insists on transfers past the page cache, "file" goes through it; None takes direct where it can.
    mode: "r" reads a file that is there, "r+" writes it, too; "c" keeps what is written to itself; "x+" makes a new
        file; "a+" (as without a mode) opens the file to write, or makes it.
    policy: which tiles leave first. horizon: when writes become durable: "none", "epoch" (flush and close), "write".
    offset: byte of a raw file where the data begins.

    Raises Usage, TierFull, NameInUse (mode "x+"), Damaged (the file is shorter than the shape), PermissionDenied, Io;
    of a version also PeerMissing, TimedOut (it is not complete), VersionGone, UnknownVariable, NotPossibleHere.
    """
    if mode is not None and mode not in _MODES:
        raise errors.Usage(f"mode {mode!r} is none of {', '.join(_MODES)}")
    if space is not None:
        if path is not None or tier is not None or offset or stripe != "1MiB" or horizon != "epoch":
            raise errors.Usage("path, stripe, tier, horizon and offset are of files: not of a version of a space")
        backing = _backing(space, variable, version, shape, dtype)
        return over_version(backing, budget=budget, pool=pool, tile=tile, mode=mode, policy=policy)
    if variable is not None or version is not None:
        raise errors.Usage("variable and version are of a space: space=")
    wanted = mode or "a+"
    names = _names(path)
    name = names[0] if names else None
    if name is None and wanted in ("r", "r+", "c"):
        raise errors.Usage(f"mode {wanted!r} needs a path")
    opens = wanted in ("r", "r+", "c") or (wanted == "a+" and any(os.path.exists(each) for each in names))
    dims, kind, offset, header = layout_of(name, opens, shape, dtype, offset)
    how = ("read" if wanted in ("r", "c") else "write") if opens else "create"
    if name is None:
        how, names = "nameless", [os.environ.get("TMPDIR", "/var/tmp")]
    pool, tile = _budget(budget, pool, tile)
    nbytes = math.prod(dims) * kind.itemsize
    own = {"r": "r", "c": "c"}.get(wanted, "w")
    paged = _Paged(pool, names, stripe, how, own, tile, policy, horizon, offset, nbytes, header, tier == "file")
    if tier == "direct":
        _insist_on_direct(paged, names, how == "create")
    made = Array(paged, pool, dims, kind, wanted)
    if name is not None and len(names) == 1:
        made._source = name, offset
    return made


def _insist_on_direct(paged: _Paged, names: list[str], created: bool) -> None:
    """Raises where transfers go through the page cache; files that were made for it do not stay."""
    if paged.method == "direct":
        return
    paged.close()
    for each in names if created else ():
        os.remove(each)
    raise errors.Usage(f"{names[0]} does not support direct I/O; omit tier, or use another directory")


def _backing(
    space: str | os.PathLike[str], variable: str | None, version: SupportsIndex | None, shape: Any, dtype: Any
) -> _VersionBacking:
    """The variable of a version; what the caller says of it must agree."""
    if variable is None:
        raise errors.Usage("variable= is missing")
    backing = _VersionBacking(os.fspath(space), variable, None if version is None else version.__index__())
    if not _agrees(shape, dtype, backing.shape, backing.dtype):
        raise errors.Usage(f"{backing.name} holds {backing.shape} of {backing.dtype}")
    return backing


def over_version(
    backing: _VersionBacking,
    *,
    budget: int | str | None = None,
    pool: Pool | None = None,
    tile: int | str | None = None,
    mode: str | None = None,
    policy: str = "s3fifo",
) -> Array:
    """The array over a variable of a version; what ``step.array`` calls."""
    wanted = mode or "r"
    if wanted not in ("r", "c"):
        raise errors.Usage(f"mode {wanted!r}: a version never changes; \"r\" reads it, \"c\" keeps writes to itself")
    pool, tile = _budget(budget, pool, tile)
    paged = _Paged.over(pool, backing, wanted, tile, policy, os.environ.get("TMPDIR", "/var/tmp"))
    made = Array(paged, pool, backing.shape, backing.dtype, wanted)
    made.version = backing.version
    return made


def _budget(budget: int | str | None, pool: Pool | None, tile: int | str | None) -> tuple[Pool, int | str]:
    """The pool of an array, its own if it shall have one, and the length of its tiles."""
    if budget is not None and pool is not None:
        raise errors.Usage("budget and pool exclude each other")
    if pool is None:
        pool = Pool(_BUDGET if budget is None else budget, tile_max=tile)
    return pool, min(pool.tile_max, 64 << 10) if tile is None else tile


def _agrees(shape: Any, dtype: Any, found: tuple[int, ...], kind: "np.dtype[Any]") -> bool:
    """Whether what the caller says of shape and dtype, if anything, is what is there."""
    import numpy as np

    said = shape if shape is None or isinstance(shape, Sequence) else (shape,)
    return (said is None or tuple(said) == found) and (dtype is None or np.dtype(dtype) == kind)


def _names(path: Any) -> list[str]:
    """The files of an array: none, one or several."""
    if path is None:
        return []
    if isinstance(path, str | os.PathLike):
        return [os.fspath(path)]
    names = [os.fspath(each) for each in path]
    if not names or len(set(names)) < len(names):
        raise errors.Usage("several files are one or more, each named once")
    if len(names) > 1 and any(name.endswith(".npy") for name in names):
        raise errors.Usage("several files hold raw bytes: name them without .npy")
    return names


def layout_of(
    name: str | None, opens: bool, shape: Any, dtype: Any, offset: int
) -> tuple[tuple[int, ...], "np.dtype[Any]", int, bytes]:
    """Shape, dtype, the byte where the data begins, and what a new file has before it."""
    import numpy as np

    header = b""
    is_npy = name is not None and name.endswith(".npy")
    if is_npy and opens:
        shape, dtype, offset = _npy(str(name), shape, dtype)
    elif shape is None:
        raise errors.Usage("shape= is missing: it can be omitted only for an existing .npy file")
    kind = np.dtype(np.float64 if dtype is None else dtype)
    if kind.hasobject or kind.itemsize == 0:
        raise errors.UsageType(f"elements of dtype {kind} cannot be stored in a file")
    dims = tuple(int(n) for n in (shape if isinstance(shape, Sequence) else (shape,)))
    if any(n < 0 for n in dims) or offset < 0:
        raise errors.Usage(f"shape {dims} or offset {offset} is negative")
    if is_npy and not opens:
        header = _npy_header(dims, kind)
        offset = len(header)
    return dims, kind, offset, header


def _npy(path: str, shape: Any, dtype: Any) -> tuple[Any, Any, int]:
    """Shape, dtype and place of the data of a .npy file; what the caller says must agree."""
    from numpy.lib import format as npy

    with open(path, "rb") as file:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        found, by_columns, kind = read(file)
        offset = file.tell()
    if by_columns and len(found) > 1:
        raise errors.Usage(f"{path} is in Fortran order; save it with numpy.ascontiguousarray first")
    if not _agrees(shape, dtype, found, kind):
        raise errors.Usage(f"{path} holds {found} of {kind}")
    return found, kind, offset


def _npy_header(shape: tuple[int, ...], dtype: "np.dtype[Any]") -> bytes:
    import io

    from numpy.lib import format as npy

    made = io.BytesIO()
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(made, fields)
    return made.getvalue()


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise IndexError(f"axis {axis} of {ndim}")
    return axis % ndim


def _wide(dtype: "np.dtype[Any]") -> str:
    """What NumPy sums integers in."""
    return "u8" if dtype.kind == "u" else "i8"


def _unwrapped(out: "_Any", picked: "_Picked") -> Any:
    return out[()] if picked.is_item else out


class _Picked:
    """What a key of NumPy's indexing picks: the shape of the result, and where its runs of bytes lie.

    Every dimension of the result adds a number of bytes to the offset: so the offsets of all runs are sums of vectors,
    made a block at a time.
    """

    def __init__(self, key: Any, shape: tuple[int, ...], itemsize: int) -> None:
        import numpy as np

        strides = [itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        parts = _normal(key, shape)
        fancy = [part for part in parts if isinstance(part[1], np.ndarray)]
        # Beside arrays a number is an array, too.
        self.is_item = not fancy and all(isinstance(part[1], int) for part in parts)
        joint = [n for n, part in enumerate(parts) if isinstance(part[1], np.ndarray | int)] if fancy else []
        block = np.broadcast_arrays(*(np.asarray(parts[n][1]) for n in joint)) if joint else []
        together = not joint or joint == list(range(joint[0], joint[-1] + 1))
        # Each: the lengths of dimensions of the result, and what they add.
        dims: list[tuple[tuple[int, ...], Any]] = []
        base = 0
        added = False
        for n, (axis, part) in enumerate(parts):
            if n in joint:
                if not added:
                    offsets = np.zeros(block[0].shape, np.int64)
                    for m, values in zip(joint, block, strict=True):
                        offsets = offsets + values.astype(np.int64) * strides[parts[m][0]]
                    dims.insert(len(dims) if together else 0, (block[0].shape, offsets))
                    added = True
            elif isinstance(part, int):
                base += part * strides[axis]
            elif part is None:
                dims.append(((1,), np.zeros(1, np.int64)))
            else:
                dims.append(((len(part),), part if axis < 0 else (part, strides[axis])))
        self.shape = tuple(n for lengths, _ in dims for n in lengths)
        self._base = base
        self.run = itemsize
        # Trailing ranges of consecutive elements are one run.
        while dims and isinstance(dims[-1][1], tuple):
            places, stride = dims[-1][1]
            if stride != self.run or places.step != 1:
                break
            self._base += places.start * stride
            self.run *= len(places)
            dims.pop()
        self._dims = [
            np.arange(add[0].start, add[0].stop, add[0].step, dtype=np.int64) * add[1]
            if isinstance(add, tuple)
            else add.reshape(-1)
            for _, add in dims
        ]

    def offsets(self) -> Iterator["NDArray[np.uint64]"]:
        """Where the runs begin, in C order, a block at a time."""
        yield from self._sums(self._base, self._dims)

    def _sums(self, base: int, dims: list[Any]) -> Iterator[Any]:
        import numpy as np

        if not dims:
            yield np.array([base], np.uint64)
            return
        inner = math.prod(len(dim) for dim in dims[1:])
        if inner > _RUNS_MAX:
            for add in dims[0]:
                yield from self._sums(base + int(add), dims[1:])
            return
        rest = np.zeros(1, np.int64)
        for dim in dims[1:]:
            rest = (rest[:, None] + dim[None, :]).reshape(-1)
        rows = max(1, _RUNS_MAX // inner)
        for at in range(0, len(dims[0]), rows):
            block = dims[0][at : at + rows]
            yield (base + block[:, None] + rest[None, :]).reshape(-1).astype(np.uint64)


def _normal(key: Any, shape: tuple[int, ...]) -> list[tuple[int, Any]]:
    """The key as one part per axis or new axis (-1): an int, a range, None, or an array of indices from 0 on."""
    import numpy as np

    keys = list(key) if isinstance(key, tuple) else [key]
    is_array = [isinstance(k, list) or hasattr(k, "__array__") and not np.isscalar(k) for k in keys]
    keys = [np.asarray(k) if array else k for k, array in zip(keys, is_array, strict=True)]
    keys = [np.zeros(0, np.intp) if isinstance(k, np.ndarray) and k.size == 0 and k.dtype == float else k for k in keys]
    used = sum(_axes(k) for k in keys)
    if sum(1 for k in keys if k is Ellipsis) > 1:
        raise IndexError("an index can have one ellipsis")
    if used > len(shape):
        raise IndexError(f"too many indices: {used} for an array of {len(shape)} dimensions")
    if not any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    parts: list[tuple[int, Any]] = []
    axis = 0
    for k in keys:
        if k is Ellipsis:
            for _ in range(len(shape) - used):
                parts.append((axis, range(shape[axis])))
                axis += 1
        elif k is None:
            parts.append((-1, None))
        elif isinstance(k, np.ndarray) and k.dtype == np.bool_:
            if k.shape != shape[axis : axis + k.ndim]:
                raise IndexError(f"a mask of shape {k.shape} for dimensions {shape[axis : axis + k.ndim]}")
            for places in k.nonzero():
                parts.append((axis, places))
                axis += 1
        else:
            parts.append((axis, _one(k, axis, shape[axis])))
            axis += 1
    return parts


def _axes(key: Any) -> int:
    import numpy as np

    if key is None or isinstance(key, EllipsisType):
        return 0
    return key.ndim if isinstance(key, np.ndarray) and key.dtype == np.bool_ else 1


def _one(key: Any, axis: int, length: int) -> Any:
    """An index of one axis, made to count from 0 and checked."""
    import numpy as np

    if isinstance(key, slice):
        return range(*key.indices(length))
    if isinstance(key, bool | np.bool_):
        raise IndexError("True and False index no axis here")
    if isinstance(key, np.ndarray) and key.ndim > 0:
        if key.dtype.kind not in "iu":
            raise IndexError(f"indices are integers, not {key.dtype}")
        if key.size and (key.min() < -length or key.max() >= length):
            raise IndexError(f"an index is out of bounds for axis {axis} with size {length}")
        return np.where(key < 0, key + length, key) if key.dtype.kind == "i" else key
    try:
        at = int(key.__index__())
    except (AttributeError, TypeError):
        raise IndexError(f"{key!r} is no index") from None
    if not -length <= at < length:
        raise IndexError(f"index {at} is out of bounds for axis {axis} with size {length}")
    return at % length
