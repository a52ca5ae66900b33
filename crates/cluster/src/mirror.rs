//! A mirror: a space of this node that is a copy of one on another node, version by version.
//!
//! The agent writes it through ordinary writers, one for each writer rank of the owner, so that a reader of this node
//! opens, reads and waits as it does for any space. Versions have the owner's numbers. One thread copies versions; a
//! second one tells the owner which ranks read the mirror and how far they are.
//!
//! Guarantees: a version appears whole, or not at all; when the owner's writers have closed, the mirror's close; when
//! they died or the owner's node was lost, readers get `ProducerDied` with the reason and the node. A mirror that
//! cannot go on is removed once no process has it open. Not here: which spaces are wanted (`demand.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_space::{
    destroy, glance, mechanism_of, Error, Kind, Mode, OpenOptions, ReaderRank, ReaderRanks, Record, Result,
    Scope, TierKind, WhenFull, Writer,
};

use forebay_tier::clock::realtime_ns;

use crate::link::{gone, Link};
use crate::message::{
    malformed, piece_of, Answer, Ask, Attributes, Found, Next, Opened, Place, Rank, Version, RANKS_MAX,
};
use crate::naming::stand_in_name;
use crate::owner::{sentence, Owner, StandIn};
use crate::pull::Pull;

/// How long one request for the next version waits at the owner.
const NEXT_WAIT: Duration = Duration::from_secs(5);
/// An answer in words comes within this, beside the wait that it was asked for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A part of a payload comes within this.
const PART_TIMEOUT: Duration = Duration::from_secs(10);
/// A wait for free space looks so often whether the mirror is still wanted.
const SLICE: Duration = Duration::from_millis(300);
/// What ranks do is said at the latest after this, so that the owner's answer is known, too.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// While ranks read elsewhere their stand-ins look for complete versions so often.
const FOLLOW_EVERY: Duration = Duration::from_millis(5);
/// A mirror that no rank reads ends after this.
const UNUSED: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// What is known of a mirror from outside.
pub struct Mirror {
    /// Name of the space.
    pub name: String,
    /// Node of its writers.
    pub node: String,
    uuid: String,
    /// What it is a copy of: space and start of its writers.
    source: (String, u32),
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_stopping: AtomicBool,
    /// The space has ended, or cannot be copied any further.
    is_over: AtomicBool,
    /// The owner's writers have closed, and all that they put was copied.
    has_ended: AtomicBool,
    /// When a rank read it last, or was awaited.
    used_at: Mutex<Option<Instant>>,
    /// The owner's space was removed or replaced.
    has_gone_there: AtomicBool,
    /// Versions that were copied.
    versions: AtomicU64,
    bytes: AtomicU64,
    /// What it does, in a word.
    state: Mutex<&'static str>,
}

impl Shared {
    fn note_used(&self) {
        *self.used_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn is_unused(&self) -> bool {
        let used_at = self.used_at.lock().unwrap_or_else(PoisonError::into_inner);
        used_at.is_some_and(|at| at.elapsed() > UNUSED)
    }

    fn set_state(&self, state: &'static str) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// What became of a version.
enum Copied {
    Whole,
    /// The agent ends.
    Stopped,
    /// No rank reads the mirror.
    Unused,
}

/// How copying ended.
enum Ending {
    /// The owner's writers have closed.
    Closed {
        attributes: Attributes,
        /// When, nanoseconds since 1970 by the clock of this node.
        at_unix_ns: u64,
    },
    /// Why it cannot go on.
    Failed(String),
    /// The agent ends.
    Stopped,
    /// No rank reads it.
    Unused,
}

impl Mirror {
    /// Begins to mirror the space `name` of `node`, as it was found there. Returns when readers can open it. `before`
    /// is the identity of a mirror that is over, which it replaces: readers that wait in that one go over to it.
    ///
    /// # Errors
    /// Those of the owner; those of making a space here: [`Kind::NameInUse`] also while a reader reads the mirror that
    /// is to be replaced.
    pub fn begin(
        link: &Arc<Link>,
        owner: &Arc<Owner>,
        (node, name): (&str, &str),
        found: &Found,
        before: Option<&str>,
    ) -> Result<Mirror> {
        let shared = Arc::<Shared>::default();
        let copy = Copying {
            link: link.clone(),
            node: node.to_string(),
            name: name.to_string(),
            mirror: uuid::Uuid::new_v4().to_string(),
            losses: link.peers.losses(node),
            shared: shared.clone(),
        };
        let ask = Ask::Open { mirror: copy.mirror.clone(), name: name.to_string(), uuid: found.uuid.clone() };
        let Answer::Opened(opened) = link.ask(node, ask, ANSWER_TIMEOUT)? else {
            return Err(malformed("a space was to be opened").with("node", node));
        };
        owner.note_mirror(name, true);
        let writers = copy.writers(&opened, before).inspect_err(|_| {
            copy.close();
            owner.note_mirror(name, false);
        })?;
        shared.set_state("copying");
        let uuid = glance(name)?.uuid;
        let (owner, name) = (owner.clone(), name.to_string());
        let thread = std::thread::Builder::new().name(format!("mirror {name}")).spawn(move || {
            copy.run(writers, &opened);
            owner.note_mirror(&copy.name, false);
            copy.shared.set_state("gone");
        });
        let thread = thread.map_err(|e| Error::io("cannot start a thread", e))?;
        let source = (found.uuid.clone(), found.incarnation);
        Ok(Mirror { name, node: node.to_string(), uuid, source, shared, thread: Some(thread) })
    }

    /// Identity of the copy.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Of one that has come to its end: what it is a copy of.
    pub fn source_at_end(&self) -> Option<(String, u32)> {
        self.shared.has_ended.load(Relaxed).then(|| self.source.clone())
    }

    /// Whether it copies nothing more.
    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Relaxed)
    }

    /// Whether nothing of it is left.
    pub fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// State, versions and bytes that were copied.
    pub fn progress(&self) -> (&'static str, u64, u64) {
        let state = *self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state, self.shared.versions.load(Relaxed), self.shared.bytes.load(Relaxed))
    }

    /// Lets it end; [`Mirror::is_gone`] when it has.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Relaxed);
    }
}

/// One mirror, as its threads have it.
struct Copying {
    link: Arc<Link>,
    node: String,
    name: String,
    mirror: String,
    /// How often the owner's agent had been lost when the mirror began.
    losses: u64,
    shared: Arc<Shared>,
}

impl Copying {
    fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Relaxed)
    }

    fn is_lost(&self) -> bool {
        self.link.peers.losses(&self.node) != self.losses
    }

    /// Writers of a new space like the owner's, in the place of the mirror `before`.
    fn writers(&self, opened: &Opened, before: Option<&str>) -> Result<Vec<Writer>> {
        let is_before =
            || before.is_some_and(|uuid| glance(&self.name).is_ok_and(|found| found.uuid == uuid));
        if mechanism_of(&self.name)?.is_some() && !is_before() {
            return Err(Error::new(Kind::NameInUse, format!("there is a space {} on this node", self.name))
                .with("writers_on", &self.node)
                .hint("all writers of a space run on one node; `forebay ls` shows the space of this node"));
        }
        let options = |rank| -> Result<OpenOptions> {
            Ok(OpenOptions {
                rank: Some(rank),
                size: Some(opened.writers),
                component: Some(stand_in_name(&opened.component, &self.node)),
                tier: Some(TierKind::Dram),
                quota_bytes: Some(opened.quota_bytes),
                segment_bytes: Some(opened.segment_bytes),
                retention: Some(opened.retention.parse()?),
                checksum: Some(opened.checksum),
                when_full: Some(WhenFull::Block),
                // The first one replaces the mirror before, and the others join it.
                mode: if before.is_some() { Mode::Write } else { Mode::Exclusive },
                replace: before.is_some(),
                readers: opened.declared.clone(),
                // Rank and size are those of the owner's writers, whatever started this agent.
                scope: Scope::Node,
                ..OpenOptions::default()
            })
        };
        let open = |rank| -> Result<Writer> {
            let mut writer = Writer::open_from(&self.name, &options(rank)?, opened.oldest)?;
            writer.set_timeout(SLICE);
            Ok(writer)
        };
        let mut writers = Vec::new();
        for rank in 0..opened.writers {
            match open(rank) {
                Ok(writer) => writers.push(writer),
                Err(e) => {
                    let made_it = !writers.is_empty();
                    writers.into_iter().for_each(|writer: Writer| writer.abandon_because(&e.to_string()));
                    if made_it {
                        let _ = destroy(&self.name);
                    }
                    return Err(e);
                }
            }
        }
        Ok(writers)
    }

    /// From the first version to the end of the space.
    fn run(&self, mut writers: Vec<Writer>, opened: &Opened) {
        let ranks = ReaderRanks::open(&self.name);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let reporting =
                ranks.as_ref().ok().map(|ranks| threads.spawn(|| self.report(ranks, opened, &is_over)));
            let ending = match &ranks {
                Ok(ranks) => self.copy(&mut writers, opened, ranks),
                Err(e) => Ending::Failed(format!("the agent cannot look at its copy of the space: {e}")),
            };
            let may_be_read = matches!(ending, Ending::Closed { .. });
            self.end(writers, ending, ranks.as_ref().ok());
            self.shared.has_ended.store(may_be_read, Relaxed);
            self.shared.is_over.store(true, Relaxed);
            if let (true, Ok(ranks)) = (may_be_read, &ranks) {
                // As long as it is there readers come, and their ends are told.
                let has_gone_there = || self.shared.has_gone_there.load(Relaxed);
                while !ranks.is_removed() && !self.is_stopping() && !has_gone_there() {
                    std::thread::sleep(POLL);
                }
            }
            is_over.store(true, Relaxed);
            if let Some(reporting) = reporting {
                let _ = reporting.join();
            }
            self.close();
        });
        if let Ok(ranks) = ranks {
            self.remove(&ranks);
        }
    }

    /// Copies versions until there are no more.
    fn copy(&self, writers: &mut [Writer], opened: &Opened, ranks: &ReaderRanks) -> Ending {
        let mut version = opened.oldest;
        loop {
            // What no rank waits for is not to hold up the owner's writers.
            if self.shared.is_unused() {
                return Ending::Unused;
            }
            let next = match self.next(version) {
                Ok(Some(next)) => next,
                Ok(None) => return Ending::Stopped,
                Err(e) => return Ending::Failed(sentence(&e)),
            };
            match next {
                Next::Waiting => {}
                Next::End { attributes, ended_ago_ns } => {
                    return Ending::Closed {
                        attributes,
                        at_unix_ns: realtime_ns().saturating_sub(ended_ago_ns),
                    };
                }
                Next::Died(text) => return Ending::Failed(format!("on node {}: {text}", self.node)),
                Next::Dropped { .. } if !is_read(ranks) && !ranks.is_awaited() => return Ending::Unused,
                Next::Dropped { oldest } => {
                    return Ending::Failed(format!(
                        "versions {version} to {} were dropped on node {} before they were copied",
                        oldest.saturating_sub(1),
                        self.node
                    ));
                }
                Next::Version(found) => match self.copy_version(writers, version, &found) {
                    Ok(Copied::Whole) => version += 1,
                    Ok(Copied::Stopped) => return Ending::Stopped,
                    Ok(Copied::Unused) => return Ending::Unused,
                    Err(e) => {
                        return Ending::Failed(format!(
                            "version {version} from node {}: {}",
                            self.node,
                            sentence(&e)
                        ))
                    }
                },
            }
        }
    }

    /// Asks for a version; None: the mirror is to end.
    fn next(&self, version: u64) -> Result<Option<Next>> {
        let mut tries = 0;
        loop {
            if self.is_stopping() {
                return Ok(None);
            }
            if self.is_lost() {
                return Err(gone(&self.node));
            }
            let wait_ms = NEXT_WAIT.as_millis() as u64;
            let ask = Ask::Next { mirror: self.mirror.clone(), version, wait_ms };
            match self.link.ask(&self.node, ask, NEXT_WAIT + ANSWER_TIMEOUT) {
                Ok(Answer::Next(next)) => return Ok(Some(next)),
                Ok(other) => return Err(malformed(&format!("a version was asked for, and not {other:?}"))),
                // That it is gone is known a moment later.
                Err(e)
                    if matches!(e.kind(), Kind::PeerMissing | Kind::TimedOut | Kind::TooMany)
                        && tries < 3 =>
                {
                    tries += 1;
                    let until = Instant::now() + Duration::from_secs(1);
                    while Instant::now() < until && !self.is_lost() && !self.is_stopping() {
                        std::thread::sleep(POLL);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn copy_version(&self, writers: &mut [Writer], version: u64, found: &Version) -> Result<Copied> {
        let records: Vec<Record> =
            found.records.iter().map(|record| record.record(writers.len() as u32)).collect::<Result<_>>()?;
        let bytes = records.iter().try_fold(0u64, |sum, record| sum.checked_add(record.bytes));
        let bytes = bytes.ok_or_else(|| malformed("the sizes of records are too large"))?;
        for writer in writers.iter_mut() {
            writer.begin_version(version)?;
        }
        let mut pull = Pull::new(&self.link, (&self.node, &self.mirror), version, bytes, PART_TIMEOUT);
        for record in &records {
            match self.put(&mut writers[record.rank as usize], record, &mut pull)? {
                Copied::Whole => {}
                other => return Ok(other),
            }
        }
        set_attributes(&mut writers[0], &found.attributes)?;
        for writer in writers.iter_mut() {
            writer.end_step()?;
        }
        self.shared.versions.fetch_add(1, Relaxed);
        self.shared.bytes.fetch_add(bytes, Relaxed);
        Ok(Copied::Whole)
    }

    /// One record, from the network into the pool. Waits for free space as long as the mirror is wanted.
    fn put(&self, writer: &mut Writer, record: &Record, pull: &mut Pull<'_>) -> Result<Copied> {
        loop {
            match writer.reserve_record(&piece_of(record)) {
                Ok(mut reservation) => {
                    pull.fill(reservation.as_mut_slice())?;
                    writer.commit(reservation)?;
                    return Ok(Copied::Whole);
                }
                // Readers of this node hold the space, and the owner's writers wait for them.
                Err(e) if matches!(e.kind(), Kind::QuotaFull | Kind::TimedOut) => {
                    if self.is_stopping() {
                        return Ok(Copied::Stopped);
                    }
                    if self.shared.is_unused() {
                        return Ok(Copied::Unused);
                    }
                    if self.is_lost() {
                        return Err(gone(&self.node));
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn end(&self, mut writers: Vec<Writer>, ending: Ending, ranks: Option<&ReaderRanks>) {
        match ending {
            Ending::Closed { attributes, at_unix_ns } => {
                self.shared.set_state("finished");
                let said = writers.first_mut().map_or(Ok(()), |writer| set_attributes(writer, &attributes));
                let closed =
                    writers.into_iter().map(Writer::close).fold(said, |before, this| before.and(this));
                if let Some(ranks) = ranks {
                    ranks.set_ended_unix_ns(at_unix_ns);
                }
                if let Err(e) = closed {
                    eprintln!("forebay-agent: space {}: {e}", self.name);
                }
            }
            Ending::Failed(why) => {
                self.shared.set_state("failed");
                eprintln!("forebay-agent: the copy of space {} ends: {why}", self.name);
                self.abandon(writers, &why);
            }
            Ending::Unused => {
                self.shared.set_state("not read");
                self.abandon(writers, "no rank read it on this node");
            }
            Ending::Stopped => {
                self.shared.set_state("stopping");
                self.abandon(writers, "the agent of this node was stopped");
            }
        }
    }

    fn abandon(&self, writers: Vec<Writer>, why: &str) {
        writers.into_iter().for_each(|writer| writer.abandon_because(why));
    }

    /// Tells the owner of the ranks that read, until the mirror is over.
    fn report(&self, ranks: &ReaderRanks, opened: &Opened, is_over: &AtomicBool) {
        let (mut told, mut said_at) = (None, Instant::now());
        let mut elsewhere = BTreeMap::<Place, StandIn>::new();
        // Before a rank of this node has come, nothing is released.
        let mut has_come = false;
        loop {
            let last = is_over.load(Relaxed);
            let seen = ranks.changes();
            let now: Vec<ReaderRank> =
                ranks.now().into_iter().filter(|rank| rank.pid != Some(std::process::id())).collect();
            // One that came and left meanwhile is known by what it left.
            has_come |= !now.is_empty();
            if !has_come || now.iter().any(|rank| rank.pid.is_some()) || ranks.is_awaited() {
                self.shared.note_used();
            }
            let report: Vec<Rank> = own_ranks(&now, &elsewhere);
            if told.as_ref() != Some(&report) || said_at.elapsed() >= REPORT_EVERY || last {
                if let Some(places) = self.tell(&report) {
                    told = Some(report);
                    said_at = Instant::now();
                    if has_come && !last {
                        self.follow(&mut elsewhere, &places, &now, opened);
                    }
                }
            }
            if last {
                return;
            }
            elsewhere.values_mut().for_each(|stand_in| stand_in.follow(u64::MAX, false));
            let pause = if elsewhere.is_empty() { REPORT_EVERY } else { FOLLOW_EVERY };
            ranks.wait(seen, pause.min(POLL));
        }
    }

    fn tell(&self, ranks: &[Rank]) -> Option<Vec<Place>> {
        if self.is_lost() {
            return None;
        }
        let ranks = ranks.iter().take(RANKS_MAX).cloned().collect();
        let ask = Ask::Readers { mirror: self.mirror.clone(), ranks };
        match self.link.ask(&self.node, ask, ANSWER_TIMEOUT) {
            Ok(Answer::Elsewhere(places)) => Some(places),
            Err(e) if e.kind() == Kind::PeerMissing && !self.is_lost() => {
                self.shared.has_gone_there.store(true, Relaxed);
                None
            }
            _ => None,
        }
    }

    /// Ranks elsewhere of groups of this mirror have readers here that release all that is complete.
    fn follow(
        &self,
        elsewhere: &mut BTreeMap<Place, StandIn>,
        places: &[Place],
        now: &[ReaderRank],
        opened: &Opened,
    ) {
        let groups: BTreeSet<&str> = now.iter().map(|rank| rank.group.as_str()).collect();
        let is_here = |group: &str| {
            groups.contains(group) || opened.declared.iter().any(|(declared, _)| declared == group)
        };
        elsewhere.retain(|place, _| places.contains(place));
        for place in places.iter().filter(|place| is_here(&place.group)) {
            if elsewhere.contains_key(place) {
                continue;
            }
            let rank = Rank {
                group: place.group.clone(),
                size: place.size,
                rank: place.rank,
                absent: None,
                reads: true,
                below: 0,
                ended: false,
                left: false,
            };
            if let Ok(stand_in) = StandIn::join(&self.name, &rank, &place.node) {
                elsewhere.insert(place.clone(), stand_in);
            }
        }
    }

    /// Tells the owner that the mirror is over.
    fn close(&self) {
        if !self.is_lost() {
            let _ =
                self.link.ask(&self.node, Ask::Close { mirror: self.mirror.clone() }, Duration::from_secs(1));
        }
    }

    /// Removes what is left of the space, once no process has it open or the agent ends.
    fn remove(&self, ranks: &ReaderRanks) {
        while ranks.has_members() && !ranks.is_removed() {
            if self.is_stopping() {
                // Readers that were told that the writers are gone close.
                let until = Instant::now() + Duration::from_secs(2);
                while ranks.has_members() && Instant::now() < until {
                    std::thread::sleep(POLL);
                }
                break;
            }
            std::thread::sleep(POLL);
        }
        if ranks.is_removed() {
            return;
        }
        if let Err(e) = destroy(&self.name) {
            // Another mirror has the name now.
            if e.kind() != Kind::PeerMissing && !ranks.is_removed() {
                eprintln!("forebay-agent: space {} stays: {e}", self.name);
            }
        }
    }
}

/// Whether a rank of this node reads.
fn is_read(ranks: &ReaderRanks) -> bool {
    ranks.now().iter().any(|rank| rank.pid.is_some_and(|pid| pid != std::process::id()))
}

/// What is said of ranks of this node.
fn own_ranks(now: &[ReaderRank], elsewhere: &BTreeMap<Place, StandIn>) -> Vec<Rank> {
    let is_elsewhere = |rank: &ReaderRank| {
        elsewhere.keys().any(|place| (&place.group, place.rank) == (&rank.group, rank.rank))
    };
    let ranks = now.iter().filter(|rank| rank.pid.is_some() || !is_elsewhere(rank));
    ranks
        .map(|rank| Rank {
            group: rank.group.clone(),
            size: rank.size,
            rank: rank.rank,
            absent: rank.absent.map(|absent| absent.to_string()),
            reads: rank.pid.is_some(),
            below: rank.below,
            ended: rank.ended,
            left: rank.left,
        })
        .collect()
}

fn set_attributes(writer: &mut Writer, attributes: &Attributes) -> Result<()> {
    let known = writer.attributes()?;
    let mut new = attributes.iter().filter(|(key, value)| known.get(*key) != Some(*value));
    new.try_for_each(|(key, value)| writer.set_attribute(key, value))
}
