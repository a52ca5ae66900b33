//! Small things across the border: descriptions, attributes, reports, status values.
//!
//! Reports (inspect, verify, clean, stats) go through JSON, so that their keys are those of `forebay … --json`.
//! None of this is for the data path.

use std::collections::BTreeMap;

use forebay_space::{Attribute, Description, Dtype, Kind, VariableInfo};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};

use crate::arrays;
use crate::detach::detached;
use crate::errors::{usage, OrRaise};

/// A report as dicts, lists, numbers and text.
pub fn to_python<'py>(py: Python<'py>, report: &impl serde::Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(report)
        .map_err(|e| usage(py, Kind::Internal, format!("a report cannot be written: {e}"), ""))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// The description of one space.
pub fn inspect<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let info = detached(py, || forebay_space::inspect(name)).or_raise(py)?;
    to_python(py, &info)
}

/// A member of `forebay.StepStatus`.
pub fn status<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS
        .get_or_try_init(py, || py.import("forebay._status")?.getattr("StepStatus").map(Bound::unbind))?;
    class.bind(py).getattr(name)
}

/// Whether elements of type `array` can stand for `variable`: the same, or bytes for text.
pub fn same_type(array: Dtype, variable: Dtype) -> bool {
    array == variable || (variable == Dtype::Str && array == Dtype::U8)
}

/// The mapping `ch.attrs`.
pub fn attributes_object<'py>(channel: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    channel.py().import("forebay._attributes")?.getattr("Attributes")?.call1((channel,))
}

/// What a notebook shows of an object, by a function of `forebay._show`.
pub fn html<'py>(object: &Bound<'py, PyAny>, what: &str) -> PyResult<Bound<'py, PyAny>> {
    object.py().import("forebay._show")?.getattr(what)?.call1((object,))
}

/// What `__reduce__` returns for an object that a function of `forebay._reading` opens again.
pub fn reopened<'py>(
    py: Python<'py>,
    function: &str,
    arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
) -> PyResult<Bound<'py, PyTuple>> {
    let function = py.import("forebay._reading")?.getattr(function)?;
    PyTuple::new(py, [function, arguments.into_pyobject(py)?.into_any()])
}

/// The error of an object that belongs to one process.
pub fn no_pickle(py: Python<'_>, what: &str, hint: &str) -> PyErr {
    let message = format!("{what} belongs to its process and cannot be pickled");
    let class = py.import("forebay.errors").and_then(|errors| errors.getattr("UsageType"));
    match class.and_then(|class| class.call1((message, PyDict::new(py), hint))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// Attributes as a dict.
pub fn attributes(py: Python<'_>, found: BTreeMap<String, Attribute>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for (key, value) in found {
        match value {
            Attribute::Text(text) => all.set_item(key, text)?,
            Attribute::Int(number) => all.set_item(key, number)?,
            Attribute::Float(number) => all.set_item(key, number)?,
            Attribute::Ints(numbers) => all.set_item(key, numbers)?,
            Attribute::Floats(numbers) => all.set_item(key, numbers)?,
            Attribute::Flag(flag) => all.set_item(key, flag)?,
            Attribute::Texts(texts) => all.set_item(key, texts)?,
        }
    }
    Ok(all)
}

/// A mapping of names to values that can be attributes.
pub fn attributes_of(mapping: &Bound<'_, PyAny>) -> PyResult<BTreeMap<String, Attribute>> {
    let all = PyDict::new(mapping.py());
    all.update(mapping.cast::<PyMapping>()?)?;
    all.iter().map(|(key, value)| Ok((key.extract()?, attribute(&value)?))).collect()
}

/// What `dims=` and `attrs=` say of a variable with that many dimensions, where they are known; None: nothing.
pub fn description(
    py: Python<'_>,
    name: &str,
    dims: Option<&Bound<'_, PyAny>>,
    attrs: Option<&Bound<'_, PyAny>>,
    dimensions: Option<usize>,
) -> PyResult<Option<Description>> {
    let (dims, attrs) = (dims.filter(|d| !d.is_none()), attrs.filter(|a| !a.is_none()));
    let dims: Option<Vec<String>> = match dims {
        Some(one) if one.is_instance_of::<PyString>() => Some(vec![one.extract()?]),
        several => several.map(|names| names.extract()).transpose()?,
    };
    let named = dims.as_ref().map(Vec::len);
    if let (Some(named), Some(dimensions)) = (named, dimensions.filter(|n| named != Some(*n))) {
        let what = format!("dims names {named} dimensions, and the array has {dimensions}");
        return Err(usage(py, Kind::Usage, what, "give one name for each dimension: dims=(\"y\", \"x\")"));
    }
    let attributes = attrs.map_or_else(|| Ok(BTreeMap::new()), attributes_of)?;
    let said = Description { dims, attributes };
    // Before anything is put: one that cannot be said leaves nothing.
    said.check(name).or_raise(py)?;
    Ok(Some(said).filter(|said| !said.is_empty()))
}

/// A Python value as an attribute: text, number, flag, or a list (or 1-D array) of texts or numbers. What could only be
/// stored as something else is refused.
pub fn attribute(value: &Bound<'_, PyAny>) -> PyResult<Attribute> {
    let kind: Option<String> = value.getattr("dtype").and_then(|dtype| dtype.getattr("kind")?.extract()).ok();
    if kind.as_deref().is_some_and(|kind| !"biufU".contains(kind)) || value.is_instance_of::<PyBytes>() {
        return Err(no_attribute(value));
    }
    let plain = if kind.is_some() { value.call_method0("tolist")? } else { value.clone() };
    if plain.is_instance_of::<PyBool>() {
        return Ok(Attribute::Flag(plain.extract()?));
    }
    if plain.is_instance_of::<PyString>() {
        return Ok(Attribute::Text(plain.extract()?));
    }
    if plain.is_instance_of::<PyInt>() {
        return plain.extract().map(Attribute::Int).map_err(|_| no_attribute(value));
    }
    if plain.is_instance_of::<PyFloat>() {
        return Ok(Attribute::Float(plain.extract()?));
    }
    if !plain.is_instance_of::<PyList>() && !plain.is_instance_of::<PyTuple>() {
        return Err(no_attribute(value));
    }
    let entries: Vec<Bound<'_, PyAny>> = plain.extract()?;
    let all = |is: fn(&Bound<'_, PyAny>) -> bool| entries.iter().all(is);
    let is_int =
        |entry: &Bound<'_, PyAny>| entry.is_instance_of::<PyInt>() && !entry.is_instance_of::<PyBool>();
    if all(|entry| entry.is_instance_of::<PyString>()) && !entries.is_empty() {
        return Ok(Attribute::Texts(plain.extract()?));
    }
    if all(is_int) {
        return plain.extract().map(Attribute::Ints).map_err(|_| no_attribute(value));
    }
    // Whole numbers among floats, if they are the same as floats.
    let number = |entry: &Bound<'_, PyAny>| -> Option<f64> {
        let number = entry.extract::<f64>().ok()?;
        let is_float = entry.is_instance_of::<PyFloat>();
        let is_same =
            is_float || (is_int(entry) && entry.eq(PyFloat::new(entry.py(), number)).unwrap_or(false));
        is_same.then_some(number)
    };
    let numbers: Option<Vec<f64>> = entries.iter().map(number).collect();
    numbers.map(Attribute::Floats).ok_or_else(|| no_attribute(value))
}

#[cold]
fn no_attribute(value: &Bound<'_, PyAny>) -> PyErr {
    let text = value.repr().map_or_else(|_| "?".into(), |repr| repr.to_string());
    let short: String = text.chars().take(80).collect();
    let hint =
        "attributes are text, flags, integers of 64 bits with a sign, floats, and lists of texts or numbers";
    usage(value.py(), Kind::Usage, format!("{short} cannot be an attribute"), hint)
}

/// One variable of a version.
#[pyclass(module = "forebay", frozen)]
pub struct Variable {
    info: VariableInfo,
    #[pyo3(get)]
    shape: Py<PyTuple>,
}

impl Variable {
    /// From the space's description.
    pub fn new(py: Python<'_>, info: VariableInfo) -> PyResult<Variable> {
        let shape = PyTuple::new(py, info.shape.iter())?.unbind();
        Ok(Variable { info, shape })
    }
}

#[pymethods]
impl Variable {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }

    /// NumPy dtype; uint8 for text (see kind).
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        arrays::dtype_object(py, self.info.dtype)
    }

    /// Name of the stored type: "float64", "bfloat16", "str".
    #[getter]
    fn kind(&self) -> &'static str {
        self.info.dtype.name()
    }

    /// Bytes of the whole variable.
    #[getter]
    fn nbytes(&self) -> u128 {
        let elements = self.info.shape.iter().fold(1, |all: u128, n| all.saturating_mul(u128::from(*n)));
        elements.saturating_mul(self.info.dtype.size() as u128)
    }

    /// Names of its dimensions, or None when its writers gave none.
    #[getter]
    fn dims<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.info.description.dims.as_ref().map(|names| PyTuple::new(py, names)).transpose()
    }

    /// Its attributes in this version.
    #[getter]
    fn attrs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        attributes(py, self.info.description.attributes.clone())
    }

    /// Which rank holds what.
    #[getter]
    fn pieces(&self, py: Python<'_>) -> PyResult<Vec<Piece>> {
        let tuple = |dims: &[u64]| Ok::<_, PyErr>(PyTuple::new(py, dims)?.unbind());
        let pieces = self.info.pieces.iter();
        pieces
            .map(|p| {
                Ok(Piece { rank: p.rank, start: tuple(&p.start)?, count: tuple(&p.count)?, nbytes: p.bytes })
            })
            .collect()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let shape = self.shape.bind(py).repr()?;
        let dims = self
            .dims(py)?
            .map_or(Ok(String::new()), |dims| Ok::<_, PyErr>(format!(" of {}", dims.repr()?)))?;
        let (name, kind, pieces) = (self.name(), self.kind(), self.info.pieces.len());
        Ok(format!("<forebay.Variable {name:?} {kind} {shape}{dims} in {pieces} pieces>"))
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<()> {
        let hint = "take what you need of it: name, shape, dtype, dims, attrs; or pickle the step";
        Err(no_pickle(py, "the description of a variable", hint))
    }
}

/// The part of a variable that one put brought.
#[pyclass(module = "forebay", frozen, get_all)]
pub struct Piece {
    rank: u32,
    start: Py<PyTuple>,
    count: Py<PyTuple>,
    nbytes: u64,
}

#[pymethods]
impl Piece {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (start, count) = (self.start.bind(py).repr()?, self.count.bind(py).repr()?);
        Ok(format!("<forebay.Piece of rank {}: start {start}, count {count}>", self.rank))
    }
}

/// A version, a step or a number of them as an argument; a negative one is a `Usage` that names it.
pub struct Whole(pub u64);

impl<'py> FromPyObject<'py> for Whole {
    fn extract_bound(object: &Bound<'py, PyAny>) -> PyResult<Whole> {
        let py = object.py();
        match object.extract::<u64>() {
            Ok(number) => Ok(Whole(number)),
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyOverflowError>(py) => {
                let what = format!("{object} is not a version, step or number of steps");
                Err(usage(py, Kind::Usage, what, "integers from 0 to 2**64 - 1 are"))
            }
            Err(error) => Err(error),
        }
    }
}
