//! One time step of the Gray–Scott equations:
//!
//! ```text
//! dU/dt = Du ∇²U - U V² + F (1 - U) (+ noise)        dV/dt = Dv ∇²V + U V² - (F + k) V
//! ```
//!
//! explicit Euler, 7-point Laplacian on the unit grid. P. Gray and S. K. Scott, Chem. Eng. Sci. 38 (1983)
//! 29–43.
//!
//! Guarantee: every cell is computed by the same expression in the same order of operations, whatever the
//! box, the region or the position in a vector register. Rust never contracts a multiplication and an
//! addition into one rounding, so the result is the same bit for bit for every decomposition.
//!
//! The inner loop runs along x over slices of one common length: no index checks, and the compiler vectorises
//! it.

use super::deck::Deck;
use super::field::{global_index, Cell, Fields};
use super::noise::Noise;
use std::ops::Range;

/// Coefficients of the equations, rounded to the number type of the field once.
#[derive(Clone, Copy, Debug)]
pub struct Rates<T> {
    diffusion_u: T,
    diffusion_v: T,
    feed: T,
    feed_kill: T,
    dt: T,
    one: T,
    six: T,
}

impl<T: Cell> Rates<T> {
    /// The deck's coefficients.
    pub fn of(deck: &Deck) -> Rates<T> {
        Rates {
            diffusion_u: T::of(deck.diffusion_u),
            diffusion_v: T::of(deck.diffusion_v),
            feed: T::of(deck.feed),
            feed_kill: T::of(deck.feed + deck.kill),
            dt: T::of(deck.dt),
            one: T::of(1.0),
            six: T::of(6.0),
        }
    }
}

/// Noise of one time step, when the deck wants it.
#[derive(Clone, Copy, Debug)]
pub struct StepNoise {
    /// The generator.
    pub generator: Noise,
    /// Which step.
    pub step: u32,
    /// Amplitude times dt: what r in [-1, 1) is multiplied with before it is added to U.
    pub scale: f64,
    /// Shape of the whole grid.
    pub shape: [usize; 3],
}

/// A part of a box: ranges of inner cells along z, y, x.
pub type Region = [Range<usize>; 3];

/// Computes the cells of `region` of `next` from `now`.
///
/// The ghost cells that the region touches must be filled in `now`. With `wrap_x`, which asks that the region
/// covers the whole x axis, the x ghosts of the rows of `next` are filled while the row is in cache.
pub fn advance<T: Cell>(
    rates: &Rates<T>,
    now: &Fields<T>,
    next: &mut Fields<T>,
    region: &Region,
    wrap_x: bool,
    noise: Option<&StepNoise>,
) {
    let [zs, ys, xs] = region.clone();
    if xs.is_empty() {
        return;
    }
    let [plane, line] = now.strides();
    let mut random = vec![0.0; if noise.is_some() { xs.len() } else { 0 }];
    for z in zs {
        for y in ys.clone() {
            let whole = now.row(z, y);
            let row = whole.start + xs.start..whole.start + xs.end;
            let (u_out, v_out) = (&mut next.u[row.clone()], &mut next.v[row.clone()]);
            let around = |array| Neighbours::of(array, &row, line, plane);
            advance_row(rates, &around(&now.u), &around(&now.v), u_out, v_out);
            if let Some(noise) = noise {
                let cell = [now.start[0] + z, now.start[1] + y, now.start[2] + xs.start];
                noise.generator.fill_step(noise.step, global_index(noise.shape, cell), &mut random);
                for (u, r) in u_out.iter_mut().zip(&random) {
                    *u = *u + T::of(noise.scale * r);
                }
            }
            if wrap_x {
                for array in [&mut next.u, &mut next.v] {
                    array[whole.start - 1] = array[whole.end - 1];
                    array[whole.end] = array[whole.start];
                }
            }
        }
    }
}

/// A row of cells and the six rows around it, all of one length.
struct Neighbours<'a, T> {
    centre: &'a [T],
    x_low: &'a [T],
    x_high: &'a [T],
    y_low: &'a [T],
    y_high: &'a [T],
    z_low: &'a [T],
    z_high: &'a [T],
}

impl<'a, T> Neighbours<'a, T> {
    fn of(array: &'a [T], row: &Range<usize>, line: usize, plane: usize) -> Neighbours<'a, T> {
        let back = |by: usize| &array[row.start - by..row.end - by];
        let forth = |by: usize| &array[row.start + by..row.end + by];
        Neighbours {
            centre: forth(0),
            x_low: back(1),
            x_high: forth(1),
            y_low: back(line),
            y_high: forth(line),
            z_low: back(plane),
            z_high: forth(plane),
        }
    }

    #[inline(always)]
    fn have_length(&self, n: usize) -> bool {
        let in_x = self.centre.len() == n && self.x_low.len() == n && self.x_high.len() == n;
        let in_y = self.y_low.len() == n && self.y_high.len() == n;
        in_x && in_y && self.z_low.len() == n && self.z_high.len() == n
    }
}

/// One row. Not inlined: as arguments the output slices are known not to overlap the inputs, which the
/// compiler needs to vectorise sixteen streams without a check for each pair.
#[inline(never)]
fn advance_row<T: Cell>(
    rates: &Rates<T>,
    u: &Neighbours<'_, T>,
    v: &Neighbours<'_, T>,
    u_out: &mut [T],
    v_out: &mut [T],
) {
    let n = u_out.len();
    let rates = *rates;
    let v_out = &mut v_out[..n];
    // Said once here, so that the loop needs no checks.
    assert!(u.have_length(n) && v.have_length(n));
    let (uc, ux0, ux1, uy0, uy1, uz0, uz1) =
        (u.centre, u.x_low, u.x_high, u.y_low, u.y_high, u.z_low, u.z_high);
    let (vc, vx0, vx1, vy0, vy1, vz0, vz1) =
        (v.centre, v.x_low, v.x_high, v.y_low, v.y_high, v.z_low, v.z_high);
    for i in 0..n {
        let (a, b) = (uc[i], vc[i]);
        let laplacian_u = ((ux0[i] + ux1[i]) + (uy0[i] + uy1[i])) + (uz0[i] + uz1[i]) - rates.six * a;
        let laplacian_v = ((vx0[i] + vx1[i]) + (vy0[i] + vy1[i])) + (vz0[i] + vz1[i]) - rates.six * b;
        let reaction = a * b * b;
        let change_u = rates.diffusion_u * laplacian_u - reaction + rates.feed * (rates.one - a);
        let change_v = rates.diffusion_v * laplacian_v + reaction - rates.feed_kill * b;
        u_out[i] = a + rates.dt * change_u;
        v_out[i] = b + rates.dt * change_v;
    }
}

/// Cuts a box into the region that reads no ghosts of the axes in `cut`, and the rest.
///
/// The regions are disjoint and together cover the box; axes that are not cut are never divided.
pub fn inner_and_shell(count: [usize; 3], cut: [bool; 3]) -> (Region, Vec<Region>) {
    let mut inner = count.map(|n| 0..n);
    let mut shell = Vec::new();
    for axis in (0..3).filter(|&a| cut[a]) {
        let n = count[axis];
        for layer in if n > 1 { vec![0, n - 1] } else { vec![0] } {
            let mut slab = inner.clone();
            slab[axis] = layer..layer + 1;
            shell.push(slab);
        }
        inner[axis] = 1..n.saturating_sub(1).max(1);
    }
    (inner, shell)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The equations once more, cell by cell with explicit wrap, as slow and as plain as possible.
    fn plain_step(deck: &Deck, u: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let [nz, ny, nx] = deck.shape;
        let at = |z: usize, y: usize, x: usize| ((z % nz) * ny + y % ny) * nx + x % nx;
        let (mut un, mut vn) = (u.to_vec(), v.to_vec());
        for z in 0..nz {
            for y in 0..ny {
                for x in 0..nx {
                    let sum = |f: &[f64]| {
                        ((f[at(z, y, x + nx - 1)] + f[at(z, y, x + 1)])
                            + (f[at(z, y + ny - 1, x)] + f[at(z, y + 1, x)]))
                            + (f[at(z + nz - 1, y, x)] + f[at(z + 1, y, x)])
                    };
                    let (a, b) = (u[at(z, y, x)], v[at(z, y, x)]);
                    let uvv = a * b * b;
                    let du = deck.diffusion_u * (sum(u) - 6.0 * a) - uvv + deck.feed * (1.0 - a);
                    let dv = deck.diffusion_v * (sum(v) - 6.0 * b) + uvv - (deck.feed + deck.kill) * b;
                    un[at(z, y, x)] = a + deck.dt * du;
                    vn[at(z, y, x)] = b + deck.dt * dv;
                }
            }
        }
        (un, vn)
    }

    fn flat(fields: &Fields<f64>) -> (Vec<f64>, Vec<f64>) {
        let cells = fields.count.iter().product();
        let (mut u, mut v) = (vec![0.0; cells], vec![0.0; cells]);
        fields.copy_inner(&fields.u, &mut u);
        fields.copy_inner(&fields.v, &mut v);
        (u, v)
    }

    #[test]
    fn equals_the_plain_loop_bit_for_bit() {
        let deck = Deck::parse("pattern = \"eta\"\nshape = [5, 6, 7]\n[noise]\ninitial = 0.3").unwrap();
        let mut now = Fields::<f64>::initial(&deck, [0; 3], deck.shape).unwrap();
        let mut next = Fields::zeroed([0; 3], deck.shape).unwrap();
        let (mut u, mut v) = flat(&now);
        (0..3).for_each(|a| now.wrap(a));
        for _ in 0..20 {
            let whole = deck.shape.map(|n| 0..n);
            advance(&Rates::of(&deck), &now, &mut next, &whole, true, None);
            (0..2).for_each(|a| next.wrap(a));
            std::mem::swap(&mut now, &mut next);
            (u, v) = plain_step(&deck, &u, &v);
        }
        assert_eq!(flat(&now), (u, v));
    }

    #[test]
    fn the_uniform_state_rests() {
        let deck = Deck::parse("pattern = \"mu\"\nshape = [4, 4, 4]\nseed = []").unwrap();
        let mut now = Fields::<f64>::initial(&deck, [0; 3], deck.shape).unwrap();
        (0..3).for_each(|a| now.wrap(a));
        let mut next = Fields::zeroed([0; 3], deck.shape).unwrap();
        advance(&Rates::of(&deck), &now, &mut next, &deck.shape.map(|n| 0..n), true, None);
        assert_eq!(flat(&next), (vec![1.0; 64], vec![0.0; 64]));
    }

    #[test]
    fn regions_cover_the_box_once() {
        for count in [[5, 4, 3], [1, 4, 3], [2, 1, 1], [1, 1, 1], [2, 2, 2]] {
            for mask in 0..8 {
                let cut = [mask & 1 > 0, mask & 2 > 0, mask & 4 > 0];
                let (inner, shell) = inner_and_shell(count, cut);
                let mut seen = vec![0; count.iter().product()];
                for region in shell.iter().chain([&inner]) {
                    for z in region[0].clone() {
                        for y in region[1].clone() {
                            for x in region[2].clone() {
                                seen[(z * count[1] + y) * count[2] + x] += 1;
                            }
                        }
                    }
                }
                assert!(seen.iter().all(|&n| n == 1), "{count:?} {cut:?} {seen:?}");
                assert!((0..3).all(|a| !cut[a] || (inner[a].start >= 1 && inner[a].end < count[a].max(2))));
            }
        }
    }
}
