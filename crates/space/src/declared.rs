//! What a rank has put in the open step: a name is put with one type and shape, whatever number of boxes it has.
//!
//! Guarantee: a name is refused with another type or shape than it was put with before in this step. Names are told
//! apart by hashes of 64 bits.
//! Not here: what other ranks put ([`crate::control::Control::agree`]).

use std::hash::Hasher;

use forebay_log::nd_box::format_shape;
use forebay_log::Dtype;
use forebay_tier::{Error, Kind};
use rustc_hash::FxHasher;

/// A name's hash, 0 where the entry is free, and the hash of its type and shape, [`UNKNOWN`] after a put that failed.
type Entry = (u64, u64);

const UNKNOWN: u64 = 0;
const CAPACITY_MIN: usize = 64;

/// The names of one step: a table of open addressing, of a power of two of entries.
#[derive(Default)]
pub(crate) struct Declared {
    entries: Vec<Entry>,
    names: usize,
}

/// A name that was not put before in this step.
#[derive(Clone, Copy)]
pub(crate) struct First(usize);

/// Spreads a weak hash over all bits; never 0.
#[inline]
fn spread(hash: u64) -> u64 {
    let product = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ product >> 32) | 1 << 63
}

/// The error of a put that does not fit an earlier one of its name. `who` made that one.
#[cold]
pub(crate) fn disagreement(
    who: &str,
    version: u64,
    rank: u32,
    name: &str,
    dtype: Dtype,
    shape: &[u64],
) -> Error {
    Error::new(
        Kind::VariableMismatch,
        format!("{who} put variable {name} with another dtype or shape in version {version}"),
    )
    .with("rank", rank)
    .with("dtype", dtype)
    .with("shape", format_shape(shape))
    .hint("shape is the global shape, the same on every rank; start and count say which part this rank puts")
}

impl Declared {
    /// Begins a step.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.names > 0 {
            // A step of few names after one of many does not clear the table of that one for ever.
            if self.entries.len() > CAPACITY_MIN && self.names * 16 < self.entries.len() {
                self.entries = Vec::new();
            }
            self.entries.fill((0, UNKNOWN));
            self.names = 0;
        }
    }

    /// Notes a name that is put. Returns whether it is the first put of this name; None: it was put with another type
    /// or shape.
    #[inline]
    pub(crate) fn note(&mut self, name: &str, dtype: Dtype, shape: &[u64]) -> Option<Option<First>> {
        let mut of_name = FxHasher::default();
        of_name.write(name.as_bytes());
        if self.names * 2 >= self.entries.len() {
            self.grow();
        }
        let hash = spread(of_name.finish());
        let of_rank = dtype as u64 ^ (shape.len() as u64) << 8;
        let signature = shape.iter().fold(spread(of_rank), |hash, extent| spread(hash ^ extent));
        let at = self.find(hash);
        match self.entries[at].1 {
            known if known == signature => Some(None),
            UNKNOWN => {
                self.names += usize::from(self.entries[at].0 == 0);
                self.entries[at] = (hash, signature);
                Some(Some(First(at)))
            }
            _ => None,
        }
    }

    /// The hash of a name.
    #[inline]
    pub(crate) fn name(&self, first: First) -> u64 {
        self.entries[first.0].0
    }

    /// The hashes of all names.
    pub(crate) fn names(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().map(|entry| entry.0).filter(|name| *name != 0)
    }

    /// The put failed: the name has no type and shape yet.
    #[cold]
    pub(crate) fn take_back(&mut self, first: First) {
        self.entries[first.0].1 = UNKNOWN;
    }

    /// Where the entry of a name is, or would be.
    #[inline]
    fn find(&self, hash: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        while self.entries[at].0 != 0 && self.entries[at].0 != hash {
            at = (at + 1) & mask;
        }
        at
    }

    #[cold]
    fn grow(&mut self) {
        let capacity = (self.entries.len() * 2).max(CAPACITY_MIN);
        let old = std::mem::replace(&mut self.entries, vec![(0, UNKNOWN); capacity]);
        for entry in old.into_iter().filter(|entry| entry.0 != 0) {
            let at = self.find(entry.0);
            self.entries[at] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_type_and_shape_a_step() {
        let mut step = Declared::default();
        let name = |i: u64| format!("name/{i}");
        for _ in 0..2 {
            for i in 0..10_000 {
                assert!(step.note(&name(i), Dtype::F64, &[i]).unwrap().is_some());
            }
            for i in 0..10_000 {
                assert!(step.note(&name(i), Dtype::F64, &[i]).unwrap().is_none(), "another box of {i}");
                assert!(step.note(&name(i), Dtype::F64, &[i + 1]).is_none(), "another shape of {i}");
                assert!(step.note(&name(i), Dtype::F32, &[i]).is_none(), "another type of {i}");
            }
            step.clear();
        }
        let first = step.note("x", Dtype::F64, &[1]).unwrap().expect("the first");
        step.take_back(first);
        assert!(step.note("x", Dtype::F32, &[2]).unwrap().is_some(), "the first put failed");
        step.clear();
        assert!(step.entries.len() <= CAPACITY_MIN, "a short step does not keep the table of a long one");
    }
}
