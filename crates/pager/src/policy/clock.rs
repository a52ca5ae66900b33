//! `clock`: the hand passes over what was touched since it came by last, and takes the first that was not.

use super::list::{Links, Queue};
use super::{Evict, Heat};

/// The circle as a queue: what the hand passes over goes to its end.
pub(super) struct Clock {
    links: Links,
    circle: Queue,
}

impl Clock {
    pub(super) fn new(frames: usize) -> Clock {
        Clock { links: Links::new(frames), circle: Queue::new(0) }
    }
}

impl Evict for Clock {
    fn admit(&mut self, frame: u32, _tile: u64) {
        self.circle.push(&mut self.links, frame);
    }

    fn victim(&mut self, heat: &dyn Heat) -> Option<u32> {
        // Two rounds at most: the first one cools everything, pins of others aside.
        for _ in 0..=2 * self.circle.len() {
            let frame = self.circle.pop(&mut self.links)?;
            if heat.get(frame) == 0 {
                return Some(frame);
            }
            heat.set(frame, 0);
            self.circle.push(&mut self.links, frame);
        }
        self.circle.pop(&mut self.links)
    }

    fn keep(&mut self, frame: u32, tile: u64) {
        self.admit(frame, tile);
    }

    fn remove(&mut self, frame: u32) {
        if self.links.queue_of(frame).is_some() {
            self.circle.remove(&mut self.links, frame);
        }
    }

    fn len(&self) -> usize {
        self.circle.len()
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
