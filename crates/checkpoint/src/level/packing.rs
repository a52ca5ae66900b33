//! Packed steps: incremental ones, which hold only the chunks that changed since a full one, and compressed ones.
//!
//! An incremental step stands on the last full step of the same rank, run and level, and on nothing else. What changed
//! is found by a hash of 128 bits for each chunk (XXH3, with a seed drawn anew by each process), kept in memory since
//! the full step: 16 bytes for 64 KiB. A CRC-32C would not do: of 2^32 changed chunks one has the old checksum, which
//! is one in 256 TiB, and the restored array would then be wrong without anybody noticing. With 128 bits that is one in
//! 10^38; who wants to make a chunk with the hash of another would have to know the seed, and gains what a program can
//! have anyway that writes its own arrays. Comparing bytes would be certain, and needs a copy of the full step at
//! hand, which does not fit into memory and a disk takes as long to read as to write.
//!
//! A full step is written every `full_every`-th time; when more than three quarters of the bytes have changed; when the
//! arrays, the run or the process are others; and after a step that failed. Chunks are compressed one by one, in
//! parallel; one that does not become shorter lies there as it is.
//!
//! Invariants: a step that others stand on stands on none; it was committed before they are; it is dropped after them.
//!
//! Memory: the compressed bytes of one piece are held until they are written; of an incremental piece whose changes are
//! scattered, those.

use forebay_tier::host::sync::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use forebay_tier::checksum::crc32c;
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;
use zstd::bulk::Compressor;

use super::{arrange, Level, Piece};
use crate::format::{
    damaged, data_name, directory_of, step_of, Base, Commit, Manifest, Packed, StepId, Stored, Variable,
    CHUNK_BYTES, COMMIT,
};
use crate::place::{threads, Part, Written};

/// Chunks that a thread looks at before it takes the next ones: 4 MiB, a few ms.
const GROUP_CHUNKS: usize = 64;

/// Changed chunks that lie together are written from where they are when they are this many bytes on average; shorter
/// ones are copied together first, because a device takes one long write faster than many short ones.
const RUN_BYTES_MIN: usize = 1 << 20;

/// Steps of this process that are still to be read from a level before the next one may be written there.
const PINS_MAX: usize = 2;

/// Steps that a rank may have written before other ranks have.
const AHEAD_MAX: usize = 2;

/// How a level's steps are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packing {
    /// Every so many steps a full one, and incremental ones between; 0: all are full.
    #[serde(default)]
    pub full_every: u32,
    /// The level of zstd that chunks are compressed with; None: they are not.
    #[serde(default)]
    pub zstd: Option<i32>,
}

impl Packing {
    /// Whether steps are not simply stored as they are.
    pub fn is_on(&self) -> bool {
        *self != Packing::default()
    }

    /// How chunks are compressed, as it is said in options; None: they are not.
    pub fn compression(&self) -> Option<String> {
        self.zstd.map(|level| format!("zstd:{level}"))
    }

    /// In words, as a level's options have it; nothing where steps are stored as they are.
    pub fn words(&self) -> String {
        let every = (self.full_every > 0).then(|| format!("incremental={}", self.full_every));
        let how = self.compression().map(|how| format!("compress={how}"));
        every.into_iter().chain(how).collect::<Vec<_>>().join(",")
    }

    /// The number of steps in `incremental=N`.
    ///
    /// # Errors
    /// `Usage`.
    pub(crate) fn parse_incremental(text: &str) -> Result<u32> {
        let every = text.parse().ok().filter(|every| *every > 0).ok_or_else(|| {
            Error::new(Kind::Usage, format!("incremental=`{text}`"))
                .hint("the interval of full steps, 1 (all) or more")
        });
        every.map(|every| if every == 1 { 0 } else { every })
    }

    /// The level of compression in `zstd`, `zstd:LEVEL` or `none`.
    ///
    /// # Errors
    /// `Usage`.
    pub(crate) fn parse_compress(text: &str) -> Result<Option<i32>> {
        let level = match text.split_once(':').unwrap_or((text, "")) {
            ("none", "") => return Ok(None),
            ("zstd", "") if !text.contains(':') => Some(zstd::DEFAULT_COMPRESSION_LEVEL),
            ("zstd", level) => level.parse().ok().filter(|n| zstd::compression_level_range().contains(n)),
            _ => None,
        };
        level.map(Some).ok_or_else(|| {
            Error::new(Kind::Usage, format!("compress=`{text}`"))
                .hint("none, zstd or zstd:LEVEL, where 1 is fast, 3 usual and 19 slow")
        })
    }
}

/// What a process knows of its own steps in a level.
#[derive(Default)]
pub(crate) struct Known {
    full: Mutex<Option<Full>>,
    pins: Mutex<Vec<(StepId, Option<StepId>)>>,
    /// Committed steps whose names this process has made durable.
    settled: Mutex<HashSet<StepId>>,
}

/// Keeps a step, and the one it stands on, from being dropped while a reader needs it.
pub(crate) struct Pin {
    known: Arc<Known>,
    id: StepId,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.known.pins().retain(|(id, _)| *id != self.id);
    }
}

impl Known {
    fn full(&self) -> MutexGuard<'_, Option<Full>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pins(&self) -> MutexGuard<'_, Vec<(StepId, Option<StepId>)>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settled(&self) -> MutexGuard<'_, HashSet<StepId>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_settled(&self, id: StepId) -> bool {
        self.settled().contains(&id)
    }

    pub(crate) fn note_settled(&self, id: StepId) {
        self.settled().insert(id);
    }

    pub(crate) fn forget_settled(&self, id: StepId) {
        self.settled().remove(&id);
    }

    /// Steps that stay for now.
    pub(crate) fn pinned(&self) -> Vec<StepId> {
        self.pins().iter().flat_map(|(id, base)| [Some(*id), *base]).flatten().collect()
    }

    /// Whether another step may be written before those that were have been read.
    pub(crate) fn has_capacity(&self) -> bool {
        self.pins().len() < PINS_MAX
    }
}

/// The last full step of this rank: what a later one is compared with.
struct Full {
    id: StepId,
    base: Base,
    variables: Vec<Variable>,
    /// Of each variable's chunks.
    hashes: Vec<Vec<u128>>,
    crcs: Vec<Vec<u32>>,
    /// Incremental steps that stand on it.
    since: u32,
}

impl Full {
    /// Whether this piece may stand on it.
    fn serves(&self, level: &Level, piece: &Piece<'_>) -> Result<bool> {
        let fits = self.id.incarnation == piece.id.incarnation
            && self.since + 1 < level.packing.full_every
            && self.variables == piece.variables;
        if !fits || !level.has(self.id, piece.rank)? {
            return Ok(false);
        }
        // Ranks that lag behind may still have to commit it. One that no rank has committed by the step after is not to
        // be stood on for long.
        Ok(level.is_committed(self.id) || (piece.size > 1 && self.since == 0))
    }
}

impl Level {
    /// Keeps a step of this process here until it has been read.
    pub(crate) fn pin(&self, manifest: &Manifest) -> Pin {
        self.known.pins().push((manifest.id, manifest.base_id()));
        Pin { known: self.known.clone(), id: manifest.id }
    }

    /// Whether a rank may write one more packed piece, or has to wait for other ranks. Files are not counted here: how
    /// many full ones stay depends on what the pieces of all ranks stand on.
    pub(crate) fn may_go_ahead(&self, rank: u32, incarnation: u64) -> Result<bool> {
        let mut ahead = 0;
        for step in self.steps()?.iter().take_while(|step| !step.committed) {
            ahead += usize::from(step.id.incarnation == incarnation && self.has(step.id, rank)?);
        }
        Ok(ahead < AHEAD_MAX)
    }

    /// The full steps that a committed step stands on; None when it is not committed any more.
    ///
    /// # Errors
    /// Those of reading. A damaged record stands on nothing: that step cannot be taken any more.
    pub(crate) fn bases(&self, id: StepId) -> Result<Option<Vec<StepId>>> {
        if self.place.tier().is_memory() {
            return Ok(Some(Vec::new()));
        }
        match self.commit_record(id) {
            Ok(commit) => Ok(commit.map(|commit| commit.bases())),
            Err(e) if e.kind() == Kind::Damaged => Ok(Some(Vec::new())),
            Err(e) => Err(e),
        }
    }

    /// Sees to it that what a step stands on is committed, with durable names, before it is. False where other ranks
    /// have gone on from the step meanwhile.
    ///
    /// # Errors
    /// `Damaged` when that is not possible.
    pub(crate) fn commit_bases(
        &self,
        step: &Commit,
        rank: u32,
        fence: &dyn Fn() -> Result<()>,
    ) -> Result<bool> {
        for base in step.bases() {
            // The last rank to save the full step has committed it before it saved this one, unless that failed.
            if !self.commit(base, rank, step.ranks.len() as u32, fence)? {
                if self.is_gone_on_from(step.id)? {
                    return Ok(false);
                }
                // A later run drops what earlier ones left.
                fence()?;
                return Err(damaged(
                    &base.to_string(),
                    "an incremental step depends on it, and it is incomplete",
                )
                .with("incremental", step.id.step)
                .hint("the next save writes a full step"));
            }
        }
        Ok(true)
    }

    /// Whether other ranks have committed a later step of the run since this one was seen without a record. Then its
    /// bases may be dropped, also where it stays: another rank's piece of a later step stands on it.
    fn is_gone_on_from(&self, id: StepId) -> Result<bool> {
        let mut ids: Vec<StepId> = self.place.list("")?.iter().filter_map(|name| step_of(name)).collect();
        ids.retain(|later| later.incarnation == id.incarnation && *later > id);
        // The oldest first: a record is removed only after that of a later step was written.
        ids.sort_unstable();
        for later in ids {
            if self.place.list(&directory_of(later))?.iter().any(|name| name == COMMIT) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Writes a piece as the level's packing says: data, then manifest.
pub(crate) fn write(level: &Level, piece: &Piece<'_>) -> Result<(Manifest, Option<Written>)> {
    // Taken out, so that after a failure the next step is a full one.
    let before = level.known.full().take();
    let before = match before {
        Some(full) if full.serves(level, piece)? => Some(full),
        _ => None,
    };
    let mut hashes = None;
    if let Some(mut full) = before {
        let now = hashes_of(piece.sources)?;
        let changed = changed(&full.hashes, &now);
        if few(&changed, piece.sources) {
            let manifest = pack(level, piece, Some((&full, &changed)))?.0;
            full.since += 1;
            *level.known.full() = Some(full);
            return Ok((manifest, None));
        }
        hashes = Some(now);
    }
    let (manifest, written, base) = match level.packing.zstd {
        Some(_) => pack(level, piece, None).map(|(manifest, base)| (manifest, None, base))?,
        None => plain(level, piece, &mut hashes)?,
    };
    if level.packing.full_every > 0 {
        let hashes = hashes.map_or_else(|| hashes_of(piece.sources), Ok)?;
        let crcs = manifest.variables.iter().map(|stored| stored.crcs.clone()).collect();
        let variables = piece.variables.to_vec();
        *level.known.full() = Some(Full { id: piece.id, base, variables, hashes, crcs, since: 0 });
    }
    Ok((manifest, written))
}

/// Writes a full piece as it is, and hashes it while the device works, if that was not done.
fn plain(
    level: &Level,
    piece: &Piece<'_>,
    hashes: &mut Option<Vec<Vec<u128>>>,
) -> Result<(Manifest, Option<Written>, Base)> {
    if hashes.is_some() {
        return level.write_plain(piece);
    }
    std::thread::scope(|scope| {
        // Where no thread can be started, it is done afterwards.
        let hashing = std::thread::Builder::new().spawn_scoped(scope, || hashes_of(piece.sources)).ok();
        let written = level.write_plain(piece)?;
        let found = hashing.map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
        *hashes = found.transpose()?;
        Ok(written)
    })
}

#[cold]
fn panicked() -> Error {
    Error::new(Kind::Internal, "a thread that packs panicked")
}

/// Which chunks are not what they were.
fn changed(before: &[Vec<u128>], now: &[Vec<u128>]) -> Vec<Vec<bool>> {
    let differ =
        |(before, now): (&Vec<u128>, &Vec<u128>)| before.iter().zip(now).map(|(b, n)| b != n).collect();
    before.iter().zip(now).map(differ).collect()
}

/// Whether so little has changed that an incremental step is worth it.
fn few(changed: &[Vec<bool>], sources: &[&[u8]]) -> bool {
    let bytes = |(marks, source): (&Vec<bool>, &&[u8])| -> usize {
        marks
            .iter()
            .zip(source.chunks(CHUNK_BYTES))
            .filter(|(changed, _)| **changed)
            .map(|(_, c)| c.len())
            .sum()
    };
    let all: usize = sources.iter().map(|source| source.len()).sum();
    changed.iter().zip(sources).map(bytes).sum::<usize>() <= all / 4 * 3
}

/// Some chunks of one source that lie together.
struct Group<'a> {
    source: usize,
    /// The number of its first chunk.
    first: usize,
    bytes: &'a [u8],
}

/// Does something with every group of chunks, on several threads; the results in the order of the groups.
fn each_group<T: Send>(
    sources: &[&[u8]],
    work: impl Fn(&Group<'_>) -> Result<T> + Sync,
) -> Result<Vec<(usize, T)>> {
    let mut groups = Vec::new();
    for (source, bytes) in sources.iter().enumerate() {
        let cut = bytes.chunks(GROUP_CHUNKS * CHUNK_BYTES).enumerate();
        groups.extend(cut.map(|(nth, bytes)| Group { source, first: nth * GROUP_CHUNKS, bytes }));
    }
    let next = AtomicUsize::new(0);
    let take = || -> Result<Vec<(usize, T)>> {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(at) else { return Ok(done) };
            done.push((at, work(group)?));
        }
    };
    let mut found = std::thread::scope(|scope| {
        let helpers = threads().min(groups.len()).saturating_sub(1);
        // Where no thread can be started, the others do its part.
        let started: Vec<_> =
            (0..helpers).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, take).ok()).collect();
        let mut found = take()?;
        for thread in started {
            found.extend(thread.join().map_err(|_| panicked())??);
        }
        Ok::<_, Error>(found)
    })?;
    found.sort_unstable_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(at, result)| (groups[at].source, result)).collect())
}

/// The hash of every chunk.
fn hashes_of(sources: &[&[u8]]) -> Result<Vec<Vec<u128>>> {
    let seed = seed();
    let hash = |chunk: &[u8]| XxHash3_128::oneshot_with_seed(seed, chunk);
    let groups =
        each_group(sources, |group| Ok(group.bytes.chunks(CHUNK_BYTES).map(hash).collect::<Vec<u128>>()))?;
    let mut all = vec![Vec::new(); sources.len()];
    groups.into_iter().for_each(|(source, hashes)| all[source].extend(hashes));
    Ok(all)
}

/// The same for the whole life of a process, and another one in each.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| RandomState::new().hash_one(0))
}

/// What a variable's part of a packed data file is.
#[derive(Default)]
struct Body<'a> {
    /// What lies in the file, one behind the other.
    runs: Vec<std::borrow::Cow<'a, [u8]>>,
    packed: Vec<Packed>,
    crcs: Vec<u32>,
}

/// Writes a packed piece: of an incremental one the chunks that are marked.
fn pack(level: &Level, piece: &Piece<'_>, on: Option<(&Full, &[Vec<bool>])>) -> Result<(Manifest, Base)> {
    let marks = |source: usize, nth: usize| on.is_none_or(|(_, changed)| changed[source][nth]);
    let mut bodies = match level.packing.zstd {
        Some(zstd) => compressed(piece.sources, zstd, &marks)?,
        None => copied(piece.sources, &marks),
    };
    let (offsets, data_bytes) =
        arrange(bodies.iter().map(|body| body.runs.iter().map(|run| run.len() as u64).sum()));
    let mut parts = Vec::new();
    for (body, offset) in bodies.iter().zip(&offsets) {
        let mut offset = *offset;
        for run in &body.runs {
            parts.push(Part { offset, bytes: run });
            offset += run.len() as u64;
        }
    }
    level.place.make_dir(&directory_of(piece.id))?;
    let sums = level.place.store_packed(&data_name(piece.id, piece.rank), data_bytes, &parts)?;
    drop(parts);
    let mut manifest = piece.manifest(data_bytes);
    manifest.base = on.map(|(full, _)| full.base);
    let mut sums = sums.into_iter();
    for (at, (body, offset)) in bodies.iter_mut().zip(offsets).enumerate() {
        let runs: Vec<u32> = sums.by_ref().take(body.runs.len()).flatten().collect();
        if level.packing.zstd.is_none() {
            // The checksums of what lies there as it is were computed while it was written.
            let mut runs = runs.into_iter();
            body.packed
                .iter_mut()
                .filter(|packed| packed.bytes > 0)
                .zip(runs.by_ref())
                .for_each(|(p, crc)| p.crc = crc);
            body.crcs = body.packed.iter().map(|packed| packed.crc).collect();
        }
        let mut crcs = std::mem::take(&mut body.crcs);
        if let Some((full, changed)) = on {
            let unchanged =
                changed[at].iter().zip(&full.crcs[at]).zip(&mut crcs).filter(|((changed, _), _)| !**changed);
            unchanged.for_each(|((_, before), crc)| *crc = *before);
        }
        manifest.variables.push(Stored {
            variable: piece.variables[at].clone(),
            offset,
            bytes: piece.sources[at].len() as u64,
            crcs,
            packed: std::mem::take(&mut body.packed),
        });
    }
    let base = level.publish_manifest(&manifest)?;
    Ok((manifest, base))
}

/// The marked chunks as they are. A device takes runs of whole chunks, except at the end of a variable.
fn copied<'a>(sources: &[&'a [u8]], marks: &dyn Fn(usize, usize) -> bool) -> Vec<Body<'a>> {
    let body = |(source, bytes): (usize, &&'a [u8])| {
        let bytes: &'a [u8] = bytes;
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        let mut packed = Vec::new();
        for (nth, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let marked = marks(source, nth);
            packed.push(Packed { bytes: if marked { chunk.len() as u32 } else { 0 }, crc: 0 });
            let at = nth * CHUNK_BYTES;
            match runs.last_mut() {
                _ if !marked => {}
                Some(run) if run.end == at => run.end = at + chunk.len(),
                _ => runs.push(at..at + chunk.len()),
            }
        }
        let changed: usize = runs.iter().map(|run| run.len()).sum();
        let runs = match changed / runs.len().max(1) >= RUN_BYTES_MIN {
            true => runs.into_iter().map(|run| (&bytes[run]).into()).collect(),
            false => vec![runs.into_iter().map(|run| &bytes[run]).collect::<Vec<_>>().concat().into()],
        };
        Body { runs, packed, crcs: Vec::new() }
    };
    sources.iter().enumerate().map(body).collect()
}

/// The marked chunks compressed, in parallel.
fn compressed(
    sources: &[&[u8]],
    zstd: i32,
    marks: &(dyn Fn(usize, usize) -> bool + Sync),
) -> Result<Vec<Body<'static>>> {
    let groups = each_group(sources, |group| {
        let mut compressor = Compressor::new(zstd).map_err(|e| Error::io("cannot begin to compress", e))?;
        let mut scratch = vec![0; zstd::zstd_safe::compress_bound(CHUNK_BYTES)];
        let (mut bytes, mut packed, mut crcs) = (Vec::new(), Vec::new(), Vec::new());
        for (nth, chunk) in group.bytes.chunks(CHUNK_BYTES).enumerate() {
            if !marks(group.source, group.first + nth) {
                packed.push(Packed { bytes: 0, crc: 0 });
                crcs.push(0);
                continue;
            }
            let failed = |e| Error::io("cannot compress a chunk", e);
            let length = compressor.compress_to_buffer(chunk, &mut scratch[..]).map_err(failed)?;
            let stored = if length < chunk.len() { &scratch[..length] } else { chunk };
            bytes.extend_from_slice(stored);
            packed.push(Packed { bytes: stored.len() as u32, crc: crc32c(stored) });
            crcs.push(crc32c(chunk));
        }
        Ok((bytes, packed, crcs))
    })?;
    let mut bodies: Vec<Body<'static>> = sources.iter().map(|_| Body::default()).collect();
    let mut joined: Vec<Vec<u8>> = sources.iter().map(|_| Vec::new()).collect();
    for (source, (bytes, packed, crcs)) in groups {
        joined[source].extend(bytes);
        bodies[source].packed.extend(packed);
        bodies[source].crcs.extend(crcs);
    }
    bodies.iter_mut().zip(joined).for_each(|(body, bytes)| body.runs = vec![bytes.into()]);
    Ok(bodies)
}

#[cfg(test)]
mod tests {
    use forebay_log::{Dims, Dtype, NdBox};
    use forebay_tier::TierKind;

    use super::*;
    use crate::place::Directory;

    const LENGTH: usize = 3 * CHUNK_BYTES;

    fn level(dir: &tempfile::TempDir, keep: usize) -> Level {
        let place = Directory::new(dir.path(), TierKind::File, "00000").unwrap();
        let packing = Packing { full_every: 4, zstd: None };
        Level { packing, ..Level::new(Arc::new(place), crate::level::Keep::last(keep)) }
    }

    /// Writes a step of which one chunk changes; the step that it stands on.
    fn write(level: &Level, step: u64, rank: u32, size: u32) -> Manifest {
        let shape = [LENGTH as u64];
        let variables = [Variable {
            name: "u".into(),
            dtype: Dtype::U8,
            shape: Dims::from_slice(&shape),
            part: NdBox::whole(&shape),
        }];
        let mut bytes = vec![7; LENGTH];
        bytes[CHUNK_BYTES] = step as u8;
        let id = StepId { incarnation: 1, step };
        let (variables, sources) = (&variables[..], &[&bytes[..]][..]);
        level
            .write(&Piece { id, rank, size, saved_unix_ns: 0, program: "", variables, sources, metric: None })
            .unwrap()
            .0
    }

    #[test]
    fn what_is_still_to_be_read_stays_with_what_it_stands_on() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let level = level(&dir, 1);
        let commit = |step| {
            let manifest = write(&level, step, 0, 1);
            assert!(level.commit(manifest.id, 0, 1, &|| Ok(())).unwrap());
            manifest
        };
        let there = || level.steps().unwrap().iter().map(|step| step.id.step).collect::<Vec<_>>();
        commit(1);
        let second = commit(2);
        assert_eq!(second.base.map(|base| base.step), Some(1));
        let pin = level.pin(&second);
        assert!(level.known.has_capacity());
        let other = level.pin(&commit(3));
        assert!(!level.known.has_capacity());
        drop(other);
        // A full one, on which nothing older has a claim.
        (4..=5).for_each(|step| drop(commit(step)));
        level.prune(1, 0, 1).unwrap();
        assert_eq!(there(), [5, 2, 1]);
        drop(pin);
        level.prune(1, 0, 1).unwrap();
        assert_eq!(there(), [5]);
    }

    #[test]
    fn nothing_is_committed_that_stands_on_what_is_not() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        // Each rank knows its own.
        let ranks = [level(&dir, 2), level(&dir, 2)];
        let both = |step| [0, 1].map(|rank| write(&ranks[rank], step, rank as u32, 2));
        let id = |step| StepId { incarnation: 1, step };
        let [first, _] = both(1);
        let [second, _] = both(2);
        assert_eq!((first.base, second.base.map(|base| base.step)), (None, Some(1)));
        // The full step's commit had failed; it is made good.
        assert!(!ranks[0].is_committed(id(1)));
        assert!(ranks[1].commit(id(2), 1, 2, &|| Ok(())).unwrap());
        assert!(ranks[0].is_committed(id(1)) && ranks[0].is_committed(id(2)));
        // Or it cannot be made good.
        both(3);
        ranks[0].drop_step(id(1), Some(0)).unwrap();
        let error = ranks[1].commit(id(3), 1, 2, &|| Ok(())).unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged);
        assert!(!ranks[0].is_committed(id(3)));
        // A rank whose full step is gone stands on it no more.
        assert_eq!(write(&ranks[0], 4, 0, 2).base, None);
    }

    /// Two ranks that have saved steps, both pieces of each; rank 0 has committed them.
    fn saved(dir: &tempfile::TempDir, keep: usize, steps: std::ops::RangeInclusive<u64>) -> [Level; 2] {
        let ranks = [level(dir, keep), level(dir, keep)];
        for step in steps {
            (0..2).for_each(|rank| drop(write(&ranks[rank], step, rank as u32, 2)));
            commit(&ranks[0], step);
        }
        ranks
    }

    fn commit(level: &Level, step: u64) {
        assert!(level.commit(StepId { incarnation: 1, step }, 0, 2, &|| Ok(())).unwrap());
    }

    fn steps(level: &Level) -> Vec<(u64, bool)> {
        level.steps().unwrap().iter().map(|step| (step.id.step, step.committed)).collect()
    }

    #[test]
    fn a_rank_that_is_late_with_a_commit_misses_no_base_that_others_dropped() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let id = |step| StepId { incarnation: 1, step };
        let ranks = saved(&dir, 1, 1..=2);
        // A full step of rank 0, and then one of rank 1: step 3 stays for rank 0, without what rank 1's stands on.
        for (step, full) in [(3, 0), (4, 1)] {
            *ranks[full].known.full() = None;
            (0..2).for_each(|rank| drop(write(&ranks[rank], step, rank as u32, 2)));
        }
        let seen = |step| {
            commit(&ranks[0], step);
            ranks[0].commit_record(id(step)).unwrap().unwrap()
        };
        let (third, fourth) = (seen(3), seen(4));
        (0..2).for_each(|rank| ranks[rank].prune(1, rank as u32, 1).unwrap());
        assert_eq!(steps(&ranks[0]), [(4, true), (3, true)]);
        assert_eq!(third.bases(), [id(1)]);
        let late = |step: &Commit| ranks[1].commit_bases(step, 1, &|| Ok(()));
        assert!(!late(&third).unwrap());
        // Also while another rank drops it: first its record.
        ranks[0].place.remove(&crate::format::commit_name(id(3))).unwrap();
        assert!(!late(&third).unwrap());
        // A step that no rank has gone on from is damaged, also if it has a record.
        ranks[0].drop_files(id(3), Some(0)).unwrap();
        assert_eq!(late(&fourth).unwrap_err().kind(), Kind::Damaged);
    }

    #[test]
    fn a_rank_that_saw_what_is_gone_since_drops_nothing_that_a_newer_step_stands_on() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let ranks = saved(&dir, 1, 1..=2);
        (0..2).for_each(|rank| drop(write(&ranks[rank], 3, rank as u32, 2)));
        let seen = ranks[1].steps().unwrap();
        assert_eq!(steps(&ranks[1]), [(3, false), (2, true), (1, true)]);
        // The other rank goes on: step 2, which rank 1 takes for the newest one, goes.
        commit(&ranks[0], 3);
        ranks[0].prune(1, 0, 1).unwrap();
        assert!(!ranks[1].prune_seen(&seen, 1, 1, 1).unwrap());
        assert!(ranks[1].is_committed(StepId { incarnation: 1, step: 1 }));
        ranks[1].prune(1, 1, 1).unwrap();
        assert_eq!(steps(&ranks[1]), [(3, true), (1, true)]);
        (0..2).for_each(|rank| assert!(ranks[0].has(StepId { incarnation: 1, step: 1 }, rank).unwrap()));
    }

    #[test]
    fn what_a_kept_step_stands_on_stays_also_where_a_newer_one_stands_on_that() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let ranks = [level(&dir, 2), level(&dir, 2)];
        // Rank 1 writes a full step where rank 0 stands on the first one, and the other way round.
        for step in 1..=3 {
            if step > 1 {
                *ranks[3 - step as usize].known.full() = None;
            }
            (0..2).for_each(|rank| drop(write(&ranks[rank], step, rank as u32, 2)));
            commit(&ranks[0], step);
        }
        (0..2).for_each(|rank| ranks[rank].prune(2, rank as u32, 1).unwrap());
        assert_eq!(steps(&ranks[0]), [(3, true), (2, true), (1, true)]);
    }
}
