//! A box of a version, seen where it lies in the pool.

use std::ops::Range;
use std::sync::Arc;

use forebay_log::{Dims, Dtype};
use forebay_tier::Device;

use crate::open::read_to_end::Member;

/// A read-only box of a committed version, without a copy. It keeps a lease: as long as it lives, also after its
/// reader was closed, the version is not dropped and the producer may have to wait for free space.
#[derive(Clone)]
pub struct View {
    bytes: Bytes,
    dtype: Dtype,
    shape: Dims,
    version: u64,
}

#[derive(Clone)]
enum Bytes {
    Pool { lease: Arc<Lease>, range: Range<u64> },
    Heap(Arc<Vec<u8>>),
}

/// One hold on a version, ended when dropped.
pub(crate) struct Lease {
    member: Arc<Member>,
    device: Arc<dyn Device>,
    version: u64,
}

impl Lease {
    /// Holds `version`, or None if it was dropped already.
    pub(crate) fn take(member: &Arc<Member>, version: u64) -> Option<Lease> {
        member.take_lease(version).then(|| Lease {
            member: member.clone(),
            device: member.space.device.clone(),
            version,
        })
    }

    /// That this process took it: in a forked child it is the parent's, who may end it.
    pub(crate) fn check_fork(&self) -> forebay_tier::Result<()> {
        self.member.check_fork()
    }

    /// All pools.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The version that is held.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.member.drop_lease(self.version);
    }
}

impl View {
    pub(crate) fn of_pool(lease: Arc<Lease>, range: Range<u64>, dtype: Dtype, shape: Dims) -> View {
        let version = lease.version;
        View { bytes: Bytes::Pool { lease, range }, dtype, shape, version }
    }

    pub(crate) fn of_heap(bytes: Vec<u8>, dtype: Dtype, shape: Dims, version: u64) -> View {
        View { bytes: Bytes::Heap(Arc::new(bytes)), dtype, shape, version }
    }

    /// Whether the bytes were copied out of the channel.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.bytes, Bytes::Heap(_))
    }

    pub(crate) fn byte_count(&self) -> u64 {
        match &self.bytes {
            Bytes::Pool { range, .. } => range.end - range.start,
            Bytes::Heap(bytes) => bytes.len() as u64,
        }
    }

    /// The elements, in C order.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Pool { lease, range } => lease.device.bytes(range.clone()),
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Extents of the box.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The version it belongs to.
    pub fn version(&self) -> u64 {
        self.version
    }
}
