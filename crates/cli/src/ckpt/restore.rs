//! `forebay ckpt restore`: takes the arrays of a step out, one .npy file each.
//!
//! Guarantees: the step is whole, every byte compared before; files are written under hidden names and renamed, and
//! none that exists is overwritten.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_checkpoint::format::Variable;
use forebay_checkpoint::{Extracted, Kind};
use forebay_flow::npy::write_header;
use forebay_space::format_bytes;
use forebay_tier::{Error, Result};
use serde::Serialize;

use crate::output::{schema, Output};

/// Export the arrays of the newest complete step (or of one step) as .npy files.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "An array that ranks share is put together; of one that every rank holds whole, rank 0's is taken.\n\
                  A program restores its arrays itself, by restore_latest.\n\
                  While no program runs, what is missing or damaged is brought back from redundancy first.\n\n\
                  Exit status: 0 done, 7 this is not a checkpoint directory, 8 no step is whole."
)]
pub struct Args {
    /// The directory that the program gave to Checkpoint.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The directory for the files, made if it is missing.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// This step instead of the newest.
    #[arg(long, value_name = "N")]
    step: Option<u64>,
}

#[derive(Serialize)]
struct Body<'a> {
    path: &'a Path,
    #[serde(flatten)]
    taken: &'a Extracted,
    files: &'a [Written],
}

#[derive(Serialize)]
struct Written {
    name: String,
    file: PathBuf,
    dtype: String,
    shape: Vec<u64>,
    bytes: usize,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    std::fs::create_dir_all(&args.to)
        .map_err(|e| Error::io(format!("cannot create {}", args.to.display()), e))?;
    let mut files = Vec::new();
    let taken = forebay_checkpoint::extract(&args.path, args.step, &mut |variable, bytes| {
        out.progress(&format!("writing {}", variable.name));
        files.push(write(&args.to, variable, bytes)?);
        Ok(())
    })?;
    let body = Body { path: &args.path, taken: &taken, files: &files };
    out.result(schema::CKPT_RESTORE, &body, || {
        let mut text = format!("step {} of run {} from {}\n", taken.step, taken.run, taken.place);
        text += &super::rejects(&taken.rejected);
        text += &super::repairs(&taken.repaired);
        for file in &files {
            text += &format!("{}  {}\n", file.file.display(), format_bytes(file.bytes as u64));
        }
        text
    })?;
    Ok(0)
}

/// The name of a variable as that of a file, another one for each: letters and digits, `_`, `-`, and `.` inside stay,
/// the bytes of everything else become `%XX`.
fn file_name(name: &str) -> String {
    let encoded = name.char_indices().map(|(at, c)| match c {
        c if c.is_alphanumeric() || "_-".contains(c) || (c == '.' && at > 0) => c.to_string(),
        c => c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("%{byte:02X}")).collect(),
    });
    encoded.collect()
}

fn write(dir: &Path, variable: &Variable, bytes: &[u8]) -> Result<Written> {
    let shown = file_name(&variable.name);
    let (path, hidden) = (dir.join(format!("{shown}.npy")), dir.join(format!(".{shown}.npy")));
    if path.exists() {
        return Err(
            Error::new(Kind::NameInUse, format!("{} exists", path.display())).hint("name an empty directory")
        );
    }
    let written = File::create(&hidden).and_then(|mut file| {
        file.write_all(&write_header(variable.dtype, &variable.shape))?;
        file.write_all(bytes)?;
        std::fs::rename(&hidden, &path)
    });
    written.map_err(|e| {
        let _ = std::fs::remove_file(&hidden);
        Error::io(format!("cannot write {}", path.display()), e)
    })?;
    Ok(Written {
        name: variable.name.clone(),
        file: path,
        dtype: variable.dtype.to_string(),
        shape: variable.shape.to_vec(),
        bytes: bytes.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn every_variable_has_a_file_of_its_own() {
        assert_eq!(file_name("u_1-a.b"), "u_1-a.b");
        assert_eq!(file_name("wärme"), "wärme");
        let names = ["a/b", "a_b", "a b", ".a", "a", "%2Ea", "a%2Fb", "..", "a\u{301}"];
        let files: std::collections::BTreeSet<String> = names.iter().map(|name| file_name(name)).collect();
        assert_eq!(files.len(), names.len(), "{files:?}");
        assert!(files.iter().all(|file| !file.starts_with('.') && !file.contains('/')), "{files:?}");
    }
}
