//! The state of the live view: what was seen, what is selected, how it is sorted; and what keys do to it.
//!
//! Not here: looking, drawing, the terminal.

use std::cmp::Reverse;
use std::time::Duration;

use super::keys::Key;
use super::look::{Look, Seen};

/// Rows of a page of members.
const PAGE: u16 = 5;

/// What spaces are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Name.
    Name,
    /// Longest wait first.
    Waiting,
    /// Most unread versions first.
    Lag,
    /// Fullest first.
    Fill,
    /// Most bytes per second, in and out, first.
    Rate,
}

impl Sort {
    /// As on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Name => "name",
            Sort::Waiting => "waiting",
            Sort::Lag => "unread",
            Sort::Fill => "used",
            Sort::Rate => "rate",
        }
    }

    fn next(self) -> Sort {
        match self {
            Sort::Name => Sort::Waiting,
            Sort::Waiting => Sort::Lag,
            Sort::Lag => Sort::Fill,
            Sort::Fill => Sort::Rate,
            Sort::Rate => Sort::Name,
        }
    }
}

/// What a key asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing, or only another picture.
    Draw,
    /// Another look at once.
    Look,
    /// The end.
    End,
    /// To the shell and back.
    Suspend,
}

/// Node and name.
type Id = (Option<String>, String);

fn id(seen: &Seen) -> Id {
    (seen.node.clone(), seen.space.name.clone())
}

/// The live view.
pub struct View {
    /// What was seen last, sorted.
    pub look: Look,
    /// Names that were asked for; empty means all.
    pub names: Vec<String>,
    /// Index of the selected space.
    pub selected: usize,
    /// Node and name of the selected space: it stays selected while others come and go.
    selected_id: Id,
    /// What spaces are sorted by.
    pub sort: Sort,
    /// Whether looks go on.
    pub paused: bool,
    /// First line of the details that is shown; drawing keeps it in range.
    pub scroll: u16,
    /// Time between looks.
    pub interval: Duration,
    /// Whether to colour.
    pub colour: bool,
    /// Why the last look failed; what is shown is older then.
    pub trouble: Option<String>,
}

impl View {
    /// A view of this look.
    pub fn new(look: Look, names: Vec<String>, interval: Duration, colour: bool) -> View {
        let mut view = View {
            look: Look::default(),
            names,
            selected: 0,
            selected_id: Id::default(),
            sort: Sort::Name,
            paused: false,
            scroll: 0,
            interval,
            colour,
            trouble: None,
        };
        view.show(look);
        view
    }

    /// Takes a new look.
    pub fn show(&mut self, look: Look) {
        self.look = look;
        self.trouble = None;
        self.arrange();
    }

    /// The selected space.
    pub fn current(&self) -> Option<&Seen> {
        self.look.spaces.get(self.selected)
    }

    fn arrange(&mut self) {
        let sort = self.sort;
        let rate = |s: &Seen| s.in_bytes_per_s.unwrap_or(0.0) + s.out_bytes_per_s.unwrap_or(0.0);
        let spaces = &mut self.look.spaces;
        spaces.sort_by_key(|s| (s.space.name.clone(), s.node.clone()));
        match sort {
            Sort::Name => {}
            Sort::Waiting => spaces.sort_by_key(|s| Reverse(s.waits.first().map(|w| w.waited_ns))),
            Sort::Lag => spaces.sort_by_key(|s| Reverse(s.lag_versions())),
            Sort::Fill => spaces.sort_by(|a, b| b.fill().unwrap_or(0.0).total_cmp(&a.fill().unwrap_or(0.0))),
            Sort::Rate => spaces.sort_by(|a, b| rate(b).total_cmp(&rate(a))),
        }
        let found = spaces.iter().position(|s| id(s) == self.selected_id);
        let last = spaces.len().saturating_sub(1);
        // When the selected one is gone, its neighbour is next.
        self.select(found.unwrap_or(self.selected.min(last)));
    }

    fn select(&mut self, index: usize) {
        self.selected = index;
        let selected = self.current().map(id).unwrap_or_default();
        if selected != self.selected_id {
            self.scroll = 0;
            self.selected_id = selected;
        }
    }

    /// Does what a key means.
    pub fn press(&mut self, key: Key) -> Wish {
        let last = self.look.spaces.len().saturating_sub(1);
        match key {
            Key::Char('q') | Key::Control('c' | 'd') => return Wish::End,
            Key::Control('z') => return Wish::Suspend,
            Key::Up | Key::Char('k') => self.select(self.selected.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select((self.selected + 1).min(last)),
            Key::Home => self.select(0),
            Key::End => self.select(last),
            Key::PageUp | Key::Left => self.scroll = self.scroll.saturating_sub(PAGE),
            Key::PageDown | Key::Right => self.scroll = self.scroll.saturating_add(PAGE),
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
            }
            Key::Char('p' | ' ') => {
                self.paused = !self.paused;
                return if self.paused { Wish::Draw } else { Wish::Look };
            }
            Key::Char('r') => return Wish::Look,
            _ => {}
        }
        Wish::Draw
    }
}
