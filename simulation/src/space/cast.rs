//! Who takes part in a run, with which options, and what happens to them: everything that the seed decides beforehand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_space::{
    Absent, ExecutionMode, Horizon, Mode, OpenOptions, Retention, SpillTier, TierKind, Verify, WhenFull,
};
use forebay_tier::simulation::Random;

use crate::danger::Dangers;

/// The smallest granule of a simulated build.
pub const GRANULE_BYTES: u64 = 16 << 10;
/// No call waits longer for a peer, in virtual time.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a reader is away for which no versions are kept; the timeout of writers is half of it.
const AWAY: Duration = Duration::from_secs(4);
/// How long an idle writer makes no call.
pub const IDLE: Duration = Duration::from_secs(3);

/// What a failing run is tried with less of, in this order, and the values that are tried.
pub const SMALLER: [(&str, &[u64]); 39] = [
    ("checks", &[0]),
    ("removals", &[0]),
    ("crowd", &[0]),
    ("holds", &[0]),
    ("attributes", &[0]),
    ("cursorless", &[0]),
    ("drainers", &[0]),
    ("group_kills", &[0]),
    ("idle", &[0]),
    ("away", &[0]),
    ("aborts", &[0]),
    ("drains", &[0]),
    ("reserves", &[0]),
    ("absent", &[1]),
    ("execution_mode", &[0]),
    ("looks", &[0]),
    ("press", &[0]),
    ("cuts", &[0, 1]),
    ("interrupts", &[0]),
    ("company", &[0]),
    ("peeks", &[0]),
    ("third", &[0]),
    ("second", &[1, 2]),
    ("first", &[1, 2]),
    ("horizon", &[0]),
    ("leftovers", &[0, 1]),
    ("observers", &[0]),
    ("caretakers", &[0]),
    ("jumps", &[0]),
    ("faults", &[0]),
    ("stops", &[0, 1]),
    ("views", &[0]),
    ("heavy", &[0]),
    ("batch", &[0]),
    ("kills", &[0, 1, 2]),
    ("groups", &[1, 2]),
    ("readers", &[1, 2]),
    ("writers", &[1, 2, 3]),
    ("versions", &[1, 2, 3, 4, 6, 8]),
];

/// Pauses of readers and writers, kills of whole groups, drains, groups without cursors, attributes, crowds, views that
/// are held, groups that are removed.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Percentage of readers that close in the middle of the stream and return.
    pub away: u32,
    /// Writers make no call for longer than the timeout of the others, after some versions.
    pub idle: bool,
    /// Percentage of killed readers whose other ranks are killed as well, as by a launcher.
    pub group_kills: u32,
    /// Processes that drain while a new incarnation of writers takes over.
    pub drainers: u32,
    /// Most groups of other handles keep no cursors.
    pub cursorless: bool,
    /// The first writer sets an attribute of the space after each version.
    pub attributes: bool,
    /// Handles of each process that only has the space open, so that the table of members is full; 0: there is none.
    pub crowd: u32,
    /// Of a hundred versions that an observer looks at it holds a view of so many for a while.
    pub holds: u32,
    /// Percentage of killed readers after whose end the space is verified.
    pub checks: u32,
    /// Percentage of killed readers of declared groups whose group is removed then.
    pub removals: u32,
}

/// What the seed decides beforehand.
#[derive(Clone, Debug)]
pub struct Cast {
    /// The run.
    pub seed: u64,
    /// The run's folder.
    pub root: PathBuf,
    /// Writer ranks.
    pub writers: u32,
    /// Sizes of the reader groups.
    pub groups: Vec<u32>,
    /// Whether writers declare the groups.
    pub declared: bool,
    /// What a declared group means to the writers while it is away.
    pub absent: Absent,
    /// Versions of the stream, but for `press`.
    pub versions: u64,
    /// Granules of the quota.
    pub granules: u64,
    /// When versions go.
    pub retention: Retention,
    /// What happens when the space is full.
    pub when_full: WhenFull,
    /// Whether there is a lower tier.
    pub spills: bool,
    /// Tier of the first pool.
    pub first: TierKind,
    /// Tiers of the lower pools; none is made where the space does not spill.
    pub lower: [Option<TierKind>; 2],
    /// Granules of each lower pool but the last, which holds as much as the first one.
    pub lower_granules: u64,
    /// When stores are made persistent.
    pub horizon: Horizon,
    /// Small objects are gathered.
    pub batch_bytes: Option<u64>,
    /// Of a hundred lives of writers and readers so many have other handles of the space in the same process.
    pub company: u32,
    /// Readers open other versions beside the one of their step.
    pub peeks: bool,
    /// Observers that come and go.
    pub observers: u32,
    /// Processes that list, verify and clean.
    pub caretakers: u32,
    /// Processes that were killed before the run.
    pub leftovers: u32,
    /// What happens to the processes.
    pub dangers: Dangers,
    /// Views are kept over the end of a step.
    pub keeps_views: bool,
    /// Most versions fill a granule of each rank, so that a few fill the quota.
    pub is_heavy: bool,
    /// Who may be at work when.
    pub execution_mode: ExecutionMode,
    /// Of a hundred calls of writers and readers so many are followed by a look at what is said of the space.
    pub looks: u32,
    /// Of a hundred versions so many are begun with a piece that is filled in place.
    pub reserves: u32,
    /// Of a hundred versions so many are begun, and given up, several times before.
    pub aborts: u32,
    /// Caretakers mostly move down what dead writers left.
    pub drains: bool,
    /// So many versions more, all of them heavy: the quota is filled again and again.
    pub press: u64,
    /// See [`Behaviour`].
    pub behaviour: Behaviour,
}

impl Cast {
    /// The cast of a seed.
    pub fn new(seed: u64, root: &Path) -> Cast {
        let mut random = Random::new(seed, 7);
        let writers = *random.pick(&[1, 1, 2, 2, 3, 4, 5]);
        let groups = random.pick(&[vec![1], vec![1], vec![2], vec![1, 1], vec![3], vec![2, 1, 1]]).clone();
        let spills = random.percent(30);
        let retention = match random.below(10) {
            0 => Retention::Last(1 + random.below(4)),
            1 => Retention::Forever,
            _ => Retention::Released,
        };
        let when_full = match random.below(10) {
            0 | 1 if retention == Retention::Released => WhenFull::DropOldest,
            _ if spills => WhenFull::Spill,
            _ => WhenFull::Block,
        };
        let versions = 2 + random.below(12);
        let per_rank = 3 + random.below(6);
        // Nothing goes by itself: all of it must fit.
        let keeps = retention == Retention::Forever || matches!(retention, Retention::Last(_));
        let granules = u64::from(writers) * if keeps { per_rank + 2 * versions } else { per_rank };
        let calm = random.percent(25);
        let mut cast = Cast {
            seed,
            root: root.to_path_buf(),
            writers,
            groups,
            declared: random.percent(70),
            absent: Absent::Hold,
            versions,
            granules,
            retention,
            when_full,
            spills: when_full == WhenFull::Spill,
            first: TierKind::Dram,
            lower: [Some(TierKind::Dram), None],
            lower_granules: 0,
            horizon: Horizon::None,
            company: 0,
            peeks: false,
            batch_bytes: random.percent(25).then(|| *random.pick(&[4096, 16 << 10, 64 << 10])),
            observers: random.below(3) as u32,
            caretakers: random.below(3) as u32,
            leftovers: 0,
            dangers: Dangers {
                kills: if calm { 0 } else { random.below(5) as u32 },
                cuts: 0,
                stops: if random.percent(30) { random.below(3) as u32 } else { 0 },
                fault_per_million: *random.pick(&[0, 0, 0, 0, 100, 2_000, 20_000]),
                interrupt_per_million: 0,
                switch_per_million: *random.pick(&[5_000, 30_000, 100_000, 300_000, 600_000]),
                jump_per_million: *random.pick(&[0, 0, 20, 300]),
            },
            keeps_views: random.percent(40),
            is_heavy: random.percent(50),
            execution_mode: ExecutionMode::Parallel,
            looks: 0,
            reserves: 0,
            aborts: 0,
            drains: false,
            press: 0,
            behaviour: Behaviour::default(),
        };
        cast.leftovers = if random.percent(40) { 1 + random.below(4) as u32 } else { 0 };
        // A version of a heavy run takes up to three granules of each rank; one that is held stays beside the next.
        let more = if cast.is_heavy { 2 } else { 0 } + if cast.keeps_views { 6 } else { 0 };
        cast.granules += more * u64::from(writers);
        cast.draw_more();
        cast
    }

    /// What follows from numbers of its own each: what else a seed draws does not depend on it.
    fn draw_more(&mut self) {
        self.draw_tiers();
        self.draw_handles();
        self.draw_looks();
        self.draw_absences();
        self.draw_pauses();
        self.draw_crowds();
    }

    /// Who looks how often, how full it gets, and the execution mode, from numbers of its own. A space that fills by
    /// itself is made no fuller.
    fn draw_looks(&mut self) {
        let mut random = Random::new(self.seed, 29);
        self.looks = *random.pick(&[0, 5, 20]);
        let press = 4 + random.below(10);
        let is_pressed = random.percent(40) && self.retention == Retention::Released;
        self.press = if is_pressed { press } else { 0 };
        let places = (1 + random.below(3), 1 + random.below(3));
        self.execution_mode = match random.below(10) {
            0 | 1 => execution_mode(1),
            2 | 3 => execution_mode(256 * places.0 + 65536 * places.1),
            _ => ExecutionMode::Parallel,
        };
    }

    /// What happens where a group is away, and what else the calls are, from numbers of its own.
    fn draw_absences(&mut self) {
        let mut random = Random::new(self.seed, 41);
        // With the policy `error` a killed reader ends the writers, and their end the readers, over and over.
        self.absent = absent(*random.pick(&[1, 1, 2]));
        self.reserves = *random.pick(&[0, 50]);
        self.drains = self.spills && random.percent(50);
        self.aborts = *random.pick(&[0, 0, 20, 60]);
        // What was given up in a segment begun before stays there.
        self.granules += u64::from(self.writers) * u64::from(self.aborts > 0);
    }

    /// [`Behaviour`], from numbers of its own.
    fn draw_pauses(&mut self) {
        let mut random = Random::new(self.seed, 59);
        let away = *random.pick(&[0, 0, 0, 50, 100]);
        let may_pause = self.declared && self.retention == Retention::Released;
        self.behaviour.away = if may_pause && self.when_full != WhenFull::DropOldest { away } else { 0 };
        self.behaviour.idle = random.percent(15) && self.writers > 1;
        self.behaviour.group_kills = *random.pick(&[0, 50, 100]);
        let drainers = random.below(3) as u32;
        self.behaviour.drainers = if self.spills { drainers } else { 0 };
        self.behaviour.cursorless = random.percent(40);
        self.behaviour.attributes = random.percent(30);
    }

    /// Who else has the space open, holds views, and removes groups, from numbers of its own.
    fn draw_crowds(&mut self) {
        let mut random = Random::new(self.seed, 79);
        self.behaviour.crowd = *random.pick(&[0, 0, 8, 16, 24]);
        self.behaviour.holds = *random.pick(&[0, 50, 100]);
        let more = 1 + random.below(2) as u32;
        self.observers += if self.spills && self.behaviour.holds > 0 { more } else { 0 };
        let removals = *random.pick(&[0, 0, 50, 100]);
        self.behaviour.removals = if self.declared { removals } else { 0 };
        self.behaviour.checks = *random.pick(&[0, 50]);
    }

    /// Where the pools lie, from numbers of its own: what else a seed draws does not depend on it.
    fn draw_tiers(&mut self) {
        let mut random = Random::new(self.seed, 13);
        self.first = tier(*random.pick(&[1, 1, 1, 2, 2, 3])).expect("a tier");
        self.lower = [tier(*random.pick(&[1, 2, 3])), tier(*random.pick(&[0, 0, 1, 2, 3]))];
        self.lower_granules = u64::from(self.writers) + random.below(self.granules);
        self.horizon = *random.pick(&[Horizon::None, Horizon::None, Horizon::Epoch, Horizon::Write]);
        self.settle();
    }

    /// How many handles processes have, how often their calls are interrupted, and power cuts, from numbers of its own.
    fn draw_handles(&mut self) {
        let mut random = Random::new(self.seed, 17);
        self.company = *random.pick(&[0, 0, 20, 60]);
        self.peeks = random.percent(30);
        self.dangers.interrupt_per_million = *random.pick(&[0, 0, 10_000, 200_000]);
        self.dangers.cuts = *random.pick(&[0, 1, 2]);
        self.settle();
    }

    /// Small objects cannot be gathered where each store is made persistent. Of what lies in memory, or is never
    /// flushed, nothing is promised after a power cut.
    fn settle(&mut self) {
        let lower = self.lower.iter().flatten().filter(|_| self.spills);
        let is_in_memory = self.first.is_memory() || lower.into_iter().any(|tier| tier.is_memory());
        if is_in_memory || self.horizon == Horizon::None {
            self.dangers.cuts = 0;
        }
        if self.horizon == Horizon::Write {
            self.batch_bytes = None;
        }
    }

    /// Changes what the seed has drawn, for a smaller run that still fails. Text: `KEY=NUMBER`.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let wrong =
            || format!("`{text}` is not KEY=NUMBER with one of the keys {}", SMALLER.map(|s| s.0).join(", "));
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let number: u64 = value.parse().map_err(|_| wrong())?;
        match key {
            "first" => self.first = tier(number).ok_or_else(wrong)?,
            "second" => self.lower[0] = Some(tier(number).ok_or_else(wrong)?),
            "third" => self.lower[1] = tier(number),
            "horizon" => self.horizon = horizon(number),
            "company" => self.company = number as u32,
            "peeks" => self.peeks = number > 0,
            "leftovers" => self.leftovers = number as u32,
            "observers" => self.observers = number as u32,
            "caretakers" => self.caretakers = number as u32,
            "views" => self.keeps_views = number > 0,
            "heavy" => self.is_heavy = number > 0,
            "batch" => self.batch_bytes = (number > 0).then_some(number),
            "groups" => self.groups.truncate(number.max(1) as usize),
            "readers" => self.groups.iter_mut().for_each(|size| *size = (*size).min(number.max(1) as u32)),
            "writers" => self.writers = number.max(1) as u32,
            "versions" => self.versions = number.max(1),
            "looks" => self.looks = number as u32,
            "press" => self.press = number,
            "reserves" => self.reserves = number as u32,
            "aborts" => self.aborts = number as u32,
            "drains" => self.drains = number > 0,
            "execution_mode" => self.execution_mode = execution_mode(number),
            "absent" => self.absent = absent(number),
            "away" => self.behaviour.away = number as u32,
            "idle" => self.behaviour.idle = number > 0,
            "group_kills" => self.behaviour.group_kills = number as u32,
            "drainers" => self.behaviour.drainers = number as u32,
            "cursorless" => self.behaviour.cursorless = number > 0,
            "attributes" => self.behaviour.attributes = number > 0,
            "crowd" => self.behaviour.crowd = number as u32,
            "holds" => self.behaviour.holds = number as u32,
            "checks" => self.behaviour.checks = number as u32,
            "removals" => self.behaviour.removals = number as u32,
            key if self.dangers.set(key, number) => {}
            _ => return Err(wrong()),
        }
        self.settle();
        Ok(())
    }

    /// Whether nothing happens to any process, nor has before: then every call succeeds.
    pub fn is_calm(&self) -> bool {
        self.dangers.are_none() && self.leftovers == 0
    }

    /// Whether a process that sleeps to its deadline misses something: else it may wait for one that makes no call.
    pub fn is_awake(&self) -> bool {
        !self.behaviour.idle && self.behaviour.away == 0
    }

    /// How long a reader is away: where versions wait for it, for less than writers wait.
    pub fn time_away(&self) -> Duration {
        if self.waits_for_the_away() {
            return Duration::from_millis(500);
        }
        AWAY
    }

    fn waits_for_the_away(&self) -> bool {
        self.absent != Absent::Drop && !self.spills
    }

    /// Whether all ranks of a group but the first come when that one has been away. A group that versions do not wait
    /// for holds them all the same while some of its ranks are there and others have not come.
    pub fn come_late(&self, size: u32) -> bool {
        self.absent == Absent::Drop
            && size > 1
            && self.behaviour.away > 0
            && self.is_calm()
            && !self.behaviour.idle
    }

    /// From which version of its first life on a rank goes away, if it does.
    pub fn leaves_at(&self, (group, rank): (usize, u32), size: u32) -> Option<u64> {
        if self.absent == Absent::Drop && size > 1 {
            return (rank == 0 && self.come_late(size)).then_some(0);
        }
        let mut random = Random::new(self.seed ^ u64::from(rank) << 8 ^ group as u64, 67);
        random.percent(self.behaviour.away.into()).then(|| random.below(self.versions()))
    }

    /// Whether all that happens are power cuts, and no versions wait for a group that is away.
    pub fn only_cuts(&self) -> bool {
        let dangers = Dangers { cuts: 0, ..self.dangers.clone() };
        let holds = self.absent != Absent::Drop || !self.declared || self.company > 0;
        dangers.are_none()
            && self.leftovers == 0
            && self.dangers.cuts > 0
            && !holds
            && self.behaviour.away > 0
    }

    /// How long writers wait for each other and for space.
    pub fn writers_timeout(&self) -> Duration {
        match self.behaviour.idle {
            true => IDLE / 2,
            false if self.behaviour.away > 0 && !self.waits_for_the_away() => AWAY / 2,
            false => TIMEOUT,
        }
    }

    /// Whether every process lives until its role is over, and every call of it reaches the disk.
    pub fn kills_none(&self) -> bool {
        self.dangers.kills == 0 && self.dangers.cuts == 0 && self.dangers.fault_per_million == 0
    }

    /// Handles of each process of a crowd: there are some only where processes are killed, for a full table refuses
    /// others.
    pub fn crowd(&self) -> u32 {
        if self.dangers.kills > 0 {
            self.behaviour.crowd
        } else {
            0
        }
    }

    /// Whether nothing happens to any process once the run has begun, and no other group reads beside.
    pub fn is_quiet(&self) -> bool {
        self.dangers.are_none() && self.company == 0
    }

    /// Whether a reader may miss versions.
    pub fn drops(&self) -> bool {
        let is_away = self.behaviour.away > 0 || !self.is_calm();
        let drops_for_absence = self.declared && self.absent == Absent::Drop && is_away;
        self.when_full == WhenFull::DropOldest
            || matches!(self.retention, Retention::Last(_))
            || drops_for_absence
    }

    /// Whether a rank may miss versions in a life: a group waits for those that it never had.
    pub fn drops_in(&self, life: u32, size: u32) -> bool {
        let is_first = life == 1 && size == 1 && self.is_calm();
        let waits = self.when_full != WhenFull::DropOldest && self.retention == Retention::Released;
        self.drops() && !(is_first && waits && self.declared)
    }

    /// The folder of the spaces: on a memory tier that of short names, else one that is no memory.
    pub fn place(&self) -> PathBuf {
        self.root.join(if self.first.is_memory() { "spaces" } else { "disk" })
    }

    /// The space, by its path.
    pub fn name(&self) -> String {
        self.place().join("simulated").display().to_string()
    }

    /// A space beside it, which a killed process left.
    pub fn beside(&self) -> String {
        self.place().join("beside").display().to_string()
    }

    /// Folder of the lower pool.
    pub fn lower(&self) -> PathBuf {
        self.root.join("lower")
    }

    /// Name of a reader group.
    pub fn group(&self, index: usize) -> String {
        format!("group-{index}")
    }

    /// Versions of the stream.
    pub fn versions(&self) -> u64 {
        self.versions + self.press
    }

    /// Elements that a rank puts in a version: most often few, now and then most of a granule or more than one.
    pub fn elements(&self, version: u64) -> u64 {
        let mut random = Random::new(self.seed ^ version << 20, 11);
        let bits = *random.pick(if self.is_heavy || self.press > 0 {
            &[10, 11, 11, 11]
        } else {
            &[1, 3, 5, 8, 10, 11]
        });
        1 + random.below(1 << bits)
    }

    /// Options of a rank that says what its group means to the writers.
    pub fn options_with_policy(&self, rank: u32, size: u32, component: &str) -> OpenOptions {
        let absent = self.declared.then_some(self.absent);
        OpenOptions { absent, ..self.options(rank, size, component) }
    }

    /// Options of a rank.
    pub fn options(&self, rank: u32, size: u32, component: &str) -> OpenOptions {
        // Where records begin at blocks a version takes more.
        let blocks = if self.first.is_memory() { 0 } else { self.granules + 4 * u64::from(self.writers) };
        // What is looked at beside the step holds what is behind it.
        let held = if self.peeks || self.company > 0 { 6 * u64::from(self.writers) } else { 0 };
        // As much as a heavy run has of its own.
        let more = if self.press > 0 && !self.is_heavy { 2 * u64::from(self.writers) } else { 0 };
        let quota = Some((self.granules + blocks + held + more) * GRANULE_BYTES);
        let lower: Vec<TierKind> =
            if self.spills { self.lower.into_iter().flatten().collect() } else { Vec::new() };
        let last = lower.len().saturating_sub(1);
        // Where readers are away for long all of the stream comes down.
        let all = if self.behaviour.away > 0 { 4 * u64::from(self.writers) * self.versions() } else { 0 };
        let lowest = quota.map(|quota| quota + all * GRANULE_BYTES);
        let bytes = |index: usize| (index < last).then_some(self.lower_granules * GRANULE_BYTES).or(lowest);
        let lower = lower.into_iter().enumerate();
        let spill = lower.map(|(index, tier)| SpillTier {
            path: self.lower(),
            quota: bytes(index),
            tier: Some(tier),
        });
        let declared = self.groups.iter().enumerate().map(|(index, size)| (self.group(index), *size));
        OpenOptions {
            rank: Some(rank),
            size: Some(size),
            component: Some(component.into()),
            tier: Some(self.first),
            horizon: Some(self.horizon),
            quota_bytes: quota,
            segment_bytes: Some(GRANULE_BYTES),
            spill: spill.collect(),
            when_full: Some(self.when_full),
            retention: Some(self.retention),
            batch_bytes: self.batch_bytes,
            readers: if self.declared { declared.collect() } else { Vec::new() },
            execution_mode: Some(self.execution_mode),
            timeout: TIMEOUT,
            verify: Verify::Always,
            mode: Mode::Append,
            finished: true,
            ..OpenOptions::default()
        }
    }
}

/// The tier that a number of `--set` stands for; none for 0 and what is no number of one.
fn tier(number: u64) -> Option<TierKind> {
    [TierKind::Dram, TierKind::File, TierKind::Direct].get(number.checked_sub(1)? as usize).copied()
}

/// The policy that a number of `--set` stands for.
fn absent(number: u64) -> Absent {
    match number {
        2 => Absent::Drop,
        _ => Absent::Hold,
    }
}

/// The execution mode that a number of `--set` stands for: 0, 1 for turns, else 256 times writers and 65536 times
/// readers inside.
fn execution_mode(number: u64) -> ExecutionMode {
    let places = |shift: u32| ((number >> shift & 0xff) as u32).max(1);
    match number {
        0 => ExecutionMode::Parallel,
        1 => ExecutionMode::SerialPerStep,
        _ => ExecutionMode::Gated { writers: places(8), readers: places(16) },
    }
}

/// The horizon that a number of `--set` stands for.
fn horizon(number: u64) -> Horizon {
    [Horizon::None, Horizon::Epoch, Horizon::Write][number.min(2) as usize]
}
