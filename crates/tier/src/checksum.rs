//! CRC-32C (Castagnoli, CRC-32/ISCSI): the checksum of headers and of every payload chunk.
//!
//! The vectorised code is the crate `crc-fast`; this file fixes the algorithm and offers appending, which the
//! copy loop needs because it sums a chunk block by block. It detects damage, not tampering.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of `data`. `crc32c(b"123456789") == 0xE3069283`; of nothing it is 0.
#[inline]
pub fn crc32c(data: &[u8]) -> u32 {
    // The direct call skips the table of algorithms, which shows at the ~100 bytes of a header.
    crc_fast::crc32_iscsi(data)
}

/// CRC-32C of the bytes summed in `crc` followed by `data`: `crc32c_append(crc32c(a), b) == crc32c(ab)`.
#[inline]
pub fn crc32c_append(crc: u32, data: &[u8]) -> u32 {
    if crc == 0 {
        // CRC 0 is the state before the first byte (init and final exclusive-or cancel out).
        return crc32c(data);
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(data);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One bit at a time, from the definition: reflected polynomial 0x82F63B78.
    fn bitwise(data: &[u8]) -> u32 {
        let mut crc = !0u32;
        for byte in data {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
            }
        }
        !crc
    }

    #[test]
    fn known_vectors() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0u8; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFFu8; 32]), 0x62A8_AB43);
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            data in proptest::collection::vec(any::<u8>(), 0..5000),
            cut in 0usize..5000,
        ) {
            let cut = cut.min(data.len());
            let whole = bitwise(&data);
            prop_assert_eq!(crc32c(&data), whole);
            prop_assert_eq!(crc32c_append(crc32c(&data[..cut]), &data[cut..]), whole);
        }
    }
}
