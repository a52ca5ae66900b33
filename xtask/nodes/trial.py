#!/usr/bin/env python3
"""Tests of the test bed, run on three nodes: `bed.py 3 -- trial.py`."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

PORT = 5000
# A datagram that has not come by then does not come; one that comes may be late.
LOST_S = 1.0
COMES_S = 30.0
# Answers each datagram with the number of those before it.
ECHO = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", {PORT}))
print("up", flush=True)
count = 0
while True:
    data, sender = s.recvfrom(100)
    count += 1
    s.sendto(b"%s %d" % (data, count), sender)
"""


def bed(*words, ok=True):
    """What a command of the bed prints."""
    done = subprocess.run(["bed", *words], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode == 0) == ok, (words, done)
    return done.stdout.strip() if ok else done.stderr.strip()


class Echo:
    """A program on n1 that answers, and a socket to ask it."""

    def __enter__(self):
        self.program = subprocess.Popen(["bed", "run", "n1", "python3", "-c", ECHO], stdout=subprocess.PIPE)
        assert self.program.stdout.readline() == b"up\n"
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        return self

    def __exit__(self, *_):
        self.program.terminate()
        self.program.wait()

    def ask(self, text, within_s=COMES_S):
        """The answer to a datagram, and how long it took; None: none came."""
        self.socket.settimeout(within_s)
        began = time.monotonic()
        self.socket.sendto(text, ("n1", PORT))
        while True:
            try:
                answer = self.socket.recv(100)
            except TimeoutError:
                return None, within_s
            # One of a question before may come late.
            if answer.startswith(text + b" "):
                return int(answer.split()[-1]), time.monotonic() - began


def nodes_have_their_own():
    """Host name, memory, local disk; a shared directory; status and streams of a command."""
    assert socket.gethostname() == os.environ["BED_NODE"] == "n0"
    assert bed("run", "n2", "hostname") == "n2"
    folders = {"/dev/shm": False, os.environ["BED_LOCAL"]: False, os.environ["BED_SHARED"]: True}
    for folder, is_shared in folders.items():
        pathlib.Path(folder, "mine").write_text("n0")
        seen = bed("run", "n1", "sh", "-c", f"cat {folder}/mine 2>/dev/null || echo none")
        assert seen == ("n0" if is_shared else "none"), (folder, seen)
    assert bed("run", "n1", "ls", os.environ["BED"] + "/disks") == ""
    remote = ["bed", "run", "n1", "sh", "-c", "cat; exit 7"]
    done = subprocess.run(remote, input=b"to it", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (7, b"to it")
    assert "no such node" in bed("run", "n9", "true", ok=False)


def links_do_as_told():
    """Delay, loss, cuts of one direction, stalls."""
    with Echo() as echo:
        assert echo.ask(b"first")[0] == 1
        bed("delay", "200ms", "n1", "n0")
        assert echo.ask(b"late")[1] >= 0.2
        bed("delay", "0", "n1", "n0")
        bed("loss", "100%", "n0", "n1")
        assert echo.ask(b"lost", LOST_S)[0] is None
        bed("loss", "0%", "n0", "n1")
        assert echo.ask(b"third")[0] == 3
        # The question arrives and is counted, the answer does not.
        bed("cut", "n1", "n0")
        assert echo.ask(b"fourth", LOST_S)[0] is None
        bed("mend", "all", "all")
        assert echo.ask(b"fifth")[0] == 5
        bed("stall", "5s", "n0", "n1")
        assert echo.ask(b"held", LOST_S)[0] is None
        assert echo.ask(b"behind")[0] == 7
        arrived, dropped = map(int, bed("count", "n0", "n1").split())
        assert arrived > 0 and dropped >= 1
        bed("freeze", "n1")
        assert echo.ask(b"frozen", LOST_S)[0] is None
        bed("thaw", "n1")
        assert echo.ask(b"thawed")[0] == 9


def nodes_die_and_come_back():
    """All processes of a node end; its memory goes, its disk stays; others see no process of it."""
    local = os.environ["BED_LOCAL"]
    bed("run", "n2", "sh", "-c", f"echo kept > {local}/kept; echo gone > /dev/shm/gone")
    mark = f"sleep 4{os.getpid()}"
    running = subprocess.Popen(["bed", "run", "n2", *mark.split()], stderr=subprocess.DEVNULL)
    while mark not in bed("run", "n2", "ps", "-eo", "args"):
        time.sleep(0.05)
    bed("kill", "n2")
    assert running.wait(10) != 0
    assert "is down" in bed("run", "n2", "true", ok=False)
    bed("start", "n2")
    assert bed("run", "n2", "sh", "-c", f"cat {local}/kept; ls /dev/shm") == "kept"
    # A command ends with the process that runs it from another node.
    running = subprocess.Popen(["bed", "run", "n2", *mark.split()])
    while mark not in bed("run", "n2", "ps", "-eo", "args"):
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    until = time.monotonic() + 10
    while mark in bed("run", "n2", "ps", "-eo", "args"):
        assert time.monotonic() < until, "the command lives on"
        time.sleep(0.05)


def main():
    """All of it; the name of what does not hold is in the traceback."""
    for trial in (nodes_have_their_own, links_do_as_told, nodes_die_and_come_back):
        trial()
        print(f"ok  {trial.__doc__}")


if __name__ == "__main__":
    sys.exit(main())
