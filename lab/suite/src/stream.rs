//! STREAM by location: how fast its kernels run with the arrays that are read in one tier and the array that is written
//! in another.
//!
//! Every byte takes its time on the memory it lies in; the two memories overlap as far as `overlap` says:
//!
//! ```text
//! t  = (T_D^p + T_P^p)^(1/p)                 p: overlap; 1 is none, infinite is full
//! T_D = (r_D + 2 w_D) / D                    main memory: a store first reads its line (write-allocate)
//! T_P = κ (r_P + w_P) / R + w_P / W          persistent memory: the same, at its own rates; κ = 1 unless it is written
//! bandwidth = counted bytes / (t + persisting)
//! ```
//!
//! `r` and `w` are the bytes per element that are read and written where the index says; STREAM counts r + w.
//! Persisting is a time per element, once at the end or with each store.
//!
//! The constants are *fitted*, to the tables that they reproduce (Jackson, Tables 1 to 3): five numbers to 24 cells of
//! the first generation, six to 24 of the third. For the first, D is 79 % of what twelve channels of DDR4-2666 carry, R
//! 88 % of twice the 39.4 GB/s that Venkatesh and others give for a socket, and W lies between twice the rates that
//! Yang and others measured for plain stores (2.8 GB/s) and for stores with write-back (7.5 GB/s).

use forebay_tier::Horizon;

use forebay_probe::kernels::stream::Kernel;

/// Constants of a node; bandwidths in GB/s, times in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// D: main memory.
    pub dram: f64,
    /// R: reading persistent memory.
    pub read: f64,
    /// W: writing it.
    pub write: f64,
    /// κ: how much slower it is read while it is written.
    pub turn: f64,
    /// p.
    pub overlap: f64,
    /// Time per element of persisting once at the end.
    pub persist_end_ns: f64,
    /// Time per element of persisting each store.
    pub persist_each_ns: f64,
}

/// First generation, a node of two sockets. Least squares over Table 1 without κ and p; persisting is the mean over the
/// kernels of Table 2.
pub const GEN1: Constants = Constants {
    dram: 203.1,
    read: 69.3,
    write: 10.1,
    turn: 1.0,
    overlap: 1.0,
    persist_end_ns: 0.098,
    persist_each_ns: 16.66,
};

/// Third generation, one socket. Least squares over the rows of Table 3 without persisting; p was picked from 1, 2, 3,
/// 4.
pub const GEN3: Constants = Constants {
    dram: 253.4,
    read: 78.75,
    write: 18.88,
    turn: 1.374,
    overlap: 2.0,
    persist_end_ns: 0.0,
    persist_each_ns: 4.9,
};

/// Bytes of an element.
const ELEMENT: f64 = 8.0;

/// The constants of a platform that this was fitted for.
pub fn constants(platform: &str) -> Option<Constants> {
    match platform {
        "optane-gen1" => Some(GEN1),
        "optane-gen3" => Some(GEN3),
        _ => None,
    }
}

/// Bytes that a program moves, by the memory that they lie in. In main memory each written byte stands for two that
/// move, as a store first reads its line: that is not to be counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Read from main memory.
    pub dram_read: f64,
    /// Written to it.
    pub dram_written: f64,
    /// Read from persistent memory.
    pub pmem_read: f64,
    /// Written to it.
    pub pmem_written: f64,
}

impl Constants {
    /// Bandwidth of a kernel in GB/s, with what it reads or writes in persistent memory or not.
    pub fn bandwidth(&self, kernel: Kernel, reads_pmem: bool, writes_pmem: bool, horizon: Horizon) -> f64 {
        let read = match kernel {
            Kernel::Copy | Kernel::Scale => ELEMENT,
            Kernel::Add | Kernel::Triad => 2.0 * ELEMENT,
        };
        let (dram_read, pmem_read) = if reads_pmem { (0.0, read) } else { (read, 0.0) };
        let (dram_written, pmem_written) = if writes_pmem { (0.0, ELEMENT) } else { (ELEMENT, 0.0) };
        let traffic = Traffic { dram_read, dram_written, pmem_read, pmem_written };
        // An element is persisted also where it lies in main memory: the tables say what that costs.
        (read + ELEMENT) / (self.moving(&traffic) + self.persisting(ELEMENT, horizon))
    }

    /// Seconds that a program needs for these bytes, when nothing else takes its time.
    pub fn seconds(&self, traffic: &Traffic, horizon: Horizon) -> f64 {
        (self.moving(traffic) + self.persisting(traffic.pmem_written, horizon)) * 1e-9
    }

    /// Nanoseconds for bytes.
    fn moving(&self, traffic: &Traffic) -> f64 {
        let Traffic { dram_read, dram_written, pmem_read, pmem_written } = *traffic;
        let turn = if pmem_written > 0.0 { self.turn } else { 1.0 };
        let dram = (dram_read + 2.0 * dram_written) / self.dram;
        let pmem = turn * (pmem_read + pmem_written) / self.read + pmem_written / self.write;
        (dram.powf(self.overlap) + pmem.powf(self.overlap)).powf(1.0 / self.overlap)
    }

    /// Nanoseconds of making written bytes persistent.
    fn persisting(&self, bytes: f64, horizon: Horizon) -> f64 {
        bytes / ELEMENT
            * match horizon {
                Horizon::None => 0.0,
                Horizon::Epoch => self.persist_end_ns,
                Horizon::Write => self.persist_each_ns,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_further_the_slower() {
        for constants in [GEN1, GEN3] {
            for kernel in [Kernel::Copy, Kernel::Scale, Kernel::Add, Kernel::Triad] {
                let of = |r, w| constants.bandwidth(kernel, r, w, Horizon::None);
                assert!(of(false, false) > of(true, false) && of(true, false) > of(false, true));
                assert!(of(false, true) > of(true, true));
                let persisted = |horizon| constants.bandwidth(kernel, true, true, horizon);
                assert!(persisted(Horizon::None) >= persisted(Horizon::Epoch));
                assert!(persisted(Horizon::Epoch) > 3.0 * persisted(Horizon::Write));
            }
        }
    }

    #[test]
    fn bytes_of_a_program_take_as_long_as_those_of_a_kernel() {
        let traffic = Traffic { dram_read: 16e9, pmem_written: 8e9, ..Traffic::default() };
        for constants in [GEN1, GEN3] {
            for horizon in [Horizon::None, Horizon::Epoch, Horizon::Write] {
                let rate = constants.bandwidth(Kernel::Triad, false, true, horizon);
                assert!((24.0 / rate / constants.seconds(&traffic, horizon) - 1.0).abs() < 1e-9);
            }
        }
    }
}
