"""``forebay.ensemble``: many simulations put samples, and trainers draw batches of them at random.

Each member of an ensemble has a space of its own, ``NAME.ID``, so members come and go as they like, in any language: a
sample is a version, and `Member` is only a short way to put one. A `Reservoir` finds the members, draws samples among
all that are there, and passes those that were drawn, which frees memory for new ones::

    with ensemble.Member("heat", 17) as member:            # in a simulation
        member.put(x=field, t=0.25)

    for batch in ensemble.Reservoir("heat", members=100):  # in a trainer
        train(batch)

Guarantees: a sample whose ``put`` has returned is kept as the durability of its space says, whatever becomes of the
member, and each is drawn as often as asked; what was drawn is kept in a space of the trainer, so that a trainer that is
killed goes on where it was. Every wait has a deadline. Not here: other nodes; tensors (``forebay.torch``).
"""

import json
import os
import re
import resource
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

import forebay as fb
from forebay import errors
from forebay._closing import Closing
from forebay._forebay import Reader, ReadStep, Writer

#: The reader group for which members keep their samples, unless another is said.
TRAINER = "trainer"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STATE_FORMAT, _STATE_VERSION = "forebay-reservoir", 1
# How often new members are looked for, and whether those without new samples still live.
_LOOK_SECONDS = 0.1
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.001, 0.02
# Between two commits for the samples of other trainers alone.
_OTHERS_SECONDS = 0.1
# A sample that was passed over so many times the window comes next.
_STALE_WINDOWS = 4
# Versions of the trainer's space: the state, and the one before it.
_STATES = "last:2"
# How long a space that is being made is waited for before the others are looked at.
_JOIN_SECONDS = 1.0
# From so many members on the limit of open files is raised, to at most so many.
_MEMBERS_OF_1024_FILES = 64
_FILES_MAX = 65536


def _check_name(name: str, group: str) -> None:
    if name.endswith(f"-{group}"):
        raise errors.BadName(f"the name of an ensemble does not end in -{group}: {name}.0 is the state of a trainer")


def _space(name: str, member: int | str) -> str:
    text = str(member)
    if not _ID.fullmatch(text):
        raise errors.BadName(f"{text!r} is not a member's name: 1 to 64 letters, digits, _ and -")
    return f"{name}.{text}"


class Member:
    """A member of an ensemble, which puts samples into space ``NAME.ID``.

    A member that is opened again before it has ended, also after a kill, goes on behind the samples that it has put:
    ``puts`` says how many. ``trainers`` is the number of processes that draw, and all members say the same; ``group``
    is their reader group. ``options`` go to ``forebay.open``: ``quota``, ``spill``, ``tier``, ``horizon`` say how much
    is kept ahead of the trainers, where, and how safely. In C and Fortran it is ``fb_open(NAME.ID)`` with mode ``a``,
    rank 0 of 1 and readers ``trainer:N``.

    Errors: those of ``forebay.open``; ``NameInUse`` when a process has this member open.
    """

    def __init__(
        self, name: str, member: int | str, *, trainers: int = 1, group: str = TRAINER, **options: Any
    ) -> None:
        _check_name(name, group)
        given = {"channel": "space", "retention": "released", "absent": "hold", "scope": "node", **options}
        self.writer: Writer = fb.open(_space(name, member), "a", rank=0, size=1, readers={group: trainers}, **given)

    @property
    def puts(self) -> int:
        """Samples that this member has put, also before it was opened again."""
        return self.writer.next_version

    def put(self, sample: Mapping[str, object] | None = None, /, **arrays: object) -> int:
        """Puts a sample: named arrays, numbers or texts. It is kept when this returns its number.

        Waits where the quota is full of samples that no trainer has drawn, until the timeout: ``QuotaFull``.
        """
        number = self.writer.next_version
        self.writer.begin_step()
        try:
            for name, array in {**(sample or {}), **arrays}.items():
                self.writer.put(name, cast("Any", array))
            self.writer.end_step()
        except BaseException:
            self.writer.abort_step()
            raise
        return number

    def close(self) -> None:
        """Ends this member: no sample comes any more."""
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A simulation that failed has not ended its member.
        self.writer.__exit__(kind, value, traceback)

    def __repr__(self) -> str:
        return f"forebay.ensemble.Member({self.writer.name!r}, puts={self.puts})"


@dataclass(frozen=True)
class Sample:
    """A sample: a version of a member. ``sample["x"]`` is a copy of an array, or a text.

    It can be read until the next batch is asked for.
    """

    member: str
    number: int
    step: ReadStep
    #: How often it was drawn before.
    seen: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.step.text(name) if self.step.variable(name).kind == "str" else self.step.get(name)

    def view(self, name: str) -> NDArray[Any]:
        """A read-only view of an array, not a copy. Its member cannot use the memory of this sample and of all later
        ones while the view is there: a program that keeps one for long stops it."""
        return self.step.get(name, copy=None)

    def keys(self) -> list[str]:
        """Names of its arrays."""
        return list(self.step.variables)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.step.variables)


@dataclass
class _Entry:
    """A sample that may be drawn."""

    source: "_Source"
    version: int
    seen: int
    # The number of draws when it came, or when it was drawn last.
    since: int


@dataclass
class _Source:
    """A member, as a trainer sees it."""

    # The last part of its path, by which its state is kept.
    key: str
    name: str
    reader: Reader
    uuid: str
    # Versions below it are passed; those from `known` on were not looked at.
    base: int = 0
    known: int = 0
    # Those below it are behind the cursor of the reader.
    at: int = 0
    # Of versions from `base` on: how often they were drawn, and those that are not drawn again.
    seen: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    # How many were known when it was asked whether it has ended.
    asked: int = -1
    is_ended: bool = False
    is_dead: bool = False

    def state(self) -> dict[str, object]:
        return {
            "uuid": self.uuid,
            "base": self.base,
            "seen": {str(version): n for version, n in self.seen.items()},
            "done": sorted(self.done),
        }

    def take(self, state: Mapping[str, Any]) -> None:
        """Goes on from what a trainer has kept of this space."""
        if state["uuid"] != self.uuid:
            # Another space of this name.
            return
        self.base = int(state["base"])
        self.seen = {int(version): n for version, n in state["seen"].items()}
        self.done = set(state["done"])

    def begin_at(self, oldest: int) -> None:
        """Begins behind what is passed, or with the oldest version that is retained."""
        self.base = max(self.base, oldest)
        self.seen = {version: n for version, n in self.seen.items() if version >= self.base}
        self.done = {version for version in self.done if version >= self.base}
        self.known = self.base

    def pass_done(self) -> None:
        """Moves the base behind all samples that are done."""
        while self.base in self.done:
            self.done.discard(self.base)
            self.base += 1

    def move_cursor(self) -> None:
        """Lets the member use the memory of what is passed."""
        reader = self.reader
        try:
            # At the end of a member that was read to its end, its space goes.
            while self.at < self.base or (self.is_ended and reader.version is None):
                if reader.version is None and not reader.begin_step(timeout=0):
                    return
                self.at = cast("int", reader.version)
                if self.at < self.base:
                    reader.end_step()
                    self.at += 1
        except (errors.TimedOut, errors.ProducerDied):
            return


class Reservoir(Closing):
    """The samples of an ensemble, from which a trainer draws batches.

    Iterating gives batches, lists of ``batch`` samples (the last one may be shorter), until ``members`` members have
    ended and all samples are drawn; without ``members`` until nothing has come for ``timeout`` seconds, which is
    ``TimedOut``. A member that was killed is waited for, as it may be started again; with ``dead="ended"`` it has
    ended.

    Samples are drawn among at most ``window``, in the order of their coming (``policy="fifo"``) or at random
    (``"uniform"``, from ``seed`` and the number of the batch). A sample leaves when it was drawn ``seen`` times; with
    ``seen=(least, most)`` it leaves after ``least`` as soon as another one waits, and after ``most``, and when no more
    come. With a ``watermark`` no batch is drawn while fewer samples are there, unless all members have ended or wait
    for space. One that is passed over for four windows comes next, so that members need space for about so many.

    A sample can be read until the next batch is asked for. The batch counts as seen then, or by ``commit()``: a trainer
    that is killed in between gets its samples again. With ``when_killed="skip"`` it counts before it is handed out, and
    no sample is seen too often. ``commit_every=None`` leaves it to ``commit()``, also at the end, as of a program that
    saves a checkpoint with it.

    Of several trainers each is ``rank`` of ``size``, and draws from its own part of the samples; the members said
    ``trainers=size``. What was drawn is kept in the space ``NAME-GROUP.RANK``, made with ``options`` of
    ``forebay.open`` (``horizon``, ``tier``).

    Errors: ``TimedOut``; ``Damaged``; those of ``forebay.open``.
    """

    def __init__(
        self,
        name: str,
        *,
        batch: int = 32,
        members: int | None = None,
        policy: Literal["uniform", "fifo"] = "uniform",
        window: int = 4096,
        watermark: int = 0,
        seen: int | tuple[int, int] = 1,
        when_killed: Literal["again", "skip"] = "again",
        commit_every: int | None = 1,
        dead: Literal["wait", "ended"] = "wait",
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
        group: str = TRAINER,
        timeout: float = 60.0,
        **options: Any,
    ) -> None:
        least, most = seen if isinstance(seen, tuple) else (seen, seen)
        if policy not in ("uniform", "fifo") or when_killed not in ("again", "skip"):
            raise errors.Usage(f"policy={policy!r} is uniform or fifo, when_killed={when_killed!r} is again or skip")
        if not (1 <= least <= most and batch >= 1 and window >= 1 and 0 <= rank < size):
            raise errors.Usage("seen is from 1 on, or (least, most); batch and window are from 1 on; rank < size")
        _check_name(name, group)
        if dead not in ("wait", "ended"):
            raise errors.Usage(f"dead is {dead!r}, not wait or ended")
        if watermark > window:
            raise errors.Usage(f"a watermark of {watermark} is never reached within a window of {window}")
        if commit_every is not None and commit_every < 1:
            raise errors.Usage("commit_every is a number from 1 on, or None")
        self.name, self.group, self.rank, self.size, self.timeout = name, group, rank, size, timeout
        self._batch, self._members, self._policy, self._window = batch, members, policy, window
        self._watermark, self._least, self._most, self._seed = watermark, least, most, seed
        self._dead, self._gone = dead, 0
        self._skips, self._commit_every = when_killed == "skip", commit_every
        self._sources: dict[str, _Source] = {}
        # Samples that may be drawn; and in the order of their coming those that may be passed over.
        self._entries: list[_Entry] = []
        self._order: deque[tuple[_Entry, int]] = deque()
        self._handed: list[_Entry] = []
        self._given: list[Sample] = []
        # Batches since the last commit, and samples of other trainers that were met since.
        self._uncommitted = self._others = 0
        self._committed = 0.0
        self._looked = self._stood = 0.0
        self._stands = False
        self._turn = 0
        space = f"{name}-{group}.{rank}"
        given = {"quota": "64MiB", "timeout": timeout, **options}
        self._space: Writer = fb.open(
            space,
            "a",
            rank=0,
            size=1,
            component="reservoir",
            channel="space",
            retention=_STATES,
            scope="node",
            readers={},
            **given,
        )
        self._kept = self._load(space)
        #: Samples drawn so far, also before a restart.
        self.drawn: int = int(self._kept.get("drawn", 0))
        self._batches = int(self._kept.get("batches", 0))

    def _load(self, space: str) -> dict[str, Any]:
        """The state that was kept last."""
        with fb.open(
            space, observer=True, rank=0, size=1, channel="space", scope="node", timeout=self.timeout
        ) as reader:
            latest = reader.latest()
            if latest is None:
                return {}
            state = json.loads(bytes(reader.open_version(latest).get("state")))
        if (state.get("format"), state.get("version")) != (_STATE_FORMAT, _STATE_VERSION):
            raise errors.UnknownFormat(f"space {space}: its state is of another version")
        least, most = self._least, self._most
        if (state["size"], state["seen"]) != (self.size, [least, most]):
            raise errors.OptionMismatch(
                f"space {space} was left by a reservoir with other options",
                {"size": f"{state['size']}, not {self.size}", "seen": f"{state['seen']}, not {least, most}"},
                f"go on with those, or begin anew: forebay.destroy({space!r})",
            )
        return cast("dict[str, Any]", state)

    # --- what there is

    def _look(self) -> None:
        """Looks for members that have come, and which of those that are known have ended."""
        self._looked = time.monotonic()
        directory, _, short = self.name.rpartition("/")
        root = directory or fb.root()
        try:
            names = os.listdir(root)
        except FileNotFoundError:
            names = []
        # Spaces of members that were read to their end have gone.
        self._gone = len(self._kept.get("members", {}).keys() - set(names) - self._sources.keys())
        for entry in names:
            space = f"{directory}/{entry}" if directory else entry
            is_member = entry.startswith(short + ".") and _ID.fullmatch(entry[len(short) + 1 :])
            # Other files have such names, too.
            if is_member and entry not in self._sources and os.path.exists(os.path.join(root, entry, "pool")):
                self._join(entry, space)
        for source in list(self._sources.values()):
            if source.known >= source.reader.versions().stop:
                self._ask(source)
                if source.is_ended:
                    self._look_again(source)
                elif self._least < self._most and self._is_blocked(source):
                    self._free(source)

    def _look_again(self, source: _Source) -> None:
        """Forgets a member that has ended, if another space has its name now; the next look finds that one."""
        try:
            uuid = fb.inspect(source.name)["uuid"]
        except (errors.PeerMissing, errors.Damaged):
            return
        if uuid != source.uuid and not any(entry.source is source for entry in self._entries):
            source.reader.close()
            del self._sources[source.key]
            self._kept.get("members", {}).pop(source.key, None)

    def _free(self, source: _Source) -> None:
        """Lets a member that waits for space have that of samples that were seen often enough."""
        for i in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[i]
            if entry.source is source and entry.seen >= self._least:
                self._leave(i)
                self._uncommitted = max(self._uncommitted, 1)

    def _join(self, key: str, space: str) -> None:
        if len(self._sources) == _MEMBERS_OF_1024_FILES:
            # A member that is open takes some four of them, and shells give a process 1024 although it may have more.
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _FILES_MAX)), hard))
        try:
            # The environment's rank is that of the trainer among its like, not of this group.
            reader = fb.open(
                space,
                group=self.group,
                rank=self.rank,
                size=self.size,
                component="reservoir",
                channel="space",
                scope="node",
                finished=True,
                timeout=min(self.timeout, _JOIN_SECONDS),
            )
        except (errors.PeerMissing, errors.TimedOut):
            # It is being made, or was removed.
            return
        source = _Source(key, space, reader, reader.uuid)
        kept = self._kept.get("members", {}).get(key)
        if kept is not None:
            source.take(kept)
        source.begin_at(reader.versions().start)
        # Also what a trainer had passed that was killed before it could say so.
        source.move_cursor()
        self._sources[key] = source

    def _ask(self, source: _Source) -> None:
        """Whether a member that has no new sample has ended, or died; it may come again."""
        source.asked = source.known
        try:
            source.reader.wait(source.known, timeout=0)
            source.is_dead = source.is_ended = False
        except errors.TimedOut:
            source.is_dead = source.is_ended = False
        except errors.ProducerDied:
            source.is_dead, source.is_ended = True, self._dead == "ended"
        except (errors.PeerMissing, errors.VersionGone):
            source.is_dead, source.is_ended = False, True

    def _is_blocked(self, source: _Source) -> bool:
        """Whether a member waits for space."""
        try:
            info = cast("dict[str, Any]", fb.inspect(source.name))
        except errors.PeerMissing:
            return False
        return any(one["role"] == "writer" and one["alive"] and one["waiting_for"] for one in info["members"])

    def _is_mine(self, source: _Source, version: int) -> bool:
        return (zlib.crc32(source.key.encode()) + version) % self.size == self.rank

    def _admit(self) -> None:
        """Takes in samples that have come, as many as the window holds, of all members in turn."""
        sources = list(self._sources.values())
        more = True
        while more:
            more = False
            first = self._turn % max(len(sources), 1)
            for source in sources[first:] + sources[:first]:
                version = source.known
                if version >= source.reader.versions().stop:
                    continue
                if version not in source.done and self._is_mine(source, version):
                    if not self._has_space():
                        return
                    self._turn += 1
                    entry = _Entry(source, version, source.seen.get(version, 0), self.drawn)
                    self._entries.append(entry)
                    if self._policy == "uniform":
                        self._order.append((entry, entry.since))
                elif version not in source.done:
                    source.done.add(version)
                    self._others += 1
                source.known += 1
                more = True

    def _has_space(self) -> bool:
        """Whether the window takes another sample; one that was seen often enough leaves for it."""
        if len(self._entries) < self._window:
            return True
        for i, entry in enumerate(self._entries):
            if entry.seen >= self._least:
                self._leave(i)
                return True
        return False

    def _leave(self, i: int) -> None:
        """A sample is not drawn any more."""
        entry = self._entries[i]
        if self._policy == "fifo":
            del self._entries[i]
        else:
            self._entries[i] = self._entries[-1]
            self._entries.pop()
        entry.source.done.add(entry.version)
        entry.source.seen.pop(entry.version, None)

    def _is_over(self) -> bool:
        """Whether no sample will come any more."""
        ended = sum(source.is_ended for source in self._sources.values())
        members = ended + self._gone
        all_known = all(source.known >= source.reader.versions().stop for source in self._sources.values())
        return self._members is not None and members >= self._members and ended == len(self._sources) and all_known

    def _wait(self) -> bool:
        """Waits until a batch may be drawn; returns whether there is one."""
        end = time.monotonic() + self.timeout
        pause = _PAUSE_SECONDS_MIN
        before = -1
        while True:
            if time.monotonic() - self._looked > _LOOK_SECONDS or not self._sources:
                self._look()
            self._admit()
            for source in self._sources.values():
                # Of which all samples are known now; the next look asks again.
                if source.asked < source.known == source.reader.versions().stop:
                    self._ask(source)
            if self._is_over():
                # What was seen often enough is not drawn again.
                for i in range(len(self._entries) - 1, -1, -1):
                    if self._entries[i].seen >= self._least:
                        self._leave(i)
                return bool(self._entries)
            n = len(self._entries)
            if n and (n >= self._watermark or self._all_stand()):
                return True
            if pause > _PAUSE_SECONDS_MIN and self._may_commit():
                # Members may wait for the memory of what was drawn here, or is for other trainers.
                self.commit()
            if n > before:
                before, end = n, time.monotonic() + self.timeout
            if time.monotonic() > end:
                raise self._late(n)
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _may_commit(self) -> bool:
        """Whether a commit frees memory, and is not the program's own to make."""
        if self._uncommitted:
            return self._commit_every is not None
        # These come all the time.
        return self._others > 0 and time.monotonic() - self._committed > _OTHERS_SECONDS

    def _late(self, samples: int) -> errors.TimedOut:
        """The error when no batch could be drawn for too long."""
        ended = self._gone + sum(source.is_ended for source in self._sources.values())
        facts = {
            "members": str(len(self._sources) + self._gone),
            "ended": f"{ended} of {'any' if self._members is None else self._members}",
            "samples": str(samples),
            "watermark": str(self._watermark),
            "waited_s": f"{self.timeout:g}",
        }
        hint = "are the members still computing? say members= so that the end is known, or a longer timeout="
        sources = self._sources.values()
        dead = {source.name for source in sources if source.is_dead}
        alive = [source for source in sources if not source.is_ended and not source.is_dead]
        blocked = {source.name for source in alive if self._is_blocked(source)}
        computing = {source.name for source in alive} - blocked
        for what, found in (("dead", dead), ("waiting_for_space", blocked), ("computing", computing)):
            if found:
                facts[what] = ", ".join(sorted(found)[:8]) + (", …" if len(found) > 8 else "")
        if dead:
            hint = "start the dead members again, or say dead='ended' if none of them comes again"
        elif blocked:
            hint = "views of samples hold memory, or another trainer is late; with commit_every=None call commit()"
        return errors.TimedOut(f"no batch of {self.name} could be drawn", facts, hint)

    def _all_stand(self) -> bool:
        """Whether no member can put more before something is drawn."""
        if self._looked != self._stood:
            self._stood = self._looked
            sources = self._sources.values()
            self._stands = all(one.is_ended or one.is_dead or self._is_blocked(one) for one in sources)
        return self._stands

    # --- drawing

    def _draw(self, count: int) -> list[_Entry]:
        """Draws so many different samples."""
        count = min(count, len(self._entries))
        self._batches += 1
        if self._policy == "fifo":
            chosen = self._entries[:count]
        else:
            random = np.random.default_rng([self._seed, self.rank, self._batches])
            picked = random.choice(len(self._entries), count, replace=False)
            chosen = [self._entries[i] for i in picked]
            self._bring_stale(chosen)
        self.drawn += count
        for entry in chosen:
            entry.since = self.drawn
            if entry.seen + 1 < self._least and self._policy == "uniform":
                self._order.append((entry, entry.since))
        return chosen

    def _bring_stale(self, chosen: list[_Entry]) -> None:
        """Puts samples that were passed over for long into the places of others."""
        taken = {id(entry) for entry in chosen}
        at = 0
        while self._order and at < len(chosen):
            oldest, since = self._order[0]
            is_gone = oldest.version < oldest.source.base or oldest.version in oldest.source.done
            if not is_gone and oldest.since == since and id(oldest) not in taken:
                if self.drawn - since <= _STALE_WINDOWS * self._window:
                    return
                chosen[at] = oldest
                at += 1
            self._order.popleft()

    def _count(self) -> None:
        """Notes that the batch that was handed out was seen."""
        for entry in self._handed:
            entry.seen += 1
            if entry.version not in entry.source.done:
                entry.source.seen[entry.version] = entry.seen
        full = {id(entry) for entry in self._handed if entry.seen >= self._most}
        for i in range(len(self._entries) - 1, -1, -1):
            if id(self._entries[i]) in full:
                self._leave(i)
        self._handed = []

    def commit(self) -> None:
        """Keeps what was drawn: after a restart it counts as seen, and members use its memory again."""
        if not self._skips:
            self._count()
        self._uncommitted, self._others, self._committed = 0, 0, time.monotonic()
        for source in self._sources.values():
            source.pass_done()
        members = {**self._kept.get("members", {}), **{name: one.state() for name, one in self._sources.items()}}
        state = {
            "format": _STATE_FORMAT,
            "version": _STATE_VERSION,
            "size": self.size,
            "seen": [self._least, self._most],
            "drawn": self.drawn,
            "batches": self._batches,
            "members": members,
        }
        text = np.frombuffer(json.dumps(state, separators=(",", ":")).encode(), "u1")
        self._space.begin_step()
        try:
            self._space.put("state", text, concat=True)
            self._space.end_step()
        except BaseException:
            self._space.abort_step()
            raise
        # Only now: what a member drops is never needed again.
        for source in self._sources.values():
            source.move_cursor()

    def _take_back(self) -> None:
        """Closes the samples of the last batch: they hold memory that a member may wait for."""
        for sample in self._given:
            sample.step.close()
        self._given = []

    def __iter__(self) -> Iterator[list[Sample]]:
        return self

    def __next__(self) -> list[Sample]:
        self._take_back()
        if self._commit_every is not None and self._uncommitted >= self._commit_every:
            self.commit()
        elif self._handed and not self._skips:
            self._count()
        if not self._wait():
            if self._commit_every is not None:
                self.commit()
            raise StopIteration
        chosen = self._draw(self._batch)
        batch = [Sample(e.source.name, e.version, e.source.reader.open_version(e.version), e.seen) for e in chosen]
        self._given = batch
        self._handed = chosen
        self._uncommitted += 1
        if self._skips:
            self._count()
            self.commit()
        return list(batch)

    @property
    def members(self) -> list[str]:
        """Spaces of the members that are known."""
        return sorted(self._sources)

    @property
    def available(self) -> int:
        """Samples among which the next batch is drawn."""
        return len(self._entries)

    def close(self) -> None:
        """Closes all spaces here. What was not committed is drawn again."""
        self._take_back()
        for source in self._sources.values():
            source.reader.close()
        self._space.close()


def stack(batch: Iterable[Sample], name: str) -> NDArray[Any]:
    """One array of all samples of a batch, by one copy of each. ``VariableMismatch`` when they have other shapes."""
    samples = list(batch)
    first = samples[0].step.variable(name)
    for sample in samples:
        variable = sample.step.variable(name)
        if (variable.shape, variable.dtype) != (first.shape, first.dtype):
            raise errors.VariableMismatch(
                f"{name} is not the same in all samples of a batch",
                {samples[0].member: f"{first.dtype}{first.shape}", sample.member: f"{variable.dtype}{variable.shape}"},
            )
    whole = np.empty((len(samples), *first.shape), first.dtype)
    for i, sample in enumerate(samples):
        sample.step.get(name, out=whole[i : i + 1].reshape(first.shape))
    return whole
