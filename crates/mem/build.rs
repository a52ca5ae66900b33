//! Keeps the C functions of other crates out of the library's symbols: preloaded, they would take the place of a
//! program's own. What it takes over itself stays visible.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // They come in archives; this crate's own functions do not.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
