//! Forebay log.
