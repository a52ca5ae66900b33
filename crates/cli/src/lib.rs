//! The `forebay` command as a library, so that the Python package carries it too.
//!
//! Guarantees: [`main_with`] never ends the process itself and never panics; data goes to stdout, everything
//! else to stderr; the result is the exit status of the design: 0 ok, 2 usage, 3 not possible here, 4 a
//! component failed, 5 permission missing, 6 capacity, 7 timed out or peer missing, 8 data check failed, 70
//! internal, 128+n signal. One file per verb; what verbs share is in `output` and `spaces`. No verb knows a
//! file format.
#![forbid(unsafe_code)]

mod advise;
mod app;
mod bench;
mod cat;
mod ckpt;
mod clean;
mod completions;
mod doctor;
mod drain;
mod exec;
mod init;
mod ls;
mod man;
mod mem;
mod metrics;
pub mod output;
mod plan;
mod probe;
mod report;
mod run;
mod spaces;
mod top;
mod verify;

use std::ffi::OsString;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use forebay_tier::{Error, Kind, Result};

use output::{schema, Colour, Output};

/// Widest help text; wider lines are hard to read.
const HELP_COLUMNS_MAX: usize = 100;

/// What a script can rely on.
const EXIT_STATUS: &str =
    "Exit status: 0 ok, 2 usage, 3 not possible here, 4 a component failed, 5 permission \
    missing, 6 capacity, 7 timed out or peer missing, 8 data check failed, 70 internal, 128+n signal.";

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

/// Options of every verb.
#[derive(clap::Args, Debug)]
struct Global {
    /// Print one JSON document on stdout instead of text.
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    /// When to colour; NO_COLOR is honoured.
    #[arg(
        long,
        alias = "color",
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        hide_possible_values = true,
        help_heading = "Everywhere",
        help = "When to colour: auto, always, never; NO_COLOR is honoured"
    )]
    colour: Colour,
}

#[derive(Subcommand, Debug)]
enum Verb {
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
    Bench(bench::Args),
    App(app::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// Version, target and features of this build, for `--version`.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let libc = match (cfg!(target_env = "gnu"), cfg!(target_env = "musl")) {
        (true, _) => "gnu",
        (_, true) => "musl",
        _ => "other",
    };
    let linkage = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic" };
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    format!(
        "{}\ntarget: {}-{}-{libc}, {linkage}, {profile}\nfeatures: tiers dram file pmem; channels space \
         files; exchange on one node",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
    )
});

/// The command line with everything that help and manual show.
fn command() -> Command {
    let variables =
        forebay_space::environment::VARIABLES.iter().filter(|v| !v.meaning.starts_with("tests only"));
    let lines: String = variables.map(|v| format!("  {:<22}{}\n", v.name, v.meaning)).collect();
    Cli::command().version(VERSION.as_str()).after_long_help(format!(
        "Environment:\n{lines}\nOther variables that begin with FOREBAY_ have no effect, which is said; likely \
         misspellings are refused.\n\n{EXIT_STATUS}"
    ))
}

/// Runs the command. `args` begins with the program's name; the result is the exit status.
///
/// Blocks until the verb is done. Signals keep the disposition the caller left them in; `run` handles SIGINT,
/// SIGTERM and SIGHUP while it lasts.
pub fn main_with(args: Vec<OsString>) -> i32 {
    let json = args.iter().skip(1).take_while(|a| *a != "--").any(|a| a == "--json");
    match catch_unwind(AssertUnwindSafe(|| parse_and_run(args, json))) {
        Ok(status) => status,
        Err(_) => {
            // The panic hook has printed what and where.
            let error = Error::new(Kind::Internal, "the command met a state that should be impossible")
                .hint("please report the lines above");
            Output::new(json, Colour::Auto).error(&error)
        }
    }
}

/// [`main_with`] for a caller whose executable is not this command but an interpreter that carries it.
///
/// `self_command` are the words that start the command again, as `[sys.executable, "-m", "forebay"]`: `run`
/// starts ranks and helpers through it. `libraries` is the folder of the libraries that came with it. Those of the
/// first call in a process count.
pub fn main_with_command(args: Vec<OsString>, self_command: Vec<OsString>, libraries: PathBuf) -> i32 {
    run::set_self_command(self_command);
    mem::set_libraries(libraries);
    main_with(args)
}

fn parse_and_run(args: Vec<OsString>, json: bool) -> i32 {
    if let Some(outcome) = args.get(1).and_then(|v| v.to_str()).and_then(|verb| run::hidden(verb, &args[2..]))
    {
        return outcome.unwrap_or_else(|e| Output::new(false, Colour::Auto).error(&e));
    }
    if let Some(script) = run::script_of_interpreter(args.first()) {
        run::set_self_command(script);
    }
    // Errors of the command line itself come before its options are known.
    let command = match args.iter().any(|arg| arg == "--colour=never" || arg == "--color=never") {
        true => command().color(clap::ColorChoice::Never),
        false => command(),
    };
    let parsed = command.try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(e) => return not_parsed(&e, json),
    };
    let out = Output::new(cli.global.json, cli.global.colour);
    // A misspelt variable is an error before anything happens.
    let outcome = forebay_space::environment::check().and_then(|()| dispatch(&cli.verb, &out));
    outcome.unwrap_or_else(|e| out.error(&e))
}

fn dispatch(verb: &Verb, out: &Output) -> Result<i32> {
    match verb {
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
        Verb::Bench(args) => bench::run(args, out),
        Verb::App(args) => app::run(args, out),
        Verb::Completions(args) => completions::run(args, out),
        Verb::Man(args) => man::run(args, out),
    }
}

/// Help, version and usage errors, in the form the user asked for.
fn not_parsed(e: &clap::Error, json: bool) -> i32 {
    let failed = e.use_stderr();
    if !json {
        // A closed stream is nobody's error here.
        let _ = e.print();
        return if failed { Kind::Usage.exit_code() } else { 0 };
    }
    let out = Output::new(true, Colour::Never);
    let text = e.render().to_string();
    if !failed {
        #[derive(serde::Serialize)]
        struct Body {
            text: String,
        }
        return out.document(schema::HELP, &Body { text }).map_or_else(|e| out.error(&e), |()| 0);
    }
    out.error(&usage_error(&text))
}

/// clap's text as an error: the first paragraph is the message, tips are the hint.
fn usage_error(text: &str) -> Error {
    let first = text.split("\n\n").next().unwrap_or(text).trim();
    let message = first.strip_prefix("error: ").unwrap_or(first);
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let tips: Vec<&str> = text.lines().filter_map(|l| l.trim().strip_prefix("tip: ")).collect();
    let error = Error::new(Kind::Usage, message);
    match tips.is_empty() {
        true => error.hint("forebay --help lists verbs and options"),
        false => error.hint(tips.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn version_names_target_and_features() {
        let text = VERSION.as_str();
        assert!(text.starts_with(env!("CARGO_PKG_VERSION")));
        assert!(text.contains("target: ") && text.contains("features: "));
    }
}
