//! Checkpoints in a bucket of a real S3 server: moto's, which the project's virtual environment brings
//! (`cargo xtask wheel` makes it). Processes that save there are killed, and the network between them and the server
//! fails: it cuts connections at any byte of a request or an answer, and is gone for a while.
//!
//! Where a server speaks is said to a process by its environment, so each program here is a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;

use forebay_checkpoint::Kind;

use crate::killed::{child_of, kills_with, CHILD};
use crate::skips::skipped;
use crate::state::{dirs, options, Program};

/// Ends when its standard input does, so that no server outlives its test.
const SERVER: &str = r#"
import logging, sys
import boto3
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="a",
             aws_secret_access_key="b").create_bucket(Bucket="bucket")
print(port, flush=True)
sys.stdin.read()
server.stop()
"#;

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// None, and a skip that counts, where there is no such server.
    fn start(what: &str) -> Option<Server> {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
        if !python.exists() {
            skipped(what, "there is no .venv; cargo xtask wheel makes it");
            return None;
        }
        let mut command = Command::new(python);
        command.args(["-c", SERVER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match line.trim().parse() {
            Ok(port) => Some(Server { child, port }),
            Err(_) => {
                child.wait().unwrap();
                skipped(what, "the package moto[server] is not in .venv, or does not start");
                None
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process needs to find the server, or what is in front of it.
fn environment(port: u16) -> Vec<(String, String)> {
    let endpoint = format!("http://127.0.0.1:{port}");
    let words = [
        ("AWS_ENDPOINT", endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("NO_PROXY", "127.0.0.1"),
    ];
    words.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Nothing goes wrong.
const GOOD: u8 = 0;
/// Every second connection is cut after some bytes.
const FLAKY: u8 = 1;
/// Every connection is refused or cut at once.
const DOWN: u8 = 2;

/// A network to the server that fails as it is told.
struct Network {
    port: u16,
    mode: Arc<AtomicU8>,
    ended: Arc<AtomicBool>,
}

impl Network {
    fn to(server: u16) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, ended) = (Arc::new(AtomicU8::new(GOOD)), Arc::new(AtomicBool::new(false)));
        let (of, until) = (mode.clone(), ended.clone());
        std::thread::spawn(move || {
            let mut random = 0x9E37_79B9_7F4A_7C15u64;
            for client in listener.incoming().map_while(Result::ok) {
                if until.load(Ordering::SeqCst) {
                    return;
                }
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let bytes_max = match of.load(Ordering::SeqCst) {
                    FLAKY if random % 2 == 0 => (random >> 8) % 300_000,
                    DOWN => continue,
                    _ => u64::MAX / 4,
                };
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let left = Arc::new(AtomicI64::new(bytes_max as i64));
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (left, mode) = (left.clone(), of.clone());
                    std::thread::spawn(move || pump(from, to, &left, &mode));
                }
            }
        });
        Network { port, mode, ended }
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Passes bytes on until the connection has had as many as it may.
fn pump(mut from: TcpStream, mut to: TcpStream, left: &AtomicI64, mode: &AtomicU8) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let had = left.fetch_sub(count as i64, Ordering::SeqCst).clamp(0, count as i64) as usize;
        let cut = had < count || mode.load(Ordering::SeqCst) == DOWN;
        if to.write_all(&bytes[..had]).is_err() || cut {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn a_program_goes_on_from_a_bucket() {
    let Some(server) = Server::start("checkpoints in a bucket") else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "objects::a_program_goes_on_from_a_store_behind_a_network", "--ignored"]);
    command.envs(environment(server.port)).env("FOREBAY_TEST_STORE", "s3://bucket/some/where");
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
}

#[test]
fn no_step_that_a_bucket_acknowledged_is_lost_by_a_kill() {
    let Some(server) = Server::start("kills with checkpoints in a bucket") else { return };
    kills_with("s3://bucket/killed", &environment(server.port), |_, _, _| {});
}

/// Saves twelve steps, each again and again until it is stored. Not a test of its own: started by the one below.
#[test]
#[ignore = "the child of another test"]
fn saving_child() {
    let Ok(words) = std::env::var(CHILD) else { return };
    let words: Vec<PathBuf> = words.split(';').map(PathBuf::from).collect();
    let mut options = options(&["s3://bucket/saved,keep=1"], &words[1]);
    options.timeout = Duration::from_secs(4);
    let mut program = Program::open(&words[0], &options).unwrap();
    for step in 0..12 {
        let mut failed = 0;
        while let Err(e) = program.save(step) {
            failed += 1;
            assert!(matches!(e.kind(), Kind::Io | Kind::TimedOut), "step {step}: {e}");
            assert!(failed < 50, "step {step}: {e}");
            println!("\nfailed");
        }
        println!("\nsaved {step}");
    }
    let restored = loop {
        match program.restore() {
            Ok(restored) => break restored.unwrap(),
            Err(e) => assert!(matches!(e.kind(), Kind::Io | Kind::TimedOut), "{e}"),
        }
    };
    println!("\nrestored {}", restored.step);
}

#[test]
fn a_network_that_fails_costs_no_step_that_a_bucket_acknowledged() {
    let Some(server) = Server::start("checkpoints in a bucket behind a network that fails") else { return };
    let network = Network::to(server.port);
    let (base, memory) = dirs();
    network.set(FLAKY);
    let words = format!("{};{}", base.path().display(), memory.path().display());
    let mut child = child_of("s3::saving_child", words, &environment(network.port));
    let (mut said, mut failed) = (Vec::new(), 0);
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        match line.as_str() {
            // Until a save has met it.
            "saved 5" => network.set(DOWN),
            "failed" => {
                failed += 1;
                network.set(FLAKY);
            }
            _ => {}
        }
        said.extend(line.strip_prefix("restored ").map(str::to_string));
    }
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(said, ["11"]);
    assert!(failed > 0, "no save met a network that fails");
}
