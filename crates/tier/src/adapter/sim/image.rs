//! What may be left on a medium after a crash, as a device for reading.
//!
//! Writing is refused as on a pool that was opened for reading. To go on after a crash, make a new
//! [`Sim`](super::Sim) from [`Image::as_slice`].

use std::ops::Range;
use std::path::Path;

use super::Medium;
use crate::{Device, Durability, Error, Horizon, Kind, Result, StagedWrite, TierKind};

/// One image of a medium.
#[derive(Clone, Debug)]
pub struct Image {
    bytes: Vec<u8>,
    medium: Medium,
}

impl Image {
    /// Of these bytes.
    pub fn new(bytes: Vec<u8>, medium: Medium) -> Image {
        Image { bytes, medium }
    }

    /// All of its bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// What the medium is.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    pub(super) fn set(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    }
}

#[cold]
fn read_only() -> Error {
    Error::new(Kind::PermissionDenied, "a crash image is read-only")
}

impl Device for Image {
    fn kind(&self) -> TierKind {
        if self.byte_addressable() {
            TierKind::Pmem
        } else {
            TierKind::File
        }
    }

    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn path(&self) -> &Path {
        Path::new("image of a crash")
    }

    fn byte_addressable(&self) -> bool {
        self.medium.is_lines(0)
    }

    fn durability(&self, _horizon: Horizon) -> Durability {
        Durability::Process
    }

    fn prepare(&self, _range: Range<u64>) -> Result<()> {
        Err(read_only())
    }

    fn populate_read(&self, _range: Range<u64>) {}

    fn write(&self, _offset: u64, _src: &[u8]) -> Result<()> {
        Err(read_only())
    }

    fn write_checksummed(
        &self,
        _offset: u64,
        _src: &[u8],
        _chunk_bytes: usize,
        _crcs: &mut Vec<u32>,
    ) -> Result<()> {
        Err(read_only())
    }

    fn persist(&self, _range: Range<u64>) -> Result<()> {
        Err(read_only())
    }

    fn fence(&self) {}

    fn store_word(&self, _offset: u64, _value: u64) -> Result<()> {
        Err(read_only())
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.capacity());
        let Some(end) = end else {
            return Err(Error::new(Kind::Internal, "range out of bounds of the pool").with("offset", offset));
        };
        out.copy_from_slice(&self.bytes[offset as usize..end as usize]);
        Ok(())
    }

    fn load_word(&self, offset: u64) -> u64 {
        assert!(offset % 8 == 0, "offset {offset} of a word is not a multiple of 8");
        let word = &self.bytes[offset as usize..offset as usize + 8];
        u64::from_ne_bytes(word.try_into().expect("eight bytes"))
    }

    fn stage(&self, _range: Range<u64>) -> Result<StagedWrite> {
        Err(read_only())
    }

    fn unstage(&self, _staged: StagedWrite, _chunk: Option<usize>, _crcs: &mut Vec<u32>) -> Result<()> {
        Err(read_only())
    }
}
