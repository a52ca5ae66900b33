//! Threads of a window, which end with it; in a forked child they are not there, and no thread waits for them.

use std::thread::JoinHandle;

use forebay_tier::process::ForkMark;

/// See the file's head. Its owner has told them to end before it drops it.
pub(crate) struct Crew {
    handles: Vec<JoinHandle<()>>,
    mark: ForkMark,
}

impl Crew {
    pub(crate) fn new() -> Crew {
        Crew { handles: Vec::new(), mark: ForkMark::here() }
    }

    /// Starts one more.
    pub(crate) fn start(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        self.handles.push(std::thread::Builder::new().name(name).spawn(work)?);
        Ok(())
    }

    /// Whether its threads run in this process, which is not a forked child.
    pub(crate) fn is_here(&self) -> bool {
        !self.mark.is_forked()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for handle in self.handles.drain(..) {
            if self.mark.is_forked() {
                std::mem::forget(handle);
            } else {
                let _ = handle.join();
            }
        }
    }
}
