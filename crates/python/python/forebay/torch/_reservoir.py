"""Batches of tensors from the members of an ensemble."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from forebay import ensemble, errors


class Reservoir(IterableDataset[Any]):
    """Batches of `forebay.ensemble.Reservoir` as tensors: a dict of them by name, or one where ``variables`` is a text.

    A tensor has the batch as its first dimension; it is a copy of the samples, which may be written to. Variables that
    are texts are left out. ``options`` are those of the reservoir, ``batch`` and ``members`` among them; ``rank`` and
    ``size`` come from torch.distributed where it is in use. ``transform`` is called with each batch.

    For a ``DataLoader`` it is a dataset of batches: ``DataLoader(reservoir, batch_size=None)``, without workers
    (``Usage``). Each iteration goes on where the last one ended. Errors are those of
    the reservoir; ``VariableMismatch`` when samples of a batch have other shapes.
    """

    def __init__(
        self,
        name: str,
        variables: str | Sequence[str] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if options.get("commit_every", 1) is None:
            raise errors.Usage("commit_every=None needs commit(), which forebay.ensemble.Reservoir has")
        self._name, self._variables, self._transform, self._options = name, variables, transform, options

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            # It would draw ahead, and what it has drawn would count as seen.
            raise errors.Usage("a worker cannot draw from a reservoir", hint="say num_workers=0")
        given = dict(self._options)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            given.setdefault("rank", torch.distributed.get_rank())
            given.setdefault("size", torch.distributed.get_world_size())
        with ensemble.Reservoir(self._name, **given) as reservoir:
            for batch in reservoir:
                tensors = self._tensors(batch)
                yield tensors if self._transform is None else self._transform(tensors)

    def _tensors(self, batch: list[ensemble.Sample]) -> Any:
        if isinstance(self._variables, str):
            return torch.from_numpy(ensemble.stack(batch, self._variables))
        names = self._variables
        if names is None:
            names = [name for name, variable in batch[0].step.variables.items() if variable.kind != "str"]
        return {name: torch.from_numpy(ensemble.stack(batch, name)) for name in names}
