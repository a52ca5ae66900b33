//! The mesh: equal blocks of an octree over the unit cube, refined where the surface of a moving sphere is.
//!
//! Every rank keeps the whole mesh (keys only) and changes it by the same rules, so that no rank has to tell another.
//! Invariants: leaves cover the cube once; the levels of two leaves that share a face differ by one at most; one
//! regridding changes a leaf's level by one at most. Not here: cells.

use forebay_space::{Error, Kind, Result};
use std::collections::{HashMap, HashSet};

/// A block: its level, and its place among the blocks of its level (z, y, x).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// 0 is coarsest.
    pub level: u32,
    /// Place.
    pub at: [u32; 3],
}

impl Key {
    /// The block of the next coarser level that this one is in.
    pub fn parent(&self) -> Option<Key> {
        Some(Key { level: self.level.checked_sub(1)?, at: self.at.map(|i| i / 2) })
    }

    /// The eight blocks of the next level.
    pub fn children(&self) -> impl Iterator<Item = Key> + '_ {
        (0..8).map(|c| Key {
            level: self.level + 1,
            at: std::array::from_fn(|a| self.at[a] * 2 + (c >> (2 - a) & 1)),
        })
    }
}

/// One of the six faces of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Face {
    /// 0 = z, 1 = y, 2 = x.
    pub axis: usize,
    /// Towards larger coordinates.
    pub up: bool,
}

/// All faces.
pub const FACES: [Face; 6] = [
    Face { axis: 0, up: false },
    Face { axis: 0, up: true },
    Face { axis: 1, up: false },
    Face { axis: 1, up: true },
    Face { axis: 2, up: false },
    Face { axis: 2, up: true },
];

/// What is behind a face; numbers are those of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// The end of the cube.
    Boundary,
    /// A block of the same level.
    Same(usize),
    /// A larger one.
    Coarser(usize),
    /// Four smaller ones, in the order of the two axes along the face.
    Finer([usize; 4]),
}

/// A sphere whose surface is refined, in the unit cube.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sphere {
    /// Centre (z, y, x).
    pub centre: [f64; 3],
    /// Radius.
    pub radius: f64,
}

impl Sphere {
    /// Where the sphere is at this time step: it moves to and fro, along each axis at a speed of its own.
    pub fn at_step(step: u64) -> Sphere {
        let to_and_fro = |speed: f64| {
            let phase = (step as f64 * speed).rem_euclid(2.0);
            0.3 + 0.4 * if phase < 1.0 { phase } else { 2.0 - phase }
        };
        Sphere { centre: [to_and_fro(0.03), to_and_fro(0.025), to_and_fro(0.045)], radius: 0.25 }
    }

    /// The surface goes through the box from `low` to `high`.
    fn touches(&self, low: [f64; 3], high: [f64; 3]) -> bool {
        let (mut near, mut far) = (0.0, 0.0);
        for axis in 0..3 {
            let centre = self.centre[axis];
            let nearest = centre.clamp(low[axis], high[axis]) - centre;
            let farthest = (centre - low[axis]).abs().max((high[axis] - centre).abs());
            near += nearest * nearest;
            far += farthest * farthest;
        }
        let square = self.radius * self.radius;
        near <= square && square <= far
    }
}

/// The leaves, in the order of a space-filling curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Blocks of level 0 along each axis.
    root: u32,
    /// Finest level.
    levels: u32,
    leaves: Vec<Key>,
    numbers: HashMap<Key, usize>,
}

impl Mesh {
    /// The mesh of a run's beginning: refined around the sphere.
    pub fn new(root: u32, levels: u32, sphere: &Sphere) -> Mesh {
        let mut blocks = Vec::new();
        for z in 0..root {
            for y in 0..root {
                blocks.extend((0..root).map(|x| Key { level: 0, at: [z, y, x] }));
            }
        }
        let mut mesh = Mesh::of(root, levels, blocks);
        for _ in 0..levels {
            mesh = mesh.regridded(sphere);
        }
        mesh
    }

    /// The smallest mesh of this kind with at least so many blocks at the beginning of a run.
    pub fn of_size(blocks: usize, levels: u32) -> Mesh {
        let sphere = Sphere::at_step(0);
        let (mut low, mut high) = (1, (blocks as f64).cbrt().ceil().max(1.0) as u32);
        while low < high {
            let middle = (low + high) / 2;
            match Mesh::new(middle, levels, &sphere).leaves.len() >= blocks {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        Mesh::new(low, levels, &sphere)
    }

    fn of(root: u32, levels: u32, mut leaves: Vec<Key>) -> Mesh {
        leaves.sort_by_cached_key(|key| curve(key, levels));
        let numbers = leaves.iter().enumerate().map(|(i, &key)| (key, i)).collect();
        Mesh { root, levels, leaves, numbers }
    }

    /// The blocks that hold cells, in the order of the curve.
    pub fn leaves(&self) -> &[Key] {
        &self.leaves
    }

    /// The number of a leaf.
    pub fn number(&self, key: &Key) -> Option<usize> {
        self.numbers.get(key).copied()
    }

    /// Volume of a cell relative to a cell of level 0.
    pub fn volume(key: &Key) -> f64 {
        0.125f64.powi(key.level as i32)
    }

    /// The block behind a face, of the same level; None at the end of the cube.
    fn behind(&self, key: &Key, face: Face) -> Option<Key> {
        let mut at = key.at;
        let end = self.root << key.level;
        at[face.axis] = match face.up {
            true => at[face.axis].checked_add(1).filter(|&i| i < end)?,
            false => at[face.axis].checked_sub(1)?,
        };
        Some(Key { level: key.level, at })
    }

    /// What is behind a face of a leaf.
    ///
    /// # Errors
    /// `Internal`: levels differ by more than one.
    pub fn neighbour(&self, key: &Key, face: Face) -> Result<Neighbour> {
        let Some(same) = self.behind(key, face) else { return Ok(Neighbour::Boundary) };
        if let Some(number) = self.number(&same) {
            return Ok(Neighbour::Same(number));
        }
        if let Some(number) = same.parent().and_then(|parent| self.number(&parent)) {
            return Ok(Neighbour::Coarser(number));
        }
        let near = u32::from(!face.up);
        let mut four = same.children().filter(|c| c.at[face.axis] % 2 == near).map(|c| self.number(&c));
        let mut next = || {
            four.next().flatten().ok_or_else(|| {
                Error::new(Kind::Internal, "blocks that share a face differ by more than one level")
                    .with("block", format!("{key:?}"))
                    .with("face", format!("{face:?}"))
            })
        };
        Ok(Neighbour::Finer([next()?, next()?, next()?, next()?]))
    }

    /// Checks that every face has neighbours at most one level away, and that the leaves fill the cube.
    pub fn check(&self) -> Result<()> {
        for key in &self.leaves {
            FACES.iter().try_for_each(|&face| self.neighbour(key, face).map(drop))?;
        }
        // Cells of the finest level: exact.
        let filled: u64 = self.leaves.iter().map(|key| 1u64 << (3 * (self.levels - key.level))).sum();
        if filled != u64::from(self.root).pow(3) << (3 * self.levels) {
            return Err(Error::new(Kind::Internal, "the blocks do not fill the cube").with("filled", filled));
        }
        Ok(())
    }

    fn is_touched(&self, key: &Key, sphere: &Sphere) -> bool {
        let width = 1.0 / f64::from(self.root << key.level);
        let low = key.at.map(|i| f64::from(i) * width);
        sphere.touches(low, low.map(|x| x + width))
    }

    /// The next mesh: leaves on the surface become finer, others coarser, each by one level at most.
    pub fn regridded(&self, sphere: &Sphere) -> Mesh {
        let touched: Vec<bool> = self.leaves.iter().map(|key| self.is_touched(key, sphere)).collect();
        let refined = self.to_refine(&touched);
        let mut next = Vec::with_capacity(self.leaves.len());
        for (number, key) in self.leaves.iter().enumerate() {
            if refined.contains(&number) {
                next.extend(key.children());
                continue;
            }
            match key.parent().filter(|parent| self.may_become(parent, &touched, &refined)) {
                // Once for its eight children.
                Some(parent) if key.at.iter().all(|i| i % 2 == 0) => next.push(parent),
                Some(_) => {}
                None => next.push(*key),
            }
        }
        Mesh::of(self.root, self.levels, next)
    }

    /// The leaves on the surface that can become finer, and those that must follow.
    fn to_refine(&self, touched: &[bool]) -> HashSet<usize> {
        let is_due = |&i: &usize| touched[i] && self.leaves[i].level < self.levels;
        let mut queue: Vec<usize> = (0..self.leaves.len()).filter(is_due).collect();
        let mut refined: HashSet<usize> = queue.iter().copied().collect();
        while let Some(number) = queue.pop() {
            for face in FACES {
                let Ok(Neighbour::Coarser(larger)) = self.neighbour(&self.leaves[number], face) else {
                    continue;
                };
                if refined.insert(larger) {
                    queue.push(larger);
                }
            }
        }
        refined
    }

    /// The eight leaves of this block may be joined: none is on the surface or has to become finer, and no leaf
    /// behind their faces is finer than they are, or becomes so.
    fn may_become(&self, parent: &Key, touched: &[bool], refined: &HashSet<usize>) -> bool {
        let free = |child: Key| {
            let Some(number) = self.number(&child) else { return false };
            !touched[number]
                && !refined.contains(&number)
                && FACES.iter().all(|&face| match self.neighbour(&child, face) {
                    Ok(Neighbour::Same(other)) => !refined.contains(&other),
                    Ok(Neighbour::Finer(_)) | Err(_) => false,
                    Ok(Neighbour::Boundary | Neighbour::Coarser(_)) => true,
                })
        };
        parent.children().all(free)
    }
}

/// Place of a block on the Z curve through the cells of the finest level.
fn curve(key: &Key, levels: u32) -> u128 {
    let corner = key.at.map(|i| u128::from(i) << (levels - key.level));
    (0..40).fold(0, |place, bit| {
        corner.iter().enumerate().fold(place, |p, (axis, c)| p | ((c >> bit & 1) << (3 * bit + 2 - axis)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mesh_of_a_run_is_whole_and_balanced_and_the_refinement_moves() {
        let mut mesh = Mesh::new(4, 3, &Sphere::at_step(0));
        let mut seen = HashSet::new();
        for step in 0..80 {
            mesh.check().unwrap();
            let finest = mesh.leaves.iter().filter(|k| k.level == 3).count();
            assert!(finest > 0 && mesh.leaves.iter().any(|k| k.level < 2), "step {step}");
            seen.insert(finest);
            mesh = mesh.regridded(&Sphere::at_step(step * 4));
        }
        assert!(seen.len() > 5, "the sphere moves");
    }

    #[test]
    fn the_surface_is_as_fine_as_can_be_when_the_sphere_rests() {
        let sphere = Sphere { centre: [0.5, 0.4, 0.6], radius: 0.3 };
        let mesh = Mesh::new(4, 2, &sphere);
        for key in mesh.leaves.iter().filter(|key| mesh.is_touched(key, &sphere)) {
            assert_eq!(key.level, 2);
        }
        assert_eq!(mesh.regridded(&sphere).regridded(&sphere), mesh.regridded(&sphere));
    }

    #[test]
    fn an_unbalanced_mesh_is_found() {
        let sphere = Sphere { centre: [0.5; 3], radius: 0.1 };
        let mesh = Mesh::new(2, 2, &sphere);
        let mut leaves = mesh.leaves.clone();
        let at = leaves.iter().position(|k| k.level == 0).unwrap_or(0);
        let key = leaves.swap_remove(at);
        leaves.extend(
            key.children()
                .flat_map(|c| c.children().collect::<Vec<_>>())
                .flat_map(|c| c.children().collect::<Vec<_>>()),
        );
        assert!(Mesh::of(2, 4, leaves).check().is_err());
        let mut holed = mesh.leaves.clone();
        holed.pop();
        assert!(Mesh::of(2, 2, holed).check().is_err());
    }

    #[test]
    fn a_mesh_of_a_size_is_the_smallest_that_has_it() {
        for blocks in [1, 60, 500] {
            let mesh = Mesh::of_size(blocks, 2);
            assert!(mesh.leaves.len() >= blocks);
            assert!(mesh.root == 1 || Mesh::new(mesh.root - 1, 2, &Sphere::at_step(0)).leaves.len() < blocks);
        }
    }
}
