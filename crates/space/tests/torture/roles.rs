//! What the processes of a round do, and where they kill themselves.

use std::process::exit;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, NdBox, OpenOptions, Reader, Result, SpillTier, View, Writer};

use crate::board::{Board, Slot};
use crate::cast::{Cast, GRANULE_BYTES, QUOTA_BYTES};
use crate::round;

/// A process that was refused with a kind that a killed peer explains.
pub const EXIT_TYPED: i32 = 20;
/// A process that found something wrong; its message is on standard error.
pub const EXIT_WRONG: i32 = 99;

/// No call waits longer than this for a peer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A reader looks up this often, to let go of what it holds.
const LOOK: Duration = Duration::from_millis(20);

/// Where a process dies by its own SIGKILL: so many nanoseconds after it came to a place in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    pub place: Place,
    /// Step of this life at which it counts.
    pub step: u64,
    pub delay_ns: u64,
}

/// A place in a process's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Never,
    Open,
    BeginStep,
    Inside,
    EndStep,
    Close,
}

pub const PLACES: [Place; 5] = [Place::Open, Place::BeginStep, Place::Inside, Place::EndStep, Place::Close];

impl Death {
    pub const NEVER: Death = Death { place: Place::Never, step: 0, delay_ns: 0 };

    /// Called at every place; at the right one the end begins.
    fn at(self, place: Place, step: u64) {
        if self.place != place || (step != self.step && !matches!(place, Place::Open | Place::Close)) {
            return;
        }
        let end = Instant::now() + Duration::from_nanos(self.delay_ns);
        std::thread::spawn(move || {
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        });
    }
}

/// Every element, wherever it stands: no two versions, incarnations or variables have the same.
fn element(version: u64, incarnation: u64, tag: u64, index: u64) -> u64 {
    let mut x = index ^ version << 32 ^ incarnation << 52 ^ tag << 60;
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ x >> 29
}

const TAG_DATA: u64 = 1;
const TAG_FILL: u64 = 2;
/// Granules of the quota, and those that a rank leaves when it fills its part: for the segment it wrote to before,
/// and for one that is prepared ahead.
const GRANULES: u64 = QUOTA_BYTES / GRANULE_BYTES;
const LEFT: u64 = 2;
/// Elements of a piece that has a granule of its own.
const FILL_ELEMENTS: u64 = 25_600;

fn wrong(what: String) -> ! {
    eprintln!("WRONG: {what}");
    exit(EXIT_WRONG)
}

/// Ends the process for an error that a killed peer explains; any other is a finding.
fn refused(during: &str, error: &Error) -> ! {
    let explained = [
        Kind::ProducerDied,
        Kind::Fenced,
        Kind::NameInUse,
        Kind::TimedOut,
        Kind::QuotaFull,
        Kind::PeerMissing,
    ];
    eprintln!("{during}: {error}");
    exit(if explained.contains(&error.kind()) { EXIT_TYPED } else { EXIT_WRONG })
}

fn options(cast: &Cast, rank: u64, size: u64, component: &str) -> OpenOptions {
    let lower =
        cast.spills.then(|| SpillTier { path: round::lower_dir(), quota: Some(QUOTA_BYTES), tier: None });
    OpenOptions {
        rank: Some(rank as u32),
        size: Some(size as u32),
        component: Some(component.into()),
        quota_bytes: Some(QUOTA_BYTES),
        segment_bytes: Some(GRANULE_BYTES),
        spill: lower.into_iter().collect(),
        readers: cast.groups().map(|(name, size)| (name, size as u32)).collect(),
        timeout: TIMEOUT,
        ..OpenOptions::default()
    }
}

/// A writer rank: goes on behind what is complete, puts the versions that are due, then one that needs nearly the
/// whole quota, and looks whether everything older was given back.
pub fn writer(cast: &Cast, board: &Board, rank: u64, death: Death) {
    death.at(Place::Open, 0);
    let mut w = Writer::open(&cast.name(), &options(cast, rank, cast.writers, "writer"))
        .unwrap_or_else(|e| refused("open", &e));
    let base = w.resume().unwrap_or_else(|e| refused("resume", &e));
    let incarnation = u64::from(w.incarnation());
    // Each incarnation fills the pool itself, twice: first beside what the one before left behind, then when nobody
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
        check_given_back(cast, last + 2);
    }
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
        let pieces = GRANULES / size - LEFT;
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
/// anybody ever took was given back when the second one needed the room; where it found room without, as much as the
/// division by ranks leaves may still be there.
fn check_given_back(cast: &Cast, large: u64) {
    if cast.spills || is_unread(cast, large) {
        // Room came from the lower tier as well, or a reader that was started again reads the large version once
        // more: how much is still held says nothing.
        return;
    }
    let info = forebay_space::inspect(&cast.name()).unwrap_or_else(|e| refused("inspect", &e));
    let used = info.used_bytes / GRANULE_BYTES;
    let most = LEFT * cast.writers + GRANULES % cast.writers + cast.writers;
    if used > most {
        wrong(format!("{used} granules are in use, {} ranks need at most {most}", cast.writers));
    }
}

/// A view that a reader keeps over the end of its step, and what it must hold until it is dropped.
struct Kept {
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
/// `from_start`: nobody is killed in its place, so that it begins with version 0.
pub fn reader(cast: &Cast, board: &Board, reader: u64, from_start: bool, death: Death) {
    let (group, rank, size) = cast.reader(reader);
    death.at(Place::Open, 0);
    let mut r = Reader::open(&cast.name(), &options(cast, rank, size, &group))
        .unwrap_or_else(|e| refused("open", &e));
    let mut due = from_start.then_some(0);
    let mut kept: Option<Kept> = None;
    let mut idle = Instant::now();
    for step in 0.. {
        death.at(Place::BeginStep, step);
        let version = loop {
            match r.begin_step(Some(LOOK)) {
                Ok(found) => break found,
                Err(e) if [Kind::TimedOut, Kind::ProducerDied].contains(&e.kind()) => {
                    // The producers may need this room to go on.
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
        death.at(Place::EndStep, step);
        r.end_step().unwrap_or_else(|e| refused("end_step", &e));
    }
    kept.take().iter().for_each(Kept::check);
    board.set(Slot::Ended(reader), 1);
    death.at(Place::Close, 0);
    drop(r);
}

/// Reads every element of the open version, in one of several ways; gives a view of a part, but none of the version
/// that fills the pool: its room has to come back.
fn check(r: &mut Reader, version: u64, way: u64) -> Result<Option<Kept>> {
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

/// While no writer lives: whatever is retained is whole, and everything that was acknowledged by all is there.
pub fn judge(cast: &Cast, board: &Board) {
    let known = board.complete(cast.writers, cast.readers());
    let look = OpenOptions { observer: true, timeout: TIMEOUT, ..OpenOptions::default() };
    let mut r = match Reader::open(&cast.name(), &look) {
        Ok(r) => r,
        // Not made yet, or read to its end.
        Err(e) if e.kind() == Kind::PeerMissing => return,
        Err(e) => wrong(format!("looking into the space: {e}")),
    };
    let versions = r.versions().unwrap_or_else(|e| wrong(format!("versions: {e}")));
    if versions.end < known {
        wrong(format!("{known} versions were complete, now only {} are", versions.end));
    }
    for version in versions {
        let looked = r.open_version(version).and_then(|()| {
            check(&mut r, version, 0)?;
            r.end_step()
        });
        // Readers let versions go meanwhile, but nobody drops them: the writers are dead.
        if let Err(e) = looked {
            wrong(format!("version {version}, which is retained: {e}"));
        }
    }
}
