//! What every page is made of: the document around it, sections, tables, legends.
//!
//! Guarantees: a page is one file that loads nothing from outside, in UTF-8; text cannot break it.

use std::fmt::Write;

use crate::drawing::escape;

/// A document of `body`; `style` is behind what all pages share, `script` runs at its end.
pub fn whole(title: &str, style: &str, body: &str, script: Option<&str>) -> String {
    let mut out = String::with_capacity(body.len() + (1 << 14));
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{}{style}</style>\n</head>\n<body>\n{body}",
        escape(title),
        include_str!("style.css")
    );
    if let Some(script) = script {
        let _ = write!(out, "<script>\n{script}</script>\n");
    }
    out.push_str("</body>\n</html>\n");
    out
}

/// Opens a section, which the caller closes.
pub fn section(out: &mut String, id: &str, title: &str, what: &str) {
    let _ = writeln!(out, "<section id=\"{id}\">\n<h2>{}</h2>", escape(title));
    if !what.is_empty() {
        let _ = writeln!(out, "<p class=\"what\">{}</p>", escape(what));
    }
}

/// A legend of (style, name) pairs.
pub fn legend(out: &mut String, entries: &[(&str, &str)]) {
    out.push_str("<div class=\"legend\">");
    for (style, name) in entries {
        let _ = write!(out, "<span><i class=\"{style}\"></i>{}</span>", escape(name));
    }
    out.push_str("</div>\n");
}

/// Opens a table; a title that starts with `#` is of numbers.
pub fn head(out: &mut String, titles: &[&str]) {
    out.push_str("<div class=\"scroll\"><table>\n<tr>");
    for title in titles {
        match title.strip_prefix('#') {
            Some(title) => {
                let _ = write!(out, "<th class=\"n\">{}</th>", escape(title));
            }
            None => {
                let _ = write!(out, "<th>{}</th>", escape(title));
            }
        }
    }
    out.push_str("</tr>\n");
}

/// Cells are HTML; `kinds` has a letter each: `n` for numbers.
pub fn table_row(out: &mut String, cells: &[String], kinds: &str) {
    out.push_str("<tr>");
    for (cell, kind) in cells.iter().zip(kinds.chars()) {
        let class = if kind == 'n' { " class=\"n\"" } else { "" };
        let _ = write!(out, "<td{class}>{cell}</td>");
    }
    out.push_str("</tr>\n");
}
