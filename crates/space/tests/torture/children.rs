//! The processes of a round: how they are started, what they said, how they ended, and stops of some of them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use crate::board::Board;
use crate::caretakers;
use crate::cast::{numbers, Cast};
use crate::death::{Death, Place, MOVES};
use crate::roles::{self, EXIT_TYPED};

/// Names the role of a child.
pub const ROLE: &str = "SPACE_TEST_ROLE";
const PLAY: &str = "SPACE_TEST_PLAY";
const MEMORY: &str = "SPACE_TEST_MEMORY";
const SCRATCH: &str = "SPACE_TEST_SCRATCH";

/// Operations of the pools are delayed in a process that is to die while it moves a segment, so that it is seen there.
const SLOW: &str = "write:delay=200us@p0.3,word:delay=200us@p0.3,persist:delay=200us@p0.3";

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Writer(u64),
    /// Its number over all groups; whether reader 0 is not killed in this round.
    Reader(u64, bool),
    Observer,
    Keeper,
    /// Whether no other process has the space open.
    Drain(bool),
    /// Whether a process has the space open all the time.
    Clean(bool),
    /// Whether a cleaner has been at work before.
    Judge(bool),
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Writer(_) => "writer",
            Role::Reader(..) => "reader",
            Role::Observer => "observer",
            Role::Keeper => "keeper",
            Role::Drain(_) => "drain",
            Role::Clean(_) => "clean",
            Role::Judge(_) => "judge",
        }
    }

    fn words(self) -> [u64; 2] {
        match self {
            Role::Writer(rank) => [rank, 0],
            Role::Reader(reader, spares_first) => [reader, u64::from(spares_first)],
            Role::Drain(flag) | Role::Clean(flag) | Role::Judge(flag) => [u64::from(flag), 0],
            Role::Observer | Role::Keeper => [0, 0],
        }
    }
}

/// In a child: plays its role, then ends the process.
pub fn play() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is set"));
    let words: Vec<u64> = variable(PLAY).split(' ').map(|w| w.parse().expect("a number")).collect();
    let [seed, round, life, first, second] = words[..5] else { panic!("five numbers and a death") };
    let (memory, scratch) = (variable(MEMORY), variable(SCRATCH));
    let cast = Cast::new(seed, round, Path::new(&memory), Path::new(&scratch));
    let board = Board::open(&board_path(&cast));
    let death = Death::of_words(&words[5..]);
    let random = numbers(seed ^ life << 20, !round);
    match variable(ROLE).as_str() {
        "writer" => roles::writer(&cast, &board, first, death),
        "reader" => roles::reader(&cast, &board, first, second == 1, death),
        "observer" => caretakers::observer(&cast, random, death),
        "keeper" => caretakers::keeper(&cast, &board, random),
        "drain" => caretakers::drain(&cast, first == 1, death),
        "clean" => caretakers::clean(&cast, first == 1, death),
        "judge" => roles::judge(&cast, &board, first == 1),
        other => panic!("no role {other}"),
    }
    std::process::exit(0);
}

pub fn board_path(cast: &Cast) -> PathBuf {
    cast.scratch.join("board")
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    Killed,
    /// Told about another process's death.
    Told,
}

/// One life.
pub struct Life {
    pub role: Role,
    child: Child,
    /// Where it dies. A SIGKILL at any place needs no other explanation.
    death: Death,
    said: PathBuf,
    /// When it goes on, if it is stopped.
    stopped_until: Option<Instant>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Life {
    /// Starts the `number`-th process of a round.
    pub fn start(cast: &Cast, number: u64, role: Role, death: Death) -> Life {
        let said = cast.scratch.join(format!("said-{number}-{}", role.name()));
        let file = std::fs::File::create(&said).expect("a file for what it says");
        let words = [cast.seed, cast.round, number].into_iter().chain(role.words()).chain(death.words());
        let words: Vec<String> = words.map(|word| word.to_string()).collect();
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role.name())
            .env(PLAY, words.join(" "))
            .env(MEMORY, &cast.memory)
            .env(SCRATCH, &cast.scratch)
            .env("FOREBAY_DIR", cast.root())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(file);
        if MOVES.contains(&death.place) {
            command.env("FOREBAY_FAULT", format!("{SLOW},seed={number}"));
        }
        let child = command.spawn().expect("a child");
        Life { role, child, death, said, stopped_until: None }
    }

    /// How it ended, if it has. An error says what is wrong with that, and what the process said.
    pub fn reap(&mut self) -> Result<Option<(End, Place)>, String> {
        match self.child.try_wait().expect("a child of ours") {
            Some(status) => self.judged(status).map(Some),
            None => Ok(None),
        }
    }

    fn judged(&self, status: ExitStatus) -> Result<(End, Place), String> {
        let end = match (status.code(), status.signal()) {
            (Some(0), _) => End::Done,
            (Some(EXIT_TYPED), _) => End::Told,
            (_, Some(9)) if self.death.place != Place::Never => End::Killed,
            _ => return Err(format!("{:?} ended with {status}\n{}", self.role, self.said())),
        };
        Ok((end, self.death.place))
    }

    /// What it wrote to standard error, without the lines of the test runner.
    pub fn said(&self) -> String {
        let said = std::fs::read_to_string(&self.said).unwrap_or_default();
        format!("{}:\n{said}", self.said.file_name().unwrap_or_default().to_string_lossy())
    }

    /// Kills it now, and waits until it is gone.
    pub fn kill(&mut self) {
        self.death.place = Place::Open;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a pid");
        // It is a child that was not waited for: the pid is its own, although it may have ended.
        let _ = kill_process(pid, signal);
    }

    /// Stops it (SIGSTOP) for a time, unless it is stopped.
    pub fn stop(&mut self, time: Duration) -> bool {
        let stops = self.stopped_until.is_none();
        if stops {
            self.signal(Signal::STOP);
            self.stopped_until = Some(Instant::now() + time);
        }
        stops
    }

    /// Lets it go on (SIGCONT) when its time is over.
    pub fn go_on_when_due(&mut self) {
        if self.stopped_until.is_some_and(|until| Instant::now() >= until) {
            self.stopped_until = None;
            self.signal(Signal::CONT);
        }
    }
}
