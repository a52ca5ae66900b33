//! What must hold in every execution, each a small cast of threads over the production protocols.

use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::thread::spawn;

use crate::moving;
use crate::protocol::{self, HOLDS_NOTHING};
use crate::words::{Futex, Payload, Word};

/// Every model with its name.
pub const MODELS: &[(&str, fn())] = &[
    ("a complete version is seen whole", complete_is_whole),
    ("no wake-up is lost", no_wake_up_is_lost),
    ("a held version is not overwritten", held_is_not_overwritten),
    ("what a lease let go may be overwritten", let_go_then_held_again),
    ("a cursor settles above what was dropped", cursor_settles),
    ("a group begins at what is kept for it", group_begins_at_what_is_kept),
    ("freed space wakes the producer that waits for it", free_space_wakes),
    ("only what was dropped is overwritten", only_dropped_is_overwritten),
    ("a lane that is taken over loses no commit", take_over_loses_no_commit),
    ("what is complete while lanes are taken over is whole", taken_over_is_whole),
    ("complete versions stay complete while lanes are taken over", take_over_hides_nothing),
    ("a segment that moves is found, and what was found stays", moving::found_and_kept),
    ("whichever place one looks at first", moving::found_the_other_way_round),
    ("a segment whose lease was let go may be overwritten", moving::let_go_of_the_newest),
    ("also that of the oldest version", moving::let_go_of_the_oldest),
    ("the newest lease is never seen too low", moving::newest_is_never_too_low),
    ("a segment whose move has begun is not released", moving::begun_stays),
    ("what the table says of a run is of one owner", moving::looked_at_while_taken_again),
];

/// What was production code once, or could be taken for right: each must fail.
pub const WRONG: &[(&str, fn())] = &[
    ("a place that is being left counts as the segment's", moving::leaving_counts),
    ("a move is chosen and begun in two steps", moving::chosen_and_begun_in_two_steps),
    ("the words of a run are read once", moving::looked_at_once),
    ("a group begins at the oldest version", group_begins_at_the_oldest),
];

/// The producers' words of a space: group, base, a progress word for each of two ranks.
struct Producers {
    group: Word,
    base: Word,
    progress: [Word; 2],
}

impl Producers {
    /// Of incarnation 1, with `size` ranks that have all committed `committed` versions.
    fn new(size: u64, committed: u64) -> Producers {
        let word = || Word::new(protocol::progress_word(1, committed));
        Producers { group: Word::new(1 << 32 | size), base: Word::new(0), progress: [word(), word()] }
    }

    fn complete(&self) -> u64 {
        protocol::complete(&self.group, &self.base, |rank| &self.progress[rank as usize])
    }
}

/// Two ranks commit a version each of one payload of their own; a reader that sees the version complete sees both.
fn complete_is_whole() {
    let shared = Rc::new((Producers::new(2, 0), [Payload::new(0), Payload::new(0)]));
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let shared = shared.clone();
            spawn(move || {
                shared.1[rank].write(7);
                assert!(protocol::advance(&shared.0.progress[rank], 1, 0));
            })
        })
        .collect();
    if shared.0.complete() > 0 {
        assert_eq!([shared.1[0].read(), shared.1[1].read()], [7, 7]);
    }
    for rank in ranks {
        rank.join().unwrap();
    }
    assert_eq!(shared.0.complete(), 1);
}

/// A reader that sleeps until two ranks have committed is woken, and sees what they wrote.
fn no_wake_up_is_lost() {
    let shared = Rc::new((Producers::new(2, 0), Futex::new(), [Payload::new(0), Payload::new(0)]));
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            let shared = shared.clone();
            spawn(move || {
                let (producers, futex, payload) = &*shared;
                payload[rank].write(7);
                assert!(protocol::advance(&producers.progress[rank], 1, 0));
                protocol::announce(&futex.word, &futex.waiters, || futex.wake());
            })
        })
        .collect();
    let (producers, futex, payload) = &*shared;
    loop {
        let seen = futex.word.load(Acquire);
        if producers.complete() > 0 {
            break;
        }
        protocol::sleep(&futex.waiters, || futex.wait(seen));
    }
    assert_eq!([payload[0].read(), payload[1].read()], [7, 7]);
    for rank in ranks {
        rank.join().unwrap();
    }
}

/// Version 0 is there; a reader takes a lease on it while its producer, for whom only leases count, drops it and
/// uses its space again.
fn held_is_not_overwritten() {
    let shared =
        Rc::new((Word::new(0), [Word::new(HOLDS_NOTHING), Word::new(HOLDS_NOTHING)], Payload::new(1)));
    let reader = {
        let shared = shared.clone();
        spawn(move || {
            let (oldest, held, payload) = &*shared;
            if protocol::hold(&held[1], 0, oldest, 0) {
                assert_eq!(payload.read(), 1);
            }
            protocol::release(&held[1], HOLDS_NOTHING);
        })
    };
    let (oldest, held, payload) = &*shared;
    if protocol::drop_below(oldest, &Word::new(0), || protocol::lowest_held(held.iter(), |_| true).min(1)) > 0
    {
        payload.write(2);
    }
    reader.join().unwrap();
}

/// A lease on version 0 is let go and one on version 1 taken: by then version 0 was read.
fn let_go_then_held_again() {
    let shared = Rc::new((Word::new(0), Word::new(0), Payload::new(1)));
    let reader = {
        let shared = shared.clone();
        spawn(move || {
            let (oldest, held, payload) = &*shared;
            assert_eq!(payload.read(), 1);
            assert!(protocol::hold(held, 1, oldest, 1));
            protocol::release(held, 2);
        })
    };
    let (oldest, held, payload) = &*shared;
    let lowest = || protocol::lowest_held([held].into_iter(), |_| true).min(1);
    let floor = protocol::drop_below(oldest, &Word::new(0), lowest);
    if floor > 0 {
        payload.write(2);
    }
    reader.join().unwrap();
}

/// A reader rank joins while version 0 is dropped: it begins where nothing is overwritten.
fn cursor_settles() {
    let payload = || Payload::new(1);
    let shared = Rc::new((Word::new(0), Word::new(HOLDS_NOTHING), [payload(), payload(), payload()]));
    let reader = {
        let shared = shared.clone();
        spawn(move || {
            let (oldest, cursor, payload) = &*shared;
            let from = protocol::settle_on(cursor, oldest, 0);
            assert_eq!(payload[from as usize].read(), 1);
            protocol::release(cursor, from + 1);
        })
    };
    let (oldest, cursor, payload) = &*shared;
    let lowest = || protocol::lowest_held([cursor].into_iter(), |_| true).min(1);
    let floor = protocol::drop_below(oldest, &Word::new(0), lowest);
    for version in 0..floor {
        payload[version as usize].write(2);
    }
    reader.join().unwrap();
}

/// A reader group comes while version 0 is dropped, and begins at what `first` says: of that nothing goes before its
/// ranks come.
fn group_comes(first: fn(&Word, &Word) -> u64) {
    let shared = Rc::new((Word::new(0), Word::new(0), Word::new(HOLDS_NOTHING)));
    let comer = {
        let shared = shared.clone();
        spawn(move || {
            let (oldest, announced, start) = &*shared;
            protocol::release(start, 0);
            let at = first(oldest, announced);
            protocol::release(start, at);
            at
        })
    };
    let (oldest, announced, start) = &*shared;
    protocol::drop_below(oldest, announced, || protocol::lowest_held([start].into_iter(), |_| true).min(1));
    let at = comer.join().unwrap();
    assert!(oldest.load(Relaxed) <= at, "version {at} is gone, and a rank of the group was to begin there");
}

fn group_begins_at_what_is_kept() {
    group_comes(protocol::first_kept);
}

fn group_begins_at_the_oldest() {
    group_comes(|oldest, announced| protocol::first_kept(oldest, announced).min(oldest.load(Relaxed)));
}

/// A producer sleeps until the reader has let version 0 go, then uses its space.
fn free_space_wakes() {
    let shared = Rc::new((Word::new(0), Word::new(0), Futex::new(), Payload::new(1)));
    let reader = {
        let shared = shared.clone();
        spawn(move || {
            let (_, cursor, free_space, payload) = &*shared;
            assert_eq!(payload.read(), 1);
            protocol::release(cursor, 1);
            protocol::announce(&free_space.word, &free_space.waiters, || free_space.wake());
        })
    };
    let (oldest, cursor, free_space, payload) = &*shared;
    loop {
        let seen = free_space.word.load(Acquire);
        if protocol::drop_below(oldest, &Word::new(0), || {
            protocol::lowest_held([cursor].into_iter(), |_| true)
        }) > 0
        {
            break;
        }
        protocol::sleep(&free_space.waiters, || free_space.wait(seen));
    }
    payload.write(2);
    reader.join().unwrap();
}

/// While a producer drops, the one registered reader moves on, and a process that was no reader before takes a lease:
/// what that one was granted is not overwritten, however far the reader got meanwhile.
fn only_dropped_is_overwritten() {
    let shared = Rc::new((Word::new(0), Word::new(0), Word::new(HOLDS_NOTHING), Payload::new(1)));
    let reader = {
        let shared = shared.clone();
        spawn(move || protocol::release(&shared.1, 1))
    };
    let observer = {
        let shared = shared.clone();
        spawn(move || {
            let (oldest, _, lease, payload) = &*shared;
            if protocol::hold(lease, 0, oldest, 0) {
                assert_eq!(payload.read(), 1);
            }
        })
    };
    let (oldest, cursor, lease, payload) = &*shared;
    let lowest = || protocol::lowest_held([cursor, lease].into_iter(), |_| true);
    if protocol::drop_below(oldest, &Word::new(0), lowest) > 0 {
        payload.write(2);
    }
    reader.join().unwrap();
    observer.join().unwrap();
}

/// What the take-over models share: rank 0 has committed version 0, rank 1 is about to.
struct TakeOver {
    producers: Producers,
    /// What rank 1 wrote, and the commit word in its lane: what recovery reads.
    payload: Payload,
    lane: Word,
}

impl TakeOver {
    fn new() -> TakeOver {
        let producers = Producers::new(2, 0);
        assert!(protocol::advance(&producers.progress[0], 1, 0));
        TakeOver { producers, payload: Payload::new(0), lane: Word::new(0) }
    }

    /// Rank 1 commits version 0; true: acknowledged.
    fn commit_late(&self) -> bool {
        self.payload.write(7);
        self.lane.store(1, Release);
        protocol::advance(&self.producers.progress[1], 1, 0)
    }

    /// The next incarnation, from closing the lanes to opening them; returns its first version.
    fn take_over(&self) -> u64 {
        let (group, base) = (&self.producers.group, &self.producers.base);
        let progress = |rank: u32| &self.producers.progress[rank as usize];
        let known = protocol::close_lanes(group, base, progress, 2, 2);
        let recovered = self.lane.load(Acquire);
        let first = recovered.max(known);
        protocol::open_lanes(group, base, progress, 2, 2, first);
        first
    }
}

/// A rank commits while its lane is taken over: either its commit fails, or the new incarnation begins behind it.
fn take_over_loses_no_commit() {
    let shared = Rc::new(TakeOver::new());
    let late = {
        let shared = shared.clone();
        spawn(move || shared.commit_late())
    };
    let first = shared.take_over();
    if late.join().unwrap() {
        assert_eq!(first, 1, "a commit was acknowledged and is lost");
    }
}

/// A reader that sees a version complete while the lanes are taken over sees all of it.
fn taken_over_is_whole() {
    let shared = Rc::new(TakeOver::new());
    let late = {
        let shared = shared.clone();
        spawn(move || {
            shared.commit_late();
        })
    };
    let reader = {
        let shared = shared.clone();
        spawn(move || {
            if shared.producers.complete() > 0 {
                assert_eq!(shared.payload.read(), 7);
            }
        })
    };
    shared.take_over();
    late.join().unwrap();
    reader.join().unwrap();
}

/// A version that is complete before its producers are taken over is so in every moment of it.
fn take_over_hides_nothing() {
    let shared = Rc::new(TakeOver::new());
    assert!(shared.commit_late());
    let reader = {
        let shared = shared.clone();
        spawn(move || {
            assert_eq!(shared.producers.complete(), 1, "a complete version cannot be read any more")
        })
    };
    shared.take_over();
    reader.join().unwrap();
}
