//! r
pub fn report(_: &std::path::Path)->forebay_space::Result<std::path::PathBuf>{ todo!() }
