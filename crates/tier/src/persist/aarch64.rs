//! aarch64: pair stores with the non-temporal hint, and cleaning of cache lines to the point of persistence.
//!
//! Linux lets user code run `dc cvac` and, where the processor has it, `dc cvap`.

use std::arch::asm;

use super::LINE_BYTES;

/// The hint of `stnp` may be ignored: lines must be cleaned where persistence needs it.
pub(super) const STREAM_BYPASSES_CACHE: bool = false;

/// There is one way to stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stream;

impl Stream {
    #[cfg(test)]
    pub(super) fn available() -> Vec<Stream> {
        vec![Stream]
    }

    pub(super) fn best() -> Stream {
        Stream
    }

    pub(super) fn name(self) -> &'static str {
        "aarch64"
    }

    /// Copies whole lines with `stnp`.
    ///
    /// # Safety
    /// Both are valid for `lines` lines and do not overlap.
    pub(super) unsafe fn copy_lines(self, dst: *mut u8, src: *const u8, lines: usize, ahead: usize) {
        for line in 0..lines {
            let at = line * LINE_BYTES;
            prefetch(src.wrapping_add(at + ahead));
            // SAFETY: at + 64 <= lines * 64, inside the caller's ranges.
            unsafe {
                asm!(
                    "ldp q0, q1, [{src}]",
                    "ldp q2, q3, [{src}, #32]",
                    "stnp q0, q1, [{dst}]",
                    "stnp q2, q3, [{dst}, #32]",
                    src = in(reg) src.add(at),
                    dst = in(reg) dst.add(at),
                    out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

/// How lines are cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// To the point of coherency.
    Cvac,
    /// To the point of persistence.
    Cvap,
}

/// Bit of AT_HWCAP: `dc cvap` (linux/arch/arm64/include/uapi/asm/hwcap.h).
const HWCAP_DCPOP: u64 = 1 << 16;

impl Flush {
    pub(super) fn best() -> Flush {
        // SAFETY: reads a value that the kernel gave at start.
        match unsafe { libc::getauxval(libc::AT_HWCAP) } as u64 & HWCAP_DCPOP {
            0 => Flush::Cvac,
            _ => Flush::Cvap,
        }
    }

    #[cfg(test)]
    pub(super) fn available() -> Vec<Flush> {
        match Flush::best() {
            Flush::Cvac => vec![Flush::Cvac],
            Flush::Cvap => vec![Flush::Cvac, Flush::Cvap],
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Flush::Cvac => "dc cvac",
            Flush::Cvap => "dc cvap",
        }
    }

    /// Cleans `lines` lines. No barrier.
    ///
    /// # Safety
    /// All lines are mapped; the machine has the instruction.
    pub(super) unsafe fn lines(self, first: *const u8, lines: usize) {
        let end = first.wrapping_add(lines * LINE_BYTES);
        let mut line = first;
        while line < end {
            // SAFETY: a mapped line; cleaning changes no value. `dc cvap` by its system register encoding,
            // because the assembler knows its name only from ARMv8.2 on.
            unsafe {
                match self {
                    Flush::Cvac => asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)),
                    Flush::Cvap => {
                        asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags))
                    }
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
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

/// Orders stores and waits for cleaning to end.
#[inline]
pub(super) fn fence() {
    // SAFETY: a barrier without operands.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}
