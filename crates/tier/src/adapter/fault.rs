//! `fault`: lets chosen operations of a device fail, come out short, or take longer, as broken and full media do.
//!
//! Which operations is said by a [`FaultPlan`]: per kind of operation, on the n-th one or by a seeded chance, so
//! that a run can be repeated exactly (given the same order of operations). What goes wrong looks to the layers
//! above as the real thing does: `ENOSPC` is `TierFull`, `EIO` is `Io`, and a flush that fails poisons the pool
//! for good, by the poisoning of the device below where it has one. Faults happen in this handle only.
//!
//! Reading through `bytes` cannot fail; its faults come at the [`Device::will_read`] that announces it.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::around::{Around, Op, Run};
use super::OpKind;
use crate::{Device, Error, Kind, Result};

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does nothing and gives EIO. A flush poisons the pool.
    Eio,
    /// It does nothing and gives ENOSPC.
    Enospc,
    /// It is cut in two and goes on after the first part, as a short read or write of the kernel does. Flushes,
    /// words, preparing and staged memory cannot be cut: nothing happens to them.
    Short,
    /// Its first half is done, then it gives EIO: the bytes are torn. What cannot be cut only gives EIO.
    Torn,
    /// It is done after this time.
    Delay(Duration),
}

/// Which operations of the kind are meant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    /// Every one.
    Always,
    /// The n-th, counted from 1.
    Nth(u64),
    /// The n-th and all after it.
    From(u64),
    /// Each with this probability (0 to 1), by the plan's seed.
    Chance(f64),
}

/// One rule of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The kind of operation.
    pub kind: OpKind,
    /// What happens.
    pub effect: Effect,
    /// When.
    pub trigger: Trigger,
}

/// What shall go wrong. Text form: rules separated by commas, as in
/// `write:enospc@3,persist:eio@1,read:delay=5ms@p0.1,seed=42`.
///
/// A rule is OPERATION`:`EFFECT, then optionally `@` and when. Operations: `prepare`, `write`, `read`, `persist`,
/// `word`. Effects: `eio`, `enospc`, `short`, `torn`, `delay=` a time in `ns`, `us`, `ms` or `s`. When: `@3` the
/// third, `@3+` from the third on, `@p0.1` one in ten; without it always. Delays add up; of the other effects the
/// first rule that applies counts. `locks:refused` makes every lock beside a pool fail with ENOLCK, as on a file system
/// that is mounted without locks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// Seed of the chances.
    pub seed: u64,
    /// Whether locks beside pools are refused.
    pub locks_refused: bool,
}

impl FaultPlan {
    /// Reads the text form. Empty text is a plan without a rule.
    ///
    /// # Errors
    /// `Usage`, with the part that cannot be read.
    pub fn parse(text: &str) -> Result<FaultPlan> {
        let mut plan = FaultPlan::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.strip_prefix("seed=") {
                None if part == LOCKS_REFUSED => plan.locks_refused = true,
                Some(seed) => plan.seed = seed.parse().map_err(|_| unreadable(part, "the seed"))?,
                None => plan.rules.push(part.parse()?),
            }
        }
        Ok(plan)
    }
}

/// The part of a plan that refuses locks.
const LOCKS_REFUSED: &str = "locks:refused";

fn unreadable(part: &str, what: &str) -> Error {
    Error::new(Kind::Usage, format!("`{part}`: {what} cannot be read")).hint(
        "example: write:enospc@3,persist:eio@1,read:delay=5ms@p0.1,seed=42. Effects: eio, enospc, short, torn, \
         delay=TIME. When: @3 the third, @3+ from the third on, @p0.1 with probability 0.1",
    )
}

/// Units of a delay, the coarsest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000), ("ns", 1)];

fn parse_delay(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, ns) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*ns).map(Duration::from_nanos)
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(part: &str) -> Result<Rule> {
        let (kind, rest) = part.split_once(':').ok_or_else(|| unreadable(part, "the rule"))?;
        let kind = kind.parse::<OpKind>().map_err(|_| unreadable(part, "the operation"))?;
        let (effect, trigger) = match rest.split_once('@') {
            Some((effect, trigger)) => (effect, Some(trigger)),
            None => (rest, None),
        };
        let effect = match effect {
            "eio" => Effect::Eio,
            "enospc" => Effect::Enospc,
            "short" => Effect::Short,
            "torn" => Effect::Torn,
            other => {
                let delay = other.strip_prefix("delay=").and_then(parse_delay);
                Effect::Delay(delay.ok_or_else(|| unreadable(part, "the effect"))?)
            }
        };
        let trigger = match trigger {
            None => Some(Trigger::Always),
            Some(t) => match (t.strip_prefix('p'), t.strip_suffix('+')) {
                (Some(p), _) => p.parse().ok().filter(|p| (0.0..=1.0).contains(p)).map(Trigger::Chance),
                (None, Some(n)) => n.parse().ok().filter(|n| *n > 0).map(Trigger::From),
                (None, None) => t.parse().ok().filter(|n| *n > 0).map(Trigger::Nth),
            },
        };
        Ok(Rule { kind, effect, trigger: trigger.ok_or_else(|| unreadable(part, "when"))? })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind)?;
        match self.effect {
            Effect::Eio => write!(f, "eio")?,
            Effect::Enospc => write!(f, "enospc")?,
            Effect::Short => write!(f, "short")?,
            Effect::Torn => write!(f, "torn")?,
            Effect::Delay(time) => {
                let ns = time.as_nanos() as u64;
                let (unit, length) =
                    UNITS.iter().find(|(_, length)| ns % length == 0).expect("1 divides all");
                write!(f, "delay={}{unit}", ns / length)?;
            }
        }
        match self.trigger {
            Trigger::Always => Ok(()),
            Trigger::Nth(n) => write!(f, "@{n}"),
            Trigger::From(n) => write!(f, "@{n}+"),
            Trigger::Chance(p) => write!(f, "@p{p}"),
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.iter().map(ToString::to_string);
        let locks = self.locks_refused.then(|| LOCKS_REFUSED.to_string());
        let seed = (self.seed != 0).then(|| format!("seed={}", self.seed));
        f.write_str(&rules.chain(locks).chain(seed).collect::<Vec<_>>().join(","))
    }
}

/// Counts the operations that a plan numbers; several handles can share one, so that the n-th operation is the
/// n-th of all of them.
#[derive(Debug, Default)]
pub struct FaultCounts {
    seen: [AtomicU64; OpKind::ALL.len()],
    injected: AtomicU64,
}

/// A device with faults.
pub struct Fault {
    inner: Arc<dyn Device>,
    plan: FaultPlan,
    counts: Arc<FaultCounts>,
    /// What the first failed flush said, where the device below cannot be poisoned.
    poison: OnceLock<String>,
}

impl Fault {
    /// `inner`, with what `plan` lets go wrong in operations through this value.
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> Fault {
        Fault::counting(inner, plan, Arc::default())
    }

    /// As [`Fault::new`], its operations numbered together with those of every other handle of `counts`.
    pub fn counting(inner: Arc<dyn Device>, plan: FaultPlan, counts: Arc<FaultCounts>) -> Fault {
        Fault { inner, plan, counts, poison: OnceLock::new() }
    }

    /// How many operations of a kind were begun until now.
    pub fn seen(&self, kind: OpKind) -> u64 {
        self.counts.seen[kind as usize].load(Relaxed)
    }

    /// How many operations something happened to.
    pub fn injected(&self) -> u64 {
        self.counts.injected.load(Relaxed)
    }

    /// Whether a rule applies to the `nth` operation of its kind.
    fn applies(&self, index: usize, rule: &Rule, nth: u64) -> bool {
        match rule.trigger {
            Trigger::Always => true,
            Trigger::Nth(n) => nth == n,
            Trigger::From(n) => nth >= n,
            Trigger::Chance(p) => {
                let drawn = mix(self.plan.seed ^ mix((index as u64) << 32 ^ nth)) >> 11;
                (drawn as f64) < p * (1u64 << 53) as f64
            }
        }
    }

    fn failed(&self, kind: OpKind, nth: u64, errno: i32) -> Error {
        let doing = match kind {
            OpKind::Prepare => "allocate blocks of",
            OpKind::Write | OpKind::Word => "write to",
            OpKind::Read => "read",
            OpKind::Persist => "flush",
        };
        let source = std::io::Error::from_raw_os_error(errno);
        Error::io(format!("cannot {doing} pool {}", self.inner.path().display()), source)
            .with("injected_fault", format!("{kind} number {nth}"))
    }

    fn poisoned(&self, first: &str) -> Error {
        Error::new(
            Kind::Poisoned,
            format!("the pool accepts no more writes, because a flush failed: {first}"),
        )
        .with("pool", self.inner.path().display())
        .hint("data persisted before are intact; check the disk (kernel log), then open the space again")
    }

    /// A flush that fails with `errno`.
    fn fail_flush(&self, errno: i32, op: Op, run: Run<'_>) -> Result<()> {
        if self.inner.inject_flush_failure(errno) {
            return run(0..op.bytes);
        }
        let source = std::io::Error::from_raw_os_error(errno);
        let first = self.poison.get_or_init(|| source.to_string());
        Err(self.poisoned(first).caused_by(source))
    }

    fn fail(&self, errno: i32, op: Op, nth: u64, run: Run<'_>) -> Result<()> {
        match op.kind {
            OpKind::Persist => self.fail_flush(errno, op, run),
            kind => Err(self.failed(kind, nth, errno)),
        }
    }
}

/// The finisher of SplitMix64: every bit of the result depends on every bit of `x`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Where to cut an operation: near its middle, at a multiple of its unit. 0: it cannot be cut.
fn cut(op: Op) -> u64 {
    match op.unit {
        0 => 0,
        unit => {
            let middle = op.bytes / 2 / unit * unit;
            if middle == 0 && op.bytes > unit {
                unit
            } else {
                middle
            }
        }
    }
}

impl Around for Fault {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn may_stage(&self) -> Result<()> {
        self.poison.get().map_or(Ok(()), |first| Err(self.poisoned(first)))
    }

    fn around(&self, op: Op, run: Run<'_>) -> Result<()> {
        let nth = self.counts.seen[op.kind as usize].fetch_add(1, Relaxed) + 1;
        if let (Some(first), true) = (self.poison.get(), op.kind != OpKind::Read) {
            return Err(self.poisoned(first));
        }
        let mut effect = None;
        let mut delay = Duration::ZERO;
        for (index, rule) in self.plan.rules.iter().enumerate() {
            if rule.kind != op.kind || !self.applies(index, rule, nth) {
                continue;
            }
            match rule.effect {
                Effect::Delay(time) => delay += time,
                other => effect = effect.or(Some(other)),
            }
        }
        if effect.is_some() || !delay.is_zero() {
            self.counts.injected.fetch_add(1, Relaxed);
        }
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        match effect {
            None | Some(Effect::Delay(_)) => run(0..op.bytes),
            Some(Effect::Eio) => self.fail(libc::EIO, op, nth, run),
            Some(Effect::Enospc) => self.fail(libc::ENOSPC, op, nth, run),
            Some(Effect::Short) => match cut(op) {
                0 => run(0..op.bytes),
                middle => {
                    run(0..middle)?;
                    run(middle..op.bytes)
                }
            },
            Some(Effect::Torn) => {
                match cut(op) {
                    0 => {}
                    middle => run(0..middle)?,
                }
                self.fail(libc::EIO, op, nth, run)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TierKind;

    fn pool(kind: TierKind, plan: &str) -> (tempfile::TempDir, Fault) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let device = crate::create(kind, &dir.path().join("pool"), 1 << 20).unwrap();
        let fault = Fault::new(device, FaultPlan::parse(plan).unwrap());
        (dir, fault)
    }

    #[test]
    fn plans_are_read_and_told_back() {
        let text = "write:enospc@3,persist:eio@1,read:delay=5ms@p0.1,prepare:enospc@2+,word:torn,\
                    locks:refused,seed=42";
        let plan = FaultPlan::parse(text).unwrap();
        assert!(plan.locks_refused && !FaultPlan::parse("write:eio").unwrap().locks_refused);
        assert_eq!(plan.rules.len(), 5);
        assert_eq!(plan.rules[0].trigger, Trigger::Nth(3));
        assert_eq!(plan.rules[2].effect, Effect::Delay(Duration::from_millis(5)));
        assert_eq!(plan.rules[3].trigger, Trigger::From(2));
        assert_eq!(plan.to_string(), text);
        assert_eq!(FaultPlan::parse(&plan.to_string()).unwrap(), plan);
        assert_eq!(FaultPlan::parse(" write:short , seed=7 ").unwrap().to_string(), "write:short,seed=7");
        assert_eq!(FaultPlan::parse("").unwrap(), FaultPlan::default());
        for wrong in [
            "write",
            "write:",
            "write:eio@",
            "write:eio@0",
            "write:eio@p1.5",
            "write:eio@x",
            "sync:eio",
            "read:delay=5",
            "read:delay=ms",
            "read:delay=5h",
            "seed=x",
            "write:eio@0+",
            "write:melt",
            "locks:eio",
        ] {
            let error = FaultPlan::parse(wrong).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{wrong}");
            assert!(error.message().contains(wrong), "{error}");
        }
    }

    #[test]
    fn the_nth_operation_fails_with_the_kind_of_the_real_thing() {
        for kind in [TierKind::Dram, TierKind::File] {
            let (_dir, pool) =
                pool(kind, "write:enospc@2,prepare:enospc@1,read:eio@2+,word:eio@2,write:eio@4");
            let expect = |result: Result<()>, kind: Option<Kind>| {
                assert_eq!(result.map_err(|e| e.kind()).err(), kind);
            };
            expect(pool.prepare(0..4096), Some(Kind::TierFull));
            expect(pool.prepare(0..4096), None);
            for wanted in [None, Some(Kind::TierFull), None, Some(Kind::Io), None] {
                expect(pool.write(0, b"12345678"), wanted);
            }
            expect(pool.store_word(0, 1), None);
            expect(pool.store_word(0, 2), Some(Kind::Io));
            assert_eq!(pool.load_word(0), 1, "a failed store changed the word");
            expect(pool.read(0, &mut [0; 8]), None);
            expect(pool.will_read(0..8), Some(Kind::Io));
            expect(pool.read(0, &mut [0; 8]), Some(Kind::Io));
            assert_eq!((pool.seen(OpKind::Write), pool.injected()), (5, 6));
        }
    }

    #[test]
    fn short_goes_on_and_torn_stops_in_the_middle() {
        let (_dir, pool) = pool(TierKind::File, "write:short@1,write:short@2,write:torn@3,read:torn@2");
        let data: Vec<u8> = (0..=255).collect();
        pool.write(0, &data).unwrap();
        assert_eq!(pool.bytes(0..256), data);
        let mut crcs = Vec::new();
        pool.write_checksummed(1000, &data, 100, &mut crcs).unwrap();
        let expected: Vec<u32> = data.chunks(100).map(crate::checksum::crc32c).collect();
        assert_eq!((pool.bytes(1000..1256), crcs), (&data[..], expected));
        assert_eq!(pool.write(5000, &data).unwrap_err().kind(), Kind::Io);
        assert_eq!(pool.bytes(5000..5128), &data[..128]);
        assert_eq!(pool.bytes(5128..5256), [0; 128], "more than half was written");
        let mut out = [0; 256];
        pool.read(0, &mut out).unwrap();
        out.fill(9);
        assert_eq!(pool.read(0, &mut out).unwrap_err().kind(), Kind::Io);
        assert_eq!((&out[..128], &out[128..]), (&data[..128], &[9; 128][..]));
    }

    #[test]
    fn a_failed_flush_poisons_every_kind_of_pool() {
        for kind in [TierKind::Dram, TierKind::File] {
            let (_dir, pool) = pool(kind, "persist:eio@2");
            pool.prepare(0..8192).unwrap();
            pool.write(0, b"before").unwrap();
            pool.persist(0..6).unwrap();
            let first = pool.persist_written(0..6).unwrap_err();
            assert_eq!(first.kind(), Kind::Poisoned);
            assert!(first.message().contains("Input/output error"), "{first}");
            assert!(std::error::Error::source(&first).is_some());
            for _ in 0..2 {
                assert_eq!(pool.persist(0..6).unwrap_err().message(), first.message());
                assert_eq!(pool.write(0, b"after").unwrap_err().kind(), Kind::Poisoned);
                assert_eq!(pool.store_word(0, 1).unwrap_err().kind(), Kind::Poisoned);
                assert_eq!(pool.prepare(0..8).unwrap_err().kind(), Kind::Poisoned);
                assert_eq!(pool.stage(0..8).unwrap_err().kind(), Kind::Poisoned);
            }
            assert_eq!(pool.bytes(0..6), b"before");
            pool.read(0, &mut [0; 6]).unwrap();
        }
    }

    #[test]
    fn chances_come_again_with_their_seed_and_differ_between_seeds() {
        let failures = |seed: u64| -> Vec<bool> {
            let (_dir, pool) = pool(TierKind::Dram, &format!("write:eio@p0.25,seed={seed}"));
            (0..400).map(|_| pool.write(0, b"x").is_err()).collect()
        };
        let one = failures(1);
        assert_eq!(one, failures(1));
        assert_ne!(one, failures(2));
        let hits = one.iter().filter(|failed| **failed).count();
        assert!((60..140).contains(&hits), "{hits} of 400 at one in four");
        let (_dir, never) = pool(TierKind::Dram, "write:eio@p0");
        let (_dir, always) = pool(TierKind::Dram, "write:eio@p1");
        assert!((0..50).all(|_| never.write(0, b"x").is_ok() && always.write(0, b"x").is_err()));
    }

    #[test]
    fn delays_let_the_operation_happen() {
        let (_dir, pool) = pool(TierKind::Dram, "write:delay=1ms,write:delay=1ns@2,write:eio@3");
        pool.write(0, b"x").unwrap();
        pool.write(1, b"y").unwrap();
        assert_eq!(pool.write(2, b"z").unwrap_err().kind(), Kind::Io);
        assert_eq!((pool.bytes(0..3), pool.injected()), (&b"xy\0"[..], 3));
    }
}
