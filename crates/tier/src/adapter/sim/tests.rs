//! The simulator keeps the contract of a device, and leaves exactly the images that its mediums allow.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::*;
use crate::device::conformance;

const BLOCKS: Medium = Medium::Blocks { torn_bytes: 512 };
/// Of the 8192 bytes the first half is memory.
const BOTH: Medium = Medium::Both { lines_bytes: 4096, torn_bytes: 512 };

fn empty(medium: Medium) -> Sim {
    let sim = Sim::in_memory(&[0; 8192], medium).unwrap();
    sim.record();
    sim
}

/// What two bytes of the pool hold in the images of each crash; torn lines are left out.
fn images(sim: &Sim, at: [u64; 2]) -> Vec<Vec<(u8, u8)>> {
    let trace = sim.take_trace();
    let plan = Plan { exhaustive_max: 4096, samples: 0, torn: 0, seed: 1, only: None };
    let mut explorer = Explorer::new(&trace);
    let mut all = Vec::new();
    while explorer.crash().is_some() {
        let mut found = Vec::new();
        let _ = explorer.images(&plan, |image, _, _| {
            found.push((image.as_slice()[at[0] as usize], image.as_slice()[at[1] as usize]));
            ControlFlow::<()>::Continue(())
        });
        found.sort_unstable();
        found.dedup();
        all.push(found);
        explorer.step();
    }
    all
}

#[test]
fn it_is_a_device() {
    for medium in [Medium::Lines, BLOCKS, Medium::Blocks { torn_bytes: 4096 }] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let next = std::sync::atomic::AtomicU32::new(0);
        conformance::check(&|capacity| {
            let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let inner = dram::create(&dir.path().join(format!("pool{n}")), capacity).unwrap();
            Arc::new(Sim::new(Arc::new(inner), medium).unwrap())
        });
    }
}

#[test]
fn a_line_is_settled_by_a_fence_after_it_was_written_back() {
    let sim = empty(Medium::Lines);
    sim.write(0, &[1]).unwrap();
    sim.store_word(64, u64::from_le_bytes([1; 8])).unwrap();
    sim.fence();
    sim.fence();
    sim.persist(64..72).unwrap();
    sim.crash_now();
    let anything = vec![(0, 0), (0, 1), (1, 0), (1, 1)];
    // At the second fence the first line is certain, at the persist the word still is not, then both are.
    let expected = [anything, vec![(1, 0), (1, 1)], vec![(1, 0), (1, 1)], vec![(1, 1)]];
    assert_eq!(images(&sim, [0, 64]), expected);
}

#[test]
fn a_fence_settles_only_what_its_own_actor_wrote_back() {
    let sim = empty(Medium::Lines);
    sim.act(1, 0);
    sim.write(0, &[1]).unwrap();
    sim.act(2, 0);
    sim.write(64, &[1]).unwrap();
    sim.fence();
    sim.crash_now();
    assert_eq!(images(&sim, [0, 64])[1], [(0, 1), (1, 1)]);
}

#[test]
fn a_line_may_hold_any_value_since_it_was_settled_but_no_older_one() {
    let sim = empty(Medium::Lines);
    for value in 1..=3 {
        sim.write(0, &[value]).unwrap();
    }
    sim.store_word(0, 4).unwrap();
    sim.fence();
    sim.crash_now();
    let found = images(&sim, [0, 1]);
    assert_eq!(found[0], [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
    assert_eq!(found[1], [(3, 0), (4, 0)], "written back was 3, 4 was stored after");
}

#[test]
fn staged_memory_is_dirty_until_it_is_persisted() {
    let sim = empty(Medium::Lines);
    let mut staged = sim.stage(0..128).unwrap();
    staged.as_mut_slice().fill(7);
    sim.fence();
    sim.unstage(staged, None, &mut Vec::new()).unwrap();
    sim.fence();
    sim.persist(0..128).unwrap();
    sim.crash_now();
    let found = images(&sim, [0, 64]);
    assert_eq!((found[0].len(), found[1].len(), found[2].len()), (4, 4, 4));
    assert_eq!(found[3], [(7, 7)]);
}

#[test]
fn words_of_a_torn_line_are_old_or_new() {
    let sim = empty(Medium::Lines);
    sim.write(0, &[1; 64]).unwrap();
    sim.crash_now();
    let trace = sim.take_trace();
    let plan = Plan { exhaustive_max: 4096, samples: 0, torn: 2000, seed: 1, only: None };
    let mut seen = BTreeSet::new();
    let mut numbers = Vec::new();
    let _ = Explorer::new(&trace).images(&plan, |image, number, _| {
        let words: Vec<u64> =
            image.as_slice()[..64].chunks(8).map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect();
        assert!(words.iter().all(|word| [0, 0x0101_0101_0101_0101].contains(word)), "{words:x?}");
        assert!(seen.insert(words.clone()), "an image came twice");
        numbers.push((number, words));
        ControlFlow::<()>::Continue(())
    });
    assert!(seen.len() > 100, "{} of 256 mixtures", seen.len());
    // A number alone gives the image again.
    let (number, words) = numbers.pop().unwrap();
    let again = Explorer::new(&trace).images(&Plan { only: Some(number), ..plan }, |image, _, _| {
        ControlFlow::Break(image.as_slice()[..64].to_vec())
    });
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(again, ControlFlow::Break(bytes));
}

#[test]
fn a_block_device_settles_everything_at_a_flush_and_tears_at_blocks() {
    let sim = empty(BLOCKS);
    sim.write(500, &[1; 24]).unwrap();
    sim.fence();
    sim.persist(4096..4097).unwrap();
    sim.crash_now();
    let found = images(&sim, [500, 512]);
    assert_eq!(found, [vec![(0, 0), (0, 1), (1, 0), (1, 1)], vec![(1, 1)]], "a fence is nothing there");
}

#[test]
fn memory_and_the_blocks_behind_it_settle_each_for_itself() {
    let sim = empty(BOTH);
    sim.write(4032, &[1; 64]).unwrap();
    sim.write(4096, &[1; 64]).unwrap();
    sim.fence();
    sim.write(0, &[1]).unwrap();
    sim.persist(4608..4609).unwrap();
    sim.crash_now();
    let border = images(&sim, [4032, 4096]);
    assert_eq!(border[0], [(0, 0), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(border[1], [(1, 0), (1, 1)], "a fence settles only the line");
    assert_eq!(border[2], [(1, 1)]);
    let sim = empty(BOTH);
    sim.write(0, &[1]).unwrap();
    sim.write(5000, &[1]).unwrap();
    sim.inject_flush_failure(libc::EIO);
    sim.persist(0..1).unwrap();
    assert_eq!(sim.persist(5000..5001).unwrap_err().kind(), Kind::Poisoned);
    assert_eq!(sim.write(5000, &[2]).unwrap_err().kind(), Kind::Poisoned);
    sim.write(0, &[2]).unwrap();
    sim.persist(0..1).unwrap();
    sim.crash_now();
    assert_eq!(images(&sim, [0, 5000]).pop().unwrap(), [(2, 0), (2, 1)], "the memory goes on");
}

#[test]
fn after_a_failed_flush_anything_may_be_there() {
    let sim = empty(BLOCKS);
    sim.write(0, &[1]).unwrap();
    sim.inject_flush_failure(libc::EIO);
    assert_eq!(sim.persist(0..1).unwrap_err().kind(), Kind::Poisoned);
    sim.crash_now();
    assert_eq!(images(&sim, [0, 1]), [vec![(0, 0), (1, 0)], vec![(0, 0), (1, 0)]]);
}

#[test]
fn a_process_dies_before_the_fence_and_the_memory_stays() {
    let sim = empty(Medium::Lines);
    sim.die_at_fence(1);
    sim.write(0, &[1]).unwrap();
    sim.fence();
    sim.write(64, &[1]).unwrap();
    let died = catch_unwind(AssertUnwindSafe(|| sim.fence())).unwrap_err();
    assert!(died.is::<Died>());
    sim.crash_now();
    assert_eq!(sim.bytes(64..65), [1]);
    assert_eq!(images(&sim, [0, 64])[1], [(1, 0), (1, 1)]);
}

#[test]
fn above_the_limit_images_are_sampled_and_never_equal() {
    let sim = empty(Medium::Lines);
    for line in 0..100 {
        sim.write(line * 64, &[1; 64]).unwrap();
    }
    sim.fence();
    sim.crash_now();
    let trace = sim.take_trace();
    let plan = Plan { exhaustive_max: 4096, samples: 50, torn: 10, seed: 3, only: None };
    let mut explorer = Explorer::new(&trace);
    let mut images = BTreeSet::new();
    let mut hashes = BTreeSet::new();
    let _ = explorer.images(&plan, |image, _, hash| {
        assert!(images.insert(image.as_slice().to_vec()), "an image came twice");
        hashes.insert(hash);
        ControlFlow::<()>::Continue(())
    });
    assert!((105..=112).contains(&images.len()), "{} of 2 + 2 * 25 + 50 + 10", images.len());
    assert_eq!(hashes.len(), images.len());
    assert!(images.contains(&vec![0; 8192]), "the oldest is among them");
    explorer.step();
    let _ = explorer.images(&plan, |image, _, hash| {
        assert!(hashes.contains(&hash) && images.contains(image.as_slice()), "after the fence all is new");
        ControlFlow::<()>::Continue(())
    });
}

#[test]
fn each_flaw_loses_what_it_says() {
    let run = |flaw| {
        let sim = Sim::in_memory(&[0; 8192], Medium::Lines).unwrap().with_flaw(flaw);
        sim.record();
        sim.write(0, &[1]).unwrap();
        sim.write_checksummed(64, &[1], 64, &mut Vec::new()).unwrap();
        sim.fence();
        sim.crash_now();
        let written = images(&sim, [0, 64]).pop().unwrap();
        sim.record();
        sim.store_word(128, 1).unwrap();
        sim.persist(128..136).unwrap();
        sim.crash_now();
        let stored = images(&sim, [128, 129]).pop().unwrap();
        (written, stored)
    };
    let (old, new) = ((0, 0), (1, 0));
    assert_eq!(run(None), (vec![(1, 1)], vec![new]));
    assert_eq!(run(Some(Flaw::WriteKeepsLines)), (vec![(0, 1), (1, 1)], vec![new]));
    assert_eq!(run(Some(Flaw::ChecksummedWriteKeepsLines)), (vec![(1, 0), (1, 1)], vec![new]));
    assert_eq!(run(Some(Flaw::PersistKeepsLines)), (vec![(1, 1)], vec![old, new]));
    assert_eq!(run(Some(Flaw::PersistDoesNothing)), (vec![(1, 1)], vec![old, new]));
    assert_eq!(run(Some(Flaw::FenceDoesNothing)).0.len(), 4);
}
