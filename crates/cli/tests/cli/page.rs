//! A page that describes the documents of `--json`, against what a command prints.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Schema names of a page with the field names in the first column of their tables.
pub fn read(page: &Path) -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let mut sections = BTreeMap::new();
    for section in text.split("\n## ").skip(1) {
        let name = section.split('`').nth(1).expect("a heading begins with the schema's name");
        let rows = section.lines().filter(|l| l.starts_with("| `"));
        let column = rows.filter_map(|row| row.split('|').nth(1));
        let fields = column.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_string);
        assert!(sections.insert(name.to_string(), fields.collect()).is_none(), "{name} stands there twice");
    }
    sections
}

/// Top-level fields of the document and of the section are the same.
#[track_caller]
pub fn check(document: &Value, fields: &[String], words: &[&str]) {
    let printed: Vec<&str> = document
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .filter(|k| *k != "schema")
        .collect();
    for key in &printed {
        assert!(fields.iter().any(|f| f == key), "{words:?} prints `{key}`, which the page does not list");
    }
    let top = fields.iter().filter(|f| !f.contains(['.', '…']));
    for field in top {
        assert!(printed.contains(&field.as_str()), "{words:?} does not print `{field}`: {document}");
    }
}
