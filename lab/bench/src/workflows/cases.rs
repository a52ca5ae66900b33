//! The workflows that are run: none of the study's eighteen, small enough that all plans of all of them take minutes.
//!
//! Fourteen are kept, and others can be drawn from a seed: those were not used when the model was made.
//!
//! Pure. Computing is said as on the platform itself, in microseconds of a step; on the platform divided by k it takes
//! k times as long, as everything does there.

use std::borrow::Cow;

use forebay_suite::search::Random;

/// A writer and a reader of objects of one size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub name: Cow<'static, str>,
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
    Case {
        name: Cow::Borrowed(name),
        writers,
        readers,
        object,
        count,
        write_compute_us,
        read_compute_us,
        steps,
    }
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

/// Ranks of a side of a drawn workflow at most.
const RANKS: u64 = 14;
/// Its objects have this many bytes at least, doubled so many times at most.
const OBJECT: (u64, u64) = (16 * KIB, 6);
/// A version of it has this many bytes at least, and nearly so many times as much at most.
const VERSION: (u64, f64) = (2048 * KIB, 4.0);
/// A rank puts so many objects in a version at most.
const COUNT: f64 = 64.0;
/// Microseconds of a step before k, where it computes at all, and how many times as long at most.
const COMPUTE: (f64, f64) = (100.0, 20.0);
/// Of so many sides one does not compute.
const IDLE: u64 = 3;
/// Steps at least, and how many more at most.
const STEPS: (u64, u64) = (8, 4);

/// So many workflows from a seed: ranks, sizes and computing in the ranges above, each as likely as the other on the
/// scale on which it is felt.
pub(crate) fn drawn(seed: u64, count: usize) -> Vec<Case> {
    let mut random = Random::new(seed);
    (1..=count).map(|number| draw(&mut random, number)).collect()
}

fn draw(random: &mut Random, number: usize) -> Case {
    let mut below = |n: u64| (random.unit() * n as f64) as u64;
    let writers = 1 + below(RANKS);
    // Half of them have as many on either side.
    let readers = if below(2) == 0 { writers } else { 1 + below(RANKS) };
    let object = (OBJECT.0 << below(OBJECT.1 + 1)) / 2 * (2 + below(2));
    let version = VERSION.0 as f64 * VERSION.1.powf(random.unit());
    let count = (version / (writers * object) as f64).round().clamp(1.0, COUNT);
    let mut compute = || match (random.unit() * IDLE as f64) as u64 {
        0 => 0,
        _ => (COMPUTE.0 * COMPUTE.1.powf(random.unit())).round() as u32,
    };
    let (write_compute_us, read_compute_us) = (compute(), compute());
    let steps = STEPS.0 as u32 + (random.unit() * (STEPS.1 + 1) as f64) as u32;
    let (writers, readers) = (writers as u32, readers as u32);
    let name = Cow::Owned(format!("drawn-{number}"));
    Case { name, writers, readers, object, count: count as u32, write_compute_us, read_compute_us, steps }
}

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

    /// The quota: all versions, so that a serial run fits.
    pub(crate) fn quota_bytes(&self) -> u64 {
        let segments = u64::from(self.steps) + 2;
        self.segment_bytes() * segments * u64::from(self.writers)
    }

    /// Space for what a rank puts in a version, headers included.
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
        Case { writers: 1, readers: 1, steps: 6, ..self.clone() }
    }

    /// The same with hardly anything to do, to see how long its ranks take to be under way.
    pub(crate) fn started(&self) -> Case {
        Case { object: 1024, count: 1, steps: 2, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_workflows_and_not_the_studys() {
        let mut names: Vec<_> = CASES.into_iter().map(|c| c.name).collect();
        names.dedup();
        assert!(names.len() >= 12);
        for case in CASES.into_iter().chain(drawn(1, 30)) {
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
    fn a_seed_draws_the_same_and_another_one_others() {
        assert_eq!(drawn(7, 5), drawn(7, 9)[..5]);
        assert_ne!(drawn(7, 5), drawn(8, 5));
        let many = drawn(1, 200);
        let sides = |side: fn(&Case) -> u32| (many.iter().map(side).min(), many.iter().map(side).max());
        assert_eq!((sides(|c| c.writers), sides(|c| c.readers)), ((Some(1), Some(14)), (Some(1), Some(14))));
        let idle = many.iter().filter(|c| c.write_compute_us == 0).count();
        assert!((40..100).contains(&idle), "{idle} of 200 writers do not compute");
        assert!(many.iter().all(|c| c.read_compute_us == 0 || (100..=2000).contains(&c.read_compute_us)));
    }

    #[test]
    fn computing_takes_k_times_as_long() {
        let case = &CASES[2];
        assert_eq!(case.compute_ms(100.0), (90.0, 0.0));
        assert_eq!((case.alone().writers, case.alone().readers), (1, 1));
    }
}
