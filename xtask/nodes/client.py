#!/usr/bin/env python3
"""`bed`, on PATH of every node of a test bed: runs commands on other nodes, and injects faults into nodes and links.

    bed run NODE COMMAND [ARGUMENT ...]   as `ssh NODE COMMAND`; ends with this process
    bed kill NODE                         all its processes end; its memory is gone, its local disk stays
    bed start NODE                        it comes back after a kill
    bed freeze NODE, bed thaw NODE        stops and continues all its processes
    bed cut FROM TO, bed mend FROM TO     one direction of a link; `all` stands for every node
    bed delay TIME FROM TO                one way; bed loss PERCENT FROM TO
    bed stall TIME FROM TO                nothing arrives for so long, then all of it
    bed count FROM TO                     prints bytes that arrived and frames that were dropped
"""

import array
import json
import os
import socket
import sys


def ask(request, files=()):
    """What the bed answers."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.connect(os.path.join(os.environ["BED"], "control"))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    asked.sendmsg([json.dumps(request).encode()], rights)
    return json.loads(asked.recv(1 << 16))


def request_of(words):
    """The request of a command line."""
    match words:
        case ["run", node, *command] if command:
            return {"do": "run", "nodes": [node], "command": command, "cwd": os.getcwd(), "env": dict(os.environ)}
        case [("kill" | "start" | "freeze" | "thaw") as verb, *nodes] if nodes:
            return {"do": verb, "nodes": nodes}
        case [("cut" | "mend" | "count") as verb, source, target]:
            return {"do": verb, "from": source, "to": target}
        case [("delay" | "loss" | "stall") as verb, amount, source, target]:
            return {"do": verb, "amount": amount, "from": source, "to": target}
    sys.exit(__doc__)


def main():
    """One request."""
    request = request_of(sys.argv[1:])
    answer = ask(request, (0, 1, 2) if request["do"] == "run" else ())
    if "error" in answer:
        sys.exit(f"bed: {answer['error']}")
    if "said" in answer:
        print(answer["said"])
    sys.exit(answer.get("status", 0))


if __name__ == "__main__":
    main()
