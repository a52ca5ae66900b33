//! For tests: a process in which newer system calls fail, as on an old kernel or in a strict sandbox.
//!
//! A test runs its own binary again as a child that installs a seccomp filter first, so that nothing was
//! probed before.

use std::process::Command;
use std::sync::Arc;

use crate::device::{conformance, file::FilePool, pmem};
use crate::{Access, Device, MapMode, Region, TierKind};

const CHILD: &str = "TIER_TEST_SANDBOX";

/// One rule: this system call fails with `errno`; with `argument`, only when its argument of that index is
/// so.
struct Refusal {
    call: libc::c_long,
    argument: Option<(u32, u32)>,
    errno: i32,
}

fn madvise(advice: libc::c_int) -> Refusal {
    Refusal { call: libc::SYS_madvise, argument: Some((2, advice as u32)), errno: libc::EINVAL }
}

/// Applies the rules to this thread and those it starts; ends the process where filters are not to be had.
fn refuse(rules: &[Refusal]) {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET,
    );
    let mut program = Vec::new();
    for rule in rules {
        // Offsets in struct seccomp_data: the number at 0, the lower halves of arguments at 16, 24, … (x86-64
        // and aarch64 are little-endian). A rule that does not apply is jumped over.
        let (index, value) = rule.argument.unwrap_or((0, 0));
        let tests_argument = rule.argument.is_some();
        program.push(op(load, 0, 0, 0));
        program.push(op(equal, 0, if tests_argument { 3 } else { 1 }, rule.call as u32));
        if tests_argument {
            program.push(op(load, 0, 0, 16 + 8 * index));
            program.push(op(equal, 0, 1, value));
        }
        program.push(op(answer, 0, 0, libc::SECCOMP_RET_ERRNO | rule.errno as u32));
    }
    program.push(op(answer, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` points to `program`, alive through both calls; the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let rc =
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter as *const libc::sock_fprog);
        if rc != 0 {
            println!("NO FILTER {}", std::io::Error::last_os_error());
            std::process::exit(0);
        }
    }
}

fn pools_conform(kind: TierKind, root: &std::path::Path) {
    let dir = tempfile::tempdir_in(root).unwrap();
    let count = std::sync::atomic::AtomicU32::new(0);
    let make = |capacity: u64| {
        let name = format!("pool{}", count.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let path = dir.path().join(name);
        match kind {
            TierKind::Pmem => Arc::new(pmem::create_emulated(&path, capacity).unwrap()) as Arc<dyn Device>,
            _ => crate::create(kind, &path, capacity).unwrap(),
        }
    };
    conformance::check(&make);
    if kind != TierKind::Pmem {
        conformance::check_reopening(&make, &|path, access| crate::open(kind, path, access));
    }
}

/// Not a test by itself: what the children do.
#[test]
fn child() {
    let Ok(which) = std::env::var(CHILD) else {
        return;
    };
    let old = [
        madvise(libc::MADV_POPULATE_READ),
        madvise(libc::MADV_POPULATE_WRITE),
        madvise(libc::MADV_WIPEONFORK),
    ];
    let shm = std::path::Path::new("/dev/shm");
    match &*which {
        "old kernel" => {
            refuse(&old);
            let parent = super::fork_generation();
            assert_eq!(
                super::in_child(|| i32::from(super::fork_generation() == parent)),
                0,
                "fork not noticed"
            );
            pools_conform(TierKind::Dram, shm);
            pools_conform(TierKind::Pmem, shm);
            pools_conform(TierKind::File, &std::env::temp_dir());
        }
        "no fallocate" => {
            let fiemap = (1, 0xC020_660B);
            refuse(&[
                Refusal { call: libc::SYS_fallocate, argument: None, errno: libc::EOPNOTSUPP },
                Refusal { call: libc::SYS_ioctl, argument: Some(fiemap), errno: libc::EOPNOTSUPP },
            ]);
            pools_conform(TierKind::File, &std::env::temp_dir());
            pools_conform(TierKind::File, shm);
            let dir = tempfile::tempdir_in(shm).unwrap();
            crate::SharedWords::create(&dir.path().join("words"), 100_000).unwrap();
        }
        "broken disk" => {
            refuse(&[
                Refusal { call: libc::SYS_fdatasync, argument: None, errno: libc::EIO },
                Refusal { call: libc::SYS_msync, argument: None, errno: libc::EIO },
            ]);
            let dir = tempfile::tempdir_in(shm).unwrap();
            let pool = FilePool::create(&dir.path().join("p"), 4096).unwrap();
            pool.prepare(0..4096).unwrap();
            pool.write(0, b"x").unwrap();
            for _ in 0..2 {
                assert_eq!(pool.persist(0..1).unwrap_err().kind(), crate::Kind::Poisoned);
                assert_eq!(pool.write(0, b"y").unwrap_err().kind(), crate::Kind::Poisoned);
            }
            assert_eq!(FilePool::open(&dir.path().join("p"), Access::Read).unwrap().bytes(0..1), b"x");
            a_region_is_poisoned(&dir.path().join("r"));
        }
        "no nameless files" => {
            let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
            let argument = Some((2, flags as u32));
            refuse(&[Refusal { call: libc::SYS_openat, argument, errno: libc::EOPNOTSUPP }]);
            for root in [shm, &std::env::temp_dir()] {
                regions_come_without_nameless_files(root);
            }
        }
        other => panic!("no sandbox {other}"),
    }
    println!("DONE {which}");
}

fn a_region_is_poisoned(path: &std::path::Path) {
    let mut region = Region::create(path, 5000, Some(TierKind::File)).unwrap();
    let first = region.copy_persist(0, b"x").unwrap_err();
    assert_eq!(first.kind(), crate::Kind::Poisoned, "{first}");
    assert!(first.message().contains("Input/output error"), "{first}");
    for _ in 0..2 {
        assert_eq!(region.persist(0..1).unwrap_err().message(), first.message());
        assert_eq!(region.copy_persist(0, b"y").unwrap_err().kind(), crate::Kind::Poisoned);
    }
    let again = Region::map(path, None, None, MapMode::Read).unwrap();
    assert_eq!(&again.as_slice()[..2], b"x\0", "the refused copy was made all the same");
}

fn regions_come_without_nameless_files(root: &std::path::Path) {
    let dir = tempfile::tempdir_in(root).unwrap();
    let path = dir.path().join("r");
    let mut region = Region::open_or_create(&path, 5000, None).unwrap();
    region.copy_persist(4999, b"x").unwrap();
    assert_eq!(Region::create(&path, 5000, None).unwrap_err().kind(), crate::Kind::Io);
    assert_eq!(Region::open_or_create(&path, 5000, None).unwrap().as_slice()[4999], b'x');
    let too_much = Region::create(&dir.path().join("big"), 1 << 43, None).unwrap_err();
    assert_eq!(too_much.kind(), crate::Kind::TierFull, "{too_much}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["r"], "stand-ins were left");
}

fn run(which: &str) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sys::sandbox::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, which)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{}\n{stdout}\n{stderr}", child.status);
    match stdout.lines().find_map(|line| line.strip_prefix("NO FILTER ")) {
        Some(why) => crate::skips::skipped(&format!("sandbox \"{which}\""), &format!("seccomp: {why}")),
        None => assert!(stdout.contains(&format!("DONE {which}")), "{stdout}\n{stderr}"),
    }
}

#[test]
fn an_old_kernel_is_enough() {
    run("old kernel");
}

#[test]
fn a_file_system_without_fallocate_is_enough() {
    run("no fallocate");
}

#[test]
fn a_flush_that_the_kernel_refuses_poisons() {
    run("broken disk");
}

#[test]
fn a_file_system_without_nameless_files_is_enough() {
    run("no nameless files");
}
