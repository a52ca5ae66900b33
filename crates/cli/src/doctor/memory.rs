//! Checks of where bytes can live: shared memory, its limits and who may take it away, tiers, NUMA nodes.

use std::path::{Path, PathBuf};

use forebay_config::{environment, format_bytes};
use forebay_tier::{Placement, TierKind};

use super::cgroup;
use super::machine::{is_conf, setting, tmpfs_size, Machine};
use super::Finding;
use forebay_probe::machine::Mount;

const SHM: &str = "/dev/shm";
/// One segment of a pool; a space on `dram` needs at least one.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Containers give 64 MiB by default; below this even the demo's space does not fit.
const SHM_SMALL_BYTES: u64 = 512 << 20;
/// Less than four segments of headroom: the next few versions end in a refusal.
const HEADROOM_SMALL_BYTES: u64 = 4 * SEGMENT_BYTES;
/// Where other spaces can go when shared memory cannot be had.
const ELSEWHERE: &str = "export FOREBAY_DIR=/path/on/a/scratch/disk (tier `file`: slower, but it works)";

/// The mount that counts at a path: the last one made there.
fn mounted<'a>(mounts: &'a [Mount], point: &str) -> Option<&'a Mount> {
    mounts.iter().rev().find(|m| m.point == Path::new(point))
}

/// `/dev/shm`: there, a tmpfs, writable, large enough.
pub fn shared_memory(machine: &Machine) -> Finding {
    const CHECK: &str = "shared-memory";
    let mounts = machine.mounts();
    let Some(shm) = mounted(&mounts, SHM).filter(|m| m.kind == "tmpfs" || m.kind == "ramfs") else {
        return Finding::warning(CHECK, format!("{SHM} is not a tmpfs"))
            .means("spaces on tier `dram` cannot be created in the default directory")
            .change(format!("mount -t tmpfs -o mode=1777 tmpfs {SHM}"))
            .without_root(ELSEWHERE);
    };
    if shm.has("ro") || machine.writable(SHM) == Some(false) {
        return Finding::warning(CHECK, format!("{SHM} is not writable"))
            .means("spaces on tier `dram` cannot be created in the default directory")
            .change(format!("mount -o remount,rw,mode=1777 {SHM}"))
            .without_root(ELSEWHERE);
    }
    let memory = memory_of(machine, "MemTotal");
    // Without size= a tmpfs may hold half of the memory.
    let told = shm.option("size").map_or(memory.map(|m| m / 2), |s| tmpfs_size(s, memory));
    let there = machine.file_system_size(SHM);
    let size = there.map(|r| r.size).or(told);
    let free = there.map_or(String::new(), |r| format!(", {} free", format_bytes(r.free)));
    let found = format!("{SHM} is a tmpfs of {}{free}", size.map_or("unknown size".into(), format_bytes));
    let tight = size.is_some_and(|s| s < SHM_SMALL_BYTES) || there.is_some_and(|r| r.free < SEGMENT_BYTES);
    if !tight {
        return Finding::ok(CHECK, found);
    }
    Finding::warning(CHECK, found)
        .means("a space that does not fit is refused (TierFull, exit status 6) before a page is touched")
        .change(format!(
            "mount -o remount,size=50% {SHM}; for a container, start it with --shm-size=8g or --ipc=host"
        ))
        .without_root(format!("forebay clean removes finished spaces; or {ELSEWHERE}"))
}

/// Whether other programs of this user on this node see the same `/dev/shm`.
pub fn private_shared_memory(machine: &Machine) -> Finding {
    const CHECK: &str = "private-shared-memory";
    let advice = |found: String| {
        Finding::warning(CHECK, found)
            .means(
                "programs started by another job, job step or container do not see these spaces, and \
                    theirs do not appear here; the spaces vanish with the mount",
            )
            .change("Slurm: leave /dev/shm out of Dirs= in job_container.conf; containers: --ipc=host")
            .without_root(
                "start both sides in one job step (forebay run does), or set FOREBAY_DIR to a \
                           directory that both see",
            )
    };
    let (own, first) = (machine.mounts(), machine.mounts_of("1"));
    let Some(shm) = mounted(&own, SHM) else {
        return Finding::note(CHECK, format!("{SHM} is not a mount point"))
            .means("whether other programs share it depends on the file system below it");
    };
    if shm.root != "/" {
        return advice(format!(
            "{SHM} is the directory {} of another file system, bound there for this session",
            shm.root
        ));
    }
    if machine.in_pid_namespace() == Some(true) {
        return advice(format!("{SHM} belongs to this container"));
    }
    if let Some(outside) = mounted(&first, SHM).filter(|outside| outside.device != shm.device) {
        return advice(format!(
            "{SHM} is device {} here and {} for the node's first process: a private mount",
            shm.device, outside.device
        ));
    }
    if let Some(file) = slurm_private(machine) {
        return advice(format!("{file} gives every job a {SHM} of its own"));
    }
    match first.is_empty() {
        true => Finding::note(
            CHECK,
            format!("{SHM} looks shared; the node's first process does not show its mounts"),
        )
        .means("two programs that do not find each other's space may see different mounts"),
        false => Finding::ok(CHECK, format!("{SHM} is the node's own")),
    }
}

/// The Slurm configuration file that makes `/dev/shm` private, if one does.
fn slurm_private(machine: &Machine) -> Option<&'static str> {
    const CONTAINER: &str = "/etc/slurm/job_container.conf";
    let slurm = machine.read("/etc/slurm/slurm.conf")?;
    setting(&slurm, "JobContainerType").filter(|t| t.contains("tmpfs"))?;
    let container = machine.read(CONTAINER).unwrap_or_default();
    // Settings of a node stand on one line, `NodeName=… BasePath=… Dirs=…`; /tmp and /dev/shm are the
    // default.
    let dirs =
        container.split_whitespace().rev().find_map(|w| w.strip_prefix("Dirs=")).unwrap_or("/tmp,/dev/shm");
    dirs.split(',').any(|d| d == SHM).then_some(CONTAINER)
}

/// Where spaces of short names go, and on which tier that is.
pub fn space_directory(machine: &Machine) -> Finding {
    const CHECK: &str = "space-directory";
    if !machine.is_live() {
        return Finding::ok(CHECK, format!("{SHM}/forebay-{}", machine.uid().unwrap_or(0)));
    }
    let root = root_of_spaces(machine);
    // The folder appears with the first space; until then its parent decides.
    let Some(place) = root.ancestors().find(|p| p.exists()) else {
        return Finding::warning(CHECK, format!("{} cannot be reached", root.display()));
    };
    if place.to_str().and_then(|p| machine.writable(p)) == Some(false) {
        return Finding::warning(CHECK, format!("{} is not writable", place.display()))
            .means("no space can be made under a short name")
            .without_root("set FOREBAY_DIR to a directory of your own, or give spaces as paths");
    }
    match forebay_tier::detect(place) {
        Ok(tier) => Finding::ok(CHECK, format!("{} on tier {tier}", root.display())),
        Err(e) => Finding::warning(CHECK, format!("{}: {}", root.display(), e.message()))
            .without_root("set FOREBAY_DIR to another directory"),
    }
}

/// Where short names are looked up. Not `root()`: that would make the folder, and looking must change nothing.
pub fn root_of_spaces(machine: &Machine) -> PathBuf {
    let is_given = environment::value("FOREBAY_DIR", &environment::process).is_some();
    let given = is_given.then(|| forebay_space::root_path(&environment::process).ok()).flatten();
    given.unwrap_or_else(|| Path::new(SHM).join(format!("forebay-{}", machine.uid().unwrap_or(0))))
}

/// Whether logging out takes the spaces away.
pub fn remove_ipc(machine: &Machine) -> Finding {
    const CHECK: &str = "remove-ipc";
    // systemd makes this folder when it is the node's init, and then logind is in charge of sessions.
    if !machine.exists("/run/systemd/system") {
        return Finding::ok(CHECK, "no systemd-logind here: logging out removes nothing");
    }
    let uid = machine.uid().unwrap_or(0);
    let first_user = machine
        .read("/etc/login.defs")
        .and_then(|text| text.lines().find_map(|l| l.strip_prefix("UID_MIN")?.trim().parse::<u64>().ok()))
        .unwrap_or(1000);
    let (value, file) = remove_ipc_setting(machine);
    if matches!(value.to_ascii_lowercase().as_str(), "no" | "false" | "0" | "off" | "n" | "f") {
        return Finding::ok(CHECK, format!("RemoveIPC={value} ({file}): logging out removes nothing"));
    }
    if uid < first_user {
        return Finding::ok(CHECK, format!("RemoveIPC={value} ({file}), but uid {uid} is a system user"));
    }
    let name = machine.user_name(uid);
    if name.as_ref().is_some_and(|n| machine.exists(&format!("/var/lib/systemd/linger/{n}"))) {
        return Finding::ok(CHECK, format!("RemoveIPC={value} ({file}), but this user lingers"));
    }
    Finding::warning(CHECK, format!("RemoveIPC={value} ({file})"))
        .means(
            "when your last login session on this node ends, systemd-logind deletes all your files in \
                /dev/shm: spaces vanish under running programs",
        )
        .change("RemoveIPC=no in /etc/systemd/logind.conf, then systemctl restart systemd-logind")
        .without_root(format!("loginctl enable-linger (where allowed), keep a session open, or {ELSEWHERE}"))
}

/// The value that counts and the file it stands in, in the order systemd reads them.
fn remove_ipc_setting(machine: &Machine) -> (String, String) {
    let folders = ["/usr/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/systemd"];
    let mut found = ("yes".to_string(), "systemd's default".to_string());
    let mut look = |file: String| {
        if let Some(value) = machine.read(&file).and_then(|text| setting(&text, "RemoveIPC")) {
            found = (value, file);
        }
    };
    // The main file is the one of the highest folder that has it; drop-ins come after it, sorted by their
    // name.
    if let Some(main) = folders.iter().rev().map(|f| format!("{f}/logind.conf")).find(|f| machine.exists(f)) {
        look(main);
    }
    let mut drop_ins = Vec::new();
    for (order, folder) in folders.iter().enumerate() {
        let folder = format!("{folder}/logind.conf.d");
        let names = machine.names(&folder).into_iter().filter(|n| is_conf(n));
        drop_ins.extend(names.map(|name| (name.clone(), order, format!("{folder}/{name}"))));
    }
    drop_ins.sort();
    drop_ins.into_iter().for_each(|(_, _, file)| look(file));
    found
}

/// What memory and the cgroups above still leave.
pub fn headroom(machine: &Machine) -> Finding {
    const CHECK: &str = "memory";
    let available = memory_of(machine, "MemAvailable");
    let groups = cgroup::groups(machine);
    let node = available.map_or("unknown".into(), format_bytes);
    let tightest = groups.first().filter(|g| available.is_none_or(|a| g.headroom() < a));
    let Some(group) = tightest else {
        let found = format!("{node} available on the node, no tighter memory cgroup above");
        if available.is_some_and(|a| a < HEADROOM_SMALL_BYTES) {
            return Finding::warning(CHECK, found)
                .means("spaces on tier `dram` will be refused (TierFull, exit status 6)")
                .without_root(format!("end other programs, forebay clean, or {ELSEWHERE}"));
        }
        return Finding::ok(CHECK, found);
    };
    let found = format!(
        "memory cgroup {} leaves {} of {} ({node} available on the node)",
        group.path,
        format_bytes(group.headroom()),
        format_bytes(group.limit)
    );
    let shm_free = machine.file_system_size(SHM).map(|r| r.free);
    if group.headroom() < HEADROOM_SMALL_BYTES {
        return Finding::warning(CHECK, found)
            .means(
                "pages of /dev/shm count against this group: spaces are refused (TierFull, exit status \
                    6) long before the file system is full, and programs that grow later are killed",
            )
            .change("raise memory.max (version 1: memory.limit_in_bytes) of that group")
            .without_root(format!("ask for more memory for the job (Slurm: --mem=), or {ELSEWHERE}"));
    }
    if shm_free.is_some_and(|free| group.headroom() < free) {
        return Finding::note(CHECK, found)
            .means(
                "the limit of spaces is this group, not the size of /dev/shm; Forebay checks it before it allocates \
                 pages",
            )
            .without_root("ask for more memory for the job (Slurm: --mem=)");
    }
    Finding::ok(CHECK, found)
}

/// A line of `/proc/meminfo`, in bytes.
fn memory_of(machine: &Machine, key: &str) -> Option<u64> {
    let kib = machine.value("/proc/meminfo", key)?;
    kib.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Whether shared memory can come in huge pages.
pub fn huge_pages(machine: &Machine) -> Finding {
    const CHECK: &str = "huge-pages";
    let setting = machine.read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let global = setting.as_deref().and_then(|s| Some(s.split_once('[')?.1.split_once(']')?.0.to_string()));
    let Some(global) = global else {
        return Finding::note(CHECK, "this kernel has no huge pages for shared memory").means(
            "pools use small pages: faulting them in takes longer; reading and writing is a little slower",
        );
    };
    let mounts = machine.mounts();
    let mount = mounted(&mounts, SHM).and_then(|m| m.option("huge")).unwrap_or("never").to_string();
    let found = format!("{SHM} huge={mount}, shmem_enabled {global}");
    // `force` and `deny` overrule every mount; otherwise the mount's own option counts.
    if global == "force" || (global != "deny" && mount != "never") {
        return Finding::ok(CHECK, found);
    }
    Finding::note(CHECK, found)
        .means("pools use small pages: faulting a segment in takes longer, which Forebay does ahead of need")
        .change(format!("mount -o remount,huge=within_size {SHM}"))
        .without_root("not needed: pools are faulted in before the first step")
}

/// Mounts and devices whose stores survive power failure.
pub fn persistent_memory(machine: &Machine) -> Finding {
    const CHECK: &str = "persistent-memory";
    let mounts = machine.mounts();
    let dax = mounts.iter().filter(|m| m.has("dax") && m.option("dax") != Some("never"));
    let mut found: Vec<String> = Vec::new();
    let mut refused = false;
    for mount in dax {
        let tier = machine.is_live().then(|| forebay_tier::detect(&mount.point).ok()).flatten();
        refused |= tier.is_some_and(|t| t != TierKind::Pmem);
        let verdict = match tier {
            Some(TierKind::Pmem) => "MAP_SYNC works",
            Some(_) => "MAP_SYNC refused, or not writable",
            None => "not tried",
        };
        found.push(format!("{} ({}, {verdict})", mount.point.display(), mount.kind));
    }
    let devices = machine.names("/dev").into_iter().filter(|n| n.starts_with("dax") && n.contains('.'));
    found.extend(devices.map(|n| format!("/dev/{n}")));
    if found.is_empty() {
        return Finding::note(CHECK, "no DAX mount and no /dev/dax device")
            .means(
                "tier `pmem` is not available here; what has to survive a power failure goes to tier `file`",
            )
            .without_root("not needed without such hardware");
    }
    if refused {
        return Finding::note(CHECK, found.join(", "))
            .means("a mount that refuses MAP_SYNC counts as tier `file`: every commit costs a system call")
            .change("mount with -o dax=always on a persistent-memory device; check ownership of the mount");
    }
    Finding::ok(CHECK, found.join(", "))
}

/// NUMA nodes, with those that only have memory.
pub fn numa(machine: &Machine) -> Finding {
    const CHECK: &str = "numa";
    let base = "/sys/devices/system/node";
    let is_node = |name: &String| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    let nodes: Vec<String> = machine.names(base).into_iter().filter(is_node).collect();
    let bare =
        |node: &&String| machine.read(&format!("{base}/{node}/cpulist")).is_some_and(|cpus| cpus.is_empty());
    let memory_only: Vec<&str> = nodes.iter().filter(bare).map(String::as_str).collect();
    match (nodes.len(), memory_only.is_empty()) {
        (0 | 1, _) => Finding::ok(CHECK, format!("one NUMA node: all memory is local{}", placement(machine))),
        (n, true) => Finding::ok(CHECK, format!("{n} NUMA nodes{}", placement(machine))),
        (n, false) => Finding::ok(
            CHECK,
            format!(
                "{n} NUMA nodes, memory only (CXL or alike): {}{}",
                memory_only.join(", "),
                placement(machine)
            ),
        ),
    }
}

/// How pools of tier `numa:N` come to their node, tried on the first one; nothing on a made-up machine.
fn placement(machine: &Machine) -> &'static str {
    let tried = machine.is_live().then(|| forebay_tier::device::numa::try_placement(0, SHM.as_ref()).ok());
    match tried.flatten() {
        Some(Placement::Bound) => "; tier numa:N binds its pages, as a page query confirms",
        Some(Placement::FirstTouch) => {
            "; mbind is refused, tier numa:N touches its pages from the node first"
        }
        Some(Placement::Unverified) => "; the kernel does not report the placement of pages of tier numa:N",
        // Nothing was tried on several nodes.
        Some(Placement::Interleaved(_) | Placement::TouchedInTurn(_)) | None => "",
    }
}
