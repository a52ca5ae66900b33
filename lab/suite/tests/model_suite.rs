//! The two kept sets of values of the 18 workflows: what the documents say of them still holds of the model.

use std::path::Path;

use forebay_model::device::{Device, OURS};
use forebay_profile::platforms::platform;
use forebay_suite::judge::{baselines, perturbed, Verdict};
use forebay_suite::{Interference, Set, PLATFORM, RANGES, STUDIED, TIER, UNPRINTED, VALUES};

fn device() -> Device {
    Device::of(&platform(PLATFORM).unwrap(), TIER, &OURS).unwrap()
}

fn verdict(interference: Interference) -> Verdict {
    Verdict::on(&device(), interference, &Set::kept(interference).unwrap().values)
}

#[test]
fn with_free_interference_every_winner_is_met_and_most_percentages() {
    let verdict = verdict(Interference::Free);
    assert_eq!(verdict.winners(), 18, "{:?}", verdict.margins);
    assert_eq!(verdict.sure(), 17, "{:?}", verdict.margins);
    assert_eq!(verdict.met(), 14, "{:?}", verdict.claims);
}

#[test]
fn with_frozen_interference_it_does_better_than_without_a_model() {
    let verdict = verdict(Interference::Frozen);
    let (always, by_ranks) = baselines();
    assert_eq!((always, by_ranks), (8, 11));
    assert_eq!((verdict.winners(), verdict.met()), (14, 7), "{:?}", verdict.margins);
}

#[test]
fn the_winners_lose_little_when_every_value_is_off_by_a_tenth() {
    let kept = Set::kept(Interference::Free).unwrap();
    let judged = perturbed(&device(), Interference::Free, &kept.values, (0.1, 200, 1));
    assert!(judged.draws == 200 && judged.mean_regret <= 0.02, "{judged:?}");
    // Values that are off far more must be noticed, or the measure measures nothing.
    let far = perturbed(&device(), Interference::Free, &kept.values, (0.9, 200, 1));
    assert!(far.mean_regret > 2.0 * judged.mean_regret && far.mean_winners < judged.mean_winners, "{far:?}");
}

#[test]
fn more_ranks_never_turn_a_serial_workflow_parallel() {
    let times = verdict(Interference::Free).times;
    let is_parallel = |i: usize| {
        let best = (0..4).min_by(|a, b| times[i][*a].total_cmp(&times[i][*b])).unwrap();
        best >= 2
    };
    for (i, pair) in STUDIED.windows(2).enumerate().filter(|(_, w)| w[0].family == w[1].family) {
        assert!(pair[0].ranks < pair[1].ranks);
        assert!(is_parallel(i) || !is_parallel(i + 1), "{} {}", pair[0].name, pair[1].ranks);
    }
}

#[test]
fn kept_values_lie_in_their_ranges_and_are_no_more_than_twenty() {
    const { assert!(VALUES <= 20 && UNPRINTED < VALUES) };
    for interference in [Interference::Free, Interference::Frozen] {
        let set = Set::kept(interference).unwrap();
        for ((name, least, most), value) in RANGES.iter().zip(set.values.numbers()).take(set.free()) {
            assert!((least - 1e-9..=most + 1e-9).contains(&value), "{interference:?} {name}: {value}");
        }
        assert!(set.command.contains("--example fit_workflows"));
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fit_workflows.rs").exists());
    }
}
