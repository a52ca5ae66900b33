"""Objects that are closed at the end of a ``with`` block, whether it ends normally or by an exception."""

from types import TracebackType
from typing import Self


class Closing:
    """Base of classes with a ``close``."""

    def close(self) -> None:
        """Releases what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
