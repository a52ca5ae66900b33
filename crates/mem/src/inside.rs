//! Whether the calling thread is in this library's own work: what it calls then goes to the C library as it is.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Says so until it is dropped.
pub(crate) struct Inside(());

impl Inside {
    /// None: the thread is inside already.
    pub(crate) fn enter() -> Option<Inside> {
        INSIDE.with(|inside| (!inside.replace(true)).then_some(Inside(())))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(false));
    }
}

/// Whether the thread is inside.
pub(crate) fn is_inside() -> bool {
    INSIDE.with(Cell::get)
}

/// In a child of fork, whose only thread may have been inside.
pub(crate) fn leave() {
    INSIDE.with(|inside| inside.set(false));
}
