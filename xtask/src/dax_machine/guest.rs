//! What the emulated machine boots: a stock Debian kernel and a first file system with its drivers.
//!
//! The kernel's package is fetched and unpacked below the build folder, never installed: this needs no root, and
//! nothing of the host's own boot changes. Everything else in the guest is the host's own files, read only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Drivers, besides those that they need: the host's files, NVDIMMs in all their modes, file systems on them.
const DRIVERS: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "nfit",
    "nd_pmem",
    "dax_pmem",
    "device_dax",
    "kmem",
    "crc32c_generic",
    "ext4",
    "xfs",
    "hwpoison_inject",
];

/// Programs that have to be there, and the Debian packages that bring them.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("ndctl", "ndctl"),
    ("daxctl", "daxctl"),
    ("numactl", "numactl"),
    ("mke2fs", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("dpkg", "dpkg"),
];

const INIT: &str = include_str!("init.sh");

/// Two files that QEMU boots.
pub struct Guest {
    /// The kernel.
    pub kernel: PathBuf,
    /// The first file system.
    pub initrd: PathBuf,
}

/// Debian packages whose programs are missing.
pub fn missing() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).collect();
    let is_there = |program: &str| folders.iter().any(|folder| folder.join(program).is_file());
    PROGRAMS.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect()
}

impl Guest {
    /// The guest of this clone, built where it is not there yet.
    ///
    /// # Errors
    /// Why it cannot be had: a program that is missing, no package of a kernel.
    pub fn ready(root: &Path) -> Result<Guest, String> {
        let missing = missing();
        if !missing.is_empty() {
            return Err(format!("not installed: {}", missing.join(", ")));
        }
        let folder = build_folder(root).join("dax-machine");
        let package = kernel_package(&folder)?;
        let unpacked = folder.join(&package);
        if !unpacked.join("complete").is_file() {
            fetch(&folder, &package)?;
        }
        let version = package.trim_start_matches("linux-image-").to_string();
        let guest = Guest {
            kernel: unpacked.join("boot").join(format!("vmlinuz-{version}")),
            initrd: unpacked.join("initrd"),
        };
        // Made anew each time: it is small, and its script may have changed.
        first_files(&unpacked, &version, &guest.initrd)?;
        Ok(guest)
    }
}

/// Where cargo builds.
pub fn build_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The package that `linux-image-amd64` stands for now; without lists of packages, one that was fetched before.
fn kernel_package(folder: &Path) -> Result<String, String> {
    let listed =
        Command::new("apt-cache").args(["depends", "linux-image-amd64"]).stdin(Stdio::null()).output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let named = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    if let Some(name) = named {
        return Ok(format!("linux-image-{}", name.trim()));
    }
    let fetched = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let complete = fetched.filter(|entry| entry.path().join("complete").is_file());
    complete
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .max()
        .ok_or_else(|| "apt knows no package linux-image-amd64 (apt-get update?)".to_string())
}

fn fetch(folder: &Path, package: &str) -> Result<(), String> {
    eprintln!("fetching the Debian package {package} into {} (not installed)", folder.display());
    let download = folder.join("download");
    let _ = std::fs::remove_dir_all(&download);
    std::fs::create_dir_all(&download).map_err(|e| format!("{}: {e}", download.display()))?;
    call(Command::new("apt-get").args(["download", "-qq", package]).current_dir(&download))?;
    let file = std::fs::read_dir(&download).into_iter().flatten().flatten().map(|entry| entry.path()).next();
    let file = file.ok_or_else(|| format!("apt-get download {package} left no file"))?;
    let unpacked = folder.join(package);
    call(Command::new("dpkg").arg("-x").arg(&file).arg(&unpacked))?;
    let version = package.trim_start_matches("linux-image-");
    call(Command::new("busybox").args(["depmod", "-b"]).arg(&unpacked).arg(version))?;
    let _ = std::fs::remove_dir_all(&download);
    std::fs::write(unpacked.join("complete"), "").map_err(|e| e.to_string())
}

/// Packs busybox, the drivers in the order in which they load, and the script.
fn first_files(unpacked: &Path, version: &str, initrd: &Path) -> Result<(), String> {
    let files = unpacked.join("first");
    let _ = std::fs::remove_dir_all(&files);
    for folder in ["bin", "modules", "proc", "sys", "dev", "host"] {
        std::fs::create_dir_all(files.join(folder)).map_err(|e| e.to_string())?;
    }
    let modules = unpacked.join("lib/modules").join(version);
    let table = std::fs::read_to_string(modules.join("modules.dep"))
        .map_err(|e| format!("{}: {e}", modules.join("modules.dep").display()))?;
    let mut order = String::new();
    for module in in_order(&table, DRIVERS) {
        let name = Path::new(&module).file_name().unwrap_or_default().to_string_lossy().into_owned();
        copy(&modules.join(&module), &files.join("modules").join(&name))?;
        order.push_str(&name);
        order.push('\n');
    }
    std::fs::write(files.join("modules/order"), order).map_err(|e| e.to_string())?;
    let busybox = call(Command::new("sh").args(["-c", "command -v busybox"]))?;
    copy(Path::new(busybox.trim()), &files.join("bin/busybox"))?;
    std::os::unix::fs::symlink("busybox", files.join("bin/sh")).map_err(|e| e.to_string())?;
    std::fs::write(files.join("init"), INIT).map_err(|e| e.to_string())?;
    let pack = "chmod 755 init && find . | busybox cpio -o -H newc";
    let mut command = Command::new("sh");
    let packed = std::fs::File::create(initrd).map_err(|e| format!("{}: {e}", initrd.display()))?;
    command.args(["-c", pack]).current_dir(&files).stdin(Stdio::null()).stdout(packed).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cpio: {status}")),
        Err(e) => Err(format!("sh: {e}")),
    }
}

/// The files of these drivers and of all that they need, each behind what it needs; a driver that the kernel has
/// inside is not in the table. Pure: from the text of modules.dep.
fn in_order(table: &str, drivers: &[&str]) -> Vec<String> {
    let lines: Vec<(&str, Vec<&str>)> = table
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| (file, needs.split_whitespace().collect()))
        .collect();
    let name_of = |file: &str| {
        let name = file.rsplit('/').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default().replace('-', "_")
    };
    let mut order: Vec<String> = Vec::new();
    for driver in drivers {
        let Some((file, needs)) = lines.iter().find(|(file, _)| name_of(file) == *driver) else { continue };
        // The table names what is needed last first.
        for module in needs.iter().rev().chain([file]) {
            if !order.iter().any(|have| have == module) {
                order.push((*module).to_string());
            }
        }
    }
    order
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(|_| ()).map_err(|e| format!("{}: {e}", from.display()))
}

/// Runs a command to its end; what it printed.
fn call(command: &mut Command) -> Result<String, String> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{what}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            Err(format!("{what}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_load_behind_what_they_need() {
        let table = "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\n\
                     kernel/fs/jbd2/jbd2.ko:\nkernel/lib/crc16.ko:\nkernel/drivers/dax/device-dax.ko.xz:\n";
        let order = in_order(table, &["jbd2", "ext4", "built_in", "device_dax"]);
        let names: Vec<&str> = order.iter().filter_map(|file| file.rsplit('/').next()).collect();
        assert_eq!(names, ["jbd2.ko", "crc16.ko", "ext4.ko", "device-dax.ko.xz"]);
    }
}
