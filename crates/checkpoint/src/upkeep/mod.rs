//! What looks at a checkpoint directory, or works on it, without being a rank of its program.

pub(crate) mod inspect;
pub(crate) mod salvage;
