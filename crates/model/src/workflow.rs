//! The workflow: a component that writes versions and one that reads them, over a [`Station`].
//!
//! Writers compute, then write all objects of a version; readers may start a version when it is complete, and read its
//! objects one after the other, computing between them or after them:
//!
//! ```text
//! serial            T = K (Cw + Dw) + K (Dr + Cr),   D = N max(z + φ L, n φ L / g)   alone in the tier
//! serial per step   events, with one version ahead at most: writers go on when the readers have released a version, so
//!                   that these compute while the writers compute and write the next one
//! parallel, gated   events: what each component does next ends; between two events the station's φ is that of who is
//!                   inside, and each goes on at the rate n / (N X)
//! ```
//!
//! K versions, C seconds of computing per version, N objects per rank and version. Skew of the ranks (`spread_s`)
//! lowers how many are inside together, as thinking does, but does not lengthen a version: D leaves it out. Ranks that
//! do not wait for each other while they compute (`in_step` false) become skewed by half of what they compute where no
//! other component synchronises them, after the first version: in a serial run, and writers in a parallel or gated one;
//! who waits at a gate computes for as long meanwhile. While both components are in the tier, software takes `1 +
//! shared` times as long. Readers that wait may poll.
//!
//! Guarantees: pure; every state of the two components is solved once.

use super::plan::{Locality, Mode};
use super::station::{Class, Polling, Solution, Station};

/// One side of a workflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component {
    /// Ranks.
    pub ranks: f64,
    /// Seconds of computing of each rank per version.
    pub compute_s: f64,
    /// Whether computing lies between the objects and not before (writers) or after (readers) them.
    pub interleaved: bool,
    /// Skew of the ranks in seconds.
    pub spread_s: f64,
    /// Whether ranks wait for each other in every version while they compute, as those of most MPI programs do.
    pub in_step: bool,
    /// Objects of each rank and version.
    pub objects: f64,
    /// Bytes of one.
    pub object_bytes: f64,
    /// Seconds of software per object.
    pub software_s: f64,
    /// What is added to them when the channel is remote, as far as no computing in between hides it.
    pub software_remote_s: f64,
    /// Share by which they grow while the other component is in the tier too.
    pub shared: f64,
    /// How much of a rank is inside while it waits for a version.
    pub polling: f64,
}

impl Component {
    /// The same with ranks that are skewed by such a share of what they compute.
    pub fn skewed(&self, share: f64) -> Component {
        Component { spread_s: self.spread_s.max(share * self.compute_s), ..*self }
    }
}

/// A workflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workflow {
    /// K.
    pub versions: u32,
    /// Who writes.
    pub writer: Component,
    /// Who reads.
    pub reader: Component,
    /// Most versions that may be complete and unread; the writers wait then. At least 1.
    pub ahead: Option<u32>,
}

/// Where the time of a component goes, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Parts {
    /// Computing.
    pub compute_s: f64,
    /// Writing or reading, software and waiting at gates counted.
    pub io_s: f64,
    /// Of that, software.
    pub software_s: f64,
    /// Waiting for the other component.
    pub wait_s: f64,
}

/// What a workflow waits for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Binding {
    /// Computing of the writers.
    WriterCompute,
    /// Computing of the readers.
    ReaderCompute,
    /// Software per object.
    Software,
    /// What single ranks get from the tier, which could give more to more of them.
    RankRate,
    /// What the tier takes.
    WriteBandwidth,
    /// What the tier gives.
    ReadBandwidth,
    /// What reading and writing at once takes from it.
    Interference,
}

impl Binding {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Binding::WriterCompute => "computing of the writers",
            Binding::ReaderCompute => "computing of the readers",
            Binding::Software => "software per object",
            Binding::RankRate => "what one rank gets from the tier",
            Binding::WriteBandwidth => "what the tier takes",
            Binding::ReadBandwidth => "what the tier gives",
            Binding::Interference => "reading and writing at once",
        }
    }
}

/// All of [`Binding`], for tables over them.
pub const BINDINGS: [Binding; 7] = [
    Binding::WriterCompute,
    Binding::ReaderCompute,
    Binding::Software,
    Binding::RankRate,
    Binding::WriteBandwidth,
    Binding::ReadBandwidth,
    Binding::Interference,
];

/// What the model says of a workflow by a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds from begin to end.
    pub time_s: f64,
    /// The writers' part.
    pub writer: Parts,
    /// The readers' part.
    pub reader: Parts,
    /// Seconds in which each of [`BINDINGS`] was what bound.
    pub bound_s: [f64; 7],
    /// Mean seconds from a version's completion to the end of its reading.
    pub freshness_s: f64,
    /// Most versions that lay in the channel at once.
    pub held: u32,
    /// Bytes written to the tier.
    pub written_bytes: f64,
    /// Seconds in which both components were in the tier.
    pub together_s: f64,
}

impl Prediction {
    /// What bound longest.
    pub fn binding(&self) -> Binding {
        let mut longest = 0;
        for (i, seconds) in self.bound_s.iter().enumerate() {
            if *seconds > self.bound_s[longest] {
                longest = i;
            }
        }
        BINDINGS[longest]
    }
}

/// The skew of ranks that are not synchronised, as a share of what they compute. Not at all and by all of it are both
/// wrong: measured by `forebay bench workflows` with seeds 5, 7 and 8 (docs/src/guide/choosing.md).
const SKEW: f64 = 0.5;
/// From here on a station counts as saturated: everything takes a tenth longer than alone.
const SATURATED: f64 = 1.1;
/// From here on the mixture counts as what binds.
const DISTURBED: f64 = 1.25;

#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Wait,
    Compute,
    Transfer,
    Done,
}

/// One component with the placement of a plan.
#[derive(Clone, Copy)]
struct Side {
    of: Component,
    remote: f64,
    gate: f64,
    reads: bool,
    /// Seconds per version by which its ranks are skewed: who waits at the gate computes for as long meanwhile.
    skew_s: f64,
}

/// How long a version takes to be moved while nothing changes.
#[derive(Clone, Copy, Default)]
struct VersionTime {
    whole_s: f64,
    software_s: f64,
    compute_s: f64,
}

/// The times of a version in one state of the two components.
#[derive(Clone, Copy)]
struct State {
    writer: VersionTime,
    reader: VersionTime,
    solution: Solution,
}

impl Side {
    fn software_s(&self, together: bool) -> f64 {
        let factor = if together { 1.0 + self.of.shared } else { 1.0 };
        // Reading ahead hides what is remote behind what is computed in between.
        let remote_s = (self.of.software_remote_s - self.between_s()).max(0.0);
        (self.of.software_s + self.remote * remote_s) * factor
    }

    fn between_s(&self) -> f64 {
        if self.of.interleaved {
            self.of.compute_s / self.of.objects
        } else {
            0.0
        }
    }

    /// The group inside the station; `parts` is over how many equal stations the channel is spread.
    fn class(&self, together: bool, parts: f64) -> Class {
        Class {
            reads: self.reads,
            ranks: self.of.ranks / parts,
            think_s: self.software_s(together) + self.between_s() + self.of.spread_s / self.of.objects,
            bytes: self.of.object_bytes,
            remote: self.remote,
            gate: self.gate / parts,
        }
    }

    fn version_time(&self, inside_s: f64, together: bool) -> VersionTime {
        let software_s = self.software_s(together);
        let open_s = software_s + self.between_s() + inside_s;
        let gated_s = self.of.ranks * inside_s / self.gate - self.skew_s / self.of.objects;
        VersionTime {
            whole_s: self.of.objects * open_s.max(gated_s),
            software_s: self.of.objects * software_s,
            compute_s: self.of.objects * self.between_s(),
        }
    }

    /// Computing of its own, beside the transfer.
    fn apart_s(&self) -> f64 {
        if self.of.interleaved {
            0.0
        } else {
            self.of.compute_s
        }
    }
}

/// A workflow placed by a plan, ready to be run through.
struct Run<'a> {
    station: &'a Station,
    flow: &'a Workflow,
    writer: Side,
    reader: Side,
    parts: f64,
    /// By (writers inside, readers inside, readers polling).
    states: [Option<State>; 8],
    out: Prediction,
}

/// What the model says of a workflow by mode and locality.
pub fn predict(flow: &Workflow, station: &Station, mode: Mode, locality: Locality) -> Prediction {
    let (remote_writes, remote_reads, parts) = match locality {
        Locality::Writer => (0.0, 1.0, 1.0),
        Locality::Reader => (1.0, 0.0, 1.0),
        Locality::Interleaved => (0.5, 0.5, 2.0),
    };
    let (write_gate, read_gate) = match mode {
        Mode::Gated { writers, readers } => (f64::from(writers), f64::from(readers)),
        _ => (f64::INFINITY, f64::INFINITY),
    };
    let mut run = Run {
        station,
        flow,
        writer: Side { of: flow.writer, remote: remote_writes, gate: write_gate, reads: false, skew_s: 0.0 },
        reader: Side { of: flow.reader, remote: remote_reads, gate: read_gate, reads: true, skew_s: 0.0 },
        parts,
        states: [None; 8],
        out: Prediction {
            time_s: 0.0,
            writer: Parts::default(),
            reader: Parts::default(),
            bound_s: [0.0; 7],
            freshness_s: 0.0,
            held: 0,
            written_bytes: f64::from(flow.versions)
                * flow.writer.ranks
                * flow.writer.objects
                * flow.writer.object_bytes,
            together_s: 0.0,
        },
    };
    match mode {
        Mode::Serial => run.in_turn(),
        Mode::SerialPerStep => run.together(1, false),
        Mode::Parallel | Mode::Gated { .. } => run.together(flow.ahead.map_or(u32::MAX, |a| a.max(1)), true),
    }
    run.out
}

impl Run<'_> {
    fn state(&mut self, writes: bool, reads: bool, polls: bool) -> State {
        let index = usize::from(writes) | usize::from(reads) << 1 | usize::from(polls) << 2;
        if let Some(state) = self.states[index] {
            return state;
        }
        let together = writes && reads;
        let write = writes.then(|| self.writer.class(together, self.parts));
        let read = reads.then(|| self.reader.class(together, self.parts));
        let inside = if polls { self.reader.of.ranks * self.reader.of.polling / self.parts } else { 0.0 };
        let polling = Polling { inside, remote: self.reader.remote };
        let solution = self.station.solve(write.as_ref(), read.as_ref(), polling);
        let state = State {
            writer: self.writer.version_time(solution.write.inside_s, together),
            reader: self.reader.version_time(solution.read.inside_s, together),
            solution,
        };
        self.states[index] = Some(state);
        state
    }

    /// The same after the first version: ranks that do not wait for each other are skewed then.
    fn skewed(&self) -> Self {
        let of = |side: &Side| match side.of.in_step {
            true => *side,
            false => Side { of: side.of.skewed(SKEW), skew_s: SKEW * side.apart_s(), ..*side },
        };
        Run { writer: of(&self.writer), reader: of(&self.reader), states: [None; 8], ..*self }
    }

    fn in_turn(&mut self) {
        let mut skewed = self.skewed();
        let writes = [self.state(true, false, false), skewed.state(true, false, false)];
        let reads = [self.state(false, true, false), skewed.state(false, true, false)];
        let later = f64::from(self.flow.versions.saturating_sub(1));
        let number = [1.0, later];
        let writing_s = writes.map(|state| self.writer.apart_s() + state.writer.whole_s);
        let reading_s = reads.map(|state| self.reader.apart_s() + state.reader.whole_s);
        let all_s = |each: [f64; 2]| each[0] + later * each[1];
        self.out.time_s = all_s(writing_s) + all_s(reading_s);
        for (state, times) in writes.iter().zip(number) {
            self.spend(times * self.writer.apart_s(), Doing::Compute, Doing::Wait, state);
            self.spend(times * state.writer.whole_s, Doing::Transfer, Doing::Wait, state);
        }
        for (state, times) in reads.iter().zip(number) {
            self.spend(times * state.reader.whole_s, Doing::Wait, Doing::Transfer, state);
            self.spend(times * self.reader.apart_s(), Doing::Wait, Doing::Compute, state);
        }
        // Of the first version, and by how much more of each later one, what lies between complete and read.
        let first_s = all_s(writing_s) + reading_s[0] - writing_s[0];
        self.out.freshness_s = first_s + later / 2.0 * (reading_s[1] - writing_s[1]);
        self.out.held = self.flow.versions;
        // The readers are started when the writers have ended: they do not wait for them, nor these for them.
        self.out.writer.wait_s = 0.0;
        self.out.reader.wait_s = 0.0;
    }

    /// Books a stretch of time.
    fn spend(&mut self, seconds: f64, writer: Doing, reader: Doing, state: &State) {
        if seconds <= 0.0 {
            return;
        }
        let sides =
            [(writer, &mut self.out.writer, &state.writer), (reader, &mut self.out.reader, &state.reader)];
        for (doing, parts, time) in sides {
            match doing {
                Doing::Wait => parts.wait_s += seconds,
                Doing::Compute => parts.compute_s += seconds,
                Doing::Transfer => {
                    let (compute, software) = (time.compute_s / time.whole_s, time.software_s / time.whole_s);
                    parts.compute_s += seconds * compute;
                    parts.software_s += seconds * software;
                    parts.io_s += seconds * (1.0 - compute);
                }
                Doing::Done => {}
            }
        }
        if writer == Doing::Transfer && reader == Doing::Transfer {
            self.out.together_s += seconds;
        }
        let binding = self.binding(writer, reader, state);
        self.out.bound_s[binding as usize] += seconds;
    }

    /// What bound: the tier where it is saturated, else what the later of the two does (the readers end last).
    fn binding(&self, writer: Doing, reader: Doing, state: &State) -> Binding {
        let (write, read) = (writer == Doing::Transfer, reader == Doing::Transfer);
        let solution = &state.solution;
        if (write || read) && solution.stretch > SATURATED {
            return match (solution.disturbance > DISTURBED, solution.write.used >= solution.read.used) {
                (true, _) => Binding::Interference,
                (_, true) => Binding::WriteBandwidth,
                (_, false) => Binding::ReadBandwidth,
            };
        }
        let version_time = match (writer, reader) {
            (Doing::Transfer, _) => &state.writer,
            (Doing::Compute, _) => return Binding::WriterCompute,
            (_, Doing::Transfer) => &state.reader,
            _ => return Binding::ReaderCompute,
        };
        let inside_s = version_time.whole_s - version_time.software_s - version_time.compute_s;
        if version_time.compute_s >= version_time.software_s.max(inside_s) {
            return if write { Binding::WriterCompute } else { Binding::ReaderCompute };
        }
        if version_time.software_s >= inside_s {
            Binding::Software
        } else {
            Binding::RankRate
        }
    }

    /// How the writers write later versions than the first, which they do not begin together.
    fn later_writes(&self) -> Self {
        // Readers begin together, when a version is complete.
        Run { reader: self.reader, ..self.skewed() }
    }

    /// Runs through it with at most so many versions complete and unread; `free` where writers do not wait for readers
    /// in every version.
    fn together(&mut self, ahead: u32, free: bool) {
        let mut later = free.then(|| self.later_writes());
        let versions = self.flow.versions;
        let (mut now, mut written, mut read) = (0.0f64, 0u32, 0u32);
        // What is left: seconds of computing, or the share of a version that is not moved yet.
        let (mut writer, mut writer_left) = (Doing::Compute, self.writer.apart_s());
        let (mut reader, mut reader_left) = (Doing::Wait, 0.0f64);
        // Sum over versions of (read - complete).
        let mut ages = 0.0;
        loop {
            // A component that has ended what it did goes on, as far as the other allows.
            if writer == Doing::Compute && writer_left <= 0.0 {
                (writer, writer_left) = (Doing::Transfer, 1.0);
            }
            if writer == Doing::Transfer && writer_left <= 0.0 {
                written += 1;
                ages -= now;
                writer = Doing::Wait;
            }
            if writer == Doing::Wait && written == versions {
                writer = Doing::Done;
            }
            if reader == Doing::Transfer && reader_left <= 0.0 {
                (reader, reader_left) = (Doing::Compute, self.reader.apart_s());
                read += 1;
                ages += now;
            }
            if reader == Doing::Compute && reader_left <= 0.0 {
                reader = Doing::Wait;
            }
            if reader == Doing::Wait && read == versions {
                break;
            }
            if reader == Doing::Wait && written > read {
                (reader, reader_left) = (Doing::Transfer, 1.0);
            }
            if writer == Doing::Wait && written - read < ahead {
                (writer, writer_left) = (Doing::Compute, self.writer.apart_s());
                if writer_left <= 0.0 {
                    (writer, writer_left) = (Doing::Transfer, 1.0);
                }
            }
            let in_channel = written - read + u32::from(writer == Doing::Transfer);
            self.out.held = self.out.held.max(in_channel);
            let doing = (writer == Doing::Transfer, reader == Doing::Transfer);
            let polls = reader == Doing::Wait && writer != Doing::Done;
            let state = match &mut later {
                Some(later) if written > 0 => later.state(doing.0, doing.1, polls),
                _ => self.state(doing.0, doing.1, polls),
            };
            let left_s = |doing: Doing, left: f64, version_time: &VersionTime| match doing {
                Doing::Compute => left,
                Doing::Transfer => left * version_time.whole_s,
                _ => f64::INFINITY,
            };
            let writer_s = left_s(writer, writer_left, &state.writer);
            let reader_s = left_s(reader, reader_left, &state.reader);
            let step_s = writer_s.min(reader_s);
            self.spend(step_s, writer, reader, &state);
            now += step_s;
            // Exactly nothing is left of what ends now.
            writer_left = if writer_s <= step_s { 0.0 } else { writer_left * (1.0 - step_s / writer_s) };
            reader_left = if reader_s <= step_s { 0.0 } else { reader_left * (1.0 - step_s / reader_s) };
        }
        self.out.time_s = now;
        self.out.freshness_s = ages / f64::from(versions.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::{Device, OURS};
    use super::*;
    use fastrand::Rng;
    use forebay_profile::platforms::platform;

    fn pmem() -> Station {
        Device::of(&platform("optane-gen1").unwrap(), "pmem", &OURS).unwrap().station
    }

    fn side(ranks: f64, random: &mut Rng) -> Component {
        let objects = (1.0 + 100.0 * random.f64()).round();
        Component {
            ranks,
            compute_s: 2.0 * random.f64() * random.f64(),
            interleaved: random.f64() > 0.5,
            spread_s: 0.0,
            in_step: true,
            objects,
            object_bytes: 1e9 * random.f64() / objects,
            software_s: 1e-3 * random.f64(),
            software_remote_s: 1e-4 * random.f64(),
            shared: 0.0,
            polling: 0.0,
        }
    }

    fn workflows() -> impl Iterator<Item = Workflow> {
        (0..150).map(|seed| {
            let mut random = Rng::with_seed(seed);
            let ranks = (1.0 + 27.0 * random.f64()).round();
            let writer = side(ranks, &mut random);
            let reader = Component {
                objects: writer.objects,
                object_bytes: writer.object_bytes,
                ..side(ranks, &mut random)
            };
            Workflow { versions: 1 + (9.0 * random.f64()) as u32, writer, reader, ahead: None }
        })
    }

    const MODES: [Mode; 4] =
        [Mode::Serial, Mode::SerialPerStep, Mode::Parallel, Mode::Gated { writers: 4, readers: 8 }];

    #[test]
    fn the_parts_add_up() {
        let station = pmem();
        for flow in workflows() {
            for mode in MODES {
                for locality in [Locality::Writer, Locality::Reader, Locality::Interleaved] {
                    let said = predict(&flow, &station, mode, locality);
                    let versions = f64::from(flow.versions);
                    let computed = versions * flow.writer.compute_s;
                    assert!((said.writer.compute_s - computed).abs() <= 1e-6 * (1.0 + computed));
                    let computed = versions * flow.reader.compute_s;
                    assert!((said.reader.compute_s - computed).abs() <= 1e-6 * (1.0 + computed));
                    let bound: f64 = said.bound_s.iter().sum();
                    assert!((bound / said.time_s - 1.0).abs() < 1e-9);
                    for parts in [said.writer, said.reader] {
                        let all = parts.compute_s + parts.io_s + parts.wait_s;
                        assert!(
                            all <= said.time_s * (1.0 + 1e-9)
                                && parts.software_s <= parts.io_s * (1.0 + 1e-9)
                        );
                    }
                    assert!(said.held >= 1 && said.held <= flow.versions);
                    assert!(said.freshness_s > 0.0 && said.freshness_s <= said.time_s);
                }
            }
        }
    }

    #[test]
    fn without_disturbance_running_together_never_loses() {
        let mut station = pmem();
        station.mix = super::super::station::Mix::NONE;
        // Nor may more ranks inside lower the capacity.
        for way in [&mut station.read, &mut station.write] {
            way.capacity = super::super::table::Table::flat(way.capacity.at(8.0));
            way.remote = super::super::station::Penalty::none();
        }
        for flow in workflows() {
            let serial = predict(&flow, &station, Mode::Serial, Locality::Writer).time_s;
            let parallel = predict(&flow, &station, Mode::Parallel, Locality::Writer).time_s;
            assert!(parallel <= serial * (1.0 + 1e-6), "{parallel} {serial} {flow:?}");
        }
    }

    #[test]
    fn ranks_that_are_not_synchronised_meet_less() {
        let station = pmem();
        let (mut in_turn, mut together) = (0, 0);
        for flow in workflows() {
            let apart = |c: Component| Component { in_step: false, ..c };
            let free = Workflow { writer: apart(flow.writer), reader: apart(flow.reader), ..flow };
            for mode in MODES {
                let said = |flow: &Workflow| predict(flow, &station, mode, Locality::Reader);
                let (stepping, skewed) = (said(&flow).time_s, said(&free).time_s);
                let gains = u32::from(skewed < 0.95 * stepping);
                match mode {
                    Mode::Serial => {
                        assert!(skewed <= stepping * (1.0 + 1e-9), "{flow:?}");
                        in_turn += gains;
                    }
                    Mode::Parallel | Mode::Gated { .. } => together += gains,
                    Mode::SerialPerStep => {
                        assert_eq!(skewed, stepping, "the others make them meet: {mode}")
                    }
                }
            }
        }
        assert!(in_turn > 10 && together > 10, "{in_turn} {together}");
    }

    #[test]
    fn a_rank_that_waits_at_a_gate_computes_meanwhile_where_ranks_are_not_synchronised() {
        let station = pmem();
        let mut random = Rng::with_seed(7);
        let of = Component { interleaved: false, in_step: false, ..side(24.0, &mut random) };
        let writer = Component { compute_s: 50.0, objects: 4.0, object_bytes: 256e6, ..of };
        let reader = Component { ranks: 1.0, compute_s: 0.0, objects: 1.0, object_bytes: 4096.0, ..writer };
        let flow = Workflow { versions: 6, writer, reader, ahead: None };
        let mode = Mode::Gated { writers: 1, readers: 1 };
        let version_s = |flow: &Workflow| {
            let time_s =
                |versions| predict(&Workflow { versions, ..*flow }, &station, mode, Locality::Writer).time_s;
            time_s(7) - time_s(6)
        };
        // One by one for less than they compute: beside computing only each rank's own writing shows.
        let alone_s = 4.0 * (of.software_s + station.write.alone_s(256e6, 0.0));
        assert!((version_s(&flow) / (50.0 + alone_s) - 1.0).abs() < 0.01, "{} {alone_s}", version_s(&flow));
        let stepping = Workflow { writer: Component { in_step: true, ..writer }, ..flow };
        assert!((version_s(&stepping) / (50.0 + 24.0 * alone_s) - 1.0).abs() < 0.05);
    }

    #[test]
    fn more_work_is_never_faster_and_one_version_cannot_overlap() {
        let station = pmem();
        for flow in workflows() {
            for mode in MODES {
                let time = |flow: &Workflow| predict(flow, &station, mode, Locality::Writer).time_s;
                let more = Workflow { versions: flow.versions + 1, ..flow };
                assert!(time(&more) > time(&flow));
            }
            let one = Workflow { versions: 1, ..flow };
            let of = |mode| predict(&one, &station, mode, Locality::Reader).time_s;
            assert!((of(Mode::Parallel) / of(Mode::Serial) - 1.0).abs() < 1e-9);
            assert!((of(Mode::SerialPerStep) / of(Mode::Serial) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn in_turns_the_readers_compute_while_the_next_version_is_written() {
        let station = pmem();
        for mut flow in workflows() {
            (flow.writer.interleaved, flow.reader.interleaved) = (false, false);
            let time = |mode| predict(&flow, &station, mode, Locality::Writer);
            let (turns, serial) = (time(Mode::SerialPerStep), time(Mode::Serial));
            let (writing, reading) = (serial.writer, serial.reader);
            let versions = f64::from(flow.versions);
            let (w, r) = ((writing.compute_s + writing.io_s) / versions, reading.io_s / versions);
            let computing = flow.reader.compute_s;
            let wanted = w + r + (versions - 1.0) * (w.max(computing) + r) + computing;
            assert!((turns.time_s / wanted - 1.0).abs() < 1e-9, "{} {wanted} {flow:?}", turns.time_s);
            assert!(turns.held == 1 && turns.time_s <= serial.time_s * (1.0 + 1e-9));
        }
    }

    #[test]
    fn who_may_not_run_ahead_keeps_fewer_versions() {
        let station = pmem();
        for flow in workflows() {
            let tight = Workflow { ahead: Some(1), ..flow };
            let said = predict(&tight, &station, Mode::Parallel, Locality::Writer);
            assert!(said.held <= 2);
            let free = predict(&flow, &station, Mode::Parallel, Locality::Writer);
            assert!(said.held <= free.held.max(1));
        }
    }

    #[test]
    fn interleaved_computing_lowers_the_gap_between_near_and_far_reads() {
        let station = pmem();
        for flow in workflows().filter(|f| f.reader.compute_s > 0.1) {
            let gap = |interleaved: bool| {
                let reader = Component { interleaved, ..flow.reader };
                let flow = Workflow { reader, ..flow };
                let of = |locality| predict(&flow, &station, Mode::Serial, locality).reader.io_s;
                of(Locality::Writer) - of(Locality::Reader)
            };
            assert!(gap(true) <= gap(false) + 1e-9);
        }
    }
}
