//! `forebay bench lriot`: random reads or writes by more and more threads, through a mapping, past the page cache, and
//! through io_uring: the most requests a second, and the fewest threads that reach them.
//!
//! The question is that of study B. Guarantees: each measurement begins with nothing cached; whether the device really
//! delivered the bytes is checked by its own counters, and a reading that a cache answered is marked.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use forebay_probe::judge::{self, Bounds};
use forebay_probe::load::{self, Blocks, Engine, Job, Report, Uring};
use forebay_probe::scratch::Scratch;
use forebay_probe::subject::Reading;
use forebay_profile::{self, Estimate};
use forebay_tier::{capacity, Error, Kind, Result, TierKind};
use serde::Serialize;

use crate::schema;
use forebay_cli::output::{number, table_text, toned, Output, Tone};
use forebay_cli::sizes::size;

/// Sweep threads of random accesses: mapping against direct against io_uring, and the knee of each.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Directory on the file system to measure; a file without a name is made there.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Ways of access: mmap, direct (O_DIRECT, one request a thread), io_uring (O_DIRECT, --depth requests a thread).
    #[arg(long, value_name = "WAYS", value_delimiter = ',', default_value = "mmap,direct,io_uring")]
    ways: Vec<Way>,
    /// Numbers of threads.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    threads: Vec<u32>,
    /// Requests under way of each thread of io_uring.
    #[arg(long, value_name = "N", default_value_t = 16)]
    depth: u32,
    /// Bytes of a request.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = size)]
    block: u64,
    /// Bytes of the file; never more than half of what is free.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    size: u64,
    /// Seconds of each measurement.
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    /// Share of reads in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    reads: u32,
}

/// See [`Args::ways`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
enum Way {
    /// Loads and stores through a mapping of the file.
    #[value(name = "mmap")]
    #[serde(rename = "mmap")]
    Mmap,
    /// System calls past the page cache.
    #[value(name = "direct")]
    #[serde(rename = "direct")]
    Direct,
    /// io_uring past the page cache.
    #[value(name = "io_uring")]
    #[serde(rename = "io_uring")]
    IoUring,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Mmap => "mmap",
            Way::Direct => "direct",
            Way::IoUring => "io_uring",
        }
    }
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    block_bytes: u64,
    file_bytes: u64,
    reads_percent: u32,
    seconds: f64,
    depth: u32,
    points: Vec<Point>,
    knees: Vec<Knee>,
}

#[derive(Clone, Debug, Serialize)]
struct Point {
    way: Way,
    threads: u32,
    iops: f64,
    bytes_per_s: f64,
    p50_ns: u64,
    p99_ns: u64,
    /// Moved by the requests that count: read, written.
    bytes: [u64; 2],
    /// Moved by the device below meanwhile, for all processes; None where no counter exists.
    device_bytes: Option<[u64; 2]>,
    caveat: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Knee {
    way: Way,
    iops: f64,
    threads: u32,
    iops_there: f64,
}

/// The most requests a second of each way, and the fewest threads that reach 95 % of it. Marked points do not count.
fn knees(points: &[Point], ways: &[Way]) -> Vec<Knee> {
    let of = |way: &Way| {
        let own = points.iter().filter(|p| p.way == *way && p.caveat.is_none());
        let point = |p: &Point| forebay_profile::Point::new(f64::from(p.threads), Estimate::bare(p.iops));
        let mut curve: Vec<forebay_profile::Point> = own.map(point).collect();
        curve.sort_by(|a, b| a.x.total_cmp(&b.x));
        let found = forebay_profile::knee::knee(&curve)?;
        let (threads, iops_there) = (found.reached_at as u32, found.reached.value);
        Some(Knee { way: *way, iops: found.highest.value, threads, iops_there })
    };
    ways.iter().filter_map(of).collect()
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    check(args)?;
    let free = capacity::headroom(&args.dir, TierKind::File)?;
    let bytes = args.size.min(free.bytes / 2) / args.block * args.block;
    if bytes < args.block * 2 {
        return Err(Error::new(Kind::TierFull, "not enough free space for the file to measure with")
            .with("free_bytes", free.bytes)
            .with("limited_by", free.limited_by));
    }
    let scratch = Scratch::make(&args.dir)?;
    fill(&scratch, bytes)?;
    let mut points = Vec::new();
    for threads in &args.threads {
        for way in &args.ways {
            scratch.settle()?;
            points.push(measure(args, &scratch, bytes, *way, *threads)?);
            let last = &points[points.len() - 1];
            out.progress(&format!("{} threads, {}: {:.0} IOPS", threads, way.name(), last.iops));
        }
    }
    let body = Body {
        provenance: "measured",
        place: args.dir.display().to_string(),
        block_bytes: args.block,
        file_bytes: bytes,
        reads_percent: args.reads,
        seconds: args.seconds,
        depth: args.depth,
        knees: knees(&points, &args.ways),
        points,
    };
    out.result(schema::BENCH_LRIOT, &body, || text(args, &body, out))?;
    Ok(0)
}

fn check(args: &Args) -> Result<()> {
    let wrong = |what: &str| Err(Error::new(Kind::Usage, what));
    if args.reads > 100 {
        return wrong("--reads is a share in percent, at most 100");
    }
    if args.threads.iter().any(|t| *t == 0 || *t > 1024) {
        return wrong("--threads are 1 to 1024 each");
    }
    if args.seconds.is_nan() || args.seconds <= 0.0 || args.seconds > 3600.0 {
        return wrong("--seconds is more than 0, at most 3600");
    }
    if args.block == 0 || args.block > 1 << 30 || args.block % 512 != 0 {
        return wrong("--block is a multiple of 512, at most 1 GiB");
    }
    Ok(())
}

pub(super) fn fill(scratch: &Scratch, bytes: u64) -> Result<()> {
    let job = Job {
        reads: false,
        writes: true,
        blocks: [Blocks::One(1 << 20), Blocks::One(1 << 20)],
        size: bytes,
        fsync_at_end: true,
        ..Job::new("fill", vec![scratch.path()])
    };
    one(&[job]).map(|_| ())
}

/// Runs jobs to their end; a failure of one is the error.
pub(super) fn one(jobs: &[Job]) -> Result<(Report, Option<[u64; 2]>)> {
    let outcome = load::run(jobs, &AtomicBool::new(false), &mut |_| ())?;
    let sum = Report::merge(&outcome.reports);
    if let Some(failure) = &sum.failure {
        let source = std::io::Error::from_raw_os_error(failure.errno);
        return Err(Error::io(failure.what.clone(), source));
    }
    let mut moved = [0, 0];
    outcome.devices.iter().for_each(|d| (0..2).for_each(|way| moved[way] += d.bytes[way]));
    Ok((sum, (!outcome.devices.is_empty()).then_some(moved)))
}

fn job(args: &Args, path: PathBuf, bytes: u64, way: Way) -> Job {
    let block = Blocks::One(args.block as u32);
    Job {
        engine: match way {
            Way::Mmap => Engine::Mmap,
            Way::Direct => Engine::Sync,
            Way::IoUring => Engine::IoUring(Uring::default()),
        },
        direct: way != Way::Mmap,
        reads: args.reads > 0,
        writes: args.reads < 100,
        read_percent: args.reads,
        random_percent: 100,
        blocks: [block.clone(), block],
        size: bytes,
        depth: if way == Way::IoUring { args.depth } else { 1 },
        limit_ns: (args.seconds * 1e9) as u64,
        time_based: true,
        ..Job::new(way.name(), vec![path])
    }
}

fn measure(args: &Args, scratch: &Scratch, bytes: u64, way: Way, threads: u32) -> Result<Point> {
    let (report, device_bytes) = one(&job(args, scratch.path(), bytes, way).clones(threads))?;
    let reading = Reading {
        operations: [report.read.ios, report.write.ios],
        bytes: [report.read.bytes, report.write.bytes],
        ns: report.runtime_ns,
        device_bytes,
    };
    let times = if args.reads > 0 { &report.read.total } else { &report.write.total };
    Ok(Point {
        way,
        threads,
        iops: reading.operations_per_s(),
        bytes_per_s: reading.bytes_per_s(),
        p50_ns: times.percentile_ns(50.0),
        p99_ns: times.percentile_ns(99.0),
        bytes: reading.bytes,
        device_bytes,
        caveat: judge::caveat(&reading, true, &Bounds::default()),
    })
}

fn text(args: &Args, body: &Body, out: &Output) -> String {
    let mut text = format!(
        "random accesses of {} B, {} % reads, file of {} MiB in {}, {} s each, io_uring with {} under way; \
         measured\n\n",
        body.block_bytes,
        body.reads_percent,
        body.file_bytes >> 20,
        body.place,
        body.seconds,
        body.depth
    );
    let mut heading = vec!["THREADS".to_string()];
    args.ways.iter().for_each(|way| heading.extend([format!("{} IOPS", way.name()), "p99 us".to_string()]));
    let mut table = out.table(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    for threads in &args.threads {
        let mut row = vec![number(threads)];
        for point in body.points.iter().filter(|p| p.threads == *threads) {
            let iops = format!("{:.0}{}", point.iops, if point.caveat.is_some() { " !" } else { "" });
            row.push(if point.caveat.is_some() { toned(iops, Tone::Notable) } else { number(iops) });
            row.push(number(format!("{:.1}", point.p99_ns as f64 / 1e3)));
        }
        table.add_row(row);
    }
    text += &table_text(&table);
    text += "\n";
    for knee in &body.knees {
        text += &format!(
            "{}: at most {:.0} IOPS; {} threads reach 95 % of it\n",
            knee.way.name(),
            knee.iops,
            knee.threads
        );
    }
    for point in body.points.iter().filter(|p| p.caveat.is_some()) {
        let why = point.caveat.as_deref().unwrap_or_default();
        text += &format!("! {} threads, {}: {why}\n", point.threads, point.way.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(way: Way, threads: u32, iops: f64) -> Point {
        Point {
            way,
            threads,
            iops,
            bytes_per_s: 0.0,
            p50_ns: 0,
            p99_ns: 0,
            bytes: [0, 0],
            device_bytes: None,
            caveat: None,
        }
    }

    #[test]
    fn the_knee_is_the_fewest_threads_near_the_most() {
        let mut points =
            vec![point(Way::Direct, 1, 50.0), point(Way::Direct, 2, 96.0), point(Way::Direct, 4, 100.0)];
        points.push(point(Way::Mmap, 1, 7.0));
        let wanted = Knee { way: Way::Direct, iops: 100.0, threads: 2, iops_there: 96.0 };
        assert_eq!(knees(&points, &[Way::Direct]), [wanted]);
        points[2].caveat = Some("a cache answered".into());
        let seen = knees(&points, &[Way::Direct, Way::Mmap]);
        assert_eq!(
            (seen[0].iops, seen[0].threads, seen[1].threads),
            (96.0, 2, 1),
            "marked points do not count"
        );
    }

    #[test]
    fn a_job_is_what_its_way_says() {
        let args = Args {
            dir: ".".into(),
            ways: vec![Way::Mmap],
            threads: vec![1],
            depth: 8,
            block: 4096,
            size: 1 << 20,
            seconds: 0.5,
            reads: 75,
        };
        let of = |way| job(&args, "f".into(), 1 << 20, way);
        assert!(!of(Way::Mmap).direct && of(Way::Direct).direct && of(Way::IoUring).direct);
        assert_eq!([of(Way::Direct).depth, of(Way::IoUring).depth], [1, 8]);
        let job = of(Way::IoUring);
        assert_eq!((job.reads, job.writes, job.read_percent, job.random_percent), (true, true, 75, 100));
        assert_eq!((job.limit_ns, job.time_based, job.invalidate), (500_000_000, true, true));
        assert!(check(&args).is_ok());
        assert!(check(&Args { block: 100, ..args }).is_err());
    }
}
