//! The report of made-up run directories: its structure, that it stands alone, and that nothing breaks it.

mod synthetic;

use std::path::Path;

use synthetic::write_run;

fn page(dir: &Path) -> String {
    let file = forebay_pages::run::report(dir).expect("a report");
    assert_eq!(file, dir.join("report.html"));
    std::fs::read_to_string(file).expect("reading the report")
}

fn made_up(steps: u64, failed: bool) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    write_run(dir.path(), steps, failed);
    page(dir.path())
}

/// Names of the sections in their order.
fn sections(page: &str) -> Vec<&str> {
    page.split("<section id=\"").skip(1).filter_map(|part| part.split('"').next()).collect()
}

/// Every tag that opens is closed, in order: browsers forgive, and then lay out something else.
fn assert_well_formed(page: &str) {
    let without_code = |text: &str, tag: &str| {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(&format!("<{tag}>")) {
            let end = rest.find(&format!("</{tag}>")).expect("a closed block");
            out.push_str(&rest[..at]);
            rest = &rest[end + tag.len() + 3..];
        }
        out + rest
    };
    let text = without_code(&without_code(page, "style"), "script");
    let mut open: Vec<String> = Vec::new();
    for part in text.split('<').skip(1) {
        let tag = part.split('>').next().expect("a tag");
        assert!(part.contains('>'), "a tag does not end: <{part}");
        let name: String = tag
            .trim_start_matches('/')
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '!')
            .collect();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()), "closed in the wrong order");
        } else if !tag.ends_with('/')
            && !["!", "meta", "img", "input", "br", "!DOCTYPE"].contains(&name.as_str())
        {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

/// Whatever a browser would fetch.
fn assert_stands_alone(page: &str) {
    for outside in ["http://", "https://", "//cdn", "@import", "<link", "<iframe", "url("] {
        assert!(!page.contains(outside), "loads from outside: {outside}");
    }
    for source in page.split("src=\"").skip(1) {
        assert!(source.starts_with("data:image/png;base64,"), "loads {}", &source[..40.min(source.len())]);
    }
    assert!(!page.contains("<script src"));
}

#[test]
fn a_whole_run_has_every_section() {
    let page = made_up(50, false);
    let expected = [
        "components",
        "slices",
        "timeline",
        "traffic",
        "bandwidth",
        "latency",
        "fill",
        "channels",
        "processes",
    ];
    assert_eq!(sections(&page), expected);
    assert_well_formed(&page);
    assert_stands_alone(&page);
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
    let timeline =
        page.split("id=\"timeline\"").nth(1).and_then(|p| p.split("</section>").next()).expect("a timeline");
    assert_eq!(timeline.matches("<rect class=\"compute\"").count(), 7, "one row per rank");
    // Puts of 4 ranks; gets of the same (halo) and of 3 readers; all wait.
    assert_eq!(timeline.matches("<path class=\"put\"").count(), 4);
    assert_eq!(timeline.matches("<path class=\"get\"").count(), 7);
    assert_eq!(timeline.matches("<path class=\"wait\"").count(), 7);
    assert_eq!(
        page.matches("<span class=\"measured\">measured</span>").count(),
        4,
        "one per component and channel"
    );
    assert!(page.contains("<td>process crash</td>"), "durability stands beside the bandwidth");
    assert!(page.contains("<figcaption>V at z = 32: <output>version 3, step 30</output></figcaption>"));
    assert!(page.contains("<figcaption>T: <output>version 3</output></figcaption>"));
    assert!(page
        .contains("simulation</b> (4 ranks) → <span class=\"channel\">V</span> → <b>analysis</b> (3 ranks)"));
}

#[test]
fn pictures_are_embedded_with_the_last_version_shown() {
    let page = made_up(5, false);
    assert_eq!(page.matches("<figure").count(), 4, "one per axis, and one that is not cut");
    assert_eq!(page.matches("<img").count(), 13);
    assert_eq!(page.matches("<img hidden").count(), 9, "without scripts the last one of each is seen");
    assert!(page.contains("<img alt=\"version 3, step 30\""));
    assert!(!page.contains("version 9"), "a file outside of the directory is not embedded");
}

/// Nothing that a program leaves in the run directory leads out of it, or is waited for.
#[test]
fn what_is_no_regular_file_is_no_picture() {
    let dir = tempfile::tempdir().expect("a directory");
    write_run(dir.path(), 5, false);
    let plane = dir.path().join("out/plane");
    std::fs::rename(plane.join("plane.png"), dir.path().join("elsewhere.png")).expect("renaming");
    std::os::unix::fs::symlink("../../elsewhere.png", plane.join("plane.png")).expect("a link");
    std::fs::remove_file(dir.path().join("fill.jsonl")).expect("removing");
    for fifo in ["out/index.json", "fill.jsonl", "trace/x.jsonl"] {
        let made = std::process::Command::new("mkfifo").arg(dir.path().join(fifo)).status();
        assert!(made.expect("mkfifo").success());
    }
    let page = page(dir.path());
    assert_eq!(page.matches("<figure").count(), 3, "the plane is elsewhere");
    assert!(!page.contains("<h3>T"), "no title without pictures");
    std::fs::remove_file(dir.path().join("out/analysis/index.json")).expect("removing");
    assert!(!sections(&self::page(dir.path())).contains(&"slices"));
}

#[test]
fn text_from_the_run_cannot_break_the_page() {
    let page = made_up(5, true);
    assert_well_formed(&page);
    assert!(page.contains("node&lt;1&gt;") && page.contains("opening &lt;W&gt;"));
    assert!(page.contains("ValueError: bad &amp; ugly"));
    assert!(page.contains("'it'\\''s.toml'") || page.contains("&#39;it&#39;\\&#39;&#39;s.toml&#39;"));
}

#[test]
fn a_failed_run_says_why() {
    let page = made_up(20, true);
    assert_eq!(sections(&page)[0], "failure");
    assert!(page.contains("<span class=\"badge failed\">failed</span>"));
    assert!(page.contains("analysis failed: rank 1 of 3 ended with exit status 1"));
    assert!(page.contains("logs/analysis.1.err"));
    assert_eq!(page.matches("<path class=\"failed\"").count(), 1);
    assert_eq!(page.matches("<path class=\"stopped\"").count(), 1);
}

#[test]
fn a_long_run_does_not_make_a_long_page() {
    let page = made_up(20_000, false);
    assert_well_formed(&page);
    assert!(page.len() < 1_500_000, "{} bytes", page.len());
    assert!(page.contains("class=\"band c0\""), "many points become mean and range");
}

#[test]
fn what_is_missing_is_left_out() {
    let dir = tempfile::tempdir().expect("a directory");
    write_run(dir.path(), 5, false);
    for gone in ["trace", "out"] {
        std::fs::remove_dir_all(dir.path().join(gone)).expect("removing");
    }
    std::fs::remove_file(dir.path().join("fill.jsonl")).expect("removing");
    let page = page(dir.path());
    assert_eq!(sections(&page), ["components", "timeline", "traffic", "channels", "processes"]);
    assert!(page.contains("No component traced a step"));
    assert_well_formed(&page);
}

#[test]
fn other_directories_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let kind = || forebay_pages::run::report(dir.path()).expect_err("no run directory").kind();
    assert_eq!(kind(), forebay_space::Kind::UnknownComponent);
    std::fs::write(dir.path().join("run.json"), "{\"schema\":\"forebay.run/99\"}").expect("writing");
    assert_eq!(kind(), forebay_space::Kind::UnknownFormat);
    std::fs::write(dir.path().join("run.json"), "{\"schema\":\"forebay.run/1\"}").expect("writing");
    assert_eq!(kind(), forebay_space::Kind::Damaged);
    std::fs::write(dir.path().join("run.json"), "{").expect("writing");
    assert_eq!(kind(), forebay_space::Kind::Damaged);
}
