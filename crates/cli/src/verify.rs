//! `forebay verify`: reads every byte of spaces and compares it with its checksum.
//!
//! Guarantees: changes nothing, delays no process; exit status 8 when anything is damaged, and each damaged
//! record is named. A space of another kind of trouble (another host's, an unknown format) is reported, and
//! the others are still verified. What goes away while it is read is no damage.

use std::path::PathBuf;

use comfy_table::Cell;
use forebay_space::{format_bytes, Kind, Result, VerifyReport};
use serde::Serialize;

use crate::command::nodes::{is_path, OnNodes};
use crate::command::spaces;
use crate::output::{is_broken_pipe, number, schema, table_text, toned, Output, Tone};

/// Check every byte of spaces against its checksum.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit status: 0 all is well, 8 damage was found.")]
pub struct Args {
    /// Short names or paths; without any, all spaces below FOREBAY_DIR (not those opened by a path).
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    pub(crate) on: OnNodes,
}

impl Args {
    /// What it is told that is a path.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.names.iter().filter(is_path).map(PathBuf::from).collect()
    }
}

#[derive(Serialize)]
struct Outcome {
    name: String,
    ok: bool,
    /// What was read; `None` when the space could not be opened.
    report: Option<VerifyReport>,
    /// Why it could not be opened.
    error: Option<Failure>,
}

#[derive(Serialize)]
struct Failure {
    kind: &'static str,
    message: String,
    hint: Option<String>,
    /// The whole error, as it is printed elsewhere.
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    exit: i32,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct Body<'a> {
        ok: bool,
        spaces: &'a [Outcome],
    }
    let mut outcomes = Vec::new();
    for name in spaces::names_or_all(&args.names)? {
        out.progress(&format!("reading {name}"));
        outcomes.push(verify(name, args.names.is_empty())?);
    }
    outcomes.retain(|o| o.ok || o.report.is_some() || o.error.is_some());
    let exit = outcomes.iter().map(exit_code).max().unwrap_or(0);
    let printed =
        out.result(schema::VERIFY, &Body { ok: exit == 0, spaces: &outcomes }, || text(&outcomes, out));
    match printed {
        // The verdict stands, also when the reader of the list went away.
        Err(e) if !is_broken_pipe(&e) => Err(e),
        _ => Ok(exit),
    }
}

/// Verifies one space. When all were asked for, one that vanished since it was listed is left out.
fn verify(name: String, listed: bool) -> Result<Outcome> {
    match spaces::look_up(&name).and_then(|_| forebay_space::verify(&name)) {
        Ok(report) => Ok(Outcome { ok: report.damaged.is_empty(), name, report: Some(report), error: None }),
        Err(e) if e.kind() == Kind::PeerMissing && listed => {
            Ok(Outcome { name, ok: false, report: None, error: None })
        }
        // A name that does not exist is the caller's mistake, not a result.
        Err(e) if matches!(e.kind(), Kind::PeerMissing | Kind::BadName) => Err(e),
        Err(e) => {
            let error = Failure {
                kind: e.kind().name(),
                message: e.message().to_string(),
                hint: e.hint_text().map(Into::into),
                text: e.to_string(),
                exit: e.kind().exit_code(),
            };
            Ok(Outcome { name, ok: false, report: None, error: Some(error) })
        }
    }
}

fn exit_code(outcome: &Outcome) -> i32 {
    match &outcome.error {
        Some(error) => error.exit,
        None if outcome.ok => 0,
        None => Kind::Damaged.exit_code(),
    }
}

fn text(outcomes: &[Outcome], out: &Output) -> String {
    if outcomes.is_empty() {
        return String::new();
    }
    let mut table = out.table(&["SPACE", "RESULT", "VERSIONS", "RECORDS", "BYTES"]);
    let mut remarks = String::new();
    for outcome in outcomes {
        let verdict = match (&outcome.error, outcome.ok) {
            (Some(error), _) => toned(error.kind, Tone::Bad),
            (None, true) => toned("ok", Tone::Good),
            (None, false) => toned("damaged", Tone::Bad),
        };
        let mut row = vec![Cell::new(&outcome.name), verdict];
        if let Some(r) = &outcome.report {
            row.extend([number(r.versions), number(r.records), number(format_bytes(r.bytes))]);
            for d in &r.damaged {
                let version = d.version.map_or("unknown version".into(), |v| format!("version {v}"));
                let variable = d.variable.as_ref().map_or(String::new(), |v| format!(", variable {v}"));
                let (rank, offset, what) = (d.rank, d.offset, &d.what);
                remarks +=
                    &format!("{}: {version}, rank {rank}{variable}, offset {offset}: {what}\n", outcome.name);
            }
        }
        if let Some(unchecked) = outcome.report.as_ref().map(|r| r.unchecked_bytes).filter(|b| *b > 0) {
            remarks += &format!(
                "{}: {} carry no checksum and were not checked\n",
                outcome.name,
                format_bytes(unchecked)
            );
        }
        if let Some(error) = &outcome.error {
            remarks += &format!("{}: {}\n", outcome.name, error.text);
        }
        table.add_row(row);
    }
    let gap = if remarks.is_empty() { "" } else { "\n" };
    format!("{}{gap}{remarks}", table_text(&table))
}
