//! What the processes of a round tell past their own death: one 8-byte slot for each fact, in a file that each writes
//! with one call. What a process has told is told, whenever it is killed after that.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most ranks of the writers, and most reader ranks of all groups.
pub const RANKS_MAX: u64 = 8;

/// A fact.
#[derive(Clone, Copy)]
pub enum Slot {
    /// Versions whose `end_step` has returned to this writer rank, and above them its incarnation: what one rank
    /// committed alone is not kept for the next.
    Acknowledged(u64),
    /// One more than the newest version that this reader has read and found right.
    Read(u64),
    /// This reader has been told the end of the stream.
    Ended(u64),
    /// The incarnation in which this writer rank has begun to close.
    Closing(u64),
    /// This reader has joined its group.
    Joined(u64),
    /// What the judge (of one) saw last: 1: a stream that goes on, 2: one that has ended, 0: none.
    Judged(u64),
    /// This keeper (of one) is a member of the space: 1; it is told to leave: 2.
    Keeper(u64),
}

pub struct Board(File);

impl Board {
    pub fn open(path: &Path) -> Board {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        Board(file.expect("the board"))
    }

    fn offset(slot: Slot) -> u64 {
        let (table, index) = match slot {
            Slot::Acknowledged(rank) => (0, rank),
            Slot::Read(reader) => (1, reader),
            Slot::Ended(reader) => (2, reader),
            Slot::Closing(rank) => (3, rank),
            Slot::Keeper(keeper) => (4, keeper),
            Slot::Joined(reader) => (5, reader),
            Slot::Judged(judge) => (6, judge),
        };
        assert!(index < RANKS_MAX);
        (table * RANKS_MAX + index) * 8
    }

    pub fn get(&self, slot: Slot) -> u64 {
        let mut bytes = [0; 8];
        match self.0.read_at(&mut bytes, Self::offset(slot)).expect("readable") {
            8 => u64::from_le_bytes(bytes),
            _ => 0,
        }
    }

    pub fn set(&self, slot: Slot, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), Self::offset(slot)).expect("writable");
    }

    /// What an incarnation's rank says about its versions.
    pub fn acknowledged(incarnation: u64, versions: u64) -> u64 {
        incarnation << 40 | versions
    }

    /// Versions that are known to be complete: all `writers` of one incarnation acknowledged them, or one of `readers`
    /// has read them.
    pub fn complete(&self, writers: u64, readers: u64) -> u64 {
        let said: Vec<u64> = (0..writers).map(|rank| self.get(Slot::Acknowledged(rank))).collect();
        let together = said.iter().all(|word| word >> 40 == said[0] >> 40);
        let acknowledged = said.iter().min().filter(|_| together).map_or(0, |word| word & ((1 << 40) - 1));
        let read = (0..readers).map(|reader| self.get(Slot::Read(reader))).max().unwrap_or(0);
        acknowledged.max(read)
    }

    /// Whether all `writers` of one incarnation have begun to close, so that the stream may have ended.
    pub fn is_closing(&self, writers: u64) -> bool {
        let first = self.get(Slot::Closing(0));
        first > 0 && (0..writers).all(|rank| self.get(Slot::Closing(rank)) == first)
    }

    /// The least value of the first `count` slots of a table.
    pub fn least(&self, slot: fn(u64) -> Slot, count: u64) -> u64 {
        (0..count).map(|index| self.get(slot(index))).min().expect("at least one")
    }
}
