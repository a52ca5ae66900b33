//! `fb_pool` and `fb_array`: bytes of a file, larger than memory, in a hard budget of memory.
//!
//! Guarantees: never more memory than the pool's budget; a pin keeps its array open. Shapes and types are the
//! program's own: everything here counts bytes. What Rust promises more of, see `forebay_pager::Array`.

use crate::memory::{give, handle, input, numbers, out, out_or_null, output, take, text, word};
use crate::status::{c_text, guard, null};
use crate::FB_OK;
use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Pool, PoolOptions, Tile, TileMut};
use forebay_space::{Error, Kind, Result};
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::Path;
use std::sync::Arc;

/// A hard budget of memory that any number of arrays share: made by fb_pool_new, ended by fb_pool_free. Threads
/// may share it.
pub struct fb_pool {
    pool: Pool,
}

/// Bytes of a file of which a part is in memory: made by fb_array_open, ended by fb_array_close. Unlike on
/// other handles, calls on one array from several threads go on side by side.
pub struct fb_array {
    array: Arc<Array>,
    method: CString,
}

/// A tile of an array that stays in memory: made by fb_tile_pin, ended by fb_tile_unpin.
pub struct fb_tile {
    // Before the array, which it borrows: fields are dropped in this order.
    _tile: Held,
    _array: Arc<Array>,
}

// Both are only kept.
#[allow(dead_code)]
enum Held {
    Read(Tile<'static>),
    Write(TileMut<'static>),
}

/// What fb_array_tiles calls for each tile: `context` is the caller's own, `data` are `bytes` bytes of the
/// array from `offset` on, valid during the call. 0 goes on; anything else ends fb_array_tiles, which returns
/// it.
pub type fb_tile_visitor =
    Option<unsafe extern "C" fn(context: *mut c_void, offset: u64, data: *mut c_void, bytes: usize) -> c_int>;

/// The numbers of fb_pool_statistic.
const STATISTICS: [&str; 7] =
    ["loaded", "written", "evicted", "hits", "frame_bytes", "table_bytes", "budget"];

/// What an array's tiles have without a word of the program, if the pool allows it.
const TILE_BYTES: usize = 64 << 10;

/// Makes a pool that never holds more than `budget` bytes of memory, for data and for what is known of it, and
/// stores it in `*pool`. `tile_max` is the longest tile of any array in it, in bytes; 0 takes what the budget
/// allows, 2 MiB at most. FB_USAGE when the budget holds fewer than two such tiles, FB_TIER_FULL. Does not
/// block.
#[no_mangle]
pub unsafe extern "C" fn fb_pool_new(budget: u64, tile_max: usize, pool: *mut *mut fb_pool) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs.
        let place = unsafe { out(pool, "pool")? };
        let mut options = PoolOptions::new(budget);
        if tile_max > 0 {
            options.tile_max = tile_max;
        }
        give(fb_pool { pool: Pool::new(options)? }, place);
        Ok(FB_OK)
    })
}

/// Stores one number of what the pool has done and holds in `*value`: "loaded", "written", "evicted" (tiles),
/// "hits" (touched tiles that were there), "frame_bytes", "table_bytes", "budget" (bytes). FB_UNKNOWN_KEY. Does
/// not block.
#[no_mangle]
pub unsafe extern "C" fn fb_pool_statistic(
    pool: *const fb_pool,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (pool, name, place) =
            unsafe { (handle(pool, "pool")?, text(name, "name")?, out(value, "value")?) };
        let seen = pool.pool.statistics();
        let value = match name {
            "loaded" => seen.loaded,
            "written" => seen.written,
            "evicted" => seen.evicted,
            "hits" => seen.hits,
            "frame_bytes" => seen.frame_bytes,
            "table_bytes" => seen.table_bytes,
            "budget" => seen.budget,
            _ => {
                return Err(Error::new(Kind::UnknownKey, format!("unknown statistic `{name}`"))
                    .hint(format!("available: {}", STATISTICS.join(", "))))
            }
        };
        place.set(value);
        Ok(FB_OK)
    })
}

/// Ends the pool and sets `*pool` to NULL; arrays in it stay open and keep their memory. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_pool_free(pool: *mut *mut fb_pool) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        drop(unsafe { take(pool, "pool")? });
        Ok(FB_OK)
    })
}

/// Opens `bytes` bytes from `offset` on of the file `path` (bytes 0: up to its end) as an array in `pool` and
/// stores the handle in `*array`.
///
/// `mode` is "r" (read), "r+" (read and write; the file must be there), "a+" (the same, or make it when it is
/// not there; NULL is the same), "x+" (make it; it must not be there) or "c" (writes stay with this handle;
/// what does not fit the budget lies in a file without a name beside the data). A new file holds zeros, and its
/// blocks are reserved. `tile` is what moves together, a power of two from 4096 to the pool's longest; 0 is 64
/// KiB, or the pool's longest. `policy` says which tiles leave first: "s3fifo" (NULL), "clock", or "none" for
/// data that streams through. `horizon` says when writes become durable: "epoch" (NULL: with fb_array_flush and
/// fb_array_close), "write" (each call), "none" (with fb_array_flush alone).
///
/// FB_USAGE, FB_DAMAGED (the file is too short), FB_TIER_FULL (the disk is full, or the budget too small for the table
/// of its tiles), FB_NAME_IN_USE ("x+"), FB_PERMISSION_DENIED. Blocks while space is reserved.
#[no_mangle]
pub unsafe extern "C" fn fb_array_open(
    pool: *mut fb_pool,
    path: *const c_char,
    mode: *const c_char,
    offset: u64,
    bytes: u64,
    tile: usize,
    policy: *const c_char,
    horizon: *const c_char,
    array: *mut *mut fb_array,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, outputs and texts; NULL is None for the latter three.
        let (place, pool, path, mode, policy, horizon) = unsafe {
            (
                out(array, "array")?,
                handle(pool, "pool")?,
                Path::new(text(path, "path")?),
                word(mode, "mode")?.unwrap_or("a+"),
                word(policy, "policy")?,
                word(horizon, "horizon")?,
            )
        };
        let tile = if tile > 0 { tile } else { TILE_BYTES.min(pool.pool.tile_max()) };
        let mut options = ArrayOptions::new(tile);
        (options.origin, options.bytes) = (offset, (bytes > 0).then_some(bytes));
        options.policy = policy.map(str::parse).transpose()?.unwrap_or_default();
        options.horizon = horizon.map(str::parse).transpose()?.unwrap_or(options.horizon);
        options.overlay = forebay_tier::capacity::folder_of(path);
        options.mode = match mode {
            "r" => Mode::ReadOnly,
            "c" => Mode::CopyOnWrite,
            "r+" | "a+" | "x+" => Mode::ReadWrite,
            _ => {
                return Err(
                    Error::new(Kind::Usage, format!("invalid mode {mode:?}")).hint("r, r+, a+, x+ or c")
                )
            }
        };
        let array = open(&pool.pool, path, mode, &options)?;
        let method = c_text(array.method());
        give(fb_array { array: Arc::new(array), method }, place);
        Ok(FB_OK)
    })
}

/// Stores the bytes of data, the length of a tile, the number of tiles and the way that data moves ("direct":
/// past the page cache; "cached": through it, so that the kernel's memory comes on top of the budget), each of
/// which may be NULL. The text lives as long as the array. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_array_info(
    array: *const fb_array,
    bytes: *mut u64,
    tile: *mut usize,
    tiles: *mut u64,
    method: *mut *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (held, bytes, tile, tiles, method) = unsafe {
            (
                handle(array, "array")?,
                out_or_null(bytes, "bytes")?,
                out_or_null(tile, "tile")?,
                out_or_null(tiles, "tiles")?,
                out_or_null(method, "method")?,
            )
        };
        bytes.into_iter().for_each(|place| place.set(held.array.bytes()));
        tile.into_iter().for_each(|place| place.set(held.array.tile_bytes()));
        tiles.into_iter().for_each(|place| place.set(held.array.tiles_total()));
        method.into_iter().for_each(|place| place.set(held.method.as_ptr()));
        Ok(FB_OK)
    })
}

/// Copies `bytes` bytes of the array from `offset` on to `data`, reading ahead with many requests in flight.
/// Blocks until they are there. FB_BOX_OUTSIDE_SHAPE, or what the read failed with: `data` then holds anything.
#[no_mangle]
pub unsafe extern "C" fn fb_array_read(
    array: *const fb_array,
    offset: u64,
    data: *mut c_void,
    bytes: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and for memory to write.
        let (held, data) = unsafe { (handle(array, "array")?, output(data, bytes, "data")?) };
        held.array.read(offset, data)?;
        Ok(FB_OK)
    })
}

/// Copies `bytes` bytes from `data` to `offset` of the array. They go to the file when memory is needed, and
/// durably with fb_array_flush. Blocks while tiles are evicted. FB_BOX_OUTSIDE_SHAPE, FB_PERMISSION_DENIED (mode
/// "r"), FB_POISONED, or what a read failed with: then a part may have been written.
#[no_mangle]
pub unsafe extern "C" fn fb_array_write(
    array: *mut fb_array,
    offset: u64,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and for memory to read.
        let (held, data) = unsafe { (handle(array, "array")?, input(data, bytes, "data")?) };
        held.array.write(offset, data)?;
        Ok(FB_OK)
    })
}

/// Copies the `number` items of `item` bytes each that `indices` names (item i begins at byte i * item) to
/// `data`, one behind the other, with many requests in flight. Blocks until they are there. The errors of
/// fb_array_read.
#[no_mangle]
pub unsafe extern "C" fn fb_array_gather(
    array: *const fb_array,
    indices: *const u64,
    number: usize,
    item: usize,
    data: *mut c_void,
) -> c_int {
    guard(|| {
        let bytes = number.saturating_mul(item);
        // SAFETY: the header's contract for handles, for memory to read and for memory to write.
        let (held, indices, data) = unsafe {
            (handle(array, "array")?, numbers(indices, number, "indices")?, output(data, bytes, "data")?)
        };
        held.array.gather(indices, item, data)?;
        Ok(FB_OK)
    })
}

/// Copies `number` items of `item` bytes each from `data`, one behind the other, to the places that `indices`
/// names; of an index that is there twice the last one stays. The errors of fb_array_write.
#[no_mangle]
pub unsafe extern "C" fn fb_array_scatter(
    array: *mut fb_array,
    indices: *const u64,
    number: usize,
    item: usize,
    data: *const c_void,
) -> c_int {
    guard(|| {
        let bytes = number.saturating_mul(item);
        // SAFETY: the header's contract for handles and for memory to read.
        let (held, indices, data) = unsafe {
            (handle(array, "array")?, numbers(indices, number, "indices")?, input(data, bytes, "data")?)
        };
        held.array.scatter(indices, item, data)?;
        Ok(FB_OK)
    })
}

/// Begins to read `bytes` bytes from `offset` on, as far as they fit, and does not wait for them. Only a
/// hint: errors are those of who touches the data later.
#[no_mangle]
pub unsafe extern "C" fn fb_array_prefetch(array: *const fb_array, offset: u64, bytes: u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let held = unsafe { handle(array, "array")? };
        held.array.prefetch(offset..offset.saturating_add(bytes));
        Ok(FB_OK)
    })
}

/// Calls `visitor` once for each tile, in the order of `tiles` (`number` numbers from 0 on; NULL: all of them
/// from first to last), reading the next ones ahead. With `write` other than 0 the visitor may change the data
/// (then `tiles` must be NULL), which is written behind; without it a store is an error that is not noticed.
/// Returns what the visitor returned if that is not 0. The errors of fb_array_read and fb_array_write.
#[no_mangle]
pub unsafe extern "C" fn fb_array_tiles(
    array: *mut fb_array,
    tiles: *const u64,
    number: usize,
    write: c_int,
    visitor: fb_tile_visitor,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let array = unsafe { &handle(array, "array")?.array };
        let visitor = visitor.ok_or_else(|| null("visitor"))?;
        let visit = |offset: u64, data: *const u8, bytes: usize| {
            // SAFETY: the visitor is a function of this type, by the header's contract; the tile is pinned.
            unsafe { visitor(context, offset, data.cast_mut().cast(), bytes) }
        };
        if write != 0 {
            if !tiles.is_null() {
                return Err(Error::new(Kind::Usage, "a list of tiles cannot be combined with write")
                    .hint("pass NULL for tiles to visit all of them in order, or pin single tiles"));
            }
            for tile in array.tiles_mut() {
                let mut tile = tile?;
                let (start, bytes) = (tile.range().start, tile.len());
                let said = visit(start, tile.as_mut_ptr(), bytes);
                if said != 0 {
                    return Ok(said);
                }
            }
            return Ok(FB_OK);
        }
        let order: Box<dyn Iterator<Item = u64>> = match tiles.is_null() {
            true => Box::new(0..array.tiles_total()),
            // SAFETY: the header's contract for memory to read.
            false => Box::new(unsafe { numbers(tiles, number, "tiles")? }.iter().copied()),
        };
        for tile in array.tiles_in(order) {
            let tile = tile?;
            let said = visit(tile.range().start, tile.as_ptr(), tile.len());
            if said != 0 {
                return Ok(said);
            }
        }
        Ok(FB_OK)
    })
}

/// Keeps tile `tile` (from 0) in memory and stores its handle in `*pin`, the address of its data in `*data`,
/// the byte of the array where it begins in `*offset` and its length in `*bytes` (the latter two may be NULL).
/// With `write` other than 0 the data may be changed, and no other thread sees the tile until fb_tile_unpin; else a
/// store into it is an error that is not noticed, and others may pin it, too. Blocks until it is there;
/// FB_TIMED_OUT when all of the budget is pinned, or another thread has the tile to write it, for a minute. The
/// errors of fb_array_read and fb_array_write.
#[no_mangle]
pub unsafe extern "C" fn fb_tile_pin(
    array: *mut fb_array,
    tile: u64,
    write: c_int,
    pin: *mut *mut fb_tile,
    data: *mut *mut c_void,
    offset: *mut u64,
    bytes: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (held, place, data, offset, bytes) = unsafe {
            (
                handle(array, "array")?,
                out(pin, "pin")?,
                out(data, "data")?,
                out_or_null(offset, "offset")?,
                out_or_null(bytes, "bytes")?,
            )
        };
        let kept = held.array.clone();
        // SAFETY: the array does not move (it is behind the Arc) and lives as long as `_array`, which is dropped after
        // the tile; nothing hands the longer lifetime out.
        let array: &'static Array = unsafe { &*Arc::as_ptr(&kept) };
        let (tile, address, range) = match write != 0 {
            false => {
                let tile = array.pin(tile)?;
                let (address, range) = (tile.as_ptr().cast_mut(), tile.range());
                (Held::Read(tile), address, range)
            }
            true => {
                let mut tile = array.pin_mut(tile)?;
                let (address, range) = (tile.as_mut_ptr(), tile.range());
                (Held::Write(tile), address, range)
            }
        };
        data.set(address.cast());
        offset.into_iter().for_each(|place| place.set(range.start));
        bytes.into_iter().for_each(|place| place.set((range.end - range.start) as usize));
        give(fb_tile { _tile: tile, _array: kept }, place);
        Ok(FB_OK)
    })
}

/// Ends a pin and sets `*pin` to NULL; its memory must not be touched any more. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_tile_unpin(pin: *mut *mut fb_tile) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        drop(unsafe { take(pin, "pin")? });
        Ok(FB_OK)
    })
}

/// Writes back what was changed and makes it durable; blocks until it is. Nothing happens in modes "r" and "c".
/// What could not be written stays in memory, and the call may be made again; after FB_POISONED (the medium's
/// own flush failed) it is unknown what it holds, and nothing can be written any more.
#[no_mangle]
pub unsafe extern "C" fn fb_array_flush(array: *mut fb_array) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        unsafe { handle(array, "array")? }.array.flush()?;
        Ok(FB_OK)
    })
}

/// Ends the array and sets `*array` to NULL: as fb_array_flush, except with horizon "none", where it does not
/// wait for the medium. Its file stays. FB_USAGE when there are pins: the array then stays open. With any other
/// error what could not be written is lost, and the array is ended all the same.
#[no_mangle]
pub unsafe extern "C" fn fb_array_close(array: *mut *mut fb_array) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        let Some(held) = (unsafe { take(array, "array")? }) else { return Ok(FB_OK) };
        let fb_array { array: shared, method } = *held;
        match Arc::try_unwrap(shared) {
            Ok(alone) => alone.close()?,
            Err(shared) => {
                // SAFETY: as above: `take` has just used the same variable.
                give(fb_array { array: shared, method }, unsafe { out(array, "array")? });
                return Err(Error::new(Kind::Usage, "tiles of the array are pinned")
                    .hint("end the pins with fb_tile_unpin, then close the array"));
            }
        }
        Ok(FB_OK)
    })
}

/// The array over a file as a mode opens or makes it.
fn open(pool: &Pool, path: &Path, mode: &str, options: &ArrayOptions) -> Result<Array> {
    if mode == "x+" || mode == "a+" {
        match make(pool, path, options) {
            Err(e) if e.kind() == Kind::NameInUse && mode == "a+" => {}
            made => return made,
        }
    }
    let writable = matches!(mode, "r+" | "a+");
    Array::open(pool, Arc::new(FileBacking::open(path, writable)?), options)
}

fn make(pool: &Pool, path: &Path, options: &ArrayOptions) -> Result<Array> {
    let total = match options.bytes {
        Some(bytes) => options.origin.checked_add(bytes),
        // One that is there says itself how long it is.
        None if path.exists() => {
            return Err(Error::new(Kind::NameInUse, format!("{} exists", path.display())))
        }
        None => None,
    };
    let total = total.ok_or_else(|| {
        Error::new(Kind::Usage, format!("the size of the new file {} is missing", path.display()))
            .hint("pass the number of bytes")
    })?;
    let backing = FileBacking::create(path, total)?;
    Array::open(pool, Arc::new(backing), options).inspect_err(|_| {
        // Nothing half-made stays; it was made here a moment ago.
        let _ = std::fs::remove_file(path);
    })
}
