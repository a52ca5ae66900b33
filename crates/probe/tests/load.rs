//! What a load does: bytes in files, requests, orders and methods. Never how long it took.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_probe::load::{
    run, Blocks, Bytes, Content, Engine, Job, Method, Outcome, Rate, Remove, Report, Uring, Verify,
};
use forebay_tier::Kind;

const SIZE: u64 = 1 << 20;

/// A directory on a file system with a cache and a disk below, as far as there is one.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn job(dir: &Path) -> Job {
    Job { size: SIZE, ..Job::new("job", vec![dir.join("file")]) }
}

fn go(jobs: &[Job]) -> Outcome {
    run(jobs, &AtomicBool::new(false), &mut |_| ()).unwrap()
}

fn one(job: &Job) -> Report {
    let outcome = go(std::slice::from_ref(job));
    assert_eq!(outcome.reports.len(), 1);
    outcome.reports.into_iter().next().unwrap()
}

/// Engines that can be had here; the others are counted as skipped.
fn engines() -> Vec<Engine> {
    let mut engines = vec![Engine::Sync, Engine::Mmap, Engine::Dax];
    for uring in [Uring::default(), Uring { fixed_files: true, fixed_buffers: true, ..Uring::default() }] {
        let dir = directory();
        let trial = Job { engine: Engine::IoUring(uring), ios_max: 1, ..job(dir.path()) };
        match one(&trial).failure {
            None => engines.push(trial.engine),
            Some(failure) => skips::skipped("load on io_uring", &failure.what),
        }
    }
    engines
}

#[test]
fn every_engine_moves_every_byte_both_ways() {
    for engine in engines() {
        for random_percent in [0, 100] {
            let dir = directory();
            let verify = Some(Verify { method: Method::Crc32c, after_writes: true, fatal: true });
            let base = Job { engine, random_percent, depth: 8, verify, ..job(dir.path()) };
            let write = one(&Job { reads: false, writes: true, ..base.clone() });
            let what = format!("{engine:?}, {random_percent} % random");
            assert_eq!(write.failure, None, "{what}");
            assert_eq!((write.write.bytes, write.write.ios, write.read.ios), (SIZE, 256, 0), "{what}");
            assert_eq!((write.verified_bytes, write.verify_errors), (SIZE, 0), "{what}");
            assert_eq!((write.write.completion.count(), write.write.total.count()), (256, 256), "{what}");
            assert_eq!(dir.path().join("file").metadata().unwrap().len(), SIZE);
            let read = one(&base);
            assert_eq!(read.failure, None, "{what}");
            assert_eq!((read.read.bytes, read.verified_bytes, read.verify_errors), (SIZE, SIZE, 0), "{what}");
            assert!(read.made.is_empty(), "{what}: it was there");
        }
    }
}

#[test]
fn a_byte_that_changed_is_found() {
    for engine in engines() {
        let dir = directory();
        let pattern = Method::Pattern(b"forebay!".to_vec());
        let verify = Some(Verify { method: pattern, after_writes: false, fatal: true });
        let base = Job { engine, verify, ..job(dir.path()) };
        let write = one(&Job { reads: false, writes: true, ..base.clone() });
        assert_eq!((write.failure, write.verified_bytes), (None, 0), "{engine:?}");
        let mut bytes = std::fs::read(dir.path().join("file")).unwrap();
        assert!(bytes.chunks(8).all(|part| part == b"forebay!"));
        bytes[70_000] ^= 1;
        std::fs::write(dir.path().join("file"), &bytes).unwrap();
        let read = one(&base);
        let failure = read.failure.expect("one byte is wrong");
        assert!(failure.what.contains("byte 70000"), "{failure:?}");
        assert_eq!((failure.errno, read.verify_errors), (84, 1));
    }
}

#[test]
fn depth_and_batches_are_what_was_asked_for() {
    for engine in engines().into_iter().filter(|engine| matches!(engine, Engine::IoUring(_))) {
        let dir = directory();
        let base = Job { engine, depth: 16, ..job(dir.path()) };
        let single = one(&base);
        assert_eq!(single.depths.under_way.iter().sum::<u64>(), 256);
        // The first fifteen find fewer under way, and so may the last ones.
        assert!(single.depths.under_way[4] >= 200, "{:?}", single.depths);
        assert_eq!(single.depths.submits, 256);
        let batched = one(&Job { batch: 8, complete_min: 8, complete_max: 16, ..base });
        assert_eq!(batched.depths.under_way.iter().sum::<u64>(), 256);
        assert!(batched.depths.submits <= 64, "{:?}", batched.depths);
        assert!(batched.depths.completes <= 64, "{:?}", batched.depths);
    }
}

#[test]
fn direct_requests_reach_the_device_and_cached_ones_do_not() {
    let dir = directory();
    let base = Job { direct: true, ..job(dir.path()) };
    let direct = one(&base);
    if let Some(failure) = direct.failure {
        return skips::skipped("direct load", &failure.what);
    }
    let Some(moved) = direct.moved.filter(|_| !direct.devices.is_empty()) else {
        return skips::skipped("direct load", "the kernel does not account for devices here");
    };
    assert!(moved.read_bytes >= SIZE, "{moved:?}");
    assert_eq!(direct.cached_share(), Some(0.0));
    let cached = one(&Job { direct: false, invalidate: false, pre_read: true, ..base });
    assert_eq!(cached.cached_share(), Some(1.0), "{:?}", cached.moved);
}

#[test]
fn flushes_are_made_and_counted() {
    for engine in engines() {
        let dir = directory();
        let base = Job { engine, reads: false, writes: true, ..job(dir.path()) };
        let every = one(&Job { fsync_every: 64, fdatasync_every: 128, ..base.clone() });
        assert_eq!((every.write.ios, every.flushes.ios, every.failure), (256, 6, None), "{engine:?}");
        assert_eq!(every.flushes.latency.count(), 6);
        assert_eq!(one(&Job { fsync_at_end: true, ..base.clone() }).flushes.ios, 1);
        assert_eq!(one(&base).flushes.ios, 0);
    }
}

#[test]
fn written_bytes_are_the_content_that_was_asked_for() {
    let dir = directory();
    let zero = Content { bytes: Bytes::Zero, ..Content::default() };
    let base = Job { reads: false, writes: true, ..job(dir.path()) };
    one(&Job { content: zero, ..base.clone() });
    let file = dir.path().join("file");
    assert!(std::fs::read(&file).unwrap().iter().all(|byte| *byte == 0));
    one(&base);
    let bytes = std::fs::read(&file).unwrap();
    let blocks: std::collections::HashSet<&[u8]> = bytes.chunks(512).collect();
    assert_eq!(blocks.len(), bytes.len() / 512, "no sector twice");
}

#[test]
fn a_job_stays_in_its_part_of_the_file() {
    for engine in engines() {
        let dir = directory();
        let file = dir.path().join("file");
        std::fs::write(&file, vec![0xaa; SIZE as usize]).unwrap();
        let part = Job {
            engine,
            reads: false,
            writes: true,
            random_percent: 100,
            offset: 256 << 10,
            size: 128 << 10,
            ..job(dir.path())
        };
        assert_eq!(one(&part).write.bytes, 128 << 10);
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(bytes.len() as u64, SIZE);
        let (begin, end) = (256 << 10, 384 << 10);
        assert!(bytes[..begin].iter().chain(&bytes[end..]).all(|byte| *byte == 0xaa), "{engine:?}");
        assert!(bytes[begin..end].chunks(512).all(|sector| sector.iter().any(|byte| *byte != 0xaa)));
    }
}

#[test]
fn jobs_run_together_or_after_each_other_and_files_go_when_asked() {
    let dir = directory();
    let write = Job { reads: false, writes: true, remove: Remove::Made, ..job(dir.path()) };
    let read = Job { after_previous: true, ..job(dir.path()) };
    let outcome = go(&[write.clone(), read]);
    assert!(outcome.reports.iter().all(|report| report.failure.is_none()));
    assert!(!dir.path().join("file").exists(), "made by the first one, removed at the end");
    let files: Vec<PathBuf> = vec![dir.path().join("a"), dir.path().join("b")];
    let both = one(&Job { files: files.clone(), remove: Remove::Never, ..write });
    assert_eq!((both.write.bytes, both.made), (2 * SIZE, files));
}

#[test]
fn clones_add_up() {
    let dir = directory();
    let base = Job { random_percent: 100, blocks: [Blocks::One(8192), Blocks::One(8192)], ..job(dir.path()) };
    let outcome = go(&base.clones(3));
    let sum = Report::merge(&outcome.reports);
    assert_eq!((sum.jobs, sum.read.bytes, sum.read.ios), (3, 3 * SIZE, 384));
    assert_eq!(sum.read.total.count(), 384);
}

#[test]
fn a_job_stops_when_it_is_told_to() {
    for engine in engines() {
        let dir = directory();
        let forever = Job { engine, time_based: true, limit_ns: u64::MAX / 4, depth: 4, ..job(dir.path()) };
        let stop = AtomicBool::new(false);
        let outcome = run(&[Job { remove: Remove::Made, ..forever }], &stop, &mut |progress| {
            assert!(progress.running <= 1);
            stop.store(progress.ios[0] > 0, Ordering::Relaxed);
        });
        let outcome = outcome.unwrap();
        assert!(outcome.stopped && outcome.reports[0].read.ios > 256, "{engine:?}");
        assert!(!dir.path().join("file").exists(), "what it made goes with it");
    }
}

#[test]
fn rates_and_limits_hold() {
    let dir = directory();
    // 2 MB/s over 1 MiB: at least half a second by the clock that the job itself reports.
    let slow = Rate { bytes: 2_000_000, ios: 0 };
    let limited = one(&Job { rate: [slow, Rate::default()], ..job(dir.path()) });
    assert_eq!(limited.read.bytes, SIZE);
    assert!(limited.read.bytes_per_s() <= 2_020_000.0, "{}", limited.read.bytes_per_s());
    let counted = one(&Job { ios_max: 10, ..job(dir.path()) });
    assert_eq!(counted.read.ios, 10);
}

#[test]
fn a_file_that_is_too_short_is_made_longer_and_keeps_its_bytes() {
    let dir = directory();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![0xaa; 300_000]).unwrap();
    let read = one(&job(dir.path()));
    assert_eq!((read.read.bytes, read.failure, read.made.len()), (SIZE, None, 0));
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len() as u64, SIZE);
    assert!(bytes[..300_000].iter().all(|byte| *byte == 0xaa));
    assert!(bytes[300_000..].chunks_exact(512).all(|sector| sector.iter().any(|byte| *byte != 0)), "no hole");
}

#[test]
fn direct_requests_of_odd_size_are_refused_with_the_reason() {
    let dir = directory();
    let odd = Job { direct: true, blocks: [Blocks::One(1000), Blocks::One(1000)], ..job(dir.path()) };
    let failure = match one(&odd).failure {
        Some(failure) if failure.kind != Kind::NotPossibleHere => failure,
        Some(failure) => return skips::skipped("direct load of odd size", &failure.what),
        None => return skips::skipped("direct load of odd size", "the file system takes any"),
    };
    assert!(failure.what.contains("multiples of the device's block"), "{failure:?}");
    assert_eq!(failure.errno, 22);
}

#[test]
fn jobs_on_several_files_and_sizes_move_what_they_say() {
    for engine in engines() {
        let dir = directory();
        let files: Vec<PathBuf> = ["a", "b", "c"].iter().map(|name| dir.path().join(name)).collect();
        let mixed = Job {
            engine,
            files,
            writes: true,
            read_percent: 30,
            random_percent: 100,
            depth: 4,
            blocks: [Blocks::Range(4096, 65_536), Blocks::Split(vec![(4096, 50), (16_384, 50)])],
            ..job(dir.path())
        };
        let report = one(&mixed);
        assert_eq!(report.failure, None, "{engine:?}");
        assert_eq!(report.read.bytes + report.write.bytes, 3 * SIZE, "{engine:?}");
        assert!(report.read.ios > 0 && report.write.ios > 0 && report.read.short_ios == 0);
    }
}

#[test]
fn nothing_is_measured_that_was_not_asked_for() {
    let dir = directory();
    let off = forebay_probe::load::Measure { submission: false, completion: false, total: false };
    let report = one(&Job { measure: off, ..job(dir.path()) });
    assert_eq!((report.read.ios, report.read.completion.count(), report.read.total.count()), (256, 0, 0));
    let prepared = one(&Job { create_only: true, files: vec![dir.path().join("new")], ..job(dir.path()) });
    assert_eq!((prepared.read.ios, dir.path().join("new").metadata().unwrap().len()), (0, SIZE));
}

#[test]
fn a_job_that_ends_all_ends_the_others() {
    let dir = directory();
    let forever = Job { time_based: true, limit_ns: u64::MAX / 4, ..job(dir.path()) };
    let short = Job { ends_all: true, ios_max: 3, name: "short".into(), ..job(dir.path()) };
    let outcome = go(&[forever, short]);
    assert!(!outcome.stopped);
    assert_eq!(outcome.reports[1].read.ios, 3);
    assert!(outcome.reports.iter().all(|report| report.failure.is_none()));
}

#[test]
fn what_cannot_be_is_said_before_anything_runs() {
    let dir = directory();
    let refused = |job: Job| run(&[job], &AtomicBool::new(false), &mut |_| ()).unwrap_err();
    let new_without_size = refused(Job { size: 0, ..job(dir.path()) });
    assert_eq!(new_without_size.kind(), Kind::Usage);
    assert!(new_without_size.to_string().contains("needs a size"), "{new_without_size}");
    assert_eq!(refused(Job { depth: 0, ..job(dir.path()) }).kind(), Kind::Usage);
    assert_eq!(refused(Job { create: false, ..job(dir.path()) }).kind(), Kind::Usage);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made");
    let nowhere = refused(Job { files: vec![dir.path().join("no/file")], ..job(dir.path()) });
    assert_eq!(nowhere.kind(), Kind::Io);
    let far_too_large = refused(Job { size: 1 << 60, ..job(dir.path()) });
    assert_eq!(far_too_large.kind(), Kind::TierFull);
    assert!(!dir.path().join("file").exists(), "free space is checked first");
    std::fs::write(dir.path().join("file"), [0; 8192]).unwrap();
    assert_eq!(refused(Job { size: 0, offset: 8192, ..job(dir.path()) }).kind(), Kind::Usage);
}
