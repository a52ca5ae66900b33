//! A private root for each test and short ways to open its spaces.

use forebay_space::{OpenOptions, Reader, Result, Writer};
use std::time::Duration;

/// Where the tests' spaces lie instead of in /dev/shm: on another tier, in the emulated machine.
const POOLS: &str = "DAX_MACHINE_POOLS";

/// A directory under /dev/shm, or where [`POOLS`] says, that goes with the test.
pub struct Root(tempfile::TempDir);

impl Root {
    pub fn new() -> Root {
        let parent = std::env::var_os(POOLS).unwrap_or_else(|| "/dev/shm".into());
        Root(tempfile::Builder::new().prefix("forebay-test-").tempdir_in(parent).expect("a directory"))
    }

    /// A path of a space in it.
    pub fn name(&self, space: &str) -> String {
        format!("{}/{space}", self.0.path().display())
    }

    /// What is left in it.
    pub fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("readable");
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }
}

/// Small and quick to fail.
pub fn options() -> OpenOptions {
    OpenOptions {
        quota_bytes: Some(16 << 20),
        timeout: Duration::from_secs(20),
        component: Some("test".into()),
        ..OpenOptions::default()
    }
}

pub fn ranked(rank: u32, size: u32) -> OpenOptions {
    OpenOptions { rank: Some(rank), size: Some(size), ..options() }
}

pub fn writer(name: &str, rank: u32, size: u32) -> Result<Writer> {
    Writer::open(name, &ranked(rank, size))
}

pub fn reader(name: &str, rank: u32, size: u32) -> Result<Reader> {
    Reader::open(name, &OpenOptions { component: Some("reader".into()), ..ranked(rank, size) })
}
