"""The `forebay` command inside the wheel."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import forebay as fb
import numpy as np

SCRIPT = Path(sysconfig.get_path("scripts")) / "forebay"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), *words], capture_output=True, text=True, timeout=60)


def test_version_and_usage():
    done = run("--version")
    assert done.returncode == 0 and fb.__version__ in done.stdout, done.stderr
    assert run("--no-such-option").returncode == 2
    module = subprocess.run([sys.executable, "-m", "forebay", "--version"], capture_output=True, text=True)
    assert module.stdout == done.stdout


def test_the_command_needs_no_numpy():
    code = "import sys, forebay; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_ls_sees_what_python_wrote():
    with fb.open("seen", "w", quota="16MiB", retention="forever") as w:
        for step in w.steps(2):
            step.put("T", np.zeros(10))
    done = run("ls", "--json")
    assert done.returncode == 0, done.stderr
    assert "seen" in json.dumps(json.loads(done.stdout))
    assert run("verify", "seen").returncode == 0
    assert run("clean", "seen").returncode == 0
    assert fb.list_spaces() == []


def test_a_space_of_a_few_kib_takes_little_memory():
    """Bytes that are used stand beside those that are reserved, in what Python and the command say."""
    with fb.open("small", "w", retention="forever") as w:
        for step in w.steps(3):
            step.put("T", np.zeros(128))
        seen = [fb.inspect("small")]
    seen += [fb.inspect("small"), json.loads(run("ls", "--json").stdout)["spaces"][0]]
    seen.append(json.loads(run("ls", "small", "--json").stdout)["space"])
    for space in seen:
        assert 3 * 1024 <= space["used_bytes"] < space["reserved_bytes"] <= 512 << 10, space


def test_python_components_of_a_workflow(tmp_path: Path):
    """`forebay run` from the wheel starts Python programs and itself."""
    (tmp_path / "w.py").write_text(
        "import forebay as fb, numpy as np\n"
        "with fb.open('ch', 'w') as ch:\n"
        "    for step in ch.steps(3):\n"
        "        step.put('T', np.zeros(10), shape=(20,), start=(10 * ch.rank,))\n"
    )
    (tmp_path / "r.py").write_text(
        "import forebay as fb\n"
        "with fb.open('ch') as ch:\n"
        "    print('steps', sum(1 for _ in ch.steps()))\n"
    )
    python = json.dumps(sys.executable)
    (tmp_path / "workflow.toml").write_text(
        f"""
forebay = 1

[workflow]
name = "two"

[channel.ch]
quota = "16MiB"

[[component]]
name = "sim"
command = [{python}, "w.py"]
ranks = 2
writes = ["ch"]

[[component]]
name = "ana"
command = [{python}, "r.py"]
reads = ["ch"]
"""
    )
    done = subprocess.run(
        [str(SCRIPT), "run", "workflow.toml"], capture_output=True, text=True, timeout=90, cwd=tmp_path, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert fb.list_spaces() == []


def test_the_demo_ends_with_a_report_and_keeps_what_was_changed(tmp_path: Path):
    def demo() -> tuple[str, str]:
        done = subprocess.run(
            [str(SCRIPT), "demo", "here"], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=os.environ
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report = tmp_path / done.stdout.splitlines()[-1]
        return report.read_text(), done.stderr

    page, said = demo()
    assert "version 30, step 3000" in page and "differs" not in said
    program = tmp_path / "here/simulation.py"
    program.write_text(program.read_text().replace("VERSIONS, STEPS = 192, 31, 100", "VERSIONS, STEPS = 32, 4, 1"))
    page, said = demo()
    assert page.count("data:image/png;base64,") == 4
    assert "here/simulation.py differs from the example and was not overwritten" in said
    assert fb.list_spaces() == []


def test_mem_brings_its_library(tmp_path: Path):
    code = "import numpy as np; a = np.arange(4 << 20, dtype='f8'); print(int(a[::4096].sum()))"
    command = ["mem", "--dram", "8MiB", "--tier", str(tmp_path), "--json", "--", sys.executable, "-c", code]
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert str(sum(range(0, 4 << 20, 4096))) in done.stderr
    assert json.loads(done.stdout)["placed_bytes"] >= 32 << 20
    assert list(tmp_path.iterdir()) == []
