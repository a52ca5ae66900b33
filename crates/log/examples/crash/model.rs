//! What must be in a pool after a crash, and whether it is.
//!
//! The model knows every operation of a run by the number of its step: when it began and when it returned. A crash
//! carries the number of the step that was running. What returned before it must be back, what began may be; nothing
//! else. Reading goes the way of the space's index: a strict scan of the lane, which stops at the first gap.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_log::format::{RecordHeader, RecordKind, Superblock};
use forebay_log::{recover, Dtype, LaneId, Recovered, SegmentInfo, SegmentScan};
use forebay_tier::{Device, Horizon};

/// Number of an operation, from 1.
pub type Step = u64;
/// Not yet.
pub const NEVER: Step = u64::MAX;

/// A piece as it was put.
#[derive(Debug, PartialEq)]
pub struct Put {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub start: Vec<u64>,
    pub count: Vec<u64>,
    pub payload: Vec<u8>,
}

/// One try of a rank at a version.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub version: u64,
    /// Each piece with the step at whose end it was acknowledged.
    pub puts: Vec<(Step, Arc<Put>)>,
    /// From this step on the commit may be on the medium.
    pub commit_began: Step,
    /// After this step it must be.
    pub committed: Step,
    /// Step in which it was given up.
    pub aborted: Step,
}

/// One incarnation.
#[derive(Clone, Debug)]
pub struct Life {
    pub number: u32,
    pub base: u64,
    /// The step that took over what was there; after it the incarnation counts.
    pub begun: Step,
    /// By rank.
    pub attempts: Vec<Vec<Attempt>>,
    /// By rank: when `finish` began and when it returned.
    pub finished: Vec<(Step, Step)>,
}

impl Life {
    pub fn new(number: u32, ranks: usize, base: u64) -> Life {
        let finished = vec![(NEVER, NEVER); ranks];
        Life { number, base, begun: NEVER, attempts: vec![Vec::new(); ranks], finished }
    }

    /// One more than the last version whose commit has returned in all ranks.
    pub fn complete(&self) -> u64 {
        self.all(|rank| self.committed(rank))
    }

    /// One more than the last version whose commit has returned.
    pub fn committed(&self, rank: usize) -> u64 {
        self.least(rank, NEVER)
    }

    fn committed_by(&self, rank: usize, counts: impl Fn(&Attempt) -> bool) -> u64 {
        let last = self.attempts[rank].iter().filter(|a| counts(a)).map(|a| a.version + 1).max();
        last.unwrap_or(self.base)
    }

    /// One more than the last version that the rank has certainly committed at `step`.
    fn least(&self, rank: usize, step: Step) -> u64 {
        self.committed_by(rank, |a| a.committed < step)
    }

    /// One more than the last version that it may have committed.
    fn most(&self, rank: usize, step: Step) -> u64 {
        self.committed_by(rank, |a| a.commit_began <= step)
    }

    fn all(&self, of: impl Fn(usize) -> u64) -> u64 {
        (0..self.attempts.len()).map(of).min().unwrap_or(self.base)
    }

    fn puts(&self, rank: usize, version: u64, step: Step) -> Option<&Attempt> {
        self.attempts[rank].iter().find(|a| a.version == version && a.commit_began <= step)
    }
}

/// All that is known of a run.
#[derive(Clone, Debug)]
pub struct Model {
    pub superblock: Superblock,
    /// Oldest first.
    pub lives: Vec<Life>,
    /// From a step on, versions below a number may be released. Both rise.
    pub floors: Vec<(Step, u64)>,
    /// What was done in each step, for tables.
    pub operations: BTreeMap<Step, &'static str>,
}

impl Model {
    pub fn new(superblock: Superblock) -> Model {
        Model { superblock, lives: Vec::new(), floors: Vec::new(), operations: BTreeMap::new() }
    }

    fn floor(&self, step: Step) -> u64 {
        self.floors.iter().filter(|(from, _)| *from <= step).map(|(_, floor)| *floor).max().unwrap_or(0)
    }

    /// The newest incarnation has made certain what recovery found, in step `begun`.
    pub fn take_over(&mut self, found: &Recovered, begun: Step) {
        self.floors.push((begun, found.oldest));
        let Some((newest, earlier)) = self.lives.split_last_mut() else { return };
        newest.begun = begun;
        for life in earlier {
            for attempt in life.attempts.iter_mut().flatten() {
                if attempt.version >= found.complete {
                    // It stays in the lane of its incarnation, which is over.
                    attempt.committed = NEVER;
                } else if attempt.commit_began != NEVER {
                    attempt.committed = attempt.committed.min(begun);
                }
                if attempt.committed == NEVER {
                    attempt.aborted = 0;
                }
            }
            for finished in &mut life.finished {
                finished.1 = NEVER;
            }
        }
    }

    /// What was being done in a step.
    pub fn operation(&self, step: Step) -> &'static str {
        self.operations.get(&step).copied().unwrap_or("end")
    }

    /// The incarnation that owns a version when incarnations up to `last` are known.
    fn owner(&self, version: u64, last: u32) -> Option<&Life> {
        self.lives.iter().rev().find(|life| life.number <= last && life.base <= version)
    }

    /// The newest incarnation that counts at `step`.
    fn newest(&self, step: Step) -> &Life {
        let begun = self.lives.iter().rev().find(|life| life.begun < step);
        begun.unwrap_or(&self.lives[0])
    }

    /// Compares an image with what was running at `step`. Returns what recovery found.
    pub fn check(&self, device: &dyn Device, step: Step) -> Result<Recovered, String> {
        let found = recover(device, &self.superblock).map_err(|e| format!("recovery fails: {e}"))?;
        self.check_progress(&found, step)?;
        check_segments(&found)?;
        let lanes = read_lanes(device, &found.segments);
        let last = found.incarnations.last().map_or(0, |last| last.number);
        for version in found.oldest..found.complete {
            let life =
                self.owner(version, last).ok_or_else(|| format!("no process wrote version {version}"))?;
            for rank in 0..life.attempts.len() {
                check_version(&lanes, life, rank, version, step)?;
            }
        }
        self.check_lanes(&found, &lanes, step)?;
        Ok(found)
    }

    fn check_progress(&self, found: &Recovered, step: Step) -> Result<(), String> {
        let last = found.incarnations.last().map_or(0, |last| last.number);
        let newest = self.newest(step);
        // Of newer incarnations nothing may be on the medium yet; then they have committed nothing either.
        let next = self.lives.iter().find(|life| life.number > last && life.number <= newest.number);
        if last != 0 && !self.lives.iter().any(|life| life.number == last) {
            return Err(format!("incarnation {last} was never there"));
        }
        let least = newest.all(|rank| newest.least(rank, step));
        let most = next.map_or_else(|| newest.all(|rank| newest.most(rank, step)), |next| next.base);
        if found.complete < least {
            return Err(format!(
                "version {} was complete, found are those below {}",
                least - 1,
                found.complete
            ));
        }
        if found.complete > most {
            return Err(format!("version {} cannot be complete yet", found.complete - 1));
        }
        let floor = self.floor(step).min(found.complete);
        if found.oldest > floor {
            return Err(format!("version {floor} is gone: the oldest found is {}", found.oldest));
        }
        Ok(())
    }

    /// Each rank's own commits, of the newest incarnation, and what horizon `write` promises.
    fn check_lanes(&self, found: &Recovered, lanes: &Lanes<'_>, step: Step) -> Result<(), String> {
        let life = self.newest(step);
        let own = found.incarnations.iter().find(|own| own.number == life.number);
        let floor = self.floor(step);
        for rank in 0..life.attempts.len() {
            let (least, most) = (life.least(rank, step), life.most(rank, step));
            let committed = own.map_or(life.base, |own| own.committed[rank]);
            if committed < least || committed > most {
                return Err(format!("rank {rank} committed up to {least} to {most}, found is {committed}"));
            }
            for version in floor.max(life.base)..committed {
                check_version(lanes, life, rank, version, step)?;
            }
            let ended = own.is_some_and(|own| own.ended[rank]);
            let (began, returned) = life.finished[rank];
            if (returned < step && !ended) || (began > step && ended) {
                return Err(format!("rank {rank} ended cleanly: {ended}"));
            }
            if self.superblock.horizon == Horizon::Write {
                check_open(lanes, life, rank, step)?;
            }
        }
        Ok(())
    }
}

/// What recovery sees in an image, to look at a failure: one line for each segment and record.
pub fn describe(device: &dyn Device, superblock: &Superblock) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let Ok(found) = recover(device, superblock) else { return text };
    let _ = writeln!(text, "oldest {}, complete {}, {:?}", found.oldest, found.complete, found.incarnations);
    for (segment, stale) in
        found.segments.iter().map(|s| (s, "")).chain(found.stale.iter().map(|s| (s, " stale")))
    {
        let df = &segment.df;
        let _ = writeln!(
            text,
            "segment {} of rank {} in {}: {:#x}+{:#x}, records from {}{stale}",
            df.sequence, df.rank, df.incarnation, df.offset_bytes, df.length_bytes, df.first_record
        );
        for (at, header) in SegmentScan::new(device, df) {
            let place = header.place();
            let _ = writeln!(
                text,
                "  {:#x}: {:?} {} of version {}{}",
                at.offset,
                header.kind(),
                place.sequence,
                place.version,
                if header.is_committed() { ", committed" } else { "" }
            );
        }
    }
    text
}

/// No two segments share a byte.
fn check_segments(found: &Recovered) -> Result<(), String> {
    let of = |s: &SegmentInfo| (s.df.offset_bytes, s.df.offset_bytes + s.df.length_bytes);
    let mut ranges: Vec<(u64, u64)> = found.segments.iter().map(of).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(format!("segments overlap: {pair:?}")),
        None => Ok(()),
    }
}

/// What a lane's records are.
#[derive(Default)]
struct Lane<'a> {
    /// Pieces of committed versions.
    committed: BTreeMap<u64, Vec<Record<'a>>>,
    /// Pieces by version, committed or not.
    pieces: Vec<(u64, u64, Record<'a>)>,
    /// Versions whose commit counts other pieces than there are.
    miscounted: Vec<u64>,
}

struct Record<'a> {
    header: RecordHeader<'a>,
    payload: &'a [u8],
}

type Lanes<'a> = BTreeMap<LaneId, Lane<'a>>;

fn read_lanes<'a>(device: &'a dyn Device, segments: &[SegmentInfo]) -> Lanes<'a> {
    let mut lanes = Lanes::new();
    let mut next: Option<(LaneId, u64)> = None;
    for segment in segments {
        let lane = segment.lane();
        let known = lanes.entry(lane).or_default();
        let from = next.filter(|(last, _)| *last == lane).map_or(0, |(_, record)| record);
        let mut scan = SegmentScan::new(device, &segment.df);
        scan.next_record = scan.next_record.max(from);
        for (at, header) in scan.by_ref() {
            let place = header.place();
            match (header.kind(), header.commit()) {
                (RecordKind::Piece, _) => {
                    let begin = at.offset + header.payload_offset();
                    let payload = device.bytes(begin..begin + header.payload_bytes());
                    known.pieces.push((place.version, place.sequence, Record { header, payload }));
                }
                (RecordKind::Commit, Some(commit)) if header.is_committed() => {
                    let of = |(version, sequence, record): (u64, u64, Record<'a>)| {
                        (version == place.version && sequence >= commit.first_record).then_some(record)
                    };
                    let records: Vec<Record<'a>> = known.pieces.drain(..).filter_map(of).collect();
                    if records.len() as u64 != commit.pieces {
                        known.miscounted.push(place.version);
                    }
                    known.committed.insert(place.version, records);
                }
                _ => {}
            }
        }
        next = Some((lane, scan.next_record));
    }
    lanes
}

fn check_version(
    lanes: &Lanes<'_>,
    life: &Life,
    rank: usize,
    version: u64,
    step: Step,
) -> Result<(), String> {
    let what = || format!("version {version} of rank {rank} in incarnation {}", life.number);
    let lane = lanes.get(&LaneId { incarnation: life.number, rank: rank as u32 });
    let records = lane.and_then(|lane| lane.committed.get(&version));
    let (Some(records), Some(lane)) = (records, lane) else {
        return Err(format!("{} is not readable", what()));
    };
    if lane.miscounted.contains(&version) {
        return Err(format!("{} has {} pieces, its commit says otherwise", what(), records.len()));
    }
    let attempt = life.puts(rank, version, step).ok_or_else(|| format!("{} was never committed", what()))?;
    if attempt.puts.len() != records.len() {
        return Err(format!("{} has {} of {} pieces", what(), records.len(), attempt.puts.len()));
    }
    for (i, (record, (_, put))) in records.iter().zip(&attempt.puts).enumerate() {
        if let Some(difference) = difference(record, put) {
            return Err(format!("piece {i} of {}: {difference}", what()));
        }
    }
    Ok(())
}

/// Horizon `write`: each piece that was acknowledged is readable, although its version is not committed.
fn check_open(lanes: &Lanes<'_>, life: &Life, rank: usize, step: Step) -> Result<(), String> {
    let open = life.attempts[rank].last().filter(|a| a.committed >= step && a.aborted > step);
    let Some(attempt) = open else { return Ok(()) };
    let lane = lanes.get(&LaneId { incarnation: life.number, rank: rank as u32 });
    // A commit in flight may be there already.
    let pieces = lane.map(|lane| {
        let committed = lane.committed.get(&attempt.version).into_iter().flatten();
        committed.chain(lane.pieces.iter().map(|(_, _, record)| record))
    });
    let mut pieces = pieces.into_iter().flatten();
    for (i, (_, put)) in attempt.puts.iter().enumerate().filter(|(_, (acknowledged, _))| *acknowledged < step)
    {
        if !pieces.any(|record| difference(record, put).is_none()) {
            return Err(format!(
                "piece {i} of the open version {} of rank {rank} was stored persistently and is not there",
                attempt.version
            ));
        }
    }
    Ok(())
}

fn difference(record: &Record<'_>, put: &Put) -> Option<String> {
    let header = &record.header;
    if header.name() != put.name || header.dtype() != put.dtype {
        return Some(format!("it is {} instead of {}", header.name(), put.name));
    }
    if !header.shape().eq(put.shape.iter().copied())
        || !header.start().eq(put.start.iter().copied())
        || !header.count().eq(put.count.iter().copied())
    {
        return Some("its box differs".to_string());
    }
    if record.payload != put.payload {
        let at = record.payload.iter().zip(&put.payload).position(|(a, b)| a != b);
        return Some(format!("byte {at:?} of {} of its payload differs", put.payload.len()));
    }
    None
}
