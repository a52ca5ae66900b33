//! Looking at spaces without taking part: lists, details, verification.
//!
//! Nothing here registers, waits or changes what members see. Numbers are a moment's: the space goes on.

use forebay_tier::host::fs;
use forebay_tier::host::time::Instant;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use forebay_log::LaneId;
use forebay_tier::{Error, Kind, Result};

use super::channels;
use super::info::{
    oldest_unread, GroupInfo, MemberInfo, MovedInfo, ReaderGroupInfo, SpaceInfo, TierInfo, VersionInfo,
};
use crate::control::{group, head, member, ProducerState, Waiting, HOLDS_NOTHING};
use crate::lane::index::{self, Bring, VersionIndex};
use crate::open::attach::{Attachment, Fill};
use crate::open::channel::{explained, is_stream};
use crate::open::contents;
use crate::open::create::{attach, attach_until, OPEN_TIMEOUT};
use crate::open::groups::{awaited_from, held_by_cursors, policy_of, registered_groups};
use crate::open::member::Role;
use crate::open::producers::{missing_producers, settle_producers};
use crate::open::released::holders;
use crate::place::name;
use crate::place::pool::POOL_FILE;

pub use forebay_log::verify::Report as VerifyReport;

/// Names of the spaces below the root of short names, sorted.
pub(crate) fn names() -> Result<Vec<String>> {
    names_of(|dir| is_stream(dir) || dir.join(POOL_FILE).exists() || contents::is_of_a_space(dir))
}

/// Names below the root of short names whose directory is one of these, sorted.
pub(crate) fn names_of(is_one: impl Fn(&Path) -> bool) -> Result<Vec<String>> {
    let root = name::root()?;
    let mut out = Vec::new();
    let entries = match fs::read_dir(&root) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(out),
        entries => entries.map_err(|e| Error::io(format!("listing {}", root.display()), e))?,
    };
    for entry in entries {
        let entry = entry.map_err(|e| Error::io("listing spaces", e))?;
        if let Ok(name) = entry.file_name().into_string() {
            if !name.starts_with('.') && is_one(&entry.path()) {
                out.push(name);
            }
        }
    }
    out.sort();
    Ok(out)
}

/// Every space under the root of short names. One that vanishes meanwhile is left out.
///
/// # Errors
/// Those of the root directory; a space that cannot be read is listed with state "unreadable: …".
pub fn list() -> Result<Vec<SpaceInfo>> {
    let mut out = Vec::new();
    let deadline = Instant::now() + OPEN_TIMEOUT;
    for name in names()? {
        match describe_by_name(&name, deadline) {
            Ok(info) => out.push(info),
            Err(e) if e.kind() == Kind::PeerMissing => {}
            Err(e) => out.push(unreadable(&name, &e)?),
        }
    }
    Ok(out)
}

fn describe_by_name(name: &str, deadline: Instant) -> Result<SpaceInfo> {
    let dir = name::directory(name)?;
    if is_stream(&dir) {
        return channels::info(name, &dir, false).map_err(|e| explained(name, &dir, e));
    }
    attach_until(name, deadline).map(|space| describe(&space, name))
}

fn unreadable(name: &str, error: &Error) -> Result<SpaceInfo> {
    Ok(SpaceInfo {
        name: name.to_string(),
        path: name::directory(name)?,
        uuid: String::new(),
        tier: "?".into(),
        horizon: "?".into(),
        durability: "?".into(),
        retention: "?".into(),
        execution_mode: "?".into(),
        checksum: false,
        quota_bytes: 0,
        used_bytes: 0,
        reserved_bytes: 0,
        segment_bytes: 0,
        versions_oldest: 0,
        versions_complete: 0,
        state: format!("unreadable: {}", error.kind()),
        run: None,
        host: String::new(),
        created_unix_ns: 0,
        producer: None,
        readers: Vec::new(),
        oldest_unread: None,
        members: Vec::new(),
        tiers: Vec::new(),
        moved: MovedInfo::default(),
        versions: Vec::new(),
    })
}

/// One space as [`list`] has it: without its versions, and so without reading its records.
///
/// # Errors
/// As [`inspect`].
pub fn glance(name: &str) -> Result<SpaceInfo> {
    glance_within(name, OPEN_TIMEOUT)
}

/// As [`glance`], waiting `timeout` for a process that opens or rebuilds the space.
///
/// # Errors
/// As [`inspect`]; `TimedOut`.
pub fn glance_within(name: &str, timeout: Duration) -> Result<SpaceInfo> {
    describe_by_name(name, Instant::now() + timeout)
}

/// One space, with its versions.
///
/// # Errors
/// `PeerMissing` when there is none; `Damaged`, `UnknownFormat`, `PoolOwnedElsewhere`, `BadName`.
pub fn inspect(name: &str) -> Result<SpaceInfo> {
    let dir = name::directory(name)?;
    if is_stream(&dir) {
        return channels::info(name, &dir, true).map_err(|e| explained(name, &dir, e));
    }
    let space = attach(name)?;
    let mut info = describe(&space, name);
    let mut cursors = rustc_hash::FxHashMap::<LaneId, index::LaneCursor>::default();
    for version in index::retained(&space) {
        // Without a lease a version can go while it is looked at; it is then left out.
        let Ok(found) = index::build(&space, version, Bring::Segments, &mut cursors, VersionIndex::default())
        else {
            continue;
        };
        if space.control.oldest() <= version {
            info.versions.push(VersionInfo {
                version,
                complete: true,
                bytes: found.payload_bytes,
                records: found.len() as u64,
                variables: found.names(&*space.device),
            });
        }
    }
    Ok(info)
}

fn state_of(state: ProducerState, any_alive: bool) -> &'static str {
    match (state, any_alive) {
        (ProducerState::Finished | ProducerState::Withdrawn(_), _) => "finished",
        (ProducerState::Died(_), true) => "producer died",
        (ProducerState::Open | ProducerState::None | ProducerState::Died(_), false) => "dead",
        (ProducerState::Open, true) => "open",
        (ProducerState::None, true) => "new",
    }
}

fn describe(space: &Attachment, name: &str) -> SpaceInfo {
    let control = &space.control;
    let sb = &space.superblock;
    let state = settle_producers(space);
    let members = members(space);
    let complete = control.complete();
    let oldest = control.oldest().min(complete);
    let readers = reader_groups(space, oldest, complete);
    let tiers = tiers(space);
    SpaceInfo {
        name: name.to_string(),
        path: space.dir.clone(),
        uuid: uuid::Uuid::from_bytes(sb.uuid).to_string(),
        tier: sb.tier.to_string(),
        horizon: sb.horizon.to_string(),
        durability: space.device.durability(sb.horizon).to_string(),
        retention: space.retention().to_string(),
        execution_mode: control.execution_mode().to_string(),
        checksum: sb.checksum,
        quota_bytes: tiers.iter().map(|tier| tier.quota_bytes).sum(),
        used_bytes: tiers.iter().map(|tier| tier.used_bytes).sum(),
        reserved_bytes: tiers.iter().map(|tier| tier.reserved_bytes).sum(),
        segment_bytes: sb.segment_bytes,
        versions_oldest: oldest,
        versions_complete: complete,
        state: state_of(state, members.iter().any(|m| m.alive)).to_string(),
        run: (!sb.run.is_empty()).then(|| sb.run.clone()),
        host: sb.host.clone(),
        created_unix_ns: sb.created_unix_ns,
        producer: producer(space),
        oldest_unread: oldest_unread(&readers, oldest, complete),
        readers,
        members,
        tiers,
        moved: MovedInfo {
            spilled_bytes: control.word(head::SPILLED).load(Relaxed),
            promoted_bytes: control.word(head::PROMOTED).load(Relaxed),
            failed: control.word(head::MOVES_FAILED).load(Relaxed),
            dropped_versions: control.word(head::DROPPED).load(Relaxed),
        },
        versions: Vec::new(),
    }
}

fn tiers(space: &Attachment) -> Vec<TierInfo> {
    (0..space.pools.len())
        .map(|pool| {
            let Fill { used_bytes, reserved_bytes, quota_bytes } = space.fill_of(pool);
            let tier = pool.checked_sub(1).map_or(space.superblock.tier, |i| space.tiers.lower[i].tier);
            let path = space.tiers.path_of(pool, space.first.path()).to_path_buf();
            TierInfo { tier: tier.to_string(), path, quota_bytes, used_bytes, reserved_bytes }
        })
        .collect()
}

fn producer(space: &Attachment) -> Option<GroupInfo> {
    let control = &space.control;
    let (incarnation, size) = control.producers();
    (size > 0).then(|| GroupInfo {
        component: control.name(head::PRODUCER),
        size,
        incarnation,
        joined: (0..size).filter(|r| control.lane_owner(*r).0.is_some()).count() as u32,
        closed: (0..size).filter(|r| control.lane_owner(*r).1).count() as u32,
    })
}

fn reader_groups(space: &Attachment, oldest: u64, complete: u64) -> Vec<ReaderGroupInfo> {
    let control = &space.control;
    registered_groups(control)
        .map(|i| {
            let cursors = (0..control.members_high()).filter_map(|slot| {
                let reads = control.member(slot, member::GROUP).load(Relaxed) == i as u64
                    && control.member(slot, member::STATE).load(Acquire) != 0;
                let cursor = control.member(slot, member::CURSOR).load(Relaxed);
                (reads && cursor != HOLDS_NOTHING && space.is_alive(slot)).then_some(cursor)
            });
            let version_min = cursors.min();
            let size = control.group_size(i);
            let joined = control.group_count(i, group::JOINED);
            // Ranks that have not come yet will want everything from the group's start on.
            let awaited = awaited_from(space, i);
            let held = held_by_cursors(space, i);
            let needed = version_min.into_iter().chain(awaited).chain(held).min().map(|v| v.max(oldest));
            let counts = (joined, control.group_count(i, group::ENDED));
            let name = control.group_name(i);
            let info = ReaderGroupInfo::new(name, size, counts, (version_min, needed), complete);
            ReaderGroupInfo { absent: policy_of(control, i), ..info }
        })
        .collect()
}

fn members(space: &Attachment) -> Vec<MemberInfo> {
    let control = &space.control;
    (0..control.members_high())
        .filter_map(|slot| {
            let word = |field| control.member(slot, field).load(Relaxed);
            let role = Role::of_state(control.member(slot, member::STATE).load(Acquire))?;
            let rank = (word(member::RANK) >> 32) as u32;
            let version = match role {
                Role::Writer => control.progress(rank).1,
                _ => {
                    Some(word(member::CURSOR)).filter(|c| *c != HOLDS_NOTHING).unwrap_or(word(member::STEPS))
                }
            };
            let lease = word(member::LEASE);
            let since = word(member::WAITING_SINCE);
            Some(MemberInfo {
                role: role.name().to_string(),
                component: control.member_name(slot),
                rank,
                size: word(member::RANK) as u32,
                pid: word(member::PID) as u32,
                host: space.superblock.host.clone(),
                alive: space.is_alive(slot),
                since_unix_ns: word(member::SINCE),
                version,
                steps: word(member::STEPS),
                bytes: word(member::BYTES_MOVED),
                op_ns: word(member::OP_NS),
                wait_ns: word(member::WAIT_NS),
                waiting_for: waiting_for(space, Waiting::of_word(word(member::WAITING))),
                waiting_since_unix_ns: (since != 0).then_some(since),
                lease: (lease != HOLDS_NOTHING).then_some(lease),
            })
        })
        .collect()
}

fn waiting_for(space: &Attachment, waiting: Waiting) -> Option<String> {
    let (what, who) = match waiting {
        Waiting::No => return None,
        Waiting::Version(v) => (format!("version {v}"), missing_producers(space, v)),
        Waiting::FreeSpace(v) => (format!("space for version {v}"), holders(space, space.control.oldest())),
        Waiting::Turn(v) => (format!("its turn for version {v}"), holders(space, v.saturating_sub(1))),
        Waiting::Gate => return Some(format!("an admission slot, {}", space.control.execution_mode())),
    };
    // Between the two looks it may have come; the process that waits for it is just waking up.
    Some(match who.is_empty() {
        true => format!("{what}, which is there by now"),
        false => format!("{what}: {}", who.join("; ")),
    })
}

/// Reads every byte of a space, compares it with its checksums, and the control segment with what the lanes hold: what
/// would make a read fail, or show other versions, is in the report. Blocks for as long as that takes.
///
/// # Errors
/// `PeerMissing`, `UnknownFormat`, `PoolOwnedElsewhere`, `Damaged` when not even the superblock can be read.
/// Damaged records are no error but in the report.
pub fn verify(name: &str) -> Result<VerifyReport> {
    let dir = name::directory(name)?;
    check_directory(name, &dir)?;
    if is_stream(&dir) {
        return channels::verify(name, &dir).map_err(|e| explained(name, &dir, e));
    }
    let space = attach(name)?;
    crate::upkeep::verify::verify(&space)
}

fn check_directory(name: &str, dir: &Path) -> Result<()> {
    // Something else in its place is said when it is opened.
    if fs::metadata(dir).is_ok() {
        return Ok(());
    }
    Err(Error::new(Kind::PeerMissing, format!("space {name} does not exist"))
        .with("directory", dir.display())
        .hint("`forebay ls` shows what is there"))
}
