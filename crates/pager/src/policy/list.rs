//! Queues of frames that share one array of links, so that a frame leaves its queue wherever it stands.

/// No frame.
const NONE: u32 = u32::MAX;

/// Bytes of the links of one frame.
pub(super) const FRAME_BYTES: usize = 2 * std::mem::size_of::<u32>() + std::mem::size_of::<u8>();

/// Links of every frame; a frame is in one queue at most.
pub(super) struct Links {
    next: Vec<u32>,
    before: Vec<u32>,
    /// Queue of the frame plus 1; 0: none.
    queue: Vec<u8>,
}

/// A first-in first-out queue over [`Links`].
pub(super) struct Queue {
    number: u8,
    first: u32,
    last: u32,
    len: usize,
}

impl Links {
    pub(super) fn new(frames: usize) -> Links {
        Links { next: vec![NONE; frames], before: vec![NONE; frames], queue: vec![0; frames] }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let links = self.next.capacity() + self.before.capacity();
        links * std::mem::size_of::<u32>() + self.queue.capacity()
    }

    /// Which queue holds the frame.
    pub(super) fn queue_of(&self, frame: u32) -> Option<u8> {
        self.queue[frame as usize].checked_sub(1)
    }
}

impl Queue {
    pub(super) fn new(number: u8) -> Queue {
        Queue { number, first: NONE, last: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, links: &mut Links, frame: u32) {
        let at = frame as usize;
        assert_eq!(links.queue[at], 0, "a frame is in one queue");
        (links.queue[at], links.next[at], links.before[at]) = (self.number + 1, NONE, self.last);
        match self.last {
            NONE => self.first = frame,
            last => links.next[last as usize] = frame,
        }
        self.last = frame;
        self.len += 1;
    }

    pub(super) fn pop(&mut self, links: &mut Links) -> Option<u32> {
        let first = (self.first != NONE).then_some(self.first)?;
        self.remove(links, first);
        Some(first)
    }

    /// Takes out a frame of this queue.
    pub(super) fn remove(&mut self, links: &mut Links, frame: u32) {
        let at = frame as usize;
        assert_eq!(links.queue[at], self.number + 1, "a frame of this queue");
        let (before, next) = (links.before[at], links.next[at]);
        match before {
            NONE => self.first = next,
            before => links.next[before as usize] = next,
        }
        match next {
            NONE => self.last = before,
            next => links.before[next as usize] = before,
        }
        links.queue[at] = 0;
        self.len -= 1;
    }
}
