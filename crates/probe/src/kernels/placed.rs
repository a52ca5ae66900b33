//! Arrays of STREAM on tiers of choice: where they lie, how long they are, and one run over them.
//!
//! Guarantees: each array is memory of its tier without a name, its pages touched by the threads that use them before
//! the clock starts; under horizon `write`, where an element may cost milliseconds, a run is shortened to what can be
//! done in its time, and says so.

use std::path::PathBuf;
use std::str::FromStr;

use forebay_tier::{nameless, Durability, Error, Horizon, Kind, Placement, Region, Result, TierKind};

use super::stream::{self, Array, Layout, Plan, Timing};
use super::together;

/// Elements persisted one by one to see what one costs.
const TRIAL_ELEMENTS: usize = 64;
/// What a run under horizon `write` may take, about.
const WRITE_NS_MAX: u64 = 20_000_000_000;
/// The part of a DAX device that is not touched: where a pool would say that it is one, and a huge page of margin.
const DEVICE_SKIP_BYTES: usize = 2 << 20;

/// Where an array lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tier.
    pub tier: TierKind,
    /// Directory on it, or the device.
    pub dir: PathBuf,
}

impl FromStr for Place {
    type Err = Error;
    /// `TIER` or `TIER:DIR`; without a directory main memory is /dev/shm and everything else the current directory.
    fn from_str(text: &str) -> Result<Place> {
        let (tier, dir) = split(text);
        let tier: TierKind = tier.parse()?;
        let dir = match dir {
            Some(dir) => PathBuf::from(dir),
            None if tier.is_memory() => PathBuf::from("/dev/shm"),
            None if matches!(tier, TierKind::Pmem | TierKind::DevDax) => {
                return Err(Error::new(
                    Kind::Usage,
                    format!("the directory or device of tier {tier} is missing"),
                )
                .hint("name a directory on it: pmem:/mnt/pmem0, or the device: devdax:/dev/dax0.0"))
            }
            None => PathBuf::from("."),
        };
        Ok(Place { tier, dir })
    }
}

/// The word and the directory; the number of a node belongs to the word.
fn split(text: &str) -> (&str, Option<&str>) {
    let after = if text.starts_with("numa:") { "numa:".len() } else { 0 };
    match text[after..].find(':') {
        Some(at) => (&text[..after + at], Some(&text[after + at + 1..])),
        None => (text, None),
    }
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Request {
    /// Of a, b, c; under [`Layout::Roles`] of the two that are read and the one that is written.
    pub places: [Place; 3],
    /// See [`Layout`].
    pub layout: Layout,
    /// When the written array is persisted.
    pub horizon: Horizon,
    /// Elements of each array.
    pub elements: usize,
    /// Rounds.
    pub rounds: usize,
    /// A thread for each.
    pub processors: Vec<usize>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of the four kernels.
    pub timings: Vec<Timing>,
    /// Elements that each kernel worked on; fewer than asked under horizon `write`, where they would take too long.
    pub elements: usize,
    /// What a persisted element of each array survives.
    pub survives: [Durability; 3],
    /// How the pages of arrays on memory nodes came there.
    pub placements: [Option<Placement>; 3],
}

/// Takes the memory, runs, verifies and releases the memory.
///
/// # Errors
/// Those of [`nameless::memory`] and [`stream::run`].
pub fn run(request: &Request) -> Result<Outcome> {
    let bytes = (request.elements * 8) as u64;
    let mut taken = Vec::new();
    for place in &request.places {
        let extra = if place.tier == TierKind::DevDax { DEVICE_SKIP_BYTES as u64 } else { 0 };
        taken.push(nameless::memory(place.tier, &place.dir, bytes + extra)?);
    }
    let placements = [0, 1, 2].map(|i| taken[i].placement);
    let mut regions: Vec<Region> = taken.into_iter().map(|t| t.region).collect();
    let survives = [0, 1, 2].map(|i: usize| regions[i].durability());
    let elements = match request.horizon {
        Horizon::Write => affordable(request, &regions)?,
        _ => request.elements,
    };
    let mut arrays = Vec::new();
    for (region, place) in regions.iter_mut().zip(&request.places) {
        let offset = if place.tier == TierKind::DevDax { DEVICE_SKIP_BYTES } else { 0 };
        let shared = region.shared();
        let memory = &mut region.as_mut_slice()?[offset..offset + elements * 8];
        arrays.push(Array { elements: bytemuck::cast_slice_mut(memory), region: Some(shared), offset });
    }
    let arrays: [Array<'_>; 3] =
        arrays.try_into().map_err(|_| Error::new(Kind::Internal, "STREAM has three arrays"))?;
    let plan = Plan { layout: request.layout, horizon: request.horizon, rounds: request.rounds };
    let timings = stream::run(&plan, arrays, &request.processors)?;
    Ok(Outcome { timings, elements, survives, placements })
}

/// How many elements fit the time when each is persisted by itself, by what a few of them cost. Those of all threads
/// together, a whole number for each.
fn affordable(request: &Request, regions: &[Region]) -> Result<usize> {
    let persists = (request.rounds * stream::Kernel::ALL.len()) as u64;
    let threads = request.processors.len().max(1) as u64;
    let mut slowest_ns = 1;
    for (region, place) in regions.iter().zip(&request.places) {
        let from = if place.tier == TierKind::DevDax { DEVICE_SKIP_BYTES } else { 0 };
        let begun = forebay_tier::clock::now_ns();
        let trial = TRIAL_ELEMENTS.min(request.elements);
        for at in (0..trial).map(|i| from + i * 8) {
            region.persist(at..at + 8)?;
        }
        slowest_ns = slowest_ns.max((forebay_tier::clock::now_ns() - begun) / trial as u64);
    }
    let each = WRITE_NS_MAX / persists / slowest_ns;
    Ok((request.elements as u64).min((each * threads).max(threads)) as usize)
}

/// Elements of an array of four times the last-level cache, in whole MiB; at least 64 MiB, which is enough where the
/// cache is not known.
pub fn usual_elements(cache_bytes: u64) -> usize {
    ((super::CACHES * cache_bytes).max(64 << 20).next_multiple_of(1 << 20) / 8) as usize
}

/// The processors for `threads` threads: the first of those that this process may use.
///
/// # Errors
/// `Usage` when there are not so many.
pub fn processors(threads: Option<usize>) -> Result<Vec<usize>> {
    let all = together::processors();
    match threads {
        None => Ok(all),
        Some(0) => Err(Error::new(Kind::Usage, "at least one thread is needed")),
        Some(threads) if threads > all.len() => Err(Error::new(
            Kind::Usage,
            format!("{threads} threads need one processor each; {} are available", all.len()),
        )
        .hint("fewer threads, or a larger allocation")),
        Some(threads) => Ok(all[..threads].to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_tier_and_a_directory() {
        let place = |text: &str| text.parse::<Place>().map(|p| (p.tier, p.dir.display().to_string()));
        assert_eq!(place("dram").unwrap(), (TierKind::Dram, "/dev/shm".into()));
        assert_eq!(place("numa:1").unwrap(), (TierKind::Numa(1), "/dev/shm".into()));
        assert_eq!(place("numa:0+1").unwrap(), ("numa:0+1".parse().unwrap(), "/dev/shm".into()));
        assert_eq!(place("numa:1:/mnt/shm").unwrap(), (TierKind::Numa(1), "/mnt/shm".into()));
        assert_eq!(place("pmem:/mnt/pmem0").unwrap(), (TierKind::Pmem, "/mnt/pmem0".into()));
        assert_eq!(place("file").unwrap(), (TierKind::File, ".".into()));
        assert!(place("pmem").unwrap_err().hint_text().unwrap().contains("pmem:/mnt/pmem0"));
        assert_eq!(place("disk").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn arrays_lie_where_they_were_placed_and_are_verified() {
        let disk = tempfile::tempdir().unwrap();
        let shm = Place { tier: TierKind::Dram, dir: "/dev/shm".into() };
        let file = Place { tier: TierKind::File, dir: disk.path().into() };
        let node = Place { tier: TierKind::Numa(0), dir: "/dev/shm".into() };
        // Not the file under `write`: with a flush for each element it takes all the time that there is.
        let written = [(Horizon::None, &file), (Horizon::Epoch, &file), (Horizon::Write, &shm)];
        for (horizon, third) in written {
            let request = Request {
                places: [shm.clone(), node.clone(), third.clone()],
                layout: Layout::Arrays,
                horizon,
                elements: 2048,
                rounds: 2,
                processors: processors(None).unwrap(),
            };
            let outcome = run(&request).unwrap();
            assert_eq!(outcome.timings.len(), 4);
            assert!(outcome.elements <= 2048 && outcome.elements > 0, "{horizon}");
            assert!(horizon == Horizon::Write || outcome.elements == 2048);
            assert!(outcome.survives[0] == Durability::Process && outcome.placements[1].is_some());
        }
        assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
    }

    #[test]
    fn sizes_and_processors() {
        assert_eq!(usual_elements(32 << 20), (128 << 20) / 8);
        assert_eq!(usual_elements(0), (64 << 20) / 8);
        assert_eq!(processors(Some(1)).unwrap().len(), 1);
        assert_eq!(processors(Some(100_000)).unwrap_err().kind(), Kind::Usage);
    }
}
