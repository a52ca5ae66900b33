//! The demo at small size: its statistics against a single process that knows no space, bit for bit, and its
//! report in a real browser, which may load nothing from outside.

use std::path::Path;
use std::process::Command;

use gray_scott::analysis::statistics::Recipe;
use gray_scott::reference;
use gray_scott::simulation::deck::Deck;

use crate::bench::{outcome, Bench};
use crate::skips::skipped;

fn example(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gray-scott").join(file)
}

/// Runs the small demo; returns the path of its report.
fn run_demo(bench: &Bench) -> std::path::PathBuf {
    for file in ["workflow-small.toml", "deck-small.toml"] {
        std::fs::copy(example(file), bench.file(file)).expect("the example");
    }
    let run = bench.call(&["run", "workflow-small.toml", "--out", "run", "--report"]);
    run.wants(0);
    bench.file(run.text().lines().last().expect("the report's path"))
}

#[test]
fn the_statistics_are_those_of_one_process_without_a_space() {
    let bench = Bench::new();
    run_demo(&bench);
    let deck = Deck::read(&example("deck-small.toml")).unwrap();
    let expected: String = reference::statistics(&deck, &Recipe::default())
        .unwrap()
        .iter()
        .map(|s| serde_json::to_string(s).unwrap() + "\n")
        .collect();
    let coupled = std::fs::read_to_string(bench.file("run/analysis/statistics.jsonl")).unwrap();
    assert!(expected.lines().count() > 2);
    assert_eq!(coupled, expected);
}

/// The browser, or None after noting the skip.
fn browser() -> Option<&'static str> {
    let found = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    let found = found.into_iter().find(|path| Path::new(path).exists());
    if found.is_none() {
        skipped("the report in a browser", "no Chromium is installed");
    }
    found
}

#[test]
fn the_report_opens_in_a_browser_and_loads_nothing_from_outside() {
    let Some(browser) = browser() else { return };
    let bench = Bench::new();
    let report = run_demo(&bench);
    let page = std::fs::read_to_string(&report).unwrap();
    for outside in ["src=\"http", "href=\"http", "url(http", "@import", "src=\"//"] {
        assert!(!page.contains(outside), "the page asks for {outside}");
    }
    let profile = bench.file("profile");
    let opened = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", report.display()))
        .env("HOME", bench.work())
        .output()
        .expect("the browser starts");
    let dom = String::from_utf8_lossy(&opened.stdout);
    assert!(opened.status.success(), "{}", String::from_utf8_lossy(&opened.stderr));
    assert!(dom.contains("gray-scott-small") && dom.matches("<svg").count() >= 4, "the page came out short");
    assert!(dom.contains("data:image/png;base64,"), "no slice in the page");
}

#[test]
fn the_demo_in_python_says_what_to_install() {
    let bench = Bench::new();
    // In this folder there is no python3.
    let missing = outcome(bench.command(&["demo"]).env("PATH", bench.work()));
    missing.wants(3).complains("NotPossibleHere").complains("make wheel");
    assert!(!bench.file("forebay-demo").exists());
}
