//! A place that is a directory of a file system: data files are pools of a tier, the rest are small files.
//!
//! Data files of steps that are dropped are kept as spares and written again: their blocks are allocated and (on
//! memory) their pages faulted in, which costs more than the copy. A spare has a name that says whose it is, so that
//! a restarted rank takes over its own and no other's.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use forebay_tier::adapter::fault::{Fault, FaultCounts, FaultPlan};
use forebay_tier::host::fs::{self, File};
use forebay_tier::host::sync::{Mutex, MutexGuard};
use forebay_tier::{device, own_directory, Access, Device, Durability, Error, Kind, Result, TierKind};

use super::{call, Blob, Part, Place, Written, BLOCK_BYTES};
use crate::format::{damaged, CHUNK_BYTES};

/// Least bytes that are worth a second thread: starting one takes as long as copying some 200 KiB.
const THREAD_BYTES_MIN: usize = 1 << 20;

/// Most threads that copy: more do not make memory faster.
const THREADS_MAX: usize = 8;

/// What a spare's name begins with.
const SPARE: &str = "spare-";

/// See the file's head.
pub struct Directory {
    path: PathBuf,
    tier: TierKind,
    durability: Durability,
    /// Distinguishes this process's spares; no other process may take them.
    owner: String,
    files: Mutex<Files>,
    faults: Option<(FaultPlan, Arc<FaultCounts>)>,
}

/// The data files of this process.
#[derive(Default)]
struct Files {
    /// By name.
    held: HashMap<String, Arc<dyn Device>>,
    /// Free to be written again, by name.
    spares: Vec<(String, Arc<dyn Device>)>,
    /// Numbers the names of spares.
    spares_made: u64,
    /// Most data files, held and spare; None: any number.
    files_max: Option<usize>,
    /// Most bytes of them; None: any number.
    bytes_max: Option<u64>,
}

impl Directory {
    /// The directory `path`, made if it is missing (0700), with data files on `tier`. `owner` names the rank whose
    /// spares are its own.
    ///
    /// # Errors
    /// `NotPossibleHere` where the directory is not on that tier; `PermissionDenied` also where it is not this user's
    /// alone; `Io`.
    pub fn new(path: &Path, tier: TierKind, owner: &str) -> Result<Directory> {
        make_own(path)?;
        Directory::existing(path, tier, owner)
    }

    /// As [`Directory::new`] for a directory that must be there.
    ///
    /// # Errors
    /// `PeerMissing` without such a directory.
    pub fn existing(path: &Path, tier: TierKind, owner: &str) -> Result<Directory> {
        if !path.is_dir() {
            let error = Error::new(Kind::PeerMissing, format!("there is no directory {}", path.display()));
            return Err(error.hint("forebay ckpt list PATH shows the levels of a checkpoint"));
        }
        let found = device::detect(path)?;
        // The simulator's disks lie in memory.
        let on_memory = found == TierKind::Dram && (!cfg!(forebay_simulated) || tier.is_memory());
        let fits = match tier {
            TierKind::Dram | TierKind::Numa(_) | TierKind::Interleaved(_) => on_memory,
            TierKind::Pmem => found == TierKind::Pmem,
            TierKind::Direct => !on_memory,
            TierKind::File => true,
            TierKind::DevDax | TierKind::Object => false,
        };
        if !fits {
            return Err(Error::new(
                Kind::NotPossibleHere,
                format!("{} is not on tier {tier}", path.display()),
            )
            .with("found", found)
            .hint(match tier.is_memory() {
                true => "levels in memory lie below FOREBAY_DIR: set it to a directory on tmpfs",
                false => "give the directory without a tier: it is detected",
            }));
        }
        Ok(Directory::of(path, tier, on_memory, owner))
    }

    /// Lets operations on data files fail as planned.
    pub fn with_faults(mut self, plan: FaultPlan, counts: Arc<FaultCounts>) -> Directory {
        self.faults = Some((plan, counts));
        self
    }

    /// At most so many data files of this process at a time, spares included, and at most so many bytes of them. Those
    /// that are retired are written again.
    pub fn with_files_max(self, files_max: usize, bytes_max: Option<u64>) -> Directory {
        self.files().files_max = Some(files_max);
        self.files().bytes_max = bytes_max;
        self
    }

    /// As [`Directory::existing`] for looking only: one that is not there is an empty one.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn for_looking(path: &Path, tier: TierKind) -> Result<Directory> {
        match path.is_dir() {
            true => Directory::existing(path, tier, "look"),
            false => Ok(Directory::of(path, tier, tier.is_memory(), "look")),
        }
    }

    fn of(path: &Path, tier: TierKind, on_memory: bool, owner: &str) -> Directory {
        #[cfg(test)]
        let on_memory = on_memory && (tier.is_memory() || !super::call::is_disk(path));
        Directory {
            path: path.to_path_buf(),
            tier,
            durability: if on_memory { Durability::Process } else { Durability::Power },
            owner: owner.to_string(),
            files: Mutex::default(),
            faults: None,
        }
    }

    /// Takes over the spares that an earlier process of this rank left.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn adopt_spares(&self) -> Result<()> {
        let prefix = format!("{SPARE}{}-", self.owner);
        for name in self.list("")?.into_iter().filter(|name| name.starts_with(&prefix)) {
            // 32 bits: no process makes as many, and more can be made after it.
            let number = name[prefix.len()..].parse::<u32>().ok();
            match (number, self.device_open(&name, Access::Write)) {
                (Some(number), Ok(device)) => {
                    let mut files = self.files();
                    files.spares_made = files.spares_made.max(u64::from(number) + 1);
                    files.spares.push((name, device));
                }
                // No pool any more, or none that was made here: of no use to anybody.
                _ => self.remove(&name)?,
            }
        }
        Ok(())
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, name: &str) -> PathBuf {
        match name {
            "" => self.path.clone(),
            name => self.path.join(name),
        }
    }

    fn around(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        match &self.faults {
            Some((plan, counts)) => Arc::new(Fault::counting(device, plan.clone(), counts.clone())),
            None => device,
        }
    }

    fn device_open(&self, name: &str, access: Access) -> Result<Arc<dyn Device>> {
        let path = self.at(name);
        call(&path, || device::open(self.tier, &path, access)).map(|device| self.around(device))
    }

    /// A new data file of this length. One of that name is of a call that failed, or of a process that was killed.
    fn device_create(&self, name: &str, capacity: u64) -> Result<Arc<dyn Device>> {
        self.remove(name)?;
        let path = self.at(name);
        let device = call(&path, || device::create(self.tier, &path, capacity))?;
        Ok(self.around(device))
    }

    /// A data file of exactly this length under this name: a spare, or a new one.
    fn device_for(&self, name: &str, bytes: u64) -> Result<Arc<dyn Device>> {
        let capacity = capacity_of(bytes);
        let mut others = std::mem::take(&mut self.files().spares);
        if let Some(at) = others.iter().position(|(_, device)| device.capacity() == capacity) {
            let (spare, device) = others.swap_remove(at);
            self.files().spares.append(&mut others);
            // One that keeps its name is lost to this process, and goes.
            let renamed = self.rename(&spare, name).inspect_err(|_| drop(self.remove(&spare)));
            return renamed.map(|()| device);
        }
        // Spares of another length are of no use any more: the program protects other arrays now.
        others.iter().try_for_each(|(spare, _)| self.remove(spare))?;
        self.device_create(name, capacity)
    }

    fn fill(&self, device: &dyn Device, bytes: u64, parts: &[Part<'_>]) -> Result<Vec<Vec<u32>>> {
        let path = &self.path;
        call(path, || device.prepare(0..capacity_of(bytes)))?;
        let threads = if self.tier == TierKind::Direct { 1 } else { threads() };
        let sums = call(path, || copy_parallel(device, parts, threads))?;
        if self.durability > Durability::Process {
            call(path, || device.persist_written(0..bytes))?;
        }
        Ok(sums)
    }
}

impl Place for Directory {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn tier(&self) -> TierKind {
        self.tier
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        make_dirs(&self.at(dir))
    }

    fn store_data(
        &self,
        name: &str,
        bytes: u64,
        parts: &[Part<'_>],
    ) -> Result<(Vec<Vec<u32>>, Option<Written>)> {
        let device = self.device_for(name, bytes)?;
        let written = self.fill(&*device, bytes, parts);
        let kept = self.files().files_max.is_some();
        match written {
            Ok(sums) => {
                if kept {
                    self.files().held.insert(name.to_string(), device.clone());
                }
                Ok((sums, device.byte_addressable().then_some(device)))
            }
            Err(e) => {
                // Half a content under a name that nothing refers to: it may go, and its space with it.
                self.remove(name)?;
                Err(e)
            }
        }
    }

    fn store_blocks(
        &self,
        name: &str,
        bytes: u64,
        next: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let device = self.device_create(name, capacity_of(bytes))?;
        let mut write = || {
            call(&self.path, || device.prepare(0..capacity_of(bytes)))?;
            let mut block = vec![0; BLOCK_BYTES.min(bytes as usize)];
            let (mut crcs, mut at) = (Vec::new(), 0);
            while at < bytes {
                let part = &mut block[..(bytes - at).min(BLOCK_BYTES as u64) as usize];
                next(at, part)?;
                call(&self.path, || device.write_checksummed(at, part, CHUNK_BYTES, &mut crcs))?;
                at += part.len() as u64;
            }
            if self.durability > Durability::Process && bytes > 0 {
                call(&self.path, || device.persist_written(0..bytes))?;
            }
            Ok(crcs)
        };
        write().inspect_err(|_| {
            let _ = self.remove(name);
        })
    }

    fn store_packed(&self, name: &str, bytes: u64, parts: &[Part<'_>]) -> Result<Vec<Vec<u32>>> {
        let device = self.device_create(name, capacity_of(bytes))?;
        let written = self.fill(&*device, bytes, parts);
        if written.is_err() {
            self.remove(name)?;
        }
        written
    }

    fn store(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.at(name);
        let durable = self.durability > Durability::Process;
        let write = || {
            let mut options = File::options();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = call(&path, || options.open(&path))?;
            call(&path, || file.write_all(content))?;
            if durable {
                call(&path, || file.sync_data())?;
            }
            Ok(())
        };
        write().map_err(|e: std::io::Error| Error::io(format!("cannot write {}", path.display()), e))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.at(from), self.at(to));
        let renamed = call(&from, || fs::rename(&from, &to));
        renamed.map_err(|e| Error::io(format!("cannot rename {}", from.display()), e))
    }

    fn sync(&self, dir: &str) -> Result<()> {
        if self.durability == Durability::Process {
            return Ok(());
        }
        let path = self.at(dir);
        let synced = call(&path, || File::open(&path)).and_then(|dir| call(&path, || dir.sync_all()));
        synced.map_err(|e| Error::io(format!("cannot sync the directory {}", path.display()), e))
    }

    fn load(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let path = self.at(name);
        let reading = |e| Error::io(format!("cannot read {}", path.display()), e);
        match call(&path, || fs::metadata(&path)) {
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) => Err(reading(e)),
            Ok(meta) if !meta.is_file() || meta.len() > bytes_max => {
                Err(damaged(&path.display().to_string(), "it is not a regular file of a valid size")
                    .with("bytes", meta.len()))
            }
            Ok(_) => match call(&path, || fs::read(&path)) {
                Err(e) if is_missing(&e) => Ok(None),
                read => read.map(Some).map_err(reading),
            },
        }
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Blob>>> {
        let path = self.at(name);
        match call(&path, || fs::symlink_metadata(&path)) {
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) => Err(Error::io(format!("cannot stat {}", path.display()), e)),
            Ok(_) => Ok(Some(Box::new(Opened(self.device_open(name, Access::Read)?)))),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let path = self.at(dir);
        let listing = |e| Error::io(format!("cannot list {}", path.display()), e);
        let entries = match call(&path, || fs::read_dir(&path)) {
            Err(e) if is_missing(&e) => return Ok(Vec::new()),
            entries => entries.map_err(listing)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // Names that are no text are none of ours.
            names.extend(entry.map_err(listing)?.file_name().into_string());
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.files().held.remove(name);
        let path = self.at(name);
        match call(&path, || fs::remove_file(&path)) {
            Err(e) if !is_missing(&e) => Err(Error::io(format!("cannot remove {}", path.display()), e)),
            _ => Ok(()),
        }
    }

    fn retire(&self, name: &str) -> Result<bool> {
        let mut files = self.files();
        let Some(device) = files.held.remove(name) else {
            drop(files);
            return self.remove(name).map(|()| true);
        };
        if Arc::strong_count(&device) > 1 {
            files.held.insert(name.to_string(), device);
            return Ok(false);
        }
        let spare = format!("{SPARE}{}-{}", self.owner, files.spares_made);
        files.spares_made += 1;
        drop(files);
        // One that keeps its name counts no more, and goes with the next call.
        self.rename(name, &spare)?;
        self.files().spares.push((spare, device));
        Ok(true)
    }

    fn let_be(&self, name: &str) {
        self.files().held.remove(name);
    }

    fn has_capacity(&self) -> bool {
        let files = self.files();
        files.files_max.is_none_or(|most| files.held.len() < most)
    }

    fn files_max(&self, bytes: u64) -> usize {
        let mut files = self.files();
        let by_bytes = files.bytes_max.map_or(usize::MAX, |most| (most / capacity_of(bytes)) as usize);
        let most = files.files_max.unwrap_or(usize::MAX).min(by_bytes);
        files.files_max = files.files_max.map(|_| most);
        most
    }

    fn prepare(&self, bytes: u64) -> Result<()> {
        let (capacity, most) = (capacity_of(bytes), self.files_max(bytes));
        loop {
            let name = {
                let mut files = self.files();
                if files.held.len() + files.spares.len() >= most {
                    return Ok(());
                }
                files.spares_made += 1;
                format!("{SPARE}{}-{}", self.owner, files.spares_made - 1)
            };
            let device = self.device_create(&name, capacity)?;
            if let Err(e) = device.prepare(0..capacity) {
                self.remove(&name)?;
                return Err(e);
            }
            self.files().spares.push((name, device));
        }
    }

    fn remove_dir(&self, dir: &str) -> Result<bool> {
        let path = self.at(dir);
        match call(&path, || fs::remove_dir(&path)) {
            Ok(()) => Ok(true),
            Err(e) if is_missing(&e) => Ok(true),
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
            Err(e) => Err(Error::io(format!("cannot remove {}", path.display()), e)),
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A spare is of use to a restarted rank only on memory, where a kill leaves it too; elsewhere it is not missed.
        let spares = std::mem::take(&mut self.files().spares);
        for (name, _) in spares {
            let _ = fs::remove_file(self.at(&name));
        }
    }
}

/// A data file that is read.
struct Opened(Arc<dyn Device>);

impl Blob for Opened {
    fn bytes(&self) -> u64 {
        self.0.capacity()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.0.capacity()) {
            return Err(damaged(&self.0.path().display().to_string(), "it is too short")
                .with("bytes", self.0.capacity()));
        }
        self.0.read(offset, out)
    }
}

fn is_missing(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Makes a directory and those above it that are missing, all of them this user's alone.
pub(crate) fn make_dirs(path: &Path) -> Result<()> {
    let made = call(path, || fs::DirBuilder::new().recursive(true).mode(0o700).create(path));
    made.map_err(|e| Error::io(format!("cannot create the directory {}", path.display()), e))
}

/// As [`make_dirs`], for one whose files no other user may replace; checks one that is there.
///
/// # Errors
/// `PermissionDenied` also when it is another user's, or writable by others.
pub(crate) fn make_own(path: &Path) -> Result<()> {
    make_dirs(path)?;
    check_own(path)
}

/// Checks that a directory is this user's alone, if it is there.
///
/// # Errors
/// `PermissionDenied`; `Io`.
pub(crate) fn check_own(path: &Path) -> Result<()> {
    let finding = |e| Error::io(format!("cannot resolve the path {}", path.display()), e);
    let hint =
        "a checkpoint belongs to one user, in directories with mode 0700: name another one, or chmod go-w it";
    own_directory::check_own(
        &std::path::absolute(path).map_err(finding)?,
        "is not used for checkpoints",
        hint,
    )
}

/// The length of a data file: whole chunks, which are whole pages everywhere.
fn capacity_of(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(CHUNK_BYTES as u64)
}

/// How many threads copy.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS_MAX)
}

/// Whole chunks of one part: the part's index, the chunks before, and the bytes.
struct Job<'a> {
    part: usize,
    first_chunk: usize,
    offset: u64,
    bytes: &'a [u8],
}

/// Cuts the parts into about `count` jobs of whole chunks.
fn jobs<'a>(parts: &[Part<'a>], count: usize) -> Vec<Job<'a>> {
    let total: usize = parts.iter().map(|part| part.bytes.len()).sum();
    let share = total.div_ceil(count.max(1)).max(THREAD_BYTES_MIN).next_multiple_of(CHUNK_BYTES);
    let mut jobs = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        for (nth, bytes) in part.bytes.chunks(share).enumerate() {
            let at = nth * share;
            jobs.push(Job {
                part: index,
                first_chunk: at / CHUNK_BYTES,
                offset: part.offset + at as u64,
                bytes,
            });
        }
    }
    jobs
}

/// Copies all parts in, on several threads, and returns the checksums of their chunks.
fn copy_parallel(device: &dyn Device, parts: &[Part<'_>], threads: usize) -> Result<Vec<Vec<u32>>> {
    let jobs = jobs(parts, threads);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Vec<u32>)>> {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return Ok(done) };
            let mut crcs = Vec::with_capacity(job.bytes.len().div_ceil(CHUNK_BYTES));
            device.write_checksummed(job.offset, job.bytes, CHUNK_BYTES, &mut crcs)?;
            done.push((at, crcs));
        }
    };
    let helpers = threads.min(jobs.len()).saturating_sub(1);
    let mut found = std::thread::scope(|scope| {
        // Where no thread can be started, the others do its part.
        let started: Vec<_> =
            (0..helpers).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut found = work()?;
        for thread in started {
            let more = thread.join().map_err(|_| Error::new(Kind::Internal, "a copying thread panicked"))?;
            found.extend(more?);
        }
        Ok::<_, Error>(found)
    })?;
    found.sort_unstable_by_key(|(at, _)| *at);
    let mut sums: Vec<Vec<u32>> = parts.iter().map(|_| Vec::new()).collect();
    for (at, crcs) in found {
        debug_assert_eq!(sums[jobs[at].part].len(), jobs[at].first_chunk);
        sums[jobs[at].part].extend(crcs);
    }
    Ok(sums)
}
