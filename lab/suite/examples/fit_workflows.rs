//! Fits what a study of 18 workflows does not print, and judges the fit. Everything printed is of the model.
//!
//! `cargo run --release -p forebay-suite --example fit_workflows -- VERB [STARTS] [SEED] [PRIOR]`, VERB being
//!
//! - `free`, `frozen`: searches, prints a line for each start and at the end the set, as `suite/*.toml` holds it;
//! - `left-out`: for each number of ranks, fits to the 12 other workflows and predicts its six; several fits vote by
//!   the mean of their normalised times. PRIOR is for this one alone, and 0 for none;
//! - `shuffled`: fits winners that were exchanged among the workflows, and the true ones, with the same budget.
//!
//! A start takes some seconds. It uses one processor; run it with `nice`.

use forebay_model::device::{Device, OURS};
use forebay_profile::platforms;
use forebay_suite::fit::{fit, Budget, Fitted, Goal};
use forebay_suite::judge::{self, regret, Verdict};
use forebay_suite::search::Random;
use forebay_suite::{station, times, Interference, Set, Times, COUNT, PLATFORM, RANGES, STUDIED, TIER};
use forebay_tier::{Error, Kind, Result};

/// How many of the best fits vote on what was left out.
const VOTES: usize = 5;
/// The prior where ranks are left out. Of 0, 0.05 and 0.2 this predicts with the least regret; the six that are left
/// out chose it, so that this one value is fitted to them.
const PRIOR: f64 = 0.2;
/// Shuffles of the control.
const SHUFFLES: u64 = 3;

fn search(device: &Device, interference: Interference, budget: &Budget, command: &str) -> Result<()> {
    let kept = Set::kept(interference).ok().map(|set| set.values);
    let mut log = |start: usize, cost: f64, best: &Fitted| {
        let verdict = Verdict::on(device, interference, &best.values);
        println!(
            "start {start:3}: cost {cost:6.3}; best {:6.3}: {}/{COUNT} winners, {} of them sure, {}/15 percentages",
            best.cost,
            verdict.winners(),
            verdict.sure(),
            verdict.met()
        );
    };
    let ends = fit((device, interference), &Goal::study(), budget, kept.as_ref(), &mut log);
    let set = Set { interference, command: command.to_owned(), values: ends[0].values };
    let text = toml::to_string(&set).map_err(|e| Error::new(Kind::Internal, e.to_string()))?;
    println!("\n{text}");
    for (name, least, most) in RANGES.iter().take(set.free()) {
        println!("# range of {name}: {least} to {most}");
    }
    println!("# on a bound: {}", set.on_a_bound().join(", "));
    Ok(())
}

/// The mean of normalised times over fits.
fn voted(device: &Device, fits: &[Fitted]) -> Times {
    let mut mean = [[0.0; 4]; COUNT];
    for fitted in fits {
        let times = times(&station(device, Interference::Free, &fitted.values), &fitted.values);
        for (row, all) in times.iter().zip(&mut mean) {
            let best = row.iter().fold(f64::INFINITY, |a, b| a.min(*b));
            row.iter().zip(all.iter_mut()).for_each(|(t, m)| *m += t / best / fits.len() as f64);
        }
    }
    mean
}

fn left_out(device: &Device, budget: &Budget, prior: f64) {
    // Of the votes, and of the best fit alone: winners and mean regret.
    let mut predicted = [(0, 0.0); 2];
    for ranks in [8, 16, 24] {
        let goal = Goal { without_ranks: ranks, prior, ..Goal::study() };
        let ends = fit((device, Interference::Free), &goal, budget, None, &mut |_, _, _| ());
        let votes = &ends[..VOTES.min(ends.len())];
        let (times, alone) = (voted(device, votes), voted(device, &ends[..1]));
        println!("without {ranks} ranks: {}/12 fitted, cost {:.3}", goal.winners(&alone), ends[0].cost);
        for (i, studied) in STUDIED.iter().enumerate().filter(|(_, s)| s.ranks == ranks) {
            let off = [&times, &alone].map(|times| regret(&times[i], studied.fastest));
            for ((winners, mean), off) in predicted.iter_mut().zip(off) {
                *winners += usize::from(off <= 0.0);
                *mean += 100.0 * off / COUNT as f64;
            }
            let [votes, alone] = off.map(|off| 100.0 * off);
            println!(
                "  {} {ranks}: regret of the study's winner {votes:.1} %; by the best fit alone {alone:.1} %",
                studied.name
            );
        }
    }
    let (always, by_ranks) = judge::baselines();
    for (who, (winners, mean)) in ["by vote", "by the best fit alone"].iter().zip(predicted) {
        println!("{who}: predicted {winners}/{COUNT}, mean regret {mean:.1} %");
    }
    println!("always S-LocW {always}, the best constant for each number of ranks {by_ranks} (in sample)");
}

fn shuffled(device: &Device, budget: &Budget) {
    let of = |goal: &Goal| {
        let ends = fit((device, Interference::Free), goal, budget, None, &mut |_, _, _| ());
        goal.winners(&times(&station(device, Interference::Free, &ends[0].values), &ends[0].values))
    };
    let mut random = Random::new(budget.seed);
    println!("true winners: {}/{COUNT} fitted", of(&Goal { percentages: false, ..Goal::study() }));
    for shuffle in 0..SHUFFLES {
        println!("shuffle {shuffle}: {}/{COUNT} fitted", of(&Goal::shuffled(&mut random)));
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, usual: u64| args.get(i).and_then(|t| t.parse().ok()).unwrap_or(usual);
    let (starts, seed) = (number(1, 10), number(2, 1));
    let budget = Budget { starts: starts as usize, generations: 400, points: 24, seed };
    let device = Device::of(&platforms::platform(PLATFORM)?, TIER, &OURS)?;
    let verb = args.first().map_or("", String::as_str);
    let command =
        format!("cargo run --release -p forebay-suite --example fit_workflows -- {verb} {starts} {seed}");
    match verb {
        "free" => search(&device, Interference::Free, &budget, &command)?,
        "frozen" => search(&device, Interference::Frozen, &budget, &command)?,
        "left-out" => left_out(&device, &budget, args.get(3).and_then(|t| t.parse().ok()).unwrap_or(PRIOR)),
        "shuffled" => shuffled(&device, &budget),
        _ => {
            return Err(Error::new(Kind::Usage, format!("`{verb}` is nothing to do"))
                .hint("free, frozen, left-out or shuffled"))
        }
    }
    Ok(())
}
