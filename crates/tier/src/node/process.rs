//! Who this process is, and whether it is still the process that opened a handle.
//!
//! Pid, host name and boot id are for messages and for refusing foreign pools; whether a process lives is never decided
//! by them (they lie across PID namespaces and reboots) but by [`crate::liveness`].

use std::ops::Range;
use std::sync::OnceLock;

use super::clock;
use crate::sys;
pub use crate::sys::{pid, ForkMark, Usage};

/// Whether the calling process is a forked child of one that had already used this library.
///
/// True for all its life, also for handles that the child opens itself: a handle checks its own [`ForkMark`].
pub fn forked() -> bool {
    sys::fork_generation() != sys::FIRST_GENERATION
}

/// The node's host name, "unknown" where the kernel does not tell.
pub fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| read_word("/proc/sys/kernel/hostname"))
}

/// The kernel's random id of this boot: differs after every reboot, the same in all containers of a node.
pub fn boot_id() -> &'static str {
    #[cfg(forebay_simulated)]
    if crate::simulation::is_simulated() {
        return crate::simulation::boot();
    }
    static ID: OnceLock<String> = OnceLock::new();
    ID.get_or_init(|| read_word("/proc/sys/kernel/random/boot_id"))
}

/// Most memory that one process had of those that this one has waited for (and those that they have), in bytes.
pub fn children_peak_bytes() -> u64 {
    sys::children_peak()
}

/// Bytes of anonymous memory that a process has in memory; 0 when there is no such process.
pub fn anonymous_bytes(pid: u32) -> u64 {
    let of = |text: String| {
        let mut pages = text.split_ascii_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        // The size, then what is in memory, then what of that belongs to files and shared memory.
        let (resident, shared) = (pages.nth(1)?, pages.next()?);
        Some(resident.saturating_sub(shared) * 4096)
    };
    std::fs::read_to_string(format!("/proc/{pid}/statm")).ok().and_then(of).unwrap_or(0)
}

/// Bytes that this process has read from disks; as many as possible where the system does not tell.
pub fn disk_read_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    found.and_then(|bytes| bytes.parse().ok()).unwrap_or(u64::MAX)
}

/// The children of a process, of all its threads, as far as they can be seen.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let numbers =
        |list: String| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>();
    lists.flat_map(numbers).collect()
}

/// When process `pid` began, in clock ticks since boot; with the pid it names a process once per boot.
/// None when there is no such process in this PID namespace.
pub fn start_time_ticks(pid: u32) -> Option<u64> {
    #[cfg(forebay_simulated)]
    if crate::simulation::is_simulated() {
        return crate::simulation::start_time_ticks(pid);
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name, in parentheses, may hold spaces and parentheses: count fields after the last one.
    let fields = &stat[stat.rfind(')')? + 1..];
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// A tick as the kernel shows them to every program (USER_HZ), whatever its own are.
const TICK_NS: u64 = 10_000_000;

/// The moment, in nanoseconds since 1970, of a number of clock ticks since boot, as of [`start_time_ticks`].
pub fn ticks_unix_ns(ticks: u64) -> u64 {
    clock::boot_unix_ns().saturating_add(ticks.saturating_mul(TICK_NS))
}

/// When the calling process began, in nanoseconds since 1970: the moments that come into question, at most a hundredth
/// of a second of them, and fewer for a process that has hardly slept. None where the kernel does not tell.
pub fn began_unix_ns() -> Option<Range<u64>> {
    #[cfg(forebay_simulated)]
    if let Some(ns) = crate::simulation::began_ns() {
        let began = ns + clock::SIMULATED_EPOCH_NS;
        return Some(began..began + 1);
    }
    let began = ticks_unix_ns(start_time_ticks(pid())?);
    // It is at least as old as the time that it ran or waited for a processor, which the kernel counts in nanoseconds.
    let used = used_ns();
    let latest = clock::realtime_ns().saturating_sub(used) + 1;
    Some(began..latest.clamp(began + 1, began + TICK_NS))
}

/// How long the first thread of the calling process ran or waited for a processor; 0 where the kernel does not tell.
fn used_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_ascii_whitespace().take(2).filter_map(|word| word.parse::<u64>().ok()).sum()
}

fn read_word(path: &str) -> String {
    match std::fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_what_a_process_has_read_and_in_memory() {
        assert!(anonymous_bytes(pid()) > 4096 && anonymous_bytes(pid()) < 1 << 40);
        assert_eq!(anonymous_bytes(u32::MAX), 0);
        assert!(disk_read_bytes() < 1 << 50);
    }

    #[test]
    fn pages_that_are_touched_are_counted_as_faults() {
        let before = Usage::of_thread();
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        let used = Usage::of_thread() - before;
        assert!(memory[memory.len() / 2] == 1 && used.minor_faults + used.major_faults > 0, "{used:?}");
        let mut twice = used;
        twice += used;
        assert_eq!(twice - used, used);
    }

    #[test]
    fn knows_itself() {
        assert!(start_time_ticks(pid()).is_some());
        assert_eq!(start_time_ticks(u32::MAX), None);
    }

    /// What a process is told of its start is neither before nor after.
    #[test]
    fn a_process_knows_to_a_tick_when_it_began() {
        if std::env::var_os("PROCESS_TEST_CHILD").is_some() {
            let began = began_unix_ns().expect("/proc");
            println!("BEGAN {} {}", began.end, began.end - began.start);
            return;
        }
        for _ in 0..20 {
            let before = crate::clock::realtime_ns();
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "node::process::tests::a_process_knows_to_a_tick_when_it_began",
                    "--nocapture",
                ])
                .env("PROCESS_TEST_CHILD", "1")
                .output()
                .unwrap();
            let after = crate::clock::realtime_ns();
            let text = String::from_utf8(child.stdout).unwrap();
            let (_, rest) = text.split_once("BEGAN ").expect(&text);
            let mut numbers = rest.split_whitespace().map(|word| word.parse::<u64>().unwrap());
            let (began, span) = (numbers.next().unwrap(), numbers.next().unwrap());
            assert!((1..=10_000_000).contains(&span), "{span}");
            assert!(before < began && began < after + 10_000_000, "{before} {began} {after}");
        }
        assert_ne!(host_name(), "");
        assert_eq!(boot_id().len(), 36);
        assert!(!ForkMark::here().is_forked());
        ForkMark::here().check("test").unwrap();
    }
}
