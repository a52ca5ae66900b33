//! `forebay mem`: exit statuses, mistakes, and what it says of a program that it ran. What programs see of it is tested
//! beside the library.

use crate::bench::Bench;
use crate::skips::skipped;

/// Whether the library lies where the command looks for it.
fn has_library() -> bool {
    let command = crate::forebay();
    let there = command.with_file_name("libforebay_mem.so").is_file();
    if !there {
        skipped("forebay mem", "the library is not built: cargo build --release -p forebay-mem");
    }
    there
}

#[test]
fn a_program_runs_in_its_budget_and_its_status_is_ours() {
    if !has_library() {
        return;
    }
    let bench = Bench::new();
    let tier = tempfile::tempdir().unwrap();
    let place = tier.path().to_str().unwrap();
    let mem = |words: &[&str]| {
        let all = ["mem", "--dram", "4MiB", "--tier", place, "--json", "--"];
        all.into_iter().chain(words.iter().copied()).map(str::to_string).collect::<Vec<_>>()
    };
    let outcome = bench.call(&mem(&["dd", "if=/dev/zero", "of=copied", "bs=16M", "count=2"]));
    outcome.wants(0);
    let seen = outcome.document();
    assert_eq!((&seen["schema"], &seen["exit_status"]), (&"forebay.mem/1".into(), &0.into()));
    assert!(seen["placed_bytes"].as_u64().unwrap() >= 16 << 20, "{seen}");
    assert!(seen["engine"] == "kernel" || seen["helped_calls"].as_u64().unwrap() > 0, "{seen}");
    assert!(seen["engine"] == "kernel" || seen["resident_peak"].as_u64().unwrap() <= 4 << 20, "{seen}");
    let seen = bench.call(&mem(&["sh", "-c", "echo said; exit 3"]));
    assert_eq!(seen.wants(3).complains("said").document()["engine"], "none");
    bench.call(&mem(&["sh", "-c", "kill -TERM $$"])).wants(143);
    assert_eq!(std::fs::read_dir(tier.path()).unwrap().count(), 0, "something is left");
}

#[test]
fn what_was_not_under_the_budget_is_said() {
    if !has_library() {
        return;
    }
    let bench = Bench::new();
    let tier = tempfile::tempdir().unwrap();
    let place = tier.path().to_str().unwrap();
    let mem = |words: &[&str]| {
        let all = ["mem", "--dram", "4MiB", "--tier", place, "--"];
        bench.call(&all.iter().chain(words).copied().collect::<Vec<_>>())
    };
    mem(&["dd", "if=/dev/zero", "of=copied", "bs=16M", "count=1"])
        .wants(0)
        .complains("16.0 MiB under the budget");
    // Most allocations of an interpreter are short ones.
    let many = "l = [bytes(5000) for i in range(20000)]; print(len(l))";
    mem(&["python3", "-c", many]).wants(0).complains("warning: most of the program's memory");
}

#[test]
fn a_full_tier_ends_a_program_with_a_line() {
    if !has_library() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script =
        "truncate -s 40m image && mkfs.ext4 -q -F -m 0 image && mkdir -p tier && mount -o loop image tier \
        && exec \"$@\"";
    let mounted = |words: &[&str]| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).args(words).current_dir(folder.path());
        command.output()
    };
    if !mounted(&["true"]).is_ok_and(|output| output.status.success()) {
        return skipped("forebay mem on a full tier", "no mkfs.ext4, or no right to mount an image");
    }
    let program = "b = bytearray(100 << 20)\nfor at in range(0, len(b), 4096): b[at] = 1";
    let command = crate::forebay().to_str().unwrap();
    let engines: &[&str] =
        match forebay_tier::window::userfault().is_ok_and(|can| can.signals && can.write_protect) {
            true => &["kernel", "userfault"],
            false => &["kernel"],
        };
    for engine in engines {
        let words = ["--dram", "8MiB", "--tier", "tier", "--capacity", "250MiB", "--engine", engine];
        let all =
            [&["timeout", "60", command, "mem"][..], &words, &["--", "python3", "-c", program]].concat();
        let output = mounted(&all).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(135), "{engine}: {errors}");
        assert!(errors.contains("has no space for is SIGBUS"), "{engine}: {errors}");
        assert!(errors.lines().count() < 8, "{engine}: {errors}");
    }
}

#[test]
fn mistakes_are_said_before_the_program_begins() {
    if !has_library() {
        return;
    }
    let bench = Bench::new();
    let tier = tempfile::tempdir().unwrap();
    let place = tier.path().to_str().unwrap();
    for (words, status, text) in [
        (&["--dram", "1MiB", "--tier", place][..], 2, "too small"),
        (&["--dram", "8MiB", "--tier", "/dev/shm"], 2, "file system in memory"),
        (&["--dram", "8MiB", "--tier", "/nowhere"], 2, "/nowhere"),
        (&["--dram", "8MiB", "--tier", place, "--tile", "5KiB"], 2, "power of two"),
        (&["--dram", "8MiB", "--tier", place, "--threshold", "4KiB"], 2, "--threshold is below --tile"),
        (&["--dram", "8MiB", "--tier", place, "--engine", "magic"], 2, "not a window engine"),
    ] {
        let all: Vec<&str> =
            ["mem"].into_iter().chain(words.iter().copied()).chain(["--", "touch", "begun"]).collect();
        bench.call(&all).wants(status).complains(text);
        assert!(!bench.work().join("begun").exists(), "{all:?}");
    }
    bench.call(&["mem", "--dram", "8MiB", "--tier", place, "--", "no-such-program"]).wants(2);
}
