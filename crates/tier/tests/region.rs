//! Regions: round trips, modes, bounds, refusals, poison, several processes, and death by SIGKILL.

mod skips;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_tier::{Durability, Error, Kind, MapMode, Placement, Region, Result, TierKind};

/// On tmpfs, and wherever temporary files are.
fn roots() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()]
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(13) ^ (i >> 8) as u8 ^ seed).collect()
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: Kind) -> Error {
    match result {
        Ok(_) => panic!("expected {kind}, got success"),
        Err(e) => {
            assert_eq!(e.kind(), kind, "{e}");
            e
        }
    }
}

fn round_trip(make: impl Fn(&Path, usize) -> Result<Region>, path: &Path) {
    // No whole number of pages, so that the end lies inside one.
    const BYTES: usize = (1 << 20) + 4097;
    let mut region = make(path, BYTES).unwrap();
    let meta = fs::metadata(path).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (BYTES as u64, 0o600));
    assert!(meta.blocks() * 512 >= BYTES as u64, "pages are missing: {} blocks", meta.blocks());
    assert_eq!((region.len(), region.is_empty(), region.path()), (BYTES, false, path));
    assert!(region.as_slice().iter().all(|byte| *byte == 0), "a fresh region is not zero");
    assert_eq!(region.as_slice().as_ptr() as usize % 4096, 0);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let own: Vec<&str> = maps.lines().filter(|line| line.contains(path.to_str().unwrap())).collect();
    assert!(own.len() == 1 && own[0].ends_with(path.to_str().unwrap()), "mapped under another name: {own:?}");

    let mut model = vec![0; BYTES];
    for (offset, len) in [(0, 64), (64, 256), (1000, 255), (4095, 4096), (70_001, 300_000), (BYTES - 3, 3)] {
        let data = pattern(len, offset as u8);
        region.copy_persist(offset, &data).unwrap();
        model[offset..offset + len].copy_from_slice(&data);
    }
    region.as_mut_slice().unwrap()[500_000..600_000].fill(9);
    model[500_000..600_000].fill(9);
    region.persist(500_000..600_000).unwrap();
    region.persist_all().unwrap();
    region.sync_name().unwrap();
    assert!(region.as_slice() == model, "the region differs from the model");
    assert!(fs::read(path).unwrap() == model, "the file differs from the model");
    drop(region);

    let mut again = Region::open(path, BYTES, None).unwrap();
    assert!(again.as_slice() == model, "the bytes are gone");
    again.as_mut_slice().unwrap()[BYTES - 1] = 77;
    let reader = Region::map(path, None, None, MapMode::Read).unwrap();
    assert_eq!((reader.len(), reader.as_slice()[BYTES - 1]), (BYTES, 77), "two mappings differ");
    assert_eq!(fs::metadata(path).unwrap().len(), BYTES as u64, "the file has grown");
}

#[test]
fn bytes_come_back_after_reopening() {
    for (root, kind) in roots().iter().zip([TierKind::Dram, TierKind::File]) {
        if forebay_tier::detect(root.path()).unwrap() != kind {
            skips::skipped("region on a disk", "the temporary directory is not on a block file system");
            continue;
        }
        round_trip(|path, bytes| Region::create(path, bytes, None), &root.path().join("found"));
        round_trip(|path, bytes| Region::create(path, bytes, Some(kind)), &root.path().join("named"));
        let region = Region::open(&root.path().join("found"), (1 << 20) + 4097, Some(kind)).unwrap();
        assert_eq!(region.tier(), kind);
        let survives = if kind == TierKind::File { Durability::Power } else { Durability::Process };
        assert_eq!(region.durability(), survives);
        assert!(format!("{region:?}").contains("found"));
    }
    let [shm, _] = roots();
    round_trip(Region::create_emulated, &shm.path().join("pmem"));
    round_trip(|path, bytes| Region::create(path, bytes, Some(TierKind::File)), &shm.path().join("file"));
}

#[test]
fn a_region_lies_on_the_memory_node_that_is_named() {
    let [shm, _] = roots();
    let node = Some(TierKind::Numa(0));
    let path = shm.path().join("r");
    round_trip(|path, bytes| Region::create(path, bytes, node), &path);
    let region = Region::map(&path, None, node, MapMode::OpenOrCreate).unwrap();
    assert_eq!((region.tier(), region.durability()), (TierKind::Numa(0), Durability::Process));
    match region.placement() {
        Some(Placement::Bound | Placement::FirstTouch) => {}
        other => skips::skipped("where a region lies", &format!("the kernel does not tell: {other:?}")),
    }
    let plain = Region::open(&path, region.len(), None).unwrap();
    assert_eq!((plain.tier(), plain.placement()), (TierKind::Dram, None));
    let absent = Path::new("/sys/devices/system/node/node7");
    if absent.exists() {
        return skips::skipped("region on a missing node", "this machine has that node");
    }
    let e =
        refused(Region::create(&shm.path().join("q"), 4096, Some(TierKind::Numa(7))), Kind::NotPossibleHere);
    assert!(e.context().iter().any(|(key, nodes)| *key == "present_nodes" && nodes.contains('0')), "{e}");
    assert!(!shm.path().join("q").exists(), "a refused region left its file");
}

#[test]
fn promises_are_not_made_where_they_cannot_be_kept() {
    let [shm, _] = roots();
    let file = Region::create(&shm.path().join("f"), 1, Some(TierKind::File)).unwrap();
    assert_eq!((file.tier(), file.durability()), (TierKind::File, Durability::Process), "tmpfs is no disk");
    let pmem = Region::create_emulated(&shm.path().join("p"), 1).unwrap();
    assert_eq!((pmem.tier(), pmem.durability()), (TierKind::Pmem, Durability::Process), "an emulation");
    refused(Region::create(&shm.path().join("q"), 4096, Some(TierKind::Pmem)), Kind::NotPossibleHere);
    assert!(!shm.path().join("q").exists(), "a refused region left its file");
}

#[test]
fn real_persistent_memory() {
    let usable = |dir: &std::path::PathBuf| tempfile::tempdir_in(dir).is_ok();
    let Some(dir) = forebay_tier::capacity::dax_mounts().into_iter().find(usable) else {
        return skips::skipped("region on pmem", "no DAX file system that this user may write");
    };
    let dir = tempfile::tempdir_in(dir).unwrap();
    round_trip(|path, bytes| Region::create(path, bytes, None), &dir.path().join("r"));
    let region = Region::map(&dir.path().join("r"), None, None, MapMode::Write).unwrap();
    assert_eq!((region.tier(), region.durability()), (TierKind::Pmem, Durability::Power));
}

#[test]
fn ranges_outside_are_refused() {
    let [shm, _] = roots();
    let regions = [
        Region::create(&shm.path().join("dram"), 5000, None).unwrap(),
        Region::create(&shm.path().join("file"), 5000, Some(TierKind::File)).unwrap(),
        Region::create_emulated(&shm.path().join("pmem"), 5000).unwrap(),
        Region::create(&shm.path().join("numa"), 5000, Some(TierKind::Numa(0))).unwrap(),
    ];
    for mut region in regions {
        for range in [4999..5001, 5000..5001, 6000..6000, usize::MAX - 1..usize::MAX] {
            let e = refused(region.persist(range.clone()), Kind::Usage);
            assert!(e.to_string().contains("region_bytes=5000"), "{e}");
            let data = vec![1; range.len().max(1)];
            refused(region.copy_persist(range.start, &data), Kind::Usage);
        }
        #[allow(clippy::reversed_empty_ranges)] // the mistake that is tested
        let reversed = 8..4;
        refused(region.persist(reversed), Kind::Usage);
        region.persist(5000..5000).unwrap();
        region.copy_persist(5000, &[]).unwrap();
        region.copy_persist(4999, &[1]).unwrap();
        assert_eq!(region.as_slice()[4999], 1);
    }
}

#[test]
fn modes_are_what_they_say() {
    for root in roots() {
        let path = root.path().join("r");
        let map = |bytes, mode: &str| Region::map(&path, bytes, None, mode.parse().unwrap());
        let e = refused(map(Some(5000), "r+"), Kind::Io);
        assert!(e.to_string().contains("No such file"), "{e}");
        refused(map(None, "r"), Kind::Io);
        refused(map(None, "a+"), Kind::Usage);
        refused(map(None, "w+"), Kind::Usage);
        refused(map(Some(0), "a+"), Kind::Usage);
        assert!(!path.exists(), "a refused call made a file");

        map(Some(5000), "a+").unwrap().copy_persist(0, b"kept").unwrap();
        for mode in ["a+", "r+", "r"] {
            for bytes in [Some(5000), None] {
                assert_eq!(&map(bytes, mode).unwrap().as_slice()[..4], b"kept");
            }
            let e = refused(map(Some(8192), mode), Kind::OptionMismatch);
            assert!(e.message().contains("5000") && e.message().contains("8192"), "{e}");
        }
        let e = refused(map(Some(5000), "x+"), Kind::Io);
        assert!(e.to_string().contains("exists") && e.hint_text().is_some(), "{e}");

        let mut reader = map(None, "r").unwrap();
        refused(reader.as_mut_slice(), Kind::PermissionDenied);
        refused(reader.persist_all(), Kind::PermissionDenied);
        refused(reader.copy_persist(0, b"x"), Kind::PermissionDenied);
        assert!(!reader.into_shared().is_writable());

        let old = map(None, "r").unwrap();
        let new = map(Some(100), "w+").unwrap();
        assert_eq!((&old.as_slice()[..4], &new.as_slice()[..4]), (&b"kept"[..], &[0; 4][..]));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "something was left");
    }
    assert_eq!("w".parse::<MapMode>().unwrap_err().kind(), Kind::Usage);
    assert_eq!(MapMode::default(), "a+".parse().unwrap());
}

#[test]
fn only_regular_files_are_mapped_and_links_are_not_followed() {
    let [shm, _] = roots();
    let (target, link) = (shm.path().join("target"), shm.path().join("link"));
    Region::create(&target, 4096, None).unwrap().copy_persist(0, b"safe").unwrap();
    symlink(&target, &link).unwrap();
    for mode in ["r", "r+", "a+"] {
        let e = refused(Region::map(&link, None, None, mode.parse().unwrap()), Kind::Io);
        assert!(e.hint_text().is_some_and(|hint| hint.contains("symbolic link")), "{e}");
    }
    refused(Region::create(&link, 4096, None), Kind::Io);
    refused(Region::map(&link, Some(4096), None, MapMode::Replace), Kind::Usage);
    let dangling = shm.path().join("dangling");
    symlink(shm.path().join("nowhere"), &dangling).unwrap();
    refused(Region::open_or_create(&dangling, 4096, None), Kind::Io);
    assert!(!shm.path().join("nowhere").exists(), "a region was made through a link");
    assert_eq!(&fs::read(&target).unwrap()[..4], b"safe");

    let empty = shm.path().join("empty");
    fs::write(&empty, b"").unwrap();
    refused(Region::map(&empty, None, None, MapMode::Read), Kind::Usage);
    refused(Region::open(&empty, 4096, None), Kind::OptionMismatch);
    refused(Region::map(shm.path(), None, None, MapMode::Read), Kind::Usage);
    refused(Region::map(Path::new("/dev/null"), None, Some(TierKind::File), MapMode::Write), Kind::Usage);
    assert!(Region::create(&shm.path().join("no/such/r"), 1, None).is_err());
    let e = Region::create(&shm.path().join("no/such/r"), 1, Some(TierKind::File)).unwrap_err();
    assert!(e.message().contains("no/such/r: No such file"), "{e}");
}

#[test]
fn a_tier_that_the_directory_is_not_on_is_refused() {
    let [shm, tmp] = roots();
    if forebay_tier::detect(tmp.path()).unwrap() != TierKind::File {
        return skips::skipped(
            "region of the wrong tier",
            "the temporary directory is not on a block file system",
        );
    }
    for (dir, kind) in [(&tmp, TierKind::Dram), (&tmp, TierKind::Pmem), (&shm, TierKind::Pmem)] {
        let path = dir.path().join("r");
        let e = refused(Region::create(&path, 4096, Some(kind)), Kind::NotPossibleHere);
        assert!(e.hint_text().is_some(), "{e}");
        assert!(!path.exists());
        Region::create(&path, 4096, None).unwrap();
        refused(Region::open(&path, 4096, Some(kind)), Kind::NotPossibleHere);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn tiers_without_a_file_of_memory_are_refused_with_the_reason() {
    for root in roots() {
        let path = root.path().join("r");
        for (tier, why) in [(TierKind::Direct, "cannot be mapped"), (TierKind::DevDax, "a whole device")] {
            let e = refused(Region::create(&path, 4096, Some(tier)), Kind::NotPossibleHere);
            assert!(e.to_string().contains(why), "{e}");
            assert!(!path.exists());
        }
    }
}

#[test]
fn what_does_not_fit_leaves_nothing() {
    for root in roots() {
        let e = refused(Region::create(&root.path().join("r"), 1 << 43, None), Kind::TierFull);
        for key in ["limited_by", "wanted_bytes", "free_bytes"] {
            assert!(e.context().iter().any(|(k, _)| *k == key), "{key} is missing: {e}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "a refused region left its file");
        // A sparse file of another user is filled up first, or refused.
        let sparse = root.path().join("sparse");
        fs::File::create(&sparse).unwrap().set_len(3 << 20).unwrap();
        let region = Region::open(&sparse, 3 << 20, None).unwrap();
        assert!(fs::metadata(&sparse).unwrap().blocks() * 512 >= 3 << 20, "holes are left");
        drop(region);
        let vast = root.path().join("vast");
        if fs::File::create(&vast).unwrap().set_len(1 << 43).is_ok() {
            refused(Region::open(&vast, 1 << 43, None), Kind::TierFull);
            assert_eq!(fs::metadata(&vast).unwrap().blocks(), 0, "a refused region took pages");
        }
    }
}

#[test]
fn a_flush_that_fails_poisons_the_handle() {
    for root in roots() {
        let path = root.path().join("r");
        let mut region = Region::create(&path, 5000, Some(TierKind::File)).unwrap();
        region.copy_persist(0, b"before").unwrap();
        assert!(region.inject_flush_failure(5), "flushes of files can fail");
        let first = refused(region.persist(0..6), Kind::Poisoned);
        assert!(first.message().contains("Input/output error"), "{first}");
        for _ in 0..2 {
            assert_eq!(refused(region.persist(0..6), Kind::Poisoned).message(), first.message());
            refused(region.copy_persist(0, b"after"), Kind::Poisoned);
            refused(region.persist_all(), Kind::Poisoned);
        }
        assert_eq!(&region.as_slice()[..6], b"before", "reading goes on, and nothing was copied");
        let mut other = Region::open(&path, 5000, Some(TierKind::File)).unwrap();
        other.copy_persist(0, b"other").unwrap();
    }
    let [shm, _] = roots();
    let dram = Region::create(&shm.path().join("d"), 4096, None).unwrap();
    assert!(!dram.inject_flush_failure(5), "there is nothing that could fail");
    dram.persist_all().unwrap();
}

#[test]
fn threads_copy_side_by_side() {
    let [shm, _] = roots();
    for kind in [TierKind::Dram, TierKind::File] {
        let region = Region::create(&shm.path().join(kind.to_string()), 4 << 20, Some(kind)).unwrap();
        let shared = region.into_shared();
        assert!(shared.is_writable() && !shared.as_ptr().is_null());
        std::thread::scope(|scope| {
            for lane in 0..4usize {
                let shared = shared.clone();
                scope.spawn(move || {
                    for piece in 0..64 {
                        let at = (lane << 20) + (piece << 14);
                        shared.copy_persist(at, &pattern(1 << 14, lane as u8)).unwrap();
                    }
                });
            }
        });
        let seen = Region::map(shared.path(), None, Some(kind), MapMode::Read).unwrap();
        for at in (0..4 << 20).step_by(1 << 14) {
            assert!(
                seen.as_slice()[at..at + (1 << 14)] == pattern(1 << 14, (at >> 20) as u8),
                "{kind} at {at}"
            );
        }
    }
}

/// What the children of the tests below do: "open PATH" or "write TIER PATH".
const CHILD: &str = "TIER_TEST_REGION_CHILD";
const CHILD_BYTES: usize = 8 << 20;
const PIECE_BYTES: usize = 5000;

fn child(words: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_maps", "--nocapture", "--test-threads=1"]).env(CHILD, words);
    command.stdout(Stdio::piped());
    command
}

/// Not a test by itself.
#[test]
fn child_maps() {
    let Ok(words) = std::env::var(CHILD) else {
        return;
    };
    let words: Vec<&str> = words.split(' ').collect();
    match words[..] {
        ["open", path] => {
            let mut region = Region::open_or_create(Path::new(path), CHILD_BYTES, None).unwrap();
            let own = std::process::id() as usize % 4096;
            region.copy_persist(own, &[1]).unwrap();
            println!("\nOPENED {own}");
        }
        ["write", tier, path] => {
            let tier = Some(tier.parse().unwrap());
            let mut region = Region::create(Path::new(path), CHILD_BYTES, tier).unwrap();
            for piece in 0..CHILD_BYTES / PIECE_BYTES {
                let at = piece * PIECE_BYTES;
                region.copy_persist(at, &pattern(PIECE_BYTES, piece as u8)).unwrap();
                println!("\nWROTE {piece}");
            }
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        _ => panic!("{words:?}"),
    }
}

#[test]
fn of_processes_that_come_at_once_one_makes_it() {
    for root in roots() {
        let path = root.path().join("r");
        let words = format!("open {}", path.display());
        let children: Vec<_> = (0..4).map(|_| child(&words).spawn().unwrap()).collect();
        let mut expected = vec![0u8; 4096];
        for running in children {
            let output = running.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}");
            let own = text.lines().find_map(|line| line.strip_prefix("OPENED ")).expect("it says where");
            expected[own.parse::<usize>().unwrap()] = 1;
        }
        let region = Region::open(&path, CHILD_BYTES, None).unwrap();
        assert!(region.as_slice()[..4096] == expected, "they did not share one file");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}

#[test]
fn what_was_acknowledged_survives_sigkill() {
    for (root, tier) in roots().iter().zip([TierKind::Dram, TierKind::File]) {
        if forebay_tier::detect(root.path()).unwrap() != tier {
            skips::skipped("SIGKILL on a disk", "the temporary directory is not on a block file system");
            continue;
        }
        for enough in [0, 3, 40] {
            let path = root.path().join(format!("r{enough}"));
            let mut running = child(&format!("write {tier} {}", path.display())).spawn().unwrap();
            let mut lines = BufReader::new(running.stdout.take().unwrap()).lines();
            let said =
                |line: String| line.strip_prefix("WROTE ").map(|piece| piece.parse::<usize>().unwrap());
            let mut last = lines.by_ref().map(|l| l.unwrap()).filter_map(said).find(|piece| *piece >= enough);
            running.kill().unwrap();
            running.wait().unwrap();
            // What it had said before it died counts, too.
            last = lines.map_while(|l| l.ok()).filter_map(said).last().or(last);
            let last = last.expect("the child wrote");
            let region = Region::open(&path, CHILD_BYTES, Some(tier)).unwrap();
            for piece in 0..=last {
                let range = piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES;
                assert!(
                    region.as_slice()[range] == pattern(PIECE_BYTES, piece as u8),
                    "{tier}: {piece} of {last}"
                );
            }
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 3, "something else was left");
    }
}
