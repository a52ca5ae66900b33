"""Variables of one dimension for Arrow: the PyCapsule interface, by the package nanoarrow.

Nothing is copied where a variable lies in one piece: the buffers are views into the space, which hold its version.
"""

import importlib
from typing import TYPE_CHECKING, Any

from forebay import errors

if TYPE_CHECKING:
    from forebay._forebay import ReadStep
    from forebay._step_array import StepArray

# NumPy's names of the element types that Arrow has, and nanoarrow's names of them.
_TYPES = {
    "bool": "BOOL",
    "float16": "HALF_FLOAT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def _nanoarrow() -> Any:
    try:
        return importlib.import_module("nanoarrow")
    except ImportError as e:
        raise errors.NotPossibleHere("Arrow needs the package nanoarrow", {}, "pip install forebay[arrow]") from e


def _schema(array: "StepArray") -> Any:
    """The Arrow type of a variable. Errors: UsageType, where there is none."""
    na = _nanoarrow()
    name = array.dtype.name
    if array.ndim != 1 or name not in _TYPES:
        hint = "Arrow takes variables of one dimension of truth values, integers and floats; numpy.asarray takes others"
        raise errors.UsageType(f"{array.name} is {name} of shape {array.shape}", {}, hint)
    return na.c_schema(na.Schema(na.Type[_TYPES[name]], nullable=False))


def _array(array: "StepArray") -> Any:
    na = _nanoarrow()
    schema = _schema(array)
    if array.dtype.name == "bool":
        import numpy as np

        # Arrow packs eight truth values into a byte.
        buffer = np.packbits(array._whole(), bitorder="little")
    else:
        buffer = array._whole()
    return na.c_array_from_buffers(schema, array.size, [None, buffer], null_count=0)


def schema_capsule(array: "StepArray") -> object:
    """A capsule ``arrow_schema``."""
    return _schema(array).__arrow_c_schema__()


def array_capsules(array: "StepArray", requested_schema: object | None) -> tuple[object, object]:
    """Capsules ``arrow_schema`` and ``arrow_array``. The type is that of the variable, whatever was requested."""
    del requested_schema
    schema, capsule = _array(array).__arrow_c_array__()
    return schema, capsule


class Table:
    """Variables of one dimension and one length, as columns. Made by ``step.table()``; holds no data until it is
    taken.
    """

    def __init__(self, arrays: "list[StepArray]") -> None:
        self._arrays = arrays

    @property
    def column_names(self) -> list[str]:
        """Names of the variables."""
        return [array.name for array in self._arrays]

    def __len__(self) -> int:
        return self._arrays[0].size

    def __arrow_c_schema__(self) -> object:
        return self._schema().__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        del requested_schema
        schema, capsule = self._batch().__arrow_c_array__()
        return schema, capsule

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        na = _nanoarrow()
        del requested_schema
        return na.c_array_stream(self._batch()).__arrow_c_stream__()

    def _schema(self) -> Any:
        na = _nanoarrow()
        return na.c_schema(na.struct({array.name: na.Schema(_schema(array)) for array in self._arrays}))

    def _batch(self) -> Any:
        children = [_array(array) for array in self._arrays]
        return _nanoarrow().c_array_from_buffers(self._schema(), len(self), [None], null_count=0, children=children)

    def __repr__(self) -> str:
        return f"<forebay.Table {len(self)} rows of {', '.join(self.column_names)}>"


def table(step: "ReadStep", names: list[str] | None) -> Table:
    """The named variables as columns, or all of one dimension and the length of the first such. Errors: Usage when
    there are none, or named ones have different lengths."""
    if names is None:
        columns = (array for array in step.values() if array.ndim == 1 and array._variable.kind != "str")
        arrays = [array for array in columns if array.dtype.name in _TYPES]
        arrays = [array for array in arrays if array.shape == arrays[0].shape]
    else:
        if len(set(names)) < len(names):
            raise errors.Usage("a column is named twice", {"names": ", ".join(names)}, "name each variable once")
        arrays = [step[name] for name in names]
    lengths = {array.shape for array in arrays}
    if len(lengths) != 1:
        none = "no variable was named" if names is not None else "there is no variable of one dimension"
        what = "columns of different shapes" if arrays else none
        raise errors.Usage(f"{what} in version {step.version}", {}, "step.table([...]) takes those of one length")
    for array in arrays:
        _schema(array)
    return Table(arrays)
