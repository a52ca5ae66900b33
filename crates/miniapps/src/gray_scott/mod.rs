//! pure parts
pub mod deck;
pub mod field;
pub mod kernel;
pub mod noise;
pub mod patterns;
pub mod solver;
pub mod split;
