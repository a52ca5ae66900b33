//! Contents that cost nothing to make and can be checked by anybody who knows the seed.
//!
//! One stretch of pseudo-random words; an object is a window of it whose place follows from rank, step and index,
//! so that an object that got into another's place, or a version into another's, is seen. Two objects share a
//! window only when their places agree modulo [`SLOTS`]; neighbours in any of the three never do.

/// Windows that differ: a prime.
const SLOTS: usize = 4099;
/// Steps from one window to the next, in slots, for the next index, step and rank: primitive to [`SLOTS`].
const STRIDES: [usize; 3] = [1, 1361, 2731];

/// The contents of all objects of one size.
pub struct Pattern {
    words: Vec<u64>,
    object_bytes: usize,
}

impl Pattern {
    /// The contents for this seed.
    pub fn new(seed: u64, object_bytes: usize) -> Pattern {
        let count = object_bytes.div_ceil(8) + SLOTS;
        let words =
            (0..count as u64).map(|i| mixed(seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15))));
        Pattern { words: words.collect(), object_bytes }
    }

    /// What this object holds.
    pub fn object(&self, rank: usize, step: u64, index: usize) -> &[u8] {
        let step = (step % SLOTS as u64) as usize;
        let slot =
            [index, step, rank].iter().zip(STRIDES).map(|(&n, stride)| n % SLOTS * stride).sum::<usize>()
                % SLOTS;
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        &bytes[slot * 8..slot * 8 + self.object_bytes]
    }
}

/// The finalizer of SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014).
pub(crate) fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_differ_from_their_neighbours_and_from_another_seed() {
        let pattern = Pattern::new(7, 21);
        let object = pattern.object(3, 5, 9);
        assert_eq!(object.len(), 21);
        for other in [(2, 5, 9), (3, 6, 9), (3, 5, 8), (3, 5, 9 + 4098)] {
            assert_ne!(object, pattern.object(other.0, other.1, other.2), "{other:?}");
        }
        assert_eq!(object, pattern.object(3, 5, 9));
        assert_ne!(object, Pattern::new(8, 21).object(3, 5, 9));
    }
}
