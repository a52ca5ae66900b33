//! The committed header is what the sources give, compiles as strict C99 and as C++, and says what Rust says.
//!
//! Also: the shared library exports exactly the functions that the header declares. To write header and
//! Fortran constants anew: `cargo run -p forebay-capi --features header --bin forebay-header`.

mod support;

#[path = "../src/header.rs"]
mod generate;

use forebay_space::Kind;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use support::{built, have, here, must, Workshop, STRICT_C};

fn committed(file: &str) -> String {
    std::fs::read_to_string(here().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn same(file: &str, generated: &str) {
    let committed = committed(file);
    let line = committed.lines().zip(generated.lines()).position(|(a, b)| a != b);
    assert!(
        committed == generated,
        "{file} is not what the sources give, first in line {}; run \
         `cargo run -p forebay-capi --features header --bin forebay-header`",
        line.map_or(committed.lines().count().min(generated.lines().count()), |i| i) + 1
    );
}

#[test]
fn committed_files_are_what_the_sources_give() {
    same("include/forebay.h", &generate::header(&here()));
    same("fortran/forebay.f90", &generate::fortran(&here()));
}

#[test]
fn every_kind_of_error_is_in_header_and_module() {
    let (header, module) = (committed("include/forebay.h"), committed("fortran/forebay.f90"));
    for kind in Kind::ALL {
        let name = generate::constant(*kind);
        assert!(header.contains(&format!("#define {name} (-{})\n", kind.code())), "{name} in the header");
        assert!(module.contains(&format!(":: {name} = -{}\n", kind.code())), "{name} in the module");
    }
}

/// A C file that cannot be compiled when header and Rust disagree.
fn assertions() -> String {
    let mut text = String::from(
        "#include <forebay.h>\n#define SAME(name, a, b) typedef char name[(a) == (b) ? 1 : -1]\n",
    );
    let mut same = |name: &str, value: i32| {
        writeln!(text, "SAME(same_{name}, {name}, {value});").expect("a String takes everything");
    };
    for kind in Kind::ALL {
        same(&generate::constant(*kind), -i32::from(kind.code()));
    }
    for (number, dtype) in forebay::DTYPES {
        same(&format!("FB_{}", dtype.name().to_uppercase()), number);
    }
    same("FB_OK", forebay::FB_OK);
    same("FB_END_OF_STREAM", forebay::FB_END_OF_STREAM);
    same("FB_NOT_YET", forebay::FB_NOT_YET);
    same("FB_SKIPPED", forebay::FB_SKIPPED);
    same("FB_STEP", forebay::FB_STEP);
    same("FB_ANY", forebay::FB_ANY);
    same("FB_ABI_VERSION", forebay::FB_ABI_VERSION);
    same("FB_DIMENSIONS_MAX", forebay::FB_DIMENSIONS_MAX);
    for (name, bytes) in [("size_t", size_of::<usize>()), ("int", 4), ("uint64_t", 8), ("double", 8)] {
        writeln!(text, "SAME(size_of_{name}, sizeof({name}), {bytes});").expect("a String takes everything");
    }
    for (number, dtype) in forebay::DTYPES {
        writeln!(text, "/* dtype {number}: {} */", dtype.name()).expect("a String takes everything");
    }
    text.push_str("int main(void) { return fb_abi_version() == FB_ABI_VERSION ? 0 : 1; }\n");
    text
}

#[test]
fn compiles_as_c99_and_says_what_rust_says() {
    if !have("cc", "header as C99") {
        return;
    }
    let shop = Workshop::new();
    std::fs::write(shop.path("same.c"), assertions()).expect("a C file");
    shop.cc(&shop.path("same.c"), "same", &STRICT_C);
    must(shop.program::<&str>("same", &[]));
}

#[test]
fn a_difference_would_be_seen() {
    if !have("cc", "header with a wrong constant") {
        return;
    }
    let shop = Workshop::new();
    let wrong =
        assertions().replace("SAME(same_FB_TIMED_OUT, FB_TIMED_OUT, -60)", "SAME(x, FB_TIMED_OUT, -61)");
    std::fs::write(shop.path("wrong.c"), wrong).expect("a C file");
    let mut command = shop.command("cc");
    command.arg("-fsyntax-only").arg("-I").arg(here().join("include")).arg(shop.path("wrong.c"));
    assert!(!command.output().expect("cc runs").status.success());
}

#[test]
fn compiles_and_links_as_cpp() {
    if !have("c++", "header as C++") {
        return;
    }
    let shop = Workshop::new();
    let mut command = shop.command("c++");
    std::fs::write(shop.path("same.cpp"), assertions()).expect("a C++ file");
    command.args(["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.arg("-I").arg(here().join("include")).arg(shop.path("same.cpp"));
    command.arg("-L").arg(built()).arg("-lforebay").arg(format!("-Wl,-rpath,{}", built().display()));
    command.arg("-o").arg(shop.path("same"));
    must(command);
    must(shop.program::<&str>("same", &[]));
}

/// Names of the functions that the header declares.
fn declared() -> BTreeSet<String> {
    committed("include/forebay.h")
        .lines()
        .filter(|line| line.starts_with("int fb_") || line.starts_with("const char *fb_"))
        .map(|line| {
            line[line.find("fb_").expect("just seen")..line.find('(').expect("a function")].to_owned()
        })
        .collect()
}

#[test]
fn exports_what_the_header_declares_and_nothing_else() {
    if !have("nm", "exported symbols") {
        return;
    }
    let mut command = std::process::Command::new("nm");
    command.args(["-D", "--defined-only"]).arg(built().join("libforebay.so"));
    let exported: BTreeSet<String> =
        must(command).lines().filter_map(|line| line.split_whitespace().last().map(str::to_owned)).collect();
    let declared = declared();
    assert!(declared.len() > 40, "the header was read: {declared:?}");
    assert_eq!(exported, declared);
}
