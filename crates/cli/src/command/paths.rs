//! Paths relative to the working directory, and opening a file in the browser.

use std::path::Path;
use std::process::{Command, Stdio};

use super::output::Output;

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
