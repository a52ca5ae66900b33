//! Makes the node-local spaces of a job one space across its nodes: the agent, one per node, job and user.
//!
//! Simulations and analyses see shared memory of their node alone. A reader that opens a short name which is not there
//! leaves a demand; the agent finds the node that has the writers and makes a *mirror*, a space of the same name that
//! it writes version by version from what the owner's agent reads for it. The agent alone holds sockets, the
//! asynchronous runtime and keys.
//!
//! | file | contents |
//! |---|---|
//! | `command.rs` | the command line |
//! | `launch.rs` | commands that start agents on other nodes |
//! | `agent.rs` | the life of an agent |
//! | `rendezvous.rs`, `authority.rs`, `endpoint.rs` | the folder of a job, its certificates, where an agent listens |
//! | `message.rs` | what agents say to each other |
//! | `link.rs` | the session: who lives, short requests |
//! | `wire.rs`, `tls.rs` | the direct connections for versions |
//! | `links.rs` | how fast these are |
//! | `demand.rs`, `find.rs`, `mirror.rs`, `pull.rs` | the reader's node |
//! | `owner.rs`, `serve.rs` | the writers' node |
#![forbid(unsafe_code)]

/// A message of the agent. What cannot be written is lost: nothing depends on it.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Prints a result. A reader that has gone wants no more of it.
///
/// # Errors
/// [`forebay_space::Kind::Io`].
fn print(text: &str) -> forebay_space::Result<()> {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(forebay_space::Error::io("could not write to standard output", e))
        }
        _ => Ok(()),
    }
}

mod agent;
mod authority;
mod command;
mod demand;
mod endpoint;
mod find;
mod launch;
mod link;
mod links;
mod message;
mod mirror;
mod naming;
mod owner;
mod pull;
mod rendezvous;
mod serve;
mod tls;
mod wire;

pub use command::main_with;
