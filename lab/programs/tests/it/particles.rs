//! The particle code on several ranks, compared bit for bit with the same computation in one process.

use crate::support::{args, directory, options};
use forebay_programs::particles::plasma::{Plasma, Setup, Totals, ENERGY_TOLERANCE};
use forebay_programs::particles::simulate;
use forebay_programs::ParticlesArgs;
use forebay_space::{Kind, Mechanism, OpenOptions, Reader};

/// All ranks in one process, without a space: calls `look` after every step, with what is conserved.
fn reference(setup: &Setup, ranks: usize, steps: usize, mut look: impl FnMut(&[Plasma], Totals)) {
    let mut all: Vec<Plasma> = (0..ranks).map(|rank| Plasma::new(setup, rank)).collect();
    let field = |all: &mut [Plasma]| {
        let (mut total, mut part) = (vec![0.0; setup.contribution()], vec![0.0; setup.contribution()]);
        for plasma in all.iter() {
            plasma.contribute(&mut part);
            total.iter_mut().zip(&part).for_each(|(sum, x)| *sum += x);
        }
        all.iter_mut().map(|plasma| plasma.take_field(&total).unwrap()).last().unwrap()
    };
    let now = field(&mut all);
    look(&all, now);
    for _ in 0..steps {
        all.iter_mut().for_each(Plasma::advance_to_middle);
        field(&mut all);
        all.iter_mut().for_each(Plasma::advance_to_end);
        let now = field(&mut all);
        look(&all, now);
    }
}

fn equal_to_the_reference(kind: Mechanism, ranks: usize) {
    let directory = directory();
    let channel = &format!("{}/particles", directory.path().display());
    let args: &ParticlesArgs =
        &args(channel, "--scale 0.001 --steps 3 --output-every 2 --full-state --seed 5");
    let setup = Setup::of_scale(0.001, args.dt, 5).unwrap();
    let mut wanted = Vec::new();
    reference(&setup, ranks, 6, |all, _| {
        let join = |of: fn(&Plasma) -> &[f64]| all.iter().flat_map(|p| of(p).to_vec()).collect::<Vec<f64>>();
        wanted.push((join(Plasma::state), join(Plasma::before), all[0].potential().to_vec()));
    });
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let readers = vec![("check".to_owned(), 1)];
            let options = OpenOptions { readers, ..options(rank, ranks, "particles", kind) };
            scope.spawn(move || simulate(args, &options).unwrap());
        }
        let mut reader = Reader::open(channel, &options(0, 1, "check", kind)).unwrap();
        for version in 0..3 {
            assert_eq!(reader.begin_step(None).unwrap(), Some(version));
            let (ions, before, phi) = &wanted[2 * version as usize + 2];
            assert!(reader.get_array::<f64>("ions", None).unwrap() == *ions, "version {version}");
            assert!(reader.get_array::<f64>("ions_before", None).unwrap() == *before, "version {version}");
            assert!(reader.get_array::<f64>("phi", None).unwrap() == *phi, "version {version}");
            reader.end_step().unwrap();
        }
        assert_eq!(reader.begin_step(None).unwrap(), None);
    });
    assert_ne!(wanted[0].0, wanted[6].0, "the particles move");
}

#[test]
fn ranks_as_processes_give_what_one_process_computes() {
    equal_to_the_reference(Mechanism::Space, 3);
    equal_to_the_reference(Mechanism::Space, 1);
    equal_to_the_reference(Mechanism::Files, 2);
}

/// Largest drift of the energy over a time of 4.
fn drift(dt: f64) -> f64 {
    let setup = Setup::of_scale(0.004, dt, 1).unwrap();
    let mut energies = Vec::new();
    let mut first = None;
    reference(&setup, 1, (4.0 / dt).round() as usize, |_, now| {
        let at_first = *first.get_or_insert(now);
        assert_eq!((now.particles, now.charge), (at_first.particles, at_first.charge));
        energies.push(now.energy());
    });
    energies.iter().map(|e| ((e - energies[0]) / energies[0]).abs()).fold(0.0, f64::max)
}

#[test]
fn energy_drifts_by_the_error_of_the_time_step_only() {
    let (coarse, fine) = (drift(1.6), drift(0.1));
    assert!(fine < ENERGY_TOLERANCE / 10.0, "drift {fine:e}");
    assert!(fine < coarse / 3.0, "a sixteenth of the step: {coarse:e} -> {fine:e}");
}

#[test]
fn field_energy_really_changes_into_motion() {
    let setup = Setup::of_scale(0.004, 0.1, 1).unwrap();
    let mut all = Vec::new();
    reference(&setup, 1, 40, |_, now| all.push(now));
    let exchanged = all.iter().map(|t| (t.field - all[0].field).abs()).fold(0.0, f64::max);
    let drifted = all.iter().map(|t| (t.energy() - all[0].energy()).abs()).fold(0.0, f64::max);
    assert!(exchanged > 10.0 * drifted, "exchanged {exchanged:e}, drifted {drifted:e}");
}

#[test]
fn sizes_follow_the_scale_and_what_makes_no_sense_is_refused() {
    let setup = Setup::of_scale(1.0, 0.1, 1).unwrap();
    assert!((228_999_000..=229_000_000).contains(&(setup.particles * 48)));
    assert_eq!(setup.grid.side, 180);
    for words in ["--scale 0", "--dt 0", "--output-every 0"] {
        let error = simulate(&args("/nowhere/x", words), &OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{words}");
    }
}

/// A step far too long breaks the invariant, and that is an error on every rank, not an end.
#[test]
fn an_energy_that_drifts_ends_the_run_with_an_error() {
    let directory = directory();
    let channel = &format!("{}/particles", directory.path().display());
    let args = args(channel, "--scale 0.001 --steps 400 --dt 40");
    let error = simulate(&args, &options(0, 1, "particles", Mechanism::Space)).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage, "{error:?}");
}
