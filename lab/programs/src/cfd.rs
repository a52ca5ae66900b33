//! Flow through a 2-D box with one inlet and one outlet: Jacobi sweeps over stream function and vorticity, each array
//! in memory or on a tier.
//!
//! The stream function psi obeys ∇²psi = -zeta; the vorticity zeta is zero without a Reynolds number R and else obeys
//! the stationary transport equation. With north, south, east and west neighbours one sweep computes
//!
//! ```text
//! psi'  = (psiN + psiS + psiE + psiW - zeta) / 4
//! zeta' = (zetaN + zetaS + zetaE + zetaW) / 4
//!         - R/16 [(psiN - psiS)(zetaE - zetaW) - (psiE - psiW)(zetaN - zetaS)]
//! ```
//!
//! into two further arrays, which a second sweep copies back. The wall's vorticity is 2 (psi inside - psi at the wall).
//!
//! Guarantees: every value is the same bit for bit, wherever the arrays lie. Not here: choosing where they lie.

use std::ops::Range;

use forebay_space::{Error, Kind, Result};

use crate::placed::{band_values, bands, Buffer, Fingerprint, Moved, Placed, Placement};

/// Values that are worked on in one go.
const BAND_VALUES: usize = 1 << 18;

/// The arrays, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Stream function.
    Psi,
    /// Vorticity.
    Zeta,
    /// The next stream function.
    PsiNext,
    /// The next vorticity.
    ZetaNext,
}

impl Field {
    /// All of them; those of the vorticity are there only with a Reynolds number.
    pub const ALL: [Field; 4] = [Field::Psi, Field::Zeta, Field::PsiNext, Field::ZetaNext];

    /// `psi`, `zeta`, `psi_next`, `zeta_next`.
    pub fn name(self) -> &'static str {
        match self {
            Field::Psi => "psi",
            Field::Zeta => "zeta",
            Field::PsiNext => "psi_next",
            Field::ZetaNext => "zeta_next",
        }
    }

    fn is_vorticity(self) -> bool {
        matches!(self, Field::Zeta | Field::ZetaNext)
    }
}

/// What to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The box has 32 times as many cells along each edge; inlet and outlet grow with it.
    pub scale: usize,
    /// Sweeps.
    pub steps: usize,
    /// Reynolds number for scale 1; None: a flow without vorticity.
    pub reynolds: Option<f64>,
}

/// Cells along an edge at scale 1, and there: where the inlet begins, the height of the outlet, the width of both.
const CELLS: usize = 32;
const INLET: usize = 10;
const OUTLET: usize = 15;
const WIDTH: usize = 5;

impl Case {
    /// The arrays that this case has.
    pub fn fields(&self) -> impl Iterator<Item = Field> {
        let viscous = self.reynolds.is_some();
        Field::ALL.into_iter().filter(move |field| viscous || !field.is_vorticity())
    }

    /// Rows (and columns) of an array, with those of the wall.
    pub fn edge(&self) -> usize {
        CELLS * self.scale + 2
    }

    /// Bytes of one array.
    pub fn field_bytes(&self) -> u64 {
        (self.edge() * self.edge() * size_of::<f64>()) as u64
    }

    /// Whether it can be computed.
    ///
    /// # Errors
    /// `Usage` for a case without cells or sweeps, with more cells than can be counted, or without a number.
    pub fn check(&self) -> Result<()> {
        if !(1..=1 << 20).contains(&self.scale) || self.steps == 0 {
            return Err(Error::new(Kind::Usage, "scale and steps are at least 1, scale at most 1048576")
                .with("scale", self.scale)
                .with("steps", self.steps));
        }
        match self.reynolds {
            Some(reynolds) if !(reynolds.is_finite() && reynolds > 0.0) => {
                Err(Error::new(Kind::Usage, format!("a Reynolds number is not {reynolds}"))
                    .hint("above 0; up to some 3.7 the sweeps converge"))
            }
            _ => Ok(()),
        }
    }

    /// Stream function at a place of the wall; zero inside.
    fn wall(&self, row: usize, column: usize) -> f64 {
        let (last, scale) = (self.edge() - 1, self.scale);
        let (inlet, outlet, width) = (INLET * scale, OUTLET * scale, WIDTH * scale);
        let rise = |at: usize, from: usize| at.saturating_sub(from).min(width) as f64;
        match (row, column) {
            (0, _) => 0.0,
            (row, column) if row == last => match column {
                0 => 0.0,
                column if column == last => 0.0,
                column => width as f64 - rise(column, outlet),
            },
            (row, 0) => rise(row, inlet),
            _ => 0.0,
        }
    }
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Change of the last sweep: norm of the differences, by the norm of the stream function at the start.
    pub change: f64,
    /// Of the bits of stream function and vorticity.
    pub fingerprint: Fingerprint,
    /// What the sweeps moved.
    pub moved: Moved,
}

struct Flow {
    edge: usize,
    /// Values of a band.
    band: usize,
    /// Reynolds number by scale, by 16.
    convection: Option<f64>,
    psi: Placed,
    psi_next: Placed,
    /// Zeta and the next one.
    vorticity: Option<(Placed, Placed)>,
}

/// Computes a case with arrays placed as `place` says; `progress` is told of every sweep that is done.
///
/// # Errors
/// Those of [`Case::check`] and of [`Placed`].
pub fn compute(
    case: &Case,
    place: impl Fn(Field) -> Placement,
    mut progress: impl FnMut(usize),
) -> Result<Outcome> {
    case.check()?;
    let edge = case.edge();
    let field = |which| Placed::new(edge, edge, &place(which));
    let mut flow = Flow {
        edge,
        band: BAND_VALUES,
        convection: case.reynolds.map(|reynolds| reynolds / case.scale as f64 / 16.0),
        psi: field(Field::Psi)?,
        psi_next: field(Field::PsiNext)?,
        vorticity: match case.reynolds {
            Some(_) => Some((field(Field::Zeta)?, field(Field::ZetaNext)?)),
            None => None,
        },
    };
    flow.band = band_values(flow.fields(), BAND_VALUES);
    let norm = flow.begin(case)?;
    let mut change = 0.0;
    for step in 0..case.steps {
        flow.sweep()?;
        change = flow.take_over()?;
        flow.psi.persist()?;
        if let Some((zeta, _)) = &flow.vorticity {
            zeta.persist()?;
        }
        progress(step + 1);
    }
    let moved = flow.fields().map(Placed::moved).sum();
    Ok(Outcome { change: change.sqrt() / norm.sqrt(), fingerprint: flow.fingerprint()?, moved })
}

/// Vorticity at the ends of a row: the wall's.
fn at_ends(zeta: &mut [f64], psi: &[f64]) {
    let last = psi.len() - 1;
    zeta[0] = 2.0 * (psi[1] - psi[0]);
    zeta[last] = 2.0 * (psi[last - 1] - psi[last]);
}

/// A row of the wall: psi there, and the row inside.
fn along_wall(zeta: &mut [f64], wall: &[f64], inside: &[f64]) {
    for ((zeta, wall), inside) in zeta.iter_mut().zip(wall).zip(inside) {
        *zeta = 2.0 * (inside - wall);
    }
}

impl Flow {
    fn fields(&self) -> impl Iterator<Item = &Placed> {
        let vorticity = self.vorticity.iter().flat_map(|(now, next)| [now, next]);
        [&self.psi, &self.psi_next].into_iter().chain(vorticity)
    }

    fn bands(&self) -> impl Iterator<Item = Range<usize>> {
        bands(1..self.edge - 1, self.edge, self.band)
    }

    /// Rows that a sweep over a band looks at.
    fn around(&self, band: &Range<usize>) -> Range<usize> {
        band.start - 1..band.end + 1
    }

    /// The rows that the band after this one looks at.
    fn after(&self, band: &Range<usize>) -> Range<usize> {
        band.end..(band.end + band.len() + 1).min(self.edge)
    }

    /// Sets the walls; gives the sum of the squares of the stream function.
    fn begin(&mut self, case: &Case) -> Result<f64> {
        let (edge, mut sum) = (self.edge, 0.0);
        for band in bands(0..edge, edge, self.band) {
            let first = band.start;
            self.psi.write(band, |rows| {
                for (row, values) in (first..).zip(rows.chunks_exact_mut(edge)) {
                    values.iter_mut().enumerate().for_each(|(column, value)| *value = case.wall(row, column));
                    sum += values.iter().map(|v| v * v).sum::<f64>();
                }
            })?;
        }
        if let Some((zeta, _)) = &mut self.vorticity {
            let mut buffer = Buffer::default();
            for band in bands(1..edge - 1, edge, self.band) {
                let psi = self.psi.read(band.clone(), band.end..edge - 1, &mut buffer)?;
                zeta.write(band, |rows| {
                    rows.fill(0.0);
                    rows.chunks_exact_mut(edge).zip(psi.chunks_exact(edge)).for_each(|(z, p)| at_ends(z, p));
                })?;
            }
        }
        self.walls()?;
        Ok(sum)
    }

    /// Vorticity along the first and the last row.
    fn walls(&mut self) -> Result<()> {
        let Some((zeta, _)) = &mut self.vorticity else { return Ok(()) };
        let (edge, mut buffer) = (self.edge, Buffer::default());
        let first = self.psi.read(0..2, 0..0, &mut buffer)?;
        zeta.write(0..1, |row| along_wall(row, &first[..edge], &first[edge..]))?;
        let last = self.psi.read(edge - 2..edge, 0..0, &mut buffer)?;
        zeta.write(edge - 1..edge, |row| along_wall(row, &last[edge..], &last[..edge]))
    }

    /// Computes the next values of all cells.
    fn sweep(&mut self) -> Result<()> {
        let edge = self.edge;
        let (mut psi_buffer, mut zeta_buffer) = (Buffer::default(), Buffer::default());
        for band in self.bands() {
            let (around, after) = (self.around(&band), self.after(&band));
            let psi = self.psi.read(around.clone(), after.clone(), &mut psi_buffer)?;
            let Some(((zeta, zeta_next), convection)) = self.vorticity.as_mut().zip(self.convection) else {
                self.psi_next.write(band, |next| {
                    for (at, next) in next.chunks_exact_mut(edge).enumerate() {
                        without_vorticity(&psi[at * edge..(at + 3) * edge], next);
                    }
                })?;
                continue;
            };
            let zeta = zeta.read(around, after, &mut zeta_buffer)?;
            let three = |at: usize| at * edge..(at + 3) * edge;
            self.psi_next.write(band.clone(), |next| {
                for (at, next) in next.chunks_exact_mut(edge).enumerate() {
                    stream_function(&psi[three(at)], &zeta[three(at)], next);
                }
            })?;
            zeta_next.write(band, |next| {
                for (at, next) in next.chunks_exact_mut(edge).enumerate() {
                    vorticity(&psi[three(at)], &zeta[three(at)], convection, next);
                }
            })?;
        }
        Ok(())
    }

    /// Copies the next values back; gives the sum of the squares of what changed.
    fn take_over(&mut self) -> Result<f64> {
        let edge = self.edge;
        let (mut old, mut new, mut change) = (Buffer::default(), Buffer::default(), 0.0);
        for band in self.bands() {
            let after = band.end..(band.end + band.len()).min(edge - 1);
            let next = self.psi_next.read(band.clone(), after.clone(), &mut new)?;
            let now = self.psi.read(band.clone(), after.clone(), &mut old)?;
            for (next, now) in next.chunks_exact(edge).zip(now.chunks_exact(edge)) {
                change += next.iter().zip(now).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
            }
            self.psi.write(band.clone(), |rows| rows.copy_from_slice(next))?;
            if let Some((zeta, zeta_next)) = &mut self.vorticity {
                let inside = zeta_next.read(band.clone(), after, &mut old)?;
                zeta.write(band, |rows| {
                    rows.copy_from_slice(inside);
                    rows.chunks_exact_mut(edge).zip(next.chunks_exact(edge)).for_each(|(z, p)| at_ends(z, p));
                })?;
            }
        }
        self.walls()?;
        Ok(change)
    }

    fn fingerprint(&self) -> Result<Fingerprint> {
        let (mut sum, mut buffer) = (Fingerprint::default(), Buffer::default());
        let fields = std::iter::once(&self.psi).chain(self.vorticity.iter().map(|(zeta, _)| zeta));
        for (number, field) in fields.enumerate() {
            for band in bands(0..self.edge, self.edge, self.band) {
                let first = (number * self.edge + band.start) * self.edge;
                let after = band.end..(band.end + band.len()).min(self.edge);
                sum.add(first as u64, field.read(band, after, &mut buffer)?);
            }
        }
        Ok(sum)
    }
}

/// Three rows as north, centre and south, in the direction of growing rows.
fn split(three: &[f64]) -> [&[f64]; 3] {
    let edge = three.len() / 3;
    [&three[..edge], &three[edge..2 * edge], &three[2 * edge..]]
}

fn without_vorticity(psi: &[f64], next: &mut [f64]) {
    let ([west, here, east], last) = (split(psi), next.len() - 1);
    (next[0], next[last]) = (here[0], here[last]);
    for j in 1..last {
        next[j] = 0.25 * (west[j] + east[j] + here[j - 1] + here[j + 1]);
    }
}

fn stream_function(psi: &[f64], zeta: &[f64], next: &mut [f64]) {
    let ([west, here, east], [_, turning, _]) = (split(psi), split(zeta));
    let last = next.len() - 1;
    (next[0], next[last]) = (here[0], here[last]);
    for j in 1..last {
        next[j] = 0.25 * (west[j] + east[j] + here[j - 1] + here[j + 1] - turning[j]);
    }
}

fn vorticity(psi: &[f64], zeta: &[f64], convection: f64, next: &mut [f64]) {
    let ([psi_west, psi_here, psi_east], [west, here, east]) = (split(psi), split(zeta));
    let last = next.len() - 1;
    // The ends are the wall's, which the next stream function decides.
    (next[0], next[last]) = (0.0, 0.0);
    for j in 1..last {
        let carried = (psi_here[j + 1] - psi_here[j - 1]) * (east[j] - west[j])
            - (psi_east[j] - psi_west[j]) * (here[j + 1] - here[j - 1]);
        next[j] = 0.25 * (west[j] + east[j] + here[j - 1] + here[j + 1]) - convection * carried;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pager::{Pool, PoolOptions};
    use forebay_tier::Horizon;

    /// The same in whole arrays, straight from the equations.
    fn plain(case: &Case) -> (Vec<f64>, Vec<f64>) {
        let n = case.edge();
        let at = |i: usize, j: usize| i * n + j;
        let mut psi: Vec<f64> = (0..n * n).map(|k| case.wall(k / n, k % n)).collect();
        let mut zeta = vec![0.0; n * n];
        let reynolds = case.reynolds.map(|r| r / case.scale as f64 / 16.0);
        for _ in 0..case.steps {
            if reynolds.is_some() {
                for k in 1..n - 1 {
                    zeta[at(k, 0)] = 2.0 * (psi[at(k, 1)] - psi[at(k, 0)]);
                    zeta[at(k, n - 1)] = 2.0 * (psi[at(k, n - 2)] - psi[at(k, n - 1)]);
                    zeta[at(0, k)] = 2.0 * (psi[at(1, k)] - psi[at(0, k)]);
                    zeta[at(n - 1, k)] = 2.0 * (psi[at(n - 2, k)] - psi[at(n - 1, k)]);
                }
            }
            let (old, turning) = (psi.clone(), zeta.clone());
            for i in 1..n - 1 {
                for j in 1..n - 1 {
                    let sum =
                        |f: &[f64]| f[at(i - 1, j)] + f[at(i + 1, j)] + f[at(i, j - 1)] + f[at(i, j + 1)];
                    psi[at(i, j)] = 0.25 * (sum(&old) - turning[at(i, j)]);
                    if let Some(r) = reynolds {
                        let carried = (old[at(i, j + 1)] - old[at(i, j - 1)])
                            * (turning[at(i + 1, j)] - turning[at(i - 1, j)])
                            - (old[at(i + 1, j)] - old[at(i - 1, j)])
                                * (turning[at(i, j + 1)] - turning[at(i, j - 1)]);
                        zeta[at(i, j)] = 0.25 * sum(&turning) - r * carried;
                    }
                }
            }
        }
        (psi, zeta)
    }

    #[test]
    fn sweeps_are_the_equations() {
        for reynolds in [None, Some(2.0)] {
            let case = Case { scale: 2, steps: 25, reynolds };
            let (psi, zeta) = plain(&case);
            let mut flow = Flow {
                edge: case.edge(),
                band: 1000,
                convection: reynolds.map(|r| r / 2.0 / 16.0),
                psi: Placed::new(66, 66, &Placement::Dram).expect("psi"),
                psi_next: Placed::new(66, 66, &Placement::Dram).expect("psi"),
                vorticity: reynolds.map(|_| {
                    let one = || Placed::new(66, 66, &Placement::Dram).expect("zeta");
                    (one(), one())
                }),
            };
            flow.begin(&case).expect("begin");
            for _ in 0..case.steps {
                flow.sweep().expect("sweep");
                flow.take_over().expect("copy");
            }
            let mut buffer = Buffer::default();
            let got = flow.psi.read(0..66, 0..0, &mut buffer).expect("psi");
            assert!(got.iter().any(|v| *v > 0.0) && got == psi, "psi, R {reynolds:?}");
            if let Some((field, _)) = &flow.vorticity {
                let got = field.read(1..65, 0..0, &mut buffer).expect("zeta");
                for (i, row) in got.chunks_exact(66).enumerate() {
                    assert_eq!(row[1..65], zeta[(i + 1) * 66 + 1..(i + 1) * 66 + 65], "zeta, row {}", i + 1);
                }
            }
        }
    }

    #[test]
    fn flow_comes_in_and_goes_out_in_the_same_measure() {
        let case = Case { scale: 3, steps: 1, reynolds: None };
        let (n, width) = (case.edge(), (WIDTH * 3) as f64);
        let bottom: Vec<f64> = (0..n).map(|i| case.wall(i, 0)).collect();
        let right: Vec<f64> = (1..n - 1).map(|j| case.wall(n - 1, j)).collect();
        assert_eq!((bottom[INLET * 3], bottom[INLET * 3 + 1], bottom[n - 2]), (0.0, 1.0, width));
        assert_eq!((right[0], right[n - 3]), (width, 0.0));
    }

    #[test]
    fn the_same_bits_wherever_arrays_lie() {
        let dir = tempfile::tempdir().expect("a folder");
        let case = Case { scale: 8, steps: 6, reynolds: Some(2.0) };
        let dram = compute(&case, |_| Placement::Dram, |_| ()).expect("dram");
        for (horizon, every) in [(Horizon::None, false), (Horizon::Epoch, false), (Horizon::Write, true)] {
            // Less than a twentieth of the four arrays.
            let pool =
                Pool::new(PoolOptions { tile_max: 4096, ..PoolOptions::new(100 << 10) }).expect("a pool");
            let place = |field: Field| match every || matches!(field, Field::Psi | Field::Zeta) {
                true => {
                    Placement::Tier { pool: pool.clone(), dir: dir.path().into(), tile_bytes: 4096, horizon }
                }
                false => Placement::Dram,
            };
            let mut steps = Vec::new();
            let paged = compute(&case, place, |step| steps.push(step)).expect("paged");
            assert_eq!((paged.change, paged.fingerprint), (dram.change, dram.fingerprint), "{horizon}");
            let (all, there) = (dram.moved, paged.moved);
            // Narrow bands read the rows between them more than once.
            assert!(there.dram_read + there.tier_read >= all.dram_read);
            assert_eq!(there.dram_written + there.tier_written, all.dram_written);
            assert!(there.tier_written > 0 && all.tier_read == 0);
            assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
            assert!(pool.statistics().loaded > 0 && pool.statistics().written > 0);
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 0);
    }
}
