"""``StepDataset``: a space as an iterable dataset of torch.

Guarantees: over all workers and ranks each sample comes once in an epoch; the space is opened by the process that
iterates, never carried over a fork or into another process; the end of the stream ends the epoch, and a writer that
died is an error. Not here: batches without workers (``_loader``), a number of samples that is known before.
"""

import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
import torch.distributed
import torch.utils.data

import forebay as fb
from forebay import errors
from forebay.torch._batch import together
from forebay.torch._blocks import Choice, Ref
from forebay.torch._iteration import FORMAT, Iteration, State, check
from forebay.torch._order import Draws, Shard
from forebay.torch._sources import Retained, Source, Stream, Versions

_TIMEOUT_SECONDS = 60.0


class StepDataset(torch.utils.data.IterableDataset[Any]):
    """Samples of a space that is being written, or of versions that it retains.

    name: of the space, or the path of its directory. variables: one name, whose samples are tensors, or several, whose
    samples are dicts of tensors; None: all. along: None, a sample is a version; 0, a sample is an index along the first
    axis of each version. shuffle: samples are drawn from a window of so many. seed: of the order; ``set_epoch`` gives
    each epoch its own.

    versions: None follows the space as a reader group does, until its writers have ended. "all" reads the versions that
    are retained when the epoch begins, a range or a list reads these; as often as one likes.

    rank, world: which share of the samples is this process's; else as torch.distributed says, where it is initialised.
    Workers of a ``DataLoader`` share what is the rank's.

    group: a reader group that keeps a cursor: it goes on where it stopped. timeout: seconds for the space and for each
    version. copy: tensors of your own in place of views. pin: they are copied to pinned memory; not in workers, whose
    ``DataLoader`` does that. transform: called with each sample, in the worker where there are any. options: those of
    ``forebay.open`` for a reader, as component, latest, finished.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        variables: str | Sequence[str] | None = None,
        *,
        along: int | None = None,
        shuffle: int = 0,
        seed: int = 0,
        versions: Versions | None = None,
        rank: int | None = None,
        world: int | None = None,
        group: str | None = None,
        timeout: float = _TIMEOUT_SECONDS,
        copy: bool = False,
        pin: bool = False,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if along not in (None, 0):
            raise errors.Usage(f"along={along!r} is neither None nor 0: samples lie along the first axis")
        if shuffle < 0:
            raise errors.Usage(f"shuffle={shuffle} is negative: it is a number of samples")
        if (rank is None) != (world is None) or (rank is not None and not 0 <= rank < (world or 0)):
            raise errors.Usage(f"rank={rank} is not a rank of world={world}: give both, or neither")
        if isinstance(versions, str) and versions != "all":
            raise errors.Usage(f'versions={versions!r} is neither None, "all" nor version numbers')
        if versions is not None and group is not None:
            raise errors.Usage("a group follows the space; versions are read by an observer: give one of both")
        if pin and not torch.cuda.is_available():
            raise errors.NotPossibleHere(
                "memory is pinned by a GPU's driver, and torch finds no GPU", hint="leave pin out"
            )
        single = isinstance(variables, str)
        names = (variables,) if isinstance(variables, str) else variables
        self.name = name if isinstance(name, str) else os.fspath(os.path.abspath(name))
        self.transform = transform
        self._choice = Choice(None if names is None else tuple(names), single, along)
        self._window, self._seed = shuffle, seed
        self._versions = versions if versions is None or isinstance(versions, (str, range)) else tuple(versions)
        if isinstance(self._versions, tuple) and len(set(self._versions)) < len(self._versions):
            raise errors.Usage("a version is named twice in versions")
        self._rank, self._world = rank, world
        self._timeout = float(timeout)
        self._copy, self._pin = copy, pin
        self._options = {**options, "timeout": self._timeout, **({} if group is None else {"group": group})}
        self._program = re.sub(r"[^\w.-]", "_", os.path.basename(sys.argv[0]), flags=re.ASCII).strip("-.") or "torch"
        # Shared, so that workers that persist see a new one.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._resume: State | None = None
        self._running: Iteration | None = None

    @property
    def epoch(self) -> int:
        """The epoch whose order the next iteration has."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration, also in workers. A loaded state counts for its own epoch only."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Any]:
        if self._pin and torch.utils.data.get_worker_info() is not None:
            raise errors.Usage("a worker does not pin memory", hint="DataLoader(..., pin_memory=True)")
        return Samples(self, self.begin())

    def begin(self) -> Iteration:
        """Opens the space for the next epoch, or for the rest of one whose state was loaded."""
        running = self._iteration()
        if running is not None:
            running.close()
        shard, epoch = self._shard(), self.epoch
        state, self._resume = self._resume, None
        if state is not None and state["epoch"] != epoch:
            state = None
        about = self._about(shard, epoch)
        draws = Draws(self._seed, epoch, shard, 0 if state is None else state["draws"])
        if state is not None:
            check(state, about)
            if state["ended"] and not state["waiting"] and not state["drawn"]:
                # The space may be gone.
                self._running = Iteration(None, draws, window=self._window, about={**about, "uuid": state["uuid"]})
                return self._running
        options: dict[str, Any] = {**self._options, **self._membership(shard)}
        reader: fb.Reader = fb.open(self.name, **options)
        try:
            about["uuid"] = reader.uuid
            if state is not None:
                check(state, about)
            source = self._source(reader, shard, state)
            if isinstance(source, Retained) and self._versions == "all":
                about["versions"] = [source.versions[0], source.versions[-1] + 1] if source.versions else [0, 0]
            self._running = Iteration(source, draws, window=self._window, about=about, state=state)
        except BaseException:
            reader.close()
            raise
        return self._running

    def _membership(self, shard: Shard) -> dict[str, Any]:
        """As what the shards open the space."""
        if self._versions is not None:
            return {"observer": True}
        own: dict[str, Any] = {"rank": shard.index, "size": shard.count}
        named = self._options.keys() & {"component", "group"} or "FOREBAY_COMPONENT" in os.environ
        if shard.count > 1 and not named:
            # A group has one size as long as the space is there; the next epoch may have other workers.
            own["component"] = f"{self._program}.{shard.count}"
        return own

    def _source(self, reader: fb.Reader, shard: Shard, state: State | None) -> Source:
        last = None if state is None else state["last"]
        if self._versions is None:
            return Stream(reader, self._choice, shard, last, self._timeout)
        versions = self._versions
        if versions == "all" and state is not None:
            # Those of the state's epoch, whatever has been written since.
            versions = range(state["versions"][0], state["versions"][1])
        return Retained(reader, self._choice, shard, versions, last, self._timeout)

    def _about(self, shard: Shard, epoch: int) -> State:
        return {
            "format": FORMAT,
            "epoch": epoch,
            "seed": self._seed,
            "shuffle": self._window,
            "along": self._choice.along,
            "shard": [shard.index, shard.count],
        }

    def _shard(self) -> Shard:
        worker = torch.utils.data.get_worker_info()
        index, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rank, world = self._ranks()
        return Shard(rank * count + index, world * count)

    def _ranks(self) -> tuple[int, int]:
        if self._rank is not None and self._world is not None:
            return self._rank, self._world
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def value(self, ref: Ref) -> Any:
        """What is handed out for a sample."""
        block, index = ref
        found = block.sample(index)
        if self._copy or self._pin:
            found = _each(found, torch.Tensor.pin_memory if self._pin else torch.Tensor.clone)
        return found if self.transform is None else self.transform(found)

    def batch(self, refs: list[Ref], *, pin: bool = False) -> Any:
        """These samples in one, without the transform."""
        found = together(refs, copy=self._copy)
        return _each(found, torch.Tensor.pin_memory) if pin or self._pin else found

    def _iteration(self) -> Iteration | None:
        found = self._running
        return found if found is not None and found.pid == os.getpid() else None

    def state_dict(self) -> State:
        """Where the iteration of this process stands: behind the samples that it handed out. Plain numbers and lists.

        Of workers each has its own: torchdata's ``StatefulDataLoader`` collects them, and so does ``loader``.
        """
        running = self._iteration()
        if running is not None:
            return running.state()
        return self._resume or self.fresh_state()

    def fresh_state(self) -> State:
        """The state at the beginning of the epoch."""
        return {"format": FORMAT, "epoch": self.epoch, "fresh": True}

    def load_state_dict(self, state: State) -> None:
        """The next iteration goes on where the state was made. Its versions must be retained."""
        if not isinstance(state, dict) or state.get("format") != FORMAT:
            raise errors.Usage("this is not a state of a StepDataset, or one of another release")
        running = self._iteration()
        if running is not None:
            running.close()
        self._running = None
        self.set_epoch(state["epoch"])
        self._resume = None if state.get("fresh") else dict(state)

    def __getstate__(self) -> dict[str, Any]:
        # A process that is started anew is in no process group; it is a worker of this rank.
        state = {**self.__dict__, "_running": None}
        rank, world = self._ranks()
        if world > 1:
            state |= {"_rank": rank, "_world": world}
        return state


class Samples:
    """Iterator over samples. ``state_dict`` is the dataset's."""

    def __init__(self, dataset: StepDataset, iteration: Iteration) -> None:
        self._dataset = dataset
        self._iteration = iteration
        # Where it stands is asked of the dataset, also after it is gone.
        weakref.finalize(self, iteration.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        found = self._iteration.take(1)
        if not found:
            raise StopIteration
        try:
            return self._dataset.value(found[0])
        except BaseException:
            self._iteration.put_back(found)
            raise


def _each(sample: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(sample, dict):
        return {name: _each(value, change) for name, value in sample.items()}
    return change(sample) if isinstance(sample, torch.Tensor) else sample
