//! One pool, one shared state: processes with another FOREBAY_DIR, another control segment or an older pool file.
//!
//! Children are this test binary again: the test `child` does what `OWNERSHIP_ROLE` says and writes the outcome into a
//! file.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::options;
use forebay_space::{
    CleanOptions, Horizon, Kind, Mode, OpenOptions, Reader, Result, Retention, TierKind, Writer,
};

/// A space on a disk or in memory, two directories of shared state, and where children put their outcomes.
pub(crate) struct Stage {
    pub(crate) root: tempfile::TempDir,
    tier: TierKind,
}

impl Stage {
    /// None where the tier is not available here.
    pub(crate) fn new(tier: TierKind) -> Option<Stage> {
        let root = if tier.is_memory() { tempfile::tempdir_in("/dev/shm") } else { tempfile::tempdir() };
        let root = root.unwrap();
        if let Err(e) = forebay_tier::create(tier, &root.path().join("probe"), 4096) {
            crate::skips::skipped(&format!("ownership of a pool on {tier}"), e.message());
            return None;
        }
        fs::remove_file(root.path().join("probe")).unwrap();
        Some(Stage { root, tier })
    }

    pub(crate) fn name(&self) -> String {
        format!("{}/heat", self.root.path().display())
    }

    pub(crate) fn pool(&self) -> PathBuf {
        self.root.path().join("heat/pool")
    }

    pub(crate) fn dir(&self, which: &str) -> PathBuf {
        self.root.path().join(which)
    }

    /// A child that does `role` with FOREBAY_DIR `dir`, and where its outcome will be.
    pub(crate) fn start_with(&self, dir: &str, role: &str, variables: &[(&str, &str)]) -> (Child, PathBuf) {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let outcome = self.root.path().join(format!("outcome-{number}"));
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "ownership::child", "--nocapture", "--test-threads=1"])
            .env("OWNERSHIP_ROLE", role)
            .env("OWNERSHIP_NAME", self.name())
            .env("OWNERSHIP_TIER", self.tier.to_string())
            .env("OWNERSHIP_OUTCOME", &outcome)
            .env("FOREBAY_DIR", self.dir(dir))
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .expect("a child");
        (child, outcome)
    }

    /// A child that does `role` and ends: what came of it.
    pub(crate) fn outcome(&self, dir: &str, role: &str) -> String {
        self.outcome_with(dir, role, &[])
    }

    pub(crate) fn outcome_with(&self, dir: &str, role: &str, variables: &[(&str, &str)]) -> String {
        let (mut child, outcome) = self.start_with(dir, role, variables);
        assert!(child.wait().unwrap().success(), "{role}");
        fs::read_to_string(outcome).unwrap()
    }

    /// A child that holds the space open, and has done what it says.
    fn holder(&self, dir: &str, role: &str) -> Holder {
        self.holder_with(dir, role, &[])
    }

    fn holder_with(&self, dir: &str, role: &str, variables: &[(&str, &str)]) -> Holder {
        let (mut child, outcome) = self.start_with(dir, role, variables);
        let end = Instant::now() + Duration::from_secs(300);
        while !outcome.exists() {
            assert!(child.try_wait().unwrap().is_none(), "{role} ended");
            assert!(Instant::now() < end, "{role} did nothing");
            std::thread::sleep(Duration::from_millis(2));
        }
        Holder(child)
    }
}

/// A child that is killed at the end.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open_writer(name: &str, tier: TierKind) -> Result<Writer> {
    let horizon = if tier.is_memory() { Horizon::None } else { Horizon::Epoch };
    let keep = OpenOptions {
        tier: Some(tier),
        horizon: Some(horizon),
        retention: Some(Retention::Forever),
        mode: Mode::Append,
        ..options()
    };
    Writer::open(name, &keep)
}

/// Writes three versions behind those that are there.
fn write(name: &str, tier: TierKind) -> Result<Writer> {
    let mut w = open_writer(name, tier)?;
    let from = w.resume()?;
    for version in from..from + 3 {
        w.begin_step()?;
        w.put_array("a", &[1000], &[0], &[1000], &[version; 1000])?;
        w.end_step()?;
    }
    Ok(w)
}

/// Reads every version there is: their number.
fn read(name: &str) -> Result<u64> {
    let observer = OpenOptions { observer: true, component: Some("look".into()), ..options() };
    let mut r = Reader::open(name, &observer)?;
    let versions = r.versions()?;
    assert_eq!(versions.start, 0);
    for version in versions.clone() {
        let mut opened = r.open_version(version)?;
        assert_eq!(opened.get_array::<u64>("a", None)?, vec![version; 1000]);
        opened.end_step()?;
    }
    Ok(versions.end)
}

fn clean(name: &str) -> Result<String> {
    let report = forebay_space::clean(&CleanOptions { names: vec![name.into()], ..CleanOptions::default() })?;
    Ok(match report.kept.first() {
        Some(kept) => format!("kept: {}", kept.reason),
        None => format!("removed: {}", report.removed[0].reason),
    })
}

#[test]
fn child() {
    let Ok(role) = std::env::var("OWNERSHIP_ROLE") else { return };
    let name = std::env::var("OWNERSHIP_NAME").unwrap();
    let tier: TierKind = std::env::var("OWNERSHIP_TIER").unwrap().parse().unwrap();
    let outcome = PathBuf::from(std::env::var("OWNERSHIP_OUTCOME").unwrap());
    let say = |text: &str| {
        let new = outcome.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &outcome).unwrap();
    };
    // Until the test kills it, or is killed itself.
    let parent = std::os::unix::process::parent_id();
    let forever = || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let done = match role.as_str() {
        "write" => write(&name, tier).and_then(|w| w.close()).map(|()| "written".to_string()),
        "write and hold" => {
            let _w = write(&name, tier).unwrap();
            say("");
            return forever();
        }
        "read" => read(&name).map(|versions| format!("{versions} versions")),
        "read and hold" => {
            let observer = OpenOptions { observer: true, component: Some("look".into()), ..options() };
            let mut r = Reader::open(&name, &observer).unwrap();
            let mut opened = r.open_version(0).unwrap();
            let _view = opened.view("a", None).unwrap();
            say("");
            return forever();
        }
        "clean" => clean(&name),
        "destroy" => forebay_space::destroy(&name).map(|()| "destroyed".to_string()),
        "clean all" => forebay_space::clean(&CleanOptions::default())
            .map(|report| report.removed.iter().map(|r| format!("removed {}\n", r.name)).collect()),
        "verify" => forebay_space::verify(&name).map(|found| format!("{} damaged", found.damaged.len())),
        other => panic!("no role {other}"),
    };
    say(&done.unwrap_or_else(|e| e.to_string()));
}

const EVERY_ROLE: [&str; 5] = ["write", "read", "clean", "destroy", "verify"];

/// That all roles are refused in `dir`, with words that help.
fn all_are_refused(stage: &Stage, dir: &str, kind: Kind, words: &[&str]) {
    for role in EVERY_ROLE {
        let said = stage.outcome(dir, role);
        assert!(said.starts_with(&format!("{kind}:")), "{role} with FOREBAY_DIR {dir}: {said}");
        for word in words {
            assert!(said.contains(word), "{role}: `{word}` is missing in: {said}");
        }
    }
    assert!(stage.pool().exists());
}

#[test]
fn a_live_space_is_refused_through_another_forebay_dir() {
    for (tier, holds) in [
        (TierKind::File, "write and hold"),
        (TierKind::Direct, "write and hold"),
        (TierKind::File, "read and hold"),
    ] {
        let Some(stage) = Stage::new(tier) else { continue };
        for (round, (own, other)) in [("a", "b"), ("b", "a")].into_iter().enumerate() {
            let before = round as u64 * 6;
            if holds == "read and hold" {
                assert_eq!(stage.outcome(own, "write"), "written");
            }
            let holder = stage.holder(own, holds);
            let pid = holder.0.id().to_string();
            let own_dir = stage.dir(own).display().to_string();
            let words = match holds {
                "write and hold" => vec![pid.as_str(), own_dir.as_str(), "FOREBAY_DIR"],
                // The record names the process that made the shared state: the writer before.
                _ => vec![own_dir.as_str(), "FOREBAY_DIR"],
            };
            all_are_refused(&stage, other, Kind::NameInUse, &words);
            assert_eq!(fs::read_dir(stage.dir(other)).map_or(0, Iterator::count), round, "nothing is left");
            // Who has the same directory shares it.
            assert_eq!(stage.outcome(own, "read"), format!("{} versions", before + 3));
            drop(holder);
            // The directory that was used before holds an older state: it is not believed.
            assert_eq!(stage.outcome(other, "read"), format!("{} versions", before + 3), "{tier}");
            assert_eq!(stage.outcome(other, "write"), "written");
            assert_eq!(stage.outcome(own, "read"), format!("{} versions", before + 6), "{tier}");
        }
        assert!(stage.outcome("b", "clean").starts_with("removed"));
        assert!(!stage.pool().exists());
    }
}

/// Offset of the word `version` of a control segment.
const VERSION_AT: u64 = 8;

fn control_of(stage: &Stage, dir: &str) -> PathBuf {
    if stage.tier.is_memory() {
        return stage.pool().with_file_name("control");
    }
    let soft = fs::read_dir(stage.dir(dir)).unwrap().next().unwrap().unwrap().path();
    soft.join("control")
}

#[test]
fn a_live_control_segment_of_another_version_is_refused_and_a_dead_one_rebuilt() {
    for tier in [TierKind::Dram, TierKind::File] {
        let Some(stage) = Stage::new(tier) else { continue };
        let holder = stage.holder("a", "write and hold");
        let control = fs::OpenOptions::new().write(true).open(control_of(&stage, "a")).unwrap();
        control.write_all_at(&99u64.to_le_bytes(), VERSION_AT).unwrap();
        all_are_refused(&stage, "a", Kind::NameInUse, &["99", "release"]);
        drop(holder);
        assert_eq!(stage.outcome("a", "read"), "3 versions");
        assert_eq!(stage.outcome("a", "write"), "written");
        assert_eq!(stage.outcome("a", "read"), "6 versions");
    }
}

#[test]
fn a_control_segment_that_is_lost_under_a_live_process_is_not_made_anew() {
    for tier in [TierKind::Dram, TierKind::File] {
        let Some(stage) = Stage::new(tier) else { continue };
        let holder = stage.holder("a", "write and hold");
        fs::remove_file(control_of(&stage, "a")).unwrap();
        for role in EVERY_ROLE {
            let said = stage.outcome("a", role);
            assert!(said.starts_with("Damaged:") || said.starts_with("kept:"), "{role}: {said}");
        }
        drop(holder);
        assert_eq!(stage.outcome("a", "read"), "3 versions");
    }
}

/// Both are small, and old while a space is in use: what removes temporary files takes them.
#[test]
fn a_space_that_lost_its_lock_or_members_file_is_not_removed_while_it_is_open() {
    for tier in [TierKind::Dram, TierKind::File] {
        for lost in ["lock", "members"] {
            let Some(stage) = Stage::new(tier) else { continue };
            let holder = stage.holder("a", "write and hold");
            let path = match lost {
                "lock" => stage.pool().with_file_name(lost),
                _ => control_of(&stage, "a").with_file_name(lost),
            };
            fs::remove_file(path).unwrap();
            for role in ["clean", "clean", "read", "write"] {
                let said = stage.outcome("a", role);
                // In memory the control segment and the members file are those of the live process.
                let is_shared = tier == TierKind::Dram && lost == "lock";
                let expected = match role {
                    "read" if is_shared => said == "3 versions",
                    "write" if is_shared => said.starts_with("NameInUse:"),
                    _ => said.starts_with("Damaged:") || said.starts_with("kept:"),
                };
                assert!(expected, "{tier} {lost} {role}: {said}");
            }
            assert!(stage.pool().exists());
            drop(holder);
            assert_eq!(stage.outcome("a", "read"), "3 versions", "{tier} {lost}");
            assert!(stage.outcome("a", "clean").starts_with("removed"), "{tier} {lost}");
        }
    }
}

/// Puts an older pool file in the place of the pool: over it, or by a rename.
fn put_back(stage: &Stage, backup: &Path, by_rename: bool) {
    if by_rename {
        fs::copy(backup, stage.dir("copy")).unwrap();
        fs::rename(stage.dir("copy"), stage.pool()).unwrap();
    } else {
        let bytes = fs::read(backup).unwrap();
        let pool = fs::OpenOptions::new().write(true).open(stage.pool()).unwrap();
        pool.write_all_at(&bytes, 0).unwrap();
    }
}

#[test]
fn an_older_pool_put_back_under_a_live_process_is_recognised() {
    for tier in [TierKind::Dram, TierKind::File] {
        for by_rename in [false, true] {
            let Some(stage) = Stage::new(tier) else { continue };
            assert_eq!(stage.outcome("a", "write"), "written");
            let backup = stage.dir("backup");
            fs::copy(stage.pool(), &backup).unwrap();
            let holder = stage.holder("a", "write and hold");
            put_back(&stage, &backup, by_rename);
            for role in EVERY_ROLE {
                let said = stage.outcome("a", role);
                let refused = said.starts_with("Damaged:") || said.starts_with("kept:");
                assert!(refused && said.contains("pool"), "{tier} {by_rename} {role}: {said}");
            }
            assert!(stage.pool().exists());
            drop(holder);
            // A backup that is put back while no process uses the space is a restore.
            put_back(&stage, &backup, by_rename);
            assert_eq!(stage.outcome("a", "read"), "3 versions", "{tier} {by_rename}");
            assert_eq!(stage.outcome("a", "write"), "written");
            assert_eq!(stage.outcome("a", "read"), "6 versions");
        }
    }
}

/// A copy of the same start of the writers has the same notes: it is the versions that it lacks.
#[test]
fn writers_do_not_go_on_behind_versions_that_an_older_pool_lacks() {
    for tier in [TierKind::Dram, TierKind::File] {
        let Some(stage) = Stage::new(tier) else { continue };
        let (name, backup) = (stage.name(), stage.dir("backup"));
        let mut w = write(&name, tier).unwrap();
        fs::copy(stage.pool(), &backup).unwrap();
        w.begin_step().unwrap();
        w.put_array("a", &[1000], &[0], &[1000], &[3u64; 1000]).unwrap();
        w.end_step().unwrap();
        w.close().unwrap();
        put_back(&stage, &backup, false);
        let refused = write(&name, tier).map(drop).unwrap_err();
        assert_eq!(refused.kind(), Kind::Damaged, "{refused}");
        assert!(refused.to_string().contains("versions=3,"), "{refused}");
        assert_eq!(read(&name).unwrap_err().kind(), Kind::Damaged);
        let control = refused.context().iter().find(|(key, _)| *key == "control").unwrap().1.clone();
        fs::remove_file(control).unwrap();
        drop(write(&name, tier).unwrap());
        assert_eq!(read(&name).unwrap(), 6);
        forebay_space::destroy(&name).unwrap();
    }
}

/// As some network file systems are mounted: the record alone says whose the pool is, for as long as the machine runs.
#[test]
fn without_locks_the_owner_record_refuses_other_directories() {
    let Some(stage) = Stage::new(TierKind::File) else { return };
    let refused = [("FOREBAY_FAULT", "locks:refused")];
    let holder = stage.holder_with("a", "write and hold", &refused);
    let dir = stage.dir("a").display().to_string();
    let other = || stage.outcome_with("b", "write", &refused);
    for word in ["NameInUse:", "locks", &dir, "FOREBAY_DIR"] {
        assert!(other().contains(word), "`{word}` is missing in: {}", other());
    }
    assert_eq!(stage.outcome_with("a", "read", &refused), "3 versions");
    drop(holder);
    // Whether the owner lives is not known: still refused, and the hint says which file to remove.
    let said = other();
    assert!(said.starts_with("NameInUse:"), "{said}");
    assert_eq!(stage.outcome_with("a", "write", &refused), "written");
    let mut files = fs::read_dir(stage.pool().parent().unwrap()).unwrap().map(|e| e.unwrap().path());
    let record = files.find(|p| p.file_name().unwrap().to_string_lossy().starts_with("owner-")).unwrap();
    assert!(said.contains(&record.display().to_string()), "{said}");
    fs::remove_file(record).unwrap();
    assert_eq!(stage.outcome_with("b", "read", &refused), "6 versions");
    assert_eq!(stage.outcome_with("b", "clean", &refused), "removed: it ended and no process has it open");
}

/// Of a killed process the kernel releases the lock under which control segments are made before those of the pool. A
/// process that comes in between has to wait for the latter.
#[test]
fn the_maker_of_a_control_segment_holds_the_turn_until_it_is_in_place() {
    // A look that comes too late is none.
    let is_held = (0..20).find_map(|_| turn_of_a_maker()).expect("a look in time");
    assert!(is_held, "it is being made and the turn is free");
}

/// Whether the turn was held while a control segment was made; None: it was in place too soon for a look.
fn turn_of_a_maker() -> Option<bool> {
    let stage = Stage::new(TierKind::Dram).unwrap();
    // A new space has one when it appears: it is made anew where it was lost.
    assert_eq!(stage.outcome("a", "write"), "written");
    fs::remove_file(stage.dir("heat").join("control")).unwrap();
    // The first read of a device is that of the recovery.
    let (mut child, _) = stage.start_with("a", "write", &[("FOREBAY_FAULT", "read:delay=1500ms@1")]);
    let new = stage.dir("heat").join("control.new");
    let end = Instant::now() + Duration::from_secs(60);
    while !new.exists() && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "no control segment is made");
        std::thread::sleep(Duration::from_millis(1));
    }
    let lock = forebay_tier::pool_lock::PoolLock::open(&stage.dir("heat").join("lock")).unwrap();
    let turn = 0;
    let is_held = !lock.take(turn, true).unwrap();
    let in_time = is_held || new.exists();
    lock.release(turn);
    assert!(child.wait().unwrap().success());
    assert!(lock.take(turn, true).unwrap());
    in_time.then_some(is_held)
}
