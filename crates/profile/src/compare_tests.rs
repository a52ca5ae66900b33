//! Comparisons: what is the same, what is not, and what cannot be said.

use super::*;
use crate::platforms::platform;

#[test]
fn overlapping_error_bars_are_the_same() {
    let of = |value, error| Estimate::new(value, error);
    assert_eq!(verdict(of(10.0, 1.0), of(11.9, 1.0)), Verdict::Same);
    assert_eq!(verdict(of(10.0, 1.0), of(12.0, 1.0)), Verdict::Same, "bars that touch overlap");
    assert_eq!(verdict(of(10.0, 1.0), of(12.1, 1.0)), Verdict::Higher);
    assert_eq!(verdict(of(10.0, 0.5), of(9.0, 0.4)), Verdict::Lower);
    assert_eq!(verdict(of(10.0, 0.0), of(10.0, 0.0)), Verdict::Same);
    assert_eq!(verdict(Estimate::bare(10.0), of(90.0, 0.1)), Verdict::Open);
}

#[test]
fn the_errors_of_a_ratio_add_up() {
    let both = ratio(Estimate::new(10.0, 1.0), Estimate::new(20.0, 1.0));
    assert_eq!(both.value, 2.0);
    assert!((both.error.unwrap() - 0.3).abs() < 1e-12, "{both:?}");
    assert_eq!(ratio(Estimate::bare(10.0), Estimate::new(20.0, 1.0)).error, None);
}

#[test]
fn a_profile_is_the_same_as_itself() {
    for name in crate::platforms::names() {
        let profile = platform(name).unwrap();
        let comparison = compare(&profile, &profile);
        assert!(comparison.only_a.is_empty() && comparison.only_b.is_empty(), "{name}");
        for pair in &comparison.pairs {
            assert_eq!(pair.ratio.value, 1.0, "{name}: {pair:?}");
            assert!(matches!(pair.verdict, Verdict::Same | Verdict::Open), "{name}: {pair:?}");
        }
    }
}

#[test]
fn the_generations_of_optane_differ_as_the_study_says() {
    let comparison = compare(&platform("optane-gen1").unwrap(), &platform("optane-gen3").unwrap());
    let stream = |place: &str, horizon, kernel: &str| {
        let found = comparison.pairs.iter().find(|p| {
            (p.measure, p.tier.as_str(), p.when.horizon, p.what.as_str())
                == (Measure::Stream, place, horizon, kernel)
        });
        found.unwrap_or_else(|| panic!("{place} {kernel}"))
    };
    let none = forebay_terms::Horizon::None;
    let copy = stream("pmem to pmem", none, "copy");
    assert_eq!(copy.verdict, Verdict::Higher);
    assert!((copy.ratio.value - 23.0 / 15.5).abs() < 1e-12, "{copy:?}");
    // Dram gains less than Optane.
    assert!(stream("dram to dram", none, "copy").ratio.value < copy.ratio.value);
    // Printed as 3 and 4: whole numbers.
    let each = stream("pmem to pmem", forebay_terms::Horizon::Write, "copy");
    assert!(each.ratio.error.unwrap() / each.ratio.value > 0.15, "{each:?}");
}

#[test]
fn tiers_meet_by_name_then_by_kind_and_the_rest_is_named() {
    let (optane, dram) = (platform("optane-gen1").unwrap(), platform("ddr5-4800").unwrap());
    let comparison = compare(&optane, &dram);
    assert_eq!(comparison.only_a, ["pmem"]);
    assert!(comparison.only_b.is_empty());
    let (mut one, two) = (platform("p4800x").unwrap(), platform("p3700").unwrap());
    one.tiers[0].name = "direct:/scratch".into();
    let comparison = compare(&one, &two);
    assert!(comparison.only_a.is_empty() && comparison.pairs.iter().any(|p| p.measure == Measure::Knee));
    let p50 = comparison.pairs.iter().find(|p| p.measure == Measure::Latency).unwrap();
    assert_eq!(p50.verdict, Verdict::Higher, "flash is slower than 3D XPoint");
}

#[test]
fn what_has_a_caveat_is_not_compared() {
    let mut profile = platform("ddr4-2666").unwrap();
    let before = compare(&profile, &profile).pairs.len();
    profile.tiers[0].curves[0].caveat = Some("a cache answered".into());
    let after = compare(&profile, &profile).pairs;
    assert!(after.len() < before);
}

#[test]
fn agreement_counts_what_is_same_what_is_close_and_steps() {
    use crate::{Axis, Citation, Curve, Point, Unit};
    let profile = |points: [(f64, f64, f64); 3]| {
        let mut profile = Profile::new("x", "2026");
        let mut tier = Tier::new("direct", forebay_terms::TierKind::Direct);
        let when = Conditions { threads: Some(1), reads_percent: Some(100.0), ..Conditions::default() };
        let points = points.map(|(x, y, error)| Point::new(x, Estimate::new(y, error))).to_vec();
        let (over, unit, source) = (Axis::Depth, Unit::Operations, Citation::of("probe"));
        tier.curves.push(Curve { when, over, unit, source, caveat: None, points });
        profile.tiers.push(tier);
        profile
    };
    let a = profile([(1.0, 10.0, 1.0), (2.0, 20.0, 0.1), (4.0, 30.0, 3.0)]);
    // Same and close; close but not same; neither. The knee is one step earlier.
    let b = profile([(1.0, 10.9, 0.5), (2.0, 20.3, 0.1), (4.0, 11.0, 0.1)]);
    let counted = |a: &Profile, b: &Profile| compare(a, b).agreement();
    let itself = counted(&a, &a);
    assert_eq!((itself.points, itself.points_same, itself.points_close), (3, 3, 3));
    assert_eq!((itself.knees, itself.knees_within_step, itself.knees_same, itself.knees_close), (1, 1, 1, 1));
    let other = counted(&a, &b);
    assert_eq!((other.points, other.points_same, other.points_close), (3, 1, 2));
    // 4 deep and 2 deep are a step apart; 30 and 20.3 are not close.
    assert_eq!((other.knees, other.knees_within_step, other.knees_same, other.knees_close), (1, 1, 0, 0));
    let flat = profile([(1.0, 30.0, 1.0), (2.0, 30.0, 1.0), (4.0, 30.0, 1.0)]);
    let far = counted(&a, &flat);
    assert_eq!((far.knees_within_step, far.knees_same, far.knees_close), (0, 1, 1), "4 deep and 1 deep");
}
