//! What the batch system says of the job of this process: its nodes, and which of them this is.
//!
//! | batch system | nodes | this node |
//! |---|---|---|
//! | Slurm | `SLURM_JOB_NODELIST` | `SLURMD_NODENAME` |
//! | PBS, Torque | the file of `PBS_NODEFILE` | the host name |
//!
//! Guarantees: names are those of the batch system, unchanged. A node is never guessed: a host name has to be one of
//! the names, or to be short or full where exactly one of them is the other. Not here: Flux, which tells the nodes of a
//! job by a command alone.

use crate::environment::{value, Lookup};
use forebay_tier::{Error, Kind, Result};

/// Nodes of a job at most.
const NODES_MAX: usize = 65_536;
/// Longest name of a node or a job.
const NAME_BYTES_MAX: usize = 100;

/// Checks the name of a node or a job.
///
/// # Errors
/// [`Kind::Usage`].
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    match !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && !name.starts_with(['.', '-'])
        && name.bytes().all(is_plain)
    {
        true => Ok(()),
        false => Err(Error::new(Kind::Usage, format!("`{}` cannot name a {what}", name.escape_debug()))
            .hint(format!(
            "use 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`; the first character cannot be `.` or `-`"
        ))),
    }
}

/// Checks the names of the nodes of a job.
///
/// # Errors
/// [`Kind::Usage`]: one is not a name, or is there twice.
pub fn check_names(nodes: &[String]) -> Result<()> {
    nodes.iter().try_for_each(|node| check_name("node", node))?;
    let mut sorted: Vec<&String> = nodes.iter().collect();
    sorted.sort();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(Error::new(Kind::Usage, format!("node {} is listed twice", twice[0]))),
        None => Ok(()),
    }
}

/// What to do where the batch system does not say the nodes.
const LIST_THEM: &str = "list the nodes: --nodes of `forebay agent start`, `names` in [nodes] of a workflow";

/// The nodes of the batch job, each once; None: none is known.
///
/// # Errors
/// [`Kind::UnknownEnvironment`]: a list that cannot be read; [`Kind::Io`]: its file cannot.
pub fn nodes(lookup: Lookup<'_>) -> Result<Option<Vec<String>>> {
    if let Some(list) = value("SLURM_JOB_NODELIST", lookup) {
        if value("SLURM_HET_SIZE", lookup).is_some() {
            return Err(Error::new(
                Kind::NotPossibleHere,
                "the node list of a heterogeneous Slurm job is not complete",
            )
            .hint(LIST_THEM));
        }
        return expanded(&list).map(Some).ok_or_else(|| {
            Error::new(Kind::UnknownEnvironment, "SLURM_JOB_NODELIST is not a list of nodes")
                .with("value", list)
                .hint(LIST_THEM)
        });
    }
    let Some(path) = value("PBS_NODEFILE", lookup) else { return Ok(None) };
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Error::io(format!("cannot read the list of nodes {path} (PBS_NODEFILE)"), e))?;
    // A line for each processor or slot.
    let mut nodes: Vec<String> = Vec::new();
    for name in text.split_whitespace() {
        if !nodes.iter().any(|node| node == name) {
            nodes.push(name.to_string());
        }
    }
    Ok((!nodes.is_empty()).then_some(nodes))
}

/// Which of `nodes` this process is on; `host` is the name of its host.
///
/// # Errors
/// [`Kind::Usage`]: none of them, or it is not clear which.
pub fn own_node(nodes: &[String], host: &str, lookup: Lookup<'_>) -> Result<String> {
    let said = value("SLURMD_NODENAME", lookup);
    let named = |name: &str| nodes.iter().find(|node| *node == name).cloned();
    if let Some(node) = said.as_deref().and_then(named).or_else(|| named(host)) {
        return Ok(node);
    }
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    let is_same = |node: &&String| short(node) == short(host) && (node.contains('.') != host.contains('.'));
    let mut same = nodes.iter().filter(is_same);
    match (same.next(), same.next()) {
        (Some(node), None) => Ok(node.clone()),
        _ => Err(Error::new(Kind::Usage, format!("host {host} is not one of the nodes of the job"))
            .with("nodes", nodes.join(","))
            .hint("name this node with --node")),
    }
}

/// The names of a list as Slurm writes them: `n[001-003,7],login`. None: it is not one.
pub fn expanded(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for item in split(list)? {
        let mut heads = vec![String::new()];
        let mut rest = item;
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, after) = after.split_once(']')?;
            let numbers = numbers(inside)?;
            if heads.len() * numbers.len() > NODES_MAX {
                return None;
            }
            let join = |head: &String| numbers.iter().map(move |n| format!("{head}{before}{n}")).collect();
            heads = heads.iter().flat_map::<Vec<String>, _>(join).collect();
            rest = after;
        }
        if item.is_empty() || rest.contains(']') || names.len() + heads.len() > NODES_MAX {
            return None;
        }
        names.extend(heads.into_iter().map(|head| head + rest));
    }
    Some(names)
}

/// The items between commas outside of brackets.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut items, mut begin, mut is_inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if is_inside => return None,
            b'[' | b']' => is_inside = byte == b'[',
            b',' if !is_inside => {
                items.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[begin..]);
    (!is_inside).then_some(items)
}

/// `001-003,7` as numbers of the width of the first one of each range.
fn numbers(inside: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
            true => text.parse::<usize>().ok(),
            false => None,
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to || to - from >= NODES_MAX || all.len() > NODES_MAX {
            return None;
        }
        all.extend((from..=to).map(|n| format!("{n:0width$}", width = first.len())));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_are_plain_and_each_is_there_once() {
        check_name("node", "n0.cluster-a_b").unwrap();
        for name in ["", ".n", "-n", "n/0", "n 0", "n*", &"n".repeat(101)] {
            assert_eq!(check_name("node", name).unwrap_err().kind(), Kind::Usage, "{name}");
        }
        check_names(&names(&["a", "b"])).unwrap();
        assert_eq!(check_names(&names(&["a", "b", "a"])).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn lists_of_slurm_are_read() {
        for (list, expected) in [
            ("n0", &["n0"][..]),
            ("n[001-003,7],login", &["n001", "n002", "n003", "n7", "login"]),
            ("nid[09-11]", &["nid09", "nid10", "nid11"]),
            ("r[1-2]n[1,3].site.org", &["r1n1.site.org", "r1n3.site.org", "r2n1.site.org", "r2n3.site.org"]),
        ] {
            assert_eq!(expanded(list), Some(names(expected)), "{list}");
        }
        for wrong in
            ["", "a,,b", "n[1-3", "n1-3]", "n[3-1]", "n[a-b]", "n[]", "n[+1]", "n[[1]]", "n[0-999999999]"]
        {
            assert_eq!(expanded(wrong), None, "{wrong}");
        }
        // Many brackets make no more names than a job may have.
        assert_eq!(expanded(&"n[0-999]".repeat(20)), None);
        let said = |name: &str| (name == "SLURM_JOB_NODELIST").then(|| "n[1-2".to_string());
        assert_eq!(nodes(&said).unwrap_err().kind(), Kind::UnknownEnvironment);
        assert_eq!(nodes(&|_: &str| None).unwrap(), None);
        let part = |name: &str| name.starts_with("SLURM_").then(|| "2".to_string());
        assert_eq!(nodes(&part).unwrap_err().kind(), Kind::NotPossibleHere);
    }

    #[test]
    fn a_file_of_pbs_names_a_node_for_each_of_its_slots() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "n2.site.org\nn2.site.org\nn1.site.org\n").unwrap();
        let path = file.path().to_str().unwrap().to_string();
        let said = |name: &str| (name == "PBS_NODEFILE").then(|| path.clone());
        assert_eq!(nodes(&said).unwrap(), Some(names(&["n2.site.org", "n1.site.org"])));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(nodes(&said).unwrap_err().kind(), Kind::Io);
    }

    #[test]
    fn short_and_full_names_are_the_same_host() {
        let none = |_: &str| None;
        let own = |words: &[&str], host: &str| own_node(&names(words), host, &none).map_err(|e| e.kind());
        assert_eq!(own(&["n1", "n2"], "n2"), Ok("n2".to_string()));
        assert_eq!(own(&["n1", "n2"], "n2.site.org"), Ok("n2".to_string()));
        assert_eq!(own(&["n1.site.org", "n2.site.org"], "n2"), Ok("n2.site.org".to_string()));
        assert_eq!(own(&["n1.a", "n1.b"], "n1"), Err(Kind::Usage));
        assert_eq!(own(&["n1.a"], "n1.b"), Err(Kind::Usage));
        assert_eq!(own(&["n1"], "n3"), Err(Kind::Usage));
        let slurm = |name: &str| (name == "SLURMD_NODENAME").then(|| "n1".to_string());
        assert_eq!(own_node(&names(&["n1", "n2"]), "elsewhere", &slurm).unwrap(), "n1");
    }
}
