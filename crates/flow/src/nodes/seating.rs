//! Which ranks of one node are pinned to which processors.
//!
//! Each runner decides for its own node, whose processors it knows. It divides all of them by the numbers of ranks,
//! those of a core and of a memory node one after the other. Channels stay where the workflow file says.

use std::collections::BTreeMap;

use forebay_model::plan::{Locality, Mode, Plan};

use crate::plan::{crowded, Decision, PlanFile, AS_THE_FILE_SAYS, SCHEMA};
use crate::seats::{shares, Seat};
use crate::topology::{list, Topology};
use crate::workflow::Workflow;

/// The plan that the ranks of this node are pinned by, or why they are not. `ranks` is the number of ranks that each
/// component has here.
pub(crate) fn seating(workflow: &Workflow, ranks: &[u32], topology: &Topology) -> Result<PlanFile, String> {
    let here = || workflow.components.iter().zip(ranks).filter(|(_, ranks)| **ranks > 0);
    // It would not keep to its part of the processors, nor do others know which ones it takes.
    if let Some((component, _)) = here().find(|(component, _)| !component.launcher.is_empty()) {
        return Err(format!("ranks are not pinned: those of {} are placed by its launcher", component.name));
    }
    let cpus: Vec<usize> = topology.with_cpus().flat_map(|node| node.cpus.clone()).collect();
    if cpus.is_empty() {
        return Err("ranks are not pinned: the kernel does not say which processors there are".to_owned());
    }
    let weights: Vec<u32> = here().map(|(_, ranks)| *ranks).collect();
    let seat = |((component, ranks), part): ((&crate::workflow::Component, &u32), Vec<usize>)| Seat {
        name: component.name.clone(),
        ranks: *ranks,
        cpus: list(&part),
        memory_node: None,
    };
    let components: Vec<Seat> = here().zip(shares(&cpus, &weights)).map(seat).collect();
    let reasons = crowded(&components, Mode::Parallel);
    Ok(PlanFile {
        schema: SCHEMA.to_owned(),
        workflow: workflow.name.clone(),
        host: forebay_tier::process::host_name().to_owned(),
        plan: Plan::new(Mode::Parallel, Locality::Writer, AS_THE_FILE_SAYS),
        components,
        channels: BTreeMap::new(),
        decision: Decision { by: "request".to_owned(), reasons },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Node;
    use std::path::Path;

    fn workflow(more: &str) -> Workflow {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"w\"\n[nodes]\n[channel.u]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = 8\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nranks = 4\nreads = [\"u\"]\n{more}"
        );
        Workflow::parse(Path::new("w.toml"), Path::new("/"), &text).unwrap()
    }

    /// Two memory nodes as with two threads of each core: 0-3,8-11 and 4-7,12-15.
    fn topology() -> Topology {
        let node = |number: u16, first: usize| Node {
            number,
            cpus: (first..first + 4).chain(first + 8..first + 12).collect(),
            bytes: 0,
        };
        Topology { nodes: vec![node(0, 0), node(1, 4)] }
    }

    #[test]
    fn all_processors_are_divided_by_ranks_and_those_of_a_memory_node_are_together() {
        let seats = |ranks: [u32; 2]| {
            let plan = seating(&workflow(""), &ranks, &topology()).unwrap();
            let seats = plan.components.iter().map(|seat| {
                let of_ranks = (0..seat.ranks).map(|rank| list(&seat.cpus_of(rank))).collect::<Vec<_>>();
                (seat.name.clone(), of_ranks)
            });
            seats.collect::<Vec<_>>()
        };
        let seat = |name: &str, cpus: &[&str]| {
            (name.to_owned(), cpus.iter().map(|cpus| (*cpus).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(seats([2, 2]), [seat("sim", &["0-3", "8-11"]), seat("ana", &["4-7", "12-15"])]);
        assert_eq!(seats([2, 0]), [seat("sim", &["0-3,8-11", "4-7,12-15"])]);
        assert_eq!(seats([0, 1]), [seat("ana", &["0-15"])]);
        assert_eq!(
            seats([6, 1]),
            [seat("sim", &["0-1", "2-3", "8-9", "10-11", "4-5", "6-7,12"]), seat("ana", &["13-15"]),]
        );
    }

    #[test]
    fn what_keeps_ranks_from_a_processor_of_their_own_is_said() {
        let plan = seating(&workflow(""), &[17, 1], &topology()).unwrap();
        assert_eq!(plan.decision.reasons.len(), 1);
        assert!(plan.decision.reasons[0].starts_with("sim has more ranks (17)"), "{plan:?}");
        let launched = workflow("launcher = [\"mpiexec\"]");
        assert!(seating(&launched, &[2, 2], &topology()).unwrap_err().contains("ana"));
        assert!(seating(&launched, &[2, 0], &topology()).is_ok(), "its ranks are on other nodes");
    }
}
