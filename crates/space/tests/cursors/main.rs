//! Readers of a declared group, killed with SIGKILL at any moment and started again: no version is missed silently, and
//! none is read twice.
//!
//! A round is one space, in memory or on a disk at a durable horizon, with a quota of a few versions, a writer in this
//! process and one or two reader ranks, each a process of its own. A reader dies a random time after its start, or
//! closes after some versions, and comes again, until the deaths of the round have happened and the stream has come to
//! its end. Each process notes, with one write a line, when it opened, that a version was begun, that it calls
//! `end_step`, and that `end_step` has returned; `judge` says what the notes of all of them have to be, and no version
//! is ever said to be missed.
//!
//! SPACE_TEST_KILLS sets the number of kills, SPACE_TEST_SEED their seed.

mod judge;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fastrand::Rng;
use forebay_space::{Horizon, OpenOptions, Reader, TierKind, Writer};
use judge::{judge, Life, Note, Noted, Verdict};

const ROLE: &str = "SPACE_TEST_READER";
const KILLS: u64 = 48;
/// Kills of a round: a space of its own each.
const KILLS_OF_A_ROUND: u64 = 12;
/// A reader is killed in this time after its start, which takes some milliseconds.
const LIFE_US: u64 = 40_000;
const ELEMENTS: usize = 2000;
const TIMEOUT: Duration = Duration::from_secs(60);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Nanoseconds of the clock that all processes of a node have in common.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn options(rank: u32, size: u32) -> OpenOptions {
    OpenOptions {
        rank: Some(rank),
        size: Some(size),
        component: Some("viz".into()),
        timeout: TIMEOUT,
        ..OpenOptions::default()
    }
}

/// A child: reads until the end of the stream, closes after some versions, or is killed.
#[test]
fn child() {
    let Ok(words) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = words.splitn(6, ' ').collect();
    let number = |i: usize| words[i].parse::<u64>().expect("a number");
    let (rank, size, steps, pause_us) = (number(0) as u32, number(1) as u32, number(2), number(3));
    let (name, notes) = words[5].split_once(' ').expect("a name and a file");
    let mut notes = std::fs::OpenOptions::new().append(true).create(true).open(notes).expect("the notes");
    let mut note = |note: Note| {
        notes.write_all(Noted { at_ns: now_ns(), note }.line().as_bytes()).expect("noted");
    };
    let options = OpenOptions { finished: words[4] == "true", ..options(rank, size) };
    let mut r = Reader::open(name, &options).expect("opened");
    note(Note::Opened);
    for _ in 0..steps {
        let Some(version) = r.begin_step(None).expect("a version or the end") else {
            note(Note::Over);
            break;
        };
        note(Note::Begun(version));
        assert_eq!(r.missed(), 0, "before version {version}");
        let found = r.get_array::<u64>("v", None).expect("whole");
        assert!(found.len() == ELEMENTS && found.iter().all(|v| *v == version), "version {version}");
        std::thread::sleep(Duration::from_micros(pause_us));
        note(Note::Ends(version));
        r.end_step().expect("ended");
        note(Note::Ended(version));
    }
    note(Note::Closes);
    r.close().expect("closed");
    std::process::exit(0);
}

#[derive(Default)]
struct Rank {
    child: Option<Child>,
    /// When it is killed.
    dies: Option<Instant>,
    /// The notes of its process.
    notes: PathBuf,
    /// Its processes before.
    lives: Vec<Life>,
    is_over: bool,
}

impl Rank {
    /// Its process is gone.
    fn end(&mut self, killed_ns: Option<u64>) {
        self.child = None;
        let text = match std::fs::read_to_string(&self.notes) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.expect("readable"),
        };
        self.lives.push(Life::of_text(&text, killed_ns));
    }
}

#[derive(Default, Debug)]
struct Tally {
    kills: u64,
    closed: u64,
    verdict: Verdict,
}

struct Round<'a> {
    name: String,
    dir: &'a Path,
    size: u32,
    random: Rng,
    kills_left: u64,
}

impl Round<'_> {
    /// `finished`: whether the rank has ended all versions, though it was not told the end: it would wait for other
    /// writers if these have ended.
    fn start(&mut self, rank: u32, notes: &Path, finished: bool) -> (Child, Option<Instant>) {
        let random = &mut self.random;
        let dies = random.u8(..100) < 85 && self.kills_left > 0;
        let steps = if dies || self.kills_left == 0 { u64::MAX } else { random.u64(1..20) };
        let pause_us = *[0, 0, 200, 1000].get(random.usize(..4)).expect("one of four");
        let life = Duration::from_micros(random.u64(..LIFE_US));
        let words =
            format!("{rank} {} {steps} {pause_us} {finished} {} {}", self.size, self.name, notes.display());
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, words)
            .stdout(Stdio::null())
            .spawn()
            .expect("a child");
        (child, dies.then(|| Instant::now() + life))
    }

    fn play(&mut self, tally: &mut Tally) {
        let mut ranks: Vec<Rank> = (0..self.size).map(|_| Rank::default()).collect();
        let (stop, next) = (AtomicBool::new(false), AtomicU64::new(0));
        let limit = Instant::now() + Duration::from_secs(300);
        let end = std::thread::scope(|scope| {
            let is_on_disk = !self.dir.starts_with("/dev/shm");
            let mut writer =
                Writer::open(&self.name, &writer_options(self.size, is_on_disk)).expect("a writer");
            let (stop, next) = (&stop, &next);
            let writing = scope.spawn(move || {
                while !stop.load(Relaxed) {
                    let version = writer.begin_step().expect("a step");
                    let data = vec![version; ELEMENTS];
                    writer.put_array("v", &[ELEMENTS as u64], &[0], &[ELEMENTS as u64], &data).expect("put");
                    // Before it is there for readers.
                    next.store(version + 1, SeqCst);
                    writer.end_step().expect("ended");
                }
                let end = writer.next_version();
                writer.close().expect("closed");
                end
            });
            while ranks.iter().any(|rank| !rank.is_over) {
                assert!(Instant::now() < limit, "the round hangs");
                for (i, rank) in ranks.iter_mut().enumerate() {
                    self.look_at(i as u32, rank, next.load(SeqCst), tally);
                }
                stop.store(self.kills_left == 0, Relaxed);
                std::thread::sleep(Duration::from_micros(200));
            }
            writing.join().expect("the writer")
        });
        let lives: Vec<Vec<Life>> = ranks.into_iter().map(|rank| rank.lives).collect();
        let verdict = judge(&lives, end);
        let sum = &mut tally.verdict;
        sum.read += verdict.read;
        sum.again += verdict.again;
        sum.together += verdict.together;
        sum.missed += verdict.missed;
        sum.twice += verdict.twice;
    }

    /// `next`: one more than the newest version that can be there.
    fn look_at(&mut self, number: u32, rank: &mut Rank, next: u64, tally: &mut Tally) {
        let Some(child) = &mut rank.child else {
            if !rank.is_over {
                rank.notes = self.dir.join(format!("notes-{number}-{}", rank.lives.len()));
                let has_all = rank.lives.iter().any(|life| life.may_have_ended(next));
                let (child, dies) = self.start(number, &rank.notes.clone(), has_all);
                (rank.child, rank.dies) = (Some(child), dies);
            }
            return;
        };
        if let Some(status) = child.try_wait().expect("a child") {
            assert!(status.success(), "a reader failed: {status}, {}", rank.notes.display());
            rank.end(None);
            rank.is_over = rank.lives.last().is_some_and(Life::is_over);
            tally.closed += u64::from(!rank.is_over);
        } else if rank.dies.is_some_and(|at| at <= Instant::now()) {
            rank.dies = None;
            if self.kills_left == 0 {
                return;
            }
            let killed_ns = now_ns();
            child.kill().expect("killed");
            child.wait().expect("gone");
            self.kills_left -= 1;
            tally.kills += 1;
            rank.end(Some(killed_ns));
        }
    }
}

fn writer_options(size: u32, is_on_disk: bool) -> OpenOptions {
    OpenOptions {
        component: Some("writer".into()),
        readers: vec![("viz".into(), size)],
        quota_bytes: Some(2 << 20),
        segment_bytes: Some(256 << 10),
        tier: Some(if is_on_disk { TierKind::File } else { TierKind::Dram }),
        horizon: Some(if is_on_disk { Horizon::Epoch } else { Horizon::None }),
        ..options(0, 1)
    }
}

#[test]
fn killed_readers_miss_nothing_and_read_nothing_twice() {
    let seed = number("SPACE_TEST_SEED").unwrap_or(0x0c05_0125);
    let kills = number("SPACE_TEST_KILLS").unwrap_or(KILLS);
    let rounds = kills.div_ceil(KILLS_OF_A_ROUND);
    let mut tally = Tally::default();
    for round in 0..rounds {
        let parent = if round % 3 == 2 { std::env::temp_dir() } else { "/dev/shm".into() };
        let dir = tempfile::Builder::new().prefix("forebay-test-").tempdir_in(parent).expect("a directory");
        let mut random = Rng::with_seed(seed ^ round << 32);
        let size = random.u32(1..=2);
        let mut played = Round {
            name: dir.path().join("killed").display().to_string(),
            dir: dir.path(),
            size,
            random,
            kills_left: KILLS_OF_A_ROUND.min(kills - round * KILLS_OF_A_ROUND),
        };
        played.play(&mut tally);
        assert!(!dir.path().join("killed").exists(), "it was read to its end");
    }
    println!("seed {seed:#x}: {tally:?}");
    assert_eq!(tally.kills, kills);
    assert_eq!((tally.verdict.missed, tally.verdict.twice), (0, 0), "{tally:?}");
    assert!(tally.verdict.read > kills, "{tally:?}");
}
