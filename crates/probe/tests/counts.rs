//! What measuring does, counted: an array is persisted as often as its horizon says.
//!
//! The counters are per process, so this binary has this one test.

use forebay_probe::kernels::stream::{run, Array, Layout, Plan};
use forebay_tier::counters::snapshot;
use forebay_tier::{Horizon, Region};

#[test]
fn the_written_array_is_persisted_as_often_as_the_horizon_says() {
    const ELEMENTS: usize = 4096;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // Eight elements to a line, four kernels: a line is written back once by each, or once for each element.
    let wanted = [(Horizon::None, 0), (Horizon::Epoch, 4 * 512), (Horizon::Write, 4 * 4096)];
    for (horizon, flushes) in wanted {
        let path = dir.path().join(horizon.to_string());
        let mut region = Region::create_emulated(&path, 3 * ELEMENTS * 8).unwrap();
        let shared = region.shared();
        let memory: &mut [f64] = bytemuck::cast_slice_mut(region.as_mut_slice().unwrap());
        let mut offset = 0;
        let arrays: Vec<Array<'_>> = memory
            .chunks_mut(ELEMENTS)
            .map(|elements| {
                let array = Array { elements, region: Some(shared.clone()), offset };
                offset += ELEMENTS * 8;
                array
            })
            .collect();
        let arrays = arrays.try_into().unwrap_or_else(|_| panic!("three arrays"));
        let before = snapshot();
        run(&Plan { layout: Layout::Arrays, horizon, rounds: 1 }, arrays, &[0]).unwrap();
        assert_eq!((snapshot() - before).flushes, flushes, "{horizon}");
    }
}
