//! Losses of power: programs work on DAX file systems until the emulator is killed at a random moment; booted again on
//! the same NVDIMMs they have to find all that they had said.
//!
//! In turn it is a program that puts versions beside one that saves checkpoints, and the demo: a simulation on two
//! ranks coupled with its analysis, run by `forebay run` through a durable channel, and after each cut again.
//! What the programs had said is known on this side, from the serial line. A cut counts when all programs of the turn
//! had acknowledged something since the boot and were at work on more: it falls between the first and the last commit.

use super::boot::{End, Machine, Shape, Wish};
use super::guest::Guest;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest time between the first acknowledgements of a boot and its cut.
const LONGEST_MS: u64 = 1500;

const DEMO: &str = include_str!("demo.sh");

/// The demo's deck. A version every step, so that a simulation that begins anew is soon where it was cut.
const DECK: &str = "examples/gray-scott/deck-small.toml";
/// More than all cuts leave time for.
const STEPS: u64 = 2000;
/// Versions that the demo's channel keeps.
const KEPT: u64 = 32;

/// Who speaks on the serial line.
const SPEAKERS: [&str; 3] = ["versions", "steps", "demo"];

/// What runs in a boot, by its places in [`SPEAKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Pair,
    Demo,
    /// The last boot: all look, none needs to go on.
    All,
}

impl Turn {
    /// Whose turn it is behind so many cuts.
    fn after(counted: u32, cuts: u32) -> Turn {
        match counted {
            _ if counted == cuts => Turn::All,
            _ if counted % 2 == 1 => Turn::Demo,
            _ => Turn::Pair,
        }
    }

    fn has(self, speaker: usize) -> bool {
        match self {
            Turn::Pair => speaker < 2,
            Turn::Demo => speaker == 2,
            Turn::All => true,
        }
    }

    /// Whether `all` holds for each whose turn it is.
    fn every(self, heard: &Heard, all: impl Fn(&Said) -> bool) -> bool {
        heard.said.iter().enumerate().all(|(speaker, said)| !self.has(speaker) || all(said))
    }
}

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

    /// What stands after another boot: who did not come to say more stands as it was.
    fn and_then(&self, later: &Heard) -> Heard {
        let newer = |at: usize| {
            let (old, now) = (self.said[at], later.said[at]);
            Said { last: now.last.max(old.last).max(now.back), ..now }
        };
        Heard { said: std::array::from_fn(newer), wrong: None }
    }
}

/// Cuts the power `cuts` times and says of each where it fell.
///
/// # Errors
/// What was not back, or why the machine did not run.
pub fn check(root: &Path, guest: &Guest, images: &Path, cuts: u32, eadr: bool) -> Result<(), String> {
    let shapes = [Shape::Ext4, Shape::Xfs];
    let machine = Machine { shapes, eadr, images: images.to_owned(), limit: Duration::from_secs(400) };
    let reference = reference(root, images)?;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    println!(
        "   seed {seed:#x}; power cut at random up to {LONGEST_MS} ms behind the first acknowledgements"
    );
    let (mut before, mut counted, mut of_demo) = (Heard::default(), 0, 0);
    // One boot more than cuts: the last one only looks.
    for boot in 0..=cuts + cuts / 4 + 1 {
        let turn = Turn::after(counted, cuts);
        let after = Duration::from_millis(random.u64(..LONGEST_MS));
        let mut heard = Heard::default();
        let ended = machine.run(guest, root, &command(root, &reference, &before, turn), &mut |line| {
            heard.line(line);
            let is_done = turn == Turn::All && turn.every(&heard, |said| said.looked);
            match (heard.wrong.is_some() || is_done, turn.every(&heard, |said| said.since_boot > 0)) {
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
        if turn == Turn::All {
            println!("   at the end{}", columns(turn, &before, &heard, false));
            println!(
                "   {counted} cuts, {of_demo} of them of the demo; everything that was acknowledged was back after each"
            );
            return Ok(());
        }
        let counts = turn.every(&heard, |said| said.since_boot > 0);
        counted += u32::from(counts);
        of_demo += u32::from(counts && turn == Turn::Demo);
        let number = if counts { counted.to_string() } else { "-".to_string() };
        println!("   {number:>4}  {:>5} ms{}", after.as_millis(), columns(turn, &before, &heard, true));
        before = before.and_then(&heard);
    }
    Err(format!("only {counted} of {cuts} cuts fell between two acknowledgements"))
}

/// Of each program in its turn what was promised before the boot and what was back, and what it came to say until the
/// cut.
fn columns(turn: Turn, before: &Heard, heard: &Heard, is_cut: bool) -> String {
    let text = |number: Option<u64>| number.map_or("none".into(), |number| number.to_string());
    let mut all = String::new();
    for (speaker, name) in SPEAKERS.iter().enumerate().filter(|(speaker, _)| turn.has(*speaker)) {
        let (promised, now) = (before.said[speaker].last, heard.said[speaker]);
        all.push_str(&format!("   {name}: promised {}, back {}", text(promised), text(now.back)));
        if is_cut {
            all.push_str(&format!(", cut after {} (commit {})", text(now.last), now.since_boot));
        }
    }
    all
}

/// A folder with what the demo's versions hold, computed here.
fn reference(root: &Path, images: &Path) -> Result<PathBuf, String> {
    let folder = images.join("reference");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let run = |program: &str, arguments: &[&str], output: Stdio| {
        let mut command = Command::new(built(root).join(program));
        command.args(arguments).env("FOREBAY_DIR", &folder).stdin(Stdio::null()).stdout(output);
        command.stderr(Stdio::null());
        let kept = r#"{"tier": "file", "quota": "1GiB", "retention": "forever"}"#;
        command.env("FOREBAY_CHANNEL_GS", kept).current_dir(root);
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{program} {}: {status}", arguments.join(" "))),
            Err(e) => Err(format!("{program}: {e}")),
        }
    };
    let steps = STEPS.to_string();
    run("gray-scott", &["--deck", DECK, "--steps", &steps, "--output-every", "1"], Stdio::null())?;
    for name in ["U", "V"] {
        let path = folder.join(name);
        let file = std::fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        run("forebay", &["cat", "gs", name, "--version", "all", "--format", "raw"], file.into())?;
    }
    run("forebay", &["clean", "gs"], Stdio::null())?;
    Ok(folder)
}

/// The programs of a turn side by side, each line with the name of who said it.
fn command(root: &Path, reference: &Path, before: &Heard, turn: Turn) -> Vec<String> {
    let [versions, steps, demo] =
        before.said.map(|said| said.last.map_or("none".into(), |number| number.to_string()));
    let built = built(root);
    let mut script = format!("built='{}'\nspeak() {{ sed -u \"s/^/$1: /\"; }}\n", built.display());
    if turn.has(0) {
        script.push_str(&format!(
            "{{ \"$built/examples/versions_until_cut\" \"$NVDIMM0/versions\" epoch {versions} | speak versions; }} &\n\
             {{ \"$built/examples/checkpoints_until_cut\" \"$NVDIMM1/steps\" {steps} | speak steps; }} &\n",
        ));
    }
    if turn.has(2) {
        script.push_str(&format!(
            "deck='{}' steps='{STEPS}' kept={KEPT} reference='{}' acknowledged={demo}\n\
             {{\n{DEMO}}} 2>&1 | speak demo &\n",
            root.join(DECK).display(),
            reference.display(),
        ));
    }
    script.push_str("wait");
    vec!["sh".into(), "-c".into(), script]
}

/// Where programs lie that were built.
pub fn built(root: &Path) -> PathBuf {
    super::guest::build_folder(root).join("release")
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
        assert!(demo == Said::default() && heard.wrong.is_none());
        heard.line("versions: version 11");
        assert_eq!(heard.said[0].last, Some(11));
        heard.line("steps: wrong step 4 came back, acknowledged was 5");
        heard.line("steps: wrong again");
        assert_eq!(heard.wrong.as_deref(), Some("steps: wrong step 4 came back, acknowledged was 5"));
        heard = Heard::default();
        heard.line("dax-machine: no files of the host");
        assert!(heard.wrong.is_some());
    }

    #[test]
    fn a_turn_waits_for_those_whose_it_is() {
        assert_eq!(
            [0, 1, 2, 3].map(|counted| Turn::after(counted, 3)),
            [Turn::Pair, Turn::Demo, Turn::Pair, Turn::All]
        );
        let mut heard = Heard::default();
        let are_at_work = |heard: &Heard| {
            [Turn::Pair, Turn::Demo, Turn::All].map(|turn| turn.every(heard, |said| said.since_boot > 0))
        };
        heard.line("versions: version 1");
        assert_eq!(are_at_work(&heard), [false, false, false]);
        heard.line("demo: version 1");
        assert_eq!(are_at_work(&heard), [false, true, false]);
        heard.line("steps: step 1");
        assert_eq!(are_at_work(&heard), [true, true, true]);
    }

    #[test]
    fn what_was_promised_stands_until_more_is() {
        let (mut first, mut second) = (Heard::default(), Heard::default());
        first.line("versions: version 7");
        first.line("demo: version 3");
        second.line("demo: back 1..4");
        second.line("steps: back none");
        let promised = first.and_then(&second).said.map(|said| said.last);
        assert_eq!(promised, [Some(7), None, Some(4)], "who looked is held to what it found");
    }
}
