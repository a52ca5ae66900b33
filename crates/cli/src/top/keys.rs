//! Keys from the terminal, with an end: a terminal that is gone is noticed at once.
//!
//! Guarantees: blocks no longer than it was told; never reads in a circle. Reads the few keys that the live view
//! knows and skips every other sequence. Own code, because the event reader of crossterm 0.28 reads a terminal that
//! was hung up for ever, at full speed and deaf to SIGTERM.

use std::io::{self, Stdin};
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// A key of the live view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A letter, or a blank.
    Char(char),
    /// A letter with Ctrl.
    Control(char),
    /// Arrow.
    Up,
    /// Arrow.
    Down,
    /// Arrow.
    Left,
    /// Arrow.
    Right,
    /// First.
    Home,
    /// Last.
    End,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
}

/// What came of waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing, or a signal.
    Nothing,
    /// Keys.
    Keys(Vec<Key>),
    /// There is no terminal any more.
    HungUp,
}

/// Waits for keys, at most this long; a signal ends the wait too.
///
/// # Errors
/// What reading the terminal says, but not that it is gone.
pub fn wait(terminal: &Stdin, time: Duration) -> io::Result<Input> {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let mut fds = [PollFd::new(terminal, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) | Err(Errno::INTR) => return Ok(Input::Nothing),
        Ok(_) => {}
        Err(e) => return Err(e.into()),
    }
    if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
        return Ok(Input::HungUp);
    }
    // Not through the buffer of standard input: what it held, `poll` would not see.
    let mut bytes = [0; 256];
    match rustix::io::read(terminal, &mut bytes) {
        Ok(0) | Err(Errno::IO) => Ok(Input::HungUp),
        Ok(n) => Ok(Input::Keys(parse(&bytes[..n]))),
        Err(Errno::INTR | Errno::AGAIN) => Ok(Input::Nothing),
        Err(e) => Err(e.into()),
    }
}

/// The keys in what a terminal sent at once.
fn parse(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        rest = after;
        match (*first, after) {
            // Escape sequences end with a byte from @ to ~; O has one more byte.
            (0x1b, [b'[', sequence @ ..]) => {
                let end = sequence.iter().position(|b| (0x40..=0x7e).contains(b));
                let (own, after) = sequence.split_at(end.map_or(sequence.len(), |end| end + 1));
                keys.extend(named(own));
                rest = after;
            }
            (0x1b, [b'O', letter, after @ ..]) => {
                keys.extend(named(&[*letter]));
                rest = after;
            }
            (control @ 0x01..=0x1a, _) => keys.push(Key::Control((control - 1 + b'a').into())),
            (letter @ 0x20..=0x7e, _) => keys.push(Key::Char(letter.into())),
            _ => {}
        }
    }
    keys
}

/// The key of an escape sequence, without what introduces it. Modifiers (`1;5A`) make no difference.
fn named(sequence: &[u8]) -> Option<Key> {
    let (last, parameters) = sequence.split_last()?;
    Some(match (last, parameters.split(|b| *b == b';').next()) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', Some(b"1" | b"7")) => Key::Home,
        (b'F', _) | (b'~', Some(b"4" | b"8")) => Key::End,
        (b'~', Some(b"5")) => Key::PageUp,
        (b'~', Some(b"6")) => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_everything_else_skipped() {
        assert_eq!(parse(b"q"), [Key::Char('q')]);
        assert_eq!(parse(b"\x03\x1a"), [Key::Control('c'), Key::Control('z')]);
        assert_eq!(parse(b"\x1b[A\x1b[B\x1bOC\x1b[1;5D"), [Key::Up, Key::Down, Key::Right, Key::Left]);
        assert_eq!(parse(b"\x1b[5~\x1b[6~\x1b[H\x1b[4~s"), {
            [Key::PageUp, Key::PageDown, Key::Home, Key::End, Key::Char('s')]
        });
        // Function keys, an unfinished sequence, a lone escape, letters beyond ASCII.
        assert_eq!(parse(b"\x1b[15~\x1bOP"), []);
        assert_eq!(parse(b"\x1b[1;"), []);
        assert_eq!(parse("\x1b\u{e9}x".as_bytes()), [Key::Char('x')]);
    }
}
