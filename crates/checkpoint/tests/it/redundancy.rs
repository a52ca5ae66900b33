//! Redundancy between nodes: what is lost with a node's directory comes back from the others, or is refused.

use std::path::{Path, PathBuf};

use forebay_checkpoint::{Kind, Options, Restored, State};

use crate::ranks::group;
use crate::state::{dirs, file_of, files, flip, options, Program};

/// Saves steps 1 to `steps` with `size` ranks and waits for their redundancy.
fn saved(base: &Path, options: &Options, size: u32, steps: u64) {
    group(size, base, options, |_, program| {
        for step in 1..=steps {
            program.save(step).unwrap();
            assert_eq!(program.checkpoint.wait().unwrap(), Some(step));
        }
    });
}

/// The directory of a node.
fn node(base: &Path, n: u32) -> PathBuf {
    base.join(format!("file/{n:05}"))
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(file, target).unwrap();
    }
}

/// Restores as so many ranks; the report of rank 0, and how many files all ranks repaired.
fn restored_as(base: &Path, options: &Options, size: u32, step: u64) -> (Restored, usize) {
    let reports = std::sync::Mutex::new(Vec::new());
    group(size, base, options, |rank, program| {
        let restored = program.restore().unwrap().unwrap();
        assert_eq!(restored.step, step, "{restored}");
        reports.lock().unwrap().push((rank, restored));
    });
    let mut reports = reports.into_inner().unwrap();
    reports.sort_by_key(|(rank, _)| *rank);
    let repaired = reports.iter().map(|(_, report)| report.repaired.len()).sum();
    (reports.remove(0).1, repaired)
}

#[test]
fn a_lost_node_comes_back_from_every_kind_of_redundancy() {
    for (level, lost) in [
        ("file+partner", &[&[0], &[3], &[1, 3]]),
        ("file+xor:4", &[&[0], &[2]]),
        ("file+xor:2", &[&[0, 2], &[1, 3], &[1]]),
        ("file+rs:2+2", &[&[0, 1], &[1, 3], &[2]]),
    ] as [(&str, &[&[u32]]); 4] {
        let (base, memory) = dirs();
        let options = options(&[level], memory.path());
        saved(base.path(), &options, 4, 3);
        for lost in lost {
            for size in [4, 1, 3, 6] {
                let (again, _keep) = dirs();
                copy(base.path(), again.path());
                for n in *lost {
                    std::fs::remove_dir_all(node(again.path(), *n)).unwrap();
                }
                let (report, repaired) = restored_as(again.path(), &options, size, 3);
                assert_eq!((report.lost, report.rejected.len()), (None, 0), "{level} {lost:?}: {report}");
                // Data, manifest, commit record and parity of each.
                assert_eq!(repaired, 4 * lost.len(), "{level} {lost:?} as {size}: {report}");
                // It is whole again, with its redundancy, and so are the files themselves.
                let seen = forebay_checkpoint::verify(again.path(), Some(3)).unwrap();
                assert!(seen.iter().all(|step| step.fault.is_none()), "{seen:?}");
                let protection = seen[0].redundancy.as_ref().unwrap();
                assert_eq!(protection.state, State::Complete, "{level} {lost:?}: {protection:?}");
                for n in *lost {
                    for file in files(&node(base.path(), *n)) {
                        let same = again.path().join(file.strip_prefix(base.path()).unwrap());
                        let step_3 = file.to_string_lossy().contains("s0000000003-");
                        assert!(!step_3 || std::fs::read(&same).unwrap() == std::fs::read(&file).unwrap());
                    }
                }
                let (_, repaired) = restored_as(again.path(), &options, size, 3);
                assert_eq!(repaired, 0);
            }
        }
    }
}
