"""Where a shard's blocks come from: the stream of a space that is being written, or versions that are retained.

Guarantees: a source is used by the process that made it; each wait has the timeout, and after ``TimedOut`` it can be
asked again; a version of the stream is released when the next block is asked for. Not here: which sample of a block
comes when.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import forebay as fb
from forebay import errors
from forebay.torch._blocks import Block, Choice
from forebay.torch._order import Shard

Versions = Literal["all"] | Sequence[int]


class Source:
    """The blocks of one shard, in the order of their versions."""

    def __init__(self, reader: fb.Reader, choice: Choice, shard: Shard) -> None:
        self.reader = reader
        self.choice = choice
        self.shard = shard
        self._blocks: Iterator[Block] | None = None

    def next_block(self) -> Block | None:
        """The next block that holds a sample of this shard; None at the end."""
        if self._blocks is None:
            self._blocks = self._all()
        try:
            return next(self._blocks, None)
        except fb.Error:
            self._blocks = None
            raise

    def _all(self) -> Iterator[Block]:
        """The blocks from the present position on; it is made anew after an error."""
        raise NotImplementedError

    def again(self, version: int) -> Block:
        """The block of a version that was handed out before a restart. Raises ``VersionGone``."""
        found = self._open(version)
        if found is None:
            raise errors.Damaged(
                f"the state names a sample of version {version}, which holds none for this shard",
                {"space": self.reader.path},
            )
        return found

    def _open(self, version: int) -> Block | None:
        with self.reader.open_version(version) as step:
            return self._block(step)

    def _block(self, step: fb.ReadStep) -> Block | None:
        start, stop = self.shard.of(step.version, self.choice.samples(step))
        if start == stop:
            return None
        return Block(self.choice, step.version, start, stop, self.choice.read(step, start, stop))

    def close(self) -> None:
        """Leaves the space. Tensors stay valid."""
        self._blocks = None
        self.reader.close()


class Stream(Source):
    """The versions of a space as they become complete, by a reader group whose ranks are the shards."""

    def __init__(self, reader: fb.Reader, choice: Choice, shard: Shard, last: int | None, timeout: float) -> None:
        """last: the version that was handed out last before a restart."""
        super().__init__(reader, choice, shard)
        self._last = last
        self._timeout = timeout
        self._joined = last is None

    def _all(self) -> Iterator[Block]:
        if self.reader.version is not None:
            self.reader.end_step()
        while self.reader.begin_step(self._timeout):
            step = self.reader.step
            # After a restart the group may go on behind the version that was handed out last, or before it.
            while not self._joined and self._last is not None and self._last + 1 < step.version:
                found = self._open(self._last + 1)
                self._last += 1
                if found is not None:
                    yield found
            self._joined = True
            if self._last is None or step.version > self._last:
                self._last = step.version
                found = self._block(step)
                if found is not None:
                    yield found
            self.reader.end_step()


class Retained(Source):
    """Versions that are complete, or become so within the timeout.

    One version is read ahead by a thread, so that comparing its checksums takes none of the caller's time.
    """

    def __init__(
        self, reader: fb.Reader, choice: Choice, shard: Shard, versions: Versions, last: int | None, timeout: float
    ) -> None:
        super().__init__(reader, choice, shard)
        self.versions = reader.versions() if isinstance(versions, str) else versions
        self._at = 0 if last is None else self._place_behind(last)
        self._timeout = timeout
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: Future[Block | None] | None = None

    def _place_behind(self, last: int) -> int:
        try:
            return self.versions.index(last) + 1
        except ValueError:
            raise errors.Usage(
                f"the state is of another choice of versions: it has gone as far as version {last}",
                {"space": self.reader.path, "versions": repr(self.versions)},
                "give the versions that the state was made with",
            ) from None

    def _all(self) -> Iterator[Block]:
        while self._at < len(self.versions):
            ahead, self._ahead = self._ahead, None
            found = self._open(int(self.versions[self._at])) if ahead is None else ahead.result()
            self._at += 1
            self._read_ahead()
            if found is not None:
                yield found

    def _read_ahead(self) -> None:
        """Begins to read the next version, if that does not wait for its writers."""
        if self.choice.along is None or self._at == len(self.versions):
            return
        version = int(self.versions[self._at])
        if version < self.reader.versions().stop:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-torch")
            self._ahead = self._thread.submit(self._open, version)

    def _open(self, version: int) -> Block | None:
        if version >= self.reader.versions().stop:
            self.reader.wait(version, timeout=self._timeout)
        if self.choice.along is not None:
            return super()._open(version)
        # Opened when the sample is drawn: a window of shuffling holds no versions.
        start, stop = self.shard.of(version, 1)
        if start == stop:
            return None
        return Block(self.choice, version, start, stop, lambda: self.reader.open_version(version))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread = self._ahead = None
        super().close()
