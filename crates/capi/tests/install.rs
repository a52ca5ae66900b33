//! install.sh puts a library where pkg-config and CMake find it, shared and static; the example runs on it. place.sh
//! replaces a file whole or not at all.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{built, examples, have, here, must, skip, Running, Workshop};

fn install(shop: &Workshop, prefix: &Path) {
    let mut command = shop.command("sh");
    command.arg(here().join("install.sh")).arg(prefix).arg(built());
    must(command);
}

fn works(mut ranks: Command) {
    ranks.arg("heat");
    assert!(must(ranks).ends_with("every element as written\n"));
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[test]
fn pkg_config_finds_it() {
    if !have("cc", "installed library by pkg-config")
        || !have("pkg-config", "installed library by pkg-config")
    {
        return;
    }
    let shop = Workshop::new();
    // On disk: the static library is large, and memory may be scarce where tests run.
    let disk = tempfile::tempdir().expect("a temporary folder");
    let prefix = disk.path().join("prefix");
    install(&shop, &prefix);
    // Again over itself: an upgrade.
    install(&shop, &prefix);
    // Unstripped it has 70 MiB.
    if have("strip", "what is installed is stripped") {
        let bytes = |file: &str| std::fs::metadata(prefix.join(file)).expect("an installed file").len();
        assert!(bytes("lib/libforebay.so") <= 12 << 20, "{} bytes", bytes("lib/libforebay.so"));
        assert!(bytes("lib/.debug/libforebay.so.debug") > bytes("lib/libforebay.so"));
    }
    let ask = |arguments: &[&str]| {
        let mut command = shop.command("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(arguments).arg("forebay");
        must(command)
    };
    assert_eq!(ask(&["--modversion"]).trim(), env!("CARGO_PKG_VERSION"));
    let mut command = shop.command("cc");
    command.arg(examples().join("c/ranks.c")).args(words(&ask(&["--cflags", "--libs"])));
    command.arg("-o").arg(shop.path("ranks"));
    must(command);
    let mut ranks = shop.program::<&str>("ranks", &[]);
    ranks.env("LD_LIBRARY_PATH", prefix.join("lib"));
    works(ranks);

    let module = PathBuf::from(ask(&["--variable=fortrandir"]).trim()).join("forebay.f90");
    assert_eq!(
        std::fs::read(module).expect("the installed module"),
        std::fs::read(here().join("fortran/forebay.f90")).expect("the module")
    );
}

#[test]
fn links_statically() {
    let what = "installed static library";
    if !have("cc", what) || !have("pkg-config", what) {
        return;
    }
    if !built().join("libforebay.a").is_file() {
        return skip(what, "cargo built no libforebay.a here");
    }
    let shop = Workshop::new();
    // On disk: the static library is large, and memory may be scarce where tests run.
    let disk = tempfile::tempdir().expect("a temporary folder");
    let prefix = disk.path().join("prefix");
    install(&shop, &prefix);
    let mut ask = shop.command("pkg-config");
    ask.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--static", "--libs-only-l", "forebay"]);
    let libraries = must(ask);
    let mut command = shop.command("cc");
    command.arg("-I").arg(prefix.join("include")).arg(examples().join("c/ranks.c"));
    command.arg(prefix.join("lib/libforebay.a"));
    command.args(words(&libraries).into_iter().filter(|word| *word != "-lforebay"));
    command.arg("-o").arg(shop.path("ranks"));
    must(command);
    works(shop.program::<&str>("ranks", &[]));
}

#[test]
fn cmake_finds_it() {
    if !have("cc", "installed library by CMake") || !have("cmake", "installed library by CMake") {
        return;
    }
    let shop = Workshop::new();
    // On disk: the static library is large, and memory may be scarce where tests run.
    let disk = tempfile::tempdir().expect("a temporary folder");
    let prefix = disk.path().join("prefix");
    install(&shop, &prefix);
    let configure = |version: &str, build: &str| {
        let source = shop.path(&format!("source-{build}"));
        std::fs::create_dir_all(&source).expect("a folder");
        std::fs::copy(examples().join("c/ranks.c"), source.join("ranks.c")).expect("the example");
        let list = std::fs::read_to_string(examples().join("c/CMakeLists.txt"))
            .expect("the example's CMakeLists.txt");
        let list = list.replace("find_package(Forebay 0.1 ", &format!("find_package(Forebay {version} "));
        std::fs::write(source.join("CMakeLists.txt"), list).expect("a CMakeLists.txt");
        let mut command = shop.command("cmake");
        command.arg("-S").arg(source).arg("-B").arg(shop.path(build));
        command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        command
    };
    must(configure("0.1", "build"));
    let mut command = shop.command("cmake");
    command.arg("--build").arg(shop.path("build"));
    must(command);
    works(shop.command(shop.path("build/ranks")));
    // A version that this one does not promise to be is refused.
    assert_ne!(Running::start(configure("7.0", "other")).output().status.code(), Some(0));
}

#[test]
fn says_what_is_wrong() {
    let shop = Workshop::new();
    for arguments in [vec![], vec!["prefix", "/nowhere"], vec!["a", "b", "c"]] {
        let mut command = shop.command("sh");
        command.arg(here().join("install.sh")).args(&arguments);
        let output = command.output().expect("sh runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("install.sh: "), "{arguments:?}");
    }
    assert!(!shop.path("prefix").exists(), "nothing was made before the check");
}

/// Files with their bytes, and folders, below a folder.
fn below(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(below(&path));
        }
        let bytes = path.is_file().then(|| std::fs::read(&path).expect("a file"));
        found.insert(path, bytes);
    }
    found
}

fn place(shop: &Workshop, shell: &str, installed: &str) -> Command {
    let mut command = shop.command(shell);
    command.arg(here().join("../../packaging/place.sh")).args(["built", installed]);
    command
}

#[test]
fn a_directory_is_not_replaced() {
    let shop = Workshop::new();
    std::fs::write(shop.path("built"), "new").expect("a file");
    std::fs::create_dir_all(shop.path("to/folder")).expect("a folder");
    let before = below(&shop.path("to"));
    for installed in ["to/folder", "to/folder/", "to/other/"] {
        let output = Running::start(place(&shop, "sh", installed)).output();
        assert_eq!(output.status.code(), Some(1), "{installed}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with("place.sh: ") && said.lines().count() == 1, "{installed}: {said}");
        assert_eq!(below(&shop.path("to")), before, "{installed}");
    }
}

/// A stand-in for strip sends the signal, so that it comes when the debug file is made and the program is not.
#[test]
fn a_signal_leaves_what_was_there() {
    let shop = Workshop::new();
    for folder in ["to/.debug", "tools"] {
        std::fs::create_dir_all(shop.path(folder)).expect("a folder");
    }
    for (file, text) in [
        ("built", "new"),
        ("to/program", "old"),
        ("to/.debug/program.debug", "old"),
        ("tools/objcopy", "#!/bin/sh\nfor file; do :; done; echo new >\"$file\"\n"),
        ("tools/strip", "#!/bin/sh\n: >\"${1%/*}/stray\"; kill -TERM $PPID\n"),
    ] {
        std::fs::write(shop.path(file), text).expect("a file");
    }
    let mut chmod = shop.command("chmod");
    chmod.args(["+x", "tools/objcopy", "tools/strip"]);
    must(chmod);
    let before = below(&shop.path("to"));
    let search = std::env::var_os("PATH").unwrap_or_default();
    let search = std::iter::once(shop.path("tools")).chain(std::env::split_paths(&search));
    let search = std::env::join_paths(search).expect("they were split from a path");
    // Many systems have dash as sh; it differs from bash in traps.
    for shell in ["sh", "bash"] {
        if shell == "bash" && !have(shell, "place.sh with a signal in bash") {
            continue;
        }
        let mut command = place(&shop, shell, "to/program");
        command.env("PATH", &search);
        assert_eq!(Running::start(command).output().status.code(), Some(1), "{shell}");
        assert_eq!(below(&shop.path("to")), before, "{shell}");
    }
}
