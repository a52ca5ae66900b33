//! Other handles of the space in the process of a writer or a reader: each has a thread of its own.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use forebay_space::{Kind, Reader};
use forebay_tier::host::thread;
use forebay_tier::simulation::{process, Random};

use super::roles::{self, Run, Told};

/// A companion looks so often whether the role of its process is over.
const SLICE: Duration = Duration::from_secs(1);

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
/// process is over: other processes wait for the end of this one.
fn stream(run: &Run, name: &str, over: &AtomicBool) -> Told {
    let Run { cast, oracle } = run;
    let mut options = cast.options(0, 1, name);
    options.timeout = SLICE;
    let mut r = loop {
        match Reader::open(&cast.name(), &options) {
            Ok(r) => break r,
            Err(e) if [Kind::TimedOut, Kind::PeerMissing].contains(&e.kind()) => {
                if over.load(SeqCst) || oracle.facts().finished {
                    return Ok(());
                }
            }
            Err(e) => return roles::explained(run, "open beside", &e),
        }
    };
    let holding = oracle.opened(cast);
    let mut due = 0;
    loop {
        let version = match r.begin_step(None) {
            Ok(Some(version)) => version,
            Ok(None) => break,
            Err(e) if e.kind() == Kind::TimedOut && !over.load(SeqCst) => continue,
            Err(e) if e.kind() == Kind::TimedOut => return Ok(()),
            Err(e) => return roles::explained(run, "begin_step beside", &e),
        };
        if version < due {
            process::fail(format!("a reader beside another handle is given version {version}, {due} is due"));
        }
        due = version + 1;
        let incarnation = roles::timed(run, "read beside", || roles::check(cast, &mut r, version))?;
        oracle.was_read(version, incarnation);
        roles::timed(run, "end_step beside", || r.end_step())?;
    }
    drop(holding);
    roles::timed(run, "close beside", || r.close())
}
