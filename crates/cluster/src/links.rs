//! How fast the connections between the nodes of a job are: `forebay agent links` asks, and the agents measure.
//!
//! The command writes a request into the folder of the job. Each agent reads from all others, one after the other,
//! beginning with the node after its own, so that no node serves all at once, and writes what it found.
//!
//! Guarantees: what is measured travels as versions do (the same connections, parts, checksums, encryption); each
//! connection takes a limited time; a newer request ends an older one, and an agent measures for one at a time. The
//! command removes its files. What an agent writes after that it removes itself; what a killed command leaves,
//! `forebay agent stop` removes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use forebay_config::format_bytes;
use forebay_space::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use crate::link::Link;
use crate::message::Ask;
use crate::pull::Source;
use crate::rendezvous::{links_file, Absence, Rendezvous, LINKS_FILE};
use crate::wire::PART_BYTES_MAX;

/// Requests of which each waits for the answer to the one before.
const TRIPS: usize = 50;
/// On a slow connection there are as many as fit into this time.
const TRIPS_MAX: Duration = Duration::from_secs(5);
/// Bytes of such an answer.
const TRIP_BYTES: usize = 8;
/// With less data the time is that of the request.
const BYTES_MIN: u64 = 1 << 20;
/// What has not been read after this long is not read.
const TRANSFER_MAX: Duration = Duration::from_secs(5);
/// A part that does not come within this time, beyond the lease, is lost.
const PART_TIMEOUT: Duration = Duration::from_secs(10);
/// The command looks so often what the agents have written, and says so often how far they are.
const POLL: Duration = Duration::from_millis(100);
const SAID_EVERY: Duration = Duration::from_secs(5);
/// A request that is missing in checks so far apart was removed.
const GONE: Duration = Duration::from_secs(5);
/// An agent that has not written its status for so long is gone or stands still.
const STILL: Duration = Duration::from_secs(15);
/// The last results are written so often, so far apart, if the folder cannot be written.
const WRITES_MAX: u32 = 10;
const BEFORE_WRITE: Duration = Duration::from_secs(1);
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

/// Bytes to send to an agent that measures, [`PART_BYTES_MAX`] of them.
pub fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        (0..PART_BYTES_MAX as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    })
}

/// The measurement of an agent that was requested last.
#[derive(Default)]
pub struct Measuring {
    id: String,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// How long there has been no request.
    absence: Absence,
}

impl Measuring {
    /// Begins what is wanted and has not begun yet, on a thread of its own, and ends what is not wanted any more.
    pub fn look(&mut self, at: &Rendezvous, link: &Arc<Link>, node: &str, nodes: &[String]) {
        let wanted = wanted(at);
        if self.absence.note(wanted.is_some(), Instant::now()) > GONE {
            self.is_over.store(true, Relaxed);
            if !self.is_running() && at.has(&links_file(node)) {
                // It was written when the command had ended.
                at.remove(&links_file(node));
            }
        }
        let Some(wanted) = wanted.filter(|wanted| wanted.id != self.id) else { return };
        self.id.clone_from(&wanted.id);
        self.is_over.store(true, Relaxed);
        self.is_over = Arc::default();
        let before = self.thread.take();
        let (at, link, node, others) = (at.clone(), link.clone(), node.to_string(), in_turn(node, nodes));
        let is_over = self.is_over.clone();
        self.thread = Some(std::thread::spawn(move || {
            // Two at once would measure each other.
            before.map(JoinHandle::join);
            measure_all(&at, &link, &node, &others, &wanted, &is_over);
        }));
    }

    /// Whether it measures now.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends what is measured; it may run on for as long as an answer may take.
    pub fn end(&self) {
        self.is_over.store(true, Relaxed);
    }
}

/// What is wanted now.
fn wanted(at: &Rendezvous) -> Option<Wanted> {
    let wanted: Option<Wanted> =
        at.has(LINKS_FILE).then(|| serde_json::from_str(&at.read(LINKS_FILE).ok()?).ok())?;
    wanted.filter(|wanted| wanted.bytes >= BYTES_MIN)
}

/// Whether another command has asked meanwhile. Network file systems have gaps: what is missing says nothing.
fn is_superseded(at: &Rendezvous, wanted: &Wanted) -> bool {
    self::wanted(at).is_some_and(|now| now != *wanted)
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

fn measure_all(
    at: &Rendezvous,
    link: &Arc<Link>,
    node: &str,
    others: &[String],
    wanted: &Wanted,
    is_over: &Arc<AtomicBool>,
) {
    let mut found = Measurements { id: wanted.id.clone(), links: Vec::new() };
    for from in others {
        let measured = measure(link, from, wanted.bytes, is_over);
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
        // What cannot be written now is written with the next one; the last one is tried again.
        for tries in 1.. {
            if is_over.load(Relaxed) {
                return;
            }
            match write(at, node, &found) {
                Err(e) if found.links.len() == others.len() && tries < WRITES_MAX => {
                    say!("forebay-agent: writing the measurements again: {e}");
                    std::thread::sleep(BEFORE_WRITE);
                }
                _ => break,
            }
        }
    }
}

fn write(at: &Rendezvous, node: &str, found: &Measurements) -> Result<()> {
    let text = serde_json::to_vec(found).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
    at.write(&links_file(node), &text)
}

/// Times of requests in order, then bytes and seconds of a transfer.
fn measure(
    link: &Arc<Link>,
    from: &str,
    bytes: u64,
    is_over: &Arc<AtomicBool>,
) -> Result<(Vec<Duration>, u64, f64)> {
    let within = PART_TIMEOUT + link.lease;
    let mut source = Source::new(link, from, link.peers.losses(from), is_over);
    let mut trip = || -> Result<Duration> {
        let begin = Instant::now();
        source.send(Ask::Probe { bytes: TRIP_BYTES as u64 }, within)?;
        source.take(&mut [0; TRIP_BYTES], within)?;
        Ok(begin.elapsed())
    };
    // The first one wakes the threads.
    trip()?;
    let mut trips = Vec::new();
    let begin = Instant::now();
    while trips.is_empty() || (trips.len() < TRIPS && begin.elapsed() < TRIPS_MAX) {
        trips.push(trip()?);
    }
    trips.sort();
    let mut out = vec![0; PART_BYTES_MAX];
    let (begin, mut came) = (Instant::now(), 0);
    source.send(Ask::Probe { bytes }, within)?;
    while came == 0 || (came < bytes && begin.elapsed() < TRANSFER_MAX) {
        came += source.take(&mut out, within)? as u64;
    }
    // What is still on its way ends with the connection.
    Ok((trips, came, begin.elapsed().as_secs_f64()))
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
/// deadline. What was measured is printed before. [`Kind::NameInUse`]: another measurement began. [`Kind::Usage`].
pub fn run(
    folder: &Path,
    bytes: u64,
    is_json: bool,
    timeout: Duration,
    is_over: impl Fn() -> bool,
) -> Result<()> {
    if bytes < BYTES_MIN {
        return Err(Error::new(Kind::Usage, format!("--bytes must be at least {}", format_bytes(BYTES_MIN))));
    }
    let at = Rendezvous::open(folder)?;
    if at.all_nodes().len() < 2 {
        return Err(Error::new(Kind::Usage, "a job of one node has no connections"));
    }
    let wanted = Wanted { id: Uuid::new_v4().simple().to_string(), bytes };
    let text = serde_json::to_vec(&wanted).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
    at.write(LINKS_FILE, &text)?;
    let mut found = Found::default();
    let waited = wait_for(&at, &wanted, &mut found, Instant::now() + timeout, is_over);
    // Those of a newer request are its own.
    if !is_superseded(&at, &wanted) {
        at.remove(LINKS_FILE);
        at.all_nodes().iter().for_each(|node| at.remove(&links_file(node)));
    }
    let links = all_links(&at, found);
    let is_printed = waited.as_ref().map_or_else(|error| error.kind() == Kind::TimedOut, |()| true);
    if is_printed {
        print(&at, &links, is_json)?;
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

/// What each node has measured so far.
type Found = BTreeMap<String, Vec<Measurement>>;

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
fn wait_for(
    at: &Rendezvous,
    wanted: &Wanted,
    found: &mut Found,
    deadline: Instant,
    is_over: impl Fn() -> bool,
) -> Result<()> {
    let others = at.all_nodes().len() - 1;
    let mut lives = Lives::default();
    let mut said_at = Instant::now();
    loop {
        let mut waiting = Vec::new();
        for node in at.all_nodes() {
            let known = found.entry(node.clone()).or_default();
            if known.len() == others {
                continue;
            }
            let now = measured(at, node, wanted);
            if now.len() > known.len() {
                *known = now;
            }
            if known.len() < others && lives.look(at, node) {
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
            let count: usize = found.values().map(Vec::len).sum();
            say!("forebay-agent: {count} of {} connections measured", others * (others + 1));
        }
        std::thread::sleep(POLL);
    }
}

/// Which agents live, by the clock of this process alone: those of the nodes and of the file system may differ.
#[derive(Default)]
struct Lives(BTreeMap<String, (Option<SystemTime>, Instant)>);

impl Lives {
    /// Whether the agent of a node has written its status within [`STILL`].
    fn look(&mut self, at: &Rendezvous, node: &str) -> bool {
        let (written, now) = (at.status_written(node), Instant::now());
        let seen = self.0.entry(node.to_string()).or_insert((written, now));
        if seen.0 != written {
            *seen = (written, now);
        }
        now - seen.1 < STILL
    }
}

/// All connections of the job in order, also those that were not measured.
fn all_links(at: &Rendezvous, mut found: Found) -> Vec<Measurement> {
    let mut nodes = at.all_nodes().to_vec();
    nodes.sort();
    let mut links = Vec::new();
    for to in &nodes {
        let of_node = found.remove(to).unwrap_or_default();
        for from in nodes.iter().filter(|from| *from != to) {
            let measured = of_node.iter().find(|link| link.from == *from).cloned();
            let missing = || format!("the agent of node {to} did not measure it");
            links.push(measured.unwrap_or_else(|| Measurement::failed(from, to, &missing())));
        }
    }
    links
}

fn print(at: &Rendezvous, links: &[Measurement], is_json: bool) -> Result<()> {
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
        let document = json!({ "schema": "forebay.links/1", "job": at.job(), "links": links });
        return crate::print(&format!("{document}\n"));
    }
    let wide = |head: &str, of: fn(&Measurement) -> &String| {
        links.iter().map(|link| of(link).len()).chain([head.len()]).max().unwrap_or(0)
    };
    let (from, to) = (wide("FROM", |link| &link.from), wide("TO", |link| &link.to));
    let mut text =
        format!("{:<from$}  {:<to$}  {:>10}  {:>10}  {:>12}\n", "FROM", "TO", "LATENCY", "MAX", "BANDWIDTH");
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
        text += &format!(
            "{:<from$}  {:<to$}  {:>10}  {:>10}  {:>12}{note}\n",
            link.from,
            link.to,
            time(link.latency_us),
            time(link.latency_max_us),
            rate(link.bytes_per_s),
        );
    }
    crate::print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::Job;

    #[test]
    fn a_request_for_less_than_the_command_asks_is_none() {
        let above = tempfile::tempdir().unwrap();
        let job = Job::new("j", &["n0".to_string(), "n1".to_string()]);
        let at = Rendezvous::make(&above.path().join("job"), &job).unwrap();
        let request = |bytes: u64| {
            at.write(LINKS_FILE, json!({ "id": "x", "bytes": bytes }).to_string().as_bytes()).unwrap();
            wanted(&at).is_some()
        };
        assert_eq!([0, BYTES_MIN - 1, BYTES_MIN, u64::MAX].map(request), [false, false, true, true]);
    }

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
}
