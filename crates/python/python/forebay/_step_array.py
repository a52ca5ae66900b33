"""``step["T"]``: a variable of a version as an array that reads nothing until it is indexed."""

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from forebay import errors
from forebay._attributes import Attribute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay._forebay import Piece, ReadStep, Variable


def _is_box(key: Any) -> bool:
    """Whether the space can cut it out: whole numbers, slices without a step, and ``...``."""
    if isinstance(key, tuple):
        return not any(isinstance(one, tuple) for one in key) and all(map(_is_box, key))
    if isinstance(key, slice):
        return key.step is None or key.step == 1
    return key is Ellipsis or (isinstance(key, SupportsIndex) and not isinstance(key, (bool, np.ndarray)))


class StepArray(NDArrayOperatorsMixin):
    """A variable of a version, as ``step["T"]`` gives it. Holds no data: it is read from its step when it is indexed,
    or when NumPy wants it as an array, and can be used as long as its step is open.

    Indexed by slices and numbers it gives a copy of that box alone. Anything else that NumPy indexes with (slices with
    steps, lists, masks), operators and the methods of an ndarray (``sum()``) read the whole variable.
    ``numpy.asarray`` of it is a read-only view of the space where the variable lies in one piece, else a copy.
    """

    __slots__ = ("_step", "_variable")

    def __init__(self, step: "ReadStep", variable: "Variable") -> None:
        self._step = step
        self._variable = variable

    @property
    def name(self) -> str:
        """Its name."""
        return self._variable.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self._variable.shape

    @property
    def dtype(self) -> "np.dtype[Any]":
        """NumPy dtype; uint8 for text."""
        return self._variable.dtype

    @property
    def dims(self) -> tuple[str, ...] | None:
        """Names of its dimensions, or None when its writers gave none."""
        return self._variable.dims

    @property
    def attrs(self) -> dict[str, Attribute]:
        """Its attributes in this version."""
        return self._variable.attrs

    @property
    def pieces(self) -> "list[Piece]":
        """Which rank put what."""
        return self._variable.pieces

    @property
    def version(self) -> int:
        """The version that it belongs to."""
        return self._step.version

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole variable."""
        return self._variable.nbytes

    def __getitem__(self, key: Any) -> Any:
        if _is_box(key):
            try:
                found = self._step.get(self.name, key)
            except errors.BoxOutsideShape as e:
                raise IndexError(str(e)) from e
            # All indices given: an element, as of an ndarray.
            return found[()] if found.ndim == 0 and key is not Ellipsis else found
        # Of a view at most what was asked for outlives the step.
        return np.array(self._whole()[key])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            if dtype is not None and np.dtype(dtype) != self.dtype:
                raise ValueError(f"{self.name} holds {self.dtype}: as another dtype it is a copy")
            return self._step.view(self.name)
        if copy:
            return self._step.get(self.name).astype(dtype or self.dtype, copy=False)
        return self._whole().astype(dtype or self.dtype, copy=False)

    def _whole(self) -> NDArray[Any]:
        """A read-only view where there is one piece, else a copy."""
        return self._step.get(self.name, copy=None)

    def __getattr__(self, name: str) -> Any:
        # The methods of an ndarray (sum, astype, ...) read the whole variable.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole(), name)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if any(isinstance(one, StepArray) for one in keywords.get("out", ())):
            # A version does not change.
            return NotImplemented
        if isinstance(keywords.get("where"), StepArray):
            keywords["where"] = np.asarray(keywords["where"])
        arrays = (np.asarray(one) if isinstance(one, StepArray) else one for one in inputs)
        return getattr(ufunc, method)(*arrays, **keywords)

    def __dlpack__(self, **keywords: Any) -> Any:
        try:
            return self._whole().__dlpack__(**keywords)
        except BufferError:
            # Who takes it cannot say that it is read-only.
            return self._step.get(self.name).__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __buffer__(self, flags: int, /) -> memoryview:
        return self._whole().data

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        from forebay import _arrow

        return _arrow.array_capsules(self, requested_schema)

    def __arrow_c_schema__(self) -> object:
        from forebay import _arrow

        return _arrow.schema_capsule(self)

    def __dask_tokenize__(self) -> tuple[str, str, int, str]:
        # What a version holds never changes; a space that takes its place has another identity.
        return (*self._step._identity(), self.version, self.name)

    def __reduce__(self) -> tuple[object, tuple["ReadStep", str]]:
        return _of, (self._step, self.name)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a scalar")
        return self.shape[0]

    def __iter__(self) -> "Iterator[Any]":
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: object) -> bool:
        return value in self._whole()

    def __bytes__(self) -> bytes:
        return self._whole().tobytes()

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __float__(self) -> float:
        return float(self._scalar())

    def __int__(self) -> int:
        return int(self._scalar())

    def _scalar(self) -> Any:
        if self.size != 1:
            raise errors.UsageType(f"{self.name} has {self.size} elements", {}, "index one of them")
        return self._whole().reshape(())[()]

    def __repr__(self) -> str:
        dims = f" of {self.dims}" if self.dims is not None else ""
        return f"<forebay.StepArray {self.name!r} {self._variable.kind} {self.shape}{dims} in version {self.version}>"

    def _repr_html_(self) -> str:
        from forebay import _show

        return _show.array(self)


def _of(step: "ReadStep", name: str) -> StepArray:
    return step[name]
