//! What options do: requests, offsets, bytes in files, calls. Every job really runs, small; no time is looked at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use forebay_perf::load::{run, Job, Made, Report, Request};

use super::job_file::Section;
use super::jobs::plan;

/// What came of a line of options.
struct Seen {
    dir: tempfile::TempDir,
    jobs: Vec<Job>,
    reports: Vec<Report>,
}

const PAGE: u64 = 4096;

impl Seen {
    fn of(line: &str) -> Seen {
        let dir = tempfile::tempdir().unwrap();
        Seen::in_dir(dir, line)
    }

    fn in_dir(dir: tempfile::TempDir, line: &str) -> Seen {
        let line = format!("directory={} {line}", dir.path().display());
        let (planned, _) = plan(&[Section::of("job", &line)]).unwrap_or_else(|e| panic!("{line}: {e}"));
        let jobs: Vec<Job> = planned.into_iter().map(|p| Job { record: true, ..p.job }).collect();
        let outcome =
            run(&jobs, &AtomicBool::new(false), &mut |_| ()).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert!(
            outcome.reports.iter().all(|r| r.failure.is_none()),
            "{line}: {:?}",
            outcome.reports[0].failure
        );
        Seen { dir, jobs, reports: outcome.reports }
    }

    fn requests(&self) -> &[Request] {
        &self.reports[0].requests
    }

    fn count(&self, made: Made) -> usize {
        self.requests().iter().filter(|r| r.made == made).count()
    }

    fn offsets(&self) -> Vec<u64> {
        self.requests().iter().map(|r| r.offset / PAGE).collect()
    }

    fn lens(&self) -> BTreeSet<u32> {
        self.requests().iter().map(|r| r.len).collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.file(name)).unwrap()
    }
}

type Check = fn(&Seen) -> bool;

fn rising(offsets: &[u64]) -> bool {
    offsets.windows(2).all(|w| w[0] < w[1])
}

/// Every block once, in another order than that of the file.
fn shuffled(seen: &Seen, blocks: u64) -> bool {
    let mut sorted = seen.offsets();
    let any = !rising(&sorted);
    sorted.sort_unstable();
    any && sorted == (0..blocks).collect::<Vec<_>>()
}

/// Options, and what the jobs then did.
const EFFECTS: &[(&str, Check)] = &[
    ("rw=read size=64k", |s| s.offsets() == (0..16).collect::<Vec<_>>() && s.count(Made::Read) == 16),
    ("readwrite=write size=64k", |s| s.count(Made::Write) == 16 && rising(&s.offsets())),
    ("rw=randread size=256k", |s| shuffled(s, 64)),
    ("rw=randwrite size=256k", |s| shuffled(s, 64) && s.count(Made::Write) == 64),
    ("rw=rw size=256k", |s| {
        // Each direction goes through the file by itself.
        let of =
            |made| s.requests().iter().filter(move |r| r.made == made).map(|r| r.offset).collect::<Vec<_>>();
        [Made::Read, Made::Write].into_iter().all(|made| of(made).len() > 1 && rising(&of(made)))
    }),
    ("rw=randrw rwmixread=100 size=64k", |s| s.count(Made::Write) == 0),
    ("rw=randrw rwmixwrite=100 size=64k", |s| s.count(Made::Read) == 0),
    ("rw=randread percentage_random=0 size=64k", |s| rising(&s.offsets())),
    ("rw=randread norandommap size=256k", |s| s.offsets().into_iter().collect::<BTreeSet<_>>().len() < 64),
    ("rw=randread random_distribution=zipf:1.2 size=256k", |s| {
        s.offsets().into_iter().collect::<BTreeSet<_>>().len() < 40
    }),
    ("rw=read bs=16k size=64k", |s| s.lens() == [16 << 10].into() && s.requests().len() == 4),
    ("rw=randrw bs=4k,8k size=128k", |s| {
        // The last of what was not met may cut a block short.
        let of = |made| {
            s.requests().iter().filter(move |r| r.made == made).map(|r| r.len).collect::<BTreeSet<_>>()
        };
        of(Made::Read) == [4096].into() && of(Made::Write).last() == Some(&8192)
    }),
    ("rw=read bsrange=4k-16k size=1m", |s| s.lens().iter().all(|l| l % 4096 == 0) && s.lens().len() > 1),
    ("rw=read bssplit=4k/50:8k/50 size=1m", |s| s.lens().is_superset(&[4096, 8192].into())),
    ("rw=randread blockalign=16k norandommap size=256k", |s| s.offsets().iter().all(|o| o % 4 == 0)),
    ("rw=write size=10k kb_base=1000 bs=1k", |s| s.bytes("job.0.0").len() == 10_000),
    ("rw=write size=64k nrfiles=2", |s| {
        s.bytes("job.0.0").len() == 32 << 10 && s.bytes("job.0.1").len() == 32 << 10
    }),
    ("rw=read size=32k filesize=64k", |s| s.bytes("job.0.0").len() == 64 << 10 && s.requests().len() == 8),
    ("rw=read size=64k io_size=16k", |s| s.offsets() == [0, 1, 2, 3]),
    ("rw=read size=32k io_size=64k", |s| s.requests().len() == 16 && s.offsets()[8] == 0),
    ("rw=read size=64k number_ios=3", |s| s.offsets() == [0, 1, 2]),
    ("rw=write size=16k offset=32k zero_buffers=0", |s| {
        let bytes = s.bytes("job.0.0");
        s.offsets() == [8, 9, 10, 11]
            && bytes[..32 << 10].iter().all(|b| *b == 0)
            && bytes[32 << 10..].iter().any(|b| *b != 0)
    }),
    ("rw=write size=16k offset_increment=16k numjobs=2 filename=f", |s| {
        s.reports[1].requests[0].offset == 16 << 10 && s.bytes("f").len() == 32 << 10
    }),
    ("rw=read size=16k loops=3", |s| s.offsets() == [0, 1, 2, 3].repeat(3)),
    ("rw=write size=16k filename=a:b", |s| s.file("a").exists() && s.file("b").exists()),
    ("rw=write size=4k filename_format=$jobname-$filenum", |s| s.file("job-0").exists()),
    ("rw=read size=32k nrfiles=2 file_service_type=roundrobin", |s| {
        s.requests().iter().map(|r| r.file).eq([0, 1].repeat(4))
    }),
    ("rw=read size=32k nrfiles=2 file_service_type=sequential", |s| {
        s.requests().iter().map(|r| r.file).eq([0, 0, 0, 0, 1, 1, 1, 1])
    }),
    ("rw=write size=64k fallocate=keep number_ios=1", |s| s.bytes("job.0.0").len() == 4096),
    ("rw=write size=64k fallocate=truncate number_ios=1", |s| s.bytes("job.0.0").len() == 64 << 10),
    ("rw=write size=64k overwrite=1 number_ios=1", |s| s.bytes("job.0.0")[8192..].iter().any(|b| *b != 0)),
    ("rw=write size=64k create_only=1", |s| s.requests().is_empty() && s.file("job.0.0").exists()),
    ("rw=write size=64k unlink=1", |s| !s.file("job.0.0").exists()),
    ("rw=read size=64k pre_read=1 invalidate=0", |s| s.reports[0].moved.is_none_or(|m| m.read_bytes == 0)),
    ("rw=write size=32k ioengine=mmap", |s| s.bytes("job.0.0").len() == 32 << 10 && s.requests().len() == 8),
    ("rw=write size=64k fsync=4", |s| s.count(Made::Sync) == 4 && s.requests()[4].made == Made::Sync),
    ("rw=write size=64k fdatasync=8", |s| s.count(Made::DataSync) == 2 && s.reports[0].flushes.ios == 2),
    ("rw=write size=64k end_fsync=1", |s| s.reports[0].flushes.ios == 1 && s.requests().len() == 16),
    ("rw=write size=16k numjobs=3", |s| s.reports.len() == 3 && s.file("job.2.0").exists()),
    ("rw=randread size=256k numjobs=2", |s| s.reports[0].requests != s.reports[1].requests),
    ("rw=write size=16k zero_buffers", |s| s.bytes("job.0.0").iter().all(|b| *b == 0)),
    ("rw=write size=16k buffer_pattern=0xabcd scramble_buffers=0", |s| {
        s.bytes("job.0.0").chunks(2).all(|pair| pair == [0xab, 0xcd])
    }),
    ("rw=write size=32k refill_buffers", |s| different(s) == 8),
    ("rw=write size=32k scramble_buffers=1", |s| different(s) == 8),
    ("rw=write size=32k scramble_buffers=0", |s| different(s) == 1),
    ("rw=write size=64k buffer_compress_percentage=50 buffer_compress_chunk=4k", |s| {
        let bytes = s.bytes("job.0.0");
        let zeros = bytes.iter().filter(|b| **b == 0).count() * 100 / bytes.len();
        (45..=55).contains(&zeros)
    }),
    ("rw=write size=1m dedupe_percentage=100 scramble_buffers=0", |s| different(s) == 1),
    ("rw=write size=64k verify=crc32c", |s| s.reports[0].verified_bytes == 64 << 10),
    ("rw=write size=64k verify=crc32c do_verify=0", |s| s.reports[0].verified_bytes == 0),
    ("rw=write size=8k verify=pattern verify_pattern=\"ab\"", |s| {
        s.bytes("job.0.0").chunks(2).all(|pair| pair == b"ab") && s.reports[0].verified_bytes == 8192
    }),
    ("rw=read size=16k disable_clat=1", |s| s.reports[0].read.completion.count() == 0),
    ("rw=read size=16k disable_lat=1", |s| s.reports[0].read.total.count() == 0),
    ("rw=read size=16k gtod_reduce=1", |s| {
        s.reports[0].read.completion.count() + s.reports[0].read.total.count() == 0 && s.requests().len() == 4
    }),
];

/// Blocks of the file that differ.
fn different(seen: &Seen) -> usize {
    seen.bytes("job.0.0").chunks(PAGE as usize).map(<[u8]>::to_vec).collect::<BTreeSet<_>>().len()
}

#[test]
fn options_do_what_they_say() {
    let failed = EFFECTS.iter().filter_map(|(line, check)| {
        let seen = Seen::of(line);
        let first: Vec<&Request> = seen.requests().iter().take(9).collect();
        (!check(&seen)).then(|| format!("{line}: {first:?}, …"))
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn an_order_is_the_same_in_the_next_run_unless_it_shall_not_be() {
    let order = |more: &str| Seen::of(&format!("rw=randread size=256k {more}")).offsets();
    assert_eq!(order(""), order(""));
    assert_ne!(order(""), order("randseed=7"));
    assert_eq!(order("randseed=7"), order("randseed=7"));
    assert_ne!(order("randrepeat=0"), order("randrepeat=0"));
}

#[test]
fn a_file_that_may_not_be_made_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("directory={} rw=write size=16k allow_file_create=0", dir.path().display());
    let jobs: Vec<Job> = plan(&[Section::of("job", &line)]).unwrap().0.into_iter().map(|p| p.job).collect();
    let outcome = run(&jobs, &AtomicBool::new(false), &mut |_| ());
    assert!(outcome.is_err() || outcome.unwrap().reports[0].failure.is_some());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn requests_are_written_as_fios_log() {
    let seen = Seen::of("rw=write size=8k fsync=2");
    let log = seen.file("log");
    super::iolog::write(&log, &seen.jobs[0], seen.requests()).unwrap();
    let file = seen.file("job.0.0").display().to_string();
    let lines = ["add", "open", "write 0 4096", "write 4096 4096", "sync 0 0", "close"];
    let wanted = lines.map(|line| format!("{file} {line}\n")).concat();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), format!("fio version 2 iolog\n{wanted}"));
    assert!(super::iolog::write(Path::new("/nowhere/log"), &seen.jobs[0], &[]).is_err());
}

#[test]
fn requests_of_a_log_are_done_again() {
    let seen = Seen::of("rw=randrw rwmixread=50 bsrange=4k-12k size=64k fsync=3");
    let log = seen.file("log");
    super::iolog::write(&log, &seen.jobs[0], seen.requests()).unwrap();
    let again = Seen::of(&format!("read_iolog={} loops=2", log.display()));
    assert_eq!(again.jobs[0].files, seen.jobs[0].files, "the files are those of the log");
    assert_eq!(again.requests(), [seen.requests(), seen.requests()].concat());
    for (line, wanted) in [
        ("x read 0", "x read 0"),
        ("x wait 5 0", "`wait`"),
        ("x trim 0 4096", "`trim`"),
        ("x read 0 many", "many"),
    ] {
        std::fs::write(&log, format!("fio version 2 iolog\nx add\n{line}\n")).unwrap();
        let error = super::iolog::read(&log).unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("log:3"), "{error}");
    }
    for text in ["", "fio version 3 iolog\n", "x add\n"] {
        std::fs::write(&log, text).unwrap();
        assert!(super::iolog::read(&log).unwrap_err().to_string().contains("log:1"), "{text}");
    }
    assert!(plan(&[Section::of("job", "read_iolog=/nowhere/log")]).is_err());
}
