//! Verification of a space: every record of its pools, and whether the control segment shows readers what the lanes
//! hold.
//!
//! Members change the control segment at any time, so that no checksum covers all of it. What decides which versions
//! readers see is held against the lanes, which are recovered anew for that, against a second copy, or against a sum of
//! its own; and every retained version is looked up as a reader does. A live space goes on meanwhile: what differs only
//! for a moment is no damage. Not here: payloads ([`forebay_log::verify`]).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Acquire;
use std::sync::Arc;
use std::time::Duration;

use forebay_log::recover::{recover, Recovered, SegmentInfo};
use forebay_log::verify::{Damage, Report};
use forebay_log::LaneId;
use forebay_tier::Result;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::control::{group, head, member, GranuleState, ProducerState, GROUPS_MAX, LANES_MAX, MEMBERS_MAX};
use crate::lane::index::{self, Bring, LaneCursor, VersionIndex};
use crate::open::attach::Attachment;
use crate::open::member::{is_of_lane, owns_lane, Role};

/// How often a space that has live members is looked at before a difference counts.
const LOOKS: usize = 5;
/// Time between two looks: a commit or a move is done by then.
const PAUSE: Duration = Duration::from_millis(20);
/// Unreadable versions that are listed one by one; each costs a search of the granule table.
const UNREADABLE_MAX: usize = 256;

/// Reads every byte of a space. Blocks for as long as that takes.
///
/// # Errors
/// Those of the devices. Damage is no error but in the report.
pub(crate) fn verify(space: &Arc<Attachment>) -> Result<Report> {
    // Asked before each look, and after it: members that end or come during one have changed what it saw.
    let mut was_live = has_live_members(space);
    let mut report = look(space)?;
    for _ in 1..LOOKS {
        if report.damaged.is_empty() || !(was_live || has_live_members(space)) {
            break;
        }
        forebay_tier::host::thread::sleep(PAUSE);
        was_live = has_live_members(space);
        let now: FxHashSet<Damage> = look(space)?.damaged.into_iter().collect();
        report.damaged.retain(|damage| now.contains(damage));
    }
    Ok(report)
}

/// What is damaged now. While a walk through a lane goes from one segment to the next, its writer may have reclaimed
/// the one and begun the other.
fn look(space: &Arc<Attachment>) -> Result<Report> {
    let mut report = forebay_log::verify::verify(&*space.device, &space.superblock)?;
    // The segments of a version that was dropped are freed one by one, in any order.
    let oldest = space.control.oldest();
    report.damaged.retain(|damage| damage.version.is_none_or(|version| version >= oldest));
    report.damaged.append(&mut differences(space)?);
    Ok(report)
}

fn has_live_members(space: &Attachment) -> bool {
    (0..MEMBERS_MAX as u32).any(|slot| space.is_alive(slot))
}

/// Where control segment and lanes differ now, as far as readers can notice it.
fn differences(space: &Arc<Attachment>) -> Result<Vec<Damage>> {
    let complete_before = space.control.complete();
    let found = recover(&*space.device, &space.superblock)?;
    let mut check = Check { space, found: &found, damaged: Vec::new() };
    check.progress(complete_before);
    check.oldest();
    check.producers();
    check.segments();
    check.members();
    check.versions();
    Ok(check.damaged)
}

/// What is compared, and what differs.
struct Check<'a> {
    space: &'a Arc<Attachment>,
    found: &'a Recovered,
    damaged: Vec<Damage>,
}

impl Check<'_> {
    fn add(&mut self, version: Option<u64>, rank: u32, offset: u64, what: String) {
        let what = format!("control segment: {what}");
        self.damaged.push(Damage { version, rank, variable: None, offset, what });
    }

    /// The counts of commits, and with them how many versions are complete.
    fn progress(&mut self, complete_before: u64) {
        let control = &self.space.control;
        let in_lanes = self.found.complete;
        if complete_before > in_lanes {
            let what = format!("{complete_before} versions are complete, but the lanes hold {in_lanes}");
            self.add(Some(in_lanes), 0, 0, what);
        }
        let (incarnation, size) = control.producers();
        let last = self.found.incarnations.last().filter(|last| last.number == incarnation);
        for rank in 0..size.min(last.map_or(0, |last| last.size)) {
            let (number, committed) = control.progress(rank);
            let (copied_number, copied) = control.progress_copy(rank);
            if copied_number == number && copied > committed {
                let what = format!("{committed} commits are counted that were {copied} before");
                self.add(Some(committed), rank, 0, what);
            }
        }
        let least = self.least_complete();
        let complete = control.complete();
        if complete < least {
            let what = format!("{complete} versions are complete, but the lanes hold {least}");
            self.add(Some(complete), 0, 0, what);
        }
    }

    /// How many versions have to count as complete. A writer that was killed, or whose flush failed, between its commit
    /// and the count of it leaves one in its lane that is not counted, until the next group begins behind it. Where
    /// that one died, or failed, while it took the lanes over, `base` says what was counted, and the pool may know it.
    fn least_complete(&self) -> u64 {
        let control = &self.space.control;
        let (incarnation, size) = control.producers();
        let group = self.found.incarnations.iter().find(|known| known.number == incarnation);
        let uncounted =
            (0..size).zip(group.iter().flat_map(|group| &group.committed)).filter_map(|(rank, lane)| {
                let (number, committed) = control.progress(rank);
                let counted = if number == incarnation { committed } else { control.base() };
                let is_uncounted =
                    number >= incarnation && *lane == counted + 1 && !control.lane_owner(rank).1;
                is_uncounted.then_some(counted)
            });
        uncounted.min().unwrap_or(u64::MAX).min(self.found.complete)
    }

    /// The first version that was not dropped: what it is to become is announced before.
    fn oldest(&mut self) {
        let (oldest, announced) = (self.space.control.oldest(), self.space.control.oldest_announced());
        if oldest > announced {
            let what =
                format!("versions below {oldest} are hidden, but only those below {announced} were dropped");
            self.add(Some(announced), 0, 0, what);
        }
    }

    /// Who produces, whether they have ended, and how readers take turns with them.
    fn producers(&mut self) {
        let control = &self.space.control;
        let (incarnation, size) = control.producers();
        let known = self.found.incarnations.last().map_or((0, 0), |last| (last.number, last.size));
        // Writers that were killed while they took the space over have noted the next incarnation and no more.
        let is_taken_over = incarnation < known.0
            && (self.least_complete()..=self.found.complete).contains(&control.complete());
        if (incarnation, size) != (known.0, known.1.min(LANES_MAX as u32)) && !is_taken_over {
            let what = format!("incarnation {incarnation} of {size} ranks, but the pool has {known:?}");
            self.add(None, 0, 0, what);
        }
        let (state, state_incarnation) = control.state_of_incarnation();
        if !control.is_state_plain() {
            self.add(None, 0, 0, "invalid state of the producers".into());
        }
        let owners: Vec<_> = (0..size).map(|rank| control.lane_owner(rank)).collect();
        let ended = match owners.iter().any(|(slot, ended)| slot.is_some() || *ended) {
            true => owners.iter().all(|(_, ended)| *ended),
            // After a rebuild the lanes alone tell.
            false => self.found.incarnations.last().is_some_and(|last| last.ended.iter().all(|ended| *ended)),
        };
        // A group that left no segment has changed nothing: the state may be that of the one before.
        let has_begun = self.found.segments.iter().any(|segment| segment.lane().incarnation == incarnation);
        // The last rank may have been killed before it said so: any process that looks at the group finishes it.
        let is_unsaid = ended && state == ProducerState::Open;
        if size > 0 && !is_taken_over && has_begun && ended != state.is_finished() && !is_unsaid {
            self.add(None, 0, 0, format!("the producers are {state:?}, but all ranks have ended: {ended}"));
        }
        // A death has a rank. Without one it is that of a group before the shared state was made, which had no members.
        if state == ProducerState::Died(None) && state_incarnation == incarnation {
            let lives = |(rank, (slot, ended)): &(u32, (Option<u32>, bool))| {
                let lane = LaneId { incarnation, rank: *rank };
                slot.is_some_and(|slot| !ended && owns_lane(self.space, slot, lane))
            };
            if let Some((rank, _)) = (0..).zip(owners.iter().copied()).find(lives) {
                self.add(None, rank, 0, "the producers are dead, but this one lives".into());
            }
        }
        for (rank, (slot, ended)) in (0..).zip(owners) {
            let Some(slot) = slot.filter(|_| state == ProducerState::Open && !ended) else { continue };
            if !self.is_slot_of(slot, LaneId { incarnation, rank }) {
                self.add(None, rank, 0, format!("member {slot} is named as the writer and is another one"));
            }
        }
        if !control.is_mode_whole() {
            self.add(None, 0, 0, "the mode does not match its checksum".into());
        }
    }

    /// Whether a slot can be the one that a lane names. That of a writer that was killed is another member's as soon as
    /// one needs it. While the writer lives, its own slot says so.
    fn is_slot_of(&self, slot: u32, lane: LaneId) -> bool {
        let control = &self.space.control;
        let of_lane =
            (control.lane_pid(lane.rank).load(Acquire), control.lane_start_ticks(lane.rank).load(Acquire));
        let is_same_process = |slot| {
            let word = |field| control.member(slot, field).load(Acquire);
            (word(member::PID), word(member::START_TICKS)) == of_lane
        };
        // A rank that withdraws may be there a moment longer than its lane is.
        let is_writer = |slot| owns_lane(self.space, slot, lane) && is_same_process(slot);
        is_of_lane(self.space, slot, lane)
            || !(is_same_process(slot) || (0..control.members_high()).any(is_writer))
    }

    /// Each segment of the lanes stands in the granule table as what it is, and no other does before it.
    fn segments(&mut self) {
        let mut listed: BTreeMap<(LaneId, u64), Vec<usize>> = BTreeMap::new();
        let control = &self.space.control;
        for index in 1..control.granules() {
            if let GranuleState::Segment { lane, .. } = control.granule_state(index) {
                listed.entry((lane, control.granule_segment(index).0)).or_default().push(index);
            }
        }
        // Of a segment that is being moved there are two copies, and either may be the one that is listed.
        let mut copies: BTreeMap<(LaneId, u64), Vec<SegmentInfo>> = BTreeMap::new();
        for segment in self.found.segments.iter().chain(&self.found.stale) {
            copies.entry((segment.lane(), segment.df.sequence)).or_default().push(*segment);
        }
        for (key, copies) in &copies {
            let places = listed.remove(key).unwrap_or_default();
            let at = |index: usize| {
                let offset = index as u64 * self.space.superblock.granule_bytes;
                copies.iter().find(|copy| copy.df.offset_bytes == offset)
            };
            match places.iter().find_map(|index| Some((*index, at(*index)?))) {
                Some((index, segment)) => self.segment(index, segment),
                None if copies.iter().any(|copy| self.is_known_copy(copy)) => {}
                None => {
                    let what = format!("segment {} of the lane is not listed", key.1);
                    self.add(Some(copies[0].df.base_version), key.0.rank, copies[0].df.offset_bytes, what);
                }
            }
        }
        for ((lane, sequence), places) in listed {
            self.unknown_segment(lane, sequence, &places);
        }
    }

    /// Whether a segment is one that readers do not look at: the old place of one that was moved, which may be freed
    /// after the new one, or a copy that was not published.
    fn is_known_copy(&self, segment: &SegmentInfo) -> bool {
        let granule = segment.df.offset_bytes / self.space.superblock.granule_bytes;
        match self.space.control.granule_state(granule as usize) {
            GranuleState::Leaving { lane, .. } | GranuleState::Spare { lane, .. } => lane == segment.lane(),
            _ => false,
        }
    }

    /// How many versions a lane has committed, as the pool says.
    fn committed_of(&self, lane: LaneId) -> Option<u64> {
        let incarnation = self.found.incarnations.iter().find(|known| known.number == lane.incarnation)?;
        incarnation.committed.get(lane.rank as usize).copied()
    }

    /// The end of the versions that readers may look for in a lane: what it has committed, before the next incarnation.
    fn readable_end(&self, lane: LaneId) -> u64 {
        self.committed_of(lane).unwrap_or(0).min(self.next_base(lane).unwrap_or(u64::MAX))
    }

    /// The first version of the incarnation after that of a lane.
    fn next_base(&self, lane: LaneId) -> Option<u64> {
        let next = self.found.incarnations.iter().find(|known| known.number > lane.incarnation);
        next.map(|next| next.base)
    }

    /// A segment that is listed where it lies: its newest version, its length, and that nothing else lies in it.
    fn segment(&mut self, index: usize, segment: &SegmentInfo) {
        let control = &self.space.control;
        let (lane, offset) = (segment.lane(), segment.df.offset_bytes);
        // All ranks had committed what is before the next incarnation. Where the pieces of the newest of these versions
        // were dropped, the pool does not say so.
        let committed = self.committed_of(lane).unwrap_or(0).max(self.next_base(lane).unwrap_or(0));
        let in_lane = segment.last_version.min(self.readable_end(lane).saturating_sub(1));
        let (last, length) = (control.granule_last(index), control.granule_segment(index).1);
        // Where readers look for no retained version, as in a lane of a group that completed none before the next one
        // took over, `last` only delays the reuse of the place; a put that failed leaves its version there.
        let is_read = control.oldest() < self.readable_end(lane);
        if is_read && (last < in_lane || last > segment.last_version.max(committed)) {
            let what = format!("a segment ends with version {last}, but holds version {in_lane}");
            self.add(Some(in_lane), lane.rank, offset, what);
        }
        let granules = segment.df.length_bytes.div_ceil(self.space.superblock.granule_bytes) as usize;
        let inside = index + 1..(index + granules).min(control.granules());
        let is_whole = length == granules
            && inside.into_iter().all(|inside| control.granule_state(inside) == GranuleState::Free);
        if !is_whole {
            let what = format!("a segment of {granules} granules has {length}, or another run lies in it");
            self.add(Some(in_lane), lane.rank, offset, what);
        }
    }

    /// Places that are listed as a segment of which the pools hold none. A writer lists it before it writes the header,
    /// and wipes the header before it frees the place; one that was killed in between leaves such a place, in which no
    /// retained version is looked for.
    fn unknown_segment(&mut self, lane: LaneId, sequence: u64, places: &[usize]) {
        let control = &self.space.control;
        let searched = control.oldest()..self.readable_end(lane);
        for index in places {
            let last = control.granule_last(*index);
            if !searched.contains(&last) {
                continue;
            }
            let offset = *index as u64 * self.space.superblock.granule_bytes;
            let what = format!(
                "segment {sequence} of incarnation {} is listed, but there is no header",
                lane.incarnation
            );
            self.add(Some(last), lane.rank, offset, what);
        }
    }

    /// Members and reader groups: those that live are counted, and a group starts where it was registered.
    fn members(&mut self) {
        let control = &self.space.control;
        let is_member = |slot: &u32| {
            let state = control.member(*slot, member::STATE).load(Acquire);
            Role::of_state(state).is_some() && self.space.is_alive(*slot)
        };
        if let Some(slot) = (control.members_high()..MEMBERS_MAX as u32).find(is_member) {
            let high = control.word(head::MEMBERS_HIGH).load(Acquire);
            self.add(None, 0, 0, format!("member {slot} lives, but slots are used below {high} only"));
        }
        let high = control.groups_high();
        for index in 0..GROUPS_MAX {
            if index >= high && control.group(index, group::STATE).load(Acquire) != 0 {
                self.add(
                    None,
                    0,
                    0,
                    format!("reader group {index} is there, but places are used below {high} only"),
                );
            }
            if control.group(index, group::STATE).load(Acquire) > 1 || !control.is_group_whole(index) {
                self.add(None, 0, 0, format!("reader group {index} does not match its sum"));
            }
        }
    }

    /// Looks every retained version up as a reader does.
    fn versions(&mut self) {
        let (space, control) = (self.space, &self.space.control);
        let mut cursors = FxHashMap::<LaneId, LaneCursor>::default();
        let mut unreadable = 0;
        for version in index::retained(space) {
            let expected = self.found.incarnations.iter().rev().find(|known| known.base <= version);
            let expected = expected.map(|known| (known.number, known.size.min(LANES_MAX as u32)));
            let known = index::producers_of(space, version).ok().flatten();
            let built = index::build(space, version, Bring::Segments, &mut cursors, VersionIndex::default());
            let what = match built {
                Err(e) => format!("the version is not readable: {}", e.message()),
                Ok(_) if known != expected => format!("incarnation {known:?} produced it, not {expected:?}"),
                Ok(_) => continue,
            };
            // Without a lease a version can go while it is looked at.
            if control.oldest() > version {
                continue;
            }
            self.add(Some(version), 0, 0, what);
            unreadable += 1;
            if unreadable == UNREADABLE_MAX {
                self.add(None, 0, 0, format!("{unreadable} versions are not readable; the check was ended"));
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::create::attached;
    use crate::open::runs::free_run;
    use crate::{OpenOptions, Retention, Writer};
    use std::sync::atomic::Ordering::Release;

    /// A process was killed while it freed the segments of a version that all readers had released.
    #[test]
    fn a_dropped_version_that_was_freed_in_part_is_no_damage() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions {
            quota_bytes: Some(8 << 20),
            segment_bytes: Some(256 << 10),
            retention: Some(Retention::Forever),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).unwrap();
        for _ in 0..2 {
            writer.begin_step().unwrap();
            (0..5).for_each(|i| {
                writer.put_array("x", &[5 * 100_000], &[i * 100_000], &[100_000], &[1u8; 100_000]).unwrap();
            });
            writer.end_step().unwrap();
        }
        writer.close().unwrap();
        let space = attached(&name);
        let lane = LaneId { incarnation: 1, rank: 0 };
        let middle = space.control.find_segment(lane, |sequence, _| sequence == 1).unwrap().granule;
        assert_eq!(space.control.granule_last(middle), 0, "of the first version alone");
        let offset = middle as u64 * space.superblock.granule_bytes;
        forebay_log::reclaim::retire(&*space.device, offset, space.superblock.horizon).unwrap();
        free_run(&space, middle);
        assert!(!verify(&space).unwrap().damaged.is_empty(), "it is retained");
        space.control.drop_below(|| 1);
        assert_eq!(verify(&space).unwrap().damaged, []);
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// As a flipped bit makes it of an open group.
    #[test]
    fn a_death_without_a_rank_beside_a_writer_that_lives_is_damage() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions { quota_bytes: Some(8 << 20), ..OpenOptions::default() };
        let writer = Writer::open(&name, &options).unwrap();
        let space = attached(&name);
        let state = space.control.word(head::STATE);
        let open = state.load(Acquire);
        let found = || differences(&space).unwrap();
        assert!(found().is_empty(), "{:?}", found());
        state.store(open ^ 2, Release);
        assert_eq!(space.control.producer_state(), ProducerState::Died(None));
        assert!(found().iter().any(|damage| damage.what.contains("this one lives")), "{:?}", found());
        state.store(open, Release);
        writer.close().unwrap();
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// The slot of a killed writer goes to the next member that needs one, before any process notes the death.
    #[test]
    fn a_slot_of_a_killed_writer_that_is_used_again_is_no_damage() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions { quota_bytes: Some(8 << 20), ..OpenOptions::default() };
        let mut writer = Writer::open(&name, &options).unwrap();
        writer.begin_step().unwrap();
        writer.put_array("x", &[1], &[0], &[1], &[1u8]).unwrap();
        writer.end_step().unwrap();
        let space = attached(&name);
        let slot = space.control.lane_owner(0).0.unwrap();
        let set = |field, value| space.control.member(slot, field).store(value, Release);
        let of_member = || {
            let found = differences(&space).unwrap();
            found.iter().filter(|damage| damage.what.contains("is named as the writer")).count()
        };
        set(member::STATE, Role::Observer.state());
        assert_eq!(of_member(), 1, "this process is the writer");
        set(member::PID, 1);
        assert_eq!(of_member(), 0, "another process has the slot");
        set(member::STATE, Role::Writer.state());
        set(member::PID, u64::from(std::process::id()));
        assert_eq!(of_member(), 0);
        space.control.set_lane_owner(0, Some(slot + 16), false);
        assert_eq!(of_member(), 1, "a slot without a member is named, and the writer lives");
        // One that withdraws, whose lane another process has already, is not the lane's writer.
        let start_ticks = space.control.lane_start_ticks(0).load(Acquire);
        space.control.lane_start_ticks(0).store(start_ticks + 1, Release);
        assert_eq!(of_member(), 0);
        space.control.lane_start_ticks(0).store(start_ticks, Release);
        space.control.set_lane_owner(0, Some(slot), false);
        writer.close().unwrap();
        drop(space);
        crate::destroy(&name).unwrap();
    }
}
