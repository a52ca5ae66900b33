//! In which order a job makes its requests: which direction, file, offset and length comes next.
//!
//! Guarantees: the same for the same job and seed; only bytes inside the job's part of each file; a random pass with a
//! map meets every block exactly once. It touches no file and reads no clock.

use std::sync::Arc;

use super::job::{Blocks, Distribution, FileOrder, Job, READ, WRITE};
use super::random::{normal, scattered, Map, Rng, Zipf};
use super::report::{Made, Request};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Read,
    Write,
    Flush { data_only: bool },
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) what: What,
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Do(Next),
    /// The job has been through its part of all files; the next call begins anew.
    PassEnd,
    /// Everything that it was told to do has been asked for.
    Finished,
}

/// The job's part of one file.
#[derive(Debug)]
struct Part {
    begin: u64,
    end: u64,
    /// Bytes still to ask for in this pass.
    left: u64,
    /// Where the next sequential read and write are.
    next: [u64; 2],
    map: Option<Map>,
}

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Order {
    rng: Rng,
    seed: u64,
    passes: u64,
    repeat: bool,
    parts: Vec<Part>,
    current: usize,
    file_order: FileOrder,
    directions: (bool, bool),
    read_percent: u32,
    random_percent: u32,
    blocks: [Blocks; 2],
    /// Smallest block of any direction: the unit of a map.
    unit: u64,
    align: u64,
    distribution: Distribution,
    zipf: Option<(u64, Zipf)>,
    bytes_left: u64,
    ios_left: u64,
    /// Writes between two flushes (0: none), and whether those are of data only.
    flush_every: (u32, u32),
    writes: u64,
    /// The write just given asks for these flushes: (fsync, fdatasync) of this file.
    due: (bool, bool),
    due_file: u32,
    /// Requests that are given, in place of all that.
    script: Option<Script>,
}

/// Requests that are done again.
#[derive(Debug)]
struct Script {
    requests: Arc<[Request]>,
    at: usize,
    /// How often from the beginning, this time included.
    passes: u64,
}

impl Script {
    fn next(&mut self) -> Step {
        if self.at == self.requests.len() {
            self.passes -= 1;
            self.at = 0;
            return if self.passes == 0 { Step::Finished } else { Step::PassEnd };
        }
        if self.passes == 0 {
            return Step::Finished;
        }
        let Request { made, file, offset, len } = self.requests[self.at];
        self.at += 1;
        let what = match made {
            Made::Read => What::Read,
            Made::Write => What::Write,
            Made::Sync => What::Flush { data_only: false },
            Made::DataSync => What::Flush { data_only: true },
        };
        Step::Do(Next { what, file, offset, len })
    }
}

impl Order {
    /// `parts` are begin and end of the job's part of each file.
    pub(crate) fn new(job: &Job, parts: &[(u64, u64)]) -> Order {
        let unit = u64::from(job.block_min());
        let align = if job.align == 0 { unit } else { job.align };
        let mapped = job.random_map
            && job.random_percent == 100
            && job.distribution == Distribution::Even
            && align == unit;
        let part = |&(begin, end): &(u64, u64)| Part {
            begin,
            end,
            left: 0,
            next: [0; 2],
            map: mapped.then(|| Map::new((end - begin) / unit)),
        };
        let parts: Vec<Part> = parts.iter().map(part).collect();
        let pass: u64 = parts.iter().map(|part| (part.end - part.begin) / unit * unit).sum();
        let once = if job.io_bytes == 0 { pass } else { job.io_bytes };
        let bytes = if job.time_based { u64::MAX } else { once.saturating_mul(u64::from(job.loops.max(1))) };
        let mut order = Order {
            rng: Rng::new(job.seed),
            seed: job.seed,
            passes: 0,
            repeat: job.repeat,
            parts,
            current: 0,
            file_order: job.file_order,
            directions: (job.reads, job.writes),
            read_percent: job.read_percent,
            random_percent: job.random_percent,
            blocks: job.blocks.clone(),
            unit,
            align,
            distribution: job.distribution,
            zipf: None,
            bytes_left: bytes,
            ios_left: if job.ios_max == 0 { u64::MAX } else { job.ios_max },
            flush_every: (job.fsync_every, job.fdatasync_every),
            writes: 0,
            due: (false, false),
            due_file: 0,
            script: job.replay.clone().map(|requests| Script {
                requests,
                at: 0,
                passes: if job.time_based { u64::MAX } else { u64::from(job.loops.max(1)) },
            }),
        };
        order.begin_pass();
        order
    }

    fn begin_pass(&mut self) {
        let seed = if self.repeat { self.seed } else { self.seed.wrapping_add(scattered(self.passes)) };
        self.rng = Rng::new(seed);
        self.passes += 1;
        self.current = 0;
        for part in &mut self.parts {
            part.left = part.end - part.begin;
            part.next = [part.begin; 2];
            if let Some(map) = &mut part.map {
                map.clear();
            }
        }
    }

    /// The next step.
    #[inline]
    pub(crate) fn next(&mut self) -> Step {
        if let Some(script) = &mut self.script {
            return match self.ios_left {
                0 => Step::Finished,
                _ => {
                    let step = script.next();
                    let counts = |next: &Next| !matches!(next.what, What::Flush { .. });
                    self.ios_left -= u64::from(matches!(&step, Step::Do(next) if counts(next)));
                    step
                }
            };
        }
        if let Some(flush) = self.due_flush() {
            return Step::Do(flush);
        }
        if self.bytes_left < self.unit || self.ios_left == 0 {
            return Step::Finished;
        }
        let Some(file) = self.file() else {
            self.begin_pass();
            return Step::PassEnd;
        };
        let direction = self.direction();
        let (offset, len) = self.place(file, direction);
        self.bytes_left = self.bytes_left.saturating_sub(u64::from(len));
        self.ios_left -= 1;
        let file = file as u32;
        if direction == READ {
            return Step::Do(Next { what: What::Read, file, offset, len });
        }
        self.writes += 1;
        let due = |every: u32| every > 0 && self.writes % u64::from(every) == 0;
        self.due = (due(self.flush_every.0), due(self.flush_every.1));
        self.due_file = file;
        Step::Do(Next { what: What::Write, file, offset, len })
    }

    #[inline]
    fn due_flush(&mut self) -> Option<Next> {
        let data_only = match self.due {
            (false, false) => return None,
            (true, _) => {
                self.due.0 = false;
                false
            }
            (false, true) => {
                self.due.1 = false;
                true
            }
        };
        Some(Next { what: What::Flush { data_only }, file: self.due_file, offset: 0, len: 0 })
    }

    /// A file with something left in this pass.
    #[inline]
    fn file(&mut self) -> Option<usize> {
        let (count, unit) = (self.parts.len(), self.unit);
        if count == 1 {
            return (self.parts[0].left >= unit).then_some(0);
        }
        let from = match self.file_order {
            FileOrder::Random => self.rng.below(count as u64) as usize,
            FileOrder::RoundRobin | FileOrder::Sequential => self.current,
        };
        let found = (from..count).chain(0..from).find(|file| self.parts[*file].left >= unit)?;
        self.current = match self.file_order {
            FileOrder::RoundRobin => (found + 1) % count,
            _ => found,
        };
        Some(found)
    }

    #[inline]
    fn direction(&mut self) -> usize {
        match self.directions {
            (true, false) => READ,
            (false, _) => WRITE,
            (true, true) if self.rng.chance(self.read_percent) => READ,
            (true, true) => WRITE,
        }
    }

    #[inline]
    fn length(&mut self, direction: usize) -> u64 {
        match &self.blocks[direction] {
            Blocks::One(bytes) => u64::from(*bytes),
            Blocks::Range(min, max) => {
                let (min, max) = (u64::from(*min), u64::from(*max));
                min + self.rng.below((max - min) / min + 1) * min
            }
            Blocks::Split(parts) => {
                let mut at = self.rng.below(100) as u32;
                let chosen = parts.iter().find(|(_, weight)| {
                    let hit = at < *weight;
                    at = at.saturating_sub(*weight);
                    hit
                });
                u64::from(chosen.or(parts.last()).expect("a split has parts").0)
            }
        }
    }

    /// Offset and length of the next request in a file that has at least one unit left.
    #[inline]
    fn place(&mut self, file: usize, direction: usize) -> (u64, u32) {
        let min = u64::from(self.blocks[direction].min());
        let left = (self.parts[file].left / min * min).max(self.unit);
        let len = self.length(direction).min(left);
        let random = match self.random_percent {
            0 => false,
            100 => true,
            percent => self.rng.chance(percent),
        };
        let (offset, len) = match random {
            true if self.parts[file].map.is_some() => self.unmet(file, len),
            true => self.anywhere(file, len),
            false => self.following(file, direction, len),
        };
        let part = &mut self.parts[file];
        part.left = part.left.saturating_sub(len);
        part.next[direction] = offset + len;
        (offset, len as u32)
    }

    /// A place that this pass has not met: as much of `len` as is free there.
    #[inline]
    fn unmet(&mut self, file: usize, len: u64) -> (u64, u64) {
        let (unit, part) = (self.unit, &mut self.parts[file]);
        let map = part.map.as_mut().expect("the caller looked");
        let from = self.rng.below((part.end - part.begin) / unit);
        let first = map.take_from(from).expect("bytes are left in this pass");
        let mut units = 1;
        while units * unit < len && map.take(first + units) {
            units += 1;
        }
        (part.begin + first * unit, units * unit)
    }

    fn anywhere(&mut self, file: usize, len: u64) -> (u64, u64) {
        let part = &self.parts[file];
        let (begin, places) = (part.begin, (part.end - part.begin - len) / self.align + 1);
        let place = match self.distribution {
            Distribution::Even => self.rng.below(places),
            Distribution::Zipf(exponent) => {
                if self.zipf.as_ref().is_none_or(|(n, _)| *n != places) {
                    self.zipf = Some((places, Zipf::new(exponent, places)));
                }
                let (_, zipf) = self.zipf.as_ref().expect("just made");
                scattered(zipf.next(&mut self.rng)) % places
            }
            Distribution::Normal(percent) => loop {
                let middle = places as f64 / 2.0;
                let at = middle + normal(&mut self.rng) * places as f64 * percent / 100.0;
                if at >= 0.0 && at < places as f64 {
                    break at as u64;
                }
            },
        };
        (begin + place * self.align, len)
    }

    #[inline]
    fn following(&mut self, file: usize, direction: usize, len: u64) -> (u64, u64) {
        let part = &self.parts[file];
        let next = part.next[direction];
        // Only after a random request can the end be in the way.
        let offset = if next + len > part.end { part.begin } else { next };
        (offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job { size: 64 << 10, ..Job::new("j", vec!["f".into()]) }
    }

    fn all(job: &Job, parts: &[(u64, u64)]) -> Vec<Step> {
        let mut order = Order::new(job, parts);
        std::iter::from_fn(|| Some(order.next()))
            .take_while(|step| *step != Step::Finished)
            .take(10_000)
            .collect()
    }

    #[test]
    fn what_is_given_is_done_again_as_often_as_told() {
        let request = |made, offset, len| Request { made, file: 0, offset, len };
        let given =
            [request(Made::Write, 8192, 512), request(Made::Sync, 0, 0), request(Made::Read, 0, 4096)];
        let job = Job { writes: true, replay: Some(given.into()), loops: 2, ..job() };
        let next = |what, offset, len| Step::Do(Next { what, file: 0, offset, len });
        let pass = [
            next(What::Write, 8192, 512),
            next(What::Flush { data_only: false }, 0, 0),
            next(What::Read, 0, 4096),
        ];
        let twice = [&pass[..], &[Step::PassEnd], &pass[..]].concat();
        let parts = [(0, 64 << 10)];
        assert_eq!(all(&job, &parts), twice);
        assert_eq!(all(&Job { ios_max: 3, ..job.clone() }, &parts).len(), 5, "a flush is no request");
        job.check().unwrap();
        for wrong in [
            Job { writes: false, ..job.clone() },
            Job { size: 4096, ..job.clone() },
            Job { blocks: [Blocks::One(512), Blocks::One(512)], ..job.clone() },
            Job { replay: Some([].into()), ..job.clone() },
        ] {
            assert!(wrong.check().is_err());
        }
    }

    fn offsets(job: &Job, parts: &[(u64, u64)]) -> Vec<u64> {
        let place = |step: &Step| match step {
            Step::Do(next) if !matches!(next.what, What::Flush { .. }) => Some(next.offset),
            _ => None,
        };
        all(job, parts).iter().filter_map(place).collect()
    }

    #[test]
    fn sequential_and_random_meet_every_block_once() {
        let part = [(8192, 8192 + (64 << 10) + 100)];
        let expected: Vec<u64> = (0..16).map(|i| 8192 + i * 4096).collect();
        assert_eq!(offsets(&job(), &part), expected);
        let mut random = job();
        random.random_percent = 100;
        let mut seen = offsets(&random, &part);
        assert_ne!(seen, expected);
        seen.sort_unstable();
        assert_eq!(seen, expected);
        random.seed = 2;
        assert_ne!(offsets(&random, &part), offsets(&Job { seed: 3, ..random.clone() }, &part));
        random.random_map = false;
        let mut free = offsets(&random, &part);
        free.sort_unstable();
        free.dedup();
        assert!(free.len() < 16, "16 of 16 without a repetition");
    }

    #[test]
    fn totals_loops_and_passes() {
        let part = [(0, 64 << 10)];
        assert_eq!(offsets(&Job { io_bytes: 20 << 10, ..job() }, &part).len(), 5);
        assert_eq!(offsets(&Job { ios_max: 3, ..job() }, &part), [0, 4096, 8192]);
        let twice = all(&Job { loops: 2, random_percent: 100, ..job() }, &part);
        assert_eq!(twice[16], Step::PassEnd);
        assert_eq!(twice[..16], twice[17..]);
        let other = all(&Job { loops: 2, random_percent: 100, repeat: false, ..job() }, &part);
        assert_ne!(other[..16], other[17..]);
        assert_eq!(offsets(&Job { time_based: true, ..job() }, &part).len() / 100, 94);
    }

    #[test]
    fn flushes_follow_every_nth_write() {
        let job = Job { reads: false, writes: true, fsync_every: 2, fdatasync_every: 3, ios_max: 6, ..job() };
        let text: String = all(&job, &[(0, 64 << 10)])
            .iter()
            .map(|step| match step {
                Step::Do(Next { what: What::Write, .. }) => 'w',
                Step::Do(Next { what: What::Flush { data_only: false }, .. }) => 'f',
                Step::Do(Next { what: What::Flush { data_only: true }, .. }) => 'd',
                _ => '?',
            })
            .collect();
        assert_eq!(text, "wwfwdwfwwfd");
    }

    #[test]
    fn files_take_turns_as_told() {
        let parts = [(0, 8192), (0, 4096), (0, 12_288)];
        let files = |file_order| {
            let steps = all(&Job { file_order, ..job() }, &parts);
            let file = |step: &Step| if let Step::Do(next) = step { Some(next.file) } else { None };
            steps.iter().filter_map(file).collect::<Vec<_>>()
        };
        assert_eq!(files(FileOrder::RoundRobin), [0, 1, 2, 0, 2, 2]);
        assert_eq!(files(FileOrder::Sequential), [0, 0, 1, 2, 2, 2]);
        let mut any = files(FileOrder::Random);
        any.sort_unstable();
        assert_eq!(any, [0, 0, 1, 2, 2, 2]);
    }

    #[test]
    fn mixes_and_sizes_are_as_asked() {
        let mix = Job { writes: true, read_percent: 75, ..job() };
        let steps = all(&mix, &[(0, 32 << 20)]);
        let reads = steps.iter().filter(|s| matches!(s, Step::Do(Next { what: What::Read, .. }))).count();
        assert_eq!(steps.len(), 8192);
        assert!((5_900..6_400).contains(&reads), "{reads}");
        let ranges =
            Job { blocks: [Blocks::Range(4096, 16384), Blocks::One(4096)], random_percent: 100, ..job() };
        let mut covered = vec![false; 256];
        for step in all(&ranges, &[(0, 1 << 20)]) {
            let Step::Do(next) = step else { panic!("{step:?}") };
            assert!(next.len % 4096 == 0 && next.len <= 16384);
            for block in next.offset / 4096..(next.offset + u64::from(next.len)) / 4096 {
                assert!(!std::mem::replace(&mut covered[block as usize], true));
            }
        }
        assert!(covered.iter().all(|met| *met));
        let split = Job { blocks: [Blocks::Split(vec![(4096, 90), (8192, 10)]), Blocks::One(512)], ..job() };
        let large = all(&split, &[(0, 16 << 20)])
            .iter()
            .filter(|s| matches!(s, Step::Do(Next { len: 8192, .. })))
            .count();
        assert!((300..450).contains(&large), "{large}");
    }

    #[test]
    fn some_requests_follow_and_some_are_preferred() {
        let half = Job { random_percent: 50, ..job() };
        let seen = offsets(&half, &[(0, 16 << 20)]);
        let follow = seen.windows(2).filter(|w| w[1] == w[0] + 4096).count();
        assert!((1_900..2_200).contains(&follow), "{follow} of {}", seen.len());
        let frequent = |distribution| {
            let job = Job { random_percent: 100, distribution, ..job() };
            let mut counts = std::collections::HashMap::new();
            offsets(&job, &[(0, 16 << 20)]).iter().for_each(|at| *counts.entry(*at).or_insert(0u32) += 1);
            counts.values().copied().max().unwrap_or(0)
        };
        assert!(frequent(Distribution::Zipf(1.2)) > 500);
        let middle = Job { random_percent: 100, distribution: Distribution::Normal(5.0), ..job() };
        let near =
            offsets(&middle, &[(0, 16 << 20)]).iter().filter(|at| (6 << 20..10 << 20).contains(*at)).count();
        assert!(near > 4_000, "{near}");
    }
}
