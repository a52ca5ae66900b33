//! Runs of granules: whose one is, and freeing it.
//!
//! Not here: taking one (`lane/`), and which of them may go.

use forebay_log::format::SegmentDf;
use forebay_log::reclaim::retire;
use forebay_log::LaneId;
use forebay_tier::Result;

use super::attach::Attachment;
use super::member::owns_lane;
use crate::control::GranuleState;

/// A mover that was killed between copying and publishing leaves a whole segment, which must not be found again.
pub(crate) fn wipe_unpublished(space: &Attachment, index: usize) -> Result<()> {
    let at = index as u64 * space.superblock.granule_bytes;
    let mut head = [0; std::mem::size_of::<SegmentDf>()];
    space.device.read(at, &mut head)?;
    if SegmentDf::decode(&head, &space.superblock.uuid, at).is_some() {
        retire(&*space.device, at, space.superblock.horizon)?;
    }
    Ok(())
}

/// Frees the run of granules that begins at `index`.
pub(crate) fn free_run(space: &Attachment, index: usize) {
    space.control.set_granule_state(index, GranuleState::Free);
}

/// Whether the member that a run of granules names is gone, or was another one.
pub(crate) fn is_orphan(space: &Attachment, lane: LaneId, slot: Option<u32>) -> bool {
    !slot.is_some_and(|slot| owns_lane(space, slot, lane))
}
