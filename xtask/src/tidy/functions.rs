//! The ratchet on long functions: a function fits on a screen, and the exceptions only become fewer and shorter.
//!
//! `xtask/long-functions.txt` lists the exceptions, one a line: length, path, name. A longer function, or one that
//! is not in the list, is a finding; so is an entry that is longer than the function it names. `tidy --bless`
//! lowers and removes entries and never adds one: adding is done by hand, where a reviewer sees it.

use super::is_recorded;
use crate::blank::blank;
use crate::tree::File;
use crate::Stop;
use std::collections::BTreeMap;
use std::path::Path;

/// Longest function without an entry, from its `fn` line to its closing brace: what fits on a screen.
const FUNCTION_LINES_MAX: usize = 70;

const LIST: &str = "xtask/long-functions.txt";

/// Lengths by path and name. Of several functions with one name in a file the longest counts.
pub type Lengths = BTreeMap<(String, String), usize>;

/// The exceptions as listed.
pub fn listed(root: &Path) -> Lengths {
    parse(&std::fs::read_to_string(root.join(LIST)).unwrap_or_default())
}

fn parse(text: &str) -> Lengths {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let lines: usize = words.next()?.parse().ok()?;
        Some(((words.next()?.to_string(), words.next()?.to_string()), lines))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(entry).collect()
}

/// Functions that are too long, and entries that are out of date.
pub fn ratchet(files: &[File], listed: &Lengths) -> Vec<String> {
    let long = long_functions(files);
    let mut findings = Vec::new();
    for ((path, name), lines) in &long {
        match listed.get(&(path.clone(), name.clone())) {
            None => {
                findings.push(format!("{path}: {name} has {lines} lines, more than {FUNCTION_LINES_MAX}"))
            }
            Some(allowed) if lines > allowed => {
                findings.push(format!("{path}: {name} grew from {allowed} to {lines} lines"));
            }
            Some(allowed) if lines < allowed => {
                findings.push(format!("{LIST}: {path} {name} can be lowered (--bless)"))
            }
            Some(_) => {}
        }
    }
    let gone = listed.keys().filter(|key| !long.contains_key(key));
    findings.extend(gone.map(|(path, name)| format!("{LIST}: {path} {name} can be removed (--bless)")));
    findings
}

/// Lowers and removes entries of the list; never adds or raises one.
pub fn bless(root: &Path, files: &[File]) -> Result<(), Stop> {
    let lowered = lower(&listed(root), &long_functions(files));
    let mut text =
        String::from("# Functions longer than the limit of `cargo xtask tidy`: lines, path, name.\n");
    text.push_str("# This list only shrinks: `cargo xtask tidy --bless` lowers and removes entries.\n");
    for ((path, name), lines) in &lowered {
        text.push_str(&format!("{lines} {path} {name}\n"));
    }
    std::fs::write(root.join(LIST), text).map_err(|e| Stop::Failed(format!("cannot write {LIST}: {e}")))
}

fn lower(listed: &Lengths, long: &Lengths) -> Lengths {
    let entry = |(key, allowed): (&(String, String), &usize)| {
        long.get(key).map(|lines| (key.clone(), *lines.min(allowed)))
    };
    listed.iter().filter_map(entry).collect()
}

fn long_functions(files: &[File]) -> Lengths {
    let mut lengths = Lengths::new();
    for file in files.iter().filter(|f| !is_recorded(f)) {
        let functions = match file.extension() {
            "rs" => rust_functions(&file.text),
            "py" => python_functions(&file.text),
            _ => Vec::new(),
        };
        for (name, lines) in functions.into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX) {
            let longest = lengths.entry((file.path.clone(), name)).or_insert(0);
            *longest = lines.max(*longest);
        }
    }
    lengths
}

/// Name and length of every function with a body.
fn rust_functions(text: &str) -> Vec<(String, usize)> {
    let code = blank(text);
    let mut found = Vec::new();
    let mut open: Vec<(String, usize, usize)> = Vec::new();
    let mut waiting: Option<(String, usize)> = None;
    let (mut depth, mut brackets) = (0usize, 0usize);
    for (number, line) in code.lines().enumerate() {
        let start = name_after_fn(line);
        let from = start.as_ref().map_or(0, |(at, _)| *at);
        for (at, c) in line.char_indices() {
            if let Some((_, name)) = start.as_ref().filter(|_| at == from) {
                waiting = Some((name.clone(), number));
            }
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                ';' if brackets == 0 => waiting = None,
                '{' => {
                    depth += 1;
                    open.extend(waiting.take().map(|(name, first)| (name, first, depth)));
                }
                '}' => {
                    if open.last().is_some_and(|(_, _, level)| *level == depth) {
                        found.extend(open.pop().map(|(name, first, _)| (name, number - first + 1)));
                    }
                    depth = depth.saturating_sub(1);
                }
                _ => {}
            }
        }
    }
    found
}

/// Place of the word `fn` and the name behind it; a function pointer type has no name.
fn name_after_fn(line: &str) -> Option<(usize, String)> {
    let at = line
        .match_indices("fn ")
        .map(|(at, _)| at)
        .find(|at| !line[..*at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_'))?;
    let name: String = line[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some((at, name))
}

/// Name and length of every `def`, by indentation.
fn python_functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let head = line.trim_start().trim_start_matches("async ");
        let Some(name) = head.strip_prefix("def ").and_then(|rest| rest.split('(').next()) else { continue };
        let body = lines[number + 1..].iter().enumerate();
        let inside = body.take_while(|(_, l)| {
            l.trim().is_empty() || indent(l) > indent(line) || l.trim_start().starts_with(')')
        });
        let last = inside.filter(|(_, l)| !l.trim().is_empty()).map(|(n, _)| n + 1).last().unwrap_or(0);
        found.push((name.to_string(), last + 1));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn long_rust(lines: usize) -> String {
        let body = "        f(1);\n".repeat(lines - 4);
        format!("impl A {{\n    fn long<F: Fn(usize)>(\n        f: F,\n    ) {{\n{body}    }}\n}}\n")
    }

    #[test]
    fn a_function_is_measured_from_fn_to_brace() {
        assert_eq!(rust_functions(&long_rust(71)), [("long".to_string(), 71)]);
        let nested = "fn a() {\n    fn b() {\n    }\n    let c = [0; 3];\n}\n\
            trait T {\n    fn d();\n    fn e() {}\n}\n";
        let expected = [("b".to_string(), 2), ("a".to_string(), 5), ("e".to_string(), 1)];
        assert_eq!(rust_functions(nested), expected);
    }

    #[test]
    fn a_python_function_ends_where_the_indentation_does() {
        let text = "def a(\n    b,\n):\n    c\n\n    d\n\n\nclass E:\n    def f(self):\n        pass\n";
        assert_eq!(python_functions(text), [("a".to_string(), 6), ("f".to_string(), 2)]);
    }

    #[test]
    fn the_list_only_shrinks() {
        let files = sample("a.rs", &long_rust(80));
        let entry = |lines| parse(&format!("# comment\n{lines} a.rs long\n"));
        assert_eq!(ratchet(&files, &Lengths::new()), ["a.rs: long has 80 lines, more than 70"]);
        assert_eq!(ratchet(&files, &entry(79)), ["a.rs: long grew from 79 to 80 lines"]);
        assert_eq!(ratchet(&files, &entry(80)), Vec::<String>::new());
        assert_eq!(ratchet(&files, &entry(81)).len(), 1);
        assert_eq!(ratchet(&sample("a.rs", ""), &entry(81)).len(), 1);
        assert_eq!(lower(&entry(90), &long_functions(&files)), entry(80));
        assert_eq!(lower(&entry(75), &long_functions(&files)), entry(75));
        assert_eq!(lower(&Lengths::new(), &long_functions(&files)), Lengths::new());
    }
}
