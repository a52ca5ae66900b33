//! What is known of a run from outside, past the death of its processes, and what must hold because of it.
//!
//! A process tells a fact right after the call that establishes it has returned. A fact that a process did not live to
//! tell is unknown: what was in flight may be there or not, but whole.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::ops::{Range, RangeInclusive};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_tier::simulation::process;

use super::cast::Cast;

/// Facts of a run.
#[derive(Clone, Default)]
pub struct Oracle(Arc<Mutex<Facts>>);

/// See [`Oracle`].
#[derive(Default)]
pub struct Facts {
    /// By incarnation and rank: versions whose `end_step` returned.
    pub committed: BTreeMap<(u64, u32), u64>,
    /// Ranks that have joined, by incarnation.
    pub joined: BTreeMap<u64, Vec<u32>>,
    /// Versions that every rank of one incarnation acknowledged, with that incarnation.
    pub complete: BTreeMap<u64, u64>,
    /// Versions that a reader has read, with the incarnation whose data it found.
    pub read: BTreeMap<u64, u64>,
    /// Reader ranks that were told the end of the stream, with the version after the last.
    pub ended: BTreeMap<(usize, u32), u64>,
    /// By group and rank: versions below which `end_step` of a reader has returned, and below which it was called.
    pub released: BTreeMap<(usize, u32), (u64, u64)>,
    /// Writer ranks that closed the stream, by incarnation.
    pub closed: BTreeMap<u64, BTreeSet<u32>>,
    /// Ranks of processes that wrote, or were about to.
    pub writers: BTreeMap<u32, u32>,
    /// Processes that let their writer go.
    pub left: BTreeSet<u32>,
    /// Processes that read for a rank of a group, or are about to, and whether they have opened the space.
    reading: BTreeMap<(usize, u32), (u32, bool)>,
    /// Ranks of each group that have certainly come since the group last came as a whole.
    sessions: BTreeMap<usize, BTreeSet<u32>>,
    /// The retained versions as far as anyone has seen: neither end goes back.
    seen: (u64, u64),
    /// In which call a reader waits, by its process: the version that is due, and since when.
    pub waits: BTreeMap<u32, (u64, u64)>,
    /// Processes whose writer is inside the gate.
    inside: BTreeSet<u32>,
    /// Of each group that came as a whole, as far as that is known, in which range it goes on.
    comes_from: BTreeMap<usize, (u64, u64)>,
    /// How often each rank has come, or was about to, since no other one of its group was there.
    tries: BTreeMap<(usize, u32), u32>,
    /// Of each group a version before which none of its ranks begins any more.
    begun_from: BTreeMap<usize, u64>,
    /// Reader groups of other handles, by their process.
    beside: BTreeMap<u32, u64>,
    /// Groups of which a rank has certainly been there, and those of them that were when the power was cut last.
    came: BTreeSet<usize>,
    came_before_cut: BTreeSet<usize>,
    /// Declared groups that may have been removed.
    removed: BTreeSet<usize>,
    /// The attribute of the space: what was set last, and what may have been.
    pub attribute: (i64, i64),
    /// The stream was seen finished.
    pub finished: bool,
    /// Inode of the directory of the space that all this is about.
    space: Option<u64>,
    /// Before which version everything is complete, as a writer was told that goes on there.
    pub resumed: u64,
    /// How many spaces were there before it that were cleaned away.
    pub cleaned: u64,
    /// Calls of `clean` that may have removed the space.
    cleans: u64,
    /// A group beside was told the end of the stream.
    read_beside: bool,
    /// Handles of each process that has the space open: from the return of the call that opened it until it begins to
    /// close it.
    holders: BTreeMap<u32, u32>,
}

/// How a rank comes to its group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Comes {
    /// No other one is there: the group comes as a whole.
    First,
    /// It was there before, and others have been there all the time since.
    Again,
    /// Late: for the first time since the group came as a whole, at a version in this range.
    Late(u64, u64),
    /// Any of these.
    Somehow,
}

/// A process reads for a rank of a group, or is about to, while this lives.
pub struct Reading {
    oracle: Oracle,
    reader: (usize, u32),
    /// Others that had opened the space before.
    there: Vec<(u32, u32)>,
    was_alone: bool,
    /// Below which version the rank had ended all.
    done: u64,
}

/// While this lives a reader is certainly there.
pub struct There<'a>(&'a Reading);

impl Drop for There<'_> {
    fn drop(&mut self) {
        let mut facts = self.0.oracle.facts();
        facts.reading.insert(self.0.reader, (process::own(), false));
    }
}

impl Reading {
    /// The process has opened the space. A rank that may have seen the end of the stream begins where it likes.
    pub fn has_opened(&self, size: u32, versions: u64) -> (Comes, There<'_>) {
        let mut facts = self.oracle.facts();
        let (group, rank) = self.reader;
        facts.reading.insert(self.reader, (process::own(), true));
        facts.came.insert(group);
        facts.came_before_cut.remove(&group);
        let others = facts.others(self.reader);
        let has_company =
            self.there.iter().any(|known| others.iter().any(|(rank, pid, _)| (*rank, *pid) == *known));
        let has_other = |(rank, pid): &(u32, u32)| others.contains(&(*rank, *pid, true));
        let is_alone = facts.tries.iter().all(|((of, other), _)| *of != group || *other == rank);
        let tries = facts.tries.get(&self.reader).copied().unwrap_or(0);
        let is_unread = facts.released.get(&self.reader).is_none_or(|(_, called)| *called < versions);
        let is_late = tries == 1 && is_unread && self.there.iter().any(has_other);
        let session = facts.sessions.entry(group).or_default();
        if has_company && !session.insert(rank) {
            if let Some((done, _)) = facts.released.get_mut(&self.reader) {
                *done = self.done;
            }
            return (Comes::Again, There(self));
        }
        let is_first = self.was_alone && others.is_empty();
        if !has_company {
            session.clear();
            session.extend(is_first.then_some(rank));
        }
        facts.go_back(self.reader, size);
        if !has_company {
            facts.comes_from.remove(&group);
        }
        if is_first {
            if is_alone {
                let from = facts.least(group, size);
                facts.comes_from.insert(group, from);
            }
            return (Comes::First, There(self));
        }
        let late = facts.comes_from.get(&group).filter(|_| is_late && has_company);
        (late.map_or(Comes::Somehow, |(from, to)| Comes::Late(*from, *to)), There(self))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.oracle.facts().reading.remove(&self.reader);
    }
}

/// A process has the space open by one handle while this lives.
pub struct Holding(Oracle);

impl Drop for Holding {
    fn drop(&mut self) {
        let mut facts = self.0.facts();
        if let Some(handles) = facts.holders.get_mut(&process::own()) {
            *handles -= 1;
        }
        facts.holders.retain(|_, handles| *handles > 0);
    }
}

/// The writer of the calling process is inside the gate while this lives.
pub struct Inside(Oracle);

impl Inside {
    /// How many are.
    pub fn count(&self) -> u32 {
        let mut facts = self.0.facts();
        facts.inside.retain(|pid| process::exit(*pid).is_none());
        facts.inside.len() as u32
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.facts().inside.remove(&process::own());
    }
}

/// Reader groups of other handles that live at once: with those of the run they fill the table of a simulated build.
const BESIDE_MAX: u64 = 3;

/// The calling process has other handles while this lives.
pub struct Beside(Oracle);

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.facts().beside.remove(&process::own());
    }
}

impl Oracle {
    /// The calling process is to have reader groups beside its role; None: there are enough.
    pub fn beside(&self, groups: u64) -> Option<Beside> {
        let mut facts = self.facts();
        facts.beside.retain(|pid, _| process::exit(*pid).is_none());
        if facts.beside.values().sum::<u64>() + groups > BESIDE_MAX {
            return None;
        }
        facts.beside.insert(process::own(), groups);
        Some(Beside(self.clone()))
    }

    /// See [`Inside`].
    pub fn goes_inside(&self) -> Inside {
        self.facts().inside.insert(process::own());
        Inside(self.clone())
    }

    /// The facts, locked.
    pub fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling process has opened the space. Where that is another one than before, the one before had gone: it was
    /// read to its end, or cleaned away, in both cases while no process had it open. After a `clean` nothing is known,
    /// nor after the end of groups beside, where no writer declared those that have not come yet.
    pub fn opened(&self, cast: &Cast) -> Holding {
        let inode = std::fs::metadata(cast.name()).map(|meta| meta.ino()).ok();
        let is_read = self.is_read_to_its_end(cast);
        if inode.is_none() {
            process::fail("a space was opened that is not there any more");
        }
        let mut facts = self.facts();
        if inode != facts.space {
            let lives = |pid: &&u32| process::exit(**pid).is_none();
            if let Some(pid) = facts.holders.keys().find(lives) {
                process::fail(format!("the space was removed while process {pid} had it open"));
            }
            if facts.space.is_none() {
                facts.space = inode;
            } else if !is_read {
                // Without its last group a space that has finished is read to its end.
                let may_go = facts.cleans > 0 || !facts.removed.is_empty();
                if !may_go && (cast.declared || !facts.read_beside) {
                    process::fail("the space has gone, and no process cleaned");
                }
                let (cleaned, cleans) = (facts.cleaned + 1, facts.cleans);
                let (writers, left) = (take(&mut facts.writers), take(&mut facts.left));
                let (reading, beside) = (take(&mut facts.reading), take(&mut facts.beside));
                // Who is about to remove a group of the space before removes one of this one.
                let (space, removed, rest) = (inode, take(&mut facts.removed), Facts::default());
                *facts = Facts { space, cleaned, cleans, writers, left, reading, beside, removed, ..rest };
                process::note("finds another space: the one before has gone");
            }
        }
        *facts.holders.entry(process::own()).or_default() += 1;
        drop(facts);
        Holding(self.clone())
    }

    /// A group beside was told the end of the stream.
    pub fn was_read_beside(&self) {
        self.facts().read_beside = true;
    }

    /// The power was cut. The name of a space is certain from the moment at which a writer has joined it.
    pub fn power_was_cut(&self) {
        let mut facts = self.facts();
        facts.came_before_cut = facts.came.clone();
        if facts.joined.is_empty() && facts.complete.is_empty() {
            facts.space = None;
        }
    }

    /// Whether a group was there before the power was cut, and not yet since.
    pub fn has_come_before_cut(&self, group: usize) -> bool {
        self.facts().came_before_cut.contains(&group)
    }

    /// Whether every group has been there: none is waited for because it never was.
    pub fn have_all_come(&self, cast: &Cast) -> bool {
        self.facts().came.len() == cast.groups.len()
    }

    /// A process is about to clean, and may be killed before it can tell what went.
    pub fn cleans(&self) {
        self.facts().cleans += 1;
    }

    /// A process is about to remove a declared group. From now on nothing says where it goes on, nor what is kept for
    /// it.
    pub fn removes(&self, group: usize) {
        self.facts().removed.insert(group);
    }

    /// Whether a group may have been removed.
    pub fn may_be_removed(&self, group: usize) -> bool {
        self.facts().removed.contains(&group)
    }

    /// Whether the space may have been cleaned away.
    pub fn may_be_cleaned(&self) -> bool {
        self.facts().cleans > 0
    }

    /// Rank `rank` of `ranks` has been told that its part of `version` counts.
    pub fn committed(&self, incarnation: u64, (rank, ranks): (u32, u32), version: u64) {
        let mut facts = self.facts();
        facts.committed.insert((incarnation, rank), version + 1);
        let least = (0..ranks).map(|r| facts.committed.get(&(incarnation, r)).copied().unwrap_or(0)).min();
        if least.is_some_and(|least| least > version) {
            facts.settle(version, incarnation);
        }
    }

    /// Whether every reader was told the end: the space may be gone.
    pub fn is_read_to_its_end(&self, cast: &Cast) -> bool {
        self.facts().ended.len() == cast.groups.iter().sum::<u32>() as usize
    }

    /// A reader found `version` whole, written by `incarnation`.
    pub fn was_read(&self, version: u64, incarnation: u64) {
        let mut facts = self.facts();
        facts.settle(version, incarnation);
        facts.read.insert(version, incarnation);
    }

    /// Where a rank of a group that keeps its cursors may go on: at the first version that it has not ended, or the one
    /// behind, if it was ending that. A group of several ranks that comes again as a whole goes on at the first one
    /// that not all of them have ended; where that is not known, a rank goes on at an earlier one, or where it was.
    pub fn may_resume(&self, (group, rank): (usize, u32), size: u32, comes: Comes) -> RangeInclusive<u64> {
        let facts = self.facts();
        let of = |rank| facts.has_read((group, rank));
        if facts.removed.contains(&group) {
            return 0..=u64::MAX;
        }
        match comes {
            Comes::First => {
                let (from, to) = facts.least(group, size);
                from..=to
            }
            Comes::Late(from, to) => from..=to,
            Comes::Again => of(rank).0..=of(rank).1,
            Comes::Somehow if size == 1 => of(rank).0..=of(rank).1,
            Comes::Somehow => facts.begun_from.get(&group).copied().unwrap_or(0)..=of(rank).1,
        }
    }

    /// The calling process is about to read for a rank of a group, until it has let go of what it opened.
    pub fn reads(&self, reader: (usize, u32), size: u32) -> Reading {
        let mut facts = self.facts();
        let others = facts.others(reader);
        let there =
            others.iter().filter(|(_, _, is_open)| *is_open).map(|(rank, pid, _)| (*rank, *pid)).collect();
        facts.reading.insert(reader, (process::own(), false));
        if others.is_empty() {
            facts.tries.retain(|(group, _), _| *group != reader.0);
            facts.comes_from.remove(&reader.0);
        }
        *facts.tries.entry(reader).or_default() += 1;
        let done = facts.released.get(&reader).map_or(0, |(done, _)| *done);
        if others.is_empty() {
            // It comes as a whole from here on.
            let all_done = facts.all_done(reader.0, size);
            facts.begun_from.insert(reader.0, all_done);
        }
        // Where the group comes again as a whole the rank goes back with it, also when it gets no further than that.
        facts.go_back(reader, size);
        Reading { oracle: self.clone(), reader, there, was_alone: others.is_empty(), done }
    }

    /// The retained versions are `versions`, which was asked when no less was known than `before`.
    pub fn sees(&self, versions: &Range<u64>, before: (u64, u64)) {
        if versions.start < before.0 || versions.end < before.1 {
            process::fail(format!(
                "versions {versions:?} are there, {} to {} were seen before",
                before.0, before.1
            ));
        }
        let mut facts = self.facts();
        facts.seen = (facts.seen.0.max(versions.start), facts.seen.1.max(versions.end));
    }

    /// See [`Oracle::sees`].
    pub fn seen(&self) -> (u64, u64) {
        self.facts().seen
    }

    /// The first version that a rank of a declared group has not begun to end. Nothing says what those still want that
    /// were told the end.
    pub fn unread_from(&self, cast: &Cast) -> u64 {
        let facts = self.facts();
        let ranks = cast.groups.iter().enumerate();
        let ranks = ranks.flat_map(|(group, size)| (0..*size).map(move |rank| (group, rank)));
        let called =
            ranks.filter(|reader| !facts.ended.contains_key(reader) && !facts.removed.contains(&reader.0));
        called
            .map(|reader| facts.released.get(&reader).map_or(0, |(_, called)| *called))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// A reader ends `version`, or has ended it.
    pub fn releases(&self, reader: (usize, u32), version: u64, is_done: bool) {
        let mut facts = self.facts();
        let (done, called) = facts.released.get(&reader).copied().unwrap_or((0, 0));
        let done = if is_done { version + 1 } else { done };
        facts.released.insert(reader, (done, called.max(version + 1)));
    }

    /// A rank has opened the space for writing.
    pub fn joined(&self, incarnation: u64, rank: u32) {
        self.facts().joined.entry(incarnation).or_default().push(rank);
    }

    /// Ranks that have joined the newest incarnation.
    pub fn newest(&self) -> Vec<u32> {
        self.facts().joined.values().next_back().cloned().unwrap_or_default()
    }

    /// Versions that are known to be complete: all below the result.
    pub fn known(&self) -> u64 {
        let facts = self.facts();
        facts.complete.keys().next_back().map_or(0, |version| version + 1).max(facts.resumed)
    }
}

impl Facts {
    /// Below which version a rank has ended all, and below which it may have.
    fn has_read(&self, reader: (usize, u32)) -> (u64, u64) {
        let (done, called) = self.released.get(&reader).copied().unwrap_or((0, 0));
        (done, called.max(self.ended.get(&reader).copied().unwrap_or(0)))
    }

    /// The first version that not all ranks of a group have ended, as far as it is known.
    fn least(&self, group: usize, size: u32) -> (u64, u64) {
        let ranks = || (0..size).map(|rank| self.has_read((group, rank)));
        (ranks().map(|of| of.0).min().unwrap_or(0), ranks().map(|of| of.1).min().unwrap_or(0))
    }

    /// The version below which all ranks of a group have ended all.
    fn all_done(&self, group: usize, size: u32) -> u64 {
        let done = |rank| self.released.get(&(group, rank)).map_or(0, |(done, _)| *done);
        (0..size).map(done).min().unwrap_or(0)
    }

    /// A rank may go back to where its group came as a whole, at the first version that not all ranks had ended.
    fn go_back(&mut self, (group, rank): (usize, u32), size: u32) {
        let begun_from = self.begun_from.get(&group).copied().unwrap_or(0);
        let least = self.all_done(group, size).min(begun_from);
        if let Some((done, _)) = self.released.get_mut(&(group, rank)) {
            *done = least;
        }
    }

    /// Processes of the other ranks of a group that may be there, and whether they have opened the space.
    fn others(&self, (group, rank): (usize, u32)) -> Vec<(u32, u32, bool)> {
        let others = self.reading.iter().filter(|(reader, _)| reader.0 == group && reader.1 != rank);
        let living = others.filter(|(_, (pid, _))| process::exit(*pid).is_none());
        living.map(|(reader, (pid, is_open))| (reader.1, *pid, *is_open)).collect()
    }

    /// A complete version keeps its data.
    fn settle(&mut self, version: u64, incarnation: u64) {
        let known = *self.complete.entry(version).or_insert(incarnation);
        if known != incarnation {
            process::fail(format!(
                "version {version} was complete by incarnation {known} and is now one of incarnation {incarnation}"
            ));
        }
    }
}

/// Every element, wherever it stands: no two versions, incarnations or indices have the same.
pub fn element(version: u64, incarnation: u64, index: u64) -> u64 {
    let mut x = index ^ version << 32 ^ incarnation << 52;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ x >> 29
}
