//! What documents and sources repeat of the table of options: the reference page, the list in the header of C, the
//! keywords of Python.
//!
//! Guarantees: the same table gives the same text. Which file holds what, and that they agree, is in `main.rs`.

use std::fmt::Write as _;

use forebay_config::{CheckpointOptions, Form, OpenOptions, Role, Row, CHECKPOINT_OPTIONS, OPTIONS};

/// Groups of the reference, in its order.
const ROLES: [(Role, &str); 5] = [
    (Role::Process, "Process"),
    (Role::Creation, "Creation of a space (set by the first writer; later writers must agree)"),
    (Role::Writer, "Writer"),
    (Role::Reader, "Reader"),
    (Role::Both, "Writer and reader"),
];

const PAGE_INTRODUCTION: &str = "\
# Options

<!-- Written from crates/config/src/table.rs: UPDATE_REFERENCE=1 cargo test -p forebay-config --test reference -->

Every option of `open`, and where it can be set. Precedence: arguments of the program, then the workflow file (passed
by `forebay run` in the variable `FOREBAY_CHANNEL_NAME`), then single variables, then the default.

C sets options by name with `fb_options_set`, as text. In Python they are keywords of `forebay.open`: flags and numbers
are `bool` and `int`, sizes `int` or text, `timeout` a number, `readers` a dict, `spill` text, a path, a dict of `path`,
`quota` and `tier`, or a list of these. `comm=` takes rank and size of a communicator. In a workflow file they stand in
[`[channel.NAME]`](../guide/workflow.md#the-channel); `readers` come from its components.
";

const CHECKPOINT_INTRODUCTION: &str = "
## Checkpoint

`forebay.Checkpoint` and `fb_checkpoint_open` take these, and of the above `rank`, `size`, `scope`, `timeout` and, in
Python, `comm`. They have no environment variables. In Python `levels` and `when` are a text or a list of texts, as in
`[\"dram\", \"file,keep=3\"]`.

| option | value | default | set in | since | meaning |
|---|---|---|---|---|---|
";

/// The page `docs/src/reference/options.md`.
pub fn page() -> String {
    let mut page = PAGE_INTRODUCTION.to_owned();
    for (role, title) in ROLES {
        let _ = write!(page, "\n## {title}\n\n| option | value | default | set in | since | meaning |\n");
        page.push_str("|---|---|---|---|---|---|\n");
        let rows = OPTIONS.iter().filter(|row| row.role == role);
        rows.for_each(|row| page.push_str(&line(row, &said_in(row))));
    }
    page.push_str(CHECKPOINT_INTRODUCTION);
    for row in CHECKPOINT_OPTIONS {
        let place = if row.name == "levels" { "C, Python (second argument)" } else { "C, Python" };
        page.push_str(&line(row, place));
    }
    page
}

/// One option in its table of the page.
fn line<O>(row: &Row<O>, said_in: &str) -> String {
    let more = [row.help, row.more, &see(row)].join(" ").trim_end().replace("  ", " ");
    let name = format!("`{}`", row.name);
    let cells = [&name, &values(row), row.default, said_in, row.since, &more];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

/// What may be said, each word as code.
fn values<O>(row: &Row<O>) -> String {
    match row.form {
        Form::Word(_) | Form::Syntax(_) | Form::Flag if row.range.is_empty() => {
            let text = row.form.text();
            let words = text.split(" | ").map(|word| format!("`{word}`"));
            words.collect::<Vec<_>>().join(", ")
        }
        _ => row.values(),
    }
}

/// Where the option can be said.
fn said_in(row: &Row) -> String {
    let mut places = Vec::new();
    match (row.program, row.is_keyword()) {
        (true, true) => places.push("C, Python".to_owned()),
        (true, false) => places.push("C, Python (second argument)".to_owned()),
        (false, _) => {}
    }
    places.extend(row.variable.map(|name| format!("`{name}`")));
    if let Some(key) = row.table.filter(|_| row.file) {
        places.push(format!("workflow file (`{key}`)"));
    }
    match places.is_empty() {
        true => "plans".to_owned(),
        false => places.join(", "),
    }
}

fn see<O>(row: &Row<O>) -> String {
    match row.see {
        "" => String::new(),
        page => format!("[More](../guide/{page})."),
    }
}

/// The options in the comment of `fb_options_set`.
pub fn c_comment() -> String {
    let mut text = String::new();
    for (role, title) in ROLES {
        let _ = write!(text, "///\n/// {title}:\n");
        for row in OPTIONS.iter().filter(|row| row.program && row.role == role) {
            text.push_str(&c_item(row));
        }
    }
    text.push_str("///\n/// Checkpoint:\n");
    CHECKPOINT_OPTIONS.iter().for_each(|row| text.push_str(&c_item(row)));
    text
}

fn c_item<O>(row: &Row<O>) -> String {
    let variable = row.variable.map(|name| format!("; {name}")).unwrap_or_default();
    let words = format!(
        "- \"{}\" ({}; default: {}{variable}): {} {}",
        row.name,
        values(row),
        row.default,
        row.help,
        row.more
    );
    wrapped(&words.replace('`', "\""), 108).iter().map(|line| format!("/// {line}\n")).collect()
}

/// Keywords of `forebay.Checkpoint`, and what its call hands on.
pub fn checkpoint_keywords() -> [String; 2] {
    let rows = || CHECKPOINT_OPTIONS.iter().filter(|row| row.name != "levels");
    let keyword = |row: &Row<_>| {
        let mut options = CheckpointOptions::default();
        let is_number = matches!(row.form, Form::Number);
        let default = match (row.set)(&mut options, row.default) {
            Ok(()) if is_number => row.default.to_owned(),
            Ok(()) if row.form != Form::Text || !row.range.is_empty() => format!("\"{}\"", row.default),
            _ => "None".to_owned(),
        };
        let none = if default == "None" { " | None" } else { "" };
        format!("        {}: {}{none} = {default},\n", row.name, type_name(row))
    };
    let item = |row: &Row<_>| format!("            \"{0}\": {0},\n", row.name);
    [rows().map(keyword).collect(), rows().map(item).collect()]
}

/// Keywords of one overload of `open` in the stub file of the Python package.
pub fn stub(writer: bool) -> String {
    let mut text = String::new();
    for row in keywords(Some(writer)) {
        let _ = writeln!(text, "    {}: {} | None = None,", row.name, type_name(row));
        if row.name == "size" {
            text.push_str("    comm: _Communicator | None = None,\n");
        }
    }
    text
}

/// The type of a keyword in Python.
fn type_name<O>(row: &Row<O>) -> String {
    match row.form {
        Form::Number => "int".to_owned(),
        Form::Flag => "bool".to_owned(),
        Form::Bytes => "int | str".to_owned(),
        Form::Seconds => "float".to_owned(),
        Form::Word(words) => format!("Literal[\"{}\"]", words.join("\", \"")),
        Form::ReaderGroups => "Mapping[str, int]".to_owned(),
        Form::SpillTiers => {
            "str | PathLike[str] | Mapping[str, object] | Sequence[str | Mapping[str, object]]".to_owned()
        }
        Form::Text | Form::Syntax(_) | Form::Emulation => "str".to_owned(),
        Form::Words => "str | Sequence[str]".to_owned(),
        Form::Directory => "str | PathLike[str]".to_owned(),
    }
}

/// The signature of `open` that Python's `help` shows.
pub fn signature() -> String {
    let mut words = vec!["(name, mode='r', *,".to_owned()];
    for row in keywords(None) {
        let default = match row.form {
            Form::Flag if has_default(row) => if row.default == "true" { "True" } else { "False" }.to_owned(),
            Form::Word(_) if has_default(row) => format!("'{}'", row.default),
            Form::Seconds if has_default(row) => row.default.to_owned(),
            _ => "None".to_owned(),
        };
        words.push(format!("{}={default},", row.name));
        if row.name == "size" {
            words.push("comm=None,".to_owned());
        }
    }
    let lines = wrapped(words.join(" ").trim_end_matches(','), 84);
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    format!("#[pyo3(text_signature = \"{})\")]\n", lines.join(" \\\n    "))
}

/// Whether its field has a default of its own, which is what the row says.
fn has_default(row: &Row) -> bool {
    let mut options = OpenOptions::default();
    (row.set)(&mut options, row.default).is_ok()
        && OpenOptions { said: Vec::new(), ..options } == OpenOptions::default()
}

/// Whether a writer (else a reader) has a use for it.
fn is_for(row: &Row, writer: bool) -> bool {
    match row.role {
        Role::Process | Role::Both => true,
        Role::Creation => writer || row.name == "channel",
        Role::Writer => writer,
        Role::Reader => !writer,
        Role::Checkpoint => false,
    }
}

/// The keywords of `forebay.open`: of a writer, of a reader, or all.
fn keywords(writer: Option<bool>) -> impl Iterator<Item = &'static Row> {
    OPTIONS.iter().filter(move |row| row.is_keyword() && writer.is_none_or(|writer| is_for(row, writer)))
}

/// Words in lines of at most so many letters; lines after the first begin with two blanks.
fn wrapped(text: &str, letters_max: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > letters_max {
            lines.push(format!("  {word}"));
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}
