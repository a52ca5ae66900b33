//! The report's section on trials inside the run: what was tried, what it took, what was kept and why.

use forebay_flow::trials::{Tried, Why};
use maud::{display, html, Markup, Render};

use crate::page::{section, table};

/// The section.
pub(crate) fn trials(tried: &Tried) -> Markup {
    let rows = tried.stretches.iter().map(|stretch| {
        let why = match stretch.why {
            Why::Trial => "trial",
            Why::Kept => "kept",
        };
        [
            display(&stretch.mode).render(),
            why.render(),
            stretch.from_version.render(),
            stretch.steps.render(),
            format_args!("{:.1}", stretch.step_s * 1e3).render(),
            format_args!("{:.1}", stretch.switch_s * 1e3).render(),
        ]
    });
    let titles = ["execution mode", "why", "#from version", "#steps", "#ms a step", "#ms for the switch"];
    section(
        "trials",
        "Execution modes tried",
        "Steps of the run in each execution mode, measured; what a switch took beyond a step; what was kept, and why.",
        &html! {
            (table(titles, &rows.collect::<Vec<_>>()))
            ul.notes {
                @for kept in &tried.decisions {
                    li { (display(&kept.mode)) " from version " (kept.at_version) ": " (kept.reason) }
                }
            }
        },
    )
}
