//! The workflows that are run: none of the study's eighteen, small enough that all plans of all of them take minutes.
//!
//! Pure. Computing is said as on the platform itself, in microseconds of a step; on the platform divided by k it takes
//! k times as long, as everything does there.

/// A writer and a reader of objects of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Case {
    pub name: &'static str,
    pub writers: u32,
    pub readers: u32,
    /// Bytes of an object.
    pub object: u64,
    /// Objects of each writing rank in a version.
    pub count: u32,
    /// Microseconds of a step of a writing rank, before k.
    pub write_compute_us: u32,
    /// Of a reading one.
    pub read_compute_us: u32,
    pub steps: u32,
}

const KIB: u64 = 1024;

const fn case(
    name: &'static str,
    (writers, readers): (u32, u32),
    (object, count): (u64, u32),
    (write_compute_us, read_compute_us): (u32, u32),
    steps: u32,
) -> Case {
    Case { name, writers, readers, object, count, write_compute_us, read_compute_us, steps }
}

/// All of them. Ranks, size and number of objects, computing of writers and readers, versions.
pub(crate) const CASES: [Case; 14] = [
    case("large-alone", (6, 6), (256 * KIB, 4), (0, 0), 8),
    case("large-wide", (12, 12), (128 * KIB, 4), (0, 0), 8),
    case("large-writers-compute", (4, 4), (256 * KIB, 4), (900, 0), 6),
    case("large-readers-compute", (4, 4), (256 * KIB, 4), (0, 900), 6),
    case("large-both-compute", (6, 6), (256 * KIB, 3), (700, 700), 6),
    case("balanced", (10, 10), (64 * KIB, 8), (500, 500), 6),
    case("small-few", (3, 3), (16 * KIB, 48), (0, 0), 8),
    case("small-wide", (12, 12), (16 * KIB, 24), (0, 0), 8),
    case("small-readers-compute", (5, 5), (16 * KIB, 32), (100, 1200), 6),
    case("two-writers", (2, 2), (512 * KIB, 4), (300, 0), 8),
    case("one-writer", (1, 1), (512 * KIB, 6), (600, 600), 6),
    case("fan-in", (12, 3), (64 * KIB, 6), (200, 200), 6),
    case("fan-out", (2, 8), (256 * KIB, 8), (100, 500), 6),
    case("bursts", (8, 8), (512 * KIB, 2), (2000, 100), 5),
];

/// How many of [`CASES`] a quick run takes.
pub(crate) const QUICK: usize = 2;

impl Case {
    /// Payload bytes of a version.
    pub(crate) fn version_bytes(&self) -> u64 {
        u64::from(self.writers) * u64::from(self.count) * self.object
    }

    /// Milliseconds of computing of a step of a writing and of a reading rank.
    pub(crate) fn compute_ms(&self, k: f64) -> (f64, f64) {
        let ms = |us: u32| f64::from(us) * k / 1e3;
        (ms(self.write_compute_us), ms(self.read_compute_us))
    }

    /// The quota: all versions, so that a serial run has room.
    pub(crate) fn quota_bytes(&self) -> u64 {
        let segments = u64::from(self.steps) + 2;
        self.segment_bytes() * segments * u64::from(self.writers)
    }

    /// Room for what a rank puts in a version, headers included.
    fn segment_bytes(&self) -> u64 {
        let of_rank = u64::from(self.count) * (self.object + 512) + 64 * KIB;
        of_rank.next_multiple_of(1024 * KIB)
    }

    /// The workflow file. `emulate` is what the channel says of its medium, absent for plain memory; `limit_s` ends a
    /// run that takes longer.
    pub(crate) fn workflow(
        &self,
        channel: &str,
        emulate: Option<(&str, f64)>,
        limit_s: Option<f64>,
    ) -> String {
        let mut text = format!(
            "forebay = 1\n[workflow]\nname = \"{}\"\n\n[channel.{channel}]\nquota = {}\nsegment = {}\n",
            self.name,
            self.quota_bytes(),
            self.segment_bytes()
        );
        if let Some((medium, k)) = emulate {
            text += &format!("emulate = {}\n", serde_json::Value::from(format!("{medium}/{k}")));
        }
        let (writing_ms, reading_ms) = self.compute_ms(emulate.map_or(0.0, |(_, k)| k));
        let limit = limit_s.map_or(String::new(), |s| format!("timeout = {s:.3}\n"));
        let writer = format!(
            "\"--object\", \"{}\", \"--count\", \"{}\", \"--steps\", \"{}\", \"--compute-ms\", \"{writing_ms}\"",
            self.object, self.count, self.steps
        );
        let reader = format!("\"--unchecked\", \"--compute-ms\", \"{reading_ms}\"");
        let sides = [("writer", self.writers, writer, "writes"), ("reader", self.readers, reader, "reads")];
        for (name, ranks, words, verb) in sides {
            text += &format!(
                "\n[[component]]\nname = \"{name}\"\nranks = {ranks}\n{verb} = [\"{channel}\"]\n{limit}\
                 command = [\"forebay\", \"app\", \"{name}\", \"--channel\", \"{channel}\", {words}]\n"
            );
        }
        text
    }

    /// The same with one rank of each and few steps, to see what software an object costs.
    pub(crate) fn alone(&self) -> Case {
        Case { writers: 1, readers: 1, steps: 6, ..*self }
    }

    /// The same with hardly anything to do, to see how long its ranks take to be under way.
    pub(crate) fn started(&self) -> Case {
        Case { object: 1024, count: 1, steps: 2, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_workflows_and_not_the_studys() {
        let mut names: Vec<&str> = CASES.iter().map(|c| c.name).collect();
        names.dedup();
        assert!(names.len() >= 12);
        for case in CASES {
            let text = case.workflow("c", Some(("optane-gen1:pmem", 64.0)), Some(2.5));
            let file = std::path::Path::new("w.toml");
            let workflow = forebay_flow::Workflow::parse(file, std::path::Path::new("/"), &text)
                .unwrap_or_else(|e| panic!("{e:?}\n{text}"));
            assert_eq!(workflow.components[0].ranks, case.writers);
            assert!(case.quota_bytes() > case.version_bytes() * u64::from(case.steps), "{}", case.name);
            assert!(case.quota_bytes() < 256 << 20, "{}: {}", case.name, case.quota_bytes());
            // The study: 8, 16 or 24 ranks of each, objects of 2 KiB, 4672 B, 64 MB, 229 MB.
            let studied = [2048, 4672, 64_000_000, 229_000_000].contains(&case.object);
            assert!(!studied, "{}", case.name);
        }
    }

    #[test]
    fn computing_takes_k_times_as_long() {
        let case = CASES[2];
        assert_eq!(case.compute_ms(100.0), (90.0, 0.0));
        assert_eq!((case.alone().writers, case.alone().readers), (1, 1));
    }
}
