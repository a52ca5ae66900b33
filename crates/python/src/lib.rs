//! Forebay python.
