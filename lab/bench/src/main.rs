//! The `forebay-lab` command: hands its arguments to the library and ends with its status.

fn main() {
    std::process::exit(forebay_lab::main_with(std::env::args_os().collect()))
}
