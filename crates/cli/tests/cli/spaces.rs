//! `ls`, `cat`, `verify` and `clean` against spaces of another process, living, finished and killed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use forebay_cli::output::schema;
use serde_json::json;

use crate::bench::Bench;
use crate::documents;
use crate::page;
use crate::writing::{big, values, WriterProcess, BIG, VERSIONS};

#[test]
fn no_spaces_is_no_error() {
    let bench = Bench::new();
    for words in
        [&["ls"][..], &["verify"], &["top"], &["clean"], &["clean", "--dead"], &["clean", "--dry-run"]]
    {
        let outcome = bench.call(words);
        outcome.wants(0);
        assert_eq!((outcome.text().as_str(), outcome.stderr.as_str()), ("", ""), "{outcome}");
    }
    assert_eq!(bench.json(&["ls"], 0)["spaces"], json!([]));
}

#[test]
fn a_living_space_is_listed_and_read_without_holding_it_back() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    let listed = bench.call(&["ls"]);
    listed.wants(0).says("heat").says("open").says("0 to 2").says("1/1");
    let space = &bench.json(&["ls", "heat"], 0)["space"];
    assert_eq!(space["name"], "heat");
    assert_eq!(space["state"], "open");
    assert_eq!(space["versions_complete"], VERSIONS);
    assert_eq!(space["members"][0]["role"], "writer");
    assert_eq!(space["members"][0]["alive"], true);
    bench.call(&["ls", "heat"]).wants(0).says("retention  forever").says("alive");

    bench.call(&["cat", "heat"]).wants(0).says("float64").says("y=4 x x=5").says("label");
    let after = &bench.json(&["ls", "heat"], 0)["space"];
    assert_eq!(after["readers"], json!([]), "cat counts as a reader");
    writer.finish();
    assert_eq!(bench.json(&["ls", "heat"], 0)["space"]["state"], "finished");
}

#[test]
fn values_come_in_every_form() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    let newest = values(VERSIONS - 1);

    let text = bench.call(&["cat", "heat", "T"]);
    text.wants(0)
        .says("# T float64 [0:4, 0:5] of y=4 x x=5, version 2\n")
        .says("200.0 201.0 202.0 203.0 204.0\n");
    let rows = text.text().lines().filter(|l| !l.starts_with('#')).count();
    assert_eq!(rows, 4, "{text}");

    let raw = bench.call(&["cat", "heat", "T", "--format", "raw"]);
    let bytes: Vec<u8> = newest.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert!(raw.wants(0).stdout == bytes, "{raw}");
    let npy = bench.call(&["cat", "heat", "T", "--format", "npy"]);
    assert!(npy.wants(0).stdout.starts_with(b"\x93NUMPY\x01\x00") && npy.stdout.ends_with(&bytes), "{npy}");

    let document = bench.json(&["cat", "heat", "T", "--box", "1:3,:2", "--version", "1"], 0);
    assert_eq!(document["dtype"], "float64");
    let version = &document["versions"][0];
    assert_eq!((&version["start"], &version["count"]), (&json!([1, 0]), &json!([2, 2])));
    assert_eq!(version["data"], json!([[105.0, 106.0], [110.0, 111.0]]));

    let all = bench.json(&["cat", "heat", "n", "--version", "all"], 0);
    let data: Vec<_> = all["versions"].as_array().unwrap().iter().map(|v| v["data"].clone()).collect();
    assert_eq!(data, [json!(0), json!(1), json!(2)]);
    assert_eq!(bench.json(&["cat", "heat", "label"], 0)["versions"][0]["data"], "step \"2\"");

    let attributes = bench.json(&["cat", "heat", "--attributes"], 0);
    assert_eq!(attributes["attributes"], json!({"title": "a test", "dx": [0.5, 0.25]}));
    let version = &attributes["versions"][0];
    assert_eq!((&version["version"], &version["attributes"]), (&json!(2), &json!({"time": 1.0})));
    let listed = version["variables"].as_array().unwrap().iter().find(|v| v["name"] == "T").unwrap();
    assert_eq!((&listed["dims"], &listed["attributes"]), (&json!(["y", "x"]), &json!({"units": "K"})));
    let shown = bench.call(&["cat", "heat", "-a", "-V", "1"]);
    shown
        .wants(0)
        .says("dx = [0.5,0.25]\n")
        .says("version 1: time = 0.5\n")
        .says("version 1: T: units = \"K\"\n");
    writer.finish();
}

#[test]
fn what_is_larger_than_one_read_comes_whole() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    let raw = bench.call(&["cat", "heat", "big", "--version", "0", "--format", "raw"]);
    let want: Vec<u8> = (0..BIG[0] * BIG[1]).flat_map(|i| big(i).to_le_bytes()).collect();
    assert!(raw.stdout == want, "{} bytes instead of {}", raw.stdout.len(), want.len());
    let text = bench.call(&["cat", "heat", "big", "-V", "0", "--box", "1:,1999990:"]);
    let first = BIG[1] + 1_999_990;
    text.wants(0).says(&format!("\n{} {} ", big(first), big(first + 1)));
    writer.finish();
}

#[test]
fn asking_for_what_is_not_there_names_what_is() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    bench.call(&["cat", "heta", "T"]).wants(7).complains("did you mean heat?");
    bench.call(&["ls", "heta"]).wants(7).complains("did you mean heat?");
    bench.call(&["verify", "heta"]).wants(7);
    bench.call(&["clean", "heta"]).wants(7);
    bench.call(&["cat", "heat", "U"]).wants(2).complains("UnknownVariable").complains("label");
    bench.call(&["cat", "heat", "T", "--box", "0:9,:"]).wants(2).complains("BoxOutsideShape");
    bench.call(&["cat", "heat", "T", "--box", "0:1"]).wants(2).complains("2 dimensions");
    bench.call(&["cat", "heat", "T", "--version", "9"]).wants(7).complains("TimedOut");
    bench.call(&["cat", "heat", "T", "--format", "raw", "--json"]).wants(2);
    writer.finish();
}

#[test]
fn damage_is_found_and_named() {
    let bench = Bench::new();
    WriterProcess::start(&bench, "heat").finish();
    let sound = bench.json(&["verify"], 0);
    assert_eq!(sound["ok"], true);
    assert!(sound["spaces"][0]["report"]["records"].as_u64().unwrap() >= 3 * VERSIONS, "{sound}");
    bench.call(&["verify", "heat"]).wants(0).says("ok");

    let needle: Vec<u8> = values(1).iter().flat_map(|v| v.to_le_bytes()).collect();
    flip_a_bit_of(&bench.root().join("heat"), &needle);
    let report = bench.call(&["verify", "heat"]);
    report.wants(8).says("damaged").says("version 1");
    let document = bench.json(&["verify"], 8);
    assert_eq!(document["ok"], false);
    let damaged = document["spaces"][0]["report"]["damaged"].as_array().unwrap();
    assert_eq!(damaged.len(), 1, "{document}");
    assert_eq!(damaged[0]["version"], 1);
    bench.call(&["cat", "heat", "T", "--version", "1"]).wants(8).complains("Damaged");
    bench.call(&["cat", "heat", "T", "--version", "0"]).wants(0);
}

/// Flips a bit in the first pool file that holds these bytes.
fn flip_a_bit_of(folder: &Path, needle: &[u8]) {
    let mut folders = vec![folder.to_path_buf()];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    for file in files {
        let mut bytes = std::fs::read(&file).unwrap();
        let Some(at) = bytes.windows(needle.len()).position(|w| w == needle) else { continue };
        bytes[at + needle.len() / 2] ^= 1;
        std::fs::write(file, bytes).unwrap();
        return;
    }
    panic!("no pool file below {} holds the payload", folder.display());
}

#[test]
fn clean_takes_only_what_nobody_holds() {
    let bench = Bench::new();
    let alive = WriterProcess::start(&bench, "alive");
    WriterProcess::start(&bench, "finished").finish();
    WriterProcess::start(&bench, "killed").kill();

    bench.call(&["clean", "alive"]).wants(3).complains("NameInUse");
    let dry = bench.call(&["clean", "--dead", "--dry-run"]);
    dry.wants(0).says("would remove killed");
    dry.says("would keep alive").says("would keep finished");
    assert!(bench.root().join("killed").exists());

    let removed = bench.json(&["clean", "--dead"], 0)["removed"].clone();
    assert_eq!(removed.as_array().map(Vec::len), Some(1), "{removed}");
    assert_eq!(removed[0]["name"], "killed");
    assert!(!bench.root().join("killed").exists() && bench.root().join("finished").exists());
    let again = bench.call(&["clean", "--dead"]);
    assert_eq!((again.wants(0).text().as_str(), again.stderr.as_str()), ("", ""), "{again}");

    let foreign = bench.root().join("finished/notes");
    std::fs::write(&foreign, "of the user").unwrap();
    let kept = bench.call(&["clean"]);
    kept.wants(0).complains("finished was not removed").complains("notes");
    assert_eq!(bench.json(&["clean"], 0)["kept"][1]["failed"], true);
    std::fs::remove_file(foreign).unwrap();
    bench.call(&["clean"]).wants(0).says("removed finished");
    bench.call(&["cat", "alive", "n"]).wants(0);
    alive.finish();
    bench.call(&["clean", "alive"]).wants(0).says("removed alive");
    assert_eq!(bench.json(&["ls"], 0)["spaces"], json!([]));
}

/// What cannot be removed does not hide what was.
#[test]
fn clean_tells_what_it_removed_beside_what_it_could_not() {
    let bench = Bench::new();
    let record = bench.root().join(".checkpoints/run/level.json");
    std::fs::create_dir_all(&record).unwrap();
    WriterProcess::start(&bench, "first").kill();
    let told = bench.json(&["clean", "--dead"], 0);
    assert_eq!(told["removed"][0]["name"], "first", "{told}");
    let failed: Vec<_> =
        told["kept"].as_array().unwrap().iter().filter(|kept| kept["failed"] == true).collect();
    assert!(failed.len() == 1 && failed[0]["name"].as_str().unwrap().ends_with("run"), "{told}");

    for name in ["foreign", "second"] {
        WriterProcess::start(&bench, name).kill();
    }
    std::fs::write(bench.root().join("foreign/notes"), "of the user").unwrap();
    let told = bench.call(&["clean", "foreign", "second"]);
    told.wants(bench.call(&["clean", "foreign"]).status.unwrap())
        .says("removed second")
        .complains("foreign was not removed")
        .complains("notes");
    assert!(bench.root().join("foreign/notes").exists() && !bench.root().join("second").exists(), "{told}");
}

#[test]
fn top_without_a_terminal_prints_one_table() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    let once = bench.call(&["top"]);
    once.wants(0).says("heat").says("open").says("0 to 2").says("dram").says(" MiB of 64.0 MiB");
    assert!(!once.text().contains('\x1b') && once.stderr.is_empty(), "{once}");
    bench.call(&["top", "heta"]).wants(7).complains("did you mean heat?");
    bench.call(&["top", "--interval", "0"]).wants(2).complains("0.1 to 86400");

    // One look knows no bandwidth; two do, and nothing was put between them.
    let first = bench.json(&["top", "heat"], 0);
    assert_eq!(
        (&first["seconds_between"], &first["spaces"][0]["in_bytes_per_s"]),
        (&json!(null), &json!(null))
    );
    let second = bench.json(&["top", "heat", "--interval", "0.1"], 0);
    assert_eq!(second["spaces"][0]["in_bytes_per_s"], json!(0.0));
    assert!(second["seconds_between"].as_f64().unwrap() > 0.0);
    assert_eq!(second["spaces"][0]["space"]["members"][0]["alive"], true);
    writer.finish();
}

#[test]
fn drain_moves_what_a_dead_producer_left() {
    let bench = Bench::new();
    let below = bench.work().display().to_string();
    let spill = format!("{below},quota=64MiB,tier=file");
    let writer = WriterProcess::start_with(&bench, "heat", &[("FOREBAY_SPILL", &spill)]);
    // A living producer moves its own data; nothing is taken from it.
    let alive = bench.json(&["drain", "heat"], 0);
    assert_eq!((&alive["moved_bytes"], &alive["remaining_bytes"]), (&json!(0), &json!(0)));
    writer.kill();
    let moved = bench.json(&["drain", "heat", "--timeout", "30"], 0);
    assert!(moved["moved_bytes"].as_u64().unwrap() > 0 && moved["segments"].as_u64().unwrap() > 0, "{moved}");
    assert_eq!(moved["remaining_bytes"], 0);
    page::check(&moved, &documents::documented()[schema::DRAIN], &["drain", "heat"]);
    bench.call(&["drain", "heat"]).wants(0).says("nothing was left to move");
    // It is all there, in the lower tier.
    let tiers = bench.json(&["ls", "heat"], 0)["space"]["tiers"].clone();
    assert!(tiers[1]["used_bytes"].as_u64().unwrap() > 0, "{tiers}");
    let value = bench.json(&["cat", "heat", "n", "--version", "0"], 0);
    assert_eq!(value["versions"][0]["data"], json!(0));
    bench.call(&["verify", "heat"]).wants(0);

    WriterProcess::start(&bench, "flat").kill();
    bench.call(&["drain", "flat"]).wants(2).complains("no lower tier");
    bench.call(&["drain", "heta"]).wants(7).complains("did you mean heat?");
}

#[test]
fn cat_waits_for_a_space_that_is_not_there_yet() {
    let bench = Bench::new();
    bench.call(&["cat", "heat", "--wait", "0.3"]).wants(7).complains("space heat does not exist");
    let mut command = bench.command(&["cat", "heat", "--wait", "60", "--json"]);
    let waiting = command.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let writer = WriterProcess::start(&bench, "heat");
    let output = waiting.wait_with_output().unwrap();
    writer.finish();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("\"heat\""), "{text}");
}
