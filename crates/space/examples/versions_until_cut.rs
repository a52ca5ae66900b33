//! Puts versions until the power goes, and says of each when it is acknowledged; begun again, it first looks for all
//! that was promised. For `cargo xtask dax-machine --cuts`.
//!
//! usage: versions_until_cut DIRECTORY epoch|write ACKNOWLEDGED
//!
//! DIRECTORY lies on a DAX file system. ACKNOWLEDGED is the last version that an earlier run said, or `none`: it and
//! all later ones that are there, down to the oldest that the space keeps, have to be back with every byte. Prints
//! `back FIRST..LAST` or `back none`, then `version N` for each one put. Ends with status 1 when anything is missing,
//! is another one, or when the space promises less than to survive a loss of power.

use forebay_space::{Durability, Horizon, Mode, OpenOptions, Reader, Result, Retention, TierKind, Writer};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Versions kept.
const KEPT: u64 = 8;
/// Elements of the variables: one with several checksums, one of less than a page.
const VARIABLES: [(&str, u64); 2] = [("field", 40_000), ("few", 12)];

fn options(path: &Path, horizon: Horizon) -> OpenOptions {
    OpenOptions {
        path: Some(path.to_owned()),
        tier: Some(TierKind::Pmem),
        horizon: Some(horizon),
        quota_bytes: Some(64 << 20),
        retention: Some(Retention::Last(KEPT)),
        mode: Mode::Append,
        ..OpenOptions::default()
    }
}

/// What a version holds: no two of them have an element alike.
fn content(version: u64, elements: u64) -> Vec<u64> {
    (0..elements).map(|i| (version + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i << 20)).collect()
}

/// What is back, with every byte looked at.
fn back(path: &Path, horizon: Horizon) -> Result<std::result::Result<Option<(u64, u64)>, String>> {
    let observing = OpenOptions { observer: true, ..options(path, horizon) };
    let mut reader = Reader::open("versions", &observing)?;
    let range = reader.versions()?;
    for version in range.clone() {
        let mut opened = reader.open_version(version)?;
        for (name, elements) in VARIABLES {
            if opened.get_array::<u64>(name, None)? != content(version, elements) {
                return Ok(Err(format!("version {version} holds something else in {name}")));
            }
        }
    }
    reader.close()?;
    Ok(Ok((!range.is_empty()).then(|| (range.start, range.end - 1))))
}

/// Whether what is back has all that was promised.
fn kept(back: Option<(u64, u64)>, acknowledged: Option<u64>) -> bool {
    match (back, acknowledged) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some((first, last)), Some(acknowledged)) => {
            last >= acknowledged && first <= last.saturating_sub(KEPT - 1)
        }
    }
}

fn go(path: &Path, horizon: Horizon, acknowledged: Option<u64>) -> Result<String> {
    if path.exists() {
        match back(path, horizon)? {
            Err(wrong) => return Ok(wrong),
            Ok(found) => {
                let words = found.map_or("none".into(), |(first, last)| format!("{first}..{last}"));
                println!("back {words}");
                if !kept(found, acknowledged) {
                    return Ok(format!("back is {words}, acknowledged was {acknowledged:?}"));
                }
            }
        }
    } else if acknowledged.is_some() {
        return Ok(format!("the space is gone, acknowledged was {acknowledged:?}"));
    } else {
        println!("back none");
    }
    let mut writer = Writer::open("versions", &options(path, horizon))?;
    if writer.durability() != Durability::Power {
        return Ok(format!("the space promises no more than to survive {:?}", writer.durability()));
    }
    writer.resume()?;
    loop {
        let version = writer.begin_step()?;
        for (name, elements) in VARIABLES {
            writer.put_array(name, &[elements], &[0], &[elements], &content(version, elements))?;
        }
        writer.end_step()?;
        println!("version {version}");
        let _ = std::io::stdout().flush();
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, horizon, acknowledged] = words.as_slice() else {
        eprintln!("usage: versions_until_cut DIRECTORY epoch|write ACKNOWLEDGED");
        return ExitCode::from(2);
    };
    let horizon = if horizon == "write" { Horizon::Write } else { Horizon::Epoch };
    match go(&PathBuf::from(path), horizon, acknowledged.parse().ok()) {
        Ok(wrong) => println!("wrong {wrong}"),
        Err(e) => println!("wrong {e}"),
    }
    ExitCode::FAILURE
}
