//! What the processes beside writers and readers do: observers, which look, list and verify; drains; cleaners.

use std::process::exit;
use std::time::Duration;

use fastrand::Rng;
use forebay_space::{CleanOptions, Kind, OpenOptions, Reader};

use crate::board::{Board, Slot};
use crate::cast::Cast;
use crate::death::{Death, Place};
use crate::roles::{check, refused, wrong, EXIT_TYPED, TIMEOUT};

/// How often an observer that comes and goes looks.
const LOOKS: u64 = 4;
/// A drain waits so long for readers to release what they hold.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Opens the space without taking part.
fn open(cast: &Cast) -> Reader {
    let look = OpenOptions { observer: true, timeout: TIMEOUT, ..OpenOptions::default() };
    Reader::open(&cast.name(), &look).unwrap_or_else(|e| refused("open to look", &e))
}

/// Comes, looks a few times, goes.
pub fn observer(cast: &Cast, mut random: Rng, death: Death) {
    death.at(Place::Open, 0);
    let mut r = open(cast);
    for step in 0..LOOKS {
        death.at(Place::Inside, step);
        look(cast, &mut r, &mut random);
        std::thread::sleep(Duration::from_millis(random.u64(..5)));
    }
}

/// Is a member of the space, and looks, until it is told to leave.
pub fn keeper(cast: &Cast, board: &Board, mut random: Rng) {
    let mut r = open(cast);
    board.set(Slot::Keeper(0), 1);
    while board.get(Slot::Keeper(0)) == 1 {
        look(cast, &mut r, &mut random);
        std::thread::sleep(Duration::from_millis(2 + random.u64(..10)));
    }
}

/// Reads a version, or looks at the space in another way.
fn look(cast: &Cast, r: &mut Reader, random: &mut Rng) {
    match random.u64(..5) {
        0 => verify(cast),
        1 => drop(forebay_space::inspect(&cast.name()).unwrap_or_else(|e| refused("inspect", &e))),
        2 => drop(forebay_space::list().unwrap_or_else(|e| refused("list", &e))),
        _ => {
            let versions = r.versions().unwrap_or_else(|e| refused("versions", &e));
            if !versions.is_empty() {
                look_at(r, random.u64(versions));
            }
        }
    }
}

/// Reads a version, which may be dropped meanwhile.
fn look_at(r: &mut Reader, version: u64) {
    let looked = r.open_version(version).and_then(|mut opened| {
        check(&mut opened, version, version)?;
        opened.end_step()
    });
    match looked {
        Ok(()) => {}
        Err(e) if e.kind() == Kind::VersionGone => {}
        Err(e) => refused(&format!("version {version}"), &e),
    }
}

/// Beside a writer that is stopped in the middle of a change the control segment may differ from the lanes for longer
/// than `verify` looks; the lanes themselves are whole at any time.
fn verify(cast: &Cast) {
    let report = forebay_space::verify(&cast.name()).unwrap_or_else(|e| refused("verify", &e));
    if let Some(damage) = report.damaged.iter().find(|damage| !damage.what.starts_with("control segment:")) {
        wrong(format!("verify finds damage where there is none: {damage:?}"));
    }
}

/// Drains the space. `alone`: no other process has it open.
pub fn drain(cast: &Cast, alone: bool, death: Death) {
    death.at(Place::Open, 0);
    death.watch_moves(cast, None);
    match forebay_space::drain(&cast.name(), DRAIN_TIMEOUT) {
        Ok(report) if report.remaining_bytes == 0 => {}
        Ok(report) => wrong(format!("after a drain there are still {} bytes", report.remaining_bytes)),
        // The lower pools are small: a segment was to be moved for which they had no free space.
        Err(e) if e.kind() == Kind::TierFull && e.context().iter().any(|(key, _)| *key == "segment") => {}
        // The space is not made yet, or read to its end; readers hold versions.
        Err(e) if e.kind() == Kind::PeerMissing => exit(EXIT_TYPED),
        Err(e) if e.kind() == Kind::TimedOut && !alone => exit(EXIT_TYPED),
        Err(e) => wrong(format!("drain: {e}")),
    }
}

/// Cleans. `is_in_use`: a process has the space open all the time, so that it must stay.
pub fn clean(cast: &Cast, is_in_use: bool, death: Death) {
    death.at(Place::Open, 0);
    death.watch_removal(cast);
    let mut ways = vec![CleanOptions::default()];
    if !cast.first.is_memory() {
        ways.push(CleanOptions { names: vec![cast.name()], ..CleanOptions::default() });
    }
    for way in ways {
        let report = match forebay_space::clean(&way) {
            Ok(report) => report,
            Err(e) if e.kind() == Kind::PeerMissing && !is_in_use => continue,
            Err(e) => wrong(format!("clean: {e}")),
        };
        report.kept.iter().for_each(|kept| eprintln!("clean kept {}: {}", kept.name, kept.reason));
        let removed = report.removed.iter().find(|removed| !removed.name.contains(".new-"));
        if let (Some(removed), true) = (removed, is_in_use) {
            wrong(format!("clean removed {} in use: {}", removed.name, removed.reason));
        }
    }
}
