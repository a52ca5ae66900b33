"""``forebay.window``: a file as a plain ndarray, of which a budget's worth is in memory; and windows over arrays.

Unlike ``forebay.array``, what it gives is an ndarray over the whole file, without a copy: for code that takes nothing
else. Touching an element that is not in memory reads its tile; another one leaves.
"""

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict

from forebay import errors
from forebay._array import layout_of
from forebay._closing import Closing
from forebay._forebay import _Paged, _Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike, NDArray

_BUDGET = "256MiB"


class _Options(TypedDict):
    mode: str
    budget: int | str
    tile: int | str
    engine: str | None
    advice: str
    on_error: str


class Window(Closing):
    """A file as an ndarray (``array``), of which a part is in memory. Made by ``forebay.window`` or ``Array.window``.

    A context manager: it closes at the end. The array stays valid as long as it is referenced. In a child made by
    ``fork`` it is not there: touching it ends the child.
    """

    def __init__(self, window: _Window, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> None:
        import numpy as np

        self._window = window
        self.array: NDArray[Any] = np.ndarray(shape, dtype, memoryview(window))

    @property
    def statistics(self) -> dict[str, int | str]:
        """Which engine, and why; touches of what was not there (faults), bytes read, written, evicted, resident."""
        return self._window.statistics

    @property
    def closed(self) -> bool:
        return self._window.closed

    def _rows(self, start: int, stop: int | None) -> tuple[int, int]:
        rows = self.array.shape[0] if self.array.shape else 1
        row = self.array.nbytes // max(1, rows)
        return max(0, start) * row, min(rows, rows if stop is None else max(0, stop)) * row

    def prefetch(self, start: int = 0, stop: int | None = None) -> None:
        """Begins to read these rows; only a hint."""
        self._window.prefetch(*self._rows(start, stop))

    def will_stream(self, start: int = 0, stop: int | None = None) -> None:
        """These rows will be read from front to back; only a hint."""
        self._window.will_stream(*self._rows(start, stop))

    def done_with(self, start: int = 0, stop: int | None = None) -> None:
        """These rows are not wanted for now: they leave, written back where they were changed; only a hint."""
        self._window.done_with(*self._rows(start, stop))

    def advise(self, advice: Literal["normal", "random", "sequential"]) -> None:
        """What comes next; only a hint."""
        self._window.advise(advice)

    def check(self) -> None:
        """Raises the error of the first page that could not be read since the last call: zeros stood for it."""
        self._window.check()

    def flush(self) -> None:
        """Makes what was stored durable, and checks. Nothing is written in modes "r" and "c"."""
        self._window.flush()

    def close(self) -> None:
        """Ends the use of the window: as ``flush``. Raises what could not be written, or read."""
        self._window.close()

    def __repr__(self) -> str:
        how = "closed" if self.closed else str(self.statistics["engine"])
        return f"<forebay.Window {self.array.shape} {self.array.dtype}, {how}>"


def window(
    path: str | os.PathLike[str],
    shape: SupportsIndex | Sequence[SupportsIndex] | None = None,
    dtype: "DTypeLike | None" = None,
    *,
    budget: int | str = _BUDGET,
    tile: int | str = "64KiB",
    mode: Literal["r", "r+", "c"] = "r",
    engine: Literal["userfault", "handler", "kernel", "direct"] | None = None,
    advice: Literal["normal", "random", "sequential"] = "normal",
    on_error: Literal["zeros", "signal"] = "zeros",
    offset: int = 0,
) -> Window:
    """A file as a plain ndarray of which at most ``budget`` bytes are in memory.

    path: raw bytes in C order, or a .npy file, for which shape and dtype may be left out.
    tile: bytes that come and go together, a power of two from 4 KiB to 2 MiB. Short for scattered items, long for
        scans.
    mode: "r" reads; "r+" also stores into the file; "c" keeps what is stored to itself.
    engine: how. "userfault": who touches what is not there reads it, in a signal handler; "handler": threads answer,
        also calls of the system that are given its memory (readinto, recv_into); "kernel": a mapping whose pages are
        sent away; "direct": a mapping of a file in memory. None takes what fits; ``statistics`` says which, and why.
    on_error: what a page that cannot be read is: "zeros", and ``check``, ``flush`` and ``close`` raise its error; or
        "signal", which ends the process, as with every mapping.

    With "userfault", calls of the system cannot bring what is not there: copy first, or touch it first. Install
    handlers for SIGBUS (``faulthandler.enable``) before.

    Raises Usage, Damaged (the file is shorter than the shape), NotPossibleHere (this engine), PermissionDenied, Io.
    """
    options = _options(
        mode=mode, budget=budget, tile=tile, engine=engine, advice=advice, on_error=on_error
    )
    name = os.fspath(path)
    dims, kind, offset, _ = layout_of(name, True, shape, dtype, offset)
    nbytes = math.prod(dims) * kind.itemsize
    return Window(_Window(name, options, offset, nbytes), dims, kind)


def over(paged: _Paged, shape: tuple[int, ...], dtype: "np.dtype[Any]", **options: Any) -> Window:
    """What lies below an array, with options of ``window``: modes "r" and "c", engines "userfault" and "handler".

    It is read by threads for those that touch what is not there.
    """
    overlay = os.environ.get("TMPDIR", "/var/tmp")
    return Window(_Window.over(paged, _options(**options), overlay), shape, dtype)


def _options(
    *,
    mode: str = "r",
    budget: int | str = _BUDGET,
    tile: int | str = "64KiB",
    engine: str | None = None,
    advice: str = "normal",
    on_error: str = "zeros",
) -> _Options:
    if mode not in ("r", "r+", "c"):
        raise errors.Usage(f"mode {mode!r} is none of r, r+, c")
    return {
        "mode": mode,
        "budget": budget,
        "tile": tile,
        "engine": engine,
        "advice": advice,
        "on_error": on_error,
    }
