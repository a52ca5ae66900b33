//! What happens to the processes of a run, whatever they do: kills, stops, power cuts, calls that fail, and how often
//! threads switch.
//!
//! [`Dangers`] is what the seed decides beforehand, [`Fate`] what is left of it while the run goes on.

use std::path::Path;

use forebay_tier::simulation::process::{self, Exit};
use forebay_tier::simulation::{self, Random};

/// The folder of short names, shared state and levels of memory, which a power cut empties.
pub const MEMORY: &str = "spaces";

/// What the seed decides beforehand.
#[derive(Clone, Debug, Default)]
pub struct Dangers {
    /// Kills.
    pub kills: u32,
    /// Power cuts.
    pub cuts: u32,
    /// Stops (SIGSTOP, later SIGCONT).
    pub stops: u32,
    /// Of a million system calls so many fail.
    pub fault_per_million: u32,
    /// Of a million system calls that a signal can interrupt so many are.
    pub interrupt_per_million: u32,
    /// How often another thread goes on.
    pub switch_per_million: u32,
    /// How often the clock jumps.
    pub jump_per_million: u32,
}

impl Dangers {
    /// Changes one of them; whether the key is one.
    pub fn set(&mut self, key: &str, number: u64) -> bool {
        let field = match key {
            "kills" => &mut self.kills,
            "cuts" => &mut self.cuts,
            "stops" => &mut self.stops,
            "faults" => &mut self.fault_per_million,
            "interrupts" => &mut self.interrupt_per_million,
            "jumps" => &mut self.jump_per_million,
            _ => return false,
        };
        *field = number as u32;
        true
    }

    /// Whether nothing happens to any process: calls that are interrupted are repeated, and threads always switch.
    pub fn are_none(&self) -> bool {
        [self.kills, self.cuts, self.stops, self.fault_per_million, self.jump_per_million] == [0; 5]
    }
}

/// What is still to happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Fate {
    kills: u32,
    stops: u32,
    cuts: u32,
    /// When this process is killed the power fails.
    fuse: Option<u32>,
}

impl Fate {
    /// All of it.
    pub fn of(dangers: &Dangers) -> Fate {
        Fate { kills: dangers.kills, stops: dangers.stops, cuts: dangers.cuts, fuse: None }
    }

    /// Lets a process that has just started carry its end, or a stop, or none of both.
    pub fn endanger(&mut self, pid: u32, random: &mut Random) {
        process::in_danger(pid);
        // Early and late points alike: the scale is drawn first.
        let scale = random.below(14);
        let points = random.below(2 << scale);
        if self.fuse.is_none() && self.cuts > 0 && random.percent(30) {
            self.cuts -= 1;
            self.fuse = Some(pid);
            process::kill_after(pid, points);
        } else if self.kills > 0 && random.percent(40) {
            self.kills -= 1;
            process::kill_after(pid, points);
        } else if self.stops > 0 && random.percent(40) {
            self.stops -= 1;
            let ns = 1_000_000 << random.below(16);
            process::stop_after(pid, points, ns);
        }
    }

    /// Whether the power fails now: the process that carries the fuse has been killed. One that has ended in order
    /// carries it no longer.
    pub fn power_fails(&mut self) -> bool {
        let exit = self.fuse.and_then(process::exit);
        if exit.is_some() {
            self.fuse = None;
        }
        process::power_fails() || exit == Some(Exit::Killed)
    }
}

/// Makes the folders of a run: that of memory, and these, which lie on disks.
pub fn make_folders(root: &Path, disks: &[&str]) {
    const BESIDE: &str = "removed";
    for folder in disks.iter().chain([&MEMORY, &BESIDE]) {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    simulation::lose_names_below(disks.iter().map(|disk| root.join(disk)).collect(), root.join(BESIDE));
}

/// Cuts the power of a machine whose processes are all dead: of the files below these folders what was not flushed may
/// be lost, those in memory are, and the next boot begins.
pub fn cut_power(root: &Path, folders: &[&str], random: &mut Random) {
    let mut cut = || {
        simulation::cut_names(random)?;
        for folder in folders {
            simulation::cut_power(&root.join(folder), random)?;
        }
        std::fs::remove_dir_all(root.join(MEMORY))?;
        std::fs::create_dir(root.join(MEMORY))
    };
    cut().expect("files of the run");
    simulation::reboot();
}
