//! Keeps the C functions of other crates out of the library's symbols: preloaded, they would take the place of a
//! program's own. What it takes over itself stays visible.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    // Zig's linker, which links the wheel's, knows no such option. There this package is built alone, and then no other
    // crate has any: they come with a feature that checkpoints ask for.
    let is_zig = std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zig"));
    if !is_zig {
        // They come in archives; this crate's own functions do not.
        println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    }
}
