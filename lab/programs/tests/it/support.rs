//! What all of these tests need: a directory, options of a rank, arguments as a command line gives them.

use clap::Parser;
use forebay_space::{Mechanism, OpenOptions};
use std::path::Path;

#[derive(Parser)]
struct Line<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

/// The arguments of a program of a component.
pub fn args<A: clap::Args>(channel: &str, words: &str) -> A {
    Line::parse_from(["app", "--channel", channel].into_iter().chain(words.split_whitespace())).args
}

/// A directory in memory, where there is shared memory.
pub fn directory() -> tempfile::TempDir {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.expect("a directory")
}

/// One rank of a component.
pub fn options(rank: usize, size: usize, component: &str, channel: Mechanism) -> OpenOptions {
    OpenOptions {
        rank: Some(rank as u32),
        size: Some(size as u32),
        component: Some(component.to_owned()),
        quota_bytes: Some(96 << 20),
        channel,
        ..OpenOptions::default()
    }
}
