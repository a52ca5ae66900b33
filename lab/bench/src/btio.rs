//! `forebay bench btio`: the field of the solver dumped every few steps into files, shared by ranks or one for each.
//!
//! The question is that of study C (file systems on persistent memory): what the way in which ranks write costs on a
//! file system. Guarantees: each dump is on the medium before the next steps begin; all are read again, from the
//! medium, and compared with what was written; files go.

mod published;

use std::path::PathBuf;
use std::time::Instant;

use forebay_programs::bt::{Class, Dumped, Mode, Problem, TOLERANCE};
use forebay_tier::plain::PlainFile;
use forebay_tier::{capacity, device, Error, Kind, Result, TierKind};
use serde::Serialize;

use super::bt::{in_processes, threads_of, Finished};
use super::plot::{self, Picture, PlotArgs};
use crate::schema;
use forebay_cli::output::{number, table_text, Output};

/// Dump the field of a solver every few steps (NPB's BTIO), by ranks that share a file or have one each, and read it
/// again.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Modes: full (ranks exchange the field, each writes whole planes), simple (each writes its rows \
                        where they belong, one request for each), epio (a file for each rank). A dump is on the \
                        medium before the next step begins."
)]
pub struct Args {
    /// Problem class
    #[arg(long, value_enum, default_value = "W")]
    class: Class,
    /// Ways to write
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_value = "full,simple,epio")]
    mode: Vec<Mode>,
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Threads of each; by default the processors, shared out over ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Steps from one dump to the next
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Directory of the files
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    #[command(flatten)]
    plot: PlotArgs,
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    place: String,
    tier: TierKind,
    class: Class,
    n: usize,
    ranks: u32,
    threads: u32,
    every: u64,
    dumps: u64,
    dump_bytes: u64,
    /// One process that writes the same bytes dump by dump, each made durable, and reads them again cold.
    plain: Speeds,
    rows: Vec<Row>,
    published: Vec<published::Row>,
}

#[derive(Clone, Copy, Serialize)]
struct Speeds {
    write_bytes_per_s: f64,
    read_bytes_per_s: f64,
}

const MIB: (f64, &str) = (1.0 / 1_048_576.0, "MiB/s");
const PUBLISHED: &[&str] = &["mode", "file_system", "gigabytes"];
const PICTURES: [Picture; 4] = [
    Picture::of("Writing", "rows", &["mode"], "write_bytes_per_s", MIB),
    Picture::of("Writing", "published", PUBLISHED, "write_mib_per_s", (1.0, "MiB/s"))
        .but("write_mib_per_s", "published"),
    Picture::of("Reading", "rows", &["mode"], "read_bytes_per_s", MIB),
    Picture::of("Reading", "published", PUBLISHED, "read_mib_per_s", (1.0, "MiB/s"))
        .but("read_mib_per_s", "published"),
];

#[derive(Serialize)]
struct Row {
    mode: Mode,
    /// Time of the steps, dumps included.
    seconds: f64,
    requests: u64,
    write_seconds: f64,
    read_seconds: f64,
    #[serde(flatten)]
    speeds: Speeds,
    /// The largest relative difference to the published norms of all dumps, where dumps are as often as there.
    difference: Option<f64>,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let problem = Problem::of(args.class);
    let tier = device::detect(&args.directory)?;
    let dumps = problem.steps / args.every;
    if dumps == 0 {
        return Err(Error::new(Kind::Usage, "no dump before the last step").with("steps", problem.steps));
    }
    require_space(args, tier, dumps * problem.field_bytes())?;
    let threads = threads_of(args.threads, args.ranks);
    let plain = plain(args, dumps, problem.field_bytes())?;
    let mut rows = Vec::new();
    for mode in &args.mode {
        let failed = |e| Error::io(format!("cannot create a directory in {}", args.directory.display()), e);
        let dir = tempfile::Builder::new().prefix("forebay-btio-").tempdir_in(&args.directory);
        let dir = dir.map_err(failed)?;
        let path = std::path::absolute(dir.path()).map_err(failed)?.display().to_string();
        let every = args.every.to_string();
        let words = ["--dump", mode.name(), "--every", &every, "--directory", &path].map(String::from);
        let summary = match in_processes(args.class, args.ranks, threads, &words)? {
            Finished::Done(summary) => summary,
            Finished::Interrupted(status) => return Ok(status),
        };
        let dumped = summary.dumps.ok_or_else(|| Error::new(Kind::Internal, "nothing was dumped"))?;
        check(args, &dumped)?;
        rows.push(row(summary.seconds, &dumped));
        out.progress(&format!("{}: {:.2} s of writing", mode.name(), dumped.write_seconds));
    }
    let body = Body {
        provenance: "measured",
        place: args.directory.display().to_string(),
        tier,
        class: args.class,
        n: problem.n,
        ranks: args.ranks,
        threads,
        every: args.every,
        dumps,
        dump_bytes: problem.field_bytes(),
        plain,
        rows,
        published: published::nearest(dumps * problem.field_bytes()),
    };
    let facts =
        [format!("class {}, {} ranks", body.class, body.ranks), format!("{} ({})", body.tier, body.place)];
    plot::write(&args.plot, "btio", &facts, &body, &PICTURES, out)?;
    out.result(schema::BENCH_BTIO, &body, || text(&body, out))?;
    Ok(0)
}

/// Refuses before a byte is written.
fn require_space(args: &Args, tier: TierKind, bytes: u64) -> Result<()> {
    let free = capacity::headroom(&args.directory, tier)?;
    if bytes <= free.bytes / 2 {
        return Ok(());
    }
    Err(Error::new(Kind::TierFull, "not enough free space for the dumps")
        .with("wanted_bytes", bytes)
        .with("free_bytes", free.bytes)
        .with("limited_by", free.limited_by)
        .hint("a smaller --class, or fewer dumps by --every; at most half of what is free is taken"))
}

/// The machine's own speed at this, with one process and nothing to compute.
fn plain(args: &Args, dumps: u64, bytes: u64) -> Result<Speeds> {
    let file = PlainFile::nameless(&args.directory, 0)?.without_direct();
    let failed = |e| Error::io("cannot write or read dumps", e);
    let mut buffer = vec![0x5a; bytes as usize];
    let began = Instant::now();
    for dump in 0..dumps {
        file.write(dump * bytes, &buffer).and_then(|()| file.flush()).map_err(failed)?;
    }
    let write = began.elapsed().as_secs_f64();
    file.drop_cached().map_err(failed)?;
    let began = Instant::now();
    for dump in 0..dumps {
        file.read(dump * bytes, &mut buffer).map_err(failed)?;
    }
    let all = (dumps * bytes) as f64;
    Ok(Speeds { write_bytes_per_s: all / write, read_bytes_per_s: all / began.elapsed().as_secs_f64() })
}

fn row(seconds: f64, dumped: &Dumped) -> Row {
    let bytes = dumped.bytes as f64;
    Row {
        mode: dumped.mode,
        seconds,
        requests: dumped.requests,
        write_seconds: dumped.write_seconds,
        read_seconds: dumped.read_seconds,
        speeds: Speeds {
            write_bytes_per_s: bytes / dumped.write_seconds,
            read_bytes_per_s: bytes / dumped.read_seconds,
        },
        difference: dumped.difference,
    }
}

/// That the dumps are those of the published run.
fn check(args: &Args, dumped: &Dumped) -> Result<()> {
    match dumped.difference {
        Some(difference) if difference > TOLERANCE => {
            Err(Error::new(Kind::Damaged, "the norms of the dumps are not the published ones")
                .with("class", args.class)
                .with("mode", dumped.mode.name())
                .with("difference", format!("{difference:e}")))
        }
        _ => Ok(()),
    }
}

fn text(body: &Body, out: &Output) -> String {
    let mib = |bytes_per_s: f64| format!("{:.1}", bytes_per_s / f64::from(1 << 20));
    let mut text = format!(
        "{} dumps of {:.2} MiB (class {}, {} ranks) on {} ({}); measured\n\n",
        body.dumps,
        body.dump_bytes as f64 / f64::from(1 << 20),
        body.class,
        body.ranks,
        body.tier,
        body.place
    );
    let heading =
        ["MODE", "REQUESTS", "WRITE MiB/s", "BY PLAIN", "READ MiB/s", "BY PLAIN", "RUN s", "WRITING s"];
    let mut table = out.table(&heading);
    for row in &body.rows {
        let Speeds { write_bytes_per_s: write, read_bytes_per_s: read } = row.speeds;
        table.add_row(vec![
            comfy_table::Cell::new(row.mode.name()),
            number(row.requests),
            number(mib(write)),
            number(format!("{:.2}", write / body.plain.write_bytes_per_s)),
            number(mib(read)),
            number(format!("{:.2}", read / body.plain.read_bytes_per_s)),
            number(format!("{:.2}", row.seconds)),
            number(format!("{:.2}", row.write_seconds)),
        ]);
    }
    text += &table_text(&table);
    text += &format!(
        "\nplain: one process writes {} MiB/s and reads {} MiB/s, each dump at once and made durable\n",
        mib(body.plain.write_bytes_per_s),
        mib(body.plain.read_bytes_per_s)
    );
    text += "every dump was read again, cold, and is what was written\n\n";
    text + &published::text(&body.published, out)
}
