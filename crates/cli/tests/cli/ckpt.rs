//! `forebay ckpt`: what is there is listed, damage is found, arrays are taken out, steps are carried down.

use forebay_checkpoint::{Checkpoint, Dtype, NdBox, Options};

use crate::bench::Bench;

/// Saves steps 1 to `steps` of an array into the directory `ck` of the bench.
pub fn saved(bench: &Bench, levels: &[&str], steps: u64) {
    let options = Options {
        levels: levels.iter().map(|level| level.to_string()).collect(),
        memory_root: Some(bench.file("memory")),
        ..Options::default()
    };
    let mut checkpoint = Checkpoint::open(&bench.file("ck"), &options).unwrap();
    checkpoint.protect("u", Dtype::F64, &[3, 4], &NdBox::whole(&[3, 4])).unwrap();
    for step in 1..=steps {
        checkpoint.save(step, &[&[step as u8; 96]]).unwrap();
    }
    checkpoint.close().unwrap();
}

#[test]
fn steps_are_listed_with_what_they_survive() {
    let bench = Bench::new();
    saved(&bench, &["file"], 4);
    let list = bench.call(&["ckpt", "list", "ck"]);
    list.wants(0).says("run 1, 1 rank(s), not running").says("committed");
    assert!(["process crash ", "power failure "].iter().any(|words| list.text().contains(words)));
    assert!(!list.text().contains("crash crash") && !list.text().contains("failure crash"));
    let document = bench.json(&["ckpt", "list", "ck", "--step", "4"], 0);
    let steps = document["levels"][0]["steps"].as_array().unwrap();
    // Two are kept; the place of a third is taken by the next one.
    assert_eq!(steps.iter().map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 3, 2]);
    assert_eq!(document["pieces"][0]["name"], "u");
    assert_eq!(document["acknowledged"], 4);
    bench.call(&["ckpt", "list", "ck", "--step", "4"]).wants(0).says("3×4");
    bench.call(&["ckpt", "list", "."]).wants(7).complains("is not a checkpoint directory");
}

#[test]
fn the_list_says_why_a_step_stays() {
    let bench = Bench::new();
    let options = Options { levels: vec!["file,keep=1,every=4,best=2:largest".into()], ..Options::default() };
    let mut checkpoint = Checkpoint::open(&bench.file("ck"), &options).unwrap();
    checkpoint.protect("u", Dtype::F64, &[3, 4], &NdBox::whole(&[3, 4])).unwrap();
    for (step, score) in [0.5, 0.9, 0.25, 0.125, 0.75, 0.1].into_iter().enumerate() {
        checkpoint.save_with(step as u64 + 1, &[&[step as u8; 96]], Some(score)).unwrap();
    }
    checkpoint.close().unwrap();
    let list = bench.call(&["ckpt", "list", "ck"]);
    list.wants(0).says("last 1").says("every 4").says("best 2").says("METRIC").says("0.125");
    let document = bench.json(&["ckpt", "list", "ck"], 0);
    let level = &document["levels"][0];
    assert_eq!((level["keep"].as_u64(), level["every"].as_u64()), (Some(1), Some(4)));
    assert_eq!(level["best"]["by"], "largest");
    let steps: Vec<String> = level["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| format!("{} {} {}", step["step"], step["stays"], step["metric"]))
        .collect();
    let wanted = ["6 [\"last\"] 0.1", "5 [\"best\"] 0.75", "4 [\"every\"] 0.125", "2 [\"best\"] 0.9"];
    assert_eq!(steps, wanted);
}

/// Opens the checkpoint `ck` of the bench with a level of memory where `forebay clean` looks, and saves a step.
fn in_memory(bench: &Bench) -> Checkpoint {
    let options = Options {
        levels: vec!["dram".into(), "file".into()],
        memory_root: Some(bench.root().to_path_buf()),
        ..Options::default()
    };
    let mut checkpoint = Checkpoint::open(&bench.file("ck"), &options).unwrap();
    checkpoint.protect("u", Dtype::F64, &[3, 4], &NdBox::whole(&[3, 4])).unwrap();
    checkpoint.save(1, &[&[1; 96]]).unwrap();
    // What is still on its way down would make the directory anew.
    checkpoint.wait().unwrap();
    checkpoint
}

#[test]
fn memory_of_a_checkpoint_goes_with_its_directory_and_never_before_its_program() {
    let bench = Bench::new();
    let levels = || std::fs::read_dir(bench.root().join(".checkpoints")).unwrap().count();
    let checkpoint = in_memory(&bench);
    bench.call(&["clean"]).wants(0).says_nothing();
    bench.call(&["clean", "--checkpoint", "ck"]).wants(3).complains("is running");
    // Its directory is gone, and the program lives.
    std::fs::rename(bench.file("ck"), bench.file("elsewhere")).unwrap();
    bench.call(&["clean", "--dry-run"]).wants(0).says("would keep").says("in use by rank 0, pid");
    bench.call(&["clean", "--checkpoint", "ck"]).wants(3).complains("in use by rank 0");
    std::fs::rename(bench.file("elsewhere"), bench.file("ck")).unwrap();
    checkpoint.close().unwrap();
    assert_eq!(levels(), 1);

    // A restart may need it.
    let dry = bench.call(&["clean", "--dry-run"]);
    dry.wants(0).says("would keep").says("a restart with");
    bench.call(&["clean"]).wants(0).says_nothing();
    assert_eq!(levels(), 1);
    bench.call(&["clean", "--checkpoint", "ck", "--dry-run"]).wants(0).says("would remove");
    assert_eq!(levels(), 1);
    bench.call(&["clean", "--checkpoint", "ck"]).wants(0).says("removed").says("memory of the checkpoint");
    assert_eq!(levels(), 0);
    bench.call(&["clean", "--checkpoint", "ck"]).wants(0).says_nothing();
    bench
        .call(&["clean", "--checkpoint", "nothing"])
        .wants(7)
        .complains("is not the directory of a checkpoint");
    bench.call(&["clean", "--checkpoint", "ck", "--dead"]).wants(2);

    in_memory(&bench).close().unwrap();
    std::fs::remove_dir_all(bench.file("ck")).unwrap();
    let document = bench.json(&["clean", "--dead"], 0);
    assert!(document["removed"][0]["reason"].as_str().unwrap().ends_with("which is gone"), "{document}");
    assert_eq!(levels(), 0);
    // The next run makes its level anew.
    in_memory(&bench).close().unwrap();
    assert_eq!(levels(), 1);
}

#[test]
fn memory_stays_when_the_file_system_of_its_checkpoint_is_not_there_or_it_says_nothing() {
    let bench = Bench::new();
    in_memory(&bench).close().unwrap();
    let level = std::fs::read_dir(bench.root().join(".checkpoints")).unwrap().next().unwrap().unwrap().path();
    let record = level.join("level.json");
    let mut owner: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    let base = bench.work().join("mnt/ck");
    std::fs::create_dir(bench.work().join("mnt")).unwrap();
    owner["base"] = base.display().to_string().into();
    owner["mount"] = bench.work().join("mnt").display().to_string().into();
    std::fs::write(&record, owner.to_string()).unwrap();
    bench.call(&["clean", "--dry-run"]).wants(0).says("would keep").says("nothing is mounted at");
    bench.call(&["clean"]).wants(0).says_nothing();
    std::fs::write(&record, "{").unwrap();
    bench.call(&["clean", "-n"]).wants(0).says("would keep").says("it does not say whose it is");
    bench.call(&["clean"]).wants(0).says_nothing();
    assert!(level.is_dir());
    // A killed `clean` leaves what the next one takes away.
    std::fs::rename(&level, level.with_file_name(".gone-4194304-ck")).unwrap();
    bench.call(&["clean"]).wants(0).says("left by a process that was killed");
}

#[test]
fn damage_is_found_and_the_step_before_is_taken_out() {
    let bench = Bench::new();
    saved(&bench, &["file"], 2);
    bench.call(&["ckpt", "verify", "ck"]).wants(0).says("ok");
    let data = bench.file("ck/file/s0000000002-r000001/00000.data");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[5] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    bench.call(&["ckpt", "verify", "ck"]).wants(8).says("it does not match its checksum");
    bench.call(&["ckpt", "verify", "ck", "--step", "1"]).wants(0);
    let taken = bench.call(&["ckpt", "restore", "ck", "--to", "out"]);
    taken.wants(0).says("step 1 of run 1").says("step 2 of run 1").says("u.npy");
    let file = std::fs::read(bench.file("out/u.npy")).unwrap();
    assert!(file.starts_with(b"\x93NUMPY") && file.ends_with(&[1; 96]));
    bench.call(&["ckpt", "restore", "ck", "--to", "out"]).wants(3).complains("exists");
    bench.call(&["ckpt", "restore", "ck", "--to", "none", "--step", "2"]).wants(8);
    bench.call(&["ckpt", "restore", "ck", "--to", "none", "--step", "9"]).wants(8);
}

#[test]
fn incremental_steps_say_what_they_stand_on() {
    let bench = Bench::new();
    saved(&bench, &["file,incremental=3,compress=zstd:1"], 1);
    let options = Options {
        levels: vec!["file,incremental=3,compress=zstd:1".into()],
        memory_root: Some(bench.file("memory")),
        ..Options::default()
    };
    let mut checkpoint = Checkpoint::open(&bench.file("ck"), &options).unwrap();
    checkpoint.protect("u", Dtype::U8, &[2 << 16], &NdBox::whole(&[2 << 16])).unwrap();
    let mut bytes = vec![7; 2 << 16];
    for step in 2..=3 {
        bytes[9] = step as u8;
        checkpoint.save(step, &[&bytes]).unwrap();
    }
    checkpoint.close().unwrap();
    bench
        .call(&["ckpt", "list", "ck"])
        .wants(0)
        .says("committed, incremental, on step 2")
        .says("ck/file,incremental=3,compress=zstd:1");
    bench.call(&["ckpt", "verify", "ck"]).wants(0).says("ok, incremental, on step 2");
    let document = bench.json(&["ckpt", "list", "ck"], 0);
    assert_eq!(document["levels"][0]["packing"], serde_json::json!({"full_every": 3, "zstd": 1}));
    assert_eq!(document["levels"][0]["steps"][0]["incremental_on"], 2);
    assert_eq!(document["levels"][0]["steps"][1]["incremental_on"], serde_json::Value::Null);
}

#[test]
fn what_only_an_upper_level_holds_is_carried_down() {
    let bench = Bench::new();
    let upper = bench.file("upper").display().to_string();
    saved(&bench, &[&upper, "file"], 2);
    bench.call(&["ckpt", "drain", "ck"]).wants(0).says("every level has the newest step");
    std::fs::remove_dir_all(bench.file("ck/file/s0000000002-r000001")).unwrap();
    bench.call(&["ckpt", "drain", "ck"]).wants(0).says("copied step 2 to");
    let list = bench.json(&["ckpt", "list", "ck"], 0);
    assert_eq!(list["levels"][1]["steps"][0]["step"], 2);
    bench.call(&["ckpt", "verify", "ck"]).wants(0);
    let advice = bench.call(&["ckpt", "advise", "ck", "--mtbf", "3600"]);
    advice.wants(0).says("measured").says("predicted").says("3600 s between failures");
    bench.call(&["ckpt", "advise", "."]).wants(7);
}

/// Saves a step with a rank on each of four nodes.
fn saved_by_four(bench: &Bench, level: &str) {
    std::thread::scope(|scope| {
        for rank in 0..4u32 {
            scope.spawn(move || {
                let options = Options { levels: vec![level.into()], rank, size: 4, ..Options::default() };
                let mut checkpoint = Checkpoint::open(&bench.file("ck"), &options).unwrap();
                let part = NdBox::new(&[u64::from(rank), 0], &[1, 12]).unwrap();
                checkpoint.protect("u", Dtype::F64, &[4, 12], &part).unwrap();
                checkpoint.save(1, &[&[rank as u8; 96]]).unwrap();
                assert_eq!(checkpoint.wait().unwrap(), Some(1));
                checkpoint.close().unwrap();
            });
        }
    });
}

#[test]
fn redundancy_is_shown_and_brings_back_a_lost_node() {
    let bench = Bench::new();
    saved_by_four(&bench, "file+xor:4");
    bench.call(&["ckpt", "list", "ck"]).wants(0).says("REDUNDANCY").says("xor:4 complete");
    bench.call(&["ckpt", "verify", "ck"]).wants(0).says("xor:4 complete");
    let document = bench.json(&["ckpt", "list", "ck"], 0);
    assert_eq!(document["levels"][0]["redundancy"], "xor:4");
    let kept = &document["levels"][0]["steps"][0]["redundancy"];
    assert_eq!((kept["state"].as_str(), kept["files"].as_u64()), (Some("complete"), Some(4)));

    // Parity that is changed is damage, which a look finds.
    let parity = bench.file("ck/file/00003/s0000000001-r000001/00003.0.parity");
    let mut bytes = std::fs::read(&parity).unwrap();
    bytes[7] ^= 1;
    std::fs::write(&parity, bytes).unwrap();
    bench.call(&["ckpt", "verify", "ck"]).wants(8).says("xor:4 damaged").says("on node 00003");

    std::fs::remove_dir_all(bench.file("ck/file/00003")).unwrap();
    bench.call(&["ckpt", "list", "ck"]).wants(0).says("xor:4 incomplete");
    bench.call(&["ckpt", "verify", "ck"]).wants(8).says("rank 3");
    let taken = bench.json(&["ckpt", "restore", "ck", "--to", "out"], 0);
    let what = taken["repaired"].as_array().unwrap();
    let what: Vec<&str> = what.iter().map(|repair| repair["what"].as_str().unwrap()).collect();
    assert_eq!(what, ["manifest", "data", "commit record", "parity"]);
    let file = std::fs::read(bench.file("out/u.npy")).unwrap();
    assert!(file.ends_with(&[[2; 96], [3; 96]].concat()));
    bench.call(&["ckpt", "verify", "ck"]).wants(0).says("xor:4 complete");

    // More than it can bear.
    for node in ["00001", "00002"] {
        std::fs::remove_dir_all(bench.file("ck/file").join(node)).unwrap();
    }
    let refused = bench.call(&["ckpt", "restore", "ck", "--to", "none"]);
    refused.wants(8).complains("xor:4 is not enough to rebuild it");
}
