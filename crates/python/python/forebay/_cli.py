"""The ``forebay`` command inside the wheel: the Rust command line, called in this process.

It takes the place of the interpreter as far as signals go: Ctrl-C and SIGTERM must reach the command at once,
not wait for Python byte code that never runs.
"""

import signal
import sys
from pathlib import Path

from forebay import _forebay


def main() -> None:
    """Runs the command with ``sys.argv`` and exits with its status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    again = [sys.executable, "-m", "forebay"]
    sys.exit(_forebay.command_line(["forebay", *sys.argv[1:]], again, str(Path(__file__).parent)))


if __name__ == "__main__":
    main()
