//! `forebay bench` and `forebay app`: handed over to `forebay-lab`, as git and cargo find their subcommands.
//!
//! Guarantees: all words go over unchanged, and this process becomes the other program, so that its id, its exit
//! status and the signals that it gets stay the same. Where `forebay-lab` is missing, nothing is started, and the error
//! says how to install it. What the two verbs do is not known here.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tier::{Error, Kind, Result};

/// The program that has the verbs.
const PROGRAM: &str = "forebay-lab";

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
    let words = args.get(1..)?;
    let mut left = words.iter();
    loop {
        let word = left.next()?.to_str()?;
        match word {
            "--json" => {}
            "--colour" | "--color" => {
                left.next()?;
            }
            _ if word.starts_with("--colour=") || word.starts_with("--color=") => {}
            _ => return VERBS.contains(&word).then_some(words),
        }
    }
}

/// Becomes `forebay-lab` with these words; `program` is the name that this command was called by.
pub fn exec(program: Option<&OsString>, words: &[OsString]) -> Result<Infallible> {
    let lab = find(program.map(Path::new)).ok_or_else(missing)?;
    let error = Command::new(&lab).args(words).exec();
    Err(Error::io(format!("cannot start {}", lab.display()), error))
}

/// Runs a verb whose words clap has parsed, as words that [`asked`] does not recognise.
pub fn run(verb: &str, words: &[OsString]) -> Result<i32> {
    let words: Vec<OsString> = std::iter::once(verb.into()).chain(words.iter().cloned()).collect();
    let program = std::env::args_os().next();
    match exec(program.as_ref(), &words)? {}
}

fn missing() -> Error {
    Error::new(Kind::NotPossibleHere, format!("this command needs {PROGRAM}, which is not installed")).hint(format!(
        "install it with make install LAB=1, or cargo build --release --package {PROGRAM}; {PROGRAM} must be in the \
         directory of forebay or on PATH"
    ))
}

/// Beside this executable, beside the script that an interpreter runs, or on PATH.
fn find(program: Option<&Path>) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let script = program.filter(|program| program.is_absolute()).map(Path::to_owned);
    let beside = own.into_iter().chain(script).filter_map(|file| Some(file.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(PROGRAM))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
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
