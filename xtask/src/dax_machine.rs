//! `cargo xtask dax-machine`: runs a command in an emulated machine with persistent memory, two sockets and memory
//! nodes, which the host need not have.
//!
//! The machine is QEMU's, in software: nothing there says how fast anything is. What is real is the kernel: DAX file
//! systems with MAP_SYNC, device DAX, memory nodes, page placement. The host's files are below the guest's root, read
//! only, so that any program of the host runs there; /run, where temporary files go, and /dev/shm are the guest's own.

mod boot;
mod cuts;
mod guest;
pub mod tests;

pub use self::guest::missing;

use self::boot::{End, Machine, Shape, Wish};
use self::guest::Guest;
use self::tests::{Part, Wanted};
use crate::{Outcome, Stop};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

const USAGE: &str = "\
usage: cargo xtask dax-machine [OPTIONS] -- COMMAND [ARGUMENTS]
       cargo xtask dax-machine --tests [--cuts N] [--only PART] [--install]

  --nvdimm A,B      what is made of the two NVDIMMs: ext4, xfs (mounted with DAX), devdax (a character device),
                    memory (a node without processors), none; ext4,devdax unless said; the command finds them in
                    the variables NVDIMM0 and NVDIMM1: a folder, a device, a number
  --eadr            processor caches survive a loss of power
  --keep FOLDER     the NVDIMMs' images, made there and kept; without it they are new and go
  --cut SECONDS     cut the power so long after the command's first line
  --limit SECONDS   kill the machine after so long (300)
  --tests           run the tests that need persistent memory, memory nodes and sockets; with N losses of power (50)
  --only PART       of them: suites, plans, names or cuts
  --install         as root, install the Debian packages that are missing";

struct Options {
    shapes: [Shape; 2],
    eadr: bool,
    keep: Option<PathBuf>,
    cut: Option<Duration>,
    limit: Duration,
    install: bool,
    command: Vec<String>,
}

/// Losses of power, unless said.
const CUTS: u32 = 50;

/// Runs the command in the machine; its output is printed, its status is ours.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    if let ["--tests", rest @ ..] = arguments {
        return run_tests(root, rest);
    }
    let options = read(arguments)?;
    if options.install {
        install()?;
    }
    let guest = Guest::ready(root).map_err(Stop::Failed)?;
    let fresh = Fresh::new(options.keep.clone()).map_err(Stop::Failed)?;
    let machine = Machine {
        shapes: options.shapes,
        eadr: options.eadr,
        images: fresh.folder.clone(),
        limit: options.limit,
    };
    let here = std::env::current_dir().map_err(|e| Stop::Failed(e.to_string()))?;
    let ended = machine.run(&guest, &here, &options.command, &mut |line| {
        println!("{line}");
        options.cut.map_or(Wish::On, Wish::CutIn)
    });
    match ended.map_err(Stop::Failed)? {
        End::Status(0) => Ok(()),
        End::Cut => {
            eprintln!("dax-machine: the power was cut");
            Ok(())
        }
        End::Status(status) => Err(Stop::Failed(format!("the command ended with status {status}"))),
    }
}

fn run_tests(root: &Path, arguments: &[&str]) -> Outcome {
    let usage = || Stop::Usage(USAGE.to_string());
    let (mut wanted, mut needs_packages) = (Wanted { cuts: CUTS, only: None, whole: true }, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().copied().ok_or_else(usage);
        match *argument {
            "--cuts" => wanted.cuts = value()?.parse().map_err(|_| usage())?,
            "--only" => wanted.only = Some(Part::named(value()?).ok_or_else(usage)?),
            "--install" => needs_packages = true,
            _ => return Err(usage()),
        }
    }
    if needs_packages {
        install()?;
    }
    let summary = tests::alone(root, wanted);
    print!("\n{}", summary.print());
    if summary.failed == 0 {
        Ok(())
    } else {
        Err(Stop::Findings(Vec::new()))
    }
}

fn read(arguments: &[&str]) -> Result<Options, Stop> {
    let usage = || Stop::Usage(USAGE.to_string());
    let mut options = Options {
        shapes: [Shape::Ext4, Shape::DevDax],
        eadr: false,
        keep: None,
        cut: None,
        limit: Duration::from_secs(300),
        install: false,
        command: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().copied().ok_or_else(usage);
        match *argument {
            "--nvdimm" => options.shapes = shapes(value()?).ok_or_else(usage)?,
            "--eadr" => options.eadr = true,
            "--keep" => options.keep = Some(PathBuf::from(value()?)),
            "--cut" => options.cut = Some(seconds(value()?).ok_or_else(usage)?),
            "--limit" => options.limit = seconds(value()?).ok_or_else(usage)?,
            "--install" => options.install = true,
            "--" => {
                options.command = rest.by_ref().map(|word| (*word).to_string()).collect();
            }
            _ => return Err(usage()),
        }
    }
    match options.command.is_empty() {
        true => Err(usage()),
        false => Ok(options),
    }
}

fn shapes(words: &str) -> Option<[Shape; 2]> {
    let (first, second) = words.split_once(',')?;
    Some([Shape::named(first)?, Shape::named(second)?])
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

fn install() -> Outcome {
    let missing = guest::missing();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing the Debian packages {}", missing.join(" "));
    let mut apt = std::process::Command::new("apt-get");
    let status = apt.args(["install", "-y", "-qq", "--no-install-recommends"]).args(&missing).status();
    match status.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => Err(Stop::Failed("apt-get could not install them".to_string())),
    }
}

/// A folder for the images; one of our own goes with this.
struct Fresh {
    folder: PathBuf,
    kept: bool,
}

impl Fresh {
    fn new(keep: Option<PathBuf>) -> Result<Fresh, String> {
        let kept = keep.is_some();
        static MADE: AtomicU32 = AtomicU32::new(0);
        let own = || {
            let (process, number) = (std::process::id(), MADE.fetch_add(1, SeqCst));
            std::env::temp_dir().join(format!("forebay-dax-machine-{process}-{number}"))
        };
        let folder = keep.unwrap_or_else(own);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let folder = folder.canonicalize().map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Fresh { folder, kept })
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

#[cfg(test)]
mod options_tests {
    use super::*;

    #[test]
    fn options_end_where_the_command_begins() {
        let options =
            read(&["--nvdimm", "xfs,memory", "--cut", "0.5", "--", "ls", "--", "--eadr"]).ok().unwrap();
        assert_eq!(options.shapes, [Shape::Xfs, Shape::Memory]);
        assert_eq!((options.cut, options.eadr), (Some(Duration::from_millis(500)), false));
        assert_eq!(options.command, ["ls", "--", "--eadr"]);
        for wrong in [&["ls"][..], &["--"], &["--nvdimm", "ext4", "--", "ls"], &["--cut", "-1", "--", "ls"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
