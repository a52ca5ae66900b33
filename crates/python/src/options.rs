//! Keyword arguments of `forebay.open`, turned into [`OpenOptions`].
//!
//! An argument that is absent or None leaves the option to the environment and the defaults. An unknown argument is
//! `UnknownKey` with the nearest known one. Values are checked here as far as one can without the space.

use std::str::FromStr;
use std::time::Duration;

use forebay_space::environment::{self, did_you_mean};
use forebay_space::options::{parse_horizon, parse_spill, parse_tier};
use forebay_space::{parse_bytes, Error, Kind, Mode, OpenOptions, Result, SpillTier};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use crate::errors::{raise, usage, OrRaise};

const KNOWN: &[&str] = &[
    "rank",
    "size",
    "comm",
    "component",
    "channel",
    "tier",
    "quota",
    "spill",
    "when_full",
    "segment",
    "horizon",
    "retention",
    "checksum",
    "batch",
    "replace",
    "finished",
    "verify",
    "timeout",
    "latest",
    "scope",
    "readers",
    "group",
    "absent",
    "observer",
];

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
        if !KNOWN.contains(&key.as_str()) {
            return Err(unknown(py, &key));
        }
        if !value.is_none() && key != "comm" {
            set(py, &mut options, &key, &value)?;
        }
    }
    let comm = keywords.map(|k| k.get_item("comm")).transpose()?.flatten();
    if let Some(comm) = comm.filter(|c| !c.is_none()) {
        take_communicator(py, &mut options, &comm)?;
    }
    if options.component.is_none() && environment::process("FOREBAY_COMPONENT").is_none() {
        options.component = script_name(py);
    }
    options.resolved(name, &environment::process).or_raise(py)
}

/// The running script without its ending: says more than "python3".
fn script_name(py: Python<'_>) -> Option<String> {
    let words: Vec<String> = py.import("sys").ok()?.getattr("argv").ok()?.extract().ok()?;
    let stem = std::path::Path::new(words.first()?).file_stem()?.to_str()?;
    (!stem.is_empty() && !stem.starts_with('-')).then(|| stem.to_string())
}

fn set(py: Python<'_>, options: &mut OpenOptions, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match key {
        "rank" => options.rank = Some(argument(key, value)?),
        "size" => options.size = Some(argument(key, value)?),
        "component" => options.component = Some(argument(key, value)?),
        "channel" => options.channel = word(key, value, FromStr::from_str)?,
        "tier" => options.tier = Some(word(key, value, parse_tier)?),
        "quota" => options.quota_bytes = Some(bytes(key, value)?),
        "spill" => options.spill = spill(key, value)?,
        "when_full" => options.when_full = Some(word(key, value, FromStr::from_str)?),
        "segment" => options.segment_bytes = Some(bytes(key, value)?),
        "horizon" => options.horizon = Some(word(key, value, parse_horizon)?),
        "retention" => options.retention = Some(word(key, value, FromStr::from_str)?),
        "checksum" => options.checksum = Some(argument(key, value)?),
        "batch" => options.batch_bytes = Some(bytes(key, value)?),
        "replace" => options.replace = argument(key, value)?,
        "finished" => options.finished = argument(key, value)?,
        "verify" => options.verify = word(key, value, FromStr::from_str)?,
        "timeout" => options.timeout = seconds(py, value)?,
        "latest" => options.latest = argument(key, value)?,
        "scope" => options.scope = word(key, value, FromStr::from_str)?,
        "readers" => options.readers = readers(key, value)?,
        "group" => options.group = Some(argument(key, value)?),
        "absent" => options.absent = Some(word(key, value, FromStr::from_str)?),
        "observer" => options.observer = argument(key, value)?,
        other => return Err(unknown(py, other)),
    }
    Ok(())
}

/// Rank and size of a communicator: `Get_rank()` and `Get_size()` as mpi4py has them, or attributes `rank` and `size`;
/// nothing else of it is touched and no MPI is linked.
fn take_communicator(py: Python<'_>, options: &mut OpenOptions, comm: &Bound<'_, PyAny>) -> PyResult<()> {
    if options.rank.is_some() || options.size.is_some() {
        return Err(usage(
            py,
            Kind::Usage,
            "comm= was given together with rank= or size=",
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

fn bytes(key: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    if value.is_instance_of::<PyString>() {
        word(key, value, parse_bytes)
    } else {
        argument(key, value)
    }
}

/// One tier or a list of them, each a text or a dict with path, quota and tier.
fn spill(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<SpillTier>> {
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().map(|tier| one_spill_tier(key, &tier)).collect();
    }
    if value.is_instance_of::<PyDict>() {
        return Ok(vec![one_spill_tier(key, value)?]);
    }
    let text = value.py().import("os")?.call_method1("fspath", (value,))?;
    word(key, &text, parse_spill)
}

fn one_spill_tier(key: &str, value: &Bound<'_, PyAny>) -> PyResult<SpillTier> {
    let Ok(table) = value.cast::<PyDict>() else {
        let text = value.py().import("os")?.call_method1("fspath", (value,))?;
        return word(key, &text, |text| text.parse());
    };
    let mut tier = SpillTier { path: Default::default(), quota: None, tier: None };
    for (name, part) in table.iter() {
        match name.extract::<&str>().unwrap_or_default() {
            "path" => tier.path = part.extract()?,
            "quota" => tier.quota = Some(bytes(key, &part)?),
            "tier" => tier.tier = Some(word(key, &part, parse_tier)?),
            _ => return Err(wrong_type(key, value, "a dict of path, quota and tier")),
        }
    }
    if tier.path.as_os_str().is_empty() {
        return Err(wrong_type(key, value, "a dict with the path of a directory"));
    }
    Ok(tier)
}

fn readers(key: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, u32)>> {
    let table: &Bound<'_, PyDict> = value
        .cast()
        .map_err(|_| wrong_type(key, value, "a dict of group name and size, such as {\"analysis\": 3}"))?;
    table.iter().map(|(name, size)| Ok((argument(key, &name)?, argument(key, &size)?))).collect()
}

fn word<T>(key: &str, value: &Bound<'_, PyAny>, read: impl Fn(&str) -> Result<T>) -> PyResult<T> {
    read(&argument::<String>(key, value)?).map_err(|error| raise(value.py(), error.with("argument", key)))
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
    let error = Error::new(Kind::UnknownKey, format!("forebay.open has no argument {key}"));
    let error = match did_you_mean(key, KNOWN.iter().copied()) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None => error.hint(format!("known arguments: {}", KNOWN.join(", "))),
    };
    raise(py, error)
}
