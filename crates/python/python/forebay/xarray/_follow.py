"""A live space as an iterator of datasets."""

import os
from collections.abc import Mapping
from typing import Any, Self

import xarray as xr

import forebay as fb
from forebay import errors
from forebay._closing import Closing
from forebay.xarray._backend import as_dataset, space_name
from forebay.xarray._source import Source
from forebay.xarray._space import Space


_CHOSEN_BY_THE_STREAM = ("version", "step", "dim", "timeout")


class Follower(Closing):
    """Iterator over the datasets of the versions of a space, each as it becomes complete; see ``follow``."""

    def __init__(self, reader: fb.Reader, open_options: Mapping[str, Any]) -> None:
        self._reader = reader
        self._open_options = dict(open_options)
        self._copy = bool(self._open_options.pop("copy", False))
        self._source: Source | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> xr.Dataset:
        """Ends the step before, and waits for the next version. Raises ``TimedOut``; call it again to wait on."""
        self._end_step()
        if self._reader.closed:
            raise StopIteration
        if not self._reader.begin_step():
            self.close()
            raise StopIteration
        version = self._reader.step.version
        space = Space.at(space_name(self._reader.path))
        source = Source(space.path, (version,), stacked=False, space=space, hold=True, copy=self._copy)
        self._source = source
        return as_dataset(source, **self._open_options)

    def _end_step(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.release()
            self._reader.end_step()

    @property
    def missed(self) -> int:
        """Versions that were dropped before the present one, or skipped with ``latest``."""
        return self._reader.missed

    def close(self) -> None:
        """Ends the step and leaves the reader group. The last dataset is readable while its version is retained."""
        if not self._reader.closed:
            self._end_step()
            self._reader.close()


def follow(
    name: str | os.PathLike[str],
    *,
    timeout: float | None = None,
    open_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Follower:
    """The versions of a space as datasets, one after the other, each as it becomes complete.

    It reads as a reader group does: no version is missed, and writers wait for it. A version counts as read, and is
    released, when the next one is asked for; of its dataset, what is not loaded by then may be gone. What is loaded
    stays valid; large arrays are views and hold the version, unless ``open_options`` say ``copy=True``.

    ``timeout``: seconds to wait for the space and for each version; what ``forebay.open`` takes if None. ``options``
    are those of ``forebay.open`` for a reader (``component``, ``group``, ``latest``, ``finished``), ``open_options``
    those of ``xarray.open_dataset`` (``chunks``, ``group``, ``drop_variables``, decoders).

    Blocks until the space is there. The iterator ends when the writers have ended. It raises ``TimedOut`` when no
    version came in time, and waits on when it is asked again; ``ProducerDied`` when a writer died; ``PeerMissing`` when
    there is no space. It can be used in ``with``, and closed.
    """
    for key in _CHOSEN_BY_THE_STREAM:
        if key in (open_options or {}):
            hint = "give timeout= to follow itself" if key == "timeout" else "open_dataset takes it"
            raise errors.Usage(f"open_options of follow cannot have {key}: each version comes by itself", {}, hint)
    if timeout is not None:
        options["timeout"] = timeout
    return Follower(fb.open(space_name(name), **options), open_options or {})
