//! Ghost planes, exchanged through a space instead of messages.
//!
//! In every time step each rank puts the outer layers of its box that other ranks need, one variable for each
//! face: `z-.r3` is the lowest z layer of rank 3, shape `[2, rows, columns]`: U, then V. Then it reads the
//! facing layers of its neighbours. Axes that are not cut take no part: their wrap is local. Round n of the
//! exchange holds the faces of the state after n steps.

use super::field::{Cell, Fields, Side};
use super::split::{Split, AXES};
use crate::exchange::{Exchange, Member, Readers};
use crate::in_place::{put_filled, with_view, Placed};
use forebay_space::Result;
use std::marker::PhantomData;

/// One rank's end of the exchange.
pub struct Halo<T> {
    exchange: Exchange,
    faces: Vec<Face>,
    cells: PhantomData<T>,
}

/// One face of this rank's box that touches another rank's.
struct Face {
    axis: usize,
    side: Side,
    /// Name of the variable that this rank puts.
    own: String,
    /// Name of the variable that fills the ghosts here: the neighbour's opposite face.
    facing: String,
    /// Both faces have this shape.
    shape: [u64; 3],
}

impl<T: Cell> Halo<T> {
    /// Opens the exchange; `None` when no axis is cut. Waits for the space, not for the other ranks.
    pub fn open(channel: &str, member: &Member, split: &Split) -> Result<Option<Halo<T>>> {
        if split.ranks() == 1 {
            return Ok(None);
        }
        // Of the largest box, so that all ranks ask for the same size.
        let cells_max: usize = (0..split.ranks()).map(|r| face_cells(split, r)).max().unwrap_or(0);
        let round_bytes = (cells_max * 2 * std::mem::size_of::<T>()) as u64;
        let name = format!("{channel}-halo");
        let exchange = Exchange::open(&name, member, Readers::All, round_bytes)?;
        Ok(Some(Halo { exchange, faces: faces(split, member.rank), cells: PhantomData }))
    }

    /// Puts the faces of the state after `step` steps.
    pub fn publish(&mut self, step: u64, fields: &Fields<T>) -> Result<()> {
        self.exchange.publish(step, |writer| {
            self.faces.iter().try_for_each(|face| {
                let place = Placed { shape: &face.shape, start: &[0; 3], count: &face.shape };
                put_filled(writer, &face.own, &place, |out| fields.pack_face(face.axis, face.side, out))
            })
        })
    }

    /// Waits for the neighbours' faces of the state after `step` steps and fills the ghosts with them.
    pub fn collect(&mut self, step: u64, fields: &mut Fields<T>) -> Result<()> {
        self.exchange.collect(step, |reader| {
            self.faces.iter().try_for_each(|face| {
                with_view(reader, &face.facing, |from| fields.unpack_face(face.axis, face.side, from))
            })
        })
    }

    /// Ends the exchange; waits for the other ranks to do so.
    pub fn finish(self) -> Result<()> {
        self.exchange.finish()
    }

    /// Ends this rank's part as if it had died, so that the others stop waiting for it.
    pub fn abandon(self) {
        self.exchange.abandon();
    }
}

/// Cells of all faces that this rank sends.
fn face_cells(split: &Split, rank: usize) -> usize {
    faces(split, rank).iter().map(|f| (f.shape[1] * f.shape[2]) as usize).sum()
}

fn faces(split: &Split, rank: usize) -> Vec<Face> {
    let (_, count) = split.own(rank);
    let name = |axis: usize, side: Side, rank: usize| {
        let sign = if side == Side::Low { '-' } else { '+' };
        format!("{}{sign}.r{rank}", AXES[axis])
    };
    (0..3)
        .filter(|&axis| split.is_cut(axis))
        .flat_map(|axis| {
            let [low, high] = split.neighbours(rank, axis);
            [(Side::Low, Side::High, low), (Side::High, Side::Low, high)].map(
                |(side, opposite, neighbour)| {
                    let others: Vec<u64> = (0..3).filter(|&a| a != axis).map(|a| count[a] as u64).collect();
                    Face {
                        axis,
                        side,
                        own: name(axis, side, rank),
                        facing: name(axis, opposite, neighbour),
                        shape: [2, others[0], others[1]],
                    }
                },
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_face_is_read_by_exactly_one_rank_in_the_same_shape() {
        for parts in [[2, 1, 1], [3, 2, 1], [2, 2, 2], [1, 4, 3]] {
            let split = Split::new([7, 9, 8], parts, parts.iter().product()).unwrap();
            let mut put = BTreeMap::new();
            let mut read = BTreeMap::new();
            for rank in 0..split.ranks() {
                for face in faces(&split, rank) {
                    assert!(put.insert(face.own, face.shape).is_none());
                    assert!(read.insert(face.facing, face.shape).is_none());
                }
            }
            assert_eq!(put, read, "{parts:?}");
        }
    }
}
