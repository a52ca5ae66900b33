//! The four STREAM kernels, over arrays that may each lie on a tier of its own.
//!
//! Guarantees: kernels, accounting and rounds are those of STREAM (ten rounds, the first not counted, best time; bytes
//! of the arrays that a kernel names, none for lines that a store reads first); every element is compared with what the
//! arithmetic must give. Stores are ordinary ones, through the cache, where those of a compiled C STREAM are.
//!
//! Two ways to lay them out. [`Layout::Arrays`]: a, b and c as in STREAM. [`Layout::Roles`]: each kernel reads two
//! arrays of one place and writes a third of another, as the published tables by location do.

use forebay_tier::clock::now_ns;
use forebay_tier::persist::vector;
use forebay_tier::{Error, Horizon, Kind, Result, SharedRegion};

use super::together;
use forebay_profile::{self, Estimate};

/// The factor of `scale` and `triad`.
pub const SCALAR: f64 = 3.0;
/// Rounds, of which the first is not counted: STREAM's own number.
pub const ROUNDS: usize = 10;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `c = a`
    Copy,
    /// `b = s * c`
    Scale,
    /// `c = a + b`
    Add,
    /// `a = b + s * c`
    Triad,
}

impl Kernel {
    /// In the order of a round.
    pub const ALL: [Kernel; 4] = [Kernel::Copy, Kernel::Scale, Kernel::Add, Kernel::Triad];

    /// As STREAM prints it.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Copy => "Copy",
            Kernel::Scale => "Scale",
            Kernel::Add => "Add",
            Kernel::Triad => "Triad",
        }
    }

    /// Bytes that STREAM counts for `elements` elements.
    pub fn bytes(self, elements: u64) -> u64 {
        let arrays = if matches!(self, Kernel::Copy | Kernel::Scale) { 2 } else { 3 };
        arrays * 8 * elements
    }

    /// Its number in a row of a profile's STREAM table.
    pub fn of(self, row: &forebay_profile::Stream) -> Estimate {
        match self {
            Kernel::Copy => row.copy,
            Kernel::Scale => row.scale,
            Kernel::Add => row.add,
            Kernel::Triad => row.triad,
        }
    }
}

/// Where a kernel reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// STREAM's own: `a`, `b`, `c`, each read by some kernels and written by others.
    Arrays,
    /// The first two arrays are read, the third is written, by every kernel.
    Roles,
}

/// One of the three arrays.
pub struct Array<'a> {
    /// Its elements.
    pub elements: &'a mut [f64],
    /// What persists it; None for memory that cannot be.
    pub region: Option<SharedRegion>,
    /// Where the first element lies in the region, in bytes.
    pub offset: usize,
}

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where kernels read and write.
    pub layout: Layout,
    /// When the written array is persisted: never, once per kernel, after each element.
    pub horizon: Horizon,
    /// How often every kernel runs; the first time does not count when there are more.
    pub rounds: usize,
}

/// Seconds of a kernel over the rounds that count.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Which kernel.
    pub kernel: Kernel,
    /// Bytes that a run counts.
    pub bytes: u64,
    /// Seconds of each round that counts.
    pub seconds: Vec<f64>,
}

impl Timing {
    /// Bytes per second of the fastest round.
    pub fn best(&self) -> f64 {
        self.bytes as f64 / self.min()
    }

    /// Least seconds.
    pub fn min(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Most seconds.
    pub fn max(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    /// Mean seconds.
    pub fn mean(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len().max(1) as f64
    }
}

/// The part of one array that one thread owns.
struct Share<'a> {
    elements: &'a mut [f64],
    region: Option<SharedRegion>,
    offset: usize,
}

impl Share<'_> {
    fn persist(&self, elements: std::ops::Range<usize>) -> Result<()> {
        let Some(region) = &self.region else { return Ok(()) };
        region.persist(self.offset + elements.start * 8..self.offset + elements.end * 8)
    }
}

/// Sets the arrays to their first values, with the threads that will use them (so that pages come from where they run).
/// Values of a, b, c as STREAM has them.
const FIRST: [f64; 3] = [1.0, 2.0, 0.0];

/// Runs the kernels with one thread per processor given, and verifies every element at the end.
///
/// # Errors
/// `Usage` when the arrays differ in length; `Damaged` when an element is not what the arithmetic gives; those of
/// persisting.
pub fn run(plan: &Plan, arrays: [Array<'_>; 3], processors: &[usize]) -> Result<Vec<Timing>> {
    run_with(whole, plan, arrays, processors)
}

/// [`run`] with these loops for whole arrays.
fn run_with(
    whole: impl Fn(Kernel, &[f64], &[f64], &mut [f64]) + Sync,
    plan: &Plan,
    arrays: [Array<'_>; 3],
    processors: &[usize],
) -> Result<Vec<Timing>> {
    let elements = arrays[0].elements.len();
    if arrays.iter().any(|a| a.elements.len() != elements) || elements == 0 || plan.rounds == 0 {
        return Err(Error::new(
            Kind::Usage,
            "STREAM needs three arrays of equal length and at least one round",
        ));
    }
    let parts = shares(arrays, processors.len());
    let work = |_: usize, mut part: [Share<'_>; 3], meeting: &together::Meeting| {
        for (share, value) in part.iter_mut().zip(FIRST) {
            share.elements.fill(value);
        }
        let mut times = Vec::with_capacity(plan.rounds * 4);
        for _ in 0..plan.rounds {
            for kernel in Kernel::ALL {
                meeting.wait()?;
                let begun = now_ns();
                once(&whole, plan, kernel, &mut part)?;
                // The slowest thread ends the kernel.
                meeting.wait()?;
                times.push(now_ns() - begun);
            }
        }
        verify(plan, &part)?;
        Ok(times)
    };
    let times = together::run(processors, parts, work)?;
    Ok(Kernel::ALL
        .iter()
        .enumerate()
        .map(|(k, kernel)| timing(*kernel, k, elements as u64, &times))
        .collect())
}

/// Of each round the longest time that any thread saw.
fn timing(kernel: Kernel, index: usize, elements: u64, times: &[Vec<u64>]) -> Timing {
    let rounds = times[0].len() / 4;
    let longest = |round: usize| times.iter().map(|t| t[round * 4 + index]).max().unwrap_or(0);
    let counted = if rounds > 1 { 1..rounds } else { 0..rounds };
    let seconds = counted.map(|round| longest(round) as f64 / 1e9).collect();
    Timing { kernel, bytes: kernel.bytes(elements), seconds }
}

/// Cuts each array into one share per thread, at multiples of a page where there is enough of it.
fn shares(arrays: [Array<'_>; 3], threads: usize) -> Vec<[Share<'_>; 3]> {
    const PAGE_ELEMENTS: usize = 512;
    let elements = arrays[0].elements.len();
    let each = elements.div_ceil(threads.max(1));
    let each = if each > PAGE_ELEMENTS { each.next_multiple_of(PAGE_ELEMENTS) } else { each };
    let [a, b, c] = arrays.map(|array| {
        let (region, offset) = (array.region, array.offset);
        let share = move |(i, elements): (usize, _)| Share {
            elements,
            region: region.clone(),
            offset: offset + i * each * 8,
        };
        array.elements.chunks_mut(each).enumerate().map(share)
    });
    a.zip(b).zip(c).map(|((a, b), c)| [a, b, c]).collect()
}

/// The arrays that a kernel reads, and the one that it writes.
pub fn reads_and_writes(layout: Layout, kernel: Kernel) -> (Vec<usize>, usize) {
    let ([first, second], written) = operands(layout, kernel);
    match kernel {
        Kernel::Copy | Kernel::Scale => (vec![first], written),
        Kernel::Add | Kernel::Triad => (vec![first, second], written),
    }
}

/// Which arrays a kernel reads (the second one counts for `add` and `triad` only) and which it writes.
fn operands(layout: Layout, kernel: Kernel) -> ([usize; 2], usize) {
    match (layout, kernel) {
        (Layout::Roles, _) => ([0, 1], 2),
        (_, Kernel::Copy) => ([0, 1], 2),
        (_, Kernel::Scale) => ([2, 0], 1),
        (_, Kernel::Add) => ([0, 1], 2),
        (_, Kernel::Triad) => ([1, 2], 0),
    }
}

fn once(
    whole: &impl Fn(Kernel, &[f64], &[f64], &mut [f64]),
    plan: &Plan,
    kernel: Kernel,
    part: &mut [Share<'_>; 3],
) -> Result<()> {
    let ([first, second], written) = operands(plan.layout, kernel);
    let [a, b, c] = part;
    let (x, y, z) = match (first, second, written) {
        (0, 1, 2) => (a, b, c),
        (2, 0, 1) => (c, a, b),
        _ => (b, c, a),
    };
    if plan.horizon == Horizon::Write {
        return element_by_element(kernel, x, y, z);
    }
    whole(kernel, x.elements, y.elements, z.elements);
    match plan.horizon {
        Horizon::None => Ok(()),
        _ => z.persist(0..z.elements.len()),
    }
}

/// A kernel over all elements. A C compiler makes a call of the library's copy of the loop that copies, and the widest
/// vectors of the others: so do these.
fn whole(kernel: Kernel, x: &[f64], y: &[f64], z: &mut [f64]) {
    match kernel {
        Kernel::Copy => z.copy_from_slice(x),
        Kernel::Scale => vector::scale(z, SCALAR, x),
        Kernel::Add => vector::add(z, x, y),
        Kernel::Triad => vector::triad(z, x, SCALAR, y),
    }
}

fn of(kernel: Kernel, x: f64, y: f64) -> f64 {
    match kernel {
        Kernel::Copy => x,
        Kernel::Scale => SCALAR * x,
        Kernel::Add => x + y,
        Kernel::Triad => x + SCALAR * y,
    }
}

/// Horizon `write`: each element is persistent before the next one is stored.
fn element_by_element(kernel: Kernel, x: &Share<'_>, y: &Share<'_>, z: &mut Share<'_>) -> Result<()> {
    for i in 0..z.elements.len() {
        z.elements[i] = of(kernel, x.elements[i], y.elements[i]);
        z.persist(i..i + 1)?;
    }
    Ok(())
}

/// What every element of a, b, c must be after the rounds of `plan`. (No rounding differs: each step is the same
/// operation on the same values.)
fn expected(plan: &Plan) -> [f64; 3] {
    let mut values = FIRST;
    for _ in 0..plan.rounds {
        for kernel in Kernel::ALL {
            let ([x, y], z) = operands(plan.layout, kernel);
            values[z] = of(kernel, values[x], values[y]);
        }
    }
    values
}

fn verify(plan: &Plan, part: &[Share<'_>; 3]) -> Result<()> {
    for ((share, wanted), name) in part.iter().zip(expected(plan)).zip(["a", "b", "c"]) {
        if let Some(at) = share.elements.iter().position(|e| *e != wanted) {
            let message =
                format!("array {name} holds {} where the arithmetic gives {wanted}", share.elements[at]);
            return Err(Error::new(Kind::Damaged, message)
                .with("element", at)
                .hint("memory or processor error; discard the timings of this run"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::together::processors;

    fn plan(layout: Layout, horizon: Horizon, rounds: usize) -> Plan {
        Plan { layout, horizon, rounds }
    }

    fn on_heap(plan: &Plan, elements: usize, threads: usize) -> ([Vec<f64>; 3], Vec<Timing>) {
        let mut arrays = [(); 3].map(|()| vec![f64::NAN; elements]);
        let given = arrays.each_mut().map(|a| Array { elements: a, region: None, offset: 0 });
        let cpus: Vec<usize> = processors().into_iter().cycle().take(threads).collect();
        let timings = run(plan, given, &cpus).unwrap();
        (arrays, timings)
    }

    #[test]
    fn the_arithmetic_is_streams_whatever_the_threads() {
        // By hand: after one round c = a0 = 1; b = 3; c = 1 + 3 = 4; a = 3 + 12 = 15.
        let one = plan(Layout::Arrays, Horizon::None, 1);
        for threads in [1, 2, 3] {
            let (arrays, _) = on_heap(&one, 5000, threads);
            for (array, value) in arrays.iter().zip([15.0, 3.0, 4.0]) {
                assert!(array.iter().all(|e| *e == value), "{threads} threads");
            }
        }
        let roles = plan(Layout::Roles, Horizon::None, 2);
        let (arrays, _) = on_heap(&roles, 100, 2);
        assert_eq!(arrays.map(|a| a[99]), [1.0, 2.0, 7.0], "what is read is never written");
        assert_eq!(expected(&roles), [1.0, 2.0, 7.0]);
    }

    #[test]
    fn bytes_are_counted_as_stream_counts_them() {
        let (_, timings) = on_heap(&plan(Layout::Arrays, Horizon::None, 3), 1000, 1);
        let counted: Vec<(&str, u64, usize)> =
            timings.iter().map(|t| (t.kernel.name(), t.bytes, t.seconds.len())).collect();
        let wanted = [("Copy", 16_000, 2), ("Scale", 16_000, 2), ("Add", 24_000, 2), ("Triad", 24_000, 2)];
        assert_eq!(counted, wanted, "the first round does not count");
        let timing = Timing { kernel: Kernel::Copy, bytes: 100, seconds: vec![4.0, 2.0, 3.0] };
        assert_eq!((timing.best(), timing.min(), timing.max(), timing.mean()), (50.0, 2.0, 4.0, 3.0));
    }

    #[test]
    fn a_wrong_element_is_found() {
        let plan = plan(Layout::Arrays, Horizon::None, 1);
        let mut arrays = [vec![15.0; 8], vec![3.0; 8], vec![4.0; 8]];
        arrays[1][6] = 3.5;
        let given = arrays.each_mut().map(|a| Array { elements: a, region: None, offset: 0 });
        let error = verify(&plan, &shares(given, 1)[0]).unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged);
        assert!(error.message().contains("array b holds 3.5"), "{error}");
        let mut uneven = [vec![0.0; 8], vec![0.0; 8], vec![0.0; 7]];
        let given = uneven.each_mut().map(|a| Array { elements: a, region: None, offset: 0 });
        assert_eq!(run(&plan, given, &[0]).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn a_kernel_that_computes_wrongly_fails_the_run() {
        // Each kernel in turn leaves out or spoils one element, of the first thread's part or of the second's.
        // (One round: later ones could undo what an earlier one spoiled.)
        let plan = plan(Layout::Arrays, Horizon::None, 1);
        let faults: [fn(&mut [f64], usize); 3] = [
            |z, at| z[at] += 1.0,
            |z, at| z[at] = f64::NAN,
            |z, at| z[at] = f64::from_bits(z[at].to_bits() ^ 1),
        ];
        for wrong in Kernel::ALL {
            for fault in faults {
                for at in [0, 499] {
                    let mut arrays = [(); 3].map(|()| vec![0.0; 1000]);
                    let given = arrays.each_mut().map(|a| Array { elements: a, region: None, offset: 0 });
                    let failing = |kernel: Kernel, x: &[f64], y: &[f64], z: &mut [f64]| {
                        whole(kernel, x, y, z);
                        if kernel == wrong {
                            fault(z, at.min(z.len() - 1));
                        }
                    };
                    let error = run_with(failing, &plan, given, &[0, 0]).unwrap_err();
                    assert_eq!(error.kind(), Kind::Damaged, "{wrong:?} at {at}: {error}");
                }
            }
        }
    }
}
