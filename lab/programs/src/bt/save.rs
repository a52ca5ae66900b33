//! What of a run is saved in a checkpoint: the field alone, which is enough, or every array, as a program does that
//! does not know better.

use forebay_checkpoint::{Checkpoint, Dtype, NdBox, Restored};
use forebay_space::Result;

use super::{Problem, State, COMPONENTS};

/// See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Saved {
    /// The field: 5 values for each point.
    U,
    /// All arrays: 17 values for each point.
    All,
}

impl Saved {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Saved::U => "u",
            Saved::All => "all",
        }
    }

    fn arrays(self) -> usize {
        match self {
            Saved::U => 1,
            Saved::All => 5,
        }
    }

    /// Bytes of a checkpoint.
    pub fn bytes(self, problem: &Problem) -> u64 {
        match self {
            Saved::U => problem.field_bytes(),
            Saved::All => problem.points() * (17 * size_of::<f64>()) as u64,
        }
    }

    /// Says which arrays are part of every checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::protect`].
    pub fn protect(self, checkpoint: &mut Checkpoint, state: &State) -> Result<()> {
        let (n, points) = (state.problem().n as u64, state.problem().points());
        for (name, values) in &state.arrays()[..self.arrays()] {
            let shape = [n, n, n, COMPONENTS as u64];
            let shape = if values.len() as u64 == points { &shape[..3] } else { &shape };
            checkpoint.protect(name, Dtype::F64, shape, &NdBox::whole(shape))?;
        }
        Ok(())
    }

    /// Saves the state as it is after its last step.
    ///
    /// # Errors
    /// As [`Checkpoint::save`].
    pub fn save(self, checkpoint: &mut Checkpoint, state: &State) -> Result<()> {
        let sources = state.arrays().map(|(_, values)| bytemuck::cast_slice(values));
        checkpoint.save(state.step(), &sources[..self.arrays()])
    }

    /// Goes on from the newest checkpoint that is whole; None when there is none.
    ///
    /// # Errors
    /// As [`Checkpoint::restore_latest`].
    pub fn restore(self, checkpoint: &mut Checkpoint, state: &mut State) -> Result<Option<Restored>> {
        let restored = match self {
            Saved::U => {
                let mut u = vec![0.0; state.u().len()];
                let restored = checkpoint.restore_latest(&mut [bytemuck::cast_slice_mut(&mut u)])?;
                if let Some(restored) = &restored {
                    state.restore(restored.step, &u)?;
                }
                restored
            }
            Saved::All => {
                let (arrays, step) = state.arrays_mut();
                let mut targets = arrays.map(|(_, values)| bytemuck::cast_slice_mut(values));
                let restored = checkpoint.restore_latest(&mut targets)?;
                *step = restored.as_ref().map_or(*step, |restored| restored.step);
                restored
            }
        };
        Ok(restored)
    }
}
