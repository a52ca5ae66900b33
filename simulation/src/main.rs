//! `forebay-simulate`: spaces and checkpoints under simulated processes, seed after seed. `cargo xtask simulate` builds
//! and runs it.
//!
//! A run is one seed: a cast of writer ranks, reader groups and observers drawn from it ([`cast`]), what they do
//! ([`roles`]), which other handles their processes have ([`company`]), who is killed or stopped when ([`play`]), what
//! must hold all the time ([`oracle`]), and what is said of the space ([`census`]); with `--checkpoints` a program that
//! checkpoints ([`checkpoint`]). A run that fails prints one line that replays it and the last 50 points before the
//! failure. The machinery below is
//! `forebay_tier::simulation`; it exists in builds with `--cfg forebay_simulated` only.

#[cfg(forebay_simulated)]
mod cast;
#[cfg(forebay_simulated)]
mod census;
#[cfg(forebay_simulated)]
mod checkpoint;
#[cfg(forebay_simulated)]
mod command;
#[cfg(forebay_simulated)]
mod company;
#[cfg(forebay_simulated)]
mod oracle;
#[cfg(forebay_simulated)]
mod play;
#[cfg(forebay_simulated)]
mod roles;

#[cfg(forebay_simulated)]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(forebay_simulated))]
fn main() -> std::process::ExitCode {
    eprintln!("forebay-simulate was built without its simulator; run `cargo xtask simulate`");
    std::process::ExitCode::from(2)
}
