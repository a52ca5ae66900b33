"""One exception class per kind, with the natural Python class, facts and a hint."""

import pickle

import forebay as fb
import numpy as np
import pytest
from forebay import _forebay, errors


def test_classes_are_the_compiled_kinds():
    compiled = {name: (code, exit_code) for name, code, exit_code in _forebay._kinds()}
    assert {k: (c.code, c.exit_code) for k, c in errors.BY_KIND.items()} == compiled
    for kind, cls in errors.BY_KIND.items():
        assert cls.__name__ == kind and issubclass(cls, fb.Error) and getattr(errors, kind) is cls


def test_natural_classes():
    pairs = {
        "Usage": ValueError,
        "UnknownVariable": KeyError,
        "PermissionDenied": PermissionError,
        "TierFull": MemoryError,
        "QuotaFull": MemoryError,
        "TimedOut": TimeoutError,
        "PeerMissing": TimeoutError,
        "ProducerDied": ConnectionError,
        "Io": OSError,
    }
    for kind, natural in pairs.items():
        assert issubclass(errors.BY_KIND[kind], natural)


def test_facts_hint_and_pickling():
    e = errors.TimedOut("it took too long", {"rank": "2"}, "wait longer")
    assert str(e) == "it took too long (rank=2)\n  hint: wait longer"
    again = pickle.loads(pickle.dumps(e))
    assert type(again) is errors.TimedOut and str(again) == str(e) and again.context == {"rank": "2"}
    assert (e.kind, e.code, e.exit_code, e.hint) == ("TimedOut", 60, 7, "wait longer")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"qouta": "1GiB"}, "UnknownKey"),
        ({"quota": "lots"}, "Usage"),
        ({"tier": "tape"}, "Usage"),
        ({"horizon": "never"}, "Usage"),
        ({"retention": "last:0"}, "Usage"),
        ({"channel": "socket"}, "Usage"),
        ({"timeout": -1}, "Usage"),
        ({"timeout": float("nan")}, "Usage"),
        ({"rank": 3, "size": 2}, "Usage"),
    ],
)
def test_bad_options(options, kind, root):
    with pytest.raises(errors.BY_KIND[kind]) as e:
        fb.open("bad", "w", **options)
    assert e.value.hint or e.value.context
    assert not any(root.iterdir())


def test_did_you_mean():
    with pytest.raises(errors.UnknownKey, match="did you mean quota"):
        fb.open("bad", "w", qouta="1GiB")
    with fb.open("near", "w", quota="16MiB") as w:
        w.begin_step()
        w.put("temperature", np.zeros(1))
        w.end_step()
        with fb.open("near") as r, pytest.raises(errors.UnknownVariable, match="did you mean `temperature`"):
            next(r.steps()).get("temperatur")


@pytest.mark.parametrize("bad", [{"rank": "x", "size": 2}, {"readers": [1]}, {"latest": "no"}, {"rank": -1, "size": 2}])
def test_wrong_types(bad):
    with pytest.raises((TypeError, errors.Usage)):
        fb.open("bad", **bad)


def test_mode_and_names(root):
    with pytest.raises(errors.Usage, match="mode"):
        fb.open("x", "r+")
    for name in ("", ".", "..", ".hidden", "n" * 300, "a\0b"):
        with pytest.raises(errors.Error) as e:
            fb.open(name, "w", quota="16MiB")
        assert e.value.kind == "BadName", name
    assert not any(root.iterdir())


def test_a_space_that_does_not_come():
    with pytest.raises(errors.PeerMissing, match="no-writer"):
        fb.open("no-writer", timeout=0.15)


def test_boxes_and_shapes(root):
    with fb.open("box", "w", quota="16MiB") as w:
        w.begin_step()
        with pytest.raises(errors.BoxOutsideShape):
            w.put("T", np.zeros((2, 2)), shape=(3, 3), start=(2, 0))
        with pytest.raises(errors.Error):
            w.put("T", np.zeros((2, 2)), shape=(3,), start=(0,))
        for bad in ({"shape": (-1, 2)}, {"start": (0, 0)}, {"shape": (4, 4)}, {"shape": "ab", "start": 0}):
            with pytest.raises((errors.Error, TypeError)):
                w.put("T", np.zeros((2, 2)), **bad)
        w.put("T", np.zeros((2, 2)), shape=(3, 3), start=(0, 0))
        w.end_step()
        with fb.open("box") as r:
            step = next(r.steps())
            with pytest.raises(errors.BoxNotCovered):
                step.get("T")
            assert step.get("T", np.s_[:2, :2]).shape == (2, 2)


def test_too_large_for_the_quota():
    with fb.open("small", "w", quota="4MiB", segment="1MiB", timeout=0.3) as w:
        w.begin_step()
        with pytest.raises(errors.VersionTooLarge):
            for i in range(20):
                w.put(f"T{i}", np.zeros(1 << 17))
        w.abort_step()


def test_negative_numbers_are_named(tmp_path):
    with fb.open("negative", "w", quota="16MiB") as w, fb.open("negative", component="ana") as r:
        checkpoint = fb.Checkpoint(tmp_path / "ck", ["file"])
        wrong = [w.begin_step, lambda v: w.begin_step(version=v), w.steps, r.steps, r.wait, r.open_version]
        for call in wrong + [checkpoint.save, checkpoint.restore]:
            with pytest.raises(errors.Usage, match="-1 is not a version") as e:
                call(-1)
            assert "from 0" in e.value.hint
            with pytest.raises(TypeError):
                call("three")


def test_a_reader_group_without_ranks():
    with pytest.raises(errors.Usage, match='reader group "ana" has 0 ranks') as e:
        fb.open("none", "w", readers={"ana": 0})
    assert "at least one rank" in e.value.hint


def test_a_dtype_that_is_not_kept_names_those_that_are():
    with fb.open("dtype", "w", quota="16MiB") as w:
        w.begin_step()
        for call in (lambda: w.put("T", np.zeros(2, "longdouble")), lambda: w.reserve("T", 2, dtype="longdouble")):
            with pytest.raises(errors.Error) as e:
                call()
            assert "float64" in e.value.hint and "complex128" in e.value.hint and "astype" in e.value.hint
            assert "16 bytes" not in e.value.hint
        w.abort_step()


def test_options_that_differ():
    with fb.open("opt", "w", rank=0, size=2, quota="16MiB", horizon="none") as first:
        with pytest.raises(errors.OptionMismatch):
            fb.open("opt", "w", rank=1, size=2, horizon="epoch")
        with pytest.raises(errors.GroupMismatch):
            fb.open("opt", "w", rank=1, size=3)
        # Between its steps the first handle would be closed.
        first.begin_step()
        with pytest.raises(errors.NameInUse):
            fb.open("opt", "w", rank=0, size=2, timeout=0.2)
        first.abort_step()


def test_unknown_environment(monkeypatch):
    monkeypatch.setenv("FOREBAY_TIMEOUT", "soon")
    with pytest.raises(errors.UnknownEnvironment):
        fb.open("env", "w")


def test_foreign_environment_is_said_once(children):
    # In a process of its own: this one may have said it.
    child = children.start(
        """
        for name in ["foreign-a", "foreign-b"]:
            fb.open(name, "w").close()
        """,
        FOREBAY_ROOT="/opt/forebay",
    )
    status, _, said = child.wait()
    assert status == 0 and said.count("FOREBAY_ROOT") == 1, said


def test_two_launchers_that_number_a_process_differently(monkeypatch):
    monkeypatch.setenv("FOREBAY_RUN", "/tmp/no-run")
    for name, value in [("FOREBAY_RANK", 0), ("FOREBAY_SIZE", 1)]:
        monkeypatch.setenv(name, str(value))
    for name, value in [("OMPI_COMM_WORLD_RANK", 2), ("OMPI_COMM_WORLD_SIZE", 4)]:
        monkeypatch.setenv(name, str(value))
    with pytest.raises(errors.UnknownEnvironment, match="FOREBAY_SIZE=1.*OMPI_COMM_WORLD_SIZE=4"):
        fb.open("both", "w")
    with fb.open("both", "w", rank=0, size=1):  # what the program says comes first
        pass


def test_damage_is_found(root):
    with fb.open("hurt", "w", quota="16MiB", retention="forever") as w:
        w.begin_step()
        w.put("T", np.full(1000, 1.25))
        w.end_step()
    pattern = np.full(8, 1.25).tobytes()
    for path in root.rglob("*"):
        if path.is_file() and pattern in (data := path.read_bytes()):
            at = data.index(pattern)
            with open(path, "r+b") as f:
                f.seek(at)
                f.write(b"\x01")
    with fb.open("hurt", observer=True) as r:
        step = r.open_version(0)
        with pytest.raises(errors.Damaged):
            step.get("T")
        with pytest.raises(errors.Damaged):
            step.view("T")
    assert len(fb.verify("hurt")["damaged"]) == 1
