"""forebay.Checkpoint: three lines make a program restartable; what is wrong is said."""

import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import forebay as fb
import numpy as np
import pytest
from numpy.typing import NDArray

PROGRAM = """
import sys, time
import forebay as fb, numpy as np

path, last, wait = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
u = np.zeros((64, 1000))
ck = fb.Checkpoint(path, ["dram", "file"])
ck.protect("u", u)
for step in range(ck.restore_latest(default=-1) + 1, last):
    u += step
    ck.save(step)
    print(step, flush=True)
    time.sleep(wait)
print("sum", u.sum())
"""


def run(path: Path, last: int, wait: float = 0.0) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", PROGRAM, str(path), str(last), str(wait)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    root = Path("/dev/shm") / f"forebay-test-{os.getpid()}-{tmp_path.name}"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("FOREBAY_DIR", str(root))
    yield tmp_path
    subprocess.run(["rm", "-rf", str(root)], check=True)


def test_a_killed_program_goes_on(space: Path) -> None:
    path = space / "ck"
    first = run(path, 1000, 0.01)
    assert first.stdout is not None
    seen = [first.stdout.readline().strip() for _ in range(5)]
    first.send_signal(signal.SIGKILL)
    first.wait()
    rest = first.stdout.read().split()
    first.stdout.close()
    acknowledged = int((seen + [line for line in rest if line.isdigit()])[-1])
    last = acknowledged + 5
    second, _ = run(path, last).communicate(timeout=60)
    steps = [int(line) for line in second.split("\n") if line.isdigit()]
    assert steps[0] in (acknowledged + 1, acknowledged + 2), "memory keeps what a kill leaves"
    assert steps[-1] == last - 1
    assert f"sum {64000.0 * sum(range(last))}" in second


def test_arrays_come_back_and_the_report_says_from_where(space: Path) -> None:
    a, b = np.arange(1000.0).reshape(10, 100), np.array(7, dtype=np.int32)
    with fb.Checkpoint(space / "ck", ["dram", space / "disk"]) as ck:
        ck.protect("a", a)
        ck.protect("b", b)
        assert ck.restore_latest() is None and ck.report is None
        ck.prepare()
        ck.save(3)
        assert ck.wait() == 3
        assert [level["step"] for level in ck.levels] == [3, 3]
        assert [level["durability"] for level in ck.levels] == ["process crash", "power failure"]
        assert ck.statistics["saves"] == 1
    assert ck.closed
    a[:], b[...] = 0, 0
    with fb.Checkpoint(space / "ck", ["dram", space / "disk"]) as ck:
        ck.protect("a", a)
        ck.protect("b", b)
        assert ck.run == 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ck.restore_latest() == 3
        assert ck.report is not None and ck.report["run"] == 1
    assert (a == np.arange(1000.0).reshape(10, 100)).all() and b == 7
    with pytest.raises(fb.errors.Closed):
        ck.save(4)


def test_what_was_not_taken_is_a_warning(space: Path) -> None:
    u = np.ones(100_000)
    with fb.Checkpoint(space / "ck") as ck:
        ck.protect("u", u)
        ck.save(1)
        u += 1
        ck.save(2)
    data = next((space / "ck" / "file").glob("s0000000002-*/00000.data"))
    with open(data, "r+b") as file:
        file.seek(5000)
        file.write(b"!")
    with fb.Checkpoint(space / "ck") as ck:
        ck.protect("u", u)
        with pytest.warns(RuntimeWarning) as told:
            assert ck.restore_latest() == 1
        text = "\n".join(str(one.message) for one in told)
        assert "step 2 of run 1" in text and "checksum" in text and "step 2 was saved and is lost" in text
    assert (u == 1).all()


def test_incremental_and_compressed_steps(space: Path) -> None:
    u = np.zeros((64, 8192))
    with fb.Checkpoint(space / "ck", ["dram", "file"], incremental=3, compress="zstd:1") as ck:
        assert [level["incremental"] for level in ck.levels] == [None, 3]
        assert [level["compress"] for level in ck.levels] == [None, "zstd:1"]
        ck.protect("u", u)
        for step in range(5):
            u[step] = step
            ck.save(step)
            ck.wait()
    files = {int(path.parent.name[1:11]): path.stat().st_size for path in (space / "ck").rglob("*.data")}
    assert files[4] <= files[3] <= 65536 < u.nbytes
    subprocess.run(["rm", "-rf", f"{os.environ['FOREBAY_DIR']}/.checkpoints"], check=True)
    again = np.ones_like(u)
    with fb.Checkpoint(space / "ck", ["dram", "file"]) as ck:
        ck.protect("u", again)
        assert ck.restore_latest() == 4
    assert (again == u).all()
    with pytest.raises(fb.errors.Usage):
        fb.Checkpoint(space / "ck", compress="gzip")
    with pytest.raises(fb.errors.Usage):
        fb.Checkpoint(space / "ck", ["dram"], incremental=3)


@pytest.mark.parametrize("levels", ["file,keep=3", ["file,keep=3"], Path("level"), [Path("level")]])
def test_levels_and_rules_are_one_word_or_several(space: Path, tmp_path: Path, levels: Any) -> None:
    several = levels if isinstance(levels, list) else [levels]
    if isinstance(several[0], Path):
        several = [tmp_path / several[0]]
        levels = several if isinstance(levels, list) else several[0]
    with fb.Checkpoint(space / "ck", levels, when="steps:2", compress="zstd", incremental=4, memory=None) as ck:
        (level,) = ck.levels
        assert level["keep"] == (3 if isinstance(several[0], str) else 2)
        assert (level["incremental"], level["compress"]) == (4, "zstd:3")
        assert [ck.need(step) for step in range(4)] == [True, False, True, False]


def test_mistakes(space: Path) -> None:
    with fb.Checkpoint(space / "ck") as ck:
        with pytest.raises(fb.errors.BufferMismatch):
            ck.protect("t", np.zeros((4, 4)).T[1:])
        frozen = np.zeros(4)
        frozen.flags.writeable = False
        with pytest.raises(fb.errors.BufferMismatch):
            ck.protect("f", frozen)
        with pytest.raises(fb.errors.BoxOutsideShape):
            ck.protect("s", np.zeros(4), shape=[6], start=[3])
        ck.protect("u", np.zeros(4))
        ck.save(2)
        with pytest.raises(fb.errors.VersionOutOfOrder):
            ck.save(2)
        with pytest.raises(fb.errors.VersionGone):
            ck.restore(9)
        with pytest.raises(fb.errors.Usage):
            ck.wait(3)
        with pytest.raises(fb.errors.NameInUse):
            fb.Checkpoint(space / "ck")
    with pytest.raises(fb.errors.Usage):
        fb.Checkpoint(space / "ck", ["tape"])


class Mpi4py:
    """What mpi4py's communicators have, and nothing else."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size


class Plain:
    """Rank and size as attributes."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize("kind", [Mpi4py, Plain])
def test_ranks_by_a_communicator(space: Path, kind: Any) -> None:
    group = [fb.Checkpoint(space / "ck", comm=kind(rank, 3)) for rank in range(3)]
    for rank, ck in enumerate(group):
        ck.protect("u", np.full(2, float(rank)), shape=[6], start=[2 * rank])
        ck.save(1)
    for ck in group:
        assert ck.wait() == 1
        ck.close()
    whole = np.zeros(6)
    with fb.Checkpoint(space / "ck", comm=kind(0, 1)) as ck:
        ck.protect("u", whole)
        assert ck.restore_latest() == 1
    assert (whole == [0, 0, 1, 1, 2, 2]).all()
    with pytest.raises(fb.errors.Usage, match="combined with rank"):
        fb.Checkpoint(space / "ck", comm=kind(0, 1), rank=0, size=1)
    with pytest.raises(fb.errors.Usage, match="neither Get_rank"):
        fb.Checkpoint(space / "ck", comm=object())


def test_a_rank_joins_no_run_of_another_batch_job(space: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(rank: int, job: str) -> int:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        with fb.Checkpoint(space / "ck", rank=rank, size=2) as ck:
            return ck.run

    assert [begin(0, "41"), begin(1, "41")] == [1, 1]
    assert [begin(0, "42"), begin(1, "43")] == [2, 3]


def test_the_best_steps_stay(space: Path) -> None:
    u = np.zeros(100)
    with fb.Checkpoint(space / "ck", ["dram", "file,keep=1,every=4,best=1"]) as ck:
        ck.protect("u", u)
        for step, loss in enumerate([0.9, 0.4, 0.3, 0.5, 0.6, 0.7, 0.8]):
            u[:] = step
            ck.save(step, metric=np.float32(loss))
        ck.wait()
        assert [(level["keep"], level["every"], level["best"]) for level in ck.levels] == [(1, None, None), (1, 4, 1)]
        for step in (0, 2, 4, 6):
            assert ck.restore(step) == step and (u == step).all()
        for step in (1, 3):
            with pytest.raises(fb.errors.VersionGone):
                ck.restore(step)
        with pytest.raises(fb.errors.Usage):
            ck.save(9, metric=float("nan"))


def test_ranks_share_an_array(space: Path) -> None:
    parts = [np.full(5, float(rank)) for rank in range(2)]
    pair = [fb.Checkpoint(space / "ck", rank=rank, size=2) for rank in range(2)]
    for rank, ck in enumerate(pair):
        ck.protect("u", parts[rank], shape=[10], start=[5 * rank])
        ck.save(1)
    for ck in pair:
        ck.close()
    whole = np.zeros(10)
    with fb.Checkpoint(space / "ck") as ck:
        ck.protect("u", whole)
        assert ck.restore_latest() == 1
    assert (whole == np.repeat([0.0, 1.0], 5)).all()


def test_a_lost_node_is_repaired_and_that_is_a_warning(space: Path, tmp_path: Path) -> None:
    levels = ["file+partner"]

    def ranks() -> "list[tuple[fb.Checkpoint, NDArray[np.float64]]]":
        made = []
        for rank in range(2):
            u = np.zeros(1000)
            ck = fb.Checkpoint(tmp_path / "ck", levels, rank=rank, size=2)
            ck.protect("u", u, shape=[2000], start=[1000 * rank])
            made.append((ck, u))
        return made

    first = ranks()
    for ck, u in first:
        u += 7
        ck.save(1)
    for ck, _ in first:
        assert ck.wait() == 1
        assert ck.levels[0]["redundancy"] == "partner"
        ck.close()
    shutil.rmtree(tmp_path / "ck" / "file" / "00001")
    whole = np.zeros(2000)
    with fb.Checkpoint(tmp_path / "ck", levels) as ck:
        ck.protect("u", whole)
        with pytest.warns(RuntimeWarning, match="data of rank 1 on node 00001 was repaired from partner"):
            assert ck.restore_latest() == 1
        assert ck.report is not None
        assert [repair["what"] for repair in ck.report["repaired"]] == ["manifest", "data", "commit record", "parity"]
        assert (whole == 7).all()
        with pytest.raises(fb.errors.NotPossibleHere, match="partner needs pieces on 2 nodes"):
            ck.save(2)
