//! The examples in C and Fortran are built and run: two ranks write, another program reads the same array.

mod support;

use std::path::PathBuf;
use std::process::Command;
use support::{examples, have, here, must, skip, Running, Workshop, STRICT_C};

const AS_WRITTEN: &str = "every element as written\n";

#[test]
fn c_starts_its_ranks_itself() {
    if !have("cc", "C example") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&examples().join("c/ranks.c"), "ranks", &STRICT_C);
    let said = must(shop.program("ranks", &["heat"]));
    assert_eq!(said, format!("4 steps of 64 x 48 kelvin, {AS_WRITTEN}"));
}

#[test]
fn c_ranks_of_their_own_processes() {
    if !have("cc", "C example with three processes") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&examples().join("c/ranks.c"), "ranks", &STRICT_C);
    // The reader first: it waits for the space to appear.
    let start = |arguments: &[&str]| start_in_a_run(shop.program("ranks", arguments));
    let mut reader = start(&["heat", "reader"]);
    let mut second = start(&["heat", "writer", "1", "2"]);
    let mut first = start(&["heat", "writer", "0", "2"]);
    first.ends_with(0);
    second.ends_with(0);
    assert!(reader.ends_with(0).ends_with(AS_WRITTEN));
}

#[test]
fn c_ranks_through_a_file_an_object() {
    if !have("cc", "C example through files") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&examples().join("c/ranks.c"), "ranks", &STRICT_C);
    let mut ranks = shop.program("ranks", &["heat"]);
    ranks.env("FOREBAY_CHANNEL_KIND", "files");
    assert!(must(ranks).ends_with(AS_WRITTEN));
}

/// Starts a program of the one run of a test: a late one is of it, too, when the others have ended already.
fn start_in_a_run(mut command: Command) -> Running {
    command.env("FOREBAY_RUN", "/run/examples");
    Running::start(command)
}

/// Two Fortran ranks write `name` while `reader` reads.
fn fortran_ranks_with(shop: &Workshop, name: &str, reader: Command) {
    let mut reader = start_in_a_run(reader);
    let mut first = start_in_a_run(shop.program("writer", &[name, "0", "2"]));
    let mut second = start_in_a_run(shop.program("writer", &[name, "1", "2"]));
    first.ends_with(0);
    second.ends_with(0);
    assert_eq!(reader.ends_with(0), format!("3 steps of 8 x 6, {AS_WRITTEN}"));
}

#[test]
fn fortran_writes_and_c_reads() {
    if !have("gfortran", "Fortran example read by C") || !have("cc", "Fortran example read by C") {
        return;
    }
    let shop = Workshop::new();
    shop.fortran(&examples().join("fortran/writer.f90"), "writer");
    shop.cc(&examples().join("fortran/reader.c"), "reader", &STRICT_C);
    let reader = shop.program("reader", &["temperature"]);
    fortran_ranks_with(&shop, "temperature", reader);
}

/// A Python that has the package: PYTHON, the checkout's own environment, or the one on the path.
fn python() -> Option<PathBuf> {
    let candidates = [
        std::env::var_os("PYTHON").map(PathBuf::from),
        Some(here().join("../../.venv/bin/python")),
        Some(PathBuf::from("python3")),
    ];
    candidates.into_iter().flatten().find(|python| {
        let asked = Command::new(python).args(["-c", "import numpy, forebay; forebay.open"]).output();
        asked.is_ok_and(|output| output.status.success())
    })
}

#[test]
fn fortran_writes_and_python_reads() {
    let what = "Fortran example read by Python";
    let Some(python) = python() else { return skip(what, "no Python with numpy and the forebay package") };
    if !have("gfortran", what) {
        return;
    }
    let shop = Workshop::new();
    shop.fortran(&examples().join("fortran/writer.f90"), "writer");
    let mut reader = shop.command(python);
    reader.arg(examples().join("fortran/reader.py")).arg("temperature");
    fortran_ranks_with(&shop, "temperature", reader);
}
