//! Repair: what is missing or damaged of a committed step, brought back from copies and parity on other nodes.
//!
//! Guarantees: only bytes that match the committed checksums make a step whole again; every file is written beside the
//! old one and renamed, data before manifests before commit records, so that an end in the middle leaves a step that
//! is at least as good as before and that the next repair goes on with. Nothing of another step is ever used: records
//! that name another commit record are not believed.
//!
//! Not here: who repairs. One process at a time does.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use forebay_tier::checksum::crc32c;
use forebay_tier::Result;
use serde::Serialize;

use super::parity::{read_padded, write, Codec};
use super::{hidden, state};
use crate::format::{
    commit_name, damaged, data_name, directory_of, first_holder, keeper_of, kept_file, manifest_name, Commit,
    Member, ParityRecord, StepId, CHUNK_BYTES, PARITY,
};
use crate::level::load::verify_piece;
use crate::level::{homes, not_committed, plan, Code, Guard, Keep, Level};
use crate::place::{Blob, Place};

/// A file that was brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repair {
    /// The step.
    pub step: u64,
    /// The run that saved it.
    pub run: u64,
    /// `data`, `manifest`, `commit record`, or `parity` (of `partner`: the copy).
    pub what: &'static str,
    /// Whose it is; of parity the rank that keeps it, of a commit record none.
    pub rank: Option<u32>,
    /// The node it lies on.
    pub node: String,
    /// What it was brought back from: `partner`, `xor:4`, `rs:4+2`, or `copy` of a file on another node.
    pub from: String,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {} of run {}: {}", self.step, self.run, self.what)?;
        if let Some(rank) = self.rank {
            write!(f, " of rank {rank}")?;
        }
        write!(f, " on node {} was repaired from {}", self.node, self.from)
    }
}

/// A record of redundancy that can be read, and where it is.
struct Kept {
    place: Arc<dyn Place>,
    rank: u32,
    record: ParityRecord,
}

/// The kind of redundancy that a record is of, in the words of a level.
fn in_words(record: &ParityRecord) -> String {
    let members = record.members.len() as u32;
    match record.code {
        1 => Code::Partner.to_string(),
        2 => Code::Xor { nodes: members }.to_string(),
        _ => Code::ReedSolomon { data: members - record.lost_max, parity: record.lost_max }.to_string(),
    }
}

/// One repair of one step.
struct Work<'a> {
    level: &'a Level,
    guard: &'a Guard,
    commit: Commit,
    kept: Vec<Kept>,
    /// The node of each rank's piece.
    homes: Vec<String>,
    done: Vec<Repair>,
}

/// Makes a step of a level whole again. Returns what was brought back: nothing when it was whole.
///
/// # Errors
/// `Damaged` when redundancy is not enough, or when the step was never committed; those of the places. What could be
/// brought back until then stays.
pub(crate) fn repair(level: &Level, id: StepId) -> Result<Vec<Repair>> {
    let Some(guard) = &level.guard else {
        return Err(damaged(&id.to_string(), "the level keeps no redundancy"));
    };
    let mut kept = records(guard, id)?;
    let commit = commit_of(level, guard, id, &kept)?;
    let bytes = commit.encode();
    kept.retain(|kept| kept.record.commit == bytes);
    let homes = places_of(guard, &commit, &kept)?;
    let mut work = Work { level, guard, commit, kept, homes, done: Vec::new() };
    for rank in 0..work.commit.ranks.len() as u32 {
        work.piece(rank)?;
    }
    work.commit_records(&bytes)?;
    work.parity();
    Ok(work.done)
}

/// Every record of a step that can be read.
fn records(guard: &Guard, id: StepId) -> Result<Vec<Kept>> {
    let mut found = Vec::new();
    for (_, place) in guard.nodes.all()? {
        for (rank, row) in place.list(&directory_of(id))?.iter().filter_map(|file| keeper_of(file)) {
            if let Ok(record) = state::record(&*place, id, rank, row) {
                found.push(Kept { place: place.clone(), rank, record });
            }
        }
    }
    Ok(found)
}

/// The commit record of a step: a node's, or one that redundancy keeps.
fn commit_of(level: &Level, guard: &Guard, id: StepId, kept: &[Kept]) -> Result<Commit> {
    for (_, place) in guard.nodes.all()? {
        let one = Level::new(place, Keep::last(1));
        if let Ok(Some(commit)) = one.commit_record(id) {
            return Ok(commit);
        }
    }
    let kept = kept.iter().filter_map(|kept| Commit::decode(&kept.record.commit).ok());
    let commit = kept.into_iter().find(|commit| commit.id == id);
    commit.map_or_else(|| Err(level.commit_record(id).err().unwrap_or_else(|| not_committed(level, id))), Ok)
}

/// The node of each rank's piece: as redundancy says, else where something of it is, else where it would be written.
fn places_of(guard: &Guard, commit: &Commit, kept: &[Kept]) -> Result<Vec<String>> {
    let there = homes(guard, commit.id, commit.ranks.len() as u32)?;
    let mut found = Vec::new();
    for (rank, there) in there.into_iter().enumerate() {
        let rank = rank as u32;
        let members = kept.iter().flat_map(|kept| &kept.record.members);
        let said = members.into_iter().find(|member| member.rank == Some(rank)).map(|m| m.node.clone());
        found.push(match said.or(there) {
            Some(node) => node,
            None => guard.nodes.home(rank)?,
        });
    }
    Ok(found)
}

impl Work<'_> {
    fn note(&mut self, what: &'static str, rank: Option<u32>, node: &str, from: String) {
        let (step, run) = (self.commit.id.step, self.commit.id.incarnation);
        self.done.push(Repair { step, run, what, rank, node: node.to_string(), from });
    }

    /// Makes a rank's piece whole.
    fn piece(&mut self, rank: u32) -> Result<()> {
        if verify_piece(self.level, &self.commit, rank).is_ok() {
            return Ok(());
        }
        // Data may be right under a manifest that is not: it is looked at again when that is back.
        let manifest = self.manifest(rank)?;
        let whole = |work: &Work<'_>| verify_piece(work.level, &work.commit, rank);
        let missing = |from: &str| match from {
            "" => damaged(&format!("rank {rank}"), "nothing is left that protects it"),
            from => damaged(&format!("rank {rank}"), &format!("{from} is not enough to rebuild it")),
        };
        if let Some(content) = manifest {
            let node = self.homes[rank as usize].clone();
            self.put(&node, &manifest_name(self.commit.id, rank), &content)?;
            let from = self.protecting(rank).map(|kept| in_words(&kept.record));
            self.note("manifest", Some(rank), &node, from.unwrap_or_else(|| "copy".into()));
        }
        if whole(self).is_err() {
            let from = self.protecting(rank).map_or(String::new(), |kept| in_words(&kept.record));
            self.data(rank).map_err(|e| missing(&from).with("reason", e.message()).caused_by(e))?;
            whole(self).map_err(|e| missing(&from).with("reason", e.message()).caused_by(e))?;
            let node = self.homes[rank as usize].clone();
            self.note("data", Some(rank), &node, from);
        }
        Ok(())
    }

    /// A record that protects a rank's piece.
    fn protecting(&self, rank: u32) -> Option<&Kept> {
        let has = |kept: &&Kept| kept.record.members.iter().any(|member| member.rank == Some(rank));
        self.kept.iter().find(has)
    }

    /// The manifest of a rank when what is in its place is not right; None when it is.
    fn manifest(&self, rank: u32) -> Result<Option<Vec<u8>>> {
        if self.level.manifest(&self.commit, rank).is_ok() {
            return Ok(None);
        }
        let members = self.kept.iter().flat_map(|kept| &kept.record.members);
        let right = |manifest: &&Vec<u8>| self.commit.check_manifest(rank, manifest).is_ok();
        let found = members.filter(|member| member.rank == Some(rank)).map(|m| &m.manifest).find(right);
        let lost = || damaged(&format!("rank {rank}"), "its manifest is lost, and no redundancy has it");
        found.cloned().map(Some).ok_or_else(lost)
    }

    /// Writes a small file beside the old one, and renames it.
    fn put(&self, node: &str, name: &str, content: &[u8]) -> Result<()> {
        let place = self.guard.nodes.node(node)?;
        let dir = directory_of(self.commit.id);
        place.make_dir(&dir)?;
        let hidden = hidden(&dir, name.rsplit('/').next().unwrap_or(name));
        let stored = place.store(&hidden, content).and_then(|()| place.rename(&hidden, name));
        stored.and_then(|()| place.sync(&dir)).and_then(|()| place.sync("")).inspect_err(|_| {
            let _ = place.remove(&hidden);
        })
    }

    /// Writes a rank's data file anew, chunk by chunk: what matches stays, the rest is rebuilt.
    fn data(&self, rank: u32) -> Result<()> {
        let first = self.protecting(rank).ok_or_else(|| damaged("a piece", "nothing protects it"))?;
        let mut group = Group::open(self.level, &self.kept, &first.record)?;
        let is = |member: &Member| member.rank == Some(rank);
        let slot = group.record.members.iter().position(is).expect("it protects the rank");
        let place = self.guard.nodes.node(&self.homes[rank as usize])?;
        let (id, dir) = (self.commit.id, directory_of(self.commit.id));
        let hidden = hidden(&dir, &format!("{rank:05}.data"));
        place.make_dir(&dir)?;
        let bytes = self.commit.ranks[rank as usize].data_bytes;
        if group.record.members[slot].data_bytes != bytes {
            return Err(damaged("a record of redundancy", "it is of a piece of another length"));
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        let written = place.store_blocks(&hidden, bytes, &mut |offset, out| {
            for (nth, part) in out.chunks_mut(CHUNK_BYTES).enumerate() {
                group.chunk(slot, offset as usize / CHUNK_BYTES + nth, &mut chunk)?;
                part.copy_from_slice(&chunk[..part.len()]);
            }
            Ok(())
        });
        let named = written.and_then(|_| place.rename(&hidden, &data_name(id, rank)));
        named.and_then(|()| place.sync(&dir)).and_then(|()| place.sync("")).inspect_err(|_| {
            let _ = place.remove(&hidden);
        })
    }

    /// Gives every node that has something of the step its commit record.
    fn commit_records(&mut self, bytes: &[u8]) -> Result<()> {
        let name = commit_name(self.commit.id);
        for node in self.homes.iter().cloned().collect::<BTreeSet<String>>() {
            let there = self.guard.nodes.node(&node)?.load(&name, bytes.len() as u64);
            if !matches!(there, Ok(Some(found)) if found == bytes) {
                self.put(&node, &name, bytes)?;
                self.note("commit record", None, &node, "copy".into());
            }
        }
        Ok(())
    }

    /// Writes parity anew that is missing or damaged. What cannot be written leaves the step whole all the same, with
    /// redundancy that shows as incomplete.
    fn parity(&mut self) {
        let Ok(Some(groups)) = plan(self.guard, &self.commit) else { return };
        for group in &groups {
            for (position, (node, rank)) in group.holders.iter().enumerate() {
                let Ok(place) = self.guard.nodes.node(node) else { continue };
                if state::check(&*place, &self.commit, *rank, group.row).is_ok() {
                    continue;
                }
                if write(self.level, self.guard, &self.commit, group, position).is_ok() {
                    self.note("parity", Some(*rank), node, "the pieces".into());
                }
            }
        }
    }
}

/// A group whose chunks are rebuilt.
struct Group<'a> {
    record: &'a ParityRecord,
    /// The group's records, with their parity.
    kept: Vec<(&'a ParityRecord, Option<Box<dyn Blob>>)>,
    /// The data file of each member, as far as it can be opened.
    blobs: Vec<Option<Box<dyn Blob>>>,
    codec: Codec,
}

impl<'a> Group<'a> {
    fn open(level: &Level, kept: &'a [Kept], record: &'a ParityRecord) -> Result<Group<'a>> {
        let same = |other: &&Kept| {
            let other = &other.record;
            let numbers = |r: &ParityRecord| (r.code, r.lost_max, r.row, r.slice_bytes);
            numbers(other) == numbers(record) && other.members == record.members
        };
        let mut found = Vec::new();
        for kept in kept.iter().filter(same) {
            let name = format!("{}/{}", directory_of(record.id), kept_file(kept.rank, record.row, PARITY));
            found.push((&kept.record, kept.place.open(&name).ok().flatten()));
        }
        let mut blobs = Vec::new();
        for member in &record.members {
            let open = |rank| level.place.open(&data_name(record.id, rank)).ok().flatten();
            blobs.push(member.rank.and_then(open));
        }
        let codec = Codec::new(record.code, record.sources(), record.lost_max as usize)?;
        Ok(Group { record, kept: found, blobs, codec })
    }

    /// A chunk of a member's data file, as it was when parity was written.
    ///
    /// # Errors
    /// `Damaged` when too much is lost.
    fn chunk(&mut self, slot: usize, nth: usize, out: &mut [u8]) -> Result<()> {
        let rows = self.record.rows();
        let (slice, row) = (nth / rows, nth % rows);
        let (slots, lost_max) = (self.record.members.len(), self.record.lost_max as usize);
        let first = first_holder(slots, lost_max, slot, slice);
        let symbol_of = |record: &ParityRecord| (slots + record.position as usize - first) % slots;
        let records = self.kept.iter().map(|(record, _)| (symbol_of(record), *record));
        let records = records.filter(|(symbol, _)| *symbol < lost_max);
        let tables: Vec<&[u32]> = records.map(|(symbol, record)| record.source_table(symbol, row)).collect();
        for table in tables {
            if self.read_source(first, slice, row, table[slice], out) {
                return Ok(());
            }
            if let Some(rebuilt) = self.rebuild(first, slice, row, table) {
                out.copy_from_slice(&rebuilt);
                return Ok(());
            }
        }
        Err(damaged("a chunk", "too much of its group is lost").with("chunk", nth))
    }

    /// Reads the chunk that a stripe has of slice `slice`; whether it is what it was.
    fn read_source(&self, first: usize, slice: usize, row: usize, crc: u32, out: &mut [u8]) -> bool {
        let (slots, lost_max) = (self.record.members.len(), self.record.lost_max as usize);
        let slot = if slots == 1 { 0 } else { (first + lost_max + slice) % slots };
        let offset = slice as u64 * self.record.slice_bytes + (row * CHUNK_BYTES) as u64;
        let data_bytes = self.record.members[slot].data_bytes;
        read_padded(self.blobs[slot].as_deref(), data_bytes, offset, out).is_ok() && crc32c(out) == crc
    }

    /// Rebuilds a chunk from the others of its stripe and from parity that was made of the same ones.
    fn rebuild(&mut self, first: usize, slice: usize, row: usize, table: &[u32]) -> Option<Vec<u8>> {
        let (slots, lost_max) = (self.record.members.len(), self.record.lost_max as usize);
        let mut sources = Vec::new();
        for (nth, crc) in table.iter().enumerate() {
            let mut chunk = vec![0; CHUNK_BYTES];
            let there = nth != slice && self.read_source(first, nth, row, *crc, &mut chunk);
            sources.push(there.then_some(chunk));
        }
        let mut parity = Vec::new();
        for (record, blob) in &self.kept {
            let symbol = (slots + record.position as usize - first) % slots;
            if symbol >= lost_max || record.source_table(symbol, row) != table {
                continue;
            }
            let at = symbol * record.rows() + row;
            let mut chunk = vec![0; CHUNK_BYTES];
            let read = blob.as_ref().is_some_and(|b| b.read((at * CHUNK_BYTES) as u64, &mut chunk).is_ok());
            if read && crc32c(&chunk) == record.parity_crcs[at] {
                parity.push((symbol, chunk));
            }
        }
        self.codec.rebuild(&sources, &parity, slice).filter(|chunk| crc32c(chunk) == table[slice])
    }
}
