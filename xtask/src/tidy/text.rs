//! Rules that hold for any text: a header, no notes to oneself, short lines, nothing of one machine, the terms of the
//! field.

use super::{is_recorded, is_source};
use crate::tree::File;

/// Longest line of a source file. rustfmt holds code to 110; comments and tables may be a little wider.
const LINE_CHARS_MAX: usize = 120;
/// Fortran's own limit; compilers cut what is longer.
const FORTRAN_CHARS_MAX: usize = 132;
/// Fewer characters than this say nothing about a file.
const HEADER_CHARS_MIN: usize = 20;

/// Every source file begins with a comment that says what it is.
pub fn headers(files: &[File]) -> Vec<String> {
    let wanting = files.iter().filter(|f| needs_header(f) && !f.text.trim().is_empty() && !has_header(f));
    wanting.map(|f| format!("{}:1: does not begin with a comment that says what it is", f.path)).collect()
}

fn needs_header(file: &File) -> bool {
    let toml = file.extension() == "toml" && file.name() != "Cargo.toml";
    (is_source(file) || toml) && !is_recorded(file)
}

fn has_header(file: &File) -> bool {
    let first = file.text.lines().find(|line| !line.starts_with("#!/")).unwrap_or_default().trim_start();
    let marks: &[&str] = match file.extension() {
        "rs" => &["//!"],
        "py" | "pyi" => &["\"\"\"", "#", "r\"\"\""],
        "c" | "h" => &["/*", "//"],
        "f90" => &["!"],
        _ => &["#"],
    };
    let Some(mark) = marks.iter().find(|mark| first.starts_with(**mark)) else { return false };
    // A lone `/*` or `"""` line is fine when the sentence follows on the next one.
    let rest: String = file.text.lines().skip_while(|line| line.starts_with("#!/")).take(3).collect();
    rest.trim_start()[mark.len()..].trim().chars().count() >= HEADER_CHARS_MIN
}

/// No debugging macros and no notes to oneself in source files.
pub fn leftovers(files: &[File]) -> Vec<String> {
    // Written in halves, so that this file does not find itself.
    let words = [
        concat!("db", "g!("),
        concat!("to", "do!("),
        concat!("FIX", "ME"),
        concat!("TO", "DO"),
        concat!("X", "XX"),
    ];
    find(files, is_source, |line| {
        let word = words.iter().find(|word| has_word(line, word))?;
        Some(format!("`{word}` is a note to oneself: do it, or write an issue"))
    })
}

/// Does `word` stand in the line with no letter, digit or underscore before it or after it?
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let closed = word.ends_with('(');
    line.match_indices(word).any(|(at, _)| {
        !part(line[..at].chars().next_back()) && (closed || !part(line[at + word.len()..].chars().next()))
    })
}

/// No line of a source file is too long to be read beside another one.
pub fn long_lines(files: &[File]) -> Vec<String> {
    let fortran = |f: &File| is_source(f) && f.extension() == "f90";
    let mut findings = longer(files, |f| is_source(f) && !fortran(f), LINE_CHARS_MAX);
    findings.extend(longer(files, fortran, FORTRAN_CHARS_MAX));
    findings
}

fn longer(files: &[File], wanted: impl Fn(&File) -> bool, chars_max: usize) -> Vec<String> {
    find(files, wanted, |line| {
        let chars = line.chars().count();
        (chars > chars_max).then(|| format!("{chars} characters, more than {chars_max}"))
    })
}

/// No absolute path of one machine and no host of a package registry in any text.
pub fn machine_paths(files: &[File]) -> Vec<String> {
    // Written in halves, so that this file does not find itself.
    let parts = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("/tmp/tar", "get-"),
        concat!("crates", ".io"),
        concat!("pypi", ".org"),
        concat!("pythonhosted", ".org"),
        concat!("npmjs", ".org"),
        concat!("deb", ".debian", ".org"),
    ];
    let wanted = |f: &File| f.name() != "Cargo.lock" && !is_recorded(f);
    find(files, wanted, |line| {
        let part = parts.iter().find(|part| line.contains(**part))?;
        Some(format!("`{part}` belongs to one machine or names a package registry"))
    })
}

/// Words that manuals of the field do not use, and what to write instead. In halves, so that this file does not find
/// itself.
const WORDS: &[(&str, &str)] = &[
    (concat!("ro", "om"), "capacity, free space"),
    (concat!("ro", "oms"), "capacity, free space"),
    (concat!("no", "body"), "name the actor: no process, no thread, no rank"),
    (concat!("who", "ever"), "name the actor: the process that, the caller"),
    (concat!("some", "body"), "name the actor: another process, a user"),
    (concat!("every", "body"), "name the actor: all ranks, every process"),
    (concat!("ch", "ore"), "task"),
    (concat!("ch", "ores"), "task"),
    (concat!("dou", "bt"), "caveat, uncertainty"),
    (concat!("pa", "ce"), "execution mode, rate"),
    (concat!("pa", "ces"), "execution modes, rates"),
    (concat!("to be ", "had"), "available"),
    (concat!("give ", "back"), "release, free, return"),
    (concat!("gives ", "back"), "release, free, return"),
    (concat!("gave ", "back"), "release, free, return"),
    (concat!("given ", "back"), "release, free, return"),
    (concat!("giving ", "back"), "release, free, return"),
];

/// Files whose words are not revised: the change log has past entries.
const UNREVISED: &[&str] = &["CHANGELOG.md"];

/// Names that are fixed and contain such a word: an option, fields of the control segment, keys of profiles, traces
/// and records, the user of uid 65534.
const FIXED_NAMES: &[(&str, &str)] = &[
    ("crates/cli/src/mem.rs", concat!("ro", "om")),
    ("crates/cli/tests/cli/plans.rs", concat!("pa", "ce")),
    ("crates/flow/src/record.rs", concat!("pa", "ce")),
    ("crates/flow/src/trace.rs", concat!("pa", "ce")),
    ("crates/profile/src/lib.rs", concat!("dou", "bt")),
    ("crates/profile/src/tier.rs", concat!("dou", "bt")),
    ("crates/space/src/control/layout.rs", concat!("ro", "om")),
    ("crates/space/src/trace.rs", concat!("pa", "ce")),
    ("crates/space/src/upkeep/info.rs", concat!("pa", "ce")),
    ("docs/src/formats/json.md", concat!("pa", "ce")),
    ("docs/src/formats/control.md", concat!("ro", "om")),
    ("docs/src/formats/profile.md", concat!("dou", "bt")),
    ("docs/src/formats/profile.schema.json", concat!("dou", "bt")),
    ("docs/src/guide/mem.md", concat!("ro", "om")),
    ("docs/src/guide/probe.md", concat!("dou", "bt")),
    ("xtask/src/main.rs", concat!("no", "body")),
    ("xtask/src/mem_matrix.rs", concat!("no", "body")),
];

/// The terms of the field instead of words of our own, in every text but samples and recorded inputs.
pub fn terms(files: &[File]) -> Vec<String> {
    let revised = |f: &File| {
        let mut left_out = ["Cargo.lock", "fixtures/"].iter().chain(UNREVISED);
        !left_out.any(|path| f.path.starts_with(path))
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| revised(f)) {
        let is_fixed = |word: &str| FIXED_NAMES.contains(&(file.path.as_str(), word));
        findings.extend(find(
            std::slice::from_ref(file),
            |_| true,
            |line| {
                let line = line.to_lowercase();
                let (word, instead) =
                    WORDS.iter().find(|(word, _)| has_word(&line, word) && !is_fixed(word))?;
                Some(format!("`{word}` is no term of the field; write: {instead}"))
            },
        ));
    }
    findings
}

/// `path:line: finding` for every line of the wanted files in which `look` finds something.
fn find(
    files: &[File],
    wanted: impl Fn(&File) -> bool,
    look: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| wanted(f)) {
        for (number, line) in file.text.lines().enumerate() {
            findings.extend(look(line).map(|what| format!("{}:{}: {what}", file.path, number + 1)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn headers_are_wanted_in_every_language() {
        for (path, bad, good) in [
            ("a.rs", "use std::fs;\n", "//! What this file is, in a sentence.\n"),
            ("a.py", "import os\n", "\"\"\"What this file is, in a sentence.\"\"\"\n"),
            ("a.sh", "#!/bin/sh\nls\n", "#!/bin/sh\n# What this file is, in a sentence.\n"),
            ("a.c", "#include <a.h>\n", "/*\n * What this file is, in a sentence.\n */\n"),
            ("a.f90", "program a\n", "! What this file is, in a sentence.\n"),
            ("a.toml", "[a]\n", "# What this file is, in a sentence.\n"),
            ("a.rs", "//! Short.\n", "//! What this file is, in a sentence.\nfn main() {}\n"),
        ] {
            assert_eq!(headers(&sample(path, bad)).len(), 1, "{path}");
            assert_eq!(headers(&sample(path, good)), Vec::<String>::new(), "{path}");
        }
        assert!(headers(&sample("fixtures/a.py", "import os\n")).is_empty());
        assert!(headers(&sample("crates/a/Cargo.toml", "[package]\n")).is_empty());
    }

    #[test]
    fn notes_to_oneself_are_found_with_their_line() {
        let bad =
            format!("fn a() {{\n    {}x);\n}}\n// {}: later\n", concat!("db", "g!("), concat!("TO", "DO"));
        let findings = leftovers(&sample("a.rs", &bad));
        assert_eq!(findings.len(), 2);
        assert!(findings[0].starts_with("a.rs:2:") && findings[1].starts_with("a.rs:4:"), "{findings:?}");
        assert!(leftovers(&sample("a.rs", concat!("TO", "DOS and MASTO", "DON"))).is_empty());
    }

    #[test]
    fn a_long_line_is_found() {
        assert_eq!(long_lines(&sample("a.rs", &format!("//{}", "é".repeat(119)))).len(), 1);
        assert!(long_lines(&sample("a.rs", &format!("//{}", "é".repeat(118)))).is_empty());
        assert!(long_lines(&sample("a.md", &"x".repeat(500))).is_empty());
    }

    #[test]
    fn paths_of_a_machine_and_registries_are_found() {
        assert_eq!(machine_paths(&sample("a.md", concat!("see /ho", "me/me/a"))).len(), 1);
        assert_eq!(machine_paths(&sample("a.toml", concat!("index = \"https://crates", ".io\""))).len(), 1);
        assert!(machine_paths(&sample("Cargo.lock", concat!("crates", ".io"))).is_empty());
    }

    #[test]
    fn words_that_are_no_terms_are_found() {
        let bad =
            concat!("No ro", "om.\nIt is given ", "back.\nNo", "body's file.\nclassrooms and headroom\n");
        let findings = terms(&sample("docs/a.md", bad));
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].starts_with("docs/a.md:1:") && findings[2].starts_with("docs/a.md:3:"));
        assert!(terms(&sample("fixtures/a.md", bad)).is_empty());
        assert!(terms(&sample(UNREVISED[0], bad)).is_empty());
        let (path, word) = FIXED_NAMES[0];
        assert!(terms(&sample(path, word)).is_empty());
        assert_eq!(terms(&sample(path, bad)).len(), 2);
    }
}
