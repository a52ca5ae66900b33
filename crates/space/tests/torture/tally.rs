//! How often which process died where, over all rounds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use crate::death::{Place, CLEANS, DRAINS, LOOKS, MOVES, STEPS};

/// Every role that dies, and its places.
const DEATHS: [(&str, &[Place]); 6] = [
    ("writer", &STEPS),
    ("reader", &STEPS),
    ("mover", &MOVES),
    ("observer", &LOOKS),
    ("drain", &DRAINS),
    ("clean", &CLEANS),
];
/// What else happens in two hundred rounds.
const EVENTS: [&str; 6] =
    ["all", "abandoned", "writer stopped", "reader stopped", "drain done", "clean done"];
/// What happens in a long run: a drain is short.
const RARE_EVENT: &str = "drain stopped";

/// In so many rounds each place is come to.
const LONG_ROUNDS: u64 = 1000;

/// The counts.
#[derive(Default)]
pub struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    pub fn count(&self, what: &str) {
        *self.0.lock().expect("not poisoned").entry(what.into()).or_insert(0) += 1;
    }

    /// A process of `role` died at `place`; what a writer does in moving a segment, its mover does.
    pub fn died(&self, role: &str, place: Place) {
        let role = if role == "writer" && MOVES.contains(&place) { "mover" } else { role };
        self.count(&format!("{role} {place:?}"));
    }

    /// What did not happen in so many rounds although it should have. Places that a process comes to only when another
    /// one lets it, as in moving and removing, count one by one in long runs alone.
    pub fn missing(&self, rounds: u64) -> Vec<String> {
        let counts = self.0.lock().expect("not poisoned");
        let happened = |what: &String| counts.contains_key(what);
        let mut missing: Vec<String> =
            EVENTS.map(String::from).into_iter().filter(|what| !happened(what)).collect();
        if rounds >= LONG_ROUNDS && !happened(&RARE_EVENT.to_string()) {
            missing.push(RARE_EVENT.into());
        }
        for (role, places) in DEATHS {
            let all = places.iter().map(|place| format!("{role} {place:?}"));
            let none: Vec<String> = all.filter(|what| !happened(what)).collect();
            if rounds >= LONG_ROUNDS || places == STEPS || none.len() == places.len() {
                missing.extend(none);
            }
        }
        missing
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in self.0.lock().expect("not poisoned").iter() {
            write!(f, "{what}: {count}; ")?;
        }
        Ok(())
    }
}
