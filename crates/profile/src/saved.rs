//! Saved profiles: files in one folder of the user, `$XDG_DATA_HOME/forebay/profiles` (by default
//! `~/.local/share/forebay/profiles`).
//!
//! Guarantees: a file of that folder holds a profile of the same name; saving replaces a file as a whole or not at all;
//! no saved profile has the name of a platform. Nothing is made before something is saved.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_terms::spelling::did_you_mean;
use forebay_terms::{Error, Kind, Result};

use super::{check, platforms, Profile};

/// The folder of the saved profiles of one user.
#[derive(Clone, Debug)]
pub struct Saved {
    dir: PathBuf,
}

impl Saved {
    /// The folder by the environment: `XDG_DATA_HOME` where it is an absolute path, else below `HOME`.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`] when neither says where.
    pub fn of_user() -> Result<Saved> {
        Saved::of(std::env::var_os("XDG_DATA_HOME"), std::env::var_os("HOME"))
    }

    fn of(data: Option<OsString>, home: Option<OsString>) -> Result<Saved> {
        let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|p| p.is_absolute());
        let data = absolute(data).or_else(|| absolute(home).map(|home| home.join(".local/share")));
        let data = data.ok_or_else(|| {
            Error::new(Kind::NotPossibleHere, "the directory for saved profiles is unknown")
                .hint("set XDG_DATA_HOME or HOME to an absolute path, or give files instead of names")
        })?;
        Ok(Saved { dir: data.join("forebay/profiles") })
    }

    /// Saved profiles in another folder.
    pub fn at(dir: impl Into<PathBuf>) -> Saved {
        Saved { dir: dir.into() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of a name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.toml"))
    }

    /// Names of what is saved, in order. A folder that does not exist holds nothing.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io(format!("reading {}", self.dir.display()), e)),
        };
        let name_of = |entry: std::fs::DirEntry| {
            let file = entry.file_name();
            file.to_str()?.strip_suffix(".toml").filter(|n| check::is_name(n)).map(str::to_owned)
        };
        let mut names: Vec<String> = entries.flatten().filter_map(name_of).collect();
        names.sort();
        Ok(names)
    }

    /// Reads a saved profile.
    ///
    /// # Errors
    /// As [`Profile::read`]; [`Kind::Damaged`] when the file holds a profile of another name.
    pub fn read(&self, name: &str) -> Result<Profile> {
        let profile = Profile::read(&self.file(name))?;
        match profile.name == name {
            true => Ok(profile),
            false => Err(Error::new(Kind::Damaged, format!("the file of {name} contains another profile"))
                .with("name", &profile.name)
                .with("file", self.file(name).display())),
        }
    }

    /// Saves a profile under its name; `replace` allows to lose the one that has it. Returns the file.
    ///
    /// # Errors
    /// As [`Profile::check`]; [`Kind::Usage`] when the name is a platform's or, without `replace`, taken; those of
    /// writing files.
    pub fn save(&self, profile: &Profile, replace: bool) -> Result<PathBuf> {
        profile.check()?;
        if platforms::is_platform(&profile.name) {
            return Err(Error::new(Kind::Usage, format!("{} is the name of a platform", profile.name))
                .hint("save it under another name: --name"));
        }
        let file = self.file(&profile.name);
        if !replace && file.exists() {
            return Err(Error::new(Kind::Usage, format!("a profile is already saved as {}", profile.name))
                .with("file", file.display())
                .hint("use --replace to overwrite it, or --name for another name"));
        }
        std::fs::create_dir_all(&self.dir)
            .map_err(|e| Error::io(format!("cannot create {}", self.dir.display()), e))?;
        write_whole(&file, profile.text()?.as_bytes())?;
        Ok(file)
    }

    /// The profile that a word means: a file where it looks like one (with `/`, `.toml` or `.json`), else a saved
    /// profile, else a platform.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`]: there is none; those of reading it.
    pub fn find(&self, word: &str) -> Result<Profile> {
        if word.contains('/') || word.ends_with(".toml") || word.ends_with(".json") {
            return Profile::read(Path::new(word));
        }
        if check::is_name(word) && self.file(word).exists() {
            return self.read(word);
        }
        if platforms::is_platform(word) {
            return platforms::platform(word);
        }
        let mut known = self.names()?;
        known.extend(platforms::names().map(str::to_owned));
        let error = Error::new(Kind::UnknownComponent, format!("profile {word} does not exist"));
        Err(match did_you_mean(word, known.iter().map(String::as_str)) {
            Some(close) => error.hint(format!("did you mean {close}?")),
            None if Path::new(word).exists() => error.hint(format!("for the file use ./{word}")),
            None => error.hint("forebay probe ls lists saved profiles and platforms"),
        })
    }

    /// The profile that was taken last, by its date; `None` when nothing is saved. One that cannot be read is passed
    /// over.
    pub fn newest(&self) -> Result<Option<Profile>> {
        let profiles = self.names()?.into_iter().filter_map(|name| self.read(&name).ok());
        Ok(profiles.max_by(|a, b| a.date.cmp(&b.date)))
    }
}

/// Writes a file beside its place and moves it there, so that no process sees half of it.
pub fn write_whole(file: &Path, bytes: &[u8]) -> Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || {
        let mut new = std::fs::File::create(&beside)?;
        new.write_all(bytes)?;
        new.sync_all()?;
        std::fs::rename(&beside, file)
    };
    write().map_err(|e| {
        // What could not be written whole is not left in part.
        let _ = std::fs::remove_file(&beside);
        Error::io(format!("writing {}", file.display()), e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_profile_comes_back_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let saved = Saved::at(dir.path().join("deep/profiles"));
        assert!(saved.names().unwrap().is_empty() && saved.newest().unwrap().is_none());
        let mut profile = Profile::new("node-1", "2026-03-01");
        let file = saved.save(&profile, false).unwrap();
        assert_eq!(saved.read("node-1").unwrap(), profile);
        assert_eq!(saved.find("node-1").unwrap(), profile);
        assert_eq!(saved.find(file.to_str().unwrap()).unwrap(), profile);
        assert_eq!(saved.save(&profile, false).unwrap_err().kind(), Kind::Usage);
        profile.date = "2026-04-01".into();
        saved.save(&profile, true).unwrap();
        assert_eq!(saved.newest().unwrap(), Some(profile));
        assert_eq!(saved.names().unwrap(), ["node-1"]);
        assert_eq!(std::fs::read_dir(saved.dir()).unwrap().count(), 1, "nothing else was left");
    }

    #[test]
    fn names_that_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let saved = Saved::at(dir.path());
        for (name, kind) in [("p4800x", Kind::Usage), ("../x", Kind::BadName), ("a.toml", Kind::BadName)] {
            assert_eq!(saved.save(&Profile::new(name, "2026"), true).unwrap_err().kind(), kind, "{name}");
        }
        assert_eq!(saved.find("p480x").unwrap_err().hint_text(), Some("did you mean p4800x?"));
        std::fs::write(saved.file("other"), Profile::new("one", "2026").text().unwrap()).unwrap();
        assert_eq!(saved.find("other").unwrap_err().kind(), Kind::Damaged);
    }

    #[test]
    fn the_folder_is_told_by_the_environment() {
        let of = |data: Option<&str>, home: Option<&str>| {
            Saved::of(data.map(OsString::from), home.map(OsString::from))
                .map(|s| s.dir().display().to_string())
        };
        assert_eq!(of(Some("/d"), Some("/h")).unwrap(), "/d/forebay/profiles");
        assert_eq!(of(Some("relative"), Some("/h")).unwrap(), "/h/.local/share/forebay/profiles");
        assert_eq!(of(None, None).unwrap_err().kind(), Kind::NotPossibleHere);
    }
}
