//! A stack of the numbers 0 to n - 1 without a lock: a thread that is interrupted in the middle stops no other.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// No number.
const NONE: u32 = u32::MAX;

/// See the file's head. Each number is in it once or not at all; the callers see to that.
pub(crate) struct Stack {
    /// The first number, and above it how often it was changed: so that a number that left and came back is noticed.
    top: AtomicU64,
    below: Box<[AtomicU32]>,
}

impl Stack {
    /// With all numbers in it, 0 on top.
    pub(crate) fn full(numbers: u32) -> Stack {
        let below = (1..=numbers).map(|n| AtomicU32::new(if n == numbers { NONE } else { n })).collect();
        Stack { top: AtomicU64::new(if numbers == 0 { u64::from(NONE) } else { 0 }), below }
    }

    pub(crate) fn push(&self, number: u32) {
        let mut seen = self.top.load(Relaxed);
        loop {
            self.below[number as usize].store(seen as u32, Relaxed);
            let to = (seen >> 32).wrapping_add(1) << 32 | u64::from(number);
            match self.top.compare_exchange_weak(seen, to, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    pub(crate) fn pop(&self) -> Option<u32> {
        let mut seen = self.top.load(Acquire);
        loop {
            let number = seen as u32;
            if number == NONE {
                return None;
            }
            let next = self.below[number as usize].load(Relaxed);
            let to = (seen >> 32).wrapping_add(1) << 32 | u64::from(next);
            match self.top.compare_exchange_weak(seen, to, AcqRel, Acquire) {
                Ok(_) => return Some(number),
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_held_by_one_at_a_time() {
        let stack = Stack::full(3);
        let held: Vec<AtomicU32> = (0..3).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let Some(number) = stack.pop() else { continue };
                        assert_eq!(held[number as usize].fetch_add(1, SeqCst), 0);
                        held[number as usize].fetch_sub(1, SeqCst);
                        stack.push(number);
                    }
                });
            }
        });
        let mut left: Vec<u32> = std::iter::from_fn(|| stack.pop()).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2]);
        assert!(Stack::full(0).pop().is_none());
    }
}
