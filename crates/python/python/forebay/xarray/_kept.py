"""Whether values survive the encoding of the version before, which an added version keeps.

xarray casts to the dtype that an encoding says: it rounds, wraps and truncates. Here that is ``VariableMismatch``;
of Dask arrays when their chunks are computed. Floats may be rounded to the precision of the stored dtype, and packed
numbers to a multiple of their ``scale_factor``. Times are checked by xarray itself; what it raises for a chunk of Dask
is made the same error.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding import strings
from xarray.core.common import contains_cftime_datetimes

from forebay import errors
from forebay.xarray._layout import is_same

HINT = "say an encoding that suits all versions when the space is made, or one for this version, encoding="
_PACKING_ERROR = 8 * float(np.finfo(np.float32).eps)
"""xarray packs in float32 or float64, in a few operations. What wraps is wrong by far more."""

_Array = np.ndarray[Any, Any]
_strings: Any = strings
_ensure_dtype_not_object: Any = ensure_dtype_not_object


def family(variable: xr.Variable) -> str | None:
    """What kind of values they are, in words; None where that is not seen without computing."""
    kind = variable.dtype.kind
    if kind in "SUT" or _strings.check_vlen_dtype(variable.dtype) is not None:
        return "texts"
    if kind == "O":
        of_times: Any = contains_cftime_datetimes
        if of_times(variable):
            return "times"
        first = None if variable.chunks is not None or not variable.size else variable.values.flat[0]
        return "texts" if isinstance(first, str | bytes) else None
    return {"M": "times", "m": "durations"}.get(kind, "numbers")


def numbers(variable: xr.Variable) -> xr.Variable:
    """An array of objects that are numbers as one of their dtype; xarray would round the objects to integers."""
    if variable.dtype.kind != "O" or variable.chunks is not None or family(variable) is not None:
        return variable
    found: xr.Variable = _ensure_dtype_not_object(variable)
    return found


def check_family(name: str, variable: xr.Variable, before: str | None) -> None:
    """Raises where the values are of another kind than before: xarray fails on such an encoding in its own ways."""
    mine = family(variable)
    # Numbers can be times that were not decoded: their attributes are compared.
    if mine is None or before is None or mine == before or (mine == "numbers" and before != "texts"):
        return
    said = f"variable {name} has {mine}, but {before} in the version before"
    raise errors.VariableMismatch(said, {"variable": name}, HINT)


def surviving(name: str, given: xr.Variable, encoded: xr.Variable) -> xr.Variable:
    """The encoded variable: checked, or for Dask arrays such that each chunk is when it is computed."""
    of_times = given.dtype.kind in "mM" or (given.dtype.kind == "O" and " since " in str(encoded.attrs.get("units")))
    if of_times:
        return encoded if encoded.chunks is None else _encoding_times(name, given, encoded)
    if encoded.dtype.kind not in "biufc" or encoded.dims != given.dims:
        return encoded
    # What the variable says by attributes of its own was not decoded, and is stored as it is.
    said = {key: value for key, value in encoded.attrs.items() if key not in given.attrs}
    packed = not {"scale_factor", "add_offset"}.isdisjoint(said)
    fills = [said[key] for key in ("_FillValue", "missing_value") if key in said]
    if given.dtype.kind not in "biufc" or (given.dtype == encoded.dtype and not packed and not fills):
        return encoded

    def checked(stored: _Array, values: _Array) -> _Array:
        if not _survive(np.asarray(values), np.asarray(stored), said, fills):
            fill = f" with the fill value {fills[0]}" if fills else ""
            what = f"values of variable {name} would not survive as {encoded.dtype}{fill}, which the version before has"
            raise errors.VariableMismatch(what, {"variable": name}, HINT)
        return stored

    return _mapped(checked, encoded, encoded.data, given.data)


def _encoding_times(name: str, given: xr.Variable, encoded: xr.Variable) -> xr.Variable:
    """The same variable, encoded so that a chunk which does not fit is an error of ours."""
    units, calendar = encoded.attrs["units"], encoded.attrs.get("calendar")
    encoding = {**given.encoding, "units": units, "dtype": encoded.dtype}
    if calendar is not None:
        encoding["calendar"] = calendar

    def encode(values: _Array) -> _Array:
        try:
            one = xr.conventions.encode_cf_variable(xr.Variable(given.dims, values, {}, encoding), name=name)
            fits = one.dtype == encoded.dtype and is_same(one.attrs["units"], units)
        except ValueError:
            fits = False
        if not fits:
            said = f"times of variable {name} cannot be stored as {encoded.dtype} in {units}, as in the version before"
            raise errors.VariableMismatch(said, {"variable": name}, HINT)
        return np.asarray(one.data)

    return _mapped(encode, encoded, given.data)


def _mapped(function: Callable[..., _Array], encoded: xr.Variable, *arrays: Any) -> xr.Variable:
    if encoded.chunks is None:
        data = function(*arrays)
    else:
        import dask.array

        blocks: Any = dask.array
        # With meta, or Dask would call the function to learn the dtype.
        meta = np.empty((0,) * encoded.ndim, encoded.dtype)
        data = blocks.map_blocks(function, *arrays, dtype=encoded.dtype, meta=meta)
    return xr.Variable(encoded.dims, data, encoded.attrs, encoded.encoding)


@np.errstate(all="ignore")
def _survive(values: _Array, stored: _Array, attrs: Mapping[Any, Any], fills: Sequence[Any]) -> bool:
    """Whether what is stored means the values; NaN does where it is stored as NaN or as a fill value, others do not."""
    if values.dtype.kind in "fc":
        missing = np.isnan(values)
        if missing.any():
            of_missing = stored[missing]
            means_missing = np.logical_or.reduce([of_missing != of_missing, *(of_missing == fill for fill in fills)])
            if not means_missing.all():
                return False
            values, stored = values[~missing], stored[~missing]
    if any(bool((stored == fill).any()) for fill in fills):
        return False
    if attrs.get("_Unsigned") in ("true", "false") and stored.dtype.kind in "iu":
        stored = stored.view(f"{'u' if attrs['_Unsigned'] == 'true' else 'i'}{stored.dtype.itemsize}")
    if not {"scale_factor", "add_offset"}.isdisjoint(attrs):
        return _survive_packed(values, stored, float(attrs.get("scale_factor", 1)), float(attrs.get("add_offset", 0)))
    if values.dtype.kind in "fc" and stored.dtype.kind in "fc":
        # Rounding is what a shorter float is for; what it cannot hold becomes infinite.
        is_real = stored.dtype.kind == "c" or not np.imag(values).any()
        return bool(is_real and np.array_equal(np.isfinite(values), np.isfinite(stored)))
    # Comparing an integer with a float would round it.
    is_int = values.dtype.kind in "iu" and stored.dtype.kind == "f"
    return np.array_equal(values, stored.astype(values.dtype) if is_int else stored)


def _survive_packed(values: _Array, stored: _Array, scale: float, offset: float) -> bool:
    read = stored * scale + offset
    step = abs(scale) / 2 if stored.dtype.kind in "iu" else 0.0
    error_max = step * (1 + _PACKING_ERROR) + _PACKING_ERROR * (np.abs(values.astype(read.dtype)) + abs(offset))
    finite = np.isfinite(values)
    near = np.abs(read - values) <= error_max
    return bool(np.where(finite, near, read == values).all())
