"""A switch between the nodes of a test bed: every frame passes it, and is delayed, dropped or held as it was told.

The kernel's own means for that (netem, classifiers of tc) are not on every machine; a TAP device is. One process, one
thread. Each directed link from one node to another has a delay, a loss and a state of its own; each node has a rate at
which it sends. Does not: corrupt or duplicate frames. Frames of one link stay in order.
"""

import argparse
import collections
import fcntl
import heapq
import json
import os
import random
import select
import struct
import time

import amounts

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
# The longest frame of a TAP device: few calls for each byte.
MTU = 65520
# A node's queue before the switch: at 10 Gbit/s some 7 ms. What does not fit is dropped, as by a real one.
QUEUE_BYTES = 8 << 20
# Frames of one node that are read in a row.
BURST = 32


class Link:
    """From one node to another."""

    def __init__(self):
        self.delay_ns = 0
        self.loss = 0.0
        self.is_cut = False
        # Frames leave no earlier.
        self.held_until_ns = 0
        self.last_due_ns = 0
        self.bytes = 0
        self.dropped = 0


class Switch:
    """Makes a TAP device for each name, in the network namespace of the caller."""

    def __init__(self, names, seed=1):
        self.names = list(names)
        self.taps = [self._tap(name) for name in self.names]
        self.links = collections.defaultdict(Link)
        self.rate_bytes = [0] * len(self.names)
        self.busy_until_ns = [0] * len(self.names)
        self.ports = {}
        self.random = random.Random(seed)
        self.due = []
        self.count = 0

    @staticmethod
    def _tap(name):
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        return tap

    def between(self, sources, targets):
        """The links from these nodes to those, by their numbers."""
        return [self.links[source, target] for source in sources for target in targets if source != target]

    def _numbers(self, name):
        if name != "all" and name not in self.names:
            raise ValueError(f"no node {name}; there are {', '.join(self.names)}")
        return range(len(self.names)) if name == "all" else [self.names.index(name)]

    def obey(self, control):
        """Answers a request of `bed`; False when no more come."""
        message = control.recv(1 << 16)
        if not message:
            return False
        try:
            answer = self._do(json.loads(message))
        except (KeyError, ValueError, argparse.ArgumentTypeError) as error:
            answer = {"error": str(error)}
        control.send(json.dumps(answer).encode())
        return True

    def _do(self, request):
        links = self.between(self._numbers(request["from"]), self._numbers(request["to"]))
        match request["do"]:
            case "cut" | "mend":
                for link in links:
                    link.is_cut = request["do"] == "cut"
            case "delay":
                for link in links:
                    link.delay_ns = amounts.nanoseconds(request["amount"])
            case "loss":
                for link in links:
                    link.loss = amounts.share(request["amount"])
            case "stall":
                for link in links:
                    link.held_until_ns = time.monotonic_ns() + amounts.nanoseconds(request["amount"])
            case "count":
                arrived, dropped = sum(link.bytes for link in links), sum(link.dropped for link in links)
                return {"said": f"{arrived} {dropped}"}
            case other:
                return {"error": f"unknown request {other}"}
        return {}

    def serve(self, control, on_control):
        """Forwards frames for ever; calls `on_control` when `control` can be read, until that returns False."""
        ports = {tap: port for port, tap in enumerate(self.taps)}
        while True:
            ready, _, _ = select.select([control, *self.taps], [], [], self._timeout())
            for one in ready:
                if one is not control:
                    self._drain(ports[one], one)
                elif not on_control():
                    return
            self._send()

    def _drain(self, port, tap):
        for _ in range(BURST):
            try:
                frame = os.read(tap, MTU + 64)
            except BlockingIOError:
                return
            self._take(port, frame)

    def _timeout(self):
        return max(0, self.due[0][0] - time.monotonic_ns()) / 1e9 if self.due else None

    def _take(self, source, frame):
        target, sender = frame[:6], frame[6:12]
        self.ports[sender] = source
        known = self.ports.get(target)
        now = time.monotonic_ns()
        leaves = now
        if self.rate_bytes[source]:
            begins = max(now, self.busy_until_ns[source])
            if (begins - now) * self.rate_bytes[source] > QUEUE_BYTES * 1_000_000_000:
                for other in range(len(self.names)) if known is None else [known]:
                    self.links[source, other].dropped += 1
                return
            leaves = begins + len(frame) * 1_000_000_000 // self.rate_bytes[source]
            self.busy_until_ns[source] = leaves
        for port in range(len(self.names)) if known is None else [known]:
            link = self.links[source, port]
            if port == source:
                continue
            if link.is_cut or self.random.random() < link.loss:
                link.dropped += 1
                continue
            due = max(leaves + link.delay_ns, link.held_until_ns, link.last_due_ns)
            link.last_due_ns = due
            self.count += 1
            heapq.heappush(self.due, (due, self.count, port, source, frame))

    def _send(self):
        now = time.monotonic_ns()
        while self.due and self.due[0][0] <= now:
            _, _, port, source, frame = heapq.heappop(self.due)
            link = self.links[source, port]
            # What was under way when the link was cut is lost as well.
            if link.is_cut:
                link.dropped += 1
                continue
            try:
                os.write(self.taps[port], frame)
                link.bytes += len(frame)
            except OSError:
                # Its queue is full, or it is down.
                link.dropped += 1
