"""``loader``: batches of a dataset, read where they are used, and where it stands.

Guarantees: the batches hold the samples of the dataset in its order, each once; ``state_dict`` counts the batches that
were handed out, and no others, also with workers. A batch of neighbours in one version is a view, without a copy. Not
here: what a sample is (``_dataset``).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.utils.data
from torch.utils.data import default_collate

from forebay import errors
from forebay.torch._blocks import Ref
from forebay.torch._dataset import StepDataset
from forebay.torch._iteration import FORMAT, State


class Loader:
    """Iterable over batches; see ``loader``. Each ``iter`` is an epoch, or the rest of one whose state was loaded."""

    def __init__(
        self,
        dataset: StepDataset,
        batch_size: int,
        *,
        num_workers: int,
        drop_last: bool,
        pin_memory: bool,
        collate_fn: Callable[[list[Any]], Any],
        options: dict[str, Any],
    ) -> None:
        if batch_size < 1 or num_workers < 0:
            raise errors.Usage(f"batch_size={batch_size} is below 1, or num_workers={num_workers} below 0")
        self.dataset = dataset
        self._size, self._drop_last, self._pin = batch_size, drop_last, pin_memory
        self._collate = collate_fn
        self._options = options
        self._is_plain = dataset.transform is None and collate_fn is default_collate
        self._workers = 0 if self._is_plain else num_workers
        # Where an iteration stands; and where the next one begins, if that was said.
        self._states: list[State] | None = None
        self._loaded: list[State] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self._from_workers() if self._workers else self._here()

    def _here(self) -> Iterator[Any]:
        iteration = self.dataset.begin()
        try:
            while refs := iteration.take(self._size):
                if len(refs) < self._size and self._drop_last:
                    return
                try:
                    batch = self._batch(refs)
                except BaseException:
                    iteration.put_back(refs)
                    raise
                yield batch
        finally:
            iteration.close()

    def _batch(self, refs: list[Ref]) -> Any:
        if self._is_plain:
            return self.dataset.batch(refs, pin=self._pin)
        return self._collate([self.dataset.value(ref) for ref in refs])

    def _from_workers(self) -> Iterator[Any]:
        states, self._loaded = self._loaded or [self.dataset.fresh_state() for _ in range(self._workers)], None
        batches = _Batches(self.dataset, self._size, self._drop_last, self._collate, states)
        self._states = list(states)
        inner: Iterator[Any] = iter(
            torch.utils.data.DataLoader(
                batches,
                batch_size=None,
                num_workers=self._workers,
                collate_fn=_same,
                pin_memory=self._pin,
                **self._options,
            )
        )
        for worker, state, batch in inner:
            self._states[worker] = state
            if batch is not None:
                yield batch[0]
        # The next epoch begins anew.
        self._states = None

    def set_epoch(self, epoch: int) -> None:
        """As of the dataset."""
        if self._loaded and self._loaded[0]["epoch"] != epoch:
            self._loaded = None
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> State:
        """Where it stands: behind the batches that were handed out."""
        if self._workers:
            states = self._loaded or self._states or [self.dataset.fresh_state() for _ in range(self._workers)]
            return {"format": FORMAT, "workers": list(states)}
        return self.dataset.state_dict()

    def load_state_dict(self, state: State) -> None:
        """The next ``iter`` goes on there, with the same number of workers."""
        states = state.get("workers")
        if (0 if states is None else len(states)) != self._workers:
            raise errors.Usage(
                "the state was made with another number of workers",
                {"state": str(0 if states is None else len(states)), "here": str(self._workers)},
            )
        if states is None:
            self.dataset.load_state_dict(state)
            return
        self.dataset.set_epoch(states[0]["epoch"])
        self._loaded = list(states)


def loader(
    dataset: StepDataset,
    batch_size: int = 1,
    *,
    num_workers: int = 0,
    drop_last: bool = False,
    pin_memory: bool = False,
    collate_fn: Callable[[list[Any]], Any] = default_collate,
    **options: Any,
) -> Loader:
    """Batches of a dataset: as a ``DataLoader`` gives them, read where they are used.

    A dataset without a transform is read by this process: a view of the space takes less time than a message from a
    worker, so that none is started, whatever ``num_workers`` says. A batch whose samples are neighbours in one version
    is a view of it; others are gathered into one copy. With a transform, or a ``collate_fn`` of your own, workers do
    that, and torch moves their batches through shared memory. options: of ``DataLoader``, for these workers.

    The result has ``state_dict`` and ``load_state_dict``, which count what was handed out, also with workers.
    """
    return Loader(
        dataset,
        batch_size,
        num_workers=num_workers,
        drop_last=drop_last,
        pin_memory=pin_memory,
        collate_fn=collate_fn,
        options=options,
    )


class _Batches(torch.utils.data.IterableDataset[Any]):
    """In a worker: batches, each with its worker and where this stands behind it. The last one is none."""

    def __init__(
        self,
        dataset: StepDataset,
        size: int,
        drop_last: bool,
        collate: Callable[[list[Any]], Any],
        states: Sequence[State],
    ) -> None:
        super().__init__()
        self._dataset, self._size, self._drop_last, self._collate = dataset, size, drop_last, collate
        self._states = states

    def __iter__(self) -> Iterator[tuple[int, State, tuple[Any] | None]]:
        worker = torch.utils.data.get_worker_info()
        number = 0 if worker is None else worker.id
        self._dataset.load_state_dict(self._states[number])
        iteration = self._dataset.begin()
        try:
            while refs := iteration.take(self._size):
                if len(refs) < self._size and self._drop_last:
                    break
                batch = self._collate([self._dataset.value(ref) for ref in refs])
                yield number, iteration.state(), (batch,)
            yield number, iteration.state(), None
        finally:
            iteration.close()


def _same(batch: Any) -> Any:
    return batch
