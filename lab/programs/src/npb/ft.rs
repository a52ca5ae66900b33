//! FT: heat that spreads in a periodic box, by Fourier transforms: the field is transformed once, and for each step
//! what is left of each wave is transformed back.
//!
//! Rows of an array are lines along x, y counting first, then z. Lines along x and y are transformed plane by
//! plane; those along z a few y at a time, whose rows of all planes are gathered. So an array is read (and written)
//! once in each of two orders.

use std::ops::Range;
use std::time::Instant;

use forebay_space::Result;

use super::fourier::{times, Complex, Transform, Way};
use super::random::Random;
use super::{Class, Outcome};
use crate::placed::{band_values, bands, Buffer, Placed, Placement};

/// How fast heat spreads.
const ALPHA: f64 = 1e-6;
/// Places whose values are summed.
const PLACES: usize = 1024;
/// Values that a thread works on in one go, where memory allows.
const BAND_VALUES: usize = 1 << 18;
/// Lines along x that are transformed side by side.
const SIDE_BY_SIDE: usize = 16;

/// What a class asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Points along x, y and z, powers of two.
    pub shape: [usize; 3],
    /// Steps.
    pub iterations: u64,
}

impl Problem {
    /// That of a class.
    pub fn of(class: Class) -> Problem {
        let (shape, iterations) = match class {
            Class::S => ([64, 64, 64], 6),
            Class::W => ([128, 128, 32], 6),
            Class::A => ([256, 256, 128], 6),
            Class::B => ([512, 256, 256], 20),
        };
        Problem { shape, iterations }
    }

    fn points(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of both arrays.
    pub fn bytes(&self) -> u64 {
        (2 * self.points() * size_of::<Complex>()) as u64
    }

    /// Operations on values, as the published figures of speed count them.
    pub fn flops(&self) -> f64 {
        let (points, steps) = (self.points() as f64, self.iterations as f64);
        points * (14.8157 + 7.19641 * points.ln() + (5.23518 + 7.21113 * points.ln()) * steps)
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
    let [nx, ny, nz] = problem.shape;
    let array = || Placed::new(ny * nz, 2 * nx, place);
    let (mut waves, mut field) = (array()?, array()?);
    let region = Region::new(problem, threads);
    let began = Instant::now();
    region.begin(&mut field)?;
    region.along_z(&field, &mut waves, Way::Forth, 0)?;
    let mut figures = Vec::new();
    for step in 1..=problem.iterations {
        region.along_z(&waves, &mut field, Way::Back, step)?;
        figures.extend(region.checksum(&field)?);
        progress(step);
    }
    let seconds = began.elapsed().as_secs_f64();
    let moved = [waves.moved(), field.moved()].into_iter().sum();
    let difference = difference(&figures, &published(class));
    Ok(Outcome { figures, difference, moved, seconds })
}

/// The largest difference of two complex numbers by the size of the second.
fn difference(found: &[f64], published: &[f64]) -> f64 {
    let pairs = found.chunks_exact(2).zip(published.chunks_exact(2));
    let apart = pairs.map(|(found, wanted)| {
        (found[0] - wanted[0]).hypot(found[1] - wanted[1]) / wanted[0].hypot(wanted[1])
    });
    match found.len() == published.len() {
        true => apart.fold(0.0, |most, x| if x.is_nan() { f64::INFINITY } else { x.max(most) }),
        false => f64::INFINITY,
    }
}

/// What is known beforehand.
struct Region {
    problem: Problem,
    threads: usize,
    along: [Transform; 3],
}

impl Region {
    fn new(problem: Problem, threads: usize) -> Region {
        Region { problem, threads, along: problem.shape.map(Transform::new) }
    }

    /// Planes in bands, and those that come after each.
    fn planes(&self, field: &Placed) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        let [nx, ny, nz] = self.problem.shape;
        let values = band_values([field], BAND_VALUES * self.threads);
        let all: Vec<Range<usize>> = bands(0..nz, 2 * nx * ny, values).collect();
        let next = all.clone().into_iter().skip(1).chain(std::iter::once(0..0));
        all.into_iter().zip(next)
    }

    /// Random numbers, transformed along x and y.
    fn begin(&self, field: &mut Placed) -> Result<()> {
        let [nx, ny, _] = self.problem.shape;
        for (band, _) in self.planes(field) {
            let first = band.start;
            field.write(band.start * ny..band.end * ny, |out| {
                super::by_chunks(self.threads, out, 2 * nx * ny, |at, out| {
                    let mut random = Random::after(((first + at) * 2 * nx * ny) as u64);
                    out.iter_mut().for_each(|x| *x = random.draw());
                    self.transform_plane(Way::Forth, bytemuck::cast_slice_mut(out));
                });
            })?;
        }
        Ok(())
    }

    /// Transforms a plane along x and y.
    fn transform_plane(&self, way: Way, plane: &mut [Complex]) {
        let [nx, ny, _] = self.problem.shape;
        let mut other = vec![[0.0; 2]; plane.len()];
        self.along[1].run(way, nx, plane, &mut other);
        let width = SIDE_BY_SIDE.min(ny);
        let (mut lines, mut other) = (vec![[0.0; 2]; nx * width], vec![[0.0; 2]; nx * width]);
        for rows in plane.chunks_exact_mut(nx * width) {
            for (line, row) in rows.chunks_exact(nx).enumerate() {
                row.iter().enumerate().for_each(|(x, value)| lines[x * width + line] = *value);
            }
            self.along[0].run(way, width, &mut lines, &mut other);
            for (line, row) in rows.chunks_exact_mut(nx).enumerate() {
                row.iter_mut().enumerate().for_each(|(x, value)| *value = lines[x * width + line]);
            }
        }
    }

    /// Transforms all lines along z, after taking from each wave what it loses in `steps`.
    fn along_z(&self, from: &Placed, to: &mut Placed, way: Way, steps: u64) -> Result<()> {
        let [nx, ny, nz] = self.problem.shape;
        let left: [Vec<f64>; 3] = self.problem.shape.map(|n| left(n, steps));
        // Rows of one y of all planes are one line of values.
        let values = band_values([from, &*to], BAND_VALUES);
        let each = (values / (2 * nx * nz)).clamp(1, ny);
        let all: Vec<Range<usize>> = (0..ny).step_by(each).map(|y| y..(y + each).min(ny)).collect();
        let mut buffer = Buffer::default();
        for (at, together) in all.chunks(self.threads).enumerate() {
            let mut blocks: Vec<Block> = together.iter().map(|rows| Block::new(rows, [nx, nz])).collect();
            for z in 0..nz {
                for block in &mut blocks {
                    let here = z * ny + block.rows.start..z * ny + block.rows.end;
                    // The same rows of the next plane; behind the last one, the next rows.
                    let next = if z + 1 < nz { (z + 1) * ny + block.rows.start } else { 0 };
                    let next = match (z + 1 < nz, all.get((at + 1) * self.threads)) {
                        (true, _) => next..next + block.rows.len(),
                        (false, Some(rows)) => rows.clone(),
                        (false, None) => 0..0,
                    };
                    let values: &[Complex] = bytemuck::cast_slice(from.read(here, next, &mut buffer)?);
                    block.take(z, values, &left, steps > 0);
                }
            }
            std::thread::scope(|scope| {
                for block in &mut blocks {
                    let along = &self.along[2];
                    scope.spawn(move || along.run(way, block.width, &mut block.values, &mut block.other));
                }
            });
            for z in 0..nz {
                for block in &blocks {
                    let values = &block.values[z * block.width..(z + 1) * block.width];
                    let here = z * ny + block.rows.start..z * ny + block.rows.end;
                    to.write(here, |out| out.copy_from_slice(bytemuck::cast_slice(values)))?;
                }
            }
        }
        Ok(())
    }

    /// Transforms along x and y, and sums the values of the places.
    fn checksum(&self, field: &Placed) -> Result<[f64; 2]> {
        let [nx, ny, nz] = self.problem.shape;
        let mut of_plane: Vec<Vec<usize>> = vec![Vec::new(); nz];
        for j in 1..=PLACES {
            of_plane[5 * j % nz].push(3 * j % ny * nx + j % nx);
        }
        let (mut sum, mut buffer) = ([0.0; 2], Buffer::default());
        for (band, next) in self.planes(field) {
            let rows = |band: &Range<usize>| band.start * ny..band.end * ny;
            let planes: &[Complex] =
                bytemuck::cast_slice(field.read(rows(&band), rows(&next), &mut buffer)?);
            let mut sums = vec![0.0; 2 * band.len()];
            super::by_chunks(self.threads, &mut sums, 2, |at, sum| {
                let mut plane = planes[at * nx * ny..][..nx * ny].to_vec();
                self.transform_plane(Way::Back, &mut plane);
                for place in &of_plane[band.start + at] {
                    (0..2).for_each(|part| sum[part] += plane[*place][part]);
                }
            });
            sums.chunks_exact(2).for_each(|plane| (0..2).for_each(|part| sum[part] += plane[part]));
        }
        Ok(sum.map(|x| x / self.problem.points() as f64))
    }
}

/// What is left of each wave along an axis after so many steps.
fn left(n: usize, steps: u64) -> Vec<f64> {
    let wave = |k: usize| if k < n / 2 { k as f64 } else { k as f64 - n as f64 };
    let rate = -4.0 * ALPHA * std::f64::consts::PI.powi(2) * steps as f64;
    (0..n).map(|k| (rate * wave(k) * wave(k)).exp()).collect()
}

/// Lines along z of a few y.
struct Block {
    rows: Range<usize>,
    /// Lines: all x of those rows.
    width: usize,
    values: Vec<Complex>,
    other: Vec<Complex>,
}

impl Block {
    fn new(rows: &Range<usize>, [nx, nz]: [usize; 2]) -> Block {
        let width = rows.len() * nx;
        let all = || vec![[0.0; 2]; width * nz];
        Block { rows: rows.clone(), width, values: all(), other: all() }
    }

    /// Takes the values of plane `z`, less what the waves have lost if they have.
    fn take(&mut self, z: usize, values: &[Complex], left: &[Vec<f64>; 3], lose: bool) {
        let into = &mut self.values[z * self.width..][..self.width];
        if !lose {
            return into.copy_from_slice(values);
        }
        let nx = left[0].len();
        for ((y, into), row) in self.rows.clone().zip(into.chunks_exact_mut(nx)).zip(values.chunks_exact(nx))
        {
            let rest = left[1][y] * left[2][z];
            for ((into, value), x) in into.iter_mut().zip(row).zip(&left[0]) {
                *into = times([rest * x, 0.0], *value);
            }
        }
    }
}

/// The published sums, real and imaginary part in turn, by step.
fn published(class: Class) -> Vec<f64> {
    let sums: &[[f64; 2]] = match class {
        Class::S => &[
            [554.6087004964, 484.5363331978],
            [554.6385409189, 486.5304269511],
            [554.6148406171, 488.3910722336],
            [554.5423607415, 490.1273169046],
            [554.4255039624, 491.7475857993],
            [554.2683411902, 493.2597244941],
        ],
        Class::W => &[
            [567.3612178944, 529.3246849175],
            [563.1436885271, 528.2149986629],
            [559.4024089970, 527.0996558037],
            [556.0698047020, 526.0027904925],
            [553.0898991250, 524.9400845633],
            [550.4159734538, 523.9212247086],
        ],
        Class::A => &[
            [504.6735008193, 511.4047905510],
            [505.9412319734, 509.8809666433],
            [506.9376896287, 509.8144042213],
            [507.7892868474, 510.1336130759],
            [508.5233095391, 510.4914655194],
            [509.1487099959, 510.7917842803],
        ],
        Class::B => &[
            [517.7643571579, 507.7803458597],
            [515.4521291263, 508.8249431599],
            [514.6409228649, 509.6208912659],
            [514.2378756213, 510.1023387619],
            [513.9626667737, 510.3976610617],
            [513.7423460082, 510.5948019802],
            [513.5547056878, 510.7404165783],
            [513.3910925466, 510.8576573661],
            [513.2470705390, 510.9577278523],
            [513.1197729984, 511.0460304483],
            [513.0070319283, 511.1252433800],
            [512.9070537032, 511.1968077718],
            [512.8182883502, 511.2616233064],
            [512.7393733383, 511.3203605551],
            [512.6691062020, 511.3735928093],
            [512.6064276004, 511.4218460548],
            [512.5504076570, 511.4656139760],
            [512.5002331720, 511.5053595966],
            [512.4551951846, 511.5415130407],
            [512.4146770029, 511.5744692211],
        ],
    };
    sums.concat()
}
