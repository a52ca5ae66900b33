//! Random numbers, and a map that lets a random pass meet every block exactly once.
//!
//! Both are the same on every machine for the same seed. Nothing here is fit for secrets.

/// A generator of 64 bits a step (wyrand): one multiplication, passes the usual tests.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        let mut rng = Rng(seed ^ 0x2545_f491_4f6c_dd1d);
        // So that neighbouring seeds do not begin alike.
        rng.next();
        rng.next();
        rng
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (product >> 64) as u64 ^ product as u64
    }

    /// Evenly from 0 to `n` - 1.
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True in `percent` of all calls.
    #[inline]
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// Evenly between 0 (never) and 1.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Random bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Spreads neighbouring numbers.
pub(crate) fn scattered(n: u64) -> u64 {
    n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Which blocks of a pass have been met: bits in levels, each bit of a higher level saying that 64 below are all set.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    blocks: u64,
    left: u64,
    levels: Vec<Vec<u64>>,
}

impl Map {
    pub(crate) fn new(blocks: u64) -> Map {
        let (mut levels, mut bits) = (Vec::new(), blocks);
        loop {
            let words = bits.div_ceil(64).max(1);
            levels.push(vec![0; words as usize]);
            if words == 1 {
                break;
            }
            bits = words;
        }
        let mut map = Map { blocks, left: 0, levels };
        map.clear();
        map
    }

    /// No block has been met.
    pub(crate) fn clear(&mut self) {
        self.left = self.blocks;
        let mut bits = self.blocks;
        for level in &mut self.levels {
            level.fill(0);
            // What lies beyond the last block counts as met.
            if bits % 64 != 0 {
                *level.last_mut().expect("a level has a word") = !0 << (bits % 64);
            }
            bits = level.len() as u64;
        }
    }

    /// Meets the first block from `from` on that has not been met (round the end, if need be).
    pub(crate) fn take_from(&mut self, from: u64) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let found = self.find(from).or_else(|| self.find(0))?;
        self.set(found);
        Some(found)
    }

    /// Meets the block if it has not been met.
    pub(crate) fn take(&mut self, block: u64) -> bool {
        let free = block < self.blocks && self.levels[0][(block / 64) as usize] >> (block % 64) & 1 == 0;
        if free {
            self.set(block);
        }
        free
    }

    #[inline]
    fn set(&mut self, mut at: u64) {
        self.left -= 1;
        for level in &mut self.levels {
            let word = &mut level[(at / 64) as usize];
            *word |= 1 << (at % 64);
            if *word != !0 {
                break;
            }
            at /= 64;
        }
    }

    /// The first clear bit of the lowest level, at `from` or behind.
    #[inline]
    fn find(&self, from: u64) -> Option<u64> {
        let (mut level, mut at) = (0, from);
        // Up, until a word has a clear bit at `at` or behind.
        loop {
            let words = self.levels.get(level)?;
            let word = *words.get((at / 64) as usize)?;
            let clear = !word & (!0 << (at % 64));
            if clear != 0 {
                at = at / 64 * 64 + u64::from(clear.trailing_zeros());
                break;
            }
            level += 1;
            at = at / 64 + 1;
        }
        // And down to it.
        while level > 0 {
            level -= 1;
            let word = self.levels[level][at as usize];
            at = at * 64 + u64::from((!word).trailing_zeros());
        }
        Some(at)
    }
}

/// Zipf numbers by rejection from an integral (Hörmann and Derflinger 1996): no table, any range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    exponent: f64,
    n: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    /// Over 0 to `n` - 1; the exponent is positive.
    pub(crate) fn new(exponent: f64, n: u64) -> Zipf {
        let mut zipf = Zipf { exponent, n: n as f64, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.n + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - (-exponent * 2f64.ln()).exp());
        zipf
    }

    fn integral(&self, x: f64) -> f64 {
        let (power, log) = (1.0 - self.exponent, x.ln());
        if (power * log).abs() < 1e-8 {
            return log;
        }
        (power * log).exp_m1() / power
    }

    fn inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.exponent)).max(-1.0);
        if t.abs() < 1e-8 {
            return x.exp();
        }
        (t.ln_1p() / t * x).exp()
    }

    /// The next number; 0 is the most frequent one.
    pub(crate) fn next(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + rng.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - (-self.exponent * k.ln()).exp() {
                return k as u64 - 1;
            }
        }
    }
}

/// The next of normally distributed numbers around 0 with deviation 1 (Box and Muller).
pub(crate) fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * rng.unit().ln()).sqrt() * (2.0 * std::f64::consts::PI * rng.unit()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_gives_every_block_once() {
        for blocks in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let (mut map, mut rng, mut seen) = (Map::new(blocks), Rng::new(7), vec![false; blocks as usize]);
            for _ in 0..2 {
                seen.fill(false);
                while let Some(block) = map.take_from(rng.below(blocks)) {
                    assert!(!std::mem::replace(&mut seen[block as usize], true), "{block} of {blocks} twice");
                }
                assert!(seen.iter().all(|met| *met), "of {blocks} blocks one was left out");
                map.clear();
            }
        }
        let mut map = Map::new(3);
        assert!(map.take(1) && !map.take(1) && !map.take(3));
        assert_eq!([map.take_from(1), map.take_from(1), map.take_from(1)], [Some(2), Some(0), None]);
    }

    #[test]
    fn numbers_are_spread_and_repeat_with_their_seed() {
        let draw = |seed| {
            (0..64).map(|_| 0).scan(Rng::new(seed), |rng, _: i32| Some(rng.next())).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let (mut rng, mut counts) = (Rng::new(3), [0u32; 10]);
        (0..100_000).for_each(|_| counts[rng.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        let hits = (0..100_000).filter(|_| rng.chance(30)).count();
        assert!((29_000..31_000).contains(&hits), "{hits}");
    }

    #[test]
    fn zipf_prefers_few() {
        for exponent in [0.6, 1.0, 1.2] {
            let (zipf, mut rng, mut counts) = (Zipf::new(exponent, 1000), Rng::new(3), vec![0u32; 1000]);
            (0..200_000).for_each(|_| counts[zipf.next(&mut rng) as usize] += 1);
            // The frequencies of 1 and 11 are as 11^exponent.
            let ratio = f64::from(counts[0]) / f64::from(counts[10]);
            let wanted = 11f64.powf(exponent);
            assert!((ratio / wanted - 1.0).abs() < 0.15, "{exponent}: {ratio} instead of {wanted}");
        }
        let mut rng = Rng::new(3);
        let squares: f64 = (0..10_000).map(|_| normal(&mut rng).powi(2)).sum();
        assert!((squares / 10_000.0 - 1.0).abs() < 0.1, "{squares}");
    }
}
