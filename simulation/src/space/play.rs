//! One run: starts the cast, lets deaths and stops come, starts again who died, and looks at what is left.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay_space::{CleanOptions, Kind, Retention};
use forebay_tier::simulation::process::{self, Exit};
use forebay_tier::simulation::Random;

use super::cast::Cast;
use super::company::Company;
use super::oracle::Oracle;
use super::roles::{self, Run, Told};
use crate::danger::{self, Fate, MEMORY};

/// From this life of a rank on nothing happens to it any more.
const LIVES_IN_DANGER: u32 = 4;
/// Folders of a run: of short names and shared state, of spaces on no memory tier, of lower pools.
const FOLDERS: [&str; 3] = [MEMORY, "disk", "lower"];
/// Crowds of a run, one after the other.
const CROWDS: u32 = 4;
/// A rank that is told of others' ends so often never comes through: it waits longer each time, for a total of minutes,
/// and a process is stopped for half a minute at most.
const LIVES_MAX: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Writer(u32),
    Reader(usize, u32),
    Observer,
    Caretaker,
}

struct Rank {
    role: Role,
    pid: Option<u32>,
    done: bool,
    lives: u32,
}

struct Play {
    run: Run,
    random: Random,
    ranks: Vec<Rank>,
    fate: Fate,
    /// Spaces that were cleaned away, as far as it is known here.
    cleaned: u64,
    told: Arc<Mutex<HashMap<u32, Told>>>,
    /// Decides what a launcher does.
    launcher: Random,
    /// Processes that drain, remove groups, verify, or only have the space open.
    beside: Vec<u32>,
    /// Decides what becomes of a crowd, and of groups whose reader was killed.
    other: Random,
    /// Crowds that are still to come.
    crowds: u32,
}

/// The first process of a run.
pub fn play(cast: Cast) {
    danger::make_folders(&cast.root, &FOLDERS[1..]);
    let writers = (0..cast.writers).map(Role::Writer);
    let readers = cast.groups.iter().enumerate();
    let readers = readers.flat_map(|(group, size)| (0..*size).map(move |rank| Role::Reader(group, rank)));
    let others =
        (0..cast.observers).map(|_| Role::Observer).chain((0..cast.caretakers).map(|_| Role::Caretaker));
    let ranks = writers.chain(readers).chain(others);
    let ranks = ranks.map(|role| Rank { role, pid: None, done: false, lives: 0 }).collect();
    let fate = Fate::of(&cast.dangers);
    let random = process::random();
    let run = Run { cast, oracle: Oracle::default() };
    let (launcher, other) = (Random::new(run.cast.seed, 71), Random::new(run.cast.seed, 83));
    let crowds = if run.cast.crowd() > 0 { CROWDS } else { 0 };
    let (told, beside) = (Arc::default(), Vec::new());
    let mut play = Play { run, random, ranks, fate, cleaned: 0, told, launcher, beside, other, crowds };
    play.leave_something();
    play.go();
    play.look_at_what_is_left();
}

impl Play {
    /// What processes left that were killed before the run: one dies after the other.
    fn leave_something(&mut self) {
        for _ in 0..self.run.cast.leftovers {
            let (run, random) = (self.run.clone(), Random::new(self.random.next(), 5));
            let pid = process::start("forerunner", 0, move || roles::forerunner(&run, random));
            let scale = 7 + self.random.below(6);
            process::kill_after(pid, self.random.below(2 << scale));
            process::wait_any(1_000_000_000);
            process::kill(pid);
        }
    }

    fn go(&mut self) {
        // In any order: readers may come before there is a space.
        let mut order: Vec<usize> = (0..self.ranks.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        order.into_iter().for_each(|i| self.start(i));
        loop {
            process::wait_any(1_000_000_000);
            self.reap();
            self.cut_power();
            self.begin_again();
            self.revive_writers();
            self.revive_readers();
            self.beside.retain(|pid| process::exit(*pid).is_none());
            self.start_crowd();
            if self.ranks.iter().all(|rank| rank.done) && self.beside.is_empty() {
                break;
            }
        }
    }

    /// Starts a life of a rank, which may carry its end.
    fn start(&mut self, i: usize) {
        let rank = &mut self.ranks[i];
        rank.lives += 1;
        if rank.lives > LIVES_MAX {
            process::fail(format!("{:?} is told of others' ends over and over", rank.role));
        }
        let in_danger = rank.lives <= LIVES_IN_DANGER;
        let (run, role) = (self.run.clone(), rank.role);
        let life = rank.lives;
        let (told, random) = (self.told.clone(), Random::new(self.random.next(), 3));
        let mut other = Random::new(run.cast.seed ^ u64::from(life) << 32 ^ i as u64, 19);
        let company = match role {
            Role::Writer(_) | Role::Reader(..) => Company::draw(&run, &mut other, format!("beside-{i}")),
            _ => Company::None,
        };
        let faults = if in_danger { run.cast.dangers.fault_per_million } else { 0 };
        let pid = process::start(&format!("{role:?}"), faults, move || {
            process::note(format!("is {role:?}"));
            let result = company.beside(&run, other, || match role {
                Role::Writer(rank) => roles::writer(&run, rank),
                Role::Reader(group, rank) => roles::reader(&run, (group, rank), life),
                Role::Observer => roles::observer(&run, random),
                Role::Caretaker => roles::caretaker(&run, random),
            });
            told.lock().expect("never poisoned").insert(process::own(), result);
        });
        self.ranks[i].pid = Some(pid);
        if in_danger {
            self.fate.endanger(pid, &mut self.random);
        }
    }

    /// Where the fuse has blown every process dies, and what was not flushed may be lost.
    fn cut_power(&mut self) {
        if !self.fate.power_fails() {
            return;
        }
        process::note("the power is cut");
        for rank in &mut self.ranks {
            rank.pid.take().into_iter().for_each(process::kill);
            rank.done |= matches!(rank.role, Role::Observer | Role::Caretaker);
        }
        self.beside.drain(..).for_each(process::kill);
        danger::cut_power(&self.run.cast.root, &FOLDERS[1..], &mut self.random);
        self.run.oracle.power_was_cut();
    }

    fn reap(&mut self) {
        let mut torn = Vec::new();
        for rank in &mut self.ranks {
            let Some(pid) = rank.pid else { continue };
            let Some(exit) = process::exit(pid) else { continue };
            rank.pid = None;
            let told = self.told.lock().expect("never poisoned").remove(&pid);
            match (exit, told) {
                (Exit::Done, Some(Ok(()))) => rank.done = true,
                (Exit::Done, Some(Err(()))) => {}
                (Exit::Killed, _) => torn.push(rank.role),
                (exit, told) => process::fail(format!("{:?} ended with {exit:?}, {told:?}", rank.role)),
            }
            // No process waits for those that only look.
            rank.done |= matches!(rank.role, Role::Observer | Role::Caretaker);
        }
        for role in torn {
            self.kill_others_of(role);
            self.remove_group_of(role);
            self.check_after(role);
        }
    }

    /// A reader was killed: what it left half done is no damage.
    fn check_after(&mut self, killed: Role) {
        let checks = self.run.cast.behaviour.checks;
        if checks == 0 || !matches!(killed, Role::Reader(..)) || !self.other.percent(checks.into()) {
            return;
        }
        let run = self.run.clone();
        self.beside.push(process::start("checker", 0, move || {
            let _ = roles::verify(&run, true);
        }));
    }

    /// A reader was killed: its group may be removed, which may be killed, too.
    fn remove_group_of(&mut self, killed: Role) {
        let Role::Reader(group, _) = killed else { return };
        let removals = self.run.cast.behaviour.removals;
        if removals == 0 || !self.other.percent(removals.into()) {
            return;
        }
        let run = self.run.clone();
        let pid = process::start("remover", 0, move || {
            let _ = roles::remover(&run, group);
        });
        process::in_danger(pid);
        self.beside.push(pid);
        if self.other.percent(30) {
            let scale = self.other.below(9);
            process::kill_after(pid, self.other.below(2 << scale));
        }
    }

    /// A process that fills the table of members, and most often is killed.
    fn start_crowd(&mut self) {
        if self.crowds == 0 || !self.beside.is_empty() || self.ranks.iter().all(|rank| rank.done) {
            return;
        }
        self.crowds -= 1;
        let (run, random) = (self.run.clone(), Random::new(self.other.next(), 5));
        let pid = process::start("crowd", 0, move || {
            let _ = roles::crowd(&run, random);
        });
        self.beside.push(pid);
        if self.other.percent(70) {
            let scale = 8 + self.other.below(7);
            process::kill_after(pid, self.other.below(2 << scale));
        }
    }

    /// A rank of a reader group was killed: the launcher may kill the others.
    fn kill_others_of(&mut self, killed: Role) {
        let Role::Reader(group, _) = killed else { return };
        if self.run.cast.groups[group] == 1
            || !self.launcher.percent(self.run.cast.behaviour.group_kills.into())
        {
            return;
        }
        let is_of_it = |rank: &&mut Rank| matches!(rank.role, Role::Reader(of, _) if of == group);
        for rank in self.ranks.iter_mut().filter(is_of_it) {
            rank.pid.take().into_iter().for_each(process::kill);
        }
    }

    /// Processes that drain while writers take the space over.
    fn start_drainers(&mut self) {
        for _ in 0..self.run.cast.behaviour.drainers {
            let (run, random) = (self.run.clone(), Random::new(self.launcher.next(), 5));
            let pid = process::start("drainer", 0, move || {
                let _ = roles::drainer(&run, random);
            });
            process::in_danger(pid);
            self.beside.push(pid);
        }
    }

    /// After a `clean` each process that has ended comes again.
    fn begin_again(&mut self) {
        let cleaned = self.run.oracle.facts().cleaned;
        if self.cleaned != cleaned {
            self.cleaned = cleaned;
            let taking_part = |rank: &&mut Rank| matches!(rank.role, Role::Writer(_) | Role::Reader(..));
            self.ranks.iter_mut().filter(taking_part).for_each(|rank| rank.done = false);
        }
    }

    /// Of a group in which a rank died all start again, when the others have left; a rank that died before it joined
    /// comes late.
    fn revive_writers(&mut self) {
        let writers = 0..self.run.cast.writers as usize;
        let joined = self.run.oracle.newest();
        let has_joined = |i: usize| joined.contains(&(i as u32));
        // A rank that closed an earlier incarnation has to come again.
        let is_gone = |i: &usize| {
            let rank = &self.ranks[*i];
            rank.pid.is_none() && !(rank.done && has_joined(*i))
        };
        let missing: Vec<usize> = writers.clone().filter(is_gone).collect();
        let is_dead = missing.iter().any(|i| has_joined(*i));
        let is_over = self.ranks[writers.clone()].iter().all(|rank| rank.done) && self.is_finished();
        if is_over {
            return;
        }
        if missing.is_empty() {
            // The control segment was made anew from the pool, which does not know of a group that wrote nothing:
            // what is listed as dead is started again.
            let is_idle = self.ranks[writers.clone()].iter().all(|rank| rank.pid.is_none());
            if is_idle && matches!(self.state().as_deref(), Some("dead" | "producer died")) {
                self.has_not_written();
                for i in writers {
                    self.ranks[i].done = false;
                    self.start(i);
                }
            }
            return;
        }
        if self.ranks[writers.clone()].iter().any(|rank| rank.pid.is_some()) {
            // Beside ranks of an earlier incarnation only, which have not seen that it is over, each rank that came
            // alone would begin another one.
            let has_company = writers.clone().any(|i| self.ranks[i].pid.is_some() && has_joined(i));
            if !is_dead && has_company {
                for i in missing {
                    self.ranks[i].done = false;
                    self.start(i);
                }
            }
            return;
        }
        roles::judge(&self.run);
        if self.is_finished() {
            self.ranks[writers].iter_mut().for_each(|rank| rank.done = true);
            return;
        }
        self.start_drainers();
        // A rank that came alone behind all others would begin a group of which they are missing.
        for i in writers {
            self.ranks[i].done = false;
            self.start(i);
        }
    }

    /// Writers that wrote something and all closed the stream have finished it.
    fn has_not_written(&self) {
        let (facts, ranks) = (self.run.oracle.facts(), self.run.cast.writers);
        let newest = facts.joined.keys().next_back().copied();
        let has_closed = newest.is_some_and(|newest| {
            facts.closed.get(&newest).is_some_and(|closed| closed.len() as u32 == ranks)
                && (0..ranks).all(|rank| facts.committed.contains_key(&(newest, rank)))
        });
        if has_closed {
            process::fail(format!(
                "all writers of incarnation {newest:?} closed the stream, and it counts as dead"
            ));
        }
    }

    fn state(&self) -> Option<String> {
        Some(forebay_space::inspect(&self.run.cast.name()).ok()?.state)
    }

    /// Whether the stream has come to its end, as far as its writers are concerned.
    fn is_finished(&self) -> bool {
        if let Some(state) = self.state() {
            return state == "finished";
        }
        let finished = self.run.oracle.facts().finished;
        finished || self.run.oracle.known() >= self.run.cast.versions()
    }

    fn revive_readers(&mut self) {
        for i in self.run.cast.writers as usize..self.ranks.len() {
            let Rank { role: Role::Reader(group, rank), pid: None, done: false, .. } = self.ranks[i] else {
                continue;
            };
            let ended = self.run.oracle.facts().ended.contains_key(&(group, rank));
            let gone = !Path::new(&self.run.cast.name()).exists() && self.is_finished();
            match ended || gone {
                true => self.ranks[i].done = true,
                false => self.start(i),
            }
        }
    }

    /// A space that was read to its end goes by itself; what killed processes left goes with `clean`.
    fn look_at_what_is_left(&mut self) {
        let cast = &self.run.cast;
        let facts = self.run.oracle.facts();
        let is_quiet = cast.is_quiet() && facts.cleaned == 0 && cast.retention == Retention::Released;
        drop(facts);
        if is_quiet && Path::new(&cast.name()).exists() {
            let what = forebay_space::inspect(&cast.name());
            process::fail(format!("a space that was read to its end is still there: {what:?}"));
        }
        // Without a name only what lies below the root of short names is cleaned.
        let named =
            if cast.first.is_memory() { vec![] } else { vec![vec![cast.name()], vec![cast.beside()]] };
        for names in named.into_iter().chain([Vec::new()]) {
            match forebay_space::clean(&CleanOptions { names, ..CleanOptions::default() }) {
                Err(e) if e.kind() != Kind::PeerMissing => process::fail(format!("clean: {e}")),
                _ => {}
            }
        }
        for folder in FOLDERS {
            let entries = std::fs::read_dir(self.run.cast.root.join(folder)).expect("readable");
            let left: Vec<String> = entries
                .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
                .collect();
            if !left.is_empty() {
                process::fail(format!("at the end there is still {} in {folder}", left.join(", ")));
            }
        }
    }
}
