//! `forebay clean`: removes spaces that no live process holds, and memory of checkpoints that are gone.
//!
//! Guarantees: a space with a live member is never touched, whatever is asked for, nor the memory of a checkpoint whose
//! program lives; says nothing and ends with 0 when there is nothing to do, so that `forebay clean --dead` can stand in
//! a job's epilog. What cannot be removed because of an error is named on stderr.

use std::path::{Path, PathBuf};

use forebay_space::{format_bytes, CleanOptions, CleanReport, Error, Kept, Kind, Removed, Result};

use crate::command::nodes::{is_path, OnNodes};
use crate::command::spaces;
use crate::output::{schema, Output, Tone};

/// Remove spaces that no live process holds, and memory of checkpoints that are gone.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "In a job's epilog:  forebay clean --dead\n\nExit status: 0, also when there was nothing \
                        to do; 3 when a space or \
                        checkpoint that was named is in use."
)]
pub struct Args {
    /// Short names or paths; without any, all spaces below FOREBAY_DIR (not those opened by a path).
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only spaces whose processes died; finished ones stay.
    #[arg(long)]
    dead: bool,
    /// Remove what this checkpoint directory has in memory, and nothing else; a step that is nowhere else is lost.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["names", "dead"])]
    checkpoint: Option<PathBuf>,
    /// Remove this reader group of the space NAME, and nothing else: versions are no longer kept for its ranks.
    #[arg(long, value_name = "GROUP", requires = "names", conflicts_with_all = ["dead", "checkpoint", "dry_run"])]
    readers: Option<String>,
    /// Say what would be removed and remove nothing.
    #[arg(long, short = 'n')]
    dry_run: bool,
    #[command(flatten)]
    pub(crate) on: OnNodes,
}

impl Args {
    /// What it is told that is a path.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let names = self.names.iter().filter(is_path).map(PathBuf::from);
        names.chain(self.checkpoint.clone()).collect()
    }
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if let Some(group) = &args.readers {
        return readers(args, group, out);
    }
    for name in &args.names {
        spaces::look_up(name).map(drop).or_else(|error| removable(name, error))?;
    }
    let options = CleanOptions { names: args.names.clone(), dead_only: args.dead, dry_run: args.dry_run };
    let mut report = match &args.checkpoint {
        None => forebay_space::clean(&options)?,
        Some(path) => checkpoint(path)?,
    };
    if args.names.is_empty() {
        memory(args, &mut report)?;
    }
    if args.names.is_empty() && args.checkpoint.is_none() && !args.dry_run {
        let failed = forebay_flow::names::remove_unheld().err();
        report.kept.extend(failed.map(|e| Kept::failed("names of runs".into(), &e)));
    }
    out.result(schema::CLEAN, &report, || text(&report, args, out))?;
    if !args.dry_run {
        let failed = report.kept.iter().filter(|kept| kept.failed);
        failed
            .for_each(|kept| out.aside(&format!("warning: {} was not removed: {}", kept.name, kept.reason)));
    }
    if args.checkpoint.is_none() && (args.names.is_empty() || args.dead) {
        return Ok(0);
    }
    match report.kept.first() {
        None => Ok(0),
        // What failed is told above.
        Some(kept) if out.json() || kept.failed => Ok(kept.kind.exit_code()),
        Some(kept) if args.checkpoint.is_some() => {
            Err(Error::new(Kind::NameInUse, format!("{} was not removed: {}", kept.name, kept.reason))
                .hint("end the program first"))
        }
        Some(kept) => {
            Err(Error::new(Kind::NameInUse, format!("space {} was not removed: {}", kept.name, kept.reason))
                .hint(format!("`forebay ls {}` lists the processes that hold it", kept.name)))
        }
    }
}

/// Removes a reader group of each space that is named.
fn readers(args: &Args, group: &str, out: &Output) -> Result<i32> {
    for name in &args.names {
        spaces::look_up(name)?;
        forebay_space::remove_reader_group(name, group)?;
    }
    out.result(schema::CLEAN, &CleanReport::default(), String::new)?;
    Ok(0)
}

/// A checkpoint directory that is named must be one, or have been one.
fn checkpoint(path: &Path) -> Result<CleanReport> {
    let options =
        forebay_checkpoint::memory::CleanOptions { checkpoint: Some(path.to_path_buf()), dry_run: true };
    let found = forebay_checkpoint::memory::clean(&forebay_space::root()?, &options)?;
    let known = !found.removed.is_empty() || !found.kept.is_empty();
    if !known && forebay_checkpoint::control(path)?.is_none() {
        return Err(Error::new(
            Kind::PeerMissing,
            format!("{} is not the directory of a checkpoint", path.display()),
        )
        .hint("use the path that the program passed to Checkpoint"));
    }
    Ok(CleanReport::default())
}

/// Removes levels of memory, and adds them to what is told.
fn memory(args: &Args, report: &mut CleanReport) -> Result<()> {
    let options = forebay_checkpoint::memory::CleanOptions {
        checkpoint: args.checkpoint.clone(),
        dry_run: args.dry_run,
    };
    let cleaned = forebay_checkpoint::memory::clean(&forebay_space::root()?, &options)?;
    let name = |dir: &Path| dir.display().to_string();
    for gone in cleaned.removed {
        report.removed.push(Removed { name: name(&gone.dir), bytes: gone.bytes, reason: gone.reason });
    }
    for (dir, reason) in cleaned.kept {
        report.kept.push(Kept::in_use(name(&dir), reason));
    }
    for (dir, error) in cleaned.failed {
        report.kept.push(Kept::failed(name(&dir), &error));
    }
    Ok(())
}

/// What cannot be looked into, but can be removed: a damaged space, and what a killed process left while it made or
/// removed one. Else the error.
fn removable(name: &str, error: Error) -> Result<()> {
    let leftovers = || {
        let look = CleanOptions { names: vec![name.to_string()], dry_run: true, ..CleanOptions::default() };
        forebay_space::clean(&look).is_ok()
    };
    match error.kind() {
        Kind::Damaged | Kind::UnknownFormat | Kind::Io => Ok(()),
        Kind::PeerMissing if leftovers() => Ok(()),
        _ => Err(error),
    }
}

fn text(report: &CleanReport, args: &Args, out: &Output) -> String {
    let verb = if args.dry_run { "would remove" } else { "removed" };
    let line = |name: &str, bytes, reason: &str| {
        let why = out.paint(Tone::Quiet, &format!("({}, {reason})", format_bytes(bytes)));
        format!("{verb} {name} {why}\n")
    };
    let mut text: String = report.removed.iter().map(|r| line(&r.name, r.bytes, &r.reason)).collect();
    // An epilog wants silence; who tries first wants to know why something would stay.
    if args.dry_run {
        text.extend(report.kept.iter().map(|k| format!("would keep {} ({})\n", k.name, k.reason)));
    }
    text
}
