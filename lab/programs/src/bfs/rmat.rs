//! R-MAT graphs (Chakrabarti, Zhan, Faloutsos: "R-MAT: a recursive model for graph mining", SDM 2004) with the
//! probabilities of Graph500: each edge by itself from its number, so that nothing has to be kept.

use crate::numbers::number;

/// Probabilities of the quadrants but the last one, of 65 536: .57, .19, .19.
const A: u64 = 37_356;
const B: u64 = A + 12_452;
const C: u64 = B + 12_452;

/// A graph of 2^scale vertices.
#[derive(Clone, Copy, Debug)]
pub struct Rmat {
    scale: u32,
    seed: u64,
}

impl Rmat {
    /// With this seed; `scale` below 32.
    pub fn new(scale: u32, seed: u64) -> Rmat {
        assert!((1..32).contains(&scale), "vertices are numbers of 32 bits");
        Rmat { scale, seed }
    }

    /// Both ends of the edge of this number.
    pub fn edge(&self, edge: u64) -> (u32, u32) {
        let (mut from, mut to) = (0u64, 0u64);
        let mut bits = 0;
        for level in 0..self.scale {
            if level % 4 == 0 {
                bits = number(self.seed, edge * 8 + u64::from(level / 4));
            }
            let draw = bits & 0xffff;
            bits >>= 16;
            let (down, right) = match draw {
                draw if draw < A => (0, 0),
                draw if draw < B => (0, 1),
                draw if draw < C => (1, 0),
                _ => (1, 1),
            };
            (from, to) = (from << 1 | down, to << 1 | right);
        }
        (self.label(from), self.label(to))
    }

    /// A permutation of the vertices, so that those of many edges are everywhere.
    fn label(&self, vertex: u64) -> u32 {
        let mask = (1u64 << self.scale) - 1;
        let half = self.scale.div_ceil(2);
        let mut v = vertex;
        for round in 0..3 {
            // Each step can be undone: odd factors, and shifts that keep the upper half.
            v = v.wrapping_mul(number(self.seed, u64::MAX - round) | 1) & mask;
            v ^= v >> half;
        }
        v as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_a_permutation() {
        for scale in 1..14 {
            let graph = Rmat::new(scale, 9);
            let mut labels: Vec<u32> = (0..1u64 << scale).map(|v| graph.label(v)).collect();
            labels.sort_unstable();
            assert!(labels.into_iter().eq(0..1 << scale), "scale {scale}");
        }
    }

    #[test]
    fn few_vertices_have_many_of_the_edges() {
        let graph = Rmat::new(12, 1);
        let mut degrees = vec![0u32; 1 << 12];
        (0..16u64 << 12).for_each(|number| degrees[graph.edge(number).0 as usize] += 1);
        degrees.sort_unstable_by(|a, b| b.cmp(a));
        // A uniform graph has 1 % of its edges at 1 % of its vertices.
        let first: u32 = degrees[..41].iter().sum();
        assert!(first > (16 << 12) / 10, "{first}");
        assert_eq!(graph.edge(5), Rmat::new(12, 1).edge(5));
    }
}
