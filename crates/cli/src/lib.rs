//! Forebay cli.
