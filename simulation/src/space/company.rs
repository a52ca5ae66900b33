//! Other handles of the space in the process of a writer or a reader: each has a thread of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use forebay_space::{leave_reader_group, remove_reader_group, ExecutionMode, Kind, OpenOptions, Reader};
use forebay_tier::host::thread;
use forebay_tier::simulation::{process, Random};

use super::cast::TIMEOUT;
use super::oracle::Holding;
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
    /// So many reader groups, of one or two ranks each, that no writer declares.
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
    pub fn beside(self, run: &Run, mut random: Random, role: impl FnOnce() -> Told) -> Told {
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
                let random = Random::new(random.next(), 47);
                Box::new(move || stream(&run, &name, &over, random)) as Box<dyn FnOnce() -> Told + Send>
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

/// Groups that no writer declared, one after the other: each reads what it is given, until the end, or until it waits
/// and the role of its process is over: other processes wait for the end of this one. Where no process is killed most
/// keep cursors, come again now and then, miss nothing, and leave for good.
fn stream(run: &Run, name: &str, over: &AtomicBool, mut random: Random) -> Told {
    if !run.cast.kills_none() {
        return read(run, name, over, &mut random).map(drop);
    }
    // Each time another group, which takes the place of one that has left.
    for life in 0..LIVES_MAX {
        let group = format!("{name}-{life}");
        let told = read(run, &group, over, &mut random);
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

/// One rank of a group beside.
struct Rank<'a> {
    run: &'a Run,
    options: OpenOptions,
    over: &'a AtomicBool,
    r: Reader,
    holding: Holding,
    due: u64,
}

/// What a rank was given.
enum Given {
    Version(u64),
    /// The end of the stream.
    End,
    /// Nothing yet, and the role of its process is over.
    Nothing,
}

impl<'a> Rank<'a> {
    /// None: the space has ended before, or the role of the process is over.
    fn join(
        run: &'a Run,
        options: OpenOptions,
        over: &'a AtomicBool,
    ) -> std::result::Result<Option<Rank<'a>>, ()> {
        let Some(r) = open(run, &options, over)? else { return Ok(None) };
        let holding = run.oracle.opened(&run.cast);
        Ok(Some(Rank { run, options, over, r, holding, due: 0 }))
    }

    fn begin(&mut self) -> std::result::Result<Given, ()> {
        let version = loop {
            match self.r.begin_step(None) {
                Ok(Some(version)) => break version,
                Ok(None) => {
                    self.run.oracle.was_read_beside();
                    return Ok(Given::End);
                }
                Err(e) if e.kind() == Kind::TimedOut && !self.over.load(SeqCst) => continue,
                Err(e) if e.kind() == Kind::TimedOut => return Ok(Given::Nothing),
                Err(e) => {
                    return roles::explained(self.run, "begin_step beside", &e).map(|()| Given::Nothing)
                }
            }
        };
        let (missed, rank, due) = (self.r.missed(), self.r.rank(), self.due);
        process::note(format!("rank {rank} beside reads version {version}, having missed {missed}"));
        if version < due {
            process::fail(format!("a reader beside another handle is given version {version}, {due} is due"));
        }
        self.due = version + 1;
        Ok(Given::Version(version))
    }

    fn end(&mut self, version: u64) -> Told {
        let Run { cast, oracle } = self.run;
        let incarnation = roles::timed(self.run, "read beside", || roles::check(cast, &mut self.r, version))?;
        oracle.was_read(version, incarnation);
        roles::timed(self.run, "end_step beside", || self.r.end_step())
    }

    fn close(self) -> Told {
        drop(self.holding);
        roles::timed(self.run, "close beside", || self.r.close())
    }

    fn leave(mut self) -> Told {
        drop(self.holding);
        self.r.set_timeout(TIMEOUT);
        roles::timed(self.run, "leave beside", || self.r.leave())
    }

    /// Closes and comes again, where it goes on.
    fn come_again(self) -> std::result::Result<Option<Rank<'a>>, ()> {
        let (run, options, over, due) = (self.run, self.options.clone(), self.over, self.due);
        self.close()?;
        let again = Rank::join(run, options, over)?;
        Ok(again.map(|rank| Rank { due, ..rank }))
    }
}

/// One life of a group of one or two ranks, of which the second comes later than the first.
fn read(run: &Run, name: &str, over: &AtomicBool, random: &mut Random) -> std::result::Result<Ended, ()> {
    let cast = &run.cast;
    // The same in each life of its process.
    let number = name.bytes().fold(cast.seed, |number, byte| number.wrapping_mul(31) + u64::from(byte));
    let mut drawn = Random::new(number, 53);
    // Of a group that keeps no cursor a rank is awaited for ever whose process was killed between the ranks.
    let size = if cast.kills_none() { 1 + drawn.below(2) as u32 } else { 1 };
    let passes = cast.behaviour.cursorless && Random::new(number, 73).percent(70);
    let keeps = cast.kills_none() && drawn.percent(75) && !passes;
    let options = |rank| OpenOptions {
        timeout: SLICE,
        group: keeps.then(|| name.to_owned()),
        ..cast.options(rank, size, name)
    };
    let Some(mut first) = Rank::join(run, options(0), over)? else { return Ok(Ended::Over) };
    let retained = roles::timed(run, "versions beside", || first.r.versions())?;
    // Writers may have been about to drop what the groups that they declared have read.
    let begins_at_most = match cast.declared {
        true => retained.start.max(run.oracle.unread_from(cast)),
        false => retained.end,
    };
    let mut second: Option<Rank> = None;
    // Versions that the first rank has read and the second has not.
    let mut behind = VecDeque::new();
    // Writers that go by turns wait for all of it.
    let second_comes = if cast.execution_mode == ExecutionMode::SerialPerStep { 0 } else { random.below(3) };
    let ends = 2 + random.below(8);
    for steps in 0.. {
        if size == 2 && second.is_none() && steps == second_comes {
            second = Rank::join(run, options(1), over)?;
            if second.is_none() {
                return Ok(Ended::Over);
            }
        }
        if let Some(rank) = &mut second {
            if !catch_up(rank, &mut behind)? {
                return Ok(Ended::Over);
            }
        }
        let due = first.due;
        let version = match first.begin()? {
            Given::Version(version) => version,
            Given::End => break,
            Given::Nothing => return Ok(Ended::Over),
        };
        let misses = match steps {
            0 => version > begins_at_most,
            _ => version > due,
        };
        if misses && !cast.drops() {
            process::fail(format!("{name} is given version {version}, where {due} is due of {retained:?}"));
        }
        first.end(version)?;
        behind.push_back(version);
        if size == 1 {
            behind.clear();
        }
        // Where the second rank has not come the group would come again as a whole.
        if keeps && version % 4 == 1 && (size == 1 || second.is_some()) {
            let Some(again) = first.come_again()? else { return Ok(Ended::Over) };
            first = again;
        }
        if keeps && steps == ends && (size == 1 || second.is_some()) {
            return leave(run, name, (first, second), random);
        }
    }
    second.map_or(Ok(()), Rank::close)?;
    first.close().map(|()| Ended::Over)
}

/// The second rank reads what the first one has read. False: the role of its process is over.
fn catch_up(rank: &mut Rank, behind: &mut VecDeque<u64>) -> std::result::Result<bool, ()> {
    let drops = rank.run.cast.drops();
    while let Some(due) = behind.pop_front() {
        match rank.begin()? {
            Given::Version(version) if version == due || drops => {
                rank.end(version)?;
                behind.retain(|due| *due > version);
            }
            Given::End if drops => behind.clear(),
            Given::Version(version) => process::fail(format!(
                "the second rank of a group is given version {version}, the first one read {due}"
            )),
            Given::End => process::fail(format!("the second rank of a group is told the end at {due}")),
            Given::Nothing => return Ok(false),
        }
    }
    Ok(true)
}

/// A group that keeps cursors goes for good: its ranks leave it, or it is removed.
fn leave(
    run: &Run,
    name: &str,
    (first, second): (Rank, Option<Rank>),
    random: &mut Random,
) -> std::result::Result<Ended, ()> {
    if random.percent(50) {
        first.leave()?;
        return second.map_or(Ok(()), Rank::leave).map(|()| Ended::Left);
    }
    first.close()?;
    second.map_or(Ok(()), Rank::close)?;
    match remove_reader_group(&run.cast.name(), name) {
        Err(e) if e.kind() != Kind::PeerMissing => roles::explained(run, "remove a group", &e)?,
        _ => {}
    }
    Ok(Ended::Left)
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
    for rank in 0..2 {
        match leave_reader_group(&run.cast.name(), name, rank, TIMEOUT) {
            Err(e) if e.kind() != Kind::PeerMissing => {
                roles::explained(run, "leave a group that is away", &e)?;
            }
            _ => {}
        }
    }
    Ok(())
}
