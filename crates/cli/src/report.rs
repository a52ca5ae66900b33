//! `forebay report`: turns the record of a run into one HTML file.
//!
//! Guarantees: prints the path of the file, relative to the working directory where it lies below it; opens a
//! browser only when asked, on a terminal with a display.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_flow::record::latest_run;
use forebay_tier::Result;
use serde::Serialize;

use crate::output::{schema, Output};
use crate::run::no_run;

/// Write a report of a run, one self-contained HTML file.
///
/// It shows who computed and who waited, bandwidth over time, latencies, how full the channels were, and
/// pictures of the field. Nothing in it is loaded from elsewhere.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Run directory; without one, the newest below ./runs.
    run: Option<PathBuf>,
    /// Open the report in a browser, on a terminal with a display.
    #[arg(long)]
    open: bool,
}

#[derive(Serialize)]
struct Body {
    run: String,
    file: String,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let place = args.run.as_deref().unwrap_or(Path::new("."));
    let run = latest_run(place).ok_or_else(|| no_run(place))?;
    let file = forebay_pages::run::report(&run)?;
    let body = Body { run: relative(&run), file: relative(&file) };
    out.result(schema::REPORT, &body, || body.file.clone() + "\n")?;
    if args.open {
        open_in_browser(&file, out);
    }
    Ok(0)
}

/// A path as a user in the working directory types it; absolute where it lies elsewhere.
pub fn relative(path: &Path) -> String {
    let Ok(here) = std::env::current_dir() else { return path.display().to_string() };
    // Both with links resolved, so that /tmp and what it points to are the same place.
    let (here, full) =
        (here.canonicalize().unwrap_or(here), path.canonicalize().unwrap_or(path.to_path_buf()));
    match full.strip_prefix(&here) {
        Ok(inside) if inside.as_os_str().is_empty() => ".".into(),
        Ok(inside) => inside.display().to_string(),
        Err(_) => path.display().to_string(),
    }
}

/// Shows a file in the user's browser, if there is a user with a display. Never fails: the path was printed.
pub fn open_in_browser(file: &Path, out: &Output) {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !out.stdout_is_terminal() || !(set("DISPLAY") || set("WAYLAND_DISPLAY")) {
        return;
    }
    let file = file.canonicalize().unwrap_or(file.to_path_buf());
    let browser = std::env::var_os("BROWSER").filter(|b| !b.is_empty());
    for program in browser.into_iter().chain(["xdg-open".into()]) {
        let quiet = Command::new(&program)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        if quiet.is_ok() {
            return;
        }
    }
    out.progress("no browser could be started");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_the_working_directory_are_short() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(relative(&here.join("src")), "src");
        assert_eq!(relative(&here), ".");
        assert_eq!(relative(Path::new("/")), "/");
    }
}
