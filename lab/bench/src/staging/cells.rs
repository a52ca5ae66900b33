//! What is measured one by one: a number of writers, a number of readers, a place, and the workflow that this is.

use std::fmt;
use std::path::PathBuf;

use super::place::Place;
use super::{Args, Part};

/// Objects of a version, about; enough for every number of readers to get its part.
const OBJECTS: usize = 64;
/// Space of each writer in the first tier, in segments that hold its part of a version.
pub(crate) const SEGMENTS_PER_WRITER: u64 = 4;
/// Space in a segment beside the payload.
const OVERHEAD_BYTES: u64 = 64 << 10;
const SEGMENT_GRAIN_BYTES: u64 = 256 << 10;

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub part: Part,
    pub place: Place,
    /// Where data go that do not fit.
    pub lower: Option<PathBuf>,
    pub writers: usize,
    pub readers: usize,
    pub steps: u64,
    /// Bytes of an object, and objects of a writer in a version.
    pub object_bytes: u64,
    pub objects: usize,
    /// Readers compare every byte. Takes time, so that times of such a run count for nothing.
    pub checked: bool,
}

/// Bytes of an object of a run that only checks.
const CHECKED_OBJECT_BYTES: u64 = 64 << 10;

/// All measurements, part by part, place beside place.
pub(crate) fn cells(args: &Args, ranks: &[usize], total: u64) -> Vec<Cell> {
    let widest = ranks.iter().copied().max().unwrap_or(1);
    let mut all = Vec::new();
    let cell = |part, place: &Place, writers: usize, readers: usize, version_bytes: u64| {
        let objects = OBJECTS.div_ceil(writers);
        let object_bytes = (version_bytes / (writers * objects) as u64).max(1);
        Cell {
            part,
            place: place.clone(),
            lower: None,
            writers,
            readers,
            steps: args.steps,
            object_bytes,
            objects,
            checked: false,
        }
    };
    if args.parts.contains(&Part::Strong) {
        // Each number of readers of the widest group of writers, then the reverse.
        let of_readers = ranks.iter().map(|&n| (widest, n));
        let of_writers = ranks.iter().filter(|n| **n != widest).map(|&n| (n, widest));
        for (writers, readers) in of_readers.chain(of_writers) {
            all.extend(args.places.iter().map(|place| cell(Part::Strong, place, writers, readers, total)));
        }
    }
    if args.parts.contains(&Part::Weak) {
        for &n in ranks {
            all.extend(
                args.places.iter().map(|place| cell(Part::Weak, place, n, n, args.per_rank * n as u64)),
            );
        }
    }
    if args.parts.contains(&Part::Movers) {
        let memory = Place::Tier(forebay_tier::TierKind::Dram, None);
        let moving =
            |&n: &usize| Cell { lower: Some(args.lower.clone()), ..cell(Part::Movers, &memory, n, 0, total) };
        all.extend(args.movers.iter().map(moving));
    }
    all
}

/// A short run on each place in which every byte is compared.
pub(crate) fn checks(args: &Args, ranks: &[usize]) -> Vec<Cell> {
    let widest = ranks.iter().copied().max().unwrap_or(1);
    let check = |place: &Place| Cell {
        part: Part::Strong,
        place: place.clone(),
        lower: None,
        writers: widest,
        readers: widest,
        steps: 2,
        object_bytes: CHECKED_OBJECT_BYTES,
        objects: OBJECTS.div_ceil(widest),
        checked: true,
    };
    args.places.iter().map(check).collect()
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: {} writers, {} readers on {}",
            self.part,
            self.writers,
            self.readers,
            self.limit_of()
        )
    }
}

impl Cell {
    /// Data of all ranks in a version.
    pub(crate) fn version_bytes(&self) -> u64 {
        self.object_bytes * (self.objects * self.writers) as u64
    }

    /// The place whose limit counts.
    pub(crate) fn limit_of(&self) -> String {
        match &self.lower {
            Some(lower) => format!("{}, then {}", self.place, lower.display()),
            None => self.place.to_string(),
        }
    }

    fn segment_bytes(&self) -> u64 {
        let payload = self.object_bytes * self.objects as u64;
        // Headers and names of the objects.
        (payload + 512 * self.objects as u64 + OVERHEAD_BYTES).next_multiple_of(SEGMENT_GRAIN_BYTES)
    }

    /// What all writers together may keep in the first tier.
    fn quota_bytes(&self) -> u64 {
        self.segment_bytes() * SEGMENTS_PER_WRITER * self.writers as u64
    }

    /// What must have been moved down when the last version is complete: what does not fit into the first tier.
    pub(crate) fn moved_bytes_min(&self) -> u64 {
        match &self.lower {
            Some(_) => (self.version_bytes() * self.steps).saturating_sub(self.quota_bytes()),
            None => 0,
        }
    }

    /// The workflow file of this measurement; `channel` is the space's name.
    pub(crate) fn workflow(&self, channel: &str) -> String {
        let mut text = format!("forebay = 1\n[workflow]\nname = \"staging\"\n\n[channel.{channel}]\n");
        text += &self.place.table(channel);
        text += &format!("quota = {}\nsegment = {}\n", self.quota_bytes(), self.segment_bytes());
        if let Some(lower) = &self.lower {
            let lower = std::path::absolute(lower).unwrap_or_else(|_| lower.clone());
            let quota = self.segment_bytes() * (self.steps + SEGMENTS_PER_WRITER) * self.writers as u64;
            let spill = format!("{},quota={quota}", lower.display());
            text += &format!("spill = {}\n", serde_json::Value::from(spill));
        }
        text += &component(
            "writer",
            self.writers,
            &self.writer_words(channel),
            &format!("writes = [\"{channel}\"]"),
        );
        if self.readers > 0 {
            let mut words = vec!["--channel".to_owned(), channel.to_owned()];
            words.extend((!self.checked).then(|| "--unchecked".to_owned()));
            text += &component("reader", self.readers, &words, &format!("reads = [\"{channel}\"]"));
        }
        text
    }

    fn writer_words(&self, channel: &str) -> Vec<String> {
        let numbers = [
            ("--object", self.object_bytes.to_string()),
            ("--count", self.objects.to_string()),
            ("--steps", self.steps.to_string()),
        ];
        let words = ["--channel".to_owned(), channel.to_owned()];
        words.into_iter().chain(numbers.into_iter().flat_map(|(key, n)| [key.to_owned(), n])).collect()
    }
}

fn component(name: &str, ranks: usize, words: &[String], ends: &str) -> String {
    let command: Vec<&str> =
        ["forebay", "app", name].into_iter().chain(words.iter().map(String::as_str)).collect();
    let command = serde_json::Value::from(command);
    format!("\n[[component]]\nname = \"{name}\"\ncommand = {command}\nranks = {ranks}\n{ends}\n")
}
