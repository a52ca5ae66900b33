//! Golden counts of the log: bytes copied, flushes, fences and system calls of a put, of a reservation and of a
//! commit, at three sizes, for every way of making stores persistent.
//!
//! Performance without a clock. The counters are per process, so this binary has this one test. Segments are handed
//! out beforehand, as a space does it ahead. `put` copies its payload once and its header; a reservation copies
//! headers only. The counts of persistent memory are those of x86-64, where streaming stores need no write-back.

#[path = "sample/mod.rs"]
#[allow(dead_code)]
mod sample;

use std::sync::Arc;

use forebay_log::{Dtype, Lane, Piece};
use forebay_tier::counters::{snapshot, Counters};
use forebay_tier::device::pmem;
use forebay_tier::{Device, Horizon, TierKind};
use sample::{owner, Bump};

const SIZES: [usize; 3] = [256, 4096, 64 << 20];
const SEGMENT: u64 = 192 << 20;

/// Bytes of the record headers at these sizes: dimensions, name, a checksum per 64 KiB, padded to a line.
const HEADERS: [u64; 3] = [128, 128, 4224];

/// Bytes copied beside headers and payload, flushes, fences, system calls.
type Costs = [[u64; 3]; 3];

struct Expected {
    put: Costs,
    reserve: Costs,
    fill: Costs,
    commit: [u64; 3],
}

fn costs(operation: impl FnOnce()) -> Counters {
    let before = snapshot();
    operation();
    snapshot() - before
}

fn check(what: &str, device: Arc<dyn Device>, horizon: Horizon, expected: &Expected) {
    device.prepare(0..device.capacity()).unwrap();
    let mut source = Bump { next: 0, bytes: SEGMENT };
    let mut lane = Lane::new(device.clone(), owner(0, 1, 1, 0), horizon, true);
    let data = vec![7u8; SIZES[2]];
    lane.begin(0);
    // The first record brings the segment's header with it.
    let shape = [1];
    let first = Piece { name: "x", dtype: Dtype::U8, shape: &shape, start: &[0], count: &shape };
    lane.append(&mut source, &first, &data[..1]).unwrap();
    for (i, size) in SIZES.into_iter().enumerate() {
        let shape = [size as u64];
        let piece = Piece { name: "x", dtype: Dtype::U8, shape: &shape, start: &[0], count: &shape };
        let equals = |of: &str, found: Counters, copied: u64, [flushes, fences, syscalls]: [u64; 3]| {
            let expected = Counters { bytes_copied: copied, flushes, fences, syscalls };
            assert_eq!(found, expected, "{what} {horizon} {of} {size}");
        };
        let put = costs(|| lane.append(&mut source, &piece, &data[..size]).unwrap());
        equals("put", put, HEADERS[i] + size as u64, expected.put[i]);
        let mut reserved = None;
        let reserve = costs(|| reserved = Some(lane.reserve(&mut source, &piece).unwrap()));
        equals("reserve", reserve, HEADERS[i], expected.reserve[i]);
        let mut reserved = reserved.unwrap();
        reserved.as_mut_slice().fill(5);
        let fill = costs(|| lane.fill(reserved).unwrap());
        let moved = if device.byte_addressable() { 0 } else { size as u64 };
        equals("fill", fill, HEADERS[i] + moved, expected.fill[i]);
    }
    let commit = costs(|| lane.seal(&mut source).unwrap().flush().unwrap().commit().unwrap());
    let [flushes, fences, syscalls] = expected.commit;
    let expected = Counters { bytes_copied: 128, flushes, fences, syscalls };
    assert_eq!(commit, expected, "{what} {horizon} commit");
}

#[test]
fn operations_of_a_lane_cost_what_they_should() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let capacity = SEGMENT + (8 << 20);
    let horizons = [Horizon::None, Horizon::Epoch, Horizon::Write];
    for horizon in horizons {
        for kind in [TierKind::Dram, TierKind::File] {
            let path = dir.path().join(format!("{kind}-{horizon}"));
            let device = forebay_tier::create(kind, &path, capacity).unwrap();
            check(&kind.to_string(), device, horizon, &expected(kind, horizon));
            std::fs::remove_file(path).unwrap();
        }
        if cfg!(target_arch = "x86_64") {
            let path = dir.path().join(format!("pmem-{horizon}"));
            let device = Arc::new(pmem::create_emulated(&path, capacity).unwrap());
            check("pmem", device, horizon, &expected(TierKind::Pmem, horizon));
            std::fs::remove_file(path).unwrap();
        }
    }
}

fn expected(kind: TierKind, horizon: Horizon) -> Expected {
    // At horizon `write` each record ends with a fence, or with a flush of the file, which is a system call too.
    let each = u64::from(horizon == Horizon::Write);
    let durable = u64::from(horizon != Horizon::None);
    let all = |costs: [u64; 3]| [costs; 3];
    match kind {
        // Stores of the caller are fenced when they come back, and again as what the horizon promises.
        TierKind::Dram => Expected {
            put: all([0, each, 0]),
            reserve: all([0, each, 0]),
            fill: all([0, 1 + durable, 0]),
            commit: [0, 1 + durable, 0],
        },
        // A small header goes through the cache, and both of its lines are written back; so is, line by line, what
        // the caller stored, and the commit word at the end.
        TierKind::Pmem => Expected {
            put: [[2, each, 0], [2, each, 0], [0, each, 0]],
            reserve: [[2, each, 0], [2, each, 0], [0, each, 0]],
            fill: match horizon {
                Horizon::None => [[2, 1, 0], [2, 1, 0], [0, 1, 0]],
                _ => [[8, 2, 0], [68, 2, 0], [1_048_642, 2, 0]],
            },
            commit: [2 + durable, 1 + durable, 0],
        },
        // One system call for a small record; a large one is written while each part is in the cache.
        _ => Expected {
            put: [[each, 0, 1 + each], [each, 0, 1 + each], [each, 0, 257 + each]],
            reserve: all([each, 0, 1 + each]),
            fill: [[each, 0, 2 + each], [each, 0, 2 + each], [each, 0, 257 + each]],
            commit: [durable, 0, 1 + durable],
        },
    }
}
