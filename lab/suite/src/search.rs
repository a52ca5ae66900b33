//! The search of the fit: an evolution strategy with covariance adaptation (CMA-ES, Hansen), started again and again.
//!
//! Guarantees: the same seed finds the same; every point lies in the unit cube (it is folded back at the walls).

/// A generator of random numbers (xorshift64*). One of its own: the sets of values that are kept, and the figures that
/// documents give of searches, were found with this sequence.
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..16 {
            random.bits();
        }
        random
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Between 0 and 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Normal, mean 0 and deviation 1.
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().max(1e-300).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Where a search ended.
#[derive(Clone, Debug)]
pub struct Found {
    /// In the unit cube.
    pub at: Vec<f64>,
    /// Its cost.
    pub cost: f64,
}

/// Folds a number back into 0..1.
fn folded(x: f64) -> f64 {
    let x = x.rem_euclid(2.0);
    if x > 1.0 {
        2.0 - x
    } else {
        x
    }
}

/// Eigenvectors (columns) and eigenvalues of a symmetric matrix, by Jacobi's rotations.
fn eigen(matrix: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut a = matrix.to_vec();
    let mut v = vec![0.0; n * n];
    (0..n).for_each(|i| v[i * n + i] = 1.0);
    for _ in 0..30 {
        let off: f64 =
            (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i * n + j].powi(2)).sum();
        if off < 1e-20 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                if a[p * n + q].abs() < 1e-300 {
                    continue;
                }
                let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * a[p * n + q]);
                let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let c = 1.0 / (t * t + 1.0).sqrt();
                let s = t * c;
                for k in 0..n {
                    let (x, y) = (a[k * n + p], a[k * n + q]);
                    (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
                }
                for k in 0..n {
                    let (x, y) = (a[p * n + k], a[q * n + k]);
                    (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
                }
                for k in 0..n {
                    let (x, y) = (v[k * n + p], v[k * n + q]);
                    (v[k * n + p], v[k * n + q]) = (c * x - s * y, s * x + c * y);
                }
            }
        }
    }
    let values = (0..n).map(|i| a[i * n + i].max(1e-20)).collect();
    (v, values)
}

/// How fast a descent learns, by Hansen's tutorial (arXiv:1604.00772, Table 1).
struct Rates {
    weights: Vec<f64>,
    mass: f64,
    path: f64,
    step: f64,
    one: f64,
    many: f64,
    damping: f64,
    expected: f64,
}

impl Rates {
    fn of(n: usize, many: usize) -> Rates {
        let (nf, parents) = (n as f64, many / 2);
        let raw: Vec<f64> =
            (0..parents).map(|i| (parents as f64 + 0.5).ln() - ((i + 1) as f64).ln()).collect();
        let sum: f64 = raw.iter().sum();
        let weights: Vec<f64> = raw.iter().map(|w| w / sum).collect();
        let mass = 1.0 / weights.iter().map(|w| w * w).sum::<f64>();
        let step = (mass + 2.0) / (nf + mass + 5.0);
        let one = 2.0 / ((nf + 1.3).powi(2) + mass);
        Rates {
            weights,
            mass,
            path: (4.0 + mass / nf) / (nf + 4.0 + 2.0 * mass / nf),
            step,
            one,
            many: (1.0 - one).min(2.0 * (mass - 2.0 + 1.0 / mass) / ((nf + 2.0).powi(2) + mass)),
            damping: 1.0 + 2.0 * (((mass - 1.0) / (nf + 1.0)).sqrt() - 1.0).max(0.0) + step,
            expected: nf.sqrt() * (1.0 - 1.0 / (4.0 * nf) + 1.0 / (21.0 * nf * nf)),
        }
    }
}

/// One descent from a point with a first step, over so many generations of `many` points.
pub fn descend(
    cost: &mut dyn FnMut(&[f64]) -> f64,
    from: &[f64],
    first_step: f64,
    (generations, many): (usize, usize),
    random: &mut Random,
) -> Found {
    let n = from.len();
    let nf = n as f64;
    let Rates { weights, mass, path: c_path, step: c_step, one: c_one, many: c_many, damping, expected } =
        Rates::of(n, many);
    let parents = weights.len();
    let mut mean = from.to_vec();
    let mut step = first_step;
    let (mut path, mut path_step) = (vec![0.0; n], vec![0.0; n]);
    let mut shape = vec![0.0; n * n];
    (0..n).for_each(|i| shape[i * n + i] = 1.0);
    let (mut axes, mut lengths) = eigen(&shape, n);
    let mut best = Found { cost: cost(&mean), at: mean.clone() };
    for generation in 0..generations {
        let mut points: Vec<(f64, Vec<f64>)> = Vec::with_capacity(many);
        for _ in 0..many {
            let z: Vec<f64> = (0..n).map(|i| random.normal() * lengths[i].sqrt()).collect();
            let y: Vec<f64> = (0..n).map(|i| (0..n).map(|j| axes[i * n + j] * z[j]).sum()).collect();
            let x: Vec<f64> = (0..n).map(|i| folded(mean[i] + step * y[i])).collect();
            let c = cost(&x);
            if c < best.cost {
                best = Found { at: x, cost: c };
            }
            points.push((c, y));
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let moved: Vec<f64> =
            (0..n).map(|i| (0..parents).map(|p| weights[p] * points[p].1[i]).sum()).collect();
        (0..n).for_each(|i| mean[i] = folded(mean[i] + step * moved[i]));
        let turned: Vec<f64> = (0..n)
            .map(|j| (0..n).map(|i| axes[i * n + j] * moved[i]).sum::<f64>() / lengths[j].sqrt())
            .collect();
        for i in 0..n {
            let back: f64 = (0..n).map(|j| axes[i * n + j] * turned[j]).sum();
            path_step[i] = (1.0 - c_step) * path_step[i] + (c_step * (2.0 - c_step) * mass).sqrt() * back;
        }
        let long = path_step.iter().map(|p| p * p).sum::<f64>().sqrt();
        let done = 2.0 * (generation + 1) as f64;
        let stalls = long / (1.0 - (1.0 - c_step).powf(done)).sqrt() / expected < 1.4 + 2.0 / (nf + 1.0);
        for i in 0..n {
            let push = if stalls { (c_path * (2.0 - c_path) * mass).sqrt() * moved[i] } else { 0.0 };
            path[i] = (1.0 - c_path) * path[i] + push;
        }
        for i in 0..n {
            for j in 0..=i {
                let many: f64 = (0..parents).map(|p| weights[p] * points[p].1[i] * points[p].1[j]).sum();
                let value =
                    (1.0 - c_one - c_many) * shape[i * n + j] + c_one * path[i] * path[j] + c_many * many;
                shape[i * n + j] = value;
                shape[j * n + i] = value;
            }
        }
        step *= ((c_step / damping) * (long / expected - 1.0)).exp().min(2.0);
        if generation % 4 == 3 {
            (axes, lengths) = eigen(&shape, n);
        }
        if step * lengths.iter().fold(0.0f64, |a, b| a.max(*b)).sqrt() < 1e-7 {
            break;
        }
    }
    best
}
