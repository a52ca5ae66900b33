"""Streams between two nodes of the test bed: Forebay by its agents, ADIOS2 SST, and iperf3 as the ceiling of the link.

usage: cargo xtask nodes 2 [--veth | --rate 10gbit] -- PYTHON lab/peers/nodes_stream.py [--rounds N] [--quick]

PYTHON has the packages forebay and, for SST, adios2; `forebay` and `forebay-agent` are in target/release. Writer and
iperf3's client run on n0, readers on n1. Each round measures every system once, in turn; printed are the median and the
spread of the rates, and of the ratios to iperf3 and SST of the same round. Measured, too: how long after `end_step` a
version of 4 KiB is seen on the other node, and what goes over the link for eight readers of one version. All processes
share the processors of one machine: the ratios say more than the rates.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "lab/peers"
SHARED = pathlib.Path(os.environ.get("BED_SHARED", "/tmp"))
LIMIT_S = 300
# Enough versions before the clock starts that all memory of the pools has been used once.
LARGE = {"objects": 4, "bytes": 64 << 20, "steps": 16, "warm": 8}
SMALL = {"objects": 10_000, "bytes": 2048, "steps": 40, "warm": 30}
# Writes versions of 4 KiB that say when they were put.
STAMP = """
import sys, time, numpy as np, forebay
with forebay.open("stamp", "w", readers={"seen": 1}, quota="16MiB") as channel:
    for step in channel.steps(int(sys.argv[1])):
        time.sleep(0.01)
        words = np.zeros(512, dtype="i8")
        words[0] = time.monotonic_ns()
        step.put("words", words)
"""
SEEN = """
import json, time, forebay
ages = []
with forebay.open("stamp", component="seen") as channel:
    for step in channel.steps(timeout=60):
        words = step.get("words")
        ages.append(time.monotonic_ns() - int(words[0]))
print(json.dumps(sorted(ages[20:])))
"""
# One of several readers of the same versions.
ONE_OF = """
import sys, forebay
with forebay.open("shared", component="all", rank=int(sys.argv[1]), size=8) as channel:
    print(sum(step.get("field").nbytes for step in channel.steps(timeout=60)))
"""
SHARED_BY = """
import numpy as np, forebay
with forebay.open("shared", "w", readers={"all": 8}, quota="256MiB") as channel:
    for step in channel.steps(4):
        step.put("field", np.full(4 << 20, step.version, dtype="f4"))
"""


def on(node, *words, **options):
    """A program on a node."""
    prefix = [] if node == os.environ["BED_NODE"] else ["bed", "run", node]
    return subprocess.Popen([*prefix, *map(str, words)], stdout=subprocess.PIPE, text=True, **options)


def output(program):
    """What it prints last, once it has ended well."""
    text, _ = program.communicate(timeout=LIMIT_S)
    if program.returncode:
        sys.exit(f"nodes_stream: {program.args}: status {program.returncode}")
    return text


class Agents:
    """The agents of both nodes."""

    def __init__(self, name, *options):
        self.folder = SHARED / name
        path = f"{ROOT / 'target/release'}:{os.environ['PATH']}"
        # Each node has its own /dev/shm.
        self.env = {**os.environ, "PATH": path, "FOREBAY_DIR": f"/dev/shm/{name}"}
        words = ["forebay", "agent", "start", "--job", name, "--nodes", "n0,n1", "--rendezvous", self.folder, *options]
        starting = [on(node, *words, "--node", node, env=self.env) for node in ("n0", "n1")]
        self.endpoints = [output(start).strip() for start in starting]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        output(on("n0", "forebay", "agent", "stop", "--rendezvous", self.folder, env=self.env))

    def sent(self):
        """Bytes that the writers' agent has sent; it says so once a second."""
        time.sleep(1.5)
        return json.loads((self.folder / "n0.status").read_text())["bytes_sent"]

    def python(self, node, *words):
        """A Python program on a node."""
        return on(node, sys.executable, *words, env=self.env)


def rate(shape, script, name, env, *options):
    """Bytes a second of one stream."""
    words = [f"--{key}={value}" for key, value in shape.items()]
    programs = [
        on(node, sys.executable, PEERS / script, role, name, *words, *options, env=env)
        for node, role in (("n0", "write"), ("n1", "read"))
    ]
    writer, reader = (json.loads(output(program).splitlines()[-1]) for program in programs)
    moved = shape["objects"] * shape["bytes"] * shape["steps"]
    return moved / (reader["end_ns"] - writer["begin_ns"]) * 1e9


def iperf(seconds):
    """Bytes a second of one TCP connection, by iperf3."""
    server = on("n1", "iperf3", "-s", "-1", "-J")
    time.sleep(1)
    said = json.loads(output(on("n0", "iperf3", "-c", "n1", "-t", seconds, "-J")))
    output(server)
    return said["end"]["sum_received"]["bits_per_second"] / 8


def line(name, values, unit, scale):
    """Median and spread."""
    values = sorted(value / scale for value in values)
    print(f"{name:<44} {statistics.median(values):9.2f} {unit}  ({values[0]:.2f} to {values[-1]:.2f})")


def streams(options, agents, secure):
    """All systems in turn, and their ratios."""
    has_iperf = shutil.which("iperf3") is not None
    has_sst = subprocess.run([sys.executable, "-c", "import adios2"], capture_output=True, check=False).returncode == 0
    for what, there in (("iperf3", has_iperf), ("the package adios2", has_sst)):
        if not there:
            print(f"skipped: {what} is not installed")
    found = {}
    for turn in range(options.rounds):
        if has_iperf:
            found.setdefault("iperf3", []).append(iperf(2))
        for label, shape, how_to_get in (("4 x 64 MiB", LARGE, "--into"), ("10 000 x 2 KiB", SMALL, "--many")):
            if options.quick:
                shape = {**shape, "steps": 2, "warm": 1}
            for how, who in (("TLS", secure), ("plain TCP", agents)):
                name = f"stream{turn}-{shape['objects']}"
                rates = found.setdefault(f"{label}, forebay, {how}", [])
                rates.append(rate(shape, "forebay_stream.py", name, who.env, how_to_get))
            if has_sst:
                contact = SHARED / f"sst{turn}-{shape['objects']}"
                sst = found.setdefault(f"{label}, SST", [])
                sst.append(rate(shape, "sst_stream.py", contact, {**os.environ}))
    for name, rates in found.items():
        line(name, rates, "GB/s", 1e9)
    for name, rates in found.items():
        for peer in ("iperf3", name.split(",")[0] + ", SST"):
            if "forebay" in name and peer in found:
                line(f"{name} / {peer}", [a / b for a, b in zip(rates, found[peer], strict=True)], "x", 1)


def latency(agents, steps):
    """From end_step to seen."""
    reader = agents.python("n1", "-c", SEEN)
    output(agents.python("n0", "-c", STAMP, steps))
    ages = json.loads(output(reader))
    median, late = ages[len(ages) // 2] / 1e3, ages[len(ages) * 99 // 100] / 1e3
    print(f"4 KiB, put to seen: median {median:.0f} us, 99 % {late:.0f} us, of {len(ages)} versions")


def eight_readers(agents):
    """What eight readers of a node cost the link."""
    before = agents.sent()
    readers = [agents.python("n1", "-c", ONE_OF, rank) for rank in range(8)]
    output(agents.python("n0", "-c", SHARED_BY))
    read = sum(int(output(reader)) for reader in readers)
    sent = agents.sent() - before
    print(f"eight readers: {read / 8 / 1e6:.1f} MB each, {sent / 1e6:.1f} MB sent: {sent / (read / 8):.3f} x")


def main():
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="see that it works; its figures mean nothing")
    options = parser.parse_args()
    if "BED_NODE" not in os.environ:
        parser.error("run it by cargo xtask nodes")
    options.rounds = 1 if options.quick else options.rounds
    with Agents("plain", "--trusted-fabric") as plain, Agents("secure") as secure:
        print("measured; endpoints", ", ".join(plain.endpoints + secure.endpoints))
        latency(secure, 100 if options.quick else 1000)
        eight_readers(secure)
        streams(options, plain, secure)


if __name__ == "__main__":
    main()
