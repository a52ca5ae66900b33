//! The file `cursors` beside a pool on a file system: reader groups that keep a cursor, and how far each of their ranks
//! has got, for the control segment that is made anew after a reboot.
//!
//! Guarantees: a record of a group is written to one of two slots in turn and has a checksum, so that one that was torn
//! leaves the one before; a cursor is one aligned word of 8 bytes that checks itself. At a durable horizon what was
//! written is on the medium when the call returns. While the control segment lives, nothing is read from the file.
//! Not here: what a cursor means ([`crate::open::groups`]). Layout: docs/src/formats/cursors.md.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_log::format::Layout;
use forebay_tier::checksum::crc32c;
use forebay_tier::host::fs::File;
use forebay_tier::plain::{open_regular, open_regular_or_make};
use forebay_tier::{Error, Kind, Result};

use super::layout::{CURSORS_MAX, GROUPS_MAX, GROUP_RANKS_MAX, NAME_BYTES};
use crate::place::whole_file::sync_directory_of;

/// Name of the file.
pub(crate) const CURSORS_FILE: &str = "cursors";
/// "FOREBAYR", the first word.
const MAGIC: u64 = u64::from_le_bytes(*b"FOREBAYR");
/// Version of this layout.
const VERSION: u32 = 1;

/// What to do with one that is damaged.
const WITHOUT_IT: &str =
    "remove this file to continue without it: reader groups then begin at the oldest retained version";

const HEAD_BYTES: usize = 32;
const GROUPS_AT: u64 = 4096;
const GROUP_BYTES: usize = 128;
const CURSORS_AT: u64 = GROUPS_AT + 2 * (GROUPS_MAX * GROUP_BYTES) as u64;
const FILE_BYTES: u64 = CURSORS_AT + (CURSORS_MAX * 8) as u64;

/// Bits of a cursor that hold its version; above them stands its sum.
const VERSION_BITS: u32 = 40;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;
/// The version of a rank that has left its group for good.
const LEFT: u64 = VERSION_MASK;

/// What a cursor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cursor {
    /// No rank has this word.
    Free,
    /// The rank has ended every version below this one.
    At(u64),
    /// The rank has left its group for good and holds nothing.
    Left,
    /// Nothing that was ever stored.
    Damaged,
}

impl Cursor {
    /// The word `index` of the table.
    pub(crate) fn word(self, index: usize) -> u64 {
        let version = match self {
            Cursor::Free | Cursor::Damaged => return 0,
            Cursor::At(version) => version.min(LEFT - 1),
            Cursor::Left => LEFT,
        };
        sum(index, version) << VERSION_BITS | version
    }

    /// What the word `index` of the table says.
    pub(crate) fn of_word(index: usize, word: u64) -> Cursor {
        let version = word & VERSION_MASK;
        match word {
            0 => Cursor::Free,
            _ if word >> VERSION_BITS != sum(index, version) => Cursor::Damaged,
            _ if version == LEFT => Cursor::Left,
            _ => Cursor::At(version),
        }
    }
}

/// 24 bits, never 0.
fn sum(index: usize, version: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(index as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&version.to_le_bytes());
    u64::from(crc32c(&bytes)) & 0xff_ffff | 1 << 23
}

/// A reader group as the file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub name: String,
    pub size: u32,
    /// As in the control segment.
    pub policy: u32,
    /// First of its cursors.
    pub first: u64,
    /// Whether a rank of it was ever there.
    pub came: bool,
}

impl GroupRecord {
    /// Of a group that was removed, or that keeps no cursor.
    fn none() -> GroupRecord {
        GroupRecord { name: String::new(), size: 0, policy: 0, first: 0, came: false }
    }

    /// The places of its cursors in their table; None where no group has those.
    pub(crate) fn places(&self) -> Option<Range<usize>> {
        let end = self.first.checked_add(u64::from(self.size)).filter(|end| *end <= CURSORS_MAX as u64)?;
        (self.size <= GROUP_RANKS_MAX).then_some(self.first as usize..end as usize)
    }

    fn encode(&self, sequence: u64) -> [u8; GROUP_BYTES] {
        let mut out = [0; GROUP_BYTES];
        out[0..8].copy_from_slice(&sequence.to_le_bytes());
        out[8..12].copy_from_slice(&self.size.to_le_bytes());
        out[12..16].copy_from_slice(&self.policy.to_le_bytes());
        out[16..24].copy_from_slice(&self.first.to_le_bytes());
        out[28..32].copy_from_slice(&u32::from(self.came).to_le_bytes());
        let name = self.name.as_bytes();
        out[64..64 + name.len().min(NAME_BYTES)].copy_from_slice(&name[..name.len().min(NAME_BYTES)]);
        let crc = crc32c(&out);
        out[24..28].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Sequence and record of a slot; None where it was never written, or was torn.
    fn decode(bytes: &[u8; GROUP_BYTES]) -> Option<(u64, GroupRecord)> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let mut summed = *bytes;
        summed[24..28].fill(0);
        // No record is the last one there can be: the next one has a higher number.
        if word(0) == 0 || word(0) == u64::MAX || crc32c(&summed) != half(24) {
            return None;
        }
        let name = &bytes[64..];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        let name = String::from_utf8(name[..end].to_vec()).ok()?;
        let record =
            GroupRecord { name, size: half(8), policy: half(12), first: word(16), came: half(28) != 0 };
        (record.places().is_some() && half(12) <= 3).then_some((word(0), record))
    }
}

/// The groups of a file, by their index, and all cursors.
pub(crate) struct Found {
    pub groups: Vec<(usize, GroupRecord)>,
    words: Vec<u8>,
}

impl Found {
    /// What the word `index` of the table says.
    pub(crate) fn cursor(&self, index: usize) -> Cursor {
        let bytes = &self.words[index * 8..index * 8 + 8];
        Cursor::of_word(index, u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }
}

/// An open file.
pub(crate) struct CursorsFile {
    file: File,
    path: PathBuf,
    is_durable: bool,
}

impl CursorsFile {
    /// The file in `dir`, made where it is missing. The caller holds the setup lock.
    pub(crate) fn open(dir: &Path, uuid: &[u8; 16], is_durable: bool) -> Result<CursorsFile> {
        let path = dir.join(CURSORS_FILE);
        let file = open_regular_or_make(&path).map_err(|e| not_opened(&path, e))?;
        let this = CursorsFile { file, path, is_durable };
        let mut head = [0; HEAD_BYTES];
        if !read_or_zeros(&this.file, &mut head, 0).map_err(|e| this.failed("reading", e))?
            || head == [0; HEAD_BYTES]
        {
            // Made just now, or by a process that was killed, or failed, before it wrote the head: which comes last, so
            // that a file that has one is there after a power failure.
            this.file.set_len(FILE_BYTES).map_err(|e| this.failed("sizing", e))?;
            if is_durable {
                sync_directory_of(&this.path).map_err(|e| this.failed("syncing the directory of", e))?;
            }
            this.write(&encode_head(uuid), 0)?;
            this.sync()?;
        }
        Ok(this)
    }

    /// What the file in `dir` holds; None where there is none.
    ///
    /// # Errors
    /// `Damaged`, `UnknownFormat`; those of the operating system.
    pub(crate) fn read(dir: &Path, uuid: &[u8; 16]) -> Result<Option<Found>> {
        let path = dir.join(CURSORS_FILE);
        let file = match open_regular(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|e| not_opened(&path, e))?,
        };
        let this = CursorsFile { file, path, is_durable: false };
        let failed = |e| this.failed("reading", e);
        let mut head = [0; HEAD_BYTES];
        if !read_or_zeros(&this.file, &mut head, 0).map_err(failed)? || head == [0; HEAD_BYTES] {
            return Ok(None);
        }
        check_head(&head, uuid).map_err(|e| e.with("file", this.path.display()).hint(WITHOUT_IT))?;
        // The head is written when the file has its length.
        let bytes = this.file.metadata().map_err(failed)?.len();
        if bytes < FILE_BYTES {
            let error = Error::new(Kind::Damaged, "the file of cursors is truncated");
            let error =
                error.with("file", this.path.display()).with("bytes", bytes).with("expected", FILE_BYTES);
            return Err(error.hint(WITHOUT_IT));
        }
        let mut groups = Vec::new();
        for index in 0..GROUPS_MAX {
            match this.newest(index)? {
                Ok(Some((_, record))) if record.size > 0 => groups.push((index, record)),
                Ok(_) => {}
                Err(()) => return Err(this.damaged(&format!("reader group {index}"))),
            }
        }
        let mut words = vec![0; CURSORS_MAX * 8];
        read_or_zeros(&this.file, &mut words, CURSORS_AT).map_err(failed)?;
        Ok(Some(Found { groups, words }))
    }

    fn damaged(&self, what: &str) -> Error {
        Error::new(Kind::Damaged, format!("{what} in the file of cursors does not match its checksum"))
            .with("file", self.path.display())
            .hint(WITHOUT_IT)
    }

    fn failed(&self, what: &str, e: std::io::Error) -> Error {
        Error::io(format!("{what} {}", self.path.display()), e)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|e| self.failed("writing", e))
    }

    /// Makes what was written durable, where the space is.
    pub(crate) fn sync(&self) -> Result<()> {
        match self.is_durable {
            true => self.file.sync_data().map_err(|e| self.failed("syncing", e)),
            false => Ok(()),
        }
    }

    /// Sequence and record of a group, of the newer slot that is whole; an error where both were written and none is.
    #[allow(clippy::type_complexity)]
    fn newest(&self, index: usize) -> Result<std::result::Result<Option<(u64, GroupRecord)>, ()>> {
        let mut found: Option<(u64, GroupRecord)> = None;
        let mut torn = 0;
        for slot in 0..2 {
            let mut bytes = [0; GROUP_BYTES];
            read_or_zeros(&self.file, &mut bytes, slot_at(index, slot))
                .map_err(|e| self.failed("reading", e))?;
            match GroupRecord::decode(&bytes) {
                Some(slot) if found.as_ref().is_none_or(|found| found.0 < slot.0) => found = Some(slot),
                Some(_) => {}
                None => torn += u32::from(bytes != [0; GROUP_BYTES]),
            }
        }
        // The first record of a group may be torn, and is then none; a second one follows it in the other slot.
        Ok(if found.is_none() && torn == 2 { Err(()) } else { Ok(found) })
    }

    /// Replaces the record of a group; None: it keeps no cursor any more. The caller holds the setup lock.
    pub(crate) fn set_group(&self, index: usize, record: Option<&GroupRecord>) -> Result<()> {
        let known = self.newest(index)?.map_err(|()| self.damaged(&format!("reader group {index}")))?;
        let none = GroupRecord::none();
        let record = record.unwrap_or(&none);
        if known.as_ref().map_or(&none, |known| &known.1) == record {
            return Ok(());
        }
        let sequence = known.map_or(1, |known| known.0 + 1);
        self.write(&record.encode(sequence), slot_at(index, sequence % 2))?;
        self.sync()
    }

    /// Stores the word `index` of the table of cursors; durable after [`CursorsFile::sync`].
    pub(crate) fn set_cursor(&self, index: usize, cursor: Cursor) -> Result<()> {
        self.write(&cursor.word(index).to_le_bytes(), CURSORS_AT + index as u64 * 8)
    }
}

/// Why a file could not be opened.
fn not_opened(path: &Path, e: std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::InvalidInput => {
            Error::new(Kind::Damaged, format!("{} is not a regular file", path.display())).hint(WITHOUT_IT)
        }
        _ => Error::io(format!("cannot open {}", path.display()), e),
    }
}

fn slot_at(index: usize, slot: u64) -> u64 {
    GROUPS_AT + (2 * index as u64 + slot) * GROUP_BYTES as u64
}

fn encode_head(uuid: &[u8; 16]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC.to_le_bytes());
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[16..].copy_from_slice(uuid);
    let crc = crc32c(&head);
    head[12..16].copy_from_slice(&crc.to_le_bytes());
    head
}

fn check_head(head: &[u8; HEAD_BYTES], uuid: &[u8; 16]) -> Result<()> {
    let version = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
    if head[..8] == MAGIC.to_le_bytes() && version > VERSION {
        return Err(Error::new(Kind::UnknownFormat, "the file of cursors has a later version")
            .with("version", version)
            .with("known_version", VERSION));
    }
    match *head == encode_head(uuid) {
        true => Ok(()),
        false => Err(Error::new(Kind::Damaged, "the file of cursors is damaged, or of another pool")),
    }
}

/// Fills `out` from the file, with zeros behind its end. False where nothing was read.
fn read_or_zeros(file: &File, out: &mut [u8], at: u64) -> std::io::Result<bool> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    out[done..].fill(0);
    Ok(done > 0)
}

/// Every struct of the file, for `cargo xtask formats`.
pub fn cursor_layouts() -> Vec<Layout> {
    let head = vec![("magic", 0, 8), ("version", 8, 4), ("crc", 12, 4), ("uuid", 16, 16)];
    let group = vec![
        ("sequence", 0, 8),
        ("size", 8, 4),
        ("policy", 12, 4),
        ("first", 16, 8),
        ("crc", 24, 4),
        ("came", 28, 4),
        ("reserved", 32, 32),
        ("name", 64, 64),
    ];
    vec![
        Layout { name: "CursorsHead", size: HEAD_BYTES, fields: head },
        Layout { name: "CursorsGroup", size: GROUP_BYTES, fields: group },
        Layout { name: "CursorsCursor", size: 8, fields: vec![("cursor", 0, 8)] },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, size: u32) -> GroupRecord {
        GroupRecord { name: name.into(), size, policy: 1, first: 3, came: false }
    }

    #[test]
    fn a_flipped_bit_of_a_cursor_is_damage() {
        for cursor in [Cursor::At(0), Cursor::At(1 << 39), Cursor::Left] {
            let word = cursor.word(5);
            assert_eq!(Cursor::of_word(5, word), cursor);
            assert_eq!(Cursor::of_word(6, word), Cursor::Damaged, "of another rank");
            for bit in 0..64 {
                assert_eq!(Cursor::of_word(5, word ^ 1 << bit), Cursor::Damaged, "bit {bit} of {cursor:?}");
            }
        }
        assert_eq!(Cursor::of_word(5, 0), Cursor::Free);
    }

    /// The record that follows it would have a lower number, and never be the newest.
    #[test]
    fn a_record_with_the_highest_number_is_none() {
        let record = record("viz", 1);
        assert_eq!(GroupRecord::decode(&record.encode(u64::MAX - 1)), Some((u64::MAX - 1, record.clone())));
        assert_eq!(GroupRecord::decode(&record.encode(u64::MAX)), None);
    }

    /// Its checksum is right, what it says lies outside the table.
    #[test]
    fn a_record_with_cursors_outside_the_table_is_none() {
        let whole =
            GroupRecord { name: "viz".into(), size: 1, policy: 1, first: CURSORS_MAX as u64 - 1, came: true };
        assert_eq!(GroupRecord::decode(&whole.encode(1)), Some((1, whole.clone())));
        for (first, size) in [(u64::MAX, 1), (u64::MAX, u32::MAX), (CURSORS_MAX as u64, 1), (0, 5000)] {
            let record = GroupRecord { first, size, ..whole.clone() };
            assert_eq!(GroupRecord::decode(&record.encode(1)), None, "{first}, {size}");
        }
    }

    #[test]
    fn a_truncated_file_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let uuid = [9; 16];
        let file = CursorsFile::open(dir.path(), &uuid, true).unwrap();
        file.set_group(2, Some(&record("viz", 2))).unwrap();
        for bytes in [31, 32, GROUPS_AT, CURSORS_AT, FILE_BYTES - 1] {
            file.file.set_len(FILE_BYTES).unwrap();
            assert!(CursorsFile::read(dir.path(), &uuid).is_ok());
            file.file.set_len(bytes).unwrap();
            let error = CursorsFile::read(dir.path(), &uuid).err().unwrap();
            assert_eq!(error.kind(), Kind::Damaged, "{bytes} bytes: {error}");
            file.write(&encode_head(&uuid), 0).unwrap();
        }
        // As a process leaves it that was killed before it gave the file its length.
        file.file.set_len(0).unwrap();
        assert!(CursorsFile::read(dir.path(), &uuid).unwrap().is_none());
    }

    #[test]
    fn what_is_no_file_is_damage_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(dir.path().join(CURSORS_FILE)).status().unwrap();
        assert!(made.success());
        assert_eq!(CursorsFile::read(dir.path(), &[9; 16]).err().unwrap().kind(), Kind::Damaged);
        assert_eq!(CursorsFile::open(dir.path(), &[9; 16], true).err().unwrap().kind(), Kind::Damaged);
    }

    #[test]
    fn a_torn_record_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let uuid = [9; 16];
        assert!(CursorsFile::read(dir.path(), &uuid).unwrap().is_none());
        let file = CursorsFile::open(dir.path(), &uuid, true).unwrap();
        file.set_group(2, Some(&record("viz", 2))).unwrap();
        file.set_cursor(3, Cursor::At(11)).unwrap();
        file.set_group(2, Some(&record("viz", 4))).unwrap();
        let found = CursorsFile::read(dir.path(), &uuid).unwrap().unwrap();
        assert_eq!(found.groups, [(2, record("viz", 4))]);
        assert_eq!((found.cursor(3), found.cursor(4)), (Cursor::At(11), Cursor::Free));
        // The second record is in slot 0, the first in slot 1.
        file.file.write_all_at(&[0xff], slot_at(2, 0) + 40).unwrap();
        let found = CursorsFile::read(dir.path(), &uuid).unwrap().unwrap();
        assert_eq!(found.groups, [(2, record("viz", 2))]);
        file.file.write_all_at(&[0xff], slot_at(2, 1) + 40).unwrap();
        assert_eq!(CursorsFile::read(dir.path(), &uuid).err().unwrap().kind(), Kind::Damaged);
        assert_eq!(
            CursorsFile::read(dir.path(), &[8; 16]).err().unwrap().kind(),
            Kind::Damaged,
            "of another pool"
        );
    }

    /// What a later release has to read.
    #[test]
    fn the_fixture_is_what_is_written() {
        let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/cursors/1"));
        let uuid = *b"cursors, fixture";
        let written = tempfile::tempdir().unwrap();
        let file = CursorsFile::open(written.path(), &uuid, false).unwrap();
        let record = |name: &str, size, policy, first| GroupRecord {
            name: name.into(),
            size,
            policy,
            first,
            came: false,
        };
        file.set_group(0, Some(&record("viz", 1, 1, 0))).unwrap();
        file.set_group(0, Some(&record("viz", 2, 3, 0))).unwrap();
        file.set_group(5, Some(&record("größer", 1, 2, 2))).unwrap();
        for (place, cursor) in [(0, Cursor::At(0)), (1, Cursor::At(1 << 33)), (2, Cursor::Left)] {
            file.set_cursor(place, cursor).unwrap();
        }
        let bytes = std::fs::read(written.path().join(CURSORS_FILE)).unwrap();
        assert!(
            bytes == std::fs::read(fixtures.join("good").join(CURSORS_FILE)).unwrap(),
            "other bytes are written"
        );
        let found = CursorsFile::read(&fixtures.join("good"), &uuid).unwrap().unwrap();
        assert_eq!(found.groups, [(0, record("viz", 2, 3, 0)), (5, record("größer", 1, 2, 2))]);
        let cursors = [0, 1, 2, 3].map(|place| found.cursor(place));
        assert_eq!(cursors, [Cursor::At(0), Cursor::At(1 << 33), Cursor::Left, Cursor::Free]);
        let kind = |sample: &str| CursorsFile::read(&fixtures.join(sample), &uuid).err().unwrap().kind();
        assert_eq!(kind("damaged-head"), Kind::Damaged);
        assert_eq!(kind("unknown-version"), Kind::UnknownFormat);
        let torn = CursorsFile::read(&fixtures.join("torn-record"), &uuid).unwrap().unwrap();
        assert_eq!(torn.groups[0], (0, record("viz", 1, 1, 0)), "the record before");
    }

    #[test]
    fn a_group_that_was_removed_is_not_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = CursorsFile::open(dir.path(), &[1; 16], false).unwrap();
        file.set_group(0, Some(&record("viz", 1))).unwrap();
        file.set_group(0, None).unwrap();
        assert!(CursorsFile::read(dir.path(), &[1; 16]).unwrap().unwrap().groups.is_empty());
    }
}
