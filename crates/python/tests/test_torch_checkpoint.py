"""torch.distributed.checkpoint over forebay.Checkpoint: what is saved comes back, whole, on any number of ranks."""

import os
import pickle
import random
import signal
import subprocess
import textwrap
import warnings
from pathlib import Path

import forebay as fb
import numpy as np
import pytest
from forebay import errors

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

import forebay.torch as ft
import torch.distributed.checkpoint as dcp
from forebay.torch._stored import Stored
from torch.distributed.checkpoint.api import CheckpointException

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

LEVELS = "dram; file"

# argv: rank, size, file where the ranks meet, checkpoint directory.
RANK = """
    import warnings
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, zeros
    import forebay.torch as ft

    rank, size, meeting, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    torch.set_num_threads(1)

    def state(step, full=True):
        def tensor(shape, where):
            numbers = torch.arange(float(torch.Size(shape).numel())).view(shape) + step
            return distribute_tensor(numbers if full else torch.zeros(shape), mesh, [where])
        return {
            "rows": tensor((7, 3), Shard(0)), "columns": tensor((4, 10), Shard(1)), "same": tensor((5,), Replicate()),
            "few": tensor((1, 2), Shard(0)), "plain": torch.full((3,), float(step if full else 0)),
            "step": step if full else None, "deep": {"list": [step, "text"] if full else None},
        }

    def check(found, step):
        for name, want in state(step).items():
            have = found[name]
            if isinstance(want, DTensor):
                have, want = have.full_tensor(), want.full_tensor()
            assert torch.equal(have, want) if torch.is_tensor(want) else have == want, (name, have, want)

    def put(writer, step):
        dcp.save(state(step), storage_writer=writer, checkpoint_id=step)

    def got(step=None, levels="dram; file"):
        found = state(0, full=False)
        reader = ft.CheckpointReader(path, levels)
        dcp.load(found, storage_reader=reader, checkpoint_id=step)
        check(found, reader.step)
        return reader.step
"""


@pytest.fixture
def path(tmp_path: Path):
    return tmp_path / "ck"


@pytest.fixture
def ranks(children, path, tmp_path):
    """Starts a program on so many ranks, which meet."""
    meetings = iter(range(1000))

    def start(size, code, *args):
        meeting = tmp_path / f"meeting{next(meetings)}"
        # Threads of a process group may abort an interpreter that ends, when all is done.
        end = "\ndist.destroy_process_group()\nsys.stdout.flush()\nos._exit(0)\n"
        program = textwrap.dedent(RANK) + textwrap.dedent(code) + end
        return [children.start(program, rank, size, meeting, path, *args) for rank in range(size)]

    return start


def save(path, state, step, levels=LEVELS):
    with ft.CheckpointWriter(path, levels) as writer:
        dcp.save(state, storage_writer=writer, checkpoint_id=step)


def load(path, state, step=None, levels=LEVELS):
    reader = ft.CheckpointReader(path, levels)
    dcp.load(state, storage_reader=reader, checkpoint_id=step)
    return reader.step


def everything():
    numbers = torch.arange(12.0)
    kinds = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint16, torch.float16, torch.bfloat16]
    kinds += [torch.float64, torch.complex64, torch.float8_e4m3fn]
    return {
        **{str(kind): numbers.to(kind) for kind in kinds},
        "matrix": numbers.view(3, 4).clone(),
        "transposed": numbers.view(3, 4).clone().T,
        "every other": numbers.clone()[::2],
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(numbers.clone()),
        "object": {"a": [1, "two"], "b": np.float64(3)},
        "no bytes": b"",
    }


def emptied(state):
    return {
        name: (
            torch.zeros_like(value) if torch.is_tensor(value) else emptied(value) if isinstance(value, dict) else None
        )
        for name, value in state.items()
    }


def assert_same(found, want):
    for name, value in want.items():
        if torch.is_tensor(value):
            assert found[name].dtype == value.dtype and found[name].tolist() == value.tolist(), name
        else:
            assert found[name] == value, name


def test_what_is_saved_comes_back(path):
    want = everything()
    save(path, want, 3)
    found = emptied(want)
    assert load(path, found) == 3
    assert_same(found, want)


def test_a_model_and_its_optimizer(path):
    def made():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
        return model, torch.optim.AdamW(model.parameters())

    def advance(model, optimizer):
        loss = model(torch.arange(12.0).view(3, 4)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = made()
    with ft.CheckpointWriter(path, LEVELS) as writer:
        for step in range(3):
            advance(model, optimizer)
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, storage_writer=writer, checkpoint_id=step)
    want = [advance(model, optimizer) for _ in range(3)]
    model, optimizer = made()
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    assert load(path, state) == 2
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert [advance(model, optimizer) for _ in range(3)] == want


def test_host_tensors_are_neither_copied_to_be_saved_nor_to_be_loaded(path, monkeypatch):
    seen = {}
    real = fb.Checkpoint.protect

    def protect(self, name, array, **place):
        seen[name] = array.__array_interface__["data"][0]
        real(self, name, array, **place)

    monkeypatch.setattr(fb.Checkpoint, "protect", protect)
    state = {"a": torch.arange(1000.0), "b": torch.ones(10, 10, dtype=torch.bfloat16)}
    save(path, state, 1)
    assert all(seen[name] == tensor.data_ptr() for name, tensor in state.items())
    state = emptied(state)
    load(path, state)
    assert all(seen[name] == tensor.data_ptr() for name, tensor in state.items())
    assert state["a"][999] == 999 and state["b"].sum() == 100


def test_steps_by_number_and_the_newest(path):
    with ft.CheckpointWriter(path, "file,keep=3") as writer:
        for step in (1, "2", Path("3"), 10):
            dcp.save({"n": int(str(step)), "t": torch.ones(3)}, storage_writer=writer, checkpoint_id=step)
        writer.wait()
        state = {"n": None}
        # The writer of this process gives way, and opens again at its next save.
        assert load(path, state, levels="file,keep=3") == 10 and state["n"] == 10
        dcp.save({"n": 11}, storage_writer=writer, checkpoint_id=11)
    assert load(path, state, 3, "file,keep=3") == 3 and state["n"] == 3
    assert load(path, state, None, "file,keep=3") == 11 and state["n"] == 11
    with pytest.raises(CheckpointException, match="no level has step 1"):
        load(path, state, 1, "file,keep=3")


def test_other_dtypes_and_part_of_the_state(path):
    save(path, {"a": torch.arange(6.0), "b": torch.ones(3), "c": "text"}, 0)
    state = {"a": torch.zeros(6, dtype=torch.float64)}
    load(path, state)
    assert state["a"].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(CheckpointException, match="Missing key"):
        load(path, {"d": torch.zeros(3)})


def test_damage_is_an_error_and_an_older_step_is_there(path):
    with ft.CheckpointWriter(path) as writer:
        for step in range(2):
            dcp.save({"t": torch.full((100_000,), float(step))}, storage_writer=writer, checkpoint_id=step)
    data = next((path / "file").glob("s0000000001-*/00000.data"))
    with open(data, "r+b") as file:
        file.seek(5000)
        file.write(b"!")
    state = {"t": torch.zeros(100_000)}
    with pytest.raises(CheckpointException, match="checksum"):
        load(path, state, levels="file")
    assert load(path, state, 0, "file") == 0 and (state["t"] == 0).all()


def test_a_step_of_the_same_number_of_another_run_is_not_mixed_in(path):
    for value in range(2):
        save(path, {"t": torch.full((100_000,), float(value)), "n": value}, 5, "file")
    data = sorted((path / "file").glob("s0000000005-*/00000.data"))[-1]
    with open(data, "r+b") as file:
        file.seek(5000)
        file.write(b"!")
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointException, match="another"):
        load(path, {"t": torch.zeros(100_000), "n": None}, levels="file")


def test_async_save(path):
    with ft.CheckpointWriter(path, LEVELS) as writer:
        for step in range(3):
            state = {"t": torch.full((1000,), float(step)), "n": step}
            future = dcp.async_save(state, storage_writer=writer, checkpoint_id=step)
            state["t"] += 100
            future.result()
    state = {"t": torch.zeros(1000), "n": None}
    assert load(path, state) == 2 and state["n"] == 2 and (state["t"] == 2).all()


@pytest.mark.parametrize("levels", ["file", ["file"], Path("level"), "dram;file,compress=zstd", "file+partner"])
def test_levels(path, tmp_path, levels):
    if isinstance(levels, Path):
        levels = tmp_path / levels
    save(path, {"t": torch.arange(10.0)}, 1, levels)
    state = {"t": torch.zeros(10)}
    assert load(path, state, levels=levels) == 1 and state["t"][9] == 9


def test_memory_lost_the_lower_level_has_it(path):
    save(path, {"t": torch.arange(10.0)}, 1)
    subprocess.run(["rm", "-rf", f"{os.environ['FOREBAY_DIR']}/.checkpoints"], check=True)
    state = {"t": torch.zeros(10)}
    assert load(path, state) == 1 and state["t"][9] == 9


def test_ranks_save_and_other_numbers_of_ranks_load(ranks):
    code = """
    with ft.CheckpointWriter(path, "dram; file,keep=3") as writer:
        put(writer, 4)
        put(writer, 5)
        assert got(levels="dram; file,keep=3") == 5
        put(writer, 6)
    """
    for child in ranks(3, code):
        child.ok()
    for size in (1, 2, 3, 4):
        for child in ranks(size, "print(*[got(step, levels='dram; file,keep=3') for step in (None, 6, 4)])"):
            assert child.ok().split() == ["6", "6", "4"]


def test_parts_along_two_dimensions(ranks, path):
    code = """
    two = init_device_mesh("cpu", (2, size // 2))
    numbers = torch.arange(48.0).view(12, 4)
    save = distribute_tensor(numbers, two, [Shard(0), Shard(1)])
    dcp.save({"t": save}, storage_writer=ft.CheckpointWriter(path, "file"), checkpoint_id=1)
    found = {"t": distribute_tensor(torch.zeros(12, 4), two, [Shard(1), Shard(0)])}
    dcp.load(found, storage_reader=ft.CheckpointReader(path, "file"))
    assert torch.equal(found["t"].full_tensor(), numbers)
    """
    for child in ranks(4, code):
        child.ok()
    state = {"t": torch.zeros(12, 4)}
    assert load(path, state, levels="file") == 1 and torch.equal(state["t"], torch.arange(48.0).view(12, 4))


def test_parts_in_one_process_by_a_planner(path):
    """What a sharded tensor with several local parts plans, without the deprecated class itself."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import (
        LoadItemType,
        ReadItem,
        SavePlan,
        TensorWriteData,
        WriteItem,
        WriteItemType,
    )

    whole = torch.arange(24.0).view(6, 4)
    size, properties = whole.size(), TensorProperties(dtype=torch.float32)

    class Parts(DefaultSavePlanner):
        """Rows 0 and 1, 2 and 3, 4 and 5."""

        def create_local_plan(self):
            chunks = [ChunkStorageMetadata(torch.Size([at, 0]), torch.Size([2, 4])) for at in (0, 2, 4)]
            items = [
                WriteItem(
                    MetadataIndex("t", chunk.offsets, at),
                    WriteItemType.SHARD,
                    tensor_data=TensorWriteData(chunk, properties, size),
                )
                for at, chunk in enumerate(chunks)
            ]
            self.plan = SavePlan(items)
            return self.plan

        def resolve_data(self, item):
            at = item.index.offset[0]
            return self.state_dict["t"][at : at + 2]

    with ft.CheckpointWriter(path) as writer:
        dcp.save({"t": whole}, storage_writer=writer, checkpoint_id=0, planner=Parts(flatten_state_dict=False))
    found = {"t": torch.zeros(6, 4)}
    assert load(path, found, levels="file") == 0 and torch.equal(found["t"], whole)
    found = {"t": torch.zeros(4, 6).T}
    assert load(path, found, levels="file") == 0 and torch.equal(found["t"], whole)

    class Columns(DefaultLoadPlanner):
        """Two columns of each part, the other way round."""

        def create_local_plan(self):
            plan = super().create_local_plan()
            plan.items = [
                ReadItem(
                    LoadItemType.TENSOR,
                    MetadataIndex("t", torch.Size([0, 0])),
                    torch.Size([at, to]),
                    MetadataIndex("t", torch.Size([at, 0])),
                    torch.Size([0, column]),
                    torch.Size([2, 1]),
                )
                for at in (0, 2, 4)
                for column, to in ((3, 0), (0, 3))
            ]
            return plan

    found = {"t": torch.full((6, 4), -1.0)}
    reader = ft.CheckpointReader(path)
    dcp.load(found, storage_reader=reader, planner=Columns())
    assert torch.equal(found["t"][:, 0], whole[:, 3]) and torch.equal(found["t"][:, 3], whole[:, 0])
    assert (found["t"][:, 1:3] == -1).all()


TRAINING = """
import torch.nn as nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())

def advance():
    loss = model(torch.arange(10.0).view(2, 5)).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return round(loss.item(), 4)

def everything(number):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "number": number}
"""


@pytest.mark.parametrize("caching", [False, True])
def test_a_sharded_training_goes_on_with_other_ranks(ranks, caching):
    """Fully sharded, with a planner that plans anew or takes its plans again."""
    code = """
    with ft.CheckpointWriter(path, "dram; file") as writer:
        for number in range(3):
            advance()
            planner = DefaultSavePlanner(enable_plan_caching=sys.argv[5] == "True")
            dcp.save(everything(number), storage_writer=writer, checkpoint_id=number, planner=planner)
        print(*[advance() for _ in range(3)])
    """
    first = [child.ok() for child in ranks(2, TRAINING + textwrap.dedent(code), caching)]
    code = """
    advance()
    found = everything(None)
    dcp.load(found, storage_reader=ft.CheckpointReader(path, "dram; file"))
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    assert found["number"] == 2
    print(*[advance() for _ in range(3)])
    """
    for size in (1, 3):
        again = [child.ok() for child in ranks(size, TRAINING + textwrap.dedent(code))]
        assert set(again) == set(first) and len(set(first)) == 1


def test_a_writer_can_be_sent_to_the_process_that_saves(path):
    with ft.CheckpointWriter(path, LEVELS) as writer:
        dcp.save({"n": 0}, storage_writer=writer, checkpoint_id=0)
        sent = pickle.loads(pickle.dumps(writer))
    dcp.save({"n": 1}, storage_writer=sent, checkpoint_id=1)
    sent.close()
    state = {"n": None}
    assert load(path, state) == 1 and state["n"] == 1


def test_async_save_of_ranks(ranks):
    code = """
    with ft.CheckpointWriter(path, "dram; file") as writer:
        for step in range(3):
            one = state(step)
            future = dcp.async_save(one, storage_writer=writer, checkpoint_id=step)
            one["plain"] += 100
            future.result()
    assert got() == 2
    """
    for child in ranks(2, code):
        child.ok()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_in_a_save_leaves_the_step_before(ranks, victim):
    code = """
    class Deadly:
        def __reduce__(self):
            os.kill(os.getpid(), signal.SIGKILL)

    writer = ft.CheckpointWriter(path, "dram; file")
    put(writer, 1)
    writer.wait()
    last = state(2)
    if rank == int(sys.argv[5]):
        last["own"] = Deadly()
    print("begins", flush=True)
    dcp.save(last, storage_writer=writer, checkpoint_id=2)
    """
    group = ranks(2, code, victim)
    assert group[victim].wait()[0] == -signal.SIGKILL
    status, _, err = group[1 - victim].wait()
    assert status != 0 and "Connection" in err
    for size in (2, 1):
        for child in ranks(size, "print(got())"):
            assert child.ok().split() == ["1"]


def test_ranks_that_are_killed_at_any_moment(ranks, path):
    """A step that all ranks were through with is there, or a newer one, and it is whole."""
    code = """
    first = got() + 1 if os.path.isdir(path) else 0
    writer = ft.CheckpointWriter(path, "dram; file")
    print("begins", flush=True)
    for step in range(first, 1000):
        put(writer, step)
        print(step, flush=True)
    """
    choose = random.Random(11)
    last = -1
    for _ in range(4):
        group = ranks(2, code)
        for child in group:
            assert child.line() == "begins"
        for _ in range(choose.randrange(0, 6)):
            last = max(last, int(group[0].line()))
        os.sched_yield()
        victim = choose.randrange(2)
        for child in (group[victim], group[1 - victim]):
            child.signal(signal.SIGKILL)
        done = [[int(word) for word in child.wait()[1].split()] for child in group]
        last = max([last, *(step for several in done for step in several)])
        found = []
        if last >= 0:
            found = [int(child.ok()) for child in ranks(choose.randrange(1, 4), "print(got())")]
            assert len(set(found)) == 1 and found[0] in (last, last + 1)
            last = found[0]


def test_a_killed_writer_in_one_process(children, path):
    code = """
    import warnings
    warnings.simplefilter("ignore")
    import torch, torch.distributed.checkpoint as dcp, forebay.torch as ft
    writer = ft.CheckpointWriter(sys.argv[1], "dram; file")
    for step in range(1000):
        state = {"t": torch.full((200_000,), float(step)), "n": step}
        dcp.save(state, storage_writer=writer, checkpoint_id=step)
        print(step, flush=True)
    """
    child = children.start(code, path)
    for _ in range(5):
        child.line()
    child.signal(signal.SIGKILL)
    last = int(([4, *child.wait()[1].split()])[-1])
    state = {"t": torch.zeros(200_000), "n": None}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        step = load(path, state)
    assert step in (last, last + 1) and state["n"] == step and (state["t"] == step).all()


def test_a_load_does_not_disturb_a_program_that_saves(ranks, path):
    code = """
    writer = ft.CheckpointWriter(path, "dram; file")
    put(writer, 1)
    print("saved", flush=True)
    while not os.path.exists(path + ".go"):
        time.sleep(0.01)
    put(writer, 2)
    writer.close()
    """
    (child,) = ranks(1, code)
    assert child.line() == "saved"
    with pytest.raises(CheckpointException, match="held by a live process"):
        load(path, {"plain": torch.zeros(3)})
    path.with_name("ck.go").touch()
    child.ok()
    assert load(path, {"plain": torch.zeros(3)}) == 2


def test_mistakes(path):
    state = {"t": torch.zeros(3)}
    writer = ft.CheckpointWriter(path)
    with pytest.raises(errors.Usage, match="not the number of a step"):
        dcp.save(state, storage_writer=writer, checkpoint_id="latest")
    with pytest.raises(errors.Usage):
        dcp.save(state, storage_writer=writer, checkpoint_id=-1)
    with pytest.raises(CheckpointException, match="no step was given"):
        dcp.save(state, storage_writer=writer)
    with pytest.raises(CheckpointException, match="not a checkpoint directory"):
        load(path / "nothing", state)
    with pytest.raises(CheckpointException, match="tape"):
        dcp.save(state, storage_writer=ft.CheckpointWriter(path, "tape"), checkpoint_id=0)
    with pytest.raises(errors.Usage):
        ft.CheckpointReader(path, rank=1)
    with pytest.raises(errors.NotPossibleHere):
        dcp.save(state, storage_writer=writer, checkpoint_id=0, use_collectives=False)
    with fb.Checkpoint(path) as other:
        other.protect("t", np.zeros(3))
        other.save(1)
    with pytest.raises(CheckpointException, match=r"forebay.torch/head was not saved"):
        load(path, state, levels="file")
    assert ft.CheckpointWriter.validate_checkpoint_id("12") and not ft.CheckpointReader.validate_checkpoint_id("a/b")


def test_a_step_of_a_later_format_is_refused(tmp_path):
    with fb.Checkpoint(str(tmp_path / "ck"), ["file"]) as ck:
        ck.protect("forebay.torch/head", np.array([2, 5], np.uint64))
        ck.protect("forebay.torch/metadata", np.zeros(5, np.uint8))
        ck.save(0)
    with pytest.raises(CheckpointException, match="has format 2 of forebay.torch"):
        dcp.load({"x": torch.zeros(2)}, storage_reader=ft.CheckpointReader(tmp_path / "ck"))
    # Metadata are a pickle: these names are the format.
    assert (Stored.__module__, Stored.__qualname__) == ("forebay.torch._stored", "Stored")
    assert Stored._fields == ("name", "shape", "start", "extent", "dtype")
