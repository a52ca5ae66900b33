//! The writer of the micro-benchmark: so many objects of one size in each version, and a compute phase.

use super::pattern::Pattern;
use super::{at_least_one, describe, put_count, put_slices, Names};
use crate::account::Account;
use crate::compute::{ComputeArgs, Computing};
use forebay_space::{parse_bytes, Attribute, OpenOptions, Result, Writer};
use gray_scott::exchange::Member;
use std::path::PathBuf;

/// Objects of one size into a channel, one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux and
/// mpiexec). Contents follow from rank, step and index, so that `forebay app reader` can check them.
#[derive(Clone, Debug, clap::Args)]
pub struct WriterArgs {
    /// Channel to write
    #[arg(long, value_name = "NAME", default_value = "objects")]
    pub channel: String,
    /// Bytes of an object
    #[arg(long, value_name = "SIZE", default_value = "2KiB", value_parser = size)]
    pub object: u64,
    /// Objects that each rank puts in a version
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub count: usize,
    /// Versions
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub steps: u64,
    /// Objects that one call puts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Where the contents start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Compute phases
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Directory of account-RANK.json [default: a directory called like the component, in the run directory]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// A size as people type it.
pub(crate) fn size(text: &str) -> std::result::Result<u64, String> {
    parse_bytes(text).map_err(|e| e.message().to_string())
}

/// Runs one rank of the writer. Rank 0 says on standard error what was done.
pub fn run(args: WriterArgs) -> Result<()> {
    write(&args, &OpenOptions::default())?.report(args.out)
}

/// Writes all versions as one rank of the group. A group that was restarted goes on behind what is complete.
pub fn write(args: &WriterArgs, options: &OpenOptions) -> Result<Account> {
    at_least_one("the number of objects", args.count)?;
    at_least_one("the batch", args.batch)?;
    at_least_one("the size of an object", args.object as usize)?;
    let member = Member::new(&args.channel, options, "writer")?;
    let mut account = Account::new("writer", &args.channel, &member, args.batch)?;
    let mut writer = Writer::open(&args.channel, &member.options)?;
    match put_all(args, &mut writer, &mut account) {
        Ok(()) => {
            account.counted(&writer.stats());
            writer.close().map(|()| account)
        }
        Err(e) => {
            writer.abandon();
            Err(e)
        }
    }
}

fn put_all(args: &WriterArgs, writer: &mut Writer, account: &mut Account) -> Result<()> {
    let (rank, bytes) = (account.rank, args.object as usize);
    let first = writer.resume()?;
    account.skipped = first.min(args.steps);
    if rank == 0 {
        describe(writer, "writer", bytes)?;
        writer.set_attribute("seed", &Attribute::Int(args.seed as i64))?;
    }
    let pattern = Pattern::new(args.seed, bytes);
    let mut computing = Computing::new(&args.compute);
    let mut names = Names::new(rank);
    let names = names.first(args.count);
    for step in first..args.steps {
        account.computing(|| computing.step());
        let calls = account.begin_calls(&writer.stats());
        writer.begin_version(step)?;
        put_slices(writer, names, args.batch, |index| pattern.object(rank, step, index))?;
        put_count(writer, args.count)?;
        writer.end_step()?;
        account.end_calls(&calls, &writer.stats());
        account.versions += 1;
        account.objects += args.count as u64;
    }
    Ok(())
}
