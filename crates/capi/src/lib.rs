//! Forebay capi.
