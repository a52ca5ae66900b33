//! Golden counts of reading: bytes copied, flushes, fences and system calls of get and view at three sizes.
//!
//! Performance without a clock. The counters are per process, so this binary has this one test, and the writer's
//! helper thread is gone before anything is counted (a put is counted by the log's test of the same name). `get`
//! copies once; `view` copies nothing, and neither makes a system call on memory.

use forebay_space::{Dtype, NdBox, OpenOptions, Reader, Retention, TierKind, Verify, Writer};
use forebay_tier::counters::{snapshot, Counters};

const SIZES: [usize; 3] = [256, 4096, 64 << 20];

fn costs(operation: impl FnOnce()) -> Counters {
    let before = snapshot();
    operation();
    snapshot() - before
}

fn written(name: &str, tier: TierKind) -> OpenOptions {
    let options = OpenOptions {
        tier: Some(tier),
        quota_bytes: Some(256 << 20),
        retention: Some(Retention::Forever),
        component: Some("counts".into()),
        ..OpenOptions::default()
    };
    let mut writer = Writer::open(name, &options).unwrap();
    let data = vec![9u8; SIZES[2]];
    writer.begin_step().unwrap();
    for size in SIZES {
        let shape = [size as u64];
        writer.put(&format!("v{size}"), Dtype::U8, &shape, &[0], &shape, &data[..size]).unwrap();
    }
    let copied = writer.stats().bytes_copied;
    assert_eq!(copied, SIZES.iter().sum::<usize>() as u64, "a put copies once");
    for size in SIZES {
        let shape = [size as u64];
        let mut reserved = writer.reserve(&format!("r{size}"), Dtype::U8, &shape, &[0], &shape).unwrap();
        reserved.as_mut_slice().fill(9);
        writer.commit(reserved).unwrap();
    }
    let buffered = if tier == TierKind::File { copied } else { 0 };
    assert_eq!(writer.stats().bytes_copied, copied + buffered, "a reservation copies nothing on memory");
    writer.end_step().unwrap();
    writer.close().unwrap();
    options
}

fn check(name: &str, tier: TierKind, first_syscalls: u64) {
    let options = written(name, tier);
    let mut out = vec![0u8; SIZES[2]];
    let read = |bytes_copied, syscalls| Counters { bytes_copied, flushes: 0, fences: 0, syscalls };
    for verify in [Verify::First, Verify::Never] {
        let mut reader = Reader::open(name, &OpenOptions { verify, ..options.clone() }).unwrap();
        reader.begin_step(None).unwrap();
        for size in SIZES {
            for (round, syscalls) in [("first", first_syscalls), ("again", first_syscalls)] {
                let what = |of: &str| format!("{tier} {of} {size} {round} {verify:?}");
                let got = costs(|| reader.get(&format!("v{size}"), None, &mut out[..size]).unwrap());
                assert_eq!(got, read(size as u64, syscalls), "{}", what("get"));
                let viewed = costs(|| drop(reader.view(&format!("r{size}"), None).unwrap()));
                assert_eq!(viewed, read(0, syscalls), "{}", what("view"));
            }
            let part = NdBox::new(&[16], &[64]).unwrap();
            let viewed = costs(|| drop(reader.view(&format!("v{size}"), Some(&part)).unwrap()));
            assert_eq!(viewed, read(0, first_syscalls), "{tier} view of a part of {size}");
        }
        let names = [format!("v{}", SIZES[0]), format!("r{}", SIZES[0])];
        let many = costs(|| reader.get_many(&names, &mut out[..2 * SIZES[0]]).unwrap());
        assert_eq!(many, read(2 * SIZES[0] as u64, 2 * first_syscalls), "{tier} get_many");
        reader.end_step().unwrap();
        reader.close().unwrap();
    }
    forebay_space::destroy(name).unwrap();
}

#[test]
fn reading_costs_what_it_should() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    check(&format!("{}/dram", memory.path().display()), TierKind::Dram, 0);
    let disk = tempfile::tempdir().unwrap();
    check(&format!("{}/file", disk.path().display()), TierKind::File, 0);
}
