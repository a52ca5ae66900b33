//! A heat map: one number for each size and number of threads.

use std::fmt::Write;

use maud::Markup;

use crate::drawing::{closed, escape, open_svg, text};
use forebay_profile::words::{digits, size, three_digits};
use forebay_profile::Estimate;

const CELL: (f64, f64) = (52.0, 24.0);
const LEFT: f64 = 70.0;
const TOP: f64 = 8.0;

/// The picture: columns are threads (or depth), rows sizes, the largest on top.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// What it shows, for those who cannot see it.
    pub label: String,
    /// What the columns are: `threads`, `operations in flight`.
    pub columns: String,
    /// Unit of the values.
    pub unit: String,
    /// (column, bytes, value in the unit).
    pub cells: Vec<(u32, u64, Estimate)>,
    /// The value of the deepest colour: the same in maps that stand side by side.
    pub highest: f64,
}

impl HeatMap {
    /// Whether there is enough for a map: at least two rows and two columns.
    pub fn is_map(cells: &[(u32, u64, Estimate)]) -> bool {
        let several = |mut values: Vec<u64>| {
            values.sort_unstable();
            values.dedup();
            values.len() >= 2
        };
        several(cells.iter().map(|c| u64::from(c.0)).collect())
            && several(cells.iter().map(|c| c.1).collect())
    }

    /// The picture.
    pub fn svg(&self) -> Markup {
        let mut columns: Vec<u32> = self.cells.iter().map(|c| c.0).collect();
        let mut rows: Vec<u64> = self.cells.iter().map(|c| c.1).collect();
        columns.sort_unstable();
        columns.dedup();
        rows.sort_unstable_by(|a, b| b.cmp(a));
        rows.dedup();
        let width = (LEFT + columns.len() as f64 * CELL.0 + 8.0).max(520.0);
        let bottom = TOP + rows.len() as f64 * CELL.1;
        let mut out = open_svg(width, bottom + 40.0, &self.label);
        for (index, bytes) in rows.iter().enumerate() {
            let y = TOP + (index as f64 + 0.5) * CELL.1 + 4.0;
            text(&mut out, LEFT - 8.0, y, "tick end", &size(*bytes));
        }
        for (index, column) in columns.iter().enumerate() {
            let x = LEFT + (index as f64 + 0.5) * CELL.0;
            text(&mut out, x, bottom + 16.0, "tick mid", &column.to_string());
        }
        let middle = LEFT + columns.len() as f64 * CELL.0 / 2.0;
        text(&mut out, middle, bottom + 34.0, "tick mid", &self.columns);
        for (column, bytes, value) in &self.cells {
            let place = columns.binary_search(column).ok().zip(rows.iter().position(|r| r == bytes));
            let Some((x, y)) = place else { continue };
            let corner = (LEFT + x as f64 * CELL.0, TOP + y as f64 * CELL.1);
            self.cell(&mut out, corner, *column, *bytes, *value);
        }
        closed(out)
    }

    fn cell(&self, out: &mut String, (x, y): (f64, f64), column: u32, bytes: u64, value: Estimate) {
        let share = (value.value / self.highest.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        let (w, h) = (CELL.0 - 2.0, CELL.1 - 2.0);
        let (number, error) = digits(value.value, value.error);
        let error = error.map_or(String::new(), |e| format!(" ± {e}"));
        let _ = write!(
            out,
            "<rect class=\"heat\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w}\" height=\"{h}\" rx=\"2\" \
             fill-opacity=\"{:.3}\"><title>{number}{error} {}, {} {}, {}</title></rect>",
            0.06 + 0.94 * share,
            escape(&self.unit),
            column,
            escape(&self.columns),
            size(bytes),
        );
        // On a deep colour the text takes the colour of the page.
        let class = if share > 0.55 { "cell deep mid" } else { "cell mid" };
        text(out, x + w / 2.0, y + h / 2.0 + 4.0, class, &three_digits(value.value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_drawn_with_its_number() {
        let cells: Vec<(u32, u64, Estimate)> = [1u32, 2, 8]
            .into_iter()
            .flat_map(|t| [64u64, 4096].map(|b| (t, b, Estimate::new(f64::from(t) * b as f64, 1.0))))
            .collect();
        assert!(HeatMap::is_map(&cells) && !HeatMap::is_map(&cells[..2]) && !HeatMap::is_map(&[]));
        let map = HeatMap {
            label: "x".into(),
            columns: "threads".into(),
            unit: "GB/s".into(),
            cells,
            highest: 32768.0,
        };
        let svg = map.svg().into_string();
        assert_eq!(svg.matches("class=\"heat\"").count(), 6);
        assert!(svg.contains("fill-opacity=\"1.000\"") && svg.contains(">4 KiB<"), "{svg}");
    }
}
