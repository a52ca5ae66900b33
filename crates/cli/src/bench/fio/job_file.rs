//! fio's job files: sections of `option=value` lines, one section for each job.
//!
//! Guarantees: every line becomes an option, a section, an included file, or an error with its place. What the options
//! mean is known to `options`. As fio does, a `#` or `;` ends a line wherever it stands, and `${NAME}` is replaced by
//! the variable of the environment, `$ncpus`, `$pagesize` and `$mb_memory` by what they say.

use std::path::{Path, PathBuf};

use forebay_tier::{Error, Kind, Result};

/// How deep files may include each other.
const INCLUDES_MAX: usize = 8;

/// One option where it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its name.
    pub name: String,
    /// What stands behind `=`.
    pub value: Option<String>,
    /// `FILE:LINE`, or the command line.
    pub place: String,
}

/// One section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The text in brackets; `global` for the options of all jobs behind it.
    pub name: String,
    /// Its options, in their order.
    pub words: Vec<Word>,
}

impl Section {
    /// Whether its options are those of the jobs behind it.
    pub fn is_global(&self) -> bool {
        self.name == "global"
    }
}

#[cfg(test)]
impl Section {
    /// A section from words with blanks between them, as tests write it.
    pub fn of(name: &str, line: &str) -> Section {
        let word = |text: &str| {
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_string())),
                None => (text, None),
            };
            Word { name: name.into(), value, place: "a.fio:1".into() }
        };
        Section { name: name.into(), words: line.split_whitespace().map(word).collect() }
    }
}

/// Reads a file; `-` is standard input.
///
/// # Errors
/// `Usage`: no such file, a line that is none of the above; `PermissionDenied`, `Io`.
pub fn read(path: &Path) -> Result<Vec<Section>> {
    let mut sections = Vec::new();
    file(path, &mut sections, 0)?;
    Ok(sections)
}

fn file(path: &Path, sections: &mut Vec<Section>, depth: usize) -> Result<()> {
    if depth > INCLUDES_MAX {
        return Err(usage(path, 0, format!("files include each other more than {INCLUDES_MAX} deep")));
    }
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::new(Kind::Usage, format!("no job file {}", path.display()))
            .hint("forebay bench fio takes job files, or options: --name=a --rw=randread --size=64m"),
        std::io::ErrorKind::InvalidData => Error::new(Kind::Usage, format!("{} is no text", path.display())),
        _ => Error::io(format!("cannot read {}", path.display()), e),
    })?;
    for (number, line) in text.lines().enumerate() {
        one(path, number + 1, line, sections, depth)?;
    }
    Ok(())
}

fn one(path: &Path, number: usize, line: &str, sections: &mut Vec<Section>, depth: usize) -> Result<()> {
    let end = line.find(['#', ';']).unwrap_or(line.len());
    let line = line[..end].trim();
    if line.is_empty() {
        return Ok(());
    }
    if let Some(rest) = line.strip_prefix('[') {
        let name = rest.strip_suffix(']').map(str::trim).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| usage(path, number, format!("`{line}` is no section")))?;
        sections.push(Section { name: name.to_string(), words: Vec::new() });
        return Ok(());
    }
    if let Some(included) = line.strip_prefix("include ").map(str::trim) {
        return file(&beside(path, included), sections, depth + 1);
    }
    let (name, value) = match line.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (line, None),
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(usage(path, number, format!("`{line}` is no option")));
    }
    let value = value.map(|value| substituted(value).map_err(|e| usage(path, number, e))).transpose()?;
    let place = format!("{}:{number}", path.display());
    let section = sections
        .last_mut()
        .ok_or_else(|| usage(path, number, format!("`{line}` stands before the first section")))?;
    section.words.push(Word { name: name.to_string(), value, place });
    Ok(())
}

/// An included file lies where it says, else beside the one that includes it.
fn beside(path: &Path, included: &str) -> PathBuf {
    let as_written = PathBuf::from(included);
    if as_written.is_absolute() || as_written.exists() {
        return as_written;
    }
    path.parent().map_or(as_written.clone(), |folder| folder.join(&as_written))
}

/// With variables and fio's own words replaced.
pub fn substituted(value: &str) -> std::result::Result<String, String> {
    let mut text = String::new();
    let mut rest = value;
    while let Some(at) = rest.find("${") {
        let behind = &rest[at + 2..];
        let end = behind.find('}').ok_or_else(|| format!("`{value}` has an open brace"))?;
        text += &rest[..at];
        let name = &behind[..end];
        text += &std::env::var(name).map_err(|_| format!("${{{name}}} is not in the environment"))?;
        rest = &behind[end + 1..];
    }
    text += rest;
    let replaced =
        [("$ncpus", processors as fn() -> u64), ("$pagesize", page_bytes), ("$mb_memory", memory_mb)];
    for (word, number) in replaced {
        if text.contains(word) {
            text = text.replace(word, &number().to_string());
        }
    }
    Ok(text)
}

fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

fn memory_mb() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn usage(path: &Path, number: usize, what: impl Into<String>) -> Error {
    Error::new(Kind::Usage, what).with("file", path.display()).with("line", number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Section>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job.fio");
        std::fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn sections_options_and_comments() {
        let text = "; a comment\n[global]\nrw = randread  # behind\nnorandommap\n\n\
                    [ my job ]\nbs=4k;8k\nfilename=a=b\n";
        let sections = read_text(text).unwrap();
        assert_eq!(sections.len(), 2);
        assert!(sections[0].is_global());
        let words = |section: &Section| {
            let word = |w: &Word| (w.name.clone(), w.value.clone().unwrap_or("-".into()));
            section.words.iter().map(word).collect::<Vec<_>>()
        };
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(words(&sections[0]), [pair("rw", "randread"), pair("norandommap", "-")]);
        assert_eq!(sections[1].name, "my job");
        assert_eq!(words(&sections[1]), [pair("bs", "4k"), pair("filename", "a=b")]);
        assert!(sections[1].words[0].place.ends_with("job.fio:7"));
    }

    #[test]
    fn included_files_and_variables() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("base.inc"), "[global]\nsize=${CARGO_PKG_NAME}\n").unwrap();
        std::fs::write(dir.path().join("a.fio"), "include base.inc\n[a]\nnumjobs=$ncpus\nbs=$pagesize\n")
            .unwrap();
        let sections = read(&dir.path().join("a.fio")).unwrap();
        assert_eq!(sections[0].words[0].value.as_deref(), Some("forebay-cli"));
        assert!(sections[1].words.iter().all(|w| w.value.as_deref().unwrap().parse::<u64>().unwrap() > 0));
        std::fs::write(dir.path().join("loop.fio"), "include loop.fio\n").unwrap();
        assert!(read(&dir.path().join("loop.fio")).unwrap_err().to_string().contains("include each other"));
    }

    #[test]
    fn damaged_files_are_refused_with_their_line() {
        for (text, what) in [
            ("rw=read\n", "before the first section"),
            ("[a\nrw=read\n", "is no section"),
            ("[]\n", "is no section"),
            ("[a]\n=read\n", "is no option"),
            ("[a]\nrw read\n", "is no option"),
            ("[a]\nrw=${NO_SUCH_VARIABLE_HERE}\n", "not in the environment"),
            ("[a]\nrw=${OPEN\n", "open brace"),
            ("[a]\ninclude nowhere.inc\n", "no job file"),
        ] {
            let error = read_text(text).expect_err(text);
            assert_eq!(error.kind(), Kind::Usage, "{error}");
            assert!(error.to_string().contains(what), "{text:?}: {error}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("b"), [0xff, 0xfe, 0x00]).unwrap();
        assert!(read(&dir.path().join("b")).unwrap_err().to_string().contains("is no text"));
    }
}
