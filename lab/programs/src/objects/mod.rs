//! Channels of many objects: each a variable of its own, put and read whole, one by one or many at a time.
//!
//! A version holds, from each rank, any number of objects of one size, and the variable `counts` that says how
//! many. What an object holds is the program's affair: [`mod@write`] puts objects whose content anybody can check,
//! the adaptive stencil puts its blocks. Readers divide the objects among themselves ([`shares`]).

pub mod pattern;
pub mod read;
pub mod write;

use forebay_space::{Attribute, Dtype, Error, Kind, Reader, Result, Writer};
use std::ops::Range;

pub use read::{read, ReaderArgs};
pub use write::{write, WriterArgs};

/// Variable that says how many objects each rank put.
const COUNTS: &str = "counts";
/// Attributes that say what a channel is: its layout and the bytes of an object.
pub(crate) const LAYOUT: &str = "layout";
pub(crate) const OBJECT_BYTES: &str = "object_bytes";

/// Names of the objects of one rank, made when they are needed first.
pub(crate) struct Names {
    rank: usize,
    names: Vec<String>,
}

impl Names {
    pub fn new(rank: usize) -> Names {
        Names { rank, names: Vec::new() }
    }

    /// The names of the first `count` objects.
    pub fn first(&mut self, count: usize) -> &[String] {
        for index in self.names.len()..count {
            self.names.push(format!("o{}-{index}", self.rank));
        }
        &self.names[..count]
    }
}

/// Says in the channel's attributes that it holds objects of this size.
pub(crate) fn describe(writer: &mut Writer, program: &str, object_bytes: usize) -> Result<()> {
    writer.set_attribute("program", &Attribute::Text(program.to_owned()))?;
    writer.set_attribute(LAYOUT, &Attribute::Text("objects".to_owned()))?;
    writer.set_attribute(OBJECT_BYTES, &Attribute::Int(object_bytes as i64))
}

/// Puts how many objects this rank has in the open step.
pub(crate) fn put_count(writer: &mut Writer, count: usize) -> Result<()> {
    let (rank, size) = (u64::from(writer.rank()), u64::from(writer.size()));
    writer.put_array(COUNTS, &[size], &[rank], &[1], &[count as u64])
}

/// How many objects each rank has in the current version.
pub(crate) fn counts(reader: &mut Reader) -> Result<Vec<u64>> {
    reader.get_array(COUNTS, None)
}

/// Puts the objects whose bytes `object` gives, each with a call of its own when `batch` is 1.
pub(crate) fn put_slices<'a>(
    writer: &mut Writer,
    names: &[String],
    batch: usize,
    object: impl Fn(usize) -> &'a [u8],
) -> Result<()> {
    for (chunk, names) in names.chunks(batch).enumerate() {
        let first = chunk * batch;
        if let [name] = names {
            let data = object(first);
            let count = [data.len() as u64];
            writer.put(name, Dtype::U8, &count, &[0], &count, data)?;
            continue;
        }
        let Some(bytes) = names.first().map(|_| object(first).len() as u64) else { continue };
        let (count, start) = ([bytes], [0]);
        let pieces = names.iter().enumerate().map(|(i, name)| {
            let piece =
                forebay_space::Piece { name, dtype: Dtype::U8, shape: &count, start: &start, count: &count };
            (piece, object(first + i))
        });
        writer.put_each(pieces, &mut 0)?;
    }
    Ok(())
}

/// Objects of one rank of the writers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub rank: usize,
    pub objects: Range<usize>,
}

/// What reader `rank` of `size` reads: the objects of the writer of its rank when both have as many ranks, else an
/// equal part of all of them.
pub(crate) fn shares(counts: &[u64], size: usize, rank: usize) -> Vec<Share> {
    if counts.len() == size {
        return vec![Share { rank, objects: 0..counts[rank] as usize }];
    }
    let total: u64 = counts.iter().sum();
    let mine = gray_scott::simulation::split::part(total as usize, size, rank);
    let mut first = 0;
    let mut shares = Vec::new();
    for (rank, &count) in counts.iter().enumerate() {
        let range = first..first + count as usize;
        let objects = mine.start.max(range.start)..mine.end.min(range.end);
        if !objects.is_empty() {
            shares.push(Share { rank, objects: objects.start - range.start..objects.end - range.start });
        }
        first = range.end;
    }
    shares
}

/// How objects are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Objects of one call.
    pub batch: usize,
    /// Look at them where they lie, instead of copying them.
    pub in_place: bool,
}

/// A reader's end: buffers and names, kept from version to version.
pub(crate) struct Source {
    access: Access,
    names: Vec<Names>,
    /// Words, so that objects of numbers can be read as numbers.
    buffer: Vec<u64>,
}

impl Source {
    pub fn new(access: Access) -> Source {
        Source { access, names: Vec::new(), buffer: Vec::new() }
    }

    /// Shows each object of the share, with its index, to `look`.
    pub fn each(
        &mut self,
        reader: &mut Reader,
        share: &Share,
        object_bytes: usize,
        mut look: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        while self.names.len() <= share.rank {
            self.names.push(Names::new(self.names.len()));
        }
        let names = &self.names[share.rank].first(share.objects.end)[share.objects.clone()];
        if self.access.in_place {
            for (i, name) in names.iter().enumerate() {
                look(share.objects.start + i, reader.view(name, None)?.bytes())?;
            }
            return Ok(());
        }
        self.buffer.resize((object_bytes * self.access.batch).div_ceil(8), 0);
        let buffer: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        for (chunk, names) in names.chunks(self.access.batch).enumerate() {
            let bytes = &mut buffer[..object_bytes * names.len()];
            match names {
                [name] => reader.get(name, None, bytes)?,
                names => reader.get_many(names, bytes)?,
            }
            for (i, object) in bytes.chunks_exact(object_bytes).enumerate() {
                look(share.objects.start + chunk * self.access.batch + i, object)?;
            }
        }
        Ok(())
    }
}

/// The bytes of an object, as the channel says.
pub(crate) fn object_bytes(reader: &Reader) -> Result<usize> {
    match reader.attributes()?.get(OBJECT_BYTES) {
        Some(Attribute::Int(bytes)) if *bytes > 0 => Ok(*bytes as usize),
        _ => Err(Error::new(Kind::Usage, "the channel does not say how large its objects are")
            .with("channel", reader.name())
            .hint("it is to be written by `forebay app writer` or `forebay app amr`")),
    }
}

/// Refuses a number that has to be at least 1.
pub(crate) fn at_least_one(what: &'static str, value: usize) -> Result<()> {
    match value {
        0 => Err(Error::new(Kind::Usage, format!("{what} is to be at least 1"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_object_once() {
        for counts in [vec![4, 4], vec![3, 0, 9], vec![1], vec![0, 0]] {
            for size in 1..5 {
                let mut seen = Vec::new();
                for rank in 0..size {
                    for share in shares(&counts, size, rank) {
                        seen.extend(share.objects.map(|i| (share.rank, i)));
                    }
                }
                let all = counts.iter().enumerate().flat_map(|(r, &n)| (0..n as usize).map(move |i| (r, i)));
                assert_eq!(seen, all.collect::<Vec<_>>(), "{counts:?} on {size}");
            }
        }
    }
}
