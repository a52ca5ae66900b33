//! Making a space, finding it again, and rebuilding its soft state from the lanes.
//!
//! A space is a directory: `pool` (the durable part), `attributes.json`, `tiers.json`, and, on a memory tier,
//! `control` and `members`. For pools on other tiers the two soft files stand in shared memory, in `.soft-<uuid>`
//! beside the
//! short names, because a page cache would write them to the disk over and over. A new directory appears under
//! its name whole, by one rename. It goes by being renamed away, under the same lock that every opener takes, so
//! that nobody opens half a space.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_log::format::{PoolPart, Superblock, HEADER_BYTES};
use forebay_log::recover;
use forebay_tier::adapter::throttle::Locality;
use forebay_tier::liveness::MembersFile;
use forebay_tier::{clock, process, Access, Device, Error, Horizon, Kind, Result, TierKind};

use crate::control::{Control, GranuleState, ProducerState, LANES_MAX};
use crate::emulated;
use crate::name;
use crate::options::{OpenOptions, Retention};
use crate::tiers::Tiers;
use crate::trial;

/// Names of the files of a space.
pub(crate) const POOL_FILE: &str = "pool";
const CONTROL_FILE: &str = "control";
const MEMBERS_FILE: &str = "members";

/// Kernel locks on bytes of the members file beyond the slots.
pub(crate) const LOCK_SETUP: u64 = 1 << 20;
pub(crate) const LOCK_ALLOCATE: u64 = (1 << 20) + 1;
pub(crate) const LOCK_ATTRIBUTES: u64 = (1 << 20) + 2;
pub(crate) const LOCK_ADOPT: u64 = (1 << 20) + 3;

/// A granule is at least this large, and the granule table has at most [`GRANULES_MAX`] entries.
const GRANULE_BYTES_MIN: u64 = 256 << 10;
const GRANULES_MAX: u64 = 1 << 16;
/// An ordinary segment: large enough that allocating one is rare, small enough to fault in ahead.
const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// Without a quota a space may take this share of what the tier has free.
const QUOTA_SHARE_DEFAULT: u64 = 4;
/// A segment is at most this part of one rank's share of the quota, so that a lane can give back what was read
/// while it writes on.
const SEGMENTS_PER_SHARE: u64 = 4;

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
    /// Granules whose pages this process has mapped for reading.
    populated: Box<[AtomicBool]>,
}

/// A boot id or uuid in text as 16 bytes; zeros where it is not one.
pub(crate) fn uuid_bytes(text: &str) -> [u8; 16] {
    uuid::Uuid::parse_str(text.trim()).map_or([0; 16], |u| u.into_bytes())
}

fn lock_timeout(deadline: Instant) -> Duration {
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
    /// Errors: [`Kind::PeerMissing`] when nobody made it, [`Kind::PoolOwnedElsewhere`], [`Kind::Damaged`],
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
            match Self::try_open(name, &dir, access, locality, deadline)? {
                Some(attachment) => return Ok(Arc::new(attachment)),
                None => match missing {
                    Missing::Create(options, ranks) => create(name, &dir, options, ranks)?,
                    Missing::Fail => return Err(not_found(name, &dir)),
                    Missing::Wait if Instant::now() >= deadline => return Err(not_found(name, &dir)),
                    Missing::Wait => {
                        std::thread::sleep(pause);
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
        let Some(file) = open_pool(name, dir, &pool)? else { return Ok(None) };
        let mut superblock = read_superblock(&file, &pool)?;
        check_owner(&superblock, dir)?;
        let soft_dir = soft_dir(dir, &superblock)?;
        let members = match MembersFile::create(&soft_dir.join(MEMBERS_FILE)) {
            Ok(members) => members,
            Err(_) if !pool.exists() => return Ok(None),
            Err(e) => return Err(e),
        };
        let identity = file.metadata().map_err(|e| Error::io("looking at the pool", e))?.ino();
        let still_there = || fs::metadata(&pool).is_ok_and(|m| m.ino() == identity);
        if !still_there() {
            return Ok(None);
        }
        let first = trial::around(forebay_tier::open(superblock.tier, &pool, access)?)?;
        let first = match emulated::around(first, dir, &soft_dir, locality) {
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
        let control = members.with_lock(LOCK_SETUP, lock_timeout(deadline), || {
            if !still_there() {
                return Ok(None);
            }
            let control = open_or_rebuild_control(&soft_dir, &superblock, &*device, &pools)?;
            if control.as_ref().is_some_and(Control::is_removed) {
                // Whoever removed it held this lock, so it died before it was done.
                remove_both(dir, &soft_dir)?;
                return Ok(None);
            }
            Ok(control)
        })?;
        Ok(control.map(|control| Attachment {
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
        }))
    }

    /// Runs `f` under the lock that every opener, joiner and remover takes.
    pub(crate) fn with_setup_lock<T>(&self, deadline: Instant, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.members.with_lock(LOCK_SETUP, lock_timeout(deadline), || {
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

    /// Removes the space's files. The caller holds the setup lock and has made sure that nobody needs it.
    pub(crate) fn remove_files(&self) -> Result<()> {
        let mark = crate::control::REMOVED_MARK;
        self.control.word(crate::control::head::REMOVED).store(mark, Ordering::SeqCst);
        self.control.announce();
        self.control.announce_room();
        remove_both(&self.dir, &self.soft_dir)
    }

    /// The first pool's bytes that segments may use: the quota that a version has to fit.
    pub(crate) fn first_bytes(&self) -> u64 {
        self.pools[0].len() as u64 * self.superblock.granule_bytes
    }

    /// Bytes of segments in pool `index`, and its quota.
    pub(crate) fn fill_of(&self, index: usize) -> (u64, u64) {
        let granules = self.pools[index].clone();
        let used = granules.clone().filter(|i| self.control.granule_state(*i) != GranuleState::Free).count();
        let granule = self.superblock.granule_bytes;
        (used as u64 * granule, granules.len() as u64 * granule)
    }

    /// Whether a pool offset lies in the first pool.
    pub(crate) fn is_first(&self, offset: u64) -> bool {
        offset < self.first.capacity()
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

/// The pool file, or None if there is no such directory.
fn open_pool(name: &str, dir: &Path, pool: &Path) -> Result<Option<File>> {
    // Directories appear whole, but between the two looks: the second round decides.
    for _ in 0..2 {
        match File::open(pool) {
            Ok(file) => return Ok(Some(file)),
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(format!("opening the pool of space {name}"), e));
            }
            Err(_) if fs::metadata(dir).is_err() => return Ok(None),
            Err(_) => {}
        }
    }
    Err(Error::new(Kind::Damaged, "the directory holds no pool")
        .with("directory", dir.display())
        .hint("it is no space; choose another name, or remove it with `forebay clean`"))
}

/// The error for a space that nobody made.
fn not_found(name: &str, dir: &Path) -> Error {
    Error::new(Kind::PeerMissing, format!("no space {name} appeared")).with("directory", dir.display()).hint(
        "is its writer running, on this host, as this user, with the same FOREBAY_DIR? \
             `forebay ls` shows what is there",
    )
}

/// Removes a space's directory and that of its soft files, where it is another one.
fn remove_both(dir: &Path, soft_dir: &Path) -> Result<()> {
    remove_directory(dir)?;
    if soft_dir != dir {
        remove_directory(soft_dir)?;
    }
    Ok(())
}

/// Takes a directory away under another name first, so that nobody sees it half empty; then the lower pools that it
/// names, and at last what is in it, so that whoever finds it after a crash can go on.
pub(crate) fn remove_directory(dir: &Path) -> Result<()> {
    let (Some(parent), Some(file)) = (dir.parent(), dir.file_name()) else {
        return Err(
            Error::new(Kind::BadName, "this directory cannot be removed").with("directory", dir.display())
        );
    };
    let gone =
        parent.join(format!(".{}.gone-{}-{}", file.to_string_lossy(), process::pid(), clock::now_ns()));
    match fs::rename(dir, &gone) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(format!("removing {}", dir.display()), e)),
    }
    remove_unfinished(&gone)
}

/// Reads and checks the first page of a pool.
pub(crate) fn read_superblock(file: &File, path: &Path) -> Result<Superblock> {
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

/// Where control segment and members file stand.
fn soft_dir(dir: &Path, superblock: &Superblock) -> Result<PathBuf> {
    if superblock.tier.is_memory() {
        return Ok(dir.to_path_buf());
    }
    let soft = name::root()?.join(soft_name(superblock));
    match fs::DirBuilder::new().mode(0o700).create(&soft) {
        Ok(()) => Ok(soft),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(soft),
        Err(e) => Err(Error::io(format!("making {}", soft.display()), e)),
    }
}

/// Name of the directory of the soft files of a pool that is not in memory.
pub(crate) fn soft_name(superblock: &Superblock) -> String {
    format!(".soft-{}", uuid::Uuid::from_bytes(superblock.uuid))
}

/// Under the setup lock: the control segment as it stands, or rebuilt.
fn open_or_rebuild_control(
    soft_dir: &Path,
    superblock: &Superblock,
    device: &dyn Device,
    pools: &[Range<usize>],
) -> Result<Option<Control>> {
    let path = soft_dir.join(CONTROL_FILE);
    let boot = uuid_bytes(process::boot_id());
    if let Some(control) = Control::open(&path, superblock, &boot)? {
        return Ok(Some(control));
    }
    let new = soft_dir.join(format!("{CONTROL_FILE}.new-{}", process::pid()));
    let _ = fs::remove_file(&new); // left by a process with this pid that was killed here
    let control = Control::create(&new, superblock, &boot)?;
    for lower in &pools[1..] {
        control.set_granule_state(lower.start - 1, GranuleState::Inside);
    }
    rebuild(&control, superblock, device)?;
    fs::rename(&new, &path).map_err(|e| Error::io("putting the control segment in place", e))?;
    Ok(Some(control))
}

/// Fills an empty control segment from what the lanes hold.
fn rebuild(control: &Control, superblock: &Superblock, device: &dyn Device) -> Result<()> {
    let found = recover(device, superblock)?;
    for segment in &found.segments {
        let first = (segment.df.offset_bytes / superblock.granule_bytes) as usize;
        let length = segment.df.length_bytes.div_ceil(superblock.granule_bytes) as usize;
        control.set_granule_segment(first, segment.df.sequence, length);
        control.set_granule_last(first, segment.last_version);
        for index in first + 1..first + length {
            control.set_granule_state(index, GranuleState::Inside);
        }
        control.set_granule_state(first, GranuleState::Segment { lane: segment.lane(), slot: None });
    }
    for segment in &found.stale {
        let first = (segment.df.offset_bytes / superblock.granule_bytes) as usize;
        let length = segment.df.length_bytes.div_ceil(superblock.granule_bytes) as usize;
        control.set_granule_segment(first, segment.df.sequence, length);
        for index in first + 1..first + length {
            control.set_granule_state(index, GranuleState::Inside);
        }
        control.set_granule_state(first, GranuleState::Leaving { lane: segment.lane(), slot: None });
    }
    for incarnation in &found.incarnations {
        control.remember(incarnation.number, incarnation.size, incarnation.base);
    }
    control.oldest_word().store(found.oldest, Ordering::Release);
    let Some(last) = found.incarnations.last() else { return Ok(()) };
    let ranks = (last.size as usize).min(LANES_MAX);
    for rank in 0..ranks as u32 {
        control.set_progress(rank, last.number, last.committed[rank as usize]);
    }
    control.word(crate::control::head::BASE).store(last.base, Ordering::Release);
    control.set_producers(last.number, ranks as u32);
    let ended = last.ended.iter().all(|e| *e);
    control.set_producer_state(if ended { ProducerState::Finished } else { ProducerState::Died(None) });
    Ok(())
}

/// Makes the directory of a new space and puts it in place; that another process was first is no error.
fn create(name: &str, dir: &Path, options: &OpenOptions, ranks: u32) -> Result<()> {
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file =
        dir.file_name().ok_or_else(|| Error::new(Kind::BadName, format!("`{name}` names no directory")))?;
    let new = parent.join(format!(".{}.new-{}-{}", file.to_string_lossy(), process::pid(), clock::now_ns()));
    fs::DirBuilder::new().mode(0o700).create(&new).map_err(|e| {
        Error::io(format!("making the directory of space {name} in {}", parent.display()), e)
            .hint("the directory above must exist and be writable")
    })?;
    let made = fill_new_directory(&new, parent, &file.to_string_lossy(), options, ranks).and_then(|()| {
        match fs::rename(&new, dir) {
            Ok(()) => Ok(()),
            // Somebody else's space: ours goes, theirs is opened.
            Err(e) if matches!(e.raw_os_error(), Some(17 | 39)) => remove_unfinished(&new),
            Err(e) => Err(Error::io(format!("putting space {name} in place"), e)),
        }
    });
    if made.is_err() {
        // The first error is the one to report.
        let _ = remove_unfinished(&new);
    }
    made
}

/// Removes a directory that is not, or no longer, in place, and the lower pools that it names, if it can be read.
pub(crate) fn remove_unfinished(new: &Path) -> Result<()> {
    if let Ok(tiers) = Tiers::read(new) {
        tiers.remove()?;
    }
    fs::remove_dir_all(new).map_err(|e| Error::io(format!("removing {}", new.display()), e))
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
    let uuid = uuid::Uuid::new_v4();
    let mut tiers = Tiers::plan(&options.spill, options.when_full, name, &uuid)?;
    let (capacity_bytes, granule_bytes, segment_bytes) =
        sizes(parent, tier, options, ranks, tiers.lower_bytes())?;
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
    tiers.create(new, &superblock)?;
    if let Some(emulation) = &options.emulate {
        emulation.write(new, horizon != Horizon::None)?;
    }
    let pool = new.join(POOL_FILE);
    let device = trial::around(forebay_tier::create(tier, &pool, capacity_bytes)?)?;
    device.prepare(0..granule_bytes)?;
    device.write(0, &superblock.encode())?;
    if horizon != Horizon::None {
        device.persist(0..HEADER_BYTES)?;
        for dir in [new, parent] {
            File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("syncing the directory", e))?;
        }
    }
    Ok(())
}

/// Capacity of the pool file, granule and segment, all in bytes.
fn sizes(
    parent: &Path,
    tier: TierKind,
    options: &OpenOptions,
    ranks: u32,
    lower_bytes: u64,
) -> Result<(u64, u64, u64)> {
    let headroom = forebay_tier::capacity::headroom(parent, tier)?;
    let quota = match options.quota_bytes {
        Some(quota) if quota > headroom.bytes => {
            return Err(Error::new(Kind::TierFull, "the tier has less room than the quota asks for")
                .with("quota", crate::format_bytes(quota))
                .with("free", crate::format_bytes(headroom.bytes))
                .with("limited_by", headroom.limited_by)
                .hint("ask for a smaller quota, or use another tier"));
        }
        Some(quota) => quota,
        None => headroom.bytes / QUOTA_SHARE_DEFAULT,
    };
    let all = quota + lower_bytes;
    let granule = (all / GRANULES_MAX).next_power_of_two().max(GRANULE_BYTES_MIN);
    let share = quota / u64::from(ranks.max(1));
    let segment = options.segment_bytes.unwrap_or(SEGMENT_BYTES_DEFAULT.min(share / SEGMENTS_PER_SHARE));
    let segment = segment.max(granule) / granule * granule;
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
