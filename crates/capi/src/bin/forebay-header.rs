//! Writes `include/forebay.h` and the constants of `fortran/forebay.f90` from the sources.
//!
//! `cargo run -p forebay-capi --features header --bin forebay-header`; touches a file only when it changes. The
//! test `header` fails while the committed files differ.

#[path = "../header.rs"]
mod generate;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = [
        ("include/forebay.h", generate::header(manifest)),
        ("fortran/forebay.f90", generate::fortran(manifest)),
    ];
    for (file, text) in files {
        let path = manifest.join(file);
        let changed = std::fs::read_to_string(&path).map_or(true, |old| old != text);
        if changed {
            std::fs::write(&path, text)?;
        }
        println!("{file}: {}", if changed { "written" } else { "unchanged" });
    }
    Ok(())
}
