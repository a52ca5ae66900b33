//! fio's documents as profiles; damaged ones too.

use super::*;

/// A document with these jobs: (name, options, IOPS of reads, of writes).
fn document(jobs: &[(&str, &str, u64, u64)]) -> String {
    let side = |iops: u64| {
        format!(
            "{{\"total_ios\": {iops}, \"bw_bytes\": {}, \"bw_dev\": 2.5, \"bw_samples\": 20, \
             \"clat_ns\": {{\"min\": 900, \"max\": 70000, \"mean\": 9000.5, \
             \"stddev\": 1000, \"N\": {iops}, \"percentile\": {{\"50.000000\": 8640, \
             \"90.000000\": 10000, \"99.000000\": 20000, \"99.900000\": 70144}}}}}}",
            iops * 4096
        )
    };
    let jobs: Vec<String> = jobs
        .iter()
        .map(|(name, options, reads, writes)| {
            format!(
                "{{\"jobname\": \"{name}\", \"error\": 0, \"job options\": {{{options}}}, \
                 \"read\": {}, \"write\": {}}}",
                side(*reads),
                side(*writes)
            )
        })
        .collect();
    format!(
        "{{\"fio version\": \"fio-3.33\", \"timestamp\": 1772360430, \"global options\": {{\"direct\": \"1\", \
         \"ioengine\": \"libaio\", \"bs\": \"4k\", \"filename\": \"/scratch/x\"}}, \"jobs\": [{}]}}",
        jobs.join(",")
    )
}

#[test]
fn depths_make_a_curve_over_depth() {
    let text = document(&[
        ("a", "\"rw\": \"randread\", \"iodepth\": \"16\"", 400_000, 0),
        ("b", "\"rw\": \"randread\", \"iodepth\": \"1\"", 100_000, 0),
        ("c", "\"rw\": \"write\", \"iodepth\": \"1\", \"fsync\": \"1\"", 0, 5000),
    ]);
    assert!(is_fio(&text));
    let profile = profile("drive", &text).unwrap();
    assert_eq!(profile.date, "2026-03-01T10:20:30Z");
    let tier = profile.tier("direct:/scratch/x").unwrap();
    assert_eq!(tier.curves.len(), 2);
    let reads = &tier.curves[0];
    assert_eq!(reads.over, Axis::Depth);
    assert_eq!(reads.points.iter().map(|p| p.x).collect::<Vec<_>>(), [1.0, 16.0]);
    let sample = reads.samples().last().unwrap();
    assert_eq!(sample.rate().unwrap().value, 400_000.0);
    assert_eq!(sample.bandwidth().unwrap().error, Some(2.5 * 1024.0));
    assert_eq!((tier.curves[1].when.horizon, tier.curves[1].when.reads_percent), (Horizon::Write, Some(0.0)));
    assert_eq!(tier.latencies.len(), 3);
    assert_eq!((tier.latencies[0].load, tier.latencies[1].load), (Load::Loaded, Load::Idle));
    assert_eq!(tier.latencies[0].p50_ns, Some(Estimate::new(8640.0, 67.5)));
    assert_eq!(Profile::parse("again", &profile.text().unwrap()).unwrap(), profile);
}

/// What fio itself printed.
#[test]
fn a_document_of_fio_3_33_is_a_profile() {
    let text = include_str!("../../../fixtures/profile/fio-3.33.json");
    assert!(is_fio(text));
    let profile = profile("recorded", text).unwrap();
    assert_eq!(profile.date, "2026-11-21T18:16:57Z");
    let tier = &profile.tiers[0];
    let said: serde_json::Value = serde_json::from_str(text).unwrap();
    let bytes = |side: &str| said["jobs"][0][side]["bw_bytes"].as_f64().unwrap();
    let sample = tier.curves[0].samples().next().unwrap();
    assert_eq!(sample.bandwidth().unwrap().value, bytes("read") + bytes("write"));
    assert_eq!((tier.curves[0].when.access, tier.curves[0].when.bytes), (Some(Access::IoUring), Some(4096)));
    assert_eq!(tier.latencies.len(), 2);
    assert_eq!(Profile::parse("again", &profile.text().unwrap()).unwrap(), profile);
}

#[test]
fn threads_make_a_curve_over_threads_and_mixes_have_two_latencies() {
    let mixed = "\"rw\": \"randrw\", \"rwmixread\": \"75\", \"iodepth\": \"4\"";
    let eight = format!("{mixed}, \"numjobs\": \"8\"");
    let profile = profile("drive", &document(&[("a", mixed, 75, 25), ("b", &eight, 300, 100)])).unwrap();
    let tier = &profile.tiers[0];
    assert_eq!((tier.curves.len(), tier.curves[0].over), (1, Axis::Threads));
    assert_eq!(tier.curves[0].when.reads_percent, Some(75.0));
    assert_eq!(tier.curves[0].points[1].y.value, 400.0 * 4096.0);
    assert_eq!(tier.latencies.len(), 4);
}

#[test]
fn the_same_job_twice_stays_twice() {
    let options = "\"rw\": \"read\"";
    let profile = profile("drive", &document(&[("a", options, 10, 0), ("b", options, 12, 0)])).unwrap();
    assert_eq!(profile.tiers[0].curves.len(), 2);
}

#[test]
fn what_cannot_be_told_is_refused() {
    let ok = document(&[("a", "\"rw\": \"read\"", 10, 0)]);
    for (text, said) in [
        ("{\"fio version\": 3".to_owned(), "not what fio"),
        ("{\"fio version\": \"fio-3\"}".to_owned(), "missing field `jobs`"),
        (ok.replace("\"error\": 0", "\"error\": 5"), "the job failed (error=5, job=a)"),
        (ok.replace("\"4k\"", "\"4k,8k\""), "not one size"),
        (document(&[("a", "\"rw\": \"read\"", 0, 0)]), "moved nothing"),
        (document(&[("a", "\"iodepth\": \"many\"", 1, 0)]), "is no number"),
        (document(&[("a", "", 1, 0), ("a", "", 1, 0)]), "--group_reporting"),
        (document(&[]), "no job"),
    ] {
        let error = profile("drive", &text).unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}
