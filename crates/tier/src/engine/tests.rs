//! Both engines move the same bytes, say the same errors, and work where io_uring, memory locking or threads are short.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::*;
use crate::counters::snapshot;

/// Every engine that can be had here.
fn engines() -> Vec<Engine> {
    let mut engines = vec![Engine::threads()];
    match Engine::io_uring() {
        Ok(engine) => engines.push(engine),
        Err(e) => {
            static SAID: std::sync::Once = std::sync::Once::new();
            SAID.call_once(|| crate::skips::skipped("engine io_uring", e.message()));
        }
    }
    engines
}

fn file(len: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(len).unwrap();
    file
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 9) as u8 ^ seed).collect()
}

fn all_of(file: &File, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    file.read_exact_at(&mut out, 0).unwrap();
    out
}

#[test]
fn bytes_land_where_they_belong() {
    const LENS: [usize; 8] = [
        0,
        1,
        4096,
        REQUEST_BYTES - 1,
        REQUEST_BYTES + 1,
        3 * REQUEST_BYTES,
        DEPTH * REQUEST_BYTES,
        2 * DEPTH * REQUEST_BYTES + 4711,
    ];
    for engine in engines() {
        for (seed, len) in LENS.into_iter().enumerate() {
            let file = file(len as u64 + 20_000);
            let data = pattern(len, seed as u8);
            let (mut seen, what) = (Vec::new(), format!("{} bytes with {}", len, engine.name()));
            let meanwhile = &mut |bytes: &[u8]| seen.extend_from_slice(bytes);
            engine.write_all(&file, &[(10_000, &data), (3, b"head")], Some(meanwhile)).unwrap();
            assert!(seen == [&data[..], b"head"].concat(), "{what}: not every byte was shown in order");
            let mut expected = vec![0; len + 20_000];
            expected[10_000..10_000 + len].copy_from_slice(&data);
            expected[3..7].copy_from_slice(b"head");
            assert!(all_of(&file, len + 20_000) == expected, "{what}: written");
            let mut out = vec![1; len];
            engine.read_exact(&file, 10_000, &mut out).unwrap();
            assert!(out == data, "{what}: read");
            engine.write_all(&file, &[(0, &expected)], None).unwrap();
            assert!(all_of(&file, len + 20_000) == expected, "{what}: written again");
        }
    }
}

#[test]
fn streams_are_filled_in_order_and_read_whole() {
    for engine in engines() {
        for len in [0, 1, 4097, REQUEST_BYTES, REQUEST_BYTES + 1, 40 * REQUEST_BYTES + 17] {
            let file = file(len as u64 + 10);
            let data = pattern(len, 5);
            let mut filled = 0;
            let fill = &mut |at: usize, part: &mut [u8]| {
                assert_eq!(
                    (at, part.as_ptr() as usize % 4096),
                    (filled, 0),
                    "a frame out of order or unaligned"
                );
                part.copy_from_slice(&data[at..at + part.len()]);
                filled += part.len();
            };
            engine.write_stream(&file, 5, len, fill).unwrap();
            assert_eq!(filled, len);
            assert!(all_of(&file, len + 10)[5..5 + len] == data, "{len} bytes with {}", engine.name());
            let mut out = vec![0; len];
            let take = &mut |at: usize, part: &mut [u8]| out[at..at + part.len()].copy_from_slice(part);
            engine.read_stream(&file, 5, len, take).unwrap();
            assert!(out == data, "{len} bytes with {}", engine.name());
        }
    }
}

#[test]
fn errors_come_back_and_the_engine_goes_on() {
    const LEN: usize = 20 * REQUEST_BYTES;
    let data = pattern(LEN, 7);
    for engine in engines() {
        let short = file((LEN - 1) as u64);
        let mut out = vec![0; LEN];
        let error = engine.read_exact(&short, 0, &mut out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
        let error = engine.read_stream(&short, 0, LEN, &mut |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = engine.write_all(&full, &[(0, &data)], None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{}: {error}", engine.name());
        let error = engine.write_stream(&full, 0, LEN, &mut |_, part| part.fill(1)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{}: {error}", engine.name());
        let read_only = File::open("/dev/null").unwrap();
        let error = engine.write_all(&read_only, &[(0, &data)], None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{}: {error}", engine.name());
        let file = file(LEN as u64);
        engine.write_all(&file, &[(0, &data)], None).unwrap();
        assert!(all_of(&file, LEN) == data, "{} after errors", engine.name());
    }
}

#[test]
fn a_panicking_source_leaves_nothing_under_way() {
    for engine in engines() {
        let file = file(1 << 20);
        let fill = |at: usize, part: &mut [u8]| {
            assert!(at < 5 * REQUEST_BYTES, "as the test wants");
            part.fill(9);
        };
        let run = || engine.write_stream(&file, 0, 40 * REQUEST_BYTES, &mut { fill });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
        let data = pattern(1 << 20, 3);
        engine.write_all(&file, &[(0, &data)], None).unwrap();
        assert!(all_of(&file, 1 << 20) == data, "{} after a panic", engine.name());
    }
}

#[test]
fn a_source_may_use_the_engine_itself() {
    for engine in engines() {
        let (outer, inner) = (file(1 << 21), file(1 << 20));
        let data = pattern(1 << 20, 11);
        let fill = &mut |at: usize, part: &mut [u8]| {
            if at == 0 {
                engine.write_all(&inner, &[(0, &data)], None).unwrap();
            }
            part.fill(1);
        };
        engine.write_stream(&outer, 0, 1 << 21, fill).unwrap();
        assert!(all_of(&inner, 1 << 20) == data && all_of(&outer, 1 << 21).iter().all(|b| *b == 1));
    }
}

#[test]
fn threads_have_rings_of_their_own_and_children_too() {
    for engine in engines() {
        let file = file(8 << 20);
        std::thread::scope(|scope| {
            for lane in 0..4u8 {
                let file = &file;
                scope.spawn(move || {
                    engine.write_all(file, &[(u64::from(lane) << 21, &pattern(2 << 20, lane))], None).unwrap()
                });
            }
        });
        for lane in 0..4u8 {
            let mut out = vec![0; 2 << 20];
            engine.read_exact(&file, u64::from(lane) << 21, &mut out).unwrap();
            assert!(out == pattern(2 << 20, lane), "lane {lane} with {}", engine.name());
        }
        // This thread has a ring by now; the child must not use it.
        let status = sys::in_child(|| {
            engine.write_all(&file, &[(0, &pattern(2 << 20, 77))], None).unwrap();
            0
        });
        assert_eq!(status, 0);
        engine.write_all(&file, &[(2 << 20, &pattern(2 << 20, 78))], None).unwrap();
        let both = all_of(&file, 4 << 20);
        assert!(both[..2 << 20] == pattern(2 << 20, 77) && both[2 << 20..] == pattern(2 << 20, 78));
    }
}

#[test]
fn frames_are_registered_as_far_as_allowed() {
    if Engine::io_uring().is_err() {
        return crate::skips::skipped("registered frames", "io_uring is refused");
    }
    let registered = io_uring::registered_bytes().expect("a ring");
    assert!(registered <= DEPTH * REQUEST_BYTES && registered % REQUEST_BYTES == 0);
    if registered == 0 {
        crate::skips::skipped("registered frames", "RLIMIT_MEMLOCK is too small for one frame");
    }
}

#[test]
fn the_environment_chooses() {
    assert_eq!(Engine::chosen_by(Some("threads")).unwrap(), Engine::threads());
    assert_eq!(Engine::chosen_by(Some("uring")).unwrap_err().kind(), Kind::UnknownEnvironment);
    let by_default = Engine::chosen_by(None).unwrap();
    assert_eq!(Engine::chosen_by(Some("")).unwrap(), by_default);
    match Engine::chosen_by(Some("io_uring")) {
        Ok(engine) => assert_eq!((engine.name(), by_default.name()), ("io_uring", "io_uring")),
        Err(e) => {
            assert_eq!((e.kind(), by_default.name()), (Kind::NotPossibleHere, "threads"));
            assert!(e.hint_text().is_some());
        }
    }
}

#[test]
fn one_request_is_one_call() {
    let file = file(1 << 20);
    let data = pattern(REQUEST_BYTES, 1);
    for engine in engines() {
        // Other tests count in the same process: at least one quiet round is asked for.
        let quiet = (0..50).any(|_| {
            let before = snapshot().syscalls;
            engine.write_all(&file, &[(0, &data)], None).unwrap();
            snapshot().syscalls - before == 1
        });
        assert!(quiet, "{}", engine.name());
    }
}
