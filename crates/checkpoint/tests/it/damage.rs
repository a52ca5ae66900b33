//! Damage: whatever is cut off, changed or gone, what comes back is a whole step, and what was refused is said.

use forebay_checkpoint::Kind;

use crate::state::{dirs, file_of, flip, options, Program};

#[test]
fn the_newest_whole_step_is_taken_whatever_is_wrong_with_the_newer_ones() {
    let files = ["00000.data", "00000.manifest", "commit"];
    for (nth, file) in files.iter().enumerate() {
        for harm in ["erase", "change", "cut"] {
            let (base, memory) = dirs();
            let options = options(&["file,keep=3"], memory.path());
            let mut program = Program::open(base.path(), &options).unwrap();
            for step in 1..=3 {
                program.save(step).unwrap();
            }
            program.checkpoint.close().unwrap();
            for step in [3, 2] {
                let path = file_of(&base.path().join("file"), step, file);
                let bytes = std::fs::read(&path).unwrap();
                match harm {
                    "erase" => std::fs::remove_file(&path).unwrap(),
                    "cut" => std::fs::write(&path, &bytes[..bytes.len() / 2 / 4096 * 4096]).unwrap(),
                    _ => flip(&path, bytes.len() / 3),
                }
            }
            let mut again = Program::open(base.path(), &options).unwrap();
            let restored = again.restore().unwrap().unwrap();
            assert_eq!((restored.step, restored.lost), (1, Some(3)), "{harm} {file}");
            assert_eq!(restored.rejected.len(), 2, "{harm} {file}: {restored}");
            assert!(restored.rejected.iter().all(|r| r.kind == "Damaged"), "{nth} {harm}: {restored}");
        }
    }
}

#[test]
fn another_level_is_asked_before_an_older_step_is_taken() {
    let (base, memory) = dirs();
    let options = options(&["dram", "file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    for step in 1..=2 {
        program.save(step).unwrap();
    }
    program.checkpoint.wait().unwrap();
    program.checkpoint.close().unwrap();
    flip(&file_of(memory.path(), 2, "00000.data"), 5);
    let mut again = Program::open(base.path(), &options).unwrap();
    let restored = again.restore().unwrap().unwrap();
    assert_eq!((restored.step, restored.lost), (2, None));
    assert!(restored.place.ends_with("file"), "{restored}");
    assert_eq!(restored.rejected.len(), 1);
    assert!(restored.rejected[0].reason.contains("chunk=0, variable=u, rank=0"), "{restored}");
}

#[test]
fn no_step_that_can_be_taken_is_an_error() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(1).unwrap();
    program.checkpoint.close().unwrap();
    flip(&file_of(base.path(), 1, "00000.data"), 100);
    let mut again = Program::open(base.path(), &options).unwrap();
    let error = again.restore().unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(error.to_string().contains("step 1 of run 1"), "{error}");
}

#[test]
fn every_changed_byte_of_a_small_step_is_noticed() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut checkpoint = forebay_checkpoint::Checkpoint::open(base.path(), &options).unwrap();
    let whole = forebay_checkpoint::NdBox::whole(&[10]);
    checkpoint.protect("a", forebay_checkpoint::Dtype::U8, &[10], &whole).unwrap();
    checkpoint.save(1, &[&[7; 10]]).unwrap();
    checkpoint.close().unwrap();
    for (file, bytes) in [("00000.data", 10), ("00000.manifest", usize::MAX), ("commit", usize::MAX)] {
        let path = file_of(base.path(), 1, file);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len().min(bytes) {
            flip(&path, at);
            let found = forebay_checkpoint::verify(base.path(), None).unwrap();
            assert!(found[0].fault.is_some(), "byte {at} of {file}");
            std::fs::write(&path, &good).unwrap();
        }
    }
    let found = forebay_checkpoint::verify(base.path(), None).unwrap();
    assert_eq!((found[0].bytes, &found[0].fault), (10, &None));
}
