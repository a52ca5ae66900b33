//! Time stepping of one rank's box, apart from how ghost planes travel.
//!
//! A step has two halves, so that the exchange can run in between: [`Solver::advance_inner`] computes the
//! cells that need no ghosts, [`Solver::finish_step`] the rest, once the ghosts are there.

use super::deck::Deck;
use super::field::{Cell, Fields};
use super::kernel::{advance, inner_and_shell, Rates, Region, StepNoise};
use super::split::Split;
use forebay_space::Result;

/// The state of one rank.
pub struct Solver<T> {
    rates: Rates<T>,
    now: Fields<T>,
    next: Fields<T>,
    cut: [bool; 3],
    inner: Region,
    shell: Vec<Region>,
    noise: Option<StepNoise>,
    step: u64,
}

impl<T: Cell> Solver<T> {
    /// The initial condition of rank `rank` of `split`.
    pub fn new(deck: &Deck, split: &Split, rank: usize) -> Result<Solver<T>> {
        let (start, count) = split.own(rank);
        let cut = [0, 1, 2].map(|a| split.is_cut(a));
        let (inner, shell) = inner_and_shell(count, cut);
        let noise = (deck.noise.each_step > 0.0).then(|| StepNoise {
            generator: deck.noise.generator(),
            step: 0,
            scale: deck.noise.each_step * deck.dt,
            shape: deck.shape,
        });
        let mut now = Fields::initial(deck, start, count)?;
        (0..3).filter(|&a| !cut[a]).for_each(|a| now.wrap(a));
        let next = Fields::zeroed(start, count)?;
        Ok(Solver { rates: Rates::of(deck), now, next, cut, inner, shell, noise, step: 0 })
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The state after [`Solver::step`] steps.
    pub fn fields(&self) -> &Fields<T> {
        &self.now
    }

    /// The same, to fill in ghosts.
    pub fn fields_mut(&mut self) -> &mut Fields<T> {
        &mut self.now
    }

    /// Computes the next state where it needs no ghosts of cut axes.
    pub fn advance_inner(&mut self) {
        let inner = self.inner.clone();
        self.advance(&inner);
    }

    /// Computes the rest of the next state, which then is the current one. The ghosts of all cut axes must
    /// hold the neighbours' values of the current step.
    pub fn finish_step(&mut self) {
        for region in self.shell.clone() {
            self.advance(&region);
        }
        // Axis 2 was wrapped row by row inside the kernel.
        (0..2).filter(|&a| !self.cut[a]).for_each(|a| self.next.wrap(a));
        std::mem::swap(&mut self.now, &mut self.next);
        self.step += 1;
    }

    fn advance(&mut self, region: &Region) {
        let noise = self.noise.map(|n| StepNoise { step: self.step as u32, ..n });
        advance(&self.rates, &self.now, &mut self.next, region, !self.cut[2], noise.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::super::field::Side;
    use super::*;

    /// Runs all ranks of a split side by side, handing faces over directly, and gathers U and V.
    fn run<T: Cell>(deck: &Deck, split: &Split, steps: u64) -> (Vec<T>, Vec<T>) {
        let mut ranks: Vec<Solver<T>> =
            (0..split.ranks()).map(|r| Solver::new(deck, split, r).unwrap()).collect();
        for _ in 0..steps {
            for rank in 0..ranks.len() {
                ranks[rank].advance_inner();
                for axis in (0..3).filter(|&a| split.is_cut(a)) {
                    let [low, high] = split.neighbours(rank, axis);
                    for (from, pack, side) in [(low, Side::High, Side::Low), (high, Side::Low, Side::High)] {
                        let mut face = vec![T::of(0.0); 2 * ranks[rank].fields().face_cells(axis)];
                        ranks[from].fields().pack_face(axis, pack, &mut face);
                        ranks[rank].fields_mut().unpack_face(axis, side, &face);
                    }
                }
            }
            ranks.iter_mut().for_each(Solver::finish_step);
        }
        gather(deck.shape, &ranks)
    }

    fn gather<T: Cell>(shape: [usize; 3], ranks: &[Solver<T>]) -> (Vec<T>, Vec<T>) {
        let cells = shape.iter().product();
        let (mut u, mut v) = (vec![T::of(-9.0); cells], vec![T::of(-9.0); cells]);
        for solver in ranks {
            let fields = solver.fields();
            for z in 0..fields.count[0] {
                for y in 0..fields.count[1] {
                    let to =
                        ((fields.start[0] + z) * shape[1] + fields.start[1] + y) * shape[2] + fields.start[2];
                    u[to..to + fields.count[2]].copy_from_slice(&fields.u[fields.row(z, y)]);
                    v[to..to + fields.count[2]].copy_from_slice(&fields.v[fields.row(z, y)]);
                }
            }
        }
        (u, v)
    }

    fn same_for_every_split<T: Cell + std::fmt::Debug>(deck: &Deck) {
        let whole = run::<T>(deck, &Split::new(deck.shape, [1; 3], 1).unwrap(), 25);
        assert!(whole.1.iter().any(|v| v.wide() > 0.05), "something happens");
        let splits = [
            [2, 1, 1],
            [1, 2, 1],
            [1, 1, 2],
            [3, 1, 1],
            [1, 3, 1],
            [1, 1, 3],
            [4, 1, 1],
            [2, 2, 1],
            [1, 2, 2],
            [2, 2, 2],
            [8, 1, 1],
            [1, 4, 2],
            [2, 1, 4],
            [9, 10, 11],
        ];
        for parts in splits {
            let split = Split::new(deck.shape, parts, parts.iter().product()).unwrap();
            assert!(run::<T>(deck, &split, 25) == whole, "{parts:?} differs");
        }
    }

    const DECK: &str =
        "pattern = \"lambda\"\nshape = [9, 10, 11]\n[noise]\ninitial = 0.05\neach_step = 0.001\n";

    #[test]
    fn the_field_does_not_depend_on_the_split() {
        same_for_every_split::<f64>(&Deck::parse(DECK).unwrap());
    }

    #[test]
    fn the_field_does_not_depend_on_the_split_in_single_precision() {
        same_for_every_split::<f32>(&Deck::parse(DECK).unwrap());
    }
}
