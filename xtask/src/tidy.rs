//! `cargo xtask tidy`: rules on the source tree that no compiler checks.
//!
//! Every rule is a function from files to findings, one line each, `path:line: what is wrong`; each has a unit test
//! with a bad sample, so that a rule that finds nothing is known to look.

mod code;
mod functions;
mod links;
mod named;
mod text;

use crate::tree::{self, File};
use crate::{no_findings, Outcome, Stop};
use std::path::Path;

/// A rule: what it finds in the files.
type Rule = fn(&[File]) -> Vec<String>;

const RULES: &[Rule] = &[
    text::headers,
    text::leftovers,
    text::long_lines,
    text::machine_paths,
    text::terms,
    code::unsafe_code,
    code::idle_matches,
    code::clocks,
    named::named,
    links::links,
    links::named_files,
    links::summary,
];

/// Runs every rule; with `--bless`, first lowers the list of long functions to what is there.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let files = tree::files(root);
    match arguments {
        [] => {}
        ["--bless"] => functions::bless(root, &files)?,
        _ => return Err(Stop::Usage("usage: cargo xtask tidy [--bless]".to_string())),
    }
    let mut findings: Vec<String> = RULES.iter().flat_map(|rule| rule(&files)).collect();
    findings.extend(functions::ratchet(&files, &functions::listed(root)));
    no_findings(findings)
}

/// Is this a source file, in any of the languages of the project?
fn is_source(file: &File) -> bool {
    let known = ["rs", "py", "pyi", "sh", "c", "h", "f90"].contains(&file.extension());
    (known || ["run", "Makefile"].contains(&file.name())) && !is_recorded(file)
}

/// Recorded outputs and samples: they show what programs print, so the rules on style do not hold for them.
fn is_recorded(file: &File) -> bool {
    let path = format!("/{}", file.path);
    ["/fixtures/", "/snapshots/", "/tests/cmd/", "/proptest-regressions/"]
        .iter()
        .any(|part| path.contains(part))
}

#[cfg(test)]
fn sample(path: &str, text: &str) -> Vec<File> {
    vec![File { path: path.to_string(), text: text.to_string() }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_itself_is_tidy() {
        let outcome = run(&tree::root(), &[]);
        assert!(outcome.is_ok(), "run `cargo xtask tidy`");
    }
}
