//! Links of the Markdown documents: the file and the heading exist, and the book's summary lists every page; so do the
//! files of the tree that the text names.
//!
//! Only links inside the project are looked at; nothing is fetched.

use crate::tree::File;

/// What names of files in the tree begin with.
const TOP: [&str; 6] = ["crates/", "docs/", "examples/", "lab/", "simulation/", "xtask/"];

/// Links whose file or heading is not there.
pub fn links(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.extension() == "md") {
        for (number, line) in prose(&file.text) {
            for target in targets(&line) {
                if let Some(what) = broken(file, target, files) {
                    findings.push(format!("{}:{number}: {what}", file.path));
                }
            }
        }
    }
    findings
}

/// Files of the tree that a document names between backticks, and that are not there. A part in capitals stands for any
/// name.
pub fn named_files(files: &[File]) -> Vec<String> {
    let is_top = |path: &str| TOP.iter().any(|top| path.starts_with(top));
    let is_any = |path: &str| {
        path.split(['/', '.', '-']).any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()))
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.extension() == "md" && f.name() != "CHANGELOG.md") {
        for (number, line) in file.text.lines().enumerate() {
            let spans = line.split('`').skip(1).step_by(2);
            let paths = spans.filter(|span| is_top(span) && !span.contains([' ', '*', '{']) && !is_any(span));
            for path in paths.filter(|path| path.rsplit('/').next().is_some_and(|name| name.contains('.'))) {
                if !files.iter().any(|f| f.path == *path) {
                    findings.push(format!("{}:{}: names {path}, which is not there", file.path, number + 1));
                }
            }
        }
    }
    findings
}

/// Every page under docs/src stands in SUMMARY.md.
pub fn summary(files: &[File]) -> Vec<String> {
    let Some(summary) = files.iter().find(|f| f.path == "docs/src/SUMMARY.md") else { return Vec::new() };
    let listed: Vec<&str> = summary.text.lines().flat_map(targets).collect();
    let pages = files
        .iter()
        .filter(|f| f.path.starts_with("docs/src/") && f.extension() == "md" && f.name() != "SUMMARY.md");
    let lost = pages.filter(|f| !listed.contains(&&f.path["docs/src/".len()..]));
    lost.map(|f| format!("docs/src/SUMMARY.md: does not list {}", f.path)).collect()
}

/// The lines outside fenced blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            // What stands between backticks is text, not a link.
            let spoken: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
            lines.push((number + 1, spoken));
        }
    }
    lines
}

/// The targets of `[text](target)`.
fn targets(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

fn broken(from: &File, target: &str, files: &[File]) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let wanted = if path.is_empty() { from.path.clone() } else { join(from.folder(), path) };
    let folder = format!("{}/", wanted.trim_end_matches('/'));
    let page = files.iter().find(|f| f.path == wanted);
    if page.is_none() && !files.iter().any(|f| f.path.starts_with(&folder)) {
        return Some(format!("links to {target}, which is not there"));
    }
    let missing = |page: &File| {
        page.extension() == "md" && !anchor.is_empty() && !anchors(&page.text).contains(&anchor.to_string())
    };
    page.filter(|page| missing(page)).map(|_| format!("links to {target}, and there is no such heading"))
}

/// The folder and a relative path as one path from the root.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Headings as anchors: lower case, blanks as hyphens, punctuation dropped.
fn anchors(text: &str) -> Vec<String> {
    let headings =
        text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(anchor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Vec<File> {
        files.iter().map(|(path, text)| File { path: path.to_string(), text: text.to_string() }).collect()
    }

    #[test]
    fn broken_links_are_found() {
        let files = tree(&[
            (
                "README.md",
                "[a](docs/a.md#the-words) [b](docs/no.md) `[c](no)` [d](http://x.y)\n```\n[e](no)\n```\n",
            ),
            ("docs/a.md", "# A\n## The words!\n[back](../README.md) [no](#nowhere) [folder](../docs)\n"),
        ]);
        let found = links(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("docs/no.md") && found[1].contains("#nowhere"), "{found:?}");
    }

    #[test]
    fn named_files_are_there() {
        let files = tree(&[
            (
                "README.md",
                "`crates/a/src/lib.rs` `crates/a/src/no.rs` `crates/a/src/NAME.rs` `crates/*.rs` `a/no.rs`\n",
            ),
            ("crates/a/src/lib.rs", ""),
        ]);
        assert_eq!(named_files(&files), ["README.md:1: names crates/a/src/no.rs, which is not there"]);
    }

    #[test]
    fn a_page_outside_the_summary_is_found() {
        let files = tree(&[
            ("docs/src/SUMMARY.md", "- [A](guide/a.md)\n"),
            ("docs/src/guide/a.md", ""),
            ("docs/src/b.md", ""),
        ]);
        assert_eq!(summary(&files), ["docs/src/SUMMARY.md: does not list docs/src/b.md"]);
    }
}
