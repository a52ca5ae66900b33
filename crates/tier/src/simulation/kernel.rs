//! What the simulated machine keeps for its processes: record locks, futexes, mappings, the boot.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::mutation::{self, Site};
use super::names::{self, Names};
use super::random::Random;
use super::scheduler::{self, block, point_at, with_kernel, Key, What};

/// What is done to memory for the simulator, whose own code is safe: it comes with every mapping.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// Unmaps a mapping (where, how many bytes) whose owner never runs again.
    pub(crate) unmap: fn(usize, usize),
    /// Stores a word (where, what, its 4 or 8 bytes).
    pub(crate) store: fn(usize, u64, usize),
}

/// See [`Memory`].
pub(super) static MEMORY: OnceLock<Memory> = OnceLock::new();

/// A mapping of a file by any simulated process.
#[derive(Clone, Copy)]
struct Mapped {
    len: usize,
    file: (u64, u64),
}

/// Process, descriptor, and whether it holds the byte alone.
type Holder = (u32, i32, bool);

/// See the file's head.
#[derive(Default)]
pub(super) struct Kernel {
    /// Owner of each locked byte of a file.
    locks: HashMap<(u64, u64, u64), u32>,
    /// Holders of each byte of a file that an open file description locked.
    descriptions: BTreeMap<(u64, u64, u64), Vec<Holder>>,
    mappings: BTreeMap<usize, Mapped>,
    /// Of each file what is certainly on its medium: its content at the last flush. None: the power is never cut.
    flushed: Option<HashMap<(u64, u64), Vec<u8>>>,
    /// Changes of names that are not. None: as above.
    pub(super) names: Option<Names>,
    /// What a process has one of, by process and by the address that stands for it.
    local: HashMap<(u32, usize), &'static (dyn Any + Send + Sync)>,
}

impl Kernel {
    pub(super) fn new(keeps_flushed: bool) -> Kernel {
        Kernel {
            flushed: keeps_flushed.then(HashMap::new),
            names: keeps_flushed.then(Names::default),
            ..Kernel::default()
        }
    }

    pub(super) fn release_locks(&mut self, pid: u32) {
        self.locks.retain(|_, owner| *owner != pid);
        self.descriptions.values_mut().for_each(|holders| holders.retain(|(owner, ..)| *owner != pid));
    }

    /// Unmaps what killed processes had mapped: none of their threads runs again.
    pub(super) fn unmap_left(&self) {
        for (base, mapped) in &self.mappings {
            (MEMORY.get().expect("it came with the mapping").unmap)(*base, mapped.len);
        }
    }

    fn place_of(&self, address: usize) -> Option<(u64, u64, u64)> {
        let (base, mapped) = self.mappings.range(..=address).next_back()?;
        let offset = address - base;
        (offset < mapped.len).then_some((mapped.file.0, mapped.file.1, offset as u64))
    }
}

static BOOT: Mutex<(u64, &str)> = Mutex::new((0, "00000000-0000-4000-8000-000000000000"));

/// The id of this boot of the simulated machine.
pub fn boot() -> &'static str {
    BOOT.lock().expect("never poisoned").1
}

/// The machine starts again: another boot id. Files stay; the caller removes those of memory tiers.
pub fn reboot() {
    let mut boot = BOOT.lock().expect("never poisoned");
    boot.0 += 1;
    boot.1 = format!("00000000-0000-4000-8000-{:012x}", boot.0).leak();
}

fn key_of(file: &File) -> io::Result<(u64, u64)> {
    let meta = file.metadata()?;
    Ok((meta.dev(), meta.ino()))
}

/// Takes a record lock, without waiting; false: another process holds it. None: the caller is not simulated.
#[track_caller]
pub(crate) fn record_lock(file: &File, byte: u64) -> Option<io::Result<bool>> {
    let pid = scheduler::pid()?;
    point_at(What::Lock, Location::caller());
    let at = Location::caller();
    Some(key_of(file).map(|(device, inode)| {
        with_kernel(|kernel| match kernel.locks.get(&(device, inode, byte)) {
            Some(owner) if *owner != pid => {
                let lost = mutation::applies(Site::LostLock, at, || true);
                if lost {
                    mutation::made_a_difference();
                }
                lost
            }
            _ => {
                kernel.locks.insert((device, inode, byte), pid);
                true
            }
        })
    }))
}

/// Releases a record lock.
#[track_caller]
pub(crate) fn record_unlock(file: &File, byte: u64) -> Option<io::Result<()>> {
    let pid = scheduler::pid()?;
    point_at(What::Lock, Location::caller());
    Some(key_of(file).map(|(device, inode)| {
        with_kernel(|kernel| {
            if kernel.locks.get(&(device, inode, byte)) == Some(&pid) {
                kernel.locks.remove(&(device, inode, byte));
            }
        })
    }))
}

/// A descriptor of a file was closed: the process loses every record lock on that file, as the kernel does it.
pub(super) fn closed(file: (u64, u64)) {
    if let Some(pid) = scheduler::pid() {
        with_kernel(|kernel| kernel.locks.retain(|at, owner| *owner != pid || (at.0, at.1) != file));
    }
}

/// What a file or directory holds now is on its medium, or with a mutation is not.
#[track_caller]
pub(crate) fn flushed(file: &File) {
    if scheduler::me().is_none() || with_kernel(|kernel| kernel.flushed.is_none()) {
        return;
    }
    let at = Location::caller();
    if mutation::applies(Site::LostFlush, at, || is_unflushed(file)) {
        if is_unflushed(file) {
            mutation::made_a_difference();
        }
        return;
    }
    if let Some(folder) = folder_of(file) {
        return names::flushed(&folder);
    }
    if let (Ok(file), Ok(content)) = (key_of(file), content_of(file)) {
        with_kernel(|kernel| kernel.flushed.as_mut().map(|flushed| flushed.insert(file, content)));
    }
}

/// Whether a power cut may take something of a file or directory back.
fn is_unflushed(file: &File) -> bool {
    if let Some(folder) = folder_of(file) {
        return names::is_unflushed(&folder);
    }
    let (Ok(file), Ok(content)) = (key_of(file), content_of(file)) else { return false };
    with_kernel(|kernel| {
        let flushed = kernel.flushed.as_ref().and_then(|flushed| flushed.get(&file));
        flushed.map_or(!content.is_empty(), |flushed| *flushed != content)
    })
}

fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The path of a directory.
fn folder_of(file: &File) -> Option<PathBuf> {
    std::fs::read_link(path_of(file)).ok().filter(|path| path.is_dir())
}

/// By another descriptor: the file's own may be for writing only.
fn content_of(file: &File) -> io::Result<Vec<u8>> {
    std::fs::read(path_of(file))
}

/// A block device writes so many bytes whole.
const BLOCK_BYTES: usize = 512;

/// The power fails: each block of the files in `folder` that was written since the file was flushed holds what it held
/// then, zeros in a file that never was, or what was written last. Names and sizes stay: [`super::cut_names`] comes
/// first. The caller has killed every other process, removes what lies in memory, and goes on with the next boot.
pub fn cut_power(folder: &Path, random: &mut Random) -> io::Result<()> {
    let kept = *random.pick(&[0, 50, 50, 90, 100]);
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            cut_power(&path, random)?;
            continue;
        }
        let file = File::options().read(true).write(true).open(&path)?;
        let key = key_of(&file)?;
        let mut content = std::fs::read(&path)?;
        let known = with_kernel(|kernel| kernel.flushed.as_mut().and_then(|flushed| flushed.remove(&key)));
        let mut before = known.unwrap_or_default();
        before.resize(content.len(), 0);
        for (now, before) in content.chunks_mut(BLOCK_BYTES).zip(before.chunks(BLOCK_BYTES)) {
            if now != before && !random.percent(kept) {
                now.copy_from_slice(before);
            }
        }
        file.write_all_at(&content, 0)?;
        with_kernel(|kernel| kernel.flushed.as_mut().map(|flushed| flushed.insert(key, content)));
    }
    Ok(())
}

/// Who else holds a byte.
#[track_caller]
pub(crate) fn record_lock_holder(file: &File, byte: u64) -> Option<io::Result<Option<i32>>> {
    let pid = scheduler::pid()?;
    point_at(What::Lock, Location::caller());
    Some(key_of(file).map(|(device, inode)| {
        let owner = with_kernel(|kernel| kernel.locks.get(&(device, inode, byte)).copied());
        owner.filter(|owner| *owner != pid).map(|owner| owner as i32)
    }))
}

/// Whether another process holds a record lock on a byte of a range.
#[track_caller]
pub(crate) fn is_record_locked(file: &File, bytes: &Range<u64>) -> Option<io::Result<bool>> {
    let pid = scheduler::pid()?;
    point_at(What::Lock, Location::caller());
    Some(key_of(file).map(|(device, inode)| {
        with_kernel(|kernel| {
            kernel
                .locks
                .iter()
                .any(|(at, owner)| (at.0, at.1) == (device, inode) && bytes.contains(&at.2) && *owner != pid)
        })
    }))
}

/// Takes a lock of an open file description, without waiting; false: another one holds it.
#[track_caller]
pub(crate) fn description_lock(file: &File, byte: u64, exclusive: bool) -> Option<io::Result<bool>> {
    let pid = scheduler::pid()?;
    point_at(What::Lock, Location::caller());
    let (at, descriptor) = (Location::caller(), file.as_raw_fd());
    Some(key_of(file).map(|(device, inode)| {
        with_kernel(|kernel| {
            let holders = kernel.descriptions.entry((device, inode, byte)).or_default();
            if holders.iter().any(|(_, other, held)| *other != descriptor && (exclusive || *held)) {
                if !mutation::applies(Site::LostLock, at, || true) {
                    return false;
                }
                mutation::made_a_difference();
            }
            holders.retain(|(_, other, _)| *other != descriptor);
            holders.push((pid, descriptor, exclusive));
            true
        })
    }))
}

/// Releases what an open file description holds of a range.
#[track_caller]
pub(crate) fn description_unlock(file: &File, bytes: &Range<u64>) -> Option<io::Result<()>> {
    scheduler::pid()?;
    point_at(What::Lock, Location::caller());
    let descriptor = file.as_raw_fd();
    Some(key_of(file).map(|(device, inode)| {
        with_kernel(|kernel| {
            let held =
                kernel.descriptions.range_mut((device, inode, bytes.start)..(device, inode, bytes.end));
            held.for_each(|(_, holders)| holders.retain(|(_, other, _)| *other != descriptor));
        })
    }))
}

/// Whether another open file description holds a byte of a range.
#[track_caller]
pub(crate) fn is_description_locked(file: &File, bytes: &Range<u64>) -> Option<io::Result<bool>> {
    scheduler::pid()?;
    point_at(What::Lock, Location::caller());
    let descriptor = file.as_raw_fd();
    Some(key_of(file).map(|(device, inode)| {
        with_kernel(|kernel| {
            let held = kernel.descriptions.range((device, inode, bytes.start)..(device, inode, bytes.end));
            held.flat_map(|(_, holders)| holders).any(|(_, other, _)| *other != descriptor)
        })
    }))
}

/// A mapping was made.
pub(crate) fn map_added(base: usize, len: usize, file: &File, memory: Memory) {
    MEMORY.get_or_init(|| memory);
    if let (true, Ok(file)) = (scheduler::me().is_some(), key_of(file)) {
        with_kernel(|kernel| kernel.mappings.insert(base, Mapped { len, file }));
        mutation::mapped(base..base + len);
    }
}

/// A mapping is about to go.
pub(crate) fn map_removed(base: usize) {
    if scheduler::me().is_some() {
        with_kernel(|kernel| kernel.mappings.remove(&base));
    }
}

pub(super) fn futex_key(address: usize) -> Key {
    let place = with_kernel(|kernel| kernel.place_of(address));
    let (device, inode, offset) = place.unwrap_or((0, 0, address as u64));
    Key::Futex(device, inode, offset)
}

/// Who finds so often in a row that a word is not what it waits on does not look at the word.
const SPINS_MAX: u32 = 12;

thread_local! {
    /// On which word the thread did not sleep, with what it expected there, and how often in a row.
    static SPINS: Cell<(Key, u32, u32)> = const { Cell::new((Key::Sleep, 0, 0)) };
}

/// A thread did not sleep, because the word holds something else.
fn spins(key: Key, expected: u32) {
    let (last, wanted, times) = SPINS.get();
    let times = if (last, wanted) == (key, expected) { times + 1 } else { 1 };
    SPINS.set((key, expected, times));
    if times > SPINS_MAX {
        scheduler::fail(format!(
            "a thread asks over and over to sleep while a word is {expected}, and it is not"
        ));
    }
}

/// As the system call: sleeps while the word holds `expected`. False only when the time passed.
#[track_caller]
pub(crate) fn futex_wait(
    word: &std::sync::atomic::AtomicU32,
    expected: u32,
    timeout: Duration,
) -> Option<bool> {
    scheduler::me()?;
    point_at(What::Call("futex"), Location::caller());
    let key = futex_key(word.as_ptr() as usize);
    if word.load(SeqCst) != expected {
        spins(key, expected);
        return Some(true);
    }
    SPINS.set((Key::Sleep, 0, 0));
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let woken = block(key, Some(timeout_ns), "a word", Location::caller());
    if !woken && word.load(SeqCst) != expected {
        scheduler::overslept();
    }
    Some(woken)
}

/// As the system call.
#[track_caller]
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32, count: i32) -> Option<()> {
    scheduler::me()?;
    let at = Location::caller();
    point_at(What::Wake, at);
    let key = futex_key(word.as_ptr() as usize);
    scheduler::wake(
        key,
        count.max(0) as usize,
        mutation::applies(Site::LostWake, at, || scheduler::is_waited_for(key)),
    );
    Some(())
}

/// The one `T` of the calling simulated process that `address` stands for. Never freed.
pub(crate) fn local_state<T: Any + Send + Sync>(address: usize, make: impl Fn() -> T) -> Option<&'static T> {
    let pid = scheduler::pid()?;
    if let Some(known) = with_kernel(|kernel| kernel.local.get(&(pid, address)).copied()) {
        return known.downcast_ref();
    }
    let fresh: &'static T = Box::leak(Box::new(make()));
    with_kernel(|kernel| kernel.local.insert((pid, address), fresh));
    Some(fresh)
}
