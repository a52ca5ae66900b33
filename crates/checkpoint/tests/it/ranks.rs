//! Several ranks: a step counts when all have saved it, all restore the same one, and other numbers of ranks can go on.

use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use forebay_checkpoint::{Checkpoint, Dtype, Kind, NdBox, Options};

use crate::state::{dirs, file_of, flip, options, Program, COLUMNS, ROWS};

/// Runs `work` as each rank of a group, in threads.
pub fn group(size: u32, base: &Path, options: &Options, work: impl Fn(u32, &mut Program) + Sync) {
    let barrier = Barrier::new(size as usize);
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (work, barrier) = (&work, &barrier);
            let options = Options { rank, size, ..options.clone() };
            scope.spawn(move || {
                let mut program = Program::open(base, &options).unwrap();
                barrier.wait();
                work(rank, &mut program);
                barrier.wait();
            });
        }
    });
}

#[test]
fn four_ranks_go_on_as_four_as_one_as_three_and_as_six() {
    for levels in [&["file"][..], &["dram", "file"]] {
        let (base, memory) = dirs();
        let options = options(levels, memory.path());
        group(4, base.path(), &options, |_, program| {
            for step in 0..3 {
                program.save(step).unwrap();
            }
            assert_eq!(program.checkpoint.wait().unwrap(), Some(2));
        });
        for size in [4, 1, 3, 6] {
            group(size, base.path(), &options, |_, program| {
                let restored = program.restore().unwrap().unwrap();
                assert_eq!((restored.step, restored.lost), (2, None), "as {size}");
            });
        }
    }
}

/// Columns of the first row change with every step, the others never.
fn slowly(step: u64, part: &NdBox) -> Vec<u8> {
    let mut bytes = crate::state::u(0, part);
    if part.start[0] == 0 {
        bytes[..8].copy_from_slice(&step.to_le_bytes());
    }
    bytes
}

#[test]
fn incremental_steps_of_four_ranks_go_on_as_four_as_one_as_three_and_as_six() {
    for level in ["file,incremental=4", "file,incremental=4,compress=zstd"] {
        let (base, memory) = dirs();
        let options = options(&[level], memory.path());
        group(4, base.path(), &options, |_, program| {
            for step in 0..7 {
                program.u = slowly(step, &program.part);
                program.count = step.to_le_bytes().to_vec();
                program.checkpoint.save(step, &[&program.u, &program.count]).unwrap();
            }
            assert_eq!(program.checkpoint.wait().unwrap(), Some(6));
        });
        let found = &forebay_checkpoint::list(base.path()).unwrap().levels[0].steps;
        assert_eq!((found[0].step, found[0].incremental_on), (6, Some(4)), "{level}");
        for size in [4, 1, 3, 6] {
            group(size, base.path(), &options, |_, program| {
                let targets = &mut [&mut program.u[..], &mut program.count[..]];
                let restored = program.checkpoint.restore_latest(targets).unwrap().unwrap();
                assert_eq!((restored.step, restored.rejected.len()), (6, 0), "{level} as {size}");
                assert!(program.u == slowly(6, &program.part), "{level} as {size}");
            });
        }
    }
}

#[test]
fn ranks_whose_full_steps_differ_save_many_steps_side_by_side() {
    // What a rank holds changes as a whole now and then, and each rank has its own now and then.
    let held = |step: u64, rank: u32| {
        let mut bytes = vec![(step / u64::from(3 + rank)) as u8; 5 << 16];
        bytes[..8].copy_from_slice(&step.to_le_bytes());
        bytes
    };
    for levels in [&["file,incremental=7"][..], &["dram", "file,incremental=7,keep=1"]] {
        let (base, memory) = dirs();
        let options = options(levels, memory.path());
        let own = |rank: u32, checkpoint: &mut Checkpoint| {
            let name = format!("own {rank}");
            checkpoint.protect(&name, Dtype::U8, &[5 << 16], &NdBox::whole(&[5 << 16])).unwrap();
        };
        let each = |work: &(dyn Fn(u32, &mut Checkpoint) + Sync)| {
            std::thread::scope(|scope| {
                for rank in 0..3 {
                    let options = Options { rank, size: 3, ..options.clone() };
                    let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
                    own(rank, &mut checkpoint);
                    scope.spawn(move || work(rank, &mut checkpoint));
                }
            });
        };
        each(&|rank, checkpoint| {
            (0..60).for_each(|step| checkpoint.save(step, &[&held(step, rank)]).unwrap());
            assert_eq!(checkpoint.wait().unwrap(), Some(59));
        });
        if levels.len() > 1 {
            std::fs::remove_dir_all(memory.path().join(".checkpoints")).unwrap();
        }
        each(&|rank, checkpoint| {
            let mut bytes = vec![0; 5 << 16];
            let restored = checkpoint.restore_latest(&mut [&mut bytes]).unwrap().unwrap();
            assert_eq!((restored.step, restored.rejected.len()), (59, 0), "{levels:?}: {restored}");
            assert!(bytes == held(59, rank), "{levels:?} {rank}");
        });
    }
}

/// What stays only because one rank's piece of the newest step stands on it lacks what the other rank's stood on.
#[test]
fn verify_passes_over_steps_that_are_not_kept() {
    let (base, memory) = dirs();
    let options = options(&["file,incremental=7,keep=1"], memory.path());
    let shape = [5 << 16];
    let mut ranks = [0, 1].map(|rank| {
        let options = Options { rank, size: 2, ..options.clone() };
        let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
        checkpoint.protect(&format!("own {rank}"), Dtype::U8, &shape, &NdBox::whole(&shape)).unwrap();
        checkpoint
    });
    let mut not_kept = 0;
    for step in 0..30u64 {
        for (rank, checkpoint) in (0..).zip(&mut ranks) {
            // Rank 0 changes as a whole every third step, rank 1 every fourth.
            let mut bytes = vec![(step / (3 + rank)) as u8; 5 << 16];
            bytes[..8].copy_from_slice(&step.to_le_bytes());
            checkpoint.save(step, &[&bytes]).unwrap();
        }
        let reports = forebay_checkpoint::verify(base.path(), None).unwrap();
        assert!(reports.iter().any(|report| report.step == step), "{reports:?}");
        assert!(reports.iter().all(|report| report.fault.is_none()), "{reports:?}");
        let listed = &forebay_checkpoint::list(base.path()).unwrap().levels[0].steps;
        for found in listed.iter().filter(|found| found.step < step) {
            let asked = forebay_checkpoint::verify(base.path(), Some(found.step)).unwrap();
            not_kept += asked.iter().filter(|report| report.fault.is_some()).count();
        }
    }
    assert!(not_kept > 0, "some step was not whole, and told when it was asked for");
}

#[test]
fn ranks_save_many_steps_side_by_side_also_with_space_for_one() {
    for memory_bytes_max in [None, Some(300 << 10)] {
        let (base, memory) = dirs();
        let options = Options { memory_bytes_max, ..options(&["dram", "file"], memory.path()) };
        group(3, base.path(), &options, |_, program| {
            for step in 0..100 {
                program.save(step).unwrap();
                assert_eq!(program.checkpoint.wait_level(0).unwrap(), Some(step));
            }
            assert_eq!(program.checkpoint.wait().unwrap(), Some(99));
        });
        group(3, base.path(), &options, |_, program| {
            let restored = program.restore().unwrap().unwrap();
            assert_eq!((restored.step, restored.lost, restored.rejected.len()), (99, None, 0));
        });
    }
}

#[test]
fn a_step_that_one_rank_did_not_save_does_not_count() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    group(3, base.path(), &options, |rank, program| {
        program.save(1).unwrap();
        program.checkpoint.wait().unwrap();
        if rank != 1 {
            program.save(2).unwrap();
        }
    });
    group(3, base.path(), &options, |_, program| {
        let restored = program.restore().unwrap().unwrap();
        assert_eq!(restored.step, 1);
        assert_eq!(restored.rejected.len(), 1);
        assert!(restored.rejected[0].reason.contains("missing_ranks=1"), "{restored}");
    });
}

#[test]
fn what_one_rank_cannot_load_no_rank_takes() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    group(3, base.path(), &options, |_, program| {
        for step in 1..=2 {
            program.save(step).unwrap();
        }
        program.checkpoint.wait().unwrap();
    });
    flip(&file_of(&base.path().join("file"), 2, "00001.data"), 70_000);
    group(3, base.path(), &options, |rank, program| {
        let restored = program.restore().unwrap().unwrap();
        assert_eq!((restored.step, restored.lost), (1, Some(2)));
        assert_eq!(restored.rejected.len(), 1);
        assert_eq!(restored.rejected[0].place.is_some(), rank == 1, "{restored}");
    });
}

#[test]
fn what_every_rank_holds_whole_comes_back_to_the_same_rank() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let own = |rank: u32| vec![rank as u8 + 1; 16];
    let open = |rank: u32| {
        let options = Options { rank, size: 2, ..options.clone() };
        let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
        checkpoint.protect("seed", Dtype::U8, &[16], &NdBox::whole(&[16])).unwrap();
        checkpoint
    };
    let (mut zero, mut one) = (open(0), open(1));
    zero.save(1, &[&own(0)]).unwrap();
    one.save(1, &[&own(1)]).unwrap();
    drop((zero, one));
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let open = &open;
            scope.spawn(move || {
                let (mut checkpoint, mut seed) = (open(rank), vec![0; 16]);
                assert!(checkpoint.restore_latest(&mut [&mut seed]).unwrap().is_some());
                assert_eq!(seed, own(rank));
            });
        }
    });
}

#[test]
fn a_wait_for_a_rank_that_does_not_save_ends() {
    let (base, memory) = dirs();
    let mut options = options(&["file"], memory.path());
    options.timeout = Duration::from_millis(300);
    options.size = 2;
    let mut zero = Program::open(base.path(), &options).unwrap();
    let _one = Program::open(base.path(), &Options { rank: 1, ..options.clone() }).unwrap();
    zero.save(1).unwrap();
    assert_eq!(zero.checkpoint.wait().unwrap_err().kind(), Kind::TimedOut);
}

#[test]
fn processes_of_an_earlier_run_commit_nothing() {
    let (base, memory) = dirs();
    let mut options = options(&["file"], memory.path());
    options.size = 2;
    let mut zero = Program::open(base.path(), &options).unwrap();
    let one = Program::open(base.path(), &Options { rank: 1, ..options.clone() }).unwrap();
    drop(one);
    // Rank 1 comes again: the next run begins, and rank 0 of the first one is left behind.
    let again = Program::open(base.path(), &Options { rank: 1, ..options.clone() }).unwrap();
    assert_eq!(again.checkpoint.run(), 2);
    assert_eq!(zero.save(1).unwrap_err().kind(), Kind::Fenced);
    assert_eq!(zero.checkpoint.wait().unwrap(), None);
}

/// A second start with other ranks or levels does not fence a program to which nothing has happened.
#[test]
fn a_living_run_is_not_taken_for_an_earlier_one() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut first = Program::open(base.path(), &options).unwrap();
    let other_size = Options { rank: 1, size: 2, ..options.clone() };
    let other_levels = Options { rank: 1, ..crate::state::options(&["dram", "file"], memory.path()) };
    for wrong in [&other_size, &Options { size: 2, ..other_levels }] {
        let error = Program::open(base.path(), wrong).err().unwrap();
        assert_eq!(error.kind(), Kind::NameInUse, "{error}");
        assert!(error.to_string().contains(&format!("pid={}", std::process::id())), "{error}");
    }
    first.save(1).unwrap();
    first.checkpoint.close().unwrap();
    // It has ended: the next one may have another size.
    let second = Program::open(base.path(), &other_size).unwrap();
    assert_eq!(second.checkpoint.run(), 2);
}

/// A rank that comes behind one that has closed is a late one of its launch, and the first of another.
#[test]
fn ranks_of_two_launches_share_no_run() {
    let (base, memory) = dirs();
    let of = |rank, launch: &str| {
        let options = Options { rank, size: 2, launch: launch.into(), ..options(&["file"], memory.path()) };
        let checkpoint = Checkpoint::open(base.path(), &options).unwrap();
        let run = checkpoint.run();
        checkpoint.close().unwrap();
        run
    };
    assert_eq!([of(0, "a"), of(1, "a")], [1, 1]);
    assert_eq!([of(0, "b"), of(1, "c"), of(0, "c"), of(0, "")], [2, 3, 3, 4]);
}

#[test]
fn a_rank_is_held_by_one_process() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let _first = Program::open(base.path(), &options).unwrap();
    assert_eq!(Program::open(base.path(), &options).err().unwrap().kind(), Kind::NameInUse);
}

#[test]
fn boxes_may_lie_in_any_way() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let shape = [ROWS, COLUMNS];
    // Saved by columns, read by rows.
    let columns = |rank: u64| NdBox::new(&[0, rank * 500], &[ROWS, 500]).unwrap();
    let open = |rank: u32, part: &NdBox| {
        let options = Options { rank, size: 2, ..options.clone() };
        let mut checkpoint = Checkpoint::open(base.path(), &options).unwrap();
        checkpoint.protect("u", Dtype::F64, &shape, part).unwrap();
        checkpoint
    };
    let (mut zero, mut one) = (open(0, &columns(0)), open(1, &columns(1)));
    zero.save(4, &[&crate::state::u(4, &columns(0))]).unwrap();
    one.save(4, &[&crate::state::u(4, &columns(1))]).unwrap();
    drop((zero, one));
    let mut all = Checkpoint::open(base.path(), &options).unwrap();
    let whole = NdBox::whole(&shape);
    all.protect("u", Dtype::F64, &shape, &whole).unwrap();
    let mut bytes = vec![0; whole.bytes(8).unwrap()];
    assert!(all.restore_latest(&mut [&mut bytes]).unwrap().is_some());
    assert!(bytes == crate::state::u(4, &whole));
}

#[test]
fn a_rank_that_comes_late_does_not_look_at_what_others_save_already() {
    let (base, memory) = dirs();
    let options = Options { size: 2, ..options(&["file"], memory.path()) };
    let mut zero = Program::open(base.path(), &options).unwrap();
    let mut one = Program::open(base.path(), &Options { rank: 1, ..options.clone() }).unwrap();
    assert_eq!(zero.restore().unwrap(), None);
    zero.save(1).unwrap();
    assert_eq!(one.restore().unwrap(), None);
    one.save(1).unwrap();
    assert_eq!(zero.checkpoint.wait().unwrap(), Some(1));
}
