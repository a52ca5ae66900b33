//! `--plot FILE` of the verbs that run programs: what they print, as bars in one self-contained HTML file.
//!
//! A verb says which lists of its JSON document become pictures; nothing is computed here that is not in the document.

use std::path::PathBuf;

use forebay_pages::bars::{page, Bar, Chart, Sheet};
use forebay_profile::saved::write_whole;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;
use serde_json::Value;

use forebay_cli::output::Output;

/// What such verbs share on the command line.
#[derive(clap::Args, Debug)]
pub struct PlotArgs {
    /// Write what comes out as pictures, too: one self-contained HTML file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A picture of a verb's document: a bar for each entry of a list.
pub struct Picture {
    /// What the bars are of.
    pub title: &'static str,
    /// The list, and a list in each of its entries where there is one.
    pub list: &'static str,
    pub inner: Option<&'static str>,
    /// Fields of an entry that say which case it is; the first of them gives the colour. A field that ends with
    /// `_bytes` is a size. What is in the entry of the inner list goes before the entry itself.
    pub label: &'static [&'static str],
    /// The field with the number.
    pub value: &'static str,
    /// What it is multiplied by, and its unit then.
    pub scale: (f64, &'static str),
    /// Said of its numbers: `measured`, `published`, `predicted`.
    pub kind: &'static str,
}

impl Picture {
    /// Times as they were measured, of the entries of a list.
    pub const fn seconds(list: &'static str, label: &'static [&'static str]) -> Picture {
        Picture::of("Time", list, label, "seconds", (1.0, "s"))
    }

    /// A number that was measured, of the entries of a list.
    pub const fn of(
        title: &'static str,
        list: &'static str,
        label: &'static [&'static str],
        value: &'static str,
        scale: (f64, &'static str),
    ) -> Picture {
        Picture { title, list, inner: None, label, value, scale, kind: "measured" }
    }

    /// The same number as another source has it: it goes into the same picture.
    pub const fn but(self, value: &'static str, kind: &'static str) -> Picture {
        Picture { value, kind, ..self }
    }

    fn bars(&self, document: &Value) -> Vec<Bar> {
        let none = Vec::new();
        let mut all = Vec::new();
        for entry in document[self.list].as_array().unwrap_or(&none) {
            let own = [Value::Null];
            let inner = match self.inner {
                Some(list) => entry[list].as_array().unwrap_or(&none).as_slice(),
                None => &own,
            };
            for part in inner {
                let field = |name: &str| part.get(name).or_else(|| entry.get(name));
                let Some(value) = field(self.value).and_then(Value::as_f64) else { continue };
                let words: Vec<String> =
                    self.label.iter().filter_map(|name| words(name, field(name)?)).collect();
                let series = words.first().cloned().unwrap_or_default();
                let (label, kind) = (words.join(", "), self.kind.to_owned());
                all.push(Bar { label, series, value: value * self.scale.0, kind });
            }
        }
        all
    }
}

/// A field as people read it; nothing for null.
fn words(name: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if name.ends_with("_bytes") => number.as_u64().map(forebay_space::format_bytes),
        // A count needs its name: "4 ranks".
        Value::Number(number) => Some(format!("{number} {name}")),
        other => Some(other.to_string()),
    }
}

/// Writes the pictures, if they are asked for. A file of this name is replaced: it is an output.
pub fn write<T: Serialize>(
    args: &PlotArgs,
    title: &str,
    facts: &[String],
    body: &T,
    pictures: &[Picture],
    out: &Output,
) -> Result<()> {
    let Some(file) = &args.plot else { return Ok(()) };
    let document = serde_json::to_value(body)
        .map_err(|e| Error::new(Kind::Internal, format!("the result cannot be written as JSON: {e}")))?;
    let mut charts: Vec<Chart> = Vec::new();
    for picture in pictures {
        let bars = picture.bars(&document);
        match charts.iter_mut().find(|chart| chart.title == picture.title) {
            Some(chart) => chart.bars.extend(bars),
            None => {
                let unit = picture.scale.1.to_owned();
                charts.push(Chart { title: picture.title.to_owned(), unit, bars });
            }
        }
    }
    let sheet = Sheet { title: format!("forebay bench {title}"), facts: facts.to_vec(), charts };
    write_whole(file, page(&sheet).as_bytes())?;
    out.next(&format!("look at {}", file.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_bar() {
        let document = serde_json::json!({"rows": [
            {"kernel": "mg", "block_bytes": 4096, "ranks": 4, "seconds": 2.0, "study": null},
            {"kernel": "ft", "seconds": 1.0, "study": 3.0},
            {"kernel": "none"},
        ]});
        let picture = Picture::seconds("rows", &["kernel", "block_bytes", "ranks"]);
        let bars = picture.bars(&document);
        let seen: Vec<(&str, &str, f64)> =
            bars.iter().map(|bar| (&*bar.label, &*bar.series, bar.value)).collect();
        assert_eq!(seen, [("mg, 4.0 KiB, 4 ranks", "mg", 2.0), ("ft", "ft", 1.0)]);
        let study = picture.but("study", "published").bars(&document);
        assert_eq!((study.len(), study[0].kind.as_str(), study[0].value), (1, "published", 3.0));
    }

    #[test]
    fn an_inner_list_goes_before_its_entry() {
        let document = serde_json::json!({"rows": [{"way": "file", "phases": [
            {"phase": "S", "write_s": 1.5}, {"phase": "W", "write_s": 0.5}
        ]}]});
        let picture = Picture {
            inner: Some("phases"),
            ..Picture::of("Writing", "rows", &["way", "phase"], "write_s", (1e3, "ms"))
        };
        let seen: Vec<(String, f64)> =
            picture.bars(&document).into_iter().map(|bar| (bar.label, bar.value)).collect();
        assert_eq!(seen, [("file, S".to_string(), 1500.0), ("file, W".to_string(), 500.0)]);
    }
}
