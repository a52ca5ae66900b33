//! One probe from beginning to end: tiers found and prepared, questions fitted into the time, measured round by round,
//! written down.
//!
//! Guarantees: all tiers together take at most half of the free space that they share; a tier that cannot be measured
//! is a note in the profile, not the end of the probe; when told to stop, nothing more is begun and no profile comes of
//! it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use forebay_tier::engine::Engine;
use forebay_tier::{clock, Error, Kind, Result, TierKind};

use super::ask::{questions, without_ring, Ask};
use super::collect::Reads;
use super::files::Files;
use super::find::{find, Asks, Found, Tiers};
use super::judge::{self, Bounds};
use super::machine::Machine;
use super::memory::Memory;
use super::nodes::cache_to_exceed;
use super::rounds::{ask_all, Prepared};
use super::schedule::{shares, Schedule, Timing, BLOCK_TIMING, FULL_TIMES, MEMORY_TIMING, REPETITIONS};
use super::streams::{self, Limits};
use super::subject::Subject;
use super::{find as found, host};
use forebay_profile::{
    Access, Citation, PersistenceDomain, Profile, Provenance, Quantity, Source, Spread, Tier,
};

/// What a first profile may take, with finding and preparing the tiers: a minute, less what its last round may be
/// slower than those before it.
pub const BUDGET_NS: u64 = 55_000_000_000;
/// Where preparing took most of that, so much is left for measurements.
const BUDGET_NS_MIN: u64 = 20_000_000_000;
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
    /// Nanoseconds for the measurements; None is what preparing left of [`BUDGET_NS`], or no limit with `full`.
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
    /// Measurements made, of all tiers; None while this one is prepared.
    pub done: Option<u64>,
    /// Of how many.
    pub all: u64,
    /// Nanoseconds that the rest will take.
    pub left_ns: u64,
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
            return Err(Error::new(Kind::Usage, format!("this node has no tier `{wanted}`"))
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
    let locality = forebay_profile::Locality::Local;
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
        free: forebay_tier::capacity::Headroom { bytes: u64::MAX, limited_by: device.to_string() },
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
    let mut session = Session { machine, options, stop, watch };
    if !session.tiers(&tiers.found, &mut profile)? {
        return Ok(None);
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

/// What each of the tiers gets of the time.
fn budgets(tiers: &[&Found], full: bool, all_ns: u64) -> Vec<u64> {
    let need = |tier: &&Found| {
        let points: usize = asked(tier, full).iter().map(Ask::points).sum();
        (points, timing(tier.kind, full))
    };
    let needs: Vec<(usize, Timing)> = tiers.iter().map(need).collect();
    shares(&needs, all_ns)
}

fn timing(kind: TierKind, full: bool) -> Timing {
    let timing = match kind {
        TierKind::File | TierKind::Direct => BLOCK_TIMING,
        _ => MEMORY_TIMING,
    };
    match full {
        false => timing,
        // Each point longer instead of more often.
        true => Timing {
            span_ns_max: timing.span_ns_max * FULL_TIMES,
            span_ns_min: timing.span_ns_max,
            rounds: REPETITIONS,
            ..timing
        },
    }
}

struct Session<'a> {
    machine: &'a Machine,
    options: &'a Options,
    stop: &'a Arc<AtomicBool>,
    watch: &'a mut dyn FnMut(&Progress),
}

impl Session<'_> {
    /// Measures all tiers, in rounds, into the profile; whether it was not told to stop.
    fn tiers(&mut self, found: &[Found], profile: &mut Profile) -> Result<bool> {
        let begun = clock::now_ns();
        let mut ready: Vec<(&Found, Box<dyn Subject>)> = Vec::new();
        for (number, tier) in found.iter().enumerate() {
            (self.watch)(&Progress {
                tier: tier.name.clone(),
                number: number + 1,
                tiers: found.len(),
                ..Progress::default()
            });
            match self.prepared(tier, found) {
                Ok(subject) => ready.push((tier, subject)),
                Err(e) if found.len() == 1 => return Err(e),
                Err(e) => profile.notes.push(not_measured(tier, &e)),
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
        }
        let full = self.options.full;
        let left = BUDGET_NS.saturating_sub(clock::now_ns() - begun).max(BUDGET_NS_MIN);
        let budget = self.options.budget_ns.unwrap_or(if full { BUDGET_NS_FULL } else { left });
        let there: Vec<&Found> = ready.iter().map(|(tier, _)| *tier).collect();
        let budgets = budgets(&there, full, budget);
        let mut asking: Vec<Prepared> = Vec::new();
        for ((tier, subject), budget) in ready.iter_mut().zip(budgets) {
            let timing = timing(tier.kind, full);
            let schedule = Schedule::fit(asked(tier, full), timing, budget);
            asking.push(Prepared::new(&mut **subject, schedule, timing));
        }
        let watch = &mut *self.watch;
        let rounds = ask_all(&mut asking, budget, self.stop, &mut |far| {
            watch(&Progress {
                tier: there[far.tier].name.clone(),
                number: far.tier + 1,
                tiers: found.len(),
                done: Some(far.done),
                all: far.all,
                left_ns: far.left_ns,
            });
        });
        if self.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // Bytes per second of the fastest copy in memory, once it is known: tiers of memory come first.
        let mut copy = None;
        for (tier, one) in there.iter().zip(asking) {
            match &one.failed {
                Some(_) if found.len() == 1 => return Err(one.failed.expect("just seen")),
                Some(e) => profile.notes.push(not_measured(tier, e)),
                None => self.write(tier, &one, rounds, &mut copy, profile),
            }
        }
        Ok(true)
    }

    /// A tier ready to be measured. All of them are ready at once: those that draw on the same free space share it.
    fn prepared(&self, tier: &Found, all: &[Found]) -> Result<Box<dyn Subject>> {
        let mut tier = tier.clone();
        tier.free.bytes /= sharing(&tier, all);
        // Half of the free space is what is taken.
        let most = self.options.take_bytes_max.map_or(u64::MAX, |bytes| bytes.saturating_mul(2));
        tier.free.bytes = tier.free.bytes.min(most);
        Ok(match tier.kind {
            TierKind::File | TierKind::Direct => {
                Box::new(Files::new(&tier, self.options.full, self.stop.clone())?)
            }
            _ => Box::new(Memory::new(&tier, self.cache_bytes())?),
        })
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

    fn write(
        &self,
        tier: &Found,
        asked: &Prepared<'_>,
        rounds: u32,
        copy: &mut Option<f64>,
        profile: &mut Profile,
    ) {
        let (subject, schedule) = (&*asked.subject, &asked.schedule);
        let key = format!("probe-{}", tier.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
        let citation = Citation::of(&key);
        let is_file = is_file(tier);
        let bus = tier.device.as_ref().and_then(|block| judge::bus(self.machine, block));
        let reads =
            Reads { counted: is_file, cold: is_file, bounds: Bounds { bus, copy: copy.filter(|_| is_file) } };
        let mut out = described(tier, &citation);
        asked.answers.write(&mut out, &citation, &reads, subject.caveat().as_deref());
        out.notes.extend(subject.notes());
        if is_without_ring(tier) {
            out.notes.push("io_uring is refused: threads with one request each are used instead".into());
        }
        if !schedule.left_out.is_empty() {
            out.notes.push(format!("{} questions were left out for lack of time", schedule.left_out.len()));
        }
        if !is_file {
            *copy = (*copy).into_iter().chain(fastest(&out)).reduce(f64::max);
        }
        let source = Source {
            kind: Provenance::Measured,
            citation: None,
            method: Some(format!(
                "forebay probe: {}; {} ms a measurement, in rounds over all tiers",
                subject.method(),
                schedule.span_ns / 1_000_000
            )),
            repetitions: Some(rounds),
            spread: Spread::Range,
            note: None,
        };
        profile.sources.insert(key, source);
        profile.tiers.push(out);
    }
}

fn not_measured(tier: &Found, e: &Error) -> String {
    format!("not measured: tier {}: {e}", tier.name)
}

fn is_file(tier: &Found) -> bool {
    matches!(tier.kind, TierKind::File | TierKind::Direct)
}

/// How many tiers draw on the free space of this one: tiers of memory share one, those of a file system another.
fn sharing(tier: &Found, all: &[Found]) -> u64 {
    let same =
        |other: &&Found| (tier.kind.is_memory() && other.kind.is_memory()) || tier.place == other.place;
    all.iter().filter(same).count().max(1) as u64
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::Running;
    use crate::sample::{two_sockets_and_cxl, TOLD};

    #[test]
    fn the_first_profile_of_a_large_node_fits_its_budget() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        let found: Vec<&Found> = tiers.found.iter().collect();
        let budgets = budgets(&found, false, BUDGET_NS);
        assert!(budgets.iter().sum::<u64>() <= BUDGET_NS);
        for (tier, budget) in found.into_iter().zip(budgets) {
            let timing = timing(tier.kind, false);
            let schedule = Schedule::fit(questions(tier, false), timing, budget);
            let takes = schedule.expected_ns(timing);
            assert!(takes <= budget, "{}: {takes} of {budget}", tier.name);
            assert!(schedule.asks.len() > 3, "{}", tier.name);
        }
    }

    #[test]
    fn tiers_of_one_medium_share_its_free_space() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        let of = |name: &str| {
            let tier = tiers.found.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}"));
            sharing(tier, &tiers.found)
        };
        let memory = tiers.found.iter().filter(|t| t.kind.is_memory()).count() as u64;
        assert!(memory > 2 && of("dram") == memory && of("numa:2") == memory);
        assert_eq!((of("file:/scratch/me"), of("direct"), of("file:/tmp")), (2, 2, 1));
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
        assert_eq!(
            profile.source_of(&tier.curves[0].source).unwrap().repetitions,
            Some(3),
            "time for no more"
        );
        let read: Profile = toml::from_str(&profile.text().unwrap()).unwrap();
        assert_eq!(read, profile);
        assert_eq!(seen[0], ("dram".to_string(), None));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(probe(&Machine::here(), &Running, &options, &stop, &mut |_| ()).unwrap(), None);
    }
}
