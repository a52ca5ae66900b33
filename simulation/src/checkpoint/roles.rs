//! What the processes do: ranks that restore and save, and processes that look, verify, drain and clean.

use std::time::Duration;

use forebay_checkpoint::{memory, Checkpoint, Dtype, Error, Kind, NdBox, Result};
use forebay_tier::simulation::{process, Random};

use super::cast::{Cast, TIMEOUT};
use super::oracle::{element, Id, Oracle};

/// A save that failed is made again so often.
const TRIES: u32 = 3;
/// Elements of each rank that change in each step.
const CHANGING: usize = 100;
/// Past its deadline a call may wait for a lock that a stopped process holds, and a clock may jump.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a role belongs to.
#[derive(Clone)]
pub struct Run {
    /// What happens.
    pub cast: Cast,
    /// What is known.
    pub oracle: Oracle,
}

/// What a role came to.
pub type Told = std::result::Result<(), ()>;

/// Ends the role by an error that has a cause in this run; any other one fails the run.
fn explained<T>(cast: &Cast, during: &str, error: &Error) -> std::result::Result<T, ()> {
    let mut kinds = vec![];
    if !cast.is_calm() {
        // A rank that gave up has an error of its own, which has to be explained too.
        kinds.extend([
            Kind::ProducerDied,
            Kind::Fenced,
            Kind::NameInUse,
            Kind::TimedOut,
            Kind::ComponentFailed,
        ]);
    }
    if cast.dangers.fault_per_million > 0 {
        kinds.extend([Kind::Io, Kind::TierFull, Kind::Poisoned, Kind::TooMany]);
        // What an incremental step stands on has not come down, since a call failed: the next is a full one.
        kinds.push(Kind::Damaged);
    }
    if !kinds.contains(&error.kind()) {
        process::fail(format!("{during}: {error}"));
    }
    process::note(format!("{during}: {error}"));
    Err(())
}

/// Runs a call and looks at how long it took.
fn timed<T>(cast: &Cast, during: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = process::now_ns();
    let result = call();
    let took = Duration::from_nanos(process::now_ns() - before);
    if took > 2 * TIMEOUT + PATIENCE && cast.dangers.stops == 0 {
        process::fail(format!("{during} took {took:?}, its deadline is {TIMEOUT:?}"));
    }
    if result.is_ok() {
        process::note(during);
    }
    result
}

/// A rank: goes on behind the newest step, saves the steps that are due, closes.
pub fn rank(run: &Run, rank: u32, life: u32, random: Random) -> Told {
    let Run { cast, oracle } = run;
    let told = |during: &'static str| move |e: Error| explained::<()>(cast, during, &e).unwrap_err();
    // Before the first look at what is there: it may be pruned for what comes later.
    let least = oracle.acknowledged();
    let opened = timed(cast, "open", || Checkpoint::open(&cast.base(), &cast.options(rank, life)));
    let mut checkpoint = opened.map_err(told("open"))?;
    oracle.joined(checkpoint.run(), rank);
    let newest = restore_and_save(run, rank, least, &mut checkpoint, random);
    oracle.begins_to_leave();
    let newest = newest?;
    timed(cast, "close", || checkpoint.close()).map_err(told("close"))?;
    newest.into_iter().for_each(|id| oracle.closed(cast, id, rank));
    Ok(())
}

/// What a rank does between `open` and `close`; the newest step that it saved.
fn restore_and_save(
    run: &Run,
    rank: u32,
    least: Option<Id>,
    checkpoint: &mut Checkpoint,
    mut random: Random,
) -> std::result::Result<Option<Id>, ()> {
    let Run { cast, oracle } = run;
    let told = |during: &'static str| move |e: Error| explained::<()>(cast, during, &e).unwrap_err();
    let number = checkpoint.run();
    let (elements, first) = (cast.elements, cast.elements * u64::from(rank));
    let shape = [elements * u64::from(cast.ranks)];
    let part = NdBox::new(&[first], &[elements]).expect("a box");
    checkpoint.protect("u", Dtype::U64, &shape, &part).map_err(told("protect"))?;
    let mut state = vec![0u8; elements as usize * 8];
    let restored = timed(cast, "restore", || checkpoint.restore_latest(&mut [&mut state]));
    let restored = restored.or_else(|e| {
        let is_explained = match e.kind() {
            Kind::Damaged | Kind::VersionGone | Kind::ComponentFailed if oracle.may_be_lost() => true,
            // A call that failed; the copies may be whole.
            Kind::Damaged => cast.dangers.fault_per_million > 0,
            _ => false,
        };
        if !is_explained {
            return explained(cast, "restore", &e);
        }
        process::note(format!("restore: {e}"));
        Err(())
    })?;
    oracle.check_restored(cast, number, least, restored.as_ref());
    if let Some(restored) = &restored {
        process::note(format!("run {number} goes on behind step {} of run {}", restored.step, restored.run));
        check(cast, &state, (restored.run, restored.step), rank);
    }
    let mut newest = None;
    for step in restored.map_or(0, |restored| restored.step + 1)..cast.steps {
        let id = (number, step);
        fill(cast, &mut state, id, rank);
        save(cast, checkpoint, step, &state)?;
        oracle.saved(cast, id, rank);
        newest = Some(id);
        if random.percent(cast.waits.into()) {
            let carried = timed(cast, "wait", || checkpoint.wait()).map_err(told("wait"))?;
            if carried != Some(step) {
                process::fail(format!("wait returned {carried:?} behind step {step}"));
            }
            oracle.carried(id);
        }
    }
    Ok(newest)
}

/// Saves a step; a call that failed is made again.
fn save(cast: &Cast, checkpoint: &mut Checkpoint, step: u64, state: &[u8]) -> Told {
    for tries in 1.. {
        match timed(cast, "save", || checkpoint.save(step, &[state])) {
            Ok(()) => break,
            Err(e) if tries == TRIES => return explained(cast, "save", &e),
            Err(e) => drop(explained::<()>(cast, "save, to be made again", &e)),
        }
    }
    Ok(())
}

/// An element of a rank in a step.
fn content(cast: &Cast, (run, step): Id, rank: u32, index: usize) -> [u8; 8] {
    let every = cast.stays + u64::from(rank);
    let changed = if cast.stays == 0 || index < CHANGING { step } else { step / every * every };
    element((run, changed), cast.elements * u64::from(rank) + index as u64).to_le_bytes()
}

fn fill(cast: &Cast, state: &mut [u8], id: Id, rank: u32) {
    for (index, bytes) in state.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&content(cast, id, rank, index));
    }
}

fn check(cast: &Cast, state: &[u8], id: Id, rank: u32) {
    for (index, bytes) in state.chunks_exact(8).enumerate() {
        if bytes != content(cast, id, rank, index) {
            process::fail(format!("element {index} of step {} of run {} is wrong", id.1, id.0));
        }
    }
}

/// Lists, verifies, drains, and cleans what is dead, beside the ranks or after them.
pub fn carer(run: &Run, mut random: Random) -> Told {
    let cast = &run.cast;
    let base = cast.base();
    for _ in 0..1 + random.below(3) {
        let result = match random.below(4) {
            0 => forebay_checkpoint::list(&base).map(drop),
            1 => verify(cast),
            2 => forebay_checkpoint::drain(&base).map(drop),
            _ => memory::clean(&cast.memory_root(), &memory::CleanOptions::default()).map(drop),
        };
        match result {
            Ok(()) => {}
            // The program lives, or has not made its directory yet.
            Err(e) if [Kind::NameInUse, Kind::PeerMissing].contains(&e.kind()) => {}
            Err(e) => drop(explained::<()>(cast, "care", &e)),
        }
    }
    Ok(())
}

/// What is committed is whole, unless a call failed or the power did.
fn verify(cast: &Cast) -> Result<()> {
    let reports = forebay_checkpoint::verify(&cast.base(), None)?;
    let wrong = reports.iter().find(|report| report.fault.is_some());
    if let Some(wrong) = wrong.filter(|_| cast.dangers.fault_per_million == 0 && cast.dangers.cuts == 0) {
        process::fail(format!("verify: {wrong:?}"));
    }
    Ok(())
}
