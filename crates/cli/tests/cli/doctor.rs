//! `doctor` on machines that are made up, file by file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::bench::Bench;

/// A machine as `doctor` sees it.
struct MadeUp(TempDir);

const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw\n\
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=8388608k\n\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n";

const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max file size             unlimited            unlimited            bytes     \n\
Max open files            4096                 20000                files     \n\
Max locked memory         unlimited            unlimited            bytes     \n";

impl MadeUp {
    /// A well-equipped node of an ordinary user: every check but `persistent-memory` is ok.
    fn good() -> MadeUp {
        let machine = MadeUp(TempDir::new().unwrap());
        let status =
            "Name:\tx\nUid:\t1234\t1234\t1234\t1234\nNSpid:\t77\nSeccomp:\t0\nCpus_allowed_list:\t0-15\n";
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "5.14.0-427.el9.x86_64\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/sys/vm/unprivileged_userfaultfd", "0\n"),
            ("proc/self/mountinfo", MOUNTS),
            ("proc/1/mountinfo", MOUNTS),
            ("proc/self/limits", LIMITS),
            ("proc/self/status", status),
            ("proc/self/cgroup", "0::/user.slice\n"),
            ("proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\n"),
            ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse2 avx2 clflush clflushopt clwb\n"),
            (
                "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise never deny [force]\n",
            ),
            ("sys/devices/system/node/node0/cpulist", "0-15\n"),
            ("etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1234:1234::/:/bin/sh\n"),
        ] {
            machine.write(path, text);
        }
        machine.link("proc/self/ns/pid", "pid:[4026531836]");
        machine
    }

    fn write(&self, path: &str, text: &str) -> &MadeUp {
        let file = self.0.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &MadeUp {
        let file = self.0.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&file);
        symlink(target, file).unwrap();
        self
    }

    fn edit(&self, path: &str, from: &str, to: &str) -> &MadeUp {
        let text = fs::read_to_string(self.0.path().join(path)).unwrap();
        assert!(text.contains(from), "{path} holds no `{from}`");
        self.write(path, &text.replace(from, to))
    }

    fn examine(&self) -> Value {
        let root = self.0.path().display().to_string();
        Bench::new().json(&["doctor", "--sysroot", &root], 0)
    }

    /// The status of one check, and what it says.
    fn finding(&self, check: &str) -> (String, Value) {
        let report = self.examine();
        let all = report["findings"].as_array().unwrap();
        let found = all.iter().find(|f| f["check"] == check).unwrap_or_else(|| panic!("no check {check}"));
        (found["status"].as_str().unwrap().to_string(), found.clone())
    }

    #[track_caller]
    fn wants(&self, check: &str, status: &str, text: &str) {
        let (got, finding) = self.finding(check);
        assert_eq!(got, status, "{finding}");
        assert!(finding["found"].as_str().unwrap().contains(text), "no `{text}` in {finding}");
        let says = |key: &str| finding[key].as_str().is_some_and(|t| !t.is_empty());
        assert!(status == "ok" || says("means"), "nothing follows: {finding}");
        assert!(status != "warning" || says("without_root"), "no way without root: {finding}");
    }
}

#[test]
fn a_good_machine_is_good() {
    let report = MadeUp::good().examine();
    for finding in report["findings"].as_array().unwrap() {
        let expected = if finding["check"] == "persistent-memory" { "note" } else { "ok" };
        assert_eq!(finding["status"], expected, "{finding}");
    }
    assert_eq!(report["worst"], "note");
    assert_eq!(report["kernel"], "5.14.0-427.el9.x86_64");
}

#[test]
fn an_empty_machine_is_no_crash() {
    let empty = MadeUp(TempDir::new().unwrap());
    assert_eq!(empty.examine()["worst"], "warning");
    let text = Bench::new().call(&["doctor".as_ref(), "--sysroot".as_ref(), empty.0.path().as_os_str()]);
    text.wants(0).says("/dev/shm is not a tmpfs");
}

#[test]
fn old_kernels_are_warned_of() {
    let machine = MadeUp::good();
    machine.write("proc/sys/kernel/osrelease", "4.18.0-553.el8_10.x86_64").wants(
        "kernel",
        "ok",
        "without io_uring",
    );
    machine.write("proc/sys/kernel/osrelease", "3.10.0-1160.el7");
    assert_eq!(machine.finding("kernel").0, "warning");
}

#[test]
fn a_small_or_missing_dev_shm_is_warned_of() {
    let machine = MadeUp::good();
    machine.edit("proc/self/mountinfo", "size=8388608k", "size=64M").wants(
        "shared-memory",
        "warning",
        "64.0 MiB",
    );
    machine.edit("proc/self/mountinfo", "size=64M", "size=25%").wants("shared-memory", "ok", "4.0 GiB");
    machine.edit("proc/self/mountinfo", "tmpfs tmpfs rw", "tmpfs tmpfs ro").wants(
        "shared-memory",
        "warning",
        "not writable",
    );
}

#[test]
fn a_private_dev_shm_is_warned_of() {
    let check = "private-shared-memory";
    MadeUp::good().edit("proc/1/mountinfo", "0:23", "0:99").wants(check, "warning", "private mount");
    let bound = MadeUp::good();
    bound
        .edit("proc/self/mountinfo", "0:23 / /dev/shm", "0:23 /job7 /dev/shm")
        .wants(check, "warning", "/job7");
    MadeUp::good().link("proc/self/ns/pid", "pid:[4026532999]").wants(check, "warning", "container");
    let slurm = MadeUp::good();
    slurm.write("etc/slurm/slurm.conf", "ClusterName=x\nJobContainerType=job_container/tmpfs\n");
    slurm.wants(check, "warning", "job_container.conf");
    slurm.write("etc/slurm/job_container.conf", "AutoBasePath=true\nBasePath=/var/tmp Dirs=/tmp,/var/tmp\n");
    slurm.wants(check, "ok", "/dev/shm");
}

#[test]
fn remove_ipc_follows_systemds_order_of_files() {
    let check = "remove-ipc";
    let machine = MadeUp::good();
    machine.wants(check, "ok", "no systemd-logind");
    machine.write("run/systemd/system/x", "").wants(check, "warning", "systemd's default");
    machine
        .write("usr/lib/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n")
        .wants(check, "warning", "default");
    machine.write("usr/lib/systemd/logind.conf", "[Login]\nRemoveIPC=no\n").wants(check, "ok", "/usr/lib");
    machine.write("etc/systemd/logind.conf.d/50-site.conf", "[Login]\nRemoveIPC=yes\n");
    machine.wants(check, "warning", "50-site.conf");
    machine
        .write("run/systemd/logind.conf.d/60-run.conf", "[Login]\nRemoveIPC=no\n")
        .wants(check, "ok", "60-run");
    machine
        .write("etc/systemd/logind.conf.d/70.conf.off", "[Login]\nRemoveIPC=yes\n")
        .wants(check, "ok", "60-run");
    machine.edit("run/systemd/logind.conf.d/60-run.conf", "no", "yes").wants(check, "warning", "60-run");
    machine.write("var/lib/systemd/linger/ann", "").wants(check, "ok", "lingers");
    fs::remove_file(machine.0.path().join("var/lib/systemd/linger/ann")).unwrap();
    machine.edit("proc/self/status", "1234\t1234", "200\t200").wants(check, "ok", "system user");
}

#[test]
fn a_tight_memory_cgroup_of_either_version_is_warned_of() {
    let second = MadeUp::good();
    second.edit("proc/self/mountinfo", "27 1", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n27 1");
    second.wants("memory", "ok", "no tighter");
    let group = "sys/fs/cgroup/user.slice";
    second.write(&format!("{group}/memory.max"), "67108864\n");
    second.write(&format!("{group}/memory.current"), "33554432\n");
    second.write(&format!("{group}/memory.stat"), "anon 1\ninactive_file 16777216\n");
    second.wants("memory", "warning", "/user.slice leaves 48.0 MiB of 64.0 MiB");
    second.write(&format!("{group}/memory.max"), "max\n").wants("memory", "ok", "no tighter");
    // A limit further up counts as well.
    second
        .write("proc/self/cgroup", "0::/user.slice/deep/er\n")
        .write(&format!("{group}/memory.max"), "67108864\n");
    second.wants("memory", "warning", "/user.slice leaves");

    let first = MadeUp::good();
    first.edit(
        "proc/self/mountinfo",
        "27 1",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n27 1",
    );
    first.write("proc/self/cgroup", "5:devices:/\n4:memory:/job/step\n0::/\n");
    first.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "134217728\n");
    first.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "134217728\n");
    first.write("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 4194304\n");
    first.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    first.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "134217728\n");
    first.wants("memory", "warning", "/job leaves 4.0 MiB of 128.0 MiB");
}

#[test]
fn pid_namespaces_are_told_apart() {
    let machine = MadeUp::good();
    machine.edit("proc/self/status", "NSpid:\t77", "NSpid:\t77\t5").wants(
        "pid-namespace",
        "warning",
        "another PID",
    );
    let inner = MadeUp::good();
    inner.link("proc/self/ns/pid", "pid:[4026532999]").wants("pid-namespace", "note", "of its own");
}

#[test]
fn limits_and_switches() {
    let machine = MadeUp::good();
    machine.edit("proc/self/limits", "file size             unlimited", "file size             1048576  ");
    machine.wants("file-size-limit", "warning", "1.0 MiB");
    machine.edit("proc/self/limits", "locked memory         unlimited", "locked memory         8388608  ");
    machine.wants("locked-memory", "note", "8.0 MiB");
    machine.edit("proc/self/limits", "4096 ", "256  ").wants("open-files", "note", "256");
    machine.write("proc/sys/kernel/io_uring_disabled", "2").wants("io-uring", "note", "switched off");
    machine.write("proc/sys/kernel/io_uring_disabled", "1").wants("io-uring", "note", "group");
    machine.write("proc/sys/kernel/io_uring_disabled", "0").edit(
        "proc/self/status",
        "Seccomp:\t0",
        "Seccomp:\t2",
    );
    machine.wants("io-uring", "note", "seccomp");
    machine.wants("userfaultfd", "note", "seccomp");
    machine.edit("proc/self/status", "0-15", "3").wants("cores", "note", "1 core");
    machine.edit("proc/cpuinfo", "clflush clflushopt clwb", "clflush").wants(
        "persistence-instructions",
        "note",
        "clflush",
    );
}

#[test]
fn huge_pages_follow_mount_and_switch() {
    let machine = MadeUp::good();
    let switch = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    machine.edit(switch, "[force]", "force").edit(switch, "never", "[never]").wants(
        "huge-pages",
        "note",
        "never",
    );
    machine.edit("proc/self/mountinfo", "size=8388608k", "size=8388608k,huge=within_size");
    machine.wants("huge-pages", "ok", "within_size");
    machine.edit(switch, "[never] deny", "never [deny]").wants("huge-pages", "note", "deny");
}

#[test]
fn tiers_beside_dram_are_listed() {
    let machine = MadeUp::good();
    machine.edit(
        "proc/self/mountinfo",
        "27 1",
        "50 27 259:1 / /mnt/pmem\\0400 rw - ext4 /dev/pmem0 rw,dax=always\n27 1",
    );
    machine.wants("persistent-memory", "ok", "/mnt/pmem 0 (ext4");
    machine.write("dev/dax1.0", "").wants("persistent-memory", "ok", "/dev/dax1.0");
    machine.write("sys/devices/system/node/node2/cpulist", "\n").wants(
        "numa",
        "ok",
        "memory only (CXL or alike): node2",
    );
}

#[test]
fn quiet_prints_only_what_is_not_as_it_should_be() {
    let machine = MadeUp::good();
    let outcome = Bench::new().call(&[
        "doctor".as_ref(),
        "--quiet".as_ref(),
        "--sysroot".as_ref(),
        Path::as_os_str(machine.0.path()),
    ]);
    outcome.wants(0).says("persistent-memory");
    assert_eq!(
        outcome.text().matches("\nok").count() + usize::from(outcome.text().starts_with("ok")),
        0,
        "{outcome}"
    );
}
