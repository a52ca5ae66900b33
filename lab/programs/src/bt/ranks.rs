//! BT as one rank of a group of processes: steps, and dumps of the field every few of them.

use std::path::PathBuf;
use std::time::Instant;

use forebay_space::{Error, Kind, OpenOptions, Result};
use serde::{Deserialize, Serialize};

use super::dump::{Dumps, Mode};
use super::{published, Class, Norms, Piece, Problem, COMPONENTS};
use gray_scott::exchange::Member;

/// Navier-Stokes equations by alternating directions (NPB's BT), one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux and
/// mpiexec); without them one process computes everything.
#[derive(Clone, Debug, clap::Args)]
pub struct BtArgs {
    /// Problem class
    #[arg(long, value_enum, default_value = "S")]
    pub class: Class,
    /// Threads of this rank
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: u32,
    /// Name of the space that ranks exchange pieces through, with `-bt`
    #[arg(long, value_name = "NAME", default_value = "bt")]
    pub channel: String,
    /// Dump the field every few steps, in this way
    #[arg(long, value_name = "MODE")]
    pub dump: Option<Mode>,
    /// Steps from one dump to the next
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// Directory of the dumps
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
    /// File that rank 0 writes its findings to, as JSON
    #[arg(long, value_name = "FILE")]
    pub result: Option<PathBuf>,
}

/// What a run came to; the same for all ranks but for the times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Problem class.
    pub class: Class,
    /// What was computed.
    pub problem: Problem,
    /// Processes.
    pub ranks: usize,
    /// Threads of each.
    pub threads: u32,
    /// Time of the steps, dumps included.
    pub seconds: f64,
    /// After the last step.
    pub norms: Norms,
    /// Their largest relative difference to the published ones.
    pub difference: f64,
    /// What the dumps came to.
    pub dumps: Option<Dumped>,
}

/// What dumps came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dumped {
    /// How.
    pub mode: Mode,
    /// How many.
    pub count: u64,
    /// Bytes of all.
    pub bytes: u64,
    /// Requests to write by all ranks.
    pub requests: u64,
    /// From the moment when all ranks began to write until all had it on the medium, of all dumps.
    pub write_seconds: f64,
    /// The same to read them all again.
    pub read_seconds: f64,
    /// Mean over dumps of the norms of the error of each as it was read.
    pub error: [f64; COMPONENTS],
    /// Their largest relative difference to the published means, where dumps are as often as there.
    pub difference: Option<f64>,
}

/// Runs one rank. Rank 0 says on standard error what was done.
///
/// # Errors
/// As [`simulate`]; what writing the result says.
pub fn run(args: BtArgs) -> Result<()> {
    match simulate(&args, &OpenOptions::default())? {
        (0, summary) => say(&args, &summary),
        _ => Ok(()),
    }
}

/// Computes as one rank to the end: its number, and what came out. `options` say who it is; else the environment does.
///
/// # Errors
/// `Damaged` when a dump is not what was written; what spaces and files say.
pub fn simulate(args: &BtArgs, options: &OpenOptions) -> Result<(usize, Summary)> {
    let member = Member::new(&args.channel, options, "bt")?;
    let problem = Problem::of(args.class);
    let mut piece = Piece::new(problem, &args.channel, &member, args.threads as usize)?;
    match compute(args, &member, &mut piece) {
        Ok(summary) => piece.finish().map(|()| (member.rank, summary)),
        Err(e) => {
            // As if this process had died: the others must not wait for it.
            piece.abandon();
            Err(e)
        }
    }
}

fn compute(args: &BtArgs, member: &Member, piece: &mut Piece) -> Result<Summary> {
    let problem = piece.problem();
    let mut dumping = args.dump.map(|mode| Dumping::begin(args, mode, member, piece)).transpose()?;
    piece.meet()?;
    let began = Instant::now();
    while piece.step() < problem.steps {
        piece.advance()?;
        if let Some(dumping) = dumping.as_mut().filter(|_| piece.step() % args.every == 0) {
            dumping.write(piece)?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let norms = piece.norms()?;
    let dumps = dumping.map(|dumping| dumping.read(args, piece)).transpose()?;
    Ok(Summary {
        class: args.class,
        problem,
        ranks: member.size,
        threads: args.threads,
        seconds,
        norms,
        difference: norms.difference(args.class),
        dumps,
    })
}

fn say(args: &BtArgs, summary: &Summary) -> Result<()> {
    let Problem { n, steps, .. } = summary.problem;
    eprintln!(
        "bt: class {}, {steps} steps of {n} x {n} x {n} points on {} in {:.2} s, {:.1e} from the published norms",
        summary.class,
        crate::ranks(summary.ranks),
        summary.seconds,
        summary.difference,
    );
    let Some(file) = &args.result else { return Ok(()) };
    let text = serde_json::to_vec(summary).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
    std::fs::write(file, text).map_err(|e| Error::io(format!("cannot write {}", file.display()), e))
}

/// The dumps of a rank, and what it knows of them.
struct Dumping {
    dumps: Dumps,
    mode: Mode,
    /// For each dump, for each plane.
    sums: Vec<[f64; COMPONENTS]>,
    seconds: f64,
    count: u64,
}

impl Dumping {
    fn begin(args: &BtArgs, mode: Mode, member: &Member, piece: &mut Piece) -> Result<Dumping> {
        Dumps::make(&args.directory, mode, member.rank)?;
        piece.meet()?;
        let dumps = Dumps::open(&args.directory, mode, piece.problem(), member.rank)?;
        Ok(Dumping { dumps, mode, sums: Vec::new(), seconds: 0.0, count: 0 })
    }

    fn write(&mut self, piece: &mut Piece) -> Result<()> {
        let problem = piece.problem();
        let (planes, values) = piece.saved();
        let each = planes.zip(values.chunks_exact(problem.plane_values()));
        self.sums.extend(each.map(|(k, plane)| problem.error_sums(k, plane)));
        piece.meet()?;
        let began = Instant::now();
        self.dumps.write(piece)?;
        piece.meet()?;
        self.seconds += began.elapsed().as_secs_f64();
        self.count += 1;
        Ok(())
    }

    fn read(self, args: &BtArgs, piece: &mut Piece) -> Result<Dumped> {
        let problem = piece.problem();
        let planes = piece.saved().0;
        self.dumps.forget()?;
        piece.meet()?;
        let began = Instant::now();
        let sums = self.dumps.read(planes.clone())?;
        piece.meet()?;
        let read_seconds = began.elapsed().as_secs_f64();
        if sums != self.sums {
            let first = sums.iter().zip(&self.sums).position(|(read, written)| read != written);
            return Err(Error::new(Kind::Damaged, "a dump is not what was written")
                .with("dump", first.unwrap_or(0) / planes.len())
                .with("plane", planes.start + first.unwrap_or(0) % planes.len()));
        }
        let mut error = [0.0; COMPONENTS];
        for dump in sums.chunks_exact(planes.len()) {
            let of_dump = piece.add_planes(planes.clone(), &dump.concat())?;
            let norms = problem
                .norms(&Norms { residual: [0.0; COMPONENTS], error: std::array::from_fn(|m| of_dump[m]) });
            error.iter_mut().zip(norms.error).for_each(|(mean, x)| *mean += x / self.count as f64);
        }
        let mut requests = [self.dumps.requests() as f64];
        piece.add_up(&mut requests)?;
        let as_published = args.every == published::DUMP_EVERY;
        Ok(Dumped {
            mode: self.mode,
            count: self.count,
            bytes: self.count * problem.field_bytes(),
            requests: requests[0] as u64,
            write_seconds: self.seconds,
            read_seconds,
            error,
            difference: as_published.then(|| published::dump_difference(args.class, &error)),
        })
    }
}
