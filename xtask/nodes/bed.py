#!/usr/bin/env python3
"""Nodes on one machine: each with its own network, host name, processes, /dev/shm and local disk; the rest is shared.

    bed.py N [--delay TIME] [--loss PERCENT] [--rate BITS] [--veth] [--keep] -- COMMAND [ARGUMENT ...]

runs COMMAND on node n0, as a batch system runs a script on the first node of a job. There `bed` on PATH reaches the
others (see client.py). These variables say what is there: BED_NODE and BED_NODES (names), BED_LOCAL (a directory on
disk that only the own node sees), BED_SHARED (one that all see).

The nodes are namespaces. When this process ends, however it ends, the kernel ends every process in them and removes
their networks. It removes the directory of the bed, unless it is killed with SIGKILL or --keep is given. Exit status:
that of COMMAND.
"""

import argparse
import array
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import amounts
import switch

HERE = pathlib.Path(__file__).resolve().parent
# Nodes find each other within this network.
NETWORK = "10.77"
READY_S = 20
READY = "ready"


def fail(text):
    """Ends with a message."""
    sys.exit(f"nodes: {text}")


def parse(arguments):
    """The options, and COMMAND."""
    usage = __doc__.split("\n")[2].strip().replace("bed.py", "nodes")
    parser = argparse.ArgumentParser(prog="nodes", usage=usage)
    parser.add_argument("count", type=int)
    parser.add_argument("--delay", type=amounts.nanoseconds, default=0, help="of every frame, one way")
    parser.add_argument("--loss", type=amounts.share, default=0.0, help="of all frames")
    parser.add_argument("--rate", type=amounts.bits, default=0, help="at which a node sends")
    parser.add_argument("--veth", action="store_true", help="the kernel's bridge: no delay, loss or cuts")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the bed")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.command = arguments[end + 1 :]
    if not 1 <= options.count <= 250:
        parser.error("from 1 to 250 nodes")
    if not options.command:
        parser.error("no COMMAND")
    if options.veth and (options.delay or options.loss):
        parser.error("--veth has no --delay and no --loss")
    return options


def call(*words):
    """Runs a program of the system, which has to succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


class Node:
    """Namespaces, and the process that holds them. Its network stays when its processes are killed."""

    def __init__(self, bed, number):
        self.bed, self.number, self.name = bed, number, f"n{number}"
        self.address = f"{NETWORK}.{number // 250}.{number % 250 + 1}"
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        mine = os.stat("/proc/self/ns/net").st_ino
        path = f"/proc/{holder.pid}/ns/net"
        while os.stat(path).st_ino == mine:
            os.sched_yield()
        self.network = os.open(path, os.O_RDONLY)
        holder.kill()
        holder.wait()
        self.init = None

    @property
    def network_path(self):
        """The network namespace, for other programs."""
        return f"/proc/{os.getpid()}/fd/{self.network}"

    def start(self):
        """Its processes begin: there are none before."""
        (self.bed.folder / "disks" / self.name).mkdir(exist_ok=True)
        ready, said = os.pipe()
        words = ["nsenter", f"--net={self.network_path}", "unshare", "--uts", "--ipc", "--mount", "--pid", "--fork"]
        words += ["--kill-child", "--mount-proc", sys.executable, HERE / "bed.py", "--init", self.name]
        words += [str(self.bed.folder), str(said)]
        # `unshare` would tell that its child was killed.
        self.init = subprocess.Popen([*map(str, words)], pass_fds=[said], stderr=subprocess.DEVNULL)
        os.close(said)
        told = os.read(ready, 4096).decode() if select.select([ready], [], [], READY_S)[0] else "no answer"
        os.close(ready)
        if told != READY:
            fail(f"node {self.name} did not start: {told}")
        # The process that holds the namespaces is the child of `unshare`.
        children = pathlib.Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text().split()
        self.pid = int(children[0])

    def connect(self, mtu):
        """Its network device has its address."""
        inside = ["nsenter", f"--net={self.network_path}", "ip"]
        call(*inside, "link", "set", "lo", "up")
        call(*inside, "addr", "add", f"{self.address}/16", "dev", "eth0")
        call(*inside, "link", "set", "eth0", "mtu", mtu, "up")

    def words(self, cwd, command):
        """The command line that runs a command on it. The command ends with the process that runs this line."""
        enter = ["nsenter", f"--net={self.network_path}", f"--target={self.pid}", "--uts", "--ipc", "--mount", "--pid"]
        return [*enter, f"--wdns={cwd}", "--", "setpriv", "--pdeathsig=KILL", *command]

    def environment(self, given):
        """What a command on it finds in its environment."""
        names = ",".join(node.name for node in self.bed.nodes)
        path = f"{self.bed.folder / 'bin'}:{given.get('PATH', os.defpath)}"
        folder = str(self.bed.folder)
        of_bed = {"BED": folder, "BED_NODE": self.name, "BED_NODES": names, "HOSTNAME": self.name}
        return {**given, "PATH": path, **of_bed, "BED_LOCAL": f"{folder}/local", "BED_SHARED": f"{folder}/shared"}

    def kill(self):
        """All its processes end at once; what they had in memory is gone."""
        if self.init:
            os.kill(self.pid, signal.SIGKILL)
            self.init.wait()
        self.init = None

    def processes(self):
        """Processes on it, by the numbers that they have here."""
        own = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and int(entry) != self.pid and os.stat(f"/proc/{entry}/ns/pid").st_ino == own:
                    found.append(int(entry))
            except OSError:
                pass
        return found


class Bed:
    """All nodes, their switch, and the socket at which `bed` asks."""

    def __init__(self, folder, options):
        self.folder, self.options = folder, options
        for name in ("disks", "local", "shared", "bin"):
            (folder / name).mkdir()
        (folder / "bin" / "bed").symlink_to(HERE / "client.py")
        self.nodes = [Node(self, number) for number in range(options.count)]
        lines = [f"{node.address} {node.name}\n" for node in self.nodes]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        self.lock = threading.Lock()
        self.control = None
        mtu = self._bridge() if options.veth else self._switch()
        for node in self.nodes:
            node.connect(mtu)
            node.start()

    def _bridge(self):
        call("ip", "link", "add", "bed", "type", "bridge")
        call("ip", "link", "set", "bed", "up")
        for node in self.nodes:
            call("ip", "link", "add", node.name, "type", "veth", "peer", "name", "eth0", "netns", node.network_path)
            call("ip", "link", "set", node.name, "master", "bed", "mtu", 65535, "up")
            if self.options.rate:
                inside = ["nsenter", f"--net={node.network_path}", "tc", "qdisc", "add", "dev", "eth0", "root", "tbf"]
                call(*inside, "rate", f"{self.options.rate}bit", "burst", "1mb", "latency", "20ms")
        return 65535

    def _switch(self):
        made = switch.Switch([node.name for node in self.nodes])
        for node in self.nodes:
            call("ip", "link", "set", node.name, "netns", node.network_path, "name", "eth0")
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self.control.close()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            links = made.between(range(len(made.names)), range(len(made.names)))
            for link in links:
                link.delay_ns, link.loss = self.options.delay, self.options.loss
            made.rate_bytes = [self.options.rate // 8] * len(made.names)
            made.serve(theirs, lambda: made.obey(theirs))
            os._exit(0)
        theirs.close()
        return switch.MTU

    def ask_switch(self, request):
        """What the switch answers."""
        if not self.control:
            return {"error": "nodes of --veth have no switch"}
        with self.lock:
            self.control.send(json.dumps(request).encode())
            return json.loads(self.control.recv(1 << 16))

    def node(self, name):
        """The node of this name."""
        return next((node for node in self.nodes if node.name == name), None)

    def serve(self):
        """Answers `bed`, each question in a thread of its own."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.folder / "control"))
        listener.listen(64)

        def accept():
            while True:
                asked, _ = listener.accept()
                threading.Thread(target=self._answer, args=(asked,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _answer(self, asked):
        with asked:
            data, ancillary, _, _ = asked.recvmsg(1 << 20, socket.CMSG_SPACE(3 * 4))
            files = array.array("i")
            for _, _, content in ancillary:
                files.frombytes(content[: len(content) - len(content) % files.itemsize])
            try:
                answer = self._do(json.loads(data), files.tolist(), asked)
            except (KeyError, ValueError, OSError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            finally:
                for file in files:
                    os.close(file)
            try:
                asked.send(json.dumps(answer).encode())
            except OSError:
                pass

    def _do(self, request, files, asked):
        nodes = [self.node(name) for name in request.get("nodes", [])]
        if None in nodes:
            return {"error": f"no such node; there are {', '.join(node.name for node in self.nodes)}"}
        match request["do"]:
            case "run":
                return self._run(nodes[0], request, files, asked)
            case "kill":
                for node in nodes:
                    node.kill()
            case "start":
                for node in nodes:
                    if node.init is None:
                        node.start()
            case "freeze" | "thaw":
                sent = signal.SIGSTOP if request["do"] == "freeze" else signal.SIGCONT
                for node in nodes:
                    for process in node.processes():
                        os.kill(process, sent)
            case _:
                return self.ask_switch(request)
        return {}

    def _run(self, node, request, files, asked):
        if node.init is None:
            return {"error": f"node {node.name} is down"}
        words = node.words(request["cwd"], request["command"])
        streams = dict(zip(("stdin", "stdout", "stderr"), files))
        child = subprocess.Popen(words, env=node.environment(request["env"]), start_new_session=True, **streams)

        def ends_with_client():
            # The client closes its socket, at the latest when it dies; this program closes it when the command ended.
            try:
                is_over = not asked.recv(1)
            except OSError:
                return
            if is_over:
                child.kill()

        threading.Thread(target=ends_with_client, daemon=True).start()
        status = child.wait()
        return {"status": status if status >= 0 else 128 - status}


def init(name, folder, said):
    """The first process of a node: prepares what its processes see, and adopts those whose parent died."""
    folder = pathlib.Path(folder)
    try:
        socket.sethostname(name)
        call("mount", "--make-rprivate", "/")
        call("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
        call("mount", "--bind", folder / "hosts", "/etc/hosts")
        call("mount", "--bind", folder / "disks" / name, folder / "local")
        call("mount", "-t", "tmpfs", "-o", "mode=000", "tmpfs", folder / "disks")
        told = READY
    except (SystemExit, OSError) as end:
        told = str(end)
    os.write(int(said), told.encode())
    os.close(int(said))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        signal.pause()


def inside(folder, options):
    """In namespaces of the bed: its nodes, then COMMAND on the first one."""
    bed = Bed(pathlib.Path(folder), options)
    bed.serve()
    first = bed.nodes[0]
    words = first.words(os.getcwd(), options.command)
    status = subprocess.call(words, env=first.environment(dict(os.environ)))
    return status if status >= 0 else 128 - status


def main(arguments):
    """Enters namespaces of the bed's own; the kernel ends all that is in them with this process."""
    if arguments[:1] == ["--init"]:
        init(*arguments[1:])
    if arguments[:1] == ["--inside"]:
        sys.exit(inside(arguments[1], parse(arguments[2:])))
    options = parse(arguments)
    if os.geteuid() != 0:
        fail("only root can make nodes: others may not open /dev/net/tun on most systems")
    folder = tempfile.mkdtemp(prefix="forebay-nodes-")
    words = ["setpriv", "--pdeathsig=KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    words += ["--mount-proc", sys.executable]
    words += [str(HERE / "bed.py"), "--inside", folder, *arguments]
    running = subprocess.Popen(words)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: running.kill())
    while True:
        try:
            status = running.wait()
            break
        except KeyboardInterrupt:
            continue
    if options.keep:
        print(f"nodes: kept {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main(sys.argv[1:])
