//! One round: starts the processes, lets them die, starts them again, and looks at what is left.

use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::board::{Board, Slot};
use crate::cast::{numbers, percent, Cast};
use crate::children::{board_path, End, Life, Role};
use crate::death::{Death, Place, CLEANS, DRAINS, LOOKS, MOVES, STEPS};
use crate::tally::Tally;

/// A round that takes longer hangs: its processes have deadlines far below.
const ROUND_LIMIT: Duration = Duration::from_secs(180);
/// When some ranks go on although one is missing, that one had not joined yet, and is started alone.
const MISSING: Duration = Duration::from_millis(300);
/// Deaths of a round.
const DEATHS_MAX: u64 = 5;
/// What happens at a moment of its own happens in the first part of a round.
const EVENTS_US: u64 = 80_000;
/// A stop: longer than the slices in which waiters look again.
const STOP_MS: std::ops::Range<u64> = 60..160;

/// What happens at a moment, whatever the processes do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Start(Role),
    Stop,
    /// Every process is killed at once.
    KillAll,
}

/// The place of one rank in the round, over all its lives.
struct Rank {
    role: Role,
    life: Option<Life>,
    last: Option<End>,
    /// When the last life ended.
    since: Instant,
    /// No process kills it: it has to see everything.
    spared: bool,
}

struct Round<'a> {
    cast: Cast,
    board: Board,
    random: Rng,
    /// Processes started so far.
    started: u64,
    ranks: Vec<Rank>,
    /// Observers, drains and cleaners beside them.
    beside: Vec<Life>,
    keeper: Option<Life>,
    deaths_left: u64,
    /// The same, at places of moving; only some of them are reached.
    mover_deaths_left: u64,
    events: Vec<(Instant, Event)>,
    /// After the kill of all no process is started again but drains and cleaners.
    is_abandoned: bool,
    tally: &'a Tally,
}

/// Plays one round; an error says what was wrong.
pub fn play_round(seed: u64, number: u64, tally: &Tally) -> Result<(), String> {
    let temporary = |prefix: &str, parent: &Path| {
        tempfile::Builder::new().prefix(prefix).tempdir_in(parent).expect("a directory")
    };
    let memory = temporary("forebay-test-", Path::new("/dev/shm"));
    let scratch = temporary("torture-", &std::env::temp_dir());
    let cast = Cast::new(seed, number, memory.path(), scratch.path());
    for dir in cast.lower_dirs().into_iter().chain([cast.root(), cast.space_dir()]) {
        std::fs::create_dir_all(&dir).expect("a directory");
    }
    let mut round = Round::new(cast, tally);
    let played = round.play();
    played.map_err(|why| format!("{why}\n{:?}\n{}", round.cast, round.said()))
}

impl Round<'_> {
    fn new(cast: Cast, tally: &Tally) -> Round<'_> {
        let mut random = numbers(!cast.seed, cast.round);
        let is_killed = percent(&mut random, 25);
        let is_abandoned = is_killed && percent(&mut random, 50);
        let rank = |role, spared| Rank { role, life: None, last: None, since: Instant::now(), spared };
        let writers = (0..cast.writers).map(|r| rank(Role::Writer(r), false));
        // One reader sees it through.
        let readers = (0..cast.readers()).map(|r| rank(Role::Reader(r, !is_killed), r == 0));
        let ranks = writers.chain(readers).collect();
        let (deaths_left, mover_deaths_left) = (random.u64(..=DEATHS_MAX), random.u64(1..=DEATHS_MAX));
        let events = events(&cast, &mut random, is_killed);
        let board = Board::open(&board_path(&cast));
        Round {
            board,
            random,
            started: 0,
            ranks,
            beside: Vec::new(),
            keeper: None,
            deaths_left,
            mover_deaths_left,
            events,
            is_abandoned,
            cast,
            tally,
        }
    }

    fn play(&mut self) -> Result<(), String> {
        let limit = Instant::now() + ROUND_LIMIT;
        for i in 0..self.ranks.len() {
            self.start(i);
        }
        if self.cast.has_keeper {
            self.keeper = Some(self.begin(Role::Keeper, Death::NEVER));
        }
        while !self.is_over() {
            if Instant::now() > limit {
                return Err(format!("it hangs: {}", self.state()));
            }
            let was_killed = self.let_happen();
            self.reap()?;
            if was_killed && self.is_abandoned {
                return self.bury().and_then(|()| self.look_at_what_is_left());
            }
            self.revive_writers()?;
            self.revive_readers();
            std::thread::sleep(Duration::from_micros(500));
        }
        self.dismiss(limit)?;
        self.look_at_what_is_left()
    }

    fn state(&self) -> String {
        let rank = |r: &Rank| format!("{:?} {:?}", r.role, if r.life.is_some() { None } else { r.last });
        self.ranks.iter().map(rank).collect::<Vec<_>>().join(", ")
    }

    /// What the last processes of the round said, the newest last.
    fn said(&self) -> String {
        let mut files: Vec<_> = std::fs::read_dir(&self.cast.scratch)
            .expect("readable")
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("said-"))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        files.sort();
        let said = files.iter().filter_map(|(_, path)| {
            let text = std::fs::read_to_string(path).ok().filter(|text| !text.trim().is_empty())?;
            Some(format!("{}: {}", path.file_name()?.to_string_lossy(), text.trim()))
        });
        let said: Vec<String> = said.collect();
        said[said.len().saturating_sub(20)..].join("\n")
    }

    /// Starts a process.
    fn begin(&mut self, role: Role, death: Death) -> Life {
        self.started += 1;
        Life::start(&self.cast, self.started, role, death)
    }

    /// Draws a death at one of `places`, for so many lives of a hundred.
    fn death(&mut self, percentage: u64, places: &[Place]) -> Death {
        // The numbers are drawn in any case, so that one life does not change what the next one draws.
        let random = &mut self.random;
        let (may_die, place) = (percent(random, percentage), places[random.usize(..places.len())]);
        let (step, scale) = (random.u64(..12), random.u64(..23));
        let delay_ns = random.u64(..1 << scale);
        if may_die {
            Death { place, step, delay_ns }
        } else {
            Death::NEVER
        }
    }

    /// Starts a life of a rank, which may carry its death.
    fn start(&mut self, i: usize) {
        let (role, spared) = (self.ranks[i].role, self.ranks[i].spared);
        let moves = matches!(role, Role::Writer(_)) && self.cast.spills();
        // The old place is often wiped only when a reader has released it: that place is not always reached.
        let places = [MOVES[0], MOVES[1], MOVES[2], MOVES[2]];
        let (in_mover, mut death) = (self.death(80, &places), self.death(45, &STEPS));
        if moves && in_mover.place != Place::Never && self.mover_deaths_left > 0 {
            self.mover_deaths_left -= 1;
            death = in_mover;
        } else if spared || self.deaths_left == 0 {
            death = Death::NEVER;
        } else if death.place != Place::Never {
            self.deaths_left -= 1;
        }
        self.ranks[i].life = Some(self.begin(role, death));
    }

    /// Starts a process beside the ranks, which may carry its death.
    fn start_beside(&mut self, role: Role) {
        let death = match role {
            Role::Drain(_) => self.death(60, &DRAINS),
            // It removes nothing, so it dies at any moment.
            Role::Clean(_) => self.death(60, &CLEANS[..1]),
            _ => self.death(60, &LOOKS),
        };
        let life = self.begin(role, death);
        self.beside.push(life);
    }

    /// Lets happen what is due. Whether all processes were killed.
    fn let_happen(&mut self) -> bool {
        self.lives().for_each(Life::go_on_when_due);
        let now = Instant::now();
        let mut was_killed = false;
        while let Some(due) = self.events.iter().position(|(at, _)| *at <= now) {
            match self.events.swap_remove(due).1 {
                // Before the keeper has the space open a cleaner may remove it.
                Event::Start(Role::Clean(_)) if self.board.get(Slot::Keeper(0)) != 1 => {}
                Event::Start(role) => self.start_beside(role),
                Event::Stop => self.stop_one(),
                Event::KillAll => {
                    self.kill_all();
                    was_killed = true;
                }
            }
        }
        was_killed
    }

    /// Every process that may run.
    fn lives(&mut self) -> impl Iterator<Item = &mut Life> {
        let ranks = self.ranks.iter_mut().filter_map(|rank| rank.life.as_mut());
        ranks.chain(&mut self.beside).chain(&mut self.keeper)
    }

    /// Stops one of the processes for a while.
    fn stop_one(&mut self) {
        let time = Duration::from_millis(self.random.u64(STOP_MS));
        let chosen = self.random.usize(..);
        // A drain, which is short, before the others.
        let drains = self.beside.iter().filter(|life| matches!(life.role, Role::Drain(_))).count();
        let stopped = if drains > 0 {
            self.beside.iter_mut().find(|life| matches!(life.role, Role::Drain(_)))
        } else {
            let count = self.lives().count().max(1);
            self.lives().nth(chosen % count)
        };
        let role = stopped.and_then(|life| life.stop(time).then_some(life.role));
        if let Some(role) = role {
            self.tally.count(&format!("{} stopped", role.name()));
        }
    }

    fn kill_all(&mut self) {
        self.tally.count("all");
        // Cleaners first: without the keeper they could remove the space.
        self.beside.clear();
        self.keeper = None;
        self.board.set(Slot::Keeper(0), 0);
        self.events.retain(|(_, event)| !matches!(event, Event::Start(Role::Clean(_))));
        for rank in &mut self.ranks {
            if let Some(life) = &mut rank.life {
                life.kill();
            }
            rank.spared = false;
        }
    }

    fn reap(&mut self) -> Result<(), String> {
        let mut bereaved = false;
        for rank in &mut self.ranks {
            let Some(life) = &mut rank.life else { continue };
            let Some((end, place)) = life.reap()? else { continue };
            let said = life.said();
            rank.life = None;
            rank.since = Instant::now();
            if end == End::Killed {
                self.tally.died(rank.role.name(), place);
                bereaved |= matches!(rank.role, Role::Writer(_));
            }
            if end == End::Told && matches!(rank.role, Role::Reader(..)) && rank.spared {
                return Err(format!("{:?} was refused, although it was never killed\n{said}", rank.role));
            }
            rank.last = Some(end);
        }
        let mut ended = Vec::new();
        for (i, life) in self.beside.iter_mut().enumerate() {
            let Some((end, place)) = life.reap()? else { continue };
            match end {
                End::Killed => self.tally.died(life.role.name(), place),
                End::Done => self.tally.count(&format!("{} done", life.role.name())),
                End::Told => self.tally.count(&format!("{} told", life.role.name())),
            }
            ended.push(i);
        }
        ended.into_iter().rev().for_each(|i| drop(self.beside.swap_remove(i)));
        if let Some(Err(why)) = self.keeper.as_mut().map(Life::reap) {
            return Err(why);
        }
        // Now there is something to drain.
        if bereaved && self.cast.spills() && !self.is_abandoned && percent(&mut self.random, 40) {
            self.start_beside(Role::Drain(false));
        }
        Ok(())
    }

    fn writers(&mut self) -> impl Iterator<Item = &mut Rank> {
        self.ranks.iter_mut().filter(|r| matches!(r.role, Role::Writer(_)))
    }

    fn is_over(&self) -> bool {
        self.ranks.iter().all(|r| r.life.is_none() && r.last == Some(End::Done))
    }

    /// Whether the stream has come to its end, as far as its writers are concerned and as far as can be told without
    /// the space.
    fn has_ended(&self) -> bool {
        let told = (0..self.cast.readers()).any(|r| self.board.get(Slot::Ended(r)) > 0);
        let wrote = |r: &Rank| matches!(r.role, Role::Writer(_)) && r.last == Some(End::Done);
        told || self.ranks.iter().any(wrote)
    }

    fn revive_writers(&mut self) -> Result<(), String> {
        let running = self.writers().filter(|r| r.life.is_some()).count();
        let unfinished = self.writers().any(|r| r.life.is_none() && r.last != Some(End::Done));
        if !unfinished {
            return Ok(());
        }
        if running > 0 {
            // Those that run are told soon, except when the dead one had not come yet: then it comes now.
            let late = |r: &Rank| {
                let gone = r.life.is_none() && matches!(r.last, Some(End::Killed | End::Told));
                matches!(r.role, Role::Writer(_)) && gone && r.since.elapsed() > MISSING
            };
            let late: Vec<usize> = (0..self.ranks.len()).filter(|i| late(&self.ranks[*i])).collect();
            for i in late {
                self.start(i);
            }
            return Ok(());
        }
        self.board.set(Slot::Judged(0), 0);
        self.whole(Role::Judge(false), Death::NEVER)?;
        let judged = self.board.get(Slot::Judged(0));
        if judged == 2 || judged == 0 && self.has_ended() {
            self.writers().for_each(|r| r.last = Some(End::Done));
            return Ok(());
        }
        for i in 0..self.cast.writers as usize {
            self.start(i);
        }
        Ok(())
    }

    fn revive_readers(&mut self) {
        for i in self.cast.writers as usize..self.ranks.len() {
            let Rank { role: Role::Reader(reader, _), life: None, last, .. } = self.ranks[i] else {
                continue;
            };
            if last == Some(End::Done) {
                continue;
            }
            let gone = !Path::new(&self.cast.name()).exists() && self.has_ended();
            if self.board.get(Slot::Ended(reader)) > 0 || gone {
                self.ranks[i].last = Some(End::Done);
            } else {
                self.start(i);
            }
        }
    }

    /// Runs a process to its end, which may be its death.
    fn whole(&mut self, role: Role, death: Death) -> Result<(), String> {
        let mut life = self.begin(role, death);
        let limit = Instant::now() + ROUND_LIMIT;
        let (end, place) = loop {
            // What is stopped may hold a lock that this one needs.
            self.lives().for_each(Life::go_on_when_due);
            if let Some(end) = life.reap()? {
                break end;
            }
            if Instant::now() > limit {
                return Err(format!("the {} does not end\n{}", role.name(), life.said()));
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        match end {
            End::Killed => self.tally.died(role.name(), place),
            End::Done => self.tally.count(&format!("{} done", role.name())),
            End::Told => self.tally.count(&format!("{} told", role.name())),
        }
        Ok(())
    }

    /// After the end of the stream: waits for the processes beside the ranks, and lets the keeper leave.
    fn dismiss(&mut self, limit: Instant) -> Result<(), String> {
        self.events.clear();
        while !self.beside.is_empty() {
            self.lives().for_each(Life::go_on_when_due);
            self.reap()?;
            if Instant::now() > limit {
                return Err("a process beside the ranks does not end".into());
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let Some(mut keeper) = self.keeper.take() else { return Ok(()) };
        if self.board.get(Slot::Keeper(0)) == 1 {
            self.board.set(Slot::Keeper(0), 2);
            keeper.go_on_when_due();
            while keeper.reap()?.is_none() {
                keeper.go_on_when_due();
                if Instant::now() > limit {
                    return Err(format!("the keeper does not leave\n{}", keeper.said()));
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Every process is dead. What they have left is drained and cleaned by processes that are killed as well: until
    /// the first cleaner everything that was acknowledged is there.
    fn bury(&mut self) -> Result<(), String> {
        self.tally.count("abandoned");
        self.whole(Role::Judge(false), Death::NEVER)?;
        if self.cast.spills() {
            for attempt in 0..3 {
                let death = self.death(if attempt < 2 { 90 } else { 0 }, &DRAINS);
                self.whole(Role::Drain(true), death)?;
            }
            self.whole(Role::Judge(false), Death::NEVER)?;
        }
        for _ in 0..3 {
            let death = self.death(100, &CLEANS);
            self.whole(Role::Clean(false), death)?;
            self.whole(Role::Judge(true), Death::NEVER)?;
        }
        Ok(())
    }

    /// A space that was read to its end goes by itself; what a killed process left goes with `clean`.
    fn look_at_what_is_left(&mut self) -> Result<(), String> {
        let dirs: Vec<_> =
            self.cast.lower_dirs().into_iter().chain([self.cast.root(), self.cast.space_dir()]).collect();
        let left = || -> Vec<String> {
            let entries = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).expect("readable"));
            entries.map(|e| e.expect("an entry").path().display().to_string()).collect()
        };
        if !left().is_empty() {
            self.whole(Role::Clean(false), Death::NEVER)?;
        }
        if !left().is_empty() {
            return Err(format!("after all processes have gone there is still {}", left().join(", ")));
        }
        Ok(())
    }
}

/// What happens in a round at moments of its own.
fn events(cast: &Cast, random: &mut Rng, is_killed: bool) -> Vec<(Instant, Event)> {
    let start = Instant::now();
    let mut events = Vec::new();
    let mut add = |random: &mut Rng, event, count: u64| {
        let at = |random: &mut Rng| start + Duration::from_micros(random.u64(..EVENTS_US));
        events.extend((0..count).map(|_| (at(random), event)));
    };
    add(random, Event::KillAll, u64::from(is_killed));
    add(random, Event::Start(Role::Observer), cast.observers);
    let drains = if cast.spills() { random.u64(..3) } else { 0 };
    add(random, Event::Start(Role::Drain(false)), drains);
    let cleans = if cast.has_keeper { 1 + random.u64(..2) } else { 0 };
    add(random, Event::Start(Role::Clean(true)), cleans);
    let stops = if percent(random, 40) { random.u64(1..=2) } else { 0 };
    add(random, Event::Stop, stops);
    events
}
