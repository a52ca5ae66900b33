//! The simulation as one rank of a group of processes: steps, ghost planes, output.
//!
//! Guarantees: what comes out does not depend on the number of ranks or the split. A group that was restarted
//! computes from the beginning again (the computation is deterministic) and puts nothing that is complete
//! already, so readers see every version once. Not here: checkpoints.

use super::deck::Deck;
use super::field::{Cell, Fields};
use super::halo::Halo;
use super::solver::Solver;
use super::split::Split;
use crate::exchange::Member;
use crate::in_place::{put_filled, Placed};
use forebay_space::{Attribute, Dtype, Error, Kind, OpenOptions, Result, Writer};
use std::marker::PhantomData;

/// What a rank did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Parts along z, y, x.
    pub parts: [usize; 3],
    /// Steps computed.
    pub steps: u64,
    /// Versions put by this incarnation.
    pub versions_put: u64,
    /// Versions that were complete already and were left alone.
    pub versions_skipped: u64,
}

/// Runs one rank of the simulation to its end and writes its output to `channel`.
///
/// `options` are those of the channel; rank and size come from there or from the environment. Blocks for as
/// long as the run takes: in each step for the neighbours, in each output for free space in the channel, each time
/// until the timeout of the options.
pub fn simulate(deck: &Deck, channel: &str, options: &OpenOptions) -> Result<Summary> {
    deck.validate()?;
    let member = Member::new(channel, options, "gray-scott")?;
    let split = deck.split(member.size)?;
    match deck.dtype {
        Dtype::F32 => run::<f32>(deck, channel, &member, &split),
        _ => run::<f64>(deck, channel, &member, &split),
    }
}

fn run<T: Cell>(deck: &Deck, channel: &str, member: &Member, split: &Split) -> Result<Summary> {
    let mut output = Output::<T>::open(deck, channel, member)?;
    let mut halo = None;
    let computed = Halo::<T>::open(channel, member, split)
        .map(|opened| halo = opened)
        .and_then(|()| compute(deck, member, split, &mut output, &mut halo));
    if let Err(e) = computed {
        // As if this process had died: readers and the other ranks must not take it for the end.
        output.writer.abandon();
        halo.into_iter().for_each(Halo::abandon);
        return Err(e);
    }
    let (versions_put, versions_skipped) = (output.put, output.skipped);
    output.writer.close()?;
    halo.map_or(Ok(()), Halo::finish)?;
    let (rank, ranks) = (member.rank, member.size);
    Ok(Summary { rank, ranks, parts: split.parts, steps: deck.steps, versions_put, versions_skipped })
}

fn compute<T: Cell>(
    deck: &Deck,
    member: &Member,
    split: &Split,
    output: &mut Output<T>,
    halo: &mut Option<Halo<T>>,
) -> Result<()> {
    let mut solver = Solver::<T>::new(deck, split, member.rank)?;
    loop {
        let step = solver.step();
        if step % deck.output_every == 0 {
            output.put(deck, step / deck.output_every, solver.fields())?;
        }
        if step == deck.steps {
            return Ok(());
        }
        if let Some(halo) = halo {
            halo.publish(step, solver.fields())?;
        }
        // While the neighbours' planes are on their way.
        solver.advance_inner();
        if let Some(halo) = halo {
            halo.collect(step, solver.fields_mut())?;
        }
        solver.finish_step();
    }
}

/// The channel that the field goes to.
struct Output<T> {
    writer: Writer,
    /// Versions below this one are complete.
    first: u64,
    put: u64,
    skipped: u64,
    shape: [u64; 3],
    cells: PhantomData<T>,
}

impl<T: Cell> Output<T> {
    fn open(deck: &Deck, channel: &str, member: &Member) -> Result<Output<T>> {
        let options = member.options.clone();
        let mut writer = Writer::open(channel, &options)?;
        let first = writer.resume()?;
        if member.rank == 0 {
            describe(&mut writer, deck)?;
        }
        let shape = deck.shape.map(|n| n as u64);
        Ok(Output { writer, first, put: 0, skipped: 0, shape, cells: PhantomData })
    }

    /// Puts U and V of this rank's box as `version`, unless it is complete.
    fn put(&mut self, deck: &Deck, version: u64, fields: &Fields<T>) -> Result<()> {
        if !fields.is_finite() {
            return Err(Error::new(
                Kind::Usage,
                "the simulation has diverged: the field is no longer finite",
            )
            .with("step", version * deck.output_every)
            .with("dt", deck.dt)
            .hint("a smaller dt, or smaller noise"));
        }
        if version < self.first {
            self.skipped += 1;
            return Ok(());
        }
        let new = self.writer.begin_version(version)?;
        if new {
            self.put_one("U", fields, &fields.u)?;
            self.put_one("V", fields, &fields.v)?;
        }
        self.writer.end_step()?;
        *(if new { &mut self.put } else { &mut self.skipped }) += 1;
        Ok(())
    }

    fn put_one(&mut self, name: &str, fields: &Fields<T>, array: &[T]) -> Result<()> {
        let (start, count) = (fields.start.map(|n| n as u64), fields.count.map(|n| n as u64));
        let place = Placed { shape: &self.shape, start: &start, count: &count };
        put_filled(&mut self.writer, name, &place, |out| fields.copy_inner(array, out))
    }
}

/// Says in the channel's attributes what is in it.
fn describe(writer: &mut Writer, deck: &Deck) -> Result<()> {
    let shape = deck.shape.iter().map(|&n| n as i64).collect();
    let source = format!("forebay gray-scott {}", env!("CARGO_PKG_VERSION"));
    for (key, value) in [
        ("source", Attribute::Text(source)),
        ("pattern", Attribute::Text(deck.pattern.clone())),
        ("F", Attribute::Float(deck.feed)),
        ("k", Attribute::Float(deck.kill)),
        ("Du", Attribute::Float(deck.diffusion_u)),
        ("Dv", Attribute::Float(deck.diffusion_v)),
        ("dt", Attribute::Float(deck.dt)),
        ("shape", Attribute::Ints(shape)),
        ("dtype", Attribute::Text(deck.dtype.name().to_owned())),
        ("steps", Attribute::Int(deck.steps as i64)),
        ("output_every", Attribute::Int(deck.output_every as i64)),
    ] {
        writer.set_attribute(key, &value)?;
    }
    Ok(())
}
