//! The main job in one process, without any space: what the coupled run is compared with.
//!
//! The field is computed in one piece, the statistics from the whole field. Nothing is communicated, so
//! agreement bit for bit shows that cutting, exchanging and redistributing change nothing.

use crate::analysis::statistics::{of_field, Recipe, Statistics, When};
use crate::simulation::deck::Deck;
use crate::simulation::field::Cell;
use crate::simulation::solver::Solver;
use crate::simulation::split::Split;
use forebay_space::{Dtype, Result};

/// U and V of one output step, in C order.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot<T> {
    /// Version, step and time.
    pub when: When,
    /// Concentration of U.
    pub u: Vec<T>,
    /// Concentration of V.
    pub v: Vec<T>,
}

/// Computes the deck and hands every output to `visit`, beginning with the initial state.
pub fn run<T: Cell>(deck: &Deck, mut visit: impl FnMut(&Snapshot<T>) -> Result<()>) -> Result<()> {
    let split = Split::new(deck.shape, [1; 3], 1)?;
    let mut solver = Solver::<T>::new(deck, &split, 0)?;
    let cells = deck.shape.iter().product();
    let when = When { version: 0, step: 0, time: 0.0 };
    let mut snapshot = Snapshot { when, u: vec![T::of(0.0); cells], v: vec![T::of(0.0); cells] };
    loop {
        if solver.step() % deck.output_every == 0 {
            let (version, step) = (solver.step() / deck.output_every, solver.step());
            snapshot.when = When { version, step, time: step as f64 * deck.dt };
            solver.fields().copy_inner(&solver.fields().u, &mut snapshot.u);
            solver.fields().copy_inner(&solver.fields().v, &mut snapshot.v);
            visit(&snapshot)?;
        }
        if solver.step() == deck.steps {
            return Ok(());
        }
        solver.advance_inner();
        solver.finish_step();
    }
}

/// The statistics of V for every output of the deck.
pub fn statistics(deck: &Deck, recipe: &Recipe) -> Result<Vec<Statistics>> {
    match deck.dtype {
        Dtype::F32 => statistics_of::<f32>(deck, recipe),
        _ => statistics_of::<f64>(deck, recipe),
    }
}

fn statistics_of<T: Cell>(deck: &Deck, recipe: &Recipe) -> Result<Vec<Statistics>> {
    let mut all = Vec::new();
    run::<T>(deck, |s| {
        all.push(of_field(&s.v, deck.shape, s.when, recipe)?);
        Ok(())
    })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_grows_into_a_surface() {
        let deck =
            Deck::parse("pattern = \"lambda\"\nshape = [24, 24, 24]\nsteps = 60\noutput_every = 20").unwrap();
        let all = statistics(&deck, &Recipe::default()).unwrap();
        assert_eq!(
            all.iter().map(|s| (s.version, s.step)).collect::<Vec<_>>(),
            [(0, 0), (1, 20), (2, 40), (3, 60)]
        );
        assert!(all.iter().all(|s| s.min >= 0.0 && s.max < 1.0 && s.iso_area > 100.0));
        assert_eq!(all[0].max, 0.33);
        assert_eq!(all[0].histogram.iter().sum::<u64>(), 24 * 24 * 24);
    }

    /// Bits, so that a change of compiler, processor or code that touches the arithmetic is noticed. Only
    /// IEEE additions, products, quotients and square roots are used, so they hold on every machine. Minimum,
    /// maximum and mean were confirmed by a second program, written in Python from the equations.
    #[test]
    fn the_numbers_of_the_small_deck_never_change() {
        let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gray-scott");
        let deck = Deck::read(&example.join("deck-small.toml")).unwrap();
        let last = statistics(&deck, &Recipe::default()).unwrap().pop().unwrap();
        let bits = [last.bits.min, last.bits.max, last.bits.mean, last.bits.iso_area];
        assert_eq!(
            bits,
            ["0x3e0c30fed63bac8a", "0x3fde943bb8385a1f", "0x3fab414987f5f144", "0x40903be2ff74700b"]
        );
    }
}
