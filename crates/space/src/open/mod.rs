//! Finding a space, making it, attaching to it, and taking part in it.
//!
//! Guarantees: what many processes do at once here they do under the setup lock, or by one rename; who is alive is
//! asked of the kernel.
//! Not here: the memory of lanes (`lane/`), what is put and got (`writer/`, `reader/`).

pub(crate) mod agreement;
pub(crate) mod attach;
pub(crate) mod channel;
pub(crate) mod contents;
pub(crate) mod create;
pub(crate) mod directory;
pub(crate) mod existing;
pub(crate) mod groups;
pub(crate) mod member;
pub(crate) mod membership;
pub(crate) mod new_directory;
pub(crate) mod opening;
pub(crate) mod producers;
pub(crate) mod read_to_end;
pub(crate) mod released;
pub(crate) mod runs;
