//! The media of the shipped platforms, and the words that name them.

use super::*;
use forebay_profile::platforms::platform;

fn optane() -> Medium {
    let wanted: Wanted = "optane-gen1:pmem/64".parse().unwrap();
    let profile = platform(&wanted.profile).unwrap();
    wanted.media(&profile).unwrap().remove(0).1
}

#[test]
fn words_name_profile_tier_and_k() {
    let read = |text: &str| text.parse::<Wanted>().map(|w| (w.profile, w.tier, w.k));
    let said = |profile: &str, tier: Option<&str>, k| (profile.to_string(), tier.map(str::to_string), k);
    assert_eq!(read("optane-gen1:pmem/64").unwrap(), said("optane-gen1", Some("pmem"), Some(64.0)));
    assert_eq!(read("optane-gen1/2.5").unwrap(), said("optane-gen1", None, Some(2.5)));
    assert_eq!(read("./a.toml:direct:/scratch").unwrap(), said("./a.toml", Some("direct:/scratch"), None));
    assert_eq!(read("p3700").unwrap(), said("p3700", None, None));
    for wrong in ["", ":pmem", "x:", "x/0", "x/-3", "x/0.5", "x:pmem/inf"] {
        assert_eq!(read(wrong).unwrap_err().kind(), Kind::Usage, "{wrong}");
    }
    let profile = platform("optane-gen1").unwrap();
    let unknown = "optane-gen1:floppy".parse::<Wanted>().unwrap().media(&profile).unwrap_err();
    assert!(unknown.hint_text().unwrap().contains("dram, pmem"), "{unknown}");
    assert_eq!("optane-gen1".parse::<Wanted>().unwrap().media(&profile).unwrap().len(), 2);
}

#[test]
fn bandwidths_are_the_published_ones_divided_by_k() {
    let medium = optane();
    assert_eq!(medium.access, [Some(Access::Load), Some(Access::NtStore)]);
    assert_eq!(medium.base_bytes, [256, 256]);
    let curves = medium.slowed(64.0);
    curves.check().unwrap();
    let of =
        |curve: &throttle::Curve, threads: f64| (curve.at(threads).unwrap() * 64.0 / 1e9 * 100.0).round();
    assert_eq!([1.0, 8.0, 24.0].map(|n| of(&curves.read_bandwidth, n)), [288.0, 2113.0, 3756.0]);
    assert_eq!([1.0, 4.0, 24.0].map(|n| of(&curves.write_bandwidth, n)), [413.0, 1250.0, 750.0]);
    assert_eq!((curves.read_latency_ns, curves.write_latency_ns), (0, 0), "curves over threads hold them");
    assert_eq!(medium.busiest(), 24);
}

#[test]
fn sizes_count_relative_to_the_base() {
    let medium = optane();
    let sizes = &medium.curves.read_granularity;
    assert_eq!(sizes.at_size(256), Some(1.0));
    assert!((sizes.at_size(64).unwrap() - 9.67 / 33.65).abs() < 1e-9);
    assert!((sizes.at_size(2 << 20).unwrap() - 37.93 / 33.65).abs() < 1e-9);
}

#[test]
fn remote_factors_come_from_curves_that_differ_in_nothing_else() {
    let medium = optane();
    let writes = &medium.curves.write_remote;
    assert!((writes.at(8.0).unwrap() - 683.5 / 8013.11).abs() < 1e-9, "sequential, the largest size");
    assert_eq!(writes.0.len(), 6);
    // One number: of 16 threads and 4 KiB.
    let reads = &medium.curves.read_remote;
    let here = 34.88e9 * 25.98 / 33.65;
    assert_eq!(reads.0.len(), 1);
    assert!((reads.0[0].1 - (29516.27f64 * 1048576.0 / here).min(1.0)).abs() < 1e-9);
    let far = Conditions {
        locality: Locality::Remote,
        reads_percent: Some(0.0),
        threads: Some(8),
        bytes: Some(256),
        ..Conditions::default()
    };
    let near = Conditions { locality: Locality::Local, ..far.clone() };
    let factor = medium.rate(&far).unwrap() / medium.rate(&near).unwrap();
    assert!((factor - 683.5 / 8013.11).abs() < 1e-9);
}

#[test]
fn published_mixes_come_back_by_the_throttles_rule() {
    let medium = optane();
    let rate = |reads: f64| {
        let when = Conditions { reads_percent: Some(reads), threads: Some(4), ..Conditions::default() };
        medium.rate(&when).unwrap()
    };
    assert_eq!(medium.mixes, [0.0, 50.0, 66.7, 75.0, 80.0, 100.0]);
    // Another figure of the publication says more of 4 threads that only read or only write: in between factors count.
    let alone = |reads: f64, all: f64, none: f64| 1.0 / (reads / all + (1.0 - reads) / none);
    for (reads, published) in [(50.0, 6.9), (66.7, 10.41), (75.0, 12.75), (80.0, 13.84)] {
        let wanted = published / alone(reads / 100.0, 14.62, 13.51);
        let got = rate(reads) / alone(reads / 100.0, rate(100.0), rate(0.0));
        assert!((got / wanted - 1.0).abs() < 1e-9, "{reads}: {got} for {wanted}");
    }
}

#[test]
fn every_platform_is_a_medium_as_far_as_it_is_known() {
    for name in forebay_profile::platforms::names() {
        let profile = platform(name).unwrap();
        for tier in &profile.tiers {
            match Medium::of(tier) {
                Ok(medium) => {
                    medium.slowed(1000.0).check().unwrap();
                    assert!(medium.fastest() > 1e8, "{name} {}", tier.name);
                }
                Err(e) => assert_eq!(e.kind(), Kind::Usage, "{name} {}: {e}", tier.name),
            }
        }
    }
    // A drive: reads over depth, of writes only the highest.
    let profile = platform("p4800x").unwrap();
    let medium = Medium::of(&profile.tiers[0]).unwrap();
    assert_eq!(medium.base_bytes[READ], 4096);
    assert!(medium.curves.read_bandwidth.0.len() > 1);
    assert_eq!(medium.curves.write_bandwidth.0.len(), 1);
    assert!(medium.notes.iter().any(|n| n.contains("writes only the highest")), "{:?}", medium.notes);
}

#[test]
fn latencies_count_where_the_bandwidth_is_level_and_grow_with_k() {
    use forebay_profile::{Citation, Estimate, Latency, StatedKnee, Unit};
    let mut tier = Tier::new("direct", forebay_tier::TierKind::Direct);
    let when = Conditions { reads_percent: Some(100.0), bytes: Some(1 << 20), ..Conditions::default() };
    let source = Citation::of("x");
    tier.knees.push(StatedKnee {
        when: when.clone(),
        unit: Unit::Gigabytes,
        highest: Estimate::bare(2.0),
        source: source.clone(),
        note: None,
    });
    for (operation, ns) in [(Operation::Read, 80_000.0), (Operation::Persist, 900.4)] {
        let mut latency = Latency::new(operation, Load::Idle, Conditions::default(), source.clone());
        latency.mean_ns = Some(Estimate::bare(ns));
        tier.latencies.push(latency);
    }
    let medium = Medium::of(&tier).unwrap();
    let curves = medium.slowed(10.0);
    assert_eq!((curves.read_latency_ns, curves.persist_latency_ns), (800_000, 9000));
    assert_eq!(curves.write_bandwidth.0, [], "unknown, so without effect");
    let rate = |threads| medium.rate(&Conditions { threads: Some(threads), ..when.clone() }).unwrap();
    assert!((rate(1) - (1 << 20) as f64 * 1e9 / (80_000.0 + 524_288.0)).abs() < 1.0);
    assert!((rate(8) - 2e9).abs() < 1.0);
    assert_eq!(medium.rate(&Conditions { reads_percent: Some(50.0), ..when }), None);
    assert_eq!(Medium::of(&Tier::new("x", forebay_tier::TierKind::Dram)).unwrap_err().kind(), Kind::Usage);
}
