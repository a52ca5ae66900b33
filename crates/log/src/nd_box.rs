//! Boxes: axis-parallel parts of a variable's n-dimensional index space.
//!
//! Guarantees: C order (the last dimension runs fastest), 0 to 16 dimensions, no dimensions is a scalar with
//! one element. No function panics or wraps, whatever numbers the box holds: the fields are public and come
//! from files, so every sum and product here is checked or saturates. Not here: bytes and strides (see
//! `gather`).

use crate::Dims;
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Most dimensions of a variable: the limit of the record format.
pub const DIMENSIONS_MAX: usize = 16;

/// As the first extent of a global shape: the variable is what all ranks put, one behind the other along the first
/// dimension, in the order of ranks and puts. No rank knows the extent or its own place; both are sums over the boxes
/// of a complete version. Such boxes start at 0.
pub const CONCAT: u64 = u64::MAX;

/// A global shape for people: `[concat, 3]` where its first extent is [`CONCAT`].
pub fn format_shape(shape: &[u64]) -> String {
    match shape {
        [CONCAT] => "[concat]".to_string(),
        [CONCAT, others @ ..] => format!("[concat, {}", &format!("{others:?}")[1..]),
        _ => format!("{shape:?}"),
    }
}

/// Moves boxes of a variable of shape [`CONCAT`], which are in the order of ranks and puts, to their places. Returns
/// the extent of the first dimension (2^64 - 1 where the sum would be beyond it).
pub fn concatenate<'a>(boxes: impl Iterator<Item = &'a mut NdBox>) -> u64 {
    boxes.fold(0, |end, part| {
        part.start[0] = end;
        part.end(0)
    })
}

/// A part of a variable's global index space: per dimension the first index and the number of indices.
///
/// Both lists have the same length, the number of dimensions. A count of 0 makes the box empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Unchecked", into = "Unchecked")]
pub struct NdBox {
    /// First index per dimension.
    pub start: Dims,
    /// Number of indices per dimension.
    pub count: Dims,
}

/// What a file holds, not yet checked.
#[derive(Serialize, Deserialize)]
struct Unchecked {
    start: Vec<u64>,
    count: Vec<u64>,
}

impl From<NdBox> for Unchecked {
    fn from(checked: NdBox) -> Unchecked {
        Unchecked { start: checked.start.to_vec(), count: checked.count.to_vec() }
    }
}

impl TryFrom<Unchecked> for NdBox {
    type Error = Error;

    fn try_from(raw: Unchecked) -> Result<NdBox> {
        NdBox::new(&raw.start, &raw.count)
    }
}

impl NdBox {
    /// The box of a whole variable of this shape.
    pub fn whole(shape: &[u64]) -> NdBox {
        NdBox { start: Dims::from_elem(0, shape.len()), count: Dims::from_slice(shape) }
    }

    /// The box that starts at `start` and has `count` indices per dimension.
    ///
    /// # Errors
    /// [`Kind::BoxOutsideShape`]: the lists differ in length, have more than 16 entries, or `start + count`
    /// is more than 2^64 - 1 in some dimension.
    pub fn new(start: &[u64], count: &[u64]) -> Result<NdBox> {
        if start.len() != count.len() || start.len() > DIMENSIONS_MAX {
            return Err(Error::new(
                Kind::BoxOutsideShape,
                "start and count must have the same length, at most 16",
            )
            .with("start", format!("{start:?}"))
            .with("count", format!("{count:?}")));
        }
        if start.iter().zip(count).any(|(s, c)| s.checked_add(*c).is_none()) {
            return Err(Error::new(Kind::BoxOutsideShape, "start + count is beyond 2^64 - 1")
                .with("start", format!("{start:?}"))
                .with("count", format!("{count:?}")));
        }
        Ok(NdBox { start: Dims::from_slice(start), count: Dims::from_slice(count) })
    }

    /// Number of dimensions.
    pub fn dimensions(&self) -> usize {
        self.start.len().min(self.count.len())
    }

    /// Number of elements; `None` when it is more than 2^64 - 1. A scalar has one.
    pub fn volume(&self) -> Option<u64> {
        if self.is_empty() {
            return Some(0);
        }
        self.count.iter().try_fold(1u64, |product, c| product.checked_mul(*c))
    }

    /// Number of bytes of the box with elements of `element_bytes`.
    ///
    /// # Errors
    /// [`Kind::BoxOutsideShape`] when it does not fit this machine's address space.
    pub fn bytes(&self, element_bytes: usize) -> Result<usize> {
        self.volume()
            .and_then(|volume| volume.checked_mul(element_bytes as u64))
            .filter(|bytes| *bytes <= isize::MAX as u64)
            .map(|bytes| bytes as usize)
            .ok_or_else(|| {
                Error::new(Kind::BoxOutsideShape, "the box is larger than the address space")
                    .with("box", self)
            })
    }

    /// True when the box holds no element. A scalar is not empty.
    pub fn is_empty(&self) -> bool {
        self.count.contains(&0)
    }

    /// One beyond the last index of dimension `i` (2^64 - 1 where the sum would be beyond it).
    ///
    /// # Panics
    /// When the box has no dimension `i`, like indexing a slice.
    pub fn end(&self, i: usize) -> u64 {
        self.start[i].saturating_add(self.count[i])
    }

    /// The elements in both boxes; `None` when there are none or the numbers of dimensions differ.
    pub fn intersect(&self, other: &NdBox) -> Option<NdBox> {
        if self.dimensions() != other.dimensions() {
            return None;
        }
        let mut both = NdBox { start: Dims::new(), count: Dims::new() };
        for i in 0..self.dimensions() {
            let start = self.start[i].max(other.start[i]);
            let end = self.end(i).min(other.end(i));
            if start >= end {
                return None;
            }
            both.start.push(start);
            both.count.push(end - start);
        }
        Some(both)
    }

    /// True when every element of `other` is in this box. An empty box of the same number of dimensions
    /// always is.
    pub fn contains(&self, other: &NdBox) -> bool {
        self.dimensions() == other.dimensions()
            && (other.is_empty()
                || (0..self.dimensions())
                    .all(|i| self.start[i] <= other.start[i] && other.end(i) <= self.end(i)))
    }

    /// True when the element at `point` is in this box.
    pub fn contains_point(&self, point: &[u64]) -> bool {
        self.dimensions() == point.len()
            && point
                .iter()
                .enumerate()
                .all(|(i, p)| self.start[i] <= *p && *p - self.start[i] < self.count[i])
    }

    /// True when the box lies inside a variable of this shape. An empty box may start at the very end.
    pub fn is_inside(&self, shape: &[u64]) -> bool {
        self.start.len() == shape.len()
            && self.count.len() == shape.len()
            && shape
                .iter()
                .enumerate()
                .all(|(i, n)| self.start[i].checked_add(self.count[i]).is_some_and(|end| end <= *n))
    }

    /// [`NdBox::is_inside`] as an error that names the variable.
    ///
    /// # Errors
    /// [`Kind::BoxOutsideShape`].
    pub fn check_inside(&self, variable: &str, shape: &[u64]) -> Result<()> {
        if self.is_inside(shape) {
            return Ok(());
        }
        Err(Error::new(Kind::BoxOutsideShape, format!("the box exceeds the shape of variable {variable}"))
            .with("start", format!("{:?}", self.start.as_slice()))
            .with("count", format!("{:?}", self.count.as_slice()))
            .with("shape", format!("{shape:?}")))
    }

    /// The elements of this box that are not in `other`, as disjoint boxes, at most two per dimension.
    ///
    /// The pieces are cut off dimension by dimension from the first on, in the order of their first elements
    /// as far as one cut allows; the rest is `other`'s part.
    pub fn subtract(&self, other: &NdBox) -> Vec<NdBox> {
        let mut pieces = Vec::new();
        self.subtract_into(other, &mut pieces);
        pieces
    }

    /// [`NdBox::subtract`], pushed onto `pieces`.
    pub fn subtract_into(&self, other: &NdBox, pieces: &mut Vec<NdBox>) {
        if self.is_empty() {
            return;
        }
        let Some(hole) = self.intersect(other) else {
            pieces.push(self.clone());
            return;
        };
        let mut rest = self.clone();
        for i in 0..self.dimensions() {
            let (before, after) = (hole.start[i] - rest.start[i], rest.end(i) - hole.end(i));
            if before > 0 {
                let mut piece = rest.clone();
                piece.count[i] = before;
                pieces.push(piece);
            }
            if after > 0 {
                let mut piece = rest.clone();
                piece.start[i] = hole.end(i);
                piece.count[i] = after;
                pieces.push(piece);
            }
            rest.start[i] = hole.start[i];
            rest.count[i] = hole.count[i];
        }
    }
}

impl fmt::Display for NdBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for i in 0..self.dimensions() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{}:{}", self.start[i], self.end(i))?;
        }
        f.write_str("]")
    }
}

/// Reads `[0:4, 10:20]`, brackets optional; a single index `7` is `7:8`.
impl FromStr for NdBox {
    type Err = Error;

    fn from_str(text: &str) -> Result<NdBox> {
        let wrong = || {
            Error::new(Kind::Usage, format!("`{text}` is not a box"))
                .hint("box: first:end per dimension, as in 0:4,10:20")
        };
        let inner = text.trim();
        let inner = inner.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(inner).trim();
        let (mut start, mut count) = (Vec::new(), Vec::new());
        for part in inner.split(',').filter(|_| !inner.is_empty()) {
            let number = |t: &str| t.trim().parse::<u64>().map_err(|_| wrong());
            let (first, end) = match part.split_once(':') {
                Some((first, end)) => (number(first)?, number(end)?),
                None => (number(part)?, number(part)?.checked_add(1).ok_or_else(wrong)?),
            };
            start.push(first);
            count.push(end.checked_sub(first).ok_or_else(wrong)?);
        }
        NdBox::new(&start, &count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenated_boxes_follow_each_other() {
        let mut boxes = [3, 0, 2].map(|count| NdBox::whole(&[count, 7]));
        assert_eq!(concatenate(boxes.iter_mut()), 5);
        assert_eq!(boxes.each_ref().map(|part| part.start[0]), [0, 3, 3]);
        assert_eq!(boxes.each_ref().map(|part| part.start[1]), [0; 3]);
        assert_eq!(concatenate([].iter_mut()), 0);
        let shown = [&[CONCAT][..], &[CONCAT, 2, 3], &[4, 2], &[]].map(format_shape);
        assert_eq!(shown, ["[concat]", "[concat, 2, 3]", "[4, 2]", "[]"]);
        let mut huge = [CONCAT, 2].map(|count| NdBox::whole(&[count]));
        assert_eq!(concatenate(huge.iter_mut()), u64::MAX, "damaged counts do not wrap");
    }
    use proptest::prelude::*;

    fn bx(start: &[u64], count: &[u64]) -> NdBox {
        NdBox::new(start, count).unwrap()
    }

    #[test]
    fn scalars_are_full_boxes() {
        let scalar = NdBox::whole(&[]);
        assert_eq!(scalar.volume(), Some(1));
        assert!(!scalar.is_empty() && scalar.is_inside(&[]) && scalar.contains(&scalar));
        assert_eq!(scalar.intersect(&scalar), Some(scalar.clone()));
        assert!(scalar.subtract(&scalar).is_empty());
        assert!(scalar.contains_point(&[]));
        assert_eq!(scalar.to_string(), "[]");
        assert_eq!("[]".parse::<NdBox>().unwrap(), scalar);
    }

    #[test]
    fn extremes_are_errors_not_panics() {
        assert_eq!(NdBox::new(&[u64::MAX], &[1]).unwrap_err().kind(), Kind::BoxOutsideShape);
        assert_eq!(NdBox::new(&[0], &[1, 2]).unwrap_err().kind(), Kind::BoxOutsideShape);
        assert_eq!(NdBox::new(&[0; 17], &[1; 17]).unwrap_err().kind(), Kind::BoxOutsideShape);
        let wild = NdBox { start: Dims::from_elem(u64::MAX, 3), count: Dims::from_elem(u64::MAX, 3) };
        let huge = NdBox::whole(&[u64::MAX; 3]);
        assert!(!wild.is_inside(&[u64::MAX; 3]));
        assert!(huge.is_inside(&[u64::MAX; 3]));
        assert_eq!(huge.volume(), None);
        assert_eq!(NdBox::whole(&[u64::MAX, u64::MAX, 0]).volume(), Some(0));
        assert_eq!(huge.bytes(8).unwrap_err().kind(), Kind::BoxOutsideShape);
        assert!(wild.intersect(&huge).is_none());
        assert!(!huge.contains_point(&[u64::MAX; 3]));
        let _ = (wild.subtract(&huge), huge.subtract(&wild), wild.to_string(), wild.contains(&huge));
        assert_eq!(wild.check_inside("T", &[1, 1, 1]).unwrap_err().kind(), Kind::BoxOutsideShape);
    }

    #[test]
    fn printed_as_read() {
        let b = bx(&[0, 10], &[4, 10]);
        assert_eq!(b.to_string(), "[0:4, 10:20]");
        assert_eq!("0:4,10:20".parse::<NdBox>().unwrap(), b);
        assert_eq!("[0:4, 10:20]".parse::<NdBox>().unwrap(), b);
        assert_eq!("7".parse::<NdBox>().unwrap(), bx(&[7], &[1]));
        for text in ["a", "4:0", "1:2:3", "0:4,", "-1:3", "18446744073709551615"] {
            assert_eq!(text.parse::<NdBox>().unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn a_file_cannot_bring_in_a_bad_box() {
        let b = bx(&[1, 2], &[3, 4]);
        let text = serde_json::to_string(&b).unwrap();
        assert_eq!(text, r#"{"start":[1,2],"count":[3,4]}"#);
        assert_eq!(serde_json::from_str::<NdBox>(&text).unwrap(), b);
        assert!(serde_json::from_str::<NdBox>(r#"{"start":[1],"count":[3,4]}"#).is_err());
        assert!(serde_json::from_str::<NdBox>(r#"{"start":[18446744073709551615],"count":[1]}"#).is_err());
    }

    #[test]
    fn empty_boxes_are_in_everything_and_cut_nothing() {
        let empty = bx(&[5], &[0]);
        let some = bx(&[0], &[3]);
        assert!(some.contains(&empty) && empty.is_inside(&[5]) && !empty.is_inside(&[4]));
        assert_eq!(some.intersect(&empty), None);
        assert_eq!(some.subtract(&empty), vec![some.clone()]);
        assert!(empty.subtract(&some).is_empty());
        assert!(!some.contains(&NdBox::whole(&[])));
    }

    fn any_box(dimensions: usize) -> impl Strategy<Value = NdBox> {
        prop::collection::vec((0u64..6, 0u64..5), dimensions).prop_map(|v| {
            let (s, c): (Vec<u64>, Vec<u64>) = v.into_iter().unzip();
            bx(&s, &c)
        })
    }

    /// Every point of `[0, 11)^d`.
    fn points(dimensions: usize) -> Vec<Vec<u64>> {
        let mut all = vec![vec![]];
        for _ in 0..dimensions {
            all = all.into_iter().flat_map(|p| (0..11).map(move |x| [p.clone(), vec![x]].concat())).collect();
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn the_algebra_agrees_with_points(
            (a, b) in (0usize..4).prop_flat_map(|d| (any_box(d), any_box(d)))
        ) {
            let both = a.intersect(&b);
            let parts = a.subtract(&b);
            prop_assert!(parts.len() <= 2 * a.dimensions().max(1));
            let mut inside_all = true;
            for p in points(a.dimensions()) {
                let (in_a, in_b) = (a.contains_point(&p), b.contains_point(&p));
                prop_assert_eq!(in_a && in_b, both.as_ref().is_some_and(|x| x.contains_point(&p)));
                let holders = parts.iter().filter(|x| x.contains_point(&p)).count();
                prop_assert_eq!(usize::from(in_a && !in_b), holders, "disjoint and complete");
                inside_all &= !in_b || in_a;
            }
            prop_assert_eq!(a.contains(&b), inside_all);
            prop_assert_eq!(a.to_string().parse::<NdBox>().unwrap(), a);
        }
    }
}
