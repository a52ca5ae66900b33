//! Whole spaces with hostile bytes: everything that is done with a space, on one of which a pool, the control segment
//! or the list of lower pools was changed. For the fuzzers, and for a test with seeded inputs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_log::format::{crc_of, layouts, RECORD_BYTES, RECORD_MAGIC, SEGMENT_MAGIC};
use forebay_space::{CleanOptions, NdBox, OpenOptions, Reader, Retention, SpillTier, TierKind, Writer};

/// A folder of this process in shared memory. libFuzzer ends a process without a farewell; who starts it names a folder
/// that it removes itself.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let place = std::env::var_os("FUZZ_FOLDER").unwrap_or_else(|| "/dev/shm".into());
    let make = || tempfile::Builder::new().prefix("forebay-test-fuzz-").tempdir_in(&place);
    FOLDER.get_or_init(|| make().expect("a directory")).path()
}

/// Removes what the targets made.
pub fn clean_up() {
    let _ = std::fs::remove_dir_all(folder());
}

pub fn field(table: &str, name: &str) -> usize {
    let layout = layouts().into_iter().find(|l| l.name == table).expect("a durable struct");
    layout.fields.iter().find(|f| f.0 == name).expect("a field").1
}

/// Makes the checksum of the record header at the start of `bytes` right, as far as it says how long it is, and with it
/// the commit word.
pub fn seal_record(bytes: &mut [u8]) {
    let (from, at) = (field("RecordDf", "sequence"), field("RecordDf", "meta_bytes"));
    let Some(meta) = bytes.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four"))) else {
        return;
    };
    if let Some(part) = bytes.get(from..meta as usize) {
        let crc = crc_of(&[part]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        if bytes[8..12] == *b"CMIT" {
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// A change of one word, as a fuzzer's input.
pub fn change(at: usize) -> Vec<u8> {
    [&(at as u32 / 8).to_le_bytes()[..], &1u64.to_le_bytes()].concat()
}

/// Changes in a file: each twelve bytes of input are a place and eight bytes that are put there.
pub fn changes(data: &[u8], length: usize) -> Vec<(usize, [u8; 8])> {
    data.chunks_exact(12)
        .map(|c| {
            let place = u32::from_le_bytes(c[..4].try_into().expect("four")) as usize;
            (place % (length / 8) * 8, c[4..].try_into().expect("eight"))
        })
        .collect()
}

/// Makes the checksums of a pool right. Segment headers stand at granules; records at every 64 bytes between them.
pub fn seal_pool(bytes: &mut [u8]) {
    let crc = field("SegmentDf", "crc");
    for at in (4096..bytes.len()).step_by(64) {
        if at % 4096 == 0 && bytes[at..at + 4] == SEGMENT_MAGIC.to_le_bytes() {
            let right = crc_of(&[&bytes[at..at + crc]]);
            bytes[at + crc..at + crc + 4].copy_from_slice(&right.to_le_bytes());
        } else if at + RECORD_BYTES <= bytes.len() && bytes[at..at + 4] == RECORD_MAGIC.to_le_bytes() {
            seal_record(&mut bytes[at..]);
        }
    }
}

const POOL: usize = 0;
const LOWER: usize = 1;
const CONTROL: usize = 2;
const TIERS: usize = 3;

fn file_of(target: &str) -> usize {
    match target {
        "space_pool" => POOL,
        "space_lower" => LOWER,
        "space_control" => CONTROL,
        _ => TIERS,
    }
}

/// A space of two pools as its writers left it.
struct WholeSpace {
    name: String,
    /// Its files with their bytes: first pool, lower pool, control segment, list of the lower pools.
    files: Vec<(PathBuf, Vec<u8>)>,
}

const STEPS: u64 = 8;
const ELEMENTS: u64 = 20_000;

fn whole_space() -> &'static WholeSpace {
    static SPACE: OnceLock<WholeSpace> = OnceLock::new();
    SPACE.get_or_init(|| {
        let name = folder().join("whole").display().to_string();
        let lower = folder().join("lower");
        std::fs::create_dir(&lower).expect("made");
        let options = OpenOptions {
            quota_bytes: Some(768 << 10),
            segment_bytes: Some(256 << 10),
            retention: Some(Retention::Forever),
            spill: vec![SpillTier { path: lower.clone(), quota: Some(2 << 20), tier: Some(TierKind::File) }],
            component: Some("fuzz".into()),
            timeout: std::time::Duration::from_secs(60),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).expect("opened");
        for version in 0..STEPS {
            writer.begin_step().expect("begun");
            writer
                .put_array("x", &[ELEMENTS], &[0], &[ELEMENTS], &vec![version; ELEMENTS as usize])
                .expect("put");
            writer.put_array("y", &[2, 2], &[1, 0], &[1, 2], &[version as u8; 2]).expect("put");
            writer.end_step().expect("ended");
        }
        writer.close().expect("closed");
        let made = Path::new(&name);
        let pool = std::fs::read_dir(&lower).expect("read").flatten().next().expect("a lower pool").path();
        let files = [made.join("pool"), pool, made.join("control"), made.join("tiers.json")];
        let files = files.map(|path| (path.clone(), std::fs::read(path).expect("read"))).to_vec();
        WholeSpace { name, files }
    })
}

/// Puts the files back, with other bytes for one of them.
fn put_back(changed: usize, bytes: &[u8]) {
    let space = whole_space();
    let _ = std::fs::create_dir(&space.name);
    for (number, (path, original)) in space.files.iter().enumerate() {
        std::fs::write(path, if number == changed { bytes } else { original }).expect("written");
    }
}

/// Everything that is done with a space, on one in which a file holds `bytes`. Bits of `mode`: the shared state is lost
/// as well; writers start again; it is removed.
fn use_all(mode: u8, changed: usize, bytes: &[u8]) {
    let WholeSpace { name, files } = whole_space();
    put_back(changed, bytes);
    if mode & 1 != 0 {
        let _ = std::fs::remove_file(&files[CONTROL].0);
    }
    let quick = |observer| OpenOptions {
        observer,
        component: Some("fuzz-reader".into()),
        rank: Some(0),
        size: Some(1),
        timeout: std::time::Duration::from_millis(1),
        finished: true,
        ..OpenOptions::default()
    };
    let _ = forebay_space::inspect(name);
    if let Ok(mut reader) = Reader::open(name, &quick(true)) {
        let versions = reader.versions().unwrap_or(0..0);
        for version in versions.take(STEPS as usize + 2) {
            if let Ok(mut opened) = reader.open_version(version) {
                use_version(&mut opened);
                let _ = opened.end_step();
            }
        }
    }
    if let Ok(mut reader) = Reader::open(name, &quick(false)) {
        for _ in 0..STEPS + 2 {
            if !matches!(reader.begin_step(None), Ok(Some(_))) {
                break;
            }
            use_version(&mut reader);
            let _ = reader.end_step();
        }
    }
    let _ = forebay_space::verify(name);
    if mode & 2 != 0 {
        let write = || -> forebay_space::Result<()> {
            let mut writer = Writer::open(name, &quick(false))?;
            writer.resume()?;
            writer.begin_step()?;
            writer.put_array("x", &[ELEMENTS], &[0], &[ELEMENTS], &vec![1u64; ELEMENTS as usize])?;
            writer.end_step()?;
            writer.close()
        };
        let _ = write();
    }
    // What a list of lower pools names is removed with the space: not what a fuzzer writes there.
    let dry_run = mode & 4 == 0 || changed == TIERS;
    let _ =
        forebay_space::clean(&CleanOptions { names: vec![name.clone()], dry_run, ..CleanOptions::default() });
}

fn use_version(reader: &mut Reader) {
    let names: Vec<String> =
        reader.variables().map_or(Vec::new(), |all| all.into_iter().take(4).map(|v| v.name).collect());
    for name in names.iter().map(String::as_str).chain(["x", "y"]) {
        let _ = reader.get_array::<u64>(name, None);
        let _ = reader.get_array::<u8>(name, None);
        let _ = reader.view(name, None).map(|view| view.bytes().iter().fold(0u8, |sum, b| sum ^ b));
        let part = NdBox::new(&[1, 1], &[1, 1]).expect("a box");
        let _ = reader.get_array::<u8>(name, Some(&part));
    }
}

/// A file of a space in which words were changed; in pools the checksums are made right.
fn use_changed(changed: usize, data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let mut bytes = whole_space().files[changed].1.clone();
    for (at, word) in changes(data, bytes.len()) {
        bytes[at..at + 8].copy_from_slice(&word);
    }
    if changed != CONTROL && mode & 8 == 0 {
        let crc = field("SuperblockDf", "crc");
        let right = crc_of(&[&bytes[..crc]]);
        bytes[crc..crc + 4].copy_from_slice(&right.to_le_bytes());
        seal_pool(&mut bytes);
    }
    use_all(*mode, changed, &bytes);
}

/// The first pool of a space of two.
pub fn space_pool(data: &[u8]) {
    use_changed(POOL, data);
}

/// The lower pool of a space of two.
pub fn space_lower(data: &[u8]) {
    use_changed(LOWER, data);
}

/// The control segment of a space of two pools.
pub fn space_control(data: &[u8]) {
    use_changed(CONTROL, data);
}

/// The list of the lower pools.
pub fn space_tiers(data: &[u8]) {
    if let Some((mode, text)) = data.split_first() {
        use_all(*mode, TIERS, text);
    }
}

/// A space on a file system whose reader group keeps a cursor, with the bytes of its pool and its file of cursors.
fn space_with_cursors() -> &'static (String, [Vec<u8>; 2]) {
    static SPACE: OnceLock<(String, [Vec<u8>; 2])> = OnceLock::new();
    SPACE.get_or_init(|| {
        let name = folder().join("cursors").display().to_string();
        let options = OpenOptions {
            tier: Some(TierKind::File),
            quota_bytes: Some(1 << 20),
            segment_bytes: Some(256 << 10),
            retention: Some(Retention::Forever),
            readers: vec![("viz".into(), 1), ("other".into(), 2)],
            component: Some("fuzz".into()),
            timeout: std::time::Duration::from_secs(60),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).expect("opened");
        for version in 0..STEPS {
            writer.begin_step().expect("begun");
            writer.put_array("x", &[1], &[0], &[1], &[version]).expect("put");
            writer.end_step().expect("ended");
        }
        writer.close().expect("closed");
        let mut reader = Reader::open(&name, &cursor_reader()).expect("opened");
        assert_eq!(reader.begin_step(None).expect("begun"), Some(0));
        reader.end_step().expect("ended");
        drop(reader);
        let files = ["pool", "cursors"].map(|file| std::fs::read(Path::new(&name).join(file)).expect("read"));
        (name, files)
    })
}

fn cursor_reader() -> OpenOptions {
    OpenOptions {
        group: Some("viz".into()),
        component: Some("fuzz".into()),
        rank: Some(0),
        size: Some(1),
        timeout: std::time::Duration::from_millis(1),
        finished: true,
        ..OpenOptions::default()
    }
}

/// Makes the checksums of the head and of the records of groups in a file of cursors right.
fn seal_cursors(bytes: &mut [u8]) {
    let groups = (4096..20_480).step_by(128).map(|at| (at, 128, 24));
    for (at, length, crc) in std::iter::once((0, 32, 12)).chain(groups) {
        let record = &mut bytes[at..at + length];
        if record.iter().any(|byte| *byte != 0) {
            record[crc..crc + 4].fill(0);
            let right = crc_of(&[&*record]);
            record[crc..crc + 4].copy_from_slice(&right.to_le_bytes());
        }
    }
}

/// The file of the reader groups' cursors, read when the control segment is made anew, as after a reboot.
pub fn space_cursors(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let (name, [pool, cursors]) = space_with_cursors();
    let mut bytes = cursors.clone();
    for (at, word) in changes(data, bytes.len()) {
        bytes[at..at + 8].copy_from_slice(&word);
    }
    if mode & 8 == 0 {
        seal_cursors(&mut bytes);
    }
    for (file, bytes) in [("pool", pool), ("cursors", &bytes)] {
        std::fs::write(Path::new(name).join(file), bytes).expect("written");
    }
    forget_shared_state(name);
    let _ = forebay_space::inspect(name);
    let _ = forebay_space::verify(name);
    if let Ok(mut reader) = Reader::open(name, &cursor_reader()) {
        while let Ok(Some(_)) = reader.begin_step(None) {
            let _ = reader.missed();
            if reader.end_step().is_err() {
                break;
            }
        }
    }
    if mode & 2 != 0 {
        let declares = OpenOptions {
            readers: vec![("viz".into(), 3)],
            mode: forebay_space::Mode::Append,
            ..cursor_reader()
        };
        let _ = Writer::open(name, &declares).map(Writer::close);
    }
    let _ = forebay_space::remove_reader_group(name, "viz");
    forget_shared_state(name);
}

/// Removes the control segment of a space on a file system.
fn forget_shared_state(name: &str) {
    use std::os::unix::fs::MetadataExt;
    let inode = std::fs::metadata(Path::new(name).join("pool")).expect("a pool").ino();
    let of_pool = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(".soft-") && file.ends_with(&format!("-{inode:x}"))
    };
    let entries = forebay_space::root().ok().and_then(|root| std::fs::read_dir(root).ok());
    let found = entries.into_iter().flatten().flatten().map(|entry| entry.path()).filter(of_pool);
    found.for_each(|path| std::fs::remove_dir_all(path).expect("removed"));
}

/// Changes that touch what matters of a file of a space, or the list of lower pools.
pub fn samples(target: &str) -> Vec<Vec<u8>> {
    if target == "space_cursors" {
        // The head, the records of two groups, their cursors.
        let words = (0..4).chain(512..576).chain(2560..2563);
        return words.map(|word| [vec![0], change(word * 8)].concat()).collect();
    }
    let original = &whole_space().files[file_of(target)].1;
    if target == "space_tiers" {
        return vec![[&[0], &original[..]].concat(), [&[1], &original[..]].concat()];
    }
    let words: Vec<usize> =
        (0..original.len()).step_by(8).filter(|at| original[*at..*at + 8] != [0; 8]).collect();
    let spread = words.iter().step_by(words.len().div_ceil(64));
    spread
        .zip([0, 1, 2, 5].into_iter().cycle())
        .map(|(at, mode)| [vec![mode], change(*at)].concat())
        .collect()
}
