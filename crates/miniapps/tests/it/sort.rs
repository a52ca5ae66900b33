//! Sorts of files larger than their budget: every key is there, in order, by whatever number of threads and runs.

use forebay_miniapps::sort::{external, keys, mapped, sorted_name, windowed, Task};
use forebay_space::Kind;

fn task(keys: u64, threads: usize) -> Task {
    Task { keys, seed: 5, budget: 2 << 20, tile_bytes: 8192, threads }
}

#[test]
fn all_sorts_leave_a_sorted_permutation() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // One key, one run, many runs, and lengths that are no multiple of anything.
    for (number, count) in [1, 1000, 50_000, (4 << 20) / 8, (4 << 20) / 8 + 777].into_iter().enumerate() {
        for threads in [1, 3] {
            let path = dir.path().join(format!("keys-{number}-{threads}"));
            let made = keys::make(&path, count, 5).unwrap();
            let sorted = external(&path, &task(count, threads)).unwrap();
            let wanted = keys::Checked { permutation: made, ordered: true };
            assert_eq!(keys::check(&sorted_name(&path)).unwrap(), wanted, "{count} keys, {threads} threads");
            let runs = sorted.runs.unwrap();
            assert!(
                if count <= 1000 { runs == 1 } else { count < 500_000 || runs > 4 },
                "{count} keys, {runs} runs"
            );
            let [read, written] = sorted.moved_bytes.unwrap();
            // Two passes, and what two threads share at the ends of their parts.
            assert!(read <= 2 * (count * 8 + 8192) + (runs * threads * 8192) as u64, "{read}");
            assert!(written <= 2 * (count * 8 + 8192) + (threads * 8192 * 4) as u64, "{written}");
            std::fs::remove_file(&path).unwrap();
            keys::make(&path, count, 5).unwrap();
            mapped(&path, &task(count, threads)).unwrap();
            assert_eq!(keys::check(&path).unwrap(), wanted, "mapped: {count} keys, {threads} threads");
            std::fs::remove_file(&path).unwrap();
            keys::make(&path, count, 5).unwrap();
            windowed(&path, &task(count, threads)).unwrap();
            assert_eq!(keys::check(&path).unwrap(), wanted, "windowed: {count} keys, {threads} threads");
        }
    }
}

#[test]
fn a_budget_that_is_too_small_is_refused_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    keys::make(&path, 100_000, 5).unwrap();
    let refused = external(&path, &Task { budget: 64 << 10, ..task(100_000, 2) }).unwrap_err();
    assert_eq!(refused.kind(), Kind::Usage, "{refused}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
