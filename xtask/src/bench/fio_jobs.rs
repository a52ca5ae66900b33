//! The jobs that are compared: sequential and random, read, written and mixed, 4 KiB to 1 MiB, depth 1 to 64, one to
//! four jobs, and a flush after every write.

use std::path::Path;

/// What a job's speed depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The device: both programs must see the same.
    Device,
    /// Flushes after every write.
    Flush,
    /// The processor: the program that costs less is faster, so that only its cost is compared.
    Processor,
}

/// One job, in fio's words.
pub struct Job {
    /// For people.
    pub name: &'static str,
    /// Its options, but for those that all have.
    words: &'static str,
    /// What decides how fast it is, and with it the bars.
    pub bound: Bound,
    /// Part of a quick run.
    pub quick: bool,
}

const fn job(name: &'static str, words: &'static str) -> Job {
    Job { name, words, bound: Bound::Device, quick: false }
}

const fn quick(name: &'static str, words: &'static str) -> Job {
    Job { name, words, bound: Bound::Device, quick: true }
}

const fn cached(name: &'static str, words: &'static str) -> Job {
    Job { name, words, bound: Bound::Processor, quick: false }
}

const fn flush(name: &'static str, words: &'static str) -> Job {
    Job { name, words, bound: Bound::Flush, quick: false }
}

/// All of them.
pub const ALL: &[Job] = &[
    job("read 1m psync", "rw=read bs=1m direct=1 ioengine=psync"),
    job("read 1m uring d16", "rw=read bs=1m direct=1 ioengine=io_uring iodepth=16"),
    job("read 64k uring d4 j2", "rw=read bs=64k direct=1 ioengine=io_uring iodepth=4 numjobs=2"),
    quick("randread 4k psync", "rw=randread bs=4k direct=1 ioengine=psync"),
    job("randread 4k uring d1", "rw=randread bs=4k direct=1 ioengine=io_uring iodepth=1"),
    quick("randread 4k uring d16", "rw=randread bs=4k direct=1 ioengine=io_uring iodepth=16"),
    job("randread 4k uring d64", "rw=randread bs=4k direct=1 ioengine=io_uring iodepth=64"),
    job("randread 4k uring d16 j4", "rw=randread bs=4k direct=1 ioengine=io_uring iodepth=16 numjobs=4"),
    job("randread 64k uring d8", "rw=randread bs=64k direct=1 ioengine=io_uring iodepth=8"),
    cached("randread 4k cached", "rw=randread bs=4k ioengine=psync pre_read=1 invalidate=0"),
    job("write 1m uring d16", "rw=write bs=1m direct=1 ioengine=io_uring iodepth=16"),
    job("randwrite 4k psync", "rw=randwrite bs=4k direct=1 ioengine=psync"),
    job("randwrite 4k uring d16", "rw=randwrite bs=4k direct=1 ioengine=io_uring iodepth=16"),
    job("randwrite 16k psync j4", "rw=randwrite bs=16k direct=1 ioengine=psync numjobs=4"),
    job("randrw 4k 70/30 uring d32", "rw=randrw rwmixread=70 bs=4k direct=1 ioengine=io_uring iodepth=32"),
    quick("rw 128k uring d8", "rw=rw bs=128k direct=1 ioengine=io_uring iodepth=8"),
    flush("8k write, fsync, 1 thread", "rw=write bs=8k ioengine=sync fsync=1 filename= size=64m"),
    flush("8k write, fsync, 2 threads", "rw=write bs=8k ioengine=sync fsync=1 filename= size=64m numjobs=2"),
    flush("8k write, fsync, 4 threads", "rw=write bs=8k ioengine=sync fsync=1 filename= size=64m numjobs=4"),
    flush("8k write, fsync, 8 threads", "rw=write bs=8k ioengine=sync fsync=1 filename= size=64m numjobs=8"),
];

impl Job {
    /// The job file: `size` bytes of the common file, or files of its own.
    pub fn file(&self, folder: &Path, size: &str, seconds: f64) -> String {
        let own = self.words.contains("filename=");
        let file = if own { String::new() } else { format!("filename=data\nsize={size}\n") };
        let words = self.words.split(' ').filter(|word| *word != "filename=").collect::<Vec<_>>().join("\n");
        let ms = (seconds * 1000.0) as u64;
        format!(
            "[global]\ndirectory={}\n{file}thread\ntime_based\nruntime={ms}ms\ngroup_reporting\n[own]\n{words}\n",
            folder.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_jobs_of_every_kind() {
        assert!(ALL.iter().filter(|job| job.bound == Bound::Device).count() >= 12);
        for part in [
            "rw=read",
            "rw=write",
            "rw=rw",
            "rw=randread",
            "rw=randwrite",
            "rw=randrw",
            "iodepth=64",
            "numjobs=4",
        ] {
            assert!(ALL.iter().any(|job| job.words.contains(part)), "{part}");
        }
        let text = ALL[0].file(Path::new("/x"), "1g", 3.0);
        assert!(text.contains("filename=data\nsize=1g\n") && text.contains("runtime=3000ms"), "{text}");
        let own = ALL[ALL.len() - 1].file(Path::new("/x"), "1g", 0.2);
        assert!(!own.contains("filename") && own.contains("size=64m\nnumjobs=8"), "{own}");
    }
}
