//! What every page is made of: the document around it, sections, tables, legends.
//!
//! Guarantees: a page is one file that loads nothing from outside, in UTF-8; text cannot break it, since what is no
//! [`Markup`] is escaped. Pictures are markup that `drawing` makes.

use maud::{html, Markup, PreEscaped, DOCTYPE};

/// A document of `body`; `style` is behind what all pages share, `script` runs at its end.
pub fn whole(title: &str, style: &str, body: &Markup, script: Option<&str>) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) (PreEscaped(style)) }
            }
            body {
                (body)
                @if let Some(script) = script { script { (PreEscaped(script)) } }
            }
        }
        "\n"
    };
    // Control characters of a file are not allowed in a page.
    page.0.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}

/// A section with a sentence that says what it shows, if there is one.
pub fn section(id: &str, title: &str, what: &str, body: &Markup) -> Markup {
    html! {
        section id=(id) {
            h2 { (title) }
            @if !what.is_empty() { p.what { (what) } }
            (body)
        }
    }
}

/// A legend of (style, name) pairs.
pub fn legend<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Markup {
    html! {
        div.legend { @for (style, name) in entries { span { i class=(style) {} (name) } } }
    }
}

/// A table; a title that starts with `#` is of numbers, `numbers` of where they come from.
pub fn table<const N: usize>(titles: [&str; N], rows: &[[Markup; N]]) -> Markup {
    columns(&(0..N).collect::<Vec<_>>(), titles, rows)
}

/// Some columns of a table.
pub fn columns<const N: usize>(shown: &[usize], titles: [&str; N], rows: &[[Markup; N]]) -> Markup {
    let of_numbers = |column: usize| titles[column].starts_with('#').then_some("n");
    let class = |column: usize| of_numbers(column).or((titles[column] == "numbers").then_some("wide"));
    html! {
        div.scroll {
            table {
                tr { @for &at in shown { th class=[of_numbers(at)] { (titles[at].trim_start_matches('#')) } } }
                @for row in rows {
                    tr { @for &at in shown { td class=[class(at)] { (row[at]) } } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_the_page() {
        let page = whole("</title>", "", &section("x", "<a href='x'>&\"\u{1b}", "", &html! {}), None);
        assert!(page.contains("<title>&lt;/title&gt;</title>"), "{page}");
        assert!(page.contains("<h2>&lt;a href='x'&gt;&amp;&quot;\u{fffd}</h2>"), "{page}");
    }
}
