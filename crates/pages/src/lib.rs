//! HTML pages and the charts in them: of a run ([`run`]), of a profile ([`profile`]), of bars ([`bars`]).
//!
//! Guarantees: a page is one file that loads nothing from outside; it reads in light, dark and print. What all pages
//! share is in [`page`] and `style.css`, what all pictures share in [`drawing`].
#![forbid(unsafe_code)]

pub mod bars;
pub mod drawing;
pub mod page;
pub mod profile;
pub mod run;
