//! Where a space has its writers: on one node, or on several with a part each.
//!
//! Guarantees: parts are joined only where they are of one run and make up the whole group: the same launch, where it
//! is known, and at work at the same time. Not here: how they are copied (`mirror.rs`).

use std::sync::Arc;
use std::time::Duration;

use forebay_space::{Error, Kind, Result};

use crate::link::Link;
use crate::message::{malformed, Answer, Ask, Claim, Found, FoundPart};
use crate::owner::{Owner, OPEN};

/// Agents answer within this.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);

/// A node that has writers of a space, and what was found there.
pub type Source = (String, Found);

/// The nodes that have the writers of a space; None while no node has any, or a part is missing.
///
/// # Errors
/// [`Kind::NotPossibleHere`]: several nodes have writers that do not make up one group.
pub fn find(
    link: &Arc<Link>,
    owner: &Arc<Owner>,
    others: &[String],
    name: &str,
    wanted: &[Claim],
) -> Result<Option<Vec<Source>>> {
    let asking: Vec<_> = others
        .iter()
        .map(|node| {
            let (link, node, name, wanted) = (link.clone(), node.clone(), name.to_string(), wanted.to_vec());
            std::thread::spawn(move || {
                let answer = link.ask(&node, Ask::Find { name, wanted }, FIND_TIMEOUT);
                (node, answer)
            })
        })
        .collect();
    let (mut found, mut failed) = (Vec::new(), None);
    // A whole space of this node is opened by its readers themselves.
    match owner.find_part(name, wanted) {
        Ok(part) => found.extend(part.map(|part| (owner.node().to_string(), part))),
        Err(e) => failed = Some(e),
    }
    for thread in asking {
        let Ok((node, answer)) = thread.join() else { continue };
        match answer {
            Ok(Answer::Found(Some(space))) => found.push((node, space)),
            Ok(Answer::Found(None)) => {}
            Ok(other) => failed = Some(malformed(&format!("a space was asked for, and not {other:?}"))),
            // It may come again, or not have the space.
            Err(e) if matches!(e.kind(), Kind::PeerMissing | Kind::TimedOut | Kind::TooMany) => {}
            Err(e) => failed = Some(e),
        }
    }
    match choose(name, found)? {
        None => failed.map_or(Ok(None), Err),
        found => Ok(found),
    }
}

fn is_open((_, found): &Source) -> bool {
    found.state == OPEN
}

/// Those that write now count before those that have ended.
fn choose(name: &str, found: Vec<Source>) -> Result<Option<Vec<Source>>> {
    let (parts, wholes): (Vec<Source>, Vec<Source>) =
        found.into_iter().partition(|(_, found)| found.part.is_some());
    let mut candidates: Vec<Vec<Source>> = wholes.into_iter().map(|whole| vec![whole]).collect();
    candidates.extend(join(name, parts)?);
    if candidates.iter().any(|sources| sources.iter().any(is_open)) {
        candidates.retain(|sources| sources.iter().any(is_open));
    }
    match candidates.len() {
        0 | 1 => Ok(candidates.pop()),
        _ => {
            let nodes: Vec<&str> = candidates.iter().flatten().map(|(node, _)| node.as_str()).collect();
            Err(Error::new(
                Kind::NotPossibleHere,
                format!("space {name} has writers on more than one node: {}", nodes.join(", ")),
            )
            .hint(
                "start the writers of a space together by one launcher, all on one node or with an agent on each node; \
                 or give the spaces different names",
            ))
        }
    }
}

/// The parts that make up the run that began last; None while one is missing, or no reader takes them.
fn join(name: &str, mut parts: Vec<Source>) -> Result<Option<Vec<Source>>> {
    fn of((_, found): &Source) -> &FoundPart {
        found.part.as_ref().expect("only parts are joined")
    }
    let Some(last) = parts.iter().map(of).min_by_key(|part| part.lived_ago_ns.0).cloned() else {
        return Ok(None);
    };
    parts.retain(|source| {
        let part = of(source);
        let same_run = part.run == last.run && part.size == last.size;
        // It had not ended when the last one began.
        same_run && part.lived_ago_ns.1.is_none_or(|ended| ended <= last.lived_ago_ns.0)
    });
    parts.sort_by(|one, other| one.0.cmp(&other.0));
    let mut ranks: Vec<u32> = parts.iter().flat_map(|source| of(source).ranks.clone()).collect();
    ranks.sort_unstable();
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        let has_it = |source: &&Source| of(source).ranks.contains(&twice[0]);
        let nodes: Vec<&str> = parts.iter().filter(has_it).map(|(node, _)| node.as_str()).collect();
        return Err(Error::new(
            Kind::NotPossibleHere,
            format!("rank {} of the writers of space {name} is on nodes {}", twice[0], nodes.join(", ")),
        )
        .hint("give each writer its own rank, and the spaces of other programs different names"));
    }
    let is_whole = ranks.into_iter().eq(0..last.size);
    let is_taken = parts.iter().any(is_open) || parts.iter().any(|source| of(source).is_taken);
    Ok((is_whole && is_taken).then_some(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(node: &str, state: &str) -> Source {
        let found =
            Found { uuid: node.into(), incarnation: 1, state: state.into(), name: "heat".into(), part: None };
        (node.to_string(), found)
    }

    /// Of a group of four; it began and ended so many seconds ago.
    fn part(node: &str, ranks: &[u32], began: u64, ended: Option<u64>) -> Source {
        let (_, found) = whole(node, if ended.is_some() { "finished" } else { OPEN });
        let part = FoundPart {
            size: 4,
            ranks: ranks.to_vec(),
            run: 0,
            lived_ago_ns: (began, ended),
            is_taken: true,
        };
        (node.to_string(), Found { part: Some(part), ..found })
    }

    fn nodes(found: Vec<Source>) -> Option<Vec<String>> {
        choose("heat", found).unwrap().map(|sources| sources.into_iter().map(|(node, _)| node).collect())
    }

    #[test]
    fn one_node_has_the_writers_and_two_are_an_error() {
        assert_eq!(nodes(vec![]), None);
        assert_eq!(nodes(vec![whole("a", OPEN), whole("b", "finished")]).unwrap(), ["a"]);
        let error = choose("heat", vec![whole("a", OPEN), whole("b", OPEN)]).unwrap_err();
        assert!(error.to_string().contains("more than one node: a, b"), "{error}");
    }

    #[test]
    fn parts_are_joined_once_all_ranks_are_there() {
        let a = || part("a", &[0, 2], 10, None);
        assert_eq!(nodes(vec![a()]), None);
        assert_eq!(nodes(vec![part("b", &[1, 3], 9, None), a()]).unwrap(), ["a", "b"]);
        // One that has ended already is one of them.
        assert_eq!(nodes(vec![part("b", &[1, 3], 9, Some(2)), a()]).unwrap(), ["a", "b"]);
        assert_eq!(
            choose("heat", vec![part("b", &[1, 2], 9, None), a()]).unwrap_err().kind(),
            Kind::NotPossibleHere
        );
        assert_eq!(
            choose("heat", vec![part("b", &[1, 3], 9, None), a(), whole("c", OPEN)]).unwrap_err().kind(),
            Kind::NotPossibleHere
        );
        assert_eq!(
            nodes(vec![part("b", &[1, 3], 9, None), a(), whole("c", "finished")]).unwrap(),
            ["a", "b"]
        );
    }

    #[test]
    fn parts_of_two_runs_are_not_joined() {
        // What an earlier run has left on b ended before the writers of a began.
        let a = || part("a", &[0, 2], 10, None);
        assert_eq!(nodes(vec![a(), part("b", &[1, 3], 60, Some(11))]), None);
        assert_eq!(nodes(vec![part("a", &[0, 2], 10, Some(1)), part("b", &[1, 3], 60, Some(11))]), None);
        let mut other_launch = part("b", &[1, 3], 9, None);
        other_launch.1.part.as_mut().unwrap().run = 7;
        assert_eq!(nodes(vec![a(), other_launch]), None);
        // On a node that the new run does not use.
        let old = part("c", &[1, 3], 60, Some(11));
        assert_eq!(nodes(vec![old, a(), part("b", &[1, 3], 9, None)]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn ended_parts_are_joined_for_a_reader_that_takes_them() {
        let ended = |is_taken| {
            let mut parts = vec![part("a", &[0, 2], 10, Some(2)), part("b", &[1, 3], 9, Some(1))];
            parts.iter_mut().for_each(|(_, found)| found.part.as_mut().unwrap().is_taken = is_taken);
            nodes(parts)
        };
        assert_eq!(ended(false), None);
        assert_eq!(ended(true).unwrap(), ["a", "b"]);
    }
}
