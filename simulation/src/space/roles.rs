//! What the simulated processes do: writers, readers, observers, caretakers.
//!
//! Each ends early when it is told something that a death, a stop or a fault explains ([`explained`]); any other error,
//! and anything that the oracle knows better, fails the run.

use std::ops::RangeInclusive;
use std::time::Duration;

use forebay_space::{
    Attribute, CleanOptions, Element, Error, ExecutionMode, Kind, Mode, OpenOptions, Reader, Result, View,
    Writer,
};
use forebay_tier::host::thread;
use forebay_tier::simulation::{process, Random};

use super::cast::{Cast, IDLE, TIMEOUT};
use super::census::{self, Own};
use super::oracle::{element, Comes, Oracle, Reading};

/// Past its deadline a call may wait for a lock that a stopped process holds, and a clock may jump.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reader that was told of another's end waits so long, times its lives.
const LATER: Duration = Duration::from_millis(100);

/// What a role belongs to.
#[derive(Clone)]
pub struct Run {
    /// Who takes part.
    pub cast: Cast,
    /// What is known.
    pub oracle: Oracle,
}

/// What a role came to.
pub type Told = std::result::Result<(), ()>;

/// Ends the role by an error that has a cause in this run; any other one fails the run.
pub fn explained<T>(run: &Run, during: &str, error: &Error) -> std::result::Result<T, ()> {
    let Run { cast, oracle } = run;
    let mut kinds = vec![];
    if !cast.is_calm() {
        kinds.extend([Kind::ProducerDied, Kind::Fenced, Kind::TimedOut, Kind::QuotaFull, Kind::PeerMissing]);
    }
    if cast.only_cuts() && cast.groups.iter().all(|size| *size == 1) && oracle.have_all_come(cast) {
        // What is away holds nothing, and what is there reads on.
        kinds.retain(|kind| *kind != Kind::QuotaFull);
    }
    culprit(run, during, error);
    fenced(during, error);
    if !cast.is_calm() && !during.starts_with("open to read") {
        // Beside writers that have not heard yet that their group is over.
        kinds.push(Kind::NameInUse);
    }
    if !cast.declared {
        // No writer waits for a group that was not declared: the space may have been read to its end.
        kinds.push(Kind::PeerMissing);
    }
    if oracle.may_be_cleaned() {
        kinds.push(Kind::PeerMissing);
    }
    if cast.dangers.fault_per_million > 0 {
        kinds.extend([Kind::Io, Kind::TierFull, Kind::Poisoned]);
    }
    if cast.crowd() > 0 && during.starts_with("open") {
        kinds.push(Kind::TooMany);
    }
    if !kinds.contains(&error.kind()) {
        process::fail(format!("{during}: {error}"));
    }
    process::note(format!("{during}: {error}"));
    if error.kind() == Kind::TooMany {
        // Until a crowd has gone.
        thread::sleep(LATER);
    }
    Err(())
}

/// The process that is named as a writer that died was one of that rank, and has ended or let its writer go.
fn culprit(run: &Run, during: &str, error: &Error) {
    let named = |key: &str| error.context().iter().find(|(name, _)| *name == key).map(|(_, text)| text);
    let (Some(pid), Some(rank)) = (named("pid"), named("rank")) else { return };
    if error.kind() != Kind::ProducerDied {
        return;
    }
    let facts = run.oracle.facts();
    let writer =
        pid.parse().ok().filter(|pid| facts.writers.get(pid).is_some_and(|r| r.to_string() == *rank));
    let has_left = |pid| named("reason").is_some() || facts.left.contains(&pid);
    let is_gone = |pid| process::exit(pid).is_some() || has_left(pid);
    if !writer.is_some_and(is_gone) {
        process::fail(format!("{during}: it was not this process: {error}"));
    }
}

/// Only a later group takes a lane from a writer.
fn fenced(during: &str, error: &Error) {
    let number = |key: &str| {
        let mut found = error.context().iter().filter(|(name, _)| *name == key);
        found.next().and_then(|(_, text)| text.parse::<u64>().ok())
    };
    let (Some(own), Some(current)) = (number("incarnation"), number("current")) else { return };
    if error.kind() == Kind::Fenced && current <= own {
        process::fail(format!("{during}: a group takes over from itself: {error}"));
    }
}

/// Says that the calling process lets its writer go.
struct Leaving<'a>(&'a Oracle);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.facts().left.insert(process::own());
    }
}

/// Runs a call and looks at how long it took.
pub fn timed<T>(run: &Run, during: &str, call: impl FnOnce() -> Result<T>) -> std::result::Result<T, ()> {
    let before = process::now_ns();
    let result = call();
    let took = Duration::from_nanos(process::now_ns() - before);
    if took > TIMEOUT + PATIENCE && run.cast.dangers.stops == 0 {
        process::fail(format!("{during} took {took:?}, its deadline is {TIMEOUT:?}"));
    }
    match result {
        Ok(value) => {
            process::note(during);
            Ok(value)
        }
        Err(e) => explained(run, during, &e),
    }
}

/// A writer rank: goes on behind what is complete, puts the versions that are due, closes.
pub fn writer(run: &Run, rank: u32) -> Told {
    let Run { cast, oracle } = run;
    let timeout = cast.writers_timeout();
    let options = OpenOptions { timeout, ..cast.options_with_policy(rank, cast.writers, "writer") };
    oracle.facts().writers.insert(process::own(), rank);
    // An open or a close that fails leaves a writer that others are told of before this process is.
    oracle.facts().left.insert(process::own());
    let mut w = timed(run, "open to write", || Writer::open(&cast.name(), &options))?;
    oracle.facts().left.remove(&process::own());
    // Before the writer goes, of which others may be told at once.
    let leaving = Leaving(oracle);
    let holding = oracle.opened(cast);
    let incarnation = u64::from(w.incarnation());
    oracle.joined(incarnation, rank);
    let mut beside = Random::new(cast.seed ^ u64::from(rank) << 8 ^ incarnation << 32, 31);
    let base = timed(run, "resume", || w.resume())?;
    let known = oracle.known();
    if base < known && oracle.is_read_to_its_end(cast) {
        // The space has gone, and this rank, which came late, has made another one.
        w.abandon();
        return Ok(());
    }
    if base < known {
        process::fail(format!("rank {rank} goes on at version {base}, but {known} versions are complete"));
    }
    process::note(format!("incarnation {incarnation} goes on at version {base}"));
    {
        // A version may be complete of which no writer was told so: those that put it were killed.
        let mut facts = oracle.facts();
        facts.resumed = facts.resumed.max(base);
    }
    let sets_attribute = cast.behaviour.attributes && rank == 0;
    if sets_attribute {
        if check_attribute(run, &w).is_err() {
            return fails(w, leaving);
        }
    }
    let own = Own::new("writer", "writer", (rank, cast.writers));
    if beside.percent((4 * cast.looks).into()) {
        census::as_member(run, &Own { next: Some(base), ..own });
    }
    for version in base..cast.versions() {
        give_up_some(run, &mut w, (rank, incarnation), version)?;
        timed(run, "begin_version", || w.begin_version(version))?;
        put_all(run, &mut w, (rank, incarnation), version)?;
        timed(run, "end_step", || w.end_step())?;
        oracle.committed(incarnation, (rank, cast.writers), version);
        if beside.percent(cast.looks.into()) {
            let bytes = 8 * (cast.elements(version) + 1);
            census::as_member(run, &Own { next: Some(version + 1), has_stepped: true, bytes, ..own });
        }
        if sets_attribute {
            if set_attribute(run, &mut w).is_err() {
                drop(holding);
                return fails(w, leaving);
            }
        }
        if cast.behaviour.idle && Random::new(cast.seed ^ version << 20, 61).percent(20) {
            thread::sleep(IDLE);
        }
    }
    drop(holding);
    drop(leaving);
    timed(run, "close", || w.close())?;
    oracle.facts().closed.entry(incarnation).or_default().insert(rank);
    Ok(())
}

/// A program that fails between two steps abandons its writer: to drop it would be a clean end of the stream, which
/// `clean` may remove before a reader has come.
fn fails(w: Writer, leaving: Leaving<'_>) -> Told {
    drop(leaving);
    w.abandon();
    Err(())
}

/// Sets the attribute of the space to the next number.
fn set_attribute(run: &Run, w: &mut Writer) -> Told {
    let next = {
        let mut facts = run.oracle.facts();
        facts.attribute.1 += 1;
        facts.attribute.1
    };
    timed(run, "set_attribute", || w.set_attribute("noted", &Attribute::Int(next)))?;
    run.oracle.facts().attribute.0 = next;
    Ok(())
}

/// An attribute that was set stays, also when the power is cut. A process that was stopped may have set it late.
fn check_attribute(run: &Run, w: &Writer) -> Told {
    let found = timed(run, "attributes", || w.attributes())?;
    let (set, called) = run.oracle.facts().attribute;
    let number = match found.get("noted") {
        Some(Attribute::Int(number)) => *number,
        None => 0,
        other => process::fail(format!("the attribute is {other:?}")),
    };
    if !(set..=called).contains(&number) && run.cast.dangers.stops == 0 {
        process::fail(format!("the attribute is {number}, which was set to {set}, or up to {called}"));
    }
    Ok(())
}

/// Begins a version, puts what does not belong there, at most as much as what does, and aborts it; again and again.
fn give_up_some(run: &Run, w: &mut Writer, (rank, incarnation): (u32, u64), version: u64) -> Told {
    let cast = &run.cast;
    let mut random = Random::new(cast.seed ^ version << 20 ^ u64::from(rank) ^ incarnation << 40, 47);
    if !random.percent(cast.aborts.into()) {
        return Ok(());
    }
    let (size, count) = (u64::from(cast.writers), cast.elements(version));
    for _ in 0..1 + random.below(8) {
        timed(run, "begin_version", || w.begin_version(version))?;
        let some = if random.percent(60) { count } else { 1 + random.below(count) };
        let (data, start) = (vec![u64::MAX; some as usize], u64::from(rank) * count);
        timed(run, "put", || w.put_array("data", &[size * count], &[start], &[some], &data))?;
        timed(run, "abort_step", || w.abort_step())?;
    }
    Ok(())
}

fn put_all(run: &Run, w: &mut Writer, (rank, incarnation): (u32, u64), version: u64) -> Told {
    let cast = &run.cast;
    let (size, count) = (u64::from(cast.writers), cast.elements(version));
    let rank_at = u64::from(rank);
    let mut random = Random::new(cast.seed ^ version << 20 ^ rank_at, 43);
    match random.percent(cast.reserves.into()) {
        true => put_in_place(run, w, (rank_at, incarnation))?,
        false => timed(run, "put", || w.put_array("incarnation", &[size], &[rank_at], &[1], &[incarnation]))?,
    }
    let start = rank_at * count;
    let data: Vec<u64> = (start..start + count).map(|index| element(version, incarnation, index)).collect();
    let half = count / 2;
    // In two pieces, so that a version has more than one record of each rank.
    for (from, to) in [(0, half), (half, count)] {
        if to > from {
            let piece = &data[from as usize..to as usize];
            timed(run, "put", || w.put_array("data", &[size * count], &[start + from], &[to - from], piece))?;
        }
    }
    Ok(())
}

/// Puts the incarnation by a reservation. From the one call to the other the rank is inside the gate.
fn put_in_place(run: &Run, w: &mut Writer, (rank, incarnation): (u64, u64)) -> Told {
    let size = [u64::from(run.cast.writers)];
    let reserved = timed(run, "reserve", || w.reserve("incarnation", u64::DTYPE, &size, &[rank], &[1]));
    let mut reserved = reserved?;
    let inside = run.oracle.goes_inside();
    if let ExecutionMode::Gated { writers, .. } = run.cast.execution_mode {
        thread::sleep(Duration::from_micros(1));
        if inside.count() > writers {
            process::fail(format!("{} ranks are inside a gate of {writers}", inside.count()));
        }
    }
    reserved.as_mut_slice().copy_from_slice(&incarnation.to_le_bytes());
    drop(inside);
    timed(run, "commit", || w.commit(reserved))
}

/// A view that is kept over the end of its step.
struct Kept {
    view: View,
    version: u64,
    incarnation: u64,
}

impl Kept {
    fn check(&self) {
        for (index, bytes) in self.view.bytes().chunks_exact(8).enumerate() {
            let found = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            if found != element(self.version, self.incarnation, index as u64) {
                process::fail(format!("element {index} of a view of version {} changed", self.version));
            }
        }
    }
}

/// A reader rank: every version in its order, every element of it, until the end of the stream. A declared group is
/// given every version, or told how many it missed, and goes on at its cursor in a later life; any other one begins
/// where the stream has got to.
pub fn reader(run: &Run, (group, rank): (usize, u32), life: u32) -> Told {
    let Run { cast, oracle } = run;
    wait_to_come(run, (group, rank), life);
    let size = cast.groups[group];
    let options = cast.options_with_policy(rank, size, &cast.group(group));
    let reading = oracle.reads((group, rank), size);
    let mut r = timed(run, "open to read", || Reader::open(&cast.name(), &options))?;
    let (comes, there) = reading.has_opened(size, cast.versions());
    let holding = oracle.opened(cast);
    let (mut due, mut kept): (Option<u64>, Option<Kept>) = (None, None);
    let mut beside = Random::new(cast.seed ^ u64::from(life) << 32 | u64::from(rank) << 8 | group as u64, 23);
    let mut looks = Random::new(cast.seed ^ u64::from(life) << 32 | u64::from(rank) << 8 | group as u64, 37);
    let leaves_at = cast.leaves_at((group, rank), size).filter(|_| life == 1);
    let name = cast.group(group);
    let mut own = Own::new("reader", &name, (rank, size));
    if looks.percent((4 * cast.looks).into()) {
        census::as_member(run, &Own { lease: Some(None), ..own });
    }
    loop {
        // What a rank has read itself it has not missed, where it is dropped by now.
        let drops = cast.drops_in(life, size);
        let resume = oracle.may_resume((group, rank), size, if drops { Comes::Somehow } else { comes });
        let Some(version) = begin(run, due, &mut r)? else { break };
        if looks.percent(cast.looks.into()) {
            see(run, &r)?;
        }
        check_order(cast, drops, (version, r.missed()), (due, &resume));
        own.missed += due.map_or(0, |due| version - due);
        due = Some(version + 1);
        let incarnation = timed(run, "read", || check(cast, &mut r, version))?;
        oracle.was_read(version, incarnation);
        if cast.peeks && beside.percent(40) {
            peek(run, &mut r, &mut beside)?;
        }
        let_go(&mut kept);
        // The last one is kept over the close, too.
        let is_last = version + 1 == cast.versions() && cast.looks > 0;
        if cast.keeps_views || is_last {
            kept = view(run, &mut r, version, incarnation)?;
        }
        // Its cursor stands where it was before it missed something.
        own.next = own.next.filter(|next| *next == version);
        if looks.percent(cast.looks.into()) {
            census::as_member(run, &Own { lease: Some(Some(version)), ..own });
        }
        end(run, &mut r, (group, rank), version)?;
        (own.next, own.has_stepped) = (Some(version + 1), true);
        own.bytes += 8 * u64::from(cast.writers) * (cast.elements(version) + 1);
        if looks.percent(cast.looks.into()) {
            let held = kept.as_ref().map(|kept| kept.version);
            census::as_member(run, &Own { lease: Some(held), ..own });
        }
        // A view that is kept holds the pool; the writers may need what it holds.
        if version % 2 == 1 && !is_last {
            let_go(&mut kept);
        }
        if leaves_at.is_some_and(|at| version >= at) {
            drop((holding, there));
            return go_away(run, r, kept, reading);
        }
    }
    let last = kept.take().inspect(Kept::check);
    told_the_end(run, (group, rank), due, r.missed());
    drop((holding, there));
    timed(run, "close", || r.close())?;
    match last.filter(|_| cast.is_quiet() && cast.declared && size == 1) {
        Some(kept) => come_again(run, &options, &kept),
        None => Ok(()),
    }
}

/// A reader that was told that a writer died comes again when there may be another one. Some come late, or have been
/// away since the power was cut.
fn wait_to_come(run: &Run, (group, rank): (usize, u32), life: u32) {
    let Run { cast, oracle } = run;
    thread::sleep(LATER * (life - 1));
    let size = cast.groups[group];
    let is_away_after_cut = size == 1 && cast.only_cuts() && oracle.has_come_before_cut(group);
    if (life == 1 && rank > 0 && cast.come_late(size)) || is_away_after_cut {
        thread::sleep(cast.time_away());
    }
}

fn end(run: &Run, r: &mut Reader, reader: (usize, u32), version: u64) -> Told {
    run.oracle.releases(reader, version, false);
    timed(run, "end_step", || r.end_step())?;
    run.oracle.releases(reader, version, true);
    Ok(())
}

/// A rank closes in the middle of the stream, and comes again after a while.
fn go_away(run: &Run, r: Reader, mut kept: Option<Kept>, reading: Reading) -> Told {
    let_go(&mut kept);
    timed(run, "close for a while", || r.close())?;
    drop(reading);
    thread::sleep(run.cast.time_away());
    Err(())
}

fn let_go(kept: &mut Option<Kept>) {
    if let Some(kept) = kept.take() {
        kept.check();
    }
}

/// A version is the one that is due, or a reader was told how many it missed.
fn check_order(
    cast: &Cast,
    drops: bool,
    (version, missed): (u64, u64),
    (due, resume): (Option<u64>, &RangeInclusive<u64>),
) {
    process::note(format!("reads version {version}"));
    let in_order = match due {
        Some(due) if cast.declared => version == due + missed && (missed == 0 || drops),
        None if cast.declared => resume.contains(&(version - missed.min(version))) && (missed == 0 || drops),
        Some(due) if cast.drops() => version >= due,
        Some(due) => version == due,
        None => true,
    };
    if !in_order {
        process::fail(format!(
            "a reader is given version {version}, having missed {missed}, where {due:?} is due, or {resume:?}"
        ));
    }
}

/// Which versions are retained, by a handle that is open.
fn see(run: &Run, r: &Reader) -> Told {
    let (seen, known) = (run.oracle.seen(), run.oracle.known());
    let versions = timed(run, "versions", || r.versions())?;
    if versions.end < known && !run.oracle.may_be_cleaned() {
        process::fail(format!("{known} versions were complete, a reader sees {versions:?}"));
    }
    if run.cast.dangers.cuts == 0 && !run.oracle.may_be_cleaned() {
        run.oracle.sees(&versions, seen);
    }
    Ok(())
}

/// A reader is told the end of the stream where `due` would be next.
fn told_the_end(run: &Run, (group, rank): (usize, u32), due: Option<u64>, missed: u64) {
    let Run { cast, oracle } = run;
    let resume = oracle.may_resume((group, rank), cast.groups[group], Comes::Somehow);
    let was_there = cast.declared && !oracle.may_be_removed(group);
    let at = due.or_else(|| was_there.then_some(*resume.end()));
    if let Some(due) = at.map(|at| at + missed).filter(|_| cast.declared || !cast.drops()) {
        let known = oracle.known();
        if due < known {
            process::fail(format!("a reader is told the end at version {due}, but {known} were complete"));
        }
    }
    oracle.facts().ended.insert((group, rank), at.unwrap_or(0));
    oracle.facts().finished = true;
}

/// A rank has left, although its process holds a view: it may come again.
fn come_again(run: &Run, options: &OpenOptions, kept: &Kept) -> Told {
    let again = timed(run, "open to read again", || Reader::open(&run.cast.name(), options))?;
    timed(run, "close again", || again.close())?;
    kept.check();
    Ok(())
}

/// Says while a call runs that its process waits for a version.
fn awaited<T>(run: &Run, due: Option<u64>, call: impl FnOnce() -> T) -> T {
    let Some(due) = due else { return call() };
    run.oracle.facts().waits.insert(process::own(), (due, process::now_ns()));
    let result = call();
    run.oracle.facts().waits.remove(&process::own());
    result
}

fn begin(run: &Run, due: Option<u64>, r: &mut Reader) -> std::result::Result<Option<u64>, ()> {
    awaited(run, due, || timed(run, "begin_step", || in_time(run, due, || r.begin_step(None))))
}

/// A reader is not told that a version did not come in time that was complete before it asked.
fn in_time<T>(run: &Run, due: Option<u64>, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let (cast, known) = (&run.cast, run.oracle.known());
    let is_there = due.is_some_and(|due| due < known) && cast.declared && !cast.drops();
    let result = call();
    match &result {
        Err(e) if e.kind() == Kind::TimedOut && is_there && !run.oracle.may_be_cleaned() => {
            process::fail(format!("{known} versions were complete, and {due:?} did not come: {e}"))
        }
        _ => result,
    }
}

/// A view of the first rank's first piece, where it is one piece.
fn view(run: &Run, r: &mut Reader, version: u64, incarnation: u64) -> std::result::Result<Option<Kept>, ()> {
    let count = run.cast.elements(version) / 2;
    if count == 0 {
        return Ok(None);
    }
    let wanted = forebay_space::NdBox::new(&[0], &[count]).expect("a box");
    let view = timed(run, "view", || r.view("data", Some(&wanted)))?;
    Ok(Some(Kept { view, version, incarnation }))
}

/// Reads every element of the open version. Returns the incarnation that wrote it.
pub fn check(cast: &Cast, r: &mut Reader, version: u64) -> Result<u64> {
    let incarnations: Vec<u64> = r.get_array("incarnation", None)?;
    let incarnation = incarnations[0];
    if incarnations.len() != cast.writers as usize || incarnations.iter().any(|i| *i != incarnation) {
        process::fail(format!("version {version} is a mix of incarnations: {incarnations:?}"));
    }
    let data: Vec<u64> = r.get_array("data", None)?;
    if data.len() as u64 != u64::from(cast.writers) * cast.elements(version) {
        process::fail(format!("version {version} has {} elements", data.len()));
    }
    for (index, found) in data.iter().enumerate() {
        if *found != element(version, incarnation, index as u64) {
            process::fail(format!("element {index} of version {version} is wrong"));
        }
    }
    Ok(incarnation)
}

/// An observer: looks at versions in any order, takes part in nothing. Of some it holds views for a while.
pub fn observer(run: &Run, mut random: Random) -> Told {
    let Run { cast, oracle } = run;
    let mut held = Held { kept: Vec::new(), random: Random::new(random.clone().next(), 97) };
    for _ in 0..1 + random.below(4) {
        let mut options = cast.options(0, 1, "observer");
        (options.rank, options.size, options.observer) = (None, None, true);
        // It holds what it looks at, which others may wait for; it may find that there is no space yet.
        let opened = Reader::open(&cast.name(), &options);
        let mut r = match opened {
            Ok(r) => r,
            Err(e) if e.kind() == Kind::PeerMissing => return Ok(()),
            Err(e) => return explained(run, "open to look", &e),
        };
        let _holding = oracle.opened(cast);
        let (known, seen) = (oracle.known(), oracle.seen());
        let versions = match r.versions() {
            Ok(versions) => versions,
            Err(e) if e.kind() == Kind::PeerMissing => return Ok(()),
            Err(e) => return explained(run, "versions", &e),
        };
        if versions.end < known {
            process::fail(format!("{known} versions were complete, an observer sees {versions:?}"));
        }
        if cast.dangers.cuts == 0 && !oracle.may_be_cleaned() {
            oracle.sees(&versions, seen);
        }
        for _ in 0..1 + random.below(3) {
            if versions.is_empty() {
                break;
            }
            let version = versions.start + random.below(versions.end - versions.start);
            look(run, &mut r, version)?;
            held.hold(run, &mut r, version)?;
        }
    }
    Ok(())
}

/// Most views that an observer holds at once.
const HELD_MAX: usize = 3;
/// It holds them for less than a process sleeps that waits for what they hold.
const HELD: Duration = Duration::from_millis(8);

/// Views that an observer holds.
struct Held {
    kept: Vec<Kept>,
    random: Random,
}

impl Held {
    /// Holds a view of a version, which may have gone, and lets others go, in any order.
    fn hold(&mut self, run: &Run, r: &mut Reader, version: u64) -> Told {
        if run.cast.behaviour.holds == 0 || !self.random.percent(run.cast.behaviour.holds.into()) {
            return Ok(());
        }
        let mut opened = match r.open_version(version) {
            Ok(opened) => opened,
            Err(e) if [Kind::VersionGone, Kind::PeerMissing].contains(&e.kind()) => return Ok(()),
            Err(e) => return explained(run, "open_version", &e),
        };
        let incarnation = timed(run, "look", || check(&run.cast, &mut opened, version))?;
        run.oracle.was_read(version, incarnation);
        self.kept.extend(view(run, &mut opened, version, incarnation)?);
        timed(run, "end_step", || opened.end_step())?;
        let scale = self.random.below(14);
        thread::sleep(Duration::from_micros(self.random.below(2 << scale)).min(HELD / HELD_MAX as u32));
        self.kept.iter().for_each(Kept::check);
        while self.kept.len() == HELD_MAX || !self.kept.is_empty() && self.random.percent(40) {
            let one = self.random.below(self.kept.len() as u64) as usize;
            drop(self.kept.swap_remove(one));
        }
        Ok(())
    }
}

/// Has the space open by many handles, and holds versions by some, until it lets them go in any order. While the table
/// is full it tries again and again, so that it takes the place of each member that leaves.
pub fn crowd(run: &Run, mut random: Random) -> Told {
    let Run { cast, oracle } = run;
    let scale = random.below(12);
    thread::sleep(Duration::from_micros(random.below(2 << scale)));
    let mut held = Held { kept: Vec::new(), random: Random::new(random.next(), 97) };
    let mut there = Vec::new();
    let mut options = cast.options(0, 1, "observer");
    (options.rank, options.size, options.observer) = (None, None, true);
    options.timeout = Duration::from_secs(1);
    for _ in 0..3 * cast.crowd() {
        match Reader::open(&cast.name(), &options) {
            Ok(r) => there.push((oracle.opened(cast), r)),
            // There is none.
            Err(e) if e.kind() == Kind::PeerMissing => break,
            Err(e) if e.kind() == Kind::TooMany => thread::sleep(Duration::from_micros(random.below(40))),
            Err(e) => return explained(run, "open in a crowd", &e),
        }
        if let Some((_, r)) = there.last_mut().filter(|_| random.percent(30)) {
            let versions = timed(run, "versions", || r.versions())?;
            if !versions.is_empty() {
                held.hold(run, r, versions.end - 1)?;
            }
        }
        if there.len() as u32 >= cast.crowd() || random.percent(5) {
            let one = random.below(there.len() as u64 + 1) as usize;
            (one < there.len()).then(|| drop(there.swap_remove(one)));
        }
    }
    while !there.is_empty() {
        let scale = random.below(10);
        thread::sleep(Duration::from_micros(random.below(2 << scale)));
        let one = random.below(there.len() as u64) as usize;
        drop(there.swap_remove(one));
    }
    held.kept.iter().for_each(Kept::check);
    Ok(())
}

/// Removes a declared group whose reader was killed. One of its ranks may live, or come meanwhile.
pub fn remover(run: &Run, group: usize) -> Told {
    run.oracle.removes(group);
    match forebay_space::remove_reader_group(&run.cast.name(), &run.cast.group(group)) {
        Ok(()) => {
            process::note("removed a group");
            Ok(())
        }
        Err(e) if [Kind::NameInUse, Kind::UnknownComponent, Kind::PeerMissing].contains(&e.kind()) => Ok(()),
        Err(e) => explained(run, "remove a group", &e),
    }
}

/// Looks at a version beside the one of the open step, and now and then at two at a time.
fn peek(run: &Run, r: &mut Reader, random: &mut Random) -> Told {
    let versions = match r.versions() {
        Ok(versions) => versions,
        Err(e) => return explained(run, "versions", &e),
    };
    if versions.is_empty() {
        return Ok(());
    }
    let mut any = || versions.start + random.below(versions.end - versions.start);
    let (first, second) = (any(), any());
    match r.open_version(first) {
        Ok(mut opened) => {
            look(run, &mut opened, second)?;
            check(&run.cast, &mut opened, first).map(drop).or_else(|e| explained(run, "peek", &e))
        }
        Err(e) if [Kind::VersionGone, Kind::PeerMissing].contains(&e.kind()) => Ok(()),
        Err(e) => explained(run, "open_version", &e),
    }
}

/// Looks at one version, which may have gone meanwhile.
fn look(run: &Run, r: &mut Reader, version: u64) -> Told {
    let Run { cast, oracle } = run;
    let mut opened = match r.open_version(version) {
        Ok(opened) => opened,
        Err(e) if [Kind::VersionGone, Kind::PeerMissing].contains(&e.kind()) => return Ok(()),
        Err(e) => return explained(run, "open_version", &e),
    };
    let incarnation = timed(run, "look", || check(cast, &mut opened, version))?;
    oracle.was_read(version, incarnation);
    timed(run, "end_step", || opened.end_step())
}

/// Lists, verifies, drains, and cleans what is dead.
pub fn caretaker(run: &Run, mut random: Random) -> Told {
    let cast = &run.cast;
    for _ in 0..1 + random.below(4) {
        let scale = random.below(14);
        thread::sleep(Duration::from_micros(random.below(5 << scale)));
        match random.below(if cast.drains { 14 } else { 7 }) {
            0 if cast.looks > 0 => census::as_stranger(run),
            0 => drop(forebay_space::list()),
            1 => verify(run, true)?,
            2 if cast.looks > 0 => census::as_stranger(run),
            2 => drop(forebay_space::glance(&cast.name())),
            3 => clean(run, vec![cast.name()])?,
            4 => clean(run, vec![cast.beside()])?,
            5 => clean(run, Vec::new())?,
            _ => drain(run, Duration::from_millis(random.below(1000)))?,
        }
    }
    Ok(())
}

/// Cleans these spaces, or all. That it removes none that is in use the oracle sees when the next one is opened.
fn clean(run: &Run, names: Vec<String>) -> Told {
    if names.first() != Some(&run.cast.beside()) {
        run.oracle.cleans();
    }
    let options = CleanOptions { names, ..CleanOptions::default() };
    match forebay_space::clean(&options) {
        Ok(report) => {
            let all =
                report.removed.iter().map(|removed| format!("removed {}: {}", removed.name, removed.reason));
            let all =
                all.chain(report.kept.iter().map(|kept| format!("kept {}: {}", kept.name, kept.reason)));
            all.for_each(|line| process::note(format!("clean {line}")));
            Ok(())
        }
        // There is none, or it went meanwhile.
        Err(e) if e.kind() == Kind::PeerMissing => Ok(()),
        Err(e) => explained(run, "clean", &e),
    }
}

/// Drains again and again, while writers take the space over and others drain.
pub fn drainer(run: &Run, mut random: Random) -> Told {
    for _ in 0..20 {
        let scale = random.below(12);
        thread::sleep(Duration::from_micros(random.below(1 << scale)));
        if run.oracle.facts().finished {
            break;
        }
        drain(run, Duration::from_millis(random.below(200)))?;
    }
    Ok(())
}

/// Moves what dead writers left down. Readers may hold it, a lower tier may have no capacity for it.
fn drain(run: &Run, timeout: Duration) -> Told {
    match forebay_space::drain(&run.cast.name(), timeout) {
        Ok(report) if report.remaining_bytes > 0 => {
            process::fail(format!("drain says that it is done and leaves something: {report:?}"))
        }
        Ok(report) => {
            process::note(format!("drained {report:?}"));
            Ok(())
        }
        Err(e) if e.kind() == Kind::PeerMissing => Ok(()),
        Err(e) if e.kind() == Kind::Usage && !run.cast.spills => Ok(()),
        Err(e) if [Kind::TierFull, Kind::TimedOut].contains(&e.kind()) => Ok(()),
        Err(e) => explained(run, "drain", &e),
    }
}

/// A process of an earlier time, which was killed: it takes the place of the space, goes on in it or begins one
/// beside it, and completes nothing.
pub fn forerunner(run: &Run, mut random: Random) {
    let cast = &run.cast;
    run.oracle.facts().writers.insert(process::own(), 0);
    let mut options = cast.options(0, cast.writers, "writer");
    let name = match random.below(3) {
        0 => cast.beside(),
        _ => cast.name(),
    };
    if random.percent(60) {
        (options.mode, options.replace) = (Mode::Write, true);
    }
    let Ok(mut w) = Writer::open(&name, &options) else { return };
    let base = w.resume().unwrap_or(0);
    if w.begin_version(base).is_ok() {
        let _ = w.put_array("data", &[100], &[0], &[100], &[1u64; 100]);
    }
    // A process that lives so long is killed here.
    thread::sleep(Duration::from_secs(1_000_000));
}

/// Verifies the space. Beside writers that are stopped or starved in the middle of a change the control segment may
/// differ from the lanes for longer than `verify` looks.
pub fn verify(run: &Run, has_writers: bool) -> Told {
    let cast = &run.cast;
    match forebay_space::verify(&cast.name()) {
        Ok(report) => {
            // A copy of the oldest version is raised before it is.
            let is_lasting = |what: &str| what.contains("are hidden") || what.contains("match its sum");
            let is_passing =
                |what: &str| has_writers && what.starts_with("control segment:") && !is_lasting(what);
            // Of what was never acknowledged a power cut leaves any part.
            let known = run.oracle.known();
            let is_cut = |version: Option<u64>| {
                cast.dangers.cuts > 0 && version.is_some_and(|version| version >= known)
            };
            let is_wrong = |what: &str, version| !is_passing(what) && !is_cut(version);
            match report.damaged.iter().find(|damage| is_wrong(&damage.what, damage.version)) {
                Some(damage) => process::fail(format!("verify finds damage where there is none: {damage:?}")),
                None => Ok(()),
            }
        }
        Err(e) if [Kind::PeerMissing, Kind::VersionGone].contains(&e.kind()) => Ok(()),
        Err(e) => explained(run, "verify", &e),
    }
}

/// With every writer dead: all that is retained is whole, and nothing that was complete is missing.
pub fn judge(run: &Run) {
    let Run { cast, oracle } = run;
    let mut options = cast.options(0, 1, "judge");
    (options.rank, options.size, options.observer) = (None, None, true);
    let mut r = loop {
        match Reader::open(&cast.name(), &options) {
            Ok(r) => break r,
            // Not made yet, or read to its end.
            Err(e) if e.kind() == Kind::PeerMissing => return,
            // A stopped process holds the lock.
            Err(e) if e.kind() == Kind::TimedOut && cast.dangers.stops > 0 => {}
            // A crowd fills the table.
            Err(e) if e.kind() == Kind::TooMany && cast.crowd() > 0 => thread::sleep(LATER / 10),
            Err(e) => process::fail(format!("judge: open: {e}")),
        }
    };
    let _holding = oracle.opened(cast);
    if cast.looks > 0 {
        census::as_stranger(run);
    }
    let _ = verify(run, false);
    let known = oracle.known();
    let versions = r.versions().unwrap_or_else(|e| process::fail(format!("judge: versions: {e}")));
    if versions.end < known {
        process::fail(format!("{known} versions were complete, now there are only {versions:?}"));
    }
    for version in versions {
        let looked = r.open_version(version).and_then(|mut opened| {
            let incarnation = check(cast, &mut opened, version)?;
            oracle.was_read(version, incarnation);
            opened.end_step()
        });
        match looked {
            Ok(()) => {}
            // Readers let versions go meanwhile.
            Err(e) if e.kind() == Kind::VersionGone || e.kind() == Kind::PeerMissing => {}
            Err(e) => process::fail(format!("version {version}, which is retained: {e}")),
        }
    }
}
