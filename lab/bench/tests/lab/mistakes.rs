//! Wrong input of the lab: each mistake has its exit status and a hint.

use crate::bench::Bench;

#[test]
fn every_mistake_has_its_exit_status() {
    let bench = Bench::new();
    let cases: &[(&[&str], i32, &str)] = &[
        (&["app"], 2, "gray-scott"),
        (&["bench"], 2, "stream"),
        (&["bench", "steram"], 2, "stream"),
        (&["app", "gray-scott"], 2, "--deck"),
    ];
    for (words, status, text) in cases {
        let outcome = bench.call(words);
        outcome.wants(*status).complains(text);
        assert!(outcome.stdout.is_empty(), "{outcome}");
    }
    let document = bench.json(&["bench", "steram"], 2);
    assert_eq!((&document["schema"], &document["kind"]), (&"forebay.error/1".into(), &"Usage".into()));
}
