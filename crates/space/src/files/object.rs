//! One object of the file-per-object channel: one piece of a variable in one file, header first, then the
//! bytes.
//!
//! ```text
//! offset  bytes  field (little-endian)
//!      0      8  magic "FBOBJECT"
//!      8      4  format version, 1
//!     12      4  header bytes: a multiple of 64; the payload begins there
//!     16      4  dtype: the number of the record format
//!     20      4  number of dimensions, 0 to 16
//!     24      8  payload bytes
//!     32      8  version
//!     40      4  rank
//!     44      4  incarnation
//!     48      4  index of the object among those of its rank and version
//!     52      4  name bytes, 1 to 1024
//!     56      4  CRC-32C of the payload, 0 without checksum
//!     60      4  flags: bit 0 = the payload has a checksum; other bits are unknown features
//!     64   24*d  shape, start, count: d numbers of 8 bytes each
//!      …      …  name (UTF-8), zeros
//!    h-4      4  CRC-32C of the header up to here
//!      h      …  payload, elements in C order
//! ```
//!
//! Guarantees: a file that was cut off, extended or changed anywhere is recognised (the payload's bytes when
//! it has a checksum and is verified); an unknown format version or feature is `UnknownFormat`, not a wrong
//! reading. Crash argument: the file gets its name by a rename after it was written, and counts only when its
//! rank's `done` file, written later, says how many objects there are. Not here: directories and names.

use crate::nd_box::{NdBox, DIMENSIONS_MAX};
use forebay_log::{Dims, Dtype};
use forebay_tier::checksum::crc32c;
use forebay_tier::{Error, Kind, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: &[u8; 8] = b"FBOBJECT";
const FORMAT: u32 = 1;
const FIXED_BYTES: usize = 64;
const HEADER_ALIGN: usize = 64;
const FLAG_CHECKSUM: u32 = 1;

/// Longest name of a variable.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

/// Largest header: every dimension and the longest name.
const HEADER_BYTES_MAX: usize =
    (FIXED_BYTES + 24 * DIMENSIONS_MAX + NAME_BYTES_MAX + 4).next_multiple_of(HEADER_ALIGN);

/// What the header says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Dims,
    pub(crate) part: NdBox,
    pub(crate) version: u64,
    pub(crate) rank: u32,
    pub(crate) incarnation: u32,
    pub(crate) index: u32,
    pub(crate) payload_bytes: u64,
    /// None: written without checksum.
    pub(crate) payload_crc: Option<u32>,
}

impl Object {
    fn header_bytes(&self) -> usize {
        (FIXED_BYTES + 24 * self.shape.len() + self.name.len() + 4).next_multiple_of(HEADER_ALIGN)
    }

    /// Where the payload begins.
    pub(crate) fn payload_offset(&self) -> u64 {
        self.header_bytes() as u64
    }

    /// The header as it stands in the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = self.header_bytes();
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(MAGIC);
        for word in [FORMAT, length as u32, self.dtype as u32, self.shape.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.payload_bytes.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        let flags = if self.payload_crc.is_some() { FLAG_CHECKSUM } else { 0 };
        let (names, crc) = (self.name.len() as u32, self.payload_crc.unwrap_or(0));
        for word in [self.rank, self.incarnation, self.index, names, crc, flags] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for number in self.shape.iter().chain(&self.part.start).chain(&self.part.count) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(self.name.as_bytes());
        out.resize(length - 4, 0);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and checks the header of an open file.
    ///
    /// # Errors
    /// [`Kind::Damaged`], [`Kind::UnknownFormat`], those of the operating system.
    pub(crate) fn read(file: &File, path: &Path) -> Result<Object> {
        let reading = |e| Error::io(format!("read {}", path.display()), e);
        let length = file.metadata().map_err(reading)?.len();
        let mut head = vec![0; HEADER_BYTES_MAX.min(usize::try_from(length).unwrap_or(HEADER_BYTES_MAX))];
        file.read_exact_at(&mut head, 0).map_err(reading)?;
        let object = decode(&head).map_err(|e| e.with("file", path.display()))?;
        if length != object.payload_offset().saturating_add(object.payload_bytes) {
            return Err(damaged("its length is not what its header says")
                .with("file", path.display())
                .with("bytes", length)
                .with("bytes_expected", object.payload_offset().saturating_add(object.payload_bytes)));
        }
        Ok(object)
    }

    /// Compares the payload with its checksum.
    ///
    /// # Errors
    /// [`Kind::Damaged`].
    pub(crate) fn verify(&self, payload: &[u8], path: &Path) -> Result<()> {
        match self.payload_crc {
            Some(stored) if stored != crc32c(payload) => {
                Err(damaged("its bytes do not match their checksum")
                    .with("file", path.display())
                    .with("variable", &self.name)
                    .with("version", self.version)
                    .with("rank", self.rank))
            }
            _ => Ok(()),
        }
    }
}

#[cold]
fn damaged(fault: &str) -> Error {
    Error::new(Kind::Damaged, format!("an object file is damaged: {fault}"))
}

/// Reads a header from the first bytes of a file.
fn decode(head: &[u8]) -> Result<Object> {
    if head.len() < FIXED_BYTES {
        return Err(damaged("it is too short"));
    }
    let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
    if &head[..8] != MAGIC {
        return Err(damaged("it does not begin with the magic word"));
    }
    if u32_at(8) != FORMAT {
        return Err(Error::new(
            Kind::UnknownFormat,
            format!("an object file has format version {}", u32_at(8)),
        )
        .with("known", FORMAT)
        .hint("a newer Forebay wrote it; use that one"));
    }
    let (length, dimensions, name_bytes) = (u32_at(12) as usize, u32_at(20) as usize, u32_at(52) as usize);
    if dimensions > DIMENSIONS_MAX
        || name_bytes > NAME_BYTES_MAX
        || length != (FIXED_BYTES + 24 * dimensions + name_bytes + 4).next_multiple_of(HEADER_ALIGN)
        || head.len() < length
    {
        return Err(damaged("the lengths in its header make no sense"));
    }
    if crc32c(&head[..length - 4]) != u32_at(length - 4) {
        return Err(damaged("its header does not match its checksum"));
    }
    let flags = u32_at(60);
    if flags & !FLAG_CHECKSUM != 0 {
        return Err(Error::new(Kind::UnknownFormat, format!("an object file uses features {flags:#x}"))
            .hint("a newer Forebay wrote it; use that one"));
    }
    let dtype = u8::try_from(u32_at(16)).ok().and_then(Dtype::from_code);
    let dtype = dtype.ok_or_else(|| damaged("it has an unknown element type"))?;
    let list = |nth: usize| -> Dims {
        (0..dimensions).map(|i| u64_at(FIXED_BYTES + 8 * (nth * dimensions + i))).collect()
    };
    let names = FIXED_BYTES + 24 * dimensions;
    let name =
        std::str::from_utf8(&head[names..names + name_bytes]).map_err(|_| damaged("its name is no text"))?;
    let object = Object {
        name: name.to_string(),
        dtype,
        shape: list(0),
        part: NdBox { start: list(1), count: list(2) },
        version: u64_at(32),
        rank: u32_at(40),
        incarnation: u32_at(44),
        index: u32_at(48),
        payload_bytes: u64_at(24),
        payload_crc: (flags & FLAG_CHECKSUM != 0).then(|| u32_at(56)),
    };
    let expected = object.part.bytes(dtype.size()).ok().map(|bytes| bytes as u64);
    if !object.part.is_inside(&object.shape) || expected != Some(object.payload_bytes) {
        return Err(damaged("its box does not fit its shape or its length"));
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn sample() -> Object {
        Object {
            name: "T/x é".into(),
            dtype: Dtype::F32,
            shape: Dims::from_slice(&[4, 6]),
            part: NdBox::new(&[1, 2], &[2, 3]).unwrap(),
            version: 7,
            rank: 2,
            incarnation: 3,
            index: 11,
            payload_bytes: 24,
            payload_crc: Some(crc32c(&[5; 24])),
        }
    }

    fn file_of(bytes: &[u8]) -> (tempfile::NamedTempFile, Result<Object>) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let read = Object::read(file.as_file(), file.path());
        (file, read)
    }

    fn bytes_of(object: &Object) -> Vec<u8> {
        [object.encode(), vec![5; object.payload_bytes as usize]].concat()
    }

    #[test]
    fn read_as_written() {
        let scalar = Object {
            name: "x".repeat(NAME_BYTES_MAX),
            shape: Dims::new(),
            part: NdBox::whole(&[]),
            payload_bytes: 4,
            payload_crc: None,
            ..sample()
        };
        let wide = Object {
            shape: Dims::from_elem(1, 16),
            part: NdBox::whole(&[1; 16]),
            payload_bytes: 4,
            name: "x".repeat(NAME_BYTES_MAX),
            ..sample()
        };
        for object in [sample(), scalar, wide] {
            assert_eq!(object.encode().len() % HEADER_ALIGN, 0);
            assert_eq!(file_of(&bytes_of(&object)).1.unwrap(), object);
        }
        assert_eq!(sample().verify(&[5; 24], Path::new("f")).map_err(|e| e.kind()), Ok(()));
        assert_eq!(sample().verify(&[4; 24], Path::new("f")).unwrap_err().kind(), Kind::Damaged);
    }

    #[test]
    fn every_changed_byte_of_the_header_is_noticed() {
        let good = bytes_of(&sample());
        let header = sample().payload_offset() as usize;
        for at in 0..header {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let kind = file_of(&bad).1.unwrap_err().kind();
            let expected = if (8..12).contains(&at) { Kind::UnknownFormat } else { Kind::Damaged };
            assert_eq!(kind, expected, "byte {at}");
        }
    }

    #[test]
    fn cut_off_and_extended_files_are_noticed() {
        let good = bytes_of(&sample());
        for length in 0..good.len() {
            assert_eq!(file_of(&good[..length]).1.unwrap_err().kind(), Kind::Damaged, "{length} bytes");
        }
        assert_eq!(file_of(&[good, vec![0]].concat()).1.unwrap_err().kind(), Kind::Damaged);
    }

    #[test]
    fn an_unknown_feature_is_refused() {
        let object = sample();
        let mut bytes = bytes_of(&object);
        bytes[60] |= 2;
        let end = object.payload_offset() as usize - 4;
        let crc = crc32c(&bytes[..end]);
        bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(file_of(&bytes).1.unwrap_err().kind(), Kind::UnknownFormat);
    }
}
