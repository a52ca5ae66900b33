"""Reader groups that keep a cursor: reopened, killed, away while versions go, left for good."""

import signal
import warnings
from pathlib import Path

import forebay as fb
import numpy as np
import pytest
from forebay import errors

SIZE = 20_000


def put(w, versions):
    for version in versions:
        w.begin_step()
        try:
            w.put("T", np.full(SIZE, version))
            w.end_step()
        except BaseException:
            w.abort_step()
            raise


def declares(name, **options):
    return fb.open(name, "w", quota="4MiB", component="sim", readers={"viz": 1}, timeout=0.5, **options)


def read(r, versions):
    for version in versions:
        assert r.begin_step(timeout=10)
        assert r.version == version and (r.get("T") == version).all()
        assert r.missed == 0 and r.step.missed == 0
        r.end_step()


@pytest.mark.parametrize("kind", [{}, {"channel": "files"}], ids=["space", "files"])
def test_a_reopened_reader_goes_on_where_it_stopped(kind):
    with declares("again", **kind) as w:
        put(w, range(3))
        for part in (range(0, 2), range(2, 3)):
            with fb.open("again", component="viz", **kind) as r:
                read(r, part)
        with pytest.raises(errors.QuotaFull, match="reader group viz: rank 0 is absent") as full:
            put(w, range(3, 1000))
        assert "forebay clean --readers viz" in full.value.hint
        with fb.open("again", component="viz", **kind) as r:
            read(r, range(3, w.next_version))


def test_a_reader_of_files_goes_on_after_the_writers_have_ended(children):
    """In processes and runs of their own: by its cursor alone."""
    writer = """
        with fb.open("ended", "w", component="sim", channel="files", readers={"viz": 1}) as w:
            for version in range(3):
                w.begin_step()
                w.put("T", np.array([version]))
                w.end_step()
    """
    reader = """
        with fb.open("ended", component="viz", channel="files", %s) as r:
            assert r.begin_step(timeout=10)
            print(r.version, r.missed)
            r.end_step()
    """
    texts = [writer, reader % "finished=True", reader % "timeout=10", reader % "timeout=10"]
    said = [children.start(text, FOREBAY_RUN=f"/nowhere/run-{i}").ok() for i, text in enumerate(texts)]
    assert said[1:] == ["0 0\n", "1 0\n", "2 0\n"]


def test_a_step_that_was_not_ended_is_given_again():
    with declares("twice") as w:
        put(w, range(2))
        with fb.open("twice", group="viz") as r:
            r.begin_step()
        with fb.open("twice", group="viz") as r:
            read(r, range(2))


def test_a_killed_reader_goes_on_where_it_stopped(children):
    with declares("killed") as w:
        put(w, range(4))
        child = children.start(
            """
            r = fb.open("killed", group="viz")
            for version in (0, 1):
                r.begin_step()
                r.end_step()
            r.begin_step()
            os.kill(os.getpid(), 9)
            """
        )
        assert child.wait()[0] == -signal.SIGKILL
        with fb.open("killed", group="viz") as r:
            read(r, range(2, 4))


def test_what_went_without_a_group_is_told():
    with declares("dropped", absent="drop") as w:
        put(w, range(2))
        with fb.open("dropped", component="viz") as r:
            read(r, range(2))
        put(w, range(2, 100))
        with fb.open("dropped", component="viz") as r:
            first = r.versions().start
            assert first > 2
            with pytest.warns(fb.MissedVersions, match=f"{first - 2} versions before version {first}"):
                step = next(r.steps())
            assert step.missed == first - 2 == r.missed and r.stats()["dropped"] == first - 2
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert [step.missed for step in r.steps(3)] == [0, 0, 0]


def test_the_policy_error_stops_the_writer():
    with declares("strict", absent="error") as w:
        put(w, range(2))
        with fb.open("strict", component="viz") as r:
            read(r, range(1))
        with pytest.raises(errors.PeerMissing, match="reader group viz"):
            w.begin_step()
        with fb.open("strict", component="viz") as r:
            read(r, range(1, 2))
            put(w, range(2, 3))


def test_leave_ends_the_group_for_good():
    with declares("left") as w:
        put(w, range(3))
        r = fb.open("left", component="viz")
        read(r, range(2))
        r.leave()
        assert r.closed
        r.leave()
        put(w, range(3, 100))
        with fb.open("left", group="viz") as r:
            oldest = r.versions().start
            assert oldest > 3
            read(r, range(oldest, 100))


def test_a_closed_reader_cannot_leave():
    with declares("closed") as w:
        put(w, range(3))
        r = fb.open("closed", component="viz")
        read(r, range(1))
        r.close()
        # Its cursor is kept, and a call that did nothing would hide that.
        with pytest.raises(errors.Closed, match="forebay clean --readers"):
            r.leave()


def test_leave_waits_for_a_lock_as_long_as_the_timeout_says(children):
    with declares("busy") as w:
        put(w, range(1))
        r = fb.open("busy", component="viz", timeout=30)
        read(r, range(1))
        holder = children.start(
            """
            import fcntl
            with open(sys.argv[1], "r+b") as members:
                # The lock that each member takes to come and to go.
                fcntl.lockf(members, fcntl.LOCK_EX, 1, (1 << 40) + (1 << 20))
                print("held", flush=True)
                time.sleep(1)
            """,
            Path(r.path) / "members",
        )
        assert holder.line() == "held"
        r.leave()
        holder.ok()
        # Nothing is kept for the group.
        put(w, range(1, 100))


def test_who_keeps_no_cursor_is_told():
    with pytest.raises(errors.NotPossibleHere):
        fb.open("files", channel="files", group="viz")
    with pytest.raises(errors.Usage):
        fb.open("space", observer=True, group="viz")
