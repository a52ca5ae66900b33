//! The highest resident set of this process, by the kernel: pages of mapped files count, the page cache does not.

/// Sets the kernel's mark back; gives what is resident now. None where the kernel does not keep one.
pub fn begin() -> Option<u64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    field("VmRSS:")
}

/// How much more than `before` was resident at once since then.
pub fn since(before: u64) -> Option<u64> {
    Some(most()?.saturating_sub(before))
}

/// Most that was resident at once, since the mark was set back or the process began.
pub fn most() -> Option<u64> {
    field("VmHWM:")
}

fn field(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_what_was_touched() {
        let before = begin().expect("Linux says it");
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        drop(memory);
        let peak = since(before).expect("Linux says it");
        assert!((60 << 20..90 << 20).contains(&peak), "{peak}");
    }
}
