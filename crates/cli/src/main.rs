//! The `forebay` command: hands its arguments to the library and ends with its status.

fn main() {
    std::process::exit(forebay_cli::main_with(std::env::args_os().collect()));
}
