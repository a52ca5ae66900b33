//! How much of a program's memory is under the budget: looked for while it runs, all its processes together.
//!
//! Processes that have a window say themselves what they have; those that have none are looked at from outside.
//! Guarantees: both numbers are of one moment, that in which most of both was seen. Does not see: processes that end
//! between two looks without a window, and those that have left the tree of processes without one.

use std::collections::HashSet;

use forebay_pager::job::{Counter, Job, ProcessMemory};
use forebay_space::format_bytes;
use forebay_tier::process::{anonymous_bytes, children};

/// Memory of all processes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    /// Bytes of placed allocations.
    pub(super) placed: u64,
    /// Bytes of other anonymous memory.
    pub(super) outside: u64,
}

impl Coverage {
    fn total(&self) -> u64 {
        self.placed.saturating_add(self.outside)
    }

    /// Keeps the moment with more memory.
    fn keep(&mut self, other: Coverage) {
        if other.total() > self.total() {
            *self = other;
        }
    }

    /// Looks at the program with this number and all that it started.
    pub(super) fn look(&mut self, job: &Job, program: u32) {
        let members = job.processes();
        self.keep(sum(&members, &tree(program), anonymous_bytes));
    }

    /// After the end: a process that had a window may have been too short to be looked at.
    pub(super) fn ended(&mut self, job: &Job) {
        self.keep(Coverage { placed: job.sum(Counter::PlacedPeak), outside: job.sum(Counter::OutsidePeak) });
    }

    /// A line, and a warning where less than half was under the budget, of more than the budget.
    pub(super) fn text(&self, budget: u64) -> String {
        let bytes = format_bytes;
        let percent = (u128::from(self.placed) * 100).checked_div(u128::from(self.total())).unwrap_or(0);
        let mut text = format!(
            "forebay mem: {} under the budget of {}, {} outside it ({percent} % under it, all processes together)\n",
            bytes(self.placed),
            bytes(budget),
            bytes(self.outside)
        );
        if self.outside > budget && self.placed < self.outside {
            text +=
                "forebay mem: warning: most of the program's memory was not under the budget: it is linked \
                     statically, has an allocator of its own, or allocates in small parts (--threshold)\n";
        }
        text
    }
}

/// What those of `seen` have: as they said, or by `look`. Who said something and is not seen may have left the tree.
fn sum(said: &[ProcessMemory], seen: &HashSet<u32>, look: impl Fn(u32) -> u64) -> Coverage {
    let mut all = Coverage::default();
    for process in said.iter().filter(|process| seen.contains(&process.pid) || look(process.pid) > 0) {
        all.placed += process.placed;
        all.outside += process.outside;
    }
    let known: HashSet<u32> = said.iter().map(|process| process.pid).collect();
    all.outside += seen.difference(&known).map(|pid| look(*pid)).sum::<u64>();
    all
}

/// A process and all below it.
fn tree(root: u32) -> HashSet<u32> {
    let (mut found, mut next) = (HashSet::from([root]), vec![root]);
    while let Some(pid) = next.pop() {
        next.extend(children(pid).into_iter().filter(|child| found.insert(*child)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_of_all_processes_is_added_at_one_moment() {
        let said = [
            ProcessMemory { pid: 1, placed: 30 * MIB, outside: 5 * MIB },
            ProcessMemory { pid: 2, placed: 10 * MIB, outside: 5 * MIB },
            // It has died.
            ProcessMemory { pid: 3, placed: 90 * MIB, outside: 90 * MIB },
        ];
        let look = |pid| if pid == 3 { 0 } else { 20 * MIB };
        let seen = sum(&said, &HashSet::from([1, 2, 4]), look);
        assert_eq!(seen, Coverage { placed: 40 * MIB, outside: 30 * MIB });
        let mut most = Coverage { placed: MIB, outside: 80 * MIB };
        most.keep(seen);
        assert_eq!(most.placed, MIB, "the moment with more of both together");
        assert!(most.text(8 * MIB).contains("(1 % under it") && most.text(8 * MIB).contains("warning"));
        assert!(!seen.text(8 * MIB).contains("warning"));
    }

    #[test]
    fn a_process_without_a_window_is_looked_at() {
        let script = "x = bytearray(b'x') * (48 << 20); print(flush=True); input()";
        let mut command = std::process::Command::new("python3");
        let piped = std::process::Stdio::piped;
        let started = command.args(["-c", script]).stdin(piped()).stdout(piped()).spawn();
        let mut child = started.unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(tree(std::process::id()).contains(&child.id()));
        let seen = sum(&[], &HashSet::from([child.id()]), anonymous_bytes);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(seen.outside > 48 * MIB && seen.outside < 96 * MIB, "{seen:?}");
    }
}
