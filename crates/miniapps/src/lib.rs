//! Forebay miniapps.
