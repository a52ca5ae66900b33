//! Options from several sources made one, and what may not be said together.
//!
//! Guarantees: one order of precedence for all of them, applied by [`OpenOptions::resolved`]: what the program says,
//! then `FOREBAY_CHANNEL_<NAME>` (the workflow's channel table as JSON), then the single `FOREBAY_*` variables, then
//! the defaults. A text that cannot be read is an error, never a default. A field that has no "not given" (one with a
//! default in `table.rs`) yields to the environment where a Rust program leaves it at its default; C and Python, which
//! set options by their rows, say the default, too.

use forebay_tier::{Error, Horizon, Kind, Result};

use crate::environment::{self, did_you_mean, Lookup};
use crate::identity::{identify, Spread};
use crate::table::{ChannelOptions, OpenOptions, OPTIONS};
use crate::value::{check_name, check_readers, refuse, Mechanism, Mode, BATCH_BYTES, NAME_BYTES};

impl OpenOptions {
    /// These options with everything filled in that the environment says, for the space `name`: rank, size
    /// and component are always given in the result.
    ///
    /// `lookup` gives the value of an environment variable; programs use [`environment::process`].
    ///
    /// # Errors
    /// [`Kind::UnknownEnvironment`]: a variable with a value that cannot be read; [`Kind::UnknownKey`]: an
    /// unknown key in `FOREBAY_CHANNEL_<NAME>`; [`Kind::Usage`]: half a pair of rank and size, rank not below
    /// size, a name that is too long; [`Kind::SeveralNodes`]: see `identity`.
    pub fn resolved(&self, name: &str, lookup: Lookup<'_>) -> Result<OpenOptions> {
        let (options, spread) = self.resolved_across_nodes(name, lookup)?;
        spread.check_one_node().map(|()| options)
    }

    /// As [`OpenOptions::resolved`], also for a group with processes on other nodes.
    ///
    /// # Errors
    /// Those of [`OpenOptions::resolved`], but for [`Kind::SeveralNodes`].
    pub fn resolved_across_nodes(&self, name: &str, lookup: Lookup<'_>) -> Result<(OpenOptions, Spread)> {
        let table = ChannelOptions::from_environment(name, lookup)?;
        let single = ChannelOptions::from_single_variables(lookup)?;
        let mut result = self.clone();
        // Nearest first: what the first of them fills in, the second leaves alone.
        table.fill(&mut result);
        single.fill(&mut result);
        result.check().map_err(|e| e.with("space", name))?;
        if result.component.is_none() {
            let component = environment::value("FOREBAY_COMPONENT", lookup);
            result.component = Some(component.unwrap_or_else(|| component_name(&program_name())));
        }
        if let Some(component) = &result.component {
            check_name("component", component).map_err(|e| e.with("space", name))?;
        }
        if result.observer && result.rank.is_none() && result.size.is_none() {
            // An observer belongs to no group, wherever it was started.
            (result.rank, result.size) = (Some(0), Some(1));
            return Ok((result, Spread::OneNode));
        }
        let (me, spread) = identify(result.rank, result.size, result.scope, lookup)?;
        (result.rank, result.size) = (Some(me.rank), Some(me.size));
        Ok((result, spread))
    }

    /// What `name` stands for: its directory where one is given, else itself.
    pub fn place(&self, name: &str) -> String {
        match &self.path {
            None => name.to_string(),
            // A word without a `/` would be a short name again.
            Some(path) if path.components().count() == 1 => format!("./{}", path.display()),
            Some(path) => path.display().to_string(),
        }
    }

    /// What may not be said together, as far as the options alone tell.
    fn check(&self) -> Result<()> {
        if let (Some(emulation), Mechanism::Files) = (&self.emulate, self.channel) {
            return Err(Error::new(Kind::Usage, "a channel of files cannot be emulated")
                .with("emulate", &emulation.of)
                .hint("omit `emulate`, or use kind = \"space\""));
        }
        if self.replace && self.mode != Mode::Write {
            return Err(Error::new(Kind::Usage, format!("replace is invalid with mode \"{}\"", self.mode))
                .hint("use replace with mode=\"w\" only"));
        }
        self.check_batch()?;
        check_readers(&self.readers)?;
        self.check_group()
    }

    /// What a group and its policy may be said beside.
    fn check_group(&self) -> Result<()> {
        if self.group.is_none() && self.absent.is_none() {
            return Ok(());
        }
        if self.channel == Mechanism::Files {
            return Err(Error::new(
                Kind::NotPossibleHere,
                "a channel of files has no `group` and no `absent`",
            )
            .hint("name the reader's component in the writers' `readers`, or use kind = \"space\""));
        }
        if self.observer && self.group.is_some() {
            return Err(Error::new(Kind::Usage, "an observer belongs to no reader group")
                .hint("leave `group` out, or `observer`"));
        }
        self.group.as_ref().map_or(Ok(()), |group| check_name("reader group", group))
    }

    /// Whether objects can be gathered at all.
    fn check_batch(&self) -> Result<()> {
        let Some(bytes) = self.batch_bytes else { return Ok(()) };
        if !BATCH_BYTES.contains(&bytes) {
            return Err(refuse("batch", &bytes.to_string(), "bytes from 4KiB to 64MiB"));
        }
        if self.channel == Mechanism::Files {
            return Err(Error::new(
                Kind::Usage,
                "a channel of files does not support `batch`: each object is a file",
            )
            .hint("omit `batch`, or use kind = \"space\""));
        }
        if self.horizon == Some(Horizon::Write) {
            return Err(durable_one_by_one());
        }
        Ok(())
    }
}

/// Where an option is set that programs do not set by this name, as a hint; None: there is no such option.
pub fn said_elsewhere(key: &str) -> Option<String> {
    if let Some(row) = OPTIONS.iter().find(|row| row.program && row.name != key && row.table == Some(key)) {
        return Some(format!("did you mean `{}`?", row.name));
    }
    let row = OPTIONS.iter().find(|row| !row.program && row.name == key)?;
    Some(match (row.file, row.variable) {
        (true, _) => format!("`{key}` is set in the table of the channel in a workflow file"),
        (false, Some(variable)) => format!("`{key}` is set by the environment variable {variable}"),
        (false, None) => format!("`{key}` is set by the plan of a workflow"),
    })
}

/// Why nothing is gathered at horizon `write`.
pub fn durable_one_by_one() -> Error {
    Error::new(Kind::Usage, "`batch` is invalid at horizon write: every object is durable by itself")
        .hint("omit `batch`, or use horizon none or epoch")
}

/// The name of a component that nothing but its program's name gives: as much of it as a name may hold.
pub fn component_name(program: &str) -> String {
    let ends = program.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let end = ends.take_while(|end| *end <= NAME_BYTES).last().unwrap_or(0);
    program[..end].to_owned()
}

/// The file name of the running program: the component's name when none is given.
fn program_name() -> String {
    let file = std::env::args_os().next().map(std::path::PathBuf::from);
    file.as_deref().and_then(|p| p.file_name()).map_or("program".into(), |n| n.to_string_lossy().into_owned())
}

impl ChannelOptions {
    /// Reads the JSON of one channel table; `place` says in errors where it stands.
    ///
    /// # Errors
    /// [`Kind::UnknownKey`] with "did you mean", [`Kind::UnknownEnvironment`] for everything else.
    pub fn from_json(place: &str, text: &str) -> Result<ChannelOptions> {
        let unreadable = |e: serde_json::Error| {
            Error::new(Kind::UnknownEnvironment, format!("cannot parse {place}: {e}")).caused_by(e)
        };
        let table: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(unreadable)?;
        for key in table.keys() {
            if !Self::KEYS.contains(&key.as_str()) {
                let error = Error::new(Kind::UnknownKey, format!("{place} has no key `{key}`"));
                return Err(match did_you_mean(key, Self::KEYS.iter().copied()) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint(format!("the keys are {}", Self::KEYS.join(", "))),
                });
            }
        }
        serde_json::from_value(table.into()).map_err(unreadable)
    }

    /// What `FOREBAY_CHANNEL_<NAME>` says about the space `name`; nothing when it is not set.
    ///
    /// # Errors
    /// See [`ChannelOptions::from_json`].
    pub fn from_environment(name: &str, lookup: Lookup<'_>) -> Result<ChannelOptions> {
        let variable = environment::channel_variable(name);
        match environment::value(&variable, lookup) {
            Some(text) if environment::holds_table(&variable, &text) => Self::from_json(&variable, &text),
            _ => Ok(ChannelOptions::default()),
        }
    }

    /// What the single variables say to all channels.
    ///
    /// # Errors
    /// [`Kind::UnknownEnvironment`] for a value that cannot be read.
    pub fn from_single_variables(lookup: Lookup<'_>) -> Result<ChannelOptions> {
        let mut table = ChannelOptions::default();
        for row in OPTIONS {
            let (Some(name), Some(set)) = (row.variable, row.in_table) else { continue };
            let text = environment::value(name, lookup).filter(|text| !environment::holds_table(name, text));
            if let Some(text) = text {
                environment::readable(name, &text, set(&mut table, &text))?;
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use forebay_tier::adapter::throttle::Locality;
    use forebay_tier::TierKind;

    use super::*;
    use crate::table::WITH_DEFAULT;
    use crate::value::{format_readers, parse_horizon, parse_locality, parse_readers, HORIZONS, LOCALITIES};
    use crate::{ExecutionMode, Retention, Scope, Verify};

    /// Rust cannot tell a field that was left at its default from one that was set to it; who sets by rows can.
    #[test]
    fn a_default_that_was_said_counts() {
        let said = |name: &str, text: &str| {
            let row = OPTIONS.iter().find(|row| row.name == name).expect("an option");
            let mut options = OpenOptions::default();
            (row.set)(&mut options, text).expect("its default");
            options
        };
        let table = ("FOREBAY_CHANNEL_HEAT_2D", r#"{"replace": true, "latest": true, "verify": "never"}"#);
        let single = [("FOREBAY_TIMEOUT", "1"), ("FOREBAY_CHANNEL_KIND", "files"), ("FOREBAY_SCOPE", "node")];
        let variables = [&[table], &single[..]].concat();
        let resolved = |options: &OpenOptions| resolve(options, &variables).expect("resolved");
        let other = resolved(&OpenOptions::default());
        assert!(other.replace && other.latest && other.timeout.as_secs() == 1);
        assert!(!resolved(&said("replace", "false")).replace);
        assert!(!resolved(&said("latest", "false")).latest);
        assert_eq!(resolved(&said("verify", "first")).verify, Verify::First);
        assert_eq!(resolved(&said("timeout", "60")).timeout.as_secs(), 60);
        assert_eq!(resolved(&said("channel", "space")).channel, Mechanism::Space);
        assert_eq!(resolved(&said("scope", "job")).scope, Scope::Job);
    }

    fn resolve(options: &OpenOptions, variables: &[(&str, &str)]) -> Result<OpenOptions> {
        let map: HashMap<String, String> =
            variables.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        options.resolved("heat-2d", &|name| map.get(name).cloned())
    }

    #[test]
    fn words_are_read_as_written() {
        for word in Mechanism::WORDS {
            assert_eq!(word.parse::<Mechanism>().unwrap().to_string(), *word);
        }
        for text in ["released", "last:3", "forever"] {
            assert_eq!(text.parse::<Retention>().unwrap().to_string(), text);
            let json = format!("\"{text}\"");
            assert_eq!(
                serde_json::to_string(&serde_json::from_str::<Retention>(&json).unwrap()).unwrap(),
                json
            );
        }
        for text in ["last", "last:0", "last:-1", "Forever", ""] {
            assert_eq!(text.parse::<Retention>().unwrap_err().kind(), Kind::Usage, "{text}");
        }
        assert_eq!("sometimes".parse::<Verify>().unwrap_err().kind(), Kind::Usage);
        assert_eq!(serde_json::to_string(&Scope::Node).unwrap(), "\"node\"");
        assert!(serde_json::from_str::<Mode>("\"overwrite\"").is_err());
    }

    #[test]
    fn nothing_said_gives_the_defaults_and_rank_0_of_1() {
        let got = resolve(&OpenOptions::default(), &[]).unwrap();
        assert_eq!((got.rank, got.size), (Some(0), Some(1)));
        assert!(!got.component.clone().unwrap().is_empty());
        let expected = OpenOptions {
            rank: Some(0),
            size: Some(1),
            component: got.component.clone(),
            ..Default::default()
        };
        assert_eq!(got, expected);
    }

    #[test]
    fn the_program_wins_over_the_channel_over_the_variables() {
        let table =
            r#"{"quota": "2GiB", "tier": "file", "timeout": 5, "readers": {"viz": 1}, "kind": "files"}"#;
        let variables = [
            ("FOREBAY_CHANNEL_HEAT_2D", table),
            ("FOREBAY_QUOTA", "1GiB"),
            ("FOREBAY_TIER", "pmem"),
            ("FOREBAY_SEGMENT", "16MiB"),
            ("FOREBAY_HORIZON", "epoch"),
            ("FOREBAY_RETENTION", "last:2"),
            ("FOREBAY_CHECKSUM", "off"),
            ("FOREBAY_TIMEOUT", "9"),
            ("FOREBAY_READERS", "a:1"),
            ("FOREBAY_COMPONENT", "sim"),
            ("FOREBAY_RANK", "2"),
            ("FOREBAY_SIZE", "4"),
        ];
        let said = OpenOptions { tier: Some(TierKind::Dram), ..Default::default() };
        let got = resolve(&said, &variables).unwrap();
        assert_eq!(got.tier, Some(TierKind::Dram));
        assert_eq!(got.quota_bytes, Some(2 << 30));
        assert_eq!(got.segment_bytes, Some(16 << 20));
        assert_eq!(got.horizon, Some(Horizon::Epoch));
        assert_eq!(got.retention, Some(Retention::Last(2)));
        assert_eq!(got.checksum, Some(false));
        assert_eq!(got.timeout, Duration::from_secs(5));
        assert_eq!(got.readers, vec![("viz".to_string(), 1)]);
        assert_eq!(got.channel, Mechanism::Files);
        assert_eq!((got.rank, got.size, got.component.as_deref()), (Some(2), Some(4), Some("sim")));
        let short = OpenOptions { timeout: Duration::from_millis(1), ..Default::default() };
        assert_eq!(resolve(&short, &variables).unwrap().timeout, Duration::from_millis(1));
    }

    #[test]
    fn unreadable_values_and_unknown_keys_are_errors() {
        let fail = |name: &str, value: &str| resolve(&OpenOptions::default(), &[(name, value)]).unwrap_err();
        assert_eq!(fail("FOREBAY_TIER", "floppy").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_TIMEOUT", "NaN").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_TIMEOUT", "-1").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_CHANNEL_HEAT_2D", "quota").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_CHANNEL_HEAT_2D", r#"{"tier": 7}"#).kind(), Kind::UnknownEnvironment);
        let error = fail("FOREBAY_CHANNEL_HEAT_2D", r#"{"qouta": "1GiB"}"#);
        assert_eq!(error.kind(), Kind::UnknownKey);
        assert_eq!(error.hint_text(), Some("did you mean `quota`?"));
    }

    #[test]
    fn a_channel_called_kind_has_a_table_too() {
        let kind = |value: &str| {
            OpenOptions::default()
                .resolved("kind", &|n| (n == "FOREBAY_CHANNEL_KIND").then(|| value.to_string()))
        };
        assert_eq!(kind("files").unwrap().channel, Mechanism::Files);
        assert_eq!(kind(r#"{"quota": 4096}"#).unwrap().quota_bytes, Some(4096));
        let other = resolve(&OpenOptions::default(), &[("FOREBAY_CHANNEL_KIND", r#"{"quota": 1}"#)]).unwrap();
        assert_eq!(other.quota_bytes, None);
    }

    #[test]
    fn channel_options_survive_json() {
        let options = ChannelOptions {
            kind: Some(Mechanism::Files),
            quota: Some(3 << 30),
            retention: Some(Retention::Last(4)),
            execution_mode: Some(ExecutionMode::Gated { writers: 4, readers: 8 }),
            timeout: Some(Duration::from_millis(1500)),
            readers: Some(vec![("analysis".into(), 3), ("viz".into(), 1)]),
            latest: Some(true),
            ..Default::default()
        };
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(ChannelOptions::from_json("test", &text).unwrap(), options, "{text}");
        // The list of keys is the list of fields.
        let nothing: Vec<String> = ChannelOptions::KEYS.iter().map(|key| format!("\"{key}\":null")).collect();
        let all = format!("{{{}}}", nothing.join(","));
        assert_eq!(ChannelOptions::from_json("test", &all).unwrap(), ChannelOptions::default());
    }

    #[test]
    fn written_json_stays_as_plans_have_it() {
        let options = ChannelOptions {
            quota: Some(1 << 20),
            spill: Some(vec!["/scratch,quota=1GiB,tier=direct".parse().unwrap()]),
            horizon: Some(Horizon::Epoch),
            timeout: Some(Duration::from_millis(1500)),
            readers: Some(vec![("a".into(), 3), ("b".into(), 1)]),
            locality: Some(Locality::Remote),
            ..Default::default()
        };
        let written = concat!(
            r#"{"quota":1048576,"spill":[{"path":"/scratch","quota":1073741824,"tier":"direct"}],"#,
            r#""horizon":"epoch","locality":"remote","timeout":1.5,"readers":"a:3,b:1"}"#
        );
        assert_eq!(serde_json::to_string(&options).unwrap(), written);
    }

    #[test]
    fn json_is_read_in_every_form_that_was_ever_said() {
        let read = |json: &str| ChannelOptions::from_json("test", json).unwrap();
        assert_eq!(read(r#"{"quota": "1KiB"}"#).quota, Some(1024));
        assert_eq!(read(r#"{"quota": 1024.7}"#).quota, Some(1024));
        assert_eq!(read(r#"{"timeout": "1.5"}"#).timeout, Some(Duration::from_millis(1500)));
        assert_eq!(
            read(r#"{"readers": {"b": 1, "a": 3}}"#).readers,
            read(r#"{"readers": "a:3,b:1"}"#).readers
        );
        let one = read(r#"{"spill": "/s,quota=1KiB"}"#).spill;
        assert_eq!(read(r#"{"spill": {"path": "/s", "quota": "1KiB"}}"#).spill, one);
        assert_eq!(read(r#"{"spill": ["/s,quota=1024"]}"#).spill, one);
        for wrong in [
            r#"{"checksum": "yes"}"#,
            r#"{"kind": 1}"#,
            r#"{"quota": true}"#,
            r#"{"readers": {"a": 0}}"#,
            r#"{"readers": ["a"]}"#,
            r#"{"spill": [1]}"#,
            r#"{"emulate": "fast"}"#,
        ] {
            let error = ChannelOptions::from_json("test", wrong).unwrap_err();
            assert_eq!(error.kind(), Kind::UnknownEnvironment, "{wrong}: {error}");
        }
    }

    #[test]
    fn names_have_1_to_64_bytes() {
        let long = "x".repeat(65);
        for options in [
            OpenOptions { component: Some(long.clone()), ..Default::default() },
            OpenOptions { component: Some(String::new()), ..Default::default() },
            OpenOptions { group: Some(long.clone()), ..Default::default() },
            OpenOptions { group: Some(String::new()), ..Default::default() },
            OpenOptions { readers: vec![(long.clone(), 1)], ..Default::default() },
            OpenOptions { readers: vec![(String::new(), 1)], ..Default::default() },
        ] {
            assert_eq!(resolve(&options, &[]).unwrap_err().kind(), Kind::Usage, "{options:?}");
        }
        let error = resolve(&OpenOptions::default(), &[("FOREBAY_COMPONENT", long.as_str())]).unwrap_err();
        assert!(error.hint_text().unwrap().contains("a name of 1 to 64 bytes"), "{error}");
        let most = "x".repeat(64);
        let options = OpenOptions {
            component: Some(most.clone()),
            group: Some(most.clone()),
            readers: vec![(most.clone(), 1)],
            ..Default::default()
        };
        assert_eq!(resolve(&options, &[]).unwrap().component, Some(most));
    }

    #[test]
    fn the_name_of_a_program_is_cut_where_a_letter_begins() {
        assert_eq!(component_name("heat"), "heat");
        assert_eq!(component_name(&"x".repeat(80)), "x".repeat(64));
        let odd = format!("x{}", "ä".repeat(40));
        assert_eq!(component_name(&odd), format!("x{}", "ä".repeat(31)), "63 bytes: the next letter has two");
    }

    #[test]
    fn the_default_that_a_row_says_is_that_of_its_field() {
        for row in OPTIONS {
            assert!(!row.help.is_empty() && !row.default.is_empty(), "{}", row.name);
            assert!(
                row.help.ends_with('.') && (row.more.is_empty() || row.more.ends_with('.')),
                "{}",
                row.name
            );
        }
        // Of lists the default, nothing, is no text.
        let is_list =
            |row: &crate::Row| matches!(row.form, crate::Form::ReaderGroups | crate::Form::SpillTiers);
        let is_default = |row: &crate::Row| {
            let mut options = OpenOptions::default();
            let is_text = (row.set)(&mut options, row.default).is_ok();
            options.said.clear();
            is_text && options == OpenOptions::default()
        };
        let said = OPTIONS.iter().filter(|row| is_default(row) || is_list(row)).map(|row| row.name);
        assert_eq!(said.collect::<Vec<_>>(), WITH_DEFAULT);
    }

    #[test]
    fn words_without_a_type_of_ours_are_read_as_listed() {
        for word in HORIZONS {
            assert_eq!(parse_horizon(word).unwrap().to_string(), *word);
        }
        for word in LOCALITIES {
            assert_eq!(serde_json::to_value(parse_locality(word).unwrap()).unwrap(), *word);
        }
    }

    #[test]
    fn reader_groups_are_read_as_written() {
        let groups = parse_readers("analysis:3, viz").unwrap();
        assert_eq!(groups, vec![("analysis".to_string(), 3), ("viz".to_string(), 1)]);
        assert_eq!(parse_readers(&format_readers(&groups)).unwrap(), groups);
        assert!(parse_readers("").unwrap().is_empty());
        for text in ["a:0", "a:x", ":3", "a:1,a:2", "a:1,"] {
            assert_eq!(parse_readers(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn an_observer_has_no_rank_of_the_job() {
        let options = OpenOptions { observer: true, ..Default::default() };
        let got = resolve(&options, &[("FOREBAY_RANK", "3"), ("FOREBAY_SIZE", "4")]).unwrap();
        assert_eq!((got.rank, got.size), (Some(0), Some(1)));
    }
}
