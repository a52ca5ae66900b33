//! What the matrix stands on: a folder that every user may enter, with the command, the programs and their data, and
//! packages in a virtual environment of their own.
//!
//! Guarantees: the folder goes with the value; the environment stays for the next run. What cannot be had is said, as
//! the reason why a row is skipped. Nothing is installed where `NO_INSTALL` is set.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::packages::{build, target_folder};

/// Debian packages that rows use: the package and a file that it brings.
pub const DEBIAN: [(&str, &str); 2] =
    [("redis-tools", "/usr/bin/redis-benchmark"), ("mpich", "/usr/bin/mpicc.mpich")];

/// See the file's head.
pub struct Ground {
    pub folder: PathBuf,
    environment: PathBuf,
    /// What was made or found before, by its name.
    made: Mutex<BTreeMap<String, Result<PathBuf, String>>>,
}

/// What a row needs, or why it cannot be had.
type Found = Result<PathBuf, String>;

impl Ground {
    /// Builds the command unless it is `built`, and copies it with the programs of the rows.
    pub fn new(root: &Path, built: bool) -> Result<Ground, String> {
        let target = target_folder(root);
        if !built {
            build(root, &["--lib", "--bins"])?;
        }
        let folder = on_disk(&target)?;
        let ground = Ground { folder, environment: target.join("mem-matrix/venv"), made: Mutex::default() };
        for name in ["bin", "programs", "data"] {
            open_folder(&ground.folder.join(name), 0o755)?;
        }
        for name in ["forebay", "libforebay_mem.so"] {
            copy(&target.join("release").join(name), &ground.folder.join("bin").join(name))?;
        }
        for file in std::fs::read_dir(root.join("xtask/mem-matrix")).map_err(|e| e.to_string())?.flatten() {
            copy(&file.path(), &ground.program(&file.file_name().to_string_lossy()))?;
        }
        Ok(ground)
    }

    /// The command.
    pub fn forebay(&self) -> PathBuf {
        self.folder.join("bin/forebay")
    }

    /// A program's file.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("programs").join(name)
    }

    /// What `make` makes or finds, once.
    fn once(&self, name: &str, make: impl FnOnce() -> Found) -> Found {
        let before = self.made.lock().unwrap_or_else(|e| e.into_inner()).get(name).cloned();
        let found = before.unwrap_or_else(make);
        self.made.lock().unwrap_or_else(|e| e.into_inner()).insert(name.to_string(), found.clone());
        found
    }

    /// Compiles a source of the programs' folder: `words` stand before it, and `-o` with the result behind it.
    pub fn compile(&self, name: &str, source: &str, words: &[&str]) -> Found {
        self.once(name, || {
            let made = self.program(name);
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg("-o").arg(&made).arg(self.program(source));
            let command = if words[0] == "go" {
                let mut build = Command::new("go");
                build.args(["build", "-o"]).arg(&made).arg(self.program(source));
                build.env("GOCACHE", self.folder.join("go-cache")).env("GOFLAGS", "-modcacherw");
                build
            } else {
                command
            };
            output(command).map(|_| made)
        })
    }

    /// The first of these programs that is there.
    pub fn find(&self, names: &[&str]) -> Found {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all =
            names.iter().flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
        let standard = names.iter().map(|name| Path::new("/usr/bin").join(name));
        let found = standard.chain(all).find(|path| path.is_file());
        found.ok_or_else(|| format!("{} is not installed", names.join(" or ")))
    }

    /// A file of `lines` lines in no order.
    pub fn lines(&self, name: &str, lines: usize) -> Found {
        self.once(name, || {
            let (mut text, mut numbers) = (String::with_capacity(lines * 32), fastrand::Rng::with_seed(7));
            for _ in 0..lines {
                let (a, b, of) = (numbers.u32(..1 << 24), numbers.u32(..1 << 20), numbers.u32(..1009));
                text.push_str(&format!("{a:08} {b:x} of {of}\n"));
            }
            self.data(name, &text)
        })
    }

    /// A C program of many functions.
    pub fn source(&self, name: &str, functions: usize) -> Found {
        self.once(name, || {
            let mut text = "#include <string.h>\nstatic int table[4096];\n".to_string();
            for n in 0..functions {
                text.push_str(&format!(
                    "int f{n}(const char *s, int k) {{ int a = {n}, i; for (i = 0; i < k; i++) {{ a += s[i] * \
                     (a >> {}) ^ table[(a + i) & 4095]; if (a % {} == 0) table[i & 4095] = a; }} switch (a & 7) \
                     {{ case 1: return a * {n}; case 3: memset(table, a, sizeof table); break; case 5: return \
                     (int)strlen(s) + a; default: a ^= {n}; }} return a; }}\n",
                    n % 13,
                    n % 97 + 2
                ));
            }
            self.data(name, &text)
        })
    }

    fn data(&self, name: &str, text: &str) -> Found {
        let path = self.folder.join("data").join(name);
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        open(&path, 0o644)?;
        Ok(path)
    }

    /// The Python of the environment, with a package in it.
    pub fn package(&self, name: &str) -> Found {
        self.once(name, || {
            let python = self.environment.join("bin/python");
            // The programs use NumPy, too, which not all packages bring.
            let has = || {
                let mut import = Command::new(&python);
                import.args(["-c", &format!("import {name}, numpy")]);
                output(import)
            };
            if has().is_ok() {
                return Ok(python);
            }
            if std::env::var_os("NO_INSTALL").is_some() {
                return Err(format!("{name} is not installed, and NO_INSTALL is set"));
            }
            println!("   installing {name} into {} with pip", self.environment.display());
            if !python.exists() {
                let mut make = Command::new(self.find(&["python3"])?);
                make.args(["-m", "venv"]).arg(&self.environment);
                output(make)?;
            }
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", name, "numpy"]);
            output(pip).and_then(|_| has()).map(|_| python)
        })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Installs the Debian packages that are missing, where that is allowed; what cannot be had is seen by the rows.
pub fn install_debian() {
    let missing: Vec<&str> =
        DEBIAN.iter().filter(|(_, file)| !Path::new(file).exists()).map(|(package, _)| *package).collect();
    let refused = std::env::var_os("NO_INSTALL").is_some() || !Path::new("/usr/bin/apt-get").exists();
    if missing.is_empty() || refused {
        return;
    }
    println!("   installing the Debian packages {} with apt-get", missing.join(" "));
    let mut command = Command::new("apt-get");
    command.args(["install", "-y", "-qq", "--no-install-recommends"]).args(&missing);
    if let Err(why) = output(command.env("DEBIAN_FRONTEND", "noninteractive")) {
        println!("   {}", why.lines().last().unwrap_or_default());
    }
}

/// A new folder on a file system that is no memory: for temporary files, else where cargo builds.
fn on_disk(target: &Path) -> Result<PathBuf, String> {
    let mut temporary = Command::new("stat");
    temporary.args(["-f", "-c", "%T"]).arg(std::env::temp_dir());
    let in_memory = output(temporary).is_ok_and(|kind| kind.trim() == "tmpfs");
    let above = if in_memory { target.to_owned() } else { std::env::temp_dir() };
    let folder = above.join(format!("forebay-mem-matrix-{}", std::process::id()));
    open_folder(&folder, 0o755)?;
    folder.canonicalize().map_err(|e| e.to_string())
}

/// Makes a folder with this mode.
pub fn open_folder(path: &Path, mode: u32) -> Result<(), String> {
    std::fs::create_dir_all(path).map_err(|e| format!("{}: {e}", path.display()))?;
    open(path, mode)
}

fn open(path: &Path, mode: u32) -> Result<(), String> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map_err(|e| format!("{}: {e}", from.display()))?;
    open(to, 0o755)
}

/// What a command printed; else why it failed.
fn output(mut command: impl std::borrow::BorrowMut<Command>) -> Result<String, String> {
    let command = command.borrow_mut();
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name}: {}", text.trim().lines().last().unwrap_or("failed")))
        }
        Err(e) => Err(format!("{name}: {e}")),
    }
}
