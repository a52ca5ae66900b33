//! Calls about many objects at once: which of them an error is about.
//!
//! Not here: the calls.

use forebay_tier::Error;

/// Says which of many objects an error is about.
#[cold]
pub(crate) fn at_object(error: Error, index: usize, name: &str) -> Error {
    let named = error.context().iter().any(|(key, _)| *key == "variable");
    let error = error.with("object", index);
    if named {
        error
    } else {
        error.with("variable", name)
    }
}
