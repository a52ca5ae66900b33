//! Keyword arguments of `forebay.open`, turned into [`OpenOptions`].
//!
//! An argument that is absent or None leaves the option to the environment and the defaults. An unknown argument is
//! `UnknownKey` with the nearest known one. Values are checked here as far as one can without the space.

use std::time::Duration;

use forebay_config::{
    component_name, did_you_mean, environment, said_elsewhere, CheckpointOptions, Form, Row,
    CHECKPOINT_OPTIONS, OPTIONS,
};
use forebay_space::{Error, Kind, Mode, OpenOptions};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use serde_json::{json, Map, Value as Json};

use crate::errors::{raise, usage, OrRaise};

/// A keyword that is no option: rank and size come out of it.
const COMMUNICATOR: &str = "comm";

fn known() -> impl Iterator<Item = &'static Row> {
    OPTIONS.iter().filter(|row| row.is_keyword())
}

/// The options of one call, with what the environment adds: rank, size and timeout are final.
pub fn from_keywords(
    py: Python<'_>,
    name: &str,
    mode: Option<Mode>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<OpenOptions> {
    let mut options = OpenOptions { mode: mode.unwrap_or_default(), ..OpenOptions::default() };
    for (key, value) in keywords.iter().flat_map(|k| k.iter()) {
        let key: String = key.extract()?;
        match known().find(|row| row.name == key) {
            Some(row) if !value.is_none() => set(py, &mut options, row, &value)?,
            None if key != COMMUNICATOR => return Err(unknown(py, &key)),
            _ => {}
        }
    }
    // A writer is always one of its group.
    options.observer &= mode.is_none();
    let comm = keywords.map(|k| k.get_item(COMMUNICATOR)).transpose()?.flatten();
    if let Some(comm) = comm.filter(|c| !c.is_none()) {
        take_communicator(py, &mut options, &comm)?;
    }
    if options.component.is_none() && environment::process("FOREBAY_COMPONENT").is_none() {
        options.component = script_name(py);
    }
    // Of several nodes: opening decides.
    options.resolved_across_nodes(name, &environment::process).map(|(options, _)| options).or_raise(py)
}

/// The running script without its ending: says more than "python3".
fn script_name(py: Python<'_>) -> Option<String> {
    let words: Vec<String> = py.import("sys").ok()?.getattr("argv").ok()?.extract().ok()?;
    let stem = std::path::Path::new(words.first()?).file_stem()?.to_str()?;
    (!stem.is_empty() && !stem.starts_with('-')).then(|| component_name(stem))
}

/// The options of a checkpoint, and what else its keywords say, as [`from_keywords`].
pub fn of_checkpoint(
    py: Python<'_>,
    name: &str,
    keywords: &Bound<'_, PyDict>,
) -> PyResult<(CheckpointOptions, OpenOptions)> {
    let mut options = CheckpointOptions::default();
    let others = PyDict::new(py);
    for (key, value) in keywords.iter() {
        let name: String = key.extract()?;
        match CHECKPOINT_OPTIONS.iter().find(|row| row.name == name) {
            Some(row) if !value.is_none() => set(py, &mut options, row, &value)?,
            Some(_) => {}
            None => others.set_item(key, value)?,
        }
    }
    let known = from_keywords(py, name, None, Some(&others))?;
    // Its levels are those of one node, whatever agent serves it.
    Ok((options, known.resolved(name, &environment::process).or_raise(py)?))
}

fn set<O>(py: Python<'_>, options: &mut O, row: &Row<O>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let json = json_of(row, value)?;
    (row.set_json)(options, &json).map_err(|error| raise(py, error.with("argument", row.name)))
}

/// A value of the type that the option has; any other is a `TypeError`.
fn json_of<O>(row: &Row<O>, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    let key = row.name;
    Ok(match row.form {
        Form::Number => json!(argument::<u32>(key, value)?),
        Form::Flag => json!(argument::<bool>(key, value)?),
        Form::Bytes => bytes(key, value)?,
        Form::Seconds => json!(seconds(value.py(), value)?.as_secs_f64()),
        Form::Text | Form::Word(_) | Form::Syntax(_) | Form::Emulation => {
            json!(argument::<String>(key, value)?)
        }
        Form::Words => words(key, value)?,
        Form::Directory => path(key, value)?,
        Form::ReaderGroups => readers(key, value)?,
        Form::SpillTiers => spill(key, value)?,
    })
}

/// Rank and size of a communicator: `Get_rank()` and `Get_size()` as mpi4py has them, or attributes `rank` and `size`;
/// nothing else of it is touched and no MPI is linked.
fn take_communicator(py: Python<'_>, options: &mut OpenOptions, comm: &Bound<'_, PyAny>) -> PyResult<()> {
    if options.rank.is_some() || options.size.is_some() {
        return Err(usage(
            py,
            Kind::Usage,
            "comm= cannot be combined with rank= or size=",
            "give one of them",
        ));
    }
    let (rank, size) = if comm.hasattr("Get_rank")? && comm.hasattr("Get_size")? {
        (comm.call_method0("Get_rank")?, comm.call_method0("Get_size")?)
    } else if comm.hasattr("rank")? && comm.hasattr("size")? {
        (comm.getattr("rank")?, comm.getattr("size")?)
    } else {
        let what = format!(
            "comm= is a {}, which has neither Get_rank and Get_size nor rank and size",
            comm.get_type().name()?
        );
        return Err(usage(py, Kind::Usage, what, "pass an mpi4py communicator, such as MPI.COMM_WORLD"));
    };
    options.rank = Some(argument("comm", &rank)?);
    options.size = Some(argument("comm", &size)?);
    Ok(())
}

/// A time-out in seconds as Python gives it: None, int, float, infinity.
pub fn timeout(py: Python<'_>, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    value.filter(|v| !v.is_none()).map(|v| seconds(py, v)).transpose()
}

fn seconds(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = argument("timeout", value)?;
    if seconds.is_nan() || seconds < 0.0 {
        return Err(usage(
            py,
            Kind::Usage,
            format!("a timeout of {seconds} s"),
            "timeouts are seconds, 0 or more",
        ));
    }
    // Ten years stand for "for ever"; beyond, deadlines would overflow.
    Ok(Duration::from_secs_f64(seconds.min(3.2e8)))
}

fn bytes(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    match value.is_instance_of::<PyString>() {
        true => Ok(json!(argument::<String>(key, value)?)),
        false => Ok(json!(argument::<u64>(key, value)?)),
    }
}

/// One word or several: text is one of them.
fn words(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    match value.is_instance_of::<PyString>() {
        true => Ok(json!([argument::<String>(key, value)?])),
        false => Ok(json!(argument::<Vec<String>>(key, value)?)),
    }
}

/// Text, or what `os.fspath` makes text of.
fn path(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    let text = value.py().import("os")?.call_method1("fspath", (value,))?;
    Ok(json!(argument::<String>(key, &text)?))
}

/// One tier or a list of them, each a text, a path, or a dict with path, quota and tier.
fn spill(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    match value.cast::<PyList>() {
        Ok(list) => list.iter().map(|tier| one_spill_tier(key, &tier)).collect(),
        Err(_) => one_spill_tier(key, value),
    }
}

fn one_spill_tier(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    let Ok(table) = value.cast::<PyDict>() else { return path(key, value) };
    let mut tier = Map::new();
    for (name, part) in table.iter() {
        let name = name.extract::<String>().unwrap_or_default();
        let part = match name.as_str() {
            "path" => path(key, &part)?,
            "quota" => bytes(key, &part)?,
            "tier" => json!(argument::<String>(key, &part)?),
            _ => return Err(wrong_type(key, value, "a dict of path, quota and tier")),
        };
        tier.insert(name, part);
    }
    match tier.get("path").and_then(Json::as_str) {
        None | Some("") => Err(wrong_type(key, value, "a dict with the path of a directory")),
        Some(_) => Ok(Json::Object(tier)),
    }
}

fn readers(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Json> {
    let table: &Bound<'_, PyDict> = value
        .cast()
        .map_err(|_| wrong_type(key, value, "a dict of group name and size, such as {\"analysis\": 3}"))?;
    let group = |(name, size)| Ok((argument::<String>(key, &name)?, json!(argument::<u32>(key, &size)?)));
    table.iter().map(group).collect::<PyResult<Map<String, Json>>>().map(Json::Object)
}

fn argument<'py, T: FromPyObject<'py>>(key: &str, value: &Bound<'py, PyAny>) -> PyResult<T> {
    value.extract().map_err(|error: PyErr| {
        let py = value.py();
        let told = error.value(py).to_string();
        PyTypeError::new_err(format!("forebay.open: {key}={value}: {told}"))
    })
}

fn wrong_type(key: &str, value: &Bound<'_, PyAny>, wanted: &str) -> PyErr {
    PyTypeError::new_err(format!("forebay.open: {key}={value}: wanted {wanted}"))
}

fn unknown(py: Python<'_>, key: &str) -> PyErr {
    let names: Vec<&str> = known().map(|row| row.name).chain([COMMUNICATOR]).collect();
    let error = Error::new(Kind::UnknownKey, format!("forebay.open has no argument {key}"));
    let near = did_you_mean(key, names.iter().copied()).map(|near| format!("did you mean {near}?"));
    let error = match said_elsewhere(key).or(near) {
        Some(hint) => error.hint(hint),
        None => error.hint(format!("known arguments: {}", names.join(", "))),
    };
    raise(py, error)
}
