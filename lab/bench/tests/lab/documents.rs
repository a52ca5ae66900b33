//! Every document of the lab's `--json` against `lab/bench/json.md`: names and fields.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_lab::schema;

use crate::bench::Bench;
use crate::page::{self, check};

fn documented() -> BTreeMap<String, Vec<String>> {
    page::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("json.md"))
}

#[test]
fn the_page_lists_exactly_the_schemas_of_the_code() {
    let page: Vec<String> = documented().into_keys().collect();
    let mut code = schema::ALL.to_vec();
    code.sort_unstable();
    assert_eq!(page, code);
}

#[test]
fn every_benchmark_prints_a_listed_document_with_listed_fields() {
    let bench = Bench::new();
    let staging = "bench staging --parts weak --places dram --ranks 2 --per-rank 64KiB";
    let staging: Vec<&str> = staging.split(' ').collect();
    crate::trials::platform(&bench, 2000);
    let workflows = "bench workflows --quick --emulate made-up.toml:pmem/1 --probe-seconds 3";
    let workflows: Vec<&str> = workflows.split(' ').collect();
    let calls: &[(&[&str], &str)] = &[
        (&["bench", "stream", "--elements", "4096", "--rounds", "2"], schema::BENCH_STREAM),
        (&["bench", "ior", "--size", "64KiB", "--transfer", "4KiB"], schema::BENCH_IOR),
        (&["bench", "lriot", "--size", "1MiB", "--threads", "1", "--seconds", "0.01"], schema::BENCH_LRIOT),
        (&staging, schema::BENCH_STAGING),
        (&["bench", "sort", "--size", "4MiB", "--budget", "2MiB"], schema::BENCH_SORT),
        (&["bench", "bfs", "--scale", "10", "--tile", "4KiB"], schema::BENCH_BFS),
        (&["bench", "workflows", "--model", "--judge"], schema::BENCH_WORKFLOWS),
        (&["bench", "madbench", "--pixels", "24", "--bins", "3"], schema::BENCH_MADBENCH),
        (&["bench", "cfd", "--scale", "2", "--steps", "2"], schema::BENCH_PLACING),
        (&["bench", "polybench", "--kernel", "atax", "--budget", "256KiB"], schema::BENCH_POLYBENCH),
        (&["bench", "sharpen", "--rows", "64", "--columns", "80"], schema::BENCH_PLACING),
        (&workflows, schema::BENCH_WORKFLOWS_RUN),
        (&["app", "writer", "--channel", "u", "--steps", "1"], schema::APP),
    ];
    let page = documented();
    for (words, name) in calls {
        let document = bench.json(words, 0);
        assert_eq!(document["schema"], *name, "{words:?}");
        check(&document, &page[*name], words);
    }
}

#[test]
fn the_studies_solvers_print_listed_documents_with_listed_fields() {
    let bench = Bench::new();
    let page = documented();
    let calls: &[(&[&str], &str)] = &[
        (&["bench", "npb", "--kernel", "mg", "--class", "S"], schema::BENCH_NPB),
        (&["bench", "bt", "--class", "S"], schema::BENCH_BT),
        (&["bench", "btio", "--class", "S", "--mode", "full"], schema::BENCH_BTIO),
        (&["bench", "checkpoint", "--class", "S", "--crash-free"], schema::BENCH_CHECKPOINT),
    ];
    for (words, name) in calls {
        let document = bench.json(words, 0);
        assert_eq!(document["schema"], *name, "{words:?}");
        check(&document, &page[*name], words);
    }
}
