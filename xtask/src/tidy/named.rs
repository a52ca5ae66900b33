//! No unreferenced Rust file: every one is a target of Cargo or the module of some other file.
//!
//! Cargo ignores a file that no `mod` mentions, so its tests would never run, unnoticed.

use crate::blank::blank;
use crate::tree::File;

/// Files that neither Cargo nor a `mod` knows.
pub fn named(files: &[File]) -> Vec<String> {
    let rust: Vec<&File> =
        files.iter().filter(|f| f.extension() == "rs" && !f.path.starts_with("fixtures/")).collect();
    let manifests: Vec<&File> = files.iter().filter(|f| f.name() == "Cargo.toml").collect();
    let orphan = |file: &&&File| !is_target(file, &manifests) && !has_parent(file, &rust);
    rust.iter()
        .filter(orphan)
        .map(|f| format!("{}: no `mod` and no manifest names this file", f.path))
        .collect()
}

/// Does Cargo find this file by itself, or does a manifest name it?
fn is_target(file: &File, manifests: &[&File]) -> bool {
    let folder = file.folder();
    let parent = folder.rsplit('/').next().unwrap_or_default();
    let above = folder.rsplit('/').nth(1).unwrap_or_default();
    let own_target = ["tests", "examples", "benches", "bin"];
    let root = match file.name() {
        "lib.rs" => parent == "src",
        "main.rs" => parent == "src" || own_target.contains(&above),
        "build.rs" => manifests.iter().any(|m| m.folder() == folder),
        _ => own_target.contains(&parent),
    };
    let by_path = || {
        manifests.iter().any(|m| {
            let inside = file.path.strip_prefix(&format!("{}/", m.folder()));
            inside.is_some_and(|inside| m.text.contains(&format!("\"{inside}\"")))
        })
    };
    root || by_path()
}

/// Does some file that can own it declare it as a module or include it?
fn has_parent(file: &File, rust: &[&File]) -> bool {
    let (folder, module) = match file.name() {
        "mod.rs" => file.folder().rsplit_once('/').unwrap_or(("", file.folder())),
        name => (file.folder(), name.trim_end_matches(".rs")),
    };
    let owners = rust
        .iter()
        .filter(|f| f.path != file.path && (f.folder() == folder || f.path == format!("{folder}.rs")));
    let declared = owners.into_iter().any(|owner| declares(&blank(&owner.text), module));
    let by_path = || {
        rust.iter().any(|f| {
            let named = |start: &str| {
                f.text.lines().any(|line| line.trim_start().starts_with(start) && line.contains(file.name()))
            };
            named("#[path") || named("include!(")
        })
    };
    declared || by_path()
}

fn declares(code: &str, module: &str) -> bool {
    code.lines().any(|line| {
        let words: Vec<&str> = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        words.windows(2).any(|pair| pair == ["mod", module])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Vec<File> {
        files.iter().map(|(path, text)| File { path: path.to_string(), text: text.to_string() }).collect()
    }

    #[test]
    fn an_orphan_is_found() {
        let files = tree(&[
            ("a/Cargo.toml", "[lib]\npath = \"odd/place.rs\""),
            ("a/src/lib.rs", "pub mod named;\n// mod orphan;\nmod folder;"),
            ("a/src/named.rs", "mod below;"),
            ("a/src/named/below.rs", ""),
            ("a/src/folder/mod.rs", "mod inner;"),
            ("a/src/folder/inner.rs", ""),
            ("a/src/folder/lost.rs", ""),
            ("a/src/orphan.rs", ""),
            ("a/odd/place.rs", ""),
            ("a/tests/it.rs", "mod harness;"),
            ("a/tests/harness/mod.rs", ""),
            ("a/tests/crash/main.rs", ""),
            ("a/build.rs", ""),
        ]);
        let found = named(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("a/src/folder/lost.rs") && found[1].starts_with("a/src/orphan.rs"),
            "{found:?}"
        );
    }
}
