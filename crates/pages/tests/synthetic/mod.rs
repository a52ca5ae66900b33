//! A run directory as a run leaves it, made up: two components, a channel, a helper space, pictures.
//!
//! Deterministic; shapes and order of magnitude as on a small machine, no number of any real run.

use std::fmt::Write;
use std::path::Path;

use forebay_flow::record::{
    ChannelRecord, ComponentRecord, Failure, Machine, RankRecord, RunRecord, State, SCHEMA,
};

const MS: u64 = 1_000_000;
/// Monotonic start of the run.
const BEGIN: u64 = 5_000_000 * MS;

/// Pseudo-random numbers in 0..1 (an LCG; quality does not matter here).
pub struct Dice(u64);

impl Dice {
    /// The next number.
    pub fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1u64 << 24) as f64
    }
}

/// Writes a run of `steps` steps into `dir`; `failed` makes rank 1 of the analysis fail.
pub fn write_run(dir: &Path, steps: u64, failed: bool) {
    for sub in ["trace", "logs", "out/analysis"] {
        std::fs::create_dir_all(dir.join(sub)).expect("making directories");
    }
    let mut dice = Dice(42);
    let mut end_ns = BEGIN;
    for rank in 0..4u32 {
        end_ns = end_ns.max(write_trace(dir, &mut dice, ("simulation", 4, "V", "w"), rank, steps));
        write_trace(dir, &mut dice, ("simulation", 4, "gs-halo", "w"), rank, steps);
        write_trace(dir, &mut dice, ("simulation", 4, "gs-halo", "r"), rank, steps);
    }
    for rank in 0..3u32 {
        end_ns = end_ns.max(write_trace(dir, &mut dice, ("analysis", 3, "V", "r"), rank, steps));
    }
    write_fill(dir, end_ns);
    write_pictures(dir);
    let mut record = record(dir, end_ns, steps);
    if failed {
        std::fs::write(dir.join("logs/analysis.1.err"), "reading <V>\nValueError: bad & ugly\n")
            .expect("writing");
        record.state = State::Failed;
        let rank = &mut record.components[1].ranks[1];
        (rank.code, rank.end_ns) = (Some(1), end_ns - 300 * MS);
        let other = &mut record.components[1].ranks[0];
        (other.code, other.signal, other.ended_by_runner) = (None, Some(15), true);
        record.failure = Some(Failure {
            component: "analysis".into(),
            rank: Some(1),
            node: None,
            message: "analysis failed: rank 1 of 3 ended with exit status 1".into(),
            code: Some(1),
            signal: None,
            log: "logs/analysis.1.err".into(),
            log_tail: "reading <V>\nValueError: bad & ugly".into(),
        });
    }
    record.write().expect("writing run.json");
}

fn write_trace(dir: &Path, dice: &mut Dice, who: (&str, u32, &str, &str), rank: u32, steps: u64) -> u64 {
    let (component, size, channel, side) = who;
    let pid = pid_of(component, rank);
    let mut text = format!(
        "{{\"schema\":\"forebay.trace/1\",\"component\":\"{component}\",\"rank\":{rank},\"size\":{size},\
         \"channel\":\"{channel}\",\"side\":\"{side}\",\"pid\":{pid}}}\n"
    );
    // One step in 100 ms: compute, exchange, put; the analysis follows a little behind.
    let pitch = if steps > 1000 { MS } else { 100 * MS };
    let mut end = 0;
    for version in 0..steps {
        let at = BEGIN + 40 * MS + version * pitch;
        let slow = if version % 17 == 5 { 3.0 } else { 1.0 };
        let (begin, wait, op, bytes) = match (channel, side) {
            ("V", "w") => (at + pitch * 8 / 10, pitch / 50, pitch as f64 * 0.08, 16 << 20),
            ("V", _) => (at + pitch * 9 / 10, pitch * 6 / 10, pitch as f64 * 0.06, 22 << 20),
            (_, "w") => (at + pitch * 4 / 10, 0, pitch as f64 * 0.01, 1 << 20),
            _ => (at + pitch * 42 / 100, pitch / 20, pitch as f64 * 0.01, 1 << 20),
        };
        let op = (op * slow * (0.8 + 0.5 * dice.roll())) as u64;
        let ready = begin + wait;
        end = ready + op + pitch / 100;
        let _ = writeln!(
            text,
            "{{\"version\":{version},\"begin_ns\":{begin},\"ready_ns\":{ready},\"end_ns\":{end},\
             \"wait_ns\":{wait},\"op_ns\":{op},\"bytes\":{bytes},\"calls\":1}}"
        );
    }
    // A process that was killed leaves half a line.
    text.push_str("{\"version\":");
    let letter = if side == "w" { "w" } else { "r" };
    std::fs::write(dir.join(format!("trace/{component}.{rank}.{channel}.{letter}.{pid}.jsonl")), text)
        .expect("writing");
    end + 20 * MS
}

fn pid_of(component: &str, rank: u32) -> u32 {
    4000 + rank + if component == "analysis" { 100 } else { 0 }
}

fn write_fill(dir: &Path, end_ns: u64) {
    let mut text = String::new();
    let every = ((end_ns - BEGIN) / 40).max(1);
    for sample in 0..40u64 {
        let t_ns = BEGIN + sample * every;
        let used = (1 + sample % 5) * (64 << 20);
        let _ = writeln!(
            text,
            "{{\"t_ns\":{t_ns},\"channel\":\"V\",\"used_bytes\":{used},\"quota_bytes\":536870912,\
             \"versions_complete\":{},\"versions_oldest\":{}}}",
            sample + 3,
            sample
        );
        let _ = writeln!(
            text,
            "{{\"t_ns\":{t_ns},\"channel\":\"gs-halo\",\"used_bytes\":{},\"quota_bytes\":268435456,\
             \"versions_complete\":{},\"versions_oldest\":{}}}",
            (8 + sample % 2) << 20,
            sample + 1,
            sample
        );
    }
    std::fs::write(dir.join("fill.jsonl"), text).expect("writing");
}

/// A PNG of one grey pixel, whole and valid.
pub const PIXEL: &[u8] = &[
    0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 13, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0, 0,
    1, 8, 0, 0, 0, 0, 0x3a, 0x7e, 0x9b, 0x55, 0, 0, 0, 10, b'I', b'D', b'A', b'T', 0x78, 0x9c, 0x63, 0x68, 0,
    0, 0, 0x82, 0, 0x81, 0x77, 0xcd, 0x72, 0xb6, 0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82,
];

fn write_pictures(dir: &Path) {
    let mut slices = Vec::new();
    for version in 0..4 {
        for axis in ["z", "y", "x"] {
            let file = format!("slice-{axis}-{version:06}.png");
            std::fs::write(dir.join("out/analysis").join(&file), PIXEL).expect("writing");
            let step = version * 10;
            slices.push(serde_json::json!({"file": file, "axis": axis, "version": version, "step": step,
                "index": 32}));
        }
    }
    // A name that leads out of the directory must not be embedded.
    slices.push(serde_json::json!({"file": "../../run.json", "axis": "z", "version": 9}));
    let index = serde_json::json!({"schema": "forebay.slices/1", "variable": "V", "shape": [64, 64, 64],
        "range": [0.0, 0.4], "slices": slices});
    std::fs::write(dir.join("out/analysis/index.json"), index.to_string()).expect("writing");
    // A field of two dimensions is not cut.
    std::fs::create_dir_all(dir.join("out/plane")).expect("a directory");
    std::fs::write(dir.join("out/plane/plane.png"), PIXEL).expect("writing");
    let plane = serde_json::json!({"schema": "forebay.slices/1", "variable": "T", "shape": [64, 64],
        "slices": [{"file": "plane.png", "version": 3}]});
    std::fs::write(dir.join("out/plane/index.json"), plane.to_string()).expect("writing");
}

fn ranks(component: &str, count: u32, end_ns: u64) -> Vec<RankRecord> {
    let rank = |rank| RankRecord {
        rank: Some(rank),
        pid: pid_of(component, rank),
        start_ns: BEGIN + u64::from(rank) * MS,
        end_ns,
        code: Some(0),
        out: format!("logs/{component}.{rank}.out").into(),
        err: format!("logs/{component}.{rank}.err").into(),
        ..RankRecord::default()
    };
    (0..count).map(rank).collect()
}

fn machine() -> Machine {
    Machine {
        host: "node<1>".into(),
        kernel: "Linux 6.1.0".into(),
        arch: "x86_64".into(),
        processor: "Example processor at 2.0 GHz".into(),
        cores: 8,
        memory_bytes: 32 << 30,
    }
}

fn record(dir: &Path, end_ns: u64, steps: u64) -> RunRecord {
    let wall_s = (end_ns - BEGIN) as f64 / 1e9;
    let channel = |name: &str, declared| ChannelRecord {
        name: name.into(),
        path: format!("/dev/shm/forebay-1000/{name}"),
        declared,
        kind: "space".into(),
        tier: "dram".into(),
        horizon: "none".into(),
        durability: "process crash".into(),
        retention: "released".into(),
        quota_bytes: 512 << 20,
        used_bytes_max: 320 << 20,
        versions_complete: steps,
        state: "finished".into(),
        writer: "simulation".into(),
        readers: vec![if declared { "analysis" } else { "simulation" }.into()],
        ..ChannelRecord::default()
    };
    RunRecord {
        schema: SCHEMA.into(),
        name: "gray-scott".into(),
        state: State::Finished,
        run_dir: dir.to_path_buf(),
        workflow_file: dir.join("workflow.toml"),
        machine: machine(),
        nodes: Vec::new(),
        forebay_version: "0.1.0".into(),
        start_unix_ns: 1_795_000_000_000_000_000,
        end_unix_ns: 1_795_000_010_000_000_000,
        start_ns: BEGIN,
        end_ns,
        wall_s,
        signal: None,
        failure: None,
        components: vec![
            ComponentRecord {
                name: "simulation".into(),
                command: vec!["forebay".into(), "gray-scott".into(), "it's.toml".into()],
                writes: vec!["V".into()],
                ranks: ranks("simulation", 4, end_ns),
                compute_s: wall_s * 3.2,
                io_s: wall_s * 0.5,
                wait_s: wall_s * 0.3,
                steps,
                bytes_put: steps * 4 * (17 << 20),
                ..ComponentRecord::default()
            },
            ComponentRecord {
                name: "analysis".into(),
                command: vec!["python3".into(), "analysis.py".into()],
                reads: vec!["V".into()],
                ranks: ranks("analysis", 3, end_ns),
                compute_s: wall_s,
                io_s: wall_s * 0.25,
                wait_s: wall_s * 1.75,
                steps,
                bytes_got: steps * 3 * (22 << 20),
                ..ComponentRecord::default()
            },
        ],
        channels: vec![channel("V", true), channel("gs-halo", false)],
        plan: None,
        tried: None,
        notes: vec!["analysis rank 2 ended without opening <W>".into()],
    }
}
