//! Every option of a job that is known, with what it does to the job's settings.
//!
//! Guarantees: an option of this table has an effect, or is refused with a value that would need another one; any other
//! word is an error that names it. The page `docs/src/guide/bench-fio.md` lists the same options.

use forebay_perf::load::{
    Allocate, Blocks, Bytes, Distribution, Engine, FileOrder, Method, Uring, WriteThrough, READ, WRITE,
};
use forebay_tier::{Error, Kind, Result};

use super::job_file::Word;
use super::settings::Settings;
use super::values::{pair, pattern, processors, small, switch, time_ns, whole, Read};

const SECOND_NS: u64 = 1_000_000_000;
const MICROSECOND_NS: u64 = 1_000;

/// Whether a value stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// No: its presence says it. (`=0` and `=1` are understood.)
    Nothing,
    /// 0 or 1.
    Switch,
    /// Something else.
    Value,
}

/// One option.
pub struct Known {
    /// As in fio's documents.
    pub name: &'static str,
    /// Its other names there.
    pub others: &'static [&'static str],
    /// See [`Takes`].
    pub takes: Takes,
    /// For people.
    pub what: &'static str,
    set: fn(&mut Settings, &str) -> Read<()>,
}

/// Applies the words of a section, `kb_base` first, because it decides how the others are read.
pub fn apply(settings: &mut Settings, words: &[Word]) -> Result<()> {
    let (first, rest): (Vec<&Word>, Vec<&Word>) = words.iter().partition(|word| word.name == "kb_base");
    first.into_iter().chain(rest).try_for_each(|word| one(settings, word))
}

fn one(settings: &mut Settings, word: &Word) -> Result<()> {
    let known = find(&word.name).ok_or_else(|| unknown(&word.name, &word.place))?;
    let wrong = |what: String| {
        Error::new(Kind::Usage, format!("{}: {what}", word.name))
            .with("at", &word.place)
            .hint(format!("{}: {}", known.name, known.what))
    };
    let value = match (&word.value, known.takes) {
        (Some(value), _) => value.as_str(),
        (None, Takes::Nothing | Takes::Switch) => "1",
        (None, Takes::Value) => return Err(wrong("needs a value".into())),
    };
    (known.set)(settings, value).map_err(wrong)
}

/// The option of this name.
pub fn find(name: &str) -> Option<&'static Known> {
    OPTIONS.iter().find(|known| known.name == name || known.others.contains(&name))
}

/// The error for a word that is no option.
pub fn unknown(name: &str, place: &str) -> Error {
    let error = Error::new(Kind::UnknownKey, format!("bench fio does not know the option `{name}`"))
        .with("at", place);
    let names = OPTIONS.iter().flat_map(|known| std::iter::once(&known.name).chain(known.others)).copied();
    match forebay_space::did_you_mean(name, names) {
        Some(near) => error.hint(format!("did you mean {near}? forebay bench fio --cmdhelp lists all")),
        None => error.hint("forebay bench fio --cmdhelp lists the options that it knows"),
    }
}

fn only(text: &str, allowed: bool, why: &str) -> Read<()> {
    match switch(text)? == allowed {
        true => Ok(()),
        false => Err(why.to_string()),
    }
}

/// `read`, `randwrite`, …
fn pattern_of(s: &mut Settings, text: &str) -> Read<()> {
    let (reads, writes, random) = match text {
        "read" => (true, false, false),
        "write" => (false, true, false),
        "rw" | "readwrite" => (true, true, false),
        "randread" => (true, false, true),
        "randwrite" => (false, true, true),
        "randrw" => (true, true, true),
        "trim" | "randtrim" | "trimwrite" | "randtrimwrite" => {
            return Err(
                "trims are not made here (fio itself refuses them on files: they need a block device)".into(),
            )
        }
        _ => return Err(format!("`{text}` is none of read, write, rw, randread, randwrite, randrw")),
    };
    (s.job.reads, s.job.writes, s.random) = (reads, writes, random);
    Ok(())
}

fn engine_of(s: &mut Settings, text: &str) -> Read<()> {
    s.job.engine = match text {
        "sync" | "psync" | "vsync" | "pvsync" | "pvsync2" => Engine::Sync,
        "io_uring" | "libaio" | "posixaio" => Engine::IoUring(Uring::default()),
        "mmap" => Engine::Mmap,
        "libpmem" | "dev-dax" => Engine::Dax,
        _ => {
            return Err(format!(
            "`{text}` is none of psync (sync, vsync, pvsync, pvsync2), io_uring (libaio, posixaio), mmap, \
                 libpmem (dev-dax)"
        ))
        }
    };
    Ok(())
}

fn blocks_of(s: &mut Settings, text: &str) -> Read<()> {
    let units = s.units;
    let one = |blocks: &Blocks| blocks.min();
    let [read, write] =
        pair(text, [one(&s.job.blocks[READ]), one(&s.job.blocks[WRITE])], |t| units.block(t))?;
    s.job.blocks = [Blocks::One(read), Blocks::One(write)];
    Ok(())
}

fn range_of(s: &mut Settings, text: &str) -> Read<()> {
    let units = s.units;
    let range = |part: &str| {
        let (min, max) =
            part.split_once(['-', ':']).ok_or_else(|| format!("`{part}` is no range (4k-64k)"))?;
        Ok((units.block(min)?, units.block(max)?))
    };
    let before = s.job.blocks.clone().map(|blocks| (blocks.min(), blocks.max()));
    s.job.blocks = pair(text, before, range)?.map(|(min, max)| Blocks::Range(min, max));
    Ok(())
}

fn split_of(s: &mut Settings, text: &str) -> Read<()> {
    let units = s.units;
    let split = |part: &str| -> Read<Blocks> {
        let mut sizes = Vec::new();
        for piece in part.split(':') {
            let (size, weight) = piece.split_once('/').unwrap_or((piece, ""));
            let weight = if weight.is_empty() { None } else { Some(small(weight, 0..=100)?) };
            sizes.push((units.block(size)?, weight));
        }
        // What is not said is shared evenly.
        let said: u32 = sizes.iter().filter_map(|(_, weight)| *weight).sum();
        let open = sizes.iter().filter(|(_, weight)| weight.is_none()).count() as u32;
        let left = 100u32.checked_sub(said).ok_or_else(|| format!("`{part}` has more than 100 per cent"))?;
        if open == 0 && left > 0 {
            return Err(format!("`{part}` has {said} per cent"));
        }
        let mut odd = if open > 0 { left % open } else { 0 };
        let share = |weight: Option<u32>| {
            weight.unwrap_or_else(|| {
                let more = u32::from(odd > 0);
                odd -= more;
                left / open + more
            })
        };
        let weights: Vec<u32> = sizes.iter().map(|(_, weight)| *weight).map(share).collect();
        Ok(Blocks::Split(sizes.iter().map(|(size, _)| *size).zip(weights).collect()))
    };
    let parts: Vec<&str> = text.split(',').collect();
    s.job.blocks = match parts.as_slice() {
        [both] => [split(both)?, split(both)?],
        [read, write] | [read, write, _] => [split(read)?, split(write)?],
        _ => return Err(format!("`{text}` has more than three parts")),
    };
    Ok(())
}

fn distribution_of(s: &mut Settings, text: &str) -> Read<()> {
    let (name, number) = text.split_once(':').unwrap_or((text, ""));
    let float = |least: f64| match number.parse::<f64>() {
        Ok(value) if value > least && value < 100.0 => Ok(value),
        _ => Err(format!("`{text}` needs a number above {least} behind its colon")),
    };
    s.job.distribution = match name {
        "random" => Distribution::Even,
        "zipf" => Distribution::Zipf(float(0.0)?),
        "normal" | "gauss" => Distribution::Normal(float(0.0)?),
        _ => return Err(format!("`{text}` is none of random, zipf:THETA, normal:PERCENT")),
    };
    Ok(())
}

fn verify_of(s: &mut Settings, text: &str) -> Read<()> {
    s.checks.method = match text {
        "0" | "none" => None,
        "crc32c" | "crc32c-intel" => Some(Method::Crc32c),
        // The bytes are those of verify_pattern, which may stand behind.
        "pattern" => Some(Method::Pattern(Vec::new())),
        _ => return Err(format!("`{text}` is none of crc32c, pattern")),
    };
    Ok(())
}

fn sync_of(s: &mut Settings, text: &str) -> Read<()> {
    s.job.write_through = match text {
        "0" | "none" => WriteThrough::No,
        "1" | "sync" => WriteThrough::All,
        "dsync" => WriteThrough::Data,
        _ => return Err(format!("`{text}` is none of none, sync, dsync")),
    };
    Ok(())
}

fn allocate_of(s: &mut Settings, text: &str) -> Read<()> {
    s.job.allocate = match text {
        "none" | "0" => Allocate::No,
        "native" | "posix" | "1" => Allocate::Native,
        "keep" => Allocate::KeepSize,
        "truncate" => Allocate::Truncate,
        _ => return Err(format!("`{text}` is none of none, native, posix, keep, truncate")),
    };
    Ok(())
}

fn percentiles_of(s: &mut Settings, text: &str) -> Read<()> {
    let one = |part: &str| match part.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err(format!("`{part}` is no percentile")),
    };
    let mut list = text.split(':').map(one).collect::<Read<Vec<f64>>>()?;
    list.sort_by(f64::total_cmp);
    s.shown.percentiles = list;
    Ok(())
}

fn files_order_of(s: &mut Settings, text: &str) -> Read<()> {
    s.job.file_order = match text {
        "random" => FileOrder::Random,
        "roundrobin" => FileOrder::RoundRobin,
        "sequential" => FileOrder::Sequential,
        _ => return Err(format!("`{text}` is none of random, roundrobin, sequential")),
    };
    Ok(())
}

fn kilo_of(s: &mut Settings, text: &str) -> Read<()> {
    s.units.kilo = match text {
        "1024" => 1024,
        "1000" => 1000,
        _ => return Err(format!("`{text}` is neither 1024 nor 1000")),
    };
    Ok(())
}

fn cpus_policy_of(s: &mut Settings, text: &str) -> Read<()> {
    s.cpus_split = match text {
        "shared" => false,
        "split" => true,
        _ => return Err(format!("`{text}` is neither shared nor split")),
    };
    Ok(())
}

fn rate_of(s: &mut Settings, text: &str) -> Read<()> {
    let units = s.units;
    let [read, write] = pair(text, s.job.rate.map(|rate| rate.bytes), |t| units.bytes(t))?;
    (s.job.rate[READ].bytes, s.job.rate[WRITE].bytes) = (read, write);
    Ok(())
}

fn rate_iops_of(s: &mut Settings, text: &str) -> Read<()> {
    let [read, write] = pair(text, s.job.rate.map(|rate| rate.ios), |t| whole(t, 0..=u64::MAX))?;
    (s.job.rate[READ].ios, s.job.rate[WRITE].ios) = (read, write);
    Ok(())
}

fn reduce_of(s: &mut Settings, text: &str) -> Read<()> {
    let taken = !switch(text)?;
    s.job.measure = forebay_perf::load::Measure { submission: taken, completion: taken, total: taken };
    Ok(())
}

/// Bytes that compress are made anew for every write, as fio does: a device could find repetitions otherwise.
fn compressible_of(s: &mut Settings, text: &str) -> Read<()> {
    s.job.content.compressible_percent = small(text, 0..=100)?;
    s.job.content.refill |= s.job.content.compressible_percent > 0;
    Ok(())
}

/// Names separated by colons; a colon of a name stands behind a backslash.
fn names(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let last = all.last_mut().expect("it begins with one");
        match letter {
            '\\' => last.extend(letters.next()),
            ':' => all.push(String::new()),
            other => last.push(other),
        }
    }
    all.retain(|name| !name.is_empty());
    all
}

/// A yes-or-no setting in one line.
macro_rules! on {
    ($field:ident $(. $inner:ident)*) => {
        |s, text| switch(text).map(|on| s.$field $(. $inner)* = on)
    };
    (not $field:ident $(. $inner:ident)*) => {
        |s, text| switch(text).map(|on| s.$field $(. $inner)* = !on)
    };
}

macro_rules! options {
    ($($name:literal $(| $other:literal)* $takes:ident $what:literal $set:expr;)*) => {
        /// All of them, by theme.
        pub static OPTIONS: &[Known] = &[$(Known {
            name: $name,
            others: &[$($other),*],
            takes: Takes::$takes,
            what: $what,
            set: $set,
        }),*];
    };
}

options! {
    "description" Value "text for people, shown with the job"
        |s, t| { s.description = Some(t.into()); Ok(()) };
    "kb_base" Value "what k means in sizes: 1024 or 1000"
        kilo_of;

    "rw" | "readwrite" Value "read, write, rw, randread, randwrite, randrw" pattern_of;
    "rwmixread" Value "per cent of reads in a mix" |s, t| small(t, 0..=100).map(|n| s.job.read_percent = n);
    "rwmixwrite" Value "per cent of writes in a mix"
        |s, t| small(t, 0..=100).map(|n| s.job.read_percent = 100 - n);
    "percentage_random" Value "per cent of a random job's requests that are not sequential"
        |s, t| small(t, 0..=100).map(|n| s.job.random_percent = n);
    "norandommap" Nothing "random blocks may repeat" on!(not job.random_map);
    "random_distribution" Value "random, zipf:THETA, normal:PERCENT" distribution_of;
    "randseed" Value "seed of the order" |s, t| whole(t, 0..=u64::MAX).map(|n| s.seed = Some(n));
    "randrepeat" Switch "the same order in every run and pass" on!(job.repeat);

    "bs" | "blocksize" Value "bytes of a request; reads,writes" blocks_of;
    "bsrange" | "blocksize_range" Value "MIN-MAX bytes of a request" range_of;
    "bssplit" Value "SIZE/PERCENT:SIZE/PERCENT…" split_of;
    "blockalign" | "ba" Value "random offsets are multiples of this"
        |s, t| s.units.block(t).map(|n| s.job.align = u64::from(n));
    "size" Value "bytes of the job, over all its files; or per cent of them"
        |s, t| s.units.amount(t).map(|n| s.size = Some(n));
    "filesize" Value "bytes of each file" |s, t| s.units.bytes(t).map(|n| s.job.file_bytes = n);
    "io_size" | "io_limit" Value "bytes to move, if not size"
        |s, t| s.units.amount(t).map(|n| s.io_bytes = Some(n));
    "number_ios" Value "requests to make at most" |s, t| whole(t, 0..=u64::MAX).map(|n| s.job.ios_max = n);
    "offset" Value "where the job's part of a file begins; bytes or per cent"
        |s, t| s.units.amount(t).map(|n| s.offset = n);
    "offset_increment" Value "each further job of numjobs begins so much later"
        |s, t| s.units.amount(t).map(|n| s.offset_increment = n);
    "loops" Value "how often everything is done" |s, t| small(t, 1..=u32::MAX).map(|n| s.job.loops = n);

    "filename" Value "files or devices, separated by colons, for all jobs of the section"
        |s, t| { s.filename = names(t); Ok(()) };
    "directory" Value "where files are made; several, separated by colons, take turns"
        |s, t| { s.directory = names(t); Ok(()) };
    "filename_format" Value "names of files: $jobname.$jobnum.$filenum"
        |s, t| { s.filename_format = Some(t.into()); Ok(()) };
    "nrfiles" Value "files of each job" |s, t| small(t, 1..=65_536).map(|n| s.files = n);
    "file_service_type" Value "roundrobin, random, sequential" files_order_of;
    "fallocate" Value "none, native, posix, keep, truncate" allocate_of;
    "overwrite" Switch "files are written in full before a job writes them" on!(job.overwrite);
    "allow_file_create" Switch "files that are missing are made" on!(job.create);
    "create_only" Switch "files are prepared, nothing is run" on!(job.create_only);
    "pre_read" Switch "files are read into the cache first" on!(job.pre_read);
    "invalidate" Switch "cached pages are dropped before each pass" on!(job.invalidate);
    "fadvise_hint" Value "0: the kernel is not told how reads will come; 1: it is"
        |s, t| switch(if t == "none" { "0" } else { t }).map(|on| s.job.advise = on);
    "unlink" Switch "files are removed at the end" on!(unlink);

    "ioengine" Value "psync (sync, vsync, pvsync, pvsync2), io_uring (libaio, posixaio), mmap, libpmem (dev-dax)"
        engine_of;
    "iodepth" Value "requests under way at once, with io_uring"
        |s, t| small(t, 1..=4096).map(|n| s.job.depth = n);
    "iodepth_batch" | "iodepth_batch_submit" Value "requests handed over together"
        |s, t| small(t, 1..=4096).map(|n| s.job.batch = n);
    "iodepth_batch_complete_min" | "iodepth_batch_complete" Value "completions waited for when the queue is full"
        |s, t| small(t, 0..=4096).map(|n| s.job.complete_min = n);
    "iodepth_batch_complete_max" Value "completions taken at once"
        |s, t| small(t, 0..=4096).map(|n| s.job.complete_max = n);
    "iodepth_low" Value "a full queue is drained to this before it is filled again"
        |s, t| small(t, 1..=4096).map(|n| s.depth_low = Some(n));
    "fixedbufs" Nothing "io_uring: buffers are pinned once" on!(uring.fixed_buffers);
    "registerfiles" Nothing "io_uring: files are looked up once" on!(uring.fixed_files);
    "hipri" Nothing "io_uring: completions are polled" on!(uring.poll);
    "sqthread_poll" Nothing "io_uring: a kernel thread takes the requests" on!(uring.kernel_thread);
    "direct" Switch "past the page cache" on!(job.direct);
    "buffered" Switch "through the page cache (not direct)" on!(not job.direct);
    "sync" Value "none, sync (O_SYNC), dsync (O_DSYNC)" sync_of;

    "fsync" Value "fsync after so many writes" |s, t| small(t, 0..=u32::MAX).map(|n| s.job.fsync_every = n);
    "fdatasync" Value "fdatasync after so many writes" |s, t| small(t, 0..=u32::MAX).map(|n| s.job.fdatasync_every = n);
    "end_fsync" Switch "fsync at the end, in the job's time" on!(job.fsync_at_end);
    "fsync_on_close" Switch "fsync when files are closed" on!(job.fsync_on_close);

    "numjobs" Value "how many jobs do the same" |s, t| small(t, 1..=4096).map(|n| s.jobs = n);
    "thread" Nothing "jobs are threads; they always are here"
        |_, t| only(t, true, "jobs are threads here, never processes");
    "group_reporting" Nothing "one report for each group of jobs" on!(group_reporting);
    "new_group" Nothing "a new group begins" on!(new_group);
    "stonewall" | "wait_for_previous" Nothing "begins when all jobs before have ended" on!(job.after_previous);
    "exitall" Nothing "when this job ends, the others end" on!(job.ends_all);
    "cpus_allowed" Value "processors: 0,2-3" |s, t| processors(t).map(|list| s.job.cpus = list);
    "cpus_allowed_policy" Value "shared: all jobs on all of them; split: one each"
        cpus_policy_of;

    "runtime" | "timeout" Value "seconds (or with unit) at most"
        |s, t| time_ns(t, SECOND_NS).map(|n| s.job.limit_ns = n);
    "time_based" Nothing "goes on for all of runtime" on!(job.time_based);
    "ramp_time" Value "seconds before anything is counted"
        |s, t| time_ns(t, SECOND_NS).map(|n| s.job.ramp_ns = n);
    "startdelay" Value "seconds before it begins" |s, t| time_ns(t, SECOND_NS).map(|n| s.job.delay_ns = n);
    "rate" Value "bytes a second; reads,writes"
        rate_of;
    "rate_iops" Value "requests a second; reads,writes"
        rate_iops_of;
    "thinktime" Value "microseconds of pause after a request"
        |s, t| time_ns(t, MICROSECOND_NS).map(|n| s.job.think.ns = n);
    "thinktime_spin" Value "microseconds of the pause that the processor is kept busy"
        |s, t| time_ns(t, MICROSECOND_NS).map(|n| s.job.think.spin_ns = n);
    "thinktime_blocks" Value "requests between two pauses"
        |s, t| whole(t, 1..=u64::MAX).map(|n| s.job.think.every = n);

    "zero_buffers" Nothing "writes zeros"
        |s, t| switch(t).map(|on| s.job.content.bytes = if on { Bytes::Zero } else { Bytes::Random });
    "buffer_pattern" Value "writes this: \"text\", 0xhex, bytes"
        |s, t| pattern(t).map(|bytes| s.job.content.bytes = Bytes::Pattern(bytes));
    "refill_buffers" Nothing "new bytes for every write" on!(job.content.refill);
    "scramble_buffers" Switch "a few new bytes for every write" on!(job.content.scramble);
    "buffer_compress_percentage" Value "per cent of the bytes that can be squeezed out"
        compressible_of;
    "buffer_compress_chunk" Value "bytes in which that holds"
        |s, t| s.units.block(t).map(|n| s.job.content.compress_chunk = n);
    "dedupe_percentage" Value "per cent of blocks that repeat an earlier one"
        |s, t| small(t, 0..=100).map(|n| s.job.content.duplicate_percent = n);

    "verify" Value "crc32c, pattern" verify_of;
    "verify_pattern" Value "what is written and expected"
        |s, t| pattern(t).map(|bytes| s.checks.pattern = Some(bytes));
    "do_verify" Switch "what was written is read back and checked" on!(checks.after);
    "verify_fatal" Switch "the first wrong block ends the job" on!(checks.fatal);

    "write_iolog" Value "file that gets every request of the job, as fio's iolog"
        |s, t| { s.iolog = Some(t.into()); Ok(()) };
    "read_iolog" Value "fio's iolog, version 2, whose requests are done again, in its files"
        |s, t| { s.replay = Some(t.into()); Ok(()) };

    "percentile_list" Value "percentiles of latencies, separated by colons" percentiles_of;
    "clat_percentiles" Switch "percentiles from handing over to completion" on!(shown.of_completion);
    "lat_percentiles" Switch "percentiles from making to completion" on!(shown.of_total);
    "slat_percentiles" Switch "percentiles from making to handing over" on!(shown.of_submission);
    "disable_clat" Switch "completion latency is not taken" on!(not job.measure.completion);
    "disable_lat" Switch "total latency is not taken" on!(not job.measure.total);
    "disable_slat" Switch "submission latency is not taken" on!(not job.measure.submission);
    "gtod_reduce" Switch "no latency is taken"
        reduce_of;
    "disk_util" Switch "what the devices did is shown" on!(shown.devices);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::fio::job_file::Section;

    fn settings(line: &str) -> Result<Settings> {
        let mut settings = Settings::default();
        apply(&mut settings, &Section::of("job", line).words).map(|()| settings)
    }

    #[test]
    fn an_unknown_option_is_named_with_the_nearest_known_one() {
        let error = settings("iodept=4").unwrap_err();
        assert_eq!(error.kind(), Kind::UnknownKey);
        assert!(error.to_string().contains("`iodept`") && error.to_string().contains("iodepth"), "{error}");
        assert!(settings("zonemode=zbd").unwrap_err().to_string().contains("--cmdhelp"));
    }

    #[test]
    fn names_are_unique_and_there_are_enough() {
        let mut names: Vec<&str> =
            OPTIONS.iter().flat_map(|o| std::iter::once(&o.name).chain(o.others)).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(OPTIONS.len() >= 40, "{}", OPTIONS.len());
    }

    #[test]
    fn sizes_wait_for_their_unit() {
        let read = settings("size=4k kb_base=1000").unwrap();
        assert_eq!(read.size, Some(super::super::values::Amount::Bytes(4000)));
    }

    #[test]
    fn splits_share_what_is_not_said() {
        let split = |text: &str| settings(&format!("bssplit={text}")).map(|s| s.job.blocks);
        let both = Blocks::Split(vec![(4096, 50), (65_536, 50)]);
        assert_eq!(split("4k/50:64k").unwrap(), [both.clone(), both]);
        let thirds = Blocks::Split(vec![(512, 34), (1024, 33), (2048, 33)]);
        assert_eq!(split("512:1k:2k").unwrap()[READ], thirds);
        assert_eq!(split("4k/100,8k/100").unwrap()[WRITE], Blocks::Split(vec![(8192, 100)]));
        assert!(split("4k/60:8k/60").is_err() && split("4k/60:8k/20").is_err());
    }

    #[test]
    fn wrong_values_are_refused_with_their_place() {
        for wrong in [
            "rw=sideways",
            "rw=randtrim",
            "bs=0",
            "bs=4x",
            "bsrange=4k",
            "iodepth=0",
            "iodepth",
            "direct=2",
            "ioengine=nfs",
            "thread=0",
            "runtime=1fortnight",
            "random_distribution=pareto:0.9",
            "random_distribution=zipf",
            "verify=md5",
            "percentile_list=0:101",
            "kb_base=512",
            "cpus_allowed=4-2",
            "sync=perhaps",
        ] {
            let error = settings(wrong).expect_err(wrong);
            assert_eq!(error.kind(), Kind::Usage, "{wrong}: {error}");
            assert!(error.to_string().contains("a.fio:1"), "{error}");
        }
    }
}
