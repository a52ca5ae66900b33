//! `cargo xtask arch`: the crates and the arrows between them are those of the table in ARCHITECTURE.md, and so are the
//! folders of a crate (`folders.rs`).
//!
//! The table's rows are `| rank | crate | … |`; a crate may use only crates of a lower rank. A rank written as
//! `–` may use any crate with a rank, and no crate may use it. What a crate of the product (`crates/`) ships uses
//! only crates of the product; its tests may use an example. What a crate followed by *pure* ships uses only such
//! crates, so that none of them can reach `tier`. A row whose crate is followed by *planned*
//! has no folder yet; when the folder appears the mark has to go, so that the table cannot rot in either direction.

mod folders;

use crate::packages::{packages, Package};
use crate::tree;
use crate::{no_findings, Outcome, Stop};
use std::collections::BTreeMap;
use std::path::Path;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    /// `None` for a crate outside the order.
    rank: Option<u32>,
    planned: bool,
    pure: bool,
}

/// Compares the table with the workspace.
pub fn run(root: &Path) -> Outcome {
    let path = root.join("ARCHITECTURE.md");
    let text =
        std::fs::read_to_string(&path).map_err(|e| Stop::Failed(format!("{}: {e}", path.display())))?;
    let packages = packages(root)?;
    let mut findings = compare(&table(&text), &packages);
    findings.extend(outside_the_product(&packages));
    findings.extend(folders::findings(&text, &tree::files(root)));
    no_findings(findings)
}

/// The rows by crate name, without the prefix `forebay-`.
fn table(text: &str) -> BTreeMap<String, Row> {
    let start = text.lines().skip_while(|line| !(line.starts_with("| rank") && line.contains("| crate ")));
    let rows = start.skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells.get(1)?.split('`').nth(1)?;
        let is = |word: &str| cells.get(1).is_some_and(|cell| cell.contains(word));
        let row = Row { rank: cells.first()?.parse().ok(), planned: is("*planned*"), pure: is("*pure*") };
        Some((name.to_string(), row))
    };
    rows.filter_map(row).collect()
}

fn compare(table: &BTreeMap<String, Row>, packages: &[Package]) -> Vec<String> {
    let short = |name: &str| name.trim_start_matches("forebay-").to_string();
    let mut findings = Vec::new();
    if table.is_empty() {
        return vec!["ARCHITECTURE.md: no table `| rank | crate |` found".to_string()];
    }
    for package in packages {
        let name = short(&package.name);
        match table.get(&name) {
            None => findings.push(format!("ARCHITECTURE.md: the table lacks {name}")),
            Some(row) if row.planned => {
                findings.push(format!("ARCHITECTURE.md: {name} exists, drop *planned*"))
            }
            Some(row) => {
                let wrong =
                    package.uses.iter().map(|used| short(used)).filter(|used| !allowed(row, table.get(used)));
                findings
                    .extend(wrong.map(|used| format!("{name} may not use {used}: its rank is not lower")));
                let impure = |used: &String| !table.get(used).is_some_and(|used| used.pure);
                let ships =
                    package.ships.iter().map(|used| short(used)).filter(|used| row.pure && impure(used));
                findings
                    .extend(ships.map(|used| format!("{name} is pure and may not use {used}, which is not")));
            }
        }
    }
    let missing =
        table.iter().filter(|(name, row)| !row.planned && !packages.iter().any(|p| short(&p.name) == **name));
    findings.extend(
        missing.map(|(name, _)| format!("ARCHITECTURE.md: the table lists {name}, which is not there")),
    );
    findings
}

/// Crates of the product that ship something from elsewhere in the workspace.
fn outside_the_product(packages: &[Package]) -> Vec<String> {
    let is_product = |package: &&Package| package.folder.starts_with("crates");
    let product: Vec<&str> = packages.iter().filter(is_product).map(|p| p.name.as_str()).collect();
    let wrong = |package: &Package| {
        let outside = package.ships.iter().filter(|used| !product.contains(&used.as_str()));
        let say =
            |used: &String| format!("{} may not use {used}: it is no part of the product", package.name);
        outside.map(say).collect::<Vec<_>>()
    };
    packages.iter().filter(is_product).flat_map(wrong).collect()
}

fn allowed(user: &Row, used: Option<&Row>) -> bool {
    match (user.rank, used.map(|row| row.rank)) {
        (None, Some(Some(_))) => true,
        (Some(user), Some(Some(used))) => used < user,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n\n| rank | crate (folder) | what |\n|---|---|---|\n| 0 | `tier` | a |\n\
        | 1 | `log` | b |\n| 1 | `pager` *planned* | c |\n| – | `xtask` | d |\n\nafter\n";

    fn package(name: &str, uses: &[&str]) -> Package {
        let uses: Vec<String> = uses.iter().map(|used| format!("forebay-{used}")).collect();
        let folder = std::path::Path::new("crates").join(name);
        Package { name: format!("forebay-{name}"), ships: uses.clone(), uses, outside: Vec::new(), folder }
    }

    fn good() -> Vec<Package> {
        vec![package("tier", &[]), package("log", &["tier"]), package("xtask", &["log"])]
    }

    #[test]
    fn the_table_is_read() {
        let table = table(TABLE);
        assert_eq!(table.len(), 4);
        assert_eq!(table["pager"], Row { rank: Some(1), planned: true, pure: false });
        assert_eq!(table["xtask"], Row { rank: None, planned: false, pure: false });
        assert_eq!(compare(&table, &good()), Vec::<String>::new());
    }

    #[test]
    fn arrows_that_do_not_point_down_are_found() {
        let mut packages = good();
        packages[0] = package("tier", &["log"]);
        assert_eq!(compare(&table(TABLE), &packages), ["tier may not use log: its rank is not lower"]);
        packages[0] = package("tier", &["xtask"]);
        assert_eq!(compare(&table(TABLE), &packages).len(), 1);
    }

    #[test]
    fn what_the_product_ships_is_of_the_product() {
        let mut packages =
            vec![package("tier", &[]), package("log", &["tier", "example"]), package("example", &[])];
        assert_eq!(outside_the_product(&packages), Vec::<String>::new());
        packages[2].folder = "examples/example".into();
        assert_eq!(
            outside_the_product(&packages),
            ["forebay-log may not use forebay-example: it is no part of the product"]
        );
        // Only for its tests.
        packages[1].ships.pop();
        assert_eq!(outside_the_product(&packages), Vec::<String>::new());
    }

    #[test]
    fn a_pure_crate_ships_pure_crates_only() {
        let text = TABLE.replace("`log` |", "`log` *pure* |");
        let impure = ["log is pure and may not use tier, which is not"];
        assert_eq!(compare(&table(&text), &good()), impure);
        assert_eq!(
            compare(&table(&text.replace("`tier` |", "`tier` *pure* |")), &good()),
            Vec::<String>::new()
        );
        // For its tests it may.
        let mut packages = good();
        packages[1].ships.clear();
        assert_eq!(compare(&table(&text), &packages), Vec::<String>::new());
    }

    #[test]
    fn crates_missing_on_either_side_are_found() {
        let mut packages = good();
        packages.remove(1);
        packages[1] = package("xtask", &[]);
        assert_eq!(
            compare(&table(TABLE), &packages),
            ["ARCHITECTURE.md: the table lists log, which is not there"]
        );
        packages.push(package("extra", &[]));
        assert_eq!(compare(&table(TABLE), &packages).len(), 2);
    }

    #[test]
    fn a_planned_crate_that_exists_is_found() {
        let mut packages = good();
        packages.push(package("pager", &["tier"]));
        assert_eq!(compare(&table(TABLE), &packages), ["ARCHITECTURE.md: pager exists, drop *planned*"]);
    }

    #[test]
    fn a_document_without_a_table_is_found() {
        assert_eq!(compare(&table("nothing"), &good()).len(), 1);
    }

    #[test]
    fn the_project_itself_keeps_to_its_table() {
        assert_eq!(run(&crate::tree::root()), Ok(()));
    }
}
