//! Steering a living space: how far both sides are, and another execution mode for the steps to come.
//!
//! Guarantees: looking costs a few loads and changes nothing; an execution mode that was set is obeyed by every rank
//! from its next step on, and a rank that waits by the old one looks again at once. A step that is under way ends as it
//! began, so that for so long more ranks than a new gate has places may be inside. Not here: which execution mode is
//! best (`forebay_flow`). To and from `serial` nothing is steered: that execution mode is an order in which programs
//! are started.

use forebay_config::ExecutionMode;
use forebay_tier::host::time::Instant;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_tier::adapter::throttle::Locality;
use forebay_tier::{Access, Error, Kind, Result};

use crate::control::ProducerState;
use crate::open::attach::Attachment;
use crate::open::create::Missing;
use crate::open::released::released_by_present;

/// How long opening may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// How far a space is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Complete versions.
    pub complete: u64,
    /// Of these, versions that every declared reader has released.
    pub released: u64,
    /// Whether the writers have ended.
    pub written: bool,
}

/// A hold on a living space. It is no member: no process waits for it.
pub struct Steering {
    space: Arc<Attachment>,
}

impl Steering {
    /// Opens a space that is there.
    ///
    /// # Errors
    /// `PeerMissing` while there is none; those of opening it.
    pub fn open(name: &str) -> Result<Steering> {
        let deadline = Instant::now() + OPEN_TIMEOUT;
        let space = Attachment::open(name, Access::Read, Locality::Local, Missing::Fail, deadline)?;
        Ok(Steering { space })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.space.dir
    }

    /// How far both sides are.
    pub fn progress(&self) -> Progress {
        let complete = self.space.control.complete();
        let released = released_by_present(&self.space).min(complete);
        let state = self.space.control.producer_state();
        let written = state.is_finished() || matches!(state, ProducerState::Died(_));
        Progress { complete, released, written }
    }

    /// The execution mode that holds.
    pub fn execution_mode(&self) -> ExecutionMode {
        self.space.control.execution_mode()
    }

    /// Sets the execution mode for the steps to come.
    ///
    /// # Errors
    /// `NotPossibleHere` to or from `serial`.
    pub fn set_execution_mode(&self, execution_mode: ExecutionMode) -> Result<()> {
        if execution_mode == ExecutionMode::Serial || self.execution_mode() == ExecutionMode::Serial {
            return Err(Error::new(
                Kind::NotPossibleHere,
                "mode serial cannot be set or left while programs run",
            )
            .with("space", &self.space.name)
            .hint("it determines the order in which programs are started: use forebay run --mode serial"));
        }
        self.space.control.steer(execution_mode);
        Ok(())
    }
}
