//! What one object costs between two processes, for `cargo xtask bench put`: seeing it, viewing it, getting it.
//!
//! usage: bench_seen seen NAME BYTES ROUNDS GAP-US    nanoseconds from before a put until a waiting reader has it
//!        bench_seen floor NAME ROUNDS GAP-US         the same of a futex and one word: what a wake-up costs here
//!        bench_seen view|get NAME BYTES OBJECTS      one view (or one get) of each object, version known
//!
//! The reader is a second process, started by the first. With a gap longer than the time that waits spin it sleeps
//! at each round. `view` and `get` meet every object for the first time, so its checksum is compared. Prints one
//! JSON object: median_ns and p99_ns, over the rounds, or over groups of objects; and for `view` and `get` begin_ns,
//! the time of begin_step, in which the version is indexed.

// The reader is waited for by `end`; an error on the way ends this program, and the reader at its deadline.
#![allow(clippy::zombie_processes)]

use forebay_space::{Dtype, OpenOptions, Reader, Result, Retention, TierKind, Writer};
use forebay_tier::{clock, wait, SharedWords};
use std::hint::{black_box, spin_loop};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

/// Objects that one look at the clock stands for.
const GROUP: usize = 32;

/// Rounds before those that count.
const WARM: usize = 50;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = words.iter().skip(2).filter_map(|word| word.parse().ok()).collect();
    match (words.first().map(String::as_str), words.get(1), numbers.as_slice()) {
        (Some("seen"), Some(name), [bytes, rounds, gap_us]) => seen(name, *bytes, *rounds, *gap_us),
        (Some("seen-reader"), Some(name), [bytes, rounds]) => seen_reader(name, *bytes, *rounds),
        (Some("floor"), Some(name), [rounds, gap_us]) => floor(name, *rounds, *gap_us),
        (Some("floor-reader"), Some(name), [rounds]) => floor_reader(name, *rounds),
        (Some(how @ ("view" | "get")), Some(name), [bytes, objects]) => {
            objects_put(how, name, *bytes, *objects)
        }
        (Some(how @ ("view-reader" | "get-reader")), Some(name), [bytes, objects]) => {
            objects_read(how == "view-reader", name, *bytes, *objects)
        }
        _ => {
            eprintln!("usage: bench_seen seen|floor|view|get NAME NUMBERS; see the head of bench_seen.rs");
            std::process::exit(2)
        }
    }
}

/// This program once more, as the reader; on the core that READER_CORE names, so that the two never share one.
fn reader(role: &str, name: &str, numbers: &[usize]) -> Child {
    let program = std::env::current_exe().expect("a program has a path");
    let mut command = match std::env::var_os("READER_CORE") {
        Some(core) => {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(core).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.arg(role).arg(name).args(numbers.iter().map(ToString::to_string)).stdout(Stdio::inherit());
    command.spawn().expect("this program can be started")
}

fn end(mut child: Child) {
    assert!(child.wait().expect("a child of ours").success(), "the reader failed");
}

fn report(mut ns: Vec<u64>, begin_ns: u64) {
    ns.sort_unstable();
    let (median, p99) = (ns[ns.len() / 2], ns[ns.len() * 99 / 100]);
    println!("{{\"median_ns\": {median}, \"p99_ns\": {p99}, \"begin_ns\": {begin_ns}}}");
}

fn pause(gap_us: usize) {
    let until = clock::now_ns() + gap_us as u64 * 1000;
    while clock::now_ns() < until {
        spin_loop();
    }
}

fn options(quota_bytes: u64) -> OpenOptions {
    OpenOptions {
        tier: Some(TierKind::Dram),
        quota_bytes: Some(quota_bytes),
        readers: vec![("seen".into(), 1)],
        component: Some("seen".into()),
        ..OpenOptions::default()
    }
}

/// Words beside the measured channel: what the reader has finished, and for the floor its round and beginning.
const DONE: u64 = 0;
const ROUND: u64 = 64;
const BEGAN: u64 = 128;
const WORDS: u64 = 4096;

fn words_of(name: &str) -> PathBuf {
    PathBuf::from(format!("{name}-words"))
}

/// Until the reader has finished so many rounds; and then some, so that it waits again.
fn wait_for_reader(words: &SharedWords, finished: usize, gap_us: usize) {
    while words.u32(DONE).load(Acquire) < finished as u32 {
        spin_loop();
    }
    pause(gap_us);
}

fn seen(name: &str, bytes: usize, rounds: usize, gap_us: usize) -> Result<()> {
    let words = SharedWords::create(&words_of(name), WORDS)?;
    let mut writer = Writer::open(name, &options(256 << 20))?;
    let child = reader("seen-reader", name, &[bytes, rounds]);
    let mut object = vec![7u8; bytes];
    for round in 0..WARM + rounds {
        writer.begin_step()?;
        wait_for_reader(&words, round + 1, gap_us);
        object[..8].copy_from_slice(&clock::now_ns().to_le_bytes());
        writer.put("object", Dtype::U8, &[bytes as u64], &[0], &[bytes as u64], &object)?;
        writer.end_step()?;
    }
    end(child);
    let _ = std::fs::remove_file(words.path());
    writer.close()
}

fn seen_reader(name: &str, bytes: usize, rounds: usize) -> Result<()> {
    let words = SharedWords::open(&words_of(name), WORDS)?;
    let mut reader = Reader::open(name, &options(0))?;
    words.u32(DONE).store(1, Release);
    let mut object = vec![0u8; bytes];
    let mut ns = Vec::with_capacity(WARM + rounds);
    for round in 0..WARM + rounds {
        reader.begin_step(None)?;
        reader.get("object", None, &mut object)?;
        let now = clock::now_ns();
        ns.push(now - u64::from_le_bytes(object[..8].try_into().expect("eight bytes")));
        reader.end_step()?;
        words.u32(DONE).store(round as u32 + 2, Release);
    }
    report(ns.split_off(WARM), 0);
    reader.close()
}

fn floor(name: &str, rounds: usize, gap_us: usize) -> Result<()> {
    let words = SharedWords::create(&words_of(name), WORDS)?;
    let child = reader("floor-reader", name, &[rounds]);
    for round in 1..=WARM + rounds {
        wait_for_reader(&words, round, gap_us);
        words.u64(BEGAN).store(clock::now_ns(), Release);
        words.u32(ROUND).store(round as u32, Release);
        wait::wake_all(words.u32(ROUND));
    }
    end(child);
    let _ = std::fs::remove_file(words.path());
    Ok(())
}

fn floor_reader(name: &str, rounds: usize) -> Result<()> {
    let words = SharedWords::open(&words_of(name), WORDS)?;
    let mut ns = Vec::with_capacity(WARM + rounds);
    for round in 0..(WARM + rounds) as u32 {
        words.u32(DONE).store(round + 1, Release);
        while words.u32(ROUND).load(Acquire) == round {
            wait::wait(words.u32(ROUND), round, Duration::from_secs(5));
        }
        ns.push(clock::now_ns() - words.u64(BEGAN).load(Acquire));
    }
    report(ns.split_off(WARM), 0);
    Ok(())
}

fn names(objects: usize) -> Vec<String> {
    (0..objects).map(|i| format!("object_{i:05}")).collect()
}

fn objects_put(how: &str, name: &str, bytes: usize, objects: usize) -> Result<()> {
    let quota = (objects * (bytes + 256)) as u64 + (512 << 20);
    let mut writer =
        Writer::open(name, &OpenOptions { retention: Some(Retention::Last(1)), ..options(quota) })?;
    let data: Vec<u8> = (0..objects * bytes).map(|i| (i * 31 + i / 257) as u8).collect();
    writer.begin_step()?;
    writer.put_many(&names(objects), Dtype::U8, &[bytes as u64], &data)?;
    writer.end_step()?;
    end(reader(&format!("{how}-reader"), name, &[bytes, objects]));
    writer.close()
}

fn objects_read(view: bool, name: &str, bytes: usize, objects: usize) -> Result<()> {
    let names = names(objects);
    let mut reader = Reader::open(name, &options(0))?;
    let began = clock::now_ns();
    reader.begin_step(None)?;
    let begin_ns = clock::now_ns() - began;
    let mut out = vec![1u8; bytes];
    let group = GROUP.min(objects);
    let mut ns = Vec::new();
    for labels in names.chunks_exact(group) {
        let begin = clock::now_ns();
        for label in labels {
            match view {
                true => {
                    black_box(reader.view(label, None)?);
                }
                false => reader.get(label, None, black_box(&mut out))?,
            }
        }
        ns.push((clock::now_ns() - begin) / group as u64);
    }
    report(ns, begin_ns);
    reader.end_step()?;
    reader.close()
}
