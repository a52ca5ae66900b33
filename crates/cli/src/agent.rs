//! `forebay agent`: handed over to `forebay-agent`, which connects the nodes of a job.
//!
//! Guarantees: the words behind `agent` go over unchanged, and `--json` before it behind them. What they mean is not
//! known here.

use std::convert::Infallible;
use std::ffi::OsString;

use forebay_tier::Result;

use crate::command::companion::{words_of, Companion};

const PROGRAM: Companion = Companion {
    name: "forebay-agent",
    install: "install it with make install AGENT=1, or cargo build --release --package forebay-cluster",
};

/// Make the spaces of a job accessible on all of its nodes. Requires forebay-agent.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Words for forebay-agent: start, wait, status, links, stop; `forebay agent --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}

/// The words for `forebay-agent`, where the first word that is no global option is `agent`. `args` begin with the
/// program's name.
pub fn asked(args: &[OsString]) -> Option<Vec<OsString>> {
    let words = words_of(args, &["agent"])?;
    let at = words.iter().position(|word| word == "agent")?;
    let json = words[..at].iter().filter(|word| *word == "--json");
    Some(words[at + 1..].iter().chain(json).cloned().collect())
}

/// Becomes `forebay-agent` with these words; `program` is the name that this command was called by.
pub fn exec(program: Option<&OsString>, words: &[OsString]) -> Result<Infallible> {
    PROGRAM.exec(program, words)
}

/// Runs the verb with words that clap has parsed, which [`asked`] does not recognise.
pub fn run(words: &[OsString]) -> Result<i32> {
    let program = std::env::args_os().next();
    match exec(program.as_ref(), words)? {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_behind_the_verb_go_over() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(asked(&words("forebay agent stop --x")).unwrap(), words("stop --x"));
        assert_eq!(asked(&words("forebay --json agent status")).unwrap(), words("status --json"));
        assert_eq!(asked(&words("forebay ls agent")), None);
    }
}
