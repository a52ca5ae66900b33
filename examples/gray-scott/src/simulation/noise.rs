//! Noise that depends on the place, not on who computes it: a counter-based random number generator.
//!
//! Philox4x32-10 of J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy
//! as 1, 2, 3", SC 2011. A number is a pure function of (seed, step, global cell index), so the field cannot
//! depend on the decomposition or on the order of computation. The known answers in the tests are those that
//! the authors publish with their Random123 library.
//!
//! Not for cryptography.

/// Round multipliers of Philox4x32 (Salmon et al. 2011, table 2 and section 3.4).
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Weyl increments of the key: fractional parts of the golden ratio and of the square root of 3.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// What a draw is for. Streams never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// The perturbation of the initial condition.
    Initial = 0,
    /// The noise term of each time step.
    EachStep = 1,
}

/// The four words of Philox4x32-10 at `counter` under `key`.
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (p1 >> 32) as u32 ^ counter[1] ^ key[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ counter[3] ^ key[1],
            p0 as u32,
        ];
    }
    counter
}

/// The generator of one run.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    key: [u32; 2],
}

impl Noise {
    /// The generator for this seed.
    pub fn new(seed: u64) -> Noise {
        Noise { key: [seed as u32, (seed >> 32) as u32] }
    }

    /// Two numbers in [-1, 1) for the initial condition of one cell: for U and for V.
    pub fn initial(&self, cell: u64) -> (f64, f64) {
        let words = philox4x32([cell as u32, (cell >> 32) as u32, 0, Stream::Initial as u32], self.key);
        (signed_unit(words[0]), signed_unit(words[1]))
    }

    /// Fills `out` with numbers in [-1, 1) for the cells `first_cell..` of time step `step`.
    ///
    /// Four neighbouring cells share one evaluation of the generator.
    pub fn fill_step(&self, step: u32, first_cell: u64, out: &mut [f64]) {
        let mut block = u64::MAX;
        let mut words = [0; 4];
        for (cell, out) in (first_cell..).zip(out) {
            if cell >> 2 != block {
                block = cell >> 2;
                let counter = [block as u32, (block >> 32) as u32, step, Stream::EachStep as u32];
                words = philox4x32(counter, self.key);
            }
            *out = signed_unit(words[(cell & 3) as usize]);
        }
    }
}

/// Maps a word to [-1, 1), exactly: both operations are exact in binary64.
fn signed_unit(word: u32) -> f64 {
    f64::from(word) * (1.0 / 2_147_483_648.0) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_answers() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_cell_gets_the_same_number_however_the_row_is_cut() {
        let noise = Noise::new(0x1234_5678_9abc_def0);
        let mut whole = [0.0; 37];
        noise.fill_step(7, 1_000_003, &mut whole);
        for first in 0..37 {
            for last in first..37 {
                let mut part = vec![0.0; last - first];
                noise.fill_step(7, 1_000_003 + first as u64, &mut part);
                assert_eq!(part, whole[first..last]);
            }
        }
    }

    #[test]
    fn numbers_fill_the_interval_evenly() {
        let mut draws = vec![0.0; 1 << 16];
        Noise::new(5).fill_step(0, 0, &mut draws);
        assert!(draws.iter().all(|x| (-1.0..1.0).contains(x)));
        // Standard error of the mean of 2^16 uniform numbers is 0.577/256 = 0.0023: five of them.
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.0115, "mean {mean}");
        let mut next = vec![0.0; 1 << 16];
        Noise::new(5).fill_step(1, 0, &mut next);
        assert!(draws.iter().zip(&next).filter(|(a, b)| a == b).count() < 4, "steps share numbers");
    }
}
