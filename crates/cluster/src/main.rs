//! The `forebay-agent` command: hands its arguments to the library and ends with its status.
#![forbid(unsafe_code)]

fn main() {
    std::process::exit(forebay_cluster::main_with(std::env::args_os().collect()));
}
