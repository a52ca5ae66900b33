//! What writers and readers of a round do, the places where they kill themselves, and the judge.

use std::process::exit;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Mode, NdBox, OpenOptions, Reader, Result, SpillTier, View, Writer};

use crate::board::{Board, Slot};
use crate::cast::{numbers, Cast, GRANULE_BYTES, LEFT};
use crate::death::{Death, Place};

/// A process that was refused with a kind that a killed peer explains.
pub const EXIT_TYPED: i32 = 20;
/// A process that found something wrong; its message is on standard error.
pub const EXIT_WRONG: i32 = 99;

/// No call waits longer than this for a peer.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// A reader looks up this often, to let go of what it holds.
const LOOK: Duration = Duration::from_millis(20);

/// Every element, wherever it stands: no two versions, incarnations or variables have the same.
fn element(version: u64, incarnation: u64, tag: u64, index: u64) -> u64 {
    let mut x = index ^ version << 32 ^ incarnation << 52 ^ tag << 60;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ x >> 29
}

const TAG_DATA: u64 = 1;
const TAG_FILL: u64 = 2;
/// Elements of a piece that has a granule of its own.
const FILL_ELEMENTS: u64 = 25_600;

pub fn wrong(what: String) -> ! {
    eprintln!("WRONG: {what}");
    exit(EXIT_WRONG)
}

/// Ends the process for an error that a killed peer explains; any other is a finding.
pub fn refused(during: &str, error: &Error) -> ! {
    let explained = [
        Kind::ProducerDied,
        Kind::Fenced,
        Kind::NameInUse,
        Kind::TimedOut,
        Kind::QuotaFull,
        Kind::PeerMissing,
    ];
    eprintln!("{during}: {:?}: {error}", error.kind());
    exit(if explained.contains(&error.kind()) { EXIT_TYPED } else { EXIT_WRONG })
}

fn options(cast: &Cast, rank: u64, size: u64, component: &str) -> OpenOptions {
    let lower = cast.lower_dirs().into_iter().zip(&cast.lower);
    let lower = lower.map(|(path, (tier, granules))| SpillTier {
        path,
        quota: Some(granules * GRANULE_BYTES),
        tier: *tier,
    });
    OpenOptions {
        rank: Some(rank as u32),
        size: Some(size as u32),
        component: Some(component.into()),
        tier: Some(cast.first),
        quota_bytes: Some(cast.granules * GRANULE_BYTES),
        segment_bytes: Some(GRANULE_BYTES),
        horizon: Some(cast.horizon),
        batch_bytes: cast.gathers.then_some(64 << 10),
        spill: lower.collect(),
        readers: cast.groups().map(|(name, size)| (name, size as u32)).collect(),
        timeout: TIMEOUT,
        mode: Mode::Append,
        finished: true,
        ..OpenOptions::default()
    }
}

/// A writer rank: goes on behind what is complete, puts the versions that are due, then one that needs nearly the
/// whole quota, and looks whether everything older was released.
pub fn writer(cast: &Cast, board: &Board, rank: u64, death: Death) {
    death.at(Place::Open, 0);
    let mut w = Writer::open(&cast.name(), &options(cast, rank, cast.writers, "writer"))
        .unwrap_or_else(|e| refused("open", &e));
    death.watch_moves(cast, Some(rank));
    let base = w.resume().unwrap_or_else(|e| refused("resume", &e));
    let incarnation = u64::from(w.incarnation());
    // Each incarnation fills the pool itself, twice: first beside what the one before left behind, then when no reader
    // needs that any more, so that it has to go.
    let last = base.max(cast.versions);
    let end = last + 5;
    for version in base..end {
        let fills = version == last || version == last + 2;
        if fills && version > last || version == last + 4 {
            // By then every reader has let the large version go.
            wait(
                || board.least(Slot::Read, cast.readers()) >= version && !is_unread(cast, version - 2),
                &mut w,
            );
        }
        let count = if version < last { cast.elements(version) } else { 1 };
        let put = Put { version, count, fills };
        one_step(cast, &mut w, put, death, version - base).unwrap_or_else(|e| refused("step", &e));
        board.set(Slot::Acknowledged(rank), Board::acknowledged(incarnation, version + 1));
    }
    if rank == 0 {
        let all = Board::acknowledged(incarnation, end);
        wait(|| board.least(Slot::Acknowledged, cast.writers) >= all, &mut w);
        check_released(cast, last + 2);
    }
    board.set(Slot::Closing(rank), incarnation);
    death.at(Place::Close, 0);
    w.close().unwrap_or_else(|e| refused("close", &e));
}

/// Waits for what other processes tell, and ends like any other call when one of them is gone.
fn wait(mut holds: impl FnMut() -> bool, w: &mut Writer) {
    let end = Instant::now() + TIMEOUT;
    while !holds() {
        w.check_peers().unwrap_or_else(|e| refused("waiting for others", &e));
        if Instant::now() > end {
            eprintln!("the others did not come so far");
            exit(EXIT_TYPED);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a rank puts in a version.
#[derive(Clone, Copy)]
struct Put {
    version: u64,
    /// Elements of a rank.
    count: u64,
    /// Whether it also takes nearly the whole quota.
    fills: bool,
}

fn one_step(cast: &Cast, w: &mut Writer, put: Put, death: Death, step: u64) -> Result<()> {
    let Put { version, count, fills } = put;
    let (rank, size, incarnation) = (u64::from(w.rank()), cast.writers, u64::from(w.incarnation()));
    death.at(Place::BeginStep, step);
    let begun = w.begin_step()?;
    if begun != version {
        wrong(format!("version {begun} is begun where {version} is due"));
    }
    let piece = |tag: u64, start: u64, count: u64| -> Vec<u64> {
        (start..start + count).map(|index| element(version, incarnation, tag, index)).collect()
    };
    w.put_array("incarnation", &[size], &[rank], &[1], &[incarnation])?;
    death.at(Place::Inside, step);
    let (shape, start) = ([size * count], [rank * count]);
    let data = piece(TAG_DATA, start[0], count);
    if version % 3 == 0 {
        let mut reserved = w.reserve("data", forebay_space::Dtype::U64, &shape, &start, &[count])?;
        for (to, from) in reserved.as_mut_slice().chunks_exact_mut(8).zip(&data) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        w.commit(reserved)?;
    } else {
        w.put_array("data", &shape, &start, &[count], &data)?;
    }
    if fills {
        let pieces = cast.granules / size - LEFT;
        for i in 0..pieces {
            let start = (rank * pieces + i) * FILL_ELEMENTS;
            let data = piece(TAG_FILL, start, FILL_ELEMENTS);
            w.put_array("fill", &[size * pieces * FILL_ELEMENTS], &[start], &[FILL_ELEMENTS], &data)?;
        }
    }
    death.at(Place::EndStep, step);
    w.end_step()
}

/// Whether a reader still has to read a version, or has to read it again.
fn is_unread(cast: &Cast, version: u64) -> bool {
    let info = forebay_space::glance(&cast.name()).unwrap_or_else(|e| refused("glance", &e));
    info.oldest_unread.is_some_and(|oldest| oldest <= version)
}

/// After the large versions were let go, each rank has a segment it writes to and one prepared. Everything else that
/// anybody ever took was released when the second one needed the space; where it found space without, as much as the
/// division by ranks leaves may still be there.
fn check_released(cast: &Cast, large: u64) {
    if cast.spills() || cast.observers > 0 || cast.has_keeper || is_unread(cast, large) {
        // Free space came from the lower tier as well, an observer holds a version, or a reader that was started again
        // reads the large version once more: how much is still held says nothing.
        return;
    }
    let info = forebay_space::inspect(&cast.name()).unwrap_or_else(|e| refused("inspect", &e));
    let used = info.reserved_bytes / GRANULE_BYTES;
    let most = LEFT * cast.writers + cast.granules % cast.writers + cast.writers;
    if used > most {
        wrong(format!("{used} granules are in use, {} ranks need at most {most}", cast.writers));
    }
}

/// A view that a reader keeps over the end of its step, and what it must hold until it is dropped.
pub struct Kept {
    view: View,
    version: u64,
    incarnation: u64,
    start: u64,
}

impl Kept {
    fn check(&self) {
        for (i, bytes) in self.view.bytes().chunks_exact(8).enumerate() {
            let found = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            let index = self.start + i as u64;
            if found != element(self.version, self.incarnation, TAG_DATA, index) {
                wrong(format!("element {index} of a view of version {} changed", self.version));
            }
        }
    }
}

/// A reader rank: every version in its order without a gap, every element of it, until the end of the stream.
/// `spares_first`: reader 0 is not killed, so that it begins with version 0.
pub fn reader(cast: &Cast, board: &Board, reader: u64, spares_first: bool, death: Death) {
    let (group, rank, size) = cast.reader(reader);
    let from_start = spares_first && reader == 0;
    death.at(Place::Open, 0);
    // A group whose joined ranks were all killed is not awaited any more, so the first rank has to join before.
    while spares_first && reader > 0 && rank > 0 && board.get(Slot::Joined(0)) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut r = Reader::open(&cast.name(), &options(cast, rank, size, &group))
        .unwrap_or_else(|e| refused("open", &e));
    board.set(Slot::Joined(reader), 1);
    let mut pauses = numbers(cast.seed ^ reader << 20, cast.round);
    let mut due = from_start.then_some(0);
    let mut kept: Option<Kept> = None;
    let mut idle = Instant::now();
    for step in 0.. {
        death.at(Place::BeginStep, step);
        let version = loop {
            match r.begin_step(Some(LOOK)) {
                Ok(found) => break found,
                Err(e) if [Kind::TimedOut, Kind::ProducerDied].contains(&e.kind()) => {
                    // The producers may need this space to go on.
                    kept.take().iter().for_each(Kept::check);
                    if idle.elapsed() > 2 * TIMEOUT {
                        wrong(format!("no version for too long: {e}"));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => refused("begin_step", &e),
            }
        };
        idle = Instant::now();
        let Some(version) = version else { break };
        if due.is_some_and(|due| due != version) {
            wrong(format!("version {version} comes where {due:?} is due: one was lost"));
        }
        due = Some(version + 1);
        death.at(Place::Inside, step);
        let keep =
            check(&mut r, version, reader).unwrap_or_else(|e| wrong(format!("version {version}: {e}")));
        board.set(Slot::Read(reader), version + 1);
        if step % 3 == 0 || keep.is_none() {
            kept.take().iter().for_each(Kept::check);
            kept = keep;
        }
        std::thread::sleep(Duration::from_micros(pauses.u64(..=cast.pause_us)));
        death.at(Place::EndStep, step);
        r.end_step().unwrap_or_else(|e| refused("end_step", &e));
    }
    kept.take().iter().for_each(Kept::check);
    board.set(Slot::Ended(reader), 1);
    death.at(Place::Close, 0);
    drop(r);
}

/// Reads every element of the open version, in one of several ways; gives a view of a part, but none of the version
/// that fills the pool: its space has to be freed.
pub fn check(r: &mut Reader, version: u64, way: u64) -> Result<Option<Kept>> {
    let incarnations = r.get_array::<u64>("incarnation", None)?;
    let incarnation = incarnations[0];
    if incarnations.iter().any(|i| *i != incarnation) {
        wrong(format!("version {version} is a mix of incarnations {incarnations:?}"));
    }
    let size = incarnations.len() as u64;
    let mut names = vec![("data", TAG_DATA)];
    if r.variables()?.iter().any(|v| v.name == "fill") {
        names.push(("fill", TAG_FILL));
    }
    let mut kept = None;
    for (name, tag) in names {
        let length = r.variable(name)?.shape[0];
        let compare = |from: u64, found: &[u64]| {
            for (i, x) in found.iter().enumerate() {
                let index = from + i as u64;
                if *x != element(version, incarnation, tag, index) {
                    wrong(format!("element {index} of {name} in version {version} is torn"));
                }
            }
        };
        if (version + way) % 2 == 0 || tag == TAG_FILL {
            compare(0, &r.get_array::<u64>(name, None)?);
        } else {
            // In two parts that no piece ends at.
            let cut = length / 3 * 2;
            for (from, to) in [(0, cut), (cut, length)] {
                if to > from {
                    compare(from, &r.get_array::<u64>(name, Some(&NdBox::new(&[from], &[to - from])?))?);
                }
            }
        }
        if tag == TAG_FILL {
            kept = None;
        } else {
            let (start, count) = (way % size * (length / size), length / size);
            let view = r.view(name, Some(&NdBox::new(&[start], &[count])?))?;
            kept = Some(Kept { view, version, incarnation, start });
            kept.iter().for_each(Kept::check);
        }
    }
    Ok(kept)
}

/// While no writer lives: whatever is retained is whole, everything that was acknowledged by all is there, and nothing
/// is damaged. `may_be_gone`: a cleaner has been at work.
pub fn judge(cast: &Cast, board: &Board, may_be_gone: bool) {
    let known = board.complete(cast.writers, cast.readers());
    let look = OpenOptions { observer: true, timeout: TIMEOUT, ..OpenOptions::default() };
    let mut r = match Reader::open(&cast.name(), &look) {
        Ok(r) => r,
        Err(e) if e.kind() == Kind::PeerMissing => {
            // Not made yet, or read to its end: the last member removed it.
            if known > 0 && !may_be_gone && !board.is_closing(cast.writers) {
                wrong(format!("{known} versions were complete, now there is no space: {e}"));
            }
            return;
        }
        Err(e) => wrong(format!("looking into the space: {e}")),
    };
    let versions = r.versions().unwrap_or_else(|e| wrong(format!("versions: {e}")));
    if versions.end < known {
        wrong(format!("{known} versions were complete, now only {} are", versions.end));
    }
    for version in versions.clone() {
        let looked = r.open_version(version).and_then(|mut opened| {
            check(&mut opened, version, 0)?;
            opened.end_step()
        });
        // Readers let versions go meanwhile, but no writer drops them: the writers are dead.
        if let Err(e) = looked {
            wrong(format!("version {version}, which is retained: {e}"));
        }
    }
    let info = forebay_space::inspect(&cast.name()).unwrap_or_else(|e| wrong(format!("inspect: {e}")));
    board.set(Slot::Judged(0), 1 + u64::from(info.state == "finished"));
    let report = forebay_space::verify(&cast.name()).unwrap_or_else(|e| wrong(format!("verify: {e}")));
    if let Some(damage) = report.damaged.first() {
        wrong(format!("verify finds damage where there is none: {damage:?}"));
    }
}
