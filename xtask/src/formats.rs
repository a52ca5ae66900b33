//! `cargo xtask formats`: the durable layouts of the code against the format documents.
//!
//! Prints every layout as the code has it and compares it with the fenced `layout` blocks of docs/src/formats. A
//! block's first line is `NAME SIZE`, then one line a field, indented: `OFFSET BYTES FIELD  meaning`. Also checked:
//! each document says what it assumes of the medium and which versions there are, each version a document lists has
//! fixtures, and the table of error kinds is the code's. The code's side is printed by examples of `checkpoint` and
//! `space`, so that this program needs none of the crates it checks.

use crate::packages::example;
use crate::{no_findings, Outcome, Stop};
use std::path::Path;
use std::process::{Command, Stdio};

/// A durable struct: its size and its fields, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// Name of the struct.
    pub name: String,
    /// Size of the whole.
    pub size: usize,
    /// Name, offset and size of each field, in order.
    pub fields: Vec<(String, usize, usize)>,
}

const DOCUMENTS: &str = "docs/src/formats";
const ERRORS: &str = "docs/src/guide/errors.md";

/// Compares code and documents.
pub fn run(root: &Path) -> Outcome {
    let printed = tables(root)?;
    let (layouts, kinds) =
        printed.split_once("kinds\n").ok_or_else(|| Stop::Failed("no kinds printed".into()))?;
    let code = parse(&format!("```layout\n{layouts}```\n")).map_err(Stop::Failed)?;
    for layout in &code {
        println!("{}", print(layout));
    }
    let errors =
        std::fs::read_to_string(root.join(ERRORS)).map_err(|e| Stop::Failed(format!("{ERRORS}: {e}")))?;
    let mut findings = compare_kinds(kinds, &errors);
    let mut documented = Vec::new();
    for (name, text) in documents(root) {
        findings.extend(headings(&name, &text));
        findings.extend(fixtures(root, &name, &text));
        match parse(&text) {
            Ok(layouts) => documented.extend(layouts.into_iter().map(|layout| (name.clone(), layout))),
            Err(what) => findings.push(format!("{DOCUMENTS}/{name}: {what}")),
        }
    }
    findings.extend(compare(&code, &documented));
    no_findings(findings)
}

/// What the code says, as examples print it: the kinds of errors come last.
fn tables(root: &Path) -> Result<String, Stop> {
    let mut all = String::new();
    for name in ["checkpoint_tables", "space_tables"] {
        let program = example(root, name).map_err(Stop::Failed)?;
        let output = Command::new(program).stderr(Stdio::inherit()).output();
        let output = output.map_err(|e| Stop::Failed(format!("the example {name}: {e}")))?;
        if !output.status.success() {
            return Err(Stop::Failed(format!("the example {name} ended with {}", output.status)));
        }
        all += &String::from_utf8_lossy(&output.stdout);
    }
    Ok(all)
}

/// The rows `| number | `name` | exit |` of the error table against the lines `number name exit` of the code.
fn compare_kinds(code: &str, document: &str) -> Vec<String> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        Some(format!("{} {name} {}", cells[0].parse::<u16>().ok()?, cells.get(2)?))
    };
    let rows: Vec<String> = document.lines().filter(|line| line.starts_with('|')).filter_map(row).collect();
    let kinds: Vec<&str> = code.lines().filter(|line| !line.is_empty()).collect();
    let missing = kinds.iter().filter(|kind| !rows.iter().any(|row| row == *kind));
    let mut findings: Vec<String> = missing.map(|kind| format!("{ERRORS}: no row for kind {kind}")).collect();
    let gone = rows.iter().filter(|row| !kinds.contains(&row.as_str()));
    findings.extend(gone.map(|row| format!("{ERRORS}: {row} is no kind of the code")));
    findings
}

/// Name and text of every format document.
fn documents(root: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(root.join(DOCUMENTS)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".md") && name != "README.md").collect();
    names.sort();
    let read = |name: String| {
        std::fs::read_to_string(root.join(DOCUMENTS).join(&name)).ok().map(|text| (name, text))
    };
    names.into_iter().filter_map(read).collect()
}

fn print(layout: &Layout) -> String {
    let fields =
        layout.fields.iter().map(|(name, offset, bytes)| format!("\n  {offset:>6} {bytes:>6} {name}"));
    format!("{} {}{}", layout.name, layout.size, fields.collect::<String>())
}

/// The `layout` blocks of a document.
fn parse(text: &str) -> Result<Vec<Layout>, String> {
    let mut layouts: Vec<Layout> = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        if fence {
            inside = !inside && line.trim() == "```layout";
        } else if inside && !line.trim().is_empty() {
            let wrong =
                || format!("line {}: expected `NAME SIZE` or `  OFFSET BYTES FIELD  meaning`", number + 1);
            let words: Vec<&str> = line.split_whitespace().collect();
            if line.starts_with(' ') {
                let [offset, bytes, name, ..] = words.as_slice() else { return Err(wrong()) };
                let field = (
                    name.to_string(),
                    offset.parse().map_err(|_| wrong())?,
                    bytes.parse().map_err(|_| wrong())?,
                );
                layouts.last_mut().ok_or_else(wrong)?.fields.push(field);
            } else {
                let [name, size, ..] = words.as_slice() else { return Err(wrong()) };
                let size = size.parse().map_err(|_| wrong())?;
                layouts.push(Layout { name: name.to_string(), size, fields: Vec::new() });
            }
        }
    }
    Ok(layouts)
}

fn compare(code: &[Layout], documented: &[(String, Layout)]) -> Vec<String> {
    let mut findings = Vec::new();
    for layout in code {
        match documented.iter().find(|(_, d)| d.name == layout.name) {
            None => findings.push(format!("{DOCUMENTS}: no `layout` block for {}", layout.name)),
            Some((name, found)) if found != layout => findings.push(format!(
                "{DOCUMENTS}/{name}: {} differs from the code, which has\n{}\nand not\n{}",
                layout.name,
                print(layout),
                print(found)
            )),
            Some(_) => {}
        }
    }
    let gone = documented.iter().filter(|(_, d)| !code.iter().any(|layout| layout.name == d.name));
    findings.extend(gone.map(|(name, d)| format!("{DOCUMENTS}/{name}: {} is not in the code", d.name)));
    findings
}

/// Documents without a layout describe text (JSON): names instead of places.
fn has_layout(text: &str) -> bool {
    text.lines().any(|line| line.trim() == "```layout")
}

fn headings(name: &str, text: &str) -> Vec<String> {
    if !has_layout(text) {
        return Vec::new();
    }
    let has = |wanted: &str| {
        text.lines().any(|line| line.starts_with('#') && line.to_lowercase().contains(&wanted.to_lowercase()))
    };
    let missing = ["Assumptions", "Versions"].into_iter().filter(|wanted| !has(wanted));
    missing.map(|wanted| format!("{DOCUMENTS}/{name}: no heading {wanted}")).collect()
}

/// The versions that a document lists, one a line of its section Versions: `- 1: …`, `- **1** …` or `| 1 | …`.
fn versions(text: &str) -> Vec<u32> {
    let start = |line: &&str| line.starts_with('#') && line.to_lowercase().contains("versions");
    let section =
        text.lines().skip_while(|line| !start(line)).skip(1).take_while(|line| !line.starts_with('#'));
    let number = |line: &str| {
        let rest = line.strip_prefix("- ").or_else(|| line.strip_prefix("| "))?;
        let digits: String =
            rest.trim_start_matches(['*', '`', 'v']).chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    section.filter_map(number).collect()
}

fn fixtures(root: &Path, name: &str, text: &str) -> Vec<String> {
    let format = name.trim_end_matches(".md");
    // Soft state says so in these words: what is rebuilt at any time has nothing to keep readable.
    if !has_layout(text) || text.contains("no durable format") {
        return Vec::new();
    }
    let listed = versions(text);
    if listed.is_empty() {
        return vec![format!("{DOCUMENTS}/{name}: the section Versions lists none (`- 1: …`)")];
    }
    let there = |version: &u32| {
        let folder = root.join("fixtures").join(format);
        [format!("{version}"), format!("v{version}")].iter().any(|v| folder.join(v).is_dir())
    };
    let missing = listed.iter().filter(|version| !there(version));
    missing
        .map(|version| format!("fixtures/{format}/v{version}: no fixtures of a version that {name} lists"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# Log\n## Assumptions about the medium\n```layout\nRecordDf 16\n\
        \x20 0 8 magic  says what it is\n  8 8 length  bytes of payload\n\nOther 4\n  0 4 a\n```\n```\nnot 1\n```\n\
        ## Versions\n- 1: the first\n- **2**: more\n";

    fn record() -> Layout {
        let field = |name: &str, offset| (name.to_string(), offset, 8);
        Layout { name: "RecordDf".into(), size: 16, fields: vec![field("magic", 0), field("length", 8)] }
    }

    #[test]
    fn blocks_are_read() {
        let layouts = parse(DOCUMENT).expect("well formed");
        assert_eq!(layouts.len(), 2);
        assert_eq!(layouts[0], record());
        assert_eq!(versions(DOCUMENT), [1, 2]);
    }

    #[test]
    fn a_malformed_block_is_an_error() {
        for bad in
            ["```layout\nRecordDf\n```", "```layout\n  0 8 magic\n```", "```layout\nA 8\n  0 x magic\n```"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_difference_is_found() {
        let documented = |layout: Layout| [("log.md".to_string(), layout)];
        assert_eq!(compare(&[record()], &documented(record())), Vec::<String>::new());
        let mut moved = record();
        moved.fields[1].1 = 12;
        assert_eq!(compare(&[record()], &documented(moved)).len(), 1);
        let mut grown = record();
        grown.size = 24;
        assert_eq!(compare(&[record()], &documented(grown)).len(), 1);
        assert_eq!(compare(&[record()], &[]).len(), 1);
        assert_eq!(compare(&[], &documented(record())).len(), 1);
    }

    #[test]
    fn headings_and_fixtures_are_wanted() {
        assert_eq!(headings("log.md", "# Log\n```layout\n```\n## Versions\n").len(), 1);
        assert_eq!(headings("log.md", DOCUMENT), Vec::<String>::new());
        let root = std::env::temp_dir().join(format!("forebay-xtask-{}", std::process::id()));
        std::fs::create_dir_all(root.join("fixtures/log/v1")).expect("temporary folder");
        let found = fixtures(&root, "log.md", DOCUMENT);
        std::fs::remove_dir_all(&root).expect("temporary folder");
        assert_eq!(found, ["fixtures/log/v2: no fixtures of a version that log.md lists"]);
        assert_eq!(fixtures(&root, "log.md", "```layout\n```\n").len(), 1);
        assert_eq!(
            fixtures(&root, "control.md", "no durable format\n```layout\n```\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn the_table_of_kinds_is_compared() {
        let document = "| number | kind | exit |\n|---|---|---|\n| 1 | `Usage` | 2 | … | … |\n| 0 | done |\n";
        assert_eq!(compare_kinds("1 Usage 2\n", document), Vec::<String>::new());
        assert_eq!(compare_kinds("1 Usage 3\n", document).len(), 2);
        assert_eq!(compare_kinds("1 Usage 2\n2 UnknownKey 2\n", document).len(), 1);
    }
}
