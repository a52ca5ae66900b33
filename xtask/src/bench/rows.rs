//! The table of a comparison: ratios with their spread, as text and as JSON.

use serde_json::{json, Value};

/// Schema name of the JSON document.
const SCHEMA: &str = "forebay.bench/1";

/// One comparison: how many times as fast as the other system.
#[derive(Clone, Debug, Default)]
pub struct Row {
    measure: String,
    bytes: u64,
    checksum: bool,
    against: String,
    /// The ratio that has to be reached.
    pub bar: Option<f64>,
    ours_ns: Vec<f64>,
    theirs_ns: Vec<f64>,
}

impl Row {
    /// A comparison without a measurement yet.
    pub fn new(measure: &str, bytes: u64, checksum: bool, against: &str) -> Row {
        Row { measure: measure.into(), bytes, checksum, against: against.into(), ..Row::default() }
    }

    /// One pair, in nanoseconds an object.
    pub fn add(&mut self, ours_ns: f64, theirs_ns: f64) {
        self.ours_ns.push(ours_ns);
        self.theirs_ns.push(theirs_ns);
    }

    /// The ratios, in ascending order.
    fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> = self.theirs_ns.iter().zip(&self.ours_ns).map(|(t, o)| t / o).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Is the median below the bar?
    pub fn misses(&self) -> bool {
        self.bar.is_some_and(|bar| median(&self.ratios()) < bar)
    }

    /// Ends with this ratio as its bar.
    pub fn with_bar(mut self, bar: f64) -> Row {
        self.bar = Some(bar);
        self
    }

    /// The row as a line of the table.
    pub fn line(&self) -> String {
        let ratios = self.ratios();
        let met = if self.misses() { "missed" } else { "met" };
        let wanted = self.bar.map_or(String::new(), |bar| format!("bar {bar:.2}: {met}"));
        format!(
            "{:<25} {:>8} {:>4}  {:<24} {:>7.2} {:>7.2}..{:<7.2} {:>12} {:>12}  {wanted}",
            self.measure,
            size(self.bytes),
            if self.checksum { "on" } else { "off" },
            self.against,
            median(&ratios),
            ratios.first().copied().unwrap_or(f64::NAN),
            ratios.last().copied().unwrap_or(f64::NAN),
            speed(self.bytes, median(&sorted(&self.ours_ns))),
            speed(self.bytes, median(&sorted(&self.theirs_ns))),
        )
        .trim_end()
        .to_string()
    }

    fn json(&self) -> Value {
        let ratios = self.ratios();
        json!({
            "measure": self.measure, "bytes": self.bytes, "checksum": self.checksum, "against": self.against,
            "ratio": median(&ratios), "spread": [ratios.first(), ratios.last()], "repetitions": ratios.len(),
            "ours_ns": median(&sorted(&self.ours_ns)), "theirs_ns": median(&sorted(&self.theirs_ns)),
            "bar": self.bar,
        })
    }
}

/// The whole comparison.
pub struct Table {
    /// How often each pair is measured.
    repetitions: usize,
    /// The comparisons that took place.
    pub rows: Vec<Row>,
    /// What could not be measured, and why.
    skipped: Vec<String>,
}

impl Table {
    /// An empty table.
    pub fn new(repetitions: usize, skipped: Vec<String>) -> Table {
        Table { repetitions, rows: Vec::new(), skipped }
    }

    /// Counts the repetitions of what is measured, and says on standard error how far it has come.
    pub fn turns(&self, what: &str) -> impl Iterator<Item = usize> {
        let (what, of) = (what.to_string(), self.repetitions);
        (1..=of).inspect(move |turn| eprintln!("{what}: {turn} of {of}"))
    }

    /// Notes what cannot be measured here, and why.
    pub fn skip(&mut self, why: String) {
        self.skipped.push(why);
    }

    /// Adds a row, unless nothing was measured for it; says it at once, as a bench that is ended early prints no table.
    pub fn push(&mut self, row: Row) {
        if !row.ours_ns.is_empty() {
            eprintln!("{}", row.line());
            self.rows.push(row);
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "measured here, each pair {} times in turn; ratio = how many times as fast, median and spread\n\n\
             {:<25} {:>8} {:>4}  {:<24} {:>7} {:^16} {:>12} {:>12}\n",
            self.repetitions, "measure", "object", "crc", "against", "ratio", "spread", "ours", "theirs"
        );
        self.rows.iter().for_each(|row| text.push_str(&format!("{}\n", row.line())));
        self.skipped.iter().for_each(|skip| text.push_str(&format!("skipped  {skip}\n")));
        text
    }

    /// For programs.
    pub fn json(&self, benchmark: &str) -> String {
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        let document =
            json!({"schema": SCHEMA, "benchmark": benchmark, "rows": rows, "skipped": self.skipped});
        serde_json::to_string_pretty(&document).expect("plain values")
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Middle of ascending values; the mean of the two middle ones of an even number.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b % 1024 != 0 => format!("{b} B"),
        b => format!("{} KiB", b >> 10),
    }
}

/// Large objects as bandwidth, small ones as time an object.
fn speed(bytes: u64, ns: f64) -> String {
    if bytes >= 1 << 20 {
        format!("{:.2} GB/s", bytes as f64 / ns)
    } else {
        format!("{:.2} us", ns / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let mut row = Row::new("stream", 64 << 20, true, "SST");
        row.bar = Some(5.0);
        [(10e6, 60e6), (10e6, 50e6), (20e6, 60e6)]
            .into_iter()
            .for_each(|(ours, theirs)| row.add(ours, theirs));
        row
    }

    #[test]
    fn the_median_of_the_ratios_decides() {
        assert_eq!(row().ratios(), [3.0, 5.0, 6.0]);
        assert!(!row().misses());
        let mut worse = row();
        worse.add(10e6, 10e6);
        assert!(worse.misses());
        assert!(worse.line().contains("bar 5.00: missed"), "{}", worse.line());
    }

    #[test]
    fn the_document_has_its_schema_and_rows() {
        let mut table = Table::new(3, vec!["put against libpmem: not installed".into()]);
        table.push(row());
        table.push(Row::new("put", 2048, true, "libpmem"));
        let value: Value = serde_json::from_str(&table.json("put")).expect("JSON");
        assert_eq!(value["schema"], "forebay.bench/1");
        assert_eq!(value["rows"].as_array().map(Vec::len), Some(1));
        assert_eq!(value["rows"][0]["ratio"], 5.0);
        assert!(table.text().contains("6.71 GB/s"), "{}", table.text());
    }
}
