//! `forebay cat`: what a space holds, as text, NumPy file, raw bytes or JSON.
//!
//! Guarantees: reads as an observer, so it never holds a stream back and is no peer; memory in use does
//! not grow with the array; what it prints was verified against its checksums. It never waits unless told to.

mod slabs;
mod values;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use forebay_space::{Attribute, Dtype, Error, Kind, NdBox, OpenOptions, Reader, Result, VariableInfo};
use serde::Serialize;

use crate::command::spaces;
use crate::output::{number, schema, table_text, written, Output};
use values::{npy_header, Layout, Spelling};

/// Bytes read from the space at a time: a few segments' worth of rows, small beside any node's memory.
const SLAB_BYTES_MAX: u64 = 8 << 20;
/// Between two looks for a space that is not there yet.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Print a variable, the list of variables, or the attributes of a space.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  forebay cat heat                         variables of the newest version\n  \
                        forebay cat heat T                       all of T, newest version\n  \
                        forebay cat heat T --box 0:4,10:20       a part of it\n  \
                        forebay cat heat T --format npy > T.npy  for numpy.load"
)]
pub struct Args {
    /// Short name or path of the space.
    name: String,
    /// Variable to print; without one, the variables are listed.
    variable: Option<String>,
    /// Which version: a number, `latest`, or `all` that are retained.
    #[arg(long, short = 'V', value_name = "N|latest|all", default_value = "latest", value_parser = which)]
    version: Which,
    /// Part of the index space, first:end per dimension; either may be left out, as may the whole of it.
    #[arg(long = "box", short = 'b', value_name = "BOX", requires = "variable")]
    part: Option<String>,
    /// Form of the values [default: text].
    #[arg(long, short, value_enum, requires = "variable")]
    format: Option<Format>,
    /// Print attributes instead: of the space, of its version, and of its variables.
    #[arg(long, short, conflicts_with_all = ["variable", "part", "format"])]
    attributes: bool,
    /// Wait up to that long for the space and the version.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    wait: Duration,
}

/// Form of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Decimal numbers, one row a line; comment lines start with #.
    Text,
    /// NumPy's file format; several versions follow each other.
    Npy,
    /// The bytes alone, little endian, C order.
    Raw,
    /// One JSON document, the same as --json.
    Json,
}

/// Which versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Number(u64),
    Latest,
    All,
}

fn which(text: &str) -> std::result::Result<Which, String> {
    match text {
        "latest" => Ok(Which::Latest),
        "all" => Ok(Which::All),
        number => number.parse().map(Which::Number).map_err(|_| "a number, `latest` or `all`".to_string()),
    }
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|_| "a number of seconds".to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "a number of seconds that is not negative".to_string())
}

#[derive(Serialize)]
struct VersionListing {
    version: u64,
    variables: Vec<VariableListing>,
}

#[derive(Serialize)]
struct VariableListing {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    dims: Option<Vec<String>>,
    attributes: BTreeMap<String, Attribute>,
    bytes: u64,
    pieces: Vec<PieceListing>,
}

#[derive(Serialize)]
struct PieceListing {
    rank: u32,
    start: Vec<u64>,
    count: Vec<u64>,
    bytes: u64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let format = match (args.format, out.json()) {
        (None, false) => Format::Text,
        (None | Some(Format::Json), true) => Format::Json,
        (Some(format), false) => format,
        (Some(_), true) => {
            return Err(Error::new(Kind::Usage, "--json and another --format exclude each other")
                .hint("--json is the same as --format json"))
        }
    };
    if matches!(format, Format::Npy | Format::Raw) && out.stdout_is_terminal() {
        return Err(
            Error::new(Kind::Usage, "binary output to a terminal is refused").hint("redirect it: … > FILE")
        );
    }
    let deadline = Instant::now() + args.wait;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut reader = loop {
        match join(&args.name, left()) {
            // An observer does not wait for a space that is not there yet.
            Err(e) if e.kind() == Kind::PeerMissing && !left().is_zero() => {
                std::thread::sleep(LOOK_EVERY.min(left()))
            }
            opened => break opened.map_err(|e| spaces::with_suggestion(e, &args.name))?,
        }
    };
    if args.attributes {
        return attributes(&mut reader, args, left(), out);
    }
    let versions = select(&mut reader, args, left())?;
    match &args.variable {
        None => list(&mut reader, args, &versions, out)?,
        Some(variable) => values(&mut reader, args, &versions, variable, format, out)?,
    }
    reader.close()?;
    Ok(0)
}

fn join(name: &str, timeout: Duration) -> Result<Reader> {
    let options = OpenOptions {
        component: Some("forebay cat".into()),
        rank: Some(0),
        size: Some(1),
        observer: true,
        timeout,
        channel: forebay_space::mechanism_of(name)?.unwrap_or_default(),
        ..OpenOptions::default()
    };
    Reader::open(name, &options)
}

/// The version numbers to print, oldest first. Waits `wait` for the first one.
fn select(reader: &mut Reader, args: &Args, wait: Duration) -> Result<Vec<u64>> {
    if let Which::Number(version) = args.version {
        reader.wait(version, Some(wait))?;
        return Ok(vec![version]);
    }
    if reader.latest()?.is_none() {
        let first = reader.versions()?.end;
        reader.wait(first, Some(wait)).map_err(|e| match e.kind() {
            Kind::TimedOut => {
                Error::new(Kind::TimedOut, format!("space {} has no complete version", args.name))
                    .hint("--wait SECONDS waits for the first one")
            }
            _ => e,
        })?;
    }
    match args.version {
        Which::All => Ok(reader.versions()?.collect()),
        _ => Ok(reader.latest()?.into_iter().collect()),
    }
}

/// Opens a version; one that the writers dropped since it was selected is skipped when all were asked for.
fn open(reader: &mut Reader, args: &Args, version: u64, out: &Output) -> Result<Option<Reader>> {
    match reader.open_version(version) {
        Ok(opened) => Ok(Some(opened)),
        Err(e) if e.kind() == Kind::VersionGone && args.version == Which::All => {
            out.aside(&format!("version {version} has been dropped"));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

fn attributes(reader: &mut Reader, args: &Args, wait: Duration, out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct OfVersion {
        version: u64,
        attributes: BTreeMap<String, Attribute>,
        variables: Vec<VariableListing>,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        space: &'a str,
        attributes: BTreeMap<String, Attribute>,
        versions: Vec<OfVersion>,
    }
    let of_space = reader.attributes()?;
    // The attributes of a space are there before its first version.
    let is_asked_for = args.version != Which::Latest || !args.wait.is_zero() || reader.latest()?.is_some();
    let numbers = if is_asked_for { select(reader, args, wait)? } else { Vec::new() };
    let mut versions = Vec::new();
    for version in numbers {
        let Some(mut opened) = open(reader, args, version, out)? else { continue };
        let variables = opened.variables()?.iter().map(listing).collect();
        versions.push(OfVersion { version, attributes: opened.version_attributes()?, variables });
    }
    let body = Body { space: &args.name, attributes: of_space, versions };
    out.result(schema::ATTRIBUTES, &body, || {
        let lines = |before: &str, attributes: &BTreeMap<String, Attribute>| -> String {
            let value = |a: &Attribute| serde_json::to_string(a).unwrap_or_else(|_| format!("{a:?}"));
            let line =
                |(key, a): (&String, &Attribute)| format!("{before}{} = {}\n", on_one_line(key), value(a));
            attributes.iter().map(line).collect()
        };
        let mut text = lines("", &body.attributes);
        for OfVersion { version, attributes, variables } in &body.versions {
            text += &lines(&format!("version {version}: "), attributes);
            for variable in variables {
                let name = on_one_line(&variable.name);
                text += &lines(&format!("version {version}: {name}: "), &variable.attributes);
            }
        }
        text
    })?;
    Ok(0)
}

fn list(reader: &mut Reader, args: &Args, versions: &[u64], out: &Output) -> Result<()> {
    #[derive(Serialize)]
    struct Body<'a> {
        space: &'a str,
        versions: Vec<VersionListing>,
    }
    let mut body = Body { space: &args.name, versions: Vec::new() };
    for &version in versions {
        if let Some(mut opened) = open(reader, args, version, out)? {
            let variables = opened.variables()?.iter().map(listing).collect();
            body.versions.push(VersionListing { version, variables });
        }
    }
    out.result(schema::VARIABLES, &body, || {
        let mut table = out.table(&["VERSION", "VARIABLE", "DTYPE", "SHAPE", "PIECES", "BYTES"]);
        for v in &body.versions {
            for variable in &v.variables {
                table.add_row(vec![
                    number(v.version),
                    on_one_line(&variable.name).into(),
                    variable.dtype.into(),
                    shape_text(&variable.shape, variable.dims.as_deref()).into(),
                    number(variable.pieces.len()),
                    number(forebay_space::format_bytes(variable.bytes)),
                ]);
            }
        }
        table_text(&table)
    })?;
    if let Some(first) = body.versions.last().and_then(|v| v.variables.first()) {
        out.next(&format!("forebay cat {} {}", args.name, first.name));
    }
    Ok(())
}

fn listing(info: &VariableInfo) -> VariableListing {
    VariableListing {
        name: info.name.to_string(),
        dtype: info.dtype.name(),
        shape: info.shape.to_vec(),
        dims: info.description.dims.clone(),
        attributes: info.description.attributes.clone(),
        bytes: info.pieces.iter().map(|p| p.bytes).sum(),
        pieces: info
            .pieces
            .iter()
            .map(|p| PieceListing {
                rank: p.rank,
                start: p.start.to_vec(),
                count: p.count.to_vec(),
                bytes: p.bytes,
            })
            .collect(),
    }
}

/// A name for people: line feeds and escape sequences as Rust and C write them.
fn on_one_line(name: &str) -> String {
    let escaped =
        name.chars().map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() });
    escaped.collect()
}

/// `4 x 5`, with names `y=4 x x=5`; a scalar has no extents.
fn shape_text(shape: &[u64], dims: Option<&[String]>) -> String {
    let extents = shape.iter().enumerate().map(|(d, extent)| match dims.and_then(|dims| dims.get(d)) {
        Some(name) => format!("{}={extent}", on_one_line(name)),
        None => extent.to_string(),
    });
    match shape {
        [] => "scalar".into(),
        _ => extents.collect::<Vec<_>>().join(" x "),
    }
}

/// Prints the values of one variable in every selected version.
fn values(
    reader: &mut Reader,
    args: &Args,
    versions: &[u64],
    variable: &str,
    format: Format,
    out: &Output,
) -> Result<()> {
    let mut stdout = out.stdout();
    let mut printed = 0usize;
    for &version in versions {
        let Some(mut opened) = open(reader, args, version, out)? else { continue };
        let info = opened.variable(variable).map_err(|e| with_names(e, &mut opened))?;
        let part = match &args.part {
            None => NdBox::whole(&info.shape),
            Some(text) => part_of(text, variable, &info.shape)?,
        };
        let head = match (format, printed) {
            (Format::Json, 0) => document_head(args, &info)? + &version_head(version, &info.shape, &part),
            (Format::Json, _) => ",".to_string() + &version_head(version, &info.shape, &part),
            (Format::Text, _) => {
                format!(
                    "# {variable} {} {part} of {}, version {version}\n",
                    info.dtype,
                    shape_text(&info.shape, info.description.dims.as_deref())
                )
            }
            _ => String::new(),
        };
        out.begin_data();
        written(stdout.write_all(head.as_bytes()))?;
        match info.dtype {
            Dtype::Str if matches!(format, Format::Text | Format::Json) => {
                string(&mut opened, variable, &part, format, &mut stdout)?;
            }
            dtype => array(&mut opened, variable, dtype, &part, format, &mut stdout)?,
        }
        if format == Format::Json {
            written(stdout.write_all(b"}"))?;
        }
        printed += 1;
    }
    if printed == 0 {
        return Err(Error::new(
            Kind::VersionGone,
            format!("all versions of space {} have been dropped", args.name),
        )
        .hint("use --version latest"));
    }
    if format == Format::Json {
        written(stdout.write_all(b"]}\n"))?;
    }
    written(stdout.flush())
}

/// Adds the names a version does hold to an error about one it does not.
fn with_names(error: Error, reader: &mut Reader) -> Error {
    let names = match reader.variables() {
        Ok(variables) if error.kind() == Kind::UnknownVariable && error.hint_text().is_none() => variables,
        _ => return error,
    };
    let names: Vec<String> = names.iter().take(20).map(|v| v.name.to_string()).collect();
    error.hint(format!("variables: {}", names.join(", ")))
}

/// Reads `0:4,10:,:,7` against a shape: what is left out is filled in.
fn part_of(text: &str, variable: &str, shape: &[u64]) -> Result<NdBox> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    let parts: Vec<&str> =
        if inner.is_empty() { Vec::new() } else { inner.split(',').map(str::trim).collect() };
    if parts.len() != shape.len() {
        return Err(Error::new(
            Kind::BoxOutsideShape,
            format!("the box exceeds the shape of variable {variable}"),
        )
        .with("box", text)
        .with("shape", shape_text(shape, None))
        .hint(format!("give first:end for each of the {} dimensions, as in 0:4,:", shape.len())));
    }
    let filled: Vec<String> = parts
        .iter()
        .zip(shape)
        .map(|(part, n)| match part.split_once(':') {
            Some((first, end)) => {
                let first = if first.trim().is_empty() { "0" } else { first };
                let end = if end.trim().is_empty() { n.to_string() } else { end.to_string() };
                format!("{first}:{end}")
            }
            None => part.to_string(),
        })
        .collect();
    let part: NdBox = filled.join(",").parse()?;
    part.check_inside(variable, shape)?;
    Ok(part)
}

fn array(
    reader: &mut Reader,
    variable: &str,
    dtype: Dtype,
    part: &NdBox,
    format: Format,
    stdout: &mut dyn Write,
) -> Result<()> {
    let spelling = if format == Format::Json { Spelling::Json } else { Spelling::Text };
    let mut layout = Layout::new(spelling, &part.count);
    if format == Format::Npy {
        written(stdout.write_all(&npy_header(dtype, &part.count)))?;
    }
    if part.is_empty() && format == Format::Json {
        return written(layout.empty(stdout));
    }
    let mut buffer = Vec::new();
    slabs::for_each(part, dtype.size(), SLAB_BYTES_MAX, &mut |slab| {
        buffer.resize(slab.bytes(dtype.size())?, 0);
        reader.get(variable, Some(slab), &mut buffer)?;
        written(match format {
            Format::Npy | Format::Raw => stdout.write_all(&buffer),
            Format::Text | Format::Json => layout.elements(dtype, &buffer, stdout),
        })
    })
}

/// Text is one value, not an array of bytes.
fn string(
    reader: &mut Reader,
    variable: &str,
    part: &NdBox,
    format: Format,
    stdout: &mut dyn Write,
) -> Result<()> {
    let length = part.bytes(1)?;
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(length).is_err() {
        return Err(Error::new(
            Kind::TierFull,
            format!("there is not enough memory for the text {variable}"),
        )
        .with("bytes", length)
        .hint("print a part of it: --box FIRST:END"));
    }
    bytes.resize(length, 0);
    if !part.is_empty() {
        reader.get(variable, Some(part), &mut bytes)?;
    }
    let text = String::from_utf8_lossy(&bytes);
    let line = match format {
        Format::Json => json_text(&text)?,
        _ => format!("{text}\n"),
    };
    written(stdout.write_all(line.as_bytes()))
}

fn document_head(args: &Args, info: &VariableInfo) -> Result<String> {
    Ok(format!(
        "{{\"schema\":\"{}\",\"space\":{},\"variable\":{},\"dtype\":\"{}\",\"versions\":[",
        schema::CAT,
        json_text(&args.name)?,
        json_text(&info.name)?,
        info.dtype.name()
    ))
}

fn version_head(version: u64, shape: &[u64], part: &NdBox) -> String {
    let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    format!(
        "{{\"version\":{version},\"shape\":[{}],\"start\":[{}],\"count\":[{}],\"data\":",
        list(shape),
        list(&part.start),
        list(&part.count)
    )
}

fn json_text(text: &str) -> Result<String> {
    serde_json::to_string(text)
        .map_err(|e| Error::new(Kind::Internal, format!("text output is not valid JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_box_leaves_out_is_filled_in() {
        let shape = [4, 5, 6];
        let part = part_of("1:, :3 ,2", "T", &shape).unwrap();
        assert_eq!((part.start.as_slice(), part.count.as_slice()), (&[1, 0, 2][..], &[3, 3, 1][..]));
        assert_eq!(part_of("[:,:,:]", "T", &shape).unwrap(), NdBox::whole(&shape));
        assert_eq!(part_of("", "T", &[]).unwrap(), NdBox::whole(&[]));
        for wrong in ["0:4", "0:5,:,:", "a:b,:,:", "3:1,:,:", "-1,:,:"] {
            let kind = part_of(wrong, "T", &shape).unwrap_err().kind();
            assert_eq!(kind.exit_code(), 2, "{wrong} gave {kind}");
        }
    }

    #[test]
    fn versions_and_seconds_are_read() {
        assert_eq!(which("12"), Ok(Which::Number(12)));
        assert_eq!(which("all"), Ok(Which::All));
        assert!(which("newest").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("-1").is_err() && seconds("nan").is_err() && seconds("x").is_err());
    }
}
