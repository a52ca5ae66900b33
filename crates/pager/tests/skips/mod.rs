//! Skipping as a third result of a test: said on standard output and counted by the test driver.

use std::io::Write;

/// Says that `what` was not tested and why. The line goes to standard output past the capture of the test
/// harness, and into the file that FOREBAY_SKIPS names.
pub fn skipped(what: &str, why: &str) {
    let line = format!("SKIPPED {what}: {why}\n");
    let _ = std::io::stdout().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("FOREBAY_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("FOREBAY_SKIPS names a writable file");
    }
}
