"""What notebooks show of channels, steps and arrays: small HTML tables."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay._forebay import Reader, ReadStep, Variable, Writer
    from forebay._step_array import StepArray

# Rows of a table; the rest is counted.
_ROWS_MAX = 50


def _bytes(number: int) -> str:
    """A size as people write it."""
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


def _table(columns: Iterable[str], rows: list[tuple[object, ...]]) -> str:
    head = "".join(f"<th style='text-align:left'>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows[:_ROWS_MAX]
    )
    more = f"<p>and {len(rows) - _ROWS_MAX} more</p>" if len(rows) > _ROWS_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _attributes(attributes: Mapping[str, object]) -> str:
    return _table(("attribute", "value"), list(attributes.items())) if attributes else ""


def _row(variable: "Variable | StepArray") -> tuple[object, ...]:
    dims = variable.dims or ()
    extents = (f"{dim}: {n}" for dim, n in zip(dims, variable.shape, strict=True)) if dims else map(str, variable.shape)
    shape = ", ".join(extents)
    return (variable.name, variable.dtype, f"({shape})", _bytes(variable.nbytes), len(variable.pieces))


_COLUMNS = ("variable", "dtype", "shape", "size", "pieces")


def _channel(channel: "Reader | Writer", what: str) -> str:
    return f"<p><b>{escape(channel.name)}</b>: forebay.{what}, rank {channel.rank} of {channel.size}</p>"


def reader(channel: "Reader") -> str:
    """Versions and attributes of the space."""
    if channel.closed:
        return _channel(channel, "Reader") + "<p>closed</p>"
    versions = channel.versions()
    held = f"versions {versions[0]} to {versions[-1]}" if versions else "no complete version"
    return f"{_channel(channel, 'Reader')}<p>{held}</p>{_attributes(channel.attrs)}"


def writer(channel: "Writer") -> str:
    """Where the writer stands."""
    if channel.closed:
        return _channel(channel, "Writer") + "<p>closed</p>"
    stands = f"next version {channel.next_version}; a step survives a {channel.durability}"
    return f"{_channel(channel, 'Writer')}<p>{escape(stands)}</p>"


def step(step: "ReadStep") -> str:
    """Variables and attributes of a version."""
    variables = [_row(variable) for variable in step.variables.values()]
    return f"<p><b>version {step.version}</b></p>{_table(_COLUMNS, variables)}{_attributes(step.attrs)}"


def array(array: "StepArray") -> str:
    """One variable of a version."""
    return _table(_COLUMNS, [_row(array)]) + _attributes(array.attrs)
