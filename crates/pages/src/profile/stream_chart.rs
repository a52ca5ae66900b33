//! STREAM by location as columns: a group for each place of the arrays and horizon, a column for each kernel.
//!
//! Guarantees: one scale for all groups, so that heights can be compared; every column has its number above it, because
//! a store that is persisted each time is a hundredth of one that is not, and its error bar. Columns of the second
//! profile are open and dashed, beside those of the first.

use std::fmt::Write;

use forebay_terms::Horizon;
use maud::{html, Markup};

use crate::drawing::{closed, escape, line, open_svg, text, tick_step, tick_text};
use forebay_profile::words::{digits, plain, scale_of, three_digits};
use forebay_profile::{Estimate, Profile, Stream, Unit};

const WIDTH: f64 = 760.0;
/// The columns: left, right, and the height of a row of groups.
const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 8.0;
const HEIGHT: f64 = 190.0;
/// Above a row: a number of the highest column; below it: three lines of what a group is.
const ABOVE: f64 = 26.0;
const BELOW: f64 = 58.0;
/// Groups beside each other: as many as leave space for the numbers.
const GROUPS_ALONE: usize = 4;
const GROUPS_OF_TWO: usize = 3;

const KERNELS: [&str; 4] = ["Copy", "Scale", "Add", "Triad"];

struct Column {
    kernel: usize,
    second: bool,
    /// In the unit of the picture.
    value: Estimate,
    caveat: bool,
    profile: String,
}

struct Group<'a> {
    read: &'a str,
    write: &'a str,
    horizon: Horizon,
    columns: Vec<Column>,
}

fn values(row: &Stream) -> [Estimate; 4] {
    [row.copy, row.scale, row.add, row.triad].map(|value| plain(value, row.unit))
}

/// The picture with its legend, as HTML; nothing when no profile has STREAM.
pub fn figure(profiles: &[(bool, &Profile)]) -> Markup {
    let rows = || profiles.iter().flat_map(|(second, p)| p.streams.iter().map(move |row| (*second, *p, row)));
    let highest = rows().flat_map(|(_, _, row)| values(row)).map(|v| v.bounds().1).fold(0.0, f64::max);
    if highest <= 0.0 {
        return Markup::default();
    }
    let (scale, unit) = scale_of(highest, Unit::Bytes);
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (second, profile, row) in rows() {
        let columns = values(row).into_iter().enumerate().map(|(kernel, value)| Column {
            kernel,
            second,
            value: value.scaled(1.0 / scale),
            caveat: row.caveat.is_some(),
            profile: profile.name.clone(),
        });
        let same =
            |g: &&mut Group<'_>| (g.read, g.write, g.horizon) == (&*row.read, &*row.write, row.horizon);
        match groups.iter_mut().find(same) {
            Some(group) => group.columns.extend(columns),
            None => groups.push(Group {
                read: &row.read,
                write: &row.write,
                horizon: row.horizon,
                columns: columns.collect(),
            }),
        }
    }
    let several = profiles.len() > 1;
    let per_row = if several { GROUPS_OF_TWO } else { GROUPS_ALONE };
    html! {
        div.streams { (svg(&groups, per_row, several, highest / scale, unit)) (legend(profiles)) }
    }
}

fn legend(profiles: &[(bool, &Profile)]) -> Markup {
    html! {
        ul.legend {
            @for (second, profile) in profiles.iter().filter(|(_, p)| !p.streams.is_empty()) {
                @for (kernel, name) in KERNELS.iter().enumerate() {
                    li class={ "c" (kernel) @if *second { " second" } } {
                        (name) @if profiles.len() > 1 { ", " (profile.name) }
                    }
                }
            }
        }
    }
}

fn svg(groups: &[Group<'_>], per_row: usize, several: bool, highest: f64, unit: &str) -> Markup {
    let lines = groups.len().div_ceil(per_row);
    let row_height = ABOVE + HEIGHT + BELOW;
    let mut out = open_svg(WIDTH, row_height * lines as f64, "STREAM by where the arrays lie");
    let step = tick_step(highest, 4.0);
    let y_max = (highest / step).ceil().max(1.0) * step;
    // Groups are as wide in the last row as in the others.
    let wide = (RIGHT - LEFT) / per_row.min(groups.len()) as f64;
    for (number, row) in groups.chunks(per_row).enumerate() {
        let bottom = row_height * number as f64 + ABOVE + HEIGHT;
        let y_of = |v: f64| bottom - HEIGHT * (v / y_max).clamp(0.0, 1.0);
        let right = LEFT + wide * row.len() as f64;
        for i in 0..=(y_max / step).round() as usize {
            let value = i as f64 * step;
            line(&mut out, "grid", (LEFT, y_of(value)), (right, y_of(value)));
            text(&mut out, LEFT - 6.0, y_of(value) + 4.0, "tick end", &tick_text(value, step));
        }
        text(&mut out, LEFT - 44.0, bottom - HEIGHT - 12.0, "tick", unit);
        for (place, group) in row.iter().enumerate() {
            let left = LEFT + wide * place as f64;
            draw(&mut out, group, (left, wide), several, &y_of, unit);
            let middle = left + wide / 2.0;
            text(&mut out, middle, bottom + 17.0, "mid", &format!("{} → {}", group.read, group.write));
            let horizon = format!("horizon {}", group.horizon);
            text(&mut out, middle, bottom + 33.0, "tick mid", &horizon);
        }
    }
    closed(out)
}

fn draw(
    out: &mut String,
    group: &Group<'_>,
    (left, wide): (f64, f64),
    several: bool,
    y_of: &dyn Fn(f64) -> f64,
    unit: &str,
) {
    let slots = if several { 8.0 } else { 4.0 };
    let slot = wide * 0.88 / slots;
    for column in &group.columns {
        // The two profiles' columns of a kernel stand beside each other.
        let index = column.kernel * if several { 2 } else { 1 } + usize::from(column.second);
        let x = left + wide * 0.06 + slot * index as f64 + slot * 0.1;
        let (width, middle) = (slot * 0.8, x + slot * 0.4);
        let (y, bottom) = (y_of(column.value.value), y_of(0.0));
        let class = if column.second { " second" } else { "" };
        let (figure, error) = digits(column.value.value, column.value.error);
        let error = error.map_or(String::new(), |e| format!(" ± {e}"));
        let caveat = if column.caveat { ", with a caveat" } else { "" };
        let _ = write!(
            out,
            "<rect class=\"column c{kernel}{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{:.1}\"><title>{}, {}: {figure}{error} {}{caveat}</title></rect>",
            bottom - y,
            escape(&column.profile),
            KERNELS[column.kernel],
            escape(unit),
            kernel = column.kernel,
        );
        let (low, high) = column.value.bounds();
        let top = y_of(high).min(y);
        // A bar that is hardly longer than its line is wide would not be seen.
        if y_of(low) - y_of(high) > 3.0 {
            line(out, "bar over", (middle, y_of(low)), (middle, y_of(high)));
            for end in [low, high] {
                line(out, "bar over", (middle - 3.0, y_of(end)), (middle + 3.0, y_of(end)));
            }
        }
        let mark = if column.caveat { "!" } else { "" };
        text(out, middle, top - 4.0, "figure mid", &format!("{}{mark}", short(column.value.value)));
    }
}

/// As many digits as fit above a column; the table has all.
fn short(value: f64) -> String {
    match value.abs() {
        v if v < 1.0 => format!("{value:.2}"),
        _ => three_digits(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_profile::platforms::platform;

    #[test]
    fn every_number_of_every_row_is_a_column() {
        let (gen1, gen3) = (platform("optane-gen1").unwrap(), platform("optane-gen3").unwrap());
        let one = figure(&[(false, &gen1)]).into_string();
        assert_eq!(one.matches("<rect class=\"column").count(), gen1.streams.len() * 4);
        assert!(one.contains(">dram → pmem<") && one.contains(">horizon epoch<"), "{one}");
        assert!(one.contains("optane-gen1, Triad: 24.90 ± 0.05 GB/s") && one.contains(">0.88<"), "{one}");
        let both = figure(&[(false, &gen1), (true, &gen3)]).into_string();
        let open = both.matches(" second\" x=").count();
        assert_eq!(open, gen3.streams.len() * 4);
        assert_eq!(both.matches("→").count(), gen1.streams.len(), "the same places are one group");
        assert!(!both.contains("NaN") && !both.contains("inf"), "{both}");
    }

    #[test]
    fn error_bars_are_drawn_and_caveats_are_marked() {
        let mut profile = platform("ddr4-2666").unwrap();
        assert!(!figure(&[(false, &profile)]).0.contains("bar over"), "half a GB/s of 154 is too short");
        profile.streams[0].copy = Estimate::new(136.0, 20.0);
        profile.streams[0].caveat = Some("a <cache> answered".into());
        let svg = figure(&[(false, &profile)]).into_string();
        assert_eq!(svg.matches("bar over").count(), 3, "{svg}");
        assert!(svg.contains(">136!<"), "{svg}");
        profile.streams.clear();
        assert_eq!(figure(&[(false, &profile)]).0, "");
    }
}
