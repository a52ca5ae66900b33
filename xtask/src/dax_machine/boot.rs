//! One run of the emulated machine: two sockets with a memory node each, a third node without processors, two NVDIMMs.
//!
//! Guarantees: the emulator is gone when a call returns, also after a panic of the guest or its time limit; the images
//! of the NVDIMMs are ordinary files that outlive it. What is said on the guest's second serial line is what the
//! command printed; what its kernel says is kept in `boot.log` beside the images.

use super::guest::Guest;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Bytes of an NVDIMM: 2 MiB of labels, and a multiple of 16 MiB, else no namespace can be made.
const NVDIMM_MIB: u64 = 2 + 1024;

const INSIDE: &str = include_str!("inside.sh");

/// What is made of an NVDIMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// ext4 mounted with DAX under /run/pmemN.
    Ext4,
    /// XFS mounted with DAX under /run/pmemN.
    Xfs,
    /// The character device /dev/daxN.0.
    DevDax,
    /// A memory node without processors, as a CXL expander is one.
    Memory,
    /// Nothing.
    Nothing,
}

impl Shape {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Shape::Ext4 => "ext4",
            Shape::Xfs => "xfs",
            Shape::DevDax => "devdax",
            Shape::Memory => "memory",
            Shape::Nothing => "none",
        }
    }

    /// The shape that a word names.
    pub fn named(word: &str) -> Option<Shape> {
        let all = [Shape::Ext4, Shape::Xfs, Shape::DevDax, Shape::Memory, Shape::Nothing];
        all.into_iter().find(|shape| shape.word() == word)
    }
}

/// A machine to boot.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Of each NVDIMM.
    pub shapes: [Shape; 2],
    /// Processor caches survive a loss of power (eADR).
    pub eadr: bool,
    /// Where the images lie; made where they are not there.
    pub images: PathBuf,
    /// When the emulator is killed, whatever happens.
    pub limit: Duration,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The command ended with this status.
    Status(i32),
    /// The power was cut, as asked.
    Cut,
}

/// What a watcher of the output wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Go on.
    On,
    /// Cut the power so much later.
    CutIn(Duration),
}

impl Machine {
    /// Boots, runs `command` in `folder` (of the host), and gives each line of its output to `watch`.
    ///
    /// # Errors
    /// The emulator does not start, the guest ends without a status, or the limit passes: with the last lines that the
    /// guest's kernel said.
    pub fn run(
        &self,
        guest: &Guest,
        folder: &Path,
        command: &[String],
        watch: &mut dyn FnMut(&str) -> Wish,
    ) -> Result<End, String> {
        let share = self.images.join("share");
        let put = |name: &str, text: &str| {
            std::fs::write(share.join(name), text).map_err(|e| format!("{}: {e}", share.join(name).display()))
        };
        std::fs::create_dir_all(&share).map_err(|e| format!("{}: {e}", share.display()))?;
        let _ = std::fs::remove_file(share.join("status"));
        put("inside.sh", INSIDE)?;
        put("machine.sh", &self.script(folder, command))?;
        for number in 0..2 {
            self.image(number)?;
        }
        let mut qemu = self.command(guest, &share);
        let child = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let child = child.map_err(|e| format!("cannot start qemu-system-x86_64: {e}"))?;
        let how = followed(Killed(child), self.limit, watch);
        let status = std::fs::read_to_string(share.join("status")).ok();
        match (how, status.and_then(|text| text.trim().parse().ok())) {
            (Followed::Cut, _) => Ok(End::Cut),
            (Followed::Ended, Some(status)) => Ok(End::Status(status)),
            (Followed::Ended, None) => Err(format!("the emulated machine died{}", self.last_words())),
            (Followed::Late, _) => {
                Err(format!("not done after {} s{}", self.limit.as_secs(), self.last_words()))
            }
        }
    }

    fn script(&self, folder: &Path, command: &[String]) -> String {
        let mut text = String::new();
        for (number, shape) in self.shapes.iter().enumerate() {
            let _ = writeln!(text, "shape{number}={}", shape.word());
        }
        let _ = writeln!(text, "folder={}", quoted(&folder.to_string_lossy()));
        let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(text, "command_line() {{\n    env {}\n}}", words.join(" "));
        text
    }

    fn image(&self, number: usize) -> Result<(), String> {
        let path = self.images.join(format!("nvdimm{number}"));
        if path.exists() {
            return Ok(());
        }
        let made = std::fs::File::create(&path).and_then(|file| file.set_len(NVDIMM_MIB << 20));
        made.map_err(|e| format!("{}: {e}", path.display()))
    }

    fn command(&self, guest: &Guest, share: &Path) -> Command {
        let mut qemu = Command::new("qemu-system-x86_64");
        let persistence = if self.eadr { "cpu" } else { "mem-ctrl" };
        let machine = format!("q35,accel=tcg,nvdimm=on,nvdimm-persistence={persistence}");
        qemu.args(["-machine", &machine, "-cpu", "max", "-smp", "2,sockets=2,cores=1"]);
        qemu.args(["-m", "3G,slots=4,maxmem=16G", "-display", "none", "-no-reboot", "-nodefaults"]);
        for node in 0..2 {
            qemu.args(["-object", &format!("memory-backend-ram,id=m{node},size=1536M")]);
            qemu.args(["-numa", &format!("node,nodeid={node},cpus={node},memdev=m{node}")]);
        }
        // Of the second NVDIMM, for when it is memory.
        qemu.args(["-numa", "node,nodeid=2", "-numa", "dist,src=0,dst=1,val=21"]);
        qemu.args(["-numa", "dist,src=0,dst=2,val=28", "-numa", "dist,src=1,dst=2,val=17"]);
        for (number, shape) in self.shapes.iter().enumerate() {
            let path = self.images.join(format!("nvdimm{number}"));
            let file = format!("size={NVDIMM_MIB}M,mem-path={}", path.display());
            qemu.args(["-object", &format!("memory-backend-file,id=nv{number},share=on,{file}")]);
            let node = if *shape == Shape::Memory { 2 } else { number };
            let device = format!("nvdimm,id=d{number},memdev=nv{number},label-size=2M,node={node}");
            qemu.args(["-device", &device]);
        }
        qemu.arg("-kernel").arg(&guest.kernel).arg("-initrd").arg(&guest.initrd);
        // Its check of the timer counts ticks of a processor that a busy host does not run.
        qemu.args(["-append", "console=ttyS0 panic=1 edd=off no_timer_check quiet"]);
        for (name, path, access) in [("host", Path::new("/"), ",readonly=on"), ("share", share, "")] {
            let files =
                format!("local,id={name},path={},security_model=none,multidevs=remap", path.display());
            qemu.args(["-fsdev", &format!("{files}{access}")]);
            qemu.args(["-device", &format!("virtio-9p-pci,fsdev={name},mount_tag={name}")]);
        }
        qemu.arg("-serial").arg(format!("file:{}", self.images.join("boot.log").display()));
        qemu.args(["-serial", "stdio"]);
        qemu
    }

    /// The end of what the guest's kernel said.
    fn last_words(&self) -> String {
        let log = std::fs::read(self.images.join("boot.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.len().saturating_sub(12);
        lines[last..].iter().fold(String::new(), |all, line| format!("{all}\n    {}", line.trim_end()))
    }
}

/// A child that does not outlive its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

enum Followed {
    Ended,
    Cut,
    Late,
}

/// Hands on lines until the output ends, the power is cut or the limit passes.
fn followed(mut child: Killed, limit: Duration, watch: &mut dyn FnMut(&str) -> Wish) -> Followed {
    let output = BufReader::new(child.0.stdout.take().expect("stdout is piped"));
    let (said, heard) = channel();
    let reader = std::thread::spawn(move || {
        for line in output.split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
            if said.send(line).is_err() {
                return;
            }
        }
    });
    let late = Instant::now() + limit;
    let mut cut: Option<Instant> = None;
    let how = loop {
        let until = cut.map_or(late, |cut| cut.min(late));
        match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let (Wish::CutIn(time), None) = (watch(&line), cut) {
                    cut = Some(Instant::now() + time);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break Followed::Ended,
            Err(RecvTimeoutError::Timeout) if cut.is_some_and(|cut| Instant::now() >= cut) => {
                break Followed::Cut
            }
            Err(RecvTimeoutError::Timeout) => break Followed::Late,
        }
    };
    drop(child);
    // What was on its way when the power went had been said.
    for line in heard.iter() {
        watch(&line);
    }
    let _ = reader.join();
    how
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_pass_the_shell_as_they_are() {
        for word in ["plain", "two words", "it's", "$HOME \\ \"x\" `id`", ""] {
            let output =
                Command::new("sh").args(["-c", &format!("printf %s {}", quoted(word))]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }

    #[test]
    fn the_output_ends_with_the_program_the_cut_or_the_limit() {
        let started = |script: &str| {
            Killed(Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap())
        };
        let mut lines = Vec::new();
        let mut keep = |line: &str| {
            lines.push(line.to_string());
            Wish::On
        };
        let ended = followed(started("echo a; echo b"), Duration::from_secs(60), &mut keep);
        assert!(matches!(ended, Followed::Ended) && lines == ["a", "b"]);
        let cut = &mut |_: &str| Wish::CutIn(Duration::ZERO);
        let ended = followed(started("echo a; exec sleep 600"), Duration::from_secs(60), cut);
        assert!(matches!(ended, Followed::Cut));
        let ended = followed(started("exec sleep 600"), Duration::from_millis(20), &mut |_| Wish::On);
        assert!(matches!(ended, Followed::Late));
    }

    #[test]
    fn shapes_have_words() {
        for shape in [Shape::Ext4, Shape::Xfs, Shape::DevDax, Shape::Memory, Shape::Nothing] {
            assert_eq!(Shape::named(shape.word()), Some(shape));
        }
        assert_eq!(Shape::named("ntfs"), None);
    }
}
