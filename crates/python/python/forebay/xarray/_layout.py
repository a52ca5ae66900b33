"""What must be alike in two versions for their values to be read as one array."""

import re
from collections.abc import Mapping
from typing import Any

import forebay as fb

DECODING = frozenset(
    {
        "_FillValue",
        "missing_value",
        "scale_factor",
        "add_offset",
        "_Unsigned",
        "units",
        "calendar",
        "dtype",
        "_Encoding",
    }
)
"""Attributes that say what a stored value means."""


class Layout:
    """What a dataset knows of a variable: shape, dtype, dimensions and what its values are decoded by."""

    __slots__ = ("decoding", "dims", "dtype", "kind", "shape")

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, kind: str, dims: tuple[str, ...] | None, decoding: Mapping[str, Any]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.kind = kind
        self.dims = dims
        self.decoding = decoding

    @classmethod
    def of(cls, variable: fb.Variable) -> "Layout":
        attrs = variable.attrs
        kind = variable.kind
        # The length of a text is part of its value.
        shape = () if kind == "str" else variable.shape
        return cls(shape, variable.dtype, kind, variable.dims, {key: attrs[key] for key in attrs.keys() & DECODING})

    def __reduce__(self) -> tuple[type["Layout"], tuple[Any, ...]]:
        return Layout, (self.shape, self.dtype, self.kind, self.dims, self.decoding)

    def difference(self, other: "Layout") -> str | None:
        """In what the other differs, in words; None where its values mean the same."""
        for what in ("shape", "dtype", "kind", "dims"):
            mine, its = getattr(self, what), getattr(other, what)
            if mine != its:
                return f"{what} {its} instead of {mine}"
        for key in sorted(self.decoding.keys() | other.decoding.keys()):
            mine, its = self.decoding.get(key), other.decoding.get(key)
            if not _same(mine, its):
                return f"{key} {its!r} instead of {mine!r}"
        return None


_MIDNIGHT = re.compile(r"[ T]00:00(:00(\.0+)?)?$")


def _same(one: Any, other: Any) -> bool:
    """Whether two attributes mean the same. xarray writes the midnight of units since a date once, and then not."""
    if isinstance(one, str) and isinstance(other, str):
        return _MIDNIGHT.sub("", one) == _MIDNIGHT.sub("", other)
    return bool(one == other) or (one != one and other != other)
