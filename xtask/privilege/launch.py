"""Starts a program with default signals and with less: another user, a small RLIMIT_MEMLOCK, refused system calls.

usage: launch.py [--uid N] [--memlock BYTES] [--refuse-calls] [--probe] -- PROGRAM ARGUMENTS…

Signals that the caller ignores (SIGINT, when a script runs in the background) would stay ignored in everything it
starts; here they get their defaults back. `--refuse-calls` installs a seccomp filter that makes io_uring_*,
userfaultfd and mbind answer EPERM, as container runtimes and hardened kernels do. `--probe` starts nothing and says by
its exit status whether all that was asked for can be had here. The program takes the place of this process. Linux on
x86_64 and aarch64 only.
"""

import argparse
import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys

# Numbers of io_uring_setup, io_uring_enter, io_uring_register, userfaultfd, mbind, with the audit architecture.
CALLS = {
    "x86_64": (0xC000003E, [425, 426, 427, 323, 237]),
    "aarch64": (0xC00000B7, [425, 426, 427, 282, 235]),
}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM


def filter_program():
    """The filter as struct sock_filter records: refuse the listed calls of this architecture, allow the rest."""
    architecture, calls = CALLS[platform.machine()]
    steps = [(LOAD_WORD, 0, 0, 4), (JUMP_IF_EQUAL, 1, 0, architecture), (RETURN, 0, 0, ALLOW), (LOAD_WORD, 0, 0, 0)]
    for left, call in zip(range(len(calls) - 1, -1, -1), calls):
        steps.append((JUMP_IF_EQUAL, left + 1, 0, call))
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]
    return b"".join(struct.pack("HBBI", *step) for step in steps), len(steps)


def refuse_calls():
    """Installs the filter in this process, for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    code, length = filter_program()
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", length, ctypes.addressof(buffer)))
    for arguments in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)]:
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def check_filter():
    """Fails unless a refused call is refused and an allowed one is not."""
    libc = ctypes.CDLL(None, use_errno=True)
    _, calls = CALLS[platform.machine()]
    for call in calls:
        if libc.syscall(call, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.EPERM:
            raise OSError(errno.EINVAL, f"call {call} is not refused")
    os.getpid()


def main():
    """Drops what was asked for, then becomes the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--memlock", type=int)
    parser.add_argument("--refuse-calls", action="store_true")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    try:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if options.memlock is not None:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (options.memlock, options.memlock))
        if options.uid is not None:
            os.setgroups([])
            os.setresgid(options.uid, options.uid, options.uid)
            os.setresuid(options.uid, options.uid, options.uid)
        if options.refuse_calls:
            refuse_calls()
            if options.probe:
                check_filter()
    except (OSError, KeyError, ValueError) as error:
        print(f"launch.py: not possible here: {error}", file=sys.stderr)
        return 3
    if options.probe:
        # A path given with --probe must be readable for the user it was asked about.
        unreadable = [path for path in options.command if not os.access(path, os.R_OK | os.X_OK)]
        if unreadable:
            print(f"launch.py: {unreadable[0]} cannot be read", file=sys.stderr)
        return 3 if unreadable else 0
    os.execvp(options.command[0], options.command)
    return 70


if __name__ == "__main__":
    sys.exit(main())
