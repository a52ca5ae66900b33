//! Making a space, finding it again, and rebuilding its soft state from the lanes.
//!
//! A space is a directory: `pool` (the durable part), `attributes.json`, `tiers.json`, `lock`, and, on a memory tier,
//! `control` and `members`. For pools on other tiers the two soft files stand in shared memory, in
//! `.soft-<uuid>-<inode of the pool>` beside the short names, because a page cache would write them to the disk over
//! and over; one soft directory at a time is in use ([`crate::ownership`]). A new directory appears under
//! its name whole, by one rename. It goes by being renamed away, under the same lock that every opener takes, so
//! that no process opens half a space.

use forebay_tier::host::fs::{self, File};
use forebay_tier::host::time::Instant;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_log::format::{IncarnationDf, PoolPart, Superblock, HEADER_BYTES, INCARNATION_OFFSETS};
use forebay_log::recover;
use forebay_tier::adapter::throttle::Locality;
use forebay_tier::capacity::Headroom;
use forebay_tier::liveness::MembersFile;
use forebay_tier::{clock, plain, process, Access, Device, Error, Horizon, Kind, Result, TierKind};

use crate::contents;
use crate::control::{head, Control, GranuleState, LANES_MAX};
use crate::cursors::{CursorsFile, CURSORS_FILE};
use crate::emulated;
use crate::groups::restore_groups;
use crate::name;
use crate::new_directory::{abandoned, hidden, Hidden, NewDirectory};
use crate::options::{OpenOptions, Retention};
use crate::ownership::{Claim, FileId, Ownership};
use crate::tiers::{self, Tiers};
use crate::trial;
use crate::whole_file;

/// Names of the files of a space.
pub(crate) const POOL_FILE: &str = "pool";
pub(crate) const CONTROL_FILE: &str = "control";
pub(crate) const MEMBERS_FILE: &str = "members";

/// Names of soft directories begin with this.
pub(crate) const SOFT_PREFIX: &str = ".soft-";
/// How often a process checks again before a space counts as in use through another soft directory.
const REFUSALS: u32 = 5;
/// A soft directory without a control segment is in use only while that is made, under the setup lock.
const UNUSED_LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// Kernel locks on bytes of the members file beyond the slots.
pub(crate) const LOCK_SETUP: u64 = 1 << 20;
pub(crate) const LOCK_ALLOCATE: u64 = (1 << 20) + 1;
pub(crate) const LOCK_ATTRIBUTES: u64 = (1 << 20) + 2;
pub(crate) const LOCK_ADOPT: u64 = (1 << 20) + 3;

/// A granule is at least this large, and the granule table has at most [`GRANULES_MAX`] entries.
const GRANULE_BYTES_MIN: u64 = if cfg!(forebay_simulated) { 16 << 10 } else { 256 << 10 };
const GRANULES_MAX: u64 = 1 << 16;
/// An ordinary segment: large enough that allocating one is rare, small enough to fault in ahead.
const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// Without a quota a space may take this share of what the tier has free.
const QUOTA_SHARE_DEFAULT: u64 = 4;
/// A segment is at most this part of one rank's share of the quota, so that a lane can release what was read
/// while it writes on.
const SEGMENTS_PER_SHARE: u64 = 4;

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

/// A boot id or uuid in text as 16 bytes; zeros where it is not one.
pub(crate) fn uuid_bytes(text: &str) -> [u8; 16] {
    uuid::Uuid::parse_str(text.trim()).map_or([0; 16], |u| u.into_bytes())
}

pub(crate) fn lock_timeout(deadline: Instant) -> Duration {
    // Locks are held for microseconds, or for a recovery; even an expired deadline gets a fair try.
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100))
}

/// Retention as the superblock stores it.
fn retention_code(retention: Retention) -> (u8, u64) {
    match retention {
        Retention::Released => (0, 0),
        Retention::Last(k) => (1, k),
        Retention::Forever => (2, 0),
    }
}

/// Retention as the superblock stores it, back.
pub(crate) fn retention_of(code: (u8, u64)) -> Retention {
    match code {
        (1, k) => Retention::Last(k),
        (2, _) => Retention::Forever,
        _ => Retention::Released,
    }
}

/// What to do when the space is not there.
#[derive(Clone, Copy)]
pub(crate) enum Missing<'a> {
    /// Make it with these options, for a group of this size.
    Create(&'a OpenOptions, u32),
    /// Wait for it.
    Wait,
    /// Give up.
    Fail,
}

impl Attachment {
    /// Opens the space `name` from where the process stands, if need be makes it or waits for it until `deadline`.
    ///
    /// Errors: [`Kind::PeerMissing`] when there is none, [`Kind::PoolOwnedElsewhere`], [`Kind::Damaged`],
    /// [`Kind::UnknownFormat`], [`Kind::TierFull`], [`Kind::BadName`], [`Kind::PermissionDenied`].
    pub(crate) fn open(
        name: &str,
        access: Access,
        locality: Locality,
        missing: Missing<'_>,
        deadline: Instant,
    ) -> Result<Arc<Self>> {
        let dir = name::directory(name)?;
        let mut pause = Duration::from_micros(200);
        loop {
            let opened = Self::try_open(name, &dir, access, locality, deadline);
            match opened.map_err(|e| contents::explained(name, &dir, e))? {
                Some(attachment) => return Ok(Arc::new(attachment)),
                None => match missing {
                    Missing::Create(options, ranks) => {
                        name::make_root_for(name)?;
                        create(name, &dir, options, ranks)?;
                    }
                    Missing::Fail => return Err(not_found(name, &dir)),
                    Missing::Wait if Instant::now() >= deadline => return Err(not_found(name, &dir)),
                    Missing::Wait => {
                        forebay_tier::host::thread::sleep(pause);
                        pause = (pause * 2).min(Duration::from_millis(10));
                    }
                },
            }
        }
    }

    /// The space in `dir`, or None if there is none or it is being removed.
    fn try_open(
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
        let identity = FileId::of(&file.metadata().map_err(|e| Error::io("looking at the pool", e))?);
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
                (&opened, has_gone, own_soft_dir(&superblock, identity.inode))
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
            let soft_dir = soft_dir(dir, &superblock, identity, &ownership)?;
            let members = match members_of(&soft_dir, &ownership) {
                // Removed between the two calls: it had no use then.
                Err(_) if !soft_dir.exists() => None,
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
    fn mark_removed(&self) {
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

/// The members file of a space. A control segment has one for as long as it is there: where it is missing and processes
/// have the space open, one that is made anew would say that all of them are dead.
fn members_of(soft_dir: &Path, ownership: &Ownership) -> Result<MembersFile> {
    // Asked in this order: the members file is made first.
    let has_control = soft_dir.join(CONTROL_FILE).exists();
    let path = soft_dir.join(MEMBERS_FILE);
    if has_control && !path.exists() && ownership.is_live()? {
        let text = "the members file of the space was removed while processes have it open";
        return Err(Error::new(Kind::Damaged, text)
            .with("file", path.display())
            .hint("end these processes; the next one makes it anew"));
    }
    MembersFile::create(&path)
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
        own_soft_dir(&superblock, FileId::of(&file.metadata().ok()?).inode).ok()?
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
    if crate::files::is_stream(dir) {
        return Err(Error::new(Kind::OptionMismatch, format!("{name} is a channel of files, not a space"))
            .with("directory", dir.display())
            .hint("open it with channel=\"files\""));
    }
    let error = Error::new(Kind::Damaged, "the directory holds no pool").with("directory", dir.display());
    Err(match contents::is_of_a_space(dir) {
        true => error.hint("the pool was removed, and its data with it; `forebay clean` removes the rest"),
        false => error.hint("it is not a space; choose another name"),
    })
}

/// The error for a space that is not there.
fn not_found(name: &str, dir: &Path) -> Error {
    Error::new(Kind::PeerMissing, format!("no space {name} appeared")).with("directory", dir.display()).hint(
        "is its writer running, on this host, as this user, with the same FOREBAY_DIR? \
             `forebay ls` shows what is there",
    )
}

/// The directory that a path names, behind symbolic links, also where it is not there yet: a link is neither renamed
/// nor replaced.
pub(crate) fn behind_links(dir: &Path) -> PathBuf {
    match fs::symlink_metadata(dir) {
        Ok(meta) if meta.file_type().is_symlink() => {}
        _ => return dir.to_path_buf(),
    }
    let parent = dir.parent().unwrap_or(Path::new("."));
    let target = || std::fs::read_link(dir).map_or(dir.to_path_buf(), |target| parent.join(target));
    fs::canonicalize(dir).unwrap_or_else(|_| target())
}

/// Whether the pool in a directory has another name, as `cp -al` gives it one: the space stays under that name, with
/// its shared state and its lower pools.
pub(crate) fn has_other_name(dir: &Path) -> std::io::Result<bool> {
    match fs::metadata(dir.join(POOL_FILE)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        meta => Ok(meta?.nlink() > 1),
    }
}

/// Takes a directory away under another name first, so that no process sees it half empty; then its shared state and
/// the lower pools that it names, and at last what is in it, so that a process that finds it later can go on. Returns
/// the lower pools that stay, with the reason.
pub(crate) fn remove_directory(dir: &Path) -> Result<Vec<String>> {
    let dir = &behind_links(dir);
    let (Some(parent), Some(file)) = (dir.parent(), dir.file_name()) else {
        return Err(
            Error::new(Kind::BadName, "this directory cannot be removed").with("directory", dir.display())
        );
    };
    match take_away(dir, parent, &file.to_string_lossy())? {
        Some(gone) => remove_unfinished(&gone),
        None => Ok(Vec::new()),
    }
}

/// Renames a directory to a hidden name, by which it is known that it is on its way out. None: it is not there.
pub(crate) fn take_away(dir: &Path, parent: &Path, file: &str) -> Result<Option<PathBuf>> {
    let gone = parent.join(format!(".{file}.gone-{}-{}", process::pid(), clock::now_ns()));
    match fs::rename(dir, &gone) {
        Ok(()) => Ok(Some(gone)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(format!("removing {}", dir.display()), e)),
    }
}

/// Reads and checks the first page of a pool.
pub(crate) fn read_superblock(file: &std::fs::File, path: &Path) -> Result<Superblock> {
    let mut page = vec![0; HEADER_BYTES as usize];
    let length = file.metadata().map_err(|e| Error::io("looking at the pool", e))?.len();
    if length < HEADER_BYTES {
        return Err(
            Error::new(Kind::Damaged, "the pool is shorter than its superblock").with("pool", path.display())
        );
    }
    file.read_exact_at(&mut page, 0).map_err(|e| Error::io(format!("reading {}", path.display()), e))?;
    let superblock = Superblock::decode(&page).map_err(|e| e.with("pool", path.display()))?;
    if length < superblock.capacity_bytes {
        return Err(Error::new(Kind::Damaged, "the pool was cut off")
            .with("pool", path.display())
            .with("bytes", length)
            .with("wanted", superblock.capacity_bytes));
    }
    Ok(superblock)
}

/// Everything that goes through the granules takes their number for small, as it is in every space that was made.
fn check_granules(superblock: &Superblock, pool: &Path) -> Result<()> {
    let granules = superblock.capacity_bytes / superblock.granule_bytes;
    if granules <= 2 * GRANULES_MAX {
        return Ok(());
    }
    Err(Error::new(Kind::Damaged, "the pools of the space have too many granules")
        .with("pool", pool.display())
        .with("granules", granules)
        .with("most", 2 * GRANULES_MAX))
}

/// A pool may be used by the kernel that made it, in whatever container, and after a reboot by the same host.
fn check_owner(superblock: &Superblock, dir: &Path) -> Result<()> {
    let same_boot = superblock.boot_id == uuid_bytes(process::boot_id());
    if same_boot || superblock.host == process::host_name() {
        return Ok(());
    }
    Err(Error::new(Kind::PoolOwnedElsewhere, "the pool belongs to another host")
        .with("pool", dir.display())
        .with("owner", &superblock.host)
        .with("here", process::host_name())
        .hint("a space is shared by the processes of one host; open it there, or copy the data by `forebay cat`"))
}

/// The directory of the shared state of a pool; None: that of the pool.
fn own_soft_dir(superblock: &Superblock, inode: u64) -> Result<Option<PathBuf>> {
    if superblock.tier.is_memory() {
        return Ok(None);
    }
    // The inode too: a copy of a pool has the same uuid.
    let uuid = uuid::Uuid::from_bytes(superblock.uuid);
    Ok(Some(name::make_root()?.join(format!("{SOFT_PREFIX}{uuid}-{inode:x}"))))
}

/// Where control segment and members file stand; made where it is missing and no process uses another one.
fn soft_dir(dir: &Path, superblock: &Superblock, pool: FileId, ownership: &Ownership) -> Result<PathBuf> {
    let Some(soft) = own_soft_dir(superblock, pool.inode)? else { return Ok(dir.to_path_buf()) };
    // A process that makes it, or that gives up because it could not, holds the pool for a moment.
    let mut tries = REFUSALS;
    while !soft.exists() {
        match ownership.refuse_new_directory(&soft, pool) {
            Err(_) if tries > 0 => forebay_tier::host::thread::sleep(Duration::from_millis(1)),
            refused => {
                refused?;
                break;
            }
        }
        tries -= 1;
    }
    match fs::DirBuilder::new().mode(0o700).create(&soft) {
        Ok(()) => Ok(soft),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(soft),
        Err(e) => Err(Error::io(format!("making {}", soft.display()), e)),
    }
}

/// The first pool of a space, before the space is open.
struct FoundPool<'a> {
    file: &'a File,
    superblock: Superblock,
    identity: FileId,
}

/// Removes a soft directory that a process made for a pool which has gone: another process may have removed that one
/// before. One with a control segment was used.
fn remove_unused_soft_dir(soft: &Path) {
    if !soft.join(CONTROL_FILE).exists() {
        let _ = fs::remove_file(soft.join(MEMBERS_FILE));
        // Fails where another process has made more.
        let _ = fs::remove_dir(soft);
    }
}

/// Removes a soft directory that a process left which was killed before it had made the control segment. Whether it was
/// one; in a dry run it stays.
///
/// # Errors
/// `Io`.
pub(crate) fn remove_abandoned_soft_dir(soft: &Path, dry_run: bool) -> Result<bool> {
    let path = soft.join(MEMBERS_FILE);
    if soft.join(CONTROL_FILE).exists() || !soft.is_dir() {
        return Ok(false);
    }
    if !path.exists() {
        // A process that has just made it makes another one.
        return Ok(dry_run || fs::remove_dir(soft).is_ok());
    }
    let members = match MembersFile::open(&path) {
        Err(_) if !path.exists() => return Ok(false),
        members => members?,
    };
    let removed = members.with_lock(LOCK_SETUP, UNUSED_LOCK_TIMEOUT, || {
        if soft.join(CONTROL_FILE).exists() || !members.is_there() || members.is_any_alive() {
            return Ok(false);
        }
        if !dry_run {
            let _ = fs::remove_file(soft.join(format!("{CONTROL_FILE}.new")));
            remove_unused_soft_dir(soft);
        }
        Ok(dry_run || !soft.exists())
    });
    match removed {
        Err(e) if e.kind() == Kind::TimedOut => Ok(false),
        removed => removed,
    }
}

/// What a control segment is opened or made with.
struct Soft<'a> {
    dir: &'a Path,
    pool_dir: &'a Path,
    ownership: &'a Ownership,
    members: &'a MembersFile,
    deadline: Instant,
}

impl Soft<'_> {
    /// Under the setup lock: removes the directory, unless it is the pool's or a process uses it. Its control segment
    /// could not be made.
    fn remove_unused(&self) {
        let has_user = || self.members.is_any_alive() || self.ownership.is_live().unwrap_or(true);
        if self.dir != self.pool_dir && !has_user() {
            remove_unused_soft_dir(self.dir);
        }
    }
}

/// Under the setup lock: the control segment as it is, or rebuilt, where no process uses the pool through another one.
fn open_or_rebuild_control(
    soft: &Soft<'_>,
    pool: &File,
    superblock: &Superblock,
    device: &dyn Device,
    pools: &[Range<usize>],
) -> Result<Control> {
    let path = soft.dir.join(CONTROL_FILE);
    let boot = uuid_bytes(process::boot_id());
    let identity = FileId::of(&pool.metadata().map_err(|e| Error::io("looking at the pool", e))?);
    let noted = noted_incarnation(pool, superblock)?;
    let found = Control::open(&path, superblock, &boot, identity, noted)?;
    let claim = Claim {
        soft_dir: soft.dir,
        pool: identity,
        members: soft.members,
        control: found.as_ref().map_err(|misfit| *misfit),
    };
    let make = |instance| {
        let new = soft.dir.join(format!("{CONTROL_FILE}.new"));
        let _ = fs::remove_file(&new); // left by a process that was killed here: who makes one holds the setup lock
        let made = Control::create(&new, superblock, &boot, instance, identity).and_then(|control| {
            for lower in &pools[1..] {
                control.set_granule_state(lower.start - 1, GranuleState::Superblock);
            }
            rebuild(&control, superblock, device)?;
            if !superblock.tier.is_memory() {
                if let Some(found) = CursorsFile::read(soft.pool_dir, &superblock.uuid)? {
                    restore_groups(&control, &found)?;
                }
            }
            fs::rename(&new, &path).map_err(|e| Error::io("putting the control segment in place", e))?;
            Ok(control)
        });
        made.inspect_err(|_| drop(fs::remove_file(&new)))
    };
    match (soft.ownership.claim(&claim, soft.deadline, make)?, found) {
        (Some(control), _) | (None, Ok(control)) => Ok(control),
        (None, Err(_)) => {
            Err(Error::new(Kind::Internal, "a control segment that cannot be used was claimed"))
        }
    }
}

/// The newest incarnation that the pool file has noted. Read past the device, as the superblock is: no operation of it
/// is meant.
fn noted_incarnation(pool: &File, superblock: &Superblock) -> Result<Option<u32>> {
    let mut page = vec![0; HEADER_BYTES as usize];
    pool.read_exact_at(&mut page, 0).map_err(|e| Error::io("reading the first page of the pool", e))?;
    let notes = INCARNATION_OFFSETS.map(|at| IncarnationDf::decode(&page[at as usize..], &superblock.uuid));
    Ok(notes.into_iter().flatten().map(|df| df.number).max())
}

/// Fills an empty control segment from what the lanes hold.
fn rebuild(control: &Control, superblock: &Superblock, device: &dyn Device) -> Result<()> {
    let found = recover(device, superblock)?;
    for segment in &found.segments {
        let first = (segment.df.offset_bytes / superblock.granule_bytes) as usize;
        let length = segment.df.length_bytes.div_ceil(superblock.granule_bytes) as usize;
        control.describe_run(first, segment.df.sequence, length, segment.last_version);
        control.set_filled(first, segment.filled_bytes);
        control.set_granule_state(first, GranuleState::Segment { lane: segment.lane(), slot: None });
    }
    for segment in &found.stale {
        let first = (segment.df.offset_bytes / superblock.granule_bytes) as usize;
        let length = segment.df.length_bytes.div_ceil(superblock.granule_bytes) as usize;
        control.describe_run(first, segment.df.sequence, length, 0);
        control.set_granule_state(first, GranuleState::Leaving { lane: segment.lane(), slot: None });
    }
    for incarnation in &found.incarnations {
        control.remember(incarnation.number, incarnation.size, incarnation.base);
    }
    let oldest = match retention_of(superblock.retention) {
        Retention::Last(k) => found.oldest.max(found.complete.saturating_sub(k)),
        _ => found.oldest,
    };
    control.set_oldest(oldest);
    let Some(last) = found.incarnations.last() else { return Ok(()) };
    // A group that wrote nothing left the stream as it was: it may have been refused.
    let has_begun = |number: u32| found.segments.iter().any(|segment| segment.lane().incarnation == number);
    let newest_begun = found.incarnations.iter().rev().find(|group| has_begun(group.number)).unwrap_or(last);
    let ranks = (last.size as usize).min(LANES_MAX);
    for rank in 0..ranks as u32 {
        control.set_progress(rank, last.number, last.committed[rank as usize]);
    }
    control.word(head::BASE).store(last.base, Ordering::Release);
    control.set_producers(last.number, ranks as u32);
    let has_finished = newest_begun.ended.iter().all(|ended| *ended);
    control.close_producers(last.number, has_finished);
    Ok(())
}

/// Directory above a space, and the name of its own one.
pub(crate) fn place_of(name: &str, dir: &Path) -> Result<(PathBuf, String)> {
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file =
        dir.file_name().ok_or_else(|| Error::new(Kind::BadName, format!("`{name}` names no directory")))?;
    Ok((parent.to_path_buf(), file.to_string_lossy().into_owned()))
}

/// Makes the directory of a new space and puts it in place; that another process was first is no error.
fn create(name: &str, dir: &Path, options: &OpenOptions, ranks: u32) -> Result<()> {
    let dir = behind_links(dir);
    let (parent, file) = place_of(name, &dir)?;
    remove_leftovers(&parent, Some(&file));
    let new = make_new(name, &parent, &file, options, ranks)?;
    put_in_place(name, &new.path, &dir, &parent, options.horizon.unwrap_or_default()).map(drop)
}

/// A new space under a hidden name, with its shared state: a space whose shared state does not fit would be there, and
/// no process could open it. Nothing is left of one that cannot be made.
fn make_new(
    name: &str,
    parent: &Path,
    file: &str,
    options: &OpenOptions,
    ranks: u32,
) -> Result<NewDirectory> {
    let making = NewDirectory::make(parent, file)
        .map_err(|e| e.hint("the directory above the space must exist and be writable"))?;
    let made = fill_new_directory(&making.path, parent, file, options, ranks).and_then(|()| {
        let deadline = Instant::now() + options.timeout;
        Attachment::try_open(name, &making.path, Access::Write, Locality::Local, deadline)
    });
    match made {
        Ok(_) => Ok(making),
        Err(e) => {
            // The first error is the one to report.
            let _ = remove_unfinished(&making.path);
            let hidden = making.path.file_name().unwrap_or_default().to_string_lossy();
            Err(e.renamed(&hidden, file))
        }
    }
}

/// Gives a new space or channel its name, unless another one has it: then the new one goes. Whether it has the name.
pub(crate) fn put_in_place(
    name: &str,
    new: &Path,
    dir: &Path,
    parent: &Path,
    horizon: Horizon,
) -> Result<bool> {
    let placed = match fs::rename(new, dir) {
        Ok(()) if horizon != Horizon::None => {
            // Versions that are acknowledged below a name that is lost would be lost with it.
            whole_file::sync_directory_of(dir)
                .map_err(|e| Error::io(format!("syncing {}", parent.display()), e))
        }
        Ok(()) => Ok(()),
        // Another process was first.
        Err(e) if matches!(e.raw_os_error(), Some(17 | 39)) => return remove_unfinished(new).map(|_| false),
        Err(e) => Err(Error::io(format!("putting space {name} in place"), e)),
    };
    if placed.is_err() {
        let _ = remove_unfinished(new);
    }
    placed.map(|()| true)
}

/// Under the setup lock of the space that is there: puts an empty one in its place, which has another pool. The new one
/// is whole before the old one goes, so that one that cannot be made costs nothing; only where the tier does not hold
/// both does the old one go first, and the caller makes the new one. A process that is killed here leaves the old one,
/// the new one, or a free name, and perhaps a directory with a hidden name, which the next process that makes the space
/// removes, as `forebay clean` does.
pub(crate) fn replace(old: &Attachment, options: &OpenOptions, ranks: u32) -> Result<()> {
    let dir = behind_links(&old.dir);
    let (parent, file) = place_of(&old.name, &dir)?;
    contents::check_own(&dir)?;
    remove_leftovers(&parent, Some(&file));
    let new = match make_new(&old.name, &parent, &file, options, ranks) {
        Err(e) if e.kind() == Kind::TierFull && fits_alone(old, &parent, options, ranks)? => None,
        made => Some(made?),
    };
    old.mark_removed();
    let taken = take_away(&dir, &parent, &file);
    if let (Err(_), Some(new)) = (&taken, &new) {
        let _ = remove_unfinished(&new.path);
    }
    let gone = taken?;
    if let Some(new) = new {
        put_in_place(&old.name, &new.path, &dir, &parent, options.horizon.unwrap_or_default())?;
    }
    if let Some(gone) = gone {
        let kept = remove_unfinished(&gone)?;
        if !kept.is_empty() {
            eprintln!("forebay: space {} was replaced; lower pools that stay: {}", old.name, kept.join("; "));
        }
    }
    Ok(())
}

/// Whether the new space can be made once the old one has gone: on the same tier, with these options, its shared state
/// included. If that is uncertain it cannot: the old one would be lost for nothing.
fn fits_alone(old: &Attachment, parent: &Path, options: &OpenOptions, ranks: u32) -> Result<bool> {
    let allocated = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.blocks() * 512);
    let tier = options.tier.map_or_else(|| forebay_tier::detect(parent), Ok)?;
    if tier != old.superblock.tier {
        return Ok(false);
    }
    let lower: u64 = old.tiers.lower.iter().map(|pool| allocated(&pool.path)).sum();
    let mut new_lower = 0;
    for spill in &options.spill {
        let tier = spill.tier.map_or_else(|| forebay_tier::detect(&spill.path), Ok)?;
        let free = forebay_tier::capacity::headroom(&spill.path, tier)?.bytes + lower;
        if spill.quota.is_some_and(|quota| quota > free) {
            return Ok(false);
        }
        new_lower += spill.quota.unwrap_or(free);
    }
    let shared = allocated(&old.control_path());
    let mut free = forebay_tier::capacity::headroom(parent, tier)?;
    free.bytes += allocated(&old.dir.join(POOL_FILE)) + if tier.is_memory() { shared } else { 0 };
    let Ok((capacity, granule, segment)) = sizes(&free, options, ranks, new_lower) else { return Ok(false) };
    let control =
        Control::file_bytes(((capacity + new_lower) / granule + options.spill.len() as u64) as usize);
    if tier.is_memory() {
        return Ok(granule + segment + control as u64 <= free.bytes);
    }
    let memory = forebay_tier::capacity::headroom(&name::make_root()?, TierKind::Dram)?;
    Ok(granule + segment <= free.bytes && control as u64 <= memory.bytes + shared)
}

/// Removes what killed processes left while they made, replaced or removed the space `file`, or else any space in
/// `parent`, as far as it can.
pub(crate) fn remove_leftovers(parent: &Path, file: Option<&str>) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let found = entry.file_name().into_string().ok();
        let is_asked = |of: &str| file.is_none_or(|file| file == of);
        let Some(kind) = found.as_deref().and_then(hidden).filter(|(_, of)| is_asked(of)) else { continue };
        let path = entry.path();
        // Held while it is removed: the process that made it cannot go on in it.
        let abandoned = match kind.0 {
            Hidden::New => match abandoned(&path, false) {
                Ok(Ok(abandoned)) => Some(abandoned),
                _ => continue,
            },
            Hidden::Gone => None,
        };
        let _ = remove_unfinished(&path);
        drop(abandoned);
    }
}

/// How often the removal of a directory is tried into which other processes write.
const REMOVALS: u32 = 100;

/// Removes a directory that is not, or no longer, in place, with its shared state and the lower pools that it names, if
/// it can be read and they are its own. Returns those that stay, with the reason. Another process may do the same.
pub(crate) fn remove_unfinished(new: &Path) -> Result<Vec<String>> {
    remove_soft_dir(new)?;
    let kept = match Tiers::read(new) {
        Ok(tiers) => tiers.remove(new)?,
        // The next clean tries again: without the list its pools would not be found any more.
        Err(e) if e.kind() == Kind::Io => return Err(e),
        Err(_) => Vec::new(),
    };
    let mut tries = REMOVALS;
    loop {
        tries -= 1;
        match fs::remove_dir_all(new) {
            // A process that asks whether its maker lives has made the lock file anew.
            Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty && tries > 0 => {}
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(format!("removing {}", new.display()), e));
            }
            _ => return Ok(kept),
        }
    }
}

/// Removes the directory of the shared state of the pool in `dir`, where it is another one.
fn remove_soft_dir(dir: &Path) -> Result<()> {
    let looking = |e| Error::io(format!("looking at the pool in {}", dir.display()), e);
    if has_other_name(dir).map_err(looking)? {
        return Ok(());
    }
    let pool = dir.join(POOL_FILE);
    // The next clean tries again: without the pool its shared state would not be found any more.
    let file = match forebay_tier::plain::open_regular(&pool) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound || tiers::is_other(&e) => return Ok(()),
        file => file.map_err(looking)?,
    };
    let meta = file.metadata().map_err(looking)?;
    let soft = match read_superblock(&file, &pool) {
        Ok(superblock) => own_soft_dir(&superblock, FileId::of(&meta).inode)?,
        // Its name has the uuid of the pool in it, which nothing says any more.
        Err(_) => soft_dir_of_damaged(FileId::of(&meta)),
    };
    let Some(soft) = soft else { return Ok(()) };
    match fs::remove_dir_all(&soft) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("removing {}", soft.display()), e))
        }
        _ => Ok(()),
    }
}

/// The directory whose control segment says that it is of this pool file.
fn soft_dir_of_damaged(pool: FileId) -> Option<PathBuf> {
    let is_of_pool = |soft: &PathBuf| {
        let word = |file: &File, at: usize| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at as u64).map(|()| u64::from_ne_bytes(bytes)).ok()
        };
        let control = forebay_tier::plain::open_regular(&soft.join(CONTROL_FILE)).ok();
        control.is_some_and(|file| {
            let found = (word(&file, head::POOL_DEVICE), word(&file, head::POOL_INODE));
            found == (Some(pool.device), Some(pool.inode))
        })
    };
    let of_inode =
        |name: &str| name.starts_with(SOFT_PREFIX) && name.ends_with(&format!("-{:x}", pool.inode));
    let entries = fs::read_dir(name::root().ok()?).ok()?.flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(of_inode));
    named.map(|entry| entry.path()).find(is_of_pool)
}

fn fill_new_directory(
    new: &Path,
    parent: &Path,
    name: &str,
    options: &OpenOptions,
    ranks: u32,
) -> Result<()> {
    let tier = match options.tier {
        Some(tier) => tier,
        None => forebay_tier::detect(parent)?,
    };
    let horizon = options.horizon.unwrap_or(Horizon::None);
    let checksum = options.checksum.unwrap_or(true);
    if !checksum && horizon != Horizon::None {
        return Err(Error::new(Kind::Usage, "payload checksums can be turned off only at horizon none")
            .with("horizon", horizon)
            .hint("leave the checksum on, or use horizon none"));
    }
    let uuid = uuid::Uuid::from_bytes(forebay_tier::host::random_uuid(|| uuid::Uuid::new_v4().into_bytes()));
    let mut tiers = Tiers::plan(&options.spill, options.when_full, name, &uuid)?;
    let (capacity_bytes, granule_bytes, segment_bytes) =
        sizes(&forebay_tier::capacity::headroom(parent, tier)?, options, ranks, tiers.lower_bytes())?;
    let superblock = Superblock {
        part: if tiers.lower.is_empty() { PoolPart::Only } else { PoolPart::First },
        tier,
        horizon,
        checksum,
        retention: retention_code(options.retention.unwrap_or_default()),
        uuid: uuid.into_bytes(),
        boot_id: uuid_bytes(process::boot_id()),
        capacity_bytes,
        granule_bytes,
        segment_bytes,
        created_unix_ns: clock::realtime_ns(),
        host: process::host_name().to_string(),
        run: std::env::var("FOREBAY_RUN").unwrap_or_default(),
    };
    tiers.write(new, &superblock)?;
    if let Some(emulation) = &options.emulate {
        emulation.write(new, horizon != Horizon::None)?;
    }
    let pool = new.join(POOL_FILE);
    let device = trial::around(forebay_tier::create(tier, &pool, capacity_bytes)?)?;
    device.prepare(0..granule_bytes)?;
    device.write(0, &superblock.encode())?;
    if horizon != Horizon::None {
        // By it a lower pool is known that a power failure leaves.
        device.persist(0..HEADER_BYTES)?;
    }
    tiers.create_pools(&pool, &superblock)?;
    if horizon != Horizon::None {
        for dir in [new, parent] {
            File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("syncing the directory", e))?;
        }
    }
    Ok(())
}

/// Bytes of a segment for which so many are asked.
pub(crate) fn segment_in_granules(bytes: u64, granule: u64) -> u64 {
    bytes.max(granule) / granule * granule
}

/// Capacity of the pool file, granule and segment, all in bytes, on a tier with this headroom.
fn sizes(
    headroom: &Headroom,
    options: &OpenOptions,
    ranks: u32,
    lower_bytes: u64,
) -> Result<(u64, u64, u64)> {
    let quota = match options.quota_bytes {
        Some(quota) if quota > headroom.bytes => {
            return Err(Error::new(Kind::TierFull, "the tier has less free space than the quota asks for")
                .with("quota", crate::format_bytes(quota))
                .with("free", crate::format_bytes(headroom.bytes))
                .with("limited_by", &headroom.limited_by)
                .hint("ask for a smaller quota, or use another tier"));
        }
        Some(quota) => quota,
        None => headroom.bytes / QUOTA_SHARE_DEFAULT,
    };
    let all = quota + lower_bytes;
    let granule = (all / GRANULES_MAX).next_power_of_two().max(GRANULE_BYTES_MIN);
    let share = quota / u64::from(ranks.max(1));
    let segment = options.segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT.min(share / SEGMENTS_PER_SHARE));
    let segment = segment_in_granules(segment, granule);
    if quota / granule < u64::from(ranks) && options.quota_bytes.is_none() {
        return Err(Error::new(Kind::TierFull, "the tier has insufficient capacity for a space")
            .with("free", crate::format_bytes(headroom.bytes))
            .with("ranks", ranks)
            .with("limited_by", &headroom.limited_by)
            .hint("free space on it, or use another tier"));
    }
    if quota / granule < u64::from(ranks) || segment > quota / granule * granule {
        return Err(Error::new(
            Kind::Usage,
            "the quota is too small for this many ranks and this segment size",
        )
        .with("quota", crate::format_bytes(quota))
        .with("ranks", ranks)
        .with("segment", crate::format_bytes(segment))
        .hint(format!("every rank needs at least {}", crate::format_bytes(granule))));
    }
    // One granule more: the superblock's.
    Ok(((quota / granule + 1) * granule, granule, segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who said the quota decides whether the caller or the tier is at fault.
    #[test]
    fn too_little_for_each_rank_is_a_full_tier_unless_the_quota_was_given() {
        let headroom = Headroom { bytes: 1 << 30, limited_by: "the test".into() };
        let kind = |options: &OpenOptions| sizes(&headroom, options, u32::MAX, 0).unwrap_err().kind();
        assert_eq!(kind(&OpenOptions::default()), Kind::TierFull);
        let given = OpenOptions { quota_bytes: Some(1 << 20), ..OpenOptions::default() };
        assert_eq!(kind(&given), Kind::Usage);
    }
}
