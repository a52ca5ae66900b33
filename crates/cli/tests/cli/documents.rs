//! Every document of `--json` against `docs/src/formats/json.md`: names and fields.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_cli::output::schema;

use crate::bench::Bench;
use crate::page::{self, check};
use crate::writing::WriterProcess;

/// The page of the command's documents.
pub fn documented() -> BTreeMap<String, Vec<String>> {
    page::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/formats/json.md"))
}

#[test]
fn the_page_lists_exactly_the_schemas_of_the_code() {
    let page: Vec<String> = documented().into_keys().collect();
    let mut code = schema::ALL.to_vec();
    code.sort_unstable();
    assert_eq!(page, code);
}

#[test]
fn every_verb_prints_a_listed_document_with_listed_fields() {
    let bench = Bench::new();
    WriterProcess::start(&bench, "heat").finish();
    let man = bench.file("man").display().to_string();
    let pair = "forebay = 1\n[workflow]\nname = \"pair\"\n[channel.u]\n\
                [[component]]\nname = \"a\"\ncommand = [\"true\"]\nwrites = [\"u\"]\n\
                [[component]]\nname = \"b\"\ncommand = [\"true\"]\nreads = [\"u\"]\n";
    std::fs::write(bench.file("pair.toml"), pair).unwrap();
    let calls: &[(&[&str], i32, &str)] = &[
        (&["ls"], 0, schema::LS),
        (&["ls", "heat"], 0, schema::SPACE),
        (&["cat", "heat"], 0, schema::VARIABLES),
        (&["cat", "heat", "T"], 0, schema::CAT),
        (&["cat", "heat", "--attributes"], 0, schema::ATTRIBUTES),
        (&["verify"], 0, schema::VERIFY),
        (&["top"], 0, schema::TOP),
        (&["metrics"], 0, schema::METRICS),
        (&["doctor"], 0, schema::DOCTOR),
        (&["probe", "--tier", "dram", "--take", "8MiB", "--seconds", "0"], 0, schema::PROBE),
        (&["probe", "show", "optane-gen1"], 0, schema::PROFILE),
        (&["probe", "ls"], 0, schema::PROFILES),
        (&["probe", "compare", "p4800x", "p3700"], 0, schema::PROFILE_COMPARISON),
        (&["probe", "report", "p4800x", "p3700"], 0, schema::PROFILE_REPORT),
        (&["probe", "export", "p4800x", "drive.toml"], 0, schema::PROFILE_FILE),
        (&["probe", "import", "drive.toml", "--name", "drive"], 0, schema::PROFILE_FILE),
        (&["init"], 0, schema::INIT),
        (&["run"], 0, schema::RUN),
        (&["advise", "--platform", "optane-gen1"], 0, schema::ADVICE),
        (&["plan"], 0, schema::PLANS),
        (&["plan", "pair.toml", "--mode", "parallel", "-o", "plan.json"], 0, schema::PLAN),
        (&["plan", "pair.toml", "--plan", "plan.json", "--emit", "shell"], 0, schema::JOB),
        (&["report"], 0, schema::REPORT),
        (&["completions", "zsh"], 0, schema::COMPLETIONS),
        (&["man", &man], 0, schema::MAN),
        (&["--version"], 0, schema::HELP),
        (&["ls", "--help"], 0, schema::HELP),
        (&["ls", "nowhere"], 7, schema::ERROR),
        (&["clean", "heat"], 0, schema::CLEAN),
    ];
    let page = documented();
    for (words, status, name) in calls {
        let document = bench.json(words, *status);
        assert_eq!(document["schema"], *name, "{words:?}");
        check(&document, &page[*name], words);
    }
}

#[test]
fn verbs_on_checkpoints_print_listed_documents_with_listed_fields() {
    let bench = Bench::new();
    crate::ckpt::saved(&bench, &["file"], 1);
    let page = documented();
    let calls: [(&[&str], &str); 5] = [
        (&["ckpt", "list", "ck"], schema::CKPT_LIST),
        (&["ckpt", "verify", "ck"], schema::CKPT_VERIFY),
        (&["ckpt", "restore", "ck", "--to", "taken"], schema::CKPT_RESTORE),
        (&["ckpt", "advise", "ck"], schema::CKPT_ADVISE),
        (&["ckpt", "drain", "ck"], schema::CKPT_DRAIN),
    ];
    for (words, name) in calls {
        let document = bench.json(words, 0);
        assert_eq!(document["schema"], name, "{words:?}");
        check(&document, &page[name], words);
    }
}

#[test]
fn fields_of_spaces_are_those_of_the_page() {
    let bench = Bench::new();
    let writer = WriterProcess::start(&bench, "heat");
    let fields = &documented()[schema::SPACE];
    let listed = |name: &str| fields.iter().any(|f| f.rsplit('.').next() == Some(name));
    let space = &bench.json(&["ls", "heat"], 0)["space"];
    for key in space.as_object().unwrap().keys() {
        assert!(listed(key), "space.{key} is not on the page");
    }
    writer.finish();
}

#[test]
fn manual_pages_and_completions_cover_every_verb() {
    let bench = Bench::new();
    let verbs = [
        "demo",
        "run",
        "advise",
        "plan",
        "exec",
        "mem",
        "report",
        "ls",
        "cat",
        "verify",
        "clean",
        "drain",
        "ckpt",
        "top",
        "metrics",
        "doctor",
        "probe",
        "bench",
        "init",
        "app",
        "completions",
        "man",
    ];
    let dir = bench.file("man1");
    bench.call(&["man".as_ref(), dir.as_os_str()]).wants(0);
    for verb in verbs {
        let page = std::fs::read_to_string(dir.join(format!("forebay-{verb}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains("SYNOPSIS"), "{verb}");
    }
    assert!(dir.join("forebay.1").exists() && dir.join("forebay-probe-import.1").exists());
    assert!(!dir.join("forebay-exec-rank.1").exists());
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bench.call(&["completions", shell]);
        script.wants(0);
        verbs.iter().for_each(|verb| assert!(script.text().contains(verb), "{shell} lacks {verb}"));
    }
}
