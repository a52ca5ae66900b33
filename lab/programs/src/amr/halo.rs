//! Cells that ranks give each other: those along the borders between them at every stage, all when the mesh changes.
//!
//! Every rank knows the mesh and who has which leaves, so a round holds cells only, in an order that all work out by
//! themselves. Variables go in groups, so that a round needs little memory.

use super::blocks::{Blocks, Others, Shape};
use super::mesh::{Mesh, Neighbour, FACES};
use forebay_space::{Reader, Result, Writer};
use gray_scott::exchange::{Exchange, Member, Readers};
use gray_scott::simulation::split::part;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Most variables of one round.
const GROUP: usize = 10;

/// The groups of variables.
pub fn groups(variables: usize) -> impl Iterator<Item = Range<usize>> {
    (0..variables).step_by(GROUP).map(move |first| first..(first + GROUP).min(variables))
}

/// The leaves that each rank shows to others, in the order of the round.
pub struct Shown {
    of_rank: Vec<Vec<usize>>,
}

impl Shown {
    /// Leaves that share a face with another rank's.
    pub fn borders(mesh: &Mesh, ranks: usize) -> Result<Shown> {
        let owner = owners(mesh, ranks);
        let mut of_rank = vec![Vec::new(); ranks];
        for (leaf, key) in mesh.leaves().iter().enumerate() {
            let mine = owner[leaf];
            let mut at_border = false;
            for face in FACES {
                at_border |= match mesh.neighbour(key, face)? {
                    Neighbour::Boundary => false,
                    Neighbour::Same(other) | Neighbour::Coarser(other) => owner[other] != mine,
                    Neighbour::Finer(four) => four.iter().any(|&other| owner[other] != mine),
                };
            }
            if at_border {
                of_rank[mine].push(leaf);
            }
        }
        Ok(Shown { of_rank })
    }

    /// All leaves.
    pub fn all(mesh: &Mesh, ranks: usize) -> Shown {
        Shown { of_rank: (0..ranks).map(|rank| part(mesh.leaves().len(), ranks, rank).collect()).collect() }
    }
}

/// Who has each leaf.
fn owners(mesh: &Mesh, ranks: usize) -> Vec<usize> {
    let leaves = mesh.leaves().len();
    (0..ranks).flat_map(|rank| part(leaves, ranks, rank).map(move |_| rank)).collect()
}

/// Cells of others, for one group of variables.
#[derive(Default)]
pub struct Fetched {
    /// Where a leaf's cells are: which buffer, and its first number there.
    places: HashMap<usize, (usize, usize)>,
    buffers: Vec<Vec<f64>>,
    cells: usize,
}

impl Others for Fetched {
    fn cell(&self, leaf: usize, variable: usize, cell: usize) -> f64 {
        let (buffer, first) = self.places[&leaf];
        self.buffers[buffer][first + variable * self.cells + cell]
    }
}

/// The link between the ranks.
pub struct Link {
    exchange: Option<Exchange>,
    round: u64,
    rank: usize,
}

impl Link {
    /// Opens it. `leaves_max` is the largest number of leaves that the mesh will have.
    pub fn open(channel: &str, member: &Member, shape: Shape, leaves_max: usize) -> Result<Link> {
        let group = shape.variables.min(GROUP);
        let bytes = 8 * (leaves_max.div_ceil(member.size) * group * shape.cells() + shape.variables);
        let exchange = match member.size {
            1 => None,
            _ => Some(Exchange::open(&format!("{channel}-halo"), member, Readers::All, bytes as u64)?),
        };
        Ok(Link { exchange, round: 0, rank: member.rank })
    }

    /// Shows this rank's leaves and fetches those in `wanted`, for one group of variables.
    pub fn pass(
        &mut self,
        blocks: &Blocks,
        shown: &Shown,
        wanted: &BTreeSet<usize>,
        variables: Range<usize>,
    ) -> Result<Fetched> {
        let cells = blocks.shape.cells();
        let Some(exchange) = &mut self.exchange else { return Ok(Fetched::default()) };
        let width = variables.len() * cells;
        let mut mine = vec![0.0; shown.of_rank[self.rank].len() * width];
        for (&leaf, out) in shown.of_rank[self.rank].iter().zip(mine.chunks_exact_mut(width)) {
            blocks.copy_cells(leaf, variables.clone(), out);
        }
        let rank = self.rank;
        exchange.publish(self.round, |writer: &mut Writer| {
            let count = [mine.len() as u64];
            match mine.is_empty() {
                true => Ok(()),
                false => writer.put_array(&format!("cells-{rank}"), &count, &[0], &count, &mine),
            }
        })?;
        let mut fetched = Fetched { cells, ..Fetched::default() };
        exchange.collect(self.round, |reader: &mut Reader| {
            for (rank, leaves) in shown.of_rank.iter().enumerate() {
                if rank == self.rank || !leaves.iter().any(|leaf| wanted.contains(leaf)) {
                    continue;
                }
                let places =
                    leaves.iter().enumerate().map(|(i, &leaf)| (leaf, (fetched.buffers.len(), i * width)));
                fetched.places.extend(places);
                fetched.buffers.push(reader.get_array(&format!("cells-{rank}"), None)?);
            }
            Ok(())
        })?;
        self.round += 1;
        Ok(fetched)
    }

    /// Adds up numbers of all ranks, in the order of the ranks.
    pub fn add_up(&mut self, part: &mut [f64]) -> Result<()> {
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        exchange.add_up(self.round, "sums", part)?;
        self.round += 1;
        Ok(())
    }

    /// Ends this rank's part as if it had died.
    pub fn abandon(self) {
        self.exchange.into_iter().for_each(Exchange::abandon);
    }

    /// Ends this rank's part.
    pub fn finish(self) -> Result<()> {
        self.exchange.map_or(Ok(()), Exchange::finish)
    }
}
