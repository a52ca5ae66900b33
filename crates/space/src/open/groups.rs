//! Reader groups: who is to see every version, and how far each of their ranks has got.
//!
//! Guarantees: a group that was declared, by the writers' `readers` or by an explicit name, keeps a cursor for each
//! rank, which counts the versions that the rank has ended. It outlives the rank's process; a rank that comes again,
//! while others of its group are there, goes on behind the last version that it ended, and a group that comes again as
//! a whole behind the last one that all its ranks ended. Whether versions wait for a group that is absent is its policy
//! ([`Absent`]). Any other group is forgotten as soon as its processes are gone. Registration and removal happen under
//! the setup lock, and can be done again where their process was killed. A cursor is stored by its rank alone, before
//! that rank lets the version go. Not here: what lies on the medium ([`crate::control::cursors`]), who is alive.

use forebay_config::Absent;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use forebay_tier::{Error, Kind, Result};

use crate::control::cursors::{Cursor, GroupRecord};
use crate::control::{
    group, head, member, too_many, Control, CURSORS_MAX, GROUPS_MAX, GROUP_RANKS_MAX, NAME_BYTES,
};
use crate::open::attach::Attachment;
use crate::open::member::Role;

/// The word `policy` of a group that keeps no cursor.
const AD_HOC: u64 = 0;

fn policy_word(policy: Absent) -> u64 {
    match policy {
        Absent::Hold => 1,
        Absent::Drop => 2,
        Absent::Error => 3,
    }
}

/// What a group means to the writers while it is absent; None: it keeps no cursor.
pub(crate) fn policy_of(control: &Control, index: usize) -> Option<Absent> {
    match control.group(index, group::POLICY).load(SeqCst) {
        1 => Some(Absent::Hold),
        2 => Some(Absent::Drop),
        3 => Some(Absent::Error),
        _ => None,
    }
}

/// Whether versions wait for what the cursors of a group say, also when none of its readers lives.
fn holds_by_cursors(control: &Control, index: usize) -> bool {
    matches!(policy_of(control, index), Some(Absent::Hold | Absent::Error))
}

/// Whether a group that is registered is to keep its cursors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keep {
    /// As it does already, else not.
    AsKnown,
    /// It does; None: with the policy that it has, else `hold`.
    Declared(Option<Absent>),
}

/// The slot of a live member that reads as `rank` of group `index`.
pub(crate) fn live_reader(space: &Attachment, index: usize, rank: u32) -> Option<u32> {
    readers_of(&space.control, index).find(|slot| {
        space.control.member(*slot, member::RANK).load(Relaxed) >> 32 == u64::from(rank)
            && space.is_alive(*slot)
    })
}

/// Under the setup lock: the group of this name, made if need be.
pub(crate) fn find_or_add_group(space: &Attachment, name: &str, size: u32, keep: Keep) -> Result<usize> {
    let control = &space.control;
    if size == 0 || size > GROUP_RANKS_MAX {
        return Err(too_many("ranks of a reader group", GROUP_RANKS_MAX as usize).with("size", size));
    }
    if name.is_empty() || name.len() > NAME_BYTES {
        return Err(Error::new(Kind::Usage, format!("invalid name of a reader group: `{name}`"))
            .hint(format!("a name has 1 to {NAME_BYTES} bytes; the default is the name of the component")));
    }
    let Some(index) = find_group(space, name) else { return add_group(space, name, size, keep) };
    let known = control.group_size(index);
    let is_torn = control.group(index, group::SUM).load(Acquire) == 0;
    if known == size && control.group_cursors(index).len() == size as usize {
        if is_torn {
            mend(space, index)?;
        }
        return keep_cursors(space, index, keep).map(|()| index);
    }
    let keeps = policy_of(control, index).is_some();
    let is_away = (is_torn || has_come(control, index)) && !has_live_rank(space, index);
    if !(if keeps { is_away } else { is_killed(space, index) }) {
        return Err(Error::new(Kind::GroupMismatch, format!("reader group {name} has another size"))
            .with("size", size)
            .with("known_size", known)
            .hint(format!(
                "all ranks of a component must be started with the same size; `forebay clean --readers {name} {}` \
                 removes a group that will not return",
                space.name
            )));
    }
    if keeps {
        resize(space, index, size)?;
        return keep_cursors(space, index, keep).map(|()| index);
    }
    // Its program was killed and comes again with another number of ranks.
    forget_group(space, index)?;
    add_group(space, name, size, keep)
}

/// Under the setup lock: finishes what a process began that was killed while it changed a group, or whose write failed:
/// the group is as the control segment has it.
fn mend(space: &Attachment, index: usize) -> Result<()> {
    let control = &space.control;
    let policy = control.group(index, group::POLICY).load(SeqCst);
    if policy != AD_HOC {
        let places = control.group_cursors(index);
        write_group(space, index, (policy, has_come(control, index)), &places, |place| {
            control.cursor(place)
        })?;
    }
    control.sum_group(index);
    Ok(())
}

/// Under the setup lock: registers a group, which is to see everything from the oldest version on.
fn add_group(space: &Attachment, name: &str, size: u32, keep: Keep) -> Result<usize> {
    let control = &space.control;
    let free = || (0..GROUPS_MAX).find(|index| control.group(*index, group::STATE).load(Acquire) == 0);
    if free().is_none() && !replace_one(space, None)? {
        return Err(too_many("reader groups", GROUPS_MAX).hint(hint_for_full(space)));
    }
    let places = make_places(space, size, None)?;
    let index = free().expect("one was free, or became so");
    // One that was killed here may have left a record of another group.
    if let Some(file) = space.known_cursors_file()? {
        file.set_group(index, None)?;
    }
    control.word(head::READERS_REMOVED).store(0, SeqCst);
    control.group(index, group::SIZE).store(u64::from(size), Relaxed);
    control.set_group_name(index, name);
    control.group(index, group::POLICY).store(AD_HOC, SeqCst);
    control.set_group_cursors(index, &places);
    // One that was killed while it removed a group here may have left these.
    control.group(index, group::CAME).store(0, SeqCst);
    for mask in [group::JOINED, group::ENDED] {
        control.clear_group_bits(index, mask);
    }
    begin_at(control, index, control.oldest());
    control.register_group(index);
    // Producers may be dropping versions that did not see this group.
    begin_at(control, index, control.first_kept());
    keep_cursors(space, index, keep).map(|()| index)
}

/// Under the setup lock: no rank of a group has ended a version from `at` on.
fn begin_at(control: &Control, index: usize, at: u64) {
    // While it changes: a process that is killed here leaves a group that the next one mends.
    control.group(index, group::SUM).store(0, SeqCst);
    control.group(index, group::START).store(at, SeqCst);
    control.group_cursors(index).for_each(|place| control.set_cursor(place, Cursor::At(at)));
    control.sum_group(index);
}

/// Under the setup lock: forgets one group, but not `kept`, of which no rank lives and for which nothing is held: all
/// its ranks have left, or it keeps no cursor. Whether there was one.
fn replace_one(space: &Attachment, kept: Option<usize>) -> Result<bool> {
    let is_awaited =
        |index| policy_of(&space.control, index).is_some() || awaited_from(space, index).is_some();
    let is_replaceable = |index: &usize| {
        Some(*index) != kept
            && !has_live_rank(space, *index)
            && (lowest_cursor(space, *index).is_none() || !is_awaited(*index))
    };
    let replaced = registered_groups(&space.control).find(is_replaceable);
    replaced.map(|index| forget_group(space, index)).transpose().map(|forgotten| forgotten.is_some())
}

/// As [`free_places`]; groups that can be replaced, but not `kept`, make way.
fn make_places(space: &Attachment, size: u32, kept: Option<usize>) -> Result<std::ops::Range<usize>> {
    loop {
        match free_places(&space.control, size) {
            Err(e) if !replace_one(space, kept)? => return Err(e.hint(hint_for_full(space))),
            Err(_) => {}
            places => return places,
        }
    }
}

/// How to go on where a table is full of groups that something is held for.
fn hint_for_full(space: &Attachment) -> String {
    format!(
        "`forebay ls {}` lists the groups; `forebay clean --readers GROUP {0}` removes one that will not return",
        space.name
    )
}

/// So many places of the table of cursors that no registered group has.
fn free_places(control: &Control, size: u32) -> Result<std::ops::Range<usize>> {
    let mut taken: Vec<_> = registered_groups(control).map(|index| control.group_cursors(index)).collect();
    taken.sort_by_key(|places| places.start);
    let mut first = 0;
    for places in taken {
        if places.start >= first + size as usize {
            break;
        }
        first = places.end.max(first);
    }
    match first + size as usize {
        end if end <= CURSORS_MAX => Ok(first..end),
        _ => Err(too_many("ranks of all reader groups together", CURSORS_MAX)),
    }
}

/// Under the setup lock: lets a group keep its cursors from now on, if it is to.
fn keep_cursors(space: &Attachment, index: usize, keep: Keep) -> Result<()> {
    let Keep::Declared(policy) = keep else { return Ok(()) };
    let control = &space.control;
    let known = control.group(index, group::POLICY).load(SeqCst);
    let wanted = match policy {
        Some(policy) => policy_word(policy),
        None if known == AD_HOC => policy_word(Absent::Hold),
        None => known,
    };
    if wanted != known {
        let came = has_come(control, index);
        let places = control.group_cursors(index);
        write_group(space, index, (wanted, came), &places, |place| control.cursor(place))?;
        control.group(index, group::POLICY).store(wanted, SeqCst);
    }
    Ok(())
}

/// Writes a group and its cursors to the file, where there is to be one.
fn write_group(
    space: &Attachment,
    index: usize,
    (policy, came): (u64, bool),
    places: &std::ops::Range<usize>,
    cursor: impl Fn(usize) -> Cursor,
) -> Result<()> {
    let Some(file) = space.cursors_file()? else { return Ok(()) };
    places.clone().try_for_each(|place| file.set_cursor(place, cursor(place)))?;
    // The record comes after what it speaks of.
    file.sync()?;
    file.set_group(
        index,
        Some(&GroupRecord {
            name: space.control.group_name(index),
            size: places.len() as u32,
            policy: policy as u32,
            first: places.start as u64,
            came,
        }),
    )
}

/// Under the setup lock, of a group no rank of which lives: it comes again with another number of ranks, which begin
/// behind the last version that all the old ones ended.
fn resize(space: &Attachment, index: usize, size: u32) -> Result<()> {
    let control = &space.control;
    let stopped_at = lowest_cursor(space, index);
    let at = stopped_at.unwrap_or_else(|| control.oldest());
    let places = make_places(space, size, Some(index))?;
    // Until it is done: where this process is killed the next one mends it.
    control.group(index, group::SUM).store(0, SeqCst);
    let policy = control.group(index, group::POLICY).load(SeqCst);
    places.clone().for_each(|place| control.set_cursor(place, Cursor::At(at)));
    write_group(space, index, (policy, has_come(control, index)), &places, |_| Cursor::At(at))?;
    control.group(index, group::START).store(at, SeqCst);
    control.set_group_cursors(index, &places);
    control.group(index, group::SIZE).store(u64::from(size), SeqCst);
    for mask in [group::JOINED, group::ENDED] {
        control.clear_group_bits(index, mask);
    }
    control.sum_group(index);
    if stopped_at.is_none() {
        // Nothing was held for it before.
        begin_at(control, index, control.first_kept());
    }
    Ok(())
}

/// The registered group of this name.
pub(crate) fn find_group(space: &Attachment, name: &str) -> Option<usize> {
    space.control.mend_groups_high();
    registered_groups(&space.control).find(|index| space.control.group_name(*index) == name)
}

pub(crate) fn registered_groups(control: &Control) -> impl Iterator<Item = usize> + '_ {
    (0..control.groups_high()).filter(|index| control.group(*index, group::STATE).load(SeqCst) != 0)
}

/// Under the setup lock: no group of this place in the table is registered any more. What dead members say of it goes
/// too, so that it is not said of the next group there.
pub(crate) fn forget_group(space: &Attachment, index: usize) -> Result<()> {
    let control = &space.control;
    // First, so that a kill leaves a group that can be removed again.
    if let Some(file) = space.known_cursors_file()? {
        file.set_group(index, None)?;
    }
    control.group(index, group::SUM).store(0, SeqCst);
    control.group(index, group::STATE).store(0, SeqCst);
    control.group(index, group::POLICY).store(AD_HOC, SeqCst);
    for mask in [group::JOINED, group::ENDED] {
        control.clear_group_bits(index, mask);
    }
    for slot in readers_of(control, index) {
        control.member(slot, member::GROUP).store(u64::MAX, SeqCst);
    }
    Ok(())
}

/// Under the setup lock, before a slot gets another member: a killed reader may be all that tells that the program of
/// its group is gone. Without its slot the group, if it keeps no cursor, would be awaited again. `joins` is the group
/// of the new member.
pub(crate) fn forget_killed(space: &Attachment, slot: u32, joins: Option<usize>) -> Result<()> {
    let control = &space.control;
    let index = control.member(slot, member::GROUP).load(Acquire);
    let Some(index) = registered_groups(control).find(|known| *known as u64 == index) else { return Ok(()) };
    let mut known = readers_of(control, index);
    let is_last = known.next() == Some(slot) && known.next().is_none();
    if is_last && Some(index) != joins && policy_of(control, index).is_none() {
        forget_group(space, index)?;
    }
    Ok(())
}

/// Under the setup lock: forgets groups that keep no cursor and of which no rank is there or ever joined, as a process
/// leaves one that is killed between the two. What cannot be forgotten now is the next time.
pub(crate) fn forget_unjoined(space: &Attachment) {
    let control = &space.control;
    for index in registered_groups(control) {
        let has_joined = control.group_count(index, group::JOINED) > 0;
        if policy_of(control, index).is_none() && !has_joined && !has_live_rank(space, index) {
            let _ = forget_group(space, index);
        }
    }
}

/// Slots of members that read for group `index`, living or killed; who left is none.
pub(crate) fn readers_of(control: &Control, index: usize) -> impl Iterator<Item = u32> + '_ {
    (0..control.members_high()).filter(move |slot| {
        Role::of_state(control.member(*slot, member::STATE).load(Acquire)) == Some(Role::Reader)
            && control.member(*slot, member::GROUP).load(Acquire) == index as u64
    })
}

fn has_live_rank(space: &Attachment, index: usize) -> bool {
    readers_of(&space.control, index).any(|slot| space.is_alive(slot))
}

/// Whether ranks of the group were killed and none lives: its program is gone.
pub(crate) fn is_killed(space: &Attachment, index: usize) -> bool {
    let mut readers = readers_of(&space.control, index).peekable();
    readers.peek().is_some() && !readers.any(|slot| space.is_alive(slot))
}

/// Whether a rank of the group was ever there.
fn has_come(control: &Control, index: usize) -> bool {
    control.group(index, group::CAME).load(SeqCst) != 0
}

/// Under the setup lock, when a rank joins.
pub(crate) fn note_come(space: &Attachment, index: usize) -> Result<()> {
    let control = &space.control;
    if has_come(control, index) {
        return Ok(());
    }
    let policy = control.group(index, group::POLICY).load(SeqCst);
    if policy != AD_HOC {
        let places = control.group_cursors(index);
        write_group(space, index, (policy, true), &places, |place| control.cursor(place))?;
    }
    control.group(index, group::CAME).store(1, SeqCst);
    Ok(())
}

/// The version from which on ranks of the group that are still to join hold; None: none does. While a group is away
/// that keeps cursors, these alone hold; of any other one nothing holds after a kill of all that had joined.
pub(crate) fn awaited_from(space: &Attachment, index: usize) -> Option<u64> {
    let control = &space.control;
    let (joined, size) = (control.group_count(index, group::JOINED), control.group_size(index));
    let is_away = || match policy_of(control, index) {
        Some(_) => has_come(control, index) && !has_live_rank(space, index),
        None => joined > 0 && is_killed(space, index),
    };
    if joined >= size || is_away() {
        return None;
    }
    (0..size).filter_map(|rank| rank_awaited_from(space, index, rank)).min()
}

/// The version from which on a rank holds that is still to join: not one that has left for good, nor one that has seen
/// the end of the stream where nothing was added since and no writers go on.
pub(crate) fn rank_awaited_from(space: &Attachment, index: usize, rank: u32) -> Option<u64> {
    let control = &space.control;
    if control.group_bit(index, group::JOINED, rank) || has_left(control, index, rank) {
        return None;
    }
    let reads_on = |at: u64| at < control.complete() || !control.producer_state().is_finished();
    let is_awaited = ended_at(control, index, rank).is_none_or(reads_on);
    is_awaited.then(|| place_of_unjoined(space, index, rank))
}

/// Whether a rank has left its group for good.
pub(crate) fn has_left(control: &Control, index: usize, rank: u32) -> bool {
    control.cursor(control.group_cursors(index).start + rank as usize) == Cursor::Left
}

/// The cursor of a rank that has seen the end of the stream and has not left.
fn ended_at(control: &Control, index: usize, rank: u32) -> Option<u64> {
    match control.cursor(control.group_cursors(index).start + rank as usize) {
        Cursor::At(version) if control.group_bit(index, group::ENDED, rank) => Some(version),
        _ => None,
    }
}

/// Whether a rank has seen the end of the stream, and has read what was added to it since.
fn has_rank_read_all(control: &Control, index: usize, rank: u32) -> bool {
    ended_at(control, index, rank).is_some_and(|version| version >= control.complete())
}

/// Where a rank that has not joined begins, of a group that has come again as a whole: at the start of the group. One
/// that has seen the end gets again what it had read only where another rank still has to read it.
fn place_of_unjoined(space: &Attachment, index: usize, rank: u32) -> u64 {
    let control = &space.control;
    let start = control.group(index, group::START).load(SeqCst);
    match ended_at(control, index, rank) {
        Some(at) => start.max(lowest_cursor(space, index).unwrap_or(at)).max(control.oldest()).min(at),
        None => start,
    }
}

/// Under the setup lock, before rank `rank` of a group joins, of which no process lives: the version that it begins at,
/// and whether that is where it stopped.
pub(crate) fn begin(space: &Attachment, index: usize, rank: u32) -> Result<(u64, bool)> {
    let control = &space.control;
    if policy_of(control, index).is_none() {
        return Ok((control.group(index, group::START).load(SeqCst), false));
    }
    if !has_live_rank(space, index) {
        // The group comes again as a whole.
        let at = lowest_cursor(space, index).unwrap_or_else(|| control.oldest());
        control.group(index, group::SUM).store(0, SeqCst);
        control.group(index, group::START).store(at, SeqCst);
        control.clear_group_bits(index, group::JOINED);
        control.sum_group(index);
    }
    match control.cursor(control.group_cursors(index).start + rank as usize) {
        Cursor::At(_) if !control.group_bit(index, group::JOINED, rank) => {
            Ok((place_of_unjoined(space, index, rank), true))
        }
        Cursor::At(version) => Ok((version, true)),
        Cursor::Left | Cursor::Free => Ok((control.oldest(), false)),
        Cursor::Damaged => {
            let name = control.group_name(index);
            Err(Error::new(Kind::Damaged, format!("invalid cursor of reader group {name}"))
                .with("space", &space.name)
                .with("rank", rank)
                .hint(format!(
                    "`forebay clean --readers {name} {}` removes the group; it then begins at the oldest version \
                     that is kept",
                    space.name
                )))
        }
    }
}

/// Stores that a rank has ended every version below `version`; durable where the space is. The caller holds these
/// versions until this has returned.
pub(crate) fn advance(space: &Attachment, index: usize, rank: u32, version: u64) -> Result<()> {
    set_cursor(space, index, rank, Cursor::At(version))
}

fn set_cursor(space: &Attachment, index: usize, rank: u32, cursor: Cursor) -> Result<()> {
    let control = &space.control;
    let place = control.group_cursors(index).start + rank as usize;
    if policy_of(control, index).is_some() {
        if let Some(file) = space.cursors_file()? {
            file.set_cursor(place, cursor)?;
            file.sync()?;
        }
    }
    control.set_cursor(place, cursor);
    Ok(())
}

/// When a rank has left its group for good and is no member of it any more: nothing is kept for it.
pub(crate) fn leave(space: &Attachment, index: usize, rank: u32) -> Result<()> {
    let control = &space.control;
    if !has_rank_read_all(control, index, rank) || !control.producer_state().is_finished() {
        // What was added since, or will be, is unread.
        control.clear_group_bit(index, group::ENDED, rank);
    }
    set_cursor(space, index, rank, Cursor::Left)?;
    space.control.announce_space();
    Ok(())
}

/// Under the setup lock, when writers go on with a stream: of its end that ranks saw which have left since nothing is
/// concluded any more.
pub(crate) fn forget_ends_of_left_ranks(control: &Control) {
    for index in registered_groups(control) {
        let left = (0..control.group_size(index)).filter(|rank| has_left(control, index, *rank));
        left.for_each(|rank| control.clear_group_bit(index, group::ENDED, rank));
    }
}

/// When a rank has read a version: an end that it saw before was none, and writers are to be told if it dies.
pub(crate) fn note_reads_on(control: &Control, index: usize, rank: u32) {
    if policy_of(control, index) == Some(Absent::Error) && control.group_bit(index, group::ENDED, rank) {
        control.clear_group_bit(index, group::ENDED, rank);
    }
}

/// The version below which a rank of a group that keeps its cursors has ended all.
pub(crate) fn read_below(control: &Control, index: usize, rank: u32) -> u64 {
    match control.cursor(control.group_cursors(index).start + rank as usize) {
        Cursor::At(version) if policy_of(control, index).is_some() => version,
        _ => 0,
    }
}

/// Under the setup lock: says that a rank that is not there does not come to its group any more. Whether there is the
/// group.
pub(crate) fn leave_unjoined(space: &Attachment, name: &str, rank: u32) -> Result<bool> {
    let Some(index) = find_group(space, name) else { return Ok(false) };
    if rank < space.control.group_size(index) && live_reader(space, index, rank).is_none() {
        leave(space, index, rank)?;
    }
    Ok(true)
}

/// The lowest version that a rank of a group has not ended; None where all have left. A damaged cursor holds
/// everything.
fn lowest_cursor(space: &Attachment, index: usize) -> Option<u64> {
    let control = &space.control;
    let cursors = control.group_cursors(index).filter_map(|place| match control.cursor(place) {
        Cursor::At(version) => Some(version),
        Cursor::Left => None,
        Cursor::Free | Cursor::Damaged => Some(0),
    });
    cursors.min()
}

/// The version from which on the cursors of a group hold, also when none of its readers lives; None: they hold nothing.
pub(crate) fn held_by_cursors(space: &Attachment, index: usize) -> Option<u64> {
    holds_by_cursors(&space.control, index).then(|| unread_from(space, index)).flatten()
}

/// The first version that not every rank of a group has ended, alive or not; None: all have left for good.
pub(crate) fn unread_from(space: &Attachment, index: usize) -> Option<u64> {
    let control = &space.control;
    let places = control.group_cursors(index);
    let held = (0..).zip(places).filter_map(|(rank, place)| match control.cursor(place) {
        Cursor::Left => None,
        // Of a group that comes again as a whole the ranks that are still to join begin at its start.
        Cursor::At(version) => {
            Some(rank_awaited_from(space, index, rank).map_or(version, |place| version.min(place)))
        }
        Cursor::Free | Cursor::Damaged => Some(0),
    });
    held.min()
}

/// Where a group that keeps its cursors goes on; None: there is no such group, or none of its ranks has come yet.
pub(crate) fn stored_cursor(space: &Attachment, name: &str) -> Option<u64> {
    let control = &space.control;
    let index = find_group(space, name)?;
    let lowest = policy_of(control, index).and_then(|_| lowest_cursor(space, index))?;
    has_come(control, index).then_some(lowest)
}

/// Whether a rank has read all there is to the end of the stream, and perhaps has left after it.
pub(crate) fn was_read_by(space: &Attachment, index: usize) -> bool {
    let control = &space.control;
    let has_ended = |rank| control.group_bit(index, group::ENDED, rank);
    (0..control.group_size(index)).any(|rank| {
        has_rank_read_all(control, index, rank) || has_left(control, index, rank) && has_ended(rank)
    })
}

/// Whether every rank of a group that has not left it has seen the end of the stream, and, where the group keeps its
/// cursors, what was added to it since.
pub(crate) fn has_read_all(space: &Attachment, index: usize) -> bool {
    let control = &space.control;
    let keeps = policy_of(control, index).is_some();
    let is_over = |rank| match keeps {
        true => has_rank_read_all(control, index, rank),
        false => control.group_bit(index, group::ENDED, rank),
    };
    (0..control.group_size(index)).all(|rank| has_left(control, index, rank) || is_over(rank))
}

/// The first reader group whose ranks are still awaited, or that is absent and holds `version` by its cursors.
pub(crate) fn awaited_group(space: &Attachment, version: u64) -> Option<String> {
    let is_absent = |index: usize| {
        !has_live_rank(space, index) && held_by_cursors(space, index).is_some_and(|at| at <= version)
    };
    let is_to_join = |index: usize| awaited_from(space, index).is_some_and(|at| at <= version);
    let holds = |index: &usize| is_to_join(*index) || is_absent(*index);
    let awaited = registered_groups(&space.control).find(holds);
    awaited.map(|index| space.control.group_name(index))
}

/// Ranks of a group that keep `version` from being dropped without a process that lives, in words.
pub(crate) fn absent_holders(space: &Attachment, index: usize, version: u64) -> Option<String> {
    let control = &space.control;
    let size = control.group_size(index);
    let missing: Vec<String> = (0..size)
        .filter(|rank| !control.group_bit(index, group::JOINED, *rank))
        .map(|rank| rank.to_string())
        .collect();
    let name = control.group_name(index);
    let awaited = awaited_from(space, index);
    if !has_come(control, index) || (awaited.is_some() && !missing.is_empty()) {
        let holds = awaited.is_some_and(|at| at <= version);
        return holds.then(|| format!("reader group {name}: rank {} never joined", missing.join(", ")));
    }
    let held = held_by_cursors(space, index).filter(|at| *at <= version)?;
    let is_absent = |rank: &u32| live_reader(space, index, *rank).is_none();
    let absent: Vec<String> = (0..size).filter(is_absent).map(|rank| rank.to_string()).collect();
    (!absent.is_empty()).then(|| {
        format!("reader group {name}: rank {} is absent and goes on at version {held}", absent.join(", "))
    })
}

/// [`Kind::PeerMissing`] where a group whose policy says so has come and is not there any more.
pub(crate) fn check_present(space: &Attachment) -> Result<()> {
    let control = &space.control;
    let strict = registered_groups(control).filter(|i| policy_of(control, *i) == Some(Absent::Error));
    for index in strict {
        let cursors = control.group_cursors(index);
        let is_gone = |rank: &u32| {
            control.group_bit(index, group::JOINED, *rank)
                && !control.group_bit(index, group::ENDED, *rank)
                && control.cursor(cursors.start + *rank as usize) != Cursor::Left
                && live_reader(space, index, *rank).is_none()
        };
        if let Some(rank) = (0..control.group_size(index)).find(is_gone) {
            let name = control.group_name(index);
            return Err(Error::new(
                Kind::PeerMissing,
                format!("reader group {name} of space {} is absent", space.name),
            )
            .with("rank", rank)
            .with("absent", Absent::Error)
            .hint(format!(
                "restart its ranks, or, if they will not return, remove the group: forebay clean --readers {name} {}",
                space.name
            )));
        }
    }
    Ok(())
}

/// The error for a reader group that is not registered; `known` are those that are.
pub(crate) fn unknown_group(space: &str, group: &str, known: &str) -> Error {
    Error::new(Kind::UnknownComponent, format!("space {space} has no reader group {group}"))
        .with("groups", known)
}

/// The error for a reader group that is to be removed and of which a rank lives.
pub(crate) fn group_in_use(space: &str, group: &str, holder: &str) -> Error {
    Error::new(Kind::NameInUse, format!("reader group {group} of space {space} is in use"))
        .with("holder", holder)
        .hint("end its processes first")
}

/// How to go on without a reader group for which versions are kept.
pub(crate) fn hint_for_awaited(space: &str, group: &str) -> String {
    format!(
        "start all ranks of the readers, or, if group {group} will not come: forebay clean --readers {group} {space}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::READERS_REMOVED_MARK;
    use crate::open::create::attached;
    use crate::{OpenOptions, Reader, Writer};
    use forebay_tier::host::time::Instant;
    use std::sync::Arc;
    use std::time::Duration;

    /// A space with three versions, and its writer.
    fn written() -> (tempfile::TempDir, Arc<Attachment>, Writer) {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/s", root.path().display());
        let options = OpenOptions { quota_bytes: Some(4 << 20), ..OpenOptions::default() };
        let mut writer = Writer::open(&name, &options).unwrap();
        for version in 0..3u64 {
            writer.begin_step().unwrap();
            writer.put_array("x", &[1], &[0], &[1], &[version]).unwrap();
            writer.end_step().unwrap();
        }
        let space = attached(&name);
        (root, space, writer)
    }

    fn reader(space: &Attachment, group: &str, size: u32) -> Reader {
        let options = OpenOptions {
            component: Some(group.into()),
            rank: Some(0),
            size: Some(size),
            timeout: Duration::from_secs(30),
            ..OpenOptions::default()
        };
        Reader::open(&space.name, &options).unwrap()
    }

    fn locked<T>(space: &Attachment, work: impl FnOnce() -> Result<T>) -> Result<T> {
        space.with_setup_lock(Instant::now() + Duration::from_secs(30), work)
    }

    fn add(space: &Attachment, name: &str, size: u32) -> Result<usize> {
        locked(space, || find_or_add_group(space, name, size, Keep::AsKnown))
    }

    /// Leaves the slot of a reader that has closed as if it had been killed.
    fn kill(space: &Attachment, reader: Reader, index: usize) -> u32 {
        let slot = readers_of(&space.control, index).next().unwrap();
        drop(reader);
        space.control.member(slot, member::GROUP).store(index as u64, SeqCst);
        space.control.member(slot, member::STATE).store(Role::Reader.state(), SeqCst);
        slot
    }

    /// Without a live rank the group could be replaced, and the newcomer's cursor would be the one that is given up.
    #[test]
    fn a_rank_that_leaves_is_a_member_until_it_has_left() {
        let (_root, space, _writer) = written();
        let leaver = reader(&space, "leaver", 1);
        let index = find_group(&space, "leaver").unwrap();
        let left = locked(&space, || {
            let leaving = std::thread::spawn(move || leaver.leave());
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until {
                assert!(has_live_rank(&space, index), "it waits for the lock, and is no member any more");
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(leaving)
        });
        left.unwrap().join().unwrap().unwrap();
        assert!(has_left(&space.control, index, 0) && !has_live_rank(&space, index));
    }

    #[test]
    fn groups_that_have_gone_give_their_cursors_to_others() {
        let (_root, space, _writer) = written();
        for run in 0..3 * CURSORS_MAX as u32 / GROUP_RANKS_MAX {
            let index = add(&space, &format!("run{run}"), GROUP_RANKS_MAX).unwrap();
            (0..GROUP_RANKS_MAX).for_each(|rank| leave(&space, index, rank).unwrap());
        }
        // Ranks that are to come keep theirs.
        let table = CURSORS_MAX as u32 / GROUP_RANKS_MAX;
        (0..table).for_each(|group| {
            add(&space, &format!("kept{group}"), GROUP_RANKS_MAX).unwrap();
        });
        let refused = add(&space, "another", 1).unwrap_err();
        assert_eq!(refused.kind(), Kind::TooMany);
        assert!(refused.hint_text().unwrap().contains("clean --readers"), "{refused}");
        assert!((0..table).all(|group| find_group(&space, &format!("kept{group}")).is_some()));
    }

    #[test]
    fn a_killed_group_holds_nothing_after_its_slot_was_used_again() {
        let (_root, space, _writer) = written();
        let half = reader(&space, "half", 2);
        let index = find_group(&space, "half").unwrap();
        assert!(awaited_from(&space, index).is_some(), "rank 1 is to come");
        let slot = kill(&space, half, index);
        assert_eq!(awaited_from(&space, index), None);
        // All slots below are in use: the next member takes the one of the killed reader.
        let used: Vec<_> = (0..slot).map(|slot| space.members.lock_slot(slot).unwrap()).collect();
        let free = |slot: &u32| space.control.member(*slot, member::STATE).load(Acquire) == 0;
        let others: Vec<_> = (slot + 1..crate::control::MEMBERS_MAX as u32)
            .filter(free)
            .map(|slot| space.members.lock_slot(slot).unwrap())
            .collect();
        let next = reader(&space, "next", 1);
        let holds =
            |index: usize| space.control.group_name(index) == "half" && awaited_from(&space, index).is_some();
        assert!(!registered_groups(&space.control).any(holds));
        drop((used, others, next));
    }

    #[test]
    fn a_damaged_word_lets_no_unread_version_go() {
        let (_root, space, _writer) = written();
        for word in [1, 2, u64::MAX] {
            space.control.word(head::READERS_REMOVED).store(word, SeqCst);
            assert_eq!(crate::open::released::released_by_groups(&space), 0, "{word}");
        }
        space.control.word(head::READERS_REMOVED).store(READERS_REMOVED_MARK, SeqCst);
        assert_eq!(crate::open::released::released_by_groups(&space), 3);
    }

    #[test]
    fn groups_that_a_damaged_count_hides_keep_their_cursors() {
        let (_root, space, _writer) = written();
        let (a, b) = (add(&space, "a", 3).unwrap(), add(&space, "b", 2).unwrap());
        for high in [0, 1] {
            space.control.word(head::GROUPS_HIGH).store(high, SeqCst);
            let new = add(&space, &format!("new{high}"), 4).unwrap();
            let places = |index| space.control.group_cursors(index);
            for known in [a, b] {
                assert!(
                    known != new
                        && (places(known).end <= places(new).start || places(new).end <= places(known).start)
                );
            }
        }
        assert_eq!((add(&space, "a", 3).unwrap(), add(&space, "b", 2).unwrap()), (a, b));
    }

    #[test]
    fn a_group_has_a_name_that_the_table_can_hold() {
        let (_root, space, _writer) = written();
        add(&space, &"n".repeat(NAME_BYTES), 1).unwrap();
        for name in ["", &"n".repeat(NAME_BYTES + 1)] {
            assert_eq!(add(&space, name, 1).unwrap_err().kind(), Kind::Usage, "{}", name.len());
        }
    }
}
