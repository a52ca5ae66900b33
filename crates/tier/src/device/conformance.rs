//! The suite that every kind of device passes: the contract of [`Device`](super::Device), checked on a fresh pool.
