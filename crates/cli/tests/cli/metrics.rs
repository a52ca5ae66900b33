//! `metrics`: the text by a strict reader, the file that is replaced, the loopback port and its bad clients.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Stdio};

use rustix::process::{kill_process, Pid, Signal};

use crate::bench::Bench;
use crate::writing::{WriterProcess, VERSIONS};

/// Samples by name and labels, read by the rules of the Prometheus text format 0.0.4, and by no more.
#[derive(Debug)]
struct Exposition {
    types: BTreeMap<String, String>,
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Exposition {
    #[track_caller]
    fn parse(text: &str) -> Exposition {
        assert!(text.ends_with('\n'), "the last line has no end");
        let mut out = Exposition { types: BTreeMap::new(), samples: BTreeMap::new() };
        let (mut helped, mut closed, mut now) = (BTreeSet::new(), BTreeSet::new(), String::new());
        for line in text.lines() {
            let name = match line.strip_prefix("# ") {
                Some(comment) => {
                    let mut words = comment.splitn(3, ' ');
                    let (what, name) = (words.next().unwrap(), words.next().expect("a name").to_string());
                    let rest = words.next().expect("something about it");
                    match what {
                        "HELP" => assert!(helped.insert(name.clone()), "helped twice: {line}"),
                        "TYPE" => {
                            assert!(matches!(rest, "gauge" | "counter"), "{line}");
                            assert!(out.types.insert(name.clone(), rest.into()).is_none(), "{line}");
                        }
                        "UNIT" => {
                            let stem = name.strip_suffix("_total").unwrap_or(&name);
                            assert!(stem.ends_with(&format!("_{rest}")), "{line}");
                        }
                        _ => panic!("an unknown comment: {line}"),
                    }
                    name
                }
                None => out.sample(line),
            };
            if name != now {
                assert!(closed.insert(name.clone()), "{name} is in two places");
                now = name;
            }
        }
        for (name, kind) in &out.types {
            assert!(helped.contains(name), "{name} lacks HELP");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            assert!(name.starts_with("forebay_"), "{name}");
            assert!(out.samples.keys().any(|(n, _)| n == name), "{name} has no sample");
        }
        out
    }

    #[track_caller]
    fn sample(&mut self, line: &str) -> String {
        let is_name = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
        };
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("no labels: {line}"));
        assert!(is_name(name) && self.types.contains_key(name), "no TYPE before {line}");
        let (mut labels, mut rest) = (BTreeMap::new(), rest);
        let value = loop {
            let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no value: {line}"));
            let (text, after) = quoted(after).unwrap_or_else(|| panic!("a bad label value: {line}"));
            assert!(is_name(key) && labels.insert(key.into(), text).is_none(), "{line}");
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => break after.strip_prefix("} ").unwrap_or_else(|| panic!("no value: {line}")),
            }
        };
        let value: f64 = value.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(self.samples.insert((name.into(), labels), value).is_none(), "twice: {line}");
        name.to_string()
    }

    /// The one sample of this name whose labels hold these.
    #[track_caller]
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |l: &BTreeMap<String, String>| {
            labels.iter().all(|(key, value)| l.get(*key).map(String::as_str) == Some(value))
        };
        let found: Vec<f64> =
            self.samples.iter().filter(|((n, l), _)| n == name && fits(l)).map(|(_, v)| *v).collect();
        assert_eq!(found.len(), 1, "{name} {labels:?}: {:#?}", self.samples);
        found[0]
    }
}

/// The text up to its closing quote with its escapes undone, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => out.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => out.push(c),
        }
    }
    None
}

#[test]
fn the_text_says_what_ls_says() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    WriterProcess::start(&bench, "cold").kill();
    let metrics = Exposition::parse(&bench.call(&["metrics"]).wants(0).text());
    let space = bench.json(&["ls", "heat"], 0)["space"].clone();
    let of = ("space", "heat");
    assert_eq!(metrics.value("forebay_spaces", &[]), 2.0);
    assert_eq!(metrics.value("forebay_space_state", &[of, ("state", "open")]), 1.0);
    assert_eq!(metrics.value("forebay_space_state", &[of, ("state", "dead")]), 0.0);
    assert_eq!(metrics.value("forebay_space_state", &[("space", "cold"), ("state", "dead")]), 1.0);
    assert_eq!(metrics.value("forebay_versions_completed_total", &[of]), VERSIONS as f64);
    assert_eq!(metrics.value("forebay_versions_unread", &[of]), VERSIONS as f64);
    let level = [of, ("level", "0")];
    assert_eq!(metrics.value("forebay_tier_used_bytes", &level), space["used_bytes"].as_f64().unwrap());
    assert_eq!(metrics.value("forebay_tier_quota_bytes", &level), space["quota_bytes"].as_f64().unwrap());
    let alive = |alive| metrics.value("forebay_members", &[of, ("role", "writer"), ("alive", alive)]);
    assert_eq!((alive("true"), alive("false")), (1.0, 0.0));
    let rank = [of, ("role", "writer"), ("rank", "0")];
    let member = &space["members"][0];
    assert_eq!(metrics.value("forebay_put_bytes_total", &rank), member["bytes"].as_f64().unwrap());
    assert_eq!(metrics.value("forebay_steps_total", &rank), VERSIONS as f64);
    assert_eq!(metrics.value("forebay_waiting_seconds", &rank), 0.0);
    assert_eq!(metrics.value("forebay_spilled_bytes_total", &[of]), 0.0);
    assert_eq!(metrics.value("forebay_failed_moves_total", &[of]), 0.0);
    writer.finish();
}

#[test]
fn odd_names_are_escaped() {
    let bench = Bench::new();
    let name = format!("{}/a \"quoted\" back\\slash", bench.root().display());
    let writer = WriterProcess::start(&bench, &name);
    let text = bench.call(&["metrics", &name]).wants(0).text();
    let metrics = Exposition::parse(&text);
    assert_eq!(metrics.value("forebay_space_state", &[("space", &name), ("state", "open")]), 1.0);
    writer.finish();
}

#[test]
fn json_and_text_have_the_same_samples() {
    let bench = Bench::new();
    WriterProcess::start(&bench, "heat").finish();
    let text = Exposition::parse(&bench.call(&["metrics"]).wants(0).text());
    let document = bench.json(&["metrics"], 0);
    let mut count = 0;
    for family in document["metrics"].as_array().unwrap() {
        let name = family["name"].as_str().unwrap();
        assert_eq!(text.types[name], family["type"].as_str().unwrap());
        for sample in family["samples"].as_array().unwrap() {
            let labels: BTreeMap<String, String> = serde_json::from_value(sample["labels"].clone()).unwrap();
            assert_eq!(text.samples[&(name.into(), labels)], sample["value"].as_f64().unwrap(), "{name}");
            count += 1;
        }
    }
    assert_eq!(count, text.samples.len());
}

#[test]
fn a_textfile_is_replaced_whole_and_readable_by_others() {
    let bench = Bench::new();
    WriterProcess::start(&bench, "heat").finish();
    let path = bench.file("forebay.prom");
    let once = bench.call(&["metrics", "--textfile", "forebay.prom"]);
    assert_eq!(once.wants(0).text(), "");
    let metadata = std::fs::metadata(&path).unwrap();
    // Whatever the umask takes away, it takes away from all but the owner.
    assert_eq!(metadata.permissions().mode() & 0o600, 0o600);
    Exposition::parse(&std::fs::read_to_string(&path).unwrap());

    let words = ["metrics", "--textfile", "forebay.prom", "--interval", "0.1"];
    let mut command = bench.command(&words);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut files = BTreeSet::from([metadata.ino()]);
    // A new file takes the name each time: a process that has the old one open reads it to its end.
    let mut held = Vec::new();
    while files.len() < 4 {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        let file = std::fs::File::open(&path).unwrap();
        if files.insert(file.metadata().unwrap().ino()) {
            held.push(file);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    for mut file in held {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        Exposition::parse(&text);
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let left: Vec<_> = std::fs::read_dir(bench.work()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["forebay.prom"]);
}

#[test]
fn mistakes_are_named() {
    let bench = Bench::new();
    bench.call(&["metrics", "heta"]).wants(7).complains("space heta does not exist");
    bench.call(&["metrics", "--listen", "0.0.0.0:0"]).wants(2).complains("others than this machine");
    bench.call(&["metrics", "--listen", "9464"]).wants(2).complains("127.0.0.1:9464");
    bench.call(&["metrics", "--interval", "5"]).wants(2).complains("--textfile");
    bench.call(&["metrics", "--textfile", "x", "--interval", "0"]).wants(2).complains("0.1 to 86400");
    bench.call(&["metrics", "--textfile", "x", "--listen", "127.0.0.1:0"]).wants(2);
    let nowhere = bench.call(&["metrics", "--textfile", "no/such/folder/x.prom"]);
    nowhere.wants(1_i32.max(nowhere.status.unwrap())).complains("x.prom");
    assert_ne!(nowhere.status, Some(0));
}

/// `forebay metrics --listen` on a port of its own.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(bench: &Bench) -> Served {
        let mut command = bench.command(&["metrics", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|l| l.strip_suffix("/metrics"));
        Served { address: address.unwrap_or_else(|| panic!("no address: {line:?}")).to_string(), child }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("it listens")
    }

    /// Sends these bytes and reads to the end; None when the connection is reset.
    fn try_ask(&self, request: &[u8]) -> Option<String> {
        let mut stream = self.connect();
        stream.write_all(request).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Sends these bytes and reads to the end: status and what follows the header fields.
    #[track_caller]
    fn ask(&self, request: &[u8]) -> (u16, String, String) {
        let text = self.try_ask(request).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no end of head: {text:?}"));
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|s| s.get(..3)).and_then(|s| s.parse().ok());
        let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).expect("a length");
        if !request.starts_with(b"HEAD") {
            assert_eq!(length, body.len().to_string(), "{head}");
        }
        (status.unwrap_or_else(|| panic!("no status: {head}")), head.to_string(), body.to_string())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_loopback_port_serves_metrics_and_nothing_else() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    let mut served = Served::start(&bench);
    let (status, head, body) = served.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(status, 200);
    assert!(head.contains("Content-Type: text/plain; version=0.0.4"), "{head}");
    assert_eq!(Exposition::parse(&body).value("forebay_spaces", &[]), 1.0);

    let asks = b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    let (_, head, body) = served.ask(asks);
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("# TYPE forebay_put_bytes counter\n# UNIT forebay_put_bytes bytes\n"), "{body}");
    assert!(body.ends_with("# EOF\n"), "{body}");

    let (status, head, body) = served.ask(b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert_eq!((status, body.as_str()), (200, ""), "{head}");
    assert_eq!(served.ask(b"GET /other HTTP/1.0\r\n\r\n").0, 404);
    let (status, head, _) = served.ask(b"POST /metrics HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(status, 405);
    assert!(head.contains("Allow: GET, HEAD"), "{head}");
    // The next look sees that the writer is gone: nothing is remembered.
    writer.finish();
    let (_, _, body) = served.ask(b"GET /metrics HTTP/1.0\r\n\r\n");
    let after = Exposition::parse(&body);
    assert_eq!(after.value("forebay_space_state", &[("space", "heat"), ("state", "finished")]), 1.0);

    kill_process(Pid::from_child(&served.child), Signal::TERM).unwrap();
    assert_eq!(served.child.wait().unwrap().code(), Some(143));
}

#[test]
fn bad_clients_hold_no_other_up() {
    let bench = Bench::new();
    let served = Served::start(&bench);
    for malformed in
        [&b"\x16\x03\x01\x02\x00\r\n\r\n"[..], b"GET\r\n\r\n", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
    {
        assert_eq!(served.ask(malformed).0, 400, "{malformed:?}");
    }
    assert_eq!(served.ask(b"PRI * HTTP/2.0\r\n\r\n").0, 505);
    let long = [&b"GET / HTTP/1.0\r\nX: "[..], &vec![b'a'; 60 << 10]].concat();
    assert_eq!(served.ask(&long).0, 431);
    // Says half a request and leaves.
    served.connect().write_all(b"GET /met").unwrap();

    // Sixteen that say nothing take every place; the next is told so. On a machine so slow that the first ones
    // were sent away meanwhile, there are free places again: once more.
    let mut silent: Vec<TcpStream> = Vec::new();
    let mut refused = String::new();
    while !refused.starts_with("HTTP/1.1 503 ") {
        silent = (0..16).map(|_| served.connect()).collect();
        refused.clear();
        served.connect().read_to_string(&mut refused).unwrap();
    }
    silent.truncate(15);
    while served.try_ask(b"GET /metrics HTTP/1.0\r\n\r\n").is_none_or(|text| !text.contains(" 200 OK")) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
