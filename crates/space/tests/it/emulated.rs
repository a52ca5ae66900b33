//! A space on an emulated tier: processes share one medium, each from where it stands. Times are those of the medium,
//! which follow from its curves, never those of this machine.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{options, shared_state, Root};
use forebay_space::{Curves, Emulation, Kind, Mechanism, OpenOptions, Reader, Writer};
use forebay_tier::adapter::throttle::{Curve, Throttle};

const BYTES: u64 = 1 << 20;

/// A nanosecond for each byte that is written, two for each that is read, twice as long from a remote place.
fn medium() -> Emulation {
    let level = |rate| Curve(vec![(1.0, rate)]);
    let curves = Curves {
        write_bandwidth: level(1e9),
        read_bandwidth: level(0.5e9),
        read_remote: level(0.5),
        ..Curves::default()
    };
    Emulation { of: "a test".into(), k: 4.0, curves }
}

fn emulated() -> OpenOptions {
    OpenOptions { emulate: Some(medium()), ..options() }
}

fn busy_ns(name: &str) -> u64 {
    Throttle::busy_until_ns(&shared_state(name, "throttle")).unwrap()
}

/// The other process: this test binary again.
#[test]
fn child() {
    let Ok(name) = std::env::var("SPACE_EMULATED_NAME") else { return };
    let mut reader = Reader::open(&name, &options()).unwrap();
    assert_eq!(reader.begin_step(None).unwrap(), Some(0));
    let read: Vec<u8> = reader.get_array("T", None).unwrap();
    assert_eq!((read.len() as u64, read[7]), (BYTES, 7));
    reader.end_step().unwrap();
    reader.close().unwrap();
}

#[test]
fn two_processes_share_one_medium_from_where_each_stands() {
    let root = Root::new();
    let name = root.name("slow");
    let mut writer = Writer::open(&name, &emulated()).unwrap();
    let begun = busy_ns(&name);
    writer.begin_step().unwrap();
    let values: Vec<u8> = (0..BYTES).map(|i| i as u8).collect();
    writer.put_array("T", &[BYTES], &[0], &[BYTES], &values).unwrap();
    writer.end_step().unwrap();
    let written = busy_ns(&name);
    assert!(written >= begun + BYTES, "{} ns for {BYTES} bytes", written - begun);
    let child = |locality: &str| {
        let before = busy_ns(&name);
        let out = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "emulated::child", "--nocapture", "--test-threads=1"])
            .env("SPACE_EMULATED_NAME", &name)
            .env("FOREBAY_LOCALITY", locality)
            .env("FOREBAY_COMPONENT", locality)
            .output()
            .expect("a child");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        busy_ns(&name) - before
    };
    let remote = child("remote");
    assert!(remote >= 4 * BYTES, "{remote} ns for {BYTES} bytes across a link");
    writer.close().unwrap();
    forebay_space::destroy(&name).unwrap();
    assert_eq!(root.left(), [""; 0]);
}

#[test]
fn an_emulated_tier_is_chosen_once_and_carries_spaces_only() {
    let root = Root::new();
    let name = root.name("slow");
    let writer = Writer::open(&name, &emulated()).unwrap();
    let other = Emulation { k: 5.0, ..medium() };
    let fails = |name: &str, options: OpenOptions| {
        Writer::open(name, &OpenOptions { rank: Some(0), size: Some(1), ..options }).err().map(|e| e.kind())
    };
    assert_eq!(fails(&name, OpenOptions { emulate: Some(other), ..options() }), Some(Kind::OptionMismatch));
    let files = OpenOptions { channel: Mechanism::Files, ..emulated() };
    assert_eq!(fails(&root.name("files"), files), Some(Kind::Usage));
    let bent = Curves { read_bandwidth: Curve(vec![(2.0, 1.0), (1.0, 1.0)]), ..Curves::default() };
    let bent = OpenOptions { emulate: Some(Emulation { curves: bent, ..medium() }), ..options() };
    assert_eq!(fails(&root.name("bent"), bent), Some(Kind::Usage));
    writer.close().unwrap();
    let file = PathBuf::from(&name).join("emulated.json");
    let text = std::fs::read_to_string(&file).unwrap();
    for (bent, kind) in [
        (text.replace("emulated/1", "emulated/9"), Kind::UnknownFormat),
        (text.replace("curves", "curvs"), Kind::Damaged),
        (text[..text.len() / 2].to_string(), Kind::Damaged),
    ] {
        std::fs::write(&file, bent).unwrap();
        assert_eq!(fails(&name, options()), Some(kind));
    }
    assert_eq!(fails(&root.name("plain"), options()), None);
    assert!(!PathBuf::from(root.name("plain")).join("throttle").exists(), "nothing stands in front of it");
}
