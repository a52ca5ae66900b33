"""Attributes of xarray as attributes of Forebay, and back.

Forebay holds text, flags, 64-bit integers, floats and lists of numbers or texts. What xarray holds beside these (NumPy
scalars and 1-D arrays of other types, bytes, complex numbers) is stored as the nearest of them, and its type in a
second attribute ``forebay.xarray.type:NAME``. Attributes that begin with ``forebay.xarray.`` are not shown to xarray.

A space that was written without xarray has no such types. There, ``_FillValue`` and the other attributes that CF
defines as values of the variable get the dtype of the variable.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from forebay import errors

Plain = str | bool | int | float | list[int] | list[float] | list[str]
"""What Forebay holds as an attribute."""

HIDDEN = "forebay.xarray."
_TYPE = HIDDEN + "type:"
_OF_THE_VARIABLE = ("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range", "flag_values", "flag_masks")
_INT64 = np.iinfo(np.int64)
_KINDS = "text, flags, numbers, bytes, and lists or 1-D arrays of one of these"


def encode(attrs: Mapping[Hashable, Any], owner: str, dtype: np.dtype[Any] | None = None) -> dict[str, Plain]:
    """The attributes as Forebay holds them.

    ``owner`` is what they belong to, for errors; ``dtype`` that of the variable. Raises ``UsageType`` for a value that
    is no attribute, ``Usage`` for a name that is empty or one of ours.
    """
    stored: dict[str, Plain] = {}
    for key, value in attrs.items():
        if not isinstance(key, str):
            raise errors.UsageType(f"the name {key!r} of an attribute of {owner} is not a string")
        if not key or key.startswith(HIDDEN):
            raise errors.Usage(f"{key!r} cannot be the name of an attribute of {owner}")
        try:
            stored[key], kind = _plain(value)
        except _NoAttributeError:
            raise errors.UsageType(
                f"the value {value!r} cannot be an attribute",
                {"attribute": key, "of": owner},
                f"attributes are {_KINDS}",
            ) from None
        if kind and not (key == "_FillValue" and dtype is not None and kind == dtype.name):
            stored[_TYPE + key] = kind
    return stored


def decode(stored: Mapping[str, Any], dtype: np.dtype[Any] | None = None) -> dict[str, Any]:
    """The attributes as xarray has them, without those of ours; the inverse of ``encode``."""
    attrs: dict[str, Any] = {}
    for key, value in stored.items():
        if key.startswith(HIDDEN):
            continue
        kind = stored.get(_TYPE + key)
        if kind is not None:
            value = _restored(value, str(kind))
        elif dtype is not None and key in _OF_THE_VARIABLE:
            value = _as_dtype(value, dtype)
        attrs[key] = value
    return attrs


class _NoAttributeError(Exception):
    pass


def _plain(value: Any) -> tuple[Plain, str | None]:
    """The value as Forebay holds it, and its type where that does not say it."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, str):
        return str(value), None
    if isinstance(value, bytes):
        return value.decode("latin-1"), "bytes"
    if isinstance(value, bool | np.bool_):
        return bool(value), None
    if isinstance(value, np.generic):
        return _plain_scalar(value)
    if isinstance(value, int):
        return (value, None) if _INT64.min <= value <= _INT64.max else (str(value), "int")
    if isinstance(value, float):
        return value, None
    if isinstance(value, complex):
        return [value.real, value.imag], "complex"
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return _plain_array(value)
    if isinstance(value, list | tuple):
        return _plain_list(value)
    raise _NoAttributeError


def _plain_scalar(value: "np.generic[Any]") -> tuple[Plain, str | None]:
    stored, kind = _plain_array(np.asarray([value]))
    assert isinstance(stored, list) and kind is not None
    kind = kind.removeprefix("array:")
    if value.dtype.kind == "c":
        return stored, kind
    return stored[0], None if kind in ("int64", "float64") else kind


def _plain_array(array: np.ndarray[Any, Any]) -> tuple[Plain, str | None]:
    kind = f"array:{array.dtype.name}"
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.size and int(array.max()) > _INT64.max:
            return [str(n) for n in array.tolist()], kind
        return [int(n) for n in array.tolist()], kind
    if array.dtype.kind == "b":
        return [int(n) for n in array.tolist()], kind
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return [float(x) for x in array.tolist()], kind
    if array.dtype.kind == "c" and array.dtype.itemsize <= 16:
        return [float(x) for pair in array.tolist() for x in (pair.real, pair.imag)], kind
    if array.dtype.kind == "S":
        return [text.decode("latin-1") for text in array.tolist()], "array:bytes"
    if array.dtype.kind in "UOT" and all(isinstance(text, str) for text in array.tolist()):
        return [str(text) for text in array.tolist()], "array:str"
    raise _NoAttributeError


def _plain_list(values: list[Any] | tuple[Any, ...]) -> tuple[Plain, str | None]:
    if not values:
        return [], None
    if all(isinstance(v, str) for v in values):
        return [str(v) for v in values], None
    if all(isinstance(v, bool) for v in values):
        return [int(v) for v in values], "list:bool"
    if all(type(v) is int for v in values) and all(_INT64.min <= v <= _INT64.max for v in values):
        return list(values), None
    if all(type(v) in (int, float) for v in values):
        return [float(v) for v in values], None
    if all(isinstance(v, np.generic) for v in values):
        return _plain_array(np.asarray(values))
    raise _NoAttributeError


def _restored(value: Any, kind: str) -> Any:
    """The value of the type that a second attribute names; as stored where this build does not know the type."""
    if kind == "bytes":
        return value.encode("latin-1")
    if kind == "int":
        return int(value)
    if kind == "complex":
        return complex(*value)
    if kind == "list:bool":
        return [bool(v) for v in value]
    if kind == "array:str":
        return np.asarray(value, dtype=np.str_)
    if kind == "array:bytes":
        return np.asarray([text.encode("latin-1") for text in value], dtype=np.bytes_)
    name = kind.removeprefix("array:")
    try:
        dtype = np.dtype(name)
    except TypeError:
        return value
    if dtype.kind == "c":
        array = np.asarray(value, np.float64).view(np.complex128).astype(dtype)
        return array if name != kind else dtype.type(array[0])
    if name != kind:
        return np.asarray([int(v) for v in value] if dtype.kind in "iu" else value, dtype=dtype)
    return dtype.type(int(value) if dtype.kind in "iu" else value)


def _as_dtype(value: Any, dtype: np.dtype[Any]) -> Any:
    """Numbers as values of the dtype, where it holds them without loss."""
    if dtype.kind not in "iuf" or isinstance(value, str | bool) or (isinstance(value, list) and not value):
        return value
    given = np.asarray(value)
    if given.dtype.kind not in "iuf":
        return value
    with np.errstate(all="ignore"):
        cast = given.astype(dtype)
    # A fill value of float64 that was meant for float32 (1e20) is the nearest float32.
    same = cast.astype(given.dtype) == given if dtype.kind in "iu" else np.isfinite(cast) == np.isfinite(given)
    if not np.all(same):
        return value
    return cast if given.ndim else cast[()]
