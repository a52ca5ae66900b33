//! A level: one place with steps in it, and the commit protocol on that place.
//!
//! A step is a directory `s0000000012-r000003` (step 12, saved by run 3 of the program). Each rank writes, in this
//! order: its data file, its manifest under a hidden name, then renames that. The rank that finds all manifests there
//! writes the commit record in the same way and makes the names durable: first those of the step, then that of the
//! step's directory. A step counts when its commit record can be read.
//!
//! Crash argument: the content of data and manifest is durable before the manifest has its name, and the commit record
//! is written only by a process that saw all manifests. So a durable commit record means durable pieces, except where
//! a *name* of a piece was lost with the crash before the last sync: then the step was never acknowledged, and readers
//! reject it because a piece is missing. Two ranks may both write the commit record: its bytes are the same. A rank
//! that finds the record also makes the names durable before it relies on it: the rank that wrote it may not have
//! done so yet.
//!
//! A manifest that has its name is not written again, nor is the data behind it: another rank may be about to commit
//! it. A save that failed after that, and is called again, goes on with what is there.
//!
//! Dropping a step removes the commit record first, so that a step is never half there and still counts.
//!
//! An incremental step stands on a full one of the same run (`packing.rs`). It is committed only when that one is, and
//! a full one stays as long as a step that stays stands on it.

use std::sync::Arc;
use std::time::Duration;

use forebay_tier::adapter::fault::{FaultCounts, FaultPlan};
use forebay_tier::{Durability, Error, Kind, Result, TierKind};

mod code;
mod groups;
mod guard;
mod info;
pub(crate) mod keep;
pub(crate) mod load;
pub(crate) mod packing;
mod unpack;

pub use code::Code;
pub(crate) use groups::{plan, Group, Slot};
pub use guard::Guard;
pub(crate) use guard::{homes, missing};
pub use info::LevelInfo;
pub use keep::Keep;
pub use packing::Packing;

use crate::format::{
    self, commit_name, damaged, data_name, decode_metric, directory_of, encode_metric, is_manifest,
    manifest_file, manifest_name, metric_name, rank_of_manifest, seal_of, step_of, Base, Commit, Manifest,
    RankEntry, StepId, Stored, Variable, COMMIT, DATA, METRIC_BYTES,
};
use crate::place::{is_pattern, object_store, Directories, Directory, Nodes, Own, Part, Place, Written};
use keep::Reason;
use load::read_piece;
use packing::Known;

/// How long a store of objects may take for an answer to those who save nothing there.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a level is looked at anew when other ranks go on meanwhile, which they cannot do often without this one.
const PRUNE_ATTEMPTS: usize = 8;

/// One level of a checkpoint.
#[derive(Clone)]
pub struct Level {
    /// Where its files are.
    pub place: Arc<dyn Place>,
    /// Which committed steps stay, at least.
    pub keep: Keep,
    /// What else is kept of each step, on other nodes; None: nothing.
    pub guard: Option<Arc<Guard>>,
    /// How steps are stored.
    pub(crate) packing: Packing,
    /// What this process knows of its own steps here.
    pub(crate) known: Arc<Known>,
}

/// A step in a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub id: StepId,
    /// Whether it has a commit record.
    pub committed: bool,
}

/// Where the variables of a piece go, and how long its data file is.
pub(crate) fn arrange(lengths: impl IntoIterator<Item = u64>) -> (Vec<u64>, u64) {
    let (mut offsets, mut end) = (Vec::new(), 0u64);
    for bytes in lengths {
        offsets.push(end);
        end = (end + bytes).next_multiple_of(format::DATA_ALIGN);
    }
    (offsets, end)
}

/// A rank's piece, before it is written.
pub(crate) struct Piece<'a> {
    pub(crate) id: StepId,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) saved_unix_ns: u64,
    pub(crate) program: &'a str,
    pub(crate) variables: &'a [Variable],
    pub(crate) sources: &'a [&'a [u8]],
    /// The value of the step, of which rank 0's counts.
    pub(crate) metric: Option<f64>,
}

impl<'a> Piece<'a> {
    /// The piece that a manifest describes, for another level. `variables` are those of the manifest.
    pub(crate) fn of(
        manifest: &'a Manifest,
        variables: &'a [Variable],
        sources: &'a [&'a [u8]],
        metric: Option<f64>,
    ) -> Piece<'a> {
        let Manifest { id, rank, size, saved_unix_ns, ref program, .. } = *manifest;
        Piece { id, rank, size, saved_unix_ns, program, variables, sources, metric }
    }

    /// Its manifest, which still says nothing of where the bytes lie.
    pub(crate) fn manifest(&self, data_bytes: u64) -> Manifest {
        Manifest {
            id: self.id,
            rank: self.rank,
            size: self.size,
            saved_unix_ns: self.saved_unix_ns,
            data_bytes,
            program: self.program.to_string(),
            base: None,
            variables: Vec::new(),
        }
    }
}

impl Level {
    /// A level whose steps are all full, as they are, and nothing else is kept of them.
    pub fn new(place: Arc<dyn Place>, keep: Keep) -> Level {
        Level { place, keep, guard: None, packing: Packing::default(), known: Arc::default() }
    }

    /// A level with a directory for each node, as one rank sees it, or a process that is no rank.
    pub(crate) fn of_nodes(
        info: &LevelInfo,
        own: Option<Own>,
        faults: Option<(FaultPlan, Arc<FaultCounts>)>,
        durability: Durability,
    ) -> Level {
        let family = Arc::new(Directories::new(&info.dir, info.tier, faults));
        let ranks_per_node = info.ranks_per_node.unwrap_or(1);
        let nodes = Arc::new(Nodes::new(family, own, ranks_per_node, (info.tier, durability)));
        let guard = info.redundancy.map(|code| Arc::new(Guard { code, nodes: nodes.clone() }));
        Level { guard, packing: info.packing, ..Level::new(nodes, info.keep) }
    }

    /// A level as those see it who save nothing there.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn for_looking(info: &LevelInfo) -> Result<Level> {
        if is_pattern(&info.dir)? {
            let one = info.directories()?.pop().unwrap_or_else(|| info.dir.clone());
            let durability = Directory::for_looking(&one, info.tier)?.durability();
            return Ok(Level::of_nodes(info, None, None, durability));
        }
        let place: Arc<dyn Place> = match info.tier {
            TierKind::Object => object_store(&info.dir.to_string_lossy(), LOOK_TIMEOUT)?,
            tier => Arc::new(Directory::for_looking(&info.dir, tier)?),
        };
        Ok(Level::new(place, info.keep))
    }

    /// This rank's piece of a step where an earlier call has given its manifest a name; None: it may be written. One
    /// with other bytes goes, where no other process can have committed it.
    ///
    /// # Errors
    /// `VersionExists` where that is not so; those of reading.
    pub(crate) fn published(&self, piece: &Piece<'_>) -> Result<Option<Manifest>> {
        let name = manifest_name(piece.id, piece.rank);
        let Some(record) = self.place.load(&name, format::MANIFEST_BYTES_MAX)? else { return Ok(None) };
        match Manifest::decode(&record).and_then(|found| Ok(self.holds(&found, piece)?.then_some(found))) {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(e) if e.kind() == Kind::Damaged => {}
            Err(e) => return Err(e),
        }
        let alone = piece.size == 1 && self.commit_record(piece.id)?.is_none();
        if alone && self.drop_files(piece.id, Some(piece.rank))? {
            return Ok(None);
        }
        let error = format!("{} holds other bytes in {}", piece.id, self.place.describe());
        Err(Error::new(Kind::VersionExists, error)
            .hint("an earlier call saved it and failed afterwards; save under the next number"))
    }

    /// Refuses a step of which this rank has written nothing, where it has written a later one of the run: other ranks
    /// take such a step for one that is never completed ([`Level::is_given_up`]), and drop their pieces of it.
    ///
    /// # Errors
    /// `VersionOutOfOrder`; those of reading.
    pub(crate) fn check_newest(&self, piece: &Piece<'_>) -> Result<()> {
        for found in self.steps()?.iter().take_while(|found| found.id > piece.id) {
            if found.id.incarnation == piece.id.incarnation && self.has(found.id, piece.rank)? {
                let error = format!("{} was not written, and step {} was", piece.id, found.id.step);
                return Err(
                    Error::new(Kind::VersionOutOfOrder, error).hint("save that step again, or the next one")
                );
            }
        }
        Ok(())
    }

    /// Whether a piece that is there is the one that would be written.
    fn holds(&self, manifest: &Manifest, piece: &Piece<'_>) -> Result<bool> {
        let same = |(stored, variable): (&Stored, &Variable)| stored.variable == *variable;
        let alike = manifest.size == piece.size
            && manifest.variables.len() == piece.variables.len()
            && manifest.variables.iter().zip(piece.variables).all(same)
            && (piece.rank > 0 || self.metric_if_known(piece.id)? == piece.metric);
        if !alike {
            return Ok(false);
        }
        let there = read_piece(self, manifest)?;
        Ok(there.iter().zip(piece.sources).all(|(there, source)| there == source))
    }

    /// Writes a piece: value of the step, data, then manifest. It does not count before [`Level::commit`].
    pub(crate) fn write(&self, piece: &Piece<'_>) -> Result<(Manifest, Option<Written>)> {
        self.note_metric(piece)?;
        match self.packing.is_on() {
            true => packing::write(self, piece),
            false => self.write_plain(piece).map(|(manifest, written, _)| (manifest, written)),
        }
    }

    /// As [`Level::write`], every chunk as it is; also how a later step can stand on this one.
    pub(crate) fn write_plain(&self, piece: &Piece<'_>) -> Result<(Manifest, Option<Written>, Base)> {
        let (offsets, data_bytes) = arrange(piece.sources.iter().map(|source| source.len() as u64));
        let parts: Vec<Part<'_>> = offsets
            .iter()
            .zip(piece.sources)
            .map(|(offset, bytes)| Part { offset: *offset, bytes })
            .collect();
        self.place.make_dir(&directory_of(piece.id))?;
        let data = data_name(piece.id, piece.rank);
        let (sums, written) = self.place.store_data(&data, data_bytes, &parts)?;
        let stored = |((variable, part), crcs): ((&Variable, &Part<'_>), Vec<u32>)| Stored {
            variable: variable.clone(),
            offset: part.offset,
            bytes: part.bytes.len() as u64,
            crcs,
            packed: Vec::new(),
        };
        let mut manifest = piece.manifest(data_bytes);
        manifest.variables = piece.variables.iter().zip(&parts).zip(sums).map(stored).collect();
        let base = self.publish_manifest(&manifest)?;
        Ok((manifest, written, base))
    }

    /// Gives a manifest its name; how a later step can name it.
    pub(crate) fn publish_manifest(&self, manifest: &Manifest) -> Result<Base> {
        let record = manifest.encode();
        self.publish(&manifest_name(manifest.id, manifest.rank), manifest.rank, &record)?;
        Ok(Base {
            step: manifest.id.step,
            manifest_bytes: record.len() as u64,
            manifest_crc: seal_of(&record).expect("an encoded manifest has a checksum"),
        })
    }

    fn note_metric(&self, piece: &Piece<'_>) -> Result<()> {
        let Some(value) = piece.metric.filter(|_| piece.rank == 0) else { return Ok(()) };
        self.place.make_dir(&directory_of(piece.id))?;
        self.publish(&metric_name(piece.id), piece.rank, &encode_metric(value))
    }

    /// The value of a step; None when it was saved without one.
    ///
    /// # Errors
    /// `Damaged`, those of the operating system.
    pub fn metric(&self, id: StepId) -> Result<Option<f64>> {
        let Some(bytes) = self.place.load(&metric_name(id), METRIC_BYTES)? else { return Ok(None) };
        decode_metric(&bytes).map(Some)
    }

    /// As [`Level::metric`]; a damaged one counts as none: how good the step is can no longer be said.
    pub(crate) fn metric_if_known(&self, id: StepId) -> Result<Option<f64>> {
        match self.metric(id) {
            Err(e) if e.kind() == Kind::Damaged => Ok(None),
            value => value,
        }
    }

    /// Why the committed steps of a list (the newest first) stay, beside the `last` ones.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn reasons(&self, steps: &[Found], last: usize) -> Result<Vec<(StepId, Vec<Reason>)>> {
        let mut committed = Vec::new();
        for step in steps.iter().filter(|step| step.committed) {
            let value = match self.keep.best {
                None => None,
                Some(_) => self.metric_if_known(step.id)?,
            };
            committed.push((step.id, value));
        }
        let reasons = Keep { last, ..self.keep }.reasons(&committed);
        Ok(committed.into_iter().map(|(id, _)| id).zip(reasons).collect())
    }

    /// Gives a file its name once its content is durable. The hidden name is this rank's own.
    fn publish(&self, name: &str, rank: u32, content: &[u8]) -> Result<()> {
        let (dir, file) = name.split_once('/').expect("files lie in the directory of their step");
        self.place.publish(name, &format!("{dir}/.{file}.{rank:05}"), content)
    }

    /// Writes the commit record if every rank's manifest is there; whether the step is committed now, with names that
    /// are durable. `fence` is asked before, and its error keeps the step from being committed.
    pub(crate) fn commit(
        &self,
        id: StepId,
        rank: u32,
        size: u32,
        fence: &dyn Fn() -> Result<()>,
    ) -> Result<bool> {
        if size > 1 {
            let names = self.place.list(&directory_of(id))?;
            let there = names.iter().filter(|name| is_manifest(name)).count();
            if there < size as usize && !names.iter().any(|name| name == COMMIT) {
                return Ok(false);
            }
        }
        let committed = self.is_committed(id);
        // Of several nodes some may lack it: the rank that wrote it could not, and another one does.
        if committed && self.place.is_everywhere(&commit_name(id))? {
            return self.settle(id).map(|()| true);
        }
        let mut commit = Commit { id, saved_unix_ns: 0, ranks: Vec::new() };
        for of in 0..size {
            let Some(bytes) = self.place.load(&manifest_name(id, of), format::MANIFEST_BYTES_MAX)? else {
                return if committed { self.settle(id).map(|()| true) } else { Ok(false) };
            };
            let manifest = Manifest::decode(&bytes)?;
            commit.saved_unix_ns = commit.saved_unix_ns.max(manifest.saved_unix_ns);
            commit.ranks.push(RankEntry {
                manifest_bytes: bytes.len() as u64,
                data_bytes: manifest.data_bytes,
                manifest_crc: seal_of(&bytes).expect("a decoded manifest has a checksum"),
                base: manifest.base.map(|base| base.step),
            });
        }
        if !self.commit_bases(&commit, rank, fence)? {
            return Ok(false);
        }
        fence()?;
        self.publish(&commit_name(id), rank, &commit.encode())?;
        self.settle(id).map(|()| true)
    }

    /// Makes the names of a committed step durable, where this process has not done so.
    pub(crate) fn settle(&self, id: StepId) -> Result<()> {
        if !self.known.is_settled(id) {
            self.place.sync(&directory_of(id))?;
            self.place.sync("")?;
            self.known.note_settled(id);
        }
        Ok(())
    }

    /// Commits the steps of a run that are whole and have no commit record: the rank that should have written it could
    /// not. They need not be saved again, and do not hold the space of the next one.
    pub(crate) fn commit_whole(
        &self,
        (rank, size): (u32, u32),
        run: u64,
        fence: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let steps = self.steps()?;
        let open = steps.iter().take_while(|step| !step.committed).filter(|step| step.id.incarnation == run);
        // The oldest first, as they were saved.
        open.collect::<Vec<_>>()
            .into_iter()
            .rev()
            .try_for_each(|step| self.commit(step.id, rank, size, fence).map(drop))
    }

    /// The steps that are there, the newest first.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn steps(&self) -> Result<Vec<Found>> {
        let mut ids: Vec<StepId> = self.place.list("")?.iter().filter_map(|name| step_of(name)).collect();
        // Looked at in this order too: a step is committed before the next one is, so that none which is older than one
        // that counts looks as if it did not yet.
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        let found = |id| {
            let committed = self.place.list(&directory_of(id))?.iter().any(|name| name == COMMIT);
            Ok(Found { id, committed })
        };
        ids.into_iter().map(found).collect()
    }

    /// The commit record of a step; None when it has none.
    ///
    /// # Errors
    /// `Damaged`, `UnknownFormat`, those of the operating system.
    pub fn commit_record(&self, id: StepId) -> Result<Option<Commit>> {
        let most = format::commit_bytes(format::SIZE_MAX);
        let Some(bytes) = self.place.load(&commit_name(id), most)? else { return Ok(None) };
        let commit = Commit::decode(&bytes)?;
        if commit.id != id {
            return Err(damaged("a commit record", "it belongs to another step").with("found", commit.id));
        }
        Ok(Some(commit))
    }

    /// Whether a step has a commit record that can be read.
    pub(crate) fn is_committed(&self, id: StepId) -> bool {
        matches!(self.commit_record(id), Ok(Some(_)))
    }

    /// The manifest of a rank, checked against the commit record.
    ///
    /// # Errors
    /// `Damaged` also when it is missing or another one than the commit record names.
    pub fn manifest(&self, commit: &Commit, rank: u32) -> Result<Manifest> {
        let missing = || damaged(&format!("rank {rank}"), "its manifest is missing");
        let name = manifest_name(commit.id, rank);
        let bytes = self.place.load(&name, format::MANIFEST_BYTES_MAX)?.ok_or_else(missing)?;
        commit.check_manifest(rank, &bytes)
    }

    /// Ranks whose manifest a step without a commit record lacks.
    pub(crate) fn missing_ranks(&self, id: StepId) -> Result<(Vec<u32>, u32)> {
        let names = self.place.list(&directory_of(id))?;
        let there: Vec<u32> = names.iter().filter_map(|name| rank_of_manifest(name)).collect();
        let first =
            there.first().map(|rank| self.place.load(&manifest_name(id, *rank), format::MANIFEST_BYTES_MAX));
        let size = match first {
            Some(Ok(Some(bytes))) => Manifest::decode(&bytes).map_or(0, |manifest| manifest.size),
            _ => 0,
        };
        Ok(((0..size).filter(|rank| !there.contains(rank)).collect(), size))
    }

    /// Takes away what is not needed any more: committed steps beyond the last `keep` that nothing else keeps, and
    /// unfinished ones of earlier runs. Of this run's steps only the files of `rank`, which may go on being read until
    /// then; of earlier runs all.
    pub(crate) fn prune(&self, keep: usize, rank: u32, incarnation: u64) -> Result<()> {
        for _ in 0..PRUNE_ATTEMPTS {
            if self.prune_seen(&self.steps()?, keep, rank, incarnation)? {
                break;
            }
        }
        Ok(())
    }

    /// As [`Level::prune`], of steps as they were seen (the newest first); false when other ranks have gone on since
    /// and it cannot be said any more what they stand on.
    pub(crate) fn prune_seen(
        &self,
        steps: &[Found],
        keep: usize,
        rank: u32,
        incarnation: u64,
    ) -> Result<bool> {
        let mut committed = 0;
        let newest = steps.iter().find(|step| step.committed);
        let shield = self.shield(steps)?;
        let reasons = if self.keep.is_selective() { self.reasons(steps, keep)? } else { Vec::new() };
        // Newest first, so that what stands on a full step is seen, and goes, before it. What a step that was not yet
        // committed stands on is what the newest committed one stands on, or that one, or newer.
        let mut needed = self.known.pinned();
        for step in steps {
            let current = step.id.incarnation >= incarnation;
            committed += usize::from(step.committed);
            let by_reason = reasons.iter().any(|(id, why)| *id == step.id && !why.is_empty());
            if !step.committed && current && committed == 0 {
                // Other ranks may be about to save it, in a directory that is empty so far. Without a manifest of this
                // rank, what it has there is of a step that was dropped while it was read, or of a save that failed.
                let gone = !needed.contains(&step.id) && self.is_given_up(step.id, steps)?;
                if gone || !self.has(step.id, rank)? {
                    self.drop_files(step.id, Some(rank))?;
                }
                continue;
            }
            let stays = step.committed && (committed <= keep || by_reason || shield == Some(step.id));
            if stays {
                if committed > keep && by_reason {
                    self.place.let_be(&data_name(step.id, rank));
                }
                let Some(bases) = self.bases(step.id)? else { return Ok(false) };
                needed.extend(bases);
            } else if !needed.contains(&step.id) {
                // What an older step goes for must be there after a power failure.
                newest.map_or(Ok(()), |newest| self.settle(newest.id))?;
                self.drop_step(step.id, current.then_some(rank))?;
            }
        }
        Ok(true)
    }

    /// Names of the manifests of a step.
    pub(crate) fn manifests(&self, id: StepId) -> Result<Vec<String>> {
        Ok(self.place.list(&directory_of(id))?.into_iter().filter(|name| is_manifest(name)).collect())
    }

    /// Whether a step can never be committed: a rank has saved a newer one of the run, and this one not, because its
    /// save or its way down failed.
    fn is_given_up(&self, id: StepId, steps: &[Found]) -> Result<bool> {
        let newer = |step: &&Found| step.id.incarnation == id.incarnation && step.id.step > id.step;
        let mut later = Vec::new();
        for step in steps.iter().filter(newer) {
            later.extend(self.manifests(step.id)?);
        }
        // Looked at after the newer ones: what a rank saves first is seen first.
        let here = if later.is_empty() { Vec::new() } else { self.manifests(id)? };
        Ok(later.iter().any(|name| !here.contains(name)))
    }

    /// The newest step whose redundancy is complete: it stays until a newer one is as safe. None without redundancy.
    fn shield(&self, steps: &[Found]) -> Result<Option<StepId>> {
        if self.guard.is_none() {
            return Ok(None);
        }
        for step in steps.iter().filter(|step| step.committed) {
            if self.is_protected(step.id)? {
                return Ok(Some(step.id));
            }
        }
        Ok(None)
    }

    /// Whether a rank's piece is there.
    pub(crate) fn has(&self, id: StepId, rank: u32) -> Result<bool> {
        Ok(self.place.list(&directory_of(id))?.contains(&manifest_file(rank)))
    }

    /// Takes a step away: it does not count from the first moment on. With `only_rank` the files of other
    /// ranks stay for them.
    pub(crate) fn drop_step(&self, id: StepId, only_rank: Option<u32>) -> Result<()> {
        let dir = directory_of(id);
        self.known.forget_settled(id);
        self.place.remove(&commit_name(id))?;
        match self.drop_files(id, only_rank)? {
            true => self.place.remove_dir(&dir).map(drop),
            false => Ok(()),
        }
    }

    /// Takes away the files of a step; false when one is still being read.
    fn drop_files(&self, id: StepId, only_rank: Option<u32>) -> Result<bool> {
        let dir = directory_of(id);
        let mut files = self.place.list(&dir)?;
        // Manifests before data: what has no manifest is known to be on its way out.
        files.sort_by_key(|file| file.ends_with(DATA));
        for file in files {
            let of = file.trim_start_matches('.').split('.').next().and_then(|rank| rank.parse::<u32>().ok());
            if only_rank.is_some() && only_rank != of {
                continue;
            }
            let name = format!("{dir}/{file}");
            match only_rank.is_some() && file.ends_with(DATA) {
                true if !self.place.retire(&name)? => return Ok(false),
                true => {}
                false => self.place.remove(&name)?,
            }
        }
        Ok(true)
    }

    /// Frees the space for one more piece of so many bytes, if that is possible now. Where there is space for one piece
    /// only, the newest one goes as soon as a level `below` has its step committed and no process reads it.
    pub(crate) fn reclaim(&self, bytes: u64, rank: u32, incarnation: u64, below: &[Level]) -> Result<bool> {
        let most = self.place.files_max(bytes);
        let least = if below.is_empty() { 2 } else { 1 };
        if most < least {
            let (what, hint) = match most {
                0 => {
                    ("one piece is larger than the memory that was allowed", "save to a lower level directly")
                }
                _ => (
                    "the last level is too small for two pieces, and a step stays until the next one is whole",
                    "add a lower level",
                ),
            };
            return Err(Error::new(Kind::TierFull, what)
                .with("piece_bytes", bytes)
                .hint(format!("allow more memory, or {hint}")));
        }
        if most == 1 {
            for step in self.steps()? {
                if below.iter().any(|level| level.is_committed(step.id)) {
                    let current = step.id.incarnation >= incarnation;
                    self.drop_step(step.id, current.then_some(rank))?;
                }
            }
        }
        self.prune(self.keep.last.min(most - 1).max(1), rank, incarnation)?;
        let written = match self.packing.is_on() {
            true => self.may_go_ahead(rank, incarnation)?,
            false => self.place.has_capacity(),
        };
        Ok(written && self.known.has_capacity())
    }
}

/// A step whose commit record is missing, as an error.
pub(crate) fn not_committed(level: &Level, id: StepId) -> Error {
    let error = Error::new(Kind::Damaged, format!("{id} was not committed"));
    match level.missing_ranks(id) {
        Ok((missing, size)) if !missing.is_empty() => {
            let few: Vec<String> = missing.iter().take(8).map(u32::to_string).collect();
            error.with("missing_ranks", few.join(" ")).with("size", size)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_step_that_another_rank_begins_stays() {
        let dir = tempfile::tempdir().unwrap();
        let place = Arc::new(Directory::new(dir.path(), TierKind::File, "00001").unwrap());
        let level = Level::new(place.clone(), Keep::last(1));
        let id = StepId { incarnation: 2, step: 7 };
        place.make_dir(&directory_of(id)).unwrap();
        level.prune(1, 1, 2).unwrap();
        assert_eq!(level.steps().unwrap(), [Found { id, committed: false }]);
        // One of an earlier run goes.
        level.prune(1, 1, 3).unwrap();
        assert_eq!(level.steps().unwrap(), []);
    }

    #[test]
    fn the_newest_step_goes_only_when_a_level_below_has_it() {
        let (above, below) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let place = Directory::new(above.path(), TierKind::Dram, "00000").unwrap();
        // Space for one piece: 64 KiB and what is around it.
        let above = Level::new(Arc::new(place.with_files_max(2, Some(100 << 10))), Keep::last(1));
        let place = Directory::new(below.path(), TierKind::File, "00000").unwrap();
        let below = [Level::new(Arc::new(place), Keep::last(1))];
        let id = StepId { incarnation: 1, step: 0 };
        let save = |level: &Level| {
            let variables = [Variable {
                name: "u".into(),
                dtype: forebay_log::Dtype::U8,
                shape: forebay_log::Dims::from_slice(&[9]),
                part: forebay_log::NdBox::whole(&[9]),
            }];
            let (variables, sources) = (&variables[..], &[&[7u8; 9][..]][..]);
            level
                .write(&Piece {
                    id,
                    rank: 0,
                    size: 1,
                    saved_unix_ns: 0,
                    program: "",
                    variables,
                    sources,
                    metric: None,
                })
                .map(drop)
                .unwrap();
            assert!(level.commit(id, 0, 1, &|| Ok(())).unwrap());
        };
        save(&above);
        assert!(!above.reclaim(9, 0, 1, &below).unwrap());
        assert!(above.is_committed(id));
        save(&below[0]);
        assert!(above.reclaim(9, 0, 1, &below).unwrap());
        assert!(!above.is_committed(id) && below[0].is_committed(id));
        assert_eq!(above.reclaim(9, 0, 1, &[]).unwrap_err().kind(), Kind::TierFull);
    }
}
