//! Statistics of a field, reduced in an order that does not depend on who computed what.
//!
//! Each z plane is reduced alone, in a fixed order; the planes are combined in their order by one rank.
//! Histograms are integers. So the numbers are the same bit for bit for every number of reader ranks.

use super::isosurface::layer_area;
use crate::simulation::field::Cell;
use forebay_space::{Error, Kind, Result};
use serde::Serialize;

/// What one plane contributes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanePartial {
    /// Smallest value in the plane.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Sum of the values, row by row.
    pub sum: f64,
    /// Isosurface area in the layer of cells between this plane and the next; 0 for the last plane.
    pub iso_area: f64,
}

impl PlanePartial {
    /// Numbers in the order in which they travel.
    pub const WIDTH: usize = 4;

    /// As numbers.
    pub fn to_array(self) -> [f64; Self::WIDTH] {
        [self.min, self.max, self.sum, self.iso_area]
    }

    /// From numbers.
    pub fn from_array([min, max, sum, iso_area]: [f64; Self::WIDTH]) -> PlanePartial {
        PlanePartial { min, max, sum, iso_area }
    }
}

/// Counts of values in equal bins of a fixed range; values outside are counted apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    low: f64,
    high: f64,
    /// Values below the range.
    pub below: u64,
    /// Values above the range.
    pub above: u64,
    /// One count for each bin; the upper end of the range belongs to the last.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// An empty histogram of `bins` bins over `low..=high`.
    pub fn new(low: f64, high: f64, bins: usize) -> Histogram {
        Histogram { low, high, below: 0, above: 0, counts: vec![0; bins] }
    }

    #[inline]
    fn add(&mut self, value: f64) {
        if value < self.low {
            self.below += 1;
        } else if value > self.high {
            self.above += 1;
        } else {
            let bin = (value - self.low) / (self.high - self.low) * self.counts.len() as f64;
            let last = self.counts.len() - 1;
            self.counts[(bin as usize).min(last)] += 1;
        }
    }

    /// Adds the counts of another histogram of the same bins.
    pub fn merge(&mut self, other: &Histogram) {
        self.below += other.below;
        self.above += other.above;
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
    }
}

/// What is computed; the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// Value of the isosurface.
    pub threshold: f64,
    /// Bins of the histogram.
    pub bins: usize,
    /// Range of the histogram.
    pub range: [f64; 2],
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe { threshold: 0.1, bins: 256, range: [0.0, 1.0] }
    }
}

impl Recipe {
    /// An empty histogram.
    pub fn histogram(&self) -> Histogram {
        Histogram::new(self.range[0], self.range[1], self.bins)
    }

    /// `Kind::Usage` when the numbers make no sense.
    pub fn validate(&self) -> Result<()> {
        let [low, high] = self.range;
        if !(low.is_finite() && high.is_finite() && low < high) {
            return Err(Error::new(Kind::Usage, "the histogram's range needs a low end below its high end")
                .with("range", format!("{low}..{high}")));
        }
        if self.bins == 0 || self.bins > BINS_MAX || !self.threshold.is_finite() {
            return Err(Error::new(Kind::Usage, "bins lie between 1 and 65536, the threshold is finite")
                .with("bins", self.bins)
                .with("threshold", self.threshold));
        }
        Ok(())
    }
}

/// More would make the line of one step longer than the step's pictures.
const BINS_MAX: usize = 1 << 16;

/// Reduces the planes of a slab. `values` holds the slab in C order with `plane_shape` values for each plane,
/// and one plane more when the grid goes on above (`planes` counts without it). The histogram grows.
///
/// `Kind::Damaged` when a value is not a finite number.
pub fn reduce_slab<T: Cell>(
    values: &[T],
    planes: usize,
    plane_shape: [usize; 2],
    recipe: &Recipe,
    histogram: &mut Histogram,
) -> Result<Vec<PlanePartial>> {
    let cells = plane_shape[0] * plane_shape[1];
    let plane = |p: usize| values.get(p * cells..(p + 1) * cells);
    (0..planes)
        .map(|p| {
            let this = plane(p).expect("the slab holds its planes");
            let mut partial = reduce_plane(this, plane_shape[1]);
            if !partial.sum.is_finite() {
                return Err(Error::new(Kind::Damaged, "the field holds values that are not finite")
                    .with("plane_of_slab", p)
                    .hint("the simulation has diverged: a smaller time step may help"));
            }
            this.iter().for_each(|v| histogram.add(v.wide()));
            if let Some(above) = plane(p + 1) {
                partial.iso_area = layer_area(this, above, plane_shape, recipe.threshold);
            }
            Ok(partial)
        })
        .collect()
}

/// Minimum, maximum and sum of a plane. Rows are summed in eight interleaved parts, which are added pairwise:
/// a fixed order that the compiler can keep in vector registers.
fn reduce_plane<T: Cell>(plane: &[T], row_length: usize) -> PlanePartial {
    let mut partial = PlanePartial { min: f64::INFINITY, max: f64::NEG_INFINITY, sum: 0.0, iso_area: 0.0 };
    for row in plane.chunks_exact(row_length) {
        let mut sums = [0.0f64; 8];
        let mut low = [f64::INFINITY; 8];
        let mut high = [f64::NEG_INFINITY; 8];
        let eights = row.chunks_exact(8);
        let rest = eights.remainder();
        for eight in eights.chain([rest]) {
            for (i, v) in eight.iter().enumerate() {
                let v = v.wide();
                sums[i] += v;
                low[i] = if v < low[i] { v } else { low[i] };
                high[i] = if v > high[i] { v } else { high[i] };
            }
        }
        partial.sum +=
            ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
        partial.min = low.into_iter().fold(partial.min, f64::min);
        partial.max = high.into_iter().fold(partial.max, f64::max);
    }
    partial
}

/// The statistics of one version: one line of `statistics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// Time steps of the simulation before this version.
    pub step: u64,
    /// The version.
    pub version: u64,
    /// Simulated time.
    pub time: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Mean value.
    pub mean: f64,
    /// Area of the isosurface, in units of the grid spacing squared. The surface ends at the grid's edge:
    /// cells across the periodic wrap are not counted.
    pub iso_area: f64,
    /// The same numbers as the bits of IEEE 754 binary64, for comparison by eye and by `diff`.
    pub bits: Bits,
    /// Values below the histogram's range.
    pub below: u64,
    /// Values above it.
    pub above: u64,
    /// Counts of the bins.
    pub histogram: Vec<u64>,
}

/// Hexadecimal bits of the floating-point numbers of [`Statistics`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bits {
    /// Of `min`.
    pub min: String,
    /// Of `max`.
    pub max: String,
    /// Of `mean`.
    pub mean: String,
    /// Of `iso_area`.
    pub iso_area: String,
}

/// Which version of which simulation: what the field itself does not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct When {
    /// The version.
    pub version: u64,
    /// Time steps before it.
    pub step: u64,
    /// Simulated time.
    pub time: f64,
}

/// Combines all planes of the grid, in their order.
pub fn combine(
    when: When,
    planes: &[PlanePartial],
    cells_per_plane: usize,
    histogram: Histogram,
) -> Statistics {
    let (mut min, mut max, mut sum, mut iso_area) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0.0);
    for plane in planes {
        min = plane.min.min(min);
        max = plane.max.max(max);
        sum += plane.sum;
        iso_area += plane.iso_area;
    }
    let mean = sum / (planes.len() * cells_per_plane) as f64;
    let hex = |x: f64| format!("0x{:016x}", x.to_bits());
    Statistics {
        step: when.step,
        version: when.version,
        time: when.time,
        min,
        max,
        mean,
        iso_area,
        bits: Bits { min: hex(min), max: hex(max), mean: hex(mean), iso_area: hex(iso_area) },
        below: histogram.below,
        above: histogram.above,
        histogram: histogram.counts,
    }
}

/// The statistics of a field that lies in memory, without any space: `values` in C order.
pub fn of_field<T: Cell>(values: &[T], shape: [usize; 3], when: When, recipe: &Recipe) -> Result<Statistics> {
    if values.len() != shape.iter().product::<usize>() {
        return Err(Error::new(Kind::BufferMismatch, "the field does not have the shape's number of values")
            .with("values", values.len())
            .with("shape", format!("{shape:?}")));
    }
    let mut histogram = recipe.histogram();
    let planes = reduce_slab(values, shape[0], [shape[1], shape[2]], recipe, &mut histogram)?;
    Ok(combine(when, &planes, shape[1] * shape[2], histogram))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::noise::Noise;
    use crate::simulation::split::part;

    const WHEN: When = When { version: 2, step: 20, time: 20.0 };

    fn field(shape: [usize; 3]) -> Vec<f64> {
        let mut field = vec![0.0; shape.iter().product()];
        Noise::new(3).fill_step(0, 0, &mut field);
        field.iter_mut().for_each(|x| *x = 0.5 + 0.6 * *x);
        field
    }

    #[test]
    fn agrees_with_plain_sums() {
        let shape = [5, 7, 13];
        let field = field(shape);
        let s = of_field(&field, shape, WHEN, &Recipe::default()).unwrap();
        let n = field.len() as f64;
        assert!((s.mean - field.iter().sum::<f64>() / n).abs() < 1e-14);
        assert_eq!(s.min, field.iter().copied().fold(f64::INFINITY, f64::min));
        assert_eq!(s.max, field.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        assert_eq!(s.below as usize, field.iter().filter(|x| **x < 0.0).count());
        assert_eq!(s.above as usize, field.iter().filter(|x| **x > 1.0).count());
        assert!(s.below > 0 && s.above > 0);
        assert_eq!(s.histogram.iter().sum::<u64>() + s.below + s.above, field.len() as u64);
        assert_eq!(s.bits.mean, format!("0x{:016x}", s.mean.to_bits()));
    }

    #[test]
    fn does_not_depend_on_the_number_of_slabs() {
        let shape = [11, 6, 9];
        let field = field(shape);
        let recipe = Recipe { threshold: 0.5, ..Recipe::default() };
        let whole = of_field(&field, shape, WHEN, &recipe).unwrap();
        for slabs in 1..=11 {
            let mut planes = Vec::new();
            let mut histogram = recipe.histogram();
            for i in 0..slabs {
                let own = part(11, slabs, i);
                let above = (own.end + 1).min(11);
                let mut local = recipe.histogram();
                let values = &field[own.start * 54..above * 54];
                planes.extend(reduce_slab(values, own.len(), [6, 9], &recipe, &mut local).unwrap());
                histogram.merge(&local);
            }
            assert_eq!(combine(WHEN, &planes, 54, histogram), whole, "{slabs} slabs");
        }
    }

    #[test]
    fn ends_of_the_range_belong_to_the_outer_bins() {
        let mut h = Histogram::new(0.0, 1.0, 4);
        [0.0, 0.249, 0.25, 0.999, 1.0, -1e-9, 1.0 + 1e-9].into_iter().for_each(|x| h.add(x));
        assert_eq!((h.below, h.above, h.counts), (1, 1, vec![2, 1, 0, 2]));
    }

    #[test]
    fn values_that_are_not_numbers_are_refused() {
        let mut field = field([3, 3, 3]);
        field[13] = f64::NAN;
        assert_eq!(of_field(&field, [3, 3, 3], WHEN, &Recipe::default()).unwrap_err().kind(), Kind::Damaged);
        assert_eq!(
            of_field(&field, [3, 3, 4], WHEN, &Recipe::default()).unwrap_err().kind(),
            Kind::BufferMismatch
        );
        let bad =
            [Recipe { bins: 0, ..Recipe::default() }, Recipe { range: [1.0, 0.0], ..Recipe::default() }];
        assert!(bad.iter().all(|r| r.validate().is_err()));
    }

    #[test]
    fn a_line_of_json_gives_the_same_numbers_back() {
        let s = of_field(&field([4, 4, 4]), [4, 4, 4], WHEN, &Recipe::default()).unwrap();
        let line = serde_json::to_string(&s).unwrap();
        let mean = line.split("\"mean\":").nth(1).unwrap().split(',').next().unwrap();
        assert_eq!(mean.parse::<f64>().unwrap().to_bits(), s.mean.to_bits());
    }
}
