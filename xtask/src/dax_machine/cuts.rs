//! Losses of power: programs put versions, save checkpoints and run the demo with a durable channel on DAX file systems
//! until the emulator is killed at a random moment; booted again on the same NVDIMMs they have to find all that they
//! had
//! said.
//!
//! What the programs had said is known on this side, from the serial line. A cut counts when all of them had
//! acknowledged something since the boot and were at work on more: it falls between the first commit and the last one.

use super::boot::{End, Machine, Shape, Wish};
use super::guest::Guest;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest time between the first acknowledgements of a boot and its cut.
const LONGEST_MS: u64 = 1500;

const DEMO: &str = include_str!("demo.sh");

/// The demo's deck, and its steps: more than all cuts leave time for.
const DECK: &str = "examples/gray-scott/deck-small.toml";
const STEPS: [&str; 4] = ["--steps", "8000", "--output-every", "20"];

/// Who speaks on the serial line, in the order of the columns.
const SPEAKERS: [&str; 3] = ["versions", "steps", "demo"];

/// What one program had said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Said {
    /// Newest acknowledged number.
    last: Option<u64>,
    /// How many were acknowledged since the boot.
    since_boot: u64,
    /// Newest number that was back at the boot.
    back: Option<u64>,
    /// It has looked for what was promised.
    looked: bool,
}

/// All programs, as heard on the serial line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Heard {
    said: [Said; SPEAKERS.len()],
    wrong: Option<String>,
}

impl Heard {
    /// Takes a line in.
    fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let (Some(who), Some(what)) = (words.next(), words.next()) else { return };
        let speaker = SPEAKERS.iter().position(|name| who.strip_suffix(':') == Some(name));
        match (speaker, what) {
            (Some(_), "wrong") => drop(self.wrong.get_or_insert_with(|| line.to_string())),
            (None, _) if who == "dax-machine:" => {
                self.wrong.get_or_insert_with(|| line.to_string());
            }
            (Some(speaker), "back" | "version" | "step") => {
                let number = words.next().unwrap_or_default().rsplit("..").next();
                let number: Option<u64> = number.and_then(|text| text.parse().ok());
                let said = &mut self.said[speaker];
                match what {
                    "back" => (said.back, said.looked) = (number, true),
                    _ => (said.last, said.since_boot) = (number, said.since_boot + 1),
                }
            }
            _ => {}
        }
    }

    fn all_at_work(&self) -> bool {
        self.said.iter().all(|said| said.since_boot > 0)
    }

    fn all_looked(&self) -> bool {
        self.said.iter().all(|said| said.looked)
    }
}

/// Cuts the power `cuts` times and says of each where it fell.
///
/// # Errors
/// What was not back, or why the machine did not run.
pub fn check(root: &Path, guest: &Guest, images: &Path, cuts: u32, eadr: bool) -> Result<(), String> {
    let shapes = [Shape::Ext4, Shape::Xfs];
    let machine = Machine { shapes, eadr, images: images.to_owned(), limit: Duration::from_secs(400) };
    let mut random = seed();
    println!(
        "   seed {random:#x}; power cut at random up to {LONGEST_MS} ms behind the first acknowledgements of all"
    );
    println!("   of each program: the last number acknowledged, the last one back; commits since the boot");
    let columns = SPEAKERS.map(|name| format!("{name:>24}")).concat();
    println!("   {:>4}  {:>7}{columns}", "cut", "ms");
    let reference = reference(root, images)?;
    let (mut before, mut counted) = (Heard::default(), 0);
    // One boot more than cuts: the last one only looks.
    for boot in 0..=cuts + cuts / 4 {
        let last = counted == cuts;
        random = next(random);
        let after = Duration::from_millis(random % LONGEST_MS);
        let mut heard = Heard::default();
        let ended = machine.run(guest, root, &command(root, &reference, &before), &mut |line| {
            heard.line(line);
            match (heard.wrong.is_some() || last && heard.all_looked(), heard.all_at_work()) {
                (true, _) => Wish::CutIn(Duration::ZERO),
                (false, true) => Wish::CutIn(after),
                (false, false) => Wish::On,
            }
        })?;
        if let Some(wrong) = heard.wrong {
            return Err(format!("boot {boot}, after {counted} cuts: {wrong}"));
        }
        if let End::Status(status) = ended {
            return Err(format!("boot {boot}: the programs ended by themselves, with status {status}"));
        }
        if boot > 0 {
            println!("   {counted:>4}  {:>7}{}", "", columns_of(&before, &heard));
        }
        if last {
            println!("   {counted} cuts, everything that was acknowledged was back after each");
            return Ok(());
        }
        counted += u32::from(heard.all_at_work());
        println!("   {:>4}  {:>7}", "", after.as_millis());
        // What a boot did not come to say again stands as it was.
        let newer = |at: usize| Said {
            last: heard.said[at].last.max(before.said[at].last).max(heard.said[at].back),
            ..heard.said[at]
        };
        before = Heard { said: std::array::from_fn(newer), wrong: None };
    }
    Err(format!("only {counted} of {cuts} cuts fell between two acknowledgements of all programs"))
}

/// What was acknowledged before a cut and what was back after it.
fn columns_of(before: &Heard, after: &Heard) -> String {
    let text = |number: Option<u64>| number.map_or("none".into(), |number| number.to_string());
    let column = |(before, after): (&Said, &Said)| {
        let shown = format!("{}, {}; {}", text(before.last), text(after.back), before.since_boot);
        format!("{shown:>24}")
    };
    before.said.iter().zip(&after.said).map(column).collect()
}

/// A folder with what the demo's versions hold, computed here.
fn reference(root: &Path, images: &Path) -> Result<PathBuf, String> {
    let folder = images.join("reference");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let forebay = |arguments: &[&str], output: Stdio| {
        let mut command = Command::new(built(root).join("forebay"));
        command.args(arguments).env("FOREBAY_DIR", &folder).stdin(Stdio::null()).stdout(output);
        let kept = r#"{"tier": "file", "quota": "256MiB", "retention": "forever"}"#;
        command.env("FOREBAY_CHANNEL_GS", kept).current_dir(root);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("forebay {}: {status}", arguments.join(" "))),
            Err(e) => Err(format!("forebay: {e}")),
        }
    };
    let demo = [&["app", "gray-scott", "--deck", DECK], &STEPS[..]].concat();
    forebay(&demo, Stdio::null())?;
    for name in ["U", "V"] {
        let path = folder.join(name);
        let file = std::fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        forebay(&["cat", "gs", name, "--version", "all", "--format", "raw"], file.into())?;
    }
    forebay(&["clean", "gs"], Stdio::null())?;
    Ok(folder)
}

/// All programs side by side, each line with the name of who said it.
fn command(root: &Path, reference: &Path, before: &Heard) -> Vec<String> {
    let [versions, steps, demo] = before.said.map(|said| said.last.map_or("none".into(), |n| n.to_string()));
    let example = |name: &str| built(root).join("examples").join(name).display().to_string();
    let from = before.said[2].last.map_or(0, |last| last + 1);
    let script = format!(
        "built='{}' deck='{}' steps='{}' reference='{}' acknowledged={demo} from={from}\n\
         speak() {{ sed -u \"s/^/$1: /\"; }}\n\
         {{ {} \"$NVDIMM0/versions\" epoch {versions} | speak versions; }} &\n\
         {{ {} \"$NVDIMM1/steps\" {steps} | speak steps; }} &\n\
         {{\n{DEMO}}} 2>&1 | speak demo &\nwait",
        built(root).display(),
        root.join(DECK).display(),
        STEPS.join(" "),
        reference.display(),
        example("versions_until_cut"),
        example("checkpoints_until_cut"),
    );
    vec!["sh".into(), "-c".into(), script]
}

/// Where programs lie that were built.
pub fn built(root: &Path) -> PathBuf {
    super::guest::build_folder(root).join("release")
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |time| time.as_nanos() as u64) | 1
}

/// The next number of a xorshift sequence (Marsaglia 2003).
fn next(mut number: u64) -> u64 {
    number ^= number << 13;
    number ^= number >> 7;
    number ^ number << 17
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_was_promised() {
        let mut heard = Heard::default();
        for line in ["versions: back 3..10", "steps: back none", "steps: step 0", "noise", "demo: warning: x"]
        {
            heard.line(line);
        }
        let [versions, steps, demo] = heard.said;
        assert_eq!((versions.back, versions.looked), (Some(10), true));
        assert_eq!((steps.back, steps.looked, steps.last), (None, true, Some(0)));
        assert!(demo == Said::default() && !heard.all_at_work() && !heard.all_looked());
        assert!(heard.wrong.is_none());
        heard.line("versions: version 11");
        heard.line("demo: back 4..4");
        assert!(heard.all_looked() && !heard.all_at_work(), "the demo has acknowledged nothing yet");
        heard.line("demo: version 5");
        assert!(heard.all_at_work() && heard.said[0].last == Some(11));
        heard.line("steps: wrong step 4 came back, acknowledged was 5");
        heard.line("steps: wrong again");
        assert_eq!(heard.wrong.as_deref(), Some("steps: wrong step 4 came back, acknowledged was 5"));
        heard = Heard::default();
        heard.line("dax-machine: no files of the host");
        assert!(heard.wrong.is_some());
    }
}
