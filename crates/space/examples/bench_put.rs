//! What one `put` costs, in the same shape as `lab/peers/libpmem_put.c`: for `cargo xtask bench put`.
//!
//! usage: bench_put NAME OBJECT-BYTES OBJECTS STEPS POOL-BYTES SOURCE-BYTES yes|no [many]
//!
//! Puts OBJECTS objects of distinct names per step into a space of the given quota, in memory unless the environment
//! says another tier, with payload checksums or
//! without (then at horizon `none`), one call an object or, with `many`, one call a step; and times all steps but
//! the first ones, which fault the pool in. The time covers begin_step and end_step. Prints one JSON object:
//! ns_per_put, ns of one plain copy of the same size beside it, and whether the last object can be read back as it
//! was.

use forebay_space::{Dtype, Horizon, NdBox, OpenOptions, Reader, Result, Retention, Writer};
use std::time::Instant;

/// Words of a source, different everywhere.
fn source(bytes: usize) -> Vec<u64> {
    (0..bytes as u64 / 8).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
}

struct Shape {
    name: String,
    words: usize,
    objects: usize,
    steps: usize,
    pool_bytes: u64,
    source_bytes: usize,
    checksum: bool,
    many: bool,
}

impl Shape {
    fn from_arguments() -> Option<Shape> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [name, object, objects, steps, pool, source, checksum, rest @ ..] = words.as_slice() else {
            return None;
        };
        Some(Shape {
            name: name.clone(),
            words: object.parse::<usize>().ok()? / 8,
            objects: objects.parse().ok()?,
            steps: steps.parse().ok()?,
            pool_bytes: pool.parse().ok()?,
            source_bytes: source.parse().ok()?,
            checksum: checksum == "yes",
            many: rest.first().is_some_and(|word| word == "many"),
        })
    }

    fn options(&self) -> OpenOptions {
        OpenOptions {
            quota_bytes: Some(self.pool_bytes),
            horizon: Some(if self.checksum { Horizon::Epoch } else { Horizon::None }),
            checksum: Some(self.checksum),
            retention: Some(Retention::Last(1)),
            ..OpenOptions::default()
        }
    }

    /// The first object of a step, so that with `many` all of them lie one behind the other.
    fn first(&self, source: &[u64], step: usize) -> usize {
        let places = source.len() / self.words;
        match places.checked_sub(self.objects) {
            Some(spare) if self.many => step * self.objects % (spare + 1),
            _ => step * self.objects,
        }
    }

    fn object<'a>(&self, source: &'a [u64], number: usize) -> &'a [u64] {
        let at = number % (source.len() / self.words) * self.words;
        &source[at..at + self.words]
    }
}

fn main() -> Result<()> {
    let Some(shape) = Shape::from_arguments() else {
        eprintln!("usage: bench_put NAME OBJECT-BYTES OBJECTS STEPS POOL-BYTES SOURCE-BYTES yes|no [many]");
        std::process::exit(2);
    };
    let source = source(shape.source_bytes);
    let names: Vec<String> = (0..shape.objects).map(|i| format!("object_{i:05}")).collect();
    let mut writer = Writer::open(&shape.name, &shape.options())?;
    // As many steps as fill the quota twice: from then on every segment has been used before.
    let step_bytes = (shape.objects * shape.words * 8) as u64;
    let warm = (2 * shape.pool_bytes / step_bytes.max(1)).clamp(2, 64) as usize;
    let mut begin = Instant::now();
    for step in 0..warm + shape.steps {
        if step == warm {
            begin = Instant::now();
        }
        writer.begin_step()?;
        let first = shape.first(&source, step);
        if shape.many {
            let all = &source[first * shape.words..(first + shape.objects) * shape.words];
            writer.put_many(&names, Dtype::U64, &[shape.words as u64], bytemuck::cast_slice(all))?;
        } else {
            for (index, name) in names.iter().enumerate() {
                let object = shape.object(&source, first + index);
                writer.put_array(name, &[object.len() as u64], &[0], &[object.len() as u64], object)?;
            }
        }
        writer.end_step()?;
    }
    let puts = (shape.steps * shape.objects) as f64;
    let ns_per_put = begin.elapsed().as_nanos() as f64 / puts;
    let last = shape.first(&source, warm + shape.steps - 1) + shape.objects - 1;
    let wrong = read_back(&shape, writer.path(), &names[shape.objects - 1])? != shape.object(&source, last);
    let ns_per_memcpy = copies(&shape, &source);
    writer.close()?;
    let wrong = u8::from(wrong);
    println!(
        "{{\"ns_per_put\": {ns_per_put:.1}, \"ns_per_memcpy\": {ns_per_memcpy:.1}, \"wrong\": {wrong}}}"
    );
    Ok(())
}

/// The last version's last object, through a reader that takes no part.
fn read_back(shape: &Shape, path: &std::path::Path, name: &str) -> Result<Vec<u64>> {
    let options = OpenOptions { observer: true, ..OpenOptions::default() };
    let mut reader = Reader::open(&path.to_string_lossy(), &options)?;
    let version = reader.latest()?.expect("a version was completed");
    reader.open_version(version)?.get_array(name, Some(&NdBox::new(&[0], &[shape.words as u64])?))
}

/// Nanoseconds of a plain copy of one object into memory that is faulted in, walking as the puts do.
fn copies(shape: &Shape, source: &[u64]) -> f64 {
    let places = (shape.pool_bytes as usize / 8 / shape.words).max(1);
    let mut pool = vec![1u64; places * shape.words];
    let count = shape.steps * shape.objects;
    let begin = Instant::now();
    for number in 0..count {
        let at = number % places * shape.words;
        pool[at..at + shape.words].copy_from_slice(shape.object(source, number));
    }
    let ns = begin.elapsed().as_nanos() as f64 / count as f64;
    std::hint::black_box(&pool);
    ns
}
