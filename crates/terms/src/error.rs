//! The error of every layer: a flat kind, what happened to what, who is missing, what to do next.
//!
//! One type serves all crates, because the kind number is at once the C return code (negated), the name of
//! the Python exception class and, through [`Kind::exit_code`], the exit status of the `forebay` command.
//! Numbers are never reused. This file holds no policy: which situation gives which kind is said where it
//! arises.

use std::fmt;

/// Result of every fallible call in Forebay.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal exits $exit:literal;)*) => {
        /// What went wrong, in one word. The number is stable across releases.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[non_exhaustive]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// Every kind, in the order of the numbers.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The name, as in the Python class and in messages.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name),)* }
            }

            /// Exit status of a command that ends with this error (see the design's table in
            /// ARCHITECTURE.md).
            pub fn exit_code(self) -> i32 {
                match self { $(Kind::$name => $exit,)* }
            }
        }
    };
}

kinds! {
    /// An argument makes no sense on its own.
    Usage = 1 exits 2;
    /// A key of a file or a table that Forebay does not know.
    UnknownKey = 2 exits 2;
    /// A `FOREBAY_*` environment variable that Forebay does not know, or with a value it cannot read.
    UnknownEnvironment = 3 exits 2;
    /// A name that would leave the pool directory, is empty or too long.
    BadName = 4 exits 2;
    /// A box that does not lie inside the variable's shape.
    BoxOutsideShape = 5 exits 2;
    /// A variable that the version does not hold.
    UnknownVariable = 6 exits 2;
    /// A component, command or file that a workflow names and that does not exist.
    UnknownComponent = 7 exits 2;
    /// A version that is complete was put again.
    VersionExists = 8 exits 2;
    /// Versions of a space follow each other without gaps; this one does not.
    VersionOutOfOrder = 9 exits 2;
    /// No step is open, or one is open already.
    StepState = 10 exits 2;
    /// The buffer's length, dtype or layout does not fit the box.
    BufferMismatch = 11 exits 2;
    /// The box is not one contiguous range of one piece, so it cannot be viewed without a copy.
    NotContiguous = 12 exits 2;
    /// The space exists with other options than the ones asked for.
    OptionMismatch = 13 exits 2;
    /// The array lies in the memory of a GPU that cannot be copied from or to.
    DeviceMemory = 14 exits 2;

    /// A job of several nodes, where only one node can be served.
    SeveralNodes = 20 exits 3;
    /// The pool belongs to another host.
    PoolOwnedElsewhere = 21 exits 3;
    /// This tier or mechanism is not available here.
    NotPossibleHere = 22 exits 3;
    /// A live process already holds this rank of this space: two runs with one name.
    NameInUse = 23 exits 3;
    /// Ranks of one group disagree on its size.
    GroupMismatch = 24 exits 3;

    /// A component of a workflow failed.
    ComponentFailed = 30 exits 4;

    /// The operating system refused access.
    PermissionDenied = 40 exits 5;

    /// Insufficient capacity on the tier: file system, available memory or a memory cgroup.
    TierFull = 50 exits 6;
    /// The space's quota is used up and nothing was released before the deadline.
    QuotaFull = 51 exits 6;
    /// One version alone is larger than the quota.
    VersionTooLarge = 52 exits 6;
    /// A fixed table (members, groups, lanes) has no free place.
    TooMany = 53 exits 6;

    /// The deadline passed.
    TimedOut = 60 exits 7;
    /// A producer rank died; its open versions are aborted.
    ProducerDied = 61 exits 7;
    /// No space of this name appeared, or declared ranks never joined.
    PeerMissing = 62 exits 7;
    /// A newer incarnation of the producers has taken over; this handle may not write any more.
    Fenced = 63 exits 7;

    /// Stored bytes do not match their checksum or make no sense.
    Damaged = 70 exits 8;
    /// A format version or feature that this build does not know.
    UnknownFormat = 71 exits 8;
    /// The pieces of a version leave part of the box uncovered.
    BoxNotCovered = 72 exits 8;
    /// Ranks disagree on a variable's dtype or global shape.
    VariableMismatch = 73 exits 8;
    /// The version was there and has been dropped.
    VersionGone = 74 exits 8;
    /// A flush failed earlier; the pool no longer takes writes.
    Poisoned = 75 exits 8;

    /// A handle was used in a forked child.
    ForkedHandle = 80 exits 70;
    /// The handle is closed.
    Closed = 81 exits 70;
    /// The operating system reported an error that has no kind of its own.
    Io = 82 exits 70;
    /// A state that should be impossible.
    Internal = 83 exits 70;
}

impl Kind {
    /// The number, as C callers see it (negated there).
    pub fn code(self) -> u16 {
        self as u16
    }

    /// The kind with this number.
    pub fn from_code(code: u16) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|k| k.code() == code)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What happened, to what, and what to do next.
///
/// Printed as `Kind: message (key=value, …)`, then a line `hint: …` when there is one, then the causes.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    message: String,
    context: Vec<(&'static str, String)>,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A new error; `message` is a sentence without a full stop.
    #[cold]
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            hint: None,
            source: None,
        }))
    }

    /// Adds a fact: `with("rank", 2)`.
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// Says what to do next.
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.0.hint = Some(text.into());
        self
    }

    /// Keeps the error below this one.
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error with `to` for `from` in the message and the facts: of a file that is to have another name.
    #[must_use]
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        self.0.message = self.0.message.replace(from, to);
        self.0.context.iter_mut().for_each(|(_, fact)| *fact = fact.replace(from, to));
        self
    }

    /// An error of the operating system, sorted into the kinds that have a remedy of their own; of a full tier it says
    /// which.
    #[cold]
    pub fn io(doing: impl Into<String>, source: std::io::Error) -> Self {
        let number = number_of(&source);
        let remedy = match number {
            Some(libc::ENOSPC) => Some("free space on that file system, or use another directory"),
            Some(libc::EDQUOT) => Some("free space in this user's disk quota, or use another directory"),
            Some(libc::ENOMEM) => Some("free memory, or raise the memory limits of this process"),
            _ => None,
        };
        let kind = match number {
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => Kind::PermissionDenied,
            Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM) => Kind::TierFull,
            _ => Kind::Io,
        };
        let error = Error::new(kind, format!("{}: {source}", doing.into())).caused_by(source);
        match remedy {
            Some(remedy) => error.hint(remedy),
            None => error,
        }
    }

    /// The last error of a text, `error: KIND: TEXT`, and its hint, `hint: TEXT`, as commands print them: lines after
    /// the first one begin with two spaces. Facts are part of the sentence.
    pub fn last_printed(text: &str) -> Option<Error> {
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.iter().rposition(|line| line.starts_with("error: "))?;
        let more = lines[first + 1..].iter().take_while(|line| line.starts_with("  "));
        let text = std::iter::once(&lines[first]).chain(more).copied().collect::<Vec<_>>().join("\n");
        let (text, hint) = match text.split_once("\n  hint: ") {
            Some((text, hint)) => (text, Some(hint)),
            None => (text.as_str(), None),
        };
        let (kind, text) = text.strip_prefix("error: ")?.split_once(": ")?;
        let kind = Kind::ALL.iter().find(|known| known.name() == kind)?;
        let error = Error::new(*kind, text.trim());
        Some(match hint {
            Some(hint) => error.hint(hint.trim()),
            None => error,
        })
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The sentence, without context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The facts.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// What to do next, if there is something.
    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

/// The number of an error of the operating system, be it wrapped by a library.
fn number_of(error: &std::io::Error) -> Option<i32> {
    let mut inner = error.get_ref().map(|inner| inner as &dyn std::error::Error);
    while let Some(wrapped) = inner {
        if let Some(error) = wrapped.downcast_ref::<std::io::Error>() {
            return number_of(error);
        }
        inner = wrapped.source();
    }
    error.raw_os_error()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        if !self.0.context.is_empty() {
            let facts: Vec<String> = self.0.context.iter().map(|(k, v)| format!("{k}={v}")).collect();
            write!(f, " ({})", facts.join(", "))?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_found_again() {
        for (i, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(Kind::from_code(kind.code()), Some(*kind));
            assert!(i == 0 || Kind::ALL[i - 1].code() < kind.code(), "{kind} is out of order");
        }
    }

    #[test]
    fn what_is_full_comes_with_a_remedy() {
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::ENOMEM] {
            let e = Error::io("making a file", std::io::Error::from_raw_os_error(errno));
            assert_eq!(e.kind(), Kind::TierFull, "{e}");
            assert!(e.hint_text().is_some(), "{e}");
        }
        assert!(Error::io("reading", std::io::Error::from_raw_os_error(libc::EIO)).hint_text().is_none());
        let wrapped = std::io::Error::other(std::io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(Error::io("writing", std::io::Error::other(wrapped)).kind(), Kind::TierFull);
    }

    #[test]
    fn prints_facts_and_hint() {
        let e = Error::new(Kind::TimedOut, "version 3 of space heat did not complete")
            .with("missing", "writer rank 2 (pid 17)")
            .hint("is rank 2 still computing?");
        assert_eq!(
            e.to_string(),
            "TimedOut: version 3 of space heat did not complete (missing=writer rank 2 (pid 17))\n  \
             hint: is rank 2 still computing?"
        );
    }

    #[test]
    fn an_error_is_read_as_it_was_printed() {
        let error = Error::new(Kind::NameInUse, "there is one").with("pid", 7).hint("end it");
        let read = Error::last_printed(&format!("earlier: 1\nerror: {error}\n")).unwrap();
        assert_eq!((read.kind(), read.to_string()), (error.kind(), error.to_string()));
        let without = Error::new(Kind::Usage, "no: such node");
        assert_eq!(
            Error::last_printed(&format!("error: {without}")).unwrap().to_string(),
            without.to_string()
        );
        let inner = Error::new(Kind::Io, "it says: error: no").hint("look");
        let read = Error::last_printed(&format!("error: {inner}\nConnection to n1 closed.\n")).unwrap();
        assert_eq!(read.to_string(), inner.to_string());
        assert!(Error::last_printed("it was killed").is_none());
    }
}
