//! The reader of the micro-benchmark: every object once, compared with what it must hold.

use super::pattern::Pattern;
use super::{at_least_one, counts, object_bytes, shares, Access, Share, Source};
use crate::account::Account;
use crate::compute::{ComputeArgs, Computing};
use forebay_space::{Attribute, Error, Kind, OpenOptions, Reader, Result};
use gray_scott::exchange::Member;
use std::path::PathBuf;
use std::time::Instant;

/// Reads what `forebay app writer` writes and checks it, one rank of it.
///
/// Rank and number of ranks come from the environment (FOREBAY_RANK and FOREBAY_SIZE, or those of srun, flux and
/// mpiexec). Each rank reads the objects of the writer of its rank, or its part of all of them.
#[derive(Clone, Debug, clap::Args)]
pub struct ReaderArgs {
    /// Channel to read
    #[arg(long, value_name = "NAME", default_value = "objects")]
    pub channel: String,
    /// Objects that one call gets
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Look at objects where they lie, instead of copying them
    #[arg(long)]
    pub in_place: bool,
    /// Leave the contents unchecked: only their transfer is measured
    #[arg(long)]
    pub unchecked: bool,
    /// Compute phases
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Directory of account-RANK.json [default: a directory called like the component, in the run directory]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs one rank of the reader. Rank 0 says on standard error what was done.
pub fn run(args: ReaderArgs) -> Result<()> {
    read(&args, &OpenOptions::default())?.report(args.out)
}

/// Follows the channel to its end as one rank of the group.
///
/// # Errors
/// `Damaged` for an object that does not hold what its writer put; those of the channel.
pub fn read(args: &ReaderArgs, options: &OpenOptions) -> Result<Account> {
    at_least_one("the batch", args.batch)?;
    let member = Member::new(&args.channel, options, "reader")?;
    let mut account = Account::new("reader", &args.channel, &member, args.batch)?;
    let mut reader = Reader::open(&args.channel, &member.options)?;
    let mut source = Source::new(Access { batch: args.batch, in_place: args.in_place });
    let mut computing = Computing::new(&args.compute);
    let mut pattern: Option<(usize, Option<Pattern>)> = None;
    while let Some(version) = reader.begin_step(None)? {
        if pattern.is_none() {
            let bytes = object_bytes(&reader)?;
            let pattern_of = |seed| Pattern::new(seed, bytes);
            pattern = Some((bytes, (!args.unchecked).then(|| seed(&reader).map(pattern_of)).transpose()?));
        }
        let (bytes, pattern) = pattern.as_ref().expect("found above");
        let calls = account.begin_calls(&reader.stats());
        let counts = counts(&mut reader)?;
        for share in shares(&counts, member.size, member.rank) {
            let mut checking = std::time::Duration::ZERO;
            source.each(&mut reader, &share, *bytes, |index, object| {
                let began = Instant::now();
                let checked = pattern.as_ref().map_or(Ok(()), |p| check(p, &share, version, index, object));
                checking += began.elapsed();
                checked
            })?;
            account.compute_ns += checking.as_nanos() as u64;
            account.objects += share.objects.len() as u64;
        }
        reader.end_step()?;
        account.end_calls(&calls, &reader.stats());
        account.computing(|| computing.step());
        account.versions += 1;
    }
    account.counted(&reader.stats());
    reader.close()?;
    Ok(account)
}

fn seed(reader: &Reader) -> Result<u64> {
    match reader.attributes()?.get("seed") {
        Some(Attribute::Int(seed)) => Ok(*seed as u64),
        _ => Err(Error::new(Kind::Usage, "the channel does not say where its contents start")
            .with("channel", reader.name())
            .hint("only what `forebay app writer` writes can be checked; else --unchecked")),
    }
}

fn check(pattern: &Pattern, share: &Share, version: u64, index: usize, object: &[u8]) -> Result<()> {
    let wanted = pattern.object(share.rank, version, index);
    if object == wanted {
        return Ok(());
    }
    let at = object.iter().zip(wanted).position(|(a, b)| a != b);
    Err(Error::new(Kind::Damaged, "an object does not hold what its writer put")
        .with("writer_rank", share.rank)
        .with("version", version)
        .with("object", index)
        .with("first_wrong_byte", at.map_or("the length".to_owned(), |at| at.to_string()))
        .hint("the reader's channel was written by another program, or the data are damaged"))
}
