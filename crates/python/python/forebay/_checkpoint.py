"""``forebay.Checkpoint``: arrays saved step by step; a restart goes on from the newest step that is whole."""

import os
import warnings
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from forebay._forebay import _Checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Checkpoint:
    """Steps of a program's arrays in a directory, and perhaps in faster and safer places.

    path: the checkpoint directory, the same at every start. levels: where steps go, the fastest first: "dram", "file",
    "direct", "pmem" or directories, each with options as in "/scratch/ck,keep=3": keep=N of the newest steps stay,
    every=N keeps each N-th step for good, best=K (or best=K:largest) the K best by the metric of ``save``; "+partner",
    "+xor:4" or "+rs:4+2" behind it keeps copies or parity on other nodes, as in
    "/local/{node}/ck+xor:4,ranks_per_node=8". rank, size, comm: as for ``forebay.open``; several ranks open the same
    path. program: a directory that another program saves into is refused. when: what ``need`` goes by: "steps:N",
    "seconds:S", "optimum" or "optimum:MTBF" (seconds between failures), "signal" (SIGTERM and SIGUSR1: the job is about
    to end); any of them. incremental: only what changed is written, and everything at every so many-th step; 0:
    everything always. compress: "zstd", "zstd:LEVEL" or "none". Both are for levels that are no memory and without
    redundancy, which may also say it for themselves: "file,incremental=10,compress=zstd:1". memory: most memory that
    steps may take in a level of memory, as in "4GiB".

    Three lines make a program restartable::

        ck = forebay.Checkpoint("/scratch/ck")
        ck.protect("u", u)
        for step in range(ck.restore_latest(default=-1) + 1, steps):
            advance(u)
            ck.save(step)

    A context manager: it waits at the end until every step has arrived in the last level; so does the end of the
    interpreter.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        levels: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = "file",
        *,
        # options: begin
        when: str | Sequence[str] = "optimum",
        incremental: int = 0,
        compress: str = "none",
        memory: int | str | None = None,
        program: str | None = None,
        # options: end
        rank: int | None = None,
        size: int | None = None,
        comm: Any = None,
        scope: str | None = None,
        timeout: float | None = None,
    ) -> None:
        several = [levels] if isinstance(levels, (str, os.PathLike)) else levels
        said = [os.fspath(level) for level in several]
        given = {
            "levels": said,
            # options: begin
            "when": when,
            "incremental": incremental,
            "compress": compress,
            "memory": memory,
            "program": program,
            # options: end
            "rank": rank,
            "size": size,
            "comm": comm,
            "scope": scope,
            "timeout": timeout,
        }
        self._checkpoint = _Checkpoint(os.fspath(path), given)
        self._report: dict[str, Any] | None = None
        # An interpreter that ends does not delete its objects in order: this waits for the way down all the same.
        self._end = weakref.finalize(self, self._checkpoint.close)

    def protect(
        self,
        name: str,
        array: "NDArray[Any]",
        *,
        shape: Sequence[int] | None = None,
        start: Sequence[int] | None = None,
    ) -> None:
        """Makes an ndarray part of every step. It is kept, saved from and restored into.

        shape, start: where it lies in a variable that ranks share. Without them the array is this rank's own.
        """
        self._checkpoint.protect(
            name, array, None if shape is None else list(shape), None if start is None else list(start)
        )

    def prepare(self) -> None:
        """Allocates the space for two steps in the first level: the first saves take no longer than later ones."""
        self._checkpoint.prepare()

    def save(self, step: int, *, metric: float | None = None) -> None:
        """Saves the arrays as they are now. Returns when the first level has them; ``wait`` for the others.

        metric: how good the step is; levels with "best=K" keep the K best. Of several ranks rank 0's counts.
        """
        self._checkpoint.save(step, None if metric is None else float(metric))

    def need(self, step: int) -> bool:
        """Whether this step is to be saved, as ``when`` says. All ranks ask for the same steps, with one answer."""
        return self._checkpoint.need(step)

    def wait(self, level: int | None = None) -> int | None:
        """Waits until the newest saved step is committed by all ranks in every level, its redundancy complete.

        level: only this one, by its number.
        """
        return self._checkpoint.wait(level)

    def restore_latest(self, default: int | None = None) -> int | None:
        """Loads the newest step that is whole into the arrays and returns its number; ``default`` when there is none.

        Steps that could not be taken, what was repaired from redundancy, and a step that had been saved and is lost are
        warnings; ``report`` has them all.
        """
        self._report = self._checkpoint.restore(None)
        return default if self._report is None else self._told(self._report)

    def restore(self, step: int) -> int:
        """Loads this step into the arrays."""
        report = self._checkpoint.restore(step)
        assert report is not None
        self._report = report
        return self._told(report)

    @staticmethod
    def _told(report: dict[str, Any]) -> int:
        for reject in report["rejected"]:
            where = f" in {reject['place']}" if reject["place"] else ""
            text = f"step {reject['step']} of run {reject['run']}{where} was not taken: {reject['reason']}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        for repair in report["repaired"]:
            whose = "" if repair["rank"] is None else f" of rank {repair['rank']}"
            text = f"step {repair['step']}: {repair['what']}{whose} on node {repair['node']} was repaired"
            warnings.warn(f"{text} from {repair['from']}", RuntimeWarning, stacklevel=3)
        if report["lost"] is not None:
            text = f"step {report['lost']} was saved and is lost; continuing from step {report['step']}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        step: int = report["step"]
        return step

    @property
    def report(self) -> dict[str, Any] | None:
        """What the last restore took and what it did not: step, run, place, rejected, repaired, lost."""
        return self._report

    @property
    def levels(self) -> list[dict[str, Any]]:
        """Each level: dir, tier, keep, every, best (what stays), redundancy, incremental (a full step every so often,
        or None), compress (or None), durability (what a step there survives), step (the newest that has arrived)."""
        return self._checkpoint.levels

    @property
    def run(self) -> int:
        """Number of this run: it grows with every start."""
        return self._checkpoint.run

    @property
    def statistics(self) -> dict[str, Any]:
        """Measured: saves, the seconds they blocked (blocked_s; cost_s for one of late), one's way down (carried_s)."""
        return self._checkpoint.statistics

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._checkpoint.closed

    def close(self) -> None:
        """Waits until every step has arrived in the last level, then leaves the run."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else ", ".join(level["tier"] for level in self.levels)
        return f"<forebay.Checkpoint: {state}>"
