//! Every option of the table has an effect on the jobs that are made of it; none is missing here.
//!
//! That a job then does what its fields say is tested where the load is made (`forebay-perf`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use forebay_perf::load::{
    Allocate, Blocks, Bytes, Distribution, Engine, FileOrder, Job, Method, Remove, Uring, WriteThrough,
};

use super::job_file::Section;
use super::jobs::{plan, Planned};
use super::options::{find, OPTIONS};

type Check = fn(&[Planned]) -> bool;

/// Words of a job in one line, and what must be true of the jobs then.
const EFFECTS: &[(&str, Check)] = &[
    ("description=text", |p| p[0].settings.description.as_deref() == Some("text")),
    ("kb_base=1000 bs=4k", |p| p[0].job.blocks[0] == Blocks::One(4000)),
    ("rw=randwrite", |p| !p[0].job.reads && p[0].job.writes && p[0].job.random_percent == 100),
    ("readwrite=rw", |p| p[0].job.reads && p[0].job.writes && p[0].job.random_percent == 0),
    ("rwmixread=70", |p| p[0].job.read_percent == 70),
    ("rwmixwrite=70", |p| p[0].job.read_percent == 30),
    ("rw=randread percentage_random=40", |p| p[0].job.random_percent == 40),
    ("norandommap", |p| !p[0].job.random_map),
    ("random_distribution=zipf:1.2", |p| p[0].job.distribution == Distribution::Zipf(1.2)),
    ("randseed=7", |p| p[0].job.seed == 7),
    ("randrepeat=0", |p| !p[0].job.repeat),
    ("bs=8k,16k", |p| p[0].job.blocks == [Blocks::One(8192), Blocks::One(16384)]),
    ("blocksize=8k", |p| p[0].job.blocks[0] == Blocks::One(8192)),
    ("bsrange=4k-64k", |p| p[0].job.blocks[0] == Blocks::Range(4096, 65_536)),
    ("blocksize_range=4k-8k", |p| p[0].job.blocks[1] == Blocks::Range(4096, 8192)),
    ("bssplit=4k/75:8k/25", |p| p[0].job.blocks[0] == Blocks::Split(vec![(4096, 75), (8192, 25)])),
    ("blockalign=8k", |p| p[0].job.align == 8192),
    ("ba=16k", |p| p[0].job.align == 16_384),
    ("size=8m nrfiles=2", |p| p[0].job.size == 4 << 20 && p[0].job.files.len() == 2),
    ("filesize=2m", |p| p[0].job.file_bytes == 2 << 20),
    ("io_size=512k", |p| p[0].job.io_bytes == 512 << 10),
    ("io_limit=50%", |p| p[0].job.io_bytes == 512 << 10),
    ("number_ios=9", |p| p[0].job.ios_max == 9),
    ("offset=64k", |p| p[0].job.offset == 64 << 10),
    ("offset_increment=1m numjobs=3", |p| p[2].job.offset == 2 << 20),
    ("loops=3", |p| p[0].job.loops == 3),
    ("filename=a:b\\:c", |p| p[0].job.files == [PathBuf::from("a"), PathBuf::from("b:c")]),
    ("directory=/x:/y numjobs=2", |p| p[1].job.files == [PathBuf::from("/y/job.1.0")]),
    ("filename_format=$jobname-$filenum.$jobnum", |p| p[0].job.files == [PathBuf::from("job-0.0")]),
    ("file_service_type=sequential", |p| p[0].job.file_order == FileOrder::Sequential),
    ("fallocate=keep", |p| p[0].job.allocate == Allocate::KeepSize),
    ("overwrite=1", |p| p[0].job.overwrite),
    ("allow_file_create=0", |p| !p[0].job.create),
    ("create_only=1", |p| p[0].job.create_only),
    ("pre_read=1", |p| p[0].job.pre_read),
    ("invalidate=0", |p| !p[0].job.invalidate),
    ("fadvise_hint=0", |p| !p[0].job.advise),
    ("unlink=1", |p| p[0].job.remove == Remove::All),
    ("ioengine=libpmem", |p| p[0].job.engine == Engine::Dax),
    ("ioengine=io_uring iodepth=8", |p| {
        p[0].job.engine == Engine::IoUring(Uring::default()) && p[0].job.depth == 8
    }),
    ("iodepth=8 iodepth_batch=4", |p| p[0].job.batch == 4),
    ("iodepth=8 iodepth_batch_submit=3", |p| p[0].job.batch == 3),
    ("iodepth=8 iodepth_batch_complete_min=4", |p| p[0].job.complete_min == 4),
    ("iodepth=8 iodepth_batch_complete=5", |p| p[0].job.complete_min == 5),
    ("iodepth_batch_complete_max=6", |p| p[0].job.complete_max == 6),
    ("iodepth=8 iodepth_low=2", |p| p[0].job.depth_low == 2),
    ("fixedbufs ioengine=io_uring", |p| matches!(p[0].job.engine, Engine::IoUring(u) if u.fixed_buffers)),
    ("registerfiles ioengine=io_uring", |p| matches!(p[0].job.engine, Engine::IoUring(u) if u.fixed_files)),
    ("hipri ioengine=io_uring", |p| matches!(p[0].job.engine, Engine::IoUring(u) if u.poll)),
    ("sqthread_poll ioengine=io_uring", |p| matches!(p[0].job.engine, Engine::IoUring(u) if u.kernel_thread)),
    ("direct=1", |p| p[0].job.direct),
    ("buffered=0", |p| p[0].job.direct),
    ("sync=dsync", |p| p[0].job.write_through == WriteThrough::Data),
    ("fsync=5", |p| p[0].job.fsync_every == 5),
    ("fdatasync=6", |p| p[0].job.fdatasync_every == 6),
    ("end_fsync=1", |p| p[0].job.fsync_at_end),
    ("fsync_on_close=1", |p| p[0].job.fsync_on_close),
    ("numjobs=3", |p| p.len() == 3 && p[0].job.seed != p[1].job.seed),
    ("group_reporting", |p| p[0].settings.group_reporting),
    ("exitall", |p| p[0].job.ends_all),
    ("cpus_allowed=0,2-3", |p| p[0].job.cpus == [0, 2, 3]),
    ("cpus_allowed=1,2 cpus_allowed_policy=split numjobs=2", |p| p[1].job.cpus == [2]),
    ("runtime=2", |p| p[0].job.limit_ns == 2_000_000_000),
    ("timeout=5ms", |p| p[0].job.limit_ns == 5_000_000),
    ("time_based runtime=1", |p| p[0].job.time_based),
    ("ramp_time=1", |p| p[0].job.ramp_ns == 1_000_000_000),
    ("startdelay=100ms", |p| p[0].job.delay_ns == 100_000_000),
    ("rate=1m,2m", |p| p[0].job.rate.map(|r| r.bytes) == [1 << 20, 2 << 20]),
    ("rate_iops=100", |p| p[0].job.rate.map(|r| r.ios) == [100, 100]),
    ("thinktime=50", |p| p[0].job.think.ns == 50_000),
    ("thinktime_spin=20", |p| p[0].job.think.spin_ns == 20_000),
    ("thinktime_blocks=4", |p| p[0].job.think.every == 4),
    ("zero_buffers", |p| p[0].job.content.bytes == Bytes::Zero),
    ("buffer_pattern=0xabcd", |p| p[0].job.content.bytes == Bytes::Pattern(vec![0xab, 0xcd])),
    ("refill_buffers", |p| p[0].job.content.refill),
    ("scramble_buffers=0", |p| !p[0].job.content.scramble),
    ("buffer_compress_percentage=30", |p| p[0].job.content.compressible_percent == 30),
    ("buffer_compress_chunk=4k", |p| p[0].job.content.compress_chunk == 4096),
    ("dedupe_percentage=20", |p| p[0].job.content.duplicate_percent == 20),
    ("verify=crc32c", |p| method(p) == Some(&Method::Crc32c)),
    ("verify=pattern verify_pattern=\"ab\"", |p| method(p) == Some(&Method::Pattern(b"ab".to_vec()))),
    ("verify=crc32c do_verify=0", |p| p[0].job.verify.as_ref().is_some_and(|v| !v.after_writes)),
    ("verify=crc32c verify_fatal=1", |p| p[0].job.verify.as_ref().is_some_and(|v| v.fatal)),
    ("write_iolog=log", |p| p[0].job.record),
    ("percentile_list=50:99.9", |p| p[0].settings.shown.percentiles == [50.0, 99.9]),
    ("clat_percentiles=0", |p| !p[0].settings.shown.of_completion),
    ("lat_percentiles=1", |p| p[0].settings.shown.of_total),
    ("slat_percentiles=1", |p| p[0].settings.shown.of_submission),
    ("disable_clat=1", |p| !p[0].job.measure.completion),
    ("disable_lat=1", |p| !p[0].job.measure.total),
    ("disable_slat=1", |p| !p[0].job.measure.submission),
    ("gtod_reduce=1", |p| !p[0].job.measure.completion && !p[0].job.measure.total),
    ("disk_util=0", |p| !p[0].settings.shown.devices),
];

/// Options that show only beside another job or with a file, tested below or by their effects; `thread` says what is
/// so.
const ELSEWHERE: [&str; 5] = ["new_group", "stonewall", "wait_for_previous", "thread", "read_iolog"];

fn method(planned: &[Planned]) -> Option<&Method> {
    planned[0].job.verify.as_ref().map(|verify| &verify.method)
}

#[test]
fn every_option_has_an_effect() {
    let mut tried: BTreeSet<&str> = ELSEWHERE.into();
    let plain = plan(&[Section::of("job", "size=1m")]).unwrap().0;
    for (line, check) in EFFECTS {
        let with_size = if line.contains("size=") && !line.contains("io_") {
            line.to_string()
        } else {
            format!("size=1m {line}")
        };
        let (planned, _) = plan(&[Section::of("job", &with_size)]).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(check(&planned), "{line}: {:?}", planned[0].job);
        assert!(line.contains("numjobs") || !check(&plain), "{line}: true without it");
        tried.extend(line.split_whitespace().map(|word| word.split('=').next().unwrap()));
    }
    let known: BTreeSet<&str> =
        OPTIONS.iter().flat_map(|known| std::iter::once(&known.name).chain(known.others)).copied().collect();
    let untried: Vec<&&str> = known.difference(&tried).collect();
    assert!(untried.is_empty(), "no test of {untried:?}");
    assert!(tried.iter().all(|name| find(name).is_some()));
}

#[test]
fn globals_groups_and_waits() {
    let sections = [
        Section::of("global", "size=1m direct=1 thread"),
        Section::of("a", "numjobs=2"),
        Section::of("b", "direct=0 new_group"),
        Section::of("global", "bs=8k"),
        Section::of("c", "stonewall numjobs=2"),
        Section::of("d", "wait_for_previous"),
    ];
    let (planned, globals) = plan(&sections).unwrap();
    let of = |read: fn(&Planned) -> bool| planned.iter().map(read).collect::<Vec<_>>();
    assert_eq!(planned.iter().map(|p| p.group).collect::<Vec<_>>(), [0, 0, 1, 2, 2, 3]);
    assert_eq!(of(|p| p.job.direct), [true, true, false, true, true, true]);
    assert_eq!(of(|p| p.job.blocks[0] == Blocks::One(8192)), [false, false, false, true, true, true]);
    assert_eq!(of(|p| p.job.after_previous), [false, false, false, true, false, true]);
    assert_eq!(globals.len(), 4);
    let seeds: BTreeSet<u64> = planned.iter().map(|p| p.job.seed).collect();
    assert_eq!(seeds.len(), planned.len(), "each job has its own order");
}

#[test]
fn shares_are_of_the_file_that_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    let line = format!("filename={} size=25% offset=50% io_size=200%", file.display());
    assert!(plan(&[Section::of("job", &line)]).is_err(), "more than all");
    let line = format!("filename={} size=25% offset=50% io_size=50%", file.display());
    let job = &plan(&[Section::of("job", &line)]).unwrap().0[0].job;
    assert_eq!((job.size, job.offset, job.io_bytes), (256 << 10, 512 << 10, 128 << 10));
    assert!(plan(&[Section::of("job", "size=25%")]).unwrap_err().to_string().contains("not there"));
}

#[test]
fn jobs_that_cannot_be_are_refused() {
    for line in [
        "size=1m fixedbufs",
        "size=1m verify=pattern",
        "size=1m time_based",
        "size=1m direct=1 ioengine=mmap",
        "size=1m nrfiles=2 filename_format=$jobname",
        "size=1m thread=0",
        "size=1m write_iolog=log numjobs=2",
        "size=1m nosuchoption=1",
    ] {
        let error = plan(&[Section::of("job", line)]).expect_err(line);
        assert_eq!(error.kind().exit_code(), 2, "{line}: {error}");
    }
    assert!(plan(&[Section::of("global", "size=1m")]).unwrap_err().to_string().contains("no job"));
    assert!(plan(&[Section::of("a/b", "size=1m")]).is_err());
}

#[test]
fn the_page_lists_every_option() {
    let page = include_str!("../../../../../docs/src/guide/bench-fio.md");
    for known in OPTIONS {
        for name in std::iter::once(&known.name).chain(known.others) {
            assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/src/guide/bench-fio.md");
        }
    }
    let job = Job::new("j", vec!["f".into()]);
    assert_eq!(plan(&[Section::of("job", "size=1m")]).unwrap().0[0].job.blocks, job.blocks);
}
