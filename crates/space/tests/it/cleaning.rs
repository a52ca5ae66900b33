//! What is removed, and what must not be: files that only a name claims, and directories that a live process makes.

use std::fs;
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::ownership::Stage;
use crate::support::{options, reader, Root};
use forebay_space::{
    CleanOptions, CleanReport, Kind, Mechanism, Mode, OpenOptions, Reader, Result, Retention, SpillTier,
    TierKind, WhenFull, Writer,
};
use forebay_tier::pool_lock::PoolLock;

fn clean(name: &str) -> Result<CleanReport> {
    forebay_space::clean(&CleanOptions { names: vec![name.into()], ..CleanOptions::default() })
}

/// A space with a lower pool below `dir`, and with more versions than the first pool holds.
fn spilled(name: &str, tier: TierKind, dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let spill = SpillTier { path: dir.into(), quota: Some(64 << 20), tier: Some(TierKind::File) };
    let keep = OpenOptions {
        tier: Some(tier),
        quota_bytes: Some(8 << 20),
        retention: Some(Retention::Forever),
        when_full: Some(WhenFull::Spill),
        spill: vec![spill],
        ..options()
    };
    let mut w = Writer::open(name, &keep).unwrap();
    for version in 0..8u64 {
        w.begin_step().unwrap();
        w.put_array("a", &[1 << 18], &[0], &[1 << 18], &vec![version; 1 << 18]).unwrap();
        w.end_step().unwrap();
    }
    w.close().unwrap();
}

fn all_is_there(name: &str) {
    let mut r = reader(name, 0, 1).unwrap();
    for version in 0..8u64 {
        assert_eq!(r.begin_step(None).unwrap(), Some(version));
        assert!(r.get_array::<u64>("a", None).unwrap() == vec![version; 1 << 18]);
        r.end_step().unwrap();
    }
}

fn files_in(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

/// As `cp -r` does.
fn copy(from: &str, to: &str) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for file in files_in(Path::new(from)) {
        fs::copy(&file, Path::new(to).join(file.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_copy_of_a_space_neither_uses_nor_removes_the_lower_pools_of_the_original() {
    for tier in [TierKind::Dram, TierKind::File] {
        let root = Root::in_memory();
        let (heat, other, lower) = (root.name("heat"), root.name("copy"), root.name("lower"));
        spilled(&heat, tier, Path::new(&lower));
        let pools = files_in(Path::new(&lower));
        assert_eq!(pools.len(), 1);
        copy(&heat, &other);
        let refused = Writer::open(&other, &options()).map(drop).unwrap_err();
        assert_eq!(refused.kind(), Kind::Damaged, "{refused}");
        let refused = Reader::open(&other, &options()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("cop"), "{refused}");
        let report = clean(&other).unwrap();
        assert!(report.removed[0].reason.contains(&pools[0].display().to_string()), "{report:?}");
        assert!(!Path::new(&other).exists());
        assert_eq!(files_in(Path::new(&lower)), pools);
        all_is_there(&heat);
        assert!(!clean(&heat).unwrap().removed[0].reason.contains("pool"));
        assert_eq!(files_in(Path::new(&lower)), Vec::<PathBuf>::new());
        assert_eq!(root.left(), ["lower"]);
    }
}

/// A backup of the directory and of the lower pool is a space; a move within the file system as well.
#[test]
fn a_space_with_lower_pools_can_be_moved_and_restored() {
    let root = Root::in_memory();
    let (heat, moved, lower) = (root.name("heat"), root.name("moved"), root.name("lower"));
    spilled(&heat, TierKind::Dram, Path::new(&lower));
    fs::rename(&heat, &moved).unwrap();
    all_is_there(&moved);
    copy(&moved, &heat);
    fs::remove_dir_all(&moved).unwrap();
    let pool = files_in(Path::new(&lower)).remove(0);
    fs::copy(&pool, root.name("backup")).unwrap();
    fs::remove_file(&pool).unwrap();
    // The new file must not get the inode of the old one.
    fs::write(root.name("between"), "").unwrap();
    fs::copy(root.name("backup"), &pool).unwrap();
    all_is_there(&heat);
    // Whose it is cannot be shown any more: it stays, and clean says so.
    let report = clean(&heat).unwrap();
    assert!(report.removed[0].reason.contains(&pool.display().to_string()), "{report:?}");
    assert!(pool.exists());
}

#[test]
fn files_that_a_forged_list_of_tiers_names_stay() {
    let root = Root::in_memory();
    let (heat, lower) = (root.name("heat"), root.name("lower"));
    spilled(&heat, TierKind::Dram, Path::new(&lower));
    let victims = ["thesis.txt", "zeros", "link"].map(|name| Path::new(&root.name(name)).to_path_buf());
    fs::write(&victims[0], "years of work").unwrap();
    fs::write(&victims[1], vec![0; 8192]).unwrap();
    std::os::unix::fs::symlink(&victims[0], &victims[2]).unwrap();
    let tiers = Path::new(&heat).join("tiers.json");
    let honest = fs::read_to_string(&tiers).unwrap();
    let pool = files_in(Path::new(&lower)).remove(0).display().to_string();
    // Opened it is refused; what cannot be opened is removed without its lower pools.
    for victim in &victims {
        fs::write(&tiers, honest.replace(&pool, &victim.display().to_string())).unwrap();
        let copied = root.name("forged");
        copy(&heat, &copied);
        let report = clean(&copied).unwrap();
        assert!(report.removed[0].reason.contains(&victim.display().to_string()), "{report:?}");
        assert!(victim.symlink_metadata().is_ok(), "{} is gone", victim.display());
    }
    fs::write(&tiers, honest).unwrap();
    all_is_there(&heat);
    clean(&heat).unwrap();
    assert!(!Path::new(&pool).exists());
}

/// Byte of the lock file that the maker of a directory holds.
const MAKER: u64 = 2;

/// The pid in the name says nothing: it may be of another PID namespace, or of another process by now.
#[test]
fn whether_the_maker_of_a_directory_lives_is_asked_of_the_kernel() {
    let stage = Stage::new(TierKind::Dram).unwrap();
    let root = stage.dir("a");
    assert_eq!(stage.outcome("a", "clean all"), "");
    let make = |name: &str| {
        let dir = root.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("pool"), "half").unwrap();
        dir
    };
    let (live, dead, empty) = (make(".x.new-4194304-1"), make(".y.new-1-1"), root.join(".z.new-4194304-2"));
    let gone = make(".x.gone-1-1");
    fs::create_dir(&empty).unwrap();
    let held = PoolLock::open(&live.join("lock")).unwrap();
    assert!(held.take(MAKER, true).unwrap());
    drop(PoolLock::open(&dead.join("lock")).unwrap());
    let said = stage.outcome("a", "clean all");
    assert!(live.exists(), "{said}");
    assert!(!dead.exists() && !gone.exists() && !empty.exists(), "{said}");
    drop(held);
    stage.outcome("a", "clean all");
    assert!(!live.exists());
}

#[test]
fn a_space_that_is_being_made_is_left_to_its_live_maker() {
    for is_killed in [false, true] {
        let stage = Stage::new(TierKind::File).unwrap();
        let short = [("OWNERSHIP_NAME", "heat"), ("FOREBAY_FAULT", "prepare:delay=1500ms@1")];
        let (mut child, _) = stage.start_with("a", "write", &short);
        let unfinished = || {
            let entries = fs::read_dir(stage.dir("a")).into_iter().flatten().flatten();
            entries.map(|e| e.path()).find(|p| p.display().to_string().contains(".heat.new-"))
        };
        let end = Instant::now() + Duration::from_secs(60);
        let dir = loop {
            if let Some(dir) = unfinished().filter(|dir| dir.join("pool").exists()) {
                break dir;
            }
            assert!(Instant::now() < end && child.try_wait().unwrap().is_none(), "nothing is being made");
            std::thread::sleep(Duration::from_millis(1));
        };
        if is_killed {
            child.kill().unwrap();
            child.wait().unwrap();
            stage.outcome("a", "clean all");
            assert!(!dir.exists());
        } else {
            stage.outcome("a", "clean all");
            assert!(child.wait().unwrap().success());
            assert_eq!(stage.outcome_with("a", "read", &short[..1]), "3 versions");
        }
    }
}

/// In a directory that others may write to, another user can be first.
#[test]
fn a_directory_that_is_not_the_users_alone_is_refused() {
    let root = Root::in_memory();
    let name = root.name("heat");
    for channel in [Mechanism::Space, Mechanism::Files] {
        let keep = OpenOptions { retention: Some(Retention::Forever), channel, ..options() };
        let quick = OpenOptions { timeout: Duration::from_millis(50), channel, ..options() };
        let open = || Reader::open(&name, &quick);
        let mut w = Writer::open(&name, &keep).unwrap();
        w.begin_step().unwrap();
        w.put_array("a", &[1], &[0], &[1], &[1u8]).unwrap();
        w.end_step().unwrap();
        w.close().unwrap();
        drop(open().unwrap());
        let dir = Path::new(&name);
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
            let refused = open().map(drop).unwrap_err();
            assert_eq!(refused.kind(), Kind::PermissionDenied, "{mode:o}: {refused}");
            assert_eq!(Writer::open(&name, &keep).map(drop).unwrap_err().kind(), Kind::PermissionDenied);
            assert_eq!(clean(&name).unwrap_err().kind(), Kind::PermissionDenied);
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        drop(open().unwrap());
        let me = fs::metadata(dir).unwrap().uid();
        match chown(dir, Some(65533), None) {
            Err(e) => crate::skips::skipped("a directory of another user", &e.to_string()),
            Ok(()) => {
                let refused = open().map(drop).unwrap_err();
                assert_eq!(refused.kind(), Kind::PermissionDenied, "{refused}");
                assert_eq!(forebay_space::destroy(&name).unwrap_err().kind(), Kind::PermissionDenied);
                chown(dir, Some(me), None).unwrap();
            }
        }
        forebay_space::destroy(&name).unwrap();
    }
}

/// A link that another user put into a sticky directory leads nowhere; one's own does.
#[test]
fn a_link_of_another_user_is_refused() {
    let root = Root::in_memory();
    let (heat, sticky) = (root.name("heat"), root.name("sticky"));
    spilled(&heat, TierKind::Dram, Path::new(&root.name("lower")));
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    let link = format!("{sticky}/heat");
    std::os::unix::fs::symlink(&heat, &link).unwrap();
    all_is_there(&link);
    if let Err(e) = std::os::unix::fs::lchown(&link, Some(65533), None) {
        return crate::skips::skipped("a link of another user", &e.to_string());
    }
    let quick = OpenOptions { timeout: Duration::from_millis(50), ..options() };
    assert_eq!(Reader::open(&link, &quick).map(drop).unwrap_err().kind(), Kind::PermissionDenied);
}

/// What a user calls `pool`, and a directory of a space into which a user has put other files.
#[test]
fn files_that_are_not_of_a_space_stay() {
    let root = Root::in_memory();
    let project = PathBuf::from(root.name("project"));
    fs::create_dir_all(project.join("sub")).unwrap();
    fs::write(project.join("thesis"), "precious").unwrap();
    for pool in ["", "notes", &"x".repeat(10_000)] {
        fs::write(project.join("pool"), pool).unwrap();
        let refused = clean(&root.name("project")).unwrap_err();
        assert_eq!(refused.kind(), Kind::Damaged, "{refused}");
        assert_eq!(files_in(&project).len(), 3, "nothing goes, and nothing is made there");
    }
    let heat = PathBuf::from(root.name("heat"));
    spilled(&root.name("heat"), TierKind::Dram, Path::new(&root.name("lower")));
    fs::write(heat.join("notes"), "precious").unwrap();
    for refused in
        [clean(&root.name("heat")).unwrap_err(), forebay_space::destroy(&root.name("heat")).unwrap_err()]
    {
        assert_eq!(refused.kind(), Kind::NameInUse, "{refused}");
        assert!(refused.to_string().contains("notes"), "{refused}");
    }
    all_is_there(&root.name("heat"));
    fs::remove_file(heat.join("notes")).unwrap();
    assert_eq!(clean(&root.name("heat")).unwrap().removed.len(), 1);
}

#[test]
fn what_is_left_of_a_space_whose_pool_was_removed_can_be_cleaned() {
    let root = Root::in_memory();
    let heat = root.name("heat");
    spilled(&heat, TierKind::Dram, Path::new(&root.name("lower")));
    fs::remove_file(format!("{heat}/pool")).unwrap();
    let error = reader(&heat, 0, 1).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
    assert_eq!(clean(&heat).unwrap().removed.len(), 1);
    assert!(!Path::new(&heat).exists());
}

/// A process that is killed while it makes or removes a space leaves a hidden directory beside it. Of a space that has
/// a path nothing else leads to it.
#[test]
fn cleaning_a_space_removes_what_killed_processes_left_of_it() {
    let root = Root::in_memory();
    let (heat, lower) = (root.name("heat"), root.name("lower"));
    spilled(&heat, TierKind::Dram, Path::new(&lower));
    let gone = root.name(".heat.gone-1-1");
    fs::rename(&heat, &gone).unwrap();
    for other in [".heat.new-1-1", ".heat-2.new-1-1", ".heat-2.gone-1-1"] {
        fs::create_dir(root.name(other)).unwrap();
        drop(PoolLock::open(&Path::new(&root.name(other)).join("lock")).unwrap());
    }
    let dry = CleanOptions { names: vec![heat.clone()], dry_run: true, ..CleanOptions::default() };
    let planned = forebay_space::clean(&dry).unwrap();
    assert!(Path::new(&gone).exists(), "a dry run removes nothing");
    let report = clean(&heat).unwrap();
    let names = |report: &CleanReport| {
        let mut names: Vec<String> = report.removed.iter().map(|removed| removed.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&report), [gone, root.name(".heat.new-1-1")], "{report:?}");
    assert_eq!(names(&planned), names(&report));
    assert_eq!(files_in(Path::new(&lower)), Vec::<PathBuf>::new());
    let mut left = root.left();
    left.sort();
    assert_eq!(left, [".heat-2.gone-1-1", ".heat-2.new-1-1", "lower"], "what is left of another space stays");
    assert_eq!(clean(&heat).unwrap_err().kind(), Kind::PeerMissing);
}

/// Names of the form that directories on their way in and out have.
#[test]
fn what_only_looks_like_a_leftover_stays() {
    let root = Root::in_memory();
    let (heat, lower) = (root.name("heat"), root.name("lower"));
    spilled(&heat, TierKind::Dram, Path::new(&lower));
    for kind in ["new", "gone"] {
        std::os::unix::fs::symlink(&heat, root.name(&format!(".link.{kind}-1-2"))).unwrap();
        let mine = root.name(&format!(".mine.{kind}-1-2"));
        fs::create_dir(&mine).unwrap();
        fs::write(Path::new(&mine).join("results.h5"), "results").unwrap();
        let git = root.name(&format!(".work.{kind}-1-2/.git"));
        fs::create_dir_all(&git).unwrap();
    }
    let before = root.left();
    for name in ["link", "mine", "work"] {
        assert_eq!(clean(&root.name(name)).unwrap_err().kind(), Kind::PeerMissing);
        forebay_space::remove_leftovers(Some(&root.name(name))).unwrap();
        // So does a process that makes a space of that name.
        Writer::open(&root.name(name), &options()).unwrap().close().unwrap();
        clean(&root.name(name)).unwrap();
    }
    assert_eq!(root.left(), before);
    all_is_there(&heat);
    let hidden = Writer::open(&root.name(".bar.gone-1-2"), &options()).map(drop);
    assert_eq!(hidden.unwrap_err().kind(), Kind::BadName);
}

/// Of a pool outside memory the shared state is a directory of its own, which the kill of a remover must not leave.
#[test]
fn the_shared_state_goes_with_a_space_whose_remover_was_killed() {
    let stage = Stage::new(TierKind::File).unwrap();
    let short = [("OWNERSHIP_NAME", "heat")];
    let said = stage.outcome_with("a", "write", &short);
    let root = stage.dir("a");
    let soft =
        || files_in(&root).into_iter().filter(|path| path.display().to_string().contains(".soft-")).count();
    assert_eq!(soft(), 1, "{said}");
    fs::rename(root.join("heat"), root.join(".heat.gone-1-1")).unwrap();
    stage.outcome("a", "clean all");
    assert_eq!((soft(), files_in(&root)), (0, Vec::new()));
}

/// A kill in the making of a lower pool leaves a file of any length, whose first page is there up to any byte. Another
/// file of the same name is not taken for one.
#[test]
fn a_lower_pool_whose_maker_was_killed_goes_with_its_directory() {
    let page_bytes = 4096;
    for (cut, length) in [(0, 0), (0, 100), (0, page_bytes), (5, 8192), (64, 8192), (200, 8192), (2080, 8192)]
    {
        for is_foreign in [false, true] {
            let root = Root::in_memory();
            let (heat, lower) = (root.name("heat"), root.name("lower"));
            spilled(&heat, TierKind::Dram, Path::new(&lower));
            fs::rename(&heat, root.name(".heat.new-1-1")).unwrap();
            drop(PoolLock::open(&Path::new(&root.name(".heat.new-1-1")).join("lock")).unwrap());
            let pool = files_in(Path::new(&lower)).remove(0);
            let file = fs::File::options().write(true).open(&pool).unwrap();
            let mut page = fs::read(&pool).unwrap();
            page.truncate(page_bytes);
            page[cut..].fill(0);
            if is_foreign {
                page[50] ^= 0x55;
            }
            page.truncate(length);
            file.set_len(0).unwrap();
            file.set_len(length as u64).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &page, 0).unwrap();
            let report = clean(&heat).unwrap();
            assert_eq!(pool.exists(), is_foreign && length > 50, "{cut} of {length} bytes: {report:?}");
        }
    }
}

/// The name of the shared state of a pool on a disk has the pool's uuid in it, which a damaged pool does not say.
#[test]
fn a_damaged_space_on_a_disk_leaves_no_shared_state() {
    let disk = tempfile::tempdir().unwrap();
    let name = format!("{}/damaged", disk.path().display());
    let on_disk = OpenOptions { tier: Some(TierKind::File), quota_bytes: Some(8 << 20), ..options() };
    let mut w = Writer::open(&name, &on_disk).unwrap();
    w.begin_step().unwrap();
    w.put_array("a", &[8], &[0], &[8], &[1u8; 8]).unwrap();
    w.end_step().unwrap();
    w.close().unwrap();
    let pool = Path::new(&name).join("pool");
    let uuid = forebay_space::inspect(&name).unwrap().uuid;
    let shared_states = || {
        let entries = fs::read_dir(forebay_space::root().unwrap()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with(&format!(".soft-{uuid}"))).count()
    };
    assert_eq!(shared_states(), 1);
    let mut bytes = fs::read(&pool).unwrap();
    bytes[..4096].fill(0xff);
    fs::write(&pool, bytes).unwrap();
    assert_eq!(clean(&name).unwrap().removed.len(), 1);
    assert_eq!(shared_states(), 0);
}

/// The shared state of a space on a disk whose directory was removed by hand, as users remove results.
#[test]
fn the_shared_state_of_a_space_that_was_removed_by_hand_goes() {
    let disk = tempfile::tempdir().unwrap();
    let path = |file: &str| format!("{}/{file}", disk.path().display());
    let on_disk = OpenOptions { tier: Some(TierKind::File), quota_bytes: Some(8 << 20), ..options() };
    let written = |name: &str| {
        let mut w = Writer::open(name, &on_disk).unwrap();
        w.begin_step().unwrap();
        w.put_array("a", &[8], &[0], &[8], &[7u8; 8]).unwrap();
        w.end_step().unwrap();
        w
    };
    let shared_state = |name: &str| {
        let uuid = forebay_space::inspect(name).unwrap().uuid;
        let inode = fs::metadata(Path::new(name).join("pool")).unwrap().ino();
        forebay_space::root().unwrap().join(format!(".soft-{uuid}-{inode:x}"))
    };
    // With its name, and by the process that makes a space there.
    for by_name in [true, false] {
        let name = path("heat");
        written(&name).close().unwrap();
        let soft = shared_state(&name);
        fs::remove_dir_all(&name).unwrap();
        let dry = CleanOptions { names: vec![name.clone()], dry_run: true, ..CleanOptions::default() };
        assert_eq!(forebay_space::clean(&dry).unwrap().removed.len(), 1);
        assert!(soft.join("control").exists(), "a dry run removes nothing");
        if by_name {
            let removed = clean(&name).unwrap().removed;
            assert_eq!(removed[0].reason, "shared state of a pool that was removed");
        } else {
            written(&name).close().unwrap();
            assert!(shared_state(&name).exists());
        }
        assert!(!soft.exists(), "{}", soft.display());
        let _ = clean(&name);
    }
    // Not one that a process uses, nor that of a space which has only been moved.
    let (name, moved) = (path("live"), path("moved"));
    let w = written(&name);
    let soft = shared_state(&name);
    fs::rename(&name, &moved).unwrap();
    assert_eq!(clean(&name).unwrap_err().kind(), Kind::PeerMissing);
    assert!(soft.exists());
    w.close().unwrap();
    let mut r = reader(&moved, 0, 1).unwrap();
    assert_eq!(clean(&name).unwrap_err().kind(), Kind::PeerMissing);
    assert!(soft.exists());
    assert_eq!(r.begin_step(None).unwrap(), Some(0));
    assert_eq!(r.get_array::<u8>("a", None).unwrap(), [7; 8]);
    drop(r);
    assert_eq!(clean(&moved).unwrap().removed.len(), 1);
    assert!(!soft.exists());
}

/// As `cp -al` does: another directory with the same files.
fn link_files(from: &str, to: &str) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for file in files_in(Path::new(from)) {
        fs::hard_link(&file, Path::new(to).join(file.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_directory_of_hard_links_takes_nothing_of_the_original_away() {
    for tier in [TierKind::Dram, TierKind::File] {
        let root = Root::in_memory();
        let (name, snap) = (root.name("heat"), root.name("snap"));
        let lower = PathBuf::from(root.name("lower"));
        spilled(&name, tier, &lower);
        let pools = files_in(&lower);
        link_files(&name, &snap);
        let report = clean(&snap).unwrap();
        assert_eq!(report.removed.len(), 1, "{report:?}");
        assert!(report.removed[0].reason.contains("lower pools that could not be removed"), "{report:?}");
        assert!(!Path::new(&snap).exists());
        assert_eq!(files_in(&lower), pools, "{tier}");
        all_is_there(&name);
        // Without the other links its lower pools are its own.
        clean(&name).unwrap();
        assert_eq!((files_in(&lower), root.left()), (Vec::new(), vec!["lower".to_string()]), "{tier}");
    }
}

/// A root with the directory `real` and the link `link`, by which spaces are named.
fn linked() -> (Root, String, PathBuf) {
    let root = Root::in_memory();
    let (link, real) = (root.name("link"), PathBuf::from(root.name("real")));
    std::os::unix::fs::symlink("real", &link).unwrap();
    (root, link, real)
}

#[test]
fn a_space_that_is_named_by_a_symbolic_link_is_removed_and_not_the_link() {
    for channel in [Mechanism::Space, Mechanism::Files] {
        let (_root, link, real) = linked();
        let write = |value: u64, mode| {
            let mut w = Writer::open(&link, &OpenOptions { mode, channel, ..options() }).unwrap();
            w.begin_step().unwrap();
            w.put_array("a", &[1], &[0], &[1], &[value]).unwrap();
            w.end_step().unwrap();
            w.close().unwrap();
        };
        let is_link = || fs::symlink_metadata(&link).unwrap().file_type().is_symlink();
        // On request.
        write(1, Mode::Append);
        assert!(is_link() && real.exists(), "{channel:?}: it is made where the link points");
        assert_eq!(clean(&link).unwrap().removed.len(), 1);
        assert!(is_link() && !real.exists(), "{channel:?}");
        // Replaced by the next writer, and removed by its last reader.
        write(2, Mode::Append);
        write(3, Mode::Write);
        assert!(is_link() && real.exists(), "{channel:?}");
        let mut r = Reader::open(&link, &OpenOptions { channel, ..options() }).unwrap();
        assert_eq!(r.begin_step(None).unwrap(), Some(0));
        assert_eq!(r.get_array::<u64>("a", None).unwrap(), [3], "{channel:?}");
        r.end_step().unwrap();
        assert_eq!(r.begin_step(None).unwrap(), None);
        drop(r);
        assert!(is_link() && !real.exists(), "{channel:?}");
    }
}
