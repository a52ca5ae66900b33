//! A writer that is a process of its own: this test program, started again.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use forebay_space::{Attribute, Description, Dtype, OpenOptions, Writer};

use crate::bench::{clean_environment, Bench};

/// Name of the space, in the environment of the process that writes it.
const SPACE: &str = "TEST_WRITER_SPACE";
/// Versions it puts before it says that it is ready.
pub const VERSIONS: u64 = 3;
/// Shape of the variable `T`.
pub const SHAPE: [u64; 2] = [4, 5];

/// Shape of the variable `big` of version 0: more than `cat` reads at a time, and no multiple of it.
pub const BIG: [u64; 2] = [3, 2_000_003];

/// A process that has put [`VERSIONS`] versions and waits.
pub struct WriterProcess {
    child: Child,
    stdin: Option<ChildStdin>,
}

/// `T` in a version: the element's flat index plus 100 per version.
pub fn values(version: u64) -> Vec<f64> {
    (0..SHAPE[0] * SHAPE[1]).map(|i| (version * 100 + i) as f64).collect()
}

/// Element `i` of `big`, in C order.
pub fn big(i: u64) -> u16 {
    (i % 65521) as u16
}

impl WriterProcess {
    pub fn start(bench: &Bench, space: &str) -> WriterProcess {
        WriterProcess::start_with(bench, space, &[])
    }

    /// With more variables in its environment.
    pub fn start_with(bench: &Bench, space: &str, variables: &[(&str, &str)]) -> WriterProcess {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        clean_environment(&mut command);
        command.args(["--exact", "writing::writer", "--ignored", "--nocapture"]).env(SPACE, space);
        command
            .env("FOREBAY_DIR", bench.root())
            .env("FOREBAY_RETENTION", "forever")
            .env("FOREBAY_QUOTA", "64MiB");
        command.env("FOREBAY_SEGMENT", "1MiB").stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(variables.iter().copied());
        let mut child = command.spawn().expect("the writer starts");
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        // The test harness prints around what the writer says.
        let ready = lines.any(|line| line.is_ok_and(|l| l.contains("writer is ready")));
        // The rest must not fill the pipe or meet a closed one.
        std::thread::spawn(move || lines.for_each(drop));
        assert!(ready, "the writer ended early: {:?}", child.wait());
        WriterProcess { child, stdin }
    }

    /// Lets the writer close the space and end.
    pub fn finish(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("the writer ends").success());
    }

    /// Kills the writer: nothing is closed.
    pub fn kill(mut self) {
        self.child.kill().expect("the writer lives");
        self.child.wait().expect("the writer is gone");
    }
}

impl Drop for WriterProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The writer's program; does nothing unless a test started it.
#[test]
#[ignore = "a program for other tests"]
fn writer() {
    let Ok(space) = std::env::var(SPACE) else { return };
    let mut writer = Writer::open(&space, &OpenOptions::default()).expect("a space");
    writer.set_attribute("title", &Attribute::Text("a test".into())).expect("an attribute");
    writer.set_attribute("dx", &Attribute::Floats(vec![0.5, 0.25])).expect("an attribute");
    for version in 0..VERSIONS {
        assert_eq!(writer.begin_step().expect("a step"), version);
        writer.put_array("T", &SHAPE, &[0, 0], &SHAPE, &values(version)).expect("a put");
        let mut description = Description::of_dims(&["y", "x"]);
        description.attributes.insert("units".into(), Attribute::Text("K".into()));
        writer.describe("T", description).expect("a description");
        writer.set_version_attribute("time", &Attribute::Float(0.5 * version as f64)).expect("an attribute");
        let label = format!("step \"{version}\"");
        let n = [label.len() as u64];
        writer.put("label", Dtype::Str, &n, &[0], &n, label.as_bytes()).expect("a put");
        writer.put_array("n", &[], &[], &[], &[version]).expect("a put");
        if version == 0 {
            let data: Vec<u16> = (0..BIG[0] * BIG[1]).map(big).collect();
            writer.put_array("big", &BIG, &[0, 0], &BIG, &data).expect("a put");
        }
        writer.end_step().expect("an end of a step");
    }
    println!("\nwriter is ready");
    std::io::stdout().flush().expect("a pipe");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    writer.close().expect("a clean end");
}
