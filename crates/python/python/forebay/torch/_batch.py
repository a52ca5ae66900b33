"""Samples of one epoch put together into a batch, with as few copies as their places allow.

Guarantees: neighbours in one version are a view; anything else is copied once. What comes out is what torch's
``default_collate`` makes of the samples. Not here: which samples they are.
"""

from typing import Any

import torch

from forebay.torch._blocks import Block, Ref


def together(refs: list[Ref], *, copy: bool = False) -> Any:
    """A batch of these samples; with ``copy`` never a view."""
    first = refs[0][0]
    batch = {name: _variable(refs, name, copy) for name in first.data}
    return next(iter(batch.values())) if first.choice.single else batch


def _variable(refs: list[Ref], name: str, copy: bool) -> Any:
    block = refs[0][0]
    found = block.data[name]
    if isinstance(found, str):
        return [one.data[name] for one, _ in refs]
    if block.choice.along is None or any(one is not block for one, _ in refs):
        return torch.stack([_tensor(one, name, index) for one, index in refs])
    indices = [index - block.start for _, index in refs]
    begin, end = indices[0], indices[0] + len(indices)
    if indices != list(range(begin, end)):
        return torch.index_select(found, 0, torch.tensor(indices))
    return found[begin:end].clone() if copy else found[begin:end]


def _tensor(block: Block, name: str, index: int) -> torch.Tensor:
    found = block.value(name, index)
    assert isinstance(found, torch.Tensor)
    return found
