//! NumPy's `.npy` files, as far as the file bridge needs them.
//!
//! Guarantees: reads headers of versions 1.0, 2.0 and 3.0, little-endian, C order; everything else is an error
//! that says what it is. Writes version 1.0 (2.0 when the header is too long), data aligned to 64 bytes.
//! Not here: structured, object and text dtypes, Fortran order, big-endian data.
//!
//! Format: `numpy.lib.format` of the NumPy reference: magic `\x93NUMPY`, version, header length (2 bytes, from
//! version 2.0 on 4 bytes, little-endian), a Python dictionary with `descr`, `fortran_order` and `shape`, data.

use forebay_space::{Dtype, Error, Kind, Result};

const MAGIC: &[u8] = b"\x93NUMPY";

/// A header that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Element type.
    pub dtype: Dtype,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Bytes before the data.
    pub data_offset: usize,
}

impl Header {
    /// Bytes of data that follow the header.
    pub fn data_bytes(&self) -> Option<u64> {
        let elements = self.shape.iter().try_fold(1u64, |n, extent| n.checked_mul(*extent))?;
        elements.checked_mul(self.dtype.size() as u64)
    }
}

/// NumPy's code of a dtype; what NumPy lacks travels as plain bytes of the same size.
fn descr(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => "|b1",
        Dtype::I8 => "|i1",
        Dtype::I16 => "<i2",
        Dtype::I32 => "<i4",
        Dtype::I64 => "<i8",
        Dtype::U8 | Dtype::Str => "|u1",
        Dtype::U16 | Dtype::BF16 => "<u2",
        Dtype::U32 => "<u4",
        Dtype::U64 => "<u8",
        Dtype::F16 => "<f2",
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        Dtype::C64 => "<c8",
        Dtype::C128 => "<c16",
    }
}

fn dtype_of(descr: &str) -> Option<Dtype> {
    let readable = [
        Dtype::Bool,
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
        Dtype::F16,
        Dtype::F32,
        Dtype::F64,
        Dtype::C64,
        Dtype::C128,
    ];
    // One-byte types have no byte order: any sign will do for them.
    let (order, code) = descr.split_at_checked(1)?;
    let fits = |d: &Dtype| self::descr(*d)[1..] == *code;
    readable.into_iter().find(fits).filter(|d| order == "<" || d.size() == 1)
}

fn not_npy(why: impl Into<String>) -> Error {
    Error::new(Kind::Damaged, why)
        .hint("write it with numpy.save, or use another extension to pass it as bytes")
}

/// Reads the header of a `.npy` file.
///
/// # Errors
/// [`Kind::Damaged`]: no `.npy` file, or one that is cut off. [`Kind::UnknownFormat`]: a version, order or dtype
/// that is not supported.
pub fn read_header(bytes: &[u8]) -> Result<Header> {
    if bytes.len() < 10 || !bytes.starts_with(MAGIC) {
        return Err(not_npy("not a .npy file"));
    }
    let (major, minor) = (bytes[6], bytes[7]);
    let (start, length): (usize, usize) = match major {
        1 => (10, usize::from(u16::from_le_bytes([bytes[8], bytes[9]]))),
        2 | 3 if bytes.len() >= 12 => {
            (12, u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize)
        }
        2 | 3 => return Err(not_npy("the .npy header is cut off")),
        _ => {
            let message = format!("a .npy file of unknown version {major}.{minor}");
            return Err(Error::new(Kind::UnknownFormat, message).hint("versions 1, 2 and 3 are read"));
        }
    };
    let end = start.checked_add(length).filter(|end| *end <= bytes.len());
    let text = end.map(|end| &bytes[start..end]).ok_or_else(|| not_npy("the .npy header is cut off"))?;
    let text = std::str::from_utf8(text).map_err(|_| not_npy("the .npy header is not text"))?;
    let descr = value_of(text, "descr").ok_or_else(|| not_npy("the .npy header has no descr"))?;
    let fortran =
        value_of(text, "fortran_order").ok_or_else(|| not_npy("the .npy header has no fortran_order"))?;
    let shape =
        value_of(text, "shape").and_then(shape_of).ok_or_else(|| not_npy("the .npy header has no shape"))?;
    let dtype = quoted(descr).and_then(dtype_of).ok_or_else(|| {
        Error::new(Kind::UnknownFormat, "the .npy file has a dtype that cannot be passed on")
            .with("descr", descr)
            .hint("plain little-endian numbers are: bool, int8 to uint64, float16 to float64, complex")
    })?;
    if fortran.starts_with("True") && shape.len() > 1 {
        return Err(Error::new(Kind::UnknownFormat, "the .npy file is in Fortran order")
            .hint("save numpy.ascontiguousarray(array); boxes of a space are in C order"));
    }
    let header = Header { dtype, shape, data_offset: start + length };
    let have = (bytes.len() - header.data_offset) as u64;
    if header.data_bytes() != Some(have) {
        return Err(not_npy("the .npy file is shorter or longer than its header says")
            .with("shape", format!("{:?}", header.shape))
            .with("data_bytes", have));
    }
    Ok(header)
}

/// What follows `'key':` in a Python dictionary, up to its end: a header has no nested quotes but the key's.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let start = [format!("'{key}'"), format!("\"{key}\"")]
        .iter()
        .find_map(|k| text.find(k).map(|at| at + k.len()))?;
    Some(text[start..].trim_start().strip_prefix(':')?.trim_start())
}

fn quoted(value: &str) -> Option<&str> {
    let quote = value.chars().next().filter(|c| *c == '\'' || *c == '"')?;
    value[1..].split(quote).next()
}

fn shape_of(value: &str) -> Option<Vec<u64>> {
    let inside = value.strip_prefix('(')?.split(')').next()?;
    let extents = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
    // Python 2 wrote long numbers with an L.
    extents.map(|part| part.trim_end_matches('L').parse().ok()).collect()
}

/// The bytes before the data: a header for an array of this dtype and shape in C order.
pub fn write_header(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
    write_header_as(descr(dtype), shape)
}

/// The same for a dtype in NumPy's own words.
pub fn write_header_as(descr: &str, shape: &[u64]) -> Vec<u8> {
    let mut extents: Vec<String> = shape.iter().map(u64::to_string).collect();
    if extents.len() == 1 {
        extents.push(String::new());
    }
    let shape = extents.join(", ");
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", shape.trim_end());
    let fixed = |version: u8| if version == 1 { 10 } else { 12 };
    // Spaces up to the next 64 bytes, the last one a line end.
    let padded = |version: u8| (fixed(version) + text.len() + 1).next_multiple_of(64) - fixed(version);
    let version = if padded(1) <= usize::from(u16::MAX) { 1 } else { 2 };
    let length = padded(version);
    let mut bytes = MAGIC.to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((length as u16).to_le_bytes()),
        _ => bytes.extend((length as u32).to_le_bytes()),
    }
    bytes.extend(text.as_bytes());
    bytes.resize(fixed(version) + length - 1, b' ');
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dtype: Dtype, shape: &[u64]) -> Vec<u8> {
        let mut bytes = write_header(dtype, shape);
        let elements: u64 = shape.iter().product();
        bytes.resize(bytes.len() + elements as usize * dtype.size(), 7);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for dtype in
            [Dtype::Bool, Dtype::I8, Dtype::U16, Dtype::I64, Dtype::F16, Dtype::F32, Dtype::F64, Dtype::C128]
        {
            for shape in [&[][..], &[5], &[2, 3], &[1, 2, 3, 4], &[0, 3]] {
                let bytes = file(dtype, shape);
                let header = read_header(&bytes).expect("a header that was just written");
                assert_eq!((header.dtype, &header.shape[..]), (dtype, shape));
                assert_eq!(header.data_offset % 64, 0);
            }
        }
        let wide: Vec<u64> = vec![1; 30_000];
        let bytes = file(Dtype::U8, &wide);
        assert_eq!(bytes[6], 2, "a long header needs version 2");
        assert_eq!(read_header(&bytes).expect("version 2").shape, wide);
    }

    /// Bytes as numpy.save writes them (NumPy 1.26, `np.arange(3, dtype="<i4")`).
    #[test]
    fn reads_what_numpy_writes() {
        let mut bytes =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }".to_vec();
        bytes.resize(127, b' ');
        bytes.push(b'\n');
        bytes.extend([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        let header = read_header(&bytes).expect("numpy's own bytes");
        assert_eq!(header, Header { dtype: Dtype::I32, shape: vec![3], data_offset: 128 });
        assert_eq!(write_header(Dtype::I32, &[3]), bytes[..128], "byte for byte as NumPy");
    }

    fn with_text(text: &str, data: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    #[test]
    fn refuses_what_it_cannot_pass_on() {
        let fortran = with_text("{'descr': '<f8', 'fortran_order': True, 'shape': (2, 2), }", 32);
        let error = read_header(&fortran).expect_err("Fortran order");
        assert_eq!(error.kind(), Kind::UnknownFormat);
        assert!(error.message().contains("Fortran order"), "{error}");
        for descr in ["'>f8'", "'|O'", "'<U8'", "[('a', '<f8')]", "'<f16'", "''"] {
            let text = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}");
            let error = read_header(&with_text(&text, 16)).expect_err(descr);
            assert_eq!(error.kind(), Kind::UnknownFormat, "{descr}: {error}");
        }
        let mut version_9 = with_text("{}", 0);
        version_9[6] = 9;
        assert_eq!(read_header(&version_9).expect_err("version 9").kind(), Kind::UnknownFormat);
    }

    #[test]
    fn refuses_damage() {
        let whole = file(Dtype::F64, &[2, 3]);
        for cut in [0, 5, 9, 20, 127, whole.len() - 1] {
            let error = read_header(&whole[..cut]).expect_err("cut off");
            assert_eq!(error.kind(), Kind::Damaged, "cut at {cut}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(read_header(&longer).expect_err("too long").kind(), Kind::Damaged);
        let huge =
            with_text("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 8);
        assert_eq!(read_header(&huge).expect_err("overflow").kind(), Kind::Damaged);
    }
}
