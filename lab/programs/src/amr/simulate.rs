//! The adaptive stencil as one rank of a group of processes: stages, regridding, output, checks.
//!
//! Guarantees: the field is the same bit for bit for every number of ranks. After every time step the sum of each
//! variable is what it was at the beginning, and neighbouring levels differ by one at most; else the run ends with
//! an error. A group that was restarted computes from the beginning again and puts nothing that is complete already.

use super::blocks::{Blocks, Origin, Others, Shape};
use super::halo::{groups, Link, Shown};
use super::mesh::{Mesh, Sphere};
use super::AmrArgs;
use crate::account::Account;
use crate::objects::{at_least_one, describe, put_count, Names};
use forebay_space::{Attribute, Dtype, Error, Kind, OpenOptions, Result, Writer};
use gray_scott::exchange::Member;
use gray_scott::simulation::split::part;
use std::collections::BTreeSet;

/// Objects of a rank at scale 1.
const OBJECTS: f64 = 528e3;
/// How far the sum of a variable may be from what it was, relatively.
const SUM_TOLERANCE: f64 = 1e-11;
/// Most levels.
const LEVELS_MAX: u32 = 12;

/// What became of the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Adapted {
    /// Fewest blocks of all ranks.
    pub blocks_min: usize,
    /// Most.
    pub blocks_max: usize,
    /// Times that the mesh changed.
    pub regriddings: u64,
    /// Largest relative change of a variable's sum.
    pub drift: f64,
}

/// Runs one rank of the simulation to its end.
pub fn simulate(args: &AmrArgs, options: &OpenOptions) -> Result<(Account, Adapted)> {
    check(args)?;
    let member = Member::new(&args.channel, options, "amr")?;
    let mut account = Account::new("amr", &args.channel, &member, args.batch)?;
    let options = member.options.clone();
    let mut writer = Writer::open(&args.channel, &options)?;
    let mut run = None;
    let computed = Run::open(args, &member, &mut account)
        .and_then(|opened| run.insert(opened).compute(args, &mut writer, &mut account));
    let link = run.map(|run| run.link);
    match computed {
        Ok(adapted) => {
            account.counted(&writer.stats());
            writer.close()?;
            link.map_or(Ok(()), Link::finish)?;
            Ok((account, adapted))
        }
        Err(e) => {
            // As if this process had died: readers and the other ranks must not take it for the end.
            writer.abandon();
            link.into_iter().for_each(Link::abandon);
            Err(e)
        }
    }
}

fn check(args: &AmrArgs) -> Result<()> {
    at_least_one("the number of variables", args.variables)?;
    at_least_one("the batch", args.batch)?;
    at_least_one("the number of steps between regriddings", args.refine_every as usize)?;
    if args.edge < 6 || args.edge % 2 != 0 {
        return Err(Error::new(Kind::Usage, "the edge of a block is to be even and at least 6")
            .with("edge", args.edge));
    }
    if !(args.scale.is_finite() && args.scale > 0.0) || args.levels > LEVELS_MAX {
        return Err(Error::new(Kind::Usage, "the scale is to be positive, and the finest level at most 12"));
    }
    Ok(())
}

/// The mesh of the next time step, when it is another one.
fn next_mesh(mesh: &Mesh, step: u64, refine_every: u64) -> Option<Mesh> {
    let due = step > 0 && step % refine_every == 0;
    due.then(|| mesh.regridded(&Sphere::at_step(step))).filter(|next| next != mesh)
}

struct Run {
    mesh: Mesh,
    blocks: Blocks,
    shown: Shown,
    wanted: BTreeSet<usize>,
    link: Link,
    rank: usize,
    ranks: usize,
    sums: Vec<f64>,
    adapted: Adapted,
}

impl Run {
    fn open(args: &AmrArgs, member: &Member, account: &mut Account) -> Result<Run> {
        let shape = Shape { edge: args.edge, variables: args.variables };
        let (rank, ranks) = (member.rank, member.size);
        let blocks = (OBJECTS * args.scale * ranks as f64 / args.variables as f64).ceil().max(1.0) as usize;
        let mesh = Mesh::of_size(blocks, args.levels);
        // Keys only, so it takes little; the ranks' link needs to know how large a round can become.
        let (mut largest, mut ahead) = (mesh.leaves().len(), mesh.clone());
        for step in 1..args.steps {
            ahead = next_mesh(&ahead, step, args.refine_every).unwrap_or(ahead);
            largest = largest.max(ahead.leaves().len());
        }
        let link = Link::open(&args.channel, member, shape, largest)?;
        let own = part(mesh.leaves().len(), ranks, rank);
        let blocks = account.computing(|| Blocks::initial(shape, &mesh, own, args.seed))?;
        let shown = Shown::borders(&mesh, ranks)?;
        let count = mesh.leaves().len();
        let adapted = Adapted { blocks_min: count, blocks_max: count, ..Adapted::default() };
        let wanted = blocks.needed().collect();
        Ok(Run { mesh, blocks, shown, wanted, link, rank, ranks, sums: Vec::new(), adapted })
    }

    fn compute(&mut self, args: &AmrArgs, writer: &mut Writer, account: &mut Account) -> Result<Adapted> {
        let first = writer.resume()?;
        if self.rank == 0 {
            describe(writer, "amr", 8 * self.blocks.shape.object_words())?;
            writer.set_attribute("edge", &Attribute::Int(args.edge as i64))?;
            writer.set_attribute("variables", &Attribute::Int(args.variables as i64))?;
        }
        self.mesh.check()?;
        self.sums = self.total()?;
        let mut names = Names::new(self.rank);
        for step in 0..args.steps {
            if let Some(next) = next_mesh(&self.mesh, step, args.refine_every) {
                self.regrid(next, account)?;
            }
            for _ in 0..args.stages {
                self.stage(account)?;
            }
            self.check_sums()?;
            let calls = account.begin_calls(&writer.stats());
            if step < first || !writer.begin_version(step)? {
                account.skipped += 1;
                if step >= first {
                    writer.end_step()?;
                }
                continue;
            }
            let objects = self.blocks.keys().len() * args.variables;
            self.put(writer, names.first(objects), args.batch, step, account)?;
            put_count(writer, objects)?;
            writer.end_step()?;
            account.end_calls(&calls, &writer.stats());
            account.versions += 1;
            account.objects += objects as u64;
        }
        Ok(self.adapted)
    }

    fn stage(&mut self, account: &mut Account) -> Result<()> {
        for group in groups(self.blocks.shape.variables) {
            let others = self.link.pass(&self.blocks, &self.shown, &self.wanted, group.clone())?;
            account.computing(|| self.blocks.fill_ghosts(group, &others));
        }
        account.computing(|| self.blocks.average());
        Ok(())
    }

    /// Moves to another mesh: every rank makes the blocks that it has from now on.
    fn regrid(&mut self, next: Mesh, account: &mut Account) -> Result<()> {
        next.check()?;
        let shape = self.blocks.shape;
        let own = part(next.leaves().len(), self.ranks, self.rank);
        let mut blocks = Blocks::empty(shape, &next, own)?;
        let origins: Option<Vec<Origin>> =
            blocks.keys().iter().map(|key| Origin::of(key, &self.mesh)).collect();
        let origins =
            origins.ok_or_else(|| Error::new(Kind::Internal, "a block changed by more than one level"))?;
        let wanted: BTreeSet<usize> = origins.iter().flat_map(|o| o.leaves()).copied().collect();
        let all = Shown::all(&self.mesh, self.ranks);
        for group in groups(shape.variables) {
            let others = self.link.pass(&self.blocks, &all, &wanted, group.clone())?;
            account.computing(|| {
                for (block, origin) in origins.iter().enumerate() {
                    let key = blocks.keys()[block];
                    for variable in group.clone() {
                        let read = |leaf: usize, cell: usize| match self.blocks.own.contains(&leaf) {
                            true => self.blocks.cell(leaf, variable, cell),
                            false => others.cell(leaf, variable - group.start, cell),
                        };
                        blocks.fill(block, variable, |cell| origin.cell(&key, shape.edge, cell, read));
                    }
                }
            });
        }
        self.shown = Shown::borders(&next, self.ranks)?;
        self.wanted = blocks.needed().collect();
        (self.mesh, self.blocks) = (next, blocks);
        let count = self.mesh.leaves().len();
        let Adapted { blocks_min, blocks_max, regriddings, .. } = &mut self.adapted;
        (*blocks_min, *blocks_max) = ((*blocks_min).min(count), (*blocks_max).max(count));
        *regriddings += 1;
        Ok(())
    }

    fn total(&mut self) -> Result<Vec<f64>> {
        let mut sums = self.blocks.sums();
        self.link.add_up(&mut sums)?;
        Ok(sums)
    }

    fn check_sums(&mut self) -> Result<()> {
        let now = self.total()?;
        for (variable, (now, then)) in now.iter().zip(&self.sums).enumerate() {
            let drift = ((now - then) / then).abs();
            if drift.is_nan() || drift > SUM_TOLERANCE {
                return Err(Error::new(Kind::Internal, "the sum of a variable was not kept")
                    .with("variable", variable)
                    .with("relative_change", drift));
            }
            self.adapted.drift = self.adapted.drift.max(drift);
        }
        Ok(())
    }

    fn put(
        &self,
        writer: &mut Writer,
        names: &[String],
        batch: usize,
        step: u64,
        account: &mut Account,
    ) -> Result<()> {
        let words = self.blocks.shape.object_words();
        let count = [words as u64];
        let mut buffer = vec![0.0; words * batch];
        for (chunk, names) in names.chunks(batch).enumerate() {
            let objects = &mut buffer[..words * names.len()];
            account.computing(|| {
                for (i, object) in objects.chunks_exact_mut(words).enumerate() {
                    self.blocks.encode(chunk * batch + i, step, object);
                }
            });
            match names {
                [name] => writer.put_array(name, &count, &[0], &count, objects)?,
                names => writer.put_many(names, Dtype::F64, &count, bytemuck::cast_slice(objects))?,
            }
        }
        Ok(())
    }
}
