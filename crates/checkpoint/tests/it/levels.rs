//! Levels: what stays in each, how steps get down, what is left when one is gone.

use std::path::Path;

use forebay_checkpoint::{Durability, Kind, Options};

use crate::state::{dirs, disk, files, options, Program};

#[test]
fn a_program_goes_on_where_it_was() {
    for level in ["file", "dram", "direct"] {
        let (base, memory) = disk();
        let options = options(&[level], memory.path());
        let mut program = match Program::open(base.path(), &options) {
            Err(e) if e.kind() == Kind::NotPossibleHere && level == "direct" => continue,
            program => program.unwrap(),
        };
        assert_eq!(program.restore().unwrap(), None, "{level}");
        for step in 1..=5 {
            program.save(step).unwrap();
        }
        assert_eq!(program.checkpoint.wait().unwrap(), Some(5));
        program.checkpoint.close().unwrap();

        let mut again = Program::open(base.path(), &options).unwrap();
        assert_eq!(again.checkpoint.run(), 2);
        let restored = again.restore().unwrap().unwrap();
        assert_eq!((restored.step, restored.run, restored.lost), (5, 1, None), "{level}");
        assert_eq!(restored.rejected, []);
        again.save(6).unwrap();
        assert_eq!(again.restore().unwrap().unwrap().step, 6);
    }
}

#[test]
fn durability_is_said() {
    let (base, memory) = disk();
    let program = Program::open(base.path(), &options(&["dram", "file"], memory.path())).unwrap();
    assert_eq!(program.checkpoint.durability(0), Durability::Process);
    assert_eq!(program.checkpoint.durability(1), Durability::Power);
}

fn steps_in(base: &Path, level: usize) -> Vec<u64> {
    let levels = forebay_checkpoint::list(base).unwrap().levels;
    levels[level].steps.iter().filter(|step| step.committed).map(|step| step.step).collect()
}

#[test]
fn steps_are_carried_down_in_order_and_old_ones_go() {
    let (base, memory) = dirs();
    let options = options(&["dram", "file,keep=3"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.checkpoint.prepare().unwrap();
    for step in 0..8 {
        program.save(step).unwrap();
    }
    assert_eq!(program.checkpoint.wait().unwrap(), Some(7));
    assert_eq!(program.checkpoint.reached(1), Some(7));
    program.checkpoint.close().unwrap();
    assert_eq!(steps_in(base.path(), 1), [7, 6, 5]);
    assert!(steps_in(base.path(), 0).contains(&7));
    let data = files(memory.path()).iter().filter(|f| f.extension().is_some_and(|e| e == "data")).count();
    assert!(data <= 2, "two pieces at most lie in memory");
    assert!(
        !files(memory.path()).iter().any(|f| f.display().to_string().contains("spare")),
        "spares go at the end"
    );
}

#[test]
fn a_lost_level_of_memory_is_made_good_by_the_disk_and_what_is_lost_is_said() {
    let (base, memory) = dirs();
    let options = options(&["dram", "file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(1).unwrap();
    program.checkpoint.wait().unwrap();
    program.checkpoint.close().unwrap();
    // A step that only the memory held: saved by a program with that level alone.
    let only_memory = Options { levels: vec!["dram".into()], ..options.clone() };
    let mut program = Program::open(base.path(), &only_memory).unwrap();
    program.save(2).unwrap();
    program.checkpoint.close().unwrap();
    std::fs::remove_dir_all(memory.path().join(".checkpoints")).unwrap();

    let mut again = Program::open(base.path(), &options).unwrap();
    let restored = again.restore().unwrap().unwrap();
    assert_eq!((restored.step, restored.lost), (1, Some(2)));
    assert!(restored.to_string().contains("step 2 was saved and is lost"), "{restored}");
}

#[test]
fn nothing_left_of_what_was_saved_is_an_error_and_not_a_first_start() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(1).unwrap();
    program.checkpoint.close().unwrap();
    std::fs::remove_dir_all(base.path().join("file")).unwrap();
    let mut again = Program::open(base.path(), &options).unwrap();
    assert_eq!(again.restore().unwrap_err().kind(), Kind::VersionGone);
}

#[test]
fn one_piece_of_memory_is_enough_where_there_is_a_lower_level() {
    let (base, memory) = dirs();
    let mut options = options(&["dram", "file"], memory.path());
    options.memory_bytes_max = Some(600 << 10);
    let mut program = Program::open(base.path(), &options).unwrap();
    for step in 0..4 {
        program.save(step).unwrap();
    }
    program.checkpoint.wait().unwrap();
    let of_a_step = |f: &&std::path::PathBuf| f.extension().is_some_and(|e| e == "data" || e == "manifest");
    let data = files(memory.path()).iter().filter(of_a_step).count();
    assert!(data <= 2, "one data file and its manifest: {:?}", files(memory.path()));
    assert_eq!(program.restore().unwrap().unwrap().step, 3);
    program.checkpoint.close().unwrap();

    options.levels = vec!["dram".into()];
    let mut alone = Program::open(base.path(), &options).unwrap();
    assert_eq!(alone.save(9).unwrap_err().kind(), Kind::TierFull);
    options.memory_bytes_max = Some(1000);
    options.levels = vec!["dram".into(), "file".into()];
    drop(alone);
    let mut narrow = Program::open(base.path(), &options).unwrap();
    assert_eq!(narrow.save(9).unwrap_err().kind(), Kind::TierFull);
}

#[test]
fn a_carry_that_was_cut_off_is_finished_whatever_it_left() {
    // What may lie in the lower level of the step that is carried: half a data file, a whole piece of another content,
    // a commit record that cannot be read.
    for left in ["00000.data", "00000.manifest", "commit"] {
        for size in [1, 2] {
            let (base, memory) = dirs();
            let both = options(&["dram", "file"], memory.path());
            crate::ranks::group(size, base.path(), &both, |_, program| {
                program.save(1).unwrap();
                assert_eq!(program.checkpoint.wait().unwrap(), Some(1));
            });
            let step = base.path().join("file/s0000000001-r000001");
            for file in files(&step) {
                let name = file.file_name().unwrap().to_str().unwrap();
                match name == left {
                    true => std::fs::write(&file, b"cut off").unwrap(),
                    // In the order of a carry: data, manifest, commit record.
                    false if name == "commit" || (name > left && left != "commit") => {
                        std::fs::remove_file(&file).unwrap()
                    }
                    false => {}
                }
            }
            let carried =
                forebay_checkpoint::drain(base.path()).unwrap_or_else(|e| panic!("{left} {size}: {e}"));
            assert_eq!((carried.step, carried.rejected.len()), (Some(1), 0), "{left} {size}");
            std::fs::remove_dir_all(memory.path().join(".checkpoints")).unwrap();
            crate::ranks::group(size, base.path(), &options(&["file"], memory.path()), |_, program| {
                assert_eq!(program.restore().unwrap().unwrap().step, 1, "{left} {size}");
            });
            assert_eq!(forebay_checkpoint::drain(base.path()).unwrap().step, None, "{left} {size}");
        }
    }
}

#[test]
fn a_program_may_protect_more_while_it_runs_and_saves_pieces_of_another_length() {
    let (base, memory) = dirs();
    let mut program = Program::open(base.path(), &options(&["file,keep=1"], memory.path())).unwrap();
    (1..=4).for_each(|step| program.save(step).unwrap());
    let more = forebay_checkpoint::NdBox::whole(&[90_000]);
    program.checkpoint.protect("more", forebay_checkpoint::Dtype::U8, &[90_000], &more).unwrap();
    for step in 5..=8u64 {
        let more = vec![step as u8; 90_000];
        let count = step.to_le_bytes();
        let u = crate::state::u(step, &program.part);
        program.checkpoint.save(step, &[&u, &count, &more]).unwrap();
    }
    let mut more = vec![0; 90_000];
    let targets = &mut [&mut program.u[..], &mut program.count[..], &mut more[..]];
    assert_eq!(program.checkpoint.restore_latest(targets).unwrap().unwrap().step, 8);
    assert!(more.iter().all(|byte| *byte == 8));
}
