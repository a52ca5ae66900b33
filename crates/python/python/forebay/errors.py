"""Exceptions of Forebay: one class per kind of error, each also the Python class that fits it best.

``except forebay.errors.TimedOut`` and ``except TimeoutError`` both work. The names and numbers are those of the C
codes and of the messages of the ``forebay`` command; a test compares them with the compiled table.
"""

from typing import ClassVar


class Error(Exception):
    """Base of everything that Forebay raises.

    ``str(e)`` is the message with its facts and the hint. Class attributes ``kind`` (the name), ``code`` (stable
    number; C returns it negated) and ``exit_code`` (of a command that ends with it) hold for every instance.
    """

    kind: ClassVar[str] = "Error"
    code: ClassVar[int] = 0
    exit_code: ClassVar[int] = 70

    message: str
    """The sentence, without facts and hint."""
    context: dict[str, str]
    """Facts: ``{"rank": "2", "pid": "4711"}``."""
    hint: str | None
    """What to do next, when there is something."""

    def __init__(self, message: str, context: dict[str, str] | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.context = dict(context or {})
        self.hint = hint

    def __str__(self) -> str:
        text = self.message
        if self.context:
            text += " (" + ", ".join(f"{key}={value}" for key, value in self.context.items()) + ")"
        if self.hint:
            text += "\n  hint: " + self.hint
        return text

    def __reduce__(self) -> tuple[type["Error"], tuple[str, dict[str, str], str | None]]:
        return type(self), (self.message, self.context, self.hint)


class Usage(Error, ValueError):
    """An argument makes no sense on its own."""

    kind = "Usage"
    code = 1
    exit_code = 2


class UsageType(Usage, TypeError):
    """An argument has a type that makes no sense here."""


class UnknownKey(Error, TypeError):
    """A key of a file or a table that Forebay does not know."""

    kind = "UnknownKey"
    code = 2
    exit_code = 2


class UnknownEnvironment(Error, ValueError):
    """A ``FOREBAY_*`` environment variable that Forebay does not know, or with a value it cannot read."""

    kind = "UnknownEnvironment"
    code = 3
    exit_code = 2


class BadName(Error, ValueError):
    """A name that would leave the pool directory, is empty or too long."""

    kind = "BadName"
    code = 4
    exit_code = 2


class BoxOutsideShape(Error, ValueError):
    """A box that does not lie inside the variable's shape."""

    kind = "BoxOutsideShape"
    code = 5
    exit_code = 2


class UnknownVariable(Error, KeyError):
    """A variable that the version does not hold."""

    kind = "UnknownVariable"
    code = 6
    exit_code = 2


class UnknownComponent(Error, LookupError):
    """A component, command or file that a workflow names and that does not exist."""

    kind = "UnknownComponent"
    code = 7
    exit_code = 2


class VersionExists(Error, ValueError):
    """A version that is complete was put again."""

    kind = "VersionExists"
    code = 8
    exit_code = 2


class VersionOutOfOrder(Error, ValueError):
    """Versions of a space follow each other without gaps; this one does not."""

    kind = "VersionOutOfOrder"
    code = 9
    exit_code = 2


class StepState(Error, RuntimeError):
    """No step is open, or one is open already."""

    kind = "StepState"
    code = 10
    exit_code = 2


class BufferMismatch(Error, ValueError):
    """The buffer's length, dtype or layout does not fit the box."""

    kind = "BufferMismatch"
    code = 11
    exit_code = 2


class NotContiguous(Error, ValueError):
    """The box is not one contiguous range of one piece, so it cannot be viewed without a copy."""

    kind = "NotContiguous"
    code = 12
    exit_code = 2


class OptionMismatch(Error, ValueError):
    """The space exists with other options than the ones asked for."""

    kind = "OptionMismatch"
    code = 13
    exit_code = 2


class DeviceMemory(Error, BufferError):
    """The array lies in the memory of a GPU that cannot be copied from or to."""

    kind = "DeviceMemory"
    code = 14
    exit_code = 2


class SeveralNodes(Error, RuntimeError):
    """A job of several nodes, where only one node can be served."""

    kind = "SeveralNodes"
    code = 20
    exit_code = 3


class PoolOwnedElsewhere(Error, RuntimeError):
    """The pool belongs to another host."""

    kind = "PoolOwnedElsewhere"
    code = 21
    exit_code = 3


class NotPossibleHere(Error, RuntimeError):
    """This tier or mechanism is not available here."""

    kind = "NotPossibleHere"
    code = 22
    exit_code = 3


class NameInUse(Error, RuntimeError):
    """A live process already holds this rank of this space: two runs with one name."""

    kind = "NameInUse"
    code = 23
    exit_code = 3


class GroupMismatch(Error, ValueError):
    """Ranks of one group disagree on its size."""

    kind = "GroupMismatch"
    code = 24
    exit_code = 3


class ComponentFailed(Error, RuntimeError):
    """A component of a workflow failed."""

    kind = "ComponentFailed"
    code = 30
    exit_code = 4


class PermissionDenied(Error, PermissionError):
    """The operating system refused access."""

    kind = "PermissionDenied"
    code = 40
    exit_code = 5


class TierFull(Error, MemoryError):
    """Insufficient capacity on the tier: file system, available memory or a memory cgroup."""

    kind = "TierFull"
    code = 50
    exit_code = 6


class QuotaFull(Error, MemoryError):
    """The space's quota is used up and nothing was released before the deadline."""

    kind = "QuotaFull"
    code = 51
    exit_code = 6


class VersionTooLarge(Error, MemoryError):
    """One version alone is larger than the quota."""

    kind = "VersionTooLarge"
    code = 52
    exit_code = 6


class TooMany(Error, MemoryError):
    """A fixed table (members, groups, lanes) has no free place."""

    kind = "TooMany"
    code = 53
    exit_code = 6


class TimedOut(Error, TimeoutError):
    """The deadline passed."""

    kind = "TimedOut"
    code = 60
    exit_code = 7


class ProducerDied(Error, ConnectionError):
    """A producer rank died; its open versions are aborted."""

    kind = "ProducerDied"
    code = 61
    exit_code = 7


class PeerMissing(Error, TimeoutError):
    """No space of this name appeared, or declared ranks never joined."""

    kind = "PeerMissing"
    code = 62
    exit_code = 7


class Fenced(Error, ConnectionError):
    """A newer incarnation of the producers has taken over; this handle may not write any more."""

    kind = "Fenced"
    code = 63
    exit_code = 7


class Damaged(Error, ValueError):
    """Stored bytes do not match their checksum or make no sense."""

    kind = "Damaged"
    code = 70
    exit_code = 8


class UnknownFormat(Error, ValueError):
    """A format version or feature that this build does not know."""

    kind = "UnknownFormat"
    code = 71
    exit_code = 8


class BoxNotCovered(Error, ValueError):
    """The pieces of a version leave part of the box uncovered."""

    kind = "BoxNotCovered"
    code = 72
    exit_code = 8


class VariableMismatch(Error, ValueError):
    """Ranks disagree on a variable's dtype or global shape."""

    kind = "VariableMismatch"
    code = 73
    exit_code = 8


class VersionGone(Error, LookupError):
    """The version was there and has been dropped."""

    kind = "VersionGone"
    code = 74
    exit_code = 8


class Poisoned(Error, OSError):
    """A flush failed earlier; the pool no longer takes writes."""

    kind = "Poisoned"
    code = 75
    exit_code = 8


class ForkedHandle(Error, RuntimeError):
    """A handle was used in a forked child."""

    kind = "ForkedHandle"
    code = 80
    exit_code = 70


class Closed(Error, ValueError):
    """The handle is closed."""

    kind = "Closed"
    code = 81
    exit_code = 70


class Io(Error, OSError):
    """The operating system reported an error that has no kind of its own."""

    kind = "Io"
    code = 82
    exit_code = 70


class Internal(Error, RuntimeError):
    """A state that should be impossible."""

    kind = "Internal"
    code = 83
    exit_code = 70


BY_KIND: dict[str, type[Error]] = {cls.kind: cls for cls in Error.__subclasses__()}
"""Every class by the name of its kind."""
