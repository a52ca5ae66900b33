//! `forebay ckpt list`: which steps are in which level of a checkpoint directory, and what each survives there.

use std::path::PathBuf;

use comfy_table::Cell;
use forebay_checkpoint::{Inspection, LevelReport, Reason, StepReport};
use forebay_space::format_bytes;
use forebay_tier::Result;
use serde::Serialize;

use crate::output::{number, schema, table_text, toned, Output, Tone};

/// List the steps of a checkpoint directory, level by level; with --step the arrays of one.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory that the program gave to Checkpoint.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Show what this step holds, rank by rank.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

#[derive(Serialize)]
struct Body<'a> {
    path: &'a std::path::Path,
    running: bool,
    #[serde(flatten)]
    found: &'a Inspection,
    pieces: &'a [Piece],
}

#[derive(Serialize)]
struct Piece {
    rank: u32,
    name: String,
    dtype: String,
    shape: Vec<u64>,
    start: Vec<u64>,
    count: Vec<u64>,
    bytes: u64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let found = forebay_checkpoint::list(&args.path)?;
    let control = forebay_checkpoint::control(&args.path)?;
    let running = control.map_or(Ok(false), |control| forebay_checkpoint::is_alive(&control, &args.path))?;
    let pieces = args.step.map_or(Ok(Vec::new()), |step| pieces(args, step))?;
    let body = Body { path: &args.path, running, found: &found, pieces: &pieces };
    out.result(schema::CKPT_LIST, &body, || match args.step {
        Some(_) => piece_text(&pieces, out),
        None => text(&found, running, out),
    })?;
    out.next(&format!("forebay ckpt verify {} reads every byte", args.path.display()));
    Ok(0)
}

fn pieces(args: &Args, step: u64) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    for manifest in forebay_checkpoint::pieces(&args.path, step)? {
        for stored in manifest.variables {
            let variable = stored.variable;
            pieces.push(Piece {
                rank: manifest.rank,
                name: variable.name,
                dtype: variable.dtype.to_string(),
                shape: variable.shape.to_vec(),
                start: variable.part.start.to_vec(),
                count: variable.part.count.to_vec(),
                bytes: stored.bytes,
            });
        }
    }
    Ok(pieces)
}

fn piece_text(pieces: &[Piece], out: &Output) -> String {
    let mut table = out.table(&["RANK", "ARRAY", "DTYPE", "SHAPE", "START", "COUNT", "BYTES"]);
    for piece in pieces {
        table.add_row(vec![
            number(piece.rank),
            Cell::new(&piece.name),
            Cell::new(&piece.dtype),
            Cell::new(extents(&piece.shape)),
            Cell::new(extents(&piece.start)),
            Cell::new(extents(&piece.count)),
            number(format_bytes(piece.bytes)),
        ]);
    }
    table_text(&table)
}

/// A committed step, and what it needs beside its own files.
fn committed(step: &StepReport) -> String {
    match step.incremental_on {
        Some(on) => format!("committed, incremental, on step {on}"),
        None => "committed".to_string(),
    }
}

fn extents(list: &[u64]) -> String {
    match list {
        [] => "-".to_string(),
        list => list.iter().map(u64::to_string).collect::<Vec<_>>().join("×"),
    }
}

/// Why a step stays, as the level's options say it.
fn stays(step: &StepReport, level: &LevelReport) -> String {
    let word = |reason: &Reason| match (reason, level.keep.every, level.keep.best) {
        (Reason::Every, Some(every), _) => format!("every {every}"),
        (Reason::Best, _, Some(best)) => format!("best {}", best.count),
        (Reason::Last, ..) => format!("last {}", level.keep.last),
        (reason, ..) => reason.to_string(),
    };
    match step.stays.is_empty() {
        true => "-".to_string(),
        false => step.stays.iter().map(word).collect::<Vec<_>>().join(", "),
    }
}

fn text(found: &Inspection, running: bool, out: &Output) -> String {
    let state = if running { "running" } else { "not running" };
    let program = if found.program.is_empty() { String::new() } else { format!(" of {}", found.program) };
    let mut text = format!("run {}{program}, {} rank(s), {state}\n\n", found.run, found.size);
    let valued = found.levels.iter().flat_map(|level| &level.steps).any(|step| step.metric.is_some());
    let guarded = found.levels.iter().any(|level| level.redundancy.is_some());
    let mut head = vec!["LEVEL", "TIER", "SURVIVES", "STEP", "RUN", "STATE", "STAYS", "RANKS", "BYTES"];
    head.extend(valued.then_some("METRIC"));
    head.extend(guarded.then_some("REDUNDANCY"));
    let mut table = out.table(&head);
    for level in &found.levels {
        let survives = level.durability;
        let packing = Some(level.packing.words()).filter(|words| !words.is_empty());
        let dir = level.dir.display().to_string();
        let name = packing.map_or(dir.clone(), |words| format!("{dir},{words}"));
        let place = [Cell::new(name), Cell::new(level.tier), Cell::new(survives)];
        if level.steps.is_empty() {
            table.add_row(place.iter().cloned().chain([Cell::new("-")]).collect::<Vec<_>>());
        }
        for step in &level.steps {
            let state = match (&step.fault, step.committed) {
                (None, true) => toned(committed(step), Tone::Good),
                (Some(fault), _) => toned(fault, Tone::Bad),
                (None, false) => toned("unfinished", Tone::Notable),
            };
            let mut row = place.to_vec();
            row.extend([
                number(step.step),
                number(step.run),
                state,
                Cell::new(stays(step, level)),
                number(step.size),
                number(format_bytes(step.bytes)),
            ]);
            row.extend(
                valued.then(|| number(step.metric.map_or("-".to_string(), |value| value.to_string()))),
            );
            row.extend(guarded.then(|| super::protection(step.redundancy.as_ref())));
            table.add_row(row);
        }
    }
    text += &table_text(&table);
    text
}
