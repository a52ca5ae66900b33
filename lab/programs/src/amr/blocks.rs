//! The cells of the blocks that one rank has, and the arithmetic on them.
//!
//! A block has for each variable a cube of cells with one layer of ghost cells around it. A stage replaces every
//! cell by the mean of itself and its six neighbours. What a cell gives to its neighbour the neighbour gets, also
//! where blocks of two levels meet (`ghost`), so that the sum over all cells, each times its volume, is kept.
//! Bit for bit the result does not depend on who has which block. Not here: who has what, and processes.

use super::mesh::{Face, Key, Mesh, Neighbour, FACES};
use crate::objects::pattern::mixed;
use forebay_space::Result;
use std::ops::Range;

/// Cells and variables of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Cells along each edge: even.
    pub edge: usize,
    /// Variables.
    pub variables: usize,
}

impl Shape {
    /// Along an edge, with ghost cells.
    fn padded(&self) -> usize {
        self.edge + 2
    }

    /// Cells of one variable with ghost cells.
    fn stored(&self) -> usize {
        self.padded().pow(3)
    }

    /// Cells of one variable without.
    pub fn cells(&self) -> usize {
        self.edge.pow(3)
    }

    /// Numbers of an object: a head as long as an edge, the sum of each row, the cells; all with ghost cells. That
    /// is as long as the tables of planes and rows and the cells of a C program's array of arrays.
    pub fn object_words(&self) -> usize {
        self.padded() + self.padded().pow(2) + self.stored()
    }

    fn at(&self, cell: [usize; 3]) -> usize {
        let n = self.padded();
        ((cell[0] + 1) * n + cell[1] + 1) * n + cell[2] + 1
    }
}

/// Cells of blocks that another rank has, for one group of variables.
pub trait Others {
    /// Cell of a variable of the group in a leaf.
    fn cell(&self, leaf: usize, variable: usize, cell: usize) -> f64;
}

/// The blocks of one rank: a range of the leaves.
pub struct Blocks {
    /// Cells and variables.
    pub shape: Shape,
    /// Which leaves.
    pub own: Range<usize>,
    keys: Vec<Key>,
    neighbours: Vec<[Neighbour; 6]>,
    data: Vec<f64>,
    scratch: Vec<f64>,
}

impl Blocks {
    /// Blocks without content.
    pub fn empty(shape: Shape, mesh: &Mesh, own: Range<usize>) -> Result<Blocks> {
        let keys = mesh.leaves()[own.clone()].to_vec();
        let mut neighbours = Vec::with_capacity(keys.len());
        for key in &keys {
            let mut six = [Neighbour::Boundary; 6];
            for (slot, face) in six.iter_mut().zip(FACES) {
                *slot = mesh.neighbour(key, face)?;
            }
            neighbours.push(six);
        }
        let data = vec![0.0; keys.len() * shape.variables * shape.stored()];
        Ok(Blocks { shape, own, keys, neighbours, data, scratch: vec![0.0; shape.cells()] })
    }

    /// Blocks with the values of a run's beginning: random, the same for every split.
    pub fn initial(shape: Shape, mesh: &Mesh, own: Range<usize>, seed: u64) -> Result<Blocks> {
        let mut blocks = Blocks::empty(shape, mesh, own)?;
        for block in 0..blocks.keys.len() {
            let key = blocks.keys[block];
            let place = key.at.iter().fold(u64::from(key.level), |h, &i| mixed(h ^ u64::from(i)));
            for variable in 0..shape.variables {
                let start = mixed(mixed(seed) ^ place ^ variable as u64);
                let value = |cell: usize| {
                    1.0 + (mixed(start.wrapping_add(cell as u64)) >> 11) as f64 / (1u64 << 53) as f64
                };
                blocks.fill(block, variable, value);
            }
        }
        Ok(blocks)
    }

    /// Writes the cells of one variable of a block.
    pub fn fill(&mut self, block: usize, variable: usize, value: impl Fn(usize) -> f64) {
        let n = self.shape.edge;
        let shape = self.shape;
        let cube = self.cube_mut(block, variable);
        for cell in 0..n * n * n {
            cube[shape.at([cell / n / n, cell / n % n, cell % n])] = value(cell);
        }
    }

    /// The blocks' keys.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Leaves that others have and that this rank's ghost cells need.
    pub fn needed(&self) -> impl Iterator<Item = usize> + '_ {
        let leaves = self.neighbours.iter().flatten().flat_map(|neighbour| match *neighbour {
            Neighbour::Boundary => Vec::new(),
            Neighbour::Same(leaf) | Neighbour::Coarser(leaf) => vec![leaf],
            Neighbour::Finer(four) => four.to_vec(),
        });
        leaves.filter(|leaf| !self.own.contains(leaf))
    }

    fn range(&self, block: usize, variable: usize) -> Range<usize> {
        let first = (block * self.shape.variables + variable) * self.shape.stored();
        first..first + self.shape.stored()
    }

    fn cube(&self, block: usize, variable: usize) -> &[f64] {
        &self.data[self.range(block, variable)]
    }

    fn cube_mut(&mut self, block: usize, variable: usize) -> &mut [f64] {
        let range = self.range(block, variable);
        &mut self.data[range]
    }

    /// Copies the cells of a group of variables of one own leaf, without ghost cells.
    pub fn copy_cells(&self, leaf: usize, variables: Range<usize>, out: &mut [f64]) {
        let n = self.shape.edge;
        for (variable, out) in variables.zip(out.chunks_exact_mut(n * n * n)) {
            let cube = self.cube(leaf - self.own.start, variable);
            for (row, out) in out.chunks_exact_mut(n).enumerate() {
                let first = self.shape.at([row / n, row % n, 0]);
                out.copy_from_slice(&cube[first..first + n]);
            }
        }
    }

    /// A cell of an own leaf.
    pub fn cell(&self, leaf: usize, variable: usize, cell: usize) -> f64 {
        let n = self.shape.edge;
        self.cube(leaf - self.own.start, variable)[self.shape.at([cell / n / n, cell / n % n, cell % n])]
    }

    /// Fills the ghost cells of a group of variables.
    pub fn fill_ghosts(&mut self, variables: Range<usize>, others: &impl Others) {
        let n = self.shape.edge;
        for block in 0..self.keys.len() {
            for (which, face) in FACES.into_iter().enumerate() {
                for variable in variables.clone() {
                    for i in 0..n * n {
                        let (inner, outer, value) =
                            self.ghost(block, which, face, [i / n, i % n], variable, variables.start, others);
                        let mine = self.cube(block, variable)[inner];
                        self.cube_mut(block, variable)[outer] = value.unwrap_or(mine);
                    }
                }
            }
        }
    }

    /// One ghost cell: where the cell before it is, where it is, and what it holds; None: what the cell before it
    /// holds, because there is nothing behind the face.
    ///
    /// Behind larger cells: the large cell. Behind smaller ones: the mean of this cell and of the four; then a face
    /// passes on to the large cell what its four parts take from the small ones, an eighth each in volume.
    #[allow(clippy::too_many_arguments)]
    fn ghost(
        &self,
        block: usize,
        which: usize,
        face: Face,
        along: [usize; 2],
        variable: usize,
        first: usize,
        others: &impl Others,
    ) -> (usize, usize, Option<f64>) {
        let n = self.shape.edge;
        let (a, b) = along_axes(face.axis);
        let mut cell = [0; 3];
        (cell[a], cell[b]) = (along[0], along[1]);
        cell[face.axis] = if face.up { n - 1 } else { 0 };
        let inner = self.shape.at(cell);
        let stride = self.shape.padded().pow(2 - face.axis as u32);
        let outer = if face.up { inner + stride } else { inner - stride };
        let read = |leaf: usize, cell: [usize; 3]| {
            let cell = (cell[0] * n + cell[1]) * n + cell[2];
            match self.own.contains(&leaf) {
                true => self.cell(leaf, variable, cell),
                false => others.cell(leaf, variable - first, cell),
            }
        };
        let near = if face.up { 0 } else { n - 1 };
        let value = match self.neighbours[block][which] {
            Neighbour::Boundary => return (inner, outer, None),
            Neighbour::Same(leaf) => {
                cell[face.axis] = near;
                read(leaf, cell)
            }
            Neighbour::Coarser(leaf) => {
                // Which half of the larger block, and there which cell.
                for axis in [a, b] {
                    cell[axis] = (self.keys[block].at[axis] as usize % 2 * n + cell[axis]) / 2;
                }
                cell[face.axis] = near;
                read(leaf, cell)
            }
            Neighbour::Finer(four) => {
                let (fine_a, fine_b) = (2 * cell[a], 2 * cell[b]);
                let leaf = four[fine_a / n * 2 + fine_b / n];
                cell[face.axis] = near;
                let mut sum = 0.0;
                for part in 0..4 {
                    (cell[a], cell[b]) = ((fine_a + part / 2) % n, (fine_b + part % 2) % n);
                    sum += read(leaf, cell);
                }
                0.5 * (self.cube(block, variable)[inner] + 0.25 * sum)
            }
        };
        (inner, outer, Some(value))
    }

    /// One stage: every cell becomes the mean of itself and its six neighbours. Ghost cells must be filled.
    pub fn average(&mut self) {
        let (n, p) = (self.shape.edge, self.shape.padded());
        let mut scratch = std::mem::take(&mut self.scratch);
        for block in 0..self.keys.len() {
            for variable in 0..self.shape.variables {
                let shape = self.shape;
                let cube = self.cube_mut(block, variable);
                for (row, out) in scratch.chunks_exact_mut(n).enumerate() {
                    let first = shape.at([row / n, row % n, 0]);
                    for (x, out) in out.iter_mut().enumerate() {
                        let i = first + x;
                        let sides = cube[i - 1] + cube[i + 1] + cube[i - p] + cube[i + p];
                        *out = (cube[i] + sides + cube[i - p * p] + cube[i + p * p]) / 7.0;
                    }
                }
                for (row, values) in scratch.chunks_exact(n).enumerate() {
                    let first = shape.at([row / n, row % n, 0]);
                    cube[first..first + n].copy_from_slice(values);
                }
            }
        }
        self.scratch = scratch;
    }

    /// Sum of each variable over the cells of this rank, each times its volume.
    pub fn sums(&self) -> Vec<f64> {
        let n = self.shape.edge;
        let mut sums = vec![0.0; self.shape.variables];
        for (block, key) in self.keys.iter().enumerate() {
            for (variable, sum) in sums.iter_mut().enumerate() {
                let cube = self.cube(block, variable);
                let rows = (0..n * n).map(|row| {
                    let first = self.shape.at([row / n, row % n, 0]);
                    cube[first..first + n].iter().sum::<f64>()
                });
                *sum += rows.sum::<f64>() * Mesh::volume(key);
            }
        }
        sums
    }

    /// Writes object `index` of this rank: the variables of its first block, then those of its second.
    pub fn encode(&self, index: usize, step: u64, out: &mut [f64]) {
        let (block, variable) = (index / self.shape.variables, index % self.shape.variables);
        let p = self.shape.padded();
        let (key, cube) = (&self.keys[block], self.cube(block, variable));
        let (head, rest) = out.split_at_mut(p);
        let (rows, cells) = rest.split_at_mut(p * p);
        head.fill(0.0);
        head[0] = f64::from(key.level);
        (1..4).for_each(|i| head[i] = f64::from(key.at[i - 1]));
        (head[4], head[5], head[6]) = (variable as f64, step as f64, self.shape.edge as f64);
        for (sum, row) in rows.iter_mut().zip(cube.chunks_exact(p)) {
            *sum = row.iter().sum();
        }
        cells.copy_from_slice(cube);
    }
}

/// The two axes along a face, in order.
fn along_axes(axis: usize) -> (usize, usize) {
    match axis {
        0 => (1, 2),
        1 => (0, 2),
        _ => (0, 1),
    }
}

/// What a leaf of the new mesh is made of, in leaves of the old one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The same block.
    Same(usize),
    /// An eighth of a larger one.
    Parent(usize),
    /// Eight smaller ones, in the order of the octants.
    Children(Vec<usize>),
}

impl Origin {
    /// Where a leaf comes from; the meshes are one regridding apart.
    pub fn of(key: &Key, old: &Mesh) -> Option<Origin> {
        if let Some(leaf) = old.number(key) {
            return Some(Origin::Same(leaf));
        }
        if let Some(leaf) = key.parent().and_then(|parent| old.number(&parent)) {
            return Some(Origin::Parent(leaf));
        }
        key.children().map(|child| old.number(&child)).collect::<Option<Vec<_>>>().map(Origin::Children)
    }

    /// The leaves it is made of.
    pub fn leaves(&self) -> &[usize] {
        match self {
            Origin::Same(leaf) | Origin::Parent(leaf) => std::slice::from_ref(leaf),
            Origin::Children(eight) => eight,
        }
    }

    /// One cell of the new block. `read` gives cells of old leaves. A larger cell is the mean of its eight parts, so
    /// that the sum is kept.
    pub fn cell(&self, key: &Key, edge: usize, cell: usize, read: impl Fn(usize, usize) -> f64) -> f64 {
        let n = edge;
        let at = [cell / n / n, cell / n % n, cell % n];
        let number = |at: [usize; 3]| (at[0] * n + at[1]) * n + at[2];
        match self {
            Origin::Same(leaf) => read(*leaf, cell),
            Origin::Parent(leaf) => {
                let inside: [usize; 3] = std::array::from_fn(|a| (key.at[a] as usize % 2 * n + at[a]) / 2);
                read(*leaf, number(inside))
            }
            Origin::Children(eight) => {
                let octant = at.iter().fold(0, |o, &i| o * 2 + 2 * i / n);
                let parts = (0..8).map(|part| {
                    let fine: [usize; 3] = std::array::from_fn(|a| (2 * at[a] + (part >> (2 - a) & 1)) % n);
                    read(eight[octant], number(fine))
                });
                parts.sum::<f64>() / 8.0
            }
        }
    }
}
