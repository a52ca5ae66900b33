//! Finding a space and opening it.
//!
//! A space is a directory: `pool` (the durable part), `attributes.json`, `tiers.json`, `lock`, and, on a memory tier,
//! its shared state ([`crate::control::shared_state`]). A new directory appears under its name whole, by one rename
//! ([`crate::open::create`]). It goes by being renamed away ([`crate::open::directory`]), under the same lock that
//! every opener takes, so that no process opens half a space.

use forebay_config::Retention;
use forebay_tier::host::fs::{self, File};
use forebay_tier::host::time::Instant;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_log::format::Superblock;
use forebay_tier::adapter::throttle::Locality;
use forebay_tier::liveness::MembersFile;
use forebay_tier::{plain, Access, Device, Error, Horizon, Kind, Result, TierKind};

use crate::control::cursors::{CursorsFile, CURSORS_FILE};
use crate::control::ownership::{FileId, Ownership};
use crate::control::shared_state::{
    make_soft_dir, members_of, open_or_rebuild_control, remove_unused_soft_dir, soft_dir_of, Soft,
    CONTROL_FILE, LOCK_SETUP, MEMBERS_FILE,
};
use crate::control::{head, Control, GranuleState};
use crate::open::contents;
use crate::open::directory::remove_directory;
use crate::place::pool::{
    check_granules, check_owner, has_other_name, read_superblock, retention_of, POOL_FILE,
};
use crate::place::tiers::Tiers;
use crate::place::{emulated, name, trial};

/// What is taken of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fill {
    /// Bytes of records.
    pub used_bytes: u64,
    /// Bytes of segments, those that are prepared included.
    pub reserved_bytes: u64,
    /// Most bytes of segments.
    pub quota_bytes: u64,
}

/// An opened space: its pool mapped, its control segment mapped, its members file open.
pub struct Attachment {
    /// The name it was opened by.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    soft_dir: PathBuf,
    /// What the first pool says of itself; its capacity is that of all pools.
    pub superblock: Superblock,
    /// The pool that lanes are written in.
    pub first: Arc<dyn Device>,
    /// All pools behind one another, the first one first.
    pub device: Arc<dyn Device>,
    /// Lower pools and what happens when the first is full.
    pub(crate) tiers: Tiers,
    /// Granules of each pool, without those of the superblocks.
    pub(crate) pools: Vec<Range<usize>>,
    /// The shared soft state.
    pub control: Control,
    /// Liveness and locks.
    pub members: MembersFile,
    /// The file of the reader groups' cursors, once it is needed.
    cursors: OnceLock<CursorsFile>,
    /// Keeps every other soft directory out while this lives.
    _ownership: Ownership,
    /// Granules whose pages this process has mapped for reading.
    populated: Box<[AtomicBool]>,
}

pub(crate) fn lock_timeout(deadline: Instant) -> Duration {
    // Locks are held for microseconds, or for a recovery; even an expired deadline gets a fair try.
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100))
}

impl Attachment {
    /// The space in `dir`, or None if there is none or it is being removed.
    pub(crate) fn try_open(
        name: &str,
        dir: &Path,
        access: Access,
        locality: Locality,
        deadline: Instant,
    ) -> Result<Option<Self>> {
        let pool = dir.join(POOL_FILE);
        name::check_own(dir)?;
        let Some(file) = open_pool(name, dir, &pool)? else { return Ok(None) };
        let superblock = read_superblock(&file, &pool)?;
        check_owner(&superblock, dir)?;
        let identity = FileId::of(&file.metadata().map_err(|e| Error::io("cannot stat the pool file", e))?);
        loop {
            let found = FoundPool { file: &file, superblock: superblock.clone(), identity };
            let opened = Self::open_found(name, dir, found, access, locality, deadline)?;
            // Replaced or removed meanwhile: what was made for it is not used. A look that fails says neither.
            let now = fs::metadata(&pool).map(|meta| FileId::of(&meta) == identity);
            let has_gone = match &now {
                Ok(is_same) => !is_same,
                Err(e) => e.kind() == std::io::ErrorKind::NotFound,
            };
            if let (None, true, Ok(Some(soft))) =
                (&opened, has_gone, soft_dir_of(&superblock, identity.inode))
            {
                remove_unused_soft_dir(&soft);
            }
            // A process that could not make the shared state has removed its directory: then another one is made.
            let is_there = matches!(now, Ok(true));
            if opened.is_some() || !is_there || Instant::now() >= deadline {
                return Ok(opened);
            }
        }
    }

    /// The space of a pool that was found, or None if it is not there any more.
    fn open_found(
        name: &str,
        dir: &Path,
        FoundPool { file, mut superblock, identity }: FoundPool<'_>,
        access: Access,
        locality: Locality,
        deadline: Instant,
    ) -> Result<Option<Self>> {
        let pool = dir.join(POOL_FILE);
        let still_there = || fs::metadata(&pool).is_ok_and(|m| FileId::of(&m) == identity);
        let soft = Ownership::open(name, dir).and_then(|ownership| {
            let soft_dir = make_soft_dir(dir, &superblock, identity, &ownership)?;
            let members = match members_of(&soft_dir, &ownership) {
                // Removed between the two calls: it had no use then. Another process may have made it anew.
                Err(e) if is_not_found(&e) => None,
                members => Some(members?),
            };
            Ok(members.map(|members| (ownership, soft_dir, members)))
        });
        let soft = match soft {
            Err(_) if !still_there() => None,
            other => other?,
        };
        let Some((ownership, soft_dir, members)) = soft else { return Ok(None) };
        if !still_there() {
            return Ok(None);
        }
        let first = forebay_tier::open(superblock.tier, &pool, access).and_then(trial::around);
        let first = match first.and_then(|first| emulated::around(first, dir, &soft_dir, locality)) {
            Err(_) if !still_there() => return Ok(None),
            other => other?,
        };
        let opened = Tiers::read(dir).and_then(|tiers| Ok((tiers.open(&first, &superblock, access)?, tiers)));
        let (device, tiers) = match opened {
            Err(_) if !still_there() => return Ok(None),
            other => other?,
        };
        let pools = tiers.granules(superblock.capacity_bytes, superblock.granule_bytes);
        superblock.capacity_bytes += tiers.lower_bytes();
        check_granules(&superblock, &pool)?;
        let control = members.with_lock(LOCK_SETUP, lock_timeout(deadline), || {
            if !still_there() || !members.is_there() {
                return Ok(None);
            }
            let soft =
                Soft { dir: &soft_dir, pool_dir: dir, ownership: &ownership, members: &members, deadline };
            let control = open_or_rebuild_control(&soft, file, &superblock, &*device, &pools)
                .inspect_err(|_| soft.remove_unused())?;
            if control.is_removed() {
                // The process that removed it held this lock, so it died before it was done.
                remove_directory(dir)?;
                return Ok(None);
            }
            Ok(Some(control))
        })?;
        let Some(control) = control else { return Ok(None) };
        Ok(Some(Attachment {
            name: name.to_string(),
            dir: dir.to_path_buf(),
            soft_dir,
            superblock,
            first,
            device,
            tiers,
            pools,
            populated: (0..control.granules()).map(|_| AtomicBool::new(false)).collect(),
            control,
            members,
            cursors: OnceLock::new(),
            _ownership: ownership,
        }))
    }

    /// The file of the reader groups' cursors, made where it is missing; the caller then holds the setup lock. None on
    /// a memory tier, where the control segment lives as long as the pool.
    pub(crate) fn cursors_file(&self) -> Result<Option<&CursorsFile>> {
        if self.superblock.tier.is_memory() {
            return Ok(None);
        }
        if let Some(file) = self.cursors.get() {
            return Ok(Some(file));
        }
        let file = CursorsFile::open(&self.dir, &self.superblock.uuid, self.is_durable())?;
        Ok(Some(self.cursors.get_or_init(|| file)))
    }

    /// As [`Attachment::cursors_file`], without making it.
    pub(crate) fn known_cursors_file(&self) -> Result<Option<&CursorsFile>> {
        match self.superblock.tier.is_memory() || fs::metadata(self.dir.join(CURSORS_FILE)).is_err() {
            true => Ok(None),
            false => self.cursors_file(),
        }
    }

    /// Runs `f` under the lock that every opener, joiner and remover takes.
    pub(crate) fn with_setup_lock<T>(&self, deadline: Instant, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.members.with_lock(LOCK_SETUP, lock_timeout(deadline), || {
            self.control.check()?;
            if self.control.is_removed() {
                return Err(Error::new(Kind::PeerMissing, format!("space {} was removed", self.name)));
            }
            f()
        })
    }

    /// Maps the pages of a segment for reading, in one call instead of a fault per page, and only once: segments
    /// are used again and again, and walking the page table of 64 MiB takes as long as reading a part of it.
    pub(crate) fn populate(&self, range: Range<u64>) {
        if !self.is_first(range.start) {
            // Those pages come and go with the page cache, and segments come again and again.
            self.device.populate_read(range);
            return;
        }
        let granule = self.superblock.granule_bytes;
        let granules = (range.start / granule) as usize..range.end.div_ceil(granule) as usize;
        let first =
            self.populated[granules].iter().filter(|seen| !seen.swap(true, Ordering::Relaxed)).count();
        if first > 0 {
            self.device.populate_read(range);
        }
    }

    /// Whether a member slot belongs to a live process.
    pub(crate) fn is_alive(&self, slot: u32) -> bool {
        self.control.member(slot, crate::control::member::STATE).load(Ordering::Acquire) != 0
            && self.members.is_alive(slot)
    }

    /// Retention as chosen at creation.
    pub fn retention(&self) -> Retention {
        retention_of(self.superblock.retention)
    }

    /// Removes the space's files. The caller holds the setup lock and has made sure that no process needs it. Returns
    /// the lower pools that stay, with the reason.
    ///
    /// # Errors
    /// `NameInUse` where the directory holds other files; `Io`.
    pub(crate) fn remove_files(&self) -> Result<Vec<String>> {
        contents::check_own(&self.dir)?;
        self.mark_removed();
        remove_directory(&self.dir)
    }

    /// Says to all members that the space is being removed; not where it stays under another name.
    pub(crate) fn mark_removed(&self) {
        if has_other_name(&self.dir).unwrap_or(true) {
            return;
        }
        let mark = crate::control::REMOVED_MARK;
        self.control.word(head::REMOVED).store(mark, Ordering::SeqCst);
        self.control.announce();
        self.control.announce_space();
    }

    /// The file of the control segment, for messages.
    pub(crate) fn control_path(&self) -> PathBuf {
        self.soft_dir.join(CONTROL_FILE)
    }

    /// The first pool's bytes that segments may use: the quota that a version has to fit.
    pub(crate) fn first_bytes(&self) -> u64 {
        self.pools[0].len() as u64 * self.superblock.granule_bytes
    }

    /// What is taken of pool `index`.
    pub(crate) fn fill_of(&self, index: usize) -> Fill {
        let granules = self.pools[index].clone();
        let granule = self.superblock.granule_bytes;
        let mut fill = Fill { quota_bytes: granules.len() as u64 * granule, ..Fill::default() };
        for run in self.control.runs(granules).filter(|run| run.state != GranuleState::Free) {
            let bytes = run.granules as u64 * granule;
            fill.reserved_bytes += bytes;
            fill.used_bytes += run.filled_bytes.min(bytes);
        }
        fill
    }

    /// Whether a pool offset lies in the first pool.
    pub(crate) fn is_first(&self, offset: u64) -> bool {
        offset < self.first_end()
    }

    /// Where the first pool ends, and the lower ones begin.
    pub(crate) fn first_end(&self) -> u64 {
        self.pools[0].end as u64 * self.superblock.granule_bytes
    }

    /// Whether what lies at a pool offset is memory, which is read through the mapping and nothing else.
    pub(crate) fn is_in_memory(&self, offset: u64) -> bool {
        self.is_first(offset) && self.first.byte_addressable()
    }

    /// The tier of the pool that holds an offset.
    pub(crate) fn tier_at(&self, offset: u64) -> TierKind {
        let granule = (offset / self.superblock.granule_bytes) as usize;
        let pool = self.pools.iter().rposition(|granules| granules.start <= granule).unwrap_or(0);
        pool.checked_sub(1).map_or(self.superblock.tier, |lower| self.tiers.lower[lower].tier)
    }

    /// Syncs the space's directory, so that a new file in it survives what the horizon promises.
    pub(crate) fn is_durable(&self) -> bool {
        self.superblock.horizon != Horizon::None && !self.superblock.tier.is_memory()
    }
}

/// Whether a live process has the space in `dir` open, as far as its lock file or its members file tells: either may
/// have been removed under it.
pub(crate) fn is_open_anywhere(name: &str, dir: &Path) -> Result<bool> {
    if Ownership::open(name, dir)?.is_live()? {
        return Ok(true);
    }
    let pool = dir.join(POOL_FILE);
    let soft = forebay_tier::plain::open_regular(&pool).ok().and_then(|file| {
        let superblock = read_superblock(&file, &pool).ok()?;
        soft_dir_of(&superblock, FileId::of(&file.metadata().ok()?).inode).ok()?
    });
    let members = [Some(dir.to_path_buf()), soft].into_iter().flatten().map(|soft| soft.join(MEMBERS_FILE));
    for path in members.filter(|path| path.exists()) {
        if MembersFile::open(&path)?.is_any_alive() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The pool file, or None if there is no such directory.
fn open_pool(name: &str, dir: &Path, pool: &Path) -> Result<Option<File>> {
    // Directories appear whole, but between the two looks: the second round decides.
    for _ in 0..2 {
        match plain::open_at_once(pool) {
            Ok(file) => return Ok(Some(file)),
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
                let text = format!("{} is not a directory", dir.display());
                return Err(Error::new(Kind::Damaged, text).hint("it is not a space; choose another name"));
            }
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(format!("opening the pool of space {name}"), e));
            }
            Err(_) if fs::metadata(dir).is_err() => return Ok(None),
            Err(_) => {}
        }
    }
    if crate::open::channel::is_stream(dir) {
        return Err(Error::new(Kind::OptionMismatch, format!("{name} is a channel of files, not a space"))
            .with("directory", dir.display())
            .hint("open it with channel=\"files\""));
    }
    let error = Error::new(Kind::Damaged, "the directory has no pool file").with("directory", dir.display());
    Err(match contents::is_of_a_space(dir) {
        true => {
            error.hint("the pool file and its data were removed; `forebay clean` removes the remaining files")
        }
        false => error.hint("it is not a space; choose another name"),
    })
}

/// Whether a file or its directory was not there.
fn is_not_found(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::NotFound)
}

/// The first pool of a space, before the space is open.
struct FoundPool<'a> {
    file: &'a File,
    superblock: Superblock,
    identity: FileId,
}
