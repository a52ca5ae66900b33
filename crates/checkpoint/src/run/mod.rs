//! The run: which group of processes writes now, who of it is alive, and what it has acknowledged.
//!
//! A checkpoint directory holds `checkpoint.json` (its levels, the number of the current run, who has joined it),
//! `members` (kernel record locks, a byte a rank) and `acknowledged` (the newest committed step of each level). Runs
//! are numbered; a rank that comes joins the current run, or begins the next one when its own place there was taken
//! before, when a rank of it died, or when the number of ranks differs. Processes of an earlier run are fenced:
//! they commit nothing any more.
//!
//! Guarantees: two live processes never hold the same rank; all ranks that are started together get the same number,
//! in whatever order they come; a number is never given twice. Not here: nodes that do not share these locks.

use forebay_tier::host::fs::File;
use forebay_tier::host::thread;
use forebay_tier::host::time::Instant;
use std::path::Path;
use std::time::Duration;

use forebay_tier::checksum::crc32c;
use forebay_tier::liveness::{MembersFile, SlotGuard};
use forebay_tier::{Error, Kind, Result, TierKind};
use serde::{Deserialize, Serialize};

use crate::format::{damaged, In, Out, StepId, SIZE_MAX};
use crate::level::{Keep, LevelInfo};
use crate::place::{call, check_own, Directory, Place};

pub mod memory;

/// The name of the file that makes a directory a checkpoint directory.
pub(crate) const CONTROL: &str = "checkpoint.json";
const MEMBERS: &str = "members";
const ACKNOWLEDGED: &str = "acknowledged";
const SCHEMA: &str = "forebay.checkpoint/1";

/// The lock under which `checkpoint.json` changes.
const JOIN_LOCK: u64 = 0;

/// How long to wait for ranks that are just joining.
const HOLD_TIMEOUT: Duration = Duration::from_secs(10);

/// The lock under which a step is repaired.
const REPAIR_LOCK: u64 = 1;

/// Longest `checkpoint.json`: 1 Mi ranks and their levels.
const CONTROL_BYTES_MAX: u64 = 32 << 20;

/// Bytes of one level in the file `acknowledged`.
const ACKNOWLEDGED_BYTES: usize = 24;

/// What `checkpoint.json` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Control {
    schema: String,
    /// The program that saves here, or nothing.
    pub program: String,
    /// Which launch of the program began the current run, or nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub launch: String,
    /// The number of the current run.
    pub incarnation: u64,
    /// Its ranks.
    pub size: u32,
    /// Runs that ended without closing.
    #[serde(default)]
    pub failures: u64,
    /// When the first run began, in seconds since 1970.
    #[serde(default)]
    pub began_unix_s: u64,
    /// Ranks that came.
    pub joined: Vec<u32>,
    /// Ranks that went, having said so.
    pub closed: Vec<u32>,
    /// The levels, the fastest first.
    pub levels: Vec<LevelInfo>,
}

impl Control {
    /// What cannot be, though it can be read.
    fn nonsense(&self) -> Option<&'static str> {
        let too_high = |rank: &u32| *rank >= self.size;
        let keeps = |keep: &Keep| {
            keep.last > 0 && keep.every != Some(0) && keep.best.is_none_or(|best| best.count > 0)
        };
        let wrong = [
            (self.size == 0 || self.size > SIZE_MAX, "its number of ranks"),
            (self.joined.iter().chain(&self.closed).any(too_high), "a rank is not below their number"),
            (!self.levels.iter().all(|level| keeps(&level.keep)), "which steps a level keeps"),
            (self.levels.iter().any(|level| level.ranks_per_node == Some(0)), "how many ranks share a node"),
        ];
        wrong.into_iter().find(|(wrong, _)| *wrong).map(|(_, what)| what)
    }
}

/// A process's place in the run.
pub(crate) struct Run {
    pub(crate) incarnation: u64,
    rank: u32,
    base: Directory,
    members: MembersFile,
    timeout: Duration,
    _slot: SlotGuard,
}

/// Who comes.
pub(crate) struct Comer<'a> {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) program: &'a str,
    /// Which launch of the program; empty: not said.
    pub(crate) launch: &'a str,
    pub(crate) levels: &'a [LevelInfo],
    /// The highest number of a run that left something in a level.
    pub(crate) highest_seen: &'a dyn Fn() -> Result<u64>,
    pub(crate) timeout: Duration,
}

/// Reads `checkpoint.json`; None when the directory is no checkpoint directory.
///
/// # Errors
/// `UnknownFormat`, `Damaged`, those of the operating system.
pub fn control(base: &Path) -> Result<Option<Control>> {
    if !base.is_dir() {
        return Ok(None);
    }
    read_control(&Directory::existing(base, TierKind::File, "look")?)
}

fn read_control(base: &Directory) -> Result<Option<Control>> {
    let Some(text) = base.load(CONTROL, CONTROL_BYTES_MAX)? else { return Ok(None) };
    let unreadable = |e: serde_json::Error| {
        Error::new(Kind::Damaged, format!("cannot parse {}/{CONTROL}: {e}", base.describe()))
            .hint("it is rebuilt when it is removed; the steps in the levels stay")
    };
    let any: serde_json::Value = serde_json::from_slice(&text).map_err(unreadable)?;
    match any["schema"].as_str() {
        Some(SCHEMA) => {
            let control: Control = serde_json::from_value(any).map_err(unreadable)?;
            match control.nonsense() {
                None => Ok(Some(control)),
                Some(what) => Err(damaged(&format!("{}/{CONTROL}", base.describe()), what)
                    .hint("it is rebuilt when it is removed; the steps in the levels stay")),
            }
        }
        other => {
            Err(Error::new(Kind::UnknownFormat, format!("unknown format of checkpoint {}", base.describe()))
                .with("schema", other.unwrap_or("none"))
                .with("known", SCHEMA)
                .hint("written by a newer release of Forebay: use that release or a newer one"))
        }
    }
}

impl Run {
    /// Joins the current run of a directory, or begins the next one.
    ///
    /// # Errors
    /// `NameInUse`: a live process holds this rank, or a program with other ranks or levels saves there;
    /// `OptionMismatch`: another program's directory; `TimedOut`.
    pub(crate) fn join(base_path: &Path, comer: &Comer<'_>) -> Result<Run> {
        let base = Directory::new(base_path, TierKind::File, "run")?;
        let members = MembersFile::create(&base_path.join(MEMBERS))?;
        // A process that has the lock of joining knows that each one that holds a rank has joined the current run, or
        // holds all ranks.
        let (slot, incarnation) = members.with_lock(JOIN_LOCK, comer.timeout, || {
            let slot = members.lock_slot(comer.rank)?.ok_or_else(|| {
                Error::new(
                    Kind::NameInUse,
                    format!("rank {} of {} is held by a live process", comer.rank, base.describe()),
                )
                .with("pid", members.holder(comer.rank).unwrap_or(0))
                .hint("two runs save into one directory; give each its own")
            })?;
            Ok((slot, admit(&base, &members, comer)?))
        })?;
        if comer.rank == 0 {
            // Of no use to anybody any more; what cannot be removed only takes space.
            let _ = remove_words(&base, incarnation);
        }
        Ok(Run { incarnation, rank: comer.rank, base, members, timeout: comer.timeout, _slot: slot })
    }

    /// `Fenced` when a later run has begun.
    pub(crate) fn check(&self) -> Result<()> {
        self.current().map(drop)
    }

    /// What `checkpoint.json` says, which is of this run.
    fn current(&self) -> Result<Option<Control>> {
        let control = read_control(&self.base)?;
        let current = control.as_ref().map_or(0, |control| control.incarnation);
        if current <= self.incarnation {
            return Ok(control);
        }
        Err(Error::new(Kind::Fenced, "a later run of the program saves into this directory")
            .with("run", self.incarnation)
            .with("current_run", current)
            .hint("this process belongs to an earlier run: end it"))
    }

    /// How long a wait may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Ranks of the run that have gone, whether they said so or not.
    pub(crate) fn gone_ranks(&self) -> Result<Vec<u32>> {
        let Some(control) = self.current()? else { return Ok(Vec::new()) };
        let gone = |rank: &u32| control.closed.contains(rank) || !self.members.is_alive(*rank);
        Ok(control.joined.iter().copied().filter(|rank| *rank != self.rank && gone(rank)).collect())
    }

    /// Runs `work` while no other rank repairs anything.
    ///
    /// # Errors
    /// `TimedOut`; what `work` returns.
    pub(crate) fn repairing<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.members.with_lock(REPAIR_LOCK, self.timeout, work)
    }

    /// The directory of the run's small files.
    pub(crate) fn base(&self) -> &Directory {
        &self.base
    }

    /// A rank of the run that is gone without having said so.
    fn dead_rank(&self) -> Result<Option<u32>> {
        let Some(control) = self.current()? else { return Ok(None) };
        let there = control.joined.iter().filter(|rank| **rank != self.rank);
        let gone: Vec<u32> = there.copied().filter(|rank| !self.members.is_alive(*rank)).collect();
        if gone.iter().all(|rank| control.closed.contains(rank)) {
            return Ok(None);
        }
        // Read again: a rank says that it ends before it is gone.
        let closed = self.current()?.map(|control| control.closed).unwrap_or_default();
        Ok(gone.into_iter().find(|rank| !closed.contains(rank)))
    }

    /// Waits until `done` gives something, at most until the deadline, looking at liveness.
    ///
    /// # Errors
    /// `TimedOut`, with `what`; `ProducerDied`; what `done` returns.
    pub(crate) fn wait<T>(&self, what: &str, mut done: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + self.timeout;
        let mut pause = Duration::from_micros(200);
        loop {
            if let Some(value) = done()? {
                return Ok(value);
            }
            if let Some(rank) = self.dead_rank()? {
                // It may have done its part before it died.
                return match done()? {
                    Some(value) => Ok(value),
                    None => Err(Error::new(Kind::ProducerDied, format!("rank {rank} died: {what}"))
                        .with("rank", rank)
                        .hint("restart all ranks: they begin at the newest committed step")),
                };
            }
            if Instant::now() >= deadline {
                return Err(Error::new(Kind::TimedOut, what.to_string())
                    .with("seconds", self.timeout.as_secs_f64())
                    .hint("check that all ranks call save and restore for the same steps"));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Notes that a step is committed in a level: what a later restart compares with what it finds.
    pub(crate) fn acknowledge(&self, level: usize, id: StepId) -> Result<()> {
        mark_acknowledged(Path::new(&self.base.describe()), level, id)
    }

    /// Says that this rank ends as it should.
    pub(crate) fn close(&self) -> Result<()> {
        self.members.with_lock(JOIN_LOCK, self.timeout, || {
            let Some(mut control) = read_control(&self.base)? else { return Ok(()) };
            if control.incarnation == self.incarnation {
                control.closed.push(self.rank);
                write_control(&self.base, &control, false)?;
            }
            Ok(())
        })
    }
}

/// Writes what a level acknowledges.
pub(crate) fn mark_acknowledged(base: &Path, level: usize, id: StepId) -> Result<()> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let path = base.join(ACKNOWLEDGED);
    let mut out = Out::default();
    out.u64(id.incarnation);
    out.u64(id.step);
    out.u32(boot());
    let crc = crc32c(&out.0);
    out.u32(crc);
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false).mode(0o600);
    call(&path, || options.open(&path))
        .and_then(|file| call(&path, || file.write_all_at(&out.0, (level * ACKNOWLEDGED_BYTES) as u64)))
        .map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
}

/// Whether a live process holds a rank of the current run of a directory. Takes no rank, so that a program that starts
/// meanwhile finds its own free.
pub fn is_alive(control: &Control, base: &Path) -> Result<bool> {
    let path = base.join(MEMBERS);
    if !path.exists() {
        return Ok(false);
    }
    let members = MembersFile::open(&path)?;
    Ok((0..control.size).any(|rank| members.is_alive(rank)))
}

/// Holds every rank of the current run of a directory, so that no process of the program can be there or come.
///
/// # Errors
/// `NameInUse` when one lives; `PermissionDenied` where a directory is not this user's alone.
pub(crate) fn hold_all(base: &Path, control: &Control) -> Result<Vec<SlotGuard>> {
    check_own(base)?;
    for info in control.levels.iter().filter(|info| info.tier != TierKind::Object) {
        info.directories()?.iter().try_for_each(|dir| check_own(dir))?;
    }
    let members = MembersFile::create(&base.join(MEMBERS))?;
    let hold = |rank: u32| {
        members.lock_slot(rank)?.ok_or_else(|| {
            Error::new(Kind::NameInUse, format!("the program of {} is running", base.display()))
                .with("rank", rank)
                .with("pid", members.holder(rank).unwrap_or(0))
                .hint("it copies its steps to the lower levels itself")
        })
    };
    // All of them or none, for a rank that joins.
    members.with_lock(JOIN_LOCK, HOLD_TIMEOUT, || (0..control.size).map(hold).collect())
}

/// What a level had acknowledged last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) id: StepId,
    /// Whether the system has not been started again since.
    pub(crate) this_boot: bool,
}

/// The newest acknowledged step of each level, as far as it is known.
pub(crate) fn acknowledged(base: &dyn Place, levels: usize) -> Result<Vec<Option<Acknowledged>>> {
    let bytes = base.load(ACKNOWLEDGED, 1 << 20)?.unwrap_or_default();
    let entry = |level: usize| {
        let entry = bytes.get(level * ACKNOWLEDGED_BYTES..(level + 1) * ACKNOWLEDGED_BYTES)?;
        let mut from = In::of(entry);
        let id = StepId { incarnation: from.u64()?, step: from.u64()? };
        let this_boot = from.u32()? == boot();
        (from.u32()? == crc32c(&entry[..20])).then_some(Acknowledged { id, this_boot })
    };
    Ok((0..levels).map(entry).collect())
}

/// Tells this boot of the system from others.
fn boot() -> u32 {
    crc32c(forebay_tier::process::boot_id().as_bytes())
}

/// Decides which run a rank is of, under the lock.
fn admit(base: &Directory, members: &MembersFile, comer: &Comer<'_>) -> Result<u64> {
    let known = read_control(base)?;
    if let Some(control) = known.as_ref().filter(|c| c.program != comer.program) {
        return Err(Error::new(
            Kind::OptionMismatch,
            format!("{} belongs to another program", base.describe()),
        )
        .with("program", format!("`{}`", control.program))
        .with("asked_for", format!("`{}`", comer.program))
        .hint("give this program a directory of its own"));
    }
    let gone = |control: &Control, rank: &u32| !control.closed.contains(rank) && !members.is_alive(*rank);
    let is_of_launch = |control: &Control| {
        control.launch == comer.launch || control.launch.is_empty() || comer.launch.is_empty()
    };
    let joins = |control: &&Control| {
        is_of_launch(control)
            && control.size == comer.size
            && control.levels == comer.levels
            && !control.joined.contains(&comer.rank)
            && !control.joined.iter().any(|rank| gone(control, rank))
    };
    // A run that some rank has left by dying is over, and what still lives of it is fenced. One without such an event
    // is in use.
    let lives = |control: &&Control| {
        let differs = control.size != comer.size || control.levels != comer.levels;
        // This process holds the comer's rank already: the process that had it before is gone.
        let holds = |rank: &u32| *rank != comer.rank && members.is_alive(*rank);
        let mut there = control.joined.iter().filter(|rank| !control.closed.contains(rank)).peekable();
        differs && there.peek().is_some() && there.all(holds)
    };
    if let Some(control) = known.as_ref().filter(lives) {
        let pid = control.joined.iter().find_map(|rank| members.holder(*rank));
        let text = format!("a program of {} ranks saves into {}", control.size, base.describe());
        return Err(Error::new(Kind::NameInUse, text)
            .with("pid", pid.unwrap_or(0))
            .with("asked_for", format!("{} ranks", comer.size))
            .with("levels", format!("{:?}", control.levels))
            .hint("wait until it has ended, or give this program a directory of its own"));
    }
    let mut control = match known.as_ref().filter(joins) {
        Some(control) => control.clone(),
        None => {
            let before = known.as_ref().map_or(0, |control| control.incarnation);
            let failed = |c: &Control| c.joined.iter().any(|rank| !c.closed.contains(rank));
            let failures = known.as_ref().map_or(0, |c| c.failures.saturating_add(u64::from(failed(c))));
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let began = known.as_ref().map_or(0, |c| c.began_unix_s);
            Control {
                schema: SCHEMA.to_string(),
                program: comer.program.to_string(),
                launch: comer.launch.to_string(),
                incarnation: next_run(before.max((comer.highest_seen)()?).max(highest_words(base)?), base)?,
                size: comer.size,
                failures,
                began_unix_s: if began == 0 { now.as_secs() } else { began },
                joined: Vec::new(),
                closed: Vec::new(),
                levels: comer.levels.to_vec(),
            }
        }
    };
    control.joined.push(comer.rank);
    // A new number is durable before anybody uses it; so is who joins ranks that have closed: with the power cut, only
    // that tells whether the rank was in the run.
    let durable = control.joined.len() == 1 || !control.closed.is_empty();
    write_control(base, &control, durable)?;
    Ok(control.incarnation)
}

/// What the names of files and directories begin with in which the ranks of a run talk to each other; its number
/// follows. They are not removed when the run ends.
pub(crate) const WORDS: &str = "restore-r";
pub(crate) const NEED: &str = "need-r";
pub(crate) const ASKED: &str = "asked-r";

/// The run whose ranks talk in a file or directory of this name.
fn run_of(name: &str) -> Option<u64> {
    [WORDS, NEED, ASKED].iter().find_map(|prefix| name.strip_prefix(prefix)?.parse().ok())
}

/// The highest number of a run whose ranks left words to each other: they must not be taken for those of a new run.
fn highest_words(base: &Directory) -> Result<u64> {
    Ok(base.list("")?.iter().filter_map(|name| run_of(name)).max().unwrap_or(0))
}

/// Removes what the ranks of runs before `incarnation` said to each other.
fn remove_words(base: &Directory, incarnation: u64) -> Result<()> {
    let names = base.list("")?;
    for name in names.iter().filter(|name| run_of(name).is_some_and(|run| run < incarnation)) {
        if !name.starts_with(WORDS) {
            base.remove(name)?;
            continue;
        }
        for word in base.list(name)? {
            base.remove(&format!("{name}/{word}"))?;
        }
        base.remove_dir(name)?;
    }
    Ok(())
}

/// The number of the run after this one.
fn next_run(before: u64, base: &Directory) -> Result<u64> {
    before.checked_add(1).ok_or_else(|| {
        damaged(&base.describe(), "no number is left for a run")
            .hint("a level holds a directory s…-r18446744073709551615 that Forebay has not made; remove it")
    })
}

fn write_control(base: &Directory, control: &Control, durable: bool) -> Result<()> {
    let hidden = format!(".{CONTROL}");
    let text = serde_json::to_vec_pretty(control).map_err(|e| {
        let error = Error::new(Kind::BadName, format!("a path of {} is not UTF-8", base.describe()));
        error.caused_by(e)
    })?;
    base.store(&hidden, &text)?;
    base.rename(&hidden, CONTROL)?;
    if durable {
        base.sync("")?;
    }
    Ok(())
}
