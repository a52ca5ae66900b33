//! Times of checkpoints on this machine, for `cargo xtask bench checkpoint`: `measure_checkpoint DIR BYTES WHAT`.
//!
//! `blocked` saves to memory (DIR lies there) and prints the nanoseconds that `save` took, then those of a plain copy
//! of the same arrays on as many threads into memory that was touched before: the best of a few rounds. `durable` saves
//! to a disk past the page cache and prints nanoseconds until the step was committed, on new files and on files that
//! are written over; `restore` those until it was loaded from there and compared: medians. `incremental` prints those
//! until a full step was committed, on files that are written over, then those of an incremental step with one changed
//! chunk in a hundred, on the same medium in turns: medians.

use std::path::Path;
use std::time::Instant;

use forebay_checkpoint::{Checkpoint, Dtype, Error, Kind, NdBox, Options, Result};

/// Rounds of each measure.
const ROUNDS: u64 = 5;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, dir, bytes, what] = words.as_slice() else { return Err(usage()) };
    let bytes: usize = bytes.parse().map_err(|_| usage())?;
    let mut state = vec![0u8; bytes / 4096 * 4096];
    state.chunks_mut(4096).enumerate().for_each(|(n, page)| page[n % 4096] = n as u8 | 1);
    match what.as_str() {
        "blocked" => blocked(Path::new(dir), &state),
        "durable" => durable(Path::new(dir), &state),
        "restore" => restore(Path::new(dir), &mut state),
        "incremental" => incremental(Path::new(dir), &mut state),
        _ => Err(usage()),
    }
}

fn usage() -> Error {
    Error::new(Kind::Usage, "measure_checkpoint DIR BYTES blocked|durable|restore|incremental")
}

fn open(dir: &Path, level: &str, bytes: usize) -> Result<Checkpoint> {
    let options = Options { levels: vec![level.to_string()], ..Options::default() };
    let mut checkpoint = Checkpoint::open(dir, &options)?;
    let shape = [bytes as u64];
    checkpoint.protect("state", Dtype::U8, &shape, &NdBox::whole(&shape))?;
    Ok(checkpoint)
}

fn blocked(dir: &Path, state: &[u8]) -> Result<()> {
    let mut checkpoint = open(dir, &format!("{}/memory", dir.display()), state.len())?;
    checkpoint.prepare()?;
    let mut copy = vec![1u8; state.len()];
    let (mut ours, mut plain) = (u128::MAX, u128::MAX);
    for step in 0..ROUNDS {
        let begin = Instant::now();
        checkpoint.save(step, &[state])?;
        ours = ours.min(begin.elapsed().as_nanos());
        let begin = Instant::now();
        parallel_copy(state, &mut copy);
        plain = plain.min(begin.elapsed().as_nanos());
    }
    println!("{ours} {plain}");
    checkpoint.close()
}

/// What a program would write for itself: equal parts, one thread each.
fn parallel_copy(from: &[u8], to: &mut [u8]) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    let share = from.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

fn durable(dir: &Path, state: &[u8]) -> Result<()> {
    let mut checkpoint = open(dir, "direct,keep=1", state.len())?;
    let mut times = Vec::new();
    for step in 0..ROUNDS {
        let begin = Instant::now();
        checkpoint.save(step, &[state])?;
        checkpoint.wait()?;
        times.push(begin.elapsed().as_nanos());
    }
    // The first two write blocks that were never written before; later ones write over.
    println!("{} {}", times[0].min(times[1]), median(&mut times[2..]));
    checkpoint.close()
}

fn restore(dir: &Path, state: &mut [u8]) -> Result<()> {
    let mut checkpoint = open(dir, "direct,keep=1", state.len())?;
    checkpoint.save(0, &[state])?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let restored = checkpoint.restore_latest(&mut [&mut *state])?;
        times.push(begin.elapsed().as_nanos());
        assert!(restored.is_some(), "it was saved above");
    }
    println!("{}", median(&mut times));
    checkpoint.close()
}

/// Chunks as they are compared.
const CHUNK_BYTES: usize = forebay_checkpoint::format::CHUNK_BYTES;

fn incremental(dir: &Path, state: &mut [u8]) -> Result<()> {
    let mut full = open(&dir.join("full"), "direct,keep=1", state.len())?;
    let mut packed = open(&dir.join("incremental"), "direct,keep=1,incremental=1000", state.len())?;
    let (mut full_times, mut packed_times) = (Vec::new(), Vec::new());
    for step in 0..ROUNDS + 2 {
        // Scattered, and always the same ones: so many differ from the full step each time.
        state.chunks_mut(CHUNK_BYTES).step_by(100).for_each(|chunk| chunk[step as usize] ^= 0x55);
        for (checkpoint, times) in [(&mut full, &mut full_times), (&mut packed, &mut packed_times)] {
            let begin = Instant::now();
            checkpoint.save(step, &[&*state])?;
            checkpoint.wait()?;
            times.push(begin.elapsed().as_nanos());
        }
    }
    // The first two full steps are on new files, the first incremental one is full.
    println!("{} {}", median(&mut full_times[2..]), median(&mut packed_times[2..]));
    full.close()?;
    packed.close()
}

fn median(times: &mut [u128]) -> u128 {
    times.sort_unstable();
    times[times.len() / 2]
}
