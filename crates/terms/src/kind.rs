//! The words for tiers and promises: which kind of tier, when stores are made persistent, what a write
//! survives.
//!
//! Plain values without behaviour; text forms are the lower-case words that files, variables and screens use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Kind};

/// A kind of place where bytes live.
///
/// In files, variables and on screens it is one word: `dram`, `file`, `pmem`, `direct`, `devdax`, `numa:1` with the
/// number of the node, or `numa:0+1` with the numbers of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TierKind {
    /// Main memory: a file on tmpfs, mapped by every process that uses it.
    Dram,
    /// The page cache of a block file system: written by system calls, read through a mapping.
    File,
    /// Persistent memory: a file on a DAX file system, mapped with MAP_SYNC.
    Pmem,
    /// A block file system past its page cache: written with O_DIRECT, many requests in flight.
    Direct,
    /// Persistent or CXL memory as a character device (`/dev/dax0.0`), mapped without a file system.
    DevDax,
    /// Main memory of one node of the machine, also memory behind CXL: as `dram`, bound to that node.
    Numa(u16),
    /// Main memory whose pages are spread in turn over several nodes, as `numactl --interleave` does.
    Interleaved(Nodes),
    /// A store of whole objects behind a network (S3 and its like). No pool of bytes can lie there.
    Object,
}

impl TierKind {
    /// Whether it is main memory: its bytes end with the boot, and filling it takes memory from programs.
    pub fn is_memory(self) -> bool {
        matches!(self, TierKind::Dram | TierKind::Numa(_) | TierKind::Interleaved(_))
    }
}

/// Memory nodes over which pages are spread: two or more of the nodes 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nodes(u16);

/// Most nodes of a machine that can be told in [`Nodes`]; machines with processors on more are rare.
pub const NODES_MAX: usize = u16::BITS as usize;

impl Nodes {
    /// Node 0 alone, which has no spelling: for tests on machines of one node.
    #[doc(hidden)]
    pub const FIRST_ALONE: Nodes = Nodes(1);

    /// The set of these nodes; None for fewer than two different ones, and for a number from [`NODES_MAX`] on.
    pub fn of(nodes: &[u16]) -> Option<Nodes> {
        let bits = nodes.iter().try_fold(0, |bits, node| Some(bits | 1u16.checked_shl((*node).into())?));
        bits.and_then(Nodes::from_bits)
    }

    /// The set in which node N is there if bit N is set; None for fewer than two.
    pub fn from_bits(bits: u16) -> Option<Nodes> {
        (bits.count_ones() >= 2).then_some(Nodes(bits))
    }

    /// See [`Nodes::from_bits`].
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Their numbers, rising.
    pub fn numbers(self) -> Vec<u16> {
        (0..u16::BITS as u16).filter(|node| self.0 >> node & 1 == 1).collect()
    }
}

/// The numbers, rising, with `+` between them: `0+1`.
impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.numbers().iter().map(u16::to_string).collect();
        f.pad(&numbers.join("+"))
    }
}

/// How many of the sampled pages lie on each node of a pool that is spread over several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    nodes: Nodes,
    pages: [u32; NODES_MAX],
}

impl Shares {
    /// `pages` holds their number by the number of the node.
    pub fn new(nodes: Nodes, pages: [u32; NODES_MAX]) -> Shares {
        Shares { nodes, pages }
    }

    /// Each node with its part of the pages in percent, rounded; the nodes rise.
    pub fn percent(&self) -> Vec<(u16, u32)> {
        let all = self.pages.iter().map(|pages| u64::from(*pages)).sum::<u64>().max(1);
        let part = |pages: u32| ((200 * u64::from(pages) + all) / (2 * all)) as u32;
        self.nodes.numbers().into_iter().map(|node| (node, part(self.pages[usize::from(node)]))).collect()
    }
}

/// The percents in the order of the nodes, with `:` between them: `50:50`.
impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percents: Vec<String> = self.percent().iter().map(|(_, percent)| percent.to_string()).collect();
        f.pad(&percents.join(":"))
    }
}

/// How the pages of a pool on memory nodes got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The kernel was told (mbind), and a sample of the pages says that they lie there.
    Bound,
    /// Binding was refused; a thread pinned to the node touched them first, and a sample says that they lie there.
    FirstTouch,
    /// The kernel was told to spread the pages over nodes (mbind), and a sample says how they lie.
    Interleaved(Shares),
    /// Spreading was refused; threads pinned to the nodes touched the pages in turn, and a sample says how they lie.
    TouchedInTurn(Shares),
    /// Nothing was prepared yet, or the kernel does not tell where pages lie.
    Unverified,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::Bound => "bound",
            Placement::FirstTouch => "first touch",
            Placement::Unverified => "unverified",
            Placement::Interleaved(shares) => return f.pad(&format!("interleaved {shares}")),
            Placement::TouchedInTurn(shares) => return f.pad(&format!("first touch {shares}")),
        })
    }
}

/// When stores are made persistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Horizon {
    /// Never by us: a write is acknowledged once other processes can see it.
    #[default]
    None,
    /// Once per version, before the version is acknowledged.
    Epoch,
    /// With every store, before the call returns.
    Write,
}

/// What an acknowledged write survives. Each value includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The end of the writing process, however it came.
    Process,
    /// A crash or reboot of the operating system.
    Os,
    /// Loss of power.
    Power,
}

/// How a pool is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Published bytes can be read; every write is refused.
    Read,
    /// Bytes can be read and written.
    Write,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TierKind::Dram => "dram",
            TierKind::File => "file",
            TierKind::Pmem => "pmem",
            TierKind::Direct => "direct",
            TierKind::DevDax => "devdax",
            TierKind::Object => "object",
            TierKind::Numa(node) => return f.pad(&format!("{NUMA_PREFIX}{node}")),
            TierKind::Interleaved(nodes) => return f.pad(&format!("{NUMA_PREFIX}{nodes}")),
        })
    }
}

/// What stands before the numbers of memory nodes.
const NUMA_PREFIX: &str = "numa:";

/// The words for tiers that bytes can be put on, for messages.
const TIER_WORDS: &str = "dram, numa:N, numa:N+M, pmem, devdax, file, direct";

impl FromStr for TierKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "dram" => Ok(TierKind::Dram),
            "file" => Ok(TierKind::File),
            "pmem" => Ok(TierKind::Pmem),
            "direct" => Ok(TierKind::Direct),
            "devdax" => Ok(TierKind::DevDax),
            "object" => Ok(TierKind::Object),
            _ => on_nodes(text).ok_or_else(|| unknown_word("tier", text, TIER_WORDS)),
        }
    }
}

/// `numa:N`, or `numa:N+M` with rising numbers: a tier has one text form.
fn on_nodes(text: &str) -> Option<TierKind> {
    let numbers = text.strip_prefix(NUMA_PREFIX)?.split('+').map(node_number);
    let nodes = numbers.collect::<Option<Vec<u16>>>()?;
    match nodes[..] {
        [node] => Some(TierKind::Numa(node)),
        _ if nodes.windows(2).all(|pair| pair[0] < pair[1]) => Nodes::of(&nodes).map(TierKind::Interleaved),
        _ => None,
    }
}

/// Digits only, without zeros in front.
fn node_number(digits: &str) -> Option<u16> {
    let plain = digits == "0" || !digits.starts_with('0');
    (plain && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

impl TryFrom<String> for TierKind {
    /// One line, which the reader of a file puts after its name and line.
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|e: Error| format!("{}; {}", e.message(), e.hint_text().unwrap_or_default()))
    }
}

impl From<TierKind> for String {
    fn from(kind: TierKind) -> String {
        kind.to_string()
    }
}

impl fmt::Display for Horizon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Horizon::None => "none",
            Horizon::Epoch => "epoch",
            Horizon::Write => "write",
        })
    }
}

impl FromStr for Horizon {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "none" => Ok(Horizon::None),
            "epoch" => Ok(Horizon::Epoch),
            "write" => Ok(Horizon::Write),
            _ => Err(unknown_word("horizon", text, "none, epoch, write")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Durability::Process => "process crash",
            Durability::Os => "OS crash",
            Durability::Power => "power failure",
        })
    }
}

fn unknown_word(what: &str, text: &str, words: &str) -> Error {
    Error::new(Kind::Usage, format!("`{text}` is not a {what}")).hint(format!("one of: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_are_read_back() {
        let nodes = [0, 1, u16::MAX].map(TierKind::Numa);
        use TierKind::{DevDax, Direct, Dram, File, Interleaved, Object, Pmem};
        let others = [Dram, File, Pmem, Direct, DevDax, Object];
        let spread = [0b11, 0b101, 1 << 15 | 1, u16::MAX].map(|bits| Interleaved(Nodes(bits)));
        for kind in nodes.into_iter().chain(others).chain(spread) {
            assert_eq!(kind.to_string().parse::<TierKind>().unwrap(), kind);
            assert_eq!(TierKind::try_from(String::from(kind)).unwrap(), kind);
        }
        for wrong in ["numa", "numa:", "numa:x", "numa:+1", "numa:01", "numa:65536", "numa:-1", "Dram"] {
            assert_eq!(wrong.parse::<TierKind>().unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
        let said = TierKind::try_from("ram".to_string()).unwrap_err();
        assert_eq!(said, "`ram` is not a tier; one of: dram, numa:N, numa:N+M, pmem, devdax, file, direct");
        assert_eq!(format!("{:>7}|", TierKind::Numa(3)), " numa:3|");
        for horizon in [Horizon::None, Horizon::Epoch, Horizon::Write] {
            assert_eq!(horizon.to_string().parse::<Horizon>().unwrap(), horizon);
        }
        assert_eq!("ram".parse::<TierKind>().unwrap_err().kind(), Kind::Usage);
        assert!(Durability::Process < Durability::Os && Durability::Os < Durability::Power);
    }

    #[test]
    fn nodes_are_a_set_with_one_text_form() {
        let both = Nodes::of(&[1, 0, 1]).unwrap();
        assert_eq!((both.bits(), both.numbers(), both.to_string()), (0b11, vec![0, 1], "0+1".to_string()));
        assert_eq!("numa:0+2+15".parse::<TierKind>().unwrap().to_string(), "numa:0+2+15");
        assert!(TierKind::Interleaved(both).is_memory());
        assert_eq!(
            (Nodes::of(&[3]), Nodes::of(&[3, 3]), Nodes::of(&[0, 16]), Nodes::of(&[])),
            (None, None, None, None)
        );
        assert_eq!(Nodes::of(&[0, u16::MAX]), None);
        for wrong in [
            "numa:1+0",
            "numa:0+0",
            "numa:0+0+1",
            "numa:0+",
            "numa:0++1",
            "numa:0,1",
            "numa:0-1",
            "numa:0+16",
            "numa:0+01",
        ] {
            assert_eq!(wrong.parse::<TierKind>().unwrap_err().kind(), Kind::Usage, "{wrong}");
        }
    }

    #[test]
    fn shares_are_told_in_the_order_of_the_nodes() {
        let shares = |on: &[(usize, u32)]| {
            let mut pages = [0; NODES_MAX];
            on.iter().for_each(|(node, count)| pages[*node] = *count);
            Shares::new(Nodes::of(&[0, 2, 5]).unwrap(), pages)
        };
        assert_eq!(shares(&[(0, 7), (2, 7), (5, 7)]).to_string(), "33:33:33");
        assert_eq!(shares(&[(5, 3), (2, 1)]).percent(), [(0, 0), (2, 25), (5, 75)]);
        assert_eq!(Placement::Interleaved(shares(&[(0, 2), (5, 2)])).to_string(), "interleaved 50:0:50");
        assert_eq!(Placement::TouchedInTurn(shares(&[])).to_string(), "first touch 0:0:0");
    }
}
