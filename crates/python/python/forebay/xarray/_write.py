"""A dataset as what a step is given: encoded by xarray, then put.

xarray encodes by the CF conventions: packed numbers, times, texts. A space holds the encoded values, and the attributes
by their CF names. Three things are held otherwise than in netCDF: flags as bool, not as int8 with an attribute
``dtype``; one text as a text of Forebay; characters (``S1``, also those that arrays of texts are encoded to) as uint8
with a hidden attribute.
"""

import warnings
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import xarray as xr
from xarray.backends import common
from xarray.coding import strings

import forebay as fb
from forebay import errors
from forebay.xarray import _attributes
from forebay.xarray._kept import HINT, check_family, numbers, surviving
from forebay.xarray._layout import DECODING, Layout
from forebay.xarray._names import CHARACTERS, GROUP, NONE, UNLIMITED, owner

_ENCODINGS = frozenset({"chunksizes", "dtype", "original_shape", "preferred_chunks", "source"})
_ArrayWriter: Any = common.ArrayWriter
_strings: Any = strings


class WriteStore(common.WritableCFDataStore):
    """Collects one group, encoded, so that nothing is written before all is encoded; ``put`` puts it into a step."""

    def __init__(self, group: str = "") -> None:
        self.group = group
        self.expected: Mapping[str, Layout] = {}
        """What the version before holds, for an added one."""
        self.families: Mapping[str, str | None] = {}
        self.explicit: frozenset[Hashable] = frozenset()
        self.attributes: dict[str, Any] = {}
        self._targets: list[tuple[Target, Any]] = []
        self._unlimited: list[str] = []
        self._stored: dict[str, Any] = {}

    def encode_variable(self, v: xr.Variable, name: Hashable | None = None) -> xr.Variable:
        """Texts as characters, but one as it is; flags as flags; numbers in the byte order of this machine."""
        one_text = v.ndim == 0 and _strings.is_unicode_dtype(v.dtype) and "_FillValue" not in v.attrs
        if one_text and v.encoding.get("dtype") != "S1":
            return v
        v = _strings.EncodedStringCoder(allows_unicode=False).encode(v, name=name)
        v = _strings.CharacterArrayCoder().encode(v, name=name)
        if v.attrs.get("dtype") == "bool" and v.dtype == np.int8:
            attrs = {key: value for key, value in v.attrs.items() if key != "dtype"}
            v = xr.Variable(v.dims, v.data.astype(bool), attrs, v.encoding)
        if not v.dtype.isnative:
            v = xr.Variable(v.dims, v.data.astype(v.dtype.newbyteorder("=")), v.attrs, v.encoding)
        return v

    def encode(self, variables: Any, attributes: Any) -> tuple[dict[Any, xr.Variable], dict[Any, Any]]:
        """As xarray encodes; what keeps the encoding of the version before is checked to survive it."""
        kept = [name for name in variables if name in self.expected and name not in self.explicit]
        variables = dict(variables)
        for name in kept:
            before = self.families.get(str(name))
            if before == "numbers":
                variables[name] = numbers(variables[name])
            check_family(self._full(str(name)), variables[name], before)
        base: Any = super()
        encoded, attributes = base.encode(variables, attributes)
        for name in kept:
            encoded[name] = surviving(self._full(str(name)), variables[name], encoded[name])
        return encoded, attributes

    def get_dimensions(self) -> dict[str, int]:
        return {}

    def set_dimension(self, dim: str, length: int, is_unlimited: bool = False) -> None:
        if is_unlimited:
            self._unlimited.append(str(dim))

    def set_attribute(self, k: str, v: Any) -> None:
        self.attributes[k] = v

    def prepare_variable(
        self, name: str, variable: xr.Variable, check_encoding: bool = False, unlimited_dims: Any = None
    ) -> tuple["Target", Any]:
        """Where the encoded variable goes, and its data, as ``AbstractWritableDataStore.store`` asks."""
        encoding = dict(variable.encoding)
        if encoding.get("_FillValue", 0) is None:  # none is wanted
            del encoding["_FillValue"]
        unexpected = sorted(str(key) for key in encoding if key not in _ENCODINGS)
        if check_encoding and unexpected:
            raise errors.Usage(f"unexpected encoding parameters {unexpected} of variable {name}")
        if "/" in name:
            raise errors.Usage(f"variable {name!r} cannot have / in its name", None, "groups are those of a DataTree")
        target = Target(self._full(name), variable, encoding.get("chunksizes") if check_encoding else None)
        self._compare(name, target, variable)
        return target, variable.data

    def set_variables(self, variables: Any, check_encoding_set: Any, writer: Any, unlimited_dims: Any = None) -> None:
        """Collects the variables; ``put`` writes them."""
        for key, variable in variables.items():
            name = NONE if key is None else str(key)
            self._targets.append(self.prepare_variable(name, variable, key in check_encoding_set, unlimited_dims))

    def _full(self, name: str) -> str:
        return f"{self.group}/{name}" if self.group else name

    def _compare(self, name: str, target: "Target", variable: xr.Variable) -> None:
        """An appended variable keeps its encoding, or the versions could not be read as one."""
        layout = self.expected.get(name)
        if layout is None or name in self.explicit:
            return
        is_text = target.is_text and layout.kind == "str"
        dtype, kind = (layout.dtype, "str") if is_text else (target.dtype, target.dtype.name)
        decoding = {key: target.attrs[key] for key in target.attrs.keys() & DECODING}
        said = layout.difference(Layout(layout.shape, dtype, kind, layout.dims, decoding))
        if said is not None:
            raise errors.VariableMismatch(
                f"variable {target.name} would be stored with the {said}, which the version before has",
                {"variable": target.name},
                HINT,
            )

    def put(self, step: fb.WriteStep) -> None:
        """Puts all into the step; a Dask array chunk by chunk, each one a piece. Blocks for capacity as a put does."""
        for key, value in self._stored.items():
            step.attrs[key] = value
        writer = _ArrayWriter()
        for target, data in self._targets:
            target.step = step
            writer.add(data, target)
        writer.sync()
        for target, _ in self._targets:
            if not target.was_put:
                target.put_empty()
            if target.in_parts:
                step.describe(target.name, dims=target.dims, attrs=target.attrs)

    def finish(self, groups: set[str]) -> None:
        """Encodes the attributes of the group as some of the version. ``Usage`` where they would be another group's."""
        given = cast(Mapping[Hashable, Any], self.attributes)
        stored: dict[str, Any] = {**_attributes.encode(given, f"group {self.group}" if self.group else "the dataset")}
        if self._unlimited:
            stored[UNLIMITED] = self._unlimited
        if self.group:
            stored[GROUP] = True
        full = {self._full(key): value for key, value in stored.items()}
        for key, name in zip(full, stored, strict=True):
            if owner(key, groups) != (self.group, name):
                raise errors.Usage(f"attribute {name!r} would be read as that of a group of this name")
        self._stored = full


class Target:
    """Where a variable goes. Assigning to it puts; from several threads too, in this process only."""

    def __init__(self, name: str, variable: xr.Variable, chunksizes: Any) -> None:
        self.name = name
        self.shape = variable.shape
        self.dims = tuple(str(dim) for dim in variable.dims)
        self.dtype = variable.dtype
        self.step: fb.WriteStep | None = None
        self.was_put = False
        """Whether anything was: of an array without elements Dask stores no chunk."""
        self.in_parts = False
        """Whether it was put in several parts, so that it is described once behind them."""
        self.attrs: dict[str, Any] = _attributes.encode(variable.attrs, f"variable {name}", variable.dtype)
        self.is_text = self.dtype.kind in "UOT"
        self._characters = self.dtype.kind == "S"
        if self._characters:
            self.attrs[CHARACTERS] = True
            self.dtype = np.dtype(np.uint8)
        self._chunks = None if chunksizes is None else tuple(int(n) for n in chunksizes)
        if self._chunks is not None and self._characters and len(self._chunks) == len(self.shape) - 1:
            # The dimension of the characters is hidden from the caller.
            self._chunks = (*self._chunks, max(self.shape[-1], 1))
        if self._chunks is not None and (len(self._chunks) != len(self.shape) or min(self._chunks, default=1) < 1):
            raise errors.Usage(f"chunksizes {chunksizes!r} of variable {name} are not one for each of {self.dims}")

    def __reduce__(self) -> Any:
        raise errors.Usage(
            "another process cannot put into this step",
            {"variable": self.name},
            'compute the dataset before, or save it by threads of this process: dask.config.set(scheduler="threads")',
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        whole = key is Ellipsis
        if not whole:
            self._put(value, tuple(part.indices(n)[0] for part, n in zip(key, self.shape, strict=True)))
        elif self._chunks is None:
            self._put(value, None)
        else:
            for start in np.ndindex(*(-(-n // chunk) for n, chunk in zip(self.shape, self._chunks, strict=True))):
                at = tuple(i * chunk for i, chunk in zip(start, self._chunks, strict=True))
                box = tuple(slice(a, a + chunk) for a, chunk in zip(at, self._chunks, strict=True))
                self._put(value[box], at)

    def put_empty(self) -> None:
        """Puts an array without elements."""
        self._put(np.empty(self.shape, self.dtype), None)

    def _put(self, value: Any, start: tuple[int, ...] | None) -> None:
        """Always says the whole shape: one of a group of writers puts, and the others nothing."""
        assert self.step is not None
        self.was_put = True
        if self.is_text:
            text = str(np.asarray(value)[()])
            self.step.put(self.name, text, (len(text.encode()),), (0,), attrs=self.attrs)
            return
        data = np.asarray(value, order="C")
        if self._characters:
            data = data.view(np.uint8)
        if start is None:
            self.step.put(self.name, data, self.shape, (0,) * len(self.shape), dims=self.dims, attrs=self.attrs)
        else:
            self.in_parts = True
            self.step.put(self.name, data, self.shape, start)


def sizes_unlimited(dataset: xr.Dataset, given: Iterable[Hashable] | str | None) -> set[Hashable]:
    """The unlimited dimensions, as ``Dataset.to_netcdf`` takes them: given, or those of the dataset's encoding."""
    chosen = dataset.encoding.get("unlimited_dims") if given is None else given
    if chosen is None:
        return set()
    names: set[Hashable] = {chosen} if isinstance(chosen, str) else set(cast(Iterable[Hashable], chosen))
    unknown = names - set(dataset.dims)
    if unknown:
        where = "dataset.encoding" if given is None else "unlimited_dims-kwarg"
        said = f"Unlimited dimension(s) {unknown!r} declared in {where!r}, but not part of current dataset dimensions"
        if given is not None:
            raise errors.Usage(said)
        warnings.warn(said, stacklevel=2)
    return names
