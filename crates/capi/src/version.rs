//! Which library this is: release and ABI.
//!
//! The ABI number changes only when old programs would break; adding functions or codes does not.

use std::ffi::{c_char, c_int};

/// Number of this ABI. Grows when a program built against an older header would no longer work.
pub const FB_ABI_VERSION: c_int = 2;

/// Most dimensions that a variable can have.
pub const FB_DIMENSIONS_MAX: c_int = 16;

/// As the first extent of a global shape in `fb_put` and `fb_reserve`: the variable is what all ranks put, one behind
/// the other along the first dimension in the order of ranks and puts. No rank has to know what the others bring;
/// `start` is 0 there. `fb_variable_info` has the whole extent.
pub const FB_CONCAT: u64 = u64::MAX;

/// The release of the library, for example "0.1.0". Never NULL, never freed, does not block.
#[no_mangle]
pub extern "C" fn fb_version_string() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The ABI that the library was built with. A program is safe to run when it equals `FB_ABI_VERSION` of the
/// header it was compiled with. Does not block, cannot fail.
#[no_mangle]
pub extern "C" fn fb_abi_version() -> c_int {
    FB_ABI_VERSION
}
