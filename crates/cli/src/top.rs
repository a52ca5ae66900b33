//! `forebay top`: spaces as they run: waiting processes, occupancy, throughput, lag.
//!
//! Guarantees: looks without joining, sleeps between looks, and leaves the terminal as it was, whichever way it
//! ends. Without a terminal it prints one table and ends. What comes and goes meanwhile is no error.

mod details;
mod draw;
mod keys;
mod look;
mod plain;
mod screen;
#[cfg(test)]
pub(crate) mod tests;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay_flow::Signals;
use forebay_tier::{Error, Result};

use crate::command::spaces;
use crate::output::Output;
use keys::Input;
use look::Look;
use ratatui::crossterm;
use screen::Screen;
use view::{View, Wish};

/// Another size of the terminal is noticed this fast; ten wake-ups a second cost next to nothing.
const SLICE: Duration = Duration::from_millis(100);
/// What a terminal that goes away means to its programs.
const SIGHUP: i32 = 1;
/// Between looks unless another one is given.
const INTERVAL: Duration = Duration::from_secs(1);

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
    /// Seconds between samples [default: 1].
    #[arg(long, short, value_name = "S", value_parser = spaces::seconds)]
    interval: Option<Duration>,
    /// Print one table and end.
    #[arg(long, short = '1')]
    once: bool,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    // A name that is wrong now is a mistake; later the space may just have ended.
    for name in &args.names {
        spaces::glance(name)?;
    }
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let is_live = out.stdout_is_terminal() && std::io::stdin().is_terminal() && !dumb;
    match is_live && !args.once && !out.json() {
        true => live(args, out),
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

fn live(args: &Args, out: &Output) -> Result<i32> {
    let signals = Signals::catch()?;
    let interval = args.interval.unwrap_or(INTERVAL);
    let first = Look::take(&args.names, None)?;
    let mut view = View::new(first, args.names.clone(), interval, out.stdout_is_coloured());
    let mut screen = Screen::open()?;
    let mut due = Instant::now() + interval;
    loop {
        if let Err(e) = screen.draw(|frame| draw::draw(frame, &mut view)) {
            // A terminal that goes while it is drawn on means the same as one that goes between.
            return match keys::wait(&std::io::stdin(), Duration::ZERO) {
                Ok(Input::HungUp) => Ok(128 + SIGHUP),
                _ => Err(e),
            };
        }
        match next(&mut view, &signals, due)? {
            Next::Signal(signal) => return Ok(128 + signal),
            Next::Wish(Wish::End) => return Ok(0),
            Next::Wish(Wish::Draw) => {}
            Next::Wish(Wish::Suspend) => screen.suspend()?,
            Next::Wish(Wish::Look) => {
                // Looking takes its time; the next look counts from here.
                match Look::take(&view.names, Some(&view.look)) {
                    Ok(look) => view.show(look),
                    Err(e) => view.trouble = Some(e.to_string()),
                }
                due = Instant::now() + interval;
            }
        }
    }
}

enum Next {
    Wish(Wish),
    Signal(i32),
}

/// Sleeps until a key, another size of the terminal, the next look, a signal, or the end of the terminal.
fn next(view: &mut View, signals: &Signals, due: Instant) -> Result<Next> {
    let stdin = std::io::stdin();
    let size = crossterm::terminal::size().ok();
    loop {
        if let Some(signal) = signals.caught() {
            return Ok(Next::Signal(signal));
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() && !view.paused {
            return Ok(Next::Wish(Wish::Look));
        }
        let slice = if view.paused { SLICE } else { left.min(SLICE) };
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
