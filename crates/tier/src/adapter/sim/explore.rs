//! Going through the images that the crashes of a trace may leave.
//!
//! Where all combinations of the units' values are at most [`Plan::exhaustive_max`], each of them is an image.
//! Above, there are the two extremes, up to half as many images as there are samples in which one unit alone is new,
//! as many in which one alone is old, and the seeded random ones. In either case
//! come [`Plan::torn`] images in which some lines hold words of two neighbouring values. Images that are equal
//! are visited once per crash. Images are numbered, and a number alone with the plan's seed gives the image again.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};

use super::{Crash, Image, Trace, Unit};

/// How many images, and which.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Up to so many combinations, all of them are visited.
    pub exhaustive_max: u64,
    /// Random images of each crash that has more.
    pub samples: u64,
    /// Images with torn lines of each crash. Units of blocks are what is written whole.
    pub torn: u64,
    /// Of the random ones.
    pub seed: u64,
    /// Only the image with this number.
    pub only: Option<u64>,
}

/// Walks through a trace, crash by crash.
pub struct Explorer<'a> {
    trace: &'a Trace,
    image: Image,
    /// Of the image with every unit of the current crash at its first value.
    hash: u64,
    at: usize,
    seen: HashSet<u64>,
}

/// The value of one unit in an image.
#[derive(Clone, Copy, PartialEq)]
struct Pick {
    value: usize,
    /// Words (bit by bit) that hold the next value already.
    next_words: u64,
}

impl<'a> Explorer<'a> {
    /// At the first crash.
    pub fn new(trace: &'a Trace) -> Explorer<'a> {
        let bytes = |unit: &Range<u64>| &trace.before[unit.start as usize..unit.end as usize];
        let units = trace.medium.units(&(0..trace.before.len() as u64));
        let hash = units.fold(0, |sum, unit| sum ^ hash_of(unit.start, bytes(&unit)));
        let image = Image::new(trace.before.clone(), trace.medium);
        Explorer { trace, image, hash, at: 0, seen: HashSet::new() }
    }

    /// The crash at which it stands, with its number; None at the end.
    pub fn crash(&self) -> Option<(usize, &'a Crash)> {
        self.trace.crashes.get(self.at).map(|crash| (self.at, crash))
    }

    /// Visits images of the current crash: each with its number and a hash that tells images of one medium apart.
    /// Ends early when `visit` breaks.
    pub fn images<B>(
        &mut self,
        plan: &Plan,
        mut visit: impl FnMut(&Image, u64, u64) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(crash) = self.trace.crashes.get(self.at) else { return ControlFlow::Continue(()) };
        let choice = Choice::new(crash, plan, self.at, |unit| self.trace.medium.is_lines(unit.offset));
        let hashes: Vec<Vec<u64>> = crash
            .units
            .iter()
            .map(|unit| unit.values.iter().map(|value| hash_of(unit.offset, value)).collect())
            .collect();
        let mut now = vec![Pick { value: 0, next_words: 0 }; crash.units.len()];
        let mut hash_now: Vec<u64> = hashes.iter().map(|values| values[0]).collect();
        let mut picks = now.clone();
        self.seen.clear();
        let numbers = plan.only.map_or(0..choice.count(), |n| n..n + 1);
        let mut end = ControlFlow::Continue(());
        for number in numbers {
            choice.picks(number, &mut picks);
            for (i, pick) in picks.iter().enumerate().filter(|(i, pick)| now[*i] != **pick) {
                let hash = put(&mut self.image, &crash.units[i], *pick, &hashes[i]);
                self.hash ^= hash_now[i] ^ hash;
                hash_now[i] = hash;
            }
            now.copy_from_slice(&picks);
            if self.seen.insert(self.hash) {
                end = visit(&self.image, number, self.hash);
                if end.is_break() {
                    break;
                }
            }
        }
        for (i, unit) in crash.units.iter().enumerate() {
            self.image.set(unit.offset, &unit.values[0]);
            self.hash ^= hash_now[i] ^ hashes[i][0];
        }
        end
    }

    /// Goes past the fence, to the next crash.
    pub fn step(&mut self) {
        for unit in self.trace.crashes.get(self.at).map_or(&[][..], |crash| &crash.units) {
            if let Some(value) = unit.settles {
                self.hash ^=
                    hash_of(unit.offset, &unit.values[0]) ^ hash_of(unit.offset, &unit.values[value]);
                self.image.set(unit.offset, &unit.values[value]);
            }
        }
        self.at += 1;
    }
}

/// Brings a unit to a value; returns the hash of what it holds then.
fn put(image: &mut Image, unit: &Unit, pick: Pick, hashes: &[u64]) -> u64 {
    if pick.next_words == 0 {
        image.set(unit.offset, &unit.values[pick.value]);
        return hashes[pick.value];
    }
    let mut line = unit.values[pick.value].to_vec();
    for word in (0..line.len() / 8).filter(|word| pick.next_words >> word & 1 == 1) {
        line[word * 8..word * 8 + 8].copy_from_slice(&unit.values[pick.value + 1][word * 8..word * 8 + 8]);
    }
    image.set(unit.offset, &line);
    hash_of(unit.offset, &line)
}

/// Which image has which number.
struct Choice<'a> {
    units: &'a [Unit],
    /// By unit: whether it is a line, which may be torn.
    tears: Vec<bool>,
    /// All combinations, when they are few enough.
    all: Option<u64>,
    samples: u64,
    torn: u64,
    seed: u64,
}

impl<'a> Choice<'a> {
    fn new(crash: &'a Crash, plan: &Plan, at: usize, is_line: impl Fn(&Unit) -> bool) -> Choice<'a> {
        let combinations = crash.units.iter().try_fold(1u64, |product, unit| {
            product.checked_mul(unit.values.len() as u64).filter(|product| *product <= plan.exhaustive_max)
        });
        let tears: Vec<bool> = crash.units.iter().map(is_line).collect();
        Choice {
            units: &crash.units,
            all: combinations,
            samples: plan.samples,
            torn: if tears.contains(&true) { plan.torn } else { 0 },
            tears,
            seed: Random(plan.seed ^ (at as u64) << 32).next(),
        }
    }

    /// Units that are once alone old and once alone new.
    fn singles(&self) -> u64 {
        (self.units.len() as u64).min(self.samples.div_ceil(2))
    }

    /// The `n`-th of them: spread over all, others at each crash.
    fn single(&self, n: u64) -> u64 {
        let units = self.units.len() as u64;
        (n * units / self.singles() + self.seed % units) % units
    }

    fn untorn(&self) -> u64 {
        self.all.unwrap_or(2 + 2 * self.singles() + self.samples)
    }

    fn count(&self) -> u64 {
        self.untorn() + self.torn
    }

    fn picks(&self, number: u64, picks: &mut [Pick]) {
        let singles = self.singles();
        let of = |values: &dyn Fn(usize) -> usize, picks: &mut [Pick]| {
            for (i, pick) in picks.iter_mut().enumerate() {
                *pick = Pick { value: values(i), next_words: 0 };
            }
        };
        let newest = |i: usize| self.units[i].values.len() - 1;
        match (self.all, number) {
            (_, n) if n >= self.untorn() => self.random(n, true, picks),
            (Some(_), mut n) => {
                for (unit, pick) in self.units.iter().zip(picks.iter_mut()) {
                    let values = unit.values.len() as u64;
                    *pick = Pick { value: (n % values) as usize, next_words: 0 };
                    n /= values;
                }
            }
            (None, 0) => of(&|_| 0, picks),
            (None, 1) => of(&newest, picks),
            (None, n) if n < 2 + singles => {
                of(&|i| if i as u64 == self.single(n - 2) { newest(i) } else { 0 }, picks)
            }
            (None, n) if n < 2 + 2 * singles => {
                of(&|i| if i as u64 == self.single(n - 2 - singles) { 0 } else { newest(i) }, picks)
            }
            (None, n) => self.random(n, false, picks),
        }
    }

    fn random(&self, number: u64, torn: bool, picks: &mut [Pick]) {
        let mut random = Random(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // From nearly all old to nearly all new: in between, hundreds of units would always be half and half.
        let newest_of_16 = [1, 4, 8, 12, 15][random.below(5) as usize];
        for ((unit, pick), tears) in self.units.iter().zip(picks.iter_mut()).zip(&self.tears) {
            let last = unit.values.len() - 1;
            let newest = random.below(16) < newest_of_16;
            let value = if newest { last } else { random.below(last as u64) as usize };
            let tear = torn && *tears && random.below(4) == 0;
            let next_words = if tear && value < last { random.next() & 0xff } else { 0 };
            *pick = Pick { value, next_words };
        }
    }
}

/// Seeded numbers (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Of a unit at a place; images are told apart by the exclusive or of their units' hashes.
fn hash_of(offset: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
    words.fold(Random(offset).next(), |hash, word| Random(hash.rotate_left(23) ^ word).next())
}
