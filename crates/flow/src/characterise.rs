//! What one step of a component is made of, from the traces of its ranks: the input of the model.
//!
//! Pure. The bounds of steps are the ends of the steps on the declared channel with the most of them; what lies
//! between two of them and was neither a call nor a wait on a declared channel is compute, exchange among the ranks of
//! the component included. The first step has no begin that a trace knows, so that it counts for bytes and calls only.
//! Times of calls are those in which others may have been at work too: a component that ran alone is the one to ask
//! (`forebay run --only`).

use serde::{Deserialize, Serialize};

use crate::trace::{Side, Trace, Traces};
use crate::workflow::Component;

/// One step of one rank of a component, on average over ranks and steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerStep {
    /// Ranks that left a trace.
    pub ranks: u32,
    /// Steps of a rank.
    pub steps: u64,
    /// Seconds outside of calls.
    pub compute_s: f64,
    /// Standard deviation of that, over ranks and steps.
    pub compute_deviation_s: f64,
    /// Seconds blocked: for data, for free space, for a turn.
    pub wait_s: f64,
    /// What it writes.
    pub writes: Moved,
    /// What it reads.
    pub reads: Moved,
    /// Share of calls in calls and compute together, 0 to 1.
    pub io_index: f64,
    /// Seconds from a rank's start to its first step, without computing; 0 where it is unknown.
    #[serde(default)]
    pub start_s: f64,
}

/// What one step of one rank moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Objects.
    pub objects: f64,
    /// Payload bytes.
    pub bytes: f64,
    /// Seconds inside calls, without waiting.
    pub call_s: f64,
    /// Seconds inside calls for each object: software and transfer together; 0 without objects.
    pub call_s_per_object: f64,
}

/// The summary of a component; `None` where no rank ended two steps on a declared channel.
pub fn characterise(component: &Component, traces: &Traces) -> Option<PerStep> {
    let declared: Vec<&Trace> = traces.of(&component.name).filter(|t| is_declared(component, t)).collect();
    let mut who: Vec<(u32, u32)> = declared.iter().map(|t| (t.header.rank, t.header.pid)).collect();
    who.sort_unstable();
    who.dedup();
    let mut computes: Vec<f64> = Vec::new();
    let (mut ranks, mut steps) = (0u32, 0u64);
    for (rank, pid) in who {
        let own: Vec<&Trace> =
            declared.iter().copied().filter(|t| (t.header.rank, t.header.pid) == (rank, pid)).collect();
        let Some(longest) = own.iter().max_by_key(|t| t.steps.len()).filter(|t| t.steps.len() > 1) else {
            continue;
        };
        ranks += 1;
        steps += longest.steps.len() as u64;
        computes.extend(computes_of(longest, &own));
    }
    if computes.is_empty() {
        return None;
    }
    let compute_s = mean(&computes);
    let spread = computes.iter().map(|c| (c - compute_s).powi(2)).sum::<f64>() / computes.len() as f64;
    let side = |side| moved(declared.iter().copied().filter(|t| t.header.side == side), steps);
    let (writes, reads) = (side(Side::Write), side(Side::Read));
    let wait_ns: u64 = declared.iter().map(|t| t.totals().wait_ns).sum();
    let call_s = writes.call_s + reads.call_s;
    Some(PerStep {
        ranks,
        steps: steps / u64::from(ranks),
        compute_s,
        compute_deviation_s: spread.sqrt(),
        wait_s: wait_ns as f64 / 1e9 / steps as f64,
        writes,
        reads,
        io_index: if call_s > 0.0 { call_s / (call_s + compute_s) } else { 0.0 },
        start_s: 0.0,
    })
}

/// Seconds from the start of ranks (number and time, ns) to the first step of each, on average: what a run takes until
/// they are under way. Who writes computes before that, and who only reads waits inside it.
pub fn start_s(component: &Component, traces: &Traces, step: &PerStep, starts: &[(u32, u64)]) -> f64 {
    let declared: Vec<&Trace> = traces.of(&component.name).filter(|t| is_declared(component, t)).collect();
    let computes_s = if component.writes.is_empty() { 0.0 } else { step.compute_s };
    let of_rank = |(rank, start_ns): &(u32, u64)| {
        let own = declared.iter().filter(|t| t.header.rank == *rank);
        let first = own.filter_map(|t| t.steps.first()).map(|s| s.begin_ns).min()?;
        Some((first.saturating_sub(*start_ns) as f64 / 1e9 - computes_s).max(0.0))
    };
    let all: Vec<f64> = starts.iter().filter_map(of_rank).collect();
    if all.is_empty() {
        return 0.0;
    }
    mean(&all)
}

fn is_declared(component: &Component, trace: &Trace) -> bool {
    let list = match trace.header.side {
        Side::Write => &component.writes,
        Side::Read => &component.reads,
    };
    list.contains(&trace.header.channel) && !trace.steps.is_empty()
}

/// Seconds of compute in each step of a rank but the first.
fn computes_of<'a>(bounds: &'a Trace, own: &'a [&Trace]) -> impl Iterator<Item = f64> + 'a {
    bounds.steps.windows(2).map(move |pair| {
        let (from, to) = (pair[0].end_ns, pair[1].end_ns);
        let inside = own.iter().flat_map(|t| &t.steps).filter(|s| from < s.end_ns && s.end_ns <= to);
        let busy: u64 = inside.map(|s| s.op_ns + s.wait_ns).sum();
        to.saturating_sub(from).saturating_sub(busy) as f64 / 1e9
    })
}

fn moved<'a>(traces: impl Iterator<Item = &'a Trace>, steps: u64) -> Moved {
    let (mut objects, mut bytes, mut op_ns) = (0u64, 0u64, 0u64);
    for step in traces.flat_map(|t| &t.steps) {
        objects += step.objects;
        bytes += step.bytes;
        op_ns += step.op_ns;
    }
    let per_step = |sum: f64| sum / steps as f64;
    Moved {
        objects: per_step(objects as f64),
        bytes: per_step(bytes as f64),
        call_s: per_step(op_ns as f64 / 1e9),
        call_s_per_object: if objects > 0 { op_ns as f64 / 1e9 / objects as f64 } else { 0.0 },
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Header, Step, SCHEMA};
    use crate::workflow::Workflow;
    use std::path::Path;

    fn trace(rank: u32, channel: &str, side: Side, steps: Vec<Step>) -> Trace {
        let header = Header {
            schema: SCHEMA.into(),
            component: "ana".into(),
            rank,
            size: 2,
            channel: channel.into(),
            side,
            pid: 100 + rank,
            clock_ns: None,
            placement: None,
            execution_mode: None,
        };
        Trace { header, steps, truncated: false }
    }

    /// Steps of a pitch, in ms, that end so long after each other; the rest of a pitch is compute.
    fn steps(count: u64, pitch: u64, (wait, op): (u64, u64), objects: u64) -> Vec<Step> {
        let ms = 1_000_000;
        let step = |version: u64| {
            let end_ns = (1000 + (version + 1) * pitch) * ms;
            let begin_ns = end_ns - (wait + op) * ms;
            let ready_ns = begin_ns + wait * ms;
            let (wait_ns, op_ns, bytes) = (wait * ms, op * ms, objects * 64);
            Step { version, begin_ns, ready_ns, end_ns, wait_ns, op_ns, bytes, calls: 1, objects }
        };
        (0..count).map(step).collect()
    }

    fn component() -> Component {
        let text = "forebay = 1\n[workflow]\nname = \"w\"\n[channel.u]\n[channel.v]\n\
             [[component]]\nname = \"sim\"\ncommand = [\"true\"]\nwrites = [\"u\"]\n\
             [[component]]\nname = \"ana\"\ncommand = [\"true\"]\nranks = 2\nreads = [\"u\"]\nwrites = [\"v\"]\n";
        Workflow::parse(Path::new("w.toml"), Path::new("/"), text).unwrap().components.remove(1)
    }

    #[test]
    fn compute_is_what_is_neither_call_nor_wait() {
        let traces = Traces {
            all: vec![
                // 100 ms: 30 waiting and 10 reading, 20 writing, 40 computing.
                trace(0, "u", Side::Read, steps(5, 100, (30, 10), 2)),
                trace(0, "v", Side::Write, steps(5, 100, (0, 20), 10)),
                // 60 computing.
                trace(1, "u", Side::Read, steps(5, 100, (10, 10), 2)),
                trace(1, "v", Side::Write, steps(5, 100, (0, 20), 10)),
                // Private to the component: computing.
                trace(0, "halo", Side::Write, steps(50, 10, (1, 2), 1)),
            ],
            skipped: Vec::new(),
        };
        let found = characterise(&component(), &traces).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        assert_eq!((found.ranks, found.steps), (2, 5));
        near(found.compute_s, 0.050);
        near(found.compute_deviation_s, 0.010);
        near(found.wait_s, 0.020);
        near(found.reads.objects, 2.0);
        near(found.reads.bytes, 128.0);
        near(found.writes.objects, 10.0);
        near(found.writes.call_s, 0.020);
        near(found.writes.call_s_per_object, 0.002);
        near(found.io_index, 0.030 / 0.080);
    }

    #[test]
    fn ranks_are_under_way_when_their_first_step_begins() {
        let traces = Traces {
            all: vec![
                trace(0, "u", Side::Read, steps(5, 100, (30, 10), 2)),
                trace(1, "u", Side::Read, steps(5, 100, (10, 10), 2)),
            ],
            skipped: Vec::new(),
        };
        let mut reads = component();
        let found = characterise(&reads, &traces).unwrap();
        // First steps begin at 1060 and 1080 ms.
        let starts = [(0, 1_000_000_000), (1, 1_000_000_000), (2, 0)];
        let said = |component: &Component| start_s(component, &traces, &found, &starts);
        let each = [0.060, 0.080].map(|start: f64| (start - found.compute_s).max(0.0));
        assert!((said(&reads) - (each[0] + each[1]) / 2.0).abs() < 1e-9, "it writes too");
        reads.writes.clear();
        assert!((said(&reads) - 0.070).abs() < 1e-9);
        assert_eq!(start_s(&reads, &Traces::default(), &found, &starts), 0.0);
    }

    #[test]
    fn one_step_tells_nothing() {
        let one =
            Traces { all: vec![trace(0, "u", Side::Read, steps(1, 100, (0, 1), 1))], skipped: Vec::new() };
        assert_eq!(characterise(&component(), &one), None);
        assert_eq!(characterise(&component(), &Traces::default()), None);
    }
}
