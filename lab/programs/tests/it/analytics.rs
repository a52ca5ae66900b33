//! Both analytics on the channels of both simulations, through both mechanisms, compared with findings computed from
//! the arrays themselves.

use crate::support::{args, directory, options};
use forebay_programs::analytics::work::{of_block, of_stretch, Findings, Stretch};
use forebay_programs::analytics::{follow, Work, FILE_NAME};
use forebay_programs::{amr, objects, particles, AmrArgs, ParticlesArgs, ReadOnlyArgs, WriterArgs};
use forebay_space::{Kind, Mechanism, OpenOptions, Reader};
use std::path::Path;

const WORKS: [Work; 2] = [Work::ReadOnly, Work::Multiply { again: 1 }];

#[derive(Clone, Copy)]
enum Simulation {
    Amr,
    Particles,
}

/// Findings of the whole version, computed without analytics ranks.
fn recompute(simulation: Simulation, reader: &mut Reader, work: Work) -> Findings {
    let mut findings = Findings::default();
    match simulation {
        Simulation::Amr => {
            let counts: Vec<u64> = reader.get_array("counts", None).unwrap();
            let all = counts.iter().enumerate().flat_map(|(r, &n)| (0..n).map(move |i| format!("o{r}-{i}")));
            for (place, name) in all.enumerate() {
                let object: Vec<f64> = reader.get_array(&name, None).unwrap();
                findings.add(&of_block(work, &object, place as u64).unwrap());
            }
        }
        Simulation::Particles => {
            for (which, name) in ["ions", "ions_before"].into_iter().enumerate() {
                let (_, shape) = reader.array(name).unwrap();
                let (ranks, rows, columns) = (shape[0] as usize, shape[1] as usize, shape[2] as usize);
                let values: Vec<f64> = reader.get_array(name, None).unwrap();
                for (rank, values) in values.chunks_exact(rows * columns).enumerate() {
                    let array = (which * ranks + rank) as u64;
                    findings.add(&of_stretch(work, &Stretch { values, rows, first: 0, columns, array }));
                }
            }
        }
    }
    findings
}

/// One simulation with both analytics beside it.
fn couple(simulation: Simulation, kind: Mechanism, writers: usize, readers: usize, reading: &str) {
    let directory = directory();
    let channel = &format!("{}/data", directory.path().display());
    let declared: Vec<_> = [("read-only", readers), ("matrix-multiply", readers), ("check", 1)]
        .map(|(c, n)| (c.to_owned(), n as u32))
        .into();
    let wanted = std::thread::scope(|scope| {
        for rank in 0..writers {
            let options =
                OpenOptions { readers: declared.clone(), ..options(rank, writers, "simulation", kind) };
            scope.spawn(move || match simulation {
                Simulation::Amr => {
                    let words = "--scale 0.0002 --variables 4 --steps 3 --refine-every 1 --batch 8";
                    drop(amr::simulate(&args::<AmrArgs>(channel, words), &options).unwrap());
                }
                Simulation::Particles => {
                    let words = "--scale 0.0005 --steps 3 --full-state";
                    drop(particles::simulate(&args::<ParticlesArgs>(channel, words), &options).unwrap());
                }
            });
        }
        for work in WORKS {
            for rank in 0..readers {
                let out = directory.path().join(work.name());
                let args = ReadOnlyArgs { out: Some(out), ..args(channel, reading) };
                let options = options(rank, readers, work.name(), kind);
                scope.spawn(move || {
                    let account = follow(&args, work, &options).unwrap();
                    assert_eq!(account.versions, 3);
                });
            }
        }
        let mut reader = Reader::open(channel, &options(0, 1, "check", kind)).unwrap();
        let mut wanted = WORKS.map(|_| Vec::new());
        while reader.begin_step(None).unwrap().is_some() {
            for (wanted, work) in wanted.iter_mut().zip(WORKS) {
                wanted.push(recompute(simulation, &mut reader, work));
            }
            reader.end_step().unwrap();
        }
        reader.close().unwrap();
        wanted
    });
    compare(directory.path(), &wanted);
}

/// The lines that the analytics wrote against what they should have found.
fn compare(directory: &Path, wanted: &[Vec<Findings>; 2]) {
    for (work, wanted) in WORKS.into_iter().zip(wanted) {
        let text = std::fs::read_to_string(directory.join(work.name()).join(FILE_NAME)).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), wanted.len());
        for (version, (line, wanted)) in lines.iter().zip(wanted).enumerate() {
            assert_eq!((&line["version"], &line["work"]), (&version.into(), &work.name().into()));
            assert_eq!(line["values"], wanted.values);
            assert_eq!(line["products"], wanted.products);
            assert_eq!(line["checksum"], format!("{:016x}", wanted.checksum));
            assert_eq!((line["min"].as_f64(), line["max"].as_f64()), (Some(wanted.min), Some(wanted.max)));
            let sum = line["sum"].as_f64().unwrap();
            assert!((sum - wanted.sum).abs() <= 1e-9 * wanted.sum.abs().max(1.0), "{sum} {}", wanted.sum);
            assert!(wanted.values > 0 && wanted.min < wanted.max);
            assert_eq!(wanted.products > 0, work != Work::ReadOnly);
        }
    }
}

#[test]
fn analytics_of_the_adaptive_stencil_find_what_is_there() {
    couple(Simulation::Amr, Mechanism::Space, 2, 2, "--batch 32");
    couple(Simulation::Amr, Mechanism::Space, 2, 3, "--in-place");
    couple(Simulation::Amr, Mechanism::Files, 1, 2, "--batch 3");
}

#[test]
fn analytics_of_the_particles_find_what_is_there() {
    couple(Simulation::Particles, Mechanism::Space, 2, 2, "");
    couple(Simulation::Particles, Mechanism::Space, 2, 3, "--in-place");
    couple(Simulation::Particles, Mechanism::Files, 2, 1, "");
}

#[test]
fn a_channel_of_another_program_is_refused() {
    let directory = directory();
    let channel = &format!("{}/data", directory.path().display());
    objects::write(
        &args::<WriterArgs>(channel, "--steps 1 --count 1"),
        &options(0, 1, "writer", Mechanism::Space),
    )
    .unwrap();
    let args = ReadOnlyArgs { out: Some(directory.path().join("out")), ..args(channel, "") };
    let error = follow(&args, Work::ReadOnly, &options(0, 1, "read-only", Mechanism::Space)).unwrap_err();
    assert_eq!(error.kind(), Kind::Usage);
}
