//! What cannot be true: reads that no device delivered, more than a bus carries, more than a copy in memory.
//!
//! Pure: from what was asked and counted to a reason, in words for people. A number with a reason against it stays in
//! the profile, marked; a reader of the profile does not have to know how it was taken.

use std::path::Path;

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

/// What the links between a device and memory carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bus {
    /// Bytes per second one way.
    pub bytes_per_s: f64,
    /// Whether it carries as much the other way at the same time (PCIe and USB 3 do, SATA and USB 2 do not).
    pub both_ways: bool,
}

/// What bounds a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Its bus.
    pub bus: Option<Bus>,
    /// Bytes per second that this machine copies in memory.
    pub copy: Option<f64>,
}

/// Why a reading cannot be true of the device, if so. `cold` says that nothing was to come from a cache.
pub fn caveat(reading: &Reading, cold: bool, bounds: &Bounds) -> Option<String> {
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
    let mixed = reading.bytes[0] > 0 && reading.bytes[1] > 0;
    let carried = |bus: Bus| if mixed && bus.both_ways { 2.0 * bus.bytes_per_s } else { bus.bytes_per_s };
    // A cache that was meant to answer, or to hold the bytes back, is no matter of the bus.
    if let Some(carried) = bounds.bus.map(carried).filter(|carried| cold && rate > ABOVE * carried) {
        return Some(format!("{:.1} GB/s is more than its bus carries ({:.1} GB/s)", gb(rate), gb(carried)));
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

/// Whether a file system may squeeze what is written, so that the trial is worth its time.
pub fn may_squeeze(file_system: &str) -> bool {
    ["btrfs", "zfs", "bcachefs", "f2fs", "ubifs", "ntfs3"].contains(&file_system)
}

/// What the link that a block device hangs on carries, where sysfs says so: SATA, USB, PCIe. Links further up are not
/// looked at: those of a virtual machine are made up.
pub fn bus(machine: &Machine, block: &Block) -> Option<Bus> {
    let device = machine.resolved(&format!("/sys/block/{}", block.name))?;
    device.ancestors().find_map(|dir| sata(dir).or_else(|| usb(dir)).or_else(|| pcie_link(dir)))
}

fn pcie_link(dir: &Path) -> Option<Bus> {
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let bytes_per_s = pcie(&text("current_link_speed")?, &text("current_link_width")?)?;
    Some(Bus { bytes_per_s, both_ways: true })
}

/// Of a SATA port (`ata3`), whose link stands beside the way to the disk: giga-bits a second, 10 for 8.
fn sata(dir: &Path) -> Option<Bus> {
    let number = dir.file_name()?.to_str()?.strip_prefix("ata")?.parse::<u32>().ok()?;
    let link = format!("link{number}");
    let speed =
        std::fs::read_to_string(dir.join(&link).join("ata_link").join(&link).join("sata_spd")).ok()?;
    let gbit: f64 = speed.strip_suffix(" Gbps").or(speed.trim().strip_suffix(" Gbps"))?.parse().ok()?;
    (gbit > 0.0).then_some(Bus { bytes_per_s: gbit * 1e9 / 10.0, both_ways: false })
}

/// Of a USB device: mega-bits a second; from 10 Gbit/s on 132 bits for 128, at 5 Gbit/s 10 for 8.
fn usb(dir: &Path) -> Option<Bus> {
    let text = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    text("busnum")?;
    let mbit: f64 = text("speed")?.trim().parse().ok()?;
    let coding = match mbit {
        m if m >= 10_000.0 => 128.0 / 132.0,
        m if m >= 5_000.0 => 0.8,
        _ => 1.0,
    };
    (mbit > 0.0).then_some(Bus { bytes_per_s: mbit * 1e6 * coding / 8.0, both_ways: mbit >= 5_000.0 })
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
        let why = caveat(&cached, true, &none).unwrap();
        assert_eq!(why, "a cache answered: of 1024 MiB that were read the device delivered 1 MiB");
        assert_eq!(caveat(&cached, false, &none), None, "a cache was meant to answer");
        assert_eq!(caveat(&reading([asked, 0], Some([asked + 7, 0])), true, &none), None);
        assert_eq!(caveat(&reading([asked, 0], None), true, &none), None, "no counter");
        assert_eq!(caveat(&reading([0, asked], Some([0, 0])), true, &none), None, "writes are held back");
    }

    #[test]
    fn more_than_the_bus_or_a_copy_is_marked() {
        let bus = Bus { bytes_per_s: 1e9, both_ways: true };
        let bounds = Bounds { bus: Some(bus), copy: Some(10e9) };
        let fast = reading([2_000_000_000, 0], Some([2_000_000_000, 0]));
        assert!(caveat(&fast, true, &bounds).unwrap().contains("more than its bus carries (1.0 GB/s)"));
        let both = reading([1_000_000_000, 1_000_000_000], Some([1_000_000_000, 0]));
        assert_eq!(caveat(&both, true, &bounds), None, "a bus carries both ways");
        let one_way = Bounds { bus: Some(Bus { both_ways: false, ..bus }), ..bounds };
        assert!(caveat(&both, true, &one_way).unwrap().contains("(1.0 GB/s)"), "SATA does not");
        assert_eq!(caveat(&fast, false, &bounds), None, "a cache was meant to answer");
        let bounds = Bounds { bus: None, copy: Some(1e9) };
        assert!(caveat(&fast, true, &bounds).unwrap().contains("copies in memory"));
        assert_eq!(caveat(&fast, false, &bounds), None);
    }

    #[test]
    fn links_and_trials_are_read() {
        let close = |a: Option<f64>, b: f64| (a.unwrap() - b).abs() < 1e6;
        assert!(close(pcie("8.0 GT/s PCIe\n", "4\n"), 3.938e9));
        assert!(close(pcie("2.5 GT/s PCIe", "1"), 0.25e9));
        assert_eq!(pcie("Unknown speed", "4"), None);
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        // A disk at a controller, and a stick.
        let sata = "sys/devices/pci0000:00/0000:00:17.0/ata3";
        put(&format!("{sata}/link3/ata_link/link3/sata_spd"), "6.0 Gbps\n");
        put("sys/devices/pci0000:00/0000:00:17.0/current_link_speed", "8.0 GT/s PCIe\n");
        put("sys/devices/pci0000:00/0000:00:17.0/current_link_width", "1\n");
        put(&format!("{sata}/host2/target2:0:0/2:0:0:0/block/sda/size"), "1\n");
        let usb = "sys/devices/pci0000:00/usb2/2-1";
        put(&format!("{usb}/speed"), "480\n");
        put(&format!("{usb}/busnum"), "2\n");
        put(&format!("{usb}/host3/target3:0:0/3:0:0:0/block/sdb/size"), "1\n");
        std::fs::create_dir_all(root.path().join("sys/block")).unwrap();
        for (name, place) in [
            ("sda", format!("{sata}/host2/target2:0:0/2:0:0:0")),
            ("sdb", format!("{usb}/host3/target3:0:0/3:0:0:0")),
        ] {
            let to = format!("../../{place}/block/{name}");
            std::os::unix::fs::symlink(to, root.path().join("sys/block").join(name)).unwrap();
        }
        let machine = Machine::at(root.path());
        let of = |name: &str| bus(&machine, &Block { name: name.into(), model: None, rotational: false });
        assert_eq!(of("sda"), Some(Bus { bytes_per_s: 0.6e9, both_ways: false }));
        assert_eq!(of("sdb"), Some(Bus { bytes_per_s: 60e6, both_ways: false }));
        assert_eq!(of("sdc"), None);
        assert!(may_squeeze("btrfs") && !may_squeeze("ext4"));
        assert_eq!(squeezing(1.2), None);
        assert!(squeezing(3.0).unwrap().starts_with("compresses: zeros are written 3.0 times"));
    }
}
