//! `forebay metrics`: what Prometheus collects, as text, as a file that is replaced, or on a loopback port.
//!
//! Guarantees: looks without joining; a file is there whole or not at all, also for a process that reads it meanwhile;
//! nothing is served beyond this machine. A space that goes while it is looked at is left out. It stores nothing: each
//! answer is one look.

mod family;
mod serve;
mod text;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use forebay_flow::Signals;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::command::looks::{gone_everywhere, Looks, NodeLook};
use crate::command::nodes::{is_path, OnNodes};
use crate::command::spaces;
use crate::output::{schema, Output};
use family::{families, families_of_nodes, Family, Value};
use text::{render, Form};

/// A look at several nodes ends within this once it is to.
const END_MAX: Duration = Duration::from_secs(5);

/// Print metrics of spaces for Prometheus, write them to a file, or serve them on a loopback port.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  forebay metrics\n  forebay metrics --textfile /var/lib/node_exporter/forebay.prom \
                  --interval 15\n  forebay metrics --listen 127.0.0.1:9464\n\nWith --interval and --listen it \
                  goes on until it gets a signal. What is served every user of this machine can read."
)]
pub struct Args {
    /// Short names or paths; without any, all spaces below FOREBAY_DIR (not those opened by a path).
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Write this file, for node_exporter's textfile collector; it is replaced whole.
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
    /// Write the file again every S seconds.
    #[arg(long, value_name = "S", requires = "textfile", value_parser = spaces::seconds)]
    interval: Option<Duration>,
    /// Serve GET /metrics here, on loopback only; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    #[command(flatten)]
    on: OnNodes,
}

impl Args {
    /// What it is told that is a path.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.names.iter().filter(is_path).map(PathBuf::from).collect()
    }

    /// The nodes whose documents are printed as they are. Metrics of several nodes as text are those of this command.
    pub(crate) fn on_nodes(&self, out: &Output) -> Option<&OnNodes> {
        let is_printed = self.textfile.is_none() && self.listen.is_none();
        (self.on.is_asked() && is_printed && out.json()).then_some(&self.on)
    }
}

/// What is looked at.
enum Source {
    /// Spaces of this node: these, or all.
    Here(Vec<String>),
    /// Those of all nodes of a job.
    Nodes(Looks),
}

/// What was seen.
#[derive(Default)]
struct Seen {
    families: Vec<Family>,
    /// Of nodes that have not answered.
    errors: Vec<Error>,
    /// Names that no node has.
    gone: Vec<String>,
}

impl Source {
    fn of(args: &Args) -> Result<Source> {
        if args.on.is_asked() {
            return Looks::of(&args.on, &args.names).map(Source::Nodes);
        }
        // A name that is wrong now is a mistake; later the space may just have ended.
        for name in &args.names {
            spaces::glance(name)?;
        }
        Ok(Source::Here(args.names.clone()))
    }

    /// Blocks until each node has answered or was given up, or `is_over`.
    fn look(&self, is_over: &dyn Fn() -> bool) -> Result<Seen> {
        match self {
            Source::Here(names) => {
                Ok(Seen { families: families(&NodeLook::here(names)?), ..Seen::default() })
            }
            Source::Nodes(looks) => {
                let all = looks.take(is_over)?;
                Ok(Seen {
                    families: families_of_nodes(looks.nodes().iter().map(String::as_str).zip(&all)),
                    gone: gone_everywhere(all.iter().flatten()),
                    errors: all.into_iter().filter_map(Result::err).collect(),
                })
            }
        }
    }
}

impl Seen {
    /// The highest exit status of what is wrong, which is said; 0: nothing is.
    fn judge(&self, out: &Output) -> i32 {
        // A document has been printed, or the text.
        out.begin_data();
        let absent = |name| {
            Error::new(
                Kind::PeerMissing,
                format!("space {name} does not exist on any node that has answered"),
            )
            .hint("forebay ls --nodes lists the spaces of all nodes")
        };
        let absent: Vec<Error> = self.gone.iter().map(absent).collect();
        self.errors.iter().chain(&absent).map(|e| out.error(e)).fold(0, i32::max)
    }
}

/// One look at a time for several clients: those that come while one is under way share the next one.
struct Shared {
    source: Source,
    /// When the last look began, and what was seen.
    last: Mutex<Option<(Instant, Arc<Vec<Family>>)>>,
    /// What was said of nodes that do not answer.
    said: Mutex<Vec<String>>,
}

impl Shared {
    fn look(&self, is_over: &dyn Fn() -> bool) -> Result<Vec<Family>> {
        let asked = Instant::now();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, families)) = last.as_ref().filter(|(began, _)| *began >= asked) {
            return Ok(families.to_vec());
        }
        if is_over() {
            return Err(Error::new(Kind::PeerMissing, "forebay metrics ends"));
        }
        let began = Instant::now();
        let Seen { families, errors, .. } = self.source.look(is_over)?;
        if !is_over() {
            say_what_is_new(&self.said, &errors);
        }
        *last = Some((began, Arc::new(families.clone())));
        Ok(families)
    }

    /// Waits for the end of the look that is under way, for as long as the commands of nodes have to end.
    fn wait(&self) {
        let deadline = Instant::now() + END_MAX;
        while matches!(self.last.try_lock(), Err(TryLockError::WouldBlock)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Says why nodes do not answer where that was not said before: this goes on for long, and a log is read by people.
fn say_what_is_new(said: &Mutex<Vec<String>>, errors: &[Error]) {
    let now: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    for error in now.iter().filter(|error| !said.contains(error)) {
        // Where it cannot be said the samples say it.
        let _ = writeln!(std::io::stderr(), "error: {error}");
    }
    *said = now;
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let source = Source::of(args)?;
    match (&args.listen, &args.textfile) {
        (Some(address), _) => listen(address, source, out),
        (None, Some(path)) => write_file(path, args, &source, out),
        (None, None) => {
            let signals = args.on.is_asked().then(Signals::catch).transpose()?;
            let caught = || signals.as_ref().and_then(Signals::caught);
            let seen = source.look(&|| caught().is_some())?;
            if let Some(signal) = caught() {
                return Ok(128 + signal);
            }
            // From here on a signal ends this as it does any verb that prints.
            drop(signals);
            match out.json() {
                true => document(&seen.families, None, None, out)?,
                false => out.text(&render(seen.families.clone(), Form::Prometheus))?,
            }
            out.next("forebay metrics --listen 127.0.0.1:9464, for Prometheus to scrape");
            Ok(seen.judge(out))
        }
    }
}

fn listen(address: &str, source: Source, out: &Output) -> Result<i32> {
    let address = serve::loopback(address)?;
    let signals = Arc::new(Signals::catch()?);
    let shared = Arc::new(Shared { source, last: Mutex::default(), said: Mutex::default() });
    let (caught, looks) = (signals.clone(), shared.clone());
    let answers = move |form| Ok(render(looks.look(&|| caught.caught().is_some())?, form));
    let taken = serve::serve(address, Arc::new(answers))?;
    let url = format!("http://{taken}/metrics");
    match out.json() {
        true => document(&[], None, Some(&url), out)?,
        false => out.text(&format!("{url}\n"))?,
    }
    out.next("Ctrl-C ends it");
    let status = until_signal(&signals, None);
    // What it has started on nodes ends before this process does.
    shared.wait();
    Ok(status)
}

fn write_file(path: &Path, args: &Args, source: &Source, out: &Output) -> Result<i32> {
    let is_long = args.interval.is_some() || args.on.is_asked();
    let signals = is_long.then(Signals::catch).transpose()?;
    let caught = || signals.as_ref().and_then(Signals::caught);
    let write = || {
        let seen = source.look(&|| caught().is_some())?;
        // What nodes have not answered for that reason is not written.
        if caught().is_none() {
            replace(path, &render(seen.families.clone(), Form::Prometheus))?;
        }
        Ok(seen)
    };
    let seen = write()?;
    if let Some(signal) = caught() {
        return Ok(128 + signal);
    }
    if out.json() {
        document(&[], Some(path), None, out)?;
    }
    if path.extension().is_none_or(|e| e != "prom") {
        out.next("node_exporter reads only files that end in .prom");
    }
    let status = seen.judge(out);
    let (Some(signals), Some(interval)) = (&signals, args.interval) else { return Ok(status) };
    let said = Mutex::new(seen.errors.iter().map(ToString::to_string).collect());
    let mut due = Instant::now();
    loop {
        // A late file is not made up for by writing faster.
        due = (due + interval).max(Instant::now());
        let status = until_signal(signals, Some(due));
        if status != 0 {
            return Ok(status);
        }
        let seen = write()?;
        if signals.caught().is_none() {
            say_what_is_new(&said, &seen.errors);
        }
    }
}

/// Sleeps until then, or for ever, or until a signal: the exit status that it means, else 0.
fn until_signal(signals: &Signals, due: Option<Instant>) -> i32 {
    loop {
        if let Some(signal) = signals.caught() {
            return 128 + signal;
        }
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        match left {
            Some(left) if left.is_zero() => return 0,
            Some(left) => signals.pause(left),
            None => signals.pause(Duration::from_secs(3600)),
        }
    }
}

/// The file with this text in one step: a new file that takes its name.
fn replace(path: &Path, text: &str) -> Result<()> {
    let failed = |e| {
        Error::io(format!("writing {}", path.display()), e)
            .hint("the directory must exist and be writable: the file is replaced atomically")
    };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Collectors run as another user, so all may read; and they look for *.prom, which this name must not be.
    let mut file = tempfile::Builder::new()
        .prefix(".forebay-metrics-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

#[derive(Serialize)]
struct Body<'a> {
    metrics: Vec<FamilyBody<'a>>,
    textfile: Option<String>,
    listen: Option<&'a str>,
}

#[derive(Serialize)]
struct FamilyBody<'a> {
    name: String,
    #[serde(rename = "type")]
    kind: family::Kind,
    unit: Option<&'static str>,
    help: &'static str,
    samples: Vec<SampleBody<'a>>,
}

#[derive(Serialize)]
struct SampleBody<'a> {
    labels: BTreeMap<&'a str, &'a str>,
    value: Value,
}

fn document(all: &[Family], textfile: Option<&Path>, listen: Option<&str>, out: &Output) -> Result<()> {
    let metrics = all.iter().map(family_body).collect();
    let textfile = textfile.map(|path| path.display().to_string());
    out.document(schema::METRICS, &Body { metrics, textfile, listen })
}

fn family_body(family: &Family) -> FamilyBody<'_> {
    let samples = family.samples.iter().map(|(labels, value)| SampleBody {
        labels: labels.iter().map(|(key, text)| (*key, text.as_str())).collect(),
        value: *value,
    });
    FamilyBody {
        name: family.name(),
        kind: family.kind,
        unit: family.unit,
        help: family.help,
        samples: samples.collect(),
    }
}
