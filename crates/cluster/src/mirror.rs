//! A mirror: a space of this node that is a copy of one on another node, or of its parts on several nodes, version by
//! version.
//!
//! The agent writes it through ordinary writers, one for each writer rank of the owners, so that a reader of this node
//! opens, reads and waits as it does for any space. Versions have the owners' numbers. One thread copies versions; a
//! second one tells the owners which ranks read the mirror and how far they are.
//!
//! Guarantees: a version appears whole, or not at all; when the owners' writers have closed, the mirror's close; when
//! some died or the node of an owner was lost, readers get `ProducerDied` with the reason and the node. A mirror that
//! cannot go on is removed once no process has it open. Not here: which spaces are wanted (`demand.rs`), where they are
//! (`find.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_space::{
    destroy, glance, make_root, mechanism_of, Error, Kind, Mode, OpenOptions, ReaderRank, ReaderRanks,
    Record, Reservation, Result, Retention, Scope, SpaceInfo, WhenFull, Writer,
};

use forebay_tier::capacity::headroom;
use forebay_tier::clock::realtime_ns;

use crate::find;
use crate::link::{gone, Link};
use crate::message::{
    malformed, piece_of, Answer, Ask, Attributes, Next, Opened, Place, Rank, Version, RANKS_MAX,
};
use crate::naming::stand_in_name;
use crate::owner::{sentence, Owner, StandIn};
use crate::pull::{Pull, Source};

/// How long one request for the next version waits at the owner.
const NEXT_WAIT: Duration = Duration::from_secs(5);
/// The same of each of several owners: what one says is not heard while another waits.
const EACH_NEXT_WAIT: Duration = Duration::from_millis(200);
/// An answer in words comes within this and the lease, beside the wait that it was asked for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The owners of an ended space are asked at most this many times when its writers ended.
const END_ASKS: usize = 3;
/// Time limit of all these requests together.
const END_ASKS_TIMEOUT: Duration = Duration::from_secs(3);
/// An answer within this is accurate enough.
const SOON: Duration = Duration::from_millis(50);
/// A part of a payload comes within this and the lease.
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
    /// Nodes of its writers.
    pub nodes: String,
    uuid: String,
    /// What it is a copy of.
    sources: Vec<(String, u32)>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_stopping: Arc<AtomicBool>,
    /// The space has ended, or cannot be copied any further.
    is_over: AtomicBool,
    /// The owner's writers have closed, and all that they put was copied.
    has_ended: AtomicBool,
    /// No rank has read it for a while, and none is awaited.
    is_unused: AtomicBool,
    /// The owner's space was removed or replaced.
    has_gone_there: AtomicBool,
    /// Versions that were copied.
    versions: AtomicU64,
    bytes: AtomicU64,
    /// What it does, in a word.
    state: Mutex<&'static str>,
}

impl Shared {
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

/// What the owners' answers mean together.
enum All {
    /// Of each owner what it has of the version, and its payload if that came with it.
    Versions(Vec<(Version, Option<Vec<u8>>)>),
    /// Some do not have it yet.
    Waiting,
    /// All writers have closed.
    Ended {
        attributes: Attributes,
        /// The last one of them, nanoseconds since 1970 by the clock of this node; not later than that.
        at_unix_ns: u64,
    },
    /// A writer died, or closed before others.
    Failed(String),
    Dropped {
        node: String,
        oldest: u64,
    },
}

/// What an owner said of a version.
struct Told {
    /// When it was asked, nanoseconds since 1970.
    asked_unix_ns: u64,
    next: Next,
    /// The payload that came with it.
    inline: Option<Vec<u8>>,
}

impl Told {
    /// When its last writer ended, by the clock of this node, if they have; not later than that, since the answer may
    /// have been on its way for long: a reader is to take nothing of writers that ended before it came.
    fn ended_unix_ns(&self) -> u64 {
        match self.next {
            Next::End { ended_ago_ns, .. } => self.asked_unix_ns.saturating_sub(ended_ago_ns),
            _ => 0,
        }
    }
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

/// Whether readers hold none of the versions before this one: what is there stays by the retention alone.
fn is_released(oldest: u64, retention: Retention, version: u64) -> bool {
    let stay = match retention {
        Retention::Released => 0,
        Retention::Last(count) => count,
        Retention::Forever => u64::MAX,
    };
    oldest.saturating_add(stay) >= version
}

/// The error for a version that has no space in a mirror of which readers hold nothing.
fn too_large(version: u64, mirror: &SpaceInfo) -> Error {
    Error::new(
        Kind::VersionTooLarge,
        format!("version {version} does not fit into the mirror of {} on this node", mirror.name),
    )
    .with("quota", forebay_config::format_bytes(mirror.quota_bytes))
    .hint(
        "a mirror needs space for two versions more than its retention keeps: increase the quota of the writers, or \
         free memory on this node",
    )
}

/// What a mirror is a copy of: spaces, and the start of their writers.
pub fn identities(sources: &[find::Source]) -> Vec<(String, u32)> {
    sources.iter().map(|(_, found)| (found.uuid.clone(), found.incarnation)).collect()
}

impl Mirror {
    /// Begins to mirror the space `name` of the nodes where it was found. Returns when readers can open it. `before`
    /// is the identity of a mirror that is over, which it replaces: readers that wait in that one go over to it.
    ///
    /// # Errors
    /// Those of the owner; those of making a space here: [`Kind::NameInUse`] also while a reader reads the mirror that
    /// is to be replaced.
    pub fn begin(
        link: &Arc<Link>,
        owner: &Arc<Owner>,
        name: &str,
        sources: &[find::Source],
        before: Option<&str>,
    ) -> Result<Mirror> {
        let shared = Arc::<Shared>::default();
        let mut copy = Copying {
            link: link.clone(),
            owners: Vec::new(),
            name: name.to_string(),
            mirror: uuid::Uuid::new_v4().to_string(),
            shared: shared.clone(),
        };
        owner.note_mirror(name, true);
        let begun = copy.begin(sources, before).inspect_err(|_| {
            copy.close();
            owner.note_mirror(name, false);
        });
        let (opened, writers, uuid) = begun?;
        shared.set_state("copying");
        let (owner, name, nodes) = (owner.clone(), name.to_string(), copy.nodes());
        let thread = std::thread::Builder::new().name(format!("mirror {name}")).spawn(move || {
            copy.run(writers, &opened);
            owner.note_mirror(&copy.name, false);
            copy.shared.set_state("gone");
        });
        let thread = thread.map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Mirror { name, nodes, uuid, sources: identities(sources), shared, thread: Some(thread) })
    }

    /// Identity of the copy.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Of one that has come to its end: what it is a copy of.
    pub fn sources_at_end(&self) -> Option<Vec<(String, u32)>> {
        self.shared.has_ended.load(Relaxed).then(|| self.sources.clone())
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
    owners: Vec<Owned>,
    name: String,
    mirror: String,
    shared: Arc<Shared>,
}

/// The space that is copied, or its part, on one node.
struct Owned {
    node: String,
    /// How often the node's agent had been lost when the mirror began.
    losses: u64,
    /// The rank of each writer of the node, in their own order.
    ranks: Vec<u32>,
    /// Its attributes, as it said them last.
    said: Mutex<Attributes>,
}

impl Copying {
    fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Relaxed)
    }

    /// The owner that was lost.
    fn lost(&self) -> Option<&Owned> {
        self.owners.iter().find(|owned| self.link.peers.losses(&owned.node) != owned.losses)
    }

    fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    /// The error, if an owner was lost.
    fn check_lost(&self) -> Result<()> {
        self.lost().map_or(Ok(()), |owned| Err(gone(&owned.node)))
    }

    /// Names of the owners' nodes.
    fn nodes(&self) -> String {
        let nodes: Vec<&str> = self.owners.iter().map(|owned| owned.node.as_str()).collect();
        nodes.join(", ")
    }

    /// Opens the space at its owners, and makes the copy: what it is made like, its writers, its identity.
    fn begin(
        &mut self,
        sources: &[find::Source],
        before: Option<&str>,
    ) -> Result<(Opened, Vec<Writer>, String)> {
        let mut all: Option<Opened> = None;
        // This node last: it answers at once, and the others meanwhile.
        let is_own = |source: &&find::Source| self.link.is_own(&source.0);
        let (own, others): (Vec<_>, Vec<_>) = sources.iter().partition(is_own);
        for (node, found) in others.into_iter().chain(own) {
            let losses = self.link.peers.losses(node);
            let (mirror, name, uuid) = (self.mirror.clone(), found.name.clone(), found.uuid.clone());
            // Before it is asked: where the answer is lost it may be open all the same.
            let said = Mutex::default();
            self.owners.push(Owned { node: node.clone(), losses, ranks: Vec::new(), said });
            let Answer::Opened(opened) =
                self.link.ask(node, Ask::Open { mirror, name, uuid }, ANSWER_TIMEOUT + self.link.lease)?
            else {
                return Err(malformed("a space was to be opened").with("node", node));
            };
            let part = found.part.as_ref();
            let ranks = part.map_or_else(|| (0..opened.writers).collect(), |part| part.ranks.clone());
            if ranks.len() != opened.writers as usize {
                return Err(Error::new(Kind::PeerMissing, format!("space {} was replaced", found.name))
                    .with("node", node));
            }
            self.owners.last_mut().expect("it was pushed").ranks = ranks;
            let size = part.map_or(opened.writers, |part| part.size);
            let opened = Opened { writers: size, ..opened };
            all = Some(match all {
                None => opened,
                Some(all) => all.and(opened),
            });
        }
        let opened = all.ok_or_else(|| malformed("a mirror of nothing"))?;
        let writers = self.writers(&opened, before)?;
        match glance(&self.name) {
            Ok(copy) => Ok((opened, writers, copy.uuid)),
            Err(e) => {
                self.abandon(writers, &e.to_string());
                let _ = destroy(&self.name);
                Err(e)
            }
        }
    }

    /// Writers of a new space like the owner's, in the place of the mirror `before`.
    fn writers(&self, opened: &Opened, before: Option<&str>) -> Result<Vec<Writer>> {
        let is_before =
            || before.is_some_and(|uuid| glance(&self.name).is_ok_and(|found| found.uuid == uuid));
        if mechanism_of(&self.name)?.is_some() && !is_before() {
            return Err(Error::new(Kind::NameInUse, format!("this node already has a space {}", self.name))
                .with("writers_on", self.nodes())
                .hint("`forebay ls` shows the spaces of this node; remove it with `forebay clean`, or rename yours"));
        }
        // The directory of spaces need not be memory. Its node may have less than that of the writers.
        let root = make_root()?;
        let tier = forebay_tier::detect(&root)?;
        let quota_bytes = opened.quota_bytes.min(headroom(&root, tier)?.bytes / 2);
        // One that is smaller, or of several owners, may have no space for segments as large as theirs.
        let is_alike = self.owners.len() == 1 && quota_bytes == opened.quota_bytes;
        let node_of = |rank| {
            let owned = self.owners.iter().find(|owned| owned.ranks.contains(&rank));
            owned.map_or("", |owned| owned.node.as_str())
        };
        let options = |rank| -> Result<OpenOptions> {
            Ok(OpenOptions {
                rank: Some(rank),
                size: Some(opened.writers),
                component: Some(stand_in_name(&opened.component, node_of(rank))),
                tier: Some(tier),
                quota_bytes: Some(quota_bytes),
                segment_bytes: is_alike.then_some(opened.segment_bytes),
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
                Err(e) => Ending::Failed(format!("the agent cannot inspect its copy of the space: {e}")),
            };
            let may_be_read = self.end(writers, ending);
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
        let source =
            |owned: &Owned| Source::new(&self.link, &owned.node, owned.losses, &self.shared.is_stopping);
        let mut sources: Vec<Source> = self.owners.iter().map(source).collect();
        let mut answers: Vec<Option<Told>> = self.owners.iter().map(|_| None).collect();
        loop {
            // What no rank waits for is not to hold up the owners' writers.
            if self.shared.is_unused.load(Relaxed) {
                return Ending::Unused;
            }
            let next = match self.next(version, &mut sources, &mut answers) {
                Ok(Some(next)) => next,
                Ok(None) => return Ending::Stopped,
                Err(_) if self.is_stopping() => return Ending::Stopped,
                Err(e) => return Ending::Failed(sentence(&e)),
            };
            match next {
                All::Waiting => {}
                All::Ended { attributes, at_unix_ns } => {
                    let at_unix_ns = at_unix_ns.max(self.ended_unix_ns(version, &mut sources));
                    return Ending::Closed { attributes, at_unix_ns };
                }
                All::Failed(text) => return Ending::Failed(text),
                All::Dropped { .. } if !is_read(ranks) && !ranks.is_awaited() => return Ending::Unused,
                All::Dropped { node, oldest } => {
                    return Ending::Failed(format!(
                        "versions {version} to {} were dropped on node {node} before they were copied",
                        oldest.saturating_sub(1)
                    ));
                }
                All::Versions(found) => match self.copy_version(writers, version, &found, &mut sources) {
                    Ok(Copied::Whole) => version += 1,
                    Ok(Copied::Stopped) => return Ending::Stopped,
                    Ok(Copied::Unused) => return Ending::Unused,
                    Err(_) if self.is_stopping() => return Ending::Stopped,
                    Err(e) => {
                        return Ending::Failed(format!(
                            "version {version} from node {}: {}",
                            self.nodes(),
                            sentence(&e)
                        ))
                    }
                },
            }
        }
    }

    /// When the last writer of all owners ended, nanoseconds since 1970 by the clock of this node, and not later.
    /// Owners that have ended answer at once, if nothing holds them up. 0: none of them does.
    fn ended_unix_ns(&self, version: u64, sources: &mut [Source]) -> u64 {
        let began = Instant::now();
        let mut last = 0;
        for _ in 0..END_ASKS {
            let asked_unix_ns = realtime_ns();
            let left = || END_ASKS_TIMEOUT.saturating_sub(began.elapsed());
            let ask = |source: &mut Source| {
                source
                    .send(Ask::Next { mirror: self.mirror.clone(), version, wait_ms: 0, peek: false }, left())
            };
            let asked: Vec<_> = sources.iter_mut().map(ask).collect();
            for (source, asked) in sources.iter_mut().zip(asked) {
                if let Ok(Answer::Next(next)) = asked.and_then(|()| source.answer(left())) {
                    last = last.max(Told { asked_unix_ns, next, inline: None }.ended_unix_ns());
                }
            }
            let took = realtime_ns().saturating_sub(asked_unix_ns);
            if took < SOON.as_nanos() as u64 || left().is_zero() || self.is_stopping() || self.is_lost() {
                break;
            }
        }
        last
    }

    /// Asks for a version; None: the mirror is to end. `answers` has what owners said of it before.
    fn next(
        &self,
        version: u64,
        sources: &mut [Source],
        answers: &mut [Option<Told>],
    ) -> Result<Option<All>> {
        let mut tries = 0;
        loop {
            if self.is_stopping() {
                return Ok(None);
            }
            self.check_lost()?;
            match self.ask_next(version, sources, answers) {
                Ok(()) => return Ok(Some(self.all_of(version, answers))),
                // That it is gone is known a moment later.
                Err(e)
                    if matches!(
                        e.kind(),
                        Kind::PeerMissing | Kind::TimedOut | Kind::TooMany | Kind::Damaged
                    ) && tries < 3 =>
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

    /// Asks the owners that have not answered yet, which wait at the same time; and those that have the version whether
    /// their writers still live.
    fn ask_next(&self, version: u64, sources: &mut [Source], answers: &mut [Option<Told>]) -> Result<()> {
        let asked_unix_ns = realtime_ns();
        let is_alone = self.owners.len() == 1 && !self.link.is_own(&self.owners[0].node);
        let wait = if is_alone { NEXT_WAIT } else { EACH_NEXT_WAIT };
        let within = wait + ANSWER_TIMEOUT + self.link.lease;
        let ask = |(source, answer): (&mut Source, &Option<Told>)| {
            let mirror = self.mirror.clone();
            let ask = match answer.as_ref().map(|told| &told.next) {
                None => Ask::Next { mirror, version, wait_ms: wait.as_millis() as u64, peek: false },
                Some(Next::Version(_)) => Ask::Next { mirror, version: version + 1, wait_ms: 0, peek: true },
                Some(_) => return None,
            };
            Some(source.send(ask, within))
        };
        // This node, the last one, answers before `send` returns.
        let asked: Vec<_> = sources.iter_mut().zip(answers.iter()).map(ask).collect();
        // Each answer is taken, whatever another one was: the next one would be taken for it.
        let mut failed = None;
        for ((source, asked), answer) in sources.iter_mut().zip(asked).zip(answers) {
            let Some(asked) = asked else { continue };
            match (asked.and_then(|()| self.answer_to_next(source, within)), &answer) {
                (Err(e), _) => failed = Some(e),
                (Ok((Next::Waiting, _)), _) => {}
                (Ok((next, inline)), None) | (Ok((next @ Next::Died(_), inline)), _) => {
                    *answer = Some(Told { asked_unix_ns, next, inline });
                }
                (Ok(_), Some(_)) => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// What an owner says of a version, and its payload if that comes with it.
    fn answer_to_next(&self, source: &mut Source, within: Duration) -> Result<(Next, Option<Vec<u8>>)> {
        let next = match source.answer(within)? {
            Answer::Next(next) => next,
            other => return Err(malformed(&format!("a version was asked for, and not {other:?}"))),
        };
        let bytes = match &next {
            Next::Version(version) => version.inline_bytes(),
            _ => None,
        };
        let Some(bytes) = bytes else { return Ok((next, None)) };
        let mut inline = vec![0; bytes as usize];
        let mut came = 0;
        while came < inline.len() {
            came += source.take(&mut inline[came..], within)?;
        }
        Ok((next, Some(inline)))
    }

    /// What the answers of all owners mean together: a version is there when all have it.
    fn all_of(&self, version: u64, answers: &mut [Option<Told>]) -> All {
        for (owned, answer) in self.owners.iter().zip(answers.iter()) {
            match answer.as_ref().map(|told| &told.next) {
                Some(Next::Died(text)) => return All::Failed(format!("on node {}: {text}", owned.node)),
                Some(Next::Dropped { oldest }) => {
                    return All::Dropped { node: owned.node.clone(), oldest: *oldest }
                }
                _ => {}
            }
        }
        let count = |is: fn(&Next) -> bool| answers.iter().flatten().filter(|told| is(&told.next)).count();
        let there = count(|next| matches!(next, Next::Version(_)));
        let ended = count(|next| matches!(next, Next::End { .. }));
        if there > 0 && ended > 0 {
            let text = "the writers of some nodes closed before version";
            return All::Failed(format!("{text} {version}, which others have put"));
        }
        if there + ended < answers.len() {
            return All::Waiting;
        }
        let (mut versions, mut attributes, mut at_unix_ns) = (Vec::new(), Attributes::new(), 0);
        for (owned, answer) in self.owners.iter().zip(answers) {
            let Some(told) = answer.take() else { continue };
            at_unix_ns = told.ended_unix_ns().max(at_unix_ns);
            match told.next {
                Next::Version(version) => versions.push((version, told.inline)),
                Next::End { attributes: own, .. } => attributes.extend(self.news(owned, &own)),
                _ => {}
            }
        }
        match ended {
            0 => All::Versions(versions),
            _ => All::Ended { attributes, at_unix_ns },
        }
    }

    /// Attributes that an owner had not said before: of two that know a key the one counts that changed it.
    fn news(&self, owned: &Owned, attributes: &Attributes) -> Attributes {
        let mut said = owned.said.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *said, attributes.clone());
        attributes
            .iter()
            .filter(|(key, value)| before.get(*key) != Some(*value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// `found` has what each owner has of the version.
    fn copy_version(
        &self,
        writers: &mut [Writer],
        version: u64,
        found: &[(Version, Option<Vec<u8>>)],
        sources: &mut [Source],
    ) -> Result<Copied> {
        for writer in writers.iter_mut() {
            writer.begin_version(version)?;
        }
        let mut all = 0u64;
        for ((owned, (found, inline)), source) in self.owners.iter().zip(found).zip(sources) {
            let records: Vec<Record> =
                found.records.iter().map(|record| record.record(&owned.ranks)).collect::<Result<_>>()?;
            let bytes = records.iter().try_fold(0u64, |sum, record| sum.checked_add(record.bytes));
            let bytes = bytes.ok_or_else(|| malformed("the sizes of records are too large"))?;
            let within = PART_TIMEOUT + self.link.lease;
            let mut pull = Pull::new(source, (&self.mirror, version), bytes, inline.as_deref(), within);
            match self.copy_records(writers, version, &records, &mut pull)? {
                Copied::Whole => {}
                other => return Ok(other),
            }
            set_attributes(&mut writers[0], &self.news(owned, &found.attributes))?;
            all += bytes;
        }
        for writer in writers.iter_mut() {
            writer.end_step()?;
        }
        self.shared.versions.fetch_add(1, Relaxed);
        self.shared.bytes.fetch_add(all, Relaxed);
        Ok(Copied::Whole)
    }

    /// The payloads of all records, one behind the other, from the network into the pool.
    fn copy_records(
        &self,
        writers: &mut [Writer],
        version: u64,
        records: &[Record],
        pull: &mut Pull<'_>,
    ) -> Result<Copied> {
        for record in records {
            let writer = &mut writers[record.rank as usize];
            let mut reservation = match self.reserve(writer, version, record)? {
                Continue(reservation) => reservation,
                Break(stopped) => return Ok(stopped),
            };
            pull.fill(reservation.as_mut_slice())?;
            writer.commit(reservation)?;
        }
        Ok(Copied::Whole)
    }

    /// Memory for a record of a version. Waits for free space as long as the mirror is wanted; else why it does not.
    ///
    /// # Errors
    /// `VersionTooLarge`: there will be none.
    fn reserve(
        &self,
        writer: &mut Writer,
        version: u64,
        record: &Record,
    ) -> Result<ControlFlow<Copied, Reservation>> {
        let mut refused_while_free = 0;
        loop {
            match writer.reserve_record(&piece_of(record)) {
                Ok(reservation) => return Ok(Continue(reservation)),
                // Readers of this node hold the space, and the owner's writers wait for them.
                Err(e) if matches!(e.kind(), Kind::QuotaFull | Kind::TimedOut) => {
                    if self.is_stopping() {
                        return Ok(Break(Copied::Stopped));
                    }
                    if self.shared.is_unused.load(Relaxed) {
                        return Ok(Break(Copied::Unused));
                    }
                    self.check_lost()?;
                    // Tried again: space that readers have just released is free with the next attempt.
                    let mirror = glance(&self.name).ok().filter(|_| e.kind() == Kind::QuotaFull);
                    let is_free = mirror.as_ref().is_some_and(|mirror| {
                        let retention = mirror.retention.parse();
                        retention.is_ok_and(|kept| is_released(mirror.versions_oldest, kept, version))
                    });
                    refused_while_free = if is_free { refused_while_free + 1 } else { 0 };
                    if let Some(mirror) = mirror.filter(|_| refused_while_free > 2) {
                        return Err(too_large(version, &mirror));
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends the copy. Whether readers may read it to its end.
    fn end(&self, mut writers: Vec<Writer>, ending: Ending) -> bool {
        match ending {
            Ending::Closed { attributes, at_unix_ns } => {
                // A stopped reader of this node may hold a lock.
                writers.iter_mut().for_each(|writer| writer.set_timeout(ANSWER_TIMEOUT));
                let said = writers.first_mut().map_or(Ok(()), |writer| set_attributes(writer, &attributes));
                let closed = writers
                    .into_iter()
                    .map(|writer| writer.close_as_of(at_unix_ns))
                    .fold(said, |before, this| before.and(this));
                // Set last: a reader that starts when it sees this state comes after the end.
                self.shared.set_state(if closed.is_ok() { "finished" } else { "failed" });
                if let Err(e) = &closed {
                    say!("forebay-agent: space {}: {e}", self.name);
                }
                return closed.is_ok();
            }
            Ending::Failed(why) => {
                self.shared.set_state("failed");
                say!("forebay-agent: the copy of space {} failed: {why}", self.name);
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
        false
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
        // By looks alone: this thread may wait for an owner, or the agent for a processor.
        let mut unused_since = None;
        loop {
            let last = is_over.load(Relaxed);
            let seen = ranks.changes();
            let now: Vec<ReaderRank> =
                ranks.now().into_iter().filter(|rank| rank.pid != Some(std::process::id())).collect();
            // One that came and left meanwhile is known by what it left.
            has_come |= !now.is_empty();
            let is_used = !has_come || now.iter().any(|rank| rank.pid.is_some()) || ranks.is_awaited();
            unused_since = if is_used { None } else { unused_since.or_else(|| Some(Instant::now())) };
            let is_unused = unused_since.is_some_and(|since: Instant| since.elapsed() > UNUSED);
            self.shared.is_unused.store(is_unused, Relaxed);
            if is_unused && !last {
                // It ends. Owners that are slow must not keep a rank that comes now from being seen.
                ranks.wait(seen, POLL);
                continue;
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
        // All of them, whatever one says: the last report is not made again.
        let mut all = Some(BTreeSet::new());
        for owned in &self.owners {
            let ranks = ranks.iter().take(RANKS_MAX).cloned().collect();
            let ask = Ask::Readers { mirror: self.mirror.clone(), ranks };
            match self.link.ask(&owned.node, ask, ANSWER_TIMEOUT + self.link.lease) {
                Ok(Answer::Elsewhere(places)) => all.iter_mut().for_each(|all| all.extend(places.clone())),
                Err(e) if e.kind() == Kind::PeerMissing && !self.is_lost() => {
                    self.shared.has_gone_there.store(true, Relaxed);
                    all = None;
                }
                _ => all = None,
            }
        }
        all.map(|all| all.into_iter().collect())
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
        for owned in &self.owners {
            // Who is lost closes it by itself.
            let ask = Ask::Close { mirror: self.mirror.clone() };
            let _ = self.link.ask(&owned.node, ask, Duration::from_secs(1));
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
                say!("forebay-agent: cannot remove space {}: {e}", self.name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_retention_keeps_is_held_by_no_reader() {
        // Version 7 is to be copied; the oldest one that is there.
        for (retention, oldest, is_free) in [
            (Retention::Released, 7, true),
            (Retention::Released, 6, false),
            (Retention::Last(2), 5, true),
            (Retention::Last(2), 4, false),
            (Retention::Forever, 0, true),
        ] {
            assert_eq!(is_released(oldest, retention, 7), is_free, "{retention} {oldest}");
        }
    }
}
