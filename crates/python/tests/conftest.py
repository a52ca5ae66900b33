"""What the tests share: a root for spaces that goes away, and child processes that do.

Every test gets its own FOREBAY_DIR in memory. Children run Python code given as text, see the same root, and are
killed at the end of the test if they still live; a child that fails shows both its streams.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

CHILD_SECONDS_MAX = 60
PRELUDE = """
import os, sys, time, signal
import numpy as np
import forebay as fb
"""


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh FOREBAY_DIR; no other FOREBAY_* variable and no launcher's rank gets through."""
    for name in list(os.environ):
        if name.startswith(("FOREBAY_", "SLURM_", "FLUX_", "OMPI_", "PMI_", "PMIX_")):
            monkeypatch.delenv(name)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="forebay-test-", dir=base))
    monkeypatch.setenv("FOREBAY_DIR", str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Child:
    """One Python process."""

    def __init__(self, code: str, env: dict[str, str], args: tuple[str, ...]) -> None:
        text = PRELUDE + textwrap.dedent(code)
        self.process = subprocess.Popen(
            [sys.executable, "-c", text, *args],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line of stdout; waits for it."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=CHILD_SECONDS_MAX)
        return self.process.returncode, out, err

    def ok(self) -> str:
        """Waits for success; the rest of stdout."""
        status, out, err = self.wait()
        assert status == 0, f"exit {status}\n--- stdout\n{out}\n--- stderr\n{err}"
        return out


class Children:
    """Starts processes and sees to their end."""

    def __init__(self) -> None:
        self.all: list[Child] = []

    def start(self, code: str, *args: object, **env: object) -> Child:
        child = Child(code, {k: str(v) for k, v in env.items()}, tuple(map(str, args)))
        self.all.append(child)
        return child

    def group(self, code: str, size: int, *args: object, **env: object) -> list[Child]:
        """As many ranks as size, told by environment."""
        ranks = range(size)
        return [self.start(code, *args, FOREBAY_RANK=r, FOREBAY_SIZE=size, **env) for r in ranks]

    def end(self) -> None:
        for child in self.all:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGKILL)
            child.process.communicate()


@pytest.fixture
def children() -> Iterator[Children]:
    """Child processes of this test."""
    all_of_them = Children()
    yield all_of_them
    all_of_them.end()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skips are a third result: counted, and named with what was missing."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} skipped: something was missing here, see SKIPPED above")
