//! What every command line of the project shares: global options, help texts, parsing, and the panic guard.
//!
//! Guarantees: [`guarded`] and [`parsed`] never end the process and never panic; their result is the exit status.
//! Errors of the command line itself come in the form that the user asked for, text or JSON. It knows no verb.

use std::ffi::OsString;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::LazyLock;

use clap::{Command, FromArgMatches};
use forebay_config::environment;
use forebay_tier::{Error, Kind, Result};

pub(crate) mod again;
pub(crate) mod companion;
pub(crate) mod looks;
pub(crate) mod nodes;
pub mod output;
pub(crate) mod paths;
pub(crate) mod profiles;
pub mod sizes;
pub(crate) mod spaces;

use output::{schema, Colour, Output};

/// Widest help text; wider lines are hard to read.
pub const HELP_COLUMNS_MAX: usize = 100;

/// What a script can rely on.
pub const EXIT_STATUS: &str =
    "Exit status: 0 ok, 2 usage, 3 not possible here, 4 a component failed, 5 permission \
    missing, 6 capacity, 7 timed out or peer missing, 8 data check failed, 70 internal, 128+n signal.";

/// Options of every verb.
#[derive(clap::Args, Debug)]
pub struct Global {
    /// Print one JSON document on stdout instead of text.
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,
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
    pub colour: Colour,
}

/// Version, target and features of this build, for `--version`.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
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

/// The end of the long help: the variables of the environment, and the exit status.
pub fn environment_help() -> String {
    let lines = environment::variables().map(|variable| (variable.name, variable.meaning()));
    let lines = lines.filter(|(_, meaning)| !meaning.starts_with("tests only"));
    let lines: String = lines.map(|(name, meaning)| format!("  {name:<22}{meaning}\n")).collect();
    format!(
        "Environment:\n{lines}\nOther variables that begin with FOREBAY_ have no effect, which is said; likely \
         misspellings are refused.\n\n{EXIT_STATUS}"
    )
}

/// Runs `command`, which gets whether `args` ask for JSON; a panic becomes an internal error.
pub fn guarded(args: &[OsString], command: impl FnOnce(bool) -> i32) -> i32 {
    let json = args.iter().skip(1).take_while(|a| *a != "--").any(|a| a == "--json");
    match catch_unwind(AssertUnwindSafe(|| command(json))) {
        Ok(status) => status,
        Err(_) => {
            // The panic hook has printed what and where.
            let error =
                Error::new(Kind::Internal, "this is a bug of forebay").hint("report it with the lines above");
            Output::new(json, Colour::Auto).error(&error)
        }
    }
}

/// Parses `args`, which begin with the program's name, checks the environment and runs `dispatch`.
pub fn parsed<C: FromArgMatches + AsRef<Global>>(
    args: Vec<OsString>,
    json: bool,
    command: Command,
    dispatch: impl FnOnce(&C, &Output) -> Result<i32>,
) -> i32 {
    // Errors of the command line itself come before its options are known.
    let command = match args.iter().any(|arg| arg == "--colour=never" || arg == "--color=never") {
        true => command.color(clap::ColorChoice::Never),
        false => command,
    };
    let parsed = command.try_get_matches_from(args).and_then(|matches| C::from_arg_matches(&matches));
    let line = match parsed {
        Ok(line) => line,
        Err(e) => return not_parsed(&e, json),
    };
    let global = line.as_ref();
    let out = Output::new(global.json, global.colour);
    // A misspelt variable is an error before anything happens.
    let outcome = environment::check().and_then(|()| dispatch(&line, &out));
    outcome.unwrap_or_else(|e| out.error(&e))
}

/// Help, version and usage errors, in the form the user asked for.
pub fn not_parsed(e: &clap::Error, json: bool) -> i32 {
    let failed = e.use_stderr();
    if !json {
        // A closed stream is not an error here.
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
pub fn usage_error(text: &str) -> Error {
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
    fn version_names_target_and_features() {
        let text = VERSION.as_str();
        assert!(text.starts_with(env!("CARGO_PKG_VERSION")));
        assert!(text.contains("target: ") && text.contains("features: "));
    }
}
