//! Turns one profile, or two over each other, into one self-contained HTML file.
//!
//! Guarantees: nothing is loaded from outside and nothing runs: no script; pictures are SVG; it reads in light, dark
//! and print; every number says whether it was measured, published or emulated, and its error bar is drawn; what has a
//! caveat says so. What a profile lacks leaves its section out.
//! Not here: reading profiles, choosing a file.

mod curve_chart;
mod heat_map;
mod latency_chart;
mod page;
mod panels;
mod stream_chart;
mod words;

use forebay_profile::Profile;

/// The page for a profile, with a second one laid over it when there is one.
pub fn report(profile: &Profile, other: Option<&Profile>) -> String {
    page::Page { first: profile, second: other }.html()
}
