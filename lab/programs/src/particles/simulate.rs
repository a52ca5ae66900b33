//! The particle code as one rank of a group of processes: steps, the sum of the densities, output.
//!
//! A group that was restarted computes from the beginning again (the computation is deterministic) and puts nothing
//! that is complete already.

use super::grid::PLANES;
use super::plasma::{Plasma, Setup, Totals, ROWS};
use super::ParticlesArgs;
use crate::account::Account;
use crate::objects::{at_least_one, LAYOUT};
use forebay_space::{Attribute, OpenOptions, Result, Writer};
use gray_scott::exchange::{Exchange, Member, Readers};
use gray_scott::in_place::{put_filled, Placed};

/// Attribute that names the arrays of a channel of particles.
pub(crate) const ARRAYS: &str = "arrays";

/// Adds up what all ranks contribute to the field, in the order of the ranks.
struct Sum {
    link: Option<Exchange>,
    round: u64,
}

impl Sum {
    fn open(channel: &str, member: &Member, setup: &Setup) -> Result<Sum> {
        let bytes = 8 * setup.contribution() as u64;
        let link = match member.size {
            1 => None,
            _ => Some(Exchange::open(&format!("{channel}-density"), member, Readers::All, bytes)?),
        };
        Ok(Sum { link, round: 0 })
    }

    /// Puts the sum in the place of this rank's part of it.
    fn add_up(&mut self, part: &mut [f64]) -> Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        link.add_up(self.round, "density", part)?;
        self.round += 1;
        Ok(())
    }
}

/// Runs one rank of the simulation to its end. Returns its account and what was conserved, at the beginning and at
/// the end.
pub fn simulate(args: &ParticlesArgs, options: &OpenOptions) -> Result<(Account, Option<[Totals; 2]>)> {
    let setup = Setup::of_scale(args.scale, args.dt, args.seed)?;
    at_least_one("the number of steps between versions", args.output_every as usize)?;
    let member = Member::new(&args.channel, options, "particles")?;
    let mut account = Account::new("particles", &args.channel, &member, 1)?;
    let options = member.options.clone();
    let mut writer = Writer::open(&args.channel, &options)?;
    let mut sum = None;
    let computed = Sum::open(&args.channel, &member, &setup)
        .and_then(|opened| compute(args, &setup, &mut writer, sum.insert(opened), &mut account));
    let link = sum.and_then(|sum| sum.link);
    match computed {
        Ok(totals) => {
            account.counted(&writer.stats());
            writer.close()?;
            link.map_or(Ok(()), Exchange::finish)?;
            Ok((account, totals))
        }
        Err(e) => {
            // As if this process had died: readers and the other ranks must not take it for the end.
            writer.abandon();
            link.into_iter().for_each(Exchange::abandon);
            Err(e)
        }
    }
}

fn compute(
    args: &ParticlesArgs,
    setup: &Setup,
    writer: &mut Writer,
    sum: &mut Sum,
    account: &mut Account,
) -> Result<Option<[Totals; 2]>> {
    let first = writer.resume()?;
    if account.rank == 0 {
        describe(args, setup, writer)?;
    }
    let rank = account.rank;
    let mut plasma = account.computing(|| Plasma::new(setup, rank));
    let mut total = vec![0.0; setup.contribution()];
    let now = field(&mut plasma, &mut total, sum, account)?;
    plasma.check(now)?;
    for version in 0..args.steps {
        for _ in 0..args.output_every {
            account.computing(|| plasma.advance_to_middle());
            field(&mut plasma, &mut total, sum, account)?;
            account.computing(|| plasma.advance_to_end());
            let now = field(&mut plasma, &mut total, sum, account)?;
            account.computing(|| plasma.check(now))?;
        }
        let calls = account.begin_calls(&writer.stats());
        if version < first || !writer.begin_version(version)? {
            account.skipped += 1;
            if version >= first {
                writer.end_step()?;
            }
            continue;
        }
        account.objects += put(args, &plasma, setup, writer)?;
        writer.end_step()?;
        account.end_calls(&calls, &writer.stats());
        account.versions += 1;
    }
    Ok(plasma.totals())
}

/// Density of all ranks, then the field.
fn field(plasma: &mut Plasma, total: &mut [f64], sum: &mut Sum, account: &mut Account) -> Result<Totals> {
    account.computing(|| plasma.contribute(total));
    sum.add_up(total)?;
    account.computing(|| plasma.take_field(total))
}

/// Puts this rank's arrays; returns how many.
fn put(args: &ParticlesArgs, plasma: &Plasma, setup: &Setup, writer: &mut Writer) -> Result<u64> {
    let (rank, ranks) = (u64::from(writer.rank()), u64::from(writer.size()));
    let n = setup.particles as u64;
    let shape = [ranks, ROWS as u64, n];
    let (start, count) = ([rank, 0, 0], [1, ROWS as u64, n]);
    let mut arrays = vec![("ions", plasma.state())];
    if args.full_state {
        arrays.push(("ions_before", plasma.before()));
    }
    for (name, array) in &arrays {
        let place = Placed { shape: &shape, start: &start, count: &count };
        put_filled(writer, name, &place, |out: &mut [f64]| out.copy_from_slice(array))?;
    }
    if rank == 0 {
        let side = setup.grid.side as u64;
        let shape = [PLANES as u64, side, side];
        writer.put_array("phi", &shape, &[0; 3], &shape, plasma.potential())?;
    }
    Ok(arrays.len() as u64 + u64::from(rank == 0))
}

/// Says in the channel's attributes what is in it.
fn describe(args: &ParticlesArgs, setup: &Setup, writer: &mut Writer) -> Result<()> {
    let arrays = if args.full_state { "ions,ions_before" } else { "ions" };
    for (key, value) in [
        ("program", Attribute::Text("particles".to_owned())),
        (LAYOUT, Attribute::Text("arrays".to_owned())),
        (ARRAYS, Attribute::Text(arrays.to_owned())),
        ("dt", Attribute::Float(args.dt)),
        ("output_every", Attribute::Int(args.output_every as i64)),
        ("particles_per_rank", Attribute::Int(setup.particles as i64)),
    ] {
        writer.set_attribute(key, &value)?;
    }
    Ok(())
}
