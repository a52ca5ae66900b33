//! `forebay bench stream`: the STREAM kernels, with each array on a tier of choice.
//!
//! Prints the table that STREAM prints, says that it was measured and under which conditions, and puts the published
//! table of a platform beside it (`beside.rs`) when asked, or when an array lies on persistent memory.

use forebay_probe::kernels::placed::{self, Outcome, Place, Request};
use forebay_probe::kernels::stream::{Layout, Timing, ROUNDS};
use forebay_probe::kernels::CACHES;
use forebay_probe::machine::Machine;
use forebay_probe::nodes::cache_to_exceed;
use forebay_tier::{Error, Horizon, Kind, Result};
use serde::Serialize;

use super::beside::{self, Beside};
use crate::schema;
use forebay_cli::output::Output;

/// Run STREAM with each array on a tier of choice.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Places are TIER or TIER:DIR (dram, numa:1, pmem:/mnt/pmem0, devdax:/dev/dax0.0, file:/scratch), for \
                  all arrays, for each (a=dram,b=pmem:/mnt/pmem0,c=dram), or by what kernels do with them \
                  (read=pmem:/mnt/pmem0,write=dram): then every kernel reads two arrays and writes a third."
)]
pub struct Args {
    /// Where arrays lie.
    #[arg(long, value_name = "PLACES", default_value = "dram")]
    place: String,
    /// When the array that a kernel writes is made persistent: none, epoch (after each kernel), write (each element).
    #[arg(long, default_value = "none")]
    horizon: Horizon,
    /// Elements of 8 bytes in each array; by default four times the last-level cache.
    #[arg(long, value_name = "N")]
    elements: Option<usize>,
    /// Threads, each on a processor of its own; by default one for each processor.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How often every kernel runs; the first time is not counted.
    #[arg(long, value_name = "N", default_value_t = ROUNDS)]
    rounds: usize,
    /// Print the figures of a platform, a saved profile or a file beside the measured ones; where an array lies on
    /// persistent memory, those of every platform that has some for it.
    #[arg(long = "platform", value_name = "NAME")]
    platforms: Vec<String>,
}

/// The places of the three arrays, and which layout they mean.
fn places(text: &str) -> Result<([Place; 3], Layout)> {
    if !text.contains('=') {
        let place: Place = text.parse()?;
        return Ok(([place.clone(), place.clone(), place], Layout::Arrays));
    }
    let mut named: Vec<(&str, Place)> = Vec::new();
    for part in text.split(',') {
        let (name, place) = part.split_once('=').ok_or_else(|| no_place(part))?;
        if named.iter().any(|(known, _)| *known == name) {
            return Err(Error::new(Kind::Usage, format!("`{name}` is placed twice")));
        }
        named.push((name, place.parse()?));
    }
    let of = |name: &str| named.iter().find(|(known, _)| *known == name).map(|(_, place)| place.clone());
    match (named.len(), of("a"), of("b"), of("c"), of("read"), of("write")) {
        (3, Some(a), Some(b), Some(c), ..) => Ok(([a, b, c], Layout::Arrays)),
        (2, .., Some(read), Some(write)) => Ok(([read.clone(), read, write], Layout::Roles)),
        _ => Err(no_place(text)),
    }
}

fn no_place(text: &str) -> Error {
    Error::new(Kind::Usage, format!("`{text}` does not place the arrays"))
        .hint("one tier for all, a=…,b=…,c=…, or read=…,write=…")
}

#[derive(Serialize)]
struct Body {
    provenance: &'static str,
    layout: &'static str,
    places: Vec<Placed>,
    horizon: Horizon,
    elements: usize,
    elements_asked: usize,
    threads: usize,
    rounds: usize,
    cache_bytes: u64,
    /// The arrays are too small to see past the cache.
    cache: bool,
    verified: bool,
    kernels: Vec<Row>,
    beside: Vec<Beside>,
}

#[derive(Serialize)]
struct Placed {
    array: &'static str,
    tier: String,
    place: String,
    survives: forebay_tier::Durability,
    placement: Option<String>,
}

#[derive(Serialize)]
struct Row {
    kernel: &'static str,
    bytes: u64,
    best_bytes_per_s: f64,
    mean_s: f64,
    min_s: f64,
    max_s: f64,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    let (places, layout) = places(&args.place)?;
    if args.rounds == 0 || args.elements == Some(0) {
        return Err(Error::new(Kind::Usage, "STREAM wants at least one element and one round"));
    }
    let profiles = beside::profiles(&args.platforms, &places)?;
    let cache = cache_to_exceed(&Machine::here());
    let elements = args.elements.unwrap_or_else(|| placed::usual_elements(cache));
    let processors = placed::processors(args.threads)?;
    let request =
        Request { places, layout, horizon: args.horizon, elements, rounds: args.rounds, processors };
    let outcome = placed::run(&request)?;
    let beside = beside::all(&profiles, &request);
    let body = Body { beside, ..body(&request, &outcome, cache) };
    out.result(schema::BENCH_STREAM, &body, || {
        text(&request, &outcome, &body) + &beside::text(&body.beside, &outcome.timings, out)
    })?;
    Ok(0)
}

fn names(layout: Layout) -> [&'static str; 3] {
    match layout {
        Layout::Arrays => ["a", "b", "c"],
        Layout::Roles => ["read", "read", "write"],
    }
}

fn body(request: &Request, outcome: &Outcome, cache_bytes: u64) -> Body {
    let place = |i: usize| Placed {
        array: names(request.layout)[i],
        tier: request.places[i].tier.to_string(),
        place: request.places[i].dir.display().to_string(),
        survives: outcome.survives[i],
        placement: outcome.placements[i].map(|p| p.to_string()),
    };
    Body {
        provenance: "measured",
        layout: if request.layout == Layout::Arrays { "arrays" } else { "roles" },
        places: (0..3).map(place).collect(),
        horizon: request.horizon,
        elements: outcome.elements,
        elements_asked: request.elements,
        threads: request.processors.len(),
        rounds: request.rounds,
        cache_bytes,
        cache: (outcome.elements as u64) * 8 < CACHES * cache_bytes,
        verified: true,
        kernels: outcome.timings.iter().map(row).collect(),
        beside: Vec::new(),
    }
}

fn row(timing: &Timing) -> Row {
    Row {
        kernel: timing.kernel.name(),
        bytes: timing.bytes,
        best_bytes_per_s: timing.best(),
        mean_s: timing.mean(),
        min_s: timing.min(),
        max_s: timing.max(),
    }
}

fn text(request: &Request, outcome: &Outcome, body: &Body) -> String {
    let mut text = String::new();
    let place = |p: &Placed| format!("{} on {} ({})", p.array, p.tier, p.place);
    let several = request.places.iter().any(|p| *p != request.places[0]);
    match several {
        true => text += &body.places.iter().map(place).collect::<Vec<_>>().join(", "),
        false => text += &format!("all arrays on {} ({})", body.places[0].tier, body.places[0].place),
    }
    let mib = (outcome.elements * 8) as f64 / f64::from(1 << 20);
    text += &format!(
        "\n{} elements ({mib:.1} MiB) in each, {} threads, horizon {}, {} rounds; measured\n",
        outcome.elements, body.threads, body.horizon, body.rounds
    );
    if outcome.elements < request.elements {
        text += &format!(
            "of {} elements only the first {}: each is made persistent by itself, and all would take too long\n",
            request.elements, outcome.elements
        );
    }
    if body.cache {
        let wanted = CACHES * body.cache_bytes / 8;
        text += &format!(
            "cache: arrays below {wanted} elements ({CACHES} x the last-level cache) measure the cache\n"
        );
    }
    text += &table(&outcome.timings);
    text += "every element is what the arithmetic gives\n";
    text
}

/// As STREAM prints it, to the character, so that what reads STREAM's output reads this.
fn table(timings: &[Timing]) -> String {
    let mut text = String::from("Function    Best Rate MB/s  Avg time     Min time     Max time\n");
    for timing in timings {
        text += &format!(
            "{:<12}{:>11.1}  {:>11.6}  {:>11.6}  {:>11.6}\n",
            format!("{}:", timing.kernel.name()),
            timing.best() / 1e6,
            timing.mean(),
            timing.min(),
            timing.max()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_probe::kernels::stream::Kernel;

    #[test]
    fn arrays_are_placed_one_by_one_or_by_what_is_done_with_them() {
        let dirs = |text: &str| places(text).map(|(p, layout)| (p.map(|p| p.tier.to_string()), layout));
        let all = |t: &str| [t, t, t].map(str::to_string);
        assert_eq!(dirs("dram").unwrap(), (all("dram"), Layout::Arrays));
        let (each, layout) = dirs("a=dram,c=numa:0,b=pmem:/mnt").unwrap();
        assert_eq!((each, layout), (["dram", "pmem", "numa:0"].map(str::to_string), Layout::Arrays));
        let (roles, layout) = dirs("write=dram,read=pmem:/mnt").unwrap();
        assert_eq!((roles, layout), (["pmem", "pmem", "dram"].map(str::to_string), Layout::Roles));
        for wrong in
            ["a=dram", "a=dram,b=dram,d=dram", "read=dram,b=dram", "a=dram,a=dram,b=dram", "a=dram,dram"]
        {
            assert_eq!(dirs(wrong).unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }

    #[test]
    fn the_table_is_streams() {
        let timing = Timing { kernel: Kernel::Copy, bytes: 160_000_000, seconds: vec![0.0125, 0.02] };
        let wanted = "Function    Best Rate MB/s  Avg time     Min time     Max time\n\
                      Copy:           12800.0     0.016250     0.012500     0.020000\n";
        assert_eq!(table(&[timing]), wanted);
    }
}
