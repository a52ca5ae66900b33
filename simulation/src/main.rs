//! `forebay-simulate`: spaces and checkpoints under simulated processes, seed after seed. `cargo xtask simulate` builds
//! and runs it.
//!
//! A run is one seed: of a space ([`space`]) or, with `--checkpoints`, of a program that checkpoints ([`checkpoint`]),
//! each with what the seed decides, what the processes do and what must hold; what happens to them is in [`danger`]. A
//! run that fails prints one line that replays it and the last 50 points before the failure. The machinery below is
//! `forebay_tier::simulation`; it exists in builds with `--cfg forebay_simulated` only.

#[cfg(forebay_simulated)]
mod checkpoint;
#[cfg(forebay_simulated)]
mod command;
#[cfg(forebay_simulated)]
mod danger;
#[cfg(forebay_simulated)]
mod space;

#[cfg(forebay_simulated)]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(forebay_simulated))]
fn main() -> std::process::ExitCode {
    eprintln!("forebay-simulate was built without its simulator; run `cargo xtask simulate`");
    std::process::ExitCode::from(2)
}
