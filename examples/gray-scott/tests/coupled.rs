//! The simulation and the analysis coupled through spaces, compared bit for bit with the reference run.
//!
//! The matrix of splits and numbers of readers runs with ranks as threads, which is quick; one run and the
//! restart use real processes. No assertion depends on time.

#![forbid(unsafe_code)]

use forebay_space::{Kind, Mechanism, OpenOptions, Reader, Result};
use gray_scott::analysis::output::{Existing, FILE_NAME};
use gray_scott::analysis::statistics::Recipe;
use gray_scott::analysis::{follow, Settings};
use gray_scott::reference::{self, Snapshot};
use gray_scott::simulation::deck::Deck;
use gray_scott::simulation::field::Cell;
use gray_scott::simulation::simulate;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// No axis can be cut evenly, both kinds of noise are on.
const DECK: &str = "pattern = \"lambda\"\nshape = [13, 11, 10]\nsteps = 12\noutput_every = 3\n\
                    [noise]\nseed = 3\ninitial = 0.05\neach_step = 0.001\n";

const RECIPE: Recipe = Recipe { threshold: 0.15, bins: 256, range: [0.0, 1.0] };

/// A directory in memory, where there is shared memory.
fn directory() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.expect("a directory")
}

fn options(rank: usize, size: usize, component: &str) -> OpenOptions {
    OpenOptions {
        rank: Some(rank as u32),
        size: Some(size as u32),
        component: Some(component.to_owned()),
        quota_bytes: Some(96 << 20),
        channel: Mechanism::Space,
        ..OpenOptions::default()
    }
}

fn settings(channel: &str, out: PathBuf) -> Settings {
    Settings {
        channel: channel.to_owned(),
        variable: "V".to_owned(),
        recipe: RECIPE,
        out,
        existing: Existing::Error,
        slices_every: 4,
        colour_range: [0.0, 0.4],
    }
}

fn snapshots<T: Cell>(deck: &Deck) -> Vec<Snapshot<T>> {
    let mut all = Vec::new();
    reference::run(deck, |s| {
        all.push(s.clone());
        Ok(())
    })
    .unwrap();
    all
}

/// What `statistics.jsonl` must hold, byte for byte.
fn expected_lines(deck: &Deck) -> String {
    let all = reference::statistics(deck, &RECIPE).unwrap();
    all.iter().map(|s| serde_json::to_string(s).unwrap() + "\n").collect()
}

/// Reads every version whole and compares it with the reference.
fn check_fields<T: Cell>(reader: &mut Reader, expected: &[Snapshot<T>]) -> Result<()> {
    let mut versions = 0;
    while let Some(version) = reader.begin_step(None)? {
        assert_eq!(version, versions, "every version once, in order");
        let u: Vec<T> = reader.get_array("U", None)?;
        let v: Vec<T> = reader.get_array("V", None)?;
        let snapshot = &expected[version as usize];
        assert!(u == snapshot.u && v == snapshot.v, "version {version} differs from the reference");
        reader.end_step()?;
        versions += 1;
    }
    assert_eq!(versions as usize, expected.len());
    Ok(())
}

/// One coupled run with every rank a thread.
fn couple<T: Cell>(deck: &Deck, writers: usize, readers: usize, expected: &[Snapshot<T>], lines: &str) {
    couple_through(Mechanism::Space, deck, writers, readers, expected, lines);
}

/// The same through another kind of channel.
fn couple_through<T: Cell>(
    kind: Mechanism,
    deck: &Deck,
    writers: usize,
    readers: usize,
    expected: &[Snapshot<T>],
    lines: &str,
) {
    let options = |rank, size, component| OpenOptions { channel: kind, ..options(rank, size, component) };
    let directory = directory();
    let channel = &format!("{}/gs", directory.path().display());
    let out = directory.path().join("out");
    let declared = vec![("analysis".to_owned(), readers as u32), ("check".to_owned(), 1)];
    std::thread::scope(|scope| {
        for rank in 0..writers {
            let options = OpenOptions { readers: declared.clone(), ..options(rank, writers, "gray-scott") };
            scope.spawn(move || simulate(deck, channel, &options).unwrap());
        }
        for rank in 0..readers {
            let (settings, options) = (settings(channel, out.clone()), options(rank, readers, "analysis"));
            scope.spawn(move || follow(&settings, &options).unwrap());
        }
        scope.spawn(move || {
            let mut reader = Reader::open(channel, &options(0, 1, "check")).unwrap();
            check_fields(&mut reader, expected).unwrap();
        });
    });
    assert_eq!(std::fs::read_to_string(out.join(FILE_NAME)).unwrap(), lines, "statistics differ");
    for name in ["slice-z-000000.png", "slice-y-000004.png", "slice-x-000004.png", "index.json"] {
        assert!(out.join(name).is_file(), "{name} is missing");
    }
}

/// All splits of this list, each with 1, 2 and 3 readers.
fn matrix<T: Cell>(deck_text: &str, splits: &[[usize; 3]]) {
    let mut deck = Deck::parse(deck_text).unwrap();
    let (expected, lines) = (snapshots::<T>(&deck), expected_lines(&deck));
    assert!(expected.last().unwrap().v != expected[0].v, "the field moves");
    for parts in splits {
        for readers in [1, 2, 3] {
            deck.decomposition = Some(*parts);
            couple::<T>(&deck, parts.iter().product(), readers, &expected, &lines);
        }
    }
}

#[test]
fn one_rank_equals_the_reference() {
    matrix::<f64>(DECK, &[[1, 1, 1]]);
}

#[test]
fn one_dimensional_splits_equal_the_reference() {
    matrix::<f64>(DECK, &[[2, 1, 1], [1, 3, 1], [1, 1, 4], [8, 1, 1]]);
}

#[test]
fn two_dimensional_splits_equal_the_reference() {
    matrix::<f64>(DECK, &[[2, 2, 1], [1, 2, 2], [4, 1, 2]]);
}

#[test]
fn three_dimensional_splits_equal_the_reference() {
    matrix::<f64>(DECK, &[[2, 2, 2]]);
}

#[test]
fn single_precision_equals_the_reference() {
    matrix::<f32>(&format!("dtype = \"float32\"\n{DECK}"), &[[1, 2, 2], [3, 1, 1]]);
}

#[test]
fn more_readers_than_planes() {
    let deck = Deck::parse(&DECK.replace("[13, 11, 10]", "[3, 9, 8]")).unwrap();
    couple::<f64>(&deck, 2, 5, &snapshots(&deck), &expected_lines(&deck));
}

#[test]
fn a_channel_of_plain_files_gives_the_same() {
    let deck = Deck::parse(DECK).unwrap();
    couple_through::<f64>(Mechanism::Files, &deck, 2, 3, &snapshots(&deck), &expected_lines(&deck));
}

/// A simulation that fails must not look like one that has ended.
#[test]
fn a_diverged_simulation_ends_everything_with_an_error() {
    let directory = directory();
    let channel = &format!("{}/gs", directory.path().display());
    let out = directory.path().join("out");
    let text = format!("{DECK}[[seed]]\nstart = [1, 1, 1]\ncount = [2, 2, 2]\nu = 1e200\nv = 1e200\n");
    let deck = &Deck::parse(&text).unwrap();
    std::thread::scope(|scope| {
        let simulations: Vec<_> = (0..3)
            .map(|rank| {
                let readers = vec![("analysis".to_owned(), 2)];
                let options = OpenOptions { readers, ..options(rank, 3, "gray-scott") };
                scope.spawn(move || simulate(deck, channel, &options).unwrap_err().kind())
            })
            .collect();
        let analyses: Vec<_> = (0..2)
            .map(|rank| {
                let (settings, options) = (settings(channel, out.clone()), options(rank, 2, "analysis"));
                scope.spawn(move || follow(&settings, &options).unwrap_err().kind())
            })
            .collect();
        let kinds: Vec<Kind> = simulations.into_iter().map(|s| s.join().unwrap()).collect();
        assert!(kinds.contains(&Kind::Usage), "{kinds:?}");
        assert!(kinds.iter().all(|k| matches!(k, Kind::Usage | Kind::ProducerDied)), "{kinds:?}");
        let kinds: Vec<Kind> = analyses.into_iter().map(|a| a.join().unwrap()).collect();
        assert!(kinds.iter().all(|k| *k == Kind::ProducerDied), "{kinds:?}");
    });
    let lines = std::fs::read_to_string(out.join(FILE_NAME)).unwrap();
    assert!(lines.lines().count() == 1 && out.join("index.json").is_file(), "what came before is kept");
}

#[test]
fn a_split_that_does_not_fit_the_ranks_is_refused() {
    let directory = directory();
    let channel = format!("{}/gs", directory.path().display());
    let mut deck = Deck::parse(DECK).unwrap();
    deck.decomposition = Some([2, 2, 1]);
    assert_eq!(simulate(&deck, &channel, &options(0, 3, "gray-scott")).unwrap_err().kind(), Kind::Usage);
    assert!(!Path::new(&channel).exists(), "nothing is left behind");
}

#[test]
fn a_variable_that_is_not_a_field_is_refused() {
    let directory = directory();
    let channel = &format!("{}/gs", directory.path().display());
    let mut writer = forebay_space::Writer::open(channel, &options(0, 1, "other")).unwrap();
    writer.begin_step().unwrap();
    writer.put_array("V", &[4, 4], &[0, 0], &[4, 4], &[0.5f64; 16]).unwrap();
    writer.end_step().unwrap();
    let error =
        follow(&settings(channel, directory.path().join("out")), &options(0, 1, "analysis")).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error}");
}

// ---- real processes --------------------------------------------------------------------------------------

/// The two programs.
const GRAY_SCOTT: &str = env!("CARGO_BIN_EXE_gray-scott");
const ANALYSIS: &str = env!("CARGO_BIN_EXE_analysis");

/// Starts all ranks of a component, each a process.
fn start(component: &str, ranks: usize, root: &Path, channel: &str, words: &[&str]) -> Vec<Child> {
    (0..ranks)
        .map(|rank| {
            Command::new(words[0])
                .args(&words[1..])
                .env("FOREBAY_DIR", root)
                .env("FOREBAY_COMPONENT", component)
                .env("FOREBAY_RANK", rank.to_string())
                .env("FOREBAY_SIZE", ranks.to_string())
                .env("FOREBAY_CHANNEL_GS", channel)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect()
}

fn succeed(children: Vec<Child>) {
    let statuses: Vec<_> = children.into_iter().map(|mut child| child.wait().unwrap()).collect();
    assert!(statuses.iter().all(|s| s.success()), "{statuses:?}");
}

#[test]
fn processes_equal_the_reference() {
    let directory = directory();
    let (root, deck_file) = (directory.path().join("root"), directory.path().join("deck.toml"));
    std::fs::write(&deck_file, DECK).unwrap();
    let out = directory.path().join("out");
    let channel = r#"{"quota": "32MiB", "readers": "statistics:3"}"#;
    let (deck_word, out_word) = (deck_file.to_str().unwrap(), out.to_str().unwrap());
    let mut children = start(
        "simulation",
        4,
        &root,
        channel,
        &[GRAY_SCOTT, "--deck", deck_word, "--decomposition", "2x1x2"],
    );
    let words = [ANALYSIS, "--out", out_word, "--threshold", "0.15", "--slices-every", "0"];
    children.extend(start("statistics", 3, &root, channel, &words));
    succeed(children);
    let lines = std::fs::read_to_string(out.join(FILE_NAME)).unwrap();
    assert_eq!(lines, expected_lines(&Deck::parse(DECK).unwrap()));
}

/// Kills the simulation in the middle and starts it again behind the stream: the reader gets every version
/// once, and nothing differs.
#[test]
fn a_restarted_simulation_goes_on_behind_the_stream() {
    let directory = directory();
    let (root, deck_file) = (directory.path().join("root"), directory.path().join("deck.toml"));
    let text = "pattern = \"mu\"\nshape = [16, 16, 16]\nsteps = 60\noutput_every = 1\n";
    std::fs::write(&deck_file, text).unwrap();
    let expected = snapshots::<f64>(&Deck::parse(text).unwrap());
    // So little space that the simulation cannot end before the reader has read most of it: 32 KiB for each
    // rank and version, segments of 256 KiB.
    let channel = r#"{"quota": "1MiB", "segment": "256KiB", "readers": "check:1"}"#;
    let words = [GRAY_SCOTT, "--deck", deck_file.to_str().unwrap()];
    let first = start("gray-scott", 2, &root, channel, &words);
    let space = format!("{}/gs", root.display());
    let mut reader = Reader::open(&space, &options(0, 1, "check")).unwrap();
    for version in 0..3 {
        assert_eq!(reader.begin_step(None).unwrap(), Some(version));
        let v: Vec<f64> = reader.get_array("V", None).unwrap();
        assert!(v == expected[version as usize].v);
        if version < 2 {
            reader.end_step().unwrap();
        }
    }
    for mut child in first {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    reader.end_step().unwrap();
    let goes_on = channel.replace('{', r#"{"mode": "a", "#);
    let second = start("gray-scott", 2, &root, &goes_on, &words);
    let mut next = 3;
    while let Some(version) = next_version(&mut reader) {
        assert_eq!(version, next, "every version once, in order");
        let u: Vec<f64> = reader.get_array("U", None).unwrap();
        assert!(u == expected[version as usize].u, "version {version} differs after the restart");
        reader.end_step().unwrap();
        next += 1;
    }
    assert_eq!(next as usize, expected.len());
    succeed(second);
}

/// The next version; waits through the time in which the producers are dead.
fn next_version(reader: &mut Reader) -> Option<u64> {
    let begin = Instant::now();
    loop {
        match reader.begin_step(None) {
            Ok(version) => return version,
            Err(e) if e.kind() == Kind::ProducerDied && begin.elapsed() < Duration::from_secs(120) => {
                std::thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
}
