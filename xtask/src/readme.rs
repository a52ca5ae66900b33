//! Runs what the documents show: the programs of README.md and of the page on mapped memory, one per language, and the
//! commands of the five-minute page.
//!
//! The blocks are taken from the documents as they stand, so what a reader copies is what was run. Each run has a
//! folder and a root of spaces of its own, both gone afterwards.

use crate::packages::{cargo, target_folder, TOGETHER};
use crate::stages::run;
use crate::{Outcome, Stop};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Seconds for one block; each takes one or two, and building the Rust one some more.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes two programs that run one after the other those of one run.
const RUN: &str = "FOREBAY_RUN=/run/readme";

/// What the README's programs print: they all send the same three steps.
const PRINTED: &str = "3 steps, mean 2.0";

/// A folder that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Scratch, Stop> {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("spaces"))
            .map_err(|e| Stop::Failed(format!("{}: {e}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The blocks of one language, in order.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(word)) if word == language => open = Some(String::new()),
            (None, _) => {}
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    found
}

fn read(root: &Path, path: &str) -> Result<String, Stop> {
    std::fs::read_to_string(root.join(path)).map_err(|e| Stop::Failed(format!("{path}: {e}")))
}

/// What builds an example as part of the workspace, for which its crates are compiled already, and what runs it.
fn example(release: &Path, name: &str) -> (String, String) {
    let build = TOGETHER.join(" ");
    let build = format!("\"$CARGO\" build --release --quiet {build} --example {name}");
    (build, release.join("examples").join(name).display().to_string())
}

/// The one program of each language in README.md.
pub fn programs(root: &Path) -> Outcome {
    let text = read(root, "README.md")?;
    let scratch = Scratch::new("readme")?;
    let release = target_folder(root).join("release");
    let library =
        format!("-I{} -L{} -lforebay", root.join("crates/capi/include").display(), release.display());
    let module = root.join("crates/capi/fortran/forebay.f90");
    let python = crate::python::python(root);
    let (build, run) = example(&release, "heat");
    let fortran = format!("gfortran {} heat.f90 {library} -o heat_f", module.display());
    let languages = [
        ("python", "heat.py", format!("{} heat.py", python.display())),
        ("c", "heat.c", format!("cc -Wall -Werror heat.c {library} -o heat_c && ./heat_c")),
        (
            "fortran",
            "heat.f90",
            format!("{fortran} && {RUN} ./heat_f && {RUN} {} reader.py", python.display()),
        ),
        ("rust", "heat.rs", format!("cd {} && {build} && {run}", root.display())),
    ];
    let own = read(root, "crates/space/examples/heat.rs")?;
    for (language, file, script) in languages {
        let [program] = blocks(&text, language).try_into().map_err(|b: Vec<String>| {
            Stop::Failed(format!("README.md has {} blocks of {language}, not one", b.len()))
        })?;
        if language == "rust" && !own.ends_with(&program) {
            return Err(Stop::Failed("crates/space/examples/heat.rs is not the program of README.md".into()));
        }
        if language == "fortran" && !Path::new("/usr/bin/gfortran").exists() {
            println!("   gfortran is not installed; the Fortran program was not run");
            continue;
        }
        write(&scratch.0.join(file), &program)?;
        // The Fortran program only writes; Python reads what it sent, as a program of the same run.
        let reader = blocks(&text, "python").concat();
        let reader = reader.split_once("\n\n").map_or("", |(_, rest)| rest);
        let loop_ = reader.find("with fb.open(\"heat\") as").map_or("", |at| &reader[at..]);
        write(&scratch.0.join("reader.py"), &format!("import forebay as fb\n{loop_}"))?;
        println!("   {language}");
        let output = shell(root, &scratch, &script)?;
        if !output.contains(PRINTED) {
            return Err(Stop::Failed(format!(
                "README.md, {language}: printed `{}`, not `{PRINTED}`",
                output.trim()
            )));
        }
    }
    Ok(())
}

/// The one program of each language on the page on mapped memory. They share a file, in which each counts its run.
pub fn mapped_memory(root: &Path) -> Outcome {
    const PAGE: &str = "docs/src/guide/mapped-memory.md";
    let text = read(root, PAGE)?;
    let scratch = Scratch::new("mapped")?;
    let library = format!(
        "-I{} -L{} -lforebay",
        root.join("crates/capi/include").display(),
        target_folder(root).join("release").display()
    );
    let module = root.join("crates/capi/fortran/forebay.f90");
    let (build, run) = example(&target_folder(root).join("release"), "count_runs");
    let languages = [
        ("python", "count.py", format!("{} count.py", crate::python::python(root).display())),
        ("c", "count.c", format!("cc -Wall -Werror count.c {library} -o count_c && ./count_c")),
        (
            "fortran",
            "count.f90",
            format!("gfortran {} count.f90 {library} -o count_f && ./count_f", module.display()),
        ),
        ("rust", "count.rs", format!("(cd {} && {build}) && {run}", root.display())),
    ];
    let own = read(root, "crates/tier/examples/count_runs.rs")?;
    let mut runs = 0;
    for (language, file, script) in languages {
        let [program] = blocks(&text, language).try_into().map_err(|b: Vec<String>| {
            Stop::Failed(format!("{PAGE} has {} blocks of {language}, not one", b.len()))
        })?;
        if language == "rust" && !own.ends_with(&program) {
            return Err(Stop::Failed(format!("count_runs.rs is not the program of {PAGE}")));
        }
        if language == "fortran" && !Path::new("/usr/bin/gfortran").exists() {
            println!("   gfortran is not installed; the Fortran program was not run");
            continue;
        }
        write(&scratch.0.join(file), &program)?;
        println!("   {language}");
        let output = shell(root, &scratch, &script)?;
        runs += 1;
        if !output.starts_with(&format!("run {runs} on ")) {
            return Err(Stop::Failed(format!("{PAGE}, {language}: run {runs} printed `{}`", output.trim())));
        }
    }
    Ok(())
}

/// Every command of the five-minute page, in order, in one shell that stops at the first failure.
pub fn five_minutes(root: &Path) -> Outcome {
    let text = read(root, "docs/src/guide/five-minutes.md")?;
    let scratch = Scratch::new("five")?;
    shell(root, &scratch, &blocks(&text, "sh").concat()).map(drop)
}

fn write(path: &Path, text: &str) -> Outcome {
    std::fs::write(path, text).map_err(|e| Stop::Failed(format!("{}: {e}", path.display())))
}

/// Runs a script in the scratch folder with the built programs on the path; what it printed.
fn shell(root: &Path, scratch: &Scratch, script: &str) -> Result<String, Stop> {
    let release = target_folder(root).join("release");
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(&scratch.0);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
        command.env_remove(name);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", release.display(), root.join(".venv/bin").display());
    command.env("PATH", path).env("LD_LIBRARY_PATH", &release).env("CARGO", cargo());
    command.env("FOREBAY_DIR", scratch.0.join("spaces")).env("PYTHONDONTWRITEBYTECODE", "1");
    let ran = run(&mut command, LIMIT);
    match ran.failure {
        None => Ok(ran.output),
        Some(why) => Err(Stop::Failed(format!("{}: {why}", script.lines().next().unwrap_or_default()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_by_language() {
        let text = "a\n```sh\nb\nc\n```\n```python\nd\n```\n```sh\ne\n```\n";
        assert_eq!(blocks(text, "sh"), ["b\nc\n", "e\n"]);
        assert_eq!(blocks(text, "python"), ["d\n"]);
        assert!(blocks(text, "c").is_empty());
    }
}
