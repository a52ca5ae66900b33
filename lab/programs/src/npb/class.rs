//! Problem classes of the NAS Parallel Benchmarks (Bailey et al., RNR-94-007; NPB 3.4): their names.

/// How large a problem is; each program says what that means.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[value(rename_all = "UPPER")]
pub enum Class {
    /// For tests.
    S,
    /// A workstation of 1991.
    W,
    /// Seconds.
    A,
    /// Minutes.
    B,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 4] = [Class::S, Class::W, Class::A, Class::B];
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}
