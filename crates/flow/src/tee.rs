//! What the ranks of a run print, copied to the runner's standard error while they print it.
//!
//! Guarantees: the logs stay files that ranks write directly, so that no rank ever waits for this copy and nothing is
//! lost with it; each whole line comes once, behind the name of its log (`sim.0 | `, `sim.0! | ` for its standard
//! error), an unfinished last line at the end. Lines of different logs come in no exact order.
//! Not here: the order in time between two logs, which files do not hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_space::{Error, Result};

/// Time between two looks at the logs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A line without an end is printed in parts of this size.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The thread that copies; ends with a last look when it is dropped.
#[derive(Debug)]
pub(crate) struct Tee {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tee {
    /// Starts copying every log in a folder, those made later as well.
    pub(crate) fn start(logs: &Path) -> Result<Tee> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, logs) = (stop.clone(), logs.to_path_buf());
        let thread = std::thread::Builder::new()
            .name("forebay-tee".to_owned())
            .spawn(move || copy(&seen, &logs))
            .map_err(|e| Error::io("starting the thread that copies the logs", e))?;
        Ok(Tee { stop, thread: Some(thread) })
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has been printed; the logs are whole all the same.
            let _ = thread.join();
        }
    }
}

/// A log that is being copied.
struct Followed {
    label: String,
    file: File,
    /// Begin of a line whose end has not come.
    begun: Vec<u8>,
}

fn copy(stop: &AtomicBool, logs: &Path) {
    let mut followed: BTreeMap<PathBuf, Followed> = BTreeMap::new();
    loop {
        // Read before the look, so that the last look comes after the end of all ranks.
        let is_last = stop.load(Ordering::SeqCst);
        for path in logs.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()) {
            if !followed.contains_key(&path) {
                followed.extend(Followed::open(&path).map(|log| (path, log)));
            }
        }
        followed.values_mut().for_each(|log| log.print_new(is_last));
        if is_last {
            return;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

impl Followed {
    fn open(path: &Path) -> Option<Followed> {
        let name = path.file_name()?.to_str()?;
        let label = match name.strip_suffix(".err") {
            Some(name) => format!("{name}!"),
            None => name.strip_suffix(".out")?.to_owned(),
        };
        Some(Followed { label, file: File::open(path).ok()?, begun: Vec::new() })
    }

    /// Prints the lines that have come; with `all`, also one without an end.
    fn print_new(&mut self, all: bool) {
        let mut bytes = vec![0; LINE_BYTES_MAX];
        while let Ok(read @ 1..) = self.file.read(&mut bytes) {
            self.begun.extend_from_slice(&bytes[..read]);
            let whole = match self.begun.iter().rposition(|b| *b == b'\n') {
                Some(at) => at + 1,
                None if self.begun.len() >= LINE_BYTES_MAX => self.begun.len(),
                None => 0,
            };
            let rest = self.begun.split_off(whole);
            self.print();
            self.begun = rest;
        }
        if all {
            self.print();
        }
    }

    fn print(&mut self) {
        let text = String::from_utf8_lossy(&self.begun);
        let lines: String = text.lines().map(|line| format!("{} | {line}\n", self.label)).collect();
        // Standard error that is gone takes nothing away from the logs.
        let _ = std::io::stderr().lock().write_all(lines.as_bytes());
        self.begun.clear();
    }
}
