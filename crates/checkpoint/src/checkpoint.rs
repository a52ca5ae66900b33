//! `Checkpoint`: protect arrays, save them step by step, go on from the newest step that is whole.
//!
//! Blocking: `save` returns when the first level holds this rank's piece; with a level of memory in front that is one
//! copy in memory. It waits longer when that level is full: until the drain has carried an earlier step down
//! (back-pressure), at most until the deadline. Durability: that of the first level when `save` returns and all ranks
//! have saved; of lower levels, and against the loss of nodes where a level has redundancy, after `wait`. An end of the
//! program waits for the drain.
//!
//! Memory of the program is never kept: `save` and `restore` get it anew each time, in the order of `protect`.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_log::{Dims, Dtype, NdBox};
use forebay_tier::adapter::fault::FaultCounts;
use forebay_tier::host::time::Instant;
use forebay_tier::liveness::SlotGuard;
use forebay_tier::process::ForkMark;
use forebay_tier::{Error, Kind, Result, TierKind};

use crate::drain::{Drain, Job};
use crate::format::{StepId, Variable, NAME_BYTES_MAX};
use crate::level::keep::check_metric;
use crate::level::load::Wanted;
use crate::level::{arrange, Level, LevelInfo, Piece};
use crate::options::Asked;
use crate::place::{is_pattern, make_own, object_store, of_node, Directory, Own, Place};
use crate::restore::{Restored, Search};
use crate::run::memory::attend;
use crate::run::{Comer, Run};
use crate::when::statistics::{follow, Statistics};
use crate::when::{advice, Policy};
use crate::Options;

/// See the file's head.
pub struct Checkpoint {
    levels: Vec<Level>,
    infos: Vec<LevelInfo>,
    run: Arc<Run>,
    drain: Drain,
    options: Options,
    variables: Vec<Variable>,
    /// The newest step that this process saved.
    saved: Option<StepId>,
    /// The newest step of which it may have written something; it may have of older ones too.
    attempted: Option<StepId>,
    searches: u64,
    /// The last search failed, and nothing was saved since.
    gave_up: bool,
    closed: bool,
    mark: ForkMark,
    policy: Policy,
    /// When the last save ended, or this was opened.
    last_save: Instant,
    statistics: Statistics,
    /// Levels of memory are not cleaned away while these are held.
    _attended: Vec<SlotGuard>,
}

impl Checkpoint {
    /// Opens the checkpoint directory `path`, made if it is missing, as one rank of a new run.
    ///
    /// # Errors
    /// `Usage`; `NameInUse` when a live process holds this rank; `OptionMismatch` when another program saves there;
    /// `UnknownFormat`; `NotPossibleHere` for a tier that a level's directory is not on; `PermissionDenied`, also where
    /// the directory or that of a level is another user's or writable by others; `Io`.
    pub fn open(path: &Path, options: &Options) -> Result<Checkpoint> {
        if options.rank >= options.size || options.size > crate::format::SIZE_MAX {
            return Err(Error::new(Kind::Usage, "the rank is not below the size")
                .with("rank", options.rank)
                .with("size", options.size));
        }
        let policy = Policy::new(&options.when)?;
        make_own(path)?;
        let base = path.canonicalize();
        let base = base.map_err(|e| Error::io(format!("cannot resolve the path {}", path.display()), e))?;
        let infos = Asked(options).levels_of(&base)?;
        let counts = Arc::new(FaultCounts::default());
        let mut levels = Vec::new();
        for info in &infos {
            levels.push(level(info, options, &counts)?);
        }
        let highest_seen = || {
            let steps: Result<Vec<_>> = levels.iter().map(|(level, _)| level.steps()).collect();
            Ok(steps?.iter().flatten().map(|found| found.id.incarnation).max().unwrap_or(0))
        };
        let comer = Comer {
            rank: options.rank,
            size: options.size,
            program: &options.program,
            launch: &options.launch,
            levels: &infos,
            highest_seen: &highest_seen,
            timeout: options.timeout,
        };
        let run = Arc::new(Run::join(&base, &comer)?);
        let mut attended = Vec::new();
        for info in infos.iter().filter(|info| info.tier.is_memory()) {
            attended.push(attend(&info.root(), &base, options.rank, options.size, options.timeout)?);
        }
        // Only now that no other process has this rank.
        levels.iter().filter_map(|(_, own)| own.as_ref()).try_for_each(|own| own.adopt_spares())?;
        let levels: Vec<Level> = levels.into_iter().map(|(level, _)| level).collect();
        let drain = Drain::start(&levels, &run, options.rank)?;
        Ok(Checkpoint {
            levels,
            infos,
            run,
            drain,
            options: options.clone(),
            variables: Vec::new(),
            saved: None,
            attempted: None,
            searches: 0,
            gave_up: false,
            closed: false,
            mark: ForkMark::here(),
            policy,
            last_save: Instant::now(),
            statistics: Statistics::default(),
            _attended: attended,
        })
    }

    /// Says that an array is part of every step: `part` of a variable of this global shape. A variable that every rank
    /// holds whole is restored from the same rank's piece.
    ///
    /// # Errors
    /// `BadName`, `BoxOutsideShape`; `Usage` for a name that is protected already.
    pub fn protect(&mut self, name: &str, dtype: Dtype, shape: &[u64], part: &NdBox) -> Result<()> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::new(Kind::BadName, "a name has 1 to 1024 bytes").with("bytes", name.len()));
        }
        if self.variables.iter().any(|variable| variable.name == name) {
            return Err(Error::new(Kind::Usage, format!("{name} is protected already")));
        }
        part.check_inside(name, shape)?;
        part.bytes(dtype.size())?;
        self.variables.push(Variable {
            name: name.to_string(),
            dtype,
            shape: Dims::from_slice(shape),
            part: part.clone(),
        });
        Ok(())
    }

    /// The arrays that are part of every step, in the order of `protect`.
    pub fn variables(&self) -> &[Variable] {
        &self.variables
    }

    /// The levels, the fastest first.
    pub fn levels(&self) -> &[LevelInfo] {
        &self.infos
    }

    /// What an acknowledged step survives in a level, in the user's words.
    pub fn durability(&self, level: usize) -> forebay_tier::Durability {
        self.levels[level].place.durability()
    }

    /// The number of this run.
    pub fn run(&self) -> u64 {
        self.run.incarnation
    }

    /// What was done so far.
    pub fn statistics(&self) -> Statistics {
        Statistics { carried_s: self.drain.carried_s(), ..self.statistics }
    }

    /// Allocates the space for two pieces in the first level, so that the first saves take no longer than later ones.
    /// Blocks while pages are allocated (some 0.2 ms per MiB on memory).
    ///
    /// # Errors
    /// `TierFull`.
    pub fn prepare(&self) -> Result<()> {
        self.levels[0].place.prepare(self.piece_bytes()?)
    }

    /// Bytes of this rank's data file.
    fn piece_bytes(&self) -> Result<u64> {
        let mut lengths = Vec::new();
        for variable in &self.variables {
            lengths.push(variable.bytes()? as u64);
        }
        Ok(arrange(lengths).1)
    }

    /// Saves the protected arrays as they are now; see the file's head for when it returns. `sources` are their bytes
    /// in the order of `protect`; `step` is larger than every step this run saved before. A call that failed may be
    /// made again, or the next step saved instead; what was committed before is not touched.
    ///
    /// # Errors
    /// `BufferMismatch`; `VersionOutOfOrder`, also for a step that was not written before a later one was;
    /// `TierFull` and others of the first level, which keeps its older steps;
    /// `VersionExists` when a call that failed has left the step with other bytes, and it counts or may yet;
    /// `NotPossibleHere` where the run has too few nodes for a level's redundancy;
    /// a failure of the drain since the last call (this step was not saved then, the next call tries again);
    /// `TimedOut` when no space is freed before the deadline; `Fenced`.
    pub fn save(&mut self, step: u64, sources: &[&[u8]]) -> Result<()> {
        self.save_with(step, sources, None)
    }

    /// As [`Checkpoint::save`], with a value that says how good the step is, by which levels with `best=` choose what
    /// they keep. Of several ranks rank 0's value counts.
    ///
    /// # Errors
    /// As there; `Usage` for a value that is not a number.
    pub fn save_with(&mut self, step: u64, sources: &[&[u8]], metric: Option<f64>) -> Result<()> {
        let begin = Instant::now();
        self.check_open()?;
        metric.map_or(Ok(()), check_metric)?;
        self.check_lengths(sources.iter().map(|source| source.len()))?;
        let id = StepId { incarnation: self.run.incarnation, step };
        if let Some(last) = self.saved.filter(|last| *last >= id) {
            return Err(Error::new(
                Kind::VersionOutOfOrder,
                format!("step {step} is not after step {}", last.step),
            )
            .hint("each step is saved once, in rising order; to go back, restart from an older step"));
        }
        if let Some(failure) = self.drain.take_failure() {
            return Err(failure);
        }
        self.infos.iter().try_for_each(|info| Asked(&self.options).check_nodes(info))?;
        let (rank, size) = (self.options.rank, self.options.size);
        let piece = Piece {
            id,
            rank,
            size,
            saved_unix_ns: unix_ns(),
            program: &self.options.program,
            variables: &self.variables,
            sources,
            metric,
        };
        let level = &self.levels[0];
        let may_be_there = self.attempted.is_some_and(|newest| id <= newest);
        self.attempted = self.attempted.max(Some(id));
        let published = if may_be_there { level.published(&piece)? } else { None };
        let (manifest, written) = match published {
            Some(manifest) => (manifest, None),
            None => {
                if may_be_there {
                    level.check_newest(&piece)?;
                }
                self.reclaim()?;
                level.write(&piece)?
            }
        };
        let committed = level.commit(id, rank, size, &|| self.run.check())?;
        // From here on the step counts. What fails beside it is told by the next call, and not by this one, which
        // would be made again.
        self.saved = Some(id);
        self.gave_up = false;
        if committed {
            self.drain.note(self.run.acknowledge(0, id));
        }
        let pin = (written.is_none() && self.levels.len() > 1).then(|| level.pin(&manifest));
        self.drain.push(Job { manifest, written, metric, _pin: pin });
        self.last_save = Instant::now();
        let took = self.last_save - begin;
        self.statistics.saves += 1;
        self.statistics.blocked += took;
        self.statistics.cost_s = follow(self.statistics.cost_s, took.as_secs_f64());
        if self.options.rank == 0 && self.statistics.saves.is_power_of_two() {
            self.drain.note(advice::write(self.run.base(), &self.statistics()));
        }
        Ok(())
    }

    /// Whether this step is to be saved, as the rules in the options say. All ranks ask for the same steps in the same
    /// order, and get the same answer. Cheap: a look at the clock; of several ranks also at a small file.
    ///
    /// # Errors
    /// `TimedOut` when rank 0 does not come to the step; `VersionOutOfOrder` when it is far ahead; `ProducerDied`.
    pub fn need(&self, step: u64) -> Result<bool> {
        self.check_open()?;
        let costs = (self.statistics.cost_s.max(1e-6), self.drain.carried_s());
        let since = self.last_save.elapsed();
        self.policy.need(step, since, costs, self.options.rank, self.options.size, &self.run)
    }

    /// Waits until the first level has space for one more piece.
    fn reclaim(&self) -> Result<()> {
        let (level, rank) = (&self.levels[0], self.options.rank);
        let bytes = self.piece_bytes()?;
        let run = self.run.incarnation;
        self.run.check()?;
        let fence = || self.run.check();
        let make = || Ok(level.reclaim(bytes, rank, run, &self.levels[1..])?.then_some(()));
        while make()?.is_none() {
            level.commit_whole((rank, self.options.size), run, &fence)?;
            if !self.drain.is_idle() {
                self.drain.wait_one(self.options.timeout)?;
                continue;
            }
            // No rank on this node holds the copy: other ranks have not saved the step before.
            self.run.wait(
                "the first level has no free space before other ranks have saved the last step",
                make,
            )?;
        }
        Ok(())
    }

    /// Waits until the newest saved step is committed by all ranks in every level, and its redundancy there complete.
    /// Returns that step; None when nothing was saved.
    ///
    /// # Errors
    /// What went wrong on the way down; `TimedOut`; `ProducerDied`.
    pub fn wait(&mut self) -> Result<Option<u64>> {
        let mut newest = None;
        for level in (0..self.levels.len()).rev() {
            let last = level + 1 == self.levels.len();
            if last || self.levels[level].guard.is_some() {
                newest = self.wait_level(level)?;
            }
        }
        Ok(newest)
    }

    /// As [`Checkpoint::wait`] for one level.
    ///
    /// # Errors
    /// As [`Checkpoint::wait`].
    pub fn wait_level(&mut self, level: usize) -> Result<Option<u64>> {
        self.check_open()?;
        let Some(id) = self.saved else { return Ok(None) };
        self.drain.wait_reached(level, id, self.options.timeout)?;
        let (rank, size) = (self.options.rank, self.options.size);
        if size > 1 {
            let what = format!("step {} is not committed: other ranks have not saved it", id.step);
            self.run.wait(&what, || {
                let here = self.levels[level].commit(id, rank, size, &|| self.run.check())?;
                // Where there is space for one piece only, it may have gone down already.
                let below = || self.levels[level + 1..].iter().any(|l| l.is_committed(id));
                Ok((here || below()).then_some(()))
            })?;
        }
        if self.levels[level].guard.is_some() {
            self.run.wait("the redundancy of the newest step is not complete", || {
                self.drain.take_failure().map_or(Ok(()), Err)?;
                let gone = || !self.levels[level].is_committed(id);
                Ok((self.levels[level].is_protected(id)? || gone()).then_some(()))
            })?;
        }
        Ok(Some(id.step))
    }

    /// The newest step of this process whose piece a level has.
    pub fn reached(&self, level: usize) -> Option<u64> {
        self.drain.reached(level).map(|id| id.step)
    }

    /// Loads the newest step that is whole into `targets`, the bytes of the protected arrays in their order. All ranks
    /// call it, and all get the same step; None when nothing was ever saved.
    ///
    /// # Errors
    /// The reason of the newest reject when no step could be taken; `VersionGone` when a step had been saved and no
    /// level has it; `UnknownVariable`, `VariableMismatch` when the program protects something else than was saved. The
    /// targets hold anything then.
    pub fn restore_latest(&mut self, targets: &mut [&mut [u8]]) -> Result<Option<Restored>> {
        self.search(None, targets)
    }

    /// As [`Checkpoint::restore_latest`] for one step (of the newest run that has it).
    ///
    /// # Errors
    /// As there; `VersionGone` when no level has the step.
    pub fn restore(&mut self, step: u64, targets: &mut [&mut [u8]]) -> Result<Restored> {
        self.search(Some(step), targets)?.ok_or_else(|| {
            Error::new(Kind::VersionGone, format!("no level has step {step}"))
                .hint("forebay ckpt list PATH shows the steps that are there")
        })
    }

    fn search(&mut self, only: Option<u64>, targets: &mut [&mut [u8]]) -> Result<Option<Restored>> {
        self.check_open()?;
        self.check_lengths(targets.iter().map(|target| target.len()))?;
        self.searches += 1;
        let search = Search {
            levels: &self.levels,
            run: &self.run,
            rank: self.options.rank,
            size: self.options.size,
            number: self.searches,
            saved: self.saved,
            only,
        };
        let begin = Instant::now();
        let restored = search.restore(&mut Wanted { variables: &self.variables, targets });
        self.gave_up = restored.is_err();
        let restored = restored?;
        self.statistics.restore_s = begin.elapsed().as_secs_f64();
        Ok(restored)
    }

    /// Waits for the drain and leaves the run.
    ///
    /// # Errors
    /// What went wrong on the way down.
    pub fn close(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) || self.mark.is_forked() {
            return Ok(());
        }
        let drained = self.drain.finish();
        if self.options.rank == 0 && self.statistics.saves > 0 && drained.is_ok() {
            advice::write(self.run.base(), &self.statistics())?;
        }
        if std::thread::panicking() || self.gave_up {
            // This rank ends as one that died: the others are not to wait for its next step, nor is a rank of the next
            // start to join this run, which has come to nothing.
            return drained;
        }
        drained.and(self.run.close())
    }

    fn check_open(&self) -> Result<()> {
        self.mark.check("checkpoint")?;
        match self.closed {
            true => Err(Error::new(Kind::Closed, "the checkpoint is closed")),
            false => Ok(()),
        }
    }

    fn check_lengths(&self, lengths: impl ExactSizeIterator<Item = usize>) -> Result<()> {
        let mismatch = |text: String| Err(Error::new(Kind::BufferMismatch, text));
        if lengths.len() != self.variables.len() {
            return mismatch(format!(
                "{} buffers for {} protected arrays",
                lengths.len(),
                self.variables.len()
            ));
        }
        for (variable, bytes) in self.variables.iter().zip(lengths) {
            let expected = variable.bytes()?;
            if bytes != expected {
                return mismatch(format!("{} has {expected} bytes, its buffer {bytes}", variable.name));
            }
        }
        Ok(())
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            // There is no caller to return the error to.
            eprintln!("forebay: a checkpoint was not copied to the lower levels: {error}");
        }
    }
}

/// Opens a level as one rank; also the directory in it that is this rank's own, if it has one.
fn level(
    info: &LevelInfo,
    options: &Options,
    counts: &Arc<FaultCounts>,
) -> Result<(Level, Option<Arc<Directory>>)> {
    if info.tier == TierKind::Object {
        let place = object_store(&info.dir.to_string_lossy(), options.timeout)?;
        return Ok((Level { packing: info.packing, ..Level::new(place, info.keep) }, None));
    }
    let nodes = is_pattern(&info.dir)?;
    let node = Asked(options).node_of(info.ranks_per_node)?;
    let dir = if nodes { of_node(&info.dir, &node) } else { info.dir.clone() };
    let mut place = Directory::new(&dir, info.tier, &format!("{:05}", options.rank))?;
    if let Some(plan) = &options.faults {
        place = place.with_faults(plan.clone(), counts.clone());
    }
    let place = Arc::new(
        place.with_files_max(info.keep.last + 1, options.memory_bytes_max.filter(|_| info.tier.is_memory())),
    );
    if !nodes {
        let level = Level { packing: info.packing, ..Level::new(place.clone(), info.keep) };
        return Ok((level, Some(place)));
    }
    let faults = options.faults.clone().map(|plan| (plan, counts.clone()));
    let own = Own { rank: options.rank, node, place: place.clone() };
    Ok((Level::of_nodes(info, Some(own), faults, place.durability()), Some(place)))
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
