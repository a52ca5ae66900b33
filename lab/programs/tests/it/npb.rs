//! MG and FT: the published figures, and the same bits by any number of threads and on a tier.

use forebay_pager::{Pool, PoolOptions};
use forebay_programs::npb::{Class, Kernel, Outcome};
use forebay_programs::placed::Placement;
use forebay_tier::Horizon;

fn compute(kernel: Kernel, class: Class, place: &Placement, threads: usize) -> Outcome {
    let mut heard = 0;
    let outcome = kernel.compute(class, place, threads, |_| heard += 1).expect("computed");
    assert!(heard >= 4);
    assert!(outcome.difference <= kernel.tolerance(), "{} {outcome:?}", kernel.name());
    outcome
}

#[test]
fn figures_are_the_published_ones_wherever_arrays_lie() {
    for kernel in Kernel::ALL {
        let one = compute(kernel, Class::S, &Placement::Dram, 1);
        let three = compute(kernel, Class::S, &Placement::Dram, 3);
        assert_eq!(one.figures, three.figures);
        let dir = tempfile::tempdir().expect("a folder");
        let budget = kernel.bytes(Class::S) / 4;
        let pool = Pool::new(PoolOptions { tile_max: 4096, ..PoolOptions::new(budget) }).expect("a pool");
        let tier = Placement::Tier {
            pool: pool.clone(),
            dir: dir.path().into(),
            tile_bytes: 4096,
            horizon: Horizon::None,
        };
        let paged = compute(kernel, Class::S, &tier, 2);
        assert_eq!(paged.figures, one.figures, "{}", kernel.name());
        assert!(paged.moved.tier_read > kernel.bytes(Class::S) && paged.moved.tier_written > 0);
        assert!(one.moved.tier_read == 0 && one.moved.dram_read > 0);
        assert!(pool.statistics().loaded > 0 && pool.statistics().written > 0);
        let mapped = Placement::Mmap { dir: dir.path().into() };
        assert_eq!(compute(kernel, Class::S, &mapped, 2).figures, one.figures);
    }
}

#[test]
fn class_w_has_the_published_figures() {
    for kernel in Kernel::ALL {
        compute(kernel, Class::W, &Placement::Dram, 2);
    }
}
