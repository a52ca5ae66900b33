//! Losses of power: two programs put versions and save checkpoints on a DAX file system until the emulator is killed
//! at a random moment; booted again on the same NVDIMMs they have to find all that they had said.
//!
//! What the programs had said is known on this side, from the serial line. A cut counts when both had acknowledged
//! something since the boot and were at work on more.

use super::boot::{End, Machine, Shape, Wish};
use super::guest::Guest;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time between the first acknowledgement of a boot and its cut.
const LONGEST_MS: u64 = 1500;

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

/// Both programs, as heard on the serial line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Heard {
    versions: Said,
    steps: Said,
    wrong: Option<String>,
}

impl Heard {
    /// Takes a line in.
    fn line(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("versions:" | "steps:"), Some("wrong"), _) | (Some("dax-machine:"), ..) => {
                self.wrong.get_or_insert_with(|| line.to_string());
            }
            (Some(who @ ("versions:" | "steps:")), Some(what), Some(number)) => {
                let said = if who == "versions:" { &mut self.versions } else { &mut self.steps };
                let number: Option<u64> = number.rsplit("..").next().and_then(|text| text.parse().ok());
                match what {
                    "back" => (said.back, said.looked) = (number, true),
                    _ => (said.last, said.since_boot) = (number, said.since_boot + 1),
                }
            }
            _ => {}
        }
    }

    fn both_at_work(&self) -> bool {
        self.versions.since_boot > 0 && self.steps.since_boot > 0
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
        "   seed {random:#x}; power cut at random up to {LONGEST_MS} ms behind the first acknowledgements"
    );
    println!("   {:>4}  {:>7}  {:>26}  {:>26}", "cut", "ms", "versions acked, back", "steps acked, back");
    let (mut before, mut counted) = (Heard::default(), 0);
    // One boot more than cuts: the last one only looks.
    for boot in 0..=cuts + cuts / 4 {
        let last = counted == cuts;
        random = next(random);
        let after = Duration::from_millis(random % LONGEST_MS);
        let mut heard = Heard::default();
        let ended = machine.run(guest, root, &command(root, &before), &mut |line| {
            heard.line(line);
            match (
                heard.wrong.is_some() || last && heard.versions.looked && heard.steps.looked,
                heard.both_at_work(),
            ) {
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
            let show = |acknowledged: Said, back: Said| {
                let text = |number: Option<u64>| number.map_or("none".into(), |number| number.to_string());
                format!("{}, {}", text(acknowledged.last), text(back.back))
            };
            let (versions, steps) = (show(before.versions, heard.versions), show(before.steps, heard.steps));
            println!("   {counted:>4}  {:>7}  {versions:>26}  {steps:>26}", "");
        }
        if last {
            println!("   {counted} cuts, everything that was acknowledged was back after each");
            return Ok(());
        }
        counted += u32::from(heard.both_at_work());
        println!("   {:>4}  {:>7}", "", after.as_millis());
        // What a boot did not come to say again stands as it was.
        let newer = |now: Said, old: Said| Said { last: now.last.max(old.last).max(now.back), ..now };
        before = Heard {
            versions: newer(heard.versions, before.versions),
            steps: newer(heard.steps, before.steps),
            wrong: None,
        };
    }
    Err(format!("only {counted} of {cuts} cuts fell between two acknowledgements"))
}

/// Both programs side by side, each line with the name of who said it.
fn command(root: &Path, before: &Heard) -> Vec<String> {
    let number = |said: Said| said.last.map_or("none".into(), |number| number.to_string());
    let example = |name: &str| built(root).join("examples").join(name).display().to_string();
    let script = format!(
        "{{ {} \"$NVDIMM0/versions\" epoch {} | sed -u 's/^/versions: /'; }} &\n\
         {{ {} \"$NVDIMM1/steps\" {} | sed -u 's/^/steps: /'; }} &\nwait",
        example("versions_until_cut"),
        number(before.versions),
        example("checkpoints_until_cut"),
        number(before.steps),
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
        for line in ["versions: back 3..10", "steps: back none", "steps: step 0", "noise"] {
            heard.line(line);
        }
        assert_eq!((heard.versions.back, heard.versions.looked), (Some(10), true));
        assert_eq!((heard.steps.back, heard.steps.looked, heard.steps.last), (None, true, Some(0)));
        assert!(!heard.both_at_work() && heard.wrong.is_none());
        heard.line("versions: version 11");
        assert!(heard.both_at_work() && heard.versions.last == Some(11));
        heard.line("steps: wrong step 4 came back, acknowledged was 5");
        heard.line("steps: wrong again");
        assert_eq!(heard.wrong.as_deref(), Some("steps: wrong step 4 came back, acknowledged was 5"));
    }
}
