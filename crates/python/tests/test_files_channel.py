"""The file-per-object channel: the same interface, so the same results."""

import subprocess
import sys

import forebay as fb
import numpy as np
import pytest
from forebay import errors

CODE = """
a = np.arange(10 * 4.0).reshape(10, 4)
if sys.argv[1] == "w":
    with fb.open("stream", "w", channel="files", timeout=30) as ch:
        ch.attrs["dx"] = 0.5
        for step in ch.steps(3):
            step.put("T", a[5 * ch.rank : 5 * ch.rank + 5] + step.version, shape=a.shape, start=(5 * ch.rank, 0))
            out = step.reserve("U", shape=(2,), start=(ch.rank,), count=(1,))
            out[:] = ch.rank
else:
    with fb.open("stream", channel="files", component="ana", timeout=30) as ch:
        for step in ch.steps():
            assert (step.get("T") == a + step.version).all()
            assert (step["T", 3:7, 1:3] == (a + step.version)[3:7, 1:3]).all()
            assert step.get("U").tolist() == [0, 1]
            assert step.variables["T"].shape == (10, 4)
            print(step.version, ch.attrs["dx"])
"""


def test_two_writers_two_readers(children):
    ana = children.group(CODE, 2, "r")
    sim = children.group(CODE, 2, "w")
    for child in sim:
        child.ok()
    for child in ana:
        assert child.ok().split() == ["0", "0.5", "1", "0.5", "2", "0.5"]


def test_same_errors(root):
    with fb.open("f", "w", channel="files", component="sim") as w, fb.open("f", channel="files", component="ana") as r:
        with pytest.raises(errors.StepState):
            w.put("T", np.zeros(1))
        with pytest.raises(errors.TimedOut):
            next(r.steps(timeout=0.1))
        w.begin_step()
        w.put("T", np.zeros(30_000))
        w.end_step()
        step = next(r.steps())
        with pytest.raises(errors.UnknownVariable):
            step.get("x")
        assert (step.get("T") == 0).all()


def test_dtypes(root):
    with fb.open("f", "w", channel="files", component="sim") as w, fb.open("f", channel="files", component="ana") as r:
        for code in ("?", "i1", "u2", "f2", "c16"):
            w.begin_step()
            w.put("T", np.ones((3, 2), code))
            w.put("s", "text")
            w.end_step()
            step = next(r.steps())
            assert step.get("T").dtype == np.dtype(code) and (step.get("T") == 1).all() and step.text("s") == "text"


def test_cat_reads_it(root):
    with fb.open("f", "w", channel="files", component="sim") as w:
        for step in w.steps(2):
            step.put("T", np.arange(3.0) + step.version)
    for words, expected in [(["T"], "3"), (["--json"], '"T"')]:
        command = [sys.executable, "-m", "forebay", "cat", "f", *words]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        assert expected in said.stdout and said.stderr == ""
