"""What ``begin_step`` and ``end_step`` return, with the numbers that ADIOS2 users know."""

from enum import IntEnum


class StepStatus(IntEnum):
    """Outcome of ``begin_step``/``end_step``; errors are raised, not returned."""

    OK = 0
    """The step is open (begin) or acknowledged (end)."""
    NotReady = 1
    """The timeout passed and no step is open; call again."""
    EndOfStream = 2
    """Every writer rank closed the space; no step will come."""
