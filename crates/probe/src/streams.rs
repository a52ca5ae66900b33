//! STREAM with its arrays on each pair of memory tiers, as a table by location.
//!
//! Guarantees: arrays take at most half of the free memory of any tier; each row is run as often as other numbers are
//! taken, and shows what the runs differ by; arrays too short for the caches have a caveat in the row. A pair that
//! cannot be measured is a note. Not measured on tiers without memory of their own to map (`file`, `direct`).

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_tier::{Error, Horizon, Kind, Result, TierKind};

use super::find::Found;
use super::schedule::REPETITIONS;
use crate::kernels::placed::{self, Place, Request};
use crate::kernels::stream::{Kernel, Layout, Timing, ROUNDS};
use crate::kernels::{together, CACHES};
use forebay_profile::{Citation, Estimate, Profile, Provenance, Source, Spread, Stream, Unit};

/// Key of the source of these numbers.
const KEY: &str = "probe-stream";
/// Fewer elements than this are no STREAM: a page for each of many threads.
const ELEMENTS_MIN: usize = 1 << 16;

/// The rows to be measured: what is read, what is written, and when it is persisted.
pub fn rows<'a>(tiers: &[&'a Found]) -> Vec<(&'a Found, &'a Found, Horizon)> {
    let of_memory = |tier: &&&'a Found| !matches!(tier.kind, TierKind::File | TierKind::Direct);
    let memory: Vec<&Found> = tiers.iter().filter(of_memory).copied().collect();
    let mut rows = Vec::new();
    for read in &memory {
        for write in &memory {
            // Where nothing can be persisted, horizons make no difference.
            let horizons: &[Horizon] = match write.kind.is_memory() {
                true => &[Horizon::None],
                false => &[Horizon::None, Horizon::Epoch, Horizon::Write],
            };
            rows.extend(horizons.iter().map(|horizon| (*read, *write, *horizon)));
        }
    }
    rows
}

/// What limits the arrays.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Last-level cache to be exceeded.
    pub cache_bytes: u64,
    /// No tier gives more than this.
    pub take_bytes_max: u64,
}

/// Elements of each array: four times the cache, at most half of the free memory of the fuller tier. (All three may
/// lie on one of them.)
fn elements(read: &Found, write: &Found, limits: Limits) -> usize {
    let free = read.free.bytes.min(write.free.bytes) / 2;
    let most = free.min(limits.take_bytes_max) / (3 * 8);
    (placed::usual_elements(limits.cache_bytes)).min(most as usize)
}

/// Measures the rows of the tiers that the profile has, and adds them; `watch` is told how many rows are done. Ends
/// between two runs when it is told to stop.
pub fn measure(
    profile: &mut Profile,
    tiers: &[Found],
    limits: Limits,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(u64, u64),
) {
    let there: Vec<&Found> = tiers.iter().filter(|t| profile.tier(&t.name).is_some()).collect();
    let rows = rows(&there);
    for (done, (read, write, horizon)) in rows.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        watch(done as u64, rows.len() as u64);
        match row(read, write, *horizon, limits, stop) {
            Ok(row) => profile.streams.extend(row),
            Err(e) => profile
                .notes
                .push(format!("not measured: STREAM from {} to {}, {horizon}: {e}", read.name, write.name)),
        }
    }
    if !profile.streams.is_empty() {
        profile.sources.insert(KEY.into(), source());
    }
}

fn source() -> Source {
    Source {
        kind: Provenance::Measured,
        citation: None,
        method: Some(format!(
            "forebay probe: STREAM, arrays of {CACHES} x the last-level cache each where memory suffices, the best of \
             {ROUNDS} rounds without the first, every element verified"
        )),
        repetitions: Some(REPETITIONS),
        spread: Spread::Range,
        note: None,
    }
}

fn row(
    read: &Found,
    write: &Found,
    horizon: Horizon,
    limits: Limits,
    stop: &AtomicBool,
) -> Result<Option<Stream>> {
    let elements = elements(read, write, limits);
    if elements < ELEMENTS_MIN {
        return Err(Error::new(Kind::TierFull, "not enough free memory for three arrays"));
    }
    let place = |tier: &Found| Place { tier: tier.kind, dir: tier.place.clone() };
    let request = Request {
        places: [place(read), place(read), place(write)],
        layout: if read.name == write.name { Layout::Arrays } else { Layout::Roles },
        horizon,
        elements,
        rounds: ROUNDS,
        processors: together::processors(),
    };
    let mut runs: Vec<Vec<Timing>> = Vec::new();
    for _ in 0..REPETITIONS {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        runs.push(placed::run(&request)?.timings);
    }
    let of = |kernel: Kernel| {
        let best = |run: &Vec<Timing>| run.iter().find(|t| t.kernel == kernel).map(|t| t.best() / 1e9);
        let values: Vec<f64> = runs.iter().filter_map(best).collect();
        Estimate::of_repetitions(&values).ok_or_else(|| Error::new(Kind::Internal, "a kernel did not run"))
    };
    let bytes = elements as u64 * 8;
    // What is persisted element by element does not gain by a cache.
    let short = bytes < CACHES * limits.cache_bytes && horizon != Horizon::Write;
    Ok(Some(Stream {
        read: read.name.clone(),
        write: write.name.clone(),
        horizon,
        threads: Some(request.processors.len() as u32),
        unit: Unit::Gigabytes,
        copy: of(Kernel::Copy)?,
        scale: of(Kernel::Scale)?,
        add: of(Kernel::Add)?,
        triad: of(Kernel::Triad)?,
        source: Citation::of(KEY),
        caveat: short.then(|| {
            let (array, cache) = (bytes >> 20, limits.cache_bytes >> 20);
            format!("cache: memory for arrays of {array} MiB only, less than {CACHES} x the last cache of {cache} MiB")
        }),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::find;
    use crate::sample::{two_sockets_and_cxl, TOLD};
    use forebay_profile::Tier;

    #[test]
    fn every_pair_of_memories_is_a_row_and_what_can_be_persisted_has_three() {
        let dir = tempfile::tempdir().unwrap();
        let tiers = find(&two_sockets_and_cxl(dir.path()), &TOLD, &[]);
        let mut dram = tiers.found.iter().find(|t| t.kind == TierKind::Dram).unwrap().clone();
        dram.name = "dram".into();
        let mut pmem = dram.clone();
        (pmem.kind, pmem.name) = (TierKind::Pmem, "pmem".into());
        let mut file = dram.clone();
        (file.kind, file.name) = (TierKind::File, "file".into());
        let seen: Vec<String> = rows(&[&dram, &pmem, &file])
            .into_iter()
            .map(|(r, w, horizon)| format!("{}-{} {horizon}", r.name, w.name))
            .collect();
        let wanted = [
            "dram-dram none",
            "dram-pmem none",
            "dram-pmem epoch",
            "dram-pmem write",
            "pmem-dram none",
            "pmem-pmem none",
            "pmem-pmem epoch",
            "pmem-pmem write",
        ];
        assert_eq!(seen, wanted);
        dram.free.bytes = 48 << 20;
        let limits = Limits { cache_bytes: 1 << 30, take_bytes_max: u64::MAX };
        assert_eq!(elements(&dram, &pmem, limits), 1 << 20, "half of what is free, for three arrays");
    }

    #[test]
    fn this_machines_memory_becomes_a_row() {
        let (sample, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let tiers = find(&two_sockets_and_cxl(sample.path()), &TOLD, &[]);
        let mut dram = tiers.found.iter().find(|t| t.kind == TierKind::Dram).unwrap().clone();
        dram.place = dir.path().into();
        dram.free.bytes = 4 << 20;
        let mut profile = Profile::new("here", "2026");
        let stop = AtomicBool::new(false);
        let limits = Limits { cache_bytes: 1 << 20, take_bytes_max: u64::MAX };
        measure(&mut profile, &[dram.clone()], limits, &stop, &mut |_, _| ());
        assert!(profile.streams.is_empty(), "a tier that was not measured has no rows");
        profile.tiers.push(Tier::new(&dram.name, dram.kind));
        let mut told = Vec::new();
        measure(&mut profile, &[dram.clone()], limits, &stop, &mut |done, all| told.push((done, all)));
        assert_eq!((profile.streams.len(), told), (1, vec![(0, 1)]), "{:?}", profile.notes);
        let row = &profile.streams[0];
        assert!(row.copy.value > 0.0 && row.triad.error.is_some());
        assert!(row.caveat.as_ref().unwrap().contains("cache"), "{row:?}");
        assert!(Profile::parse("x", &profile.text().unwrap()).is_ok());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        stop.store(true, Ordering::Relaxed);
        profile.streams.clear();
        measure(&mut profile, &[dram], limits, &stop, &mut |_, _| ());
        assert!(profile.streams.is_empty());
    }
}
