//! Whether a full tier has ended the program: a touch of memory that the tier has no space for is SIGBUS, which says
//! nothing itself.

use std::path::Path;

use forebay_space::format_bytes;

/// Below this a tier is full: the pages that leave at once.
const FULL: u64 = 1 << 20;

/// The least space that was seen on the tier.
#[derive(Debug)]
pub(super) struct Full {
    begun: u64,
    least: u64,
}

impl Full {
    /// Before the program begins.
    pub(super) fn new(tier: &Path) -> Full {
        let free = super::free(tier);
        Full { begun: free, least: free }
    }

    /// Looks while the program runs; its windows have no names, so that their space is free again at its end.
    pub(super) fn look(&mut self, tier: &Path) {
        self.least = self.least.min(super::free(tier));
    }

    /// The line at the end of a program that had placed so many bytes, and that SIGBUS has ended or not; empty where
    /// the tier had space.
    pub(super) fn text(&self, tier: &Path, placed: u64, is_bus: bool) -> String {
        let (tier, begun) = (tier.display(), format_bytes(self.begun));
        if self.least < FULL {
            return format!(
                "forebay mem: warning: the tier {tier} was full: touching memory that it has no space for is \
                 SIGBUS; {begun} were free at the start\n"
            );
        }
        if is_bus && placed >= self.begun {
            return format!(
                "forebay mem: SIGBUS ended the program; the tier {tier} had {begun} free at the start, and the program \
                 placed {}: touching memory that a tier has no space for is SIGBUS\n",
                format_bytes(placed)
            );
        }
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_with_space_is_not_named() {
        let tier = Path::new("/tier");
        let full = |begun: u64, least| Full { begun: begun << 20, least };
        let said = |full: Full, is_bus| full.text(tier, 60 << 20, is_bus);
        assert_eq!(said(full(100, 50 << 20), true), "");
        assert_eq!(said(full(40, 30 << 20), false), "");
        assert!(said(full(40, 30 << 20), true).contains("/tier had 40.0 MiB free"));
        assert!(said(full(100, 4096), false).contains("/tier was full"));
    }
}
