//! Mistakes of programs and of surroundings: each is an error of its own kind, and older steps stay as they are.

use std::os::unix::fs::PermissionsExt;

use forebay_checkpoint::{Checkpoint, Dtype, Kind, NdBox, Options};

use crate::state::{dirs, file_of, options, Program};

fn kind_of<T>(result: forebay_checkpoint::Result<T>) -> Option<Kind> {
    result.err().map(|e| e.kind())
}

#[test]
fn another_array_of_that_name_is_refused() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(1).unwrap();
    program.checkpoint.close().unwrap();
    for (name, dtype, shape, kind) in [
        ("u", Dtype::F64, [60, 999], Kind::VariableMismatch),
        ("u", Dtype::I64, [60, 1000], Kind::VariableMismatch),
        ("v", Dtype::F64, [60, 1000], Kind::UnknownVariable),
    ] {
        let mut other = Checkpoint::open(base.path(), &options).unwrap();
        other.protect(name, dtype, &shape, &NdBox::whole(&shape)).unwrap();
        let mut bytes = vec![0; (shape[0] * shape[1] * 8) as usize];
        assert_eq!(kind_of(other.restore_latest(&mut [&mut bytes])), Some(kind), "{name} {dtype} {shape:?}");
    }
    let mut again = Program::open(base.path(), &options).unwrap();
    assert_eq!(again.restore().unwrap().unwrap().step, 1);
}

/// A program that is killed in its first save leaves pieces without a commit record, and begins anew.
#[test]
fn a_first_step_that_was_never_committed_is_none() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(1).unwrap();
    program.checkpoint.close().unwrap();
    let commit = file_of(base.path(), 1, "commit");
    std::fs::remove_file(commit).unwrap();
    // As long as it is known that the save had returned, it is lost.
    let mut again = Program::open(base.path(), &options).unwrap();
    assert_eq!(kind_of(again.restore()), Some(Kind::Damaged));
    again.checkpoint.close().unwrap();
    std::fs::remove_file(base.path().join("acknowledged")).unwrap();
    let mut again = Program::open(base.path(), &options).unwrap();
    assert!(again.restore().unwrap().is_none());
    again.save(1).unwrap();
    again.checkpoint.close().unwrap();
    let mut last = Program::open(base.path(), &options).unwrap();
    assert_eq!(last.restore().unwrap().unwrap().step, 1);
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    let u = NdBox::whole(&[4]);
    assert_eq!(kind_of(program.checkpoint.protect("u", Dtype::U8, &[4], &u)), Some(Kind::Usage));
    assert_eq!(kind_of(program.checkpoint.protect("", Dtype::U8, &[4], &u)), Some(Kind::BadName));
    assert_eq!(kind_of(program.checkpoint.protect("x", Dtype::U8, &[3], &u)), Some(Kind::BoxOutsideShape));
    assert_eq!(kind_of(program.checkpoint.save(1, &[&[0; 4]])), Some(Kind::BufferMismatch));
    assert_eq!(kind_of(program.checkpoint.save(1, &[&[0; 4], &[0; 8]])), Some(Kind::BufferMismatch));
    program.save(3).unwrap();
    assert_eq!(kind_of(program.save(3)), Some(Kind::VersionOutOfOrder));
    assert_eq!(kind_of(program.save(2)), Some(Kind::VersionOutOfOrder));
    let (mut a, mut b) = (program.u.clone(), program.count.clone());
    assert_eq!(kind_of(program.checkpoint.restore(9, &mut [&mut a, &mut b])), Some(Kind::VersionGone));
    for levels in
        [&["flie"][..], &[], &["file", "file"], &["file,keep=0"], &["file,tier=floppy"], &["devdax"]]
    {
        let wrong = crate::state::options(levels, memory.path());
        assert_eq!(kind_of(Checkpoint::open(base.path(), &wrong)), Some(Kind::Usage), "{levels:?}");
    }
    for level in ["file+xor:4,incremental=3", "file+partner,compress=zstd", "file+partner,best=2"] {
        let wrong = Options { size: 8, ..crate::state::options(&[level], memory.path()) };
        assert_eq!(kind_of(Checkpoint::open(base.path(), &wrong)), Some(Kind::NotPossibleHere), "{level}");
    }
    let wrong = crate::state::options(&["file,kepe=2"], memory.path());
    let error = Checkpoint::open(base.path(), &wrong).err().unwrap();
    assert_eq!(error.kind(), Kind::UnknownKey);
    assert!(error.hint_text().unwrap().contains("did you mean keep?"), "{error}");
    let wrong = Options { rank: 2, size: 2, ..options.clone() };
    assert_eq!(kind_of(Checkpoint::open(base.path(), &wrong)), Some(Kind::Usage));
}

#[test]
fn another_program_is_refused() {
    let (base, memory) = dirs();
    let named = |program: &str| Options { program: program.into(), ..options(&["file"], memory.path()) };
    let mut program = Program::open(base.path(), &named("bt")).unwrap();
    program.save(1).unwrap();
    program.checkpoint.close().unwrap();
    assert_eq!(kind_of(Checkpoint::open(base.path(), &named("heat"))), Some(Kind::OptionMismatch));
    assert_eq!(Program::open(base.path(), &named("bt")).unwrap().restore().unwrap().unwrap().step, 1);
}

#[test]
fn a_newer_format_is_refused_rather_than_passed_over() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    let mut program = Program::open(base.path(), &options).unwrap();
    program.save(1).unwrap();
    program.save(2).unwrap();
    program.checkpoint.close().unwrap();
    let path = file_of(base.path(), 2, "commit");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 99;
    std::fs::write(&path, bytes).unwrap();
    let mut again = Program::open(base.path(), &options).unwrap();
    assert_eq!(kind_of(again.restore()), Some(Kind::UnknownFormat));
    drop(again);
    let control = base.path().join("checkpoint.json");
    let text = std::fs::read_to_string(&control).unwrap();
    std::fs::write(&control, text.replace("forebay.checkpoint/1", "forebay.checkpoint/7")).unwrap();
    assert_eq!(kind_of(Program::open(base.path(), &options)), Some(Kind::UnknownFormat));
}

#[test]
fn a_directory_that_may_not_be_written_is_refused() {
    if rustix::process::geteuid().is_root() {
        // Root may write anywhere.
        return;
    }
    let (base, memory) = dirs();
    std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let opened = Program::open(base.path(), &options(&["file"], memory.path()));
    std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(kind_of(opened), Some(Kind::PermissionDenied));
}

/// In a shared directory another user can be the first to make one of that name.
#[test]
fn a_directory_that_is_not_the_users_alone_is_refused() {
    let (base, memory) = dirs();
    let path = base.path().join("ck");
    let chmod = |dir: &std::path::Path, mode| {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = |options: &Options, dir: &std::path::Path| {
        let error = Checkpoint::open(&path, options).err().unwrap();
        assert_eq!(error.kind(), Kind::PermissionDenied, "{error}");
        assert!(error.message().starts_with(&dir.display().to_string()), "{error}");
        assert!(std::fs::read_dir(dir).unwrap().next().is_none(), "something was made in {}", dir.display());
        chmod(dir, 0o755);
        Checkpoint::open(&path, options).unwrap().close().unwrap();
    };
    let file = options(&["file"], memory.path());
    chmod(&path, 0o777);
    refused(&file, &path);
    chmod(&path.join("file"), 0o770);
    std::fs::set_permissions(path.join("file"), std::fs::Permissions::from_mode(0o770)).unwrap();
    assert_eq!(kind_of(Checkpoint::open(&path, &file)), Some(Kind::PermissionDenied));
    chmod(&path.join("file"), 0o700);
    let away = base.path().join("away");
    chmod(&away, 0o777);
    refused(&options(&[&away.display().to_string()], memory.path()), &away);
    let node = base.path().join("nodes/00000");
    chmod(&node, 0o777);
    let pattern = format!("{}/{{node}}", base.path().join("nodes").display());
    refused(&options(&[&pattern], memory.path()), &node);
    let store = base.path().join("store");
    chmod(&store, 0o777);
    refused(&options(&[&format!("file://{}", store.display())], memory.path()), &store);
    // What is done with a directory while no program runs writes there too.
    chmod(&path, 0o777);
    assert_eq!(kind_of(forebay_checkpoint::drain(&path)), Some(Kind::PermissionDenied));
}

/// What files of an earlier run say is not to be taken for the word of a rank of this one.
#[test]
fn a_number_of_a_run_is_not_given_again_when_its_control_was_removed() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    for run in 1..=3 {
        let program = Program::open(base.path(), &options).unwrap();
        assert_eq!(program.checkpoint.run(), run);
        program.checkpoint.close().unwrap();
    }
    // As a run leaves them in which several ranks look for a step and ask whether to save.
    std::fs::create_dir(base.path().join("restore-r000003")).unwrap();
    std::fs::write(base.path().join("restore-r000003/1-s5-r2-1"), "yes").unwrap();
    std::fs::write(base.path().join("need-r000002"), [0; 16]).unwrap();
    std::fs::write(base.path().join("asked-r000002"), "save").unwrap();
    std::fs::remove_file(base.path().join("checkpoint.json")).unwrap();
    let program = Program::open(base.path(), &options).unwrap();
    assert_eq!(program.checkpoint.run(), 4);
    // They are of no use to anybody.
    for left in ["restore-r000003", "need-r000002", "asked-r000002"] {
        assert!(!base.path().join(left).exists(), "{left} is left over");
    }
}

#[test]
fn the_count_of_failures_ends_at_its_highest_number() {
    let (base, memory) = dirs();
    let options = options(&["file"], memory.path());
    drop(Program::open(base.path(), &options).unwrap());
    let path = base.path().join("checkpoint.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = text.replace("\"failures\": 0", &format!("\"failures\": {}", u64::MAX));
    let changed = changed.replace("\"closed\": [\n    0\n  ]", "\"closed\": []");
    assert_ne!(text, changed);
    std::fs::write(&path, changed).unwrap();
    drop(Program::open(base.path(), &options).unwrap());
    let control = forebay_checkpoint::control(base.path()).unwrap().unwrap();
    assert_eq!((control.incarnation, control.failures), (2, u64::MAX));
}
