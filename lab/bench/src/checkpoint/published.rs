//! What study C measured with the same solver, class D (408 points along each edge, 250 steps), with a checkpoint
//! after each step: checkpoint_restart_results.xlsx of the repository Scientific-Computing-Lab-NRCN/StoringStorage.

use serde::Serialize;

use forebay_cli::output::{number, table_text, Output};

const SOURCE: &str =
    "checkpoint_restart_results.xlsx of Scientific-Computing-Lab-NRCN/StoringStorage: BT class D, \
                      a checkpoint after each step";

/// Processes of the runs.
const RANKS: [u32; 4] = [1, 4, 9, 16];
/// Seconds of the runs without checkpoints.
const NONE_S: [f64; 4] = [19598.35, 4361.5, 2221.63, 1244.27];

/// A way to save, in the study's words: seconds of its runs, seconds of a checkpoint and of a recovery where there are
/// any.
struct Method {
    name: &'static str,
    total_s: [f64; 4],
    checkpoint_s: Option<[f64; 4]>,
    recovery_s: Option<[f64; 4]>,
}

const METHODS: [Method; 6] = [
    Method {
        name: "SCR - NVRAM",
        total_s: [45935.29, 13416.17, 8233.01, 10790.21],
        checkpoint_s: Some([30.3380284608833, 15.2027609827999, 9.74490233478334, 13.2615989672333]),
        recovery_s: Some([4.85, 1.32, 0.64, 0.38]),
    },
    Method {
        name: "SCR - NVRAM (modified - new config)",
        total_s: [29324.48, 9093.11, 4985.81, 4651.84],
        checkpoint_s: None,
        recovery_s: None,
    },
    Method {
        name: "SCR - SSD (modified - new config)",
        total_s: [33111.65, 15553.69, 12988.97, 12223.27],
        checkpoint_s: Some([49.8176814102, 41.7522276429833, 42.2387608194333, 46.8322713780999]),
        recovery_s: Some([4.82, 1.3, 0.63, 0.4]),
    },
    // It never waited for the medium.
    Method {
        name: "SCR - SSD (modified - old config)",
        total_s: [24346.67, 5544.02, 2851.42, 1565.11],
        checkpoint_s: None,
        recovery_s: None,
    },
    Method {
        name: "DMTCP - NVRAM",
        total_s: [25475.93, 10647.99, 7853.09, 8061.17],
        checkpoint_s: Some([61.9723167352676, 23.6592486858367, 22.0688202857971, 29.1582554340362]),
        recovery_s: Some([19.611394, 6.433723, 6.032835, 8.812077]),
    },
    Method {
        name: "DMTCP - SSD",
        total_s: [26062.18, 18006.65, 19216.75, 20073.69],
        checkpoint_s: Some([22.6886898040771, 84.0611870328585, 96.4790623009204, 90.4140941321849]),
        recovery_s: Some([11.483868, 3.994187, 3.132661, 4.220131]),
    },
];

/// A run of the study.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    method: &'static str,
    ranks: u32,
    seconds: f64,
    /// Of the run without checkpoints.
    none_seconds: f64,
    ratio: f64,
    checkpoint_seconds: Option<f64>,
    recovery_seconds: Option<f64>,
    source: &'static str,
}

/// All of them.
pub(super) fn rows() -> Vec<Row> {
    let row = |method: &Method, at: usize| Row {
        method: method.name,
        ranks: RANKS[at],
        seconds: method.total_s[at],
        none_seconds: NONE_S[at],
        ratio: method.total_s[at] / NONE_S[at],
        checkpoint_seconds: method.checkpoint_s.map(|all| all[at]),
        recovery_seconds: method.recovery_s.map(|all| all[at]),
        source: SOURCE,
    };
    METHODS.iter().flat_map(|method| (0..RANKS.len()).map(move |at| row(method, at))).collect()
}

/// A table of them.
pub(super) fn text(rows: &[Row], out: &Output) -> String {
    let mut table = out.table(&["METHOD", "RANKS", "s", "BY NONE", "CHECKPOINT s", "RECOVERY s"]);
    let or_none = |value: Option<f64>| number(value.map_or("-".into(), |value| format!("{value:.2}")));
    for row in rows {
        table.add_row(vec![
            comfy_table::Cell::new(row.method),
            number(row.ranks),
            number(format!("{:.0}", row.seconds)),
            number(format!("{:.2}", row.ratio)),
            or_none(row.checkpoint_seconds),
            or_none(row.recovery_seconds),
        ]);
    }
    format!("{}\npublished: {SOURCE}\n", table_text(&table))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every figure is in the study's table.
    #[test]
    fn figures_are_those_of_the_study() {
        let Some(dir) = std::env::var_os("FOREBAY_REFERENCE") else {
            eprintln!("skipped: FOREBAY_REFERENCE names no folder");
            return;
        };
        let table = std::path::Path::new(&dir).join("checkpoint_restart_bt.csv");
        let text = std::fs::read_to_string(table).expect("the study's table");
        let is_there = |line: String| assert!(text.lines().any(|l| l.starts_with(&line)), "{line}");
        for row in rows() {
            let (method, ranks) = (row.method, row.ranks);
            is_there(format!("crash-free,{method},{ranks},total_time_s,{},", row.seconds));
            is_there(format!("crash-free,Vanilla,{ranks},total_time_s,{},", row.none_seconds));
            // Times of single steps are of the runs that dropped the cache.
            let dropped = match method.split_once(" (").map_or(method, |(name, _)| name) {
                name if name.starts_with("SCR") => format!("{name} (with cache deletion)"),
                name => name.to_owned(),
            };
            for (metric, figure) in
                [("mean_checkpoint_s", row.checkpoint_seconds), ("single_recovery_s", row.recovery_seconds)]
            {
                if let Some(figure) = figure {
                    is_there(format!("per-iteration,{dropped},{ranks},{metric},{figure},"));
                }
            }
        }
    }
}
