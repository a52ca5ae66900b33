//! One probe from beginning to end: tiers found, questions fitted into the time, measured in turn, written down.
//!
//! Guarantees: one tier at a time is prepared, measured and given back; a tier that cannot be measured is a note in the
//! profile, not the end of the probe; when told to stop, nothing more is begun and no profile comes of it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use forebay_tier::engine::Engine;
use forebay_tier::{clock, Error, Kind, Result, TierKind};

use super::ask::{questions, without_ring, Ask};
use super::collect::{Answer, Answers, Reads};
use super::files::Files;
use super::find::{find, Asks, Found, Tiers};
use super::judge::{self, Bounds};
use super::machine::Machine;
use super::memory::Memory;
use super::nodes::cache_to_exceed;
use super::schedule::{shares, Pace, Schedule, Turn, BLOCK_PACE, FULL_TIMES, MEMORY_PACE, REPETITIONS};
use super::streams::{self, Limits};
use super::subject::Subject;
use super::{find as found, host};
use crate::profile::{
    Access, Citation, PersistenceDomain, Profile, Provenance, Quantity, Source, Spread, Tier,
};

/// What a first profile may take. Preparing and finding come on top: some seconds, so that a minute holds all of it.
pub const BUDGET_NS: u64 = 48_000_000_000;
/// Measurements after which their own pace is believed.
const MADE_MIN: u64 = 20;
/// Longer than any `--full` needs.
const BUDGET_NS_FULL: u64 = u64::MAX / 4;

/// What is asked of the probe.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Every curve of the grid, each point longer.
    pub full: bool,
    /// Only tiers of these names or kinds; all when empty.
    pub tiers: Vec<String>,
    /// Directories to measure too, or instead of others on their file systems.
    pub dirs: Vec<PathBuf>,
    /// Nanoseconds for the measurements; None is [`BUDGET_NS`], or no limit with `full`.
    pub budget_ns: Option<u64>,
    /// Name of the profile.
    pub name: String,
    /// No tier takes more memory or file than this, however much is free.
    pub take_bytes_max: Option<u64>,
    /// Bytes of cache that memory has to exceed; None is [`cache_to_exceed`].
    pub cache_bytes: Option<u64>,
}

/// How far it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The tier that is measured.
    pub tier: String,
    /// Which of the tiers, from 1.
    pub number: usize,
    /// Of how many.
    pub tiers: usize,
    /// Measurements made of this tier; None while it is prepared.
    pub done: Option<u64>,
    /// Of how many.
    pub all: u64,
    /// Nanoseconds that the rest of this tier will take.
    pub left_ns: u64,
    /// Nanoseconds that the tiers after it will take; preparing them comes on top.
    pub later_ns: u64,
}

/// Finds the tiers of this machine that the options name.
///
/// # Errors
/// `Usage` when a name fits none of them, with those that there are.
pub fn chosen(machine: &Machine, asks: &dyn Asks, options: &Options) -> Result<Tiers> {
    let mut tiers = find(machine, asks, &options.dirs);
    if options.tiers.is_empty() {
        return Ok(tiers);
    }
    for wanted in &options.tiers {
        if let Some(device) = wanted.strip_prefix("devdax:") {
            tiers.found.push(dax_device(&tiers, device));
        }
    }
    let fits = |tier: &Found, wanted: &str| {
        tier.name == wanted
            || tier.kind.to_string() == wanted
            || wanted == format!("{}:{}", tier.kind, tier.place.display())
    };
    let there: Vec<String> = tiers.found.iter().map(|t| t.name.clone()).collect();
    for wanted in &options.tiers {
        if !tiers.found.iter().any(|tier| fits(tier, wanted)) {
            let why = tiers.passed.iter().map(|p| format!("{}: {}", p.place.display(), p.reason));
            return Err(Error::new(Kind::Usage, format!("there is no tier `{wanted}` here"))
                .with("passed", why.collect::<Vec<_>>().join("; "))
                .hint(format!("one of: {}", there.join(", "))));
        }
    }
    tiers.found.retain(|tier| options.tiers.iter().any(|wanted| fits(tier, wanted)));
    Ok(tiers)
}

/// A DAX device that the user named: measuring overwrites it, so it never is found by itself.
fn dax_device(tiers: &Tiers, device: &str) -> Found {
    let processors = tiers.nodes.iter().flat_map(|n| n.processors.clone()).collect();
    let locality = crate::profile::Locality::Local;
    Found {
        name: format!("devdax:{device}"),
        kind: TierKind::DevDax,
        place: device.into(),
        node: None,
        material: None,
        seats: vec![super::nodes::Seat { node: String::new(), processors, locality }],
        file_system: None,
        device: None,
        persistence: PersistenceDomain::MemoryController,
        capacity_bytes: None,
        // The device itself bounds it; a device that holds something is refused when it is opened.
        room: forebay_tier::capacity::Headroom { bytes: u64::MAX, limited_by: device.to_string() },
    }
}

/// Measures the tiers and makes a profile of them; `None` when it was told to stop.
///
/// # Errors
/// As [`chosen`]; when there is one tier only, also why that cannot be measured.
pub fn probe(
    machine: &Machine,
    asks: &dyn Asks,
    options: &Options,
    stop: &Arc<AtomicBool>,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Option<Profile>> {
    let tiers = chosen(machine, asks, options)?;
    let mut profile = Profile::new(&options.name, host::now());
    profile.title = Some("measured by forebay probe".into());
    profile.host = host::describe(machine, &tiers);
    let seen = Citation::of("node");
    profile.sources.insert(seen.key.clone(), from_the_kernel());
    profile.memory_nodes = host::memory_nodes(&tiers, &seen);
    profile
        .notes
        .extend(tiers.passed.iter().map(|p| format!("not measured: {}: {}", p.place.display(), p.reason)));
    let mut session = Session { machine, options, stop, watch, copy: None };
    let begun = clock::now_ns();
    let budget = options.budget_ns.unwrap_or(if options.full { BUDGET_NS_FULL } else { BUDGET_NS });
    for (number, tier) in tiers.found.iter().enumerate() {
        let left = budget.saturating_sub(clock::now_ns() - begun);
        let budgets = budgets(&tiers.found[number..], options.full, left);
        let place = (number + 1, tiers.found.len());
        match session.measure(tier, place, &budgets) {
            Ok(measured) => measured.add_to(&mut profile),
            Err(e) if tiers.found.len() == 1 => return Err(e),
            Err(e) => profile.notes.push(format!("not measured: tier {}: {e}", tier.name)),
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
    }
    if options.full {
        session.streams(&tiers.found, &mut profile);
    }
    Ok((!stop.load(Ordering::Relaxed)).then_some(profile))
}

fn from_the_kernel() -> Source {
    Source {
        kind: Provenance::Measured,
        citation: None,
        method: Some("as the kernel and the firmware of the node describe it".into()),
        repetitions: Some(1),
        spread: Spread::Rounding,
        note: None,
    }
}

/// What a tier is asked on this node.
pub(crate) fn asked(tier: &Found, full: bool) -> Vec<Ask> {
    let asks = questions(tier, full);
    match is_without_ring(tier) {
        true => without_ring(asks),
        false => asks,
    }
}

fn is_without_ring(tier: &Found) -> bool {
    tier.kind == TierKind::Direct && Engine::io_uring().is_err()
}

/// What each of the tiers gets of the time that is left.
fn budgets(tiers: &[Found], full: bool, left_ns: u64) -> Vec<u64> {
    let need = |tier: &Found| {
        let points: usize = asked(tier, full).iter().map(Ask::points).sum();
        (points, pace(tier.kind, full))
    };
    let needs: Vec<(usize, Pace)> = tiers.iter().map(need).collect();
    shares(&needs, left_ns)
}

fn pace(kind: TierKind, full: bool) -> Pace {
    let pace = match kind {
        TierKind::File | TierKind::Direct => BLOCK_PACE,
        _ => MEMORY_PACE,
    };
    match full {
        false => pace,
        true => Pace { span_ns_max: pace.span_ns_max * FULL_TIMES, span_ns_min: pace.span_ns_max, ..pace },
    }
}

/// A tier that was measured.
struct Measured {
    tier: Tier,
    key: String,
    source: Source,
}

impl Measured {
    fn add_to(self, profile: &mut Profile) {
        profile.sources.insert(self.key, self.source);
        profile.tiers.push(self.tier);
    }
}

struct Session<'a> {
    machine: &'a Machine,
    options: &'a Options,
    stop: &'a Arc<AtomicBool>,
    watch: &'a mut dyn FnMut(&Progress),
    /// Bytes per second of the fastest copy in memory, once it is known.
    copy: Option<f64>,
}

impl Session<'_> {
    /// Measures a tier in the first of the budgets; the others are those of the tiers after it.
    fn measure(&mut self, tier: &Found, place: (usize, usize), budgets: &[u64]) -> Result<Measured> {
        let mut progress = Progress {
            tier: tier.name.clone(),
            number: place.0,
            tiers: place.1,
            later_ns: budgets.iter().skip(1).sum(),
            ..Progress::default()
        };
        (self.watch)(&progress);
        let mut tier = tier.clone();
        // Half of the room is what is taken.
        let most = self.options.take_bytes_max.map_or(u64::MAX, |bytes| bytes.saturating_mul(2));
        tier.room.bytes = tier.room.bytes.min(most);
        let tier = &tier;
        let mut subject: Box<dyn Subject> = match tier.kind {
            TierKind::File | TierKind::Direct => {
                Box::new(Files::new(tier, self.options.full, self.stop.clone())?)
            }
            _ => Box::new(Memory::new(tier, self.cache_bytes())?),
        };
        let pace = pace(tier.kind, self.options.full);
        let budget_ns = budgets.first().copied().unwrap_or(0);
        let schedule = Schedule::fit(asked(tier, self.options.full), pace, budget_ns);
        let answers = ask(&mut *subject, &schedule, pace, self.stop, &mut |done, left_ns| {
            (progress.done, progress.all, progress.left_ns) = (Some(done), schedule.len(), left_ns);
            (self.watch)(&progress);
        })?;
        Ok(self.written(tier, &*subject, &schedule, &answers))
    }

    fn cache_bytes(&self) -> u64 {
        self.options.cache_bytes.unwrap_or_else(|| cache_to_exceed(self.machine))
    }

    /// STREAM on every pair of memories, into the profile.
    fn streams(&mut self, tiers: &[Found], profile: &mut Profile) {
        let limits = Limits {
            cache_bytes: self.cache_bytes(),
            take_bytes_max: self.options.take_bytes_max.unwrap_or(u64::MAX),
        };
        let (watch, number) = (&mut *self.watch, tiers.len());
        streams::measure(profile, tiers, limits, self.stop, &mut |done, all| {
            let tier = "STREAM".to_string();
            watch(&Progress { tier, number, tiers: number, done: Some(done), all, ..Progress::default() });
        });
    }

    fn written(
        &mut self,
        tier: &Found,
        subject: &dyn Subject,
        schedule: &Schedule,
        answers: &Answers,
    ) -> Measured {
        let key = format!("probe-{}", tier.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let citation = Citation::of(&key);
        let is_file = matches!(tier.kind, TierKind::File | TierKind::Direct);
        let bus = tier.device.as_ref().and_then(|block| judge::bus(self.machine, block));
        let reads = Reads {
            counted: is_file,
            cold: is_file,
            bounds: Bounds { bus, copy: self.copy.filter(|_| is_file) },
        };
        let mut out = described(tier, &citation);
        answers.write(&mut out, &citation, &reads, subject.doubt().as_deref());
        out.notes.extend(subject.notes());
        if is_without_ring(tier) {
            out.notes
                .push("io_uring is refused here: threads with one request each stand for its depth".into());
        }
        if !schedule.left_out.is_empty() {
            out.notes.push(format!("{} questions were left out for lack of time", schedule.left_out.len()));
        }
        if !is_file {
            self.copy = self.copy.into_iter().chain(fastest(&out)).reduce(f64::max);
        }
        let source = Source {
            kind: Provenance::Measured,
            citation: None,
            method: Some(format!(
                "forebay probe: {}; {} ms a measurement",
                subject.method(),
                schedule.span_ns / 1_000_000
            )),
            repetitions: Some(REPETITIONS),
            spread: Spread::Range,
            note: None,
        };
        Measured { tier: out, key, source }
    }
}

/// Bytes per second of the fastest reading in memory: nothing that goes through memory is faster.
fn fastest(tier: &Tier) -> Option<f64> {
    let rates = tier.samples().filter(|s| s.when.access == Some(Access::Load)).filter_map(|s| s.bandwidth());
    rates.map(|estimate| estimate.value).reduce(f64::max)
}

/// The tier without its numbers.
fn described(tier: &Found, citation: &Citation) -> Tier {
    let mut out = Tier::new(&tier.name, tier.kind);
    out.title = tier.material.map(str::to_string);
    out.memory_node = tier.node.clone();
    out.place = Some(tier.place.display().to_string());
    out.device = tier.device.as_ref().map(found::Block::title);
    out.file_system = tier.file_system.clone();
    out.capacity = tier.capacity_bytes.map(|bytes| Quantity { bytes, source: citation.clone() });
    out.persistence = Some(tier.persistence);
    out
}

/// Asks a subject everything that is on the schedule; `watch` gets the number of answers and the time left.
///
/// # Errors
/// The first error of the subject.
pub fn ask(
    subject: &mut dyn Subject,
    schedule: &Schedule,
    pace: Pace,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<Answers> {
    let mut answers = Answers::new(schedule);
    let begun = clock::now_ns();
    for (done, turn) in (0u64..).zip(schedule.turns()) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // What a measurement costs besides its span is a guess until some have been made.
        let each = match done {
            0..MADE_MIN => schedule.span_ns + pace.overhead_ns,
            _ => (clock::now_ns() - begun) / done,
        };
        watch(done, (schedule.len() - done) * each);
        let answer = answer(subject, &schedule.asks[turn.ask], turn, schedule.span_ns)?;
        answers.add(turn, answer);
    }
    Ok(answers)
}

fn answer(subject: &mut dyn Subject, ask: &Ask, turn: Turn, span_ns: u64) -> Result<Answer> {
    Ok(match ask {
        Ask::Curve { when, over, xs } => {
            Answer::Bandwidth(subject.bandwidth(&when.at(*over, xs[turn.point]), span_ns)?)
        }
        Ask::Latency { operation, load, when } => {
            Answer::Time(subject.latency(*operation, *load, when, span_ns)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Latency;
    use crate::probe::find::Running;
    use crate::probe::sample::{two_sockets_and_cxl, TOLD};
    use crate::probe::subject::Reading;
    use crate::profile::{Axis, Conditions, Load, Operation};

    /// Takes down what it is asked; its bandwidth is the number of threads.
    #[derive(Default)]
    struct Paper {
        asked: Vec<Conditions>,
        stop_after: Option<(usize, Arc<AtomicBool>)>,
    }

    impl Subject for Paper {
        fn bandwidth(&mut self, when: &Conditions, _: u64) -> Result<Reading> {
            self.asked.push(when.clone());
            if let Some((after, stop)) = &self.stop_after {
                stop.store(self.asked.len() >= *after, Ordering::Relaxed);
            }
            let bytes = u64::from(when.threads.unwrap_or(1)) * 1_000_000_000;
            Ok(Reading { operations: [1, 0], bytes: [bytes, 0], ns: 1_000_000_000, device_bytes: None })
        }
        fn latency(&mut self, _: Operation, _: Load, _: &Conditions, _: u64) -> Result<Latency> {
            let mut one = Latency::new();
            one.record(80);
            Ok(one)
        }
        fn method(&self) -> String {
            "by heart".into()
        }
    }

    #[test]
    fn everything_on_the_schedule_is_asked_and_written_down() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        let dram = &tiers.found[0];
        let schedule = Schedule::fit(questions(dram, false), MEMORY_PACE, u64::MAX / 2);
        let (mut paper, mut seen) = (Paper::default(), Vec::new());
        let watch = &mut |done, _| seen.push(done);
        let answers = ask(&mut paper, &schedule, MEMORY_PACE, &AtomicBool::new(false), watch).unwrap();
        assert_eq!(seen, (0..schedule.len()).collect::<Vec<_>>());
        let latencies = questions(dram, false).iter().filter(|a| matches!(a, Ask::Latency { .. })).count();
        assert_eq!(paper.asked.len() as u64, schedule.len() - 3 * latencies as u64);
        let mut tier = described(dram, &Citation::of("x"));
        answers.write(&mut tier, &Citation::of("x"), &Reads::default(), None);
        assert_eq!(tier.curves.len() + tier.latencies.len(), schedule.asks.len());
        let over_threads = tier.curves.iter().find(|c| c.over == Axis::Threads).unwrap();
        let values: Vec<(f64, f64)> = over_threads.points.iter().map(|p| (p.x, p.y.value)).collect();
        assert_eq!(values, [(1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 8.0)]);
        assert_eq!(fastest(&tier), Some(8e9));
    }

    #[test]
    fn a_stop_ends_between_two_measurements() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        let schedule = Schedule::fit(questions(&tiers.found[0], false), MEMORY_PACE, u64::MAX / 2);
        let stop = Arc::new(AtomicBool::new(false));
        let mut paper = Paper { stop_after: Some((2, stop.clone())), ..Paper::default() };
        ask(&mut paper, &schedule, MEMORY_PACE, &stop, &mut |_, _| ()).unwrap();
        assert_eq!(paper.asked.len(), 2);
    }

    #[test]
    fn the_first_profile_of_a_large_node_fits_its_budget() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        let mut left = BUDGET_NS;
        for number in 0..tiers.found.len() {
            let kind = tiers.found[number].kind;
            let budget = budgets(&tiers.found[number..], false, left)[0];
            let schedule = Schedule::fit(questions(&tiers.found[number], false), pace(kind, false), budget);
            let takes = schedule.expected_ns(pace(kind, false));
            assert!(takes <= budget, "{}: {takes} of {budget}", tiers.found[number].name);
            assert!(schedule.asks.len() > 3, "{}", tiers.found[number].name);
            left -= takes;
        }
    }

    #[test]
    fn tiers_are_chosen_by_name_or_kind() {
        let dir = tempfile::tempdir().unwrap();
        let machine = two_sockets_and_cxl(dir.path());
        let names = |wanted: &[&str]| {
            let options =
                Options { tiers: wanted.iter().map(|w| w.to_string()).collect(), ..Options::default() };
            chosen(&machine, &TOLD, &options).map(|t| t.found.into_iter().map(|f| f.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["numa:2", "direct"]).unwrap(), ["numa:2", "direct"]);
        assert_eq!(names(&["file"]).unwrap(), ["file:/scratch/me", "file:/tmp"]);
        assert_eq!(names(&["devdax:/dev/dax0.0"]).unwrap(), ["devdax:/dev/dax0.0"]);
        let error = names(&["optane"]).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
        assert!(error.hint_text().unwrap().contains("numa:2"), "{error}");
    }

    #[test]
    fn this_machines_memory_becomes_a_profile() {
        let options = Options {
            tiers: vec!["dram".into()],
            name: "here".into(),
            // Two questions, for as short as they can be.
            budget_ns: Some(1),
            cache_bytes: Some(1 << 20),
            ..Options::default()
        };
        let stop = Arc::new(AtomicBool::new(false));
        let mut seen = Vec::new();
        let mut watch = |p: &Progress| seen.push((p.tier.clone(), p.done));
        let profile = probe(&Machine::here(), &Running, &options, &stop, &mut watch).unwrap().unwrap();
        assert_eq!(profile.tiers.len(), 1);
        let tier = &profile.tiers[0];
        assert_eq!((tier.name.as_str(), tier.curves.len()), ("dram", 1));
        assert!(tier.curves[0].points.iter().all(|p| p.y.value > 0.0 && p.y.error.is_some()));
        assert!(tier.notes.iter().any(|n| n.contains("left out")), "{:?}", tier.notes);
        assert_eq!(profile.source_of(&tier.curves[0].source).unwrap().repetitions, Some(3));
        let read: Profile = toml::from_str(&profile.text().unwrap()).unwrap();
        assert_eq!(read, profile);
        assert_eq!(seen[0], ("dram".to_string(), None));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(probe(&Machine::here(), &Running, &options, &stop, &mut |_| ()).unwrap(), None);
    }
}
