//! Opening a space by its name, and making it where it is missing: its sizes, its files under a hidden name, its place;
//! and putting an empty one in another's place.

use forebay_config::OpenOptions;
use forebay_tier::host::fs::{self, File};
use forebay_tier::host::time::Instant;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_log::format::{PoolPart, Superblock, HEADER_BYTES};
use forebay_tier::adapter::throttle::Locality;
use forebay_tier::capacity::Headroom;
use forebay_tier::{clock, process, Access, Error, Horizon, Kind, Result, TierKind};

use crate::control::Control;
use crate::open::attach::Attachment;
use crate::open::contents;
use crate::open::directory::{put_in_place, remove_leftovers, remove_unfinished, take_away};
use crate::open::new_directory::NewDirectory;
use crate::open::opening::run_token;
use crate::place::demand::{Demand, Wanted};
use crate::place::name::{behind_links, place_of};
use crate::place::pool::{retention_code, uuid_bytes, GRANULES_MAX, POOL_FILE};
use crate::place::tiers::Tiers;
use crate::place::{emulated, name, trial};

/// A granule is at least this large.
const GRANULE_BYTES_MIN: u64 = if cfg!(forebay_simulated) { 16 << 10 } else { 256 << 10 };
/// An ordinary segment: large enough that allocating one is rare, small enough to fault in ahead.
const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// Without a quota a space may take this share of what the tier has free.
const QUOTA_SHARE_DEFAULT: u64 = 4;
/// A segment is at most this part of one rank's share of the quota, so that a lane can release what was read
/// while it writes on.
const SEGMENTS_PER_SHARE: u64 = 4;

/// What to do when the space is not there.
#[derive(Clone, Copy)]
pub(crate) enum Missing<'a> {
    /// Make it.
    Create(New<'a>),
    /// Wait for it; where an agent joins the nodes of a job, it learns that the space is wanted, and whether also one
    /// whose writers have ended.
    Wait(bool),
    /// Give up.
    Fail,
}

/// What a new space is made with.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    /// Its options.
    pub options: &'a OpenOptions,
    /// Ranks of its writers.
    pub ranks: u32,
    /// Number of its first version: readers count none below it as missed. 0 but for a copy of another space.
    pub first_version: u64,
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
        let mut demand = Demand::of(name, Wanted::of(matches!(missing, Missing::Wait(true)), run_token()));
        loop {
            let opened = Self::try_open(name, &dir, access, locality, deadline);
            match opened.map_err(|e| contents::explained(name, &dir, e))? {
                Some(attachment) => return Ok(Arc::new(attachment)),
                None => match missing {
                    Missing::Create(new) => {
                        name::make_root_for(name)?;
                        create(name, &dir, new)?;
                    }
                    Missing::Fail => return Err(not_found(format!("space {name} does not exist"), &dir)),
                    Missing::Wait(_) if Instant::now() >= deadline => {
                        let what = format!("timeout while waiting for space {name} to be created");
                        return Err(demand.explained(&dir, not_found(what, &dir)));
                    }
                    Missing::Wait(_) => {
                        demand.renew(&dir)?;
                        forebay_tier::host::thread::sleep(pause);
                        pause = (pause * 2).min(Duration::from_millis(10));
                    }
                },
            }
        }
    }
}

/// The space of this name, for tests that look into it or change it.
#[cfg(test)]
pub(crate) fn attached(name: &str) -> Arc<Attachment> {
    let deadline = Instant::now() + Duration::from_secs(60);
    Attachment::open(name, Access::Write, Locality::Local, Missing::Fail, deadline).unwrap()
}

/// The error for a space that is not there.
fn not_found(what: String, dir: &Path) -> Error {
    Error::new(Kind::PeerMissing, what).with("directory", dir.display()).hint(
        "check that its writer runs on this host, as this user, with the same FOREBAY_DIR; `forebay ls` lists the \
         existing spaces",
    )
}

/// Makes the directory of a new space and puts it in place; that another process was first is no error.
fn create(name: &str, dir: &Path, new: New<'_>) -> Result<()> {
    let dir = behind_links(dir);
    let (parent, file) = place_of(name, &dir)?;
    remove_leftovers(&parent, Some(&file));
    let new = make_new(name, &parent, &file, new)?;
    put_in_place(name, &new.path, &dir).map(drop)
}

/// A new space under a hidden name, with its shared state: a space whose shared state does not fit would be there, and
/// no process could open it. Nothing is left of one that cannot be made.
fn make_new(name: &str, parent: &Path, file: &str, new: New<'_>) -> Result<NewDirectory> {
    let New { options, ranks, first_version } = new;
    let making = NewDirectory::make(parent, file)
        .map_err(|e| e.hint("the directory above the space must exist and be writable"))?;
    let made = fill_new_directory(&making.path, parent, file, options, ranks).and_then(|()| {
        let deadline = Instant::now() + options.timeout;
        Attachment::try_open(name, &making.path, Access::Write, Locality::Local, deadline)
    });
    match made {
        Ok(space) => {
            if let Some(space) = space.filter(|_| first_version > 0) {
                space.control.begin_at(first_version);
            }
            Ok(making)
        }
        Err(e) => {
            // The first error is the one to report.
            let _ = remove_unfinished(&making.path);
            let hidden = making.path.file_name().unwrap_or_default().to_string_lossy();
            Err(e.renamed(&hidden, file))
        }
    }
}

/// Under the setup lock of the space that is there: puts an empty one in its place, which has another pool. The new one
/// is whole before the old one goes, so that one that cannot be made costs nothing; only where the tier does not hold
/// both does the old one go first, and the caller makes the new one. A process that is killed here leaves the old one,
/// the new one, or a free name, and perhaps a directory with a hidden name, which the next process that makes the space
/// removes, as `forebay clean` does.
pub(crate) fn replace(old: &Attachment, new: New<'_>) -> Result<()> {
    let New { options, ranks, .. } = new;
    let dir = behind_links(&old.dir);
    let (parent, file) = place_of(&old.name, &dir)?;
    contents::check_own(&dir)?;
    remove_leftovers(&parent, Some(&file));
    let new = match make_new(&old.name, &parent, &file, new) {
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
        put_in_place(&old.name, &new.path, &dir)?;
    }
    if let Some(gone) = gone {
        let kept = remove_unfinished(&gone)?;
        if !kept.is_empty() {
            eprintln!(
                "forebay: space {} was replaced; lower pools that could not be removed: {}",
                old.name,
                kept.join("; ")
            );
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
        emulated::write(emulation, new, horizon != Horizon::None)?;
    }
    let pool = new.join(POOL_FILE);
    let device = trial::around(forebay_tier::create(tier, &pool, capacity_bytes)?)?;
    device.prepare(0..granule_bytes)?;
    device.write(0, &superblock.encode())?;
    if horizon != Horizon::None {
        // By it a lower pool is known that a power failure leaves.
        device.persist(0..HEADER_BYTES)?;
    }
    if horizon != Horizon::None {
        // First: lower pools may lie on another file system, where a power failure leaves them although it takes back
        // the directory that names them.
        for dir in [new, parent] {
            File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io("syncing the directory", e))?;
        }
    }
    tiers.create_pools(&pool, &superblock)
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
            return Err(Error::new(Kind::TierFull, "the tier has less free space than the quota")
                .with("quota", crate::format_bytes(quota))
                .with("free", crate::format_bytes(headroom.bytes))
                .with("limited_by", &headroom.limited_by)
                .hint("use a smaller quota or another tier"));
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

/// How long to wait for other processes that open or rebuild spaces, in all.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn attach(name: &str) -> Result<Arc<Attachment>> {
    attach_until(name, Instant::now() + OPEN_TIMEOUT)
}

/// As [`attach`], with a wait of its caller.
pub(crate) fn attach_until(name: &str, deadline: Instant) -> Result<Arc<Attachment>> {
    Attachment::open(name, Access::Read, Locality::Local, Missing::Fail, deadline)
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
