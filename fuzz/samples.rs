//! `samples FOLDER`: writes what each target begins with, a folder for each.

#[path = "targets.rs"]
#[allow(dead_code)]
mod targets;

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).expect("usage: samples FOLDER"));
    for (name, _) in targets::TARGETS {
        let own = folder.join(name);
        std::fs::create_dir_all(&own)?;
        for (number, sample) in targets::samples(name).iter().enumerate() {
            std::fs::write(own.join(number.to_string()), sample)?;
        }
    }
    Ok(())
}
