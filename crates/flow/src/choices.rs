//! Which plans there are for a workflow on a node: all that can be told apart, and for the others why not.
//!
//! Looks at nothing but whether the directories of tiers are here. At most [`CHOICES_MAX`] plans, so that each can be
//! scored and explained. What is not possible (capacity, a missing place, processors), what would be the same as
//! another plan, and tiers than which another one is better at everything are dropped with the reason.

use std::path::PathBuf;

use forebay_model::plan::{Locality, Mode, Plan};
use forebay_profile::{Locality as Side, Profile, Tier};
use forebay_space::{format_bytes, Error, Kind, Result, TierKind, GATE_PLACES_MAX};
use serde::Serialize;

use crate::plan::{double_reader, not_batched, not_interleaved, Home, AS_THE_FILE_SAYS};
use crate::seats::depths;
use crate::topology::Topology;
use crate::workflow::Workflow;

/// Most plans.
pub const CHOICES_MAX: usize = 64;

/// Bytes of a batch: where the bandwidth of every tier over the size of its operations is flat.
const BATCH: u64 = 1 << 20;
/// Longer objects reach a tier's bandwidth by themselves.
const SMALL_OBJECT_BYTES: u64 = 64 << 10;

/// A plan that is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// Where its channels lie; None for a tier of a platform that is not here.
    pub home: Option<Home>,
}

/// What was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// A plan, or a part that plans can have.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// All plans, and what was dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// Possible plans.
    pub choices: Vec<Choice>,
    /// What was left out.
    pub dropped: Vec<Dropped>,
}

/// How much a workflow writes to its largest channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Payload bytes of a version.
    pub version_bytes: u64,
    /// Mean bytes of an object.
    pub object_bytes: u64,
    /// Versions.
    pub versions: u64,
    /// The channel's quota, where it has one.
    pub quota_bytes: Option<u64>,
    /// Whether it spills to lower tiers.
    pub spills: bool,
}

impl Home {
    /// Where a channel on a tier of this node's profile lies.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`] for a tier without a directory.
    pub fn of_tier(tier: &Tier) -> Result<Home> {
        let node = tier.memory_node.as_deref().and_then(|name| name.rsplit('#').next()?.parse().ok());
        match (tier.kind, &tier.place) {
            (TierKind::Dram, _) => Ok(Home::Memory),
            (TierKind::Numa(node), _) => Ok(Home::Node(node)),
            (TierKind::DevDax, _) => Err(no_place(tier, "a channel needs a directory, not a device")),
            (kind, Some(place)) if std::path::Path::new(place).is_dir() => {
                Ok(Home::Directory(kind, place.into(), node))
            }
            (_, Some(_)) => Err(no_place(tier, "its directory is not here")),
            (_, None) => Err(no_place(tier, "the profile names no directory on it")),
        }
    }
}

fn no_place(tier: &Tier, why: &str) -> Error {
    Error::new(Kind::NotPossibleHere, format!("no channel can be placed on {}: {why}", tier.name))
}

/// A tier in the running.
struct Candidate<'a> {
    name: String,
    home: Option<Home>,
    /// None where the workflow file says the tier.
    tier: Option<&'a Tier>,
    /// Whether it is emulated: such a channel can be near to either side on any node.
    emulated: bool,
}

impl Candidate<'_> {
    /// Its home, or what that would be on a platform that is only asked about.
    fn there(&self) -> Home {
        let of_platform = |kind| match kind {
            TierKind::Dram => Home::Memory,
            TierKind::Numa(node) => Home::Node(node),
            kind => Home::Directory(kind, PathBuf::new(), None),
        };
        let home = self.home.clone().or_else(|| Some(of_platform(self.tier?.kind)));
        home.unwrap_or(Home::AsSaid)
    }
}

/// The plans of a workflow on a node. `profile` is of this node, or of a platform that is only asked about; without
/// one the channels lie where the workflow file says. `load` is what is known of the amounts.
pub fn choices(
    workflow: &Workflow,
    topology: &Topology,
    profile: Option<&Profile>,
    load: Option<Load>,
) -> Choices {
    let is_here = profile.is_none_or(|p| !forebay_profile::platforms::is_platform(&p.name));
    let mut dropped = Vec::new();
    let candidates = match profile {
        None => vec![Candidate {
            name: AS_THE_FILE_SAYS.to_owned(),
            home: Some(Home::AsSaid),
            tier: None,
            emulated: emulated_tier(workflow).is_some(),
        }],
        Some(profile) => match emulated_tier(workflow).filter(|_| is_here) {
            Some(name) => emulated(profile, &name, &mut dropped),
            None => candidates(profile, is_here, load, &mut dropped),
        },
    };
    let mut drop = |what: String, reason: String| dropped.push(Dropped { what, reason });
    let mut choices = Vec::new();
    for candidate in &candidates {
        let localities = localities(workflow, candidate, topology, &mut drop);
        let batching = batching(workflow, candidate, load, &mut drop);
        for mode in modes(workflow, candidate, load, &mut drop) {
            for locality in &localities {
                for batching in [None].into_iter().chain(batching.map(Some)) {
                    let plan = Plan { batching, ..Plan::new(mode, *locality, &candidate.name) };
                    choices.push(Choice { plan, home: candidate.home.clone() });
                }
            }
        }
    }
    for extra in choices.drain(CHOICES_MAX.min(choices.len())..) {
        drop(extra.plan.to_string(), format!("more than {CHOICES_MAX} plans"));
    }
    Choices { choices, dropped }
}

/// The tier that the channels are emulated as, where the workflow file says so.
pub(crate) fn emulated_tier(workflow: &Workflow) -> Option<String> {
    let read = workflow.channels.iter().filter(|c| !c.readers.is_empty());
    let wanted = read.filter_map(|c| crate::emulate::wanted(c.emulate.as_deref()?).ok());
    wanted.filter_map(|wanted| wanted.tier).next()
}

/// An emulated channel stays on the tier that it is emulated as; the profile is what was probed of that one.
fn emulated<'a>(profile: &'a Profile, name: &str, dropped: &mut Vec<Dropped>) -> Vec<Candidate<'a>> {
    let others = profile.tiers.iter().filter(|t| t.name != name);
    let reason = format!("the workflow file emulates {name}");
    dropped.extend(others.map(|t| Dropped { what: t.name.clone(), reason: reason.clone() }));
    match profile.tier(name) {
        Some(tier) => {
            let home = Some(Home::AsSaid);
            vec![Candidate { name: name.to_owned(), home, tier: Some(tier), emulated: true }]
        }
        None => {
            let reason =
                format!("profile {} was not taken of it: forebay probe --emulate makes one", profile.name);
            dropped.push(Dropped { what: name.to_owned(), reason });
            Vec::new()
        }
    }
}

/// The tiers that a channel can lie on.
fn candidates<'a>(
    profile: &'a Profile,
    is_here: bool,
    load: Option<Load>,
    dropped: &mut Vec<Dropped>,
) -> Vec<Candidate<'a>> {
    let mut kept: Vec<Candidate<'_>> = Vec::new();
    for tier in &profile.tiers {
        let mut drop = |reason: String| dropped.push(Dropped { what: tier.name.clone(), reason });
        let home = match Home::of_tier(tier) {
            _ if !is_here => None,
            Ok(home) => Some(home),
            Err(e) => {
                drop(e.message().to_owned());
                continue;
            }
        };
        let capacity = tier.capacity.as_ref().map(|c| c.bytes);
        if let (Some(load), Some(capacity)) = (load, capacity) {
            if load.version_bytes > capacity {
                let (needed, capacity) = (format_bytes(load.version_bytes), format_bytes(capacity));
                drop(format!("a version of {needed} exceeds the capacity of {capacity}"));
                continue;
            }
        }
        kept.push(Candidate { name: tier.name.clone(), home, tier: Some(tier), emulated: false });
    }
    let beaten: Vec<Option<String>> = kept
        .iter()
        .enumerate()
        .map(|(i, one)| {
            let others = kept.iter().enumerate().filter(|(j, _)| *j != i);
            // Of two equals the first stays.
            others.filter_map(|(j, other)| beats(other.tier?, one.tier?, j < i)).next()
        })
        .collect();
    let mut beaten = beaten.into_iter();
    kept.retain(|candidate| match beaten.next().flatten() {
        None => true,
        Some(reason) => {
            dropped.push(Dropped { what: candidate.name.clone(), reason });
            false
        }
    });
    kept
}

/// Why a tier is better than another at everything that matters to a channel, if it is.
fn beats(better: &Tier, other: &Tier, also_equal: bool) -> Option<String> {
    let (ours, theirs) = (peaks(better), peaks(other));
    let (read, write) = (ours.read?.speed, ours.write?.speed);
    let (their_read, their_write) = (theirs.read?.speed, theirs.write?.speed);
    let capacity = |tier: &Tier| tier.capacity.as_ref().map(|c| c.bytes);
    let no_worse = read >= their_read && write >= their_write && capacity(better)? >= capacity(other)?;
    let is_better = read > their_read || write > their_write || capacity(better)? > capacity(other)?;
    (no_worse && (is_better || also_equal)).then(|| {
        format!(
            "{} has no less capacity, and reads {:.1} GB/s against {:.1}, writes {:.1} against {:.1}",
            better.name,
            read / 1e9,
            their_read / 1e9,
            write / 1e9,
            their_write / 1e9
        )
    })
}

/// The highest bandwidth of one direction and the threads that reach it.
#[derive(Clone, Copy)]
struct Peak {
    speed: f64,
    threads: Option<u32>,
}

#[derive(Clone, Copy)]
struct Peaks {
    read: Option<Peak>,
    write: Option<Peak>,
}

/// What a tier delivers at best to processors beside it, by numbers without a caveat.
fn peaks(tier: &Tier) -> Peaks {
    let best = |reads_percent: f64| {
        let knees = tier.all_knees().into_iter();
        let fits = knees.filter(|k| {
            k.when.reads_percent == Some(reads_percent)
                && k.when.locality == Side::Local
                && k.when.beside.is_none()
                && k.caveat.is_none()
        });
        let peaks = fits.filter_map(|k| {
            let factor = k.unit.bytes().or_else(|| k.when.bytes.map(|b| b as f64))?;
            Some(Peak { speed: k.highest.value * factor, threads: k.when.threads })
        });
        peaks.max_by(|a, b| a.speed.total_cmp(&b.speed))
    };
    Peaks { read: best(100.0), write: best(0.0) }
}

/// The places of a channel that can be told apart.
fn localities(
    workflow: &Workflow,
    candidate: &Candidate<'_>,
    topology: &Topology,
    drop: &mut impl FnMut(String, String),
) -> Vec<Locality> {
    let several = topology.with_cpus().count() > 1;
    let reason = match &candidate.home {
        _ if candidate.emulated => None,
        _ if !several => Some("one memory node has all granted processors: the same as LocW"),
        Some(Home::Node(node)) if !topology.with_cpus().any(|n| n.number == *node) => {
            Some("it is on a node without granted processors: equal to LocW")
        }
        Some(Home::Directory(_, _, None)) => Some("its memory node is unknown"),
        _ => None,
    };
    let mut localities = match reason {
        None => vec![Locality::Writer, Locality::Reader],
        Some(reason) => {
            drop(format!("LocR on {}", candidate.name), reason.to_owned());
            vec![Locality::Writer]
        }
    };
    match not_interleaved(workflow, topology, &candidate.there()) {
        None => localities.push(Locality::Interleaved),
        Some((_, reason)) => drop(format!("LocI on {}", candidate.name), reason.to_owned()),
    }
    localities
}

/// The batches that are worth a question: bytes, where objects are small and the tier gets them one by one.
fn batching(
    workflow: &Workflow,
    candidate: &Candidate<'_>,
    load: Option<Load>,
    drop: &mut impl FnMut(String, String),
) -> Option<u64> {
    let is_memory = match candidate.tier {
        Some(tier) => tier.kind.is_memory(),
        // Where the workflow file says; without a word that is memory.
        None => workflow.channels.iter().all(|c| c.options.tier.is_none_or(|tier| tier.is_memory())),
    };
    let is_said = workflow.channels.iter().any(|c| c.options.batch.is_some());
    let reason = match (load, not_batched(workflow)) {
        (None, _) => "the size of objects is unknown before the first run".to_owned(),
        (Some(load), _) if load.object_bytes > SMALL_OBJECT_BYTES => {
            format!("objects of {} gain nothing", format_bytes(load.object_bytes))
        }
        (_, Some((_, why))) => why.to_owned(),
        _ if is_said => "set by the workflow file".to_owned(),
        _ if is_memory && !candidate.emulated => {
            "a put into memory is one copy; a batch would add another".to_owned()
        }
        _ => return Some(BATCH),
    };
    drop(format!("batches on {}", candidate.name), reason);
    None
}

/// The modes that are possible and that can be told apart.
fn modes(
    workflow: &Workflow,
    candidate: &Candidate<'_>,
    load: Option<Load>,
    drop: &mut impl FnMut(String, String),
) -> Vec<Mode> {
    let name = &candidate.name;
    let mut modes = Vec::new();
    if depths(workflow).is_none() {
        drop(format!("S and SS on {name}"), "the channels form a cycle: no component could start".to_owned());
    } else {
        match without_capacity(candidate.tier, load) {
            Some(reason) => drop(format!("S on {name}"), reason),
            None => modes.push(Mode::Serial),
        }
        match double_reader(workflow) {
            Some(reader) => {
                drop(format!("SS on {name}"), format!("{reader} reads two channels of one writer"));
            }
            None => modes.push(Mode::SerialPerStep),
        }
    }
    modes.push(Mode::Parallel);
    match gate(workflow, candidate) {
        Ok(mode) => modes.push(mode),
        Err(reason) => drop(format!("gates on {name}"), reason),
    }
    modes
}

/// Why a channel on this tier (None: where the workflow file says) has too little capacity for mode serial, if so:
/// nothing is read before everything was written. What spills has the capacity of the tiers below, of which a plan says
/// nothing.
pub fn without_capacity(tier: Option<&Tier>, load: Option<Load>) -> Option<String> {
    let load = load.filter(|load| !load.spills)?;
    let all = load.version_bytes.saturating_mul(load.versions);
    let tier_bytes = tier.and_then(|t| t.capacity.as_ref()).map(|c| (c.bytes, "the tier"));
    let quota_bytes = load.quota_bytes.map(|quota| (quota, "the quota of the channel"));
    let (bytes, whose) = tier_bytes.into_iter().chain(quota_bytes).min_by_key(|(bytes, _)| *bytes)?;
    (all > bytes).then(|| {
        format!(
            "mode serial keeps all versions until the writers have ended: {} versions take {}, and {whose} has {}",
            load.versions,
            format_bytes(all),
            format_bytes(bytes)
        )
    })
}

/// A gate at the knees of the tier: as many ranks as it takes to keep it busy.
fn gate(workflow: &Workflow, candidate: &Candidate<'_>) -> std::result::Result<Mode, String> {
    if workflow.channels.iter().any(crate::workflow::Channel::is_files) {
        return Err("a channel of files does not support an admission limit".to_owned());
    }
    let tier = candidate.tier.ok_or("its knees are unknown without a profile")?;
    let peaks = peaks(tier);
    let threads = |peak: Option<Peak>| peak.and_then(|p| p.threads);
    let (Some(writers), Some(readers)) = (threads(peaks.write), threads(peaks.read)) else {
        return Err("its profile has no knee over threads for reads and writes".to_owned());
    };
    let most = |names: &mut dyn Iterator<Item = &String>| {
        names.filter_map(|name| workflow.component(name)).map(|c| c.ranks).max().unwrap_or(1)
    };
    let writing = most(&mut workflow.channels.iter().map(|c| &c.writer));
    let reading = most(&mut workflow.channels.iter().flat_map(|c| &c.readers));
    if writers >= writing && readers >= reading {
        return Err(format!(
            "{writing} writers and {reading} readers do not exceed its knees ({writers} and {readers}): an admission \
             limit has no effect"
        ));
    }
    let places = |knee: u32, ranks: u32| knee.min(ranks).clamp(1, GATE_PLACES_MAX);
    Ok(Mode::Gated { writers: places(writers, writing), readers: places(readers, reading) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Node;
    use forebay_profile::platforms;
    use std::path::Path;

    fn workflow(ranks: u32, channel: &str) -> Workflow {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n{channel}\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = {ranks}\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nranks = {ranks}\nreads = [\"u\"]\n"
        );
        Workflow::parse(Path::new("w.toml"), Path::new("/"), &text).unwrap()
    }

    fn nodes(count: u16) -> Topology {
        let node = |number: u16| Node { number, cpus: vec![number.into()], bytes: 1 << 30 };
        Topology { nodes: (0..count).map(node).collect() }
    }

    fn shorts(found: &Choices) -> Vec<String> {
        found.choices.iter().map(|c| c.plan.short()).collect()
    }

    fn reason<'a>(found: &'a Choices, what: &str) -> &'a str {
        let dropped = found.dropped.iter().find(|d| d.what == what);
        dropped.map(|d| d.reason.as_str()).unwrap_or_else(|| panic!("{what} in {:?}", found.dropped))
    }

    #[test]
    fn without_a_profile_modes_and_sides_remain() {
        let two = choices(&workflow(2, ""), &nodes(2), None, None);
        let of = |mode: &str| ["W", "R", "I"].map(|side| format!("{mode}-Loc{side}"));
        assert_eq!(shorts(&two), ["S", "SS", "P"].map(of).concat());
        let one = choices(&workflow(2, ""), &nodes(1), None, None);
        assert_eq!(shorts(&one), ["S-LocW", "SS-LocW", "P-LocW"]);
        assert!(reason(&one, "LocR on as-the-file-says").contains("the same as LocW"));
        assert!(reason(&one, "LocI on as-the-file-says").contains("interleaving needs two"));
        assert!(reason(&one, "gates on as-the-file-says").contains("without a profile"));
    }

    #[test]
    fn an_emulated_channel_is_near_to_either_side_or_both() {
        let found = choices(&workflow(2, "emulate = \"optane-gen1:pmem/64\""), &nodes(1), None, None);
        let of = |mode: &str| ["W", "R", "I"].map(|side| format!("{mode}-Loc{side}"));
        assert_eq!(shorts(&found), ["S", "SS", "P"].map(of).concat());
    }

    #[test]
    fn what_does_not_fit_is_dropped_with_its_reason() {
        let quota_bytes = Some(64 << 20);
        let load = Some(Load {
            version_bytes: 1 << 20,
            object_bytes: 1 << 20,
            versions: 100,
            quota_bytes,
            spills: false,
        });
        let small = choices(&workflow(2, "quota = \"64MiB\""), &nodes(1), None, load);
        assert_eq!(shorts(&small), ["SS-LocW", "P-LocW"]);
        assert!(reason(&small, "S on as-the-file-says").contains("64.0 MiB"), "{:?}", small.dropped);
        let spilling = workflow(2, "quota = \"64MiB\"\nspill = \"/tmp\"");
        let load = load.map(|load| Load { spills: true, ..load });
        assert_eq!(shorts(&choices(&spilling, &nodes(1), None, load)), ["S-LocW", "SS-LocW", "P-LocW"]);
    }

    #[test]
    fn batches_are_asked_about_where_small_objects_meet_a_tier_that_is_no_memory() {
        let found = |channel: &str, object_bytes| {
            let load =
                Load { version_bytes: 1 << 20, object_bytes, versions: 10, quota_bytes: None, spills: false };
            choices(&workflow(2, channel), &nodes(1), None, Some(load))
        };
        let file = "tier = \"file\"\npath = \"/tmp/x\"\n";
        let small = found(file, 4672);
        let each = ["S-LocW", "S-LocW+b", "SS-LocW", "SS-LocW+b", "P-LocW", "P-LocW+b"];
        assert_eq!(shorts(&small), each);
        assert_eq!(small.choices[1].plan.batching, Some(BATCH));
        let why = |channel: &str, object_bytes| {
            let found = found(channel, object_bytes);
            assert!(shorts(&found).iter().all(|name| !name.ends_with("+b")));
            reason(&found, "batches on as-the-file-says").to_owned()
        };
        assert!(why(file, 1 << 20).contains("1.0 MiB gain nothing"));
        assert!(why("", 4672).contains("one copy"));
        assert!(why(&format!("{file}horizon = \"write\""), 4672).contains("durable"));
        assert!(why(&format!("{file}batch = \"64KiB\""), 4672).contains("set by the workflow file"));
        assert!(why("kind = \"files\"\npath = \"/tmp/x\"", 4672).contains("is a file"));
    }

    #[test]
    fn two_channels_between_a_pair_take_no_turns() {
        let text = "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n[channel.v]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nwrites = [\"u\", \"v\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nreads = [\"u\", \"v\"]\n";
        let both = Workflow::parse(Path::new("w.toml"), Path::new("/"), text).unwrap();
        let found = choices(&both, &nodes(1), None, None);
        assert_eq!(shorts(&found), ["S-LocW", "P-LocW"]);
        assert!(reason(&found, "SS on as-the-file-says").contains("ana reads two channels"));
    }

    #[test]
    fn the_platform_of_the_study_has_its_four_plans_and_gates_at_its_knees() {
        let profile = platforms::platform("optane-gen1").unwrap();
        let topology = Topology::of_profile(&profile);
        let found = choices(&workflow(24, ""), &topology, Some(&profile), None);
        let names = shorts(&found);
        for plan in ["S-LocW", "S-LocR", "P-LocW", "P-LocR"] {
            assert!(names.iter().any(|n| n == plan), "{names:?} {:?}", found.dropped);
        }
        assert!(found.choices.len() <= CHOICES_MAX && !found.choices.is_empty());
        let spread = found.choices.iter().filter(|c| c.plan.locality == Locality::Interleaved);
        let mut tiers: Vec<&str> = spread.map(|c| &*c.plan.tier).collect();
        tiers.dedup();
        assert_eq!(tiers, ["dram"], "{names:?}");
        assert!(reason(&found, "LocI on pmem").contains("a directory cannot be interleaved"));
        let gated = found.choices.iter().filter(|c| matches!(c.plan.mode, Mode::Gated { .. }));
        for choice in gated {
            let Mode::Gated { writers, readers } = choice.plan.mode else { unreachable!() };
            assert!(writers <= 24 && readers <= 24);
        }
    }

    #[test]
    fn a_tier_that_is_worse_at_everything_is_dropped() {
        let text = |fast: f64| {
            let tier = |name: &str, kind: &str, speed: f64, capacity: u64| {
                let curve = |percent: u32| {
                    format!(
                        "[[tier.curve]]\nwhen = {{ pattern = \"sequential\", reads_percent = {percent} }}\n\
                         over = \"threads\"\nunit = \"GB/s\"\nsource = \"s\"\n\
                         points = [[1, {}, 0], [4, {speed}, 0], [8, {speed}, 0]]\n",
                        speed / 4.0
                    )
                };
                format!(
                    "[[tier]]\nname = \"{name}\"\nkind = \"{kind}\"\n\
                     capacity = {{ bytes = {capacity}, source = \"s\" }}\n{}{}",
                    curve(0),
                    curve(100)
                )
            };
            format!(
                "forebay_profile = 1\nname = \"made-up\"\ndate = \"2026-01-01\"\n\
                 [source.s]\nkind = \"measured\"\nmethod = \"none\"\nrepetitions = 3\nspread = \"range\"\n{}{}",
                tier("dram", "dram", fast, 1 << 30),
                tier("numa:1", "numa:1", 4.0, 1 << 20)
            )
        };
        let read = |fast: f64| Profile::parse("made-up", &text(fast)).unwrap_or_else(|e| panic!("{e}"));
        let found = choices(&workflow(8, ""), &nodes(1), Some(&read(8.0)), None);
        assert!(reason(&found, "numa:1").contains("dram has no less capacity"), "{:?}", found.dropped);
        assert!(shorts(&found).contains(&"G4w4r-LocW".to_owned()), "{:?}", shorts(&found));
        let both = choices(&workflow(4, ""), &nodes(1), Some(&read(2.0)), None);
        assert!(both.choices.iter().any(|c| c.plan.tier == "numa:1"));
        assert!(
            reason(&both, "gates on dram").contains("an admission limit has no effect"),
            "{:?}",
            both.dropped
        );
    }
}
