//! Searches of R-MAT graphs, by every way, against a queue in memory; and levels that are wrong are noticed.

use forebay_programs::bfs::{check::check, csr::Graph, search, Task, Way, UNREACHED};
use forebay_space::Kind;

fn numbers<T: bytemuck::AnyBitPattern>(path: &std::path::Path) -> Vec<T> {
    let bytes = std::fs::read(path).unwrap();
    bytes.chunks(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Levels by the book.
fn reference(graph: &Graph, root: u32) -> Vec<u8> {
    let (starts, entries): (Vec<u64>, Vec<u32>) = (numbers(&graph.rows), numbers(&graph.edges));
    let mut levels = vec![UNREACHED; graph.vertices as usize];
    levels[root as usize] = 0;
    let mut queue = std::collections::VecDeque::from([root as usize]);
    while let Some(vertex) = queue.pop_front() {
        for other in &entries[starts[vertex] as usize..starts[vertex + 1] as usize] {
            if levels[*other as usize] == UNREACHED {
                levels[*other as usize] = levels[vertex] + 1;
                queue.push_back(*other as usize);
            }
        }
    }
    levels
}

#[test]
fn every_way_finds_the_levels_of_a_queue() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let graph = Graph::make(dir.path(), 14, 8, 2).unwrap();
    let starts: Vec<u64> = numbers(&graph.rows);
    assert_eq!(*starts.last().unwrap(), graph.entries);
    let root = starts.windows(2).position(|ends| ends[0] < ends[1]).unwrap() as u32;
    let wanted = reference(&graph, root);
    let reached = wanted.iter().filter(|level| **level != UNREACHED).count() as u64;
    let scanned: u64 =
        (0..wanted.len()).filter(|v| wanted[*v] != UNREACHED).map(|v| starts[v + 1] - starts[v]).sum();
    assert_eq!(check(&graph, root, &wanted).unwrap(), reached);
    for tile_bytes in [4096, 16 << 10, 64 << 10] {
        for way in [Way::Semi, Way::External, Way::Mmap, Way::MmapRandom] {
            let budget = if way == Way::External { 512 << 10 } else { 1 << 20 };
            let task = Task { graph: graph.clone(), budget, tile_bytes, threads: 2, dir: dir.path().into() };
            let found = search(way, &task).unwrap();
            // The search checks its own levels; there is but one row of levels that passes.
            assert_eq!((found.root, found.reached, found.scanned), (root, reached, scanned), "{way:?}");
            let last = wanted.iter().filter(|level| **level != UNREACHED).max();
            assert_eq!(Some(&found.levels), last, "{way:?}, tiles of {tile_bytes}");
            assert_eq!(found.read_bytes.is_some(), matches!(way, Way::Semi | Way::External));
        }
    }
    let small = Task { graph, budget: 100 << 10, tile_bytes: 4096, threads: 1, dir: dir.path().into() };
    assert_eq!(search(Way::Semi, &small).unwrap_err().kind(), Kind::Usage);
}

#[test]
fn every_wrong_level_is_noticed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let graph = Graph::make(dir.path(), 8, 2, 4).unwrap();
    let starts: Vec<u64> = numbers(&graph.rows);
    let root = starts.windows(2).position(|ends| ends[0] < ends[1]).unwrap() as u32;
    let right = reference(&graph, root);
    check(&graph, root, &right).unwrap();
    for vertex in 0..right.len() {
        for level in [0, 1, 2, 3, 4, UNREACHED] {
            let mut wrong = right.clone();
            wrong[vertex] = level;
            let found = check(&graph, root, &wrong);
            assert_eq!(
                found.is_err(),
                wrong != right,
                "vertex {vertex} of level {} at {level}",
                right[vertex]
            );
        }
    }
}
