//! `numa:N`: main memory of one node of the machine, also memory behind CXL: as `dram`, bound to that node; and
//! `numa:N+M`: pages in turn on each of several nodes, by their place in the pool.
//!
//! Guarantees those of `dram`, and where the pages lie: the kernel is told (mbind, which for a file on tmpfs holds for
//! every process); where that is refused, a thread pinned to a processor of the node touches new pages first, or such a
//! thread on each node its pages. Either way a sample of the pages is asked for its node after each `prepare`, and
//! [`Placement`] says what happened. Pages on a node that the tier does not name are an error, never silent. How the
//! pages are shared out among several nodes is counted and told: where one is full the kernel takes them from another.
//! A node without processors can only be bound to.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::dram;
use super::mapped::Mapped;
use super::pool::PoolFile;
use super::Device;
use crate::sys::numa::{self, Policy, NODES_DIR};
use crate::{sys, Access, Error, Kind, Nodes, Placement, Result, Shares, TierKind, NODES_MAX};

/// Pages asked for their node after a prepare: the first, the last, and some between.
const SAMPLE_PAGES: u64 = 64;

/// Steps of this part of a range, modulo the range, never fall into step with pages (or huge pages) that take turns.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// How new pages are brought to their nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// By the kernel.
    Bind,
    /// By a thread for each node, which runs on one of these processors.
    Touch(Vec<Vec<usize>>),
    /// Not at all: opened for reading.
    Read,
}

/// What brings the pages of a pool to its memory nodes, and knows where they came.
#[derive(Debug)]
pub(super) struct Placer {
    tier: TierKind,
    /// Those of the tier, rising.
    nodes: Vec<u16>,
    way: Way,
    /// Whether the kernel said of the last sample where it lies.
    told: AtomicBool,
    /// Pages of all samples by node, on tiers of several.
    pages: [AtomicU32; NODES_MAX],
}

/// See [`super::create`]. `tier` names memory nodes.
pub fn create(tier: TierKind, path: &Path, capacity: u64) -> Result<Mapped> {
    PoolFile::create(path, capacity, |pool| on(pool, tier))
}

/// See [`super::open`]. `tier` names memory nodes.
pub fn open(tier: TierKind, path: &Path, access: Access) -> Result<Mapped> {
    on(PoolFile::open(path, access)?, tier)
}

/// Maps a pool on tmpfs and binds it to the nodes of a tier.
pub(crate) fn on(pool: PoolFile, tier: TierKind) -> Result<Mapped> {
    let (policy, nodes) = match tier {
        TierKind::Numa(node) => (Policy::Bind, vec![node]),
        TierKind::Interleaved(nodes) => (Policy::Interleave, nodes.numbers()),
        other => return Err(Error::new(Kind::Internal, format!("tier {other} has no memory node"))),
    };
    check_nodes(tier, &nodes, Path::new(NODES_DIR))?;
    let access = pool.access;
    let mapped = dram::on(pool, tier)?;
    let way = match access {
        Access::Read => Way::Read,
        Access::Write => {
            let bound = numa::bind(mapped.mapping(), policy, &nodes);
            way_to(tier, &nodes, bound, Path::new(NODES_DIR))?
        }
    };
    let (told, pages) = (AtomicBool::new(false), Default::default());
    Ok(mapped.placed_by(Placer { tier, nodes, way, told, pages }))
}

/// What a pool on `node` would say of its pages, tried with one page of a file in `dir` that has no name, so that
/// nothing is left whatever happens.
///
/// # Errors
/// As [`super::create`] and `prepare`.
pub fn try_placement(node: u16, dir: &Path) -> Result<Placement> {
    let path = dir.join("nameless");
    let trying = |e| Error::io(format!("cannot create a file in {}", dir.display()), e);
    let file = sys::open_nameless(dir).map_err(trying)?;
    let capacity = sys::page_bytes() as u64;
    file.set_len(capacity).map_err(trying)?;
    let pool = on(PoolFile { file, path, capacity, access: Access::Write }, TierKind::Numa(node))?;
    pool.prepare(0..capacity)?;
    Ok(pool.placement().unwrap_or(Placement::Unverified))
}

/// The memory node of the page at each offset, as the kernel says; None for a page that this process has not mapped
/// (see [`Device::prepare`]).
///
/// # Errors
/// `NotPossibleHere` where the kernel does not tell.
///
/// # Panics
/// For an offset outside the pool.
pub fn nodes_of(pool: &Mapped, offsets: &[u64]) -> Result<Vec<Option<u16>>> {
    numa::nodes_of(pool.mapping(), offsets)
        .map_err(|e| not_here(pool.kind(), "the kernel does not report the placement of pages").caused_by(e))
}

impl Placer {
    /// Runs what allocates pages, in a thread on the node where the kernel does not bind them. (To several nodes they
    /// come by [`Placer::allocate`].)
    pub(super) fn place(&self, allocate: impl FnOnce() -> Result<()> + Send) -> Result<()> {
        let processors = match &self.way {
            Way::Touch(processors) if !self.takes_turns() && !processors[0].is_empty() => &processors[0],
            _ => return allocate(),
        };
        let touch = || {
            numa::pin_to(processors).map_err(|e| no_thread(self.tier, e))?;
            allocate()
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, touch);
            let thread = thread.map_err(|e| Error::io("cannot start a thread on the node", e))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether a thread on each node has to allocate the pages that lie there.
    pub(super) fn takes_turns(&self) -> bool {
        matches!((self.tier, &self.way), (TierKind::Interleaved(_), Way::Touch(_)))
    }

    /// Allocates whole pages with `one`, each from a thread on the node whose turn it is by the page's place in the
    /// pool.
    ///
    /// # Errors
    /// `NotPossibleHere` where no thread may run on a node, `Io`; the inner one is the first of `one`.
    pub(super) fn allocate(
        &self,
        pages: &Range<u64>,
        one: impl Fn(&Range<u64>) -> io::Result<()> + Sync,
    ) -> Result<io::Result<()>> {
        let Way::Touch(processors) = &self.way else { return Ok(one(pages)) };
        let (page, count) = (sys::page_bytes() as u64, processors.len() as u64);
        let touch = |turn: u64, processors: &[usize]| {
            numa::pin_to(processors).map_err(|e| no_thread(self.tier, e))?;
            let mut own =
                (pages.start..pages.end).step_by(page as usize).filter(|at| at / page % count == turn);
            Ok(own.try_for_each(|at| one(&(at..at + page))))
        };
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (turn, processors) in (0..).zip(processors) {
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || touch(turn, processors));
                threads.push(thread.map_err(|e| Error::io("cannot start a thread on the node", e))?);
            }
            for thread in threads {
                let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                if done.is_err() {
                    return Ok(done);
                }
            }
            Ok(Ok(()))
        })
    }

    /// Asks where a sample of pages lies that were faulted in.
    pub(super) fn verify(&self, pool: &Mapped, pages: &Range<u64>) -> Result<()> {
        let (offsets, counted) = match self.tier {
            TierKind::Interleaved(_) => sample_in_turn(pages, self.nodes.len() as u64),
            _ => (sample(pages), 0),
        };
        let Ok(nodes) = numa::nodes_of(pool.mapping(), &offsets) else {
            self.told.store(false, Ordering::Relaxed);
            return Ok(());
        };
        if let Some(other) = nodes.iter().flatten().find(|node| !self.nodes.contains(node)) {
            return Err(not_here(self.tier, "pages of the pool are on another memory node")
                .with("pages_on_node", other)
                .with("pool", pool.path().display())
                .hint(
                    "the node may be full (see numastat -m), or the pages were allocated before the pool was bound",
                ));
        }
        for node in nodes[..counted].iter().flatten() {
            self.pages[usize::from(*node)].fetch_add(1, Ordering::Relaxed);
        }
        self.told.store(nodes.iter().any(Option::is_some), Ordering::Relaxed);
        Ok(())
    }

    /// See [`Device::placement`].
    pub(super) fn placement(&self) -> Placement {
        if !self.told.load(Ordering::Relaxed) {
            return Placement::Unverified;
        }
        let shares = |nodes: Nodes| {
            Shares::new(nodes, std::array::from_fn(|node| self.pages[node].load(Ordering::Relaxed)))
        };
        match (self.tier, &self.way) {
            (_, Way::Read) => Placement::Unverified,
            (TierKind::Interleaved(nodes), Way::Bind) => Placement::Interleaved(shares(nodes)),
            (TierKind::Interleaved(nodes), Way::Touch(_)) => Placement::TouchedInTurn(shares(nodes)),
            (_, Way::Bind) => Placement::Bound,
            (_, Way::Touch(_)) => Placement::FirstTouch,
        }
    }
}

/// What can be done to bring pages to the nodes, after what the kernel said to binding.
fn way_to(tier: TierKind, nodes: &[u16], bound: io::Result<()>, nodes_dir: &Path) -> Result<Way> {
    let Err(refused) = bound else { return Ok(Way::Bind) };
    let processors: Vec<Vec<usize>> =
        nodes.iter().map(|node| numa::processors_of(nodes_dir, *node)).collect();
    let Some(without) = processors.iter().position(Vec::is_empty) else { return Ok(Way::Touch(processors)) };
    // A kernel without nodes describes none: everything is node 0.
    if !nodes_dir.join(format!("node{}", nodes[without])).exists() {
        return Ok(Way::Touch(processors));
    }
    Err(not_here(tier, "binding to the node is refused, and it has no processor to touch its memory from")
        .with("node", nodes[without])
        .hint("containers refuse mbind by default: allow it, or choose a node with processors")
        .caused_by(refused))
}

/// `NotPossibleHere`, naming the nodes that there are, for a node without memory.
fn check_nodes(tier: TierKind, wanted: &[u16], nodes_dir: &Path) -> Result<()> {
    let nodes = numa::nodes_with_memory(nodes_dir);
    if wanted.iter().all(|node| nodes.contains(node)) {
        return Ok(());
    }
    let named: Vec<String> = nodes.iter().map(u16::to_string).collect();
    Err(not_here(tier, "this machine has no such memory node").with("present_nodes", named.join(",")).hint(
        format!("use one of: {}", named.iter().map(|n| format!("numa:{n}")).collect::<Vec<_>>().join(", ")),
    ))
}

/// Offsets spread over a range, each on a page of its own.
fn sample(range: &Range<u64>) -> Vec<u64> {
    let page = sys::page_bytes() as u64;
    let pages = (range.end - range.start).div_ceil(page).max(1);
    let count = pages.min(SAMPLE_PAGES);
    // Evenly, with the first and the last page among them.
    (0..count).map(|i| range.start + (i * (pages - 1) / count.saturating_sub(1).max(1)) * page).collect()
}

/// Offsets of pages that lie on `nodes` nodes in turn, and how many of them, from the first on, say how the pages are
/// shared out: groups of pages that follow one another, one for each node, so that each has the same part of them where
/// the turns are kept. Of a range shorter than a group all pages are asked and none says that.
fn sample_in_turn(range: &Range<u64>, nodes: u64) -> (Vec<u64>, usize) {
    let page = sys::page_bytes() as u64;
    let pages = (range.end - range.start).div_ceil(page);
    let at = |index: u64| range.start + index * page;
    if pages < nodes {
        return ((0..pages).map(at).collect(), 0);
    }
    let (groups, starts) = (SAMPLE_PAGES.div_ceil(nodes).min(pages / nodes), pages - nodes + 1);
    let group = |i: u64| ((i as f64 * GOLDEN).fract() * starts as f64) as u64;
    let offsets: Vec<u64> =
        (0..groups).flat_map(|i| (0..nodes).map(move |page| group(i) + page)).map(at).collect();
    let counted = offsets.len();
    (offsets, counted)
}

#[cold]
fn not_here(tier: TierKind, what: &str) -> Error {
    Error::new(Kind::NotPossibleHere, what).with("tier", tier)
}

#[cold]
fn no_thread(tier: TierKind, e: io::Error) -> Error {
    not_here(tier, "no thread may run on a processor of the node").caused_by(e)
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
        let way = |nodes: &[u16], bound| {
            let tier = Nodes::of(nodes).map_or(TierKind::Numa(nodes[0]), TierKind::Interleaved);
            way_to(tier, nodes, bound, dir.path())
        };
        assert_eq!(way(&[1], Ok(())).unwrap(), Way::Bind);
        assert_eq!(way(&[0], refused()).unwrap(), Way::Touch(vec![vec![0, 1]]));
        for nodes in [&[1][..], &[0, 1]] {
            let error = way(nodes, refused()).unwrap_err();
            assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
            assert!(error.hint_text().is_some() && error.to_string().contains("node=1"), "{error}");
        }
        std::fs::write(dir.path().join("node1/cpulist"), "2\n").unwrap();
        assert_eq!(way(&[0, 1], refused()).unwrap(), Way::Touch(vec![vec![0, 1], vec![2]]));
        let check = |nodes: &[u16]| check_nodes(TierKind::Numa(nodes[0]), nodes, dir.path());
        check(&[1]).unwrap();
        check(&[0, 1]).unwrap();
        for nodes in [&[7][..], &[0, 7]] {
            let error = check(nodes).unwrap_err();
            assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
            assert!(error.to_string().contains("numa:0, numa:1"), "{error}");
        }
    }

    #[test]
    fn samples_of_pages_that_take_turns_hold_every_turn_alike() {
        let page = sys::page_bytes() as u64;
        assert_eq!(sample_in_turn(&(page..2 * page), 2), (vec![page], 0));
        for (nodes, pages) in [(2, 2), (2, 3), (2, 127), (2, 65536), (3, 4), (3, 1000), (16, 50)] {
            // From a page that is no node's first one.
            let range = 5 * page..(5 + pages) * page;
            let (offsets, counted) = sample_in_turn(&range, nodes);
            assert_eq!(counted, offsets.len());
            assert!(
                offsets.len() as u64 >= nodes && offsets.len() as u64 <= SAMPLE_PAGES + nodes,
                "{nodes} {pages}"
            );
            assert!(
                offsets.iter().all(|at| range.contains(at) && at % page == 0),
                "{nodes} {pages}: {offsets:?}"
            );
            for turn in 0..nodes {
                let own = offsets.iter().filter(|at| *at / page % nodes == turn).count();
                assert_eq!(own as u64 * nodes, counted as u64, "{nodes} {pages}");
            }
        }
        // Of huge pages that take turns, too, no turn is missed.
        let huge = (2 << 20) / page;
        let (offsets, counted) = sample_in_turn(&(0..64 * huge * page), 2);
        let first = offsets.iter().filter(|at| *at / page / huge % 2 == 0).count();
        assert!((counted / 4..=3 * counted / 4).contains(&first), "{first} of {counted}");
    }

    /// A pool whose pages are spread over the nodes of the tests' own; node 0 alone where there is no other.
    fn pool(dir: &Path, tier: TierKind, way: Option<Way>) -> Mapped {
        let pool = PoolFile::create(&dir.join("p"), 4 << 20, |pool| on(pool, tier)).unwrap();
        match way {
            None => pool,
            Some(way) => {
                let nodes = vec![0];
                let (told, pages) = (AtomicBool::new(false), Default::default());
                pool.placed_by(Placer { tier, nodes, way, told, pages })
            }
        }
    }

    /// Some sandboxes do not say where pages lie: that is counted, and anything else is wrong.
    fn untold(what: &str, placement: Option<Placement>) {
        assert_eq!(placement, Some(Placement::Unverified));
        crate::skips::skipped(what, "the kernel does not tell where pages lie");
    }

    #[test]
    fn spread_pages_are_counted_by_node() {
        // One node is no set that anybody can name, and one that every machine has.
        let tier = TierKind::Interleaved(Nodes::FIRST_ALONE);
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let bound = pool(dir.path(), tier, None);
        assert_eq!(bound.placement(), Some(Placement::Unverified), "nothing is prepared yet");
        bound.prepare(0..4 << 20).unwrap();
        match bound.placement() {
            Some(Placement::Interleaved(shares) | Placement::TouchedInTurn(shares)) => {
                assert_eq!(shares.percent(), [(0, 100)]);
            }
            other => untold("pages by node", other),
        }
        bound.write(5000, &[7; 9000]).unwrap();
        assert_eq!(bound.bytes(5000..14_000), [7; 9000]);
    }

    #[test]
    fn where_spreading_is_refused_threads_take_turns() {
        let tier = TierKind::Interleaved(Nodes::FIRST_ALONE);
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let here = numa::processors_of(Path::new(NODES_DIR), 0);
        // Two turns, both on the node that every machine has.
        let touched = pool(dir.path(), tier, Some(Way::Touch(vec![here.clone(), here])));
        let page = sys::page_bytes() as u64;
        touched.reserve(&(page..1 << 20)).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&touched.pool.file.metadata().unwrap());
        assert_eq!(512 * blocks, (1 << 20) - page, "every page has its turn, before any is faulted in");
        touched.prepare(0..4 << 20).unwrap();
        let asked = sys::allocated_bytes(&touched.pool.file, &(0..4 << 20)).unwrap();
        assert_eq!(asked, 4 << 20);
        match touched.placement() {
            Some(Placement::TouchedInTurn(_)) => {}
            other => untold("pages of threads that take turns", other),
        }
        let nowhere = tempfile::tempdir_in("/dev/shm").unwrap();
        let refused = pool(nowhere.path(), tier, Some(Way::Touch(vec![vec![], vec![]])));
        let error = refused.prepare(0..4096).unwrap_err();
        assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
    }
}
