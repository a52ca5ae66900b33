//! A store of objects as a level: everything that holds for directories holds there.

use std::path::Path;

use forebay_checkpoint::{Checkpoint, Dtype, Durability, Kind, NdBox};

use crate::ranks::group;
use crate::state::{dirs, file_of, flip, options, Program};

fn store(base: &Path) -> String {
    format!("file://{}/store", base.display())
}

#[test]
fn a_program_goes_on_from_a_store_of_objects() {
    for above in [&[][..], &["dram"]] {
        let (base, memory) = dirs();
        let url = store(base.path());
        let levels: Vec<&str> = above.iter().copied().chain([&*url]).collect();
        let options = self::options(&levels, memory.path());
        let mut program = Program::open(base.path(), &options).unwrap();
        assert_eq!(program.checkpoint.durability(above.len()), Durability::Power);
        for step in 1..=5 {
            program.save(step).unwrap();
        }
        assert_eq!(program.checkpoint.wait().unwrap(), Some(5));
        program.checkpoint.close().unwrap();
        if !above.is_empty() {
            // Memory is lost with its node.
            std::fs::remove_dir_all(memory.path().join(".checkpoints")).unwrap();
        }
        let found = forebay_checkpoint::list(base.path()).unwrap().levels.pop().unwrap();
        assert_eq!(found.steps[..2].iter().map(|step| step.step).collect::<Vec<_>>(), [5, 4]);
        let mut again = Program::open(base.path(), &options).unwrap();
        let restored = again.restore().unwrap().unwrap();
        assert_eq!((restored.step, restored.lost, restored.rejected.len()), (5, None, 0), "{restored}");
        again.checkpoint.close().unwrap();
        // On another machine, which has nothing but the address.
        let (other, memory) = dirs();
        let options = self::options(&levels, memory.path());
        let mut elsewhere = Program::open(other.path(), &options).unwrap();
        assert_eq!(elsewhere.restore().unwrap().unwrap().step, 5);
        elsewhere.save(6).unwrap();
        assert_eq!(elsewhere.checkpoint.wait().unwrap(), Some(6));
    }
}

/// In the store that FOREBAY_TEST_STORE names, as in s3://bucket/prefix, with AWS_ACCESS_KEY_ID and the others: that of
/// s3.rs, which starts this one, or a user's.
#[test]
#[ignore = "the child of another test"]
fn a_program_goes_on_from_a_store_behind_a_network() {
    let url = std::env::var("FOREBAY_TEST_STORE").expect("FOREBAY_TEST_STORE names a store");
    let (base, memory) = dirs();
    let url = format!("{url}/{}", base.path().file_name().unwrap().display());
    let options = options(&["dram", &format!("{url},keep=1,incremental=4")], memory.path());
    group(3, base.path(), &options, |_, program| {
        (0..6).for_each(|step| program.save(step).unwrap());
        assert_eq!(program.checkpoint.wait().unwrap(), Some(5));
    });
    std::fs::remove_dir_all(memory.path().join(".checkpoints")).unwrap();
    for size in [3, 2] {
        group(size, base.path(), &options, |_, program| {
            let restored = program.restore().unwrap().unwrap();
            assert_eq!((restored.step, restored.lost, restored.rejected.len()), (5, None, 0), "{restored}");
        });
    }
    let large = Checkpoint::open(
        &base.path().join("large"),
        &self::options(&[&format!("{url}/large")], memory.path()),
    );
    let (mut large, bytes) = (large.unwrap(), 50 << 20);
    large.protect("u", Dtype::U8, &[bytes], &NdBox::whole(&[bytes])).unwrap();
    let wanted: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    large.save(1, &[&wanted]).unwrap();
    let mut found = vec![0; wanted.len()];
    assert!(large.restore_latest(&mut [&mut found]).unwrap().is_some() && found == wanted);
}

#[test]
fn ranks_go_on_in_other_numbers_also_from_incremental_steps() {
    for packing in ["", ",incremental=3,compress=zstd:1"] {
        let (base, memory) = dirs();
        let url = store(base.path()) + packing;
        let options = options(&[&url], memory.path());
        group(4, base.path(), &options, |_, program| {
            (0..5).for_each(|step| program.save(step).unwrap());
            assert_eq!(program.checkpoint.wait().unwrap(), Some(4));
        });
        for size in [4, 1, 3] {
            group(size, base.path(), &options, |_, program| {
                let restored = program.restore().unwrap().unwrap();
                assert_eq!((restored.step, restored.rejected.len()), (4, 0), "as {size}: {restored}");
            });
        }
    }
}

#[test]
fn damage_is_seen_and_the_step_before_is_taken() {
    let (base, memory) = dirs();
    let url = store(base.path());
    let options = options(&[&url], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    (1..=2).for_each(|step| program.save(step).unwrap());
    program.checkpoint.close().unwrap();
    flip(&file_of(&base.path().join("store"), 2, "00000.data"), 70_000);
    let mut again = Program::open(base.path(), &options).unwrap();
    let restored = again.restore().unwrap().unwrap();
    assert_eq!((restored.step, restored.lost, restored.rejected.len()), (1, Some(2), 1));
}

#[test]
fn what_cannot_be_a_store_is_said() {
    let (base, memory) = dirs();
    let url = store(base.path());
    let wrong = [
        ("object".to_string(), Kind::Usage),
        ("gs://bucket".to_string(), Kind::Usage),
        ("s3:/bucket".to_string(), Kind::Usage),
        (format!("{url}+partner"), Kind::NotPossibleHere),
        (format!("{url}/{{node}}"), Kind::NotPossibleHere),
        (format!("{url},tier=direct"), Kind::NotPossibleHere),
    ];
    for (level, kind) in wrong {
        let options = options(&[&level], memory.path());
        assert_eq!(Program::open(base.path(), &options).err().unwrap().kind(), kind, "{level}");
    }
}
