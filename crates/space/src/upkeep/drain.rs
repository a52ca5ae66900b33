//! Draining a space: moving what producers that are gone left in its first tier to its lower tiers.
//!
//! Guarantees: what was moved stays moved, whatever ends the call; lanes of producers that live are left to them.
//! Not here: how a segment is moved (`lane/mover.rs`).

use forebay_tier::host::time::Instant;
use std::time::Duration;

use forebay_tier::adapter::throttle::Locality;
use forebay_tier::{Access, Error, Kind, Result};
use serde::Serialize;

use crate::control::GranuleState;
use crate::lane::mover::{adopt_one, Adopted};
use crate::open::attach::{lock_timeout, Attachment};
use crate::open::create::Missing;
use crate::open::runs::is_orphan;

/// What [`drain`] did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DrainReport {
    /// Bytes moved to lower tiers.
    pub moved_bytes: u64,
    /// Segments moved.
    pub segments: u64,
    /// Bytes of lanes whose producers are gone that are still in the first pool.
    pub remaining_bytes: u64,
}

/// Moves everything that producers which are gone left in the first tier of a space to its lower tiers, so that the
/// memory is free and, at a durable horizon, the data are where they survive what that tier promises. Lanes of
/// producers that live are left to them. Blocks until nothing is left to move, at most `timeout`.
///
/// # Errors
/// [`Kind::PeerMissing`] without such a space, [`Kind::Usage`] when it has no lower tier, [`Kind::TierFull`] when a
/// segment does not fit the lower tiers, [`Kind::TimedOut`] when readers still hold the data or another process moves
/// segments, and those of the devices.
pub fn drain(name: &str, timeout: Duration) -> Result<DrainReport> {
    let deadline = Instant::now() + timeout;
    let space = Attachment::open(name, Access::Write, Locality::Local, Missing::Fail, deadline)?;
    if space.pools.len() < 2 {
        return Err(Error::new(Kind::Usage, format!("space {name} has no lower tier to drain to"))
            .hint("lower tiers are set when a space is created: spill = \"DIRECTORY\""));
    }
    let mut report = DrainReport::default();
    loop {
        let adopted = adopt_one(&space, lock_timeout(deadline))?;
        if let Adopted::Moved(bytes) = adopted {
            report.moved_bytes += bytes;
            report.segments += 1;
            continue;
        }
        #[cfg(test)]
        between_looks::pass();
        report.remaining_bytes = orphan_bytes(&space);
        if report.remaining_bytes == 0 {
            return Ok(report);
        }
        if let Adopted::NoCapacity(bytes) = adopted {
            let full = left_over(&space, Kind::TierFull, "a segment does not fit the lower tiers", &report);
            return Err(full.with("segment", crate::format_bytes(bytes)));
        }
        if Instant::now() >= deadline {
            let why = match adopted {
                Adopted::Busy => "another process moves segments",
                _ => "readers still hold versions",
            };
            return Err(left_over(&space, Kind::TimedOut, why, &report));
        }
        forebay_tier::host::thread::sleep(Duration::from_millis(20));
    }
}

fn left_over(space: &Attachment, kind: Kind, why: &str, report: &DrainReport) -> Error {
    Error::new(kind, format!("space {} could not be drained: {why}", space.name))
        .with("moved", crate::format_bytes(report.moved_bytes))
        .with("left", crate::format_bytes(report.remaining_bytes))
        .hint("end the readers, or free space, and drain it again; data that were moved stay moved")
}

/// Bytes in the first pool that belong to no living producer.
fn orphan_bytes(space: &Attachment) -> u64 {
    let control = &space.control;
    let of_orphan = |index: usize| {
        let (lane, slot) = match control.granule_state(index) {
            GranuleState::Segment { lane, slot } | GranuleState::Leaving { lane, slot } => (lane, slot),
            _ => return 0,
        };
        let granules = control.granule_segment(index).1 as u64;
        if is_orphan(space, lane, slot) {
            granules * space.superblock.granule_bytes
        } else {
            0
        }
    };
    space.pools[0].clone().map(of_orphan).sum()
}

/// What a test does between the looks of a drain.
#[cfg(test)]
mod between_looks {
    use std::cell::RefCell;

    thread_local! { static ONCE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) } }

    pub(super) fn pass() {
        if let Some(f) = ONCE.take() {
            f();
        }
    }

    pub(super) fn once(f: impl FnOnce() + 'static) {
        ONCE.set(Some(Box::new(f)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::shared_state::LOCK_ADOPT;
    use crate::lane::granules::{allocate, Owner, Place, LOCK_TIMEOUT};
    use crate::lane::mover::tests::{written, LANE};
    use crate::open::create::attached;
    use crate::{OpenOptions, Reader, Writer};
    use forebay_log::reclaim::retire;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    /// Much longer than the deadline of who waits, and shorter than any other.
    const HOLD: Duration = Duration::from_secs(3);

    /// A producer that is killed between taking space and writing the header leaves a segment without one.
    #[test]
    fn a_segment_that_was_never_begun_is_freed_and_a_damaged_one_is_told() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, _) = written(&root, &disk);
        let space = attached(&name);
        let (control, granule) = (&space.control, space.superblock.granule_bytes);
        let owner = Owner { lane: LANE, slot: None };
        let taken =
            allocate(&space, owner, 0, granule, Place::Anywhere, LOCK_TIMEOUT).unwrap().expect("free space");
        let index = (taken.start / granule) as usize;
        control.describe_run(index, 7, 1, 2);
        control.set_granule_state(index, GranuleState::Segment { lane: LANE, slot: None });
        // Half a header, as a kill in the middle of it leaves.
        space.device.write(taken.start, &forebay_log::format::SEGMENT_MAGIC.to_le_bytes()).unwrap();
        let report = drain(&name, Duration::from_secs(20)).unwrap();
        assert_eq!((report.remaining_bytes, report.segments), (0, 1), "only the one with versions moved");
        assert_eq!(control.granule_state(index), GranuleState::Free);
        // One of a complete version is not given away.
        control.describe_run(index, 7, 1, 1);
        control.set_granule_state(index, GranuleState::Segment { lane: LANE, slot: None });
        assert_eq!(drain(&name, Duration::from_secs(20)).unwrap_err().kind(), Kind::Damaged);
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// A later group has completed the version for which a killed producer took space.
    #[test]
    fn a_segment_that_was_never_begun_is_freed_though_another_group_completed_its_version() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, options) = written(&root, &disk);
        let again = OpenOptions { mode: crate::Mode::Append, ..options };
        let version = 2;
        // The second group completes that version, the third begins behind it.
        for next in [2, 3] {
            let mut writer = Writer::open(&name, &again).unwrap();
            assert_eq!(writer.resume().unwrap(), next);
            writer.begin_version(next).unwrap();
            writer.put_array("x", &[5000], &[0], &[5000], &[next; 5000]).unwrap();
            writer.end_step().unwrap();
            writer.close().unwrap();
        }
        let space = attached(&name);
        let (control, granule) = (&space.control, space.superblock.granule_bytes);
        let owner = Owner { lane: LANE, slot: None };
        let taken =
            allocate(&space, owner, 0, granule, Place::Anywhere, LOCK_TIMEOUT).unwrap().expect("free space");
        let index = (taken.start / granule) as usize;
        control.describe_run(index, 0, 1, version);
        control.set_granule_state(index, GranuleState::Segment { lane: LANE, slot: None });
        let report = drain(&name, Duration::from_secs(20)).unwrap();
        assert_eq!((report.remaining_bytes, report.segments), (0, 3), "those with versions moved");
        assert_eq!(control.granule_state(index), GranuleState::Free);
        assert_eq!(crate::verify(&name).unwrap().damaged.len(), 0);
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// A producer that is killed between wiping the header of a segment that was released and freeing its granules.
    #[test]
    fn a_released_segment_whose_header_was_wiped_is_freed() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, _) = written(&root, &disk);
        let space = attached(&name);
        let granule = space.control.find_segment(LANE, |_, _| true).unwrap().granule;
        let at = granule as u64 * space.superblock.granule_bytes;
        // Without the end of the lane, which nothing retains.
        space.control.describe_run(granule, 0, 1, 1);
        retire(&*space.device, at, space.superblock.horizon).unwrap();
        space.control.drop_below(|| 1);
        assert_eq!(drain(&name, Duration::from_secs(20)).unwrap_err().kind(), Kind::Damaged, "1 is retained");
        space.control.drop_below(|| 2);
        let report = drain(&name, Duration::from_secs(20)).unwrap();
        assert_eq!((report.remaining_bytes, report.segments), (0, 0));
        assert_eq!(space.control.granule_state(granule), GranuleState::Free);
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// A reader holds what is to be drained while a segment is looked for, and lets it go before it is looked whether
    /// a reader does.
    #[test]
    fn a_drain_goes_on_when_a_lease_ends_between_its_looks() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, options) = written(&root, &disk);
        let mut reader = Reader::open(&name, &options).unwrap();
        assert_eq!(reader.begin_step(None).unwrap(), Some(0));
        between_looks::once(move || drop(reader));
        let report = drain(&name, Duration::from_secs(20)).unwrap();
        assert_eq!((report.remaining_bytes, report.segments), (0, 1));
        crate::destroy(&name).unwrap();
    }

    /// No segment is held by a reader, and the lower pool is taken.
    #[test]
    fn a_drain_says_that_the_lower_tier_is_full() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, _) = written(&root, &disk);
        let space = attached(&name);
        let bytes = space.pools[1].len() as u64 * space.superblock.granule_bytes;
        allocate(&space, Owner { lane: LANE, slot: None }, 1, bytes, Place::Anywhere, LOCK_TIMEOUT)
            .unwrap()
            .expect("free");
        let full = drain(&name, Duration::from_secs(20)).unwrap_err();
        assert_eq!(full.kind(), Kind::TierFull, "{full}");
        drop(space);
        crate::destroy(&name).unwrap();
    }

    /// Another process adopts, for longer than the caller waits.
    #[test]
    fn who_waits_for_the_adoption_lock_gives_up_at_its_own_deadline() {
        let (root, disk) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
        let (name, options) = written(&root, &disk);
        let space = attached(&name);
        type Wait<'a> = &'a dyn Fn(Duration) -> Result<()>;
        let waits: [(&str, Wait<'_>); 2] = [
            ("a drain", &|timeout| drain(&name, timeout).map(drop)),
            ("a writer", &|timeout| {
                let options = OpenOptions { timeout, mode: crate::Mode::Append, ..options.clone() };
                Writer::open(&name, &options).map(drop)
            }),
        ];
        for (who, wait) in waits {
            let held = AtomicBool::new(false);
            let waited = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let hold = || {
                        held.store(true, SeqCst);
                        std::thread::sleep(HOLD);
                        Ok(())
                    };
                    space.members.with_lock(LOCK_ADOPT, HOLD, hold).unwrap();
                });
                while !held.load(SeqCst) {
                    std::thread::yield_now();
                }
                wait(Duration::from_millis(200))
            });
            assert_eq!(waited.map_err(|e| e.kind()), Err(Kind::TimedOut), "{who}");
        }
        drop(space);
        crate::destroy(&name).unwrap();
    }
}
