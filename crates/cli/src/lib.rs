//! The `forebay` command as a library, so that the Python package carries it too.
//!
//! Guarantees: [`main_with`] never ends the process itself and never panics; data goes to stdout, everything
//! else to stderr; the result is the exit status of the design: 0 ok, 2 usage, 3 not possible here, 4 a
//! component failed, 5 permission denied, 6 out of space, 7 timed out or peer missing, 8 data check failed, 70
//! internal, 128+n signal. One file per verb; what verbs share is in `command`. No verb knows a file format.
#![forbid(unsafe_code)]

mod advise;
mod agent;
mod cat;
mod ckpt;
mod clean;
pub mod command;
mod completions;
mod demo;
mod doctor;
mod drain;
mod exec;
mod init;
mod lab;
mod ls;
mod man;
mod mem;
mod metrics;
mod plan;
mod probe;
mod report;
mod run;
mod top;
mod verify;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Command, CommandFactory, Parser, Subcommand};
use forebay_tier::{Error, Result};

pub use command::{output, sizes};

use command::again;
use command::nodes::OnNodes;
use command::output::{Colour, Output};
use command::{environment_help, guarded, parsed, Global, EXIT_STATUS, HELP_COLUMNS_MAX, VERSION};

/// Keep the data of HPC workflows on the right tier of the memory hierarchy.
///
/// Programs exchange versioned n-dimensional arrays through spaces: named places in memory or on storage,
/// without a server. `forebay run` starts coupled programs, the other verbs look into what they do.
#[derive(Parser, Debug)]
#[command(
    name = "forebay",
    version,
    max_term_width = HELP_COLUMNS_MAX,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    after_help = EXIT_STATUS,
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

impl AsRef<Global> for Cli {
    fn as_ref(&self) -> &Global {
        &self.global
    }
}

#[derive(Subcommand, Debug)]
enum Verb {
    Demo(demo::Args),
    Run(run::Args),
    Advise(advise::Args),
    Plan(plan::Args),
    Exec(exec::Args),
    Mem(mem::Args),
    Report(report::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Verify(verify::Args),
    Clean(clean::Args),
    Drain(drain::Args),
    Ckpt(ckpt::Args),
    Top(top::Args),
    Metrics(metrics::Args),
    Doctor(doctor::Args),
    Probe(probe::Args),
    Init(init::Args),
    Agent(agent::Args),
    Bench(lab::Bench),
    App(lab::App),
    Completions(completions::Args),
    Man(man::Args),
}

impl Verb {
    /// The nodes on which it is to be done, and the paths that it is told.
    fn on_nodes(&self, out: &Output) -> Option<(OnNodes, Vec<PathBuf>)> {
        let (on, paths) = match self {
            Verb::Top(args) => return Some((args.on_nodes(out)?, args.paths())),
            Verb::Metrics(args) => (args.on_nodes(out)?, args.paths()),
            Verb::Ls(args) => (&args.on, args.paths()),
            Verb::Verify(args) => (&args.on, args.paths()),
            Verb::Clean(args) => (&args.on, args.paths()),
            Verb::Doctor(args) => (&args.on, Vec::new()),
            _ => return None,
        };
        on.is_asked().then(|| (on.clone(), paths))
    }
}

/// The command line with everything that help and manual show.
fn command() -> Command {
    Cli::command().version(VERSION.as_str()).after_long_help(environment_help())
}

/// Runs the command. `args` begins with the program's name; the result is the exit status.
///
/// Blocks until the verb is done. Signals keep the disposition the caller left them in; `run` handles SIGINT,
/// SIGTERM and SIGHUP while it lasts.
pub fn main_with(args: Vec<OsString>) -> i32 {
    guarded(&args.clone(), |json| {
        if let Some(script) = again::script_of_interpreter(args.first()) {
            again::set_self_command(script);
        }
        if let Some(outcome) = run::hidden(&args) {
            return outcome.unwrap_or_else(|e| Output::new(false, Colour::Auto).error(&e));
        }
        if let Some(words) = lab::asked(&args) {
            let outcome = lab::exec(args.first(), words).map(|never| match never {});
            return outcome.unwrap_or_else(|e: Error| Output::new(json, Colour::Auto).error(&e));
        }
        if let Some(words) = agent::asked(&args) {
            let outcome = agent::exec(args.first(), &words).map(|never| match never {});
            return outcome.unwrap_or_else(|e: Error| Output::new(json, Colour::Auto).error(&e));
        }
        parsed::<Cli>(args.clone(), json, command(), |cli, out| match cli.verb.on_nodes(out) {
            Some((on, paths)) => on.run(&args, &paths, out),
            None => dispatch(&cli.verb, out),
        })
    })
}

/// [`main_with`] for a caller whose executable is not this command but an interpreter that carries it.
///
/// `self_command` are the words that start the command again, as `[sys.executable, "-m", "forebay"]`: `run`
/// starts ranks and helpers through it. `libraries` is the folder of the libraries that came with it. Those of the
/// first call in a process count.
pub fn main_with_command(args: Vec<OsString>, self_command: Vec<OsString>, libraries: PathBuf) -> i32 {
    again::set_self_command(self_command);
    mem::set_libraries(libraries);
    main_with(args)
}

/// The verbs with which the runner of workflows starts its own command again, for another command that runs
/// workflows. `None` where `args`, which begin with the program's name, hold none of them.
#[doc(hidden)]
pub fn runner_verb(args: &[OsString]) -> Option<i32> {
    let outcome = run::hidden(args).or_else(|| exec::planned(args));
    outcome.map(|outcome| outcome.unwrap_or_else(|e| Output::new(false, Colour::Auto).error(&e)))
}

fn dispatch(verb: &Verb, out: &Output) -> Result<i32> {
    match verb {
        Verb::Demo(args) => demo::run(args, out),
        Verb::Run(args) => run::run(args, out),
        Verb::Advise(args) => advise::run(args, out),
        Verb::Plan(args) => plan::run(args, out),
        Verb::Exec(args) => exec::run(args),
        Verb::Mem(args) => mem::run(args, out),
        Verb::Report(args) => report::run(args, out),
        Verb::Ls(args) => ls::run(args, out),
        Verb::Cat(args) => cat::run(args, out),
        Verb::Verify(args) => verify::run(args, out),
        Verb::Clean(args) => clean::run(args, out),
        Verb::Drain(args) => drain::run(args, out),
        Verb::Ckpt(args) => ckpt::run(args, out),
        Verb::Top(args) => top::run(args, out),
        Verb::Metrics(args) => metrics::run(args, out),
        Verb::Doctor(args) => doctor::run(args, out),
        Verb::Probe(args) => probe::run(args, out),
        Verb::Init(args) => init::run(args, out),
        Verb::Agent(args) => agent::run(&args.words),
        Verb::Bench(args) => lab::run("bench", &args.words),
        Verb::App(args) => lab::run("app", &args.words),
        Verb::Completions(args) => completions::run(args, out),
        Verb::Man(args) => man::run(args, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::usage_error;
    use forebay_tier::Kind;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn usage_errors_keep_message_and_tip() {
        let error = command().try_get_matches_from(["forebay", "reprot"]).unwrap_err();
        let usage = usage_error(&error.render().to_string());
        assert_eq!(usage.kind(), Kind::Usage);
        assert!(usage.message().contains("reprot"), "{usage}");
        assert!(usage.hint_text().is_some_and(|h| h.contains("'report'")), "{usage}");
    }
}
