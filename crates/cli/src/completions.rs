//! `forebay completions`: a script that lets a shell complete verbs and options.

use clap::CommandFactory;
use clap_complete::Shell;
use forebay_tier::{Error, Kind, Result};
use serde::Serialize;

use crate::output::{schema, Output};
use crate::Cli;

/// Print a completion script for a shell.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  forebay completions fish > ~/.config/fish/completions/forebay.fish
  forebay completions zsh > \"${fpath[1]}/_forebay\"")]
pub struct Args {
    /// Which shell; without one, the one of $SHELL.
    #[arg(value_enum)]
    shell: Option<Shell>,
}

/// Runs the verb.
pub fn run(args: &Args, out: &Output) -> Result<i32> {
    #[derive(Serialize)]
    struct Body<'a> {
        shell: String,
        script: &'a str,
    }
    let shell = args.shell.or_else(Shell::from_env).ok_or_else(|| {
        Error::new(Kind::Usage, "$SHELL is not a supported shell")
            .hint("use: forebay completions bash | elvish | fish | powershell | zsh")
    })?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
    let script = String::from_utf8_lossy(&script);
    let body = Body { shell: shell.to_string(), script: &script };
    out.result(schema::COMPLETIONS, &body, || script.to_string())?;
    Ok(0)
}
