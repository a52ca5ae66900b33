//! A place that is one directory for each node: what lies in one of them is lost together.
//!
//! Guarantees: a rank's files go to the rank's own node, and are found on whichever node they are; files of no rank
//! (commit records) go to every node that has something of the step. A node's directory that is not there any more is
//! an empty one, so that what others have is still found.
//!
//! Not here: nodes that do not see each other's directories.

use forebay_tier::host::fs;
use forebay_tier::host::sync::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use forebay_tier::adapter::fault::{FaultCounts, FaultPlan};
use forebay_tier::{Durability, Error, Kind, Result, TierKind};

use super::{make_own, Blob, Directory, Part, Place, Written};
use crate::format::{check_node, directory_of, manifest_file, step_of};

/// What stands for the node's name in the directory of a level.
pub(crate) const NODE: &str = "{node}";

/// The directories of all nodes.
pub(crate) trait Family: Send + Sync {
    /// For messages: where they are.
    fn describe(&self) -> String;

    /// The names of the nodes that have a directory, in order.
    ///
    /// # Errors
    /// Those of the operating system.
    fn names(&self) -> Result<Vec<String>>;

    /// The directory of a node, made if it is missing.
    ///
    /// # Errors
    /// Those of [`Directory::new`].
    fn place(&self, node: &str) -> Result<Arc<dyn Place>>;
}

/// Directories that differ in the node's name.
pub(crate) struct Directories {
    pattern: PathBuf,
    tier: TierKind,
    faults: Option<(FaultPlan, Arc<FaultCounts>)>,
    known: Mutex<HashMap<String, Arc<Directory>>>,
}

impl Directories {
    /// Those of a pattern with `{node}` in it.
    pub(crate) fn new(
        pattern: &Path,
        tier: TierKind,
        faults: Option<(FaultPlan, Arc<FaultCounts>)>,
    ) -> Directories {
        Directories { pattern: pattern.to_path_buf(), tier, faults, known: Mutex::default() }
    }
}

/// Whether a level's directory stands for one of each node.
///
/// # Errors
/// `Usage` when the node's name is in it twice.
pub(crate) fn is_pattern(dir: &Path) -> Result<bool> {
    match dir.to_string_lossy().matches(NODE).count() {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::new(Kind::Usage, format!("{} contains {NODE} twice", dir.display()))
            .hint("name the node once, as in /local/{node}/ck")),
    }
}

/// The directory of a node.
pub(crate) fn of_node(pattern: &Path, node: &str) -> PathBuf {
    PathBuf::from(pattern.to_string_lossy().replace(NODE, node))
}

impl Family for Directories {
    fn describe(&self) -> String {
        self.pattern.display().to_string()
    }

    fn names(&self) -> Result<Vec<String>> {
        let pattern = self.pattern.to_string_lossy();
        let (before, after) = pattern.split_once(NODE).expect("a pattern has a node in it");
        let (above, prefix) = before.rsplit_once('/').unwrap_or(("", before));
        let (suffix, below) = after.split_once('/').map_or((after, None), |(s, below)| (s, Some(below)));
        let above = if above.is_empty() { "/" } else { above };
        let entries = match fs::read_dir(above) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io(format!("cannot list {above}"), e)),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            let Ok(entry) =
                entry.map_err(|e| Error::io(format!("cannot list {above}"), e))?.file_name().into_string()
            else {
                continue;
            };
            let node = entry.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
            let Some(node) = node.filter(|node| check_node(node).is_ok()) else { continue };
            let path = Path::new(above).join(&entry);
            if below.map_or(path.clone(), |below| path.join(below)).is_dir() {
                names.insert(node.to_string());
            }
        }
        Ok(names.into_iter().collect())
    }

    fn place(&self, node: &str) -> Result<Arc<dyn Place>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let path = of_node(&self.pattern, node);
        if let Some(place) = known.get(node) {
            // It may have been lost since.
            make_own(&path)?;
            return Ok(place.clone());
        }
        let mut place = Directory::new(&path, self.tier, "node")?;
        if let Some((plan, counts)) = &self.faults {
            place = place.with_faults(plan.clone(), counts.clone());
        }
        let place = Arc::new(place);
        known.insert(node.to_string(), place.clone());
        Ok(place)
    }
}

/// A rank's own node, and its place there.
pub(crate) struct Own {
    pub(crate) rank: u32,
    pub(crate) node: String,
    pub(crate) place: Arc<dyn Place>,
}

/// See the file's head.
pub struct Nodes {
    family: Arc<dyn Family>,
    /// None for those who only look.
    own: Option<Own>,
    ranks_per_node: u32,
    tier: TierKind,
    durability: Durability,
}

impl Nodes {
    /// The nodes as one rank sees them, or a process that is no rank.
    pub(crate) fn new(
        family: Arc<dyn Family>,
        own: Option<Own>,
        ranks_per_node: u32,
        (tier, durability): (TierKind, Durability),
    ) -> Nodes {
        Nodes { family, own, ranks_per_node, tier, durability }
    }

    /// Every node that has a directory, with its place, in the order of their names.
    pub(crate) fn all(&self) -> Result<Vec<(String, Arc<dyn Place>)>> {
        let names = self.family.names()?;
        names.into_iter().map(|node| self.node(&node).map(|place| (node, place))).collect()
    }

    /// The place of a node, made if it is missing. Files that are written there are never written again.
    pub(crate) fn node(&self, node: &str) -> Result<Arc<dyn Place>> {
        self.family.place(node)
    }

    /// The node of a rank: its own, else where its newest piece is, else by number.
    pub(crate) fn home(&self, rank: u32) -> Result<String> {
        if let Some(own) = self.own.as_ref().filter(|own| own.rank == rank) {
            return Ok(own.node.clone());
        }
        let mut newest = None;
        let manifest = manifest_file(rank);
        for (node, place) in self.all()? {
            for id in place.list("")?.iter().filter_map(|name| step_of(name)) {
                let newer = newest.as_ref().is_none_or(|(known, _)| id > *known);
                if newer && place.list(&directory_of(id))?.contains(&manifest) {
                    newest = Some((id, node.clone()));
                }
            }
        }
        Ok(newest.map_or_else(|| numbered(rank, self.ranks_per_node), |(_, node)| node))
    }

    /// The place that a file of a rank is written to; None: the file is no rank's.
    fn home_of(&self, name: &str) -> Result<Option<Arc<dyn Place>>> {
        let Some(rank) = rank_of(name) else { return Ok(None) };
        match &self.own {
            Some(own) if own.rank == rank => Ok(Some(own.place.clone())),
            _ => self.node(&self.home(rank)?).map(Some),
        }
    }

    /// The places in which a file is looked for, the likely one first.
    fn ways(&self, name: &str) -> Result<Vec<Arc<dyn Place>>> {
        let mut ways: Vec<(String, Arc<dyn Place>)> = self.all()?;
        if let Some(own) = self.own.as_ref().filter(|own| rank_of(name).is_none_or(|rank| rank == own.rank)) {
            ways.sort_by_key(|(node, _)| *node != own.node);
        }
        Ok(ways.into_iter().map(|(_, place)| place).collect())
    }

    /// The first that a place has; an error only where none has it.
    fn first<T>(&self, name: &str, get: impl Fn(&dyn Place) -> Result<Option<T>>) -> Result<Option<T>> {
        let mut failed = None;
        for place in self.ways(name)? {
            match get(&*place) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// The nodes that have something in a directory; those with none are not made to have it.
    fn having(&self, dir: &str) -> Result<Vec<Arc<dyn Place>>> {
        let mut found = Vec::new();
        for (_, place) in self.all()? {
            if dir.is_empty() || !place.list(dir)?.is_empty() {
                found.push(place);
            }
        }
        Ok(found)
    }
}

/// The node of a rank where its name is not given.
pub(crate) fn numbered(rank: u32, ranks_per_node: u32) -> String {
    format!("{:05}", rank / ranks_per_node)
}

fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// The rank whose file this is, hidden or not.
fn rank_of(name: &str) -> Option<u32> {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.trim_start_matches('.').split('.').next()?.parse().ok()
}

impl Place for Nodes {
    fn describe(&self) -> String {
        self.family.describe()
    }

    fn tier(&self) -> TierKind {
        self.tier
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        // Those who only look write by `store_data` and `store`, which make it where it is needed.
        self.own.as_ref().map_or(Ok(()), |own| own.place.make_dir(dir))
    }

    fn store_data(
        &self,
        name: &str,
        bytes: u64,
        parts: &[Part<'_>],
    ) -> Result<(Vec<Vec<u32>>, Option<Written>)> {
        let place = self.home_of(name)?.ok_or_else(|| misnamed(name))?;
        place.make_dir(dir_of(name))?;
        place.store_data(name, bytes, parts)
    }

    fn store_packed(&self, name: &str, bytes: u64, parts: &[Part<'_>]) -> Result<Vec<Vec<u32>>> {
        let place = self.home_of(name)?.ok_or_else(|| misnamed(name))?;
        place.make_dir(dir_of(name))?;
        place.store_packed(name, bytes, parts)
    }

    fn store(&self, name: &str, content: &[u8]) -> Result<()> {
        if let Some(place) = self.home_of(name)? {
            return place.store(name, content);
        }
        self.having(dir_of(name))?.iter().try_for_each(|place| place.store(name, content))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        if let Some(place) = self.home_of(to)? {
            return place.rename(from, to);
        }
        let file = from.rsplit('/').next().unwrap_or(from).to_string();
        for place in self.having(dir_of(from))? {
            if place.list(dir_of(from))?.contains(&file) {
                place.rename(from, to)?;
            }
        }
        Ok(())
    }

    fn is_everywhere(&self, name: &str) -> Result<bool> {
        let (dir, file) = name.rsplit_once('/').unwrap_or(("", name));
        for place in self.having(dir)? {
            if !place.list(dir)?.iter().any(|there| there == file) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn sync(&self, dir: &str) -> Result<()> {
        self.having(dir)?.iter().try_for_each(|place| place.sync(dir))
    }

    fn load(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        self.first(name, |place| place.load(name, bytes_max))
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Blob>>> {
        self.first(name, |place| place.open(name))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let mut names = BTreeSet::new();
        for (_, place) in self.all()? {
            names.extend(place.list(dir)?);
        }
        Ok(names.into_iter().collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        if let Some(own) = self.own.as_ref().filter(|own| rank_of(name) == Some(own.rank)) {
            own.place.remove(name)?;
        }
        self.all()?.iter().try_for_each(|(_, place)| place.remove(name))
    }

    fn retire(&self, name: &str) -> Result<bool> {
        match self.own.as_ref().filter(|own| rank_of(name) == Some(own.rank)) {
            Some(own) => own.place.retire(name),
            None => self.remove(name).map(|()| true),
        }
    }

    fn let_be(&self, name: &str) {
        if let Some(own) = self.own.as_ref().filter(|own| rank_of(name) == Some(own.rank)) {
            own.place.let_be(name);
        }
    }

    fn has_capacity(&self) -> bool {
        self.own.as_ref().is_none_or(|own| own.place.has_capacity())
    }

    fn files_max(&self, bytes: u64) -> usize {
        self.own.as_ref().map_or(usize::MAX, |own| own.place.files_max(bytes))
    }

    fn prepare(&self, bytes: u64) -> Result<()> {
        self.own.as_ref().map_or(Ok(()), |own| own.place.prepare(bytes))
    }

    fn remove_dir(&self, dir: &str) -> Result<bool> {
        let mut all = true;
        for (_, place) in self.all()? {
            all &= place.remove_dir(dir)?;
        }
        Ok(all)
    }
}

#[cold]
fn misnamed(name: &str) -> Error {
    Error::new(Kind::Internal, format!("{name} is not a file of a rank"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_the_pattern() {
        let dir = tempfile::tempdir().unwrap();
        for made in ["n-a-x/ck", "n-b-x/ck", "n-c-x", "m-d-x/ck", "n-.e-x/ck"] {
            fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        let pattern = dir.path().join("n-{node}-x/ck");
        let family = Directories::new(&pattern, TierKind::File, None);
        assert_eq!(family.names().unwrap(), ["a", "b"]);
        family.place("new").unwrap();
        assert_eq!(family.names().unwrap(), ["a", "b", "new"]);
        let above = Directories::new(&dir.path().join("none/{node}"), TierKind::File, None);
        assert_eq!(above.names().unwrap(), [""; 0]);
        assert!(is_pattern(&pattern).unwrap() && !is_pattern(dir.path()).unwrap());
        assert_eq!(is_pattern(Path::new("/{node}/{node}")).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn files_of_a_rank_are_told_from_those_of_none() {
        assert_eq!(rank_of("s0-r0/00012.data"), Some(12));
        assert_eq!(rank_of("s0-r0/.00012.manifest.00012"), Some(12));
        assert_eq!(rank_of("s0-r0/00012.0.parity"), Some(12));
        assert_eq!(rank_of("s0-r0/.commit.00012"), None);
    }
}
