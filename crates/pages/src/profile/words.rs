//! Numbers as HTML: the error bar lighter than the number, and the mark that says who stands for it.

use forebay_profile::words::{digits, plain, scale_of, scale_of_time};
use forebay_profile::{Citation, Estimate, Profile, Unit};
use maud::{html, Markup};

/// A number with its error bar.
pub fn number(value: Estimate, scale: f64, unit: &str) -> Markup {
    let (number, error) = digits(value.value / scale, value.error.map(|e| e / scale));
    html! { (number) @if let Some(error) = error { " " i { "± " (error) } } " " (unit) }
}

/// A bandwidth or rate.
pub fn speed(value: Estimate, unit: Unit) -> Markup {
    let value = plain(value, unit);
    let (scale, word) = scale_of(value.value, unit);
    number(value, scale, word)
}

/// A time, from ns.
pub fn time(value: Estimate) -> Markup {
    let (scale, word) = scale_of_time(value.value);
    number(value, scale, word)
}

/// Measured, published or emulated, and where.
pub fn mark(profile: &Profile, citation: &Citation) -> Markup {
    let kind = profile.provenance(citation).map_or("unknown".to_owned(), |k| k.to_string());
    let title = profile.source_of(citation).and_then(|s| s.citation.as_ref().or(s.method.as_ref()));
    html! { span class={ "kind " (kind) } title=[title] { (kind) } " " (citation.to_string()) }
}
