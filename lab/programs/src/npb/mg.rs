//! MG: Poisson's equation ∇²u = v on a periodic cube, v being 1 at ten points and -1 at ten others, by V-cycles.
//!
//! All operators have 27 points, whose weights depend on the distance alone: centre, face, edge, corner. A cycle
//! carries the residual down to the grid of 2 points along each edge, each coarse point lying at every second fine
//! one, and on the way up adds what is interpolated linearly and smooths it.
//!
//! An array has a row for each plane of z, and one more at either end that repeats the one at the other end.

// Indices are those of the equations, several planes long.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;
use std::time::Instant;

use forebay_space::Result;

use super::random::Random;
use super::{by_chunks, Class, Outcome};
use crate::placed::{band_values, bands, Buffer, Placed, Placement};

/// The discrete ∇², by distance; points across a face have no weight.
const LAPLACE: [f64; 4] = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
/// Means over a coarse point's neighbours.
const RESTRICT: [f64; 4] = [0.5, 0.25, 0.125, 0.0625];
/// Points of either sign in v.
const CHARGES: usize = 10;
/// Values that are worked on in one go, where memory allows.
const BAND_VALUES: usize = 1 << 22;
/// Arrays of fewer bytes lie in memory in any case: the coarse grids.
const SMALL_BYTES: usize = 64 << 10;

/// What a class asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Points along each edge, a power of two.
    pub n: usize,
    /// V-cycles.
    pub iterations: u64,
    /// The smoother.
    smooth: [f64; 4],
}

impl Problem {
    /// That of a class.
    pub fn of(class: Class) -> Problem {
        let small = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
        let large = [-3.0 / 17.0, 1.0 / 33.0, -1.0 / 61.0, 0.0];
        match class {
            Class::S => Problem { n: 32, iterations: 4, smooth: small },
            Class::W => Problem { n: 128, iterations: 4, smooth: small },
            Class::A => Problem { n: 256, iterations: 4, smooth: small },
            Class::B => Problem { n: 256, iterations: 20, smooth: large },
        }
    }

    fn levels(&self) -> impl Iterator<Item = usize> {
        let top = self.n.ilog2();
        (1..=top).map(|level| 1 << level)
    }

    /// Bytes of all arrays.
    pub fn bytes(&self) -> u64 {
        let values = |n: usize| (n + 2) * n * n;
        let all: usize = self.levels().map(|n| 2 * values(n)).sum::<usize>() + values(self.n);
        (all * size_of::<f64>()) as u64
    }

    /// Operations on values, as the published figures of speed count them.
    pub fn flops(&self) -> f64 {
        58.0 * (self.n as f64).powi(3) * self.iterations as f64
    }
}

/// The published norm of the residual.
fn published(class: Class) -> f64 {
    match class {
        Class::S => 0.5307707005734e-4,
        Class::W => 0.6467329375339e-5,
        Class::A => 0.2433365309069e-5,
        Class::B => 0.1800564401355e-5,
    }
}

/// See [`super::Kernel::compute`].
pub(super) fn compute(
    class: Class,
    place: &Placement,
    threads: usize,
    mut progress: impl FnMut(u64),
) -> Result<Outcome> {
    let problem = Problem::of(class);
    let mut grids = Grids::new(problem, place, threads)?;
    let began = Instant::now();
    grids.residual_of_finest()?;
    for iteration in 1..=problem.iterations {
        grids.cycle()?;
        grids.residual_of_finest()?;
        progress(iteration);
    }
    let norm = grids.norm()?;
    let seconds = began.elapsed().as_secs_f64();
    let wanted = published(class);
    let moved = grids.u.iter().chain(&grids.r).chain([&grids.v]).map(|grid| grid.values.moved()).sum();
    Ok(Outcome { figures: vec![norm], difference: ((norm - wanted) / wanted).abs(), moved, seconds })
}

/// One array of one grid.
struct Grid {
    n: usize,
    values: Placed,
}

/// All of them, the coarsest grid first.
struct Grids {
    problem: Problem,
    threads: usize,
    u: Vec<Grid>,
    r: Vec<Grid>,
    v: Grid,
}

impl Grid {
    fn new(n: usize, place: &Placement) -> Result<Grid> {
        let small = (n + 2) * n * n * size_of::<f64>() < SMALL_BYTES;
        let values = Placed::new(n + 2, n * n, if small { &Placement::Dram } else { place })?;
        Ok(Grid { n, values })
    }

    /// Bands of its planes, as many at once as memory allows beside those of these grids.
    fn bands(&self, beside: &[&Grid]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let fields = beside.iter().map(|grid| &grid.values).chain([&self.values]);
        // Two more planes are read with each band.
        let values = band_values(fields, BAND_VALUES).saturating_sub(2 * self.n * self.n);
        let all: Vec<Range<usize>> = bands(1..self.n + 1, self.n * self.n, values).collect();
        let next = all.clone().into_iter().skip(1).chain(std::iter::once(1..1));
        all.into_iter().zip(next)
    }

    /// Repeats the first and the last plane at the other end.
    fn wrap(&mut self, buffer: &mut Buffer) -> Result<()> {
        for (from, to) in [(self.n, 0), (1, self.n + 1)] {
            let plane = self.values.read(from..from + 1, from..from, buffer)?.to_vec();
            self.values.write(to..to + 1, |out| out.copy_from_slice(&plane))?;
        }
        Ok(())
    }
}

/// The planes of a band with one more on either side.
fn around(band: &Range<usize>) -> Range<usize> {
    band.start.saturating_sub(1)..band.end + 1
}

/// Sums of the neighbours of a row: itself, those across a face, across an edge and across a corner, the first two only
/// of other rows.
struct Rows {
    faces: Vec<f64>,
    edges: Vec<f64>,
}

impl Rows {
    fn new(n: usize) -> Rows {
        Rows { faces: vec![0.0; n], edges: vec![0.0; n] }
    }

    /// Of row `j` of the middle one of three planes.
    fn gather(&mut self, planes: &[f64], n: usize, j: usize) {
        let (low, high) = ((j + n - 1) % n, (j + 1) % n);
        let row = |plane: usize, j: usize| &planes[plane * n * n + j * n..][..n];
        let (a, b, c, d) = (row(1, low), row(1, high), row(0, j), row(2, j));
        for (i, sum) in self.faces.iter_mut().enumerate() {
            *sum = a[i] + b[i] + c[i] + d[i];
        }
        let (a, b, c, d) = (row(0, low), row(0, high), row(2, low), row(2, high));
        for (i, sum) in self.edges.iter_mut().enumerate() {
            *sum = a[i] + b[i] + c[i] + d[i];
        }
    }
}

/// Adds the operator of the middle one of three planes, times `sign`, to `out`.
fn apply(weights: [f64; 4], sign: f64, planes: &[f64], n: usize, rows: &mut Rows, out: &mut [f64]) {
    let [centre, face, edge, corner] = weights.map(|weight| sign * weight);
    for (j, out) in out.chunks_exact_mut(n).enumerate() {
        rows.gather(planes, n, j);
        let (here, faces, edges) = (&planes[n * n + j * n..][..n], &rows.faces[..n], &rows.edges[..n]);
        let at = |i: usize, low: usize, high: usize| {
            centre * here[i]
                + face * (here[low] + here[high] + faces[i])
                + edge * (faces[low] + faces[high] + edges[i])
                + corner * (edges[low] + edges[high])
        };
        out[0] += at(0, n - 1, 1 % n);
        out[n - 1] += at(n - 1, n - 2, 0);
        for i in 1..n - 1 {
            out[i] += at(i, i - 1, i + 1);
        }
    }
}

impl Grids {
    fn new(problem: Problem, place: &Placement, threads: usize) -> Result<Grids> {
        let all = || problem.levels().map(|n| Grid::new(n, place)).collect::<Result<Vec<Grid>>>();
        let mut v = Grid::new(problem.n, place)?;
        let (u, r) = (all()?, all()?);
        charge(&mut v)?;
        Ok(Grids { problem, threads, u, r, v })
    }

    fn top(&self) -> usize {
        self.u.len() - 1
    }

    /// r = v - ∇²u on the finest grid.
    fn residual_of_finest(&mut self) -> Result<()> {
        let top = self.top();
        let (u, r, v) = (&self.u[top], &mut self.r[top], &self.v);
        let (n, threads) = (u.n, self.threads);
        let (mut of_u, mut of_v) = (Buffer::default(), Buffer::default());
        for (band, next) in u.bands(&[r, v]) {
            let planes = u.values.read(around(&band), around(&next), &mut of_u)?;
            let right = v.values.read(band.clone(), next, &mut of_v)?;
            r.values.write(band, |out| {
                by_chunks(threads, out, n * n, |at, out| {
                    out.copy_from_slice(&right[at * n * n..][..n * n]);
                    apply(LAPLACE, -1.0, &planes[at * n * n..], n, &mut Rows::new(n), out);
                });
            })?;
        }
        r.wrap(&mut of_u)
    }

    /// `to` += sign · operator of `from`.
    fn add(weights: [f64; 4], sign: f64, from: &Grid, to: &mut Grid, threads: usize) -> Result<()> {
        let (n, mut buffer) = (from.n, Buffer::default());
        for (band, next) in from.bands(&[to]) {
            let planes = from.values.read(around(&band), around(&next), &mut buffer)?;
            to.values.update(band, next, |out| {
                by_chunks(threads, out, n * n, |at, out| {
                    apply(weights, sign, &planes[at * n * n..], n, &mut Rows::new(n), out);
                });
            })?;
        }
        to.wrap(&mut buffer)
    }

    /// The residual of the finer grid, as means around the points of the coarser one.
    fn restrict(&mut self, level: usize) -> Result<()> {
        let (coarse, fine) = self.r.split_at_mut(level + 1);
        let (coarse, fine) = (&mut coarse[level], &fine[0]);
        let (n, threads, mut buffer) = (coarse.n, self.threads, Buffer::default());
        // Coarse point J lies at fine point 2J + 1; rows begin with a repeated one.
        let fine_rows = |band: &Range<usize>| match band.is_empty() {
            true => 0..0,
            false => 2 * band.start - 1..2 * band.end,
        };
        let values = band_values([&coarse.values, &fine.values], BAND_VALUES) / 8;
        let all: Vec<Range<usize>> = bands(1..n + 1, n * n, values).collect();
        for (at, band) in all.iter().enumerate() {
            let next = all.get(at + 1).map_or(0..0, fine_rows);
            let planes = fine.values.read(fine_rows(band), next, &mut buffer)?;
            coarse.values.write(band.clone(), |out| {
                by_chunks(threads, out, n * n, |at, out| {
                    restrict_plane(&planes[2 * at * 4 * n * n..], n, out)
                });
            })?;
        }
        coarse.wrap(&mut buffer)
    }

    /// Adds what lies between coarse points to the finer grid, `level`; or writes it, which is the same for zeros.
    fn interpolate(&mut self, level: usize, adds: bool) -> Result<()> {
        let (coarse, fine) = self.u.split_at_mut(level);
        let (coarse, fine) = (&coarse[level - 1], &mut fine[0]);
        let (n, threads, mut buffer) = (fine.n, self.threads, Buffer::default());
        let coarse_rows = |band: &Range<usize>| match band.is_empty() {
            true => 0..0,
            false => (band.start - 1) / 2..(band.end - 2) / 2 + 2,
        };
        let values = band_values([&coarse.values, &fine.values], BAND_VALUES);
        let all: Vec<Range<usize>> = bands(1..n + 1, n * n, values).collect();
        for (at, band) in all.iter().enumerate() {
            let next = all.get(at + 1).map_or(0..0, coarse_rows);
            let (first, from) = (band.start - 1, coarse_rows(band));
            let planes = coarse.values.read(from.clone(), next, &mut buffer)?;
            let fill = |out: &mut [f64]| {
                by_chunks(threads, out, n * n, |at, out| {
                    let k = first + at;
                    // Odd planes lie on a coarse one, even ones between two.
                    let low = (k / 2 + k % 2) - from.start;
                    interpolate_plane(&planes[low * n * n / 4..], k % 2 == 0, n, out);
                });
            };
            match adds {
                true => fine.values.update(band.clone(), band.end..band.end, fill)?,
                false => fine.values.write(band.clone(), |out| {
                    out.fill(0.0);
                    fill(out);
                })?,
            }
        }
        fine.wrap(&mut buffer)
    }

    /// A V-cycle.
    fn cycle(&mut self) -> Result<()> {
        let (top, threads, smooth) = (self.top(), self.threads, self.problem.smooth);
        (0..top).rev().try_for_each(|level| self.restrict(level))?;
        let n = self.u[0].n;
        self.u[0].values.write(0..n + 2, |out| out.fill(0.0))?;
        Grids::add(smooth, 1.0, &self.r[0], &mut self.u[0], threads)?;
        for level in 1..top {
            self.interpolate(level, false)?;
            Grids::add(LAPLACE, -1.0, &self.u[level], &mut self.r[level], threads)?;
            Grids::add(smooth, 1.0, &self.r[level], &mut self.u[level], threads)?;
        }
        self.interpolate(top, true)?;
        self.residual_of_finest()?;
        Grids::add(smooth, 1.0, &self.r[top], &mut self.u[top], threads)
    }

    /// Root of the mean square of the finest residual.
    fn norm(&self) -> Result<f64> {
        let (r, mut buffer, mut sum) = (&self.r[self.top()], Buffer::default(), 0.0);
        for (band, next) in r.bands(&[]) {
            for plane in r.values.read(band, next, &mut buffer)?.chunks_exact(r.n * r.n) {
                sum += plane.iter().map(|x| x * x).sum::<f64>();
            }
        }
        Ok((sum / (r.n as f64).powi(3)).sqrt())
    }
}

/// A plane of `n` x `n` coarse points from the three fine planes around it.
fn restrict_plane(planes: &[f64], n: usize, out: &mut [f64]) {
    let fine = 2 * n;
    let mut rows = Rows::new(fine);
    let [centre, face, edge, corner] = RESTRICT;
    for (j, out) in out.chunks_exact_mut(n).enumerate() {
        rows.gather(planes, fine, 2 * j + 1);
        let here = &planes[fine * fine + (2 * j + 1) * fine..][..fine];
        for (i, out) in out.iter_mut().enumerate() {
            let (low, at, high) = (2 * i, 2 * i + 1, (2 * i + 2) % fine);
            *out = centre * here[at]
                + face * (here[low] + here[high] + rows.faces[at])
                + edge * (rows.faces[low] + rows.faces[high] + rows.edges[at])
                + corner * (rows.edges[low] + rows.edges[high]);
        }
    }
}

/// Adds to a fine plane what lies on a coarse plane, or between it and the one behind.
fn interpolate_plane(planes: &[f64], between: bool, n: usize, out: &mut [f64]) {
    let half = n / 2;
    let mut line = vec![0.0; half];
    for (j, out) in out.chunks_exact_mut(n).enumerate() {
        // Row j lies on coarse row (j - 1) / 2, or between that and the next.
        let low = (j + n - 1) % n / 2;
        let high = if j % 2 == 0 { j / 2 } else { low };
        line.fill(0.0);
        let depth = if between { 2 } else { 1 };
        for plane in planes.chunks_exact(half * half).take(depth) {
            for row in [low, high] {
                line.iter_mut().zip(&plane[row * half..]).for_each(|(sum, x)| *sum += x);
            }
        }
        let weight = 0.5 / depth as f64;
        for (i, out) in out.iter_mut().enumerate() {
            let (low, high) = ((i + n - 1) % n / 2, i / 2);
            *out += weight * 0.5 * (line[low] + line[high]);
        }
    }
}

/// 1 at the places of the largest random numbers, -1 at those of the smallest.
fn charge(v: &mut Grid) -> Result<()> {
    let n = v.n;
    let mut random = Random::after(0);
    let (mut largest, mut smallest) = (Vec::new(), Vec::new());
    for place in 0..n * n * n {
        let x = random.draw();
        keep(&mut largest, (x, place));
        keep(&mut smallest, (-x, place));
    }
    for k in 0..n {
        let in_plane = |charges: &[(f64, usize)]| -> Vec<usize> {
            let all = charges.iter().filter(|(_, place)| place / (n * n) == k);
            all.map(|(_, place)| place % (n * n)).collect()
        };
        let (positive, negative) = (in_plane(&largest), in_plane(&smallest));
        v.values.write(k + 1..k + 2, |out| {
            out.fill(0.0);
            positive.iter().for_each(|place| out[*place] = 1.0);
            negative.iter().for_each(|place| out[*place] = -1.0);
        })?;
    }
    v.wrap(&mut Buffer::default())
}

/// Keeps the largest.
fn keep(largest: &mut Vec<(f64, usize)>, one: (f64, usize)) {
    if largest.len() == CHARGES && largest[CHARGES - 1].0 >= one.0 {
        return;
    }
    let at = largest.partition_point(|other| other.0 >= one.0);
    largest.insert(at, one);
    largest.truncate(CHARGES);
}
