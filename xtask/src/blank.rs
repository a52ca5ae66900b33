//! Rust source with every comment, string and character literal blanked out, line structure kept.
//!
//! The rules of `tidy` look for words and braces in code; after blanking they need not know the grammar of
//! literals. This is a scanner of characters, not a parser: it never fails, whatever the text.

/// The text with comments and the insides of literals replaced by spaces; newlines stay where they are.
pub fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end > at {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `at` itself when none begins there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match (chars[at], next) {
        ('/', Some('/')) => chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| at + n),
        ('/', Some('*')) => block_comment_end(chars, at),
        ('"', _) => string_end(chars, at + 1),
        ('r', Some('"' | '#')) if !follows_word(chars, at) => raw_string_end(chars, at + 1).unwrap_or(at),
        ('b', Some('r')) if !follows_word(chars, at) => raw_string_end(chars, at + 2).unwrap_or(at),
        ('\'', _) => character_end(chars, at),
        _ => at,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    // `br"…"` is one literal: the b in front of the r belongs to it.
    let before = at.checked_sub(1).map(|i| chars[i]);
    before.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 2),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

/// `at` is the place of the first `#` or of the quote.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at.min(chars.len())..].iter().take_while(|c| **c == '#').count();
    if chars.get(at + hashes) != Some(&'"') {
        return None;
    }
    let mut i = at + hashes + 1;
    while i < chars.len() {
        if chars[i] == '"' && chars[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes {
            return Some(i + 1 + hashes);
        }
        i += 1;
    }
    Some(chars.len())
}

/// A quote begins a character (`'x'`, `'\n'`, `'\u{1F600}'`) or a lifetime (`'a`), which is left alone.
fn character_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            let close = chars.iter().enumerate().skip(at + 3).take(12).find(|(_, c)| **c == '\'');
            close.map_or(at, |(i, _)| i + 1)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_go_and_lines_stay() {
        let text =
            "let a = \"{ // no\"; // gone {\n/* { /* } */ */ let b = '{'; let c: &'a str = r#\"}\"}\"#;\n\
            let d = b'\\'';";
        let out = blank(text);
        assert_eq!(out.lines().count(), text.lines().count());
        assert!(!out.contains('{') && !out.contains('}'), "{out}");
        assert!(out.contains("let b =") && out.contains("&'a str") && out.contains("let d"), "{out}");
    }

    #[test]
    fn unfinished_literals_do_not_panic() {
        for text in ["\"abc", "r#\"abc", "/* abc", "'\\", "b", "r", "br#", "'", "\"\\"] {
            assert_eq!(blank(text).lines().count(), text.lines().count(), "{text}");
        }
    }

    #[test]
    fn words_that_end_in_r_are_not_raw_strings() {
        assert_eq!(blank("for\"x\" y"), "for    y");
    }
}
