"""What ``begin_step`` and ``end_step`` return, and the warning of a reader that missed versions."""

from enum import Enum


class StepStatus(Enum):
    """Outcome of ``begin_step`` and ``end_step``. Errors, ``TimedOut`` among them, are raised, not returned.

    ``OK`` is true and ``EndOfStream`` false, so that ``while reader.begin_step():`` reads a stream to its end.
    """

    OK = "OK"
    """The step is open (begin) or acknowledged (end)."""
    EndOfStream = "EndOfStream"
    """Every writer rank closed the space; no step will come."""

    def __bool__(self) -> bool:
        """Whether a step is open, or acknowledged."""
        return self is StepStatus.OK


class MissedVersions(UserWarning):
    """Versions were dropped before this reader came to them: ``step.missed`` says how many.

    ``warnings.simplefilter("error", fb.MissedVersions)`` turns it into an error; the step is open then.
    """
