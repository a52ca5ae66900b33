//! The copy primitives against plain slices: every instruction set this machine has, all alignments, all
//! sizes to 2000 and those around every threshold.

use proptest::prelude::*;

use super::*;

/// Bytes around the target that must stay as they are.
const MARGIN: usize = 128;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8).wrapping_mul(7) ^ seed) as u8).collect()
}

/// A copy of `len` bytes into the middle of a buffer of 0xA5, at `dst_skew` past a line boundary.
fn check(len: usize, src_skew: usize, dst_skew: usize, copy: &dyn Fn(&mut [u8], &[u8])) {
    let source = pattern(len + src_skew, len);
    let mut buffer = vec![0xA5u8; len + 2 * MARGIN + LINE_BYTES];
    let start = MARGIN + buffer[MARGIN..].as_ptr().align_offset(LINE_BYTES) + dst_skew;
    copy(&mut buffer[start..start + len], &source[src_skew..]);
    assert!(
        buffer[start..start + len] == source[src_skew..],
        "{len} bytes at skews {src_skew}, {dst_skew} differ"
    );
    assert!(buffer[..start].iter().all(|b| *b == 0xA5), "bytes before were overwritten");
    assert!(buffer[start + len..].iter().all(|b| *b == 0xA5), "bytes after were overwritten");
}

fn stream_with(stream: arch::Stream) -> impl Fn(&mut [u8], &[u8]) {
    move |dst: &mut [u8], src: &[u8]| {
        // Where more follows, lines behind the end are asked for, which changes nothing.
        let follows = (src.len() % 2) << 20;
        // SAFETY: disjoint live slices of one length; `stream` is available.
        unsafe { copy_streaming(dst.as_mut_ptr(), src.as_ptr(), src.len(), follows, true, stream) };
        fence();
    }
}

#[test]
fn every_size_with_every_instruction_set() {
    for stream in arch::Stream::available() {
        let copy = stream_with(stream);
        for len in 0..=2000 {
            check(len, len % 61, len % 67 % 64, &copy);
        }
        for skew in 0..64 {
            for len in [1, 63, 64, 65, 127, 128, 255, 256, 257, 511, 1024] {
                check(len, 0, skew, &copy);
                check(len, skew, 0, &copy);
                check(len, skew, skew, &copy);
            }
        }
    }
}

#[test]
fn sizes_around_the_thresholds_under_every_policy() {
    for policy in [CopyPolicy::DRAM, CopyPolicy::PMEM, CopyPolicy::PMEM_EADR] {
        let plain = |dst: &mut [u8], src: &[u8]| {
            // SAFETY: disjoint live slices of one length.
            let _fenced_at_the_end =
                unsafe { copy_unfenced(dst.as_mut_ptr(), src.as_ptr(), src.len(), policy) };
            fence();
        };
        for middle in [NON_TEMPORAL_BYTES_MIN, CHECKSUM_BLOCK_BYTES, DRAM_TEMPORAL_BYTES_MAX] {
            for len in middle - 3..=middle + 3 {
                for skew in [0, 1, 17, 63] {
                    check(len, skew, 0, &plain);
                    check(len, 0, skew, &plain);
                }
            }
        }
    }
    check(70_001, 3, 5, &|dst, src| copy_persist(dst, src));
}

#[test]
fn every_write_back_instruction_keeps_values() {
    for flush in arch::Flush::available() {
        let bytes = pattern(1000, 3);
        let first = bytes.as_ptr() as usize / LINE_BYTES * LINE_BYTES;
        let lines = (bytes.as_ptr() as usize + bytes.len() - first).div_ceil(LINE_BYTES);
        // SAFETY: the lines of a live slice; `flush` is available.
        unsafe { flush.lines(first as *const u8, lines) };
        fence();
        assert!(bytes == pattern(1000, 3), "{} changed bytes", flush.name());
    }
    persist(&[]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_size_at_any_alignment(len in 0usize..2000, src_skew in 0usize..64, dst_skew in 0usize..64) {
        for stream in arch::Stream::available() {
            check(len, src_skew, dst_skew, &stream_with(stream));
        }
        for policy in [CopyPolicy::DRAM, CopyPolicy::PMEM, CopyPolicy::PMEM_EADR] {
            check(len, src_skew, dst_skew, &|dst, src| {
                // SAFETY: disjoint live slices of one length.
                let _fenced_at_the_end = unsafe { copy_unfenced(dst.as_mut_ptr(), src.as_ptr(), src.len(), policy) };
            fence();
            });
        }
    }
}

proptest! {
    #[test]
    fn checksummed_copies_equal_plain_ones(
        len in prop_oneof![0usize..2000, 15_000usize..18_000, 60_000usize..140_000],
        chunk in prop_oneof![1usize..300, Just(4096usize), Just(65_536usize), Just(usize::MAX)],
        src_skew in 0usize..64,
        dst_skew in 0usize..64,
        which in 0usize..3,
    ) {
        let policy = [CopyPolicy::DRAM, CopyPolicy::PMEM, CopyPolicy::PMEM_EADR][which];
        let seen = std::cell::RefCell::new(Vec::new());
        check(len, src_skew, dst_skew, &|dst, src| {
            // SAFETY: disjoint live slices of one length.
            let _fenced_at_the_end = unsafe {
                copy_checksummed_unfenced(dst.as_mut_ptr(), src, policy, chunk, &mut seen.borrow_mut())
            };
            fence();
        });
        let source = pattern(len + src_skew, len);
        let expected: Vec<u32> = source[src_skew..].chunks(chunk).map(crate::checksum::crc32c).collect();
        prop_assert_eq!(seen.into_inner(), &expected[..]);
        let mut in_place = Vec::new();
        checksum_chunks(&source[src_skew..], chunk, &mut in_place);
        prop_assert_eq!(in_place, expected);
    }
}
