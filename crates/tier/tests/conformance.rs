//! The conformance suite on every kind of device, and what sets the kinds apart.

mod skips;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use forebay_tier::adapter::fault::{Fault, FaultPlan};
use forebay_tier::adapter::stats::Stats;
use forebay_tier::adapter::throttle::{Curves, Locality, Throttle};
use forebay_tier::device::numa;
use forebay_tier::device::{conformance, pmem, recorder};
use forebay_tier::{Access, Device, Durability, Horizon, Kind, Nodes, Placement, TierKind};

type Pool = forebay_tier::Result<Arc<dyn Device>>;

/// Runs both suites with pools in a fresh directory below `root`.
fn suite(root: &Path, create: &dyn Fn(&Path, u64) -> Pool, open: &dyn Fn(&Path, Access) -> Pool) {
    let dir = tempfile::tempdir_in(root).unwrap();
    let count = AtomicU32::new(0);
    let make = |capacity: u64| {
        let name = format!("pool{}", count.fetch_add(1, Ordering::Relaxed));
        create(&dir.path().join(name), capacity).unwrap()
    };
    conformance::check(&make);
    conformance::check_reopening(&make, &|path, access| open(path, access));
}

fn suite_of(kind: TierKind, root: &Path) {
    suite(root, &|path, capacity| forebay_tier::create(kind, path, capacity), &|path, access| {
        forebay_tier::open(kind, path, access)
    });
}

fn shm() -> &'static Path {
    Path::new("/dev/shm")
}

#[test]
fn dram_conforms() {
    suite_of(TierKind::Dram, shm());
}

#[test]
fn file_conforms() {
    suite_of(TierKind::File, &std::env::temp_dir());
}

#[test]
fn direct_conforms() {
    let tmp = std::env::temp_dir();
    if let Err(e) =
        forebay_tier::create(TierKind::Direct, &tempfile::tempdir().unwrap().path().join("p"), 4096)
    {
        assert_eq!(e.kind(), Kind::NotPossibleHere, "{e}");
        return skips::skipped("direct conformance", &format!("{}: {}", tmp.display(), e.message()));
    }
    suite_of(TierKind::Direct, &tmp);
}

/// The nodes that have memory, also those without processors; node 0 where the kernel knows of none.
fn memory_nodes() -> Vec<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_else(|_| "0".into());
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u16>().unwrap()..=last.parse::<u16>().unwrap()
    };
    text.trim().split(',').flat_map(range).collect()
}

#[test]
fn numa_conforms() {
    for node in memory_nodes() {
        suite_of(TierKind::Numa(node), shm());
    }
    if let Some(nodes) = several_nodes("conformance of pages on several nodes") {
        suite_of(TierKind::Interleaved(nodes), shm());
    }
}

/// All nodes that have memory, of which there have to be two.
fn several_nodes(what: &str) -> Option<Nodes> {
    let nodes = Nodes::of(&memory_nodes());
    if nodes.is_none() {
        skips::skipped(what, "there are no two memory nodes, or those with numbers above 15");
    }
    nodes
}

#[test]
fn pages_lie_in_turn_on_several_nodes() {
    let Some(nodes) = several_nodes("pages in turn") else { return };
    let kind = TierKind::Interleaved(nodes);
    let dir = tempfile::tempdir_in(shm()).unwrap();
    let pool = forebay_tier::create(kind, &dir.path().join("p"), 8 << 20).unwrap();
    assert_eq!(pool.placement(), Some(Placement::Unverified), "nothing is prepared yet");
    pool.prepare(4096..2 << 20).unwrap();
    pool.prepare(0..8 << 20).unwrap();
    let Some(Placement::Interleaved(shares)) = pool.placement() else {
        return skips::skipped("where pages in turn lie", &format!("{kind}: {:?}", pool.placement()));
    };
    let wanted = 100 / nodes.numbers().len() as u32;
    assert!(shares.percent().iter().all(|(_, percent)| *percent == wanted), "{shares}");
    // The process that maps it next finds the policy in the file, and asks the kernel itself: page after page.
    let again = numa::open(kind, pool.path(), Access::Write).unwrap();
    again.prepare(0..8 << 20).unwrap();
    let offsets: Vec<u64> = (0..512).map(|page| 4096 * page).collect();
    let found: Vec<u16> = numa::nodes_of(&again, &offsets).unwrap().into_iter().map(Option::unwrap).collect();
    assert!(found.iter().all(|node| nodes.numbers().contains(node)), "{found:?}");
    let turns = nodes.numbers().len();
    assert!(found.windows(turns).all(|turn| (1..turns).all(|i| turn[i] != turn[0])), "{found:?}");
    let missing = Nodes::of(&[nodes.numbers()[0], 15]).unwrap();
    if nodes.numbers().contains(&15) {
        return skips::skipped("refusal of pages in turn", "this machine has node 15");
    }
    let refused = forebay_tier::create(TierKind::Interleaved(missing), &dir.path().join("q"), 4096);
    assert_eq!(refused.err().expect("no such node").kind(), Kind::NotPossibleHere);
    assert!(!dir.path().join("q").exists());
}

/// The whole device is overwritten, so that only one is taken that was named for it.
#[test]
fn devdax_conforms() {
    let Some(device) = std::env::var_os("FOREBAY_TEST_DEVDAX") else {
        return skips::skipped(
            "devdax conformance",
            "FOREBAY_TEST_DEVDAX names no device that may be overwritten",
        );
    };
    let device = Path::new(&device);
    conformance::check_bytes(&|capacity| {
        let held = forebay_tier::open(TierKind::DevDax, device, Access::Write).unwrap();
        held.write(0, &[1; 4096]).unwrap();
        let refused =
            forebay_tier::create(TierKind::DevDax, device, capacity).err().expect("it holds something");
        assert_eq!(refused.kind(), Kind::Io, "{refused}");
        held.write(0, &[0; 4096]).unwrap();
        forebay_tier::create(TierKind::DevDax, device, capacity).unwrap()
    });
    let pool = forebay_tier::open(TierKind::DevDax, device, Access::Read).unwrap();
    assert_eq!(pool.durability(Horizon::Write), Durability::Power);
}

#[test]
fn pages_lie_on_the_node_or_it_is_said() {
    let dir = tempfile::tempdir_in(shm()).unwrap();
    for node in memory_nodes() {
        let kind = TierKind::Numa(node);
        let pool = forebay_tier::create(kind, &dir.path().join(format!("p{node}")), 8 << 20).unwrap();
        assert_eq!(pool.placement(), Some(Placement::Unverified), "nothing is prepared yet");
        pool.prepare(0..8 << 20).unwrap();
        match pool.placement() {
            Some(Placement::Bound) => {}
            Some(Placement::FirstTouch) if memory_nodes().len() == 1 => {}
            other => skips::skipped("where pages lie", &format!("{kind}: {other:?}")),
        }
        assert_eq!(pool.kind(), kind);
    }
    let pool = forebay_tier::create(TierKind::Numa(0), &dir.path().join("p"), 8 << 20).unwrap();
    pool.prepare(0..8 << 20).unwrap();
    let empty = tempfile::tempdir_in(shm()).unwrap();
    let tried = forebay_tier::device::numa::try_placement(0, empty.path()).unwrap();
    assert_eq!(Some(tried), pool.placement(), "what doctor tells is what a pool gets");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "the trial left its pool");
    let dram = forebay_tier::create(TierKind::Dram, &dir.path().join("d"), 4096).unwrap();
    assert_eq!(dram.placement(), None);
    for node in [7, 1023, 1024, u16::MAX] {
        let kind = TierKind::Numa(node);
        if Path::new(&format!("/sys/devices/system/node/node{node}")).exists() {
            skips::skipped(&format!("refusal of {kind}"), "this machine has that node");
            continue;
        }
        let error = forebay_tier::create(kind, &dir.path().join("q"), 4096).err().expect("no such node");
        assert_eq!(error.kind(), Kind::NotPossibleHere, "{error}");
        assert!(
            error.context().iter().any(|(key, nodes)| *key == "present_nodes" && nodes.contains('0')),
            "{error}"
        );
        assert!(!dir.path().join("q").exists());
    }
}

#[test]
fn file_on_tmpfs_conforms() {
    suite_of(TierKind::File, shm());
}

/// Every kind below, a fresh adapter around each pool: neutral ones change nothing.
fn adapter_conforms(around: &dyn Fn(Arc<dyn Device>) -> Arc<dyn Device>) {
    for (kind, root) in [(TierKind::Dram, shm()), (TierKind::File, shm())] {
        suite(
            root,
            &|path, capacity| Ok(around(forebay_tier::create(kind, path, capacity)?)),
            &|path, access| Ok(around(forebay_tier::open(kind, path, access)?)),
        );
    }
}

#[test]
fn stats_conforms() {
    adapter_conforms(&|device| Arc::new(Stats::new(device)));
}

#[test]
fn fault_conforms_without_a_rule_and_with_short_transfers() {
    for plan in ["", "write:short,read:short,seed=1"] {
        let plan = FaultPlan::parse(plan).unwrap();
        adapter_conforms(&|device| Arc::new(Fault::new(device, plan.clone())));
    }
}

#[test]
fn throttle_conforms_without_a_curve() {
    adapter_conforms(&|device| {
        let state = Throttle::state_beside(device.path());
        Arc::new(Throttle::new(device, Curves::default(), Locality::Local, &state).unwrap())
    });
}

#[test]
fn adapters_forget_no_method() {
    let dir = tempfile::tempdir_in(shm()).unwrap();
    let state = dir.path().join("throttle");
    let throttle = |device| Throttle::new(device, Curves::default(), Locality::Local, &state).unwrap();
    let fault = |device| Fault::new(device, FaultPlan::parse("").unwrap());
    let pool = |name| forebay_tier::create(TierKind::Dram, &dir.path().join(name), 1 << 20).unwrap();
    recorder::check_handed_down(pool("a"), &|device| Arc::new(Stats::new(device)), &[]);
    recorder::check_handed_down(pool("b"), &|device| Arc::new(fault(device)), &[]);
    recorder::check_handed_down(pool("c"), &|device| Arc::new(throttle(device)), &[]);
}

#[test]
fn emulated_pmem_conforms() {
    suite(shm(), &|path, capacity| Ok(Arc::new(pmem::create_emulated(path, capacity)?)), &|path, access| {
        Ok(Arc::new(pmem::open_emulated(path, access)?))
    });
}

#[test]
fn pmem_conforms() {
    let usable = |dir: &std::path::PathBuf| tempfile::tempdir_in(dir).is_ok();
    match forebay_tier::capacity::dax_mounts().into_iter().find(usable) {
        Some(dir) => suite_of(TierKind::Pmem, &dir),
        None => skips::skipped("pmem conformance", "no DAX file system that this user may write"),
    }
}

/// A medium that does not give a page: here because the file was truncated, on a broken disk because of the block.
#[test]
fn a_page_that_cannot_be_read_is_an_error_before_it_is_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = forebay_tier::create(TierKind::File, &path, 1 << 20).unwrap();
    pool.prepare(0..1 << 20).unwrap();
    pool.write(0, &[7; 8192]).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
    pool.will_read(8192..8193).expect("no access yet");
    pool.populate_read(0..1 << 20);
    if pool.will_read(8192..1 << 20).is_ok() {
        return skips::skipped("pages that cannot be read", "a kernel without MADV_POPULATE_READ");
    }
    assert_eq!(pool.will_read(8192..1 << 20).unwrap_err().kind(), Kind::Io);
    pool.will_read(0..8192).expect("these pages are there");
    assert_eq!(pool.bytes(0..8192), [7; 8192]);
    assert_eq!(pool.read(8192, &mut [0; 8]).unwrap_err().kind(), Kind::Io);
}

#[test]
fn kinds_are_told_apart_and_promise_what_they_can() {
    assert_eq!(forebay_tier::detect(shm()).unwrap(), TierKind::Dram);
    let shm = tempfile::tempdir_in(shm()).unwrap();
    let tmp = tempfile::tempdir().unwrap();
    let path = shm.path().join("p");

    let dram = forebay_tier::create(TierKind::Dram, &path, 4096).unwrap();
    assert_eq!(dram.durability(Horizon::Write), Durability::Process);
    let error = forebay_tier::create(TierKind::Dram, &path, 4096).err().expect("it exists");
    assert_eq!(error.kind(), Kind::Io, "{error}");
    assert!(path.exists(), "a refused create removed the pool that was there");
    drop(dram);

    let error = forebay_tier::create(TierKind::Pmem, &shm.path().join("q"), 4096).err().expect("no DAX here");
    assert_eq!(error.kind(), Kind::NotPossibleHere);
    assert!(error.hint_text().is_some());
    assert!(!shm.path().join("q").exists(), "a refused create left its file");
    let emulated = pmem::create_emulated(&shm.path().join("e"), 4096).unwrap();
    assert_eq!(emulated.durability(Horizon::Write), Durability::Process, "an emulation promises nothing");

    let file = forebay_tier::create(TierKind::File, &shm.path().join("f"), 4096).unwrap();
    assert_eq!(file.durability(Horizon::Write), Durability::Process, "tmpfs does not survive");
    let error = forebay_tier::create(TierKind::File, &shm.path().join("z"), 0).err().expect("no bytes");
    assert_eq!(error.kind(), Kind::Usage);

    if forebay_tier::detect(tmp.path()).unwrap() != TierKind::File {
        return skips::skipped(
            "tier file on a disk",
            "the temporary directory is not on a block file system",
        );
    }
    let file = forebay_tier::create(TierKind::File, &tmp.path().join("f"), 4096).unwrap();
    assert_eq!(file.durability(Horizon::None), Durability::Process);
    assert_eq!(file.durability(Horizon::Epoch), Durability::Power);
    let error = forebay_tier::create(TierKind::Dram, &tmp.path().join("d"), 4096).err().expect("not tmpfs");
    assert_eq!(error.kind(), Kind::NotPossibleHere);
    let error = forebay_tier::create(TierKind::Pmem, &tmp.path().join("p"), 4096).err().expect("not DAX");
    assert_eq!(error.kind(), Kind::NotPossibleHere);
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1, "refused creates left files");
}

#[test]
fn detect_refuses_what_is_no_directory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(forebay_tier::detect(file.path()).unwrap_err().kind(), Kind::Usage);
    assert!(forebay_tier::detect(Path::new("/no/such/directory")).is_err());
}
