//! The report's section on trials inside the run: what was tried, what it took, what was kept and why.

use std::fmt::Write;

use crate::page::{head, section, table_row};
use forebay_flow::trials::{Tried, Why};

/// Writes it.
pub(crate) fn trials(out: &mut String, tried: &Tried) {
    section(
        out,
        "trials",
        "Paces tried",
        "Steps of the run at each pace, measured; what a switch took beyond a step; what was kept, and why.",
    );
    head(out, &["pace", "why", "#from version", "#steps", "#ms a step", "#ms for the switch"]);
    for stretch in &tried.stretches {
        let why = match stretch.why {
            Why::Trial => "trial",
            Why::Kept => "kept",
        };
        let cells = [
            stretch.mode.to_string(),
            why.to_owned(),
            stretch.from_version.to_string(),
            stretch.steps.to_string(),
            format!("{:.1}", stretch.step_s * 1e3),
            format!("{:.1}", stretch.switch_s * 1e3),
        ];
        table_row(out, &cells, "llnnnn");
    }
    out.push_str("</table></div>\n<ul class=\"notes\">\n");
    for kept in &tried.decisions {
        let _ = writeln!(out, "<li>{} from version {}: {}</li>", kept.mode, kept.at_version, kept.reason);
    }
    out.push_str("</ul>\n</section>\n");
}
