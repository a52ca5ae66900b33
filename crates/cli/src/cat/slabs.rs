//! Boxes cut into slabs that follow each other in C order.
//!
//! Guarantees: concatenated, the slabs are the box; each has at most the given number of bytes, or is one
//! element.

use forebay_space::{NdBox, Result};

/// Calls `visit` with every slab of `whole`, first to last. An empty box has none.
pub fn for_each(
    whole: &NdBox,
    element_bytes: usize,
    bytes_max: u64,
    visit: &mut dyn FnMut(&NdBox) -> Result<()>,
) -> Result<()> {
    if whole.is_empty() {
        return Ok(());
    }
    let bytes = whole.volume().and_then(|v| v.checked_mul(element_bytes as u64));
    // The first dimension that can be cut; those before it have one index only, so order is kept.
    let cut = whole.count.iter().position(|n| *n > 1);
    let (Some(cut), false) = (cut, bytes.is_some_and(|b| b <= bytes_max)) else { return visit(whole) };
    let row = whole.count[cut + 1..].iter().fold(element_bytes as u64, |p, n| p.saturating_mul(*n));
    let rows = (bytes_max / row).max(1);
    let mut done = 0;
    while done < whole.count[cut] {
        let mut slab = whole.clone();
        slab.start[cut] += done;
        slab.count[cut] = rows.min(whole.count[cut] - done);
        done += slab.count[cut];
        for_each(&slab, element_bytes, bytes_max, visit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flat indices of a box inside a shape, in C order.
    fn indices(shape: &[u64], part: &NdBox) -> Vec<u64> {
        let mut found = vec![0u64];
        for (d, n) in shape.iter().enumerate() {
            let range = part.start[d]..part.start[d] + part.count[d];
            found = found.iter().flat_map(|base| range.clone().map(move |i| base * n + i)).collect();
        }
        found
    }

    #[test]
    fn slabs_in_order_are_the_box() {
        let shape = [4, 3, 5];
        let part = NdBox::new(&[1, 0, 2], &[3, 3, 2]).unwrap();
        for bytes_max in [1, 8, 16, 40, 48, 96, 1 << 20] {
            let mut seen = Vec::new();
            for_each(&part, 8, bytes_max, &mut |slab| {
                assert!(slab.volume().unwrap() * 8 <= bytes_max.max(8), "{slab} at {bytes_max}");
                seen.extend(indices(&shape, slab));
                Ok(())
            })
            .unwrap();
            assert_eq!(seen, indices(&shape, &part), "{bytes_max}");
        }
    }

    #[test]
    fn scalars_are_one_slab_and_empty_boxes_none() {
        let slabs = |shape: &[u64]| {
            let mut n = 0;
            for_each(&NdBox::whole(shape), 8, 1, &mut |_| {
                n += 1;
                Ok(())
            })
            .unwrap();
            n
        };
        assert_eq!((slabs(&[]), slabs(&[3, 0]), slabs(&[3, 1])), (1, 0, 3));
    }
}
