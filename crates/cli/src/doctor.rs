//! `forebay doctor`: what this machine allows, what that means for a user, and how to allow more.
//!
//! Guarantees: changes nothing, needs no rights, and every finding that is not `ok` says what it means and
//! how to change it, also without root where there is a way. It does not measure speed; that is `forebay
//! probe`'s work.

mod agent;
mod cgroup;
mod kernel;
mod machine;
mod memory;
mod tiers;

use std::path::PathBuf;

use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::command::nodes::OnNodes;
use crate::output::{schema, wrapped, Output, Tone};
use machine::Machine;

/// Columns of the printed report; a narrow terminal wraps by itself.
const WIDTH: usize = 110;
/// Columns before the text: state, then the name of the check.
const INDENT: usize = 9 + 26;

/// Say what this machine allows and how to allow more.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit status: 0 whatever is found; the findings are advice. `--json` carries them for \
                        scripts: the field `worst` is ok, note or warning."
)]
pub struct Args {
    /// Print only warnings and notes.
    #[arg(short, long)]
    quiet: bool,
    /// Look at the machine described by the files below DIR instead of this one.
    #[arg(long, value_name = "DIR", hide = true)]
    sysroot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) on: OnNodes,
}

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Something works less well than it could.
    Note,
    /// Something will not work, or will lose data or kill programs.
    Warning,
}

/// What one check saw.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Name of the check, stable across releases.
    pub check: &'static str,
    /// How to take it.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// What follows from it for a user of Forebay.
    pub means: Option<String>,
    /// How an administrator changes it.
    pub change: Option<String>,
    /// What a user can do without being root.
    pub without_root: Option<String>,
}

impl Finding {
    fn new(check: &'static str, status: Status, found: impl Into<String>) -> Finding {
        Finding { check, status, found: found.into(), means: None, change: None, without_root: None }
    }

    /// Nothing to do.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Status::Ok, found)
    }

    /// Works, but less well than it could.
    pub fn note(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Status::Note, found)
    }

    /// Will fail, lose or kill something.
    pub fn warning(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Status::Warning, found)
    }

    /// Says what follows for the user.
    pub fn means(mut self, text: impl Into<String>) -> Finding {
        self.means = Some(text.into());
        self
    }

    /// Says how an administrator changes it.
    pub fn change(mut self, text: impl Into<String>) -> Finding {
        self.change = Some(text.into());
        self
    }

    /// Says what a user can do.
    pub fn without_root(mut self, text: impl Into<String>) -> Finding {
        self.without_root = Some(text.into());
        self
    }
}

#[derive(Serialize)]
struct Report<'a> {
    kernel: Option<String>,
    worst: Status,
    findings: &'a [Finding],
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if let Some(root) = args.sysroot.as_ref().filter(|root| !root.is_dir()) {
        let message = format!("{} is not a directory", root.display());
        return Err(
            Error::new(Kind::Usage, message).hint("--sysroot takes a folder with proc/, sys/ and etc/")
        );
    }
    let machine = Machine::new(args.sysroot.clone());
    let mut findings = examine(&machine);
    let worst = findings.iter().map(|f| f.status).max().unwrap_or(Status::Ok);
    let summary = summary(&findings);
    if args.quiet {
        findings.retain(|f| f.status != Status::Ok);
    }
    let report = Report { kernel: machine.kernel().map(|(release, _)| release), worst, findings: &findings };
    out.result(schema::DOCTOR, &report, || {
        let mut text: String = findings.iter().map(|f| paragraph(f, out)).collect();
        if !args.quiet {
            text += &format!("\n{summary}\n");
        }
        text
    })?;
    if worst < Status::Warning {
        out.next("forebay init, then forebay run");
    }
    Ok(0)
}

/// Every check, in an order that stays, so that two reports can be compared line by line.
fn examine(machine: &Machine) -> Vec<Finding> {
    vec![
        kernel::release(machine),
        memory::shared_memory(machine),
        memory::private_shared_memory(machine),
        memory::space_directory(machine),
        agent::of_several_nodes(machine),
        tiers::spilling(machine),
        memory::remove_ipc(machine),
        memory::headroom(machine),
        memory::huge_pages(machine),
        memory::persistent_memory(machine),
        memory::numa(machine),
        kernel::locked_memory(machine),
        kernel::file_size(machine),
        kernel::open_files(machine),
        kernel::pid_namespace(machine),
        kernel::io_uring(machine),
        kernel::userfaultfd(machine),
        kernel::persistence(machine),
        kernel::cores(machine),
    ]
}

fn summary(findings: &[Finding]) -> String {
    let count = |status| findings.iter().filter(|f| f.status == status).count();
    let (ok, notes, warnings) = (count(Status::Ok), count(Status::Note), count(Status::Warning));
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let total = findings.len();
    format!("{total} checks: {ok} ok, {notes} note{}, {warnings} warning{}", plural(notes), plural(warnings))
}

/// A finding as lines of text.
fn paragraph(finding: &Finding, out: &Output) -> String {
    let (word, tone) = match finding.status {
        Status::Ok => ("ok", Tone::Good),
        Status::Note => ("note", Tone::Notable),
        Status::Warning => ("warning", Tone::Bad),
    };
    let state = out.paint(tone, &format!("{word:<7}"));
    let mut text =
        format!("{state}  {:<26}{}\n", finding.check, wrapped(&finding.found, WIDTH - INDENT, INDENT));
    let details =
        [("means", &finding.means), ("change", &finding.change), ("without root", &finding.without_root)];
    for (name, detail) in details {
        if let Some(detail) = detail {
            let label = out.paint(Tone::Quiet, &format!("{name:<14}"));
            let indent = INDENT + 14;
            text += &format!("{:INDENT$}{label}{}\n", "", wrapped(detail, WIDTH - indent, indent));
        }
    }
    text
}
