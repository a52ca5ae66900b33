//! Writers that come again and again: what earlier groups wrote stays readable.

use crate::support::{options, reader, Root};
use forebay_space::{OpenOptions, Retention, Writer};

/// More starts of the writers than the control segment remembers, in all of which nothing is written.
#[test]
fn versions_stay_readable_after_many_starts_that_write_nothing() {
    let root = Root::new();
    let name = root.name("s");
    let options = OpenOptions { retention: Some(Retention::Forever), ..options() };
    write_one(&name, &options, 0);
    write_one(&name, &options, 1);
    for _ in 0..STARTS {
        Writer::open(&name, &options).unwrap().close().unwrap();
    }
    check_readable(&name, 2);
}

/// Each start writes a version, which stays.
#[test]
fn versions_stay_readable_after_many_starts_that_write_one_each() {
    let root = Root::new();
    let name = root.name("s");
    let quota_bytes = Some(64 << 20);
    let options = OpenOptions { retention: Some(Retention::Forever), quota_bytes, ..options() };
    for version in 0..STARTS {
        write_one(&name, &options, version);
    }
    check_readable(&name, STARTS);
}

/// More than the control segment remembers.
const STARTS: u64 = 132;

fn write_one(name: &str, options: &OpenOptions, version: u64) {
    let mut writer = Writer::open(name, options).unwrap();
    assert_eq!(writer.begin_step().unwrap(), version);
    writer.put_array("x", &[4], &[0], &[4], &[version; 4]).unwrap();
    writer.end_step().unwrap();
    writer.close().unwrap();
}

fn check_readable(name: &str, versions: u64) {
    let damaged = forebay_space::verify(name).unwrap().damaged;
    assert!(damaged.is_empty(), "{damaged:?}");
    let mut reader = reader(name, 0, 1).unwrap();
    for version in 0..versions {
        assert_eq!(reader.begin_step(None).unwrap(), Some(version));
        assert_eq!(reader.get_array::<u64>("x", None).unwrap(), [version; 4]);
        reader.end_step().unwrap();
    }
    assert_eq!(reader.begin_step(None).unwrap(), None);
}
