//! `forebay demo`: a small simulation in Python, an analysis of it and pictures, coupled by a channel.
//!
//! Guarantees: writes nothing but its programs and the run, in one folder; a file that is there stays as it is, so that
//! a program that was changed runs as changed. It opens no browser. The last line on stdout is the path of the report.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_flow::record::{check_path, make_dir};
use forebay_tier::{Error, Kind, Result};

use crate::command::again::self_command;
use crate::output::Output;
use crate::run;

/// What the workflow file of the example calls the interpreter.
const INTERPRETER: &str = "\"python3\"";

const WORKFLOW: &str = "workflow.toml";

/// The example: each file's name and text.
const FILES: [(&str, &str); 4] = [
    (WORKFLOW, include_str!("../../../examples/gray-scott-python/workflow.toml")),
    ("simulation.py", include_str!("../../../examples/gray-scott-python/simulation.py")),
    ("analysis.py", include_str!("../../../examples/gray-scott-python/analysis.py")),
    ("pictures.py", include_str!("../../../examples/gray-scott-python/pictures.py")),
];

/// Run a small Gray-Scott simulation in Python, with an analysis and pictures beside it; ends with a report.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Needs the Python package and NumPy. The programs are written to the directory first: read them, \
                  change them, and run them again by forebay run DIRECTORY/workflow.toml, or by this command."
)]
pub struct Args {
    /// Directory for the programs and the run.
    #[arg(value_name = "DIRECTORY", default_value = "forebay-demo")]
    folder: PathBuf,
    /// No progress.
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let python = self_command().and_then(|words| words.first().cloned()).unwrap_or("python3".into());
    has_packages(&python)?;
    let folder = &args.folder;
    check_path(folder)?;
    make_dir(folder)?;
    for (name, text) in FILES {
        let text = match name {
            WORKFLOW => text.replace(INTERPRETER, &quoted(&python)?),
            _ => text.to_string(),
        };
        write(&folder.join(name), &text, out)?;
    }
    run::run(&run::Args::with_report(folder.join(WORKFLOW), args.quiet), out)
}

/// Whether the interpreter has what the programs import.
fn has_packages(python: &OsString) -> Result<()> {
    let mut asked = Command::new(python);
    let asked = asked.args(["-c", "import forebay, numpy"]).stdin(Stdio::null()).output();
    let why = match &asked {
        Ok(done) if done.status.success() => return Ok(()),
        Ok(done) => String::from_utf8_lossy(&done.stderr).lines().last().unwrap_or("it failed").to_string(),
        Err(e) => e.to_string(),
    };
    let what = format!("{} cannot import forebay and numpy: {why}", python.to_string_lossy());
    Err(Error::new(Kind::NotPossibleHere, what).hint(
        "install the Python package (make wheel builds it into .venv; pip install its file elsewhere) and run \
         the forebay command that comes with it; or in a clone, without Python: make demo",
    ))
}

/// A word of TOML: a string of JSON is one.
fn quoted(word: &OsString) -> Result<String> {
    let text = word.to_str().ok_or_else(|| Error::new(Kind::Usage, "the interpreter's path is not UTF-8"))?;
    serde_json::to_string(text).map_err(|e| Error::new(Kind::Internal, e.to_string()))
}

/// Writes a file, or leaves what is there.
fn write(file: &Path, text: &str, out: &Output) -> Result<()> {
    match std::fs::File::create_new(file) {
        // A part of it would be taken for a change of the user's.
        Ok(mut new) => std::io::Write::write_all(&mut new, text.as_bytes())
            .inspect_err(|_| drop(std::fs::remove_file(file))),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => std::fs::read(file).map(|there| {
            if there != text.as_bytes() {
                out.aside(&format!(
                    "note: {} differs from the example and was not overwritten",
                    file.display()
                ));
            }
        }),
        Err(e) => Err(e),
    }
    .map_err(|e| Error::io(format!("cannot write {}", file.display()), e))
}
