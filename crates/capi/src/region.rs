//! `fb_region`: a file on a tier as writable memory, persisted where and when the program says.
//!
//! Guarantees: the memory stays where it is until fb_unmap; a range that was persisted survives what the region
//! says. What Rust promises more of, see `forebay_tier::Region`.

use crate::memory::{give, handle, input, out, out_or_null, take, text, word};
use crate::status::{c_text, guard};
use crate::FB_OK;
use forebay_tier::{MapMode, SharedRegion, TierKind};
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::Path;

/// A file on a tier as writable memory: made by fb_map, ended by fb_unmap. Unlike on other handles, calls on one
/// region from several threads go on side by side; each range belongs to the thread that writes it.
pub struct fb_region {
    region: SharedRegion,
    tier: CString,
    durability: CString,
}

/// Maps the file `path`, of exactly `bytes` bytes (0: the size of the file that is there), and stores the handle in
/// `*region`. `tier` is "dram", "numa:N" (memory of node N, where dram is), "numa:N+M" (of both in turn), "pmem" or
/// "file", and the directory must be on it ("file" is possible everywhere); NULL finds out. `mode` is "a+" (open
/// it, or make it when it is not there;
/// NULL is the same), "r+" (it must be there), "r" (it must be there; for reading only), "x+" (it must not be there)
/// or "w+" (what is there is removed first). A new file holds zeros, is 0600, and appears when it is complete.
///
/// Free space is checked before a page is touched, and pages are faulted in except on file (some 0.2 ms per MiB). Waits
/// a few seconds at most for others that allocate in the same directory. Symbolic links are not followed in the last
/// part of the path.
///
/// FB_TIER_FULL, FB_NOT_POSSIBLE_HERE (the directory is not on this tier, there is no such
/// node, or the tier cannot be mapped),
/// FB_OPTION_MISMATCH (the file has another size), FB_PERMISSION_DENIED; FB_IO also when the file is missing, or is
/// there and must not be; FB_USAGE also when it is no regular file, or new and without a size.
#[no_mangle]
pub unsafe extern "C" fn fb_map(
    path: *const c_char,
    bytes: usize,
    tier: *const c_char,
    mode: *const c_char,
    region: *mut *mut fb_region,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs and texts; NULL is None for the latter two.
        let (place, path, tier, mode) = unsafe {
            (out(region, "region")?, text(path, "path")?, word(tier, "tier")?, word(mode, "mode")?)
        };
        let tier = tier.map(str::parse::<TierKind>).transpose()?;
        let mode = mode.map_or_else(|| Ok(MapMode::default()), str::parse)?;
        let region = SharedRegion::map(Path::new(path), (bytes > 0).then_some(bytes), tier, mode)?;
        let (tier, durability) =
            (c_text(&region.tier().to_string()), c_text(&region.durability().to_string()));
        give(fb_region { region, tier, durability }, place);
        Ok(FB_OK)
    })
}

/// Stores the address of the first byte in `*data` and the size in `*bytes` (may be NULL). The address is a multiple
/// of 2 MiB, at least of a page; the memory is valid until fb_unmap, in a forked child as well. In mode "r" a store
/// into it ends the program. Other processes that map the file see stores at once. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_region_data(
    region: *const fb_region,
    data: *mut *mut c_void,
    bytes: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (region, data, bytes) =
            unsafe { (handle(region, "region")?, out(data, "data")?, out_or_null(bytes, "bytes")?) };
        data.set(region.region.as_ptr().cast());
        bytes.into_iter().for_each(|place| place.set(region.region.len()));
        Ok(FB_OK)
    })
}

/// Stores the tier ("dram", "numa:0", "pmem", "file") in `*tier` and what a persisted range survives ("process crash",
/// "power failure") in `*durability`; either may be NULL. The texts live as long as the region. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_region_info(
    region: *const fb_region,
    tier: *mut *const c_char,
    durability: *mut *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (region, tier, durability) = unsafe {
            (handle(region, "region")?, out_or_null(tier, "tier")?, out_or_null(durability, "durability")?)
        };
        tier.into_iter().for_each(|place| place.set(region.tier.as_ptr()));
        durability.into_iter().for_each(|place| place.set(region.durability.as_ptr()));
        Ok(FB_OK)
    })
}

/// Makes `bytes` bytes from `offset` (in bytes) on persistent, however they were stored. On pmem their cache lines
/// are written back and fenced; on file the pages that they touch go to the disk (one msync), which blocks for
/// milliseconds; on dram and numa:N there is nothing to persist to, and it is one fence.
///
/// FB_USAGE (a range outside), FB_PERMISSION_DENIED (mode "r"), FB_POISONED: the first flush that fails poisons the
/// handle for good, since the kernel may have dropped the pages that it could not write.
#[no_mangle]
pub unsafe extern "C" fn fb_persist(region: *mut fb_region, offset: usize, bytes: usize) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let region = unsafe { handle(region, "region")? };
        region.region.persist(offset..offset.saturating_add(bytes))?;
        Ok(FB_OK)
    })
}

/// Copies `bytes` bytes from `data` to `offset` (in bytes) and makes them persistent, in one pass: as a copy and
/// fb_persist, but on pmem from 256 bytes on, and on dram from 16 KiB on, past the cache. `data` may lie in the
/// region itself, but not overlap the range.
///
/// The errors of fb_persist; FB_USAGE also for overlapping ranges; on file also FB_TIER_FULL: a part may then have
/// been copied.
#[no_mangle]
pub unsafe extern "C" fn fb_copy_persist(
    region: *mut fb_region,
    offset: usize,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and for memory to read.
        let (region, data) = unsafe { (handle(region, "region")?, input(data, bytes, "data")?) };
        region.region.copy_persist(offset, data)?;
        Ok(FB_OK)
    })
}

/// Unmaps the memory, which must not be touched any more, and sets `*region` to NULL. The file stays; what was not
/// persisted stays in it too, and survives the end of the program but no more. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_unmap(region: *mut *mut fb_region) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        drop(unsafe { take(region, "region")? });
        Ok(FB_OK)
    })
}
