//! `none`: first come, first gone, whatever was touched in between.

use super::list::{Links, Queue};
use super::{Evict, Heat};

/// See the file's head.
pub(super) struct None {
    links: Links,
    queue: Queue,
}

impl None {
    pub(super) fn new(frames: usize) -> None {
        None { links: Links::new(frames), queue: Queue::new(0) }
    }
}

impl Evict for None {
    fn admit(&mut self, frame: u32, _tile: u64) {
        self.queue.push(&mut self.links, frame);
    }

    fn victim(&mut self, _heat: &dyn Heat) -> Option<u32> {
        self.queue.pop(&mut self.links)
    }

    fn keep(&mut self, frame: u32, tile: u64) {
        self.admit(frame, tile);
    }

    fn remove(&mut self, frame: u32) {
        if self.links.queue_of(frame).is_some() {
            self.queue.remove(&mut self.links, frame);
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
