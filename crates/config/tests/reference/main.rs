//! Documents and sources repeat of the table of options what the table says.
//!
//! `UPDATE_REFERENCE=1 cargo test -p forebay-config --test reference` writes them anew. The header of C follows from
//! the comment in `crates/capi/src/options.rs` (`crates/capi/tests/header.rs` says how).

use std::path::PathBuf;

use forebay_config::OPTIONS;

mod texts;

fn place(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

fn text_of(file: &str) -> String {
    std::fs::read_to_string(place(file)).unwrap_or_default()
}

/// Compares a file with what it should be, or writes it.
fn same(file: &str, wanted: &str) {
    let found = text_of(file);
    if found == wanted {
        return;
    }
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(place(file), wanted).unwrap_or_else(|e| panic!("{file}: {e}"));
        return;
    }
    let line = found.lines().zip(wanted.lines()).position(|(a, b)| a != b);
    panic!(
        "{file} is not what the table of options gives, first in line {}; run \
         UPDATE_REFERENCE=1 cargo test -p forebay-config --test reference",
        line.unwrap_or_else(|| found.lines().count().min(wanted.lines().count())) + 1
    );
}

/// The file with what stands between its marked lines replaced, region by region.
fn with_regions(file: &str, regions: &[String]) -> String {
    let (mut text, mut inside, mut count) = (String::new(), false, 0);
    for line in text_of(file).split_inclusive('\n') {
        if line.contains("options: end") {
            assert!(inside, "{file}: an end without a beginning");
            inside = false;
        }
        if !inside {
            text.push_str(line);
        }
        if line.contains("options: begin") {
            assert!(!inside, "{file}: a beginning in a region");
            text.push_str(regions.get(count).unwrap_or_else(|| panic!("{file}: too many regions")));
            (inside, count) = (true, count + 1);
        }
    }
    assert_eq!((inside, count), (false, regions.len()), "{file}: regions are missing or have no end");
    text
}

#[test]
fn the_page_lists_every_option() {
    same("docs/src/reference/options.md", &texts::page());
}

#[test]
fn the_comment_for_c_lists_every_option_of_programs() {
    let file = "crates/capi/src/options.rs";
    same(file, &with_regions(file, &[texts::c_comment()]));
}

#[test]
fn the_stubs_of_python_have_every_keyword() {
    let file = "crates/python/python/forebay/_forebay.pyi";
    same(file, &with_regions(file, &[texts::stub(false), texts::stub(true)]));
}

#[test]
fn the_checkpoint_of_python_has_every_keyword() {
    let file = "crates/python/python/forebay/_checkpoint.py";
    same(file, &with_regions(file, &texts::checkpoint_keywords()));
}

#[test]
fn the_signature_of_python_has_every_keyword() {
    let file = "crates/python/src/lib.rs";
    same(file, &with_regions(file, &[texts::signature()]));
}

#[test]
fn every_option_has_a_name_and_a_key_of_its_own() {
    for (at, row) in OPTIONS.iter().enumerate() {
        assert!(OPTIONS[..at].iter().all(|other| other.name != row.name), "{} is twice", row.name);
        assert!(
            row.table.is_some() || !row.file,
            "{}: a key of the workflow file that no channel has",
            row.name
        );
        if !row.see.is_empty() {
            let page = row.see.split('#').next().unwrap_or_default();
            assert!(place("docs/src/guide").join(page).is_file(), "{}: no page {page}", row.name);
        }
    }
}

#[test]
fn every_reference_is_in_the_book() {
    assert!(text_of("docs/src/SUMMARY.md").contains("(reference/options.md)"), "SUMMARY.md lacks the page");
}
