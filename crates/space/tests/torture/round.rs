//! One round: starts the processes, lets them die, starts them again, and looks at what is left.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::board::{Board, Slot};
use crate::cast::{Cast, Random};
use crate::roles::{self, Death, Place, EXIT_TYPED, PLACES};

/// Names the role of a child.
pub const ROLE: &str = "SPACE_TEST_ROLE";
const ROUND: &str = "SPACE_TEST_PLAY";
const ROOT: &str = "SPACE_TEST_ROOT";
const BOARD: &str = "SPACE_TEST_BOARD";

/// A round that takes longer hangs: its processes have deadlines far below.
const ROUND_LIMIT: Duration = Duration::from_secs(180);
/// When some ranks go on although one is missing, that one had not joined yet, and is started alone.
const MISSING: Duration = Duration::from_millis(300);
/// Deaths of a round.
const DEATHS_MAX: u64 = 5;

/// How often who died where, over all rounds.
#[derive(Default)]
pub struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    fn count(&self, what: String) {
        *self.0.lock().expect("not poisoned").entry(what).or_insert(0) += 1;
    }

    /// Whether each role died at each place at least once.
    pub fn is_varied(&self) -> bool {
        let counts = self.0.lock().expect("not poisoned");
        let each = ["writer", "reader"].map(|role| PLACES.map(|place| format!("{role} {place:?}")));
        each.iter().flatten().all(|what| counts.contains_key(what)) && counts.contains_key("all")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in self.0.lock().expect("not poisoned").iter() {
            write!(f, "{what}: {count}; ")?;
        }
        Ok(())
    }
}

/// Where the lower tier of the round's space lies, as its processes see it.
pub fn lower_dir() -> PathBuf {
    let board = std::env::var(BOARD).expect("it is set for every process of a round");
    Path::new(&board).with_file_name("lower")
}

/// In a child: plays its role, then ends the process.
pub fn play() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is set"));
    let words: Vec<u64> = variable(ROUND).split(' ').map(|w| w.parse().expect("a number")).collect();
    let cast = Cast::new(words[0], words[1], Path::new(&variable(ROOT)));
    let board = Board::open(Path::new(&variable(BOARD)));
    let place = if words[4] == 0 { Place::Never } else { PLACES[words[4] as usize - 1] };
    let death = Death { place, step: words[5], delay_ns: words[6] };
    match variable(ROLE).as_str() {
        "writer" => roles::writer(&cast, &board, words[2], death),
        "reader" => roles::reader(&cast, &board, words[2], words[3] == 1, death),
        "judge" => roles::judge(&cast, &board),
        "clean" => {
            let report = forebay_space::clean(&forebay_space::CleanOptions::default()).expect("clean");
            report.kept.iter().for_each(|kept| eprintln!("clean kept {}: {}", kept.name, kept.reason));
        }
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Writer(u64),
    Reader(u64),
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Writer(_) => "writer",
            Role::Reader(_) => "reader",
        }
    }
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    Killed,
    /// Told about somebody else's death.
    Told,
}

/// The place of one rank in the round, over all its lives.
struct Rank {
    role: Role,
    child: Option<(Child, Death)>,
    last: Option<End>,
    /// When the last life ended.
    since: Instant,
    /// Nobody kills it: it has to see everything.
    spared: bool,
}

struct Round<'a> {
    cast: Cast,
    board: Board,
    scratch: PathBuf,
    random: Random,
    ranks: Vec<Rank>,
    deaths_left: u64,
    /// When everybody is killed at once, if so.
    all_at: Option<Instant>,
    tally: &'a Tally,
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            if let Some((child, _)) = &mut rank.child {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Plays one round; an error says what was wrong.
pub fn play_round(seed: u64, number: u64, tally: &Tally) -> Result<(), String> {
    let temporary = |prefix: &str, parent: &Path| {
        tempfile::Builder::new().prefix(prefix).tempdir_in(parent).expect("a directory")
    };
    let root = temporary("forebay-test-", Path::new("/dev/shm"));
    let scratch = temporary("torture-", &std::env::temp_dir());
    let cast = Cast::new(seed, number, root.path());
    let lower = scratch.path().join("lower");
    std::fs::create_dir(&lower).expect("a directory");
    let mut random = Random::new(!seed, number);
    let rank = |role, spared| Rank { role, child: None, last: None, since: Instant::now(), spared };
    let writers = (0..cast.writers).map(|r| rank(Role::Writer(r), false));
    // One reader sees it through.
    let readers = (0..cast.readers()).map(|r| rank(Role::Reader(r), r == 0));
    let ranks = writers.chain(readers).collect();
    let all_at = random.percent(20).then(|| Instant::now() + Duration::from_micros(random.below(80_000)));
    let mut round = Round {
        board: Board::open(&scratch.path().join("board")),
        scratch: scratch.path().to_path_buf(),
        deaths_left: random.below(DEATHS_MAX + 1),
        cast,
        random,
        ranks,
        all_at,
        tally,
    };
    let played = round.play();
    played.map_err(|why| {
        let said = std::fs::read_to_string(round.scratch.join("said")).unwrap_or_default();
        let tail: Vec<&str> = said.lines().rev().take(20).collect();
        format!("{why}\n{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"))
    })
}

impl Round<'_> {
    fn play(&mut self) -> Result<(), String> {
        let limit = Instant::now() + ROUND_LIMIT;
        for i in 0..self.ranks.len() {
            self.start(i);
        }
        while !self.is_over() {
            if Instant::now() > limit {
                return Err(format!("it hangs: {}", self.state()));
            }
            self.kill_all_when_due();
            self.reap()?;
            self.revive_writers()?;
            self.revive_readers();
            std::thread::sleep(Duration::from_micros(500));
        }
        self.look_at_what_is_left()
    }

    fn state(&self) -> String {
        let rank = |r: &Rank| format!("{:?} {:?}", r.role, if r.child.is_some() { None } else { r.last });
        self.ranks.iter().map(rank).collect::<Vec<_>>().join(", ")
    }

    fn command(&self, role: &str, words: [u64; 5]) -> Command {
        let said = std::fs::OpenOptions::new().create(true).append(true).open(self.scratch.join("said"));
        let words: Vec<String> =
            [self.cast.seed, self.cast.round].iter().chain(&words).map(u64::to_string).collect();
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ROUND, words.join(" "))
            .env(ROOT, &self.cast.root)
            .env(BOARD, self.scratch.join("board"))
            .env("FOREBAY_DIR", &self.cast.root)
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(said.expect("a file for what they say"));
        command
    }

    /// Starts a life, which may carry its death.
    fn start(&mut self, i: usize) {
        let role = self.ranks[i].role;
        let spared = self.ranks[i].spared;
        let mut death = Death::NEVER;
        // The numbers are drawn in any case, so that one life does not change what the next one draws.
        let (may_die, place) = (self.random.percent(45), self.random.below(PLACES.len() as u64));
        let (step, scale) = (self.random.below(12), self.random.below(23));
        let delay_ns = self.random.below(1 << scale);
        if may_die && !spared && self.deaths_left > 0 {
            self.deaths_left -= 1;
            death = Death { place: PLACES[place as usize], step, delay_ns };
        }
        let place = if death.place == Place::Never { 0 } else { place + 1 };
        let index = match role {
            Role::Writer(rank) => rank,
            Role::Reader(reader) => reader,
        };
        let from_start = u64::from(spared && self.all_at.is_none());
        let mut command = self.command(role.name(), [index, from_start, place, death.step, death.delay_ns]);
        self.ranks[i].child = Some((command.spawn().expect("a child"), death));
    }

    fn kill_all_when_due(&mut self) {
        if self.all_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.all_at = None;
        self.tally.count("all".into());
        for rank in &mut self.ranks {
            if let Some((child, death)) = &mut rank.child {
                // From here on a SIGKILL needs no other explanation.
                death.place = PLACES[0];
                let _ = child.kill();
            }
            rank.spared = false;
        }
    }

    fn reap(&mut self) -> Result<(), String> {
        for rank in &mut self.ranks {
            let Some((child, death)) = &mut rank.child else { continue };
            let Some(status) = child.try_wait().expect("a child of ours") else { continue };
            let death = *death;
            rank.child = None;
            rank.since = Instant::now();
            let end = end_of(status, death).ok_or_else(|| format!("{:?} ended with {status}", rank.role))?;
            if end == End::Killed {
                self.tally.count(format!("{} {:?}", rank.role.name(), death.place));
            }
            if end == End::Told && matches!(rank.role, Role::Reader(_)) && rank.spared {
                return Err(format!("{:?} was refused, although it was never killed", rank.role));
            }
            rank.last = Some(end);
        }
        Ok(())
    }

    fn writers(&mut self) -> impl Iterator<Item = &mut Rank> {
        self.ranks.iter_mut().filter(|r| matches!(r.role, Role::Writer(_)))
    }

    fn is_over(&self) -> bool {
        self.ranks.iter().all(|r| r.child.is_none() && r.last == Some(End::Done))
    }

    /// Whether the stream has come to its end, as far as its writers are concerned.
    fn is_finished(&self) -> bool {
        match forebay_space::inspect(&self.cast.name()) {
            Ok(info) => info.state == "finished",
            Err(_) => {
                let told = (0..self.cast.readers()).any(|r| self.board.get(Slot::Ended(r)) > 0);
                let wrote = |r: &Rank| matches!(r.role, Role::Writer(_)) && r.last == Some(End::Done);
                told || self.ranks.iter().any(wrote)
            }
        }
    }

    fn revive_writers(&mut self) -> Result<(), String> {
        let running = self.writers().filter(|r| r.child.is_some()).count();
        let unfinished = self.writers().any(|r| r.child.is_none() && r.last != Some(End::Done));
        if !unfinished {
            return Ok(());
        }
        if running > 0 {
            // Those that run are told soon, except when the dead one had not come yet: then it comes now.
            let late = |r: &Rank| {
                let gone = r.child.is_none() && matches!(r.last, Some(End::Killed | End::Told));
                matches!(r.role, Role::Writer(_)) && gone && r.since.elapsed() > MISSING
            };
            let late: Vec<usize> = (0..self.ranks.len()).filter(|i| late(&self.ranks[*i])).collect();
            for i in late {
                self.start(i);
            }
            return Ok(());
        }
        self.judge()?;
        if self.is_finished() {
            self.writers().for_each(|r| r.last = Some(End::Done));
            return Ok(());
        }
        for i in 0..self.cast.writers as usize {
            self.start(i);
        }
        Ok(())
    }

    fn revive_readers(&mut self) {
        for i in self.cast.writers as usize..self.ranks.len() {
            let Rank { role: Role::Reader(reader), child: None, last, .. } = self.ranks[i] else { continue };
            if last == Some(End::Done) {
                continue;
            }
            let gone = !Path::new(&self.cast.name()).exists() && self.is_finished();
            if self.board.get(Slot::Ended(reader)) > 0 || gone {
                self.ranks[i].last = Some(End::Done);
            } else {
                self.start(i);
            }
        }
    }

    fn judge(&self) -> Result<(), String> {
        self.finish("judge")
    }

    fn finish(&self, role: &str) -> Result<(), String> {
        let status = self.command(role, [0; 5]).status().expect("a child");
        status.success().then_some(()).ok_or_else(|| format!("the {role} ended with {status}"))
    }

    /// A space that was read to its end goes by itself; what a killed process left goes with `clean`.
    fn look_at_what_is_left(&mut self) -> Result<(), String> {
        let left = || -> Vec<String> {
            let read = |dir: &Path| std::fs::read_dir(dir).expect("readable");
            let entries = read(&self.cast.root).chain(read(&self.scratch.join("lower")));
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
        };
        if !left().is_empty() {
            self.finish("clean")?;
        }
        if !left().is_empty() {
            return Err(format!("after everybody has gone there is still {}", left().join(", ")));
        }
        Ok(())
    }
}

fn end_of(status: ExitStatus, death: Death) -> Option<End> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Some(End::Done),
        (Some(EXIT_TYPED), _) => Some(End::Told),
        (_, Some(9)) if death.place != Place::Never => Some(End::Killed),
        _ => None,
    }
}
