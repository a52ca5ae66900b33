//! The writer and the reader of objects through both mechanisms, one by one and many at a time.
//!
//! Ranks are threads. That damage is seen is tested by reading a channel that was written by other rules.

use crate::support::{args, directory, options};
use forebay_programs::objects::{self, read, write};
use forebay_programs::{Account, ReaderArgs, WriterArgs};
use forebay_space::{Attribute, Dtype, Error, Kind, Mechanism, Mode, OpenOptions, Result, Writer};

/// Accounts of the writers and of the readers of one coupled run.
fn couple(
    kind: Mechanism,
    ranks: (usize, usize),
    write: &str,
    read: &str,
) -> (Vec<Account>, Vec<Result<Account>>) {
    let directory = directory();
    let channel = &format!("{}/objects", directory.path().display());
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..ranks.0)
            .map(|rank| {
                let readers = vec![("reader".to_owned(), ranks.1 as u32)];
                let options = OpenOptions { readers, ..options(rank, ranks.0, "writer", kind) };
                let args = args::<WriterArgs>(channel, write);
                scope.spawn(move || objects::write(&args, &options).unwrap())
            })
            .collect();
        let readers: Vec<_> = (0..ranks.1)
            .map(|rank| {
                let (args, options) =
                    (args::<ReaderArgs>(channel, read), options(rank, ranks.1, "reader", kind));
                scope.spawn(move || objects::read(&args, &options))
            })
            .collect();
        let writers = writers.into_iter().map(|w| w.join().unwrap()).collect();
        (writers, readers.into_iter().map(|r| r.join().unwrap()).collect())
    })
}

#[test]
fn every_object_arrives_once_through_both_mechanisms_in_batches_of_any_size() {
    for kind in [Mechanism::Space, Mechanism::Files] {
        for (ranks, batches) in [((2, 2), (1, 1)), ((3, 2), (7, 1)), ((2, 3), (1, 64)), ((1, 1), (8, 3))] {
            let write = format!("--object 2KiB --count 23 --steps 3 --batch {}", batches.0);
            let read = format!("--batch {}", batches.1);
            let (writers, readers) = couple(kind, ranks, &write, &read);
            let objects = (23 * 3 * ranks.0) as u64;
            let readers: Vec<Account> = readers.into_iter().map(Result::unwrap).collect();
            assert_eq!(writers.iter().map(|w| w.objects).sum::<u64>(), objects);
            assert_eq!(
                readers.iter().map(|r| r.objects).sum::<u64>(),
                objects,
                "{kind} {ranks:?} {batches:?}"
            );
            assert!(readers.iter().all(|r| r.versions == 3 && r.mechanism == kind.word()));
            // Each writer's counts are 8 bytes in each version.
            assert!(writers.iter().all(|w| w.bytes == 23 * 3 * 2048 + 3 * 8));
        }
    }
}

#[test]
fn large_objects_and_odd_sizes_and_objects_in_place() {
    for kind in [Mechanism::Space, Mechanism::Files] {
        for size in ["3000001", "64KiB", "1"] {
            let write = format!("--object {size} --count 2 --steps 2 --seed 9");
            for read in ["--in-place", "--batch 2", "--unchecked"] {
                let (_, readers) = couple(kind, (2, 2), &write, read);
                assert!(readers.into_iter().all(|r| r.unwrap().objects == 4), "{kind} {size} {read}");
            }
        }
    }
}

#[test]
fn a_wrong_byte_is_found_and_named() {
    let directory = directory();
    let channel = &format!("{}/objects", directory.path().display());
    let write = || -> Result<()> {
        let mut writer = Writer::open(channel, &options(0, 1, "writer", Mechanism::Space))?;
        writer.set_attribute("object_bytes", &Attribute::Int(16))?;
        writer.set_attribute("seed", &Attribute::Int(1))?;
        let pattern = objects::pattern::Pattern::new(1, 16);
        writer.begin_step()?;
        for (index, name) in ["o0-0", "o0-1"].into_iter().enumerate() {
            let mut bytes = pattern.object(0, 0, index).to_vec();
            if index == 1 {
                bytes[5] ^= 1;
            }
            writer.put(name, Dtype::U8, &[16], &[0], &[16], &bytes)?;
        }
        writer.put_array("counts", &[1], &[0], &[1], &[2u64])?;
        writer.end_step()?;
        writer.close()
    };
    write().unwrap();
    let error: Error =
        read(&args::<ReaderArgs>(channel, ""), &options(0, 1, "reader", Mechanism::Space)).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    let text = format!("{error:?}");
    assert!(text.contains("first_wrong_byte") && text.contains('5'), "{text}");
}

#[test]
fn a_restarted_writer_goes_on_behind_what_is_complete() {
    let directory = directory();
    let channel = &format!("{}/objects", directory.path().display());
    let run = |mode: Mode, steps: &str| {
        let retention = Some(forebay_space::Retention::Forever);
        let options = OpenOptions { retention, mode, ..options(0, 1, "writer", Mechanism::Space) };
        write(&args::<WriterArgs>(channel, &format!("--count 3 --steps {steps}")), &options).unwrap()
    };
    assert_eq!(run(Mode::Write, "2").versions, 2);
    let again = run(Mode::Append, "5");
    assert_eq!((again.versions, again.skipped), (3, 2));
    let read = read(&args::<ReaderArgs>(channel, ""), &options(0, 1, "reader", Mechanism::Space)).unwrap();
    assert_eq!((read.versions, read.objects), (5, 15));
}

#[test]
fn nothing_to_write_is_refused() {
    for words in ["--count 0", "--batch 0", "--object 0"] {
        let error = write(&args::<WriterArgs>("/nowhere/x", words), &OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{words}");
    }
}
