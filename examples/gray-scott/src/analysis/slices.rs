//! PNG pictures of the grid's mid-planes, and the index that the report reads.
//!
//! Files in the output directory: `slice-<axis>-<version>.png` (axis z, y or x is the one held fixed; the
//! version has at least six digits) and `index.json` (schema `forebay.slices/1`), which is replaced by
//! rename, so that a reader never sees half of it. Colours span a fixed range, so that pictures of different
//! versions compare.

use super::colour;
use super::statistics::When;
use crate::simulation::split::AXES;
use forebay_space::{Error, Kind, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Pictures are enlarged by a whole factor until the longer side has at least this many pixels.
const SIDE_PIXELS_MIN: usize = 320;

/// A plane of values: rows × columns in C order.
pub struct Plane<'a> {
    /// The axis that is held fixed: 0, 1 or 2.
    pub axis: usize,
    /// Where on that axis.
    pub index: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Values.
    pub values: &'a [f64],
}

/// Schema of `index.json`.
pub const SCHEMA: &str = "forebay.slices/1";

/// `index.json`.
#[derive(Clone, Debug, Serialize)]
struct Index {
    schema: &'static str,
    channel: String,
    variable: String,
    shape: Vec<u64>,
    colour_map: &'static str,
    range: [f64; 2],
    slices: Vec<Entry>,
}

/// One picture.
#[derive(Clone, Debug, Serialize)]
struct Entry {
    file: String,
    axis: char,
    axis_number: usize,
    index: usize,
    version: u64,
    step: u64,
    time: f64,
    width: usize,
    height: usize,
}

/// Writes pictures into one directory.
pub struct Album {
    directory: PathBuf,
    index: Index,
    palette: Vec<u8>,
    versions: u64,
}

impl Album {
    /// An empty album. The directory must exist.
    pub fn new(directory: &Path, channel: &str, variable: &str, shape: &[u64], range: [f64; 2]) -> Album {
        let index = Index {
            schema: SCHEMA,
            channel: channel.to_owned(),
            variable: variable.to_owned(),
            shape: shape.to_vec(),
            colour_map: colour::NAME,
            range,
            slices: Vec::new(),
        };
        Album { directory: directory.to_owned(), index, palette: colour::palette(), versions: 0 }
    }

    /// Writes the pictures of one version.
    ///
    /// The index follows at versions 1, 2, 4, 8, … and in [`Album::finish`], so that it costs little in a
    /// long run and is there in one that is cut short.
    pub fn add(&mut self, when: When, planes: &[Plane<'_>]) -> Result<()> {
        for plane in planes {
            let factor = SIDE_PIXELS_MIN.div_ceil(plane.rows.max(plane.columns).max(1));
            let (width, height) = (plane.columns * factor, plane.rows * factor);
            let file = format!("slice-{}-{:06}.png", AXES[plane.axis], when.version);
            let pixels = enlarge(plane, factor, self.index.range);
            write_png(&self.directory.join(&file), width, height, &self.palette, &pixels)?;
            self.index.slices.push(Entry {
                file,
                axis: AXES[plane.axis],
                axis_number: plane.axis,
                index: plane.index,
                version: when.version,
                step: when.step,
                time: when.time,
                width,
                height,
            });
        }
        self.versions += 1;
        if self.versions.is_power_of_two() {
            self.finish()?;
        }
        Ok(())
    }

    /// Writes the index.
    pub fn finish(&self) -> Result<()> {
        let target = self.directory.join("index.json");
        let partial = self.directory.join("index.json.partial");
        let mut text = serde_json::to_string_pretty(&self.index)
            .map_err(|e| Error::new(Kind::Internal, "cannot write the index of slices").caused_by(e))?;
        text.push('\n');
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, &target))
            .map_err(|e| Error::io(format!("cannot write {}", target.display()), e))
    }
}

/// Palette indices of the plane, enlarged by bilinear interpolation between cell centres.
fn enlarge(plane: &Plane<'_>, factor: usize, range: [f64; 2]) -> Vec<u8> {
    // For each pixel: the two cells around it and the weight of the second.
    let around = |pixel: usize, cells: usize| {
        let at = ((pixel as f64 + 0.5) / factor as f64 - 0.5).clamp(0.0, (cells - 1) as f64);
        let first = (at as usize).min(cells.saturating_sub(2));
        (first, (first + 1).min(cells - 1), at - first as f64)
    };
    let columns: Vec<_> = (0..plane.columns * factor).map(|x| around(x, plane.columns)).collect();
    let scale = 255.0 / (range[1] - range[0]);
    let mut pixels = Vec::with_capacity(plane.rows * factor * columns.len());
    for y in 0..plane.rows * factor {
        let (top, bottom, down) = around(y, plane.rows);
        let row = |r: usize| &plane.values[r * plane.columns..(r + 1) * plane.columns];
        let (top, bottom) = (row(top), row(bottom));
        pixels.extend(columns.iter().map(|&(left, right, across)| {
            let upper = top[left] + across * (top[right] - top[left]);
            let lower = bottom[left] + across * (bottom[right] - bottom[left]);
            let value = upper + down * (lower - upper);
            // A float-to-integer cast saturates, so values outside the range get the end colours.
            ((value - range[0]) * scale + 0.5) as u8
        }));
    }
    pixels
}

fn write_png(path: &Path, width: usize, height: usize, palette: &[u8], pixels: &[u8]) -> Result<()> {
    let failed = |e: png::EncodingError| {
        let doing = format!("cannot write {}", path.display());
        match e {
            png::EncodingError::IoError(e) => Error::io(doing, e),
            e => Error::new(Kind::Internal, doing).caused_by(e),
        }
    };
    let file = std::fs::File::create(path).map_err(|e| failed(e.into()))?;
    let side = |pixels: usize| u32::try_from(pixels).expect("axes have at most 2^20 cells");
    let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), side(width), side(height));
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette.to_vec());
    // Neighbouring pixels differ by little and the palette is in order: differences are a quarter smaller.
    encoder.set_filter(png::FilterType::Paeth);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(pixels).map_err(failed)?;
    writer.finish().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane(values: &[f64], rows: usize, columns: usize) -> Plane<'_> {
        Plane { axis: 1, index: 7, rows, columns, values }
    }

    #[test]
    fn enlarging_keeps_flat_areas_and_clamps() {
        assert_eq!(enlarge(&plane(&[0.25; 6], 2, 3), 4, [0.0, 0.5]), vec![128; 2 * 3 * 16]);
        assert_eq!(enlarge(&plane(&[-3.0, 9.0], 1, 2), 1, [0.0, 0.5]), [0, 255]);
        let ramp = enlarge(&plane(&[0.0, 1.0], 1, 2), 8, [0.0, 1.0]);
        assert!(ramp[..16].windows(2).all(|w| w[0] <= w[1]) && ramp[0] == 0 && ramp[15] == 255);
    }

    #[test]
    fn pictures_and_index_are_written_and_readable() {
        let directory = tempfile::tempdir().unwrap();
        let mut album = Album::new(directory.path(), "gs", "V", &[3, 30, 40], [0.0, 0.5]);
        let values: Vec<f64> = (0..120).map(|i| i as f64 / 240.0).collect();
        let when = When { version: 3, step: 30, time: 15.0 };
        album.add(when, &[Plane { axis: 1, index: 15, rows: 3, columns: 40, values: &values }]).unwrap();
        album.finish().unwrap();
        let index: serde_json::Value =
            serde_json::from_slice(&std::fs::read(directory.path().join("index.json")).unwrap()).unwrap();
        assert_eq!(index["schema"], SCHEMA);
        let entry = &index["slices"][0];
        assert_eq!(
            (entry["file"].as_str(), entry["width"].as_u64()),
            (Some("slice-y-000003.png"), Some(320))
        );
        let file = std::fs::File::open(directory.path().join("slice-y-000003.png")).unwrap();
        let reader = png::Decoder::new(file).read_info().unwrap();
        assert_eq!((reader.info().width, reader.info().height), (320, 24));
        assert_eq!(reader.info().palette.as_deref().map(<[u8]>::len), Some(768));
        assert!(!directory.path().join("index.json.partial").exists());
    }
}
