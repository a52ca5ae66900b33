//! The files a machine describes itself in: `/proc`, `/sys` and a few under `/etc`, read from `/` or from a
//! copy.
//!
//! Guarantees: nothing is ever written, no file is opened that is not named by a check, and a file that is
//! missing or unreadable is `None`, never an error. With a root other than `/` nothing of the running machine
//! leaks in: what only a system call can say is then unknown.

use std::ffi::OsStr;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// The kernel gives the PID namespace it boots with a fixed number (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A machine, real or made up. How its files are read is the probe's.
pub struct Machine {
    files: forebay_probe::machine::Machine,
    live: bool,
}

impl Deref for Machine {
    type Target = forebay_probe::machine::Machine;

    fn deref(&self) -> &Self::Target {
        &self.files
    }
}

/// Size and free space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSize {
    /// All of it.
    pub size: u64,
    /// What this user may still take.
    pub free: u64,
}

impl Machine {
    /// The running machine, or the one described below `root`.
    pub fn new(root: Option<PathBuf>) -> Machine {
        use forebay_probe::machine::Machine as Files;
        let live = root.is_none();
        Machine { files: root.map_or_else(Files::here, Files::at), live }
    }

    /// Whether this is the running machine.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Whether something is there.
    pub fn exists(&self, path: &str) -> bool {
        self.place(path).exists()
    }

    /// Where a symbolic link points.
    pub fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.place(path)).ok()?.to_string_lossy().into_owned())
    }

    /// Whether this process could write there; unknown on a made-up machine.
    pub fn writable(&self, path: &str) -> Option<bool> {
        let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        self.is_live().then(|| rustix::fs::access(path, access).is_ok())
    }

    /// Whether a device file can be opened for reading and writing; unknown on a made-up machine.
    pub fn can_open(&self, path: &str) -> Option<bool> {
        let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
        self.is_live().then(|| rustix::fs::access(path, access).is_ok())
    }

    /// Size and free space of the file system a path lies on; unknown on a made-up machine.
    pub fn file_system_size(&self, path: &str) -> Option<FileSystemSize> {
        if !self.is_live() {
            return None;
        }
        let s = rustix::fs::statvfs(path).ok()?;
        Some(FileSystemSize {
            size: s.f_blocks.saturating_mul(s.f_frsize),
            free: s.f_bavail.saturating_mul(s.f_frsize),
        })
    }

    /// Whether this process lives in a PID namespace of its own, as in a container.
    pub fn in_pid_namespace(&self) -> Option<bool> {
        Some(self.link("/proc/self/ns/pid")? != INITIAL_PID_NAMESPACE)
    }

    /// Value of `key:` in `/proc/self/status`.
    pub fn status(&self, key: &str) -> Option<String> {
        self.value("/proc/self/status", key)
    }

    /// The effective user.
    pub fn uid(&self) -> Option<u64> {
        self.status("Uid")?.split_whitespace().nth(1)?.parse().ok()
    }

    /// Name of a user in the local table; users of a directory service have none here.
    pub fn user_name(&self, uid: u64) -> Option<String> {
        let table = self.read("/etc/passwd")?;
        table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.get(2)?.parse() == Ok(uid)).then(|| fields[0].to_string())
        })
    }

    /// Soft limit of `/proc/self/limits`: `Some(None)` when unlimited.
    pub fn limit(&self, name: &str) -> Option<Option<u64>> {
        let text = self.read("/proc/self/limits")?;
        let soft = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next())?;
        match soft {
            "unlimited" => Some(None),
            number => Some(Some(number.parse().ok()?)),
        }
    }

    /// Flags of the first processor that lists any.
    pub fn cpu_flags(&self) -> Vec<String> {
        let flags = ["flags", "Features"].iter().find_map(|key| self.value("/proc/cpuinfo", key));
        flags.unwrap_or_default().split_whitespace().map(str::to_string).collect()
    }

    /// Kernel release as text and as (major, minor).
    pub fn kernel(&self) -> Option<(String, (u32, u32))> {
        let release = self.read("/proc/sys/kernel/osrelease")?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().ok());
        let version = (numbers.next()??, numbers.next()??);
        Some((release, version))
    }
}

/// Reads `4k`, `512M`, `50%` (of `memory`) as the `size=` of a tmpfs mount.
pub fn tmpfs_size(text: &str, memory: Option<u64>) -> Option<u64> {
    if let Some(percent) = text.strip_suffix('%') {
        return Some(memory? / 100 * percent.parse::<u64>().ok()?);
    }
    let (digits, shift) = match text.chars().last()? {
        'k' | 'K' => (&text[..text.len() - 1], 10),
        'm' | 'M' => (&text[..text.len() - 1], 20),
        'g' | 'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// `KEY=value` lines of a configuration file; keys without regard to case, comments left out, the last wins.
pub fn setting(text: &str, key: &str) -> Option<String> {
    let mut found = None;
    for line in text.lines().map(str::trim).filter(|l| !l.starts_with(['#', ';'])) {
        if let Some((name, value)) = line.split_once('=') {
            if name.trim().eq_ignore_ascii_case(key) {
                found = Some(value.split('#').next().unwrap_or("").trim().to_string());
            }
        }
    }
    found
}

/// Whether a file's name ends in `.conf`, as drop-in folders ask.
pub fn is_conf(name: &str) -> bool {
    Path::new(name).extension() == Some(OsStr::new("conf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes_of_tmpfs() {
        assert_eq!(tmpfs_size("64k", None), Some(65536));
        assert_eq!(tmpfs_size("2g", None), Some(2 << 30));
        assert_eq!(tmpfs_size("50%", Some(1000)), Some(500));
        assert_eq!(tmpfs_size("50%", None), None);
        assert_eq!(tmpfs_size("x", None), None);
    }

    #[test]
    fn the_last_setting_wins_and_comments_do_not_count() {
        let text = "#RemoveIPC=no\n[Login]\nremoveipc = yes\nRemoveIPC=no # really\n";
        assert_eq!(setting(text, "RemoveIPC").as_deref(), Some("no"));
        assert_eq!(setting("#RemoveIPC=no", "RemoveIPC"), None);
    }

    #[test]
    fn a_made_up_machine_cannot_lead_out_of_its_folder() {
        let machine = Machine::new(Some(PathBuf::from("/made/up")));
        assert_eq!(machine.place("/../../etc/passwd"), PathBuf::from("/made/up/etc/passwd"));
        assert_eq!(machine.file_system_size("/"), None);
    }
}
