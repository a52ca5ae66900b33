//! What a word that is not known was most likely meant to be: for the hints of errors.
//!
//! Guarantees: a word that is far from every candidate has none. It does not know what the words are for.

use strsim::osa_distance;

/// The candidate that `word` was most likely meant to be, if one is near enough: at most a third of the
/// letters wrong, missing, added or swapped with their neighbour, and of up to four letters one. Upper and lower case,
/// `-` and `_` are the same.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = folded(word);
    let letters = word.chars().count();
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word, &folded(candidate)), candidate))
        .filter(|(far, candidate)| *far <= distance_max(candidate.chars().count().max(letters)))
        .filter(|(far, candidate)| *far < candidate.chars().count())
        .min_by_key(|(far, _)| *far)
        .map(|(_, candidate)| candidate)
}

/// The largest distance that is near, for a word of so many letters. Two of four would make other words of them: `name`
/// is no misspelt `node`.
fn distance_max(letters: usize) -> usize {
    match letters {
        0..=4 => 1,
        _ => letters.div_ceil(3).min(4),
    }
}

/// What a reader of structured text does not know: a key, or one of the words that a value may be.
pub struct Unknown {
    /// A key, else a word.
    pub is_key: bool,
    /// It.
    pub word: String,
    /// What it was most likely meant to be, or what there is.
    pub hint: String,
}

/// Takes serde's complaint about an unknown field or variant apart; `None` for any other complaint.
pub fn unknown(message: &str) -> Option<Unknown> {
    let message = message.trim();
    let (is_key, rest) = match message.strip_prefix("unknown field `") {
        Some(rest) => (true, rest),
        None => (false, message.strip_prefix("unknown variant `")?),
    };
    let mut quoted = rest.split('`');
    let word = quoted.next().unwrap_or_default();
    // After the word the text alternates between filler and known words.
    let known: Vec<&str> = quoted.skip(1).step_by(2).collect();
    let hint = match did_you_mean(word, known.iter().copied()) {
        Some(close) => format!("did you mean {close}?"),
        None => format!("known here: {}", known.join(", ")),
    };
    Some(Unknown { is_key, word: word.to_string(), hint })
}

/// Letters for comparison: the common prefix of all variables would make each near to each.
fn folded(word: &str) -> String {
    let lower = word.to_lowercase().replace('-', "_");
    lower.strip_prefix("forebay_").unwrap_or(&lower).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_only() {
        let verbs = ["run", "report", "ls", "cat", "verify", "clean"];
        assert_eq!(did_you_mean("reprot", verbs), Some("report"));
        assert_eq!(did_you_mean("Verify", verbs), Some("verify"));
        assert_eq!(did_you_mean("celan", verbs), Some("clean"));
        assert_eq!(did_you_mean("analyse", verbs), None);
        assert_eq!(did_you_mean("xx", verbs), None);
        assert_eq!(did_you_mean("on-existing", ["on_existing"]), Some("on_existing"));
    }

    #[test]
    fn of_four_letters_one_may_be_wrong() {
        let names = ["size", "node", "rank", "tier", "run", "dir"];
        for (word, meant) in
            [("teir", "tier"), ("rnak", "rank"), ("nodes", "node"), ("sice", "size"), ("dr", "dir")]
        {
            assert_eq!(did_you_mean(word, names), Some(meant), "{word}");
        }
        for word in ["name", "link", "home", "dist", "arch"] {
            assert_eq!(did_you_mean(word, names), None, "{word}");
        }
    }
}
