//! What one rank of a program spent, step after step, and on how many objects.
//!
//! Bytes and waiting are what the channel's own end counts. The time of calls is taken around all calls of a step,
//! less waiting and computing: single calls are too short for a clock, and a part of them says little, because new
//! pages are met at regular distances. From it comes the software time of an object, the number by which mechanisms
//! and batches are compared. Rank 0 says it on standard error; every rank leaves it as JSON where the run keeps its
//! results.

use forebay_space::{environment, Error, Result, Stats};
use gray_scott::exchange::Member;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The calls of a step, while they are being timed.
pub(crate) struct Calls {
    began: Instant,
    wait_ns: u64,
    compute_ns: u64,
}

/// The account of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Account {
    /// `measured`: every time here was.
    pub provenance: &'static str,
    /// Program.
    pub program: &'static str,
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Channel that the objects went through.
    pub channel: String,
    /// `space` or `files`.
    pub mechanism: String,
    /// Objects that one call puts or gets; 1: each has a call of its own.
    pub batch: usize,
    /// Versions put or read.
    pub versions: u64,
    /// Versions that were complete already and were left alone.
    pub skipped: u64,
    /// Objects put or read.
    pub objects: u64,
    /// Payload bytes put or read.
    pub bytes: u64,
    /// Time of computing.
    pub compute_ns: u64,
    /// Time inside the channel's calls, copying and end of step included, without waiting.
    pub op_ns: u64,
    /// Time waiting for a version or for free space.
    pub wait_ns: u64,
}

impl Account {
    pub(crate) fn new(
        program: &'static str,
        channel: &str,
        member: &Member,
        batch: usize,
    ) -> Result<Account> {
        let mechanism = member.options.resolved(channel, &environment::process)?.channel.to_string();
        Ok(Account {
            provenance: "measured",
            program,
            rank: member.rank,
            ranks: member.size,
            channel: channel.to_owned(),
            mechanism,
            batch,
            ..Account::default()
        })
    }

    /// Counts the time that `work` takes as computing.
    pub(crate) fn computing<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        self.compute_ns += began.elapsed().as_nanos() as u64;
        result
    }

    /// Begins to time the calls of a step.
    pub(crate) fn begin_calls(&self, stats: &Stats) -> Calls {
        Calls { began: Instant::now(), wait_ns: stats.wait_ns, compute_ns: self.compute_ns }
    }

    /// Counts them, once all are done.
    pub(crate) fn end_calls(&mut self, calls: &Calls, stats: &Stats) {
        let other = (stats.wait_ns - calls.wait_ns) + (self.compute_ns - calls.compute_ns);
        self.op_ns += (calls.began.elapsed().as_nanos() as u64).saturating_sub(other);
    }

    /// Takes over what a writer or a reader counted.
    pub(crate) fn counted(&mut self, stats: &Stats) {
        (self.bytes, self.wait_ns) = (stats.bytes_put + stats.bytes_got, stats.wait_ns);
    }

    /// Time inside calls for each object, its copy included.
    pub fn op_ns_per_object(&self) -> f64 {
        self.op_ns as f64 / self.objects.max(1) as f64
    }

    /// The line of rank 0.
    pub fn line(&self) -> String {
        let skipped =
            if self.skipped == 0 { String::new() } else { format!(", {} were there", self.skipped) };
        format!(
            "{}: {} versions of {} on {}{skipped}; rank 0: {} objects, {} bytes, measured {:.0} ns of calls for \
             each ({}, batch {}), compute {:.3} s, calls {:.3} s, waiting {:.3} s",
            self.program,
            self.versions,
            self.channel,
            crate::ranks(self.ranks),
            self.objects,
            self.bytes,
            self.op_ns_per_object(),
            self.mechanism,
            self.batch,
            self.compute_ns as f64 / 1e9,
            self.op_ns as f64 / 1e9,
            self.wait_ns as f64 / 1e9,
        )
    }

    /// Writes `account-RANK.json` to the directory, which is made when it is missing.
    pub fn save(&self, directory: &Path) -> Result<()> {
        #[derive(Serialize)]
        struct Document<'a> {
            schema: &'static str,
            #[serde(flatten)]
            account: &'a Account,
            op_ns_per_object: f64,
        }
        let document = Document {
            schema: "forebay.app-account/1",
            account: self,
            op_ns_per_object: self.op_ns_per_object(),
        };
        let text = serde_json::to_string(&document).map_err(|e| {
            Error::new(forebay_space::Kind::Internal, "cannot write an account as JSON").caused_by(e)
        })?;
        let path = directory.join(format!("account-{}.json", self.rank));
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&path, text + "\n"))
            .map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
    }

    /// What a program's main does at its end: the line of rank 0, and the file where there is a place for it.
    pub(crate) fn report(&self, out: Option<PathBuf>) -> Result<()> {
        if self.rank == 0 {
            eprintln!("{}", self.line());
        }
        match out.or_else(|| place_of_run(self.program)) {
            Some(directory) => self.save(&directory),
            None => Ok(()),
        }
    }
}

/// The component's directory in the directory of the run, if this process belongs to one.
pub(crate) fn place_of_run(program: &str) -> Option<PathBuf> {
    let run = std::env::var_os("FOREBAY_RUN")?;
    let component = std::env::var_os("FOREBAY_COMPONENT").unwrap_or_else(|| program.into());
    Some(PathBuf::from(run).join(component))
}
