//! The commit protocol under power cuts: every state that a crash may leave is restored from, and each flush is left
//! out in turn to see that a check notices.
//!
//! The simulated place remembers, for each name and each file's content that is not certainly durable, all values it
//! has had since it last was. After a crash each may have any of them, independently of the others; content that was
//! being written may also be torn. That is more than file systems do, which keep some order.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_log::{Dims, Dtype, NdBox};
use forebay_tier::{Durability, Error, Kind, Result, TierKind};

use crate::format::{damaged, StepId, Variable, CHUNK_BYTES};
use crate::level::load::Wanted;
use crate::level::{Keep, Level, Packing, Piece};
use crate::place::{Blob, Part, Place, Written};
use crate::restore::Search;
use crate::run::{Comer, Run};
use std::sync::Arc;

/// Most combinations that are all tried at one crash.
const EXHAUSTIVE_MAX: u64 = 512;
/// Random ones beyond.
const SAMPLES: u64 = 200;

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Directory,
    File(usize),
}

/// All values that something may have after a crash: the durable one first, the current one last.
type Values<T> = Vec<T>;

#[derive(Clone, Default)]
pub(crate) struct World {
    pub(crate) names: BTreeMap<String, Values<Option<Target>>>,
    pub(crate) files: Vec<Values<Arc<Vec<u8>>>>,
    pub(crate) spares: Vec<String>,
    /// What was flushed: contents, and directories where something was to be flushed, in order.
    pub(crate) flushed: Vec<String>,
    /// The flush that is left out.
    pub(crate) flaw: Option<usize>,
    /// The newest step that was acknowledged.
    pub(crate) acknowledged: Option<u64>,
    /// The newest step whose redundancy was complete.
    pub(crate) protected: Option<u64>,
}

/// The place, and the states that crashes at each of its moments begin from.
#[derive(Default)]
pub(crate) struct Sim {
    pub(crate) world: Mutex<World>,
    pub(crate) crashes: Mutex<Vec<World>>,
    /// Its crashes are not wanted.
    pub(crate) quiet: bool,
    /// What another rank does meanwhile, and when.
    pub(crate) overtake: Mutex<Option<(When, Overtake)>>,
}

/// When another rank goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// As soon as a commit record has its name, which is not durable yet.
    Committed,
    /// As soon as this file was read.
    Loaded(String),
}

pub(crate) type Overtake = Box<dyn FnOnce() + Send>;

impl World {
    pub(crate) fn now(&self, name: &str) -> Option<Target> {
        *self.names.get(name)?.last()?
    }

    pub(crate) fn set(&mut self, name: &str, target: Option<Target>) {
        self.names.entry(name.to_string()).or_insert_with(|| vec![None]).push(target);
    }

    /// Whether this flush is made.
    fn flushes_now(&mut self, what: &str) -> bool {
        self.flushed.push(what.to_string());
        self.flaw != Some(self.flushed.len() - 1)
    }
}

pub(crate) fn parent(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

impl Sim {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A moment at which the power may fail.
    pub(crate) fn moment(&self, world: &World) {
        if !self.quiet {
            self.crashes.lock().unwrap().push(world.clone());
        }
    }

    fn put(&self, name: &str, content: Vec<u8>) {
        let mut world = self.world();
        let file = match world.now(name) {
            Some(Target::File(file)) => file,
            _ => {
                world.files.push(vec![Arc::default()]);
                let file = world.files.len() - 1;
                world.set(name, Some(Target::File(file)));
                file
            }
        };
        let mut torn = world.files[file].last().unwrap().to_vec();
        torn.resize(content.len(), 0);
        let half = content.len() / 2;
        torn[..half].copy_from_slice(&content[..half]);
        world.files[file].push(Arc::new(torn));
        self.moment(&world);
        world.files[file].push(Arc::new(content));
        self.moment(&world);
        if world.flushes_now(name) {
            let now = world.files[file].last().unwrap().clone();
            world.files[file] = vec![now];
        }
        self.moment(&world);
    }

    fn be_overtaken(&self, now: &When) {
        let overtake = self.overtake.lock().unwrap().take_if(|(when, _)| when == now);
        overtake.into_iter().for_each(|(_, overtake)| overtake());
    }

    fn content(&self, name: &str) -> Option<Arc<Vec<u8>>> {
        let world = self.world();
        match world.now(name)? {
            Target::File(file) => world.files[file].last().cloned(),
            Target::Directory => None,
        }
    }
}

struct Bytes(Arc<Vec<u8>>);

impl Blob for Bytes {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = offset as usize;
        let from = self.0.get(at..at + out.len()).ok_or_else(|| damaged("a file", "it is too short"))?;
        out.copy_from_slice(from);
        Ok(())
    }
}

impl Place for Sim {
    fn describe(&self) -> String {
        "simulated".into()
    }

    fn tier(&self) -> TierKind {
        TierKind::File
    }

    fn durability(&self) -> Durability {
        Durability::Power
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        let mut world = self.world();
        if world.now(dir).is_none() {
            world.set(dir, Some(Target::Directory));
            self.moment(&world);
        }
        Ok(())
    }

    fn store_data(
        &self,
        name: &str,
        bytes: u64,
        parts: &[Part<'_>],
    ) -> Result<(Vec<Vec<u32>>, Option<Written>)> {
        let mut world = self.world();
        let level = parent(parent(name)).to_string();
        let spare = world.spares.iter().position(|spare| parent(spare) == level);
        let spare = spare.map(|at| world.spares.swap_remove(at));
        drop(world);
        if let Some(spare) = spare {
            self.rename(&spare, name)?;
        }
        let mut content = vec![0; bytes as usize];
        let mut sums = Vec::new();
        for part in parts {
            let at = part.offset as usize;
            content[at..at + part.bytes.len()].copy_from_slice(part.bytes);
            sums.push(part.bytes.chunks(CHUNK_BYTES).map(forebay_tier::checksum::crc32c).collect());
        }
        self.put(name, content);
        Ok((sums, None))
    }

    fn store(&self, name: &str, content: &[u8]) -> Result<()> {
        self.put(name, content.to_vec());
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut world = self.world();
        let target = world.now(from).ok_or_else(|| Error::new(Kind::Io, "no such file"))?;
        world.set(to, Some(target));
        world.set(from, None);
        self.moment(&world);
        drop(world);
        if to.ends_with("/commit") {
            self.be_overtaken(&When::Committed);
        }
        Ok(())
    }

    fn sync(&self, dir: &str) -> Result<()> {
        let mut world = self.world();
        let open =
            |(name, values): (&String, &Values<Option<Target>>)| parent(name) == dir && values.len() > 1;
        if world.names.iter().any(open) && world.flushes_now(dir) {
            for (name, values) in &mut world.names {
                if parent(name) == dir {
                    values.drain(..values.len() - 1);
                }
            }
        }
        self.moment(&world);
        Ok(())
    }

    fn load(&self, name: &str, _: u64) -> Result<Option<Vec<u8>>> {
        let content = self.content(name).map(|content| content.to_vec());
        self.be_overtaken(&When::Loaded(name.to_string()));
        Ok(content)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Blob>>> {
        Ok(self.content(name).map(|content| Box::new(Bytes(content)) as Box<dyn Blob>))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let world = self.world();
        if !dir.is_empty() && world.now(dir).is_none() {
            return Ok(Vec::new());
        }
        let there = world.names.keys().filter(|name| parent(name) == dir && world.now(name).is_some());
        Ok(there.map(|name| name.rsplit('/').next().unwrap().to_string()).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut world = self.world();
        if world.now(name).is_some() {
            world.set(name, None);
            self.moment(&world);
        }
        Ok(())
    }

    fn retire(&self, name: &str) -> Result<bool> {
        if self.world().now(name).is_some() {
            let number = self.world().flushed.len();
            let spare = format!("{}/spare-{number}", parent(parent(name)));
            let spare = spare.trim_start_matches('/').to_string();
            self.rename(name, &spare)?;
            self.world().spares.push(spare);
        }
        Ok(true)
    }

    fn remove_dir(&self, dir: &str) -> Result<bool> {
        self.remove(dir).map(|()| true)
    }
}

/// A random number generator for the samples: xorshift, seeded by the crash's number.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// Every image that a crash at this state may leave, as far as they are not too many.
pub(crate) fn images(world: &World, seed: u64) -> Vec<World> {
    let lengths: Vec<u64> = world
        .names
        .values()
        .map(|values| values.len() as u64)
        .chain(world.files.iter().map(|values| values.len() as u64))
        .collect();
    let all = lengths.iter().try_fold(1u64, |product, n| product.checked_mul(*n)).unwrap_or(u64::MAX);
    let mut random = Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let exhaustive = all <= EXHAUSTIVE_MAX;
    let count = if exhaustive { all } else { SAMPLES };
    let mut found = Vec::new();
    for number in 0..count {
        let mut rest = number;
        let mut choose = |n: u64| match (exhaustive, number) {
            (true, _) => {
                let choice = rest % n;
                rest /= n;
                choice
            }
            // Both extremes, then chance.
            (false, 0) => 0,
            (false, 1) => n - 1,
            (false, _) => random.below(n),
        };
        let mut image =
            World { acknowledged: world.acknowledged, protected: world.protected, ..World::default() };
        for (name, values) in &world.names {
            image.names.insert(name.clone(), vec![values[choose(values.len() as u64) as usize]]);
        }
        for values in &world.files {
            image.files.push(vec![values[choose(values.len() as u64) as usize].clone()]);
        }
        found.push(image);
    }
    found
}

pub(crate) const LENGTH: usize = 100;

/// What is saved, and how.
#[derive(Clone, Copy, Debug)]
struct Case {
    size: u32,
    packing: Packing,
}

/// Full steps of one and of two ranks; then a full one and two that stand on it, and so on, also compressed.
fn cases() -> Vec<Case> {
    let case = |size, full_every, zstd| Case { size, packing: Packing { full_every, zstd } };
    vec![case(1, 0, None), case(2, 0, None), case(1, 3, None), case(2, 3, None), case(1, 3, Some(1))]
}

const STEPS: u64 = 4;

/// `fast` changes with every step, the others with every third: less than three quarters of the whole.
pub(crate) fn variables(rank: u32, size: u32) -> Vec<Variable> {
    let shape = [LENGTH as u64 * u64::from(size)];
    let part = NdBox::new(&[LENGTH as u64 * u64::from(rank)], &[LENGTH as u64]).unwrap();
    let variable = |name: &str| Variable {
        name: name.into(),
        dtype: Dtype::U8,
        shape: Dims::from_slice(&shape),
        part: part.clone(),
    };
    ["fast", "slow", "still"].map(variable).to_vec()
}

pub(crate) fn bytes_of(nth: usize, step: u64, rank: u32) -> Vec<u8> {
    let changed = if nth == 0 { step } else { (step - 1) / 3 * 3 + 20 * nth as u64 };
    (0..LENGTH).map(|i| (changed * 37 + u64::from(rank) * 11 + i as u64 * 3) as u8).collect()
}

/// Saves some steps, with the flush `flaw` left out; the states that crashes begin from.
fn workload(case: Case, flaw: Option<usize>) -> (Vec<World>, usize) {
    let Case { size, packing } = case;
    let sim = Arc::new(Sim::default());
    sim.world().flaw = flaw;
    // What each rank knows is its own.
    let level = |_| Level { packing, ..Level::new(sim.clone(), Keep::last(2)) };
    let levels: Vec<Level> = (0..size).map(level).collect();
    for step in 1..=STEPS {
        let id = StepId { incarnation: 1, step };
        for (rank, level) in (0..size).zip(&levels) {
            level.reclaim(3 * LENGTH as u64, rank, 1, &[]).unwrap();
            let variables = variables(rank, size);
            let bytes: Vec<Vec<u8>> = (0..3).map(|nth| bytes_of(nth, step, rank)).collect();
            let piece = Piece {
                id,
                rank,
                size,
                saved_unix_ns: step,
                program: "",
                variables: &variables,
                sources: &bytes.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                metric: None,
            };
            let (manifest, _) = level.write(&piece).unwrap();
            let on = manifest.base.map(|base| base.step);
            let first = (step - 1) / 3 * 3 + 1;
            assert_eq!(on, (packing.full_every > 0 && step > first).then_some(first), "{case:?} {step}");
            let committed = level.commit(id, rank, size, &|| Ok(())).unwrap();
            assert_eq!(committed, rank + 1 == size);
        }
        let mut world = sim.world();
        world.acknowledged = Some(step);
        sim.moment(&world);
    }
    let flushes = sim.world().flushed.len();
    let crashes = std::mem::take(&mut *sim.crashes.lock().unwrap());
    (crashes, flushes)
}

/// Two ranks save some steps. As soon as rank 1 has given a commit record its name, rank 0 finds it, acknowledges the
/// step if it `acknowledges`, and drops older steps for the next one, all before rank 1 goes on.
fn overtaken(keep: usize, packing: Packing, acknowledges: bool) -> Vec<World> {
    let sim = Arc::new(Sim::default());
    let level = |_| Level { packing, ..Level::new(sim.clone(), Keep::last(keep)) };
    let levels: Vec<Level> = (0..2).map(level).collect();
    for step in 1..=STEPS {
        let id = StepId { incarnation: 1, step };
        for (rank, level) in (0..2).zip(&levels) {
            level.reclaim(3 * LENGTH as u64, rank, 1, &[]).unwrap();
            let bytes: Vec<Vec<u8>> = (0..3).map(|nth| bytes_of(nth, step, rank)).collect();
            let piece = Piece {
                id,
                rank,
                size: 2,
                saved_unix_ns: step,
                program: "",
                variables: &variables(rank, 2),
                sources: &bytes.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                metric: None,
            };
            level.write(&piece).unwrap();
            if rank == 1 {
                let (sim, other) = (sim.clone(), levels[0].clone());
                let place = sim.clone();
                let overtake = move || {
                    if acknowledges {
                        assert!(other.commit(id, 0, 2, &|| Ok(())).unwrap());
                        let mut world = place.world();
                        world.acknowledged = Some(step);
                        place.moment(&world);
                    }
                    other.reclaim(3 * LENGTH as u64, 0, 1, &[]).unwrap();
                };
                *sim.overtake.lock().unwrap() = Some((When::Committed, Box::new(overtake)));
            }
            assert_eq!(level.commit(id, rank, 2, &|| Ok(())).unwrap(), rank == 1);
        }
        let mut world = sim.world();
        world.acknowledged = Some(step);
        sim.moment(&world);
    }
    let crashes = std::mem::take(&mut *sim.crashes.lock().unwrap());
    crashes
}

/// Restores from an image as one process; what is wrong with the outcome, if something is.
fn judge(image: World, run: &Run, size: u32) -> Option<String> {
    let acknowledged = image.acknowledged.unwrap_or(0);
    let sim = Arc::new(Sim { world: Mutex::new(image), quiet: true, ..Sim::default() });
    let levels = [Level::new(sim, Keep::last(2))];
    let whole = |variable: Variable| Variable { part: NdBox::whole(&variable.shape), ..variable };
    let variables: Vec<Variable> = variables(0, size).into_iter().map(whole).collect();
    let mut out = vec![vec![0; LENGTH * size as usize]; 3];
    let mut targets: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    let search = Search { levels: &levels, run, rank: 0, size: 1, number: 1, saved: None, only: None };
    let restored = search.restore(&mut Wanted { variables: &variables, targets: &mut targets });
    match restored {
        Ok(None) if acknowledged == 0 => None,
        Ok(None) => Some(format!("step {acknowledged} was acknowledged, and nothing is there")),
        // Before anything was acknowledged a step in the making may be refused.
        Err(_) if acknowledged == 0 => None,
        Err(e) => Some(format!("step {acknowledged} was acknowledged: {e}")),
        Ok(Some(found)) if found.step < acknowledged => {
            Some(format!("step {acknowledged} was acknowledged, and this came: {found}"))
        }
        Ok(Some(found)) => {
            let right =
                |nth| -> Vec<u8> { (0..size).flat_map(|rank| bytes_of(nth, found.step, rank)).collect() };
            (0..3).any(|nth| out[nth] != right(nth)).then(|| format!("not the bytes of {found}"))
        }
    }
}

/// The first thing that is wrong after any crash of a workload.
fn first_fault(case: Case, flaw: Option<usize>, run: &Run) -> (Option<String>, u64) {
    first_fault_of(&workload(case, flaw).0, case.size, flaw, run)
}

/// As [`first_fault`], of crashes that were made.
fn first_fault_of(crashes: &[World], size: u32, flaw: Option<usize>, run: &Run) -> (Option<String>, u64) {
    let mut seen = 0;
    // Before the flush that is left out nothing is different.
    let touched = |crash: &&World| flaw.is_none_or(|flaw| crash.flushed.len() > flaw);
    for (at, crash) in crashes.iter().filter(touched).enumerate() {
        for image in images(crash, at as u64) {
            seen += 1;
            if let Some(fault) = judge(image, run, size) {
                return (Some(format!("crash {at}: {fault}")), seen);
            }
        }
    }
    (None, seen)
}

pub(crate) fn run_in(dir: &std::path::Path) -> Run {
    let comer = Comer {
        rank: 0,
        size: 1,
        program: "",
        launch: "",
        levels: &[],
        // What is saved below is of run 1.
        highest_seen: &|| Ok(1),
        timeout: Duration::from_secs(20),
    };
    Run::join(dir, &comer).unwrap()
}

#[test]
fn after_every_crash_the_newest_acknowledged_step_or_a_newer_one_comes_back_whole() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let run = run_in(dir.path());
    for case in cases() {
        let (fault, seen) = first_fault(case, None, &run);
        assert_eq!(fault, None, "{case:?}");
        assert!(seen > 1000, "{seen} images of {case:?}");
    }
}

#[test]
fn a_step_that_another_rank_commits_is_relied_on_only_when_its_names_are_durable() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let run = run_in(dir.path());
    for (keep, full_every, acknowledges) in [(1, 0, true), (1, 0, false), (2, 3, true), (1, 3, false)] {
        let crashes = overtaken(keep, Packing { full_every, zstd: None }, acknowledges);
        let (fault, seen) = first_fault_of(&crashes, 2, None, &run);
        assert_eq!(fault, None, "keep={keep}, incremental={full_every}, acknowledges={acknowledges}");
        assert!(seen > 1000, "{seen} images");
    }
}

#[test]
fn each_flush_is_needed() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let run = run_in(dir.path());
    // Compressed bytes are flushed as others are.
    for case in cases().into_iter().filter(|case| case.packing.zstd.is_none()) {
        let (_, flushes) = workload(case, None);
        assert_eq!(
            flushes,
            STEPS as usize * (3 + 2 * case.size as usize),
            "data and manifest of each rank, record, two directories"
        );
        for flaw in 0..flushes {
            let (fault, _) = first_fault(case, Some(flaw), &run);
            assert!(fault.is_some(), "flush {flaw} of {flushes} is superfluous or not covered: {case:?}");
        }
    }
}

/// A rank goes through the open steps of its run, and others go on meanwhile: what they have dropped is not missed.
#[test]
fn a_step_that_others_commit_and_drop_meanwhile_is_no_damage() {
    let sim = Arc::new(Sim { quiet: true, ..Sim::default() });
    let packing = Packing { full_every: 7, zstd: None };
    let level = |_| Level { packing, ..Level::new(sim.clone(), Keep::last(1)) };
    let levels: Vec<Level> = (0..2).map(level).collect();
    let id = |step| StepId { incarnation: 1, step };
    fn write(level: &Level, id: StepId, rank: u32) {
        // The third step is another one as a whole.
        let bytes: Vec<u8> = (0..4)
            .flat_map(|chunk| vec![if chunk == 0 { id.step as u8 } else { (id.step / 3) as u8 }; CHUNK_BYTES])
            .collect();
        let piece = Piece {
            id,
            rank,
            size: 2,
            saved_unix_ns: 0,
            program: "",
            variables: &[Variable {
                name: "u".into(),
                dtype: Dtype::U8,
                shape: Dims::from_slice(&[bytes.len() as u64]),
                part: NdBox::whole(&[bytes.len() as u64]),
            }],
            sources: &[&bytes],
            metric: None,
        };
        level.write(&piece).unwrap();
    }
    for (rank, level) in (0..2).zip(&levels) {
        write(level, id(1), rank);
        assert_eq!(level.commit(id(1), rank, 2, &|| Ok(())).unwrap(), rank == 1);
    }
    // Rank 0 is two steps ahead.
    write(&levels[0], id(2), 0);
    write(&levels[0], id(3), 0);
    write(&levels[1], id(2), 1);
    let other = levels[1].clone();
    let overtake = move || {
        assert!(other.commit(id(2), 1, 2, &|| Ok(())).unwrap());
        write(&other, id(3), 1);
        assert!(other.commit(id(3), 1, 2, &|| Ok(())).unwrap());
        other.prune(1, 1, 1).unwrap();
    };
    let when = When::Loaded("s0000000002-r000001/00001.manifest".into());
    *sim.overtake.lock().unwrap() = Some((when, Box::new(overtake)));
    levels[0].commit_whole((0, 2), 1, &|| Ok(())).unwrap();
    assert!(sim.overtake.lock().unwrap().is_none(), "rank 1 came in between");
    assert_eq!(levels[0].steps().unwrap()[0].id, id(3));
    levels[0].prune(1, 0, 1).unwrap();
    let left: Vec<StepId> = levels[0].steps().unwrap().iter().map(|found| found.id).collect();
    assert_eq!(left, [id(3)]);
}
