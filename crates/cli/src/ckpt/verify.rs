//! `forebay ckpt verify`: reads every byte of every committed step and of its redundancy, and compares it with its
//! checksum.
//!
//! Guarantees: changes nothing; exit status 8 when anything is damaged, and each damaged copy is named.

use std::path::{Path, PathBuf};

use comfy_table::Cell;
use forebay_checkpoint::{State, VerifyReport};
use forebay_space::format_bytes;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::output::{number, schema, table_text, toned, Output, Tone};

/// Check every byte of the committed steps in every level, and of their redundancy, against its checksum.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Redundancy that is not complete is shown and is no damage: a restore completes it.\n\n\
                  Exit status: 0 no damage, 7 this is not a checkpoint directory, 8 damage was found, or no level
                  has the step."
)]
pub struct Args {
    /// The directory that the program gave to Checkpoint.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Only this step.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

#[derive(Serialize)]
struct Body<'a> {
    path: &'a Path,
    ok: bool,
    steps: &'a [VerifyReport],
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    out.progress(&format!("reading {}", args.path.display()));
    let steps = forebay_checkpoint::verify(&args.path, args.step)?;
    if let (Some(step), true) = (args.step, steps.is_empty()) {
        return Err(Error::new(Kind::VersionGone, format!("no level has step {step}"))
            .hint("forebay ckpt list PATH shows the steps that are there"));
    }
    let kept = |step: &VerifyReport| step.redundancy.as_ref().is_none_or(|kept| kept.state != State::Damaged);
    let ok = steps.iter().all(|step| step.fault.is_none() && kept(step));
    let repairable = steps.iter().any(|step| step.fault.is_some() && step.redundancy.is_some());
    out.result(schema::CKPT_VERIFY, &Body { path: &args.path, ok, steps: &steps }, || {
        let guarded = steps.iter().any(|step| step.redundancy.is_some());
        let mut head = vec!["LEVEL", "STEP", "RUN", "BYTES", "RESULT"];
        head.extend(guarded.then_some("REDUNDANCY"));
        let mut table = out.table(&head);
        for step in &steps {
            let verdict = match &step.fault {
                None => match step.incremental_on {
                    Some(on) => toned(format!("ok, incremental, on step {on}"), Tone::Good),
                    None => toned("ok", Tone::Good),
                },
                Some(fault) => toned(fault, Tone::Bad),
            };
            let place = Cell::new(step.dir.display());
            let mut row =
                vec![place, number(step.step), number(step.run), number(format_bytes(step.bytes)), verdict];
            row.extend(guarded.then(|| super::protection(step.redundancy.as_ref())));
            table.add_row(row);
        }
        table_text(&table)
    })?;
    if repairable {
        out.next("a restore, by the program or by forebay ckpt restore, repairs what redundancy can");
    }
    Ok(if ok { 0 } else { Kind::Damaged.exit_code() })
}
