//! Trials: what the environment asks to put in front of every pool that this process opens.
//!
//! `FOREBAY_FAULT` lets operations fail ([`forebay_tier::adapter::fault`]), so that a user can see what a workflow
//! does when a disk is full or broken, before it is. Without the variable nothing stands in front of a pool. The
//! variable is read once per process; operations are numbered over all pools of the process, so that "the third
//! write" is one write.

use std::sync::{Arc, OnceLock};

use forebay_config::environment;
use forebay_tier::adapter::fault::{Fault, FaultCounts, FaultPlan};
use forebay_tier::{Device, Result};

/// The variable with the fault plan.
const FAULT: &str = "FOREBAY_FAULT";

/// The plan of this process, and its count; None when the environment asks for none.
static FAULTS: OnceLock<Option<(FaultPlan, Arc<FaultCounts>)>> = OnceLock::new();

/// The plan of this process. Errors: `UnknownEnvironment` for a plan that cannot be read.
fn plan() -> Result<Option<&'static (FaultPlan, Arc<FaultCounts>)>> {
    if FAULTS.get().is_none() {
        let plan = environment::parsed(FAULT, &environment::process, FaultPlan::parse)?;
        FAULTS.get_or_init(|| plan.map(|plan| (plan, Arc::default())));
    }
    Ok(FAULTS.get().and_then(Option::as_ref))
}

/// Whether locks beside pools are to be refused. Errors: as [`around`].
pub(crate) fn refuses_locks() -> Result<bool> {
    Ok(plan()?.is_some_and(|(plan, _)| plan.locks_refused))
}

/// `device`, with what the environment asks for in front of it. Errors: `UnknownEnvironment` for a plan that
/// cannot be read.
pub(crate) fn around(device: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
    Ok(match plan()? {
        Some((plan, counts)) => Arc::new(Fault::counting(device, plan.clone(), counts.clone())),
        None => device,
    })
}
