"""Objects under keys, which the processes of a node share: what ``Store`` and ``Cache`` are made of.

A directory holds ``members/N``, a space per process that has put something, and ``keys/``, a tree of symbolic links. An
object is a version of a member's space; the link of its key says which. Making the link, by one system call, is the
moment from which the object is seen. Key ``a/c/0`` has the link ``+a/+c/=0``, so that ``a`` can be a key as well.

Guarantees: an object whose ``put`` has returned is kept as the durability of the spaces says, also when this process is
killed; a reader sees the whole old or the whole new object, never a mixture; memory of objects that were replaced or
deleted is used again. Every wait has a deadline. Not here: what keys mean.

A member's space is a log. To use memory again, its writer passes the oldest versions (a cursor of the reader group
``store`` of its own), and puts again what is still in use; a kill at any point leaves the one or the other version.
Large objects are put as pieces, each shorter than a segment: then any free segments are space for any object. Some
segments stay free, as many as the largest object takes when it is moved, and those that moving may waste.
"""

import contextlib
import itertools
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

import forebay as fb
from forebay import errors
from forebay._forebay import Reader, ReadStep, Writer, _bytes
from forebay.zarr._locks import LockFile

_FORMAT = "forebay-objects"
_VERSION = 1
_ABOUT = "objects.json"
# How spaces are named by which options are tried.
_TRIAL = "trial-"
_TRIES_MAX = 10
# The variables of a version: the object and its key.
_OBJECT, _KEY = "object", "key"
_GROUP = "store"
# A process's quota in segments, and how many of them are for what is begun and for what is moved, beside space for the
# largest object.
_SEGMENTS = 128
_SPARE_SEGMENTS = 4
# So many pieces fit into a segment: at most one of them is wasted at its end.
_PIECES = 8
# An attribute of a member's space: the bytes of the largest object that it was made to hold.
_LARGEST = "largest"
_SEGMENT_BYTES_MAX = 2 << 20
_QUOTA_BYTES_MIN = 4 << 20
_SEGMENT_BYTES_MIN = 256 << 10
# What a version takes beside its object and its key, at most: two headers, a commit, the ends of each.
_RECORD_BYTES = 1024
# Of a part of a key: a file name has 255 bytes, and one says whether it is the last part; of the path of a link.
_PART_BYTES_MAX = 254
_PATH_BYTES_MAX = 4095
# Most processes that put at the same time.
_MEMBERS_MAX = 4096
# Of so many objects that a process has put it remembers the key.
_REMEMBERED_MAX = 1 << 16

# Objects from this size on are copied into memory that is used again, of which so many pieces are kept.
_WARM_BYTES_MIN = 256 << 10
_WARM_MAX = 16

_numbers = itertools.count()
# What a forked child makes anew.
_all: "weakref.WeakSet[Objects]" = weakref.WeakSet()


def _forked() -> None:
    for objects in list(_all):
        objects._forked()


os.register_at_fork(after_in_child=_forked)


class Link(NamedTuple):
    """Where an object lies: what the link of its key says."""

    member: int
    version: int
    size: int
    uuid: str

    def text(self) -> str:
        return f"{self.member}.{self.version}.{self.size}.{self.uuid}"

    @classmethod
    def of(cls, text: str, path: str) -> "Link":
        parts = text.split(".")
        if len(parts) != 4 or not all(part.isdecimal() for part in parts[:3]):
            raise errors.Damaged(f"link {path} does not name an object: {text!r}")
        return cls(int(parts[0]), int(parts[1]), int(parts[2]), parts[3])

    @classmethod
    def read(cls, path: str) -> "Link | None":
        """What the link of a key says; None where there is none."""
        try:
            return cls.of(os.readlink(path), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _error_of(error, path) from error


class _Lost(Exception):
    """The version that a link names is not there."""


def _error_of(error: OSError, path: str) -> errors.Error:
    if isinstance(error, PermissionError):
        return errors.PermissionDenied(f"{path}: {error.strerror}")
    return errors.Io(f"{path}: {error.strerror}")


class _Warm:
    """Memory of arrays that were given away, kept for the next of their size: its pages are there already."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> NDArray[np.uint8]:
        """An array of so many bytes. Its memory comes back when the last array over it has gone."""
        with self._lock:
            at = next((i for i, one in enumerate(self._free) if len(one) == size), None)
            memory = None if at is None else self._free.pop(at)
        if memory is None:
            memory = bytearray(size)
        # Arrays that are made of this one keep it, and not only the memory, as that is no array.
        array = np.frombuffer(memory, "u1")
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array

    def _give_back(self, memory: bytearray) -> None:
        # Perhaps within `take`, by the collector of this thread: then it is not kept.
        if self._lock.acquire(blocking=False):
            self._free.append(memory)
            del self._free[:-_WARM_MAX]
            self._lock.release()


class Member:
    """The space that this process puts into, and the cursor behind which it is reused."""

    def __init__(self, number: int, writer: Writer, cursor: Reader) -> None:
        self.number = number
        self.writer = writer
        self.cursor = cursor
        info = cast("dict[str, Any]", writer.info())
        self.uuid: str = str(info["uuid"])[:8]
        # Of memory and of the lower tiers.
        self.quota_bytes = sum(int(tier["quota_bytes"]) for tier in info["tiers"])
        self.segment_bytes = int(info["segment_bytes"])
        # A piece with its header is no longer than its share of a segment.
        self.piece_bytes = self.segment_bytes // _PIECES - _RECORD_BYTES
        # What the largest object takes that there may be, put by this process or an earlier one.
        self.largest = cast("int", writer.attrs.get(_LARGEST, 0))
        # So much can be put before free space is asked for.
        self.unasked = 0
        # Of what this process has put: key and size by version, and the version that a key was linked to last.
        self.puts: dict[int, tuple[str, int]] = {}
        self.links: dict[str, int] = {}
        # The version behind the last one that the cursor has passed, once it has.
        self.passed = 0

    def put(self, key: str, data: NDArray[np.uint8]) -> int:
        """Puts an object; it is committed when this returns. Returns its version."""
        writer = self.writer
        writer.begin_step()
        version = writer.step.version
        try:
            # Both may have another length in each version.
            for at in range(0, data.nbytes or 1, self.piece_bytes):
                writer.put(_OBJECT, data[at : at + self.piece_bytes], concat=True)
            writer.put(_KEY, np.frombuffer(key.encode(), "u1"), concat=True)
            writer.end_step()
        except BaseException:
            writer.abort_step()
            raise
        if len(self.puts) < _REMEMBERED_MAX:
            self.puts[version] = key, data.nbytes
        return version

    @property
    def _used_bytes(self) -> int:
        """Of a segment, at least: the next piece may not have fitted into the rest."""
        return self.segment_bytes - self.piece_bytes - _RECORD_BYTES

    def needs(self, size: int, key: str) -> int:
        """Bytes that an object of that many bytes takes, with its key and all headers."""
        return size + len(key.encode()) + (2 + size // self.piece_bytes) * _RECORD_BYTES

    def in_segments(self, needed: int) -> int:
        """Bytes of the segments that an object lies in, as badly as it may."""
        return -(-needed // self._used_bytes) * self.segment_bytes

    def spare_bytes(self, needed: int) -> int:
        """What is kept free beside an object, for moving: with it what is oldest can always be put again."""
        wasted = self.quota_bytes // self.segment_bytes * (self.piece_bytes + _RECORD_BYTES)
        return _SPARE_SEGMENTS * self.segment_bytes + self.in_segments(max(self.largest, needed)) + wasted

    def expect(self, needed: int) -> None:
        """From now on there may be an object that takes so much."""
        if needed > self.largest:
            # Rounded up, so that this is rare.
            used = self._used_bytes
            self.largest = -(-needed // used) * used
            self.writer.attrs[_LARGEST] = self.largest

    def oldest(self, last: int) -> ReadStep | None:
        """The oldest version that the cursor has not passed; None when it is no longer one below ``last``."""
        if self.cursor.version is None:
            versions = self.cursor.versions()
            if not versions or max(versions.start, self.passed) >= last:
                return None
            self.cursor.begin_step(timeout=0)
        return self.cursor.step if self.cursor.step.version < last else None

    def is_held(self) -> bool:
        """Whether a reader holds versions that the cursor has passed: one that copies a value."""
        return self.cursor.versions().start < self.passed

    def close(self) -> None:
        self.cursor.close()
        self.writer.close()


class Objects:
    """Objects in a directory, made when it is missing and ``create`` is said.

    ``options`` are those with which the spaces of the members are made: ``tier``, ``quota`` (of each process that
    puts), ``spill``, ``horizon``, ``checksum``. The first process says them, and they are kept in the directory.

    Errors: ``PeerMissing`` when it is not there; ``OptionMismatch`` when it was made with other options; those of
    ``forebay.open``.
    """

    def __init__(
        self,
        path: str,
        *,
        create: bool = False,
        timeout: float = 60.0,
        options: Mapping[str, object] | None = None,
        members_max: int = _MEMBERS_MAX,
    ) -> None:
        self.path = os.path.abspath(path)
        self.timeout = timeout
        #: How long a put waits for readers that hold memory which is to be used again.
        self.patience = timeout
        self._members_max = members_max
        self._keys = os.path.join(self.path, "keys")
        self._options = self._about(create, dict(options or {}))
        self._lock_file: LockFile | None = None
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """What belongs to this process alone, and is made anew in a forked child: there the threads that may hold the
        locks are missing, and handles are those of the parent."""
        # One thread at a time changes something here; readers go on.
        self._changing = threading.RLock()
        self._reading = threading.Lock()
        self._warm = _Warm()
        self._member: Member | None = None
        self._readers: dict[int, Reader] = {}
        self._closed = False

    def _forked(self) -> None:
        """Called in a forked child."""
        closed = self._closed
        self._begin()
        self._closed = closed

    def _check_open(self) -> None:
        if self._closed:
            raise errors.Closed(f"{self.path} is closed here")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread of this process at a time, within the timeout."""
        changing = self._changing
        if not changing.acquire(timeout=self.timeout):
            raise errors.TimedOut(f"another thread has been changing {self.path} for {self.timeout:g} s")
        try:
            self._check_open()
            yield
        finally:
            changing.release()

    # --- the directory

    def _about(self, create: bool, options: dict[str, object]) -> dict[str, object]:
        """The options with which the directory was made, or is made now."""
        given = {key: _plain(value) for key, value in options.items() if value is not None}
        about = os.path.join(self.path, _ABOUT)
        try:
            if create and not os.path.exists(about):
                self._make(about, given)
            with open(about, encoding="utf-8") as file:
                text = file.read()
        except errors.Error:
            raise
        except FileNotFoundError:
            raise errors.PeerMissing(f"there is no store at {self.path}") from None
        except OSError as error:
            raise _error_of(error, self.path) from error
        try:
            found = json.loads(text)
            known = (found["format"], found["version"]) == (_FORMAT, _VERSION)
            kept = dict(found["options"])
        except (ValueError, KeyError, TypeError):
            raise errors.Damaged(f"{about} does not describe a store") from None
        if not known:
            raise errors.UnknownFormat(f"{about}: format {found['format']} {found['version']} is not known here")
        others = {key: value for key, value in given.items() if kept.get(key) != value}
        if others:
            raise errors.OptionMismatch(
                f"the store {self.path} was made with other options",
                {key: f"{kept.get(key)}, not {value}" for key, value in others.items()},
                "leave them out, or make a store of another name",
            )
        return kept

    def _make(self, about: str, options: dict[str, object]) -> None:
        """Makes the directory; of several processes that do so at once one says the options."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        strangers = set(os.listdir(self.path)) - {"keys", "members", "new", "lock", "fetching", _ABOUT}
        if any(not name.startswith(_ABOUT) for name in strangers):
            raise errors.NameInUse(f"{self.path} exists and is not a store: it contains {min(strangers)}")
        for name in ("keys", "members", "new"):
            os.makedirs(os.path.join(self.path, name), mode=0o700, exist_ok=True)
        # All members are made alike, also when less is free then.
        place = os.statvfs(self.path)
        kept = {"quota": place.f_bavail * place.f_frsize // 4, **options}
        quota = _bytes(cast("int | str", kept["quota"]))
        if quota < _QUOTA_BYTES_MIN:
            raise errors.Usage(f"a quota of {quota} bytes for each process is less than {_QUOTA_BYTES_MIN >> 20} MiB")
        segment = quota // _SEGMENTS
        kept["segment"] = max(_SEGMENT_BYTES_MIN, min(segment, _SEGMENT_BYTES_MAX)) // 4096 * 4096
        self._try_options(kept)
        mine = f"{about}.{os.getpid()}.{next(_numbers)}"
        with open(mine, "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, "version": _VERSION, "options": kept}, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(mine, about)
        finally:
            os.unlink(mine)
        _sync(self.path)

    def _try_options(self, options: dict[str, object]) -> None:
        """Makes a space with the options, which are kept for good, and removes it."""
        self._remove_trials()
        try:
            for attempt in range(_TRIES_MAX):
                trial = os.path.join(self.path, "new", f"{_TRIAL}{os.getpid()}-{next(_numbers)}")
                try:
                    fb.open(trial, "w", **self._made(options)).close()
                    break
                except errors.PeerMissing:
                    # Another process, which tries options too, has removed it before it was open.
                    if attempt + 1 == _TRIES_MAX:
                        raise
            self._remove_trials()
        except BaseException:
            # What another process has made here stays.
            for name in ("keys", "members", "new", ""):
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(self.path, name))
            raise

    def _remove_trials(self) -> None:
        """Removes spaces by which options were tried, also those of processes that were killed."""
        new = os.path.join(self.path, "new")
        for name in _entries(new):
            if name.startswith(_TRIAL):
                # One that another process is trying, or has just removed.
                with contextlib.suppress(errors.Error):
                    fb.destroy(os.path.join(new, name))

    def _made(self, options: dict[str, object]) -> dict[str, Any]:
        """The options with which members are made; also what the environment could say otherwise."""
        made = {key: value for key, value in options.items() if key != "processes"}
        made.update(
            rank=0, size=1, channel="space", retention="released", scope="node", absent="hold", timeout=self.timeout
        )
        made["when_full"] = "spill" if made.get("spill") else "error"
        return made

    def _directory_of(self, parts: list[str]) -> str:
        """The directory of keys that begin with these parts."""
        for part in parts:
            if not part or "\0" in part or len(part.encode(errors="surrogatepass")) > _PART_BYTES_MAX:
                raise errors.Usage(f"key {'/'.join(parts)!r} is not valid: part {part!r}")
        path = "/+".join([self._keys, *parts])
        size = len(os.fsencode(path))
        if size > _PATH_BYTES_MAX:
            raise errors.Usage(f"key {'/'.join(parts)[:100]!r}… is too long: the path of its link has {size} bytes")
        return path

    def _path_of(self, key: str) -> str:
        """The link of a key."""
        above, _, last = self._directory_of(key.split("/")).rpartition("/+")
        return f"{above}/={last}"

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Holds the lock of a key against other processes; the kernel drops it when this one is killed."""
        if self._lock_file is None or not self._lock_file.is_open:
            self._lock_file = LockFile(os.path.join(self.path, "lock"))
        end = time.monotonic() + self.timeout
        pause = 20e-6
        while not self._lock_file.try_lock(key):
            if time.monotonic() > end:
                raise errors.TimedOut(
                    f"another process has been changing key {key!r} of {self.path} for {self.timeout:g} s",
                    hint="it may be stopped: fuser shows which process has the file `lock` open",
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        try:
            yield
        finally:
            self._lock_file.unlock()

    # --- members

    def _own(self) -> Member:
        """The member of this process: a space that no live process writes, or a new one."""
        if self._member is None:
            for number in range(self._members_max):
                member = self._join(number)
                if member is not None:
                    self._member = member
                    break
            else:
                raise errors.TooMany(f"{self._members_max} processes put into {self.path} already")
        return self._member

    def _join(self, number: int) -> Member | None:
        """Goes on with the space of that member; None when a live process writes it."""
        path = os.path.join(self.path, "members", str(number))
        # A second handle of one process is a member of its own.
        component = f"store-{os.getpid()}-{next(_numbers)}"
        try:
            writer = fb.open(path, "a", component=component, readers={_GROUP: 1}, **self._made(self._options))
        except errors.NameInUse:
            return None
        try:
            cursor = fb.open(
                path,
                rank=0,
                size=1,
                group=_GROUP,
                component=component,
                channel="space",
                scope="node",
                timeout=self.timeout,
            )
            member = Member(number, writer, cursor)
            if not member.largest and writer.next_version:
                member.expect(self._largest_of(member))
            return member
        except BaseException:
            writer.close()
            raise

    def _largest_of(self, member: Member) -> int:
        """What the largest object of a member takes of which the space itself does not say it."""
        largest = 0
        for key in self.keys():
            link = Link.read(self._path_of(key))
            if link is not None and link.member == member.number:
                largest = max(largest, member.needs(link.size, key))
        return largest

    def _reader(self, number: int, uuid: str) -> Reader:
        """An observer of a member's space."""
        known = self._readers.get(number)
        if known is None or known.closed or not known.uuid.startswith(uuid):
            path = os.path.join(self.path, "members", str(number))
            if not os.path.isdir(path):
                raise _Lost
            try:
                known = fb.open(
                    path, rank=0, size=1, observer=True, channel="space", scope="node", timeout=self.timeout
                )
            except errors.PeerMissing:
                raise _Lost from None
            if not known.uuid.startswith(uuid):
                raise _Lost
            self._readers[number] = known
        return known

    # --- objects

    def _open(self, link: Link, key: str) -> ReadStep:
        """The version that a link names."""
        with self._reading:
            reader = self._reader(link.member, link.uuid)
            try:
                step = reader.open_version(link.version)
            except (errors.VersionGone, errors.TimedOut, errors.ProducerDied, errors.PeerMissing):
                raise _Lost from None
        # After a crash of the machine another object may have the version of one that was not durable.
        if bytes(step.get(_KEY)) != key.encode():
            raise _Lost
        return step

    def get(self, key: str) -> NDArray[np.uint8] | None:
        """The bytes of an object, copied; None where there is none.

        A view would hold the memory of all that its process puts after it.

        Errors: ``Damaged`` when its checksum does not match, or when a crash of the machine took it.
        """
        path = self._path_of(key)
        self._check_open()
        lost = None
        while True:
            link = Link.read(path)
            if link is None:
                return None
            try:
                return self._copied(self._open(link, key), link)
            except _Lost:
                if link == lost:
                    raise errors.Damaged(
                        f"object {key!r} of {self.path} is lost: member {link.member} has no version {link.version}",
                        hint="a store outlives a crash of the machine as its tier and horizon say; delete the key",
                    ) from None
            # It was moved or replaced meanwhile; if not, the next round says so.
            lost = link

    def _copied(self, step: ReadStep, link: Link) -> NDArray[np.uint8]:
        if link.size < _WARM_BYTES_MIN:
            return step.get(_OBJECT)
        return step.get(_OBJECT, out=self._warm.take(step.variables[_OBJECT].shape[0]))

    def size(self, key: str) -> int | None:
        """Length of an object; None where there is none."""
        self._check_open()
        link = Link.read(self._path_of(key))
        return None if link is None else link.size

    def put(self, key: str, data: NDArray[np.uint8], *, only_new: bool = False) -> bool:
        """Puts an object under a key; what was there before is replaced, or with ``only_new`` stays.

        Returns whether it was put. Kept when this returns, as the durability of the space says. Errors: ``QuotaFull``
        when what is in use leaves no space for it (what a key has counts until it is replaced); ``Usage``: no key.
        """
        path = self._path_of(key)
        with self._alone():
            if only_new and os.path.lexists(path):
                return False
            member = self._own()
            version = self._put(member, key, data)
            link = Link(member.number, version, data.nbytes, member.uuid)
            with self._locked(key):
                is_linked = self._link(path, link, only_new=only_new)
            if is_linked and version in member.puts:
                member.links[key] = version
            return is_linked

    def _link(self, path: str, link: Link, *, only_new: bool = False) -> bool:
        """Makes the link of a key; called with its lock."""
        new = os.path.join(self.path, "new", str(link.member))
        text = link.text()
        end = time.monotonic() + self.timeout
        while True:
            try:
                if only_new:
                    os.symlink(text, path)
                else:
                    self._symlink_new(text, new)
                    os.rename(new, path)
                break
            except FileExistsError:
                return False
            except FileNotFoundError:
                # Also when another process has just removed a directory that had become empty.
                try:
                    _make_directories(os.path.dirname(path), self._keys)
                except OSError as error:
                    raise _error_of(error, path) from error
            except OSError as error:
                raise _error_of(error, path) from error
            if time.monotonic() > end:
                raise errors.TimedOut(f"other processes keep removing {os.path.dirname(path)}")
        if self._is_synced():
            # All above: another process may have made a directory and not have synced it yet.
            above = os.path.dirname(path)
            while len(above) >= len(self._keys):
                _sync(above)
                above = os.path.dirname(above)
        return True

    def _symlink_new(self, text: str, new: str) -> None:
        """Makes a link that no key has yet; one that a killed process left there goes."""
        try:
            os.symlink(text, new)
        except FileExistsError:
            os.unlink(new)
            os.symlink(text, new)

    def _is_synced(self) -> bool:
        """Whether links are made durable: where the spaces are."""
        return self._options.get("horizon", "none") != "none"

    def delete(self, key: str) -> bool:
        """Deletes an object; returns whether there was one."""
        path = self._path_of(key)
        with self._alone():
            with self._locked(key):
                if not self._unlink(path):
                    return False
            self._remove_above(path)
        return True

    def _unlink(self, path: str) -> bool:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        if self._is_synced():
            _sync(os.path.dirname(path))
        return True

    def _remove_above(self, path: str) -> None:
        """Removes the directories above a key that hold no others."""
        above = os.path.dirname(path)
        while above != self._keys:
            try:
                os.rmdir(above)
            except OSError:
                return
            above = os.path.dirname(above)

    def delete_below(self, prefix: str) -> None:
        """Deletes all objects whose keys begin with ``prefix`` and a ``/``; with an empty one all."""
        for key in list(self.keys(prefix)):
            self.delete(key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Keys below a prefix that ends where a component does, in no order."""
        self._check_open()
        begin = prefix.strip("/")
        waiting = [begin.split("/") if begin else []]
        while waiting:
            parts = waiting.pop()
            for name in _entries(self._directory_of(parts)):
                if name.startswith("="):
                    yield "/".join([*parts, name[1:]])
                else:
                    waiting.append([*parts, name[1:]])

    def names(self, prefix: str = "") -> Iterator[str]:
        """Names directly below a prefix: last parts of keys, and parts that keys go on behind."""
        self._check_open()
        begin = prefix.strip("/")
        parts = begin.split("/") if begin else []
        seen: set[str] = set()
        for name in _entries(self._directory_of(parts)):
            below = name[1:]
            if below not in seen and (name.startswith("=") or any(self.keys("/".join([*parts, below])))):
                seen.add(below)
                yield below

    # --- using memory again

    def _put(self, member: Member, key: str, data: NDArray[np.uint8]) -> int:
        """Puts into the own space, and passes old versions until there is space for it."""
        # All waits together.
        end = time.monotonic() + self.patience
        # Once through all that is there now: what is moved is not met again.
        self._make_space(member, member.needs(data.nbytes, key), member.writer.next_version, end)
        return self._put_waiting(member, key, data, end)

    def _put_waiting(self, member: Member, key: str, data: NDArray[np.uint8], end: float) -> int:
        """Puts into the own space; waits for readers, which hold versions that were passed while they copy them."""
        while True:
            try:
                return member.put(key, data)
            except (errors.QuotaFull, errors.TierFull):
                if time.monotonic() > end:
                    raise
                time.sleep(0.001)

    def _make_space(self, member: Member, needed: int, last: int, end: float) -> None:
        """Passes old versions until so many bytes are free, and some segments for what is moved."""
        if needed <= min(member.unasked, member.largest):
            member.unasked -= needed
            return
        spare = member.spare_bytes(needed)
        wanted = member.in_segments(needed) + spare
        # It is replaced while it is there, and the writer has two segments for what comes next.
        if wanted + member.in_segments(needed) > member.quota_bytes - 2 * member.segment_bytes:
            raise errors.VersionTooLarge(
                f"an object that takes {needed} bytes is too large for a process's part of {self.path}",
                {"quota": str(member.quota_bytes), "kept_free": str(spare)},
                "make the store with a larger quota= or with a lower tier: spill=",
            )
        all_passed = False
        while (free := member.writer.free_bytes or 0) < wanted:
            if all_passed and member.is_held() and time.monotonic() < end:
                time.sleep(0.001)
            elif all_passed:
                raise errors.QuotaFull(
                    f"what this process has put into {self.path} leaves no space for {needed} bytes",
                    {"free": str(free), "kept_free": str(spare)},
                    "delete objects, or make the store with a larger quota= or with a lower tier: spill=",
                )
            # A segment's worth at a time: so much can be put again.
            passed = 0
            while passed < member.segment_bytes and not all_passed:
                size = self._pass_oldest(member, last, end)
                all_passed = size is None
                passed += size or 0
        member.expect(needed)
        member.unasked = member.segment_bytes

    def _pass_oldest(self, member: Member, last: int, end: float) -> int | None:
        """Passes the oldest version of the own space, and puts its object again if it is in use; returns its bytes."""
        step = member.oldest(last)
        if step is None:
            return None
        version = step.version
        key, size = member.puts.pop(version, ("", 0))
        if key and member.links.get(key, version) > version:
            # It was replaced by this process, which needs no look at the link for that.
            return self._passed(member, version, size)
        if key and member.links.get(key) == version:
            del member.links[key]
        try:
            key = bytes(step.get(_KEY)).decode()
        except errors.Damaged:
            # It cannot be read, whatever it is: its key, if it has one yet, is lost.
            return self._passed(member, version, 0)
        size = step.variables[_OBJECT].shape[0]
        link = Link(member.number, version, size, member.uuid)
        try:
            path = self._path_of(key)
        except errors.Usage:
            # It never had a link.
            return self._passed(member, version, size)
        # Where this fails the version stays the oldest.
        if Link.read(path) == link:
            self._keep(member, key, link, step, end)
        return self._passed(member, version, size)

    def _passed(self, member: Member, version: int, size: int) -> int:
        member.cursor.end_step()
        member.passed = version + 1
        return size + _RECORD_BYTES

    def _keep(self, member: Member, key: str, link: Link, step: ReadStep, end: float) -> None:
        """Puts an object again whose version is about to be passed."""
        try:
            data = step.get(_OBJECT, copy=None)
        except errors.Damaged as error:
            raise errors.Damaged(
                f"object {key!r} of {self.path} cannot be moved: {error.message}", error.context, "delete that key"
            ) from error
        moved = link._replace(version=self._put_waiting(member, key, data, end))
        path = self._path_of(key)
        with self._locked(key):
            if Link.read(path) == link:
                self._link(path, moved)

    # --- end

    def close(self) -> None:
        """Closes the spaces here; what was put stays."""
        with self._changing, self._reading:
            if self._member is not None:
                self._member.close()
            for reader in self._readers.values():
                reader.close()
            if self._lock_file is not None:
                self._lock_file.close()
            self._member, self._readers, self._lock_file, self._closed = None, {}, None, True

    def destroy(self) -> None:
        """Closes the spaces here and removes all, lower tiers too. ``NameInUse`` while another process has one open."""
        self.close()
        self._remove_trials()
        # Where it is refused, this one goes on.
        self._closed = False
        members = os.path.join(self.path, "members")
        spaces = [os.path.join(members, number) for number in _entries(members)]
        # All or nothing: the first time nothing is removed yet.
        for dry_run in (True, False) if spaces else ():
            report = cast("dict[str, Any]", fb.clean(*spaces, dry_run=dry_run))
            for kept in report["kept"]:
                raise errors.NameInUse(f"the store {self.path} is in use: {kept['reason']}", {"space": kept["name"]})
        shutil.rmtree(self.path)
        self._closed = True


def directory_of(name: str | os.PathLike[str]) -> str:
    """The directory of a store by its short name or path."""
    text = os.fspath(name)
    return os.path.abspath(text if "/" in text else os.path.join(fb.root(), text))


def _plain(value: object) -> object:
    """An option as JSON has it."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _sync(directory: str) -> None:
    """Makes the names in a directory durable; one that was removed since has none."""
    try:
        file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _entries(directory: str) -> list[str]:
    """Names in a directory; none when it is not there."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _make_directories(path: str, root: str) -> None:
    """Makes the directories of a key."""
    missing = [path]
    while missing:
        try:
            os.mkdir(missing[-1], 0o700)
            missing.pop()
        except FileExistsError:
            missing.pop()
        except FileNotFoundError:
            if missing[-1] == root:
                raise errors.PeerMissing(f"{root} is gone") from None
            missing.append(os.path.dirname(missing[-1]))
