//! The files a machine describes itself in, read from `/` or from a copy.
//!
//! Guarantees: nothing is written; a file that is missing or unreadable is `None`, never an error; with a root other
//! than `/` no path leads out of it (symbolic links of a copy are made relative).

use std::path::{Component, Path, PathBuf};

/// A machine, real or made up.
#[derive(Clone, Debug)]
pub struct Machine {
    root: Option<PathBuf>,
}

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the device below, `major:minor`: the same file system has the same one in every namespace.
    pub device: String,
    /// Directory of the file system that is mounted.
    pub root: String,
    /// Where.
    pub point: PathBuf,
    /// Type: `tmpfs`, `ext4`, `lustre`, …
    pub kind: String,
    /// What was mounted: `/dev/vda`, `server:/home`.
    pub source: String,
    /// Per-mount options, then those of the file system.
    pub options: Vec<String>,
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

    /// Whether its files are mapped past the page cache. (`dax=never` is not.)
    pub fn is_dax(&self) -> bool {
        self.options.iter().any(|o| matches!(o.as_str(), "dax" | "dax=always" | "dax=inode"))
    }
}

impl Machine {
    /// The running machine.
    pub fn here() -> Machine {
        Machine { root: None }
    }

    /// The machine described by the files below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Machine {
        Machine { root: Some(root.into()) }
    }

    /// Where a file of the machine lies.
    pub fn place(&self, path: &str) -> PathBuf {
        let Some(root) = &self.root else { return PathBuf::from(path) };
        let names = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_)));
        names.fold(root.clone(), |place, name| place.join(name))
    }

    /// A file's text without the blanks around it.
    pub fn read(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.place(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Names in a directory, sorted; none when there is no such directory.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.place(path)) else { return Vec::new() };
        let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.filter_map(|entry| Some(name(entry.ok()?))).collect();
        names.sort_unstable();
        names
    }

    /// Where a symbolic link leads, every link followed.
    pub fn resolved(&self, path: &str) -> Option<PathBuf> {
        self.place(path).canonicalize().ok()
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

    /// Value of `key:` in a file of lines `key: value`, the first one.
    pub fn value(&self, path: &str, key: &str) -> Option<String> {
        let text = self.read(path)?;
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim().to_string())
        })
    }
}

/// The mount that holds a path: the longest point above it, the last one made there.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.components().count())
}

fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
    let options = left.get(5)?.split(',').chain(right.get(2).copied().unwrap_or("").split(','));
    Some(Mount {
        device: left.get(2)?.to_string(),
        root: unescaped(left.get(3)?),
        point: PathBuf::from(unescaped(left.get(4)?)),
        kind: right.first()?.to_string(),
        source: unescaped(right.get(1)?),
        options: options.filter(|o| !o.is_empty()).map(str::to_string).collect(),
    })
}

/// The kernel writes blank, tab, newline and backslash of a path as three octal digits.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 4).and_then(|d| u8::from_str_radix(d, 8).ok());
        match digits {
            Some(byte) => out.push(char::from(byte)),
            None => out.push('\\'),
        }
        rest = &rest[at + if digits.is_some() { 4 } else { 1 }..];
    }
    out + rest
}

/// The numbers of a list as the kernel writes it: `0-3,8`.
pub fn numbers(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// `512K`, `32768K`, `260M` as sysfs writes sizes of caches.
pub fn cache_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.trim().strip_suffix(['K', 'M', 'G']) {
        Some(digits) => (
            digits,
            match text.trim().as_bytes().last()? {
                b'K' => 10,
                b'M' => 20,
                _ => 30,
            },
        ),
        None => (text.trim(), 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_line_is_read() {
        let line = r"36 35 98:0 /a /mnt/x\040y rw,noatime shared:1 - ext4 /dev/pmem0 rw,dax=always";
        let m = mount(line).expect("a good line");
        assert_eq!((m.point.to_str(), m.kind.as_str()), (Some("/mnt/x y"), "ext4"));
        assert_eq!((m.device.as_str(), m.source.as_str(), m.is_dax()), ("98:0", "/dev/pmem0", true));
        assert_eq!((m.root.as_str(), m.option("dax")), ("/a", Some("always")));
        assert!(m.has("dax") && m.has("noatime") && !m.has("da"));
        assert_eq!(mount("nonsense"), None);
        let never = mount(&line.replace("dax=always", "dax=never")).expect("a good line");
        assert!(!never.is_dax());
        let root = Mount { point: "/".into(), ..m.clone() };
        let both = [root.clone(), m.clone()];
        assert_eq!(mount_of(&both, Path::new("/mnt/x y/z")), Some(&m));
        assert_eq!(mount_of(&both, Path::new("/mnt/x")), Some(&root));
    }

    #[test]
    fn texts_of_the_kernel_are_read() {
        assert_eq!(unescaped(r"a\134b\q"), r"a\b\q");
        assert_eq!(numbers("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(
            [cache_size("32768K"), cache_size("260M"), cache_size("64")],
            [Some(32 << 20), Some(260 << 20), Some(64)]
        );
        assert_eq!(cache_size("big"), None);
        assert_eq!(Machine::at("/made/up").place("/../etc/x"), PathBuf::from("/made/up/etc/x"));
    }
}
