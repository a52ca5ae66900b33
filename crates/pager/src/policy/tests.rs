//! Policies against simple references: the same choices, whatever was admitted, touched, kept and removed before.

use std::cell::RefCell;
use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Evict, Heat, Policy, HEAT_MAX};

const FRAMES: u32 = 12;
const TILES: u64 = 40;

/// Heat of every frame.
struct Warm(RefCell<Vec<u8>>);

impl Heat for Warm {
    fn get(&self, frame: u32) -> u8 {
        self.0.borrow()[frame as usize]
    }

    fn set(&self, frame: u32, heat: u8) {
        self.0.borrow_mut()[frame as usize] = heat;
    }
}

/// What happens to a cache.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A tile is touched: a hit, or it takes the place of the victim.
    Touch(u64),
    /// The victim is pinned and stays.
    Pinned,
    Remove(u32),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        12 => (0..TILES).prop_map(|tile| Event::Touch(tile * tile % TILES)),
        1 => Just(Event::Pinned),
        1 => (0..FRAMES).prop_map(Event::Remove),
    ];
    prop::collection::vec(event, 1..400)
}

/// A reference: frames in plain queues, the head goes first.
trait Reference {
    fn admit(&mut self, frame: u32, tile: u64);
    fn victim(&mut self, heat: &Warm) -> Option<u32>;
    fn keep(&mut self, frame: u32);
    fn remove(&mut self, frame: u32);
}

#[derive(Default)]
struct Fifo {
    queue: VecDeque<u32>,
    second_chance: bool,
}

impl Reference for Fifo {
    fn admit(&mut self, frame: u32, _tile: u64) {
        self.queue.push_back(frame);
    }

    fn victim(&mut self, heat: &Warm) -> Option<u32> {
        while self.second_chance && self.queue.front().is_some_and(|frame| heat.get(*frame) > 0) {
            let frame = self.queue.pop_front()?;
            heat.set(frame, 0);
            self.queue.push_back(frame);
        }
        self.queue.pop_front()
    }

    fn keep(&mut self, frame: u32) {
        self.queue.push_back(frame);
    }

    fn remove(&mut self, frame: u32) {
        self.queue.retain(|other| *other != frame);
    }
}

/// S3-FIFO as its paper has it, with the ghost as a plain list of tiles and the turns they came in.
#[derive(Default)]
struct ThreeQueues {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghost: Vec<(u64, u32)>,
    turn: u32,
    tiles: [u64; FRAMES as usize],
}

impl Reference for ThreeQueues {
    fn admit(&mut self, frame: u32, tile: u64) {
        self.tiles[frame as usize] = tile;
        let known = self.ghost.iter().position(|(ghost, turn)| *ghost == tile && self.turn - turn < FRAMES);
        match known {
            Some(at) => {
                self.ghost.remove(at);
                self.main.push_back(frame);
            }
            None => self.small.push_back(frame),
        }
    }

    fn victim(&mut self, heat: &Warm) -> Option<u32> {
        loop {
            let all = self.small.len() + self.main.len();
            if !self.small.is_empty() && (self.main.is_empty() || self.small.len() * 10 >= all) {
                let frame = self.small.pop_front()?;
                if heat.get(frame) <= 1 {
                    self.turn += 1;
                    let tile = self.tiles[frame as usize];
                    self.ghost.retain(|(ghost, _)| *ghost != tile);
                    self.ghost.push((tile, self.turn));
                    return Some(frame);
                }
                heat.set(frame, 0);
                self.main.push_back(frame);
            } else {
                let frame = self.main.pop_front()?;
                if heat.get(frame) == 0 {
                    return Some(frame);
                }
                heat.set(frame, heat.get(frame) - 1);
                self.main.push_back(frame);
            }
        }
    }

    fn keep(&mut self, frame: u32) {
        let tile = self.tiles[frame as usize];
        self.ghost.retain(|(ghost, _)| *ghost != tile);
        self.main.push_back(frame);
    }

    fn remove(&mut self, frame: u32) {
        self.small.retain(|other| *other != frame);
        self.main.retain(|other| *other != frame);
    }
}

/// Runs both through the same events and compares every choice.
fn compare(policy: Policy, reference: &mut dyn Reference, events: &[Event]) -> Result<(), TestCaseError> {
    let mut evict = policy.build(FRAMES as usize);
    let (ours, theirs) = (Warm(RefCell::new(vec![0; 12])), Warm(RefCell::new(vec![0; 12])));
    let mut holds: Vec<Option<u64>> = vec![None; FRAMES as usize];
    for event in events {
        match *event {
            Event::Touch(tile) => touch(&mut *evict, reference, (&ours, &theirs), &mut holds, tile)?,
            Event::Pinned => {
                let (a, b) = (evict.victim(&ours), reference.victim(&theirs));
                prop_assert_eq!(a, b);
                if let Some(frame) = a {
                    evict.keep(frame, holds[frame as usize].expect("a victim holds a tile"));
                    reference.keep(frame);
                }
            }
            Event::Remove(frame) => {
                evict.remove(frame);
                reference.remove(frame);
                holds[frame as usize] = None;
            }
        }
        prop_assert_eq!(evict.len(), holds.iter().flatten().count());
        prop_assert_eq!(&*ours.0.borrow(), &*theirs.0.borrow());
    }
    Ok(())
}

fn touch(
    evict: &mut dyn Evict,
    reference: &mut dyn Reference,
    (ours, theirs): (&Warm, &Warm),
    holds: &mut [Option<u64>],
    tile: u64,
) -> Result<(), TestCaseError> {
    if let Some(at) = holds.iter().position(|held| *held == Some(tile)) {
        for heat in [ours, theirs] {
            heat.set(at as u32, (heat.get(at as u32) + 1).min(HEAT_MAX));
        }
        return Ok(());
    }
    let frame = match holds.iter().position(Option::is_none) {
        Some(free) => free as u32,
        None => {
            let (a, b) = (evict.victim(ours), reference.victim(theirs));
            prop_assert_eq!(a, b);
            a.expect("a full cache has a victim")
        }
    };
    holds[frame as usize] = Some(tile);
    ours.set(frame, 0);
    theirs.set(frame, 0);
    evict.admit(frame, tile);
    reference.admit(frame, tile);
    Ok(())
}

proptest! {
    #[test]
    fn none_is_first_come_first_gone(events in events()) {
        compare(Policy::None, &mut Fifo::default(), &events)?;
    }

    #[test]
    fn clock_gives_a_second_chance(events in events()) {
        compare(Policy::Clock, &mut Fifo { second_chance: true, ..Fifo::default() }, &events)?;
    }
}

proptest! {
    // Tiles below 40 have places of their own in a ghost of 32 only up to that: shorter hashes, no collisions.
    #[test]
    fn s3fifo_is_three_queues(events in events()) {
        let fits = |event: &Event| !matches!(event, Event::Touch(tile) if *tile >= 32);
        let events: Vec<Event> = events.into_iter().filter(fits).collect();
        compare(Policy::S3Fifo, &mut ThreeQueues::default(), &events)?;
    }
}

#[test]
fn a_scan_does_not_push_out_what_comes_back_under_s3fifo() {
    let heat = Warm(RefCell::new(vec![0; 100]));
    let mut evict = Policy::S3Fifo.build(100);
    for frame in 0..100 {
        evict.admit(frame, u64::from(frame) << 32);
        heat.set(frame, if frame < 50 { HEAT_MAX } else { 0 });
    }
    // Fifty tiles that were touched again, then a scan ten times as long as the cache.
    for tile in 1000..2000 {
        let frame = evict.victim(&heat).unwrap();
        assert!(frame >= 50, "the scan took frame {frame}");
        heat.set(frame, 0);
        evict.admit(frame, tile << 32 | tile);
        (0..50).for_each(|hot| heat.set(hot, HEAT_MAX));
    }
}

#[test]
fn what_a_policy_takes_is_what_it_says() {
    for policy in [Policy::S3Fifo, Policy::Clock, Policy::None] {
        for frames in [1, 2, 3, 7, 8, 9, 1000, 4096, 4097, 100_000] {
            let (said, takes) = (policy.bytes(frames), policy.build(frames).bytes() as u64);
            assert_eq!(said, takes, "{policy:?}, {frames} frames");
            assert!(takes <= frames as u64 * Policy::FRAME_BYTES_MAX, "{policy:?}, {frames} frames");
        }
    }
}

#[test]
fn names_are_read_back() {
    for policy in [Policy::S3Fifo, Policy::Clock, Policy::None] {
        assert_eq!(policy.name().parse::<Policy>().unwrap(), policy);
    }
    assert!("lru".parse::<Policy>().is_err());
}
