//! One object of the file-per-object channel: one piece of a variable in one file, header first, then the
//! bytes.
//!
//! Layout, checked against docs/src/formats/files.md by `cargo xtask formats`: 64 bytes of fixed fields
//! (little-endian), then shape, start and count (8 bytes a number), the name, zeros, and in the last 4 bytes
//! of the header its CRC-32C; the payload follows, in C order. A header is a multiple of 64 bytes long.
//!
//! Guarantees: a file that was cut off, extended or changed anywhere is recognised (the payload's bytes when
//! it has a checksum and is verified); an unknown format version or feature is `UnknownFormat`, not a wrong
//! reading. Crash argument: the file gets its name by a rename after it was written, and counts only when its
//! rank's `done` file, written later, says how many objects there are. Not here: directories and names.

use forebay_log::format::Layout;
use forebay_log::nd_box::{NdBox, DIMENSIONS_MAX};
use forebay_log::{Dims, Dtype};
use forebay_tier::checksum::crc32c;
use forebay_tier::host::fs::File;
use forebay_tier::{Error, Kind, Result};
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

/// Where the fields of the fixed part stand; each reaches to the next one.
mod at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const FORMAT: usize = 8;
    pub(super) const HEADER_BYTES: usize = 12;
    pub(super) const DTYPE: usize = 16;
    pub(super) const DIMENSIONS: usize = 20;
    pub(super) const PAYLOAD_BYTES: usize = 24;
    pub(super) const VERSION: usize = 32;
    pub(super) const RANK: usize = 40;
    pub(super) const INCARNATION: usize = 44;
    pub(super) const INDEX: usize = 48;
    pub(super) const NAME_BYTES: usize = 52;
    pub(super) const PAYLOAD_CRC: usize = 56;
    pub(super) const FLAGS: usize = 60;
}

/// The fixed part of the header, for the format document.
pub fn object_layout() -> Layout {
    let starts = [
        ("magic", at::MAGIC),
        ("format", at::FORMAT),
        ("header_bytes", at::HEADER_BYTES),
        ("dtype", at::DTYPE),
        ("dimensions", at::DIMENSIONS),
        ("payload_bytes", at::PAYLOAD_BYTES),
        ("version", at::VERSION),
        ("rank", at::RANK),
        ("incarnation", at::INCARNATION),
        ("index", at::INDEX),
        ("name_bytes", at::NAME_BYTES),
        ("payload_crc", at::PAYLOAD_CRC),
        ("flags", at::FLAGS),
    ];
    let end = |i: usize| starts.get(i + 1).map_or(FIXED_BYTES, |(_, start)| *start);
    let fields = starts.iter().enumerate().map(|(i, (name, start))| (*name, *start, end(i) - start));
    Layout { name: "ObjectHeader", size: FIXED_BYTES, fields: fields.collect() }
}

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
    if u32_at(at::FORMAT) != FORMAT {
        return Err(Error::new(
            Kind::UnknownFormat,
            format!("an object file has format version {}", u32_at(at::FORMAT)),
        )
        .with("known", FORMAT)
        .hint("written by a newer release of Forebay: use that release or a newer one"));
    }
    let (length, dimensions, name_bytes) =
        (u32_at(at::HEADER_BYTES) as usize, u32_at(at::DIMENSIONS) as usize, u32_at(at::NAME_BYTES) as usize);
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
    let flags = u32_at(at::FLAGS);
    if flags & !FLAG_CHECKSUM != 0 {
        return Err(Error::new(Kind::UnknownFormat, format!("an object file uses features {flags:#x}"))
            .hint("written by a newer release of Forebay: use that release or a newer one"));
    }
    let dtype = u8::try_from(u32_at(at::DTYPE)).ok().and_then(Dtype::from_code);
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
        version: u64_at(at::VERSION),
        rank: u32_at(at::RANK),
        incarnation: u32_at(at::INCARNATION),
        index: u32_at(at::INDEX),
        payload_bytes: u64_at(at::PAYLOAD_BYTES),
        payload_crc: (flags & FLAG_CHECKSUM != 0).then(|| u32_at(at::PAYLOAD_CRC)),
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
    use std::path::PathBuf;

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

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/files/1").join(name)
    }

    /// The fixtures: name, content, and the kind of error that reading it must give.
    fn fixtures() -> Vec<(&'static str, Vec<u8>, Option<Kind>)> {
        let good = bytes_of(&sample());
        let scalar = Object {
            name: "dt".into(),
            dtype: Dtype::F64,
            shape: Dims::new(),
            part: NdBox::whole(&[]),
            payload_bytes: 8,
            payload_crc: None,
            ..sample()
        };
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        vec![
            ("array.obj", good.clone(), None),
            ("scalar-unchecked.obj", bytes_of(&scalar), None),
            ("damaged-header.obj", changed(at::VERSION), Some(Kind::Damaged)),
            ("damaged-payload.obj", changed(good.len() - 1), Some(Kind::Damaged)),
            ("damaged-length.obj", good[..good.len() - 1].to_vec(), Some(Kind::Damaged)),
            ("unknown-format.obj", changed(at::FORMAT + 1), Some(Kind::UnknownFormat)),
        ]
    }

    /// Writes the fixtures of this format version, once: `cargo test -p forebay-space write_object_fixtures
    /// -- --ignored`. Released ones are never written again.
    #[test]
    #[ignore = "writes fixtures"]
    fn write_object_fixtures() {
        for (name, bytes, _) in fixtures() {
            assert!(!fixture(name).exists(), "{name} is there");
            std::fs::create_dir_all(fixture("")).unwrap();
            std::fs::write(fixture(name), bytes).unwrap();
        }
    }

    #[test]
    fn fixtures_are_read_as_ever_and_written_bit_for_bit_the_same() {
        for (name, bytes, kind) in fixtures() {
            let path = fixture(name);
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}");
            let file = File::open(&path).unwrap();
            let read = Object::read(&file, &path)
                .and_then(|object| object.verify(&bytes[object.payload_offset() as usize..], &path));
            assert_eq!(read.err().map(|e| e.kind()), kind, "{name}");
        }
    }

    #[test]
    fn the_layout_has_no_holes() {
        let layout = object_layout();
        let mut end = 0;
        for (name, start, bytes) in layout.fields {
            assert_eq!(start, end, "{name}");
            end = start + bytes;
        }
        assert_eq!(end, layout.size);
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
