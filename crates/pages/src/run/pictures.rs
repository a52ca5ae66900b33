//! Pictures that components wrote: directories of PNG files with an `index.json`.
//!
//! Guarantees: only regular files of such a directory are embedded, and no more than a page should have; the last
//! version of each is seen without scripts. Whatever else lies there is neither waited for nor read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine;
use forebay_tier::plain::read_regular;
use maud::{html, Markup};
use serde::Deserialize;

use crate::page::section;

/// Versions of one picture that are embedded; more are thinned out evenly.
const PICTURES_MAX: usize = 30;

/// Bytes of pictures that are embedded, all together.
const PICTURE_BYTES_MAX: u64 = 24 << 20;

/// Longest `index.json` that is read.
const INDEX_BYTES_MAX: u64 = 16 << 20;

/// The section, if there are any.
pub fn pictures(run_dir: &Path) -> Markup {
    let mut budget = PICTURE_BYTES_MAX;
    let albums: Vec<Markup> =
        find_albums(run_dir).iter().filter_map(|(dir, album)| shown(dir, album, &mut budget)).collect();
    if albums.is_empty() {
        return Markup::default();
    }
    section(
        "slices",
        "Slices of the field",
        "Pictures that a component wrote, the last step first shown; move the slider for earlier ones.",
        &html! { @for album in &albums { (album) } },
    )
}

/// All pictures of a directory.
fn shown(dir: &Path, album: &Album, budget: &mut u64) -> Option<Markup> {
    let mut axes: BTreeMap<(String, u64), Vec<&Slice>> = BTreeMap::new();
    for slice in &album.slices {
        axes.entry((cut_of(slice), slice.index.unwrap_or(0))).or_default().push(slice);
    }
    let name = album.variable.as_deref().or(album.field.as_deref()).unwrap_or("field");
    let figures =
        axes.iter().filter_map(|((cut, _), slices)| figure(dir, &(name.to_owned() + cut), slices, budget));
    let figures: Vec<Markup> = figures.collect();
    let shape = album.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
    (!figures.is_empty()).then(|| {
        html! {
            h3 {
                (name)
                @if !shape.is_empty() { " of " (shape) " cells" }
                @if let Some([low, high]) = album.range { ", colours from " (short(low)) " to " (short(high)) }
            }
            div.slices { @for figure in &figures { (figure) } }
        }
    })
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
fn figure(dir: &Path, name: &str, slices: &[&Slice], budget: &mut u64) -> Option<Markup> {
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
    pictures.reverse();
    let last = pictures.len().checked_sub(1)?;
    let version = |slice: &Slice| {
        let step = slice.step.map_or(String::new(), |s| format!(", step {s}"));
        format!("version {}{step}", slice.version)
    };
    Some(html! {
        figure data-versions=(pictures.len()) {
            @for (i, (slice, data)) in pictures.iter().enumerate() {
                img hidden[i != last] alt=(version(slice)) src={ "data:image/png;base64," (data) };
            }
            input class="slider" type="range" min="0" max=(last) value=(last) hidden
                aria-label={ "version of " (name) };
            figcaption { (name) ": " output { (version(pictures[last].0)) } }
        }
    })
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
