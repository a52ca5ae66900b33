//! The files a machine describes itself in: `/proc`, `/sys` and a few under `/etc`, read from `/` or from a
//! copy.
//!
//! Guarantees: nothing is ever written, no file is opened that is not named by a check, and a file that is
//! missing or unreadable is `None`, never an error. With a root other than `/` nothing of the running machine
//! leaks in: what only a system call can say is then unknown.

use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The kernel gives the PID namespace it boots with a fixed number (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A machine, real or made up.
pub struct Machine {
    root: Option<PathBuf>,
}

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Device number as `major:minor`: the same file system has the same one in every namespace.
    pub device: String,
    /// Directory of the file system that is mounted.
    pub root: String,
    /// Where.
    pub point: String,
    /// Per-mount options, then those of the file system.
    pub options: Vec<String>,
    /// Type: `tmpfs`, `ext4`, `cgroup2`, …
    pub kind: String,
}

impl Mount {
    /// Value of an option written `name=value`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
    }

    /// Whether an option stands there, with or without a value.
    pub fn has(&self, name: &str) -> bool {
        self.options.iter().any(|o| o == name) || self.option(name).is_some()
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
        Machine { root }
    }

    /// Whether this is the running machine.
    pub fn is_live(&self) -> bool {
        self.root.is_none()
    }

    fn place(&self, path: &str) -> PathBuf {
        match &self.root {
            None => PathBuf::from(path),
            // Only plain names: a made-up machine's mount table must not lead out of its folder.
            Some(root) => Path::new(path)
                .components()
                .filter(|c| matches!(c, Component::Normal(_)))
                .fold(root.clone(), |place, c| place.join(c)),
        }
    }

    /// A file's text without the blanks around it.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.place(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// A file that holds one number; `max` and the like are `None`.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Whether something is there.
    pub fn exists(&self, path: &str) -> bool {
        self.place(path).exists()
    }

    /// Where a symbolic link points.
    pub fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.place(path)).ok()?.to_string_lossy().into_owned())
    }

    /// Names in a directory, sorted; none when there is no such directory.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.place(path)) else { return Vec::new() };
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.filter_map(|entry| Some(name(entry.ok()?))).collect();
        names.sort_unstable();
        names
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

    /// The mounts this process sees, in the order they were made.
    pub fn mounts(&self) -> Vec<Mount> {
        self.mounts_of("self")
    }

    /// The mounts that a process sees; none when the kernel does not tell.
    pub fn mounts_of(&self, process: &str) -> Vec<Mount> {
        let table = self.read(&format!("/proc/{process}/mountinfo")).unwrap_or_default();
        table.lines().filter_map(mount).collect()
    }

    /// Whether this process lives in a PID namespace of its own, as in a container.
    pub fn in_pid_namespace(&self) -> Option<bool> {
        Some(self.link("/proc/self/ns/pid")? != INITIAL_PID_NAMESPACE)
    }

    /// Value of `key:` in `/proc/self/status`.
    pub fn status(&self, key: &str) -> Option<String> {
        let text = self.read("/proc/self/status")?;
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        Some(value.trim().to_string())
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
        let text = self.read("/proc/cpuinfo").unwrap_or_default();
        let flags = text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            matches!(key.trim(), "flags" | "Features").then_some(value)
        });
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

/// Reads one line of a mount table.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let right: Vec<&str> = right.split(' ').collect();
    let options = left.get(5)?.split(',').chain(right.get(2).copied().unwrap_or("").split(','));
    Some(Mount {
        device: left.get(2)?.to_string(),
        root: unescaped(left.get(3)?),
        point: unescaped(left.get(4)?),
        options: options.filter(|o| !o.is_empty()).map(str::to_string).collect(),
        kind: right.first()?.to_string(),
    })
}

/// The kernel writes blank, tab, newline and backslash of a path as three octal digits.
fn unescaped(text: &str) -> String {
    let (mut out, bytes) = (Vec::new(), text.as_bytes());
    let mut i = 0;
    while i < bytes.len() {
        let digits = bytes.get(i + 1..i + 4).and_then(|d| std::str::from_utf8(d).ok());
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) if bytes[i] == b'\\' => {
                out.push(byte);
                i += 4;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
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
    fn reads_a_mount_line() {
        let m = mount(
            r"36 35 98:0 /a\040b /mnt/x\134y rw,noatime shared:1 master:2 - ext4 /dev/root rw,dax=always",
        );
        let m = m.expect("a good line");
        assert_eq!((m.root.as_str(), m.point.as_str(), m.kind.as_str()), ("/a b", r"/mnt/x\y", "ext4"));
        assert_eq!((m.device.as_str(), m.option("dax")), ("98:0", Some("always")));
        assert!(m.has("dax") && m.has("noatime") && !m.has("da"));
        assert_eq!(mount("nonsense"), None);
    }

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
