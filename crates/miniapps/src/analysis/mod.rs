//! pure parts
pub mod colour;
pub mod isosurface;
pub mod slices;
pub mod statistics;
