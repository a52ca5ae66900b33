//! The coupled stream of `lab/peers/stream_shape.py` through the Rust interface, for `cargo xtask bench put`.
//!
//! usage: bench_stream write|read NAME BYTES OBJECTS STEPS WARM SOURCE-BYTES
//!
//! A step goes in one `put_many` and comes out by one `get_many` into memory of the reader, as SST's reader has it.
//! The same walk through the source, the same clock and the same check of the content as in Python. Prints one JSON
//! object: begin_ns of the writer's first timed step, or end_ns of the reader's last.

use forebay_space::{Dtype, OpenOptions, Reader, Result, TierKind, Writer};

struct Shape {
    name: String,
    bytes: usize,
    objects: usize,
    steps: usize,
    warm: usize,
    source_bytes: usize,
}

impl Shape {
    fn from_arguments() -> Option<(String, Shape)> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [role, name, numbers @ ..] = words.as_slice() else { return None };
        let numbers: Vec<usize> = numbers.iter().map_while(|word| word.parse().ok()).collect();
        let [bytes, objects, steps, warm, source_bytes] = numbers.as_slice() else { return None };
        let (bytes, objects, source_bytes) = (*bytes, *objects, *source_bytes);
        let shape = Shape { name: name.clone(), bytes, objects, steps: *steps, warm: *warm, source_bytes };
        Some((role.clone(), shape))
    }

    /// What one step holds; its place in the source moves on from step to step and wraps to its beginning.
    fn step<'a>(&self, source: &'a [u8], step: usize) -> &'a [u8] {
        let whole = self.bytes * self.objects;
        let at = step % (source.len() / whole) * whole;
        &source[at..at + whole]
    }

    /// Words that differ everywhere.
    fn source(&self) -> Vec<u64> {
        let words = self.source_bytes.max(self.bytes * self.objects) as u64 / 8;
        (0..words).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
    }

    fn names(&self) -> Vec<String> {
        (0..self.objects).map(|i| format!("object_{i:05}")).collect()
    }
}

fn main() -> Result<()> {
    match Shape::from_arguments() {
        Some((role, shape)) if role == "write" => write(&shape),
        Some((role, shape)) if role == "read" => read(&shape),
        _ => {
            eprintln!("usage: bench_stream write|read NAME BYTES OBJECTS STEPS WARM SOURCE-BYTES");
            std::process::exit(2)
        }
    }
}

fn write(shape: &Shape) -> Result<()> {
    let (source, names) = (shape.source(), shape.names());
    let source = bytes_of(&source);
    let options = OpenOptions {
        tier: Some(TierKind::Dram),
        quota_bytes: Some(6 * (shape.bytes * shape.objects) as u64 + (512 << 20)),
        readers: vec![("bench".into(), 1)],
        ..OpenOptions::default()
    };
    let mut writer = Writer::open(&shape.name, &options)?;
    let mut begin_ns = 0;
    for step in 0..shape.warm + shape.steps {
        if step == shape.warm {
            begin_ns = forebay_tier::clock::now_ns();
        }
        writer.begin_step()?;
        writer.put_many(&names, Dtype::I64, &[shape.bytes as u64 / 8], shape.step(source, step))?;
        writer.end_step()?;
    }
    writer.close()?;
    println!("{{\"begin_ns\": {begin_ns}}}");
    Ok(())
}

fn read(shape: &Shape) -> Result<()> {
    let (source, names) = (shape.source(), shape.names());
    let source = bytes_of(&source);
    let mut out = vec![1u8; shape.bytes * shape.objects];
    let options = OpenOptions { component: Some("bench".into()), ..OpenOptions::default() };
    let mut reader = Reader::open(&shape.name, &options)?;
    let (mut end_ns, mut wrong) = (0, 0);
    for step in 0..shape.warm + shape.steps {
        reader.begin_step(None)?;
        reader.get_many(&names, &mut out)?;
        reader.end_step()?;
        end_ns = forebay_tier::clock::now_ns();
        let expected = shape.step(source, step);
        let stride = (shape.objects / 64).max(1) * shape.bytes;
        wrong +=
            (0..out.len()).step_by(stride).filter(|at| out[*at..at + 8] != expected[*at..at + 8]).count();
        wrong += usize::from(step + 1 == shape.warm + shape.steps && out != expected);
    }
    reader.close()?;
    println!("{{\"end_ns\": {end_ns}, \"wrong\": {wrong}}}");
    Ok(())
}

fn bytes_of(words: &[u64]) -> &[u8] {
    bytemuck::cast_slice(words)
}
