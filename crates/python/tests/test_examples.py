"""The example programs run as their first lines say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "python"


@pytest.mark.parametrize("size", [1, 2])
def test_writer_and_reader(size):
    def start(name: str, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(EXAMPLES / name)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})

    reader = start("reader.py")
    writers = [start("writer.py", FOREBAY_RANK=str(r), FOREBAY_SIZE=str(size)) for r in range(size)]
    said, _ = reader.communicate(timeout=60)
    for rank, writer in enumerate(writers):
        assert writer.communicate(timeout=60)[0].strip() == f"rank {rank} wrote 10 steps"
    assert [p.returncode for p in (reader, *writers)] == [0] * (size + 1)
    lines = said.splitlines()
    assert len(lines) == 10
    assert lines[3] == "version 3: 64 x 64, mean 34.50, max 66"


def test_they_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len([line for line in path.read_text().splitlines() if line.strip()]) <= 15, path
