//! What `cargo xtask bench put` measures: each function makes the rows of one question.
//!
//! Both sides of a row walk through at least 1 GiB (except with `--quick`), more than any cache holds. Where there is
//! nothing to measure beside ours, the other figure is a time that was set as the aim, or one published for another
//! system; the row says so.

use super::peers::{PutShape, Setup, StreamShape};
use super::rows::{Row, Table};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// DataSpaces 2 with its shared-memory transport and one server: nanoseconds of a put and a get, as measured once on
/// a machine like this.
const DATASPACES: [(u64, f64, f64); 2] =
    [(64 * MIB, 64.0 * MIB as f64 / 2.3, 64.0 * MIB as f64 / 0.74), (2048, 168e3, 419e3)];

fn put_shapes(quick: bool) -> Vec<PutShape> {
    let shape = |bytes, objects, steps, pool_bytes, source_bytes| {
        let with =
            |checksum| PutShape { bytes, objects, steps, pool_bytes, source_bytes, checksum, many: false };
        [true, false].map(with)
    };
    if quick {
        return [shape(MIB, 4, 2, 64 * MIB, 8 * MIB), shape(2048, 100, 4, 64 * MIB, MIB)].concat();
    }
    let large = shape(64 * MIB, 4, 8, GIB, GIB);
    [large, shape(2048, 10_000, 60, 512 * MIB, GIB), shape(4672, 10_000, 40, 512 * MIB, GIB)].concat()
}

/// How much of libpmem's speed a put should reach.
fn put_bar(shape: &PutShape) -> f64 {
    match (shape.bytes < MIB, shape.checksum) {
        (true, _) => 0.5,
        (false, false) => 0.95,
        (false, true) => 0.7,
    }
}

/// One process puts.
pub fn puts(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    put_shapes(quick).iter().try_for_each(|shape| puts_of(setup, shape, table))
}

fn puts_of(setup: &Setup, shape: &PutShape, table: &mut Table) -> Result<(), String> {
    let mut beside_copy = Row::new("put", shape.bytes, shape.checksum, "memcpy");
    let mut beside_libpmem = Row::new("put", shape.bytes, shape.checksum, "libpmem").with_bar(put_bar(shape));
    for _ in table.turns(&format!("put of {} bytes", shape.bytes)) {
        let ours = setup.put(shape)?;
        beside_copy.add(ours.ns_per_put, ours.ns_per_memcpy);
        if setup.libpmem.is_some() {
            beside_libpmem.add(ours.ns_per_put, setup.libpmem_put(shape)?.ns_per_put);
        }
    }
    table.push(beside_libpmem);
    table.push(beside_copy);
    Ok(())
}

/// One version of half a million small objects against the same bytes in large ones.
pub fn batch(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    let (objects, large) = if quick { (1000, MIB) } else { (528_000, 64 * MIB) };
    let bytes = objects * 4672;
    let pool_bytes = 3 * bytes + GIB / 2;
    let small = PutShape {
        bytes: 4672,
        objects,
        steps: 2,
        pool_bytes,
        source_bytes: bytes,
        checksum: true,
        many: true,
    };
    let whole = PutShape { bytes: large, objects: bytes.div_ceil(large), many: false, ..small.clone() };
    let whole = PutShape { source_bytes: whole.objects * large, ..whole };
    let mut row = Row::new("put_many", 4672, true, "the same in 64 MiB").with_bar(0.6);
    for _ in table.turns("many small objects") {
        let many = setup.put(&small)?.ns_per_put;
        row.add(many, setup.put(&whole)?.ns_per_put / large as f64 * 4672.0);
    }
    table.push(row);
    Ok(())
}

/// Small objects into a file through the page cache, gathered or one by one; nothing is made durable.
pub fn gathered(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    let (objects, steps) = if quick { (100, 4) } else { (10_000, 40) };
    for bytes in [256, 2048, 4672] {
        let shape = PutShape {
            bytes,
            objects,
            steps,
            pool_bytes: GIB / 2,
            source_bytes: MIB * 64,
            checksum: false,
            many: false,
        };
        let mut row = Row::new("put, file, batch", bytes, false, "without");
        for _ in table.turns(&format!("{bytes} bytes into a file")) {
            let gathered = setup.put_on_disk(&shape, Some("1MiB"))?;
            row.add(gathered.ns_per_put, setup.put_on_disk(&shape, None)?.ns_per_put);
        }
        table.push(row);
    }
    Ok(())
}

/// From one process to another: a view, and a reader that waits.
pub fn between(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    let (objects, rounds) = if quick { (64, 20) } else { (10_000, 2000) };
    let mut view = Row::new("view", 2048, true, "0.5 us (aim)").with_bar(1.0);
    let mut spinning = Row::new("seen, spinning", 4096, true, "1.5 us (aim)").with_bar(1.0);
    let mut late = Row::new("seen, spinning, 99 %", 4096, true, "10 us (aim)").with_bar(1.0);
    let mut asleep = Row::new("seen, asleep", 4096, true, "a futex").with_bar(1.0 / 1.2);
    // Well below and well above the time that waits spin.
    let (short_us, long_us) = (10, 300);
    for _ in table.turns("between two processes") {
        view.add(setup.seen("view", &[2048, objects])?[0], 500.0);
        let [median, p99] = setup.seen("seen", &[4096, rounds, short_us])?;
        spinning.add(median, 1500.0);
        late.add(p99, 10_000.0);
        asleep.add(
            setup.seen("seen", &[4096, rounds / 2, long_us])?[0],
            setup.seen("floor", &[rounds / 2, long_us])?[0],
        );
    }
    [view, spinning, late, asleep].into_iter().for_each(|row| table.push(row));
    Ok(())
}

/// Against figures of DataSpaces that are not measured in this run.
pub fn published(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    for (bytes, put_ns, get_ns) in DATASPACES {
        let (objects, bars) = if bytes < MIB { (10_000, [100.0, 100.0]) } else { (16, [5.0, 15.0]) };
        let objects = if quick { 16 } else { objects };
        let source_bytes = if quick { 16 * bytes } else { GIB };
        let shape = PutShape {
            bytes,
            objects,
            steps: 4,
            pool_bytes: 3 * GIB,
            source_bytes,
            checksum: true,
            many: false,
        };
        if quick && bytes > MIB {
            continue;
        }
        let mut put = Row::new("put", bytes, true, "DataSpaces 2, published").with_bar(bars[0]);
        let mut get = Row::new("get", bytes, true, "DataSpaces 2, published").with_bar(bars[1]);
        for _ in table.turns("put and get beside published figures") {
            put.add(setup.put(&shape)?.ns_per_put, put_ns);
            get.add(setup.seen("get", &[bytes, objects])?[0], get_ns);
        }
        table.push(put);
        table.push(get);
    }
    Ok(())
}

/// Two processes, many small objects a step.
pub fn small_stream(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    let shape = match quick {
        true => StreamShape { bytes: 2048, objects: 100, steps: 2, warm: 2, source_bytes: MIB },
        false => StreamShape { bytes: 2048, objects: 10_000, steps: 40, warm: 40, source_bytes: GIB },
    };
    // A file per object takes a hundred times as long, and needs no pool that is warm.
    let of_files = StreamShape { steps: shape.steps.min(3), warm: 1, ..shape };
    let row = |measure: &str, against: &str| Row::new(measure, shape.bytes, true, against);
    let mut python = row("stream, Python", "SST").with_bar(5.0);
    let mut many = row("stream, Python, many", "SST").with_bar(10.0);
    let mut rust = row("stream, Rust, many", "SST").with_bar(10.0);
    let mut c = row("stream, C", "SST").with_bar(10.0);
    let mut c_many = row("stream, C, many", "SST").with_bar(10.0);
    let mut files = row("stream, Python", "a file per object");
    for _ in table.turns("stream of small objects") {
        let ours = setup.forebay_stream(&shape, &["--channel", "space"])?;
        let of_many = setup.forebay_stream(&shape, &["--channel", "space", "--many"])?;
        let of_rust = setup.rust_stream(&shape)?;
        files.add(ours, setup.forebay_stream(&of_files, &["--channel", "files"])?);
        if setup.adios.is_some() {
            let theirs = setup.sst_stream(&shape, &[])?;
            python.add(ours, theirs);
            many.add(of_many, theirs);
            rust.add(of_rust, theirs);
            if setup.c_stream.is_some() {
                c.add(setup.c_stream(&shape, &[])?, theirs);
                c_many.add(setup.c_stream(&shape, &["many"])?, theirs);
            }
        }
    }
    [python, many, rust, c, c_many, files].into_iter().for_each(|row| table.push(row));
    Ok(())
}

/// Two processes, a few large objects a step.
pub fn large_stream(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    let shape = match quick {
        true => StreamShape { bytes: MIB, objects: 4, steps: 2, warm: 2, source_bytes: 8 * MIB },
        false => StreamShape { bytes: 64 * MIB, objects: 4, steps: 8, warm: 10, source_bytes: GIB },
    };
    let copies = PutShape {
        bytes: shape.bytes,
        objects: shape.objects,
        steps: shape.steps,
        pool_bytes: 4 * shape.bytes * shape.objects,
        source_bytes: shape.source_bytes,
        checksum: true,
        many: false,
    };
    let row = |measure: &str, against: &str| Row::new(measure, shape.bytes, true, against);
    let mut sst = row("stream", "SST").with_bar(8.0);
    let mut memcpy = row("stream", "memcpy").with_bar(0.75);
    // There the producer fills the memory of the pool, here an array of its own, as where it computes what it puts.
    let mut in_place = row("stream, reserve and view", "SST, filled first").with_bar(10.0);
    let unsummed = Row::new("stream, reserve and view", shape.bytes, false, "SST, filled first");
    let mut unsummed = unsummed.with_bar(10.0);
    let mut into = row("stream, copied out", "SST");
    let mut files = row("stream", "a file per object");
    for _ in table.turns("stream of large objects") {
        let ours = setup.forebay_stream(&shape, &["--channel", "space"])?;
        let reserved = setup.forebay_stream(&shape, &["--channel", "space", "--reserve"])?;
        let copied = setup.forebay_stream(&shape, &["--channel", "space", "--into"])?;
        memcpy.add(ours, setup.put(&copies)?.ns_per_memcpy);
        files.add(ours, setup.forebay_stream(&shape, &["--channel", "files"])?);
        if setup.adios.is_some() {
            let theirs = setup.sst_stream(&shape, &[])?;
            sst.add(ours, theirs);
            let filled = setup.sst_stream(&shape, &["--fill"])?;
            in_place.add(reserved, filled);
            let words = ["--channel", "space", "--reserve", "--checksum", "no"];
            unsummed.add(setup.forebay_stream(&shape, &words)?, filled);
            into.add(copied, theirs);
        }
    }
    [sst, memcpy, in_place, unsummed, into, files].into_iter().for_each(|row| table.push(row));
    Ok(())
}
