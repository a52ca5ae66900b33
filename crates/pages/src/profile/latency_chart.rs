//! Latencies: quantiles in a row each, and whole distributions.

use std::fmt::Write;

use maud::Markup;

use super::curve_chart::COLOURS;
use crate::drawing::{closed, escape, line, open_svg, text};
use forebay_profile::words::time;
use forebay_profile::{histogram, Estimate, Latency};

const WIDTH: f64 = 1040.0;

/// One row: a latency of one profile.
#[derive(Clone, Debug)]
pub struct LatencyRow<'a> {
    /// What it is.
    pub label: String,
    /// Colour.
    pub colour: usize,
    /// Of the second profile.
    pub second: bool,
    /// The numbers.
    pub latency: &'a Latency,
}

impl LatencyRow<'_> {
    fn numbers(&self) -> [(&'static str, Option<Estimate>); 5] {
        let l = self.latency;
        [("mean", l.mean_ns), ("p50", l.p50_ns), ("p90", l.p90_ns), ("p99", l.p99_ns), ("p99.9", l.p999_ns)]
    }

    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.numbers().into_iter().filter_map(|(_, e)| e).map(|e| e.value).filter(|v| *v > 0.0)
    }
}

/// Quantiles on a logarithmic scale: a bar from the median to the highest quantile, a mark at each, the mean as a
/// diamond.
pub fn quantiles(rows: &[LatencyRow<'_>]) -> Markup {
    let longest = rows.iter().map(|r| r.label.chars().count()).max().unwrap_or(0);
    let (left, right, pitch) = ((longest as f64 * 6.4 + 16.0).clamp(80.0, 420.0), WIDTH - 20.0, 24.0);
    let bottom = 8.0 + rows.len() as f64 * pitch;
    let values: Vec<f64> = rows.iter().flat_map(LatencyRow::values).collect();
    let (low, high) = decades(&values);
    let x_of =
        |ns: f64| left + (right - left) * ((ns.max(1e-3).log10() - low) / (high - low)).clamp(0.0, 1.0);
    let mut out = open_svg(WIDTH, bottom + 24.0, "Latency quantiles");
    for power in low as i32..=high as i32 {
        let x = x_of(10f64.powi(power));
        line(&mut out, "grid", (x, 2.0), (x, bottom));
        text(&mut out, x, bottom + 16.0, "tick mid", &decade_text(power));
    }
    for (index, row) in rows.iter().enumerate() {
        let y = 8.0 + (index as f64 + 0.5) * pitch;
        text(&mut out, left - 10.0, y + 4.0, "label end", &row.label);
        draw_row(&mut out, row, y, &x_of);
    }
    closed(out)
}

fn draw_row(out: &mut String, row: &LatencyRow<'_>, y: f64, x_of: &dyn Fn(f64) -> f64) {
    let colour = format!("c{}", row.colour % COLOURS);
    let known: Vec<(&str, Estimate)> =
        row.numbers().into_iter().filter_map(|(word, e)| e.map(|e| (word, e))).collect();
    let quantiles: Vec<&(&str, Estimate)> = known.iter().filter(|(word, _)| *word != "mean").collect();
    // Thinner towards the rare ones.
    for (pair, height) in quantiles.windows(2).zip([12.0, 8.0, 4.0]) {
        let (from, to) = (x_of(pair[0].1.value), x_of(pair[1].1.value));
        let (width, top) = ((to - from).max(0.5), y - height / 2.0);
        let _ = write!(
            out,
            "<rect class=\"{colour}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height}\"/>"
        );
    }
    for (word, value) in &known {
        let (x, (low, high)) = (x_of(value.value), value.bounds());
        if x_of(high) - x_of(low) > 7.0 {
            line(out, &format!("bar {colour}"), (x_of(low), y), (x_of(high), y));
        }
        let shape = match *word {
            "mean" => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
            "p50" => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
            _ => format!("M{x:.1} {:.1}v12", y - 6.0),
        };
        let class = match (*word, row.second) {
            ("mean" | "p50", false) => "mark",
            ("mean" | "p50", true) => "mark open",
            _ => "tail",
        };
        let _ = write!(
            out,
            "<path class=\"{class} {colour}\" d=\"{shape}\"><title>{}: {word} {}</title></path>",
            escape(&row.label),
            time(*value)
        );
    }
}

/// Powers of ten around values; at least one decade.
fn decades(values: &[f64]) -> (f64, f64) {
    let lowest = values.iter().copied().fold(f64::MAX, f64::min).clamp(1e-3, 1e15);
    let highest = values.iter().copied().fold(0.0f64, f64::max).clamp(1e-3, 1e15);
    let low = lowest.log10().floor();
    (low, highest.log10().ceil().max(low + 1.0))
}

fn decade_text(power: i32) -> String {
    time(Estimate::bare(10f64.powi(power))).replace(".00", "").replace(".0", "")
}

/// Whole distributions: the quantile to the right by its nines (50 %, 90 %, 99 %, …), the time upwards, logarithmic.
pub fn distributions(rows: &[LatencyRow<'_>]) -> Markup {
    let rows: Vec<&LatencyRow<'_>> = rows.iter().filter(|r| !r.latency.histogram.is_empty()).collect();
    if rows.is_empty() {
        return Markup::default();
    }
    let (left, right, top, bottom) = (64.0, WIDTH - 24.0, 12.0, 240.0);
    let times: Vec<f64> = rows.iter().flat_map(|r| r.latency.histogram.iter().map(|b| b.0 as f64)).collect();
    let (low, high) = decades(&times);
    let most = rows.iter().filter_map(|r| r.latency.samples).max().unwrap_or(10).max(10) as f64;
    let nines = most.log10().ceil();
    let x_of = |share: f64| {
        left + (right - left) * ((-(1.0 - share).max(0.1 / most).log10()) / nines).clamp(0.0, 1.0)
    };
    let y_of =
        |ns: f64| bottom - (bottom - top) * ((ns.max(1e-3).log10() - low) / (high - low)).clamp(0.0, 1.0);
    let mut out = open_svg(WIDTH, bottom + 40.0, "Distributions of latencies");
    for power in low as i32..=high as i32 {
        let y = y_of(10f64.powi(power));
        line(&mut out, "grid", (left, y), (right, y));
        text(&mut out, left - 8.0, y + 4.0, "tick end", &decade_text(power));
    }
    let mut shares = vec![0.0, 0.5];
    shares.extend((1..nines as i32).map(|n| 1.0 - 10f64.powi(-n)));
    for share in shares {
        let x = x_of(share);
        line(&mut out, "grid", (x, top), (x, bottom));
        let digits = (-(1.0 - share).log10() - 2.0).round().max(0.0) as usize;
        text(&mut out, x, bottom + 16.0, "tick mid", &format!("{:.digits$} %", share * 100.0));
    }
    text(&mut out, (left + right) / 2.0, bottom + 34.0, "tick mid", "of the operations took no longer");
    for row in rows {
        let steps = histogram::cumulative(&row.latency.histogram);
        let mut path = String::new();
        let mut before = 0.0;
        for (ns, share) in steps {
            let start = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{start}{:.1} {:.1}H{:.1}", x_of(before), y_of(ns as f64), x_of(share));
            before = share;
        }
        let second = if row.second { " second" } else { "" };
        let _ = write!(
            out,
            "<path class=\"line c{}{second}\" d=\"{path}\"><title>{}</title></path>",
            row.colour % COLOURS,
            escape(&row.label)
        );
    }
    closed(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_profile::{Citation, Conditions, Load, Operation};

    #[test]
    fn rows_with_much_little_and_nothing() {
        let mut full =
            Latency::new(Operation::Read, Load::Idle, Conditions::default(), Citation::of("probe"));
        let mut bare = full.clone();
        full.p50_ns = Some(Estimate::new(90.0, 30.0));
        full.p99_ns = Some(Estimate::bare(5000.0));
        full.mean_ns = Some(Estimate::bare(100.0));
        full.samples = Some(1000);
        full.histogram = vec![(90, 900), (100, 99), (5000, 1)];
        bare.mean_ns = Some(Estimate::bare(300.0));
        let row = |latency, second| LatencyRow { label: "read".into(), colour: 0, second, latency };
        let rows = [row(&full, false), row(&bare, true)];
        let svg = quantiles(&rows).into_string();
        assert_eq!(
            (svg.matches("class=\"mark").count(), svg.matches("class=\"tail").count()),
            (3, 1),
            "{svg}"
        );
        let curves = distributions(&rows).into_string();
        assert_eq!(curves.matches("class=\"line").count(), 1, "{curves}");
        assert!(distributions(&rows[1..]).0.is_empty());
        for picture in [svg, curves, quantiles(&[]).into_string()] {
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }
}
