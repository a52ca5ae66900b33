//! Sums and products over arrays of numbers with the widest vectors of this processor: what a C compiler makes of a
//! plain loop when it may use every instruction.
//!
//! Guarantees: ordinary stores through the cache, in order of the addresses; a product is rounded before it is added,
//! so that every width gives the same bits. AVX-512 is inline assembly, as for copies: the compiler's own functions for
//! it are newer than our oldest compiler.

use std::sync::OnceLock;

/// `z = s * x`
///
/// # Panics
/// When the lengths differ.
pub fn scale(z: &mut [f64], s: f64, x: &[f64]) {
    best().run(Sum::Scale, z, x, x, s);
}

/// `z = x + y`
///
/// # Panics
/// When the lengths differ.
pub fn add(z: &mut [f64], x: &[f64], y: &[f64]) {
    best().run(Sum::Add, z, x, y, 1.0);
}

/// `z = x + s * y`
///
/// # Panics
/// When the lengths differ.
pub fn triad(z: &mut [f64], x: &[f64], s: f64, y: &[f64]) {
    best().run(Sum::Triad, z, x, y, s);
}

fn best() -> Width {
    static CHOSEN: OnceLock<Width> = OnceLock::new();
    *CHOSEN.get_or_init(|| *Width::available().last().expect("the baseline is there"))
}

/// What is computed of x, y and the factor.
#[derive(Clone, Copy)]
enum Sum {
    Scale,
    Add,
    Triad,
}

/// How much is moved at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Baseline,
    #[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
    Avx2,
    #[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
    Avx512,
}

impl Width {
    /// All that this machine has, the widest last.
    fn available() -> Vec<Width> {
        #[allow(unused_mut)]
        let mut all = vec![Width::Baseline];
        #[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
        {
            if std::arch::is_x86_feature_detected!("avx2") {
                all.push(Width::Avx2);
            }
            if std::arch::is_x86_feature_detected!("avx512f") {
                all.push(Width::Avx512);
            }
        }
        all
    }

    fn run(self, sum: Sum, z: &mut [f64], x: &[f64], y: &[f64], s: f64) {
        assert!(z.len() == x.len() && z.len() == y.len(), "lengths differ");
        match self {
            Width::Baseline => plain(sum, z, x, y, s),
            // SAFETY: `available` found the instructions, the lengths are equal (asserted above).
            #[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
            Width::Avx2 => unsafe { x86_64::avx2(sum, z, x, y, s) },
            // SAFETY: the same.
            #[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
            Width::Avx512 => unsafe { x86_64::avx512(sum, z, x, y, s) },
        }
    }
}

/// Plain loops, which the compiler vectorises with what the function around them may use.
#[inline(always)]
fn plain(sum: Sum, z: &mut [f64], x: &[f64], y: &[f64], s: f64) {
    match sum {
        Sum::Scale => z.iter_mut().zip(x).for_each(|(z, x)| *z = s * x),
        Sum::Add => z.iter_mut().zip(x).zip(y).for_each(|((z, x), y)| *z = x + y),
        Sum::Triad => z.iter_mut().zip(x).zip(y).for_each(|((z, x), y)| *z = x + s * y),
    }
}

#[cfg(all(target_arch = "x86_64", not(forebay_portable)))]
mod x86_64 {
    use super::{plain, Sum};
    use std::arch::asm;

    /// Elements of a vector of AVX-512.
    const WIDE: usize = 8;

    /// # Safety
    /// The machine has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(sum: Sum, z: &mut [f64], x: &[f64], y: &[f64], s: f64) {
        plain(sum, z, x, y, s);
    }

    /// A loop over `$count` vectors, of which `$body` makes zmm0 from zmm1 (the factor, eight times) and the addresses
    /// {x} + {at} and {y} + {at}.
    macro_rules! wide {
        ($count:expr, $z:expr, $x:expr, $y:expr, $s:expr, $($body:literal),+) => {
            asm!(
                "vbroadcastsd zmm1, xmm1",
                "2:",
                $($body,)+
                "vmovupd [{z} + {at}], zmm0",
                "add {at}, 64",
                "cmp {at}, {end}",
                "jb 2b",
                "vzeroupper",
                z = in(reg) $z.as_mut_ptr(),
                x = in(reg) $x.as_ptr(),
                y = in(reg) $y.as_ptr(),
                at = inout(reg) 0usize => _,
                end = in(reg) $count * WIDE * 8,
                inout("xmm1") $s => _,
                out("xmm0") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nostack),
            )
        };
    }

    /// # Safety
    /// The machine has AVX-512F; the lengths are equal.
    pub(super) unsafe fn avx512(sum: Sum, z: &mut [f64], x: &[f64], y: &[f64], s: f64) {
        let count = z.len() / WIDE;
        if count > 0 {
            // SAFETY: vector number i < count covers elements i * 8 .. i * 8 + 8, which all three slices have; z is
            // borrowed exclusively, so that x and y do not change meanwhile; loads and stores need no alignment; the
            // caller found the instructions. The registers named as xmm cover their zmm forms; vzeroupper clears the
            // upper halves of all of them, and avoids the penalty for SSE code that follows.
            unsafe {
                match sum {
                    Sum::Scale => {
                        wide!(count, z, x, y, s, "# {y}", "vmulpd zmm0, zmm1, [{x} + {at}]")
                    }
                    Sum::Add => {
                        wide!(
                            count,
                            z,
                            x,
                            y,
                            s,
                            "vmovupd zmm0, [{x} + {at}]",
                            "vaddpd zmm0, zmm0, [{y} + {at}]"
                        )
                    }
                    Sum::Triad => wide!(
                        count,
                        z,
                        x,
                        y,
                        s,
                        "vmulpd zmm0, zmm1, [{y} + {at}]",
                        "vaddpd zmm0, zmm0, [{x} + {at}]"
                    ),
                }
            }
        }
        let rest = count * WIDE;
        plain(sum, &mut z[rest..], &x[rest..], &y[rest..], s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_gives_the_same_bits() {
        // Not whole numbers: a product that is not rounded before it is added would show.
        let x: Vec<f64> = (0..70).map(|i| 0.1 + f64::from(i) / 7.0).collect();
        let y: Vec<f64> = (0..70).map(|i| 1e9 / (0.3 + f64::from(i))).collect();
        for width in Width::available() {
            for sum in [Sum::Scale, Sum::Add, Sum::Triad] {
                for (from, len) in (0..70).flat_map(|len| [(0, len), (1, len.min(69))]) {
                    let (x, y) = (&x[from..from + len], &y[from..from + len]);
                    let mut z = vec![-1.0; len + 2];
                    width.run(sum, &mut z[1..=len], x, y, 1.1);
                    let mut wanted = vec![-1.0];
                    wanted.extend(x.iter().zip(y).map(|(x, y)| match sum {
                        Sum::Scale => 1.1 * x,
                        Sum::Add => x + y,
                        Sum::Triad => x + 1.1 * y,
                    }));
                    wanted.push(-1.0);
                    assert_eq!(z, wanted, "{width:?} {len} elements from {from}");
                }
            }
        }
    }

    #[test]
    fn the_best_is_used() {
        let mut z = [0.0; 3];
        scale(&mut z, 3.0, &[1.0, 2.0, 4.0]);
        assert_eq!(z, [3.0, 6.0, 12.0]);
        add(&mut z, &[1.0; 3], &[2.0; 3]);
        assert_eq!(z, [3.0; 3]);
        triad(&mut z, &[1.0; 3], 2.0, &[2.0; 3]);
        assert_eq!(z, [5.0; 3]);
        assert_eq!(Some(&best()), Width::available().last());
    }

    #[test]
    #[should_panic(expected = "lengths differ")]
    fn lengths_are_the_same() {
        add(&mut [0.0; 3], &[0.0; 3], &[0.0; 4]);
    }
}
