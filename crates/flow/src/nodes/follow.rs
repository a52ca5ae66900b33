//! The runner of one node, led by another.

use std::ffi::OsString;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_space::{Error, Kind, Result};

use super::lead::{agent_file, AGENTS};
use super::merge::fill_file;
use super::message::{send, Orders, Report, Setup, ALIVE_EVERY};
use super::placement::on_node;
use super::seating::seating;
use crate::clean_up::{remove_spaces, take_names};
use crate::conclude::complete_record;
use crate::emulate;
use crate::launch::{signal_name, RankCommand, Ranks, Role};
use crate::names::hold_names;
use crate::progress::{Sampler, Show};
use crate::record::{monotonic_ns, unix_ns, Failure, Machine, RunDir};
use crate::signals::Signals;
use crate::supervise::{carry_out, needs_self_command, new_record, Carried, End, Leader, RunOptions};
use crate::topology::Topology;
use crate::workflow::Workflow;

/// A lead says at once what is to be done.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// An agent ends its mirrors first.
const AGENT_GRACE: Duration = Duration::from_secs(15);

/// Is the runner of a node until the run ends: the hidden verb `run-on-node` of the command. `self_command` are the
/// words that start this command again. Blocks; call it from a thread that lives on. The result is the exit status.
pub fn follow(self_command: Vec<OsString>) -> i32 {
    say_alive();
    let done = Orders::read(BufReader::new(std::io::stdin())).and_then(|mut orders| {
        let setup = setup(&mut orders)?;
        let done = carry(&setup, &mut orders, self_command);
        if orders.is_alone() {
            // The lead would have done so. Another runner may be first.
            let _ = std::fs::remove_dir_all(setup.run_dir.join(AGENTS));
        }
        done
    });
    match done {
        Ok(()) => 0,
        Err(e) => {
            say(&Report::error(&e));
            e.kind().exit_code()
        }
    }
}

/// What cannot be said is lost: then the lead is gone, and that is seen in its orders.
fn say(report: &Report) {
    let _ = send(&mut std::io::stdout().lock(), report);
}

/// Says now and then that this runner is there, whatever it does.
fn say_alive() {
    std::thread::spawn(|| loop {
        say(&Report::Alive);
        std::thread::sleep(ALIVE_EVERY);
    });
}

fn setup(orders: &mut Orders) -> Result<Setup> {
    let Some((version, setup)) = orders.setup(SETUP_TIMEOUT) else {
        return Err(Error::new(Kind::Usage, "no run has started this runner, or it got none of its orders")
            .hint(
            "the command of `launch` must connect the standard input and output of the program that it runs",
        ));
    };
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        return Err(Error::new(
            Kind::UnknownFormat,
            format!("this node has Forebay {own}, the run {version}"),
        )
        .hint("install the same version on all nodes"));
    }
    serde_json::from_value(setup).map_err(|e| Error::new(Kind::Internal, format!("orders of a run: {e}")))
}

/// What the lead says, as the runner of ranks asks for it; and the agent of the node, which has to live.
struct Led<'a> {
    orders: &'a mut Orders,
    agent: &'a mut Agent,
    has_said: bool,
    is_without_agent: bool,
}

impl Led<'_> {
    fn say_ended(&mut self) {
        if !std::mem::replace(&mut self.has_said, true) {
            say(&Report::Ended);
        }
    }
}

impl Leader for Led<'_> {
    fn look(&mut self) {
        self.orders.look(Duration::ZERO);
        if !self.is_without_agent {
            if let Some(error) = self.agent.ended() {
                self.is_without_agent = true;
                say(&Report::error(&error));
            }
        }
    }

    fn is_to_end(&self) -> bool {
        self.orders.is_to_end() || self.is_without_agent
    }

    fn is_hurried(&self) -> bool {
        self.orders.is_hurried()
    }

    fn is_over(&mut self) -> bool {
        self.say_ended();
        self.orders.is_finished()
    }

    fn failed(&mut self, failure: &Failure, is_consequence: bool) {
        say(&Report::Failed { failure: failure.clone(), is_consequence });
    }

    fn departed(&mut self, channel: &str, component: &str, rank: u32) {
        say(&Report::Departed { channel: channel.to_owned(), component: component.to_owned(), rank });
    }

    fn departed_elsewhere(&mut self) -> Vec<(String, String, u32)> {
        self.orders.departed()
    }
}

fn carry(setup: &Setup, orders: &mut Orders, self_command: Vec<OsString>) -> Result<()> {
    let workflow = Workflow::parse_with(&setup.file, &setup.dir, &setup.text, setup.env.clone())?;
    let mut workflow = on_node(workflow, &setup.node);
    let (plan, notes) = match setup.pin.then(Topology::here).transpose()? {
        None => (None, Vec::new()),
        Some(topology) => match seating(&workflow, &setup.node.ranks, &topology) {
            Ok(plan) => (Some(plan.clone()), plan.decision.reasons),
            Err(why) => (None, vec![why]),
        },
    };
    let options =
        RunOptions { quiet: setup.quiet, grace: setup.grace, self_command, plan, ..RunOptions::default() };
    needs_self_command(&workflow, &options)?;
    let emulated = emulate::settle(&mut workflow)?;
    let names = hold_names(&workflow)?;
    take_names(&workflow)?;
    let signals = Signals::catch()?;
    let dir = Arc::new(RunDir::join(&setup.run_dir, &setup.node.name, setup.nodes.len())?);
    let mut record = new_record(&workflow, &dir)?;
    options.plan.iter().try_for_each(|plan| plan.write(dir.plan_file()))?;
    record.notes.extend(emulated.into_iter().chain(notes));
    let mut agent = Agent::start(setup, &workflow, &dir, &options)?;
    if !agent.is_connected(orders, &signals)? {
        agent.stop(orders, &signals);
        return signals.caught().map_or(Ok(()), |signal| Err(interrupted(signal)));
    }
    let clock_ns = unix_ns() as i64 - monotonic_ns() as i64;
    say(&Report::Ready { machine: Machine::here(), clock_ns });
    while !orders.is_going() {
        orders.look(LOOK_EVERY);
        let signal = signals.caught();
        if orders.is_to_end() || signal.is_some() {
            agent.stop(orders, &signals);
            return signal.map_or(Ok(()), |signal| Err(interrupted(signal)));
        }
    }
    let show = if setup.quiet { Show::Quiet } else { Show::Lines };
    let sampler = Sampler::start(&workflow, dir.clone(), &fill_file(dir.path(), &setup.node.name), show)?;
    let mut led = Led { orders, agent: &mut agent, has_said: false, is_without_agent: false };
    let Carried { ranks, seen, ended } = carry_out(&workflow, &dir, &options, sampler, &signals, &mut led);
    match ended {
        Err(e) => say(&Report::error(&e)),
        Ok(End::Interrupted(signal)) => say(&Report::error(&interrupted(signal))),
        Ok(End::Finished | End::Stopped | End::Failed { .. }) => {}
    }
    led.say_ended();
    // Spaces of this node are read by ranks of others until all have ended.
    let signals_before = signals.count();
    while !orders.is_finished() && signals.count() == signals_before {
        orders.look(LOOK_EVERY);
    }
    agent.stop(orders, &signals);
    record.notes.extend(remove_spaces(&workflow, &dir));
    drop(names);
    complete_record(&mut record, &workflow, &ranks, &seen);
    say(&Report::Done { record: Box::new(record) });
    Ok(())
}

fn interrupted(signal: i32) -> Error {
    let text = format!("the runner of a node received a signal ({})", signal_name(signal));
    Error::new(Kind::PeerMissing, text)
}

/// The agent of this node.
struct Agent {
    processes: Ranks,
    out: PathBuf,
    err: PathBuf,
}

impl Agent {
    fn start(setup: &Setup, workflow: &Workflow, dir: &RunDir, options: &RunOptions) -> Result<Agent> {
        let mut command = options.self_command.clone();
        command.extend(["agent", "start", "--foreground"].map(OsString::from));
        let mut add = |option: &str, value: OsString| command.extend([option.into(), value]);
        add("--job", (&workflow.name).into());
        add("--node", (&setup.node.name).into());
        add("--nodes", setup.nodes.join(",").into());
        add("--rendezvous", dir.path().join(AGENTS).into());
        command.extend(setup.agent.iter().map(OsString::from));
        let mut env: Vec<(OsString, OsString)> =
            workflow.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        env.push(("FOREBAY_RUN".into(), dir.path().into()));
        let path = |suffix: &str| agent_file(dir.path(), &setup.node.name, suffix);
        let (out, err) = (path("out"), path("err"));
        let mut processes = Ranks::default();
        let cwd = dir.path().to_path_buf();
        let what = RankCommand {
            component: 0,
            role: Role::Agent,
            command,
            env,
            cwd,
            out: out.clone(),
            err: err.clone(),
        };
        processes.start(what, &options.self_command)?;
        Ok(Agent { processes, out, err })
    }

    /// Waits until it is connected to the agents of all nodes, which it has a deadline for; false where the run ends
    /// first.
    fn is_connected(&mut self, orders: &mut Orders, signals: &Signals) -> Result<bool> {
        loop {
            let text = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
            // The line with its address.
            if text(&self.out).contains('\n') {
                return Ok(true);
            }
            if orders.is_to_end() || signals.caught().is_some() {
                return Ok(false);
            }
            if let Some(error) = self.ended() {
                return Err(error);
            }
            orders.look(LOOK_EVERY);
        }
    }

    /// The error of an agent that has ended.
    fn ended(&mut self) -> Option<Error> {
        self.processes.sweep();
        let exit = self.processes.all.first()?.exit?;
        let said = std::fs::read_to_string(&self.err).unwrap_or_default();
        Some(Error::last_printed(&said).unwrap_or_else(|| {
            let how = exit.in_words();
            Error::new(Kind::PeerMissing, format!("the agent of a node has ended: {how}"))
        }))
    }

    fn stop(&mut self, orders: &mut Orders, signals: &Signals) {
        let orders = std::cell::RefCell::new(orders);
        let hurry = || {
            let mut orders = orders.borrow_mut();
            orders.look(Duration::ZERO);
            orders.is_hurried()
        };
        self.processes.stop_all(AGENT_GRACE, &hurry, &|time| signals.pause(time));
    }
}
