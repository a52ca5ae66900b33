"""Forebay: named spaces through which the programs of a workflow exchange versioned n-D arrays on one node.

A writer group puts steps into a space, any number of reader groups get them; data stays in shared memory::

    import forebay as fb

    with fb.open("heat", "w", rank=rank, size=size) as ch:
        for step in ch.steps(100):
            step.put("T", T, shape=(N, N), start=(r0, 0))

    with fb.open("heat") as ch:
        for step in ch.steps(timeout=60):
            T = step.get("T")

Everything here is typed; the compiled part is ``forebay._forebay``. Importing this package does not import NumPy:
that happens at the first array.
"""

import importlib
from typing import TYPE_CHECKING

from forebay import errors
from forebay._array import Array, array
from forebay._attributes import Attributes
from forebay._checkpoint import Checkpoint
from forebay._forebay import (
    Piece,
    Pool,
    Reader,
    ReaderSteps,
    ReadStep,
    Region,
    Subscription,
    Variable,
    Writer,
    WriterSteps,
    WriteStep,
    __version__,
    clean,
    destroy,
    inspect,
    list_spaces,
    map,
    open,
    root,
    verify,
)
from forebay._status import MissedVersions, StepStatus
from forebay._window import Window, window
from forebay.errors import Error

if TYPE_CHECKING:
    from forebay import torch as torch
    from forebay import xarray as xarray
    from forebay import zarr as zarr
    from forebay._arrow import Table
    from forebay._step_array import StepArray

__all__ = [
    "Array",
    "Attributes",
    "Checkpoint",
    "Error",
    "MissedVersions",
    "Piece",
    "Pool",
    "ReadStep",
    "Reader",
    "ReaderSteps",
    "StepArray",
    "StepStatus",
    "Subscription",
    "Table",
    "Variable",
    "Window",
    "WriteStep",
    "Writer",
    "WriterSteps",
    "__version__",
    "array",
    "clean",
    "destroy",
    "errors",
    "inspect",
    "list_spaces",
    "map",
    "open",
    "root",
    "verify",
    "window",
]

if not TYPE_CHECKING:
    # What needs NumPy, or a package that not every user has, is imported when it is asked for.
    _LATER = {"StepArray": "_step_array", "Table": "_arrow", "torch": "torch", "xarray": "xarray", "zarr": "zarr"}

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"forebay.{_LATER[name]}")
        return module if name == _LATER[name] else getattr(module, name)
