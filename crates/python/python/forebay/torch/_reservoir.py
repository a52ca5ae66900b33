"""Batches of tensors from the members of an ensemble."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from forebay import ensemble, errors


class Reservoir(IterableDataset[Any]):
    """Batches of `forebay.ensemble.Reservoir` as tensors: a dict of them by name, or one where ``variables`` is a text.

    A tensor has the batch as its first dimension; it is a copy of the samples, which may be written to. Variables that
    are texts are left out. ``options`` are those of the reservoir, ``batch`` and ``members`` among them; ``rank`` and
    ``size`` come from torch.distributed where it is in use. ``transform`` is called with each batch.

    For a ``DataLoader`` it is a dataset of batches, drawn by one process: ``DataLoader(reservoir, batch_size=None)``,
    with at most one worker (``Usage``). Each iteration goes on where the last one ended. Errors are those of
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
        self._name, self._variables, self._transform, self._options = name, variables, transform, options

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise errors.Usage(
                f"{worker.num_workers} workers cannot draw from one reservoir",
                hint="num_workers is 0 or 1; several trainers say rank= and size=",
            )
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
            return _stacked(batch, self._variables)
        names = self._variables
        if names is None:
            names = [name for name, variable in batch[0].step.variables.items() if variable.kind != "str"]
        return {name: _stacked(batch, name) for name in names}


def _stacked(batch: list[ensemble.Sample], name: str) -> torch.Tensor:
    first = batch[0].step.variable(name)
    for sample in batch:
        variable = sample.step.variable(name)
        if (variable.shape, variable.dtype) != (first.shape, first.dtype):
            raise errors.VariableMismatch(
                f"{name} is not the same in all samples of a batch",
                {batch[0].member: f"{first.dtype}{first.shape}", sample.member: f"{variable.dtype}{variable.shape}"},
            )
    whole = np.empty((len(batch), *first.shape), first.dtype)
    for i, sample in enumerate(batch):
        sample.step.get(name, out=whole[i : i + 1].reshape(first.shape))
    return torch.from_numpy(whole)
