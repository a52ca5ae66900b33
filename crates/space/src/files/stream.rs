//! The directory of a file-per-object channel: who writes, who reads, what is complete, what may go.
//!
//! ```text
//! stream.json                what was chosen at creation, the incarnations of the writers, declared readers
//! members                    kernel locks: slot = writer rank, or 65536 + n for readers
//! r0000.open, r0000.closed   a writer rank came, ended cleanly (both say in which incarnation)
//! reader-<group>-0000.json   a reader rank: its cursor, and whether it ended
//! dropped.json               versions below this one are gone
//! v0000000000/               a version
//!   r0000-000000-<name>.obj  one object (see `object`)
//!   r0000.done               written last by each rank: how many objects, in which incarnation
//! ```
//!
//! Guarantees: every file is replaced as a whole. A version is complete when all ranks of the incarnation
//! that owns it have a `done` file of that incarnation; versions of one incarnation follow each other, and
//! the next begins at the first version that was not complete. Liveness is the kernel's locks, never a pid.
//! Not here: readers (see `readers`), objects; waking
//! anyone (files have no wake-up: a process that waits polls).

use crate::attributes::Attribute;
use crate::control::ownership::LOCK_FILE;
use crate::open::channel::{is_stream, version_of, MEMBERS_FILE, STREAM_FILE};
use crate::open::directory::{put_in_place, remove_leftovers, remove_unfinished, settle_name, take_away};
use crate::open::new_directory::NewDirectory;
use crate::open::opening::{after_loss, may_have_come_before, Writers};
use crate::place::name::{behind_links, place_of};
use crate::place::{name, whole_file};
use crate::stats::Counters;
use crate::step::Deadline;
use forebay_config::{OpenOptions, Retention};
use forebay_tier::host::fs;
use forebay_tier::liveness::MembersFile;
use forebay_tier::{clock, process, Durability, Error, Horizon, Kind, Result, TierKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Schema of `stream.json`.
const SCHEMA: &str = "forebay.files/1";
const SCHEMA_FAMILY: &str = "forebay.files/";

/// The one lock: joining, groups, cursors, dropping. And one for attributes.
pub(crate) const LOCK_STREAM: u64 = 0;
const LOCK_ATTRIBUTES: u64 = 1;

/// A lock is held for the time of a few small files; even a passed deadline gets a fair try.
const LOCK_WAIT_MIN: Duration = Duration::from_millis(500);

/// What was chosen at creation, and who has written since.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StreamDf {
    schema: String,
    /// Host that the kernel locks are good for.
    pub(crate) host: String,
    pub(crate) uuid: String,
    pub(crate) horizon: Horizon,
    pub(crate) retention: Retention,
    pub(crate) checksum: bool,
    pub(crate) quota_bytes: Option<u64>,
    /// The latest comes last; empty until its maker, or a rank after it, has joined.
    pub(crate) incarnations: Vec<IncarnationDf>,
    /// Reader groups that must have released a version before it goes, with their sizes.
    pub(crate) readers: BTreeMap<String, u32>,
    /// The last reader group was removed by request, and no other one has come since: nothing is kept for readers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) readers_removed: bool,
}

/// One start of the writer group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct IncarnationDf {
    pub(crate) number: u32,
    pub(crate) size: u32,
    /// First version that it owns.
    pub(crate) first_version: u64,
    pub(crate) component: String,
    /// The run it belongs to; empty when none was said.
    pub(crate) run: String,
}

/// A writer rank that came (`.open`) or ended (`.closed`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RankDf {
    incarnation: u32,
    pub(crate) pid: u32,
    pub(crate) since_unix_ns: u64,
    pub(crate) done: Counters,
}

/// One rank's part of a version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DoneDf {
    pub(crate) incarnation: u32,
    pub(crate) objects: u32,
    pub(crate) bytes: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct DroppedDf {
    pub(super) oldest: u64,
}

/// How the writers stand.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Producers {
    /// Some rank may still commit something.
    Open,
    /// All ranks ended cleanly.
    Finished,
    /// This rank came, did not end and does not live.
    Died(u32),
}

/// Inode and change time of a file.
type Seen = (u64, i64, i64);

/// An opened directory.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) members: MembersFile,
    pub(crate) df: StreamDf,
    /// Which `stream.json` was read: changes with every replacement.
    seen: Seen,
}

fn version_name(version: u64) -> String {
    format!("v{version:010}")
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let content = match whole_file::read(path) {
        Ok(content) => content,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("read {}", path.display()), e)),
    };
    serde_json::from_slice(&content)
        .map(Some)
        .map_err(|e| Error::new(Kind::Damaged, format!("cannot parse {}: {e}", path.display())).caused_by(e))
}

pub(super) fn write_json(path: &Path, value: &impl Serialize, durable: bool) -> Result<()> {
    let content = serde_json::to_vec(value)
        .map_err(|e| Error::new(Kind::Internal, format!("cannot write {}", path.display())).caused_by(e))?;
    whole_file::replace(path, &content, durable)
}

impl RankDf {
    fn here(incarnation: u32, done: Counters) -> RankDf {
        RankDf { incarnation, pid: process::pid(), since_unix_ns: clock::realtime_ns(), done }
    }
}

impl StreamDf {
    pub(super) fn new(options: &OpenOptions) -> Result<StreamDf> {
        let horizon = options.horizon.unwrap_or_default();
        let checksum = options.checksum.unwrap_or(true);
        if !checksum && horizon != Horizon::None {
            return Err(Error::new(Kind::Usage, "checksums can be turned off only at horizon none")
                .with("horizon", horizon));
        }
        Ok(StreamDf {
            schema: SCHEMA.into(),
            host: process::host_name().into(),
            uuid: uuid::Uuid::from_bytes(forebay_tier::host::random_uuid(|| {
                uuid::Uuid::new_v4().into_bytes()
            }))
            .to_string(),
            horizon,
            retention: options.retention.unwrap_or_default(),
            checksum,
            quota_bytes: options.quota_bytes,
            incarnations: Vec::new(),
            readers: BTreeMap::new(),
            readers_removed: false,
        })
    }

    /// The writers of now.
    pub(crate) fn current(&self) -> Option<&IncarnationDf> {
        self.incarnations.last()
    }

    /// The incarnation that owns a version.
    pub(crate) fn owner_of(&self, version: u64) -> Option<&IncarnationDf> {
        self.incarnations.iter().rev().find(|i| i.first_version <= version)
    }
}

impl Stream {
    /// Opens the channel in `dir`; makes it with these options when `create` and it is not there. `None`: not
    /// there.
    pub(crate) fn open(
        name: &str,
        dir: &Path,
        options: &OpenOptions,
        create: bool,
    ) -> Result<Option<Stream>> {
        name::check_own(dir)?;
        let mut is_new = false;
        if !dir.join(STREAM_FILE).exists() {
            if !create {
                return check_no_space(name, &behind_links(dir)).map(|()| None);
            }
            let (parent, file) = place_of(name, &behind_links(dir))?;
            remove_leftovers(&parent, Some(&file));
            is_new = fs::metadata(dir).is_err();
            make_directory(name, dir)?;
        }
        // Fails where another process has put something into it.
        let give_up = || drop(is_new.then(|| fs::remove_dir(dir)));
        let members = match MembersFile::create(&dir.join(MEMBERS_FILE)) {
            Ok(members) => members,
            // Removed at this moment; for the process that makes it, the next try makes it anew.
            Err(_) if !dir.exists() => return Ok(None),
            Err(e) => {
                give_up();
                return Err(e);
            }
        };
        if create {
            members.with_lock(LOCK_STREAM, options.timeout.max(LOCK_WAIT_MIN), || {
                // Removed meanwhile, and perhaps made anew: the next try has the lock of what is there.
                if is_stream(dir) || !members.is_there() {
                    return Ok(());
                }
                let made = StreamDf::new(options)
                    .and_then(|df| write_json(&dir.join(STREAM_FILE), &df, df.horizon != Horizon::None));
                // No other process has joined what has no `stream.json`.
                made.inspect_err(|_| {
                    let _ = fs::remove_file(members.path());
                    give_up();
                })
            })?;
        }
        let Some((df, seen)) = load(dir)? else { return Ok(None) };
        if !members.is_there() {
            return Ok(None);
        }
        if df.host != process::host_name() {
            return Err(Error::new(Kind::PoolOwnedElsewhere, format!("{name} belongs to another host"))
                .with("host", &df.host)
                .with("here", process::host_name())
                .hint("open it there, or choose another name"));
        }
        Ok(Some(Stream { name: name.into(), dir: dir.into(), members, df, seen }))
    }

    /// Under the lock of the channel: puts an empty one in its place. The new one is whole before the old one goes. A
    /// process that is killed here leaves the old one, the new one, or a free name, and perhaps a directory with a
    /// hidden name.
    pub(super) fn replace(&self, options: &OpenOptions) -> Result<()> {
        let df = StreamDf::new(options)?;
        let is_durable = df.horizon != Horizon::None;
        let dir = behind_links(&self.dir);
        let (parent, file) = place_of(&self.name, &dir)?;
        remove_leftovers(&parent, Some(&file));
        let new = NewDirectory::make(&parent, &file)?;
        let made = whole_file::write_new(&new.path.join(MEMBERS_FILE), &[], is_durable)
            .map_err(|e| Error::io(format!("cannot create {}", dir.display()), e))
            .and_then(|()| write_json(&new.path.join(STREAM_FILE), &df, is_durable))
            .and_then(|()| take_away(&dir, &parent, &file));
        let gone = made.inspect_err(|_| drop(remove_unfinished(&new.path)))?;
        match put_in_place(&self.name, &new.path, &dir) {
            // The lock of its maker. Of another process's space it would be another one.
            Ok(true) => drop(fs::remove_file(dir.join(LOCK_FILE))),
            Ok(false) => {}
            Err(e) => {
                let _ = gone.map(|gone| fs::rename(gone, &dir));
                return Err(e);
            }
        }
        gone.map_or(Ok(()), |gone| remove_unfinished(&gone).map(drop))
    }

    /// The channel as messages name it.
    pub(super) fn what(&self) -> String {
        format!("channel {}", self.name)
    }

    /// Reads `stream.json` again when it was replaced.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`] when the channel was removed.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let path = self.dir.join(STREAM_FILE);
        if fs::metadata(&path).is_ok_and(|meta| seen_of(&meta) == self.seen) {
            return Ok(());
        }
        let removed = || {
            Error::new(Kind::PeerMissing, format!("{} was removed", self.what()))
                .with("directory", self.dir.display())
        };
        let (df, seen) = load(&self.dir)?.ok_or_else(removed)?;
        if df.uuid != self.df.uuid {
            // Another channel has the name now.
            return Err(removed());
        }
        (self.df, self.seen) = (df, seen);
        Ok(())
    }

    /// Runs `f` under the lock of the channel, with its `stream.json` as it is then. Not reentrant.
    ///
    /// # Errors
    /// `TimedOut`; [`Kind::PeerMissing`] when the channel was removed, whatever has its name now.
    pub(crate) fn locked<T>(
        &mut self,
        timeout: Duration,
        f: impl FnOnce(&mut Stream) -> Result<T>,
    ) -> Result<T> {
        let members = self.members.clone();
        members.with_lock(LOCK_STREAM, timeout.max(LOCK_WAIT_MIN), || {
            self.refresh()?;
            f(self)
        })
    }

    /// Sets an attribute, under a lock of its own.
    pub(crate) fn set_attribute(&self, key: &str, value: &Attribute, timeout: Duration) -> Result<()> {
        crate::attributes::set(&self.dir, key, value, self.is_durable(), &|change| {
            self.members.with_lock(LOCK_ATTRIBUTES, timeout, change)
        })
    }

    /// True when what is acknowledged is flushed first.
    pub(crate) fn is_durable(&self) -> bool {
        self.df.horizon != Horizon::None
    }

    /// What an acknowledged version survives.
    pub(crate) fn durability(&self) -> Durability {
        let in_memory = !matches!(forebay_tier::detect(&self.dir), Ok(TierKind::File | TierKind::Pmem));
        if self.is_durable() && !in_memory {
            Durability::Power
        } else {
            Durability::Process
        }
    }

    pub(crate) fn version_dir(&self, version: u64) -> PathBuf {
        self.dir.join(version_name(version))
    }

    fn save(&mut self) -> Result<()> {
        write_json(&self.dir.join(STREAM_FILE), &self.df, self.is_durable())?;
        self.refresh()
    }

    // ---- writers ----

    fn open_file(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("r{rank:04}.open"))
    }

    fn closed_file(&self, rank: u32) -> PathBuf {
        self.dir.join(format!("r{rank:04}.closed"))
    }

    fn done_file(&self, version: u64, rank: u32) -> PathBuf {
        self.version_dir(version).join(format!("r{rank:04}.done"))
    }

    /// What a rank that came in the current incarnation said last.
    pub(crate) fn came(&self, rank: u32) -> Result<Option<RankDf>> {
        let number = self.df.current().map_or(0, |i| i.number);
        Ok(read_json::<RankDf>(&self.open_file(rank))?.filter(|df| df.incarnation == number))
    }

    /// When a rank of the current incarnation ended cleanly last; 0 for none.
    pub(super) fn closed_unix_ns(&self) -> u64 {
        let (number, size) = self.df.current().map_or((0, 0), |i| (i.number, i.size));
        let closed = (0..size).filter_map(|rank| read_json::<RankDf>(&self.closed_file(rank)).ok().flatten());
        closed.filter(|df| df.incarnation == number).map(|df| df.since_unix_ns).max().unwrap_or(0)
    }

    /// When the last rank of the current incarnation came, and when the last one ended; nanoseconds since 1970.
    pub(super) fn writers_lived(&self) -> Result<Range<u64>> {
        let size = self.df.current().map_or(0, |current| current.size);
        let mut last = 0;
        for rank in 0..size {
            last = last.max(self.came(rank)?.map_or(0, |df| df.since_unix_ns));
        }
        Ok(last..self.closed_unix_ns())
    }

    /// True when a rank of the current incarnation ended cleanly.
    pub(crate) fn is_closed(&self, rank: u32) -> Result<bool> {
        self.says(&self.closed_file(rank), self.df.current().map_or(0, |i| i.number))
    }

    /// True when the rank's file is there and is of this incarnation.
    fn says(&self, path: &Path, incarnation: u32) -> Result<bool> {
        Ok(read_json::<RankDf>(path)?.is_some_and(|df| df.incarnation == incarnation))
    }

    /// How the writers stand, for `rank` of `run`, which has taken its slot.
    pub(crate) fn writers_for(&self, rank: u32, run: &str) -> Result<Writers> {
        let Some(current) = self.df.current() else { return Ok(Writers::NeverCame) };
        match self.producers_but(Some(rank))? {
            Producers::Finished => return Ok(Writers::Finished),
            Producers::Died(_) => return Ok(Writers::Dead),
            Producers::Open => {}
        }
        let (came, closed) = (self.came(rank)?.is_some(), self.is_closed(rank)?);
        if came && !closed {
            return Ok(Writers::Dead);
        }
        // Where nothing tells launches apart, its process has to be older than the end of the others.
        let same_launch =
            current.run == run && (!run.is_empty() || may_have_come_before(self.closed_unix_ns()));
        let is_late = !came && rank < current.size && same_launch;
        let others_live = (0..current.size).any(|other| other != rank && self.members.is_alive(other));
        Ok(if others_live || is_late { Writers::Open } else { Writers::Dead })
    }

    /// Ranks of the group that never joined, while others have committed steps and ended cleanly. Empty if a rank died
    /// or is alive; the slot of `but` does not count.
    pub(crate) fn unjoined_ranks(&self, but: u32) -> Result<Vec<u32>> {
        let Some(current) = self.df.current() else { return Ok(Vec::new()) };
        let is_open = matches!(self.producers_but(Some(but))?, Producers::Open);
        if !is_open || (0..current.size).any(|rank| rank != but && self.members.is_alive(rank)) {
            return Ok(Vec::new());
        }
        let (mut absent, mut has_steps) = (Vec::new(), false);
        for rank in 0..current.size {
            let closed = read_json::<RankDf>(&self.closed_file(rank))?;
            let closed = closed.filter(|df| df.incarnation == current.number);
            has_steps |= closed.is_some_and(|df| df.done.steps > 0);
            if self.came(rank)?.is_none() {
                absent.push(rank);
            }
        }
        Ok(if has_steps { absent } else { Vec::new() })
    }

    /// How the writers stand, for a reader.
    pub(crate) fn writers(&self) -> Result<Writers> {
        let Some(current) = self.df.current() else { return Ok(Writers::NeverCame) };
        Ok(match self.producers()? {
            Producers::Finished => Writers::Finished,
            Producers::Open if (0..current.size).any(|rank| self.members.is_alive(rank)) => Writers::Open,
            Producers::Open | Producers::Died(_) => Writers::Dead,
        })
    }

    /// Joins the writers as `rank` of `size`, as a new incarnation when the last one ended or died. The
    /// caller holds the lock of the channel and has taken the slot `rank`. Returns the incarnation.
    pub(crate) fn join_writers(
        &mut self,
        rank: u32,
        size: u32,
        options: &OpenOptions,
        run: &str,
        writers: Writers,
    ) -> Result<IncarnationDf> {
        settle_name(&self.dir, self.df.horizon)?;
        let component = options.component.clone().unwrap_or_default();
        let joinable = match self.df.current() {
            Some(current) if writers == Writers::Open => {
                self.check_joinable(current, rank, size, run)?;
                true
            }
            _ => false,
        };
        if !joinable {
            let first_version = self.complete_count()?;
            self.remove_versions(|version| version >= first_version)?;
            let number = self.df.current().map_or(0, |i| i.number) + 1;
            self.df.incarnations.push(IncarnationDf {
                number,
                size,
                first_version,
                component,
                run: run.into(),
            });
        }
        for (group, group_size) in &options.readers {
            self.declare_group(group, *group_size)?;
        }
        self.save()?;
        let current = self.df.current().expect("one was pushed or there").clone();
        // An end that the last start said holds for that one only; the number in the file tells them apart.
        self.write_rank(&self.open_file(rank), &RankDf::here(current.number, Counters::default()))?;
        Ok(current)
    }

    /// Whether this rank is one that the current incarnation awaits.
    fn check_joinable(&self, current: &IncarnationDf, rank: u32, size: u32, run: &str) -> Result<()> {
        let in_use = || {
            Error::new(Kind::NameInUse, format!("{} is being written by another run", self.what()))
                .with("component", &current.component)
                .hint("choose another name, or wait for that run to end")
        };
        if self.says(&self.closed_file(rank), current.number)? {
            return Err(in_use().with("rank", rank));
        }
        if current.run != run {
            return Err(in_use());
        }
        if current.size != size {
            return Err(Error::new(
                Kind::GroupMismatch,
                format!("the writers of {} have another size", self.what()),
            )
            .with("size", size)
            .with("known_size", current.size)
            .hint("all ranks of a component must be started with the same size"));
        }
        Ok(())
    }

    /// The error for a rank whose slot a live process holds.
    pub(crate) fn rank_in_use(&self, rank: u32) -> Error {
        Error::new(
            Kind::NameInUse,
            format!("rank {rank} of {} is being written by a live process", self.what()),
        )
        .with("pid", self.members.holder(rank).unwrap_or(0))
        .hint("choose another name, or end that program")
    }

    /// Under the lock of the channel: says whether the last reader group was removed.
    pub(super) fn set_readers_removed(&mut self, removed: bool) -> Result<()> {
        self.df.readers_removed = removed;
        self.save()
    }

    pub(super) fn declare_group(&mut self, group: &str, size: u32) -> Result<()> {
        self.df.readers_removed = false;
        match self.df.readers.insert(group.into(), size) {
            Some(known) if known != size => Err(group_mismatch(group, size, known)),
            _ => Ok(()),
        }
    }

    /// Says that this rank ended cleanly.
    pub(crate) fn close_rank(&self, rank: u32, incarnation: u32, done: Counters) -> Result<()> {
        self.write_rank(&self.closed_file(rank), &RankDf::here(incarnation, done))
    }

    /// Says how far this rank is.
    pub(crate) fn note_progress(&self, rank: u32, incarnation: u32, done: Counters) -> Result<()> {
        let df = RankDf::here(incarnation, done);
        let since_unix_ns =
            read_json::<RankDf>(&self.open_file(rank))?.map_or(df.since_unix_ns, |was| was.since_unix_ns);
        write_json(&self.open_file(rank), &RankDf { since_unix_ns, ..df }, false)
    }

    fn write_rank(&self, path: &Path, df: &RankDf) -> Result<()> {
        write_json(path, df, self.is_durable())
    }

    /// How the writers of the current incarnation stand.
    pub(crate) fn producers(&self) -> Result<Producers> {
        self.producers_but(None)
    }

    /// [`Stream::producers`], without asking whether `but` lives: that is who asks.
    pub(crate) fn producers_but(&self, but: Option<u32>) -> Result<Producers> {
        let Some(current) = self.df.current() else { return Ok(Producers::Open) };
        let mut all_closed = true;
        for rank in 0..current.size {
            if but != Some(rank) && self.members.is_alive(rank) {
                all_closed = false;
                continue;
            }
            // Asked in this order: a rank says that it ended before it stops being alive.
            if self.says(&self.closed_file(rank), current.number)? {
                continue;
            }
            all_closed = false;
            if but == Some(rank) || !self.says(&self.open_file(rank), current.number)? {
                continue;
            }
            // It may have come between the two looks: it takes its slot before it says that it is there.
            let came = self.members.is_alive(rank) || self.says(&self.closed_file(rank), current.number)?;
            if !came {
                return Ok(Producers::Died(rank));
            }
        }
        Ok(if all_closed { Producers::Finished } else { Producers::Open })
    }

    /// The error for writers of which one died, naming it.
    pub(crate) fn producer_died(&self, rank: u32) -> Error {
        let pid = read_json::<RankDf>(&self.open_file(rank)).ok().flatten().map_or(0, |df| df.pid);
        let error = Error::new(Kind::ProducerDied, format!("a writer of {} died", self.what()))
            .with("rank", rank)
            .with("pid", pid)
            .with("component", self.df.current().map_or("", |i| i.component.as_str()));
        after_loss(error, self.complete_count().unwrap_or(0))
    }

    /// A writer rank in words, for messages: `writer rank 2 of sim (pid 17, since 12 s)`.
    pub(super) fn describe_writer(&self, rank: u32) -> String {
        let component = self.df.current().map_or("", |i| i.component.as_str());
        let number = self.df.current().map_or(0, |i| i.number);
        match read_json::<RankDf>(&self.open_file(rank)) {
            Ok(Some(df)) if df.incarnation == number => {
                let since_s = clock::realtime_ns().saturating_sub(df.since_unix_ns) / 1_000_000_000;
                format!("writer rank {rank} of {component} (pid {}, since {since_s} s)", df.pid)
            }
            _ => format!("writer rank {rank} of {component} never joined"),
        }
    }

    // ---- versions ----

    /// What a rank of this incarnation did for a version; `None` when it is not done.
    pub(crate) fn done(&self, version: u64, rank: u32, incarnation: u32) -> Result<Option<DoneDf>> {
        let done: Option<DoneDf> = read_json(&self.done_file(version, rank))?;
        Ok(done.filter(|df| df.incarnation == incarnation))
    }

    /// Says that a rank is done with a version.
    pub(crate) fn write_done(&self, version: u64, rank: u32, done: &DoneDf) -> Result<()> {
        write_json(&self.done_file(version, rank), done, self.is_durable())
    }

    /// True when all ranks that own the version are done with it.
    pub(crate) fn is_complete(&self, version: u64) -> Result<bool> {
        Ok(self.df.owner_of(version).is_some() && self.missing_ranks(version)?.is_empty())
    }

    fn missing_ranks(&self, version: u64) -> Result<Vec<u32>> {
        let Some(owner) = self.df.owner_of(version) else { return Ok(Vec::new()) };
        let mut missing = Vec::new();
        for rank in 0..owner.size {
            if self.done(version, rank, owner.number)?.is_none() {
                missing.push(rank);
            }
        }
        Ok(missing)
    }

    /// Who a version waits for, in words.
    pub(crate) fn missing_writers(&self, version: u64) -> Vec<String> {
        if self.df.current().is_none() {
            return vec!["no writer has come yet".into()];
        }
        let ranks = self.missing_ranks(version).unwrap_or_default();
        ranks.into_iter().map(|rank| self.describe_writer(rank)).collect()
    }

    /// The error for a directory that cannot be listed: that it is gone means that the channel was removed.
    pub(super) fn unlisted(&self, e: std::io::Error) -> Error {
        if e.kind() == std::io::ErrorKind::NotFound {
            return Error::new(Kind::PeerMissing, format!("{} was removed", self.what())).caused_by(e);
        }
        Error::io(format!("list {}", self.dir.display()), e)
    }

    /// The versions that have a directory, oldest first.
    pub(crate) fn version_dirs(&self) -> Result<Vec<u64>> {
        let listing = |e| self.unlisted(e);
        let mut versions = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(listing)? {
            versions.extend(version_of(&entry.map_err(listing)?.file_name().to_string_lossy()));
        }
        versions.sort_unstable();
        Ok(versions)
    }

    /// Number of versions that were completed: the first one that is not.
    pub(crate) fn complete_count(&self) -> Result<u64> {
        for version in self.version_dirs()?.into_iter().rev() {
            if self.is_complete(version)? {
                return Ok(version + 1);
            }
        }
        Ok(self.oldest()?.max(self.df.current().map_or(0, |i| i.first_version)))
    }

    /// The first version that was not dropped.
    pub(crate) fn oldest(&self) -> Result<u64> {
        Ok(read_json::<DroppedDf>(&self.dropped_file())?.map_or(0, |df| df.oldest))
    }

    pub(super) fn dropped_file(&self) -> PathBuf {
        self.dir.join("dropped.json")
    }

    /// Payload bytes of the versions below `version` that are still there.
    pub(crate) fn bytes_below(&self, version: u64) -> Result<u64> {
        let (mut bytes, oldest) = (0, self.oldest()?);
        for below in self.version_dirs()?.into_iter().filter(|v| (oldest..version).contains(v)) {
            let Some(owner) = self.df.owner_of(below) else { continue };
            for rank in 0..owner.size {
                bytes += self.done(below, rank, owner.number)?.map_or(0, |df| df.bytes);
            }
        }
        Ok(bytes)
    }

    /// Removes these versions, oldest first.
    pub(super) fn remove_versions(&self, which: impl Fn(u64) -> bool) -> Result<()> {
        for version in self.version_dirs()?.into_iter().filter(|version| which(*version)) {
            self.remove_version(version)?;
        }
        Ok(())
    }

    /// Takes a version away under another name first, so that no process sees half of it.
    pub(super) fn remove_version(&self, version: u64) -> Result<()> {
        let gone = self.dir.join(format!(".gone-{}", version_name(version)));
        let removing = |e| Error::io(format!("remove {}", gone.display()), e);
        let _ = fs::remove_dir_all(&gone);
        match fs::rename(self.version_dir(version), &gone) {
            Ok(()) => fs::remove_dir_all(&gone).map_err(removing),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(removing(e)),
        }
    }
}

fn seen_of(meta: &fs::Metadata) -> Seen {
    (meta.ino(), meta.ctime(), meta.ctime_nsec())
}

/// Reads `stream.json`; `None` when it is not there.
fn load(dir: &Path) -> Result<Option<(StreamDf, Seen)>> {
    let path = dir.join(STREAM_FILE);
    // The mark first: when the file is replaced in between, the next refresh reads it again.
    let Ok(meta) = fs::metadata(&path) else { return Ok(None) };
    let Some(raw) = read_json::<serde_json::Value>(&path)? else { return Ok(None) };
    match raw.get("schema").and_then(|s| s.as_str()) {
        Some(SCHEMA) => {}
        Some(other) if other.starts_with(SCHEMA_FAMILY) => {
            return Err(Error::new(
                Kind::UnknownFormat,
                format!("{} has the schema {other}", path.display()),
            )
            .with("known", SCHEMA)
            .hint("written by a newer release of Forebay: use that release or a newer one"));
        }
        _ => return Err(Error::new(Kind::Damaged, format!("{} has no schema of a channel", path.display()))),
    }
    let df = serde_json::from_value(raw).map_err(|e| {
        Error::new(Kind::Damaged, format!("cannot parse {}: {e}", path.display())).caused_by(e)
    })?;
    Ok(Some((df, seen_of(&meta))))
}

fn check_no_space(name: &str, dir: &Path) -> Result<()> {
    match dir.join("pool").exists() {
        false => Ok(()),
        true => Err(Error::new(Kind::OptionMismatch, format!("{name} is a space, not a channel of files"))
            .hint("omit channel=\"files\", or choose another name")),
    }
}

/// Makes the directory of a channel, or checks that an existing one can become one.
fn make_directory(name: &str, dir: &Path) -> Result<()> {
    let dir = &behind_links(dir);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| Error::io(format!("cannot create the directory {}", dir.display()), e))?;
    check_no_space(name, dir)?;
    let entries = fs::read_dir(dir).map_err(|e| Error::io(format!("list {}", dir.display()), e))?;
    let foreign = entries.flatten().map(|e| e.file_name()).find(|entry| {
        let entry = entry.to_string_lossy();
        entry != MEMBERS_FILE && entry != STREAM_FILE && !entry.starts_with('.')
    });
    match foreign {
        None => Ok(()),
        // Another rank may have made the channel since we looked.
        Some(_) if is_stream(dir) => Ok(()),
        Some(entry) => Err(Error::new(
            Kind::Damaged,
            format!("{} is not a channel, and the directory is not empty", dir.display()),
        )
        .with("holds", entry.to_string_lossy())
        .hint("choose another name")),
    }
}

/// The first pause between two looks, and the longest: a quick answer is quick and a long wait costs little.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// The pauses of one wait, each longer than the one before.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Pauses {
        Pauses(PAUSE_MIN)
    }

    /// Sleeps a while, at most `left`.
    pub(super) fn sleep(&mut self, left: Duration) {
        forebay_tier::host::thread::sleep(self.0.min(left));
        self.0 = (self.0 * 3 / 2).min(PAUSE_MAX);
    }

    /// The same; false when the deadline has passed.
    pub(super) fn wait(&mut self, until: &Deadline) -> bool {
        let left = until.left();
        self.sleep(left);
        !left.is_zero()
    }
}

/// Channels of files that this process has written, by UUID. A space has this in its control segment.
static WRITTEN_HERE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes that this process writes a channel of files.
pub(crate) fn note_written(uuid: &str) {
    WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).insert(uuid.into());
}

/// Whether this process wrote a channel of files.
pub(crate) fn is_written_here(uuid: &str) -> bool {
    WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).contains(uuid)
}

pub(super) fn group_mismatch(group: &str, size: u32, known: u32) -> Error {
    Error::new(Kind::GroupMismatch, format!("reader group {group} has another size"))
        .with("size", size)
        .with("known_size", known)
        .hint("all ranks of a component must be started with the same size")
}
