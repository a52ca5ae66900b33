"""Attributes of a space or of one version as a mapping: small named values beside the arrays."""

from collections.abc import Iterator, MutableMapping
from typing import Protocol

from forebay import errors

Attribute = str | int | float | bool | list[int] | list[float] | list[str]


class _Source(Protocol):
    def _attributes(self) -> dict[str, Attribute]: ...
    def _set_attribute(self, key: str, value: object) -> None: ...


class Attributes(MutableMapping[str, Attribute]):
    """``ch.attrs`` and ``step.attrs``: text, numbers, flags and lists of texts or numbers under a name.

    ``ch.attrs`` are of the whole space: readers see them at once, and each look goes into the space, so that what
    another rank set a moment ago is there. ``step.attrs`` of a step that is written are of its version and become
    visible with it. Only a writer may set; attributes are never taken away, so ``del`` is an error.
    """

    __slots__ = ("_source",)

    def __init__(self, source: _Source) -> None:
        self._source = source

    def __getitem__(self, key: str) -> Attribute:
        return self._source._attributes()[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._source._set_attribute(key, value)

    def __delitem__(self, key: str) -> None:
        raise errors.UsageType("attributes cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._source._attributes())

    def __len__(self) -> int:
        return len(self._source._attributes())

    def __repr__(self) -> str:
        return f"Attributes({self._source._attributes()!r})"
