"""forebay.torch.StepDataset and loader: each sample once, over workers, ranks, kills and restarts."""

import gc
import json
import os
import random
import signal
import time
import warnings

import forebay as fb
import numpy as np
import pytest
from forebay import errors

torch = pytest.importorskip("torch", reason="torch is not installed")

import forebay.torch as ft
from forebay.torch._order import Draws, Shard
from torch.utils.data import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS = 10
WRITER = """
    with fb.open("s", "w", quota="64MiB", retention=sys.argv[2]) as ch:
        for step in ch.steps(int(sys.argv[1])):
            step.put("x", (np.arange(10) + 100 * step.version)[:, None] * np.ones((1, 3), np.int64))
            time.sleep(float(sys.argv[3]))
"""


def write(steps=7, rows=ROWS, name="s", **options):
    """x holds in each row its version times 100 and its number."""
    with fb.open(name, "w", quota="64MiB", retention=options.pop("retention", "forever"), **options) as ch:
        for step in ch.steps(steps):
            step.put("x", (np.arange(rows) + 100 * step.version)[:, None] * np.ones((1, 3), np.int64))
            step.put("y", np.arange(rows, dtype=np.float32) / 2)
    return expected(steps, rows)


def expected(steps=7, rows=ROWS):
    return [100 * version + row for version in range(steps) for row in range(rows)]


def rows_of(**options):
    return ft.StepDataset("s", "x", along=0, **{"versions": "all", **options})


def ids(samples):
    return [int(sample[0]) for sample in samples]


def batched(batches):
    return [int(row) for batch in batches for row in batch[:, 0]]


class Double:
    """A transform that can be sent to a process that is started anew."""

    def __call__(self, sample):
        return sample * 2


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("samples", [0, 1, 5, 100])
def test_shards_are_disjoint_complete_and_even(count, samples):
    taken = [0] * count
    for version in range(2 * count):
        seen = []
        for index in range(count):
            start, stop = Shard(index, count).of(version, samples)
            seen += range(start, stop)
            taken[index] += stop - start
        assert sorted(seen) == list(range(samples))
    assert max(taken) == min(taken), "which shard gets the rest goes round"


def test_draws_are_even_and_continue_from_a_number():
    draws = Draws(1, 2, Shard(0, 1))
    numbers = [draws.below(10) for _ in range(10_000)]
    assert min(numbers.count(value) for value in range(10)) > 850
    again = Draws(1, 2, Shard(0, 1), 5000)
    assert [again.below(10) for _ in range(5000)] == numbers[5000:]
    assert [Draws(1, 3, Shard(0, 1)).below(1 << 40)] != [Draws(1, 2, Shard(0, 1)).below(1 << 40)]


def test_what_a_sample_is():
    write(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = list(rows_of())
        both = list(ft.StepDataset("s", along=0, versions="all"))
        versions = list(ft.StepDataset("s", versions="all"))
        one = list(ft.StepDataset("s", ["y"], versions=[1]))
    assert len(rows) == 20 and rows[3].dtype == torch.int64 and rows[3].tolist() == [3, 3, 3]
    assert both[13]["x"].tolist() == [103] * 3 and both[13]["y"] == 1.5
    assert [version["x"].shape for version in versions] == [(10, 3)] * 2 and versions[1]["x"][9, 0] == 109
    assert list(one[0]) == ["y"] and one[0]["y"].shape == (10,)


def test_views_lie_in_the_space_and_hold_their_version():
    write(3)
    with fb.open("s", observer=True) as reader, reader.open_version(1) as step:
        del step
    sample = list(ft.StepDataset("s", "x", versions="all"))[1]
    (again,) = ft.StepDataset("s", "x", versions=[1])
    (own,) = ft.StepDataset("s", "x", versions=[1], copy=True)
    with open(f"/proc/{os.getpid()}/maps") as maps:
        mapped = [line for line in maps if os.environ["FOREBAY_DIR"] in line]
    spans = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in mapped]

    def lies_in_space(tensor):
        return any(start <= tensor.data_ptr() < stop for start, stop in spans)

    assert lies_in_space(sample) and lies_in_space(again) and not lies_in_space(own)
    own += 1
    with pytest.raises(errors.NameInUse):
        fb.open("s", "w")
    assert int(sample[9, 0]) == 109
    del sample, again
    gc.collect()
    fb.open("s", "w").close()


def test_types_of_all_kinds_and_pieces():
    bfloat = torch.arange(6, dtype=torch.float32).to(torch.bfloat16)
    kinds = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    kinds += ["float16", "float32", "float64", "complex64", "complex128"]
    with fb.open("s", "w", retention="forever") as ch:
        ch.begin_step()
        for kind in kinds:
            ch.put(kind, np.arange(6).astype(kind))
        ch.put("two", np.ones(3), shape=(6,), start=(0,))
        ch.put("two", np.zeros(3), shape=(6,), start=(3,))
        ch.put("note", "a text")
        ch.put("scalar", np.float32(7))
        ch.put("empty", np.zeros((0, 4)))
        ch.end_step()
    (sample,) = ft.StepDataset("s", versions="all")
    for kind in kinds:
        assert sample[kind].dtype == getattr(torch, kind)
        assert sample[kind].numpy().tolist() == np.arange(6).astype(kind).tolist()
    assert sample["two"].tolist() == [1, 1, 1, 0, 0, 0] and sample["note"] == "a text"
    assert sample["scalar"] == 7 and sample["scalar"].shape == () and sample["empty"].shape == (0, 4)
    rows = list(ft.StepDataset("s", ["two", "float32"], along=0, versions="all"))
    assert [float(row["two"]) for row in rows] == [1, 1, 1, 0, 0, 0] and float(rows[5]["float32"]) == 5
    assert bfloat.dtype == torch.bfloat16
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    with fb.open("b", "w", retention="forever") as ch:
        ch.begin_step()
        ch.put("b", np.arange(6).astype(ml_dtypes.bfloat16))
        ch.end_step()
    (sample,) = ft.StepDataset("b", "b", versions="all")
    assert torch.equal(sample, bfloat)


def test_an_order_depends_on_seed_and_epoch_alone():
    want = write()
    dataset = rows_of(shuffle=20)
    first = ids(dataset)
    assert sorted(first) == want and first != want and ids(dataset) == first
    dataset.set_epoch(1)
    second = ids(dataset)
    assert sorted(second) == want and second != first
    dataset.set_epoch(0)
    assert ids(dataset) == first
    assert ids(rows_of(shuffle=20, seed=1)) != first
    assert ids(rows_of()) == want == ids(rows_of(shuffle=1))
    assert sorted(ids(rows_of(shuffle=1000))) == want


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("live", [False, True])
def test_workers_share_the_samples(context, live):
    want = write()
    iterator = iter(rows_of())  # the parent has the space open when it forks
    next(iterator)
    options = {"versions": None, "finished": True} if live else {}
    dataset = rows_of(shuffle=8, **options)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=4, num_workers=3, multiprocessing_context=context)
        assert sorted(batched(loader)) == want
    assert len(list(iterator)) == len(want) - 1


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_the_samples(workers):
    want = write(5, 7)
    shares = [
        batched(DataLoader(rows_of(rank=rank, world=3, shuffle=5), batch_size=2, num_workers=workers))
        for rank in range(3)
    ]
    assert sorted(row for share in shares for row in share) == want
    assert max(map(len, shares)) - min(map(len, shares)) <= 2 * (1 + workers)


def test_ranks_of_a_process_group_share_the_samples(children):
    want = write(5, 7)
    code = """
        import torch, warnings
        warnings.simplefilter("ignore")
        import torch.distributed as dist
        import forebay.torch as ft
        from torch.utils.data import DataLoader

        rank = int(sys.argv[1])
        dataset = ft.StepDataset("s", "x", along=0, versions="all", shuffle=5)
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=sys.argv[3])
        if __name__ == "__main__":
            print(*[int(sample[0]) for sample in loader])
            dist.destroy_process_group()
    """
    for context in ("fork", "forkserver"):
        meeting = f"{os.environ['FOREBAY_DIR']}/.meeting-{context}"
        group = [children.start(code, rank, meeting, context) for rank in range(2)]
        assert sorted(int(word) for child in group for word in child.ok().split()) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_a_live_space_is_followed_to_its_end(children, workers):
    writer = children.start(WRITER, 20, "released", 0.01)
    dataset = rows_of(versions=None, shuffle=4, timeout=30)
    assert sorted(batched(DataLoader(dataset, batch_size=3, num_workers=workers))) == expected(20)
    writer.ok()


def test_a_version_counts_as_read_when_its_last_sample_was_handed_out():
    with fb.open("s", "w", retention="released", readers={"train": 1}) as ch:
        for step in ch.steps(4):
            step.put("x", np.full((2, 1), step.version))
    dataset = rows_of(versions=None, group="train", timeout=5)
    iterator = iter(dataset)
    assert ids([next(iterator), next(iterator), next(iterator)]) == [0, 0, 1]
    del iterator
    gc.collect()
    assert ids(rows_of(versions=None, group="train", timeout=5)) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("shuffle", [0, 3, 25, 1000])
def test_a_state_goes_on_with_what_is_left(live, shuffle):
    want = write()
    options = {"versions": None, "finished": True} if live else {}
    whole = ids(rows_of(shuffle=shuffle, seed=3, **options))
    assert sorted(whole) == want
    choose = random.Random(shuffle)
    for stop in (0, 1, len(want) - 1, len(want), *(choose.randrange(len(want)) for _ in range(4))):
        dataset = rows_of(shuffle=shuffle, seed=3, **options)
        iterator = iter(dataset)
        seen = ids(next(iterator) for _ in range(stop))
        state = json.loads(json.dumps(dataset.state_dict()))
        del iterator, dataset
        dataset = rows_of(shuffle=shuffle, seed=3, **options)
        dataset.load_state_dict(state)
        again = ids(dataset)
        assert seen + again == whole, f"stopped behind {stop}"
        assert ids(dataset) == whole, "the next epoch is a whole one"


def test_a_state_behind_the_end_is_the_end():
    want = write(2)
    dataset = rows_of()
    assert ids(dataset) == want
    state = dataset.state_dict()
    fb.destroy("s")
    again = rows_of()
    again.load_state_dict(state)
    assert ids(again) == []


def test_a_dataloader_without_workers_stands_where_its_batches_do():
    want = write()
    dataset = rows_of(shuffle=13)
    whole = ids(dataset)
    batches = iter(DataLoader(dataset, batch_size=4))
    seen = batched([next(batches), next(batches)])
    state = dataset.state_dict()
    del batches
    dataset.load_state_dict(state)
    assert seen + batched(DataLoader(dataset, batch_size=4)) == whole and sorted(whole) == want


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("transform", [None, Double()])
@pytest.mark.parametrize("shuffle", [0, 30])
def test_loader(workers, transform, shuffle):
    want = write(7, 23)
    factor = 1 if transform is None else 2
    dataset = rows_of(shuffle=shuffle, transform=transform)
    whole = [row // factor for row in batched(ft.loader(dataset, 4, num_workers=workers))]
    assert sorted(whole) == want
    choose = random.Random(shuffle)
    for stop in (0, 1, *(choose.randrange(20) for _ in range(2))):
        loader = ft.loader(rows_of(shuffle=shuffle, transform=transform), 4, num_workers=workers)
        batches = iter(loader)
        seen = batched(next(batches) for _ in range(stop))
        state = json.loads(json.dumps(loader.state_dict()))
        batches.close()
        loader = ft.loader(rows_of(shuffle=shuffle, transform=transform), 4, num_workers=workers)
        loader.load_state_dict(state)
        rest = batched(loader)
        assert sorted(row // factor for row in seen + rest) == want
        if not (workers and transform):
            assert [row // factor for row in seen + rest] == whole
        assert sorted(row // factor for row in batched(loader)) == want, "the next epoch is a whole one"


def test_batches_are_those_of_a_dataloader():
    write()
    for options in ({}, {"along": None}, {"shuffle": 15}, {"shuffle": 4, "along": None}):
        dataset = ft.StepDataset("s", **{"along": 0, "versions": "all", **options})
        ours, theirs = list(ft.loader(dataset, 4)), list(DataLoader(dataset, 4))
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert list(mine) == list(other)
            assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert [len(batch) for batch in ft.loader(rows_of(), 32, drop_last=True)] == [32, 32]


def test_neighbours_are_one_view():
    write()
    memory = {batch.untyped_storage().data_ptr() for batch in ft.loader(rows_of(), 5)}
    assert len(memory) == 7, "two batches of each version share its memory"
    assert all(batch.untyped_storage().nbytes() == 5 * 24 for batch in ft.loader(rows_of(copy=True), 5))


def test_a_killed_writer_is_an_error(children):
    for workers in (0, 2):
        writer = children.start(WRITER, 10_000, "forever", 0.02)
        dataset = rows_of(versions=None, timeout=30)
        batches = iter(DataLoader(dataset, batch_size=2, num_workers=workers))
        next(batches)
        writer.signal(signal.SIGKILL)
        writer.wait()
        with pytest.raises(errors.ProducerDied):
            list(batches)
        del batches, dataset
        gc.collect()
        fb.destroy("s")


def test_a_killed_worker_is_an_error_and_its_samples_come_again(children):
    """In a process of its own: torch raises the error from a signal handler, wherever the program is."""
    want = write(30)
    code = """
        import warnings
        warnings.simplefilter("ignore")
        import torch, forebay.torch as ft
        from torch.utils.data import DataLoader

        dataset = ft.StepDataset("s", "x", along=0, finished=True)
        batches = iter(DataLoader(dataset, batch_size=1, num_workers=2, prefetch_factor=1))
        try:
            next(batches)
            os.kill(batches._workers[1].pid, signal.SIGKILL)
            list(batches)
        except RuntimeError as e:
            print(e)
    """
    assert "DataLoader worker" in children.start(code).ok()
    dataset = rows_of(versions=None, finished=True)
    assert sorted(batched(DataLoader(dataset, batch_size=1, num_workers=2))) == want


def test_a_trainer_that_is_killed_goes_on_from_its_state(children):
    want = write(12)
    code = """
        import json, torch, forebay.torch as ft
        dataset = ft.StepDataset("s", "x", along=0, versions="all", shuffle=16)
        loader = ft.loader(dataset, 3)
        if os.path.exists(sys.argv[1]):
            loader.load_state_dict(json.load(open(sys.argv[1])))
        for batch in loader:
            # The state and what was seen become one file at one moment.
            seen = json.load(open(sys.argv[1]))["seen"] if os.path.exists(sys.argv[1]) else []
            state = {**loader.state_dict(), "seen": seen + [int(row) for row in batch[:, 0]]}
            json.dump(state, open(sys.argv[1] + ".new", "w"))
            os.rename(sys.argv[1] + ".new", sys.argv[1])
            print("batch", flush=True)
            time.sleep(0.002)
        print("end", flush=True)
    """
    path = os.environ["FOREBAY_DIR"] + "/.state"
    choose = random.Random(7)
    for turn in range(4):
        child = children.start(code, path)
        for _ in range(choose.randrange(1, 12)):
            if child.line() == "end":
                break
        if turn < 3:
            child.signal(signal.SIGKILL)
            child.wait()
        else:
            child.ok()
    with open(path) as file:
        assert sorted(json.load(file)["seen"]) == want


def test_a_wait_has_its_timeout_and_goes_on():
    with fb.open("s", "w") as ch:
        ch.begin_step()
        ch.put("x", np.arange(3)[:, None])
        ch.end_step()
        batches = iter(ft.loader(rows_of(versions=None, timeout=0.1), 4))
        dataset = rows_of(versions=None, timeout=0.1, component="other")
        iterator = iter(dataset)
        assert ids([next(iterator) for _ in range(3)]) == [0, 1, 2]
        with pytest.raises(errors.TimedOut):
            next(iterator)
        ch.begin_step()
        ch.put("x", 3 + np.arange(3)[:, None])
        ch.end_step()
        assert ids([next(iterator)]) == [3]
        assert batched([next(batches)]) == [0, 1, 2, 3]
        batches.close()
        del iterator, dataset
    with pytest.raises(errors.PeerMissing):
        iter(ft.StepDataset("nothing", timeout=0.05))


def test_a_stream_that_was_left_behind_says_so():
    write(3)
    dataset = rows_of(versions=None, finished=True)
    iterator = iter(dataset)
    next(iterator)
    state = dataset.state_dict()
    del iterator
    gc.collect()
    dataset.load_state_dict(state)  # closes what is open
    write(3)
    with pytest.raises(errors.VersionGone, match="replaced"):
        iter(dataset)


def test_versions_are_chosen():
    write()
    assert ids(rows_of(versions=range(2, 4))) == [row for row in expected() if row // 100 in (2, 3)]
    assert ids(rows_of(versions=[5, 0])) == [*range(500, 510), *range(10)]
    with pytest.raises(errors.PeerMissing, match="ended before version 9"):
        list(rows_of(versions=[9]))


def test_mistakes():
    write(1)
    for wrong in (
        {"along": 1},
        {"shuffle": -1},
        {"rank": 0},
        {"rank": 2, "world": 2},
        {"versions": "some"},
        {"versions": [1, 1]},
        {"group": "a", "versions": "all"},
    ):
        with pytest.raises(errors.Usage):
            ft.StepDataset("s", **wrong)
    with pytest.raises(errors.UnknownVariable):
        list(ft.StepDataset("s", "z", versions="all"))
    with pytest.raises(TypeError):
        list(ft.StepDataset("s", "x", versions="all", colour="red"))
    if not torch.cuda.is_available():
        with pytest.raises(errors.NotPossibleHere):
            ft.StepDataset("s", pin=True)
    with fb.open("t", "w", retention="forever") as ch:
        ch.begin_step()
        ch.put("a", np.zeros(3))
        ch.put("b", np.zeros(4))
        ch.end_step()
    with pytest.raises(errors.VariableMismatch, match="same number of samples"):
        list(ft.StepDataset("t", along=0, versions="all"))
    with pytest.raises(errors.Usage):
        ft.loader(rows_of(), 0)
    dataset = rows_of(shuffle=3)
    next(iter(dataset))
    state = dataset.state_dict()
    for other in ({"shuffle": 4}, {"shuffle": 3, "seed": 1}, {"shuffle": 3, "rank": 0, "world": 2}):
        again = rows_of(**other)
        again.load_state_dict(state)
        with pytest.raises(errors.Usage, match="made with another"):
            iter(again)
    with pytest.raises(errors.Usage):
        dataset.load_state_dict({"position": 4})
    with pytest.raises(errors.Usage, match="number of workers"):
        ft.loader(rows_of(transform=Double()), 4, num_workers=2).load_state_dict(state)


def test_another_iteration_ends_the_one_before():
    write(3)
    dataset = rows_of(versions=None, finished=True)
    first = iter(dataset)
    next(first)
    second = iter(dataset)
    assert len(list(second)) == 30
    with pytest.raises(errors.Closed):
        next(first)


def test_nothing_stays_open():
    write(3)

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    def epoch():
        list(DataLoader(rows_of(shuffle=4), batch_size=2))
        list(ft.loader(rows_of(), 4))
        gc.collect()

    epoch()
    before = open_files()
    for _ in range(5):
        epoch()
    assert open_files() <= before
    time.sleep(0)
    fb.open("s", "w").close()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_that_persist_see_the_epoch(context):
    want = write()
    dataset = rows_of(shuffle=20)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context, persistent_workers=True)
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(batched(loader))
        assert sorted(orders[-1]) == want
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_keeps_the_state_of_workers(workers):
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    want = write()
    for stop in (0, 3, 11):
        loader = module.StatefulDataLoader(rows_of(shuffle=13), batch_size=4, num_workers=workers)
        batches = iter(loader)
        seen = batched(next(batches) for _ in range(stop))
        state = loader.state_dict()
        del batches
        loader = module.StatefulDataLoader(rows_of(shuffle=13), batch_size=4, num_workers=workers)
        loader.load_state_dict(state)
        assert sorted(seen + batched(loader)) == want
        assert sorted(batched(loader)) == want, "the next epoch is a whole one"


def test_a_sample_whose_transform_failed_comes_again():
    want = write(2)
    failing = {7}

    def transform(sample):
        if int(sample[0]) in failing:
            failing.clear()
            raise ValueError("once")
        return sample

    dataset = rows_of(transform=transform)
    seen = []
    with pytest.raises(ValueError, match="once"):
        for sample in dataset:
            seen += ids([sample])
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    assert seen + ids(dataset) == want
    failing.add(7)
    loader = ft.loader(rows_of(transform=transform), 4)
    seen = []
    with pytest.raises(ValueError, match="once"):
        for batch in loader:
            seen += batched([batch])
    loader.load_state_dict(loader.state_dict())
    assert seen + batched(loader) == want


def test_the_page_on_torch(tmp_path, monkeypatch):
    from test_guide import blocks, printed

    monkeypatch.chdir(tmp_path)
    found = blocks("torch.md")
    programs = [(text, found[at + 1][1]) for at, (_, text) in enumerate(found[:-1]) if found[at + 1][0] == "text"]
    assert len(programs) == 2
    for program, output in programs:
        assert printed(program) == output


def _same_sample(sample: object) -> object:
    return sample


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_was_left_has_no_part_in_the_next(workers):
    with fb.open("left", "w", retention="forever") as channel:
        for step in channel.steps(4):
            step.put("x", np.arange(10) + 10 * step.version)
    dataset = ft.StepDataset("left", "x", along=0, versions="all", shuffle=8, transform=_same_sample)
    loader = ft.loader(dataset, batch_size=4, num_workers=workers)
    loader.set_epoch(0)
    for count, _ in enumerate(loader):
        if count == 2:
            break
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        assert sorted(int(x) for batch in loader for x in batch) == list(range(40)), epoch
