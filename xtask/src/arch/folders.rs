//! The folders of a crate and the arrows between them, against the table `| rank | crate/folder |` in ARCHITECTURE.md.
//!
//! A folder may use only folders of a lower rank of its crate. Files at the top of a crate have one row together,
//! `crate/*.rs`, or a row each; `lib.rs` and `main.rs`, which name everything, have none, and a file `x.rs` beside a
//! folder `x/` is of the folder. Of a crate that the table names each folder has a row, and each row its folder.
//!
//! Arrows are read from the text: trees of `use` and paths that begin with `crate`, `self` or `super`; a name that
//! `lib.rs` exports stands for where it comes from. Comments, literals and tests are left out. Not seen: what a macro
//! writes, and methods that are called on a value of another folder.

use crate::blank::blank;
use crate::tree::File;
use std::collections::{BTreeMap, BTreeSet};

/// Ranks of the folders of each crate that is listed.
type Table = BTreeMap<String, BTreeMap<String, u32>>;

/// Files at the top of a crate, together.
const TOP: &str = "*.rs";

/// Words with which an item begins, after its attributes and its visibility.
const ITEMS: [&str; 15] = [
    "fn",
    "mod",
    "impl",
    "use",
    "struct",
    "enum",
    "union",
    "const",
    "static",
    "trait",
    "type",
    "unsafe",
    "async",
    "extern",
    "macro_rules",
];

/// How the attributes begin by which something is compiled for tests alone.
const TESTS: [&[&str]; 2] =
    [&["#", "[", "cfg", "(", "test", ")", "]"], &["#", "[", "cfg", "(", "all", "(", "test", ","]];

/// Arrows and rows that are wrong, of the crates that the table in this text lists.
pub fn findings(text: &str, files: &[File]) -> Vec<String> {
    let table = table(text);
    if table.is_empty() {
        return vec!["ARCHITECTURE.md: no table `| rank | crate/folder |` found".to_string()];
    }
    table.iter().flat_map(|(name, rows)| Crate::read(name, rows, files).compare(rows)).collect()
}

/// The rows of the table of folders.
fn table(text: &str) -> Table {
    let start =
        text.lines().skip_while(|line| !(line.starts_with("| rank") && line.contains("| crate/folder")));
    let mut table = Table::new();
    for line in start.skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let named =
            cells.get(1).and_then(|cell| cell.split('`').nth(1)).and_then(|name| name.split_once('/'));
        if let (Some((of, folder)), Some(Ok(rank))) = (named, cells.first().map(|cell| cell.parse())) {
            table.entry(of.to_string()).or_default().insert(folder.to_string(), rank);
        }
    }
    table
}

/// One file that ships.
struct Source {
    path: String,
    /// Its folder, as rows name it; None: it may use everything.
    part: Option<String>,
    module: Vec<String>,
    tokens: Vec<String>,
}

/// The sources of one crate.
struct Crate {
    name: String,
    sources: Vec<Source>,
    /// The folder of each module at the top of the crate.
    parts: BTreeMap<String, String>,
    /// Names that `lib.rs` exports, with the module at the top that they come from.
    exports: BTreeMap<String, String>,
}

impl Crate {
    fn read(name: &str, rows: &BTreeMap<String, u32>, files: &[File]) -> Crate {
        let begin = format!("crates/{name}/src/");
        let mut sources = Vec::new();
        let mut tests: Vec<Vec<String>> = Vec::new();
        for file in files.iter().filter(|file| file.extension() == "rs") {
            let Some(rest) = file.path.strip_prefix(&begin) else { continue };
            let module = module_of(rest);
            let (tokens, test_modules) = without_tests(&tokens(&blank(&file.text)));
            tests.extend(test_modules.into_iter().map(|test| [module.clone(), vec![test]].concat()));
            sources.push(Source { path: file.path.clone(), part: None, module, tokens });
        }
        sources.retain(|source| !tests.iter().any(|test| source.module.starts_with(test)));
        let folders: BTreeSet<String> = sources
            .iter()
            .filter_map(|source| Some(source.path[begin.len()..].split_once('/')?.0.into()))
            .collect();
        let part = |module: &[String]| {
            let first = module.first().filter(|first| *first != "main")?;
            let own = format!("{first}.rs");
            Some(match () {
                () if folders.contains(first) => first.clone(),
                () if rows.contains_key(&own) || !rows.contains_key(TOP) => own,
                () => TOP.to_string(),
            })
        };
        sources.iter_mut().for_each(|source| source.part = part(&source.module));
        let parts =
            sources.iter().filter_map(|s| Some((s.module.first()?.clone(), s.part.clone()?))).collect();
        let mut read = Crate { name: name.to_string(), sources, parts, exports: BTreeMap::new() };
        read.exports = read.exported();
        read
    }

    /// What `lib.rs` names of its own modules.
    fn exported(&self) -> BTreeMap<String, String> {
        let root = self.sources.iter().filter(|source| source.module.is_empty());
        let used = root.flat_map(|source| uses(&source.tokens));
        let own = used.filter_map(|(leaf, name)| {
            let from = leaf.iter().find(|word| !["crate", "self"].contains(&word.as_str()))?;
            self.parts.contains_key(from).then(|| (name, from.clone()))
        });
        own.collect()
    }

    /// The folder that a path from the root of the crate leads to; None: what `lib.rs` takes from elsewhere.
    fn target(&self, path: &[String]) -> Option<&String> {
        let first = path.first()?;
        self.parts.get(first).or_else(|| self.parts.get(self.exports.get(first)?))
    }

    fn compare(&self, rows: &BTreeMap<String, u32>) -> Vec<String> {
        let name = &self.name;
        let there: BTreeSet<&String> =
            self.sources.iter().filter_map(|source| source.part.as_ref()).collect();
        let lacks = there.iter().filter(|part| !rows.contains_key(**part));
        let mut findings: Vec<String> =
            lacks.map(|part| format!("ARCHITECTURE.md: the table of folders lacks {name}/{part}")).collect();
        let vain = rows.keys().filter(|row| !there.contains(row));
        findings.extend(
            vain.map(|row| format!("ARCHITECTURE.md: the table lists {name}/{row}, which is not there")),
        );
        for source in &self.sources {
            let Some(part) = &source.part else { continue };
            let paths = paths(&source.module, &source.tokens);
            if paths.iter().any(|path| path.first().is_some_and(|first| first == "*")) {
                findings.push(format!("{}: names everything at the top of its crate", source.path));
            }
            let used: BTreeSet<&String> = paths.iter().filter_map(|path| self.target(path)).collect();
            let is_wrong = |used: &&&String| match (rows.get(part), rows.get(**used)) {
                (Some(user), Some(used_rank)) => **used != part && used_rank >= user,
                _ => false,
            };
            findings.extend(used.iter().filter(is_wrong).map(|used| {
                format!("{}: {name}/{part} may not use {name}/{used}: its rank is not lower", source.path)
            }));
        }
        findings
    }
}

/// The module of a file below `src/`, by its path.
fn module_of(rest: &str) -> Vec<String> {
    let mut module: Vec<String> = rest.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
        module.pop();
    }
    module
}

/// Words, `::`, and any other character that is no space, of code without comments and literals.
fn tokens(code: &str) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens: Vec<String> = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(c) = chars.next() {
        let mut token = c.to_string();
        if is_word(c) {
            while let Some(next) = chars.next_if(|next| is_word(*next)) {
                token.push(next);
            }
        } else if c == ':' {
            token.extend(chars.next_if_eq(&':'));
        }
        if !c.is_whitespace() {
            tokens.push(token);
        }
    }
    tokens
}

/// The tokens without what is compiled for tests alone, and the modules among that which are files of their own.
fn without_tests(tokens: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        if !TESTS
            .iter()
            .any(|mark| rest.len() >= mark.len() && rest.iter().zip(*mark).all(|(is, of)| is == of))
        {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        while tokens.get(at).is_some_and(|token| token == "#") {
            at = closed(tokens, at + 1);
        }
        let end = item_end(tokens, at);
        let item = &tokens[at..end];
        if let (Some(mark), Some(last)) = (item.iter().position(|token| token == "mod"), item.last()) {
            modules.extend(item.get(mark + 1).filter(|_| last == ";").cloned());
        }
        at = end;
    }
    (kept, modules)
}

/// Behind the bracket that closes the one at `at`.
fn closed(tokens: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// Behind the item, statement, field or arm that begins at `at`.
fn item_end(tokens: &[String], at: usize) -> usize {
    let word = |at: usize| tokens.get(at).map_or("", String::as_str);
    // Behind `pub`, or `pub(crate)`.
    let named = match (word(at), word(at + 1)) {
        ("pub", "(") => closed(tokens, at + 1),
        ("pub", _) => at + 1,
        _ => at,
    };
    let (is_item, is_use) = (ITEMS.contains(&word(named)), word(named) == "use");
    let mut i = at;
    while let Some(token) = tokens.get(i) {
        match token.as_str() {
            ";" => return i + 1,
            "," if !is_item => return i + 1,
            ")" | "]" | "}" => return i,
            "{" if is_item && !is_use => return closed(tokens, i),
            "(" | "[" | "{" => i = closed(tokens, i),
            _ => i += 1,
        }
    }
    tokens.len()
}

/// The leaves of all trees of `use`, each with the name that it gets.
fn uses(tokens: &[String]) -> Vec<(Vec<String>, String)> {
    let mut leaves = Vec::new();
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| *token == "use") {
        // `use<'a>` of a type names lifetimes.
        if tokens.get(at + 1).is_some_and(|next| next != "<") {
            tree(tokens, at + 1, &[], &mut leaves);
        }
    }
    leaves
}

/// Reads the tree of `use` that begins at `at` behind `prefix`; returns where it ends.
fn tree(
    tokens: &[String],
    mut at: usize,
    prefix: &[String],
    leaves: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at).map_or(";", String::as_str) {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token != "}" && token != ";") {
                    at = tree(tokens, at, &path, leaves);
                    at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
                }
                return at + 1;
            }
            "::" => {}
            "as" => {
                let name = tokens.get(at + 1).cloned().unwrap_or_default();
                leaves.push((path, name));
                return at + 2;
            }
            "," | "}" | ";" => {
                // `a::{self}` is `a`.
                if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                    path.pop();
                }
                let name = path.last().cloned().unwrap_or_default();
                leaves.push((path, name));
                return at;
            }
            word => path.push(word.to_string()),
        }
        at += 1;
    }
}

/// Every path of a file that begins with `crate`, `self` or `super`, from the root of the crate on.
fn paths(module: &[String], tokens: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    // Modules inside the file, with the depth of braces around them.
    let mut inside: Vec<(String, usize)> = Vec::new();
    let mut depth = 0usize;
    let mut at = 0;
    while at < tokens.len() {
        let here = || [module, &inside.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()].concat();
        let next = |by: usize| tokens.get(at + by).map_or("", String::as_str);
        match tokens[at].as_str() {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inside.retain(|(_, begins)| *begins < depth);
            }
            "mod" if next(2) == "{" => inside.push((next(1).to_string(), depth)),
            "use" if next(1) != "<" => {
                let mut leaves = Vec::new();
                let end = tree(tokens, at + 1, &[], &mut leaves);
                found.extend(leaves.iter().filter_map(|(leaf, _)| resolved(&here(), leaf)));
                at = end;
                continue;
            }
            "crate" | "self" | "super" if next(1) == "::" && (at == 0 || tokens[at - 1] != "::") => {
                let words = tokens[at..].chunks(2).take_while(|pair| pair[0] != "{" && pair[0] != "<");
                let mut leaf = Vec::new();
                for pair in words {
                    leaf.push(pair[0].clone());
                    if pair.get(1).is_none_or(|mark| mark != "::") {
                        break;
                    }
                }
                found.extend(resolved(&here(), &leaf));
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// A path as it stands in module `here`, from the root of the crate on; None: it leads out of the crate.
fn resolved(here: &[String], leaf: &[String]) -> Option<Vec<String>> {
    let mut path = match leaf.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => here.to_vec(),
        "super" => here[..here.len().saturating_sub(1)].to_vec(),
        _ => return None,
    };
    for word in &leaf[1..] {
        match word.as_str() {
            "super" => drop(path.pop()),
            "self" => {}
            word => path.push(word.to_string()),
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n\n| rank | crate/folder | what |\n|---|---|---|\n| 0 | `a/low` | x |\n\
        | 1 | `a/*.rs` | x |\n| 2 | `a/high` | x |\n| 2 | `a/beside` | x |\n| 3 | `a/own.rs` | x |\n\nafter\n";

    /// Findings where the file at `path` has this text, beside a file of each folder.
    fn findings_of(path: &str, text: &str) -> Vec<String> {
        let lib = "mod low; mod plain; mod high; mod beside; mod own; pub use high::deep::Shown; pub use log::Lane;";
        let others = [
            ("lib.rs", lib),
            ("low/mod.rs", "mod deep;"),
            ("plain.rs", ""),
            ("high/mod.rs", ""),
            ("beside/mod.rs", ""),
            ("own.rs", ""),
        ];
        let mut files: Vec<File> = others
            .iter()
            .filter(|(other, _)| *other != path)
            .chain([&(path, text)])
            .map(|(path, text)| File { path: format!("crates/a/src/{path}"), text: text.to_string() })
            .collect();
        // Of a crate that is not listed.
        files.push(File { path: "crates/b/src/x/mod.rs".into(), text: "use crate::y::Z;".into() });
        findings(TABLE, &files)
    }

    fn wrong(path: &str, user: &str, used: &str) -> String {
        format!("crates/a/src/{path}: a/{user} may not use a/{used}: its rank is not lower")
    }

    fn none() -> Vec<String> {
        Vec::new()
    }

    #[test]
    fn the_table_is_read() {
        let table = table(TABLE);
        let rows: Vec<(&str, u32)> = table["a"].iter().map(|(row, rank)| (row.as_str(), *rank)).collect();
        assert_eq!(rows, [("*.rs", 1), ("beside", 2), ("high", 2), ("low", 0), ("own.rs", 3)]);
        assert_eq!(findings("nothing", &[]).len(), 1);
    }

    #[test]
    fn arrows_that_point_down_or_stay_inside_are_right() {
        for (path, text) in [
            ("high/x.rs", "use crate::low::deep::X; use crate::plain; use super::y::Z; use crate::high::Y;"),
            ("high/x.rs", "use crate::Lane; use std::fmt; use log::high; fn f() { low::f() }"),
            ("own.rs", "fn f() -> crate::high::X { super::beside::f(); self::g() }"),
            ("plain.rs", "use crate::low; use crate::plain::X;"),
            ("lib.rs", "mod low; mod plain; mod high; mod beside; mod own; use crate::high::X;"),
        ] {
            assert_eq!(findings_of(path, text), none(), "{path}: {text}");
        }
    }

    #[test]
    fn arrows_that_do_not_point_down_are_found() {
        for text in [
            "use crate::high::X;",
            "pub(crate) use crate::high;",
            "use crate::high as other;",
            "use crate::high::*;",
            "fn f() { crate::high::f() }",
            "fn f(x: &crate::high::X<u8>) {}",
            "macro_rules! m { () => { $crate::high::f() } }",
            "use super::high::X;",
            "fn f() { super::high::f() }",
        ] {
            assert_eq!(findings_of("low/mod.rs", text), [wrong("low/mod.rs", "low", "high")], "{text}");
        }
        // Of the same rank; of all files at the top; of one that has a row of its own.
        assert_eq!(findings_of("high/x.rs", "use crate::beside;"), [wrong("high/x.rs", "high", "beside")]);
        assert_eq!(findings_of("plain.rs", "use crate::own::X;"), [wrong("plain.rs", "*.rs", "own.rs")]);
        assert_eq!(findings_of("low/x.rs", "use crate::plain;"), [wrong("low/x.rs", "low", "*.rs")]);
    }

    #[test]
    fn grouped_imports_are_read_to_their_leaves() {
        let text = "use crate::{low::{self, deep::{A, B}}, high::{C, d::*}, plain as p};";
        let high = wrong("low/x.rs", "low", "high");
        assert_eq!(findings_of("low/x.rs", text), [wrong("low/x.rs", "low", "*.rs"), high.clone()]);
        assert_eq!(findings_of("low/x.rs", "use super::{super::{high::{X}}, deep};"), [high]);
        assert_eq!(findings_of("own.rs", text), none());
    }

    #[test]
    fn paths_upwards_are_followed_from_where_they_stand() {
        let found = [wrong("low/deep/x.rs", "low", "high")];
        assert_eq!(findings_of("low/deep/x.rs", "use super::super::super::high::X;"), found);
        assert_eq!(findings_of("low/deep/x.rs", "fn f() { super::super::super::high::f() }"), found);
        // Modules that are named like a folder, and stand elsewhere.
        assert_eq!(
            findings_of("low/deep/x.rs", "use super::super::high::X; use super::high; use self::high;"),
            none()
        );
        assert_eq!(findings_of("low/deep/mod.rs", "use super::high; use self::high;"), none());
        // Out of a module inside the file, and behind it.
        let inside = "mod inner { use super::super::super::high::X; } use super::high::Y;";
        assert_eq!(findings_of("low/deep/mod.rs", inside), [wrong("low/deep/mod.rs", "low", "high")]);
        assert_eq!(findings_of("low/deep/mod.rs", "mod inner { use super::super::high::X; }"), none());
    }

    #[test]
    fn a_name_that_the_crate_exports_stands_for_where_it_comes_from() {
        assert_eq!(findings_of("low/x.rs", "use crate::Shown;"), [wrong("low/x.rs", "low", "high")]);
        assert_eq!(findings_of("low/x.rs", "fn f(_: crate::Shown) {}"), [wrong("low/x.rs", "low", "high")]);
        assert_eq!(findings_of("own.rs", "use crate::{Shown, Lane};"), none());
        let all = findings_of("low/x.rs", "use crate::*;");
        assert_eq!(all, ["crates/a/src/low/x.rs: names everything at the top of its crate"]);
    }

    #[test]
    fn comments_literals_and_tests_are_left_out() {
        for text in [
            "//! See [`crate::high::X`].\n/* use crate::high::X; */\n",
            "const A: &str = \"use crate::high::X;\";",
            "#[cfg(test)]\nmod tests { use crate::high::X; }",
            "#[cfg(test)]\n#[allow(dead_code)]\npub(crate) fn f() { crate::high::f() }",
            "#[cfg(test)]\nuse crate::{high::X, low};\nfn g() {}",
            "fn f() { #[cfg(test)] crate::high::f(); }",
            "struct A { #[cfg(test)] a: crate::high::X, b: u8 }",
        ] {
            assert_eq!(findings_of("low/x.rs", text), none(), "{text}");
        }
        // What follows is none.
        for text in [
            "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::high::X;",
            "struct A { #[cfg(test)] pub(crate) a: u8, b: crate::high::X }",
            "fn f() { #[cfg(test)] g(); crate::high::f() }",
        ] {
            assert_eq!(findings_of("low/x.rs", text), [wrong("low/x.rs", "low", "high")], "{text}");
        }
    }

    #[test]
    fn files_that_only_tests_have_are_left_out() {
        let file = |path: &str, text: &str| File { path: format!("crates/a/src/{path}"), text: text.into() };
        let rest =
            || vec![file("plain.rs", ""), file("high/x.rs", ""), file("beside/x.rs", ""), file("own.rs", "")];
        let mut files = rest();
        files.push(file("lib.rs", "mod low; #[cfg(test)] mod all;"));
        files.push(file("low/mod.rs", "#[cfg(test)]\nmod checks;"));
        files.push(file("low/checks.rs", "use crate::high::X; mod more;"));
        files.push(file("low/checks/more.rs", "use crate::high::X;"));
        files.push(file("all/mod.rs", "use crate::high::X;"));
        assert_eq!(findings(TABLE, &files), none());
        files[5].text = "mod checks;".to_string();
        assert_eq!(findings(TABLE, &files).len(), 2, "no tests any more");
    }

    #[test]
    fn folders_missing_on_either_side_are_found() {
        assert_eq!(findings_of("new/x.rs", ""), ["ARCHITECTURE.md: the table of folders lacks a/new"]);
        // A file beside a folder of its name is of the folder.
        assert_eq!(findings_of("high.rs", "use crate::low::X;"), none());
        let file = |path: &str| File { path: format!("crates/a/src/{path}"), text: String::new() };
        let vain = |row: &str| format!("ARCHITECTURE.md: the table lists a/{row}, which is not there");
        let found = findings(TABLE, &[file("lib.rs"), file("low/mod.rs"), file("high/mod.rs")]);
        assert_eq!(found, [vain("*.rs"), vain("beside"), vain("own.rs")]);
        // Without a row for all of them each file at the top needs its own.
        let files = [file("lib.rs"), file("main.rs"), file("low.rs"), file("own.rs")];
        let table = "| rank | crate/folder |\n|---|---|\n| 0 | `a/own.rs` |\n";
        assert_eq!(findings(table, &files), ["ARCHITECTURE.md: the table of folders lacks a/low.rs"]);
    }
}
