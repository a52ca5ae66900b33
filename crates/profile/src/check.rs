//! What must hold of a profile beyond its shape.
//!
//! Guarantees: names are unique and point to something; every citation is of a source in the file; what is measured or
//! emulated has a method, repetitions and error bars; numbers are finite and not negative; points and histograms rise;
//! quantiles do not fall. An error says which tier, which curve and what.

use forebay_terms::{Error, Kind, Result};

use super::{
    Axis, Citation, Conditions, Curve, Estimate, Latency, Profile, Provenance, Source, Spread, Stream, Tier,
    FORMAT,
};

/// Longest name.
const NAME_MAX: usize = 64;

/// Whether a text can name a profile: it is also the name of its file.
pub fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !text.is_empty()
        && text.len() <= NAME_MAX
        && text.bytes().all(fits)
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && ![".toml", ".json"].iter().any(|end| text.ends_with(end))
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(Kind::Damaged, message)
}

impl Profile {
    /// Checks everything that the file's shape does not say.
    ///
    /// # Errors
    /// [`Kind::UnknownFormat`], [`Kind::BadName`], and [`Kind::Damaged`] with what is wrong where.
    pub fn check(&self) -> Result<()> {
        if self.forebay_profile != FORMAT {
            return Err(Error::new(Kind::UnknownFormat, "a profile of an unknown version")
                .with("version", self.forebay_profile));
        }
        if !is_name(&self.name) {
            return Err(Error::new(
                Kind::BadName,
                format!("{:?} cannot be the name of a profile", self.name),
            )
            .hint("1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or digit"));
        }
        if !is_date(&self.date) {
            return Err(wrong(format!("{:?} is no date", self.date))
                .hint("2026-03-01T10:20:30Z, 2026-03-01, 2026-03 or 2026"));
        }
        self.sources.iter().try_for_each(|(key, source)| check_source(key, source))?;
        if let Some(citation) = &self.host.source {
            self.cited(citation).map_err(|e| e.with("in", "host"))?;
        }
        for (index, node) in self.memory_nodes.iter().enumerate() {
            let capacity = node.capacity.iter().try_for_each(|q| self.cited(&q.source).map(drop));
            capacity.map_err(|e| e.with("memory_node", &node.name))?;
            if self.memory_nodes[..index].iter().any(|other| other.name == node.name) {
                return Err(wrong(format!("two memory nodes are named {}", node.name)));
            }
        }
        for (index, tier) in self.tiers.iter().enumerate() {
            self.check_tier(tier).map_err(|e| e.with("tier", &tier.name))?;
            if self.tiers[..index].iter().any(|other| other.name == tier.name) {
                return Err(wrong(format!("two tiers are named {}", tier.name)));
            }
        }
        let rows = self.streams.iter().enumerate();
        rows.into_iter().try_for_each(|(i, row)| self.check_stream(row).map_err(|e| e.with("stream", i + 1)))
    }

    fn cited(&self, citation: &Citation) -> Result<&Source> {
        self.source_of(citation).ok_or_else(|| {
            wrong(format!("no source {:?} is declared", citation.key))
                .hint(format!("add a table [source.{}], or cite one of those there are", citation.key))
        })
    }

    /// A number of this source: finite, not negative, with an error bar where it was taken by us.
    fn number(&self, source: &Source, value: Estimate) -> Result<()> {
        let sound = |n: f64| n.is_finite() && n >= 0.0;
        if !sound(value.value) || !value.error.is_none_or(sound) {
            return Err(wrong("a number or its error is negative or not finite").with("value", value.value));
        }
        if source.kind != Provenance::Published && value.error.is_none() {
            return Err(wrong(format!("a number that was {} lacks its error bar", source.kind))
                .with("value", value.value));
        }
        Ok(())
    }

    fn check_tier(&self, tier: &Tier) -> Result<()> {
        if tier.name.is_empty() || tier.name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(wrong("a tier's name is empty or has blanks"));
        }
        if let Some(node) = &tier.memory_node {
            if !self.memory_nodes.iter().any(|n| n.name == *node) {
                return Err(wrong(format!("there is no memory node {node}")));
            }
        }
        for quantity in tier.capacity.iter().chain(&tier.granularity) {
            self.cited(&quantity.source)?;
        }
        for (index, curve) in tier.curves.iter().enumerate() {
            self.check_curve(curve).map_err(|e| e.with("curve", index + 1))?;
        }
        for (index, knee) in tier.knees.iter().enumerate() {
            let check = || self.number(self.cited(&knee.source)?, knee.highest);
            check().and_then(|()| conditions(&knee.when)).map_err(|e| e.with("knee", index + 1))?;
        }
        for (index, latency) in tier.latencies.iter().enumerate() {
            self.check_latency(latency).map_err(|e| e.with("latency", index + 1))?;
        }
        for figure in &tier.figures {
            let check = || self.number(self.cited(&figure.source)?, figure.value);
            check().map_err(|e| e.with("figure", &figure.name))?;
        }
        Ok(())
    }

    fn check_curve(&self, curve: &Curve) -> Result<()> {
        conditions(&curve.when)?;
        let twice = match curve.over {
            Axis::Threads => curve.when.threads.is_some(),
            Axis::Depth => curve.when.depth.is_some(),
            Axis::Bytes => curve.when.bytes.is_some(),
            Axis::ReadsPercent => curve.when.reads_percent.is_some(),
        };
        if twice {
            return Err(wrong(format!("the curve is over {} and fixes it too", curve.over)));
        }
        if curve.over != Axis::ReadsPercent && curve.when.reads_percent.is_none() {
            return Err(wrong("the curve does not say its share of reads").hint("reads_percent in `when`"));
        }
        if curve.points.is_empty() || curve.points.windows(2).any(|w| w[0].x >= w[1].x) {
            return Err(wrong("the points of a curve must rise in x, and be at least one"));
        }
        let source = self.cited(&curve.source)?;
        for point in &curve.points {
            let inside = match curve.over {
                Axis::ReadsPercent => (0.0..=100.0).contains(&point.x),
                _ => point.x >= 1.0 && point.x.fract() == 0.0 && point.x <= f64::from(u32::MAX),
            };
            if !inside {
                return Err(wrong(format!("{} is no number of {}", point.x, curve.over)));
            }
            self.number(source, point.y).map_err(|e| e.with("x", point.x))?;
        }
        Ok(())
    }

    fn check_latency(&self, latency: &Latency) -> Result<()> {
        conditions(&latency.when)?;
        let source = self.cited(&latency.source)?;
        let quantiles = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns];
        let others = [latency.mean_ns, latency.deviation_ns];
        let all = || others.iter().chain(&quantiles).flatten();
        if all().next().is_none() {
            return Err(wrong("a latency without a number"));
        }
        all().try_for_each(|value| self.number(source, *value))?;
        let known: Vec<f64> = quantiles.iter().flatten().map(|q| q.value).collect();
        let longest = latency.max_ns.map_or(f64::INFINITY, |ns| ns as f64);
        if known.windows(2).any(|w| w[0] > w[1]) || known.last().is_some_and(|last| *last > longest) {
            return Err(wrong("the quantiles fall").with("quantiles", format!("{known:?}")));
        }
        let buckets = &latency.histogram;
        if buckets.windows(2).any(|w| w[0].0 >= w[1].0) || buckets.iter().any(|(_, count)| *count == 0) {
            return Err(wrong("the buckets of a histogram must rise and not be empty"));
        }
        let counted = buckets.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count));
        if !buckets.is_empty() && (counted.is_none() || latency.samples != counted) {
            return Err(wrong("the histogram does not hold as many operations as were timed")
                .with("samples", latency.samples.map_or("none".into(), |n| n.to_string())));
        }
        Ok(())
    }

    fn check_stream(&self, row: &Stream) -> Result<()> {
        for name in [&row.read, &row.write] {
            if self.tier(name).is_none() {
                return Err(wrong(format!("there is no tier {name}")));
            }
        }
        if row.unit.bytes().is_none() {
            return Err(wrong("STREAM is a bandwidth").with("unit", row.unit));
        }
        let source = self.cited(&row.source)?;
        [row.copy, row.scale, row.add, row.triad].into_iter().try_for_each(|v| self.number(source, v))
    }
}

fn conditions(when: &Conditions) -> Result<()> {
    if when.reads_percent.is_some_and(|share| !(0.0..=100.0).contains(&share)) {
        return Err(
            wrong("a share of reads is in percent").with("reads_percent", when.reads_percent.unwrap_or(-1.0))
        );
    }
    if [when.threads, when.depth].contains(&Some(0)) || when.bytes == Some(0) {
        return Err(wrong("threads, depth and bytes are at least 1"));
    }
    Ok(())
}

fn check_source(key: &str, source: &Source) -> Result<()> {
    let lacks = |what: &str| wrong(format!("the source {key} is {} and lacks its {what}", source.kind));
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(wrong(format!("{key:?} cannot be the key of a source: it has blanks")));
    }
    let said = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.trim().is_empty());
    match source.kind {
        Provenance::Published if !said(&source.citation) => Err(lacks("citation")),
        Provenance::Measured | Provenance::Emulated if !said(&source.method) => Err(lacks("method")),
        Provenance::Measured | Provenance::Emulated if source.repetitions.unwrap_or(0) == 0 => {
            Err(lacks("repetitions"))
        }
        Provenance::Measured | Provenance::Emulated if source.spread == Spread::Unknown => {
            Err(lacks("spread: what its error bars are"))
        }
        _ => Ok(()),
    }
}

/// `2026`, `2026-03`, `2026-03-01` or `2026-03-01T10:20:30Z`.
fn is_date(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let known = ["0000", "0000-00", "0000-00-00", "0000-00-00T00:00:00Z"];
    let part = |range: std::ops::Range<usize>, most: u32| {
        text.get(range).is_none_or(|t| t.parse::<u32>().is_ok_and(|n| (1..=most).contains(&n)))
    };
    known.contains(&shape.as_str()) && part(5..7, 12) && part(8..10, 31)
}
