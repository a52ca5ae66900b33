//! Forebay space.
