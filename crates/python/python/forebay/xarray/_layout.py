"""What must be alike in two versions for their values to be read as one array."""

import re
from collections.abc import Mapping
from typing import Any

import forebay as fb
from forebay.xarray._names import CHARACTERS

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
        CHARACTERS,
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

    @property
    def _is_texts(self) -> bool:
        """Whether the last axis is one of characters, as long as the longest text."""
        return CHARACTERS in self.decoding and len(self.shape) > 0

    def difference(self, other: "Layout") -> str | None:
        """In what the other differs, in words; None where its values mean the same."""
        if self._is_texts and other._is_texts and self.shape[:-1] == other.shape[:-1] and self.shape != other.shape:
            return f"longest text of {other.shape[-1]} bytes instead of {self.shape[-1]}"
        for what in ("shape", "dtype", "kind", "dims"):
            mine, its = getattr(self, what), getattr(other, what)
            if mine != its:
                return f"{what} {its} instead of {mine}"
        for key in sorted(self.decoding.keys() | other.decoding.keys()):
            mine, its = self.decoding.get(key), other.decoding.get(key)
            if not is_same(mine, its):
                return f"{key} {its!r} instead of {mine!r}"
        return None


_MIDNIGHT = re.compile(r"[ T]00:00(:00(\.0+)?)?$")


def is_same(one: Any, other: Any) -> bool:
    """Whether two attributes mean the same. xarray writes the midnight of units since a date once, and then not."""
    if isinstance(one, str) and isinstance(other, str):
        return _MIDNIGHT.sub("", one) == _MIDNIGHT.sub("", other)
    return bool(one == other) or (one != one and other != other)
