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

#[test]
fn a_control_file_with_numbers_that_cannot_be_is_an_error_for_every_verb() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(1).unwrap();
    program.checkpoint.close().unwrap();
    let path = base.path().join("checkpoint.json");
    let good = std::fs::read_to_string(&path).unwrap();
    for (field, nonsense) in [
        ("\"size\": 1", "\"size\": 4000000000"),
        ("\"size\": 1", "\"size\": 0"),
        ("\"keep\": 2", "\"keep\": 0"),
        ("\"keep\": 2", "\"keep\": 2, \"every\": 0"),
        ("\"keep\": 2", "\"keep\": 2, \"ranks_per_node\": 0"),
        ("\"keep\": 2", "\"keep\": 2, \"best\": {\"count\": 0, \"by\": \"largest\"}"),
    ] {
        assert!(good.contains(field), "{good}");
        std::fs::write(&path, good.replacen(field, nonsense, 1)).unwrap();
        let errors = [
            forebay_checkpoint::list(base.path()).err(),
            forebay_checkpoint::verify(base.path(), None).err(),
            forebay_checkpoint::drain(base.path()).err(),
            forebay_checkpoint::extract(base.path(), None, &mut |_, _| Ok(())).err(),
            forebay_checkpoint::advice(base.path(), None).err(),
            Program::open(base.path(), &options).err(),
        ];
        for (nth, error) in errors.into_iter().enumerate() {
            assert_eq!(error.map(|e| e.kind()), Some(Kind::Damaged), "{nth}: {nonsense}");
        }
    }
    std::fs::write(&path, good).unwrap();
    std::fs::create_dir(base.path().join(format!("file/s0000000009-r{}", u64::MAX))).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(Program::open(base.path(), &options).err().unwrap().kind(), Kind::Damaged);
}

/// A record may say any shape; memory is taken for what the ranks saved.
#[test]
fn an_array_that_is_larger_than_what_was_saved_takes_no_memory() {
    use forebay_checkpoint::format::{Commit, Manifest};
    let (base, memory) = dirs();
    let mut program = Program::open(base.path(), &options(&["file"], memory.path())).unwrap();
    program.save(1).unwrap();
    program.checkpoint.close().unwrap();
    let path = |name| file_of(base.path(), 1, name);
    let mut manifest = Manifest::decode(&std::fs::read(path("00000.manifest")).unwrap()).unwrap();
    manifest.variables[0].variable.shape[0] = 1 << 46;
    let record = manifest.encode();
    let mut commit = Commit::decode(&std::fs::read(path("commit")).unwrap()).unwrap();
    commit.ranks[0].manifest_bytes = record.len() as u64;
    commit.ranks[0].manifest_crc = u32::from_le_bytes(record[record.len() - 4..].try_into().unwrap());
    std::fs::write(path("00000.manifest"), &record).unwrap();
    std::fs::write(path("commit"), commit.encode()).unwrap();
    let error = forebay_checkpoint::extract(base.path(), None, &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), Kind::BoxNotCovered, "{error}");
}

#[test]
fn looking_whether_a_program_runs_is_not_in_the_way_of_one_that_starts() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    Program::open(base.path(), &options).unwrap().checkpoint.close().unwrap();
    let control = forebay_checkpoint::control(base.path()).unwrap().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                forebay_checkpoint::is_alive(&control, base.path()).unwrap();
            }
        });
        let opened = (0..300).map(|_| Program::open(base.path(), &options).map(drop));
        let failed = opened.filter_map(Result::err).next();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
fn a_path_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    let (base, memory) = dirs();
    let path = base.path().join(std::ffi::OsStr::from_bytes(b"ck-\xFF"));
    let error = Program::open(&path, &options(&["file"], memory.path())).err().unwrap();
    assert_eq!(error.kind(), Kind::BadName, "{error}");
}
