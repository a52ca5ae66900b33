"""Which versions of which space a dataset shows, and how their data are read.

A source of one version holds it until the dataset is closed or no longer referenced, as an open step does; a source of
many versions holds none. A source that came from another process opens the space again by its path, and a version for
each read alone.
"""

import contextlib
import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

import forebay as fb
from forebay import errors
from forebay.xarray._layout import Layout
from forebay.xarray._space import Space

VIEW_BYTES_MIN = 1 << 20
"""Smaller results are copied: an index or a mean that is kept would hold its whole version."""

_COMPARED_SINGLY_MAX = 2
"""Variables of a version that are compared one by one; with the next one all are."""

_Array = np.ndarray[Any, Any]
_Box = tuple[slice, ...]


class Source:
    """One version, or several along a first dimension, of one space."""

    def __init__(
        self,
        path: str,
        versions: Sequence[int],
        *,
        stacked: bool,
        uuid: str | None = None,
        space: Space | None = None,
        hold: bool = False,
        copy: bool = False,
    ) -> None:
        self.path = path
        self.versions = versions
        self.newest = max(versions)
        """The version that the dataset's variables and attributes are taken from."""
        self.stacked = stacked
        self.copy = copy
        self._uuid = uuid
        self._space = space
        self._hold = hold
        self._held: fb.ReadStep | None = None
        self._layouts: Mapping[str, Layout] = {}
        self._fitting: dict[int, Collection[str]] = {}
        self._labels: dict[str, tuple[Layout, _Array]] = {}
        self._labels_of: set[tuple[int, str]] = set()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _again, (self.path, self.uuid, self.versions, self.stacked, self.copy)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Two sources with the same identity show the same data: complete versions never change."""
        return self.uuid, tuple(self.versions), self.stacked

    @property
    def uuid(self) -> str:
        if self._uuid is None:
            self._uuid = self.space.uuid
        return self._uuid

    @property
    def space(self) -> Space:
        """The space; opened here where this came from another process."""
        space = self._space
        if space is None or space.pid != os.getpid():
            space = Space.at(Path(self.path))
            if self._uuid is not None and space.uuid != self._uuid:
                raise errors.VersionGone(
                    "the space that this dataset was opened from has been replaced",
                    {"space": self.path, "version": str(self.newest)},
                    "open it again",
                )
            self._space, self._held = space, None
        return space

    @contextlib.contextmanager
    def step(self, version: int) -> Iterator[fb.ReadStep]:
        """The version, open for the time of the block, or the one that is held. Raises ``VersionGone``."""
        space = self.space
        if self._hold and self._held is None:
            self._held = space.reader.open_version(version)
        held = self._held
        if held is not None and version == held.version:
            yield held
            return
        with space.reader.open_version(version) as step:
            yield step

    def release(self) -> None:
        """Holds the version no longer. What is read later opens it again, if it is still there."""
        self._hold = False
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def of_the_newest(self) -> "Source":
        """The newest of these versions alone; nothing is held."""
        return Source(self.path, (self.newest,), stacked=False, uuid=self._uuid, space=self._space, copy=self.copy)

    def read(
        self,
        name: str,
        version: int,
        box: _Box | None,
        *,
        out: _Array | None = None,
        layout: Layout | None = None,
        labels: tuple[str, ...] = (),
    ) -> _Array:
        """A box of a variable, the whole without one; into ``out``, or as a view where that is possible and large.

        With a layout, raises where the variable does not fit the dataset, which is that of the newest version:
        ``UnknownVariable`` where it is missing, ``VariableMismatch`` where its shape, dtype, dimensions or encoding
        differ, or a coordinate among the labels has other values.
        """
        with self.step(version) as step:
            if layout is not None and version != self.newest:
                self._check(step, name, layout, labels)
            if out is not None:
                return step.get(name, box, out=out)
            if self.copy:
                return step.get(name, box)
            data = step.get(name, box, copy=None)
        if data.nbytes < VIEW_BYTES_MIN and not data.flags.owndata:
            data = data.copy()
        return data

    def text(self, name: str, version: int, layout: Layout | None = None) -> str:
        """A variable that is a text; checked as by ``read``."""
        with self.step(version) as step:
            if layout is not None and version != self.newest:
                self._check(step, name, layout, ())
            return step.text(name)

    def expect(self, layouts: Mapping[str, Layout]) -> None:
        """All variables of the newest version, so that another one can be compared as a whole."""
        self._layouts = layouts

    def _check(self, step: fb.ReadStep, name: str, layout: Layout, labels: tuple[str, ...]) -> None:
        if name not in self._fitting.get(step.version, ()):
            self._check_layout(step, name, layout)
            self._note_fitting(step, name)
        for label in labels:
            if (step.version, label) not in self._labels_of:
                self._check_label(step, label)
                self._labels_of.add((step.version, label))

    def _note_fitting(self, step: fb.ReadStep, name: str) -> None:
        """Remembers what was compared. Asking for the third variable of a version compares all: that costs less than
        all of them one by one, as a version is read anew each time that it is opened."""
        fitting = {name, *self._fitting.get(step.version, ())}
        if len(fitting) > _COMPARED_SINGLY_MAX and self._layouts:
            there = step.variables
            for other, layout in self._layouts.items():
                if other in there and layout.difference(Layout.of(there[other])) is None:
                    fitting.add(other)
            if len(fitting) == len(self._layouts):
                self._fitting[step.version] = self._layouts.keys()
                return
        self._fitting[step.version] = fitting

    def _check_layout(self, step: fb.ReadStep, name: str, layout: Layout) -> None:
        found = variable(step, name)
        if found is None:
            raise errors.UnknownVariable(
                f"version {step.version} has no variable {name}, which version {self.newest} has",
                {"space": self.path},
                _hint(layout),
            )
        said = layout.difference(Layout.of(found))
        if said:
            raise errors.VariableMismatch(
                f"variable {name} has in version {step.version} the {said}, as in version {self.newest}",
                {"space": self.path},
                _hint(layout),
            )

    def _check_label(self, step: fb.ReadStep, label: str) -> None:
        """The coordinate of a dimension, which the dataset has once for all versions; one may leave it out."""
        there = variable(step, label)
        if there is None:
            return
        if label not in self._labels:
            with self.step(self.newest) as newest:
                layout = Layout.of(newest.variable(label))
            self._labels[label] = layout, self.read(label, self.newest, None)
        layout, values = self._labels[label]
        # Equal bytes can mean other times or numbers.
        said = layout.difference(Layout.of(there))
        if said is not None:
            said = f"has in version {step.version} the {said}, as in version {self.newest}"
        elif not np.array_equal(step.get(label), values, equal_nan=values.dtype.kind in "fc"):
            said = f"has other values in version {step.version} than in version {self.newest}"
        if said is not None:
            raise errors.VariableMismatch(
                f"the coordinate {label} {said}",
                {"space": self.path},
                f'open the versions one by one, or leave the coordinate out: drop_variables="{label}"',
            )


_HINT = "open this version alone, with version=, or only versions that are alike, with step=slice(FIRST, STOP)"


def _hint(layout: Layout) -> str:
    """xarray reads times when it opens, so that leaving them out is what opens the other variables."""
    of_times = " since " in str(layout.decoding.get("units"))
    return f"{_HINT}; decode_times=False opens them without reading their times" if of_times else _HINT


def variable(step: fb.ReadStep, name: str) -> fb.Variable | None:
    """What the version says of a variable, None where it holds none of this name."""
    return step.variable(name) if name in step else None


def _again(path: str, uuid: str, versions: Sequence[int], stacked: bool, copy: bool) -> Source:
    """A source in the process that it was sent to."""
    return Source(path, versions, stacked=stacked, uuid=uuid, copy=copy)


def one_version(space: Space, version: int | None, timeout: float, copy: bool) -> Source:
    """A source of one version, which it holds: this one, or the newest complete one, which it waits for."""
    if version is not None:
        source = Source(space.path, (version,), stacked=False, space=space, hold=True, copy=copy)
        with source.step(version):
            return source
    while True:
        newest = latest(space, timeout)
        with contextlib.suppress(errors.VersionGone):
            return one_version(space, newest, timeout, copy)


def many_versions(space: Space, chosen: object, timeout: float, copy: bool) -> Source:
    """A source of the chosen versions: "all", a slice of version numbers, or the numbers themselves."""
    latest(space, timeout)
    there = space.reader.versions()
    versions: Sequence[int]
    if isinstance(chosen, str):
        if chosen != "all":
            raise errors.Usage(f'step={chosen!r} is neither "all", a slice nor version numbers')
        versions = there
    elif isinstance(chosen, slice):
        versions = _slice(there, chosen)
    else:
        try:
            versions = tuple(operator.index(version) for version in cast(Any, chosen))
        except TypeError:
            raise errors.UsageType(f'step={chosen!r} is neither "all", a slice nor version numbers') from None
        for version in versions:
            if version not in there:
                with space.reader.open_version(version):
                    pass
    if not versions:
        raise errors.Usage(f"step={chosen!r} chooses none of the versions {there.start} to {there.stop - 1}")
    return Source(space.path, versions, stacked=True, space=space, copy=copy)


def _slice(there: range, chosen: slice) -> range:
    """Those of the versions that are there which the slice counts, from its own start on and not from the oldest."""
    try:
        start, stop, stride = (
            None if value is None else operator.index(value) for value in (chosen.start, chosen.stop, chosen.step)
        )
    except TypeError:
        raise errors.UsageType(f"step={chosen!r} is not a slice of version numbers") from None
    stride = 1 if stride is None else stride
    if stride == 0 or any(value is not None and value < 0 for value in (start, stop)):
        hint = 'versions are not counted from the end: open_dataset(..., step="all").isel(step=slice(-2, None))'
        raise errors.Usage(f"step={chosen!r} is not a slice of version numbers", {}, hint)
    if stride > 0:
        start = there.start if start is None else start
        first = start + -(-max(there.start - start, 0) // stride) * stride
        return range(first, there.stop if stop is None else min(stop, there.stop), stride)
    last = there.stop - 1
    start = last if start is None else start
    first = start - -(-max(start - last, 0) // -stride) * -stride
    return range(first, there.start - 1 if stop is None else max(stop, there.start - 1), stride)


def latest(space: Space, timeout: float) -> int:
    """The newest complete version. Raises ``TimedOut`` where there is none within the timeout."""
    newest = space.reader.latest()
    if newest is None:
        space.reader.wait(space.reader.versions().start, timeout=timeout)
        newest = space.reader.latest()
    assert newest is not None
    return newest
