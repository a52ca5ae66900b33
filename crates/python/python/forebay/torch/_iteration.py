"""One epoch of one shard: samples in their order, and where it stands.

Guarantees: each sample once; the state after any sample continues with exactly the samples that would have come, in
the same order. Nothing is read ahead of what is asked for, but the window of shuffling. Not here: what a sample looks
like.
"""

import os
from typing import Any

from forebay import errors
from forebay.torch._blocks import Block, Ref
from forebay.torch._order import Draws
from forebay.torch._sources import Source

State = dict[str, Any]
"""Numbers, texts and lists of them."""

FORMAT = 1


class Iteration:
    """Iterator over references to samples."""

    def __init__(
        self, source: Source | None, draws: Draws, *, window: int, about: State, state: State | None = None
    ) -> None:
        """about: what a state must agree in. state: where to go on. source: None for an epoch that has ended."""
        self.pid = os.getpid()
        self._source = source
        self._draws = draws
        self._window = window
        self._about = about
        self._block: Block | None = None
        self._next = 0
        self._last: int | None = None
        self._ended = source is None
        self._waiting: list[Ref] = []
        self._drawn: list[Ref] = []
        self._final: State | None = None
        if state is not None and source is not None:
            self._go_on(state, source)

    def _go_on(self, state: State, source: Source) -> None:
        self._last, self._ended = state["last"], state["ended"]
        versions = {version for version, _ in (*state["waiting"], *state["drawn"])}
        if state["next"] is not None:
            versions.add(state["last"])
        blocks = {version: source.again(version) for version in sorted(versions)}
        self._waiting = [(blocks[version], index) for version, index in state["waiting"]]
        self._drawn = [(blocks[version], index) for version, index in state["drawn"]]
        if state["next"] is not None:
            self._block, self._next = blocks[state["last"]], state["next"]

    def state(self) -> State:
        """What comes behind the samples that were handed out."""
        if self._final is not None:
            return self._final
        return {
            **self._about,
            "last": self._last,
            "next": None if self._block is None else self._next,
            "waiting": [(block.version, index) for block, index in self._waiting],
            "drawn": [(block.version, index) for block, index in self._drawn],
            "draws": self._draws.drawn,
            "ended": self._ended,
        }

    def _pull(self) -> Ref | None:
        """The next sample in the order of versions."""
        while self._block is None:
            if not self._ended and self._source is not None:
                self._block = self._source.next_block()
            if self._block is None:
                self._ended = True
                return None
            self._last, self._next = self._block.version, self._block.start
        found = self._block, self._next
        self._next += 1
        if self._next == self._block.stop:
            self._block = None
        return found

    def _draw(self) -> Ref | None:
        """The next sample in the order of the epoch."""
        if self._window < 2:
            return self._pull()
        while len(self._waiting) < self._window:
            found = self._pull()
            if found is None:
                break
            self._waiting.append(found)
        return self._draws.take_from(self._waiting) if self._waiting else None

    def take(self, number: int) -> list[Ref]:
        """So many samples, fewer at the end. What an error interrupts is kept for the next call."""
        if self._final is not None:
            raise errors.Closed("this iteration has ended: another one of the dataset was begun, or it was closed")
        while len(self._drawn) < number:
            found = self._draw()
            if found is None:
                break
            self._drawn.append(found)
        taken, self._drawn = self._drawn[:number], self._drawn[number:]
        return taken

    def put_back(self, refs: list[Ref]) -> None:
        """Samples that were taken and not handed out come again."""
        self._drawn = [*refs, *self._drawn]

    def close(self) -> None:
        """Leaves the space and drops what is held; the state stays. A child of a fork has not opened anything."""
        if self.pid != os.getpid() or self._final is not None:
            return
        self._final = self.state()
        self._block, self._waiting, self._drawn = None, [], []
        if self._source is not None:
            self._source.close()


def check(state: State, about: State) -> None:
    """Whether a state is of this dataset, space and shard."""
    for key, value in about.items():
        found = state.get(key)
        if found == value:
            continue
        if key == "uuid":
            raise errors.VersionGone("the space that the state was made over has been replaced", hint="start over")
        raise errors.Usage(
            f"the state was made with another {_NAMES.get(key, key)}",
            {"state": str(found), "here": str(value)},
            "give the arguments, the ranks and the workers that it was made with",
        )


_NAMES = {"shard": "rank, worker or number of them"}
