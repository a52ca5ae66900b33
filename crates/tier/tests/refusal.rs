//! Too little room is an error before a page is touched: in a memory cgroup and on a small tmpfs.
//!
//! Each case runs this binary again as a child, inside the cgroup or a mount namespace of its own; the child says
//! what happened and a kill would show as its exit status.

mod skips;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_tier::TierKind;

const MIB: u64 = 1 << 20;
/// Names the directory in which the child works; without it the child's test does nothing.
const CHILD_DIR: &str = "TIER_TEST_CHILD_DIR";
/// Names the cgroup that the child enters first.
const CHILD_CGROUP: &str = "TIER_TEST_CHILD_CGROUP";

/// Prepares 256 MiB, then 16 MiB (or 6 on a small tmpfs), and prints each outcome. Not a test by itself.
#[test]
fn child_prepares() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    if let Some(cgroup) = std::env::var_os(CHILD_CGROUP) {
        fs::write(Path::new(&cgroup).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    let path = Path::new(&dir).join("pool");
    let pool = forebay_tier::create(TierKind::Dram, &path, 256 * MIB).unwrap();
    for wanted in [256 * MIB, 16 * MIB, 6 * MIB] {
        match pool.prepare(0..wanted) {
            Ok(()) => {
                pool.write(0, &vec![1; wanted as usize / 2]).unwrap();
                println!("OUTCOME {} MiB prepared", wanted / MIB);
            }
            Err(e) => println!("OUTCOME {} MiB refused {}", wanted / MIB, e.to_string().replace('\n', " ")),
        }
    }
    println!("HUGE {}", huge_kib());
    fs::remove_file(&path).unwrap();
}

/// How much of this process's memory are huge pages of shared memory.
fn huge_kib() -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let sizes =
        maps.lines().filter_map(|line| line.strip_prefix("ShmemPmdMapped:")?.trim().strip_suffix("kB"));
    sizes.map(|size| size.trim().parse::<u64>().unwrap()).sum()
}

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

const CHILD_ARGS: [&str; 4] = ["--exact", "child_prepares", "--nocapture", "--test-threads=1"];

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
fn memory_cgroup(limit_bytes: u64) -> Result<Gone, String> {
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
    let dir = root.join(format!("forebay-test-{}", std::process::id()));
    fs::create_dir(&dir).map_err(|e| format!("cannot make a cgroup in {}: {e}", root.display()))?;
    let made = Gone(dir);
    fs::write(made.0.join(file), limit_bytes.to_string()).map_err(|e| format!("cannot set {file}: {e}"))?;
    Ok(made)
}

#[test]
fn a_memory_cgroup_refuses_instead_of_killing() {
    let cgroup = match memory_cgroup(64 * MIB) {
        Ok(cgroup) => cgroup,
        Err(why) => return skips::skipped("room in a memory cgroup", &why),
    };
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(CHILD_ARGS).env(CHILD_DIR, dir.path()).env(CHILD_CGROUP, &cgroup.0);
    let (outcomes, _) = run(command);
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert!(outcomes[0].starts_with("256 MiB refused TierFull"), "{}", outcomes[0]);
    let name = format!("limited_by=memory cgroup /forebay-test-{}", std::process::id());
    assert!(outcomes[0].contains(&name), "{}", outcomes[0]);
    assert_eq!(outcomes[1..], ["16 MiB prepared", "6 MiB prepared"]);
}

/// Runs the child with a tmpfs of its own mounted with `options`; None when that is not allowed here.
fn on_own_tmpfs(what: &str, options: &str) -> Option<(Vec<String>, u64)> {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o {options} forebay-test \"$1\" && shift && exec \"$@\"");
    let enter = |program: &Path, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(dir.path()).arg(program).args(args);
        command.env(CHILD_DIR, dir.path());
        command
    };
    if !enter(Path::new("true"), &[]).output().is_ok_and(|out| out.status.success()) {
        skips::skipped(what, "no right to mount a tmpfs in a namespace of our own");
        return None;
    }
    Some(run(enter(&std::env::current_exe().unwrap(), &CHILD_ARGS)))
}

#[test]
fn a_small_tmpfs_refuses_by_name() {
    let Some((outcomes, _)) = on_own_tmpfs("room on a small tmpfs", "size=8m") else {
        return;
    };
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    for (outcome, wanted) in outcomes.iter().zip([256, 16]) {
        assert!(outcome.starts_with(&format!("{wanted} MiB refused TierFull")), "{outcome}");
        assert!(outcome.contains("limited_by=tmpfs "), "{outcome}");
    }
    assert_eq!(outcomes[2], "6 MiB prepared");
}

#[test]
fn huge_pages_on_request_keep_the_contract() {
    let Some((outcomes, huge_kib)) = on_own_tmpfs("huge pages on request", "size=64m,huge=advise") else {
        return;
    };
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert!(outcomes[0].contains("limited_by=tmpfs "), "{}", outcomes[0]);
    assert_eq!(outcomes[1..], ["16 MiB prepared", "6 MiB prepared"]);
    if huge_kib == 0 {
        skips::skipped("huge pages in a pool", "the kernel gave none to a tmpfs mounted with huge=advise");
    }
}
