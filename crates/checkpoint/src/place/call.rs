//! System calls on a path, one by one, so that tests can let each of them fail: before it is made, or after.
//!
//! Outside of tests a call is the call alone.

/// Makes a call on a path.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn call<T>(_: &std::path::Path, make: impl FnOnce() -> T) -> T {
    make()
}

#[cfg(test)]
pub(crate) use injected::{call, is_disk, How, Plan};

#[cfg(test)]
mod injected {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, Mutex, PoisonError};

    use forebay_tier::Error;

    /// How a call fails.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) enum How {
        /// It is not made.
        #[default]
        Before,
        /// It is made, and fails all the same.
        After,
        /// It is not made, nor any behind it.
        FromHere,
    }

    #[derive(Default)]
    struct State {
        /// Which call fails, counted from 1; 0: none.
        nth: u64,
        how: How,
        seen: u64,
        failed: bool,
    }

    /// What is planned for the calls below a directory; forgotten when it is dropped. The directory counts as one on a
    /// disk, where names and contents have to be made durable.
    pub(crate) struct Plan {
        below: PathBuf,
        state: Arc<Mutex<State>>,
    }

    type Plans = Vec<(PathBuf, Arc<Mutex<State>>)>;

    static PLANS: Mutex<Plans> = Mutex::new(Vec::new());

    fn plans() -> std::sync::MutexGuard<'static, Plans> {
        PLANS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    impl Plan {
        pub(crate) fn below(dir: &Path) -> Plan {
            let state: Arc<Mutex<State>> = Arc::default();
            plans().push((dir.to_path_buf(), state.clone()));
            Plan { below: dir.to_path_buf(), state }
        }

        /// The n-th call from now on fails.
        pub(crate) fn fail(&self, nth: u64, how: How) {
            *self.state.lock().unwrap() = State { nth, how, seen: 0, failed: false };
        }

        /// No call fails from now on; whether one has.
        pub(crate) fn end(&self) -> bool {
            let mut state = self.state.lock().unwrap();
            state.nth = 0;
            state.failed
        }
    }

    impl Drop for Plan {
        fn drop(&mut self) {
            plans().retain(|(dir, _)| *dir != self.below);
        }
    }

    /// Whether a path counts as one on a disk, wherever it is.
    pub(crate) fn is_disk(path: &Path) -> bool {
        plans().iter().any(|(dir, _)| path.starts_with(dir))
    }

    /// An error as a call gives it.
    pub(crate) trait Failed {
        fn failed(path: &Path) -> Self;
    }

    impl Failed for io::Error {
        fn failed(_: &Path) -> io::Error {
            io::Error::from_raw_os_error(5)
        }
    }

    impl Failed for Error {
        fn failed(path: &Path) -> Error {
            Error::io(format!("{}: as planned", path.display()), io::Error::failed(path))
        }
    }

    pub(crate) fn call<T, E: Failed>(
        path: &Path,
        make: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let plan = plans().iter().find(|(dir, _)| path.starts_with(dir)).map(|(_, state)| state.clone());
        let Some(plan) = plan else { return make() };
        let mut state = plan.lock().unwrap();
        state.seen += 1;
        let how = state.how;
        let behind = how == How::FromHere && state.nth > 0 && state.seen > state.nth;
        let fails = state.seen == state.nth || behind;
        state.failed |= fails;
        drop(state);
        match (fails, how) {
            (false, _) => make(),
            (true, How::After) => make().and_then(|_| Err(E::failed(path))),
            (true, _) => Err(E::failed(path)),
        }
    }
}
