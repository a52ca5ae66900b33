//! Looking at file-per-object channels without taking part, verifying and removing them.
//!
//! Guarantees: nothing here registers, waits or changes what members see, except for removal, which never
//! touches a channel that a live process has open unless it is told to. Numbers are a moment's. Not here:
//! finding channels (`inspect.rs`).

use crate::files::{Producers, ReaderDf, Stream, VersionFiles, LOCK_STREAM};
use crate::open::channel::{is_unfinished, misplaced, MEMBERS_FILE};
use crate::open::directory::remove_directory;
use crate::upkeep::info::{
    oldest_unread, GroupInfo, MemberInfo, MovedInfo, ReaderGroupInfo, SpaceInfo, TierInfo, VersionInfo,
};
use crate::upkeep::removed::{CleanOptions, Removed, BY_A_KILL};
use forebay_config::OpenOptions;
use forebay_log::verify::Damage;
use forebay_log::verify::Report as VerifyReport;
use forebay_tier::host::fs;
use forebay_tier::liveness::MembersFile;
use forebay_tier::{Error, Kind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Removal waits this long for the lock of the channel.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

fn open(name: &str, dir: &Path) -> Result<Stream> {
    Stream::open(name, dir, &OpenOptions::default(), false)?.ok_or_else(|| {
        Error::new(Kind::PeerMissing, format!("there is no channel {name}")).with("directory", dir.display())
    })
}

/// The channel in `dir` as it is now; with what its versions hold when `with_versions`.
///
/// # Errors
/// `PeerMissing`, `Damaged`, `UnknownFormat`, `PoolOwnedElsewhere`.
pub(crate) fn info(name: &str, dir: &Path, with_versions: bool) -> Result<SpaceInfo> {
    let stream = open(name, dir)?;
    let (df, complete, oldest) = (&stream.df, stream.complete_count()?, stream.oldest()?);
    let readers = stream.readers()?;
    let mut members = writers(&stream)?;
    members.extend(readers.iter().filter(|r| !r.ended).map(|r| reader(&stream, r)));
    let state = state_of(&stream, members.iter().any(|m| m.alive))?;
    let oldest = oldest.min(complete);
    let groups = groups(&stream, &readers, oldest, complete);
    let created = fs::metadata(dir).ok().and_then(|m| m.created().ok());
    let used_bytes = stream.bytes_below(u64::MAX)?;
    Ok(SpaceInfo {
        name: name.into(),
        path: dir.into(),
        uuid: df.uuid.clone(),
        tier: "files".into(),
        horizon: df.horizon.to_string(),
        durability: stream.durability().to_string(),
        retention: df.retention.to_string(),
        // Each rank knows its own; nothing here says it.
        execution_mode: "?".into(),
        checksum: df.checksum,
        quota_bytes: df.quota_bytes.unwrap_or(0),
        used_bytes,
        // Files take what they hold.
        reserved_bytes: used_bytes,
        segment_bytes: 0,
        versions_oldest: oldest,
        versions_complete: complete,
        state: state.into(),
        run: df.current().map(|i| i.run.clone()).filter(|run| run.contains('/')),
        host: df.host.clone(),
        created_unix_ns: created
            .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
            .map_or(0, |t| t.as_nanos() as u64),
        producer: producer(&stream)?,
        oldest_unread: oldest_unread(&groups, oldest, complete),
        readers: groups,
        members,
        tiers: vec![TierInfo {
            tier: "files".into(),
            path: dir.into(),
            quota_bytes: df.quota_bytes.unwrap_or(0),
            used_bytes,
            reserved_bytes: used_bytes,
        }],
        moved: MovedInfo::default(),
        versions: if with_versions { versions(&stream, oldest..complete)? } else { Vec::new() },
    })
}

fn state_of(stream: &Stream, any_alive: bool) -> Result<&'static str> {
    if stream.df.current().is_none() {
        return Ok("new");
    }
    Ok(match (stream.producers()?, any_alive) {
        (Producers::Finished, _) => "finished",
        (Producers::Died(_), true) => "producer died",
        (Producers::Open, true) => "open",
        (Producers::Died(_) | Producers::Open, false) => "dead",
    })
}

fn producer(stream: &Stream) -> Result<Option<GroupInfo>> {
    let Some(current) = stream.df.current() else { return Ok(None) };
    let (mut joined, mut closed) = (0, 0);
    for rank in 0..current.size {
        joined += u32::from(stream.came(rank)?.is_some());
        closed += u32::from(stream.is_closed(rank)?);
    }
    Ok(Some(GroupInfo {
        component: current.component.clone(),
        size: current.size,
        incarnation: current.number,
        joined,
        closed,
    }))
}

fn writers(stream: &Stream) -> Result<Vec<MemberInfo>> {
    let Some(current) = stream.df.current() else { return Ok(Vec::new()) };
    let mut members = Vec::new();
    for rank in 0..current.size {
        let Some(came) = stream.came(rank)?.filter(|_| !stream.is_closed(rank).unwrap_or(false)) else {
            continue;
        };
        members.push(MemberInfo {
            role: "writer".into(),
            component: current.component.clone(),
            rank,
            size: current.size,
            pid: came.pid,
            host: stream.df.host.clone(),
            alive: stream.members.is_alive(rank),
            since_unix_ns: came.since_unix_ns,
            version: current.first_version + came.done.steps,
            steps: came.done.steps,
            bytes: came.done.bytes,
            op_ns: came.done.op_ns,
            wait_ns: came.done.wait_ns,
            waiting_for: None,
            waiting_since_unix_ns: None,
            lease: None,
        });
    }
    Ok(members)
}

fn reader(stream: &Stream, reader: &ReaderDf) -> MemberInfo {
    MemberInfo {
        role: if reader.observer { "observer" } else { "reader" }.into(),
        component: reader.group.clone(),
        rank: reader.rank,
        size: reader.size,
        pid: reader.pid,
        host: stream.df.host.clone(),
        alive: stream.holds(reader),
        since_unix_ns: reader.since_unix_ns,
        version: reader.cursor,
        steps: reader.done.steps,
        bytes: reader.done.bytes,
        op_ns: reader.done.op_ns,
        wait_ns: reader.done.wait_ns,
        waiting_for: None,
        waiting_since_unix_ns: None,
        lease: reader.lease,
    }
}

fn groups(stream: &Stream, readers: &[ReaderDf], oldest: u64, complete: u64) -> Vec<ReaderGroupInfo> {
    let group = |(name, size): (String, u32)| {
        let ranks: Vec<&ReaderDf> = readers.iter().filter(|r| !r.observer && r.group == name).collect();
        let counts = (ranks.len() as u32, ranks.iter().filter(|r| r.saw_end).count() as u32);
        let version_min = ranks.iter().filter(|r| stream.holds(r)).map(|r| r.cursor).min();
        let needed = stream.needed(readers, &name, size).map(|v| v.max(oldest));
        ReaderGroupInfo::new(name, size, counts, (version_min, needed), complete)
    };
    stream.groups(readers).into_iter().map(group).collect()
}

fn versions(stream: &Stream, retained: std::ops::Range<u64>) -> Result<Vec<VersionInfo>> {
    let mut out = Vec::new();
    for version in retained {
        // Without a lease a version can go while it is looked at; it is then left out.
        let Ok(mut files) = VersionFiles::list(stream, version) else { continue };
        let Ok(variables) = files.names() else { continue };
        let bytes = files.payload_bytes()?;
        out.push(VersionInfo { version, complete: true, bytes, records: files.len() as u64, variables });
    }
    Ok(out)
}

/// Reads every byte of the channel and compares it with its checksums.
///
/// # Errors
/// As [`info`]. Damaged objects are no error but in the report.
pub(crate) fn verify(name: &str, dir: &Path) -> Result<VerifyReport> {
    let stream = open(name, dir)?;
    let mut report = VerifyReport::default();
    for version in stream.oldest()?..stream.complete_count()? {
        report.versions += 1;
        match VersionFiles::list(&stream, version) {
            Ok(mut files) => files.verify_all(&mut report),
            Err(e) => {
                let what = e.to_string();
                report.damaged.push(Damage {
                    version: Some(version),
                    rank: 0,
                    variable: None,
                    offset: 0,
                    what,
                });
            }
        }
    }
    Ok(report)
}

/// Removes the channel unless a live process has it open: `Err` of the inner result says why it stays.
///
/// # Errors
/// As [`info`]; those of the operating system.
pub(crate) fn clean(
    name: &str,
    dir: &Path,
    options: &CleanOptions,
) -> Result<std::result::Result<Removed, String>> {
    let mut stream = open(name, dir)?;
    stream.locked(LOCK_TIMEOUT, |stream| {
        if let Some(member) = live_member(stream)? {
            return Ok(Err(format!("in use by {member}")));
        }
        let reason = match stream.producers()? {
            Producers::Finished if options.dead_only => {
                return Ok(Err("it ended cleanly; without --dead it goes too".into()));
            }
            Producers::Finished => "it ended and no process has it open",
            _ => "its processes are dead",
        };
        let bytes = allocated_bytes(&stream.dir);
        if !options.dry_run {
            remove_directory(&stream.dir)?;
        }
        Ok(Ok(Removed { name: name.into(), bytes, reason: reason.into() }))
    })
}

/// As [`clean`], of a channel whose `stream.json` cannot be read.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn clean_damaged(
    name: &str,
    dir: &Path,
    options: &CleanOptions,
) -> Result<std::result::Result<Removed, String>> {
    if let Some(path) = misplaced(dir) {
        return Err(Error::new(Kind::NameInUse, format!("{} is not a file of the channel", path.display()))
            .hint("move it to another directory first"));
    }
    let members = MembersFile::open(&dir.join(MEMBERS_FILE))?;
    if members.is_any_alive() {
        return Ok(Err("in use by a live process".into()));
    }
    let bytes = allocated_bytes(dir);
    if !options.dry_run {
        remove_directory(dir)?;
    }
    Ok(Ok(Removed { name: name.into(), bytes, reason: "it is damaged".into() }))
}

/// Removes what a process left that was killed before it had made a channel. None: another process has made it since.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn clean_unfinished(name: &str, dir: &Path, options: &CleanOptions) -> Result<Option<Removed>> {
    if !dir.join(MEMBERS_FILE).exists() {
        // Empty, unless its maker goes on just now.
        let is_gone = options.dry_run || fs::remove_dir(dir).is_ok();
        return Ok(is_gone.then(|| Removed { name: name.into(), bytes: 0, reason: BY_A_KILL.into() }));
    }
    let members = MembersFile::open(&dir.join(MEMBERS_FILE))?;
    members.with_lock(LOCK_STREAM, LOCK_TIMEOUT, || {
        if !is_unfinished(dir) || !members.is_there() {
            return Ok(None);
        }
        let bytes = allocated_bytes(dir);
        if !options.dry_run {
            remove_directory(dir)?;
        }
        Ok(Some(Removed { name: name.into(), bytes, reason: BY_A_KILL.into() }))
    })
}

/// Removes the channel if no writer has started in it and no process has it open: its maker was killed.
///
/// # Errors
/// As [`clean`].
pub(crate) fn remove_unstarted(name: &str, dir: &Path) -> Result<()> {
    let mut stream = open(name, dir)?;
    if stream.df.current().is_some() {
        return Ok(());
    }
    stream.locked(LOCK_TIMEOUT, |stream| {
        // A maker that lives and has not started yet makes it anew.
        match stream.df.current().is_none() && live_member(stream)?.is_none() {
            true => remove_directory(&stream.dir).map(drop),
            false => Ok(()),
        }
    })
}

/// Removes the channel, also one that is in use: members that are still there get an error at their next call.
///
/// # Errors
/// As [`clean`].
pub(crate) fn destroy(name: &str, dir: &Path) -> Result<()> {
    open(name, dir)?.locked(LOCK_TIMEOUT, |stream| remove_directory(&stream.dir).map(drop))
}

/// Removes a reader group: versions are no longer kept for it.
///
/// # Errors
/// `PeerMissing`; `UnknownComponent` without such a group; `NameInUse` while one of its ranks lives.
pub(crate) fn remove_reader_group(name: &str, dir: &Path, group: &str) -> Result<()> {
    open(name, dir)?.locked(LOCK_TIMEOUT, |stream| stream.remove_group(group))
}

/// Says that a rank of a reader group that is not there does not come any more. Whether there is the group.
///
/// # Errors
/// `PeerMissing`; `TimedOut`; those of the operating system.
pub(crate) fn leave_reader_group(
    name: &str,
    dir: &Path,
    (group, rank): (&str, u32),
    timeout: Duration,
) -> Result<bool> {
    let mut stream = open(name, dir)?;
    let is_known = stream.locked(timeout, |stream| {
        let is_known = stream.leave_unjoined(group, rank)?;
        stream.reclaim().map(|()| is_known)
    })?;
    stream.remove_if_read(timeout).map(|()| is_known)
}

/// A member that lives, in words.
fn live_member(stream: &Stream) -> Result<Option<String>> {
    let words = |role: &str, rank: u32, of: &str, pid: u32| format!("{role} rank {rank} of {of} (pid {pid})");
    if let Some(current) = stream.df.current() {
        // Also ranks of an earlier, larger start that still live.
        let size = stream.df.incarnations.iter().map(|i| i.size).max().unwrap_or(current.size);
        if let Some(rank) = (0..size).find(|rank| stream.members.is_alive(*rank)) {
            let pid = stream.members.holder(rank).unwrap_or(0);
            return Ok(Some(words("writer", rank, &current.component, pid)));
        }
    }
    let readers = stream.readers()?;
    Ok(readers.iter().find(|r| stream.holds(r)).map(|r| words("reader", r.rank, &r.group, r.pid)))
}

/// Bytes that a directory and what is below it have allocated.
fn allocated_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => meta.blocks() * 512 + allocated_bytes(&entry.path()),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
