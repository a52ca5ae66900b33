//! Keeps the C functions of other crates out of the library's symbols: it exports what the header declares.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // They come in archives; this crate's own functions do not.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
