//! `numa:N`: main memory of one node of the machine, also memory behind CXL: as `dram`, bound to that node.
//!
//! Guarantees those of `dram`, and where the pages lie: the kernel is told (mbind, which for a file on tmpfs holds for
//! every process); where that is refused, a thread pinned to a processor of the node touches new pages first. Either
//! way a sample of the pages is asked for its node after each `prepare`, and [`Placement`] says what happened. Pages on
//! another node are an error, never silent. A node without processors can only be bound to.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use super::dram;
use super::mapped::Mapped;
use super::pool::PoolFile;
use super::Device;
use crate::sys::numa::{self, NODES_DIR};
use crate::{sys, Access, Error, Kind, Placement, Result, TierKind};

/// Pages asked for their node after a prepare: the first, the last, and some between.
const SAMPLE_PAGES: u64 = 64;

/// How new pages are brought to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// By the kernel.
    Bind,
    /// By a thread that runs on one of these processors.
    Touch(Vec<usize>),
    /// Not at all: opened for reading.
    Read,
}

/// What brings the pages of a pool to its memory node, and knows where they came.
#[derive(Debug)]
pub(super) struct Placer {
    node: u16,
    way: Way,
    /// Whether a sample has been seen on the node.
    verified: AtomicU8,
}

const NOT_YET: u8 = 0;
const SEEN: u8 = 1;
/// The kernel does not say where pages lie.
const UNTOLD: u8 = 2;

/// See [`super::create`].
pub fn create(node: u16, path: &Path, capacity: u64) -> Result<Mapped> {
    PoolFile::create(path, capacity, |pool| on(pool, node))
}

/// See [`super::open`].
pub fn open(node: u16, path: &Path, access: Access) -> Result<Mapped> {
    on(PoolFile::open(path, access)?, node)
}

/// Maps a pool on tmpfs and binds it to a node.
pub(crate) fn on(pool: PoolFile, node: u16) -> Result<Mapped> {
    check_node(node, Path::new(NODES_DIR))?;
    let access = pool.access;
    let mapped = dram::on(pool, TierKind::Numa(node))?;
    let way = match access {
        Access::Read => Way::Read,
        Access::Write => way_to(node, numa::bind(mapped.mapping(), node), Path::new(NODES_DIR))?,
    };
    Ok(mapped.placed_by(Placer { node, way, verified: AtomicU8::new(NOT_YET) }))
}

/// What a pool on `node` would say of its pages, tried with one page of a file in `dir` that has no name, so that
/// nothing is left whatever happens.
///
/// # Errors
/// As [`super::create`] and `prepare`.
pub fn try_placement(node: u16, dir: &Path) -> Result<Placement> {
    let path = dir.join("nameless");
    let trying = |e| Error::io(format!("cannot make a file in {}", dir.display()), e);
    let file = sys::open_nameless(dir).map_err(trying)?;
    let capacity = sys::page_bytes() as u64;
    file.set_len(capacity).map_err(trying)?;
    let pool = on(PoolFile { file, path, capacity, access: Access::Write }, node)?;
    pool.prepare(0..capacity)?;
    Ok(pool.placement().unwrap_or(Placement::Unverified))
}

impl Placer {
    /// Runs what allocates pages, in a thread on the node where the kernel does not bind them.
    pub(super) fn place(&self, allocate: impl FnOnce() -> Result<()> + Send) -> Result<()> {
        let processors = match &self.way {
            Way::Touch(processors) if !processors.is_empty() => processors,
            _ => return allocate(),
        };
        let touch = || {
            numa::pin_to(processors).map_err(|e| {
                not_here(self.node, "no thread may run on a processor of the node").caused_by(e)
            })?;
            allocate()
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, touch);
            let thread = thread.map_err(|e| Error::io("cannot start a thread on the node", e))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Asks where a sample of pages lies that were faulted in.
    pub(super) fn verify(&self, pool: &Mapped, pages: &Range<u64>) -> Result<()> {
        let Ok(nodes) = numa::nodes_of(pool.mapping(), &sample(pages)) else {
            self.verified.store(UNTOLD, Ordering::Relaxed);
            return Ok(());
        };
        if let Some(other) = nodes.iter().flatten().find(|node| **node != self.node) {
            return Err(not_here(self.node, "pages of the pool lie on another memory node")
                .with("pages_on_node", other)
                .with("pool", pool.path().display())
                .hint(
                    "the node may be full: numastat -m; or the pages were there before the pool was bound",
                ));
        }
        self.verified.store(if nodes.iter().any(Option::is_some) { SEEN } else { UNTOLD }, Ordering::Relaxed);
        Ok(())
    }

    /// See [`Device::placement`].
    pub(super) fn placement(&self) -> Placement {
        match (&self.way, self.verified.load(Ordering::Relaxed)) {
            (Way::Bind, SEEN) => Placement::Bound,
            (Way::Touch(_), SEEN) => Placement::FirstTouch,
            _ => Placement::Unverified,
        }
    }
}

/// What can be done to bring pages to the node, after what the kernel said to binding.
fn way_to(node: u16, bound: std::io::Result<()>, nodes_dir: &Path) -> Result<Way> {
    let Err(refused) = bound else { return Ok(Way::Bind) };
    match numa::processors_of(nodes_dir, node) {
        // A kernel without nodes describes none: everything is node 0.
        empty if empty.is_empty() && !nodes_dir.join(format!("node{node}")).exists() => Ok(Way::Touch(empty)),
        empty if empty.is_empty() => Err(not_here(
            node,
            "binding to the node is refused, and it has no processor to touch its memory from",
        )
        .hint("containers refuse mbind by default: allow it, or choose a node with processors")
        .caused_by(refused)),
        processors => Ok(Way::Touch(processors)),
    }
}

/// `NotPossibleHere`, naming the nodes that there are, for a node without memory.
fn check_node(node: u16, nodes_dir: &Path) -> Result<()> {
    let nodes = numa::nodes_with_memory(nodes_dir);
    if nodes.contains(&node) {
        return Ok(());
    }
    let named: Vec<String> = nodes.iter().map(u16::to_string).collect();
    Err(not_here(node, "this machine has no such memory node").with("nodes", named.join(",")).hint(format!(
        "use one of: {}",
        named.iter().map(|n| format!("numa:{n}")).collect::<Vec<_>>().join(", ")
    )))
}

/// Offsets spread over a range, each on a page of its own.
fn sample(range: &Range<u64>) -> Vec<u64> {
    let page = sys::page_bytes() as u64;
    let pages = (range.end - range.start).div_ceil(page).max(1);
    let count = pages.min(SAMPLE_PAGES);
    // Evenly, with the first and the last page among them.
    (0..count).map(|i| range.start + (i * (pages - 1) / count.saturating_sub(1).max(1)) * page).collect()
}

#[cold]
fn not_here(node: u16, what: &str) -> Error {
    Error::new(Kind::NotPossibleHere, what).with("tier", TierKind::Numa(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_pages_of_the_range() {
        let page = sys::page_bytes() as u64;
        assert_eq!(sample(&(page..2 * page)), [page]);
        assert_eq!(sample(&(0..2 * page)), [0, page]);
        let many = sample(&(8 * page..1008 * page));
        assert_eq!(
            (many.len() as u64, many[0], *many.last().unwrap()),
            (SAMPLE_PAGES, 8 * page, 1007 * page)
        );
        assert!(many.windows(2).all(|pair| pair[0] < pair[1] && pair[1] % page == 0));
    }

    #[test]
    fn refused_binding_falls_back_where_the_node_has_processors() {
        let dir = tempfile::tempdir().unwrap();
        let refused = || Err(std::io::Error::from_raw_os_error(libc::EPERM));
        for (node, cpus) in [(0, "0-1\n"), (1, "\n")] {
            std::fs::create_dir(dir.path().join(format!("node{node}"))).unwrap();
            std::fs::write(dir.path().join(format!("node{node}/cpulist")), cpus).unwrap();
        }
        std::fs::write(dir.path().join("has_memory"), "0-1\n").unwrap();
        assert_eq!(way_to(1, Ok(()), dir.path()).unwrap(), Way::Bind);
        assert_eq!(way_to(0, refused(), dir.path()).unwrap(), Way::Touch(vec![0, 1]));
        let error = way_to(1, refused(), dir.path()).unwrap_err();
        assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
        assert!(error.hint_text().is_some());
        check_node(1, dir.path()).unwrap();
        let error = check_node(7, dir.path()).unwrap_err();
        assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
        assert!(error.to_string().contains("numa:0, numa:1"), "{error}");
    }
}
