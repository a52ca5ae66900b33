//! Several files as one: stripe after stripe goes to the next of them, so that several disks work at once.
//!
//! Stripe i lies in file i mod N, behind the stripes that are there already; the last one may be short. The files hold
//! nothing else, so that they can be read by anything that knows the length of a stripe. Tiles no longer than a stripe
//! move as in one file, past the page cache too; longer ones are put together through it.

use std::fs::File;
use std::sync::Arc;

use forebay_tier::{Error, Kind, Result};

use crate::backing::{Backing, FileBacking};

/// See the file's head.
pub struct StripedBacking {
    files: Vec<FileBacking>,
    stripe: u64,
    bytes: u64,
}

/// Bytes of each of `count` files that hold `bytes` bytes in stripes of `stripe`.
pub fn lengths(bytes: u64, count: usize, stripe: u64) -> Vec<u64> {
    let (whole, rest, count) = (bytes / stripe, bytes % stripe, count as u64);
    let of = |file| {
        let stripes = whole / count + u64::from(file < whole % count);
        stripes * stripe + if file == whole % count { rest } else { 0 }
    };
    (0..count).map(of).collect()
}

impl StripedBacking {
    /// These files, in this order, in stripes of `stripe` bytes (a multiple of 4096).
    ///
    /// # Errors
    /// `Usage` for no file or another stripe; `Damaged` when their lengths are not those of stripes of one array.
    pub fn new(files: Vec<FileBacking>, stripe: u64) -> Result<StripedBacking> {
        if files.is_empty() || stripe == 0 || stripe % 4096 != 0 {
            return Err(Error::new(
                Kind::Usage,
                format!("{} files in stripes of {stripe} bytes", files.len()),
            )
            .hint("one file or more, and stripes of a multiple of 4 KiB, such as 1MiB"));
        }
        let there: Vec<u64> = files.iter().map(Backing::bytes).collect();
        let bytes = there.iter().sum();
        if lengths(bytes, files.len(), stripe) != there {
            return Err(Error::new(
                Kind::Damaged,
                format!("{} and the other files of the stripe set", files[0].name()),
            )
            .with("bytes", there.iter().map(u64::to_string).collect::<Vec<_>>().join(" "))
            .with("stripe", stripe)
            .hint("their lengths do not match one array: wrong stripe, wrong order, or a truncated file"));
        }
        Ok(StripedBacking { files, stripe, bytes })
    }

    /// The file of a byte, the byte in it, and how many more lie there together.
    fn place(&self, offset: u64) -> (&FileBacking, u64, u64) {
        let (nth, within) = (offset / self.stripe, offset % self.stripe);
        let count = self.files.len() as u64;
        (&self.files[(nth % count) as usize], nth / count * self.stripe + within, self.stripe - within)
    }
}

impl Backing for StripedBacking {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let (file, at, together) = self.place(offset + done as u64);
            let end = out.len().min(done + together as usize);
            file.read(at, &mut out[done..end])?;
            done = end;
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let (file, at, together) = self.place(offset + done as u64);
            let end = bytes.len().min(done + together as usize);
            file.write(at, &bytes[done..end])?;
            done = end;
        }
        Ok(())
    }

    /// All files at a time: each may be on a disk of its own.
    fn flush(&self) -> Result<()> {
        std::thread::scope(|scope| {
            let (first, others) = self.files.split_first().expect("there is one");
            let started: Vec<_> = others
                .iter()
                // Where no thread can be started, this one does it.
                .map(|file| {
                    std::thread::Builder::new().spawn_scoped(scope, || file.flush()).map_err(|_| file)
                })
                .collect();
            let mut done = first.flush();
            for flushed in started {
                let panicked = |_| Err(Error::new(Kind::Internal, "a flushing thread panicked"));
                let flushed = match flushed {
                    Ok(thread) => thread.join().unwrap_or_else(panicked),
                    Err(file) => file.flush(),
                };
                done = done.and(flushed);
            }
            done
        })
    }

    fn direct(&self, offset: u64, len: usize) -> Option<(Arc<File>, u64)> {
        let (file, at, together) = self.place(offset);
        if len as u64 > together {
            return None;
        }
        file.direct(at, len)
    }

    fn name(&self) -> String {
        match self.files.len() {
            1 => self.files[0].name(),
            many => format!("{} and {} more", self.files[0].name(), many - 1),
        }
    }

    fn method(&self) -> &'static str {
        self.files.iter().map(Backing::method).find(|method| *method != "direct").unwrap_or("direct")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn files(dir: &tempfile::TempDir, lengths: &[u64]) -> Vec<FileBacking> {
        let of = |(nth, bytes): (usize, &u64)| {
            FileBacking::create(&dir.path().join(nth.to_string()), *bytes).unwrap()
        };
        lengths.iter().enumerate().map(of).collect()
    }

    #[test]
    fn files_that_are_not_stripes_of_one_array_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = [[8192, 0, 4096], [4096, 8192, 4096], [4097, 4096, 0]];
        for (nth, lengths) in wrong.iter().enumerate() {
            let dir = tempfile::tempdir_in(dir.path()).unwrap();
            let error = StripedBacking::new(files(&dir, lengths), 4096).err().unwrap();
            assert_eq!(error.kind(), Kind::Damaged, "{nth}");
        }
        assert_eq!(StripedBacking::new(Vec::new(), 4096).err().unwrap().kind(), Kind::Usage);
        assert_eq!(StripedBacking::new(files(&dir, &[1]), 1000).err().unwrap().kind(), Kind::Usage);
    }

    #[test]
    fn requests_of_a_stripe_go_to_its_file_and_longer_ones_to_none() {
        let dir = tempfile::tempdir().unwrap();
        let striped = StripedBacking::new(files(&dir, &lengths(40 << 10, 3, 8192)), 8192).unwrap();
        assert_eq!(striped.direct(4096, 8192).map(|(_, at)| at), None);
        if striped.method() == "direct" {
            let (file, at) = striped.direct(4 * 8192 + 4096, 4096).unwrap();
            assert_eq!(at, 8192 + 4096);
            assert!(Arc::ptr_eq(&file, &striped.files[1].direct(0, 4096).unwrap().0));
        }
    }

    proptest! {
        #[test]
        fn bytes_lie_where_stripes_say(
            bytes in 1..200_000u64, count in 1..5usize, pages in 1..4u64,
            writes in prop::collection::vec((0..200_000u64, 1..60_000usize, any::<u8>()), 1..8),
        ) {
            let (dir, stripe) = (tempfile::tempdir_in("/dev/shm").unwrap(), pages * 4096);
            let striped = StripedBacking::new(files(&dir, &lengths(bytes, count, stripe)), stripe).unwrap();
            prop_assert_eq!(striped.bytes(), bytes);
            let mut model = vec![0; bytes as usize];
            for (at, length, value) in writes {
                let at = at % bytes;
                let end = (at as usize + length).min(model.len());
                model[at as usize..end].fill(value);
                striped.write(at, &model[at as usize..end]).unwrap();
            }
            striped.flush().unwrap();
            let mut out = vec![1; model.len()];
            striped.read(0, &mut out).unwrap();
            prop_assert!(out == model);
            // By hand, stripe after stripe.
            let held: Vec<Vec<u8>> =
                (0..count).map(|nth| std::fs::read(dir.path().join(nth.to_string())).unwrap()).collect();
            for (nth, part) in model.chunks(stripe as usize).enumerate() {
                let at = nth / count * stripe as usize;
                prop_assert!(held[nth % count][at..at + part.len()] == *part);
            }
        }
    }
}
