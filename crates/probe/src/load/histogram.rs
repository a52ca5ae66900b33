//! Latencies: exact minimum, maximum, mean and deviation, and a histogram.
//!
//! The histogram has 64 classes for every power of two, the same ones as fio's, so that percentiles of both can be
//! compared class by class. Recording is a shift and four additions; it never allocates after [`Latency::new`].

/// Classes for every power of two: 2^6.
const BITS: u32 = 6;
/// Values of one group.
const GROUP: usize = 1 << BITS;
/// Groups: the largest value that has a class of its own is beyond 17 seconds; longer ones share the last.
const GROUPS: usize = 29;
/// All classes.
const CLASSES: usize = GROUP * GROUPS;

/// Latencies of one kind, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    count: u64,
    min_ns: u64,
    max_ns: u64,
    sum_ns: u128,
    squares: u128,
    /// Empty until the first value, or until memory was taken beforehand.
    classes: Vec<u64>,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { count: 0, min_ns: u64::MAX, max_ns: 0, sum_ns: 0, squares: 0, classes: Vec::new() }
    }
}

impl Latency {
    /// With its memory taken.
    pub fn new() -> Latency {
        Latency { classes: vec![0; CLASSES], ..Latency::default() }
    }

    /// One more value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.count += 1;
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        self.sum_ns += u128::from(ns);
        self.squares += u128::from(ns) * u128::from(ns);
        if let Some(class) = self.classes.get_mut(class_of(ns)) {
            *class += 1;
        } else {
            self.first(ns);
        }
    }

    #[cold]
    fn first(&mut self, ns: u64) {
        self.classes = vec![0; CLASSES];
        self.classes[class_of(ns)] = 1;
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.classes.fill(0);
        *self = Latency { classes: std::mem::take(&mut self.classes), ..Latency::default() };
    }

    /// Adds all values of another one.
    pub fn add(&mut self, other: &Latency) {
        self.count += other.count;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.sum_ns += other.sum_ns;
        self.squares += other.squares;
        if self.classes.is_empty() {
            self.classes.clone_from(&other.classes);
            return;
        }
        self.classes.iter_mut().zip(&other.classes).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Smallest; 0 without values.
    pub fn min_ns(&self) -> u64 {
        if self.count == 0 {
            0
        } else {
            self.min_ns
        }
    }

    /// Largest; 0 without values.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Mean; 0 without values.
    pub fn mean_ns(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum_ns as f64 / self.count as f64
    }

    /// Standard deviation of the sample; 0 below two values.
    pub fn deviation_ns(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = self.count as f64;
        let about_mean = self.squares as f64 - (self.sum_ns as f64) * (self.sum_ns as f64) / n;
        (about_mean.max(0.0) / (n - 1.0)).sqrt()
    }

    /// The value below which `percent` of all lie, as the middle of its class (never beyond the extremes). 0 without
    /// values.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = ((percent / 100.0 * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle_of(class).clamp(self.min_ns, self.max_ns);
            }
        }
        self.max_ns
    }

    /// Classes that have values: (middle in ns, how many).
    pub fn classes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.classes.iter().enumerate().filter(|(_, n)| **n > 0).map(|(class, n)| (middle_of(class), *n))
    }
}

/// The class of a value: its top seven bits, and where they stand.
#[inline]
fn class_of(ns: u64) -> usize {
    let msb = 63 - (ns | 1).leading_zeros();
    if msb <= BITS {
        return ns as usize;
    }
    let shift = msb - BITS;
    let within = (ns >> shift) as usize & (GROUP - 1);
    (((shift as usize + 1) << BITS) + within).min(CLASSES - 1)
}

/// The middle of a class, in ns.
fn middle_of(class: usize) -> u64 {
    if class < 2 * GROUP {
        return class as u64;
    }
    let shift = (class >> BITS) as u32 - 1;
    let base = 1u64 << (shift + BITS);
    let within = (class & (GROUP - 1)) as u64;
    base + (within << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_class() {
        for ns in (0..5000).chain([1 << 20, (1 << 20) + 12345, 999_999_999, 17_000_000_000]) {
            let middle = middle_of(class_of(ns));
            let off = middle.abs_diff(ns);
            assert!(off * 128 <= ns.max(1), "{ns} is shown as {middle}");
        }
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
        assert!((0..CLASSES - 1).all(|class| class_of(middle_of(class)) == class));
    }

    #[test]
    fn figures_are_those_of_the_values() {
        let mut latency = Latency::new();
        assert_eq!((latency.min_ns(), latency.max_ns(), latency.percentile_ns(50.0)), (0, 0, 0));
        (1..=100).for_each(|ns| latency.record(ns));
        assert_eq!((latency.count(), latency.min_ns(), latency.max_ns()), (100, 1, 100));
        assert_eq!(latency.mean_ns(), 50.5);
        assert!((latency.deviation_ns() - 29.011_491).abs() < 1e-5, "{}", latency.deviation_ns());
        assert_eq!([1.0, 50.0, 99.0, 99.99].map(|p| latency.percentile_ns(p)), [1, 50, 99, 100]);
        let mut twice = Latency::default();
        twice.add(&latency);
        twice.add(&latency);
        assert_eq!((twice.count(), twice.mean_ns(), twice.percentile_ns(50.0)), (200, 50.5, 50));
        twice.clear();
        assert_eq!(twice.classes().count(), 0);
        twice.record(7);
        assert_eq!(twice.classes().collect::<Vec<_>>(), [(7, 1)]);
    }

    #[test]
    fn a_value_without_memory_is_recorded_too() {
        let mut latency = Latency::default();
        latency.record(70);
        latency.record(70);
        assert_eq!(latency.classes().collect::<Vec<_>>(), [(70, 2)]);
    }
}
