//! Mapped regions as C, C++ and Fortran programs see them, on memory and on a disk.

mod support;

use support::{built, have, here, must, Workshop, STRICT_C};

/// A path on tmpfs and one where temporary files are, each with its tier; memory also as that of its node.
fn places(shop: &Workshop) -> (Vec<(String, String)>, tempfile::TempDir) {
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let mut places = Vec::new();
    for path in [shop.path("region"), elsewhere.path().join("region")] {
        let tier = forebay_tier::detect(path.parent().expect("it is in a folder")).expect("a tier");
        places.push((tier.to_string(), path.display().to_string()));
    }
    if places[0].0 == "dram" {
        places.push(("numa:0".to_string(), shop.path("region-of-node").display().to_string()));
    }
    (places, elsewhere)
}

#[test]
fn c_maps_persists_and_dies() {
    if !have("cc", "regions from C") {
        return;
    }
    let shop = Workshop::new();
    shop.cc(&here().join("tests/c/region.c"), "region-c", &STRICT_C);
    let (places, _folder) = places(&shop);
    for (tier, path) in places {
        assert_eq!(must(shop.program("region-c", &[tier, path])), "ok\n");
    }
}

#[test]
fn cpp_maps_persists_and_dies() {
    if !have("c++", "regions from C++") {
        return;
    }
    let shop = Workshop::new();
    let mut command = shop.command("c++");
    command.args(["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.arg("-I").arg(here().join("include")).arg(here().join("tests/c/region.c"));
    command.arg("-L").arg(built()).arg("-lforebay").arg(format!("-Wl,-rpath,{}", built().display()));
    command.arg("-o").arg(shop.path("region-cpp"));
    must(command);
    let (places, _folder) = places(&shop);
    for (tier, path) in places {
        assert_eq!(must(shop.program("region-cpp", &[tier, path])), "ok\n");
    }
}

#[test]
fn fortran_points_an_array_into_a_region() {
    if !have("gfortran", "regions from Fortran") {
        return;
    }
    let shop = Workshop::new();
    if forebay_tier::detect(&shop.path("")).expect("a tier") != forebay_tier::TierKind::Dram {
        return support::skip("regions from Fortran", "there is no tmpfs for temporary files");
    }
    shop.fortran(&here().join("tests/fortran/region.f90"), "region-f");
    assert_eq!(must(shop.program("region-f", &[shop.path("region")])).trim(), "ok");
}
