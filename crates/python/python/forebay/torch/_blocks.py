"""What one shard reads of one version, as tensors.

Guarantees: a block holds its version from when it was read until it and its tensors are no longer referenced. Not
here: the order of samples, and where versions come from.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import forebay as fb
from forebay import errors
from forebay.torch._tensors import tensor_of

Data = Mapping[str, torch.Tensor | str]


@dataclass(frozen=True)
class Choice:
    """Which variables a sample has, and what it is: the whole of a version, or an index along the first axis."""

    variables: tuple[str, ...] | None
    single: bool
    along: int | None

    def samples(self, step: fb.ReadStep) -> int:
        """How many samples the version holds."""
        if self.along is None:
            return 1
        shapes = {name: step.variable(name).shape for name in self.names(step)}
        first = {shape[0] if shape else None for shape in shapes.values()}
        if len(first) != 1 or None in first:
            raise errors.VariableMismatch(
                f"the variables of version {step.version} have not the same number of samples along their first axis",
                {"shapes": ", ".join(f"{name} {shape}" for name, shape in shapes.items())},
                "name those that do: StepDataset(NAME, [VARIABLE, ...], along=0)",
            )
        (number,) = first
        return int(number or 0)

    def names(self, step: fb.ReadStep) -> tuple[str, ...]:
        return tuple(step.keys()) if self.variables is None else self.variables

    def read(self, step: fb.ReadStep, start: int, stop: int) -> Data:
        """The samples from start to stop - 1 of each variable; whole variables where a version is a sample."""
        return {name: self._read(step, name, start, stop) for name in self.names(step)}

    def _read(self, step: fb.ReadStep, name: str, start: int, stop: int) -> torch.Tensor | str:
        variable = step.variable(name)
        if variable.kind == "str":
            return step.text(name)
        if self.along is None:
            return tensor_of(step.get(name, copy=None))
        rest = variable.shape[1:]
        begin, count = (start, *(0 for _ in rest)), (stop - start, *rest)
        return tensor_of(step.get(name, start=begin, count=count, copy=None))


class Block:
    """The samples of one version that one shard reads."""

    __slots__ = ("_data", "_open", "choice", "start", "stop", "version")

    def __init__(
        self, choice: Choice, version: int, start: int, stop: int, found: Data | Callable[[], fb.ReadStep]
    ) -> None:
        self.choice = choice
        self.version = version
        self.start, self.stop = start, stop
        self._data: Data | None = None
        self._open: Callable[[], fb.ReadStep] | None = None
        if callable(found):
            self._open = found
        else:
            self._data = found

    @property
    def data(self) -> Data:
        """All samples; of a block that is not read yet its version is opened now."""
        if self._data is None:
            assert self._open is not None
            with self._open() as step:
                self._data = self.choice.read(step, self.start, self.stop)
            self._open = None
        return self._data

    def value(self, name: str, index: int) -> torch.Tensor | str:
        """One variable of one sample."""
        found = self.data[name]
        if self.choice.along is None or isinstance(found, str):
            return found
        return found.select(0, index - self.start)

    def sample(self, index: int) -> Any:
        """A tensor where one variable was named, else a dict of them."""
        values = {name: self.value(name, index) for name in self.data}
        return next(iter(values.values())) if self.choice.single else values


Ref = tuple[Block, int]
"""A sample: its block, and its index in the version."""
