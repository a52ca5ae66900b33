//! The folder in which the agents of a job find each other: one that all nodes see.
//!
//! | file | contents |
//! |---|---|
//! | `.job.json` | the job and its nodes: that the folder is one of a job ([`Job`]) |
//! | `NODE.json` | the agent of a node: where it listens, which start it is ([`Card`]) |
//! | `NODE.status` | what it does, every second ([`AgentStatus`](forebay_space::AgentStatus)) |
//! | `NODE.count` | how many agents the node has had |
//! | `NODE.log` | what it says |
//! | `.authority.*`, `NODE.pem`, `NODE.key` | certificates ([`crate::authority`]) |
//! | `.links`, `NODE.links` | a measurement that is wanted, and what a node found ([`crate::links`]) |
//! | `.stop` | all agents are to end |
//!
//! Guarantees: the folder has mode 0700 and its files 0600; files appear whole, by a rename. Only a folder that was
//! empty becomes one of a job, and only files with the names above are removed. Not here: what is said over the
//! network.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use forebay_config::allocation;
use forebay_space::{Error, Kind, Result};
use forebay_tier::{own_directory, process};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::authority::{files_of_node, FILES_OF_JOB};
use crate::message::{other_protocol, PROTOCOL};

const STOP_FILE: &str = ".stop";
/// See [`crate::links`].
pub const LINKS_FILE: &str = ".links";
const JOB_FILE: &str = ".job.json";
/// Longer files are not read, but for logs: agents write none.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// So much of the end of a log is read.
const LOG_BYTES_MAX: u64 = 64 << 10;
/// Names of files that are not whole yet begin with this.
const UNFINISHED: &str = ".unfinished-";
/// What agents write appears whole within this, also on a file system of the network.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// A status that is older is that of an agent which is gone or stands still.
const FRESH: Duration = Duration::from_secs(5);

/// The folder of a job.
#[derive(Clone, Debug)]
pub struct Rendezvous {
    path: PathBuf,
    job: Job,
}

/// The job of a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// `forebay.nodes/1`.
    schema: String,
    /// Its name.
    pub job: String,
    /// Names of its nodes.
    pub nodes: Vec<String>,
}

impl Job {
    /// A job with these nodes.
    pub fn new(job: &str, nodes: &[String]) -> Job {
        let (job, nodes) = (job.to_string(), nodes.to_vec());
        Job { schema: "forebay.nodes/1".to_string(), job, nodes }
    }

    /// Checks that the job of the folder `path` is `wanted`.
    fn check_same(&self, wanted: &Job, path: &Path) -> Result<()> {
        if self.job != wanted.job {
            return Err(Error::new(
                Kind::Usage,
                format!("{} is the folder of job {}", path.display(), self.job),
            )
            .with("job", &wanted.job)
            .hint("use a separate folder for each job"));
        }
        let sorted = |job: &Job| {
            let mut nodes = job.nodes.clone();
            nodes.sort();
            nodes
        };
        match sorted(self) == sorted(wanted) {
            true => Ok(()),
            false => {
                Err(Error::new(Kind::Usage, format!("job {} was started with different nodes", self.job))
                    .with("nodes", wanted.nodes.join(","))
                    .with("known", self.nodes.join(","))
                    .hint("use the same --nodes on every node, and a separate folder for each job"))
            }
        }
    }
}

/// What an agent says of itself in the folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Protocol that it speaks.
    pub protocol: u32,
    /// Version of the program.
    pub version: String,
    /// Its job.
    pub job: String,
    /// Its node.
    pub node: String,
    /// Which agent of the node, from 1.
    pub incarnation: u64,
    /// Where it listens: `tls/10.0.0.1:33445`.
    pub endpoint: String,
    /// Where other agents get versions from it: `10.0.0.1:33446`.
    pub data: SocketAddr,
    /// Host name, for messages.
    pub host: String,
    /// Process id on its host.
    pub pid: u32,
}

impl Rendezvous {
    /// The folder at `path` for this job, made where it is missing; the folder above it must be there.
    ///
    /// # Errors
    /// [`Kind::PermissionDenied`]: it is not this user's alone; [`Kind::Usage`]: it is of another job, or other files
    /// are in it; [`Kind::Io`].
    pub fn make(path: &Path, job: &Job) -> Result<Rendezvous> {
        Ok(Rendezvous::make_or_find(path, job)?.0)
    }

    /// As [`Rendezvous::make`], for a job that has no folder yet.
    ///
    /// # Errors
    /// Those of [`Rendezvous::make`]; [`Kind::NameInUse`]: it is the folder of a job.
    pub fn make_new(path: &Path, job: &Job) -> Result<Rendezvous> {
        match Rendezvous::make_or_find(path, job)? {
            (at, true) => Ok(at),
            (at, false) => Err(Error::new(Kind::NameInUse, "agents of this job have been started")
                .with("folder", at.path.display())
                .hint("`forebay agent status` shows them; `forebay agent stop` stops them and removes the folder")),
        }
    }

    /// The folder at `path`, which is that of this job.
    ///
    /// # Errors
    /// Those of [`Rendezvous::open`]; [`Kind::Usage`]: it is of another job.
    pub fn open_for(path: &Path, job: &Job) -> Result<Rendezvous> {
        let at = Rendezvous::open(path)?;
        at.job.check_same(job, &at.path)?;
        Ok(at)
    }

    /// Whether it was made.
    fn make_or_find(path: &Path, job: &Job) -> Result<(Rendezvous, bool)> {
        allocation::check_name("job", &job.job)?;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io(format!("cannot create the folder {}", path.display()), e)
                    .hint("use a folder on a file system that all nodes of the job share"));
            }
            _ => {}
        }
        let at = Rendezvous { path: own_folder(path)?, job: job.clone() };
        let mut is_made = false;
        if !at.has(JOB_FILE) {
            at.check_empty()?;
            is_made = at.make_job_file()?;
        }
        read_job(&at.path)?.check_same(job, &at.path)?;
        Ok((at, is_made))
    }

    /// The folder at `path`, which is one of a job.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`] without it; [`Kind::PermissionDenied`].
    pub fn open(path: &Path) -> Result<Rendezvous> {
        let path = own_folder(path)?;
        match path.join(JOB_FILE).exists() {
            true => Ok(Rendezvous { job: read_job(&path)?, path }),
            false => {
                Err(Error::new(Kind::PeerMissing, format!("{} is not the folder of a job", path.display()))
                    .hint("use the --rendezvous folder of `forebay agent start`"))
            }
        }
    }

    fn check_empty(&self) -> Result<()> {
        let entries = fs::read_dir(&self.path)
            .map_err(|e| Error::io(format!("cannot list {}", self.path.display()), e))?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let foreign: Vec<String> = names.filter(|name| !is_unfinished(name)).collect();
        // Another agent may have made the folder one of its job meanwhile.
        match foreign.first() {
            Some(name) if !self.has(JOB_FILE) => {
                Err(Error::new(Kind::Usage, format!("{} is not empty", self.path.display()))
                    .with("holds", name)
                    .hint("use a new or an empty folder"))
            }
            _ => Ok(()),
        }
    }

    /// Whole, or not at all; where another agent was first its file stays. Whether it was made.
    fn make_job_file(&self) -> Result<bool> {
        let text =
            serde_json::to_vec_pretty(&self.job).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
        match self.unnamed(JOB_FILE, &text)?.persist_noclobber(self.path.join(JOB_FILE)) {
            Err(e) if e.error.kind() == ErrorKind::AlreadyExists => Ok(false),
            // Not every file system has links.
            Err(_) => self.make_file(JOB_FILE, &text),
            Ok(_) => Ok(true),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of its job.
    pub fn job(&self) -> &str {
        &self.job.job
    }

    /// Whether a file is there.
    pub fn has(&self, file: &str) -> bool {
        self.path.join(file).exists()
    }

    /// Whether the folder is there.
    pub fn is_there(&self) -> bool {
        self.path.is_dir()
    }

    /// The text of a file.
    ///
    /// # Errors
    /// [`Kind::Io`].
    pub fn read(&self, file: &str) -> Result<String> {
        read_text(&self.path.join(file))
    }

    /// The last lines of what the agent of a node has said; empty where there are none.
    pub fn log_end(&self, node: &str) -> String {
        read_end(&self.path.join(log_file(node)))
    }

    /// Puts a file in place, as a whole.
    ///
    /// # Errors
    /// [`Kind::Io`]; [`Kind::TierFull`].
    pub fn write(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(file);
        let written = self.unnamed(file, bytes)?.persist(&path);
        written.map(drop).map_err(|e| Error::io(format!("cannot write {}", path.display()), e.error))
    }

    /// A file in the folder, of mode 0600, that is to be `file`.
    fn unnamed(&self, file: &str, bytes: &[u8]) -> Result<NamedTempFile> {
        let made = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.path);
        let written = made.and_then(|mut new| new.write_all(bytes).map(|()| new));
        written.map_err(|e| Error::io(format!("cannot write {file} in {}", self.path.display()), e))
    }

    /// Makes a file, unless it is there: whether it was made.
    ///
    /// # Errors
    /// [`Kind::Io`].
    pub fn make_file(&self, file: &str, bytes: &[u8]) -> Result<bool> {
        let path = self.path.join(file);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut out) => out
                .write_all(bytes)
                .map(|()| true)
                .map_err(|e| Error::io(format!("cannot write {}", path.display()), e)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(Error::io(format!("cannot make {}", path.display()), e)),
        }
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, file: &str) {
        let _ = fs::remove_file(self.path.join(file));
    }

    /// Which start of the node's agent this is.
    ///
    /// # Errors
    /// [`Kind::NameInUse`]: an agent of this node is at work.
    pub fn begin(&self, node: &str) -> Result<u64> {
        if let (Some(card), Some(age)) = (self.card(node)?, self.status_age(node)) {
            if age < FRESH && !has_gone(&card) {
                return Err(Error::new(Kind::NameInUse, format!("node {node} already has an agent"))
                    .with("host", card.host)
                    .with("pid", card.pid)
                    .hint("node names must be unique; `forebay agent stop` stops the agents of a job"));
            }
        }
        let file = format!("{node}.count");
        let before = if self.has(&file) { self.read(&file)?.trim().parse().unwrap_or(0) } else { 0 };
        self.write(&file, format!("{}\n", before + 1).as_bytes())?;
        Ok(before + 1)
    }

    /// When an agent wrote its status, by the clock of the file system.
    pub fn status_written(&self, node: &str) -> Option<SystemTime> {
        fs::metadata(self.path.join(status_file(node))).ok()?.modified().ok()
    }

    /// How long ago that was.
    pub fn status_age(&self, node: &str) -> Option<Duration> {
        let written = self.status_written(node)?;
        // Clocks of two nodes may differ: what lies ahead is fresh.
        Some(written.elapsed().unwrap_or_default())
    }

    /// The card of a node; None while it has none.
    ///
    /// # Errors
    /// [`Kind::UnknownFormat`].
    pub fn card(&self, node: &str) -> Result<Option<Card>> {
        let file = card_file(node);
        if !self.has(&file) {
            return Ok(None);
        }
        let card: Card = serde_json::from_str(&self.read(&file)?).map_err(|e| {
            Error::new(Kind::UnknownFormat, format!("{file} is not the card of an agent: {e}"))
                .with("folder", self.path.display())
                .hint("all agents of a job must have the same version of Forebay")
        })?;
        match card {
            card if card.protocol != PROTOCOL => Err(other_protocol(node, card.protocol)),
            card if card.job != self.job.job => Err(Error::new(
                Kind::Usage,
                format!("{} is the folder of job {}", self.path.display(), card.job),
            )
            .with("job", &self.job.job)
            .hint("use a separate folder for each job")),
            card => Ok(Some(card)),
        }
    }

    /// The nodes of the job.
    pub fn all_nodes(&self) -> &[String] {
        &self.job.nodes
    }

    /// The nodes that have a card.
    pub fn nodes(&self) -> Vec<String> {
        let mut nodes = self.job.nodes.clone();
        nodes.retain(|node| self.has(&card_file(node)));
        nodes.sort();
        nodes
    }

    /// Whether the agent of a node may be at work, as far as the folder says.
    pub fn may_live(&self, node: &str) -> bool {
        match (self.card(node), self.status_age(node)) {
            (Ok(Some(card)), _) if has_gone(&card) => false,
            (Ok(card), None) => card.is_some(),
            (_, age) => age.is_some_and(|age| age < FRESH),
        }
    }

    /// Waits until all `nodes` have a card, or `is_over`.
    ///
    /// # Errors
    /// [`Kind::PeerMissing`] at the deadline, naming those that have none.
    pub fn wait_for(
        &self,
        nodes: &[String],
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<BTreeMap<String, Card>> {
        let deadline = Instant::now() + timeout;
        let mut cards = BTreeMap::new();
        loop {
            for node in nodes {
                if !cards.contains_key(node) {
                    cards.extend(self.card(node)?.map(|card| (node.clone(), card)));
                }
            }
            let missing: Vec<&str> =
                nodes.iter().map(String::as_str).filter(|node| !cards.contains_key(*node)).collect();
            if missing.is_empty() {
                return Ok(cards);
            }
            if Instant::now() >= deadline || is_over() {
                return Err(Error::new(Kind::PeerMissing, "agents of some nodes have not started")
                    .with("missing", missing.join(", "))
                    .with("folder", self.path.display())
                    .hint("start an agent on every node, with the same --nodes and the same shared --rendezvous"));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Asks all agents to end.
    ///
    /// # Errors
    /// [`Kind::Io`].
    pub fn ask_to_stop(&self) -> Result<()> {
        self.make_file(STOP_FILE, b"").map(drop)
    }

    /// Whether all agents are to end.
    pub fn is_stopping(&self) -> bool {
        self.has(STOP_FILE)
    }

    /// Removes what agents that are gone have left, and the folder if nothing else is in it.
    pub fn remove_all(&self) {
        let of_node = |node: &String| {
            let [certificate, key] = files_of_node(node);
            let count = format!("{node}.count");
            [card_file(node), status_file(node), log_file(node), links_file(node), count, certificate, key]
        };
        let of_nodes = self.job.nodes.iter().flat_map(of_node);
        of_nodes.chain(FILES_OF_JOB.map(str::to_string)).for_each(|file| self.remove(&file));
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if is_unfinished(&entry.file_name().to_string_lossy()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        self.remove(LINKS_FILE);
        // Last: it says that the rest is ours.
        self.remove(STOP_FILE);
        self.remove(JOB_FILE);
        let _ = fs::remove_dir(&self.path);
    }
}

/// The path of a folder that is this user's alone.
fn own_folder(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)
        .map_err(|e| Error::io(format!("cannot resolve the path {}", path.display()), e))?;
    let hint = "the folder must be accessible only to its owner: run chmod 700, or use another folder";
    own_directory::check_own(&path, "cannot be the folder of a job", hint)?;
    let meta = fs::metadata(&path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            Error::new(Kind::PeerMissing, format!("folder {} does not exist", path.display()))
                .hint("no agent was started with it, or all agents have exited")
        }
        _ => Error::io(format!("cannot look at {}", path.display()), e),
    })?;
    match meta.is_dir() && meta.mode() & 0o077 == 0 {
        true => Ok(path),
        false => {
            let fault = if meta.is_dir() { "other users have access" } else { "it is not a directory" };
            Err(own_directory::refused(&path, "cannot be the folder of a job", fault, &meta).hint(hint))
        }
    }
}

/// The text of a regular file of at most 16 MiB.
///
/// # Errors
/// [`Kind::Io`], also for a longer file or another kind of file.
pub fn read_text(path: &Path) -> Result<String> {
    let failed = |e| Error::io(format!("cannot read {}", path.display()), e);
    // Opening anything else may wait, and its end may never come.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(ErrorKind::InvalidInput.into()).hint("it must be a regular file"));
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    match read.map_err(failed)? as u64 > FILE_BYTES_MAX {
        true => Err(failed(ErrorKind::FileTooLarge.into()).with("bytes_max", FILE_BYTES_MAX)),
        false => Ok(text),
    }
}

/// The last lines of a log, which may be long. Empty where there is none.
fn read_end(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = File::open(path)?;
        let first = file.metadata()?.len().saturating_sub(LOG_BYTES_MAX);
        file.seek(SeekFrom::Start(first))?;
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The job of a folder that is one of a job.
fn read_job(path: &Path) -> Result<Job> {
    let file = path.join(JOB_FILE);
    let deadline = Instant::now() + WHOLE_TIMEOUT;
    loop {
        let text = read_text(&file)?;
        match serde_json::from_str(&text) {
            Ok(job) => return Ok(job),
            Err(_) if Instant::now() < deadline => std::thread::sleep(POLL),
            Err(e) => {
                return Err(Error::new(
                    Kind::UnknownFormat,
                    format!("{} is not readable: {e}", file.display()),
                )
                .hint("all agents of a job must have the same version of Forebay"));
            }
        }
    }
}

/// Whether a file of this name is on its way into the folder.
fn is_unfinished(name: &str) -> bool {
    name.starts_with(UNFINISHED)
}

/// Whether an agent of this host has no process any more.
fn has_gone(card: &Card) -> bool {
    // One that was killed and that its parent has not asked about yet is gone, too.
    let lives = |stat: String| !stat[stat.rfind(')').unwrap_or(0)..].starts_with(") Z");
    let stat = fs::read_to_string(format!("/proc/{}/stat", card.pid));
    card.host == process::host_name() && !stat.is_ok_and(lives)
}

/// How long something has been missing. Only checks count: a time without checks, because the agent was stopped or a
/// write was slow, is no absence.
#[derive(Default)]
pub struct Absence {
    since: Option<Instant>,
}

impl Absence {
    /// Notes a check; returns the time since the first one of those that found nothing.
    pub fn note(&mut self, is_there: bool, now: Instant) -> Duration {
        if is_there {
            self.since = None;
            return Duration::ZERO;
        }
        now - *self.since.get_or_insert(now)
    }
}

/// File of a node's card.
pub fn card_file(node: &str) -> String {
    format!("{node}.json")
}

/// File of a node's status.
pub fn status_file(node: &str) -> String {
    format!("{node}.status")
}

/// File of what a node's agent says.
pub fn log_file(node: &str) -> String {
    format!("{node}.log")
}

/// File of what a node's agent has measured of its connections.
pub fn links_file(node: &str) -> String {
    format!("{node}.links")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is not one of an agent takes neither memory nor time.
    #[test]
    fn only_files_of_a_limited_length_are_read() {
        let (_above, at) = folder();
        at.write("file", b"text").unwrap();
        assert_eq!(at.read("file").unwrap(), "text");
        let long = File::create(at.path().join("long")).unwrap();
        long.set_len(FILE_BYTES_MAX + 1).unwrap();
        fs::create_dir(at.path().join("directory")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at.path().join("device")).unwrap();
        for file in ["long", "directory", "device", "none"] {
            assert_eq!(at.read(file).unwrap_err().kind(), Kind::Io, "{file}");
        }
        long.set_len(FILE_BYTES_MAX).unwrap();
        assert_eq!(at.read("long").unwrap().len() as u64, FILE_BYTES_MAX);
    }

    fn folder() -> (tempfile::TempDir, Rendezvous) {
        let above = tempfile::tempdir().unwrap();
        let at = Rendezvous::make(&above.path().join("job"), &job("j")).unwrap();
        (above, at)
    }

    fn job(name: &str) -> Job {
        Job::new(name, &["n0".to_string(), "n1".to_string()])
    }

    fn card(node: &str) -> Card {
        Card {
            protocol: PROTOCOL,
            version: "0".into(),
            job: "j".into(),
            node: node.into(),
            incarnation: 1,
            endpoint: "tls/127.0.0.1:1".into(),
            data: "10.0.0.1:2".parse().unwrap(),
            host: "h".into(),
            pid: 1,
        }
    }

    fn put(at: &Rendezvous, card: &Card) {
        at.write(&card_file(&card.node), &serde_json::to_vec(card).unwrap()).unwrap();
    }

    #[test]
    fn the_folder_and_its_files_are_one_users_alone() {
        let (_above, at) = folder();
        at.write("n0.key", b"secret").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(at.path()), mode(&at.path().join("n0.key"))), (0o700, 0o600));
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(at.path(), open).unwrap();
        assert_eq!(Rendezvous::open(at.path()).unwrap_err().kind(), Kind::PermissionDenied);
    }

    #[test]
    fn only_an_empty_folder_becomes_one_of_a_job_and_only_its_files_go() {
        let (_above, at) = folder();
        let wrong = |job: &Job| Rendezvous::make(at.path(), job).unwrap_err().kind();
        assert_eq!(wrong(&job("other")), Kind::Usage);
        assert_eq!(wrong(&Job::new("j", &["n0".to_string()])), Kind::Usage);
        Rendezvous::make(at.path(), &job("j")).unwrap();
        put(&at, &card("n0"));
        let foreign = ["id.key", "results.json", "run.log", "a.count"];
        foreign.iter().for_each(|name| at.write(name, b"mine").unwrap());
        assert_eq!(at.nodes(), ["n0"]);
        at.remove_all();
        let mut left: Vec<_> = fs::read_dir(at.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["a.count", "id.key", "results.json", "run.log"]);
        assert_eq!(
            Rendezvous::make(at.path(), &job("j")).unwrap_err().kind(),
            Kind::Usage,
            "it is not empty"
        );
        assert_eq!(Rendezvous::open(at.path()).unwrap_err().kind(), Kind::PeerMissing);
    }

    #[test]
    fn agents_wait_for_each_other_and_name_who_is_missing() {
        let (_above, at) = folder();
        let nodes = ["n0".to_string(), "n1".to_string()];
        put(&at, &card("n0"));
        let error = at.wait_for(&nodes, Duration::from_millis(50), || false).unwrap_err();
        assert_eq!(error.kind(), Kind::PeerMissing);
        assert!(error.to_string().contains("missing=n1"), "{error}");
        put(&at, &card("n1"));
        assert_eq!(at.wait_for(&nodes, Duration::from_secs(5), || false).unwrap()["n1"], card("n1"));
    }

    #[test]
    fn cards_of_another_job_or_protocol_are_refused() {
        let (_above, at) = folder();
        put(&at, &Card { job: "other".into(), ..card("n0") });
        assert_eq!(at.card("n0").unwrap_err().kind(), Kind::Usage);
        put(&at, &Card { protocol: PROTOCOL + 1, ..card("n0") });
        let error = at.card("n0").unwrap_err();
        assert!(error.kind() == Kind::UnknownFormat && error.to_string().contains("node n0"), "{error}");
    }

    #[test]
    fn a_node_has_one_agent() {
        let (_above, at) = folder();
        assert_eq!(at.begin("n0").unwrap(), 1);
        put(&at, &card("n0"));
        assert_eq!(at.begin("n0").unwrap(), 2, "it left no status: it is gone");
        at.write(&status_file("n0"), b"{}").unwrap();
        let error = at.begin("n0").unwrap_err();
        assert_eq!(error.kind(), Kind::NameInUse);
    }

    #[test]
    fn a_time_without_checks_is_no_absence() {
        let (mut absence, start) = (Absence::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let looks = [(true, 0, 0), (true, 60, 0), (false, 120, 0), (false, 123, 3), (false, 126, 6)];
        for (is_there, now, expected) in looks {
            assert_eq!(absence.note(is_there, at(now)), Duration::from_secs(expected), "at {now}");
        }
        assert_eq!(absence.note(true, at(130)), Duration::ZERO);
        assert_eq!(absence.note(false, at(190)), Duration::ZERO);
    }
}
