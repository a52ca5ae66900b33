//! `throttle`: a fast device takes as long as a slower one would, for all processes that use it together.
//!
//! # The model
//! Where a curve over operations inside rises, single operations limit it: each of n takes `n bytes / bandwidth(n)`,
//! beside the others. Where it falls the medium does: it serves one operation at a time. Its *device time*, a word in a
//! small shared file, says until when it is busy; an operation takes its turn by moving that word on, in one
//! compare-and-swap, by `bytes / bandwidth`, of the highest bandwidth with as many inside or more. It ends when
//! its turn ends and its own time is over, plus the latency of its kind. So who comes first to a medium at rest does
//! not keep it busy for as long as it alone would take. Operations take a turn per 16 KiB ([`TURN_BYTES`]), so that
//! bytes of all who are inside are served in turn, and who comes or leaves is noticed by those who stay; an operation
//! of a few lines ([`SMALL_BYTES`]) does not wait for a whole turn of each, but takes as long as if all inside were
//! served a line at a time. With n threads that never pause this gives each of them bandwidth(n) / n.
//!
//! Who is inside stands in slots of the same file, as the time at which the operation will end. Such an entry needs no
//! removal: it expires by itself. A process that is killed inside leaves its turn and its entry, both of which pass as
//! if it had gone on, and nothing else.
//!
//! What was inside is the bandwidth's first factor; the others are the share of operations that go the other way
//! (mix), the size of the operation (granularity) and, for a handle that is far from the medium, the remote
//! factor for the number inside. [`Curves`] holds them all; a curve without points changes nothing.
//!
//! A handle whose bytes lie in turn on two media, half beside it and half across a link
//! ([`Locality::Interleaved`]), sees those as one: of n inside, n / 2 (at least 1) are at each of them at a time, an
//! operation keeps either busy with half of its bytes, and its times are the means of a local and a remote one:
//!
//! ```text
//! m = max(n / 2, 1)                                   inside at each medium
//! own  = (own_local(bytes, m) + own_remote(bytes, m)) / 2
//! busy = (busy_local(bytes / 2, m) + busy_remote(bytes / 2, m)) / 2
//! latency = local latency + remote latency / 2
//! ```
//!
//! That holds where all handles of a pool are such ones; the shared device time is then that of either medium.
//!
//! # Paying
//! The operation is done by the device below at once; what it took too little is owed. Short sleeps overshoot, so
//! a thread pays when it owes a millisecond and carries the rest, also a sleep that was too long, on to its next
//! operation. A thread's own time is then at most a millisecond from what it would be; single operations of a few
//! microseconds are only right on average, unless [`Throttle::spinning`] is asked for. Threads that do such ones run a
//! millisecond each in turn, and who sleeps in between would be missing: an operation shorter than that counts as
//! inside for a millisecond.
//!
//! # Limits
//! Bytes read through `bytes` count when [`Device::will_read`] announces them (payloads; not record headers).
//! Memory from `stage` is filled unseen and counts when it comes back. More than [`SLOTS`] operations inside count
//! as that many. The device below must be faster than the emulated one, or it is the one that is measured.
//! The shared file is soft state: made when missing, started afresh after a reboot.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::around::{Around, Op, Run};
use super::OpKind;
use crate::host::atomic::AtomicU64;
use crate::{clock, process, Device, Error, Kind, Result, SharedWords};

/// Operations inside that are told apart.
pub const SLOTS: usize = 64;

/// A thread pays when it owes this much, and carries at most as much from a sleep that was too long.
pub const PAY_NS: u64 = 1_000_000;

/// Sleeps are so much too long, or more.
const LATE_NS: u64 = PAY_NS / 2;

/// Bytes of one turn.
pub const TURN_BYTES: u64 = 1 << 14;

/// Operations of up to so many bytes (headers, commit words, counts) do not queue behind large ones.
pub const SMALL_BYTES: u64 = 1 << 10;

/// A line through points, straight between them and level outside. Without points there is no line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Curve(pub Vec<(f64, f64)>);

impl Curve {
    /// The line at `x`; None without points.
    pub fn at(&self, x: f64) -> Option<f64> {
        let after = self.0.partition_point(|(px, _)| *px < x);
        let (Some(left), Some(right)) = (self.0.get(after.wrapping_sub(1)), self.0.get(after)) else {
            return self.0.get(after).or(self.0.last()).map(|(_, y)| *y);
        };
        Some(left.1 + (right.1 - left.1) * (x - left.0) / (right.0 - left.0))
    }

    /// As [`Curve::at`], straight over the logarithm of `x`: for sizes.
    pub fn at_size(&self, bytes: u64) -> Option<f64> {
        let after = self.0.partition_point(|(px, _)| *px < bytes as f64);
        let (Some(left), Some(right)) = (self.0.get(after.wrapping_sub(1)), self.0.get(after)) else {
            return self.at(bytes as f64);
        };
        let part = (bytes as f64 / left.0).log2() / (right.0 / left.0).log2();
        Some(left.1 + (right.1 - left.1) * part)
    }

    /// The highest point: the first of several.
    fn peak(&self) -> Option<(f64, f64)> {
        self.0.iter().copied().reduce(|best, point| if point.1 > best.1 { point } else { best })
    }

    fn check(&self, name: &str) -> Result<()> {
        let rising = self.0.windows(2).all(|w| w[0].0 < w[1].0);
        let sound = self.0.iter().all(|(x, y)| x.is_finite() && *x >= 0.0 && y.is_finite() && *y > 0.0);
        if rising && sound {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, format!("the points of `{name}` are not a valid curve"))
            .with("points", format!("{:?}", self.0))
            .hint("points are [x, y] with ascending x >= 0 and y > 0"))
    }
}

/// What the emulated medium is like. Every field may be missing: it then has no effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Curves {
    /// Bytes per second of all writes together, over the number of operations inside.
    pub write_bandwidth: Curve,
    /// Bytes per second of all reads together, over the number of operations inside.
    pub read_bandwidth: Curve,
    /// Factor of both bandwidths over the share (0 to 1) of operations inside that go the other way.
    pub mix: Curve,
    /// Factor of the write bandwidth over the bytes of one operation.
    pub write_granularity: Curve,
    /// Factor of the read bandwidth over the bytes of one operation.
    pub read_granularity: Curve,
    /// Factor of the write bandwidth of a remote handle, over the number of operations inside.
    pub write_remote: Curve,
    /// Factor of the read bandwidth of a remote handle, over the number of operations inside.
    pub read_remote: Curve,
    /// Nanoseconds of each write on top.
    pub write_latency_ns: u64,
    /// Nanoseconds of each read on top.
    pub read_latency_ns: u64,
    /// Nanoseconds of each persist.
    pub persist_latency_ns: u64,
    /// Nanoseconds of each operation of a remote handle on top of those.
    pub remote_latency_ns: u64,
}

/// Where a handle stands: on the node or socket of the medium, or across a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Locality {
    /// Beside the medium.
    #[default]
    Local,
    /// The remote factor and latency apply.
    Remote,
    /// Two such media, half of the bytes on each: one beside the handle, one across the link.
    Interleaved,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Curves {
    /// Checks that every curve is one.
    ///
    /// # Errors
    /// `Usage`, with the name of the curve.
    pub fn check(&self) -> Result<()> {
        self.named().into_iter().try_for_each(|(name, curve)| curve.check(name))
    }

    fn named(&self) -> [(&'static str, &Curve); 7] {
        [
            ("write_bandwidth", &self.write_bandwidth),
            ("read_bandwidth", &self.read_bandwidth),
            ("mix", &self.mix),
            ("write_granularity", &self.write_granularity),
            ("read_granularity", &self.read_granularity),
            ("write_remote", &self.write_remote),
            ("read_remote", &self.read_remote),
        ]
    }

    /// A number that differs, most likely, when the curves do. Never 0.
    fn fingerprint(&self) -> u64 {
        let latencies =
            [self.write_latency_ns, self.read_latency_ns, self.persist_latency_ns, self.remote_latency_ns];
        let points = self.named().into_iter().flat_map(|(_, curve)| {
            let length = std::iter::once(curve.0.len() as u64);
            length.chain(curve.0.iter().flat_map(|(x, y)| [x.to_bits(), y.to_bits()]))
        });
        hash(points.chain(latencies))
    }

    /// What `bytes` of an operation take while `inside` operations (this one included) are there, `opposed` of which
    /// go the other way.
    fn cost(&self, turn: &Turn, bytes: u64, inside: u64, opposed: u64) -> Cost {
        let (all, mix) = (inside as f64, opposed as f64 / inside as f64);
        match turn.locality {
            Locality::Local => self.at_one(turn, bytes, all, mix, false),
            Locality::Remote => self.at_one(turn, bytes, all, mix, true),
            Locality::Interleaved => {
                let at_each = (all / 2.0).max(1.0);
                let [near, far] = [false, true].map(|remote| self.at_one(turn, bytes, at_each, mix, remote));
                Cost {
                    own_ns: (near.own_ns + far.own_ns).div_ceil(2),
                    busy_ns: (near.busy_ns + far.busy_ns).div_ceil(4),
                }
            }
        }
    }

    /// The same at one medium, of whose operations inside a share of `mix` goes the other way.
    fn at_one(&self, turn: &Turn, bytes: u64, inside: f64, mix: f64, remote: bool) -> Cost {
        let (bandwidth, granularity, across) = match turn.direction {
            Direction::Write => (&self.write_bandwidth, &self.write_granularity, &self.write_remote),
            Direction::Read => (&self.read_bandwidth, &self.read_granularity, &self.read_remote),
        };
        let (Some(rate), Some((peak, most))) = (bandwidth.at(inside), bandwidth.peak()) else {
            return Cost { own_ns: 0, busy_ns: 0 };
        };
        let mut factor = granularity.at_size(turn.bytes).unwrap_or(1.0);
        factor *= self.mix.at(mix).unwrap_or(1.0);
        if remote {
            factor *= across.at(inside).unwrap_or(1.0);
        }
        let rises = inside <= peak;
        let single = if rises { rate / inside } else { most / peak.max(1.0) };
        let ns = |rate: f64| (bytes as f64 * 1e9 / (rate * factor)).ceil() as u64;
        Cost { own_ns: ns(single), busy_ns: ns(if rises { most } else { rate }) }
    }
}

/// What an operation takes.
#[derive(Clone, Copy)]
struct Cost {
    /// Nanoseconds of its own, which others do not wait for.
    own_ns: u64,
    /// Nanoseconds for which it keeps the medium busy.
    busy_ns: u64,
}

/// FNV-1a over words, never 0.
fn hash(words: impl Iterator<Item = u64>) -> u64 {
    let bytes = words.flat_map(u64::to_le_bytes);
    bytes.fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3)) | 1
}

/// Time as the throttle sees and spends it. For tests there is another than the real one.
pub trait Clock: Send + Sync {
    /// Nanoseconds, never set back; the same for all who share a medium.
    fn now_ns(&self) -> u64;
    /// Sleeps for at least `ns`. Returns how long it really was.
    fn sleep(&self, ns: u64) -> u64;
    /// Lets `ns` pass without giving the processor away. Returns how long it really was.
    fn spin(&self, ns: u64) -> u64;
}

struct RealClock;

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn sleep(&self, ns: u64) -> u64 {
        let began = clock::now_ns();
        std::thread::sleep(Duration::from_nanos(ns));
        clock::now_ns() - began
    }

    fn spin(&self, ns: u64) -> u64 {
        let began = clock::now_ns();
        loop {
            let passed = clock::now_ns() - began;
            if passed >= ns {
                return passed;
            }
            std::hint::spin_loop();
        }
    }
}

// Words of the shared file, in bytes.
const FINGERPRINT: u64 = 0;
const BOOT: u64 = 8;
/// On a line of its own: every operation changes it.
const DEVICE_TIME: u64 = 64;
/// Each word: nanoseconds of the end, shifted by one, and 1 for a write.
const FIRST_SLOT: u64 = 128;
const STATE_BYTES: u64 = FIRST_SLOT + SLOTS as u64 * 8;

/// What one thread owes one throttle.
#[derive(Clone, Copy, Default)]
struct Debt {
    throttle: u64,
    /// How far the thread's emulated time is ahead of the real one; negative after a sleep that was too long.
    owed_ns: i64,
    /// The slot it used last, and what it wrote there.
    slot: usize,
    written: u64,
}

/// Throttles whose debts a thread remembers. One that used more of them forgives, at most a millisecond each.
const DEBTS: usize = 16;

thread_local! {
    static OWN_DEBTS: RefCell<Vec<Debt>> = const { RefCell::new(Vec::new()) };
}

static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// A device that takes its time.
pub struct Throttle {
    inner: Arc<dyn Device>,
    curves: Curves,
    locality: Locality,
    shared: SharedWords,
    clock: Arc<dyn Clock>,
    spinning: bool,
    id: u64,
}

/// An operation on its way through the medium.
struct Turn {
    direction: Direction,
    bytes: u64,
    latency_ns: u64,
    locality: Locality,
}

impl Throttle {
    /// `inner` as slow as `curves` say, together with every process that throttles it through the shared file
    /// `state` (by habit [`Throttle::state_beside`] the pool), which is made when it is not there.
    ///
    /// # Errors
    /// `Usage` when a curve is none; `OptionMismatch` when another process uses `state` with other curves; `TierFull`,
    /// `PermissionDenied`, `Io` of that file.
    pub fn new(inner: Arc<dyn Device>, curves: Curves, locality: Locality, state: &Path) -> Result<Throttle> {
        Throttle::with_clock(inner, curves, locality, state, Arc::new(RealClock))
    }

    /// As [`Throttle::new`], with another idea of time.
    ///
    /// # Errors
    /// As [`Throttle::new`].
    pub fn with_clock(
        inner: Arc<dyn Device>,
        curves: Curves,
        locality: Locality,
        state: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<Throttle> {
        curves.check()?;
        let shared = open_state(state, curves.fingerprint())?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Throttle { inner, curves, locality, shared, clock, spinning: false, id })
    }

    /// The name of the shared file for a pool.
    pub fn state_beside(pool: &Path) -> PathBuf {
        let mut name = pool.as_os_str().to_owned();
        name.push(".throttle");
        PathBuf::from(name)
    }

    /// Until when the medium of a shared file is busy, ns of the clock that all processes share.
    ///
    /// # Errors
    /// As [`SharedWords::open`].
    pub fn busy_until_ns(state: &Path) -> Result<u64> {
        Ok(SharedWords::open(state, STATE_BYTES)?.u64(DEVICE_TIME).load(Ordering::Relaxed))
    }

    /// Also pays what is less than a millisecond, by spinning: each operation takes its time, and a processor.
    pub fn spinning(mut self, yes: bool) -> Throttle {
        self.spinning = yes;
        self
    }

    /// Nanoseconds that the calling thread owes and has not paid; negative where it slept too long.
    pub fn owed_ns(&self) -> i64 {
        self.debt().owed_ns
    }

    fn debt(&self) -> Debt {
        OWN_DEBTS.with_borrow(|debts| {
            let known = debts.iter().find(|d| d.throttle == self.id);
            known.copied().unwrap_or(Debt { throttle: self.id, ..Debt::default() })
        })
    }

    fn remember(&self, debt: Debt) {
        OWN_DEBTS.with_borrow_mut(|debts| match debts.iter_mut().find(|d| d.throttle == self.id) {
            Some(known) => *known = debt,
            None => {
                if debts.len() == DEBTS {
                    debts.remove(0);
                }
                debts.push(debt);
            }
        });
    }

    fn slot(&self, index: usize) -> &AtomicU64 {
        self.shared.u64(FIRST_SLOT + index as u64 * 8)
    }

    /// Operations of others inside at `at`, and how many of them go the other way.
    fn others(&self, debt: &Debt, direction: Direction, at: u64) -> (u64, u64) {
        let (mut all, mut opposed) = (0, 0);
        for index in 0..SLOTS {
            let word = self.slot(index).load(Ordering::Relaxed);
            if word >> 1 > at && !(index == debt.slot && word == debt.written) {
                all += 1;
                opposed += u64::from((word & 1 == 1) != (direction == Direction::Write));
            }
        }
        (all, opposed)
    }

    /// Since when an operation that begins at `at` finds the medium idle, if it does. Threads pay a millisecond at a
    /// time: who is ahead of the clock does not hold up who is not, and among several who come so much too late the
    /// medium does not wait for one.
    fn found_idle(&self, at: u64, others: u64) -> u64 {
        let late_ns = if others > 0 && !self.spinning { PAY_NS } else { 0 };
        at.min(self.clock.now_ns()).saturating_sub(late_ns)
    }

    /// Takes one turn of the medium from `at` on; returns when it ends.
    fn occupy(&self, at: u64, cost_ns: u64) -> u64 {
        let word = self.shared.u64(DEVICE_TIME);
        let mut busy = word.load(Ordering::Relaxed);
        loop {
            let end = busy.max(at) + cost_ns;
            match word.compare_exchange_weak(busy, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return end,
                Err(seen) => busy = seen,
            }
        }
    }

    /// How long others see an operation inside: who pays a millisecond at a time is seen for as long, and a little
    /// longer ([`LATE_NS`]), because the next turn of a thread that never pauses begins when its sleep, which is too
    /// long, ends.
    fn seen_until(&self, began: u64, end: u64) -> u64 {
        if self.spinning {
            end
        } else {
            end.max(began + PAY_NS) + LATE_NS
        }
    }

    /// Tells the others that an operation is inside until `end`: in the thread's own slot, or in one that is stale
    /// at `at`. Not at all when all are taken.
    fn enter(&self, debt: &mut Debt, direction: Direction, at: u64, end: u64) {
        let word = end << 1 | u64::from(direction == Direction::Write);
        let order = (0..SLOTS).map(|i| (debt.slot + i) % SLOTS);
        for index in order {
            let seen = self.slot(index).load(Ordering::Relaxed);
            let own = index == debt.slot && seen == debt.written;
            if (own || seen >> 1 <= at)
                && self.slot(index).compare_exchange(seen, word, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                (debt.slot, debt.written) = (index, word);
                return;
            }
        }
    }

    /// Sends an operation that began at `began` (and that the device below has done) through the medium.
    fn charge(&self, turn: &Turn, began: u64) {
        let mut debt = self.debt();
        let first = began.saturating_add_signed(debt.owed_ns);
        let (mut at, mut left) = (first, turn.bytes);
        loop {
            let bytes = left.min(TURN_BYTES);
            left -= bytes;
            let (others, opposed) = self.others(&debt, turn.direction, at);
            let cost = self.curves.cost(turn, bytes, others + 1, opposed);
            let from = self.found_idle(at, others);
            let mut end = if cost.busy_ns > 0 { self.occupy(from, cost.busy_ns).max(at) } else { at };
            if turn.bytes <= SMALL_BYTES {
                end = end.min(at + cost.busy_ns.saturating_mul(others + 1));
            }
            end = end.max(at + cost.own_ns);
            if left == 0 {
                end += turn.latency_ns;
            }
            if end > at {
                self.enter(&mut debt, turn.direction, at, self.seen_until(first, end));
            }
            at = end;
            self.pay(&mut debt, at);
            if left == 0 {
                break;
            }
        }
        self.remember(debt);
    }

    /// The thread's emulated time is `at`: catches up when that is worth a sleep.
    fn pay(&self, debt: &mut Debt, at: u64) {
        let now = self.clock.now_ns();
        // A device below that was too slow is not made up for later; a sleep that was too long is.
        debt.owed_ns = (at as i64 - now as i64).max(debt.owed_ns.min(0));
        let owed = debt.owed_ns.max(0) as u64;
        let paid = if owed >= PAY_NS {
            self.clock.sleep(owed)
        } else if self.spinning && owed > 0 {
            self.clock.spin(owed)
        } else {
            return;
        };
        debt.owed_ns = (debt.owed_ns - paid as i64).max(-(PAY_NS as i64));
    }

    fn turn(&self, op: &Op) -> Option<Turn> {
        let c = &self.curves;
        let (direction, bytes, latency_ns) = match op.kind {
            OpKind::Prepare => return None,
            OpKind::Write => (Direction::Write, op.bytes, c.write_latency_ns),
            // A medium takes a whole line for a word.
            OpKind::Word => (Direction::Write, 64, c.write_latency_ns),
            OpKind::Read => (Direction::Read, op.bytes, c.read_latency_ns),
            OpKind::Persist => (Direction::Write, 0, c.persist_latency_ns),
        };
        let remote_ns = match self.locality {
            Locality::Local => 0,
            Locality::Remote => c.remote_latency_ns,
            Locality::Interleaved => c.remote_latency_ns / 2,
        };
        Some(Turn { direction, bytes, latency_ns: latency_ns + remote_ns, locality: self.locality })
    }
}

/// The shared file, made when it is missing.
fn open_state(path: &Path, fingerprint: u64) -> Result<SharedWords> {
    if !path.exists() {
        make_state(path, fingerprint)?;
    }
    let shared = SharedWords::open(path, STATE_BYTES)?;
    let found = shared.u64(FINGERPRINT).load(Ordering::Acquire);
    if found != fingerprint {
        return Err(Error::new(Kind::OptionMismatch, "this medium is emulated with other curves already")
            .with("state", path.display())
            .hint(
                "all processes that use the pool must give the same curves; remove the file when no process uses it",
            ));
    }
    let boot = this_boot();
    if shared.u64(BOOT).swap(boot, Ordering::AcqRel) != boot {
        // Times of another boot mean nothing here.
        (DEVICE_TIME..STATE_BYTES).step_by(8).for_each(|at| shared.u64(at).store(0, Ordering::Relaxed));
    }
    Ok(shared)
}

fn this_boot() -> u64 {
    hash(process::boot_id().bytes().map(u64::from))
}

/// Appears under its name whole; it is no error if another process was first.
fn make_state(path: &Path, fingerprint: u64) -> Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut new = path.as_os_str().to_owned();
    // The time too: in another PID namespace a live process may have this pid, and be making this very file.
    new.push(format!(".new-{}-{}-{count}", process::pid(), clock::now_ns()));
    let new = PathBuf::from(new);
    let words = SharedWords::create(&new, STATE_BYTES)?;
    words.u64(FINGERPRINT).store(fingerprint, Ordering::Release);
    words.u64(BOOT).store(this_boot(), Ordering::Release);
    let linked = std::fs::hard_link(&new, path);
    let _ = std::fs::remove_file(&new);
    match linked {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io(format!("cannot create {}", path.display()), e))
        }
        _ => Ok(()),
    }
}

impl Around for Throttle {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn around(&self, op: Op, run: Run<'_>) -> Result<()> {
        let began = self.clock.now_ns();
        run(0..op.bytes)?;
        if let Some(turn) = self.turn(&op) {
            self.charge(&turn, began);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "throttle_tests.rs"]
mod tests;
