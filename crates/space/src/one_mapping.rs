//! Writers and readers as threads on one mapping of a space: what ThreadSanitizer can watch.
//!
//! Handles that are opened one by one map the space each for themselves, and a sanitizer takes two mappings of one
//! memory for two memories. Here all of them share one attachment, so that every access to a payload and every word
//! that orders it is seen to be the same. `cargo xtask sanitize thread` runs this; without a sanitizer it is a test of
//! its own: segments are used again and again, and whatever is read must be right.

use forebay_config::environment;
use forebay_tier::host::time::Instant;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_log::{Dtype, Piece};
use forebay_tier::adapter::throttle::Locality;
use forebay_tier::Access;

use crate::open::attach::Attachment;
use crate::open::create::{Missing, New};
use crate::open::membership::Membership;
use crate::open::read_to_end::Member;
use crate::reader::consume::SpaceReader;
use crate::writer::produce::SpaceWriter;
use crate::{OpenOptions, SpillTier};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Enough that each place of the pool is used several times.
const VERSIONS: u64 = 60;
const RANKS: u32 = 2;
/// Bytes of a piece: one of a few lines, one of a few pages, one of several chunks of checksums.
const LENGTHS: [u64; 3] = [100, 9000, 150_000];

fn byte(version: u64, rank: u32, at: u64) -> u8 {
    ((version * 31 + u64::from(rank)) ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6]
}

/// The part of a rank in a variable of `length` bytes of each.
fn own(rank: u32, length: u64) -> Range<u64> {
    u64::from(rank) * length..u64::from(rank + 1) * length
}

fn produce(mut writer: SpaceWriter) {
    let rank = writer.sink.handle.rank();
    for version in 0..VERSIONS {
        assert!(writer.begin_version(version).unwrap());
        for length in LENGTHS {
            let range = own(rank, length);
            let data: Vec<u8> = range.clone().map(|at| byte(version, rank, at)).collect();
            let piece = Piece {
                name: &length.to_string(),
                dtype: Dtype::U8,
                shape: &[u64::from(RANKS) * length],
                start: &[range.start],
                count: &[length],
            };
            writer.put(&piece, &data).unwrap();
        }
        writer.end_step().unwrap();
    }
    writer.close().unwrap();
}

fn consume(mut reader: SpaceReader) {
    let mut kept = None;
    for version in 0..VERSIONS {
        assert_eq!(reader.begin_step(Some(TIMEOUT)).unwrap(), Some(version));
        for length in LENGTHS {
            let mut out = vec![0; (u64::from(RANKS) * length) as usize];
            reader.get(&length.to_string(), None, &mut out).unwrap();
            check(version, length, 0, &out);
        }
        // A view outlives its step now and then, and holds the version while producers go on.
        let length = LENGTHS[version as usize % LENGTHS.len()];
        let range = own(reader.source.handle.rank(), length);
        let part = crate::NdBox::new(&[range.start], &[length]).unwrap();
        let view = reader.view(&length.to_string(), Some(&part)).unwrap();
        reader.end_step().unwrap();
        check(version, length, range.start, view.bytes());
        kept = Some(view).filter(|_| version % 3 == 0);
    }
    drop(kept);
    assert_eq!(reader.begin_step(Some(TIMEOUT)).unwrap(), None);
    reader.close().unwrap();
}

fn check(version: u64, length: u64, from: u64, bytes: &[u8]) {
    for (at, found) in (from..).zip(bytes) {
        assert_eq!(*found, byte(version, (at / length) as u32, at), "byte {at} of {length} in {version}");
    }
}

/// Two writers and two readers on the space that these options make.
fn on_one_mapping(options: OpenOptions) {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let name = format!("{}/s", root.path().display());
    let options = OpenOptions { timeout: TIMEOUT, component: Some("test".into()), ..options };
    let of = |rank, component: &str| {
        let ranked = OpenOptions { rank: Some(rank), size: Some(RANKS), ..options.clone() };
        OpenOptions { component: Some(component.into()), ..ranked }
            .resolved(&name, &environment::process)
            .unwrap()
    };
    let deadline = Instant::now() + TIMEOUT;
    let makes = of(0, "writers");
    let missing = Missing::Create(New { options: &makes, ranks: RANKS, first_version: 0 });
    let space = Attachment::open(&name, Access::Write, Locality::Local, missing, deadline).unwrap();
    // All have joined before the first one puts: nothing is dropped unread.
    let writers: Vec<SpaceWriter> = (0..RANKS)
        .map(|rank| {
            let joined = Membership::join_producers(&space, rank, RANKS, "writers", 1, deadline).unwrap();
            SpaceWriter::of_member(Member::of(joined), &name, of(rank, "writers"), deadline, None).unwrap()
        })
        .collect();
    let readers: Vec<SpaceReader> = (0..RANKS)
        .map(|rank| {
            let group = Some(("readers", crate::open::groups::Keep::AsKnown));
            let joined = Membership::join_readers(&space, rank, RANKS, "readers", group, deadline).unwrap();
            SpaceReader::of_member(Member::of(joined), &name, of(rank, "readers"), true)
        })
        .collect();
    std::thread::scope(|scope| {
        writers.into_iter().for_each(|writer| drop(scope.spawn(|| produce(writer))));
        readers.into_iter().for_each(|reader| drop(scope.spawn(|| consume(reader))));
    });
    assert!(Arc::into_inner(space).is_some(), "no process has it open any more");
    assert!(!Path::new(&name).exists(), "read to its end, it is gone");
}

#[test]
fn space_is_used_again_under_readers() {
    on_one_mapping(OpenOptions {
        quota_bytes: Some(4 << 20),
        segment_bytes: Some(512 << 10),
        ..OpenOptions::default()
    });
}

#[test]
fn segments_move_under_readers() {
    let disk = tempfile::tempdir().unwrap();
    on_one_mapping(OpenOptions {
        quota_bytes: Some(4 << 20),
        segment_bytes: Some(512 << 10),
        spill: vec![SpillTier { path: disk.path().into(), quota: Some(64 << 20), tier: None }],
        ..OpenOptions::default()
    });
}
