#!/usr/bin/env python3
"""One MPI launcher over three nodes, run as `bed.py 3 -- mpi.py BIN`: writers on two nodes, readers on two.

BIN holds forebay and forebay-agent; this Python has the package forebay. MPICH's launcher starts the ranks, by
`bed run` in place of ssh; the programs are what one writes for one node.
"""

import os
import pathlib
import subprocess
import sys

BIN = pathlib.Path(sys.argv[1])
SHARED = pathlib.Path(os.environ["BED_SHARED"])
LIMIT_S = 100
STEPS, RANKS = 5, 4
WRITER = f"""
import numpy, forebay
with forebay.open("heat", "w", quota="16MiB", readers={{"analysis": 2}}) as channel:
    for step in channel.steps({STEPS}):
        row = numpy.full((1, 1000), step.version * 10.0 + channel.rank)
        step.put("T", row, shape=(channel.size, 1000), start=(channel.rank, 0))
"""
READER = """
import os, forebay
with forebay.open("heat", component="analysis", timeout=60) as channel:
    for step in channel.steps(timeout=60):
        sums = " ".join(str(row) for row in step.get("T").sum(axis=1))
        # A line in one piece: the launcher merges those of all ranks.
        line = f"{os.uname().nodename} {channel.rank}/{channel.size} {step.version} {sums}\\n"
        os.write(1, line.encode())
"""
# What MPICH's launcher calls with a host and the words of a command.
REMOTE_SHELL = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec bed run "$host" sh -c "$*"
"""


def start(*words):
    """A program."""
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)


def end(program):
    """What it printed; it has to succeed."""
    text, _ = program.communicate(timeout=LIMIT_S)
    assert program.returncode == 0, (program.args, program.returncode, text)
    return text


def launch(hosts, ranks, program):
    """Ranks of a program on hosts, as many on each."""
    path = SHARED / f"program-{hosts}.py"
    path.write_text(program)
    shell = SHARED / "remote-shell"
    shell.write_text(REMOTE_SHELL)
    shell.chmod(0o755)
    each = ranks // len(hosts.split(","))
    words = ["-launcher", "ssh", "-launcher-exec", shell, "-hosts", hosts, "-n", ranks, "-ppn", each]
    return start("mpiexec.hydra", *words, sys.executable, path)


def main():
    """Runs the agents, the writers and the readers, and checks what was read."""
    folder = SHARED / "job"
    agent = [BIN / "forebay", "agent"]
    for_all = ["--job", "trial", "--nodes", "n0,n1,n2", "--rendezvous", folder]
    nodes = ["n0", "n1", "n2"]
    agents = [start("bed", "run", node, *agent, "start", "--node", node, *for_all) for node in nodes]
    for one in agents:
        assert end(one).startswith("tls/")
    readers = launch("n1,n2", 2, READER)
    writers = launch("n0,n1", RANKS, WRITER)
    end(writers)
    sums = [" ".join(str((version * 10.0 + rank) * 1000) for rank in range(RANKS)) for version in range(STEPS)]
    expected = {f"n{rank + 1} {rank}/2 {version} {sums[version]}" for rank in range(2) for version in range(STEPS)}
    read = set(end(readers).splitlines())
    assert read == expected, (read, expected)
    end(start(*agent, "stop", "--rendezvous", folder))
    for node in nodes:
        left = end(start("bed", "run", node, "ls", "/dev/shm")).split()
        assert not left, (node, left)
    print("ok: writers of one space on two nodes, started by MPICH's launcher; readers on two")


if __name__ == "__main__":
    main()
