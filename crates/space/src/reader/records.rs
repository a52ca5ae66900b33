//! The records of a version, one by one: for programs that copy whole versions.
//!
//! Guarantees: a version that is put again from these, rank by rank in this order, is the same for every reader: pieces
//! that overlap, concatenated variables, what writers said of their variables, and what ranks disagree on. Not here:
//! boxes of variables (`consume.rs`).

use std::sync::Arc;

use forebay_log::{Dims, Dtype};
use forebay_tier::{Device, Error, Kind, Result};

use crate::lane::index::VersionIndex;
use crate::lane::view::{Lease, View};

/// What a rank put with one call.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The rank.
    pub rank: u32,
    /// Its variable; names that begin with `.forebay/` are Forebay's own.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Global shape as it was put: the first extent may be [`crate::CONCAT`].
    pub shape: Dims,
    /// First element.
    pub start: Dims,
    /// Extents.
    pub count: Dims,
    /// Bytes of the payload.
    pub bytes: u64,
}

/// All records, in the order of ranks and puts.
pub(crate) fn list(device: &dyn Device, index: &VersionIndex) -> Result<Vec<Record>> {
    let record = |i: u32| {
        let (header, _) = index.header_there(device, i)?;
        Ok(Record {
            rank: index.rank(i),
            name: header.name().to_string(),
            dtype: header.dtype(),
            shape: header.shape().collect(),
            start: header.start().collect(),
            count: header.count().collect(),
            bytes: header.payload_bytes(),
        })
    };
    (0..index.len() as u32).map(record).collect()
}

/// The payload of one record where it lies; `check` is whether its checksums are compared again, None: not at all.
pub(crate) fn view(
    lease: &Arc<Lease>,
    index: &mut VersionIndex,
    device: &dyn Device,
    record: usize,
    check: Option<bool>,
) -> Result<View> {
    let i = u32::try_from(record).ok().filter(|i| (*i as usize) < index.len()).ok_or_else(|| {
        Error::new(Kind::Usage, format!("version {} has no record {record}", index.version))
            .with("records", index.len())
    })?;
    let (header, _) = index.header_there(device, i)?;
    let bytes = header.payload_bytes();
    let payload = index.offset(i) + header.payload_offset();
    let (dtype, shape) = (header.dtype(), header.count().collect());
    match check {
        Some(always) => index.verify_chunks(device, i, 0, bytes as usize, always, |_, _| {})?,
        None => device.will_read(payload..payload + bytes)?,
    }
    Ok(View::of_pool(lease.clone(), payload..payload + bytes, dtype, shape))
}

/// The error for a channel of files.
#[cold]
pub(crate) fn no_files() -> Error {
    Error::new(Kind::NotPossibleHere, "a channel of files has no records").hint("use kind = \"space\"")
}
