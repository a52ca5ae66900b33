//! Numbers side by side, one for each of a few lines that are solved together: what is done to one is done to all, so
//! that the compiler uses the processor's vectors.
//!
//! Guarantees: lanes never meet, so a line's result does not depend on its neighbours.

use std::ops::{Add, AddAssign, Mul, MulAssign, Neg, Sub, SubAssign};

/// Lines that are solved together: two vectors of the smallest processor, one of a larger.
pub(super) const LANES: usize = 4;

/// One number of each line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(align(32))]
pub(super) struct Lanes(pub [f64; LANES]);

impl Lanes {
    /// The same number in each.
    #[inline(always)]
    pub fn all(value: f64) -> Lanes {
        Lanes([value; LANES])
    }

    /// 1 by each.
    #[inline(always)]
    pub fn inverse(self) -> Lanes {
        self.map(|x| 1.0 / x)
    }

    #[inline(always)]
    fn map(self, f: impl Fn(f64) -> f64) -> Lanes {
        Lanes(std::array::from_fn(|lane| f(self.0[lane])))
    }

    #[inline(always)]
    fn with(self, other: Lanes, f: impl Fn(f64, f64) -> f64) -> Lanes {
        Lanes(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl Add for Lanes {
    type Output = Lanes;

    #[inline(always)]
    fn add(self, other: Lanes) -> Lanes {
        self.with(other, |a, b| a + b)
    }
}

impl Sub for Lanes {
    type Output = Lanes;

    #[inline(always)]
    fn sub(self, other: Lanes) -> Lanes {
        self.with(other, |a, b| a - b)
    }
}

impl Mul for Lanes {
    type Output = Lanes;

    #[inline(always)]
    fn mul(self, other: Lanes) -> Lanes {
        self.with(other, |a, b| a * b)
    }
}

impl Mul<Lanes> for f64 {
    type Output = Lanes;

    #[inline(always)]
    fn mul(self, other: Lanes) -> Lanes {
        other.map(|x| self * x)
    }
}

impl Neg for Lanes {
    type Output = Lanes;

    #[inline(always)]
    fn neg(self) -> Lanes {
        self.map(|x| -x)
    }
}

impl AddAssign for Lanes {
    #[inline(always)]
    fn add_assign(&mut self, other: Lanes) {
        *self = *self + other;
    }
}

impl SubAssign for Lanes {
    #[inline(always)]
    fn sub_assign(&mut self, other: Lanes) {
        *self = *self - other;
    }
}

impl MulAssign for Lanes {
    #[inline(always)]
    fn mul_assign(&mut self, other: Lanes) {
        *self = *self * other;
    }
}
