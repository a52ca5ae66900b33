//! The programs of the comparison: building what is there, saying what is missing, one measurement each.

use crate::packages::{build, example};
use crate::python;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Seconds for one program; a stream of this size takes a few.
const LIMIT_S: &str = "300";

/// Version of the PyPI package adios2 that the published figures were measured with.
const ADIOS: &str = "adios2==2.12.1.1001";

/// Objects put from one process.
#[derive(Clone)]
pub struct PutShape {
    pub bytes: u64,
    pub objects: u64,
    pub steps: u64,
    pub pool_bytes: u64,
    pub source_bytes: u64,
    pub checksum: bool,
    /// One call a step instead of one an object.
    pub many: bool,
}

/// Objects streamed between two processes.
pub struct StreamShape {
    pub bytes: u64,
    pub objects: u64,
    pub steps: u64,
    /// Steps before the clock starts: every system has its memory faulted in and its connections open by then.
    pub warm: u64,
    pub source_bytes: u64,
}

/// Objects that pass through a space whose first tier is too small for them.
pub struct SpillShape {
    pub bytes: u64,
    pub objects: u64,
    pub first_bytes: u64,
}

/// Nanoseconds an object: moved down, read back, passing through, put straight to the disk.
pub struct Spill {
    pub spill: f64,
    pub read_back: f64,
    pub through: f64,
    pub direct: f64,
}

/// What one put program says.
pub struct Put {
    pub ns_per_put: f64,
    pub ns_per_memcpy: f64,
}

/// What can be measured here.
pub struct Setup {
    root: PathBuf,
    /// Folder of the spaces and rendezvous files, in shared memory; gone at the end.
    folder: PathBuf,
    /// Folder of the lower tiers and of fio's file, on the disk of the checkout; gone at the end.
    disk: PathBuf,
    put: PathBuf,
    seen: PathBuf,
    rust_stream: PathBuf,
    spill: PathBuf,
    python: PathBuf,
    /// Our stream in C, where there is a C compiler.
    pub c_stream: Option<PathBuf>,
    /// The built program, where libpmem is installed.
    pub libpmem: Option<PathBuf>,
    /// The program, where it is installed.
    pub fio: Option<PathBuf>,
    /// A Python that has the package adios2.
    pub adios: Option<PathBuf>,
    /// What is missing, and what can thus not be measured.
    pub skipped: Vec<String>,
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = std::fs::remove_dir_all(&self.disk);
    }
}

impl Setup {
    /// Builds everything that can be built here.
    pub fn new(root: &Path, install: bool) -> Result<Setup, String> {
        let folder = PathBuf::from(format!("/dev/shm/forebay-bench-{}", std::process::id()));
        let disk = root.join(format!("target/bench-{}", std::process::id()));
        for made in [&folder, &disk] {
            std::fs::create_dir_all(made).map_err(|e| format!("{}: {e}", made.display()))?;
        }
        let mut setup = Setup {
            root: root.to_path_buf(),
            folder,
            disk,
            put: example(root, "bench_put")?,
            seen: example(root, "bench_seen")?,
            rust_stream: example(root, "bench_stream")?,
            spill: example(root, "bench_spill")?,
            python: python::python(root),
            c_stream: None,
            libpmem: None,
            fio: None,
            adios: None,
            skipped: Vec::new(),
        };
        if !has_module(&setup.python, "forebay") {
            python::wheel(root, python::Wheel::Shipped)?;
        }
        setup.build_c_stream()?;
        setup.find_libpmem(install);
        setup.find_adios(install);
        setup.find_fio(install);
        Ok(setup)
    }

    fn build_c_stream(&mut self) -> Result<(), String> {
        if quiet(Command::new("cc").arg("--version")).is_err() {
            self.skipped.push("stream from C: there is no cc".into());
            return Ok(());
        }
        let folder = build(&self.root, &["--lib"])?;
        let program = self.root.join("target/peers/forebay_stream");
        let _ = std::fs::create_dir_all(self.root.join("target/peers"));
        let mut command = Command::new("cc");
        command.args(["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror"]).arg("-I");
        command.arg(self.root.join("crates/capi/include")).arg(self.root.join("lab/peers/forebay_stream.c"));
        command.arg("-L").arg(&folder).arg("-lforebay").arg(format!("-Wl,-rpath,{}", folder.display()));
        quiet(command.arg("-o").arg(&program))?;
        self.c_stream = Some(program);
        Ok(())
    }

    fn find_libpmem(&mut self, install: bool) {
        if install && !Path::new("/usr/include/libpmem.h").exists() {
            eprintln!("installing the Debian package libpmem-dev");
            let _ = quiet(Command::new("apt-get").args(["install", "-y", "-qq", "libpmem-dev"]));
        }
        let program = self.root.join("target/peers/libpmem_put");
        let _ = std::fs::create_dir_all(self.root.join("target/peers"));
        let source = self.root.join("lab/peers/libpmem_put.c");
        let built = quiet(Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(source).arg("-lpmem"));
        match built {
            Ok(()) => self.libpmem = Some(program),
            Err(_) => {
                self.skipped.push("put against libpmem: libpmem-dev is not installed (--install)".into())
            }
        }
    }

    fn find_adios(&mut self, install: bool) {
        let environment = self.root.join("target/peers/venv");
        let python = environment.join("bin/python");
        if install && !has_module(&python, "adios2") {
            eprintln!("installing {ADIOS} into target/peers");
            let made = quiet(Command::new("python3").args(["-m", "venv"]).arg(&environment));
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", ADIOS, "numpy"];
            let _ = made.and_then(|()| quiet(Command::new(&python).args(pip)));
        }
        if has_module(&python, "adios2") {
            self.adios = Some(python);
        } else {
            self.skipped.push("stream against SST: adios2 is not in target/peers (--install)".into());
        }
    }

    fn find_fio(&mut self, install: bool) {
        let is_there = || quiet(Command::new("fio").arg("--version")).is_ok();
        if install && !is_there() {
            eprintln!("installing the Debian package fio");
            let _ = quiet(Command::new("apt-get").args(["install", "-y", "-qq", "fio"]));
        }
        if !is_there() {
            self.skipped.push("lower tiers against fio: fio is not installed (--install)".into());
            return;
        }
        // Direct I/O may not be possible here.
        let one = SpillShape { bytes: 1 << 20, objects: 1, first_bytes: 0 };
        match self.fio_ns(Path::new("fio"), "write", &one) {
            Ok(_) => self.fio = Some("fio".into()),
            Err(why) => self.skipped.push(format!("lower tiers against fio: {why}")),
        }
    }

    /// fio's direct I/O of as many bytes, 1 MiB each, 16 at once; nanoseconds an object.
    pub fn fio_ns(&self, fio: &Path, rw: &str, shape: &SpillShape) -> Result<f64, String> {
        let mut command = self.program(fio);
        command.args(["--name=peer", "--bs=1M", "--direct=1", "--ioengine=io_uring", "--iodepth=16"]);
        command.arg(format!("--rw={rw}")).arg(format!("--size={}", shape.bytes * shape.objects));
        let output = self.disk.join("fio.json");
        command.arg(format!("--directory={}", self.disk.display())).arg("--output-format=json");
        quiet(command.arg(format!("--output={}", output.display())))?;
        let said = std::fs::read(&output).map_err(|e| format!("{}: {e}", output.display()))?;
        let said: Value = serde_json::from_slice(&said).map_err(|e| format!("fio's report: {e}"))?;
        let speed = said["jobs"][0][rw]["bw_bytes"].as_f64().filter(|bw| *bw > 0.0);
        Ok(shape.bytes as f64 * 1e9 / speed.ok_or(format!("fio says no speed: {said}"))?)
    }

    /// The next fio job begins with a new file.
    pub fn remove_fio_file(&self) {
        let _ = std::fs::remove_file(self.disk.join("peer.0.0"));
    }

    /// Ours, spilling to `direct` on the same disk.
    pub fn spill(&self, shape: &SpillShape) -> Result<Spill, String> {
        let mut command = self.program(&self.spill);
        command.arg("spill").arg(&self.disk);
        command.args([shape.bytes, shape.objects, shape.first_bytes].map(|n| n.to_string())).arg("direct");
        let said = run(&mut command)?;
        let number = |key: &str| said[key].as_f64().ok_or(format!("no {key} in {said}"));
        Ok(Spill {
            spill: number("spill_ns")?,
            read_back: number("read_back_ns")?,
            through: number("through_ns")?,
            direct: number("lane_ns")?,
        })
    }

    /// Our put, in memory.
    pub fn put(&self, shape: &PutShape) -> Result<Put, String> {
        self.put_below(&self.folder, shape, &[])
    }

    /// Our put into a file on a disk, through the page cache, in batches or not.
    pub fn put_on_disk(&self, shape: &PutShape, batch: Option<&'static str>) -> Result<Put, String> {
        let mut environment = vec![("FOREBAY_TIER", "file")];
        environment.extend(batch.map(|bytes| ("FOREBAY_BATCH", bytes)));
        self.put_below(&self.disk, shape, &environment)
    }

    fn put_below(
        &self,
        folder: &Path,
        shape: &PutShape,
        environment: &[(&str, &str)],
    ) -> Result<Put, String> {
        let name = format!("put-{}-{}", shape.bytes, if shape.checksum { "crc" } else { "plain" });
        let mut command = self.program(&self.put);
        command
            .arg(folder.join(&name))
            .args([shape.bytes, shape.objects, shape.steps].map(|n| n.to_string()));
        command.args([shape.pool_bytes, shape.source_bytes].map(|n| n.to_string()));
        command.arg(if shape.checksum { "yes" } else { "no" }).args(shape.many.then_some("many"));
        let put = read_put(&run(command.envs(environment.iter().copied()))?);
        let _ = std::fs::remove_dir_all(folder.join(&name));
        put
    }

    /// libpmem's put. tmpfs is no persistent memory to libpmem unless it is told so.
    pub fn libpmem_put(&self, shape: &PutShape) -> Result<Put, String> {
        let program = self.libpmem.as_ref().ok_or("libpmem is not installed")?;
        let mut command = self.program(program);
        let puts = shape.objects * shape.steps;
        command
            .arg(&self.folder)
            .args([shape.bytes, puts, shape.pool_bytes, shape.source_bytes].map(|n| n.to_string()));
        read_put(&run(command.env("PMEM_IS_PMEM_FORCE", "1"))?)
    }

    /// Median and 99th percentile, in nanoseconds, of what `bench_seen` measures between two processes.
    pub fn seen(&self, what: &str, numbers: &[u64]) -> Result<[f64; 2], String> {
        let name = self.folder.join(what);
        let mut command = self.on_core("0", &self.seen);
        command.env("READER_CORE", if several_cores() { "1" } else { "0" });
        if several_cores() {
            // On one core each the processes cannot know that they do not share it, and would not spin.
            command.env("FOREBAY_SPIN_US", "50");
        }
        command.arg(what).arg(&name).args(numbers.iter().map(ToString::to_string));
        let said = run(&mut command);
        let _ = std::fs::remove_dir_all(&name);
        let said = said?;
        let number = |key: &str| said[key].as_f64().ok_or(format!("no {key} in {said}"));
        Ok([number("median_ns")?, number("p99_ns")?])
    }

    /// Our stream through the Rust interface, a call a step; nanoseconds an object.
    pub fn rust_stream(&self, shape: &StreamShape) -> Result<f64, String> {
        self.compiled_stream(&self.rust_stream, shape, &[])
    }

    /// Our stream through the C interface, a call an object or, with the word "many", a call a step; nanoseconds an
    /// object.
    pub fn c_stream(&self, shape: &StreamShape, words: &[&str]) -> Result<f64, String> {
        self.compiled_stream(self.c_stream.as_ref().ok_or("there is no C compiler")?, shape, words)
    }

    fn compiled_stream(&self, program: &Path, shape: &StreamShape, words: &[&str]) -> Result<f64, String> {
        let side = |role: &str| {
            // One core each, as the Python sides choose for themselves.
            let core = if role == "write" || !several_cores() { "0" } else { "1" };
            let mut command = self.on_core(core, program);
            // Where cargo runs this, another build of the library may lie there.
            command.env_remove("LD_LIBRARY_PATH");
            let numbers = [shape.bytes, shape.objects, shape.steps, shape.warm, shape.source_bytes];
            command.args([role, "stream"]).args(numbers.map(|n| n.to_string())).args(words);
            command
        };
        let ns = self.stream(shape, side("read"), side("write"));
        let _ = std::fs::remove_dir_all(self.folder.join("stream"));
        ns
    }

    /// Our stream through Python; nanoseconds an object.
    pub fn forebay_stream(&self, shape: &StreamShape, arguments: &[&str]) -> Result<f64, String> {
        let per_side = |role: &str| {
            // Both sides know all words; the writer needs no buffers.
            let own: Vec<&str> =
                arguments.iter().copied().filter(|a| role == "read" || *a != "--into").collect();
            let mut command = self.side(&self.python, "forebay_stream.py", role, "stream", shape);
            command.args(own);
            command
        };
        let ns = self.stream(shape, per_side("read"), per_side("write"));
        // The reader leaves after the last step without asking for the end, so the space stays.
        let _ = std::fs::remove_dir_all(self.folder.join("stream"));
        ns
    }

    /// SST's stream; nanoseconds an object.
    pub fn sst_stream(&self, shape: &StreamShape, arguments: &[&str]) -> Result<f64, String> {
        let python = self.adios.as_ref().ok_or("adios2 is not installed")?;
        let contact = self.folder.join("contact");
        let side = |role| {
            let mut command = self.side(python, "sst_stream.py", role, &contact.to_string_lossy(), shape);
            command.args(arguments);
            command
        };
        self.stream(shape, side("read"), side("write"))
    }

    fn side(&self, python: &Path, script: &str, role: &str, name: &str, shape: &StreamShape) -> Command {
        let mut command = self.program(python);
        command.arg(self.root.join("lab/peers").join(script)).args([role, name]);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let size = [("--objects", shape.objects), ("--bytes", shape.bytes)];
        let length =
            [("--steps", shape.steps), ("--warm", shape.warm), ("--source-bytes", shape.source_bytes)];
        for (word, number) in size.into_iter().chain(length) {
            command.args([word, &number.to_string()]);
        }
        // One core each, where there are two: neither side may run on the other's.
        if several_cores() {
            command.args(["--core", if role == "write" { "0" } else { "1" }]);
        }
        command
    }

    fn stream(&self, shape: &StreamShape, mut reader: Command, mut writer: Command) -> Result<f64, String> {
        let reading = std::thread::spawn(move || run(&mut reader));
        let written = run(&mut writer);
        let read = reading.join().map_err(|_| "the reader's thread ended".to_string())?;
        let (written, read) = (written?, read?);
        let time = |value: &Value, key: &str| value[key].as_f64().ok_or(format!("no {key} in {value}"));
        let ns = time(&read, "end_ns")? - time(&written, "begin_ns")?;
        Ok(ns / (shape.objects * shape.steps) as f64)
    }

    /// As `program`, on one core.
    fn on_core(&self, core: &str, program: &Path) -> Command {
        let mut command = self.program(Path::new("taskset"));
        command.args(["-c", core]).arg(program);
        command
    }

    /// A program with a time limit and a folder for spaces of its own, without settings of the caller.
    fn program(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT_S]).arg(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
        command.env("FOREBAY_DIR", &self.folder);
        command
    }
}

/// Whether two processes can have a core each.
fn several_cores() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1)
}

fn has_module(python: &Path, module: &str) -> bool {
    quiet(Command::new(python).args(["-c", &format!("import {module}")])).is_ok()
}

fn quiet(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    output.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Runs one side and reads the JSON object of its last line.
fn run(command: &mut Command) -> Result<Value, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let value = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    match value {
        Some(value) if output.status.success() => Ok(value),
        _ => {
            let words: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(format!("{} ended with {}\n{text}{errors}", words.join(" "), output.status))
        }
    }
}

fn read_put(value: &Value) -> Result<Put, String> {
    let number = |key: &str| value[key].as_f64().ok_or(format!("no {key} in {value}"));
    if number("wrong")? != 0.0 {
        return Err("the last object was not what was put".to_string());
    }
    Ok(Put { ns_per_put: number("ns_per_put")?, ns_per_memcpy: number("ns_per_memcpy")? })
}
