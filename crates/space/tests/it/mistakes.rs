//! The same wrong calls on both kinds of channels: what is said of a fault does not depend on what carries the data.

use crate::support::{ranked, Root};
use forebay_space::{
    Description, Dtype, Error, ExecutionMode, Kind, Mechanism, Mode, NdBox, OpenOptions, Reader, Result,
    Retention, Writer,
};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(30);

/// What each wrong call was answered with, names and times left out.
struct Said {
    root: Root,
    channel: Mechanism,
    answers: Vec<(&'static str, Kind, String)>,
}

impl Said {
    fn options(&self, rank: u32, size: u32) -> OpenOptions {
        OpenOptions { channel: self.channel, timeout: SHORT, mode: Mode::Write, ..ranked(rank, size) }
    }

    fn writer(&self, name: &str, options: &OpenOptions) -> Writer {
        Writer::open(&self.root.name(name), options).unwrap()
    }

    fn reader(&self, name: &str, options: &OpenOptions) -> Reader {
        let options = OpenOptions { component: Some("reader".into()), ..options.clone() };
        Reader::open(&self.root.name(name), &options).unwrap()
    }

    fn note<T>(&mut self, call: &'static str, answer: Result<T>) {
        let error: Error = answer.err().unwrap_or_else(|| panic!("{call} on {} is no error", self.channel));
        let carrier = if self.channel == Mechanism::Space { "space" } else { "channel" };
        let root = self.root.name("");
        let text = error.to_string().replace(&format!("{carrier} {root}"), "NAME ").replace(&root, "");
        let since =
            |part: &str| part.split_once(" s)").map_or(part.to_string(), |(_, rest)| rest.to_string());
        let parts: Vec<String> = text
            .split(", since ")
            .enumerate()
            .map(|(i, p)| if i > 0 { since(p) } else { p.into() })
            .collect();
        self.answers.push((call, error.kind(), parts.join(")")));
    }
}

fn put(w: &mut Writer, value: u64) {
    w.begin_step().unwrap();
    w.put_array("v", &[1], &[0], &[1], &[value]).unwrap();
    w.end_step().unwrap();
}

fn wrong_puts(said: &mut Said) {
    let options = said.options(0, 1);
    let mut w = said.writer("puts", &options);
    said.note("put without a step", w.put_array("x", &[1], &[0], &[1], &[1u8]));
    said.note("reserve without a step", w.reserve("x", Dtype::U8, &[1], &[0], &[1]));
    said.note("describe without a step", w.describe("x", Description::default()));
    said.note("end without a step", w.end_step());
    said.note("a version too far", w.begin_version(3));
    w.begin_step().unwrap();
    said.note("begin twice", w.begin_step());
    said.note("resume in a step", w.resume());
    said.note("outside", w.put_array("x", &[4], &[3], &[2], &[1u8, 2]));
    said.note("far outside", w.put_array("x", &[4], &[u64::MAX], &[2], &[1u8, 2]));
    said.note("a short buffer", w.put_array("x", &[4], &[0], &[2], &[1u8]));
    said.note("no name", w.put_array("", &[1], &[0], &[1], &[1u8]));
    said.note("a reserved name", w.put_array(".forebay/x", &[1], &[0], &[1], &[1u8]));
    said.note("other dimensions", w.put_array("x", &[4], &[0, 0], &[1, 1], &[1u8]));
    w.put_array("x", &[4], &[0], &[2], &[1u8, 2]).unwrap();
    said.note("another shape", w.put_array("x", &[5], &[2], &[2], &[3u8, 4]));
    said.note("another dtype", w.put_array("x", &[4], &[2], &[2], &[3i8, 4]));
    said.note("reserve with another shape", w.reserve("x", Dtype::U8, &[2, 2], &[0, 0], &[1, 1]));
    let parts: [(&str, &[u8]); 2] = [("y", &[1]), ("x", &[2])];
    let pieces = parts.map(|(name, data)| {
        (forebay_space::Piece { name, dtype: Dtype::U8, shape: &[1], start: &[0], count: &[1] }, data)
    });
    said.note("another shape among many", w.put_each(pieces.into_iter(), &mut 0));
    let [early, late] = ["r", "s"].map(|name| w.reserve(name, Dtype::U8, &[1], &[0], &[1]).unwrap());
    w.abort_step().unwrap();
    said.note("commit after the step", w.commit(early));
    w.begin_step().unwrap();
    said.note("commit in another step of this version", w.commit(late));
    w.put_array("x", &[1], &[0], &[1], &[1u8]).unwrap();
    w.end_step().unwrap();
    said.note("a version again", w.begin_version(0));
    w.close().unwrap();
    let mut w = said.writer("puts", &OpenOptions { mode: Mode::Append, ..options });
    assert!(!w.begin_version(0).unwrap());
    said.note("a short buffer in a skipped step", w.put_array("x", &[4], &[0], &[2], &[1u8]));
    said.note("outside in a skipped step", w.reserve("x", Dtype::U8, &[1], &[1], &[1]));
    said.note("resume in a skipped step", w.resume());
}

fn wrong_gets(said: &mut Said) {
    let options = said.options(0, 1);
    let mut w = said.writer("gets", &options);
    let mut r = said.reader("gets", &options);
    said.note("end before begin", r.end_step());
    said.note("get without a step", r.get("x", None, &mut []));
    said.note("array without a step", r.array("x"));
    said.note("names without a step", r.names());
    said.note("view without a step", r.view("x", None));
    said.note("look without a step", r.with_object("x", 8, |_, _, _| ()));
    said.note("begin in vain", r.begin_step(Some(SHORT)));
    said.note("wait in vain", r.wait(2, Some(SHORT)));
    said.note("open what is to come", r.open_version(0));
    w.begin_step().unwrap();
    w.put_array("pressure", &[10], &[0], &[4], &[1u8, 2, 3, 4]).unwrap();
    w.put_array("pressure", &[10], &[6], &[4], &[7u8, 8, 9, 10]).unwrap();
    w.end_step().unwrap();
    w.begin_step().unwrap();
    w.end_step().unwrap();
    r.begin_step(None).unwrap();
    said.note("begin again", r.begin_step(None));
    said.note("nearly a name", r.array("presure"));
    said.note("no name of it", r.array("q"));
    let [outside, split] = [5, 3].map(|start| NdBox::new(&[start], &[6]).unwrap());
    said.note("a box outside", r.get("pressure", Some(&outside), &mut [0; 6]));
    said.note("a gap", r.get("pressure", Some(&split), &mut [0; 6]));
    said.note("a wrong buffer", r.get("pressure", None, &mut [0; 9]));
    said.note("a wrong dtype", r.get_array::<f64>("pressure", None));
    said.note("a view of more", r.view("pressure", None));
    said.note("many", r.get_each([("pressure", &mut [0; 9][..])].into_iter(), &mut 0));
    let mut one = r.open_version(1).unwrap();
    said.note("a handle of one version", one.begin_step(None));
    said.note("an empty version", one.array("pressure"));
    one.end_step().unwrap();
    assert_eq!(one.begin_step(None).unwrap(), None);
    said.note("its end again", one.end_step());
    r.end_step().unwrap();
    w.close().unwrap();
    said.note("what never comes", r.wait(9, Some(SHORT)));
    let never = r.open_version(9);
    let hint = never.as_ref().err().and_then(Error::hint_text);
    assert!(hint.is_some_and(|hint| hint.contains("no further version")), "{hint:?}");
    said.note("open what never comes", never);
}

fn what_is_gone(said: &mut Said) {
    let options = OpenOptions { retention: Some(Retention::Last(2)), ..said.options(0, 1) };
    let mut w = said.writer("gone", &options);
    let mut r = said.reader("gone", &said.options(0, 1));
    (0..5).for_each(|value| put(&mut w, value));
    said.note("wait for what is gone", r.wait(0, Some(SHORT)));
    said.note("open what is gone", r.open_version(1));
}

fn turns(said: &mut Said) {
    let options = OpenOptions { execution_mode: Some(ExecutionMode::Serial), ..said.options(0, 1) };
    let mut w = said.writer("serial", &options);
    let mut r = said.reader("serial", &options);
    put(&mut w, 0);
    said.note("not before the end", r.begin_step(Some(SHORT)));
    let options = OpenOptions { execution_mode: Some(ExecutionMode::SerialPerStep), ..said.options(0, 1) };
    let mut w = said.writer("turns", &options);
    let _r = said.reader("turns", &options);
    put(&mut w, 0);
    said.note("not before the readers", w.begin_step());
}

fn losses(said: &mut Said) {
    let options = |said: &Said, rank| said.options(rank, 2);
    let mut first = said.writer("lost", &options(said, 0));
    let mut second = said.writer("lost", &options(said, 1));
    let mut r = said.reader("lost", &said.options(0, 1));
    put(&mut first, 0);
    said.note("one is missing", r.begin_step(Some(SHORT)));
    put(&mut second, 0);
    first.abandon();
    said.note("peers", second.check_peers());
    said.note("begin without a peer", second.begin_step());
    r.begin_step(None).unwrap();
    r.end_step().unwrap();
    said.note("read without a writer", r.begin_step(None));
    let _first = said.writer("lost", &OpenOptions { mode: Mode::Append, ..options(said, 0) });
    said.note("begin when fenced", second.begin_step());
    said.note("peers when fenced", second.check_peers());
    forebay_space::destroy(&said.root.name("lost")).unwrap();
    said.note("read what was removed", r.begin_step(Some(SHORT)));
}

#[test]
fn a_fault_is_the_same_error_on_both_kinds_of_channels() {
    let [space, files] = [Mechanism::Space, Mechanism::Files].map(|channel| {
        let mut said = Said { root: Root::in_memory(), channel, answers: Vec::new() };
        [wrong_puts, wrong_gets, what_is_gone, turns, losses].iter().for_each(|calls| calls(&mut said));
        said.answers
    });
    let differ: Vec<_> = space.iter().zip(&files).filter(|(a, b)| a != b).collect();
    assert!(differ.is_empty(), "{differ:#?}");
    assert_eq!(space.len(), files.len());
}
