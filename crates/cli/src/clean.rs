//! `forebay clean`: removes spaces that no live process holds.
//!
//! Guarantees: a space with a live member is never touched, whatever is asked for; says nothing and ends with
//! 0 when there is nothing to do, so that `forebay clean --dead` can stand in a job's epilog.

use forebay_space::{format_bytes, CleanOptions, CleanReport, Error, Kind, Result};

use crate::output::{schema, Output, Tone};
use crate::spaces;

/// Remove spaces that no live process holds.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "In a job's epilog:  forebay clean --dead\n\nExit status: 0, also when there was nothing \
                        to do; 3 when a space that was named is in use."
)]
pub struct Args {
    /// Short names or paths; without any, all spaces of this user.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only spaces whose processes died; finished ones stay.
    #[arg(long)]
    dead: bool,
    /// Say what would be removed and remove nothing.
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    for name in &args.names {
        spaces::look_up(name).map(drop).or_else(removable)?;
    }
    let options = CleanOptions { names: args.names.clone(), dead_only: args.dead, dry_run: args.dry_run };
    let report = forebay_space::clean(&options)?;
    out.result(schema::CLEAN, &report, || text(&report, args, out))?;
    if args.names.is_empty() || args.dead {
        return Ok(0);
    }
    match report.kept.first() {
        None => Ok(0),
        Some(_) if out.json() => Ok(Kind::NameInUse.exit_code()),
        Some(kept) => {
            Err(Error::new(Kind::NameInUse, format!("space {} was kept: {}", kept.name, kept.reason))
                .hint(format!("forebay ls {} names who holds it", kept.name)))
        }
    }
}

/// A damaged space cannot be looked into, but it can be removed.
fn removable(error: Error) -> Result<()> {
    match error.kind() {
        Kind::Damaged | Kind::UnknownFormat | Kind::Io => Ok(()),
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
