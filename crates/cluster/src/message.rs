//! What agents say to each other: requests and answers as JSON, with the number of the protocol.
//!
//! Guarantees: a message of another protocol, a longer one than allowed or one that is not understood is refused before
//! anything is done; lists have a limit. Payloads are no messages: they travel as plain bytes (`wire.rs`). Not here:
//! who answers (`owner.rs`), how messages travel (`link.rs`, `wire.rs`).

use std::collections::BTreeMap;

use forebay_space::{Attribute, Dtype, Error, Kind, Record, Result, Wanted};
use serde::{Deserialize, Serialize};

/// The protocol. Agents of a job speak the same one.
pub const PROTOCOL: u32 = 2;
/// A request is at most this long: it names at most [`RANKS_MAX`] ranks.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// An answer is at most this long: it lists at most [`RECORDS_MAX`] records.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The payload of a version follows the answer that it is there, if it has at most so many bytes.
pub const INLINE_BYTES_MAX: u64 = 256 << 10;
/// Records of one version.
pub const RECORDS_MAX: usize = 200_000;
/// Readers of one node that wait for a space, as far as they take different things.
pub const CLAIMS_MAX: usize = 16;
/// Ranks of all reader groups of a space, on one node.
pub const RANKS_MAX: usize = 4096;

/// One request, with who sends it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// [`PROTOCOL`] of the sender.
    pub protocol: u32,
    /// Its node.
    pub node: String,
    /// Which agent of that node it is, counted from 1.
    pub incarnation: u64,
    /// What it wants.
    pub ask: Ask,
}

/// What is asked for. A mirror is named by an identifier that its agent makes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Whether writers of this space are on the node, or were and a waiting reader takes what they have put.
    Find {
        /// Its short name.
        name: String,
        /// The readers that wait for it.
        #[serde(default)]
        wanted: Vec<Claim>,
    },
    /// Begins a mirror of a space.
    Open {
        /// The mirror.
        mirror: String,
        /// Name of the space.
        name: String,
        /// Its identity, as it was found.
        uuid: String,
    },
    /// Waits for a version, and releases all before it; or looks whether there will be one. A payload of at most
    /// [`INLINE_BYTES_MAX`] follows the answer.
    Next {
        /// The mirror.
        mirror: String,
        /// The version.
        version: u64,
        /// How long to wait, at most.
        wait_ms: u64,
        /// Nothing is released or held.
        #[serde(default)]
        peek: bool,
    },
    /// Bytes of a version: of the payloads of its records one behind the other, in the order of the list. They follow
    /// in place of an answer.
    Read {
        /// The mirror.
        mirror: String,
        /// The version, which was the answer to `Next`.
        version: u64,
        /// The first byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// Bytes without a meaning, to measure the connection, in place of an answer.
    Probe {
        /// How many.
        bytes: u64,
    },
    /// Says which ranks read the mirror, and how far they are.
    Readers {
        /// The mirror.
        mirror: String,
        /// All of them.
        ranks: Vec<Rank>,
    },
    /// Ends a mirror.
    Close {
        /// The mirror.
        mirror: String,
    },
}

/// What a waiting reader takes of writers that have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// All that is there.
    pub finished: bool,
    /// What writers of this launch have put; 0: of none.
    pub run: u64,
    /// Its process began at most and at least so many nanoseconds ago: clocks of two nodes differ.
    pub began_ago_ns: (u64, u64),
}

impl Claim {
    /// Of a reader of this node.
    pub fn of(wanted: &Wanted) -> Claim {
        let ago = |at| forebay_tier::clock::realtime_ns().saturating_sub(at);
        let Wanted { finished, run, began } = wanted;
        Claim { finished: *finished, run: *run, began_ago_ns: (ago(began.start), ago(began.end)) }
    }

    /// By the clock of this node.
    pub fn here(&self) -> Wanted {
        let at = |ago| forebay_tier::clock::realtime_ns().saturating_sub(ago);
        let (most, least) = self.began_ago_ns;
        Wanted { finished: self.finished, run: self.run, began: at(most)..at(least) }
    }
}

/// A rank that reads a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// Reader group.
    pub group: String,
    /// Ranks of the group.
    pub size: u32,
    /// The rank.
    pub rank: u32,
    /// What writers do while the group is away, of one that keeps a cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// It has released every version below.
    pub below: u64,
    /// Whether it has seen the end of the stream.
    pub ended: bool,
    /// Whether it has left its group for good.
    #[serde(default)]
    pub left: bool,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To `Find`.
    Found(Option<Found>),
    /// To `Open`.
    Opened(Opened),
    /// To `Next`.
    Next(Next),
    /// To `Readers`: ranks of the same groups that read the space elsewhere.
    Elsewhere(Vec<Place>),
    /// To `Close`.
    Closed,
    /// To anything.
    Failed(Failure),
}

/// A space that has or had its writers on a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Identity.
    pub uuid: String,
    /// Which start of its writers.
    pub incarnation: u32,
    /// As `forebay ls` says it.
    pub state: String,
    /// Its name on the node: that of the space, or of a part.
    pub name: String,
    /// Of the part that the writers of the node have put, where there are others on other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<FoundPart>,
}

/// Which part of a space a node has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoundPart {
    /// Ranks of the whole group.
    pub size: u32,
    /// The rank of each writer of the node, in their own order.
    pub ranks: Vec<u32>,
    /// Token of the launch; 0: none is known.
    pub launch: u64,
    /// How often its writers had opened the space, this time included.
    pub opened: u64,
    /// The last writer began, and the last one ended, so many nanoseconds ago: clocks of two nodes differ. None: they
    /// have not, or died.
    pub lived_ago_ns: (u64, Option<u64>),
    /// Whether a reader takes it, if its writers have ended.
    pub is_taken: bool,
}

/// What a mirror is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Ranks of the writers.
    pub writers: u32,
    /// Their component.
    pub component: String,
    /// Limit of its bytes.
    pub quota_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// When versions are dropped, in words.
    pub retention: String,
    /// Whether payloads have checksums.
    pub checksum: bool,
    /// First version that is retained.
    pub oldest: u64,
    /// Reader groups that keep a cursor, with their sizes.
    pub declared: Vec<(String, u32)>,
}

impl Opened {
    /// What a mirror of two parts is made from; the one begins with what both have.
    pub fn and(self, other: Opened) -> Opened {
        let mut declared = self.declared;
        declared.extend(other.declared);
        declared.sort();
        declared.dedup();
        Opened {
            quota_bytes: self.quota_bytes.saturating_add(other.quota_bytes),
            segment_bytes: self.segment_bytes.max(other.segment_bytes),
            oldest: self.oldest.max(other.oldest),
            checksum: self.checksum || other.checksum,
            declared,
            ..self
        }
    }
}

/// How a wait for a version ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// It is complete, and held until the next `Next`.
    Version(Version),
    /// Not yet: ask again.
    Waiting,
    /// All writers have closed, and there is no such version.
    End {
        /// The space's attributes.
        attributes: Attributes,
        /// The last writer ended so many nanoseconds ago.
        ended_ago_ns: u64,
    },
    /// A writer died, or the space was removed.
    Died(String),
    /// It was dropped before it was asked for.
    Dropped {
        /// First version that is retained.
        oldest: u64,
    },
}

/// Attributes of a whole space.
pub type Attributes = BTreeMap<String, Attribute>;

/// A complete version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Version {
    /// Its records, in the order of ranks and puts.
    pub records: Vec<RecordText>,
    /// The space's attributes.
    pub attributes: Attributes,
}

impl Version {
    /// Bytes of its payload, if they follow the answer.
    pub fn inline_bytes(&self) -> Option<u64> {
        let bytes = self.records.iter().try_fold(0u64, |sum, record| sum.checked_add(record.bytes));
        bytes.filter(|bytes| *bytes <= INLINE_BYTES_MAX)
    }
}

/// A record as text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordText {
    rank: u32,
    name: String,
    dtype: String,
    shape: Vec<u64>,
    start: Vec<u64>,
    count: Vec<u64>,
    bytes: u64,
}

/// A rank that reads elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Its group.
    pub group: String,
    /// Ranks of the group.
    pub size: u32,
    /// The rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
}

/// An error of the other agent.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Number of its kind.
    pub kind: u16,
    /// The sentence.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        let facts: Vec<String> =
            error.context().iter().map(|(key, value)| format!("{key}={value}")).collect();
        let message = match facts.is_empty() {
            true => error.message().to_string(),
            false => format!("{} ({})", error.message(), facts.join(", ")),
        };
        Failure { kind: error.kind().code(), message, hint: error.hint_text().map(str::to_string) }
    }
}

impl Failure {
    /// The error, of the agent on `node`.
    pub fn error(self, node: &str) -> Error {
        let kind = Kind::from_code(self.kind).unwrap_or(Kind::Internal);
        let error = Error::new(kind, format!("node {node}: {}", self.message));
        match self.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl From<&Record> for RecordText {
    fn from(record: &Record) -> RecordText {
        RecordText {
            rank: record.rank,
            name: record.name.clone(),
            dtype: record.dtype.name().to_string(),
            shape: record.shape.to_vec(),
            start: record.start.to_vec(),
            count: record.count.to_vec(),
            bytes: record.bytes,
        }
    }
}

impl RecordText {
    /// The record; its rank is among the `ranks` of the writers of its node, in their own order.
    pub fn record(&self, ranks: &[u32]) -> Result<Record> {
        let wrong = |what: &str| malformed(&format!("record of variable {}: {what}", self.name));
        let Some(rank) = ranks.get(self.rank as usize) else {
            return Err(wrong("its rank is not below the number of writers"));
        };
        let dtype = Dtype::parse(&self.dtype).ok_or_else(|| wrong("unknown dtype"))?;
        let record = Record {
            rank: *rank,
            name: self.name.clone(),
            dtype,
            shape: self.shape.iter().copied().collect(),
            start: self.start.iter().copied().collect(),
            count: self.count.iter().copied().collect(),
            bytes: self.bytes,
        };
        let piece = piece_of(&record);
        match piece.payload_bytes()? == self.bytes {
            true => Ok(record),
            false => Err(wrong("its bytes are not those of its box")),
        }
    }
}

/// What a record is put as.
pub fn piece_of(record: &Record) -> forebay_space::Piece<'_> {
    forebay_space::Piece {
        name: &record.name,
        dtype: record.dtype,
        shape: &record.shape,
        start: &record.start,
        count: &record.count,
    }
}

/// The error for a message that is not understood.
pub fn malformed(what: &str) -> Error {
    Error::new(Kind::UnknownFormat, format!("invalid message from another agent: {what}"))
        .hint("all agents of a job must have the same version of Forebay")
}

/// Reads a request.
///
/// # Errors
/// [`Kind::UnknownFormat`]: another protocol, too long, or not a request.
pub fn read_request(bytes: &[u8]) -> Result<Request> {
    if bytes.len() > REQUEST_BYTES_MAX {
        return Err(malformed("it is too long")
            .with("bytes", bytes.len())
            .with("bytes_max", REQUEST_BYTES_MAX));
    }
    /// What a request of any protocol says.
    #[derive(Deserialize)]
    struct Head {
        protocol: u32,
        node: String,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|e| malformed(&e.to_string()))?;
    if head.protocol != PROTOCOL {
        return Err(other_protocol(&head.node, head.protocol));
    }
    let request: Request = serde_json::from_slice(bytes).map_err(|e| malformed(&e.to_string()))?;
    match &request.ask {
        Ask::Find { wanted, .. } if wanted.len() > CLAIMS_MAX => Err(malformed("it names too many readers")),
        Ask::Readers { ranks, .. } if ranks.len() > RANKS_MAX => Err(malformed("it names too many ranks")),
        _ => Ok(request),
    }
}

/// Reads the answer of the agent on `node`.
///
/// # Errors
/// [`Kind::UnknownFormat`]; what the other agent failed with.
pub fn read_answer(node: &str, bytes: &[u8]) -> Result<Answer> {
    if bytes.len() > ANSWER_BYTES_MAX {
        return Err(malformed("it is too long").with("node", node).with("bytes", bytes.len()));
    }
    match serde_json::from_slice(bytes).map_err(|e| malformed(&e.to_string()).with("node", node))? {
        Answer::Failed(failure) => Err(failure.error(node)),
        answer => Ok(answer),
    }
}

/// The error for an agent of another protocol.
pub fn other_protocol(node: &str, protocol: u32) -> Error {
    Error::new(Kind::UnknownFormat, format!("the agent of node {node} uses a different protocol"))
        .with("protocol", protocol)
        .with("known", PROTOCOL)
        .hint("install the same version of Forebay on all nodes of the job")
}

/// The bytes of a message.
///
/// # Errors
/// [`Kind::TooMany`]: an answer would be too long.
pub fn bytes_of<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(message)
        .map_err(|e| Error::new(Kind::Internal, format!("a message cannot be written: {e}")))?;
    match bytes.len() <= ANSWER_BYTES_MAX {
        true => Ok(bytes),
        false => Err(Error::new(Kind::TooMany, "the list of records of a version is too long for a message")
            .with("bytes", bytes.len())
            .with("bytes_max", ANSWER_BYTES_MAX)
            .hint("put fewer and larger arrays in a step")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ask: Ask) -> Vec<u8> {
        bytes_of(&Request { protocol: PROTOCOL, node: "n1".into(), incarnation: 1, ask }).unwrap()
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let bytes = request(Ask::Next { mirror: "m".into(), version: 7, wait_ms: 100, peek: false });
        let read = read_request(&bytes).unwrap();
        assert!(matches!(read.ask, Ask::Next { version: 7, wait_ms: 100, .. }), "{read:?}");
        assert_eq!((read.node.as_str(), read.incarnation), ("n1", 1));
    }

    #[test]
    fn other_messages_are_refused() {
        let whole = request(Ask::Find { name: "heat".into(), wanted: vec![] });
        let text = String::from_utf8(whole.clone()).unwrap();
        for bytes in [
            Vec::new(),
            whole[..whole.len() - 1].to_vec(),
            text.replace("find", "fund").into_bytes(),
            text.replace("\"node\"", "\"more\":1,\"node\"").into_bytes(),
            vec![b' '; REQUEST_BYTES_MAX + 1],
        ] {
            assert_eq!(read_request(&bytes).unwrap_err().kind(), Kind::UnknownFormat);
        }
        let other = read_request(text.replace("\"protocol\":2", "\"protocol\":3").as_bytes()).unwrap_err();
        assert!(other.to_string().contains("n1"), "{other}");
    }

    #[test]
    fn a_record_must_be_one_of_its_space() {
        let record = |rank, dtype: &str, bytes| RecordText {
            rank,
            name: "x".into(),
            dtype: dtype.into(),
            shape: vec![4],
            start: vec![1],
            count: vec![2],
            bytes,
        };
        record(1, "float64", 16).record(&[0, 1]).unwrap();
        for wrong in [record(2, "float64", 16), record(1, "float65", 16), record(1, "float64", 15)] {
            wrong.record(&[0, 1]).unwrap_err();
        }
    }
}
