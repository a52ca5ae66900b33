//! The job for Slurm, really run: a controller and one node on loopback, in a folder of the test, as this user.
//!
//! Where Slurm is not installed or does not start, the test says that it was skipped.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use crate::bench::{clean_environment, outcome, Bench, Outcome};
use crate::plans::{demo, expected};
use crate::skips::skipped;

/// Seconds for daemons to come up, and for a job of a second to end on a busy machine.
const UP: Duration = Duration::from_secs(20);
const ENDED: Duration = Duration::from_secs(120);

/// A controller and a node that end with the test.
struct Slurm {
    daemons: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = kill_process(Pid::from_child(daemon), Signal::TERM);
            let begin = Instant::now();
            while matches!(daemon.try_wait(), Ok(None)) && begin.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn program(name: &str) -> Option<String> {
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    places.iter().map(|dir| format!("{dir}/{name}")).find(|path| Path::new(path).exists())
}

/// A port that nobody had a moment ago.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("its address").port()
}

fn configuration(dir: &Path) -> String {
    let user = Command::new("id").arg("-un").output().expect("id").stdout;
    let (user, dir) = (String::from_utf8_lossy(&user).trim().to_owned(), dir.display());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "ClusterName=loopback\nSlurmctldHost=localhost(127.0.0.1)\nAuthType=auth/none\nCredType=cred/none\n\
         MpiDefault=none\nSlurmUser={user}\nSlurmdUser={user}\nSlurmctldPort={}\nSlurmdPort={}\n\
         SlurmctldPidFile={dir}/slurmctld.pid\nSlurmdPidFile={dir}/slurmd.pid\nStateSaveLocation={dir}\n\
         SlurmdSpoolDir={dir}/spool\nSlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/slurmd.log\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\nSwitchType=switch/none\nReturnToService=2\nInactiveLimit=0\nKillWait=5\n\
         NodeName=here NodeHostname=localhost NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN\n\
         PartitionName=all Nodes=here Default=YES MaxTime=10 State=UP OverSubscribe=FORCE\n",
        port(),
        port()
    )
}

impl Slurm {
    /// Starts it in a folder; why not, where it cannot be.
    fn start(dir: &Path) -> Result<Slurm, String> {
        let missing = |name: &str| format!("{name} is not installed");
        let find = |name: &str| program(name).ok_or_else(|| missing(name));
        let (controller, node) = (find("slurmctld")?, find("slurmd")?);
        find("sbatch")?;
        std::fs::create_dir_all(dir.join("spool")).map_err(|e| e.to_string())?;
        let file = dir.join("slurm.conf");
        std::fs::write(&file, configuration(dir)).map_err(|e| e.to_string())?;
        let mut slurm = Slurm { daemons: Vec::new() };
        for words in [&[&*controller, "-D", "-i"][..], &[&*node, "-D", "-N", "here"]] {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).env("SLURM_CONF", &file).current_dir(dir);
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            slurm.daemons.push(child.map_err(|e| e.to_string())?);
        }
        let begin = Instant::now();
        loop {
            let state = Command::new("sinfo").args(["-h", "-o", "%T"]).env("SLURM_CONF", &file).output();
            let state = state.map_err(|e| e.to_string())?;
            if String::from_utf8_lossy(&state.stdout).trim() == "idle" {
                return Ok(slurm);
            }
            let ended = slurm.daemons.iter_mut().any(|d| !matches!(d.try_wait(), Ok(None)));
            if ended || begin.elapsed() > UP {
                return Err("its daemons do not start here".to_owned());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Submits a script and waits for its end.
fn submit(bench: &Bench, slurm: &Path, script: &str) -> Outcome {
    std::fs::write(bench.file("job.sh"), script).unwrap();
    let mut command = Command::new("timeout");
    clean_environment(&mut command);
    let bin = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    command.arg(ENDED.as_secs().to_string()).args(["sbatch", "--wait", "--output=job.out", "job.sh"]);
    command.current_dir(bench.work()).env("FOREBAY_DIR", bench.root()).env("PATH", path);
    outcome(command.env("SLURM_CONF", slurm.join("slurm.conf")))
}

#[test]
fn the_job_for_slurm_does_what_the_runner_does() {
    let bench = demo();
    let dir = bench.file("slurm");
    let _slurm = match Slurm::start(&dir) {
        Ok(slurm) => slurm,
        Err(why) => return skipped("the job for Slurm", &why),
    };
    for mode in ["parallel", "serial"] {
        bench.call(&["plan", "workflow-small.toml", "--mode", mode, "-o", "plan.json"]).wants(0);
        let job = bench.call(&["plan", "workflow-small.toml", "--plan", "plan.json", "--emit", "sbatch"]);
        job.wants(0).says("#SBATCH --nodes=1");
        let ran = submit(&bench, &dir, &job.text());
        let said = std::fs::read_to_string(bench.file("job.out")).unwrap_or_default();
        assert_eq!(ran.status, Some(0), "{mode}: {ran}\n{said}");
        let file = bench.file("analysis/statistics.jsonl");
        let statistics = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{mode}: {e}\n{said}"));
        assert_eq!(statistics, expected(&bench), "{mode}");
        std::fs::remove_dir_all(bench.file("analysis")).unwrap();
        assert_eq!(bench.json(&["ls"], 0)["spaces"], serde_json::json!([]), "{mode}: a space is left");
    }
}
