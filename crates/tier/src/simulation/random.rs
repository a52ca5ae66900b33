//! The numbers that a seed stands for (splitmix64): the same on every machine.

/// A generator of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed and of one of its streams.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random.next();
        random
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `end`, 0 where `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// True so many times of a million.
    pub fn per_million(&mut self, times: u32) -> bool {
        times > 0 && self.below(1_000_000) < u64::from(times)
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// One of the elements.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
