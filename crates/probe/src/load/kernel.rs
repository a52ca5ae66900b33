//! What the kernel says that it did: bytes moved to devices, by thread, by process and by device.
//!
//! It is how a "direct" read that a cache answered is found. All of it may be missing (no task accounting, no /proc,
//! a file system without a block device): then it is None or empty, never zero.

use std::path::Path;

use rustix::fs::{major, minor};

use super::report::{DeviceUse, Moved};

/// Bytes of a sector in /proc/diskstats, whatever the device has.
const SECTOR_BYTES: u64 = 512;

/// Of the calling thread, since it began.
pub(crate) fn thread_moved() -> Option<Moved> {
    moved(&std::fs::read_to_string("/proc/thread-self/io").ok()?)
}

/// Of all threads of the process, also those that the kernel started for its rings.
pub(crate) fn process_moved() -> Option<Moved> {
    moved(&std::fs::read_to_string("/proc/self/io").ok()?)
}

fn moved(text: &str) -> Option<Moved> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.strip_prefix(':')?.trim().parse().ok()
    };
    Some(Moved { read_bytes: field("read_bytes")?, written_bytes: field("write_bytes")? })
}

/// What was moved since `earlier`.
pub(crate) fn since(now: Option<Moved>, earlier: Option<Moved>) -> Option<Moved> {
    let (now, earlier) = (now?, earlier?);
    Some(Moved {
        read_bytes: now.read_bytes.saturating_sub(earlier.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(earlier.written_bytes),
    })
}

/// Name of the block device below a file, as in /proc/diskstats. None on tmpfs and network file systems.
pub(crate) fn device_of(path: &Path) -> Option<String> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice;
    let number = if is_device { stat.st_rdev } else { stat.st_dev };
    let table = std::fs::read_to_string("/proc/diskstats").ok()?;
    let (wanted_major, wanted_minor) = (major(number).to_string(), minor(number).to_string());
    table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let found = words.next() == Some(&wanted_major) && words.next() == Some(&wanted_minor);
        found.then(|| words.next().map(str::to_string))?
    })
}

/// What these devices have done since the machine began.
pub(crate) fn devices(names: &[String]) -> Vec<DeviceUse> {
    let table = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
    names.iter().filter_map(|name| table.lines().find_map(|line| device(line, name))).collect()
}

fn device(line: &str, name: &str) -> Option<DeviceUse> {
    let mut words = line.split_ascii_whitespace().skip(2);
    if words.next() != Some(name) {
        return None;
    }
    let fields: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    let field = |at: usize| fields.get(at).copied();
    Some(DeviceUse {
        name: name.to_string(),
        ios: [field(0)?, field(4)?],
        merges: [field(1)?, field(5)?],
        bytes: [field(2)? * SECTOR_BYTES, field(6)? * SECTOR_BYTES],
        ticks_ms: [field(3)?, field(7)?],
        in_queue_ms: field(10)?,
        busy_ms: field(9)?,
        over_ns: 0,
    })
}

/// The difference of two looks at the same devices.
pub(crate) fn devices_since(now: Vec<DeviceUse>, earlier: &[DeviceUse], over_ns: u64) -> Vec<DeviceUse> {
    let less = |a: [u64; 2], b: [u64; 2]| [a[0].saturating_sub(b[0]), a[1].saturating_sub(b[1])];
    let difference = |now: DeviceUse| {
        let earlier = earlier.iter().find(|earlier| earlier.name == now.name)?;
        Some(DeviceUse {
            ios: less(now.ios, earlier.ios),
            merges: less(now.merges, earlier.merges),
            bytes: less(now.bytes, earlier.bytes),
            ticks_ms: less(now.ticks_ms, earlier.ticks_ms),
            in_queue_ms: now.in_queue_ms.saturating_sub(earlier.in_queue_ms),
            busy_ms: now.busy_ms.saturating_sub(earlier.busy_ms),
            over_ns,
            name: now.name,
        })
    };
    now.into_iter().filter_map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_kernel_are_read() {
        let line = " 254       0 vda 10 1 200 3 40 5 600 7 8 90 100 0 0 0 0";
        let seen = device(line, "vda").expect("a line of this device");
        assert_eq!((seen.ios, seen.merges, seen.bytes), ([10, 40], [1, 5], [200 * 512, 600 * 512]));
        assert_eq!((seen.ticks_ms, seen.busy_ms, seen.in_queue_ms), ([3, 7], 90, 100));
        assert_eq!(device(line, "vdb"), None);
        assert_eq!(device(" 254 0 vda 10 1", "vda"), None);
        let later = DeviceUse { ios: [11, 44], ..seen.clone() };
        assert_eq!(devices_since(vec![later], &[seen], 5)[0].ios, [1, 4]);
        let io = "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n";
        let now = moved(io);
        assert_eq!(now, Some(Moved { read_bytes: 4096, written_bytes: 8192 }));
        assert_eq!(since(now, now), Some(Moved::default()));
        assert_eq!((moved("rchar: 1\n"), since(now, None)), (None, None));
    }
}
