//! Insufficient capacity is an error before a page is touched: in a memory cgroup and on a small tmpfs.
//!
//! Each case runs this binary again as a child, inside the cgroup or a mount namespace of its own; the child
//! says what happened and a kill would show as its exit status.

mod skips;
mod tmpfs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_tier::{Region, TierKind};

const MIB: u64 = 1 << 20;
/// Names the directory in which the child works; without it the child's test does nothing.
const CHILD_DIR: &str = "TIER_TEST_CHILD_DIR";
/// Names the cgroup that the child enters first.
const CHILD_CGROUP: &str = "TIER_TEST_CHILD_CGROUP";
/// The kind of its pool.
const CHILD_KIND: &str = "TIER_TEST_CHILD_KIND";
/// The MiB that it prepares, one after the other from the start of the pool: "256 16".
const CHILD_WANTS: &str = "TIER_TEST_CHILD_WANTS";

/// Prepares what it is told, uses it, and prints each outcome. Not a test by itself.
#[test]
fn child_prepares() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    if let Some(cgroup) = std::env::var_os(CHILD_CGROUP) {
        fs::write(Path::new(&cgroup).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    let kind: TierKind = std::env::var(CHILD_KIND).unwrap().parse().unwrap();
    if std::env::var_os(CHILD_MAPS).is_some() {
        return maps(Path::new(&dir), kind);
    }
    let path = Path::new(&dir).join(format!("pool{}", std::process::id()));
    let pool = forebay_tier::create(kind, &path, 256 * MIB).unwrap();
    for wanted in std::env::var(CHILD_WANTS).unwrap().split(' ') {
        let bytes = wanted.parse::<u64>().unwrap() * MIB;
        match pool.prepare(0..bytes) {
            Ok(()) => {
                // In small pieces: the memory in question is the pool's, not that of a source.
                (0..bytes / MIB).for_each(|at| pool.write(at * MIB, &[1; MIB as usize]).unwrap());
                println!("OUTCOME {wanted} MiB prepared");
            }
            Err(e) => println!("OUTCOME {wanted} MiB refused {}", e.to_string().replace('\n', " ")),
        }
    }
    println!("HUGE {}", huge_kib());
}

/// As above with regions, each of its own.
fn maps(dir: &Path, kind: TierKind) {
    for (count, wanted) in std::env::var(CHILD_WANTS).unwrap().split(' ').enumerate() {
        let path = dir.join(format!("region{count}"));
        let bytes = wanted.parse::<usize>().unwrap() << 20;
        match Region::create(&path, bytes, Some(kind)) {
            Ok(mut region) => {
                region.as_mut_slice().unwrap().fill(1);
                println!("OUTCOME {wanted} MiB mapped");
            }
            Err(e) => println!("OUTCOME {wanted} MiB refused {}", e.to_string().replace('\n', " ")),
        }
    }
    println!("HUGE 0");
}

/// How much of this process's memory are huge pages of shared memory.
fn huge_kib() -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let sizes =
        maps.lines().filter_map(|line| line.strip_prefix("ShmemPmdMapped:")?.trim().strip_suffix("kB"));
    sizes.map(|size| size.trim().parse::<u64>().unwrap()).sum()
}

/// When set, the child maps regions instead of preparing a pool.
const CHILD_MAPS: &str = "TIER_TEST_CHILD_MAPS";

/// The child's outcomes, and the KiB of huge pages it had.
fn run(mut command: Command) -> (Vec<String>, u64) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "child ended with {status}\n{stdout}\n{stderr}");
    // Not every line begins with our word: the test harness writes into the first.
    let said = |word: &str| -> Vec<String> {
        stdout.lines().filter_map(|line| line.split_once(word)).map(|(_, rest)| rest.to_owned()).collect()
    };
    (said("OUTCOME "), said("HUGE ")[0].parse().unwrap())
}

/// This binary as a child that prepares `wants` of a `kind` pool in `dir`.
/// `command` runs it, or whatever runs it.
fn child(mut command: Command, dir: &Path, kind: TierKind, wants: &str) -> Command {
    command.args(["--exact", "child_prepares", "--nocapture", "--test-threads=1"]);
    command.env(CHILD_DIR, dir).env(CHILD_KIND, kind.to_string()).env(CHILD_WANTS, wants);
    command
}

fn this_binary() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// A directory that is removed at the end, also a cgroup (which must be empty then).
struct Gone(PathBuf);

impl Drop for Gone {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("left behind: {}", self.0.display());
    }
}

/// A fresh memory cgroup with a limit, below our own where that is possible; else why not.
fn memory_cgroup(name: &str, limit_bytes: u64) -> Result<Gone, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
    let point = |line: &str| line.split(' ').nth(4).map(PathBuf::from);
    let v1 = mounts.lines().find(|l| l.contains(" - cgroup ") && l.ends_with("memory")).and_then(point);
    let v2 = mounts.lines().find(|l| l.contains(" - cgroup2 ")).and_then(point);
    let delegated = |dir: &PathBuf| {
        fs::read_to_string(dir.join("cgroup.subtree_control")).is_ok_and(|text| text.contains("memory"))
    };
    let (root, file) = match (v1, v2.filter(delegated)) {
        (Some(root), _) => (root, "memory.limit_in_bytes"),
        (None, Some(root)) => (root, "memory.max"),
        (None, None) => return Err("no memory cgroup hierarchy".into()),
    };
    let dir = root.join(format!("forebay-test-{name}-{}", std::process::id()));
    fs::create_dir(&dir).map_err(|e| format!("cannot make a cgroup in {}: {e}", root.display()))?;
    let made = Gone(dir);
    fs::write(made.0.join(file), limit_bytes.to_string()).map_err(|e| format!("cannot set {file}: {e}"))?;
    Ok(made)
}

#[test]
fn a_memory_cgroup_refuses_instead_of_killing() {
    let cgroup = match memory_cgroup("one", 64 * MIB) {
        Ok(cgroup) => cgroup,
        Err(why) => return skips::skipped("free memory in a memory cgroup", &why),
    };
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = child(Command::new(this_binary()), dir.path(), TierKind::Dram, "256 16 16");
    command.env(CHILD_CGROUP, &cgroup.0);
    let (outcomes, _) = run(command);
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert!(outcomes[0].starts_with("256 MiB refused TierFull"), "{}", outcomes[0]);
    let name = format!("limited_by=memory cgroup /forebay-test-one-{}", std::process::id());
    assert!(outcomes[0].contains(&name), "{}", outcomes[0]);
    assert_eq!(outcomes[1..], ["16 MiB prepared", "16 MiB prepared"]);
}

#[test]
fn a_memory_cgroup_refuses_a_region() {
    let cgroup = match memory_cgroup("map", 64 * MIB) {
        Ok(cgroup) => cgroup,
        Err(why) => return skips::skipped("free memory for a region in a memory cgroup", &why),
    };
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = child(Command::new(this_binary()), dir.path(), TierKind::Dram, "256 12 12 24");
    command.env(CHILD_CGROUP, &cgroup.0).env(CHILD_MAPS, "1");
    let (outcomes, _) = run(command);
    assert_eq!(outcomes.len(), 4, "{outcomes:?}");
    for which in [0, 3] {
        assert!(outcomes[which].contains("MiB refused TierFull"), "{}", outcomes[which]);
        assert!(
            outcomes[which].contains("limited_by=memory cgroup /forebay-test-map-"),
            "{}",
            outcomes[which]
        );
    }
    assert_eq!(outcomes[1..3], ["12 MiB mapped", "12 MiB mapped"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "a refused region left its file");
}

#[test]
fn several_processes_share_a_memory_cgroup() {
    let cgroup = match memory_cgroup("four", 64 * MIB) {
        Ok(cgroup) => cgroup,
        Err(why) => return skips::skipped("free memory in a shared memory cgroup", &why),
    };
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let outcomes: Vec<String> = std::thread::scope(|scope| {
        let run_one = || {
            let mut command = child(Command::new(this_binary()), dir.path(), TierKind::Dram, "24");
            command.env(CHILD_CGROUP, &cgroup.0);
            run(command).0.remove(0)
        };
        let children: Vec<_> = (0..4).map(|_| scope.spawn(run_one)).collect();
        children.into_iter().map(|child| child.join().expect("no child was killed")).collect()
    });
    let prepared = outcomes.iter().filter(|outcome| *outcome == "24 MiB prepared").count();
    let refused = outcomes.iter().filter(|outcome| outcome.starts_with("24 MiB refused TierFull")).count();
    assert!(prepared >= 1 && refused >= 2 && prepared + refused == 4, "{outcomes:?}");
}

/// Runs the child with a tmpfs of its own mounted with `options`; None when that is not allowed here.
fn on_own_tmpfs(what: &str, options: &str, kind: TierKind, wants: &str) -> Option<(Vec<String>, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let Some(command) = tmpfs::command_on(dir.path(), options, &this_binary()) else {
        skips::skipped(what, "no right to mount a tmpfs in a namespace of our own");
        return None;
    };
    Some(run(child(command, dir.path(), kind, wants)))
}

#[test]
fn a_small_tmpfs_refuses_by_name() {
    for kind in [TierKind::Dram, TierKind::File] {
        let what = format!("free space for {kind} on a small tmpfs");
        let Some((outcomes, _)) = on_own_tmpfs(&what, "size=8m", kind, "256 16 6 8 9") else {
            continue;
        };
        assert_eq!(outcomes.len(), 5, "{outcomes:?}");
        for (which, wanted) in [(0, 256), (1, 16), (4, 9)] {
            assert!(
                outcomes[which].starts_with(&format!("{wanted} MiB refused TierFull")),
                "{}",
                outcomes[which]
            );
            assert!(outcomes[which].contains("limited_by=tmpfs "), "{}", outcomes[which]);
        }
        // To the last byte: what is prepared already is not counted again.
        assert_eq!(outcomes[2..4], ["6 MiB prepared", "8 MiB prepared"]);
    }
}

/// Runs the child with an ext4 of its own of 24 MiB; None when that is not allowed here.
fn on_own_disk(what: &str, kind: TierKind, wants: &str) -> Option<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
    fs::create_dir(&mount).unwrap();
    fs::File::create(&image).unwrap().set_len(24 * MIB).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(&image).output();
    let script = "mount -o loop \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let enter = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&image).arg(&mount).arg(program);
        command
    };
    let usable = made.is_ok_and(|out| out.status.success())
        && enter(Path::new("true")).output().is_ok_and(|out| out.status.success());
    if !usable {
        skips::skipped(what, "no mkfs.ext4, or no right to mount an image in a namespace of our own");
        return None;
    }
    Some(run(child(enter(&this_binary()), &mount, kind, wants)).0)
}

#[test]
fn a_small_disk_refuses_by_name() {
    for kind in [TierKind::File, TierKind::Direct] {
        let what = format!("free space for {kind} on a small disk");
        let Some(outcomes) = on_own_disk(&what, kind, "256 30 6 6 30 7") else { continue };
        assert_eq!(outcomes.len(), 6, "{outcomes:?}");
        for (which, wanted) in [(0, 256), (1, 30), (4, 30)] {
            let refused = format!("{wanted} MiB refused TierFull");
            assert!(outcomes[which].starts_with(&refused), "{}", outcomes[which]);
            assert!(outcomes[which].contains("limited_by=ext4 "), "{}", outcomes[which]);
        }
        assert_eq!(
            [&outcomes[2], &outcomes[3], &outcomes[5]],
            ["6 MiB prepared", "6 MiB prepared", "7 MiB prepared"]
        );
    }
}

#[test]
fn huge_pages_on_request_keep_the_contract() {
    let ran = on_own_tmpfs("huge pages on request", "size=64m,huge=advise", TierKind::Dram, "256 16 6");
    let Some((outcomes, huge_kib)) = ran else {
        return;
    };
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert!(outcomes[0].contains("limited_by=tmpfs "), "{}", outcomes[0]);
    assert_eq!(outcomes[1..], ["16 MiB prepared", "6 MiB prepared"]);
    if huge_kib == 0 {
        skips::skipped("huge pages in a pool", "the kernel gave none to a tmpfs mounted with huge=advise");
    }
}
