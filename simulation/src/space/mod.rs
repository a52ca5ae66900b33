//! Spaces under simulated processes.
//!
//! A cast of writer ranks, reader groups and observers is drawn from the seed ([`cast`]). What they do is in [`roles`],
//! which other handles their processes have in [`company`], who starts again in [`play`], what must hold all the time
//! in [`oracle`], and what is said of the space in [`census`].

mod cast;
mod census;
mod company;
mod oracle;
mod play;
mod roles;

pub use cast::{Cast, SMALLER};
pub use play::play;
