//! The pools of a space: the file `tiers.json` that names the lower ones, their making, opening and removal, and
//! one device over all of them.
//!
//! A space with lower tiers sees its pools behind one another as one range of offsets, the first pool first, so
//! that a segment is found by its offset wherever it lies. Lanes are written in the first pool only; whole
//! segments move ([`crate::lane::mover`]). What the first pool promises about words, alignment and durable order holds
//! for what is written there; durability is that of the weakest pool.
//! Not here: which segment lies where (the control segment), and when one moves.

use forebay_config::{SpillTier, WhenFull};
use forebay_tier::host::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_log::format::{LowerDf, PoolPart, Superblock, HEADER_BYTES, LOWER_OFFSET};
use forebay_tier::device::direct;
use forebay_tier::plain::open_regular;
use forebay_tier::{
    Access, Device, Durability, Error, Horizon, Kind, Placement, Result, StagedWrite, TierKind,
};
use serde::{Deserialize, Serialize};

use crate::place::pool::{has_other_name, read_superblock, POOL_FILE};
use crate::place::{name, trial, whole_file};

pub(crate) const FILE: &str = "tiers.json";
const SCHEMA: &str = "forebay.tiers/1";
/// Without a quota a lower pool may take this share of what its tier has free.
const QUOTA_SHARE_DEFAULT: u64 = 4;

/// What `tiers.json` says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tiers {
    schema: String,
    /// What happens when the first pool is full.
    pub when_full: WhenFull,
    /// The lower pools, the faster first.
    pub lower: Vec<LowerPool>,
}

/// A lower pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LowerPool {
    pub tier: TierKind,
    pub path: PathBuf,
    pub capacity_bytes: u64,
}

impl Default for Tiers {
    fn default() -> Tiers {
        Tiers { schema: SCHEMA.into(), when_full: WhenFull::Block, lower: Vec::new() }
    }
}

/// Whether a directory holds a list of tiers that Forebay wrote.
pub(crate) fn is_in(dir: &Path) -> bool {
    dir.join(FILE).exists() && Tiers::read(dir).is_ok()
}

impl Tiers {
    /// What a space with these options will have; `uuid` and `name` name the pool files. Nothing is made yet.
    ///
    /// # Errors
    /// `Usage` for a policy without the tier it needs and for directories that are not there; `TierFull`.
    pub(crate) fn plan(
        spill: &[SpillTier],
        when_full: Option<WhenFull>,
        name: &str,
        uuid: &uuid::Uuid,
    ) -> Result<Tiers> {
        let when_full = when_full.unwrap_or(if spill.is_empty() { WhenFull::Block } else { WhenFull::Spill });
        if (when_full == WhenFull::Spill) == spill.is_empty() {
            return Err(Error::new(
                Kind::Usage,
                format!("when_full = {when_full} is incompatible with {} lower tier(s)", spill.len()),
            )
            .hint("spill = \"DIRECTORY\" names where data go when the first tier is full"));
        }
        let lower = spill.iter().enumerate().map(|(i, tier)| LowerPool::plan(tier, name, uuid, i));
        Ok(Tiers { lower: lower.collect::<Result<_>>()?, when_full, ..Tiers::default() })
    }

    /// Bytes of all lower pools.
    pub(crate) fn lower_bytes(&self) -> u64 {
        self.lower.iter().map(|pool| pool.capacity_bytes).sum()
    }

    /// Writes the file, with pools as large as whole granules allow and one granule more for the superblock. It comes
    /// before the lower pools, so that those left by a crash can be found.
    pub(crate) fn write(&mut self, dir: &Path, superblock: &Superblock) -> Result<()> {
        let granule = superblock.granule_bytes;
        for pool in &mut self.lower {
            pool.capacity_bytes = (pool.capacity_bytes.div_ceil(granule) + 1) * granule;
        }
        let durable = superblock.horizon != Horizon::None;
        let text = serde_json::to_string_pretty(self).expect("plain data");
        whole_file::replace(&dir.join(FILE), text.as_bytes(), durable)
    }

    /// Makes the lower pools of the first pool in the file `first`, whose superblock is written: by it a lower pool
    /// that a crash leaves is known.
    pub(crate) fn create_pools(&self, first: &Path, superblock: &Superblock) -> Result<()> {
        let first_inode = inode_of(first)?;
        self.lower.iter().try_for_each(|pool| pool.create(superblock, first_inode))
    }

    /// The file of the space in `dir`; the default where there is none.
    pub(crate) fn read(dir: &Path) -> Result<Tiers> {
        let path = dir.join(FILE);
        let text = match whole_file::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Tiers::default()),
            Err(e) => return Err(Error::io(format!("reading {}", path.display()), e)),
        };
        let unreadable =
            |kind, why: String| Err(Error::new(kind, format!("cannot parse {}: {why}", path.display())));
        match serde_json::from_slice::<Tiers>(&text) {
            Ok(tiers) if tiers.schema == SCHEMA => Ok(tiers),
            Ok(tiers) => unreadable(Kind::UnknownFormat, format!("its schema is {}", tiers.schema)),
            Err(e) => unreadable(Kind::Damaged, e.to_string()),
        }
    }

    /// Opens every pool and puts them behind one another. Returns the device over all of them.
    pub(crate) fn open(
        &self,
        first: &Arc<dyn Device>,
        superblock: &Superblock,
        access: Access,
    ) -> Result<Arc<dyn Device>> {
        if (superblock.part == PoolPart::First) == self.lower.is_empty() {
            return Err(Error::new(Kind::Damaged, "the pool does not match the list of its lower tiers")
                .with("pool", first.path().display())
                .with("lower_tiers", self.lower.len())
                .hint(format!(
                    "the list is in the file {FILE} next to the pool: check whether it was removed"
                )));
        }
        if self.lower.is_empty() {
            return Ok(first.clone());
        }
        let first_inode = inode_of(first.path())?;
        let mut pools = Pools { parts: vec![(0, first.clone())], capacity: superblock.capacity_bytes };
        for pool in &self.lower {
            let device = pool.open(superblock, first_inode, access)?;
            pools.parts.push((pools.capacity, device));
            pools.capacity = pools.capacity.checked_add(pool.capacity_bytes).ok_or_else(|| {
                Error::new(Kind::Damaged, "the lower pools of the space are too large together")
                    .with("pool", pool.path.display())
                    .with("bytes", pool.capacity_bytes)
            })?;
        }
        Ok(Arc::new(pools))
    }

    /// The granules of each pool that segments may use: all but its superblock's.
    pub(crate) fn granules(&self, first_bytes: u64, granule: u64) -> Vec<Range<usize>> {
        let mut from = 0;
        std::iter::once(first_bytes)
            .chain(self.lower.iter().map(|pool| pool.capacity_bytes))
            .map(|bytes| {
                let pool = from + 1..from + (bytes / granule) as usize;
                from = pool.end;
                pool
            })
            .collect()
    }

    /// The file of pool `index`; the first one's is given.
    pub(crate) fn path_of<'a>(&'a self, index: usize, first: &'a Path) -> &'a Path {
        index.checked_sub(1).map_or(first, |lower| &self.lower[lower].path)
    }

    /// Removes the files of the lower pools, as far as they belong to the first pool in `dir`: anybody can write a list
    /// of names. Returns those that stay, with the reason. The caller removes `dir` after it. Lower pools may lie on
    /// other file systems: where the space is durable, a power failure that brings a pool back brings `dir` back, too,
    /// and one after which `dir` is not on its way out leaves the pools.
    pub(crate) fn remove(&self, dir: &Path) -> Result<Vec<String>> {
        let looking = |e| Error::io(format!("cannot stat the pool files of {}", dir.display()), e);
        if has_other_name(dir).map_err(looking)? {
            let why = "the first pool has another name (a hard link), of which it is the lower pool too";
            let there = self.lower.iter().filter(|pool| pool.path.exists());
            return Ok(there.map(|pool| format!("{}: {why}", pool.path.display())).collect());
        }
        if self.lower.is_empty() {
            return Ok(Vec::new());
        }
        let first = first_pool(dir).map_err(looking)?;
        let is_durable = first.as_ref().is_none_or(|(superblock, _)| superblock.horizon != Horizon::None);
        if is_durable {
            sync_names_beside(dir)?;
        }
        let mut kept = Vec::new();
        for pool in &self.lower {
            // Of a space that was killed while it was made the first pool may have no superblock yet.
            let made_with = fs::metadata(dir.join(POOL_FILE)).map(|meta| meta.ino()).ok();
            match pool.why_kept(first.as_ref(), made_with) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                Err(e) => return Err(looking(e)),
                Ok(Some(why)) => kept.push(format!("{}: {why}", pool.path.display())),
                Ok(None) => match fs::remove_file(&pool.path) {
                    Err(e) if e.kind() != ErrorKind::NotFound => {
                        return Err(Error::io(format!("removing {}", pool.path.display()), e));
                    }
                    _ => {}
                },
            }
        }
        if is_durable {
            self.lower.iter().try_for_each(|pool| sync_names_beside(&pool.path))?;
        }
        Ok(kept)
    }
}

/// Makes the names in the directory of `path` persistent, where it is there.
#[cfg_attr(forebay_simulated, track_caller)]
fn sync_names_beside(path: &Path) -> Result<()> {
    match whole_file::sync_directory_of(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(Error::io(format!("syncing the directory of {}", path.display()), e))
        }
        _ => Ok(()),
    }
}

fn inode_of(path: &Path) -> Result<u64> {
    let found = fs::metadata(path).map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
    Ok(found.ino())
}

/// Superblock and inode of the pool in `dir`, where it is one.
fn first_pool(dir: &Path) -> std::io::Result<Option<(Superblock, u64)>> {
    let file = match open_regular(&dir.join(POOL_FILE)) {
        Err(e) if e.kind() == ErrorKind::NotFound || is_other(&e) => return Ok(None),
        file => file?,
    };
    let Some(page) = whole_first_page(&file)? else { return Ok(None) };
    let inode = file.metadata()?.ino();
    Ok(Superblock::decode(&page).ok().map(|superblock| (superblock, inode)))
}

/// Whether a file could not be opened because it is not a regular file: a symbolic link is ELOOP.
pub(crate) fn is_other(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::InvalidInput || error.raw_os_error() == Some(40)
}

/// The first page; None where the file is shorter.
fn whole_first_page(file: &File) -> std::io::Result<Option<Vec<u8>>> {
    match first_page(file) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        page => page.map(Some),
    }
}

fn first_page(file: &std::fs::File) -> std::io::Result<Vec<u8>> {
    let mut page = vec![0; HEADER_BYTES as usize];
    file.read_exact_at(&mut page, 0)?;
    Ok(page)
}

impl LowerPool {
    fn plan(spill: &SpillTier, name: &str, uuid: &uuid::Uuid, index: usize) -> Result<LowerPool> {
        let dir = fs::canonicalize(&spill.path).map_err(|e| {
            Error::io(format!("cannot access the spill directory {}", spill.path.display()), e)
                .hint("it must exist and be writable")
        })?;
        let tier = match spill.tier {
            Some(tier) => tier,
            None => match forebay_tier::detect(&dir)? {
                TierKind::File if direct::is_possible(&dir) => TierKind::Direct,
                other => other,
            },
        };
        let headroom = forebay_tier::capacity::headroom(&dir, tier)?;
        let capacity_bytes = match spill.quota {
            Some(0) => return Err(Error::new(Kind::Usage, "a spill tier's quota is at least one byte")),
            Some(quota) if quota > headroom.bytes => {
                return Err(Error::new(Kind::TierFull, "the spill tier has less free space than its quota")
                    .with("directory", dir.display())
                    .with("quota", crate::format_bytes(quota))
                    .with("free", crate::format_bytes(headroom.bytes))
                    .with("limited_by", headroom.limited_by)
                    .hint("use a smaller quota or another directory"));
            }
            Some(quota) => quota,
            None => headroom.bytes / QUOTA_SHARE_DEFAULT,
        };
        let path = dir.join(format!("{name}.{uuid}.{}.pool", index + 1));
        Ok(LowerPool { tier, path, capacity_bytes })
    }

    fn superblock(&self, first: &Superblock) -> Superblock {
        Superblock {
            part: PoolPart::Lower,
            tier: self.tier,
            capacity_bytes: self.capacity_bytes,
            ..first.clone()
        }
    }

    fn create(&self, first: &Superblock, first_inode: u64) -> Result<()> {
        let device = forebay_tier::create(self.tier, &self.path, self.capacity_bytes)?;
        device.prepare(0..first.granule_bytes)?;
        device.write(0, &self.first_page(first, first_inode, inode_of(&self.path)?))?;
        if first.horizon != Horizon::None {
            device.persist(0..HEADER_BYTES)?;
            whole_file::sync_directory_of(&self.path).map_err(|e| Error::io("syncing the directory", e))?;
        }
        Ok(())
    }

    /// Superblock and note of the file.
    fn first_page(&self, first: &Superblock, first_inode: u64, own_inode: u64) -> Vec<u8> {
        let note =
            LowerDf { magic: 0, reserved: 0, uuid: first.uuid, first_inode, own_inode, reserved2: 0, crc: 0 };
        let mut page = self.superblock(first).encode();
        let at = LOWER_OFFSET as usize;
        page[at..at + std::mem::size_of::<LowerDf>()].copy_from_slice(bytemuck::bytes_of(&note.sealed()));
        page
    }

    /// Whether a killed process left the file while it made it as a lower pool of this first pool: it has the name, and
    /// of its first page, as far as it is there, each byte is zero or the one that belongs there.
    fn is_unfinished(&self, file: &File, (first, first_inode): &(Superblock, u64)) -> std::io::Result<bool> {
        let uuid = uuid::Uuid::from_bytes(first.uuid).to_string();
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let whole = self.first_page(first, *first_inode, file.metadata()?.ino());
        let mut page = vec![0; HEADER_BYTES as usize];
        let there = file.metadata()?.len().min(HEADER_BYTES) as usize;
        file.read_exact_at(&mut page[..there], 0)?;
        let fits = page.iter().zip(&whole).all(|(found, whole)| *found == 0 || found == whole);
        Ok(name.contains(&uuid) && name.ends_with(".pool") && fits)
    }

    /// Why the file may not be removed together with a first pool; None where it is its lower pool.
    fn why_kept(
        &self,
        first: Option<&(Superblock, u64)>,
        made_with: Option<u64>,
    ) -> std::io::Result<Option<String>> {
        let kept = |why: &str| Ok(Some(why.to_string()));
        let file = match open_regular(&self.path) {
            Err(e) if is_other(&e) => return kept("it is not a regular file"),
            file => file?,
        };
        let Some(made) = first else {
            let page = whole_first_page(&file)?;
            let own = page.as_deref().and_then(|page| Some((page, Superblock::decode(page).ok()?)));
            let note = own.and_then(|(page, own)| LowerDf::decode(page, &own.uuid));
            let is_its = note.is_some_and(|note| {
                Some(note.first_inode) == made_with
                    && file.metadata().is_ok_and(|m| m.ino() == note.own_inode)
            });
            return if is_its { Ok(None) } else { kept("the first pool cannot be read") };
        };
        if self.is_unfinished(&file, made)? {
            return Ok(None);
        }
        let (first, first_inode) = made;
        let Some(page) = whole_first_page(&file)? else { return kept("it is not a lower pool") };
        match Superblock::decode(&page) {
            Ok(found) if found.part == PoolPart::Lower && found.uuid == first.uuid => {}
            Ok(_) => return kept("it belongs to another space"),
            Err(_) => return kept("it is not a lower pool"),
        }
        match LowerDf::decode(&page, &first.uuid)
            .filter(|note| file.metadata().is_ok_and(|m| m.ino() == note.own_inode))
        {
            Some(note) if note.first_inode == *first_inode => Ok(None),
            Some(_) => kept("it belongs to the space that this one is a copy of"),
            None => kept("which first pool it belongs to is not noted in it"),
        }
    }

    fn open(&self, first: &Superblock, first_inode: u64, access: Access) -> Result<Arc<dyn Device>> {
        let missing = |e: std::io::Error| match e.kind() {
            kind if kind == ErrorKind::NotFound || is_other(&e) => {
                Error::new(Kind::Damaged, "a lower pool of the space is missing")
                    .with("pool", self.path.display())
                    .caused_by(e)
                    .hint("mount its file system: versions stored there cannot be read without it")
            }
            _ => Error::io(format!("opening the lower pool {}", self.path.display()), e),
        };
        let file = open_regular(&self.path).map_err(missing)?;
        let found = read_superblock(&file, &self.path)?;
        let meta = file.metadata().map_err(missing)?;
        if meta.uid() != name::effective_uid()? {
            return Err(Error::new(Kind::PermissionDenied, "a lower pool belongs to another user")
                .with("pool", self.path.display())
                .with("owner", meta.uid()));
        }
        let fits = found.part == PoolPart::Lower
            && found.uuid == first.uuid
            && found.granule_bytes == first.granule_bytes
            && found.capacity_bytes == self.capacity_bytes;
        if !fits {
            return Err(Error::new(Kind::Damaged, "a lower pool belongs to another space")
                .with("pool", self.path.display()));
        }
        let note = LowerDf::decode(&first_page(&file).map_err(missing)?, &first.uuid);
        if note.is_some_and(|note| note.own_inode == meta.ino() && note.first_inode != first_inode) {
            return Err(Error::new(
                Kind::Damaged,
                "the first pool is a copy: its lower pool belongs to the original",
            )
            .with("lower_pool", self.path.display())
            .hint(
                "open the original space. To copy data use `forebay cat`; a backup must include the lower \
                 pools",
            ));
        }
        trial::around(forebay_tier::open(self.tier, &self.path, access)?)
    }
}

/// Several pools behind one another.
struct Pools {
    /// First offset and device of each.
    parts: Vec<(u64, Arc<dyn Device>)>,
    capacity: u64,
}

impl Pools {
    /// The pool that holds `offset`, and the offset in it.
    fn at(&self, offset: u64) -> (&Arc<dyn Device>, u64) {
        let (base, device) = self.parts.iter().rev().find(|(base, _)| *base <= offset).expect("starts at 0");
        (device, offset - base)
    }

    /// The pool that holds a range. One that crosses a border fails in the device, as one outside it.
    fn within(&self, range: &Range<u64>) -> (&Arc<dyn Device>, Range<u64>) {
        let (device, from) = self.at(range.start);
        (device, from..from + (range.end - range.start))
    }

    fn first(&self) -> &dyn Device {
        &*self.parts[0].1
    }
}

impl Device for Pools {
    fn kind(&self) -> TierKind {
        self.first().kind()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn pool_end(&self, offset: u64) -> u64 {
        let next = self.parts.iter().map(|(base, _)| *base).find(|base| *base > offset);
        next.unwrap_or(self.capacity)
    }

    fn path(&self) -> &Path {
        self.first().path()
    }

    fn byte_addressable(&self) -> bool {
        self.first().byte_addressable()
    }

    fn durability(&self, horizon: Horizon) -> Durability {
        self.parts.iter().map(|(_, device)| device.durability(horizon)).min().expect("at least one")
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
        let (device, range) = self.within(&range);
        device.prepare(range)
    }

    fn populate_read(&self, range: Range<u64>) {
        let (device, range) = self.within(&range);
        device.populate_read(range);
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let (device, offset) = self.at(offset);
        device.write(offset, src)
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        let (device, offset) = self.at(offset);
        device.write_checksummed(offset, src, chunk_bytes, crcs)
    }

    fn write_unordered(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
        soon: bool,
    ) -> Result<()> {
        match offset < self.parts[1].0 {
            true => self.first().write_unordered(offset, src, chunk_bytes, crcs, soon),
            // The fence that is to follow is the first pool's, so lower ones order their writes themselves.
            false => {
                let (device, offset) = self.at(offset);
                match chunk_bytes {
                    Some(chunk_bytes) => device.write_checksummed(offset, src, chunk_bytes, crcs),
                    None => device.write(offset, src),
                }
            }
        }
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        let (device, range) = self.within(&range);
        device.persist(range)
    }

    fn persist_written(&self, range: Range<u64>) -> Result<()> {
        let (device, range) = self.within(&range);
        device.persist_written(range)
    }

    fn persisted_with(&self, range: Range<u64>) -> Range<u64> {
        let (device, inside) = self.within(&range);
        let (base, with) = (range.start - inside.start, device.persisted_with(inside));
        base + with.start..base + with.end
    }

    fn fence(&self) {
        self.first().fence();
    }

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        let (device, offset) = self.at(offset);
        device.store_word(offset, value)
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        let (device, range) = self.within(&range);
        device.bytes(range)
    }

    fn will_read(&self, range: Range<u64>) -> Result<()> {
        let (device, range) = self.within(&range);
        device.will_read(range)
    }

    fn can_read(&self, range: Range<u64>) -> Result<()> {
        let (device, range) = self.within(&range);
        device.can_read(range)
    }

    fn placement(&self) -> Option<Placement> {
        self.first().placement()
    }

    fn inject_flush_failure(&self, errno: i32) -> bool {
        self.first().inject_flush_failure(errno)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let (device, offset) = self.at(offset);
        device.read(offset, out)
    }

    fn after_hole(&self, offset: u64) -> u64 {
        let from = self.parts.iter().rposition(|(base, _)| *base <= offset).expect("starts at 0");
        for (i, (base, device)) in self.parts.iter().enumerate().skip(from) {
            let end = self.parts.get(i + 1).map_or(self.capacity, |(next, _)| *next);
            let data = base + device.after_hole(offset.saturating_sub(*base));
            if data < end {
                return data;
            }
        }
        self.capacity
    }

    fn load_word(&self, offset: u64) -> u64 {
        let (device, offset) = self.at(offset);
        device.load_word(offset)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        let (device, range) = self.within(&range);
        device.stage(range)
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        // Lanes are written in the first pool only, so that is where it came from.
        self.first().unstage(staged, chunk_bytes, crcs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_log::format::SegmentDf;
    use forebay_log::recover::{recover, take_over};
    use forebay_tier::adapter::stats::Stats;
    use forebay_tier::device::recorder;

    fn pool(dir: &Path, name: &str) -> Arc<dyn Device> {
        forebay_tier::create(TierKind::Dram, &dir.join(name), 1 << 20).unwrap()
    }

    #[test]
    fn the_first_pool_hears_every_call_for_it() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let below_it = pool(dir.path(), "lower");
        let around = |first: Arc<dyn Device>| -> Arc<dyn Device> {
            let parts = vec![(0, first), (1 << 20, below_it.clone())];
            Arc::new(Pools { parts, capacity: 2 << 20 })
        };
        recorder::check_handed_down(pool(dir.path(), "first"), &around, &["capacity", "pool_end"]);
        assert_eq!(below_it.bytes(0..4096), [0; 4096], "the lower pool was written");
    }

    const GRANULE: u64 = 64 << 10;
    const GRANULES: u64 = 8;

    fn superblock(pools: u64) -> Superblock {
        Superblock {
            part: PoolPart::First,
            tier: TierKind::Dram,
            horizon: Horizon::Epoch,
            checksum: true,
            retention: (0, 0),
            uuid: [7; 16],
            boot_id: [0; 16],
            capacity_bytes: pools * GRANULES * GRANULE,
            granule_bytes: GRANULE,
            segment_bytes: GRANULE,
            created_unix_ns: 0,
            host: String::new(),
            run: String::new(),
        }
    }

    /// Memory, then two pools on blocks, with a segment in every granule but the first of each.
    #[test]
    fn a_lane_is_taken_over_with_one_flush_of_each_pool_on_blocks() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let tiers = [TierKind::Dram, TierKind::File, TierKind::File];
        let counted = tiers.iter().enumerate().map(|(i, tier)| {
            let path = dir.path().join(i.to_string());
            let pool = forebay_tier::create(*tier, &path, GRANULES * GRANULE).unwrap();
            Arc::new(Stats::new(pool))
        });
        let counted: Vec<Arc<Stats>> = counted.collect();
        let base = |i: usize| i as u64 * GRANULES * GRANULE;
        let parts = counted.iter().enumerate().map(|(i, pool)| (base(i), pool.clone() as Arc<dyn Device>));
        let pools = Pools { parts: parts.collect(), capacity: base(3) };
        let superblock = superblock(3);
        for (sequence, index) in (0..3 * GRANULES).filter(|index| index % GRANULES != 0).enumerate() {
            let at = index * GRANULE;
            pools.prepare(at..at + GRANULE).unwrap();
            let header = SegmentDf {
                magic: 0,
                version: 0,
                uuid: superblock.uuid,
                offset_bytes: at,
                length_bytes: GRANULE,
                sequence: sequence as u64,
                first_record: 0,
                base_version: 0,
                rank: 0,
                incarnation: 1,
                group_size: 1,
                crc: 0,
            };
            pools.write(at, bytemuck::bytes_of(&header.sealed())).unwrap();
        }
        let found = recover(&pools, &superblock).unwrap();
        assert_eq!((found.segments.len() as u64, found.incarnations.len()), (3 * (GRANULES - 1), 1));
        take_over(&pools, &superblock, &found, 2, 1, 0).unwrap();
        let flushes: Vec<u64> = counted.iter().map(|pool| pool.snapshot().persist.operations).collect();
        // In memory each header by itself, and the note of the new incarnation.
        assert_eq!(flushes, [GRANULES - 1 + 1, 1, 1]);
    }
}
