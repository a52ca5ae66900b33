//! Runs on several nodes: one runner per node, and the one that was called to lead them.
//!
//! `forebay run` starts itself on each node by the command of the workflow's table `[nodes]`, as a *follower*
//! ([`follow`]). Orders go to a follower's standard input and reports come from its standard output, one JSON document
//! per line: so the launcher's own connection tells either side that the other has gone. A follower holds the names of
//! the channels on its node, starts the agent of the node, and then its ranks, as a run on one node does. The lead
//! starts nothing before all followers are ready, ends all when one has failed, and joins their records.
//!
//! Guarantees: a run on several nodes starts all ranks or none; when it returns, no process of it lives on a node that
//! can be reached. Without its lead a follower ends everything on its node. Spaces go when the ranks of all nodes have
//! ended. Not here: how versions get to other nodes (the agent), execution modes.
//!
//! | file | contents |
//! |---|---|
//! | `reach.rs`, `placement.rs` | the nodes and the way there, for verbs on several nodes, too; which ranks run where |
//! | `lead.rs`, `connection.rs` | the runner that was called, and a follower as it has it |
//! | `follow.rs`, `seating.rs` | a follower, and the processors of its ranks |
//! | `message.rs` | what both say |
//! | `merge.rs` | one record of all |

mod connection;
mod follow;
mod lead;
mod merge;
mod message;
mod placement;
mod reach;
mod seating;

pub use connection::pass_on;
pub use follow::follow;
pub(crate) use lead::run_on_nodes;
pub use reach::{names, template, variables};

/// Hidden verb of the command that calls [`follow`].
pub const FOLLOW_VERB: &str = "run-on-node";
