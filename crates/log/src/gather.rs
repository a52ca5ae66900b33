//! Moving the bytes of boxes: from a piece to a target box, and the questions that decide how.
//!
//! A piece is a box with its elements in C order. Reading a box that several pieces cover is one
//! [`copy_overlap`] per piece into the same target; [`coverage_gap`] says before whether they cover it.
//!
//! Guarantees: dimensions that both sides hold whole are merged, so that the copy runs over the longest
//! contiguous stretches there are; strides are computed once, and the inner loop only adds. Nothing panics on
//! boxes and buffers that do not fit each other: they are errors. Every byte is copied at most once per
//! piece. Not here: checksums, waiting, threads.

use crate::nd_box::NdBox;
use forebay_tier::{Error, Kind, Result};
use smallvec::SmallVec;
use std::ops::Range;

/// One loop of a strided copy: how often, and how far both sides move each time, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loop {
    times: usize,
    src_step: usize,
    dst_step: usize,
}

/// A strided copy between two boxes, as few nested loops as the boxes allow.
struct Plan {
    src_offset: usize,
    dst_offset: usize,
    /// Contiguous bytes that the innermost step moves.
    run: usize,
    /// Loops from the innermost to the outermost.
    loops: SmallVec<[Loop; 4]>,
}

impl Plan {
    /// How to copy `part`, which lies in both boxes. The boxes' bytes must fit `usize` (checked by the
    /// caller), so that no product here can overflow.
    fn new(piece: &NdBox, target: &NdBox, part: &NdBox, element_bytes: usize) -> Plan {
        let mut plan = Plan { src_offset: 0, dst_offset: 0, run: element_bytes, loops: SmallVec::new() };
        let (mut src_step, mut dst_step) = (element_bytes, element_bytes);
        for i in (0..part.dimensions()).rev() {
            plan.src_offset += (part.start[i] - piece.start[i]) as usize * src_step;
            plan.dst_offset += (part.start[i] - target.start[i]) as usize * dst_step;
            plan.push(Loop { times: part.count[i] as usize, src_step, dst_step });
            src_step *= piece.count[i] as usize;
            dst_step *= target.count[i] as usize;
        }
        plan
    }

    /// Adds a loop around the others, merged with the one below where their steps follow each other.
    fn push(&mut self, outer: Loop) {
        if outer.times == 1 {
            return;
        }
        match self.loops.last_mut() {
            None if outer.src_step == self.run && outer.dst_step == self.run => self.run *= outer.times,
            Some(inner)
                if outer.src_step == inner.times * inner.src_step
                    && outer.dst_step == inner.times * inner.dst_step =>
            {
                inner.times *= outer.times;
            }
            _ => self.loops.push(outer),
        }
    }

    fn bytes(&self) -> usize {
        self.run * self.loops.iter().map(|l| l.times).product::<usize>()
    }

    fn copy(&self, src: &[u8], dst: &mut [u8]) {
        let Some((inner, outer)) = self.loops.split_first() else {
            let (from, to) = (self.src_offset, self.dst_offset);
            dst[to..to + self.run].copy_from_slice(&src[from..from + self.run]);
            return;
        };
        let mut counters: SmallVec<[usize; 16]> = SmallVec::from_elem(0, outer.len());
        let (mut from, mut to) = (self.src_offset, self.dst_offset);
        loop {
            copy_runs(&src[from..], &mut dst[to..], self.run, inner);
            let mut level = 0;
            loop {
                let Some(l) = outer.get(level) else { return };
                counters[level] += 1;
                if counters[level] < l.times {
                    from += l.src_step;
                    to += l.dst_step;
                    break;
                }
                counters[level] = 0;
                from -= (l.times - 1) * l.src_step;
                to -= (l.times - 1) * l.dst_step;
                level += 1;
            }
        }
    }
}

/// The innermost loop. Runs of one element get a loop of their own, because a call of memcpy per 8 bytes
/// costs several times the copy.
fn copy_runs(src: &[u8], dst: &mut [u8], run: usize, l: &Loop) {
    match run {
        1 => copy_fixed::<1>(src, dst, l),
        2 => copy_fixed::<2>(src, dst, l),
        4 => copy_fixed::<4>(src, dst, l),
        8 => copy_fixed::<8>(src, dst, l),
        16 => copy_fixed::<16>(src, dst, l),
        32 => copy_fixed::<32>(src, dst, l),
        _ => {
            let (mut from, mut to) = (0, 0);
            for _ in 0..l.times {
                dst[to..to + run].copy_from_slice(&src[from..from + run]);
                from += l.src_step;
                to += l.dst_step;
            }
        }
    }
}

/// [`copy_runs`] for a run whose length the compiler knows.
fn copy_fixed<const RUN: usize>(src: &[u8], dst: &mut [u8], l: &Loop) {
    let (mut from, mut to) = (0, 0);
    for _ in 0..l.times {
        dst[to..to + RUN].copy_from_slice(&src[from..from + RUN]);
        from += l.src_step;
        to += l.dst_step;
    }
}

/// Copies what `piece` (its elements in `src`) and `target` (its elements in `dst`) have in common into
/// `dst`, and returns the number of bytes copied; 0 when they have nothing in common.
///
/// # Errors
/// [`Kind::BufferMismatch`] when a buffer's length is not that of its box.
pub fn copy_overlap(
    piece: &NdBox,
    src: &[u8],
    target: &NdBox,
    dst: &mut [u8],
    element_bytes: usize,
) -> Result<usize> {
    check_length("piece", piece, src.len(), element_bytes)?;
    check_length("target", target, dst.len(), element_bytes)?;
    let Some(part) = piece.intersect(target) else { return Ok(0) };
    let plan = Plan::new(piece, target, &part, element_bytes);
    plan.copy(src, dst);
    Ok(plan.bytes())
}

fn check_length(what: &'static str, of: &NdBox, length: usize, element_bytes: usize) -> Result<()> {
    let wanted = of.bytes(element_bytes)?;
    if wanted == length {
        return Ok(());
    }
    Err(Error::new(
        Kind::BufferMismatch,
        format!("the buffer of the {what} does not have the size of its box"),
    )
    .with("box", of)
    .with("element_bytes", element_bytes)
    .with("bytes", length)
    .with("bytes_expected", wanted))
}

/// Where the elements of `wanted` lie in the bytes of `piece`, when that is one contiguous range; `None` when
/// it is not, or when `piece` does not contain `wanted`. An empty box is the empty range at the beginning.
pub fn contiguous_range(piece: &NdBox, wanted: &NdBox, element_bytes: usize) -> Option<Range<usize>> {
    if !piece.contains(wanted) || piece.bytes(element_bytes).is_err() {
        return None;
    }
    if wanted.is_empty() {
        return Some(0..0);
    }
    let plan = Plan::new(piece, wanted, wanted, element_bytes);
    plan.loops.is_empty().then(|| plan.src_offset..plan.src_offset + plan.run)
}

/// A part of `wanted` that none of the pieces covers (the first in C order of those that are left over), or
/// `None` when they cover it.
///
/// Time: one look at each piece when one of them contains `wanted`; else one sort by position, and then for
/// slabs and blocks a handful of steps per piece, because what is still uncovered stays a few boxes at the
/// front. Pieces may overlap and may reach beyond `wanted`.
pub fn coverage_gap<'a>(wanted: &NdBox, pieces: impl IntoIterator<Item = &'a NdBox>) -> Option<NdBox> {
    if wanted.is_empty() {
        return None;
    }
    let mut parts: SmallVec<[NdBox; 8]> = SmallVec::new();
    for piece in pieces {
        if piece.contains(wanted) {
            return None;
        }
        parts.extend(piece.intersect(wanted));
    }
    parts.sort_unstable_by(|a, b| a.start.cmp(&b.start));
    let axis = sweep_axis(wanted, &parts);
    let mut open = vec![wanted.clone()];
    let mut cut = Vec::new();
    for part in &parts {
        // Parts come in the order of this axis, so what ends before this part no later one can cover.
        if let Some(gap) = first_of(open.iter().filter(|rest| rest.end(axis) <= part.start[axis])) {
            return Some(gap);
        }
        let mut i = open.len();
        while i > 0 {
            i -= 1;
            if open[i].intersect(part).is_some() {
                open.swap_remove(i).subtract_into(part, &mut cut);
            }
        }
        open.append(&mut cut);
        if open.is_empty() {
            return None;
        }
    }
    first_of(open.iter())
}

/// The first dimension in which some part does not span `wanted`: sorting by start sorts by this dimension.
fn sweep_axis(wanted: &NdBox, parts: &[NdBox]) -> usize {
    let spans =
        |i: usize| parts.iter().all(|p| p.start[i] == wanted.start[i] && p.count[i] == wanted.count[i]);
    (0..wanted.dimensions()).find(|i| !spans(*i)).unwrap_or(0)
}

fn first_of<'a>(boxes: impl Iterator<Item = &'a NdBox>) -> Option<NdBox> {
    boxes.min_by(|a, b| a.start.cmp(&b.start)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dims;
    use proptest::prelude::*;

    fn bx(start: &[u64], count: &[u64]) -> NdBox {
        NdBox::new(start, count).unwrap()
    }

    /// The elements of `part` in the plain array of `shape` whose element at flat index i is i.
    fn plain(shape: &[u64], part: &NdBox, element_bytes: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for point in points(part) {
            let flat = point.iter().zip(shape).fold(0u64, |flat, (p, n)| flat * n + p);
            let tag = flat.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
            bytes.extend((0..element_bytes).map(|k| tag[k % 8] ^ k as u8));
        }
        bytes
    }

    /// Every point of a box, in C order.
    fn points(part: &NdBox) -> Vec<Vec<u64>> {
        let mut all = vec![vec![]];
        for i in 0..part.dimensions() {
            let range = part.start[i]..part.end(i);
            all = all
                .into_iter()
                .flat_map(|p| range.clone().map(move |x| [p.clone(), vec![x]].concat()))
                .collect();
        }
        all
    }

    /// A shape of 1 to 5 dimensions with at most some thousand elements.
    fn shapes() -> impl Strategy<Value = Vec<u64>> {
        (1usize..=5).prop_flat_map(|d| prop::collection::vec(1u64..=[40, 14, 8, 6, 4][d - 1], d))
    }

    /// A box inside the shape, perhaps empty.
    fn box_in(shape: Vec<u64>) -> impl Strategy<Value = NdBox> {
        let edges: Vec<_> = shape.iter().map(|n| (0..=*n, 0..=*n)).collect();
        edges.prop_map(|edges| {
            let (start, count): (Vec<_>, Vec<_>) =
                edges.iter().map(|(a, b)| (*a.min(b), a.abs_diff(*b))).unzip();
            bx(&start, &count)
        })
    }

    /// Cuts a box into pieces by random cuts: each choice halves one piece in one dimension.
    fn split(whole: NdBox, choices: &[(usize, usize, u64)]) -> Vec<NdBox> {
        let mut pieces = vec![whole];
        for (which, dimension, at) in choices {
            let which = which % pieces.len();
            let piece = pieces[which].clone();
            let d = dimension % piece.dimensions();
            if piece.count[d] < 2 {
                continue;
            }
            let at = 1 + at % (piece.count[d] - 1);
            let (mut low, mut high) = (piece.clone(), piece);
            low.count[d] = at;
            high.start[d] += at;
            high.count[d] -= at;
            pieces[which] = low;
            pieces.push(high);
        }
        pieces
    }

    fn cuts() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
        prop::collection::vec((0usize..64, 0usize..5, 0u64..64), 0..24)
    }

    const ELEMENTS: &[usize] = &[1, 2, 3, 4, 8, 16, 24, 32];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_split_gathers_to_the_plain_array(
            (shape, target) in shapes().prop_flat_map(|s| (Just(s.clone()), box_in(s))),
            cuts in cuts(),
            element in prop::sample::select(ELEMENTS),
        ) {
            let pieces = split(NdBox::whole(&shape), &cuts);
            let mut out = vec![0xAA; target.bytes(element).unwrap()];
            let mut copied = 0;
            for piece in &pieces {
                let src = plain(&shape, piece, element);
                copied += copy_overlap(piece, &src, &target, &mut out, element).unwrap();
            }
            prop_assert_eq!(&out, &plain(&shape, &target, element));
            prop_assert_eq!(copied, out.len(), "each byte once");
            prop_assert_eq!(coverage_gap(&target, &pieces), None);
        }

        #[test]
        fn a_missing_piece_is_reported_and_its_bytes_are_left_alone(
            (shape, target) in shapes().prop_flat_map(|s| (Just(s.clone()), box_in(s))),
            cuts in cuts(),
            missing in 0usize..64,
        ) {
            let mut pieces = split(NdBox::whole(&shape), &cuts);
            let hole = pieces.swap_remove(missing % pieces.len());
            let gap = coverage_gap(&target, &pieces);
            prop_assert_eq!(gap.is_some(), hole.intersect(&target).is_some());
            if let Some(gap) = gap {
                prop_assert!(!gap.is_empty() && target.contains(&gap), "{gap} of {target}");
                prop_assert!(hole.contains(&gap), "{gap} of {hole}");
            }
            let mut out = vec![0xAA; target.bytes(1).unwrap()];
            for piece in &pieces {
                copy_overlap(piece, &vec![0x55; piece.bytes(1).unwrap()], &target, &mut out, 1).unwrap();
            }
            for (byte, point) in out.iter().zip(points(&target)) {
                prop_assert_eq!(*byte, if hole.contains_point(&point) { 0xAA } else { 0x55 });
            }
        }

        #[test]
        fn overlapping_pieces_cover_what_their_points_cover(
            (shape, target, pieces) in shapes().prop_flat_map(|s| {
                (Just(s.clone()), box_in(s.clone()), prop::collection::vec(box_in(s), 0..10))
            }),
        ) {
            let gap = coverage_gap(&target, &pieces);
            let uncovered: Vec<_> =
                points(&target).into_iter().filter(|p| !pieces.iter().any(|b| b.contains_point(p))).collect();
            match gap {
                None => prop_assert!(uncovered.is_empty()),
                Some(gap) => {
                    prop_assert!(!gap.is_empty() && target.contains(&gap));
                    for p in points(&gap) {
                        prop_assert!(uncovered.contains(&p));
                    }
                }
            }
            let mut out = vec![0xAA; target.bytes(8).unwrap()];
            for piece in &pieces {
                copy_overlap(piece, &plain(&shape, piece, 8), &target, &mut out, 8).unwrap();
            }
            let expected = plain(&shape, &target, 8);
            for (i, p) in points(&target).iter().enumerate() {
                if !uncovered.contains(p) {
                    prop_assert_eq!(&out[i * 8..i * 8 + 8], &expected[i * 8..i * 8 + 8]);
                }
            }
        }

        #[test]
        fn a_contiguous_range_is_found_exactly_when_there_is_one(
            (shape, piece, wanted) in shapes().prop_flat_map(|s| {
                (Just(s.clone()), box_in(s.clone()), box_in(s))
            }),
        ) {
            let range = contiguous_range(&piece, &wanted, 8);
            if !piece.contains(&wanted) {
                prop_assert_eq!(range, None);
                return Ok(());
            }
            // Where each wanted element lies in the piece, by counting.
            let places: Vec<usize> = points(&piece)
                .iter().enumerate().filter(|(_, p)| wanted.contains_point(p)).map(|(i, _)| i).collect();
            let contiguous = places.windows(2).all(|w| w[1] == w[0] + 1);
            prop_assert_eq!(range.is_some(), contiguous);
            if let Some(range) = range {
                prop_assert_eq!(range.len(), places.len() * 8);
                prop_assert_eq!(range.start, places.first().map_or(0, |first| first * 8));
                let src = plain(&shape, &piece, 8);
                prop_assert_eq!(src[range].to_vec(), plain(&shape, &wanted, 8));
            }
        }
    }

    #[test]
    fn scalars_and_empty_boxes() {
        let scalar = NdBox::whole(&[]);
        let mut out = [0u8; 8];
        assert_eq!(copy_overlap(&scalar, &[7; 8], &scalar, &mut out, 8).unwrap(), 8);
        assert_eq!(out, [7; 8]);
        assert_eq!(contiguous_range(&scalar, &scalar, 8), Some(0..8));
        assert_eq!(coverage_gap(&scalar, [&scalar]), None);
        assert_eq!(coverage_gap(&scalar, []), Some(scalar.clone()));
        let empty = bx(&[3, 0], &[0, 4]);
        assert_eq!(copy_overlap(&bx(&[0, 0], &[4, 4]), &[1; 16], &empty, &mut [], 1).unwrap(), 0);
        assert_eq!(coverage_gap(&empty, []), None);
    }

    #[test]
    fn whole_dimensions_merge_into_one_run() {
        let plan =
            |piece: &NdBox, target: &NdBox| Plan::new(piece, target, &piece.intersect(target).unwrap(), 8);
        let slab = plan(&bx(&[4, 0, 0], &[4, 10, 10]), &bx(&[0, 0, 0], &[16, 10, 10]));
        assert_eq!((slab.run, slab.loops.len()), (4 * 100 * 8, 0));
        let columns = plan(&bx(&[0, 0, 4], &[6, 10, 2]), &bx(&[0, 0, 0], &[6, 10, 10]));
        assert_eq!((columns.run, columns.loops.len()), (16, 1), "the two outer loops are one");
        let block = plan(&bx(&[1, 1, 1], &[4, 4, 4]), &bx(&[0, 0, 0], &[6, 6, 6]));
        assert_eq!((block.run, block.loops.len()), (32, 2));
    }

    #[test]
    fn buffers_that_do_not_fit_are_errors() {
        let b = bx(&[0], &[4]);
        assert_eq!(copy_overlap(&b, &[0; 3], &b, &mut [0; 4], 1).unwrap_err().kind(), Kind::BufferMismatch);
        assert_eq!(copy_overlap(&b, &[0; 4], &b, &mut [0; 5], 1).unwrap_err().kind(), Kind::BufferMismatch);
        let huge = NdBox::whole(&[u64::MAX, u64::MAX]);
        assert_eq!(copy_overlap(&huge, &[], &b, &mut [0; 4], 1).unwrap_err().kind(), Kind::BoxOutsideShape);
        assert_eq!(contiguous_range(&huge, &bx(&[1, 1], &[1, 1]), 8), None);
        let wild = NdBox { start: Dims::from_elem(u64::MAX, 1), count: Dims::from_elem(u64::MAX, 1) };
        assert_eq!(coverage_gap(&b, [&wild]), Some(b.clone()));
        let some = coverage_gap(&huge, [&bx(&[0, 0], &[1, 1]), &bx(&[7, 7], &[u64::MAX - 7, 1])]);
        assert!(some.is_some());
    }

    /// Thousands of blocks in any order: with a quadratic search this would be tens of millions of
    /// comparisons.
    #[test]
    fn many_blocks_in_any_order() {
        let side = 24u64;
        let wanted = bx(&[1, 1, 1], &[3 * side - 2, 3 * side - 2, 3 * side - 2]);
        let mut blocks = Vec::new();
        for i in 0..side * side * side {
            // A full-cycle step through all blocks, so that the order is mixed but always the same.
            let i = (i * 7919) % (side * side * side);
            blocks.push(bx(&[i / side / side * 3, i / side % side * 3, i % side * 3], &[3, 3, 3]));
        }
        assert_eq!(coverage_gap(&wanted, &blocks), None);
        let missing = blocks.swap_remove(4711);
        assert_eq!(coverage_gap(&wanted, &blocks), missing.intersect(&wanted));
        let slabs: Vec<NdBox> = (0..20_000u64).rev().map(|i| bx(&[i, 0], &[1, 8])).collect();
        assert_eq!(coverage_gap(&NdBox::whole(&[20_000, 8]), &slabs), None);
        let holes: Vec<NdBox> = (0..20_000u64).rev().step_by(2).map(|i| bx(&[0, i], &[8, 1])).collect();
        assert_eq!(coverage_gap(&NdBox::whole(&[8, 20_000]), &holes), Some(bx(&[0, 0], &[8, 1])));
    }
}
