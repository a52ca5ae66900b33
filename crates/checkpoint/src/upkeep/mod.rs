//! Operations on a checkpoint directory from outside its program.

pub(crate) mod inspect;
pub(crate) mod salvage;
