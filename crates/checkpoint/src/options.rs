//! How the options of a checkpoint are read: its levels in text form.
//!
//! A level reads `WORD` or `DIRECTORY`, then options: `dram`, `/scratch/ck`, `/pmem/ck,keep=3`, `direct`,
//! `/mnt/x,tier=direct`, `file,incremental=10,compress=zstd:3`, `file,every=1000,best=3:largest`. The words `file`,
//! `direct` and `pmem` mean a directory inside the checkpoint's own; `dram` and `numa:N` one in the memory of this
//! node. `s3://BUCKET/PREFIX` and `file:///DIRECTORY` are stores of objects. `+partner`, `+xor:N` or `+rs:K+M` behind a
//! directory is redundancy between nodes, `{node}` in it stands for the node's name: `file+xor:4`,
//! `/local/{node}/ck+partner`. Unknown options are errors with "did you mean".

use std::ops::Deref;
use std::path::{Path, PathBuf};

use forebay_config::CheckpointOptions as Options;
use forebay_terms::spelling::did_you_mean;
use forebay_tier::checksum::crc32c;
use forebay_tier::{device, Error, Kind, Result, TierKind};

use crate::format::check_node;
use crate::level::keep::parse_best;
use crate::level::{Code, Keep, LevelInfo, Packing};
use crate::place::{is_pattern, is_url, make_own, numbered, of_node, NODE};
use crate::run::memory::FOLDER;
use crate::when::When;

/// Committed steps that stay in a level of memory: capacity there is scarce, and a lower level has more.
const KEEP_MEMORY: usize = 1;
/// Committed steps that stay in any other level: the newest, and one to fall back to.
const KEEP: usize = 2;

/// What a rank said, read with the checkpoint's directory.
pub(crate) struct Asked<'a>(pub(crate) &'a Options);

impl Deref for Asked<'_> {
    type Target = Options;

    fn deref(&self) -> &Options {
        self.0
    }
}

/// Whether the rules and the compression that options name can be read; levels need a directory for that.
///
/// # Errors
/// `Usage`.
pub fn check(options: &Options) -> Result<()> {
    options.when.iter().try_for_each(|rule| rule.parse::<When>().map(drop))?;
    Packing::parse_compress(&options.compress).map(drop)
}

impl Asked<'_> {
    /// The levels of the checkpoint directory `base`, which exists and is absolute.
    ///
    /// # Errors
    /// `Usage`, `UnknownKey`; `NotPossibleHere` for a level of memory without a place for it.
    pub(crate) fn levels_of(&self, base: &Path) -> Result<Vec<LevelInfo>> {
        let parsed: Result<Vec<LevelInfo>> = self.levels.iter().map(|text| self.level(base, text)).collect();
        let levels = parsed?;
        if levels.is_empty() {
            return Err(Error::new(Kind::Usage, "a checkpoint has at least one level")
                .hint("levels: dram, file, direct, pmem, or a directory"));
        }
        if self.usual_packing()?.is_on() && levels.iter().all(|level| level.tier.is_memory()) {
            return Err(memory_is_plain());
        }
        for (at, level) in levels.iter().enumerate() {
            if levels[..at].iter().any(|before| before.dir == level.dir) {
                return Err(Error::new(
                    Kind::Usage,
                    format!("two levels use the directory {}", level.dir.display()),
                ));
            }
        }
        Ok(levels)
    }

    fn level(&self, base: &Path, text: &str) -> Result<LevelInfo> {
        let mut words = text.split(',').map(str::trim);
        let (place, redundancy) = Code::split(words.next().unwrap_or_default())?;
        let (mut dir, mut tier) = self.place_of(base, place)?;
        let of_objects = tier == Some(TierKind::Object);
        let (mut keep, mut ranks_per_node) = (None, None);
        let (mut incremental, mut compress) = (None, None);
        let (mut every, mut best) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("keep", count)) => keep = Some(parse_keep(count)?),
                Some(("every", count)) => every = Some(parse_every(count)?),
                Some(("best", count)) => best = Some(parse_best(count)?),
                Some(("tier", kind)) => tier = Some(kind.parse()?),
                Some(("ranks_per_node", count)) => ranks_per_node = Some(parse_ranks(count)?),
                Some(("incremental", every)) => incremental = Some(Packing::parse_incremental(every)?),
                Some(("compress", how)) => compress = Some(Packing::parse_compress(how)?),
                _ => return Err(unknown(word)),
            }
        }
        if of_objects && (redundancy.is_some() || tier != Some(TierKind::Object) || is_pattern(&dir)?) {
            return Err(Error::new(Kind::NotPossibleHere, format!("`{text}`: invalid for an object store"))
                .hint("omit tier=, {node} and redundancy: an object store has redundancy of its own"));
        }
        if redundancy.is_some() && !is_pattern(&dir)? {
            dir = dir.join(NODE);
        }
        let mut own = dir.clone();
        if is_pattern(&dir)? {
            own = of_node(&dir, &self.node_of(ranks_per_node)?);
        } else if ranks_per_node.is_some() {
            return Err(Error::new(Kind::Usage, format!("`{text}` has no node directories"))
                .hint("ranks_per_node goes with redundancy, or with {node} in the directory"));
        }
        if !of_objects {
            make_own(&own)?;
        }
        let tier = tier.map_or_else(|| device::detect(&own), Ok)?;
        let last = keep.unwrap_or(if tier.is_memory() { KEEP_MEMORY } else { KEEP });
        let keep = Keep { last, every, best };
        if keep.is_selective() && tier.is_memory() {
            return Err(Error::new(Kind::Usage, format!("`{text}`: a level in memory supports keep= only"))
                .hint("set every= and best= on a lower level"));
        }
        let packing = self.packing(tier, incremental, compress)?;
        let found = LevelInfo { dir, tier, keep, redundancy, ranks_per_node, packing };
        check_together(text, &found, own != found.dir)?;
        Ok(found)
    }

    /// Where a level lies, and its tier where the word says it.
    fn place_of(&self, base: &Path, place: &str) -> Result<(PathBuf, Option<TierKind>)> {
        let tier = place.parse::<TierKind>().ok();
        let dir = match tier {
            Some(kind) if kind.is_memory() => self.memory_dir(base, kind)?,
            Some(TierKind::DevDax) => {
                return Err(Error::new(Kind::Usage, "a level needs a directory, which devdax has none of"));
            }
            Some(TierKind::Object) => {
                let error = Error::new(Kind::Usage, "the address of the object store is missing");
                return Err(error.hint("s3://BUCKET/PREFIX, or file:///DIRECTORY"));
            }
            Some(kind) => base.join(kind.to_string()),
            None if is_url(place) => {
                return Ok((PathBuf::from(place.trim_end_matches('/')), Some(TierKind::Object)));
            }
            None if lacks_a_slash(place) => {
                return Err(Error::new(Kind::Usage, format!("`{place}` is no address of an object store"))
                    .hint(
                        "write SCHEME://, as in s3://BUCKET/PREFIX, or ./ before the name of a directory",
                    ));
            }
            None if place.contains('/') => absolute(Path::new(place))?,
            None => return Err(no_level(place)),
        };
        Ok((dir, tier))
    }

    /// The node of this rank in a level.
    ///
    /// # Errors
    /// `BadName`.
    pub(crate) fn node_of(&self, ranks_per_node: Option<u32>) -> Result<String> {
        match &self.node {
            Some(node) => check_node(node).map(|()| node.clone()),
            None => Ok(numbered(self.rank, ranks_per_node.unwrap_or(1))),
        }
    }

    /// Whether a run of this size has nodes enough for a level's redundancy, as far as that is known before all ranks
    /// have come.
    ///
    /// # Errors
    /// `NotPossibleHere`.
    pub(crate) fn check_nodes(&self, level: &LevelInfo) -> Result<()> {
        match (level.redundancy, &self.node) {
            (Some(code), None) => {
                code.check_nodes(self.size.div_ceil(level.ranks_per_node.unwrap_or(1)) as usize)
            }
            _ => Ok(()),
        }
    }

    /// How a level stores its steps: as it says itself, else as all do. Memory stores them as they are.
    fn packing(&self, tier: TierKind, full_every: Option<u32>, zstd: Option<Option<i32>>) -> Result<Packing> {
        let own = Packing { full_every: full_every.unwrap_or(0), zstd: zstd.unwrap_or(None) };
        if tier.is_memory() {
            return if own.is_on() { Err(memory_is_plain()) } else { Ok(own) };
        }
        let usual = self.usual_packing()?;
        Ok(Packing { full_every: full_every.unwrap_or(usual.full_every), zstd: zstd.unwrap_or(usual.zstd) })
    }

    /// What levels do that do not say it themselves.
    fn usual_packing(&self) -> Result<Packing> {
        let full_every = if self.incremental == 1 { 0 } else { self.incremental };
        Ok(Packing { full_every, zstd: Packing::parse_compress(&self.compress)? })
    }

    /// The directory of a level of memory: named after the checkpoint's, so that a restart finds it.
    fn memory_dir(&self, base: &Path, kind: TierKind) -> Result<PathBuf> {
        let root = self.memory_root.as_ref().ok_or_else(|| {
            Error::new(Kind::NotPossibleHere, "no directory for levels in memory was given")
                .hint("give a directory on tmpfs, as in /dev/shm/ck")
        })?;
        let name: String =
            base.file_name().map_or("checkpoint".into(), |name| name.to_string_lossy().into_owned());
        let short: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).take(64).collect();
        let number = crc32c(base.as_os_str().as_encoded_bytes());
        let kind = kind.to_string().replace(':', "");
        Ok(root.join(FOLDER).join(format!("{short}-{number:08x}-{kind}")))
    }
}

/// Refuses what one level cannot have at once; `nodes`: it has a directory for each.
fn check_together(text: &str, level: &LevelInfo, nodes: bool) -> Result<()> {
    let (what, hint) = if level.redundancy.is_some() && level.packing.is_on() {
        (
            "redundancy between nodes is of steps that are stored as they are",
            "incremental=1,compress=none on this level, or redundancy on another one",
        )
    } else if nodes && level.keep.best.is_some() {
        (
            "the value of a step lies on one node, and would be lost with it",
            "best= on a level without directories of nodes",
        )
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::NotPossibleHere, format!("`{text}`: {what}")).hint(hint))
}

/// Whether a place is an address but for its second slash, and no directory was meant.
fn lacks_a_slash(place: &str) -> bool {
    place.split_once(":/").is_some_and(|(scheme, rest)| {
        !rest.starts_with('/') && !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric())
    })
}

#[cold]
fn no_level(place: &str) -> Error {
    let near = did_you_mean(place, ["dram", "file", "direct", "pmem"]);
    let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
    Error::new(Kind::Usage, format!("`{place}` is not a level")).hint(format!(
        "{near}a level is dram, numa:N, file, direct, pmem, a directory with a `/` in it, or s3://BUCKET/PREFIX"
    ))
}

#[cold]
fn unknown(word: &str) -> Error {
    let key = word.split('=').next().unwrap_or(word);
    let known = ["keep", "every", "best", "tier", "ranks_per_node", "incremental", "compress"];
    let near = did_you_mean(key, known).map_or(String::new(), |near| format!("did you mean {near}? "));
    Error::new(Kind::UnknownKey, format!("`{word}` is not an option of a level")).hint(format!(
        "{near}a level reads WORD-OR-DIRECTORY[+REDUNDANCY][,keep=N][,every=N][,best=N][,tier=KIND]\
         [,ranks_per_node=N][,incremental=N][,compress=zstd]"
    ))
}

#[cold]
fn memory_is_plain() -> Error {
    Error::new(Kind::Usage, "levels in memory support neither incremental nor compressed steps")
        .hint("set it on a lower level, as in [\"dram\", \"file,incremental=10\"]")
}

fn parse_keep(text: &str) -> Result<usize> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
        Error::new(Kind::Usage, format!("keep=`{text}`")).hint("the number of retained steps, 1 or more")
    })
}

fn parse_ranks(text: &str) -> Result<u32> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
        Error::new(Kind::Usage, format!("ranks_per_node=`{text}`"))
            .hint("the number of ranks on a node, 1 or more")
    })
}

fn parse_every(text: &str) -> Result<u64> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
        Error::new(Kind::Usage, format!("every=`{text}`"))
            .hint("a number of steps: every=1000 keeps each 1000th")
    })
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io(format!("cannot resolve the path {}", path.display()), e))
}
