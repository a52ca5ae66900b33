//! What all pictures of a report are drawn with: an SVG that scales, text, axes with round ticks.
//!
//! Guarantees: text stays text and cannot break the page; colours come from the page's style sheet, so that one picture
//! does for light, dark and print.

use std::fmt::Write;

use maud::{Markup, PreEscaped, Render};

/// Text for the markup that is written as a string: pictures, whose marks are made of numbers.
pub fn escape(text: &str) -> String {
    text.render().into_string()
}

/// Begins a picture of this size in its own units.
pub fn open_svg(width: f64, height: f64, label: &str) -> String {
    let label = escape(label);
    format!("<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">")
}

/// Ends a picture.
pub fn closed(mut svg: String) -> Markup {
    svg.push_str("</svg>");
    PreEscaped(svg)
}

/// Text at a place; `class` is a style with `mid` or `end` for where it is anchored.
pub fn text(out: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(content));
}

/// A straight line.
pub fn line(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ =
        write!(out, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

/// Step of an axis with about `count` ticks: 1, 2 or 5 times a power of ten.
pub fn tick_step(span: f64, count: f64) -> f64 {
    let rough = (span / count).max(f64::MIN_POSITIVE);
    let magnitude = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * magnitude >= rough * 0.999).unwrap_or(10.0);
    factor * magnitude
}

/// A number with as many digits as the tick step needs.
pub fn tick_text(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        for (span, step) in [(10.0, 1.0), (0.35, 0.05), (1234.0, 200.0), (7.0, 1.0)] {
            assert!((tick_step(span, 10.0) - step).abs() < step * 1e-9, "{span}: {}", tick_step(span, 10.0));
        }
        assert_eq!((tick_text(0.15, 0.05), tick_text(400.0, 200.0)), ("0.15".into(), "400".into()));
    }
}
