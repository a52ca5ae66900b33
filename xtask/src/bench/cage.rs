//! A memory cgroup for one program at a time, and a swap file for it: what a program has that does not know of us.
//!
//! Needs root. Guarantees: cgroup and swap file are gone when the cage is dropped; other programs of the machine are
//! not limited, but they may swap, too, as long as the swap file is there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// See the file's head.
pub struct Cage {
    group: PathBuf,
    version_2: bool,
    swap: Option<PathBuf>,
}

const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";

impl Cage {
    /// A cgroup that holds at most so much memory, page cache included.
    ///
    /// # Errors
    /// What is missing for it, in words.
    pub fn new(bytes: u64) -> Result<Cage, String> {
        let version_2 = !Path::new(VERSION_1).is_dir();
        let above = Path::new(if version_2 { VERSION_2 } else { VERSION_1 });
        let group = above.join(format!("forebay-bench-{}", std::process::id()));
        std::fs::create_dir(&group).map_err(|e| format!("no memory cgroup can be made: {e}"))?;
        let cage = Cage { group, version_2, swap: None };
        cage.set(if version_2 { "memory.max" } else { "memory.limit_in_bytes" }, bytes)?;
        if version_2 {
            // Without swap of our own nothing of it goes to anybody else's.
            cage.set("memory.swap.max", 0)?;
        }
        Ok(cage)
    }

    /// The same with a swap file of so many bytes in `folder`.
    ///
    /// # Errors
    /// What is missing for it, in words.
    pub fn with_swap(bytes: u64, swap_bytes: u64, folder: &Path) -> Result<Cage, String> {
        let mut cage = Cage::new(bytes)?;
        let path = folder.join("swap");
        let made = std::fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        drop(made);
        run("fallocate", &["-l".as_ref(), swap_bytes.to_string().as_ref(), path.as_ref()])?;
        run("chmod", &["600".as_ref(), path.as_ref()])?;
        run("mkswap", &["-q".as_ref(), path.as_ref()])?;
        run("swapon", &[path.as_ref()])?;
        cage.swap = Some(path);
        if cage.version_2 {
            cage.set("memory.swap.max", swap_bytes)?;
        }
        Ok(cage)
    }

    fn set(&self, file: &str, value: u64) -> Result<(), String> {
        let path = self.group.join(file);
        std::fs::write(&path, value.to_string()).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The file that takes the numbers of processes.
    pub fn processes(&self) -> PathBuf {
        self.group.join("cgroup.procs")
    }

    /// A command in it, which still needs its arguments.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
        command.arg(self.processes()).arg(program);
        command
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        if let Some(swap) = &self.swap {
            let _ = run("swapoff", &[swap.as_ref()]);
            let _ = std::fs::remove_file(swap);
        }
        let _ = std::fs::remove_dir(&self.group);
    }
}

fn run(program: &str, arguments: &[&OsStr]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
