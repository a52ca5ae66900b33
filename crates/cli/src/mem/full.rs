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

    /// The line behind a program that SIGBUS has ended and that had placed so many bytes; empty where the tier had
    /// space.
    pub(super) fn text(&self, tier: &Path, placed: u64) -> String {
        if self.least >= FULL && placed < self.begun {
            return String::new();
        }
        format!(
            "forebay mem: the tier {} was full when the program was ended by SIGBUS: {} were free at the start, the \
             program placed {}; a tier with more space, or a smaller --capacity\n",
            tier.display(),
            format_bytes(self.begun),
            format_bytes(placed)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_with_space_is_not_named() {
        let tier = Path::new("/tier");
        assert_eq!(Full { begun: 100 << 20, least: 50 << 20 }.text(tier, 60 << 20), "");
        for full in [Full { begun: 100 << 20, least: 4096 }, Full { begun: 40 << 20, least: 30 << 20 }] {
            assert!(full.text(tier, 60 << 20).contains("/tier was full"), "{full:?}");
        }
    }
}
