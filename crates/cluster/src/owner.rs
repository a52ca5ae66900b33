//! The owner's side: spaces whose writers are on this node, read for mirrors on other nodes.
//!
//! A mirror has here an observer of the space, the version that it copies just now, and a reader for each rank that
//! reads the mirror ([`StandIn`]). So a reader elsewhere means to the writers what one of this node means: its group
//! keeps versions, holds the quota, and is named by errors, as `GROUP@NODE`.
//!
//! Guarantees: a version is held while it is copied, and released with the next request, the end of the mirror or the
//! loss of its node. Payloads are checked by the space before they are sent. Not here: the mirrors of this node
//! (`mirror.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_space::{
    glance, leave_reader_group, part_name, without_part, Error, Hold, Kind, OpenOptions, Reader, ReaderRanks,
    Result, Scope, SpaceInfo, View,
};

use forebay_tier::clock::realtime_ns;

use crate::links;
use crate::message::{
    malformed, Answer, Ask, Attributes, Claim, Found, FoundPart, Next, Opened, Place, Rank, RecordText,
    Request, Version, RECORDS_MAX,
};
use crate::naming::{absent_of, stand_in_name};
use crate::wire::PART_BYTES_MAX;

/// A wait looks so often whether it is still wanted.
const SLICE: Duration = Duration::from_millis(200);
/// State of a space whose writers write.
pub const OPEN: &str = "open";
/// Tier of a channel of files.
const FILES: &str = "files";
/// Smaller pieces of a payload are gathered.
const GATHERED_BYTES_MAX: usize = 32 << 10;
/// No request waits longer.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Opening and joining a space that is there.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// All mirrors of spaces of this node.
pub struct Owner {
    node: String,
    /// When this agent began, nanoseconds since 1970: older spaces whose writers have ended are of another job.
    since_unix_ns: u64,
    served: Mutex<BTreeMap<String, Arc<Served>>>,
    /// Names of the mirrors that this node has itself, and how many of each: one that is over goes a little later.
    mirrors: Mutex<BTreeMap<String, usize>>,
    is_ending: AtomicBool,
    /// Bytes sent.
    pub bytes: Arc<AtomicU64>,
}

/// One mirror of a space of this node.
struct Served {
    name: String,
    uuid: String,
    /// The mirror's node.
    node: String,
    observing: Mutex<Observing>,
    ranks: ReaderRanks,
    held: Mutex<Option<Arc<Held>>>,
    /// The version that the mirror asks for, or copies, and all after it.
    kept: Mutex<Kept>,
    /// When the mirror was last heard of.
    asked_at: Mutex<Instant>,
    stand_ins: Mutex<BTreeMap<(String, u32), StandIn>>,
    /// Ranks that have left their group for good.
    left: Mutex<BTreeSet<(String, u32)>>,
    is_over: AtomicBool,
}

/// From which version on all are kept.
#[derive(Default)]
struct Kept {
    from: u64,
    /// None: a version was dropped, or nothing is asked for any more.
    _hold: Option<Hold>,
}

/// What a mirror waits for.
enum Observing {
    /// The next version.
    At(Box<Reader>),
    /// Nothing more: this was the last answer. The space is in use no longer, but by ranks that read it.
    Over(Next),
}

/// A version that is copied.
struct Held {
    version: u64,
    /// Payloads of its records, and where each begins in their sequence.
    views: Vec<(u64, View)>,
    bytes: u64,
    records: Vec<RecordText>,
}

/// An error in one line, for who cannot follow its hint.
pub fn sentence(error: &Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_string()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Owner {
    /// Of the agent of `node`, which begins now.
    pub fn new(node: &str) -> Owner {
        Owner {
            node: node.to_string(),
            since_unix_ns: realtime_ns(),
            served: Mutex::default(),
            mirrors: Mutex::default(),
            is_ending: AtomicBool::new(false),
            bytes: Arc::default(),
        }
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Says that a space of this name is a mirror of this node, or that it is none any more.
    pub fn note_mirror(&self, name: &str, is_one: bool) {
        let mut mirrors = lock(&self.mirrors);
        let count = mirrors.entry(name.to_string()).or_default();
        *count = if is_one { *count + 1 } else { count.saturating_sub(1) };
        mirrors.retain(|_, count| *count > 0);
    }

    /// Names of the spaces that are read for others, with the nodes that read them.
    pub fn served(&self) -> Vec<(String, String)> {
        lock(&self.served).values().map(|served| (served.name.clone(), served.node.clone())).collect()
    }

    /// The answer to a request, which may wait.
    pub fn reply(&self, request: Request) -> Reply {
        match request.ask {
            Ask::Read { mirror, version, offset, bytes } => {
                match self.payload(&mirror, version, offset, bytes) {
                    Ok(payload) => Reply { answer: None, payload: Some(payload) },
                    Err(e) => Reply { answer: Some(Err(e)), payload: None },
                }
            }
            Ask::Probe { bytes } => Reply { answer: None, payload: Some(Payload::probe(bytes)) },
            Ask::Next { ref mirror, version, .. } => {
                let mirror = mirror.clone();
                let answer = self.answer_in_words(&request.node, request.ask);
                let inline = match &answer {
                    Ok(Answer::Next(Next::Version(found))) => found.inline_bytes(),
                    _ => None,
                };
                match inline.map(|bytes| self.payload(&mirror, version, 0, bytes)).transpose() {
                    Ok(payload) => Reply { answer: Some(answer), payload },
                    Err(e) => Reply { answer: Some(Err(e)), payload: None },
                }
            }
            ask => Reply { answer: Some(self.answer_in_words(&request.node, ask)), payload: None },
        }
    }

    /// Bytes of the version that is held for a mirror.
    fn payload(&self, mirror: &str, version: u64, offset: u64, bytes: u64) -> Result<Payload> {
        self.of(mirror)?.payload(version, offset, bytes, &self.bytes)
    }

    fn answer_in_words(&self, node: &str, ask: Ask) -> Result<Answer> {
        match ask {
            Ask::Find { name, wanted } => self.find(&name, &wanted).map(Answer::Found),
            Ask::Open { mirror, name, uuid } => self.open(node, mirror, &name, &uuid).map(Answer::Opened),
            Ask::Next { mirror, version, wait_ms, peek } => {
                let wait = Duration::from_millis(wait_ms).min(WAIT_MAX);
                self.of(&mirror)?.next(version, wait, peek, &self.is_ending).map(Answer::Next)
            }
            Ask::Readers { mirror, ranks } => {
                let served = self.of(&mirror)?;
                if served.ranks.is_removed() {
                    return Err(Error::new(
                        Kind::PeerMissing,
                        format!("space {} was removed or replaced", served.name),
                    ));
                }
                served.follow(&ranks);
                Ok(Answer::Elsewhere(self.elsewhere(&served)))
            }
            Ask::Close { mirror } => {
                let closed = lock(&self.served).remove(&mirror);
                closed.iter().for_each(|served| served.end());
                Ok(Answer::Closed)
            }
            Ask::Read { .. } | Ask::Probe { .. } => Err(malformed("it is no request in words")),
        }
    }

    fn of(&self, mirror: &str) -> Result<Arc<Served>> {
        let served = lock(&self.served).get(mirror).cloned().ok_or_else(|| {
            Error::new(Kind::PeerMissing, "the agent no longer knows this mirror")
                .hint("its node was considered lost for a time; open the space again")
        })?;
        *lock(&served.asked_at) = Instant::now();
        Ok(served)
    }

    /// The space of this name, where its writers are on this node; or where they were, in this job, and one of the
    /// readers takes what they have put. Of a space with writers on several nodes, the part of this one.
    fn find(&self, name: &str, wanted: &[Claim]) -> Result<Option<Found>> {
        // First: of a part this node may have a mirror of the whole, too.
        let part = self.see_part(name, wanted)?;
        let is_open = part.as_ref().is_some_and(|(part, _)| part.state == OPEN);
        if is_open || lock(&self.mirrors).contains_key(name) {
            return Ok(part.map(|(part, _)| part));
        }
        let Some(seen) = self.see(name, wanted)? else { return Ok(part.map(|(part, _)| part)) };
        let part = match part {
            // The newer one of two that have ended.
            Some((_, created)) if seen.is_taken && seen.info.created_unix_ns > created => None,
            part => part.map(|(part, _)| part),
        };
        let is_taken = seen.is_open() || (seen.is_taken && part.is_none());
        Ok(if is_taken { Some(seen.found(None)) } else { part })
    }

    /// The part of this node of a space with writers on several nodes, also where no reader takes it: one of another
    /// node may still be written.
    pub fn find_part(&self, name: &str, wanted: &[Claim]) -> Result<Option<Found>> {
        Ok(self.see_part(name, wanted)?.map(|(part, _)| part))
    }

    /// With the time at which it was created.
    fn see_part(&self, name: &str, wanted: &[Claim]) -> Result<Option<(Found, u64)>> {
        let Some(seen) = self.see(&part_name(name), wanted)? else { return Ok(None) };
        let Some(ranks) = &seen.ranks else { return Ok(None) };
        let Some(part) = ranks.part()? else { return Ok(None) };
        let ago = |at: u64| realtime_ns().saturating_sub(at);
        let lived = ranks.writers_lived();
        let ended = Some(lived.end).filter(|end| *end != 0 && !seen.is_open());
        let part = FoundPart {
            size: part.size,
            ranks: part.ranks,
            launch: part.launch,
            opened: part.opened,
            lived_ago_ns: (ago(lived.start), ended.map(ago)),
            is_taken: seen.is_taken,
        };
        let created = seen.info.created_unix_ns;
        Ok(Some((seen.found(Some(part)), created)))
    }

    /// A space of this node that has or had writers in this job.
    fn see(&self, name: &str, wanted: &[Claim]) -> Result<Option<Seen>> {
        let is_missing = |e: &Error| matches!(e.kind(), Kind::PeerMissing | Kind::BadName);
        let info = match glance(name) {
            Err(e) if is_missing(&e) => return Ok(None),
            info => info?,
        };
        let is_of_job = match info.state.as_str() {
            OPEN => true,
            // Without a writer there is nothing to copy yet.
            "new" => false,
            _ => info.created_unix_ns >= self.since_unix_ns,
        };
        if !is_of_job {
            return Ok(None);
        }
        if info.tier == FILES {
            return Ok(Some(Seen { info, ranks: None, is_taken: false }));
        }
        let ranks = match ReaderRanks::open(name) {
            Err(e) if is_missing(&e) => return Ok(None),
            ranks => ranks?,
        };
        // The name may have gone to the space of the next run meanwhile.
        if ranks.uuid() != info.uuid {
            return Ok(None);
        }
        let is_taken = wanted.iter().any(|claim| ranks.is_streamed_by(&claim.here()));
        Ok(Some(Seen { info, ranks: Some(ranks), is_taken }))
    }

    fn open(&self, node: &str, mirror: String, name: &str, uuid: &str) -> Result<Opened> {
        let options = OpenOptions {
            observer: true,
            component: Some(stand_in_name("agent", node)),
            timeout: OPEN_TIMEOUT,
            finished: true,
            scope: Scope::Node,
            ..OpenOptions::default()
        };
        let observer = Reader::open(name, &options)?;
        let ranks = ReaderRanks::open(name)?;
        let info = glance(name)?;
        // The name may go to another space at any moment.
        let replaced =
            || Error::new(Kind::PeerMissing, format!("space {name} was replaced")).with("node", &self.node);
        if [observer.uuid(), ranks.uuid(), info.uuid.clone()].iter().any(|opened| opened != uuid) {
            return Err(replaced());
        }
        let (oldest, kept) = keep_oldest(&observer, &ranks)?.ok_or_else(replaced)?;
        let opened = opened(&info, oldest, &self.node)?;
        let served = Served {
            name: name.to_string(),
            uuid: uuid.to_string(),
            node: node.to_string(),
            observing: Mutex::new(Observing::At(Box::new(observer))),
            ranks,
            held: Mutex::default(),
            kept: Mutex::new(Kept { from: oldest, _hold: Some(kept) }),
            asked_at: Mutex::new(Instant::now()),
            stand_ins: Mutex::default(),
            left: Mutex::default(),
            is_over: AtomicBool::new(false),
        };
        lock(&self.served).insert(mirror, Arc::new(served));
        Ok(opened)
    }

    /// Ranks that read the same space, not by this mirror: on this node, and by other mirrors.
    fn elsewhere(&self, asking: &Arc<Served>) -> Vec<Place> {
        let mut places = BTreeSet::new();
        for rank in asking.ranks.now() {
            if rank.pid != Some(std::process::id()) {
                let node = self.node.clone();
                places.insert(Place { group: rank.group, size: rank.size, rank: rank.rank, node });
            }
        }
        for other in lock(&self.served).values() {
            if other.uuid == asking.uuid && !Arc::ptr_eq(other, asking) {
                for ((group, rank), stand_in) in lock(&other.stand_ins).iter() {
                    let (group, node) = (group.clone(), other.node.clone());
                    places.insert(Place { group, size: stand_in.size, rank: *rank, node });
                }
            }
        }
        let own = lock(&asking.stand_ins);
        places.retain(|place| !own.contains_key(&(place.group.clone(), place.rank)));
        places.into_iter().collect()
    }

    /// Ends all mirrors of a node that was lost.
    pub fn lost(&self, node: &str) {
        for served in self.take(|served| served.node == node) {
            say!("forebay-agent: node {node} was lost; its copy of space {} ends", served.name);
            served.end();
        }
    }

    /// Ends mirrors that are over without having said so: what was opened for one that had closed, or was lost, while
    /// it was opened.
    pub fn end_silent(&self, silent_max: Duration) {
        for served in self.take(|served| lock(&served.asked_at).elapsed() > silent_max) {
            say!(
                "forebay-agent: the copy of space {} on node {} is silent; it ends",
                served.name,
                served.node
            );
            served.end();
        }
    }

    fn take(&self, is: impl Fn(&Served) -> bool) -> Vec<Arc<Served>> {
        let mut taken = Vec::new();
        lock(&self.served).retain(|_, served| {
            let goes = is(served);
            taken.extend(goes.then(|| served.clone()));
            !goes
        });
        taken
    }

    /// Mirrors that wait for a version are told that the agent ends; what they report is still heard.
    pub fn begin_end(&self) {
        self.is_ending.store(true, Relaxed);
    }

    /// Ends all mirrors.
    pub fn end(&self) {
        self.begin_end();
        let all = std::mem::take(&mut *lock(&self.served));
        all.values().for_each(|served| served.end());
    }
}

/// A space of this node, as it was seen.
struct Seen {
    info: SpaceInfo,
    /// None of a channel of files.
    ranks: Option<ReaderRanks>,
    /// Whether a reader takes what writers put that have ended.
    is_taken: bool,
}

impl Seen {
    fn is_open(&self) -> bool {
        self.info.state == OPEN
    }

    fn found(self, part: Option<FoundPart>) -> Found {
        let SpaceInfo { name, uuid, state, producer, .. } = self.info;
        let incarnation = producer.map_or(0, |producer| producer.incarnation);
        Found { uuid, incarnation, state, name, part }
    }
}

/// The oldest version, kept so that it and all after it are there when they are asked for: readers of this node may
/// read and release them faster than a mirror begins. It need not be there yet. None: the space was removed.
fn keep_oldest(observer: &Reader, ranks: &ReaderRanks) -> Result<Option<(u64, Hold)>> {
    while !ranks.is_removed() {
        let oldest = observer.versions()?.start;
        // Dropped meanwhile, or the next one is.
        if let Some(kept) = observer.keep_from(oldest)? {
            return Ok(Some((oldest, kept)));
        }
    }
    Ok(None)
}

/// What a mirror of this space is made from.
fn opened(info: &SpaceInfo, oldest: u64, node: &str) -> Result<Opened> {
    let Some(producer) = &info.producer else {
        return Err(Error::new(Kind::PeerMissing, format!("space {} has no writers yet", info.name))
            .with("node", node));
    };
    if info.tier == FILES || info.uuid.is_empty() {
        return Err(Error::new(Kind::NotPossibleHere, format!("{} is a channel of files", info.name))
            .with("node", node)
            .hint("use a channel of kind space between nodes"));
    }
    let declared = info.readers.iter().filter(|group| group.absent.is_some());
    Ok(Opened {
        writers: producer.size,
        component: producer.component.clone(),
        // Of its memory: the mirror has no lower tiers.
        quota_bytes: info.tiers.first().map_or(info.quota_bytes, |first| first.quota_bytes),
        segment_bytes: info.segment_bytes,
        retention: info.retention.clone(),
        checksum: info.checksum,
        oldest,
        declared: declared.map(|group| (group.name.clone(), group.size)).collect(),
    })
}

impl Served {
    /// Waits for a version, and holds it. What was held before is released at once, since its space may be wanted for
    /// this one. A `peek` says only how it stands, and changes nothing.
    fn next(&self, version: u64, wait: Duration, peek: bool, is_ending: &AtomicBool) -> Result<Next> {
        let deadline = Instant::now() + wait;
        let mut observing = lock(&self.observing);
        let observer = match &mut *observing {
            Observing::At(observer) => observer,
            // The answer was lost, or has been on its way for long.
            Observing::Over(Next::End { attributes, .. }) => return Ok(self.ending(attributes.clone())),
            Observing::Over(last) => return Ok(last.clone()),
        };
        if !peek {
            self.move_to(observer, version)?;
        }
        let next = loop {
            if is_ending.load(Relaxed) {
                break Next::Died("the agent was stopped".to_string());
            }
            if self.is_over.load(Relaxed) {
                return Err(Error::new(Kind::PeerMissing, "the mirror has ended"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match observer.wait(version, Some(left.min(SLICE))) {
                Ok(()) if peek => return Ok(Next::Waiting),
                Ok(()) => return self.hold(observer, version),
                Err(e) if e.kind() == Kind::TimedOut && left.is_zero() => return Ok(Next::Waiting),
                Err(e) if e.kind() == Kind::TimedOut => {}
                Err(e) if e.kind() == Kind::VersionGone => {
                    break Next::Dropped { oldest: observer.versions()?.start };
                }
                Err(e) if e.kind() == Kind::ProducerDied => break Next::Died(sentence(&e)),
                Err(e) if e.kind() == Kind::PeerMissing => {
                    let has_ended = observer.latest().is_ok()
                        && glance(&self.name).is_ok_and(|now| now.uuid == self.uuid);
                    break match has_ended {
                        true => self.ending(without_part(observer.attributes()?)),
                        false => Next::Died(sentence(&e)),
                    };
                }
                Err(e) => return Err(e),
            }
        };
        if peek {
            return Ok(next);
        }
        self.let_go();
        *observing = Observing::Over(next.clone());
        Ok(next)
    }

    /// All writers have closed.
    fn ending(&self, attributes: Attributes) -> Next {
        Next::End { attributes, ended_ago_ns: realtime_ns().saturating_sub(self.ranks.ended_unix_ns()) }
    }

    /// Keeps this version and all after it, and releases those before.
    fn move_to(&self, observer: &Reader, version: u64) -> Result<()> {
        let mut kept = lock(&self.kept);
        if kept.from > version {
            return Err(Error::new(Kind::VersionGone, "a request came after the one that follows it"));
        }
        if kept.from < version {
            // The lease first: nothing is dropped meanwhile.
            *kept = Kept { from: version, _hold: observer.keep_from(version)? };
            *lock(&self.held) = None;
        }
        Ok(())
    }

    fn let_go(&self) {
        *lock(&self.held) = None;
        lock(&self.kept)._hold = None;
    }

    fn hold(&self, observer: &mut Reader, version: u64) -> Result<Next> {
        let attributes = without_part(observer.attributes()?);
        let mut held = lock(&self.held);
        if held.as_ref().is_none_or(|held| held.version != version) {
            let mut opened = match observer.open_version(version) {
                Err(e) if e.kind() == Kind::VersionGone => {
                    return Ok(Next::Dropped { oldest: observer.versions()?.start });
                }
                opened => opened?,
            };
            *held = Some(Arc::new(Held::of(&mut opened, version)?));
        }
        let records = held.as_ref().expect("it is held").records.clone();
        Ok(Next::Version(Version { records, attributes }))
    }

    /// Bytes of the version that is held.
    fn payload(
        self: &Arc<Self>,
        version: u64,
        offset: u64,
        bytes: u64,
        sent: &Arc<AtomicU64>,
    ) -> Result<Payload> {
        let held = lock(&self.held).clone().filter(|held| held.version == version).ok_or_else(|| {
            Error::new(
                Kind::VersionGone,
                format!("version {version} of space {} is no longer held", self.name),
            )
        })?;
        let end = offset.checked_add(bytes).filter(|end| *end <= held.bytes).ok_or_else(|| {
            malformed("the requested range is outside the version")
                .with("offset", offset)
                .with("bytes", bytes)
                .with("version_bytes", held.bytes)
        })?;
        let of = Of::Version { served: self.clone(), held, end, sent: sent.clone() };
        Ok(Payload { of, at: offset, small: Vec::new() })
    }

    /// Brings the stand-ins to where the ranks are that read the mirror.
    fn follow(&self, ranks: &[Rank]) {
        let mut stand_ins = lock(&self.stand_ins);
        if self.is_over.load(Relaxed) {
            return;
        }
        let is_named =
            |key: &(String, u32)| ranks.iter().any(|rank| (&rank.group, rank.rank) == (&key.0, key.1));
        // Closed, or died: for a group that keeps a cursor its stand-in goes as it did.
        stand_ins.retain(|key, _| is_named(key));
        for rank in ranks {
            let key = (rank.group.clone(), rank.rank);
            if !rank.left {
                lock(&self.left).remove(&key);
            } else if lock(&self.left).insert(key.clone()) {
                let left = match stand_ins.remove(&key) {
                    Some(stand_in) => stand_in.leave(),
                    None => leave_reader_group(&self.name, &rank.group, rank.rank, OPEN_TIMEOUT).map(drop),
                };
                if let Err(e) = left {
                    say!(
                        "forebay-agent: reader group {} of space {}: {}",
                        rank.group,
                        self.name,
                        sentence(&e)
                    );
                }
            }
            if rank.left {
                continue;
            }
            if !stand_ins.contains_key(&key) {
                match StandIn::join(&self.name, rank, &self.node) {
                    Ok(stand_in) => {
                        stand_ins.insert(key.clone(), stand_in);
                    }
                    Err(e) => say!(
                        "forebay-agent: rank {} of reader group {} on node {} cannot read space {}: {e}",
                        rank.rank,
                        rank.group,
                        self.node,
                        self.name
                    ),
                }
            }
            if let Some(stand_in) = stand_ins.get_mut(&key) {
                stand_in.follow(rank.below, rank.ended);
            }
        }
    }

    fn end(&self) {
        self.is_over.store(true, Relaxed);
        lock(&self.stand_ins).clear();
        self.let_go();
    }
}

impl Held {
    fn of(opened: &mut Reader, version: u64) -> Result<Held> {
        let records = opened.records()?;
        if records.len() > RECORDS_MAX {
            return Err(Error::new(
                Kind::TooMany,
                format!("version {version} has too many records to copy to another node"),
            )
            .with("records", records.len())
            .with("records_max", RECORDS_MAX)
            .hint("put fewer and larger arrays in a step"));
        }
        let (mut views, mut bytes) = (Vec::with_capacity(records.len()), 0);
        for (index, record) in records.iter().enumerate() {
            views.push((bytes, opened.record_view(index)?));
            bytes += record.bytes;
        }
        Ok(Held { version, views, bytes, records: records.iter().map(RecordText::from).collect() })
    }
}

/// What is answered: words, or bytes, or bytes behind words.
pub struct Reply {
    /// The words.
    pub answer: Option<Result<Answer>>,
    /// The bytes.
    pub payload: Option<Payload>,
}

/// Bytes that are sent, part by part. The version stays where it is until they were.
pub struct Payload {
    of: Of,
    /// Where the next part begins.
    pub at: u64,
    /// Small pieces, one behind the other.
    small: Vec<u8>,
}

enum Of {
    Version {
        served: Arc<Served>,
        held: Arc<Held>,
        end: u64,
        /// Counts the bytes.
        sent: Arc<AtomicU64>,
    },
    /// So many bytes without a meaning.
    Probe(u64),
}

impl Payload {
    fn probe(bytes: u64) -> Payload {
        Payload { of: Of::Probe(bytes), at: 0, small: Vec::new() }
    }

    /// Says whether the mirror still wants them.
    pub fn is_wanted(&self) -> Box<dyn Fn() -> bool> {
        match &self.of {
            Of::Version { served, held, .. } => {
                let (served, version) = (served.clone(), held.version);
                // A mirror that asks for the next one has given up on this one.
                let is_held = move || lock(&served.held).as_ref().is_some_and(|held| held.version == version);
                Box::new(is_held)
            }
            Of::Probe(_) => Box::new(|| true),
        }
    }

    /// The next part, of at most [`PART_BYTES_MAX`]: a large piece as it lies in the pool; small ones gathered, because
    /// each part has a price.
    pub fn next_part(&mut self) -> Option<&[u8]> {
        let at = &mut self.at;
        let (held, end, sent) = match &mut self.of {
            Of::Version { held, end, sent, .. } => (held, *end, sent),
            Of::Probe(left) => {
                let part = &links::pattern()[..(*left).min(PART_BYTES_MAX as u64) as usize];
                *left -= part.len() as u64;
                *at += part.len() as u64;
                return (!part.is_empty()).then_some(part);
            }
        };
        self.small.clear();
        let first = held.views.partition_point(|(begin, _)| begin <= at).saturating_sub(1);
        for (begin, view) in &held.views[first.min(held.views.len())..] {
            if *at == end {
                break;
            }
            let payload = view.bytes();
            let from = (*at - begin) as usize;
            let left = payload.len().saturating_sub(from).min((end - *at) as usize);
            if left >= GATHERED_BYTES_MAX {
                if !self.small.is_empty() {
                    break;
                }
                let bytes = left.min(PART_BYTES_MAX);
                *at += bytes as u64;
                sent.fetch_add(bytes as u64, Relaxed);
                return Some(&payload[from..from + bytes]);
            }
            if self.small.len() + left > PART_BYTES_MAX {
                break;
            }
            self.small.extend_from_slice(&payload[from..from + left]);
            *at += left as u64;
        }
        sent.fetch_add(self.small.len() as u64, Relaxed);
        (!self.small.is_empty()).then_some(&self.small[..])
    }
}

/// A reader in the place of a rank on another node.
pub struct StandIn {
    /// None once it has seen the end of the stream.
    reader: Option<Reader>,
    size: u32,
    /// The version of the open step.
    open: Option<u64>,
    /// It has ended every version below.
    next: u64,
}

impl StandIn {
    /// Joins the reader group of a space that is there, as a rank that reads on `node`.
    ///
    /// # Errors
    /// Those of opening a reader.
    pub fn join(name: &str, rank: &Rank, node: &str) -> Result<StandIn> {
        let options = OpenOptions {
            rank: Some(rank.rank),
            size: Some(rank.size),
            component: Some(stand_in_name(&rank.group, node)),
            timeout: OPEN_TIMEOUT,
            scope: Scope::Node,
            ..OpenOptions::default()
        };
        let reader = Reader::stand_in(name, &options, &rank.group, absent_of(rank.absent.as_deref())?)?;
        Ok(StandIn { reader: Some(reader), size: rank.size, open: None, next: 0 })
    }

    /// Leaves its group for good.
    fn leave(self) -> Result<()> {
        self.reader.map_or(Ok(()), Reader::leave)
    }

    /// Ends every complete version below `below`; where the rank has `ended`, the stream as well.
    pub fn follow(&mut self, below: u64, ended: bool) {
        while let Some(reader) = &mut self.reader {
            if let Some(version) = self.open {
                if version >= below && !ended {
                    return;
                }
                let _ = reader.end_step();
                (self.open, self.next) = (None, version + 1);
            }
            if self.next >= below && !ended {
                return;
            }
            match reader.begin_step(Some(Duration::ZERO)) {
                Ok(Some(version)) => self.open = Some(version),
                Ok(None) => self.reader = None,
                // Not complete yet; or the writers died, which the rank learns from its mirror.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_space::{Dtype, Piece, Writer};

    fn options() -> OpenOptions {
        OpenOptions {
            rank: Some(0),
            size: Some(1),
            component: Some("test".into()),
            quota_bytes: Some(8 << 20),
            timeout: Duration::from_secs(60),
            ..OpenOptions::default()
        }
    }

    fn put(writer: &mut Writer, name: &str, data: &[u8]) -> Result<()> {
        let shape = [data.len() as u64];
        let piece = Piece { name, dtype: Dtype::U8, shape: &shape, start: &[0], count: &shape };
        let mut reservation = writer.reserve_record(&piece)?;
        reservation.as_mut_slice().copy_from_slice(data);
        writer.commit(reservation)
    }

    /// One version of one variable.
    fn put_version(writer: &mut Writer, data: &[u8]) -> Result<()> {
        writer.begin_step()?;
        put(writer, "x", data)?;
        writer.end_step()
    }

    fn space() -> (tempfile::TempDir, String) {
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let name = format!("{}/heat", root.path().display());
        (root, name)
    }

    /// A mirror of the space for node `b`.
    fn open(owner: &Owner, name: &str) -> Opened {
        let uuid = glance(name).unwrap().uuid;
        owner.open("b", "mirror".into(), name, &uuid).unwrap()
    }

    fn next(owner: &Owner, version: u64, peek: bool) -> Next {
        let wait = Duration::from_millis(50);
        owner.of("mirror").unwrap().next(version, wait, peek, &AtomicBool::new(false)).unwrap()
    }

    /// Bytes of the first version.
    fn read(owner: &Owner, offset: usize, bytes: usize) -> Vec<u8> {
        let mut payload = owner.payload("mirror", 0, offset as u64, bytes as u64).unwrap();
        let mut read = Vec::new();
        while let Some(part) = payload.next_part() {
            assert!((1..=PART_BYTES_MAX).contains(&part.len()));
            read.extend_from_slice(part);
        }
        read
    }

    #[test]
    fn an_end_that_is_told_again_is_longer_ago() {
        let (_root, name) = space();
        let writer = Writer::open(&name, &options()).unwrap();
        let owner = Owner::new("a");
        open(&owner, &name);
        writer.close().unwrap();
        let age = || match next(&owner, 0, false) {
            Next::End { ended_ago_ns, .. } => ended_ago_ns,
            other => panic!("{other:?}"),
        };
        let first = age();
        std::thread::sleep(Duration::from_millis(30));
        assert!(age() >= first + 30_000_000);
        owner.end();
        forebay_space::destroy(&name).unwrap();
    }

    /// Puts versions from `first` on, which the reader releases at once, until the quota is full; the end of them.
    fn fill(writer: &mut Writer, reader: &mut Reader, first: u64) -> u64 {
        let data = vec![7; 2 << 20];
        for version in first.. {
            if let Err(error) = put_version(writer, &data) {
                assert_eq!(error.kind(), Kind::QuotaFull, "{error}");
                return version;
            }
            assert_eq!(reader.begin_step(None).unwrap(), Some(version));
            reader.end_step().unwrap();
            assert!(version < 9, "the quota has space for less than four");
        }
        unreachable!("versions end");
    }

    #[test]
    fn what_readers_of_the_node_release_stays_until_the_mirror_has_asked_for_it() {
        // Before the mirror asks for the first version; after it has got one, which has records or none; and after it
        // has asked for one that is not there yet.
        for (asked, is_empty, waits) in
            [(0, false, false), (1, false, false), (1, true, false), (1, false, true)]
        {
            let (_root, name) = space();
            let options = OpenOptions { timeout: Duration::from_millis(100), ..options() };
            let mut writer = Writer::open(&name, &options).unwrap();
            let owner = Owner::new("a");
            assert_eq!(open(&owner, &name).oldest, 0);
            let mut reader = Reader::open(&name, &options).unwrap();
            if asked == 1 {
                writer.begin_step().unwrap();
                if !is_empty {
                    put(&mut writer, "x", &[7; 100]).unwrap();
                }
                writer.end_step().unwrap();
                reader.begin_step(None).unwrap();
                reader.end_step().unwrap();
                assert!(matches!(next(&owner, 0, false), Next::Version(_)));
                assert!(!waits || matches!(next(&owner, 1, false), Next::Waiting));
            }
            let versions = fill(&mut writer, &mut reader, asked);
            for version in asked..versions {
                let found = next(&owner, version, false);
                assert!(matches!(found, Next::Version(_)), "{version} of {versions}: {found:?}");
            }
            // The version before is released with the request for the next one.
            put(&mut writer, "x", &vec![7; 2 << 20]).unwrap();
        }
    }

    #[test]
    fn what_is_opened_is_the_space_that_was_found_while_others_take_its_name() {
        let (_root, name) = space();
        let replace = || {
            let options = OpenOptions { replace: true, ..options() };
            let mut writer = Writer::open(&name, &options)?;
            put_version(&mut writer, &[7; 100])?;
            writer.close()
        };
        replace().unwrap();
        let is_over = AtomicBool::new(false);
        let opened = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Relaxed) {
                    // Refused while this process has it open.
                    let _ = replace();
                }
            });
            let owner = Owner::new("a");
            let mut opened = Vec::new();
            for attempt in 0..300 {
                let Ok(found) = glance(&name) else { continue };
                let mirror = attempt.to_string();
                std::thread::sleep(Duration::from_micros(attempt * 10));
                if owner.open("b", mirror.clone(), &name, &found.uuid).is_ok() {
                    let served = owner.of(&mirror).unwrap();
                    let Observing::At(observer) = &*lock(&served.observing) else {
                        unreachable!("it was opened")
                    };
                    opened.push([found.uuid, observer.uuid(), served.ranks.uuid()]);
                }
                owner.end();
            }
            is_over.store(true, Relaxed);
            opened
        });
        assert!(!opened.is_empty(), "some were opened");
        for [found, observed, ranks] in opened {
            assert_eq!((&found, &found), (&observed, &ranks));
        }
    }

    #[test]
    fn what_a_silent_mirror_has_is_let_go_of() {
        let (_root, name) = space();
        let mut writer = Writer::open(&name, &options()).unwrap();
        let owner = Owner::new("a");
        open(&owner, &name);
        put_version(&mut writer, &[7; 100]).unwrap();
        owner.end_silent(Duration::from_secs(60));
        assert!(matches!(next(&owner, 0, false), Next::Version(_)));
        owner.end_silent(Duration::ZERO);
        assert_eq!(owner.of("mirror").err().map(|e| e.kind()), Some(Kind::PeerMissing));
        assert!(owner.served().is_empty());
    }

    #[test]
    fn a_mirror_is_no_reader_before_ranks_read_it() {
        let (_root, name) = space();
        let mut writer = Writer::open(&name, &options()).unwrap();
        let owner = Owner::new("a");
        open(&owner, &name);
        for version in 0..3 {
            put_version(&mut writer, &[7; 100]).unwrap();
            assert!(matches!(next(&owner, version, false), Next::Version(_)));
        }
        owner.answer_in_words("b", Ask::Close { mirror: "mirror".into() }).unwrap();
        // Before any reader came everything is kept.
        let info = glance(&name).unwrap();
        assert_eq!((info.versions_oldest, info.versions_complete, info.readers.len()), (0, 3, 0));
    }

    #[test]
    fn a_peek_tells_of_death_and_changes_nothing() {
        let (_root, name) = space();
        let mut writer = Writer::open(&name, &options()).unwrap();
        let owner = Owner::new("a");
        open(&owner, &name);
        put_version(&mut writer, &[7; 100]).unwrap();
        assert!(matches!(next(&owner, 0, false), Next::Version(_)));
        assert!(matches!(next(&owner, 1, true), Next::Waiting));
        writer.abandon();
        assert!(matches!(next(&owner, 1, true), Next::Died(_)));
        assert_eq!(read(&owner, 0, 100), [7; 100], "it is still held");
    }

    #[test]
    fn parts_of_a_payload_are_its_bytes_wherever_they_begin_and_end() {
        let (_root, name) = space();
        let mut writer = Writer::open(&name, &options()).unwrap();
        let owner = Owner::new("a");
        open(&owner, &name);
        writer.begin_step().unwrap();
        let mut all = Vec::new();
        // Pieces that are sent as they lie, pieces that are gathered, and empty ones.
        for (index, bytes) in [10, 40_000, 0, 32 << 10, 7, 9, 1_200_000, 1].into_iter().enumerate() {
            let data: Vec<u8> = (0..bytes).map(|at: usize| (at * 31 + index) as u8).collect();
            put(&mut writer, &format!("x{index}"), &data).unwrap();
            all.extend(data);
        }
        writer.end_step().unwrap();
        assert!(matches!(next(&owner, 0, false), Next::Version(_)));
        for begin in [0, 1, 10, 9_999, 40_009, 40_010, 72_778, 72_794] {
            for bytes in [0, 1, 33_000, 80_000, all.len() - begin] {
                let bytes = bytes.min(all.len() - begin);
                assert!(read(&owner, begin, bytes) == all[begin..begin + bytes], "{begin} {bytes}");
            }
        }
        assert!(owner.payload("mirror", 0, 0, all.len() as u64 + 1).is_err());
    }
}
