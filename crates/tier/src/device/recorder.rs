//! A device that notes what it is asked, to find the calls that something in front of it forgets to hand down.
//!
//! A call that the trait has a default for and an adapter does not name still compiles, and does something slower or
//! says something else. The check knows every method of the trait from its source, so that a new one is not forgotten
//! here either.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Device;
use crate::{Durability, Horizon, Placement, Result, StagedWrite, TierKind};

/// Stands around a device and notes the name of each method that is called.
pub struct Recorder {
    inner: Arc<dyn Device>,
    seen: Mutex<Vec<&'static str>>,
}

/// Calls each method of [`Device`] once, with a range at the start of the pool, on what `around` makes of a
/// recorder around the fresh, byte-addressable pool `inner`. Panics with a method that did not arrive as that
/// method, once. What the device in front answers by itself is in `own`.
pub fn check_handed_down(
    inner: Arc<dyn Device>,
    around: &dyn Fn(Arc<dyn Device>) -> Arc<dyn Device>,
    own: &[&str],
) {
    let recorder = Arc::new(Recorder { inner, seen: Mutex::default() });
    let front = around(recorder.clone());
    let mut called = BTreeSet::new();
    each_method(&*front, &mut |name, call| {
        recorder.seen().clear();
        call();
        called.insert(name);
        let seen = std::mem::take(&mut *recorder.seen());
        let expected = if own.contains(&name) { vec![] } else { vec![name] };
        assert_eq!(seen, expected, "{name} in front is this below");
    });
    assert_eq!(
        called,
        methods(include_str!("mod.rs")),
        "methods that are called here, and those of the trait"
    );
}

/// The names of the methods in the text of the trait.
fn methods(source: &str) -> BTreeSet<&str> {
    let body = source.split_once("pub trait Device").map_or("", |(_, after)| after);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    body.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next()).collect()
}

fn each_method(device: &dyn Device, seen: &mut dyn FnMut(&'static str, &mut dyn FnMut())) {
    const DONE: &str = "a prepared range is written and read";
    let mut crcs = Vec::new();
    seen("prepare", &mut || device.prepare(0..4096).expect(DONE));
    seen("kind", &mut || _ = device.kind());
    seen("capacity", &mut || _ = device.capacity());
    seen("pool_end", &mut || _ = device.pool_end(0));
    seen("path", &mut || _ = device.path().to_owned());
    seen("byte_addressable", &mut || _ = device.byte_addressable());
    seen("durability", &mut || _ = device.durability(Horizon::Epoch));
    seen("placement", &mut || _ = device.placement());
    seen("populate_read", &mut || device.populate_read(0..4096));
    seen("write", &mut || device.write(0, &[1; 64]).expect(DONE));
    seen("write_checksummed", &mut || device.write_checksummed(0, &[2; 64], 64, &mut crcs).expect(DONE));
    seen("write_unordered", &mut || {
        device.write_unordered(0, &[3; 64], Some(64), &mut crcs, true).expect(DONE)
    });
    seen("persist", &mut || device.persist(0..64).expect(DONE));
    seen("persist_written", &mut || device.persist_written(0..64).expect(DONE));
    seen("persisted_with", &mut || assert_eq!(device.persisted_with(0..64), 0..64));
    seen("fence", &mut || device.fence());
    seen("store_word", &mut || device.store_word(8, 7).expect(DONE));
    seen("load_word", &mut || assert_eq!(device.load_word(8), 7));
    seen("bytes", &mut || assert_eq!(device.bytes(0..8), [3; 8]));
    seen("will_read", &mut || device.will_read(0..8).expect(DONE));
    seen("can_read", &mut || device.can_read(0..8).expect(DONE));
    seen("read", &mut || device.read(0, &mut [0; 8]).expect(DONE));
    seen("after_hole", &mut || assert_eq!(device.after_hole(0), 0));
    let mut staged = None;
    seen("stage", &mut || staged = Some(device.stage(0..64).expect(DONE)));
    seen("unstage", &mut || {
        let staged = staged.take().expect("staged just now");
        device.unstage(staged, None, &mut Vec::new()).expect(DONE);
    });
    seen("inject_flush_failure", &mut || _ = device.inject_flush_failure(0));
}

impl Recorder {
    fn seen(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner(&self, called: &'static str) -> &dyn Device {
        self.seen().push(called);
        &*self.inner
    }
}

impl Device for Recorder {
    fn kind(&self) -> TierKind {
        self.inner("kind").kind()
    }

    fn capacity(&self) -> u64 {
        self.inner("capacity").capacity()
    }

    fn pool_end(&self, offset: u64) -> u64 {
        self.inner("pool_end").pool_end(offset)
    }

    fn path(&self) -> &Path {
        self.inner("path").path()
    }

    fn byte_addressable(&self) -> bool {
        self.inner("byte_addressable").byte_addressable()
    }

    fn durability(&self, horizon: Horizon) -> Durability {
        self.inner("durability").durability(horizon)
    }

    fn after_hole(&self, offset: u64) -> u64 {
        self.inner("after_hole").after_hole(offset)
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
        self.inner("prepare").prepare(range)
    }

    fn populate_read(&self, range: Range<u64>) {
        self.inner("populate_read").populate_read(range);
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.inner("write").write(offset, src)
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        self.inner("write_checksummed").write_checksummed(offset, src, chunk_bytes, crcs)
    }

    fn write_unordered(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: Option<usize>,
        crcs: &mut Vec<u32>,
        soon: bool,
    ) -> Result<()> {
        self.inner("write_unordered").write_unordered(offset, src, chunk_bytes, crcs, soon)
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        self.inner("persist").persist(range)
    }

    fn persist_written(&self, range: Range<u64>) -> Result<()> {
        self.inner("persist_written").persist_written(range)
    }

    fn persisted_with(&self, range: Range<u64>) -> Range<u64> {
        self.inner("persisted_with").persisted_with(range)
    }

    fn fence(&self) {
        self.inner("fence").fence();
    }

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        self.inner("store_word").store_word(offset, value)
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.inner("bytes").bytes(range)
    }

    fn will_read(&self, range: Range<u64>) -> Result<()> {
        self.inner("will_read").will_read(range)
    }

    fn can_read(&self, range: Range<u64>) -> Result<()> {
        self.inner("can_read").can_read(range)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.inner("read").read(offset, out)
    }

    fn load_word(&self, offset: u64) -> u64 {
        self.inner("load_word").load_word(offset)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        self.inner("stage").stage(range)
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        self.inner("unstage").unstage(staged, chunk_bytes, crcs)
    }

    fn placement(&self) -> Option<Placement> {
        self.inner("placement").placement()
    }

    fn inject_flush_failure(&self, errno: i32) -> bool {
        self.inner("inject_flush_failure").inject_flush_failure(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_methods_of_the_trait_are_read_from_its_text() {
        let before = "fn no() {}\npub trait Device: Send {\n    /// a\n    fn kind(&self);\n    fn write(\n";
        let after = "        &self,\n    ) {\n        fn inside() {}\n    }\n}\n    fn later();\n";
        let text = [before, after].concat();
        assert_eq!(methods(&text), BTreeSet::from(["kind", "write"]));
    }

    #[test]
    #[should_panic(expected = "placement in front is this below")]
    fn what_does_not_arrive_as_expected_is_found() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let pool = |name| crate::create(TierKind::Dram, &dir.path().join(name), 4096).expect("a pool");
        check_handed_down(pool("a"), &|below| below, &[]);
        check_handed_down(pool("b"), &|below| below, &["placement"]);
    }
}
