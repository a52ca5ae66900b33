//! What is tested in the emulated machine: the suites of the tiers, pools, logs, arrays and checkpoints on DAX file
//! systems and device DAX, memory nodes, plans across two sockets, what probe and doctor call the tiers, and losses of
//! power.

use super::boot::{End, Machine, Shape, Wish};
use super::guest::Guest;
use super::{cuts, Fresh};
use crate::packages::build;
use crate::privilege::{self, Binary};
use crate::stages::title;
use crate::summary::Summary;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// A suite may take this long; an emulated processor is some twenty times slower.
const LIMIT: Duration = Duration::from_secs(900);

/// Test binaries that use what this machine has: crate and name. Their files lie on the first NVDIMM.
const SUITES: &[(&str, &str)] = &[
    ("tier", "conformance"),
    ("tier", "region"),
    ("tier", "counts"),
    ("tier", "lost"),
    ("pager", "arrays"),
    ("pager", "window"),
    ("checkpoint", "it"),
    ("log", "it"),
];

/// Of them, those that are run with eADR, too.
const WITH_EADR: usize = 4;

/// The suite of spaces: whole at one horizon; what a reader does, which takes the least time, also at the others.
const SPACES: (&str, &str) = ("space", "it");
const SPACES_PART: &str = "reading::";
/// What of it says nothing of persistent memory, and is long on an emulated processor: tiers `file` and `direct`, which
/// it makes in a directory of its own; and hundreds of processes that open spaces.
const SPACES_NOT: &str = "--skip a_full_or_failing_file_system --skip past_the_page_cache \
                          --skip every_cell_of_the_table --skip while_it_replaces";

/// What of it runs where the stage is one of many: what readers, writers and `clean` do with pools on persistent
/// memory.
const SPACES_SHORT: &str = "reading:: writing:: spilling:: cleaning:: groups::";

/// Bad blocks below spaces, checkpoints and windows.
const BAD_BLOCKS: (&str, &str) = ("cli", "lost_pages");

/// Skips that this machine must not have: it has what they say is missing.
const NEVER_SKIPPED: &[&str] = &[
    "pmem conformance",
    "devdax conformance",
    "region on pmem",
    "where pages lie",
    "pages in turn",
    "where pages in turn lie",
    "conformance of pages on several nodes",
    "counts of real persistent memory",
    "bad blocks below",
];

const PLANS: &str = include_str!("plans.sh");

/// Modes that a workflow is run in, with the channel beside either side and over both.
const MODES: &[&str] = &["serial", "serial-per-step", "parallel", "gated:1w1r"];

/// A part of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Test suites with their files on persistent memory.
    Suites,
    /// Workflows in every mode, the channel beside either side and over both.
    Plans,
    /// What probe and doctor call the tiers.
    Names,
    /// Losses of power.
    Cuts,
}

impl Part {
    /// The part that a word names.
    pub fn named(word: &str) -> Option<Part> {
        let all =
            [("suites", Part::Suites), ("plans", Part::Plans), ("names", Part::Names), ("cuts", Part::Cuts)];
        all.into_iter().find(|(name, _)| *name == word).map(|(_, part)| part)
    }
}

/// What is wanted of the stage.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Losses of power.
    pub cuts: u32,
    /// One part; None: all of it.
    pub only: Option<Part>,
    /// Every test of the suites; else without those that are long on an emulated processor and say little of the
    /// medium.
    pub whole: bool,
}

impl Wanted {
    fn has(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}

/// All that is wanted; one count.
pub fn stage(root: &Path, wanted: Wanted, summary: &mut Summary) {
    title("emulated machine with persistent memory");
    let guest = match Guest::ready(root) {
        Ok(guest) => guest,
        Err(why) => {
            println!("   skipped: {why}");
            return summary.skip("tests on persistent memory", &why);
        }
    };
    // The command and the programs of the power cuts.
    if let Err(why) = build(root, &["--bins"]) {
        return summary.fail(format!("programs for the emulated machine: {why}"));
    }
    if wanted.has(Part::Suites) {
        match privilege::binaries(root) {
            Ok(binaries) => all_suites(&guest, &binaries, wanted.whole, summary),
            Err(why) => summary.fail(format!("test binaries for the emulated machine: {why}")),
        }
    }
    if wanted.has(Part::Plans) {
        let plans = title_then("plans across two sockets", || plans(root, &guest));
        summary.stage("plans across two sockets", plans.err());
    }
    if wanted.has(Part::Names) {
        let named = title_then("names of tiers", || names(root, &guest));
        summary.stage("names of tiers on persistent memory", named.err());
    }
    if wanted.has(Part::Cuts) {
        all_cuts(root, &guest, wanted.cuts, summary);
    }
}

fn all_suites(guest: &Guest, binaries: &[Binary], whole: bool, summary: &mut Summary) {
    let find = |suites: &[(&str, &str)]| {
        suites.iter().filter_map(|suite| binaries.iter().find(|b| is(b, suite))).collect::<Vec<&Binary>>()
    };
    let (wanted, spaces, bad_blocks) = (find(SUITES), find(&[SPACES]), find(&[BAD_BLOCKS]));
    if wanted.len() + spaces.len() + bad_blocks.len() != SUITES.len() + 2 {
        return summary.fail(format!("not all suites of {SUITES:?}, {SPACES:?}, {BAD_BLOCKS:?} were built"));
    }
    let every = calls(&wanted, whole);
    let with_eadr = calls(&wanted[..WITH_EADR], whole);
    let mut rest = String::new();
    for (place, horizon, part) in [
        ("$NVDIMM0", "epoch", if whole { SPACES_NOT } else { SPACES_SHORT }),
        ("$NVDIMM1", "write", SPACES_PART),
        ("$NVDIMM1", "none", SPACES_PART),
    ] {
        let variables = format!("DAX_MACHINE_POOLS=\"{place}\" FOREBAY_HORIZON={horizon}");
        rest.push_str(&call(spaces[0], &variables, part));
    }
    // Last: their blocks stay bad.
    for place in ["$NVDIMM0", "$NVDIMM1"] {
        let variables = format!("DAX_MACHINE_BAD_BLOCKS=\"{place}\"");
        rest.push_str(&call(bad_blocks[0], &variables, "--test-threads=1"));
    }
    // Each emulated machine keeps one processor busy.
    std::thread::scope(|scope| {
        let first = scope.spawn(|| suites(guest, &every, [Shape::Ext4, Shape::DevDax], false));
        summary.add(suites(guest, &with_eadr, [Shape::Xfs, Shape::Memory], true));
        summary.add(suites(guest, &rest, [Shape::Ext4, Shape::Xfs], false));
        match first.join() {
            Ok(first) => summary.add(first),
            Err(_) => summary.fail("suites of the emulated machine: a thread panicked".to_string()),
        }
    });
}

/// A server in Python is too slow in the emulation for the deadlines of its clients, and stores no byte there.
const NOT_THERE: &str = "--skip s3::";

/// Whole matrices of nodes that fail, in directories: long, and they say nothing of persistent memory.
const LONG: &str = "--skip every_cell_of_the_matrix --skip every_kind_of_redundancy";

/// Lines of a shell that run test binaries one after the other.
fn calls(binaries: &[&Binary], whole: bool) -> String {
    let left_out = if whole { NOT_THERE.to_string() } else { format!("{NOT_THERE} {LONG}") };
    binaries.iter().map(|binary| call(binary, "", &left_out)).collect()
}

/// One of them, with variables and arguments.
fn call(binary: &Binary, variables: &str, arguments: &str) -> String {
    let (path, folder) = (binary.path.display(), binary.folder.display());
    format!(
        "cd '{folder}' && {variables} CARGO_MANIFEST_DIR='{folder}' '{path}' {arguments} || echo \"SUITE FAILED $?\"\n"
    )
}

fn all_cuts(root: &Path, guest: &Guest, cuts: u32, summary: &mut Summary) {
    for (eadr, cuts) in [(false, cuts), (true, cuts.div_ceil(10))] {
        let what = format!("{cuts} losses of power{}", if eadr { ", caches persistent" } else { "" });
        let done = title_then(&what, || {
            let fresh = Fresh::new(None)?;
            cuts::check(root, guest, &fresh.folder, cuts, eadr)
        });
        summary.stage(&what, done.err());
    }
}

fn title_then<T>(text: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    title(text);
    let done = work();
    if let Err(why) = &done {
        println!("   {why}");
    }
    done
}

fn is(binary: &Binary, (package, name): &(&str, &str)) -> bool {
    let file = binary.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    binary.folder.ends_with(package) && file.rsplit_once('-').is_some_and(|(stem, _)| stem == *name)
}

/// Runs suites one after the other in one boot, and counts them.
fn suites(guest: &Guest, calls: &str, shapes: [Shape; 2], eadr: bool) -> Summary {
    let mut summary = Summary::default();
    let label =
        format!("on {} and {}{}", shapes[0].word(), shapes[1].word(), if eadr { ", eADR" } else { "" });
    title(&label);
    let mut script = String::from("export TMPDIR=\"$NVDIMM0\" FOREBAY_SKIPS=/run/share/skips\n");
    if shapes[1] == Shape::DevDax {
        script.push_str("export FOREBAY_TEST_DEVDAX=\"$NVDIMM1\"\n");
    }
    script.push_str(calls);
    let ran = Fresh::new(None).and_then(|fresh| {
        let machine = Machine { shapes, eadr, images: fresh.folder.clone(), limit: LIMIT };
        let mut output = String::new();
        let command = ["sh".to_string(), "-c".to_string(), script];
        machine.run(guest, Path::new("/"), &command, &mut |line| {
            println!("{label}: {line}");
            output.push_str(line);
            output.push('\n');
            Wish::On
        })?;
        let noted = std::fs::read_to_string(fresh.folder.join("share/skips")).unwrap_or_default();
        Ok((output, noted))
    });
    let (output, noted) = match ran {
        Ok(ran) => ran,
        Err(why) => {
            summary.fail(format!("{label}: {why}"));
            return summary;
        }
    };
    let before = summary.failed;
    summary.libtest(&label, &output, &noted);
    if summary.failed == before && output.contains("SUITE FAILED") {
        summary.fail(format!("{label}: a suite ended before its end"));
    }
    for name in NEVER_SKIPPED {
        let devdax = *name == "devdax conformance" && shapes[1] != Shape::DevDax;
        if !devdax && noted.lines().any(|line| line.contains(name)) {
            summary.fail(format!("{label}: {name} was skipped, where it can run"));
        }
    }
    summary
}

/// Runs a workflow in every mode, the channel beside either side and over both, and looks at what the kernel says of
/// ranks and pages.
fn plans(root: &Path, guest: &Guest) -> Result<(), String> {
    let fresh = Fresh::new(None)?;
    let shapes = [Shape::Ext4, Shape::Nothing];
    let machine = Machine { shapes, eadr: false, images: fresh.folder.clone(), limit: LIMIT };
    let script = format!("built='{}'\nmodes='{}'\n{PLANS}", cuts::built(root).display(), MODES.join(" "));
    let ended = machine.run(guest, root, &["sh".into(), "-c".into(), script], &mut |line| {
        println!("{line}");
        Wish::On
    })?;
    if ended != End::Status(0) {
        return Err(format!("the workflows ended with {ended:?}"));
    }
    for mode in MODES {
        for (side, tier) in [("writer", "numa:0"), ("reader", "numa:1"), ("interleaved", "numa:0+1")] {
            let path = fresh.folder.join(format!("share/{mode}-{side}.json"));
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let record: Value =
                serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            placed(&record, tier).map_err(|why| format!("{mode}, locality {side}: {why}"))?;
        }
    }
    Ok(())
}

/// Whether the ranks of a record sat on the two sockets, and its channel's pages were seen on the nodes of `tier`, the
/// same part on each.
fn placed(record: &Value, tier: &str) -> Result<(), String> {
    for (component, cpu) in [("gray-scott", "0"), ("analysis", "1")] {
        let of = |c: &&Value| c["name"] == component;
        let found = record["components"].as_array().into_iter().flatten().find(of);
        let cpus = found.map(|c| &c["ranks"][0]["cpus"]);
        if cpus.and_then(Value::as_str) != Some(cpu) {
            return Err(format!("{component} ran on processors {cpus:?}, not {cpu}"));
        }
    }
    let channel = &record["channels"][0];
    let wanted = if tier.contains('+') { "interleaved 50:50" } else { "bound" };
    match (channel["tier"].as_str(), channel["placement"].as_str()) {
        (Some(found), Some(placement)) if (found, placement) == (tier, wanted) => Ok(()),
        (found, placement) => {
            Err(format!("the channel lay on {found:?}, {placement:?}, not {tier}, {wanted}"))
        }
    }
}

/// What probe and doctor find.
fn names(root: &Path, guest: &Guest) -> Result<(), String> {
    let fresh = Fresh::new(None)?;
    let shapes = [Shape::Xfs, Shape::Memory];
    let machine = Machine { shapes, eadr: false, images: fresh.folder.clone(), limit: LIMIT };
    let script = format!(
        "f='{}/forebay'; \"$f\" doctor --json >/run/share/doctor.json\n\
         \"$f\" probe --seconds 8 --json -o p.toml >/run/share/probe.json",
        cuts::built(root).display()
    );
    let ended =
        machine.run(guest, Path::new("/run/tmp"), &["sh".into(), "-c".into(), script], &mut |line| {
            println!("{line}");
            Wish::On
        })?;
    if ended != End::Status(0) {
        return Err(format!("probe ended with {ended:?}"));
    }
    let read = |name: &str| {
        let path = fresh.folder.join("share").join(name);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str::<Value>(&text).map_err(|e| format!("{name}: {e}"))
    };
    let probe = read("probe.json")?;
    let tiers = probe["profile"]["tier"].as_array().into_iter().flatten();
    let found: Vec<String> =
        tiers.map(|tier| tier["name"].as_str().unwrap_or_default().to_string()).collect();
    for wanted in ["dram", "numa:0", "numa:1", "numa:2", "pmem"] {
        if !found.iter().any(|name| name == wanted) {
            return Err(format!("the probe found no {wanted}, but {}", found.join(", ")));
        }
    }
    let doctor = read("doctor.json")?.to_string();
    for wanted in ["/run/pmem0 (xfs, MAP_SYNC works)", "3 NUMA nodes, memory only (CXL or alike): node2"] {
        if !doctor.contains(wanted) {
            return Err(format!("doctor does not say: {wanted}"));
        }
    }
    Ok(())
}

/// Runs the stage alone; tests are built without a word, so that a first run is long before it says anything.
pub fn alone(root: &Path, wanted: Wanted) -> Summary {
    let mut summary = Summary::default();
    stage(root, wanted, &mut summary);
    summary
}
