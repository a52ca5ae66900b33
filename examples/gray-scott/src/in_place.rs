//! Arrays written into, and read from, the memory of a space itself: no copy but the one that the program
//! makes.

use crate::simulation::field::Cell;
use forebay_space::{Reader, Result, Writer};

/// A box of a variable's global index space.
pub struct Placed<'a> {
    /// Global shape.
    pub shape: &'a [u64],
    /// First cell of the box.
    pub start: &'a [u64],
    /// Cells of the box.
    pub count: &'a [u64],
}

/// Puts the box of variable `name` that `fill` writes, straight into the memory that readers will map. `fill`
/// must write every cell: the memory holds anything before.
pub fn put_filled<T: Cell>(
    writer: &mut Writer,
    name: &str,
    place: &Placed<'_>,
    fill: impl FnOnce(&mut [T]),
) -> Result<()> {
    let mut reserved = writer.reserve(name, T::DTYPE, place.shape, place.start, place.count)?;
    match bytemuck::try_cast_slice_mut(reserved.as_mut_slice()) {
        Ok(cells) => fill(cells),
        // Memory that is not aligned for the type: by way of a buffer.
        Err(_) => {
            let bytes = reserved.as_mut_slice();
            let mut buffer = vec![T::of(0.0); bytes.len() / std::mem::size_of::<T>()];
            fill(&mut buffer);
            bytes.copy_from_slice(bytemuck::cast_slice(&buffer));
        }
    }
    writer.commit(reserved)
}

/// Shows the whole of variable `name`, which one rank put in one piece, to `use_it` where it lies.
pub fn with_view<T: Cell>(reader: &mut Reader, name: &str, use_it: impl FnOnce(&[T])) -> Result<()> {
    let view = reader.view(name, None)?;
    match bytemuck::try_cast_slice(view.bytes()) {
        Ok(cells) => use_it(cells),
        Err(_) => {
            let mut buffer = vec![T::of(0.0); view.bytes().len() / std::mem::size_of::<T>()];
            bytemuck::cast_slice_mut(&mut buffer).copy_from_slice(view.bytes());
            use_it(&buffer);
        }
    }
    Ok(())
}
