//! Runs workloads and judges the images of every crash; goes on living on some of them.
//!
//! A run is named by a path: `WORKLOAD@SEED`, then for each incarnation on the same memory `/N`, and for each reboot
//! from an image `:CRASH.IMAGE`. The path says everything: the same path is always the same run.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_tier::adapter::sim::{Explorer, Flaw, Image, Plan, Sim};

use crate::life::Group;
use crate::model::{describe, Model};
use crate::workload::{Random, Workload};

/// How thoroughly.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Up to so many combinations at a crash, all of them are tried.
    pub exhaustive_max: u64,
    /// Random images of each crash that has more.
    pub samples: u64,
    /// Images with torn lines of each crash.
    pub torn: u64,
    /// Up to so many images of a run are booted and lived on.
    pub reboots: usize,
}

/// By depth: the first life, after one crash, after two.
pub const DEPTHS: [Depth; 3] = [
    Depth { exhaustive_max: 4096, samples: 48, torn: 12, reboots: 4 },
    Depth { exhaustive_max: 256, samples: 12, torn: 6, reboots: 2 },
    Depth { exhaustive_max: 64, samples: 8, torn: 4, reboots: 0 },
];

/// An image that is not what it should be.
#[derive(Debug)]
pub struct Failure {
    pub path: String,
    pub operation: &'static str,
    pub point: &'static str,
    pub what: String,
    /// What recovery sees.
    pub seen: String,
}

/// What was seen, by all threads.
#[derive(Default)]
pub struct Seen {
    shards: Vec<Mutex<HashSet<u64>>>,
    pub distinct: AtomicU64,
}

impl Seen {
    pub fn new() -> Seen {
        let shards = (0..64).map(|_| Mutex::new(HashSet::new())).collect();
        Seen { shards, distinct: AtomicU64::new(0) }
    }

    /// True for an image that was not seen before.
    fn is_new(&self, hash: u64) -> bool {
        let shard = &self.shards[(hash >> 58) as usize];
        let new = shard.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(hash);
        self.distinct.fetch_add(u64::from(new), Ordering::Relaxed);
        new
    }
}

/// Distinct images by workload, operation and point; and how many fences, of these explored exhaustively.
pub type Counts = BTreeMap<(&'static str, &'static str, &'static str), u64>;

/// One run with everything below it.
pub struct Run<'a> {
    pub workload: &'a Workload,
    pub flaw: Option<Flaw>,
    pub seen: &'a Seen,
    pub counts: Counts,
    pub crashes: u64,
    /// Of a replay: what to go down to; all of it else.
    pub only: Option<&'a [Stop]>,
}

/// One part of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    /// The n-th incarnation on the same memory.
    Life(u64),
    /// The image of a crash.
    Image(usize, u64),
}

/// An image to live on.
struct Boot {
    at: Stop,
    bytes: Vec<u8>,
    model: Model,
}

fn mix(seed: u64, at: Stop) -> u64 {
    let n = match at {
        Stop::Life(n) => n,
        Stop::Image(crash, image) => 1 << 40 | (crash as u64) << 24 ^ image,
    };
    Random::new(seed ^ n.wrapping_mul(0xd6e8_feb8_6659_fd93)).next()
}

impl Run<'_> {
    /// Everything that follows from a seed.
    pub fn whole(&mut self, seed: u64) -> Result<(), Failure> {
        let model = Model::new(self.workload.superblock());
        let path = format!("{}@{seed}", self.workload.name);
        self.lives(&path, &self.workload.empty_pool(), &model, Random::new(seed).next(), 0)
    }

    /// Incarnations on one memory, one after the other, each with its crashes.
    fn lives(
        &mut self,
        path: &str,
        image: &[u8],
        model: &Model,
        seed: u64,
        depth: usize,
    ) -> Result<(), Failure> {
        let sim = Sim::in_memory(image, self.workload.medium).expect("memory for a small pool");
        let sim = Arc::new(sim.with_flaw(self.flaw));
        let mut model = model.clone();
        let rest = self.only.map(|only| &only[depth_of(path)..]);
        for n in 0..self.workload.lives {
            let at = Stop::Life(n);
            sim.record();
            let mut group = Group::start(self.workload, sim.clone(), &model, mix(seed, at));
            let goes_on = group.run();
            model = group.model.clone();
            drop(group);
            let trace = sim.take_trace();
            if rest.is_some_and(|rest| rest.first() != Some(&at)) {
                continue;
            }
            let path = format!("{path}/{n}");
            let boots = self.crashes(&path, &trace, &model, depth)?;
            for boot in boots {
                let path = format!("{path}{}", boot.at);
                self.lives(&path, &boot.bytes, &boot.model, mix(seed, boot.at), depth + 1)?;
            }
            // After a failed flush nothing can be written; a kill can be survived.
            if !goes_on && !self.workload.kills {
                break;
            }
        }
        Ok(())
    }

    /// Judges the images of every crash of a trace; some of them come back to be lived on.
    fn crashes(
        &mut self,
        path: &str,
        trace: &forebay_tier::adapter::sim::Trace,
        model: &Model,
        depth: usize,
    ) -> Result<Vec<Boot>, Failure> {
        let Depth { exhaustive_max, samples, torn, reboots } = DEPTHS[depth];
        let mut plan = Plan { exhaustive_max, samples, torn, seed: trace.crashes.len() as u64, only: None };
        let wanted = self.only.and_then(|only| only.get(depth_of(path)).copied());
        let mut boots = Vec::new();
        // Every so many images one is lived on, so that they come from the whole run.
        let stride = (trace.crashes.len() / (reboots + 1)).max(1);
        let mut explorer = Explorer::new(trace);
        while let Some((at, crash)) = explorer.crash() {
            if let Some(Stop::Image(crash, image)) = wanted {
                plan.only = Some(image);
                if crash != at {
                    explorer.step();
                    continue;
                }
            }
            let operation = model.operation(crash.tag);
            let key = (self.workload.name, operation, crash.point.name());
            let lives_on = reboots > 0 && (at % stride == stride - 1 || wanted.is_some());
            let pick = mix(plan.seed, Stop::Image(at, 0)) % 40;
            let mut new = 0;
            let mut nth = 0;
            let ended = explorer.images(&plan, |image: &Image, number, hash| {
                new += u64::from(self.seen.is_new(hash));
                match model.check(image, crash.tag) {
                    Ok(_) if lives_on && (nth == pick || wanted.is_some()) && boots.len() < reboots => {
                        let bytes = image.as_slice().to_vec();
                        boots.push(Boot { at: Stop::Image(at, number), bytes, model: model.clone() });
                    }
                    Ok(_) => {}
                    Err(what) => {
                        let path = format!("{path}{}", Stop::Image(at, number));
                        let seen = describe(image, &model.superblock);
                        return ControlFlow::Break(Failure {
                            path,
                            operation,
                            point: crash.point.name(),
                            what,
                            seen,
                        });
                    }
                }
                nth += 1;
                ControlFlow::Continue(())
            });
            *self.counts.entry(key).or_default() += new;
            self.crashes += 1;
            if let ControlFlow::Break(failure) = ended {
                return Err(failure);
            }
            explorer.step();
        }
        Ok(boots)
    }
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stop::Life(n) => write!(f, "/{n}"),
            Stop::Image(crash, image) => write!(f, ":{crash}.{image}"),
        }
    }
}

/// Parts of a path behind workload and seed.
fn depth_of(path: &str) -> usize {
    path.matches(['/', ':']).count()
}

/// Reads a path: workload, seed, parts.
pub fn parse(path: &str) -> Option<(String, u64, Vec<Stop>)> {
    let end = path.find(['/', ':']).unwrap_or(path.len());
    let (name, seed) = path[..end].rsplit_once('@')?;
    let mut stops = Vec::new();
    let mut rest = &path[end..];
    while !rest.is_empty() {
        let next = rest[1..].find(['/', ':']).map_or(rest.len(), |at| at + 1);
        let part = &rest[1..next];
        stops.push(match part.split_once('.') {
            Some((crash, image)) if rest.starts_with(':') => {
                Stop::Image(crash.parse().ok()?, image.parse().ok()?)
            }
            None if rest.starts_with('/') => Stop::Life(part.parse().ok()?),
            _ => return None,
        });
        rest = &rest[next..];
    }
    Some((name.to_string(), seed.parse().ok()?, stops))
}
