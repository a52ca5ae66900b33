//! What becomes of a space that is opened again: each cell of the table in docs/src/guide/opening.md is carried out, by
//! processes, on every tier of this machine, and the table of the document is what they saw.
//!
//! Children are this test binary again: the test `child` plays the role that `OPENING_ROLE` names.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::skips;
use crate::support::{options, ranked, tier_of_roots, Root};
use crate::tmpfs;
use forebay_space::{
    CleanOptions, Error, Horizon, Kind, Mechanism, Mode, OpenOptions, Reader, Result, Retention, SpillTier,
    TierKind, WhenFull, Writer,
};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/guide/opening.md");

/// States of a space, in the order of the table, and the word for each there.
const STATES: [(&str, &str); 12] = [
    ("none", "no space"),
    ("ours", "being written by this launch"),
    ("others", "being written by another launch"),
    ("finished-read", "finished and read"),
    ("finished-unread", "finished and unread"),
    ("finished-held", "finished, a view is held"),
    ("dead-read", "dead and read"),
    ("dead-unread", "dead and unread"),
    ("dead-held", "dead, a view is held"),
    ("partial", "one rank has ended, the other never came"),
    ("damaged", "damaged"),
    ("leftovers", "leftovers of a killed replacement"),
];

/// Ways to open it.
const WAYS: [(&str, &str); 8] = [
    ("w", "`w`"),
    ("replace", "`w`, `replace`"),
    ("a", "`a`"),
    ("x", "`x`"),
    ("stream", "stream"),
    ("finished", "stream, `finished`"),
    ("same-run", "stream, same run"),
    ("version", "one version"),
];

/// Elements of the one variable, each the number of its version.
const ELEMENTS: u64 = 1000;
/// Versions of a space that has any.
const VERSIONS: u64 = 2;

/// Where a space lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Medium {
    Memory,
    File,
    Direct,
    Lower,
    Files,
}

impl Medium {
    const ALL: [(&'static str, Medium); 5] = [
        ("memory", Medium::Memory),
        ("file", Medium::File),
        ("direct", Medium::Direct),
        ("lower", Medium::Lower),
        ("files", Medium::Files),
    ];

    fn word(self) -> &'static str {
        Medium::ALL.iter().find(|(_, medium)| *medium == self).expect("each is there").0
    }
}

/// Directories of one test.
struct Place {
    medium: Medium,
    memory: Root,
    disk: tempfile::TempDir,
}

impl Place {
    fn new(medium: Medium) -> Place {
        let disk = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(disk.path().join("lower")).expect("a directory");
        Place { medium, memory: Root::new(), disk }
    }

    fn name(&self, space: &str) -> String {
        match self.medium {
            Medium::Memory | Medium::Lower => self.memory.name(space),
            _ => format!("{}/{space}", self.disk.path().display()),
        }
    }

    fn options(&self) -> OpenOptions {
        options_on(self.medium, self.disk.path())
    }

    /// A role in a process of its own, with what it is told. Of no run where `run` is empty.
    fn command(&self, role: &str, name: &str, run: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        match run {
            "" => command.env_remove("FOREBAY_RUN"),
            run => command.env("FOREBAY_RUN", format!("/run/{run}")),
        };
        command
            .args(["--exact", "opening::child", "--nocapture", "--test-threads=1"])
            .env("OPENING_ROLE", role)
            .env("OPENING_NAME", name)
            .env("OPENING_MEDIUM", self.medium.word())
            .env("OPENING_DISK", self.disk.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Starts a role.
    fn start(&self, role: &str, name: &str, run: &str) -> Child {
        self.command(role, name, run).spawn().expect("a child")
    }

    /// Runs a role to its end. What it says, and what it wrote on standard error.
    fn play(&self, role: &str, name: &str, run: &str) -> (String, String) {
        let mut child = self.start(role, name, run);
        let said = answer(&mut child);
        let mut errors = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
        child.wait().expect("a status");
        (said.unwrap_or_else(|| panic!("{role} said nothing: {errors}")), errors)
    }

    /// Runs a role that goes on living when it has done its part.
    fn hold(&self, role: &str, name: &str, run: &str) -> Held {
        let mut child = self.start(role, name, run);
        assert_eq!(answer(&mut child).as_deref(), Some("ready"), "{role}");
        Held(child)
    }
}

fn options_on(medium: Medium, disk: &Path) -> OpenOptions {
    let (in_memory, horizon) = tier_of_roots();
    let lower = SpillTier { path: disk.join("lower"), quota: Some(8 << 20), tier: None };
    let options = OpenOptions {
        retention: Some(Retention::Forever),
        mode: Mode::Write,
        finished: false,
        ..ranked(0, 1)
    };
    match medium {
        Medium::Memory => OpenOptions { tier: Some(in_memory), horizon: Some(horizon), ..options },
        Medium::Lower => {
            OpenOptions { tier: Some(in_memory), horizon: Some(horizon), spill: vec![lower], ..options }
        }
        Medium::File => OpenOptions { tier: Some(TierKind::File), horizon: Some(Horizon::Epoch), ..options },
        Medium::Direct => {
            OpenOptions { tier: Some(TierKind::Direct), horizon: Some(Horizon::Epoch), ..options }
        }
        Medium::Files => OpenOptions { channel: Mechanism::Files, ..options },
    }
}

/// A process that has done its part and lives; it is killed when this is dropped.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a child says; None when it ends before.
fn answer(child: &mut Child) -> Option<String> {
    let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    lines.map_while(std::io::Result::ok).find_map(|line| {
        let at = line.find("OPENING ")?;
        Some(line[at + "OPENING ".len()..].to_string())
    })
}

fn say(text: &str) {
    println!("OPENING {text}");
}

fn put(w: &mut Writer) -> Result<u64> {
    let version = w.begin_step()?;
    let (rank, size) = (u64::from(w.rank()), u64::from(w.size()));
    let data = vec![version; ELEMENTS as usize];
    w.put_array("a", &[size * ELEMENTS], &[rank * ELEMENTS], &[ELEMENTS], &data)?;
    w.end_step()?;
    Ok(version)
}

fn check(r: &mut Reader, version: u64) {
    let found = r.get_array::<u64>("a", None).unwrap();
    assert!(!found.is_empty() && found.len() as u64 % ELEMENTS == 0);
    assert!(found.iter().all(|x| *x == version), "version {version}");
}

#[test]
fn child() {
    let Ok(role) = std::env::var("OPENING_ROLE") else { return };
    let name = std::env::var("OPENING_NAME").unwrap();
    let medium = std::env::var("OPENING_MEDIUM").unwrap();
    let medium = Medium::ALL.iter().find(|(word, _)| *word == medium).unwrap().1;
    let options = options_on(medium, &PathBuf::from(std::env::var_os("OPENING_DISK").unwrap()));
    let viz = OpenOptions { component: Some("viz".into()), finished: true, ..options.clone() };
    let until_killed = || {
        say("ready");
        std::thread::sleep(Duration::from_secs(120));
    };
    match role.as_str() {
        // Writes, and ends.
        "write" | "write-of-two" => {
            let size = if role == "write" { 1 } else { 2 };
            let mut w = Writer::open(&name, &OpenOptions { size: Some(size), ..options }).unwrap();
            (0..VERSIONS).for_each(|version| assert_eq!(put(&mut w).unwrap(), version));
            w.close().unwrap();
            say("done");
        }
        // Writes, and is killed.
        "write-hold" | "write-hold-of-two" => {
            let size = if role == "write-hold" { 1 } else { 2 };
            let mut w = Writer::open(&name, &OpenOptions { size: Some(size), ..options }).unwrap();
            (0..VERSIONS).for_each(|version| assert_eq!(put(&mut w).unwrap(), version));
            until_killed();
        }
        // Reads all, not to the end of the stream: the space would go with its last reader.
        "read" | "read-hold" | "read-group" => {
            let group = (role == "read-group").then(|| "viz".to_string());
            let mut r = Reader::open(&name, &OpenOptions { group, ..viz }).unwrap();
            let mut view = None;
            for version in 0..VERSIONS {
                assert_eq!(r.begin_step(None).unwrap(), Some(version));
                check(&mut r, version);
                if role == "read-hold" {
                    view = Some(match medium {
                        Medium::Files => r.open_version(version).map(drop).map(|()| None).unwrap(),
                        _ => Some(r.view("a", None).unwrap()),
                    });
                }
                r.end_step().unwrap();
            }
            // In files views are copies: what is held is a handle of one version.
            let opened = (role == "read-hold").then(|| r.open_version(VERSIONS - 1).unwrap());
            match role.as_str() {
                "read" | "read-group" => {
                    r.close().unwrap();
                    say("done");
                }
                _ => until_killed(),
            }
            drop((view, opened));
        }
        way => open_in_a_way(way, &name, options),
    }
}

/// Plays the roles that open the space in one of the ways, and say what came of it.
fn open_in_a_way(way: &str, name: &str, options: OpenOptions) {
    let soon = Duration::from_millis(300);
    let analysis = OpenOptions { component: Some("analysis".into()), ..options.clone() };
    match way {
        "w" | "replace" | "a" | "x" => say(&write_in(way, name, options)),
        "w-of-two" | "replace-of-two" | "a-of-two" | "x-of-two" => {
            let second = OpenOptions { rank: Some(1), size: Some(2), ..options };
            say(&write_in(way.strip_suffix("-of-two").unwrap(), name, second));
        }
        // Replaces the space again and again, as another process does meanwhile.
        "replaces" => {
            let all = OpenOptions { replace: true, ..options };
            let end = Instant::now() + Duration::from_secs(60);
            let open = || (Instant::now() < end).then(|| Writer::open(name, &all));
            let refused = |e: &Error| assert_eq!(e.kind(), Kind::NameInUse, "{e}");
            let opened = std::iter::from_fn(open).flat_map(|w| w.inspect_err(refused)).take(200);
            opened.for_each(|w| w.close().unwrap());
            say("done");
        }
        // Removes what killed processes left below the root of short names, again and again.
        "cleans" => {
            say("ready");
            let end = Instant::now() + Duration::from_secs(120);
            while Instant::now() < end {
                forebay_space::clean(&CleanOptions::default()).unwrap();
            }
        }
        "stream" | "same-run" => say(&stream(name, &OpenOptions { timeout: soon, ..analysis })),
        "group" => {
            let group = Some("viz".to_string());
            say(&stream(
                name,
                &OpenOptions { timeout: soon, group, component: Some("viz".into()), ..options },
            ));
        }
        "finished" => say(&stream(name, &OpenOptions { timeout: soon, finished: true, ..analysis })),
        "version" => say(&look(name, &OpenOptions { timeout: soon, ..analysis })),
        // Opens it when its writers have ended, which this process has seen begin.
        "late" => {
            while !forebay_space::inspect(name).is_ok_and(|space| space.state == "finished") {
                std::thread::sleep(Duration::from_millis(5));
            }
            say(&stream(name, &OpenOptions { timeout: soon, ..analysis }));
        }
        // Reads the next version, whichever run writes it.
        "await" => {
            let mut r = Reader::open(name, &analysis).unwrap();
            let first = r.begin_step(None).unwrap().expect("a version");
            check(&mut r, first);
            say(&format!("read version {first}"));
        }
        _ => panic!("no role {way}"),
    }
}

fn refusal(kind: Kind, text: &str) -> String {
    match text.contains("finished=true") {
        true => "waits".into(),
        false => format!("`{kind}`"),
    }
}

/// Opens the space to write. What came of it; a version is put where it could be opened.
fn write_in(way: &str, name: &str, options: OpenOptions) -> String {
    let mode = if way == "replace" { Mode::Write } else { way.parse().unwrap() };
    let options = OpenOptions { mode, replace: way == "replace", ..options };
    let joins = options.size == Some(2);
    match Writer::open(name, &options) {
        Err(e) => refusal(e.kind(), &e.to_string()),
        Ok(mut w) => {
            let next = w.next_version();
            assert_eq!(put(&mut w).unwrap(), next);
            w.close().unwrap();
            match (next, joins) {
                (0, true) => "joins".into(),
                (0, false) => "starts".into(),
                (VERSIONS, _) => "goes on".into(),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Streams the space. What came of it.
fn stream(name: &str, options: &OpenOptions) -> String {
    let mut r = match Reader::open(name, options) {
        Ok(r) => r,
        Err(e) => return refusal(e.kind(), &e.to_string()),
    };
    match r.begin_step(None) {
        Ok(version) => {
            assert_eq!(version, Some(0));
            check(&mut r, 0);
            "reads".into()
        }
        // Its writers are at it.
        Err(e) if e.kind() == Kind::TimedOut && e.to_string().contains("missing=") => "reads".into(),
        Err(e) => refusal(e.kind(), &e.to_string()),
    }
}

/// Opens single versions. What came of it.
fn look(name: &str, options: &OpenOptions) -> String {
    let mut r = match Reader::open(name, options) {
        Ok(r) => r,
        Err(e) => return refusal(e.kind(), &e.to_string()),
    };
    for version in r.versions().unwrap() {
        check(&mut r.open_version(version).unwrap(), version);
    }
    "reads".into()
}

/// Brings about a state of the space `name`, by the run `first`. What has to live on while it is looked at.
fn bring_about(place: &Place, state: &str, name: &str) -> Vec<Held> {
    let write = || assert_eq!(place.play("write", name, "first").0, "done");
    let read = || assert_eq!(place.play("read", name, "first").0, "done");
    let die = || drop(place.hold("write-hold", name, "first"));
    let hold_view = || vec![place.hold("read-hold", name, "first")];
    match state {
        "none" => vec![],
        "ours" => vec![place.hold("write-hold-of-two", name, "first")],
        "others" => vec![place.hold("write-hold", name, "first")],
        "finished-unread" => {
            write();
            vec![]
        }
        "finished-read" => {
            write();
            read();
            vec![]
        }
        "finished-held" => {
            write();
            hold_view()
        }
        "dead-unread" => {
            die();
            vec![]
        }
        "partial" => {
            assert_eq!(place.play("write-of-two", name, "first").0, "done");
            vec![]
        }
        "dead-read" => {
            die();
            read();
            vec![]
        }
        "dead-held" => {
            die();
            hold_view()
        }
        "damaged" => {
            write();
            let file = if place.medium == Medium::Files { "stream.json" } else { "pool" };
            let path = Path::new(name).join(file);
            let bytes = std::fs::read(&path).unwrap();
            let damaged: Vec<u8> = bytes.iter().take(4096).map(|byte| byte ^ 0x55).collect();
            use std::os::unix::fs::FileExt;
            std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&damaged, 0).unwrap();
            vec![]
        }
        "leftovers" => {
            // The old one renamed, the new one not in place, its maker killed.
            write();
            let hidden = |mark: &str| {
                let path = Path::new(name);
                let file = path.file_name().unwrap().to_string_lossy();
                path.with_file_name(format!(".{file}.{mark}-1-1"))
            };
            std::fs::rename(name, hidden("gone")).unwrap();
            write();
            std::fs::rename(name, hidden("new")).unwrap();
            vec![]
        }
        other => panic!("no state {other}"),
    }
}

/// What is there, but for the spaces' own names: hidden directories and lower pools.
fn leftovers(place: &Place, name: &str) -> Vec<String> {
    let parent = Path::new(name).parent().unwrap();
    let of = |dir: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    let hidden = of(parent).into_iter().filter(|file| file.starts_with('.'));
    hidden.chain(of(&place.disk.path().join("lower"))).collect()
}

/// Identity of the space, where it can be read.
fn uuid_of(name: &str) -> Option<String> {
    Path::new(name).exists().then(|| forebay_space::inspect(name).ok())?.map(|info| info.uuid)
}

/// Carries one cell out, and checks that what is said of it is so.
fn cell(place: &Place, state: &str, way: &str, name: &str) -> String {
    let held = bring_about(place, state, name);
    let before = uuid_of(name);
    // A process that had begun when the writers ended was started together with them; the kernel counts in hundredths.
    std::thread::sleep(Duration::from_millis(40));
    let run = if way == "same-run" || state == "ours" { "first" } else { "second" };
    let is_writer = ["w", "replace", "a", "x"].contains(&way);
    let role = if state == "ours" && is_writer { format!("{way}-of-two") } else { way.to_string() };
    let (said, _) = place.play(&role, name, run);
    let after = uuid_of(name);
    let outcome = match said.as_str() {
        "starts" if before.is_none() => "new".to_string(),
        // No version is complete: it goes on at the first.
        "starts" if before == after => "goes on".to_string(),
        "starts" => "replaces".to_string(),
        other => other.to_string(),
    };
    let at = format!("{state} × {way}: {outcome}");
    match outcome.as_str() {
        "replaces" => assert!(after.is_some() && before != after, "{at}"),
        "new" => assert!(after.is_some(), "{at}"),
        _ => {
            assert_eq!(before, after, "{at}");
            if after.is_some() && !["ours"].contains(&state) {
                assert_eq!(look(name, &place.options()), "reads", "{at}: what was there is whole");
            }
        }
    }
    if is_writer && outcome != "`Damaged`" {
        let pools = if place.medium == Medium::Lower { usize::from(after.is_some()) } else { 0 };
        let left = leftovers(place, name);
        let hidden = left.iter().filter(|file| file.starts_with('.')).count();
        assert_eq!((hidden, left.len() - hidden), (0, pools), "{at}: {left:?}");
    }
    drop(held);
    let all = CleanOptions { names: vec![name.into()], ..CleanOptions::default() };
    match forebay_space::clean(&all) {
        Ok(_) => {}
        Err(e) if e.kind() == Kind::PeerMissing => {}
        // A channel of files that cannot be read is not one for `clean`.
        Err(_) if state == "damaged" => std::fs::remove_dir_all(name).unwrap(),
        Err(e) => panic!("{at}: {e}"),
    }
    if place.medium != Medium::Lower || state != "damaged" {
        assert_eq!(leftovers(place, name), Vec::<String>::new(), "{at}");
    } else {
        let lower = place.disk.path().join("lower");
        std::fs::remove_dir_all(&lower).and_then(|()| std::fs::create_dir(&lower)).unwrap();
    }
    outcome
}

/// The table as the document has it: one line for each state.
fn rendered(cells: &BTreeMap<(usize, usize), String>) -> String {
    let heads: Vec<&str> = WAYS.iter().map(|(_, head)| *head).collect();
    let mut text = format!("| state of the space | {} |\n", heads.join(" | "));
    text.push_str(&format!("|---|{}\n", "---|".repeat(WAYS.len())));
    for (row, (_, head)) in STATES.iter().enumerate() {
        let line: Vec<&str> = (0..WAYS.len()).map(|way| cells[&(row, way)].as_str()).collect();
        text.push_str(&format!("| {head} | {} |\n", line.join(" | ")));
    }
    text
}

fn table(medium: Medium) {
    let place = Place::new(medium);
    let mut cells = BTreeMap::new();
    for (row, (state, _)) in STATES.iter().enumerate() {
        for (column, (way, _)) in WAYS.iter().enumerate() {
            let name = place.name(&format!("{state}-{way}"));
            cells.insert((row, column), cell(&place, state, way, &name));
        }
    }
    let seen = rendered(&cells);
    let document = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    assert!(document.contains(&seen), "the table of {DOCUMENT} is not what was seen:\n{seen}");
}

#[test]
fn every_cell_of_the_table_in_memory() {
    table(Medium::Memory);
}

#[test]
fn every_cell_of_the_table_in_a_file() {
    table(Medium::File);
}

#[test]
fn every_cell_of_the_table_past_the_page_cache() {
    let dir = tempfile::tempdir().unwrap();
    if !forebay_tier::device::direct::is_possible(dir.path()) {
        skips::skipped(
            "opening::every_cell_of_the_table_past_the_page_cache",
            "no direct I/O in the temporary directory",
        );
        return;
    }
    table(Medium::Direct);
}

#[test]
fn every_cell_of_the_table_with_a_lower_pool() {
    table(Medium::Lower);
}

#[test]
fn every_cell_of_the_table_in_files() {
    table(Medium::Files);
}

/// The reader of a second run that comes before its writer gets what that writes, and says meanwhile why it waits.
fn second_run(mode: &str, first: u64) {
    for medium in [Medium::Memory, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("again");
        assert_eq!(place.play("write", &name, "first").0, "done");
        std::thread::sleep(Duration::from_millis(40));
        let mut reader = place.start("await", &name, "second");
        let mut errors = BufReader::new(reader.stderr.take().unwrap()).lines();
        let said = errors.find_map(|line| line.ok().filter(|line| line.starts_with("forebay: "))).unwrap();
        assert!(said.contains("had finished before this reader came"), "{said}");
        assert!(said.contains("finished=true"), "{said}");
        let outcome = place.play(mode, &name, "second").0;
        assert_eq!(outcome, if mode == "w" { "starts" } else { "goes on" });
        assert_eq!(answer(&mut reader).unwrap(), format!("read version {first}"));
        assert!(reader.wait().unwrap().success());
        assert_eq!(errors.filter(|line| line.as_ref().is_ok_and(|l| l.starts_with("forebay: "))).count(), 0);
        forebay_space::destroy(&name).unwrap();
    }
}

#[test]
fn a_reader_that_is_first_in_a_second_run_reads_what_that_run_writes() {
    // A version 0 of the second run; what was there has two versions.
    second_run("w", 0);
}

/// As `writer & reader` in a shell: the writer may have ended before the reader's program has come to its `open`.
#[test]
fn a_reader_that_was_started_with_its_writer_and_is_late_reads_all_the_same() {
    for medium in [Medium::Memory, Medium::File, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("late");
        let mut reader = place.start("late", &name, "second");
        // The kernel tells when a process began to a hundredth of a second.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(place.play("write", &name, "first").0, "done");
        assert_eq!(answer(&mut reader).as_deref(), Some("reads"));
        assert!(reader.wait().unwrap().success());
        forebay_space::destroy(&name).unwrap();
    }
}

#[test]
fn a_reader_that_is_first_in_a_run_that_goes_on_reads_from_the_start() {
    second_run("a", 0);
}

#[test]
fn ranks_of_one_launch_replace_a_space_once() {
    const RANKS: u32 = 6;
    for medium in [Medium::Memory, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("ranks");
        for _ in 0..5 {
            let start = std::sync::Barrier::new(RANKS as usize);
            let uuids: Vec<String> = std::thread::scope(|scope| {
                let rank = |rank| {
                    let (start, name, options) = (&start, &name, place.options());
                    scope.spawn(move || {
                        start.wait();
                        let options = OpenOptions { rank: Some(rank), size: Some(RANKS), ..options };
                        let mut w = Writer::open(name, &options).unwrap();
                        assert_eq!(put(&mut w).unwrap(), 0);
                        let uuid = forebay_space::inspect(name).unwrap().uuid;
                        w.close().unwrap();
                        uuid
                    })
                };
                let ranks: Vec<_> = (0..RANKS).map(rank).collect();
                ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
            });
            assert!(uuids.iter().all(|uuid| *uuid == uuids[0]), "{uuids:?}");
            assert_eq!(look(&name, &place.options()), "reads");
        }
        forebay_space::destroy(&name).unwrap();
        assert_eq!(leftovers(&place, &name), Vec::<String>::new());
    }
}

#[test]
fn a_replacement_that_cannot_be_made_leaves_what_is_there() {
    for medium in [Medium::Memory, Medium::File, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("kept");
        assert_eq!(place.play("write", &name, "first").0, "done");
        let before = uuid_of(&name);
        let wrong = [
            OpenOptions { quota_bytes: Some(1 << 60), ..place.options() },
            OpenOptions { checksum: Some(false), horizon: Some(Horizon::Epoch), ..place.options() },
            OpenOptions {
                spill: vec![SpillTier { path: "/nowhere/at/all".into(), quota: None, tier: None }],
                ..place.options()
            },
        ];
        for options in wrong {
            let is_of_files = medium == Medium::Files && options.checksum.is_none();
            if !is_of_files {
                assert!(Writer::open(&name, &options).is_err());
            }
            assert_eq!(uuid_of(&name), before);
            assert_eq!(look(&name, &place.options()), "reads");
            assert_eq!(leftovers(&place, &name), Vec::<String>::new());
        }
        forebay_space::destroy(&name).unwrap();
    }
}

/// Kills at any moment: the old space is whole, or the new one, or the name is free; the next open leaves nothing else.
#[test]
fn a_writer_that_is_killed_while_it_replaces_a_space_leaves_no_mixture() {
    let (mut old, mut new, mut free) = (0, 0, 0);
    for medium in [Medium::Memory, Medium::File, Medium::Lower, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("killed");
        for round in 0..25 {
            let begin = Instant::now();
            assert_eq!(place.play("write", &name, "first").0, "done");
            let whole_run = begin.elapsed();
            let before = uuid_of(&name).unwrap();
            let mut child = place.start("w", &name, "second");
            // From before it opens the space to after it has written, in no order; however slow the machine is.
            std::thread::sleep(whole_run * (round * 7 % 25) / 20);
            child.kill().unwrap();
            child.wait().unwrap();
            match uuid_of(&name) {
                Some(uuid) if uuid == before => {
                    old += 1;
                    let info = forebay_space::inspect(&name).unwrap();
                    assert_eq!(
                        (info.versions_complete, look(&name, &place.options())),
                        (VERSIONS, "reads".into())
                    );
                }
                Some(_) => {
                    new += 1;
                    let info = forebay_space::inspect(&name).unwrap();
                    assert!(info.versions_complete < VERSIONS);
                }
                None => free += 1,
            }
            // What is there now is dead or finished; the next run is told to say what it means, and then starts.
            assert!(["starts", "`NameInUse`"].contains(&place.play("w", &name, "third").0.as_str()));
            assert_eq!(place.play("replace", &name, "third").0, "starts");
            let pools = usize::from(medium == Medium::Lower);
            assert_eq!(leftovers(&place, &name).len(), pools, "{:?}", leftovers(&place, &name));
            forebay_space::destroy(&name).unwrap();
        }
    }
    println!(
        "killed while replacing: {old} times the old one, {new} times the new one, {free} times a free name"
    );
    assert!(old > 0 && new > 0, "{old} {new} {free}");
}

/// A program that is run again starts its reader first: it waits for what is to come, and reads nothing of the old.
#[test]
fn a_group_that_has_read_all_of_a_finished_space_waits_for_the_next_writers() {
    for medium in [Medium::Memory, Medium::File] {
        let place = Place::new(medium);
        let name = place.name("again");
        assert_eq!(place.play("write", &name, "first").0, "done");
        assert_eq!(place.play("read-group", &name, "first").0, "done");
        assert_eq!(place.play("group", &name, "second").0, "waits");
        forebay_space::destroy(&name).unwrap();
    }
}

/// Without a run or a job that tells launches apart, a process that began later is not taken for a late rank.
#[test]
fn ranks_of_two_launches_do_not_write_one_space() {
    for medium in [Medium::Memory, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("late");
        assert_eq!(place.play("write-of-two", &name, "").0, "done");
        // The kernel tells when a process began to a hundredth of a second.
        std::thread::sleep(Duration::from_millis(200));
        let before = uuid_of(&name);
        // It may be one all the same: what the other rank wrote stays.
        let told = place.play("w-of-two", &name, "").0;
        assert!(told.contains("NameInUse"), "{told}");
        assert_eq!(uuid_of(&name), before);
        assert_eq!(place.play("replace-of-two", &name, "").0, "joins");
        assert_ne!(uuid_of(&name), before);
        let same = place.name("same");
        assert_eq!(place.play("write-of-two", &same, "first").0, "done");
        let before = uuid_of(&same);
        assert_eq!(place.play("w-of-two", &same, "first").0, "joins");
        assert_eq!(uuid_of(&same), before);
    }
}

#[test]
fn a_reader_of_a_dead_space_is_told_that_it_was_replaced() {
    let place = Place::new(Medium::Memory);
    let name = place.name("replaced");
    drop(place.hold("write-hold", &name, "first"));
    let viz = OpenOptions { component: Some("viz".into()), finished: true, ..place.options() };
    let mut r = Reader::open(&name, &viz).unwrap();
    for version in 0..VERSIONS {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        r.end_step().unwrap();
    }
    assert_eq!(r.begin_step(None).unwrap_err().kind(), Kind::ProducerDied);
    let _w = Writer::open(&name, &OpenOptions { replace: true, ..place.options() }).unwrap();
    let error = r.begin_step(None).unwrap_err();
    assert_eq!(error.kind(), Kind::PeerMissing, "{error}");
}

#[test]
fn errors_say_what_to_do() {
    for medium in [Medium::Memory, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("said");
        let refused = |options: &OpenOptions| Writer::open(&name, options).map(drop).unwrap_err().to_string();
        drop(place.hold("write-hold", &name, "first"));
        let text = refused(&place.options());
        assert!(text.contains("mode=\"a\"") && text.contains("replace=true"), "{text}");
        assert!(text.contains("versions 0 to 1"), "{text}");
        let mut w = Writer::open(&name, &OpenOptions { replace: true, ..place.options() }).unwrap();
        assert_eq!(put(&mut w).unwrap(), 0);
        let text = refused(&place.options());
        assert!(text.contains("this process has") || medium == Medium::Files, "{text}");
        // A version is put once, and a restart that says "a" skips what is complete.
        let twice = w.begin_version(0).unwrap_err();
        assert_eq!(twice.kind(), Kind::VersionExists);
        assert!(
            twice.to_string().contains("mode=\"a\"") && twice.to_string().contains("mode=\"w\""),
            "{twice}"
        );
        w.close().unwrap();
        let text = refused(&OpenOptions { mode: Mode::Exclusive, ..place.options() });
        assert!(text.contains("mode=\"w\"") && text.contains("mode=\"a\""), "{text}");
        let mut again = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..place.options() }).unwrap();
        assert!(!again.begin_version(0).unwrap());
        again.end_step().unwrap();
        assert_eq!(put(&mut again).unwrap(), 1);
        again.close().unwrap();
        // Only a space that is started over is replaced.
        let both = OpenOptions { mode: Mode::Append, replace: true, ..place.options() };
        assert!(refused(&both).contains("use replace with mode=\"w\""), "{}", refused(&both));
        forebay_space::destroy(&name).unwrap();
    }
}

/// An option that is ignored would be worse than one that is refused.
#[test]
fn a_writer_asks_for_what_the_space_was_made_with() {
    for medium in [Medium::Memory, Medium::Lower, Medium::Files] {
        let place = Place::new(medium);
        let name = place.name("agreed");
        let made = OpenOptions { quota_bytes: Some(8 << 20), ..place.options() };
        let made = match medium {
            Medium::Files => made,
            _ => OpenOptions { segment_bytes: Some(1 << 20), ..made },
        };
        let lower = |quota: u64| {
            let path = place.disk.path().join("lower");
            vec![SpillTier { path, quota: Some(quota), tier: None }]
        };
        let mut others = vec![OpenOptions { quota_bytes: Some(16 << 20), ..made.clone() }];
        if medium != Medium::Files {
            others.push(OpenOptions { segment_bytes: Some(2 << 20), ..made.clone() });
            others.push(OpenOptions { when_full: Some(WhenFull::DropOldest), ..made.clone() });
            others.push(OpenOptions { spill: lower(16 << 20), ..made.clone() });
        }
        let mut first = Writer::open(&name, &OpenOptions { size: Some(2), ..made.clone() }).unwrap();
        for other in &others {
            let joining = OpenOptions { rank: Some(1), size: Some(2), ..other.clone() };
            let error = Writer::open(&name, &joining).map(drop).unwrap_err();
            assert_eq!(error.kind(), Kind::OptionMismatch, "{error}");
            assert!(error.to_string().contains("asked_for=") && error.to_string().contains("is="), "{error}");
        }
        // The same, or nothing.
        let mut second =
            Writer::open(&name, &OpenOptions { rank: Some(1), size: Some(2), ..made.clone() }).unwrap();
        put(&mut first).unwrap();
        put(&mut second).unwrap();
        first.close().unwrap();
        second.close().unwrap();
        for other in others {
            let error =
                Writer::open(&name, &OpenOptions { mode: Mode::Append, ..other }).map(drop).unwrap_err();
            assert_eq!(error.kind(), Kind::OptionMismatch, "{error}");
        }
        let silent = OpenOptions { quota_bytes: None, segment_bytes: None, spill: Vec::new(), ..made };
        let mut again = Writer::open(&name, &OpenOptions { mode: Mode::Append, ..silent }).unwrap();
        assert_eq!(put(&mut again).unwrap(), 1);
        again.close().unwrap();
        forebay_space::destroy(&name).unwrap();
    }
}

/// The part of the child of [`a_full_memory_leaves_no_space_that_cannot_be_opened`], on a tmpfs of 1100 KiB.
#[test]
fn child_on_a_full_memory() {
    let Some(dir) = std::env::var_os("OPENING_FULL") else { return };
    let dir = PathBuf::from(dir);
    let name = dir.join("made").display().to_string();
    let options = OpenOptions { tier: Some(TierKind::Dram), quota_bytes: Some(256 << 10), ..ranked(0, 1) };
    let error = Writer::open(&name, &options).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::TierFull, "{error}");
    assert!(error.to_string().contains("made/control") && !error.to_string().contains(".new-"), "{error}");
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, Vec::<std::ffi::OsString>::new());
    // A space of before, whose shared state has no capacity left.
    let old = std::env::var("OPENING_NAME").unwrap();
    std::fs::write(dir.join("fill"), vec![1u8; 900 << 10]).unwrap();
    assert_eq!(forebay_space::inspect(&old).map(drop).unwrap_err().kind(), Kind::TierFull);
    let names = || -> Vec<_> {
        std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    assert_eq!(names(), ["fill"], "nothing of the shared state");
    let all = CleanOptions { names: vec![old.clone()], ..CleanOptions::default() };
    assert_eq!(forebay_space::clean(&all).unwrap().removed.len(), 1);
    assert!(!Path::new(&old).exists());
    // A channel of files has no capacity either, and leaves nothing; nor does what a killed process left of one.
    let mut rest = std::fs::File::create(dir.join("rest")).unwrap();
    while rest.write_all(&[1; 4096]).is_ok() {}
    let files = OpenOptions { channel: Mechanism::Files, ..ranked(0, 1) };
    assert_eq!(Writer::open("files", &files).map(drop).unwrap_err().kind(), Kind::TierFull);
    std::fs::create_dir(dir.join("half")).unwrap();
    std::fs::write(dir.join("half/members"), "").unwrap();
    for soft in [".soft-0-1", ".soft-0-2"] {
        std::fs::create_dir(dir.join(soft)).unwrap();
    }
    std::fs::write(dir.join(".soft-0-2/members"), "").unwrap();
    assert_eq!(forebay_space::clean(&CleanOptions::default()).unwrap().removed.len(), 3);
    assert!(names().iter().all(|name| ["fill", "rest"].contains(&name.as_str())), "{:?}", names());
    say("done");
}

/// Runs the test `child` of this binary with FOREBAY_DIR on a tmpfs of that size; where none can be mounted `what` is
/// skipped.
fn on_a_small_tmpfs(what: &str, size: &str, child: &str, name: &str) {
    let mount = tempfile::tempdir().unwrap();
    let options = format!("size={size},mode=700");
    let Some(mut run) = tmpfs::command_on(mount.path(), &options, &std::env::current_exe().unwrap()) else {
        return skips::skipped(what, "no right to mount a tmpfs in a namespace of our own");
    };
    run.args(["--exact", child, "--nocapture", "--test-threads=1"]);
    run.env("OPENING_FULL", mount.path()).env("FOREBAY_DIR", mount.path()).env("OPENING_NAME", name);
    let output = run.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("OPENING done"), "{text}");
}

#[test]
fn a_full_memory_leaves_no_space_that_cannot_be_opened() {
    let place = Place::new(Medium::File);
    let name = place.name("old");
    // Its shared state is elsewhere, and gone when the space is opened again.
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let written = place.command("write", &name, "first").env("FOREBAY_DIR", other.path()).output().unwrap();
    assert!(written.status.success());
    let what = "opening::a_full_memory_leaves_no_space_that_cannot_be_opened";
    on_a_small_tmpfs(what, "1100k", "opening::child_on_a_full_memory", &name);
}

/// The part of the child of [`a_space_that_cannot_be_made_replaces_none`], on a tmpfs of 2 MiB.
#[test]
fn child_that_replaces_in_a_full_memory() {
    let Some(dir) = std::env::var_os("OPENING_FULL") else { return };
    let name = PathBuf::from(dir).join("made").display().to_string();
    let options =
        OpenOptions { tier: Some(TierKind::Dram), quota_bytes: None, mode: Mode::Write, ..ranked(0, 1) };
    let mut w = Writer::open(&name, &options).unwrap();
    put(&mut w).unwrap();
    w.close().unwrap();
    let uuid = uuid_of(&name);
    let segment = OpenOptions { segment_bytes: Some(64 << 20), ..options.clone() };
    let tier = OpenOptions { tier: Some(TierKind::Direct), ..options.clone() };
    let ranks = OpenOptions { size: Some(64), ..options.clone() };
    let quota = OpenOptions { quota_bytes: Some(1 << 30), ..options.clone() };
    for other in [segment, tier, ranks, quota] {
        assert!(Writer::open(&name, &other).is_err(), "{other:?}");
        assert_eq!(uuid_of(&name), uuid, "{other:?}");
        assert_eq!(look(&name, &options), "reads");
    }
    // Both do not fit, and the new one does alone.
    let mut again = Writer::open(&name, &options).unwrap();
    put(&mut again).unwrap();
    again.close().unwrap();
    assert_ne!(uuid_of(&name), uuid);
    say("done");
}

#[test]
fn a_space_that_cannot_be_made_replaces_none() {
    let what = "opening::a_space_that_cannot_be_made_replaces_none";
    on_a_small_tmpfs(what, "2m", "opening::child_that_replaces_in_a_full_memory", "");
}

/// Puts something that is no regular file in the place of one.
fn misplace(path: &Path, what: &str) {
    let _ = std::fs::remove_file(path);
    match what {
        "directory" => std::fs::create_dir(path).unwrap(),
        // Its end never comes, and a FIFO is opened when another process opens it, too.
        "endless" => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        "fifo" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        _ => std::fs::write(path, b"\xff\xfe{}").unwrap(),
    }
}

/// The error of what finds `what` in the place of `file`.
fn check_damaged(error: &forebay_space::Error, (file, what): (&str, &str)) {
    assert_eq!(error.kind(), Kind::Damaged, "{what} {file}: {error}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("forebay clean")), "{error}");
}

/// `forebay clean` of what has `what` in the place of `file`: that is removed only if it is a regular file.
fn clean_misplaced(name: &str, (file, what): (&str, &str)) {
    let all = CleanOptions { names: vec![name.into()], ..CleanOptions::default() };
    match forebay_space::clean(&all) {
        Ok(report) => assert!(what == "no text" && report.removed.len() == 1, "{what} {file}"),
        Err(e) => assert_eq!(e.kind(), Kind::NameInUse, "{what} {file}: {e}"),
    }
    let _ = std::fs::remove_dir_all(name);
}

#[test]
fn what_is_no_file_of_a_space_is_damage() {
    let files = ["control", "members", "lock", "tiers.json", "pool"];
    for (medium, file) in [Medium::Memory, Medium::Lower].into_iter().flat_map(|m| files.map(|f| (m, f))) {
        let place = Place::new(medium);
        for what in ["directory", "endless", "fifo", "no text"] {
            if (what == "no text" && file != "tiers.json") || (file == "pool" && what == "endless") {
                continue;
            }
            let name = place.name(what.split(' ').next().unwrap());
            let mut w = Writer::open(&name, &place.options()).unwrap();
            put(&mut w).unwrap();
            w.close().unwrap();
            misplace(&Path::new(&name).join(file), what);
            let opened = Reader::open(&name, &OpenOptions { finished: true, ..ranked(0, 1) }).map(drop);
            // A control segment is made anew in its place, and a FIFO carries locks as a file does.
            let serves =
                matches!((file, what), ("control", "endless" | "fifo") | ("members" | "lock", "fifo"));
            if serves {
                opened.unwrap();
                std::fs::remove_dir_all(&name).unwrap();
                continue;
            }
            let error = opened.unwrap_err();
            check_damaged(&error, (file, what));
            clean_misplaced(&name, (file, what));
        }
    }
}

#[test]
fn what_is_no_file_of_a_channel_is_damage() {
    let place = Place::new(Medium::Files);
    for (file, what) in ["stream.json", "members", "r0000.closed"]
        .into_iter()
        .flat_map(|file| ["directory", "endless", "fifo", "no text"].map(|what| (file, what)))
    {
        if file == "members" && ["fifo", "no text"].contains(&what) {
            continue;
        }
        let name = place.name("files");
        let mut w = Writer::open(&name, &place.options()).unwrap();
        put(&mut w).unwrap();
        w.close().unwrap();
        misplace(&Path::new(&name).join(file), what);
        let finished = OpenOptions { finished: true, ..place.options() };
        let append = OpenOptions { mode: Mode::Append, ..place.options() };
        let mut opened = vec![Writer::open(&name, &append).map(drop)];
        if file == "r0000.closed" {
            // Whether the writers ended is no question of these two.
            drop(Reader::open(&name, &finished).unwrap());
            forebay_space::verify(&name).unwrap();
            opened.push(forebay_space::inspect(&name).map(drop));
        } else {
            opened.push(Reader::open(&name, &finished).map(drop));
            opened.push(forebay_space::verify(&name).map(drop));
        }
        for error in opened.into_iter().map(Result::unwrap_err) {
            check_damaged(&error, (file, what));
        }
        clean_misplaced(&name, (file, what));
    }
}

#[test]
fn a_name_that_is_not_a_directory_is_no_space() {
    let place = Place::new(Medium::File);
    for what in ["fifo", "no text"] {
        let name = place.name("file");
        misplace(Path::new(&name), what);
        let finished = OpenOptions { finished: true, ..place.options() };
        for error in [
            Reader::open(&name, &finished).map(drop).unwrap_err(),
            Writer::open(&name, &place.options()).map(drop).unwrap_err(),
            forebay_space::verify(&name).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Damaged, "{what}: {error}");
            assert!(error.hint_text().is_some_and(|hint| hint.contains("another name")), "{error}");
        }
        let all = CleanOptions { names: vec![name.clone()], ..CleanOptions::default() };
        assert!(forebay_space::clean(&all).is_err());
        assert!(std::fs::symlink_metadata(&name).is_ok());
    }
}

/// A process that opens a space while another one replaces it makes shared state for a pool that is gone.
#[test]
fn processes_that_replace_one_space_leave_no_shared_state() {
    for medium in [Medium::Memory, Medium::File] {
        let place = Place::new(medium);
        let name = place.name("contested");
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let start = || place.command("replaces", &name, "").env("FOREBAY_DIR", root.path()).spawn().unwrap();
        let cleaner = place.command("cleans", &name, "").env("FOREBAY_DIR", root.path()).spawn();
        let mut cleaner = Held(cleaner.unwrap());
        assert_eq!(answer(&mut cleaner.0).as_deref(), Some("ready"));
        let mut both = [start(), start()];
        for child in &mut both {
            let said = answer(child);
            let mut errors = String::new();
            child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            assert_eq!(said.as_deref(), Some("done"), "{errors}");
            assert!(child.wait().unwrap().success());
        }
        let count = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
        // That of the one space that is left.
        assert_eq!(count(root.path()), usize::from(medium == Medium::File), "{}", medium.word());
        assert_eq!(leftovers(&place, &name), Vec::<String>::new());
        std::fs::remove_dir_all(&name).unwrap();
    }
}

/// In memory the control segment alone holds the cursors: what becomes of the lock file does not matter to them.
#[test]
fn a_damaged_lock_file_loses_no_cursor() {
    for content in [None, Some(""), Some("{")] {
        let place = Place::new(Medium::Memory);
        let name = place.name("held");
        let sim = OpenOptions { readers: vec![("viz".into(), 1)], retention: None, ..place.options() };
        let mut w = Writer::open(&name, &sim).unwrap();
        (0..3).for_each(|version| assert_eq!(put(&mut w).unwrap(), version));
        let viz = OpenOptions { group: Some("viz".into()), finished: true, ..ranked(0, 1) };
        let mut r = Reader::open(&name, &viz).unwrap();
        assert_eq!(r.begin_step(None).unwrap(), Some(0));
        r.end_step().unwrap();
        r.close().unwrap();
        w.close().unwrap();
        let lock = Path::new(&name).join("lock");
        match content {
            Some(content) => std::fs::write(lock, content).unwrap(),
            None => std::fs::remove_file(lock).unwrap(),
        }
        let mut r = Reader::open(&name, &viz).unwrap();
        assert_eq!(r.begin_step(None).unwrap(), Some(1), "{content:?}");
        r.end_step().unwrap();
        r.close().unwrap();
        std::fs::remove_dir_all(&name).unwrap();
    }
}

/// More ranks or reader groups than a space has places for: nothing is made for that, and nothing replaced.
#[test]
fn too_many_of_anything_is_refused_before_the_old_space_goes() {
    let root = Root::new();
    let name = root.name("kept");
    let opening = OpenOptions { mode: Mode::Write, retention: Some(Retention::Forever), ..options() };
    let mut w = Writer::open(&name, &opening).unwrap();
    for version in 0..3u64 {
        w.begin_step().unwrap();
        w.put_array("T", &[1], &[0], &[1], &[version]).unwrap();
        w.end_step().unwrap();
    }
    w.close().unwrap();
    let groups = |sizes: &[u32]| -> Vec<(String, u32)> {
        sizes.iter().enumerate().map(|(i, size)| (format!("g{i}"), *size)).collect()
    };
    let too_many = [
        OpenOptions { readers: groups(&[1025]), ..opening.clone() },
        OpenOptions { readers: groups(&[1; 65]), ..opening.clone() },
        OpenOptions { readers: groups(&[1024; 9]), ..opening.clone() },
        OpenOptions { rank: Some(0), size: Some(4097), ..opening.clone() },
    ];
    for options in &too_many {
        assert_eq!(Writer::open(&name, options).map(drop).unwrap_err().kind(), Kind::TooMany);
        assert_eq!(Writer::open(&root.name("new"), options).map(drop).unwrap_err().kind(), Kind::TooMany);
    }
    let twice = vec![("viz".to_owned(), 1), ("viz".to_owned(), 2)];
    let twice = Writer::open(&name, &OpenOptions { readers: twice, ..opening.clone() }).map(drop);
    assert_eq!(twice.unwrap_err().kind(), Kind::Usage);
    assert!(!std::path::Path::new(&root.name("new")).exists(), "an open that is refused makes nothing");
    let looks = OpenOptions { observer: true, ..OpenOptions::default() };
    assert_eq!(Reader::open(&name, &looks).unwrap().versions().unwrap(), 0..3);
}

#[test]
fn a_name_holds_no_zero_byte() {
    let root = Root::new();
    for name in ["viz\0b", "\0"] {
        let readers = OpenOptions { readers: vec![(name.into(), 1)], ..options() };
        let component = OpenOptions { component: Some(name.into()), ..options() };
        for options in [readers, component] {
            let refused = Writer::open(&root.name("x"), &options).map(drop).unwrap_err();
            assert_eq!(refused.kind(), Kind::Usage, "{refused}");
        }
    }
}
