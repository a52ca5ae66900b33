//! The workflow file: components, the channels between them, and what is wrong with it.
//!
//! Guarantees: a [`Workflow`] that was read is one that can be started: names are unique, every channel that a
//! component names is declared and has exactly one writer, every program was found. Each error names file and
//! line, and the nearest known word when a name is not known.
//! Not here: starting anything (`launch`), choosing a plan.
//!
//! The format is TOML with `forebay = 1` at its top (`docs/` has the field list; `forebay init` writes a
//! commented example). Every table refuses keys it does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_config::environment::{self, channel_variable};
use forebay_config::{did_you_mean, Mechanism, Mode, Retention, BATCH_BYTES};
use forebay_space::{Error, Kind, Result};
use forebay_terms::spelling::{self, Unknown};
use serde::Deserialize;
use toml::Spanned;

pub use crate::channel::Channel;
use crate::channel::{gathers_nothing, ChannelTable};
use crate::place::{positions, Nodes, Place};

/// Version of the workflow file that this build reads.
pub const FORMAT: i64 = 1;

/// Variables that the runner sets for each rank; a file that sets them would silently be overruled.
pub(crate) const SET_BY_RUNNER: &[&str] = &[
    "FOREBAY_RANK",
    "FOREBAY_SIZE",
    "FOREBAY_LOCAL_RANK",
    "FOREBAY_LOCAL_SIZE",
    "FOREBAY_COMPONENT",
    "FOREBAY_RUN",
    "FOREBAY_RUN_NODES",
    "FOREBAY_TRACE",
    "FOREBAY_READERS",
];

/// A workflow that was read and checked.
#[derive(Clone, Debug)]
pub struct Workflow {
    /// The file, as given.
    pub file: PathBuf,
    /// The folder that relative paths of the file start from (absolute).
    pub dir: PathBuf,
    /// The file's text, for the copy in the run directory.
    pub text: String,
    /// Name of the workflow; part of the run directory's name.
    pub name: String,
    /// Environment of every component.
    pub env: BTreeMap<String, String>,
    /// Channels in the order of their names.
    pub channels: Vec<Channel>,
    /// Components in the order of the file.
    pub components: Vec<Component>,
    /// The nodes that it runs on; `None`: this one.
    pub nodes: Option<Nodes>,
}

/// Plain files as a component's interface; directories relative to its working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileBridge {
    /// Files that appear here become versions of the one channel that the component writes.
    pub out: Option<PathBuf>,
    /// Versions of the one channel that the component reads are written here.
    #[serde(rename = "in")]
    pub input: Option<PathBuf>,
}

/// One program of the workflow, run as `ranks` processes.
#[derive(Clone, Debug)]
pub struct Component {
    /// Name; also the reader group's name on the channels it reads.
    pub name: String,
    /// Program and arguments as the file has them; the first word is `forebay` for this very binary.
    pub command: Vec<String>,
    /// Where the program was found; `None` for `forebay` itself.
    pub program: Option<PathBuf>,
    /// Number of processes, at least 1.
    pub ranks: u32,
    /// Those that this runner starts: all, or of a run on several nodes those of its node.
    pub here: Range<u32>,
    /// On which nodes they run.
    pub place: Place,
    /// Words that start all ranks at once (`mpirun -n 4`), put before the program; empty: the runner starts each rank.
    pub launcher: Vec<String>,
    /// Channels it reads.
    pub reads: Vec<String>,
    /// Channels it writes.
    pub writes: Vec<String>,
    /// Its own environment, over the workflow's.
    pub env: BTreeMap<String, String>,
    /// Working directory (absolute).
    pub cwd: PathBuf,
    /// Whether its ranks wait for each other while they compute a version; said to the model alone.
    pub in_step: bool,
    /// It is ended, and the run fails, when it runs longer.
    pub timeout: Option<Duration>,
    /// Directories with the component's files (absolute).
    pub files: FileBridge,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    forebay: Spanned<i64>,
    workflow: RawHeader,
    #[serde(default)]
    env: BTreeMap<Spanned<String>, Scalar>,
    #[serde(default)]
    channel: BTreeMap<Spanned<String>, Spanned<ChannelTable>>,
    #[serde(default)]
    component: Vec<Spanned<RawComponent>>,
    nodes: Option<Nodes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeader {
    name: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawComponent {
    name: Spanned<String>,
    command: Spanned<Vec<String>>,
    #[serde(default = "one_rank")]
    ranks: Spanned<i64>,
    #[serde(default)]
    launcher: Vec<String>,
    #[serde(default)]
    reads: Vec<Spanned<String>>,
    #[serde(default)]
    writes: Vec<Spanned<String>>,
    #[serde(default)]
    env: BTreeMap<Spanned<String>, Scalar>,
    cwd: Option<Spanned<PathBuf>>,
    #[serde(default = "yes")]
    in_step: bool,
    timeout: Option<Spanned<Scalar>>,
    files: Option<Spanned<FileBridge>>,
    nodes: Option<Spanned<Scalar>>,
    colocated_with: Option<Spanned<String>>,
    dedicated: Option<Spanned<usize>>,
}

fn yes() -> bool {
    true
}

fn one_rank() -> Spanned<i64> {
    Spanned::new(0..0, 1)
}

/// A value of an environment table; numbers need no quotes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected text, a number, true or false")]
enum Scalar {
    Text(String),
    Int(i64),
    Float(f64),
    Flag(bool),
}

impl Scalar {
    fn text(&self) -> String {
        match self {
            Scalar::Text(text) => text.clone(),
            Scalar::Int(value) => value.to_string(),
            Scalar::Float(value) => value.to_string(),
            Scalar::Flag(value) => value.to_string(),
        }
    }
}

impl Workflow {
    /// Reads and checks a workflow file. Starts nothing and makes nothing.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`]: no such file, or a program that it names was not found.
    /// [`Kind::UnknownKey`]: a key, or a channel that a component names, that does not exist.
    /// [`Kind::UnknownFormat`]: another version than `forebay = 1`. [`Kind::BadName`]: a name that cannot be a
    /// file name. [`Kind::Usage`]: everything else that makes no sense.
    pub fn read(file: &Path) -> Result<Workflow> {
        let text = std::fs::read_to_string(file).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(Kind::UnknownComponent, format!("workflow file {} does not exist", file.display()))
                    .hint("`forebay init` writes an example")
            }
            _ => Error::io(format!("reading {}", file.display()), e),
        })?;
        let absolute =
            std::path::absolute(file).map_err(|e| Error::io("cannot determine the current directory", e))?;
        let dir = absolute.parent().map(Path::to_path_buf).unwrap_or_else(|| PathBuf::from("/"));
        Workflow::parse(file, &dir, &text)
    }

    /// As [`Workflow::read`], for what is known of workflows on one node alone: plans, predictions, execution modes.
    ///
    /// # Errors
    /// Beside those, [`Kind::NotPossibleHere`]: it runs on several nodes.
    pub fn read_for_plan(file: &Path) -> Result<Workflow> {
        let workflow = Workflow::read(file)?;
        match workflow.nodes {
            None => Ok(workflow),
            Some(_) => Err(Error::new(
                Kind::NotPossibleHere,
                "plans, predictions and execution modes are not available for a workflow on several nodes",
            )
            .with("at", file.display())
            .hint("forebay run --mode parallel pins its ranks; remove the table [nodes] to plan a run on this node")),
        }
    }

    /// As [`Workflow::read`], from text; `dir` is what relative paths start from.
    pub fn parse(file: &Path, dir: &Path, text: &str) -> Result<Workflow> {
        Workflow::parse_with(file, dir, text, BTreeMap::new())
    }

    /// As [`Workflow::parse`]; components get the variables `inherited` unless the file sets them.
    pub(crate) fn parse_with(
        file: &Path,
        dir: &Path,
        text: &str,
        inherited: BTreeMap<String, String>,
    ) -> Result<Workflow> {
        let source = Source { file, text };
        let raw: RawFile = toml::from_str(text).map_err(|e| source.unreadable(&e))?;
        if *raw.forebay.get_ref() != FORMAT {
            return Err(source
                .error(Kind::UnknownFormat, raw.forebay.span().start, "a workflow file of an unknown version")
                .with("version", raw.forebay.get_ref())
                .hint(format!("this build reads forebay = {FORMAT}")));
        }
        source.check_name("workflow", &raw.workflow.name)?;
        let mut env = inherited;
        env.extend(source.environment(&raw.env)?);
        let declared = source.declared_channels(&raw.channel)?;
        let mut components: Vec<Component> = Vec::new();
        if raw.component.is_empty() {
            return Err(source
                .error(Kind::Usage, text.len(), "the workflow has no component")
                .hint("add a table [[component]] with a name and a command"));
        }
        for entry in &raw.component {
            let component = source.component(entry.get_ref(), dir, &env, &declared)?;
            if components.iter().any(|other| other.name == component.name) {
                let offset = entry.get_ref().name.span().start;
                let message = format!("two components are named {}", component.name);
                return Err(source.error(Kind::Usage, offset, message));
            }
            components.push(component);
        }
        source.check_places(&raw, &components)?;
        let channels = source.channels(&raw, &components)?;
        Ok(Workflow {
            file: file.to_path_buf(),
            dir: dir.to_path_buf(),
            text: text.to_owned(),
            name: raw.workflow.name.into_inner(),
            env,
            channels,
            components,
            nodes: raw.nodes,
        })
    }

    /// The component of this name.
    pub fn component(&self, name: &str) -> Option<&Component> {
        self.components.iter().find(|c| c.name == name)
    }
}

/// The text of a file, to say where in it something is wrong.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn error(&self, kind: Kind, offset: usize, message: impl Into<String>) -> Error {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        Error::new(kind, message).with("at", format!("{}:{line}", self.file.display()))
    }

    /// Turns the TOML reader's complaint into a kind with a hint.
    fn unreadable(&self, error: &toml::de::Error) -> Error {
        let offset = error.span().map_or(0, |span| span.start);
        let message = error.message().trim();
        if let Some(Unknown { is_key, word, hint }) = spelling::unknown(message) {
            let (kind, what) = if is_key { (Kind::UnknownKey, "key") } else { (Kind::Usage, "value") };
            return self.error(kind, offset, format!("unknown {what} {word}")).hint(hint);
        }
        if message.starts_with("missing field `forebay`") {
            return self
                .error(Kind::UnknownFormat, 0, "not a workflow file, or one without its version")
                .hint(format!(
                    "write forebay = {FORMAT} on its first line; `forebay init` shows a whole file"
                ));
        }
        self.error(Kind::Usage, offset, format!("cannot read the workflow: {message}"))
    }

    fn check_name(&self, what: &str, name: &Spanned<String>) -> Result<()> {
        let text = name.get_ref();
        let fits = !text.is_empty()
            && text.len() <= 64
            && !text.starts_with('-')
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if fits {
            return Ok(());
        }
        Err(self
            .error(Kind::BadName, name.span().start, format!("{text:?} cannot be the name of a {what}"))
            .hint("1 to 64 letters, digits, _ and -, not starting with -"))
    }

    fn environment(&self, table: &BTreeMap<Spanned<String>, Scalar>) -> Result<BTreeMap<String, String>> {
        let mut env = BTreeMap::new();
        for (key, value) in table {
            let name = key.get_ref();
            let ours = SET_BY_RUNNER.contains(&name.as_str()) || name.starts_with("FOREBAY_CHANNEL_");
            if ours && name != "FOREBAY_CHANNEL_KIND" {
                let message = format!("{name} is set by the runner");
                return Err(self
                    .error(Kind::Usage, key.span().start, message)
                    .hint("set it in [channel.NAME] or [[component]]"));
            }
            if name.is_empty() || name.contains(['=', '\0']) {
                let message = format!("{name:?} cannot be a variable");
                return Err(self.error(Kind::Usage, key.span().start, message));
            }
            let at = self.error(Kind::Usage, key.span().start, "");
            environment::check_one(name, &value.text()).map_err(|e| with_place(e, &at))?;
            env.insert(name.clone(), value.text());
        }
        Ok(env)
    }

    /// Checks each channel table by itself; returns the names.
    fn declared_channels(
        &self,
        table: &BTreeMap<Spanned<String>, Spanned<ChannelTable>>,
    ) -> Result<BTreeSet<String>> {
        let mut variables: BTreeMap<String, &str> = BTreeMap::new();
        for (name, options) in table {
            self.check_name("channel", name)?;
            let table = options.get_ref();
            if table.keep && table.options.retention == Some(Retention::Released) {
                let message = format!("{} is kept, but holds nothing once it was read", name.get_ref());
                return Err(self
                    .error(Kind::Usage, options.span().start, message)
                    .hint("with keep = true use retention = \"forever\" (the default) or \"last:K\""));
            }
            self.check_mode(options)?;
            self.check_emulated(options)?;
            self.check_batched(options)?;
            // `a-b` and `a_b` would share one variable, and one would get the other's options.
            if let Some(other) = variables.insert(channel_variable(name.get_ref()), name.get_ref()) {
                let message = format!("the channels {other} and {} are too alike", name.get_ref());
                return Err(self
                    .error(Kind::BadName, name.span().start, message)
                    .hint("both map to the same environment variable: rename one"));
            }
        }
        Ok(table.keys().map(|k| k.get_ref().clone()).collect())
    }

    /// A channel that a run goes on with is one that stays; only one that starts over is replaced.
    fn check_mode(&self, options: &Spanned<ChannelTable>) -> Result<()> {
        let table = options.get_ref();
        let refuse = |message: &str, hint: &str| {
            Err(self.error(Kind::Usage, options.span().start, message).hint(hint))
        };
        let mode = table.options.mode.unwrap_or_default();
        if mode == Mode::Append && !table.keep {
            return refuse("mode = \"a\" requires keep = true", "add keep = true");
        }
        if table.options.replace == Some(true) && mode != Mode::Write {
            return refuse("replace goes with mode = \"w\"", "leave one of them out");
        }
        Ok(())
    }

    /// What a table says of batches makes sense.
    fn check_batched(&self, options: &Spanned<ChannelTable>) -> Result<()> {
        let Some(bytes) = options.get_ref().options.batch else { return Ok(()) };
        let refuse = |message: &str, hint: &str| {
            Err(self.error(Kind::Usage, options.span().start, message).hint(hint))
        };
        match gathers_nothing(&options.get_ref().options) {
            Some(why) => refuse(&format!("`batch` has no effect: {why}"), "omit `batch`"),
            None if !BATCH_BYTES.contains(&bytes) => refuse("invalid `batch` size", "from 4KiB to 64MiB"),
            None => Ok(()),
        }
    }

    /// What a table says of emulation makes sense.
    fn check_emulated(&self, options: &Spanned<ChannelTable>) -> Result<()> {
        let table = options.get_ref();
        let at = self.error(Kind::Usage, options.span().start, "");
        let refuse = |message: &str, hint: &str| {
            Err(self.error(Kind::Usage, options.span().start, message).hint(hint))
        };
        match &table.emulate {
            Some(_) if table.options.kind == Some(Mechanism::Files) => {
                refuse("a channel of files cannot be emulated", "omit `emulate`, or use kind = \"space\"")
            }
            Some(text) => crate::emulate::wanted(text).map(drop).map_err(|e| with_place(e, &at)),
            None if table.near.is_some() => {
                refuse("`near` requires an emulated channel", "set emulate = \"PLATFORM:TIER/K\" as well")
            }
            None => Ok(()),
        }
    }

    fn component(
        &self,
        raw: &RawComponent,
        dir: &Path,
        shared_env: &BTreeMap<String, String>,
        declared: &BTreeSet<String>,
    ) -> Result<Component> {
        self.check_name("component", &raw.name)?;
        let name = raw.name.get_ref().clone();
        let ranks = u32::try_from(*raw.ranks.get_ref()).ok().filter(|r| *r >= 1).ok_or_else(|| {
            self.error(Kind::Usage, raw.ranks.span().start, format!("{name} needs at least one rank"))
                .with("ranks", raw.ranks.get_ref())
        })?;
        for channel in raw.reads.iter().chain(&raw.writes) {
            self.check_declared(&name, channel, declared)?;
        }
        let env = self.environment(&raw.env)?;
        let cwd = match &raw.cwd {
            None => dir.to_path_buf(),
            Some(cwd) => {
                let path = dir.join(cwd.get_ref());
                if !path.is_dir() {
                    let message = format!("the working directory of {name} does not exist");
                    return Err(self
                        .error(Kind::UnknownComponent, cwd.span().start, message)
                        .with("cwd", path.display()));
                }
                path
            }
        };
        let program = self.program(&name, &raw.command, dir, env.get("PATH").or(shared_env.get("PATH")))?;
        let timeout = raw.timeout.as_ref().map(|t| self.timeout(t)).transpose()?;
        let files = self.files(&name, raw, &cwd)?;
        let texts = |list: &[Spanned<String>]| list.iter().map(|s| s.get_ref().clone()).collect();
        Ok(Component {
            command: raw.command.get_ref().clone(),
            program,
            ranks,
            here: 0..ranks,
            place: self.place(&name, raw)?,
            launcher: raw.launcher.clone(),
            reads: texts(&raw.reads),
            writes: texts(&raw.writes),
            env,
            cwd,
            in_step: raw.in_step,
            timeout,
            files,
            name,
        })
    }

    /// Where a component runs.
    fn place(&self, name: &str, raw: &RawComponent) -> Result<Place> {
        let wrong = |at: usize, message: String, hint: &str| {
            Err(self.error(Kind::Usage, at, message).hint(hint.to_owned()))
        };
        match (&raw.nodes, &raw.colocated_with, &raw.dedicated) {
            (None, None, None) => Ok(Place::Shared),
            (Some(text), None, None) => match positions(&text.get_ref().text()) {
                Some(positions) => Ok(Place::At(positions)),
                None => wrong(
                    text.span().start,
                    format!("the nodes of {name} are not a list of positions"),
                    "positions in the list of nodes, from 0, as in \"0-3,6\"",
                ),
            },
            (None, Some(other), None) => Ok(Place::With(other.get_ref().clone())),
            (None, None, Some(count)) if *count.get_ref() > 0 => Ok(Place::Dedicated(*count.get_ref())),
            (None, None, Some(count)) => wrong(
                count.span().start,
                format!("{name} cannot have 0 dedicated nodes"),
                "give it at least one node, or omit `dedicated`",
            ),
            _ => wrong(
                raw.name.span().start,
                format!("{name} has more than one of nodes, colocated_with and dedicated"),
                "keep one of them",
            ),
        }
    }

    /// What components say of nodes refers to something.
    fn check_places(&self, raw: &RawFile, components: &[Component]) -> Result<()> {
        for (component, entry) in components.iter().zip(&raw.component) {
            let at = entry.get_ref().name.span().start;
            if component.place != Place::Shared && raw.nodes.is_none() {
                let message = format!("{} is placed on nodes, and the workflow has none", component.name);
                return Err(self.error(Kind::Usage, at, message).hint(
                    "add a table [nodes]: in a Slurm or PBS job it may be empty, else it has names = [\"n0\", \"n1\"] \
                     and launch = \"ssh {node}\"",
                ));
            }
            let Place::With(other) = &component.place else { continue };
            let names = || components.iter().map(|c| c.name.as_str());
            match components.iter().find(|c| c.name == *other) {
                Some(found) if !matches!(found.place, Place::With(_)) => {}
                Some(_) => {
                    let message =
                        format!("{} is colocated with {other}, which is colocated itself", component.name);
                    return Err(self
                        .error(Kind::Usage, at, message)
                        .hint("name the component that has nodes"));
                }
                None => {
                    let message =
                        format!("{} is colocated with an unknown component {other}", component.name);
                    let hint = match did_you_mean(other, names()) {
                        Some(close) => format!("did you mean {close}?"),
                        None => format!("available: {}", names().collect::<Vec<_>>().join(", ")),
                    };
                    return Err(self.error(Kind::UnknownComponent, at, message).hint(hint));
                }
            }
        }
        Ok(())
    }

    fn check_declared(
        &self,
        component: &str,
        channel: &Spanned<String>,
        declared: &BTreeSet<String>,
    ) -> Result<()> {
        let name = channel.get_ref();
        if declared.contains(name) {
            return Ok(());
        }
        let hint = match did_you_mean(name, declared.iter().map(String::as_str)) {
            Some(close) => format!("did you mean {close}?"),
            None => format!("add a table [channel.{name}]; it may be empty"),
        };
        Err(self
            .error(
                Kind::UnknownKey,
                channel.span().start,
                format!("{component} names an unknown channel {name}"),
            )
            .hint(hint))
    }

    /// Finds the program; `None` for `forebay`, which always means the running binary, so that the versions of
    /// runner and component cannot differ.
    fn program(
        &self,
        component: &str,
        command: &Spanned<Vec<String>>,
        dir: &Path,
        path_env: Option<&String>,
    ) -> Result<Option<PathBuf>> {
        let Some(word) = command.get_ref().first().filter(|word| !word.is_empty()) else {
            let message = format!("the command of {component} is empty");
            return Err(self.error(Kind::Usage, command.span().start, message));
        };
        if word == "forebay" {
            return Ok(None);
        }
        let path_env = path_env.cloned().or_else(|| std::env::var("PATH").ok()).unwrap_or_default();
        if let Some(found) = find_program(word, dir, &path_env) {
            return Ok(Some(found));
        }
        let message = format!("the program of {component} was not found: {word}");
        let error = self.error(Kind::UnknownComponent, command.span().start, message);
        let beside = dir.join(word);
        let relatives = [format!("{word}3"), word.trim_end_matches(char::is_numeric).to_owned()];
        Err(if beside.is_file() {
            error
                .hint(format!("{} is not executable: chmod +x it, or name its interpreter", beside.display()))
        } else if word.contains(' ') {
            error.hint("a command is a list: [\"program\", \"argument\", …]")
        } else if let Some(other) =
            relatives.iter().find(|r| *r != word && find_program(r, dir, &path_env).is_some())
        {
            error.hint(format!("did you mean {other}?"))
        } else {
            error.hint("it must be in PATH, or be a path relative to the workflow file")
        })
    }

    fn timeout(&self, raw: &Spanned<Scalar>) -> Result<Duration> {
        let text = raw.get_ref().text();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim() {
            "" | "s" => 1.0,
            "ms" => 1e-3,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => f64::NAN,
        };
        let seconds = number.parse::<f64>().unwrap_or(f64::NAN) * factor;
        if seconds.is_finite() && seconds > 0.0 && seconds < 1e9 {
            return Ok(Duration::from_secs_f64(seconds));
        }
        Err(self
            .error(Kind::Usage, raw.span().start, format!("not a timeout: {text}"))
            .hint("a number of seconds, or text such as \"90s\", \"10min\", \"2h\""))
    }

    fn files(&self, name: &str, raw: &RawComponent, cwd: &Path) -> Result<FileBridge> {
        let Some(table) = &raw.files else { return Ok(FileBridge::default()) };
        let files = table.get_ref();
        let sides =
            [(&files.out, raw.writes.len(), "out", "writes"), (&files.input, raw.reads.len(), "in", "reads")];
        for (dir, channels, key, list) in sides {
            if dir.is_some() && channels != 1 {
                let message = format!("files.{key} of {name} needs exactly one channel in {list}");
                return Err(self.error(Kind::Usage, table.span().start, message).with(list, channels));
            }
        }
        if files.out.is_some() && files.out == files.input {
            let message = format!("{name} cannot read and write files in one directory");
            return Err(self.error(Kind::Usage, table.span().start, message));
        }
        let absolute = |dir: &Option<PathBuf>| dir.as_ref().map(|d| cwd.join(d));
        Ok(FileBridge { out: absolute(&files.out), input: absolute(&files.input) })
    }

    /// Joins channels and components; each channel has one writer.
    fn channels(&self, raw: &RawFile, components: &[Component]) -> Result<Vec<Channel>> {
        let mut channels = Vec::new();
        for (name, options) in &raw.channel {
            let users = |list: fn(&Component) -> &Vec<String>| -> Vec<String> {
                components
                    .iter()
                    .filter(|c| list(c).contains(name.get_ref()))
                    .map(|c| c.name.clone())
                    .collect()
            };
            let writers = users(|c| &c.writes);
            let readers = users(|c| &c.reads);
            let [writer] = &writers[..] else {
                let message =
                    format!("the channel {} needs exactly one component that writes it", name.get_ref());
                let found = if writers.is_empty() { "none".to_owned() } else { writers.join(", ") };
                return Err(self
                    .error(Kind::Usage, name.span().start, message)
                    .with("writers", found)
                    .hint("give each writer a channel of its own; a reader may read several"));
            };
            if readers.contains(writer) {
                let message = format!("{writer} both writes and reads the channel {}", name.get_ref());
                return Err(self
                    .error(Kind::Usage, name.span().start, message)
                    .hint("exchange inside one component needs no entry: open a space of its own"));
            }
            let table = options.get_ref();
            channels.push(Channel {
                name: name.get_ref().clone(),
                options: table.options.clone(),
                keep: table.keep,
                emulate: table.emulate.clone(),
                near: table.near,
                writer: writer.clone(),
                readers,
                emulation: None,
                is_written_here: true,
            });
        }
        Ok(channels)
    }
}

/// Adds the place of one error to another, which keeps its kind and hint.
fn with_place(error: Error, place: &Error) -> Error {
    match place.context().first() {
        Some((key, value)) => error.with(key, value),
        None => error,
    }
}

/// A word without `/` is searched in `path_env`, then beside the workflow file; one with `/` is relative to it.
fn find_program(word: &str, dir: &Path, path_env: &str) -> Option<PathBuf> {
    if word.is_empty() {
        return None;
    }
    let runnable = |path: &PathBuf| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let beside = dir.join(word);
    if word.contains('/') {
        return Some(beside).filter(runnable);
    }
    let in_path = path_env.split(':').filter(|p| !p.is_empty()).map(|p| Path::new(p).join(word));
    in_path.chain([beside]).find(runnable)
}
