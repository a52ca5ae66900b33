//! The requests of a job as a file: fio's `iolog`, version 2, which fio can replay.
//!
//! Requests stand in the order in which they were made. A flush has no place, so its offset and length are 0.

use std::fmt::Write as _;
use std::path::Path;

use forebay_perf::load::{Job, Made, Request};
use forebay_tier::{Error, Result};

/// Writes what a job did.
///
/// # Errors
/// Those of writing the file.
pub fn write(path: &Path, job: &Job, requests: &[Request]) -> Result<()> {
    std::fs::write(path, text(job, requests))
        .map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
}

fn text(job: &Job, requests: &[Request]) -> String {
    let mut text = String::from("fio version 2 iolog\n");
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
