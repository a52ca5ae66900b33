//! A channel of a workflow: its table in the file, and what programs are told of it.
//!
//! Guarantees: of the options of a space, a table takes those that `forebay_config` lets a workflow file say, with
//! their checks; beside them the three keys that are the runner's own. A key that is neither is an error at the key.
//! Not here: what may not be said together (`workflow`).

use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

use forebay_config::environment::channel_variable;
use forebay_config::{ChannelOptions, Emulation, Mechanism, Mode, Retention, SpillTier, OPTIONS};
use forebay_model::plan::Locality;
use forebay_space::Horizon;
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::emulate;
use crate::workflow::{Component, Workflow};

/// A space used as the stream from one component to others.
#[derive(Clone, Debug)]
pub struct Channel {
    /// Short name; what programs open.
    pub name: String,
    /// What the file says about its space, paths as the file has them; a plan says some of it anew.
    pub options: ChannelOptions,
    /// Stays after the run; its retention is then `forever` unless said otherwise.
    pub keep: bool,
    /// A tier that is not there, divided by K so that this machine carries it: `PLATFORM:TIER[/K]`.
    pub emulate: Option<String>,
    /// Beside whom the memory of an emulated channel lies (`writer`, `reader`), all others being remote; or
    /// `interleaved`: half of it beside either side.
    pub near: Option<Locality>,
    /// The component that writes it.
    pub writer: String,
    /// The components that read it, in the order of the file.
    pub readers: Vec<String>,
    /// The medium that it is emulated as, once the run has settled it.
    pub emulation: Option<Emulation>,
    /// Whether this runner starts writers of it: not so where all are on other nodes.
    pub is_written_here: bool,
}

impl Channel {
    /// What inspection calls take: the path when the file gives one, else the short name.
    pub fn location(&self, dir: &Path) -> String {
        match &self.options.path {
            Some(path) => dir.join(path).to_string_lossy().into_owned(),
            None => self.name.clone(),
        }
    }

    /// Name of the environment variable that carries the channel's options.
    pub fn variable(&self) -> String {
        channel_variable(&self.name)
    }

    /// Whether it is a file per object.
    pub fn is_files(&self) -> bool {
        self.options.kind == Some(Mechanism::Files)
    }

    /// What programs are told of it: what the file says (or the plan, where there is one), and all reader groups ahead
    /// of time, so that no version goes before each of them has seen it. A component is also told on which side of an
    /// emulated medium it stands.
    pub(crate) fn told(&self, workflow: &Workflow, component: Option<&str>) -> ChannelOptions {
        let mut told = self.options.clone();
        told.path = told.path.map(|_| self.location(&workflow.dir).into());
        let absolute = |tier: SpillTier| SpillTier { path: workflow.dir.join(&tier.path), ..tier };
        told.spill = told.spill.map(|tiers| tiers.into_iter().map(absolute).collect());
        told.retention = told.retention.or(self.keep.then_some(Retention::Forever));
        told.mode = told.mode.filter(|mode| *mode != Mode::default());
        told.replace = told.replace.filter(|replace| *replace);
        told.emulate = self.emulation.clone();
        told.locality =
            component.filter(|_| told.emulate.is_some()).map(|name| emulate::locality(self, name));
        let groups = self.readers.iter().filter_map(|name| workflow.component(name));
        // The helper that carries files is one reader, whatever the component's ranks.
        let size = |c: &Component| if c.files.input.is_some() { 1 } else { c.ranks };
        let readers: Vec<(String, u32)> = groups.map(|c| (c.name.clone(), size(c))).collect();
        told.readers = (!readers.is_empty()).then_some(readers);
        told
    }
}

/// The options of a channel as its variable holds them.
pub(crate) fn json(options: &ChannelOptions) -> String {
    serde_json::to_string(options).expect("plain data")
}

/// Why the writers of such a channel cannot gather objects to batches, if so.
pub(crate) fn gathers_nothing(options: &ChannelOptions) -> Option<&'static str> {
    match (options.kind, options.horizon) {
        (Some(Mechanism::Files), _) => Some("each object is a file"),
        (_, Some(Horizon::Write)) => Some("at horizon write every object is durable by itself"),
        _ => None,
    }
}

/// The table `[channel.NAME]`. Everything is optional; what is not said is the space's default.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelTable {
    pub options: ChannelOptions,
    /// See [`Channel::keep`].
    pub keep: bool,
    /// See [`Channel::emulate`].
    pub emulate: Option<String>,
    /// See [`Channel::near`].
    pub near: Option<Locality>,
}

/// Keys that are no option of a space, or mean another thing than that.
const OWN_KEYS: [&str; 3] = ["keep", "emulate", "near"];

/// Every key of the table.
static KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let options = OPTIONS.iter().filter(|row| row.file).filter_map(|row| row.table);
    options.chain(OWN_KEYS).collect()
});

impl<'de> Deserialize<'de> for ChannelTable {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ChannelTable, D::Error> {
        from.deserialize_map(TableVisitor)
    }
}

struct TableVisitor;

impl<'de> Visitor<'de> for TableVisitor {
    type Value = ChannelTable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table of a channel")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<ChannelTable, A::Error> {
        let mut table = ChannelTable::default();
        while let Some(key) = from.next_key_seed(Key)? {
            match key {
                "keep" => table.keep = from.next_value()?,
                "emulate" => table.emulate = Some(from.next_value()?),
                "near" => table.near = Some(from.next_value()?),
                key => {
                    let is_taken = table.options.take(key, &mut from)?;
                    debug_assert!(is_taken, "{key} is among the keys");
                }
            }
        }
        Ok(table)
    }
}

/// A key, refused where it stands when it is not known.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<&'static str, D::Error> {
        let key = String::deserialize(from)?;
        let known = KEYS.iter().find(|known| **known == key);
        known.copied().ok_or_else(|| D::Error::unknown_field(&key, KEYS.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workflow(channel: &str) -> Workflow {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n{channel}\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = 2\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nranks = 3\nreads = [\"u\"]\n"
        );
        Workflow::parse(Path::new("w.toml"), Path::new("/here"), &text).unwrap()
    }

    #[test]
    fn programs_are_told_what_the_file_says_and_who_reads() {
        let told = |channel: &str| {
            let workflow = workflow(channel);
            json(&workflow.channels[0].told(&workflow, Some("ana")))
        };
        assert_eq!(told(""), r#"{"readers":"ana:3"}"#);
        assert_eq!(told("mode = \"w\"\nreplace = false\nkeep = false"), told(""));
        assert_eq!(told("keep = true"), r#"{"retention":"forever","readers":"ana:3"}"#);
        let said =
            "path = \"u\"\nquota = \"1MiB\"\nspill = \"low,quota=1KiB\"\nkind = \"space\"\nabsent = \"drop\"";
        assert_eq!(
            told(said),
            concat!(
                r#"{"kind":"space","path":"/here/u","quota":1048576,"#,
                r#""spill":[{"path":"/here/low","quota":1024}],"readers":"ana:3","absent":"drop"}"#
            )
        );
    }

    #[test]
    fn every_option_that_a_file_may_say_is_taken() {
        for row in OPTIONS.iter().filter(|row| row.file) {
            let key = row.table.expect("an option of channels");
            let texts = [
                "\"file\"",
                "\"4MiB\"",
                "\"files\"",
                "\"block\"",
                "\"epoch\"",
                "\"forever\"",
                "\"x\"",
                "true",
            ];
            let texts = texts.iter().chain(&["\"drop\""]);
            let taken = texts.clone().find_map(|text| {
                let table: ChannelTable = toml::from_str(&format!("{key} = {text}")).ok()?;
                Some(table.options != ChannelOptions::default())
            });
            assert_eq!(taken, Some(true), "{key}");
        }
        let error = toml::from_str::<ChannelTable>("verify = \"never\"").unwrap_err();
        assert!(error.message().starts_with("unknown field `verify`"), "{error}: readers say that");
    }
}
