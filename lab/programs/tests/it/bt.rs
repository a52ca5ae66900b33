//! BT: the published norms, and the same bits for every number of threads and after going on from a saved field.

use crate::support::{args, directory, options};
use forebay_checkpoint::{Checkpoint, Options};
use forebay_programs::bt::{self, Class, Mode, Problem, Saved, State, TOLERANCE};
use forebay_space::Mechanism;

fn run(class: Class, threads: usize) -> (State, f64) {
    let problem = Problem::of(class);
    let mut state = State::new(problem, threads).expect("a state");
    (0..problem.steps).for_each(|_| state.advance(threads));
    let norms = state.norms(threads);
    (state, norms.difference(class))
}

#[test]
fn the_smallest_class_has_the_published_norms() {
    let (state, difference) = run(Class::S, 2);
    assert_eq!(state.step(), 60);
    assert!(difference <= TOLERANCE, "{difference:e}");
}

#[test]
fn class_w_has_the_published_norms() {
    let (_, difference) = run(Class::W, 2);
    assert!(difference <= TOLERANCE, "{difference:e}");
}

#[test]
fn a_step_left_out_is_seen() {
    let problem = Problem::of(Class::S);
    let mut state = State::new(problem, 1).expect("a state");
    (1..problem.steps).for_each(|_| state.advance(1));
    assert!(state.norms(1).difference(Class::S) > 100.0 * TOLERANCE);
}

#[test]
fn threads_and_a_saved_field_change_no_bit() {
    let problem = Problem { steps: 6, ..Problem::of(Class::S) };
    let mut whole = State::new(problem, 1).expect("a state");
    let mut saved = (0, Vec::new());
    for step in 1..=problem.steps {
        whole.advance(1);
        if step == 3 {
            saved = (whole.step(), whole.u().to_vec());
        }
    }
    let mut again = State::new(problem, 5).expect("a state");
    again.restore(saved.0, &saved.1).expect("restored");
    while again.step() < problem.steps {
        again.advance(5);
    }
    assert!(whole == again);
    assert!(again.restore(1, &[0.0; 5]).is_err());
}

/// Ranks of a group: what each of them found out.
fn group(ranks: usize, words: &str) -> Vec<bt::Summary> {
    let directory = directory();
    let args: bt::BtArgs = args(&format!("{}/bt", directory.path().display()), words);
    let summaries = std::thread::scope(|scope| {
        let one = |rank| {
            let (args, options) = (&args, options(rank, ranks, "bt", Mechanism::Space));
            scope.spawn(move || bt::simulate(args, &options).expect("computed").1)
        };
        let all: Vec<_> = (0..ranks).map(one).collect();
        all.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    summaries
}

#[test]
fn ranks_change_no_bit() {
    let (mut state, _) = run(Class::S, 1);
    let norms = state.norms(1);
    for ranks in [1, 4, 9] {
        let all = group(ranks, "--class S");
        assert_eq!(all.len(), ranks);
        assert!(all.iter().all(|summary| summary.norms == norms && summary.ranks == ranks));
    }
}

#[test]
fn dumps_of_every_mode_are_the_published_ones() {
    for (mode, ranks, requests) in [(Mode::Full, 3, 3), (Mode::Simple, 4, 144), (Mode::Epio, 2, 2)] {
        let directory = directory();
        let words = format!("--class S --dump {} --directory {}", mode.name(), directory.path().display());
        let dumped = group(ranks, &words).swap_remove(0).dumps.expect("dumps");
        assert_eq!((dumped.mode, dumped.count, dumped.bytes), (mode, 12, 12 * 12 * 12 * 12 * 40));
        assert_eq!(dumped.requests, 12 * requests);
        let difference = dumped.difference.expect("as often as published");
        assert!(difference <= TOLERANCE, "{} {difference:e}", mode.name());
        let files: Vec<u64> = std::fs::read_dir(directory.path())
            .expect("the folder")
            .map(|file| file.and_then(|file| file.metadata()).expect("a file").len())
            .collect();
        assert_eq!(files.len(), if mode == Mode::Epio { ranks } else { 1 });
        assert_eq!(files.iter().sum::<u64>(), dumped.bytes);
    }
}

#[test]
fn a_checkpoint_of_either_kind_leads_to_the_same_bits() {
    let problem = Problem { steps: 5, ..Problem::of(Class::S) };
    let mut whole = State::new(problem, 1).expect("a state");
    (0..problem.steps).for_each(|_| whole.advance(1));
    for saved in [Saved::U, Saved::All] {
        let dir = tempfile::tempdir().expect("a folder");
        let open = |state: &State| {
            let mut checkpoint = Checkpoint::open(dir.path(), &Options::default()).expect("a checkpoint");
            saved.protect(&mut checkpoint, state).expect("protected");
            checkpoint
        };
        let mut state = State::new(problem, 1).expect("a state");
        let mut checkpoint = open(&state);
        assert!(saved.restore(&mut checkpoint, &mut state).expect("looked").is_none());
        for _ in 0..3 {
            state.advance(1);
            saved.save(&mut checkpoint, &state).expect("saved");
        }
        checkpoint.close().expect("closed");
        let mut again = State::new(problem, 1).expect("a state");
        let mut checkpoint = open(&again);
        let restored = saved.restore(&mut checkpoint, &mut again).expect("restored").expect("a step");
        assert_eq!((restored.step, restored.lost, again.step()), (3, None, 3));
        assert_eq!(state.u(), again.u());
        // Of the field alone the right-hand side does not come back: no step needs it.
        assert_eq!(state == again, saved == Saved::All);
        (3..problem.steps).for_each(|_| again.advance(1));
        assert!(again == whole, "{}", saved.name());
        checkpoint.close().expect("closed");
    }
}
