//! A device as a subject, and the check of the probe itself: a medium that is known is probed as if it were not.
//!
//! [`Device`](forebay_tier::Device)s are what Forebay's layers see, so a throttled one is measured through the same
//! calls. [`Virtual`] does so in time that only the emulation moves: its numbers are exact and the same everywhere.
//! [`Through`] does so on this machine's clock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use forebay_tier::adapter::throttle::{self, Clock, Curves, Throttle};
use forebay_tier::{clock, Device, Error, Horizon, Kind, Result, TierKind};

use super::subject::{Reading, Subject};
use crate::kernels::together;
use crate::load::random::Rng;
use crate::load::Latency;
use forebay_profile::{Conditions, Load, Locality, Operation, Pattern};

/// The largest operation: a thread has a buffer for one.
const OPERATION_BYTES_MAX: u64 = 16 << 20;
/// Operations that a thread does before any counts: the first ones find fewer others inside than later ones.
const WARM: u64 = 2;
/// A measurement whose threads are not all under way by then counts nothing.
const WARM_NS_MAX: u64 = 60_000_000_000;

/// The operations of one thread. Of several some read and the others write, as readers and writers of a channel do.
struct Step {
    numbers: Rng,
    place: u64,
    reads: bool,
}

impl Step {
    fn new(index: u64, threads: u32, when: &Conditions) -> Step {
        let readers = when.reads_percent.unwrap_or(100.0) / 100.0 * f64::from(threads);
        Step { numbers: Rng::new(index), place: 0, reads: (index as f64) < readers.round() }
    }

    /// Does the next operation on this thread's part of the pool; true for a write.
    fn take(
        &mut self,
        device: &dyn Device,
        part: (u64, u64),
        when: &Conditions,
        from: &[u8],
    ) -> Result<bool> {
        let bytes = from.len() as u64;
        let places = (part.1 / bytes).max(1);
        let place = match when.pattern {
            Some(Pattern::Random) => self.numbers.below(places),
            _ => self.place % places,
        };
        self.place += 1;
        let at = part.0 + place * bytes;
        if self.reads {
            device.will_read(at..at + bytes)?;
            std::hint::black_box(device.bytes(at..at + bytes).iter().step_by(64).fold(0u8, |sum, b| sum ^ b));
            return Ok(false);
        }
        device.write(at, from)?;
        if when.horizon == Horizon::Write {
            device.persist_written(at..at + bytes)?;
        }
        Ok(true)
    }
}

fn operation_bytes(when: &Conditions) -> Result<usize> {
    let bytes = when.bytes.unwrap_or(64);
    if bytes == 0 || bytes > OPERATION_BYTES_MAX {
        return Err(Error::new(Kind::Usage, format!("an operation of {bytes} bytes")));
    }
    Ok(bytes as usize)
}

fn parts(device: &dyn Device, threads: u64) -> (u64, u64) {
    let each = device.capacity() / threads / 4096 * 4096;
    (each, each)
}

/// The time in which operations count: all threads are under way when it begins, and none has stopped when it ends.
#[derive(Clone, Copy)]
struct Window {
    begin: u64,
    end: u64,
}

/// The part of a span before the window: first operations find fewer others inside than later ones.
const RAMP_DIVISOR: u64 = 4;

impl Window {
    fn of(begun: u64, span_ns: u64) -> Window {
        Window { begin: begun + span_ns / RAMP_DIVISOR, end: begun + span_ns }
    }

    /// Whether an operation that ended then counts.
    fn holds(&self, ended: u64) -> bool {
        self.begin <= ended && ended < self.end
    }

    /// The part of an operation from `begun` to `ended` that lies inside.
    fn share(&self, begun: u64, ended: u64) -> f64 {
        if ended <= begun {
            return f64::from(u8::from(self.holds(ended)));
        }
        let inside = ended.min(self.end).saturating_sub(begun.max(self.begin));
        inside as f64 / (ended - begun) as f64
    }
}

fn reading(operations: [f64; 2], bytes: usize, span_ns: u64) -> Reading {
    let window = Window::of(0, span_ns);
    Reading {
        operations: operations.map(|n| n.round() as u64),
        bytes: operations.map(|n| (n * bytes as f64).round() as u64),
        ns: window.end - window.begin,
        device_bytes: None,
    }
}

/// When the operations of several threads begin to count: all of them are under way.
struct Opening {
    begun: u64,
    span_ns: u64,
    threads: usize,
    warm: AtomicUsize,
    /// 0 until it is known.
    begin: AtomicU64,
}

impl Opening {
    fn new(threads: usize, span_ns: u64) -> Opening {
        let (warm, begin) = (AtomicUsize::new(0), AtomicU64::new(0));
        Opening { begun: clock::now_ns(), span_ns, threads, warm, begin }
    }

    /// The window, once there is one; a thread says that it has done `done` operations by `now`.
    fn window(&self, done: u64, now: u64) -> Option<Window> {
        if done == WARM {
            self.warm.fetch_add(1, Ordering::Relaxed);
        }
        let ramp_ns = self.span_ns / RAMP_DIVISOR;
        let all = self.warm.load(Ordering::Relaxed) == self.threads && now >= self.begun + ramp_ns;
        if all && self.begin.load(Ordering::Relaxed) == 0 {
            // The first thread says when.
            let _ = self.begin.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        match self.begin.load(Ordering::Relaxed) {
            0 if now < self.begun + WARM_NS_MAX => None,
            0 => Some(Window { begin: now, end: now }),
            begin => Some(Window { begin, end: begin + self.span_ns - ramp_ns }),
        }
    }
}

/// A device on this machine's clock.
pub struct Through {
    near: Arc<dyn Device>,
    far: Arc<dyn Device>,
}

impl Through {
    /// Measures `near`, all of which is prepared, and for what is asked of a remote place `far`, another handle of it.
    ///
    /// # Errors
    /// Those of preparing.
    pub fn new(near: Arc<dyn Device>, far: Arc<dyn Device>) -> Result<Through> {
        near.prepare(0..near.capacity())?;
        Ok(Through { near, far })
    }

    fn device(&self, locality: Locality) -> &dyn Device {
        match locality {
            Locality::Local => &*self.near,
            Locality::Remote => &*self.far,
        }
    }
}

impl Subject for Through {
    fn bandwidth(&mut self, when: &Conditions, span_ns: u64) -> Result<Reading> {
        let (own, bytes) = (when.threads.unwrap_or(1).max(1), operation_bytes(when)?);
        let threads = own + when.beside.unwrap_or(0);
        let from = vec![1u8; bytes];
        let opposite = Conditions {
            locality: if when.locality == Locality::Local { Locality::Remote } else { Locality::Local },
            reads_percent: Some(100.0 - when.reads_percent.unwrap_or(100.0)),
            ..when.clone()
        };
        let (each, len) = parts(&*self.near, u64::from(threads));
        let opening = Opening::new(threads as usize, span_ns);
        let work = |index: usize, (): (), meeting: &together::Meeting| {
            let is_own = index < own as usize;
            let when = if is_own { when } else { &opposite };
            let device = self.device(when.locality);
            let mut step = Step::new(index as u64, threads, when);
            // An operation that the window cuts counts for its part inside: few large ones fit into a span.
            let (mut shares, mut done) = ([0.0f64; 2], 0);
            meeting.wait()?;
            let mut before = clock::now_ns();
            loop {
                let write = step.take(device, (index as u64 * each, len), when, &from)?;
                let now = clock::now_ns();
                done += 1;
                if let Some(window) = opening.window(done, now) {
                    shares[usize::from(write)] += if is_own { window.share(before, now) } else { 0.0 };
                    if now >= window.end {
                        return Ok(shares);
                    }
                }
                before = now;
            }
        };
        let done = together::run(&together::processors(), vec![(); threads as usize], work)?;
        let operations = [0, 1].map(|way: usize| done.iter().map(|d| d[way]).sum::<f64>());
        Ok(reading(operations, bytes, span_ns))
    }

    fn latency(&mut self, _: Operation, _: Load, when: &Conditions, span_ns: u64) -> Result<Latency> {
        let from = vec![1u8; operation_bytes(when)?];
        let (mut step, mut times) = (Step::new(0, 1, when), Latency::new());
        let device = self.device(when.locality);
        let (_, len) = parts(device, 1);
        let begun = clock::now_ns();
        let mut before = begun;
        while before < begun + span_ns {
            step.take(device, (0, len), when, &from)?;
            let now = clock::now_ns();
            times.record(now - before);
            before = now;
        }
        Ok(times)
    }

    fn method(&self) -> String {
        format!("through a device of tier {}, its own calls", self.near.kind())
    }
}

/// Nanoseconds that only sleeping moves.
#[derive(Default)]
struct Standing(AtomicU64);

impl Clock for Standing {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn sleep(&self, ns: u64) -> u64 {
        self.0.fetch_add(ns, Ordering::Relaxed);
        ns
    }
    fn spin(&self, ns: u64) -> u64 {
        self.sleep(ns)
    }
}

/// A throttled device in virtual time: each thread of a load is a handle with a clock of its own, and the one that is
/// behind goes next. One thread does it all, so that every number follows from the curves alone; with operations of
/// more than a turn the first thread would have all of its turns before the others.
pub struct Virtual {
    dir: std::path::PathBuf,
    curves: Curves,
    /// Loads made so far: each begins with a medium at rest.
    loads: u64,
}

impl Virtual {
    /// A medium as `curves` say; pools and shared words lie in `dir` (on tmpfs), which the caller removes.
    pub fn new(dir: &std::path::Path, curves: Curves) -> Virtual {
        Virtual { dir: dir.to_path_buf(), curves, loads: 0 }
    }
}

struct Handle {
    throttle: Throttle,
    clock: Arc<Standing>,
    step: Step,
}

impl Handle {
    /// Its emulated time: what passed and what it owes.
    fn time(&self) -> u64 {
        self.clock.now_ns().saturating_add_signed(self.throttle.owed_ns())
    }
}

impl Subject for Virtual {
    fn bandwidth(&mut self, when: &Conditions, span_ns: u64) -> Result<Reading> {
        let (threads, bytes) = (u64::from(when.threads.unwrap_or(1).max(1)), operation_bytes(when)?);
        self.loads += 1;
        let pool = self.dir.join(format!("pool-{}", self.loads));
        let state = Throttle::state_beside(&pool);
        let device =
            forebay_tier::create(TierKind::Dram, &pool, threads * bytes.next_multiple_of(4096) as u64)?;
        device.prepare(0..device.capacity())?;
        // A clock that stands at 0 would look like a medium that never was used.
        let handle = |index: u64| {
            let clock = Arc::new(Standing(AtomicU64::new(1)));
            let throttle = Throttle::with_clock(
                device.clone(),
                self.curves.clone(),
                throttle::Locality::Local,
                &state,
                clock.clone(),
            )?;
            Ok(Handle { throttle, clock, step: Step::new(index, threads as u32, when) })
        };
        let mut handles: Vec<Handle> = (0..threads).map(handle).collect::<Result<_>>()?;
        let from = vec![1u8; bytes];
        let (each, len) = parts(&*device, threads);
        let window = Window::of(1, span_ns);
        let mut operations = [0.0; 2];
        loop {
            let behind = handles.iter_mut().enumerate().min_by_key(|(_, h)| h.time());
            let Some((index, handle)) = behind.filter(|(_, h)| h.time() < window.end) else { break };
            let write = handle.step.take(&handle.throttle, (index as u64 * each, len), when, &from)?;
            operations[usize::from(write)] += f64::from(u8::from(window.holds(handle.time())));
        }
        for path in [&pool, &state] {
            let _ = std::fs::remove_file(path);
        }
        Ok(reading(operations, bytes, span_ns))
    }

    fn latency(&mut self, of: Operation, _: Load, when: &Conditions, span_ns: u64) -> Result<Latency> {
        // One thread alone: the mean is all that virtual time has, because nothing varies.
        let when = Conditions { threads: Some(1), ..when.clone() };
        let reading = self.bandwidth(&when, span_ns)?;
        let way = usize::from(of != Operation::Read);
        let mut times = Latency::new();
        let all = reading.operations[way].max(1);
        (0..reading.operations[way]).for_each(|_| times.record(reading.ns / all));
        Ok(times)
    }

    fn method(&self) -> String {
        "through a throttled device, in virtual time".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Ask;
    use crate::collect::Reads;
    use crate::medium::Medium;
    use crate::rounds::ask;
    use crate::schedule::{Schedule, Timing};
    use forebay_profile::{Axis, Citation, Tier};
    use forebay_tier::adapter::throttle::Curve;
    use std::sync::atomic::AtomicBool;

    /// As the first generation of persistent memory: reads rise to a plateau, writes rise, then fall.
    fn medium() -> Curves {
        Curves {
            read_bandwidth: Curve(vec![(1.0, 0.5e9), (4.0, 1.8e9), (8.0, 2.4e9), (16.0, 2.5e9)]),
            write_bandwidth: Curve(vec![(1.0, 0.6e9), (4.0, 1.0e9), (16.0, 0.5e9)]),
            read_granularity: Curve(vec![(64.0, 0.25), (256.0, 0.9), (4096.0, 1.0)]),
            read_latency_ns: 300,
            ..Curves::default()
        }
    }

    fn probed(curves: &Curves, asks: Vec<Ask>) -> Tier {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        // Long, for virtual time costs nothing: while the first operations come in, fewer are inside.
        let timing =
            Timing { span_ns_min: 1_000_000_000, span_ns_max: 1_000_000_000, overhead_ns: 0, rounds: 3 };
        let schedule = Schedule::fit(asks, timing, u64::MAX);
        let mut subject = Virtual::new(dir.path(), curves.clone());
        let answers = ask(&mut subject, &schedule, timing, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
        let mut tier = Tier::new("emulated", TierKind::Dram);
        answers.write(&mut tier, &Citation::of("probe"), &Reads::default(), None);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        tier
    }

    fn over_threads(reads: f64) -> Ask {
        let when = Conditions {
            reads_percent: Some(reads),
            bytes: Some(throttle::TURN_BYTES),
            ..Conditions::default()
        };
        Ask::Curve { when, over: Axis::Threads, xs: vec![1.0, 2.0, 4.0, 8.0, 16.0] }
    }

    #[test]
    fn what_others_move_beside_is_not_counted() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = dir.path().join("pool");
        let device = forebay_tier::create(TierKind::Dram, &pool, 1 << 20).unwrap();
        let mut through = Through::new(device.clone(), device).unwrap();
        let when = Conditions {
            threads: Some(1),
            beside: Some(2),
            bytes: Some(4096),
            reads_percent: Some(0.0),
            ..Conditions::default()
        };
        // However late its thread comes, an operation of it lies in the window, at least in part.
        let reading = through.bandwidth(&when, 200_000_000).unwrap();
        assert!(reading.bytes[1] > 0, "{reading:?}");
        assert_eq!((reading.operations[0], reading.bytes[0]), (0, 0), "what the readers moved");
    }

    #[test]
    fn a_known_medium_comes_back_as_it_was_set() {
        let curves = medium();
        let tier = probed(&curves, vec![over_threads(100.0), over_threads(0.0)]);
        for (asked, got) in [&curves.read_bandwidth, &curves.write_bandwidth].into_iter().zip(&tier.curves) {
            assert_eq!(got.points.len(), 5);
            for point in &got.points {
                let (set, back) = (asked.at(point.x).unwrap(), point.y.value * 1e9);
                assert!((0.95..=1.05).contains(&(back / set)), "{} threads: {set} set, {back} back", point.x);
            }
            // The same every time: no error bar.
            assert!(got.points.iter().all(|p| p.y.error == Some(0.0)));
        }
        // The curve that was probed is a medium again.
        let again = Medium::of(&tier).unwrap().slowed(2.0);
        let half = again.read_bandwidth.at(8.0).unwrap() / curves.read_bandwidth.at(8.0).unwrap();
        assert!((0.475..=0.525).contains(&half), "{half}");
    }

    #[test]
    fn sizes_and_latencies_come_back_too() {
        let curves = Curves { read_latency_ns: 0, ..medium() };
        let when = Conditions { reads_percent: Some(100.0), threads: Some(1), ..Conditions::default() };
        let sizes = Ask::Curve { when, over: Axis::Bytes, xs: vec![64.0, 256.0, 4096.0] };
        let small = probed(&curves, vec![sizes]);
        let values: Vec<f64> = small.curves[0].points.iter().map(|p| p.y.value).collect();
        for (value, wanted) in values.iter().zip([0.125, 0.45, 0.5]) {
            assert!((value / wanted - 1.0).abs() < 0.05, "{values:?}");
        }
        let curves = Curves { read_latency_ns: 5000, ..Curves::default() };
        let when = Conditions { reads_percent: Some(100.0), bytes: Some(64), ..Conditions::default() };
        let time = Ask::Latency { operation: Operation::Read, load: Load::Idle, when };
        let latency = &probed(&curves, vec![time]).latencies[0];
        assert_eq!(latency.p50_ns.unwrap().value, 5000.0);
    }

    #[test]
    fn a_device_is_measured_by_its_own_calls() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let device = forebay_tier::create(TierKind::Dram, &dir.path().join("pool"), 1 << 20).unwrap();
        let mut subject = Through::new(device.clone(), device).unwrap();
        let when = Conditions {
            reads_percent: Some(50.0),
            threads: Some(3),
            bytes: Some(4096),
            ..Conditions::default()
        };
        let reading = subject.bandwidth(&when, 20_000_000).unwrap();
        assert!(reading.bytes[0] > 0 && reading.bytes[1] > 0);
        assert!(subject.latency(Operation::Write, Load::Idle, &when, 1_000_000).unwrap().count() > 0);
        let large = Conditions { bytes: Some(1 << 40), ..when };
        assert_eq!(subject.bandwidth(&large, 1).unwrap_err().kind(), Kind::Usage);
    }
}
