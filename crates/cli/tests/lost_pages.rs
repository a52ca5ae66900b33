//! Bad blocks of persistent memory below a space, a checkpoint and a window: each loses what lies on them and no more,
//! says so by an error, and the process lives.
//!
//! The kernel's list of bad blocks of /dev/pmemN can be written by root: a page that it names is SIGBUS for who loads
//! from a mapping of it and EIO for who reads the file, as on hardware. Tests do so only in the emulated machine, where
//! `cargo xtask dax-machine` sets a variable: the blocks stay bad. Everywhere else this is skipped.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_checkpoint::{Checkpoint, Dtype, NdBox, Options};
use forebay_pager::{OnError, Window, WindowEngine, WindowOptions};
use forebay_space::{verify, OpenOptions, Reader, Retention, TierKind, Writer};
use forebay_tier::Kind;

const PAGE: u64 = 4096;
/// Elements of a large variable: several checksums.
const MANY: u64 = 100_000;
/// Elements of a small one.
const FEW: u64 = 12;

/// A folder on persistent memory whose blocks may become bad. It stays: no other file shall get these blocks.
fn folder(what: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("DAX_MACHINE_BAD_BLOCKS").map(PathBuf::from) else {
        skips::skipped(what, "no persistent memory whose blocks may become bad (cargo xtask dax-machine)");
        return None;
    };
    Some(tempfile::Builder::new().prefix("lost-").tempdir_in(root).expect("a folder").keep())
}

/// Puts the block under byte `offset` of a file on the kernel's list.
fn lose(path: &Path, offset: u64) {
    FileOptions::new().read(true).open(path).unwrap().sync_all().unwrap();
    let output = Command::new("filefrag").args(["-v", "-b4096"]).arg(path).output().expect("filefrag");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let page = offset / PAGE;
    // `   1:       16..     255:      32912..     33151:    240:             last,eof`
    let physical = text.lines().find_map(|line| {
        let words: Vec<&str> = line.split([':', '.', ' ']).filter(|word| !word.is_empty()).collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let (_, first, last, begin) = (number(0)?, number(1)?, number(2)?, number(3)?);
        (first..=last).contains(&page).then(|| begin + page - first)
    });
    let physical =
        physical.unwrap_or_else(|| panic!("no block under {offset} of {}:\n{text}", path.display()));
    let device = fs::metadata(path).unwrap().dev();
    let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
    let list = format!("/sys/dev/block/{major}:{minor}/badblocks");
    fs::write(&list, format!("{} 8\n", physical * 8)).unwrap_or_else(|e| panic!("{list}: {e}"));
}

/// Where the bytes `wanted` lie among the files of a folder.
fn place_of(dir: &Path, wanted: &[u8]) -> (PathBuf, u64) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(wanted.len()).position(|part| part == wanted) {
            return (path, at as u64);
        }
    }
    panic!("nothing in {} holds them", dir.display());
}

/// No two elements of any version and variable are alike.
fn content(version: u64, variable: u64, elements: u64) -> Vec<u64> {
    let first = (version * 8 + variable + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..elements).map(|i| first ^ (i << 20)).collect()
}

fn bytes_of(elements: &[u64]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_ne_bytes()).collect()
}

fn space_options(path: &Path) -> OpenOptions {
    OpenOptions {
        path: Some(path.to_owned()),
        tier: Some(TierKind::Pmem),
        quota_bytes: Some(64 << 20),
        retention: Some(Retention::Forever),
        ..OpenOptions::default()
    }
}

const VARIABLES: [(&str, u64); 3] = [("large", MANY), ("few", FEW), ("other", MANY)];

/// A space of four versions, and its directory.
fn space(dir: &Path) -> PathBuf {
    let path = dir.join("space");
    let mut writer = Writer::open("lost", &space_options(&path)).unwrap();
    for version in 0..4 {
        writer.begin_step().unwrap();
        for (nth, (name, elements)) in VARIABLES.iter().enumerate() {
            let data = content(version, nth as u64, *elements);
            writer.put_array(name, &[*elements], &[0], &[*elements], &data).unwrap();
        }
        writer.end_step().unwrap();
    }
    writer.close().unwrap();
    path
}

fn observe(path: &Path) -> Reader {
    Reader::open("lost", &OpenOptions { observer: true, ..space_options(path) }).unwrap()
}

/// Looks at every variable of a version but those of `without`.
fn look_at(reader: &mut Reader, version: u64, without: &[&str]) {
    for (nth, (name, elements)) in VARIABLES.iter().enumerate() {
        if !without.contains(name) {
            let found =
                reader.get_array::<u64>(name, None).unwrap_or_else(|e| panic!("{version} {name}: {e}"));
            assert!(found == content(version, nth as u64, *elements), "{version} {name}");
        }
    }
}

/// The soft state of all spaces goes, as with a loss of power.
fn forget_soft_state() {
    let root = std::env::var_os("FOREBAY_DIR").map(PathBuf::from);
    let root = root.unwrap_or_else(|| {
        PathBuf::from(format!("/dev/shm/forebay-{}", fs::metadata("/proc/self").unwrap().uid()))
    });
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(".soft-") {
            fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}

#[test]
fn a_space_loses_what_lies_on_the_page() {
    let Some(dir) = folder("bad blocks below a space") else { return };
    let path = space(&dir);
    let (pool, at) = place_of(&path, &bytes_of(&content(1, 0, MANY)[50_000..50_004]));
    lose(&pool, at);
    for recovered in [false, true] {
        if recovered {
            forget_soft_state();
        }
        let mut reader = observe(&path);
        assert_eq!(reader.versions().unwrap(), 0..4);
        for version in [0, 2, 3] {
            look_at(&mut reader.open_version(version).unwrap(), version, &[]);
        }
        let mut reader = reader.open_version(1).unwrap();
        look_at(&mut reader, 1, &["large"]);
        let error = reader.get_array::<u64>("large", None).unwrap_err();
        assert_eq!(error.kind(), Kind::Io, "{error}");
        assert!(error.to_string().contains(&format!("offset={}", at / PAGE * PAGE)), "{error}");
        assert_eq!(reader.view("large", None).err().expect("a lost page").kind(), Kind::Io);
        let part = NdBox { start: [90_000].into_iter().collect(), count: [5_000].into_iter().collect() };
        let found = reader.get_array::<u64>("large", Some(&part)).expect("it lies on other pages");
        assert!(found == content(1, 0, MANY)[90_000..95_000]);
        reader.close().unwrap();
    }
    let report = verify(path.to_str().unwrap()).unwrap();
    let what: Vec<_> = report.damaged.iter().map(|d| (d.version, d.variable.as_deref(), &*d.what)).collect();
    assert!(
        matches!(what[..], [(Some(1), Some("large"), text)] if text.contains("the medium lost the page")),
        "{what:?}"
    );
}

#[test]
fn a_version_whose_header_is_lost_takes_no_other_with_it() {
    let Some(dir) = folder("bad blocks below a record's header") else { return };
    let path = space(&dir);
    // A small payload stands beside its header.
    let (pool, at) = place_of(&path, &bytes_of(&content(1, 1, FEW)));
    lose(&pool, at);
    for recovered in [false, true] {
        if recovered {
            forget_soft_state();
        }
        let mut reader = observe(&path);
        for version in [0, 2, 3] {
            let mut opened =
                reader.open_version(version).unwrap_or_else(|e| panic!("version {version}: {e}"));
            look_at(&mut opened, version, &[]);
        }
        let error = reader.open_version(1).err().expect("a lost header");
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert_eq!(reader.open_version(2).unwrap().version(), Some(2));
        reader.close().unwrap();
    }
    let command = Command::new(env!("CARGO_BIN_EXE_forebay")).arg("verify").arg(&path).output().unwrap();
    assert_eq!(command.status.code(), Some(8), "{}", String::from_utf8_lossy(&command.stdout));
}

#[test]
fn a_restore_goes_back_to_the_step_before_and_says_why() {
    let Some(dir) = folder("bad blocks below a checkpoint") else { return };
    let path = dir.join("checkpoints");
    let of = |step: u64| bytes_of(&content(step, 7, MANY));
    let options = Options { levels: vec!["pmem,keep=3".into()], ..Options::default() };
    let open = || {
        let mut checkpoint = Checkpoint::open(&path, &options).unwrap();
        checkpoint.protect("u", Dtype::U64, &[MANY], &NdBox::whole(&[MANY])).unwrap();
        checkpoint
    };
    let mut checkpoint = open();
    for step in 0..3 {
        checkpoint.save(step, &[&of(step)]).unwrap();
        checkpoint.wait().unwrap();
    }
    drop(checkpoint);
    let folders = walk(&path);
    let newest = of(2);
    let wanted = &newest[400_000..400_032];
    let holds = |dir: &&PathBuf| {
        let files = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).filter(|p| p.is_file());
        files.into_iter().any(|file| fs::read(file).unwrap().windows(32).any(|part| part == wanted))
    };
    let (file, at) = place_of(folders.iter().find(holds).expect("a data file of step 2"), wanted);
    lose(&file, at);
    let mut checkpoint = open();
    let mut state = vec![0u8; MANY as usize * 8];
    let restored = checkpoint.restore_latest(&mut [&mut state]).unwrap().expect("two steps are whole");
    assert!(restored.step == 1 && state == of(1), "{restored}");
    assert_eq!(restored.lost, Some(2));
    assert!(
        matches!(&restored.rejected[..], [reject] if reject.step == 2 && reject.kind == "Io"),
        "{restored}"
    );
}

/// A folder and all below it.
fn walk(dir: &Path) -> Vec<PathBuf> {
    let below = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut all: Vec<PathBuf> = below.flat_map(|path| walk(&path)).collect();
    all.push(dir.to_owned());
    all
}

#[test]
fn a_window_shows_zeros_and_says_so_in_one_place() {
    let Some(dir) = folder("bad blocks below a window") else { return };
    let path = dir.join("data");
    fs::write(&path, (0..64u8).flat_map(|page| [page + 1; PAGE as usize]).collect::<Vec<u8>>()).unwrap();
    lose(&path, 20 * PAGE);
    let options = WindowOptions {
        on_error: OnError::Zeros,
        tile_bytes: PAGE as usize,
        engine: Some(WindowEngine::Userfault),
        ..WindowOptions::new(32 * PAGE)
    };
    let window = Window::open(&path, &options).expect("root may use userfaultfd");
    let shown: Vec<u8> = (0..64).map(|page| window.as_slice()[page * PAGE as usize + 5]).collect();
    let wanted: Vec<u8> = (0..64u8).map(|page| if page == 20 { 0 } else { page + 1 }).collect();
    assert_eq!(shown, wanted);
    let error = window.check().unwrap_err();
    assert!(error.kind() == Kind::Io && error.to_string().contains("offset=81920"), "{error}");
    window.check().expect("it is said once");
    assert_eq!(window.read(20 * PAGE, &mut [0; 8]).unwrap_err().kind(), Kind::Io);
    window.read(21 * PAGE, &mut [0; 8]).unwrap();
}
