//! Every number of the shipped platforms against the published figures, where a folder of them is at hand: the
//! environment variable FOREBAY_REFERENCE names it. Without it the tests are skipped, and say so.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_profile::{platforms, Citation, Conditions, Locality, Pattern, Profile, Unit};

/// Which rows a source of a platform stands for: a text in their column `source`.
const SOURCES: &[(&str, &str)] = &[
    ("jackson", "optane-glorious-swansong"),
    ("venkatesh", "scheduling-workflows-pmem"),
    ("yang", "Yang et al. FAST'20"),
    ("gugnani", "Gugnani et al. VLDB'21"),
    ("dataspaces", "dataspaces-optane-vs-nvme"),
    ("review", "AnandTech review of the Optane SSD"),
    ("hands-on", "AnandTech P4800X 750GB hands-on"),
    ("specification", "Intel SSD DC P3700 Series Product Specification"),
    ("llnl", "llnl-optane-3dxpoint"),
    ("storing", "fio_benchmark_results"),
    ("storing-text", "storing-storage-dcpmm"),
    ("toms", "Tom's Hardware on Micron CZ120"),
    ("liu", "Liu et al. ASPLOS'25"),
    ("sun", "Sun et al. MICRO'23"),
];

/// Folder, or `None` after saying that it is not there.
fn folder() -> Option<PathBuf> {
    let found = std::env::var_os("FOREBAY_REFERENCE").map(PathBuf::from).filter(|dir| dir.is_dir());
    if found.is_none() {
        skips::skipped("platforms against published figures", "FOREBAY_REFERENCE names no folder");
    }
    found
}

type Row = BTreeMap<String, String>;

/// Cells of a line; quoted ones may hold commas and doubled quotes.
fn cells(line: &str) -> Vec<String> {
    let (mut out, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(c) = letters.next() {
        match c {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(std::mem::take(&mut cell)),
            c => cell.push(c),
        }
    }
    out.push(cell);
    out
}

fn rows(dir: &Path) -> Vec<Row> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.path().extension().is_none_or(|e| e != "csv") {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let mut lines = text.lines();
        let heading = cells(lines.next().unwrap_or_default());
        out.extend(lines.map(|line| heading.iter().cloned().zip(cells(line)).collect::<Row>()));
    }
    assert!(out.len() > 1000, "{} has few rows", dir.display());
    out
}

/// Whether two numbers are the same to the second digit after the point, which the platforms keep; small ones exactly.
fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= if a.abs() < 1.0 { 1e-9 } else { 0.0051 }
}

/// A number that must be found, under conditions that must hold where a row says them.
struct Wanted<'a> {
    what: String,
    source: &'a Citation,
    /// The number, in each unit in which a row may have it.
    values: Vec<f64>,
    when: Conditions,
}

impl Wanted<'_> {
    fn is_in(&self, row: &Row) -> bool {
        let cell = |name: &str| row.get(name).map(String::as_str).filter(|t| !t.is_empty());
        let publication = SOURCES.iter().find(|(key, _)| *key == self.source.key);
        let (_, publication) = publication.unwrap_or_else(|| panic!("{} is in no table", self.source.key));
        if !cell("source").is_some_and(|s| s.contains(publication)) {
            return false;
        }
        let number = |text: &str| text.parse::<f64>().ok();
        let values = row.iter().filter(|(k, _)| k.starts_with("value_") || k.starts_with("bandwidth_"));
        let has_value =
            values.filter_map(|(_, v)| number(v)).any(|v| self.values.iter().any(|w| same(*w, v)));
        // A table says `16`, or `QD16` for a depth.
        let threads = cell("threads").and_then(number);
        let depth = cell("threads").and_then(|t| t.strip_prefix("QD")).and_then(number);
        let agrees = |theirs: Option<f64>, mine: Option<f64>| theirs.is_none() || theirs == mine;
        let writes = |share: f64| self.when.reads_percent.is_some_and(|reads| same(100.0 - reads, share));
        has_value
            && agrees(threads, self.when.threads.map(f64::from))
            && agrees(depth, self.when.depth.map(f64::from))
            && agrees(cell("access_size_B").and_then(number), self.when.bytes.map(|b| b as f64))
            && cell("write_share_percent").and_then(number).is_none_or(writes)
            && self.place_agrees(cell("location"), cell("pattern"))
    }

    /// Local or remote, sequential or random, where the row says it in the words of the tables of curves.
    fn place_agrees(&self, location: Option<&str>, pattern: Option<&str>) -> bool {
        let remote = self.when.locality == Locality::Remote;
        let near = location.is_none_or(|text| (text == "remote") == remote);
        near && match (self.when.pattern, pattern) {
            (Some(mine), Some(theirs)) => {
                let short = if mine == Pattern::Sequential { "seq" } else { "rand" };
                theirs.starts_with(short)
            }
            _ => true,
        }
    }
}

/// Every number of the tiers of a profile.
fn numbers(profile: &Profile) -> Vec<Wanted<'_>> {
    let mut out = Vec::new();
    for tier in &profile.tiers {
        let mut add = |what: String, source, values: &[f64], when: &Conditions| {
            let what = format!("{} {what}", tier.name);
            out.push(Wanted { what, source, values: values.to_vec(), when: when.clone() });
        };
        let any = Conditions::default();
        for quantity in tier.capacity.iter().chain(&tier.granularity) {
            let bytes = quantity.bytes as f64;
            add(format!("{bytes} bytes"), &quantity.source, &[bytes, bytes / 1e9, bytes / 1e12], &any);
        }
        for sample in tier.samples() {
            add(format!("{:?}", sample.when), sample.source, &[sample.value.value], &sample.when);
        }
        for knee in &tier.knees {
            add(format!("knee {:?}", knee.when), &knee.source, &[knee.highest.value], &knee.when);
        }
        for latency in &tier.latencies {
            let ns = latency.mean_ns.expect("publications print means").value;
            add(format!("latency {:?}", latency.when), &latency.source, &[ns, ns / 1e3], &latency.when);
        }
        for figure in &tier.figures {
            add(figure.name.clone(), &figure.source, &[figure.value.value], &any);
        }
    }
    out
}

#[test]
fn every_number_of_the_platforms_stands_in_its_publication() {
    let Some(dir) = folder() else { return };
    let rows = rows(&dir);
    let (mut compared, mut missing) = (0, Vec::new());
    for name in platforms::names() {
        let profile = platforms::platform(name).unwrap();
        for wanted in numbers(&profile) {
            compared += 1;
            if !rows.iter().any(|row| wanted.is_in(row)) {
                missing.push(format!("{name}: {} {:?}", wanted.what, wanted.values));
            }
        }
    }
    assert!(missing.is_empty(), "not published so:\n{}", missing.join("\n"));
    assert!(compared > 200, "{compared} numbers only");
}

#[test]
fn stream_of_the_platforms_is_that_of_the_tables() {
    let Some(dir) = folder() else { return };
    let rows = rows(&dir);
    let place = |tier: &str| if tier == "pmem" { "Optane" } else { "DRAM" };
    for name in ["optane-gen1", "optane-gen3", "ddr4-2666", "ddr5-4800"] {
        let profile = platforms::platform(name).unwrap();
        assert!(!profile.streams.is_empty());
        for row in &profile.streams {
            assert_eq!(row.unit, Unit::Gigabytes);
            let persist = match row.horizon.to_string().as_str() {
                "none" => "none",
                "epoch" => "at_end",
                _ => "after_each_operation",
            };
            let kernels = [("copy", row.copy), ("scale", row.scale), ("add", row.add), ("triad", row.triad)];
            for (kernel, value) in kernels {
                let wanted = [
                    ("table", row.source.place.as_str()),
                    ("read_location", place(&row.read)),
                    ("write_location", place(&row.write)),
                    ("persist", persist),
                    ("kernel", kernel),
                ];
                let found = rows
                    .iter()
                    .find(|r| wanted.iter().all(|(key, text)| r.get(*key).is_some_and(|v| v == text)));
                let printed = &found.unwrap_or_else(|| panic!("{name}: {wanted:?}"))["bandwidth_GBps"];
                assert_eq!(printed.parse::<f64>().unwrap(), value.value, "{name}: {wanted:?}");
                // Half of the last digit that is printed.
                let decimals = printed.split_once('.').map_or(0, |(_, d)| d.len() as i32);
                let last = value.error.unwrap() * 10f64.powi(decimals);
                assert!((last - 0.5).abs() < 1e-9, "{name}: {wanted:?}");
            }
        }
    }
}

#[test]
fn a_number_that_is_not_published_is_noticed() {
    let Some(dir) = folder() else { return };
    let rows = rows(&dir);
    let mut profile = platforms::platform("optane-gen1").unwrap();
    profile.tiers[1].curves[0].points[0].y.value += 0.01;
    let missing = numbers(&profile).iter().filter(|w| !rows.iter().any(|row| w.is_in(row))).count();
    assert_eq!(missing, 1);
}
