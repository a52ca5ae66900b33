//! A place for the files of checkpoints: a small tree of directories with names, some bytes of data, and flushes.
//!
//! The contract, which crash tests rely on: [`Place::store_data`] and [`Place::store`] return when the *content* of the
//! file is durable, as far as the place is; its *name* is durable only after [`Place::sync`] of its directory. A
//! rename is atomic. A name is never given to half a content by the callers: they store under a hidden name and
//! rename, or store under a name that nothing refers to yet.
//!
//! Not here: what the files mean, and who may write which (no two writers ever write the same name).

use std::sync::Arc;
use std::time::Duration;

use forebay_tier::{Device, Durability, Result, TierKind};
#[cfg(not(feature = "objects"))]
use forebay_tier::{Error, Kind};

mod call;
mod directory;
mod nodes;
#[cfg(feature = "objects")]
mod objects;
pub(crate) use call::call;
#[cfg(test)]
pub(crate) use call::{How, Plan};
pub use directory::Directory;
pub(crate) use directory::{check_own, make_own, threads};
pub use nodes::Nodes;
pub(crate) use nodes::{is_pattern, numbered, of_node, Directories, Family, Own, NODE};
#[cfg(feature = "objects")]
pub use objects::Objects;

/// Most bytes of a block of [`Place::store_blocks`].
pub(crate) const BLOCK_BYTES: usize = 64 * crate::format::CHUNK_BYTES;

/// Whether a level's text is the address of an object store.
pub(crate) fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// The object store of an address; `timeout` is the deadline of each request.
///
/// # Errors
/// As [`Objects::of_url`].
#[cfg(feature = "objects")]
pub(crate) fn object_store(url: &str, timeout: Duration) -> Result<Arc<dyn Place>> {
    Ok(Arc::new(Objects::of_url(url, timeout)?))
}

/// The same in a build without object stores.
///
/// # Errors
/// `NotPossibleHere`.
#[cfg(not(feature = "objects"))]
pub(crate) fn object_store(url: &str, _timeout: Duration) -> Result<Arc<dyn Place>> {
    let error =
        Error::new(Kind::NotPossibleHere, format!("cannot open {url}: this build has no object stores"));
    Err(error.hint("build forebay with its default features: cargo build --release --package forebay-cli"))
}

/// Bytes of a data file and where they go.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The first byte in the file; a multiple of [`crate::format::DATA_ALIGN`].
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A data file that was written here: what keeps its bytes at hand while another rank reads them.
pub type Written = Arc<dyn Device>;

/// A stored file that is read.
pub trait Blob: Send + Sync {
    /// Its length.
    fn bytes(&self) -> u64;

    /// Reads `out.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// `Damaged` beyond its end; `Io`.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()>;
}

/// See the file's head. Names are relative, with `/` between directory and file.
pub trait Place: Send + Sync {
    /// For messages: where it is.
    fn describe(&self) -> String;

    /// The kind of tier.
    fn tier(&self) -> TierKind;

    /// What a file survives whose content and name were made durable.
    fn durability(&self) -> Durability;

    /// Makes a directory that may be there already.
    fn make_dir(&self, dir: &str) -> Result<()>;

    /// Writes a new data file of `bytes` bytes and returns the CRC-32C of each chunk of each part.
    ///
    /// # Errors
    /// `TierFull`, `PermissionDenied`, `Io`; nothing of it stays then.
    fn store_data(
        &self,
        name: &str,
        bytes: u64,
        parts: &[Part<'_>],
    ) -> Result<(Vec<Vec<u32>>, Option<Written>)>;

    /// Writes a new file of `bytes` bytes block by block: `next` is told where each begins and fills it. Blocks are
    /// whole chunks, but for the end of the last. Returns the CRC-32C of each chunk.
    ///
    /// # Errors
    /// As [`Place::store_data`], and what `next` returns; nothing of the file stays then.
    fn store_blocks(
        &self,
        name: &str,
        bytes: u64,
        next: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let mut content = vec![0; bytes as usize];
        for (nth, block) in content.chunks_mut(BLOCK_BYTES).enumerate() {
            next((nth * BLOCK_BYTES) as u64, block)?;
        }
        let (mut sums, _) = self.store_data(name, bytes, &[Part { offset: 0, bytes: &content }])?;
        Ok(sums.pop().unwrap_or_default())
    }

    /// As [`Place::store_data`] for a file of a length of its own, for which no blocks are kept.
    ///
    /// # Errors
    /// As there.
    fn store_packed(&self, name: &str, bytes: u64, parts: &[Part<'_>]) -> Result<Vec<Vec<u32>>> {
        self.store_data(name, bytes, parts).map(|(sums, _)| sums)
    }

    /// Writes a small file, over one of that name.
    fn store(&self, name: &str, content: &[u8]) -> Result<()>;

    /// Gives a file another name, over one of that name.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Gives a small file its name once its content is durable; it is under the `hidden` name before that, or nowhere.
    fn publish(&self, name: &str, hidden: &str, content: &[u8]) -> Result<()> {
        let done = self.store(hidden, content).and_then(|()| self.rename(hidden, name));
        done.inspect_err(|_| {
            let _ = self.remove(hidden);
        })
    }

    /// Makes the names in a directory durable.
    fn sync(&self, dir: &str) -> Result<()>;

    /// A small file; None when there is none of that name.
    fn load(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>>;

    /// A data file; None when there is none of that name.
    fn open(&self, name: &str) -> Result<Option<Box<dyn Blob>>>;

    /// Names in a directory; none when it is not there.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// Whether a file that is there is in every place where it would be written.
    fn is_everywhere(&self, name: &str) -> Result<bool> {
        let _ = name;
        Ok(true)
    }

    /// Removes a file; nothing happens when it is not there.
    fn remove(&self, name: &str) -> Result<()>;

    /// Removes a data file of this process, perhaps keeping its blocks for the next one. False: it is being read.
    fn retire(&self, name: &str) -> Result<bool> {
        self.remove(name).map(|()| true)
    }

    /// Says that a data file of this process stays for good: it does not count any more among those that it may have.
    fn let_be(&self, name: &str) {
        let _ = name;
    }

    /// Whether a data file may be written now; false: one has to be retired first.
    fn has_capacity(&self) -> bool {
        true
    }

    /// How many data files of so many bytes this process may have at a time.
    fn files_max(&self, bytes: u64) -> usize {
        let _ = bytes;
        usize::MAX
    }

    /// Allocates the space for data files of so many bytes, as many as this process may have.
    ///
    /// # Errors
    /// `TierFull`.
    fn prepare(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Removes an empty directory; false when it is not empty.
    fn remove_dir(&self, dir: &str) -> Result<bool>;
}
