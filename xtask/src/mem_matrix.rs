//! `cargo xtask mem-matrix`: real programs run plain and under `forebay mem`, which must make no difference.
//!
//! Each row is a program with data that do not fit its budget. It runs plain and under `forebay mem`, as the user who
//! runs this and, for root, as uid 65534, too. Status, output, messages and the files that it writes must be the same,
//! byte for byte, or it must be refused before it begins. No process and no file may be left, and more than 32 MiB
//! above the budget may never be in memory. What is not installed is skipped and counted. `--small` has what takes
//! seconds and needs no installation: it is part of `make test-all`.

mod ground;
mod kills;
mod rows;
mod swap;
mod watch;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::ci::Run;
use crate::stages::title;
use crate::summary::Summary;
use crate::{Outcome, Stop};
use ground::Ground;
use rows::{Row, ROWS};
use watch::{how, Ended, Places};

const USAGE: &str = "\
usage: cargo xtask mem-matrix [--small] [--only NAME]... [--user root|nobody|both] [--kills N] [--seed N]
       cargo xtask mem-matrix --against-swap [--only NAME]...

  --small        rows that take seconds and need nothing installed
  --only NAME    this row, or those whose names begin so
  --user USER    root: as who runs this; nobody: as uid 65534; both (default)
  --kills N      instead: N runs that are killed at any time, which leave nothing
  --seed N       when and what is killed
  --against-swap instead: some programs beside themselves in a memory cgroup with a swap file, as root
  --built        take the command that is there";

/// Most memory above the budget: what the kernel engine may hold before a thread that allocates waits.
const ABOVE_MAX: u64 = 32 << 20;

const MIB: u64 = 1 << 20;

/// As whom a program runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum User {
    /// As who runs this.
    Own,
    /// As uid 65534.
    Nobody,
}

impl User {
    fn name(self) -> &'static str {
        match self {
            User::Own => "own",
            User::Nobody => "nobody",
        }
    }
}

#[derive(Default)]
struct Options {
    small: bool,
    only: Vec<String>,
    users: Vec<User>,
    kills: Option<u64>,
    seed: Option<u64>,
    against_swap: bool,
    built: bool,
}

/// Runs of a row before it is said that it exceeds its budget: on a busy machine a thread may come too late once.
const TRIES: usize = 3;

/// What came of one row as one user.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Same,
    /// With this message, before it began.
    Refused(String),
    /// With so many bytes in memory above the budget.
    Above(u64),
    Failed(String),
    Skipped(String),
}

/// A row that ran.
struct Line {
    name: String,
    user: User,
    verdict: Verdict,
    budget: u64,
    ended: Option<Ended>,
}

/// The task.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let options = read(arguments)?;
    ground::install_debian();
    let ground = Ground::new(root, options.built).map_err(Stop::Failed)?;
    let (mut summary, stand) = (Summary::default(), Matrix { root, ground });
    match options.kills {
        Some(times) => kills::run(&stand, times, options.seed, &options.users, &mut summary),
        None if options.against_swap => swap::run(&stand, &options.only, &mut summary),
        None => matrix(&stand, &options, &mut summary),
    }
    print!("\n{}", summary.print());
    match summary.failed {
        0 => Ok(()),
        _ => Err(Stop::Findings(Vec::new())),
    }
}

/// The small rows, as part of CI; the command is built.
pub fn stage(ci: &mut Run) {
    title("programs under forebay mem");
    match Ground::new(ci.root, true) {
        Ok(ground) => {
            let users = vec![User::Own, User::Nobody];
            let options = Options { small: true, users, ..Options::default() };
            matrix(&Matrix { root: ci.root, ground }, &options, &mut ci.summary);
        }
        Err(why) => ci.summary.fail(format!("programs under forebay mem: {why}")),
    }
}

fn read(arguments: &[&str]) -> Result<Options, Stop> {
    let usage = || Stop::Usage(USAGE.to_string());
    let both = vec![User::Own, User::Nobody];
    let mut options = Options { users: both, ..Options::default() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().copied().ok_or_else(usage);
        match *argument {
            "--built" => options.built = true,
            "--against-swap" => options.against_swap = true,
            "--small" => options.small = true,
            "--only" => options.only.push(value()?.to_string()),
            "--kills" => options.kills = Some(value()?.parse().map_err(|_| usage())?),
            "--seed" => options.seed = Some(value()?.parse().map_err(|_| usage())?),
            "--user" => {
                options.users = match value()? {
                    "root" => vec![User::Own],
                    "nobody" => vec![User::Nobody],
                    "both" => options.users,
                    _ => return Err(usage()),
                }
            }
            _ => return Err(usage()),
        }
    }
    let known = |name: &String| ROWS.iter().any(|row| row.name.starts_with(name.as_str()));
    match options.only.iter().find(|name| !known(name)) {
        Some(name) => Err(Stop::Usage(format!("no row begins with {name}\n\n{USAGE}"))),
        None => Ok(options),
    }
}

/// Rows as users.
fn matrix(matrix: &Matrix, options: &Options, summary: &mut Summary) {
    let wanted = |row: &&Row| {
        (row.small || !options.small)
            && (options.only.is_empty()
                || options.only.iter().any(|name| row.name.starts_with(name.as_str())))
    };
    let mut lines = Vec::new();
    for row in ROWS.iter().filter(wanted) {
        for user in &options.users {
            let line = matrix.line(row, *user);
            println!("{}", line.text());
            line.count(summary);
            lines.push(line);
        }
    }
    let is_refused = |line: &Line| matches!(line.verdict, Verdict::Refused(_));
    if !lines.is_empty() && lines.iter().all(is_refused) {
        summary.fail("programs under forebay mem: every one was refused".to_string());
    }
    let most = lines.iter().max_by_key(|line| line.above());
    if let Some(most) = most.filter(|line| line.above() > 0) {
        println!("most above a budget: {} MiB, {}", most.above() / MIB, most.name);
    }
}

impl Line {
    fn above(&self) -> u64 {
        self.ended.as_ref().map_or(0, |ended| ended.peak.window.saturating_sub(self.budget))
    }

    fn text(&self) -> String {
        let (word, why) = match &self.verdict {
            Verdict::Same => ("same", ""),
            Verdict::Refused(why) => ("refused", why.as_str()),
            Verdict::Above(_) => ("FAILED", "above the budget"),
            Verdict::Failed(why) => ("FAILED", why.as_str()),
            Verdict::Skipped(why) => ("skipped", why.as_str()),
        };
        let memory = self.ended.as_ref().map_or(String::new(), |ended| {
            format!(
                "{:4} MiB budget {:4} above {:5} outside {:6.1} s",
                self.budget / MIB,
                self.above() / MIB,
                ended.peak.outside / MIB,
                ended.seconds
            )
        });
        format!("{:<20}{:<8}{word:<9}{memory}  {why}", self.name, self.user.name()).trim_end().to_string()
    }

    fn count(&self, summary: &mut Summary) {
        let name = format!("{} as {}", self.name, self.user.name());
        match &self.verdict {
            Verdict::Skipped(why) => summary.skip(&name, why),
            Verdict::Refused(why) => summary.skip(&name, &format!("refused: {why}")),
            Verdict::Failed(why) => summary.stage(&name, Some(why.clone())),
            Verdict::Above(bytes) => {
                summary.stage(&name, Some(format!("{} MiB in memory above the budget", bytes / MIB)));
            }
            Verdict::Same => summary.stage(&name, None),
        }
    }
}

/// Numbers of runs: their processes are known by them.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A folder tree of files, with what they hold.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// See the file's head.
pub struct Matrix<'a> {
    root: &'a Path,
    ground: Ground,
}

impl Matrix<'_> {
    fn folder(&self, name: &str) -> PathBuf {
        self.ground.folder.join(name)
    }

    fn line(&self, row: &Row, user: User) -> Line {
        let mut tries = 0;
        let (verdict, ended) = loop {
            tries += 1;
            match self.runs(row, user) {
                Ok((Verdict::Above(_), _)) if tries < TRIES => {}
                Ok((verdict, ended)) => break (verdict, Some(ended)),
                Err(verdict) => break (verdict, None),
            }
        };
        Line { name: row.name.to_string(), user, verdict, budget: row.budget_mib * MIB, ended }
    }

    /// Runs a row plain and under `forebay mem`.
    fn runs(&self, row: &Row, user: User) -> Result<(Verdict, Ended), Verdict> {
        let command = (row.command)(&self.ground).map_err(Verdict::Skipped)?;
        self.probe(user, &command[0]).map_err(Verdict::Skipped)?;
        let limit = Duration::from_secs(row.limit_s);
        let (plain, wrote) = self.one(&command, user, limit).map_err(Verdict::Failed)?;
        if plain.status.is_none_or(|status| !status.success()) || !plain.left.is_empty() {
            let errors = String::from_utf8_lossy(&plain.errors);
            let why = errors.lines().last().unwrap_or_default();
            return Err(Verdict::Failed(format!("the plain run: {}: {why}", how(plain.status))));
        }
        let mut all = self.mem(row.budget_mib * MIB);
        all.extend(row.options.iter().map(|option| (*option).to_string()));
        all.push("--".to_string());
        all.extend(command);
        let (ended, written) = self.one(&all, user, limit).map_err(Verdict::Failed)?;
        let kept = std::fs::read_dir(self.folder("tier")).into_iter().flatten().count();
        let verdict = if kept > 0 {
            Verdict::Failed(format!("{kept} files are left on the tier"))
        } else {
            judge((&plain, &wrote), (&ended, &written), row.budget_mib * MIB)
        };
        Ok((verdict, ended))
    }

    /// The command before a program, but for `--`.
    fn mem(&self, budget: u64) -> Vec<String> {
        let tier = self.folder("tier").display().to_string();
        let words = ["mem", "--dram", &budget.to_string(), "--tier", &tier].map(str::to_string);
        [vec![self.ground.forebay().display().to_string()], words.to_vec()].concat()
    }

    /// Whether a user can run a program.
    fn probe(&self, user: User, program: &str) -> Result<(), String> {
        let mut command = self.launcher(user);
        command.arg("--probe").arg("--").arg(&self.ground.folder);
        if program.starts_with('/') {
            command.arg(program);
        }
        let output = command.output().map_err(|e| e.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        }
    }

    fn launcher(&self, user: User) -> Command {
        let mut command = Command::new("python3");
        command.arg(self.root.join("xtask/privilege/launch.py"));
        if user == User::Nobody {
            command.args(["--uid", "65534", "--memlock", "8388608"]);
        }
        command
    }

    /// A command as a user, with fresh folders.
    fn command(&self, words: &[String], user: User) -> Result<Command, String> {
        for (name, mode) in [("work", 0o777), ("tier", 0o777), ("printed", 0o700)] {
            let _ = std::fs::remove_dir_all(self.folder(name));
            ground::open_folder(&self.folder(name), mode)?;
        }
        let mut command = self.launcher(user);
        command.arg("--").args(words).current_dir(self.folder("work"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
        for name in ["TMPDIR", "HOME"] {
            command.env(name, self.folder("work"));
        }
        command.env("LC_ALL", "C").env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONHASHSEED", "0");
        Ok(command)
    }

    /// Runs a command, and reads the files that it wrote.
    fn one(&self, words: &[String], user: User, limit: Duration) -> Result<(Ended, Files), String> {
        let mut command = self.command(words, user)?;
        let (tier, printed) = (self.folder("tier"), self.folder("printed"));
        let places = Places { tier: &tier, printed: &printed };
        let ended = watch::run(&mut command, &places, limit, NUMBER.fetch_add(1, Relaxed))?;
        let work = self.folder("work");
        let mut files = Files::new();
        collect(&work, &work, &mut files);
        Ok((ended, files))
    }
}

/// Reads all files below a folder.
fn collect(root: &Path, folder: &Path, files: &mut Files) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect(root, &path, files),
            _ => {
                let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
                files.insert(name, std::fs::read(&path).unwrap_or_default());
            }
        }
    }
}

/// What is said under `forebay mem` only: the figures at the end, and hints about speed.
const OWN_LINES: [&str; 3] = [" under the budget of ", "most of the program's memory", "thrashing"];

/// Compares two runs.
fn judge(plain: (&Ended, &Files), mem: (&Ended, &Files), budget: u64) -> Verdict {
    let ((plain, wrote), (mem, written)) = (plain, mem);
    let errors = String::from_utf8_lossy(&mem.errors).into_owned();
    let own =
        |line: &&str| line.starts_with("forebay mem: ") && OWN_LINES.iter().any(|own| line.contains(own));
    let said: Vec<&str> = errors.lines().filter(|line| !own(line)).collect();
    let last = said.last().map(|line| line.to_string()).unwrap_or_default();
    if mem.status.is_none() || !mem.left.is_empty() {
        let left = mem.left.join(", ");
        let why = if mem.left.is_empty() { how(mem.status) } else { format!("processes are left: {left}") };
        return Verdict::Failed(why);
    }
    let begun = errors.lines().any(|line| own(&line));
    if !begun && mem.output.is_empty() && written.is_empty() && !mem.status.is_some_and(|s| s.success()) {
        return Verdict::Refused(last);
    }
    let texts = String::from_utf8_lossy(&plain.errors);
    let differs = [
        (plain.status != mem.status, "status"),
        (plain.output != mem.output, "output"),
        (!texts.lines().eq(said.iter().copied()), "messages"),
        (wrote != written, "files"),
    ];
    if let Some((_, what)) = differs.iter().find(|(differs, _)| *differs) {
        let line = first_other_line(&plain.output, &mem.output);
        return Verdict::Failed(format!("another {what} ({}): {last}{line}", how(mem.status)));
    }
    let above = mem.peak.window.saturating_sub(budget);
    match above > ABOVE_MAX {
        true => Verdict::Above(above),
        false => Verdict::Same,
    }
}

/// The first line that differs, as far as it can be read.
fn first_other_line(plain: &[u8], mem: &[u8]) -> String {
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(str::to_string).collect::<Vec<_>>();
    let (plain, mem) = (lines(plain), lines(mem));
    let at = (0..plain.len().max(mem.len())).find(|at| plain.get(*at) != mem.get(*at));
    let short = |line: Option<&String>| line.map_or(String::new(), |line| line.chars().take(80).collect());
    at.map_or(String::new(), |at| format!("`{}` instead of `{}`", short(mem.get(at)), short(plain.get(at))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(output: &str, errors: &str, status: i32) -> Ended {
        Ended {
            status: Some(ExitStatus::from_raw(status << 8)),
            output: output.into(),
            errors: errors.into(),
            peak: watch::Memory { window: 40 * MIB, outside: 0 },
            left: Vec::new(),
            seconds: 0.0,
        }
    }

    #[test]
    fn every_difference_is_noticed() {
        let (none, end) = (Files::new(), "forebay mem: 1 MiB under the budget of 8 MiB\n");
        let (plain, some) = (ended("a", "", 0), Files::from([(PathBuf::from("f"), b"x".to_vec())]));
        let of = |mem: &Ended, files: &Files| judge((&plain, &none), (mem, files), 8 * MIB);
        assert_eq!(of(&ended("a", end, 0), &none), Verdict::Same);
        let message = |verdict| match verdict {
            Verdict::Failed(why) => why,
            other => panic!("{other:?}"),
        };
        for (mem, files, what) in [
            (ended("b", end, 0), &none, "another output"),
            (ended("a", end, 1), &none, "another status"),
            (ended("a", end, 0), &some, "another files"),
            (ended("a", "warning\n", 0), &none, "another messages"),
            (ended("a", "forebay mem: a child cannot be made\n", 0), &none, "another messages"),
        ] {
            assert!(message(of(&mem, files)).starts_with(what), "{what}");
        }
        let mut mem = ended("a", end, 0);
        mem.left = vec!["7 (x)".to_string()];
        assert!(message(of(&mem, &none)).contains("left"));
        mem = ended("a", end, 0);
        mem.peak.window = 41 * MIB;
        assert_eq!(of(&mem, &none), Verdict::Above(33 * MIB));
        mem.status = None;
        assert!(message(of(&mem, &none)).contains("limit"));
    }

    #[test]
    fn refused_is_what_never_began() {
        let (plain, none) = (ended("a", "", 0), Files::new());
        let refused = judge((&plain, &none), (&ended("", "error: no tier\n", 2), &none), 8 * MIB);
        assert_eq!(refused, Verdict::Refused("error: no tier".to_string()));
        let line = Line { name: "a".into(), user: User::Own, verdict: refused, budget: MIB, ended: None };
        let mut summary = Summary::default();
        line.count(&mut summary);
        assert_eq!((summary.passed, summary.failed, summary.skips.len()), (0, 0, 1));
        let end = "forebay mem: 1 MiB under the budget of 8 MiB\n";
        let failed = judge((&plain, &none), (&ended("", end, 2), &none), 8 * MIB);
        assert!(matches!(failed, Verdict::Failed(_)));
    }

    #[test]
    fn options_are_read() {
        let options =
            read(&["--small", "--only", "python", "--user", "nobody", "--kills", "3"]).ok().unwrap();
        assert!(options.small && options.users == [User::Nobody] && options.kills == Some(3));
        for wrong in [&["--user", "me"][..], &["--only", "vi"], &["--kills"], &["all"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
