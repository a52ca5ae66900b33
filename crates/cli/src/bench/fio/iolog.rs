//! The requests of a job as a file: fio's `iolog`, version 2, written and done again.
//!
//! Requests stand in the order in which they were made. A flush has no place, so its offset and length are 0. Reading
//! guarantees: a line that is not understood is an error that names it. Does not: pauses (`wait`), trims, times
//! (version 3).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use forebay_perf::load::{Blocks, Job, Made, Request};
use forebay_tier::{Error, Kind, Result};

const HEADING: &str = "fio version 2 iolog";

/// Writes what a job did.
///
/// # Errors
/// Those of writing the file.
pub fn write(path: &Path, job: &Job, requests: &[Request]) -> Result<()> {
    std::fs::write(path, text(job, requests))
        .map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
}

fn text(job: &Job, requests: &[Request]) -> String {
    let mut text = format!("{HEADING}\n");
    let mut line = |file: usize, what: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{} {what}", job.files[file].display());
    };
    (0..job.files.len()).for_each(|file| line(file, format_args!("add")));
    (0..job.files.len()).for_each(|file| line(file, format_args!("open")));
    for request in requests {
        let word = match request.made {
            Made::Read => "read",
            Made::Write => "write",
            Made::Sync => "sync",
            Made::DataSync => "datasync",
        };
        line(request.file as usize, format_args!("{word} {} {}", request.offset, request.len));
    }
    (0..job.files.len()).for_each(|file| line(file, format_args!("close")));
    text
}

/// What a job did, read from its file.
#[derive(Debug, PartialEq)]
pub struct Log {
    /// In the order of their first line.
    pub files: Vec<PathBuf>,
    pub requests: Vec<Request>,
}

/// Reads what a job did.
///
/// # Errors
/// `Usage` with the line; `PermissionDenied`, `Io`.
pub fn read(path: &Path) -> Result<Log> {
    let failed = |e| Error::io(format!("cannot read {}", path.display()), e);
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let mut log = Log { files: Vec::new(), requests: Vec::new() };
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim_end()));
    let wrong = |at: usize, what: String| {
        Err(Error::new(Kind::Usage, what).with("at", format!("{}:{at}", path.display())))
    };
    if lines.next().is_none_or(|(_, line)| line != HEADING) {
        return wrong(1, format!("a log of requests begins with `{HEADING}`"));
    }
    for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
        if let Err(what) = log.add(line) {
            return wrong(at, what);
        }
    }
    Ok(log)
}

impl Log {
    /// One line: a file (which may hold blanks), then what is done with it.
    fn add(&mut self, line: &str) -> std::result::Result<(), String> {
        let split = |text: &'_ str| text.rsplit_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
        let unknown = || format!("`{line}` is no line of a log that can be done again");
        let (rest, last) = split(line).ok_or_else(unknown)?;
        if ["add", "open", "close"].contains(&last.as_str()) {
            self.file(&rest);
            return Ok(());
        }
        let (rest, offset) = split(&rest).ok_or_else(unknown)?;
        let (file, word) = split(&rest).ok_or_else(unknown)?;
        let made = match word.as_str() {
            "read" => Made::Read,
            "write" => Made::Write,
            "sync" => Made::Sync,
            "datasync" => Made::DataSync,
            "wait" | "trim" => return Err(format!("`{word}` is not done again here")),
            _ => return Err(unknown()),
        };
        let (offset, len) = (offset.parse().map_err(|_| unknown())?, last.parse().map_err(|_| unknown())?);
        let file = self.file(&file);
        self.requests.push(Request { made, file, offset, len });
        Ok(())
    }

    fn file(&mut self, name: &str) -> u32 {
        let known = self.files.iter().position(|file| file == Path::new(name));
        known.unwrap_or_else(|| {
            self.files.push(name.into());
            self.files.len() - 1
        }) as u32
    }

    /// The job with these requests in place of its own: their files, their sizes, their directions.
    pub fn into_job(self, job: Job) -> Job {
        let of = |made: Made| self.requests.iter().filter(move |r| r.made == made).map(|r| r.len);
        let range = |made: Made| {
            let (min, max) = (of(made).min()?, of(made).max()?);
            Some(if min == max { Blocks::One(min) } else { Blocks::Range(min, max) })
        };
        let (read, write) = (range(Made::Read), range(Made::Write));
        let end = self.requests.iter().map(|r| r.offset + u64::from(r.len)).max().unwrap_or(0);
        let [read_before, write_before] = job.blocks;
        Job {
            reads: read.is_some(),
            writes: write.is_some(),
            blocks: [read.unwrap_or(read_before), write.unwrap_or(write_before)],
            files: self.files,
            size: end,
            replay: Some(self.requests.into()),
            ..job
        }
    }
}
