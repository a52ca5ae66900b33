//! `cargo xtask bench put`: put and the coupled stream beside other systems, as ratios within one run.
//!
//! Times of one machine say little about another, so every figure is a ratio: ours and the other system's, measured
//! in turn, at least five times each; the median of the ratios is printed with their spread, and beside it the same
//! against a plain copy of memory on this machine. What the other systems need is skipped and counted where it is
//! missing; `--install` fetches it (the Python package into target/peers, the Debian package when root).
//! `--quick` runs everything once at toy size, so that the benchmark cannot rot; its figures mean nothing.

mod peers;
mod rows;

use crate::{Outcome, Stop};
use peers::{PutShape, Setup, StreamShape};
use rows::{Row, Table};
use std::path::Path;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Repetitions of every pair; fewer give no spread worth printing.
const REPETITIONS: usize = 5;

/// What was asked for.
#[derive(Clone, Copy, Default)]
pub struct Options {
    json: bool,
    quick: bool,
    install: bool,
}

/// Runs the comparison.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let mut options = Options::default();
    for argument in arguments {
        match *argument {
            "--json" => options.json = true,
            "--quick" => options.quick = true,
            "--install" => options.install = true,
            other => {
                return Err(Stop::Usage(format!("bench put: unknown {other} (--json, --quick, --install)")))
            }
        }
    }
    let setup = Setup::new(root, options.install).map_err(Stop::Failed)?;
    let mut table = Table::new(if options.quick { 1 } else { REPETITIONS }, setup.skipped.clone());
    for shape in put_shapes(options.quick) {
        puts(&setup, &shape, &mut table).map_err(Stop::Failed)?;
    }
    for shape in stream_shapes(options.quick) {
        streams(&setup, &shape, &mut table).map_err(Stop::Failed)?;
    }
    if options.json {
        println!("{}", table.json());
    } else {
        print!("{}", table.text());
    }
    let missed = table.rows.iter().filter(|row| !options.quick && row.misses());
    crate::no_findings(missed.map(Row::line).collect())
}

/// 64 MiB: sources walk through far more than any cache. 2 KiB: a source that was just computed, and thus cached.
fn put_shapes(quick: bool) -> Vec<PutShape> {
    let shape = |bytes, objects, steps, pool_bytes, source_bytes| {
        [true, false].map(|checksum| PutShape { bytes, objects, steps, pool_bytes, source_bytes, checksum })
    };
    if quick {
        return [shape(MIB, 4, 2, 64 * MIB, 8 * MIB), shape(2048, 100, 4, 64 * MIB, 64 << 10)].concat();
    }
    [shape(64 * MIB, 4, 8, GIB, GIB), shape(2048, 10_000, 40, 512 * MIB, 64 << 10)].concat()
}

fn stream_shapes(quick: bool) -> Vec<StreamShape> {
    let shape =
        |bytes, objects, steps, warm, source_bytes| StreamShape { bytes, objects, steps, warm, source_bytes };
    if quick {
        return vec![shape(MIB, 4, 2, 2, 8 * MIB), shape(2048, 100, 2, 2, MIB)];
    }
    vec![shape(64 * MIB, 4, 8, 6, GIB), shape(2048, 10_000, 20, 12, GIB)]
}

/// What a put should reach of libpmem's speed: the aim of the work on the data path, not a condition yet.
fn put_goal(shape: &PutShape) -> Option<f64> {
    match (shape.bytes, shape.checksum) {
        (2048, _) => Some(0.5),
        (_, false) => Some(0.95),
        (_, true) => Some(0.7),
    }
}

fn puts(setup: &Setup, shape: &PutShape, table: &mut Table) -> Result<(), String> {
    let mut beside_copy = Row::new("put", shape.bytes, shape.checksum, "memcpy");
    let mut beside_libpmem = Row::new("put", shape.bytes, shape.checksum, "libpmem");
    beside_libpmem.goal = put_goal(shape);
    for _ in 0..table.repetitions {
        let ours = setup.put(shape)?;
        beside_copy.add(ours.ns_per_put, ours.ns_per_memcpy);
        if setup.libpmem.is_some() {
            beside_libpmem.add(ours.ns_per_put, setup.libpmem_put(shape)?.ns_per_put);
        }
    }
    table.push(beside_libpmem);
    table.push(beside_copy);
    Ok(())
}

fn streams(setup: &Setup, shape: &StreamShape, table: &mut Table) -> Result<(), String> {
    let row = |measure: &str, against: &str| Row::new(measure, shape.bytes, true, against);
    let (mut sst, mut files) = (row("stream", "SST"), row("stream", "a file per object"));
    let mut into = row("stream, copied out", "SST");
    sst.bar = Some(if shape.bytes == 2048 { 3.0 } else { 5.0 });
    for _ in 0..table.repetitions {
        let ours = setup.forebay_stream(shape, &["--channel", "space"])?;
        let copied = setup.forebay_stream(shape, &["--channel", "space", "--into"])?;
        files.add(ours, setup.forebay_stream(shape, &["--channel", "files"])?);
        if setup.adios.is_some() {
            let theirs = setup.sst_stream(shape)?;
            sst.add(ours, theirs);
            into.add(copied, theirs);
        }
    }
    [sst, into, files].into_iter().for_each(|row| table.push(row));
    Ok(())
}
