//! Programs in C, Fortran and Python that know nothing of windows, run with the library before them: as the user who
//! runs the tests, as an ordinary user with 8 MiB of lockable memory, and where userfaultfd is refused.
//!
//! Each program checks its own arrays. What is asserted here: that it was content, that its arrays lay in windows,
//! that the budget was kept, and that nothing was left.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_pager::job::{self, Counter, Job, JobOptions};
use forebay_pager::WindowEngine;
use skips::skipped;

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 8 * MIB;
/// Arrays of a program, four budgets' worth.
const DATA: &str = "32";

/// Under what a program runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setting {
    Plain,
    Unprivileged,
    Refused,
}

const SETTINGS: [Setting; 3] = [Setting::Plain, Setting::Unprivileged, Setting::Refused];

/// Settings with the engines that they have: the default one, and the one whose budget is exact.
fn everywhere() -> Vec<(Setting, Option<WindowEngine>)> {
    let able = forebay_tier::window::userfault().is_ok_and(|can| can.signals && can.write_protect);
    if !able {
        skipped("engine userfault", "userfaultfd is refused");
    }
    let asked =
        [Setting::Plain, Setting::Unprivileged].map(|setting| (setting, Some(WindowEngine::Userfault)));
    let given = SETTINGS.map(|setting| (setting, None));
    given.into_iter().chain(asked.into_iter().filter(|_| able)).collect()
}

/// A folder that every user may enter, with the library and the words of a job.
struct Ground {
    folder: tempfile::TempDir,
    job: Job,
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The library as cargo built it for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let all = folders.map(|folder| folder.join("libforebay_mem.so")).filter(|path| path.is_file());
    // What another command built may lie beside it.
    all.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).expect("the library beside the test")
}

impl Ground {
    fn new(engine: Option<WindowEngine>) -> Ground {
        Ground::with(BUDGET, engine)
    }

    fn with(budget: u64, engine: Option<WindowEngine>) -> Ground {
        let folder = tempfile::tempdir().unwrap();
        open_to_all(folder.path(), 0o755);
        for (name, mode) in [("tier", 0o777), ("data", 0o777)] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            open_to_all(&folder.path().join(name), mode);
        }
        std::fs::copy(library(), folder.path().join("library.so")).unwrap();
        open_to_all(&folder.path().join("library.so"), 0o755);
        let words = folder.path().join("job");
        let file = std::fs::File::create_new(&words).unwrap();
        file.set_len(job::BYTES).unwrap();
        open_to_all(&words, 0o666);
        let file = std::fs::File::options().read(true).write(true).open(&words).unwrap();
        let options = JobOptions {
            budget,
            tile_bytes: 65536,
            threshold: MIB,
            capacity: 64 * BUDGET,
            engine,
            folder: folder.path().join("tier"),
        };
        let job = Job::begin(&file, &options).unwrap();
        Ground { folder, job }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program before which the library stands, under a setting. None: not possible here.
    fn run(&self, setting: Setting, program: &Path, arguments: &[&str]) -> Option<Output> {
        let launcher = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/privilege/launch.py");
        let with = |command: &mut Command| {
            command.env("LD_PRELOAD", self.path("library.so"));
            command.env("FOREBAY_MEM", format!("{MIB}:{}", self.path("job").display()));
        };
        let mut command = match setting {
            Setting::Plain => {
                let mut command = Command::new(program);
                with(&mut command);
                command
            }
            _ => {
                let mut command = Command::new("python3");
                command.arg(launcher).args(match setting {
                    Setting::Unprivileged => &["--uid", "65534", "--memlock", "8388608"][..],
                    _ => &["--refuse-calls"],
                });
                let mut probe = Command::new("python3");
                probe.args(command.get_args()).args(["--probe", "--"]).arg(self.folder.path());
                if let Some(why) = refused(&mut probe) {
                    skipped(&format!("{setting:?}"), &why);
                    return None;
                }
                command.args(["--", "/usr/bin/env"]);
                command.arg(format!("LD_PRELOAD={}", self.path("library.so").display()));
                command.arg(format!("FOREBAY_MEM={MIB}:{}", self.path("job").display()));
                command.arg(program);
                command
            }
        };
        command.args(arguments).current_dir(self.path("data"));
        Some(command.output().unwrap())
    }

    /// Runs it and asserts what holds for all of them.
    fn check(&self, setting: Setting, program: &Path, arguments: &[&str]) -> Option<String> {
        let output = self.run(setting, program, arguments)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        let what =
            format!("{} {arguments:?} {setting:?}: {}\n{said}{errors}", program.display(), output.status);
        assert!(output.status.success() && said.trim_end().ends_with("ok"), "{what}");
        assert_eq!(errors, "", "{what}");
        assert!(self.job.sum(Counter::Allocations) > 0, "nothing was placed: {what}");
        for folder in ["tier", "data"] {
            assert_eq!(std::fs::read_dir(self.path(folder)).unwrap().count(), 0, "left in {folder}: {what}");
        }
        if self.job.engines() == [WindowEngine::Userfault] {
            assert!(self.job.resident_peak() <= BUDGET, "{} there: {what}", self.job.resident_peak());
        }
        Some(said)
    }
}

fn refused(command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(e) => Some(e.to_string()),
    }
}

/// A compiled program that every user may run; it goes with this.
struct Built {
    program: PathBuf,
    _folder: tempfile::TempDir,
}

impl std::ops::Deref for Built {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.program
    }
}

/// None, and counted: there is no such compiler.
fn built(compiler: &str, source: &str, arguments: &[&str]) -> Option<Built> {
    if let Some(why) = refused(Command::new(compiler).arg("--version")) {
        skipped(source, &format!("{compiler}: {why}"));
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    open_to_all(folder.path(), 0o755);
    let program = folder.path().join(source.replace('.', "-"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let mut command = Command::new(compiler);
    let failed = refused(command.args(arguments).arg(source).arg("-o").arg(&program));
    assert_eq!(failed, None);
    Some(Built { program, _folder: folder })
}

fn arrays() -> Option<Built> {
    built("cc", "arrays.c", &["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
}

/// What a program says of its own peak, in bytes.
fn peak(said: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix("peak ")).expect("it says its peak");
    line.trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn arrays_outgrow_their_memory() {
    let Some(program) = arrays() else { return };
    for (setting, engine) in everywhere() {
        let ground = Ground::new(engine);
        let Some(said) = ground.check(setting, &program, &["stream", DATA]) else { continue };
        assert!(ground.job.sum(Counter::Placed) >= 32 * MIB);
        assert_eq!(ground.job.sum(Counter::Processes), 1);
        let engines = ground.job.engines();
        assert_eq!(engines, [engine.unwrap_or(WindowEngine::Kernel)]);
        // The kernel's own pages leave a little later than they should: so short a program may be done before.
        if engines == [WindowEngine::Userfault] {
            assert!(ground.job.sum(Counter::Evicted) > 16 * MIB, "they do not fit");
            assert!(peak(&said) <= BUDGET + BUDGET / 20 + 16 * MIB, "{said}");
        }
    }
}

#[test]
fn allocations_are_as_the_manual_says() {
    let Some(program) = arrays() else { return };
    for (setting, engine) in everywhere().into_iter().filter(|(setting, _)| *setting == Setting::Plain) {
        for what in ["heap", "maps", "threads"] {
            Ground::new(engine).check(setting, &program, &[what, DATA]);
        }
    }
}

#[test]
fn the_system_reads_and_writes_what_is_not_there() {
    let Some(program) = arrays() else { return };
    for (setting, engine) in everywhere() {
        let ground = Ground::new(engine);
        let data = ground.path("data");
        let arguments = ["calls", DATA, data.to_str().unwrap()];
        if ground.check(setting, &program, &arguments).is_some() {
            let helped = ground.job.sum(Counter::Calls) > 0;
            assert_eq!(helped, ground.job.engines() == [WindowEngine::Userfault]);
        }
    }
}

/// Array after array is stored faster than a disk takes it.
#[test]
fn a_program_that_allocates_fast_waits_for_the_disk() {
    let Some(program) = arrays() else { return };
    for setting in SETTINGS {
        let ground = Ground::new(None);
        if ground.check(setting, &program, &["rush", "128"]).is_some() {
            let peak = ground.job.resident_peak();
            assert!(peak <= BUDGET + 32 * MIB, "{setting:?}: {peak}");
        }
    }
}

/// Nothing is allocated meanwhile that could wait. On a busy machine the threads that see to it may come late once.
#[test]
fn a_program_that_stores_one_long_array_is_no_faster_than_the_disk() {
    let Some(program) = arrays() else { return };
    for setting in SETTINGS {
        let peak = || {
            let ground = Ground::new(None);
            ground.check(setting, &program, &["one", "256"]).map(|_| ground.job.resident_peak())
        };
        let mut peaks = Vec::new();
        while let Some(peak) = peak() {
            peaks.push(peak);
            if peak <= BUDGET + 32 * MIB {
                break;
            }
            assert!(peaks.len() < 3, "{setting:?}: {peaks:?}");
        }
    }
}

/// A file system that promises more than its medium has: writes fail after the program has gone on.
#[test]
fn a_program_whose_tier_loses_a_write_is_ended() {
    let Some(program) = arrays() else { return };
    // What leaves is written by us, what stays by the system alone. The thread that looks comes too late for some of
    // the short programs.
    let short =
        ["return", "_exit", "quick_exit", "execvp", "vfork"].map(|end| (2 * BUDGET, ["synced", "2", end]));
    let long = [(2 * BUDGET, ["one", "128", ""]), (32 * BUDGET, ["synced", "128", "return"])];
    for (budget, what) in long.into_iter().chain([short; 5].concat()) {
        let ground = Ground::with(budget, None);
        let script = "mount -t tmpfs -o size=36m none \"$1\" && truncate -s 300m \"$1/image\" \
            && mkfs.ext4 -q -F -m 0 -O ^has_journal \"$1/image\" \
            && mount -o loop \"$1/image\" \"$1/../tier\" \
            && chmod 777 \"$1/../tier\" && { cat /dev/zero > \"$1/rest\" 2> \"$1/../said\"; true; } \
            && truncate -s -256k \"$1/rest\" && shift && exec \"$@\"";
        let entered = |rest: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script, "sh"]).arg(ground.path("data")).args(rest);
            command.output()
        };
        if !entered(&["true"]).is_ok_and(|output| output.status.success()) {
            return skipped("a tier that loses writes", "no mkfs.ext4, or no right to mount an image");
        }
        let library = format!("LD_PRELOAD={}", ground.path("library.so").display());
        let words = format!("FOREBAY_MEM={MIB}:{}", ground.path("job").display());
        let output = entered(
            &["env", &library, &words, program.to_str().unwrap()].into_iter().chain(what).collect::<Vec<_>>(),
        )
        .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{what:?}: {:?}\n{errors}", output.status);
        assert!(errors.contains("a write to the tier failed ("), "{what:?}: {errors}");
    }
}

#[test]
fn threads_that_wait_for_data_leave_memory_to_the_others() {
    let Some(program) = arrays() else { return };
    for (setting, engine) in everywhere() {
        Ground::new(engine).check(setting, &program, &["waits", DATA]);
    }
}

#[test]
fn a_program_keeps_the_allocator_that_it_links() {
    let name = "libjemalloc.so.2";
    let asked = Command::new("cc").arg(format!("-print-file-name={name}")).output();
    let found = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    if !found.is_some_and(|path| Path::new(path.trim()).is_absolute()) {
        return skipped("programs with jemalloc", &format!("no {name}"));
    }
    let linked = format!("-l:{name}");
    let Some(program) = built("cc", "arrays.c", &["-O2", "-pthread", "-Wl,--no-as-needed", &linked]) else {
        return;
    };
    for (setting, engine) in everywhere() {
        for what in ["heap", "threads", "forks"] {
            Ground::new(engine).check(setting, &program, &[what, DATA]);
        }
    }
}

/// What is made inside the C library or past it: only the engine that is not asked for has to serve that.
#[test]
fn calls_that_nobody_sees_reach_what_is_not_there() {
    let Some(program) = arrays() else { return };
    for setting in SETTINGS {
        let ground = Ground::new(None);
        let data = ground.path("data");
        ground.check(setting, &program, &["inner", DATA, data.to_str().unwrap()]);
    }
}

#[test]
fn forks_and_signals_are_the_programs_own() {
    let Some(program) = arrays() else { return };
    for (setting, engine) in everywhere() {
        let ground = Ground::new(engine);
        if ground.check(setting, &program, &["forks", DATA]).is_none() {
            continue;
        }
        // Who forks, the child, its child, and the program that the child becomes.
        assert_eq!(ground.job.sum(Counter::Processes), 4);
        Ground::new(engine).check(setting, &program, &["signals", DATA]);
    }
}

#[test]
fn a_program_that_closes_what_it_did_not_open_keeps_its_arrays() {
    let Some(program) = arrays() else { return };
    for (setting, engine) in everywhere().into_iter().filter(|(setting, _)| *setting == Setting::Plain) {
        let ground = Ground::new(engine);
        let data = ground.path("data");
        ground.check(setting, &program, &["closes", DATA, data.to_str().unwrap()]);
    }
}

#[test]
fn processes_share_one_budget() {
    let Some(program) = arrays() else { return };
    let ground = Ground::new(None);
    // The first process itself has no big allocation.
    if ground.check(Setting::Unprivileged, &program, &["share", DATA]).is_some() {
        assert_eq!(ground.job.sum(Counter::Processes), 3);
        assert!(ground.job.sum(Counter::Placed) >= 96 * MIB);
    }
}

#[test]
fn a_fortran_program_outgrows_its_memory() {
    let Some(program) = built("gfortran", "sum.f90", &["-O2"]) else { return };
    for (setting, engine) in everywhere() {
        let ground = Ground::new(engine);
        let data = ground.path("data");
        let exact = engine == Some(WindowEngine::Userfault);
        if ground.check(setting, &program, &[data.to_str().unwrap()]).is_some() && exact {
            assert!(ground.job.sum(Counter::Evicted) > 8 * MIB);
        }
    }
}

#[test]
fn numpy_reads_files_as_an_ordinary_user() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".venv/bin/python");
    if let Some(why) = refused(Command::new(&python).args(["-c", "import numpy"])) {
        return skipped("NumPy in windows", &format!("no NumPy in {}: {why}", python.display()));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/arrays.py");
    for (setting, engine) in everywhere().into_iter().filter(|(setting, _)| *setting != Setting::Unprivileged)
    {
        let ground = Ground::new(engine);
        let data = ground.path("data");
        let arguments = [script.to_str().unwrap(), data.to_str().unwrap(), "16"];
        let exact = engine == Some(WindowEngine::Userfault);
        if let Some(said) = ground.check(setting, &python, &arguments).filter(|_| exact) {
            assert!(ground.job.sum(Counter::Evicted) > 16 * MIB);
            // The interpreter itself, with what it imports.
            let own = 64 * MIB;
            assert!(peak(&said) <= BUDGET + BUDGET / 20 + own, "{said}");
        }
    }
}

/// With the interpreter's own memory in windows: its arenas are as long as the threshold.
#[test]
fn python_forks_with_all_its_memory() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/forks.py");
    for setting in SETTINGS {
        let ground = Ground::new(None);
        let data = ground.path("data");
        let arguments = [script.to_str().unwrap(), data.to_str().unwrap()];
        if ground.check(setting, Path::new("/usr/bin/python3"), &arguments).is_some() {
            assert!(ground.job.sum(Counter::Processes) >= 4, "children have their parent's memory");
        }
    }
}

/// More processes than the budget has parts for: the engine that needs no least part serves all, the other one says so
/// in time, to who forks.
#[test]
fn many_children_share_a_small_budget_or_are_refused() {
    let script = "import os, sys, warnings\n\
        warnings.simplefilter('ignore')\n\
        block = bytearray(b'x') * (2 << 20)\n\
        read, write = os.pipe()\n\
        made = []\n\
        for number in range(8):\n\
        \x20   try:\n\
        \x20       child = os.fork()\n\
        \x20   except OSError as error:\n\
        \x20       made.append(error.errno)\n\
        \x20       break\n\
        \x20   if child == 0:\n\
        \x20       os.close(write)\n\
        \x20       os.read(read, 1)\n\
        \x20       os._exit(3 if block.count(b'x') == 2 << 20 else 4)\n\
        \x20   made.append(child)\n\
        os.close(write)\n\
        ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in made if child != 12]\n\
        print(len(ends), set(ends), 12 in made)\n";
    for (setting, engine) in everywhere().into_iter().filter(|(setting, _)| *setting != Setting::Refused) {
        let ground = Ground::with(MIB, engine);
        let ran = ground.run(setting, Path::new("/usr/bin/python3"), &["-c", script]);
        let Some(ran) = ran else { continue };
        let (said, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        match engine {
            None => assert_eq!((said.trim(), &*errors), ("8 {3} False", ""), "{setting:?}"),
            Some(_) => {
                assert!(said.trim().ends_with("{3} True"), "{setting:?}: {said}{errors}");
                assert!(errors.contains("too small for so many processes"), "{errors}");
            }
        }
    }
}

/// Names of functions that a library has for others.
fn exported(library: &Path) -> Option<Vec<String>> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    // A version may stand behind a name: malloc@@GLIBC_2.2.5.
    let name = |line: &str| Some(line.split_whitespace().last()?.split('@').next()?.to_string());
    Some(text.lines().filter_map(name).collect())
}

#[test]
fn what_the_library_takes_over_is_the_c_librarys() {
    let asked = Command::new("cc").arg("-print-file-name=libc.so.6").output();
    let found = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let known = found.and_then(|path| exported(Path::new(path.trim())));
    let Some(known) = known else {
        return skipped("the library's symbols", "no nm, or no cc that says where the C library lies");
    };
    let own = exported(&library()).unwrap();
    assert!(own.contains(&"malloc".to_string()) && known.len() > 1000, "{own:?}");
    // Anything else would take the place of a program's own.
    let others: Vec<_> = own.iter().filter(|name| !known.contains(name)).collect();
    assert!(others.is_empty(), "{others:?}");
}
