//! The programs of the studies as their users meet them: several ranks, real spaces, every result compared with one
//! that was computed otherwise. Ranks are threads.
#![forbid(unsafe_code)]

mod amr;
mod analytics;
mod bfs;
mod bt;
mod npb;
mod objects;
mod particles;
mod sort;
mod support;
