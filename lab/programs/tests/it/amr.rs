//! The adaptive stencil on several ranks: bit for bit what one rank computes, with every invariant looked at.

use crate::support::{args, directory, options};
use forebay_programs::amr::simulate;
use forebay_space::{Kind, Mechanism, OpenOptions, Reader};

/// Every object of every version, in the order of the curve.
fn run(kind: Mechanism, ranks: usize, words: &str) -> Vec<Vec<Vec<f64>>> {
    let directory = directory();
    let channel = &format!("{}/amr", directory.path().display());
    let args = &args(channel, words);
    std::thread::scope(|scope| {
        let simulations: Vec<_> = (0..ranks)
            .map(|rank| {
                let readers = vec![("check".to_owned(), 1)];
                let options = OpenOptions { readers, ..options(rank, ranks, "amr", kind) };
                scope.spawn(move || simulate(args, &options).unwrap())
            })
            .collect();
        let mut reader = Reader::open(channel, &options(0, 1, "check", kind)).unwrap();
        let mut versions = Vec::new();
        while reader.begin_step(None).unwrap().is_some() {
            let counts: Vec<u64> = reader.get_array("counts", None).unwrap();
            assert_eq!(counts.len(), ranks);
            let mut objects = Vec::new();
            for (rank, &count) in counts.iter().enumerate() {
                for index in 0..count {
                    objects.push(reader.get_array(&format!("o{rank}-{index}"), None).unwrap());
                }
            }
            versions.push(objects);
            reader.end_step().unwrap();
        }
        for (account, adapted) in simulations.into_iter().map(|s| s.join().unwrap()) {
            assert!(adapted.regriddings > 0 && adapted.drift < 1e-12, "{adapted:?}");
            assert_eq!(account.versions, versions.len() as u64);
        }
        versions
    })
}

#[test]
fn any_number_of_ranks_gives_the_field_that_one_rank_computes() {
    let words = "--scale 0.0003 --variables 3 --steps 9 --refine-every 2 --stages 3 --levels 2";
    // So many blocks in all, however many ranks they are on.
    let of_ranks = |ranks: usize| words.replace("0.0003", &format!("{}", 0.0012 / ranks as f64));
    let one = run(Mechanism::Space, 1, &of_ranks(1));
    assert_eq!(one.len(), 9);
    assert!(one[0][0].len() * 8 == 4672, "objects of the study's size");
    assert!(one.iter().any(|v| v.len() != one[0].len()), "the mesh changes");
    assert!(run(Mechanism::Space, 2, &format!("{} --batch 16", of_ranks(2))) == one);
    assert!(run(Mechanism::Space, 3, &of_ranks(3)) == one);
    assert!(run(Mechanism::Files, 2, &format!("{} --batch 5", of_ranks(2))) == one);
}

#[test]
fn objects_say_what_they_are_and_their_rows_add_up() {
    let versions =
        run(Mechanism::Space, 2, "--scale 0.0002 --variables 2 --edge 8 --steps 3 --refine-every 1");
    for (step, objects) in versions.iter().enumerate() {
        let mut volume = 0.0;
        for (i, object) in objects.iter().enumerate() {
            assert_eq!(object.len(), 10 + 100 + 1000);
            let (variable, of_step, edge) = (object[4], object[5], object[6]);
            assert_eq!((variable, of_step, edge), ((i % 2) as f64, step as f64, 8.0));
            for (row, cells) in object[10..110].iter().zip(object[110..].chunks_exact(10)) {
                assert!(*row == cells.iter().sum::<f64>());
            }
            volume += 0.125f64.powf(object[0]);
        }
        let roots = (volume / 2.0).cbrt();
        assert!((roots - roots.round()).abs() < 1e-9, "the blocks fill the cube once: {roots}");
    }
}

#[test]
fn the_means_spread_and_never_leave_the_range() {
    let versions = run(Mechanism::Space, 1, "--scale 0.0002 --variables 1 --steps 6 --refine-every 2");
    let spread = |objects: &Vec<Vec<f64>>| {
        let cells = objects.iter().flat_map(|o| {
            o[72..]
                .chunks_exact(64)
                .skip(1)
                .take(6)
                .flat_map(|plane| plane.chunks_exact(8).skip(1).take(6).map(|r| r[3]))
        });
        cells.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)))
    };
    let (low, high) = spread(&versions[0]);
    let (later_low, later_high) = spread(&versions[5]);
    assert!(low >= 1.0 && high <= 2.0 && later_low > low && later_high < high);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for words in ["--edge 7", "--edge 4", "--variables 0", "--batch 0", "--scale 0", "--levels 13"] {
        let error = simulate(&args("/nowhere/x", words), &OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{words}");
    }
}
