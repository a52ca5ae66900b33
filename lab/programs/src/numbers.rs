//! Numbers that look random, each by itself from a seed and its place: SplitMix64 (Steele, Lea, Flood: "Fast splittable
//! pseudorandom number generators", OOPSLA 2014), whose state is a counter.

/// The number of this place; those of one seed are all different.
pub(crate) fn number(seed: u64, place: u64) -> u64 {
    mix(seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Every bit of what comes out hangs on every bit of `z`; can be undone.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A number as a part of 1, 1 excluded: its upper 53 bits.
pub(crate) fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_numbers() {
        // Of the seed 1234567, as other implementations print them.
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([0, 1, 2].map(|place| number(1_234_567, place)), first);
        assert_eq!((unit(0), unit(u64::MAX) < 1.0), (0.0, true));
    }
}
