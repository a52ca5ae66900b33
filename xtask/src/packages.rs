//! The packages of the workspace and the arrows between them, as `cargo metadata` tells them.

use crate::Stop;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One crate of the workspace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Package {
    /// Package name, `forebay-tier`.
    pub name: String,
    /// Names of the packages of this workspace that it uses, for any purpose (build, tests).
    pub uses: Vec<String>,
    /// Those of them that it uses in what it ships, not only for its tests or its build.
    pub ships: Vec<String>,
    /// Names of everything else it uses.
    pub outside: Vec<String>,
    /// Folder of its manifest, below the root of the workspace.
    pub folder: PathBuf,
}

/// Every crate of the workspace.
pub fn packages(root: &Path) -> Result<Vec<Package>, Stop> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--quiet"];
    let output = Command::new(cargo()).args(arguments).current_dir(root).output();
    let output = output.map_err(|e| Stop::Failed(format!("cannot run cargo metadata: {e}")))?;
    if !output.status.success() {
        return Err(Stop::Failed(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr))));
    }
    let value: Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| Stop::Failed(format!("cargo metadata printed no JSON: {e}")))?;
    Ok(read(&value, root))
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string())
}

fn read(value: &Value, root: &Path) -> Vec<Package> {
    let list = value["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let package = |package: &Value| {
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (inside, outside): (Vec<&Value>, Vec<&Value>) =
            dependencies.iter().partition(|d| d["path"].is_string());
        let names =
            |list: Vec<&Value>| list.iter().filter_map(|d| d["name"].as_str()).map(str::to_string).collect();
        let shipped = inside.iter().copied().filter(|d| d["kind"].is_null()).collect();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().unwrap_or(manifest);
        Package {
            name: package["name"].as_str().unwrap_or_default().to_string(),
            ships: names(shipped),
            uses: names(inside),
            outside: names(outside),
            folder: folder.strip_prefix(root).unwrap_or(folder).to_path_buf(),
        }
    };
    list.iter().map(package).collect()
}

/// The packages that are built and tested together. Cargo called for one of them alone builds dependencies again, with
/// other features. The Python package is built by its own tool. The agent has features of dependencies that the other
/// programs do not have: it is built and tested in a stage of its own.
pub const TOGETHER: [&str; 5] =
    ["--workspace", "--exclude", "forebay-python", "--exclude", "forebay-cluster"];

/// Builds targets of the packages that are built together, and all examples (in the folder `examples`), and says where
/// they are. `targets` are words of `cargo build`: `--lib`, `--bin NAME`.
pub fn build(root: &Path, targets: &[&str]) -> Result<PathBuf, String> {
    let mut command = Command::new(cargo());
    // With the examples, dependencies have the features that tests ask for: they are those of the tests.
    command.args(["build", "--release", "--quiet"]).args(TOGETHER).args(targets).arg("--examples");
    match command.current_dir(root).status().map_err(|e| format!("cargo: {e}"))?.success() {
        true => Ok(target_folder(root).join("release")),
        false => Err(format!("cargo did not build {}", targets.join(" "))),
    }
}

/// Builds an example and says where it is; its name is that of no other one.
pub fn example(root: &Path, name: &str) -> Result<PathBuf, String> {
    build(root, &[]).map(|folder| folder.join("examples").join(name))
}

/// Where cargo builds.
pub fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_inside_and_outside_are_told_apart() {
        let value = serde_json::json!({"packages": [{"name": "a", "manifest_path": "/root/crates/a/Cargo.toml",
            "dependencies": [{"name": "b", "path": "somewhere/b", "kind": null},
            {"name": "c", "path": "somewhere/c", "kind": "dev"}, {"name": "libc", "path": null}]}]});
        let expected = Package {
            name: "a".into(),
            uses: vec!["b".into(), "c".into()],
            ships: vec!["b".into()],
            outside: vec!["libc".into()],
            folder: "crates/a".into(),
        };
        assert_eq!(read(&value, Path::new("/root")), [expected]);
    }
}
