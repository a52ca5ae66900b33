//! The durable record of a step's value, by which levels choose what they keep.
//!
//! The value lies beside the pieces, in a record of its own (`00000.metric`), which rank 0 writes before its manifest:
//! a step that is committed has it. Described in docs/src/formats/checkpoint.md.

use forebay_tier::checksum::crc32c;
use forebay_tier::Result;

use super::{damaged, In, Out};

/// The fields of the record of a value.
pub(super) const METRIC: [(&str, usize); 4] = [("magic", 8), ("value", 8), ("reserved", 4), ("crc", 4)];
const METRIC_MAGIC: &[u8; 8] = b"FBCKPTME";
/// Bytes of the record.
pub(crate) const METRIC_BYTES: u64 = 24;

/// The record of a value.
pub(crate) fn encode_metric(value: f64) -> Vec<u8> {
    let mut out = Out::default();
    out.bytes(METRIC_MAGIC);
    out.u64(value.to_bits());
    out.u32(0);
    let crc = crc32c(&out.0);
    out.u32(crc);
    out.0
}

/// Reads the record.
///
/// # Errors
/// `Damaged`.
pub(crate) fn decode_metric(bytes: &[u8]) -> Result<f64> {
    let read = || -> Option<f64> {
        let mut from = In::of(bytes);
        let whole = bytes.len() as u64 == METRIC_BYTES && from.take(8)? == METRIC_MAGIC;
        let value = f64::from_bits(from.u64()?);
        from.u32()?;
        (whole && from.u32()? == crc32c(&bytes[..20]) && !value.is_nan()).then_some(value)
    };
    read().ok_or_else(|| damaged("the metric of a step", "it does not match its checksum"))
}

#[cfg(test)]
mod tests {
    use forebay_tier::Kind;

    use super::*;

    #[test]
    fn a_metric_is_read_again_and_damage_is_seen() {
        for value in [0.0, -1.5, f64::INFINITY, f64::MIN_POSITIVE] {
            assert_eq!(decode_metric(&encode_metric(value)).unwrap(), value);
        }
        let good = encode_metric(0.25);
        assert_eq!(good.len() as u64, METRIC_BYTES);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_metric(&bad).unwrap_err().kind(), Kind::Damaged, "bit {bit}");
        }
        assert!(decode_metric(&good[..23]).is_err() && decode_metric(&[]).is_err());
        assert!(decode_metric(&encode_metric(f64::NAN)).is_err());
    }
}
