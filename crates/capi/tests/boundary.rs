//! What C programs get when things go wrong: error codes, texts and hints; a killed writer; a fork; threads.
//! And what Fortran programs get: every type and rank, reversed dimensions, stat and errmsg, error stop.

mod support;

use support::{have, here, must, Running, Workshop, STRICT_C};

#[test]
fn errors_have_codes_texts_and_hints() {
    if !have("cc", "error paths from C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/errors.c"), "errors", &STRICT_C);
    assert_eq!(must(shop.program::<&str>("errors", &[])), "ok\n");
}

#[test]
fn modes_say_what_becomes_of_a_space_that_is_there() {
    if !have("cc", "modes from C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/opening.c"), "opening", &STRICT_C);
    assert_eq!(must(shop.program("opening", &["first"])), "ok\n");
    let mut victim = Running::start(shop.program("opening", &["die"]));
    victim.wait_for_file(&shop.path("died"));
    victim.kill();
    assert_eq!(must(shop.program("opening", &["second"])), "ok\n");
}

#[test]
fn modes_go_through_the_options_of_fortran() {
    if !have("gfortran", "modes from Fortran") {
        return;
    }
    let shop = Workshop::new();
    shop.fortran(&here().join("tests/fortran/opening.f90"), "opening");
    assert_eq!(must(shop.program("opening", &["first"])).trim(), "ok");
    let mut victim = Running::start(shop.program("opening", &["die"]));
    victim.wait_for_file(&shop.path("died"));
    victim.kill();
    assert_eq!(must(shop.program("opening", &["second"])).trim(), "ok");
}

#[test]
fn descriptions_and_concatenated_variables_go_through_c() {
    if !have("cc", "descriptions from C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/describe.c"), "describe", &STRICT_C);
    assert_eq!(must(shop.program::<&str>("describe", &[])), "ok\n");
}

#[test]
fn many_objects_go_in_one_call() {
    if !have("cc", "many objects from C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/many.c"), "many", &STRICT_C);
    assert_eq!(must(shop.program::<&str>("many", &[])), "ok\n");
}

#[test]
fn threads_share_a_writer() {
    if !have("cc", "threads in C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/threads.c"), "threads", &[&STRICT_C[..], &["-pthread"]].concat());
    assert_eq!(must(shop.program::<&str>("threads", &[])), "ok\n");
}

#[test]
fn a_killed_writer_is_named_at_once_and_leaves_whole_versions() {
    if !have("cc", "killed writer seen from C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/killed.c"), "killed", &STRICT_C);
    let mut survivor = Running::start(shop.program("killed", &["heat", "writer", "0"]));
    let mut victim = Running::start(shop.program("killed", &["heat", "writer", "1"]));
    let mut reader = Running::start(shop.program("killed", &["heat", "reader"]));
    // The victim is inside its second step, the reader has seen the first one and waits for the second.
    survivor.wait_for_file(&shop.path("ready-0"));
    victim.wait_for_file(&shop.path("ready-1"));
    reader.wait_for_file(&shop.path("reading"));
    let pid = victim.pid();
    victim.kill();
    let said = reader.ends_with(0);
    assert!(said.contains("ProducerDied"), "{said}");
    assert!(said.contains(&pid.to_string()), "the text names the dead process {pid}: {said}");
    assert!(said.contains("rank 1") || said.contains("rank=1"), "the text names the rank: {said}");
}

#[test]
fn fortran_of_every_type_and_rank() {
    if !have("gfortran", "Fortran types and errors") {
        return;
    }
    let shop = Workshop::new();
    shop.fortran(&here().join("tests/fortran/types.f90"), "types");
    assert_eq!(must(shop.program("types", &["all"])).trim(), "ok");
    // Without stat, an error ends the program with its text and the exit status of the error.
    let output = Running::start(shop.program("types", &["stop"])).output();
    assert_eq!(output.status.code(), Some(2), "{}", support::streams(&output));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("forebay: StepState: "), "{text}");
}
