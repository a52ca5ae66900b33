//! A perceptually uniform colour map: equal steps of the value look like equal steps of the colour, also in
//! grey print and to most colour-blind readers.

/// The nine colours that `viridis(9)` of the R package viridisLite gives: the map "viridis" of S. van der
/// Walt and N. Smith (made for matplotlib, public domain, CC0) at the values 0, 1/8, …, 1. Between them
/// colours are interpolated linearly; the largest deviation from the full table is a few steps of 256 and not
/// visible.
const VIRIDIS: [[u8; 3]; 9] = [
    [0x44, 0x01, 0x54],
    [0x47, 0x2D, 0x7B],
    [0x3B, 0x52, 0x8B],
    [0x2C, 0x72, 0x8E],
    [0x21, 0x90, 0x8C],
    [0x27, 0xAD, 0x81],
    [0x5D, 0xC8, 0x63],
    [0xAA, 0xDC, 0x32],
    [0xFD, 0xE7, 0x25],
];

/// Name of the map, for the index of slices.
pub const NAME: &str = "viridis";

/// The map as the 256 entries of a PNG palette, three bytes each.
pub fn palette() -> Vec<u8> {
    (0..=255).flat_map(|i| colour(f64::from(i) / 255.0)).collect()
}

/// The colour of a value in [0, 1].
fn colour(value: f64) -> [u8; 3] {
    let at = value * (VIRIDIS.len() - 1) as f64;
    let left = (at as usize).min(VIRIDIS.len() - 2);
    let t = at - left as f64;
    [0, 1, 2].map(|c| {
        let (a, b) = (f64::from(VIRIDIS[left][c]), f64::from(VIRIDIS[left + 1][c]));
        (a + t * (b - a)).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_brightness() {
        let palette = palette();
        assert_eq!(palette.len(), 768);
        assert_eq!(palette[..3], VIRIDIS[0]);
        assert_eq!(palette[765..], VIRIDIS[8]);
        // Rec. 709 luma of the encoded values: must grow all the way.
        let luma: Vec<f64> = palette
            .chunks(3)
            .map(|c| 0.2126 * f64::from(c[0]) + 0.7152 * f64::from(c[1]) + 0.0722 * f64::from(c[2]))
            .collect();
        assert!(luma.windows(8).all(|w| w[7] > w[0]));
    }
}
