//! Which nodes a run has, how programs get there, and what of the lead's environment they have there.

use std::collections::BTreeMap;
use std::ffi::OsString;

use forebay_config::{allocation, environment, Template};
use forebay_space::{Error, Kind, Result};

use crate::place::Nodes;
use crate::workflow::SET_BY_RUNNER;

/// In a job of Slurm. Nothing is bound: the ranks of a node are started by its runner.
const SRUN: &str = "srun --overlap --nodes=1 --ntasks=1 --nodelist={node} --cpu-bind=none --mem-bind=none";
/// Variables of the lead that ranks on all nodes get, beside those of Forebay.
const PASSED: &[&str] = &["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV"];

/// Names of the nodes, each once, in order.
///
/// # Errors
/// [`Kind::Usage`]: none are named outside a job of Slurm or PBS, or not plainly.
pub fn names(table: &Nodes) -> Result<Vec<String>> {
    let names = match table.names.is_empty() {
        true => allocation::nodes(&environment::process)?,
        false => Some(allocation::expanded(&table.names.join(",")).ok_or_else(|| {
            Error::new(Kind::Usage, "the names of the nodes cannot be read")
                .with("names", table.names.join(","))
                .hint("names are separated by commas, or as Slurm writes them: n[0-3]")
        })?),
    };
    let names = names.ok_or_else(|| {
        Error::new(Kind::Usage, "the nodes are not known").hint(
            "list them: names = [\"n0\", \"n1\"] in [nodes], or --nodes=n0,n1; they can be omitted only in a Slurm or \
             PBS job",
        )
    })?;
    allocation::check_names(&names)?;
    Ok(names)
}

/// The command that runs a program on a node.
///
/// # Errors
/// [`Kind::Usage`]: there is none outside a job of Slurm, or it does not name the node.
pub fn template(table: &Nodes) -> Result<Template> {
    match &table.launch {
        Some(text) => text.parse(),
        None if environment::value("SLURM_JOB_ID", &environment::process).is_some() => SRUN.parse(),
        None => Err(Error::new(Kind::Usage, "it is not known how to start programs on other nodes")
            .hint(
                "launch = \"ssh {node}\" in [nodes], or --launch 'ssh {node}'; it can be omitted only in a Slurm job",
            )),
    }
}

/// The variables that Forebay itself has on each node as here, unless the command sets them.
///
/// # Errors
/// Those of the directory of spaces.
pub fn variables() -> Result<Vec<(&'static str, OsString)>> {
    // The same place, from any directory.
    let root = std::env::var_os("FOREBAY_DIR").map(|_| forebay_space::root());
    let root = root.transpose()?;
    Ok(root.into_iter().map(|root| ("FOREBAY_DIR", root.into_os_string())).collect())
}

/// The variables that the ranks on other nodes have as if they were started from here.
pub(super) fn passed(all: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let is_passed = |name: &str| {
        let is_option = name.starts_with(environment::PREFIX)
            && (!name.starts_with(environment::CHANNEL_PREFIX) || name == "FOREBAY_CHANNEL_KIND")
            && name != "FOREBAY_DIR"
            && !SET_BY_RUNNER.contains(&name);
        PASSED.contains(&name) || is_option
    };
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    all.filter_map(text).filter(|(name, _)| is_passed(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_named_once_and_plainly() {
        let of = |list: &[&str]| {
            let table = Nodes { names: list.iter().map(ToString::to_string).collect(), ..Nodes::default() };
            names(&table).map_err(|e| e.kind())
        };
        assert_eq!(of(&["n[0-2]", "login"]).unwrap(), ["n0", "n1", "n2", "login"]);
        assert_eq!(of(&["a", "a"]), Err(Kind::Usage));
        assert_eq!(of(&["n[0-"]), Err(Kind::Usage));
        assert_eq!(of(&["../x"]), Err(Kind::Usage));
    }

    #[test]
    fn ranks_elsewhere_get_options_and_paths_but_nothing_of_this_node() {
        let all = [
            ("PATH", "/bin"),
            ("HOME", "/root"),
            ("FOREBAY_HORIZON", "epoch"),
            ("FOREBAY_DIR", "/dev/shm/x"),
            ("FOREBAY_RANK", "3"),
            ("FOREBAY_CHANNEL_HEAT", "{}"),
        ];
        let passed = passed(all.into_iter().map(|(name, value)| (name.into(), value.into())));
        let names: Vec<&str> = passed.keys().map(String::as_str).collect();
        assert_eq!(names, ["FOREBAY_HORIZON", "PATH"]);
    }
}
