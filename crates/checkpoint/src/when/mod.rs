//! When to save: every n steps, every so many seconds, at the best interval, when the job is told that it ends.
//!
//! Text: `steps:100`, `seconds:600`, `optimum` or `optimum:86400` (mean seconds between failures), `signal` (SIGTERM or
//! SIGUSR1). Any of several that says yes decides.
//!
//! Ranks decide alike. What depends on the step alone each rank knows for itself. What depends on clocks and signals
//! rank 0 decides, and writes it for the others into a ring of small records in a file: a rank that asks waits until
//! rank 0 has come to the same step.

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use forebay_terms::spelling::did_you_mean;
use forebay_tier::{Error, Kind, Result};
use signal_hook::consts::{SIGTERM, SIGUSR1};

pub(crate) mod advice;
pub mod interval;
pub(crate) mod statistics;

use crate::place::Place;
use crate::run::{Run, ASKED, NEED};
use interval::daly;

/// Mean time between failures where no other is given: a day, of the order of what large machines report per node
/// group.
pub const MTBF_DEFAULT_S: f64 = 86_400.0;

/// Records of the ring: how far rank 0 may be ahead of the slowest rank.
const RING: u64 = 4096;
/// Bytes of a record: step plus one, then 1 for yes.
const RECORD: u64 = 16;

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At every n-th step.
    Steps(u64),
    /// When so much time has passed since the last save.
    Seconds(f64),
    /// At Daly's interval for the measured cost of a save and this mean time between failures, in seconds.
    Optimum(f64),
    /// When SIGTERM or SIGUSR1 has come.
    Signal,
}

impl FromStr for When {
    type Err = Error;

    fn from_str(text: &str) -> Result<When> {
        let (word, value) = text.split_once(':').map_or((text, None), |(word, value)| (word, Some(value)));
        let wrong = || {
            let known = ["steps", "seconds", "optimum", "signal"];
            let near =
                did_you_mean(word, known).map_or(String::new(), |near| format!("did you mean {near}? "));
            Error::new(Kind::Usage, format!("`{text}` is not a rule for saving"))
                .hint(format!("{near}one of: steps:N, seconds:S, optimum, optimum:MTBF-SECONDS, signal"))
        };
        let seconds = |text: &str| text.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0);
        match (word, value) {
            ("steps", Some(value)) => value.parse().ok().filter(|n| *n > 0).map(When::Steps),
            ("seconds", Some(value)) => seconds(value).map(When::Seconds),
            ("optimum", None) => Some(When::Optimum(MTBF_DEFAULT_S)),
            ("optimum", Some(value)) => seconds(value).map(When::Optimum),
            ("signal", None) => Some(When::Signal),
            _ => None,
        }
        .ok_or_else(wrong)
    }
}

impl When {
    /// Whether all ranks come to the same answer by themselves.
    fn follows_from_the_step(self) -> bool {
        matches!(self, When::Steps(_))
    }

    /// Whether a save is due. `cost` and `carried`: seconds that a save blocks, and that the way down takes.
    fn is_due(self, step: u64, since: Duration, cost: f64, carried: f64) -> bool {
        match self {
            When::Steps(n) => step % n == 0,
            When::Seconds(seconds) => since.as_secs_f64() >= seconds,
            When::Optimum(mtbf) => since.as_secs_f64() >= daly(cost, mtbf).max(carried),
            When::Signal => false,
        }
    }
}

/// The rules of a checkpoint, and the signals that have come.
pub(crate) struct Policy {
    rules: Vec<When>,
    signalled: Arc<AtomicBool>,
    /// Taken back at the end.
    handlers: Vec<signal_hook::SigId>,
}

impl Policy {
    /// Reads the rules; with `signal` among them the signals are caught from here on.
    pub(crate) fn new(texts: &[String]) -> Result<Policy> {
        let rules: Result<Vec<When>> = texts.iter().map(|text| text.parse()).collect();
        let mut policy = Policy { rules: rules?, signalled: Arc::default(), handlers: Vec::new() };
        if policy.rules.contains(&When::Signal) {
            for signal in [SIGTERM, SIGUSR1] {
                let handler = signal_hook::flag::register(signal, policy.signalled.clone());
                policy.handlers.push(handler.map_err(|e| Error::io("cannot catch a signal", e))?);
            }
        }
        Ok(policy)
    }

    /// Whether this step is to be saved.
    pub(crate) fn need(
        &self,
        step: u64,
        since: Duration,
        costs: (f64, f64),
        rank: u32,
        size: u32,
        run: &Run,
    ) -> Result<bool> {
        let due = |rule: &When| rule.is_due(step, since, costs.0, costs.1);
        if size == 1 {
            let signalled = self.signalled.swap(false, Ordering::Relaxed);
            return Ok(signalled || self.rules.iter().any(due));
        }
        let (alike, others): (Vec<When>, Vec<When>) =
            self.rules.iter().partition(|rule| rule.follows_from_the_step());
        let mut yes = alike.iter().any(due);
        if !others.is_empty() {
            yes |= match rank {
                0 => self.decide(step, others.iter().any(due), run)?,
                _ => self.follow(step, rank, run)?,
            };
        }
        Ok(yes)
    }

    /// Rank 0 decides for all.
    fn decide(&self, step: u64, due: bool, run: &Run) -> Result<bool> {
        let base = run.base();
        let asked = base.load(&wish(run), 16)?.is_some();
        if asked {
            base.remove(&wish(run))?;
        }
        let yes = due | asked | self.signalled.swap(false, Ordering::Relaxed);
        let mut record = [0; RECORD as usize];
        record[..8].copy_from_slice(&(step + 1).to_le_bytes());
        record[8] = u8::from(yes);
        let path = ring(run);
        let mut options = forebay_tier::host::fs::File::options();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        file.and_then(|file| file.write_all_at(&record, step % RING * RECORD))
            .map_err(|e| Error::io(format!("cannot write {}", path.display()), e))?;
        Ok(yes)
    }

    /// The others do as rank 0 does.
    fn follow(&self, step: u64, rank: u32, run: &Run) -> Result<bool> {
        if self.signalled.swap(false, Ordering::Relaxed) {
            let hidden = format!(".{}-{rank}", wish(run));
            run.base().store(&hidden, b"save")?;
            run.base().rename(&hidden, &wish(run))?;
        }
        run.wait(&format!("rank 0 has not come to step {step}"), || {
            let mut record = [0; RECORD as usize];
            let read = forebay_tier::host::fs::File::open(ring(run))
                .and_then(|f| f.read_exact_at(&mut record, step % RING * RECORD));
            let at = u64::from_le_bytes(record[..8].try_into().expect("eight bytes"));
            if at > step + 1 {
                let error =
                    Error::new(Kind::VersionOutOfOrder, format!("rank 0 is {} steps ahead", at - step - 1));
                return Err(error.hint("all ranks must call need for the same steps, in the same order"));
            }
            Ok((read.is_ok() && at == step + 1).then(|| record[8] == 1))
        })
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// Where rank 0 writes what it has decided.
fn ring(run: &Run) -> std::path::PathBuf {
    std::path::Path::new(&run.base().describe()).join(format!("{NEED}{:06}", run.incarnation))
}

/// The file by which another rank says that a signal has come.
fn wish(run: &Run) -> String {
    format!("{ASKED}{:06}", run.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        assert_eq!("steps:10".parse::<When>().unwrap(), When::Steps(10));
        assert_eq!("seconds:0.5".parse::<When>().unwrap(), When::Seconds(0.5));
        assert_eq!("optimum".parse::<When>().unwrap(), When::Optimum(MTBF_DEFAULT_S));
        assert_eq!("optimum:3600".parse::<When>().unwrap(), When::Optimum(3600.0));
        assert_eq!("signal".parse::<When>().unwrap(), When::Signal);
        for wrong in ["step:1", "steps", "steps:0", "seconds:-1", "seconds:nan", "signal:9", "optimum:0", ""]
        {
            assert_eq!(wrong.parse::<When>().unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
        assert!("step:1"
            .parse::<When>()
            .unwrap_err()
            .hint_text()
            .unwrap()
            .starts_with("did you mean steps?"));
    }

    #[test]
    fn rules_are_due() {
        let second = Duration::from_secs(1);
        let due = |rule: When, step, since: Duration| rule.is_due(step, since, 0.01, 0.0);
        assert!(due(When::Steps(5), 10, Duration::ZERO) && !due(When::Steps(5), 11, second));
        assert!(due(When::Seconds(1.0), 1, second) && !due(When::Seconds(1.1), 1, second));
        // √(2 · 0.01 · 200) = 2: a second is too early, three are late.
        assert!(!due(When::Optimum(200.0), 1, second) && due(When::Optimum(200.0), 1, second * 3));
        assert!(!When::Optimum(200.0).is_due(1, second * 3, 0.01, 4.0), "the way down takes four seconds");
    }
}
