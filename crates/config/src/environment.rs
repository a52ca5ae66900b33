//! The `FOREBAY_*` environment variables: the one list of them, what they mean, and the check at `open`.
//!
//! Guarantees: a name that is near to one in [`variables`] (and is no `FOREBAY_CHANNEL_<NAME>`) is an error with
//! "did you mean", so that a misspelt one is never silently without effect; so is a value that cannot be
//! read. A name that is near to none is another program's (module systems set `FOREBAY_ROOT`): said once on
//! standard error. An empty value is the same as none. Not here: what the variables do. Functions take a look-up so
//! that they can be tested; [`process`] is the real one.

use std::str::FromStr;

pub use forebay_terms::spelling::did_you_mean;
use forebay_tier::{Error, Kind, Result};

use crate::form::Form;
use crate::row::Row;
use crate::table::{ChannelOptions, OPTIONS};
use crate::value::parse_number;

/// Gives the value of an environment variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One environment variable.
#[derive(Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    meaning: Meaning,
    /// Reads a value and throws the result away.
    read: fn(&str) -> Result<()>,
}

#[derive(Clone, Copy)]
enum Meaning {
    /// That of an option.
    Of(&'static Row),
    /// Of its own, one line.
    Own(&'static str),
}

impl Variable {
    /// What it means, one line: `when stores are made persistent: none | epoch | write (default none)`.
    pub fn meaning(&self) -> String {
        let row = match self.meaning {
            Meaning::Own(line) => return line.to_owned(),
            Meaning::Of(row) => row,
        };
        let help = row.help.trim_end_matches('.');
        let (first, rest) = help.split_at(1);
        // Of an abbreviation only the first letter would become small.
        let is_word = rest.starts_with(char::is_lowercase) || rest.starts_with(' ');
        let first = if is_word { first.to_lowercase() } else { first.to_owned() };
        let values = match row.form {
            Form::Number | Form::Text | Form::Seconds => String::new(),
            Form::Bytes if row.range.is_empty() => ", as 512MiB".to_owned(),
            _ => format!(": {}", row.values()),
        };
        format!("{first}{rest}{values} (default: {})", row.default)
    }
}

/// Prefix of every variable.
pub const PREFIX: &str = "FOREBAY_";

/// Prefix of the variables that hold the options of one channel as JSON.
pub const CHANNEL_PREFIX: &str = "FOREBAY_CHANNEL_";

/// Every variable: those of options, in the order of the table, then all others.
pub fn variables() -> impl Iterator<Item = Variable> {
    let of_row = |row: &'static Row| {
        row.variable.map(|name| Variable { name, meaning: Meaning::Of(row), read: row.check })
    };
    OPTIONS.iter().filter_map(of_row).chain(OTHERS.iter().copied())
}

/// Variables that are no option of `open`.
const OTHERS: &[Variable] = &[
    text("FOREBAY_DIR", "directory of spaces that are opened by short name (default: /dev/shm/forebay-UID)"),
    text("FOREBAY_NODE", "name of this process's node, for checkpoint levels with a directory for each node"),
    Variable {
        name: "FOREBAY_LOCAL_RANK",
        meaning: Meaning::Own(
            "rank among the processes of this node, beside FOREBAY_RANK (default: from the launcher)",
        ),
        read: |t| parse_number(t).map(drop),
    },
    Variable {
        name: "FOREBAY_LOCAL_SIZE",
        meaning: Meaning::Own("number of processes of the group on this node (default: from the launcher)"),
        read: |t| parse_number(t).map(drop),
    },
    text("FOREBAY_RUN", "directory of the run that this process belongs to"),
    Variable {
        name: "FOREBAY_RUN_NODES",
        meaning: Meaning::Own("number of nodes of that run (default: one)"),
        read: |t| parse_number(t).map(drop),
    },
    text("FOREBAY_TRACE", "directory into which every writer and reader writes its steps"),
    Variable {
        name: "FOREBAY_ENGINE",
        meaning: Meaning::Own(
            "how bytes move between files and memory: io_uring or threads (default: io_uring where allowed)",
        ),
        read: |t| forebay_tier::engine::Choice::from_str(t).map(drop),
    },
    text("FOREBAY_MEM", "job whose budget the large allocations of this process are in (set by forebay mem)"),
    Variable {
        name: "FOREBAY_SPIN_US",
        meaning: Meaning::Own("microseconds that a waiting call spins before it sleeps"),
        read: |t| parse_number(t).map(drop),
    },
    Variable {
        name: "FOREBAY_FAULT",
        meaning: Meaning::Own(
            "fault injection plan of this process's pools, for tests, as in write:enospc@3,persist:eio@1",
        ),
        read: |t| forebay_tier::adapter::fault::FaultPlan::parse(t).map(drop),
    },
    text("FOREBAY_SKIPS", "tests only: file in which skipped tests are counted"),
    text("FOREBAY_REFERENCE", "tests only: folder of the published figures to compare with"),
];

/// A variable whose value may be any text.
const fn text(name: &'static str, line: &'static str) -> Variable {
    Variable { name, meaning: Meaning::Own(line), read: |_| Ok(()) }
}

/// The value of a variable in this process; `None` also where it is not UTF-8 (which [`check`] refuses).
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The value of a variable, unless it is empty.
pub fn value(name: &str, lookup: Lookup<'_>) -> Option<String> {
    lookup(name).filter(|text| !text.trim().is_empty())
}

/// The value of a variable, read; `None` when it is not set.
///
/// # Errors
/// [`Kind::UnknownEnvironment`] when it cannot be read.
pub fn parsed<T>(name: &str, lookup: Lookup<'_>, read: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
    value(name, lookup).map(|text| readable(name, &text, read(&text))).transpose()
}

/// Turns a failed reading into an error that names the variable.
pub(crate) fn readable<T>(name: &str, text: &str, read: Result<T>) -> Result<T> {
    read.map_err(|error| {
        // An unknown key inside a table keeps its kind: it has "did you mean" of its own.
        if matches!(error.kind(), Kind::UnknownKey | Kind::UnknownEnvironment) {
            return error;
        }
        let hint = error.hint_text().map(String::from);
        let named = Error::new(Kind::UnknownEnvironment, format!("{name}=`{text}`: {}", error.message()));
        match hint {
            Some(hint) => named.hint(hint),
            None => named,
        }
    })
}

/// Whether the value of a channel's variable is its table. A word in FOREBAY_CHANNEL_KIND is said to all channels; a
/// table there is that of the channel called `kind`.
pub(crate) fn holds_table(variable: &str, text: &str) -> bool {
    is_of_channel(variable) && (variable != "FOREBAY_CHANNEL_KIND" || text.trim_start().starts_with('{'))
}

/// The variable that holds the options of the channel `name`: `heat-2d` gives `FOREBAY_CHANNEL_HEAT_2D`. Of a
/// path the last part counts.
pub fn channel_variable(name: &str) -> String {
    let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
    let upper = last.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    format!("{CHANNEL_PREFIX}{}", upper.collect::<String>())
}

/// Checks every `FOREBAY_*` variable of this process. Of foreign ones it says on standard error, once in a process,
/// that they have no effect.
///
/// # Errors
/// [`Kind::UnknownEnvironment`]: a name that looks like a misspelt one, or a value that cannot be read.
/// [`Kind::UnknownKey`]: an unknown key in the table of a channel.
pub fn check() -> Result<()> {
    static SAID: std::sync::Once = std::sync::Once::new();
    let mut foreign = Vec::new();
    for (name, text) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|n| n.starts_with(PREFIX)) else { continue };
        let text = text.to_str().ok_or_else(|| {
            Error::new(Kind::UnknownEnvironment, format!("the value of {name} is not UTF-8"))
        })?;
        check_one(name, text)?;
        if !is_known(name) {
            foreign.push(name.to_owned());
        }
    }
    if !foreign.is_empty() {
        foreign.sort();
        SAID.call_once(|| {
            eprintln!("forebay: warning: {} is ignored: not a variable of Forebay", foreign.join(", "))
        });
    }
    Ok(())
}

/// Whether a name is one of [`variables`], or a channel's.
fn is_known(name: &str) -> bool {
    variables().any(|v| v.name == name) || name.starts_with(CHANNEL_PREFIX)
}

/// Whether a name is a channel's.
fn is_of_channel(name: &str) -> bool {
    name.strip_prefix(CHANNEL_PREFIX).is_some_and(|channel| !channel.is_empty())
}

/// Whether module systems and package managers set such a name for every package. By chance some of these are near to
/// short names of ours, whatever the rule.
fn is_of_installation(rest: &str) -> bool {
    const NAMES: &[&str] = &[
        "ARCH", "BASE", "BIN", "HOME", "INC", "INCLUDE", "LIB", "LIB64", "LIBDIR", "LIBS", "LINK", "MAN",
        "MODE", "MODULE", "NAME", "PATH", "PREFIX", "ROOT", "SITE", "VERSION",
    ];
    NAMES
        .iter()
        .any(|name| rest == *name || rest.strip_suffix(name).is_some_and(|front| front.ends_with('_')))
}

/// The variable that an unknown name is most likely meant to be.
fn near(name: &str) -> Option<&'static str> {
    if is_of_installation(name.strip_prefix(PREFIX)?) {
        return None;
    }
    // Without the prefix: it would make each name near to each.
    let rest = |name: &'static str| name.strip_prefix(PREFIX).unwrap_or(name);
    let meant = did_you_mean(name.strip_prefix(PREFIX)?, variables().map(|v| rest(v.name)))?;
    variables().map(|v| v.name).find(|known| rest(known) == meant)
}

/// Checks one variable. Names that do not begin with `FOREBAY_`, or are near to no variable, are none of ours.
///
/// # Errors
/// As [`check`].
pub fn check_one(name: &str, text: &str) -> Result<()> {
    if !name.starts_with(PREFIX) {
        return Ok(());
    }
    let variable = variables().find(|v| v.name == name);
    if text.trim().is_empty() && (variable.is_some() || is_of_channel(name)) {
        return Ok(());
    }
    if holds_table(name, text) {
        return ChannelOptions::from_json(name, text).map(drop);
    }
    if let Some(variable) = variable {
        return readable(name, text, (variable.read)(text));
    }
    let error = || Error::new(Kind::UnknownEnvironment, format!("there is no environment variable {name}"));
    match near(name) {
        Some(near) => Err(error().hint(format!("did you mean {near}?"))),
        None if is_known(name) => Err(error().hint("the name of a channel follows FOREBAY_CHANNEL_")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_with_readable_values_pass() {
        for (name, text) in [
            ("FOREBAY_TIMEOUT", "0.5"),
            ("FOREBAY_QUOTA", "4GiB"),
            ("FOREBAY_QUOTA", ""),
            ("FOREBAY_READERS", "analysis:3"),
            ("FOREBAY_CHANNEL_KIND", "files"),
            ("FOREBAY_CHANNEL_HEAT", r#"{"quota":"1GiB"}"#),
            ("FOREBAY_CHANNEL_KIND", r#"{"quota":"1GiB"}"#),
            ("FOREBAY_SKIPS", "/tmp/skips"),
            ("FOREBAY_REFERENCE", "1"),
            ("PATH", "x"),
        ] {
            check_one(name, text).unwrap();
        }
    }

    #[test]
    fn unknown_names_say_what_was_meant() {
        for (name, near) in [
            ("FOREBAY_TEIR", "FOREBAY_TIER"),
            ("FOREBAY_QUOTAS", "FOREBAY_QUOTA"),
            ("FOREBAY_CHANEL_KIND", "FOREBAY_CHANNEL_KIND"),
            ("FOREBAY_RETAINTION", "FOREBAY_RETENTION"),
        ] {
            let error = check_one(name, "1").unwrap_err();
            assert_eq!(error.kind(), Kind::UnknownEnvironment);
            assert_eq!(error.hint_text(), Some(format!("did you mean {near}?").as_str()));
        }
        assert_eq!(check_one("FOREBAY_CHANNEL_", "{}").unwrap_err().kind(), Kind::UnknownEnvironment);
    }

    #[test]
    fn what_installations_set_for_every_package_is_not_refused() {
        for rest in [
            "ROOT",
            "HOME",
            "PATH",
            "BASE",
            "PREFIX",
            "VERSION",
            "BIN",
            "LIB",
            "INC",
            "INCLUDE",
            "SITE",
            "MODE",
            "NAME",
            "LINK",
            "TIER_LIB",
            "SIZE_VERSION",
            "EBROOT",
            "XYZZY_PLUGH",
        ] {
            check_one(&format!("{PREFIX}{rest}"), "/opt/forebay").unwrap();
        }
    }

    #[test]
    fn every_unreadable_value_names_its_variable() {
        for (name, text) in [
            ("FOREBAY_RANK", "-1"),
            ("FOREBAY_SIZE", "many"),
            ("FOREBAY_TIMEOUT", "soon"),
            ("FOREBAY_TIER", "floppy"),
            ("FOREBAY_QUOTA", "64M"),
            ("FOREBAY_SEGMENT", "big"),
            ("FOREBAY_SPILL", "/scratch,quota"),
            ("FOREBAY_WHEN_FULL", "panic"),
            ("FOREBAY_HORIZON", "far"),
            ("FOREBAY_RETENTION", "last:0"),
            ("FOREBAY_CHECKSUM", "maybe"),
            ("FOREBAY_BATCH", "much"),
            ("FOREBAY_CHANNEL_KIND", "pigeon"),
            ("FOREBAY_READERS", "a:0"),
            ("FOREBAY_SCOPE", "world"),
            ("FOREBAY_SPIN_US", "1.5"),
            ("FOREBAY_FAULT", "write:melt"),
            ("FOREBAY_CHANNEL_HEAT", "files"),
        ] {
            let error = check_one(name, text).unwrap_err();
            assert_eq!(error.kind(), Kind::UnknownEnvironment, "{name}");
            assert!(error.message().contains(name), "{error}");
        }
        assert_eq!(check_one("FOREBAY_CHANNEL_HEAT", r#"{"x":1}"#).unwrap_err().kind(), Kind::UnknownKey);
    }

    #[test]
    fn channels_have_a_variable_each() {
        assert_eq!(channel_variable("heat-2d.v"), "FOREBAY_CHANNEL_HEAT_2D_V");
        assert_eq!(channel_variable("/scratch/run/heat/"), "FOREBAY_CHANNEL_HEAT");
    }

    #[test]
    fn the_list_is_in_good_order() {
        let all: Vec<Variable> = variables().collect();
        for (i, variable) in all.iter().enumerate() {
            assert!(variable.name.starts_with(PREFIX) && !variable.meaning().is_empty());
            assert!(all[..i].iter().all(|v| v.name != variable.name), "{} is twice", variable.name);
        }
    }

    #[test]
    fn the_meaning_of_an_option_is_said_in_a_line() {
        let meaning = |name: &str| variables().find(|v| v.name == name).expect(name).meaning();
        assert_eq!(
            meaning("FOREBAY_HORIZON"),
            "when stores are made persistent: none | epoch | write (default: none)"
        );
        assert!(meaning("FOREBAY_CHECKSUM").starts_with("CRC-32C of"), "{}", meaning("FOREBAY_CHECKSUM"));
    }
}
