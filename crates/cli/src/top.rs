//! `forebay top`: spaces as they run: waiting processes, occupancy, throughput, lag.
//!
//! Guarantees: looks without joining, sleeps between looks, and leaves the terminal as it was, whichever way it
//! ends. Without a terminal it prints one table and ends. What comes and goes meanwhile is no error.

mod details;
mod draw;
mod keys;
mod look;
mod nodes;
mod plain;
mod screen;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_flow::Signals;
use forebay_tier::{Error, Result};

use crate::command::looks::Looks;
use crate::command::nodes::{is_path, OnNodes};
use crate::command::spaces;
use crate::output::Output;
use keys::Input;
use look::Look;
use nodes::NodeLooks;
use ratatui::crossterm;
use screen::Screen;
use view::{View, Wish};

/// Another size of the terminal is noticed this fast; ten wake-ups a second cost next to nothing.
const SLICE: Duration = Duration::from_millis(100);
/// What a terminal that goes away means to its programs.
const SIGHUP: i32 = 1;
/// Between looks unless another one is given.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same for looks at several nodes: each starts a program on every node.
const INTERVAL_OF_NODES: Duration = Duration::from_secs(5);

/// Watch spaces live: waiting processes, occupancy, throughput, lag.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Keys: q quits, arrows choose a space, s sorts, p pauses, PgUp and PgDn scroll, r samples at \
                  once.\n\nWithout a terminal, with --once or --json, it prints one sample and ends; bandwidth \
                  needs two, S seconds apart, when --interval is given."
)]
pub struct Args {
    /// Short names or paths; without any, all spaces below FOREBAY_DIR (not those opened by a path).
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Seconds between samples [default: 1; with --nodes: 5].
    #[arg(long, short, value_name = "S", value_parser = spaces::seconds)]
    interval: Option<Duration>,
    /// Print one table and end.
    #[arg(long, short = '1')]
    once: bool,
    /// Names that do not exist are listed as such, from the first sample on.
    #[arg(long, hide = true)]
    may_be_absent: bool,
    #[command(flatten)]
    on: OnNodes,
}

impl Args {
    /// What it is told that is a path.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.names.iter().filter(is_path).map(PathBuf::from).collect()
    }

    /// The nodes on which it runs as it does without --nodes; none for the live view, which is drawn here.
    pub(crate) fn on_nodes(&self, out: &Output) -> Option<OnNodes> {
        let is_asked = self.on.is_asked() && !self.is_live(out);
        is_asked.then(|| self.on.longer_by(self.interval.unwrap_or_default()))
    }

    fn is_live(&self, out: &Output) -> bool {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let is_seen = out.stdout_is_terminal() && std::io::stdin().is_terminal() && !dumb;
        is_seen && !self.once && !out.json()
    }
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    if args.on.is_asked() {
        let looks = NodeLooks::of(Looks::of(&args.on, &args.names)?)?;
        return live(args, Source::Nodes(looks), args.interval.unwrap_or(INTERVAL_OF_NODES), out);
    }
    // A name that is wrong now is a mistake; later the space may just have ended.
    for name in args.names.iter().filter(|_| !args.may_be_absent) {
        spaces::glance(name)?;
    }
    match args.is_live(out) {
        true => live(args, Source::Here, args.interval.unwrap_or(INTERVAL), out),
        false => once(args, out),
    }
}

fn once(args: &Args, out: &Output) -> Result<i32> {
    let mut look = Look::take(&args.names, None)?;
    let mut before = None;
    if let Some(interval) = args.interval {
        std::thread::sleep(interval);
        let first = std::mem::take(&mut look);
        look = Look::take(&args.names, Some(&first))?;
        before = Some(first);
    }
    plain::print(&look, before.as_ref(), out)?;
    match look.spaces.is_empty() {
        true => out.next(&format!("no spaces in {}; forebay run starts a workflow", look.root)),
        false => out.next("forebay top, at a terminal, goes on watching"),
    }
    Ok(0)
}

/// Where looks come from.
enum Source {
    /// This node.
    Here,
    /// All nodes of a job.
    Nodes(NodeLooks),
}

impl Source {
    /// A look, at once or later by [`Source::arrived`].
    fn look(&mut self, view: &View) -> Option<Result<Look>> {
        match self {
            Source::Here => Some(Look::take(&view.names, Some(&view.look))),
            Source::Nodes(looks) => {
                looks.ask();
                None
            }
        }
    }

    /// A look that was asked for and has come.
    ///
    /// # Errors
    /// None can come any more.
    fn arrived(&mut self) -> Result<Option<Result<Look>>> {
        match self {
            Source::Here => Ok(None),
            Source::Nodes(looks) => looks.come(),
        }
    }
}

fn live(args: &Args, source: Source, interval: Duration, out: &Output) -> Result<i32> {
    let signals = Signals::catch()?;
    // It ends before signals end this process again: it has started others.
    let mut source = source;
    let first = match &source {
        Source::Here => Look::take(&args.names, None)?,
        Source::Nodes(looks) => looks.first(),
    };
    let mut view = View::new(first, args.names.clone(), interval, out.stdout_is_coloured());
    let mut screen = Screen::open()?;
    // None: until the look has come that was asked for.
    let mut due = match &source {
        Source::Here => Some(Instant::now() + interval),
        Source::Nodes(_) => Some(Instant::now()),
    };
    loop {
        if let Err(e) = screen.draw(|frame| draw::draw(frame, &mut view)) {
            // A terminal that goes while it is drawn on means the same as one that goes between.
            return match keys::wait(&std::io::stdin(), Duration::ZERO) {
                Ok(Input::HungUp) => Ok(128 + SIGHUP),
                _ => Err(e),
            };
        }
        let look = match next(&mut view, &mut source, &signals, due)? {
            Next::Signal(signal) => return Ok(128 + signal),
            Next::Wish(Wish::End) => return Ok(0),
            Next::Wish(Wish::Draw) => continue,
            Next::Wish(Wish::Suspend) => {
                screen.suspend()?;
                continue;
            }
            Next::Wish(Wish::Look) => source.look(&view),
            Next::Arrived(look) => Some(*look),
        };
        // Looking takes its time; the next look counts from here.
        due = look.is_some().then(|| Instant::now() + interval);
        match look {
            Some(Ok(look)) => view.show(look),
            Some(Err(e)) => view.trouble = Some(e.to_string()),
            None => {}
        }
    }
}

enum Next {
    Wish(Wish),
    Arrived(Box<Result<Look>>),
    Signal(i32),
}

/// Sleeps until a key, another size of the terminal, the next look, a signal, or the end of the terminal.
fn next(view: &mut View, source: &mut Source, signals: &Signals, due: Option<Instant>) -> Result<Next> {
    let stdin = std::io::stdin();
    let size = crossterm::terminal::size().ok();
    loop {
        if let Some(signal) = signals.caught() {
            return Ok(Next::Signal(signal));
        }
        if !view.paused {
            if let Some(look) = source.arrived()? {
                return Ok(Next::Arrived(Box::new(look)));
            }
        }
        let left = due.filter(|_| !view.paused).map(|due| due.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(Next::Wish(Wish::Look));
        }
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        match keys::wait(&stdin, slice).map_err(|e| Error::io("reading keys", e))? {
            Input::HungUp => return Ok(Next::Signal(SIGHUP)),
            Input::Nothing if crossterm::terminal::size().ok() != size => return Ok(Next::Wish(Wish::Draw)),
            Input::Nothing => {}
            Input::Keys(keys) => {
                // The last one that asks for more than a picture is what is done: q after others ends.
                let wishes = keys.into_iter().map(|key| view.press(key));
                let wish = wishes.filter(|wish| *wish != Wish::Draw).last();
                return Ok(Next::Wish(wish.unwrap_or(Wish::Draw)));
            }
        }
    }
}
