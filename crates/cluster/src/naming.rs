//! How members of a space that stand for processes on other nodes are called, and words of options.

use forebay_config::NAME_BYTES;
use forebay_space::{Absent, Result};

use crate::message::malformed;

/// `NAME@NODE`, as long as a component's name may be: so errors and lists name the node.
pub fn stand_in_name(name: &str, node: &str) -> String {
    let cut = |text: &str, bytes: usize| {
        let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text[..end].to_string()
    };
    let node = cut(node, NAME_BYTES / 2);
    format!("{}@{node}", cut(name, NAME_BYTES - 1 - node.len()))
}

/// The policy of a group that keeps a cursor, from its word.
pub fn absent_of(word: Option<&str>) -> Result<Option<Absent>> {
    word.map(|word| word.parse().map_err(|_| malformed("unknown policy of a reader group"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_end_with_the_node() {
        assert_eq!(stand_in_name("sim", "n0"), "sim@n0");
        let long = stand_in_name(&"é".repeat(60), "n0");
        assert!(long.len() <= NAME_BYTES && long.ends_with("@n0"), "{long}");
        assert!(stand_in_name("sim", &"n".repeat(200)).len() <= NAME_BYTES);
    }
}
