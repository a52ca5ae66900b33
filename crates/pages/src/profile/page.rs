//! The page: heading, one section per tier, STREAM, sources.

use maud::{display, html, Markup, Render};

use super::latency_chart::{distributions, quantiles, LatencyRow};
use super::panels::{heat_maps, panels, Panel};
use super::stream_chart;
use super::words::{mark, speed, time};
use crate::page::{columns, whole};
use forebay_profile::compare::partners;
use forebay_profile::words::{self, capacity, concurrency, details, direction_alone, size};
use forebay_profile::{Latency, Locality, Profile, Source, Tier};

/// All that the page is made of.
pub struct Page<'a> {
    /// The profile.
    pub first: &'a Profile,
    /// The one that is laid over it.
    pub second: Option<&'a Profile>,
}

/// A tier of each profile; at least one is there.
type Pair<'a> = (Option<&'a Tier>, Option<&'a Tier>);

impl Page<'_> {
    /// The page.
    pub fn html(&self) -> String {
        let names = self.profiles().map(|(_, p)| p.name.as_str()).collect::<Vec<_>>().join(" and ");
        let body = html! {
            (self.heading(&names))
            @for pair in self.pairs() { (self.tier(pair)) }
            (self.streams())
            (self.sources())
            footer {
                "Forebay " (env!("CARGO_PKG_VERSION"))
                " · each number is measured, published or emulated, as the mark beside it says"
            }
        };
        whole(&format!("{names} · Forebay profile"), include_str!("../charts.css"), &body, None)
    }

    fn profiles(&self) -> impl Iterator<Item = (bool, &Profile)> {
        std::iter::once((false, self.first)).chain(self.second.map(|p| (true, p)))
    }

    fn profile(&self, second: bool) -> &Profile {
        match second {
            true => self.second.unwrap_or(self.first),
            false => self.first,
        }
    }

    /// Tiers that belong together, then those that only the second has.
    fn pairs(&self) -> Vec<Pair<'_>> {
        let Some(second) = self.second else {
            return self.first.tiers.iter().map(|t| (Some(t), None)).collect();
        };
        let both = partners(self.first, second);
        let partner = |tier: &Tier| both.iter().find(|(l, _)| l.name == tier.name).map(|(_, r)| *r);
        let mine = self.first.tiers.iter().map(|t| (Some(t), partner(t)));
        let theirs = second.tiers.iter().filter(|t| !both.iter().any(|(_, r)| r.name == t.name));
        mine.chain(theirs.map(|t| (None, Some(t)))).collect()
    }

    fn heading(&self, title: &str) -> Markup {
        html! {
            header {
                h1 { (title) small { "what the tiers deliver" } }
                div.who { @for (second, profile) in self.profiles() { (self.described(second, profile)) } }
            }
        }
    }

    /// What a profile is of.
    fn described(&self, second: bool, profile: &Profile) -> Markup {
        let host = &profile.host;
        let facts = [
            Some(profile.date.clone()),
            host.name.clone(),
            host.processor.clone(),
            host.cores.map(|n| format!("{n} cores")),
            host.memory_bytes.map(capacity),
            host.kernel.clone(),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        let lines = if second { "dashed lines, open points" } else { "solid lines" };
        html! {
            div {
                b { (profile.name) }
                " "
                @for kind in words::kinds(profile) { span class={ "kind " (display(kind)) } { (display(kind)) } " " }
                @if self.second.is_some() { span.what { (lines) } }
                p { (profile.title.as_deref().unwrap_or("")) }
                p.what { (facts.join(" · ")) }
                @if !profile.notes.is_empty() { ul { @for note in &profile.notes { li { (note) } } } }
            }
        }
    }

    fn tier(&self, (first, second): Pair<'_>) -> Markup {
        let Some(name) = first.or(second).map(|t| t.name.as_str()) else { return Markup::default() };
        let pictures = panels(first, second);
        html! {
            section {
                h2 { (name) }
                @for (is_second, tier) in [(false, first), (true, second)] {
                    @if let Some(tier) = tier {
                        p.what { (self.who(is_second)) (facts(tier)) }
                        @for note in &tier.notes { p.what { (note) } }
                    } @else if self.second.is_some() {
                        p.what { (self.profile(is_second).name) " has no such tier." }
                    }
                }
                (self.knees((first, second)))
                @if !pictures.is_empty() {
                    p.what {
                        "A ring marks the knee: the fewest threads, or the least depth, that reach 95 % of the "
                        "highest value. Bars are the error where it is larger than the point."
                    }
                    div.panels { @for panel in &pictures { (self.panel(panel)) } }
                }
                (self.heats((first, second)))
                (self.latencies((first, second)))
                (self.points((first, second)))
                (self.figures((first, second)))
            }
        }
    }

    fn panel(&self, panel: &Panel) -> Markup {
        html! {
            div.panel {
                h3 { (panel.title) }
                (panel.svg)
                ul.legend {
                    @for entry in &panel.legend {
                        li class={ "c" (entry.colour) @if entry.second { " second" } } {
                            (self.who(entry.second)) (entry.name) " "
                            (mark(self.profile(entry.second), &entry.source))
                            (caveat(entry.caveat.as_deref()))
                        }
                    }
                    @if panel.left_out > 0 {
                        li.what { (panel.left_out) " lower curves are in the table of points only" }
                    }
                }
            }
        }
    }

    /// `name: ` when there are two.
    fn who(&self, second: bool) -> String {
        match self.second.is_some() {
            true => format!("{}: ", self.profile(second).name),
            false => String::new(),
        }
    }

    fn heats(&self, (first, second): Pair<'_>) -> Markup {
        let all = heat_maps(first, second);
        if all.is_empty() {
            return Markup::default();
        }
        html! {
            h3.over { "Size and concurrency" }
            div.panels {
                @for heat in &all {
                    @for (is_second, svg, source) in &heat.maps {
                        div.panel {
                            h3 { (self.who(*is_second)) (heat.title) ", " (heat.unit) }
                            div.what { (mark(self.profile(*is_second), source)) }
                            (svg)
                        }
                    }
                }
            }
        }
    }

    fn knees(&self, pair: Pair<'_>) -> Markup {
        let mut rows = Vec::new();
        for (second, tier) in both(pair) {
            let profile = self.profile(second);
            for knee in tier.all_knees() {
                rows.push([
                    profile.name.render(),
                    direction_alone(&knee.when).render(),
                    details(&knee.when, true).render(),
                    speed(knee.highest, knee.unit),
                    concurrency(&knee.when).render(),
                    html! { (mark(profile, knee.source)) (remark(knee.note)) (caveat(knee.caveat)) },
                ]);
            }
        }
        self.table(["profile", "of", "how", "#highest", "#knee at", "numbers"], &rows)
    }

    fn latencies(&self, pair: Pair<'_>) -> Markup {
        let found: Vec<(bool, &Latency)> =
            both(pair).flat_map(|(second, tier)| tier.latencies.iter().map(move |l| (second, l))).collect();
        if found.is_empty() {
            return Markup::default();
        }
        let mut labels: Vec<String> = Vec::new();
        let mut rows = Vec::new();
        for (second, latency) in &found {
            let label = latency_label(latency);
            let colour = labels.iter().position(|l| *l == label).unwrap_or_else(|| {
                labels.push(label.clone());
                labels.len() - 1
            });
            let label = self.who(*second) + &label;
            rows.push(LatencyRow { label, colour, second: *second, latency });
        }
        let cells: Vec<[Markup; 8]> = rows.iter().map(|row| self.latency(row)).collect();
        let titles = ["latency of", "#mean", "#deviation", "#median", "#90 %", "#99 %", "#99.9 %", "numbers"];
        html! {
            h3.over { "Latency" }
            p.what { "Circle: median. Diamond: mean. Strokes: 90 %, 99 %, 99.9 %. Logarithmic." }
            (quantiles(&rows))
            (distributions(&rows))
            (self.table(titles, &cells))
        }
    }

    /// Its row in the table.
    fn latency(&self, row: &LatencyRow<'_>) -> [Markup; 8] {
        let (l, profile) = (row.latency, self.profile(row.second));
        let cell = |value: Option<_>| value.map_or(Markup::default(), time);
        [
            row.label.render(),
            cell(l.mean_ns),
            cell(l.deviation_ns),
            cell(l.p50_ns),
            cell(l.p90_ns),
            cell(l.p99_ns),
            cell(l.p999_ns),
            html! { (mark(profile, &l.source)) (remark(l.note.as_deref())) (caveat(l.caveat.as_deref())) },
        ]
    }

    fn points(&self, pair: Pair<'_>) -> Markup {
        let mut rows = Vec::new();
        for (second, tier) in both(pair) {
            let profile = self.profile(second);
            for sample in tier.samples() {
                rows.push([
                    profile.name.render(),
                    direction_alone(&sample.when).render(),
                    details(&sample.when, true).render(),
                    concurrency(&sample.when).render(),
                    speed(sample.value, sample.unit),
                    html! { (mark(profile, sample.source)) (caveat(sample.caveat)) },
                ]);
            }
        }
        if rows.is_empty() {
            return Markup::default();
        }
        html! {
            details {
                summary { "All " (rows.len()) " points" }
                (self.table(["profile", "of", "how", "#with", "#delivers", "numbers"], &rows))
            }
        }
    }

    fn figures(&self, pair: Pair<'_>) -> Markup {
        let mut rows = Vec::new();
        for (second, tier) in both(pair) {
            let profile = self.profile(second);
            for figure in &tier.figures {
                rows.push([
                    profile.name.render(),
                    figure.name.render(),
                    super::words::number(figure.value, 1.0, &figure.unit),
                    mark(profile, &figure.source),
                ]);
            }
        }
        html! {
            @if !rows.is_empty() { h3.over { "Other figures" } }
            (self.table(["profile", "figure", "#value", "numbers"], &rows))
        }
    }

    fn streams(&self) -> Markup {
        let mut rows = Vec::new();
        for (_, profile) in self.profiles() {
            for row in &profile.streams {
                let cell = |value| speed(value, row.unit);
                rows.push([
                    profile.name.render(),
                    row.read.render(),
                    row.write.render(),
                    display(row.horizon).render(),
                    row.threads.map_or(Markup::default(), |n| n.render()),
                    cell(row.copy),
                    cell(row.scale),
                    cell(row.add),
                    cell(row.triad),
                    html! { (mark(profile, &row.source)) (caveat(row.caveat.as_deref())) },
                ]);
            }
        }
        if rows.is_empty() {
            return Markup::default();
        }
        let titles = [
            "profile", "reads", "writes", "horizon", "#threads", "#copy", "#scale", "#add", "#triad",
            "numbers",
        ];
        html! {
            section {
                h2 { "STREAM" }
                p.what {
                    "Bandwidth of the four kernels by where the arrays lie that are read, and the array that is "
                    "written."
                }
                (stream_chart::figure(&self.profiles().collect::<Vec<_>>()))
                (self.table(titles, &rows))
            }
        }
    }

    fn sources(&self) -> Markup {
        let parts = |source: &Source| {
            let said = [&source.citation, &source.method, &source.note];
            let repeated = source.repetitions.map(|n| format!("{n} repetitions"));
            let parts = said.into_iter().flatten().cloned().chain(repeated);
            parts.chain([spread(source.spread).to_owned()]).collect::<Vec<_>>().join("; ")
        };
        html! {
            section {
                h2 { "Where the numbers come from" }
                dl {
                    @for (second, profile) in self.profiles() {
                        @for (key, source) in &profile.sources {
                            dt {
                                (self.who(second)) (key) " "
                                span class={ "kind " (display(source.kind)) } { (display(source.kind)) }
                            }
                            dd { (parts(source)) }
                        }
                    }
                }
            }
        }
    }

    /// A table without what says nothing: the profile's name when there is one profile, a column without an entry.
    fn table<const N: usize>(&self, titles: [&str; N], rows: &[[Markup; N]]) -> Markup {
        if rows.is_empty() {
            return Markup::default();
        }
        let skipped = usize::from(self.second.is_none() && titles[0] == "profile");
        let shown = |column: &usize| *column >= skipped && rows.iter().any(|row| !row[*column].0.is_empty());
        columns(&(0..N).filter(shown).collect::<Vec<_>>(), titles, rows)
    }
}

fn both(pair: Pair<'_>) -> impl Iterator<Item = (bool, &Tier)> {
    [(false, pair.0), (true, pair.1)].into_iter().filter_map(|(second, tier)| tier.map(|t| (second, t)))
}

/// What is known of a tier, in one line.
fn facts(tier: &Tier) -> String {
    let facts = [
        tier.title.clone(),
        tier.place.clone(),
        tier.device.clone(),
        tier.file_system.clone(),
        tier.memory_node.clone(),
        tier.capacity.as_ref().map(|c| capacity(c.bytes)),
        tier.granularity.as_ref().map(|g| format!("granularity {}", size(g.bytes))),
        tier.survives.map(|d| format!("survives {d}")),
    ];
    facts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

fn spread(spread: forebay_profile::Spread) -> &'static str {
    use forebay_profile::Spread;
    match spread {
        Spread::Range => "error bars: the repetition furthest from the median",
        Spread::Deviation => "error bars: standard deviation of the repetitions",
        Spread::OverTime => "error bars: standard deviation over time",
        Spread::Rounding => "error bars: half of the last printed digit",
        Spread::Unknown => "no error bars are known",
    }
}

fn caveat(text: Option<&str>) -> Markup {
    html! { @if let Some(text) = text { " " span.caveat { "caveat: " (text) } } }
}

fn remark(text: Option<&str>) -> Markup {
    html! { @if let Some(text) = text { " " i { (text) } } }
}

fn latency_label(latency: &Latency) -> String {
    let remote = if latency.when.locality == Locality::Remote { "remote " } else { "" };
    let pattern = latency.when.pattern.map_or(String::new(), |p| format!("{p} "));
    let bytes = latency.when.bytes.map_or(String::new(), |b| format!(" {}", size(b)));
    let manner = words::manner(&latency.when);
    let with = concurrency(&latency.when);
    let tail: Vec<String> = [manner, with].into_iter().filter(|t| !t.is_empty()).collect();
    let tail = if tail.is_empty() { String::new() } else { format!(", {}", tail.join(", ")) };
    format!("{remote}{pattern}{}{bytes}, {}{tail}", latency.operation, latency.load)
}

#[cfg(test)]
mod tests {
    use super::super::report;
    use forebay_profile::{platforms, Profile};

    fn whole() -> Profile {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/profile/1/whole.toml");
        Profile::read(std::path::Path::new(file)).unwrap()
    }

    #[track_caller]
    fn is_a_page(html: &str) {
        for wrong in ["http://", "https://", "<script", "NaN", "inf ", "src=", "@import", "url("] {
            assert!(!html.contains(wrong), "{wrong}");
        }
        for tag in ["div", "section", "table", "ul", "li", "svg", "h2", "h3", "p", "span", "dl", "details"] {
            let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
            let opened = html
                .match_indices(&open)
                .filter(|(at, _)| html[at + open.len()..].starts_with([' ', '>', '\n']));
            assert_eq!(opened.count(), html.matches(&close).count(), "{tag}");
        }
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    }

    #[test]
    fn every_platform_alone_and_over_another_is_a_page() {
        for name in platforms::names() {
            let profile = platforms::platform(name).unwrap();
            is_a_page(&report(&profile, None));
            is_a_page(&report(&profile, Some(&whole())));
            is_a_page(&report(&whole(), Some(&profile)));
        }
    }

    #[test]
    fn every_kind_caveat_and_source_is_on_the_page() {
        let page = report(&whole(), None);
        for said in ["kind measured", "kind published", "kind emulated", "caveat: more than the bus"] {
            assert!(page.contains(said), "{said}");
        }
        assert!(page.contains("A. Author, A study of memory, 2021"));
        assert!(page.contains("class=\"line") && page.contains("class=\"knee"));
    }

    #[test]
    fn text_of_a_profile_cannot_break_the_page() {
        let mut profile = whole();
        profile.title = Some("<script>alert(1)</script>".into());
        profile.tiers[0].title = Some("a & b".into());
        let page = report(&profile, None);
        assert!(!page.contains("<script") && page.contains("a &amp; b"));
    }
}
