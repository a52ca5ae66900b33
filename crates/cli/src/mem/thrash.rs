//! Notices that a program reads its data from the tier again and again, and says so: once when it begins, once at the
//! end.

use forebay_pager::WindowEngine;
use forebay_space::format_bytes;

/// Times the data that are read before it is said: a program that sweeps its arrays a few times is as it should be.
const FACTOR: u64 = 8;

/// What was said.
#[derive(Debug, Default)]
pub(super) struct Thrash {
    said: bool,
}

/// What was read and what there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) read: u64,
    pub(super) placed: u64,
    pub(super) budget: u64,
}

impl Seen {
    fn is_thrash(&self) -> bool {
        self.read > FACTOR * self.placed.max(self.budget)
    }

    fn what(&self) -> String {
        let bytes = format_bytes;
        let times = self.read / self.placed.max(1);
        format!("{} read from the tier, {times} times the {} placed", bytes(self.read), bytes(self.placed))
    }

    fn help(&self, engines: &[WindowEngine]) -> String {
        let more = format_bytes(self.placed.max(self.budget));
        let tile = match engines.contains(&WindowEngine::Userfault) {
            true => ", or a smaller --tile where it does not sweep them",
            false => "",
        };
        format!("a --dram of {more} holds all that it placed{tile}")
    }
}

impl Thrash {
    /// The line to say now, if it is time.
    pub(super) fn look(&mut self, seen: Seen, engines: &[WindowEngine]) -> Option<String> {
        if self.said || !seen.is_thrash() {
            return None;
        }
        self.said = true;
        Some(format!(
            "forebay mem: the program is thrashing: {} so far; {}\n",
            seen.what(),
            seen.help(engines)
        ))
    }

    /// The line at the end; empty where nothing is to be said.
    pub(super) fn end(&self, seen: Seen, engines: &[WindowEngine]) -> String {
        match seen.is_thrash() {
            true => format!("forebay mem: warning: thrashing: {}; {}\n", seen.what(), seen.help(engines)),
            false => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn it_is_said_once_when_it_begins_and_at_the_end() {
        let mut thrash = Thrash::default();
        let sweeps = Seen { read: 700 * MIB, placed: 100 * MIB, budget: 8 * MIB };
        assert_eq!(thrash.look(sweeps, &[WindowEngine::Kernel]), None);
        assert_eq!(thrash.end(sweeps, &[WindowEngine::Kernel]), "");
        let seen = Seen { read: 1500 * MIB, ..sweeps };
        let said = thrash.look(seen, &[WindowEngine::Kernel]).unwrap();
        assert!(
            said.contains("15 times the 100.0 MiB placed") || said.contains("15 times the 100 MiB"),
            "{said}"
        );
        assert!(said.contains("a --dram of 100") && !said.contains("--tile"), "{said}");
        assert_eq!(thrash.look(seen, &[WindowEngine::Kernel]), None);
        assert!(thrash.end(seen, &[WindowEngine::Userfault]).contains("--tile"));
    }
}
