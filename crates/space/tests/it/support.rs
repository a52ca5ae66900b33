//! A private root for each test and short ways to open its spaces.

use forebay_space::{Horizon, Mode, OpenOptions, Reader, Result, TierKind, Writer};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the tests' spaces lie instead of in /dev/shm: on another tier, in the emulated machine.
const POOLS: &str = "DAX_MACHINE_POOLS";

/// A directory under /dev/shm, or where [`POOLS`] says, that goes with the test.
pub struct Root(tempfile::TempDir);

/// Whether [`POOLS`] says another place.
pub fn is_elsewhere() -> bool {
    std::env::var_os(POOLS).is_some()
}

/// A deadline of a call that has to fail for want of space. On persistent memory in the emulated machine preparing a
/// segment takes longer than elsewhere, and the deadline would end that first.
pub fn soon() -> Duration {
    match is_elsewhere() {
        true => Duration::from_secs(10),
        false => Duration::from_millis(500),
    }
}

/// Whether a directory takes pools that are written past the page cache; says so when it does not.
pub fn has_direct(dir: &Path) -> bool {
    let probe = dir.join("probe-direct");
    let made = forebay_tier::create(TierKind::Direct, &probe, 4096);
    let _ = std::fs::remove_file(&probe);
    made.map_err(|e| crate::skips::skipped("spaces on tier direct", e.message())).is_ok()
}

/// The tier of a [`Root`], for tests that name it, and a horizon that it takes.
pub fn tier_of_roots() -> (TierKind, Horizon) {
    match is_elsewhere() {
        true => (TierKind::Pmem, Horizon::Epoch),
        false => (TierKind::Dram, Horizon::None),
    }
}

/// A file of a space's shared state, which lies beside a pool in memory, and in memory for any other.
pub fn shared_state(name: &str, file: &str) -> PathBuf {
    let beside = Path::new(name).join(file);
    if beside.exists() {
        return beside;
    }
    let uuid = forebay_space::inspect(name).expect("a space").uuid;
    let inode = std::fs::metadata(Path::new(name).join("pool")).expect("a pool").ino();
    forebay_space::root().expect("a root").join(format!(".soft-{uuid}-{inode:x}")).join(file)
}

impl Root {
    pub fn new() -> Root {
        Root::below(std::env::var_os(POOLS).unwrap_or_else(|| "/dev/shm".into()).as_ref())
    }

    /// In memory, wherever the others lie: for what memory alone does, or cannot do.
    pub fn in_memory() -> Root {
        Root::below(Path::new("/dev/shm"))
    }

    /// Where temporary files lie, whatever that is on.
    pub fn on_disk() -> Root {
        Root::below(&std::env::temp_dir())
    }

    fn below(parent: &Path) -> Root {
        Root(tempfile::Builder::new().prefix("forebay-test-").tempdir_in(parent).expect("a directory"))
    }

    /// The shared state in memory of the spaces on a disk in it.
    fn shared_state(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let entries = forebay_space::root().ok().and_then(|root| std::fs::read_dir(root).ok());
        let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        paths.filter(|path| {
            std::fs::read_link(path.join("pool")).is_ok_and(|pool| pool.starts_with(self.0.path()))
        })
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

impl Drop for Root {
    fn drop(&mut self) {
        for shared in self.shared_state() {
            let _ = std::fs::remove_dir_all(shared);
        }
    }
}

/// Small and quick to fail. Goes on with what is there: what the modes do is asked in `opening`.
pub fn options() -> OpenOptions {
    OpenOptions {
        quota_bytes: Some(16 << 20),
        timeout: Duration::from_secs(20),
        component: Some("test".into()),
        mode: Mode::Append,
        finished: true,
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
