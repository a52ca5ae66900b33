//! How the numbers and conditions of a profile are written for people: on screens and in reports.
//!
//! Pure text; three digits where no error bar says more.

use forebay_terms::Horizon;

use super::{Citation, Conditions, Estimate, Locality, Profile, Provenance, Unit};

/// The kinds of numbers in a profile, each once: `measured`, `published`, `emulated`.
pub fn kinds(profile: &Profile) -> Vec<Provenance> {
    let mut kinds: Vec<_> = profile.sources.values().map(|s| s.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Whether a number is measured, published or emulated, and where it stands.
pub fn mark(profile: &Profile, citation: &Citation) -> String {
    let kind = profile.provenance(citation).map_or("of another profile".into(), |k| k.to_string());
    format!("{kind}: {citation}")
}

/// Three digits, as people read them.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v => format!("{value:.*}", (2.0 - v.log10().floor()).clamp(2.0, 9.0) as usize),
    }
}

/// Digits that a number with an error bar has at most.
const DIGITS_MAX: i32 = 5;

/// A number and its error bar as texts: to the digit where the error begins, at most five digits in all.
pub fn digits(value: f64, error: Option<f64>) -> (String, Option<String>) {
    let Some(error) = error.filter(|e| e.is_finite()) else { return (three_digits(value), None) };
    if error == 0.0 {
        return (three_digits(value), Some("0".into()));
    }
    let first = error.log10().floor();
    // 1.1 and 1.4 differ by much, 8.1 and 8.4 do not.
    let wanted = if error / 10f64.powf(first) < 2.0 { 1 - first as i32 } else { -first as i32 };
    let before_point = value.abs().max(1.0).log10().floor() as i32 + 1;
    let decimals = wanted.clamp(0, (DIGITS_MAX - before_point).max(0)) as usize;
    // An error bar is never shown smaller than it is.
    let unit_of_last = 10f64.powi(decimals as i32);
    let error = (error * unit_of_last - 1e-9).ceil() / unit_of_last;
    (format!("{value:.decimals$}"), Some(format!("{error:.decimals$}")))
}

/// A number in a unit that fits: its scale and word.
pub fn scale_of(value: f64, unit: Unit) -> (f64, &'static str) {
    // Powers of ten, as memory and drives are sold and studies print them.
    let units = match unit.bytes() {
        Some(_) => [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
        None => [(1e9, "GIOPS"), (1e6, "MIOPS"), (1e3, "kIOPS"), (1.0, "IOPS")],
    };
    units.into_iter().find(|(scale, _)| value.abs() >= *scale).unwrap_or(units[3])
}

/// As [`scale_of`], for a time in ns.
pub fn scale_of_time(ns: f64) -> (f64, &'static str) {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
    units.into_iter().find(|(scale, _)| ns.abs() >= *scale).unwrap_or(units[3])
}

fn with_error(value: Estimate, (scale, unit): (f64, &str)) -> String {
    let (number, error) = digits(value.value / scale, value.error.map(|e| e / scale));
    let error = error.map_or(String::new(), |e| format!(" ± {e}"));
    format!("{number}{error} {unit}").trim_end().to_owned()
}

/// In B/s, or in IOPS.
pub fn plain(value: Estimate, unit: Unit) -> Estimate {
    value.scaled(unit.bytes().unwrap_or(1.0))
}

/// A bandwidth or rate.
pub fn speed(value: Estimate, unit: Unit) -> String {
    let value = plain(value, unit);
    with_error(value, scale_of(value.value, unit))
}

/// A time, from ns.
pub fn time(value: Estimate) -> String {
    with_error(value, scale_of_time(value.value))
}

/// A number without a unit of its own.
pub fn ratio(value: Estimate) -> String {
    with_error(value, (1.0, ""))
}

/// A size as people type it: a power of two in binary units, others in bytes.
pub fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >= 1 << bits && bytes % (1 << bits) == 0) {
        Some((unit, bits)) => format!("{} {unit}", bytes >> bits),
        None => format!("{bytes} B"),
    }
}

/// A capacity: three digits are enough.
pub fn capacity(bytes: u64) -> String {
    let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match units.into_iter().find(|(_, scale)| bytes as f64 >= *scale) {
        Some((unit, scale)) => format!("{} {unit}", three_digits(bytes as f64 / scale)),
        None => format!("{bytes} B"),
    }
}

/// `read`, `write`, `75 % reads`; with `remote` before it.
pub fn direction(when: &Conditions) -> String {
    let operation = direction_alone(when);
    match when.locality {
        Locality::Local => operation,
        Locality::Remote => format!("remote {operation}"),
    }
}

/// `read`, `write`, `75 % reads`.
pub fn direction_alone(when: &Conditions) -> String {
    match when.reads_percent {
        Some(100.0) => "read".to_owned(),
        Some(0.0) => "write".to_owned(),
        Some(share) => format!("{share} % reads"),
        None => "mixed".to_owned(),
    }
}

/// Everything but direction, threads and depth: `remote random 4 KiB, nt-store, horizon write`.
pub fn details(when: &Conditions, with_size: bool) -> String {
    let remote = (when.locality == Locality::Remote).then(|| "remote".to_owned());
    let size = when.bytes.filter(|_| with_size).map(size);
    let front: Vec<String> =
        remote.into_iter().chain(when.pattern.map(|p| p.to_string())).chain(size).collect();
    let parts = [front.join(" "), manner(when)].into_iter().filter(|p| !p.is_empty());
    parts.collect::<Vec<_>>().join(", ")
}

/// Threads and depth: `17 threads`, `1 thread x 16 deep`.
pub fn concurrency(when: &Conditions) -> String {
    let threads = |n: u32| if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") };
    match (when.threads, when.depth) {
        (Some(n), Some(depth)) => format!("{} × {depth} deep", threads(n)),
        (Some(n), None) => threads(n),
        (None, Some(depth)) => format!("{depth} deep"),
        (None, None) => String::new(),
    }
}

/// Instructions or calls, software in between, horizon.
pub fn manner(when: &Conditions) -> String {
    let access = when.access.map(|a| a.to_string());
    let horizon = (when.horizon != Horizon::None).then(|| format!("horizon {}", when.horizon));
    let beside = when.beside.map(|n| format!("beside {n} that do the opposite"));
    let parts: Vec<String> =
        access.into_iter().chain(when.through.clone()).chain(horizon).chain(beside).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_they_are_worth() {
        assert_eq!(speed(Estimate::new(39.4, 0.05), Unit::Gigabytes), "39.40 ± 0.05 GB/s");
        assert_eq!(speed(Estimate::bare(1523.0), Unit::Mebibytes), "1.60 GB/s");
        assert_eq!(speed(Estimate::new(584_800.0, 50.0), Unit::Operations), "584.80 ± 0.05 kIOPS");
        assert_eq!(speed(Estimate::bare(0.88), Unit::Gigabytes), "880 MB/s");
        assert_eq!(time(Estimate::new(169.0, 0.5)), "169.0 ± 0.5 ns");
        assert_eq!(time(Estimate::bare(8900.0)), "8.90 µs");
        assert_eq!(speed(Estimate::new(45.04, 1.13), Unit::Gigabytes), "45.0 ± 1.2 GB/s");
        assert_eq!(speed(Estimate::new(2530.0, 0.5), Unit::Megabytes), "2.5300 ± 0.0005 GB/s");
        assert_eq!(time(Estimate::new(800.0, 90.0)), "800 ± 90 ns");
        assert_eq!(time(Estimate::new(90.0, 0.0)), "90.0 ± 0 ns");
        assert_eq!(speed(Estimate::new(123_456.0, 0.001), Unit::Operations), "123.46 ± 0.01 kIOPS");
        assert_eq!((size(4096), size(24576), size(100)), ("4 KiB".into(), "24 KiB".into(), "100 B".into()));
        assert_eq!((capacity(3_000_000_000_000), capacity(512)), ("3.00 TB".into(), "512 B".into()));
    }

    #[test]
    fn conditions_read_as_a_person_says_them() {
        let mut when =
            Conditions { reads_percent: Some(66.7), locality: Locality::Remote, ..Conditions::default() };
        assert_eq!(direction(&when), "remote 66.7 % reads");
        when.reads_percent = Some(0.0);
        (when.threads, when.depth) = (Some(1), Some(16));
        assert_eq!(
            (direction(&when), concurrency(&when)),
            ("remote write".into(), "1 thread × 16 deep".into())
        );
        when.horizon = Horizon::Write;
        when.through = Some("xfs".into());
        assert_eq!(manner(&when), "xfs, horizon write");
    }
}
