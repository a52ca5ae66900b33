//! The plan file: one way to run a workflow on this node, written down so that anybody can carry it out.
//!
//! Guarantees: a [`PlanFile`] that was read is of this format, and its words make sense by themselves; that it fits a
//! workflow and a node is checked by [`PlanFile::check`] before anything is started. What the runner does by a plan
//! and what an emitted job does is the same: both start `forebay exec` with it (`pin`), and programs get the channel
//! tables that stand in it.
//! Not here: which plans there are (`choices`), how long one takes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_config::{ChannelOptions, ExecutionMode, Mechanism, BATCH_BYTES, GATE_PLACES_MAX};
use forebay_model::plan::{Locality, Mode, Plan};
use forebay_probe::machine::numbers;
use forebay_space::{Error, Kind, Result, TierKind};
use forebay_tier::Nodes;
use serde::{Deserialize, Serialize};

use crate::channel::{gathers_nothing, json};
use crate::record::replace_file;
use crate::seats::{depths, seats, Seat};
use crate::topology::{list, Topology};
use crate::workflow::{Channel, Workflow};

/// Schema of the file.
pub const SCHEMA: &str = "forebay.plan/1";

/// Name of the tier of a plan that leaves the channels where the workflow file says.
pub const AS_THE_FILE_SAYS: &str = "as-the-file-says";

/// A plan with everything that carrying it out takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanFile {
    /// [`SCHEMA`].
    pub schema: String,
    /// Name of the workflow.
    pub workflow: String,
    /// Host that it was made on; processors have other numbers elsewhere.
    pub host: String,
    /// Mode, locality, tier, batching.
    pub plan: Plan,
    /// Where the components run, in the order of the workflow file.
    pub components: Vec<Seat>,
    /// What programs are told of each channel: its table, with the plan's tier, place and execution mode.
    pub channels: BTreeMap<String, ChannelOptions>,
    /// Why this plan.
    pub decision: Decision,
}

/// How a plan was chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Who chose: `request`, `advice` or `auto`.
    pub by: String,
    /// Why, and what follows from the node, one sentence each.
    pub reasons: Vec<String>,
}

/// Where the channels of a plan lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// Where the workflow file says.
    AsSaid,
    /// In main memory, on the node of one side.
    Memory,
    /// On a memory node of its own.
    Node(u16),
    /// In a directory, which lies beside that node where it is known.
    Directory(TierKind, PathBuf, Option<u16>),
}

impl PlanFile {
    /// Works a plan out for a workflow on a node.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`] for what no build or this node cannot carry out.
    pub fn new(workflow: &Workflow, topology: &Topology, plan: &Plan, home: &Home) -> Result<PlanFile> {
        refuse(workflow, topology, plan, home)?;
        let several = topology.with_cpus().count() > 1;
        let swapped = several && is_swapped(home, topology, plan.locality);
        let components = seats(workflow, topology, plan.mode, swapped);
        let mut reasons = Vec::new();
        if !several {
            reasons
                .push("one memory node has all granted processors: writers and readers share it".to_owned());
        }
        reasons.extend(crowded(&components, plan.mode));
        let mut channels = BTreeMap::new();
        for channel in &workflow.channels {
            let mut table = channel.told(workflow, None);
            let node_of = |name: &str| components.iter().find(|s| s.name == name).and_then(|s| s.memory_node);
            let beside = match plan.locality {
                Locality::Reader => channel.readers.first().and_then(|name| node_of(name)),
                Locality::Writer => node_of(&channel.writer),
                Locality::Interleaved => None,
            };
            place(&mut table, home, beside, workflow, &channel.name);
            if plan.locality == Locality::Interleaved {
                table.tier = spread(topology, home, &table).map(TierKind::Interleaved).ok().or(table.tier);
            }
            // A channel without readers has none to wait for.
            let mode = execution_mode_of(plan.mode)?;
            let is_said = !channel.readers.is_empty() && mode != ExecutionMode::Parallel;
            table.execution_mode = is_said.then_some(mode);
            table.batch = plan.batching.or(table.batch);
            channels.insert(channel.name.clone(), table);
        }
        Ok(PlanFile {
            schema: SCHEMA.to_owned(),
            workflow: workflow.name.clone(),
            host: forebay_tier::process::host_name().to_owned(),
            plan: plan.clone(),
            components,
            channels,
            decision: Decision { by: "request".to_owned(), reasons },
        })
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`] when there is none, [`Kind::UnknownFormat`] for another schema, [`Kind::Usage`]
    /// for what makes no sense in one.
    pub fn read(file: &Path) -> Result<PlanFile> {
        let text = std::fs::read_to_string(file).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(Kind::UnknownComponent, format!("plan file {} does not exist", file.display()))
                    .hint("forebay plan WORKFLOW -o plan.json writes one")
            }
            _ => Error::io(format!("reading {}", file.display()), e),
        })?;
        PlanFile::parse(&text).map_err(|e| e.with("file", file.display()))
    }

    /// As [`PlanFile::read`], from text.
    pub fn parse(text: &str) -> Result<PlanFile> {
        let no_json = |e: serde_json::Error| Error::new(Kind::Usage, format!("invalid plan file: {e}"));
        let value: serde_json::Value = serde_json::from_str(text).map_err(no_json)?;
        let schema = value.get("schema").and_then(|s| s.as_str()).unwrap_or("none").to_owned();
        if schema != SCHEMA {
            return Err(Error::new(Kind::UnknownFormat, "a plan file of an unknown version")
                .with("schema", schema)
                .hint(format!("this build reads {SCHEMA}")));
        }
        serde_json::from_value(value).map_err(no_json)
    }

    /// Writes it, whole or not at all.
    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::new(Kind::Internal, format!("writing a plan: {e}")))?;
        replace_file(file, (text + "\n").as_bytes())
    }

    /// Whether the plan is one of this workflow, on this host.
    ///
    /// # Errors
    /// [`Kind::OptionMismatch`] naming what differs, [`Kind::NotPossibleHere`] for another host.
    pub fn check(&self, workflow: &Workflow) -> Result<()> {
        let differs = |what: &str, plan: String, file: String| {
            Err(Error::new(
                Kind::OptionMismatch,
                format!("the {what} of the plan differ from those of the workflow"),
            )
            .with("plan", plan)
            .with("workflow", file)
            .hint("create the plan again: forebay plan WORKFLOW -o plan.json"))
        };
        let said = |name: &str, ranks: u32| format!("{name}:{ranks}");
        let plan: Vec<String> = self.components.iter().map(|s| said(&s.name, s.ranks)).collect();
        let file: Vec<String> = workflow.components.iter().map(|c| said(&c.name, c.ranks)).collect();
        if plan != file {
            return differs("components", plan.join(" "), file.join(" "));
        }
        let plan: Vec<&str> = self.channels.keys().map(String::as_str).collect();
        let file: Vec<&str> = workflow.channels.iter().map(|c| c.name.as_str()).collect();
        if plan != file {
            return differs("channels", plan.join(" "), file.join(" "));
        }
        refuse_plan(&self.plan)
    }

    /// Checks that the plan was made on this host.
    ///
    /// # Errors
    /// [`Kind::NotPossibleHere`].
    pub fn check_host(&self) -> Result<()> {
        let here = forebay_tier::process::host_name();
        if self.host == here {
            return Ok(());
        }
        Err(Error::new(Kind::NotPossibleHere, "the plan is for another host")
            .with("plan", &self.host)
            .with("here", here)
            .hint("processor and memory node numbers differ between hosts: create a plan on this host"))
    }

    /// Puts tier, place and execution mode of the plan into a workflow that passed [`PlanFile::check`].
    pub fn place_channels(&self, workflow: &mut Workflow) {
        for channel in &mut workflow.channels {
            let Some(table) = self.channels.get(&channel.name) else { continue };
            channel.options.tier = table.tier;
            channel.options.path = table.path.clone();
            channel.options.execution_mode = table.execution_mode;
            channel.options.batch = table.batch;
            if channel.emulate.is_some() {
                channel.near = Some(self.plan.locality);
            }
        }
    }

    /// The seat of a component.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`] with "did you mean".
    pub fn seat(&self, component: &str) -> Result<&Seat> {
        self.components.iter().find(|seat| seat.name == component).ok_or_else(|| {
            let names = self.components.iter().map(|seat| seat.name.as_str());
            let error = Error::new(Kind::UnknownComponent, format!("the plan has no component {component}"));
            match forebay_space::did_you_mean(component, names.clone()) {
                Some(close) => error.hint(format!("did you mean {close}?")),
                None => error.hint(format!("available: {}", names.collect::<Vec<_>>().join(", "))),
            }
        })
    }

    /// A channel's table as programs get it, in `FOREBAY_CHANNEL_<NAME>`.
    pub fn table(&self, channel: &str) -> Option<String> {
        self.channels.get(channel).map(json)
    }
}

/// A mode as a space carries it out.
///
/// # Errors
/// [`Kind::NotPossibleHere`] for a gate with more places than a space can count.
pub fn execution_mode_of(mode: Mode) -> Result<ExecutionMode> {
    mode.to_string().parse().map_err(|_: Error| {
        Error::new(Kind::NotPossibleHere, format!("a space does not support the mode {mode}"))
            .hint(format!("gated:NwMr has N and M from 1 to {GATE_PLACES_MAX}"))
    })
}

/// Where the channels cannot be moved, the components are: whether the readers get the first node.
fn is_swapped(home: &Home, topology: &Topology, locality: Locality) -> bool {
    let (Home::Directory(_, _, Some(node)) | Home::Node(node)) = home else { return false };
    match topology.with_cpus().position(|n| n.number == *node) {
        Some(0) => locality == Locality::Reader,
        Some(1) => locality == Locality::Writer,
        _ => false,
    }
}

/// Which components have more ranks than processors, and which ones share theirs although they run at the same time.
pub(crate) fn crowded(seats: &[Seat], mode: Mode) -> Vec<String> {
    let in_order = |seat: &Seat| {
        let mut cpus = numbers(&seat.cpus);
        cpus.sort_unstable();
        list(&cpus)
    };
    let is_crowded = |seat: &&Seat| numbers(&seat.cpus).len() < seat.ranks as usize;
    let said = |seat: &Seat| {
        format!("{} has more ranks ({}) than processors ({})", seat.name, seat.ranks, in_order(seat))
    };
    let mut reasons: Vec<String> = seats.iter().filter(is_crowded).map(said).collect();
    let mut by_cpus: BTreeMap<&str, Vec<&Seat>> = BTreeMap::new();
    seats.iter().for_each(|seat| by_cpus.entry(&seat.cpus).or_default().push(seat));
    let shared = by_cpus.values().filter(|seats| seats.len() > 1 && !mode.is_serial());
    reasons.extend(shared.map(|seats| {
        let names: Vec<&str> = seats.iter().map(|seat| seat.name.as_str()).collect();
        format!("{} share the processors {}", names.join(", "), in_order(seats[0]))
    }));
    reasons
}

/// Says in a channel's table where it lies.
fn place(table: &mut ChannelOptions, home: &Home, beside: Option<u16>, workflow: &Workflow, channel: &str) {
    match home {
        Home::AsSaid => {
            // What the file leaves open, or says is main memory, can be near to one side.
            let in_memory = matches!(table.tier, None | Some(TierKind::Dram)) && table.path.is_none();
            if let (true, Some(node), false) = (in_memory, beside, table.kind == Some(Mechanism::Files)) {
                table.tier = Some(TierKind::Numa(node));
            }
        }
        Home::Memory => {
            table.tier = Some(beside.map_or(TierKind::Dram, TierKind::Numa));
            table.path = None;
        }
        Home::Node(node) => {
            table.tier = Some(TierKind::Numa(*node));
            table.path = None;
        }
        Home::Directory(kind, dir, _) => {
            table.tier = Some(*kind);
            table.path = Some(dir.join(format!("forebay-{}-{channel}", workflow.name)));
        }
    }
}

/// The nodes over which a channel's pages are spread in an interleaved plan: those that its two sides sit on.
///
/// # Errors
/// Why there are none.
fn spread(
    topology: &Topology,
    home: &Home,
    table: &ChannelOptions,
) -> std::result::Result<Nodes, &'static str> {
    match home {
        Home::Directory(..) => return Err("a directory cannot be interleaved: only main memory can"),
        Home::Node(_) => return Err("its tier is one memory node"),
        Home::AsSaid if table.kind == Some(Mechanism::Files) => {
            return Err("a channel of files cannot be interleaved: only main memory can")
        }
        Home::AsSaid if table.path.is_some() || !matches!(table.tier, None | Some(TierKind::Dram)) => {
            return Err("the workflow file sets its path or tier: only main memory can be interleaved")
        }
        Home::AsSaid | Home::Memory => {}
    }
    let sides: Vec<u16> = topology.with_cpus().map(|node| node.number).take(2).collect();
    match (sides.len(), Nodes::of(&sides)) {
        (2, Some(nodes)) => Ok(nodes),
        (2, None) => Err("pages are spread over memory nodes with numbers up to 15 only"),
        _ => Err("all granted processors are on one memory node: interleaving needs two"),
    }
}

/// Why channels that are read cannot be interleaved, if so, and which one cannot. Emulated ones can on any node.
pub(crate) fn not_interleaved(
    workflow: &Workflow,
    topology: &Topology,
    home: &Home,
) -> Option<(String, &'static str)> {
    let plain = workflow.channels.iter().filter(|c| c.emulate.is_none() && !c.readers.is_empty());
    let why = |channel: &Channel| {
        Some((channel.name.clone(), spread(topology, home, &channel.told(workflow, None)).err()?))
    };
    plain.filter_map(why).next()
}

/// Why the writers of a channel cannot gather objects to batches, if so, and of which one.
pub(crate) fn not_batched(workflow: &Workflow) -> Option<(&str, &'static str)> {
    workflow.channels.iter().find_map(|c| Some((c.name.as_str(), gathers_nothing(&c.options)?)))
}

/// What no build can carry out, in any workflow.
fn refuse_plan(plan: &Plan) -> Result<()> {
    let refuse = |what: &str, hint: &str| Err(Error::new(Kind::NotPossibleHere, what).hint(hint.to_owned()));
    if plan.batching.is_some_and(|bytes| !BATCH_BYTES.contains(&bytes)) {
        return refuse("invalid batch size", "from 4 KiB to 64 MiB, as 1MiB");
    }
    execution_mode_of(plan.mode).map(drop)
}

/// A component that reads more than one channel of the same writer. In turns the writer would wait behind the first for
/// a reader that waits for the second.
pub(crate) fn double_reader(workflow: &Workflow) -> Option<&str> {
    workflow.components.iter().map(|c| c.name.as_str()).find(|name| {
        let read = workflow.channels.iter().filter(|c| c.readers.iter().any(|reader| reader == name));
        let mut writers: Vec<&str> = read.map(|c| c.writer.as_str()).collect();
        let all = writers.len();
        writers.sort_unstable();
        writers.dedup();
        writers.len() < all
    })
}

fn refuse(workflow: &Workflow, topology: &Topology, plan: &Plan, home: &Home) -> Result<()> {
    refuse_plan(plan)?;
    let interleaved = plan.locality == Locality::Interleaved;
    if let Some((channel, why)) = not_interleaved(workflow, topology, home).filter(|_| interleaved) {
        return Err(Error::new(Kind::NotPossibleHere, "the channel cannot be interleaved")
            .with("channel", channel)
            .with("reason", why)
            .hint("locality writer or reader"));
    }
    if topology.cpus().is_empty() {
        return Err(Error::new(Kind::NotPossibleHere, "no processor was granted"));
    }
    if plan.mode.is_serial() && depths(workflow).is_none() {
        return Err(Error::new(Kind::NotPossibleHere, "the channels form a cycle: no component could start")
            .with("mode", plan.mode)
            .hint("use mode parallel or gated"));
    }
    if let (Mode::SerialPerStep, Some(reader)) = (plan.mode, double_reader(workflow)) {
        return Err(Error::new(
            Kind::NotPossibleHere,
            "a component reads two channels of one writer: serial-per-step would deadlock",
        )
        .with("component", reader)
        .hint("mode serial or parallel, or one channel for both"));
    }
    if let (Some(_), Some((channel, why))) = (plan.batching, not_batched(workflow)) {
        return Err(Error::new(Kind::NotPossibleHere, "the objects of the channel cannot be batched")
            .with("channel", channel)
            .with("reason", why)
            .hint("use a plan without batches"));
    }
    match (plan.mode, workflow.channels.iter().find(|channel| channel.is_files())) {
        (Mode::Gated { .. }, Some(channel)) => {
            Err(Error::new(Kind::NotPossibleHere, "a channel of files does not support an admission limit")
                .with("channel", &channel.name)
                .hint("use another mode, or kind = \"space\""))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Node;

    #[test]
    fn who_lacks_processors_is_said() {
        let seat = |name: &str, ranks, cpus: &str| Seat {
            name: name.to_owned(),
            ranks,
            cpus: cpus.to_owned(),
            memory_node: None,
        };
        let alone = [seat("sim", 3, "4,0"), seat("ana", 1, "1")];
        assert_eq!(crowded(&alone, Mode::Parallel), ["sim has more ranks (3) than processors (0,4)"]);
        let together = [seat("sim", 1, "0-1"), seat("ana", 1, "0-1"), seat("viz", 1, "0-1")];
        assert_eq!(crowded(&together, Mode::Parallel), ["sim, ana, viz share the processors 0-1"]);
        assert!(crowded(&together, Mode::Serial).is_empty(), "they take turns");
    }

    fn workflow(channel: &str) -> Workflow {
        let text = format!(
            "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n{channel}\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nranks = 2\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nreads = [\"u\"]\n"
        );
        Workflow::parse(Path::new("w.toml"), Path::new("/"), &text).unwrap()
    }

    fn nodes(count: u16) -> Topology {
        let node = |number: u16| {
            let first = 4 * usize::from(number);
            Node { number, cpus: (first..first + 4).collect(), bytes: 1 << 30 }
        };
        Topology { nodes: (0..count).map(node).collect() }
    }

    fn plan(mode: Mode, locality: Locality) -> Plan {
        Plan::new(mode, locality, AS_THE_FILE_SAYS)
    }

    #[test]
    fn a_channel_lies_beside_the_side_that_the_plan_says() {
        let tier = |home: &Home, locality| {
            let made =
                PlanFile::new(&workflow(""), &nodes(2), &plan(Mode::Parallel, locality), home).unwrap();
            made.channels["u"].tier
        };
        assert_eq!(tier(&Home::Memory, Locality::Writer), Some(TierKind::Numa(0)));
        assert_eq!(tier(&Home::AsSaid, Locality::Reader), Some(TierKind::Numa(1)));
        assert_eq!(tier(&Home::Node(2), Locality::Reader), Some(TierKind::Numa(2)));
        let both = Some("numa:0+1".parse().unwrap());
        assert_eq!(tier(&Home::Memory, Locality::Interleaved), both);
        assert_eq!(tier(&Home::AsSaid, Locality::Interleaved), both);
        let one =
            PlanFile::new(&workflow(""), &nodes(1), &plan(Mode::Parallel, Locality::Writer), &Home::Memory);
        assert_eq!(one.unwrap().channels["u"].tier, Some(TierKind::Dram), "nothing to bind on one node");
        let fixed = Home::Directory(TierKind::Pmem, "/pmem0".into(), Some(0));
        let near = |locality| {
            let made =
                PlanFile::new(&workflow(""), &nodes(2), &plan(Mode::Serial, locality), &fixed).unwrap();
            assert_eq!(made.channels["u"].path.as_deref(), Some(Path::new("/pmem0/forebay-w-u")));
            made.components.iter().map(|s| s.memory_node).collect::<Vec<_>>()
        };
        assert_eq!(near(Locality::Writer), [Some(0), Some(1)]);
        assert_eq!(
            near(Locality::Reader),
            [Some(1), Some(0)],
            "the components move where the channel cannot"
        );
    }

    #[test]
    fn an_emulated_channel_is_interleaved_on_any_node() {
        let mut w = workflow("emulate = \"optane-gen1:pmem/64\"");
        for (count, tier) in [(1, None), (2, Some("numa:0+1".parse().unwrap()))] {
            let made =
                PlanFile::new(&w, &nodes(count), &plan(Mode::Serial, Locality::Interleaved), &Home::AsSaid);
            let made = made.unwrap();
            assert_eq!(made.channels["u"].tier, tier);
            made.check(&w).unwrap();
            made.place_channels(&mut w);
            assert_eq!(w.channels[0].near, Some(Locality::Interleaved));
            w = workflow("emulate = \"optane-gen1:pmem/64\"");
        }
    }

    #[test]
    fn modes_become_the_modes_of_channels() {
        let execution_mode = |mode| {
            let made = PlanFile::new(&workflow(""), &nodes(1), &plan(mode, Locality::Writer), &Home::AsSaid);
            made.map(|made| made.channels["u"].execution_mode)
        };
        assert_eq!(execution_mode(Mode::Parallel).unwrap(), None);
        assert_eq!(execution_mode(Mode::Serial).unwrap(), Some(ExecutionMode::Serial));
        let gated = Mode::Gated { writers: 2, readers: 1 };
        assert_eq!(execution_mode(gated).unwrap(), Some(ExecutionMode::Gated { writers: 2, readers: 1 }));
        let wide = execution_mode(Mode::Gated { writers: 2000, readers: 1 }).unwrap_err();
        assert_eq!(wide.kind(), Kind::NotPossibleHere, "{wide}");
    }

    #[test]
    fn files_are_read_as_written_and_checked_against_the_workflow() {
        let w = workflow("quota = \"4MiB\"");
        let made = PlanFile::new(&w, &nodes(1), &plan(Mode::SerialPerStep, Locality::Writer), &Home::AsSaid);
        let made = made.unwrap();
        let text = serde_json::to_string(&made).unwrap();
        assert_eq!(PlanFile::parse(&text).unwrap(), made);
        made.check(&w).unwrap();
        assert!(made.table("u").unwrap().contains(r#""readers":"ana:1""#), "{:?}", made.table("u"));
        assert_eq!(made.seat("simm").unwrap_err().hint_text(), Some("did you mean sim?"));
        let kind = |text: &str| PlanFile::parse(text).unwrap_err().kind();
        assert_eq!(kind(&text.replace("plan/1", "plan/9")), Kind::UnknownFormat);
        assert_eq!(kind(&text.replace("serial-per-step\"", "serial-sometimes\"")), Kind::Usage);
        assert_eq!(kind("{"), Kind::Usage);
        let mut other = made.clone();
        other.components[0].ranks = 3;
        assert_eq!(other.check(&w).unwrap_err().kind(), Kind::OptionMismatch);
        let elsewhere = PlanFile { host: "elsewhere".into(), ..made };
        elsewhere.check(&w).unwrap();
        assert_eq!(elsewhere.check_host().unwrap_err().kind(), Kind::NotPossibleHere);
    }

    #[test]
    fn what_cannot_be_carried_out_is_refused() {
        let kind = |channel: &str, plan: &Plan| {
            PlanFile::new(&workflow(channel), &nodes(1), plan, &Home::AsSaid).unwrap_err().kind()
        };
        let gated = plan(Mode::Gated { writers: 1, readers: 1 }, Locality::Writer);
        assert_eq!(kind("kind = \"files\"", &gated), Kind::NotPossibleHere);
        let interleaved = plan(Mode::Serial, Locality::Interleaved);
        assert_eq!(kind("", &interleaved), Kind::NotPossibleHere);
        let directory = Home::Directory(TierKind::Pmem, "/pmem0".into(), Some(0));
        for (channel, home, count, says) in [
            ("", &Home::AsSaid, 1, "interleaving needs two"),
            ("", &Home::Memory, 1, "interleaving needs two"),
            ("", &Home::Node(2), 2, "its tier is one memory node"),
            ("", &directory, 2, "a directory cannot be interleaved"),
            ("kind = \"files\"", &Home::AsSaid, 2, "a channel of files cannot"),
            ("tier = \"numa:1\"", &Home::AsSaid, 2, "the workflow file sets its path"),
            ("path = \"/dev/shm/u\"", &Home::AsSaid, 2, "the workflow file sets its path"),
        ] {
            let made = PlanFile::new(&workflow(channel), &nodes(count), &interleaved, home);
            let error = made.unwrap_err();
            assert_eq!(error.kind(), Kind::NotPossibleHere, "{channel}: {error}");
            assert!(error.to_string().contains(says) && error.to_string().contains("channel=u"), "{error}");
        }
        let far = Topology {
            nodes: [0, 16].map(|number| Node { number, cpus: vec![number.into()], bytes: 1 }).into(),
        };
        let error = PlanFile::new(&workflow(""), &far, &interleaved, &Home::AsSaid).unwrap_err();
        assert!(error.to_string().contains("numbers up to 15"), "{error}");
        let batched = |bytes| Plan { batching: Some(bytes), ..plan(Mode::Serial, Locality::Writer) };
        assert_eq!(kind("", &batched(100)), Kind::NotPossibleHere);
        assert_eq!(kind("kind = \"files\"", &batched(1 << 20)), Kind::NotPossibleHere);
        assert_eq!(kind("horizon = \"write\"", &batched(1 << 20)), Kind::NotPossibleHere);
    }
}
