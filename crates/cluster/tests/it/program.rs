//! The programs of the tests: a writer of every kind of variable, and a reader that says what it reads.
//!
//! A test starts this executable again with `CLUSTER_TEST_PROGRAM`. Lines on standard output say what happened; they
//! begin with a word: `put V`, `version V SUM`, `end MISSED`, `error TEXT`.

use std::time::Duration;

use forebay_space::{
    Attribute, Description, Dtype, Kind, Mode, OpenOptions, Reader, Result, Retention, Writer, CONCAT,
};
use forebay_tier::checksum::crc32c_append;
use serde::Deserialize;

/// Writers of a space, all ranks in one process, or one of them.
#[derive(Deserialize)]
#[serde(default)]
struct Write {
    name: String,
    ranks: u32,
    /// The only rank of this process.
    only: Option<u32>,
    mode: Mode,
    steps: u64,
    quota: u64,
    /// Elements of a large variable; 0: none.
    large: u64,
    retention: String,
    readers: Vec<(String, u32)>,
    /// Whether a space with unread versions of writers that died is replaced.
    replace: bool,
    timeout_s: u64,
    pause_ms: u64,
    /// Whether ranks set attributes of the space: each at its begin and its end, rank 0 in each step.
    says: bool,
    /// What happens at the end: `close`, `die` (in a step), `wait` (for the end of standard input, never closes).
    end: String,
}

impl Default for Write {
    fn default() -> Write {
        Write {
            name: "heat".into(),
            ranks: 1,
            only: None,
            mode: Mode::Write,
            steps: 3,
            quota: 64 << 20,
            large: 0,
            retention: "released".into(),
            readers: Vec::new(),
            replace: false,
            timeout_s: 100,
            pause_ms: 0,
            says: false,
            end: "close".into(),
        }
    }
}

/// A reader of a space.
#[derive(Deserialize)]
#[serde(default)]
struct Reading {
    name: String,
    component: String,
    rank: u32,
    size: u32,
    /// A group that keeps a cursor.
    group: Option<String>,
    /// Steps after which it stops and keeps the last one open.
    hold_at: Option<u64>,
    /// The version after which it closes.
    stop_at: Option<u64>,
    /// The version after which it leaves its group for good.
    leave_at: Option<u64>,
    /// Whether it opens the space again, without a pause, when a writer has died.
    again: bool,
    timeout_s: u64,
    /// The same of a wait for a version.
    step_timeout_s: Option<u64>,
    pause_ms: u64,
}

impl Default for Reading {
    fn default() -> Reading {
        Reading {
            name: "heat".into(),
            component: "analysis".into(),
            rank: 0,
            size: 1,
            group: None,
            hold_at: None,
            stop_at: None,
            leave_at: None,
            again: false,
            timeout_s: 100,
            step_timeout_s: None,
            pause_ms: 0,
        }
    }
}

#[derive(Deserialize)]
struct Program {
    what: String,
    with: serde_json::Value,
}

/// Without the variable of a test it does nothing.
#[test]
fn one_of_a_test() {
    let Ok(text) = std::env::var("CLUSTER_TEST_PROGRAM") else { return };
    let program: Program = serde_json::from_str(&text).unwrap();
    let outcome = match program.what.as_str() {
        "write" => write(&serde_json::from_value(program.with).unwrap()),
        "read" => read(&serde_json::from_value(program.with).unwrap()),
        other => panic!("no program {other}"),
    };
    if let Err(e) = outcome {
        println!("\nerror {}", e.to_string().replace('\n', " "));
    }
}

fn write(with: &Write) -> Result<()> {
    let retention: Retention = with.retention.parse()?;
    let open = |rank| {
        let options = OpenOptions {
            rank: Some(rank),
            size: Some(with.ranks),
            component: Some("sim".into()),
            quota_bytes: Some(with.quota),
            retention: Some(retention),
            readers: with.readers.clone(),
            replace: with.replace,
            mode: with.mode,
            timeout: Duration::from_secs(with.timeout_s),
            ..OpenOptions::default()
        };
        Writer::open(&with.name, &options)
    };
    let ranks = with.only.map_or(0..with.ranks, |rank| rank..rank + 1);
    let mut writers = ranks.map(open).collect::<Result<Vec<_>>>()?;
    writers[0].set_attribute("title", &Attribute::Text("ä heat".into()))?;
    let status = |text: &str| Attribute::Text(text.into());
    if with.says {
        writers[0].set_attribute("status", &status("begins"))?;
    }
    println!("\nopen");
    for step in 0..with.steps {
        if with.says && with.only == Some(0) {
            writers[0].set_attribute("status", &status(&format!("step {step}")))?;
        }
        for writer in &mut writers {
            writer.begin_step()?;
            put_all(writer, step, with)?;
            writer.end_step()?;
        }
        println!("\nput {step}");
        std::thread::sleep(Duration::from_millis(with.pause_ms));
    }
    if with.says {
        let key = format!("end of {}", writers[0].rank());
        writers[0].set_attribute(&key, &Attribute::Int(with.steps as i64))?;
    }
    match with.end.as_str() {
        "close" => writers.into_iter().try_for_each(Writer::close),
        "die" => {
            writers[0].begin_step()?;
            println!("\ndying");
            // As a kill: nothing is run at the end.
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
            Ok(())
        }
        _ => {
            println!("\nwaiting");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }
}

/// A value that tells version, rank and place.
fn bytes(step: u64, rank: u32, salt: u64, count: usize) -> Vec<u8> {
    let mut state = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank) << 32 ^ salt;
    let mut out = Vec::with_capacity(count + 8);
    while out.len() < count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(count);
    out
}

/// Every dtype in odd boxes, an array of one rank, one without elements, one in which ranks overlap, one that grows,
/// and what is said of them.
fn put_all(writer: &mut Writer, step: u64, with: &Write) -> Result<()> {
    let (rank, ranks) = (writer.rank(), u64::from(writer.size()));
    let me = u64::from(rank);
    for (salt, dtype) in Dtype::ALL.iter().enumerate() {
        let (rows, columns) = (5 * ranks - 2, 7);
        let begin = 5 * me;
        let count = (rows - begin).min(5);
        let data = bytes(step, rank, salt as u64, (count * columns) as usize * dtype.size());
        writer.put(
            &format!("of/{}", dtype.name()),
            *dtype,
            &[rows, columns],
            &[begin, 0],
            &[count, columns],
            &data,
        )?;
    }
    if me == ranks - 1 {
        writer.put("scalar", Dtype::I32, &[], &[], &[], &bytes(step, rank, 77, 4))?;
        writer.put("empty", Dtype::F64, &[0, 3], &[0, 0], &[0, 3], &[])?;
        writer.describe(
            "scalar",
            Description { dims: None, attributes: [("step".into(), Attribute::Int(step as i64))].into() },
        )?;
    }
    let halo = [6 * ranks];
    let from = (6 * me).saturating_sub(1);
    let count = (6 * me + 7).min(6 * ranks) - from;
    writer.put("halo", Dtype::U8, &halo, &[from], &[count], &bytes(step, rank, 78, count as usize))?;
    let rows = step % 3 + me;
    writer.put(
        "grows",
        Dtype::U16,
        &[CONCAT, 2],
        &[0, 0],
        &[rows, 2],
        &bytes(step, rank, 79, (rows * 4) as usize),
    )?;
    writer.describe("halo", Description::of_dims(&["x"]))?;
    writer.set_version_attribute("time", &Attribute::Float(step as f64 * 0.25))?;
    if with.large > 0 {
        let (shape, start) = ([with.large * ranks], [with.large * me]);
        let data = bytes(step, rank, 80, with.large as usize);
        writer.put("large", Dtype::U8, &shape, &start, &[with.large], &data)?;
    }
    Ok(())
}

fn read(with: &Reading) -> Result<()> {
    loop {
        match read_once(with) {
            Err(e) if with.again && e.kind() == Kind::ProducerDied => println!("\ndied"),
            read => return read,
        }
    }
}

fn read_once(with: &Reading) -> Result<()> {
    let options = OpenOptions {
        rank: Some(with.rank),
        size: Some(with.size),
        component: Some(with.component.clone()),
        group: with.group.clone(),
        timeout: Duration::from_secs(with.timeout_s),
        ..OpenOptions::default()
    };
    println!("\nwaiting");
    let mut reader = Reader::open(&with.name, &options)?;
    println!("\nopen");
    let mut missed = 0;
    while let Some(version) = reader.begin_step(with.step_timeout_s.map(Duration::from_secs))? {
        missed += reader.missed();
        println!("\nversion {version} {:08x}", sum_of(&mut reader)?);
        if with.hold_at == Some(version) {
            println!("\nholding");
            // Until it is killed.
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        std::thread::sleep(Duration::from_millis(with.pause_ms));
        reader.end_step()?;
        if with.leave_at == Some(version) {
            reader.leave()?;
            println!("\nleft");
            return Ok(());
        }
        if with.stop_at == Some(version) {
            return reader.close();
        }
    }
    println!("\nattributes {}", serde_json::to_string(&reader.attributes()?).unwrap());
    println!("\nend {}", missed + reader.missed());
    reader.close()
}

/// A checksum of everything that a reader can see of a version.
fn sum_of(reader: &mut Reader) -> Result<u32> {
    let variables = reader.variables()?;
    let mut sum = 0;
    for variable in &variables {
        sum = crc32c_append(sum, serde_json::to_string(variable).unwrap().as_bytes());
        let elements: u64 = variable.shape.iter().product();
        let mut out = vec![0; elements as usize * variable.dtype.size()];
        reader.get(&variable.name, None, &mut out)?;
        sum = crc32c_append(sum, &out);
    }
    for attributes in [reader.attributes()?, reader.version_attributes()?] {
        sum = crc32c_append(sum, serde_json::to_string(&attributes).unwrap().as_bytes());
    }
    Ok(sum)
}
