//! `forebay bench ior`: a file for each of the threads, written and read in transfers of one size, through the file
//! interface (system calls, one flush at the end) against the memory interface (mapped, each transfer persistent).
//!
//! The question is that of study D (IOR, easy mode). Guarantees: every byte is read back once more after the clock has
//! stopped and compared with what was written; reading begins with nothing cached; files have no name.

use std::path::PathBuf;

use forebay_probe::judge::{self, Bounds};
use forebay_probe::load::{Blocks, Bytes, Content, Engine, Job, Method, Verify};
use forebay_probe::scratch::Scratch;
use forebay_probe::subject::Reading;
use forebay_tier::{capacity, device, Error, Kind, Result, TierKind};
use serde::Serialize;

use super::lriot::one;
use crate::schema;
use forebay_cli::output::{number, table_text, Output};
use forebay_cli::sizes::size;

/// A pattern repeats after this, and differs from thread to thread.
const PATTERN_BYTES: usize = 4096;

/// Write and read a file per thread, through system calls and through memory, and verify every byte.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory on the file system to measure.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Threads, each with a file of its own.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: u32,
    /// Bytes that each thread writes.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    size: u64,
    /// Sizes of a transfer.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "256,4KiB,64KiB,1MiB,16MiB",
        value_parser = size
    )]
    transfer: Vec<u64>,
    /// Interfaces.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "file,memory")]
    interface: Vec<Interface>,
    /// Persist mapped memory once at the end instead of after each transfer. (So it is where each would be a system
    /// call that waits for the disk: everywhere but on persistent memory.)
    #[arg(long)]
    persist_at_end: bool,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Interface {
    /// pwrite and pread.
    File,
    /// Copies into a mapping, made persistent.
    Memory,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    tier: TierKind,
    threads: u32,
    bytes_per_thread: u64,
    persist: &'static str,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    interface: Interface,
    transfer_bytes: u64,
    write_bytes_per_s: f64,
    read_bytes_per_s: f64,
    verified_bytes: u64,
    /// Moved by the device below while reading and while writing, for all processes; None where no counter exists.
    read_device_bytes: Option<u64>,
    write_device_bytes: Option<u64>,
    caveat: Option<String>,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let tier = device::detect(&args.dir)?;
    check(args, tier)?;
    let each = tier == TierKind::Pmem && !args.persist_at_end;
    let mut rows = Vec::new();
    for transfer in &args.transfer {
        for interface in &args.interface {
            rows.push(measure(args, *interface, *transfer, each)?);
            out.progress(&format!("transfers of {transfer} B, {interface:?}: done"));
        }
    }
    let body = Body {
        provenance: "measured",
        place: args.dir.display().to_string(),
        tier,
        threads: args.threads,
        bytes_per_thread: args.size,
        persist: if each { "each transfer" } else { "at the end" },
        rows,
    };
    out.result(schema::BENCH_IOR, &body, || text(args, &body, out))?;
    Ok(0)
}

fn check(args: &Args, tier: TierKind) -> Result<()> {
    if args.threads == 0 || args.threads > 1024 {
        return Err(Error::new(Kind::Usage, "--threads is 1 to 1024"));
    }
    if let Some(wrong) = args.transfer.iter().find(|t| **t == 0 || **t > args.size || **t > 1 << 30) {
        return Err(Error::new(Kind::Usage, format!("a transfer of {wrong} B"))
            .hint("between 1 B and what a thread writes, at most 1 GiB"));
    }
    let wanted = args.size.saturating_mul(u64::from(args.threads));
    let free = capacity::headroom(&args.dir, tier)?;
    if wanted > free.bytes / 2 {
        return Err(Error::new(Kind::TierFull, "the files would take more than half of what is free")
            .with("wanted_bytes", wanted)
            .with("free_bytes", free.bytes)
            .with("limited_by", free.limited_by)
            .hint("fewer threads, or a smaller --size"));
    }
    Ok(())
}

/// What a thread writes: never the bytes of another.
fn pattern(thread: u32, transfer: u64) -> Vec<u8> {
    let period = PATTERN_BYTES.min(transfer as usize);
    (0..period)
        .map(|i| (i as u32).wrapping_mul(31).wrapping_add(thread.wrapping_mul(101) + 1) as u8)
        .collect()
}

/// The jobs of one phase, a thread and a file each.
fn jobs(args: &Args, files: &[Scratch], interface: Interface, transfer: u64, each: bool) -> Vec<Job> {
    let block = Blocks::One(transfer as u32);
    let job = |(thread, file): (usize, &Scratch)| Job {
        engine: match (interface, each) {
            (Interface::File, _) => Engine::Sync,
            (Interface::Memory, true) => Engine::Dax,
            (Interface::Memory, false) => Engine::Mmap,
        },
        blocks: [block.clone(), block.clone()],
        size: args.size / transfer * transfer,
        content: Content {
            bytes: Bytes::Pattern(pattern(thread as u32, transfer)),
            scramble: false,
            ..Content::default()
        },
        ..Job::new(format!("{interface:?}"), vec![file.path()])
    };
    files.iter().enumerate().map(job).collect()
}

fn measure(args: &Args, interface: Interface, transfer: u64, each: bool) -> Result<Row> {
    let files: Vec<Scratch> = (0..args.threads).map(|_| Scratch::make(&args.dir)).collect::<Result<_>>()?;
    let base = jobs(args, &files, interface, transfer, each);
    let writing = |job: Job| Job {
        reads: false,
        writes: true,
        fsync_at_end: !each || interface == Interface::File,
        ..job
    };
    let writes: Vec<Job> = base.iter().cloned().map(writing).collect();
    let (written, device_written) = one(&writes)?;
    files.iter().try_for_each(Scratch::settle)?;
    let (read, device_bytes) = one(&base)?;
    let checking = |(thread, job): (usize, Job)| Job {
        verify: Some(Verify {
            method: Method::Pattern(pattern(thread as u32, transfer)),
            after_writes: false,
            fatal: true,
        }),
        ..job
    };
    let (verified, _) = one(&base.into_iter().enumerate().map(checking).collect::<Vec<_>>())?;
    let wanted = (args.size / transfer * transfer) * u64::from(args.threads);
    if verified.verify_errors > 0 || verified.read.bytes != wanted || written.write.bytes != wanted {
        return Err(Error::new(Kind::Damaged, "the bytes that were read are not those that were written")
            .with("verify_errors", verified.verify_errors)
            .with("read_bytes", verified.read.bytes)
            .with("written_bytes", written.write.bytes));
    }
    let of = |bytes, ns, device_bytes| Reading { operations: [0, 0], bytes, ns, device_bytes };
    let reading = of([read.read.bytes, 0], read.runtime_ns, device_bytes);
    Ok(Row {
        interface,
        transfer_bytes: transfer,
        write_bytes_per_s: of([0, written.write.bytes], written.runtime_ns, None).bytes_per_s(),
        read_bytes_per_s: reading.bytes_per_s(),
        verified_bytes: verified.read.bytes,
        read_device_bytes: device_bytes.map(|[read, _]| read),
        write_device_bytes: device_written.map(|[_, written]| written),
        caveat: judge::caveat(&reading, true, &Bounds::default()),
    })
}

fn text(args: &Args, body: &Body, out: &Output) -> String {
    let mut text = format!(
        "a file for each of {} threads, {} MiB each, in {} (tier {}), memory persisted {}; measured\n\n",
        body.threads,
        body.bytes_per_thread >> 20,
        body.place,
        body.tier,
        body.persist
    );
    let mut heading = vec!["TRANSFER B".to_string()];
    for way in ["write", "read"] {
        heading.extend(args.interface.iter().map(|i| format!("{way} {} GB/s", word(*i))));
    }
    let mut table = out.table(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    for transfer in &args.transfer {
        let own: Vec<&Row> = body.rows.iter().filter(|r| r.transfer_bytes == *transfer).collect();
        let mut row = vec![number(transfer)];
        row.extend(own.iter().map(|r| number(format!("{:.3}", r.write_bytes_per_s / 1e9))));
        let mark = |r: &Row| if r.caveat.is_some() { " !" } else { "" };
        row.extend(own.iter().map(|r| number(format!("{:.3}{}", r.read_bytes_per_s / 1e9, mark(r)))));
        table.add_row(row);
    }
    text += &table_text(&table);
    let verified: u64 = body.rows.iter().map(|r| r.verified_bytes).sum();
    text += &format!("\nevery byte is what was written: {} MiB compared\n", verified >> 20);
    for row in body.rows.iter().filter(|r| r.caveat.is_some()) {
        let why = row.caveat.as_deref().unwrap_or_default();
        text += &format!("! reading {} B, {}: {why}\n", row.transfer_bytes, word(row.interface));
    }
    text
}

fn word(interface: Interface) -> &'static str {
    match interface {
        Interface::File => "file",
        Interface::Memory => "memory",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &std::path::Path) -> Args {
        Args {
            dir: dir.into(),
            threads: 2,
            size: 64 << 10,
            transfer: vec![256, 4096],
            interface: vec![Interface::File, Interface::Memory],
            persist_at_end: false,
        }
    }

    #[test]
    fn every_interface_writes_reads_and_verifies_every_byte() {
        let dir = tempfile::tempdir().unwrap();
        let args = args(dir.path());
        for interface in [Interface::File, Interface::Memory] {
            for transfer in [256, 4096] {
                for each in [false, true] {
                    let row = measure(&args, interface, transfer, each).unwrap();
                    assert_eq!(row.verified_bytes, 128 << 10, "{interface:?} {transfer} {each}");
                }
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_a_file_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = |change: fn(&mut Args)| {
            let mut args = args(dir.path());
            change(&mut args);
            check(&args, TierKind::File).unwrap_err().kind()
        };
        assert_eq!(wrong(|a| a.threads = 0), Kind::Usage);
        assert_eq!(wrong(|a| a.transfer = vec![1 << 20]), Kind::Usage);
        assert_eq!(wrong(|a| a.size = 1 << 60), Kind::TierFull);
        assert_ne!(pattern(0, 4096), pattern(1, 4096));
    }
}
