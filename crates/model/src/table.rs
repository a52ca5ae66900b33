//! Tables of measured points: read between them, held beyond them.
//!
//! Guarantees: between two points the value lies between theirs; beyond the first and the last point it is theirs.
//! Reading allocates nothing.

/// Numbers over a rising x, each with half of its error bar relative to itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    points: Vec<Row>,
    logarithmic: bool,
}

/// One point of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Where.
    pub x: f64,
    /// The number.
    pub y: f64,
    /// Half of its error bar as a share of the number.
    pub error: f64,
}

impl Table {
    /// A table that is linear in x between its points, which must rise in x. Without points it is 1 everywhere.
    pub fn new(points: Vec<Row>) -> Table {
        debug_assert!(points.windows(2).all(|w| w[0].x < w[1].x), "the points rise");
        Table { points, logarithmic: false }
    }

    /// A table that is linear in the logarithm of x: for sizes.
    pub fn of_sizes(points: Vec<Row>) -> Table {
        Table { logarithmic: true, ..Table::new(points) }
    }

    /// The same number everywhere.
    pub fn flat(y: f64) -> Table {
        Table::new(vec![Row { x: 1.0, y, error: 0.0 }])
    }

    /// Its points.
    pub fn rows(&self) -> &[Row] {
        &self.points
    }

    /// The same table with each number made over.
    pub fn map(mut self, with: impl Fn(&Row) -> f64) -> Table {
        for row in &mut self.points {
            row.y = with(row);
        }
        self
    }

    /// The number at x.
    pub fn at(&self, x: f64) -> f64 {
        self.between(x, |row| row.y).unwrap_or(1.0)
    }

    /// Half of the error bar at x, as a share of the number.
    pub fn error_at(&self, x: f64) -> f64 {
        self.between(x, |row| row.error).unwrap_or(0.0)
    }

    fn between(&self, x: f64, of: impl Fn(&Row) -> f64) -> Option<f64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        if x <= first.x {
            return Some(of(first));
        }
        if x >= last.x {
            return Some(of(last));
        }
        let above = self.points.iter().position(|row| row.x > x)?;
        let (a, b) = (&self.points[above - 1], &self.points[above]);
        let share = match self.logarithmic {
            true => (x / a.x).ln() / (b.x / a.x).ln(),
            false => (x - a.x) / (b.x - a.x),
        };
        Some(of(a) + share * (of(b) - of(a)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(x: f64, y: f64) -> Row {
        Row { x, y, error: 0.1 * x }
    }

    #[test]
    fn between_points_it_is_linear_and_beyond_them_it_holds() {
        let table = Table::new(vec![row(1.0, 10.0), row(3.0, 20.0)]);
        assert_eq!((table.at(2.0), table.at(0.5), table.at(9.0)), (15.0, 10.0, 20.0));
        assert!((table.error_at(2.0) - 0.2).abs() < 1e-12);
        let sizes = Table::of_sizes(vec![row(64.0, 1.0), row(4096.0, 4.0)]);
        assert!((sizes.at(512.0) - 2.5).abs() < 1e-12);
        assert_eq!(Table::new(Vec::new()).at(7.0), 1.0);
    }
}
