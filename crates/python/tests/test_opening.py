"""What becomes of a space that is opened again: the modes of a writer, readers of a later run, notebook cells.

The whole table is in docs/src/guide/opening.md and is carried out in Rust; here is what Python adds and shows of it.
"""

import signal
import warnings

import numpy as np
import pytest

import forebay as fb

WRITE = """
with fb.open("heat", "w", quota="16MiB", retention="forever") as ch:
    for step in ch.steps(2):
        step.put("T", np.full(3, step.version))
print("done", flush=True)
"""

DIE = """
ch = fb.open("heat", "w", quota="16MiB", retention="forever")
for version in range(2):
    ch.begin_step()
    ch.put("T", np.full(3, version))
    ch.end_step()
print("done", flush=True)
time.sleep(60)
"""


def die(children):
    child = children.start(DIE)
    assert child.line() == "done"
    child.signal(signal.SIGKILL)
    child.wait()


def write(mode, count=1, **options):
    with fb.open("heat", mode, quota="16MiB", retention="forever", **options) as ch:
        first = ch.resume()
        for step in ch.steps(count):
            step.put("T", np.full(3, step.version))
    return first


def versions():
    with fb.open("heat", observer=True) as r:
        return r.versions()


FAIL = """
ch = fb.open("heat", "w", quota="16MiB", retention="forever")
ch.begin_step()
ch.put("T", np.zeros(3))
ch.end_step()
raise RuntimeError("between two steps, without with")
"""


def test_a_program_that_fails_between_steps_leaves_a_dead_space(children):
    child = children.start(FAIL)
    status, _, err = child.wait()
    assert status == 1 and "between two steps" in err
    with pytest.raises(fb.errors.NameInUse, match="replace=True"):
        write("w")
    with fb.open("heat", finished=True, timeout=10) as r:
        assert r.begin_step()
        r.end_step()
        with pytest.raises(fb.errors.ProducerDied):
            r.begin_step()


def test_a_second_run_starts_over_goes_on_or_is_refused(children):
    assert children.start(WRITE).ok() == "done\n"
    with pytest.raises(fb.errors.NameInUse, match='mode="w" to replace it, or with mode="a"'):
        write("x")
    assert versions() == range(2)
    assert write("a") == 2
    assert versions() == range(3)
    assert write("w") == 0
    assert versions() == range(1)


def test_what_writers_that_died_acknowledged_is_erased_on_request_only(children):
    die(children)
    with pytest.raises(fb.errors.NameInUse, match='mode="a".*replace=True') as caught:
        write("w")
    assert caught.value.context["unread"] == "versions 0 to 1"
    assert versions() == range(2)
    assert write("a") == 2
    die_again = children.start(DIE.replace('"w"', '"a"'))
    assert die_again.line() == "done"
    die_again.signal(signal.SIGKILL)
    die_again.wait()
    assert write("w", replace=True) == 0
    assert versions() == range(1)


def test_what_was_read_of_writers_that_died_may_go(children):
    die(children)
    with fb.open("heat", component="viz", finished=True) as r:
        for _ in range(2):
            r.begin_step()
            r.end_step()
    assert write("w") == 0


def test_replace_goes_with_mode_w():
    with pytest.raises(fb.errors.Usage, match='use replace with mode="w"'):
        fb.open("heat", "a", replace=True)
    with pytest.raises(fb.errors.Usage, match='"r", "w", "a" or "x"'):
        fb.open("heat", "w+")


def test_a_reader_that_is_first_in_a_run_does_not_read_the_run_before(children):
    assert children.start(WRITE).ok() == "done\n"
    code = """
        with fb.open("heat", component="viz") as r:
            try:
                next(iter(r.steps(timeout=0.2)))
            except fb.errors.TimedOut as e:
                assert "finished=True" in str(e), e
            else:
                raise SystemExit("it read what another run wrote")
            # What is there can be looked at, whichever run wrote it.
            assert r.versions() == range(2)
            assert r.open_version(1).get("T").tolist() == [1, 1, 1]
    """
    children.start(code).ok()
    with fb.open("heat", component="viz", finished=True) as r:
        assert [step.version for step in r.steps(2)] == [0, 1]


def test_a_waiting_reader_says_so_once_and_gets_what_its_run_writes(children):
    assert children.start(WRITE).ok() == "done\n"
    reader = children.start(
        """
        with fb.open("heat", component="viz") as r:
            print("opened", flush=True)
            for step in r.steps(1, timeout=30):
                print(step.version, step.get("T").tolist(), flush=True)
        """
    )
    assert reader.line() == "opened"
    assert reader.process.stderr is not None
    said = reader.process.stderr.readline()
    assert "had finished before this reader came" in said and "finished=true" in said
    assert children.start(WRITE.replace("step.version)", "step.version + 7)")).ok() == "done\n"
    assert reader.line() == "0 [7, 7, 7]"
    assert reader.wait() == (0, "", "")


def test_a_reader_takes_what_its_own_run_finished(children, monkeypatch):
    monkeypatch.setenv("FOREBAY_RUN", "/runs/one")
    assert children.start(WRITE).ok() == "done\n"
    with fb.open("heat", component="viz") as r:
        assert [step.version for step in r.steps(2)] == [0, 1]


def test_a_cell_that_opens_a_name_can_be_run_again():
    for _ in range(3):
        w = fb.open("cell", "w", quota="16MiB")
        w.begin_step()
        w.put("T", np.arange(3))
        w.end_step()
    former = w
    w = fb.open("cell", "w", quota="16MiB")
    assert former.closed and not w.closed
    w.begin_step()
    w.put("T", np.arange(3))
    w.end_step()
    for _ in range(3):
        r = fb.open("cell")
        assert r.begin_step() == fb.StepStatus.OK
        assert r.get("T").tolist() == [0, 1, 2]
        r.end_step()
    # Another component, and one that only looks, are no second handles of it.
    other, looking = fb.open("cell", component="other"), fb.open("cell", observer=True)
    assert not r.closed
    for handle in (other, looking, r, w):
        handle.close()


def test_a_handle_with_an_open_step_is_named():
    w = fb.open("cell", "w", quota="16MiB")
    w.begin_step()
    with pytest.raises(fb.errors.NameInUse, match="writer rank 0 of .* step 0 open"):
        fb.open("cell", "w", quota="16MiB")
    assert not w.closed
    w.put("T", np.arange(3))
    w.end_step()
    r = fb.open("cell")
    assert r.begin_step() == fb.StepStatus.OK
    with pytest.raises(fb.errors.NameInUse, match="reader rank 0 of .* step 0 open"):
        fb.open("cell")
    r.end_step()
    fb.open("cell").close()
    w.close()


def test_a_view_that_is_held_is_named_by_who_would_replace_its_space():
    with fb.open("cell", "w", quota="16MiB", retention="forever") as w:
        for step in w.steps(1):
            step.put("T", np.arange(10000))
    r = fb.open("cell")
    r.begin_step()
    view = r.view("T")
    r.end_step()
    with pytest.raises(fb.errors.NameInUse, match="holds version 0"):
        fb.open("cell", "w", quota="16MiB", retention="forever")
    assert view[9999] == 9999
    del view
    with fb.open("cell", "w", quota="16MiB", retention="forever") as w:
        assert w.next_version == 0
    r.close()


def test_views_outlive_the_reader_that_a_second_open_closes():
    """A cell that keeps a view in a variable can be run again: the view holds its version, as any other."""
    options = {"quota": "4MiB", "segment": "1MiB", "when_full": "drop_oldest", "component": "sim", "timeout": 0.5}
    w = fb.open("cell", "w", **options)

    def write(count):
        for step in w.steps(count):
            step.put("T", np.full(50_000, float(step.version)))

    write(1)
    first = fb.open("cell")
    assert first.begin_step() == fb.StepStatus.OK
    view, paged = first.view("T"), first.array("T", budget="1MiB")
    first.end_step()
    again = fb.open("cell")
    assert first.closed and not again.closed
    with pytest.raises(fb.errors.Closed):
        first.begin_step()
    # The memory of what is held is not written again, however full the space is.
    with pytest.raises(fb.errors.QuotaFull, match="a view of version 0"):
        write(60)
    w.abort_step()
    assert (view == 0.0).all() and (np.asarray(paged[:]) == 0.0).all()
    del view
    paged.close()
    write(60)
    assert again.versions().start > 1
    # Nor is it unmapped with the space.
    assert again.begin_step() == fb.StepStatus.OK
    view, version = again.view("T"), again.version
    again.end_step()
    third = fb.open("cell")
    assert again.closed
    third.close()
    w.close()
    fb.clean("cell")
    assert (view == float(version)).all()


def test_a_full_space_that_is_to_fail_fails_at_once():
    """Its error has no `waited_s`, which a call gets that was tried again."""
    w = fb.open("q", "w", quota="1MiB", when_full="error", timeout=600)
    with pytest.raises(fb.errors.QuotaFull) as failed:
        for _ in range(100):
            w.begin_step()
            w.put("T", np.zeros(20_000))
            w.end_step()
    assert "waited_s" not in failed.value.context
    w.abort_step()
    w.close()


def test_a_default_that_the_program_says_counts(children, monkeypatch):
    die(children)
    monkeypatch.setenv("FOREBAY_CHANNEL_HEAT", '{"replace": true}')
    with pytest.raises(fb.errors.NameInUse):
        fb.open("heat", "w", replace=False)
    with fb.open("heat", observer=True) as r:
        assert len(r.versions()) == 2
    monkeypatch.setenv("FOREBAY_READERS", "z:1")
    with fb.open("other", "w", readers={}):
        assert fb.inspect("other")["readers"] == []


def test_a_writer_that_is_said_to_observe_is_one_of_its_group(monkeypatch):
    monkeypatch.setenv("FOREBAY_RANK", "1")
    monkeypatch.setenv("FOREBAY_SIZE", "2")
    with fb.open("x", "w", observer=True) as w:
        assert (w.rank, w.size) == (1, 2)


def test_a_warning_that_is_an_error_loses_no_step():
    """`-W error` turns what is said of dropped versions into an exception; the step behind them comes all the same."""

    def reader(name: str) -> fb.Reader:
        with fb.open(name, "w", retention="last:3") as w:
            r = fb.open(name, timeout=5)
            for k in range(8):
                w.begin_step()
                w.put("T", float(k))
                w.end_step()
        return r

    with warnings.catch_warnings():
        warnings.simplefilter("error", fb.MissedVersions)
        with reader("a") as r:
            expected, steps = list(r), r.steps()
            with pytest.raises(fb.MissedVersions):
                next(steps)
            assert [step.version for step in steps] == expected != []
        with reader("b") as r:
            with pytest.raises(fb.MissedVersions):
                r.begin_step()
            found = []
            while r.begin_step():
                found.append(r.version)
                r.end_step()
            assert found == expected


def test_no_signal_handler_runs_while_the_interface_of_numpy_is_looked_up(children):
    """Python code does that, and the `numpy` crate panics where it raises; handlers run in the main thread alone."""
    out = children.start("""
        import threading
        looked_up = []

        class Version(np.lib.NumpyVersion):
            def __init__(self, *args):
                looked_up.append(threading.get_ident())
                super().__init__(*args)

        np.lib.NumpyVersion = Version
        with fb.open("first", "w", quota="16MiB") as w:
            w.begin_step()
            w.put("x", np.zeros(3))
            w.end_step()
        print(len(looked_up), threading.main_thread().ident in looked_up)
    """).ok()
    assert out.split() == ["1", "False"]
