//! From settings to jobs of the load generator: names of files, shares of sizes, clones, groups.

use std::path::{Path, PathBuf};

use forebay_perf::load::{self, Bytes, Engine, Job, Method, Remove, Uring, Verify};
use forebay_tier::{Error, Kind, Result};

use super::iolog;
use super::job_file::{Section, Word};
use super::options;
use super::settings::Settings;
use super::values::Amount;

/// One job, with what its report needs.
#[derive(Debug)]
pub struct Planned {
    pub job: Job,
    pub settings: Settings,
    /// Jobs that are reported together have one number.
    pub group: usize,
    /// What its own section says.
    pub words: Vec<Word>,
}

/// What differs between two jobs of one section.
struct Place {
    /// Which one of numjobs.
    number: u32,
    /// Which one of all.
    index: u64,
}

/// The jobs of all sections, and the options that hold for all of them.
///
/// # Errors
/// `Usage`, `UnknownKey`.
pub fn plan(sections: &[Section]) -> Result<(Vec<Planned>, Vec<Word>)> {
    let (mut globals, mut global_words) = (Settings::default(), Vec::new());
    let mut planned: Vec<Planned> = Vec::new();
    let mut group = 0;
    for section in sections {
        if section.is_global() {
            options::apply(&mut globals, &section.words)?;
            global_words.extend(section.words.iter().cloned());
            continue;
        }
        let mut settings = globals.clone();
        options::apply(&mut settings, &section.words)?;
        if (settings.job.after_previous || settings.new_group) && !planned.is_empty() {
            group += 1;
        }
        if settings.iolog.is_some() && settings.jobs > 1 {
            return Err(Error::new(Kind::Usage, "write_iolog: one file, and several jobs that write it")
                .with("job", &section.name)
                .hint("numjobs=1, or a section with a file of its own for each"));
        }
        for number in 0..settings.jobs {
            let place = Place { number, index: planned.len() as u64 };
            let job = job(&section.name, &settings, &place).map_err(|e| e.with("job", &section.name))?;
            job.check()?;
            planned.push(Planned { job, settings: settings.clone(), group, words: section.words.clone() });
        }
    }
    match planned.is_empty() {
        true => Err(Error::new(Kind::Usage, "no job is described")
            .hint("forebay bench fio --name=a --rw=randread --size=64m, or a job file")),
        false => Ok((planned, global_words)),
    }
}

/// Which bytes of its files a job touches, and how many in all.
struct Extent {
    offset: u64,
    size: u64,
    io_bytes: u64,
}

fn extent(s: &Settings, place: &Place, files: &[PathBuf]) -> Result<Extent> {
    let count = files.len() as u64;
    // What is there already, for shares of it.
    let present = match files.first() {
        Some(path) => load::present_bytes(path)?.unwrap_or(0),
        None => 0,
    };
    let whole = if s.job.file_bytes > 0 { s.job.file_bytes } else { present };
    let share = |percent: u64, of: u64| (u128::from(of) * u128::from(percent) / 100) as u64;
    let size = match s.size {
        None => s.job.file_bytes,
        Some(Amount::Bytes(bytes)) => bytes / count,
        Some(Amount::Percent(_)) if whole == 0 => {
            return Err(Error::new(Kind::Usage, "a share of a file that is not there").hint("size in bytes"))
        }
        Some(Amount::Percent(percent)) => share(percent, whole),
    };
    let bytes_of = |amount: Amount, whole: u64| match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => share(percent, whole),
    };
    let all = if whole > 0 { whole } else { size };
    let increment = bytes_of(s.offset_increment, all) * u64::from(place.number);
    let io_bytes = s.io_bytes.map_or(0, |amount| bytes_of(amount, size * count));
    Ok(Extent { offset: bytes_of(s.offset, all) + increment, size, io_bytes })
}

fn job(name: &str, s: &Settings, place: &Place) -> Result<Job> {
    let files = files(name, s, place)?;
    let Extent { offset, size, io_bytes } = extent(s, place, &files)?;
    let base = s.job.clone();
    let job = Job {
        name: name.into(),
        files,
        engine: engine(s)?,
        random_percent: if s.random { base.random_percent } else { 0 },
        offset,
        size,
        io_bytes,
        depth_low: s.depth_low.filter(|low| *low < base.depth).unwrap_or(0),
        batch: base.batch.min(base.depth),
        complete_min: base.complete_min.min(base.depth),
        seed: seed(s, place),
        content: content(s),
        verify: verify(s)?,
        remove: if s.unlink { Remove::All } else { Remove::Never },
        cpus: cpus(s, place),
        after_previous: base.after_previous && place.number == 0,
        record: s.iolog.is_some(),
        ..base
    };
    match &s.replay {
        None => Ok(job),
        Some(log) => Ok(iolog::read(log)?.into_job(job)),
    }
}

fn engine(s: &Settings) -> Result<Engine> {
    match s.job.engine {
        Engine::IoUring(_) => Ok(Engine::IoUring(s.uring)),
        _ if s.uring != Uring::default() => Err(Error::new(
            Kind::Usage,
            "fixedbufs, registerfiles, hipri and sqthread_poll need ioengine=io_uring",
        )),
        other => Ok(other),
    }
}

/// `directory/filename`, or a name made of the job's.
fn files(name: &str, s: &Settings, place: &Place) -> Result<Vec<PathBuf>> {
    let count = s.directory.len();
    let directory = s.directory.get(place.number as usize % count.max(1)).map_or(Path::new(""), Path::new);
    if !s.filename.is_empty() {
        return Ok(s.filename.iter().map(|name| directory.join(name)).collect());
    }
    let format = s.filename_format.as_deref().unwrap_or("$jobname.$jobnum.$filenum");
    let one = |number: u32| {
        let name = format
            .replace("$jobname", name)
            .replace("$jobnum", &place.number.to_string())
            .replace("$filenum", &number.to_string());
        directory.join(name)
    };
    let all: Vec<PathBuf> = (0..s.files).map(one).collect();
    if s.filename_format.is_none() && name.contains('/') {
        return Err(
            Error::new(Kind::BadName, format!("a file cannot be named after job {name}")).hint("filename=…")
        );
    }
    if all.len() > 1 && all[0] == all[1] {
        return Err(
            Error::new(Kind::Usage, format!("{format} gives several files one name")).hint("use $filenum")
        );
    }
    Ok(all)
}

/// Every job has its own order; the same one in the next run, unless that is not wanted.
fn seed(s: &Settings, place: &Place) -> u64 {
    let base = s.seed.unwrap_or(match s.job.repeat {
        true => 0x0f02_ebad,
        false => forebay_tier::clock::realtime_ns() ^ u64::from(std::process::id()) << 40,
    });
    base.wrapping_add(place.index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn content(s: &Settings) -> forebay_perf::load::Content {
    let mut content = s.job.content.clone();
    if let (Some(Method::Crc32c), Some(pattern)) = (&s.checks.method, &s.checks.pattern) {
        content.bytes = Bytes::Pattern(pattern.clone());
    }
    content
}

fn verify(s: &Settings) -> Result<Option<Verify>> {
    let method = match (&s.checks.method, &s.checks.pattern) {
        (None, None) => return Ok(None),
        // As in fio, a pattern alone is a method.
        (None | Some(Method::Pattern(_)), Some(pattern)) => Method::Pattern(pattern.clone()),
        (Some(Method::Pattern(_)), None) => {
            return Err(Error::new(Kind::Usage, "verify=pattern needs verify_pattern")
                .hint("verify_pattern=0xdeadbeef"))
        }
        (Some(Method::Crc32c), _) => Method::Crc32c,
    };
    Ok(Some(Verify { method, after_writes: s.checks.after, fatal: s.checks.fatal }))
}

fn cpus(s: &Settings, place: &Place) -> Vec<usize> {
    let cpus = &s.job.cpus;
    match s.cpus_split && !cpus.is_empty() {
        true => vec![cpus[place.number as usize % cpus.len()]],
        false => cpus.clone(),
    }
}
