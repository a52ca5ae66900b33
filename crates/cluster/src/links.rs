//! How fast the connections between the nodes of a job are: `forebay agent links` asks, and the agents measure.
//!
//! The command writes a request into the folder of the job. Each agent reads from all others, one after the other,
//! beginning with the node after its own, so that no node serves all at once, and writes what it found.
//!
//! Guarantees: what is measured travels as versions do (the same requests, parts, checksums, encryption); each
//! connection takes a limited time; a newer request ends an older one; the command leaves no file in the folder unless
//! it is killed, and `forebay agent stop` removes those.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_config::format_bytes;
use forebay_space::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;
use zenoh::bytes::ZBytes;

use crate::link::Link;
use crate::message::{Ask, PART_BYTES_MAX};
use crate::pull::{Pull, What};
use crate::rendezvous::{links_file, Rendezvous, LINKS_FILE};

/// Requests of which each waits for the answer to the one before.
const TRIPS: usize = 50;
/// Bytes of such an answer.
const TRIP_BYTES: u64 = 8;
/// What has not been read after this long is not read.
const TRANSFER_MAX: Duration = Duration::from_secs(5);
/// A part that does not come within this time, beyond the lease, is lost.
const PART_TIMEOUT: Duration = Duration::from_secs(10);
/// The command looks so often what the agents have written, and says so often how far they are.
const POLL: Duration = Duration::from_millis(50);
const SAID_EVERY: Duration = Duration::from_secs(5);
/// A file that is missing in two looks so far apart was removed.
const GAP: Duration = Duration::from_secs(1);
/// Below this part of the bandwidth that a quarter of the connections reach, or above this multiple of the latency of
/// the fastest quarter, a connection is slow. Of three nodes one slow node has most of the connections.
const SLOW_BANDWIDTH: f64 = 0.5;
const SLOW_LATENCY: f64 = 4.0;
/// Fewer connections are not compared.
const COMPARED_MIN: usize = 3;

/// What the command wants; in [`LINKS_FILE`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Wanted {
    /// Which request it is.
    id: String,
    /// Bytes to read from each node.
    bytes: u64,
}

/// What an agent has measured so far; in `NODE.links`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measurements {
    /// Which request they answer.
    id: String,
    links: Vec<Measurement>,
}

/// One connection, as the node measured that reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Measurement {
    /// The node that sends.
    from: String,
    /// The node that reads.
    to: String,
    /// Median time of a request of 8 bytes and its answer, µs.
    latency_us: Option<f64>,
    /// The longest one.
    latency_max_us: Option<f64>,
    /// Bytes that were read.
    bytes: u64,
    /// Of these per second.
    bytes_per_s: Option<f64>,
    /// Why it was not measured.
    error: Option<String>,
}

/// Bytes to send to an agent that measures.
pub fn probe(bytes: u64) -> ZBytes {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        (0..PART_BYTES_MAX as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    });
    ZBytes::from(pattern[..(bytes.min(PART_BYTES_MAX)) as usize].to_vec())
}

/// The measurement of an agent that was requested last.
#[derive(Default)]
pub struct Measuring {
    id: String,
}

impl Measuring {
    /// Begins what is wanted and has not begun yet, on a thread of its own; whether something was begun.
    pub fn look(&mut self, at: &Rendezvous, link: &Arc<Link>, node: &str, nodes: &[String]) -> bool {
        let Some(wanted) = wanted(at).filter(|wanted| wanted.id != self.id) else { return false };
        self.id.clone_from(&wanted.id);
        let (at, link, node, others) = (at.clone(), link.clone(), node.to_string(), in_turn(node, nodes));
        std::thread::spawn(move || {
            if let Err(e) = measure_all(&at, &link, &node, &others, &wanted) {
                say!("forebay-agent: cannot measure the connections: {e}");
            }
        });
        true
    }
}

/// What is wanted now.
fn wanted(at: &Rendezvous) -> Option<Wanted> {
    at.has(LINKS_FILE).then(|| serde_json::from_str(&at.read(LINKS_FILE).ok()?).ok())?
}

/// Whether another command has asked meanwhile.
fn is_superseded(at: &Rendezvous, wanted: &Wanted) -> bool {
    self::wanted(at).is_some_and(|now| now != *wanted)
}

/// Whether the command is gone that asked, or another one has asked. Network file systems have gaps.
fn is_over(at: &Rendezvous, wanted: &Wanted) -> bool {
    let is_gone = || self::wanted(at).is_none();
    is_superseded(at, wanted)
        || (is_gone() && {
            std::thread::sleep(GAP);
            is_gone()
        })
}

/// The other nodes, beginning with the one after `node`.
fn in_turn(node: &str, nodes: &[String]) -> Vec<String> {
    let mut sorted = nodes.to_vec();
    sorted.sort();
    let own = sorted.iter().position(|known| known == node).unwrap_or(0);
    sorted.rotate_left(own);
    sorted.retain(|known| known != node);
    sorted
}

fn measure_all(at: &Rendezvous, link: &Link, node: &str, others: &[String], wanted: &Wanted) -> Result<()> {
    let mut found = Measurements { id: wanted.id.clone(), links: Vec::new() };
    for from in others {
        let measured = measure(link, from, wanted.bytes);
        if at.is_stopping() || is_over(at, wanted) {
            return Ok(());
        }
        found.links.push(measured.map_or_else(
            |error| Measurement::failed(from, node, error.message()),
            |(trips, bytes, seconds)| Measurement {
                from: from.clone(),
                to: node.to_string(),
                latency_us: Some(trips[trips.len() / 2].as_secs_f64() * 1e6),
                latency_max_us: trips.last().map(|longest| longest.as_secs_f64() * 1e6),
                bytes,
                bytes_per_s: (seconds > 0.0).then(|| bytes as f64 / seconds),
                error: None,
            },
        ));
        let text = serde_json::to_vec(&found).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
        at.write(&links_file(node), &text)?;
    }
    Ok(())
}

/// Times of requests in order, then bytes and seconds of a transfer.
fn measure(link: &Link, from: &str, bytes: u64) -> Result<(Vec<Duration>, u64, f64)> {
    let within = PART_TIMEOUT + link.lease;
    let trip = |_| -> Result<Duration> {
        let begin = Instant::now();
        link.ask_bytes(from, Ask::Probe { bytes: TRIP_BYTES }, within)?.bytes(from, TRIP_BYTES, within)?;
        Ok(begin.elapsed())
    };
    // The first one wakes the threads.
    trip(0)?;
    let mut trips: Vec<Duration> = (0..TRIPS).map(trip).collect::<Result<_>>()?;
    trips.sort();
    let mut pull = Pull::new(link, from, What::Probe, bytes, within);
    let (begin, mut came) = (Instant::now(), 0);
    while came < bytes && begin.elapsed() < TRANSFER_MAX {
        came += pull.next_part()?.len() as u64;
    }
    let seconds = begin.elapsed().as_secs_f64();
    // What is still on its way would delay the requests of the next measurement.
    pull.drain();
    Ok((trips, came, seconds))
}

impl Measurement {
    fn failed(from: &str, to: &str, error: &str) -> Measurement {
        Measurement {
            from: from.to_string(),
            to: to.to_string(),
            latency_us: None,
            latency_max_us: None,
            bytes: 0,
            bytes_per_s: None,
            error: Some(error.to_string()),
        }
    }

    /// Whether it is much slower than the others, whose quartiles are given.
    fn is_slow(&self, quartiles: Option<(f64, f64)>) -> bool {
        let Some((latency_us, bytes_per_s)) = quartiles else { return false };
        self.latency_us.is_some_and(|own| own > SLOW_LATENCY * latency_us)
            || self.bytes_per_s.is_some_and(|own| own < SLOW_BANDWIDTH * bytes_per_s)
    }
}

/// Latency and bandwidth that the fastest quarter of the connections has at least.
fn quartiles(links: &[Measurement]) -> Option<(f64, f64)> {
    let sorted = |of: fn(&Measurement) -> Option<f64>| {
        let mut all: Vec<f64> = links.iter().filter_map(of).collect();
        all.sort_by(f64::total_cmp);
        (all.len() >= COMPARED_MIN).then_some(all)
    };
    let latencies = sorted(|link| link.latency_us)?;
    let bandwidths = sorted(|link| link.bytes_per_s)?;
    Some((latencies[latencies.len() / 4], bandwidths[bandwidths.len() * 3 / 4]))
}

/// `forebay agent links`: asks the agents of the job in `folder`, waits for them and prints what they measured.
///
/// # Errors
/// [`Kind::PeerMissing`]: some connections could not be measured; [`Kind::TimedOut`]: agents did not end by the
/// deadline. What was measured is printed before. [`Kind::NameInUse`]: another measurement began.
pub fn run(
    folder: &Path,
    bytes: u64,
    is_json: bool,
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Result<()> {
    if bytes == 0 {
        return Err(Error::new(Kind::Usage, "--bytes must be greater than 0"));
    }
    let at = Rendezvous::open(folder)?;
    let wanted = Wanted { id: Uuid::new_v4().simple().to_string(), bytes };
    let text = serde_json::to_vec(&wanted).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
    at.write(LINKS_FILE, &text)?;
    let waited = wait_for(&at, &wanted, Instant::now() + timeout, is_over);
    let links = all_links(&at, &wanted);
    // Those of a newer request are its own.
    if !is_superseded(&at, &wanted) {
        at.remove(LINKS_FILE);
        at.all_nodes().iter().for_each(|node| at.remove(&links_file(node)));
    }
    let is_printed = waited.as_ref().map_or_else(|error| error.kind() == Kind::TimedOut, |()| true);
    if is_printed {
        print(&at, &links, is_json);
    }
    waited?;
    match links.iter().filter(|link| link.error.is_some()).count() {
        0 => Ok(()),
        failed => {
            Err(Error::new(Kind::PeerMissing, format!("{failed} of {} connections failed", links.len()))
                .hint("`forebay agent status` shows which agents run; see NODE.log in the folder of the job"))
        }
    }
}

/// What the agent of a node has measured for this request.
fn measured(at: &Rendezvous, node: &str, wanted: &Wanted) -> Vec<Measurement> {
    let file = links_file(node);
    if !at.has(&file) {
        return Vec::new();
    }
    let found: Option<Measurements> = at.read(&file).ok().and_then(|text| serde_json::from_str(&text).ok());
    found.filter(|found| found.id == wanted.id).map(|found| found.links).unwrap_or_default()
}

/// Until all agents that live have measured.
fn wait_for(at: &Rendezvous, wanted: &Wanted, deadline: Instant, is_over: impl Fn() -> bool) -> Result<()> {
    let others = at.all_nodes().len() - 1;
    let mut said_at = Instant::now();
    loop {
        let mut waiting = Vec::new();
        let mut count = 0;
        for node in at.all_nodes() {
            let links = measured(at, node, wanted).len();
            count += links;
            if links < others && at.may_live(node) {
                waiting.push(node.as_str());
            }
        }
        if waiting.is_empty() {
            return Ok(());
        }
        if is_over() {
            return Err(Error::new(Kind::TimedOut, "interrupted before all connections were measured"));
        }
        if is_superseded(at, wanted) {
            return Err(Error::new(Kind::NameInUse, "another measurement of this job began")
                .with("folder", at.path().display())
                .hint("run one `forebay agent links` at a time"));
        }
        if Instant::now() >= deadline {
            return Err(Error::new(Kind::TimedOut, "some agents did not end their measurements in time")
                .with("nodes", waiting.join(", "))
                .hint("use a longer --timeout, or see NODE.log in the folder of the job"));
        }
        if said_at.elapsed() >= SAID_EVERY {
            said_at = Instant::now();
            say!("forebay-agent: {count} of {} connections measured", others * (others + 1));
        }
        std::thread::sleep(POLL);
    }
}

/// All connections of the job in order, also those that were not measured.
fn all_links(at: &Rendezvous, wanted: &Wanted) -> Vec<Measurement> {
    let mut nodes = at.all_nodes().to_vec();
    nodes.sort();
    let mut links = Vec::new();
    for to in &nodes {
        let found = measured(at, to, wanted);
        let mut found: BTreeMap<String, Measurement> =
            found.into_iter().map(|link| (link.from.clone(), link)).collect();
        for from in nodes.iter().filter(|from| *from != to) {
            let missing =
                || Measurement::failed(from, to, &format!("the agent of node {to} did not measure it"));
            links.push(found.remove(from).unwrap_or_else(missing));
        }
    }
    links
}

fn print(at: &Rendezvous, links: &[Measurement], is_json: bool) {
    let quartiles = quartiles(links);
    if is_json {
        let links: Vec<_> = links
            .iter()
            .map(|link| {
                let mut value = json!(link);
                value["slow"] = json!(link.is_slow(quartiles));
                value
            })
            .collect();
        println!("{}", json!({ "schema": "forebay.links/1", "job": at.job(), "links": links }));
        return;
    }
    let wide = |head: &str, of: fn(&Measurement) -> &String| {
        links.iter().map(|link| of(link).len()).chain([head.len()]).max().unwrap_or(0)
    };
    let (from, to) = (wide("FROM", |link| &link.from), wide("TO", |link| &link.to));
    println!("{:<from$}  {:<to$}  {:>10}  {:>10}  {:>12}", "FROM", "TO", "LATENCY", "MAX", "BANDWIDTH");
    for link in links {
        let time = |us: Option<f64>| us.map_or(String::from("-"), |us| format!("{us:.0} µs"));
        let rate = |rate: Option<f64>| {
            rate.map_or(String::from("-"), |rate| format!("{}/s", format_bytes(rate as u64)))
        };
        let note = match &link.error {
            Some(error) => format!("  {error}"),
            None if link.is_slow(quartiles) => "  slow".to_string(),
            None => String::new(),
        };
        println!(
            "{:<from$}  {:<to$}  {:>10}  {:>10}  {:>12}{note}",
            link.from,
            link.to,
            time(link.latency_us),
            time(link.latency_max_us),
            rate(link.bytes_per_s),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(from: &str, latency_us: f64, bytes_per_s: f64) -> Measurement {
        Measurement {
            latency_us: Some(latency_us),
            latency_max_us: Some(latency_us),
            bytes: 1,
            bytes_per_s: Some(bytes_per_s),
            error: None,
            ..Measurement::failed(from, "n9", "")
        }
    }

    #[test]
    fn each_node_begins_with_the_one_after_it() {
        let nodes = ["n2", "n0", "n1"].map(str::to_string);
        assert_eq!(in_turn("n0", &nodes), ["n1", "n2"]);
        assert_eq!(in_turn("n1", &nodes), ["n2", "n0"]);
        assert_eq!(in_turn("n2", &nodes), ["n0", "n1"]);
    }

    #[test]
    fn a_slow_connection_is_told_from_the_others() {
        let links = [
            link("n0", 100.0, 1e9),
            link("n1", 90.0, 1.1e9),
            link("n2", 401.0, 1e9),
            link("n3", 100.0, 4.9e8),
            Measurement::failed("n4", "n9", "lost"),
        ];
        let slow: Vec<bool> = links.iter().map(|link| link.is_slow(quartiles(&links))).collect();
        assert_eq!(slow, [false, false, true, true, false]);
        assert!(quartiles(&links[..2]).is_none(), "two connections cannot be compared");
        // One slow node of three.
        let links = [1e9, 1e8, 1e9, 1e8, 1e8, 1e8].map(|rate| link("n0", 100.0, rate));
        assert_eq!(links.iter().filter(|link| link.is_slow(quartiles(&links))).count(), 4);
    }

    #[test]
    fn no_more_than_a_part_is_sent() {
        assert_eq!(probe(TRIP_BYTES).len(), 8);
        assert_eq!(probe(PART_BYTES_MAX + 1).len() as u64, PART_BYTES_MAX);
    }
}
