//! `s3fifo`: three queues (Yang, Zhang, Qiu, Yue, Vinayak: "FIFO queues are all you need for cache eviction", SOSP
//! 2023).
//!
//! A tile enters the *small* queue, a tenth of the frames. Touched again there it moves to the *main* one, else it
//! leaves and only its hash stays, in the *ghost*; a tile that comes back while it is there enters *main* at once. In
//! *main* a touched tile gets another round and loses one degree of heat.

use super::list::{self, Links, Queue};
use super::{Evict, Heat};

const SMALL: u8 = 0;
const MAIN: u8 = 1;

/// Bytes of one entry of the ghost.
pub(super) const GHOST_BYTES: usize = std::mem::size_of::<(u32, u32)>();

/// See the file's head.
pub(super) struct S3Fifo {
    links: Links,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    /// Which tile each frame holds, by its hash's upper half (what the ghost keeps) and lower half (where).
    tiles: Vec<u64>,
}

/// Hashes of the tiles that left *small* last. One place for each hash: a newer one takes it from an older one.
struct Ghost {
    /// Upper half of the hash, and the turn in which it came (0: empty).
    places: Vec<(u32, u32)>,
    turn: u32,
    /// An entry is alive for that many turns.
    turns: u32,
}

impl Ghost {
    fn places_of(frames: usize) -> usize {
        (2 * frames).next_power_of_two()
    }

    fn new(frames: usize) -> Ghost {
        Ghost { places: vec![(0, 0); Ghost::places_of(frames)], turn: 0, turns: frames.max(1) as u32 }
    }

    fn place(&self, tile: u64) -> usize {
        tile as usize & (self.places.len() - 1)
    }

    fn add(&mut self, tile: u64) {
        // After 2^32 turns the oldest entries look young for a while: only a worse guess.
        self.turn = self.turn.wrapping_add(1).max(1);
        let at = self.place(tile);
        self.places[at] = ((tile >> 32) as u32, self.turn);
    }

    /// Whether the tile is here; it leaves.
    fn take(&mut self, tile: u64) -> bool {
        let at = self.place(tile);
        let (hash, turn) = self.places[at];
        let here = turn != 0 && hash == (tile >> 32) as u32 && self.turn.wrapping_sub(turn) < self.turns;
        if here {
            self.places[at] = (0, 0);
        }
        here
    }
}

impl S3Fifo {
    pub(super) fn new(frames: usize) -> S3Fifo {
        S3Fifo {
            links: Links::new(frames),
            small: Queue::new(SMALL),
            main: Queue::new(MAIN),
            ghost: Ghost::new(frames),
            tiles: vec![0; frames],
        }
    }

    /// Bytes that it takes for so many frames.
    pub(super) fn bytes_of(frames: usize) -> usize {
        let known = list::FRAME_BYTES + std::mem::size_of::<u64>();
        frames * known + Ghost::places_of(frames) * GHOST_BYTES
    }

    /// Whether *small* has more than its tenth.
    fn small_is_full(&self) -> bool {
        self.small.len() > 0 && (self.main.len() == 0 || self.small.len() * 10 >= Evict::len(self))
    }
}

impl Evict for S3Fifo {
    fn admit(&mut self, frame: u32, tile: u64) {
        self.tiles[frame as usize] = tile;
        let queue = if self.ghost.take(tile) { &mut self.main } else { &mut self.small };
        queue.push(&mut self.links, frame);
    }

    fn victim(&mut self, heat: &dyn Heat) -> Option<u32> {
        // Each step moves a frame from small to main or cools one, so that it ends, pins of others aside.
        for _ in 0..8 * Evict::len(self) {
            if self.small_is_full() {
                let frame = self.small.pop(&mut self.links)?;
                if heat.get(frame) > 1 {
                    heat.set(frame, 0);
                    self.main.push(&mut self.links, frame);
                    continue;
                }
                self.ghost.add(self.tiles[frame as usize]);
                return Some(frame);
            }
            let frame = self.main.pop(&mut self.links)?;
            match heat.get(frame) {
                0 => return Some(frame),
                warm => heat.set(frame, warm - 1),
            }
            self.main.push(&mut self.links, frame);
        }
        self.main.pop(&mut self.links).or_else(|| self.small.pop(&mut self.links))
    }

    fn keep(&mut self, frame: u32, tile: u64) {
        self.tiles[frame as usize] = tile;
        self.ghost.take(tile);
        self.main.push(&mut self.links, frame);
    }

    fn remove(&mut self, frame: u32) {
        match self.links.queue_of(frame) {
            Some(SMALL) => self.small.remove(&mut self.links, frame),
            Some(_) => self.main.remove(&mut self.links, frame),
            None => {}
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let tiles = self.tiles.capacity() * std::mem::size_of::<u64>();
        self.links.bytes() + tiles + self.ghost.places.capacity() * GHOST_BYTES
    }
}
