//! Looks into the demo's channel before it goes on after a loss of power, and says of each of its versions when it is
//! complete. For `cargo xtask dax-machine --tests`.
//!
//! usage: demo_until_cut look CHANNEL REFERENCE KEPT ACKNOWLEDGED
//!        demo_until_cut follow CHANNEL FROM
//!
//! CHANNEL is a path on a DAX file system. REFERENCE is a folder with the files U and V: what each version holds, one
//! behind the other, computed where no power was cut. The channel keeps at least KEPT versions. ACKNOWLEDGED is the
//! last version that an earlier run said, or `none`.
//!
//! `look` prints `back FIRST..LAST` or `back none`, or `wrong` and what, with status 1. `follow` prints `version N` for
//! each version from FROM on that is complete: from then on no loss of power may take it. It ends when it is killed, or
//! with `wrong` and who waits for whom when no version has become complete for long.

use forebay_space::{inspect, Error, Kind, MemberInfo, OpenOptions, Reader, Result};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long the demo may take to make its channel, on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long it may take to complete a version, which takes a fraction of a second; shorter than the limit of a boot.
const STEP_MAX: Duration = Duration::from_secs(200);

fn open(path: &str) -> Result<Reader> {
    let options =
        OpenOptions { path: Some(path.into()), observer: true, timeout: PATIENCE, ..OpenOptions::default() };
    Reader::open("gs", &options)
}

/// What is wrong, or what is back, with every byte compared.
fn back(
    path: &str,
    reference: &Path,
    kept: u64,
    acknowledged: Option<u64>,
) -> Result<std::result::Result<String, String>> {
    if !Path::new(path).exists() {
        return Ok(match acknowledged {
            None => Ok("none".into()),
            Some(last) => Err(format!("the channel is gone, acknowledged was {last}")),
        });
    }
    let mut reader = match open(path) {
        // The power went before the channel was one.
        Err(e) if e.kind() == Kind::PeerMissing && acknowledged.is_none() => return Ok(Ok("none".into())),
        opened => opened?,
    };
    let range = reader.versions()?;
    for version in range.clone() {
        let mut opened = reader.open_version(version)?;
        for name in ["U", "V"] {
            let found = opened.get_array::<f64>(name, None)?;
            let bytes: Vec<u8> = found.iter().flat_map(|cell| cell.to_ne_bytes()).collect();
            let mut wanted = vec![0; bytes.len()];
            let read = File::open(reference.join(name))
                .and_then(|file| file.read_exact_at(&mut wanted, version * bytes.len() as u64));
            if read.is_err() || wanted != bytes {
                return Ok(Err(format!("version {version} holds something else in {name}")));
            }
        }
    }
    reader.close()?;
    let promised = acknowledged.is_none_or(|last| range.end > last);
    Ok(match promised && range.start <= range.end.saturating_sub(kept) {
        true if range.is_empty() => Ok("none".into()),
        true => Ok(format!("{}..{}", range.start, range.end - 1)),
        false => Err(format!("back is {range:?}, acknowledged was {acknowledged:?}")),
    })
}

fn follow(path: &str, mut next: u64) -> Result<()> {
    let late = Instant::now() + PATIENCE;
    // Who only looks does not wait for a space that is not there yet.
    let reader = loop {
        match open(path) {
            Err(e) if e.kind() == Kind::PeerMissing && Instant::now() < late => std::thread::sleep(LOOK),
            opened => break opened?,
        }
    };
    let mut late = Instant::now() + STEP_MAX;
    loop {
        let complete = reader.latest()?.map_or(0, |version| version + 1);
        while next < complete {
            println!("version {next}");
            next += 1;
            late = Instant::now() + STEP_MAX;
        }
        if Instant::now() > late {
            return Err(stuck(path, next)?);
        }
        std::io::stdout().flush().map_err(|e| Error::io("cannot say what is complete", e))?;
        std::thread::sleep(LOOK);
    }
}

/// What holds the demo up, in one line.
fn stuck(path: &str, next: u64) -> Result<Error> {
    let info = inspect(path)?;
    let member = |m: &MemberInfo| {
        let MemberInfo { role, component, rank, alive, version, waiting_for, .. } = m;
        format!("{role} {rank} of {component}, alive {alive}, at {version}, waits for {waiting_for:?}")
    };
    let members: Vec<String> = info.members.iter().map(member).collect();
    let (state, oldest, complete) = (info.state, info.versions_oldest, info.versions_complete);
    let what = format!("version {next} is not complete after {} s", STEP_MAX.as_secs());
    Ok(Error::new(Kind::TimedOut, format!("{what}: {state}, {oldest}..{complete}; {}", members.join("; "))))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let wrong = match words.as_slice() {
        ["look", path, reference, kept, acknowledged] => {
            let kept = kept.parse().unwrap_or(1);
            match back(path, Path::new(reference), kept, acknowledged.parse().ok()) {
                Ok(Ok(back)) => {
                    println!("back {back}");
                    return ExitCode::SUCCESS;
                }
                Ok(Err(wrong)) => wrong,
                Err(e) => e.to_string(),
            }
        }
        ["follow", path, from] => match follow(path, from.parse().unwrap_or(0)) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(e) => e.to_string(),
        },
        _ => {
            eprintln!("usage: demo_until_cut look CHANNEL REFERENCE KEPT ACKNOWLEDGED | follow CHANNEL FROM");
            return ExitCode::from(2);
        }
    };
    println!("wrong {wrong}");
    ExitCode::FAILURE
}
