//! What happened last, for the report of a failure, and which places in the code were interrupted, for coverage.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;
use std::panic::Location;

use super::scheduler::What;

/// Steps of the report.
const STEPS: usize = 50;

#[derive(Clone, Copy)]
struct Step {
    now_ns: u64,
    pid: u32,
    thread: usize,
    what: What,
    at: &'static Location<'static>,
}

/// The last steps of a run.
#[derive(Default)]
pub(super) struct Trace {
    steps: VecDeque<Step>,
    /// What the processes told, whole.
    notes: String,
    /// Every step goes to standard error at once.
    pub(super) aloud: bool,
}

impl Trace {
    pub(super) fn add(
        &mut self,
        now_ns: u64,
        (pid, thread): (u32, usize),
        what: What,
        at: &'static Location<'static>,
    ) {
        let step = Step { now_ns, pid, thread, what, at };
        if self.aloud {
            eprintln!("{}", step.text());
        }
        if self.steps.len() == STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// What a process tells.
    pub(super) fn note(&mut self, now_ns: u64, pid: u32, text: &str) {
        let line = format!("{now_ns:>12} ns  process {pid}: {text}");
        if self.aloud {
            eprintln!("{line}");
        }
        self.notes.push_str(&line);
        self.notes.push('\n');
    }

    /// What the processes told, then the last points.
    pub(super) fn text(&self) -> String {
        self.steps.iter().fold(self.notes.clone(), |mut text, step| {
            let _ = writeln!(text, "{}", step.text());
            text
        })
    }
}

impl Step {
    fn text(&self) -> String {
        let Step { now_ns, pid, thread, what, at } = self;
        format!("{:>12} ns  process {pid} thread {thread:<3} {what:<22} {}:{}", now_ns, at.file(), at.line())
    }
}

/// How often each place in the code was a point, and how often another thread ran there, or the process ended.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    places: HashMap<(&'static str, u32, u32), Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    met: u64,
    switched: u64,
    killed: u64,
}

impl Coverage {
    fn count(&mut self, at: &'static Location<'static>) -> &mut Count {
        self.places.entry((at.file(), at.line(), at.column())).or_default()
    }

    pub(super) fn met(&mut self, at: &'static Location<'static>) {
        self.count(at).met += 1;
    }

    pub(super) fn switched(&mut self, at: &'static Location<'static>) {
        self.count(at).switched += 1;
    }

    pub(super) fn killed(&mut self, at: &'static Location<'static>) {
        self.count(at).killed += 1;
    }

    /// Adds what another run met.
    pub fn add(&mut self, other: &Coverage) {
        for (place, count) in &other.places {
            let mine = self.places.entry(*place).or_default();
            mine.met += count.met;
            mine.switched += count.switched;
            mine.killed += count.killed;
        }
    }

    /// One line a place, `FILE:LINE:COLUMN MET SWITCHED KILLED`, sorted.
    pub fn lines(&self) -> Vec<String> {
        let sorted: BTreeMap<_, _> = self.places.iter().collect();
        sorted
            .iter()
            .map(|((file, line, column), count)| {
                format!("{file}:{line}:{column} {} {} {}", count.met, count.switched, count.killed)
            })
            .collect()
    }
}
