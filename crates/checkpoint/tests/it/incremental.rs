//! Incremental and compressed steps: only what changed is written, every step comes back whole, what an incremental
//! step stands on stays as long as it does, and damage there is told of the step that is asked for.

use std::path::Path;

use forebay_checkpoint::{Checkpoint, Dtype, Kind, NdBox, Options, Restored, StepReport};
use forebay_tier::adapter::fault::FaultPlan;
use forebay_tier::checksum::crc32c;

use crate::state::{dirs, disk, file_of, files, flip, options};

const CHUNK: usize = 65536;
/// Chunks, and some bytes more.
const BYTES: usize = 20 * CHUNK + 777;

/// The array after a step: every step changes two chunks of the twenty, and some the short one at the end.
fn array(step: u64) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    for (nth, chunk) in bytes.chunks_mut(CHUNK).enumerate() {
        let last = step - (step + 10 - nth as u64 % 10) % 10;
        for (at, byte) in chunk.iter_mut().enumerate() {
            // Half of it is easy to compress.
            let noise = if at % 2 == 0 { at.wrapping_mul(0x9E37_79B9) >> 13 } else { 0 };
            *byte = (last as usize * 7 + nth + noise) as u8;
        }
    }
    bytes
}

fn open(base: &Path, options: &Options) -> Checkpoint {
    let mut checkpoint = Checkpoint::open(base, options).unwrap();
    checkpoint.protect("a", Dtype::U8, &[BYTES as u64], &NdBox::whole(&[BYTES as u64])).unwrap();
    checkpoint.protect("step", Dtype::U64, &[], &NdBox::whole(&[])).unwrap();
    checkpoint
}

fn save(checkpoint: &mut Checkpoint, step: u64) -> forebay_checkpoint::Result<()> {
    checkpoint.save(step, &[&array(step), &step.to_le_bytes()])
}

/// Saves steps 11 to `last`.
fn saved(base: &Path, options: &Options, last: u64) {
    let mut checkpoint = open(base, options);
    (11..=last).for_each(|step| save(&mut checkpoint, step).unwrap());
    checkpoint.close().unwrap();
}

fn restored(base: &Path, options: &Options) -> Restored {
    let (mut a, mut step) = (vec![0xA5; BYTES], [0; 8]);
    let mut checkpoint = open(base, options);
    let restored = checkpoint.restore_latest(&mut [&mut a, &mut step]).unwrap().unwrap();
    assert_eq!(u64::from_le_bytes(step), restored.step);
    assert!(a == array(restored.step), "the array is not that of step {}", restored.step);
    restored
}

fn steps(base: &Path, level: usize) -> Vec<StepReport> {
    let mut levels = forebay_checkpoint::list(base).unwrap().levels;
    levels.remove(level).steps.into_iter().filter(|step| step.committed).collect()
}

fn bases(base: &Path, level: usize) -> Vec<(u64, Option<u64>)> {
    steps(base, level).iter().map(|step| (step.step, step.incremental_on)).collect()
}

fn assert_whole(base: &Path) {
    for found in forebay_checkpoint::verify(base, None).unwrap() {
        assert_eq!(found.fault, None, "step {} in {}", found.step, found.dir.display());
        assert_eq!(found.bytes, BYTES as u64 + 8);
    }
}

#[test]
fn only_what_changed_is_written_and_what_it_stands_on_stays() {
    for words in [",tier=file", ",tier=file,compress=zstd:1", ",tier=direct"] {
        let (base, memory) = if words.contains("direct") { disk() } else { dirs() };
        let level = format!("{}/level,keep=3,incremental=4{words}", base.path().display());
        let options = options(&[&level], memory.path());
        match Checkpoint::open(base.path(), &options) {
            Err(e) if e.kind() == Kind::NotPossibleHere => continue,
            opened => opened.unwrap().close().unwrap(),
        }
        saved(base.path(), &options, 20);
        let on = [(20, Some(19)), (19, None), (18, Some(15)), (17, Some(15)), (15, None)];
        assert_eq!(bases(base.path(), 0), on, "{words}");
        let found = steps(base.path(), 0);
        // Two chunks, and an array of 8 bytes.
        assert!(found[0].bytes <= 2 * CHUNK as u64 + 8192, "{words}: {}", found[0].bytes);
        let full = if words.contains("zstd") { BYTES / 100..BYTES * 3 / 4 } else { BYTES..BYTES + 9000 };
        assert!(full.contains(&(found[1].bytes as usize)), "{words}: {}", found[1].bytes);
        assert_whole(base.path());
        assert_eq!(restored(base.path(), &options).step, 20, "{words}");
        let mut checkpoint = open(base.path(), &options);
        for (step, _) in on {
            let (mut a, mut number) = (vec![0; BYTES], [0; 8]);
            let taken = checkpoint.restore(step, &mut [&mut a, &mut number]).unwrap();
            assert!(taken.step == step && a == array(step), "{words} {step}");
        }
        // A new process does not know what the last one saved: it begins with a full step.
        save(&mut checkpoint, 21).unwrap();
        assert_eq!(bases(base.path(), 0)[0], (21, None), "{words}");
    }
}

#[test]
fn long_runs_of_changes_are_written_from_where_they_are() {
    let (base, memory) = dirs();
    let options = options(&["file,incremental=4"], memory.path());
    let length = 80 * CHUNK;
    let state = |step: u8| {
        let mut bytes = vec![7; length];
        bytes[5 * CHUNK..45 * CHUNK].fill(step);
        bytes
    };
    let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
    checkpoint.protect("a", Dtype::U8, &[length as u64], &NdBox::whole(&[length as u64])).unwrap();
    (1..=3).for_each(|step| checkpoint.save(u64::from(step), &[&state(step)]).unwrap());
    assert_eq!(bases(base.path(), 0)[0], (3, Some(1)));
    assert_eq!(steps(base.path(), 0)[0].bytes, 40 * CHUNK as u64);
    let mut out = vec![0; length];
    let _ = checkpoint.restore_latest(&mut [&mut out]).unwrap().unwrap();
    assert!(out == state(3));
}

#[test]
fn a_lower_level_is_incremental_by_itself() {
    for levels in [&["dram", "file,incremental=4"][..], &["file,incremental=3,compress=zstd", "/below"]] {
        let (base, memory) = dirs();
        let below = format!("{}/below", base.path().display());
        let levels: Vec<&str> = levels.iter().map(|l| if *l == "/below" { &below } else { *l }).collect();
        let options = options(&levels, memory.path());
        saved(base.path(), &options, 30);
        assert_whole(base.path());
        let packed = usize::from(levels[0] == "dram");
        assert!(steps(base.path(), packed)[0].incremental_on.is_some(), "{levels:?}");
        assert_eq!(steps(base.path(), 1 - packed)[0].incremental_on, None, "{levels:?}");
        assert_eq!(steps(base.path(), 1)[0].step, 30, "{levels:?}");
        std::fs::remove_dir_all(if packed == 1 {
            memory.path().join(".checkpoints")
        } else {
            base.path().join("file")
        })
        .unwrap();
        assert_eq!(restored(base.path(), &options).step, 30, "{levels:?}");
    }
}

#[test]
fn a_damaged_full_step_takes_those_with_it_that_stand_on_it_and_is_named() {
    for (file, reason) in [
        ("00000.data", "the full step 19 on which it depends: data is damaged"),
        ("00000.manifest", "the full step 19 on which it depends: a manifest is damaged"),
    ] {
        for harm in ["erase", "change", "cut"] {
            let (base, memory) = dirs();
            let options = options(&["file,keep=3,incremental=4"], memory.path());
            saved(base.path(), &options, 20);
            let path = file_of(&base.path().join("file"), 19, file);
            let bytes = std::fs::read(&path).unwrap();
            match harm {
                "erase" => std::fs::remove_file(&path).unwrap(),
                "cut" => std::fs::write(&path, &bytes[..bytes.len() / 2 / 4096 * 4096]).unwrap(),
                // A chunk that step 20 did not change.
                _ => flip(&path, (bytes.len() / 2).min(5 * CHUNK)),
            }
            let found = restored(base.path(), &options);
            assert_eq!((found.step, found.lost), (18, Some(20)), "{harm} {file}");
            assert_eq!(found.rejected.len(), 2, "{harm} {file}: {found}");
            let said = &found.rejected[0].reason;
            assert!(said.starts_with("the full step 19 on which it depends: "), "{harm} {file}: {said}");
            assert!(harm != "change" || said.starts_with(reason), "{harm} {file}: {said}");
            let verified = forebay_checkpoint::verify(base.path(), Some(20)).unwrap();
            assert_eq!((verified[0].incremental_on, verified[0].kind), (Some(19), Some("Damaged")));
        }
    }
    // What it changed itself it does not need the full step for.
    let (base, memory) = dirs();
    let options = options(&["file,keep=3,incremental=4"], memory.path());
    saved(base.path(), &options, 20);
    flip(&file_of(&base.path().join("file"), 19, "00000.data"), 5);
    assert_eq!(restored(base.path(), &options).step, 20);
    std::fs::remove_file(file_of(&base.path().join("file"), 19, "commit")).unwrap();
    assert_eq!(restored(base.path(), &options).step, 20);
}

#[test]
fn a_full_step_of_another_time_is_not_stood_on() {
    let (base, memory) = dirs();
    let options = options(&["file,keep=3,incremental=4"], memory.path());
    saved(base.path(), &options, 20);
    for file in ["00000.data", "00000.manifest"] {
        let level = base.path().join("file");
        std::fs::copy(file_of(&level, 15, file), file_of(&level, 19, file)).unwrap();
    }
    let found = restored(base.path(), &options);
    assert_eq!(found.step, 18, "{found}");
    assert!(found.rejected[0].reason.contains("not the one that was stood on"), "{found}");
}

#[test]
fn every_changed_byte_of_a_compressed_step_is_noticed_before_it_is_decompressed() {
    let (base, memory) = dirs();
    let options = options(&["file,incremental=2,compress=zstd"], memory.path());
    let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
    let length = 4 * CHUNK as u64;
    checkpoint.protect("a", Dtype::U8, &[length], &NdBox::whole(&[length])).unwrap();
    let mut bytes = vec![3; length as usize];
    checkpoint.save(1, &[&bytes]).unwrap();
    bytes[2 * CHUNK..3 * CHUNK].fill(9);
    checkpoint.save(2, &[&bytes]).unwrap();
    checkpoint.close().unwrap();
    let stored = forebay_checkpoint::pieces(base.path(), 2).unwrap()[0].variables[0].stored_bytes();
    assert!((10..100).contains(&stored), "{stored}");
    for (file, most) in [("00000.data", stored as usize), ("00000.manifest", usize::MAX)] {
        let path = file_of(base.path(), 2, file);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len().min(most) {
            flip(&path, at);
            let found = forebay_checkpoint::verify(base.path(), Some(2)).unwrap();
            let fault = found[0].fault.as_ref().unwrap_or_else(|| panic!("byte {at} of {file}"));
            assert!(
                file != "00000.data" || fault.contains("compressed bytes do not match"),
                "byte {at}: {fault}"
            );
            std::fs::write(&path, &good).unwrap();
        }
    }
}

#[test]
fn a_chunk_that_changed_and_kept_its_checksum_is_saved() {
    let (base, memory) = dirs();
    let options = options(&["file,incremental=9"], memory.path());
    let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
    let length = 4 * CHUNK as u64;
    checkpoint.protect("a", Dtype::U8, &[length], &NdBox::whole(&[length])).unwrap();
    let before = vec![1; length as usize];
    // A multiple of the generator changes no CRC.
    let mut after = before.clone();
    for bit in (0..33).filter(|bit| (0x1_1EDC_6F41_u64 >> (32 - bit)) & 1 == 1) {
        after[1000 + bit / 8] ^= 1 << (bit % 8);
    }
    assert!(before != after && crc32c(&before[..CHUNK]) == crc32c(&after[..CHUNK]));
    checkpoint.save(1, &[&before]).unwrap();
    checkpoint.save(2, &[&after]).unwrap();
    assert_eq!(bases(base.path(), 0)[0], (2, Some(1)));
    let mut out = vec![0; length as usize];
    let _ = checkpoint.restore_latest(&mut [&mut out]).unwrap().unwrap();
    assert!(out == after);
}

#[test]
fn after_a_failed_save_and_with_much_changed_a_full_step_is_written() {
    let (base, memory) = disk();
    let plan = Some(FaultPlan::parse("persist:eio@3").unwrap());
    let options = Options { faults: plan, ..options(&["file,incremental=9"], memory.path()) };
    let mut checkpoint = open(base.path(), &options);
    save(&mut checkpoint, 11).unwrap();
    save(&mut checkpoint, 12).unwrap();
    assert_eq!(save(&mut checkpoint, 13).unwrap_err().kind(), Kind::Poisoned);
    save(&mut checkpoint, 14).unwrap();
    save(&mut checkpoint, 15).unwrap();
    assert_eq!(bases(base.path(), 0)[..2], [(15, Some(14)), (14, None)]);
    save(&mut checkpoint, 30).unwrap();
    assert_eq!(bases(base.path(), 0)[0], (30, None));
    assert_whole(base.path());
    // And when there is another array.
    checkpoint.protect("late", Dtype::U8, &[3], &NdBox::whole(&[3])).unwrap();
    checkpoint.save(31, &[&array(31), &[0; 8], &[1; 3]]).unwrap();
    assert_eq!(bases(base.path(), 0)[0], (31, None));
}

#[test]
fn what_does_not_become_shorter_lies_there_as_it_is() {
    let (base, memory) = dirs();
    let options = Options { compress: "zstd:1".into(), ..options(&["dram", "file"], memory.path()) };
    let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
    let length = 3 * CHUNK as u64 + 5;
    checkpoint.protect("noise", Dtype::U8, &[length], &NdBox::whole(&[length])).unwrap();
    let mut word = 1u64;
    let mut noise = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 56) as u8
    };
    let bytes: Vec<u8> = (0..length).map(|_| noise()).collect();
    checkpoint.save(1, &[&bytes]).unwrap();
    checkpoint.wait().unwrap();
    assert!(steps(base.path(), 1)[0].bytes >= length);
    std::fs::remove_dir_all(memory.path().join(".checkpoints")).unwrap();
    let mut out = vec![0; length as usize];
    let _ = checkpoint.restore_latest(&mut [&mut out]).unwrap().unwrap();
    assert!(out == bytes);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (base, memory) = dirs();
    let refused = |options: Options| Checkpoint::open(base.path(), &options).err().map(|e| e.kind());
    for level in [
        "file,incremental=0",
        "file,incremental=x",
        "file,compress=gzip",
        "file,compress=zstd:99",
        "dram,incremental=3",
    ] {
        assert_eq!(refused(options(&[level], memory.path())), Some(Kind::Usage), "{level}");
    }
    let all_memory = Options { incremental: 4, ..options(&["dram"], memory.path()) };
    assert_eq!(refused(all_memory), Some(Kind::Usage));
    let level = Options { incremental: 4, ..options(&["dram", "file,incremental=1"], memory.path()) };
    saved(base.path(), &level, 14);
    assert!(
        steps(base.path(), 1).iter().all(|step| step.incremental_on.is_none()),
        "the level's own word counts"
    );
    assert!(!files(base.path()).is_empty());
}
