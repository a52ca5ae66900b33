//! What adapters in front of a device have in common: every call that moves or persists bytes goes through one
//! place, everything else straight to the device below.
//!
//! An adapter says what happens around an operation ([`Around`]) and is a [`Device`] by that. Calls that cannot
//! fail and take no time of the medium (`bytes`, `load_word`, `fence`, asking for capacity or path) are not
//! seen; reading through `bytes` is seen as the [`Device::will_read`] that announces it.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Device, Durability, Error, Horizon, Kind, Placement, Result, StagedWrite, TierKind};

/// A kind of operation, as adapters tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpKind {
    /// `prepare`: space is allocated.
    Prepare,
    /// `write`, `write_checksummed`, `write_unordered`, `unstage`: bytes go in.
    Write,
    /// `read`, `will_read`: bytes go out.
    Read,
    /// `persist`, `persist_written`: bytes are made persistent.
    Persist,
    /// `store_word`: one word goes in.
    Word,
}

impl OpKind {
    /// All of them, in the order of their discriminants.
    pub const ALL: [OpKind; 5] =
        [OpKind::Prepare, OpKind::Write, OpKind::Read, OpKind::Persist, OpKind::Word];
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            OpKind::Prepare => "prepare",
            OpKind::Write => "write",
            OpKind::Read => "read",
            OpKind::Persist => "persist",
            OpKind::Word => "word",
        })
    }
}

impl FromStr for OpKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<OpKind> {
        OpKind::ALL.into_iter().find(|kind| kind.to_string() == text).ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{text}` is not a device operation"))
                .hint("one of: prepare, write, read, persist, word")
        })
    }
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    /// Bytes of the range.
    pub(super) bytes: u64,
    /// It can be done in parts whose lengths are multiples of this; 0: only whole.
    pub(super) unit: u64,
}

/// Does a part of an operation (given from the start of its range) at the device below.
pub(super) type Run<'a> = &'a mut dyn FnMut(Range<u64>) -> Result<()>;

/// What an adapter does around operations of the device below.
pub(super) trait Around: Send + Sync {
    /// The device below.
    fn inner(&self) -> &dyn Device;

    /// Runs the operation: all of it by one `run`, or in consecutive parts, or not at all and with an error.
    fn around(&self, op: Op, run: Run<'_>) -> Result<()>;

    /// Whether memory may still be handed out for writing. Asked before the device below is.
    fn may_stage(&self) -> Result<()> {
        Ok(())
    }
}

/// The length of a range; 0 for a reversed one, which the device below refuses.
fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

impl<T: Around> Device for T {
    fn kind(&self) -> TierKind {
        self.inner().kind()
    }

    fn capacity(&self) -> u64 {
        self.inner().capacity()
    }

    fn pool_end(&self, offset: u64) -> u64 {
        self.inner().pool_end(offset)
    }

    fn path(&self) -> &Path {
        self.inner().path()
    }

    fn byte_addressable(&self) -> bool {
        self.inner().byte_addressable()
    }

    fn durability(&self, horizon: Horizon) -> Durability {
        self.inner().durability(horizon)
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
        let op = Op { kind: OpKind::Prepare, bytes: length(&range), unit: 0 };
        self.around(op, &mut |_| self.inner().prepare(range.clone()))
    }

    fn populate_read(&self, range: Range<u64>) {
        self.inner().populate_read(range);
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let op = Op { kind: OpKind::Write, bytes: src.len() as u64, unit: 1 };
        self.around(op, &mut |part| {
            self.inner().write(offset.wrapping_add(part.start), &src[part.start as usize..part.end as usize])
        })
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        let op = Op { kind: OpKind::Write, bytes: src.len() as u64, unit: chunk_bytes as u64 };
        self.around(op, &mut |part| {
            let bytes = &src[part.start as usize..part.end as usize];
            self.inner().write_checksummed(offset.wrapping_add(part.start), bytes, chunk_bytes, crcs)
        })
    }

    fn write_unordered(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
        soon: bool,
    ) -> Result<()> {
        let unit = chunk_bytes.unwrap_or(1) as u64;
        let op = Op { kind: OpKind::Write, bytes: src.len() as u64, unit };
        self.around(op, &mut |part| {
            let bytes = &src[part.start as usize..part.end as usize];
            self.inner().write_unordered(offset.wrapping_add(part.start), bytes, chunk_bytes, crcs, soon)
        })
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        let op = Op { kind: OpKind::Persist, bytes: length(&range), unit: 0 };
        self.around(op, &mut |_| self.inner().persist(range.clone()))
    }

    fn persist_written(&self, range: Range<u64>) -> Result<()> {
        let op = Op { kind: OpKind::Persist, bytes: length(&range), unit: 0 };
        self.around(op, &mut |_| self.inner().persist_written(range.clone()))
    }

    fn persisted_with(&self, range: Range<u64>) -> Range<u64> {
        self.inner().persisted_with(range)
    }

    fn fence(&self) {
        self.inner().fence();
    }

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        let op = Op { kind: OpKind::Word, bytes: 8, unit: 0 };
        self.around(op, &mut |_| self.inner().store_word(offset, value))
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.inner().bytes(range)
    }

    fn will_read(&self, range: Range<u64>) -> Result<()> {
        let op = Op { kind: OpKind::Read, bytes: length(&range), unit: 0 };
        self.around(op, &mut |_| self.inner().will_read(range.clone()))
    }

    fn can_read(&self, range: Range<u64>) -> Result<()> {
        self.inner().can_read(range)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let op = Op { kind: OpKind::Read, bytes: out.len() as u64, unit: 1 };
        self.around(op, &mut |part| {
            let bytes = &mut out[part.start as usize..part.end as usize];
            self.inner().read(offset.wrapping_add(part.start), bytes)
        })
    }

    fn after_hole(&self, offset: u64) -> u64 {
        self.inner().after_hole(offset)
    }

    fn load_word(&self, offset: u64) -> u64 {
        self.inner().load_word(offset)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.may_stage()?;
        self.inner().stage(range)
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        let op = Op { kind: OpKind::Write, bytes: staged.len() as u64, unit: 0 };
        let mut staged = Some(staged);
        self.around(op, &mut |_| {
            let staged = staged.take().expect("an operation of one part is run once");
            self.inner().unstage(staged, chunk_bytes, crcs)
        })
    }

    fn placement(&self) -> Option<Placement> {
        self.inner().placement()
    }

    fn inject_flush_failure(&self, errno: i32) -> bool {
        self.inner().inject_flush_failure(errno)
    }
}
