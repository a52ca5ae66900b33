//! A place that is a store of objects: a bucket of S3 and its like, or a directory of whole files.
//!
//! Guarantees: an object is there whole or not at all, and what was written is durable when the call returns, with its
//! name. So nothing is stored under a hidden name first, and there is nothing to sync. Large files go up in parts, some
//! of them at a time; memory holds these parts and no more. Each request has its deadline; one that failed on the way
//! is tried again within it. Not here: credentials, which the environment has (AWS_ACCESS_KEY_ID and the others).
//!
//! A store speaks asynchronously; its runtime runs inside the calls of this place and nowhere else, also where a
//! program that has one of its own makes them. A process that is killed while a file goes up may leave its parts, which
//! no reader sees and which the store drops by its own rules.

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_tier::checksum::crc32c;
use forebay_tier::{Durability, Error, Kind, Result, TierKind};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;

use super::{make_own, Blob, Part, Place, Written, BLOCK_BYTES};
use crate::format::{damaged, CHUNK_BYTES};

/// Bytes of a request: large enough that its way there and back counts little.
const REQUEST_BYTES: u64 = 8 << 20;

/// Requests of one file under way at a time.
const REQUESTS: usize = 4;

/// Most parts of an object, as S3 has it.
const PARTS_MAX: u64 = 10_000;

/// How often a request that failed on the way is tried again: until half of its deadline has passed, so that there is
/// time to say why.
const RETRIES: usize = usize::MAX;

/// What the address of a bucket begins with.
const S3: &str = "s3://";
/// What that of a directory with a file for each object begins with.
const FILES: &str = "file://";

/// See the file's head.
#[derive(Clone)]
pub struct Objects {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    /// What comes before every name.
    prefix: Name,
    url: String,
    durability: Durability,
    timeout: Duration,
    /// Some until the end.
    runtime: Option<Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A runtime may not be waited for where the program runs one of its own.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Objects {
    /// The store of an address: `s3://BUCKET/PREFIX`, or `file:///DIRECTORY` with a file for each object. Nothing is
    /// asked of it yet. `timeout` is the deadline of each request.
    ///
    /// # Errors
    /// `Usage` for another address; `PermissionDenied`, `Io` where the directory cannot be made.
    pub fn of_url(url: &str, timeout: Duration) -> Result<Objects> {
        let misread = |e: object_store::Error| {
            Error::new(Kind::Usage, format!("`{url}` is not an object store: {}", reason(&e)))
        };
        let (store, prefix): (Arc<dyn ObjectStore>, Name) = if let Some(place) = url.strip_prefix(S3) {
            with_tls();
            let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
            let retry =
                RetryConfig { max_retries: RETRIES, retry_timeout: timeout / 2, ..RetryConfig::default() };
            let s3 = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry).build();
            (Arc::new(s3.map_err(misread)?), Name::parse(prefix).map_err(|e| misread(e.into()))?)
        } else if let Some(path) = url.strip_prefix(FILES).filter(|path| path.starts_with('/')) {
            make_own(std::path::Path::new(path))?;
            let local = LocalFileSystem::new_with_prefix(path).map_err(misread)?;
            (Arc::new(local.with_fsync(true).with_automatic_cleanup(true)), Name::default())
        } else {
            let error = Error::new(Kind::Usage, format!("`{url}` is not a supported object store"));
            return Err(
                error.hint("s3://BUCKET/PREFIX (AWS_ENDPOINT: of others than Amazon), file:///DIRECTORY")
            );
        };
        Objects::new(store, prefix, url, Durability::Power, timeout)
    }

    /// A store under an address for messages. `durability` is what an object survives that it has taken.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        prefix: Name,
        url: &str,
        durability: Durability,
        timeout: Duration,
    ) -> Result<Objects> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Error::io("cannot start the client of the object store", e))?;
        let (url, runtime) = (url.to_string(), Some(runtime));
        Ok(Objects { inner: Arc::new(Inner { store, prefix, url, durability, timeout, runtime }) })
    }
}

/// TLS as ring has it, once in a process.
fn with_tls() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        // An error says that the program has installed another one: that one is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// The innermost reason, which is what a user can do something about.
fn reason(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), reason)
}

impl Inner {
    fn at(&self, name: &str) -> Name {
        name.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.prefix.clone(), |name, part| name.join(part))
    }

    /// Runs requests to their end; on a thread of their own where the caller's has another runtime.
    fn wait<T: Send>(&self, work: impl Future<Output = T> + Send) -> T {
        let runtime = self.runtime.as_ref().expect("there until the end");
        match Handle::try_current() {
            Err(_) => runtime.block_on(work),
            Ok(_) => std::thread::scope(|scope| {
                let done = scope.spawn(|| runtime.block_on(work)).join();
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    /// As [`Inner::wait`], with errors in the user's words.
    fn run<T: Send>(
        &self,
        what: &str,
        name: &str,
        work: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T> {
        self.wait(work).map_err(|e| self.failed(what, name, e))
    }

    /// As [`Inner::run`], of one request; None when there is no such object.
    fn ask<T: Send>(
        &self,
        what: &str,
        name: &str,
        work: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<Option<T>> {
        match self.wait(in_time(self.timeout, work)) {
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            done => done.map(Some).map_err(|e| self.failed(what, name, e)),
        }
    }

    #[cold]
    fn failed(&self, what: &str, name: &str, error: object_store::Error) -> Error {
        use object_store::Error as E;
        let kind = match &error {
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => Kind::PermissionDenied,
            E::NotFound { .. } => Kind::PeerMissing,
            E::Generic { store: LATE, .. } => Kind::TimedOut,
            _ => Kind::Io,
        };
        let hint =
            "credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; address: AWS_ENDPOINT and AWS_DEFAULT_REGION; \
             the bucket must exist";
        let told = Error::new(kind, format!("cannot {what} {}/{name}: {}", self.url, reason(&error)));
        told.hint(hint).caused_by(error)
    }

    /// Puts an object of `bytes` bytes; `next` is told where each part begins and fills it.
    fn put(&self, name: &str, bytes: u64, next: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        let (each, at) = (part_bytes(bytes), self.at(name));
        let mut fill = |from: u64| {
            let mut part = vec![0; each.min(bytes - from) as usize];
            next(from, &mut part).map(|()| PutPayload::from(part))
        };
        if bytes <= each {
            let whole = fill(0)?;
            let work = in_time(self.timeout, self.store.put(&at, whole));
            return self.run("write", name, work).map(drop);
        }
        let begun = in_time(self.timeout, self.store.put_multipart(&at));
        let mut upload = self.run("write", name, begun)?;
        let sent = self.send_parts(&mut *upload, name, (0..bytes).step_by(each as usize), &mut fill);
        let done =
            sent.and_then(|()| self.run("write", name, in_time(self.timeout, upload.complete())).map(drop));
        if done.is_err() {
            // What went up is of no use; where even this fails, the store drops it in time.
            let _ = self.wait(in_time(self.timeout, upload.abort()));
        }
        done
    }

    fn send_parts(
        &self,
        upload: &mut dyn MultipartUpload,
        name: &str,
        starts: impl Iterator<Item = u64>,
        fill: &mut dyn FnMut(u64) -> Result<PutPayload>,
    ) -> Result<()> {
        let mut sent = JoinSet::new();
        for at in starts {
            let part = fill(at)?;
            self.run("write", name, async {
                if sent.len() >= REQUESTS {
                    joined(sent.join_next().await)?;
                }
                sent.spawn(in_time(self.timeout, upload.put_part(part)));
                Ok(())
            })?;
        }
        self.run("write", name, async {
            while !sent.is_empty() {
                joined(sent.join_next().await)?;
            }
            Ok(())
        })
    }

    /// Reads a range of an object, in several requests at a time.
    fn get(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = self.at(name);
        let length = out.len() as u64;
        let ranges: Vec<Range<u64>> = (0..length)
            .step_by(REQUEST_BYTES as usize)
            .map(|from| offset + from..offset + (from + REQUEST_BYTES).min(length))
            .collect();
        let work = async {
            let mut asked = JoinSet::new();
            let mut left = ranges.into_iter();
            loop {
                for range in left.by_ref().take(REQUESTS - asked.len()) {
                    let (store, at, timeout) = (self.store.clone(), at.clone(), self.timeout);
                    asked.spawn(async move {
                        let got = in_time(timeout, store.get_range(&at, range.clone())).await?;
                        Ok((range, got))
                    });
                }
                if asked.is_empty() {
                    return Ok(true);
                }
                let (range, got) = joined(asked.join_next().await)?;
                let into = &mut out[(range.start - offset) as usize..(range.end - offset) as usize];
                if got.len() != into.len() {
                    return Ok(false);
                }
                into.copy_from_slice(&got);
            }
        };
        match self.run("read", name, work)? {
            true => Ok(()),
            false => Err(damaged(&format!("{}/{name}", self.url), "it is too short")),
        }
    }
}

/// What an error of a request that took too long says of where it is from.
const LATE: &str = "deadline";

/// A request with its deadline.
async fn in_time<T>(
    timeout: Duration,
    work: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let late = |_| object_store::Error::Generic {
        store: LATE,
        source: format!("no answer within {} s", timeout.as_secs_f64()).into(),
    };
    tokio::time::timeout(timeout, work).await.map_err(late)?
}

/// What one of several requests came to.
fn joined<T>(
    done: Option<std::result::Result<object_store::Result<T>, tokio::task::JoinError>>,
) -> object_store::Result<T> {
    done.expect("one was under way").map_err(|source| object_store::Error::JoinError { source })?
}

/// How large the parts of an object are.
fn part_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(PARTS_MAX).max(REQUEST_BYTES).next_multiple_of(CHUNK_BYTES as u64)
}

impl Place for Objects {
    fn describe(&self) -> String {
        self.inner.url.clone()
    }

    fn tier(&self) -> TierKind {
        TierKind::Object
    }

    fn durability(&self) -> Durability {
        self.inner.durability
    }

    /// Nothing: names with a `/` need no directory.
    fn make_dir(&self, _dir: &str) -> Result<()> {
        Ok(())
    }

    fn store_data(
        &self,
        name: &str,
        bytes: u64,
        parts: &[Part<'_>],
    ) -> Result<(Vec<Vec<u32>>, Option<Written>)> {
        self.inner.put(name, bytes, &mut |at, out| {
            copy_of(parts, at, out);
            Ok(())
        })?;
        let sums = |part: &Part<'_>| part.bytes.chunks(CHUNK_BYTES).map(crc32c).collect();
        Ok((parts.iter().map(sums).collect(), None))
    }

    fn store_blocks(
        &self,
        name: &str,
        bytes: u64,
        next: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let mut crcs = Vec::new();
        self.inner.put(name, bytes, &mut |at, out| {
            for (nth, block) in out.chunks_mut(BLOCK_BYTES).enumerate() {
                next(at + (nth * BLOCK_BYTES) as u64, block)?;
                crcs.extend(block.chunks(CHUNK_BYTES).map(crc32c));
            }
            Ok(())
        })?;
        Ok(crcs)
    }

    fn store(&self, name: &str, content: &[u8]) -> Result<()> {
        let whole = PutPayload::from(content.to_vec());
        self.inner.run(
            "write",
            name,
            in_time(self.inner.timeout, self.inner.store.put(&self.inner.at(name), whole)),
        )?;
        Ok(())
    }

    /// At once: an object is never there half.
    fn publish(&self, name: &str, _hidden: &str, content: &[u8]) -> Result<()> {
        self.store(name, content)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (at, to) = (self.inner.at(from), self.inner.at(to));
        self.inner.run("rename", from, in_time(self.inner.timeout, self.inner.store.rename(&at, &to)))
    }

    /// Nothing: a name is durable with its object.
    fn sync(&self, _dir: &str) -> Result<()> {
        Ok(())
    }

    fn load(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let at = self.inner.at(name);
        let work = async {
            let got = self.inner.store.get(&at).await?;
            match got.meta.size {
                size if size > bytes_max => Ok(Err(size)),
                _ => got.bytes().await.map(|bytes| Ok(bytes.to_vec())),
            }
        };
        match self.inner.ask("read", name, work)? {
            Some(Err(size)) => Err(damaged(
                &format!("{}/{name}", self.inner.url),
                "it is not a regular file of a valid size",
            )
            .with("bytes", size)),
            found => Ok(found.and_then(std::result::Result::ok)),
        }
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Blob>>> {
        let at = self.inner.at(name);
        let head = self.inner.ask("look at", name, self.inner.store.head(&at))?;
        let opened = |head: object_store::ObjectMeta| -> Box<dyn Blob> {
            Box::new(Opened { objects: self.clone(), name: name.to_string(), bytes: head.size })
        };
        Ok(head.map(opened))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let at = self.inner.at(dir);
        let prefix = Some(&at).filter(|at| !at.as_ref().is_empty());
        let found = self.inner.ask("list", dir, self.inner.store.list_with_delimiter(prefix))?;
        let Some(found) = found else { return Ok(Vec::new()) };
        let files = found.objects.iter().map(|object| &object.location);
        let names = files.chain(&found.common_prefixes).filter_map(|at| at.filename());
        Ok(names.map(str::to_string).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.inner.ask("remove", name, self.inner.store.delete(&self.inner.at(name))).map(drop)
    }

    /// Nothing: a directory is there as long as something is in it.
    fn remove_dir(&self, dir: &str) -> Result<bool> {
        self.list(dir).map(|names| names.is_empty())
    }
}

/// Fills `out` with what lies at `at` of a file of these parts.
fn copy_of(parts: &[Part<'_>], at: u64, out: &mut [u8]) {
    let end = at + out.len() as u64;
    for part in parts {
        let (from, to) = (part.offset.max(at), (part.offset + part.bytes.len() as u64).min(end));
        if from < to {
            let bytes = &part.bytes[(from - part.offset) as usize..(to - part.offset) as usize];
            out[(from - at) as usize..(to - at) as usize].copy_from_slice(bytes);
        }
    }
}

/// An object that is read.
struct Opened {
    objects: Objects,
    name: String,
    bytes: u64,
}

impl Blob for Opened {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.bytes) {
            let what = format!("{}/{}", self.objects.inner.url, self.name);
            return Err(damaged(&what, "it is too short").with("bytes", self.bytes));
        }
        self.objects.inner.get(&self.name, offset, out)
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};

    use super::*;

    fn on(store: Arc<dyn ObjectStore>, timeout: Duration) -> Objects {
        Objects::new(store, Name::from("some/where"), "memory", Durability::Process, timeout).unwrap()
    }

    /// One in memory, and one of files.
    fn both(dir: &tempfile::TempDir) -> [Objects; 2] {
        let timeout = Duration::from_secs(20);
        let url = format!("file://{}/store", dir.path().display());
        [on(Arc::new(InMemory::new()), timeout), Objects::of_url(&url, timeout).unwrap()]
    }

    fn byte(at: u64) -> u8 {
        (at * 31 % 251) as u8
    }

    #[test]
    fn files_of_one_and_of_several_requests_come_back_from_any_byte_on() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for place in both(&dir) {
            for bytes in [1, REQUEST_BYTES, 5 * REQUEST_BYTES + CHUNK_BYTES as u64 + 3] {
                // Two parts with a gap between them, which is zeros.
                let (first, second) = (bytes / 2, bytes.saturating_sub(bytes / 2 + 100));
                let content: Vec<u8> = (0..first.max(second)).map(byte).collect();
                let part = |offset: u64, bytes: u64| Part { offset, bytes: &content[..bytes as usize] };
                let parts = [part(0, first), part(bytes - second, second)];
                let (sums, written) = place.store_data("s1/00000.data", bytes, &parts).unwrap();
                assert!(written.is_none());
                let wanted: Vec<u32> = parts[0].bytes.chunks(CHUNK_BYTES).map(crc32c).collect();
                assert_eq!(sums, [wanted, parts[1].bytes.chunks(CHUNK_BYTES).map(crc32c).collect()]);
                let blob = place.open("s1/00000.data").unwrap().unwrap();
                assert_eq!(blob.bytes(), bytes);
                let at = |at: u64| match at {
                    at if at < first => byte(at),
                    at if at < bytes - second => 0,
                    at => byte(at - (bytes - second)),
                };
                for from in [0, bytes / 3] {
                    let mut out = vec![1; (bytes - from) as usize];
                    blob.read(from, &mut out).unwrap();
                    assert!(
                        out.iter().zip(from..).all(|(byte, nth)| *byte == at(nth)),
                        "{bytes} from {from}"
                    );
                }
                let beyond = blob.read(bytes - 1, &mut [0; 2]).unwrap_err();
                assert_eq!(beyond.kind(), Kind::Damaged);
            }
        }
    }

    #[test]
    fn blocks_come_back_with_their_checksums_and_a_file_that_fails_leaves_nothing() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let bytes = 2 * REQUEST_BYTES + 5;
        for place in both(&dir) {
            let content: Vec<u8> = (0..bytes).map(byte).collect();
            let sums = place.store_blocks("a/data", bytes, &mut |at, out| {
                assert!(out.len() <= BLOCK_BYTES);
                out.copy_from_slice(&content[at as usize..at as usize + out.len()]);
                Ok(())
            });
            assert_eq!(sums.unwrap(), content.chunks(CHUNK_BYTES).map(crc32c).collect::<Vec<_>>());
            let mut out = vec![0; bytes as usize];
            place.open("a/data").unwrap().unwrap().read(0, &mut out).unwrap();
            assert!(out == content);
            let failed = place.store_blocks("b/data", bytes, &mut |at, _| match at {
                0 => Ok(()),
                _ => Err(Error::new(Kind::Internal, "as planned")),
            });
            assert_eq!(failed.unwrap_err().kind(), Kind::Internal);
            assert_eq!(place.list("b").unwrap(), [""; 0]);
        }
        // Not even under a name that lists do not show.
        let left: Vec<_> = std::fs::read_dir(dir.path().join("store/b")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn names_are_those_of_directories() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for place in both(&dir) {
            assert_eq!((place.list("").unwrap(), place.list("s1").unwrap()), (vec![], vec![]));
            assert!(
                place.load("s1/commit", 9).unwrap().is_none() && place.open("s1/commit").unwrap().is_none()
            );
            place.store("s1/b", b"1").unwrap();
            place.publish("s1/a", "s1/.a.0", b"22").unwrap();
            place.store("s2/c", b"3").unwrap();
            let sorted = |dir| {
                let mut names = place.list(dir).unwrap();
                names.sort();
                names
            };
            assert_eq!(
                (sorted(""), sorted("s1")),
                (vec!["s1".into(), "s2".into()], vec!["a".into(), "b".into()])
            );
            assert_eq!(place.load("s1/a", 2).unwrap().unwrap(), b"22");
            assert_eq!(place.load("s1/a", 1).unwrap_err().kind(), Kind::Damaged);
            place.rename("s1/b", "s1/a").unwrap();
            assert_eq!(place.load("s1/a", 9).unwrap().unwrap(), b"1");
            assert!(!place.remove_dir("s1").unwrap());
            (0..2).for_each(|_| place.remove("s1/a").unwrap());
            assert!(place.remove_dir("s1").unwrap());
            assert_eq!(sorted(""), ["s2"]);
        }
    }

    #[test]
    fn a_store_that_does_not_answer_is_waited_for_until_the_deadline() {
        let never = Duration::from_secs(3600);
        let config = ThrottleConfig {
            wait_put_per_call: never,
            wait_get_per_call: never,
            wait_list_with_delimiter_per_call: never,
            wait_delete_per_call: never,
            ..ThrottleConfig::default()
        };
        let place = on(Arc::new(ThrottledStore::new(InMemory::new(), config)), Duration::from_millis(50));
        let parts = [Part { offset: 0, bytes: &[7; 9] }];
        let errors = [
            place.store_data("s1/data", 9, &parts).map(drop),
            place.store("s1/commit", b"1"),
            place.load("s1/commit", 9).map(drop),
            place.list("s1").map(drop),
            place.remove("s1/commit"),
        ];
        for (nth, done) in errors.into_iter().enumerate() {
            assert_eq!(done.unwrap_err().kind(), Kind::TimedOut, "{nth}");
        }
    }

    #[test]
    fn programs_with_a_runtime_of_their_own_may_call() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let own = Builder::new_current_thread().build().unwrap();
        own.block_on(async {
            for place in both(&dir) {
                place.store("s1/commit", b"1").unwrap();
                assert_eq!(place.load("s1/commit", 9).unwrap().unwrap(), b"1");
            }
        });
    }

    #[test]
    fn parts_are_few_enough_and_whole_chunks() {
        for bytes in [1, 80_000_000_000, 5_000_000_000_000] {
            let each = part_bytes(bytes);
            assert!(
                bytes.div_ceil(each) <= PARTS_MAX && each % CHUNK_BYTES as u64 == 0 && each >= REQUEST_BYTES
            );
        }
    }

    #[test]
    fn what_is_no_store_is_refused() {
        for url in ["gs://bucket/x", "file://relative", "s4://x"] {
            assert_eq!(Objects::of_url(url, Duration::ZERO).err().unwrap().kind(), Kind::Usage, "{url}");
        }
    }
}
