//! What study C measured with this benchmark on persistent memory under three file systems, and on a SATA SSD: 4
//! processes, MPI-IO, a sync after every write (btio_pmfs_results.xlsx of the repository
//! Scientific-Computing-Lab-NRCN/StoringStorage).

use serde::Serialize;

use forebay_cli::output::{number, table_text, Output};

const SOURCE: &str = "btio_pmfs_results.xlsx of Scientific-Computing-Lab-NRCN/StoringStorage: 4 processes, \
                      MPI-IO, a sync after every write";

/// File systems: three on Optane DCPMM, one on a SATA SSD.
const FILE_SYSTEMS: [&str; 4] = ["splitfs", "ext4-dax", "nova", "xfs (SATA SSD)"];
/// Bytes that were written, 10^9.
const GIGABYTES: [f64; 6] = [0.00125, 0.01, 0.08, 0.64, 5.12, 40.96];

/// MiB/s for each size, by file system.
type Speeds = [[f64; 4]; 6];

const COLLECTIVE_WRITE: Speeds = [
    [22.46, 19.84, 7.79, 12.25],
    [112.86, 105.87, 122.83, 86.76],
    [539.97, 298.42, 364.2, 173.42],
    [655.73, 387.57, 575.72, 206.69],
    [726.58, 406.45, 625.65, 208.9],
    [731.39, 413.45, 655.74, 181.16],
];
const COLLECTIVE_READ: Speeds = [
    [25.68, 22.26, 22.84, 19.08],
    [175.18, 139.23, 137.4, 94.55],
    [956.13, 503.66, 411.98, 240.28],
    [822.63, 1011.36, 948.58, 277.63],
    [1587.56, 1189.24, 1104.81, 298.23],
    [1623.31, 1223.54, 1090.78, 309.6],
];
const INDEPENDENT_WRITE: Speeds = [
    [23.62, 19.78, 10.07, 11.92],
    [113.86, 80.93, 55.07, 72.96],
    [542.96, 180.9, 186.06, 116.25],
    [707.271, 254.44, 324.14, 129.33],
    [710.51, 296.55, 460.81, 157.15],
    [732.36, 369.49, 609.41, 226.2],
];
const INDEPENDENT_READ: Speeds = [
    [25.32, 21.91, 15.67, 22.66],
    [178.89, 182.32, 108.35, 115.61],
    [928.77, 925.07, 606.36, 224.64],
    [1700.53, 1813.38, 1659.01, 293.53],
    [1583.24, 2801.88, 2376.99, 331.02],
    [1673.98, 3752.81, 3698.66, 330.32],
];

/// How ranks wrote, in the study's word; which of ours is closest; and what came out.
const MODES: [(&str, &str, &Speeds, &Speeds); 2] = [
    ("collective", "full", &COLLECTIVE_WRITE, &COLLECTIVE_READ),
    ("independent", "simple", &INDEPENDENT_WRITE, &INDEPENDENT_READ),
];

/// A figure of the study.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    mode: &'static str,
    nearest_mode: &'static str,
    file_system: &'static str,
    gigabytes: f64,
    write_mib_per_s: f64,
    read_mib_per_s: f64,
    source: &'static str,
}

fn rows(size: usize) -> impl Iterator<Item = Row> {
    MODES.into_iter().flat_map(move |(mode, nearest_mode, write, read)| {
        FILE_SYSTEMS.into_iter().enumerate().map(move |(at, file_system)| Row {
            mode,
            nearest_mode,
            file_system,
            gigabytes: GIGABYTES[size],
            write_mib_per_s: write[size][at],
            read_mib_per_s: read[size][at],
            source: SOURCE,
        })
    })
}

/// Those of the size that is nearest to these bytes, by their ratio.
pub(super) fn nearest(bytes: u64) -> Vec<Row> {
    let far = |size: &usize| (GIGABYTES[*size] * 1e9 / bytes as f64).ln().abs();
    let size = (0..GIGABYTES.len()).min_by(|a, b| far(a).total_cmp(&far(b))).unwrap_or(0);
    rows(size).collect()
}

/// A table of them.
pub(super) fn text(rows: &[Row], out: &Output) -> String {
    let mut table = out.table(&["MODE", "LIKE", "FILE SYSTEM", "GB", "WRITE MiB/s", "READ MiB/s"]);
    for row in rows {
        table.add_row(vec![
            comfy_table::Cell::new(row.mode),
            comfy_table::Cell::new(row.nearest_mode),
            comfy_table::Cell::new(row.file_system),
            number(row.gigabytes),
            number(row.write_mib_per_s),
            number(row.read_mib_per_s),
        ]);
    }
    format!("{}\npublished: {SOURCE}\n", table_text(&table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_beside_is_the_nearest() {
        let gigabytes = |bytes| nearest(bytes)[0].gigabytes;
        assert_eq!((gigabytes(1), gigabytes(20_000_000), gigabytes(30_000_000)), (0.00125, 0.01, 0.08));
        assert_eq!((gigabytes(420_000_000), gigabytes(u64::MAX)), (0.64, 40.96));
    }

    /// Every figure is in the study's table, and no figure of that is missing here.
    #[test]
    fn figures_are_those_of_the_study() {
        let Some(dir) = std::env::var_os("FOREBAY_REFERENCE") else {
            eprintln!("skipped: FOREBAY_REFERENCE names no folder");
            return;
        };
        let table = std::path::Path::new(&dir).join("btio_filesystems.csv");
        let text = std::fs::read_to_string(table).expect("the study's table");
        let mut seen = 0;
        for row in (0..GIGABYTES.len()).flat_map(rows) {
            for (operation, figure) in [("write", row.write_mib_per_s), ("read", row.read_mib_per_s)] {
                let begin = format!("{},{operation},{},", row.mode, row.gigabytes);
                let file_system = row.file_system.split(' ').next().unwrap_or_default();
                let end = format!(",{file_system},{figure},");
                let found = text.lines().filter(|line| line.starts_with(&begin) && line.contains(&end));
                assert_eq!(found.count(), 1, "{begin} {end}");
                seen += 1;
            }
        }
        assert_eq!(seen, text.lines().count() - 1);
    }
}
