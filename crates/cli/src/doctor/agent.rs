//! Whether an agent serves the spaces of this node, and whether it was left behind.

use std::time::Duration;

use forebay_space::find_agent;

use super::machine::Machine;
use super::memory::root_of_spaces;
use super::Finding;

/// Jobs pause for less.
const IDLE_LONG: Duration = Duration::from_secs(600);

/// The agent of a job of several nodes.
pub fn of_several_nodes(machine: &Machine) -> Finding {
    const CHECK: &str = "agent";
    let found = if machine.is_live() { find_agent(&root_of_spaces(machine)) } else { None };
    let Some(found) = found else {
        return Finding::ok(CHECK, "none: spaces are those of this node alone");
    };
    if !found.lives {
        return Finding::note(CHECK, "an agent was killed here")
            .means("what it copied from other nodes may be left in memory")
            .without_root("forebay clean removes it; so does the next agent");
    }
    let Some(agent) = found.agent else { return Finding::ok(CHECK, "one is starting") };
    let text = format!("job {}, node {}, pid {}", agent.job, agent.node, agent.pid);
    if found.idle < IDLE_LONG {
        return Finding::ok(CHECK, text);
    }
    let stop = format!("forebay agent stop --rendezvous {}", agent.rendezvous.display());
    Finding::note(CHECK, format!("{text}, idle for {} min", found.idle.as_secs() / 60))
        .means("it may have been left by a job that is over")
        .without_root(format!("{stop}; --idle-timeout of `forebay agent start` ends such agents"))
}
