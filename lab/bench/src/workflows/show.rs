//! The screen of `forebay bench workflows`: normalised times, regrets, and how well the predictions were.

use comfy_table::Cell;
use forebay_flow::advise::Sure;

use super::judge::{Body, CaseBody, BUSY_MAX};
use forebay_cli::output::{number, table_text, toned, Output, Tone};

/// Columns of plans: how their short names begin and end.
const COLUMNS: [(&str, &str); 12] = [
    ("S-", "LocW"),
    ("S-", "LocR"),
    ("S-", "LocI"),
    ("SS-", "LocW"),
    ("SS-", "LocR"),
    ("SS-", "LocI"),
    ("P-", "LocW"),
    ("P-", "LocR"),
    ("P-", "LocI"),
    ("G", "LocW"),
    ("G", "LocR"),
    ("G", "LocI"),
];

/// What a short name ends with where objects are gathered.
const IN_BATCHES: &str = "+b";

/// The whole screen.
pub(crate) fn text(body: &Body, out: &Output) -> String {
    let mut text = format!(
        "{} workflows on {} divided by k = {}, {} processors; emulated: times are measured through a throttled \
         channel, computing is a timed sleep, the sockets are virtual\n\n",
        body.workflows.len(),
        body.medium,
        body.k,
        body.processors
    );
    let mut heading = vec!["WORKFLOW", "RANKS", "OBJECTS"];
    let names: Vec<String> =
        COLUMNS.iter().map(|(mode, side)| format!("{}-{side}", mode.trim_end_matches('-'))).collect();
    heading.extend(names.iter().map(String::as_str));
    heading.extend(["BEST s", "CHOSEN", "REGRET %"]);
    let mut table = out.table(&heading);
    for case in &body.workflows {
        table.add_row(row(case));
        if let Some(row) = batches_row(case) {
            table.add_row(row);
        }
    }
    text += &table_text(&table);
    body.gaps.iter().for_each(|gap| text += &format!("of the profile: {gap}\n"));
    text +=
        "measured times relative to the best of a row; > ended there; CHOSEN by the model, ? not sure\n\n";
    let mut table = out.table(&["CHOICE BY", "TRIALS", "MEAN REGRET %", "MAX %", "BEST FOUND"]);
    for way in &body.ways {
        table.add_row(vec![
            Cell::new(&way.name),
            number(way.trials),
            number(percent(way.mean_regret)),
            number(percent(way.max_regret)),
            number(format!("{}/{}", way.found, body.workflows.len())),
        ]);
    }
    text += &table_text(&table);
    if let Some(why) = &body.without_optuna {
        text += &format!("skipped: Optuna ({why})\n");
    }
    text += &format!(
        "\npredicted against measured, {} plans: median error {} %, inside the error bar {:.0} %\n",
        body.compared,
        percent(body.median_error),
        100.0 * body.inside_bar
    );
    text += &match body.gated_wins.is_empty() {
        true => "gated plans: the fastest by more than a tie in no workflow\n".to_owned(),
        false => format!("gated plans: the fastest by more than a tie in {}\n", body.gated_wins.join(", ")),
    };
    text += &format!("processors were at most {:.0} % busy in a run", 100.0 * body.busy_max);
    text += &match body.invalid {
        0 => "\n".to_owned(),
        n => format!(
            "; {n} of {} runs are INVALID: more than {:.0} %, so that the processors counted too\n",
            body.runs,
            100.0 * BUSY_MAX
        ),
    };
    text
}

fn row(case: &CaseBody) -> Vec<Cell> {
    let told = &case.told;
    let mut row = vec![
        Cell::new(&told.workflow),
        number(format!("{}+{}", told.writers, told.readers)),
        number(format!("{} x {}", told.objects, forebay_space::format_bytes(told.object_bytes))),
    ];
    row.extend(times(case, ""));
    let best = case.plans.iter().map(|p| p.measured_s).fold(f64::INFINITY, f64::min);
    let mark = if matches!(case.sure, Sure::No | Sure::Tie) { "?" } else { "" };
    let regret = case.regrets.first().copied().unwrap_or(0.0);
    let chosen = format!("{}{mark}", case.chosen);
    row.push(number(format!("{best:.2}")));
    row.push(if case.chosen == case.best { Cell::new(chosen) } else { toned(chosen, Tone::Notable) });
    row.push(number(percent(regret)));
    row
}

/// The same plans with small objects in batches, where there were any.
fn batches_row(case: &CaseBody) -> Option<Vec<Cell>> {
    case.plans.iter().any(|p| p.plan.ends_with(IN_BATCHES)).then(|| {
        let mut row = vec![Cell::new("  in batches"), Cell::new(""), Cell::new("")];
        row.extend(times(case, IN_BATCHES));
        row
    })
}

/// A cell for each of [`COLUMNS`], of the plans whose short names end so after the column's.
fn times<'a>(case: &'a CaseBody, ending: &'a str) -> impl Iterator<Item = Cell> + 'a {
    COLUMNS.iter().map(move |(mode, side)| {
        let is_own = |plan: &str| {
            plan.starts_with(mode) && plan.strip_suffix(ending).is_some_and(|plain| plain.ends_with(side))
        };
        let own = case.plans.iter().find(|p| is_own(&p.plan));
        number(own.map_or("-".to_owned(), |plan| {
            let mark = if plan.ended { ">" } else { "" };
            let invalid = if plan.busy > BUSY_MAX { "!" } else { "" };
            format!("{mark}{:.2}{invalid}", case.against_best(plan))
        }))
    })
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::super::judge::tests::{case, plan};
    use super::*;

    fn shown(row: Vec<Cell>) -> Vec<String> {
        row.iter().map(Cell::content).collect()
    }

    #[test]
    fn plans_in_batches_have_a_row_of_their_own() {
        let plain = case(vec![plan("S-LocW", 1.0, 2.0), plan("P-LocR", 1.0, 1.0)]);
        assert!(batches_row(&plain).is_none());
        let both =
            case(vec![plan("S-LocW", 1.0, 3.0), plan("S-LocW+b", 1.0, 2.0), plan("SS-LocW+b", 1.0, 4.0)]);
        let times = |row: Vec<Cell>| shown(row)[3..7].join(" ");
        assert_eq!(times(row(&both)), "1.50 - - -", "relative to the best of both rows");
        assert_eq!(times(batches_row(&both).unwrap()), "1.00 - - 2.00");
    }
}
