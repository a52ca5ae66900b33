//! Makes the node-local spaces of a job one space across its nodes: the agent, one per node, job and user.
//!
//! Simulations and analyses see shared memory of their node alone. A reader that opens a short name which is not there
//! leaves a demand; the agent finds the node that has the writers and makes a *mirror*, a space of the same name that
//! it writes version by version from what the owner's agent reads for it. The agent alone holds sockets, the
//! asynchronous runtime and keys.
//!
//! | file | contents |
//! |---|---|
//! | `command.rs` | the command line, the process |
//! | `agent.rs` | the life of an agent |
//! | `rendezvous.rs`, `authority.rs`, `endpoint.rs` | the folder of a job, its certificates, where an agent listens |
//! | `link.rs`, `message.rs` | connections, what is said over them |
//! | `demand.rs`, `find.rs`, `mirror.rs`, `pull.rs` | the reader's node |
//! | `owner.rs` | the writers' node |
#![forbid(unsafe_code)]

mod agent;
mod authority;
mod command;
mod demand;
mod endpoint;
mod find;
mod link;
mod message;
mod mirror;
mod naming;
mod owner;
mod pull;
mod rendezvous;
mod status;

pub use command::main_with;
