//! Files of results, such as `statistics.jsonl`: one line of JSON for each version.
//!
//! A line is written whole and at once, so that a program that follows the file sees whole lines. Results of
//! an earlier run are never overwritten unless that was asked for.

use forebay_space::{Error, Kind, Result};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Name of the file of the statistics in the output directory.
pub const FILE_NAME: &str = "statistics.jsonl";

/// What to do when the output directory holds results already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Existing {
    /// Refuse.
    #[default]
    Error,
    /// Begin anew.
    Replace,
    /// Keep the lines of versions before the first one that comes: for an analysis that was restarted.
    Continue,
}

/// The file, open for appending.
pub struct ResultFile {
    path: PathBuf,
    existing: Existing,
    file: Option<File>,
}

impl ResultFile {
    /// Makes the directory and checks what is in it; touches no file yet.
    pub fn prepare(directory: &Path, name: &str, existing: Existing) -> Result<ResultFile> {
        std::fs::create_dir_all(directory)
            .map_err(|e| Error::io(format!("cannot create the directory {}", directory.display()), e))?;
        let path = directory.join(name);
        if existing == Existing::Error && path.exists() {
            return Err(Error::new(Kind::Usage, "the output directory holds results already")
                .with("file", path.display())
                .hint("another --out, or --existing replace or continue"));
        }
        Ok(ResultFile { path, existing, file: None })
    }

    /// Writes the line of one version.
    pub fn append(&mut self, version: u64, results: &impl Serialize) -> Result<()> {
        if self.file.is_none() {
            self.file = Some(self.open(version)?);
        }
        let mut line = serde_json::to_vec(results)
            .map_err(|e| Error::new(Kind::Internal, "cannot write results as JSON").caused_by(e))?;
        line.push(b'\n');
        let file = self.file.as_mut().expect("opened above");
        file.write_all(&line).map_err(|e| Error::io(format!("cannot write {}", self.path.display()), e))
    }

    fn open(&self, first: u64) -> Result<File> {
        let kept = match self.existing {
            Existing::Continue if self.path.exists() => self.lines_before(first)?,
            _ => String::new(),
        };
        let failed = |e| Error::io(format!("cannot write {}", self.path.display()), e);
        let mut file = File::create(&self.path).map_err(failed)?;
        file.write_all(kept.as_bytes()).map_err(failed)?;
        Ok(file)
    }

    /// The whole lines of versions before `first`.
    fn lines_before(&self, first: u64) -> Result<String> {
        let text = std::fs::read_to_string(&self.path)
            .map_err(|e| Error::io(format!("cannot read {}", self.path.display()), e))?;
        let version =
            |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?.get("version")?.as_u64();
        let kept = text.lines().filter(|line| version(line).is_some_and(|v| v < first));
        Ok(kept.map(|line| format!("{line}\n")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::statistics::{of_field, Recipe, Statistics, When};
    use super::*;

    fn line(version: u64) -> Statistics {
        let when = When { version, step: version * 10, time: 0.0 };
        of_field(&[0.5f64; 8], [2, 2, 2], when, &Recipe::default()).unwrap()
    }

    fn versions(directory: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(directory.join(FILE_NAME)).unwrap();
        text.lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["version"].as_u64().unwrap())
            .collect()
    }

    fn write(directory: &Path, existing: Existing, range: std::ops::Range<u64>) -> Result<()> {
        let mut file = ResultFile::prepare(directory, FILE_NAME, existing)?;
        range.into_iter().try_for_each(|v| file.append(v, &line(v)))
    }

    #[test]
    fn results_are_kept_replaced_or_continued() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("a/b");
        write(&out, Existing::Error, 0..4).unwrap();
        assert_eq!(write(&out, Existing::Error, 0..4).unwrap_err().kind(), Kind::Usage);
        assert_eq!(versions(&out), [0, 1, 2, 3]);
        // A line that was cut in the middle does not survive.
        let mut file = File::options().append(true).open(out.join(FILE_NAME)).unwrap();
        file.write_all(b"{\"step\":1,\"versi").unwrap();
        write(&out, Existing::Continue, 2..5).unwrap();
        assert_eq!(versions(&out), [0, 1, 2, 3, 4]);
        write(&out, Existing::Replace, 3..5).unwrap();
        assert_eq!(versions(&out), [3, 4]);
    }
}
