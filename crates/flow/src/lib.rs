//! Forebay flow.
