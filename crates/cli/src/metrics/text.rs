//! The two text forms of metrics: Prometheus' own (0.0.4) and OpenMetrics 1.0.
//!
//! Guarantees: label values are escaped in both, whatever a space is called. `# UNIT` stands in both; it is a
//! comment to readers of the first form. Not here: what is measured.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{text, DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::family::{Family, Kind, Value};

/// A text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Prometheus text format 0.0.4: what textfile collectors and `promtool` read.
    Prometheus,
    /// OpenMetrics 1.0, for who asks for it.
    OpenMetrics,
}

impl Form {
    /// The media type of HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Form::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

#[derive(Debug)]
struct Exposition(Vec<Family>);

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder) -> std::fmt::Result {
        self.0.iter().try_for_each(|family| encode_family(family, &mut encoder))
    }
}

fn encode_family(family: &Family, encoder: &mut DescriptorEncoder) -> std::fmt::Result {
    let unit = family.unit.map(|unit| Unit::Other(unit.into()));
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
    };
    let mut metric = encoder.encode_descriptor(family.stem, family.help, unit.as_ref(), kind)?;
    for (labels, value) in &family.samples {
        let sample = metric.encode_family(labels)?;
        match (family.kind, *value) {
            (Kind::Counter, Value::Whole(n)) => ConstCounter::new(n).encode(sample)?,
            (Kind::Counter, Value::Real(x)) => ConstCounter::new(x).encode(sample)?,
            (Kind::Gauge, Value::Whole(n)) => ConstGauge::new(n).encode(sample)?,
            (Kind::Gauge, Value::Real(x)) => ConstGauge::new(x).encode(sample)?,
        }
    }
    Ok(())
}

/// The families as text.
pub fn render(families: Vec<Family>, form: Form) -> String {
    let counters: Vec<(String, String)> = families
        .iter()
        .filter(|f| f.kind == Kind::Counter)
        .map(|f| (f.name().trim_end_matches("_total").to_string(), f.name()))
        .collect();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Exposition(families)));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("writing to a string does not fail");
    match form {
        Form::OpenMetrics => out,
        Form::Prometheus => out.lines().filter_map(|line| in_old_form(line, &counters)).collect(),
    }
}

/// OpenMetrics names the family of a counter without `_total`; the older form knows only the samples' name.
fn in_old_form(line: &str, counters: &[(String, String)]) -> Option<String> {
    if line == "# EOF" {
        return None;
    }
    let mut words = line.splitn(4, ' ');
    let words: [Option<&str>; 4] = std::array::from_fn(|_| words.next());
    if let [Some("#"), Some(what), Some(name), Some(rest)] = words {
        if let Some((_, total)) = counters.iter().find(|(stem, _)| stem == name) {
            return Some(format!("# {what} {total} {rest}\n"));
        }
    }
    Some(format!("{line}\n"))
}
