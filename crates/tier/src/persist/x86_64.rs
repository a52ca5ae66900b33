//! x86-64: SSE2, AVX2 and AVX-512 streaming stores, and the three cache-line write-back instructions.
//!
//! AVX-512 and the write-backs are inline assembly: the compiler's own functions for them are newer than our
//! oldest compiler, or missing.

use std::arch::asm;
use std::arch::x86_64::{
    __cpuid_count, __m128i, __m256i, _mm256_loadu_si256, _mm256_stream_si256, _mm_loadu_si128, _mm_prefetch,
    _mm_sfence, _mm_stream_si128, _MM_HINT_T0,
};

use super::LINE_BYTES;

/// Streaming stores leave nothing in the cache that would have to be written back.
pub(super) const STREAM_BYPASSES_CACHE: bool = true;

/// The widest streaming store to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Sse2,
    Avx2,
    Avx512,
}

impl Stream {
    /// All that this machine has, the best last.
    pub(super) fn available() -> Vec<Stream> {
        let mut all = vec![Stream::Sse2];
        if std::arch::is_x86_feature_detected!("avx2") {
            all.push(Stream::Avx2);
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            all.push(Stream::Avx512);
        }
        all
    }

    pub(super) fn best() -> Stream {
        *Stream::available().last().expect("SSE2 is part of x86-64")
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Stream::Sse2 => "sse2",
            Stream::Avx2 => "avx2",
            Stream::Avx512 => "avx512",
        }
    }

    /// Copies whole lines past the cache, and asks for the line `ahead` bytes behind each. No fence.
    ///
    /// # Safety
    /// `dst` (aligned to a line when `lines > 0`) and `src` are valid for `lines` lines and do not overlap;
    /// the machine has the instructions (`self` came from `available` or `best`).
    #[inline]
    pub(super) unsafe fn copy_lines(self, dst: *mut u8, src: *const u8, lines: usize, ahead: usize) {
        debug_assert!(lines == 0 || dst as usize % LINE_BYTES == 0);
        // SAFETY: the caller's promise is the same for each.
        unsafe {
            match self {
                Stream::Sse2 => copy_lines_sse2(dst, src, lines, ahead),
                Stream::Avx2 => copy_lines_avx2(dst, src, lines, ahead),
                Stream::Avx512 => copy_lines_avx512(dst, src, lines, ahead),
            }
        }
    }
}

unsafe fn copy_lines_sse2(dst: *mut u8, src: *const u8, lines: usize, ahead: usize) {
    let (dst, src) = (dst.cast::<__m128i>(), src.cast::<__m128i>());
    for line in 0..lines {
        let at = line * 4;
        prefetch(src.wrapping_add(at).cast::<u8>().wrapping_add(ahead));
        // SAFETY: at + 3 < lines * 4 vectors of 16 bytes, inside the caller's ranges; dst is line-aligned.
        unsafe {
            let v = [
                _mm_loadu_si128(src.add(at)),
                _mm_loadu_si128(src.add(at + 1)),
                _mm_loadu_si128(src.add(at + 2)),
                _mm_loadu_si128(src.add(at + 3)),
            ];
            _mm_stream_si128(dst.add(at), v[0]);
            _mm_stream_si128(dst.add(at + 1), v[1]);
            _mm_stream_si128(dst.add(at + 2), v[2]);
            _mm_stream_si128(dst.add(at + 3), v[3]);
        }
    }
}

#[target_feature(enable = "avx2")]
unsafe fn copy_lines_avx2(dst: *mut u8, src: *const u8, lines: usize, ahead: usize) {
    let (dst, src) = (dst.cast::<__m256i>(), src.cast::<__m256i>());
    for line in 0..lines {
        let at = line * 2;
        prefetch(src.wrapping_add(at).cast::<u8>().wrapping_add(ahead));
        // SAFETY: at + 1 < lines * 2 vectors of 32 bytes, inside the caller's ranges; dst is line-aligned.
        unsafe {
            let low = _mm256_loadu_si256(src.add(at));
            let high = _mm256_loadu_si256(src.add(at + 1));
            _mm256_stream_si256(dst.add(at), low);
            _mm256_stream_si256(dst.add(at + 1), high);
        }
    }
}

unsafe fn copy_lines_avx512(dst: *mut u8, src: *const u8, lines: usize, ahead: usize) {
    let (quads, singles) = (lines / 4, lines % 4);
    // SAFETY: the first loop moves quads * 256 bytes, the second singles * 64: together `lines` lines, inside
    // the caller's ranges; dst is line-aligned as vmovntdq needs; the caller found AVX-512F; a prefetch never faults.
    // The registers named as xmm cover their zmm forms; vzeroupper avoids the penalty for SSE code that follows.
    unsafe {
        asm!(
            "test {quads}, {quads}",
            "jz 3f",
            "2:",
            "prefetcht0 [{src} + {ahead}]",
            "prefetcht0 [{src} + {ahead} + 64]",
            "prefetcht0 [{src} + {ahead} + 128]",
            "prefetcht0 [{src} + {ahead} + 192]",
            "vmovdqu64 zmm0, [{src}]",
            "vmovdqu64 zmm1, [{src} + 64]",
            "vmovdqu64 zmm2, [{src} + 128]",
            "vmovdqu64 zmm3, [{src} + 192]",
            "vmovntdq [{dst}], zmm0",
            "vmovntdq [{dst} + 64], zmm1",
            "vmovntdq [{dst} + 128], zmm2",
            "vmovntdq [{dst} + 192], zmm3",
            "add {src}, 256",
            "add {dst}, 256",
            "dec {quads}",
            "jnz 2b",
            "3:",
            "test {singles}, {singles}",
            "jz 5f",
            "4:",
            "vmovdqu64 zmm0, [{src}]",
            "vmovntdq [{dst}], zmm0",
            "add {src}, 64",
            "add {dst}, 64",
            "dec {singles}",
            "jnz 4b",
            "5:",
            "vzeroupper",
            quads = inout(reg) quads => _,
            singles = inout(reg) singles => _,
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            ahead = in(reg) ahead,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// The instruction that writes a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// Evicts, and waits for each line.
    Clflush,
    /// Evicts, many at a time.
    ClflushOpt,
    /// Keeps the line, many at a time.
    Clwb,
}

impl Flush {
    /// All that this machine has, the best last.
    pub(super) fn available() -> Vec<Flush> {
        // SAFETY: every x86-64 has cpuid, and leaf 0 says how many leaves there are.
        #[allow(unused_unsafe)]
        let ebx = unsafe {
            match __cpuid_count(0, 0).eax >= 7 {
                true => __cpuid_count(7, 0).ebx,
                false => 0,
            }
        };
        let mut all = vec![Flush::Clflush];
        if ebx & (1 << 23) != 0 {
            all.push(Flush::ClflushOpt);
        }
        if ebx & (1 << 24) != 0 {
            all.push(Flush::Clwb);
        }
        all
    }

    pub(super) fn best() -> Flush {
        *Flush::available().last().expect("clflush is part of x86-64")
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Flush::Clflush => "clflush",
            Flush::ClflushOpt => "clflushopt",
            Flush::Clwb => "clwb",
        }
    }

    /// Writes `lines` lines back. No fence.
    ///
    /// # Safety
    /// All lines are mapped; the machine has the instruction (`self` came from `available` or `best`).
    pub(super) unsafe fn lines(self, first: *const u8, lines: usize) {
        let end = first.wrapping_add(lines * LINE_BYTES);
        let mut line = first;
        while line < end {
            // SAFETY: a mapped line, says the caller; the instructions change no value and no register or
            // flag.
            unsafe {
                match self {
                    Flush::Clflush => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
                    Flush::ClflushOpt => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                    Flush::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                }
            }
            line = line.wrapping_add(LINE_BYTES);
        }
    }
}

/// A hint; no address is wrong for it.
#[inline]
pub(super) fn prefetch(line: *const u8) {
    // SAFETY: a prefetch reads nothing that the program could see and never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

/// sfence.
#[inline]
pub(super) fn fence() {
    // SAFETY: sfence is part of x86-64 and has no operands.
    #[allow(unused_unsafe)]
    unsafe {
        _mm_sfence()
    }
}
