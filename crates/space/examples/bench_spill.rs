//! How fast data pass through a space that is smaller than they are: for `cargo xtask bench put`.
//!
//! usage: bench_spill NAME DIRECTORY OBJECT-BYTES OBJECTS FIRST-BYTES direct|file
//!
//! Puts OBJECTS objects, one a step, into a space whose first tier holds FIRST-BYTES and whose lower tier, in
//! DIRECTORY, holds the rest; no process reads. Then a new reader gets all of them. Then the same number goes through a
//! second space while a reader gets them. At last they are put straight to a pool of that tier in
//! DIRECTORY, at horizon `epoch`. Prints one JSON object with nanoseconds an object: spill (of what was moved while
//! the producer kept putting), read_back, through and lane.

use forebay_space::{glance, Horizon, NdBox, OpenOptions, Reader, Result, SpillTier, TierKind, Writer};
use std::time::{Duration, Instant};

struct Shape {
    name: String,
    directory: String,
    bytes: usize,
    objects: u64,
    first_bytes: u64,
    tier: TierKind,
}

impl Shape {
    fn from_arguments() -> Option<Shape> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [name, directory, object, objects, first, tier] = words.as_slice() else { return None };
        Some(Shape {
            name: name.clone(),
            directory: directory.clone(),
            bytes: object.parse().ok()?,
            objects: objects.parse().ok()?,
            first_bytes: first.parse().ok()?,
            tier: tier.parse().ok()?,
        })
    }

    fn object_bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// What is put in a step. The source is large, so that no cache holds it.
    fn object<'a>(&self, source: &'a [u8], step: u64) -> &'a [u8] {
        let from = (step as usize * self.bytes) % (source.len() - self.bytes + 1) / 8 * 8;
        &source[from..from + self.bytes]
    }

    fn options(&self) -> OpenOptions {
        let lower = SpillTier {
            path: self.directory.clone().into(),
            quota: Some((self.object_bytes() + (8 << 20)) * (self.objects + 4)),
            tier: Some(self.tier),
        };
        OpenOptions {
            tier: Some(TierKind::Dram),
            quota_bytes: Some(self.first_bytes),
            spill: vec![lower],
            timeout: Duration::from_secs(120),
            rank: Some(0),
            size: Some(1),
            ..OpenOptions::default()
        }
    }

    fn put_all(&self, w: &mut Writer, source: &[u8]) -> Result<()> {
        let whole = NdBox::whole(&[self.object_bytes()]);
        for step in 0..self.objects {
            w.begin_step()?;
            w.put_array("a", &whole.count, &whole.start, &whole.count, self.object(source, step))?;
            w.end_step()?;
        }
        Ok(())
    }

    fn get_all(&self, r: &mut Reader, source: &[u8]) -> Result<()> {
        let mut out = vec![0; self.bytes];
        for step in 0..self.objects {
            r.begin_step(None)?;
            r.get("a", None, &mut out)?;
            assert!(out == self.object(source, step), "object {step} is not what was put");
            r.end_step()?;
        }
        Ok(())
    }
}

fn ns_per(from: Instant, objects: f64) -> f64 {
    from.elapsed().as_nanos() as f64 / objects
}

fn spill_and_read_back(shape: &Shape, source: &[u8]) -> Result<(f64, f64)> {
    let mut w = Writer::open(&shape.name, &shape.options())?;
    let from = Instant::now();
    shape.put_all(&mut w, source)?;
    let elapsed_ns = from.elapsed().as_nanos() as f64;
    let moved = glance(&shape.name)?.moved.spilled_bytes;
    let spill = elapsed_ns * shape.object_bytes() as f64 / moved as f64;
    w.close()?;
    let mut r =
        Reader::open(&shape.name, &OpenOptions { rank: Some(0), size: Some(1), ..OpenOptions::default() })?;
    let from = Instant::now();
    shape.get_all(&mut r, source)?;
    let read_back = ns_per(from, shape.objects as f64);
    r.begin_step(None)?;
    r.close()?;
    Ok((spill, read_back))
}

fn through(shape: &Shape, source: &[u8]) -> Result<f64> {
    let mut w = Writer::open(&shape.name, &shape.options())?;
    let mut r =
        Reader::open(&shape.name, &OpenOptions { rank: Some(0), size: Some(1), ..OpenOptions::default() })?;
    let from = Instant::now();
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| shape.put_all(&mut w, source));
        shape.get_all(&mut r, source)?;
        producer.join().expect("the producer")
    })?;
    let ns = ns_per(from, shape.objects as f64);
    w.close()?;
    r.begin_step(None)?;
    r.close()?;
    Ok(ns)
}

/// Straight to the tier, durable once a step.
fn lane(shape: &Shape, source: &[u8]) -> Result<f64> {
    let options = OpenOptions {
        tier: Some(shape.tier),
        path: Some(format!("{}/lane", shape.directory).into()),
        horizon: Some(Horizon::Epoch),
        spill: Vec::new(),
        quota_bytes: Some((shape.object_bytes() + (8 << 20)) * (shape.objects + 4)),
        ..shape.options()
    };
    let mut w = Writer::open(&shape.name, &options)?;
    let from = Instant::now();
    shape.put_all(&mut w, source)?;
    let ns = ns_per(from, shape.objects as f64);
    let path = w.path().to_string_lossy().into_owned();
    drop(w);
    forebay_space::destroy(&path)?;
    Ok(ns)
}

fn main() -> Result<()> {
    let Some(shape) = Shape::from_arguments() else {
        eprintln!("usage: bench_spill NAME DIRECTORY OBJECT-BYTES OBJECTS FIRST-BYTES direct|file");
        std::process::exit(2);
    };
    let words = if shape.bytes < 1 << 20 { shape.bytes as u64 } else { 1 << 27 };
    let source: Vec<u8> =
        (0..words).flat_map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();
    let (spill, read_back) = spill_and_read_back(&shape, &source)?;
    let through = through(&shape, &source)?;
    let lane = lane(&shape, &source)?;
    println!(
        "{{\"spill_ns\":{spill},\"read_back_ns\":{read_back},\"through_ns\":{through},\"lane_ns\":{lane}}}"
    );
    Ok(())
}
