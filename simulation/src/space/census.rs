//! What `inspect` says of a space, held against what is known from outside.
//!
//! Members change the space while it is looked at, so that one look may be torn: what is wrong in each of several looks
//! is wrong. What is asked of a process about itself is settled while it makes no other call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_space::{inspect, Kind, MemberInfo, ReaderGroupInfo, Retention, SpaceInfo, WhenFull};
use forebay_tier::host::thread;
use forebay_tier::simulation::process::{self, Exit};

use super::cast::Cast;
use super::oracle::Oracle;
use super::roles::{explained, Run};

/// What is wrong in so many looks is wrong.
const LOOKS: u32 = 4;
/// Between two looks a call ends.
const PAUSE: Duration = Duration::from_millis(3);

/// What is known before a look.
struct Known {
    complete: u64,
    joined: BTreeSet<u32>,
    incarnation: u64,
    /// The calls in which readers wait, by process, with the version that is due.
    waits: BTreeMap<u32, (u64, u64)>,
    /// How each process had ended.
    exits: BTreeMap<u32, Exit>,
    /// Those that ended in order before a thread of theirs had.
    left_threads: BTreeSet<u32>,
}

impl Known {
    fn now(oracle: &Oracle) -> Known {
        let complete = oracle.known();
        let facts = oracle.facts();
        let newest = facts.joined.iter().next_back();
        let (incarnation, joined) = newest.map_or((0, BTreeSet::new()), |(incarnation, ranks)| {
            (*incarnation, ranks.iter().copied().collect())
        });
        let waits = facts.waits.iter().filter(|(pid, _)| process::sleeps_on_a_word(**pid));
        let waits = waits.map(|(pid, wait)| (*pid, *wait)).collect();
        let left_threads = process::that_left_threads();
        Known { complete, joined, incarnation, waits, exits: process::exits(), left_threads }
    }
}

/// A member that looks at itself, between two of its calls.
#[derive(Clone, Copy)]
pub struct Own<'a> {
    /// "writer" or "reader".
    pub role: &'a str,
    /// Component or group.
    pub component: &'a str,
    /// Its rank.
    pub rank: u32,
    /// Ranks of its group.
    pub size: u32,
    /// The version that it puts or reads next; None: it may be any.
    pub next: Option<u64>,
    /// Whether it has ended a step in this life.
    pub has_stepped: bool,
    /// Payload that it has put or got at least.
    pub bytes: u64,
    /// Versions that it missed in this life.
    pub missed: u64,
    /// What its views and its step hold; None: it may be anything.
    pub lease: Option<Option<u64>>,
}

impl<'a> Own<'a> {
    /// Nothing is known but who it is.
    pub fn new(role: &'a str, component: &'a str, (rank, size): (u32, u32)) -> Own<'a> {
        Own { role, component, rank, size, next: None, has_stepped: false, bytes: 0, missed: 0, lease: None }
    }
}

/// A process that takes no part looks on.
pub fn as_stranger(run: &Run) {
    look(run, None);
}

/// A member looks at the space and at what is said of itself.
pub fn as_member(run: &Run, own: &Own<'_>) {
    look(run, Some(own));
}

fn look(run: &Run, own: Option<&Own<'_>>) {
    let mut wrong = Vec::new();
    for _ in 0..LOOKS {
        let (known, cleaned) = (Known::now(&run.oracle), run.oracle.facts().cleaned);
        let seen = run.oracle.seen();
        let info = match inspect(&run.cast.name()) {
            Ok(info) => info,
            Err(e) if e.kind() == Kind::PeerMissing && own.is_none() => return,
            Err(e) if e.kind() == Kind::PeerMissing => {
                process::fail(format!("a space that this process has open is not there: {e}"))
            }
            // Who cannot look goes on: a writer that went here would end its stream.
            Err(e) => return explained(run, "inspect", &e).unwrap_or(()),
        };
        if own.is_none() && (run.oracle.may_be_cleaned() || run.oracle.facts().cleaned != cleaned) {
            // It may be another space than the one that is known.
            return;
        }
        if run.oracle.is_read_to_its_end(&run.cast) {
            return;
        }
        if run.cast.dangers.cuts == 0 && !run.oracle.may_be_cleaned() {
            run.oracle.sees(&(info.versions_oldest..info.versions_complete), seen);
        }
        let complaint = complaint(run, &info, &known).or_else(|| complaint_of(&run.cast, own?, &info));
        let Some(complaint) = complaint else { return };
        wrong.push(complaint);
        thread::sleep(PAUSE);
    }
    process::fail(format!("each of {LOOKS} looks is wrong: {}", wrong.join("; ")))
}

/// What cannot be so, whichever process asks.
fn complaint(run: &Run, info: &SpaceInfo, known: &Known) -> Option<String> {
    let Run { cast, oracle } = run;
    if info.versions_complete < known.complete {
        return Some(format!("{} of {} complete versions are shown", info.versions_complete, known.complete));
    }
    let has_writers = !known.joined.is_empty();
    if has_writers && info.state == "new" {
        return Some(format!("writers {:?} have come, and it counts as new", known.joined));
    }
    let groups = || if has_writers && cast.declared { groups(run, info) } else { None };
    let writers = || if has_writers { producer(cast, info, known) } else { None };
    dropped(cast, oracle, info)
        .or_else(|| filled(cast, info, known))
        .or_else(writers)
        .or_else(groups)
        .or_else(|| info.members.iter().find_map(|listed| member(known, listed)))
        .or_else(|| info.members.iter().find_map(|member| waiting(oracle, info, known, member)))
}

/// Versions that went too early.
fn dropped(cast: &Cast, oracle: &Oracle, info: &SpaceInfo) -> Option<String> {
    let (oldest, complete) = (info.versions_oldest, info.versions_complete);
    let bound = match cast.retention {
        Retention::Forever => 0,
        Retention::Last(count) => complete.saturating_sub(count),
        Retention::Released if cast.declared && cast.when_full != WhenFull::DropOldest && !cast.drops() => {
            oracle.unread_from(cast)
        }
        Retention::Released => return None,
    };
    (oldest > bound)
        .then(|| format!("versions below {oldest} of {complete} are dropped, not only below {bound}"))
}

/// The figures of what is used.
fn filled(cast: &Cast, info: &SpaceInfo, known: &Known) -> Option<String> {
    let (used, reserved, quota) = (info.used_bytes, info.reserved_bytes, info.quota_bytes);
    if used > reserved || reserved > quota {
        return Some(format!("{used} bytes of {reserved} are used, and of {quota} reserved"));
    }
    // Of what is being moved meanwhile a look may miss both places.
    let settled = info.versions.iter().filter(|version| version.version < known.complete);
    let least: u64 = settled.map(|version| version.bytes).sum();
    if used < least && !cast.spills {
        return Some(format!("{used} bytes are used, the versions alone have {least}"));
    }
    let lower: u64 = info.tiers.iter().skip(1).map(|tier| tier.reserved_bytes).sum();
    let was_told = !cast.is_calm() || info.moved.spilled_bytes > 0;
    (lower > 0 && !was_told).then(|| format!("{lower} bytes lie in lower tiers, but none was spilled"))
}

/// The writers that have come.
fn producer(cast: &Cast, info: &SpaceInfo, known: &Known) -> Option<String> {
    let Some(producer) = &info.producer else { return Some("there are no writers".into()) };
    if !cast.is_calm() && producer.joined == 0 {
        // The shared state was made anew after a power cut, or a writer was killed while it took over.
        return None;
    }
    let is_known = u64::from(producer.incarnation) >= known.incarnation
        && (u64::from(producer.incarnation) > known.incarnation
            || producer.joined as usize >= known.joined.len());
    let is_group = producer.component == "writer" && producer.size == cast.writers;
    let is_mode = info.execution_mode == cast.execution_mode.to_string();
    let what = || {
        let (found, declared) = (&info.execution_mode, cast.execution_mode);
        format!("{producer:?} in mode {found}, where {:?} have come in mode {declared}", known.joined)
    };
    (!is_known || !is_group || !is_mode).then(what)
}

/// Each declared group is listed once, as it was declared, but for those that may have been removed.
fn groups(Run { cast, oracle }: &Run, info: &SpaceInfo) -> Option<String> {
    let stays = |(index, _): &(usize, &u32)| !oracle.may_be_removed(*index);
    (0..).zip(&cast.groups).filter(stays).find_map(|(index, size)| {
        let named = |group: &&ReaderGroupInfo| group.name == cast.group(index);
        let mut found = info.readers.iter().filter(named);
        let first = found.next();
        let is_right = first.is_some_and(|group| {
            group.size == *size && group.absent == Some(cast.absent) && found.next().is_none()
        });
        (!is_right).then(|| format!("group {index} of {size} ranks is listed as {first:?}"))
    })
}

/// Members that are listed live, or were killed: who went in order is none. A helper thread that is at work past the
/// deadline of closing holds its member, and ends with the process.
fn member(known: &Known, member: &MemberInfo) -> Option<String> {
    let exit = known.exits.get(&member.pid);
    let was_cut = exit == Some(&Exit::Killed) || known.left_threads.contains(&member.pid);
    let is_there = exit.is_none() || was_cut && !member.alive;
    let is_named = match member.role.as_str() {
        "writer" => member.component == "writer",
        "observer" => ["observer", "judge"].contains(&member.component.as_str()),
        _ => member.component.starts_with("group-") || member.component.starts_with("beside-"),
    };
    let is_right = is_there && is_named && member.rank < member.size && member.since_unix_ns > 0;
    (!is_right).then(|| format!("{member:?} is listed, its process: {exit:?}"))
}

/// A reader that sleeps says what it waits for, and names no writer that has put it.
fn waiting(oracle: &Oracle, info: &SpaceInfo, known: &Known, member: &MemberInfo) -> Option<String> {
    let (due, since) = *known.waits.get(&member.pid).filter(|_| member.role == "reader")?;
    let goes_on = Known::now(oracle).waits.get(&member.pid) == Some(&(due, since));
    if !goes_on || info.versions_complete > due || !member.component.starts_with("group-") {
        return None;
    }
    let Some(text) = member.waiting_for.as_ref().filter(|_| member.waiting_since_unix_ns.is_some()) else {
        return Some(format!("{member:?} sleeps and does not say why"));
    };
    if !text.starts_with(&format!("version {due}")) {
        return Some(format!("a reader that waits for version {due} waits for {text}"));
    }
    None
}

/// What is said of the member that asks.
fn complaint_of(cast: &Cast, own: &Own<'_>, info: &SpaceInfo) -> Option<String> {
    let mine = |member: &&MemberInfo| {
        member.pid == process::own()
            && (member.role.as_str(), member.component.as_str(), member.rank, member.size)
                == (own.role, own.component, own.rank, own.size)
    };
    let found: Vec<&MemberInfo> = info.members.iter().filter(mine).collect();
    let [member] = found[..] else {
        return Some(format!("a live {} is listed as {found:?} of {:?}", own.role, info.members));
    };
    // The lane of a writer is taken from it where another group of writers takes the space over.
    let is_lane_its_own = own.role == "reader" || cast.is_calm();
    let is_next = own.next.is_none_or(|next| {
        (member.version == next || !is_lane_its_own) && (!own.has_stepped || member.steps == next)
    });
    let is_held = own.lease.is_none_or(|lease| member.lease == lease);
    let is_idle = member.waiting_for.is_none() && member.waiting_since_unix_ns.is_none();
    if !member.alive || !is_next || !is_held || !is_idle || member.bytes < own.bytes {
        let (next, lease, bytes) = (own.next, own.lease, own.bytes);
        return Some(format!("{member:?}, where {next:?} is next, {lease:?} held and {bytes} bytes moved"));
    }
    if own.role != "reader" {
        return None;
    }
    let is_told = cast.when_full != WhenFull::DropOldest || info.moved.dropped_versions >= own.missed;
    if cast.is_calm() && !is_told {
        return Some(format!("{} versions were missed, {:?}", own.missed, info.moved));
    }
    let group = info.readers.iter().find(|group| group.name == own.component);
    let is_counted = group.is_some_and(|group| {
        group.size == own.size
            && group.joined > 0
            && group.version_min.is_some_and(|least| own.next.is_none_or(|next| least <= next))
    });
    (!is_counted).then(|| format!("a rank reads for {group:?}"))
}
