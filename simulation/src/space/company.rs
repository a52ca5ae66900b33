//! Other handles of the space in the process of a writer or a reader: each has a thread of its own.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use forebay_space::{leave_reader_group, Kind, OpenOptions, Reader};
use forebay_tier::host::thread;
use forebay_tier::simulation::{process, Random};

use super::cast::TIMEOUT;
use super::roles::{self, Run, Told};

/// A companion looks so often whether the role of its process is over.
const SLICE: Duration = Duration::from_secs(1);

/// Groups that one companion is, one after the other.
const LIVES_MAX: u32 = 4;

/// What runs beside the role of a process.
#[derive(Clone, Debug)]
pub enum Company {
    /// Nothing.
    None,
    /// Looks at versions in any order.
    Observer,
    /// So many reader groups, of one rank each, that no writer declares.
    Groups(String, u64),
}

impl Company {
    /// What a life of a process has beside its role. `name` begins the names of its groups.
    pub fn draw(run: &Run, random: &mut Random, name: String) -> Company {
        if !random.percent(run.cast.company.into()) {
            return Company::None;
        }
        match random.below(3) {
            0 => Company::Observer,
            count => Company::Groups(name, count),
        }
    }

    /// Runs the role of a process with this company.
    pub fn beside(self, run: &Run, random: Random, role: impl FnOnce() -> Told) -> Told {
        let groups = if let Company::Groups(_, count) = &self { *count } else { 0 };
        let Some(_beside) = run.oracle.beside(groups) else { return role() };
        let over = Arc::new(AtomicBool::new(false));
        let mut bodies: Vec<Box<dyn FnOnce() -> Told + Send>> = Vec::new();
        match self {
            Company::None => {}
            Company::Observer => {
                let run = run.clone();
                bodies.push(Box::new(move || roles::observer(&run, random)));
            }
            Company::Groups(name, count) => bodies.extend((0..count).map(|index| {
                let (run, name, over) = (run.clone(), format!("{name}-{index}"), over.clone());
                Box::new(move || stream(&run, &name, &over)) as Box<dyn FnOnce() -> Told + Send>
            })),
        }
        // Where a thread cannot be started the process has less company.
        let start = |body| thread::Builder::new().name("company".into()).spawn(body);
        let threads: Vec<_> = bodies.into_iter().map(start).collect();
        let told = role();
        over.store(true, SeqCst);
        // A panic has failed the run.
        threads.into_iter().flatten().for_each(|thread| drop(thread.join()));
        told
    }
}

/// A group that no writer declared: reads what it is given, until the end, or until it waits and the role of its
/// process is over: other processes wait for the end of this one. Where no process is killed it keeps a cursor, comes
/// again now and then, misses nothing, and leaves for good.
fn stream(run: &Run, name: &str, over: &AtomicBool) -> Told {
    if !run.cast.kills_none() {
        return read(run, name, over).map(drop);
    }
    // Each time another group, which takes the place of one that has left.
    for life in 0..LIVES_MAX {
        let group = format!("{name}-{life}");
        let told = read(run, &group, over);
        if !matches!(told, Ok(Ended::Left)) {
            leave_unopened(run, &group)?;
        }
        if !matches!(told, Ok(Ended::Left)) || over.load(SeqCst) {
            return told.map(drop);
        }
    }
    Ok(())
}

/// How a group beside ended.
enum Ended {
    /// It has left for good.
    Left,
    /// At the end of the stream, or of the role of its process.
    Over,
}

fn read(run: &Run, name: &str, over: &AtomicBool) -> std::result::Result<Ended, ()> {
    let Run { cast, oracle } = run;
    let keeps = cast.kills_none();
    let mut options = cast.options(0, 1, name);
    options.timeout = SLICE;
    options.group = keeps.then(|| name.to_owned());
    let Some(mut r) = open(run, &options, over)? else { return Ok(Ended::Over) };
    let mut holding = oracle.opened(cast);
    let mut due = 0;
    let mut steps = 0;
    loop {
        let version = match r.begin_step(None) {
            Ok(Some(version)) => version,
            Ok(None) => break,
            Err(e) if e.kind() == Kind::TimedOut && !over.load(SeqCst) => continue,
            Err(e) if e.kind() == Kind::TimedOut => return Ok(Ended::Over),
            Err(e) => return roles::explained(run, "begin_step beside", &e).map(|()| Ended::Over),
        };
        process::note(format!("{name} reads version {version}, having missed {}", r.missed()));
        // Between the look of a writer at who holds what and its dropping, a group may come.
        let misses = keeps && steps > 1 && version > due && !cast.drops();
        if version < due || misses {
            process::fail(format!("a reader beside another handle is given version {version}, {due} is due"));
        }
        (due, steps) = (version + 1, steps + 1);
        let incarnation = roles::timed(run, "read beside", || roles::check(cast, &mut r, version))?;
        oracle.was_read(version, incarnation);
        roles::timed(run, "end_step beside", || r.end_step())?;
        if keeps && version % 4 == 1 {
            drop(holding);
            roles::timed(run, "close beside", || r.close())?;
            let Some(again) = open(run, &options, over)? else { return Ok(Ended::Over) };
            (r, holding) = (again, oracle.opened(cast));
        }
        if keeps && version % 4 == 3 {
            drop(holding);
            r.set_timeout(TIMEOUT);
            return roles::timed(run, "leave beside", || r.leave()).map(|()| Ended::Left);
        }
    }
    drop(holding);
    roles::timed(run, "close beside", || r.close()).map(|()| Ended::Over)
}

/// Opens the space for a group beside; None: it has ended before, or the role of the process is over.
fn open(run: &Run, options: &OpenOptions, over: &AtomicBool) -> std::result::Result<Option<Reader>, ()> {
    loop {
        match Reader::open(&run.cast.name(), options) {
            Ok(r) => return Ok(Some(r)),
            Err(e) if [Kind::TimedOut, Kind::PeerMissing].contains(&e.kind()) => {
                if over.load(SeqCst) || run.oracle.facts().finished {
                    return Ok(None);
                }
            }
            Err(e) => return roles::explained(run, "open beside", &e).map(|()| None),
        }
    }
}

/// A group that is away leaves for good: else what it has not read is kept for it. The space may be gone.
fn leave_unopened(run: &Run, name: &str) -> Told {
    match leave_reader_group(&run.cast.name(), name, 0, TIMEOUT) {
        Err(e) if e.kind() != Kind::PeerMissing => roles::explained(run, "leave a group that is away", &e),
        _ => Ok(()),
    }
}
