//! Rules that look at Rust code, with comments and literals blanked out: unsafe, idle `matches!`, clocks.

use super::is_recorded;
use crate::blank::blank;
use crate::tree::File;

/// The only places that may hold unsafe code, each with its reason.
const UNSAFE_PATHS: &[&str] = &[
    "crates/tier/src/sys/",        // system calls and mappings, behind safe types
    "crates/tier/src/persist/",    // instructions of persistence and non-temporal copies
    "crates/capi/",                // the boundary to C
    "crates/mem/",                 // the C library's own functions, taken the place of
    "crates/python/src/buffer.rs", // raw memory of ndarrays
];

/// How many lines above an unsafe block its reason may begin, the lines of a comment not counted.
const SAFETY_LINES_MAX: usize = 3;

/// Where clocks may be read: tier owns the clock of traces, space and checkpoint keep
/// deadlines, and programs tell people the time.
/// Left out are the crates whose behaviour may depend on nothing but their input: log and the C boundary.
const CLOCK_PATHS: &[&str] = &[
    "crates/tier/",
    "crates/space/",
    "crates/checkpoint/",
    "crates/cluster/",
    "crates/flow/",
    "crates/cli/",
    "crates/python/",
    "lab/",
    "examples/",
    "simulation/src/command.rs",
    "xtask/",
    "/tests/",
    "/examples/",
];

/// Unsafe code stands only in the listed places, and each block says why it is sound.
pub fn unsafe_code(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in rust(files) {
        let code = blank(&file.text);
        let listed = UNSAFE_PATHS.iter().any(|path| file.path.starts_with(path));
        let lines: Vec<&str> = file.text.lines().collect();
        for (number, line) in code.lines().enumerate() {
            let Some(at) = word(line, "unsafe") else { continue };
            if !listed {
                findings.push(format!("{}:{}: unsafe code outside the listed places", file.path, number + 1));
            } else if opens_block(&code, number, at) && !has_reason(&lines, number) {
                findings.push(format!("{}:{}: unsafe without `SAFETY:` above it", file.path, number + 1));
            }
        }
    }
    findings
}

/// Is the `unsafe` at this place a block or an `impl` (not a function or a type, which document their duties)?
fn opens_block(code: &str, number: usize, at: usize) -> bool {
    let rest: Vec<&str> = code.lines().skip(number).take(2).collect();
    let after = format!("{} {}", &rest[0][at + "unsafe".len()..], rest.get(1).unwrap_or(&""));
    let after = after.trim_start();
    after.starts_with('{') || after.starts_with("impl")
}

fn has_reason(lines: &[&str], number: usize) -> bool {
    let mut code_lines = 0;
    for line in lines[..=number].iter().rev() {
        if line.contains("SAFETY:") || line.contains("# Safety") {
            return true;
        }
        let comment = line.trim_start().starts_with("//");
        code_lines += usize::from(!comment);
        if code_lines > SAFETY_LINES_MAX {
            return false;
        }
    }
    false
}

/// A `matches!` whose result is unused: an assertion was meant.
pub fn idle_matches(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in rust(files) {
        let code = blank(&file.text);
        let mut before = ';';
        let mut offset = 0;
        for (number, line) in code.lines().enumerate() {
            let start = line.trim_start();
            let begins = matches!(before, ';' | '{' | '}');
            if begins && start.starts_with("matches!(") && ends_as_statement(&code[offset..]) {
                findings.push(format!(
                    "{}:{}: the result of this `matches!` is unused; assert it",
                    file.path,
                    number + 1
                ));
            }
            before = line.trim_end().chars().next_back().unwrap_or(before);
            offset += line.len() + 1;
        }
    }
    findings
}

fn ends_as_statement(code: &str) -> bool {
    let mut depth = 0usize;
    for (at, c) in code.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return code[at + 1..].trim_start().starts_with(';'),
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Clocks are not read where the same input must always give the same bytes.
pub fn clocks(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in rust(files) {
        let path = format!("/{}", file.path);
        if CLOCK_PATHS
            .iter()
            .any(|part| path[1..].starts_with(part) || (part.starts_with('/') && path.contains(part)))
        {
            continue;
        }
        let code = blank(&file.text);
        let end = code.find("#[cfg(test)]").unwrap_or(code.len());
        for (number, line) in code[..end].lines().enumerate() {
            if ["Instant", "SystemTime"].iter().any(|clock| word(line, clock).is_some()) {
                findings.push(format!(
                    "{}:{}: reads a clock, in a crate whose bytes must not depend on it",
                    file.path,
                    number + 1
                ));
            }
        }
    }
    findings
}

fn rust(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|f| f.extension() == "rs" && !is_recorded(f))
}

/// Where `wanted` stands in the line as a whole word.
fn word(line: &str, wanted: &str) -> Option<usize> {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(wanted)
        .map(|(at, _)| at)
        .find(|at| !part(line[..*at].chars().next_back()) && !part(line[at + wanted.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn unsafe_outside_the_list_is_found_and_words_alike_are_not() {
        let bad = "#![forbid(unsafe_code)]\n// unsafe\nfn a() {\n    unsafe { b() }\n}\n";
        let findings = unsafe_code(&sample("crates/log/src/a.rs", bad));
        assert_eq!(findings, ["crates/log/src/a.rs:4: unsafe code outside the listed places"]);
    }

    #[test]
    fn an_unsafe_block_needs_a_reason() {
        let path = "crates/tier/src/sys/a.rs";
        let bad = "fn a() {\n    let x = unsafe { b() };\n}\n";
        assert_eq!(unsafe_code(&sample(path, bad)), [format!("{path}:2: unsafe without `SAFETY:` above it")]);
        let good = "fn a() {\n    // SAFETY: b asks for nothing.\n    let x = unsafe { b() };\n}\n";
        assert!(unsafe_code(&sample(path, good)).is_empty());
        let function = "/// Does it.\npub unsafe fn a() {}\ntype F = unsafe extern \"C\" fn();\n";
        assert!(unsafe_code(&sample(path, function)).is_empty());
        assert_eq!(unsafe_code(&sample(path, "\n\n\nunsafe impl Send for A {}\n")).len(), 1);
    }

    #[test]
    fn an_idle_matches_is_found_and_a_used_one_is_not() {
        let idle = "fn a() {\n    b();\n    matches!(c, Some(d) if d(1));\n}\n";
        assert_eq!(idle_matches(&sample("a.rs", idle)).len(), 1);
        let tail = "fn a() -> bool {\n    matches!(c, Some(_))\n}\n";
        assert_eq!(idle_matches(&sample("a.rs", tail)), Vec::<String>::new());
        let used = "fn b() {\n    assert!(\n        matches!(c, None));\n}\n";
        assert_eq!(idle_matches(&sample("a.rs", used)), Vec::<String>::new());
    }

    #[test]
    fn a_clock_outside_tier_is_found() {
        let bad = "use std::time::Instant;\n";
        assert_eq!(clocks(&sample("crates/log/src/a.rs", bad)).len(), 1);
        assert!(clocks(&sample("crates/log/tests/a.rs", bad)).is_empty());
        assert!(clocks(&sample("crates/tier/src/a.rs", bad)).is_empty());
        assert!(
            clocks(&sample("crates/log/src/a.rs", &format!("#[cfg(test)]\nmod t {{ {bad} }}"))).is_empty()
        );
    }
}
