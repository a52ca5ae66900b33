//! How far a probe is: a bar on a terminal, a line a minute in the file of a job.

use forebay_probe::run::Progress;
use forebay_tier::clock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// Nanoseconds between two lines: a first profile takes about one minute, and needs none.
const BETWEEN_NS: u64 = 60_000_000_000;

/// A user who watches, or a file that is read later.
pub struct Watched {
    /// Hidden where no user watches.
    bar: ProgressBar,
    lines: bool,
    next_ns: u64,
}

impl Watched {
    /// Nothing shown yet.
    pub fn new(out: &Output) -> Watched {
        let next_ns = clock::now_ns() + BETWEEN_NS;
        if !out.stderr_is_terminal() {
            return Watched { bar: ProgressBar::hidden(), lines: true, next_ns };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix} {bar:30} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Watched { bar, lines: false, next_ns }
    }

    /// Shows how far the probe is.
    pub fn show(&mut self, progress: &Progress) {
        let now_ns = clock::now_ns();
        if self.lines && now_ns >= self.next_ns {
            self.next_ns = now_ns + BETWEEN_NS;
            eprintln!("probe: {}", line(progress));
        }
        self.bar.set_prefix(tier(progress));
        match progress.done {
            None => self.bar.set_message("preparing"),
            Some(done) => {
                self.bar.set_length(progress.all);
                self.bar.set_position(done);
                self.bar.set_message(left(progress));
            }
        }
    }

    /// Takes the bar away.
    pub fn end(self) {
        self.bar.finish_and_clear();
    }
}

fn tier(progress: &Progress) -> String {
    format!("tier {}/{} {}", progress.number, progress.tiers, progress.tier)
}

/// `tier 1/3 dram: 120 of 900 measured, 4 min left`.
fn line(progress: &Progress) -> String {
    let so_far = match progress.done {
        None => "preparing".to_string(),
        Some(done) => format!("{done} of {} measured", progress.all),
    };
    let left = Some(left(progress)).filter(|left| !left.is_empty());
    format!("{}: {so_far}{}", tier(progress), left.map_or(String::new(), |left| format!(", {left}")))
}

/// `12 s left`; nothing where it is not known.
fn left(progress: &Progress) -> String {
    match progress.left_ns.div_ceil(1_000_000_000) {
        0 => String::new(),
        s if s >= 120 => format!("{} min left", s.div_ceil(60)),
        s => format!("{s} s left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_said_in_seconds_then_in_minutes() {
        let said = |left_ns| left(&Progress { left_ns, ..Progress::default() });
        assert_eq!(said(11_500_000_000), "12 s left");
        assert_eq!(said(200_000_000_000), "4 min left");
        assert_eq!(said(0), "");
    }

    #[test]
    fn a_line_says_which_tier_and_how_much() {
        let begun = Progress { tier: "dram".into(), number: 1, tiers: 3, all: 900, ..Progress::default() };
        assert_eq!(line(&begun), "tier 1/3 dram: preparing");
        let later = Progress { done: Some(120), left_ns: 200_000_000_000, ..begun };
        assert_eq!(line(&later), "tier 1/3 dram: 120 of 900 measured, 4 min left");
    }
}
