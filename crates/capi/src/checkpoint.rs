//! `fb_checkpoint`: arrays of the program, saved step by step; a restart goes on from the newest step that is whole.
//!
//! Guarantees: an array's memory is only touched during a save (read) and a restore (written); what was looked at and
//! not taken, and a saved step that is lost, go to stderr as well as into the report, so that no program goes on from
//! an older step without a word. Not here: who sees which step, see `forebay_checkpoint::Checkpoint`.

use crate::memory::{give, handle, input, lock, out, out_or_null, output, take, text, Piece};
use crate::options::{checkpoint_options, fb_options};
use crate::status::{c_text, guard, null};
use crate::{FB_NOT_YET, FB_OK};
use forebay_checkpoint::{Checkpoint, Restored};
use forebay_space::{Error, Kind, Result};
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// Arrays of this process that are saved step by step: made by fb_checkpoint_open, ended by fb_checkpoint_close.
pub struct fb_checkpoint {
    state: Mutex<State>,
    levels: Vec<LevelTexts>,
    rank: u32,
    size: u32,
}

struct State {
    checkpoint: Checkpoint,
    /// In the order of `Checkpoint::protect`.
    arrays: Vec<Protected>,
    report: Option<Report>,
}

/// Where a protected array lies: an address of the caller, who promised that it stays.
struct Protected {
    address: usize,
    bytes: usize,
}

/// What the last restore said.
struct Report {
    text: CString,
    rejected: u64,
    lost: i64,
}

/// What does not change of a level.
struct LevelTexts {
    dir: CString,
    tier: CString,
    durability: CString,
}

/// The numbers of fb_checkpoint_statistic.
const MEASURED: [&str; 5] = ["saves", "blocked_s", "cost_s", "carried_s", "restore_s"];

/// Opens the checkpoint directory `path`, made if it is missing, as one rank of a new run of the program, and stores
/// the handle in `*checkpoint`. `options` may be NULL; it knows "rank", "size", "scope" and "timeout" as for a space
/// (ranks come from the environment of srun, flux or mpiexec when they are not given), and "levels", "when", "program"
/// and "memory", see fb_options_set. All ranks give the same path and levels. Does not wait for other ranks.
///
/// FB_NAME_IN_USE (a live process holds this rank), FB_OPTION_MISMATCH (another program saves there),
/// FB_NOT_POSSIBLE_HERE (a level's directory is not on its tier), FB_UNKNOWN_KEY (an option of a level),
/// FB_UNKNOWN_FORMAT, FB_DAMAGED, FB_PERMISSION_DENIED, FB_SEVERAL_NODES, FB_UNKNOWN_ENVIRONMENT.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_open(
    path: *const c_char,
    options: *const fb_options,
    checkpoint: *mut *mut fb_checkpoint,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs, texts and handles.
        let (place, path) = unsafe { (out(checkpoint, "checkpoint")?, text(path, "path")?) };
        // SAFETY: the header's contract for handles.
        let options = unsafe { checkpoint_options(options, path)? };
        let checkpoint = Checkpoint::open(Path::new(path), &options)?;
        let texts = |(at, info): (usize, &forebay_checkpoint::LevelInfo)| LevelTexts {
            dir: c_text(&info.dir.display().to_string()),
            tier: c_text(&info.tier.to_string()),
            durability: c_text(&checkpoint.durability(at).to_string()),
        };
        let levels = checkpoint.levels().iter().enumerate().map(texts).collect();
        let state = Mutex::new(State { checkpoint, arrays: Vec::new(), report: None });
        give(fb_checkpoint { state, levels, rank: options.rank, size: options.size }, place);
        Ok(FB_OK)
    })
}

/// Makes an array part of every step: the box (`start`, `count`) of a variable of this `shape`, as for fb_put. `data`
/// is its memory, read by each save and written by each restore; it must stay until fb_checkpoint_close and not overlap
/// another one. An array that ranks share has its global shape and each rank's box; one that every rank protects whole
/// is each rank's own.
///
/// Called again with the same name, type, shape and box it takes the new memory instead: after a realloc, or when a
/// program swaps two buffers. Does not block.
///
/// FB_BAD_NAME, FB_BOX_OUTSIDE_SHAPE; FB_USAGE also when the name is protected as another array.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_protect(
    checkpoint: *mut fb_checkpoint,
    name: *const c_char,
    dtype: c_int,
    ndim: c_int,
    shape: *const u64,
    start: *const u64,
    count: *const u64,
    data: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and texts, and for shapes and boxes.
        let (mut state, piece) =
            unsafe { (state_of(checkpoint)?, Piece::read(name, dtype, ndim, shape, start, count)?) };
        if data.is_null() && piece.bytes > 0 {
            return Err(null("data").with("bytes", piece.bytes));
        }
        let array = Protected { address: data as usize, bytes: piece.bytes };
        let same = |variable: &forebay_checkpoint::format::Variable| {
            variable.name == piece.name
                && variable.dtype == piece.dtype
                && variable.shape.as_slice() == piece.shape
                && variable.part == piece.place
        };
        match state.checkpoint.variables().iter().position(same) {
            Some(at) => state.arrays[at] = array,
            None => {
                state.checkpoint.protect(piece.name, piece.dtype, piece.shape, &piece.place)?;
                state.arrays.push(array);
            }
        }
        Ok(FB_OK)
    })
}

/// Allocates the space for two steps in the first level, so that the first saves take no longer than later ones. Blocks
/// while pages are allocated (some 0.2 ms per MiB on memory). FB_TIER_FULL.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_prepare(checkpoint: *mut fb_checkpoint) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        unsafe { state_of(checkpoint)? }.checkpoint.prepare()?;
        Ok(FB_OK)
    })
}

/// Saves the protected arrays as they are now; `step` is larger than every step this run saved before. Returns when
/// the first level holds them, which is when it survives what that level says (fb_checkpoint_level); a thread carries
/// it down to the others. Waits, at most for the timeout, when the first level has no free space before an earlier step
/// has gone down. After an error the older steps are all there, and the next call tries again.
///
/// FB_VERSION_OUT_OF_ORDER, FB_TIER_FULL, FB_FENCED (a later run has begun), FB_TIMED_OUT, FB_PRODUCER_DIED; also
/// what went wrong on the way down since the last call: this step was not saved then.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_save(checkpoint: *mut fb_checkpoint, step: u64) -> c_int {
    // SAFETY: this function's own contract.
    guard(|| unsafe { save(checkpoint, step, None) })
}

/// As fb_checkpoint_save, with a number that says how good the step is: levels with "best=K" keep the K best (see
/// fb_options_set). Of several ranks rank 0's number counts. FB_USAGE also when it is not a number.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_save_metric(
    checkpoint: *mut fb_checkpoint,
    step: u64,
    metric: f64,
) -> c_int {
    // SAFETY: this function's own contract.
    guard(|| unsafe { save(checkpoint, step, Some(metric)) })
}

/// Stores in `*need` 1 when this step is to be saved, as the option "when" says, else 0. All ranks ask for the same
/// steps in the same order and get the same answer. Looks at a clock; of several ranks the others wait for rank 0.
/// FB_TIMED_OUT, FB_VERSION_OUT_OF_ORDER, FB_PRODUCER_DIED.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_need(
    checkpoint: *mut fb_checkpoint,
    step: u64,
    need: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (state, place) = unsafe { (state_of(checkpoint)?, out(need, "need")?) };
        place.set(c_int::from(state.checkpoint.need(step)?));
        Ok(FB_OK)
    })
}

/// Waits until the newest saved step is committed by all ranks in every level down to `level` (from 0; -1 is the last
/// one), at most for the timeout, and stores it in `*step` (may be NULL). FB_NOT_YET (no error) when nothing was saved.
/// What went wrong on the way down; FB_TIMED_OUT, FB_PRODUCER_DIED; FB_USAGE also when there is no such level.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_wait(
    checkpoint: *mut fb_checkpoint,
    level: c_int,
    step: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (held, mut state, place) =
            unsafe { (handle(checkpoint, "checkpoint")?, state_of(checkpoint)?, out_or_null(step, "step")?) };
        let level = if level == -1 { held.levels.len() - 1 } else { held.level(level)? };
        let Some(saved) = state.checkpoint.wait_level(level)? else { return Ok(FB_NOT_YET) };
        place.into_iter().for_each(|place| place.set(saved));
        Ok(FB_OK)
    })
}

/// Loads the newest step that is whole into the protected arrays and stores its number in `*step` (may be NULL). All
/// ranks call it and get the same step, compared with its checksums. FB_NOT_YET (no error) when nothing was ever
/// saved: the arrays are untouched. What was looked at and not taken, and a saved step that is lost, are written to
/// stderr, a line each; fb_checkpoint_report has them, too. Waits for other ranks, at most for the timeout.
///
/// The reason of the newest step when none could be taken (FB_DAMAGED and others); FB_VERSION_GONE (steps had been
/// saved and no level has one), FB_UNKNOWN_VARIABLE, FB_VARIABLE_MISMATCH, FB_BOX_NOT_COVERED (the program protects
/// something else than was saved), FB_COMPONENT_FAILED (another rank does), FB_TIMED_OUT. The arrays then hold
/// anything.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_restore_latest(
    checkpoint: *mut fb_checkpoint,
    step: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (mut state, place) = unsafe { (state_of(checkpoint)?, out_or_null(step, "step")?) };
        state.report = None;
        // SAFETY: the caller's promise at fb_checkpoint_protect.
        let mut targets = unsafe { state.targets()? };
        let Some(restored) = state.checkpoint.restore_latest(&mut targets)? else { return Ok(FB_NOT_YET) };
        place.into_iter().for_each(|place| place.set(restored.step));
        state.tell(&restored);
        Ok(FB_OK)
    })
}

/// As fb_checkpoint_restore_latest for this step. FB_VERSION_GONE when no level has it.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_restore(checkpoint: *mut fb_checkpoint, step: u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let mut state = unsafe { state_of(checkpoint)? };
        state.report = None;
        // SAFETY: the caller's promise at fb_checkpoint_protect.
        let mut targets = unsafe { state.targets()? };
        let restored = state.checkpoint.restore(step, &mut targets)?;
        state.tell(&restored);
        Ok(FB_OK)
    })
}

/// What the last restore took and what it did not: `*text`, for a person, in one or more lines; `*rejected`, how many
/// copies were looked at and not taken; `*lost`, the newest step that had been saved and is newer than the one
/// restored, or -1. Any of them may be NULL. The text lives until the next restore. FB_NOT_YET (no error) before a
/// restore has taken a step. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_report(
    checkpoint: *mut fb_checkpoint,
    text: *mut *const c_char,
    rejected: *mut u64,
    lost: *mut i64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (state, text, rejected, lost) = unsafe {
            (
                state_of(checkpoint)?,
                out_or_null(text, "text")?,
                out_or_null(rejected, "rejected")?,
                out_or_null(lost, "lost")?,
            )
        };
        let Some(report) = &state.report else { return Ok(FB_NOT_YET) };
        text.into_iter().for_each(|place| place.set(report.text.as_ptr()));
        rejected.into_iter().for_each(|place| place.set(report.rejected));
        lost.into_iter().for_each(|place| place.set(report.lost));
        Ok(FB_OK)
    })
}

/// Number of this run (it grows with every start of the program), rank and size as given or found in the environment,
/// and the number of levels. Any of them may be NULL. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_info(
    checkpoint: *mut fb_checkpoint,
    run: *mut u64,
    rank: *mut u32,
    size: *mut u32,
    levels: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (held, state, run, rank, size, levels) = unsafe {
            (
                handle(checkpoint, "checkpoint")?,
                state_of(checkpoint)?,
                out_or_null(run, "run")?,
                out_or_null(rank, "rank")?,
                out_or_null(size, "size")?,
                out_or_null(levels, "levels")?,
            )
        };
        run.into_iter().for_each(|place| place.set(state.checkpoint.run()));
        rank.into_iter().for_each(|place| place.set(held.rank));
        size.into_iter().for_each(|place| place.set(held.size));
        levels.into_iter().for_each(|place| place.set(held.levels.len() as c_int));
        Ok(FB_OK)
    })
}

/// One level, from 0: its directory, tier ("dram", "file" and so on), what a committed step survives there ("process
/// crash", "power failure"), and the newest step of this process that it has (-1: none). Any of them may be NULL. The
/// texts live as long as the checkpoint. FB_USAGE when there is no such level. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_level(
    checkpoint: *mut fb_checkpoint,
    level: c_int,
    dir: *mut *const c_char,
    tier: *mut *const c_char,
    durability: *mut *const c_char,
    step: *mut i64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (held, state, dir, tier, durability, step) = unsafe {
            (
                handle(checkpoint, "checkpoint")?,
                state_of(checkpoint)?,
                out_or_null(dir, "dir")?,
                out_or_null(tier, "tier")?,
                out_or_null(durability, "durability")?,
                out_or_null(step, "step")?,
            )
        };
        let at = held.level(level)?;
        let texts = &held.levels[at];
        dir.into_iter().for_each(|place| place.set(texts.dir.as_ptr()));
        tier.into_iter().for_each(|place| place.set(texts.tier.as_ptr()));
        durability.into_iter().for_each(|place| place.set(texts.durability.as_ptr()));
        step.into_iter().for_each(|place| place.set(signed(state.checkpoint.reached(at))));
        Ok(FB_OK)
    })
}

/// Stores one number of what was measured in `*value`: "saves" (how many), and in seconds "blocked_s" (all saves),
/// "cost_s" (one of late), "carried_s" (the way of one down to the last level), "restore_s" (the last restore).
/// FB_UNKNOWN_KEY. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_statistic(
    checkpoint: *mut fb_checkpoint,
    name: *const c_char,
    value: *mut f64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (state, name, place) =
            unsafe { (state_of(checkpoint)?, text(name, "name")?, out(value, "value")?) };
        let seen = state.checkpoint.statistics();
        place.set(match name {
            "saves" => seen.saves as f64,
            "blocked_s" => seen.blocked.as_secs_f64(),
            "cost_s" => seen.cost_s,
            "carried_s" => seen.carried_s,
            "restore_s" => seen.restore_s,
            _ => {
                return Err(Error::new(Kind::UnknownKey, format!("unknown statistic `{name}`"))
                    .hint(format!("available: {}", MEASURED.join(", "))))
            }
        });
        Ok(FB_OK)
    })
}

/// Waits until every step has arrived in the last level, leaves the run and sets `*checkpoint` to NULL. A process that
/// ends without it counts as one that failed. What went wrong on the way down; the checkpoint is ended all the same.
#[no_mangle]
pub unsafe extern "C" fn fb_checkpoint_close(checkpoint: *mut *mut fb_checkpoint) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        let Some(held) = (unsafe { take(checkpoint, "checkpoint")? }) else { return Ok(FB_OK) };
        // A call that panicked does not keep the steps from going down.
        let state = held.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.checkpoint.close()?;
        Ok(FB_OK)
    })
}

/// What both saves do.
///
/// # Safety
/// NULL or a live handle, whose arrays are where fb_checkpoint_protect was told.
unsafe fn save(checkpoint: *mut fb_checkpoint, step: u64, metric: Option<f64>) -> Result<c_int> {
    // SAFETY: the caller's contract.
    let mut state = unsafe { state_of(checkpoint)? };
    // SAFETY: the caller's contract.
    let sources = unsafe { state.sources()? };
    state.checkpoint.save_with(step, &sources, metric)?;
    Ok(FB_OK)
}

impl fb_checkpoint {
    fn level(&self, level: c_int) -> Result<usize> {
        usize::try_from(level).ok().filter(|at| *at < self.levels.len()).ok_or_else(|| {
            Error::new(Kind::Usage, format!("level {level} does not exist")).with("levels", self.levels.len())
        })
    }
}

impl State {
    /// The protected arrays to be read, in their order.
    ///
    /// # Safety
    /// Each address holds what fb_checkpoint_protect was promised, and does not change while the result is used.
    unsafe fn sources<'a>(&self) -> Result<Vec<&'a [u8]>> {
        // SAFETY: the caller's contract.
        let one = |a: &Protected| unsafe { input(a.address as *const c_void, a.bytes, "data") };
        self.arrays.iter().map(one).collect()
    }

    /// The protected arrays to be filled, in their order.
    ///
    /// # Safety
    /// As [`State::sources`]; no other code uses the memory, and no two arrays overlap.
    unsafe fn targets<'a>(&self) -> Result<Vec<&'a mut [u8]>> {
        // SAFETY: the caller's contract.
        let one = |a: &Protected| unsafe { output(a.address as *mut c_void, a.bytes, "data") };
        self.arrays.iter().map(one).collect()
    }

    /// Keeps what a restore said, and says aloud what must not be missed.
    fn tell(&mut self, restored: &Restored) {
        for reject in &restored.rejected {
            eprintln!("forebay: {reject}");
        }
        if let Some(lost) = restored.lost {
            eprintln!(
                "forebay: warning: step {lost} was saved and is lost; continuing from step {}",
                restored.step
            );
        }
        self.report = Some(Report {
            text: c_text(&restored.to_string()),
            rejected: restored.rejected.len() as u64,
            lost: signed(restored.lost),
        });
    }
}

/// The state of a checkpoint handle.
///
/// # Safety
/// NULL or a live handle.
unsafe fn state_of<'a>(checkpoint: *const fb_checkpoint) -> Result<MutexGuard<'a, State>> {
    // SAFETY: the caller's contract.
    lock(&unsafe { handle(checkpoint, "checkpoint")? }.state, "checkpoint")
}

/// -1 for none.
fn signed(step: Option<u64>) -> i64 {
    step.map_or(-1, |step| i64::try_from(step).unwrap_or(i64::MAX))
}
