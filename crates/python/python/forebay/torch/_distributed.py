"""``torch.distributed.checkpoint`` over ``forebay.Checkpoint``: one step of all ranks, in levels, whole or not at all.

Guarantees: a step counts when every rank has saved its part and the coordinator torch's metadata; a rank that dies
leaves the step before. Host tensors are saved from their memory and loaded into it. What is loaded is one step,
compared with its checksums, or an error. A load with another number of ranks reads the boxes that its plan asks for.
Not here: planning, and staging for ``async_save``, which are torch's; saving without collectives.

The metadata is a pickle, as torch's own. A checkpoint directory belongs to one user, which opening it checks.
"""

import dataclasses
import io
import os
import pickle
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

import forebay as fb
from forebay import errors
from forebay._closing import Closing
from forebay.torch import _handles
from forebay.torch._gather import Gather, Part, on_host
from forebay.torch._stored import FORMAT, HEAD, METADATA, Share, Stored, joined, shares, tensor_at
from forebay.torch._tensors import array_of


class CheckpointWriter(StorageWriter, Closing):
    """Saves into a checkpoint directory: ``dcp.save(state, storage_writer=writer, checkpoint_id=step)``.

    path: the checkpoint directory. levels: where steps go, as of ``forebay.Checkpoint``: a list, or a text as in
    "dram; file,keep=3". compress, memory, program, scope, timeout: as there. checkpoint_id is the number of the step.

    ``save`` returns when the first level has the step; a thread carries it on. What it holds of the arrays stays
    referenced until the next save or ``close``. A context manager; so does the end of the interpreter close it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        levels: _handles.Levels = "file",
        *,
        compress: str = "none",
        memory: int | str | None = None,
        program: str | None = None,
        scope: str | None = None,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        self.path = os.path.abspath(path)
        self._levels = _handles.levels_of(levels)
        said = {"compress": compress, "memory": memory, "program": program, "scope": scope, "timeout": timeout}
        self._options: dict[str, Any] = said
        self._step: int | None = None
        self._is_coordinator = False
        self._saved: list[fb.Checkpoint] = []
        self._last: fb.Checkpoint | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Called by torch with the number of the step."""
        self._step = _step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise errors.NotPossibleHere(
                "a step is saved by all ranks together", hint="save without use_collectives=False"
            )
        self._is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if self._step is None:
            raise errors.Usage("no step was given", hint="dcp.save(..., checkpoint_id=STEP)")
        # Each save is a run of the checkpoint, with arrays of its own; here no rank has begun the next one.
        self._saved, self._last = [], None
        _handles.close(self.path)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=share) for plan, share in zip(plans, shares(plans), strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        share: Share = plan.storage_data
        results: list[WriteResult] = []
        handle = self._open(share.rank, share)
        if self._is_coordinator:
            self._last = self._open(share.size, share)
        objects: list[tuple[MetadataIndex, bytes]] = []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                assert isinstance(data, io.BytesIO)
                objects.append((item.index, data.getvalue()))
                continue
            assert isinstance(data, torch.Tensor)
            stored = tensor_at(item, data.dtype, share)
            if not stored.is_empty:
                handle.protect(stored.name, array_of(on_host(data)), shape=stored.shape, start=stored.start)
            results.append(WriteResult(item.index, data.numel() * data.element_size(), stored))
        if objects:
            array, places = joined(objects, share.rank)
            if array.size:
                handle.protect(next(iter(places.values())).name, array)
            results += [WriteResult(index, stored.extent[0], stored) for index, stored in places.items()]
        handle.save(self._number())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when all ranks are through: from here on the step counts."""
        metadata.storage_data = {one.index: one.storage_data for several in results for one in several}
        text = np.frombuffer(bytearray(pickle.dumps(metadata)), np.uint8)
        assert self._last is not None
        self._last.protect(HEAD, np.array([FORMAT, text.size], np.uint64))
        self._last.protect(METADATA, text)
        self._last.save(self._number())

    def _open(self, rank: int, share: Share) -> fb.Checkpoint:
        handle = _handles.opened(self.path, self._levels, self._options, rank=rank, size=share.size + 1)
        self._saved.append(handle)
        return handle

    def _number(self) -> int:
        assert self._step is not None
        return self._step

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return _is_step(checkpoint_id)

    def wait(self) -> None:
        """Waits until the newest step is committed by all ranks in every level, its redundancy complete."""
        for handle in self._saved:
            handle.wait()

    def close(self) -> None:
        """Waits until every step has arrived in the last level, and leaves the directory."""
        self._saved, self._last = [], None
        _handles.close(self.path)

    def __getstate__(self) -> dict[str, Any]:
        # For async_save by a process, which opens the directory for itself.
        return {**self.__dict__, "_saved": [], "_last": None}


class CheckpointReader(StorageReader):
    """Loads from a checkpoint directory: ``dcp.load(state, storage_reader=reader, checkpoint_id=step)``.

    path, levels: as they were for the writer. Without a checkpoint_id the newest step that is whole is loaded; ``step``
    says which that was. rank, size: which rank of the load this is; else as torch.distributed says. All ranks load
    together. A program that saves there meanwhile is not disturbed: then the load is refused (``NameInUse``), but for
    the writer of this process, which is closed and opens again at its next save.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        levels: _handles.Levels = "file",
        *,
        program: str | None = None,
        scope: str | None = None,
        timeout: float | None = None,
        rank: int | None = None,
        size: int | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if (rank is None) != (size is None):
            raise errors.Usage(f"rank={rank} is not a rank of size={size}: give both, or neither")
        self.path = os.path.abspath(path)
        self.step: int | None = None
        self._levels = _handles.levels_of(levels)
        self._options: dict[str, Any] = {"program": program, "scope": scope, "timeout": timeout}
        self._place = None if rank is None or size is None else (rank, size)
        self._group = process_group
        self._asked: int | None = None
        self._handle: fb.Checkpoint | None = None
        self._run: int | None = None
        self._stored: dict[MetadataIndex, Stored] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """Called by torch with the number of the step."""
        self._asked = _step_of(checkpoint_id)

    def _rank(self) -> tuple[int, int]:
        if self._place is not None:
            return self._place
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(self._group), dist.get_world_size(self._group)
        return 0, 1

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        # The last word is not `kwargs`, by which torch would ask for the metadata of one rank.
        del args, options
        if not os.path.isdir(self.path):
            raise errors.VersionGone(f"{self.path} is not a checkpoint directory")
        _handles.close(self.path)
        rank, size = self._rank()
        self._handle = handle = _handles.opened(self.path, self._levels, self._options, rank=rank, size=size)
        self._run = None
        head = np.zeros(2, np.uint64)
        handle.protect(HEAD, head)
        self.step = handle.restore_latest() if self._asked is None else handle.restore(self._asked)
        if self.step is None:
            raise errors.VersionGone(f"no step has been saved in {self.path}")
        self._check_run()
        if head[0] != FORMAT:
            raise errors.UnknownFormat(
                f"step {self.step} in {self.path} has format {head[0]} of forebay.torch; this release reads {FORMAT}"
            )
        text = np.zeros(int(head[1]), np.uint8)
        handle.protect(METADATA, text)
        handle.restore(self.step)
        self._check_run()
        metadata: Metadata = pickle.loads(text.tobytes())
        return metadata

    def _check_run(self) -> None:
        """A step is of one run: another one may have a step of the same number."""
        assert self._handle is not None and self._handle.report is not None
        run = self._handle.report["run"]
        if self._run not in (None, run):
            raise errors.Damaged(
                f"step {self.step} of run {self._run} is damaged; run {run} has saved a step of the same number",
                {"directory": self.path},
                "give the number of another step",
            )
        self._run = run

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._stored = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._handle is not None and self.step is not None
        try:
            objects: list[tuple[ReadItem, torch.Tensor]] = []
            tensors: list[tuple[ReadItem, torch.Tensor]] = []
            parts: dict[str, tuple[Stored, list[Part]]] = {}
            for item in plan.items:
                stored = self._stored[item.storage_index]
                target: torch.Tensor
                inside: tuple[int, ...]
                if item.type == LoadItemType.BYTE_IO:
                    target, inside = torch.empty(stored.extent, dtype=torch.uint8), (0,)
                    objects.append((item, target))
                else:
                    target, inside = planner.resolve_tensor(item), tuple(item.storage_offsets)
                    tensors.append((item, target))
                if target.numel():
                    start = tuple(low + at for low, at in zip(stored.start, inside, strict=True))
                    parts.setdefault(stored.name, (stored, []))[1].append(Part(start, target))
            gathers = [Gather(stored, several) for stored, several in parts.values()]
            for gather in gathers:
                self._handle.protect(gather.name, gather.array, shape=gather.shape, start=gather.start)
            self._handle.restore(self.step)
            self._check_run()
            for gather in gathers:
                gather.deliver()
            for item, target in tensors:
                planner.commit_tensor(item, target)
            for item, target in objects:
                planner.load_bytes(item, io.BytesIO(target.numpy().tobytes()))
        finally:
            self._handle = None
            _handles.close(self.path)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return _is_step(checkpoint_id)


def _is_step(checkpoint_id: Any) -> bool:
    if isinstance(checkpoint_id, (str, os.PathLike)):
        return os.fspath(checkpoint_id).isdecimal()
    return isinstance(checkpoint_id, int) and checkpoint_id >= 0


def _step_of(checkpoint_id: Any) -> int | None:
    if checkpoint_id is None:
        return None
    if not _is_step(checkpoint_id):
        raise errors.Usage(
            f"checkpoint_id={checkpoint_id!r} is not the number of a step",
            hint="the directory is an argument of the writer",
        )
    return int(os.fspath(checkpoint_id) if isinstance(checkpoint_id, os.PathLike) else checkpoint_id)
