//! Every way in which a workflow file can be wrong gives the error kind, the line and the hint that are promised.

use std::path::Path;
use std::time::Duration;

use forebay_flow::Workflow;
use forebay_space::{Error, Kind, Mechanism, Result, TierKind};

fn parse(text: &str) -> Result<Workflow> {
    Workflow::parse(Path::new("w.toml"), Path::new("/"), text)
}

fn refused(text: &str) -> Error {
    match parse(text) {
        Ok(_) => panic!("this should be refused:\n{text}"),
        Err(error) => error,
    }
}

/// A valid file; tests replace a part of it.
const GOOD: &str = r#"forebay = 1
[workflow]
name = "heat"
[env]
STEPS = 10
FAST = true
[channel.u]
tier = "dram"
quota = "64MiB"
retention = "last:3"
[channel.stats]
kind = "files"
keep = true
[[component]]
name = "sim"
command = ["sh", "-c", "true"]
ranks = 4
writes = ["u"]
timeout = "2min"
[[component]]
name = "analysis"
command = ["sh"]
ranks = 3
reads = ["u"]
writes = ["stats"]
env = { OMP_NUM_THREADS = 1 }
[[component]]
name = "viz"
command = ["forebay", "cat"]
reads = ["u", "stats"]
"#;

fn replaced(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "the test's own file lacks {from}");
    GOOD.replacen(from, to, 1)
}

#[test]
fn ranks_of_a_component_may_be_skewed() {
    let in_step = |text: &str| -> Vec<bool> {
        parse(text).expect("a good file").components.iter().map(|c| c.in_step).collect()
    };
    assert_eq!(in_step(GOOD), [true, true, true]);
    assert_eq!(in_step(&replaced("ranks = 3", "ranks = 3\nin_step = false")), [true, false, true]);
    assert!(refused(&replaced("ranks = 3", "ranks = 3\nin_step = 1")).to_string().contains("boolean"));
}

#[test]
fn a_good_file_says_what_it_says() {
    let w = parse(GOOD).expect("a good file");
    assert_eq!(w.name, "heat");
    assert_eq!(w.env["STEPS"], "10");
    assert_eq!(w.env["FAST"], "true");
    let u = w.channels.iter().find(|c| c.name == "u").expect("channel u");
    assert_eq!((u.writer.as_str(), &u.readers[..]), ("sim", &["analysis".to_owned(), "viz".to_owned()][..]));
    assert_eq!((u.options.tier, u.options.quota, u.keep), (Some(TierKind::Dram), Some(64 << 20), false));
    let stats = w.channels.iter().find(|c| c.name == "stats").expect("channel stats");
    assert_eq!((stats.options.kind, stats.keep), (Some(Mechanism::Files), true));
    let sim = w.component("sim").expect("sim");
    assert_eq!((sim.ranks, sim.timeout), (4, Some(Duration::from_secs(120))));
    assert!(sim.program.as_ref().is_some_and(|p| p.is_absolute()), "{:?}", sim.program);
    assert_eq!(w.component("viz").expect("viz").program, None, "forebay is this binary itself");
    assert_eq!(w.component("viz").expect("viz").ranks, 1);
}

#[test]
fn unknown_keys_are_named_with_line_and_neighbour() {
    for (from, to, line, near) in [
        ("quota =", "quote =", 9, "quota"),
        ("ranks = 4", "rank = 4", 17, "ranks"),
        ("name = \"heat\"", "nam = \"heat\"", 3, "name"),
        ("[channel.u]", "[chanel.u]", 7, "channel"),
    ] {
        let error = refused(&replaced(from, to));
        assert_eq!(error.kind(), Kind::UnknownKey, "{error}");
        assert!(error.hint_text().is_some_and(|h| h.contains(&format!("did you mean {near}"))), "{error}");
        assert!(error.to_string().contains(&format!("w.toml:{line}")), "line {line}: {error}");
    }
    let error = refused(&replaced("writes = [\"u\"]", "writes = [\"v\"]\nfiles = { output = \"x\" }"));
    assert_eq!(error.kind(), Kind::UnknownKey, "{error}");
}

#[test]
fn unknown_words_are_named_with_line_and_neighbour() {
    for (from, to, line, hint) in [
        ("kind = \"files\"", "kind = \"filez\"", 12, "did you mean files?"),
        ("tier = \"dram\"", "when_full = \"spil\"", 8, "did you mean spill?"),
        ("tier = \"dram\"", "horizon = \"far\"", 8, "known here: none, epoch, write"),
    ] {
        let error = refused(&replaced(from, to));
        assert_eq!((error.kind(), error.hint_text()), (Kind::Usage, Some(hint)), "{error}");
        assert!(error.to_string().contains(&format!("w.toml:{line})")), "line {line}: {error}");
    }
    let size = refused(&replaced("\"64MiB\"", "true"));
    assert!(
        size.to_string().contains("a size: bytes, or text") && size.to_string().contains("w.toml:9"),
        "{size}"
    );
}

#[test]
fn batches_are_refused_where_nothing_could_be_gathered() {
    let with = |more: &str| replaced("quota = \"64MiB\"", &format!("quota = \"64MiB\"\n{more}"));
    let w = parse(&with("batch = \"1MiB\"")).expect("a good file");
    let said = w.channels.iter().map(|c| (c.name.as_str(), c.options.batch)).collect::<Vec<_>>();
    assert_eq!(said, [("stats", None), ("u", Some(1 << 20))]);
    for (more, says) in [
        ("batch = 100", "invalid `batch` size"),
        ("batch = \"1GiB\"", "invalid `batch` size"),
        ("batch = \"1MiB\"\nhorizon = \"write\"", "durable by itself"),
        ("batch = \"1MiB\"\nkind = \"files\"", "each object is a file"),
    ] {
        let error = refused(&with(more));
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        assert!(error.to_string().contains(says) && error.to_string().contains("w.toml:"), "{error}");
    }
}

#[test]
fn unknown_channels_are_named() {
    let error = refused(&replaced("reads = [\"u\", \"stats\"]", "reads = [\"u\", \"stat\"]"));
    assert_eq!(error.kind(), Kind::UnknownKey);
    assert!(
        error.to_string().contains("stat") && error.hint_text() == Some("did you mean stats?"),
        "{error}"
    );
    assert!(error.to_string().contains("w.toml:30"), "{error}");
}

#[test]
fn programs_must_exist() {
    let error = refused(&replaced("[\"sh\", \"-c\", \"true\"]", "[\"no-such-program-here\"]"));
    assert_eq!(error.kind(), Kind::UnknownComponent);
    assert!(error.to_string().contains("sim") && error.hint_text().is_some(), "{error}");
    let error = refused(&replaced("[\"sh\", \"-c\", \"true\"]", "[\"sh -c true\"]"));
    assert!(error.hint_text().is_some_and(|h| h.contains("list")), "{error}");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("script.py"), "").expect("writing");
    let text = replaced("[\"sh\", \"-c\", \"true\"]", "[\"./script.py\"]");
    let error = Workflow::parse(Path::new("w.toml"), dir.path(), &text).expect_err("not executable");
    assert!(error.hint_text().is_some_and(|h| h.contains("chmod")), "{error}");
    assert_eq!(refused(&replaced("[\"sh\", \"-c\", \"true\"]", "[]")).kind(), Kind::Usage);
    assert_eq!(refused(&replaced("[\"sh\", \"-c\", \"true\"]", "\"sh\"")).kind(), Kind::Usage);
}

#[test]
fn programs_are_found_beside_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("mysim");
    std::fs::write(&program, "#!/bin/sh\n").expect("writing");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    for word in ["mysim", "./mysim"] {
        let text = replaced("[\"sh\", \"-c\", \"true\"]", &format!("[\"{word}\"]"));
        let w = Workflow::parse(Path::new("w.toml"), dir.path(), &text).expect("found beside the file");
        let found = w.component("sim").and_then(|c| c.program.clone()).expect("a program");
        assert_eq!(found.canonicalize().ok(), program.canonicalize().ok());
    }
}

#[test]
fn each_channel_has_one_writer() {
    let two = refused(&replaced("writes = [\"stats\"]", "writes = [\"stats\", \"u\"]"));
    assert!(two.kind() == Kind::Usage && two.to_string().contains("sim, analysis"), "{two}");
    let none = refused(&replaced("writes = [\"stats\"]", ""));
    assert!(none.kind() == Kind::Usage && none.to_string().contains("none"), "{none}");
    let both = refused(&replaced("writes = [\"u\"]", "writes = [\"u\"]\nreads = [\"u\"]"));
    assert!(both.kind() == Kind::Usage && both.to_string().contains("both writes and reads"), "{both}");
}

#[test]
fn names_are_unique_and_usable() {
    assert_eq!(refused(&replaced("name = \"viz\"", "name = \"sim\"")).kind(), Kind::Usage);
    for bad in ["", "a/b", "../x", "-x", "a b", "ä"] {
        let error = refused(&replaced("name = \"viz\"", &format!("name = \"{bad}\"")));
        assert_eq!(error.kind(), Kind::BadName, "{bad}: {error}");
        let error = refused(&replaced("name = \"heat\"", &format!("name = \"{bad}\"")));
        assert_eq!(error.kind(), Kind::BadName, "{bad}: {error}");
    }
    let alike = refused(&format!("{GOOD}writes = [\"a-b\", \"a_b\"]\n[channel.a-b]\n[channel.a_b]\n"));
    assert_eq!(alike.kind(), Kind::BadName, "{alike}");
}

#[test]
fn numbers_and_words_must_make_sense() {
    for (from, to) in [
        ("ranks = 4", "ranks = 0"),
        ("ranks = 4", "ranks = -1"),
        ("ranks = 4", "ranks = \"four\""),
        ("\"64MiB\"", "\"64 apples\""),
        ("\"last:3\"", "\"last:0\""),
        ("\"last:3\"", "\"always\""),
        ("\"2min\"", "\"soon\""),
        ("\"2min\"", "0"),
        ("tier = \"dram\"", "tier = \"floppy\""),
        ("kind = \"files\"", "kind = \"filez\""),
        ("keep = true", "keep = true\nretention = \"released\""),
        ("keep = true", "keep = true\nmode = \"a\"\nreplace = true"),
        ("retention = \"last:3\"", "retention = \"last:3\"\nmode = \"a\""),
        ("retention = \"last:3\"", "retention = \"last:3\"\nkeep = true\nmode = \"continue\""),
        ("[env]\n", "[env]\nFOREBAY_RANK = 1\n"),
        ("name = \"heat\"", "name = \"heat\"\nname = \"cold\""),
    ] {
        let error = refused(&replaced(from, to));
        assert_eq!(error.kind(), Kind::Usage, "{to}: {error}");
        assert!(error.to_string().contains("w.toml:"), "{to} has no line: {error}");
    }
    assert_eq!(refused("not toml at all [").kind(), Kind::Usage);
    assert_eq!(refused("forebay = 1\n[workflow]\nname = \"x\"\n").kind(), Kind::Usage, "no component");
}

#[test]
fn other_versions_are_refused() {
    assert_eq!(refused(&replaced("forebay = 1", "forebay = 2")).kind(), Kind::UnknownFormat);
    let error = refused(&replaced("forebay = 1\n", ""));
    assert!(error.kind() == Kind::UnknownFormat && error.hint_text().is_some(), "{error}");
}

#[test]
fn files_need_exactly_one_channel() {
    let ok = parse(&replaced("timeout = \"2min\"", "files = { out = \"data\" }")).expect("one channel");
    assert_eq!(ok.component("sim").and_then(|c| c.files.out.clone()), Some("/data".into()));
    for (from, to) in [
        ("timeout = \"2min\"", "files = { in = \"data\" }"),
        ("reads = [\"u\", \"stats\"]", "reads = [\"u\", \"stats\"]\nfiles = { in = \"x\" }"),
        ("env = { OMP_NUM_THREADS = 1 }", "files = { in = \"x\", out = \"x\" }"),
    ] {
        assert_eq!(refused(&replaced(from, to)).kind(), Kind::Usage, "{to}");
    }
}

#[test]
fn a_missing_file_says_how_to_get_one() {
    let error = Workflow::read(Path::new("/nowhere/workflow.toml")).expect_err("no such file");
    assert_eq!(error.kind(), Kind::UnknownComponent);
    assert!(error.hint_text().is_some_and(|h| h.contains("forebay init")), "{error}");
}

#[test]
fn init_writes_a_valid_file_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = forebay_flow::init(dir.path()).expect("a new file");
    let w = Workflow::read(&file).expect("the template is valid");
    assert_eq!((w.components.len(), w.channels.len()), (2, 1));
    std::fs::write(&file, "mine").expect("writing");
    assert_eq!(forebay_flow::init(&file).expect_err("it exists").kind(), Kind::Usage);
    assert_eq!(std::fs::read_to_string(&file).expect("reading"), "mine", "nothing is overwritten");
}
