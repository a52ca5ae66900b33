"""A session with redis-server: long and short values, a snapshot by a forked child, and a second server from it.

usage: database.py SERVER [BENCHMARK]

Speaks the server's protocol over a socket in the working folder. What redis-benchmark prints depends on time, so that
only its exit status is told.
"""

import os
import socket
import subprocess
import sys
import time
import zlib

VALUES = 12
LONG = 3 << 20


class Session:
    """One connection, over which commands go one by one."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        for _ in range(3000):
            try:
                self.socket.connect("redis.socket")
                break
            except OSError:
                time.sleep(0.01)
        self.file = self.socket.makefile("rb")

    def call(self, *words):
        """Sends a command; its answer."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
        return self.answer()

    def answer(self):
        """One answer."""
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2] if int(rest) >= 0 else None
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        return rest


def start(server):
    """Starts a server that keeps its files in this folder."""
    words = ["--port", "0", "--unixsocket", os.path.abspath("redis.socket"), "--save", "", "--logfile", "redis.log"]
    return subprocess.Popen([server, *words, "--dir", os.getcwd(), "--daemonize", "no"])


def value(number):
    """A long value with content of its own."""
    return b"%08d" % number * (LONG // 8)


def checks(session):
    """What the server holds."""
    print([zlib.crc32(session.call("GET", f"long{number}")) for number in range(VALUES)])
    print(session.call("DBSIZE"), session.call("GET", "short77"))


def main(server, benchmark=None):
    """The session."""
    running = start(server)
    session = Session()
    for number in range(VALUES):
        assert session.call("SET", f"long{number}", value(number)) == b"OK"
        assert session.call("APPEND", f"long{number}", b"!" * 100_000) == b"%d" % (LONG + 100_000)
    for number in range(20_000):
        session.call("SET", f"short{number}", number * number)
    checks(session)
    assert session.call("BGSAVE").startswith(b"Background")
    session.call("SET", "short77", "changed meanwhile")
    while b"rdb_bgsave_in_progress:0" not in session.call("INFO", "persistence"):
        time.sleep(0.02)
    print(b"rdb_last_bgsave_status:ok" in session.call("INFO", "persistence"), os.path.exists("dump.rdb"))
    if benchmark:
        words = [benchmark, "-s", "redis.socket", "-q", "-n", "300", "-c", "4", "-d", "200000", "-t", "set,get,lpush"]
        print(subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode)
    session.call("SHUTDOWN", "NOSAVE")
    print(running.wait())
    running = start(server)
    session = Session()
    checks(session)
    session.call("SHUTDOWN", "NOSAVE")
    print(running.wait())
    for name in ("dump.rdb", "redis.log"):
        os.remove(name)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
