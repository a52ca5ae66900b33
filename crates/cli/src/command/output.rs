//! What every verb shares on its way out: `--json`, colour, the closing `next:` line and the exit status.
//!
//! Guarantees: data goes to stdout and nothing else does; progress and `next:` go to stderr, and only when
//! stderr is a terminal; with `--json` stdout holds exactly one JSON document whose first key is `schema`; a
//! reader that goes away (`| head`) ends the command quietly. It does not know any verb.

use std::io::{self, BufWriter, IsTerminal, Write};

use comfy_table::{presets, Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

/// The schema names of every document that `--json` prints; `docs/src/formats/json.md` describes each.
pub mod schema {
    /// A verb ended with an error.
    pub const ERROR: &str = "forebay.error/1";
    /// The table of spaces.
    pub const LS: &str = "forebay.ls/1";
    /// One space in detail.
    pub const SPACE: &str = "forebay.space/1";
    /// The variables of a version.
    pub const VARIABLES: &str = "forebay.variables/1";
    /// The values of a variable.
    pub const CAT: &str = "forebay.cat/1";
    /// The attributes of a space.
    pub const ATTRIBUTES: &str = "forebay.attributes/1";
    /// What `verify` found.
    pub const VERIFY: &str = "forebay.verify/1";
    /// What `clean` removed and kept.
    pub const CLEAN: &str = "forebay.clean/1";
    /// What a verb has printed on each of several nodes.
    pub const NODES: &str = "forebay.nodes/1";
    /// What `drain` moved.
    pub const DRAIN: &str = "forebay.drain/1";
    /// The levels and steps of a checkpoint directory.
    pub const CKPT_LIST: &str = "forebay.ckpt-list/1";
    /// What reading every byte of checkpoints has shown.
    pub const CKPT_VERIFY: &str = "forebay.ckpt-verify/1";
    /// The arrays that were taken out of a checkpoint.
    pub const CKPT_RESTORE: &str = "forebay.ckpt-restore/1";
    /// How often a program should save.
    pub const CKPT_ADVISE: &str = "forebay.ckpt-advise/1";
    /// What was carried down the levels of a checkpoint.
    pub const CKPT_DRAIN: &str = "forebay.ckpt-drain/1";
    /// A look at running spaces, with rates and waits.
    pub const TOP: &str = "forebay.top/1";
    /// What Prometheus collects.
    pub const METRICS: &str = "forebay.metrics/1";
    /// What this machine allows.
    pub const DOCTOR: &str = "forebay.doctor/1";
    /// What the tiers of a node deliver: the profile itself.
    pub const PROFILE: &str = "forebay.profile/1";
    /// The table of profiles.
    pub const PROFILES: &str = "forebay.profiles/1";
    /// A profile file that was written.
    pub const PROFILE_FILE: &str = "forebay.profile-file/1";
    /// Two profiles side by side.
    pub const PROFILE_COMPARISON: &str = "forebay.profile-comparison/1";
    /// Where a report of profiles was written.
    pub const PROFILE_REPORT: &str = "forebay.profile-report/1";
    /// The workflow file that was written.
    pub const INIT: &str = "forebay.init/1";
    /// The record of a workflow run, as `run.json` in the run directory holds it too.
    pub const RUN: &str = "forebay.run/1";
    /// One way to run a workflow, as a plan file holds it.
    pub const PLAN: &str = forebay_flow::plan::SCHEMA;
    /// Which way to run a workflow is best, as far as the model knows.
    pub const ADVICE: &str = "forebay.advice/1";
    /// The ways to run a workflow.
    pub const PLANS: &str = "forebay.plans/1";
    /// A job that carries a plan out.
    pub const JOB: &str = "forebay.job/1";
    /// Where a report was written.
    pub const REPORT: &str = "forebay.report/1";
    /// A completion script.
    pub const COMPLETIONS: &str = "forebay.completions/1";
    /// The manual pages that were written.
    pub const MAN: &str = "forebay.man/1";
    /// What the windows of a program did.
    pub const MEM: &str = "forebay.mem/1";
    /// The profile that was measured.
    pub const PROBE: &str = "forebay.probe/1";
    /// Help or version text that was asked for together with `--json`.
    pub const HELP: &str = "forebay.help/1";

    /// All of them.
    pub const ALL: &[&str] = &[
        ERROR,
        LS,
        SPACE,
        VARIABLES,
        CAT,
        ATTRIBUTES,
        VERIFY,
        CLEAN,
        NODES,
        DRAIN,
        CKPT_LIST,
        CKPT_VERIFY,
        CKPT_RESTORE,
        CKPT_ADVISE,
        CKPT_DRAIN,
        TOP,
        METRICS,
        DOCTOR,
        PROFILE,
        PROFILES,
        PROFILE_FILE,
        PROFILE_COMPARISON,
        PROFILE_REPORT,
        INIT,
        RUN,
        PLAN,
        ADVICE,
        PLANS,
        JOB,
        REPORT,
        COMPLETIONS,
        MAN,
        MEM,
        PROBE,
        HELP,
    ];
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    /// When the stream is a terminal and `NO_COLOR` is not set.
    #[default]
    Auto,
    /// Always, even into a pipe.
    Always,
    /// Never.
    Never,
}

/// A colour with a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Worth knowing.
    Notable,
    /// Wrong.
    Bad,
    /// Less important than its neighbours.
    Quiet,
    /// A heading.
    Strong,
}

impl Tone {
    fn ansi(self) -> &'static str {
        match self {
            Tone::Good => "32",
            Tone::Notable => "33",
            Tone::Bad => "31;1",
            Tone::Quiet => "2",
            Tone::Strong => "1",
        }
    }
}

/// One JSON document: the schema's name, then the fields of the body.
#[derive(Serialize)]
struct Document<'a, T: Serialize> {
    schema: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize)]
pub(crate) struct ErrorBody<'a> {
    kind: &'a str,
    code: u16,
    exit: i32,
    message: &'a str,
    context: std::collections::BTreeMap<&'a str, &'a str>,
    hint: Option<&'a str>,
}

/// How this run of the command talks.
#[derive(Clone, Debug)]
pub struct Output {
    json: bool,
    colour_stdout: bool,
    colour_stderr: bool,
    stdout_terminal: bool,
    stderr_terminal: bool,
    /// A verb that prints as it reads has begun: an error can no longer be the one document on stdout.
    data_begun: std::cell::Cell<bool>,
}

impl Output {
    /// Looks at both streams and at `NO_COLOR` once.
    pub fn new(json: bool, colour: Colour) -> Output {
        let (stdout_terminal, stderr_terminal) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let wanted = |terminal: bool| match colour {
            Colour::Always => true,
            Colour::Never => false,
            // https://no-color.org: any value that is not empty.
            Colour::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        Output {
            json,
            colour_stdout: !json && wanted(stdout_terminal),
            colour_stderr: wanted(stderr_terminal),
            stdout_terminal,
            stderr_terminal,
            data_begun: std::cell::Cell::new(false),
        }
    }

    /// Called by a verb before it prints a document piece by piece. An error after that goes to stderr only.
    pub fn begin_data(&self) {
        self.data_begun.set(true);
    }

    /// Whether the user asked for one JSON document.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Whether a person watches stdout.
    pub fn stdout_is_terminal(&self) -> bool {
        self.stdout_terminal
    }

    /// Whether stdout takes colours.
    pub fn stdout_is_coloured(&self) -> bool {
        self.colour_stdout
    }

    /// Whether a person watches stderr, where progress goes.
    pub fn stderr_is_terminal(&self) -> bool {
        self.stderr_terminal
    }

    /// Whether stderr takes colours.
    pub fn stderr_is_coloured(&self) -> bool {
        self.colour_stderr
    }

    /// Buffered stdout; the caller flushes through [`written`].
    pub fn stdout(&self) -> BufWriter<io::StdoutLock<'static>> {
        BufWriter::with_capacity(64 << 10, io::stdout().lock())
    }

    /// Prints text as it stands.
    pub fn text(&self, text: &str) -> Result<()> {
        let mut stdout = self.stdout();
        written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
    }

    /// Prints the one document of `--json`: indented for a person, one line for a program.
    pub fn document<T: Serialize>(&self, schema: &str, body: &T) -> Result<()> {
        self.record(&Document { schema, body })
    }

    /// Prints a document whose body names its schema itself.
    pub fn record<T: Serialize>(&self, document: &T) -> Result<()> {
        let text = match self.stdout_terminal {
            true => serde_json::to_string_pretty(document),
            false => serde_json::to_string(document),
        };
        let text = text
            .map_err(|e| Error::new(Kind::Internal, format!("the result cannot be written as JSON: {e}")))?;
        self.text(&(text + "\n"))
    }

    /// The document in JSON, else the text.
    pub fn result<T: Serialize>(&self, schema: &str, body: &T, text: impl FnOnce() -> String) -> Result<()> {
        if self.json {
            return self.document(schema, body);
        }
        self.text(&text())
    }

    /// Says what to do next; only a person at a terminal sees it.
    pub fn next(&self, line: &str) {
        if self.stderr_terminal && !self.json {
            self.aside(&format!("{} {line}", self.paint_stderr(Tone::Quiet, "next:")));
        }
    }

    /// Progress; only a person at a terminal sees it.
    pub fn progress(&self, line: &str) {
        if self.stderr_terminal {
            self.aside(line);
        }
    }

    /// A line on stderr, for people. A closed stderr is no error.
    pub fn aside(&self, line: &str) {
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    /// Text for stdout in a colour, or as it is.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        paint(self.colour_stdout, tone, text)
    }

    fn paint_stderr(&self, tone: Tone, text: &str) -> String {
        paint(self.colour_stderr, tone, text)
    }

    /// An empty table in the house style: no frame, two blanks between columns, a strong heading.
    pub fn table(&self, heading: &[&str]) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        match self.colour_stdout {
            true => table.enforce_styling(),
            false => table.force_no_tty(),
        };
        table.set_header(heading.iter().map(|h| Cell::new(h).add_attribute(Attribute::Bold)));
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table
    }

    /// Reports an error in the form the user asked for and gives the exit status.
    ///
    /// A reader of stdout that went away is no error: the status is 0 and nothing is said.
    pub fn error(&self, error: &Error) -> i32 {
        if is_broken_pipe(error) {
            return 0;
        }
        let document = self.json && !self.data_begun.get();
        if document {
            // A closed stdout leaves only the exit status to speak.
            let _ = self.document(schema::ERROR, &error_body(error));
        }
        // With --json a person at a terminal reads the document already; a log keeps the sentence.
        if !document || !self.stderr_terminal {
            self.aside(&format!("{} {error}", self.paint_stderr(Tone::Bad, "error:")));
        }
        error.kind().exit_code()
    }
}

/// A number's cell: to the right.
pub fn number(value: impl ToString) -> Cell {
    Cell::new(value.to_string()).set_alignment(CellAlignment::Right)
}

/// A cell in a colour with a meaning.
pub fn toned(value: impl ToString, tone: Tone) -> Cell {
    let cell = Cell::new(value.to_string());
    match tone {
        Tone::Good => cell.fg(Color::Green),
        Tone::Notable => cell.fg(Color::Yellow),
        Tone::Bad => cell.fg(Color::Red).add_attribute(Attribute::Bold),
        Tone::Quiet => cell.add_attribute(Attribute::Dim),
        Tone::Strong => cell.add_attribute(Attribute::Bold),
    }
}

/// The table as text, without the blanks that pad its last column.
pub fn table_text(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// Turns the outcome of a write to stdout into the command's own error.
pub fn written(outcome: io::Result<()>) -> Result<()> {
    outcome.map_err(|e| Error::io("could not write to standard output", e))
}

/// Whether this error only says that the reader of a pipe went away.
pub fn is_broken_pipe(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|s| s.downcast_ref::<io::Error>());
    source.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Breaks text at blanks into lines of at most `width` characters, each after the first behind `indent`
/// blanks.
pub fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

/// An error as documents hold it.
pub(crate) fn error_body(error: &Error) -> ErrorBody<'_> {
    ErrorBody {
        kind: error.kind().name(),
        code: error.kind().code(),
        exit: error.kind().exit_code(),
        message: error.message(),
        context: error.context().iter().map(|(k, v)| (*k, v.as_str())).collect(),
        hint: error.hint_text(),
    }
}

fn paint(on: bool, tone: Tone, text: &str) -> String {
    match on {
        true => format!("\x1b[{}m{text}\x1b[0m", tone.ansi()),
        false => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_blanks_only() {
        assert_eq!(wrapped("one two three", 7, 2), "one two\n  three");
        assert_eq!(wrapped("unbreakable", 3, 2), "unbreakable");
        assert_eq!(wrapped("", 3, 2), "");
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        let broken = written(Err(io::ErrorKind::BrokenPipe.into())).unwrap_err();
        assert!(is_broken_pipe(&broken));
        assert_eq!(Output::new(false, Colour::Never).error(&broken), 0);
        let full = written(Err(io::Error::from_raw_os_error(28))).unwrap_err();
        assert!(!is_broken_pipe(&full));
    }

    #[test]
    fn schema_names_are_unique_and_versioned() {
        let mut names = schema::ALL.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), schema::ALL.len());
        assert!(names.iter().all(|n| n.starts_with("forebay.") && n.ends_with("/1")));
    }
}
