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
    let document = bench.json(&["ckpt", "list", "ck", "--step", "4"], 0);
    let steps = document["levels"][0]["steps"].as_array().unwrap();
    // Two are kept; the place of a third is taken by the next one.
    assert_eq!(steps.iter().map(|step| step["step"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 3, 2]);
    assert_eq!(document["pieces"][0]["name"], "u");
    assert_eq!(document["acknowledged"], 4);
    bench.call(&["ckpt", "list", "ck", "--step", "4"]).wants(0).says("3×4");
    bench.call(&["ckpt", "list", "."]).wants(7).complains("is no checkpoint directory");
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
fn what_only_an_upper_level_holds_is_carried_down() {
    let bench = Bench::new();
    let upper = bench.file("upper").display().to_string();
    saved(&bench, &[&upper, "file"], 2);
    bench.call(&["ckpt", "drain", "ck"]).wants(0).says("every level has the newest step");
    std::fs::remove_dir_all(bench.file("ck/file/s0000000002-r000001")).unwrap();
    bench.call(&["ckpt", "drain", "ck"]).wants(0).says("carried step 2 to");
    let list = bench.json(&["ckpt", "list", "ck"], 0);
    assert_eq!(list["levels"][1]["steps"][0]["step"], 2);
    bench.call(&["ckpt", "verify", "ck"]).wants(0);
    let advice = bench.call(&["ckpt", "advise", "ck", "--mtbf", "3600"]);
    advice.wants(0).says("measured").says("predicted").says("3600 s between failures");
    bench.call(&["ckpt", "advise", "."]).wants(7);
}
