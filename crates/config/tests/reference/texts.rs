//! What documents and sources repeat of the table of options: the reference page, the list in the header of C, the
//! keywords of Python.
//!
//! Guarantees: the same table gives the same text. Which file holds what, and that they agree, is in `main.rs`.

use std::fmt::Write as _;

use forebay_config::{Form, OpenOptions, Role, Row, OPTIONS};

/// Groups of the reference, in its order.
const ROLES: [(Role, &str); 5] = [
    (Role::Process, "Who this process is"),
    (Role::Creation, "How the space is made, by the first writer that opens it; later ones must agree"),
    (Role::Writer, "Of a writer"),
    (Role::Reader, "Of a reader"),
    (Role::Both, "Of writers and readers"),
];

const PAGE_INTRODUCTION: &str = "\
# Options

<!-- Written from crates/config/src/table.rs: UPDATE_REFERENCE=1 cargo test -p forebay-config --test reference -->

Every option of `open`, and where it can be said. The program's word counts first; then the workflow file, of which
`forebay run` tells each process in the variable `FOREBAY_CHANNEL_NAME`; then the single variables; then the default.

C sets options by name with `fb_options_set`, as text. In Python they are keywords of `forebay.open`: flags and numbers
are `bool` and `int`, sizes `int` or text, `timeout` a number, `readers` a dict, `spill` text, a path, a dict of `path`,
`quota` and `tier`, or a list of these. `comm=` takes rank and size of a communicator. In a workflow file they stand in
[`[channel.NAME]`](../guide/workflow.md#the-channel); `readers` come from its components.
";

/// The page `docs/src/reference/options.md`.
pub fn page() -> String {
    let mut page = PAGE_INTRODUCTION.to_owned();
    for (role, title) in ROLES {
        let _ = write!(page, "\n## {title}\n\n| option | value | default | said in | since | meaning |\n");
        page.push_str("|---|---|---|---|---|---|\n");
        for row in OPTIONS.iter().filter(|row| row.role == role) {
            let more = [row.help, row.more, &see(row)].join(" ").trim_end().replace("  ", " ");
            let cells = [
                format!("`{}`", row.name),
                values(row),
                row.default.to_owned(),
                said_in(row),
                row.since.to_owned(),
                more,
            ];
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(page, "| {} |", cells.join(" | "));
        }
    }
    page
}

/// What may be said, each word as code.
fn values(row: &Row) -> String {
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

fn see(row: &Row) -> String {
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
            let variable = row.variable.map(|name| format!("; {name}")).unwrap_or_default();
            let words = format!(
                "- \"{}\" ({}; default: {}{variable}): {} {}",
                row.name,
                values(row),
                row.default,
                row.help,
                row.more
            );
            for line in wrapped(&words.replace('`', "\""), 108) {
                let _ = writeln!(text, "/// {line}");
            }
        }
    }
    text
}

/// Keywords of one overload of `open` in the stub file of the Python package.
pub fn stub(writer: bool) -> String {
    let mut text = String::new();
    for row in keywords(Some(writer)) {
        let type_name = match row.form {
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
            Form::Directory => "str | PathLike[str]".to_owned(),
        };
        let _ = writeln!(text, "    {}: {type_name} | None = None,", row.name);
        if row.name == "size" {
            text.push_str("    comm: _Communicator | None = None,\n");
        }
    }
    text
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
    (row.set)(&mut options, row.default).is_ok() && options == OpenOptions::default()
}

/// Whether a writer (else a reader) has a use for it.
fn is_for(row: &Row, writer: bool) -> bool {
    match row.role {
        Role::Process | Role::Both => true,
        Role::Creation => writer || row.name == "channel",
        Role::Writer => writer,
        Role::Reader => !writer,
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
