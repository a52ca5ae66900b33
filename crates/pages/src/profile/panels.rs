//! Which curves stand in one picture.
//!
//! Guarantees: a picture holds curves over one axis, of one direction and one unit; curves of the same conditions have
//! the same colour in both profiles; of many curves the highest are drawn, and how many are left out is said.

use maud::Markup;

use super::curve_chart::{CurveChart, Line, COLOURS};
use super::heat_map::HeatMap;
use forebay_profile::words::{concurrency, details, direction_alone, plain, scale_of};
use forebay_profile::{Axis, Citation, Conditions, Curve, Estimate, Tier, Unit};

/// A picture with what belongs beside it.
pub struct Panel {
    /// Heading.
    pub title: String,
    /// The picture.
    pub svg: Markup,
    /// (colour, second profile, name, source, caveat) of each line.
    pub legend: Vec<LegendEntry>,
    /// Curves that are in the table only.
    pub left_out: usize,
}

/// What a line is.
pub struct LegendEntry {
    /// Its colour.
    pub colour: usize,
    /// Of the second profile.
    pub second: bool,
    /// Its conditions.
    pub name: String,
    /// Where its numbers come from.
    pub source: Citation,
    /// Why it is not to be believed, if so.
    pub caveat: Option<String>,
}

/// A curve and whose it is.
#[derive(Clone, Copy)]
struct Owned<'a> {
    curve: &'a Curve,
    second: bool,
}

impl Owned<'_> {
    fn highest(&self) -> f64 {
        let values = self.curve.points.iter().map(|p| plain(p.y, self.curve.unit).value);
        values.fold(0.0, f64::max)
    }

    fn name(&self) -> String {
        let over_size = self.curve.over == Axis::Bytes;
        let mut name = details(&self.curve.when, !over_size);
        let fixed = Conditions {
            threads: self.curve.when.threads.filter(|_| self.curve.over != Axis::Threads),
            depth: self.curve.when.depth.filter(|_| self.curve.over != Axis::Depth),
            ..Conditions::default()
        };
        let with = concurrency(&fixed);
        if !with.is_empty() {
            name = if name.is_empty() { with } else { format!("{name}, {with}") };
        }
        if name.is_empty() {
            "all that the source says".into()
        } else {
            name
        }
    }
}

/// Key of a picture: axis, direction, bandwidth or rate. Reads first, then writes, then mixes.
type Key = (u8, u32, bool);

fn key(curve: &Curve) -> Key {
    let axis = match curve.over {
        Axis::Threads => 0,
        Axis::Depth => 1,
        Axis::Bytes => 2,
        Axis::ReadsPercent => 3,
    };
    // Thousandths keep 66.7 apart from 66; writes alone come after reads alone, then mixes.
    let mix = match curve.when.reads_percent {
        Some(100.0) => 0,
        Some(0.0) => 1,
        Some(share) => 200_000 - (share * 1000.0) as u32,
        None => u32::MAX,
    };
    (axis, mix, curve.unit.bytes().is_none())
}

fn curves<'a>(first: Option<&'a Tier>, second: Option<&'a Tier>) -> Vec<Owned<'a>> {
    let of = |tier: Option<&'a Tier>, second: bool| {
        tier.into_iter().flat_map(move |t| t.curves.iter().map(move |curve| Owned { curve, second }))
    };
    of(first, false).chain(of(second, true)).collect()
}

/// The pictures of lines of a tier.
pub fn panels(first: Option<&Tier>, second: Option<&Tier>) -> Vec<Panel> {
    let all = curves(first, second);
    let mut keys: Vec<Key> = all.iter().map(|o| key(o.curve)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|k| panel(all.iter().filter(|o| key(o.curve) == k).copied().collect())).collect()
}

fn panel(mut curves: Vec<Owned<'_>>) -> Panel {
    curves.sort_by(|a, b| b.highest().total_cmp(&a.highest()));
    let mut names: Vec<String> = Vec::new();
    for owned in &curves {
        let name = owned.name();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.truncate(COLOURS);
    let (unit, over) = (curves[0].curve.unit, curves[0].curve.over);
    let (scale, word) = scale_of(curves[0].highest(), unit);
    let direction = match over {
        Axis::ReadsPercent => "Reads and writes together".to_owned(),
        _ => capitalised(&direction_alone(&curves[0].curve.when)),
    };
    let along = match over {
        Axis::Threads => "over threads",
        Axis::Depth => "over operations in flight",
        Axis::Bytes => "over the size of operations",
        Axis::ReadsPercent => "over the share of reads",
    };
    let title = format!("{direction} {along}");
    let (mut lines, mut legend, mut left_out) = (Vec::new(), Vec::new(), 0);
    for owned in &curves {
        let name = owned.name();
        let Some(colour) = names.iter().position(|n| *n == name) else {
            left_out += 1;
            continue;
        };
        let in_unit = |y: Estimate| plain(y, owned.curve.unit).scaled(1.0 / scale);
        lines.push(Line {
            name: name.clone(),
            colour,
            second: owned.second,
            points: owned.curve.points.iter().map(|p| (p.x, in_unit(p.y))).collect(),
            knee: owned.curve.knee().map(|k| k.reached_at),
        });
        let (source, caveat) = (owned.curve.source.clone(), owned.curve.caveat.clone());
        legend.push(LegendEntry { colour, second: owned.second, name, source, caveat });
    }
    let chart = CurveChart { label: title.clone(), over, unit: word.to_owned(), lines };
    Panel { title, svg: chart.svg(), legend, left_out }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |c| c.to_uppercase().chain(letters).collect())
}

/// A heat map of each profile, in one scale.
pub struct Heat {
    /// What it shows.
    pub title: String,
    /// One picture for each profile that has enough for one; whose it is, and where its numbers come from.
    pub maps: Vec<(bool, Markup, Citation)>,
    /// Unit of the numbers.
    pub unit: &'static str,
}

/// A map of a size, a count and a number for each.
struct Grid {
    when: Conditions,
    over: Axis,
    unit: Unit,
    source: Citation,
    second: bool,
    cells: Vec<(u32, u64, Estimate)>,
}

/// Heat maps: curves over threads or depth that differ in the size of operations only.
pub fn heat_maps(first: Option<&Tier>, second: Option<&Tier>) -> Vec<Heat> {
    let mut grids: Vec<Grid> = Vec::new();
    for owned in curves(first, second) {
        let curve = owned.curve;
        let Some(bytes) = curve.when.bytes else { continue };
        if !matches!(curve.over, Axis::Threads | Axis::Depth) {
            continue;
        }
        let when = Conditions { bytes: None, ..curve.when.clone() };
        let cells = curve.points.iter().map(|p| (p.x as u32, bytes, plain(p.y, curve.unit)));
        let is_bandwidth = curve.unit.bytes().is_some();
        let mine = |g: &&mut Grid| {
            g.when == when
                && g.second == owned.second
                && g.unit.bytes().is_some() == is_bandwidth
                && g.over == curve.over
                && g.source.key == curve.source.key
        };
        match grids.iter_mut().find(mine) {
            Some(grid) => grid.cells.extend(cells),
            None => grids.push(Grid {
                when,
                over: curve.over,
                unit: curve.unit,
                source: curve.source.clone(),
                second: owned.second,
                cells: cells.collect(),
            }),
        }
    }
    grids.retain(|g| HeatMap::is_map(&g.cells));
    let mut out: Vec<Heat> = Vec::new();
    let mut done = vec![false; grids.len()];
    for index in 0..grids.len() {
        if done[index] {
            continue;
        }
        let here = &grids[index];
        let same = |g: &Grid| g.when == here.when && g.over == here.over && g.second != here.second;
        let partner = (index + 1..grids.len()).find(|i| !done[*i] && same(&grids[*i]));
        let members: Vec<&Grid> = std::iter::once(index).chain(partner).map(|i| &grids[i]).collect();
        out.push(heat(&members));
        partner.into_iter().chain([index]).for_each(|i| done[i] = true);
    }
    out
}

fn heat(members: &[&Grid]) -> Heat {
    let all = members.iter().flat_map(|g| g.cells.iter().map(|c| c.2.value));
    let highest = all.fold(0.0, f64::max);
    let (scale, unit) = scale_of(highest, members[0].unit);
    let when = &members[0].when;
    let manner = details(when, false);
    let title = format!(
        "{}{}{manner}",
        capitalised(&direction_alone(when)),
        if manner.is_empty() { "" } else { ", " }
    );
    let columns = if members[0].over == Axis::Threads { "threads" } else { "operations in flight" };
    let map = |grid: &&Grid| {
        let cells = grid.cells.iter().map(|(x, bytes, v)| (*x, *bytes, v.scaled(1.0 / scale))).collect();
        let map = HeatMap {
            label: format!("Heat map: {title}"),
            columns: columns.to_owned(),
            unit: unit.to_owned(),
            cells,
            highest: highest / scale,
        };
        (grid.second, map.svg(), grid.source.clone())
    };
    Heat { maps: members.iter().map(map).collect(), title, unit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_profile::platforms::platform;

    #[test]
    fn curves_meet_by_axis_and_direction() {
        let gen1 = platform("optane-gen1").unwrap();
        let pmem = gen1.tier("pmem");
        let all = panels(pmem, None);
        let titles: Vec<&str> = all.iter().map(|p| p.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "Read over threads",
                "Write over threads",
                "Read over the size of operations",
                "Write over the size of operations",
                "Reads and writes together over the share of reads"
            ]
        );
        let drawn: usize = all.iter().map(|p| p.legend.len() + p.left_out).sum();
        assert_eq!(drawn, pmem.unwrap().curves.len(), "every curve is drawn or counted");
        assert_eq!(heat_maps(pmem, None).len(), 2, "local and remote stores of 256 B and 4 KiB");
    }

    #[test]
    fn the_same_conditions_have_the_same_colour_in_both() {
        let (one, two) = (platform("p4800x").unwrap(), platform("p3700").unwrap());
        let both = panels(one.tiers.first(), two.tiers.first());
        let legend = &both[0].legend;
        assert_eq!(legend.len(), 2);
        assert_eq!((legend[0].colour, legend[0].second), (legend[1].colour, !legend[1].second));
    }
}
