"""Several processes: ranks, redistribution, disagreement, death, waiting, signals, fork."""

import os
import signal
import time

import forebay as fb
import numpy as np
import pytest
from forebay import errors

WRITER = """
with fb.open("stream", "w", quota="64MiB", component="sim", timeout=30) as ch:
    rows = 12 // ch.size
    for step in ch.steps(int(sys.argv[1])):
        T = np.full((rows, 5), ch.rank + 100.0 * step.version)
        step.put("T", T, shape=(12, 5), start=(rows * ch.rank, 0))
"""

READER = """
with fb.open("stream", component="ana", timeout=30) as ch:
    for step in ch.steps():
        columns = np.array_split(np.arange(5), ch.size)[ch.rank]
        box = step.get("T", start=(0, columns[0]), count=(12, len(columns)))
        print(step.version, box.shape[1], box.sum())
"""


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (2, 3), (4, 2)])
def test_redistribution(children, writers, readers, root):
    steps = 4
    ana = children.group(READER, readers)
    sim = children.group(WRITER, writers, steps)
    for child in sim:
        child.ok()
    total = np.zeros(steps)
    for child in ana:
        lines = [line.split() for line in child.ok().splitlines()]
        assert [int(line[0]) for line in lines] == list(range(steps))
        total += [float(line[2]) for line in lines]
    rows = 12 // writers
    expected = [sum(rows * 5 * (rank + 100.0 * v) for rank in range(writers)) for v in range(steps)]
    assert total.tolist() == expected
    assert fb.list_spaces() == [] and not [p for p in root.rglob("*") if p.is_file()]


def test_several_reader_groups_each_see_everything(children):
    sim = children.start(
        """
        with fb.open("many", "w", quota="32MiB", readers={"a": 1, "b": 1}, timeout=30) as ch:
            for step in ch.steps(20):
                step.put("T", np.full(20_000, float(step.version)))
        """
    )
    read = """
    with fb.open("many", component=sys.argv[1], timeout=30) as ch:
        for step in ch.steps():
            T = step.get("T")
            assert T.min() == T.max() == step.version
            time.sleep(float(sys.argv[2]))
        print(step.version)
    """
    slow, fast = children.start(read, "a", 0.01), children.start(read, "b", 0)
    sim.ok()
    assert slow.ok().split() == fast.ok().split() == ["19"]


def test_dtype_that_differs_between_ranks(children):
    code = """
    dtype = ["f8", "f4"][int(os.environ["FOREBAY_RANK"])]
    try:
        with fb.open("differ", "w", quota="16MiB", timeout=20) as ch:
            for step in ch.steps(1):
                step.put("T", np.zeros(4, dtype), shape=(8,), start=(4 * ch.rank,))
            with fb.open("differ", observer=True, timeout=5) as r:
                r.wait(0, timeout=5)
                r.open_version(0).get("T")
            print("fine")
    except fb.errors.VariableMismatch as e:
        print("mismatch")
    except (fb.errors.ProducerDied, fb.errors.TimedOut) as e:
        print("other rank failed")
    """
    said = [child.ok().strip() for child in children.group(code, 2)]
    assert "mismatch" in said and "fine" not in said


def test_a_killed_writer_is_named(children):
    victim, other = children.group(
        """
        ch = fb.open("deadly", "w", quota="16MiB", component="sim", timeout=30)
        ch.begin_step(); ch.put("T", np.full(5, 1.0), shape=(10,), start=(5 * ch.rank,)); ch.end_step()
        ch.begin_step(); ch.put("T", np.full(5, 2.0), shape=(10,), start=(5 * ch.rank,))
        print("half", flush=True)
        if ch.rank == 1:
            ch.end_step()
        time.sleep(60)
        """,
        2,
    )
    with fb.open("deadly", component="ana", timeout=30) as r:
        assert next(r.steps()).get("T").tolist() == [1.0] * 10
        assert victim.line() == "half" and other.line() == "half"
        victim.signal(signal.SIGKILL)
        with pytest.raises(ConnectionError) as e:
            for _ in r.steps(timeout=30):
                pytest.fail("a half version was seen")
    assert isinstance(e.value, errors.ProducerDied)
    text = str(e.value)
    assert str(victim.pid) in text and "rank" in text and "0" in text
    assert e.value.exit_code == 7


def test_a_waiting_reader_lets_other_threads_run_and_stops_at_ctrl_c(children):
    waiting = children.start(
        """
        import threading
        w = fb.open("idle", "w", quota="16MiB", component="sim")
        r = fb.open("idle", component="ana")
        ticks = 0
        def tick():
            global ticks
            while True:
                ticks += 1
                time.sleep(0.001)
        threading.Thread(target=tick, daemon=True).start()
        print("waiting", flush=True)
        try:
            r.begin_step(timeout=60)
        except KeyboardInterrupt:
            print("interrupted", ticks, flush=True)
            w.close(); r.close()
        """
    )
    assert waiting.line() == "waiting"
    time.sleep(0.5)
    waiting.signal(signal.SIGINT)
    word, ticks = waiting.ok().split()
    assert word == "interrupted" and int(ticks) > 5


def test_ctrl_c_while_waiting_for_a_space_and_for_free_space(children):
    opening = children.start(
        """
        print("waiting", flush=True)
        try:
            fb.open("never", timeout=60)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    full = children.start(
        """
        w = fb.open("full", "w", quota="4MiB", segment="1MiB", timeout=60, readers={"ana": 1})
        print("waiting", flush=True)
        try:
            for step in w.steps():
                step.put("T", np.zeros(50_000))
                step.put("small", np.zeros(100))
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    for child in (opening, full):
        assert child.line() == "waiting"
    time.sleep(1)
    for child in (opening, full):
        child.signal(signal.SIGINT)
    for child in (opening, full):
        assert child.ok().strip() == "interrupted"


def test_writer_and_reader_threads_of_one_process(children):
    """A writer that waits for free space must not keep the reader thread from freeing it."""
    child = children.start(
        """
        import threading
        w = fb.open("self", "w", quota="4MiB", segment="1MiB", component="sim", timeout=20)
        r = fb.open("self", component="ana", timeout=20)
        def write():
            with w:
                for step in w.steps(200):
                    for i in range(40):
                        step.put(f"v{i}", np.full(256, step.version))
        thread = threading.Thread(target=write)
        thread.start()
        n = 0
        for step in r.steps():
            for i in range(40):
                assert step.get(f"v{i}")[0] == step.version
            n += 1
        thread.join()
        r.close()
        print(n)
        """
    )
    assert child.ok().split() == ["200"]


def test_large_copies_release_the_gil(children):
    child = children.start(
        """
        import threading
        w = fb.open("big", "w", quota="512MiB", component="sim")
        a = np.zeros(16 << 20)
        running, ticks = True, 0
        def tick():
            global ticks
            while running:
                ticks += 1
                time.sleep(0)
        sys.setswitchinterval(1000)  # no thread is made to give the GIL up
        w.begin_step()
        thread = threading.Thread(target=tick)
        thread.start()
        before = ticks
        w.put("T", a)
        during = ticks - before
        running = False
        thread.join()
        w.abort_step()
        print(during)
        """
    )
    assert int(child.ok()) > 0


def test_a_forked_child_is_refused(children):
    child = children.start(
        """
        w = fb.open("fork", "w", quota="16MiB", component="sim")
        r = fb.open("fork", component="ana")
        w.begin_step(); w.put("T", np.zeros(10_000)); w.end_step()
        r.begin_step()
        view = r.view("T")
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 0
            for use in (w.begin_step, lambda: r.get("T"), r.end_step, r.latest if False else r.end_step):
                try:
                    use()
                    status = 1
                except fb.errors.ForkedHandle as e:
                    if "fork" not in e.hint:
                        status = 2
            del view, w, r
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert view.sum() == 0
        r.end_step()
        w.begin_step(); w.put("T", np.ones(3)); w.end_step()
        r.begin_step()
        print(r.get("T").sum())
        r.close(); w.close()
        """
    )
    assert child.ok().split() == ["3.0"]


@pytest.mark.parametrize("state", ["idle", "in a step"])
def test_a_forked_child_opens_what_its_parent_has_open(children, state):
    """Its list of open handles begins empty: it neither closes nor names a handle of its parent."""
    child = children.start(
        """
        w = fb.open("fork", "w", quota="16MiB", component="sim")
        w.begin_step(); w.put("T", np.full(3, 7.0)); w.end_step()
        r = fb.open("fork", component="ana")
        if sys.argv[1] == "in a step":
            r.begin_step()
        reads, writes = os.pipe()
        ready, says = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                fb.open("fork", component="ana", timeout=5)
            except fb.errors.NameInUse as e:
                status = 2 if "this process" in str(e) or str(os.getppid()) not in str(e) else 0
            os.write(says, b"x")
            os.read(reads, 1)
            with fb.open("fork", component="ana", timeout=5) as own:
                own.begin_step()
                if own.get("T").tolist() != [7.0] * 3:
                    status = 3
            os._exit(status)
        os.read(ready, 1)
        # The handle of the parent is as it was.
        if sys.argv[1] == "idle":
            r.begin_step()
        assert r.get("T").tolist() == [7.0] * 3
        r.close()
        os.write(writes, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        w.close()
        print("done")
        """,
        state,
    )
    assert child.ok().split() == ["done"]


def test_a_worker_of_multiprocessing_opens_what_its_parent_had_open(children):
    child = children.start(
        """
        import multiprocessing

        def read(version):
            with fb.open("fork", component="ana", timeout=5, finished=True) as own:
                return own.open_version(version).get("T").tolist()

        w = fb.open("fork", "w", quota="16MiB", component="sim", retention="forever")
        for step in w.steps(2):
            step.put("T", np.full(3, step.version))
        r = fb.open("fork", component="ana")
        r.begin_step()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            r.close()
            print(pool.map(read, range(2), chunksize=2))
        w.close()
        """
    )
    assert child.ok().strip() == "[[0, 0, 0], [1, 1, 1]]"


def test_restart_behind_the_stream(children):
    """A group that starts again three steps back goes on without a reader noticing."""
    code = """
    with fb.open("again", "a", quota="16MiB", retention="forever", timeout=30) as ch:
        for version in range(int(sys.argv[1]), int(sys.argv[2])):
            ch.begin_step(version)
            if ch.step.skipped:
                print("skipped", version)
            ch.put("T", np.full(3, version), shape=(6,), start=(3 * ch.rank,))
            ch.end_step()
        print("done", flush=True)
        if sys.argv[3] == "die":
            time.sleep(60)
    """
    dying = children.group(code, 2, 0, 6, "die")
    for child in dying:
        assert child.line() == "done"
    for child in dying:
        child.signal(signal.SIGKILL)
        child.wait()
    for child in children.group(code, 2, 3, 9, "live"):
        assert child.ok().split() == ["skipped", "3", "skipped", "4", "skipped", "5", "done"]
    with fb.open("again", observer=True) as r:
        assert r.versions() == range(9)
        assert [int(r.open_version(v).get("T").sum()) for v in r.versions()] == [6 * v for v in range(9)]


def test_every_way_out_leaves_nothing(children, root):
    """Clean end, exception, sys.exit and kill: afterwards clean(dead_only=True) leaves an empty root."""
    code = """
    w = fb.open(f"way-{sys.argv[1]}", "w", quota="16MiB")
    w.begin_step()
    w.put("T", np.zeros(10))
    match sys.argv[1]:
        case "clean": w.end_step(); w.close()
        case "forgotten": w.end_step()
        case "exception": raise RuntimeError("on purpose")
        case "exit": sys.exit(0)
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "abrt": os.abort()
    """
    ways = ["clean", "forgotten", "exception", "exit", "kill", "abrt"]
    for child in [children.start(code, way) for way in ways]:
        child.wait()
    states = {s["name"]: s["state"] for s in fb.list_spaces()}
    assert states["way-clean"] == states["way-forgotten"] == "finished"
    assert "finished" not in (states["way-exception"], states["way-exit"], states["way-kill"], states["way-abrt"])
    fb.clean()
    assert fb.list_spaces() == []
    assert [p for p in root.rglob("*") if p.is_file()] == []


def test_multiprocessing_spawn(children):
    """A handle does not travel to another process; a name does."""
    with fb.open("spawn", "w", quota="16MiB") as w:
        with pytest.raises(TypeError):
            import pickle

            pickle.dumps(w)
        w.begin_step()
        w.put("T", np.arange(4))
        w.end_step()
        child = children.start("print(next(fb.open('spawn', observer=True).steps()).get('T').sum())")
        assert child.ok().split() == ["6"]
    assert os.environ["FOREBAY_DIR"]


@pytest.mark.parametrize("channel", ["space", "files"])
def test_close_in_a_forked_child_ends_nothing(children, channel):
    """A step of the parent is open: the error says that the handle is not the child's, not that the step is aborted."""
    child = children.start(
        """
        w = fb.open("fork", "w", component="sim", channel=sys.argv[1])
        w.begin_step(); w.put("T", np.full(3, 7.0))
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                w.close()
            except fb.errors.ForkedHandle:
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        w.end_step()
        w.close()
        with fb.open("fork", component="ana", finished=True, channel=sys.argv[1]) as r:
            for step in r.steps():
                print(step["T"].sum())
        """,
        channel,
    )
    assert child.ok().split() == ["21.0"]


@pytest.mark.parametrize("tier", ["dram", "file"])
def test_writers_that_are_killed_in_a_step_again_and_again_fill_nothing(children, tier):
    for start in range(8):
        child = children.start(
            """
            with fb.open("s", "a", tier=sys.argv[1], quota="64MiB", retention="last:2", timeout=10) as w:
                for version in range(2 if sys.argv[2] == "0" else 0):
                    w.begin_step()
                    w.put("x", np.full(8 << 20, version, "u1"))
                    w.end_step()
                w.begin_step()
                # In more than one segment.
                for name in ("x", "y"):
                    w.put(name, np.full(6 << 20, 99, "u1"))
                print("put", flush=True)
                time.sleep(60)
            """,
            tier,
            start,
        )
        line = child.line()
        child.signal(signal.SIGKILL)
        assert line == "put", (start, line, child.wait())
        child.wait()
    with fb.open("s", timeout=5, finished=True) as reader:
        for version in range(2):
            reader.begin_step()
            assert (reader.get("x") == version).all()
            reader.end_step()
