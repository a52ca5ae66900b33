//! The page: heading, one section per tier, STREAM, sources.

use std::fmt::Write;

use super::latency_chart::{distributions, quantiles, LatencyRow};
use super::panels::{heat_maps, panels, Panel};
use super::stream_chart;
use super::words::{mark, speed, time};
use crate::drawing::escape;
use crate::page::whole;
use forebay_profile::compare::partners;
use forebay_profile::words::{self, capacity, concurrency, details, direction_alone, size};
use forebay_profile::{Latency, Locality, Profile, Tier};

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
        let mut out = String::with_capacity(1 << 16);
        let names: Vec<String> = self.profiles().map(|(_, p)| escape(&p.name)).collect();
        self.heading(&mut out, &names.join(" and "));
        for pair in self.pairs() {
            self.tier(&mut out, pair);
        }
        self.streams(&mut out);
        self.sources(&mut out);
        let _ = writeln!(
            out,
            "<footer>Forebay {} · each number is measured, published or emulated, as the mark beside it \
             says</footer>",
            env!("CARGO_PKG_VERSION")
        );
        let names: Vec<&str> = self.profiles().map(|(_, p)| p.name.as_str()).collect();
        whole(
            &format!("{} · Forebay profile", names.join(" and ")),
            include_str!("../charts.css"),
            &out,
            None,
        )
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

    fn heading(&self, out: &mut String, title: &str) {
        let _ = write!(
            out,
            "<header>\n<h1>{title}<small>what the tiers deliver</small></h1>\n<div class=\"who\">\n"
        );
        for (second, profile) in self.profiles() {
            let host = &profile.host;
            let facts = [
                Some(profile.date.clone()),
                host.name.clone(),
                host.processor.clone(),
                host.cores.map(|n| format!("{n} cores")),
                host.memory_bytes.map(capacity),
                host.kernel.clone(),
            ];
            let facts: Vec<String> = facts.into_iter().flatten().map(|f| escape(&f)).collect();
            let line = match (self.second.is_some(), second) {
                (false, _) => "",
                (true, false) => " <span class=\"what\">solid lines</span>",
                (true, true) => " <span class=\"what\">dashed lines, open points</span>",
            };
            let _ = write!(
                out,
                "<div><b>{}</b> {}{line}<p>{}</p><p class=\"what\">{}</p>",
                escape(&profile.name),
                kinds(profile),
                escape(profile.title.as_deref().unwrap_or("")),
                facts.join(" · ")
            );
            if !profile.notes.is_empty() {
                let notes: String = profile.notes.iter().map(|n| format!("<li>{}</li>", escape(n))).collect();
                let _ = write!(out, "<ul>{notes}</ul>");
            }
            out.push_str("</div>\n");
        }
        out.push_str("</div>\n</header>\n");
    }

    fn tier(&self, out: &mut String, (first, second): Pair<'_>) {
        let Some(name) = first.or(second).map(|t| t.name.as_str()) else { return };
        let _ = writeln!(out, "<section>\n<h2>{}</h2>", escape(name));
        for (is_second, tier) in [(false, first), (true, second)] {
            let Some(tier) = tier else {
                if self.second.is_some() {
                    let lacks = escape(&self.profile(is_second).name);
                    let _ = writeln!(out, "<p class=\"what\">{lacks} has no such tier.</p>");
                }
                continue;
            };
            let who = if self.second.is_some() {
                format!("{}: ", self.profile(is_second).name)
            } else {
                String::new()
            };
            let _ = writeln!(out, "<p class=\"what\">{}{}</p>", escape(&who), escape(&facts(tier)));
            for note in &tier.notes {
                let _ = writeln!(out, "<p class=\"what\">{}</p>", escape(note));
            }
        }
        self.knees(out, (first, second));
        let pictures = panels(first, second);
        if !pictures.is_empty() {
            out.push_str(
                "<p class=\"what\">A ring marks the knee: the fewest threads, or the least depth, that reach 95 % of \
                 the highest value. Bars are the error where it is larger than the point.</p>\n\
                 <div class=\"panels\">\n",
            );
            pictures.iter().for_each(|panel| self.panel(out, panel));
            out.push_str("</div>\n");
        }
        self.heats(out, (first, second));
        self.latencies(out, (first, second));
        self.points(out, (first, second));
        self.figures(out, (first, second));
        out.push_str("</section>\n");
    }

    fn panel(&self, out: &mut String, panel: &Panel) {
        let _ = write!(
            out,
            "<div class=\"panel\"><h3>{}</h3>{}<ul class=\"legend\">",
            escape(&panel.title),
            panel.svg
        );
        for entry in &panel.legend {
            let class = if entry.second { " second" } else { "" };
            let profile = self.profile(entry.second);
            let _ = write!(
                out,
                "<li class=\"c{}{class}\">{}{} {}{}</li>",
                entry.colour,
                self.who(entry.second),
                escape(&entry.name),
                mark(profile, &entry.source),
                caveat(entry.doubt.as_deref())
            );
        }
        if panel.left_out > 0 {
            let _ = write!(
                out,
                "<li class=\"what\">{} lower curves are in the table of points only</li>",
                panel.left_out
            );
        }
        out.push_str("</ul></div>\n");
    }

    /// `name: ` when there are two.
    fn who(&self, second: bool) -> String {
        match self.second.is_some() {
            true => format!("{}: ", escape(&self.profile(second).name)),
            false => String::new(),
        }
    }

    fn heats(&self, out: &mut String, (first, second): Pair<'_>) {
        let all = heat_maps(first, second);
        if all.is_empty() {
            return;
        }
        out.push_str("<h3 class=\"over\">Size and concurrency</h3>\n<div class=\"panels\">\n");
        for heat in &all {
            for (is_second, svg, source) in &heat.maps {
                let _ = writeln!(
                    out,
                    "<div class=\"panel\"><h3>{}{}, {}</h3><div class=\"what\">{}</div>{svg}</div>",
                    self.who(*is_second),
                    escape(&heat.title),
                    heat.unit,
                    mark(self.profile(*is_second), source)
                );
            }
        }
        out.push_str("</div>\n");
    }

    fn knees(&self, out: &mut String, pair: Pair<'_>) {
        let mut rows = Vec::new();
        for (second, tier) in both(pair) {
            let profile = self.profile(second);
            for knee in tier.all_knees() {
                let note = knee.note.map_or(String::new(), |n| format!(" <i>{}</i>", escape(n)));
                rows.push(vec![
                    escape(&profile.name),
                    direction_alone(&knee.when),
                    escape(&details(&knee.when, true)),
                    speed(knee.highest, knee.unit),
                    concurrency(&knee.when),
                    format!("{}{note}{}", mark(profile, knee.source), caveat(knee.doubt)),
                ]);
            }
        }
        let titles = ["profile", "of", "how", "#highest", "#knee at", "numbers"];
        table(out, &titles, &rows, self.second.is_none());
    }

    fn latencies(&self, out: &mut String, pair: Pair<'_>) {
        let found: Vec<(bool, &Latency)> =
            both(pair).flat_map(|(second, tier)| tier.latencies.iter().map(move |l| (second, l))).collect();
        if found.is_empty() {
            return;
        }
        let mut labels: Vec<String> = Vec::new();
        let mut rows = Vec::new();
        for (second, latency) in &found {
            let label = latency_label(latency);
            let colour = labels.iter().position(|l| *l == label).unwrap_or_else(|| {
                labels.push(label.clone());
                labels.len() - 1
            });
            let label = match self.second.is_some() {
                true => format!("{}: {label}", self.profile(*second).name),
                false => label,
            };
            rows.push(LatencyRow { label, colour, second: *second, latency });
        }
        out.push_str(
            "<h3 class=\"over\">Latency</h3>\n<p class=\"what\">Circle: median. Diamond: mean. Strokes: 90 %, 99 %, \
             99.9 %. Logarithmic.</p>\n",
        );
        out.push_str(&quantiles(&rows));
        out.push_str(&distributions(&rows));
        let cell = |value: Option<_>| value.map_or(String::new(), time);
        let table_rows = rows.iter().map(|row| {
            let (l, profile) = (row.latency, self.profile(row.second));
            vec![
                escape(&row.label),
                cell(l.mean_ns),
                cell(l.deviation_ns),
                cell(l.p50_ns),
                cell(l.p90_ns),
                cell(l.p99_ns),
                cell(l.p999_ns),
                format!(
                    "{}{}{}",
                    mark(profile, &l.source),
                    l.note.as_ref().map_or(String::new(), |n| format!(" <i>{}</i>", escape(n))),
                    caveat(l.doubt.as_deref())
                ),
            ]
        });
        let titles = ["latency of", "#mean", "#deviation", "#median", "#90 %", "#99 %", "#99.9 %", "numbers"];
        table(out, &titles, &table_rows.collect::<Vec<_>>(), false);
    }

    fn points(&self, out: &mut String, pair: Pair<'_>) {
        let mut rows = Vec::new();
        for (second, tier) in both(pair) {
            let profile = self.profile(second);
            for sample in tier.samples() {
                rows.push(vec![
                    escape(&profile.name),
                    direction_alone(&sample.when),
                    escape(&details(&sample.when, true)),
                    concurrency(&sample.when),
                    speed(sample.value, sample.unit),
                    format!("{}{}", mark(profile, sample.source), caveat(sample.doubt)),
                ]);
            }
        }
        if rows.is_empty() {
            return;
        }
        let _ = writeln!(out, "<details><summary>All {} points</summary>", rows.len());
        let titles = ["profile", "of", "how", "#with", "#delivers", "numbers"];
        table(out, &titles, &rows, self.second.is_none());
        out.push_str("</details>\n");
    }

    fn figures(&self, out: &mut String, pair: Pair<'_>) {
        let mut rows = Vec::new();
        for (second, tier) in both(pair) {
            let profile = self.profile(second);
            for figure in &tier.figures {
                let value = super::words::number(figure.value, 1.0, &figure.unit);
                rows.push(vec![
                    escape(&profile.name),
                    escape(&figure.name),
                    value,
                    mark(profile, &figure.source),
                ]);
            }
        }
        if !rows.is_empty() {
            out.push_str("<h3 class=\"over\">Other figures</h3>\n");
            table(out, &["profile", "figure", "#value", "numbers"], &rows, self.second.is_none());
        }
    }

    fn streams(&self, out: &mut String) {
        let mut rows = Vec::new();
        for (_, profile) in self.profiles() {
            for row in &profile.streams {
                let cell = |value| speed(value, row.unit);
                let horizon = row.horizon.to_string();
                let threads = row.threads.map_or(String::new(), |n| n.to_string());
                let says = format!("{}{}", mark(profile, &row.source), caveat(row.doubt.as_deref()));
                let words = [profile.name.as_str(), &row.read, &row.write, &horizon, &threads];
                let mut cells: Vec<String> = words.into_iter().map(escape).collect();
                cells.extend([cell(row.copy), cell(row.scale), cell(row.add), cell(row.triad), says]);
                rows.push(cells);
            }
        }
        if rows.is_empty() {
            return;
        }
        out.push_str(
            "<section>\n<h2>STREAM</h2>\n<p class=\"what\">Bandwidth of the four kernels by where the arrays lie that \
             are read, and the array that is written.</p>\n",
        );
        let shown: Vec<(bool, &Profile)> = self.profiles().collect();
        out.push_str(&stream_chart::figure(&shown));
        let titles = [
            "profile", "reads", "writes", "horizon", "#threads", "#copy", "#scale", "#add", "#triad",
            "numbers",
        ];
        table(out, &titles, &rows, self.second.is_none());
        out.push_str("</section>\n");
    }

    fn sources(&self, out: &mut String) {
        out.push_str("<section>\n<h2>Where the numbers come from</h2>\n<dl>\n");
        for (_, profile) in self.profiles() {
            for (key, source) in &profile.sources {
                let said = [&source.citation, &source.method, &source.note];
                let repeated = source.repetitions.map(|n| format!("{n} repetitions"));
                let parts = said.into_iter().flatten().cloned().chain(repeated);
                let parts: Vec<String> = parts.chain([spread(source.spread).to_owned()]).collect();
                let _ = writeln!(
                    out,
                    "<dt>{}{} <span class=\"kind {kind}\">{kind}</span></dt><dd>{}</dd>",
                    if self.second.is_some() { escape(&profile.name) + ": " } else { String::new() },
                    escape(key),
                    escape(&parts.join("; ")),
                    kind = source.kind
                );
            }
        }
        out.push_str("</dl>\n</section>\n");
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

fn kinds(profile: &Profile) -> String {
    words::kinds(profile).iter().map(|k| format!("<span class=\"kind {k}\">{k}</span> ")).collect()
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

fn caveat(text: Option<&str>) -> String {
    text.map_or(String::new(), |t| format!(" <span class=\"caveat\">caveat: {}</span>", escape(t)))
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

/// A table; a title that starts with `#` is of numbers. Cells are HTML. `without_first` leaves the first column out.
fn table(out: &mut String, titles: &[&str], rows: &[Vec<String>], without_first: bool) {
    if rows.is_empty() {
        return;
    }
    // The first column of most tables is the profile's name, which says nothing when there is one profile; a column
    // without an entry says nothing either.
    let skipped = usize::from(without_first && titles[0] == "profile");
    let shown = |column: &usize| *column >= skipped && rows.iter().any(|row| !row[*column].is_empty());
    let shown: Vec<usize> = (0..titles.len()).filter(shown).collect();
    out.push_str("<div class=\"scroll\"><table>\n<tr>");
    for title in shown.iter().map(|column| &titles[*column]) {
        let (class, title) = title.strip_prefix('#').map_or(("", *title), |t| (" class=\"n\"", t));
        let _ = write!(out, "<th{class}>{}</th>", escape(title));
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for (cell, title) in shown.iter().map(|column| (&row[*column], titles[*column])) {
            let class = match title {
                t if t.starts_with('#') => " class=\"n\"",
                "numbers" => " class=\"wide\"",
                _ => "",
            };
            let _ = write!(out, "<td{class}>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
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
