//! The compiled part of `forebay.Checkpoint`: arrays in, steps out.
//!
//! Guarantees: copying, waiting and reading run without the GIL; the arrays are looked at anew at each call, so that
//! one that was made read-only or no longer contiguous is an error and not a wrong step.

use std::path::PathBuf;

use forebay_checkpoint::{Checkpoint, NdBox, Options};
use forebay_config::environment;
use forebay_space::{Error, Kind};
use forebay_tier::adapter::fault::FaultPlan;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays;
use crate::buffer;
use crate::cell::Cell;
use crate::convert::{to_python, Whole};
use crate::detach::detached;
use crate::errors::{raise, OrRaise};
use crate::options;

/// What `forebay.Checkpoint` stands on.
#[pyclass(name = "_Checkpoint", module = "forebay._forebay", frozen)]
pub struct PyCheckpoint(Cell<State>);

struct State {
    checkpoint: Option<Checkpoint>,
    arrays: Vec<(String, Py<PyAny>)>,
}

impl State {
    fn open(&mut self) -> forebay_space::Result<&mut Checkpoint> {
        let closed = || Error::new(Kind::Closed, "the checkpoint is closed").hint("open it again");
        self.checkpoint.as_mut().ok_or_else(closed)
    }
}

#[pymethods]
impl PyCheckpoint {
    /// keywords: the options of a checkpoint, and rank, size, comm, scope, timeout as `forebay.open` knows them.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, keywords: &Bound<'_, PyDict>) -> PyResult<PyCheckpoint> {
        arrays::prepare_numpy(py)?;
        let (said, known) = options::of_checkpoint(py, &path.display().to_string(), keywords)?;
        let options = Options {
            node: environment::value("FOREBAY_NODE", &environment::process),
            rank: known.rank.unwrap_or(0),
            size: known.size.unwrap_or(1),
            timeout: known.timeout,
            memory_root: Some(forebay_space::make_root().or_raise(py)?),
            launch: forebay_space::launch_id(),
            faults: environment::parsed("FOREBAY_FAULT", &environment::process, FaultPlan::parse)
                .or_raise(py)?,
            ..said
        };
        let checkpoint = detached(py, || Checkpoint::open(&path, &options)).or_raise(py)?;
        Ok(PyCheckpoint(Cell::new(State { checkpoint: Some(checkpoint), arrays: Vec::new() })))
    }

    /// An ndarray, and where it lies in a global shape.
    fn protect(
        &self,
        py: Python<'_>,
        name: String,
        array: &Bound<'_, PyAny>,
        shape: Option<Vec<u64>>,
        start: Option<Vec<u64>>,
    ) -> PyResult<()> {
        let found = buffer::destination(array).ok_or_else(|| unfit(py, &name))?;
        let count = found.dims.to_vec();
        let (dtype, start) = (found.dtype, start.unwrap_or_else(|| vec![0; count.len()]));
        let shape = shape.unwrap_or_else(|| count.clone());
        let part = NdBox::new(&start, &count).or_raise(py)?;
        let kept = array.clone().unbind();
        self.0.with(py, |state| {
            state.open().or_raise(py)?.protect(&name, dtype, &shape, &part).or_raise(py)?;
            state.arrays.push((name, kept));
            Ok(())
        })
    }

    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        self.0.without_gil(py, |state| state.open()?.prepare()).or_raise(py)
    }

    fn save(&self, py: Python<'_>, step: Whole, metric: Option<f64>) -> PyResult<()> {
        let step = step.0;
        let arrays = self.arrays(py);
        let mut sources = Vec::new();
        for (name, array) in &arrays {
            sources.push(buffer::contiguous(array).ok_or_else(|| unfit(py, name))?.bytes);
        }
        self.0.without_gil(py, |state| state.open()?.save_with(step, &sources, metric)).or_raise(py)
    }

    fn need(&self, py: Python<'_>, step: Whole) -> PyResult<bool> {
        let step = step.0;
        self.0.without_gil(py, |state| state.open()?.need(step)).or_raise(py)
    }

    fn wait(&self, py: Python<'_>, level: Option<usize>) -> PyResult<Option<u64>> {
        self.0
            .without_gil(py, |state| {
                let checkpoint = state.open()?;
                let last = checkpoint.levels().len() - 1;
                match level.unwrap_or(last) {
                    level if level <= last => checkpoint.wait_level(level),
                    level => Err(Error::new(Kind::Usage, format!("level {level} does not exist"))
                        .with("levels", last + 1)),
                }
            })
            .or_raise(py)
    }

    /// Loads the newest step that is whole (or this one) into the arrays; its report, or None.
    fn restore<'py>(&self, py: Python<'py>, step: Option<Whole>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let step = step.map(|step| step.0);
        let arrays = self.arrays(py);
        let mut targets = Vec::new();
        for (name, array) in &arrays {
            targets.push(buffer::destination(array).ok_or_else(|| unfit(py, name))?.bytes);
        }
        let restored = self.0.without_gil(py, |state| match step {
            Some(step) => state.open()?.restore(step, &mut targets).map(Some),
            None => state.open()?.restore_latest(&mut targets),
        });
        restored.or_raise(py)?.map(|report| to_python(py, &report)).transpose()
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let taken = self.0.with(py, |state| state.checkpoint.take());
        match taken {
            Some(checkpoint) => detached(py, || checkpoint.close()).or_raise(py),
            None => Ok(()),
        }
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.0.with(py, |state| state.checkpoint.is_none())
    }

    #[getter]
    fn run(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.with(py, |state| state.open().map(|checkpoint| checkpoint.run())).or_raise(py)
    }

    /// Directory, tier, durability and the newest step there, level by level.
    #[getter]
    fn levels<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let seen = self.0.with(py, |state| {
            state.open().map(|checkpoint| {
                let of = |(at, info): (usize, &forebay_checkpoint::LevelInfo)| {
                    (info.clone(), checkpoint.durability(at), checkpoint.reached(at))
                };
                checkpoint.levels().iter().enumerate().map(of).collect::<Vec<_>>()
            })
        });
        let mut levels = Vec::new();
        for (info, durability, reached) in seen.or_raise(py)? {
            let level = PyDict::new(py);
            level.set_item("dir", info.dir.display().to_string())?;
            level.set_item("tier", info.tier.to_string())?;
            level.set_item("keep", info.keep.last)?;
            level.set_item("every", info.keep.every)?;
            level.set_item("best", info.keep.best.map(|best| best.count))?;
            level.set_item("redundancy", info.redundancy.map(|code| code.to_string()))?;
            let packing = info.packing;
            level.set_item("incremental", (packing.full_every > 0).then_some(packing.full_every))?;
            level.set_item("compress", packing.compression())?;
            level.set_item("durability", durability.to_string())?;
            level.set_item("step", reached)?;
            levels.push(level);
        }
        Ok(levels)
    }

    /// Steps saved, seconds that all saves took, that one takes of late, and that its way down takes.
    #[getter]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let seen =
            self.0.with(py, |state| state.open().map(|checkpoint| checkpoint.statistics())).or_raise(py)?;
        let dict = PyDict::new(py);
        dict.set_item("saves", seen.saves)?;
        dict.set_item("blocked_s", seen.blocked.as_secs_f64())?;
        dict.set_item("cost_s", seen.cost_s)?;
        dict.set_item("carried_s", seen.carried_s)?;
        Ok(dict)
    }
}

impl PyCheckpoint {
    fn arrays<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyAny>)> {
        let bound = |(name, array): &(String, Py<PyAny>)| (name.clone(), array.bind(py).clone());
        self.0.with(py, |state| state.arrays.iter().map(bound).collect())
    }
}

#[cold]
fn unfit(py: Python<'_>, name: &str) -> PyErr {
    let error = Error::new(Kind::BufferMismatch, format!("{name} cannot be protected"));
    raise(
        py,
        error
            .hint("a writable C-contiguous ndarray of numbers in native byte order: np.ascontiguousarray(x)"),
    )
}
