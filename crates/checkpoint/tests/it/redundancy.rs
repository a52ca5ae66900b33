//! Redundancy between nodes: what is lost with a node's directory comes back from the others, or is refused.

use std::path::{Path, PathBuf};

use forebay_checkpoint::{Kind, Options, Restored, State};

use crate::ranks::group;
use crate::state::{dirs, files, flip, options, Program};

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
    ] as [(&str, &[&[u32]]); 4]
    {
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

/// What comes of damage to the newest step, when the step before is whole: `same` (restored, nothing that was read was
/// damaged), `repaired` (restored, and brought back from redundancy) or `older` (refused, with its reason). Where every
/// step is damaged like that, `older` becomes an error of the kind `Damaged`.
///
/// Four ranks on four nodes; one: that of rank 1, two: those of ranks 1 and 2, which are neighbours. `partner` keeps
/// the copy of rank 1 on the node of rank 2, and so on; `xor:4` and `rs:2+2` are one group. `copy` is what a rank
/// keeps for others: the copy or its parity; `record` is the record beside it; `member` is everything on a rank's
/// node. What is
/// corrupt has one changed byte (of data that is one chunk, in another stripe for each rank), what is truncated is
/// shorter than a chunk. The parity of `rs:2+2` is as much as the data, and enough where all data is lost.
const MATRIX: &str = "
                 |          erase          |         corrupt         |         truncate
                 | one      two      all   | one      two      all   | one      two      all
none    data     | older    older    older | older    older    older | older    older    older
none    manifest | older    older    older | older    older    older | older    older    older
none    commit   | older    older    older | older    older    older | older    older    older
none    member   | older    older    older | older    older    older | older    older    older
partner data     | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
partner manifest | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
partner commit   | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
partner copy     | repaired repaired repaired | same     same     same  | same     same     same
partner record   | repaired repaired repaired | same     same     same  | same     same     same
partner member   | repaired older    older | repaired older    older | repaired older    older
xor:4   data     | repaired older    older | repaired repaired repaired | repaired older    older
xor:4   manifest | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
xor:4   commit   | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
xor:4   copy     | repaired repaired repaired | same     same     same  | same     same     same
xor:4   record   | repaired repaired repaired | same     same     same  | same     same     same
xor:4   member   | repaired older    older | repaired older    older | repaired older    older
rs:2+2  data     | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
rs:2+2  manifest | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
rs:2+2  commit   | repaired repaired repaired | repaired repaired repaired | repaired repaired repaired
rs:2+2  copy     | repaired repaired repaired | same     same     same  | same     same     same
rs:2+2  record   | repaired repaired repaired | same     same     same  | same     same     same
rs:2+2  member   | repaired repaired older | repaired repaired older | repaired repaired older
";

/// Harms the files of a step that a cell of the matrix names.
fn harm(level: &Path, kind: &str, target: &str, ranks: &[u32], harm: &str, step: u64) {
    let mut hit = 0;
    for rank in ranks {
        let dir = if kind == "none" { level.to_path_buf() } else { level.join(format!("{rank:05}")) };
        for file in
            files(&dir).iter().filter(|file| file.display().to_string().contains(&format!("/s{step:010}-")))
        {
            let name = file.file_name().unwrap().to_str().unwrap();
            let own = name.starts_with(&format!("{rank:05}."));
            let named = match target {
                "data" | "manifest" => own && name.ends_with(&format!(".{target}")),
                "copy" => own && name.ends_with(".parity"),
                "record" => own && name.ends_with(".redundancy"),
                "commit" => name == "commit",
                _ => own || kind != "none",
            };
            if !named {
                continue;
            }
            hit += 1;
            let bytes = std::fs::read(file).unwrap();
            match harm {
                "erase" => std::fs::remove_file(file).unwrap(),
                "corrupt" => flip(file, bytes.len() / 3),
                _ => std::fs::write(file, &bytes[..4096.min(bytes.len() / 2)]).unwrap(),
            }
            if target == "commit" && kind == "none" {
                return;
            }
        }
    }
    assert!(hit >= ranks.len(), "{kind} {target}: {hit} files");
}

/// What all ranks say of a restore.
fn outcome(base: &Path, options: &Options) -> Result<(u64, bool), Kind> {
    let all = std::sync::Mutex::new(Vec::new());
    group(4, base, options, |_, program| {
        let said = program.restore().map(|restored| restored.unwrap()).map_err(|e| e.kind());
        all.lock().unwrap().push(said);
    });
    let all = all.into_inner().unwrap();
    let repaired = all.iter().flatten().any(|restored| !restored.repaired.is_empty());
    let steps: Vec<Result<u64, Kind>> =
        all.into_iter().map(|said| said.map(|restored| restored.step)).collect();
    assert!(steps.iter().all(|step| *step == steps[0]), "ranks differ: {steps:?}");
    steps[0].map(|step| (step, repaired))
}

/// Whether a look at the directory shows that something is wrong with a step.
fn shows(base: &Path, step: u64) -> bool {
    let seen = forebay_checkpoint::verify(base, Some(step)).unwrap();
    let whole = |report: &forebay_checkpoint::VerifyReport| {
        report.fault.is_none() && report.redundancy.as_ref().is_none_or(|kept| kept.state == State::Complete)
    };
    seen.is_empty() || !seen.iter().all(whole)
}

#[test]
fn every_cell_of_the_matrix_of_failures() {
    let rows = MATRIX.lines().skip(3).filter(|line| !line.is_empty());
    let mut sources = std::collections::HashMap::new();
    for row in rows {
        let words: Vec<&str> = row.split_whitespace().filter(|word| *word != "|").collect();
        let (kind, target) = (words[0], words[1]);
        let (source, memory, options) = &*sources.entry(kind.to_string()).or_insert_with(|| {
            let (base, memory) = dirs();
            let level = if kind == "none" { "file".to_string() } else { format!("file+{kind}") };
            let options = options(&[&level], memory.path());
            saved(base.path(), &options, 4, 2);
            (base, memory, options)
        });
        assert!(memory.path().exists());
        for (cell, expected) in words[2..].iter().enumerate() {
            let how = ["erase", "corrupt", "truncate"][cell / 3];
            let ranks: &[u32] = [&[1][..], &[1, 2], &[0, 1, 2, 3]][cell % 3];
            for steps in [&[2][..], &[1, 2]] {
                let what = format!("{kind} {target} {how} {ranks:?} of steps {steps:?}");
                let (base, _keep) = dirs();
                copy(source.path(), base.path());
                for step in steps {
                    harm(&base.path().join("file"), kind, target, ranks, how, *step);
                }
                let result = outcome(base.path(), options);
                match (*expected, steps.len()) {
                    ("same", _) => assert_eq!(result, Ok((2, false)), "{what}"),
                    ("repaired", _) => assert_eq!(result, Ok((2, true)), "{what}"),
                    ("older", 1) => assert_eq!(result.map(|(step, _)| step), Ok(1), "{what}"),
                    ("older", _) => assert_eq!(result, Err(Kind::Damaged), "{what}"),
                    _ => panic!("{expected} is no word of the matrix"),
                }
                // What a restore need not see, a look shows; what it has repaired is whole.
                assert_eq!(shows(base.path(), 2), *expected != "repaired", "{what}");
            }
        }
    }
}

#[test]
fn a_run_with_too_few_nodes_restores_and_saves_nothing() {
    for (level, size) in [("file+partner", 1), ("file+xor:4,ranks_per_node=2", 2), ("file+rs:1+2", 2)] {
        let (base, memory) = dirs();
        let options = options(&[level], memory.path());
        group(size, base.path(), &options, |_, program| {
            assert_eq!(program.restore().unwrap(), None);
            let error = program.save(1).unwrap_err();
            assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
            assert!(error.to_string().contains("needs pieces on"), "{error}");
        });
    }
}

#[test]
fn nodes_may_have_names_and_any_number_of_ranks() {
    let (base, memory) = dirs();
    let mount = tempfile::tempdir_in("/dev/shm").unwrap();
    let level = format!("{}/{{node}}/ck+xor:3", mount.path().display());
    let options = options(&[&level], memory.path());
    // Three ranks on one node, one on another, two on a third, in no order.
    let nodes = ["b", "a", "b", "c", "c", "b"];
    let at = |rank: u32| Options { node: Some(nodes[rank as usize].into()), ..options.clone() };
    let run = |work: &(dyn Fn(&mut Program) + Sync)| {
        std::thread::scope(|scope| {
            for rank in 0..6 {
                let options = Options { rank, size: 6, ..at(rank) };
                let base = base.path();
                scope.spawn(move || work(&mut Program::open(base, &options).unwrap()));
            }
        });
    };
    run(&|program| {
        program.save(1).unwrap();
        program.checkpoint.wait().unwrap();
    });
    let of_b: Vec<PathBuf> = files(&mount.path().join("b/ck"));
    let data = |path: &&PathBuf| path.extension().is_some_and(|end| end == "data");
    assert_eq!(of_b.iter().filter(data).count(), 3);
    for lost in ["a", "b", "c"] {
        std::fs::remove_dir_all(mount.path().join(lost)).unwrap();
        run(&|program| assert_eq!(program.restore().unwrap().unwrap().step, 1));
        assert!(!shows(base.path(), 1), "{lost}");
    }
    let bad = Options { node: Some("../x".into()), ..options.clone() };
    assert_eq!(Program::open(base.path(), &bad).err().unwrap().kind(), Kind::BadName);
}

#[test]
fn each_level_has_redundancy_of_its_own() {
    let (base, memory) = dirs();
    let lower = format!("{}/{{node}}+rs:2+2", memory.path().display());
    let options = options(&["file+partner,ranks_per_node=2", &lower], memory.path());
    saved(base.path(), &options, 5, 3);
    let seen = forebay_checkpoint::verify(base.path(), Some(3)).unwrap();
    let kinds: Vec<&str> = seen.iter().map(|step| step.redundancy.as_ref().unwrap().kind.as_str()).collect();
    assert_eq!(kinds, ["partner", "rs:2+2"]);
    assert!(!shows(base.path(), 3));
    // The upper level with all its nodes, and two of five nodes of the lower one.
    std::fs::remove_dir_all(base.path().join("file")).unwrap();
    for lost in ["00001", "00004"] {
        std::fs::remove_dir_all(memory.path().join(lost)).unwrap();
    }
    let (report, repaired) = restored_as(base.path(), &options, 2, 3);
    assert!(report.place.ends_with("{node}") && report.lost.is_none(), "{report}");
    assert_eq!(repaired, 8, "{report}");
}

#[test]
fn newer_steps_are_saved_beside_a_damaged_commit_record() {
    for code in ["partner", "xor:2", "rs:2+2"] {
        let (base, memory) = dirs();
        let options = options(&["dram", &format!("file+{code}")], memory.path());
        saved(base.path(), &options, 4, 2);
        let record = node(base.path(), 0).join("s0000000002-r000001/commit");
        flip(&record, 20);
        group(4, base.path(), &options, |_, program| {
            // Memory has it whole, so that nothing is read, and repaired, in the level below.
            assert_eq!(program.restore().unwrap().unwrap().step, 2);
            for step in 3..5 {
                program.save(step).unwrap();
                assert_eq!(program.checkpoint.wait().unwrap(), Some(step), "{code}");
            }
        });
        let seen = forebay_checkpoint::verify(base.path(), Some(4)).unwrap();
        let lower = seen.iter().find(|step| step.redundancy.is_some()).unwrap();
        assert_eq!(
            (lower.redundancy.as_ref().unwrap().state, &lower.fault),
            (State::Complete, &None),
            "{code}"
        );
    }
}

#[test]
fn steps_that_not_every_rank_saved_are_owed_nothing() {
    let (base, memory) = dirs();
    let options = options(&["file+partner"], memory.path());
    group(3, base.path(), &options, |rank, program| {
        program.save(1).unwrap();
        program.checkpoint.wait().unwrap();
        if rank != 1 {
            program.save(2).unwrap();
        }
    });
    // No rank waited for the deadline, which is said when it passes.
    let (report, _) = restored_as(base.path(), &options, 3, 1);
    assert_eq!(report.rejected.len(), 1);
    assert!(report.rejected[0].reason.contains("missing_ranks=1"), "{report}");
}

#[test]
fn nothing_left_of_any_node_is_an_error_and_not_a_first_start() {
    let (base, memory) = dirs();
    let options = options(&["file+partner"], memory.path());
    saved(base.path(), &options, 2, 1);
    std::fs::remove_dir_all(base.path().join("file")).unwrap();
    group(2, base.path(), &options, |_, program| {
        assert_eq!(program.restore().unwrap_err().kind(), Kind::VersionGone);
    });
}

#[test]
fn options_of_levels_with_nodes_are_checked() {
    let (base, memory) = dirs();
    for (level, kind) in [
        ("file+parnter", Kind::Usage),
        ("file+xor:1", Kind::Usage),
        ("file+partner,ranks_per_node=0", Kind::Usage),
        ("file,ranks_per_node=2", Kind::Usage),
        ("/dev/shm/{node}/{node}+xor", Kind::Usage),
        ("file+partner,rank_per_node=2", Kind::UnknownKey),
    ] {
        let error = Program::open(base.path(), &options(&[level], memory.path())).err().unwrap();
        assert_eq!(error.kind(), kind, "{level}: {error}");
    }
}
