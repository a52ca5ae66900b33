//! The readers of a file-per-object channel: groups, cursors, leases, and what may go.
//!
//! Guarantees: a version goes when the retention lets it and no reader needs it. A rank of a group that the writers
//! declared keeps its cursor when it closes or dies, and holds what it has not ended until it comes again or leaves for
//! good; it is durable where the channel is. Of any other group only live ranks hold something, and those that have not
//! come yet, unless all that came were killed. All of it changes under the lock of the channel. Not here: reading
//! objects.

use super::stream::{group_mismatch, is_written_here, read_json, write_json, DroppedDf, Producers, Stream};
use crate::open::directory::remove_directory;
use crate::open::{groups, opening};
use crate::place::name::sanitised;
use crate::stats::Counters;
use forebay_config::{environment, launch, OpenOptions, Retention};
use forebay_tier::checksum::crc32c;
use forebay_tier::host::fs;
use forebay_tier::liveness::SlotGuard;
use forebay_tier::{clock, process, Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Slots of readers come behind those of the writer ranks.
const READER_SLOT_FIRST: u32 = 1 << 16;
const READERS_MAX: u32 = 4096;

/// The slot of a reader that was killed and whose slot another one has taken: no process has it.
const SLOT_LOST: u32 = READER_SLOT_FIRST + READERS_MAX;

/// Choices of a group that skips to the newest version that are remembered for its slower ranks.
const CHOSEN_MAX: usize = 1024;

/// A reader rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReaderDf {
    pub(crate) group: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    slot: u32,
    pub(crate) pid: u32,
    pub(crate) since_unix_ns: u64,
    /// First version that the group was to see.
    start: u64,
    /// Everything below is released.
    pub(crate) cursor: u64,
    /// A version that it looks into at the moment: it must not go, whatever the retention.
    pub(crate) lease: Option<u64>,
    /// It closed.
    pub(crate) ended: bool,
    /// It left for good: nothing is kept for it, also where its group was declared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) left: bool,
    /// Its group has come again as a whole since it was there: it begins at `start` when it comes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    awaited: bool,
    /// It saw the end of the stream.
    pub(crate) saw_end: bool,
    /// The version below which it has ended all before it came again.
    #[serde(skip)]
    pub(super) read_below: u64,
    pub(crate) done: Counters,
    /// Holds its lease only; no writer waits for its cursor.
    pub(crate) observer: bool,
}

impl ReaderDf {
    /// A rank of this process that has just come.
    fn new(group: String, (rank, size): (u32, u32), slot: u32, (start, cursor): (u64, u64)) -> ReaderDf {
        ReaderDf {
            group,
            rank,
            size,
            slot,
            pid: process::pid(),
            since_unix_ns: clock::realtime_ns(),
            start,
            cursor,
            lease: None,
            ended: false,
            left: false,
            awaited: false,
            saw_end: false,
            read_below: 0,
            done: Counters::default(),
            observer: false,
        }
    }

    fn is(&self, group: &str, rank: u32) -> bool {
        !self.observer && self.group == group && self.rank == rank
    }

    /// The version that it goes on at. One that has seen the end may not come again.
    fn place(&self) -> u64 {
        match self.awaited && !self.saw_end {
            true => self.cursor.min(self.start),
            false => self.cursor,
        }
    }
}

impl Stream {
    fn reader_file(&self, reader: &ReaderDf) -> PathBuf {
        if reader.observer {
            return self.dir.join(format!("reader-~observer-{}.json", reader.slot));
        }
        self.dir.join(format!("{}{:04}.json", file_prefix(&reader.group), reader.rank))
    }

    pub(crate) fn readers(&self) -> Result<Vec<ReaderDf>> {
        let mut readers = Vec::new();
        for path in self.reader_files()? {
            let read = read_json::<ReaderDf>(&path).map_err(|e| match e.kind() {
                Kind::Damaged => e.hint(format!(
                    "`forebay clean --readers GROUP {}` removes the reader group of this file, which then begins at \
                     the oldest version that is kept",
                    self.name
                )),
                _ => e,
            });
            readers.extend(read?);
        }
        Ok(readers)
    }

    fn reader_files(&self) -> Result<Vec<PathBuf>> {
        let listing = |e| self.unlisted(e);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(listing)? {
            let entry = entry.map_err(listing)?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("reader-") && name.ends_with(".json") {
                files.push(entry.path());
            }
        }
        Ok(files)
    }

    /// Removes the files of a group that cannot be read. Whether there were some.
    fn remove_damaged_readers(&self, group: &str) -> Result<bool> {
        let prefix = file_prefix(group);
        let mut removed = false;
        for path in self.reader_files()? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let rank = name.strip_prefix(&*prefix).and_then(|end| end.strip_suffix(".json"));
            let is_of_group = rank.is_some_and(|rank| rank.parse::<u32>().is_ok());
            if is_of_group && read_json::<ReaderDf>(&path).is_err_and(|e| e.kind() == Kind::Damaged) {
                fs::remove_file(&path).map_err(|e| Error::io(format!("removing {}", path.display()), e))?;
                removed = true;
            }
        }
        Ok(removed)
    }

    pub(crate) fn holds(&self, reader: &ReaderDf) -> bool {
        !reader.ended && self.members.is_alive(reader.slot)
    }

    /// Joins a reader group, or takes a slot only (`observer`). The caller holds the lock of the channel.
    pub(crate) fn join_readers(&mut self, options: &OpenOptions) -> Result<(ReaderDf, SlotGuard)> {
        let group = options.component.clone().unwrap_or_default();
        let (rank, size) = (options.rank.unwrap_or(0), options.size.unwrap_or(1));
        let mut known = self.readers()?;
        let keeps_cursors = self.keeps_cursors(&group);
        if !options.observer && !keeps_cursors {
            self.forget_earlier_group(&mut known, &group, rank, size);
        }
        let start = if options.observer {
            self.oldest()?
        } else {
            self.group_start(&known, &group, rank, size, options)?
        };
        let is_peer = |r: &&ReaderDf| !r.observer && r.group == group && r.rank != rank;
        let comes_as_a_whole =
            !options.observer && keeps_cursors && !known.iter().filter(is_peer).any(|r| self.holds(r));
        let peers: Vec<ReaderDf> =
            known.iter().filter(is_peer).filter(|_| comes_as_a_whole).cloned().collect();
        let goes_on = if options.observer { None } else { self.goes_on(&known, &group, rank)? };
        let (start, cursor) = match goes_on {
            Some(places) => places,
            // It is to be told what went before it came.
            None if keeps_cursors && !options.observer => (start, start),
            None => (start, start.max(self.oldest()?)),
        };
        let mine = known.iter().find(|r| keeps_cursors && !options.observer && r.is(&group, rank) && !r.left);
        let read_below = mine.map_or(0, |mine| mine.cursor);
        let guard = self.claim_reader_slot()?;
        for other in known.into_iter().filter(|r| r.slot == guard.slot() && !r.ended) {
            // Its process is dead, and the slot now says that it lives.
            match other.observer {
                true => self.write_reader(&ReaderDf { ended: true, ..other })?,
                false => self.write_reader(&ReaderDf { slot: SLOT_LOST, ..other })?,
            }
        }
        if self.df.readers_removed && !options.observer {
            self.set_readers_removed(false)?;
        }
        let reader = ReaderDf {
            observer: options.observer,
            read_below,
            ..ReaderDf::new(group, (rank, size), guard.slot(), (start, cursor))
        };
        self.write_reader(&reader)?;
        // Last: a process that is killed before leaves the cursors as they were. A rank that left for good stays so.
        for peer in peers {
            self.write_reader(&ReaderDf { start, awaited: !peer.left, slot: SLOT_LOST, ..peer })?;
        }
        if comes_as_a_whole {
            let _ = fs::remove_file(self.chosen_file(&reader.group));
        }
        Ok((reader, guard))
    }

    /// Whether the ranks of a group keep their cursors when they are not there.
    fn keeps_cursors(&self, group: &str) -> bool {
        self.df.readers.contains_key(group)
    }

    /// Of a group that keeps its cursors and has come before: where it begins, and where this rank of it does. A rank
    /// that comes again while others of its group live goes on behind the last version that it ended; a group that
    /// comes again as a whole behind the last one that all its ranks ended.
    fn goes_on(&self, known: &[ReaderDf], group: &str, rank: u32) -> Result<Option<(u64, u64)>> {
        let Some(size) = self.df.readers.get(group) else { return Ok(None) };
        let came = || known.iter().filter(|r| !r.observer && r.group == group);
        let Some(start) = came().map(|r| r.start).min() else { return Ok(None) };
        if !came().any(|r| self.holds(r)) {
            let at = self.needed(known, group, *size).map_or_else(|| self.oldest(), Ok)?;
            return Ok(Some((at, at)));
        }
        let cursor = match came().find(|r| r.rank == rank) {
            Some(mine) if mine.left => self.oldest()?,
            Some(mine) if !mine.awaited => mine.cursor,
            // What it had read it gets again only where another rank still has to read it.
            Some(mine) if mine.saw_end => {
                let lowest = self.needed(known, group, *size).unwrap_or(mine.cursor);
                start.max(lowest).max(self.oldest()?).min(mine.cursor)
            }
            _ => start,
        };
        Ok(Some((start, cursor)))
    }

    /// Forgets the ranks of a group that is started again: a rank comes that was here before (or the size
    /// changed), and no process of the group lives. What is forgotten is awaited again, so that nothing goes
    /// before it came.
    fn forget_earlier_group(&self, known: &mut Vec<ReaderDf>, group: &str, rank: u32, size: u32) {
        let is_own = |r: &ReaderDf| r.group == group && !r.observer;
        let again = known.iter().any(|r| is_own(r) && (r.rank == rank || r.size != size));
        if again && !known.iter().any(|r| is_own(r) && self.holds(r)) {
            known.iter().filter(|r| is_own(r)).for_each(|r| self.remove_reader(r));
            known.retain(|r| !is_own(r));
            let _ = fs::remove_file(self.chosen_file(group));
        }
    }

    /// The first version that a rank joining this group sees: what its group sees, else everything there is.
    fn group_start(
        &self,
        known: &[ReaderDf],
        group: &str,
        rank: u32,
        size: u32,
        options: &OpenOptions,
    ) -> Result<u64> {
        if let Some(declared) = self.df.readers.get(group).filter(|declared| **declared != size) {
            return Err(group_mismatch(group, size, *declared));
        }
        let mut started = None;
        for other in known.iter().filter(|r| r.group == group && !r.observer) {
            let lives = self.holds(other);
            if other.rank == rank && lives {
                return Err(Error::new(
                    Kind::NameInUse,
                    format!("rank {rank} of reader group {group} is already reading {}", self.name),
                )
                .with("pid", other.pid)
                .hint("use another component name for this program, or end the other program"));
            }
            if lives && other.size != size {
                return Err(group_mismatch(group, size, other.size));
            }
            started = Some(started.unwrap_or(u64::MAX).min(other.start));
        }
        match started {
            Some(start) => Ok(start),
            None if options.latest => Ok(self.complete_count()?.saturating_sub(1).max(self.oldest()?)),
            // Declared before there was a version; of a later start of the writers it is not known since when.
            None if self.df.readers.contains_key(group) && self.df.incarnations.len() == 1 => Ok(0),
            None => self.oldest(),
        }
    }

    fn chosen_file(&self, group: &str) -> PathBuf {
        let (safe, crc) = (sanitised(group, 100), crc32c(group.as_bytes()));
        self.dir.join(format!("latest-{safe}~{crc:08x}.json"))
    }

    /// The version at or behind `from` that all ranks of a group read next when they skip to the newest one:
    /// what the first of them to ask found. `None` when there is none yet. The caller holds the lock of the
    /// channel.
    pub(crate) fn choose_latest(&self, group: &str, from: u64) -> Result<Option<u64>> {
        let path = self.chosen_file(group);
        let mut chosen: Vec<u64> = read_json(&path)?.unwrap_or_default();
        if let Some(version) = chosen.iter().find(|version| **version >= from) {
            return Ok(Some(*version));
        }
        let complete = self.complete_count()?;
        if complete <= from.max(self.oldest()?) {
            return Ok(None);
        }
        chosen.push(complete - 1);
        let first = chosen.len().saturating_sub(CHOSEN_MAX);
        write_json(&path, &&chosen[first..], false)?;
        Ok(Some(complete - 1))
    }

    fn claim_reader_slot(&self) -> Result<SlotGuard> {
        for slot in READER_SLOT_FIRST..READER_SLOT_FIRST + READERS_MAX {
            if let Some(guard) = self.members.lock_slot(slot)? {
                return Ok(guard);
            }
        }
        Err(Error::new(Kind::TooMany, format!("{}: the table of readers is full", self.name))
            .with("readers_max", READERS_MAX))
    }

    /// Replaces what is known of a reader.
    pub(crate) fn write_reader(&self, reader: &ReaderDf) -> Result<()> {
        let is_kept = !reader.observer && self.keeps_cursors(&reader.group);
        write_json(&self.reader_file(reader), reader, is_kept && self.is_durable())
    }

    /// Whether a reader that closes has read nothing, not even the end, and is the only one of its group that came:
    /// what is there is kept for the next one, as if it had not come. A group that keeps its cursors needs no such
    /// rule.
    pub(crate) fn has_only_looked(&self, me: &ReaderDf) -> Result<bool> {
        if self.keeps_cursors(&me.group) || me.left {
            return Ok(false);
        }
        let has_peers =
            self.readers()?.iter().any(|r| !r.observer && r.group == me.group && r.rank != me.rank);
        Ok(me.done.steps == 0 && !me.saw_end && !has_peers)
    }

    /// Says that a rank which is not there leaves its group. Whether there is the group. The caller holds the lock of
    /// the channel.
    pub(crate) fn leave_unjoined(&self, group: &str, rank: u32) -> Result<bool> {
        let (readers, oldest) = (self.readers()?, self.oldest()?);
        let Some(size) = self.groups(&readers).get(group).copied() else { return Ok(false) };
        let left = match readers.into_iter().find(|r| r.is(group, rank)) {
            Some(reader) if self.holds(&reader) => return Ok(true),
            Some(reader) => ReaderDf { ended: true, left: true, awaited: false, ..reader },
            None => ReaderDf {
                ended: true,
                left: true,
                ..ReaderDf::new(group.to_string(), (rank, size), SLOT_LOST, (oldest, oldest))
            },
        };
        self.write_reader(&left).map(|()| true)
    }

    /// Forgets a reader.
    pub(crate) fn remove_reader(&self, reader: &ReaderDf) {
        let _ = fs::remove_file(self.reader_file(reader));
    }

    /// Drops every version that may go. The caller holds the lock of the channel.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let complete = self.complete_count()?;
        let readers = self.readers()?;
        let floor = match self.df.retention {
            Retention::Forever => 0,
            Retention::Last(count) => complete.saturating_sub(count),
            Retention::Released => self.released(&readers),
        };
        let reading = readers.iter().filter(|r| self.holds(r)).filter_map(|r| r.lease).min();
        let floor = floor.min(complete).min(reading.unwrap_or(u64::MAX));
        let oldest = self.oldest()?;
        if floor <= oldest {
            // A process that was killed while it dropped versions leaves some.
            return self.remove_versions(|version| version < oldest);
        }
        // Said before it is done: a reader that misses a version finds out why.
        write_json(&self.dropped_file(), &DroppedDf { oldest: floor }, self.is_durable())?;
        self.remove_versions(|version| version < floor)
    }

    /// Takes the channel away when its last member has gone and it was read to its end: all writers ended
    /// cleanly, and every rank of every reader group saw the end. Retention "last K" and "forever" keep it.
    pub(crate) fn remove_if_read(&mut self, timeout: Duration) -> Result<()> {
        if !self.may_go()? {
            return Ok(());
        }
        self.locked(
            timeout,
            |stream| if stream.may_go()? { remove_directory(&stream.dir).map(drop) } else { Ok(()) },
        )
    }

    fn may_go(&mut self) -> Result<bool> {
        self.refresh()?;
        if self.df.retention != Retention::Released || self.producers()? != Producers::Finished {
            return Ok(false);
        }
        let readers = self.readers()?;
        let groups = self.groups(&readers);
        let of_rank = |group: &str, rank| readers.iter().find(|r| r.is(group, rank));
        let is_over = |group: &str, rank| of_rank(group, rank).is_some_and(|r| r.left || r.saw_end);
        let complete = self.complete_count()?;
        // What was added since is still to be read by a group that comes again.
        let has_read_all =
            |group: &str, size| self.needed(&readers, group, size).is_none_or(|at| at >= complete);
        let mut groups = groups.iter();
        let all_have_read = groups
            .all(|(group, size)| (0..*size).all(|rank| is_over(group, rank)) && has_read_all(group, *size));
        // A channel that no rank has read to its end stays where all have left, too.
        let has_ended = |r: &ReaderDf| !r.observer && r.saw_end && r.cursor >= complete;
        let is_read = all_have_read && readers.iter().any(has_ended);
        Ok(is_read && !readers.iter().any(|r| self.holds(r)))
    }

    /// The reader groups that count, with their sizes: declared ones and those that came.
    pub(crate) fn groups(&self, readers: &[ReaderDf]) -> BTreeMap<String, u32> {
        let mut groups = self.df.readers.clone();
        groups.extend(readers.iter().filter(|r| !r.observer).map(|r| (r.group.clone(), r.size)));
        groups
    }

    /// Whether every reader that counts has released all versions below this one.
    pub(crate) fn is_released_below(&self, version: u64) -> Result<bool> {
        Ok(self.released(&self.readers()?) >= version)
    }

    /// All versions below this one were released by every reader that counts.
    fn released(&self, readers: &[ReaderDf]) -> u64 {
        let groups = self.groups(readers);
        if groups.is_empty() {
            // Before any reader came, everything is kept; when the last group was removed, nothing.
            return if self.df.readers_removed { u64::MAX } else { 0 };
        }
        let needed = groups.iter().filter_map(|(group, size)| self.needed(readers, group, *size));
        needed.min().unwrap_or(u64::MAX)
    }

    /// The lowest version that a rank of a group still wants, complete or not; None when no rank wants any.
    pub(crate) fn needed(&self, readers: &[ReaderDf], group: &str, size: u32) -> Option<u64> {
        let came = readers.iter().filter(|r| !r.observer && r.group == group);
        let start = came.map(|r| r.start).min().unwrap_or(0);
        let keeps_cursors = self.keeps_cursors(group);
        let is_killed = self.is_killed(readers, group);
        let of_rank = |rank| match readers.iter().find(|r| r.is(group, rank)) {
            None => (keeps_cursors || !is_killed).then_some(start),
            Some(reader) => (self.holds(reader) || keeps_cursors && !reader.left).then_some(reader.place()),
        };
        (0..size).filter_map(of_rank).min()
    }

    /// Whether ranks of a group were killed and none lives: its program is gone, and the ranks that did not come will
    /// not. One that left was not killed.
    fn is_killed(&self, readers: &[ReaderDf], group: &str) -> bool {
        let mut came = readers.iter().filter(|r| !r.observer && !r.ended && r.group == group).peekable();
        came.peek().is_some() && !came.any(|r| self.holds(r))
    }

    /// The ranks of each group that are still to come, and hold what their group is to see.
    fn awaited(&self, readers: &[ReaderDf]) -> Vec<(String, Vec<u32>)> {
        let is_awaited = |group: &str| self.keeps_cursors(group) || !self.is_killed(readers, group);
        let groups = self.groups(readers).into_iter().filter(|(group, _)| is_awaited(group));
        let missing = groups.map(|(group, size)| {
            let ranks = (0..size).filter(|rank| !readers.iter().any(|r| r.is(&group, *rank))).collect();
            (group, ranks)
        });
        missing.filter(|(_, ranks): &(String, Vec<u32>)| !ranks.is_empty()).collect()
    }

    /// Ranks that are not there and hold `version` by their cursors.
    fn absent<'a>(&self, readers: &'a [ReaderDf], version: u64) -> Vec<&'a ReaderDf> {
        let keeps = |r: &&ReaderDf| !r.observer && !r.left && self.keeps_cursors(&r.group);
        readers.iter().filter(keeps).filter(|r| !self.holds(r) && r.place() <= version).collect()
    }

    /// The first group whose ranks are still to come, or that is absent and holds `version` by its cursors.
    pub(crate) fn awaited_group(&self, version: u64) -> Option<String> {
        let readers = self.readers().unwrap_or_default();
        let sizes = self.groups(&readers);
        let holds = |group: &String| {
            self.needed(&readers, group, sizes.get(group).copied().unwrap_or(0))
                .is_some_and(|at| at <= version)
        };
        let awaited = self.awaited(&readers).into_iter().map(|(group, _)| group).find(holds);
        awaited.or_else(|| self.absent(&readers, version).first().map(|r| r.group.clone()))
    }

    /// Removes a reader group: nothing is kept for it any more. The caller holds the lock of the channel.
    pub(crate) fn remove_group(&mut self, group: &str) -> Result<()> {
        let had_damaged = self.remove_damaged_readers(group)?;
        let readers = self.readers()?;
        let groups = self.groups(&readers);
        if !groups.contains_key(group) && !had_damaged {
            let known: Vec<&str> = groups.keys().map(String::as_str).collect();
            return Err(groups::unknown_group(&self.name, group, &known.join(", ")));
        }
        let is_own = |r: &&ReaderDf| !r.observer && r.group == group;
        if let Some(reader) = readers.iter().find(|r| is_own(r) && self.holds(r)) {
            let holder = format!("reader rank {} of {} (pid {})", reader.rank, reader.group, reader.pid);
            return Err(groups::group_in_use(&self.name, group, &holder));
        }
        readers.iter().filter(is_own).for_each(|r| self.remove_reader(r));
        let _ = fs::remove_file(self.chosen_file(group));
        self.df.readers.remove(group);
        self.set_readers_removed(true)?;
        self.reclaim()
    }

    /// Complete versions that some reader group has not read; without a group all of them.
    pub(crate) fn unread(&self) -> Result<Range<u64>> {
        let (readers, complete) = (self.readers()?, self.complete_count()?);
        let cursor = |group: &str, rank| match readers.iter().find(|r| r.is(group, rank)) {
            None => 0,
            Some(reader) if reader.left => complete,
            Some(reader) => reader.place(),
        };
        let groups = self.groups(&readers);
        let of_group = |(group, size): (&String, &u32)| (0..*size).map(|rank| cursor(group, rank)).min();
        let read = groups.iter().filter_map(of_group).min().unwrap_or(0);
        Ok(read.max(self.oldest()?).min(complete)..complete)
    }

    /// A member that has the channel in use, in words, other than the writer `but`: a reader that holds a version or
    /// has not read what is complete, or a writer that has not ended.
    pub(crate) fn holder(&self, but: u32) -> Result<Option<String>> {
        let complete = self.complete_count()?;
        let size = self.df.current().map_or(0, |current| current.size);
        for rank in (0..size).filter(|rank| *rank != but) {
            if self.members.is_alive(rank) && !self.is_closed(rank)? {
                return Ok(Some(format!("{} lives", self.describe_writer(rank))));
            }
        }
        let holds =
            |r: &&ReaderDf| self.holds(r) && (r.lease.is_some() || !r.observer && r.cursor < complete);
        Ok(self.readers()?.iter().find(holds).map(|r| {
            let what = match r.lease {
                Some(version) => format!("holds version {version}"),
                None => format!("has not read version {}", r.cursor),
            };
            format!("reader rank {} of {} (pid {}) {what}", r.rank, r.group, r.pid)
        }))
    }

    /// Whether a reader with these options streams the channel.
    pub(crate) fn is_streamed(&self, options: &OpenOptions) -> Result<bool> {
        if options.finished {
            return Ok(true);
        }
        let (writers, readers, complete) = (self.writers()?, self.readers()?, self.complete_count()?);
        let run = launch(&environment::process).unwrap_or_default();
        let group = options.component.as_deref().unwrap_or_default();
        let rank = options.rank.unwrap_or(0);
        let lives = |r: &ReaderDf| !r.observer && r.group == group && r.rank != rank && self.holds(r);
        let has_same_run = || !run.is_empty() && self.df.current().is_some_and(|current| current.run == run);
        let writers_lived = self.writers_lived()?;
        let has_come = readers.iter().any(|r| !r.observer && r.group == group);
        let size = self.df.readers.get(group).filter(|_| has_come);
        let has_cursor =
            size.is_some_and(|size| self.needed(&readers, group, *size).is_some_and(|at| at < complete));
        Ok(opening::streams(writers, || opening::Claim {
            same_run: has_same_run() || is_written_here(&self.df.uuid),
            is_started_together: opening::is_started_together(writers_lived.clone()),
            has_peers: readers.iter().any(lives),
            has_cursor,
            ..opening::Claim::default()
        }))
    }

    /// Who keeps a version from being dropped, in words.
    pub(crate) fn holders(&self, version: u64) -> Vec<String> {
        let readers = self.readers().unwrap_or_default();
        let mut words: Vec<String> = readers
            .iter()
            .filter(|r| self.holds(r) && (r.lease.is_some() || !r.observer && r.cursor <= version))
            .map(|r| {
                let held = r.lease.unwrap_or(r.cursor);
                format!(
                    "reader rank {} of {} (pid {}) has not released version {held}",
                    r.rank, r.group, r.pid
                )
            })
            .collect();
        for r in self.absent(&readers, version) {
            words.push(format!(
                "reader group {}: rank {} is absent and goes on at version {}",
                r.group,
                r.rank,
                r.place()
            ));
        }
        for (group, ranks) in self.awaited(&readers) {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            words.push(format!("reader group {group}: rank {} never joined", ranks.join(", ")));
        }
        if readers.is_empty() && self.df.readers.is_empty() && !self.df.readers_removed {
            words.push("no reader has come yet".into());
        }
        if self.df.retention == Retention::Forever {
            words.push("retention forever drops nothing".into());
        }
        words
    }
}

/// How the file names of a group's ranks begin.
fn file_prefix(group: &str) -> String {
    let safe = sanitised(group, 100);
    // Two groups whose names look alike as file names must not share a file.
    match safe == group {
        true => format!("reader-{safe}-"),
        false => format!("reader-{safe}~{:08x}-", crc32c(group.as_bytes())),
    }
}
