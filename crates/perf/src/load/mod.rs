//! A load on files: jobs that read and write as they are told, and what came of it.
//!
//! Guarantees: every job says in bytes and requests what it did. Does not: know the options of any program; that is
//! the command's business.
