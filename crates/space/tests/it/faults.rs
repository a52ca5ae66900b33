//! What a space does when its medium is full or broken: a typed error, everything committed readable, and the
//! next try works when the reason is gone.
//!
//! Faults are asked for as a user does, by `FOREBAY_FAULT`, which counts per process: each case is a child, this
//! test binary again in the test `child`.

use std::path::Path;
use std::process::Command;

use crate::support::{has_direct, options, tier_of_roots, Root};
use forebay_space::{Horizon, Kind, OpenOptions, Reader, Result, Retention, TierKind, Writer};

/// The child met a fault and got over it.
const MET: i32 = 10;
/// Nothing went wrong in it.
const UNHARMED: i32 = 11;

const VERSIONS: u64 = 6;
/// Elements of each piece: a record in a block, one of several blocks, and one larger than a segment.
const PIECES: [(&str, u64); 3] = [("small", 20), ("middle", 9000), ("large", 40_000)];

/// Runs a role with a fault plan. Returns [`MET`] or [`UNHARMED`].
fn run(role: &str, tier: TierKind, name: &str, plan: &str) -> i32 {
    let out = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "faults::child", "--nocapture", "--test-threads=1"])
        .env("SPACE_FAULT_ROLE", role)
        .env("SPACE_FAULT_TIER", tier.to_string())
        .env("SPACE_FAULT_NAME", name)
        .env("FOREBAY_FAULT", plan)
        .output()
        .expect("a child");
    match out.status.code() {
        Some(code @ (MET | UNHARMED)) => code,
        _ => panic!(
            "{role} on {tier} with {plan}: {}\n{}{}",
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        ),
    }
}

#[test]
fn child() {
    let Ok(role) = std::env::var("SPACE_FAULT_ROLE") else { return };
    let name = std::env::var("SPACE_FAULT_NAME").unwrap();
    let tier: TierKind = std::env::var("SPACE_FAULT_TIER").unwrap().parse().unwrap();
    let plan = std::env::var("FOREBAY_FAULT").unwrap();
    let met = match role.as_str() {
        "writer" => write_through_faults(&name, tier, expected_kind(&plan)),
        "poisoned" => write_until_poisoned(&name, tier),
        "reader" => read_through_faults(&name),
        other => panic!("no role {other}"),
    };
    std::process::exit(if met { MET } else { UNHARMED });
}

fn expected_kind(plan: &str) -> Kind {
    if plan.contains("enospc") {
        Kind::TierFull
    } else {
        Kind::Io
    }
}

fn value(version: u64, i: u64) -> u64 {
    version << 32 | i.wrapping_mul(0x9E37_79B9) & 0xFFFF_FFFF
}

fn space(tier: TierKind) -> OpenOptions {
    let horizon = if tier == TierKind::Dram { Horizon::None } else { Horizon::Epoch };
    OpenOptions {
        tier: Some(tier),
        horizon: Some(horizon),
        segment_bytes: Some(256 << 10),
        retention: Some(Retention::Forever),
        ..options()
    }
}

fn put(w: &mut Writer, version: u64, name: &str, elements: u64) -> Result<()> {
    let data: Vec<u64> = (0..elements).map(|i| value(version, i)).collect();
    w.put_array(name, &[elements], &[0], &[elements], &data)
}

/// What is complete is there, unchanged, for a process that opens the space now.
fn check_all(name: &str, complete: u64) {
    let observer = OpenOptions { observer: true, component: Some("look".into()), ..options() };
    let mut r = Reader::open(name, &observer).unwrap();
    assert_eq!(r.versions().unwrap(), 0..complete);
    for version in 0..complete {
        let mut r = r.open_version(version).unwrap();
        for (name, elements) in PIECES {
            let data = r.get_array::<u64>(name, None).unwrap();
            assert_eq!(data.len() as u64, elements);
            let right = data.iter().zip(0..).all(|(x, i)| *x == value(version, i));
            assert!(right, "{name} of version {version} changed");
        }
    }
}

/// Does `f` again after an error of the kind that the plan promises. The second try must work: one fault, once.
fn insist<T>(met: &mut bool, kind: Kind, mut f: impl FnMut() -> Result<T>) -> T {
    f().or_else(|e| {
        assert_eq!(e.kind(), kind, "{e}");
        assert!(!*met, "a second fault: {e}");
        *met = true;
        f()
    })
    .expect("the reason is gone")
}

fn write_through_faults(name: &str, tier: TierKind, kind: Kind) -> bool {
    let mut met = false;
    let mut w = insist(&mut met, kind, || Writer::open(name, &space(tier)));
    for version in 0..VERSIONS {
        w.begin_step().unwrap();
        for (piece, elements) in PIECES {
            let before = met;
            insist(&mut met, kind, || put(&mut w, version, piece, elements));
            if met != before {
                check_all(name, version);
            }
        }
        insist(&mut met, kind, || w.end_step());
    }
    check_all(name, VERSIONS);
    match w.close() {
        Ok(()) => met,
        Err(e) => {
            assert!(!met && e.kind() == kind, "{e}");
            check_all(name, VERSIONS);
            true
        }
    }
}

/// Every operation of every kind fails once, each in a process of its own; whatever it was, the writer goes on and
/// no reader sees anything but what was put.
fn every_operation_may_fail_once(tier: TierKind, root: &Path, faults: &[(&str, u64, usize)]) {
    for (fault, last, least) in faults {
        let mut met = 0;
        for n in 1..=*last {
            let name = format!("{}/{}-{n}", root.display(), fault.replace(':', "-"));
            let code = run("writer", tier, &name, &format!("{fault}@{n}"));
            met += usize::from(code == MET);
            check_all(&name, VERSIONS);
            forebay_space::destroy(&name).unwrap();
        }
        assert!(met >= *least, "{fault} on {tier}: only {met} of {last} faults reached the writer");
    }
}

#[test]
fn a_writer_gets_over_a_full_or_failing_memory_tier_or_where_roots_lie() {
    let root = Root::new();
    let faults =
        [("prepare:enospc", 12, 5), ("write:enospc", 48, 40), ("write:torn", 48, 40), ("word:eio", 7, 6)];
    every_operation_may_fail_once(tier_of_roots().0, Path::new(&root.name("")), &faults);
}

#[test]
fn a_writer_gets_over_a_full_or_failing_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let faults = [("prepare:enospc", 12, 5), ("write:enospc", 36, 30), ("write:torn", 36, 30)];
    every_operation_may_fail_once(TierKind::File, dir.path(), &faults);
}

#[test]
fn a_writer_past_the_page_cache_gets_over_faults_too() {
    let dir = tempfile::tempdir().unwrap();
    if !has_direct(dir.path()) {
        return;
    }
    let faults = [("prepare:enospc", 12, 5), ("write:torn", 36, 30)];
    every_operation_may_fail_once(TierKind::Direct, dir.path(), &faults);
}

fn write_until_poisoned(name: &str, tier: TierKind) -> bool {
    let mut w = match Writer::open(name, &space(tier)) {
        Ok(w) => w,
        Err(e) => {
            assert_eq!(e.kind(), Kind::Poisoned, "{e}");
            return true;
        }
    };
    for version in 0..VERSIONS {
        w.begin_step().unwrap();
        PIECES.iter().for_each(|(piece, elements)| put(&mut w, version, piece, *elements).unwrap());
        let Err(e) = w.end_step() else { continue };
        assert_eq!(e.kind(), Kind::Poisoned, "{e}");
        assert!(e.message().contains("flush failed"), "{e}");
        // For good: neither this step nor another is ever acknowledged by this handle.
        assert_eq!(w.end_step().unwrap_err().kind(), Kind::Poisoned);
        w.abort_step().unwrap();
        w.begin_version(version).unwrap();
        assert_eq!(put(&mut w, version, "small", 20).unwrap_err().kind(), Kind::Poisoned);
        check_all(name, version);
        w.abandon();
        return true;
    }
    w.close().map_err(|e| assert_eq!(e.kind(), Kind::Poisoned, "{e}")).is_err()
}

#[test]
fn a_failed_flush_poisons_the_pool_and_what_was_committed_stays() {
    let dir = tempfile::tempdir().unwrap();
    a_failed_flush_poisons(TierKind::File, dir.path());
    if has_direct(dir.path()) {
        a_failed_flush_poisons(TierKind::Direct, dir.path());
    }
}

fn a_failed_flush_poisons(tier: TierKind, dir: &Path) {
    let mut met = 0;
    for n in 1..=VERSIONS + 3 {
        let name = format!("{}/poisoned-{n}", dir.display());
        let code = run("poisoned", tier, &name, &format!("persist:eio@{n}"));
        met += u64::from(code == MET);
        if n == 1 {
            assert!(!Path::new(&name).exists(), "a space that was not made durable was left");
            continue;
        }
        // A new process finds what was acknowledged, and perhaps the version whose flush failed; then it goes on.
        let mut w = Writer::open(&name, &space(tier)).unwrap();
        let complete = w.resume().unwrap();
        let acknowledged = n.saturating_sub(3).min(VERSIONS);
        assert!((acknowledged..=acknowledged + 1).contains(&complete), "{complete} of {acknowledged}");
        check_all(&name, complete);
        for version in complete..complete + 2 {
            w.begin_step().unwrap();
            PIECES.iter().for_each(|(piece, elements)| put(&mut w, version, piece, *elements).unwrap());
            w.end_step().unwrap();
        }
        check_all(&name, complete + 2);
        drop(w);
        forebay_space::destroy(&name).unwrap();
    }
    assert_eq!(
        met,
        VERSIONS + 3,
        "creating flushes once, the incarnation once, each version once, the end once"
    );
}

fn read_through_faults(name: &str) -> bool {
    let mut met = false;
    let observer = OpenOptions { observer: true, component: Some("look".into()), ..options() };
    let mut r = insist(&mut met, Kind::Io, || Reader::open(name, &observer));
    for version in 0..VERSIONS {
        let mut r = insist(&mut met, Kind::Io, || r.open_version(version));
        for (piece, elements) in PIECES {
            let data = insist(&mut met, Kind::Io, || r.get_array::<u64>(piece, None));
            assert_eq!(data.len() as u64, elements);
            assert!(data.iter().zip(0..).all(|(x, i)| *x == value(version, i)));
            insist(&mut met, Kind::Io, || r.view(piece, None).map(drop));
        }
    }
    met
}

#[test]
fn a_read_that_fails_is_an_error_and_works_again() {
    let (of_roots, _) = tier_of_roots();
    for tier in [of_roots, TierKind::File, TierKind::Direct] {
        let root = Root::new();
        let dir = tempfile::tempdir().unwrap();
        if tier == TierKind::Direct && !has_direct(dir.path()) {
            continue;
        }
        let name = match tier {
            tier if tier == of_roots => root.name("read"),
            _ => format!("{}/read", dir.path().display()),
        };
        let mut w = Writer::open(&name, &space(tier)).unwrap();
        for version in 0..VERSIONS {
            w.begin_step().unwrap();
            PIECES.iter().for_each(|(piece, elements)| put(&mut w, version, piece, *elements).unwrap());
            w.end_step().unwrap();
        }
        for n in 1..=36 {
            assert_eq!(run("reader", tier, &name, &format!("read:eio@{n}")), MET, "read number {n}");
        }
        assert_eq!(run("reader", tier, &name, "read:eio@1000"), UNHARMED);
        drop(w);
        forebay_space::destroy(&name).unwrap();
    }
}

#[test]
fn a_plan_that_cannot_be_read_is_refused() {
    let root = Root::new();
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::child", "--nocapture", "--test-threads=1"])
        .env("SPACE_FAULT_ROLE", "reader")
        .env("SPACE_FAULT_TIER", "dram")
        .env("SPACE_FAULT_NAME", root.name("x"))
        .env("FOREBAY_FAULT", "write:melt")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("UnknownEnvironment") && said.contains("write:melt"), "{said}");
}
