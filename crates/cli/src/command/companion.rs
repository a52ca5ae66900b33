//! Programs that this command becomes for some of its verbs: `forebay-lab`, `forebay-agent`.
//!
//! Guarantees: this process becomes the other program, so that its id, its exit status and the signals that it gets
//! stay the same. Where the program is missing, nothing is started, and the error says how to install it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tier::{Error, Kind, Result};

/// A program, and how it is installed.
pub(crate) struct Companion {
    pub name: &'static str,
    pub install: &'static str,
}

impl Companion {
    /// Becomes the program with these words; `caller` is the name that this command was called by.
    pub(crate) fn exec(&self, caller: Option<&OsString>, words: &[OsString]) -> Result<Infallible> {
        let program = self.find(caller.map(Path::new)).ok_or_else(|| self.missing())?;
        let error = Command::new(&program).args(words).exec();
        Err(Error::io(format!("cannot start {}", program.display()), error))
    }

    fn missing(&self) -> Error {
        let Companion { name, install } = self;
        Error::new(Kind::NotPossibleHere, format!("this command needs {name}, which is not installed"))
            .hint(format!("{install}; {name} must be in the directory of forebay or on PATH"))
    }

    /// Beside this executable, beside the script that an interpreter runs, or on PATH.
    fn find(&self, caller: Option<&Path>) -> Option<PathBuf> {
        let own = std::env::current_exe().ok();
        let script = caller.filter(|caller| caller.is_absolute()).map(Path::to_owned);
        let beside = own.into_iter().chain(script).filter_map(|file| Some(file.parent()?.to_owned()));
        let path = std::env::var_os("PATH").unwrap_or_default();
        beside
            .chain(std::env::split_paths(&path))
            .map(|folder| folder.join(self.name))
            .find(|file| is_program(file))
    }
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The words of a command line, where the first one that is no global option is one of these verbs. `args` begin with
/// the program's name.
pub(crate) fn words_of<'a>(args: &'a [OsString], verbs: &[&str]) -> Option<&'a [OsString]> {
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
            _ => return verbs.contains(&word).then_some(words),
        }
    }
}
