//! What profiles say of STREAM with its arrays placed as in a run, to be shown beside that run.
//!
//! Guarantees: a figure is shown only for the same placement (what the kernel reads, what it writes) under the same
//! horizon; each is marked published, measured or emulated, with its source; a profile that was asked for and has no
//! such figure is said to have none.

use std::collections::BTreeSet;

use comfy_table::Cell;
use forebay_probe::kernels::placed::{Place, Request};
use forebay_probe::kernels::stream::{reads_and_writes, Kernel, Timing};
use forebay_profile::saved::Saved;
use forebay_profile::words::{plain, speed};
use forebay_profile::{platforms, Estimate, Profile, Provenance, Unit};
use forebay_tier::{Result, TierKind};
use serde::Serialize;

use forebay_cli::output::{number, table_text, wrapped, Output};

/// Width of the text below the table.
const COLUMNS: usize = 100;

/// A profile beside a run.
#[derive(Debug, PartialEq, Serialize)]
pub struct Beside {
    profile: String,
    processor: Option<String>,
    kernels: Vec<Figure>,
}

/// What a profile says of one kernel.
#[derive(Debug, PartialEq, Serialize)]
struct Figure {
    kernel: &'static str,
    reads: TierKind,
    writes: TierKind,
    bytes_per_s: f64,
    error_bytes_per_s: Option<f64>,
    kind: Option<Provenance>,
    source: String,
    citation: Option<String>,
    caveat: Option<String>,
}

/// A profile that may have figures, and whether it was asked for.
pub struct Candidate {
    profile: Profile,
    asked: bool,
}

/// The profiles that were asked for; without any, and with an array on persistent memory, every platform.
///
/// # Errors
/// As [`Saved::find`].
pub fn profiles(asked: &[String], places: &[Place; 3]) -> Result<Vec<Candidate>> {
    if !asked.is_empty() {
        let saved = Saved::of_user()?;
        let find = |word: &String| Ok(Candidate { profile: saved.find(word)?, asked: true });
        return asked.iter().map(find).collect();
    }
    let persistent = places.iter().any(|p| matches!(p.tier, TierKind::Pmem | TierKind::DevDax));
    let names = platforms::names().filter(|_| persistent);
    names.map(|name| Ok(Candidate { profile: platforms::platform(name)?, asked: false })).collect()
}

/// What each of them says of this run; those that were not asked for only when they say something.
pub fn all(candidates: &[Candidate], request: &Request) -> Vec<Beside> {
    let all = candidates.iter().map(|candidate| (candidate.asked, beside(&candidate.profile, request)));
    all.filter(|(asked, beside)| *asked || !beside.kernels.is_empty()).map(|(_, beside)| beside).collect()
}

fn beside(profile: &Profile, request: &Request) -> Beside {
    let kernels = Kernel::ALL.iter().filter_map(|kernel| figure(profile, request, *kernel));
    Beside {
        profile: profile.name.clone(),
        processor: profile.host.processor.clone(),
        kernels: kernels.collect(),
    }
}

fn figure(profile: &Profile, request: &Request, kernel: Kernel) -> Option<Figure> {
    let (read, written) = reads_and_writes(request.layout, kernel);
    let reads = request.places[read[0]].tier;
    // Published tables have both arrays that a kernel reads in one place.
    if read.iter().any(|array| request.places[*array].tier != reads) {
        return None;
    }
    let writes = request.places[written].tier;
    let row = profile.stream(reads, writes, request.horizon)?;
    let value = plain(kernel.of(row), row.unit);
    Some(Figure {
        kernel: kernel.name(),
        reads,
        writes,
        bytes_per_s: value.value,
        error_bytes_per_s: value.error,
        kind: profile.provenance(&row.source),
        source: row.source.to_string(),
        citation: profile.source_of(&row.source).and_then(|s| s.citation.clone().or(s.method.clone())),
        caveat: row.caveat.clone(),
    })
}

/// A table with a column for each profile, and where its figures come from; nothing without profiles.
pub fn text(all: &[Beside], timings: &[Timing], out: &Output) -> String {
    let (with, without): (Vec<&Beside>, Vec<&Beside>) = all.iter().partition(|b| !b.kernels.is_empty());
    let mut text = String::new();
    if !with.is_empty() {
        let names: Vec<String> = with.iter().map(|b| b.profile.to_uppercase()).collect();
        let mut heading = vec!["KERNEL", "READS", "WRITES", "MEASURED HERE"];
        heading.extend(names.iter().map(String::as_str));
        let mut table = out.table(&heading);
        for timing in timings {
            let of = |b: &&Beside| b.kernels.iter().position(|f| f.kernel == timing.kernel.name());
            let Some((first, at)) = with.iter().find_map(|b| Some((b, of(b)?))) else { continue };
            let placed = &first.kernels[at];
            let here = speed(Estimate::bare(timing.best()), Unit::Bytes);
            let mut row = vec![
                Cell::new(placed.kernel),
                Cell::new(placed.reads),
                Cell::new(placed.writes),
                number(here),
            ];
            row.extend(with.iter().map(|b| of(b).map_or(number("-"), |at| number(cell(&b.kernels[at])))));
            table.add_row(row);
        }
        text += &format!("\n{}\n", table_text(&table));
    }
    with.iter().for_each(|beside| text += &sources(beside));
    for beside in without {
        text += &format!(
            "{}: no figures for arrays placed like this under this horizon (forebay probe show {0})\n",
            beside.profile
        );
    }
    text
}

fn cell(figure: &Figure) -> String {
    let value = Estimate { value: figure.bytes_per_s, error: figure.error_bytes_per_s };
    format!("{}{}", speed(value, Unit::Bytes), if figure.caveat.is_some() { " !" } else { "" })
}

/// Who says so, on which node, and its caveats.
fn sources(beside: &Beside) -> String {
    let mut lines = BTreeSet::new();
    for figure in &beside.kernels {
        let kind = figure.kind.map_or("of another profile".into(), |k| k.to_string());
        let node = beside.processor.as_ref().map_or(String::new(), |p| format!(", on {p}"));
        let citation = figure.citation.as_ref().map_or(String::new(), |c| format!("; {c}"));
        lines.insert(format!("{}: {kind}: {}{node}{citation}", beside.profile, figure.source));
        lines.extend(figure.caveat.as_ref().map(|why| format!("! {}: {why}", beside.profile)));
    }
    lines.into_iter().map(|line: String| format!("{}\n", wrapped(&line, COLUMNS, 2))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_cli::output::Colour;
    use forebay_probe::kernels::stream::Layout;
    use forebay_tier::Horizon;

    fn request(tiers: [TierKind; 3], layout: Layout, horizon: Horizon) -> Request {
        let places = tiers.map(|tier| Place { tier, dir: "/x".into() });
        Request { places, layout, horizon, elements: 1, rounds: 1, processors: vec![0] }
    }

    fn asked(name: &str, request: &Request) -> Vec<(&'static str, f64)> {
        let beside = beside(&platforms::platform(name).unwrap(), request);
        beside.kernels.iter().map(|f| (f.kernel, f.bytes_per_s / 1e9)).collect()
    }

    #[test]
    fn a_figure_is_of_the_same_placement_and_horizon() {
        use TierKind::{DevDax, Dram, File, Pmem};
        let roles = |tiers, horizon| request(tiers, Layout::Roles, horizon);
        // As printed: D-D, O-D, D-O and O-O of Table 1, O-O persisted of Table 2.
        let rows = [
            ([Dram, Dram, Dram], Horizon::None, [136.0, 135.0, 152.0, 154.0]),
            ([Pmem, Pmem, Dram], Horizon::None, [80.0, 80.0, 79.0, 80.0]),
            ([Dram, Dram, Pmem], Horizon::None, [16.7, 16.7, 25.0, 24.9]),
            ([DevDax, DevDax, DevDax], Horizon::None, [15.5, 15.1, 21.2, 21.4]),
            ([Pmem, Pmem, Pmem], Horizon::Epoch, [13.9, 13.9, 19.7, 19.7]),
            ([Pmem, Pmem, Pmem], Horizon::Write, [0.88, 0.93, 1.3, 1.4]),
        ];
        for (tiers, horizon, wanted) in rows {
            let seen: Vec<f64> =
                asked("optane-gen1", &roles(tiers, horizon)).into_iter().map(|(_, v)| v).collect();
            assert_eq!(seen, wanted, "{tiers:?} {horizon}");
        }
        assert_eq!(asked("optane-gen1", &roles([Pmem, Pmem, Dram], Horizon::Epoch)), []);
        assert_eq!(asked("optane-gen1", &roles([File, File, Dram], Horizon::None)), []);
        assert_eq!(asked("p4800x", &roles([Dram; 3], Horizon::None)), []);
    }

    #[test]
    fn arrays_placed_one_by_one_have_the_figures_of_each_kernels_placement() {
        use TierKind::{Dram, Pmem};
        // a and c in DRAM, b on persistent memory: copy is D-D, scale D-O; add and triad read from both.
        let mixed = request([Dram, Pmem, Dram], Layout::Arrays, Horizon::None);
        assert_eq!(asked("optane-gen3", &mixed), [("Copy", 172.0), ("Scale", 29.0)]);
    }

    #[test]
    fn platforms_come_unasked_only_beside_persistent_memory() {
        use TierKind::{Dram, Pmem};
        let out = Output::new(false, Colour::Never);
        let timing = |kernel| Timing { kernel, bytes: 8_000_000_000, seconds: vec![2.0] };
        let timings = Kernel::ALL.map(timing);
        let on_dram = request([Dram; 3], Layout::Arrays, Horizon::None);
        assert!(profiles(&[], &on_dram.places).unwrap().is_empty());
        assert_eq!(text(&[], &timings, &out), "");
        let on_pmem = request([Pmem; 3], Layout::Arrays, Horizon::Write);
        let seen = all(&profiles(&[], &on_pmem.places).unwrap(), &on_pmem);
        let names: Vec<&str> = seen.iter().map(|b| b.profile.as_str()).collect();
        assert_eq!(names, ["optane-gen1", "optane-gen3"]);
        let shown = text(&seen, &timings, &out);
        for wanted in ["4.00 GB/s", "880 ± 5 MB/s", "published: jackson Table 2", "Xeon Platinum 8468"] {
            assert!(shown.contains(wanted), "{wanted} is not in\n{shown}");
        }
        let drive = Candidate { profile: platforms::platform("p4800x").unwrap(), asked: true };
        let none = all(&[drive], &on_pmem);
        assert!(text(&none, &timings, &out).contains("p4800x: no figures"), "{none:?}");
    }
}
