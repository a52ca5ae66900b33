//! Signals during a run, as something one can wait for.
//!
//! Guarantees: SIGINT, SIGTERM and SIGHUP are counted and remembered, never lost; ones that were ignored at the
//! start (nohup, background jobs of a script) stay ignored. While no run is under way they do what they always
//! do. SIGCHLD only wakes the waiting thread.
//! Not here: what is done about them (`run`).

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_space::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::SigId;

/// Signals that end a run, and SIGCHLD, as something one can wait for. While no run is under way the ending
/// signals do what they always do.
#[derive(Debug)]
pub struct Signals {
    last: Arc<AtomicUsize>,
    count: AtomicUsize,
    wake: UnixStream,
    ends: UnixStream,
    ids: Vec<SigId>,
}

/// Set while no run is under way.
static IDLE: OnceLock<Arc<AtomicBool>> = OnceLock::new();

impl Signals {
    /// Takes the ending signals until the value goes out of scope.
    ///
    /// # Errors
    /// `Io` when a handler cannot be installed.
    pub fn catch() -> Result<Signals> {
        let failed = |e| Error::io("installing signal handlers", e);
        let ignored = ignored_signals();
        let ending: Vec<i32> =
            [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|s| ignored & (1 << (s - 1)) == 0).collect();
        let idle = match IDLE.get() {
            Some(idle) => idle.clone(),
            None => {
                let idle = Arc::new(AtomicBool::new(false));
                for signal in &ending {
                    signal_hook::flag::register_conditional_default(*signal, idle.clone()).map_err(failed)?;
                }
                IDLE.get_or_init(|| idle).clone()
            }
        };
        idle.store(false, Ordering::SeqCst);
        let (wake, wake_in) = UnixStream::pair().map_err(failed)?;
        let (ends, ends_in) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        ends.set_nonblocking(true).map_err(failed)?;
        let last = Arc::new(AtomicUsize::new(0));
        let mut ids = Vec::new();
        ids.push(signal_hook::low_level::pipe::register(SIGCHLD, wake_in).map_err(failed)?);
        for signal in ending {
            let number = signal as usize;
            ids.push(signal_hook::flag::register_usize(signal, last.clone(), number).map_err(failed)?);
            let end = ends_in.try_clone().map_err(failed)?;
            ids.push(signal_hook::low_level::pipe::register(signal, end).map_err(failed)?);
        }
        Ok(Signals { last, count: AtomicUsize::new(0), wake, ends, ids })
    }

    /// The ending signal that came last, if one came.
    pub fn caught(&self) -> Option<i32> {
        match self.last.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal as i32),
        }
    }

    /// How many ending signals came.
    pub fn count(&self) -> usize {
        let mut bytes = [0u8; 64];
        while let Ok(read @ 1..) = (&self.ends).read(&mut bytes) {
            self.count.fetch_add(read, Ordering::Relaxed);
        }
        self.count.load(Ordering::Relaxed)
    }

    /// Sleeps until a signal comes or the time is over.
    pub fn pause(&self, time: Duration) {
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.ends, PollFlags::IN)];
        // An error (a signal in between) is as good as a wake-up: the caller looks again.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        let mut bytes = [0u8; 256];
        while matches!((&self.wake).read(&mut bytes), Ok(1..)) {}
        self.count();
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            signal_hook::low_level::unregister(id);
        }
        if let Some(idle) = IDLE.get() {
            idle.store(true, Ordering::SeqCst);
        }
    }
}

/// Bit n-1 is set when signal n is ignored (nohup, background jobs of a script).
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}
