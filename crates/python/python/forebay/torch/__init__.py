"""PyTorch over Forebay: versions of a space as samples, also while they are written; ensembles; checkpoints.

::

    import forebay.torch

    dataset = forebay.torch.StepDataset("heat", "T", shuffle=1000)          # follows the space; ends when it ends
    for batch in forebay.torch.loader(dataset, batch_size=32): ...          # or torch.utils.data.DataLoader
    state = loader.state_dict()                                             # later goes on behind the last batch

    writer = forebay.torch.CheckpointWriter("ck", "dram; file")             # torch.distributed.checkpoint
    dcp.save(model.state_dict(), storage_writer=writer, checkpoint_id=step)

**Tensors** are views of the space, without a copy, where what is asked for lies in one piece; otherwise copies. Torch
has no read-only tensors: **storing into a view ends the process by a signal**. Clone it first, or say ``copy=True``.
A view holds its version as long as it is referenced.

**Samples** are shared between the workers of a ``DataLoader`` and the ranks of ``torch.distributed``: each belongs to
one of them, in each epoch. Their order depends on the seed, the epoch and the number of workers and ranks alone.

Importing this package imports torch; ``torch.distributed.checkpoint`` is imported when it is asked for.

Not here: batches in the memory of a GPU (copy them there, ``DataLoader(pin_memory=True)``), storing into a space from
torch (put a tensor as any other array, also one on a GPU).
"""

import importlib
from typing import TYPE_CHECKING

from forebay.torch._dataset import StepDataset
from forebay.torch._loader import Loader, loader
from forebay.torch._reservoir import Reservoir

if TYPE_CHECKING:
    from forebay.torch._distributed import CheckpointReader, CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter", "Loader", "Reservoir", "StepDataset", "loader"]

if not TYPE_CHECKING:
    # Importing torch.distributed.checkpoint takes as long as torch itself, also in each worker.
    _LATER = {"CheckpointReader": "_distributed", "CheckpointWriter": "_distributed"}

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"forebay.torch.{_LATER[name]}"), name)
