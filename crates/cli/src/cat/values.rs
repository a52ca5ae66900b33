//! Elements of an array as text, JSON and NumPy's file format, one slab after the other.
//!
//! Guarantees: C order; numbers are written so that reading them back gives the same bits (shortest decimal
//! form), except that JSON has no NaN and infinities, which become strings; memory in use does not grow with
//! the array. Assumes what pools hold: little-endian elements.

use std::io::{self, Write};

use forebay_flow::npy::{write_header, write_header_as};
use forebay_space::Dtype;

/// How one element is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// As NumPy's `loadtxt` reads it: booleans as 0 and 1, complex numbers as `1.0+2.0j`.
    Text,
    /// As JSON has it: complex numbers as pairs, what is not finite as a string.
    Json,
}

/// Where brackets, blanks and line ends go between the elements of an n-dimensional array.
pub struct Layout {
    spelling: Spelling,
    /// Elements in one step of each dimension: the product of the counts from that dimension on.
    strides: Vec<u64>,
    written: u64,
}

impl Layout {
    /// For a box with these counts.
    pub fn new(spelling: Spelling, count: &[u64]) -> Layout {
        let mut strides: Vec<u64> = Vec::with_capacity(count.len());
        let mut product = 1u64;
        for n in count.iter().rev() {
            product = product.saturating_mul(*n);
            strides.insert(0, product);
        }
        Layout { spelling, strides, written: 0 }
    }

    /// An array without elements has nothing to hang brackets on.
    pub fn empty(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.spelling {
            Spelling::Json => out.write_all(b"[]"),
            Spelling::Text => Ok(()),
        }
    }

    /// Writes the next elements in C order.
    pub fn elements(&mut self, dtype: Dtype, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let mut line = Vec::with_capacity(64 << 10);
        for element in bytes.chunks_exact(dtype.size()) {
            self.before(&mut line);
            spell(dtype, element, self.spelling, &mut line);
            self.written += 1;
            self.after(&mut line);
            if line.len() > 60 << 10 {
                out.write_all(&line)?;
                line.clear();
            }
        }
        out.write_all(&line)
    }

    fn before(&self, line: &mut Vec<u8>) {
        if self.spelling == Spelling::Json {
            if self.written > 0 {
                line.push(b',');
            }
            let opens = self.strides.iter().filter(|s| self.written % **s == 0).count();
            line.extend(std::iter::repeat_n(b'[', opens));
        }
    }

    fn after(&self, line: &mut Vec<u8>) {
        let closes = self.strides.iter().filter(|s| self.written % **s == 0).count();
        match self.spelling {
            Spelling::Json => line.extend(std::iter::repeat_n(b']', closes)),
            // A column of numbers for a vector, lines for a matrix, blank lines between planes.
            Spelling::Text if self.strides.len() < 2 || closes > 0 => {
                line.push(b'\n');
                if closes > 1 && closes < self.strides.len() {
                    line.push(b'\n');
                }
            }
            Spelling::Text => line.push(b' '),
        }
    }
}

/// Writes one element; `bytes` has the size of the dtype.
fn spell(dtype: Dtype, bytes: &[u8], spelling: Spelling, out: &mut Vec<u8>) {
    macro_rules! plain {
        ($t:ty) => {{
            let value = <$t>::from_le_bytes(bytes.try_into().expect("an element has its dtype's size"));
            write!(out, "{value}").expect("memory takes every write");
        }};
    }
    match dtype {
        Dtype::Bool => out.extend_from_slice(match (bytes[0] != 0, spelling) {
            (true, Spelling::Text) => b"1",
            (false, Spelling::Text) => b"0",
            (true, Spelling::Json) => b"true",
            (false, Spelling::Json) => b"false",
        }),
        Dtype::I8 => plain!(i8),
        Dtype::I16 => plain!(i16),
        Dtype::I32 => plain!(i32),
        Dtype::I64 => plain!(i64),
        Dtype::U8 | Dtype::Str => plain!(u8),
        Dtype::U16 => plain!(u16),
        Dtype::U32 => plain!(u32),
        Dtype::U64 => plain!(u64),
        Dtype::F16 => float(half(u16::from_le_bytes([bytes[0], bytes[1]])), spelling, out),
        Dtype::BF16 => {
            float(f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16), spelling, out)
        }
        Dtype::F32 => float(f32::from_le_bytes(four(bytes)), spelling, out),
        Dtype::F64 => float(f64::from_le_bytes(eight(bytes)), spelling, out),
        Dtype::C64 => {
            complex(f32::from_le_bytes(four(bytes)), f32::from_le_bytes(four(&bytes[4..])), spelling, out)
        }
        Dtype::C128 => {
            complex(f64::from_le_bytes(eight(bytes)), f64::from_le_bytes(eight(&bytes[8..])), spelling, out)
        }
    }
}

fn four(bytes: &[u8]) -> [u8; 4] {
    bytes[..4].try_into().expect("four of at least four")
}

fn eight(bytes: &[u8]) -> [u8; 8] {
    bytes[..8].try_into().expect("eight of at least eight")
}

/// A number whose `Debug` form is the shortest decimal that reads back as the same bits.
trait Float: Copy + std::fmt::Debug + Into<f64> {}
impl Float for f32 {}
impl Float for f64 {}

fn float<T: Float>(value: T, spelling: Spelling, out: &mut Vec<u8>) {
    let wide: f64 = value.into();
    let special = match spelling {
        _ if wide.is_finite() => None,
        Spelling::Json if wide.is_nan() => Some("\"NaN\""),
        Spelling::Json if wide > 0.0 => Some("\"Infinity\""),
        Spelling::Json => Some("\"-Infinity\""),
        Spelling::Text if wide.is_nan() => Some("nan"),
        Spelling::Text if wide > 0.0 => Some("inf"),
        Spelling::Text => Some("-inf"),
    };
    match special {
        Some(word) => out.extend_from_slice(word.as_bytes()),
        None => write!(out, "{value:?}").expect("memory takes every write"),
    }
}

fn complex<T: Float>(re: T, im: T, spelling: Spelling, out: &mut Vec<u8>) {
    let (open, between, close): (&[u8], &[u8], &[u8]) = match spelling {
        Spelling::Json => (b"[", b",", b"]"),
        Spelling::Text if im.into().is_sign_negative() && !im.into().is_nan() => (b"", b"", b"j"),
        Spelling::Text => (b"", b"+", b"j"),
    };
    out.extend_from_slice(open);
    float(re, spelling, out);
    out.extend_from_slice(between);
    float(im, spelling, out);
    out.extend_from_slice(close);
}

/// IEEE half precision, widened without loss.
fn half(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        e => (1.0 + fraction / 1024.0) * 2f32.powi(e - 15),
    }
}

/// Header of a `.npy` file. bfloat16 has no name in NumPy: two opaque bytes, as the `ml_dtypes` package writes it.
pub fn npy_header(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => write_header_as("|V2", shape),
        _ => write_header(dtype, shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laid_out(spelling: Spelling, dtype: Dtype, count: &[u64], bytes: &[u8], slab: usize) -> String {
        let mut out = Vec::new();
        let mut layout = Layout::new(spelling, count);
        for part in bytes.chunks(slab * dtype.size()) {
            layout.elements(dtype, part, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn brackets_follow_the_shape_whatever_the_slabs() {
        let bytes: Vec<u8> = (0..12).collect();
        for slab in 1..13 {
            let json = laid_out(Spelling::Json, Dtype::U8, &[2, 2, 3], &bytes, slab);
            assert_eq!(json, "[[[0,1,2],[3,4,5]],[[6,7,8],[9,10,11]]]");
            let text = laid_out(Spelling::Text, Dtype::U8, &[2, 2, 3], &bytes, slab);
            assert_eq!(text, "0 1 2\n3 4 5\n\n6 7 8\n9 10 11\n");
        }
        assert_eq!(laid_out(Spelling::Json, Dtype::U8, &[], &[7], 1), "7");
        assert_eq!(laid_out(Spelling::Text, Dtype::U8, &[3], &[7, 8, 9], 2), "7\n8\n9\n");
        assert_eq!(laid_out(Spelling::Json, Dtype::U8, &[3, 1], &[7, 8, 9], 2), "[[7],[8],[9]]");
    }

    #[test]
    fn floats_read_back_as_the_same_bits() {
        for value in [0.1f64, -0.0, 1e300, 5e-324, 1.0 / 3.0, f64::MAX] {
            let json = laid_out(Spelling::Json, Dtype::F64, &[], &value.to_le_bytes(), 1);
            assert_eq!(json.parse::<f64>().unwrap().to_bits(), value.to_bits(), "{json}");
            assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
        }
        assert_eq!(laid_out(Spelling::Json, Dtype::F32, &[], &0.1f32.to_le_bytes(), 1), "0.1");
    }

    #[test]
    fn what_is_not_finite_has_words() {
        for (value, json, text) in [
            (f64::NAN, "\"NaN\"", "nan\n"),
            (f64::INFINITY, "\"Infinity\"", "inf\n"),
            (-f64::INFINITY, "\"-Infinity\"", "-inf\n"),
        ] {
            assert_eq!(laid_out(Spelling::Json, Dtype::F64, &[], &value.to_le_bytes(), 1), json);
            assert_eq!(laid_out(Spelling::Text, Dtype::F64, &[], &value.to_le_bytes(), 1), text);
        }
    }

    #[test]
    fn small_floats_widen_without_loss() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x0001, 2f32.powi(-24)),
            (0x7bff, 65504.0),
            (0x3555, 0.333_251_95),
        ] {
            assert_eq!(half(bits), value, "{bits:#x}");
        }
        assert!(half(0x7e00).is_nan());
        assert_eq!(half(0xfc00), f32::NEG_INFINITY);
        assert_eq!(laid_out(Spelling::Text, Dtype::BF16, &[], &0x3fc0u16.to_le_bytes(), 1), "1.5\n");
    }

    #[test]
    fn complex_numbers_have_two_spellings() {
        let bytes: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(laid_out(Spelling::Text, Dtype::C64, &[], &bytes, 1), "1.5-2.0j\n");
        assert_eq!(laid_out(Spelling::Json, Dtype::C64, &[], &bytes, 1), "[1.5,-2.0]");
    }

    #[test]
    fn npy_data_starts_at_a_multiple_of_64() {
        for shape in [vec![], vec![3], vec![1 << 40; 16]] {
            let header = npy_header(Dtype::F64, &shape);
            assert_eq!(header.len() % 64, 0);
            assert_eq!(usize::from(u16::from_le_bytes([header[8], header[9]])) + 10, header.len());
            assert_eq!(header.last(), Some(&b'\n'));
        }
        let text = String::from_utf8_lossy(&npy_header(Dtype::F64, &[4, 5])).into_owned();
        assert!(text.contains("'descr': '<f8', 'fortran_order': False, 'shape': (4, 5), }"), "{text}");
        let text = String::from_utf8_lossy(&npy_header(Dtype::BF16, &[3])).into_owned();
        assert!(text.contains("'descr': '|V2', 'fortran_order': False, 'shape': (3,), }"), "{text}");
    }
}
