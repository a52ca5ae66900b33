//! Models of a segment that moves: a mover that copies, publishes, and uses the old place for something else, and a
//! reader that takes a lease and looks the segment up. And the ledger's rule: to choose a segment and to begin its
//! move is one step.

use std::rc::Rc;
use std::sync::atomic::Ordering::Acquire;

use forebay_log::reclaim::Segment;
use forebay_log::Ledger;
use forebay_tier::adapter::sim::{Medium, Sim};
use forebay_tier::Horizon;
use loom::sync::Mutex;
use loom::thread::spawn;

use crate::protocol::{self, HOLDS_NOTHING};
use crate::words::{Payload, Word};

/// Owner words: the numbers mean nothing to the protocol.
const FREE: u64 = 0;
const SEGMENT: u64 = 1;
const LEAVING: u64 = 2;

/// A segment at place 0 that moves to place 1, and the lease of a reader: from which version to which.
struct Move {
    owner: [Word; 2],
    payload: [Payload; 2],
    lease: (Word, Word),
    oldest: Word,
}

impl Move {
    fn new(lease: (u64, u64)) -> Rc<Move> {
        Rc::new(Move {
            owner: [Word::new(SEGMENT), Word::new(FREE)],
            payload: [Payload::new(1), Payload::new(0)],
            lease: (Word::new(lease.0), Word::new(lease.1)),
            oldest: Word::new(0),
        })
    }

    fn lease(&self) -> (&Word, &Word) {
        (&self.lease.0, &self.lease.1)
    }

    /// What a mover does with a segment of versions `versions`; then the old place gets other data.
    fn relocate(&self, versions: (u64, u64)) {
        self.payload[1].write(self.payload[0].read());
        protocol::publish_move((&self.owner[1], SEGMENT), (&self.owner[0], LEAVING));
        if protocol::is_deserted([self.lease()].into_iter(), versions, |_| true) {
            self.payload[0].write(2);
            protocol::hand_over(&self.owner[0], FREE);
        }
    }

    /// Where a reader finds the segment that looks at the places in this order.
    fn locate(&self, order: [usize; 2], counts: impl Fn(u64) -> bool) -> Option<usize> {
        order.into_iter().find(|place| counts(protocol::look_at(&self.owner[*place])))
    }

    /// A reader takes a lease, finds the segment, and reads it; a place counts by its owner word.
    fn read(&self, order: [usize; 2], counts: impl Fn(u64) -> bool) {
        assert!(protocol::hold_range(self.lease(), (5, 5), &self.oldest, 5));
        // Between the looks at two places the segment may go from the second to the first; it goes once.
        let place = self.locate(order, &counts).or_else(|| self.locate(order, &counts));
        let place = place.expect("a segment that moves is at one of the two places");
        assert_eq!(self.payload[place].read(), 1, "the reader's place was used for something else");
        protocol::release_range(self.lease(), (HOLDS_NOTHING, 0));
    }
}

fn read_while_moved(order: [usize; 2], counts: impl Fn(u64) -> bool) {
    let shared = Move::new((HOLDS_NOTHING, 0));
    let mover = {
        let shared = shared.clone();
        spawn(move || shared.relocate((4, 6)))
    };
    shared.read(order, counts);
    mover.join().unwrap();
}

/// A segment moves while a reader takes a lease and looks it up: it is found, and what was found stays.
pub fn found_and_kept() {
    read_while_moved([0, 1], |owner| owner == SEGMENT);
}

/// The same for a reader that comes by the new place before it looks at the old one.
pub fn found_the_other_way_round() {
    read_while_moved([1, 0], |owner| owner == SEGMENT);
}

/// Wrong: a place that is being left counts too, as it can still be read.
pub fn leaving_counts() {
    read_while_moved([0, 1], |owner| owner != FREE);
}

/// A reader lets go of the newest of its versions, those of the segment, and takes another: what it read is read.
pub fn let_go_of_the_newest() {
    let shared = Move::new((5, 7));
    let mover = {
        let shared = shared.clone();
        spawn(move || shared.relocate((7, 7)))
    };
    assert_eq!(shared.payload[0].read(), 1);
    protocol::release_range(shared.lease(), (5, 5));
    assert!(protocol::hold_range(shared.lease(), (5, 6), &shared.oldest, 6));
    mover.join().unwrap();
}

/// The same for the oldest of its versions.
pub fn let_go_of_the_oldest() {
    let shared = Move::new((5, 7));
    let mover = {
        let shared = shared.clone();
        spawn(move || shared.relocate((5, 5)))
    };
    assert_eq!(shared.payload[0].read(), 1);
    protocol::release_range(shared.lease(), (7, 7));
    mover.join().unwrap();
}

/// A reader that held nothing takes a lease on one version, and one on a newer one, whose segment is being moved: the
/// mover that sees the first must know of the second.
pub fn newest_is_never_too_low() {
    let shared = Move::new((HOLDS_NOTHING, 0));
    let mover = {
        let shared = shared.clone();
        spawn(move || shared.relocate((7, 7)))
    };
    assert!(protocol::hold_range(shared.lease(), (5, 5), &shared.oldest, 5));
    assert!(protocol::hold_range(shared.lease(), (5, 7), &shared.oldest, 7));
    if protocol::look_at(&shared.owner[0]) == SEGMENT {
        assert_eq!(shared.payload[0].read(), 1);
    }
    mover.join().unwrap();
}

/// Granules of the lane whose ledger is modelled.
const GRANULE: u64 = 4096;

/// A lane of two closed segments and the one being written, of one version each, and the places of the first two.
struct Lane {
    ledger: Mutex<Ledger>,
    payload: [Payload; 2],
    device: Sim,
}

impl Lane {
    fn new() -> Rc<Lane> {
        let mut ledger = Ledger::default();
        (0..3).for_each(|n| ledger.push(n * GRANULE..(n + 1) * GRANULE, n));
        let device = Sim::in_memory(&[0; 3 * GRANULE as usize], Medium::Lines).expect("memory");
        Rc::new(Lane { ledger: Mutex::new(ledger), payload: [Payload::new(1), Payload::new(1)], device })
    }

    /// The producer frees what was released, and writes there.
    fn reclaim(&self) {
        let mut free = Vec::new();
        let mut ledger = self.ledger.lock().unwrap();
        let keep = |range: std::ops::Range<u64>| {
            free.push(range);
            Ok(())
        };
        ledger.reclaim(&self.device, Horizon::None, 2, keep).expect("memory takes it");
        drop(ledger);
        for range in free {
            self.payload[(range.start / GRANULE) as usize].write(2);
        }
    }

    fn copy(&self, segment: &Segment) {
        assert_eq!(
            self.payload[(segment.range.start / GRANULE) as usize].read(),
            1,
            "copied what is written"
        );
    }
}

fn move_while_reclaimed(begin: impl Fn(&Lane) -> Option<Segment> + 'static) {
    let lane = Lane::new();
    let mover = {
        let lane = lane.clone();
        spawn(move || {
            let Some(segment) = begin(&lane) else { return };
            lane.copy(&segment);
            lane.ledger.lock().unwrap().end_move(segment.range.start, None);
        })
    };
    lane.reclaim();
    mover.join().unwrap();
}

/// A segment is released and written anew, unless its move has begun: then it stays.
pub fn begun_stays() {
    move_while_reclaimed(|lane| lane.ledger.lock().unwrap().begin_move(2, |s| Some(s.first_version)));
}

/// Wrong: the mover looks which segment it wants, lets go of the ledger, and comes again to begin.
pub fn chosen_and_begun_in_two_steps() {
    move_while_reclaimed(|lane| {
        let chosen = lane.ledger.lock().unwrap().segments().next().cloned()?;
        lane.ledger.lock().unwrap().begin_move(2, |s| (s.range == chosen.range).then_some(0));
        Some(chosen)
    });
}

/// A run in the table of granules: owner, segment, newest version. The newest version of segment `n` is `10 n`.
struct Run([Word; 3]);

impl Run {
    fn words(&self) -> protocol::RunWords<'_, Word> {
        (&self.0[0], &self.0[1], &self.0[2])
    }
}

fn look_while_taken_again(look: impl Fn(protocol::RunWords<'_, Word>) -> Option<(u64, u64, u64)>) {
    let run = Rc::new(Run([Word::new(SEGMENT), Word::new(1), Word::new(10)]));
    let producer = {
        let run = run.clone();
        spawn(move || {
            protocol::hand_over(run.words().0, FREE);
            protocol::describe_run(run.words(), (2, 20));
            protocol::hand_over(run.words().0, SEGMENT);
        })
    };
    if let Some((SEGMENT, segment, last)) = look(run.words()) {
        assert_eq!(last, 10 * segment, "of two owners");
    }
    producer.join().unwrap();
}

/// A lane releases a run and takes it for its next segment, under the same owner word, while a reader looks at it.
pub fn looked_at_while_taken_again() {
    look_while_taken_again(protocol::look_at_run);
}

/// Wrong: the three words are read once, as if they were one.
pub fn looked_at_once() {
    look_while_taken_again(|(owner, segment, last)| {
        let owner = protocol::look_at(owner);
        Some((owner, segment.load(Acquire), last.load(Acquire)))
    });
}
