//! The analytics as one rank of a group of readers: follows the channel of a simulation to its end.
//!
//! Each rank works on its part and hands its findings to rank 0 through a private space, which adds them up in the
//! order of the ranks and writes a line. Every version that the channel retains is seen once and released as soon as
//! it has been read.

use super::work::{columns_together, of_block, of_stretch, Findings, Stretch, Work};
use super::ReadOnlyArgs;
use crate::account::Account;
use crate::objects::{at_least_one, counts, object_bytes, shares, Access, Share, Source, LAYOUT};
use crate::particles::simulate::ARRAYS;
use forebay_space::{Attribute, Error, Kind, NdBox, OpenOptions, Reader, Result, Writer};
use gray_scott::analysis::output::ResultFile;
use gray_scott::exchange::{Exchange, Member, Readers};
use gray_scott::simulation::split::part;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Name of the file of the results.
pub const FILE_NAME: &str = "results.jsonl";

/// What a channel holds.
enum Layout {
    /// Objects of so many bytes.
    Objects(usize),
    /// Arrays of these names: ranks × rows × columns.
    Arrays(Vec<String>),
}

impl Layout {
    fn of(reader: &Reader) -> Result<Layout> {
        let attributes = reader.attributes()?;
        let text = |key: &str| match attributes.get(key) {
            Some(Attribute::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        match (text("program"), text(LAYOUT), text(ARRAYS)) {
            (Some("amr"), Some("objects"), _) => Ok(Layout::Objects(object_bytes(reader)?)),
            (_, Some("arrays"), Some(names)) => Ok(Layout::Arrays(names.split(',').map(str::to_owned).collect())),
            _ => Err(Error::new(Kind::Usage, "the channel is none of a simulation of the suite")
                .with("channel", reader.name())
                .hint("`forebay app amr` and `forebay app particles` write such channels; `forebay app reader` checks \
                       those of `forebay app writer`")),
        }
    }
}

/// The private space by which findings reach rank 0.
fn open_link(channel: &str, member: &Member) -> Result<Option<Exchange>> {
    let component = member.options.component.as_deref().unwrap_or_default();
    let name = format!("{channel}-{component}-findings");
    match member.size {
        1 => Ok(None),
        _ => Exchange::open(&name, member, Readers::RankZero, 8 * (Findings::WORDS as u64 + 1)).map(Some),
    }
}

/// Follows the channel to its end as one rank of the group.
///
/// # Errors
/// `Damaged` for a block whose rows do not add up; those of the channel.
pub fn follow(args: &ReadOnlyArgs, work: Work, options: &OpenOptions) -> Result<Account> {
    at_least_one("the batch", args.batch)?;
    let member = Member::new(&args.channel, options, work.name())?;
    let mut account = Account::new(work.name(), &args.channel, &member, args.batch)?;
    let out = args.out.clone().unwrap_or_else(|| work.name().into());
    let file = match member.rank {
        0 => Some(ResultFile::prepare(&out, FILE_NAME, args.existing)?),
        _ => None,
    };
    let reader = Reader::open(&args.channel, &member.options)?;
    let source = Source::new(Access { batch: args.batch, in_place: args.in_place });
    let mut follower =
        Follower { args, work, member: &member, reader, source, file, link: None, numbers: Vec::new() };
    match follower.run(&mut account) {
        Ok(()) => {
            account.counted(&follower.reader.stats());
            follower.reader.close()?;
            follower.link.map_or(Ok(()), Exchange::finish)?;
            Ok(account)
        }
        Err(e) => {
            // As if this process had died, so that rank 0 does not wait for findings that never come.
            follower.link.into_iter().for_each(Exchange::abandon);
            Err(e)
        }
    }
}

struct Follower<'a> {
    args: &'a ReadOnlyArgs,
    work: Work,
    member: &'a Member,
    reader: Reader,
    source: Source,
    file: Option<ResultFile>,
    link: Option<Exchange>,
    numbers: Vec<f64>,
}

impl Follower<'_> {
    fn run(&mut self, account: &mut Account) -> Result<()> {
        let mut layout = None;
        while let Some(version) = self.reader.begin_step(None)? {
            if layout.is_none() {
                layout = Some(Layout::of(&self.reader)?);
                self.link = open_link(&self.args.channel, self.member)?;
            }
            let calls = account.begin_calls(&self.reader.stats());
            let findings = match layout.as_ref().expect("found above") {
                Layout::Objects(bytes) => self.objects(*bytes, version, account)?,
                Layout::Arrays(names) => self.arrays(names, account)?,
            };
            self.reader.end_step()?;
            account.end_calls(&calls, &self.reader.stats());
            self.hand_over(version, account.versions, findings)?;
            account.versions += 1;
            account.objects += findings.objects;
        }
        Ok(())
    }

    /// This rank's part of the blocks of a version.
    fn objects(&mut self, bytes: usize, version: u64, account: &mut Account) -> Result<Findings> {
        let Follower { work, member, reader, source, numbers, .. } = self;
        let counts = counts(reader)?;
        let mut findings = Findings::default();
        for share in shares(&counts, member.size, member.rank) {
            let before: u64 = counts[..share.rank].iter().sum();
            let mut computing = Duration::ZERO;
            source.each(reader, &share, bytes, |index, object| {
                let began = Instant::now();
                let place = before + index as u64;
                let found = of_block(*work, floats(object, numbers), place);
                computing += began.elapsed();
                findings.add(&found.ok_or_else(|| damaged(&share, version, index))?);
                Ok(())
            })?;
            account.compute_ns += computing.as_nanos() as u64;
        }
        Ok(findings)
    }

    /// This rank's part of the arrays of a version.
    fn arrays(&mut self, names: &[String], account: &mut Account) -> Result<Findings> {
        let mut findings = Findings::default();
        for (which, name) in names.iter().enumerate() {
            let (_, shape) = self.reader.array(name)?;
            let [ranks, rows, columns] = shape[..] else {
                return Err(Error::new(Kind::Usage, "an array of the channel has not three dimensions")
                    .with("variable", name)
                    .with("shape", format!("{shape:?}")));
            };
            let together = columns_together(self.work, rows as usize);
            let units = columns as usize / together;
            let mine = part(units * ranks as usize, self.member.size, self.member.rank);
            for rank in 0..ranks as usize {
                let of_rank = rank * units..(rank + 1) * units;
                let units = mine.start.max(of_rank.start)..mine.end.min(of_rank.end);
                if units.is_empty() {
                    continue;
                }
                let (first, width) = ((units.start - of_rank.start) * together, units.len() * together);
                let wanted = NdBox::new(&[rank as u64, 0, first as u64], &[1, rows, width as u64])?;
                let array = which as u64 * ranks + rank as u64;
                let (rows, columns) = (rows as usize, columns as usize);
                let found = self.stretch(name, &wanted, account, |values| Stretch {
                    values,
                    rows,
                    first,
                    columns,
                    array,
                })?;
                findings.add(&found);
            }
        }
        Ok(findings)
    }

    fn stretch(
        &mut self,
        name: &str,
        wanted: &NdBox,
        account: &mut Account,
        of: impl Fn(&[f64]) -> Stretch<'_>,
    ) -> Result<Findings> {
        let work = self.work;
        // Only what lies in one piece can be looked at where it is.
        if self.args.in_place {
            match self.reader.view(name, Some(wanted)) {
                Ok(view) => {
                    let values = floats(view.bytes(), &mut self.numbers);
                    return Ok(account.computing(|| of_stretch(work, &of(values))));
                }
                Err(e) if e.kind() == Kind::NotContiguous => {}
                Err(e) => return Err(e),
            }
        }
        self.numbers.resize(wanted.bytes(8)? / 8, 0.0);
        self.reader.get(name, Some(wanted), bytemuck::cast_slice_mut(&mut self.numbers))?;
        let values = &self.numbers;
        Ok(account.computing(|| of_stretch(work, &of(values))))
    }

    /// Gives the findings to rank 0, which writes them.
    fn hand_over(&mut self, version: u64, round: u64, mine: Findings) -> Result<()> {
        let mut total = Findings::default();
        match &mut self.link {
            None => total = mine,
            Some(link) => {
                let (rank, ranks) = (self.member.rank as u64, self.member.size as u64);
                let words: Vec<u64> = std::iter::once(version).chain(mine.to_words()).collect();
                let width = words.len() as u64;
                link.publish(round, |writer: &mut Writer| {
                    writer.put_array("findings", &[ranks, width], &[rank, 0], &[1, width], &words)
                })?;
                if rank == 0 {
                    link.collect(round, |reader: &mut Reader| add_up(reader, version, &mut total))?;
                }
            }
        }
        match &mut self.file {
            Some(file) => file.append(version, &line(self.work, version, &total)),
            None => Ok(()),
        }
    }
}

fn add_up(reader: &mut Reader, version: u64, total: &mut Findings) -> Result<()> {
    let all: Vec<u64> = reader.get_array("findings", None)?;
    for words in all.chunks_exact(Findings::WORDS + 1) {
        if words[0] != version {
            return Err(Error::new(
                Kind::GroupMismatch,
                "the ranks of the analytics have read different versions",
            )
            .with("rank_0", version)
            .with("another", words[0])
            .hint(
                "a channel that drops versions unread (retention last:K) lets readers get different versions",
            ));
        }
        let words = std::array::from_fn(|i| words[i + 1]);
        total.add(&Findings::from_words(words));
    }
    Ok(())
}

/// The line of a version in the file of the results.
fn line(work: Work, version: u64, findings: &Findings) -> impl Serialize {
    #[derive(Serialize)]
    struct Line {
        version: u64,
        work: &'static str,
        objects: u64,
        values: u64,
        products: u64,
        sum: f64,
        min: f64,
        max: f64,
        checksum: String,
    }
    let Findings { objects, values, products, sum, min, max, checksum } = *findings;
    let checksum = format!("{checksum:016x}");
    Line { version, work: work.name(), objects, values, products, sum, min, max, checksum }
}

/// The bytes of an object as numbers; by way of a buffer when memory is not aligned for them.
fn floats<'a>(bytes: &'a [u8], buffer: &'a mut Vec<f64>) -> &'a [f64] {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => numbers,
        Err(_) => {
            buffer.resize(bytes.len() / 8, 0.0);
            let whole = buffer.len() * 8;
            bytemuck::cast_slice_mut(buffer).copy_from_slice(&bytes[..whole]);
            buffer
        }
    }
}

fn damaged(share: &Share, version: u64, index: usize) -> Error {
    Error::new(
        Kind::Damaged,
        "a block is not what the simulation puts: its rows do not add up to what it says",
    )
    .with("writer_rank", share.rank)
    .with("version", version)
    .with("object", index)
}
