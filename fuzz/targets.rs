//! What a fuzzer feeds: every format that Forebay reads and did not have to write itself.
//!
//! Each target takes any bytes and must return: an error of any kind is an answer, a panic, a hang or an allocation
//! by a number out of the input is none. Checksums are made right after the bytes were changed, so that what lies
//! behind them is reached. The libFuzzer programs of this folder and a test with seeded inputs run the same functions.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_log::format::{crc_of, RecordHeader, RECORD_MAGIC};
use forebay_log::{recover, Superblock};
use forebay_space::{OpenOptions, Reader, Retention, TierKind, Writer};

#[path = "checkpoints.rs"]
pub mod checkpoints;
#[path = "whole_spaces.rs"]
pub mod whole_spaces;

pub use whole_spaces::clean_up;
use whole_spaces::{change, changes, field, folder, seal_pool, seal_record};

/// A target with its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("superblock", superblock),
    ("record", record),
    ("pool", pool),
    ("control", control),
    ("workflow", workflow),
    ("attributes", attributes),
    ("space_pool", whole_spaces::space_pool),
    ("space_lower", whole_spaces::space_lower),
    ("space_control", whole_spaces::space_control),
    ("space_tiers", whole_spaces::space_tiers),
    ("space_cursors", whole_spaces::space_cursors),
    ("checkpoint_manifest", checkpoints::manifest),
    ("checkpoint_commit", checkpoints::commit),
    ("checkpoint_redundancy", checkpoints::redundancy),
    ("checkpoint_control", checkpoints::control_file),
];

/// The fixture of a pool that is mapped.
pub fn fixture() -> &'static [u8] {
    include_bytes!("../fixtures/log/1/mapped.pool")
}

const WORKFLOW: &str = include_str!("../examples/gray-scott/workflow.toml");
const ATTRIBUTES: &str = r#"{"schema":"forebay.attributes/1","attributes":{"a":"text","b":1,"c":[1.5,2],
 "d":{"float":"NaN"},"e":true,"f":{"floats":["inf",1]}}}"#;

/// Undamaged inputs of a target, or, for those that change a file, changes that touch what matters.
pub fn samples(target: &str) -> Vec<Vec<u8>> {
    let pool = fixture();
    match target {
        whole if whole.starts_with("space_") => whole_spaces::samples(whole),
        whole if whole.starts_with("checkpoint_") => checkpoints::samples(whole),
        "superblock" => vec![pool[..4096].to_vec()],
        "record" => {
            // Any record of the first segment.
            let starts = (8192..pool.len() - 4096).step_by(64);
            let starts = starts.filter(|at| pool[*at..*at + 4] == RECORD_MAGIC.to_le_bytes());
            starts.map(|at| pool[at..at + 4096].to_vec()).collect()
        }
        "pool" => {
            let filled = (4096..pool.len()).step_by(8).filter(|at| pool[*at..*at + 8] != [0; 8]);
            filled.step_by(16).map(change).collect()
        }
        // The head of the control segment, its first lane, members and granules.
        "control" => [0, 64, 192, 200, 208, 224, 4096, 266_240, 823_296].map(change).to_vec(),
        "workflow" => vec![WORKFLOW.into()],
        _ => vec![ATTRIBUTES.into()],
    }
}

/// The first page of a pool: as it is, and with its checksum made right.
pub fn superblock(data: &[u8]) {
    let _ = Superblock::decode(data);
    let crc = field("SuperblockDf", "crc");
    if data.len() >= crc + 4 {
        let mut page = data.to_vec();
        let right = crc_of(&[&page[..crc]]);
        page[crc..crc + 4].copy_from_slice(&right.to_le_bytes());
        if let Ok(superblock) = Superblock::decode(&page) {
            assert_eq!(Superblock::decode(&superblock.encode()).expect("its own"), superblock);
        }
    }
}

/// A record's header: everything that it says is asked.
pub fn record(data: &[u8]) {
    let mut bytes = data.to_vec();
    for sealed in [false, true] {
        if sealed {
            seal_record(&mut bytes);
        }
        let Some(header) = RecordHeader::decode(&bytes) else { continue };
        let _ = (header.place(), header.kind(), header.dtype(), header.name(), header.commit());
        let _ = (
            header.is_committed(),
            header.total_bytes(),
            forebay_log::verify::payload_damage(&header, &bytes),
        );
        let dims = header.shape().count() + header.start().count() + header.count().count();
        assert_eq!(dims, 3 * header.dims());
    }
}

/// Recovery and verification of a whole pool in which words were changed and checksums made right.
pub fn pool(data: &[u8]) {
    let mut bytes = fixture().to_vec();
    for (at, word) in changes(data, bytes.len()) {
        bytes[at..at + 8].copy_from_slice(&word);
    }
    let superblock = Superblock::decode(fixture()).expect("the fixture");
    seal_pool(&mut bytes);
    let path = folder().join("pool");
    std::fs::write(&path, &bytes).expect("written");
    let device = forebay_tier::open(TierKind::Dram, &path, forebay_tier::Access::Read).expect("opened");
    if let Ok(found) = recover(&*device, &superblock) {
        assert!(found.oldest <= found.complete || found.incarnations.is_empty() || found.segments.is_empty());
    }
    let _ = forebay_log::verify::verify(&*device, &superblock);
}

/// A space with its control segment as it was left, and the bytes of that segment.
fn sample_space() -> &'static (String, PathBuf, Vec<u8>) {
    static SPACE: OnceLock<(String, PathBuf, Vec<u8>)> = OnceLock::new();
    SPACE.get_or_init(|| {
        let name = folder().join("space").display().to_string();
        let options = OpenOptions {
            quota_bytes: Some(8 << 20),
            retention: Some(Retention::Forever),
            component: Some("fuzz".into()),
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(&name, &options).expect("opened");
        for version in 0..3u64 {
            writer.begin_step().expect("begun");
            writer.put_array("x", &[100], &[0], &[100], &[version; 100]).expect("put");
            writer.end_step().expect("ended");
        }
        writer.close().expect("closed");
        let control = Path::new(&name).join("control");
        let bytes = std::fs::read(&control).expect("read");
        (name, control, bytes)
    })
}

/// A control segment in which words were changed: it is soft state without a checksum, in a file of one's own, so what
/// is asked of it may be wrong; but the caller gets an answer.
pub fn control(data: &[u8]) {
    let (name, path, original) = sample_space();
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("opened");
    file.write_all_at(original, 0).expect("written");
    for (at, word) in changes(data, original.len()) {
        file.write_all_at(&word, at as u64).expect("written");
    }
    let _ = forebay_space::inspect(name);
    let options = OpenOptions {
        observer: true,
        component: Some("fuzz".into()),
        timeout: std::time::Duration::from_millis(1),
        ..OpenOptions::default()
    };
    let Ok(mut reader) = Reader::open(name, &options) else { return };
    let Ok(versions) = reader.versions() else { return };
    for version in versions.take(4) {
        if let Ok(mut opened) = reader.open_version(version) {
            let _ = opened.get_array::<u64>("x", None);
            let _ = opened.end_step();
        }
    }
}

/// A workflow file.
pub fn workflow(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = forebay_flow::Workflow::parse(Path::new("workflow.toml"), Path::new("/nowhere"), &text);
}

/// The attributes file of a space.
pub fn attributes(data: &[u8]) {
    let (name, _, _) = sample_space();
    std::fs::write(Path::new(name).join("attributes.json"), data).expect("written");
    let options = OpenOptions { observer: true, component: Some("fuzz".into()), ..OpenOptions::default() };
    let reader = Reader::open(name, &options).expect("attributes are read when they are asked for");
    let _ = reader.attributes();
    let _ = std::fs::remove_file(Path::new(name).join("attributes.json"));
}
