//! Checkpoint directories with hostile bytes: everything that is done with one while its program does not run, after a
//! manifest, a commit record, a record of redundancy or the control was changed. For the fuzzers, and for a test with
//! seeded inputs. Not here: `drain`, which writes to the directories that the control names.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use forebay_checkpoint::format::{Commit, Manifest};
use forebay_checkpoint::redundancy::ParityRecord;
use forebay_checkpoint::{advice, control, extract, list, verify, Checkpoint, Dtype, NdBox, Options};
use forebay_tier::checksum::crc32c;

use super::folder;

/// Bytes of each rank's array: three chunks, of which the first changes with every step.
const BYTES: usize = 150_000;

/// A checkpoint directory as its program left it, and the bytes of its small files.
struct Sample {
    base: PathBuf,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Sample {
    fn of(name: &str, level: &str, size: u32) -> Sample {
        let base = folder().join(name);
        let open = |rank| {
            let options = options(level, rank, size);
            let mut checkpoint = Checkpoint::open(&base, &options).expect("opened");
            let part = NdBox::new(&[u64::from(rank) * BYTES as u64], &[BYTES as u64]).expect("a box");
            let shape = [u64::from(size) * BYTES as u64];
            checkpoint.protect("u", Dtype::U8, &shape, &part).expect("protected");
            checkpoint
        };
        let mut ranks: Vec<Checkpoint> = (0..size).map(open).collect();
        let mut bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        for step in 1..=2u64 {
            bytes[0] = step as u8;
            ranks.iter_mut().for_each(|rank| rank.save(step, &[&bytes]).expect("saved"));
            ranks.iter_mut().for_each(|rank| assert_eq!(rank.wait().expect("there"), Some(step)));
        }
        ranks.into_iter().for_each(|rank| rank.close().expect("closed"));
        let mut files = Vec::new();
        small_files(&base, &mut files);
        Sample { base, files }
    }

    /// The file of the newest step whose path ends so.
    fn file(&self, end: &str) -> &(PathBuf, Vec<u8>) {
        let is = |file: &&(PathBuf, Vec<u8>)| file.0.display().to_string().ends_with(end);
        self.files.iter().rfind(is).expect("a file of the sample")
    }

    /// Puts the files back as they were, and then some with other bytes; does what can be done with the directory.
    fn with(&self, changed: &[(&Path, &[u8])]) {
        for (path, bytes) in &self.files {
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, bytes).expect("written");
        }
        changed.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).expect("written"));
        let _ = control(&self.base);
        let _ = list(&self.base);
        let _ = verify(&self.base, None);
        let _ = advice(&self.base, None);
        let _ = extract(&self.base, None, &mut |_, _| Ok(()));
    }
}

fn options(level: &str, rank: u32, size: u32) -> Options {
    Options {
        levels: vec![level.to_string()],
        timeout: Duration::from_secs(60),
        rank,
        size,
        ..Options::default()
    }
}

fn small_files(dir: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let is_data = path.extension().is_some_and(|end| end == "data" || end == "parity");
        match path.is_dir() {
            true => small_files(&path, found),
            false if is_data => {}
            false => found.push((path.clone(), std::fs::read(&path).expect("read"))),
        }
    }
}

/// A full step and one that stands on it.
fn incremental() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| Sample::of("checkpoint", "file,incremental=4,compress=zstd:1", 1))
}

/// Steps of two nodes, each with parity of the other.
fn redundant() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| Sample::of("checkpoint-nodes", "file+rs:1+1", 2))
}

/// Undamaged inputs of a target.
pub fn samples(target: &str) -> Vec<Vec<u8>> {
    let all = |sample: &Sample, end: &str| -> Vec<Vec<u8>> {
        let is = |file: &&(PathBuf, Vec<u8>)| file.0.display().to_string().ends_with(end);
        sample.files.iter().filter(is).map(|file| file.1.clone()).collect()
    };
    match target {
        "checkpoint_manifest" => [all(incremental(), ".manifest"), all(redundant(), ".manifest")].concat(),
        "checkpoint_commit" => [all(incremental(), "/commit"), all(redundant(), "/commit")].concat(),
        "checkpoint_redundancy" => all(redundant(), ".redundancy"),
        _ => [all(incremental(), "/checkpoint.json"), all(redundant(), "/checkpoint.json")].concat(),
    }
}

/// The bytes with their checksum made right.
fn sealed(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if let Some(at) = bytes.len().checked_sub(4) {
        let crc = crc32c(&bytes[..at]);
        bytes[at..].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

/// A manifest: read alone, then as that of a step whose commit record names it.
pub fn manifest(data: &[u8]) {
    let _ = Manifest::decode(data);
    let bytes = sealed(data);
    let Ok(found) = Manifest::decode(&bytes) else { return };
    assert_eq!(Manifest::decode(&found.encode()).expect("its own"), found);
    let sample = incremental();
    let (path, _) = sample.file("00000.manifest");
    let (record, original) = sample.file("/commit");
    let mut commit = Commit::decode(original).expect("the sample");
    commit.ranks[0].manifest_bytes = bytes.len() as u64;
    commit.ranks[0].data_bytes = found.data_bytes;
    commit.ranks[0].manifest_crc = u32::from_le_bytes(bytes[bytes.len() - 4..].try_into().expect("four"));
    commit.ranks[0].base = found.base.map(|base| base.step);
    sample.with(&[(path, &bytes), (record, &commit.encode())]);
}

/// A commit record.
pub fn commit(data: &[u8]) {
    let _ = Commit::decode(data);
    let bytes = sealed(data);
    if let Ok(found) = Commit::decode(&bytes) {
        assert_eq!(Commit::decode(&found.encode()).expect("its own"), found);
        for sample in [incremental(), redundant()] {
            sample.with(&[(&sample.file("/commit").0, &bytes)]);
        }
    }
}

/// A record of redundancy, with the file of a piece that it protects gone.
pub fn redundancy(data: &[u8]) {
    let _ = ParityRecord::decode(data);
    let bytes = sealed(data);
    if let Ok(found) = ParityRecord::decode(&bytes) {
        assert_eq!(ParityRecord::decode(&found.encode()).expect("its own"), found);
        let sample = redundant();
        let (record, manifest) = (&sample.file(".redundancy").0, &sample.file("00000.manifest").0);
        sample.with(&[(record, &bytes), (manifest, b"")]);
    }
}

/// `checkpoint.json`; then its program starts again.
pub fn control_file(data: &[u8]) {
    let sample = incremental();
    sample.with(&[(&sample.file("/checkpoint.json").0, data)]);
    if let Ok(checkpoint) = Checkpoint::open(&sample.base, &options("file,incremental=4", 0, 1)) {
        let _ = checkpoint.close();
    }
}
