//! Plain files as the interface of a component: any program, in any language, unchanged.
//!
//! Guarantees: a file counts once, in order of arrival, when it was renamed into the directory or closed after
//! writing; names that start with `.` or end in `.tmp`, `.part` or `~` do not count, nor do empty files or what
//! lay there before. Each file is one version. When the watching falls so far behind that the kernel drops
//! events, that is an error, never a silent gap. Files that are written for a program appear whole, by rename,
//! under a name that no program looks for before.
//! Not here: removing the program's files; sub-directories; network file systems (their other hosts' writes raise
//! no events).
//!
//! Runs as a process of its own beside the component (the hidden verb `bridge`), so that it is a member of the
//! space like any other and its end is seen. Its standard input is held open by the runner while the component
//! lives: when it ends, what has arrived is carried over and the channel is closed.
//!
//! Variable and version in names: `T_0012.npy` becomes variable `T` (the stem without a trailing step number);
//! a version is written as `<variable>_<version, six digits>.npy`, and at the end of the stream an empty file
//! `END`. dtypes that NumPy lacks come as plain numbers of the same size (`bfloat16` as `uint16`, text as `uint8`).

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_space::{Dtype, Error, Kind, OpenOptions, Reader, Result, Writer};
use inotify::{EventMask, Inotify, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::npy;

/// Hidden verb of the command that calls [`bridge`].
pub const BRIDGE_VERB: &str = "bridge";

/// Written to standard output once the directory is watched.
const READY: &str = "ready";

/// How long the runner waits for that.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// In a directory that Forebay fills: what lies here may be removed by the next run.
const MARKER: &str = ".forebay";

/// Says that no more versions will come.
const END: &str = "END";

/// A program may take long between two files; the runner ends this process when the run ends.
const PATIENCE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Names of the trailing part of files that are still being written.
const UNFINISHED: [&str; 3] = [".tmp", ".part", "~"];

/// Carries files: `bridge out|in CHANNEL DIRECTORY`. Returns when the stream has ended.
///
/// # Errors
/// [`Kind::Usage`] for other arguments; all errors of reading and writing the channel;
/// [`Kind::Damaged`], [`Kind::UnknownFormat`] for a `.npy` file that cannot be passed on.
pub fn bridge(arguments: &[OsString]) -> Result<()> {
    let usage = || Error::new(Kind::Usage, "bridge is called by the runner: out|in CHANNEL DIRECTORY");
    let [side, channel, dir] = arguments else { return Err(usage()) };
    let channel = channel.to_str().ok_or_else(usage)?;
    match side.to_str() {
        Some("out") => files_out(channel, Path::new(dir)),
        Some("in") => files_in(channel, Path::new(dir)),
        _ => Err(usage()),
    }
}

/// Waits until each helper has said that it is ready in its standard output (`outputs`), or `failed` says that
/// one has ended.
pub(crate) fn wait_until_ready(outputs: &[PathBuf], mut failed: impl FnMut() -> bool) -> Result<()> {
    let begin = Instant::now();
    for output in outputs {
        while !std::fs::read_to_string(output).is_ok_and(|text| text.lines().any(|line| line == READY)) {
            if failed() {
                // Its failure is reported as that of any other process.
                return Ok(());
            }
            if begin.elapsed() > READY_WITHIN {
                return Err(Error::new(
                    Kind::TimedOut,
                    "the helper that watches a directory did not get ready",
                )
                .with("log", output.display()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Ok(())
}

fn say_ready() -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{READY}").and_then(|()| out.flush()).map_err(|e| Error::io("writing to stdout", e))
}

/// Becomes true when standard input ends: the component has ended.
fn component_ended() -> Result<Arc<AtomicBool>> {
    let ended = Arc::new(AtomicBool::new(false));
    let theirs = ended.clone();
    let wait = move || {
        let mut bytes = [0u8; 64];
        let mut input = std::io::stdin();
        while matches!(input.read(&mut bytes), Ok(1..)) {}
        theirs.store(true, Ordering::SeqCst);
    };
    std::thread::Builder::new().spawn(wait).map_err(|e| Error::io("starting a thread", e))?;
    Ok(ended)
}

fn options() -> OpenOptions {
    OpenOptions { timeout: PATIENCE, ..OpenOptions::default() }
}

/// Files that appear in `dir` become versions of `channel`.
fn files_out(channel: &str, dir: &Path) -> Result<()> {
    let mut watch = Watch::new(dir)?;
    let ended = component_ended()?;
    let mut writer = Writer::open(channel, &options())?;
    say_ready()?;
    loop {
        // Asked before looking: files that were closed before the end are in the queue by then.
        let last = ended.load(Ordering::SeqCst);
        let names = watch.arrived(Duration::from_millis(100))?;
        for name in &names {
            put_file(&mut writer, &dir.join(name))?;
        }
        if last && names.is_empty() {
            return writer.close();
        }
    }
}

/// Whether a file of this name is one that a program has finished.
fn counts(name: &str) -> bool {
    !name.starts_with('.') && !UNFINISHED.iter().any(|suffix| name.ends_with(suffix))
}

/// `T_0012.npy` gives `T`: the stem up to a trailing number after `_`, `-` or `.`; a stem that is all number
/// gives `data`.
fn variable_of(name: &str) -> &str {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let without = stem.trim_end_matches(|c: char| c.is_ascii_digit());
    if without.len() == stem.len() {
        return stem;
    }
    match without.strip_suffix(['_', '-', '.']) {
        Some("") => "data",
        Some(variable) => variable,
        None if without.is_empty() => "data",
        // `u10` is a name, not step 10 of `u`.
        None => stem,
    }
}

fn put_file(writer: &mut Writer, file: &Path) -> Result<()> {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("{name}: gone before it was read, not counted");
            return Ok(());
        }
        Err(e) => return Err(Error::io(format!("reading {}", file.display()), e)),
    };
    if bytes.is_empty() {
        eprintln!("{name}: empty, not counted");
        return Ok(());
    }
    let array = match name.ends_with(".npy") {
        true => npy::read_header(&bytes).map_err(|e| e.with("file", file.display()))?,
        false => npy::Header { dtype: Dtype::U8, shape: vec![bytes.len() as u64], data_offset: 0 },
    };
    // A space's variables have at least one dimension.
    let shape = if array.shape.is_empty() { vec![1] } else { array.shape };
    let start = vec![0; shape.len()];
    let version = writer.begin_step()?;
    writer.put(variable_of(name), array.dtype, &shape, &start, &shape, &bytes[array.data_offset..])?;
    writer.end_step()?;
    eprintln!("{name}: version {version}, {} bytes", bytes.len());
    Ok(())
}

/// A directory under watch.
struct Watch {
    inotify: Inotify,
    dir: PathBuf,
    buffer: Vec<u8>,
}

impl Watch {
    fn new(dir: &Path) -> Result<Watch> {
        let inotify = Inotify::init().map_err(|e| Error::io("watching for files", e))?;
        let mask = WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE | WatchMask::ONLYDIR | WatchMask::DELETE_SELF;
        inotify.watches().add(dir, mask).map_err(|e| {
            Error::io(format!("watching {}", dir.display()), e)
                .hint("the limits are in /proc/sys/fs/inotify; other programs may have used them up")
        })?;
        Ok(Watch { inotify, dir: dir.to_path_buf(), buffer: vec![0; 64 * 1024] })
    }

    /// Names that arrived, in order; waits up to `time` for the first.
    fn arrived(&mut self, time: Duration) -> Result<Vec<String>> {
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let mut fds = [PollFd::from_borrowed_fd(self.inotify.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(e) => return Err(Error::io("waiting for files", e.into())),
        }
        let watching = |e| Error::io(format!("watching {}", self.dir.display()), e);
        let events = self.inotify.read_events(&mut self.buffer).map_err(watching)?;
        let mut names = Vec::new();
        for event in events {
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                return Err(Error::new(
                    Kind::TooMany,
                    "files arrived faster than they could be read; some were missed",
                )
                .with("directory", self.dir.display())
                .hint("raise /proc/sys/fs/inotify/max_queued_events, or put through the library"));
            }
            if event.mask.intersects(EventMask::DELETE_SELF | EventMask::IGNORED) {
                return Err(Error::new(Kind::Io, "the watched directory was removed")
                    .with("directory", self.dir.display())
                    .hint("the program may remove files in it, not the directory itself"));
            }
            let name = event.name.unwrap_or_default();
            match name.to_str() {
                Some(name) if !event.mask.contains(EventMask::ISDIR) && counts(name) => {
                    names.push(name.to_owned())
                }
                Some(_) => {}
                None => eprintln!("{name:?}: not UTF-8, not counted"),
            }
        }
        Ok(names)
    }
}

/// Versions of `channel` are written into `dir`.
fn files_in(channel: &str, dir: &Path) -> Result<()> {
    empty_own_directory(dir)?;
    let ended = component_ended()?;
    say_ready()?;
    let mut reader = open_when_there(channel, &ended)?;
    while let Some(reader) = reader.as_mut() {
        match reader.begin_step(Some(Duration::from_millis(200))) {
            Ok(Some(version)) => {
                write_version(reader, version, dir)?;
                reader.end_step()?;
            }
            Ok(None) => break,
            // The program may have stopped reading; the channel must not wait for it then.
            Err(e) if e.kind() == Kind::TimedOut && ended.load(Ordering::SeqCst) => break,
            Err(e) if e.kind() == Kind::TimedOut => {}
            Err(e) => return Err(e),
        }
    }
    if let Some(reader) = reader {
        reader.close()?;
    }
    write_whole(dir, END, &[])
}

/// Opens the channel; `None` when the component ended before there was one.
fn open_when_there(channel: &str, ended: &AtomicBool) -> Result<Option<Reader>> {
    let begin = Instant::now();
    let short = OpenOptions { timeout: Duration::from_millis(500), ..OpenOptions::default() };
    loop {
        match Reader::open(channel, &short) {
            Ok(reader) => return Ok(Some(reader)),
            Err(e) if matches!(e.kind(), Kind::PeerMissing | Kind::TimedOut) => {
                if ended.load(Ordering::SeqCst) {
                    return Ok(None);
                }
                if begin.elapsed() > PATIENCE {
                    return Err(e);
                }
            }
            Err(e) => return Err(e),
        }
    }
}

fn write_version(reader: &mut Reader, version: u64, dir: &Path) -> Result<()> {
    for variable in reader.variables()? {
        let mut bytes = npy::write_header(variable.dtype, &variable.shape);
        let start = bytes.len();
        let elements: u64 = variable.shape.iter().product();
        bytes.resize(start + elements as usize * variable.dtype.size(), 0);
        reader.get(&variable.name, None, &mut bytes[start..])?;
        // A name may hold what a file name cannot.
        let name = variable.name.replace('/', ".");
        write_whole(dir, &format!("{name}_{version:06}.npy"), &bytes)?;
    }
    Ok(())
}

fn write_whole(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let hidden = dir.join(format!(".{name}.tmp"));
    let shown = dir.join(name);
    let written = std::fs::write(&hidden, bytes).and_then(|()| std::fs::rename(&hidden, &shown));
    written.map_err(|e| Error::io(format!("writing {}", shown.display()), e))
}

/// Makes sure that the program sees only files of this run: removes what an earlier run wrote here, refuses a
/// directory with files that Forebay did not write.
fn empty_own_directory(dir: &Path) -> Result<()> {
    let reading = |e| Error::io(format!("reading {}", dir.display()), e);
    let entries = dir.read_dir().map_err(reading)?.map(|entry| entry.map(|e| e.file_name()));
    let names: Vec<OsString> = entries.collect::<std::io::Result<_>>().map_err(reading)?;
    let marker = dir.join(MARKER);
    if !names.is_empty() && !marker.exists() {
        return Err(Error::new(Kind::Usage, "the directory for incoming files is not empty")
            .with("directory", dir.display())
            .hint("name an empty or new directory in files.in; Forebay empties it before the next run"));
    }
    for name in names.iter().filter(|name| is_own_file(name)) {
        let file = dir.join(name);
        std::fs::remove_file(&file).map_err(|e| Error::io(format!("removing {}", file.display()), e))?;
    }
    std::fs::write(&marker, "Forebay fills this directory; it is emptied before each run.\n")
        .map_err(|e| Error::io(format!("writing {}", marker.display()), e))
}

/// `END`, `<variable>_<six or more digits>.npy`, and both while they are written.
fn is_own_file(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let shown = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp")).unwrap_or(name);
    let version = shown.strip_suffix(".npy").and_then(|stem| stem.rsplit_once('_')).map(|(_, digits)| digits);
    shown == END || version.is_some_and(|d| d.len() >= 6 && d.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_names_come_from_file_names() {
        for (name, variable) in [
            ("T_0012.npy", "T"),
            ("T-3.npy", "T"),
            ("T.7.npy", "T"),
            ("u10.npy", "u10"),
            ("u10_5.npy", "u10"),
            ("0012.npy", "data"),
            ("_0012.npy", "data"),
            ("latest.txt", "latest"),
            ("plain", "plain"),
            ("grid_2d_0001.dat", "grid_2d"),
        ] {
            assert_eq!(variable_of(name), variable, "{name}");
        }
    }

    #[test]
    fn unfinished_names_do_not_count() {
        for name in [".x.npy", "x.npy.tmp", "x.part", "x~", ".forebay"] {
            assert!(!counts(name), "{name}");
        }
        assert!(counts("x.npy"));
    }

    #[test]
    fn files_arrive_by_close_and_by_rename_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("before.npy"), "was there").expect("writing");
        let mut watch = Watch::new(dir.path()).expect("a watch");
        std::fs::write(dir.path().join("a_1"), "x").expect("writing");
        std::fs::write(dir.path().join("b.tmp"), "x").expect("writing");
        std::fs::rename(dir.path().join("b.tmp"), dir.path().join("b_2")).expect("renaming");
        std::fs::create_dir(dir.path().join("folder")).expect("making");
        let open = std::fs::File::create(dir.path().join("open_3")).expect("writing");
        assert_eq!(watch.arrived(Duration::from_secs(5)).expect("events"), ["a_1", "b_2"]);
        assert!(watch.arrived(Duration::ZERO).expect("events").is_empty(), "open_3 is not closed yet");
        drop(open);
        assert_eq!(watch.arrived(Duration::from_secs(5)).expect("events"), ["open_3"]);
        drop(dir);
        assert!(watch.arrived(Duration::from_secs(5)).is_err(), "a removed directory is an error");
    }

    #[test]
    fn only_own_files_are_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        empty_own_directory(dir.path()).expect("a new directory");
        write_whole(dir.path(), "T_000003.npy", b"x").expect("writing");
        write_whole(dir.path(), END, b"").expect("writing");
        std::fs::write(dir.path().join("mine.txt"), "x").expect("writing");
        empty_own_directory(dir.path()).expect("our own directory");
        let mut names: Vec<_> =
            dir.path().read_dir().expect("list").flatten().map(|e| e.file_name()).collect();
        names.sort();
        assert_eq!(names, [MARKER, "mine.txt"]);
        let foreign = tempfile::tempdir().expect("a directory");
        std::fs::write(foreign.path().join("thesis.txt"), "x").expect("writing");
        assert_eq!(empty_own_directory(foreign.path()).expect_err("foreign files").kind(), Kind::Usage);
    }
}
