//! Whether the versions that the ranks of a reader group were given are the right ones, from their merged notes.
//!
//! Guarantees: what is counted as missed or as given twice is a defect, whatever happened between two notes: a time is
//! taken before what ends (a kill, `close`) and after what begins (`open`). What holds for each rank:
//! - within one process, after a version comes the next one;
//! - a rank that comes again while another has lived without a break goes on behind the last version that it ended;
//!   the one whose `end_step` was called and had not returned may come again;
//! - where all ranks were gone at some moment in between, the group may have come again as a whole: then a rank may
//!   find versions that it had ended, but none that all ranks had ended at that moment;
//! - at the end of the stream each rank has ended all versions.
//!
//! A rank for which the group came again as a whole stands at its start from then on, whatever it had ended before: the
//! ranks read the versions anew together.

/// What happened to a version in one process, in the order of the notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// `open` has returned.
    Opened,
    Begun(u64),
    /// `end_step` is called.
    Ends(u64),
    /// `end_step` has returned.
    Ended(u64),
    /// The stream is at its end.
    Over,
    /// `close` is called.
    Closes,
}

/// A note and when it was written, in nanoseconds of the clock that all processes have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    pub at_ns: u64,
    pub note: Note,
}

impl Noted {
    pub fn line(self) -> String {
        let (word, version) = match self.note {
            Note::Opened => ("opened", 0),
            Note::Begun(version) => ("begun", version),
            Note::Ends(version) => ("ends", version),
            Note::Ended(version) => ("ended", version),
            Note::Over => ("over", 0),
            Note::Closes => ("closes", 0),
        };
        format!("{} {word} {version}\n", self.at_ns)
    }

    /// None: the line was cut by the kill.
    fn of_line(line: &str) -> Option<Noted> {
        let mut words = line.strip_suffix('\n')?.split(' ');
        let at_ns = words.next()?.parse().ok()?;
        let (word, version) = (words.next()?, words.next()?.parse().ok()?);
        let note = match word {
            "opened" => Note::Opened,
            "begun" => Note::Begun(version),
            "ends" => Note::Ends(version),
            "ended" => Note::Ended(version),
            "over" => Note::Over,
            _ => Note::Closes,
        };
        Some(Noted { at_ns, note })
    }
}

/// One process of a rank.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub notes: Vec<Noted>,
    /// A moment before it was killed, if it was.
    pub killed_ns: Option<u64>,
}

impl Life {
    pub fn of_text(text: &str, killed_ns: Option<u64>) -> Life {
        Life { notes: text.split_inclusive('\n').filter_map(Noted::of_line).collect(), killed_ns }
    }

    pub fn is_over(&self) -> bool {
        self.notes.iter().any(|noted| noted.note == Note::Over)
    }

    /// Whether it may have ended all versions below this one.
    pub fn may_have_ended(&self, version: u64) -> bool {
        self.notes.iter().any(|noted| matches!(noted.note, Note::Ends(last) if last + 1 >= version))
    }

    fn opened_ns(&self) -> Option<u64> {
        self.notes.iter().find(|noted| noted.note == Note::Opened).map(|noted| noted.at_ns)
    }

    /// When it was given its first version.
    fn first_ns(&self) -> u64 {
        let first = self.notes.iter().find(|noted| matches!(noted.note, Note::Begun(_)));
        first.map_or(0, |noted| noted.at_ns)
    }

    /// It lived and had the space open at least until then.
    fn last_ns(&self) -> u64 {
        let closes = self.notes.iter().find(|noted| noted.note == Note::Closes).map(|noted| noted.at_ns);
        let last = self.notes.last().map(|noted| noted.at_ns);
        closes.or(self.killed_ns).or(last).unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub read: u64,
    /// Versions that a rank had begun, or was ending, when it was gone, and was given again.
    pub again: u64,
    /// Ranks that found versions that not all ranks had ended when all were gone.
    pub together: u64,
    pub missed: u64,
    pub twice: u64,
}

/// The first version that a rank has not ended, as far as the notes say: between the two.
#[derive(Clone, Copy, Default)]
struct Cursor {
    low: u64,
    high: u64,
}

/// A rank at a moment.
#[derive(Default)]
struct Rank {
    cursor: Cursor,
    /// The cursor's lower end since each of these moments.
    lows: Vec<(u64, u64)>,
    /// Until when its last process lived that had opened the space.
    gone_ns: u64,
    /// A version was begun and not ended.
    has_begun: bool,
}

impl Rank {
    fn stand_at(&mut self, at_ns: u64, low: u64, high: u64) {
        self.cursor = Cursor { low, high };
        self.lows.push((at_ns, low));
    }

    /// The least that it had ended at any moment between the two times.
    fn lowest(&self, from_ns: u64, until_ns: u64) -> u64 {
        let before = self.lows.iter().rfind(|(at_ns, _)| *at_ns <= from_ns).map_or(0, |(_, low)| *low);
        let within = self.lows.iter().filter(|(at_ns, _)| (from_ns..=until_ns).contains(at_ns));
        within.map(|(_, low)| *low).min().unwrap_or(u64::MAX).min(before)
    }
}

/// Compares what each rank was given with what it, and the others, had ended. `end` versions were written.
pub fn judge(lives: &[Vec<Life>], end: u64) -> Verdict {
    let mut verdict = Verdict::default();
    let mut ranks: Vec<Rank> = lives.iter().map(|_| Rank::default()).collect();
    let all = lives.iter().enumerate().flat_map(|(rank, lives)| lives.iter().map(move |life| (rank, life)));
    // What ends a process comes behind its notes, also where the clock has not moved on.
    let mut moments: Vec<(u64, usize, &Life, Option<Note>)> = all
        .flat_map(|(rank, life)| {
            let notes = life.notes.iter().map(move |noted| (noted.at_ns, rank, life, Some(noted.note)));
            notes.chain([(life.last_ns(), rank, life, None)])
        })
        .collect();
    moments.sort_by_key(|(at_ns, ..)| *at_ns);
    for (at_ns, rank, life, note) in moments {
        let cursor = ranks[rank].cursor;
        match note {
            Some(Note::Begun(version)) => {
                let is_first = at_ns <= life.first_ns();
                begun(
                    lives,
                    &ranks,
                    rank,
                    version,
                    is_first.then(|| life.opened_ns()).flatten(),
                    &mut verdict,
                );
                ranks[rank].stand_at(at_ns, version, version);
                ranks[rank].has_begun = true;
            }
            Some(Note::Ends(version)) => ranks[rank].stand_at(at_ns, version, version + 1),
            Some(Note::Ended(version)) => {
                ranks[rank].stand_at(at_ns, version + 1, version + 1);
                ranks[rank].has_begun = false;
                verdict.read += 1;
            }
            Some(Note::Over) => verdict.missed += end.saturating_sub(cursor.high),
            Some(Note::Opened | Note::Closes) => {}
            None => {
                if !life.notes.iter().any(|noted| matches!(noted.note, Note::Begun(_) | Note::Over)) {
                    // Where it joined, if it did, is not known.
                    let lowest = lowest_start(lives, &ranks, rank, at_ns).unwrap_or(cursor.low);
                    ranks[rank].stand_at(at_ns, lowest.min(cursor.low), cursor.high);
                }
                if life.opened_ns().is_some() {
                    ranks[rank].gone_ns = at_ns;
                }
            }
        }
    }
    assert!(lives.iter().all(|lives| lives.last().is_some_and(Life::is_over)), "the stream came to its end");
    verdict
}

/// Counts a version that a rank was given; `opened_ns` says when its process opened, where it is the first one there.
fn begun(
    lives: &[Vec<Life>],
    ranks: &[Rank],
    rank: usize,
    version: u64,
    opened_ns: Option<u64>,
    verdict: &mut Verdict,
) {
    let (cursor, has_begun) = (ranks[rank].cursor, ranks[rank].has_begun);
    if version > cursor.high {
        verdict.missed += version - cursor.high;
        println!("rank {rank}: {version} where {} is due", cursor.high);
    } else if version >= cursor.low {
        verdict.again += u64::from(has_begun && version == cursor.low);
    } else {
        let lowest = opened_ns.and_then(|opened_ns| lowest_start(lives, ranks, rank, opened_ns));
        if lowest.is_some_and(|lowest| version >= lowest) {
            verdict.together += 1;
        } else {
            verdict.twice += 1;
            println!("rank {rank}: {version} again, {} is due, or {lowest:?}", cursor.low);
        }
    }
}

/// Where a rank may stand at the lowest that joined until then: the least that any rank had ended at a moment when all
/// were gone, since this one was. None: another one lived all the time.
fn lowest_start(lives: &[Vec<Life>], ranks: &[Rank], rank: usize, joined_ns: u64) -> Option<u64> {
    let others = lives.iter().enumerate().filter(|(other, _)| *other != rank).flat_map(|(_, lives)| lives);
    let others: Vec<&Life> = others.collect();
    let mut all_gone_ns = ranks[rank].gone_ns;
    let lived_on = |from_ns: u64| {
        let there =
            others.iter().filter(|life| life.opened_ns().is_some_and(|opened_ns| opened_ns <= from_ns));
        there.map(|life| life.last_ns()).filter(|last_ns| *last_ns > from_ns).max()
    };
    while let Some(later_ns) = lived_on(all_gone_ns) {
        all_gone_ns = later_ns;
    }
    if all_gone_ns >= joined_ns {
        return None;
    }
    ranks.iter().map(|rank| rank.lowest(all_gone_ns, joined_ns)).min()
}

#[cfg(test)]
mod tests {
    use super::Note::*;
    use super::*;

    fn life(notes: &[(u64, Note)], killed_ns: Option<u64>) -> Life {
        Life {
            notes: notes.iter().map(|(at_ns, note)| Noted { at_ns: *at_ns, note: *note }).collect(),
            killed_ns,
        }
    }

    /// A process that opens at that time, reads these versions, a nanosecond a note, and is killed at its end.
    fn reads(opened_ns: u64, versions: std::ops::Range<u64>) -> Life {
        let steps = versions.flat_map(|version| [Begun(version), Ends(version), Ended(version)]);
        let notes: Vec<_> = (opened_ns..).zip(std::iter::once(Opened).chain(steps)).collect();
        let killed_ns = notes.last().map(|(at_ns, _)| at_ns + 1);
        life(&notes, killed_ns)
    }

    /// The same to the end of the stream.
    fn ends(opened_ns: u64, versions: std::ops::Range<u64>) -> Life {
        let mut life = reads(opened_ns, versions);
        let at_ns = life.killed_ns.take().expect("a kill");
        life.notes.extend([Noted { at_ns, note: Over }, Noted { at_ns: at_ns + 1, note: Closes }]);
        life
    }

    fn defects(ranks: &[Vec<Life>], end: u64) -> (u64, u64) {
        let verdict = judge(ranks, end);
        (verdict.missed, verdict.twice)
    }

    #[test]
    fn a_rank_that_goes_on_where_it_stopped_is_right() {
        assert_eq!(defects(&[vec![reads(10, 0..3), ends(100, 3..5)]], 5), (0, 0));
        let ending = life(&[(10, Opened), (11, Begun(0)), (12, Ends(0))], Some(13));
        for first in [0, 1] {
            assert_eq!(defects(&[vec![ending.clone(), ends(100, first..5)]], 5), (0, 0));
        }
    }

    #[test]
    fn a_version_that_is_left_out_or_given_again_is_found() {
        assert_eq!(defects(&[vec![reads(10, 0..3), ends(100, 4..5)]], 5), (1, 0));
        assert_eq!(defects(&[vec![reads(10, 0..3), ends(100, 2..5)]], 5), (0, 1));
        let begun = life(&[(10, Opened), (11, Begun(0))], Some(12));
        assert_eq!(defects(&[vec![begun, ends(100, 1..1)]], 1), (1, 0));
        let within = life(&[(10, Opened), (11, Begun(0)), (12, Ended(0)), (13, Begun(2)), (14, Over)], None);
        assert_eq!(defects(&[vec![within]], 0), (1, 0));
    }

    #[test]
    fn a_version_given_again_while_another_rank_lived_is_found() {
        // The other one has ended nothing, so that a group that came again as a whole would begin at 0.
        let lives_on = life(&[(5, Opened), (6, Begun(0)), (200, Ended(0)), (201, Over), (202, Closes)], None);
        let again = vec![reads(10, 0..3), ends(100, 0..1)];
        assert_eq!(defects(&[again.clone(), vec![lives_on]], 1), (0, 1));
        let dies = life(&[(5, Opened), (6, Begun(0))], Some(50));
        assert_eq!(defects(&[again.clone(), vec![dies, ends(110, 0..1)]], 1), (0, 0));
        // One that was there when the other came, and not when it went, proves nothing.
        let comes = vec![life(&[(5, Opened), (6, Begun(0))], Some(7)), ends(60, 0..1)];
        assert_eq!(defects(&[again, comes], 1), (0, 0));
    }

    #[test]
    fn a_version_that_all_ranks_had_ended_is_found() {
        let other = vec![reads(5, 0..2), ends(120, 2..4)];
        assert_eq!(defects(&[vec![reads(10, 0..4), ends(100, 2..4)], other.clone()], 4), (0, 0));
        assert_eq!(defects(&[vec![reads(10, 0..4), ends(100, 1..4)], other], 4), (0, 1));
        // What was begun anew with the whole group is not ended any more.
        let anew = life(&[(100, Opened), (101, Begun(2)), (102, Ends(2))], Some(103));
        let silent = life(&[(110, Opened)], Some(111));
        let other = vec![reads(5, 0..2), ends(120, 2..4)];
        assert_eq!(defects(&[vec![reads(10, 0..4), anew, ends(130, 2..4)], other.clone()], 4), (0, 0));
        assert_eq!(defects(&[vec![reads(10, 0..4), silent, ends(130, 2..4)], other], 4), (0, 0));
        // What the other one ended after this one was gone counts.
        let later = vec![reads(5, 0..30), ends(120, 30..30)];
        assert_eq!(defects(&[vec![reads(10, 0..4), ends(130, 3..30)], later], 30), (0, 1));
    }

    #[test]
    fn a_line_that_was_cut_is_left_out() {
        let line = Noted { at_ns: 7, note: Ended(12) }.line();
        assert_eq!(Life::of_text(&line, None).notes, [Noted { at_ns: 7, note: Ended(12) }]);
        assert!(Life::of_text(&line[..line.len() - 2], None).notes.is_empty());
    }
}
