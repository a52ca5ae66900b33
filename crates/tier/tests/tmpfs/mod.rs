//! A program with a tmpfs of its own, in a mount namespace of its own: nothing stays mounted when it ends.

use std::path::Path;
use std::process::Command;

/// The command that runs `program` with a tmpfs mounted on `dir` with these options. None where that is not allowed.
pub fn command_on(dir: &Path, options: &str, program: &Path) -> Option<Command> {
    let script = format!("mount -t tmpfs -o {options} forebay-test \"$1\" && shift && exec \"$@\"");
    let enter = |program: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(dir).arg(program);
        command
    };
    let is_allowed = enter(Path::new("true")).output().is_ok_and(|out| out.status.success());
    is_allowed.then(|| enter(program))
}
