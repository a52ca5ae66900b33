//! Where a space has its writers: on one node, or on several with a part each.
//!
//! Guarantees: parts are joined only where they are of one run and make up the whole group: the same count of openings
//! by processes of the same launch; where that is not known, of processes that were at work at the same time. Writers
//! that died are joined with none that write. Not here: how they are copied (`mirror.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_space::{Error, Kind, Result};

use crate::link::Link;
use crate::message::{malformed, Answer, Ask, Claim, Found, FoundPart};
use crate::owner::{Owner, OPEN};

/// Agents answer within this.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);

/// A node that has writers of a space, and what was found there.
pub type Source = (String, Found);

/// The outcome of a search.
#[derive(Debug)]
pub enum Outcome {
    /// No node has writers.
    Nothing,
    /// Some ranks were found; which ones, and which are missing.
    Incomplete(String),
    /// The nodes that have the writers.
    At(Vec<Source>),
}

/// Searches the nodes that have the writers of a space.
///
/// # Errors
/// [`Kind::NotPossibleHere`]: several nodes have writers that do not make up one group.
pub fn find(
    link: &Arc<Link>,
    owner: &Arc<Owner>,
    others: &[String],
    name: &str,
    wanted: &[Claim],
) -> Result<Outcome> {
    let began = Instant::now();
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
    match choose(name, found, began.elapsed())? {
        Outcome::Nothing => failed.map_or(Ok(Outcome::Nothing), Err),
        found => Ok(found),
    }
}

fn is_open((_, found): &Source) -> bool {
    found.state == OPEN
}

/// Those that write now count before those that have ended. The answers came within `elapsed`.
fn choose(name: &str, found: Vec<Source>, elapsed: Duration) -> Result<Outcome> {
    let (parts, wholes): (Vec<Source>, Vec<Source>) =
        found.into_iter().partition(|(_, found)| found.part.is_some());
    let mut candidates: Vec<Vec<Source>> = wholes.into_iter().map(|whole| vec![whole]).collect();
    let mut incomplete = None;
    match join(name, parts, elapsed)? {
        Outcome::At(joined) => candidates.push(joined),
        Outcome::Incomplete(what) => incomplete = Some(what),
        Outcome::Nothing => {}
    }
    if candidates.iter().any(|sources| sources.iter().any(is_open)) {
        candidates.retain(|sources| sources.iter().any(is_open));
    }
    match candidates.len() {
        0 | 1 => Ok(match (candidates.pop(), incomplete) {
            (Some(sources), _) => Outcome::At(sources),
            (None, Some(what)) => Outcome::Incomplete(what),
            (None, None) => Outcome::Nothing,
        }),
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

/// Without a token of the launch, writers of one run began within this.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// A process may have begun so much later than is known: the kernel tells it in clock ticks.
const TICK: Duration = Duration::from_millis(10);

fn part_of((_, found): &Source) -> &FoundPart {
    found.part.as_ref().expect("only parts are joined")
}

/// Whether two parts are of one run; the answers came within `elapsed`.
fn are_of_one_run(part: &FoundPart, last: &FoundPart, elapsed: Duration) -> bool {
    let uncertain = (elapsed + TICK).as_nanos() as u64;
    let ((began, ended), (last_began, _)) = (part.lived_ago_ns, last.lived_ago_ns);
    // It had not ended when the last one began, whichever node answered first.
    let overlap = ended.is_none_or(|ended| ended.saturating_add(uncertain) <= last_began);
    let same_launch = match (part.launch, last.launch) {
        // Some launchers say it on the first node alone.
        (0, _) | (_, 0) => overlap && began.abs_diff(last_began) <= STARTED_WITHIN.as_nanos() as u64,
        (one, other) => one == other,
    };
    same_launch && part.size == last.size && part.opened == last.opened
}

/// The parts that make up the run that began last.
fn join(name: &str, mut parts: Vec<Source>, elapsed: Duration) -> Result<Outcome> {
    let is_dead = |source: &Source| !is_open(source) && part_of(source).lived_ago_ns.1.is_none();
    // What is known of writers that died is their launch; without it they may be of any run.
    let some_write = parts.iter().any(is_open);
    parts.retain(|source| !is_dead(source) || !some_write && part_of(source).launch != 0);
    let Some(last) = parts.iter().min_by_key(|source| part_of(source).lived_ago_ns.0).cloned() else {
        return Ok(Outcome::Nothing);
    };
    let (last_node, last) = (&last.0, part_of(&last));
    parts.sort_by(|one, other| one.0.cmp(&other.0));
    let (parts, others): (Vec<Source>, Vec<Source>) =
        // However short it was.
        parts.into_iter().partition(|source| {
            source.0 == *last_node || are_of_one_run(part_of(source), last, elapsed)
        });
    let mut ranks: Vec<u32> = parts.iter().flat_map(|source| part_of(source).ranks.clone()).collect();
    ranks.sort_unstable();
    if let Some(twice) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        let has_it = |source: &&Source| part_of(source).ranks.contains(&twice[0]);
        let nodes: Vec<&str> = parts.iter().filter(has_it).map(|(node, _)| node.as_str()).collect();
        return Err(Error::new(
            Kind::NotPossibleHere,
            format!("rank {} of the writers of space {name} is on nodes {}", twice[0], nodes.join(", ")),
        )
        .hint("give each writer its own rank, and the spaces of other programs different names"));
    }
    if !parts.iter().any(|source| is_open(source) || part_of(source).is_taken) {
        return Ok(Outcome::Nothing);
    }
    Ok(match ranks.iter().copied().eq(0..last.size) {
        true => Outcome::At(parts),
        false => Outcome::Incomplete(found_ranks(&parts, &others, &ranks, last.size)),
    })
}

/// Ranks that a text lists.
const LISTED: usize = 8;

/// What was found, and what is missing.
fn found_ranks(parts: &[Source], others: &[Source], ranks: &[u32], size: u32) -> String {
    let list = |numbers: &mut dyn Iterator<Item = u32>| {
        let mut all: Vec<String> = numbers.take(LISTED + 1).map(|number| number.to_string()).collect();
        if all.len() > LISTED {
            all[LISTED] = "...".to_string();
        }
        all.join(", ")
    };
    let here = |source: &Source| {
        format!("node {}: ranks {}", source.0, list(&mut part_of(source).ranks.iter().copied()))
    };
    let mut all: Vec<String> = parts.iter().map(here).collect();
    let missing = list(&mut (0..size).filter(|rank| ranks.binary_search(rank).is_err()));
    all.push(format!("missing of {size}: {missing}"));
    all.extend(others.iter().map(|(node, _)| format!("node {node}: ranks of another run")));
    all.join("; ")
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
        let s = |ago: u64| ago * 1_000_000_000;
        let part = FoundPart {
            size: 4,
            ranks: ranks.to_vec(),
            launch: 0,
            opened: 1,
            lived_ago_ns: (s(began), ended.map(s)),
            is_taken: true,
        };
        (node.to_string(), Found { part: Some(part), ..found })
    }

    fn nodes(found: Vec<Source>) -> Option<Vec<String>> {
        match search(found).unwrap() {
            Outcome::At(sources) => Some(sources.into_iter().map(|(node, _)| node).collect()),
            Outcome::Incomplete(_) | Outcome::Nothing => None,
        }
    }

    fn search(found: Vec<Source>) -> Result<Outcome> {
        choose("heat", found, Duration::from_millis(100))
    }

    /// Changes what is known of a part.
    fn with(mut source: Source, change: impl Fn(&mut FoundPart)) -> Source {
        change(source.1.part.as_mut().unwrap());
        source
    }

    fn dead(source: Source) -> Source {
        let (node, found) = with(source, |part| part.lived_ago_ns.1 = None);
        (node, Found { state: "producer died".into(), ..found })
    }

    #[test]
    fn one_node_has_the_writers_and_two_are_an_error() {
        assert_eq!(nodes(vec![]), None);
        assert_eq!(nodes(vec![whole("a", OPEN), whole("b", "finished")]).unwrap(), ["a"]);
        let error = search(vec![whole("a", OPEN), whole("b", OPEN)]).unwrap_err();
        assert!(error.to_string().contains("more than one node: a, b"), "{error}");
    }

    #[test]
    fn parts_are_joined_once_all_ranks_are_there() {
        let a = || part("a", &[0, 2], 10, None);
        assert_eq!(nodes(vec![a()]), None);
        assert_eq!(nodes(vec![part("b", &[1, 3], 9, None), a()]).unwrap(), ["a", "b"]);
        // One that has ended already is one of them.
        assert_eq!(nodes(vec![part("b", &[1, 3], 9, Some(2)), a()]).unwrap(), ["a", "b"]);
        assert_eq!(search(vec![part("b", &[1, 2], 9, None), a()]).unwrap_err().kind(), Kind::NotPossibleHere);
        assert_eq!(
            search(vec![part("b", &[1, 3], 9, None), a(), whole("c", OPEN)]).unwrap_err().kind(),
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
        let launched = |source, launch| with(source, |part| part.launch = launch);
        let b = || part("b", &[1, 3], 9, None);
        assert_eq!(nodes(vec![launched(a(), 5), launched(b(), 7)]), None);
        assert_eq!(nodes(vec![launched(a(), 5), b()]).unwrap(), ["a", "b"], "b does not say it");
        assert_eq!(nodes(vec![a(), part("b", &[1, 3], 90, None)]), None, "not started together");
        let fast = launched(part("b", &[1, 3], 20, Some(19)), 5);
        assert_eq!(nodes(vec![launched(a(), 5), fast]).unwrap(), ["a", "b"], "b had ended before a began");
        // A process that opens the space again on one node, and has not yet on the other.
        assert_eq!(nodes(vec![with(a(), |part| part.opened = 2), b()]), None);
        // Within the time of the search, and a tick of the clock, it is not known which was first.
        let near = |ms: u64| {
            let ended = (10_000 - ms) * 1_000_000;
            with(part("b", &[1, 3], 60, Some(10)), |part| part.lived_ago_ns.1 = Some(ended))
        };
        assert_eq!(nodes(vec![a(), near(50)]), None);
        assert_eq!(nodes(vec![a(), near(109)]), None);
        assert_eq!(nodes(vec![a(), near(110)]).unwrap(), ["a", "b"]);
        // The one that began last may have lived for less.
        let short = with(part("b", &[1, 3], 9, Some(9)), |part| part.lived_ago_ns.1 = Some(8_995_000_000));
        assert_eq!(nodes(vec![a(), short]).unwrap(), ["a", "b"]);
        // On a node that the new run does not use.
        let old = part("c", &[1, 3], 60, Some(11));
        assert_eq!(nodes(vec![old, a(), part("b", &[1, 3], 9, None)]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn writers_that_died_are_joined_with_none_that_write() {
        let (a, b) = (|| part("a", &[0, 2], 10, None), || dead(part("b", &[1, 3], 20, None)));
        assert_eq!(nodes(vec![a(), b()]), None);
        let (a, b) = (dead(a()), b());
        assert_eq!(nodes(vec![a.clone(), b.clone()]), None, "of no known launch");
        let launched = |source| with(source, |part| part.launch = 5);
        assert_eq!(nodes(vec![launched(a), launched(b)]).unwrap(), ["a", "b"]);
    }

    #[test]
    fn what_is_missing_is_said() {
        let outcome = search(vec![part("a", &[0, 2], 10, None), part("b", &[1, 3], 60, Some(11))]).unwrap();
        let Outcome::Incomplete(what) = outcome else { panic!("{outcome:?}") };
        assert_eq!(what, "node a: ranks 0, 2; missing of 4: 1, 3; node b: ranks of another run");
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
