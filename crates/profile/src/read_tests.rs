//! Profiles as text: samples of the released format, damaged ones too.

use std::path::PathBuf;

use super::*;
use crate::{schema, Horizon, Provenance};

fn sample(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/profile/1").join(name)
}

#[test]
fn whole_samples_read_and_write_without_loss() {
    for name in ["whole.toml", "small.toml"] {
        let profile = Profile::read(&sample(name)).unwrap();
        let text = profile.text().unwrap();
        assert_eq!(Profile::parse(name, &text).unwrap(), profile, "{text}");
        assert_eq!(Profile::parse(name, &text).unwrap().text().unwrap(), text);
        let json = profile.json().unwrap();
        assert_eq!(Profile::parse(name, &json).unwrap(), profile, "{json}");
    }
}

#[test]
fn a_profile_is_written_as_the_sample_stands_there() {
    let text = std::fs::read_to_string(sample("whole.toml")).unwrap();
    assert_eq!(Profile::parse("whole", &text).unwrap().text().unwrap(), text);
}

#[test]
fn what_the_sample_says_is_what_is_read() {
    let profile = Profile::read(&sample("whole.toml")).unwrap();
    assert_eq!(profile.host.cores, Some(48));
    let dram = profile.tier("dram").unwrap();
    let sample = dram.samples().nth(3).unwrap();
    assert_eq!((sample.when.threads, sample.when.concurrency()), (Some(8), Some(8)));
    assert_eq!(sample.bandwidth().unwrap().value, 45e9);
    assert_eq!(sample.rate().unwrap().value, 45e9 / 1048576.0);
    assert_eq!(profile.provenance(sample.source), Some(Provenance::Measured));
    let direct = profile.tier("direct:/scratch").unwrap();
    let fast = direct.samples().last().unwrap();
    assert_eq!(fast.rate().unwrap().value, 540_000.0);
    assert_eq!(fast.bandwidth().unwrap().value, 540_000.0 * 4096.0);
    assert_eq!((fast.when.horizon, fast.when.concurrency()), (Horizon::Epoch, Some(16)));
    assert!(fast.caveat.is_some());
    let knees = direct.all_knees();
    assert_eq!(knees.len(), 2);
    assert!(!knees[0].stated && knees[0].when.depth == Some(16) && knees[1].stated);
    assert_eq!(profile.streams[1].horizon, Horizon::Write);
}

/// Every other file of the folder is one of these.
const REFUSED: &[(&str, Kind, &str)] = &[
    ("unknown-version", Kind::UnknownFormat, "unknown version (at="),
    ("no-version", Kind::UnknownFormat, "forebay_profile = 1"),
    ("unknown-key", Kind::UnknownKey, "did you mean points?"),
    ("unknown-key-in-line", Kind::UnknownKey, "did you mean reads_percent?"),
    ("unknown-tier", Kind::Damaged, "`drum` is not a tier"),
    ("unknown-unit", Kind::Damaged, "did you mean GB/s?"),
    ("damaged-text", Kind::Damaged, ".toml:20)"),
    ("damaged-cut-off", Kind::Damaged, "cannot read the profile"),
    ("damaged-not-utf8", Kind::UnknownFormat, "UTF-8"),
    ("damaged-no-source", Kind::Damaged, "\"prob\" is declared"),
    ("damaged-no-error-bar", Kind::Damaged, "lacks its error bar"),
    ("damaged-falling-points", Kind::Damaged, "must rise"),
    ("damaged-no-points", Kind::Damaged, "at least one"),
    ("damaged-negative", Kind::Damaged, "negative"),
    ("damaged-not-a-number", Kind::Damaged, "not finite"),
    ("damaged-fixed-twice", Kind::Damaged, "fixes it too"),
    ("damaged-share", Kind::Damaged, "in percent"),
    ("damaged-no-citation", Kind::Damaged, "lacks its citation"),
    ("damaged-no-repetitions", Kind::Damaged, "lacks its repetitions"),
    ("damaged-two-tiers", Kind::Damaged, "two tiers are named dram"),
    ("damaged-quantiles", Kind::Damaged, "fall"),
    ("damaged-no-latency", Kind::Damaged, "without a number"),
    ("damaged-histogram", Kind::Damaged, "as many operations"),
    ("damaged-stream", Kind::Damaged, "no tier pmem"),
    ("damaged-date", Kind::Damaged, "no date"),
    ("bad-name", Kind::BadName, "../small"),
];

#[test]
fn damaged_samples_are_refused_with_their_kind() {
    for (name, kind, text) in REFUSED {
        let error = Profile::read(&sample(&format!("{name}.toml"))).expect_err(name);
        assert_eq!(error.kind(), *kind, "{name}: {error}");
        assert!(error.to_string().contains(text), "{name}: {error}");
    }
    let files = std::fs::read_dir(sample("")).unwrap().count();
    assert_eq!(files, REFUSED.len() + 2, "a sample that no test reads");
}

#[test]
fn a_profile_cut_anywhere_is_refused_or_whole() {
    let text = std::fs::read_to_string(sample("whole.toml")).unwrap();
    for (length, _) in text.char_indices() {
        // A cut between two tables leaves a smaller profile; whatever is read must have passed the checks.
        if let Ok(profile) = Profile::parse("cut", &text[..length]) {
            profile.check().unwrap();
        }
    }
}

#[test]
fn other_files_are_no_profiles() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Profile::read(&dir.path().join("none")).unwrap_err().kind(), Kind::UnknownComponent);
    assert_eq!(Profile::read(dir.path()).unwrap_err().kind(), Kind::UnknownFormat);
    assert_eq!(Profile::parse("x", "{\"a\": 1}").unwrap_err().kind(), Kind::UnknownFormat);
    assert_eq!(Profile::parse("x", "{\"a\": ").unwrap_err().kind(), Kind::Damaged);
    let wrong = "{\"forebay_profile\": 1, \"nmae\": \"x\"}";
    assert_eq!(Profile::parse("x", wrong).unwrap_err().kind(), Kind::UnknownKey);
}

#[test]
fn the_published_schema_is_that_of_the_types() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/formats/profile.schema.json");
    let published = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        published == schema::json_schema(),
        "forebay probe schema > docs/src/formats/profile.schema.json"
    );
}
