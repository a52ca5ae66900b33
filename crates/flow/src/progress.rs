//! Watches the run's spaces: samples how full they are, and says on stderr how far each component is.
//!
//! Guarantees: only looks (no registration, no lock, no effect on the run); a space that cannot be read at a
//! moment is skipped. On a terminal one line per component is kept up to date; elsewhere a line per component at
//! most every 5 s. Nothing is ever written to stdout.
//! Not here: the exact times, which come from the traces once the run is over.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_space::{format_bytes, part_name, Error, MemberInfo, Result, SpaceInfo};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::clean_up::{is_of_run, spaces_of};
use crate::record::{monotonic_ns, ComponentRecord, RunDir, RunRecord};
use crate::trace::{bandwidths, median, Side, Traces};
use crate::workflow::{Component, Workflow};

/// Time between two looks at the spaces.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Time between two lines of one component where stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A component that has opened nothing for so long is worth a remark.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// One line of `fill.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// Monotonic clock.
    pub t_ns: u64,
    /// Space.
    pub channel: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Hard limit.
    pub quota_bytes: u64,
    /// Number of complete versions.
    pub versions_complete: u64,
    /// Oldest version still there.
    pub versions_oldest: u64,
}

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Last state of each space, by path.
    pub spaces: BTreeMap<String, SpaceInfo>,
    /// Most bytes in use, by path.
    pub used_bytes_max: BTreeMap<String, u64>,
    /// Paths of spaces that were there at the last look.
    pub still_there: BTreeSet<String>,
    /// (component, rank, space name) that were members.
    pub members: BTreeSet<(String, u32, String)>,
    /// A space of this run's channel name that belongs to another run.
    pub foreign: Option<SpaceInfo>,
}

impl Seen {
    fn note(&mut self, workflow: &Workflow, id: &str, own: Vec<SpaceInfo>, all: &[SpaceInfo]) {
        self.still_there = own.iter().map(|space| space.path.to_string_lossy().into_owned()).collect();
        for space in own {
            let path = space.path.to_string_lossy().into_owned();
            let most = self.used_bytes_max.entry(path.clone()).or_default();
            *most = space.used_bytes.max(*most);
            for member in &space.members {
                self.members.insert((member.component.clone(), member.rank, space.name.clone()));
            }
            self.spaces.insert(path, space);
        }
        let is_foreign = |space: &&SpaceInfo| {
            let named = workflow.channels.iter().any(|c| c.name == space.name && c.options.path.is_none());
            // Readers of this run may wait at a space of an earlier one, which its writers replace. Not by `own`: a
            // space of this run may have been made since that was listed.
            let is_written = space.members.iter().any(|m| m.alive && m.role == "writer");
            named && is_written && !is_of_run(workflow, id, space)
        };
        self.foreign = all.iter().find(is_foreign).cloned();
    }

    /// The space of a channel, if it was seen: of one with writers on several nodes the part of this node, if it has
    /// one.
    pub fn channel(&self, name: &str) -> Option<&SpaceInfo> {
        let find = |name: &str| self.spaces.values().find(|space| space.name == name);
        find(&part_name(name)).or_else(|| find(name))
    }
}

/// How to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Nothing.
    Quiet,
    /// A line now and then.
    Lines,
    /// Lines that are kept up to date.
    Live,
}

impl Show {
    /// Live on a terminal that nothing else is printed on, else lines; nothing when `quiet`.
    pub fn choose(quiet: bool, tee: bool) -> Show {
        match (quiet, !tee && std::io::stderr().is_terminal()) {
            (true, _) => Show::Quiet,
            (false, true) => Show::Live,
            (false, false) => Show::Lines,
        }
    }
}

/// The thread that looks.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    running: Vec<AtomicU32>,
    seen: Mutex<Seen>,
}

impl Sampler {
    /// Starts looking. `fill` is the file of samples, replaced.
    pub fn start(workflow: &Workflow, run: Arc<RunDir>, fill: &Path, show: Show) -> Result<Sampler> {
        let file = File::create(fill).map_err(|e| Error::io(format!("writing {}", fill.display()), e))?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            running: workflow.components.iter().map(|c| AtomicU32::new(c.here.len() as u32)).collect(),
            seen: Mutex::default(),
        });
        let (theirs, workflow) = (shared.clone(), workflow.clone());
        let thread = std::thread::Builder::new()
            .name("forebay-progress".to_owned())
            .spawn(move || look(&theirs, &workflow, &run, file, show))
            .map_err(|e| Error::io("starting the progress thread", e))?;
        Ok(Sampler { shared, thread: Some(thread) })
    }

    /// One rank of this component has ended.
    pub fn rank_ended(&self, component: usize) {
        let running = &self.shared.running[component];
        let _ = running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    }

    /// What was seen so far.
    pub fn seen(&self) -> Seen {
        self.shared.seen.lock().map(|seen| seen.clone()).unwrap_or_default()
    }

    /// A space under one of this run's names that is another run's.
    pub fn foreign(&self) -> Option<SpaceInfo> {
        self.shared.seen.lock().ok().and_then(|seen| seen.foreign.clone())
    }

    /// Takes a last look and ends the thread.
    pub fn finish(mut self) -> Seen {
        self.stop();
        self.seen()
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has been printed; the run goes on without progress.
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

fn look(shared: &Shared, workflow: &Workflow, run: &RunDir, mut fill: File, show: Show) {
    let mut display = Display::new(workflow, show);
    loop {
        // Read before the look, so that the last look comes after the end of all ranks.
        let last = shared.stop.load(Ordering::Relaxed);
        if let Ok(all) = forebay_space::list() {
            let own = spaces_of(workflow, run, &all);
            write_fill(&mut fill, &own);
            if let Ok(mut seen) = shared.seen.lock() {
                seen.note(workflow, &run.id(), own, &all);
                let running: Vec<u32> = shared.running.iter().map(|n| n.load(Ordering::Relaxed)).collect();
                display.update(workflow, &seen, &running, last);
            }
        }
        if last {
            return;
        }
        std::thread::park_timeout(SAMPLE_EVERY);
    }
}

fn write_fill(file: &mut File, spaces: &[SpaceInfo]) {
    let t_ns = monotonic_ns();
    let mut text = String::new();
    for space in spaces {
        let line = Fill {
            t_ns,
            channel: space.name.clone(),
            used_bytes: space.used_bytes,
            quota_bytes: space.quota_bytes,
            versions_complete: space.versions_complete,
            versions_oldest: space.versions_oldest,
        };
        if let Ok(json) = serde_json::to_string(&line) {
            text.push_str(&json);
            text.push('\n');
        }
    }
    // A full disk must not end the run; the plot is then shorter.
    let _ = file.write_all(text.as_bytes());
}

/// Longest `fill.jsonl` that is read.
const FILL_BYTES_MAX: u64 = 256 << 20;

/// Reads `fill.jsonl`; a cut off last line is left out. What is no regular file, or too long, has no samples.
pub fn read_fill(file: &Path) -> Vec<Fill> {
    let text = forebay_tier::plain::read_regular(file, FILL_BYTES_MAX).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Shows the lines.
struct Display {
    show: Show,
    bars: Vec<ProgressBar>,
    _all: Option<MultiProgress>,
    begin: Instant,
    shown: Vec<Option<Instant>>,
    before: Vec<Amount>,
    waiting_before: Vec<Option<String>>,
}

/// Sums over the members of one component on its channels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Amount {
    steps: u64,
    bytes: u64,
    op_ns_longest: u64,
}

impl Display {
    fn new(workflow: &Workflow, show: Show) -> Display {
        let count = workflow.components.len();
        let all = (show == Show::Live).then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        let bars = all
            .iter()
            .flat_map(|all| workflow.components.iter().map(|c| all.add(bar(workflow, c))))
            .collect();
        Display {
            show,
            bars,
            _all: all,
            begin: Instant::now(),
            shown: vec![None; count],
            before: vec![Amount::default(); count],
            waiting_before: vec![None; count],
        }
    }

    fn update(&mut self, workflow: &Workflow, seen: &Seen, running: &[u32], last: bool) {
        if last {
            // The closing lines, with the exact numbers, come in their place.
            self.bars.iter().for_each(ProgressBar::finish_and_clear);
        }
        if last || self.show == Show::Quiet {
            return;
        }
        let here = workflow.components.iter().enumerate().filter(|(_, c)| !c.here.is_empty());
        for (i, component) in here {
            let due = match self.show {
                Show::Live => true,
                _ => self.shown[i].unwrap_or(self.begin).elapsed() >= LINE_EVERY,
            };
            if !due {
                continue;
            }
            let members = members_of(component, seen);
            let waiting = members.iter().find_map(|m| m.waiting_for.clone());
            // Every step waits for a moment: only what lasts over two looks is worth saying.
            let lasting = waiting.clone().filter(|_| self.waiting_before[i].is_some());
            let mut text = line(component, seen, &members, self.before[i]);
            if let Some(peer) = lasting.filter(|_| running[i] > 0) {
                text.push_str(&format!("  waits for {peer}"));
            } else if members.is_empty() && running[i] > 0 && self.begin.elapsed() > SILENT_AFTER {
                text.push_str("  has opened no channel yet");
            }
            if running[i] == 0 {
                text.push_str("  ended");
            }
            self.put(i, &component.name, workflow, text);
            self.waiting_before[i] = waiting;
            self.shown[i] = Some(Instant::now());
            if self.show == Show::Lines {
                self.before[i] = amount(&members);
            }
        }
    }

    fn put(&self, index: usize, name: &str, workflow: &Workflow, text: String) {
        match self.bars.get(index) {
            Some(bar) => {
                bar.set_message(text);
                bar.tick();
            }
            None => {
                let width = name_width(workflow);
                say(&format!("{name:width$}  {text}"));
            }
        }
    }
}

fn name_width(workflow: &Workflow) -> usize {
    workflow.components.iter().map(|c| c.name.len()).max().unwrap_or(0)
}

fn bar(workflow: &Workflow, component: &Component) -> ProgressBar {
    let width = name_width(workflow);
    let bar = ProgressBar::new_spinner().with_prefix(format!("{:width$}", component.name));
    match ProgressStyle::with_template("{spinner} {prefix}  {wide_msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn members_of<'a>(component: &Component, seen: &'a Seen) -> Vec<&'a MemberInfo> {
    let declared = component.writes.iter().chain(&component.reads);
    let spaces = declared.filter_map(|name| seen.channel(name));
    spaces.flat_map(|s| &s.members).filter(|m| m.component == component.name).collect()
}

fn amount(members: &[&MemberInfo]) -> Amount {
    Amount {
        steps: members.iter().map(|m| m.steps).min().unwrap_or(0),
        bytes: members.iter().map(|m| m.bytes).sum(),
        op_ns_longest: members.iter().map(|m| m.op_ns).max().unwrap_or(0),
    }
}

/// `4 ranks  step 12  put 31.2 ms  7.4 GB/s  lag 1`; rates are those since `before`, or of the whole run when
/// nothing happened since.
fn line(component: &Component, seen: &Seen, members: &[&MemberInfo], before: Amount) -> String {
    let ranks = match component.here.len() {
        1 => "1 rank ".to_owned(),
        ranks => format!("{ranks} ranks"),
    };
    let now = amount(members);
    let mut text = format!("{ranks}  step {:<5}", now.steps);
    let since = Amount {
        steps: now.steps.saturating_sub(before.steps),
        bytes: now.bytes.saturating_sub(before.bytes),
        op_ns_longest: now.op_ns_longest.saturating_sub(before.op_ns_longest),
    };
    let rate = if since.steps > 0 && since.op_ns_longest > 0 { since } else { now };
    if rate.steps > 0 && rate.op_ns_longest > 0 {
        let verb = match (component.writes.is_empty(), component.reads.is_empty()) {
            (false, true) => "put",
            (true, false) => "get",
            _ => "put+get",
        };
        let each_ms = rate.op_ns_longest as f64 / rate.steps as f64 / 1e6;
        let speed = rate.bytes as f64 / rate.op_ns_longest as f64;
        text.push_str(&format!("  {verb} {}  {}", in_ms(each_ms), in_rate(speed)));
    }
    for name in &component.reads {
        let Some(space) = seen.channel(name) else { continue };
        let group = space.readers.iter().find(|g| g.name == component.name);
        let Some(lowest) = group.and_then(|g| g.version_min) else { continue };
        text.push_str(&format!("  lag {}", space.versions_complete.saturating_sub(lowest)));
    }
    for name in &component.writes {
        if let Some(space) = seen.channel(name).filter(|s| s.quota_bytes > 0) {
            let used = format_bytes(space.used_bytes);
            text.push_str(&format!("  {name} {used} of {}", format_bytes(space.quota_bytes)));
        }
    }
    text.trim_end().to_owned()
}

/// A line on standard error. What cannot be written is lost: the run goes on.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What each component did, one line each, from the traces: for the end of a run.
pub fn closing_lines(record: &RunRecord, traces: &Traces) -> Vec<String> {
    let width = record.components.iter().map(|c| c.name.len()).max().unwrap_or(0);
    let line = |component: &ComponentRecord| {
        let ranks = component.ranks.iter().filter(|r| r.rank.is_some()).count();
        let unit = if ranks == 1 { "rank " } else { "ranks" };
        let mut text = format!("{:width$}  {ranks} {unit}  {} steps", component.name, component.steps);
        for (word, side, names) in
            [("put", Side::Write, &component.writes), ("get", Side::Read, &component.reads)]
        {
            let own = || {
                traces
                    .of(&component.name)
                    .filter(|t| t.header.side == side && names.contains(&t.header.channel))
            };
            let steps = own().flat_map(|t| &t.steps);
            let Some(op_ns) = median(steps.map(|s| s.op_ns as f64)) else { continue };
            text.push_str(&format!("  {word} {}", in_ms(op_ns / 1e6)));
            let rate = median(bandwidths(own()).into_iter().map(|point| point.1));
            text.push_str(&rate.map_or(String::new(), |rate| format!(" {}", in_rate(rate))));
        }
        let all = component.compute_s + component.io_s + component.wait_s;
        if all > 0.0 && component.steps > 0 {
            text.push_str(&format!("  waited {:.0} %", 100.0 * component.wait_s / all));
        }
        text
    };
    record.components.iter().map(line).collect()
}

/// Milliseconds with a unit that leaves one to three digits before the point.
pub fn in_ms(ms: f64) -> String {
    match ms {
        0.0 => "0".to_owned(),
        v if v >= 10_000.0 => format!("{:.1} s", v / 1e3),
        v if v >= 1000.0 => format!("{:.2} s", v / 1e3),
        v if v >= 100.0 => format!("{v:.0} ms"),
        v if v >= 1.0 => format!("{v:.1} ms"),
        v if v >= 0.1 => format!("{:.0} µs", v * 1e3),
        v => format!("{:.1} µs", v * 1e3),
    }
}

/// Bytes per nanosecond as GB/s or MB/s.
pub fn in_rate(gb_s: f64) -> String {
    match gb_s {
        v if v >= 10.0 => format!("{v:.1} GB/s"),
        v if v >= 0.1 => format!("{v:.2} GB/s"),
        v if v >= 1e-3 => format!("{:.1} MB/s", v * 1e3),
        v => format!("{:.1} kB/s", v * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_space::{OpenOptions, Writer};

    /// The run's spaces were listed, then its writer made one, then all spaces were listed.
    #[test]
    fn a_space_that_is_made_between_two_looks_is_not_foreign() {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/u", root.path().display());
        let options =
            OpenOptions { quota_bytes: Some(2 << 20), component: Some("a".into()), ..OpenOptions::default() };
        let writer = Writer::open(&name, &options).unwrap();
        let mut space = forebay_space::inspect(&name).unwrap();
        space.name = "u".into();
        let text = "forebay = 1\n[workflow]\nname = \"pair\"\n[channel.u]\n\
                    [[component]]\nname = \"a\"\ncommand = [\"true\"]\nwrites = [\"u\"]\n\
                    [[component]]\nname = \"b\"\ncommand = [\"true\"]\nreads = [\"u\"]\n";
        let workflow = Workflow::parse(Path::new("pair.toml"), root.path(), text).unwrap();
        for (run, is_foreign) in [("/runs/this", false), ("/runs/other", true)] {
            space.run = Some(run.into());
            let mut seen = Seen::default();
            seen.note(&workflow, "/runs/this", Vec::new(), std::slice::from_ref(&space));
            assert_eq!(seen.foreign.is_some(), is_foreign, "{run}");
        }
        writer.close().unwrap();
        forebay_space::destroy(&name).unwrap();
    }
}
