//! The named patterns of the Gray–Scott system and their parameters.
//!
//! J. E. Pearson, "Complex patterns in a simple system", Science 261 (1993) 189–192 (preprint
//! arXiv:patt-sol/9304003), named twelve kinds of pattern α to μ in the plane of feed rate F and kill rate k
//! (his figures 2 and 3, which give regions, not single points). The points below lie inside those regions:
//! they are the ones that R. Munafo lists for each of Pearson's types in "Pearson's Classification (Extended)
//! of Gray–Scott System Parameter Values" (mrob.com, xmorphia), which replots Pearson's figure 3 with
//! corrections. Where that list gives two points of a type, the one of smaller F is taken.
//!
//! Both sources describe the system in two dimensions. In three the same numbers give the three-dimensional
//! relatives (spots become balls, stripes become sheets and tubes), and a border between two types may lie
//! elsewhere.

/// One of Pearson's patterns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pattern {
    /// Name of the Greek letter in lower case: "alpha" … "mu".
    pub name: &'static str,
    /// Feed rate F, 1/time.
    pub feed: f64,
    /// Kill rate k, 1/time.
    pub kill: f64,
    /// What one sees, in a few words.
    pub looks_like: &'static str,
}

/// All twelve, in the order of the alphabet.
pub const PATTERNS: [Pattern; 12] = [
    pattern("alpha", 0.010, 0.047, "wavelets and beginnings of spirals that annihilate each other"),
    pattern("beta", 0.014, 0.039, "chaos of both uniform states at different places"),
    pattern("gamma", 0.022, 0.051, "worms and branching stripes that never come to rest"),
    pattern("delta", 0.030, 0.055, "hexagonal array of negative spots (a true Turing pattern)"),
    pattern("epsilon", 0.018, 0.055, "unstable spots that crowd each other out"),
    pattern("zeta", 0.022, 0.061, "spots that divide, with local die-outs"),
    pattern("eta", 0.034, 0.063, "spots and worms together"),
    pattern("theta", 0.030, 0.057, "rings, then stripes that join into a network"),
    pattern("iota", 0.046, 0.0594, "negative spots that attract and repel like molecules"),
    pattern("kappa", 0.050, 0.063, "a labyrinth of stripes, often branching"),
    pattern("lambda", 0.026, 0.061, "spots that divide like cells until the space is full"),
    pattern("mu", 0.046, 0.065, "worms that grow at both ends"),
];

const fn pattern(name: &'static str, feed: f64, kill: f64, looks_like: &'static str) -> Pattern {
    Pattern { name, feed, kill, looks_like }
}

/// The pattern of this name; `None` when Pearson named none so.
pub fn find(name: &str) -> Option<Pattern> {
    PATTERNS.iter().copied().find(|p| p.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (i, pattern) in PATTERNS.iter().enumerate() {
            assert_eq!(find(pattern.name), Some(*pattern));
            assert!(PATTERNS[..i]
                .iter()
                .all(|p| p.name != pattern.name && (p.feed, p.kill) != (pattern.feed, pattern.kill)));
        }
        assert_eq!(find("nu"), None, "nu is not Pearson's");
    }

    #[test]
    fn every_point_lies_in_the_region_of_the_figure() {
        // Axes of Pearson's figure 3: F from 0 to 0.08, k from 0.03 to 0.07.
        for p in PATTERNS {
            assert!(p.feed > 0.0 && p.feed < 0.08 && p.kill > 0.03 && p.kill < 0.07, "{}", p.name);
        }
    }
}
