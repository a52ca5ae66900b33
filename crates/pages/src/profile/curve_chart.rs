//! Lines over threads, depth, size or mix, with error bars and knees.
//!
//! Not here: choosing which curves belong into one picture.

use std::fmt::Write;

use maud::Markup;

use crate::drawing::{closed, escape, line, open_svg, text, tick_step, tick_text};
use forebay_profile::words::{digits, size, three_digits};
use forebay_profile::{Axis, Estimate};

/// Width and height in the picture's own units.
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 300.0;
/// The plot inside it: left, right, top, bottom.
const AREA: (f64, f64, f64, f64) = (52.0, WIDTH - 12.0, 22.0, HEIGHT - 44.0);

/// Number of line colours in the style sheet.
pub const COLOURS: usize = 7;

/// Labels of an axis are at least so far apart.
const LABEL_GAP: f64 = 30.0;

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name, for its tooltips.
    pub name: String,
    /// Colour.
    pub colour: usize,
    /// Of the second profile: dashed, with open points.
    pub second: bool,
    /// (x, value in the chart's unit), by rising x.
    pub points: Vec<(f64, Estimate)>,
    /// x of the knee.
    pub knee: Option<f64>,
}

/// A picture of lines.
#[derive(Clone, Debug)]
pub struct CurveChart {
    /// What it shows, for those who cannot see it.
    pub label: String,
    /// What the lines run over.
    pub over: Axis,
    /// Unit of the values.
    pub unit: String,
    /// The lines.
    pub lines: Vec<Line>,
}

impl CurveChart {
    /// The picture.
    pub fn svg(&self) -> Markup {
        let (left, right, top, bottom) = AREA;
        let mut xs: Vec<f64> = self.lines.iter().flat_map(|l| l.points.iter().map(|p| p.0)).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let x_of = self.x_scale(&xs);
        let highest = self.lines.iter().flat_map(|l| l.points.iter().map(|p| p.1.bounds().1));
        let highest = highest.fold(0.0f64, f64::max).max(f64::MIN_POSITIVE);
        let step = tick_step(highest, 4.0);
        let y_max = (highest / step * 1.02).ceil().max(1.0) * step;
        let y_of = |v: f64| bottom - (bottom - top) * (v / y_max).clamp(0.0, 1.0);
        let mut out = open_svg(WIDTH, HEIGHT, &self.label);
        for i in 0..=(y_max / step).round() as usize {
            let value = i as f64 * step;
            line(&mut out, "grid", (left, y_of(value)), (right, y_of(value)));
            text(&mut out, left - 6.0, y_of(value) + 4.0, "tick end", &tick_text(value, step));
        }
        text(&mut out, left - 44.0, top - 10.0, "tick", &self.unit);
        let mut label_end = f64::MIN;
        for x in &xs {
            let at = x_of(*x);
            line(&mut out, "grid", (at, bottom), (at, bottom + 4.0));
            if at - label_end >= LABEL_GAP {
                text(&mut out, at, bottom + 17.0, "tick mid", &self.x_text(*x));
                label_end = at + if self.over == Axis::Bytes { 14.0 } else { 0.0 };
            }
        }
        let title = match self.over {
            Axis::Threads => "threads",
            Axis::Depth => "operations in flight",
            Axis::Bytes => "bytes of one operation",
            Axis::ReadsPercent => "share of reads, %",
        };
        text(&mut out, (left + right) / 2.0, bottom + 36.0, "tick mid", title);
        for one in &self.lines {
            self.draw(&mut out, one, &x_of, &y_of);
        }
        closed(out)
    }

    /// Powers of two lie evenly, but for the mix.
    fn x_scale(&self, xs: &[f64]) -> impl Fn(f64) -> f64 {
        let (left, right, ..) = AREA;
        let even = self.over == Axis::ReadsPercent;
        let place = move |x: f64| if even { x } else { x.max(1.0).log2() };
        let (low, high) = match even {
            true => (0.0, 100.0),
            false => (place(*xs.first().unwrap_or(&1.0)), place(*xs.last().unwrap_or(&2.0))),
        };
        let (from, to) = (left + 14.0, right - 14.0);
        move |x: f64| match high > low {
            true => from + (to - from) * (place(x) - low) / (high - low),
            false => (from + to) / 2.0,
        }
    }

    fn x_text(&self, x: f64) -> String {
        match self.over {
            Axis::Bytes => size(x as u64),
            _ => three_digits(x).trim_end_matches(".0").trim_end_matches(".00").to_owned(),
        }
    }

    fn draw(&self, out: &mut String, one: &Line, x_of: &dyn Fn(f64) -> f64, y_of: &dyn Fn(f64) -> f64) {
        let colour = format!("c{}", one.colour % COLOURS);
        let second = if one.second { " second" } else { "" };
        let places: Vec<String> =
            one.points.iter().map(|(x, v)| format!("{:.1},{:.1}", x_of(*x), y_of(v.value))).collect();
        if places.len() > 1 {
            let _ =
                write!(out, "<polyline class=\"line {colour}{second}\" points=\"{}\"/>", places.join(" "));
        }
        for (x, value) in &one.points {
            let (at, y) = (x_of(*x), y_of(value.value));
            let (low, high) = value.bounds();
            // A bar that is smaller than the point would not be seen.
            if y_of(low) - y_of(high) > 6.0 {
                let bar = format!("bar {colour}");
                line(out, &bar, (at, y_of(low)), (at, y_of(high)));
                for end in [low, high] {
                    line(out, &bar, (at - 3.5, y_of(end)), (at + 3.5, y_of(end)));
                }
            }
            if one.knee == Some(*x) {
                line(out, &format!("drop {colour}"), (at, y), (at, AREA.3));
                let _ = write!(out, "<circle class=\"knee {colour}\" cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"7\"/>");
            }
            let (number, error) = digits(value.value, value.error);
            let error = error.map_or(String::new(), |e| format!(" ± {e}"));
            let _ = write!(
                out,
                "<circle class=\"dot {colour}{second}\" cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"3\">\
                 <title>{}: {number}{error} {} at {}</title></circle>",
                escape(&one.name),
                escape(&self.unit),
                escape(&self.x_text(*x)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(over: Axis, points: Vec<(f64, Estimate)>, knee: Option<f64>) -> CurveChart {
        let line = Line { name: "a <line>".into(), colour: 9, second: false, points, knee };
        CurveChart { label: "test".into(), over, unit: "GB/s".into(), lines: vec![line] }
    }

    #[test]
    fn a_line_has_its_points_bars_and_knee() {
        let points = vec![(1.0, Estimate::new(10.0, 4.0)), (2.0, Estimate::bare(20.0))];
        let svg = chart(Axis::Threads, points, Some(2.0)).svg().into_string();
        assert_eq!(svg.matches("<circle class=\"dot").count(), 2);
        assert_eq!(svg.matches("class=\"bar c2\"").count(), 3, "one bar of three strokes: {svg}");
        assert_eq!(svg.matches("class=\"knee").count(), 1);
        assert!(svg.contains("a &lt;line&gt;: 10 ± 4 GB/s at 1"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn one_point_or_none_is_a_picture_too() {
        for over in [Axis::Threads, Axis::Bytes, Axis::ReadsPercent] {
            for points in [vec![], vec![(50.0, Estimate::bare(0.0))]] {
                let svg = chart(over, points, None).svg().into_string();
                assert!(svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }
}
