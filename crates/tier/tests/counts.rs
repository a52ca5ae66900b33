//! Golden counts of what each operation costs: bytes copied, flushes, fences, system calls.
//!
//! Performance without a clock. The counters are per process, so this binary has this one test. The counts of
//! persistent memory are those of x86-64, where streaming stores need no write-back.

mod skips;

use forebay_tier::counters::{snapshot, Counters};
use forebay_tier::device::pmem;
use forebay_tier::{Device, Region, SharedWords, TierKind};

#[track_caller]
fn costs(name: &str, expected: [u64; 4], operation: impl FnOnce()) {
    let before = snapshot();
    operation();
    let [bytes_copied, flushes, fences, syscalls] = expected;
    assert_eq!(snapshot() - before, Counters { bytes_copied, flushes, fences, syscalls }, "{name}");
}

const CHUNK: usize = 64 << 10;

#[test]
fn operations_cost_what_they_should() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let dram = forebay_tier::create(TierKind::Dram, &dir.path().join("dram"), 4 << 20).unwrap();
    dram.prepare(0..4 << 20).unwrap();
    dram_costs(&*dram);

    let file = forebay_tier::create(TierKind::File, &dir.path().join("file"), 4 << 20).unwrap();
    file.prepare(0..4 << 20).unwrap();
    file_costs(&*file);

    let disk = tempfile::tempdir().unwrap();
    match forebay_tier::create(TierKind::Direct, &disk.path().join("direct"), 4 << 20) {
        Ok(direct) => direct_costs(&*direct),
        Err(e) => skips::skipped("counts of tier direct", e.message()),
    }

    if cfg!(target_arch = "x86_64") {
        let pmem = pmem::create_emulated(&dir.path().join("pmem"), 4 << 20).unwrap();
        pmem.prepare(0..4 << 20).unwrap();
        pmem_costs(&pmem, false);
        match forebay_tier::create(TierKind::Pmem, &disk.path().join("pmem"), 4 << 20) {
            Ok(real) => {
                real.prepare(0..4 << 20).unwrap();
                pmem_costs(&*real, caches_persist());
            }
            Err(e) => skips::skipped("counts of real persistent memory", e.message()),
        }
    }
    region_costs(dir.path());
    waking_costs(dir.path());
}

fn dram_costs(dram: &dyn Device) {
    let (data, mut crcs) = (vec![1u8; 1 << 20], Vec::new());
    costs("preparing again", [0, 0, 0, 0], || dram.prepare(100..3 << 20).unwrap());
    costs("small write", [100, 0, 0, 0], || dram.write(64, &data[..100]).unwrap());
    costs("2 KiB write", [2048, 0, 1, 0], || dram.write(64, &data[..2048]).unwrap());
    costs("2 KiB write with sums", [2048, 0, 1, 0], || {
        dram.write_checksummed(64, &data[..2048], CHUNK, &mut crcs).unwrap()
    });
    costs("1 MiB in no order", [1 << 20, 0, 0, 0], || {
        dram.write_unordered(64, &data, Some(CHUNK), &mut crcs, false).unwrap()
    });
    costs("1 MiB write", [1 << 20, 0, 1, 0], || dram.write(64, &data).unwrap());
    costs("1 MiB write with sums", [1 << 20, 0, 1, 0], || {
        dram.write_checksummed(3, &data, CHUNK, &mut crcs).unwrap()
    });
    costs("word", [0, 0, 0, 0], || dram.store_word(8, 1).unwrap());
    costs("load", [0, 0, 0, 0], || assert_eq!(dram.load_word(8), 1));
    costs("persist", [0, 0, 1, 0], || dram.persist(0..1 << 20).unwrap());
    costs("persist written", [0, 0, 1, 0], || dram.persist_written(0..1 << 20).unwrap());
    costs("reserve and commit", [0, 0, 1, 0], || {
        let staged = dram.stage(0..1 << 20).unwrap();
        dram.unstage(staged, Some(CHUNK), &mut crcs).unwrap();
    });
    costs("view", [0, 0, 0, 0], || assert_eq!(dram.bytes(0..1 << 20).len(), 1 << 20));
}

fn file_costs(file: &dyn Device) {
    let (data, mut crcs) = (vec![1u8; 1 << 20], Vec::new());
    costs("preparing again", [0, 0, 0, 0], || file.prepare(100..3 << 20).unwrap());
    costs("small write", [100, 0, 0, 1], || file.write(64, &data[..100]).unwrap());
    costs("1 MiB write", [1 << 20, 0, 0, 1], || file.write(64, &data).unwrap());
    costs("1 MiB write with sums", [1 << 20, 0, 0, 4], || {
        file.write_checksummed(64, &data, CHUNK, &mut crcs).unwrap()
    });
    costs("word", [8, 0, 0, 1], || file.store_word(8, 1).unwrap());
    costs("persist", [0, 1, 0, 1], || file.persist(0..1 << 20).unwrap());
    costs("persist written", [0, 1, 0, 1], || file.persist_written(0..1 << 20).unwrap());
    costs("fence", [0, 0, 0, 0], || file.fence());
    costs("reserve and commit", [65_536, 0, 0, 1], || {
        let staged = file.stage(0..65_536).unwrap();
        file.unstage(staged, Some(CHUNK), &mut crcs).unwrap();
    });
    costs("view", [0, 0, 0, 0], || assert_eq!(file.bytes(0..1 << 20).len(), 1 << 20));
}

/// Transfers of one request: those of several take as many calls as the device is slow.
fn direct_costs(direct: &dyn Device) {
    direct.prepare(0..4 << 20).unwrap();
    let (data, mut crcs) = (vec![1u8; 128 << 10], Vec::new());
    costs("preparing again", [0, 0, 0, 0], || direct.prepare(100..3 << 20).unwrap());
    costs("first write into a block", [100, 0, 0, 2], || direct.write(64, &data[..100]).unwrap());
    costs("next write into it", [100, 0, 0, 1], || direct.write(164, &data[..100]).unwrap());
    costs("whole blocks", [8192, 0, 0, 1], || direct.write(8192, &data[..8192]).unwrap());
    costs("128 KiB between two new blocks with sums", [128 << 10, 0, 0, 3], || {
        direct.write_checksummed(1 << 20 | 64, &data, CHUNK, &mut crcs).unwrap()
    });
    costs("word in a known block", [8, 0, 0, 1], || direct.store_word(8, 1).unwrap());
    costs("persist", [0, 1, 0, 1], || direct.persist(0..1 << 20).unwrap());
    costs("fence", [0, 0, 0, 0], || direct.fence());
    costs("view", [0, 0, 0, 0], || assert_eq!(direct.bytes(0..1 << 20).len(), 1 << 20));
}

/// Whether the platform writes its caches back when the power goes, as sysfs says of all regions.
fn caches_persist() -> bool {
    let regions = std::fs::read_dir("/sys/bus/nd/devices").into_iter().flatten().flatten();
    let mut domains =
        regions.filter_map(|region| std::fs::read_to_string(region.path().join("persistence_domain")).ok());
    domains.next().is_some_and(|domain| domain.trim() == "cpu_cache")
}

/// `eadr`: no line is written back, and every fence stays.
fn pmem_costs(pmem: &dyn Device, eadr: bool) {
    let (data, mut crcs) = (vec![1u8; 1 << 20], Vec::new());
    let costs_of = |name: &str, expected: [u64; 4], operation: &mut dyn FnMut()| {
        let [copied, flushes, fences, syscalls] = expected;
        let flushes = if eadr { 0 } else { flushes };
        costs(&format!("{name}, caches persistent: {eadr}"), [copied, flushes, fences, syscalls], operation);
    };
    costs_of("100 bytes on two lines", [100, 2, 0, 0], &mut || pmem.write(64, &data[..100]).unwrap());
    costs_of("100 bytes on three lines", [100, 3, 0, 0], &mut || pmem.write(63, &data[..100]).unwrap());
    costs_of("2 KiB of whole lines", [2048, 0, 1, 0], &mut || pmem.write(64, &data[..2048]).unwrap());
    costs_of("2 KiB between lines", [2048, 2, 1, 0], &mut || pmem.write(96, &data[..2048]).unwrap());
    costs_of("1 MiB with sums", [1 << 20, 0, 1, 0], &mut || {
        pmem.write_checksummed(64, &data, CHUNK, &mut crcs).unwrap()
    });
    costs_of("1 MiB with sums between lines", [1 << 20, 2, 1, 0], &mut || {
        pmem.write_checksummed(96, &data, CHUNK, &mut crcs).unwrap()
    });
    costs_of("2 KiB between lines in no order", [2048, 2, 0, 0], &mut || {
        pmem.write_unordered(96, &data[..2048], None, &mut crcs, true).unwrap()
    });
    costs_of("1 MiB with sums in no order", [1 << 20, 0, 0, 0], &mut || {
        pmem.write_unordered(64, &data, Some(CHUNK), &mut crcs, false).unwrap()
    });
    costs_of("word", [0, 0, 0, 0], &mut || pmem.store_word(8, 1).unwrap());
    costs_of("persist of a word", [0, 1, 1, 0], &mut || pmem.persist(8..16).unwrap());
    costs_of("persist of a page", [0, 64, 1, 0], &mut || pmem.persist(4096..8192).unwrap());
    costs_of("persist of what was written", [0, 0, 1, 0], &mut || pmem.persist_written(4096..8192).unwrap());
    costs_of("reserve and commit", [0, 0, 1, 0], &mut || {
        let staged = pmem.stage(0..1 << 20).unwrap();
        pmem.unstage(staged, Some(CHUNK), &mut crcs).unwrap();
    });
}

/// Bytes of the copies that the golden counts of regions are about.
const SIZES: [usize; 4] = [64, 256, 4 << 10, 1 << 20];

fn region_costs(dir: &std::path::Path) {
    let data = vec![1u8; 1 << 20];
    let mut dram = Region::create(&dir.join("r-dram"), 4 << 20, Some(TierKind::Dram)).unwrap();
    for bytes in SIZES {
        costs("copy_persist on dram", [bytes as u64, 0, 1, 0], || {
            dram.copy_persist(64, &data[..bytes]).unwrap()
        });
    }
    costs("persist on dram", [0, 0, 1, 0], || dram.persist(0..1 << 20).unwrap());
    costs("persist of nothing", [0, 0, 0, 0], || dram.persist(5..5).unwrap());
    costs("copy of nothing", [0, 0, 0, 0], || dram.copy_persist(5, &[]).unwrap());
    costs("slices", [0, 0, 0, 0], || dram.as_mut_slice().unwrap()[7] = dram.path().as_os_str().len() as u8);

    let mut file = Region::create(&dir.join("r-file"), 4 << 20, Some(TierKind::File)).unwrap();
    for bytes in SIZES {
        // One write, one msync.
        costs("copy_persist on file", [bytes as u64, 1, 0, 2], || {
            file.copy_persist(64, &data[..bytes]).unwrap()
        });
    }
    costs("persist on file", [0, 1, 0, 1], || file.persist(100..1 << 20).unwrap());
    costs("persist of nothing on file", [0, 0, 0, 0], || file.persist(5..5).unwrap());

    if cfg!(target_arch = "x86_64") {
        let mut pmem = Region::create_emulated(&dir.join("r-pmem"), 4 << 20).unwrap();
        // Below 256 bytes lines are written back; from there on whole lines bypass the cache, and only the two that
        // are shared with neighbours do not.
        for (bytes, whole_lines, between_lines) in [(64, 1, 2), (256, 0, 2), (4 << 10, 0, 2), (1 << 20, 0, 2)]
        {
            costs("copy_persist on pmem", [bytes as u64, whole_lines, 1, 0], || {
                pmem.copy_persist(64, &data[..bytes]).unwrap()
            });
            costs("copy_persist on pmem between lines", [bytes as u64, between_lines, 1, 0], || {
                pmem.copy_persist(96, &data[..bytes]).unwrap()
            });
        }
        costs("persist of a word on pmem", [0, 1, 1, 0], || pmem.persist(8..16).unwrap());
        costs("persist of a page on pmem", [0, 64, 1, 0], || pmem.persist(4096..8192).unwrap());
    }
}

fn waking_costs(dir: &std::path::Path) {
    let words = SharedWords::create(&dir.join("words"), 4096).unwrap();
    let soon = std::time::Duration::from_secs(1);
    costs("wake", [0, 0, 0, 1], || forebay_tier::wait::wake_all(words.u32(0)));
    costs("wait for a changed word", [0, 0, 0, 1], || {
        assert!(forebay_tier::wait::wait(words.u32(0), 1, soon))
    });
    costs("a spin that sees the change", [0, 0, 0, 0], || {
        assert!(forebay_tier::wait::spin_then_wait(words.u32(0), 1, 1_000_000, soon))
    });
    costs("a word", [0, 0, 0, 0], || words.u64(8).store(1, std::sync::atomic::Ordering::Release));
}
