//! Pictures that components wrote: directories of PNG files with an `index.json`.
//!
//! Guarantees: only regular files of such a directory are embedded, and no more than a page should have; the last
//! version of each is seen without scripts. Whatever else lies there is neither waited for nor read.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use base64::Engine;
use forebay_tier::plain::read_regular;
use serde::Deserialize;

use crate::drawing::escape;
use crate::page::section;

/// Versions of one picture that are embedded; more are thinned out evenly.
const PICTURES_MAX: usize = 30;

/// Bytes of pictures that are embedded, all together.
const PICTURE_BYTES_MAX: u64 = 24 << 20;

/// Longest `index.json` that is read.
const INDEX_BYTES_MAX: u64 = 16 << 20;

/// Writes the section, if there are any.
pub fn pictures(out: &mut String, run_dir: &Path) {
    let albums = find_albums(run_dir);
    let (mut budget, mut albums_text) = (PICTURE_BYTES_MAX, String::new());
    for (dir, album) in &albums {
        let mut axes: BTreeMap<(String, u64), Vec<&Slice>> = BTreeMap::new();
        for slice in &album.slices {
            axes.entry((cut_of(slice), slice.index.unwrap_or(0))).or_default().push(slice);
        }
        let name = album.variable.as_deref().or(album.field.as_deref()).unwrap_or("field");
        let mut figures = String::new();
        for ((cut, _), slices) in &axes {
            figure(&mut figures, dir, name, cut, slices, &mut budget);
        }
        if !figures.is_empty() {
            let shape = album.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
            let range = album
                .range
                .map_or(String::new(), |r| format!(", colours from {} to {}", short(r[0]), short(r[1])));
            let of = if shape.is_empty() { String::new() } else { format!(" of {shape} cells") };
            let title = format!("{}{of}{}", escape(name), escape(&range));
            let _ = writeln!(albums_text, "<h3>{title}</h3>\n<div class=\"slices\">\n{figures}</div>");
        }
    }
    if albums_text.is_empty() {
        return;
    }
    section(
        out,
        "slices",
        "Slices of the field",
        "Pictures that a component wrote, the last step first shown; move the slider for earlier ones.",
    );
    out.push_str(&albums_text);
    out.push_str("</section>\n");
}

/// A number with four digits.
fn short(value: f64) -> String {
    let text = format!("{value:.3e}");
    let rounded = text.parse().unwrap_or(value);
    match value.abs() {
        size if size == 0.0 || (1e-4..1e6).contains(&size) => format!("{rounded}"),
        _ => format!("{rounded:e}"),
    }
}

/// `index.json` of a directory with pictures (schema `forebay.slices/1`).
#[derive(Debug, Deserialize)]
struct Album {
    schema: String,
    #[serde(default)]
    field: Option<String>,
    #[serde(default)]
    variable: Option<String>,
    #[serde(default)]
    shape: Vec<u64>,
    #[serde(default)]
    range: Option<[f64; 2]>,
    slices: Vec<Slice>,
}

#[derive(Debug, Deserialize)]
struct Slice {
    file: String,
    /// The axis that is cut, by name or number, at `index`; None: the field has two dimensions and is shown whole.
    #[serde(default)]
    axis: Option<serde_json::Value>,
    version: u64,
    #[serde(default)]
    step: Option<u64>,
    #[serde(default)]
    index: Option<u64>,
}

/// Where a slice was cut, as a caption goes on behind the name of the field.
fn cut_of(slice: &Slice) -> String {
    let Some(axis) = &slice.axis else { return String::new() };
    let axis = axis.as_str().map_or_else(|| axis.to_string(), str::to_owned);
    format!(" at {axis} = {}", slice.index.unwrap_or(0))
}

/// Directories with pictures, at most three levels below the run directory.
fn find_albums(run_dir: &Path) -> Vec<(PathBuf, Album)> {
    let mut found = Vec::new();
    let mut level = vec![run_dir.to_path_buf()];
    for _ in 0..4 {
        let mut next = Vec::new();
        for dir in &level {
            let text = read_regular(&dir.join("index.json"), INDEX_BYTES_MAX).unwrap_or_default();
            match serde_json::from_slice::<Album>(&text) {
                Ok(album) if album.schema == "forebay.slices/1" && !album.slices.is_empty() => {
                    found.push((dir.clone(), album));
                }
                _ => {}
            }
            let entries = dir.read_dir().into_iter().flatten().flatten();
            // Not through links: they may lead out of the run directory, and round in circles.
            next.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        }
        level = next;
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// One picture with its versions; the last is shown without scripts.
fn figure(out: &mut String, dir: &Path, name: &str, cut: &str, slices: &[&Slice], budget: &mut u64) {
    let every = slices.len().div_ceil(PICTURES_MAX).max(1);
    // Counted from the end, so that the last one is there.
    let chosen =
        slices.iter().enumerate().filter(|(i, _)| (slices.len() - 1 - i) % every == 0).map(|(_, s)| *s);
    let mut pictures = Vec::new();
    for slice in chosen.collect::<Vec<_>>().into_iter().rev() {
        // A name that leaves the directory is not ours to embed.
        if Path::new(&slice.file).components().count() != 1 || slice.file.starts_with("..") {
            continue;
        }
        let Ok(bytes) = read_regular(&dir.join(&slice.file), *budget) else { continue };
        if !bytes.starts_with(b"\x89PNG") {
            continue;
        }
        *budget -= bytes.len() as u64;
        pictures.push((slice, base64::engine::general_purpose::STANDARD.encode(bytes)));
    }
    if pictures.is_empty() {
        return;
    }
    pictures.reverse();
    let last = pictures.len() - 1;
    let _ = writeln!(out, "<figure data-versions=\"{}\">", pictures.len());
    for (i, (slice, data)) in pictures.iter().enumerate() {
        let step = slice.step.map_or(String::new(), |s| format!(", step {s}"));
        let hidden = if i == last { "" } else { " hidden" };
        let _ = writeln!(
            out,
            "<img{hidden} alt=\"version {}{step}\" src=\"data:image/png;base64,{data}\">",
            slice.version
        );
    }
    let slice = pictures[last].0;
    let step = slice.step.map_or(String::new(), |s| format!(", step {s}"));
    let _ = writeln!(
        out,
        "<input class=\"slider\" type=\"range\" min=\"0\" max=\"{last}\" value=\"{last}\" hidden \
         aria-label=\"version of {name}{cut}\">\n\
         <figcaption>{name}{cut}: <output>version {}{step}</output></figcaption>\n</figure>",
        slice.version,
        name = escape(name),
        cut = escape(cut)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_four_digits() {
        let all = [0.0, 0.4, -12.0, 0.1 + 0.2, 123_456.0, 1e308, -2.5e-9].map(short);
        assert_eq!(all, ["0", "0.4", "-12", "0.3", "123500", "1e308", "-2.5e-9"]);
    }
}
