//! Engines: how bytes move between a file and memory, with many requests in flight.
//!
//! One thread that waits for each request leaves a fast device idle most of the time. An engine cuts a transfer into
//! requests of [`REQUEST_BYTES`] and keeps [`DEPTH`] of them under way: `io_uring` with one ring per thread, or
//! `threads` where io_uring is refused (containers, kernels before 5.6). A transfer of one request is one plain
//! system call with either.
//!
//! Every call blocks until all its requests are done, also when it fails; what a failed call wrote is undefined
//! inside its range and nothing outside it. Short transfers are continued, interruptions repeated. Engines do not
//! flush, do not allocate blocks, and know nothing of alignment: on a file opened with O_DIRECT the caller gives
//! offsets, lengths and memory that the file system accepts; frames are aligned to pages.
//!
//! The choice is made once per process, by trial, or by the environment variable [`VARIABLE`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::{counters, host, sys, Error, Kind, Result};

pub(crate) mod aligned;
pub use aligned::Aligned;
mod io_uring;
#[cfg(test)]
pub(crate) use io_uring::registered_bytes;
#[cfg(test)]
mod tests;
mod threads;

pub use crate::sys::{Frame, FrameMemory, FrameRequest, FrameRing, Queue, QueueOptions, Request};

/// Bytes of one request.
///
/// Measured with 1 GiB of direct writes on a virtual disk of 2 to 3 GB/s: 512 KiB was as good as 1 MiB and better
/// than 256 KiB; smaller frames leave the device less to wait for at both ends of a transfer.
pub const REQUEST_BYTES: usize = sys::ring::FRAME_BYTES;

/// Requests under way at once. 16 × 512 KiB is 8 MiB: what an unprivileged user may register.
pub const DEPTH: usize = sys::ring::RING_DEPTH;

/// The environment variable that chooses.
pub const VARIABLE: &str = "FOREBAY_ENGINE";

/// A way to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One io_uring per thread.
    IoUring,
    /// Threads that each make a plain system call.
    Threads,
}

impl FromStr for Choice {
    type Err = Error;
    fn from_str(text: &str) -> Result<Choice> {
        match text {
            "io_uring" => Ok(Choice::IoUring),
            "threads" => Ok(Choice::Threads),
            _ => Err(Error::new(Kind::Usage, format!("`{text}` is not an engine"))
                .hint("one of: io_uring, threads")),
        }
    }
}

/// An engine. Copies are the same engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine(Choice);

/// Fills the next part of a stream that is written, or takes a part of one that is read: (position in the stream,
/// the bytes).
pub type Part<'a> = &'a mut dyn FnMut(usize, &mut [u8]);

/// Looks at bytes whose request is under way.
pub type Meanwhile<'a> = Option<&'a mut dyn FnMut(&[u8])>;

impl Engine {
    /// The engine of this process: what [`VARIABLE`] says, else io_uring where it works, else threads.
    ///
    /// # Errors
    /// `UnknownEnvironment` for a word that is no engine; `NotPossibleHere` when `io_uring` is asked for and refused.
    pub fn of_process() -> Result<Engine> {
        static CHOSEN: OnceLock<Engine> = OnceLock::new();
        if let Some(engine) = CHOSEN.get() {
            return Ok(*engine);
        }
        let engine = Engine::chosen_by(std::env::var(VARIABLE).ok().as_deref())?;
        Ok(*CHOSEN.get_or_init(|| engine))
    }

    fn chosen_by(word: Option<&str>) -> Result<Engine> {
        match word.filter(|word| !word.is_empty()) {
            None => Ok(Engine::io_uring().unwrap_or_else(|_| Engine::threads())),
            Some(word) => match word.parse() {
                Ok(Choice::IoUring) => Engine::io_uring(),
                Ok(Choice::Threads) => Ok(Engine::threads()),
                Err(e) => Err(Error::new(Kind::UnknownEnvironment, format!("cannot read {VARIABLE}"))
                    .caused_by(e)
                    .hint("io_uring or threads")),
            },
        }
    }

    /// The engine `io_uring`.
    ///
    /// # Errors
    /// `NotPossibleHere` where the kernel refuses it.
    pub fn io_uring() -> Result<Engine> {
        io_uring::trial().map_err(|e| {
            Error::new(Kind::NotPossibleHere, format!("engine io_uring cannot be used: {e}"))
                .hint(format!("allow io_uring (forebay doctor says how), or set {VARIABLE}=threads"))
                .caused_by(e)
        })?;
        Ok(Engine(Choice::IoUring))
    }

    /// The engine `threads`, which always works.
    pub fn threads() -> Engine {
        Engine(Choice::Threads)
    }

    /// `io_uring` or `threads`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Choice::IoUring => "io_uring",
            Choice::Threads => "threads",
        }
    }

    /// Writes each part of `parts` at its offset; they may not overlap.
    ///
    /// `meanwhile`, if given, is called with each request's bytes, in order, once that request is under way: work on
    /// them (a checksum) costs no time while the device is slower.
    ///
    /// # Errors
    /// The first error of a request; `WriteZero` when the file takes no more bytes.
    pub fn write_all(self, file: &File, parts: &[(u64, &[u8])], meanwhile: Meanwhile<'_>) -> io::Result<()> {
        let requests: Vec<(u64, &[u8])> = parts
            .iter()
            .flat_map(|(offset, bytes)| (*offset..).step_by(REQUEST_BYTES).zip(bytes.chunks(REQUEST_BYTES)))
            .collect();
        match (self.0, &requests[..]) {
            (_, []) => Ok(()),
            (_, [(offset, bytes)]) => {
                if let Some(meanwhile) = meanwhile {
                    meanwhile(bytes);
                }
                sys::write_all_at(file, bytes, *offset)
            }
            (Choice::IoUring, _) => io_uring::write_all(file, requests, meanwhile),
            (Choice::Threads, _) => threads::write_all(file, requests, meanwhile),
        }
    }

    /// Reads `out.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// The first error of a request; `UnexpectedEof` when the file ends before.
    pub fn read_exact(self, file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if out.len() <= REQUEST_BYTES {
            return read_exact_at(file, offset, out);
        }
        match self.0 {
            Choice::IoUring => io_uring::read_exact(file, offset, out),
            Choice::Threads => threads::read_exact(file, offset, out),
        }
    }

    /// Writes `len` bytes from `offset` on that `fill` gives: it is called with rising positions until all are filled,
    /// each time with a page-aligned frame, while earlier frames are under way.
    ///
    /// # Errors
    /// As [`Engine::write_all`].
    pub fn write_stream(self, file: &File, offset: u64, len: usize, fill: Part<'_>) -> io::Result<()> {
        match self.0 {
            _ if len == 0 => Ok(()),
            _ if len <= REQUEST_BYTES => threads::write_one(file, offset, len, fill),
            Choice::IoUring => io_uring::write_stream(file, offset, len, fill),
            Choice::Threads => threads::write_stream(file, offset, len, fill),
        }
    }

    /// Reads `len` bytes from `offset` on into page-aligned frames and shows each to `take`, in any order.
    ///
    /// # Errors
    /// As [`Engine::read_exact`].
    pub fn read_stream(self, file: &File, offset: u64, len: usize, take: Part<'_>) -> io::Result<()> {
        match self.0 {
            _ if len == 0 => Ok(()),
            _ if len <= REQUEST_BYTES => threads::read_one(file, offset, len, take),
            Choice::IoUring => io_uring::read_stream(file, offset, len, take),
            Choice::Threads => threads::read_stream(file, offset, len, take),
        }
    }
}

/// The requests of a stream: position and length.
fn pieces(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(REQUEST_BYTES).map(move |at| (at, REQUEST_BYTES.min(len - at)))
}

/// Fills `out` by plain calls.
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        counters::add_syscall();
        let len = host::transfer_bytes(offset, out.len());
        match host::interruptible("read").and_then(|()| file.read_at(&mut out[..len], offset)) {
            Ok(0) => return Err(ended_early()),
            Ok(n) => {
                out = &mut out[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cold]
fn ended_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ended before the range")
}

#[cold]
fn took_nothing() -> io::Error {
    io::Error::new(io::ErrorKind::WriteZero, "write returned 0: the file accepts no more bytes")
}
