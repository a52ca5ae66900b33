"""Ensembles: members that come, go and are killed put samples; trainers that are killed draw each as often as asked."""

import collections
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import forebay as fb
import numpy as np
import pytest
from forebay import ensemble
from forebay.ensemble import Member, Reservoir

# So many kills of members and of trainers; `make soak` asks for more.
KILLS = int(os.environ.get("TEST_KILLS", "12"))


def wait_until_full(name, putting):
    """Until the member with this space waits for free space."""

    def is_full() -> bool:
        try:
            return any(one["waiting_for"] for one in fb.inspect(name)["members"])
        except fb.errors.PeerMissing:
            return False

    while not is_full():
        assert putting.process.poll() is None
        time.sleep(0.01)


def fill(members: int, samples: int, **options: object) -> set[tuple[int, int]]:
    """Members that have put samples and ended."""
    for m in range(members):
        with Member("ens", m, **options) as member:
            for i in range(samples):
                assert member.put(x=np.full(100, 1000 * m + i), t=i / 4) == i
    return {(m, i) for m in range(members) for i in range(samples)}


def draw(reservoir: Reservoir) -> list[tuple[int, int]]:
    """What the reservoir hands out, checked."""
    drawn = []
    for batch in reservoir:
        for sample in batch:
            x = sample["x"]
            assert (x == x[0]).all() and set(sample) == {"x", "t"}
            view = sample.view("x")
            assert (view == x).all() and x.flags.writeable and not view.flags.writeable
            del view
            assert sample.member.rpartition("/")[2] == f"ens.{x[0] // 1000}" and sample.number == x[0] % 1000
            drawn.append((int(x[0]) // 1000, int(x[0]) % 1000))
    return drawn


@pytest.mark.parametrize("policy", ["uniform", "fifo"])
@pytest.mark.parametrize("window", [7, 1000])
def test_each_sample_is_drawn_once_and_the_spaces_of_the_members_go(policy, window):
    put = fill(3, 40)
    with Reservoir("ens", members=3, batch=8, policy=policy, window=window) as reservoir:
        drawn = draw(reservoir)
        assert reservoir.drawn == 120 and reservoir.available == 0
    assert len(drawn) == 120 and set(drawn) == put
    if policy == "fifo":
        assert [i for m, i in drawn if m == 1] == list(range(40))
    else:
        assert [i for m, i in drawn if m == 1] != list(range(40))
    assert [info["name"] for info in fb.list_spaces()] == ["ens-trainer.0"]


def test_the_seed_says_the_order():
    orders = []
    for seed in (1, 1, 2):
        fill(2, 30)
        with Reservoir("ens", members=2, batch=5, seed=seed) as reservoir:
            orders.append(draw(reservoir))
        fb.destroy("ens-trainer.0")
    assert orders[0] == orders[1] != orders[2]


def test_samples_are_drawn_again_while_others_are_waited_for():
    put = fill(1, 20)
    with Member("ens", 1) as late, Reservoir("ens", members=2, batch=4, window=10, seen=(1, 3)) as reservoir:
        # The first ones leave when others wait, not before they were seen.
        first = [(s.member, s.number) for _ in range(7) for s in next(reservoir)]
        late.put(x=np.full(100, 1000), t=0.0)
        late.close()
        rest = draw(reservoir)
    counts = collections.Counter([(int(m[4:]), i) for m, i in first] + rest)
    assert set(counts) == put | {(1, 0)} and max(counts.values()) <= 3 and len(first) + len(rest) > 21


def test_members_that_wait_for_space_are_not_waited_for(children):
    code = """
    from forebay.ensemble import Member
    with Member("ens", sys.argv[1], quota="2MiB", segment="256KiB") as member:
        for i in range(member.puts, 200):
            member.put(x=np.full(100, 1000 * int(sys.argv[1]) + i), t=0.0, more=np.zeros(5000))
    """
    members = [children.start(code, m) for m in range(2)]
    with Reservoir("ens", members=2, batch=10, window=4000, watermark=3000, timeout=30) as reservoir:
        drawn = {(s.member, s.number) for batch in reservoir for s in batch}
    for member in members:
        member.ok()
    assert len(drawn) == 400


def test_a_trainer_goes_on_where_it_was():
    put = fill(2, 50)
    options = {"members": 2, "batch": 10, "seed": 3}
    with Reservoir("ens", **options) as reservoir:
        before = [(s.member, s.number) for _ in range(3) for s in next(reservoir)]
        # Two batches count, as the third is not through.
    with Reservoir("ens", **options) as reservoir:
        assert reservoir.drawn == 20
        after = draw(reservoir)
    counts = collections.Counter([(int(m[4:]), i) for m, i in before] + after)
    assert set(counts) == put and sum(counts.values()) == 110 and max(counts.values()) == 2
    with pytest.raises(fb.errors.OptionMismatch, match="other options"):
        Reservoir("ens", seen=2)


def test_a_state_of_format_1_is_gone_on_from():
    """A state as docs/src/formats/ensemble.md says it."""
    fill(2, 6)
    uuids = [fb.inspect(f"ens.{m}")["uuid"] for m in range(2)]
    text = (
        '{"format":"forebay-reservoir","version":%d,"size":1,"seen":[1,2],"drawn":7,"batches":3,"members":{'
        f'"ens.0":{{"uuid":"{uuids[0]}","base":2,"seen":{{"4":1}},"done":[3]}},'
        f'"ens.1":{{"uuid":"{uuids[1]}","base":6,"seen":{{}},"done":[]}}}}}}'
    )
    for version in (2, 1):
        with fb.open("ens-trainer.0", "w", quota="64MiB", retention="last:2") as ch:
            for step in ch.steps(1):
                step.put("state", np.frombuffer((text % version).encode(), "u1"), concat=True)
        if version == 2:
            with pytest.raises(fb.errors.UnknownFormat):
                Reservoir("ens", members=2, seen=(1, 2))
    with Reservoir("ens", members=2, seen=(1, 2)) as reservoir:
        # Of member 0 the samples below 2 and sample 3 are done; sample 4 was seen often enough for the end.
        assert sorted(draw(reservoir)) == [(0, 2), (0, 5)] and reservoir.drawn == 9


def test_the_environment_does_not_say_how_members_are_read(monkeypatch):
    for name, text in (("CHANNEL_KIND", "files"), ("RANK", "3"), ("SIZE", "4"), ("RETENTION", "last:1")):
        monkeypatch.setenv(f"FOREBAY_{name}", text)
    put = fill(1, 10)
    with Reservoir("ens", members=1, batch=3) as reservoir:
        assert set(draw(reservoir)) == put


def test_what_counts_before_it_is_handed_out_is_never_seen_twice():
    fill(2, 50)
    options = {"members": 2, "batch": 10, "when_killed": "skip"}
    with Reservoir("ens", **options) as reservoir:
        before = [(int(s.member[4:]), s.number) for _ in range(3) for s in next(reservoir)]
    with Reservoir("ens", **options) as reservoir:
        after = draw(reservoir)
    assert len(before) == 30 and len(after) == 70 and not set(before) & set(after)


def test_without_commits_a_trainer_begins_again():
    fill(1, 40)
    for _ in range(2):
        with Reservoir("ens", members=1, batch=10, commit_every=None) as reservoir:
            seen = {s.number for _ in range(3) for s in next(reservoir)}
            assert len(seen) == 30
    with Reservoir("ens", members=1, batch=10, commit_every=None) as reservoir:
        for _ in range(3):
            next(reservoir)
        reservoir.commit()
    # Nor at the end: until the checkpoint is written all comes again.
    for _ in range(2):
        with Reservoir("ens", members=1, batch=10, commit_every=None) as reservoir:
            assert len(draw(reservoir)) == 10
    with Reservoir("ens", members=1, batch=10, commit_every=None) as reservoir:
        draw(reservoir)
        reservoir.commit()
        assert reservoir.drawn == 40
    assert [info["name"] for info in fb.list_spaces()] == ["ens-trainer.0"]


def test_no_sample_is_passed_over_for_long():
    fill(1, 900)
    with Reservoir("ens", members=1, batch=1, window=10) as reservoir:
        late = [at - sample.number for at, (sample,) in enumerate(reservoir)]
    # It came ten draws before it would have been its turn, and is drawn within four windows.
    assert len(late) == 900 and 15 < max(late) <= 4 * 10 + 1


def test_in_the_end_none_is_drawn_more_often_than_it_has_to():
    put = fill(1, 20)
    with Reservoir("ens", members=1, batch=3, seen=(1, 5)) as reservoir:
        assert collections.Counter(draw(reservoir)) == collections.Counter(put)


def test_members_whose_spaces_have_gone_have_ended():
    fill(1, 10)
    with Member("ens", 1) as late:
        with Reservoir("ens", members=2, batch=10, timeout=5) as reservoir:
            next(reservoir)
            reservoir.commit()
            reservoir._look()
            reservoir.commit()
        assert "ens.0" not in [info["name"] for info in fb.list_spaces()]
        late.put(x=np.full(100, 1000), t=0.0)
    with Reservoir("ens", members=2, batch=10, timeout=5) as reservoir:
        assert draw(reservoir) == [(1, 0)]


def test_a_member_that_was_made_anew_begins_at_its_first_sample():
    fill(1, 10)
    with Reservoir("ens", members=2, batch=8) as reservoir:
        next(reservoir)
        reservoir.commit()
    fb.destroy("ens.0")
    put = fill(1, 10)
    with Reservoir("ens", members=1, batch=4) as reservoir:
        drawn = draw(reservoir)
    assert len(drawn) == 10 and set(drawn) == put


def test_a_member_that_is_begun_anew_while_a_trainer_draws():
    """A program that opens with mode `w`, as a C program does that says nothing else, and is run again."""

    def run() -> None:
        with fb.open("ens.0", "w", rank=0, size=1, readers={"trainer": 1}) as ch:
            for step in ch.steps(5):
                step.put("x", np.full(100, step.version))
                step.put("t", 0.0)

    run()
    with Reservoir("ens", members=2, batch=5, timeout=10) as reservoir:
        assert len(next(reservoir)) == 5
        reservoir.commit()
        reservoir._take_back()
        run()
        assert sorted(sample.number for sample in next(reservoir)) == list(range(5))


def test_what_is_no_member_is_left_alone(root: Path, tmp_path: Path):
    for directory in (root, tmp_path):
        (directory / "ens.yaml").write_text("x")
        (directory / "ens.d").mkdir()
    for name in ("ens", f"{tmp_path}/ens"):
        with Member(name, 0) as member:
            member.put(x=np.zeros(100, int), t=0.0)
        with Reservoir(name, members=1) as reservoir:
            assert len(draw(reservoir)) == 1
    for wrong in (Reservoir, lambda name: Member(name, 0)):
        with pytest.raises(fb.errors.BadName, match="state of a trainer"):
            wrong("ens-trainer")


def test_the_same_ensemble_by_its_path(root: Path):
    fill(1, 10)
    with Reservoir("ens", members=1, batch=4) as reservoir:
        first = [sample.number for sample in next(reservoir)]
        reservoir.commit()
    with Reservoir(f"{root}/ens", members=1, batch=4) as reservoir:
        assert sorted(first + [sample.number for batch in reservoir for sample in batch]) == list(range(10))


def test_trainers_that_name_the_ensemble_differently_draw_each_sample_once(root: Path):
    fill(2, 10, trainers=2)
    drawn = []
    for rank, name in enumerate(["ens", f"{root}/ens"]):
        with Reservoir(name, members=2, batch=4, rank=rank, size=2) as reservoir:
            drawn += [(sample.member, sample.number) for batch in reservoir for sample in batch]
    assert sorted((member[-1], number) for member, number in drawn) == [(m, n) for m in "01" for n in range(10)]


def test_a_trainer_that_was_killed_before_it_moved_its_cursors_stops_no_member(children):
    member = """
    from forebay.ensemble import Member
    with Member("ens", 0, quota="4MiB", timeout=20) as member:
        for i in range(20):
            member.put(x=np.zeros(900 << 10, "u1"))
    """
    trainer = """
    from forebay import ensemble
    from forebay.ensemble import Reservoir
    move = ensemble._Source.move_cursor
    def killed(source):
        if source.base >= source.reader.versions().stop > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        move(source)
    ensemble._Source.move_cursor = killed
    with Reservoir("ens", members=1, batch=20, timeout=20) as reservoir:
        for batch in reservoir:
            print(len(batch), flush=True)
    """
    putting = children.start(member)
    wait_until_full("ens.0", putting)
    killed = children.start(trainer)
    drawn = int(killed.line())
    assert drawn >= 2 and killed.wait()[0] == -signal.SIGKILL
    with Reservoir("ens", members=1, batch=4, timeout=10) as reservoir:
        numbers = [sample.number for batch in reservoir for sample in batch]
    assert sorted(numbers) == list(range(drawn, 20))
    putting.ok()


def test_samples_of_other_trainers_alone_hold_no_memory(children):
    member = """
    from forebay.ensemble import Member
    with Member("ens", 0, trainers=6, quota="8MiB", timeout=20) as member:
        for i in range(40):
            member.put(x=np.zeros(1100 << 10, "u1"))
    """
    trainer = """
    from forebay.ensemble import Reservoir
    with Reservoir("ens", members=1, batch=1, rank=int(sys.argv[1]), size=6, timeout=20) as reservoir:
        print(*[sample.number for batch in reservoir for sample in batch], flush=True)
    """
    putting = children.start(member)
    trainers = [children.start(trainer, rank) for rank in range(6)]
    drawn = [int(number) for one in trainers for number in one.line().split()]
    assert sorted(drawn) == list(range(40))
    for child in (putting, *trainers):
        child.ok()


def test_what_was_drawn_and_not_committed_holds_no_memory_while_a_watermark_waits(children):
    member = """
    from forebay.ensemble import Member
    with Member("ens", 0, quota="4MiB", timeout=20) as member:
        for i in range(100):
            member.put(x=np.zeros(100 << 10, "u1"))
    """
    other = Member("ens", 1, quota="4MiB")
    putting = children.start(member)
    wait_until_full("ens.0", putting)
    drawn = 0
    reservoir = Reservoir("ens", members=2, batch=4, watermark=20, policy="fifo", commit_every=50, timeout=3)
    with pytest.raises(fb.errors.TimedOut, match="computing=ens.1"):
        for batch in reservoir:
            drawn += len(batch)
    assert drawn >= 80
    reservoir.close()
    putting.ok()
    other.close()


def test_a_trainer_that_waits_commits_for_others_now_and_then_only():
    member = Member("ens", 0, trainers=2, quota="64MiB")
    reservoir = Reservoir("ens", members=1, batch=8, watermark=3000, rank=0, size=2, timeout=1)
    puts = threading.Thread(target=lambda: [member.put(x=i) for i in range(1500)])
    puts.start()
    with pytest.raises(fb.errors.TimedOut, match="watermark=3000"):
        next(reservoir)
    puts.join()
    commits = reservoir._space.next_version
    reservoir.close()
    member.close()
    # Some ten a second, for as long as samples come.
    assert 1 <= commits < 100


def test_samples_that_a_member_retains_no_longer_are_not_asked_for():
    with fb.open("ens.0", "a", rank=0, size=1, retention="last:3") as ch:
        for step in ch.steps(10):
            step.put("x", step.version)
        with Reservoir("ens", batch=4, timeout=0.3) as reservoir:
            assert sorted(sample.number for sample in next(reservoir)) == [7, 8, 9]


def test_an_array_that_a_loop_keeps_stops_no_member(children):
    code = """
    from forebay.ensemble import Member
    with Member("ens", 0, quota="2MiB", segment="256KiB", timeout=20) as member:
        for i in range(60):
            member.put(x=np.full(20_000, i))
    """
    member = children.start(code)
    with Reservoir("ens", members=1, batch=1, timeout=20) as reservoir:
        drawn = []
        for (sample,) in reservoir:
            x = sample["x"]
            drawn.append(int(x[0]))
    member.ok()
    assert sorted(drawn) == list(range(60))


@pytest.mark.parametrize("options", [{"seen": (1, 10**6)}, {"commit_every": 1000}])
def test_a_member_that_waits_for_space_gets_that_of_what_was_seen(children, options):
    code = """
    from forebay.ensemble import Member
    with Member("ens", 0, quota="2MiB", segment="256KiB", timeout=20) as member:
        for i in range(60):
            member.put(x=np.full(20_000, i))
    """
    member = children.start(code)
    with Reservoir("ens", members=1, batch=4, window=4000, timeout=20, **options) as reservoir:
        drawn = {sample.number for batch in reservoir for sample in batch}
    member.ok()
    assert drawn == set(range(60))


def test_a_view_that_is_kept_is_named_where_nothing_comes(children):
    code = """
    from forebay.ensemble import Member
    with Member("ens", 0, quota="2MiB", segment="256KiB", timeout=20) as member:
        for i in range(60):
            member.put(x=np.full(20_000, i))
    """
    wait_until_full("ens.0", children.start(code))
    with Reservoir("ens", members=1, batch=1, policy="fifo", timeout=2) as reservoir:
        kept = next(reservoir)[0].view("x")
        with pytest.raises(fb.errors.TimedOut, match=r"waiting_for_space=ens.0(.|\n)*views of samples"):
            list(reservoir)
        assert kept[0] == 0


def test_texts_and_batches_of_several_shapes():
    with Member("ens", 0) as member:
        member.put(x=np.zeros(3), note="grün")
        member.put(x=np.zeros(4), note="blau")
    with Reservoir("ens", members=1, policy="fifo") as reservoir:
        batch = next(reservoir)
        assert [sample["note"] for sample in batch] == ["grün", "blau"]
        with pytest.raises(fb.errors.VariableMismatch, match="x is not the same"):
            ensemble.stack(batch, "x")


@pytest.mark.parametrize("seen", [2, 3])
def test_no_sample_is_passed_over_for_long_between_two_draws(seen):
    fill(1, 600)
    last: dict[int, int] = {}
    gaps = []
    with Reservoir("ens", members=1, batch=1, window=10, seen=seen) as reservoir:
        for at, (sample,) in enumerate(reservoir):
            if sample.number in last:
                gaps.append(at - last[sample.number])
            last[sample.number] = at
    assert len(gaps) == (seen - 1) * 600 and 15 < max(gaps) <= 4 * 10 + 2


def test_two_trainers_have_parts_that_do_not_overlap():
    put = fill(3, 30, trainers=2)
    parts = []
    for rank in range(2):
        with Reservoir("ens", members=3, rank=rank, size=2, batch=7) as reservoir:
            parts.append(draw(reservoir))
    assert len(parts[0]) + len(parts[1]) == 90 and set(parts[0]) | set(parts[1]) == put
    assert min(len(part) for part in parts) > 20


def test_a_member_is_any_program_that_opens_its_space():
    with fb.open("ens.c-7", "a", rank=0, size=1, readers={"trainer": 1}) as ch:
        for step in ch.steps(3):
            step.put("x", np.arange(4.0))
    # Spaces of other names are none of it.
    for name in ("ens", "ens2.1", "other.1"):
        fb.open(name, "w").close()
    with Reservoir("ens", members=1) as reservoir:
        batch = next(reservoir)
        assert len(batch) == 3 and ensemble.stack(batch, "x").shape == (3, 4) and reservoir.members == ["ens.c-7"]
        assert list(reservoir) == []


def test_every_wait_has_an_end_and_says_who_is_missing():
    with Reservoir("ens", members=2, timeout=0.2) as reservoir, pytest.raises(fb.errors.TimedOut, match="0 of 2"):
        next(reservoir)
    with Member("ens", 1) as member, Reservoir("ens", watermark=5, timeout=0.2) as reservoir:
        member.put(x=1)
        with pytest.raises(fb.errors.TimedOut, match="watermark=5"):
            next(reservoir)
        member.put({f"v{i}": i for i in range(3)})
        assert member.puts == 2


def test_what_makes_no_sense_is_refused():
    for wrong in (
        {"policy": "best"},
        {"when_killed": "x"},
        {"seen": 0},
        {"seen": (3, 2)},
        {"batch": 0},
        {"window": 0},
        {"window": 10, "watermark": 11},
        {"rank": 1},
        {"commit_every": 0},
        {"dead": "?"},
    ):
        with pytest.raises(fb.errors.Usage):
            Reservoir("ens", **wrong)
    for name in ("a.b", "", "a/b", "ü", "x" * 65):
        with pytest.raises(fb.errors.BadName):
            Member("ens", name)
    assert fb.list_spaces() == []


def test_a_member_that_fails_has_not_ended():
    with pytest.raises(RuntimeError), Member("ens", 0) as member:
        member.put(x=np.zeros(100), t=0.0)
        raise RuntimeError
    with Member("ens", 0) as member:
        assert member.puts == 1
        member.put(x=np.ones(100), t=0.0)
    with Reservoir("ens", members=1) as reservoir:
        assert [s.number for s in next(reservoir)] in ([0, 1], [1, 0])


MEMBER = """
import sys, time, numpy as np
from forebay.ensemble import Member
m, n = int(sys.argv[1]), int(sys.argv[2])
log = open(sys.argv[3], "a")
with Member("ens", m, quota="4MiB", segment="256KiB", timeout=60) as member:
    for i in range(member.puts, n):
        member.put(x=np.full(1 + 977 * (i % 7), 1000000 * m + i), i=i)
        print(m, i, file=log, flush=True)
        time.sleep(0.01 * (i % 3))
"""

TRAINER = """
import sys
from forebay.ensemble import Reservoir
log = open(sys.argv[1], "a")
with Reservoir("ens", members=int(sys.argv[2]), batch=5, window=60, seed=4, when_killed=sys.argv[3]) as reservoir:
    for batch in reservoir:
        for s in batch:
            x = s["x"]
            assert (x == x[0]).all() and s.number == x[0] % 1000000 == s["i"], (x, s.number)
            print(x[0] // 1000000, s.number, file=log, flush=True)
print("over")
"""


@pytest.mark.parametrize("when_killed", ["again", "skip"])
def test_killed_members_and_trainers_lose_no_sample(root: Path, when_killed):
    """Both are killed at random and begun again, until all members have ended."""
    chance = random.Random(KILLS + len(when_killed))
    members, samples = 3, 15 * KILLS
    put_log, drawn_log = root / "put.log", root / "drawn.log"

    def start(code: str, *args: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, *map(str, args)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def member(m: int) -> subprocess.Popen[bytes]:
        return start(MEMBER, m, samples, put_log)

    def trainer() -> subprocess.Popen[bytes]:
        return start(TRAINER, drawn_log, members, when_killed)

    running = {m: member(m) for m in range(members)}
    drawing = trainer()
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.4))
            which = chance.randrange(members + 1)
            if which == members:
                drawing.kill()
                drawing.communicate()
                drawing = trainer()
            elif running[which].poll() is None:
                running[which].kill()
                running[which].communicate()
                running[which] = member(which)
        for one in running.values():
            _, wrong = one.communicate(timeout=120)
            assert one.returncode == 0, wrong.decode()
        said, wrong = drawing.communicate(timeout=120)
        assert said == b"over\n", wrong.decode()
    finally:
        for one in [*running.values(), drawing]:
            one.kill()
            one.communicate()
    put = {tuple(map(int, line.split())) for line in put_log.read_text().splitlines()}
    assert put <= {(m, i) for m in range(members) for i in range(samples)}
    drawn = collections.Counter(tuple(map(int, line.split())) for line in drawn_log.read_text().splitlines())
    everything = {(m, i) for m in range(members) for i in range(samples)}
    assert set(drawn) <= everything
    if when_killed == "again":
        assert set(drawn) == everything
    else:
        assert max(drawn.values()) == 1 and len(everything - set(drawn)) <= 5 * KILLS


def test_a_dead_member_is_waited_for_and_named(children):
    code = """
    from forebay.ensemble import Member
    member = Member("ens", sys.argv[1])
    member.put(x=np.full(100, 1000 * int(sys.argv[1])), t=0.0)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    for m in range(2):
        children.start(code, m).wait()
    with Reservoir("ens", members=2, batch=1, timeout=0.3) as reservoir:
        assert len([next(reservoir), next(reservoir)]) == 2
        with pytest.raises(fb.errors.TimedOut, match=r"dead=ens.0, ens.1(.|\n)*start the dead members"):
            next(reservoir)
    with Reservoir("ens", members=2, dead="ended") as reservoir:
        assert len(draw(reservoir)) == 0


def test_many_members_need_no_larger_limit_of_open_files(children):
    for m in range(150):
        with Member("ens", m, quota="1MiB", segment="256KiB") as member:
            member.put(x=m)
    child = children.start(
        """
        import resource
        from forebay.ensemble import Reservoir
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        print(sorted(int(sample["x"]) for batch in Reservoir("ens", members=150) for sample in batch))
        """
    )
    assert child.ok() == f"{list(range(150))}\n"
