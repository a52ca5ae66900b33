//! The command line of `bench fio`: fio's own. Options of jobs, job files, and what is to be printed where.

use std::path::PathBuf;

use forebay_tier::{Error, Kind, Result};

use super::job_file::{self, Section, Word};
use super::options::{self, Takes};

/// What is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats {
    /// The text.
    pub normal: bool,
    /// A line of fields for each job.
    pub terse: bool,
    /// The document.
    pub json: bool,
    /// The document has all classes of all latencies.
    pub classes: bool,
}

/// Whether progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eta {
    /// On a terminal.
    Auto,
    /// Even into a file.
    Always,
    /// Never.
    Never,
}

/// What a person asked for.
#[derive(Debug)]
pub struct Asked {
    /// Jobs, and options of all jobs behind them.
    pub sections: Vec<Section>,
    /// Instead of standard output.
    pub output: Option<PathBuf>,
    pub formats: Formats,
    /// One document with the schema's name.
    pub document: bool,
    pub eta: Eta,
    /// Nothing is run.
    pub parse_only: bool,
    /// A job that writes is an error.
    pub read_only: bool,
    /// Only the list of options is printed; of one, if it has a name.
    pub help: Option<Option<String>>,
}

impl Default for Asked {
    fn default() -> Asked {
        Asked {
            sections: Vec::new(),
            output: None,
            formats: Formats::default(),
            document: false,
            eta: Eta::Auto,
            parse_only: false,
            read_only: false,
            help: None,
        }
    }
}

/// Reads the words behind `bench fio`, and the job files that they name.
///
/// # Errors
/// `Usage`, `UnknownKey`; what reading a file gives.
pub fn read(words: &[String]) -> Result<Asked> {
    let mut asked = Asked::default();
    let (mut files, mut only): (Vec<PathBuf>, Vec<String>) = (Vec::new(), Vec::new());
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) else {
            match word.as_str() {
                "-" => files.push("-".into()),
                _ if word.starts_with('-') => return Err(options::unknown(word, "the command line")),
                _ => files.push(word.into()),
            }
            continue;
        };
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (long, None),
        };
        let takes = takes(name);
        let value = value.or_else(|| match takes {
            Some(Takes::Value) => rest.next().cloned(),
            Some(Takes::Switch) => rest.next_if(|next| matches!(next.as_str(), "0" | "1")).cloned(),
            _ => None,
        });
        if name == "section" {
            only.extend(value.iter().cloned());
        } else if !own(&mut asked, name, value.as_deref())? {
            job_word(&mut asked.sections, name, value)?;
        }
    }
    for (number, path) in files.iter().enumerate() {
        let mut sections = job_file::read(path)?;
        // Jobs of a further file wait for those of the one before.
        let first = sections.iter_mut().find(|section| number > 0 && !section.is_global());
        if let Some(first) = first {
            let place = format!("{}, a further job file", path.display());
            first.words.insert(0, Word { name: "stonewall".into(), value: None, place });
        }
        asked.sections.append(&mut sections);
    }
    asked.sections.retain(|section| section.is_global() || only.is_empty() || only.contains(&section.name));
    if !asked.formats.json && !asked.formats.terse && !asked.formats.normal {
        asked.formats.normal = true;
    }
    Ok(asked)
}

fn takes(name: &str) -> Option<Takes> {
    match name {
        "name" | "output" | "output-format" | "eta" | "section" | "terse-version" => Some(Takes::Value),
        _ => options::find(name).map(|known| known.takes),
    }
}

/// Handles an option that is none of a job; false when it is one of a job.
fn own(asked: &mut Asked, name: &str, value: Option<&str>) -> Result<bool> {
    let needs = || {
        value.filter(|value| !value.is_empty()).ok_or_else(|| {
            Error::new(Kind::Usage, format!("--{name} needs a value")).hint(format!("--{name}=…"))
        })
    };
    match name {
        "output" => asked.output = Some(needs()?.into()),
        "output-format" => {
            needs()?.split(',').try_for_each(|format| one_format(&mut asked.formats, format))?
        }
        "eta" => {
            asked.eta = match needs()? {
                "auto" => Eta::Auto,
                "always" => Eta::Always,
                "never" => Eta::Never,
                other => {
                    return Err(Error::new(Kind::Usage, format!("--eta={other}")).hint("auto, always, never"))
                }
            }
        }
        "json" => asked.document = true,
        "parse-only" => asked.parse_only = true,
        "minimal" => asked.formats.terse = true,
        "terse-version" if value == Some("3") => {}
        "terse-version" => {
            return Err(Error::new(
                Kind::Usage,
                format!("--terse-version={} is not written here", value.unwrap_or("")),
            )
            .hint("version 3 is"))
        }
        "readonly" => asked.read_only = true,
        "cmdhelp" => asked.help = Some(value.filter(|value| *value != "all").map(str::to_string)),
        _ => return Ok(false),
    }
    Ok(true)
}

fn one_format(formats: &mut Formats, name: &str) -> Result<()> {
    match name {
        "normal" => formats.normal = true,
        "terse" => formats.terse = true,
        "json" => formats.json = true,
        "json+" => (formats.json, formats.classes) = (true, true),
        _ => {
            return Err(Error::new(Kind::Usage, format!("--output-format={name} is not written here"))
                .hint("normal, terse, json, json+; several with commas"))
        }
    }
    Ok(())
}

/// An option of a job: of the one that the last `--name` began, else of all.
fn job_word(sections: &mut Vec<Section>, name: &str, value: Option<String>) -> Result<()> {
    let place = "the command line";
    let value = value.map(|value| job_file::substituted(&value)).transpose();
    let value = value.map_err(|what| Error::new(Kind::Usage, what).with("option", name))?;
    if name == "name" {
        let name = value.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Error::new(Kind::Usage, "--name needs a value").hint("--name=JOB"))?;
        sections.push(Section { name, words: Vec::new() });
        return Ok(());
    }
    if options::find(name).is_none() {
        return Err(options::unknown(name, place));
    }
    if sections.is_empty() {
        sections.push(Section { name: "global".into(), words: Vec::new() });
    }
    let last = sections.last_mut().expect("just looked");
    last.words.push(Word { name: name.into(), value, place: place.into() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Result<Asked> {
        read(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn options_belong_to_the_job_before_them_or_to_all() {
        let asked =
            asked(&["--direct=1", "--name=a", "--rw", "read", "--time_based", "--name", "b", "--bs=8k"]);
        let sections = asked.unwrap().sections;
        let seen: Vec<(&str, usize)> = sections.iter().map(|s| (s.name.as_str(), s.words.len())).collect();
        assert_eq!(seen, [("global", 1), ("a", 2), ("b", 1)]);
        assert_eq!(sections[1].words[0].value.as_deref(), Some("read"));
        assert_eq!(sections[1].words[1].value, None);
    }

    #[test]
    fn job_files_come_behind_and_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (a, b) =
            (file("a", "[a]\nrw=read\n"), file("b", "[global]\nbs=4k\n[b]\nrw=read\n[c]\nrw=read\n"));
        let both = asked(&[&a, &b, "--output-format=json+,normal"]).unwrap();
        assert!(both.formats.normal && both.formats.json && both.formats.classes);
        let stones: Vec<bool> =
            both.sections.iter().map(|s| s.words.iter().any(|word| word.name == "stonewall")).collect();
        assert_eq!(stones, [false, false, true, false]);
        let part = asked(&["--section=c", &b]).unwrap();
        assert_eq!(part.sections.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["global", "c"]);
    }

    #[test]
    fn what_it_does_not_know_is_named() {
        for (words, what) in [
            (&["--iodept=4"][..], "iodepth"),
            (&["-x"], "-x"),
            (&["--output-format=yaml"], "yaml"),
            (&["--terse-version=5"], "terse-version=5"),
            (&["--name"], "--name needs"),
            (&["--eta=soon"], "soon"),
            (&["--output"], "--output needs"),
            (&["nowhere.fio"], "nowhere.fio"),
        ] {
            let error = asked(words).expect_err(what);
            assert_eq!(error.kind().exit_code(), 2);
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
