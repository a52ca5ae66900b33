//! The random numbers of the NAS Parallel Benchmarks: x(k+1) = 5^13 x(k) modulo 2^46, from x(0) = 314159265, as a part
//! of 2^46.

const BITS: u32 = 46;
const MASK: u64 = (1 << BITS) - 1;
const FACTOR: u64 = 1_220_703_125;
const SEED: u64 = 314_159_265;

/// The numbers from some place on.
pub(super) struct Random(u64);

fn times(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b)) as u64 & MASK
}

impl Random {
    /// Leaves out the first `skipped`.
    pub fn after(skipped: u64) -> Random {
        let (mut x, mut factor, mut left) = (SEED, FACTOR, skipped);
        while left > 0 {
            if left & 1 == 1 {
                x = times(x, factor);
            }
            factor = times(factor, factor);
            left >>= 1;
        }
        Random(x)
    }

    /// The next one, above 0 and below 1.
    pub fn draw(&mut self) -> f64 {
        self.0 = times(self.0, FACTOR);
        self.0 as f64 / (1u64 << BITS) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reached_at_once() {
        let mut one = Random::after(0);
        let first: Vec<f64> = (0..100).map(|_| one.draw()).collect();
        assert!(first.iter().all(|x| (0.0..1.0).contains(x)));
        for (skipped, wanted) in first.iter().enumerate() {
            assert_eq!(Random::after(skipped as u64).draw(), *wanted);
        }
        assert_eq!(Random::after(1).0, 383_495_196_533_203_125 % (1 << BITS));
    }
}
