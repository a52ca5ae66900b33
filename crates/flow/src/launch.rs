//! Starts ranks as processes, waits for them, ends them: all of one run, or none.
//!
//! Guarantees: every rank is the leader of a process group of its own; what is left in the group when the rank
//! ends is killed before the rank is reaped, so that no process id can be mistaken for a later one. When the
//! runner itself dies, even by SIGKILL, the kernel ends its ranks: each is started through
//! [`exec_rank`], which asks for that and then becomes the program. Standard output and error go straight to
//! files: nothing is lost when the runner dies, and no rank ever blocks on a pipe that is not read.
//! Not here: processes that leave their group (`setsid`) live on; which failure is reported (`run`).
//!
//! The kernel ties "the runner dies" to the *thread* that started the rank: a [`Ranks`] must be started by a
//! thread that lives as long as the run.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::record::monotonic_ns;
use crate::workflow::SET_BY_RUNNER;

/// Hidden verb of the command that calls [`exec_rank`].
pub const EXEC_RANK_VERB: &str = "exec-rank";

/// What a process is to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A rank of a component.
    Rank(u32),
    /// A launcher (`mpirun`, `srun`) that starts all ranks of a component.
    Launcher,
    /// Carries files of a component into its channel.
    FilesOut,
    /// Carries a channel's versions into files of a component.
    FilesIn,
    /// Connects this node with the other nodes of the run.
    Agent,
}

/// What starts the ranks of a component in a batch job, as one step of it. None of them binds anything: no launcher
/// knows of the channel between two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Slurm's `srun`.
    Srun,
    /// `flux run`.
    Flux,
    /// PALS's `mpiexec`, under PBS Pro.
    Mpiexec,
}

impl Launcher {
    /// The words before the program.
    pub fn words(self, ranks: u32) -> Vec<String> {
        let text = match self {
            Launcher::Srun => format!(
                "srun --ntasks={ranks} --overlap --overcommit --cpu-bind=none --mem-bind=none --export=ALL \
                 --kill-on-bad-exit=1 --label"
            ),
            Launcher::Flux => {
                format!("flux run --nodes=1 --ntasks={ranks} -o cpu-affinity=off --label-io")
            }
            Launcher::Mpiexec => format!("mpiexec -n {ranks} --cpu-bind none"),
        };
        text.split_whitespace().map(str::to_owned).collect()
    }
}

/// One process to start.
#[derive(Clone, Debug)]
pub struct RankCommand {
    /// Index of the component.
    pub component: usize,
    /// What it is.
    pub role: Role,
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Variables to set.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// File of standard output.
    pub out: PathBuf,
    /// File of standard error.
    pub err: PathBuf,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit status.
    pub code: Option<i32>,
    /// Signal.
    pub signal: Option<i32>,
    /// When, monotonic ns.
    pub at_ns: u64,
    /// The runner had asked it to end before.
    pub asked: bool,
}

impl Exit {
    /// Ended with status 0.
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// In words: `exit status 3`, `signal 9 (SIGKILL)`, `exit status 137 (128 + 9, SIGKILL)` as shells and launchers
    /// tell of a signal.
    pub fn in_words(&self) -> String {
        match (self.code, self.signal) {
            (Some(code @ 129..=159), _) => {
                format!("exit status {code} (128 + {}, {})", code - 128, signal_name(code - 128))
            }
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal} ({})", signal_name(signal)),
            (None, None) => "an unknown status".to_owned(),
        }
    }
}

/// One process that was started.
#[derive(Debug)]
pub struct Rank {
    /// What was started.
    pub started_as: RankCommand,
    /// Process id, which is the group's id as well.
    pub pid: u32,
    /// Start, monotonic ns.
    pub start_ns: u64,
    /// How it ended, once it did.
    pub exit: Option<Exit>,
    child: Child,
    asked: bool,
}

/// All processes of a run.
#[derive(Debug, Default)]
pub struct Ranks {
    /// In the order they were started.
    pub all: Vec<Rank>,
}

impl Ranks {
    /// Starts one more process. With `self_command` (the words that start this very binary) the kernel ends the
    /// process when the calling thread ends.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`] when the program cannot be executed, else from the operating system.
    pub fn start(&mut self, what: RankCommand, self_command: &[OsString]) -> Result<()> {
        let mut words: Vec<OsString> = Vec::new();
        if !self_command.is_empty() {
            words.extend(self_command.iter().cloned());
            words.extend([EXEC_RANK_VERB.into(), std::process::id().to_string().into(), "--".into()]);
        }
        words.extend(what.command.iter().cloned());
        let create =
            |path: &Path| File::create(path).map_err(|e| Error::io(format!("writing {}", path.display()), e));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(&what.cwd).process_group(0);
        command.stdout(create(&what.out)?).stderr(create(&what.err)?);
        // A helper learns by the end of its standard input that the component it serves has ended.
        let is_helper = matches!(what.role, Role::FilesOut | Role::FilesIn);
        command.stdin(if is_helper { Stdio::piped() } else { Stdio::null() });
        for name in inherited_settings().iter().chain(&outer_ranks()) {
            command.env_remove(name);
        }
        command.envs(what.env.iter().map(|(k, v)| (k, v)));
        let start_ns = monotonic_ns();
        let child = command.spawn().map_err(|e| {
            let program = words[0].to_string_lossy().into_owned();
            match e.kind() {
                std::io::ErrorKind::NotFound => {
                    Error::new(Kind::UnknownComponent, format!("cannot start {program}: {e}"))
                }
                _ => Error::io(format!("starting {program}"), e),
            }
        })?;
        self.all.push(Rank { pid: child.id(), started_as: what, start_ns, exit: None, child, asked: false });
        Ok(())
    }

    /// Notes who has ended since the last call; returns their indices.
    pub fn sweep(&mut self) -> Vec<usize> {
        let mut ended = Vec::new();
        for (index, rank) in self.all.iter_mut().enumerate() {
            if rank.exit.is_none() && rank.poll() {
                ended.push(index);
            }
        }
        ended
    }

    /// Whether all processes have ended.
    pub fn all_ended(&self) -> bool {
        self.all.iter().all(|rank| rank.exit.is_some())
    }

    /// Tells the helpers of a component that its files are complete.
    pub fn release_helpers(&mut self, component: usize) {
        for rank in self.all.iter_mut().filter(|r| r.started_as.component == component) {
            drop(rank.child.stdin.take());
        }
    }

    /// Ends everything: SIGTERM, up to `grace` for a clean end (less when `hurry` says so), then SIGKILL. Returns
    /// when all processes are gone.
    pub fn stop_all(&mut self, grace: Duration, hurry: &dyn Fn() -> bool, pause: &dyn Fn(Duration)) {
        let begin = Instant::now();
        self.signal_all(Signal::TERM);
        // A stopped process acts on SIGTERM only once it goes on.
        self.signal_all(Signal::CONT);
        while !self.all_ended() && begin.elapsed() < grace && !hurry() {
            self.sweep();
            if !self.all_ended() {
                pause(Duration::from_millis(50));
            }
        }
        self.signal_all(Signal::KILL);
        while !self.all_ended() {
            self.sweep();
            if !self.all_ended() {
                pause(Duration::from_millis(20));
            }
        }
    }

    fn signal_all(&mut self, signal: Signal) {
        for rank in self.all.iter_mut().filter(|r| r.exit.is_none()) {
            rank.asked = true;
            rank.signal_group(signal);
        }
    }
}

impl Drop for Ranks {
    /// An error between two starts leaves nothing behind.
    fn drop(&mut self) {
        if !self.all_ended() {
            self.stop_all(Duration::ZERO, &|| true, &std::thread::sleep);
        }
    }
}

impl Rank {
    /// Looks whether the process has ended; if so kills what is left of its group, then reaps it.
    fn poll(&mut self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return false };
        // NOWAIT leaves the dead process in the table, so that its id still names this group and no other.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let (code, signal) = match rustix::process::waitid(WaitId::Pid(pid), options) {
            Ok(None) | Err(rustix::io::Errno::INTR) => return false,
            Ok(Some(status)) => (status.exit_status(), status.terminating_signal()),
            Err(_) => (None, None),
        };
        let at_ns = monotonic_ns();
        self.signal_group(Signal::KILL);
        // Reaps; the status is known already.
        let _ = self.child.wait();
        self.exit = Some(Exit { code, signal, at_ns, asked: self.asked });
        true
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            // The group may be gone already: that is what we want.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }
}

/// Variables of an outer run that must not reach the ranks of this one.
fn inherited_settings() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names
        .filter(|name| {
            let text = name.to_string_lossy();
            let channel = text.starts_with("FOREBAY_CHANNEL_") && text != "FOREBAY_CHANNEL_KIND";
            channel || SET_BY_RUNNER.contains(&text.as_ref())
        })
        .collect()
}

/// Variables with which a launcher numbers the runner itself (`srun -n1 forebay run`): its ranks are not that one, and
/// an MPI program among them is none of that launcher's.
fn outer_ranks() -> Vec<OsString> {
    const NAMES: &[&str] = &[
        "PMI_RANK",
        "PMI_SIZE",
        "PMI_FD",
        "PMI_PORT",
        "PMI_LOCAL_RANK",
        "PMI_LOCAL_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "PALS_RANKID",
        "PALS_LOCAL_RANKID",
        "SLURM_PROCID",
        "SLURM_LOCALID",
        "SLURM_STEP_ID",
    ];
    const PREFIXES: &[&str] = &["OMPI_COMM_WORLD_", "PMIX_SERVER_URI", "FLUX_TASK_"];
    let numbers = |name: &OsString| {
        let text = name.to_string_lossy();
        NAMES.contains(&text.as_ref()) || PREFIXES.iter().any(|prefix| text.starts_with(prefix))
    };
    std::env::vars_os().map(|(name, _)| name).filter(numbers).collect()
}

/// Becomes the rank's program: the hidden verb `exec-rank RUNNER_PID -- PROGRAM ARGUMENTS…` of the command.
/// Asks the kernel to kill this process when the runner dies, then executes the program in its place. Returns
/// only on failure.
///
/// # Errors
/// [`Kind::Usage`] for other arguments, [`Kind::PeerMissing`] when the runner is dead already,
/// [`Kind::UnknownComponent`] when the program cannot be executed.
pub fn exec_rank(arguments: &[OsString]) -> Result<Infallible> {
    let [runner, dashes, program, rest @ ..] = arguments else {
        return Err(Error::new(Kind::Usage, "exec-rank is called by the runner: RUNNER_PID -- PROGRAM …"));
    };
    let runner: Option<i32> = runner.to_str().and_then(|text| text.parse().ok());
    let Some(runner) = runner.filter(|_| dashes == "--") else {
        return Err(Error::new(Kind::Usage, "exec-rank is called by the runner: RUNNER_PID -- PROGRAM …"));
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| Error::io("asking to end with the runner", e.into()))?;
    // The runner may have died before the line above took effect.
    if rustix::process::getppid().map(Pid::as_raw_nonzero).map(i32::from) != Some(runner) {
        return Err(Error::new(Kind::PeerMissing, "the runner has died").with("pid", runner));
    }
    let error = Command::new(program).args(rest).exec();
    Err(Error::new(Kind::UnknownComponent, format!("cannot start {}: {error}", program.to_string_lossy()))
        .caused_by(error))
}

/// `SIGKILL` of 9; a number when it has no common name.
pub fn signal_name(signal: i32) -> String {
    let name = match Signal::from_named_raw(signal) {
        Some(Signal::HUP) => "SIGHUP",
        Some(Signal::INT) => "SIGINT",
        Some(Signal::QUIT) => "SIGQUIT",
        Some(Signal::ILL) => "SIGILL",
        Some(Signal::TRAP) => "SIGTRAP",
        Some(Signal::ABORT) => "SIGABRT",
        Some(Signal::BUS) => "SIGBUS",
        Some(Signal::FPE) => "SIGFPE",
        Some(Signal::KILL) => "SIGKILL",
        Some(Signal::USR1) => "SIGUSR1",
        Some(Signal::SEGV) => "SIGSEGV",
        Some(Signal::USR2) => "SIGUSR2",
        Some(Signal::PIPE) => "SIGPIPE",
        Some(Signal::ALARM) => "SIGALRM",
        Some(Signal::TERM) => "SIGTERM",
        Some(Signal::XCPU) => "SIGXCPU",
        Some(Signal::XFSZ) => "SIGXFSZ",
        Some(Signal::SYS) => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}
