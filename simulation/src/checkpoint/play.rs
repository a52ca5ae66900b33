//! One run: the program begins, its ranks die, it begins again, until it comes through.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_tier::host::thread;
use forebay_tier::simulation::process::{self, Exit};
use forebay_tier::simulation::Random;

use super::cast::Cast;
use super::oracle::Oracle;
use super::roles::{self, Run, Told};
use crate::danger::{self, Fate};

/// From this life of the program on nothing happens to it any more.
const LIVES_IN_DANGER: u32 = 5;
/// The folder of what is no memory.
const DISK: &str = "disk";
/// A program that begins so often never comes through.
const LIVES_MAX: u32 = 20;

struct Play {
    run: Run,
    random: Random,
    lives: u32,
    /// Lives in all: no number comes twice.
    launches: u32,
    fate: Fate,
    /// Ranks of earlier lives that have not ended.
    left: Vec<u32>,
    told: Arc<Mutex<HashMap<u32, Told>>>,
}

/// The first process of a run.
pub fn play(cast: Cast) {
    danger::make_folders(&cast.root, &[DISK]);
    let fate = Fate::of(&cast.dangers);
    let random = process::random();
    let run = Run { cast, oracle: Oracle::default() };
    let mut play = Play { run, random, lives: 0, launches: 0, fate, left: Vec::new(), told: Arc::default() };
    while !play.live() {}
    play.left.drain(..).for_each(process::kill);
    // All that was saved is there, for a program that begins now.
    play.lives = LIVES_IN_DANGER;
    if !play.live() {
        process::fail("a program to which nothing happens does not come through");
    }
    let last = play.run.oracle.acknowledged().map(|id| id.1);
    if last != Some(play.run.cast.steps - 1) {
        process::fail(format!("all ranks have closed, and {last:?} is the newest step"));
    }
}

impl Play {
    /// One life of the program; whether it came through.
    fn live(&mut self) -> bool {
        self.lives += 1;
        self.launches += 1;
        if self.lives > LIVES_MAX {
            process::fail("the program begins over and over");
        }
        if self.run.oracle.begins_anew() {
            self.left.drain(..).for_each(process::kill);
            let cast = &self.run.cast;
            let removed = std::fs::remove_dir_all(cast.base());
            let removed = removed.and_then(|()| std::fs::remove_dir_all(cast.memory_root()));
            removed.and_then(|()| std::fs::create_dir(cast.memory_root())).expect("files of the run");
        }
        // What is left of an earlier life ends at its deadline.
        thread::sleep(Duration::from_secs(self.lives.into()));
        let (fate, pressure) = (self.fate.clone(), process::pressure());
        let is_known = self.run.cast.says_launch || !self.run.oracle.has_leavers();
        let in_peace = is_known && self.left.iter().all(|pid| process::exit(*pid).is_some());
        let mut ranks: Vec<u32> = (0..self.run.cast.ranks).map(|rank| self.start(rank)).collect();
        let mut came_through = true;
        while !ranks.is_empty() {
            process::wait_any(1_000_000_000);
            let ended: Vec<u32> = ranks.iter().copied().filter(|pid| process::exit(*pid).is_some()).collect();
            ranks.retain(|pid| !ended.contains(pid));
            let is_well = |pid: &u32| self.has_come_through(*pid);
            if ended.iter().all(is_well) {
                continue;
            }
            came_through = false;
            let has_faults = self.lives <= LIVES_IN_DANGER && self.run.cast.dangers.fault_per_million > 0;
            let is_safe = self.fate == fate && process::pressure() == pressure;
            let jumps = self.run.cast.dangers.jump_per_million > 0;
            if is_safe && in_peace && !has_faults && !jumps && !self.run.oracle.is_lost() {
                process::fail("ranks to which nothing happens do not come through");
            }
            if self.cut_power(&mut ranks) {
                break;
            }
            match self.random.below(100) as u32 {
                // The launcher kills the others.
                draw if draw < 50 => ranks.drain(..).for_each(process::kill),
                draw if draw < 50 + self.run.cast.zombies => self.left.append(&mut ranks),
                _ => {}
            }
        }
        if self.random.percent(self.run.cast.carers.into()) {
            self.care();
        }
        came_through
    }

    fn has_come_through(&self, pid: u32) -> bool {
        let told = self.told.lock().expect("never poisoned").remove(&pid);
        match (process::exit(pid), told) {
            (Some(Exit::Done), Some(told)) => told.is_ok(),
            (Some(Exit::Killed), _) => false,
            (exit, told) => process::fail(format!("a rank ended with {exit:?}, {told:?}")),
        }
    }

    /// Starts a rank, which may carry its end.
    fn start(&mut self, rank: u32) -> u32 {
        let in_danger = self.lives <= LIVES_IN_DANGER;
        let (run, told, random) = (self.run.clone(), self.told.clone(), Random::new(self.random.next(), 3));
        let faults = if in_danger { run.cast.dangers.fault_per_million } else { 0 };
        let life = self.launches;
        let pid = process::start(&format!("rank {rank}"), faults, move || {
            let result = roles::rank(&run, rank, life, random);
            told.lock().expect("never poisoned").insert(process::own(), result);
        });
        if in_danger {
            self.fate.endanger(pid, &mut self.random);
        }
        pid
    }

    /// Where the fuse has blown every process dies, and what was not flushed may be lost. Whether it has.
    fn cut_power(&mut self, ranks: &mut Vec<u32>) -> bool {
        if !self.fate.power_fails() {
            return false;
        }
        process::note("the power is cut");
        ranks.append(&mut self.left);
        ranks.drain(..).for_each(process::kill);
        danger::cut_power(&self.run.cast.root, &[DISK], &mut self.random);
        self.run.oracle.cut(&self.run.cast);
        true
    }

    /// Processes that look after what is there, one after the other; each may be killed.
    fn care(&mut self) {
        let (run, random) = (self.run.clone(), Random::new(self.random.next(), 5));
        let faults = if self.lives <= LIVES_IN_DANGER { run.cast.dangers.fault_per_million } else { 0 };
        let pid = process::start("carer", faults, move || {
            let _ = roles::carer(&run, random);
        });
        if self.lives <= LIVES_IN_DANGER {
            self.fate.endanger(pid, &mut self.random);
        }
        process::wait(pid);
    }
}
