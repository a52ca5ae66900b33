//! install.sh puts a library where pkg-config and CMake find it, shared and static; the example runs on it.

mod support;

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
