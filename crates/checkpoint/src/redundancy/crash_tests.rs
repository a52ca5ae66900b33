//! Redundancy under power cuts and lost nodes: whatever a crash leaves, the newest acknowledged step comes back, and
//! the newest one with its redundancy complete comes back also where any node is lost beside. A repair that ends at any
//! moment leaves as much.
//!
//! The place is that of the crash tests of levels, with a directory for each node.

use std::sync::{Arc, Mutex};

use forebay_log::NdBox;
use forebay_tier::{Durability, Result, TierKind};

use super::{protect_all, repair, Guard};
use crate::crash_tests::{bytes_of, images, run_in, variables, Sim, Target, World, LENGTH};
use crate::format::{StepId, Variable};
use crate::level::load::Wanted;
use crate::level::{Keep, Level, Piece};
use crate::place::{Blob, Family, Nodes, Own, Part, Place, Written};
use crate::restore::Search;
use crate::run::Run;

/// One node's directory of the simulated place.
struct Sub {
    sim: Arc<Sim>,
    node: String,
}

impl Sub {
    fn at(&self, name: &str) -> String {
        match name {
            "" => self.node.clone(),
            name => format!("{}/{name}", self.node),
        }
    }
}

impl Place for Sub {
    fn describe(&self) -> String {
        self.node.clone()
    }

    fn tier(&self) -> TierKind {
        TierKind::File
    }

    fn durability(&self) -> Durability {
        Durability::Power
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        self.sim.make_dir(&self.at(dir))
    }

    fn store_data(
        &self,
        name: &str,
        bytes: u64,
        parts: &[Part<'_>],
    ) -> Result<(Vec<Vec<u32>>, Option<Written>)> {
        self.sim.store_data(&self.at(name), bytes, parts)
    }

    fn store(&self, name: &str, content: &[u8]) -> Result<()> {
        self.sim.store(&self.at(name), content)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.sim.rename(&self.at(from), &self.at(to))
    }

    fn sync(&self, dir: &str) -> Result<()> {
        self.sim.sync(&self.at(dir))
    }

    fn load(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        self.sim.load(&self.at(name), bytes_max)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Blob>>> {
        self.sim.open(&self.at(name))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.sim.list(&self.at(dir))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.sim.remove(&self.at(name))
    }

    fn retire(&self, name: &str) -> Result<bool> {
        self.sim.retire(&self.at(name))
    }

    fn remove_dir(&self, dir: &str) -> Result<bool> {
        self.sim.remove_dir(&self.at(dir))
    }
}

/// All of them.
struct Subs(Arc<Sim>);

impl Family for Subs {
    fn describe(&self) -> String {
        "simulated".into()
    }

    fn names(&self) -> Result<Vec<String>> {
        let names = self.0.list("")?;
        Ok(names.into_iter().filter(|name| self.0.world().now(name) == Some(Target::Directory)).collect())
    }

    fn place(&self, node: &str) -> Result<Arc<dyn Place>> {
        self.0.make_dir(node)?;
        Ok(Arc::new(Sub { sim: self.0.clone(), node: node.into() }))
    }
}

fn node(rank: u32) -> String {
    format!("{rank:05}")
}

/// One array of each rank is enough here.
fn first_of(rank: u32, size: u32) -> Variable {
    variables(rank, size).swap_remove(0)
}

/// The level as one rank sees it.
fn level(sim: &Arc<Sim>, code: &str, rank: u32) -> Level {
    let family = Arc::new(Subs(sim.clone()));
    let own = Own { rank, node: node(rank), place: family.place(&node(rank)).unwrap() };
    let nodes = Arc::new(Nodes::new(family, Some(own), 1, (TierKind::File, Durability::Power)));
    let guard = Guard { code: code.parse().unwrap(), nodes: nodes.clone() };
    Level { guard: Some(Arc::new(guard)), ..Level::new(nodes, Keep::last(1)) }
}

/// A world in which the nodes have empty directories, which are durable.
fn begin(size: u32, flaw: Option<usize>) -> Arc<Sim> {
    let mut world = World { flaw, ..World::default() };
    for rank in 0..size {
        world.names.insert(node(rank), vec![Some(Target::Directory)]);
    }
    Arc::new(Sim { world: Mutex::new(world), ..Sim::default() })
}

/// Saves steps 1 to 3 with a rank on each of `size` nodes, each with its redundancy, and the flush `flaw` left out.
fn workload(code: &str, size: u32, flaw: Option<usize>) -> Arc<Sim> {
    let sim = begin(size, flaw);
    let levels: Vec<Level> = (0..size).map(|rank| level(&sim, code, rank)).collect();
    for step in 1..=3 {
        let id = StepId { incarnation: 1, step };
        for (level, rank) in levels.iter().zip(0..) {
            level.reclaim(LENGTH as u64, rank, 1, &[]).unwrap();
            let (variables, bytes) = ([first_of(rank, size)], bytes_of(0, step, rank));
            let (variables, sources) = (&variables[..], &[&bytes[..]][..]);
            level
                .write(&Piece {
                    id,
                    rank,
                    size,
                    saved_unix_ns: step,
                    program: "",
                    variables,
                    sources,
                    metric: None,
                })
                .map(drop)
                .unwrap();
            level.commit(id, rank, size, &|| Ok(())).unwrap();
        }
        let mut world = sim.world();
        world.acknowledged = Some(step);
        sim.moment(&world);
        drop(world);
        protect_all(&levels[0], id).unwrap();
        let mut world = sim.world();
        world.protected = Some(step);
        sim.moment(&world);
    }
    sim
}

/// Takes a node's directory away, for good.
fn lose(world: &mut World, node: &str) {
    world.names.retain(|name, _| name != node && !name.starts_with(&format!("{node}/")));
}

/// Restores from an image as one process; what is wrong with the outcome, if something is.
fn judge(image: World, code: &str, least: u64, run: &Run, size: u32) -> Option<String> {
    let sim = Arc::new(Sim { world: Mutex::new(image), quiet: true, ..Sim::default() });
    let levels = [level(&sim, code, 0)];
    let whole = [Variable { part: NdBox::whole(&first_of(0, size).shape), ..first_of(0, size) }];
    let mut out = vec![0; LENGTH * size as usize];
    let search = Search { levels: &levels, run, rank: 0, size: 1, number: 1, saved: None, only: None };
    let restored = search.restore(&mut Wanted { variables: &whole, targets: &mut [&mut out] });
    match restored {
        Ok(None) | Err(_) if least == 0 => None,
        Ok(None) => Some(format!("step {least} was there, and nothing is")),
        Err(e) => Some(format!("step {least} was there: {e}")),
        Ok(Some(found)) if found.step < least => {
            Some(format!("step {least} was there, and this came: {found}"))
        }
        Ok(Some(found)) => {
            let right: Vec<u8> = (0..size).flat_map(|rank| bytes_of(0, found.step, rank)).collect();
            (out != right).then(|| format!("not the bytes of {found}"))
        }
    }
}

/// The first thing that is wrong after any of these crashes, with every node there and with each of them lost.
fn first_fault(crashes: &[World], code: &str, size: u32, run: &Run, every: usize) -> (Option<String>, u64) {
    let mut seen = 0;
    for (at, crash) in crashes.iter().enumerate() {
        for image in images(crash, at as u64).into_iter().step_by(every) {
            for lost in (0..=size).map(|n| n.checked_sub(1)) {
                let mut image = image.clone();
                let mut least = image.acknowledged.unwrap_or(0);
                if let Some(lost) = lost {
                    least = image.protected.unwrap_or(0);
                    lose(&mut image, &node(lost));
                }
                seen += 1;
                if let Some(fault) = judge(image, code, least, run, size) {
                    return (Some(format!("{code}, crash {at}, lost {lost:?}: {fault}")), seen);
                }
            }
        }
    }
    (None, seen)
}

fn crashes_of(sim: &Sim) -> Vec<World> {
    std::mem::take(&mut *sim.crashes.lock().unwrap())
}

#[test]
fn after_every_crash_and_the_loss_of_any_node_a_protected_step_comes_back() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let run = run_in(dir.path());
    for (code, size, every) in [("partner", 2, 9), ("xor:3", 3, 40), ("rs:1+2", 3, 40)] {
        let crashes = crashes_of(&workload(code, size, None));
        let (fault, seen) = first_fault(&crashes, code, size, &run, every);
        assert_eq!(fault, None);
        assert!(seen > 1000, "{seen} images under {code}");
    }
}

#[test]
fn each_flush_is_needed_but_those_of_commit_records_which_every_node_has() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let run = run_in(dir.path());
    let flushed = workload("partner", 2, None).world().flushed.clone();
    // The second step stands for all.
    let a_step = flushed.len() / 3;
    for (flaw, what) in flushed.iter().enumerate().skip(a_step).take(a_step) {
        let crashes = crashes_of(&workload("partner", 2, Some(flaw)));
        let touched: Vec<World> = crashes.into_iter().filter(|crash| crash.flushed.len() > flaw).collect();
        let (fault, _) = first_fault(&touched, "partner", 2, &run, 6);
        let copied = what.contains("/.commit.");
        assert_eq!(fault.is_none(), copied, "flush {flaw} of {what}: {fault:?}");
    }
}

#[test]
fn a_repair_that_ends_at_any_moment_is_gone_on_with() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let run = run_in(dir.path());
    for (code, size) in [("partner", 2), ("xor:3", 3), ("rs:1+2", 3)] {
        let mut after = workload(code, size, None).world().clone();
        lose(&mut after, &node(1));
        let sim = Arc::new(Sim { world: Mutex::new(after), ..Sim::default() });
        let done = repair(&level(&sim, code, 0), StepId { incarnation: 1, step: 3 }).unwrap();
        assert_eq!(done.len(), 4, "{code}: {done:?}");
        let crashes = crashes_of(&sim);
        for (at, crash) in crashes.iter().enumerate() {
            for image in images(crash, at as u64).into_iter().step_by(8) {
                assert_eq!(judge(image, code, 3, &run, size), None, "{code}, crash {at} of the repair");
            }
        }
        // Then another node may be lost.
        let mut again = crashes.last().unwrap().clone();
        lose(&mut again, &node(0));
        assert_eq!(judge(again, code, 3, &run, size), None, "{code}");
    }
}
