//! How the grid is cut into boxes, one for each rank.
//!
//! Invariants: the boxes of all ranks are disjoint and cover the grid; along each axis the part lengths
//! differ by at most one; rank numbers count like array indices, the last axis fastest. Nothing here knows
//! about spaces.

use forebay_space::{Error, Kind, Result};
use std::ops::Range;

/// Letters of the three axes, in the order of array dimensions: the last one is contiguous in memory.
pub const AXES: [char; 3] = ['z', 'y', 'x'];

/// A cut of a grid into `parts[0] × parts[1] × parts[2]` boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Cells along each axis.
    pub shape: [usize; 3],
    /// Parts along each axis.
    pub parts: [usize; 3],
}

impl Split {
    /// This cut; `Kind::Usage` when an axis has more parts than cells or the parts do not make `ranks`.
    pub fn new(shape: [usize; 3], parts: [usize; 3], ranks: usize) -> Result<Split> {
        if parts.iter().product::<usize>() != ranks {
            return Err(Error::new(Kind::Usage, "the decomposition does not make one box for each rank")
                .with("decomposition", format!("{parts:?}"))
                .with("ranks", ranks)
                .hint("start as many ranks as the product of the parts, or say decomposition = \"auto\""));
        }
        if let Some(axis) = (0..3).find(|&a| parts[a] > shape[a]) {
            return Err(Error::new(Kind::Usage, "more parts than cells along one axis")
                .with("axis", AXES[axis])
                .with("cells", shape[axis])
                .with("parts", parts[axis]));
        }
        Ok(Split { shape, parts })
    }

    /// The cut into `ranks` boxes with the smallest faces; among equals the one with the fewest cut axes,
    /// then the one that cuts the first axes, because those faces lie contiguous in memory.
    pub fn auto(shape: [usize; 3], ranks: usize) -> Result<Split> {
        let mut best: Option<(usize, usize, Split)> = None;
        for parts in factor_triples(ranks) {
            let Ok(split) = Split::new(shape, parts, ranks) else { continue };
            let cost = (split.face_cells(), parts.iter().filter(|&&p| p > 1).count(), split);
            // Triples come with the largest first part first, so that `<` keeps the earliest among equals.
            if best.is_none_or(|b| (cost.0, cost.1) < (b.0, b.1)) {
                best = Some(cost);
            }
        }
        best.map(|b| b.2).ok_or_else(|| {
            Error::new(Kind::Usage, "the grid is too small for this number of ranks")
                .with("shape", format!("{shape:?}"))
                .with("ranks", ranks)
                .hint("fewer ranks, or a shape that can be cut into one box for each")
        })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.parts.iter().product()
    }

    /// Place of a rank in the grid of boxes.
    pub fn place(&self, rank: usize) -> [usize; 3] {
        let [_, py, px] = self.parts;
        [rank / (py * px), rank / px % py, rank % px]
    }

    /// Rank at a place of the grid of boxes.
    pub fn rank_at(&self, place: [usize; 3]) -> usize {
        (place[0] * self.parts[1] + place[1]) * self.parts[2] + place[2]
    }

    /// First cell and number of cells of a rank's box.
    pub fn own(&self, rank: usize) -> ([usize; 3], [usize; 3]) {
        let place = self.place(rank);
        let range = |axis: usize| part(self.shape[axis], self.parts[axis], place[axis]);
        let ranges = [range(0), range(1), range(2)];
        (ranges.clone().map(|r| r.start), ranges.map(|r| r.len()))
    }

    /// The ranks next to `rank` along `axis`, with periodic wrap: towards lower and towards higher indices.
    pub fn neighbours(&self, rank: usize, axis: usize) -> [usize; 2] {
        let place = self.place(rank);
        let n = self.parts[axis];
        [n - 1, 1].map(|by| {
            let mut other = place;
            other[axis] = (place[axis] + by) % n;
            self.rank_at(other)
        })
    }

    /// Whether ranks meet along this axis, so that ghost planes travel; else the wrap is local.
    pub fn is_cut(&self, axis: usize) -> bool {
        self.parts[axis] > 1
    }

    /// Cells of all faces that the largest box sends in one exchange.
    fn face_cells(&self) -> usize {
        let largest = [0, 1, 2].map(|a| self.shape[a].div_ceil(self.parts[a]));
        (0..3).filter(|&a| self.is_cut(a)).map(|a| 2 * largest.iter().product::<usize>() / largest[a]).sum()
    }
}

/// The cells of part `index` when `cells` are cut into `parts`: lengths differ by at most one.
pub fn part(cells: usize, parts: usize, index: usize) -> Range<usize> {
    // Wide enough for every grid that fits into an address space.
    let at = |i: usize| (cells as u128 * i as u128 / parts as u128) as usize;
    at(index)..at(index + 1)
}

/// All ordered triples of positive numbers whose product is `n`, largest first part first.
fn factor_triples(n: usize) -> Vec<[usize; 3]> {
    let divisors = |n: usize| (1..=n).rev().filter(move |d| n % d == 0);
    divisors(n).flat_map(|a| divisors(n / a).map(move |b| [a, b, n / a / b])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_cover_the_grid_exactly_once() {
        let shape = [7, 5, 9];
        for ranks in 1..=24 {
            for parts in factor_triples(ranks) {
                let Ok(split) = Split::new(shape, parts, ranks) else { continue };
                let mut seen = vec![0; 7 * 5 * 9];
                for rank in 0..ranks {
                    assert_eq!(split.rank_at(split.place(rank)), rank);
                    let (start, count) = split.own(rank);
                    for z in start[0]..start[0] + count[0] {
                        for y in start[1]..start[1] + count[1] {
                            for x in start[2]..start[2] + count[2] {
                                seen[(z * 5 + y) * 9 + x] += 1;
                            }
                        }
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{parts:?}");
            }
        }
    }

    #[test]
    fn neighbours_are_mutual_and_adjacent() {
        let split = Split::new([12, 12, 12], [3, 2, 4], 24).unwrap();
        for rank in 0..24 {
            for axis in 0..3 {
                let [low, high] = split.neighbours(rank, axis);
                assert_eq!(split.neighbours(low, axis)[1], rank);
                assert_eq!(split.neighbours(high, axis)[0], rank);
                let end = split.own(rank).0[axis] + split.own(rank).1[axis];
                assert_eq!(end % 12, split.own(high).0[axis]);
            }
        }
    }

    #[test]
    fn auto_prefers_small_and_contiguous_faces() {
        assert_eq!(Split::auto([96; 3], 1).unwrap().parts, [1, 1, 1]);
        assert_eq!(Split::auto([96; 3], 2).unwrap().parts, [2, 1, 1]);
        assert_eq!(Split::auto([96; 3], 3).unwrap().parts, [3, 1, 1]);
        assert_eq!(Split::auto([96; 3], 4).unwrap().parts, [4, 1, 1]);
        assert_eq!(Split::auto([96; 3], 8).unwrap().parts, [4, 2, 1]);
        assert_eq!(Split::auto([96; 3], 64).unwrap().parts, [4, 4, 4]);
        assert_eq!(Split::auto([4, 8, 64], 4).unwrap().parts, [1, 1, 4]);
    }

    #[test]
    fn impossible_cuts_are_refused() {
        assert_eq!(Split::new([8; 3], [2, 2, 1], 3).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Split::new([8, 8, 2], [1, 1, 3], 3).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Split::auto([3, 3, 3], 29).unwrap_err().kind(), Kind::Usage);
    }
}
