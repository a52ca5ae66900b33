//! Checks of the kernel and the process: release, limits, namespaces, optional system calls, instructions.

use forebay_space::format_bytes;

use super::machine::Machine;
use super::Finding;

/// Oldest kernel Forebay runs on; everything newer is probed when it is needed.
const FLOOR: (u32, u32) = (4, 18);
/// Newer calls that make something faster, with the release they came with.
const NEWER: &[((u32, u32), &str)] =
    &[((5, 1), "io_uring"), ((5, 14), "MADV_POPULATE_WRITE"), ((6, 0), "io_uring zero copy")];
/// A pool's default segment.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Enough for some hundred spaces with their pools.
const FILES_FEW: u64 = 1024;

/// Kernel release against the floor.
pub fn release(machine: &Machine) -> Finding {
    const CHECK: &str = "kernel";
    let floor = format!("{}.{}", FLOOR.0, FLOOR.1);
    let Some((release, version)) = machine.kernel() else {
        return Finding::note(CHECK, "the kernel release is unknown")
            .means(format!("Forebay needs {floor} or newer"));
    };
    if version < FLOOR {
        return Finding::warning(CHECK, format!("Linux {release}, older than {floor}"))
            .means("some calls that Forebay relies on are missing; expect errors of kind NotPossibleHere")
            .change(format!("run a kernel of {floor} or newer"));
    }
    let missing: Vec<&str> =
        NEWER.iter().filter(|(since, _)| version < *since).map(|(_, name)| *name).collect();
    let without =
        if missing.is_empty() { String::new() } else { format!("; without {}", missing.join(", ")) };
    Finding::ok(CHECK, format!("Linux {release} (floor {floor}){without}"))
}

/// RLIMIT_MEMLOCK, which bounds registered buffers of io_uring.
pub fn locked_memory(machine: &Machine) -> Finding {
    const CHECK: &str = "locked-memory";
    match machine.limit("Max locked memory") {
        None => Finding::note(CHECK, "the limit is unknown"),
        Some(None) => Finding::ok(CHECK, "unlimited"),
        Some(Some(bytes)) if bytes >= SEGMENT_BYTES => Finding::ok(CHECK, format_bytes(bytes)),
        Some(Some(bytes)) => Finding::note(CHECK, format!("at most {}", format_bytes(bytes)))
            .means("limits registered buffers for direct I/O; an optimisation only")
            .change(
                "`* - memlock unlimited` in /etc/security/limits.conf, or LimitMEMLOCK=infinity in a service",
            )
            .without_root("ulimit -l raises it up to the hard limit"),
    }
}

/// RLIMIT_FSIZE, which also bounds files of `/dev/shm`.
pub fn file_size(machine: &Machine) -> Finding {
    const CHECK: &str = "file-size-limit";
    match machine.limit("Max file size") {
        None => Finding::note(CHECK, "the limit is unknown"),
        Some(None) => Finding::ok(CHECK, "unlimited"),
        Some(Some(bytes)) => {
            let found = format!("files of at most {}", format_bytes(bytes));
            let finding = match bytes < 16 * SEGMENT_BYTES {
                true => Finding::warning(CHECK, found),
                false => Finding::note(CHECK, found),
            };
            finding
                .means("a pool is one file, also in /dev/shm: a larger one is refused")
                .without_root("ulimit -f unlimited, or remove the limit from the job's start script")
        }
    }
}

/// RLIMIT_NOFILE.
pub fn open_files(machine: &Machine) -> Finding {
    const CHECK: &str = "open-files";
    match machine.limit("Max open files") {
        None => Finding::note(CHECK, "the limit is unknown"),
        Some(None) => Finding::ok(CHECK, "unlimited"),
        Some(Some(n)) if n >= FILES_FEW => Finding::ok(CHECK, format!("{n}")),
        Some(Some(n)) => Finding::note(CHECK, format!("at most {n}"))
            .means("a program that opens many spaces at once may run out")
            .without_root("ulimit -n raises it up to the hard limit"),
    }
}

/// Whether process numbers in messages are those the user sees.
pub fn pid_namespace(machine: &Machine) -> Finding {
    const CHECK: &str = "pid-namespace";
    let numbers = machine.status("NSpid").map_or(0, |line| line.split_whitespace().count());
    if numbers > 1 {
        return Finding::warning(
            CHECK,
            format!("/proc belongs to another PID namespace ({numbers} levels above)"),
        )
        .means(
            "pids in messages differ from those in /proc and cannot be looked up; liveness uses file locks and is not \
             affected",
        )
        .change("mount /proc inside the container, or start it with --pid=host")
        .without_root("look processes up inside the container");
    }
    match machine.in_pid_namespace() {
        Some(true) => Finding::note(CHECK, "this process lives in a PID namespace of its own")
            .means(
                "pids in messages are those of the container; liveness uses file locks and is not affected",
            )
            .change("start the container with --pid=host")
            .without_root("compare ranks instead of process numbers"),
        Some(false) => Finding::ok(CHECK, "the node's own"),
        None => Finding::note(CHECK, "unknown (/proc)")
            .means("process numbers in messages may be those of a container"),
    }
}

/// Whether io_uring may be used.
pub fn io_uring(machine: &Machine) -> Finding {
    const CHECK: &str = "io-uring";
    let means = "tier `file` writes with plain system calls instead: nothing fails, deep queues are slower";
    if machine.kernel().is_some_and(|(_, version)| version < (5, 1)) {
        return Finding::note(CHECK, "this kernel has none").means(means);
    }
    let root = machine.uid() == Some(0);
    match machine.number("/proc/sys/kernel/io_uring_disabled") {
        Some(2) => Finding::note(CHECK, "switched off (kernel.io_uring_disabled=2)")
            .means(means)
            .change("sysctl kernel.io_uring_disabled=0"),
        Some(1) if !root => Finding::note(CHECK, "only for a privileged group (kernel.io_uring_disabled=1)")
            .means(means)
            .change("sysctl kernel.io_uring_disabled=0, or add the user to the group kernel.io_uring_group"),
        _ if filtered(machine) => Finding::note(CHECK, "a seccomp filter is active and may refuse it")
            .means(means)
            .change("container engines refuse it by default: give a seccomp profile that allows io_uring_*"),
        _ => Finding::ok(CHECK, "allowed"),
    }
}

/// How windows find out what is touched; on the running machine by trying.
pub fn userfaultfd(machine: &Machine) -> Finding {
    const CHECK: &str = "userfaultfd";
    let means = "windows on arrays use a file mapping instead (engine kernel); spaces do not need it";
    if machine.is_live() {
        let refused = |e: forebay_tier::Error| {
            let change = match filtered(machine) {
                true => {
                    "container engines refuse it by default: give a seccomp profile that allows userfaultfd"
                }
                false => "sysctl vm.unprivileged_userfaultfd=1, or a kernel of 5.11 or later",
            };
            Finding::note(CHECK, e.message()).means(means).change(change)
        };
        return forebay_tier::window::userfault().map_or_else(refused, |can| tried(CHECK, can, means));
    }
    let value = machine.number("/proc/sys/vm/unprivileged_userfaultfd");
    if filtered(machine) && machine.uid() != Some(0) {
        return Finding::note(CHECK, "a seccomp filter is active and may refuse it").means(means);
    }
    let new = machine.kernel().is_some_and(|(_, version)| version >= (5, 11));
    let device = machine.can_open("/dev/userfaultfd");
    match value {
        _ if machine.uid() == Some(0) => Finding::ok(CHECK, "allowed (root)"),
        Some(1) => Finding::ok(CHECK, "allowed for all users"),
        // Since 5.11 faults of user code need no right (UFFD_USER_MODE_ONLY).
        Some(0) if new => Finding::ok(CHECK, "allowed for faults of user code"),
        _ if device == Some(true) => Finding::ok(CHECK, "allowed through /dev/userfaultfd"),
        Some(_) => Finding::note(CHECK, "refused (vm.unprivileged_userfaultfd=0)")
            .means(means)
            .change("sysctl vm.unprivileged_userfaultfd=1"),
        // Before 5.2 there was no switch: every user may. Later kernels without the file were built without
        // it.
        None if machine.kernel().is_some_and(|(_, version)| version < (5, 2)) => {
            Finding::ok(CHECK, "allowed")
        }
        None => Finding::note(CHECK, "this kernel has none").means(means),
    }
}

/// What a trial of userfaultfd has shown.
fn tried(check: &'static str, can: forebay_tier::window::UserfaultAbility, means: &str) -> Finding {
    if !can.signals || !can.write_protect {
        let lacks = if can.signals { "protection of pages (Linux 5.7)" } else { "signals (Linux 4.14)" };
        return Finding::note(check, format!("allowed, but this kernel lacks {lacks}")).means(means);
    }
    let kernel = match can.kernel_faults {
        true => "also for faults of the kernel (engine handler)",
        false => "not for faults of the kernel (engine handler needs vm.unprivileged_userfaultfd=1)",
    };
    let poison = if can.poison { "" } else { "; bad pages cannot be marked (Linux 6.6)" };
    Finding::ok(
        check,
        format!("windows are served by the accessing thread (engine userfault), {kernel}{poison}"),
    )
}

/// Whether a seccomp filter sits on this process.
fn filtered(machine: &Machine) -> bool {
    machine.status("Seccomp").as_deref() == Some("2")
}

/// Instructions that write cache lines back.
pub fn persistence(machine: &Machine) -> Finding {
    const CHECK: &str = "persistence-instructions";
    let flags = machine.cpu_flags();
    let known = ["avx512f", "avx2", "clwb", "clflushopt", "clflush", "dcpop", "dcpodp"];
    let here: Vec<&str> = known.into_iter().filter(|k| flags.iter().any(|f| f == k)).collect();
    let found = if here.is_empty() { "none listed".to_string() } else { here.join(", ") };
    if here.iter().any(|f| matches!(*f, "clwb" | "clflushopt" | "dcpop" | "dcpodp")) {
        return Finding::ok(CHECK, found);
    }
    Finding::note(CHECK, found)
        .means("writing cache lines back to tier `pmem` goes one line at a time; other tiers do not need it")
        .without_root("large copies bypass the cache and are not affected")
}

/// Processors this process may use.
pub fn cores(machine: &Machine) -> Finding {
    const CHECK: &str = "cores";
    let list = machine.status("Cpus_allowed_list").unwrap_or_default();
    let count: u64 = list.split(',').filter_map(cores_of).sum();
    match count {
        0 => Finding::note(CHECK, "unknown"),
        1 => Finding::note(CHECK, "1 core")
            .means("waiting does not spin on one core: every hand-over costs a wake-up (about 30 µs)")
            .without_root("request a core per rank (Slurm: --cpus-per-task, --ntasks)"),
        n => Finding::ok(
            CHECK,
            format!("{n} cores ({list}); with more ranks than cores, waiting does not spin"),
        ),
    }
}

/// Number of processors in `3` or `0-7`.
fn cores_of(range: &str) -> Option<u64> {
    let (first, last) = range.trim().split_once('-').unwrap_or((range.trim(), range.trim()));
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    Some(last.checked_sub(first)? + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_processors() {
        assert_eq!(cores_of("0-7"), Some(8));
        assert_eq!(cores_of("3"), Some(1));
        assert_eq!(cores_of("7-3"), None);
        assert_eq!(cores_of(""), None);
    }
}
