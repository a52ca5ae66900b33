//! `forebay bench` and `forebay app`: handed over to `forebay-lab`, as git and cargo find their subcommands.
//!
//! Guarantees: all words go over unchanged. How the program is found and started: `command/companion.rs`. What the two
//! verbs do is not known here.

use std::convert::Infallible;
use std::ffi::OsString;

use forebay_tier::Result;

use crate::command::companion::{words_of, Companion};

/// The program that has the verbs.
const PROGRAM: Companion = Companion {
    name: "forebay-lab",
    install: "install it with make install LAB=1, or cargo build --release --package forebay-lab",
};

/// The verbs that it has.
const VERBS: [&str; 2] = ["bench", "app"];

/// Measure as the studies did: STREAM, IOR, LRIOT, staging, sorting, graphs, arrays on a tier. Needs forebay-lab.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// Words for forebay-lab; `forebay bench --help` lists its benchmarks.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}

/// Run one rank of a program of the studies. Needs forebay-lab.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct App {
    /// Words for forebay-lab; `forebay app --help` lists its programs.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub words: Vec<OsString>,
}

/// The words for `forebay-lab`, where the first word that is no global option is one of its verbs. `args` begin with
/// the program's name.
pub fn asked(args: &[OsString]) -> Option<&[OsString]> {
    words_of(args, &VERBS)
}

/// Becomes `forebay-lab` with these words; `program` is the name that this command was called by.
pub fn exec(program: Option<&OsString>, words: &[OsString]) -> Result<Infallible> {
    PROGRAM.exec(program, words)
}

/// Runs a verb whose words clap has parsed, as words that [`asked`] does not recognise.
pub fn run(verb: &str, words: &[OsString]) -> Result<i32> {
    let words: Vec<OsString> = std::iter::once(verb.into()).chain(words.iter().cloned()).collect();
    let program = std::env::args_os().next();
    match exec(program.as_ref(), &words)? {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_first_word_that_is_no_global_option_decides() {
        for line in [
            "forebay bench",
            "forebay --json app bt",
            "forebay --colour never bench --json",
            "forebay \
            --color=always --json bench x -- --y",
        ] {
            let args = words(line);
            assert_eq!(asked(&args), Some(&args[1..]), "{line}");
        }
        for line in
            ["forebay", "forebay ls bench", "forebay --json", "forebay --colour bench", "forebay -- bench"]
        {
            assert_eq!(asked(&words(line)), None, "{line}");
        }
        let unreadable = [OsString::from("forebay"), OsString::from_vec(vec![0xff]), "bench".into()];
        assert_eq!(asked(&unreadable), None);
    }
}
