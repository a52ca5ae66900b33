//! Rows of tiers on a disk: what goes down to a lower tier and comes back, and a `direct` pool, beside fio.
//!
//! fio runs the same job each time: direct I/O of 1 MiB, 16 requests in flight, one file as long as what ours moves.
//! A file system writes to blocks that were never written before at little more than half the speed of others: what
//! goes to a new pool stands beside fio on a new file, what goes through a pool again and again beside fio on a file
//! that is written over.
//! Both lie in the folder `target` of the checkout; on a disk that several machines share, both vary from one
//! repetition to the next, so look at the spread.

use super::peers::{Setup, SpillShape};
use super::rows::{Row, Table};

const MIB: u64 = 1 << 20;

/// Every row; none where fio is not installed, or `target` lies where there is no direct I/O.
pub fn all(setup: &Setup, quick: bool, table: &mut Table) -> Result<(), String> {
    let Some(fio) = &setup.fio else { return Ok(()) };
    let shape = match quick {
        true => SpillShape { bytes: 4 * MIB, objects: 8, first_bytes: 16 * MIB },
        false => SpillShape { bytes: 64 * MIB, objects: 32, first_bytes: 256 * MIB },
    };
    let row = |measure: &str, against: &str, bar| Row::new(measure, shape.bytes, true, against).with_bar(bar);
    let mut spill = row("spill", "fio, write", 0.9);
    let mut back = row("read back", "fio, read", 0.9);
    let mut through = row("passing through", "fio, write again", 0.9);
    let mut direct = row("put, direct, epoch", "fio, write", 0.95);
    for _ in table.turns("lower tiers") {
        setup.remove_fio_file();
        let written = setup.fio_ns(fio, "write", &shape)?;
        let written_over = setup.fio_ns(fio, "write", &shape)?;
        let read = setup.fio_ns(fio, "read", &shape)?;
        let ours = setup.spill(&shape)?;
        spill.add(ours.spill, written);
        back.add(ours.read_back, read);
        through.add(ours.through, written_over);
        direct.add(ours.direct, written);
    }
    [spill, back, through, direct].into_iter().for_each(|row| table.push(row));
    Ok(())
}
