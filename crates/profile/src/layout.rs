//! The TOML text of a profile, laid out for people: tables under headings, small tables and lists on one line.
//!
//! Guarantees: valid TOML that reads back as the value it was made from; the order of keys is the order of the value,
//! plain keys before tables.

use std::fmt::Write;

use toml::{Table, Value};

/// Characters of a line of list items, from which on the next line is begun.
const LINE_MAX: usize = 100;

/// Tables of at most so many plain values stand on one line, unless they are at the top.
const INLINE_MAX: usize = 12;

/// Lays out a table.
pub fn toml(value: &Value) -> String {
    let mut out = String::new();
    if let Value::Table(table) = value {
        write_table(&mut out, "", table);
    }
    out
}

fn write_table(out: &mut String, path: &str, table: &Table) {
    let (plain, headed): (Vec<_>, Vec<_>) = table.iter().partition(|(_, v)| !has_heading(path, v));
    for (key, value) in plain {
        let _ = writeln!(out, "{} = {}", bare(key), inline(value, key.len() + 3));
    }
    for (key, value) in headed {
        let path = if path.is_empty() { bare(key) } else { format!("{path}.{}", bare(key)) };
        match value {
            Value::Array(items) => {
                for item in items {
                    let _ = writeln!(out, "\n[[{path}]]");
                    if let Value::Table(table) = item {
                        write_table(out, &path, table);
                    }
                }
            }
            Value::Table(inner) => {
                // A table of tables with headings needs none of its own.
                if inner.is_empty() || inner.values().any(|v| !has_heading(&path, v)) {
                    let _ = writeln!(out, "\n[{path}]");
                }
                write_table(out, &path, inner);
            }
            _ => {}
        }
    }
}

/// Lists of tables have headings, and tables that are at the top or not small.
fn has_heading(path: &str, value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty() && items.iter().all(Value::is_table),
        Value::Table(table) => {
            let small = table.len() <= INLINE_MAX && !table.values().any(Value::is_table);
            path.is_empty() || path == "source" || !small
        }
        _ => false,
    }
}

/// A value on one line; lists that are long are broken, `indent` is where their first line begins.
fn inline(value: &Value, indent: usize) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|v| inline(v, indent)).collect();
            let length: usize = items.iter().map(|i| i.chars().count() + 2).sum();
            if length + indent <= LINE_MAX {
                return format!("[{}]", items.join(", "));
            }
            let mut out = String::from("[");
            let mut column = LINE_MAX;
            for item in &items {
                if column + item.len() + 2 > LINE_MAX {
                    out.push_str("\n   ");
                    column = 3;
                }
                let _ = write!(out, " {item},");
                column += item.chars().count() + 2;
            }
            out + "\n]"
        }
        Value::Table(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(k, v)| format!("{} = {}", bare(k), inline(v, indent))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}

/// A key, quoted where it must be.
fn bare(key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match plain {
        true => key.to_owned(),
        false => Value::String(key.to_owned()).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_laid_out_reads_back() {
        let long: Vec<String> = (0..60).map(|i| format!("[{i}, {}]", i * 1000)).collect();
        let text = format!(
            "a = 1\nt = \"x\\ny \\\"z\\\"\"\nempty = []\nlong = [{}]\n[\"odd key\".b]\nk = 1.5\n[source.s]\n\
             kind = \"m\"\n[[tier]]\nname = \"n\"\nc = {{ bytes = 3, source = \"s\" }}\n[[tier.curve]]\nx = [[1, 2]]\n\
             [[tier.curve]]\nx = []\n[[tier]]\nname = \"m\"\n",
            long.join(", ")
        );
        let value: Value = text.parse::<Table>().map(Value::Table).unwrap();
        let laid_out = toml(&value);
        assert_eq!(laid_out.parse::<Table>().map(Value::Table).unwrap(), value, "{laid_out}");
        assert!(laid_out.contains("c = { bytes = 3, source = \"s\" }"), "{laid_out}");
        assert!(laid_out.contains("\n[source.s]\n") && !laid_out.contains("[source]\n"), "{laid_out}");
        assert!(laid_out.lines().all(|l| l.chars().count() <= 110), "{laid_out}");
    }
}
