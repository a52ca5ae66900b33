//! For tests: a process in which newer system calls fail, as on an old kernel or in a strict sandbox.
//!
//! A test runs its own binary again as a child that installs a seccomp filter first, so that nothing was
//! probed before.

use std::process::Command;
use std::sync::Arc;

use crate::device::{conformance, file::FilePool, pmem};
use crate::engine::Engine;
use crate::{Access, Device, Kind, MapMode, Nodes, Placement, Region, TierKind};

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

/// Applies the rules to this thread and those it starts; ends the process where filters are not available.
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

/// A refusal whatever the arguments are.
fn always(call: libc::c_long, errno: i32) -> Refusal {
    Refusal { call, argument: None, errno }
}

/// Whether a pool of this kind can be had in the temporary directory, which the parent is told.
fn possible(kind: TierKind) -> bool {
    let dir = tempfile::tempdir().unwrap();
    match crate::create(kind, &dir.path().join("p"), 4096) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.kind(), Kind::NotPossibleHere, "{e}");
            println!("PART {kind}: {}", e.message());
            false
        }
    }
}

/// Every way in which space can be insufficient or a write can fail, on the kinds that are written by system calls.
/// `mode` is what the sandbox does to allocations and writes.
fn block_pools_refuse(mode: &str) {
    for kind in [TierKind::File, TierKind::Direct] {
        if !possible(kind) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let pool = crate::create(kind, &dir.path().join("p"), 8 << 20).unwrap();
        let prepared = pool.prepare(0..8 << 20);
        let memory = vec![1u8; 2 << 20];
        match mode {
            "out of space" => {
                let error = prepared.unwrap_err();
                assert_eq!(error.kind(), Kind::TierFull, "{error}");
                let blocks = std::os::unix::fs::MetadataExt::blocks(&pool.path().metadata().unwrap());
                assert_eq!(blocks, 0, "a refused prepare left blocks");
            }
            "bad writes" => {
                prepared.unwrap();
                for bytes in [&memory[..100], &memory[..65_536], &memory] {
                    let error = pool.write(100, bytes).unwrap_err();
                    assert_eq!(error.kind(), Kind::Io, "{error}");
                    let error = pool.write_checksummed(100, bytes, 65_536, &mut Vec::new()).unwrap_err();
                    assert_eq!(error.kind(), Kind::Io, "{error}");
                }
                assert!(pool.bytes(0..2 << 20).iter().all(|byte| *byte == 0), "a failed write left bytes");
                pool.persist(0..4096).expect("a refused write says so itself; it poisons nothing");
            }
            "bad flushes" => {
                prepared.unwrap();
                pool.write(0, &memory).unwrap();
                for _ in 0..2 {
                    assert_eq!(pool.persist(0..1).unwrap_err().kind(), Kind::Poisoned);
                    assert_eq!(pool.write(0, b"y").unwrap_err().kind(), Kind::Poisoned);
                }
                let again = crate::open(kind, pool.path(), Access::Read).unwrap();
                assert!(again.bytes(0..2 << 20) == memory, "reading goes on");
            }
            other => panic!("no mode {other}"),
        }
    }
}

fn pools_conform(kind: TierKind, root: &std::path::Path) {
    if kind == TierKind::Direct && !possible(kind) {
        return;
    }
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

/// What the children for tiers `direct` and `numa` do.
fn without_newer_tiers(which: &str, shm: &std::path::Path) {
    match which {
        "no io_uring, no statx" => {
            refuse(&[
                always(libc::SYS_io_uring_setup, libc::EPERM),
                // Without it the alignment for direct transfers is found by trial.
                always(libc::SYS_statx, libc::ENOSYS),
            ]);
            assert_eq!(Engine::io_uring().unwrap_err().kind(), Kind::NotPossibleHere);
            assert_eq!(Engine::of_process().unwrap().name(), "threads");
            pools_conform(TierKind::Direct, &std::env::temp_dir());
        }
        "io_uring refused late" => {
            // The choice was made; a thread that comes after it gets no ring and goes by threads.
            let engine = Engine::of_process().unwrap();
            refuse(&[always(libc::SYS_io_uring_setup, libc::EPERM)]);
            let file = tempfile::tempfile().unwrap();
            let data: Vec<u8> = (0..5_000_000u32).map(|i| (i >> 7) as u8).collect();
            engine.write_all(&file, &[(0, &data)], None).unwrap();
            let mut out = vec![0; data.len()];
            engine.read_exact(&file, 0, &mut out).unwrap();
            assert!(out == data);
        }
        "no locked memory" => {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `none` outlives the call; the limit is this process's own.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) }, 0);
            if crate::engine::registered_bytes().is_some_and(|registered| registered > 0) {
                println!("PART frames that cannot be registered: this user may lock memory beyond the limit");
            }
            pools_conform(TierKind::Direct, &std::env::temp_dir());
        }
        "full disk" => {
            refuse(&[always(libc::SYS_fallocate, libc::ENOSPC)]);
            block_pools_refuse("out of space");
        }
        "full disk without fallocate" => {
            refuse(&[
                always(libc::SYS_fallocate, libc::EOPNOTSUPP),
                always(libc::SYS_pwrite64, libc::ENOSPC),
            ]);
            block_pools_refuse("out of space");
        }
        "disk that takes no writes" => {
            refuse(&[always(libc::SYS_io_uring_setup, libc::EPERM), always(libc::SYS_pwrite64, libc::EIO)]);
            block_pools_refuse("bad writes");
        }
        "disk that does not flush" => {
            refuse(&[always(libc::SYS_fdatasync, libc::EIO)]);
            block_pools_refuse("bad flushes");
        }
        other => without_numa(other, shm),
    }
}

fn without_numa(which: &str, shm: &std::path::Path) {
    match which {
        "no mbind" => {
            refuse(&[always(libc::SYS_mbind, libc::EPERM)]);
            pools_conform(TierKind::Numa(0), shm);
            let dir = tempfile::tempdir_in(shm).unwrap();
            let pool = crate::create(TierKind::Numa(0), &dir.path().join("p"), 4 << 20).unwrap();
            pool.prepare(0..4 << 20).unwrap();
            match pool.placement() {
                Some(Placement::FirstTouch) => {}
                other => println!("PART numa:0: the kernel does not tell where pages lie: {other:?}"),
            }
            assert_ne!(pool.placement(), Some(Placement::Bound));
            // A set of one node, which every machine has: the turns are one thread's.
            let spread = TierKind::Interleaved(Nodes::FIRST_ALONE);
            pools_conform(spread, shm);
            let pool = crate::create(spread, &dir.path().join("q"), 4 << 20).unwrap();
            pool.prepare(0..4 << 20).unwrap();
            match pool.placement() {
                Some(Placement::TouchedInTurn(_)) => {}
                Some(Placement::Unverified) => {
                    println!("PART pages in turn: the kernel does not tell where they lie")
                }
                other => panic!("{other:?}"),
            }
        }
        "no page queries" => {
            refuse(&[always(libc::SYS_move_pages, libc::EPERM)]);
            let dir = tempfile::tempdir_in(shm).unwrap();
            let pool = crate::create(TierKind::Numa(0), &dir.path().join("p"), 4 << 20).unwrap();
            pool.prepare(0..4 << 20).unwrap();
            assert_eq!(pool.placement(), Some(Placement::Unverified));
            let pool =
                crate::create(TierKind::Interleaved(Nodes::FIRST_ALONE), &dir.path().join("q"), 4 << 20)
                    .unwrap();
            pool.prepare(0..4 << 20).unwrap();
            assert_eq!(pool.placement(), Some(Placement::Unverified));
        }
        other => panic!("no sandbox {other}"),
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
            pools_conform(TierKind::Direct, &std::env::temp_dir());
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
        other => without_newer_tiers(other, shm),
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
    for part in stdout.lines().filter_map(|line| line.strip_prefix("PART ")) {
        let (what, why) = part.split_once(": ").unwrap_or((part, "not possible"));
        crate::skips::skipped(&format!("sandbox \"{which}\" on {what}"), why);
    }
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

#[test]
fn direct_pools_need_neither_io_uring_nor_statx() {
    run("no io_uring, no statx");
    run("io_uring refused late");
    run("no locked memory");
}

#[test]
fn a_full_disk_is_an_error_of_prepare() {
    run("full disk");
    run("full disk without fallocate");
}

#[test]
fn a_disk_that_fails_says_so() {
    run("disk that takes no writes");
    run("disk that does not flush");
}

#[test]
fn a_memory_node_needs_neither_mbind_nor_page_queries() {
    run("no mbind");
    run("no page queries");
}
