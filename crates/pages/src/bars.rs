//! A page of bars: a few quantities, each a picture with a bar for every case.
//!
//! Guarantees: all bars of a picture have one scale, which is said to be logarithmic where it is, and every bar has its
//! number beside it; bars of numbers that were not measured are open, and the legend says what they are.

use std::fmt::Write;

use maud::{html, Markup};

use crate::drawing::{closed, line, open_svg, text, tick_step, tick_text};
use crate::page::whole;

const WIDTH: f64 = 760.0;
/// Where bars begin and end: labels are before, numbers behind.
const LEFT: f64 = 220.0;
const RIGHT: f64 = WIDTH - 90.0;
const ROW: f64 = 20.0;
const TOP: f64 = 8.0;
const BELOW: f64 = 26.0;
/// A picture whose largest number is so many times its smallest has a logarithmic scale.
const LOGARITHMIC_FROM: f64 = 50.0;
const COLOURS: usize = 7;

/// A page.
pub struct Sheet {
    /// What was done.
    pub title: String,
    /// What holds for all of it: place, tier, sizes.
    pub facts: Vec<String>,
    /// The pictures.
    pub charts: Vec<Chart>,
}

/// A picture.
pub struct Chart {
    /// What the bars are of.
    pub title: String,
    /// Of their numbers.
    pub unit: String,
    /// The bars, from above.
    pub bars: Vec<Bar>,
}

/// A bar.
pub struct Bar {
    /// Which case.
    pub label: String,
    /// Bars of one series have one colour.
    pub series: String,
    /// Its number, 0 or more.
    pub value: f64,
    /// `measured`, `published`, `predicted` or `emulated`.
    pub kind: String,
}

/// The page as HTML. Bars without a finite number, and pictures without bars, are left out.
pub fn page(sheet: &Sheet) -> String {
    let body = html! {
        header {
            h1 { (sheet.title) }
            p.what { (sheet.facts.join(" · ")) }
        }
        @for chart in &sheet.charts { (section(chart)) }
        footer {
            "Forebay " (env!("CARGO_PKG_VERSION"))
            " · each number is measured, published, predicted or emulated, as the legend says"
        }
    };
    whole(&format!("{} · Forebay", sheet.title), include_str!("charts.css"), &body, None)
}

/// The scale of a picture: from numbers to places.
struct Scale {
    least: f64,
    most: f64,
    logarithmic: bool,
}

impl Scale {
    fn of(bars: &[&Bar]) -> Scale {
        let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let least = bars.iter().map(|bar| bar.value).filter(|value| *value > 0.0).fold(most, f64::min);
        let logarithmic = most > LOGARITHMIC_FROM * least;
        match logarithmic {
            true => {
                let decade = |x: f64| 10f64.powf(x);
                // The shortest bar must be seen, too.
                let (low, high) = ((least / 1.5).log10().floor(), most.log10().ceil());
                Scale { least: decade(low), most: decade(high), logarithmic }
            }
            false => {
                let step = tick_step(most, 5.0);
                Scale { least: 0.0, most: (most / step).ceil().max(1.0) * step, logarithmic }
            }
        }
    }

    fn place(&self, value: f64) -> f64 {
        let part = match self.logarithmic {
            true if value <= self.least => 0.0,
            true => (value / self.least).log10() / (self.most / self.least).log10(),
            false => value / self.most,
        };
        LEFT + (RIGHT - LEFT) * part.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        if self.logarithmic {
            let (low, high) = (self.least.log10().round() as i32, self.most.log10().round() as i32);
            return (low..=high).map(|power| (10f64.powi(power), plain(10f64.powi(power)))).collect();
        }
        let step = tick_step(self.most, 5.0);
        let count = (self.most / step).round() as usize;
        (0..=count).map(|at| at as f64 * step).map(|value| (value, tick_text(value, step))).collect()
    }
}

/// Three digits.
fn plain(value: f64) -> String {
    let digits = match value {
        value if value <= 0.0 => 0,
        value if !(1e-4..1e7).contains(&value) => return format!("{value:.2e}"),
        value => (2 - value.log10().floor() as i32).max(0) as usize,
    };
    format!("{value:.digits$}")
}

/// A picture with its heading and its legend.
fn section(chart: &Chart) -> Markup {
    let bars: Vec<&Bar> = chart.bars.iter().filter(|bar| bar.value.is_finite() && bar.value >= 0.0).collect();
    if bars.is_empty() {
        return Markup::default();
    }
    let mut series: Vec<(&str, &str)> = Vec::new();
    for bar in &bars {
        if !series.contains(&(&bar.series, &bar.kind)) {
            series.push((&bar.series, &bar.kind));
        }
    }
    let mut names: Vec<&str> = Vec::new();
    series.iter().for_each(|(name, _)| {
        if !names.contains(name) {
            names.push(name)
        }
    });
    let colour = |name: &str| names.iter().position(|other| *other == name).unwrap_or(0) % COLOURS;
    let scale = Scale::of(&bars);
    let logarithmic = if scale.logarithmic { ", logarithmic" } else { "" };
    let heading = format!("{} ({}{logarithmic})", chart.title, chart.unit);
    html! {
        section {
            h2 { (heading) }
            div.streams {
                (svg(&bars, &scale, &heading, &colour))
                ul.legend {
                    @for (name, kind) in series {
                        li class={ "c" (colour(name)) (open(kind)) } {
                            (name) " " span class={ "kind " (kind) } { (kind) }
                        }
                    }
                }
            }
        }
    }
}

/// Style of what was not measured.
fn open(kind: &str) -> &'static str {
    if kind == "measured" {
        ""
    } else {
        " second"
    }
}

fn svg(bars: &[&Bar], scale: &Scale, heading: &str, colour: &dyn Fn(&str) -> usize) -> Markup {
    let bottom = TOP + ROW * bars.len() as f64;
    let mut out = open_svg(WIDTH, bottom + BELOW, heading);
    for (value, words) in scale.ticks() {
        let x = scale.place(value);
        line(&mut out, "grid", (x, TOP), (x, bottom));
        text(&mut out, x, bottom + 16.0, "tick mid", &words);
    }
    for (at, bar) in bars.iter().enumerate() {
        let (y, end) = (TOP + ROW * at as f64, scale.place(bar.value));
        let _ = write!(
            out,
            "<rect class=\"column c{}{}\" x=\"{LEFT:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            colour(&bar.series),
            open(&bar.kind),
            y + 3.0,
            (end - LEFT).max(0.5),
            ROW - 6.0
        );
        text(&mut out, LEFT - 8.0, y + 14.0, "end", &bar.label);
        text(&mut out, end + 6.0, y + 14.0, "tick", &plain(bar.value));
    }
    closed(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64, kind: &str) -> Bar {
        Bar { label: label.into(), series: label.into(), value, kind: kind.into() }
    }

    fn sheet(bars: Vec<Bar>) -> Sheet {
        let chart = Chart { title: "Time".into(), unit: "s".into(), bars };
        Sheet { title: "<sort>".into(), facts: vec!["file".into(), "a & b".into()], charts: vec![chart] }
    }

    #[test]
    fn every_bar_has_its_number_and_kind() {
        let html = page(&sheet(vec![bar("here", 2.5, "measured"), bar("there", 4.0, "published")]));
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
        assert_eq!(html.matches("<rect").count(), 2);
        for wanted in ["&lt;sort&gt;", "a &amp; b", "2.50<", "4.00<", "kind published", "Time (s)"] {
            assert!(html.contains(wanted), "{wanted} in {html}");
        }
        assert_eq!(html.matches(" second\" x=").count(), 1, "what was not measured is open");
        for wrong in ["<script", "http", "NaN"] {
            assert!(!html.contains(wrong));
        }
    }

    #[test]
    fn lengths_go_by_the_numbers() {
        let bars = [bar("a", 1.0, "measured"), bar("b", 4.0, "measured")];
        let scale = Scale::of(&bars.iter().collect::<Vec<_>>());
        assert!(!scale.logarithmic);
        assert!((scale.place(4.0) - LEFT - 4.0 * (scale.place(1.0) - LEFT)).abs() < 1e-9);
        let bars = [bar("a", 0.02, "measured"), bar("b", 300.0, "measured"), bar("c", 0.0, "measured")];
        let scale = Scale::of(&bars.iter().collect::<Vec<_>>());
        assert!(scale.logarithmic && scale.place(0.02) > LEFT && scale.place(0.0) == LEFT);
        let html = page(&sheet(bars.into()));
        assert!(html.contains("logarithmic") && html.contains("0.0200<") && html.contains("300<"));
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let html = page(&sheet(vec![bar("a", f64::NAN, "measured"), bar("b", f64::INFINITY, "measured")]));
        assert!(!html.contains("<svg"));
    }
}
