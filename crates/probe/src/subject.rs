//! What can be measured: one tier, prepared.
//!
//! A subject answers for conditions; what it did for an answer it says in bytes, so that the answer can be judged.

use forebay_tier::Result;

use crate::load::Latency;
use forebay_profile::{Conditions, Load, Operation};

/// What came of one measurement of a bandwidth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Operations: reads, writes.
    pub operations: [u64; 2],
    /// Bytes that were asked for: read, written.
    pub bytes: [u64; 2],
    /// Nanoseconds from the first operation to the last, with the flush that the horizon asks for.
    pub ns: u64,
    /// Bytes that the device below moved meanwhile, for all processes: read, written. None where no counter exists.
    pub device_bytes: Option<[u64; 2]>,
}

impl Reading {
    /// Bytes per second, both directions together.
    pub fn bytes_per_s(&self) -> f64 {
        per_s(self.bytes[0] + self.bytes[1], self.ns)
    }

    /// Operations per second.
    pub fn operations_per_s(&self) -> f64 {
        per_s(self.operations[0] + self.operations[1], self.ns)
    }
}

fn per_s(count: u64, ns: u64) -> f64 {
    if ns == 0 {
        return 0.0;
    }
    count as f64 * 1e9 / ns as f64
}

/// A tier that is ready to be measured.
pub trait Subject {
    /// Moves bytes under these conditions for about `span_ns`.
    ///
    /// # Errors
    /// Those of the tier.
    fn bandwidth(&mut self, when: &Conditions, span_ns: u64) -> Result<Reading>;

    /// Times single operations for about `span_ns`.
    ///
    /// # Errors
    /// Those of the tier.
    fn latency(&mut self, of: Operation, load: Load, when: &Conditions, span_ns: u64) -> Result<Latency>;

    /// Ends what it still has under way (writes that a cache holds), because another tier is measured next.
    ///
    /// # Errors
    /// Those of the tier.
    fn rest(&mut self) -> Result<()> {
        Ok(())
    }

    /// How it measures, in words, for the profile.
    fn method(&self) -> String;

    /// What a reader of its numbers must know.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Why nothing that it says is to be believed, if so.
    fn caveat(&self) -> Option<String> {
        None
    }
}
