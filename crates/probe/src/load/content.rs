//! The bytes that a job writes: how well they compress, how many are the same, and the header that proves them.
//!
//! Random content is made from the job's seed. Nothing here does I/O.

use forebay_tier::checksum;

use super::job::{Bytes, Content, Job, Method};
use super::random::{scattered, Rng};

/// The first bytes of a block that carries its checksum.
const MAGIC: u64 = 0x4642_4c4f_4144_0001;
/// Bytes of that header: magic, offset, length, checksum of the rest, nothing yet.
const HEADER_BYTES: usize = 32;
/// Scrambling touches each of these.
const SECTOR_BYTES: usize = 512;

/// Fills buffers.
#[derive(Debug)]
pub(crate) struct Filler {
    content: Content,
    verify: Option<Method>,
    seed: u64,
    /// Different blocks made so far.
    made: u64,
    rng: Rng,
}

impl Filler {
    pub(crate) fn new(job: &Job) -> Filler {
        let content = job.content.clone();
        let verify = job.verify.as_ref().map(|verify| verify.method.clone());
        Filler { content, verify, seed: scattered(job.seed), made: 0, rng: Rng::new(job.seed ^ 0x5eed) }
    }

    /// What a buffer holds before its first use.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) {
        let repeated = self.made > 0 && self.rng.chance(self.content.duplicate_percent);
        let number = if repeated { self.rng.below(self.made) } else { self.made };
        self.made += u64::from(!repeated);
        let mut rng = Rng::new(self.seed.wrapping_add(scattered(number)));
        match &self.content.bytes {
            Bytes::Zero => buffer.fill(0),
            Bytes::Pattern(pattern) => repeat(pattern, buffer),
            Bytes::Random => compressible(&self.content, &mut rng, buffer),
        }
    }

    /// Makes a buffer ready for one write.
    #[inline]
    pub(crate) fn renew(&mut self, buffer: &mut [u8], offset: u64, now_ns: u64) {
        if let Some(Method::Pattern(pattern)) = &self.verify {
            return repeat(pattern, buffer);
        }
        if self.content.refill || self.content.duplicate_percent > 0 {
            self.fill(buffer);
        } else if self.content.scramble && self.content.bytes == Bytes::Random {
            scramble(buffer, offset, now_ns);
        }
        if self.verify.is_some() {
            seal(buffer, offset);
        }
    }
}

/// Random bytes with zeros at the end of each chunk, as many as shall be squeezed out.
fn compressible(content: &Content, rng: &mut Rng, buffer: &mut [u8]) {
    let chunk = match content.compress_chunk {
        0 => buffer.len().max(1),
        bytes => bytes as usize,
    };
    for chunk in buffer.chunks_mut(chunk) {
        let random = chunk.len() * (100 - content.compressible_percent.min(100) as usize) / 100;
        rng.fill(&mut chunk[..random]);
        chunk[random..].fill(0);
    }
}

/// A few bytes in every sector, so that no sector is written twice.
#[inline]
fn scramble(buffer: &mut [u8], offset: u64, now_ns: u64) {
    let mut at = offset;
    for sector in buffer.chunks_exact_mut(SECTOR_BYTES) {
        sector[..8].copy_from_slice(&at.to_le_bytes());
        sector[8..16].copy_from_slice(&now_ns.to_le_bytes());
        at += SECTOR_BYTES as u64;
    }
}

fn repeat(pattern: &[u8], buffer: &mut [u8]) {
    for part in buffer.chunks_mut(pattern.len()) {
        part.copy_from_slice(&pattern[..part.len()]);
    }
}

/// Puts the header into a block.
fn seal(buffer: &mut [u8], offset: u64) {
    let sum = checksum::crc32c(&buffer[HEADER_BYTES..]);
    let len = buffer.len() as u32;
    buffer[..8].copy_from_slice(&MAGIC.to_le_bytes());
    buffer[8..16].copy_from_slice(&offset.to_le_bytes());
    buffer[16..20].copy_from_slice(&len.to_le_bytes());
    buffer[20..24].copy_from_slice(&sum.to_le_bytes());
    buffer[24..HEADER_BYTES].fill(0);
}

/// What is wrong with a block that was read back, if something is.
pub(crate) fn check(method: &Method, buffer: &[u8], offset: u64) -> Result<(), String> {
    match method {
        Method::Pattern(pattern) => {
            let expected = pattern.iter().cycle();
            match buffer.iter().zip(expected).position(|(seen, wanted)| seen != wanted) {
                None => Ok(()),
                Some(at) => Err(format!(
                    "byte {} is {:#04x} instead of {:#04x}",
                    offset + at as u64,
                    buffer[at],
                    pattern[at % pattern.len()]
                )),
            }
        }
        Method::Crc32c => {
            let word = |at: usize| u64::from_le_bytes(buffer[at..at + 8].try_into().expect("8 bytes"));
            let half = |at: usize| u32::from_le_bytes(buffer[at..at + 4].try_into().expect("4 bytes"));
            if word(0) != MAGIC {
                return Err(format!("block {offset} has no header"));
            }
            if word(8) != offset || half(16) as usize != buffer.len() {
                return Err(format!(
                    "block {offset} of {} bytes holds block {} of {}",
                    buffer.len(),
                    word(8),
                    half(16)
                ));
            }
            let sum = checksum::crc32c(&buffer[HEADER_BYTES..]);
            match half(20) == sum {
                true => Ok(()),
                false => {
                    Err(format!("block {offset} has checksum {sum:#010x} instead of {:#010x}", half(20)))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filler(content: Content, verify: Option<Method>) -> Filler {
        let mut job = Job { content, ..Job::new("j", vec!["f".into()]) };
        job.verify =
            verify.map(|method| super::super::job::Verify { method, after_writes: true, fatal: true });
        Filler::new(&job)
    }

    #[test]
    fn contents_are_what_was_asked_for() {
        let mut buffer = vec![9; 4096];
        filler(Content { bytes: Bytes::Zero, ..Content::default() }, None).fill(&mut buffer);
        assert!(buffer.iter().all(|b| *b == 0));
        filler(Content { bytes: Bytes::Pattern(b"abc".to_vec()), ..Content::default() }, None)
            .fill(&mut buffer);
        assert_eq!((&buffer[..6], buffer[4095]), (&b"abcabc"[..], b'a'));
        let half = Content { compressible_percent: 75, ..Content::default() };
        filler(half, None).fill(&mut buffer);
        for chunk in buffer.chunks(512) {
            assert!(chunk[..128].iter().any(|b| *b != 0) && chunk[128..].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn writes_differ_or_repeat_as_asked() {
        let blocks = |content: Content| {
            let mut filler = filler(content, None);
            let mut buffer = vec![0; 1024];
            filler.fill(&mut buffer);
            let next = |n: u64| {
                filler.renew(&mut buffer, n * 1024, n);
                buffer.clone()
            };
            (0..200).map(next).collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!(blocks(Content::default()), 200);
        assert_eq!(blocks(Content { scramble: false, ..Content::default() }), 1);
        assert_eq!(blocks(Content { scramble: false, refill: true, ..Content::default() }), 200);
        let half = blocks(Content { duplicate_percent: 50, ..Content::default() });
        assert!((70..130).contains(&half), "{half}");
    }

    #[test]
    fn wrong_blocks_are_found() {
        let mut buffer = vec![0; 4096];
        let mut filler = filler(Content::default(), Some(Method::Crc32c));
        filler.fill(&mut buffer);
        filler.renew(&mut buffer, 8192, 1);
        check(&Method::Crc32c, &buffer, 8192).unwrap();
        assert!(check(&Method::Crc32c, &buffer, 4096).unwrap_err().contains("holds block 8192"));
        buffer[4000] ^= 1;
        assert!(check(&Method::Crc32c, &buffer, 8192).unwrap_err().contains("checksum"));
        buffer[0] ^= 1;
        assert!(check(&Method::Crc32c, &buffer, 8192).unwrap_err().contains("no header"));
        let pattern = Method::Pattern(vec![1, 2, 3]);
        let mut sealed = super::Filler { verify: Some(pattern.clone()), ..filler };
        sealed.renew(&mut buffer, 0, 1);
        check(&pattern, &buffer, 0).unwrap();
        buffer[100] = 0;
        assert!(check(&pattern, &buffer, 0).unwrap_err().contains("byte 100 is 0x00 instead of 0x02"));
    }
}
