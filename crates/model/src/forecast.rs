//! The forecast: what the model says of a workflow by a plan, with an error bar.
//!
//! The error bar is propagated: each thing that is known only so well is moved to the upper end of its own bar, alone,
//! and the changes of the time are added in squares. Things are the rates of reading and of writing (bar of the curve
//! at the ranks there are), remote penalties (the same), the disturbance by mixing, by how much the station misses its
//! curves, the inputs (computing, software, starting the ranks), and the skew of the ranks, which is unknown:
//! between not at all and by as long as they compute, whichever is further off. The model's own error comes on top: of
//! the time that the tier takes a fixed share ([`MODEL_ERROR`]), and of the time in which both sides are in it
//! together, by how much the station missed what was measured of one beside the other.
//!
//! Until ranks are under way passes a time that is no part of the model: serial plans wait for it twice, others once.
//!
//! Batching gathers objects of o bytes into batches of B: a writing rank then sends `N o / B` of them to the tier, each
//! with the software time of one, and pays for gathering `B / o` objects and copying B bytes once more. Readers get
//! object after object as without.

use serde::Serialize;

use super::device::{Device, MISSING_ERROR};
use super::plan::{Locality, Mode, Plan};
use super::station::{Penalty, Station};
use super::table::{Row, Table};
use super::workflow::{predict, Binding, Component, Parts, Prediction, Workflow};

/// Half of the error bar of the time that ranks take to be under way, as a share.
const START_ERROR: f64 = 0.3;
/// What the model leaves out, as a share of the time that the tier or software takes. With it 86 to 90 % of the plans
/// that `forebay bench workflows` drew and ran were inside their error bars (docs/src/guide/choosing.md).
const MODEL_ERROR: f64 = 0.05;

/// Seconds of copying one byte in memory by one thread, past the cache: 8 GB/s, between the two copies of 64 MiB that
/// `cargo xtask bench put --only put` makes (`memcpy` and stores past the cache: 7 and 10 GB/s in a virtual machine).
const COPY_BYTE_S: f64 = 0.125e-9;

/// What a workflow is known by: its inputs and how well they are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// The workflow.
    pub flow: Workflow,
    /// Half of the error bar of computing, as a share.
    pub compute_error: f64,
    /// Half of the error bar of software times, as a share.
    pub software_error: f64,
    /// Seconds until the ranks of the writers, and those of the readers, are under way.
    pub start_s: [f64; 2],
    /// Seconds of gathering one object into a batch.
    pub gather_object_s: f64,
    /// Seconds of copying one byte into a batch.
    pub gather_byte_s: f64,
}

/// What the model says of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct Forecast {
    /// The plan.
    pub plan: Plan,
    /// Seconds.
    pub time_s: f64,
    /// Half of the error bar.
    pub error_s: f64,
    /// Where the writers' time goes.
    pub writer: Parts,
    /// Where the readers' time goes.
    pub reader: Parts,
    /// What bound longest.
    pub binding: Binding,
    /// Mean seconds from a version's completion to the end of its reading.
    pub freshness_s: f64,
    /// Most bytes that lie in the channel at once.
    pub channel_bytes: f64,
    /// DRAM that the plan takes: batches being filled, and the channel where its tier is main memory.
    pub dram_bytes: f64,
    /// Bytes written to the tier.
    pub written_bytes: f64,
    /// Whether more ranks are inside than were ever measured.
    pub extrapolated: bool,
}

impl Inputs {
    /// A workflow whose inputs are known to a share of 5 % and whose ranks are there at once. To gather an object takes
    /// as long as its software does: right where that is no system call.
    pub fn new(flow: Workflow) -> Inputs {
        Inputs {
            flow,
            compute_error: 0.05,
            software_error: 0.05,
            start_s: [0.0; 2],
            gather_object_s: flow.writer.software_s,
            gather_byte_s: COPY_BYTE_S,
        }
    }

    /// Seconds that a plan waits for ranks to be under way.
    fn starting_s(&self, plan: &Plan) -> f64 {
        let [writers, readers] = self.start_s;
        match plan.mode {
            Mode::Serial => writers + readers,
            _ => writers.max(readers),
        }
    }

    /// The workflow with objects gathered to batches of so many bytes.
    pub fn batched(&self, bytes: u64) -> Workflow {
        let of = self.flow.writer;
        let all = of.objects * of.object_bytes;
        let batch = (bytes as f64).min(all);
        if batch <= of.object_bytes {
            return self.flow;
        }
        let gathering = batch / of.object_bytes * self.gather_object_s + batch * self.gather_byte_s;
        let writer = Component {
            objects: all / batch,
            object_bytes: batch,
            software_s: of.software_s + gathering,
            ..of
        };
        Workflow { writer, ..self.flow }
    }

    /// What the model says of a plan; `device` is that of the plan's tier, `is_dram` whether that is main memory.
    pub fn forecast(&self, plan: &Plan, device: &Device, is_dram: bool) -> Forecast {
        let flow = plan.batching.map_or(self.flow, |bytes| self.batched(bytes));
        let said = predict(&flow, &device.station, plan.mode, plan.locality);
        let starting_s = self.starting_s(plan);
        let error_s = self.error_s(plan, device, &flow, &said).hypot(START_ERROR * starting_s);
        let version = flow.writer.ranks * flow.writer.objects * flow.writer.object_bytes;
        let channel_bytes = f64::from(said.held) * version;
        let gathered = plan.batching.map_or(0.0, |bytes| flow.writer.ranks * bytes as f64);
        let within = |ranks: f64, table: &Table| table.rows().last().is_none_or(|row| ranks <= row.x);
        let station = &device.station;
        Forecast {
            plan: plan.clone(),
            time_s: said.time_s + starting_s,
            error_s,
            writer: said.writer,
            reader: said.reader,
            binding: said.binding(),
            freshness_s: said.freshness_s,
            channel_bytes,
            dram_bytes: gathered + if is_dram { channel_bytes } else { 0.0 },
            written_bytes: said.written_bytes,
            extrapolated: !within(flow.writer.ranks, &station.write.capacity)
                || !within(flow.reader.ranks, &station.read.capacity),
        }
    }

    fn error_s(&self, plan: &Plan, device: &Device, flow: &Workflow, said: &Prediction) -> f64 {
        let time =
            |flow: &Workflow, station: &Station| predict(flow, station, plan.mode, plan.locality).time_s;
        let station = &device.station;
        let write = station.write.capacity.error_at(flow.writer.ranks);
        let read = station.read.capacity.error_at(flow.reader.ranks);
        let remote = match plan.locality {
            Locality::Writer => [0.0, station.read.remote.error_at(flow.reader.ranks)],
            Locality::Reader => [station.write.remote.error_at(flow.writer.ranks), 0.0],
            Locality::Interleaved => [
                station.write.remote.error_at(flow.writer.ranks),
                station.read.remote.error_at(flow.reader.ranks),
            ],
        };
        let moved = [
            time(flow, &slower(station, false, write)),
            time(flow, &slower(station, true, read)),
            time(
                flow,
                &slower(&slower(station, true, device.uncertainty.shape), false, device.uncertainty.shape),
            ),
            time(flow, &further(station, remote)),
            time(flow, &more_disturbed(station, device.uncertainty.mix)),
            time(&longer(flow, self.compute_error, 0.0), station),
            time(&longer(flow, 0.0, self.software_error), station),
            furthest(said.time_s, both_steps(flow).map(|flow| time(&flow, station))),
        ];
        let propagated = moved.iter().map(|t| (t - said.time_s).powi(2)).sum::<f64>().sqrt();
        let computing = [Binding::WriterCompute, Binding::ReaderCompute];
        let computing_s: f64 = computing.iter().map(|b| said.bound_s[*b as usize]).sum();
        let own =
            ((said.time_s - computing_s) * MODEL_ERROR).hypot(said.together_s * device.uncertainty.together);
        propagated.hypot(own)
    }
}

/// The time that is further from what was said.
fn furthest(said_s: f64, [a, b]: [f64; 2]) -> f64 {
    if (a - said_s).abs() > (b - said_s).abs() {
        a
    } else {
        b
    }
}

/// The station with one direction slower by a share.
fn slower(station: &Station, reads: bool, by: f64) -> Station {
    let mut moved = station.clone();
    let way = if reads { &mut moved.read } else { &mut moved.write };
    way.single *= 1.0 - by.min(0.9);
    way.capacity = way.capacity.clone().map(|row| row.y * (1.0 - by.min(0.9)));
    moved
}

/// The workflow with all ranks in step, and with all skewed by as long as they compute.
fn both_steps(flow: &Workflow) -> [Workflow; 2] {
    let with = |of: fn(&Component) -> Component| Workflow {
        writer: of(&flow.writer),
        reader: of(&flow.reader),
        ..*flow
    };
    [with(|c| Component { in_step: true, ..*c }), with(|c| c.skewed(1.0))]
}

/// The station with remote accesses that are worse by a share: of writes and of reads.
fn further(station: &Station, [write, read]: [f64; 2]) -> Station {
    let mut moved = station.clone();
    for (way, by) in [(&mut moved.write, write), (&mut moved.read, read)] {
        way.remote = match way.remote.clone() {
            Penalty::Share(table) => Penalty::Share(table.map(|row: &Row| row.y / (1.0 + by))),
            Penalty::Rising { low, high, middle, steepness } => {
                Penalty::Rising { low: low * (1.0 + by), high: high * (1.0 + by), middle, steepness }
            }
        };
    }
    moved
}

/// The station that suffers more from mixing by a share. Where nothing is known of it, some is taken.
fn more_disturbed(station: &Station, by: f64) -> Station {
    let mut moved = station.clone();
    if moved.mix.strength <= 0.0 {
        moved.mix.strength = MISSING_ERROR;
        moved.mix.strength_remote = MISSING_ERROR;
        return moved;
    }
    // κ = 1 + k: a share of κ is more than that of k.
    moved.mix.strength += by * (1.0 + moved.mix.strength);
    moved.mix.strength_remote += by * (1.0 + moved.mix.strength_remote);
    moved
}

fn longer(flow: &Workflow, compute: f64, software: f64) -> Workflow {
    let of = |c: &Component| Component {
        compute_s: c.compute_s * (1.0 + compute),
        software_s: c.software_s * (1.0 + software),
        software_remote_s: c.software_remote_s * (1.0 + software),
        ..*c
    };
    Workflow { writer: of(&flow.writer), reader: of(&flow.reader), ..*flow }
}

#[cfg(test)]
mod tests {
    use super::super::device::OURS;
    use super::super::plan::Locality;
    use super::*;
    use forebay_profile::platforms::platform;

    fn inputs(objects: f64, object_bytes: f64) -> Inputs {
        let side = Component {
            ranks: 8.0,
            compute_s: 0.2,
            interleaved: false,
            spread_s: 0.0,
            in_step: true,
            objects,
            object_bytes,
            software_s: 5e-6,
            software_remote_s: 0.0,
            shared: 0.0,
            polling: 0.0,
        };
        let flow = Workflow { versions: 5, writer: side, reader: side, ahead: None };
        Inputs { gather_object_s: 1e-7, gather_byte_s: 1e-10, ..Inputs::new(flow) }
    }

    #[test]
    fn the_bar_grows_with_what_is_not_known() {
        let profile = platform("optane-gen1").unwrap();
        let device = Device::of(&profile, "pmem", &OURS).unwrap();
        let plan = Plan::new(Mode::Parallel, Locality::Writer, "pmem");
        let inputs = inputs(16.0, 64e6);
        let forecast = inputs.forecast(&plan, &device, false);
        assert!(forecast.error_s > 0.0 && forecast.error_s < forecast.time_s, "{forecast:?}");
        let uncertain = Inputs { compute_error: 0.5, ..inputs };
        assert!(uncertain.forecast(&plan, &device, false).error_s > forecast.error_s);
        assert!(!forecast.extrapolated && forecast.dram_bytes == 0.0);
        let many = Inputs {
            flow: Workflow { writer: Component { ranks: 64.0, ..inputs.flow.writer }, ..inputs.flow },
            ..inputs
        };
        assert!(many.forecast(&plan, &device, false).extrapolated);
        assert_eq!(forecast.written_bytes, 5.0 * 8.0 * 16.0 * 64e6);
    }

    #[test]
    fn what_is_not_known_of_both_together_counts_while_they_are() {
        let device = Device::of(&platform("optane-gen1").unwrap(), "pmem", &OURS).unwrap();
        let mut uncertain = device.clone();
        uncertain.uncertainty.together = 0.5;
        let inputs = inputs(16.0, 64e6);
        for (mode, meet) in [(Mode::Serial, false), (Mode::SerialPerStep, false), (Mode::Parallel, true)] {
            let plan = Plan::new(mode, Locality::Writer, "pmem");
            let said = predict(&inputs.flow, &device.station, mode, Locality::Writer);
            let bar = |device: &Device| inputs.forecast(&plan, device, false).error_s;
            assert_eq!((said.together_s > 0.0, bar(&uncertain) > bar(&device)), (meet, meet), "{mode}");
            assert!(bar(&uncertain) <= bar(&device).hypot(0.5 * said.together_s) * (1.0 + 1e-9));
        }
    }

    #[test]
    fn who_starts_one_after_the_other_waits_twice() {
        let device = Device::of(&platform("optane-gen1").unwrap(), "pmem", &OURS).unwrap();
        let time = |mode, start_s| {
            let inputs = Inputs { start_s, ..inputs(16.0, 64e6) };
            let forecast = inputs.forecast(&Plan::new(mode, Locality::Writer, "pmem"), &device, false);
            (forecast.time_s, forecast.error_s)
        };
        for (mode, more) in [(Mode::Serial, 5.0), (Mode::SerialPerStep, 3.0), (Mode::Parallel, 3.0)] {
            let (at_once, late) = (time(mode, [0.0; 2]), time(mode, [2.0, 3.0]));
            assert!((late.0 - at_once.0 - more).abs() < 1e-9, "{mode}");
            assert!(late.1 > at_once.1);
        }
    }

    #[test]
    fn batching_pays_for_small_objects_and_takes_memory() {
        let profile = platform("optane-gen1").unwrap();
        let device = Device::of(&profile, "pmem", &OURS).unwrap();
        let each = Plan::new(Mode::Serial, Locality::Writer, "pmem");
        let batched = Plan { batching: Some(1 << 20), ..each.clone() };
        let small = inputs(100_000.0, 2048.0);
        let (one, many) = (small.forecast(&each, &device, false), small.forecast(&batched, &device, false));
        assert!(many.time_s < one.time_s, "{} {}", many.time_s, one.time_s);
        assert_eq!(many.dram_bytes, 8.0 * 1048576.0);
        assert!((many.written_bytes / one.written_bytes - 1.0).abs() < 1e-9);
        // Who gathers as slowly as he puts, into a tier that does not mind small objects, gains nothing.
        let slow = Inputs { gather_object_s: 50e-6, ..small };
        assert!(slow.forecast(&batched, &device, false).time_s > one.time_s);
        let large = inputs(16.0, 64e6);
        let same = (large.forecast(&each, &device, true), large.forecast(&batched, &device, true));
        assert_eq!(same.0.time_s, same.1.time_s);
        assert!(same.0.dram_bytes > 0.0);
    }
}
