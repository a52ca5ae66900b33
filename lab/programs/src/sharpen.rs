//! Sharpening a grey image: it is convolved with an edge filter of a Gaussian's Laplacian, and that is taken off.
//!
//! With d = 8 the filter covers the (2d+1)² values around a cell, at distance r:
//!
//! ```text
//! f(r) = -40 (1 - x) exp(-x),    x = r² / (2 s²),    s² = (1.4 / 4)² d²
//! sharp = fuzzy - 2 / (2d-1)² · (fuzzy convolved with f)
//! ```
//!
//! Outside the image there are zeros; the edge of d cells, which sees them, is left out of what comes out.
//!
//! Guarantees: every value is the same bit for bit, wherever the arrays lie. The image is made, not read: bright discs
//! on a ramp with noise, blurred, from a seed.

use std::ops::Range;
use std::path::Path;

use forebay_space::{Error, Kind, Result};

use crate::numbers::{number, unit};
use crate::placed::{band_values, bands, Buffer, Fingerprint, Moved, Placed, Placement};

/// Cells that the filter reaches in each direction.
pub const REACH: usize = 8;
/// Values that are worked on in one go.
const BAND_VALUES: usize = 1 << 17;
/// Greatest value of the image.
const WHITE: f64 = 255.0;

/// The arrays, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// The image as it is taken.
    Fuzzy,
    /// The image with zeros around it.
    Padded,
    /// Its convolution with the filter.
    Edges,
    /// What comes out.
    Sharp,
}

impl Field {
    /// All of them.
    pub const ALL: [Field; 4] = [Field::Fuzzy, Field::Padded, Field::Edges, Field::Sharp];

    /// `fuzzy`, `padded`, `edges`, `sharp`.
    pub fn name(self) -> &'static str {
        match self {
            Field::Fuzzy => "fuzzy",
            Field::Padded => "padded",
            Field::Edges => "edges",
            Field::Sharp => "sharp",
        }
    }
}

/// The image to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Rows of the image.
    pub rows: usize,
    /// Columns of the image.
    pub columns: usize,
    /// Where its noise begins.
    pub seed: u64,
}

impl Case {
    /// Rows and columns of an array.
    pub fn extent(&self, field: Field) -> (usize, usize) {
        match field {
            Field::Padded => (self.rows + 2 * REACH, self.columns + 2 * REACH),
            _ => (self.rows, self.columns),
        }
    }

    /// Bytes of an array.
    pub fn field_bytes(&self, field: Field) -> u64 {
        let (rows, columns) = self.extent(field);
        (rows * columns * size_of::<f64>()) as u64
    }

    /// Whether it can be computed.
    ///
    /// # Errors
    /// `Usage` for an image that is all edge, or longer than can be counted.
    pub fn check(&self) -> Result<()> {
        let possible = 2 * REACH + 1..=1 << 26;
        if possible.contains(&self.rows) && possible.contains(&self.columns) {
            return Ok(());
        }
        Err(Error::new(Kind::Usage, "the image is not larger than the filter, or longer than 67108864")
            .with("rows", self.rows)
            .with("columns", self.columns)
            .hint(format!("at least {} in each direction", 2 * REACH + 1)))
    }

    /// Grey value of a cell, 0 to 255: discs of a few sizes in a grid, each blurred along its rim, on a ramp; noise.
    fn grey(&self, row: usize, column: usize) -> f64 {
        const GRID: usize = 97;
        let within = |at: usize| (at % GRID) as f64 - GRID as f64 / 2.0;
        let radius = 12.0 + ((row / GRID * 5 + column / GRID * 3) % 7) as f64 * 4.0;
        let distance = within(row).hypot(within(column));
        let disc = 1.0 / (1.0 + ((distance - radius) / 2.0).exp());
        let ramp = (row + column) as f64 / (self.rows + self.columns) as f64;
        let noise = unit(number(self.seed, (row * self.columns + column) as u64));
        // Grey values are whole numbers, as a picture's are.
        ((0.55 * disc + 0.35 * ramp + 0.1 * noise) * WHITE).round()
    }
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Mean grey value of the sharpened image.
    pub mean: f64,
    /// Of its bits.
    pub fingerprint: Fingerprint,
    /// What was moved to get there.
    pub moved: Moved,
}

type Filter = [[f64; 2 * REACH + 1]; 2 * REACH + 1];

fn filter() -> Filter {
    let spread = (1.4 / 4.0 * REACH as f64).powi(2);
    let value = |row: usize, column: usize| {
        let (dy, dx) = (row as f64 - REACH as f64, column as f64 - REACH as f64);
        let x = (dx * dx + dy * dy) / (2.0 * spread);
        -40.0 * (1.0 - x) * (-x).exp()
    };
    std::array::from_fn(|row| std::array::from_fn(|column| value(row, column)))
}

/// Part of the convolution that is taken off.
fn share() -> f64 {
    2.0 / ((2 * REACH - 1) as f64).powi(2)
}

/// One row of the convolution, from as many padded rows as the filter has.
fn convolve(filter: &Filter, padded: &[f64], width: usize, out: &mut [f64]) {
    out.fill(0.0);
    for (weights, row) in filter.iter().zip(padded.chunks_exact(width)) {
        for (shift, weight) in weights.iter().enumerate() {
            for (out, value) in out.iter_mut().zip(&row[shift..]) {
                *out += weight * value;
            }
        }
    }
}

/// Makes the image, sharpens it with arrays placed as `place` says, and writes a picture (PNG) if asked to. `progress`
/// is told how many rows of the convolution are done.
///
/// # Errors
/// Those of [`Case::check`] and of [`Placed`]; what writing the picture says.
pub fn compute(
    case: &Case,
    place: impl Fn(Field) -> Placement,
    picture: Option<&Path>,
    mut progress: impl FnMut(usize),
) -> Result<Outcome> {
    case.check()?;
    let field = |which| {
        let (rows, columns) = case.extent(which);
        Placed::new(rows, columns, &place(which))
    };
    // All before any is touched: their page tables have to fit the budget beside the data.
    let (mut fuzzy, mut padded) = (field(Field::Fuzzy)?, field(Field::Padded)?);
    let (mut edges, mut sharp) = (field(Field::Edges)?, field(Field::Sharp)?);
    let band = band_values([&fuzzy, &padded, &edges, &sharp], BAND_VALUES);
    take(case, &mut fuzzy, band)?;
    pad(&fuzzy, &mut padded, band)?;
    find_edges(&padded, &mut edges, band, &mut progress)?;
    take_off(&fuzzy, &edges, &mut sharp, band)?;
    let fields = [&fuzzy, &padded, &edges, &sharp];
    fields.iter().try_for_each(|field| field.persist())?;
    let moved = fields.map(Placed::moved).into_iter().sum();
    if let Some(path) = picture {
        draw(case, &sharp, path)?;
    }
    outcome(case, &sharp, moved)
}

fn take(case: &Case, fuzzy: &mut Placed, values: usize) -> Result<()> {
    for band in bands(0..case.rows, case.columns, values) {
        let first = band.start;
        fuzzy.write(band, |values| {
            for (row, values) in (first..).zip(values.chunks_exact_mut(case.columns)) {
                values.iter_mut().enumerate().for_each(|(column, value)| *value = case.grey(row, column));
            }
        })?;
    }
    Ok(())
}

fn pad(fuzzy: &Placed, padded: &mut Placed, values: usize) -> Result<()> {
    let (rows, columns, mut buffer) = (fuzzy.rows(), fuzzy.columns(), Buffer::default());
    let zeros = |rows: &mut [f64]| rows.fill(0.0);
    padded.write(0..REACH, zeros)?;
    for band in bands(0..rows, columns, values) {
        let values = fuzzy.read(band.clone(), after(&band, rows), &mut buffer)?;
        padded.write(band.start + REACH..band.end + REACH, |out| {
            for (out, values) in out.chunks_exact_mut(columns + 2 * REACH).zip(values.chunks_exact(columns)) {
                out.fill(0.0);
                out[REACH..REACH + columns].copy_from_slice(values);
            }
        })?;
    }
    padded.write(rows + REACH..rows + 2 * REACH, zeros)
}

/// The rows after a band, as many again.
fn after(band: &Range<usize>, rows: usize) -> Range<usize> {
    band.end.min(rows)..(band.end + band.len()).min(rows)
}

fn find_edges(
    padded: &Placed,
    edges: &mut Placed,
    values: usize,
    progress: &mut impl FnMut(usize),
) -> Result<()> {
    let (filter, width, columns) = (filter(), padded.columns(), edges.columns());
    let mut buffer = Buffer::default();
    for band in bands(0..edges.rows(), columns, values) {
        let (around, end) = (band.start..band.end + 2 * REACH, band.end);
        let values = padded.read(around.clone(), after(&around, padded.rows()), &mut buffer)?;
        edges.write(band, |out| {
            for (at, out) in out.chunks_exact_mut(columns).enumerate() {
                convolve(&filter, &values[at * width..(at + 2 * REACH + 1) * width], width, out);
            }
        })?;
        progress(end);
    }
    Ok(())
}

fn take_off(fuzzy: &Placed, edges: &Placed, sharp: &mut Placed, values: usize) -> Result<()> {
    let (share, rows) = (share(), fuzzy.rows());
    let (mut first, mut second) = (Buffer::default(), Buffer::default());
    for band in bands(0..rows, fuzzy.columns(), values) {
        let image = fuzzy.read(band.clone(), after(&band, rows), &mut first)?;
        let found = edges.read(band.clone(), after(&band, rows), &mut second)?;
        sharp.write(band, |out| {
            for ((out, image), found) in out.iter_mut().zip(image).zip(found) {
                *out = image - share * found;
            }
        })?;
    }
    Ok(())
}

/// Calls `see` with each row of what comes out, without the edge.
fn cropped(case: &Case, sharp: &Placed, mut see: impl FnMut(&[f64]) -> Result<()>) -> Result<()> {
    let mut buffer = Buffer::default();
    for band in bands(REACH..case.rows - REACH, case.columns, BAND_VALUES) {
        let values = sharp.read(band.clone(), after(&band, case.rows), &mut buffer)?;
        for row in values.chunks_exact(case.columns) {
            see(&row[REACH..case.columns - REACH])?;
        }
    }
    Ok(())
}

fn outcome(case: &Case, sharp: &Placed, moved: Moved) -> Result<Outcome> {
    let (mut sum, mut fingerprint, mut seen) = (0.0, Fingerprint::default(), 0);
    cropped(case, sharp, |row| {
        sum += row.iter().sum::<f64>();
        fingerprint.add(seen, row);
        seen += row.len() as u64;
        Ok(())
    })?;
    Ok(Outcome { mean: sum / seen as f64, fingerprint, moved })
}

fn draw(case: &Case, sharp: &Placed, path: &Path) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| {
        Error::new(Kind::Io, format!("cannot write {}: {e}", path.display())).hint("is the folder there?")
    };
    let (width, height) = (case.columns - 2 * REACH, case.rows - 2 * REACH);
    let file = std::fs::File::create(path).map_err(|e| failed(&e))?;
    let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), width as u32, height as u32);
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header().map_err(|e| failed(&e))?;
    let mut pixels = Vec::with_capacity(width * height);
    cropped(case, sharp, |row| {
        pixels.extend(row.iter().map(|value| value.round().clamp(0.0, WHITE) as u8));
        Ok(())
    })?;
    writer.write_image_data(&pixels).map_err(|e| failed(&e))?;
    writer.finish().map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pager::{Pool, PoolOptions};
    use forebay_tier::Horizon;

    const CASE: Case = Case { rows: 300, columns: 211, seed: 3 };

    #[test]
    fn a_cell_is_what_the_formula_says() {
        let mut sharp = Placed::new(CASE.rows, CASE.columns, &Placement::Dram).expect("sharp");
        let one = |which| {
            let (rows, columns) = CASE.extent(which);
            Placed::new(rows, columns, &Placement::Dram).expect("an array")
        };
        let (mut fuzzy, mut padded, mut edges) = (one(Field::Fuzzy), one(Field::Padded), one(Field::Edges));
        take(&CASE, &mut fuzzy, 999).expect("take");
        pad(&fuzzy, &mut padded, 999).expect("pad");
        find_edges(&padded, &mut edges, 999, &mut |_| ()).expect("edges");
        take_off(&fuzzy, &edges, &mut sharp, 999).expect("sharp");
        let mut buffer = Buffer::default();
        let got = sharp.read(0..CASE.rows, 0..0, &mut buffer).expect("read");
        for (row, column) in [(0, 0), (8, 9), (150, 100), (299, 210), (291, 4)] {
            let mut sum = 0.0;
            for (dy, dx) in (-8i64..=8).flat_map(|dy| (-8i64..=8).map(move |dx| (dy, dx))) {
                let (r, c) = (row as i64 + dy, column as i64 + dx);
                if (0..300).contains(&r) && (0..211).contains(&c) {
                    let x = (dx * dx + dy * dy) as f64 / (2.0 * (0.35f64 * 8.0).powi(2));
                    sum += -40.0 * (1.0 - x) * (-x).exp() * CASE.grey(r as usize, c as usize);
                }
            }
            let wanted = CASE.grey(row, column) - 2.0 / 225.0 * sum;
            let got = got[row * CASE.columns + column];
            assert!((got - wanted).abs() < 1e-9 * wanted.abs().max(1.0), "{row},{column}: {got} {wanted}");
        }
    }

    #[test]
    fn the_same_bits_wherever_arrays_lie() {
        let dir = tempfile::tempdir().expect("a folder");
        let dram = compute(&CASE, |_| Placement::Dram, None, |_| ()).expect("dram");
        for moved in [&[Field::Fuzzy, Field::Padded][..], &Field::ALL] {
            let pool =
                Pool::new(PoolOptions { tile_max: 4096, ..PoolOptions::new(100 << 10) }).expect("a pool");
            let horizon = Horizon::Epoch;
            let place = |field| match moved.contains(&field) {
                true => {
                    Placement::Tier { pool: pool.clone(), dir: dir.path().into(), tile_bytes: 4096, horizon }
                }
                false => Placement::Dram,
            };
            let paged = compute(&CASE, place, None, |_| ()).expect("paged");
            assert_eq!((paged.mean, paged.fingerprint), (dram.mean, dram.fingerprint));
            assert!(pool.statistics().loaded > 0);
        }
    }

    #[test]
    fn the_picture_is_what_came_out() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("sharp.png");
        compute(&CASE, |_| Placement::Dram, Some(&path), |_| ()).expect("computed");
        let file = std::io::BufReader::new(std::fs::File::open(path).expect("the picture"));
        let info = png::Decoder::new(file).read_info().expect("a picture");
        assert_eq!((info.info().width, info.info().height), (195, 284));
        let small = Case { rows: 16, ..CASE };
        let error = compute(&small, |_| Placement::Dram, None, |_| ()).expect_err("all edge");
        assert_eq!(error.kind(), Kind::Usage);
    }
}
