//! Memory of checkpoints after their programs: it stays for a restart, goes with its directory, never before its ranks.

use forebay_checkpoint::memory::{clean, CleanOptions};
use forebay_checkpoint::Options;

use crate::state::{dirs, options, Program};

/// Removed and kept, in words.
fn cleaned(root: &std::path::Path) -> (Vec<String>, Vec<String>) {
    let found = clean(root, &CleanOptions::default()).unwrap();
    (
        found.removed.into_iter().map(|gone| gone.reason).collect(),
        found.kept.into_iter().map(|(_, reason)| reason).collect(),
    )
}

#[test]
fn any_living_rank_holds_its_level() {
    let (base, memory) = dirs();
    let of = |rank| Options { rank, size: 3, ..options(&["dram", "file"], memory.path()) };
    let mut group: Vec<Program> = (0..3).map(|rank| Program::open(base.path(), &of(rank)).unwrap()).collect();
    for program in &mut group {
        program.save(1).unwrap();
    }
    // What is still on its way down would make the directory anew.
    for program in &mut group {
        program.checkpoint.wait().unwrap();
    }
    let running = format!("the program of {} is running", base.path().display());
    assert_eq!(cleaned(memory.path()), (vec![], vec![running]));
    // The directory goes first, then the ranks, the last one last.
    std::fs::remove_dir_all(base.path()).unwrap();
    while let Some(program) = group.pop() {
        let (removed, kept) = cleaned(memory.path());
        assert_eq!((removed.len(), kept.len()), (0, 1), "{} rank(s) more live", group.len());
        assert!(kept[0].starts_with("in use by rank 0, pid "), "{kept:?}");
        // Without its directory it cannot leave as it should.
        let _ = program.checkpoint.close();
    }
    let gone = format!("memory of the checkpoint {}, which is gone", base.path().display());
    assert_eq!(cleaned(memory.path()), (vec![gone], vec![]));
    assert_eq!(cleaned(memory.path()), (vec![], vec![]));
}

#[test]
fn memory_of_several_nodes_is_one_level() {
    let (base, memory) = dirs();
    let of = |rank| Options { rank, size: 2, ..options(&["dram+partner", "file"], memory.path()) };
    let mut group: Vec<Program> = (0..2).map(|rank| Program::open(base.path(), &of(rank)).unwrap()).collect();
    for program in &mut group {
        program.save(1).unwrap();
    }
    for program in &mut group {
        program.checkpoint.wait().unwrap();
    }
    let running = format!("the program of {} is running", base.path().display());
    assert_eq!(cleaned(memory.path()), (vec![], vec![running]));
    drop(group);
    std::fs::remove_dir_all(base.path()).unwrap();
    let gone = format!("memory of the checkpoint {}, which is gone", base.path().display());
    assert_eq!(cleaned(memory.path()), (vec![gone], vec![]));
    assert_eq!(cleaned(memory.path()), (vec![], vec![]));
}

#[test]
fn what_was_cleaned_away_is_made_again_and_the_lower_level_is_taken() {
    let (base, memory) = dirs();
    let options = options(&["dram", "file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(7).unwrap();
    program.checkpoint.close().unwrap();
    let (removed, kept) = cleaned(memory.path());
    assert!(removed.is_empty() && kept[0].starts_with("a restart with "), "{kept:?}");
    let this = |dry_run| CleanOptions { checkpoint: Some(base.path().to_path_buf()), dry_run };
    let dry = clean(memory.path(), &this(true)).unwrap();
    assert_eq!((dry.removed.len(), dry.kept.len()), (1, 0));
    assert!(dry.removed[0].bytes > 400_000, "two arrays lie there");
    let cleaned = clean(memory.path(), &this(false)).unwrap();
    assert_eq!((cleaned.removed, cleaned.kept), (dry.removed, dry.kept));
    assert_eq!(clean(memory.path(), &this(false)).unwrap().removed, []);
    let mut again = Program::open(base.path(), &options).unwrap();
    assert_eq!(again.restore().unwrap().unwrap().step, 7);
    again.save(8).unwrap();
}
