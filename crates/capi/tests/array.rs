//! Arrays larger than memory, and windows on them, as C and Fortran programs see them.

mod support;

use support::{have, here, must, Workshop, STRICT_C};

/// On a disk: tmpfs has no transfers past the page cache.
fn elsewhere() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn c_pages_an_array_through_a_quarter_of_its_memory() {
    if !have("cc", "arrays from C") {
        return;
    }
    let (shop, folder) = (Workshop::new(), elsewhere());
    shop.cc(&here().join("tests/c/array.c"), "array-c", &[&STRICT_C[..], &["-pthread"]].concat());
    assert_eq!(must(shop.program("array-c", &[folder.path().join("array")])), "ok\n");
}

#[test]
fn fortran_pages_an_array() {
    if !have("gfortran", "arrays from Fortran") {
        return;
    }
    let (shop, folder) = (Workshop::new(), elsewhere());
    shop.fortran(&here().join("tests/fortran/array.f90"), "array-f");
    assert_eq!(must(shop.program("array-f", &[folder.path().join("array")])).trim(), "ok");
}

#[test]
fn c_sees_a_file_as_memory() {
    if !have("cc", "windows from C") {
        return;
    }
    let (shop, folder) = (Workshop::new(), elsewhere());
    shop.cc(&here().join("tests/c/window.c"), "window-c", &[&STRICT_C[..], &["-pthread"]].concat());
    for engine in ["userfault", "kernel", "handler"] {
        let said = must(shop.program("window-c", &[folder.path().join("window"), engine.into()]));
        match said.strip_prefix("skipped: ") {
            Some(why) => support::skip(&format!("a window of engine {engine} from C"), why.trim()),
            None => assert_eq!(said, "ok\n", "{engine}"),
        }
    }
}
