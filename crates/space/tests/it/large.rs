//! One object beyond 4 GiB, through the same calls as any other. Skipped, and counted, where memory is short.

use crate::support::{ranked, reader, Root};
use forebay_space::{Dtype, NdBox, OpenOptions, Writer};

const BYTES: u64 = (4 << 30) + (1 << 20) + 13;

fn free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("MemAvailable")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[test]
fn an_object_of_more_than_4_gib_is_one_object() {
    if free_bytes() < 2 * BYTES {
        return crate::skips::skipped(
            "an object of more than 4 GiB",
            "less than 8 GiB of memory are available",
        );
    }
    let root = Root::new();
    let name = root.name("large");
    let options = OpenOptions { quota_bytes: Some(BYTES + (64 << 20)), ..ranked(0, 1) };
    let mut w = match Writer::open(&name, &options) {
        Ok(w) => w,
        Err(e) => return crate::skips::skipped("an object of more than 4 GiB", &e.to_string()),
    };
    w.begin_step().unwrap();
    let mut space = w.reserve("large", Dtype::U8, &[BYTES], &[0], &[BYTES]).unwrap();
    let marks = [0, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, BYTES - 1];
    let memory = space.as_mut_slice();
    for (i, at) in marks.iter().enumerate() {
        memory[*at as usize] = i as u8 + 1;
    }
    w.commit(space).unwrap();
    w.end_step().unwrap();
    let mut r = reader(&name, 0, 1).unwrap();
    r.begin_step(None).unwrap();
    for (i, at) in marks.iter().enumerate() {
        let one = NdBox::new(&[*at], &[1]).unwrap();
        assert_eq!(r.get_array::<u8>("large", Some(&one)).unwrap(), [i as u8 + 1], "byte {at}");
    }
    let view = r.view("large", None).unwrap();
    assert_eq!(view.bytes().len() as u64, BYTES);
    assert_eq!(view.bytes()[BYTES as usize - 1], marks.len() as u8);
}
