//! A private space in which the ranks of one group pass each other something, round after round.
//!
//! The simulation uses one for ghost planes (all ranks read), the analysis one for partial results (rank 0
//! reads). Round n is version `base + n`: a group that was restarted finds the rounds of the one before it,
//! and goes on behind them. No payload lives longer than a round or two, so nothing is made durable and no
//! checksum is kept: damage to memory between two processes of one node is out of scope here.
//!
//! A round ends for its writers at once; a reader waits until all ranks have put theirs. When all ranks read, a rank is
//! at most one round ahead of the slowest, which bounds the space that is needed; when rank 0 alone reads, the others
//! run ahead until the space is used up, and wait.

use forebay_space::{
    environment, Error, Horizon, Kind, Mode, OpenOptions, Reader, Result, Retention, Writer,
};

/// Who this process is.
#[derive(Clone, Debug)]
pub struct Member {
    /// Rank in its group.
    pub rank: usize,
    /// Size of its group.
    pub size: usize,
    /// The options that the group's channel is opened with: rank, size and component filled in.
    pub options: OpenOptions,
}

impl Member {
    /// Finds out rank, size and component for the user's options, as opening `channel` with them would.
    /// `component` is the name when neither the options nor the environment have one.
    pub fn new(channel: &str, options: &OpenOptions, component: &str) -> Result<Member> {
        let mut options = options.clone();
        if options.component.is_none() && std::env::var_os("FOREBAY_COMPONENT").is_none() {
            options.component = Some(component.to_owned());
        }
        let (resolved, _) = options.resolved_across_nodes(channel, &environment::process)?;
        let (Some(rank), Some(size)) = (resolved.rank, resolved.size) else {
            return Err(Error::new(Kind::Internal, "rank and size of this process are not known"));
        };
        options.rank = Some(rank);
        options.size = Some(size);
        options.component = resolved.component;
        options.timeout = resolved.timeout;
        Ok(Member { rank: rank as usize, size: size as usize, options })
    }
}

/// Who reads an [`Exchange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// All ranks.
    All,
    /// Rank 0 alone.
    RankZero,
}

/// One rank's end of the private space.
pub struct Exchange {
    writer: Writer,
    reader: Option<Reader>,
    base: u64,
}

/// A rank's share of a pool holds this many rounds: the one being written, the one being read, one being released, in
/// segments of two rounds each.
const SEGMENTS_PER_RANK: u64 = 6;
const ROUNDS_PER_SEGMENT: u64 = 2;
/// Space for headers and names beside the payload of one round.
const OVERHEAD_BYTES: u64 = 64 << 10;

impl Exchange {
    /// Opens `name` with all ranks of the group. `round_bytes` is the most that one rank puts in one round;
    /// all ranks must say the same. Waits for the space until the deadline of the options.
    pub fn open(name: &str, member: &Member, readers: Readers, round_bytes: u64) -> Result<Exchange> {
        let size = member.size as u32;
        let group = if readers == Readers::All { size } else { 1 };
        let component = member.options.component.clone().unwrap_or_default();
        let segment_bytes = (ROUNDS_PER_SEGMENT * (round_bytes + OVERHEAD_BYTES)).next_multiple_of(256 << 10);
        let options = OpenOptions {
            rank: member.options.rank,
            size: member.options.size,
            component: Some(component.clone()),
            horizon: Some(Horizon::None),
            retention: Some(Retention::Released),
            checksum: Some(false),
            quota_bytes: Some(segment_bytes * SEGMENTS_PER_RANK * u64::from(size)),
            segment_bytes: Some(segment_bytes),
            timeout: member.options.timeout,
            scope: member.options.scope,
            readers: vec![(component, group)],
            // What an earlier start left there is passed over: rounds count from behind it.
            mode: Mode::Append,
            ..OpenOptions::default()
        };
        let mut writer = Writer::open(name, &options)?;
        let base = writer.resume()?;
        let reading = OpenOptions {
            rank: Some(if group == 1 { 0 } else { member.rank as u32 }),
            size: Some(group),
            ..options
        };
        let reads = readers == Readers::All || member.rank == 0;
        let reader = if reads { Some(Reader::open(name, &reading)?) } else { None };
        Ok(Exchange { writer, reader, base })
    }

    /// Puts this rank's part of round `round`.
    pub fn publish(&mut self, round: u64, put: impl FnOnce(&mut Writer) -> Result<()>) -> Result<()> {
        self.writer.begin_version(self.base + round)?;
        put(&mut self.writer)?;
        self.writer.end_step()
    }

    /// Waits until every rank has published round `round`, then lets `get` read it.
    pub fn collect(&mut self, round: u64, get: impl FnOnce(&mut Reader) -> Result<()>) -> Result<()> {
        let reader = self.reader.as_mut().expect("only ranks that read collect");
        let wanted = self.base + round;
        loop {
            match reader.begin_step(None)? {
                // Left by a group that was killed before this one.
                Some(version) if version < wanted => reader.end_step()?,
                Some(version) if version == wanted => break,
                Some(version) => {
                    return Err(Error::new(Kind::VersionGone, "a round of the exchange was dropped unread")
                        .with("space", reader.name())
                        .with("round", wanted)
                        .with("found", version))
                }
                None => {
                    return Err(Error::new(Kind::ProducerDied, "the other ranks closed the exchange")
                        .with("space", reader.name())
                        .with("round", wanted)
                        .hint("another rank of this component has stopped early: see its error"))
                }
            }
        }
        get(reader)?;
        reader.end_step()
    }

    /// Adds `part` up over all ranks, in the order of their numbers, so that every rank gets the same bits. It takes
    /// round `round`, in which `name` is what ranks pass each other.
    pub fn add_up(&mut self, round: u64, name: &str, part: &mut [f64]) -> Result<()> {
        let (rank, ranks, width) = (self.writer.rank(), self.writer.size(), part.len() as u64);
        self.publish(round, |writer| {
            writer.put_array(name, &[u64::from(ranks), width], &[u64::from(rank), 0], &[1, width], part)
        })?;
        self.collect(round, |reader| {
            let all: Vec<f64> = reader.get_array(name, None)?;
            part.fill(0.0);
            for of_rank in all.chunks_exact(part.len()) {
                part.iter_mut().zip(of_rank).for_each(|(sum, x)| *sum += x);
            }
            Ok(())
        })
    }

    /// Ends this rank's part as if it had died, so that the others stop waiting for it.
    pub fn abandon(self) {
        self.writer.abandon();
    }

    /// Ends this rank's part; readers wait until all ranks have, so that the space can go.
    pub fn finish(self) -> Result<()> {
        self.writer.close()?;
        if let Some(mut reader) = self.reader {
            while reader.begin_step(None)?.is_some() {
                reader.end_step()?;
            }
            reader.close()?;
        }
        Ok(())
    }
}
