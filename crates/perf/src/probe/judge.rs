//! What cannot be true: reads that no device delivered, more than a bus carries, more than a copy in memory.
//!
//! Pure: from what was asked and counted to a reason, in words for people. A number with a reason against it stays in
//! the profile, marked; whoever reads the profile does not have to know how it was taken.

use super::find::Block;
use super::machine::Machine;
use super::subject::Reading;

/// Reads count as the device's when at least this share came from it: the kernel reads ahead and other programs read
/// too, so that the device may show more, hardly less.
const FROM_DEVICE_MIN: f64 = 0.9;
/// A bandwidth above a bound has to be clear of it: bounds are measured, too.
const ABOVE: f64 = 1.1;
/// Zeros written this much faster than random bytes are no accident of one trial.
const SQUEEZED_TIMES: f64 = 1.5;

/// What bounds a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Bytes per second that its bus carries one way.
    pub bus: Option<f64>,
    /// Bytes per second that this machine copies in memory.
    pub copy: Option<f64>,
}

/// Why a reading cannot be true of the device, if so. `cold` says that nothing was to come from a cache.
pub fn doubt(reading: &Reading, cold: bool, bounds: &Bounds) -> Option<String> {
    let mib = |bytes: u64| bytes >> 20;
    if let (true, Some([delivered, _])) = (cold && reading.bytes[0] > 0, reading.device_bytes) {
        if (delivered as f64) < FROM_DEVICE_MIN * reading.bytes[0] as f64 {
            return Some(format!(
                "a cache answered: of {} MiB that were read the device delivered {} MiB",
                mib(reading.bytes[0]),
                mib(delivered)
            ));
        }
    }
    let gb = |rate: f64| rate / 1e9;
    let rate = reading.bytes_per_s();
    let both = if reading.bytes[0] > 0 && reading.bytes[1] > 0 { 2.0 } else { 1.0 };
    if let Some(bus) = bounds.bus.filter(|bus| rate > ABOVE * bus * both) {
        return Some(format!(
            "{:.1} GB/s is more than its bus carries ({:.1} GB/s)",
            gb(rate),
            gb(bus * both)
        ));
    }
    if let Some(copy) = bounds.copy.filter(|copy| cold && rate > ABOVE * copy) {
        return Some(format!(
            "{:.1} GB/s is more than this machine copies in memory ({:.1} GB/s)",
            gb(rate),
            gb(copy)
        ));
    }
    None
}

/// What to say of a device that takes zeros faster than random bytes.
pub fn squeezing(zeros_against_random: f64) -> Option<String> {
    (zeros_against_random > SQUEEZED_TIMES).then(|| {
        format!(
            "compresses: zeros are written {zeros_against_random:.1} times as fast as random bytes; the figures are \
             those of random bytes"
        )
    })
}

/// Bytes per second that the bus of a block device carries one way, where sysfs says so (PCIe).
pub fn bus(machine: &Machine, block: &Block) -> Option<f64> {
    let device = machine.resolved(&format!("/sys/block/{}", block.name))?;
    let link = |dir: &std::path::Path| {
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
        pcie(&text("current_link_speed")?, &text("current_link_width")?)
    };
    device.ancestors().find_map(link)
}

/// Of a PCIe link: giga-transfers a second on each lane, less the coding.
fn pcie(speed: &str, width: &str) -> Option<f64> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let lanes: f64 = width.trim().parse().ok()?;
    // The first two generations send 10 bits for 8, the later ones 130 for 128.
    let coding = if transfers <= 5.0 { 0.8 } else { 128.0 / 130.0 };
    (transfers > 0.0 && lanes > 0.0).then_some(transfers * 1e9 * coding / 8.0 * lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(bytes: [u64; 2], device: Option<[u64; 2]>) -> Reading {
        Reading { operations: [1, 1], bytes, ns: 1_000_000_000, device_bytes: device }
    }

    #[test]
    fn reads_that_no_device_delivered_are_marked() {
        let (asked, none) = (1u64 << 30, Bounds::default());
        let cached = reading([asked, 0], Some([1 << 20, 0]));
        let why = doubt(&cached, true, &none).unwrap();
        assert_eq!(why, "a cache answered: of 1024 MiB that were read the device delivered 1 MiB");
        assert_eq!(doubt(&cached, false, &none), None, "a cache was meant to answer");
        assert_eq!(doubt(&reading([asked, 0], Some([asked + 7, 0])), true, &none), None);
        assert_eq!(doubt(&reading([asked, 0], None), true, &none), None, "nobody counts");
        assert_eq!(doubt(&reading([0, asked], Some([0, 0])), true, &none), None, "writes are held back");
    }

    #[test]
    fn more_than_the_bus_or_a_copy_is_marked() {
        let bounds = Bounds { bus: Some(1e9), copy: Some(10e9) };
        let fast = reading([2_000_000_000, 0], Some([2_000_000_000, 0]));
        assert!(doubt(&fast, true, &bounds).unwrap().contains("more than its bus carries (1.0 GB/s)"));
        let both = reading([1_000_000_000, 1_000_000_000], Some([1_000_000_000, 0]));
        assert_eq!(doubt(&both, true, &bounds), None, "a bus carries both ways");
        let bounds = Bounds { bus: None, copy: Some(1e9) };
        assert!(doubt(&fast, true, &bounds).unwrap().contains("copies in memory"));
        assert_eq!(doubt(&fast, false, &bounds), None);
    }

    #[test]
    fn links_and_trials_are_read() {
        let close = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e6;
        assert!(close(pcie("8.0 GT/s PCIe\n", "4\n"), 3.938e9));
        assert!(close(pcie("2.5 GT/s PCIe", "1"), 0.25e9));
        assert_eq!(pcie("Unknown speed", "4"), None);
        assert_eq!(squeezing(1.2), None);
        assert!(squeezing(3.0).unwrap().starts_with("compresses: zeros are written 3.0 times"));
    }
}
